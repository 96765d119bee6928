//! Time stamps of inodes.
//!
//! Stamps advance on a tick of 4 ms, as Linux's do at 250 Hz: most changes of a busy inode then leave its times as they
//! are. Once a stamp has been *observed* (by stat), the next change gets a finer one, so that no two versions that a caller
//! told apart carry the same time (multigrain timestamps, Documentation/filesystems/multigrain-ts.rst).

use extant_format::Timestamp;
use extant_rt::{Nanos, Rt};

/// The tick.
const TICK_NS: u32 = 4_000_000;

/// The wall clock of a volume.
#[derive(Clone, Debug)]
pub(crate) struct Clock {
    rt: Rt,
    opened: Nanos,
    base: Timestamp,
    /// Every stamp, in a batch whose result must not depend on when it runs.
    fixed: bool,
}

impl Clock {
    /// The world's clock; where `fixed` is given, time stands still there (`SOURCE_DATE_EPOCH`).
    pub(crate) fn new(rt: &Rt, fixed: Option<i64>) -> Self {
        let seconds = fixed.unwrap_or_else(|| rt.wall_clock());
        Self {
            rt: rt.clone(),
            opened: rt.now(),
            base: Timestamp { seconds, nanos: 0 },
            fixed: fixed.is_some(),
        }
    }

    /// The time now, to the nanosecond.
    pub(crate) fn now(&self) -> Timestamp {
        if self.fixed {
            return self.base;
        }
        let passed = self.rt.now().0.saturating_sub(self.opened.0);
        Timestamp {
            seconds: self.base.seconds + (passed / 1_000_000_000) as i64,
            nanos: (passed % 1_000_000_000) as u32,
        }
    }
}

/// The stamp of a change at `now` of an inode whose last change is stamped `last`; `observed` if that was seen since.
pub(crate) fn stamp(now: Timestamp, last: Timestamp, observed: bool) -> Timestamp {
    let tick = Timestamp { nanos: now.nanos - now.nanos % TICK_NS, ..now };
    if tick > last {
        return tick;
    }
    // A last stamp finer than the tick is not taken back within it; a clock that was set back is followed.
    let within = last <= now;
    match (within, observed) {
        (true, true) => now,
        (true, false) => last,
        (false, _) => tick,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(nanos: u32) -> Timestamp {
        Timestamp { seconds: 100, nanos }
    }

    #[test]
    fn stamps_are_coarse_until_one_is_observed() {
        let first = stamp(at(9_500_000), at(0), false);
        assert_eq!(first, at(8_000_000));
        assert_eq!(stamp(at(9_600_000), first, false), first);
        let fine = stamp(at(9_700_000), first, true);
        assert_eq!(fine, at(9_700_000));
        assert_eq!(stamp(at(9_800_000), fine, false), fine, "never backwards within a tick");
        assert_eq!(stamp(at(12_100_000), fine, false), at(12_000_000));
    }

    #[test]
    fn a_clock_that_was_set_back_is_followed() {
        let later = Timestamp { seconds: 200, nanos: 0 };
        assert_eq!(stamp(at(9_500_000), later, true), at(8_000_000));
    }
}
