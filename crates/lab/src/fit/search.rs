//! Fits one constant without derivatives: a grid in equal ratios, then golden-section search around
//! its best point.

/// Number of grid points.
const GRID: usize = 6;
/// Evaluations in the golden-section search that follows.
const SECTIONS: usize = 4;
/// A value counts as just as good if its error exceeds the smallest one by at most this.
const AS_GOOD: f64 = 0.01;
/// A range wider than this ratio is a valley.
const NARROW: f64 = 1.25;

/// A constant and its fitted value.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Fit {
    /// Its key in the machine's file; the first key if several are scaled together.
    pub(crate) key: String,
    /// The fitted value.
    pub(crate) value: f64,
    /// Root mean square of ln(reproduced / published) at the fitted value.
    pub(crate) error: f64,
    /// Least and greatest of the tried values that are just as good.
    pub(crate) range: [f64; 2],
    /// Whether a value at an end of the search range is just as good.
    pub(crate) at_end: bool,
}

impl Fit {
    /// Whether values more than 25 % apart fit just as well, or a value at an end of the search
    /// range does.
    pub(crate) fn is_valley(&self) -> bool {
        self.at_end || self.range[1] > self.range[0] * NARROW
    }
}

/// Minimizes `error` between two values above 0, or among the given values.
///
/// # Errors
/// The first error of `error`.
pub(crate) fn search<E>(
    key: &str,
    ends: [f64; 2],
    values: &[f64],
    mut error: impl FnMut(f64) -> Result<f64, E>,
) -> Result<Fit, E> {
    let mut tried: Vec<(f64, f64)> = Vec::new();
    let ratio = (ends[1] / ends[0]).powf(1.0 / (GRID - 1) as f64);
    let grid: Vec<f64> = match values {
        [] => (0..GRID).map(|n| ends[0] * ratio.powi(n as i32)).collect(),
        values => values.to_vec(),
    };
    for value in grid {
        tried.push((value, error(value)?));
    }
    if values.is_empty() {
        let best = tried.iter().min_by(|a, b| a.1.total_cmp(&b.1)).map_or(ends[0], |best| best.0);
        let (mut low, mut high) = ((best / ratio).max(ends[0]).ln(), (best * ratio).min(ends[1]).ln());
        let golden = (5_f64.sqrt() - 1.0) / 2.0;
        let mut at = [high - golden * (high - low), low + golden * (high - low)];
        let mut errors = [error(at[0].exp())?, error(at[1].exp())?];
        tried.extend([(at[0].exp(), errors[0]), (at[1].exp(), errors[1])]);
        for _ in 2..SECTIONS {
            let lower = errors[0] <= errors[1];
            let new = usize::from(!lower);
            if lower {
                high = at[1];
                (at[1], errors[1]) = (at[0], errors[0]);
                at[0] = high - golden * (high - low);
            } else {
                low = at[0];
                (at[0], errors[0]) = (at[1], errors[1]);
                at[1] = low + golden * (high - low);
            }
            errors[new] = error(at[new].exp())?;
            tried.push((at[new].exp(), errors[new]));
        }
    }
    let best = tried.iter().copied().min_by(|a, b| a.1.total_cmp(&b.1)).unwrap_or((ends[0], f64::INFINITY));
    let as_good = || tried.iter().filter(|(_, error)| *error <= best.1 + AS_GOOD).map(|(value, _)| *value);
    let range = [as_good().fold(f64::INFINITY, f64::min), as_good().fold(f64::NEG_INFINITY, f64::max)];
    let all = || tried.iter().map(|(value, _)| *value);
    let ends = [all().fold(f64::INFINITY, f64::min), all().fold(f64::NEG_INFINITY, f64::max)];
    let at_end = values.is_empty() && (range[0] <= ends[0] || range[1] >= ends[1]);
    Ok(Fit { key: key.to_owned(), value: best.0, error: best.1, range, at_end })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fit(error: impl Fn(f64) -> f64, values: &[f64]) -> Fit {
        search::<()>("k", [10.0, 1000.0], values, |value| Ok(error(value))).unwrap()
    }

    #[test]
    fn a_sharp_optimum_is_found_and_is_no_valley() {
        let sharp = fit(|value| (value / 77.0).ln().abs(), &[]);
        assert!((sharp.value / 77.0).ln().abs() < 0.1 && !sharp.is_valley(), "{sharp:?}");
    }

    #[test]
    fn a_flat_one_is_named_a_valley() {
        let flat = fit(|value| (value / 77.0).ln().abs() / 500.0, &[]);
        assert!(flat.is_valley() && flat.at_end, "{flat:?}");
        let broad = fit(|value| ((value / 77.0).ln().abs() - 0.5).max(0.0), &[]);
        assert!(broad.is_valley() && !broad.at_end, "{broad:?}");
    }

    #[test]
    fn a_choice_is_the_best_of_its_values() {
        let choice = fit(|value| (value - 16.0).abs(), &[0.0, 16.0, 64.0]);
        assert_eq!((choice.value, choice.range, choice.is_valley()), (16.0, [16.0, 16.0], false));
    }
}
