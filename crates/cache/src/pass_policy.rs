//! How a write-back pass walks a file's dirty pages, as a replaceable policy.
//!
//! The flusher, a sync, and a writer that writes back by itself all visit files and take runs of
//! dirty pages step by step. A [`WriteBackPass`] decides how long a run is, how many pages it only
//! looks at and leaves dirty, how long the bios are, and where the task yields. It is pure: numbers
//! in, a plan out. Ours is [`ByRuns`].

use extant_rt::Nanos;
use std::fmt;

/// The dirty pages ahead of a pass's current position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirtyAhead {
    /// Length of the dirty run that starts here, at most what [`Visit::look_pages`] asks for.
    pub run_pages: u64,
    /// Pages this visit of the file may still write (kernel: `nr_to_write`).
    pub left_pages: u64,
    /// The longest run a backing is asked to place ([`crate::CacheConfig::run_bytes`]).
    pub most_pages: u64,
}

/// One step of a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// Pages to look at and leave dirty before any is taken: only their cost is charged.
    pub redirty_pages: u64,
    /// Pages to take and write, starting with the first; at least one.
    pub take_pages: u64,
    /// The longest bio, in pages; [`crate::CacheConfig::bio_bytes`] if `None`.
    pub bio_pages: Option<u64>,
    /// Where the task yields.
    pub yields: Yields,
}

/// Where a pass yields the processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Yields {
    /// Once it has used [`ByRuns::STINT`] of processor time, including the time spent looking at
    /// pages.
    Budget,
    /// Where a kernel might sleep: once per step (`might_sleep`), and never while looking at pages.
    AtSteps,
    /// Like `AtSteps`, but also each time it has looked at this many pages (`cond_resched`).
    EveryPages(u64),
}

/// Plans visits of files.
pub trait WriteBackPass: Send + Sync + fmt::Debug {
    /// Starts a visit of one file.
    fn visit(&self) -> Box<dyn Visit>;
}

/// Plans one visit of a file. Pure.
pub trait Visit: Send + fmt::Debug {
    /// How many consecutive dirty pages the visit wants to know about.
    fn look_pages(&self, left_pages: u64, most_pages: u64) -> u64 {
        left_pages.min(most_pages)
    }

    /// The next step.
    fn step(&mut self, ahead: DirtyAhead) -> Step;

    /// Pages that the visit may still write after a step; the flusher alone would allow
    /// `left_pages` (kernel: a pass that raises `nr_to_write`).
    fn left_pages(&self, left_pages: u64) -> u64 {
        left_pages
    }
}

/// Our pass: takes whole runs, visits each page once, and never works for more than 100 µs between
/// two runs without yielding.
#[derive(Clone, Copy, Debug, Default)]
pub struct ByRuns;

impl ByRuns {
    /// Processor time between two yields.
    pub const STINT: Nanos = Nanos::from_micros(50);
}

impl WriteBackPass for ByRuns {
    fn visit(&self) -> Box<dyn Visit> {
        Box::new(*self)
    }
}

impl Visit for ByRuns {
    fn step(&mut self, ahead: DirtyAhead) -> Step {
        let take_pages = ahead.run_pages.min(ahead.left_pages).min(ahead.most_pages).max(1);
        Step { redirty_pages: 0, take_pages, bio_pages: None, yields: Yields::Budget }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_visited_once() {
        for (run_pages, left_pages, take_pages) in
            [(10, 100, 10), (1000, 100, 100), (1000, 1000, 256), (5, 0, 1)]
        {
            let step = ByRuns.visit().step(DirtyAhead { run_pages, left_pages, most_pages: 256 });
            assert_eq!((step.take_pages, step.redirty_pages), (take_pages, 0));
        }
    }
}
