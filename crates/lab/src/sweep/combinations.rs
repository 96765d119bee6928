//! Runs an experiment's rows at every combination of the values that its source leaves unstated.

use crate::experiment::{Cell, ExperimentRun, side_by_side};
use crate::figure::Figure;
use crate::run::figure_of;
use crate::setup::{ExperimentError, GridPoint, Row, Setup, Workload};
use std::fmt::Write;

/// Runs the experiment's grid with the first seed and returns it as a table; empty if there is no
/// grid.
///
/// # Errors
/// The first run that fails.
pub fn grid_table(setup: &Setup) -> Result<String, ExperimentError> {
    let mut out = String::new();
    let Some(grid) = &setup.grid else { return Ok(out) };
    let wanted = |list: &[String], name: &String| list.is_empty() || list.contains(name);
    let width = grid.points.iter().map(|point| point.label.chars().count()).max().unwrap_or(0).max(24);
    for workload in setup.workloads.iter().filter(|workload| wanted(&grid.workloads, &workload.name)) {
        let rows = setup.rows.iter().filter(|row| row.runs(workload));
        for row in rows.filter(|row| wanted(&grid.rows, &row.name)) {
            part(&mut out, setup, &grid.points, workload, row, width)?;
        }
    }
    Ok(out)
}

/// Appends a row on a workload at each point.
fn part(
    out: &mut String,
    setup: &Setup,
    points: &[GridPoint],
    workload: &Workload,
    row: &Row,
    width: usize,
) -> Result<(), ExperimentError> {
    let is_direct = workload.jobs.iter().all(|job| job.direct);
    let columns = match (workload.cyclictest.is_some(), is_direct) {
        (true, _) => &[Figure::LatencyMeanUs, Figure::LatencyMaxUs, Figure::WrittenMibS][..],
        (false, true) if workload.volume.is_some() => {
            &[Figure::MibS, Figure::PiecesS, Figure::SystemPercent, Figure::InterruptPercent][..]
        }
        (false, false) if !workload.jobs.iter().any(|job| job.pattern.reads) => {
            &[Figure::WrittenMibS, Figure::MeanMs, Figure::MaxMs][..]
        }
        _ => &[Figure::Iops, Figure::MeanMs, Figure::MaxMs, Figure::DeviationMs][..],
    };
    let columns = workload.phase.map_or(columns, |phase| phase.columns);
    let run = |point: &GridPoint| ExperimentRun::new(setup, &point.machine, &[workload], row, setup.seeds[0]);
    let all = points.iter().map(run).collect();
    let runs: Vec<Cell> = side_by_side(all, ExperimentRun::cells)?.into_iter().flatten().collect();
    let _ = write!(out, "\n{:<pad$}", format!("{}: {}", workload.name, row.name), pad = width + 4);
    columns.iter().for_each(|figure| {
        let _ = write!(out, "{:>12}", figure.title());
    });
    out.push('\n');
    let mut line = |name: &str, value: &dyn Fn(Figure) -> Option<f64>| {
        let _ = write!(out, "  {name:<pad$}", pad = width + 2);
        for figure in columns {
            let text = value(*figure).map(|value| figure.shown(value));
            let _ = write!(out, "{:>12}", text.unwrap_or_default());
        }
        out.truncate(out.trim_end().len());
        out.push('\n');
    };
    for (point, cell) in points.iter().zip(&runs) {
        line(&point.label, &|figure| figure_of(figure, &cell.outcome, 0));
    }
    let all = |figure: Figure| runs.iter().filter_map(move |cell| figure_of(figure, &cell.outcome, 0));
    line("least", &|figure| all(figure).min_by(f64::total_cmp));
    line("most", &|figure| all(figure).max_by(f64::total_cmp));
    if let Some(published) = row.published.figures.get(&workload.name) {
        line("published", &|figure| published.get(&figure).copied());
    }
    Ok(())
}
