//! A reader-writer lock that may be held across waits.

use super::bucket::{Fate, Given, Want};
use super::key::WaitKey;
use super::table::{Bucket, State, WaitTable, WakeBatch};
use crate::sync::{AtomicU32, Ordering};
use crate::{Nanos, WaitsOn};
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

/// A writer holds the lock.
const WRITER: u32 = 1 << 31;
/// A task is queued. While this is set, the word changes only under the bucket's lock.
const WAITED: u32 = 1 << 30;
/// The number of readers that hold the lock.
const READERS: u32 = WAITED - 1;

/// Distinguishes waits for a lock from other waits for the same number; flags use the numbers of
/// bits.
const LOCK_EVENT: u8 = u8::MAX - 1;

/// A reader-writer lock that may be held across waits.
///
/// Tasks get the lock in order of arrival: consecutive readers share it, and no later reader
/// overtakes a writer. A task is only woken when it gets the lock.
///
/// A free lock is taken with one compare-and-swap. A waiting task has a place in the table the lock
/// was created with, and whoever releases the lock hands it over. A future that is dropped gives up
/// its place, or passes the lock on. A future that was given the lock might not be polled for long,
/// as in a `select!`. Then the lock goes to the next waiter after a while
/// ([`WaitTable::with_patience`]). When the future is polled, it gets its old place in the queue
/// back, and twice as much time as before. A guard, in contrast, can be kept for any time.
///
/// ```
/// use extant_rt::{RwLock, Rt, WaitConfig, WaitTable};
/// use std::sync::Arc;
///
/// let rt = Rt::real(Default::default());
/// let table = Arc::new(WaitTable::new(&rt, WaitConfig::new("inodes")));
/// let lock = RwLock::new(&table);
/// rt.block_on(async {
///     let readers = (lock.read().await, lock.read().await);
///     assert!(lock.try_write().is_none());
///     drop(readers);
///     let _writer = lock.write().await;
///     assert!(lock.try_read().is_none());
/// })
/// .unwrap();
/// ```
pub struct RwLock {
    table: Arc<WaitTable>,
    number: u64,
    word: AtomicU32,
}

/// How a lock is held.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    Read,
    Write,
}

impl Mode {
    fn want(self) -> Want {
        match self {
            Self::Read => Want::Share,
            Self::Write => Want::Lock,
        }
    }

    fn of(want: Want) -> Self {
        if want == Want::Share { Self::Read } else { Self::Write }
    }

    /// What a holder adds to the word.
    fn held(self) -> u32 {
        match self {
            Self::Read => 1,
            Self::Write => WRITER,
        }
    }

    /// Whether this mode is compatible with the lock's current holders.
    fn fits(self, word: u32) -> bool {
        match self {
            Self::Read => {
                assert!(word & READERS < READERS, "fewer than a thousand million readers");
                word & WRITER == 0
            }
            Self::Write => word & (WRITER | READERS) == 0,
        }
    }
}

impl RwLock {
    /// An unlocked lock. Its waiters use `table`, which must have the keyed discipline.
    pub fn new(table: &Arc<WaitTable>) -> Self {
        assert_eq!(table.config.discipline, super::Discipline::Keyed, "locks are handed over in order");
        Self { table: table.clone(), number: table.next_lock(), word: AtomicU32::new(0) }
    }

    /// Takes it for reading if no writer holds it and no one waits for it.
    #[inline]
    pub fn try_read(&self) -> Option<ReadGuard<'_>> {
        self.try_take(Mode::Read).then(|| ReadGuard(self))
    }

    /// Takes it for writing if it is free and no one waits for it.
    #[inline]
    pub fn try_write(&self) -> Option<WriteGuard<'_>> {
        self.try_take(Mode::Write).then(|| WriteGuard(self))
    }

    /// Waits for it and takes it for reading.
    pub async fn read(&self) -> ReadGuard<'_> {
        Taking { lock: self, mode: Mode::Read, slot: None }.await;
        ReadGuard(self)
    }

    /// Waits for it and takes it for writing.
    pub async fn write(&self) -> WriteGuard<'_> {
        Taking { lock: self, mode: Mode::Write, slot: None }.await;
        WriteGuard(self)
    }

    fn key(&self) -> WaitKey {
        WaitKey { object: self.number, event: LOCK_EVENT }
    }

    fn bucket(&self) -> &Bucket {
        self.table.bucket(self.key())
    }

    #[inline]
    fn try_take(&self, mode: Mode) -> bool {
        let mut seen = self.word.load(Ordering::Relaxed);
        while mode.fits(seen) && seen & WAITED == 0 {
            let taken = seen + mode.held();
            match self.word.compare_exchange_weak(seen, taken, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(now) => seen = now,
            }
        }
        false
    }

    /// Like [`Self::try_take`]; if that fails, marks the lock as waited for. Called under the
    /// bucket's lock.
    fn take_or_wait(&self, mode: Mode) -> bool {
        let mut seen = self.word.load(Ordering::Relaxed);
        loop {
            let fits = mode.fits(seen) && seen & WAITED == 0;
            let next = if fits { seen + mode.held() } else { seen | WAITED };
            match self.word.compare_exchange_weak(seen, next, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return fits,
                Err(now) => seen = now,
            }
        }
    }

    #[inline]
    fn give_back(&self, mode: Mode) {
        let mut seen = self.word.load(Ordering::Relaxed);
        while seen & WAITED == 0 {
            let left = seen - mode.held();
            match self.word.compare_exchange_weak(seen, left, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => seen = now,
            }
        }
        self.give_back_slowly(mode);
    }

    #[cold]
    fn give_back_slowly(&self, mode: Mode) {
        self.change(|state| {
            let _ = state;
            self.left(mode);
        });
    }

    /// Removes a holder. Called under the bucket's lock if anyone waits.
    fn left(&self, mode: Mode) {
        // Acquire too: what earlier holders did is passed to the next one through the bucket's
        // lock.
        let before = self.word.fetch_sub(mode.held(), Ordering::AcqRel);
        assert!(before & (WRITER | READERS) >= mode.held(), "only what is held is given back");
    }

    /// Makes a change under the bucket's lock, then hands the lock to the waiters that can now have
    /// it.
    fn change(&self, change: impl FnOnce(&mut State)) {
        // Dropped last, outside the bucket's lock.
        let mut batch = self.table.batch();
        let mut state = self.bucket().state.lock();
        change(&mut state);
        while !self.hand_on(&mut state, &mut batch) {
            drop(state);
            batch.flush();
            state = self.bucket().state.lock();
        }
        let is_watched = self.is_to_be_watched(&mut state);
        drop(state);
        drop(batch);
        if is_watched {
            self.table.watch();
        }
    }

    /// Gives the lock to the waiters at the front of the queue that can hold it together. Returns
    /// false if the batch has no room for more.
    fn hand_on(&self, state: &mut State, batch: &mut WakeBatch<'_>) -> bool {
        let key = self.key();
        loop {
            let Some((slot, want)) = state.waiters.first_locked(key) else {
                self.word.fetch_and(!WAITED, Ordering::Relaxed);
                return true;
            };
            let mode = Mode::of(want);
            // No one else changes the word while a task is queued.
            if !mode.fits(self.word.load(Ordering::Relaxed)) {
                return true;
            }
            self.word.fetch_add(mode.held(), Ordering::Acquire);
            state.stats.handed_over += 1;
            let at = self.table.rt.now().saturating_add(self.grace(state.waiters.losses(slot)));
            state.given.push(Given { slot, key, at, is_told: false });
            if let Some(waker) = state.waiters.serve(slot, Fate::Served)
                && !batch.push(waker)
            {
                return false;
            }
        }
    }

    /// Extra time that a waiter may leave the lock unused after losing it this many times. The time
    /// doubles at each loss, so that a waiter whose task is always slow gets the lock in the end.
    fn grace(&self, losses: u32) -> Nanos {
        let factor = 1_u64.checked_shl(losses).map_or(u64::MAX, |doubled| doubled - 1);
        Nanos(self.table.watchdog.patience().0.saturating_mul(factor))
    }

    /// Takes the lock back from waiters that got it a while ago and have not picked it up, if
    /// others wait.
    fn take_back(&self, state: &mut State) {
        if state.given.is_empty() {
            return;
        }
        let key = self.key();
        let State { waiters, given, .. } = state;
        if waiters.first_locked(key).is_some() {
            given.retain(|given| {
                let is_overdue = given.key == key && self.table.watchdog.is_overdue(given.at);
                if is_overdue {
                    waiters.unserve(given.slot);
                    self.left(Mode::of(waiters.want(given.slot)));
                }
                !is_overdue
            });
        }
    }

    /// Whether others wait for a lock that a waiter was given but has not picked up yet.
    fn is_to_be_watched(&self, state: &mut State) -> bool {
        let key = self.key();
        let mut given = state.given.iter().filter(|given| given.key == key && !given.is_told);
        given.next().is_some() && state.waiters.first_locked(key).is_some()
    }
}

impl fmt::Debug for RwLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RwLock({} of {})", self.number, self.table.config.name)
    }
}

/// The lock held for reading, until dropped.
#[must_use = "it is given back when this is dropped"]
#[derive(Debug)]
pub struct ReadGuard<'a>(&'a RwLock);

impl Drop for ReadGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.give_back(Mode::Read);
    }
}

/// The lock held for writing, until dropped.
#[must_use = "it is given back when this is dropped"]
#[derive(Debug)]
pub struct WriteGuard<'a>(&'a RwLock);

impl Drop for WriteGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.give_back(Mode::Write);
    }
}

/// A wait for the lock; the owner holds the lock once this is ready.
struct Taking<'a> {
    lock: &'a RwLock,
    mode: Mode,
    /// Its place among the waiters.
    slot: Option<u32>,
}

impl Taking<'_> {
    #[cold]
    fn poll_slowly(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let (lock, mode) = (self.lock, self.mode);
        // Dropped outside the bucket's lock, in this order.
        let mut batch = lock.table.batch();
        let mut replaced: Option<Waker> = None;
        let mut state = lock.bucket().state.lock();
        let slot = match self.slot {
            None if lock.take_or_wait(mode) => return Poll::Ready(()),
            None => {
                state.stats.waits += 1;
                *self.slot.insert(state.waiters.add(lock.key(), mode.want(), cx.waker().clone()))
            }
            Some(slot) => {
                match state.waiters.fate(slot) {
                    Fate::Served => {
                        self.leave(&mut state, slot);
                        return Poll::Ready(());
                    }
                    Fate::Waiting => replaced = state.waiters.set_waker(slot, cx.waker()),
                    // This waiter was given the lock but picked it up too late.
                    Fate::Poked if lock.take_or_wait(mode) => {
                        self.leave(&mut state, slot);
                        return Poll::Ready(());
                    }
                    Fate::Poked => {
                        state.stats.spurious += 1;
                        state.waiters.add_in_order(slot, cx.waker().clone());
                    }
                }
                slot
            }
        };
        lock.take_back(&mut state);
        while !lock.hand_on(&mut state, &mut batch) {
            drop(state);
            batch.flush();
            state = lock.bucket().state.lock();
        }
        let is_given = state.waiters.fate(slot) == Fate::Served;
        if is_given {
            self.leave(&mut state, slot);
        }
        let is_watched = lock.is_to_be_watched(&mut state);
        drop(state);
        drop((replaced, batch));
        if is_watched {
            lock.table.watch();
        }
        if is_given {
            return Poll::Ready(());
        }
        let (table, key) = (lock.table.config.name, lock.number);
        lock.table.rt.waits_on(|| WaitsOn::Lock { table, key });
        Poll::Pending
    }

    /// Takes the lock it was given.
    fn leave(&mut self, state: &mut State, slot: u32) {
        state.given.retain(|given| given.slot != slot);
        // A waiter that was woken no longer has a waker.
        state.waiters.remove(slot);
        self.slot = None;
    }
}

impl Future for Taking<'_> {
    type Output = ();

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.slot.is_none() && self.lock.try_take(self.mode) {
            return Poll::Ready(());
        }
        self.poll_slowly(cx)
    }
}

impl Drop for Taking<'_> {
    fn drop(&mut self) {
        let Some(slot) = self.slot.take() else { return };
        let lock = self.lock;
        let mut waker = None;
        lock.change(|state| {
            state.stats.cancelled += 1;
            if state.waiters.fate(slot) == Fate::Served {
                // The next waiter gets the lock instead.
                state.given.retain(|given| given.slot != slot);
                lock.left(self.mode);
            }
            waker = state.waiters.remove(slot);
        });
        drop(waker);
    }
}
