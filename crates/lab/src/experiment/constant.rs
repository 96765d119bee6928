//! Machine constants that an experiment fits, and the figures each may be fitted to.

use super::{Experiment, ExperimentError, Figure, Load, Row, Run, load_machine, side_by_side};
use crate::fit::{Fit, search};
use extant_sim::{Machine, Setting};
use serde::Deserialize;
use std::collections::BTreeMap;

/// The table `[[constant]]` of an experiment's file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Constant {
    /// Keys of the machine's file; those after the first keep their ratio to it.
    pub(super) keys: Vec<String>,
    /// The range of the first key, from what was known in advance.
    #[serde(default)]
    least: f64,
    #[serde(default)]
    most: f64,
    /// Alternatively, the values to choose from.
    #[serde(default)]
    values: Vec<f64>,
    /// Seeds over which each figure is averaged (geometric mean) before it is compared; the
    /// experiment's first seed if empty. Use several if the figures vary between seeds by more than
    /// the fit has to resolve.
    #[serde(default)]
    seeds: Vec<u64>,
    /// The row to fit to, from before the change.
    pub(super) row: String,
    /// The figures of that row that it may be fitted to, by workload.
    pub(super) sees: BTreeMap<String, Vec<Figure>>,
}

impl Constant {
    /// Its keys in the machine's file.
    pub fn keys(&self) -> &[String] {
        &self.keys
    }

    /// The row it is fitted to.
    pub fn row(&self) -> &str {
        &self.row
    }

    /// The workloads of that row that it is fitted to.
    pub fn workloads(&self) -> impl Iterator<Item = &str> {
        self.sees.keys().map(String::as_str)
    }

    /// The row, figures and seeds, formatted for a sentence.
    pub(crate) fn seen(&self) -> String {
        let of = |(workload, figures): (&String, &Vec<Figure>)| {
            format!(
                "{workload} ({})",
                figures.iter().map(|figure| figure.key()).collect::<Vec<_>>().join(", ")
            )
        };
        let seeds = self.seeds.iter().map(u64::to_string).collect::<Vec<_>>().join(", ");
        let seeds = if self.seeds.is_empty() { String::new() } else { format!(", seeds {seeds}") };
        format!("\"{}\": {}{seeds}", self.row, self.sees.iter().map(of).collect::<Vec<_>>().join(", "))
    }

    /// The keys after the first.
    pub(crate) fn others(&self) -> impl Iterator<Item = &str> {
        self.keys.iter().skip(1).map(String::as_str)
    }

    /// The first inconsistency in the definition, if any.
    pub(super) fn fault(&self, rows: &[Row]) -> Option<String> {
        let name = self.keys.first().map_or("(none)", String::as_str);
        let problem = |text: String| Some(format!("constant {name}: {text}"));
        if self.keys.is_empty() {
            return problem("keys: name a key of the machine's file".to_owned());
        }
        let is_range = self.least > 0.0 && self.most > self.least;
        if self.values.is_empty() != is_range {
            return problem("give either values, or least and most, above 0".to_owned());
        }
        if self.seeds.iter().enumerate().any(|(n, seed)| self.seeds[..n].contains(seed)) {
            return problem("seeds: each counts once".to_owned());
        }
        let Some(row) = rows.iter().find(|row| row.name == self.row) else {
            return problem(format!("row: there is no row \"{}\"", self.row));
        };
        for (workload, figures) in &self.sees {
            let calibrated = row.calibrated.get(workload);
            if let Some(figure) =
                figures.iter().find(|figure| !calibrated.is_some_and(|list| list.contains(figure)))
            {
                return problem(format!(
                    "sees {} of \"{workload}\", which the row \"{}\" does not list as calibrated",
                    figure.key(),
                    self.row
                ));
            }
        }
        None
    }
}

impl Experiment {
    /// The constants to fit, in order.
    pub fn constants(&self) -> &[Constant] {
        &self.constants
    }

    /// Checks that each constant's machine is valid at both ends of its range, or for each of its
    /// values, so that a search does not fail halfway.
    pub(super) fn check_constants(&self) -> Result<(), String> {
        for constant in &self.constants {
            let ends = [constant.least, constant.most];
            for value in if constant.values.is_empty() { &ends[..] } else { &constant.values[..] } {
                let refused = |error| format!("constant {}: {value}: {error}", constant.keys[0]);
                self.machine_with(constant, *value).map_err(refused)?;
            }
        }
        Ok(())
    }

    /// Returns the machine with a constant set to a value.
    fn machine_with(&self, constant: &Constant, value: f64) -> Result<Machine, ExperimentError> {
        let settings = [self.settings.clone(), self.settings_of(constant, value)?].concat();
        Ok(load_machine(&self.machine_file, &settings, self.program.as_deref())?)
    }

    /// Returns the settings that give a constant a value.
    fn settings_of(&self, constant: &Constant, value: f64) -> Result<Vec<Setting>, ExperimentError> {
        let refused =
            |problem: String| ExperimentError::File(self.machine_file.display().to_string(), problem);
        let text = crate::text::read(&self.machine_file, crate::text::Kind::Experiment).map_err(refused)?;
        let number = |key: &String| {
            let name = key.rsplit('.').next().unwrap_or(key);
            let given = self.settings.iter().rev().find(|setting| setting.parts().0 == name);
            let text = match given {
                Some(setting) => Some(setting.parts().1.to_owned()),
                None => line_of(&text, name).map(|(_, value)| value.to_owned()),
            };
            text.and_then(|text| text.replace('_', "").parse::<f64>().ok())
                .ok_or_else(|| refused(format!("constant {key}: the file has no number for it")))
        };
        let first = if constant.keys.len() > 1 { number(&constant.keys[0])? } else { 1.0 };
        let mut settings = Vec::new();
        for (n, key) in constant.keys.iter().enumerate() {
            let value = if n == 0 { value } else { number(key)? * value / first };
            let setting = format!("{key}={value:.0}").parse().map_err(refused)?;
            settings.push(setting);
        }
        Ok(settings)
    }

    /// Sets a constant to a value.
    ///
    /// # Errors
    /// If the machine is refused.
    pub(crate) fn with_constant(mut self, constant: &Constant, value: f64) -> Result<Self, ExperimentError> {
        self.machine = self.machine_with(constant, value)?;
        self.settings.extend(self.settings_of(constant, value)?);
        Ok(self)
    }

    /// Fits a constant to the figures it may be fitted to.
    ///
    /// # Errors
    /// The first run that fails, or a machine that is refused.
    pub(crate) fn fit(&self, constant: &Constant) -> Result<Fit, ExperimentError> {
        let row = self.rows.iter().find(|row| row.name == constant.row).expect("checked when it was loaded");
        let loads: Vec<Load> =
            self.workloads.iter().filter(|load| constant.sees.contains_key(&load.name)).cloned().collect();
        search(&constant.keys[0], [constant.least, constant.most], &constant.values, |value| {
            let machine = self.machine_with(constant, value)?;
            let seeds = if constant.seeds.is_empty() { &self.seeds[..1] } else { &constant.seeds };
            let run = |seed: &u64| Run {
                point: 0,
                machine: machine.clone(),
                loads: loads.clone(),
                row: row.clone(),
                seed: *seed,
                program: self.program.clone(),
            };
            let cells = side_by_side(seeds.iter().map(run).collect(), Run::cells)?;
            // The logarithm of reproduced / published for each figure, summed over all seeds.
            let mut logarithms = BTreeMap::<_, f64>::new();
            for cell in cells.iter().flatten() {
                for (n, figure) in constant.sees[&cell.workload].iter().enumerate() {
                    let published = row.published[&cell.workload][figure];
                    let got = figure.of(cell, 0).unwrap_or(0.0).max(published * 1e-6);
                    *logarithms.entry((&cell.workload, n)).or_default() += (got / published).ln();
                }
            }
            let squares = logarithms.values().map(|sum| (sum / seeds.len() as f64).powi(2));
            Ok((squares.sum::<f64>() / logarithms.len() as f64).sqrt())
        })
    }

    /// Writes a constant's value into the machine's file, followed by a note.
    ///
    /// # Errors
    /// If the file cannot be read or written.
    pub(crate) fn write_constant(
        &self,
        constant: &Constant,
        fit: &Fit,
        note: &str,
    ) -> Result<(), ExperimentError> {
        let file = self.machine_file.display().to_string();
        let refused = |problem: String| ExperimentError::File(file.clone(), problem);
        let mut text =
            crate::text::read(&self.machine_file, crate::text::Kind::Experiment).map_err(refused)?;
        for setting in self.settings_of(constant, fit.value)? {
            let (key, value) = setting.parts();
            let Some((line, _)) = line_of(&text, key) else {
                return Err(refused(format!("constant {key}: the file has no line for it")));
            };
            let replaced = text.lines().enumerate().map(|(n, old)| {
                if n == line { format!("{key} = {value}  # {note}\n") } else { format!("{old}\n") }
            });
            text = replaced.collect();
        }
        std::fs::write(&self.machine_file, text).map_err(|error| refused(error.to_string()))
    }
}

/// The first line that assigns a key, and the value it assigns.
fn line_of<'a>(text: &'a str, key: &str) -> Option<(usize, &'a str)> {
    text.lines().enumerate().find_map(|(n, line)| {
        let (name, rest) = line.split_once('=')?;
        let value = rest.split('#').next().unwrap_or(rest).trim();
        (name.trim() == key).then_some((n, value))
    })
}
