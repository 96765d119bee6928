//! Variants of its machine that an experiment also runs on: every combination of some values, or
//! one value changed at a time.

use super::toml_form::{BandForm, RangesForm};
use super::{Axis, ExperimentError, Setup};
use extant_history::{Choice, MakeElevator};
use extant_sim::{Machine, Setting};
use std::path::{Path, PathBuf};

/// Combinations of values, and the part of the experiment that runs at each.
#[derive(Clone, Debug)]
pub(crate) struct Grid {
    /// Workloads to run; all if empty.
    pub(crate) workloads: Vec<String>,
    /// Rows to run; all if empty.
    pub(crate) rows: Vec<String>,
    pub(crate) points: Vec<GridPoint>,
}

/// A machine with one combination of values.
#[derive(Clone, Debug)]
pub(crate) struct GridPoint {
    pub(crate) label: String,
    pub(crate) machine: Machine,
}

/// The nominal point, or a point that differs from it in one value.
#[derive(Clone, Debug)]
pub(crate) struct RangePoint {
    pub(crate) label: String,
    pub(crate) machine: Machine,
    pub(crate) seed: u64,
    /// The elevator of all rows except ours.
    pub(crate) elevator: Option<Choice<MakeElevator>>,
}

fn stem(file: &Path) -> String {
    file.file_stem().unwrap_or_default().to_string_lossy().into_owned()
}

fn refused(setup: &Setup, problem: String) -> ExperimentError {
    ExperimentError::Syntax { file: setup.machine_file.display().to_string(), problem }
}

/// The points of the table `[band]`.
pub(super) fn grid_of(
    setup: &Setup,
    form: &BandForm,
    beside: impl Fn(&Path) -> PathBuf,
) -> Result<Grid, ExperimentError> {
    let axis = |(key, values): (&String, &Vec<toml::Value>)| {
        Axis::new(key, &values.iter().map(toml::Value::to_string).collect::<Vec<_>>())
    };
    let axes = form.set.iter().map(axis).collect::<Result<Vec<_>, String>>();
    let axes = axes.map_err(|problem| refused(setup, problem))?;
    let machines = form.machines.iter().map(|file| beside(file)).collect();
    let grid = grid(setup, &axes, machines)?;
    Ok(Grid { workloads: form.workloads.clone(), rows: form.rows.clone(), ..grid })
}

/// Every combination of the axes' values, on the experiment's machine and on `others`.
pub(super) fn grid(setup: &Setup, axes: &[Axis], others: Vec<PathBuf>) -> Result<Grid, ExperimentError> {
    let combinations = Axis::combinations(axes);
    let named = !others.is_empty();
    let mut points = Vec::new();
    for file in std::iter::once(setup.machine_file.clone()).chain(others) {
        for combination in &combinations {
            let machine = setup.machine_of(&file, &[&setup.settings[..], combination].concat())?;
            let mut words: Vec<String> = combination.iter().map(|setting| setting.to_string()).collect();
            if named {
                words.insert(0, stem(&file));
            }
            points.push(GridPoint { label: words.join(" "), machine });
        }
    }
    Ok(Grid { workloads: Vec::new(), rows: Vec::new(), points })
}

/// The nominal point, followed by the points that change one value each.
pub(super) fn ranges(
    setup: &Setup,
    form: &RangesForm,
    beside: impl Fn(&Path) -> PathBuf,
) -> Result<Vec<RangePoint>, ExperimentError> {
    let seed = setup.seeds[0];
    let nominal = |label: String, machine: Machine| RangePoint { label, machine, seed, elevator: None };
    let own = |label: String| nominal(label, setup.machine.clone());
    let mut points = vec![own("nominal".to_owned())];
    points.extend(form.seeds.iter().map(|seed| RangePoint { seed: *seed, ..own(format!("seed {seed}")) }));
    for (key, value) in form.set.iter().flat_map(|(key, all)| all.iter().map(move |value| (key, value))) {
        let setting = format!("{key}={value}").parse::<Setting>();
        let setting = setting.map_err(|problem| refused(setup, problem))?;
        let label = setting.to_string();
        points.push(nominal(label, setup.machine_with(&[setting])?));
    }
    for name in &form.elevators {
        let elevator = name.parse().map_err(|error| refused(setup, format!("ranges: {error}")))?;
        points.push(RangePoint { elevator: Some(elevator), ..own(name.clone()) });
    }
    for file in &form.machines {
        points.push(nominal(stem(file), setup.machine_of(&beside(file), &setup.settings)?));
    }
    Ok(points)
}
