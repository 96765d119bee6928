//! Compares every published figure with the reproduced one: `extant lab reproduce`.
//!
//! Each experiment in a folder runs at its nominal point with its first seed. A row of the
//! comparison holds a published figure, the reproduced one, the null prediction (the figure of the
//! workload's first published row, as if nothing had changed), and ours. Experiment files say what
//! they leave out; the folder's `missing.toml` lists experiments that do not exist.

use crate::experiment::{
    Compared, EachRow, Experiment, ExperimentError, Figure, Headline, Part, Run, side_by_side,
};
use crate::text::{self, Kind};
use serde::Deserialize;
use serde_json::{Value, json};
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// The format of the report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// Aligned columns.
    #[default]
    Text,
    /// Markdown tables, as GitHub and most other renderers accept them.
    Markdown,
    /// One JSON object with unrounded values.
    Json,
}

/// The results of all experiments in a folder.
#[derive(Clone, Debug)]
pub struct Reproduction {
    experiments: Vec<Reproduced>,
    missing: Vec<Missing>,
}

#[derive(Clone, Debug)]
struct Reproduced {
    folder: String,
    name: String,
    leaves_out: Vec<String>,
    compared: Vec<Compared>,
    headlines: Vec<Headline>,
    each_row: Vec<EachRow>,
    repeats: Option<String>,
}

/// An experiment that should be reproduced but is not.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Missing {
    pub(crate) name: String,
    pub(crate) why: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct MissingFile {
    missing: Vec<Missing>,
}

/// A prediction is near if its relative error is at most this.
const NEAR: f64 = 0.20;
/// A prediction of a count is near if its relative error is at most this.
const NEAR_COUNT: f64 = 0.15;

/// Returns the subfolders that have an `experiment.toml`, sorted by name, and the list of missing
/// experiments.
///
/// With names in `only`, returns only those folders.
pub(crate) fn folders(root: &Path, only: &[String]) -> Result<(Vec<PathBuf>, Vec<Missing>), ExperimentError> {
    let unreadable = |path: &Path, error: &dyn std::fmt::Display| {
        ExperimentError::File(path.display().to_string(), error.to_string())
    };
    let entries = std::fs::read_dir(root).map_err(|error| unreadable(root, &error))?;
    let mut folders: Vec<PathBuf> = entries
        .filter_map(Result::ok)
        .map(|entry| entry.path())
        .filter(|path| path.join("experiment.toml").is_file())
        .collect();
    folders.sort();
    if folders.is_empty() {
        return Err(unreadable(
            root,
            &"no folder with an experiment.toml in it; give the folder of the experiments",
        ));
    }
    if let Some(name) = only.iter().find(|name| !folders.iter().any(|folder| folder.ends_with(name))) {
        return Err(unreadable(&root.join(name), &"no experiment.toml in it; look for a slip in its name"));
    }
    folders.retain(|folder| only.is_empty() || only.iter().any(|name| folder.ends_with(name)));
    let list = root.join("missing.toml");
    let missing = if list.is_file() {
        let text = text::read(&list, Kind::Experiment).map_err(|problem| unreadable(&list, &problem))?;
        let MissingFile { missing } = toml::from_str(&text).map_err(|error| unreadable(&list, &error))?;
        missing
    } else {
        Vec::new()
    };
    Ok((folders, missing))
}

/// Runs the experiments in a folder: all in order of their names, or those named in `only`.
///
/// Each is a subfolder with an `experiment.toml`. With `report`, each gets a report with drawings
/// in a folder of the same name there.
///
/// # Errors
/// Fails before any run if a file is refused; otherwise with the first run that fails.
pub fn reproduce(
    root: &Path,
    only: &[String],
    report: Option<&Path>,
) -> Result<Reproduction, ExperimentError> {
    let (folders, missing) = folders(root, only)?;
    let load = |folder: &PathBuf| Experiment::load(folder).map(Experiment::nominal);
    let loaded = folders.iter().map(load).collect::<Result<Vec<_>, _>>()?;
    let mut experiments = Vec::new();
    // Run all experiments together, so that processors do not idle at the end of each.
    let of_each: Vec<Vec<Run>> = loaded
        .iter()
        .map(|experiment| if report.is_some() { Vec::new() } else { experiment.runs() })
        .collect();
    let counts: Vec<usize> = of_each.iter().map(Vec::len).collect();
    let mut done = side_by_side(of_each.into_iter().flatten().collect(), Run::cells)?.into_iter();
    for ((folder, experiment), count) in folders.iter().zip(loaded).zip(counts) {
        let name = folder.file_name().unwrap_or_default();
        let cells = match report {
            Some(report) => crate::plots::report(&experiment, folder, &report.join(name))?,
            None => done.by_ref().take(count).flatten().collect(),
        };
        experiments.push(Reproduced {
            folder: name.to_string_lossy().into_owned(),
            name: experiment.name.clone(),
            leaves_out: experiment.leaves_out.clone(),
            compared: experiment.compare(&cells),
            headlines: experiment.headlines(&cells),
            each_row: experiment.each_row(&cells),
            repeats: experiment.repeats.clone(),
        });
    }
    Ok(Reproduction { experiments, missing })
}

/// How many predictions there are; how many are near, how many halve the error of "nothing
/// changes", and how many do both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Score {
    predictions: usize,
    near: usize,
    halved: usize,
    both: usize,
    unchanged: usize,
    unchanged_near: usize,
    /// Figures contradicted by their source, which are listed but not scored.
    contradicted: usize,
    /// Scored predictions that are independent: two measures of the same run count once.
    independent: usize,
    /// Scored predictions whose change has the wrong sign in the model.
    wrong_way: usize,
    /// By the strict rule, which also counts figures declared not derivable and figures
    /// contradicted by their source.
    strict: usize,
    strict_near: usize,
    strict_both: usize,
}

fn is_near(one: &Compared) -> bool {
    let within = if one.figure.is_count() { NEAR_COUNT } else { NEAR };
    one.error().is_some_and(|error| error.abs() <= within)
}

impl Score {
    fn of<'a>(compared: impl Iterator<Item = &'a Compared>) -> Self {
        let mut score = Self::default();
        let mut counted: Vec<&Compared> = Vec::new();
        for one in compared {
            let halves = one
                .null
                .zip(one.error())
                .is_some_and(|(null, error)| error.abs() <= (null / one.published - 1.0).abs() / 2.0);
            let after = [Part::Prediction, Part::NotDerivable, Part::Contradicted].contains(&one.part);
            if after && one.has_changed() {
                score.strict += 1;
                score.strict_near += usize::from(is_near(one));
                score.strict_both += usize::from(is_near(one) && halves);
            }
            score.contradicted += usize::from(one.part == Part::Contradicted);
            if one.null.is_none() || one.part != Part::Prediction {
                continue;
            }
            let near = is_near(one);
            if one.is_control() {
                score.unchanged += 1;
                score.unchanged_near += usize::from(near);
                continue;
            }
            score.predictions += 1;
            score.near += usize::from(near);
            score.wrong_way += usize::from(one.goes_its_way() == Some(false));
            score.independent += usize::from(!counted.iter().any(|other| one.is_twin_of(other)));
            counted.push(one);
            score.halved += usize::from(halves);
            score.both += usize::from(near && halves);
        }
        score
    }

    fn sentence(self) -> String {
        let Self { predictions, near, halved, both, unchanged, unchanged_near, contradicted, .. } = self;
        let Self { independent, wrong_way, strict, strict_near, strict_both, .. } = self;
        let mut sentence = format!(
            "{predictions} figures changed by more than their error: {near} predicted within {:.0} % (counts {:.0} %), \
             {halved} with half the error of \"nothing changes\" or less, {both} both; {unchanged} did not: \
             {unchanged_near} so near",
            NEAR * 100.0,
            NEAR_COUNT * 100.0
        );
        if contradicted > 0 {
            let _ = write!(sentence, "; {contradicted} are contradicted by their source, and not scored");
        }
        if predictions > 0 {
            let _ = write!(
                sentence,
                ". Of the {predictions}, {independent} are independent of each other, and {wrong_way} change the wrong way"
            );
        }
        if strict > 0 {
            let _ = write!(
                sentence,
                ". By the strict rule, with what was declared not derivable and what is contradicted: {strict_near} of {strict} near, \
                 {strict_both} both"
            );
        }
        sentence
    }

    fn json(self) -> Value {
        let Self { predictions, near, halved, both, unchanged, unchanged_near, contradicted, .. } = self;
        let Self { independent, wrong_way, strict, strict_near, strict_both, .. } = self;
        json!({"changed": predictions, "near": near, "halve_the_null_error": halved, "both": both,
            "unchanged": unchanged, "unchanged_near": unchanged_near, "contradicted": contradicted,
            "independent": independent, "wrong_way": wrong_way,
            "strict": {"changed": strict, "near": strict_near, "both": strict_both}})
    }
}

/// Rates of disks that were not used for fitting: how many, how many within 20 %, and how many
/// within 10 %.
fn rates<'a>(compared: impl Iterator<Item = &'a Compared>) -> Option<[usize; 3]> {
    let is_one = |one: &&Compared| {
        one.figure == Figure::WrittenMibS && matches!(one.part, Part::Before | Part::Prediction)
    };
    let errors: Vec<f64> = compared.filter(is_one).filter_map(Compared::error).map(f64::abs).collect();
    let within = |most: f64| errors.iter().filter(|error| **error <= most).count();
    (!errors.is_empty()).then(|| [errors.len(), within(NEAR), within(0.10)])
}

pub(crate) type Line = Vec<String>;

const COLUMNS: [&str; 11] = [
    "workload",
    "row",
    "figure",
    "",
    "published",
    "reproduced",
    "error",
    "unchanged",
    "error",
    "extant",
    "change",
];

/// Columns of the summary table.
const SUMMARY: [&str; 10] = [
    "experiment",
    "workload",
    "figure",
    "",
    "before",
    "reproduced",
    "after",
    "reproduced",
    "today's Linux",
    "extant",
];

fn summary_line(folder: &str, one: &Headline) -> Line {
    let shown = |value: Option<f64>| {
        value.map(|value| format!("{value:.*}", one.figure.digits())).unwrap_or_default()
    };
    let [before, after] = one.published.map(shown);
    let [before_got, after_got] = one.reproduced.map(shown);
    vec![
        folder.to_owned(),
        one.workload.clone(),
        one.figure.title().to_owned(),
        String::new(),
        before,
        before_got,
        after,
        after_got,
        shown(one.today),
        shown(one.ours),
    ]
}

fn cells(one: &Compared) -> Line {
    let shown = |figure: Figure, value: f64| format!("{value:.*}", figure.digits());
    let maybe = |value: Option<f64>| value.map(|value| shown(one.figure, value)).unwrap_or_default();
    let percent =
        |error: Option<f64>| error.map(|error| format!("{:+.0}%", error * 100.0)).unwrap_or_default();
    let null = one.null.filter(|_| one.part == Part::Prediction);
    let way = match one.goes_its_way().filter(|_| one.part != Part::Before && one.part != Part::Calibrated) {
        Some(true) => "its way",
        Some(false) => "wrong way",
        None => "",
    };
    vec![
        one.workload.clone(),
        one.row.clone(),
        one.figure.title().to_owned(),
        one.part.name().to_owned(),
        shown(one.figure, one.published),
        maybe(one.reproduced),
        percent(one.error()),
        maybe(null),
        percent(null.map(|null| null / one.published - 1.0)),
        maybe(one.ours),
        way.to_owned(),
    ]
}

/// Appends a table of figures for every row of an experiment.
fn every_row(out: &mut String, markdown: bool, shown: &EachRow) {
    let title = |n: usize| shown.figures.get(n).map_or("", |figure| figure.title());
    let columns: [&str; 10] = std::array::from_fn(|n| match n {
        0 => "workload",
        1 => "row",
        2 | 3 => "",
        _ => title(n - 4),
    });
    let line = |(row, values): &(String, Vec<Option<f64>>)| -> Line {
        let cell = |n: usize| match n {
            0 => shown.workload.clone(),
            1 => row.clone(),
            2 | 3 => String::new(),
            _ => values
                .get(n - 4)
                .copied()
                .flatten()
                .map_or_else(String::new, |value| format!("{value:.*}", shown.figures[n - 4].digits())),
        };
        (0..10).map(cell).collect()
    };
    table(out, markdown, &columns, &shown.rows.iter().map(line).collect::<Vec<_>>());
    if markdown {
        out.push('\n');
    }
}

fn every_row_json(shown: &EachRow) -> Value {
    let row = |(row, values): &(String, Vec<Option<f64>>)| {
        let keys = shown.figures.iter().map(|figure| figure.key());
        let figures: serde_json::Map<String, Value> =
            keys.zip(values).map(|(key, value)| (key.to_owned(), json!(value))).collect();
        json!({"row": row, "figures": figures})
    };
    json!({"workload": shown.workload, "rows": shown.rows.iter().map(row).collect::<Vec<_>>()})
}

impl Reproduction {
    /// All published figures, each counted once.
    fn all(&self) -> impl Iterator<Item = &Compared> {
        let counted = self.experiments.iter().filter(|experiment| experiment.repeats.is_none());
        counted.flat_map(|experiment| &experiment.compared)
    }

    /// Formats the report.
    pub fn report(&self, format: Format) -> String {
        match format {
            Format::Text => self.tables(false),
            Format::Markdown => self.tables(true),
            Format::Json => format!("{:#}\n", self.json()),
        }
    }

    fn tables(&self, markdown: bool) -> String {
        let mut out = String::new();
        for experiment in &self.experiments {
            let head = format!("{}: {}", experiment.folder, experiment.name);
            let _ = if markdown { writeln!(out, "## {head}\n") } else { writeln!(out, "{head}") };
            let (controls, others): (Vec<&Compared>, Vec<&Compared>) =
                experiment.compared.iter().partition(|one| one.is_control());
            table(&mut out, markdown, &COLUMNS, &others.into_iter().map(cells).collect::<Vec<_>>());
            if !controls.is_empty() {
                let title = "Negative controls: published as changed by no more than their error";
                let _ = if markdown { writeln!(out, "\n{title}:\n") } else { writeln!(out, "\n  {title}") };
                table(&mut out, markdown, &COLUMNS, &controls.into_iter().map(cells).collect::<Vec<_>>());
            }
            let item = if markdown { "- " } else { "  " };
            if markdown {
                out.push('\n');
            }
            if !experiment.each_row.is_empty() {
                let title = "Every row";
                let _ = if markdown { writeln!(out, "{title}:\n") } else { writeln!(out, "  {title}") };
                experiment.each_row.iter().for_each(|shown| every_row(&mut out, markdown, shown));
            }
            let counted = match &experiment.repeats {
                None => Score::of(experiment.compared.iter()).sentence(),
                Some(other) => format!("The figures are those of {other}, and count there"),
            };
            let _ = writeln!(out, "{item}{counted}.");
            for left_out in &experiment.leaves_out {
                let _ = writeln!(out, "{item}Left out: {left_out}");
            }
            out.push('\n');
        }
        let heading = if markdown { "## Summary\n" } else { "Summary" };
        let _ = writeln!(out, "{heading}");
        let of = |one: &Reproduced| {
            one.headlines.iter().map(|line| summary_line(&one.folder, line)).collect::<Vec<_>>()
        };
        let lines: Vec<Line> = self.experiments.iter().flat_map(of).collect();
        table(&mut out, markdown, &SUMMARY, &lines);
        out.push('\n');
        let heading = if markdown { "## All of them\n\n" } else { "All of them\n" };
        let item = if markdown { "- " } else { "  " };
        let _ = writeln!(out, "{heading}{item}{}.", Score::of(self.all()).sentence());
        if let Some([all, near, nearer]) = rates(self.all()) {
            let _ = writeln!(
                out,
                "{item}{all} rates of disks to which nothing was fitted, before the change and after it: {near} within 20 %, \
                 {nearer} within 10 %."
            );
        }
        for Missing { name, why } in &self.missing {
            let _ = writeln!(out, "{item}Missing: {name}: {why}");
        }
        out
    }

    fn json(&self) -> Value {
        let one = |one: &Compared| {
            json!({
                "workload": one.workload,
                "row": one.row,
                "figure": one.figure.key(),
                "part": one.part.name(),
                "published": one.published,
                "reproduced": one.reproduced,
                "error": one.error(),
                "unchanged": one.null,
                "goes_its_way": one.goes_its_way(),
                "margin": one.margin,
                "control": one.is_control(),
                "extant": one.ours,
            })
        };
        let headline = |one: &Headline| {
            json!({
                "workload": one.workload,
                "figure": one.figure.key(),
                "published": one.published,
                "reproduced": one.reproduced,
                "today": one.today,
                "extant": one.ours,
            })
        };
        let experiments: Vec<Value> = self
            .experiments
            .iter()
            .map(|experiment| {
                json!({
                    "folder": experiment.folder,
                    "name": experiment.name,
                    "figures": experiment.compared.iter().map(one).collect::<Vec<_>>(),
                    "score": Score::of(experiment.compared.iter()).json(),
                    "headlines": experiment.headlines.iter().map(headline).collect::<Vec<_>>(),
                    "every_row": experiment.each_row.iter().map(every_row_json).collect::<Vec<_>>(),
                    "repeats": experiment.repeats,
                    "leaves_out": experiment.leaves_out,
                })
            })
            .collect();
        let missing: Vec<Value> =
            self.missing.iter().map(|missing| json!({"name": missing.name, "why": missing.why})).collect();
        json!({"experiments": experiments, "score": Score::of(self.all()).json(), "missing": missing})
    }
}

pub(crate) fn table(out: &mut String, markdown: bool, columns: &[&str], rows: &[Line]) {
    if markdown { markdown_table(out, columns, rows) } else { text_table(out, columns, rows) }
}

fn text_table(out: &mut String, columns: &[&str], rows: &[Line]) {
    let width = |n: usize| {
        let cells = rows.iter().map(|row| row[n].chars().count());
        cells.max().unwrap_or(0).max(columns[n].chars().count())
    };
    let widths: Vec<usize> = (0..columns.len()).map(width).collect();
    let mut line = |row: &[&str]| {
        let mut text = String::from(" ");
        for (n, cell) in row.iter().enumerate() {
            let pad = widths[n];
            let _ = if n < 4 { write!(text, " {cell:<pad$}") } else { write!(text, "  {cell:>pad$}") };
        }
        out.push_str(text.trim_end());
        out.push('\n');
    };
    line(columns);
    rows.iter().for_each(|row| line(&row.iter().map(String::as_str).collect::<Vec<_>>()));
}

fn markdown_table(out: &mut String, columns: &[&str], rows: &[Line]) {
    let _ = writeln!(out, "| {} |", columns.join(" | "));
    let _ = writeln!(
        out,
        "|{}|",
        ["---"; 4].into_iter().chain(vec!["--:"; columns.len() - 4]).collect::<Vec<_>>().join("|")
    );
    for row in rows {
        let _ = writeln!(out, "| {} |", row.join(" | "));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compared(part: Part, published: f64, reproduced: f64, null: f64) -> Compared {
        Compared {
            workload: "w".into(),
            row: "r".into(),
            figure: Figure::Iops,
            part,
            published,
            margin: 0.05 * null,
            reproduced: Some(reproduced),
            null: Some(null),
            reproduced_before: Some(null),
            ours: None,
        }
    }

    #[test]
    fn only_predictions_of_what_changed_count() {
        let all = [
            compared(Part::Before, 100.0, 10.0, 100.0),
            compared(Part::Calibrated, 100.0, 100.0, 100.0),
            // From 100 to 200; halfway is 150.
            compared(Part::Prediction, 200.0, 210.0, 100.0),
            compared(Part::Prediction, 200.0, 130.0, 100.0),
            compared(Part::Prediction, 103.0, 100.0, 100.0),
            compared(Part::Contradicted, 900.0, 500.0, 500.0),
            // Within 20 %, but not within the 15 % required of a count.
            Compared { figure: Figure::IdleK, ..compared(Part::Prediction, 200.0, 236.0, 100.0) },
            // Near, but no better than predicting no change.
            compared(Part::Prediction, 110.0, 117.0, 100.0),
        ];
        let score = Score {
            predictions: 4,
            near: 2,
            halved: 2,
            both: 1,
            unchanged: 1,
            unchanged_near: 1,
            contradicted: 1,
            independent: 4,
            wrong_way: 0,
            strict: 5,
            strict_near: 2,
            strict_both: 1,
        };
        assert_eq!(Score::of(all.iter()), score);
        let sentence = score.sentence();
        assert!(
            sentence.contains("not derivable and what is contradicted: 2 of 5 near, 1 both"),
            "{sentence}"
        );
        // Two measures of one run count once, and a model that falls where the source rises goes
        // the wrong way.
        let rate = Compared { figure: Figure::WrittenMibS, ..compared(Part::Prediction, 200.0, 90.0, 100.0) };
        let pages = Compared { figure: Figure::WrittenMpages, ..rate.clone() };
        let score = Score::of([&rate, &pages].into_iter());
        assert_eq!((score.predictions, score.independent, score.wrong_way), (2, 1, 2));
    }

    #[test]
    fn the_three_shapes_tell_the_same() {
        let experiment = Reproduced {
            folder: "f".into(),
            name: "Name".into(),
            leaves_out: vec!["the file system.".into()],
            compared: vec![compared(Part::Prediction, 200.0, 210.0, 100.0)],
            headlines: vec![Headline {
                workload: "w".into(),
                figure: Figure::Iops,
                published: [Some(100.0), Some(200.0)],
                reproduced: [Some(100.0), Some(210.0)],
                today: None,
                ours: Some(300.0),
            }],
            each_row: vec![EachRow {
                workload: "w".into(),
                figures: vec![Figure::Iops, Figure::MeanMs],
                rows: vec![("other".into(), vec![Some(150.0), None])],
            }],
            repeats: None,
        };
        let again = Reproduced { folder: "g".into(), repeats: Some("f".into()), ..experiment.clone() };
        let missing = Missing { name: "tiobench".into(), why: "not built.".into() };
        let all = Reproduction { experiments: vec![experiment, again], missing: vec![missing] };
        let text = all.report(Format::Text);
        assert!(
            text.contains("  w        r   iops   prediction        200         210    +5%        100   -50%"),
            "{text}"
        );
        assert!(
            text.contains("  Left out: the file system.\n")
                && text.contains("  Missing: tiobench: not built.\n"),
            "{text}"
        );
        let summary = ["f", "w", "iops", "100", "100", "200", "210", "300"];
        assert!(text.lines().any(|line| line.split_whitespace().eq(summary)), "{text}");
        let other = ["w", "other", "150"];
        assert!(text.lines().any(|line| line.split_whitespace().eq(other)), "{text}");
        assert!(text.contains("  The figures are those of f, and count there.\n"), "{text}");
        let markdown = all.report(Format::Markdown);
        assert!(
            markdown.contains("| w | r | iops | prediction | 200 | 210 | +5% | 100 | -50% |  | its way |\n"),
            "{markdown}"
        );
        let json: Value = serde_json::from_str(&all.report(Format::Json)).unwrap();
        let error = json["experiments"][0]["figures"][0]["error"].as_f64().unwrap();
        assert!((error - 0.05).abs() < 1e-9, "{error}");
        assert_eq!((&json["score"]["near"], &json["missing"][0]["name"]), (&json!(1), &json!("tiobench")));
    }
}
