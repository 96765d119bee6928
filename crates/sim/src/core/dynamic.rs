//! Dynamic priorities of normal tasks, as Linux 2.6's O(1) scheduler gave them: sleep raises a task, and running lowers it.
//!
//! Source: `recalc_task_prio`, `effective_prio`, `scheduler_tick` of kernel/sched.c, 2.6.7. Left out: nice values, the credit
//! for the time between a wake-up and its turn (`activated` 1 and 2), the interactive credit, the round robin of interactive
//! tasks within their slice (`TIMESLICE_GRANULARITY`), what a child has of its parent, and sleeps that a signal ends: every
//! wait counts as uninterruptible, which is as high as a wait for a disk can lift a task.

use extant_rt::Nanos;

/// Steps of the bonus (kernel: `MAX_BONUS`).
const BONUSES: u64 = 10;
/// Nice 0 (kernel: `static_prio`).
const STATIC: u8 = 120;
/// From this much better than [`STATIC`] a task counts as interactive (kernel: `INTERACTIVE_DELTA`).
const INTERACTIVE: u8 = 2;

/// A task's average of sleep, in time (kernel: `sleep_avg`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sleepiness(Nanos);

impl Sleepiness {
    fn most(slice: Nanos) -> u64 {
        slice.0.saturating_mul(BONUSES)
    }

    fn bonus(self, slice: Nanos) -> u64 {
        (self.0.0.saturating_mul(BONUSES) / Self::most(slice)).min(BONUSES)
    }

    /// After a sleep of `span`, with time slices of `slice`.
    pub(super) fn slept(self, span: Nanos, slice: Nanos) -> Self {
        let most = Self::most(slice);
        let limit = most / BONUSES * (BONUSES / 2 + u64::from(INTERACTIVE) + 1) - slice.0 / 100;
        if self.0.0 >= limit {
            return self;
        }
        let gain = span.0.min(most).saturating_mul((BONUSES - self.bonus(slice)).max(1));
        Self(Nanos(self.0.0.saturating_add(gain).min(limit)))
    }

    /// After a run of `span`.
    pub(super) fn ran(self, span: Nanos) -> Self {
        Self(self.0.saturating_sub(span))
    }

    /// The priority that it makes, 115 to 125; lower goes first.
    pub(super) fn priority(self, slice: Nanos) -> u8 {
        STATIC + (BONUSES / 2) as u8 - self.bonus(slice) as u8
    }
}

/// Whether a task of this priority goes on in the same round when its slice is used up.
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
