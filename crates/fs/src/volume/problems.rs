//! Problems that did not stop an operation.

use super::Volume;
use crate::Error;
use std::collections::BTreeSet;

/// Most problems that a volume keeps; what comes after is only counted by its absence.
const PROBLEMS_MAX: usize = 1000;

/// Problems in the order in which they were met, each once.
#[derive(Clone, Debug, Default)]
pub(crate) struct Problems {
    list: Vec<Error>,
    seen: BTreeSet<String>,
}

impl Problems {
    pub(super) fn add(&mut self, problem: Error) {
        if self.list.len() < PROBLEMS_MAX && self.seen.insert(problem.to_string()) {
            self.list.push(problem);
        }
    }
}

impl Volume {
    /// Problems met so far that did not stop an operation; each once, at most 1,000. On a volume that is open for reading,
    /// see [`Damage::Report`](super::Damage::Report). On one that is open for writing, damage that kept a deleted file's
    /// blocks in use, or that keeps blocks or inodes from being allocated; after [`Volume::close`], through a clone, also
    /// deletions that the device made fail.
    pub fn problems(&self) -> Vec<Error> {
        let mut problems = self.inner.problems.lock().clone();
        if let Some(writer) = self.writer() {
            // The allocator knows a damaged bitmap, and the operation that wanted it fails for the same reason.
            let met = writer.problems.lock().list.clone();
            writer.alloc.problems().into_iter().chain(met).for_each(|problem| problems.add(problem));
        }
        problems.list
    }
}
