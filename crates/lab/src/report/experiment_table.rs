//! An experiment's results as a text table.

use crate::experiment::{Cell, mean};
use crate::figure::Figure;
use crate::setup::{Row, Setup, Workload};
use std::collections::BTreeMap;
use std::fmt::Write;

/// Default columns of a workload.
const SPEEDS: [Figure; 5] = [Figure::Iops, Figure::MeanMs, Figure::MaxMs, Figure::DeviationMs, Figure::MibS];
/// Columns of direct I/O on a volume.
const DIRECT: [Figure; 6] = [
    Figure::MibS,
    Figure::PiecesS,
    Figure::SystemPercent,
    Figure::InterruptPercent,
    Figure::CommandsS,
    Figure::FlushesGib,
];
/// Columns of a run that ends when everything is durable.
const DRAINED: [Figure; 5] = [
    Figure::Seconds,
    Figure::SystemSeconds,
    Figure::GroupsPerSearch,
    Figure::SearchUsPerGroup,
    Figure::CommandsS,
];
/// Columns of a workload whose files are reread.
const LAYOUTS: [Figure; 4] = [Figure::Seconds, Figure::ExtentsPerFile, Figure::ExtentKib, Figure::RereadMibS];
/// Columns of scheduling latency.
const LATENCIES: [Figure; 3] = [Figure::LatencyMinUs, Figure::LatencyMeanUs, Figure::LatencyMaxUs];

/// Formats the results as a table of means over the seeds.
///
/// Published figures and the model's error follow below the rows that have them.
pub fn experiment_table(setup: &Setup, cells: &[Cell]) -> String {
    let mut out = format!("{}\n{}\n", setup.name, setup.source.trim());
    if !setup.settings.is_empty() {
        let settings: Vec<String> = setup.settings.iter().map(ToString::to_string).collect();
        let _ = writeln!(out, "In the machine's file: {}", settings.join(", "));
    }
    for Workload { name: workload, cyclictest, volume, jobs, phase, drains, rereads, .. } in &setup.workloads
    {
        let of = |row: &Row| -> Vec<&Cell> {
            cells.iter().filter(|cell| (&cell.row, &cell.workload) == (&row.name, workload)).collect()
        };
        if let Some(phase) = phase {
            for columns in phase.tables {
                headline(&mut out, workload, columns);
                for row in &setup.rows {
                    lines(&mut out, row, workload, &of(row), columns);
                }
            }
            continue;
        }
        let published = |figure: Figure| publishes(setup, workload, figure);
        let is_direct = volume.is_some() && jobs.iter().all(|job| job.direct);
        let mut columns: Vec<Figure> = match (drains, is_direct) {
            (true, _) => DRAINED.to_vec(),
            (false, true) => DIRECT.to_vec(),
            (false, false) => SPEEDS.to_vec(),
        };
        if !drains && !is_direct && jobs.iter().any(|job| job.syncs()) {
            columns.splice(4..4, [Figure::SyncMeanMs, Figure::SyncMaxMs]);
        }
        if *rereads {
            columns = LAYOUTS.to_vec();
        }
        if cells
            .iter()
            .filter(|cell| &cell.workload == workload)
            .any(|cell| cell.outcome.jobs().is_some_and(|jobs| jobs.written.is_some()))
        {
            columns.push(Figure::WrittenMibS);
        }
        columns.extend(Some(Figure::WrittenMpages).filter(|figure| published(*figure)));
        if volume.is_some() && !is_direct && !drains {
            columns.extend([Figure::BiosGib, Figure::CpuGib]);
        }
        headline(&mut out, workload, &columns);
        for row in &setup.rows {
            lines(&mut out, row, workload, &of(row), &columns);
        }
        if cyclictest.is_some() {
            headline(&mut out, &format!("{workload}, latency"), &LATENCIES);
            for row in &setup.rows {
                lines(&mut out, row, workload, &of(row), &LATENCIES);
            }
        }
    }
    for row in setup.rows.iter().filter(|row| row.policies.requests_on(&setup.machine).is_none()) {
        let tags = setup.machine.disks.iter().map(|disk| disk.queue_depth()).min().unwrap_or(0);
        let _ = writeln!(
            out,
            "\n\"{}\" has one request for each of the disk's {tags} tags, not {}, as in Linux since 5.0. \"noop\" is the older way.",
            row.name, row.policies.requests
        );
    }
    out
}

fn publishes(setup: &Setup, workload: &str, figure: Figure) -> bool {
    setup
        .rows
        .iter()
        .any(|row| row.published.figures.get(workload).is_some_and(|all| all.contains_key(&figure)))
}

fn width(column: usize) -> usize {
    if column == 0 { 10 } else { 12 }
}

fn headline(out: &mut String, title: &str, columns: &[Figure]) {
    let _ = write!(out, "\n{title:<28}");
    for (n, figure) in columns.iter().enumerate() {
        let _ = write!(out, "{:>width$}", figure.title(), width = width(n));
    }
    out.push('\n');
}

fn lines(out: &mut String, row: &Row, workload: &str, cells: &[&Cell], columns: &[Figure]) {
    let Some(first) = cells.first() else { return };
    let jobs = first.outcome.jobs().map(|jobs| &jobs.results[..]).filter(|_| columns != LATENCIES);
    for number in 0..jobs.map_or(1, <[_]>::len) {
        let got: Vec<Option<f64>> = columns.iter().map(|figure| mean(*figure, cells, number)).collect();
        let name = if number == 0 { row.name.as_str() } else { "" };
        let job = jobs.filter(|jobs| jobs.len() > 1).map(|jobs| &jobs[number]);
        let job = job.map_or("", |result| result.job.name.as_str());
        let label = if job.is_empty() { format!("  {name:<26}") } else { format!("  {name:<16}{job:<10}") };
        // The disks' figures are totals over all jobs.
        let of_all = |figure: Figure| matches!(figure, Figure::WrittenMibS | Figure::WrittenMpages);
        line(out, &label, columns, &|n| {
            got[n].filter(|_| number == 0 || !of_all(columns[n])).map(|got| columns[n].shown(got))
        });
        let empty = BTreeMap::new();
        let published = row.published.figures.get(workload).filter(|_| number == 0).unwrap_or(&empty);
        if columns.iter().any(|figure| published.contains_key(figure)) {
            line(out, &format!("    {:<24}", "published"), columns, &|n| {
                published.get(&columns[n]).map(|value| columns[n].shown(*value))
            });
            line(out, &format!("    {:<24}", "error"), columns, &|n| {
                let published = published.get(&columns[n])?;
                got[n].map(|got| format!("{:+.0}%", (got / published - 1.0) * 100.0))
            });
        }
    }
}

fn line(out: &mut String, label: &str, columns: &[Figure], cell: &dyn Fn(usize) -> Option<String>) {
    let mut text = label.to_owned();
    for n in 0..columns.len() {
        let _ = write!(text, "{:>width$}", cell(n).unwrap_or_default(), width = width(n));
    }
    out.push_str(text.trim_end());
    out.push('\n');
}
