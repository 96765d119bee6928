//! Waiting for a key: a page that is loaded, frames, room for dirty pages, the end of write-back.
//!
//! A waiter listens first, looks at what it waits for, and then awaits; a wake in between is not lost. A wake visits the
//! waiters of its own key only.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};

const SHARDS: usize = 64;

/// What is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Key {
    /// The page was loaded, or could not be.
    Page(u64),
    /// Write-back of pages of this file ended.
    Writeback(u32),
    /// Frames became free, or evictable.
    Frames,
    /// Dirty pages were cleaned: anywhere, or on this device.
    Room(Option<u32>),
    /// The flusher of this device has something to do.
    Flusher(u32),
}

impl Key {
    fn shard(self) -> usize {
        let number = match self {
            Self::Page(page) => page,
            Self::Writeback(file) => u64::from(file) + 7,
            Self::Frames => 1,
            Self::Room(device) => device.map_or(2, |n| 3 + u64::from(n)),
            Self::Flusher(device) => 11 + u64::from(device),
        };
        (crate::page::mix(number) % SHARDS as u64) as usize
    }
}

#[derive(Debug, Default)]
struct Shard {
    next: u64,
    waiters: BTreeMap<(Key, u64), Option<Waker>>,
}

#[derive(Debug)]
pub(crate) struct Waits {
    shards: Box<[Mutex<Shard>]>,
    /// Who waits for frames, to spare those who free them the lock.
    listening: AtomicUsize,
}

impl Waits {
    pub(crate) fn new() -> Self {
        Self { shards: (0..SHARDS).map(|_| Mutex::default()).collect(), listening: AtomicUsize::new(0) }
    }

    /// Begins to wait.
    pub(crate) fn listen(self: &Arc<Self>, key: Key) -> Listener {
        self.listening.fetch_add(1, Ordering::SeqCst);
        let mut shard = self.shards[key.shard()].lock();
        let ticket = shard.next;
        shard.next += 1;
        shard.waiters.insert((key, ticket), None);
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
            let mut shard = self.shards[key.shard()].lock();
            for _ in 0..n {
                let Some((&id, _)) = shard.waiters.range((key, 0)..=(key, u64::MAX)).next() else { break };
                wakers.extend(shard.waiters.remove(&id).expect("just seen"));
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
        let mut shard = self.waits.shards[self.key.shard()].lock();
        match shard.waiters.get_mut(&(self.key, self.ticket)) {
            Some(waker) => {
                *waker = Some(cx.waker().clone());
                Poll::Pending
            }
            None => {
                drop(shard);
                self.heard = true;
                Poll::Ready(())
            }
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let gone =
            self.waits.shards[self.key.shard()].lock().waiters.remove(&(self.key, self.ticket)).is_none();
        self.waits.listening.fetch_sub(1, Ordering::SeqCst);
        if gone && !self.heard {
            self.waits.wake(self.key, 1);
        }
    }
}
