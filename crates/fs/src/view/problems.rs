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
        if self.list.len() < PROBLEMS_MAX && self.seen.insert(problem.to_string()) {
            self.list.push(problem);
        }
    }

    pub(crate) fn list(&self) -> &[Error] {
        &self.list
    }
}
