//! Compares two or more results.
//!
//! Follows the script in the write-back thread of 2011 (`compare.rb`): one line per case; the first
//! column is the base, and every other column shows its change in per cent. In addition, each
//! change says whether it could be chance. Columns with several runs use Welch's test of the means.
//! Columns with one run use the spread of that run's latencies if the figure is their mean; other
//! figures get no mark.

use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Write;

/// A figure of a result that can be compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobFigure {
    /// I/Os per second, reads and writes together.
    Iops,
    /// Bandwidth in KiB per second.
    Bandwidth,
    /// Mean completion latency in µs.
    Mean,
    /// 99th percentile of completion latency in µs.
    P99,
    /// Longest completion latency in µs.
    Max,
    /// Mean sync latency in µs.
    Sync,
    /// 99th percentile of sync latency in µs.
    SyncP99,
}

impl JobFigure {
    /// All figures.
    pub const ALL: [Self; 7] =
        [Self::Iops, Self::Bandwidth, Self::Mean, Self::P99, Self::Max, Self::Sync, Self::SyncP99];

    /// The figure's name in the table.
    pub fn name(self) -> &'static str {
        match self {
            Self::Iops => "iops",
            Self::Bandwidth => "bw KiB/s",
            Self::Mean => "clat mean us",
            Self::P99 => "clat p99 us",
            Self::Max => "clat max us",
            Self::Sync => "fsync mean us",
            Self::SyncP99 => "fsync p99 us",
        }
    }

    /// A job's figure in one run, and its standard error if the run provides one.
    ///
    /// Without `group_reporting`, a job has one entry per process.
    fn of(self, entries: &[&Value]) -> Option<(f64, Option<f64>)> {
        let sides: Vec<&Value> = entries
            .iter()
            .flat_map(|entry| ["read", "write"].map(|side| &entry[side]))
            .filter(|side| side["total_ios"].as_u64().is_some_and(|ios| ios > 0))
            .collect();
        if sides.is_empty() {
            return None;
        }
        let number = |value: &Value| value.as_f64().unwrap_or(0.0);
        let syncs: Vec<&Value> = entries
            .iter()
            .map(|entry| &entry["sync"])
            .filter(|sync| sync["total_ios"].as_u64().is_some_and(|ios| ios > 0))
            .collect();
        let sum = |key: &str| sides.iter().map(|side| number(&side[key])).sum::<f64>();
        let longest =
            |of: &dyn Fn(&Value) -> f64| sides.iter().map(|side| of(&side["clat_ns"])).fold(0.0, f64::max);
        Some(match self {
            Self::Iops => (sum("iops"), None),
            Self::Bandwidth => (sum("bw"), None),
            Self::Mean => {
                let ios = sum("total_ios");
                let weighted = |side: &&Value| number(&side["clat_ns"]["mean"]) * number(&side["total_ios"]);
                let mean = sides.iter().map(weighted).sum::<f64>() / ios / 1e3;
                let spread = longest(&|clat| number(&clat["stddev"])) / 1e3;
                (mean, Some(spread / ios.sqrt()))
            }
            Self::P99 => (longest(&|clat| number(&clat["percentile"]["99.000000"])) / 1e3, None),
            Self::Max => (longest(&|clat| number(&clat["max"])) / 1e3, None),
            Self::Sync | Self::SyncP99 if syncs.is_empty() => return None,
            Self::Sync => {
                let weighted = |sync: &&Value| number(&sync["lat_ns"]["mean"]) * number(&sync["total_ios"]);
                let ios = syncs.iter().map(|sync| number(&sync["total_ios"])).sum::<f64>();
                let spread = syncs.iter().map(|sync| number(&sync["lat_ns"]["stddev"])).fold(0.0, f64::max);
                let mean = syncs.iter().map(weighted).sum::<f64>() / ios / 1e3;
                (mean, Some(spread / 1e3 / ios.sqrt()))
            }
            Self::SyncP99 => {
                let of = |sync: &&Value| number(&sync["lat_ns"]["percentile"]["99.000000"]) / 1e3;
                (syncs.iter().map(of).fold(0.0, f64::max), None)
            }
        })
    }
}

/// A column: one or more results of the same case under the same conditions.
#[derive(Clone, Debug)]
pub struct Column {
    /// Its title.
    pub title: String,
    /// One or more runs, each as fio's JSON.
    pub runs: Vec<Value>,
}

/// Why results cannot be compared.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CompareError {
    /// Fewer than two columns.
    #[error("a comparison takes two results or more")]
    TooFew,
    /// The result is not what `--output-format=json` prints.
    #[error("{0}: no \"jobs\" with results in it; is it fio's JSON?")]
    NoJobs(String),
    /// No job is in all columns.
    #[error("the results have no job in common")]
    NothingInCommon,
}

/// The mean of some runs and its standard error, if known.
#[derive(Clone, Copy, Debug)]
struct Estimate {
    mean: f64,
    error: Option<f64>,
}

impl Estimate {
    fn of(runs: &[(f64, Option<f64>)]) -> Self {
        let n = runs.len() as f64;
        let mean = runs.iter().map(|run| run.0).sum::<f64>() / n;
        let error = if runs.len() > 1 {
            let squares: f64 = runs.iter().map(|run| (run.0 - mean).powi(2)).sum();
            Some((squares / (n - 1.0) / n).sqrt())
        } else {
            runs[0].1
        };
        Self { mean, error }
    }

    /// Distance from another estimate in standard errors; `None` if an error is unknown.
    fn sigmas(&self, other: &Self) -> Option<f64> {
        let error = (self.error?.powi(2) + other.error?.powi(2)).sqrt();
        let difference = (self.mean - other.mean).abs();
        Some(if difference == 0.0 { 0.0 } else { difference / error.max(f64::MIN_POSITIVE) })
    }
}

/// How significant a change is: `***` beyond three standard errors (1 in 370 by chance), `**`
/// beyond two, `~` within two, and empty if single runs cannot tell.
fn confidence(sigmas: Option<f64>) -> &'static str {
    match sigmas {
        Some(s) if s > 3.0 => "***",
        Some(s) if s > 2.0 => "**",
        Some(_) => "~",
        None => "",
    }
}

/// Returns the comparison as a table.
///
/// Jobs are matched by name. A job that some column lacks is left out. Jobs that failed or did
/// nothing are listed below the table.
///
/// # Errors
/// Says what cannot be compared, and why.
pub fn compare(columns: &[Column], figures: &[JobFigure]) -> Result<String, CompareError> {
    if columns.len() < 2 {
        return Err(CompareError::TooFew);
    }
    // For each job, in the order of the first column: its entries in every run of every column.
    let mut order: Vec<&str> = Vec::new();
    let mut by_column: Vec<BTreeMap<&str, Vec<Vec<&Value>>>> = Vec::new();
    let mut notes = String::new();
    for column in columns {
        let mut jobs: BTreeMap<&str, Vec<Vec<&Value>>> = BTreeMap::new();
        for run in &column.runs {
            let list = run["jobs"].as_array().filter(|list| !list.is_empty());
            let mut of_run: BTreeMap<&str, Vec<&Value>> = BTreeMap::new();
            for entry in list.ok_or_else(|| CompareError::NoJobs(column.title.clone()))? {
                let name = entry["jobname"].as_str().unwrap_or("?");
                if by_column.is_empty() && !order.contains(&name) {
                    order.push(name);
                }
                if let Some(error) = entry["error"].as_i64().filter(|error| *error != 0) {
                    let note =
                        format!("{}: {} stopped with error {error}\n", column.title, name.escape_debug());
                    notes.extend((!notes.contains(&note)).then_some(note));
                }
                of_run.entry(name).or_default().push(entry);
            }
            for (name, entries) in of_run {
                jobs.entry(name).or_default().push(entries);
            }
        }
        by_column.push(jobs);
    }
    order.retain(|name| by_column.iter().all(|jobs| jobs.contains_key(name)));
    if order.is_empty() {
        return Err(CompareError::NothingInCommon);
    }
    let mut out = String::new();
    let width = columns.iter().map(|column| column.title.chars().count()).max().unwrap_or(0).max(14);
    for (n, column) in columns.iter().enumerate() {
        let pad = if n == 0 { width } else { width + 14 };
        let _ = write!(out, "{:>pad$}  ", column.title);
    }
    out = out.trim_end().to_owned() + "\n";
    for name in &order {
        for (column, jobs) in columns.iter().zip(&by_column) {
            if jobs[name].iter().any(|entries| JobFigure::Iops.of(entries).is_none()) {
                let _ = writeln!(notes, "{}: {} did no I/O", column.title, name.escape_debug());
            }
        }
        for figure in figures {
            let estimates: Option<Vec<Estimate>> = by_column
                .iter()
                .map(|jobs| {
                    let runs: Option<Vec<_>> = jobs[name].iter().map(|entries| figure.of(entries)).collect();
                    runs.map(|runs| Estimate::of(&runs))
                })
                .collect();
            let Some(estimates) = estimates else { continue };
            for (n, estimate) in estimates.iter().enumerate() {
                if n > 0 {
                    let base = &estimates[0];
                    let change = (estimate.mean / base.mean - 1.0) * 100.0;
                    let change = if base.mean == 0.0 { "-".into() } else { format!("{change:+.1}%") };
                    let _ = write!(out, "{change:>9} {:<3} ", confidence(estimate.sigmas(base)));
                }
                let _ = write!(out, "{:>width$.1}  ", estimate.mean);
            }
            let _ = writeln!(out, "{}: {}", name.escape_debug(), figure.name());
        }
    }
    let marks: Vec<&str> =
        MARKS.iter().filter(|(mark, _)| is_used(&out, mark)).map(|(_, means)| *means).collect();
    if !marks.is_empty() {
        let _ = writeln!(out, "{}", marks.join("; "));
    }
    Ok(out + &notes)
}

/// What the marks mean.
const MARKS: [(&str, &str); 3] = [
    ("***", "***: more than three standard errors apart, by chance once in 370 times"),
    ("**", "**: more than two, by chance once in 22 times"),
    ("~", "~: within two standard errors, so perhaps chance"),
];

/// Whether this mark follows a percentage anywhere in the table.
fn is_used(table: &str, mark: &str) -> bool {
    let cells: Vec<&str> = table.split_ascii_whitespace().collect();
    cells.windows(2).any(|pair| pair[1] == mark && (pair[0].ends_with('%') || pair[0] == "-"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn result(iops: f64, mean_ns: f64, deviation_ns: f64) -> Value {
        json!({"jobs": [{"jobname": "a", "read": {"total_ios": 10_000, "iops": iops, "bw": iops * 4.0, "clat_ns":
            {"mean": mean_ns, "stddev": deviation_ns, "max": 9e6, "percentile": {"99.000000": 5e6}}}, "write": {"total_ios": 0}}]})
    }

    #[test]
    fn changes_are_in_per_cent_of_the_first_and_say_how_sure_they_are() {
        let column = |title: &str, runs: Vec<Value>| Column { title: title.into(), runs };
        let before = column("before", vec![result(100.0, 2e6, 1e5)]);
        let after = column("after", vec![result(150.0, 1e6, 1e5)]);
        let table = compare(&[before.clone(), after], &[JobFigure::Iops, JobFigure::Mean]).unwrap();
        let lines: Vec<&str> = table.lines().collect();
        assert_eq!(lines[0].split_whitespace().collect::<Vec<_>>(), ["before", "after"]);
        let cells = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(
            cells(lines[1]),
            ["100.0", "+50.0%", "150.0", "a:", "iops"],
            "one run does not show how the rate varies"
        );
        assert_eq!(cells(lines[2])[..4], ["2000.0", "-50.0%", "***", "1000.0"]);
        assert_eq!(lines[3..], [MARKS[0].1], "only the marks in use are explained");
        // With several runs, their own spread decides.
        let runs = |rates: [f64; 3]| rates.map(|iops| result(iops, 1e6, 0.0)).to_vec();
        let [one, two, far] = [[100.0, 110.0, 90.0], [104.0, 95.0, 108.0], [200.0, 201.0, 199.0]];
        let columns = [column("x", runs(one)), column("y", runs(two)), column("z", runs(far))];
        let table = compare(&columns, &[JobFigure::Iops]).unwrap();
        assert_eq!(
            cells(table.lines().nth(1).unwrap())[..7],
            ["100.0", "+2.3%", "~", "102.3", "+100.0%", "***", "200.0"]
        );
    }

    #[test]
    fn processes_of_a_job_are_one_and_those_that_failed_are_named() {
        let one = result(100.0, 2e6, 1e5);
        let mut three = one.clone();
        three["jobs"] = json!([one["jobs"][0], one["jobs"][0], one["jobs"][0]]);
        three["jobs"][1]["error"] = json!(5);
        let column = |title: &str, run| Column { title: title.into(), runs: vec![run] };
        let table =
            compare(&[column("one", one.clone()), column("three", three)], &[JobFigure::Iops]).unwrap();
        let lines: Vec<&str> = table.lines().collect();
        let cells: Vec<&str> = lines[1].split_whitespace().collect();
        assert_eq!(
            cells,
            ["100.0", "+200.0%", "300.0", "a:", "iops"],
            "one run does not show how the rate varies"
        );
        assert_eq!(lines[2..], ["three: a stopped with error 5"]);
        let mut idle = one.clone();
        idle["jobs"][0]["read"]["total_ios"] = json!(0);
        let table = compare(&[column("one", one), column("idle", idle)], &JobFigure::ALL).unwrap();
        assert_eq!(table.lines().skip(1).collect::<Vec<_>>(), ["idle: a did no I/O"]);
    }

    #[test]
    fn a_log_has_the_time_of_its_syncs() {
        let log = |sync_ns: f64| {
            let mut run = result(100.0, 2e3, 1e3);
            let lat = json!({"mean": sync_ns, "stddev": 1e6, "percentile": {"99.000000": 2.0 * sync_ns}});
            run["jobs"][0]["sync"] = json!({"total_ios": 100, "lat_ns": lat});
            run
        };
        let column = |title: &str, run| Column { title: title.into(), runs: vec![run] };
        let columns = [column("one", log(1e7)), column("two", log(3e9))];
        let table = compare(&columns, &JobFigure::ALL).unwrap();
        let cells = |end: &str| {
            let line = table.lines().find(|line| line.ends_with(end)).expect("a row of its own");
            line.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(cells("fsync mean us")[..4], ["10000.0", "+29900.0%", "***", "3000000.0"]);
        assert_eq!(cells("fsync p99 us")[..3], ["20000.0", "+29900.0%", "6000000.0"]);
    }

    #[test]
    fn results_that_cannot_be_compared_are_refused() {
        let column = |runs: Value| Column { title: "t".into(), runs: vec![runs] };
        assert_eq!(compare(&[column(json!({}))], &JobFigure::ALL), Err(CompareError::TooFew));
        let bad = [column(json!({})), column(result(1.0, 1.0, 1.0))];
        assert_eq!(compare(&bad, &JobFigure::ALL), Err(CompareError::NoJobs("t".into())));
        let other = json!({"jobs": [{"jobname": "b"}]});
        let strangers = [column(result(1.0, 1.0, 1.0)), column(other)];
        assert_eq!(compare(&strangers, &JobFigure::ALL), Err(CompareError::NothingInCommon));
    }
}
