//! Takes a run from the end of its last bio to its backing: at once, in the device's completion
//! task, or in a caller that waits for the file.

use crate::PageRange;
use crate::backing::WrittenRun;
use crate::caught::caught;
use crate::file::write_run::{RunResult, RunStep, WriteRun};
use crate::file::{CachedDevice, CachedFile, written};
use crate::page::FileId;
use crate::pass_policy::ByRuns;
use crate::waits::Condition;
use crate::{CacheError, Result};
use extant_rt::{Class, Rt};
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl WriteRun {
    /// A bio or the submission has ended. After the last of them, the run's pages are no longer in
    /// flight.
    pub(super) fn part_ended(self: &Arc<Self>) {
        if self.bios_left.fetch_sub(1, Ordering::AcqRel) != 1 {
            return;
        }
        if let Some(charge) = &*self.charge.lock() {
            charge.landed();
        }
        self.file.disk.flushes.note_write(&self.file, self.flush_failures);
        let result = {
            let mut progress = self.progress.lock();
            progress.advance(RunStep::Landed);
            let must_tell = progress.result.changes_map && !progress.result.extents.is_empty();
            (!must_tell).then(|| std::mem::take(&mut progress.result))
        };
        match result {
            Some(result) => self.settle(&result.as_result(), &result),
            None => self.enqueue(),
        }
    }

    /// Queues the run for the device's completion task, or for a caller that waits for the file.
    fn enqueue(self: &Arc<Self>) {
        let (file, core, disk) = (&self.file, &self.file.core, &self.file.disk);
        let starts = disk.completions.push(file.number, self.clone());
        let waiter = self.in_flight.lock().waiter.take();
        if let Some((_, waker)) = waiter {
            waker.wake();
        }
        core.pages.wake(written(file.number));
        core.waits.wake_all(Condition::Written(disk.index.0));
        if starts {
            start_completing(&core.rt, disk);
        }
    }

    /// Notifies the backing that the run has ended; returns the result, for [`Self::settle`].
    async fn tell_backing(&self) -> (Result<()>, RunResult) {
        let mut result = std::mem::take(&mut self.progress.lock().result);
        let mut outcome = result.as_result();
        let run = WrittenRun { extents: std::mem::take(&mut result.extents), size_bytes: self.size_bytes };
        let finished = caught(async { self.file.backing.finish_write(&run).await }).await;
        if outcome.is_ok() {
            outcome = finished.map_err(CacheError::Backing);
        }
        (outcome, result)
    }

    /// Ends the run although its backing has not been notified of all of it, because the world has
    /// ended.
    fn give_up(&self) {
        let mut result = std::mem::take(&mut self.progress.lock().result);
        result.changes_map = true;
        self.settle(&Err(CacheError::ShutDown), &result);
    }
}

/// A run being finished. If this is dropped early, because the world has ended, the run ends with
/// an error.
struct Finishing(Option<Arc<WriteRun>>);

impl Finishing {
    fn new(run: Arc<WriteRun>) -> Self {
        Self(Some(run))
    }

    /// Notifies the backing, and then takes the pages out of write-back.
    async fn run(mut self) {
        let Some(run) = self.0.clone() else { return };
        let (outcome, result) = run.tell_backing().await;
        self.0 = None;
        run.settle(&outcome, &result);
    }
}

impl Drop for Finishing {
    fn drop(&mut self) {
        // After a panic of the cache itself, leave the run as it is.
        if let Some(run) = self.0.take().filter(|_| !std::thread::panicking()) {
            run.give_up();
        }
    }
}

/// The completion task's hold on its device, created before the task's first step.
///
/// A run that waits for the task holds its file, the file holds its device, and the device holds
/// the run. If the world ends before the task does, or accepts no more tasks, nothing else would
/// break this cycle: dropping this ends the runs with an error.
struct Completing {
    disk: Arc<CachedDevice>,
    is_over: bool,
}

impl Completing {
    fn new(disk: Arc<CachedDevice>) -> Self {
        Self { disk, is_over: false }
    }

    /// The next run. If there is none, the task is over.
    fn next_of(&mut self, file: &mut Option<FileId>) -> Option<Arc<WriteRun>> {
        let completions = &self.disk.completions;
        loop {
            if let Some(run) = file.and_then(|file| completions.pop(file)) {
                return Some(run);
            }
            *file = completions.next_file();
            if file.is_none() {
                self.is_over = true;
                return None;
            }
        }
    }
}

impl Drop for Completing {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // The next run to end starts another task. Meanwhile, callers that wait for a file
            // finish its runs.
            self.disk.completions.forget_task();
            return;
        }
        let mut file = None;
        while !self.is_over
            && let Some(run) = self.next_of(&mut file)
        {
            drop(Finishing::new(run));
        }
    }
}

/// Starts the completion task of a device, whose place is taken for it.
fn start_completing(rt: &Rt, disk: &Arc<CachedDevice>) {
    let completing = Completing::new(disk.clone());
    drop(rt.spawn("write-back completion", Class::Normal, complete(rt.clone(), completing)));
}

/// While this exists, runs that end do not start the completion task. It must live only as long as
/// a submission: other files' runs wait until it is dropped.
struct CompletionHold<'a>(&'a CachedFile);

impl<'a> CompletionHold<'a> {
    /// `None` if the task is running, or if another caller has a hold.
    fn begin(file: &'a CachedFile) -> Option<Self> {
        file.disk.completions.hold().then_some(Self(file))
    }
}

impl Drop for CompletionHold<'_> {
    fn drop(&mut self) {
        if self.0.disk.completions.release() {
            start_completing(&self.0.core.rt, &self.0.disk);
        }
    }
}

/// The completion task of a device: finishes runs until none are left.
async fn complete(rt: Rt, mut completing: Completing) {
    let mut budget = rt.budget(ByRuns::STINT);
    let mut file = None;
    while let Some(run) = completing.next_of(&mut file) {
        Finishing::new(run).run().await;
        budget.resched().await;
    }
}

impl CachedFile {
    /// Whether a run has landed whose backing has not been notified yet.
    pub(super) fn has_landed(&self) -> bool {
        self.disk.completions.count(self.number) > 0
    }

    /// Finishes the runs of this file that have landed so far, on the caller's thread.
    pub(super) async fn finish_landed(&self) {
        for _ in 0..self.disk.completions.count(self.number) {
            let Some(run) = self.disk.completions.pop(self.number) else { return };
            self.finish(run).await;
        }
    }

    /// Calls `submit`, and finishes a run of this file that has landed by then; returns false if
    /// there is none.
    ///
    /// Many devices end a short write before its submission returns. This caller can then go on
    /// with the run at once, and waking another thread for it would take longer. Runs that are left
    /// start the completion task before anything here waits.
    pub(super) async fn finish_submitted(&self, submit: impl FnOnce()) -> bool {
        let run = {
            let _held = CompletionHold::begin(self);
            submit();
            self.disk.completions.pop(self.number)
        };
        match run {
            Some(run) => {
                self.finish(run).await;
                true
            }
            None => false,
        }
    }

    async fn finish(&self, run: Arc<WriteRun>) {
        // Other waiters can no longer find the run. The overseer takes it over if this caller drops
        // it or does not poll it.
        self.core.overseer.oversee("write-back completion", Finishing::new(run).run()).await;
    }

    /// Waits for the runs that now have pages in `pages`, but not for later ones. Meanwhile
    /// finishes this file's runs that have landed.
    pub(crate) async fn wait_for_writeback(&self, pages: PageRange) {
        let before = self.lock_pages().writeback().next();
        let is_over = || !self.lock_pages().writeback().has_older(before, pages);
        while !is_over() {
            match self.disk.completions.pop(self.number) {
                Some(run) => self.finish(run).await,
                None => {
                    let has_news = || is_over() || self.has_landed();
                    self.core.pages.wait_until(written(self.number), has_news).await;
                }
            }
        }
    }
}

#[cfg(all(test, not(extant_loom)))]
mod tests {
    use crate::page::PAGE_BYTES;
    use crate::{
        Answer, Backing, ByteRange, CacheConfig, DirtyRun, PageCache, Placed, ReadExtent, ReadFrom,
        WriteExtent, WriteTo, WrittenRun,
    };
    use extant_block::{MemDevice, Sector};
    use extant_rt::Counter;
    use extant_sim::{Machine, Preemption, Sim};
    use parking_lot::Mutex;
    use std::future::{Future, poll_fn};
    use std::pin::pin;
    use std::sync::Arc;
    use std::task::{Context, Poll, Waker};

    /// Writes in place; each `finish_write` waits until it is released.
    #[derive(Debug, Default)]
    struct Held(Mutex<(bool, Option<Waker>)>);

    impl Held {
        fn let_go(&self) {
            let waker = {
                let mut held = self.0.lock();
                held.0 = true;
                held.1.take()
            };
            waker.expect("a run is being finished").wake();
        }
    }

    impl Backing for Held {
        fn block_bytes(&self) -> u32 {
            4096
        }
        fn map_read(&self, range: ByteRange) -> Answer<'_, ReadExtent> {
            Answer::ok(ReadExtent { from: ReadFrom::Hole, bytes: range.len() })
        }
        fn prepare_write<'a>(&'a self, run: DirtyRun<'a>) -> Answer<'a, Placed> {
            let to = WriteTo::Device(Sector(run.pieces[0].start / Sector::BYTES));
            let extent = WriteExtent { range: run.pieces[0], to, zero_before: 0, zero_after: 0, note: 0 };
            Answer::ok(Placed { extents: [extent].into_iter().collect(), changes_map: true })
        }
        fn finish_write<'a>(&'a self, _: &'a WrittenRun) -> Answer<'a, ()> {
            Answer::later(poll_fn(|cx| {
                let mut held = self.0.lock();
                held.1 = Some(cx.waker().clone());
                if held.0 { Poll::Ready(Ok(())) } else { Poll::Pending }
            }))
        }
    }

    #[test]
    fn a_caller_that_finishes_a_run_and_is_kept_unpolled_keeps_no_other_waiting() {
        let sim = Sim::new(Machine::free(1, Preemption::None), 1);
        let rt = sim.rt();
        let cache = PageCache::new(rt, CacheConfig::with_budget(1 << 20)).expect("memory");
        let disk = cache.attach(Arc::new(MemDevice::new(1 << 20)));
        let backing = Arc::new(Held::default());
        let mapping = disk.mapping(backing.clone(), 1, 0);
        rt.block_on(mapping.open().write(0, &[1; PAGE_BYTES])).expect("the world goes on").expect("room");
        let mut kept = pin!(mapping.write_back(..));
        assert!(kept.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        // The completion task finds nothing to do, because the caller has the run.
        rt.block_on(rt.yield_now()).expect("the world goes on");
        backing.let_go();
        rt.block_on(mapping.wait_written(..)).expect("no deadlock");
        rt.block_on(kept).expect("no deadlock").expect("it is written");
    }

    #[test]
    fn a_caller_finishes_what_ends_in_its_submission_without_another_task() {
        let rt = extant_rt::Rt::real(extant_rt::RealConfig::default());
        let cache = PageCache::new(&rt, CacheConfig::with_budget(1 << 20)).expect("memory");
        let disk = cache.attach(Arc::new(MemDevice::new(1 << 20)));
        let backing = Arc::new(Held::default());
        backing.0.lock().0 = true;
        let mapping = disk.mapping(backing, 1, 0);
        let spawned = rt.counter(Counter::TasksSpawned);
        for _ in 0..3 {
            rt.block_on(mapping.open().write(0, &[1; PAGE_BYTES])).expect("no panic").expect("room");
            rt.block_on(mapping.write_back(..)).expect("no panic").expect("it is written");
        }
        assert_eq!((rt.counter(Counter::TasksSpawned), mapping.dirty_pages()), (spawned, 0));
    }
}
