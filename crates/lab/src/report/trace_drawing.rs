//! Draws dirty memory and pauses over time as SVG.

use super::axes::{
    Area, Axes, DrawingError, Key, Mark, NUMBER_WIDTH, NUMBERS_X, NUMBERS_Y, fitted, line, with_keys,
};
use crate::trace::{Levels, Trace};
use plotters::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

/// Width of the drawing in pixels; device panels are in two columns.
const WIDTH: u32 = 1200;
const OVERALL_HEIGHT: u32 = 342;
const DEVICE_HEIGHT: u32 = 220;
const PAUSES_HEIGHT: u32 = 342;
const TITLE_HEIGHT: u32 = 36;
/// Time slices of a line that a screen can show. A longer line keeps the first, least, greatest and
/// last point of each.
const SPANS: usize = 400;
/// Maximum number of pauses in the panel; if there are more, the longest are shown.
const MOST_PAUSES: usize = 2_000;

const DIRTY: RGBColor = RGBColor(31, 119, 180);
const WRITEBACK: RGBColor = RGBColor(255, 127, 14);
const TOTAL: RGBColor = RGBColor(90, 90, 90);
const LIMIT: RGBColor = RGBColor(214, 39, 40);
const BACKGROUND: RGBColor = RGBColor(44, 160, 44);
/// One colour per cause, in order of name; they repeat if there are more causes.
const CAUSES: [RGBColor; 6] =
    [DIRTY, WRITEBACK, BACKGROUND, LIMIT, RGBColor(148, 103, 189), RGBColor(140, 86, 75)];

/// A line: its name, its colour, and its points in seconds and MiB.
struct LevelLine {
    name: &'static str,
    colour: RGBColor,
    points: Vec<(f64, f64)>,
}

/// Draws dirty pages and writers' pauses over time.
///
/// Reclaimable pages and pages under write-back are shown for all devices together and for each.
/// The output is deterministic.
pub fn draw_trace(trace: &Trace) -> String {
    let mut devices: BTreeMap<u32, Vec<&Levels>> = BTreeMap::new();
    trace.levels.iter().for_each(|levels| devices.entry(levels.device).or_default().push(levels));
    let rows = devices.len().div_ceil(2) as u32;
    let height = TITLE_HEIGHT + OVERALL_HEIGHT + rows * DEVICE_HEIGHT + PAUSES_HEIGHT;
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, (WIDTH, height)).into_drawing_area();
        let drawn = panels(trace, &devices, rows, &root).and_then(|()| root.present());
        drawn.expect("drawing into a string does not fail");
    }
    svg
}

fn panels(
    trace: &Trace,
    devices: &BTreeMap<u32, Vec<&Levels>>,
    rows: u32,
    root: &Area<'_>,
) -> Result<(), DrawingError> {
    root.fill(&WHITE)?;
    let (title, rest) = root.split_vertically(TITLE_HEIGHT);
    let about = fitted(&trace.about, WIDTH.cast_signed() - 24, 15);
    title.draw_text(&about, &("sans-serif", 15).into_text_style(&title), (12, 10))?;
    let (overall, rest) = rest.split_vertically(OVERALL_HEIGHT);
    let (each, pauses) = rest.split_vertically(rows * DEVICE_HEIGHT);
    let end_s = trace.end().as_secs_f64().max(1e-3);
    let all: Vec<&Levels> = trace.levels.iter().collect();
    let of = |levels: &[&Levels], pages: &dyn Fn(&Levels) -> u64| -> Vec<(f64, f64)> {
        thinned(levels.iter().map(|l| (l.at.as_secs_f64(), pages(l) as f64 / 256.0)).collect(), end_s)
    };
    let lines = [
        LevelLine { name: "limit", colour: LIMIT, points: of(&all, &|l| l.limit) },
        LevelLine { name: "background threshold", colour: BACKGROUND, points: of(&all, &|l| l.background) },
        LevelLine { name: "dirty and write-back", colour: TOTAL, points: of(&all, &Levels::total) },
        LevelLine { name: "reclaimable", colour: DIRTY, points: of(&all, &|l| l.reclaimable) },
        LevelLine { name: "write-back", colour: WRITEBACK, points: of(&all, &|l| l.writeback) },
    ];
    amounts(&overall, "all devices", &lines, end_s, true)?;
    for ((device, levels), area) in devices.iter().zip(each.split_evenly((rows.max(1) as usize, 2))) {
        let lines = [
            LevelLine { name: "limit", colour: LIMIT, points: of(levels, &|l| l.device_limit) },
            LevelLine { name: "reclaimable", colour: DIRTY, points: of(levels, &|l| l.device_reclaimable) },
            LevelLine { name: "write-back", colour: WRITEBACK, points: of(levels, &|l| l.device_writeback) },
        ];
        amounts(&area, &trace.device(*device), &lines, end_s, false)?;
    }
    waits(&pauses, trace, end_s)
}

/// Drops points that would not be visible.
fn thinned(points: Vec<(f64, f64)>, end_s: f64) -> Vec<(f64, f64)> {
    if points.len() <= 4 * SPANS {
        return points;
    }
    let span = |at: f64| ((at / end_s * SPANS as f64) as usize).min(SPANS - 1);
    let mut kept = Vec::new();
    for bin in points.chunk_by(|a, b| span(a.0) == span(b.0)) {
        let least = (0..bin.len()).min_by(|a, b| bin[*a].1.total_cmp(&bin[*b].1));
        let most = (0..bin.len()).max_by(|a, b| bin[*a].1.total_cmp(&bin[*b].1));
        let chosen: BTreeSet<usize> =
            [Some(0), least, most, Some(bin.len() - 1)].into_iter().flatten().collect();
        kept.extend(chosen.into_iter().map(|index| bin[index]));
    }
    kept
}

fn amounts(
    area: &Area<'_>,
    title: &str,
    lines: &[LevelLine],
    end_s: f64,
    named: bool,
) -> Result<(), DrawingError> {
    let most = lines.iter().flat_map(|line| &line.points).map(|point| point.1).fold(0.0, f64::max);
    let most = if most > 0.0 { most * 1.05 } else { 1.0 };
    let mut keys = Vec::new();
    for line in lines.iter().filter(|_| named) {
        keys.push(Key { name: line.name, colour: line.colour, mark: Mark::Line });
    }
    let area = with_keys(area, &keys)?;
    let mut chart = over_time(title, end_s, most, "MiB").draw(&area)?;
    lines.iter().try_for_each(|LevelLine { colour, points, .. }| line(&mut chart, *colour, points))
}

fn over_time<'a>(title: &'a str, end_s: f64, most: f64, y_unit: &'a str) -> Axes<'a> {
    Axes {
        title,
        x: 0.0..end_s,
        y: 0.0..most,
        x_unit: "time, s",
        y_unit,
        x_labels: NUMBERS_X,
        y_labels: NUMBERS_Y,
        y_label_width: NUMBER_WIDTH,
    }
}

fn waits(area: &Area<'_>, trace: &Trace, end_s: f64) -> Result<(), DrawingError> {
    let mut by_length: Vec<_> = trace.pauses.iter().collect();
    by_length.sort_by(|a, b| b.took.cmp(&a.took).then(a.at.cmp(&b.at)));
    let title = if by_length.len() > MOST_PAUSES {
        format!("pauses: the {MOST_PAUSES} longest of {}", by_length.len())
    } else {
        format!("pauses: {}", by_length.len())
    };
    by_length.truncate(MOST_PAUSES);
    let most = by_length.first().map_or(1.0, |pause| pause.took.0 as f64 / 1e6 * 1.05).max(1e-3);
    let mut causes: BTreeMap<&str, Vec<(f64, f64)>> = BTreeMap::new();
    for pause in by_length {
        let point = (pause.at.as_secs_f64(), pause.took.0 as f64 / 1e6);
        causes.entry(&pause.rule).or_default().push(point);
    }
    let colour = |number: usize| CAUSES[number % CAUSES.len()];
    let mut keys = Vec::new();
    for (number, name) in causes.keys().enumerate() {
        keys.push(Key { name, colour: colour(number), mark: Mark::Dot });
    }
    let area = with_keys(area, &keys)?;
    let mut chart = over_time(&title, end_s, most, "length, ms").draw(&area)?;
    for (number, points) in causes.into_values().enumerate() {
        let colour = colour(number);
        chart.draw_series(points.into_iter().map(|point| Circle::new(point, 2, colour.filled())))?;
    }
    Ok(())
}
