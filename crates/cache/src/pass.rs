//! How a pass of write-back goes over a file's dirty pages: the seam of the pass.
//!
//! The flusher, a sync and a writer that writes back itself all visit files and take runs of dirty pages, one step after
//! another. How long a run is, how much of it is only looked at and left dirty again, how long its bios are and where the
//! task yields is a [`WriteBackPass`]'s decision: pure, numbers in and a plan out. Ours is [`ByRuns`].

use crate::Cost;
use extant_rt::{Budget, Nanos, Rt};
use std::fmt;

/// The dirty pages ahead of a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirtyAhead {
    /// Dirty pages that follow each other from here on, as far as [`Visit::look_pages`] goes.
    pub run_pages: u64,
    /// Pages that this visit of the file may still write (kernel: `nr_to_write`).
    pub left_pages: u64,
    /// The longest run for which a backing is asked ([`crate::CacheConfig::run_bytes`]).
    pub most_pages: u64,
}

/// One step of a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// Pages that are looked at and left dirty, before any is taken: only their cost is paid.
    pub redirty_pages: u64,
    /// Pages that are taken and written, from the first on; at least one.
    pub take_pages: u64,
    /// The longest bio, in pages; [`crate::CacheConfig::bio_bytes`] if not given.
    pub bio_pages: Option<u64>,
    /// Where the task yields.
    pub yields: Yields,
}

/// Where a pass gives its processor away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Yields {
    /// When it has used [`ByRuns::STINT`] of processor time, looking at pages included.
    Budget,
    /// Where a kernel might sleep, once for each step (`might_sleep`), and never while it looks at pages.
    AtSteps,
    /// Likewise, and whenever it has looked at so many pages (`cond_resched`).
    EveryPages(u64),
}

/// Makes plans for visits of files.
pub trait WriteBackPass: Send + Sync + fmt::Debug {
    /// A visit of one file begins.
    fn visit(&self) -> Box<dyn Visit>;
}

/// Plans one visit of a file. Pure.
pub trait Visit: Send + fmt::Debug {
    /// How many dirty pages in a row it wants to know of.
    fn look_pages(&self, left_pages: u64, most_pages: u64) -> u64 {
        left_pages.min(most_pages)
    }

    /// The next step.
    fn step(&mut self, ahead: DirtyAhead) -> Step;

    /// Pages that the visit may still write after a step, of which the flusher would grant `left_pages` (kernel: a pass that
    /// raises `nr_to_write`).
    fn left_pages(&self, left_pages: u64) -> u64 {
        left_pages
    }
}

/// Our pass: whole runs, each page visited once, and no stretch of more than 100 µs between two runs without a yield.
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

/// A visit under way: its plan, and the processor time that its task has used.
pub(crate) struct Visiting<'a> {
    rt: &'a Rt,
    pub(crate) visit: Box<dyn Visit>,
    budget: Budget<'a>,
    /// The pass yields by its budget.
    by_budget: bool,
}

impl<'a> Visiting<'a> {
    pub(crate) fn new(rt: &'a Rt, pass: &dyn WriteBackPass) -> Self {
        Self { rt, visit: pass.visit(), budget: rt.budget(ByRuns::STINT), by_budget: true }
    }

    /// Another file is visited, by the same task.
    pub(crate) fn next(&mut self, pass: &dyn WriteBackPass) {
        self.visit = pass.visit();
    }

    /// Yields between two files: in the virtual world where another task should have the processor, in both once a pass that
    /// yields by its budget has used it.
    pub(crate) async fn between_files(&mut self) {
        self.rt.resched().await;
        if self.by_budget {
            self.budget.resched().await;
        }
    }

    /// Whether the next step begins with a yield: what is held back goes first.
    pub(crate) fn is_spent(&self) -> bool {
        self.by_budget && self.budget.is_spent()
    }

    /// Looks at the pages that a step leaves dirty, and yields where it says.
    pub(crate) async fn before_taking(&mut self, step: Step) {
        self.by_budget = step.yields == Yields::Budget;
        let at_a_time = match step.yields {
            Yields::Budget => 64,
            Yields::AtSteps => u64::MAX,
            Yields::EveryPages(pages) => pages.max(1),
        };
        let mut left = step.redirty_pages;
        while left > 0 {
            let pages = left.min(at_a_time);
            self.rt.charge(Cost::PageRedirty(pages));
            left -= pages;
            match step.yields {
                Yields::Budget => self.budget.resched().await,
                Yields::AtSteps => {}
                Yields::EveryPages(_) => self.rt.resched().await,
            }
        }
        match step.yields {
            Yields::Budget => self.budget.resched().await,
            Yields::AtSteps | Yields::EveryPages(_) => self.rt.might_sleep().await,
        }
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
