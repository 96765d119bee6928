//! Panics that ended a task or a completion, kept for the shutdown report.

use crate::Counter;
use crate::counters::Counters;
use parking_lot::Mutex;
use std::sync::Arc;

#[derive(Debug, Default)]
pub(crate) struct Panics {
    counters: Arc<Counters>,
    noted: Mutex<Vec<(String, String)>>,
}

impl Panics {
    pub(crate) fn new(counters: Arc<Counters>) -> Self {
        Self { counters, noted: Mutex::default() }
    }

    /// Counts a panic and keeps its message.
    pub(crate) fn note(&self, name: &str, message: &str) {
        self.counters.add(Counter::TasksPanicked, 1);
        self.noted.lock().push((name.to_owned(), message.to_owned()));
    }

    /// Names and messages, in the order of the panics.
    pub(crate) fn noted(&self) -> Vec<(String, String)> {
        self.noted.lock().clone()
    }
}
