//! Runs the same long random sequence of operations on two subjects, which must return the same
//! results, errno by errno, and hold the same tree at the end.
//!
//! A failing sequence is shrunk to a short one.

mod generate;

pub use generate::Generator;

use crate::{Op, Outcome, Subject, Tree, apply};
use std::fmt;

/// A difference between two subjects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Difference {
    /// Results of an operation differ.
    Answer {
        /// Its index.
        index: usize,
        /// The operation.
        op: Op,
        /// Result of the first.
        left: Outcome<u64>,
        /// Result of the second.
        right: Outcome<u64>,
    },
    /// All results agree, but the trees at the end do not.
    Trees(Vec<String>),
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let show = |answer: &Outcome<u64>| match answer {
            Ok(count) => format!("ok ({count})"),
            Err(errno) => format!("{errno:?}"),
        };
        match self {
            Self::Answer { index, op, left, right } => {
                write!(f, "operation {index}, {op}: {} on the left, {} on the right", show(left), show(right))
            }
            Self::Trees(lines) => write!(f, "the trees differ:\n  {}", lines.join("\n  ")),
        }
    }
}

/// Runs the operations on both subjects; `None` if there is no difference.
pub fn compare(left: &mut dyn Subject, right: &mut dyn Subject, ops: &[Op]) -> Option<Difference> {
    for (index, op) in ops.iter().enumerate() {
        let (a, b) = (apply(left, op), apply(right, op));
        if a != b {
            return Some(Difference::Answer { index, op: op.clone(), left: a, right: b });
        }
    }
    let tree = |subject: &mut dyn Subject| Tree::of(subject).map_err(|e| e.to_string());
    match (tree(left), tree(right)) {
        (Ok(left), Ok(right)) => {
            let lines = left.differences(&right);
            (!lines.is_empty()).then_some(Difference::Trees(lines))
        }
        (left, right) => {
            let side = |name, result: Result<Tree, String>| result.err().map(|e| format!("{name}: {e}"));
            Some(Difference::Trees(side("left", left).into_iter().chain(side("right", right)).collect()))
        }
    }
}

/// Shrinks a failing sequence by leaving out ever smaller pieces while `fails` holds. Each attempt
/// starts with fresh subjects.
pub fn shrink(ops: &[Op], mut fails: impl FnMut(&[Op]) -> bool) -> Vec<Op> {
    let mut ops = ops.to_vec();
    let mut piece = ops.len() / 2;
    while piece > 0 {
        let mut at = 0;
        let mut shrunk = false;
        while at < ops.len() {
            let mut shorter = ops.clone();
            shorter.drain(at..(at + piece).min(ops.len()));
            if fails(&shorter) {
                ops = shorter;
                shrunk = true;
            } else {
                at += piece;
            }
        }
        if !shrunk || piece > 1 {
            piece /= 2;
        }
    }
    ops
}

#[cfg(test)]
mod tests;
