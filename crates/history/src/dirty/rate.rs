//! The rate at which a writer may dirty a device's pages, and the pauses that enforce it (Linux
//! 3.7, mm/page-writeback.c).

use super::position::RATIO_ONE;
use super::ticks::Ticks;
use extant_cache::dirty::INITIAL_RATE;

/// A writer dirties at least this many pages between two pauses, unless that takes too long
/// (kernel: `DIRTY_POLL_THRESH`).
const LEAST_PAGES: u64 = 128 >> 2;

/// The rate limit of each writer of a device. Without counting the writers, the feedback loop finds
/// the rate at which they together dirty what the device writes (kernel:
/// `bdi_update_dirty_ratelimit()`).
#[derive(Clone, Copy, Debug)]
pub(super) struct RateLimit {
    base: u64,
    balanced: u64,
}

impl Default for RateLimit {
    fn default() -> Self {
        Self { base: INITIAL_RATE, balanced: INITIAL_RATE }
    }
}

impl RateLimit {
    /// Pages per second for each writer, before the position ratio is applied.
    pub(super) fn base(&self) -> u64 {
        self.base
    }

    /// One feedback step, every 200 ms. Writers dirtied at `dirty_rate` while the device wrote at
    /// `write_rate` and the position ratio was `ratio`; `below` is set if the dirty pages are below
    /// the setpoint.
    pub(super) fn update(&mut self, ratio: u64, write_rate: u64, dirty_rate: u64, below: bool) {
        let task = self.base * ratio / RATIO_ONE + 1;
        let balanced = (u128::from(task) * u128::from(write_rate) / u128::from(dirty_rate | 1)) as u64;
        let balanced = balanced.min(write_rate);
        // The rate follows only if the new estimate, the previous one and the position agree.
        let mut step = if below {
            self.balanced.min(balanced).min(task).saturating_sub(self.base)
        } else {
            self.base.saturating_sub(self.balanced.max(balanced).max(task))
        };
        // Steps that are small relative to the rate become zero, and no step goes all the way.
        step = step.checked_shr((self.base / (2 * step + 1)).min(64) as u32).unwrap_or(0);
        step = step.div_ceil(8);
        if self.base < balanced {
            self.base += step;
        } else {
            self.base -= step;
        }
        self.base = self.base.max(1);
        self.balanced = balanced;
    }
}

/// The longest pause in ticks: short enough that the device does not run out of dirty pages
/// meanwhile (kernel: `bdi_max_pause()`).
pub(super) fn max_pause(ticks: Ticks, device_dirty: u64, write_rate: u64) -> u64 {
    let per_eighth = write_rate / (1 + ticks.hz() / 8).next_power_of_two();
    (device_dirty / (1 + per_eighth) + 1).min(ticks.most_pause())
}

/// How to pace a writer (kernel: `bdi_min_pause()`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PausePlan {
    /// The shortest pause in ticks. Shorter pauses are skipped and made up for later.
    pub(super) least: u64,
    /// Pages to dirty between two pauses (kernel: `nr_dirtied_pause`).
    pub(super) pages: u64,
}

impl PausePlan {
    /// The plan for a rate limit of `base` pages per second, of which a writer currently gets
    /// `task`, on a device that writes `write_rate`. No pause should exceed `most` ticks.
    pub(super) fn new(ticks: Ticks, most: u64, task: u64, base: u64, write_rate: u64) -> Self {
        let hz = ticks.hz();
        // 10 ms for a single writer, 10 ms more for each doubling of their number.
        let doublings = u64::from(write_rate.max(1).ilog2().saturating_sub(base.max(1).ilog2()));
        let mut target = ((hz / 100).max(1) + doublings * 10 * hz / 1024).min(1 + most / 2);
        let mut pages = base * target / ticks.hz_power();
        if pages < LEAST_PAGES {
            target = most;
            pages = base * target / ticks.hz_power();
            if pages > LEAST_PAGES {
                pages = LEAST_PAGES;
                target = hz * LEAST_PAGES / base;
            }
        }
        // If the writer currently gets much less than the rate limit, that many pages would need
        // too long a pause.
        if hz * pages / (task + 1) > most {
            target = most;
            pages = task * target / ticks.hz_power();
        }
        let least = if pages >= LEAST_PAGES { 1 + target / 2 } else { target };
        Self { least, pages }
    }
}

/// Pauses in the patches of 2011 and in 3.2 (`bdi_max_pause()`, `balance_dirty_pages()`).
pub(super) mod posted {
    use super::Ticks;

    /// The longest pause in ticks: 20 ms for a single writer of a device, 20 ms more for each
    /// doubling of their number, but at most an eighth of the time that the device needs to write
    /// its dirty pages.
    pub(in super::super) fn max_pause(ticks: Ticks, device_dirty: u64, write_rate: u64, base: u64) -> u64 {
        let doublings = u64::from(write_rate.max(1).ilog2().saturating_sub(base.max(1).ilog2()));
        let mut most = ticks.hz() / 50 + doublings * 20 * ticks.hz() / 1024;
        if device_dirty > 0 {
            most = most.min(device_dirty * ticks.hz() / (8 * write_rate + 1));
        }
        // The pause is at least 4 ticks, so that a quarter of it is a whole tick.
        most.max(4).min(ticks.most_pause())
    }

    /// Pages to dirty before the next pause, after a pause of `due` ticks for `pages` pages; the
    /// number was `before`. More after a short pause, fewer after one of maximum length.
    pub(in super::super) fn pause_pages(
        ticks: Ticks,
        due: u64,
        most: u64,
        pages: u64,
        before: u64,
        base: u64,
    ) -> u64 {
        let wanted = base * (most / 2) / ticks.hz();
        // A pause of zero length counts as one tick.
        let paused = due.max(1).min(most);
        if paused <= most / 4 && pages >= before {
            wanted.clamp(pages + pages / 8, (pages * 4).max(pages + pages / 8))
        } else if paused >= most {
            wanted.clamp(pages / 4, (pages - pages / 8).max(pages / 4)) | 1
        } else {
            before
        }
    }
}

/// Pages that a writer may dirty below freerun before it is checked again: the square root of what
/// is left, rounded down to a power of two (kernel: `dirty_poll_interval()`).
pub(super) fn poll_interval(dirty: u64, threshold: u64) -> u64 {
    match threshold.checked_sub(dirty) {
        Some(left) if left > 0 => 1 << (left.ilog2() / 2),
        _ => 1,
    }
}
