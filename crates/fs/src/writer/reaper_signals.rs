//! Signals between callers and the task that deletes inodes, which is
//! [`Namespace::start_reaper`](crate::names::Namespace).

use extant_rt::{RwLock, WaitTable};
use parking_lot::Mutex;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Poll, Waker};

/// See the module documentation.
#[derive(Debug)]
pub(crate) struct Reaper {
    signals: Signals,
    /// Held for writing while the task deletes.
    pub(crate) works: RwLock,
}

/// The task's part of a [`Reaper`]. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct Signals(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    is_on: bool,
    has_work: bool,
    waker: Option<Waker>,
}

impl Signals {
    fn set(&self, change: impl FnOnce(&mut State)) {
        let waker = {
            let mut state = self.0.lock();
            change(&mut state);
            state.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Waits for work. Returns false at the end.
    pub(crate) async fn next(&self) -> bool {
        poll_fn(|cx| {
            let mut state = self.0.lock();
            if !state.is_on {
                return Poll::Ready(false);
            }
            if std::mem::take(&mut state.has_work) {
                return Poll::Ready(true);
            }
            state.waker = Some(cx.waker().clone());
            Poll::Pending
        })
        .await
    }
}

impl Reaper {
    /// Starts without a task.
    pub(super) fn new(locks: &Arc<WaitTable>) -> Self {
        Self { signals: Signals::default(), works: RwLock::new(locks) }
    }

    /// Marks the task as running, and returns its signals.
    pub(crate) fn begin(&self) -> Signals {
        self.signals.set(|state| state.is_on = true);
        self.signals.clone()
    }

    /// Whether a task deletes inodes.
    pub(crate) fn is_on(&self) -> bool {
        self.signals.0.lock().is_on
    }

    /// Wakes the task, because there is something to delete.
    pub(crate) fn call(&self) {
        self.signals.set(|state| state.has_work = true);
    }

    /// Ends the task, and waits for the deletion in progress.
    pub(crate) async fn end(&self) {
        self.signals.set(|state| state.is_on = false);
        drop(self.works.write().await);
    }
}

impl Drop for Reaper {
    fn drop(&mut self) {
        self.signals.set(|state| state.is_on = false);
    }
}
