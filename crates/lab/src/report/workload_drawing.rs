//! Draws a workload, with one colour per row.

use super::axes::{
    Area, Axes, DrawingError, Key, Mark, NUMBER_WIDTH, NUMBERS_X, NUMBERS_Y, fitted, line, text_width,
    with_keys,
};
use crate::experiment::Cell;
use crate::run::{Latency, RunEvents, STEP};
use plotters::prelude::*;
use std::collections::BTreeMap;

const WIDTH: u32 = 1200;
const TITLE_HEIGHT: u32 = 34;
const PANEL_HEIGHT: u32 = 322;
/// Maximum width of the row names left of the bars, and their text size, in pixels.
const ROWS_WIDTH: i32 = 240;
const ROWS_TEXT: u32 = 12;
/// Number of time slices over which the bytes of a rate are summed.
const SPANS: u64 = 200;
/// Causes of processor time with their own colour; the rest share one.
const MOST_CAUSES: usize = 9;

const COLOURS: [RGBColor; 10] = [
    RGBColor(31, 119, 180),
    RGBColor(255, 127, 14),
    RGBColor(44, 160, 44),
    RGBColor(214, 39, 40),
    RGBColor(148, 103, 189),
    RGBColor(140, 86, 75),
    RGBColor(227, 119, 194),
    RGBColor(127, 127, 127),
    RGBColor(188, 189, 34),
    RGBColor(23, 190, 207),
];

/// A line in a panel: its row, its colour's index, and its points.
type PanelLine = (String, usize, Vec<(f64, f64)>);

struct Panel {
    title: &'static str,
    x: &'static str,
    y: &'static str,
    /// The x axis is logarithmic with this base.
    powers_of: Option<f64>,
    lines: Vec<PanelLine>,
}

/// Draws the runs of a workload; `None` if there is nothing to draw. The output is deterministic.
pub(super) fn draw_workload(workload: &str, runs: &[(&Cell, &RunEvents)]) -> Option<String> {
    // One seed is enough for a drawing.
    let seed = runs.first()?.0.seed;
    let runs: Vec<_> = runs.iter().filter(|(cell, _)| cell.seed == seed).copied().collect();
    let panels: Vec<Panel> = [completions(&runs), scheduling(&runs), dirty(&runs), rate(&runs), sizes(&runs)]
        .into_iter()
        .filter(|panel| panel.lines.iter().any(|(_, _, points)| points.len() > 1))
        .collect();
    let causes = causes(&runs);
    if panels.is_empty() && causes.is_empty() {
        return None;
    }
    let places = panels.len() + usize::from(!causes.is_empty());
    let rows = places.div_ceil(2);
    let mut svg = String::new();
    {
        let height = TITLE_HEIGHT + rows as u32 * PANEL_HEIGHT;
        let root = SVGBackend::with_string(&mut svg, (WIDTH, height)).into_drawing_area();
        let drawn = all(workload, &panels, &causes, &runs, rows, &root).and_then(|()| root.present());
        drawn.expect("drawing into a string does not fail");
    }
    Some(svg)
}

fn all(
    workload: &str,
    panels: &[Panel],
    causes: &[(String, Vec<f64>)],
    runs: &[(&Cell, &RunEvents)],
    rows: usize,
    root: &Area<'_>,
) -> Result<(), DrawingError> {
    root.fill(&WHITE)?;
    let (title, rest) = root.split_vertically(TITLE_HEIGHT);
    title.draw_text(
        &fitted(workload, WIDTH.cast_signed() - 24, 16),
        &("sans-serif", 16).into_text_style(&title),
        (12, 9),
    )?;
    let areas = rest.split_evenly((rows, 2));
    for (panel, area) in panels.iter().zip(&areas) {
        lines(panel, area)?;
    }
    match areas.get(panels.len()) {
        Some(area) if !causes.is_empty() => stacked(causes, runs, area),
        _ => Ok(()),
    }
}

fn named<'a>(
    runs: &'a [(&'a Cell, &'a RunEvents)],
) -> impl Iterator<Item = (usize, &'a Cell, &'a RunEvents)> {
    runs.iter().enumerate().map(|(number, (cell, seen))| (number % COLOURS.len(), *cell, *seen))
}

/// Cumulative distribution: percentage of samples up to each latency, given as log10 of
/// milliseconds.
fn distribution(latency: &Latency) -> Vec<(f64, f64)> {
    if latency.count == 0 {
        return Vec::new();
    }
    let shares = (0..=100).map(f64::from).chain([99.9, 99.99]);
    let point = |share: f64| ((latency.percentile_ns(share).max(1) as f64 / 1e6).log10(), share);
    let mut points: Vec<_> = shares.map(point).collect();
    points.sort_by(|a, b| a.1.total_cmp(&b.1));
    points
}

fn completions(runs: &[(&Cell, &RunEvents)]) -> Panel {
    let line = |(colour, cell, _): (usize, &Cell, &RunEvents)| {
        let mut all = Latency::default();
        for result in cell.outcome.jobs().into_iter().flat_map(|jobs| &jobs.results) {
            all.merge(&result.measured.read.completion);
            all.merge(&result.measured.write.completion);
        }
        (cell.row.clone(), colour, distribution(&all))
    };
    let lines = named(runs).map(line).collect();
    Panel { title: "latency of I/Os", x: "ms", y: "% as short", powers_of: Some(10.0), lines }
}

fn scheduling(runs: &[(&Cell, &RunEvents)]) -> Panel {
    let line = |(colour, cell, _): (usize, &Cell, &RunEvents)| {
        let latency = cell.outcome.jobs().and_then(|jobs| jobs.latency.as_ref());
        let points = latency.map(distribution).unwrap_or_default();
        (cell.row.clone(), colour, points)
    };
    let lines = named(runs).map(line).collect();
    Panel { title: "scheduling latency", x: "ms", y: "% as short", powers_of: Some(10.0), lines }
}

fn dirty(runs: &[(&Cell, &RunEvents)]) -> Panel {
    let line = |(colour, cell, seen): (usize, &Cell, &RunEvents)| {
        let step = seen.dirty_pages.len().div_ceil(1000).max(1);
        let points = seen.dirty_pages.iter().step_by(step);
        let points = points.map(|(at, pages)| (at.as_secs_f64(), *pages as f64 / 256.0)).collect();
        (cell.row.clone(), colour, points)
    };
    let lines = named(runs).map(line).collect();
    Panel { title: "dirty and under write-back", x: "time, s", y: "MiB", powers_of: None, lines }
}

fn rate(runs: &[(&Cell, &RunEvents)]) -> Panel {
    let line = |(colour, cell, seen): (usize, &Cell, &RunEvents)| {
        let last = seen.moved_bytes.last_key_value().map_or(0, |(step, _)| *step);
        let span = (last + 1).div_ceil(SPANS);
        let mut spans = vec![0_u64; (last / span + 1) as usize];
        seen.moved_bytes.iter().for_each(|(step, bytes)| spans[(step / span) as usize] += bytes);
        let seconds = span as f64 * STEP.as_secs_f64();
        let points = spans.iter().enumerate().map(|(number, bytes)| {
            ((number as f64 + 0.5) * seconds, *bytes as f64 / seconds / f64::from(1 << 20))
        });
        (cell.row.clone(), colour, points.collect())
    };
    let lines = named(runs).map(line).collect();
    Panel { title: "bandwidth of the disks", x: "time, s", y: "MiB/s", powers_of: None, lines }
}

fn sizes(runs: &[(&Cell, &RunEvents)]) -> Panel {
    let line = |(colour, cell, seen): (usize, &Cell, &RunEvents)| {
        let total: u64 = seen.commands.values().sum();
        let point = |(bytes, count): (&u64, &u64)| {
            ((*bytes as f64 / 1024.0).log2(), 100.0 * *count as f64 / total.max(1) as f64)
        };
        let mut points: Vec<_> = seen.commands.iter().map(point).collect();
        if let [(size, _)] = points[..] {
            points = vec![(size - 0.1, 0.0), points[0], (size + 0.1, 0.0)];
        }
        (cell.row.clone(), colour, points)
    };
    let lines = named(runs).map(line).collect();
    Panel { title: "sizes of commands", x: "KiB", y: "% of them", powers_of: Some(2.0), lines }
}

fn lines(panel: &Panel, area: &Area<'_>) -> Result<(), DrawingError> {
    let points = || panel.lines.iter().flat_map(|(_, _, points)| points);
    let bounds = |of: &dyn Fn(&(f64, f64)) -> f64| {
        let each = points().map(of);
        each.fold([f64::INFINITY, f64::NEG_INFINITY], |[least, most], x| [least.min(x), most.max(x)])
    };
    let [left, right] = bounds(&|point| point.0);
    let [left, right] = match panel.powers_of {
        Some(_) => [left.floor(), right.ceil().max(left.floor() + 1.0)],
        None => [0.0, right.max(1e-3)],
    };
    let [_, top] = bounds(&|point| point.1);
    let label = |x: &f64| match panel.powers_of {
        Some(base) => format!("{}", base.powf(*x)),
        None => format!("{x}"),
    };
    let whole = panel.powers_of.map_or(NUMBERS_X.0, |_| (right - left) as usize + 1);
    let axes = Axes {
        title: panel.title,
        x: left..right,
        y: 0.0..(top * 1.05).max(1e-9),
        x_unit: panel.x,
        y_unit: panel.y,
        x_labels: (whole, Some(&label)),
        y_labels: NUMBERS_Y,
        y_label_width: NUMBER_WIDTH,
    };
    let mut keys = Vec::new();
    for (name, colour, _) in &panel.lines {
        keys.push(Key { name, colour: COLOURS[*colour], mark: Mark::Line });
    }
    let area = with_keys(area, &keys)?;
    let mut chart = axes.draw(&area)?;
    panel.lines.iter().try_for_each(|(_, colour, points)| line(&mut chart, COLOURS[*colour], points))
}

/// Processor time by cause for each run, in per cent of one processor. The largest causes come
/// first; the rest are combined.
fn causes(runs: &[(&Cell, &RunEvents)]) -> Vec<(String, Vec<f64>)> {
    let mut all: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for (number, (cell, _)) in runs.iter().enumerate() {
        let Some(jobs) = cell.outcome.jobs() else { continue };
        let Some(used) = jobs.processors.filter(|used| used.over.0 > 0) else { continue };
        for spent in &jobs.spent {
            let kind = spent.key.trim_end_matches("_ns").replace('_', " ");
            let name = format!("{kind}{}", if spent.interrupt { ", interrupt" } else { "" });
            let of = all.entry(name).or_insert_with(|| vec![0.0; runs.len()]);
            of[number] += 100.0 * spent.time.as_secs_f64() / used.over.as_secs_f64();
        }
    }
    let most = |shares: &[f64]| shares.iter().copied().fold(0.0, f64::max);
    let mut all: Vec<_> = all.into_iter().filter(|(_, shares)| most(shares) > 0.0).collect();
    all.sort_by(|a, b| most(&b.1).total_cmp(&most(&a.1)).then_with(|| a.0.cmp(&b.0)));
    if all.len() > MOST_CAUSES {
        let rest = all.split_off(MOST_CAUSES);
        let sum = |run: usize| rest.iter().map(|(_, shares)| shares[run]).sum();
        all.push(("all else".to_owned(), (0..runs.len()).map(sum).collect()));
    }
    all
}

/// Draws one stacked bar per row, split by cause.
fn stacked(
    causes: &[(String, Vec<f64>)],
    runs: &[(&Cell, &RunEvents)],
    area: &Area<'_>,
) -> Result<(), DrawingError> {
    let total = |run: usize| causes.iter().map(|(_, shares)| shares[run]).sum::<f64>();
    let most = (0..runs.len()).map(total).fold(0.0, f64::max);
    let rows: Vec<String> =
        runs.iter().map(|(cell, _)| fitted(&cell.row, ROWS_WIDTH - 20, ROWS_TEXT)).collect();
    let widest = rows.iter().map(|row| text_width(row, ROWS_TEXT)).max().unwrap_or(0);
    let count = rows.len();
    let label = |y: &f64| {
        // Rows are listed from the top, each label in the middle of its row.
        let place = count as f64 - y;
        let is_middle = (place.fract() - 0.5).abs() < 1e-6 && place > 0.0;
        is_middle.then(|| rows.get(place as usize).cloned()).flatten().unwrap_or_default()
    };
    let axes = Axes {
        title: "processor time by cause",
        x: 0.0..(most * 1.05).max(1e-9),
        y: 0.0..count as f64,
        x_unit: "% of one processor",
        y_unit: "",
        x_labels: NUMBERS_X,
        y_labels: (2 * count + 1, Some(&label)),
        y_label_width: (widest + 20).clamp(60, ROWS_WIDTH).cast_unsigned(),
    };
    let mut keys = Vec::new();
    for (number, (name, _)) in causes.iter().enumerate() {
        keys.push(Key { name, colour: COLOURS[number % COLOURS.len()], mark: Mark::Bar });
    }
    let area = with_keys(area, &keys)?;
    let mut chart = axes.draw(&area)?;
    let mut from = vec![0.0; count];
    for (number, (_, shares)) in causes.iter().enumerate() {
        let colour = COLOURS[number % COLOURS.len()];
        let bars: Vec<_> = shares
            .iter()
            .enumerate()
            .map(|(run, share)| {
                let (left, bottom) = (from[run], (count - run) as f64 - 0.8);
                from[run] += share;
                Rectangle::new([(left, bottom), (from[run], bottom + 0.6)], colour.filled())
            })
            .collect();
        chart.draw_series(bars)?;
    }
    Ok(())
}
