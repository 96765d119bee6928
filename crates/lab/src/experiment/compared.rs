//! Published figures beside the reproduced ones.

use super::{Cell, Experiment, Figure, Row};

/// How a published figure is related to the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Of the row before the change; a calibration may see it, and none did.
    Before,
    /// A constant of the machine was fitted to it.
    Calibrated,
    /// Nothing of it is in the model.
    Prediction,
}

impl Part {
    /// For a table.
    pub fn name(self) -> &'static str {
        match self {
            Self::Before => "before",
            Self::Calibrated => "calibrated",
            Self::Prediction => "prediction",
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

impl Experiment {
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
                    let fitted = row.calibrated.get(&load.name).is_some_and(|list| list.contains(&figure));
                    let is_before = before.as_ref().is_some_and(|(name, _)| *name == row.name);
                    all.push(Compared {
                        workload: load.name.clone(),
                        row: row.name.clone(),
                        figure,
                        part: match (fitted, is_before) {
                            (true, _) => Part::Calibrated,
                            (false, true) => Part::Before,
                            (false, false) => Part::Prediction,
                        },
                        published: value,
                        reproduced: mean(&row.name, figure),
                        null: before.as_ref().and_then(|(_, figures)| figures.get(&figure).copied()),
                        ours: mean("extant", figure),
                    });
                }
            }
        }
        all
    }
}
