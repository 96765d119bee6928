//! Watches for locks that waiters were given but do not pick up.

use super::table::WaitTable;
use std::sync::{Arc, Weak};
use std::task::{Wake, Waker};

/// The watchdog's waker for a table.
struct Ring(Weak<WaitTable>);

impl Wake for Ring {
    fn wake(self: Arc<Self>) {
        if let Some(table) = self.0.upgrade() {
            table.end_watch();
        }
    }
}

impl WaitTable {
    /// Makes waiters for a lock check again if it was given to another waiter that has not picked
    /// it up after a while.
    pub(super) fn watch(self: &Arc<Self>) {
        self.watchdog.watch(|| Waker::from(Arc::new(Ring(Arc::downgrade(self)))));
    }

    /// Wakes the waiters for each lock that was given to another waiter a while ago. The first of
    /// them to be polled takes the lock. Each lock is handled once, since later waiters check the
    /// time themselves.
    fn end_watch(self: &Arc<Self>) {
        self.watchdog.rang();
        let mut is_early = false;
        for bucket in &self.buckets {
            let mut state = bucket.state.lock();
            let mut wakers = Vec::new();
            for n in 0..state.given.len() {
                let (key, at, is_told) = (state.given[n].key, state.given[n].at, state.given[n].is_told);
                if is_told || state.waiters.first_locked(key).is_none() {
                    continue;
                }
                if self.watchdog.is_overdue(at) {
                    state.given[n].is_told = true;
                    wakers.append(&mut state.waiters.wakers_of(key));
                } else {
                    is_early = true;
                }
            }
            drop(state);
            wakers.into_iter().for_each(Waker::wake);
        }
        if is_early {
            self.watch();
        }
    }
}
