//! Axes, lines and keys of all drawings.

use plotters::coord::Shift;
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use std::ops::Range;

pub(super) type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
pub(super) type DrawingError = DrawingAreaErrorKind<std::io::Error>;
pub(super) type Chart<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<RangedCoordf64, RangedCoordf64>>;

/// The text of a label on an axis.
type Text<'a> = &'a dyn Fn(&f64) -> String;

/// The axes of a panel.
pub(super) struct Axes<'a> {
    pub(super) title: &'a str,
    pub(super) x: Range<f64>,
    pub(super) y: Range<f64>,
    pub(super) x_unit: &'a str,
    /// Empty if the y axis has names.
    pub(super) y_unit: &'a str,
    /// How many labels an axis has, and their text if it is not the number.
    pub(super) x_labels: (usize, Option<Text<'a>>),
    pub(super) y_labels: (usize, Option<Text<'a>>),
    /// Room for the labels of the y axis, in pixels.
    pub(super) y_label_width: u32,
}

/// An axis of numbers.
pub(super) const NUMBERS_X: (usize, Option<Text<'static>>) = (10, None);
pub(super) const NUMBERS_Y: (usize, Option<Text<'static>>) = (6, None);
/// Room for numbers.
pub(super) const NUMBER_WIDTH: u32 = 58;

impl Axes<'_> {
    /// Draws the axes.
    pub(super) fn draw<'a, 'b>(&self, area: &'a Area<'b>) -> Result<Chart<'a, 'b>, DrawingError> {
        let mut chart: Chart<'a, 'b> = ChartBuilder::on(area)
            .caption(self.title, ("sans-serif", 14))
            .margin(8)
            .x_label_area_size(34)
            .y_label_area_size(self.y_label_width)
            .build_cartesian_2d(self.x.clone(), self.y.clone())?;
        let mut mesh = chart.configure_mesh();
        mesh.light_line_style(RGBColor(245, 245, 245))
            .bold_line_style(RGBColor(225, 225, 225))
            .x_desc(self.x_unit)
            .x_labels(self.x_labels.0)
            .y_labels(self.y_labels.0);
        if !self.y_unit.is_empty() {
            mesh.y_desc(self.y_unit);
        }
        if let Some(text) = self.x_labels.1 {
            mesh.x_label_formatter(text);
        }
        if let Some(text) = self.y_labels.1 {
            mesh.disable_y_mesh().y_label_formatter(text);
        }
        mesh.draw()?;
        Ok(chart)
    }
}

/// Draws a line.
pub(super) fn line<'a, 'b: 'a>(
    chart: &mut Chart<'a, 'b>,
    colour: RGBColor,
    points: &[(f64, f64)],
) -> Result<(), DrawingError> {
    chart.draw_series(LineSeries::new(points.iter().copied(), colour)).map(drop)
}

/// The symbol of a series in a panel's legend.
#[derive(Clone, Copy)]
pub(super) enum Mark {
    Line,
    Dot,
    Bar,
}

/// An entry of a legend: a series' name and symbol.
pub(super) struct Key<'a> {
    pub(super) name: &'a str,
    pub(super) colour: RGBColor,
    pub(super) mark: Mark,
}

/// Text size of a legend's entries, and height of a row of them, in pixels.
const KEY_TEXT: u32 = 12;
const KEY_ROW: i32 = 18;
/// Width of an entry's symbol, and space between two entries, in pixels.
const MARK_WIDTH: i32 = 22;
const KEY_GAP: i32 = 18;

/// Draws the names of series below a panel, where they hide no data. Returns the room above them.
pub(super) fn with_keys<'b>(area: &Area<'b>, keys: &[Key<'_>]) -> Result<Area<'b>, DrawingError> {
    let left = NUMBER_WIDTH.cast_signed() + 8;
    let (width, height) = area.dim_in_pixel();
    let right = width.cast_signed() - 8;
    let style = ("sans-serif", KEY_TEXT).into_text_style(area);
    let mut places = Vec::new();
    let (mut x, mut row) = (left, 0);
    for key in keys {
        let name = fitted(key.name, right - left - MARK_WIDTH, KEY_TEXT);
        let wide = MARK_WIDTH + text_width(&name, KEY_TEXT);
        if x + wide > right && x > left {
            (x, row) = (left, row + 1);
        }
        places.push((key, name, x, row));
        x += wide + KEY_GAP;
    }
    if places.is_empty() {
        return Ok(area.clone());
    }
    let strip = (row + 1) * KEY_ROW + 4;
    let (rest, strip) = area.split_vertically((height.cast_signed() - strip).max(0));
    for (key, name, x, row) in places {
        let y = row * KEY_ROW + KEY_ROW / 2;
        match key.mark {
            Mark::Line => {
                strip.draw(&PathElement::new(vec![(x, y), (x + 16, y)], key.colour.stroke_width(2)))?;
            }
            Mark::Dot => strip.draw(&Circle::new((x + 8, y), 3, key.colour.filled()))?,
            Mark::Bar => strip.draw(&Rectangle::new([(x, y - 4), (x + 12, y + 4)], key.colour.filled()))?,
        }
        strip.draw_text(&name, &style, (x + MARK_WIDTH, y - 6))?;
    }
    Ok(rest)
}

/// Estimates a text's greatest width in pixels: a letter of sans-serif takes 0.6 of the text's
/// size.
pub(super) fn text_width(text: &str, size: u32) -> i32 {
    let letters = i32::try_from(text.chars().count()).unwrap_or(i32::MAX);
    letters.saturating_mul((size * 3 / 5).max(1).cast_signed())
}

/// Shortens a text to at most `most` pixels by replacing its middle with "…".
pub(super) fn fitted(text: &str, most: i32, size: u32) -> String {
    if text_width(text, size) <= most {
        return text.to_owned();
    }
    let letters: Vec<char> = text.chars().collect();
    let letter = (size * 3 / 5).max(1).cast_signed();
    let kept = usize::try_from(most / letter - 1).unwrap_or(0);
    let front = kept.div_ceil(2);
    let back = letters.len() - (kept - front);
    letters[..front].iter().chain(['…'].iter()).chain(&letters[back..]).collect()
}

#[cfg(test)]
mod tests {
    use super::{fitted, text_width};

    #[test]
    fn texts_fit() {
        assert_eq!(fitted("short", 100, 12), "short");
        let cut = fitted("a name that is far too long for its place", 100, 12);
        assert!(text_width(&cut, 12) <= 100 && cut.starts_with("a name") && cut.ends_with("place"), "{cut}");
        assert_eq!(fitted("abc", 0, 12), "…");
    }
}
