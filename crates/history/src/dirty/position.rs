//! Position of the dirty pages between the limits, as a factor on the writers' rate (Linux 3.7,
//! mm/page-writeback.c: `bdi_position_ratio()`, and its versions during development in 2011).

use super::CHUNK_UNIT;

/// Ratios are fixed-point numbers with ten fractional bits (kernel: `RATELIMIT_CALC_SHIFT`).
pub(super) const RATIO_ONE: u64 = 1 << 10;

/// Dirty pages a device should keep so that it does not go idle; below that the factor rises.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reserve {
    /// What the device writes in a second, but at most freerun. A device that has written nothing
    /// has no share at all (the patch "writeback: dirty position control - bdi reserve area" as
    /// first posted, September 2011).
    Second,
    /// Half of the device's share plus 4 MiB (that thread's mail of 28 September 2011).
    HalfAndChunk,
    /// Half of the device's share (version 12 of 3 October 2011, merged in 3.2, and since).
    Half,
}

/// The inputs of the position ratio, in pages (kernel: `bdi_position_ratio()`).
#[derive(Clone, Copy, Debug)]
pub(super) struct Position {
    /// Up to this number of dirty pages no writer is throttled: halfway between the background
    /// threshold and the limit.
    pub(super) freerun: u64,
    /// At this number of dirty pages all writers stop.
    pub(super) limit: u64,
    /// The configured limit.
    pub(super) threshold: u64,
    /// Dirty and writeback pages on all devices.
    pub(super) dirty: u64,
    /// The device's share of the threshold.
    pub(super) device_threshold: u64,
    /// Dirty and writeback pages on the device.
    pub(super) device_dirty: u64,
    /// The device's write bandwidth, in pages per second.
    pub(super) write_rate: u64,
    pub(super) reserve: Reserve,
}

impl Position {
    /// Target for the number of dirty pages.
    pub(super) fn setpoint(&self) -> u64 {
        (self.freerun + self.limit) / 2
    }

    /// The device's share of the threshold as used here: at least an eighth of what is left below
    /// the limit, so that a device that has written nothing can start.
    pub(super) fn device_floor(&self) -> u64 {
        let part = self.device_threshold.min(self.threshold);
        match self.reserve {
            Reserve::Second => part,
            Reserve::HalfAndChunk | Reserve::Half => part.max(self.limit.saturating_sub(self.dirty) / 8),
        }
    }

    /// Target for the device's dirty pages (kernel: `bdi_setpoint`).
    pub(super) fn device_setpoint(&self) -> u64 {
        self.part_of(self.setpoint())
    }

    /// The device's share of `pages`, computed with 16 fractional bits.
    fn part_of(&self, pages: u64) -> u64 {
        let part = (u128::from(self.device_floor()) << 16) / u128::from(self.threshold + 1);
        ((u128::from(pages) * part) >> 16) as u64
    }

    /// Ratio for all devices together: 1 at the setpoint, 2 at freerun, 0 at the limit, a cubic
    /// curve in between.
    pub(super) fn global_ratio(&self) -> u64 {
        if self.dirty >= self.limit {
            return 0;
        }
        let setpoint = self.setpoint() as i64;
        let one = RATIO_ONE as i64;
        let x = (setpoint - self.dirty as i64) * one / (self.limit as i64 - setpoint + 1);
        let cube = (((x * x) >> 10) * x) >> 10;
        (one + cube).max(0) as u64
    }

    /// The factor on the device's rate limit.
    pub(super) fn ratio(&self) -> u64 {
        let mut ratio = self.global_ratio();
        if ratio == 0 {
            return 0;
        }
        let mine = self.device_floor();
        let setpoint = self.device_setpoint();
        let span = self.part_of(self.threshold.saturating_sub(mine) + 8 * self.write_rate);
        // A straight line falls from 1 at the device's setpoint to 0 a span above it; it is cut off
        // at a quarter.
        let zero = setpoint + span;
        if self.device_dirty < zero - span / 4 {
            ratio = scaled(ratio, zero - self.device_dirty, zero - setpoint + 1);
        } else {
            ratio /= 4;
        }
        let reserve = match self.reserve {
            Reserve::Second => self.write_rate.min(self.freerun),
            Reserve::HalfAndChunk => mine / 2 + CHUNK_UNIT,
            Reserve::Half => mine / 2,
        };
        if self.device_dirty < reserve {
            ratio = if self.device_dirty > reserve / 8 {
                scaled(ratio, reserve, self.device_dirty)
            } else {
                ratio * 8
            };
        }
        ratio
    }
}

fn scaled(ratio: u64, by: u64, over: u64) -> u64 {
    (u128::from(ratio) * u128::from(by) / u128::from(over.max(1))) as u64
}
