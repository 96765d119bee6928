//! The rate at which one writer may dirty a device's pages, and the pauses that keep it there (Linux 3.7,
//! mm/page-writeback.c).

use super::position::RATIO_ONE;
use super::ticks::Ticks;
use extant_cache::dirty::INITIAL_RATE;

/// A writer dirties at least so many pages between two pauses, where that does not take too long
/// (kernel: `DIRTY_POLL_THRESH`).
const LEAST_PAGES: u64 = 128 >> 2;

/// The rate limit of each writer of a device: the feedback loop finds, without counting them, the rate at which they
/// together dirty what the device writes (kernel: `bdi_update_dirty_ratelimit()`).
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
    /// Pages per second for each writer, before the position is taken into account.
    pub(super) fn base(&self) -> u64 {
        self.base
    }

    /// One step, every 200 ms: writers dirtied at `dirty_rate` while the device wrote at `write_rate` and the position
    /// ratio was `ratio`; `below` says that less is dirty than wanted.
    pub(super) fn update(&mut self, ratio: u64, write_rate: u64, dirty_rate: u64, below: bool) {
        let task = self.base * ratio / RATIO_ONE + 1;
        let balanced = (u128::from(task) * u128::from(write_rate) / u128::from(dirty_rate | 1)) as u64;
        let balanced = balanced.min(write_rate);
        // The rate follows only where the new estimate, the one before and the position agree.
        let mut step = if below {
            self.balanced.min(balanced).min(task).saturating_sub(self.base)
        } else {
            self.base.saturating_sub(self.balanced.max(balanced).max(task))
        };
        // Small steps become none, and none goes all the way.
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

/// The longest pause, in ticks: short enough that what the device holds does not run out meanwhile
/// (kernel: `bdi_max_pause()`).
pub(super) fn max_pause(ticks: Ticks, device_dirty: u64, write_rate: u64) -> u64 {
    let per_eighth = write_rate / (1 + ticks.hz() / 8).next_power_of_two();
    (device_dirty / (1 + per_eighth) + 1).min(ticks.most_pause())
}

/// How a writer is to be paced (kernel: `bdi_min_pause()`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PausePlan {
    /// Shorter pauses are skipped, and made up for later. Ticks.
    pub(super) least: u64,
    /// Pages to dirty between two pauses (kernel: `nr_dirtied_pause`).
    pub(super) pages: u64,
}

impl PausePlan {
    /// The plan at a rate limit of `base` pages per second, of which a writer has `task` at the moment, on a device that writes
    /// `write_rate`; no pause is to be longer than `most` ticks.
    pub(super) fn new(ticks: Ticks, most: u64, task: u64, base: u64, write_rate: u64) -> Self {
        let hz = ticks.hz();
        // 10 ms for a single writer, 10 ms more with every doubling of their number.
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
        // Where the writer has much less than the rate limit at the moment, so many pages would take too long a pause.
        if hz * pages / (task + 1) > most {
            target = most;
            pages = task * target / ticks.hz_power();
        }
        let least = if pages >= LEAST_PAGES { 1 + target / 2 } else { target };
        Self { least, pages }
    }
}

/// Pauses as they were in the patches of 2011 and in 3.2 (`bdi_max_pause()`, `balance_dirty_pages()`).
pub(super) mod posted {
    use super::Ticks;

    /// The longest pause, in ticks: 20 ms for a single writer of a device, 20 ms more with every doubling of their number, and an
    /// eighth of the time that the device takes for what is dirty on it.
    pub(in super::super) fn max_pause(ticks: Ticks, device_dirty: u64, write_rate: u64, base: u64) -> u64 {
        let doublings = u64::from(write_rate.max(1).ilog2().saturating_sub(base.max(1).ilog2()));
        let mut most = ticks.hz() / 50 + doublings * 20 * ticks.hz() / 1024;
        if device_dirty > 0 {
            most = most.min(device_dirty * ticks.hz() / (8 * write_rate + 1));
        }
        // Not less than a fourth of which is a tick.
        most.max(4).min(ticks.most_pause())
    }

    /// Pages to dirty until the next pause after one of `due` ticks for `pages`, where it was `before`: more after a short pause, less
    /// after one of the longest.
    pub(in super::super) fn pause_pages(
        ticks: Ticks,
        due: u64,
        most: u64,
        pages: u64,
        before: u64,
        base: u64,
    ) -> u64 {
        let wanted = base * (most / 2) / ticks.hz();
        // A pause of no time counts as one of a tick.
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

/// Pages that a writer may dirty below freerun before it is looked at again: the square root of what is left, rounded
/// down to a power of two (kernel: `dirty_poll_interval()`).
pub(super) fn poll_interval(dirty: u64, threshold: u64) -> u64 {
    match threshold.checked_sub(dirty) {
        Some(left) if left > 0 => 1 << (left.ilog2() / 2),
        _ => 1,
    }
}
