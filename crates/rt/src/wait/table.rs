//! The table: buckets, and how wake-ups find waiters.

use super::bucket::{Given, Progress, Waiters};
use super::key::{Flag, WaitKey};
use super::{Discipline, WaitConfig};
use crate::sync::{AtomicU32, Mutex, Ordering, fence};
use crate::{Cost, Nanos, Rt, TaskEvent, Watchdog};
use std::fmt;
use std::sync::atomic::AtomicU64;
use std::task::Waker;

/// Counts of a table so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WaitStats {
    /// Waits.
    pub waits: u64,
    /// Wake-ups that looked into the table.
    pub wakes: u64,
    /// Waiters those wake-ups examined.
    pub examined: u64,
    /// Waiters those wake-ups woke.
    pub woken: u64,
    /// Spurious wake-ups: the waiter checked for itself and had to go on waiting.
    pub spurious: u64,
    /// Locks handed from holder to waiter.
    pub handed_over: u64,
    /// Waits that were cancelled.
    pub cancelled: u64,
}

/// Waiters by key; see the [module](super).
pub struct WaitTable {
    pub(super) rt: Rt,
    pub(super) config: WaitConfig,
    pub(super) buckets: Box<[Bucket]>,
    /// Number of locks so far.
    locks: AtomicU64,
    pub(super) watchdog: Watchdog,
}

/// Each bucket has its own cache line, because different processors use neighbouring buckets.
#[repr(align(128))]
pub(super) struct Bucket {
    /// Number of tickets in the bucket, so that a wake-up without waiters takes no lock.
    pub(super) tickets: AtomicU32,
    pub(super) state: Mutex<State>,
}

pub(super) struct State {
    pub(super) waiters: Waiters,
    /// Locks given to waiters that have not picked them up yet.
    pub(super) given: Vec<Given>,
    pub(super) stats: WaitStats,
}

impl WaitTable {
    /// An empty table.
    pub fn new(rt: &Rt, config: WaitConfig) -> Self {
        assert!((1..=16).contains(&config.bucket_bits), "a table has 2 to 65,536 buckets");
        let bucket = |_| Bucket {
            tickets: AtomicU32::new(0),
            state: Mutex::new(State {
                waiters: Waiters::new(config.discipline),
                given: Vec::new(),
                stats: WaitStats::default(),
            }),
        };
        let buckets = (0..1_u32 << config.bucket_bits).map(bucket).collect();
        let watchdog = Watchdog::new(rt, Watchdog::PATIENCE);
        Self { rt: rt.clone(), config, buckets, locks: AtomicU64::new(0), watchdog }
    }

    /// Sets the patience. A waiter that was given an [`RwLock`](super::RwLock) may leave it unused
    /// at least this long while others wait; after that the lock goes to the next waiter. It should
    /// be longer than a task usually waits for a processor.
    #[must_use]
    pub fn with_patience(mut self, patience: Nanos) -> Self {
        self.watchdog = Watchdog::new(&self.rt, patience);
        self
    }

    /// A lock number that is unique within this table.
    pub(super) fn next_lock(&self) -> u64 {
        self.locks.fetch_add(1, Ordering::Relaxed)
    }

    pub(super) fn bucket(&self, key: WaitKey) -> &Bucket {
        &self.buckets[self.config.hash.bucket(key.object, self.config.bucket_bits)]
    }

    /// Counts of the table so far, over all buckets.
    pub fn stats(&self) -> WaitStats {
        let mut sum = WaitStats::default();
        for bucket in &self.buckets {
            let s = bucket.state.lock().stats;
            sum.waits += s.waits;
            sum.wakes += s.wakes;
            sum.examined += s.examined;
            sum.woken += s.woken;
            sum.spurious += s.spurious;
            sum.handed_over += s.handed_over;
            sum.cancelled += s.cancelled;
        }
        sum
    }

    /// Wakes all tasks that [wait](Self::wait_until) for the key. Costs a fence and a load if its
    /// bucket has no waiters.
    pub fn wake(&self, key: WaitKey) {
        self.batch().wake(key);
    }

    /// Clears the flag and wakes all tasks that [wait](Self::wait_while) for that. They see
    /// everything the caller wrote before.
    pub fn clear(&self, object: u64, word: &AtomicU32, flag: Flag) {
        self.batch().clear(object, word, flag);
    }

    /// Takes the lock if it is free. Never overtakes: a lock with waiters is not free.
    pub fn try_lock(&self, word: &AtomicU32, flag: Flag) -> bool {
        word.fetch_or(flag.mask(), Ordering::Acquire) & flag.mask() == 0
    }

    /// Releases the lock, handing it to the first task that waits for it, if any. Tasks that wait
    /// [while](Self::wait_while) it is locked are all woken.
    ///
    /// The caller must hold the lock; this is asserted.
    pub fn unlock(&self, object: u64, word: &AtomicU32, flag: Flag) {
        self.batch().unlock(object, word, flag);
    }

    /// Combines several wake-ups, as at the end of a bio with many pages. Tasks are woken when the
    /// batch is dropped, or has collected many, after the last bucket lock is released.
    pub fn batch(&self) -> WakeBatch<'_> {
        WakeBatch { table: self, woken: 0, wakers: [const { None }; ROOM], filled: 0 }
    }
}

impl fmt::Debug for WaitTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WaitTable({}, {:?})", self.config.name, self.stats())
    }
}

/// Wakers a batch collects before it wakes them. Few, since a batch of one must be quick to create
/// and drop.
const ROOM: usize = 8;

/// Collected wake-ups; see [`WaitTable::batch`].
#[must_use = "wakes its waiters when it is dropped"]
pub struct WakeBatch<'a> {
    table: &'a WaitTable,
    woken: u32,
    wakers: [Option<Waker>; ROOM],
    filled: usize,
}

impl WakeBatch<'_> {
    /// As [`WaitTable::wake`].
    pub fn wake(&mut self, key: WaitKey) {
        let bucket = self.table.bucket(key);
        // Pairs with the fence in `Ticket::poll`: a waiter not seen here checks after this fence,
        // and sees what our caller did. Otherwise the bucket's lock decides: the waiter checks its
        // condition under that lock. So either it sees the change, or we see the waiter.
        fence(Ordering::SeqCst);
        if bucket.tickets.load(Ordering::Relaxed) == 0 {
            return self.tell(key, 0, 0);
        }
        self.wake_in(bucket, key, |_, _| None);
    }

    /// As [`WaitTable::clear`].
    pub fn clear(&mut self, object: u64, word: &AtomicU32, flag: Flag) {
        if !released_unwaited(word, flag) {
            let bucket = self.table.bucket(flag.key(object));
            self.wake_in(bucket, flag.key(object), |_, _| {
                word.fetch_and(!(flag.mask() | flag.waited), Ordering::Release);
                None
            });
        }
    }

    /// As [`WaitTable::unlock`].
    pub fn unlock(&mut self, object: u64, word: &AtomicU32, flag: Flag) {
        assert_ne!(word.load(Ordering::Relaxed) & flag.mask(), 0, "only the holder of a lock gives it back");
        if released_unwaited(word, flag) {
            return;
        }
        let key = flag.key(object);
        let bucket = self.table.bucket(key);
        if self.table.config.discipline != Discipline::Keyed {
            return self.wake_in(bucket, key, |_, _| {
                word.fetch_and(!(flag.mask() | flag.waited), Ordering::Release);
                None
            });
        }
        self.wake_in(bucket, key, |state, progress| {
            // With an heir the lock stays taken: it changes hands under the bucket's lock.
            let heir = state.waiters.hand_over(key, progress);
            let taken = if heir.is_some() { 0 } else { flag.mask() };
            state.stats.handed_over += u64::from(heir.is_some());
            let waited = if state.waiters.is_locked_for(key) { 0 } else { flag.waited };
            word.fetch_and(!(taken | waited), Ordering::Release);
            heir
        });
    }

    /// Wakes the waiters of a key after `change` has run under the bucket's lock, and also wakes
    /// the waker that it returns.
    fn wake_in(
        &mut self,
        bucket: &Bucket,
        key: WaitKey,
        change: impl FnOnce(&mut State, &mut Progress) -> Option<Waker>,
    ) {
        // Room for what `change` returns, and for one more.
        if self.filled + 2 > ROOM {
            self.flush();
        }
        let mut state = bucket.state.lock();
        let mut progress = state.waiters.begin();
        if let Some(waker) = change(&mut state, &mut progress) {
            self.push(waker);
        }
        while !state.waiters.wake(key, &mut progress, |waker| self.push(waker)) {
            drop(state);
            self.flush();
            state = bucket.state.lock();
        }
        let Progress { examined, woken, .. } = progress;
        state.stats.wakes += 1;
        state.stats.examined += u64::from(examined);
        state.stats.woken += u64::from(woken);
        drop(state);
        self.woken += woken;
        self.tell(key, examined, woken);
    }

    /// How many waiters this batch has woken so far.
    pub fn woken(&self) -> u32 {
        self.woken
    }

    fn tell(&self, key: WaitKey, examined: u32, woken: u32) {
        let rt = &self.table.rt;
        rt.charge(Cost::WaitScan(u64::from(examined)));
        rt.trace(TaskEvent::Woke { key: key.object, examined, woken });
    }

    /// Stores a waker; returns false when there is no room for another.
    pub(super) fn push(&mut self, waker: Waker) -> bool {
        self.wakers[self.filled] = Some(waker);
        self.filled += 1;
        self.filled < ROOM
    }

    /// Wakes all collected wakers.
    pub(super) fn flush(&mut self) {
        let filled = std::mem::take(&mut self.filled);
        for waker in self.wakers[..filled].iter_mut().filter_map(Option::take) {
            waker.wake();
        }
    }
}

impl Drop for WakeBatch<'_> {
    fn drop(&mut self) {
        self.flush();
    }
}

/// Clears the flag if no one waits for it.
fn released_unwaited(word: &AtomicU32, flag: Flag) -> bool {
    let mut seen = word.load(Ordering::Relaxed);
    while seen & flag.waited == 0 {
        match word.compare_exchange_weak(seen, seen & !flag.mask(), Ordering::Release, Ordering::Relaxed) {
            Ok(_) => return true,
            Err(now) => seen = now,
        }
    }
    false
}
