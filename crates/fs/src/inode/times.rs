//! The source of inode time stamps.

use extant_format::{Superblock, Timestamp, UintExt};
use extant_rt::Rt;

/// The wall clock of a volume.
#[derive(Clone, Debug)]
pub(crate) struct Clock {
    rt: Rt,
    /// Fixed value of every stamp, for a batch whose result must not depend on when it runs.
    fixed: Option<Timestamp>,
}

impl Clock {
    /// Creates a clock that follows the runtime's, or one fixed at `fixed` (`SOURCE_DATE_EPOCH`).
    pub(crate) fn new(rt: &Rt, fixed: Option<i64>) -> Self {
        Self { rt: rt.clone(), fixed: fixed.map(|seconds| Timestamp { seconds, nanos: 0 }) }
    }

    /// The current time, to the nanosecond. Read anew each time: the monotonic clock stops while
    /// the machine is suspended, and does not follow changes to the wall clock.
    pub(crate) fn now(&self) -> Timestamp {
        self.fixed.unwrap_or_else(|| {
            let (seconds, nanos) = self.rt.wall_time();
            Timestamp { seconds, nanos }
        })
    }

    /// `i_dtime` for an inode deleted now. e2fsck takes a value below the number of inodes for a
    /// link of the orphan list.
    pub(crate) fn deleted_at(&self, sb: &Superblock) -> u32 {
        let now = self.now().seconds.clamp(0, u32::MAX.into()).unsigned_abs().fit_u32();
        now.max(sb.inodes_count().saturating_add(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use extant_rt::Nanos;
    use extant_sim::{Machine, Preemption, Sim};

    #[test]
    fn stamps_are_the_wall_clocks() {
        let sim = Sim::new(Machine::free(1, Preemption::None), 1);
        let rt = sim.rt();
        let work = async {
            rt.sleep(Nanos::from_millis(700)).await;
            let (clock, fixed) = (Clock::new(rt, None), Clock::new(rt, Some(5)));
            rt.sleep(Nanos::from_millis(800)).await;
            let now = clock.now();
            assert_eq!((now.seconds, now.nanos), (rt.wall_clock(), 500_000_000));
            assert_eq!(fixed.now(), Timestamp { seconds: 5, nanos: 0 });
        };
        rt.block_on(work).unwrap();
    }
}
