//! Checks after a while whether a woken task has done its part.

use crate::{Alarm, Nanos, Rt};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;
use std::task::{Wake, Waker};

/// Guards hand-overs to tasks whose futures may be left unpolled: after a while, makes the owner
/// check whether the task did what it was woken for. One alarm serves all hand-overs of an owner,
/// so a watch usually costs just a clock read.
///
/// If the world shuts down before an alarm rings, the alarm is lost; the next watch arms another.
pub struct Watchdog {
    rt: Rt,
    patience: Nanos,
    /// When the alarm rings; a time in the past if none is armed.
    rings_at: Arc<AtomicU64>,
    /// Locked only to swap the alarm, never while one is armed or dropped.
    alarm: Mutex<Option<Alarm>>,
}

impl Watchdog {
    /// Longer than a task usually waits for a processor.
    pub const PATIENCE: Nanos = Nanos::from_millis(50);

    /// A watchdog that checks after `patience` at the earliest.
    pub fn new(rt: &Rt, patience: Nanos) -> Self {
        Self { rt: rt.clone(), patience, rings_at: Arc::default(), alarm: Mutex::new(None) }
    }

    pub(crate) fn patience(&self) -> Nanos {
        self.patience
    }

    /// Whether a task that was woken at `since` has had enough time.
    pub fn is_overdue(&self, since: Nanos) -> bool {
        since.saturating_add(self.patience) <= self.rt.now()
    }

    /// Sets an alarm that wakes `ring`'s waker after the patience, unless one is already set.
    ///
    /// The caller has first recorded the hand-over where the owner will find it. Call it without
    /// locks that the owner takes when woken.
    pub fn watch(&self, ring: impl FnOnce() -> Waker) {
        // Loom's models have no time: a task there is overdue at once, or never.
        if cfg!(extant_loom) || self.patience == Nanos::MAX {
            return;
        }
        let (now, armed) = (self.rt.now(), self.rings_at.load(SeqCst));
        if armed > now.0 {
            return;
        }
        let at = now.saturating_add(self.patience);
        if self.rings_at.compare_exchange(armed, at.0, SeqCst, SeqCst).is_ok() {
            let bell = Bell { ring: ring(), rings_at: self.rings_at.clone(), at: at.0 };
            let alarm = self.rt.alarm(at, &Waker::from(Arc::new(bell)));
            let dropped = {
                let mut kept = self.alarm.lock();
                // If this thread was delayed, its alarm has rung and another thread may have armed
                // the next one. Keep that.
                if self.rings_at.load(SeqCst) == at.0 { kept.replace(alarm) } else { Some(alarm) }
            };
            drop(dropped);
        }
    }

    /// The alarm has rung. Call this before the owner checks: a hand-over recorded later arms it
    /// again.
    pub fn rang(&self) {
        self.rings_at.store(0, SeqCst);
    }
}

/// The waker of one alarm. If its world ends, it may be dropped without ringing; then it marks the
/// alarm as not armed.
struct Bell {
    ring: Waker,
    rings_at: Arc<AtomicU64>,
    at: u64,
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.ring.wake_by_ref();
    }
}

impl Drop for Bell {
    fn drop(&mut self) {
        // This does nothing if the next alarm is armed already.
        let _ = self.rings_at.compare_exchange(self.at, 0, SeqCst, SeqCst);
    }
}

impl std::fmt::Debug for Watchdog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Watchdog({:?})", self.patience)
    }
}

#[cfg(all(test, not(extant_loom)))]
mod tests {
    use super::*;
    use crate::{
        Charge, Class, Origin, ReschedPoint, RtError, ShutdownReport, TaskFuture, TaskUsage, TimerId, Tracer,
        WaitsOn, World,
    };
    use std::collections::BTreeMap;
    use std::pin::Pin;

    type Hook = Box<dyn FnOnce() + Send>;

    /// A world in which another thread has its turn while an alarm is being armed.
    #[derive(Default)]
    struct Stage {
        now: AtomicU64,
        armed: Mutex<(u64, BTreeMap<TimerId, Waker>)>,
        meanwhile: Mutex<Option<Hook>>,
    }

    impl Stage {
        fn ring(&self) -> usize {
            let wakers = std::mem::take(&mut self.armed.lock().1);
            let count = wakers.len();
            wakers.into_values().for_each(Waker::wake);
            count
        }
    }

    impl World for Stage {
        fn now(&self) -> Nanos {
            Nanos(self.now.load(SeqCst))
        }
        fn wall_time(&self) -> (i64, u32) {
            (0, 0)
        }
        fn seed(&self) -> u64 {
            1
        }
        fn spawn(&self, _: &str, _: Class, _: TaskFuture) {}
        fn block_on(&self, _: Pin<&mut (dyn Future<Output = ()> + '_)>) -> Result<(), RtError> {
            unreachable!("nothing is run")
        }
        fn charge(&self, _: Charge) {}
        fn timer(&self, _: Nanos, waker: &Waker) -> TimerId {
            let id = {
                let mut armed = self.armed.lock();
                armed.0 += 1;
                let id = TimerId(armed.0);
                armed.1.insert(id, waker.clone());
                id
            };
            let meanwhile = self.meanwhile.lock().take();
            if let Some(meanwhile) = meanwhile {
                meanwhile();
            }
            id
        }
        fn cancel_timer(&self, id: TimerId) {
            let waker = self.armed.lock().1.remove(&id);
            drop(waker);
        }
        fn stint(&self) -> Nanos {
            Nanos::ZERO
        }
        fn task_usage(&self) -> TaskUsage {
            TaskUsage::default()
        }
        fn should_yield(&self, _: ReschedPoint) -> bool {
            false
        }
        fn waits_on(&self, _: WaitsOn) {}
        fn origin(&self) -> Origin {
            Origin::default()
        }
        fn shutdown(&self) -> ShutdownReport {
            ShutdownReport::default()
        }
    }

    #[test]
    fn a_thread_that_is_slow_to_arm_its_alarm_does_not_disarm_the_next() {
        let stage = Arc::new(Stage::default());
        let rt = Rt::from_world(stage.clone(), Tracer::default());
        let dog = Arc::new(Watchdog::new(&rt, Nanos(50)));
        let (world, other) = (stage.clone(), dog.clone());
        *stage.meanwhile.lock() = Some(Box::new(move || {
            // The alarm rings before the thread that armed it goes on, and another hand-over is
            // watched.
            world.now.store(60, SeqCst);
            other.rang();
            assert_eq!(world.ring(), 1);
            other.watch(|| Waker::noop().clone());
        }));
        dog.watch(|| Waker::noop().clone());
        assert_eq!(stage.ring(), 1, "the second hand-over is still watched");
    }
}
