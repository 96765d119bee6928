//! A lock for readers and writers that is held across waits.

use super::bucket::{Fate, Given, Want};
use super::key::WaitKey;
use super::table::{Bucket, State, WaitTable, WakeBatch};
use crate::WaitsOn;
use crate::sync::{AtomicU32, Ordering};
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

/// A writer has it.
const WRITER: u32 = 1 << 31;
/// Somebody is queued. While it is set the word changes under the bucket's lock alone.
const WAITED: u32 = 1 << 30;
/// How many readers have it.
const READERS: u32 = WAITED - 1;

/// What the waits for a lock are told apart by from other waits for the same number; flags have the numbers of bits.
const LOCK_EVENT: u8 = u8::MAX - 1;

/// A lock for readers and writers, held across waits, whose takers get it in the order in which they came: readers that came
/// one after the other share it, and no later one overtakes a writer. Nobody is woken who does not get it.
///
/// Free, it is taken by one compare-and-swap. A task that waits has a place in the table that the lock was made with, and is
/// given the lock by whoever gives it back. A future that is dropped leaves its place, or passes on what it was given. One that
/// was given the lock and is not polled, as a `select!` may keep it, has it taken back and given to the next after a while
/// ([`WaitTable::with_patience`]), and queues again when it is polled. Only a guard is kept for as long as its owner likes.
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

    /// Whether the lock can be had beside those who have it.
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
    /// Free; those who wait for it do so in `table`, which is of the keyed discipline.
    pub fn new(table: &Arc<WaitTable>) -> Self {
        assert_eq!(table.config.discipline, super::Discipline::Keyed, "locks are handed over in order");
        Self { table: table.clone(), number: table.next_lock(), word: AtomicU32::new(0) }
    }

    /// Takes it for reading if it is free for that and nobody waits for it.
    #[inline]
    pub fn try_read(&self) -> Option<ReadGuard<'_>> {
        self.try_take(Mode::Read).then(|| ReadGuard(self))
    }

    /// Takes it for writing if it is free and nobody waits for it.
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

    /// As [`Self::try_take`]; else it counts as waited for from now on. Under the bucket's lock.
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

    /// A holder has gone. Under the bucket's lock, where somebody waits.
    fn left(&self, mode: Mode) {
        // Acquire, too: what holders did that went before is passed on to the next, through the bucket's lock.
        let before = self.word.fetch_sub(mode.held(), Ordering::AcqRel);
        assert!(before & (WRITER | READERS) >= mode.held(), "only what is held is given back");
    }

    /// Makes a change under the bucket's lock, and gives the lock to those who can have it after that.
    fn change(&self, change: impl FnOnce(&mut State)) {
        // Dropped last, without the bucket's lock.
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

    /// Gives the lock to those who can have it, the first ones of the queue. False where the batch has no room for more.
    fn hand_on(&self, state: &mut State, batch: &mut WakeBatch<'_>) -> bool {
        let key = self.key();
        loop {
            let Some((slot, want)) = state.waiters.first_locked(key) else {
                self.word.fetch_and(!WAITED, Ordering::Relaxed);
                return true;
            };
            let mode = Mode::of(want);
            // Nobody else changes it as long as somebody is queued.
            if !mode.fits(self.word.load(Ordering::Relaxed)) {
                return true;
            }
            self.word.fetch_add(mode.held(), Ordering::Acquire);
            state.stats.handed_over += 1;
            state.given.push(Given { slot, key, at: self.table.rt.now(), is_told: false });
            if let Some(waker) = state.waiters.serve(slot, Fate::Served)
                && !batch.push(waker)
            {
                return false;
            }
        }
    }

    /// Takes back what was given to others a while ago, who have not come for it, where somebody waits.
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

    /// Whether somebody waits for a lock that was given to another who has not come for it yet.
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

/// A lock that is held for reading, until it is dropped.
#[must_use = "it is given back when this is dropped"]
#[derive(Debug)]
pub struct ReadGuard<'a>(&'a RwLock);

impl Drop for ReadGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.give_back(Mode::Read);
    }
}

/// A lock that is held for writing, until it is dropped.
#[must_use = "it is given back when this is dropped"]
#[derive(Debug)]
pub struct WriteGuard<'a>(&'a RwLock);

impl Drop for WriteGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.give_back(Mode::Write);
    }
}

/// A wait for the lock, which is its owner's when this is ready.
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
        // Dropped without the bucket's lock, in this order.
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
                    // It was given the lock and came too late for it.
                    Fate::Poked if lock.take_or_wait(mode) => {
                        self.leave(&mut state, slot);
                        return Poll::Ready(());
                    }
                    Fate::Poked => {
                        state.stats.spurious += 1;
                        state.waiters.add_again(slot, cx.waker().clone());
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

    /// Takes what it was given.
    fn leave(&mut self, state: &mut State, slot: u32) {
        state.given.retain(|given| given.slot != slot);
        // A waiter that was woken has no waker any more.
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
                // The next one has it instead.
                state.given.retain(|given| given.slot != slot);
                lock.left(self.mode);
            }
            waker = state.waiters.remove(slot);
        });
        drop(waker);
    }
}
