//! Giving memory back when the machine is short of it.

use crate::cache::PageCache;
use crate::state::Shared;
use crate::waits::Condition;
use crate::writeback::flusher::first_of;
use extant_rt::{Class, Nanos};
use std::sync::{Arc, Weak};

/// Where Linux tells how much time tasks lose to a lack of memory (Documentation/accounting/psi.rst).
const PSI: &str = "/proc/pressure/memory";
const EVERY: Nanos = Nanos::from_secs(1);

/// The share of time, in percent, in which some task waited for memory, averaged over ten seconds.
pub fn stalled_percent(psi: &str) -> Option<f64> {
    let some = psi.lines().find_map(|line| line.strip_prefix("some "))?;
    some.split(' ').find_map(|field| field.strip_prefix("avg10="))?.parse().ok()
}

/// The budget to have next, of `full` pages at most: a quarter less under pressure, down to an eighth of the full one; a
/// sixteenth of the full one more where there is none. Pure.
pub fn next_budget(stalled_percent: f64, budget: u32, full: u32) -> u32 {
    match stalled_percent {
        10.0.. => (budget - budget / 4).max(full / 8),
        1.0.. => budget,
        _ => budget.saturating_add(full / 16 + 1).min(full),
    }
}

impl PageCache {
    /// Has the budget follow the machine's memory pressure from now on, where the kernel tells it; says whether it does.
    pub fn follow_pressure(&self) -> bool {
        let shared = self.shared();
        let known = !shared.rt.is_virtual()
            && std::fs::read_to_string(PSI).is_ok_and(|text| stalled_percent(&text).is_some());
        if known {
            drop(shared.rt.spawn("memory pressure", Class::Idle, follow(Arc::downgrade(shared))));
        }
        known
    }
}

async fn follow(shared: Weak<Shared>) {
    while let Some(shared) = shared.upgrade() {
        let closing = shared.waits.listen(Condition::Closing);
        if shared.is_closed() {
            return;
        }
        if let Some(stalled) = std::fs::read_to_string(PSI).ok().as_deref().and_then(stalled_percent) {
            let budget = shared.pool.budget();
            let next = next_budget(stalled, budget, shared.pool.capacity());
            if next != budget {
                shared.set_budget(next);
            }
        }
        let alarm = shared.rt.sleep(EVERY);
        drop(shared);
        first_of(closing, alarm).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_words_are_understood() {
        let text = "some avg10=12.34 avg60=1.00 avg300=0.10 total=123\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=1\n";
        assert_eq!(stalled_percent(text), Some(12.34));
        assert_eq!(stalled_percent(""), None);
    }

    #[test]
    fn pressure_shrinks_the_budget_to_an_eighth_and_its_end_restores_it() {
        let mut budget = 8_000;
        for _ in 0..20 {
            budget = next_budget(50.0, budget, 8_000);
        }
        assert_eq!(budget, 1_000);
        assert_eq!(next_budget(5.0, budget, 8_000), budget);
        for _ in 0..20 {
            budget = next_budget(0.0, budget, 8_000);
        }
        assert_eq!(budget, 8_000);
    }
}
