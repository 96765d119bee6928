//! A look after a while at what somebody was given to do.

use crate::{Alarm, Nanos, Rt};
use parking_lot::Mutex;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;
use std::task::Waker;

/// For hand-overs to one task, whose future may be kept without being polled: has its owner look after a while whether the task
/// has done what it was woken for. One alarm serves all hand-overs of an owner, so a watch costs no more than a look at the clock
/// as a rule.
///
/// An alarm is lost where the world is shut down before it rings; the next watch arms another.
pub struct Watchdog {
    rt: Rt,
    patience: Nanos,
    /// When the alarm rings; past where none is armed.
    rings_at: AtomicU64,
    /// Locked for an exchange alone, never while an alarm is armed or dropped.
    alarm: Mutex<Option<Alarm>>,
}

impl Watchdog {
    /// Longer than a task waits for a processor, as a rule.
    pub const PATIENCE: Nanos = Nanos::from_millis(50);

    /// One that looks after `patience` at the earliest.
    pub fn new(rt: &Rt, patience: Nanos) -> Self {
        Self { rt: rt.clone(), patience, rings_at: AtomicU64::new(0), alarm: Mutex::new(None) }
    }

    /// Whether a task that was woken at `since` has had time enough.
    pub fn is_overdue(&self, since: Nanos) -> bool {
        since.saturating_add(self.patience) <= self.rt.now()
    }

    /// Has `ring` woken after the patience, unless another is to be woken before that. What is to be looked at was noted where the
    /// owner looks when it is woken. Without locks that it takes then.
    pub fn watch(&self, ring: impl FnOnce() -> Waker) {
        // There is no time in loom's models: a task is overdue at once there, or never.
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

    /// The alarm has rung. To be called before the owner looks: what is noted after that arms it again.
    pub fn rang(&self) {
        self.rings_at.store(0, SeqCst);
    }
}

impl std::fmt::Debug for Watchdog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Watchdog({:?})", self.patience)
    }
}
