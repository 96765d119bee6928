//! The figures of all rounds, and their tables.

use crate::judge::VALID;
use crate::peer::{Kind, OURS};
use crate::steps::{self, Figure, Measured};
use std::collections::BTreeMap;

/// Figures by peer and row; verdicts by peer and step.
#[derive(Default)]
pub(crate) struct Results {
    figures: BTreeMap<(&'static str, String), Vec<Figure>>,
    peaks: BTreeMap<&'static str, u64>,
    verdicts: BTreeMap<&'static str, Vec<(&'static str, String)>>,
}

/// Which of a figure's two times.
type Time = fn(&Figure) -> u64;

impl Results {
    pub(crate) fn add(&mut self, kind: &'static Kind, measured: Measured) {
        for (row, figure) in measured.figures {
            self.figures.entry((kind.name, row)).or_default().push(figure);
        }
        let peak = self.peaks.entry(kind.name).or_default();
        *peak = (*peak).max(measured.peak_kib);
    }

    /// Notes what became of a step; each answer once.
    pub(crate) fn verdict(&mut self, kind: &'static Kind, step: &'static str, verdict: String) {
        let all = self.verdicts.entry(kind.name).or_default();
        if !all.iter().any(|(other, same)| *other == step && *same == verdict) {
            all.push((step, verdict));
        }
    }

    fn median(&self, peer: &'static str, row: &str, time: Time) -> Option<f64> {
        let figures = self.figures.get(&(peer, row.to_owned()))?;
        let mut times: Vec<u64> = figures.iter().map(time).collect();
        times.sort_unstable();
        // Times are far below 2^53 ns.
        Some(times[times.len() / 2] as f64)
    }

    /// A table with a row for each measured part; cells are scaled times, and in brackets how many
    /// times ours that is.
    fn times(&self, peers: &[&'static Kind], what: &str, time: Time, scale: impl Fn(&steps::Row) -> f64) {
        println!("| {what} | {} |", names(peers));
        println!("|---|{}", "--:|".repeat(peers.len()));
        for row in steps::ROWS {
            let ours = self.median(OURS, row.name, time);
            let cells = peers.iter().map(|kind| {
                let Some(theirs) = self.median(kind.name, row.name, time) else { return "".to_owned() };
                let shown = figure(theirs / scale(row));
                match ours {
                    Some(ours) if kind.name != OURS => format!("{shown} ({}x)", figure(theirs / ours)),
                    _ => shown,
                }
            });
            println!("| {} | {} |", row.label, cells.collect::<Vec<_>>().join(" | "));
        }
    }

    pub(crate) fn print(&self, peers: &[&'static Kind]) {
        self.times(peers, "ms; in brackets: theirs / Extant's", |figure| figure.wall_ns, |_| 1e6);
        let cells = peers.iter().map(|kind| match self.peaks.get(kind.name) {
            Some(&kib) => format!("{}", kib.div_ceil(1024)),
            None => "".to_owned(),
        });
        println!("| peak memory, MiB | {} |", cells.collect::<Vec<_>>().join(" | "));
        println!();
        self.times(
            peers,
            "processor time of an operation, us",
            |figure| figure.processor_ns,
            |row| row.operations * 1e3,
        );
        println!();
        for kind in peers {
            let Some(verdicts) = self.verdicts.get(kind.name) else { continue };
            let bad: Vec<_> = verdicts.iter().filter(|(_, verdict)| verdict != VALID).collect();
            let rounds = self.figures.iter().filter(|((peer, _), _)| *peer == kind.name);
            let rounds = rounds.map(|(_, figures)| figures.len()).max().unwrap_or(0);
            let rounds = if rounds == 1 { "1 round".to_owned() } else { format!("{rounds} rounds") };
            match bad.is_empty() {
                true => println!("- {} ({rounds}): valid after each step", kind.name),
                false => {
                    let said = bad.iter().map(|(step, verdict)| format!("{step}: {verdict}"));
                    println!("- {} ({rounds}): {}", kind.name, said.collect::<Vec<_>>().join("; "));
                }
            }
        }
    }
}

fn names(peers: &[&'static Kind]) -> String {
    peers.iter().map(|kind| kind.title).collect::<Vec<_>>().join(" | ")
}

/// Formats with about three significant digits.
fn figure(value: f64) -> String {
    match value {
        100.0.. => format!("{value:.0}"),
        10.0.. => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}
