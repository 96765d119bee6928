//! Constants of the machine that an experiment fits.

use super::input_file::{self, InputKind};
use super::{Constant, ExperimentError, Setup};
use crate::figure::Figure;
use extant_sim::{Machine, Setting};

impl Constant {
    /// The constant's keys in the machine's file.
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

    /// The row, figures and seeds that it is fitted to, as part of a sentence.
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
}

impl Setup {
    /// Checks that each constant's machine is valid at both ends of its range, or for each of its
    /// values, so that a search does not fail halfway.
    pub(super) fn check_constants(&self) -> Result<(), String> {
        for constant in &self.constants {
            let ends = [constant.least, constant.most];
            for value in if constant.values.is_empty() { &ends[..] } else { &constant.values[..] } {
                let refused = |error| format!("constant {}: {value}: {error}", constant.keys[0]);
                self.machine_at(constant, *value).map_err(refused)?;
            }
        }
        Ok(())
    }

    /// The machine with a constant set to a value.
    pub(crate) fn machine_at(&self, constant: &Constant, value: f64) -> Result<Machine, ExperimentError> {
        Ok(self.machine_with(&self.constant_settings(constant, value)?)?)
    }

    /// Returns the settings that give a constant a value.
    pub(crate) fn constant_settings(
        &self,
        constant: &Constant,
        value: f64,
    ) -> Result<Vec<Setting>, ExperimentError> {
        let refused =
            |problem: String| ExperimentError::File(self.machine_file.display().to_string(), problem);
        let text = input_file::read(&self.machine_file, InputKind::Experiment).map_err(refused)?;
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
        self.machine = self.machine_at(constant, value)?;
        self.settings.extend(self.constant_settings(constant, value)?);
        Ok(self)
    }
}

/// The first line that assigns a key, and the value it assigns.
pub(crate) fn line_of<'a>(text: &'a str, key: &str) -> Option<(usize, &'a str)> {
    text.lines().enumerate().find_map(|(n, line)| {
        let (name, rest) = line.split_once('=')?;
        let value = rest.split('#').next().unwrap_or(rest).trim();
        (name.trim() == key).then_some((n, value))
    })
}
