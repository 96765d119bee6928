//! Where the time stamps of inodes come from.

use extant_format::Timestamp;
use extant_rt::{Nanos, Rt};

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
