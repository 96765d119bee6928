//! Checks after a while whether a woken task has done its part.

use crate::{Alarm, Nanos, Rt};
use parking_lot::Mutex;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;
use std::task::Waker;

/// For hand-overs to a task whose future may be kept without being polled: after a while, has the
/// owner check whether the task did what it was woken for. One alarm serves all hand-overs of an
/// owner, so a watch usually costs just a clock read.
///
/// If the world shuts down before an alarm rings, the alarm is lost; the next watch arms another.
pub struct Watchdog {
    rt: Rt,
    patience: Nanos,
    /// When the alarm rings; a time in the past if none is armed.
    rings_at: AtomicU64,
    /// Locked only to swap the alarm, never while one is armed or dropped.
    alarm: Mutex<Option<Alarm>>,
}

impl Watchdog {
    /// Longer than a task usually waits for a processor.
    pub const PATIENCE: Nanos = Nanos::from_millis(50);

    /// A watchdog that checks after `patience` at the earliest.
    pub fn new(rt: &Rt, patience: Nanos) -> Self {
        Self { rt: rt.clone(), patience, rings_at: AtomicU64::new(0), alarm: Mutex::new(None) }
    }

    /// Whether a task that was woken at `since` has had enough time.
    pub fn is_overdue(&self, since: Nanos) -> bool {
        since.saturating_add(self.patience) <= self.rt.now()
    }

    /// Has `ring` woken after the patience, unless an alarm is already set to ring.
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
            let alarm = self.rt.alarm(at, &ring());
            let old = self.alarm.lock().replace(alarm);
            drop(old);
        }
    }

    /// The alarm has rung. Call this before the owner checks: a hand-over recorded later arms it
    /// again.
    pub fn rang(&self) {
        self.rings_at.store(0, SeqCst);
    }
}

impl std::fmt::Debug for Watchdog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Watchdog({:?})", self.patience)
    }
}
