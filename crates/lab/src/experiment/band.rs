//! Bands: an experiment's rows over the values that its source leaves unstated.

use super::{Cell, Experiment, ExperimentError, Figure, Load, Row, Run, side_by_side};
use extant_sim::{Machine, Setting};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::PathBuf;

/// The table `[band]` of an experiment's file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Band {
    /// Workloads to run; all if empty.
    #[serde(default)]
    workloads: Vec<String>,
    #[serde(default)]
    rows: Vec<String>,
    /// Machines in addition to the experiment's own.
    #[serde(default)]
    pub(super) machines: Vec<PathBuf>,
    /// Values for each key of the machine's file.
    #[serde(default)]
    set: BTreeMap<String, Vec<toml::Value>>,
}

/// A key of the machine's file and the values it takes.
#[derive(Clone, Debug)]
pub struct Axis(Vec<Setting>);

impl Axis {
    /// Creates an axis from a key and its values, as `--set` takes them.
    ///
    /// # Errors
    /// Describes the syntax of a setting.
    pub fn new(key: &str, values: &[String]) -> Result<Self, String> {
        values.iter().map(|value| format!("{key}={value}").parse()).collect::<Result<_, _>>().map(Self)
    }
}

impl Axis {
    /// Every combination of the axes' values.
    pub(crate) fn combinations(axes: &[Self]) -> Vec<Vec<Setting>> {
        let mut all: Vec<Vec<Setting>> = vec![Vec::new()];
        for Self(values) in axes {
            let with = |before: &Vec<Setting>| {
                values.iter().map(|value| [before.clone(), vec![value.clone()]].concat()).collect::<Vec<_>>()
            };
            all = all.iter().flat_map(with).collect();
        }
        all
    }
}

impl std::str::FromStr for Axis {
    type Err = String;

    /// Parses `key=value,value,…`.
    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('=') {
            Some((key, values)) => Self::new(key, &values.split(',').map(str::to_owned).collect::<Vec<_>>()),
            None => Err(format!("\"{text}\" is not KEY=VALUE,VALUE, such as hz=100,250,1000")),
        }
    }
}

/// A machine with one combination of values.
#[derive(Clone, Debug)]
pub(super) struct Point {
    label: String,
    machine: Machine,
}

impl Experiment {
    pub(super) fn with_band(self, band: Band, machines: Vec<PathBuf>) -> Result<Self, ExperimentError> {
        let axis = |(key, values): (&String, &Vec<toml::Value>)| {
            Axis::new(key, &values.iter().map(toml::Value::to_string).collect::<Vec<_>>())
        };
        let axes = band.set.iter().map(axis).collect::<Result<Vec<_>, String>>().map_err(|problem| {
            ExperimentError::Syntax { file: self.machine_file.display().to_string(), problem }
        })?;
        let mut experiment = self.over(&axes, machines)?;
        experiment.band = Some(band);
        Ok(experiment)
    }

    /// Replaces the band's points with every combination of the axes' values, on the experiment's
    /// machine and on `others`.
    ///
    /// # Errors
    /// If a machine is refused; names its file and the setting.
    pub fn over(mut self, axes: &[Axis], others: Vec<PathBuf>) -> Result<Self, ExperimentError> {
        let combinations = Axis::combinations(axes);
        let named = !others.is_empty();
        self.points.clear();
        for file in std::iter::once(self.machine_file.clone()).chain(others) {
            for combination in &combinations {
                let settings = [self.settings.clone(), combination.clone()].concat();
                let machine = super::load_machine(&file, &settings, self.program.as_deref())?;
                let mut words: Vec<String> = combination.iter().map(|setting| setting.to_string()).collect();
                if named {
                    let stem = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
                    words.insert(0, stem);
                }
                self.points.push(Point { label: words.join(" "), machine });
            }
        }
        self.band = None;
        Ok(self)
    }

    /// Returns the runs at every combination of the axes' values, each with its settings.
    ///
    /// Uses `seeds`, or the experiment's own if empty.
    pub(crate) fn sweep_runs(
        &self,
        axes: &[Axis],
        seeds: &[u64],
    ) -> Result<Vec<(Vec<Setting>, Run)>, ExperimentError> {
        let mut all = Vec::new();
        for combination in Axis::combinations(axes) {
            let settings = [self.settings.clone(), combination.clone()].concat();
            let mut one = self.clone();
            one.machine = super::load_machine(&self.machine_file, &settings, self.program.as_deref())?;
            if !seeds.is_empty() {
                one.seeds = seeds.to_vec();
            }
            all.extend(one.runs().into_iter().map(|run| (combination.clone(), run)));
        }
        Ok(all)
    }

    /// Runs the band with the first seed and returns it as a table; empty if there is no band.
    ///
    /// # Errors
    /// The first run that fails.
    pub fn band(&self) -> Result<String, ExperimentError> {
        let mut out = String::new();
        if self.points.is_empty() {
            return Ok(out);
        }
        let wanted = |list: fn(&Band) -> &Vec<String>, name: &String| {
            self.band.as_ref().is_none_or(|band| list(band).is_empty() || list(band).contains(name))
        };
        let width = self.points.iter().map(|point| point.label.chars().count()).max().unwrap_or(0).max(24);
        for load in self.workloads.iter().filter(|load| wanted(|band| &band.workloads, &load.name)) {
            let rows = self.rows.iter().filter(|row| row.runs(load));
            for row in rows.filter(|row| wanted(|band| &band.rows, &row.name)) {
                self.band_of(&mut out, load, row, width)?;
            }
        }
        Ok(out)
    }

    fn band_of(&self, out: &mut String, load: &Load, row: &Row, width: usize) -> Result<(), ExperimentError> {
        let columns: &[Figure] = match (load.cyclictest.is_some(), load.jobs.iter().all(|job| job.direct)) {
            _ if load.phase.is_some() => load.phase.map_or(&[], |phase| phase.columns),
            (true, _) => &[Figure::LatencyMeanUs, Figure::LatencyMaxUs, Figure::WrittenMibS],
            (false, true) if load.volume.is_some() => {
                &[Figure::MibS, Figure::PiecesS, Figure::SystemPercent, Figure::InterruptPercent]
            }
            (false, false) if !load.jobs.iter().any(|job| job.pattern.reads) => {
                &[Figure::WrittenMibS, Figure::MeanMs, Figure::MaxMs]
            }
            _ => &[Figure::Iops, Figure::MeanMs, Figure::MaxMs, Figure::DeviationMs],
        };
        let all = self.points.iter().map(|point| self.run_on(&point.machine, load, row)).collect();
        let runs: Vec<Cell> = side_by_side(all, Run::cells)?.into_iter().flatten().collect();
        let _ = write!(out, "\n{:<pad$}", format!("{}: {}", load.name, row.name), pad = width + 4);
        columns.iter().for_each(|figure| {
            let _ = write!(out, "{:>12}", figure.title());
        });
        out.push('\n');
        let mut line = |name: &str, value: &dyn Fn(Figure) -> Option<f64>| {
            let _ = write!(out, "  {name:<pad$}", pad = width + 2);
            for figure in columns {
                let text = value(*figure).map(|value| format!("{value:.*}", figure.digits()));
                let _ = write!(out, "{:>12}", text.unwrap_or_default());
            }
            out.truncate(out.trim_end().len());
            out.push('\n');
        };
        for (point, cell) in self.points.iter().zip(&runs) {
            line(&point.label, &|figure| figure.of(cell, 0));
        }
        let all = |figure: Figure| runs.iter().filter_map(move |cell| figure.of(cell, 0));
        line("least", &|figure| all(figure).min_by(f64::total_cmp));
        line("most", &|figure| all(figure).max_by(f64::total_cmp));
        if let Some(published) = row.published.get(&load.name) {
            line("published", &|figure| published.get(&figure).copied());
        }
        Ok(())
    }
}
