//! Published figures next to the reproduced ones.

use crate::defaults::OUR_ROW;
use crate::experiment::{Cell, mean};
use crate::figure::Figure;
use crate::setup::{Row, Setup};
use std::collections::BTreeMap;

/// How a published figure relates to the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FigureRole {
    /// A figure from the row before the change. Calibration may use it, but did not.
    Before,
    /// A constant of the machine was fitted to it.
    Calibrated,
    /// The model contains no information from it.
    Prediction,
    /// Declared in advance as a figure that the model cannot predict.
    NotDerivable,
    /// This figure, or the one before the change, exceeds the most that the disks and their link
    /// ever carried according to the same source.
    Contradicted,
}

impl FigureRole {
    /// The name for a table.
    pub fn name(self) -> &'static str {
        match self {
            Self::Before => "before",
            Self::Calibrated => "calibrated",
            Self::Prediction => "prediction",
            Self::NotDerivable => "not derivable",
            Self::Contradicted => "contradicted by its source",
        }
    }
}

/// A published figure and the model's value for it.
#[derive(Clone, Debug, PartialEq)]
pub struct Compared {
    /// The workload.
    pub workload: String,
    /// The row.
    pub row: String,
    /// The figure.
    pub figure: Figure,
    /// See [`FigureRole`].
    pub part: FigureRole,
    /// The published value.
    pub published: f64,
    /// Error of the published change, in the figure's unit. It follows from what was published with
    /// this figure and with the one before the change.
    pub margin: f64,
    /// The model's value; `None` if the model has no such figure.
    pub reproduced: Option<f64>,
    /// The value if the change had no effect: the figure of the workload's first published row.
    pub null: Option<f64>,
    /// The model's value for the row before the change.
    pub reproduced_before: Option<f64>,
    /// The model's value for the row "extant" on the same workload.
    pub ours: Option<f64>,
}

impl Compared {
    /// Whether this is a negative control: a prediction whose published change is within its error.
    pub fn is_control(&self) -> bool {
        self.part == FigureRole::Prediction && self.null.is_some() && !self.has_changed()
    }

    /// Whether the published change exceeds its error.
    pub fn has_changed(&self) -> bool {
        self.null.is_some_and(|null| (self.published - null).abs() > self.margin)
    }

    /// Whether the model's change from the row before has the same sign as the published one;
    /// `None` if nothing changed or a figure is missing.
    pub fn goes_its_way(&self) -> Option<bool> {
        let published = self.null.filter(|_| self.has_changed()).map(|null| self.published - null)?;
        let model = self.reproduced? - self.reproduced_before?;
        Some(published * model > 0.0)
    }

    /// Whether this figure and the other measure the same thing in the same run.
    pub fn is_twin_of(&self, other: &Self) -> bool {
        (&self.workload, &self.row) == (&other.workload, &other.row)
            && self.figure.twin().is_some_and(|(twin, _)| twin == other.figure)
    }

    /// Relative error of the reproduced figure.
    pub fn error(&self) -> Option<f64> {
        self.reproduced.map(|got| got / self.published - 1.0)
    }
}

/// Relative change too small for a measurement to detect, if the source states no error.
pub(crate) const SMALL: f64 = 0.05;

/// Figures of one row on one workload, and the errors published with them.
struct PublishedRow<'a> {
    figures: &'a BTreeMap<Figure, f64>,
    margins: Option<&'a BTreeMap<Figure, f64>>,
}

impl<'a> PublishedRow<'a> {
    fn of(row: &'a Row, workload: &str) -> Self {
        Self { figures: &row.published.figures[workload], margins: row.published.margins.get(workload) }
    }

    /// The figure's error according to its source: the stated margin, or the distance from another
    /// measure of the same thing.
    fn stated(&self, figure: Figure) -> Option<f64> {
        let margin = self.margins.and_then(|margins| margins.get(&figure)).copied();
        margin.or_else(|| {
            let (twin, unit) = figure.twin()?;
            Some((self.figures.get(&figure)? - self.figures.get(&twin)? * unit).abs())
        })
    }

    /// The resolution of a printed figure: 1 if it was printed in whole units, otherwise 0.
    fn resolution(&self, figure: Figure) -> f64 {
        self.figures.get(&figure).map_or(0.0, |value| if value.fract() == 0.0 { 1.0 } else { 0.0 })
    }
}

/// Error of a change from one figure to another, in the figure's unit.
///
/// The larger of the two published errors, or 5 % of the first figure if neither has one; never
/// less than the resolution at which they were printed.
fn error_of_change(figure: Figure, before: &PublishedRow<'_>, after: &PublishedRow<'_>) -> f64 {
    let stated = [before, after].into_iter().filter_map(|one| one.stated(figure)).reduce(f64::max);
    let error = stated.unwrap_or_else(|| SMALL * before.figures.get(&figure).copied().unwrap_or(0.0));
    error.max(before.resolution(figure)).max(after.resolution(figure))
}

/// Whether a figure exceeds by over 5 % the most that the source ever measured for the disks and
/// their link, in this figure or in another that measures the same thing.
fn is_contradicted(figure: Figure, value: f64, carried: &BTreeMap<Figure, f64>) -> bool {
    let of_twin = || figure.twin().and_then(|(twin, unit)| Some(carried.get(&twin)? * unit));
    let most = carried.get(&figure).copied().or_else(of_twin);
    most.is_some_and(|most| value > most * (1.0 + SMALL))
}

/// A headline figure of a workload: measured and modelled, before and after the change.
#[derive(Clone, Debug, PartialEq)]
pub struct Headline {
    /// The workload.
    pub workload: String,
    /// The figure.
    pub figure: Figure,
    /// The published values before and after the change.
    pub published: [Option<f64>; 2],
    /// The model's values for the same rows.
    pub reproduced: [Option<f64>; 2],
    /// The model's value under the rule that Linux uses today.
    pub today: Option<f64>,
    /// The model's value under our policy.
    pub ours: Option<f64>,
}

/// Figures of every row on a workload, published or not.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct EachRow {
    pub(crate) workload: String,
    pub(crate) figures: Vec<Figure>,
    /// Rows by name.
    pub(crate) rows: Vec<(String, Vec<Option<f64>>)>,
}

/// The runs of a row on a workload.
fn of_row<'a>(cells: &'a [Cell], row: &str, workload: &str) -> Vec<&'a Cell> {
    cells.iter().filter(|cell| cell.row == row && cell.workload == workload).collect()
}

/// The figures that the experiment file asks to show for every row.
pub(crate) fn each_row(setup: &Setup, cells: &[Cell]) -> Vec<EachRow> {
    let of = |(workload, figures): (&String, &Vec<Figure>)| {
        let values = |row: &Row| {
            let of = of_row(cells, &row.name, workload);
            (row.name.clone(), figures.iter().map(|figure| mean(*figure, &of, 0)).collect())
        };
        let (workload, rows) = (workload.clone(), setup.rows.iter().map(values).collect());
        EachRow { workload, figures: figures.clone(), rows }
    };
    setup.all_rows.iter().map(of).collect()
}

/// The published headline figures next to these results.
pub fn headlines(setup: &Setup, cells: &[Cell]) -> Vec<Headline> {
    let mut all = Vec::new();
    for workload in &setup.workloads {
        for &figure in &setup.headline {
            let of = |row: &Row| {
                row.published.figures.get(&workload.name).and_then(|all| all.get(&figure)).copied()
            };
            let mut rows = setup.rows.iter().filter(|row| of(row).is_some());
            let pair = [rows.next(), rows.next()];
            if pair[0].is_none() {
                continue;
            }
            let mean = |row: &Row| mean(figure, &of_row(cells, &row.name, &workload.name), 0);
            let named =
                |is_it: &dyn Fn(&Row) -> bool| setup.rows.iter().find(|row| is_it(row)).and_then(mean);
            all.push(Headline {
                workload: workload.name.clone(),
                figure,
                published: pair.map(|row| row.and_then(of)),
                reproduced: pair.map(|row| row.and_then(mean)),
                today: named(&|row| row.today),
                ours: named(&|row| row.name == OUR_ROW),
            });
        }
    }
    all
}

/// Every published figure next to these results.
pub fn compare(setup: &Setup, cells: &[Cell]) -> Vec<Compared> {
    let mut all = Vec::new();
    for workload in &setup.workloads {
        let mean = |row: &str, figure: Figure| mean(figure, &of_row(cells, row, &workload.name), 0);
        let published =
            |row: &Row| row.published.figures.get(&workload.name).is_some_and(|all| !all.is_empty());
        let mut rows = setup.rows.iter().filter(|row| published(row)).peekable();
        let Some(first) = rows.peek().copied() else { continue };
        let before = PublishedRow::of(first, &workload.name);
        for row in rows {
            let after = PublishedRow::of(row, &workload.name);
            for (&figure, &value) in after.figures {
                let lists = |of: &BTreeMap<String, Vec<Figure>>| {
                    of.get(&workload.name).is_some_and(|list| list.contains(&figure))
                };
                let null = before.figures.get(&figure).copied();
                let is_wrong = |value: f64| is_contradicted(figure, value, &setup.carried);
                let part = if lists(&row.published.not_derivable) {
                    FigureRole::NotDerivable
                } else if lists(&row.published.calibrated) {
                    FigureRole::Calibrated
                } else if is_wrong(value) || null.is_some_and(is_wrong) && row.name != first.name {
                    FigureRole::Contradicted
                } else if row.name == first.name || row.published.visible {
                    FigureRole::Before
                } else {
                    FigureRole::Prediction
                };
                all.push(Compared {
                    workload: workload.name.clone(),
                    row: row.name.clone(),
                    figure,
                    part,
                    published: value,
                    margin: error_of_change(figure, &before, &after),
                    reproduced: mean(&row.name, figure),
                    null,
                    reproduced_before: mean(&first.name, figure),
                    ours: mean(OUR_ROW, figure),
                });
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures<const N: usize>(all: [(Figure, f64); N]) -> BTreeMap<Figure, f64> {
        BTreeMap::from(all)
    }

    /// A row's published figures without margins.
    fn bare(figures: &BTreeMap<Figure, f64>) -> PublishedRow<'_> {
        PublishedRow { figures, margins: None }
    }

    fn is_control(figure: Figure, before: &PublishedRow<'_>, after: &PublishedRow<'_>) -> bool {
        let (from, to) = (before.figures[&figure], after.figures[&figure]);
        (to - from).abs() <= error_of_change(figure, before, after)
    }

    #[test]
    fn a_step_of_one_printed_unit_is_no_change() {
        let row = |value| figures([(Figure::LatencyMinUs, value)]);
        // 8 % more, but within the resolution.
        assert!(is_control(Figure::LatencyMinUs, &bare(&row(12.0)), &bare(&row(13.0))));
        assert!(!is_control(Figure::LatencyMinUs, &bare(&row(12.0)), &bare(&row(14.0))));
        // Printed with one decimal, the same step is a change.
        assert!(!is_control(Figure::LatencyMinUs, &bare(&row(12.1)), &bare(&row(13.2))));
        // Printing large numbers to the unit does not make them more precise: 5 % still applies.
        assert!(is_control(Figure::LatencyMinUs, &bare(&row(1200.0)), &bare(&row(1203.0))));
    }

    #[test]
    fn the_margins_that_a_source_states_are_its_error() {
        let values = [152.3, 144.2, 130.0].map(|value| figures([(Figure::MibS, value)]));
        let margins = [10.9, 15.2, 2.0].map(|value| figures([(Figure::MibS, value)]));
        let [before, within, beyond] =
            [0, 1, 2].map(|n| PublishedRow { figures: &values[n], margins: Some(&margins[n]) });
        assert!(is_control(Figure::MibS, &before, &within), "5 % less, of 10 % that it may be off");
        assert!(!is_control(Figure::MibS, &before, &beyond), "22 less, of 11 that the row before may be off");
        // A margin below 5 % turns a small change into a real one, in either direction.
        let sharp = figures([(Figure::MibS, 0.5)]);
        let other = figures([(Figure::MibS, 150.3)]);
        let [first, second] =
            [&values[0], &other].map(|figures| PublishedRow { figures, margins: Some(&sharp) });
        assert!(!is_control(Figure::MibS, &first, &second));
        assert!(is_control(Figure::MibS, &bare(&values[0]), &bare(&other)));
    }

    #[test]
    fn two_measures_of_one_run_have_the_error_of_their_distance() {
        let (rate, pages) = (Figure::WrittenMibS, Figure::WrittenMpages);
        let row = |mib_s, mpages| figures([(rate, mib_s), (pages, mpages)]);
        // In the second row the pages amount to 785 MiB/s, while the rate is 665: the two measures
        // are 120 MiB/s apart. So a change of 18 MiB/s (in the rate) or of 108 (in the pages) says
        // nothing.
        let (before, after) = (row(646.96, 51.979), row(664.74, 60.298));
        assert!(is_control(rate, &bare(&before), &bare(&after)));
        assert!(is_control(pages, &bare(&before), &bare(&after)));
        // Here the two measures agree within 8 MiB/s, so a change of 3 % counts.
        let (before, after) = (row(502.51, 38.677), row(517.6, 39.84));
        assert!(!is_control(rate, &bare(&before), &bare(&after)));
        assert!(!is_control(pages, &bare(&before), &bare(&after)));
        // With one measure alone, 5 % applies.
        let [before, after] = [502.51, 517.6].map(|mib_s| figures([(rate, mib_s)]));
        assert!(is_control(rate, &bare(&before), &bare(&after)));
    }

    #[test]
    fn more_than_was_ever_carried_contradicts_its_source() {
        let carried = figures([(Figure::WrittenMibS, 701.36)]);
        // These numbers of pages in 300 s are 1,360, 785, 711 and 690 MiB/s. The first two exceed
        // 701.36 by more than 5 %.
        for (mpages, wrong) in [(104.46, true), (60.298, true), (54.644, false), (53.0, false)] {
            assert_eq!(is_contradicted(Figure::WrittenMpages, mpages, &carried), wrong, "{mpages}");
        }
        assert!(!is_contradicted(Figure::WrittenMibS, 701.36, &carried));
        assert!(is_contradicted(Figure::WrittenMibS, 829.0, &carried));
        assert!(!is_contradicted(Figure::MibS, 5000.0, &carried), "another thing");
        assert!(!is_contradicted(Figure::WrittenMibS, 829.0, &BTreeMap::new()), "nothing is known");
    }
}
