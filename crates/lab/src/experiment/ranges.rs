//! Ranges: values that a source leaves unstated, each varied alone around the nominal point.

use super::runs::Run;
use super::{Experiment, ExperimentError, Load, OURS, load_machine};
use extant_sim::{Machine, Setting};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The table `[ranges]` of an experiment's file.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Ranges {
    /// Workloads to run over the ranges; all if empty.
    workloads: Vec<String>,
    /// Seeds in addition to the experiment's first.
    seeds: Vec<u64>,
    /// Values for each key of the machine's file.
    set: BTreeMap<String, Vec<toml::Value>>,
    /// Elevators for all rows except ours.
    elevators: Vec<String>,
    /// Machines in addition to the experiment's own.
    machines: Vec<PathBuf>,
}

/// The nominal point, or a point that differs from it in one value.
#[derive(Clone, Debug)]
pub(super) struct RangePoint {
    label: String,
    machine: Machine,
    seed: u64,
    elevator: Option<String>,
}

impl Experiment {
    /// The nominal point, followed by the points that change one value each.
    pub(super) fn points_of(
        &self,
        ranges: &Ranges,
        beside: impl Fn(&Path) -> PathBuf,
    ) -> Result<Vec<RangePoint>, ExperimentError> {
        let seed = self.seeds[0];
        let nominal = |label: String, machine: Machine| RangePoint { label, machine, seed, elevator: None };
        let mut points = vec![nominal("nominal".to_owned(), self.machine.clone())];
        for seed in &ranges.seeds {
            let point = nominal(format!("seed {seed}"), self.machine.clone());
            points.push(RangePoint { seed: *seed, ..point });
        }
        for (key, value) in ranges.set.iter().flat_map(|(key, all)| all.iter().map(move |value| (key, value)))
        {
            let setting = format!("{key}={value}").parse::<Setting>().map_err(|problem| {
                ExperimentError::Syntax { file: self.machine_file.display().to_string(), problem }
            })?;
            let label = setting.to_string();
            let settings = [self.settings.clone(), vec![setting]].concat();
            points
                .push(nominal(label, load_machine(&self.machine_file, &settings, self.program.as_deref())?));
        }
        for elevator in &ranges.elevators {
            let point = nominal(elevator.clone(), self.machine.clone());
            points.push(RangePoint { elevator: Some(elevator.clone()), ..point });
        }
        for file in &ranges.machines {
            let machine = load_machine(&beside(file), &self.settings, self.program.as_deref())?;
            points
                .push(nominal(file.file_stem().unwrap_or_default().to_string_lossy().into_owned(), machine));
        }
        Ok(points)
    }

    /// Names of the points; the first is the nominal one.
    pub(crate) fn range_labels(&self) -> Vec<String> {
        self.range_points.iter().map(|point| point.label.clone()).collect()
    }

    /// All runs over the ranges.
    pub(crate) fn range_runs(&self) -> Vec<Run> {
        let wanted = &self.ranges.workloads;
        let mut runs = Vec::new();
        for (number, point) in self.range_points.iter().enumerate() {
            for row in &self.rows {
                let is_wanted =
                    |load: &&Load| number == 0 || wanted.is_empty() || wanted.contains(&load.name);
                let loads: Vec<Load> =
                    self.workloads.iter().filter(|load| row.runs(load)).filter(is_wanted).cloned().collect();
                let mut row = row.clone();
                if let (Some(elevator), true) = (&point.elevator, row.name != OURS) {
                    row.elevator.clone_from(elevator);
                }
                let run = |loads| Run {
                    point: number,
                    machine: point.machine.clone(),
                    loads,
                    row: row.clone(),
                    seed: point.seed,
                    program: self.program.clone(),
                };
                match self.program {
                    // A program's phases follow each other in one run.
                    Some(_) if !loads.is_empty() => runs.push(run(loads)),
                    Some(_) => {}
                    None => runs.extend(loads.into_iter().map(|load| run(vec![load]))),
                }
            }
        }
        runs
    }
}
