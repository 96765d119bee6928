//! The results of all experiments as tables.

use super::compared::{Compared, EachRow, FigureRole, Headline};
use super::score::{Score, rates};
use super::{Missing, Reproduced, Reproduction};
use crate::report::{Format, TableRow, table};
use serde_json::{Value, json};
use std::fmt::Write;

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

fn summary_line(folder: &str, one: &Headline) -> TableRow {
    let shown = |value: Option<f64>| value.map(|value| one.figure.shown(value)).unwrap_or_default();
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

fn cells(one: &Compared) -> TableRow {
    let maybe = |value: Option<f64>| value.map(|value| one.figure.shown(value)).unwrap_or_default();
    let percent =
        |error: Option<f64>| error.map(|error| format!("{:+.0}%", error * 100.0)).unwrap_or_default();
    let null = one.null.filter(|_| one.part == FigureRole::Prediction);
    let way = match one
        .goes_its_way()
        .filter(|_| one.part != FigureRole::Before && one.part != FigureRole::Calibrated)
    {
        Some(true) => "its way",
        Some(false) => "wrong way",
        None => "",
    };
    vec![
        one.workload.clone(),
        one.row.clone(),
        one.figure.title().to_owned(),
        one.part.name().to_owned(),
        one.figure.shown(one.published),
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
    let line = |(row, values): &(String, Vec<Option<f64>>)| -> TableRow {
        let cell = |n: usize| match n {
            0 => shown.workload.clone(),
            1 => row.clone(),
            2 | 3 => String::new(),
            _ => values
                .get(n - 4)
                .copied()
                .flatten()
                .map_or_else(String::new, |value| shown.figures[n - 4].shown(value)),
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

    /// Formats the results.
    pub fn text(&self, format: Format) -> String {
        format.render(|markdown| self.tables(markdown), || self.json())
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
        let lines: Vec<TableRow> = self.experiments.iter().flat_map(of).collect();
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

#[cfg(test)]
mod tests {
    use super::super::score::tests::compared;
    use super::*;
    use crate::figure::Figure;

    #[test]
    fn the_three_shapes_tell_the_same() {
        let experiment = Reproduced {
            folder: "f".into(),
            name: "Name".into(),
            leaves_out: vec!["the file system.".into()],
            compared: vec![compared(FigureRole::Prediction, 200.0, 210.0, 100.0)],
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
        let text = all.text(Format::Text);
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
        let markdown = all.text(Format::Markdown);
        assert!(
            markdown.contains("| w | r | iops | prediction | 200 | 210 | +5% | 100 | -50% |  | its way |\n"),
            "{markdown}"
        );
        let json: Value = serde_json::from_str(&all.text(Format::Json)).unwrap();
        let error = json["experiments"][0]["figures"][0]["error"].as_f64().unwrap();
        assert!((error - 0.05).abs() < 1e-9, "{error}");
        assert_eq!((&json["score"]["near"], &json["missing"][0]["name"]), (&json!(1), &json!("tiobench")));
    }
}
