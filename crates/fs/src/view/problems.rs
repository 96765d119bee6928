//! Problems that did not fail an operation.

use crate::Error;
use std::collections::BTreeSet;

/// Maximum number of problems kept per volume; later ones are dropped.
const PROBLEMS_MAX: usize = 1000;

/// Problems in the order they were found, without duplicates.
#[derive(Clone, Debug, Default)]
pub(crate) struct Problems {
    list: Vec<Error>,
    seen: BTreeSet<String>,
}

impl Problems {
    pub(crate) fn add(&mut self, problem: Error) {
        if self.seen.len() < PROBLEMS_MAX && self.seen.insert(problem.to_string()) {
            self.list.push(problem);
        }
    }

    /// Takes the problems off the list. They still count, and are not added again.
    pub(crate) fn take(&mut self) -> Vec<Error> {
        std::mem::take(&mut self.list)
    }

    pub(crate) fn list(&self) -> &[Error] {
        &self.list
    }
}
