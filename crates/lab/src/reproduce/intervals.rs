//! Compares every published figure with an interval of reproduced ones:
//! `extant lab reproduce --bands`.
//!
//! Each experiment file lists ranges for what its source leaves unstated (`[ranges]`). Every row
//! that has published figures runs at the nominal point, with other seeds, and with each value of
//! each range, changing one value at a time. A figure's interval spans all these runs.
//!
//! A run depends only on its inputs, so runs execute in parallel. Each result is stored in a file
//! named by the digest of the program and the run's inputs: a stopped sweep resumes where it left
//! off, and a run whose inputs changed runs again.

use super::compared::{Compared, FigureRole, compare};
use super::{Missing, folders};
use crate::experiment::{ExperimentRun, Figures, side_by_side};
use crate::report::{Format, table};
use crate::setup::{ExperimentError, Setup};
use crate::sweep::{ResultsStore, range_runs, stored_figures};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// The intervals of every experiment in a folder.
#[derive(Clone, Debug)]
pub struct Intervals {
    experiments: Vec<IntervalsOfOne>,
    missing: Vec<Missing>,
    /// Number of runs; `found` of them were already stored.
    runs: usize,
    found: usize,
}

#[derive(Clone, Debug)]
struct IntervalsOfOne {
    folder: String,
    name: String,
    points: Vec<String>,
    leaves_out: Vec<String>,
    lines: Vec<Interval>,
}

/// A published figure and the reproduced values at every point that has it.
#[derive(Clone, Debug)]
struct Interval {
    published: Compared,
    nominal: Option<f64>,
    /// Least and greatest value, and the point farthest from the nominal one.
    range: Option<([f64; 2], usize)>,
}

impl Interval {
    fn of(published: Compared, all: &[(usize, f64)]) -> Self {
        let nominal = all.iter().find(|(point, _)| *point == 0).map(|(_, value)| *value);
        let values = || all.iter().map(|(_, value)| *value);
        let range = values().min_by(f64::total_cmp).zip(values().max_by(f64::total_cmp));
        let distance = |value: f64| (value - nominal.unwrap_or(value)).abs();
        let farthest = all.iter().max_by(|a, b| distance(a.1).total_cmp(&distance(b.1)).then(b.0.cmp(&a.0)));
        let range = range.zip(farthest).map(|((least, most), (point, _))| ([least, most], *point));
        Self { published, nominal, range }
    }

    /// Whether the interval contains the published figure; `None` without an interval.
    fn holds(&self) -> Option<bool> {
        self.range.map(|([least, most], _)| (least..=most).contains(&self.published.published))
    }
}

/// Runs the experiments of a folder over their ranges: all, or those named in `only`.
///
/// Results are stored in `results` and reused from there.
///
/// # Errors
/// Fails before any run if a file is refused; otherwise with the first run that fails, or if
/// results cannot be stored.
pub fn intervals(root: &Path, only: &[String], results: &Path) -> Result<Intervals, ExperimentError> {
    let (folders, missing) = folders(root, only)?;
    let load = |folder: &PathBuf| Setup::load(folder).map(Setup::nominal);
    let experiments = folders.iter().map(load).collect::<Result<Vec<_>, _>>()?;
    let store = ResultsStore::open(results)?;
    // Each with the numbers of its experiment and of its point.
    let runs: Vec<(usize, usize, ExperimentRun)> = experiments
        .iter()
        .enumerate()
        .flat_map(|(number, one)| published_runs(one).map(move |(point, run)| (number, point, run)))
        .collect();
    let all = runs.iter().map(|(_, _, run)| run.clone()).collect();
    let done = side_by_side(all, move |run| stored_figures(&store, run))?;
    let found = done.iter().filter(|(_, found)| *found).count();
    let all = experiments.iter().zip(&folders).enumerate().map(|(number, (experiment, folder))| {
        let own: Vec<(usize, &ExperimentRun, &Figures)> = runs
            .iter()
            .zip(&done)
            .filter(|((of, _, _), _)| *of == number)
            .map(|((_, point, run), (figures, _))| (*point, run, figures))
            .collect();
        let interval = |one: Compared| {
            let value = |(point, run, figures): &(usize, &ExperimentRun, &Figures)| {
                let value = figures.get(&one.workload)?.get(&one.figure)?;
                (run.row() == one.row).then_some((*point, *value))
            };
            let all: Vec<(usize, f64)> = own.iter().filter_map(value).collect();
            Interval::of(one, &all)
        };
        IntervalsOfOne {
            folder: folder.file_name().unwrap_or_default().to_string_lossy().into_owned(),
            name: experiment.name.clone(),
            points: experiment.ranges.iter().map(|point| point.label.clone()).collect(),
            leaves_out: experiment.leaves_out.clone(),
            lines: compare(experiment, &[]).into_iter().map(interval).collect(),
        }
    });
    Ok(Intervals { experiments: all.collect(), missing, runs: runs.len(), found })
}

/// The runs of an experiment's ranges, without rows that have nothing published: they would run for
/// as long as the others, and no line would show them.
fn published_runs(setup: &Setup) -> impl Iterator<Item = (usize, ExperimentRun)> {
    let rows: BTreeSet<String> = compare(setup, &[]).into_iter().map(|one| one.row).collect();
    range_runs(setup).into_iter().filter(move |(_, run)| rows.contains(run.row()))
}

const COLUMNS: [&str; 10] =
    ["workload", "row", "figure", "", "published", "nominal", "least", "most", "inside", "farthest at"];

impl Intervals {
    /// Formats the results.
    pub fn text(&self, format: Format) -> String {
        format.render(|markdown| self.tables(markdown), || self.json())
    }

    fn tables(&self, markdown: bool) -> String {
        let mut out = String::new();
        let item = if markdown { "- " } else { "  " };
        let mut all = [0; 2];
        for one in &self.experiments {
            let head = format!("{}: {}", one.folder, one.name);
            let _ = if markdown { writeln!(out, "## {head}\n") } else { writeln!(out, "{head}") };
            let rows: Vec<_> = one.lines.iter().map(|line| one.cells(line)).collect();
            table(&mut out, markdown, &COLUMNS, &rows);
            if markdown {
                out.push('\n');
            }
            let [inside, count] = one.score();
            all = [all[0] + inside, all[1] + count];
            let _ = writeln!(out, "{item}{inside} of {count} predictions lie in their intervals.");
            let _ = writeln!(out, "{item}Points: {}.", one.points.join(", "));
            for left_out in &one.leaves_out {
                let _ = writeln!(out, "{item}Left out: {left_out}");
            }
            out.push('\n');
        }
        let heading = if markdown { "## All of them\n\n" } else { "All of them\n" };
        let _ = writeln!(out, "{heading}{item}{} of {} predictions lie in their intervals.", all[0], all[1]);
        let _ = writeln!(out, "{item}One value at a time: values that change together are left out.");
        for Missing { name, why } in &self.missing {
            let _ = writeln!(out, "{item}Missing: {name}: {why}");
        }
        out
    }

    fn json(&self) -> Value {
        let line = |line: &Interval| {
            json!({
                "workload": line.published.workload,
                "row": line.published.row,
                "figure": line.published.figure.key(),
                "part": line.published.part.name(),
                "published": line.published.published,
                "nominal": line.nominal,
                "least": line.range.map(|(range, _)| range[0]),
                "most": line.range.map(|(range, _)| range[1]),
                "inside": line.holds(),
            })
        };
        let one = |one: &IntervalsOfOne| {
            json!({
                "folder": one.folder,
                "name": one.name,
                "points": one.points,
                "figures": one.lines.iter().map(line).collect::<Vec<_>>(),
                "leaves_out": one.leaves_out,
            })
        };
        let missing: Vec<Value> =
            self.missing.iter().map(|missing| json!({"name": missing.name, "why": missing.why})).collect();
        json!({"experiments": self.experiments.iter().map(one).collect::<Vec<_>>(), "missing": missing})
    }

    /// The number of runs, and how many of them were already stored.
    pub fn runs(&self) -> (usize, usize) {
        (self.runs, self.found)
    }
}

impl IntervalsOfOne {
    /// Predictions whose interval contains the published figure, and all predictions.
    fn score(&self) -> [usize; 2] {
        let predictions = self.lines.iter().filter(|line| line.published.part == FigureRole::Prediction);
        let inside = predictions.clone().filter(|line| line.holds() == Some(true)).count();
        [inside, predictions.count()]
    }

    fn cells(&self, line: &Interval) -> Vec<String> {
        let one = &line.published;
        let shown = |value: f64| one.figure.shown(value);
        let maybe = |value: Option<f64>| value.map(shown).unwrap_or_default();
        let inside = line.holds().map(|holds| if holds { "yes" } else { "no" });
        let farthest = line.range.filter(|([least, most], _)| least < most);
        vec![
            one.workload.clone(),
            one.row.clone(),
            one.figure.title().to_owned(),
            one.part.name().to_owned(),
            shown(one.published),
            maybe(line.nominal),
            maybe(line.range.map(|(range, _)| range[0])),
            maybe(line.range.map(|(range, _)| range[1])),
            inside.unwrap_or_default().to_owned(),
            farthest.map(|(_, point)| self.points[point].clone()).unwrap_or_default(),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figure::Figure;

    fn published(value: f64) -> Compared {
        let (workload, row) = ("w".to_owned(), "r".to_owned());
        let (figure, part) = (Figure::Iops, FigureRole::Prediction);
        Compared {
            workload,
            row,
            figure,
            part,
            published: value,
            margin: 0.0,
            reproduced: None,
            reproduced_before: None,
            null: None,
            ours: None,
        }
    }

    #[test]
    fn an_interval_is_that_of_all_points_and_names_the_farthest() {
        let line = Interval::of(published(120.0), &[(0, 100.0), (1, 90.0), (2, 130.0)]);
        assert_eq!(line.range, Some(([90.0, 130.0], 2)));
        assert_eq!((line.nominal, line.holds()), (Some(100.0), Some(true)));
        assert_eq!(Interval::of(published(89.0), &[(0, 100.0), (1, 90.0)]).holds(), Some(false));
        assert_eq!(Interval::of(published(89.0), &[]).holds(), None, "the model has no such figure");
    }

    #[test]
    fn a_stopped_command_goes_on_and_changed_runs_run_again() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("experiments/small");
        std::fs::create_dir_all(&folder).unwrap();
        let machines = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../machines");
        let file = |values: &str| {
            format!(
                "name = \"Small\"\nsource = \"none\"\nmachine = \"{}/sata-7200-2013.toml\"\nseeds = [1]\n\
                 [ranges]\nseeds = [2]\nset.hz = {values}\n[[workload]]\nname = \"w\"\njobs = \"j.fio\"\n\
                 [[row]]\nname = \"r\"\nelevator = \"noop\"\nrequests = 128\npublished.w = {{ iops = 100 }}\n\
                 [[row]]\nname = \"unpublished\"\nelevator = \"noop\"\nrequests = 128\n",
                machines.display()
            )
        };
        std::fs::write(folder.join("j.fio"), "[j]\nrw=randread\nsize=64m\nruntime=1\ndirect=1\n").unwrap();
        let run = |values: &str| {
            std::fs::write(folder.join("experiment.toml"), file(values)).unwrap();
            intervals(&dir.path().join("experiments"), &[], &dir.path().join("results")).unwrap()
        };
        let first = run("[250]");
        assert_eq!(first.runs(), (3, 0));
        let second = run("[250]");
        assert_eq!((second.runs(), second.text(Format::Text)), ((3, 3), first.text(Format::Text)));
        assert_eq!(run("[250, 300]").runs(), (4, 3));
        assert!(intervals(&dir.path().join("experiments"), &["other".into()], dir.path()).is_err());
    }
}
