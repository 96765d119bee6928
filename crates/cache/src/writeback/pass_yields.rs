//! A task's visit to files that it writes back.

use crate::Cost;
use crate::pass_policy::{ByRuns, Step, Visit, WriteBackPass, Yields};
use extant_rt::{Budget, Rt};

/// A visit in progress: its plan, and the processor time its task has used.
pub(super) struct Visiting<'a> {
    rt: &'a Rt,
    pub(super) visit: Box<dyn Visit>,
    budget: Budget<'a>,
    /// The pass yields when its budget is used up.
    by_budget: bool,
}

impl<'a> Visiting<'a> {
    pub(super) fn new(rt: &'a Rt, pass: &dyn WriteBackPass) -> Self {
        Self { rt, visit: pass.visit(), budget: rt.budget(ByRuns::STINT), by_budget: true }
    }

    /// Moves on to another file, in the same task.
    pub(super) fn next(&mut self, pass: &dyn WriteBackPass) {
        self.visit = pass.visit();
    }

    /// Yields between two files. In the virtual world it yields if another task should get the
    /// processor; in both worlds, if the pass yields by budget and has used it up.
    pub(super) async fn between_files(&mut self) {
        self.rt.resched().await;
        if self.by_budget {
            self.budget.resched().await;
        }
    }

    /// Whether the next step begins with a yield, in which case held-back bios go out first.
    pub(super) fn is_spent(&self) -> bool {
        self.by_budget && self.budget.is_spent()
    }

    /// Looks at the pages the step leaves dirty, and yields where it says.
    pub(super) async fn before_taking(&mut self, step: Step) {
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
