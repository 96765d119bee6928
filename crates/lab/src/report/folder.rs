//! Reports of an experiment with drawings: `extant lab run EXPERIMENT --report FOLDER`.
//!
//! The folder gets `report.md`, with the tables and a command to repeat each row, and an SVG
//! drawing per workload. The drawings show latencies, scheduling latencies, dirty pages and
//! bandwidth over time, command sizes, and processor time by cause. The same runs produce the same
//! bytes.

use super::experiment_table;
use super::workload_drawing::draw_workload;
use crate::experiment::{Cell, run_watched};
use crate::run::RunEvents;
use crate::setup::{ExperimentError, Setup, Workload};
use std::fmt::Write;
use std::path::Path;

/// Runs an experiment, writes the report into a folder, and returns the results.
///
/// # Errors
/// The first run that fails, or a file that cannot be written.
pub(crate) fn write_folder(setup: &Setup, path: &Path, folder: &Path) -> Result<Vec<Cell>, ExperimentError> {
    let (cells, seen): (Vec<Cell>, Vec<RunEvents>) = run_watched(setup)?.into_iter().unzip();
    let mut text = format!("# {}\n\n```\n{}```\n", setup.name, experiment_table(setup, &cells));
    let mut files = Vec::new();
    for (number, Workload { name: workload, .. }) in setup.workloads.iter().enumerate() {
        let of: Vec<(&Cell, &RunEvents)> =
            cells.iter().zip(&seen).filter(|(cell, _)| cell.workload == *workload).collect();
        let _ = writeln!(text, "\n## {workload}\n");
        if let Some(drawing) = draw_workload(workload, &of) {
            let name = format!("workload-{}.svg", number + 1);
            let _ = writeln!(text, "![{workload}]({name})\n");
            files.push((name, drawing));
        }
        let mut rows: Vec<&str> = of.iter().map(|(cell, _)| cell.row.as_str()).collect();
        rows.dedup();
        for row in rows {
            let _ =
                writeln!(text, "    extant lab run --workload '{workload}' --row '{row}' {}", path.display());
        }
    }
    if !setup.leaves_out.is_empty() {
        text.push_str("\n## Left out\n\n");
        setup.leaves_out.iter().for_each(|left_out| {
            let _ = writeln!(text, "- {left_out}");
        });
    }
    files.push(("report.md".to_owned(), text));
    let in_file = |path: &Path, error: std::io::Error| {
        ExperimentError::File(path.display().to_string(), error.to_string())
    };
    std::fs::create_dir_all(folder).map_err(|error| in_file(folder, error))?;
    for (name, contents) in files {
        let path = folder.join(name);
        std::fs::write(&path, contents).map_err(|error| in_file(&path, error))?;
    }
    Ok(cells)
}
