//! The waiting futures.

use super::bucket::{Fate, Want};
use super::key::{Flag, WaitKey};
use super::table::{State, WaitTable};
use crate::sync::{AtomicU32, Ordering, fence};
use crate::{Cost, Nanos, TaskEvent, WaitsOn};
use std::future::Future;
use std::ops::DerefMut;
use std::pin::Pin;
use std::task::{Context, Poll};

/// A place in a queue of the table, once one is needed.
pub(super) struct Ticket<'a> {
    table: &'a WaitTable,
    key: WaitKey,
    slot: Option<u32>,
    /// Set only while a trace is being recorded.
    since: Option<Nanos>,
    spurious: u32,
}

/// What being served means.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Served {
    /// The wait is over.
    IsFinal,
    /// The waiter checks again.
    IsNews,
}

impl<'a> Ticket<'a> {
    pub(super) fn new(table: &'a WaitTable, key: WaitKey) -> Self {
        Self { table, key, slot: None, since: None, spurious: 0 }
    }

    /// Waits until `claim`, called under the bucket's lock, returns true; or until served, if that
    /// is final.
    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        want: Want,
        served: Served,
        mut claim: impl FnMut() -> bool,
    ) -> Poll<()> {
        let table = self.table;
        let bucket = table.bucket(self.key);
        if self.slot.is_none() {
            bucket.tickets.fetch_add(1, Ordering::Relaxed);
            // Pairs with the fence in `WakeBatch::wake`.
            fence(Ordering::SeqCst);
        }
        let mut state = bucket.state.lock();
        match self.slot {
            None => {
                if claim() {
                    drop(state);
                    bucket.tickets.fetch_sub(1, Ordering::Relaxed);
                    return Poll::Ready(());
                }
                state.stats.waits += 1;
                self.slot = Some(state.waiters.add(self.key, want, cx.waker().clone()));
            }
            Some(slot) => match state.waiters.fate(slot) {
                Fate::Waiting => {
                    let old = state.waiters.set_waker(slot, cx.waker());
                    drop(state);
                    drop(old);
                    self.tell(want);
                    return Poll::Pending;
                }
                Fate::Served if served == Served::IsFinal => {
                    self.leave(state, slot);
                    return Poll::Ready(());
                }
                Fate::Served | Fate::Poked if claim() => {
                    self.leave(state, slot);
                    return Poll::Ready(());
                }
                Fate::Served | Fate::Poked => {
                    state.stats.spurious += 1;
                    self.spurious += 1;
                    state.waiters.add_again(slot, cx.waker().clone());
                }
            },
        }
        drop(state);
        let rt = &table.rt;
        rt.charge(Cost::WaitQueue(1));
        if rt.is_tracing() && self.since.is_none() {
            self.since = Some(rt.now());
        }
        self.tell(want);
        Poll::Pending
    }

    fn leave(&mut self, mut state: impl DerefMut<Target = State>, slot: u32) {
        state.waiters.remove(slot);
        drop(state);
        self.slot = None;
        self.table.bucket(self.key).tickets.fetch_sub(1, Ordering::Relaxed);
        if let Some(since) = self.since {
            let rt = &self.table.rt;
            let took = rt.now().saturating_sub(since);
            rt.trace(TaskEvent::Waited { key: self.key.object, took, spurious: self.spurious });
        }
    }

    fn tell(&self, want: Want) {
        let (table, key) = (self.table.config.name, self.key.object);
        self.table.rt.waits_on(|| match want {
            Want::News => WaitsOn::Key { table, key },
            Want::Lock | Want::Share => WaitsOn::Lock { table, key },
        });
    }

    /// Leaves the queue. Returns whether the ticket had been served without its owner noticing.
    fn cancel(&mut self) -> bool {
        let Some(slot) = self.slot.take() else { return false };
        let bucket = self.table.bucket(self.key);
        let (fate, waker) = {
            let mut state = bucket.state.lock();
            let fate = state.waiters.fate(slot);
            state.stats.cancelled += 1;
            (fate, state.waiters.remove(slot))
        };
        bucket.tickets.fetch_sub(1, Ordering::Relaxed);
        drop(waker);
        fate == Fate::Served
    }
}

impl WaitTable {
    /// Waits until `ready` returns true.
    ///
    /// It is called at once, then again under the bucket's lock, where it must neither wait nor use
    /// the table, and then after each [`wake`](Self::wake) of the key.
    ///
    /// The code that makes the condition true does that first, with an atomic or under a lock that
    /// `ready` takes, and wakes afterwards.
    pub fn wait_until<F: FnMut() -> bool + Unpin>(&self, key: WaitKey, ready: F) -> Wait<'_, F> {
        Wait { ticket: Ticket::new(self, key), ready }
    }

    /// Waits while the flag is set: until it is [cleared](Self::clear), even if it has been set
    /// again by the time the waiter runs.
    pub fn wait_while<'a>(&'a self, object: u64, word: &'a AtomicU32, flag: Flag) -> WaitWhile<'a> {
        WaitWhile { ticket: Ticket::new(self, flag.key(object)), word, flag }
    }

    /// Waits for the lock and takes it.
    ///
    /// The unlock hands it to the waiters one at a time, in order of arrival. A future dropped
    /// after it was given the lock, but before it was polled again, passes the lock on.
    pub fn lock<'a>(&'a self, object: u64, word: &'a AtomicU32, flag: Flag) -> Lock<'a> {
        Lock { ticket: Ticket::new(self, flag.key(object)), word, flag }
    }
}

/// See [`WaitTable::wait_until`].
#[must_use = "a wait does nothing unless it is awaited"]
pub struct Wait<'a, F> {
    pub(super) ticket: Ticket<'a>,
    pub(super) ready: F,
}

impl<F: FnMut() -> bool + Unpin> Future for Wait<'_, F> {
    type Output = ();
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        if this.ticket.slot.is_none() && (this.ready)() {
            return Poll::Ready(());
        }
        this.ticket.poll(cx, Want::News, Served::IsNews, &mut this.ready)
    }
}

impl<F> Drop for Wait<'_, F> {
    fn drop(&mut self) {
        self.ticket.cancel();
    }
}

/// See [`WaitTable::wait_while`].
#[must_use = "a wait does nothing unless it is awaited"]
pub struct WaitWhile<'a> {
    pub(super) ticket: Ticket<'a>,
    pub(super) word: &'a AtomicU32,
    pub(super) flag: Flag,
}

impl Future for WaitWhile<'_> {
    type Output = ();
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let (word, flag) = (self.word, self.flag);
        if self.ticket.slot.is_none() && word.load(Ordering::Acquire) & flag.mask() == 0 {
            return Poll::Ready(());
        }
        self.ticket.poll(cx, Want::News, Served::IsFinal, || {
            if word.fetch_or(flag.waited_mask(), Ordering::Acquire) & flag.mask() != 0 {
                return false;
            }
            // Nothing else waits for a flag that is not set, and no wait can begin before the
            // bucket is unlocked.
            word.fetch_and(!flag.waited_mask(), Ordering::Relaxed);
            true
        })
    }
}

impl Drop for WaitWhile<'_> {
    fn drop(&mut self) {
        self.ticket.cancel();
    }
}

/// See [`WaitTable::lock`].
#[must_use = "a lock is not taken unless this is awaited"]
pub struct Lock<'a> {
    pub(super) ticket: Ticket<'a>,
    pub(super) word: &'a AtomicU32,
    pub(super) flag: Flag,
}

impl Future for Lock<'_> {
    type Output = ();
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let (word, flag) = (self.word, self.flag);
        if self.ticket.slot.is_none() && self.ticket.table.try_lock(word, flag) {
            return Poll::Ready(());
        }
        self.ticket.poll(cx, Want::Lock, Served::IsFinal, || {
            // If the lock was free, this future has it now, and no one waits for it yet.
            let both = flag.mask() | flag.waited_mask();
            if word.fetch_or(both, Ordering::Acquire) & flag.mask() != 0 {
                return false;
            }
            word.fetch_and(!flag.waited_mask(), Ordering::Relaxed);
            true
        })
    }
}

impl Drop for Lock<'_> {
    fn drop(&mut self) {
        if self.ticket.cancel() {
            self.ticket.table.unlock(self.ticket.key.object, self.word, self.flag);
        }
    }
}
