//! The journal (jbd2): transactions, commit and checkpoint.
//!
//! Kernel document: *Journal (jbd2)*. One transaction runs; operations join it through a [`Handle`], which promises at
//! most so many blocks ([`Credits`]) and never waits. A commit closes the running transaction, takes the version of each
//! block that it left, writes the log and then the commit block, behind a flush and through the device's cache. A
//! checkpoint writes committed versions home and moves the log's tail.
//!
//! Modules: `state` decides (pure: admission, tails, what may be written home and what may be allocated again),
//! `ring` is the log's arithmetic, `handle` what an operation sees; `commit` and `checkpoint` are the flows, driven by
//! the tasks that wait for them (`relay`); `log` puts blocks into the log, from which [`recovery`](crate::recovery) reads them back.
//!
//! A volume without a journal has the same handles; its commit writes home, in phases (`unlogged`).

mod accounts;
mod checkpoint;
mod commit;
mod flushes;
mod handle;
mod log;
mod relay;
mod release;
mod ring;
mod state;
#[cfg(test)]
mod tests;
mod unlogged;

pub(crate) use crate::meta::Tid;
pub(crate) use accounts::{Accounts, Charge, NEW_OWNER_BLOCKS, Owner};
pub(crate) use commit::STINT;
pub(crate) use handle::Handle;
pub(crate) use log::{LogDevice, LogMap, write_segments};
pub(crate) use release::{KeptOpen, discard_held};
pub(crate) use state::LOG_BLOCKS_MIN;

use crate::meta::{LockRank, MetaStore, PhysicalRun, Ranked, RankedGuard};
use crate::{Error, Result};
use commit::Versions;
use extant_cache::Disk;
use extant_format::VolumeBlock;
use extant_rt::{Nanos, Rt};
use parking_lot::Mutex;
use relay::{EVERY_END, Relay};
use state::{Admission, Running, State};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Poll, Waker};

/// Blocks that an operation may dirty, worst case: each block, and one for each inode, group and the superblock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Credits(pub(crate) u32);

/// Hears when a transaction is durable.
pub(crate) trait Listener: Send + Sync {
    /// `tid` is durable, and nothing is written to the blocks that it freed any more: they may be allocated again.
    fn released(&self, tid: Tid, freed: &[PhysicalRun]);
}

/// How a journal is run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct JournalOptions {
    /// Blocks that transactions and checkpoints may keep in memory.
    pub(crate) pinned_bytes_max: u64,
    /// A transaction is committed at this age, and checkpoints run in the background; `None` for an offline batch, in
    /// which nothing happens by itself.
    pub(crate) commit_interval: Option<Nanos>,
    /// Time stamps are this, seconds since 1970, instead of the clock's.
    pub(crate) fixed_time: Option<i64>,
}

/// The journal of a volume that is open for writing, or what stands in for it. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Journal {
    inner: Arc<Inner>,
}

struct Inner {
    rt: Rt,
    store: Arc<MetaStore>,
    /// The device in the page cache, for flushes.
    disk: Disk,
    /// Flushes of the device that had failed when the volume was opened.
    flush_failures: u64,
    /// Where the log lies; `None` for a volume without a journal.
    log: Option<LogDevice>,
    options: JournalOptions,
    state: Ranked<State>,
    /// The transaction whose commit failed, which pins what it changed.
    lost: Mutex<Option<(Running, Versions)>>,
    /// The log's superblock says that the journal gave up, or the device did not take that.
    failure_recorded: AtomicBool,
    waiters: Mutex<Vec<Waker>>,
    commits: Relay,
    checkpoints: Relay,
    listener: OnceLock<Arc<dyn Listener>>,
    /// The keeper of quotas, on a volume that has some.
    accounts: OnceLock<Arc<dyn Accounts>>,
    /// Freed blocks are discarded before they may be allocated again, until the device says that it cannot.
    discards: AtomicBool,
    background: background::Signals,
}

mod background;

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Journal(running {})", self.state.lock().running.tid)
    }
}

impl Journal {
    /// A journal whose log is empty, of a store on `disk`. `next` is the first transaction.
    pub(crate) fn new(
        rt: &Rt,
        store: Arc<MetaStore>,
        disk: &Disk,
        log: Option<LogDevice>,
        next: Tid,
        options: JournalOptions,
    ) -> Self {
        let block_bytes = store.blocks().block_bytes();
        let budget = (options.pinned_bytes_max / block_bytes as u64).min(1 << 24) as u32;
        let state = State::new(next, log.as_ref().map(|log| log.limits(block_bytes)), budget);
        let inner = Arc::new(Inner {
            rt: rt.clone(),
            store,
            disk: disk.clone(),
            flush_failures: disk.flush_failures(),
            log,
            options,
            state: Ranked::new(LockRank::Journal, state),
            lost: Mutex::default(),
            failure_recorded: AtomicBool::new(false),
            waiters: Mutex::default(),
            commits: Relay::new(rt),
            checkpoints: Relay::new(rt),
            listener: OnceLock::new(),
            accounts: OnceLock::new(),
            discards: AtomicBool::new(false),
            background: background::Signals::default(),
        });
        if let Some(interval) = options.commit_interval {
            background::spawn(&inner, interval);
        }
        Self { inner }
    }

    /// Sets the listener for durable transactions; once, by the allocator.
    pub(crate) fn set_listener(&self, listener: Arc<dyn Listener>) {
        let set = self.inner.listener.set(listener);
        assert!(set.is_ok(), "one listener");
    }

    /// Has commits charge changes of inodes to quotas; once, before the first handle is opened.
    pub(crate) fn set_accounts(&self, accounts: Arc<dyn Accounts>) {
        self.accounts_grew(accounts.blocks());
        let set = self.inner.accounts.set(accounts);
        assert!(set.is_ok(), "one keeper of quotas");
    }

    /// Quotas lie in so many blocks now.
    pub(crate) fn accounts_grew(&self, blocks: u32) {
        self.inner.lock().set_quota_blocks(blocks);
    }

    /// Has freed blocks discarded from now on, once nothing after a crash leads to them.
    pub(crate) fn discard_freed(&self) {
        self.inner.discards.store(true, Ordering::Relaxed);
    }

    /// Opens a handle for an operation that dirties at most `credits`. Waits for a commit, or for room in the log.
    ///
    /// # Errors
    /// [`Error::ReadOnly`] after a failure; [`Error::NoSpace`] where no transaction is ever that large.
    pub(crate) async fn start(&self, credits: Credits) -> Result<Handle> {
        loop {
            let admission = {
                let mut state = self.inner.state.lock();
                let admission = state.admit(credits.0)?;
                if admission == Admission::Enter {
                    return Ok(Handle::open(&self.inner, &mut state, credits));
                }
                admission
            };
            Box::pin(self.make_room(admission)).await?;
        }
    }

    /// Opens a handle if that needs no waiting.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub(crate) fn try_start(&self, credits: Credits) -> Result<Option<Handle>> {
        let mut state = self.inner.state.lock();
        Ok(match state.admit(credits.0)? {
            Admission::Enter => Some(Handle::open(&self.inner, &mut state, credits)),
            _ => None,
        })
    }

    /// Does what an admission asks for.
    async fn make_room(&self, admission: Admission) -> Result<()> {
        match admission {
            Admission::Enter | Admission::Drain => {
                self.inner.drained().await;
                Ok(())
            }
            Admission::Commit(tid) => self.commit(tid).await,
            Admission::Checkpoint => self.checkpoint().await,
        }
    }

    /// The transaction that an operation which starts now joins.
    pub(crate) fn running(&self) -> Tid {
        self.inner.state.lock().running.tid
    }

    /// Whether `tid` is the running transaction, and block `at` was allocated for metadata in it. On a volume without a journal.
    pub(crate) fn is_fresh(&self, tid: Tid, at: VolumeBlock) -> bool {
        let state = self.inner.state.lock();
        state.running.tid == tid && state.running.fresh.contains(&at.0)
    }

    /// The newest durable transaction.
    pub(crate) fn committed(&self) -> Tid {
        self.inner.state.lock().committed
    }

    /// How many flushes have begun: for [`Self::flush_since`], after data were written.
    pub(crate) fn flushes_begun(&self) -> u64 {
        self.inner.lock().flushes.begun()
    }

    /// Makes durable what was written when [`Self::flushes_begun`] gave `mark`: flushes the device unless a flush that
    /// began later has succeeded.
    ///
    /// # Errors
    /// Why the journal gave up, now or before; a failed flush ends writing.
    pub(crate) async fn flush_since(&self, mark: u64) -> Result<()> {
        self.inner.flush_since(mark).await
    }

    /// Makes every operation up to those of `upto` durable. The commit runs on the caller's task; callers that come while
    /// it runs share the next one. Costs nothing if `upto` is durable or empty; no flush either, then.
    ///
    /// # Errors
    /// Why the journal gave up. Nothing is written from then on.
    pub(crate) async fn commit(&self, upto: Tid) -> Result<()> {
        loop {
            {
                let mut state = self.inner.state.lock();
                if state.committed >= upto {
                    return Ok(());
                }
                if state.failure.is_some() || state.is_durable(upto) {
                    let outcome = state.check_alive();
                    drop(state);
                    // Other callers may have been left to this one, which begins no commit.
                    self.inner.commits.wake_all();
                    return outcome;
                }
                if state.close_running() {
                    self.inner.commits.start(commit::run(self.inner.clone()));
                }
            }
            self.inner.commits.join(upto.0).await;
        }
    }

    /// Waits until the allocator has everything that durable transactions freed: home writes in flight hold it back.
    ///
    /// # Errors
    /// Why the journal gave up.
    pub(crate) async fn released(&self) -> Result<()> {
        let inner = &*self.inner;
        loop {
            let held_back = {
                let state = inner.lock();
                state.check_alive()?;
                if state.has_released() && state.unreleased.is_empty() {
                    return Ok(());
                }
                !state.unreleased.is_empty()
            };
            let released = |state: &mut State| {
                let ended = state.has_released() && (state.unreleased.is_empty() || !held_back);
                (ended || state.failure.is_some()).then_some(())
            };
            if held_back {
                inner.driving(&inner.checkpoints, released).await;
            } else {
                inner.wait_until(released).await;
            }
        }
    }

    /// Keeps [`Self::close`] waiting until the result is dropped: for what is done to free blocks beside transactions.
    ///
    /// # Errors
    /// [`Error::ReadOnly`] once the journal is being closed, or gave up.
    pub(crate) fn keep_open(&self) -> Result<KeptOpen> {
        self.inner.keep_open()
    }

    /// Waits for a moment without discards of free blocks.
    pub(crate) async fn discards_ended(&self) {
        self.inner.wait_until(|state| (state.kept_open == 0).then_some(())).await;
    }

    /// Writes home what is committed, and frees its room in the log.
    ///
    /// # Errors
    /// Why the journal gave up.
    pub(crate) async fn checkpoint(&self) -> Result<()> {
        self.inner.clone().checkpoint_all().await
    }

    /// Commits what has been changed by now and writes it home: after a crash no replay writes to its blocks any more.
    ///
    /// # Errors
    /// Why the journal gave up.
    pub(crate) async fn commit_home(&self) -> Result<()> {
        self.commit(self.running()).await?;
        // A checkpoint that was under way may have begun before the commit.
        self.checkpoint().await?;
        self.checkpoint().await
    }

    /// Gives up: nothing is written from now on, writers get [`Error::ReadOnly`] and waiting syncs `cause`.
    pub(crate) fn latch(&self, cause: Error) {
        self.inner.latch(cause);
    }

    /// Records in the log's superblock that the journal gave up, once; see [`LogDevice`]. A device that does not take the
    /// record loses it.
    pub(crate) async fn record_failure(&self) {
        self.inner.record_failure().await;
    }

    /// Why the journal gave up, if it did.
    pub(crate) fn failure(&self) -> Option<Error> {
        self.inner.state.lock().failure.clone()
    }

    /// Commits and writes home everything and leaves an empty log; the caller clears the volume's flags after that. No
    /// handle is opened any more, and nothing is written afterwards, whatever open files of the volume live.
    ///
    /// # Errors
    /// Why the journal gave up, now or before.
    pub(crate) async fn close(&self) -> Result<()> {
        self.inner.lock().closing = true;
        self.inner.notify();
        let running = self.running();
        self.commit(running).await?;
        self.inner.background.close();
        self.inner.clone().empty_log().await?;
        // Discards in flight must end before the device is another's.
        self.inner.wait_until(|state| (state.has_released() && state.kept_open == 0).then_some(())).await;
        self.latch(Error::ReadOnly);
        Ok(())
    }

    /// Ends writing as a crash does: nothing is written from now on. A commit or checkpoint that no task drives any more is
    /// dropped: it would keep the journal, and with it the page cache.
    pub(crate) fn abandon(&self) {
        self.inner.background.close();
        self.inner.latch(Error::ReadOnly);
        self.inner.commits.end();
        self.inner.checkpoints.end();
    }

    /// Whether things happen by themselves: not in an offline batch.
    pub(crate) fn has_background(&self) -> bool {
        self.inner.options.commit_interval.is_some()
    }

    /// Seconds since 1970 for time stamps on disk.
    pub(crate) fn wall_clock(&self) -> i64 {
        self.inner.wall_clock()
    }
}

impl Inner {
    fn wall_clock(&self) -> i64 {
        self.options.fixed_time.unwrap_or_else(|| self.rt.wall_clock())
    }

    /// Something changed: everybody who waits looks again.
    fn notify(&self) {
        let waiters = std::mem::take(&mut *self.waiters.lock());
        waiters.into_iter().for_each(Waker::wake);
    }

    /// Waits until `ready` says so of the state; asked at once and after each [`Self::notify`].
    async fn wait_until<T>(&self, mut ready: impl FnMut(&mut State) -> Option<T>) -> T {
        poll_fn(|cx| {
            let mut state = self.state.lock();
            if let Some(value) = ready(&mut state) {
                return Poll::Ready(value);
            }
            // Under the state's lock, so that no change is missed.
            let mut waiters = self.waiters.lock();
            if !waiters.iter().any(|waker| waker.will_wake(cx.waker())) {
                waiters.push(cx.waker().clone());
            }
            Poll::Pending
        })
        .await
    }

    /// Waits until the running transaction is not closed any more. Drives the commit meanwhile, for the task that began it
    /// may be gone.
    async fn drained(&self) {
        let drained = |state: &mut State| (!state.running.locked || state.failure.is_some()).then_some(());
        self.driving(&self.commits, drained).await;
    }

    /// Waits until `ready` says so or `work` has ended, and drives that meanwhile.
    async fn driving(&self, work: &Relay, ready: impl FnMut(&mut State) -> Option<()>) {
        let mut work = pin!(work.join(EVERY_END));
        let mut ready = pin!(self.wait_until(ready));
        poll_fn(|cx| {
            if ready.as_mut().poll(cx).is_ready() {
                return Poll::Ready(());
            }
            work.as_mut().poll(cx)
        })
        .await;
    }

    fn latch(&self, cause: Error) {
        self.state.lock().latch(cause);
        self.notify();
        self.commits.reach(u64::MAX);
    }

    /// Gives up and records that, as jbd2 does on an abort.
    async fn give_up(&self, cause: Error) {
        self.latch(cause);
        self.record_failure().await;
    }

    async fn record_failure(&self) {
        // A journal that was closed, or dropped as a crash does, has not failed; another host's is not to be written.
        let has_failed = !matches!(self.lock().failure, None | Some(Error::ReadOnly | Error::InUse { .. }));
        if let Some(log) = self.log.as_ref().filter(|_| has_failed)
            && !self.failure_recorded.swap(true, Ordering::Relaxed)
        {
            let _ = log.record_failure().await;
        }
    }

    fn lock(&self) -> RankedGuard<'_, State> {
        self.state.lock()
    }
}

/// Has the journal give up where a commit or checkpoint panics.
struct LatchOnPanic(Arc<Inner>);

impl Drop for LatchOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.latch(Error::Defect);
        }
    }
}
