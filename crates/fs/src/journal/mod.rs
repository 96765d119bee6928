//! The journal (jbd2): transactions, commit and checkpoint.
//!
//! Kernel document: *Journal (jbd2)*. One transaction is running. Operations join it through a
//! [`Handle`], which declares the most blocks it will dirty ([`Credits`]) and never waits. A commit
//! closes the running transaction, takes the version of each block as the transaction left it,
//! writes these to the log, and then writes the commit block with a preflush and FUA. A checkpoint
//! writes committed versions home and advances the log's tail.
//!
//! Modules: `state` makes the decisions and does no I/O (admission, tails, what may be written
//! home, what may be allocated again). `ring` is the arithmetic of the log, and `handle` is the
//! interface for operations. `commit` and `checkpoint` are the flows, driven by the tasks that wait
//! for them (`relay`). `log` writes blocks to the log; [`recovery`](crate::recovery) reads them
//! back.
//!
//! A volume without a journal has the same handles. Its commit writes home directly, in phases
//! (`unlogged`).

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
use extant_block::Bio;
use extant_cache::Disk;
use extant_format::{UintExt, VolumeBlock};
use extant_rt::{Nanos, Rt};
use flushes::FlushedDisk;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use relay::{EVERY_END, Relay};
use state::{Admission, Running, State};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Poll, Waker};

/// Upper bound on the blocks an operation may dirty. Each block counts, plus one for each inode and
/// group, and one for the superblock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Credits(pub(crate) u32);

/// Is notified when a transaction is durable.
pub(crate) trait Listener: Send + Sync {
    /// `tid` is durable and no writes to the blocks it freed are in flight: they may be reused.
    fn released(&self, tid: Tid, freed: &[PhysicalRun]);
}

/// Marks the volume as in use on the device, before anything of a transaction is written.
pub(crate) trait Opening: Send + Sync {
    /// Called by each commit.
    fn mark(&self) -> BoxFuture<'_, Result<()>>;
}

/// How a journal runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct JournalOptions {
    /// Limit on the bytes that transactions and checkpoints may pin in memory.
    pub(crate) pinned_bytes_max: u64,
    /// Age at which a transaction is committed; checkpoints then run in the background, too. `None`
    /// for an offline batch, which has no background work.
    pub(crate) commit_interval: Option<Nanos>,
    /// Fixed time for time stamps, in seconds since 1970; `None` for the clock's.
    pub(crate) fixed_time: Option<i64>,
}

/// The journal of a volume open for writing, or its stand-in if the volume has none. Cheap to
/// clone.
#[derive(Clone, Debug)]
pub(crate) struct Journal {
    inner: Arc<Inner>,
}

struct Inner {
    rt: Rt,
    store: Arc<MetaStore>,
    disk: FlushedDisk,
    /// Location of the log; `None` for a volume without a journal.
    log: Option<LogDevice>,
    options: JournalOptions,
    state: Ranked<State>,
    /// The transaction whose commit failed. It keeps its changes pinned.
    lost: Mutex<Option<(Running, Versions)>>,
    /// The log's superblock records that the journal was aborted, or the attempt to write that
    /// failed.
    failure_recorded: AtomicBool,
    waiters: Mutex<Vec<Waker>>,
    commits: Relay,
    checkpoints: Relay,
    listener: OnceLock<Arc<dyn Listener>>,
    opening: OnceLock<Arc<dyn Opening>>,
    /// Keeps quotas, on a volume that has any.
    accounts: OnceLock<Arc<dyn Accounts>>,
    /// Discard freed blocks before they may be reused. Cleared when the device turns out not to
    /// support it.
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
    /// Creates a journal with an empty log, for a store on `disk`. `next` is the first transaction.
    pub(crate) fn new(
        rt: &Rt,
        store: Arc<MetaStore>,
        disk: &Disk,
        log: Option<LogDevice>,
        next: Tid,
        options: JournalOptions,
    ) -> Self {
        let block_bytes = store.blocks().block_bytes();
        let budget = (options.pinned_bytes_max / block_bytes.to_u64()).min(1 << 24).fit_u32();
        let state = State::new(next, log.as_ref().map(|log| log.limits(block_bytes)), budget);
        let inner = Arc::new(Inner {
            rt: rt.clone(),
            store,
            disk: FlushedDisk::new(disk),
            log,
            options,
            state: Ranked::new(LockRank::Journal, state),
            lost: Mutex::default(),
            failure_recorded: AtomicBool::new(false),
            waiters: Mutex::default(),
            commits: Relay::new(rt),
            checkpoints: Relay::new(rt),
            listener: OnceLock::new(),
            opening: OnceLock::new(),
            accounts: OnceLock::new(),
            discards: AtomicBool::new(false),
            background: background::Signals::new(rt),
        });
        if let Some(interval) = options.commit_interval {
            background::spawn(&inner, interval);
        }
        Self { inner }
    }

    /// Sets the listener for durable transactions. The allocator calls this once.
    pub(crate) fn set_listener(&self, listener: Arc<dyn Listener>) {
        let set = self.inner.listener.set(listener);
        assert!(set.is_ok(), "one listener");
    }

    /// Sets what each commit does before it writes. Call it once, before the first handle opens.
    pub(crate) fn set_opening(&self, opening: Arc<dyn Opening>) {
        let set = self.inner.opening.set(opening);
        assert!(set.is_ok(), "one opening");
    }

    /// Makes commits charge inode changes to quotas. Called once, before the first handle is
    /// opened.
    pub(crate) fn set_accounts(&self, accounts: Arc<dyn Accounts>) {
        self.accounts_grew(accounts.blocks());
        let set = self.inner.accounts.set(accounts);
        assert!(set.is_ok(), "one keeper of quotas");
    }

    /// Sets the number of blocks that quotas occupy.
    pub(crate) fn accounts_grew(&self, blocks: u32) {
        self.inner.lock().set_quota_blocks(blocks);
    }

    /// Turns on discards: from now on, freed blocks are discarded once no crash can make them
    /// reachable again.
    pub(crate) fn discard_freed(&self) {
        self.inner.discards.store(true, Ordering::Relaxed);
    }

    /// Opens a handle for an operation that dirties at most `credits`. May wait for a commit or for
    /// log space.
    ///
    /// # Errors
    /// [`Error::ReadOnly`] after a failure; [`Error::NoSpace`] if `credits` exceeds the largest
    /// transaction.
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

    /// Opens a handle if that is possible without waiting.
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

    /// Does what `admission` asks for.
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

    /// The transaction that an operation starting now would join.
    pub(crate) fn running(&self) -> Tid {
        self.inner.state.lock().running.tid
    }

    /// Whether `tid` is the running transaction and allocated block `at` for metadata. Only tracked
    /// on a volume without a journal.
    pub(crate) fn is_fresh(&self, tid: Tid, at: VolumeBlock) -> bool {
        let state = self.inner.state.lock();
        state.running.tid == tid && state.running.fresh.contains(&at.0)
    }

    /// Whether the running transaction holds no change, as far as its operations have ended.
    pub(crate) fn is_empty(&self) -> bool {
        self.inner.state.lock().running.is_empty()
    }

    /// Whether transactions go to a log. Without one, a crash keeps no order among them.
    pub(crate) fn has_log(&self) -> bool {
        self.inner.log.is_some()
    }

    /// The newest durable transaction.
    pub(crate) fn committed(&self) -> Tid {
        self.inner.state.lock().committed
    }

    /// Number of flushes begun so far. Pass it to [`Self::flush_since`] after writing data.
    pub(crate) fn flushes_begun(&self) -> u64 {
        self.inner.lock().flushes.begun()
    }

    /// Makes durable what had been written when [`Self::flushes_begun`] returned `mark`. Flushes
    /// the device unless a flush that began later has already succeeded.
    ///
    /// # Errors
    /// Why the journal was aborted, now or earlier; a failed flush aborts it.
    pub(crate) async fn flush_since(&self, mark: u64) -> Result<()> {
        self.inner.flush_since(mark).await
    }

    /// Runs a `PREFLUSH` write outside any transaction. A failure aborts the journal.
    ///
    /// # Errors
    /// The device's error. If a flush has failed since the volume was opened, nothing is written.
    pub(crate) async fn write_behind_flush(&self, bio: Bio) -> Result<()> {
        let written = self.inner.disk.write_behind_flush(bio);
        self.inner.behind_flush(written).await
    }

    /// Makes every operation of transactions up to `upto` durable.
    ///
    /// The commit runs on the caller's task. Callers that arrive while it runs share the next one.
    /// Does nothing, not even a flush, if `upto` is already durable or empty.
    ///
    /// # Errors
    /// Why the journal was aborted. Nothing is written after that.
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
                    // This caller may have been the one woken to begin the next commit, and it
                    // begins none.
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

    /// Makes the last change of an inode durable, and everything before it. `changed_by` is the
    /// transaction that made it, if it is known. It is not known if the inode has been loaded
    /// since: the commit under way may still hold the change, because an inode may leave memory
    /// once it is encoded.
    ///
    /// Does nothing, not even a flush, if the change is already durable.
    ///
    /// # Errors
    /// Why the journal was aborted, now or earlier.
    pub(crate) async fn commit_change(&self, changed_by: Option<Tid>) -> Result<()> {
        let under_way = || self.inner.lock().committing.map(|transaction| transaction.tid);
        if let Some(tid) = changed_by.or_else(under_way) {
            self.commit(tid).await?;
        }
        self.inner.lock().check_alive()
    }

    /// Waits until everything that durable transactions freed has returned to the allocator. Home
    /// writes in flight delay that.
    ///
    /// # Errors
    /// Why the journal was aborted.
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

    /// Makes [`Self::close`] wait until the result is dropped. For work on free blocks outside any
    /// transaction.
    ///
    /// # Errors
    /// [`Error::ReadOnly`] if the journal is closing or was aborted.
    pub(crate) fn keep_open(&self) -> Result<KeptOpen> {
        self.inner.keep_open()
    }

    /// Waits until no discard of free blocks is in flight.
    pub(crate) async fn discards_ended(&self) {
        self.inner.wait_until(|state| (state.kept_open == 0).then_some(())).await;
    }

    /// Writes committed blocks home and frees their log space.
    ///
    /// # Errors
    /// Why the journal was aborted.
    pub(crate) async fn checkpoint(&self) -> Result<()> {
        self.inner.clone().checkpoint_all().await
    }

    /// Commits all changes made so far and writes them home. After a crash, replay will not write
    /// to those blocks.
    ///
    /// # Errors
    /// Why the journal was aborted.
    pub(crate) async fn commit_home(&self) -> Result<()> {
        self.commit(self.running()).await?;
        // A checkpoint already under way may have begun before the commit.
        self.checkpoint().await?;
        self.checkpoint().await
    }

    /// Aborts the journal. Nothing is written from now on; writers get [`Error::ReadOnly`], waiting
    /// syncs `cause`.
    pub(crate) fn latch(&self, cause: Error) {
        self.inner.latch(cause);
    }

    /// Records in the log's superblock that the journal was aborted, at most once; see
    /// [`LogDevice`]. If the device refuses that write, the record is lost.
    pub(crate) async fn record_failure(&self) {
        self.inner.record_failure().await;
    }

    /// Why the journal was aborted, if it was.
    pub(crate) fn failure(&self) -> Option<Error> {
        self.inner.state.lock().failure.clone()
    }

    /// Commits everything, writes it home and leaves an empty log.
    ///
    /// The caller then clears the volume's flags. No handle can be opened any more, and nothing is
    /// written afterwards, even if files of the volume are still open.
    ///
    /// # Errors
    /// Why the journal was aborted, now or earlier.
    pub(crate) async fn close(&self) -> Result<()> {
        self.inner.lock().closing = true;
        self.inner.notify();
        let running = self.running();
        self.commit(running).await?;
        self.inner.background.close();
        self.inner.clone().empty_log().await?;
        // In-flight discards must end before someone else owns the device.
        self.inner.wait_until(|state| (state.has_released() && state.kept_open == 0).then_some(())).await;
        self.latch(Error::ReadOnly);
        Ok(())
    }

    /// Stops writing, as a crash would. A commit or checkpoint that no task is driving is dropped:
    /// it would keep the journal, and thus the page cache, alive.
    pub(crate) fn abandon(&self) {
        self.inner.background.close();
        self.inner.latch(Error::ReadOnly);
        self.inner.commits.end();
        self.inner.checkpoints.end();
    }

    /// Whether commits and checkpoints run in the background. False for an offline batch.
    pub(crate) fn has_background(&self) -> bool {
        self.inner.options.commit_interval.is_some()
    }

    /// The time for on-disk time stamps, in seconds since 1970.
    pub(crate) fn wall_clock(&self) -> i64 {
        self.inner.wall_clock()
    }
}

impl Inner {
    fn wall_clock(&self) -> i64 {
        self.options.fixed_time.unwrap_or_else(|| self.rt.wall_clock())
    }

    /// Wakes every waiter to check the state again.
    fn notify(&self) {
        let waiters = std::mem::take(&mut *self.waiters.lock());
        waiters.into_iter().for_each(Waker::wake);
    }

    /// Waits until `ready` returns a value. Checks at once and after each [`Self::notify`].
    async fn wait_until<T>(&self, mut ready: impl FnMut(&mut State) -> Option<T>) -> T {
        poll_fn(|cx| {
            let mut state = self.state.lock();
            if let Some(value) = ready(&mut state) {
                return Poll::Ready(value);
            }
            // Register under the state's lock, so that no change is missed.
            let mut waiters = self.waiters.lock();
            if !waiters.iter().any(|waker| waker.will_wake(cx.waker())) {
                waiters.push(cx.waker().clone());
            }
            Poll::Pending
        })
        .await
    }

    /// Waits until the running transaction accepts operations. Drives the commit meanwhile, because
    /// the task that began it may be gone.
    async fn drained(&self) {
        let drained = |state: &mut State| (!state.running.locked || state.failure.is_some()).then_some(());
        self.driving(&self.commits, drained).await;
    }

    /// Waits until `ready` returns a value or `work` ends, and drives `work` meanwhile.
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

    /// Aborts the journal and records the failure, as jbd2 does on an abort.
    async fn give_up(&self, cause: Error) {
        self.latch(cause);
        self.record_failure().await;
    }

    async fn record_failure(&self) {
        // A journal that was closed, or dropped as in a crash, has not failed. If the volume is now
        // another host's, it must not be written.
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

/// Aborts the journal if a commit or checkpoint panics.
struct LatchOnPanic(Arc<Inner>);

impl Drop for LatchOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.latch(Error::Defect);
        }
    }
}
