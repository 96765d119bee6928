//! Dynamic priorities of normal tasks in Linux 2.6's O(1) scheduler: sleeping raises a task,
//! running lowers it.
//!
//! Source: `recalc_task_prio`, `effective_prio`, `scheduler_tick` of kernel/sched.c, 2.6.7. Left
//! out: nice values, credit for the time between wake-up and running (`activated` 1 and 2), the
//! interactive credit, round robin of interactive tasks within their slice
//! (`TIMESLICE_GRANULARITY`), what a child inherits from its parent, and interruptible sleeps.
//! Every wait counts as uninterruptible, so it raises a task no higher than a wait for a disk can.

use extant_rt::Nanos;

/// Number of bonus steps (kernel: `MAX_BONUS`).
const BONUSES: u64 = 10;
/// Static priority at nice 0 (kernel: `static_prio`).
const STATIC: u8 = 120;
/// A task this much better than [`STATIC`] counts as interactive (kernel: `INTERACTIVE_DELTA`).
const INTERACTIVE: u8 = 2;

/// A task's sleep average, as a time (kernel: `sleep_avg`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sleepiness(Nanos);

impl Sleepiness {
    fn most(slice: Nanos) -> u64 {
        slice.0.saturating_mul(BONUSES)
    }

    fn bonus(self, slice: Nanos) -> u64 {
        (self.0.0.saturating_mul(BONUSES) / Self::most(slice)).min(BONUSES)
    }

    /// The average after a sleep of `span`, with time slices of `slice`.
    pub(super) fn slept(self, span: Nanos, slice: Nanos) -> Self {
        let most = Self::most(slice);
        let limit = most / BONUSES * (BONUSES / 2 + u64::from(INTERACTIVE) + 1) - slice.0 / 100;
        if self.0.0 >= limit {
            return self;
        }
        let gain = span.0.min(most).saturating_mul((BONUSES - self.bonus(slice)).max(1));
        Self(Nanos(self.0.0.saturating_add(gain).min(limit)))
    }

    /// The average after running for `span`.
    pub(super) fn ran(self, span: Nanos) -> Self {
        Self(self.0.saturating_sub(span))
    }

    /// The resulting priority, 115 to 125; lower runs first.
    pub(super) fn priority(self, slice: Nanos) -> u8 {
        STATIC + (BONUSES / 2) as u8 - self.bonus(slice) as u8
    }
}

/// Whether a task of this priority stays in the current round when its slice is used up.
pub(super) fn is_interactive(priority: u8) -> bool {
    priority <= STATIC - INTERACTIVE
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLICE: Nanos = Nanos::from_millis(100);

    #[test]
    fn sleep_lifts_to_interactive_and_no_further_and_running_takes_it_back() {
        let new = Sleepiness::default();
        assert_eq!(new.priority(SLICE), 125);
        let woken = new.slept(Nanos::from_millis(50), SLICE);
        assert_eq!(woken.priority(SLICE), 120, "50 ms count tenfold: half of the average");
        let long = new.slept(Nanos::from_secs(100), SLICE).slept(Nanos::from_secs(100), SLICE);
        assert_eq!(long.priority(SLICE), 118);
        assert!(is_interactive(long.priority(SLICE)) && !is_interactive(woken.priority(SLICE)));
        assert_eq!(long.ran(Nanos::from_millis(799)), new.slept(Nanos::ZERO, SLICE));
        assert_eq!(long.ran(Nanos::from_secs(9)).priority(SLICE), 125);
    }
}
