//! Waiting for things that come in numbers: frames, room for dirty pages, work for a flusher. Pages are waited for in the
//! world's keyed wait table, where a wake is for everybody; here it is for as many as it brings, in order of arrival.
//!
//! A waiter listens first, looks at what it waits for, and then awaits; a wake in between is not lost.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};

/// What is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Key {
    /// Frames became free, or evictable.
    Frames,
    /// Dirty pages were cleaned: anywhere, or on this device.
    Room(Option<u32>),
    /// Pages of this device left write-back.
    Written(u32),
    /// The flusher of this device has something to do.
    Flusher(u32),
    /// The cache is being closed.
    Closing,
}

#[derive(Debug, Default)]
struct Waiters {
    next: u64,
    by_key: BTreeMap<(Key, u64), Option<Waker>>,
}

#[derive(Debug)]
pub(crate) struct Waits {
    waiters: Mutex<Waiters>,
    /// How many listen, to spare those who wake the lock.
    listening: AtomicUsize,
}

impl Waits {
    pub(crate) fn new() -> Self {
        Self { waiters: Mutex::default(), listening: AtomicUsize::new(0) }
    }

    /// Begins to wait.
    pub(crate) fn listen(self: &Arc<Self>, key: Key) -> Listener {
        self.listening.fetch_add(1, Ordering::SeqCst);
        let mut waiters = self.waiters.lock();
        let ticket = waiters.next;
        waiters.next += 1;
        waiters.by_key.insert((key, ticket), None);
        Listener { waits: self.clone(), key, ticket, heard: false }
    }

    /// Wakes the `n` who have waited longest.
    pub(crate) fn wake(&self, key: Key, n: usize) {
        // Pairs with `listen`: a listener that is not seen here looks after this, and sees what the wake is about.
        if self.listening.load(Ordering::SeqCst) == 0 {
            return;
        }
        let mut wakers = Vec::new();
        {
            let mut waiters = self.waiters.lock();
            for _ in 0..n {
                let Some((&id, _)) = waiters.by_key.range((key, 0)..=(key, u64::MAX)).next() else { break };
                wakers.extend(waiters.by_key.remove(&id).expect("just seen"));
            }
        }
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Wakes all.
    pub(crate) fn wake_all(&self, key: Key) {
        self.wake(key, usize::MAX);
    }

    /// Waiters of all keys, for audits.
    pub(crate) fn len(&self) -> usize {
        self.listening.load(Ordering::SeqCst)
    }
}

/// Somebody who waits. A wake for one who leaves unheard goes to the next.
#[derive(Debug)]
pub(crate) struct Listener {
    waits: Arc<Waits>,
    key: Key,
    ticket: u64,
    heard: bool,
}

impl Future for Listener {
    type Output = ();
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mut waiters = self.waits.waiters.lock();
        match waiters.by_key.get_mut(&(self.key, self.ticket)) {
            Some(waker) => {
                *waker = Some(cx.waker().clone());
                Poll::Pending
            }
            None => {
                drop(waiters);
                self.heard = true;
                Poll::Ready(())
            }
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let gone = self.waits.waiters.lock().by_key.remove(&(self.key, self.ticket)).is_none();
        self.waits.listening.fetch_sub(1, Ordering::SeqCst);
        if gone && !self.heard {
            self.waits.wake(self.key, 1);
        }
    }
}
