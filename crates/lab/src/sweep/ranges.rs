//! Values that a source leaves unstated, each varied alone around the nominal point.

use crate::defaults::OUR_ROW;
use crate::experiment::ExperimentRun;
use crate::setup::{Setup, Workload};

/// All runs over an experiment's ranges, each with the number of its point; 0 is the nominal one.
pub(crate) fn range_runs(setup: &Setup) -> Vec<(usize, ExperimentRun)> {
    let wanted = &setup.range_workloads;
    let mut runs = Vec::new();
    for (number, point) in setup.ranges.iter().enumerate() {
        for row in &setup.rows {
            let is_wanted =
                |workload: &&Workload| number == 0 || wanted.is_empty() || wanted.contains(&workload.name);
            let workloads = setup.workloads.iter().filter(|workload| row.runs(workload));
            let workloads: Vec<&Workload> = workloads.filter(is_wanted).collect();
            let mut row = row.clone();
            if let (Some(elevator), true) = (point.elevator, row.name != OUR_ROW) {
                row.policies.elevator = elevator;
            }
            let of_row = ExperimentRun::of_row(setup, &point.machine, &workloads, &row, point.seed);
            runs.extend(of_row.into_iter().map(|run| (number, run)));
        }
    }
    runs
}
