//! Scores predictions by their distance from the published figures.

use super::compared::{Compared, FigureRole};
use crate::figure::Figure;
use serde_json::{Value, json};
use std::fmt::Write;

/// A prediction is near if its relative error is at most this.
const NEAR: f64 = 0.20;
/// A prediction of a count is near if its relative error is at most this.
const NEAR_COUNT: f64 = 0.15;

/// Counts of predictions: all; those that are near; those whose error is at most half that of
/// predicting no change; and those that are both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Score {
    predictions: usize,
    near: usize,
    halved: usize,
    both: usize,
    unchanged: usize,
    unchanged_near: usize,
    /// Figures contradicted by their source, which are listed but not scored.
    contradicted: usize,
    /// Scored predictions that are independent: two measures of the same run count once.
    independent: usize,
    /// Scored predictions whose change has the wrong sign in the model.
    wrong_way: usize,
    /// Predictions scored by the strict rule, which includes figures declared not derivable and
    /// figures that their source contradicts.
    strict: usize,
    strict_near: usize,
    strict_both: usize,
}

fn is_near(one: &Compared) -> bool {
    let within = if one.figure.is_count() { NEAR_COUNT } else { NEAR };
    one.error().is_some_and(|error| error.abs() <= within)
}

impl Score {
    pub(super) fn of<'a>(compared: impl Iterator<Item = &'a Compared>) -> Self {
        let mut score = Self::default();
        let mut counted: Vec<&Compared> = Vec::new();
        for one in compared {
            let halves = one
                .null
                .zip(one.error())
                .is_some_and(|(null, error)| error.abs() <= (null / one.published - 1.0).abs() / 2.0);
            let after = [FigureRole::Prediction, FigureRole::NotDerivable, FigureRole::Contradicted]
                .contains(&one.part);
            if after && one.has_changed() {
                score.strict += 1;
                score.strict_near += usize::from(is_near(one));
                score.strict_both += usize::from(is_near(one) && halves);
            }
            score.contradicted += usize::from(one.part == FigureRole::Contradicted);
            if one.null.is_none() || one.part != FigureRole::Prediction {
                continue;
            }
            let near = is_near(one);
            if one.is_control() {
                score.unchanged += 1;
                score.unchanged_near += usize::from(near);
                continue;
            }
            score.predictions += 1;
            score.near += usize::from(near);
            score.wrong_way += usize::from(one.goes_its_way() == Some(false));
            score.independent += usize::from(!counted.iter().any(|other| one.is_twin_of(other)));
            counted.push(one);
            score.halved += usize::from(halves);
            score.both += usize::from(near && halves);
        }
        score
    }

    pub(super) fn sentence(self) -> String {
        let Self { predictions, near, halved, both, unchanged, unchanged_near, contradicted, .. } = self;
        let Self { independent, wrong_way, strict, strict_near, strict_both, .. } = self;
        let mut sentence = format!(
            "{predictions} figures changed by more than their error: {near} predicted within {:.0} % (counts {:.0} %), \
             {halved} with half the error of \"nothing changes\" or less, {both} both; {unchanged} did not: \
             {unchanged_near} so near",
            NEAR * 100.0,
            NEAR_COUNT * 100.0
        );
        if contradicted > 0 {
            let _ = write!(sentence, "; {contradicted} are contradicted by their source, and not scored");
        }
        if predictions > 0 {
            let _ = write!(
                sentence,
                ". Of the {predictions}, {independent} are independent of each other, and {wrong_way} change the wrong way"
            );
        }
        if strict > 0 {
            let _ = write!(
                sentence,
                ". By the strict rule, with what was declared not derivable and what is contradicted: {strict_near} of {strict} near, \
                 {strict_both} both"
            );
        }
        sentence
    }

    pub(super) fn json(self) -> Value {
        let Self { predictions, near, halved, both, unchanged, unchanged_near, contradicted, .. } = self;
        let Self { independent, wrong_way, strict, strict_near, strict_both, .. } = self;
        json!({"changed": predictions, "near": near, "halve_the_null_error": halved, "both": both,
            "unchanged": unchanged, "unchanged_near": unchanged_near, "contradicted": contradicted,
            "independent": independent, "wrong_way": wrong_way,
            "strict": {"changed": strict, "near": strict_near, "both": strict_both}})
    }
}

/// Published disk rates that were not used for fitting: all, those within 20 %, and those within 10
/// %.
pub(super) fn rates<'a>(compared: impl Iterator<Item = &'a Compared>) -> Option<[usize; 3]> {
    let is_one = |one: &&Compared| {
        one.figure == Figure::WrittenMibS && matches!(one.part, FigureRole::Before | FigureRole::Prediction)
    };
    let errors: Vec<f64> = compared.filter(is_one).filter_map(Compared::error).map(f64::abs).collect();
    let within = |most: f64| errors.iter().filter(|error| **error <= most).count();
    (!errors.is_empty()).then(|| [errors.len(), within(NEAR), within(0.10)])
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::reproduce) fn compared(
        part: FigureRole,
        published: f64,
        reproduced: f64,
        null: f64,
    ) -> Compared {
        Compared {
            workload: "w".into(),
            row: "r".into(),
            figure: Figure::Iops,
            part,
            published,
            margin: 0.05 * null,
            reproduced: Some(reproduced),
            null: Some(null),
            reproduced_before: Some(null),
            ours: None,
        }
    }

    #[test]
    fn only_predictions_of_what_changed_count() {
        let all = [
            compared(FigureRole::Before, 100.0, 10.0, 100.0),
            compared(FigureRole::Calibrated, 100.0, 100.0, 100.0),
            // The published change is from 100 to 200, so an error is halved from 150 on.
            compared(FigureRole::Prediction, 200.0, 210.0, 100.0),
            compared(FigureRole::Prediction, 200.0, 130.0, 100.0),
            compared(FigureRole::Prediction, 103.0, 100.0, 100.0),
            compared(FigureRole::Contradicted, 900.0, 500.0, 500.0),
            // Within 20 %, but not within the 15 % required of a count.
            Compared { figure: Figure::IdleK, ..compared(FigureRole::Prediction, 200.0, 236.0, 100.0) },
            // Near, but no better than predicting no change.
            compared(FigureRole::Prediction, 110.0, 117.0, 100.0),
        ];
        let score = Score {
            predictions: 4,
            near: 2,
            halved: 2,
            both: 1,
            unchanged: 1,
            unchanged_near: 1,
            contradicted: 1,
            independent: 4,
            wrong_way: 0,
            strict: 5,
            strict_near: 2,
            strict_both: 1,
        };
        assert_eq!(Score::of(all.iter()), score);
        let sentence = score.sentence();
        assert!(
            sentence.contains("not derivable and what is contradicted: 2 of 5 near, 1 both"),
            "{sentence}"
        );
        // Two measures of one run count once. A model whose figure falls where the source's rises
        // has the wrong sign.
        let rate =
            Compared { figure: Figure::WrittenMibS, ..compared(FigureRole::Prediction, 200.0, 90.0, 100.0) };
        let pages = Compared { figure: Figure::WrittenMpages, ..rate.clone() };
        let score = Score::of([&rate, &pages].into_iter());
        assert_eq!((score.predictions, score.independent, score.wrong_way), (2, 1, 2));
    }
}
