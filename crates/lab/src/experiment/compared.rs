//! Published figures beside the reproduced ones.

use super::{Cell, Experiment, Figure, Row};
use std::collections::BTreeMap;

/// How a published figure is related to the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Of the row before the change; a calibration may see it, and none did.
    Before,
    /// A constant of the machine was fitted to it.
    Calibrated,
    /// Nothing of it is in the model.
    Prediction,
    /// It was said beforehand that the model cannot have it.
    NotDerivable,
}

impl Part {
    /// For a table.
    pub fn name(self) -> &'static str {
        match self {
            Self::Before => "before",
            Self::Calibrated => "calibrated",
            Self::Prediction => "prediction",
            Self::NotDerivable => "not derivable",
        }
    }
}

/// A published figure, and what the model gives for it.
#[derive(Clone, Debug, PartialEq)]
pub struct Compared {
    /// The workload.
    pub workload: String,
    /// The row.
    pub row: String,
    /// Which figure.
    pub figure: Figure,
    /// See [`Part`].
    pub part: Part,
    /// As published.
    pub published: f64,
    /// As the model has it; `None` where it has no such figure.
    pub reproduced: Option<f64>,
    /// As it would be if the change changed nothing: as published for the first row of the workload.
    pub null: Option<f64>,
    /// The row "extant" of the same workload.
    pub ours: Option<f64>,
}

impl Compared {
    /// By which part the reproduced figure is off.
    pub fn error(&self) -> Option<f64> {
        self.reproduced.map(|got| got / self.published - 1.0)
    }
}

/// A headline figure of a workload: what was measured before and after, and what the model has.
#[derive(Clone, Debug, PartialEq)]
pub struct Headline {
    /// The workload.
    pub workload: String,
    /// Which figure.
    pub figure: Figure,
    /// As published before the change, and after it.
    pub published: [Option<f64>; 2],
    /// As the model has them.
    pub reproduced: [Option<f64>; 2],
    /// Under the rule that Linux has today.
    pub today: Option<f64>,
    /// Ours.
    pub ours: Option<f64>,
}

/// Figures that a table of all rows has at most.
pub(crate) const EACH_ROW: usize = 6;

/// Figures of every row on a workload, published or not.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct EachRow {
    pub(crate) workload: String,
    pub(crate) figures: Vec<Figure>,
    /// By name.
    pub(crate) rows: Vec<(String, Vec<Option<f64>>)>,
}

impl Experiment {
    /// The figures of every row that its file asks for.
    pub(crate) fn each_row(&self, cells: &[Cell]) -> Vec<EachRow> {
        let of = |(workload, figures): (&String, &Vec<Figure>)| {
            let values = |row: &Row| {
                let of: Vec<&Cell> =
                    cells.iter().filter(|cell| cell.row == row.name && cell.workload == *workload).collect();
                (row.name.clone(), figures.iter().map(|figure| figure.mean(&of, 0)).collect())
            };
            let (workload, rows) = (workload.clone(), self.rows.iter().map(values).collect());
            EachRow { workload, figures: figures.clone(), rows }
        };
        self.all_rows.iter().map(of).collect()
    }

    /// The headline figures of these results, those that were published.
    pub fn headlines(&self, cells: &[Cell]) -> Vec<Headline> {
        let mut all = Vec::new();
        for load in &self.workloads {
            for &figure in &self.headline {
                let of = |row: &Row| row.published.get(&load.name).and_then(|all| all.get(&figure)).copied();
                let mut rows = self.rows.iter().filter(|row| of(row).is_some());
                let pair = [rows.next(), rows.next()];
                if pair[0].is_none() {
                    continue;
                }
                let mean = |row: &Row| {
                    let is_it = |cell: &&Cell| cell.row == row.name && cell.workload == load.name;
                    figure.mean(&cells.iter().filter(is_it).collect::<Vec<_>>(), 0)
                };
                let named =
                    |is_it: &dyn Fn(&Row) -> bool| self.rows.iter().find(|row| is_it(row)).and_then(mean);
                all.push(Headline {
                    workload: load.name.clone(),
                    figure,
                    published: pair.map(|row| row.and_then(of)),
                    reproduced: pair.map(|row| row.and_then(mean)),
                    today: named(&|row| row.today),
                    ours: named(&|row| row.name == super::OURS),
                });
            }
        }
        all
    }

    /// Every published figure of these results.
    pub fn compare(&self, cells: &[Cell]) -> Vec<Compared> {
        let mut all = Vec::new();
        for load in &self.workloads {
            let mean = |row: &str, figure: Figure| {
                let of: Vec<&Cell> =
                    cells.iter().filter(|cell| cell.row == row && cell.workload == load.name).collect();
                figure.mean(&of, 0)
            };
            let published = |row: &Row| row.published.get(&load.name).cloned().unwrap_or_default();
            let mut rows = self.rows.iter().filter(|row| !published(row).is_empty()).peekable();
            let before = rows.peek().map(|row| (row.name.clone(), published(row)));
            for row in rows {
                for (figure, value) in published(row) {
                    let lists = |of: &BTreeMap<String, Vec<Figure>>| {
                        of.get(&load.name).is_some_and(|list| list.contains(&figure))
                    };
                    let fitted = lists(&row.calibrated);
                    let is_before = before.as_ref().is_some_and(|(name, _)| *name == row.name);
                    all.push(Compared {
                        workload: load.name.clone(),
                        row: row.name.clone(),
                        figure,
                        part: match (fitted, is_before) {
                            _ if lists(&row.not_derivable) => Part::NotDerivable,
                            (true, _) => Part::Calibrated,
                            (false, true) => Part::Before,
                            (false, false) => Part::Prediction,
                        },
                        published: value,
                        reproduced: mean(&row.name, figure),
                        null: before.as_ref().and_then(|(_, figures)| figures.get(&figure).copied()),
                        ours: mean(super::OURS, figure),
                    });
                }
            }
        }
        all
    }
}
