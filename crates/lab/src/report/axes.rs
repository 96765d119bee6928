//! Axes, lines and legends of all drawings.

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
    /// Draws them.
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

/// Draws a line that the legend names.
pub(super) fn line<'a, 'b: 'a>(
    chart: &mut Chart<'a, 'b>,
    name: &str,
    colour: RGBColor,
    points: &[(f64, f64)],
) -> Result<(), DrawingError> {
    chart
        .draw_series(LineSeries::new(points.iter().copied(), colour))?
        .label(name)
        .legend(move |(x, y)| PathElement::new(vec![(x, y), (x + 16, y)], colour.stroke_width(2)));
    Ok(())
}

/// Draws the legend.
pub(super) fn legend<'a, 'b: 'a>(chart: &mut Chart<'a, 'b>) -> Result<(), DrawingError> {
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperRight)
        .background_style(WHITE.mix(0.85))
        .border_style(RGBColor(200, 200, 200))
        .draw()
}
