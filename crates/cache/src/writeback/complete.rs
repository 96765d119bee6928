//! Completes runs: by the device's completion task, or by a caller that waits for a file.

use crate::PageRange;
use crate::pass::ByRuns;
use crate::state::run::Writing;
use crate::state::{DiskState, Inner, written};
use crate::waits::Condition;
use extant_rt::{Class, Rt};
use std::sync::Arc;

/// The completion task's hold on its device, created before the task's first step.
///
/// A run that waits for the task holds its file, the file holds its device, and the device lists
/// the file. If the world ends before the task does, or accepts no more tasks, nothing else would
/// break this cycle: dropping this ends the runs with an error.
struct Completing {
    disk: Arc<DiskState>,
    is_over: bool,
}

impl Completing {
    fn new(disk: Arc<DiskState>) -> Self {
        Self { disk, is_over: false }
    }

    /// The next file with ended runs. If there is none, the task is over.
    fn next(&mut self) -> Option<Arc<Inner>> {
        let mut completions = self.disk.completions.lock();
        let file = completions.files.pop_front();
        self.is_over = file.is_none();
        completions.is_running = !self.is_over;
        file
    }
}

impl Drop for Completing {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // The next run to end starts another task. Meanwhile, callers that wait for a file
            // finish its runs.
            self.disk.completions.lock().is_running = false;
            return;
        }
        while !self.is_over
            && let Some(file) = self.next()
        {
            while let Some(ended) = file.next_ended() {
                drop(Finishing::new(ended));
            }
        }
    }
}

/// The completion task of a device: finishes ended runs until none are left.
async fn complete(rt: Rt, mut completing: Completing) {
    let mut budget = rt.budget(ByRuns::STINT);
    while let Some(file) = completing.next() {
        while let Some(ended) = file.next_ended() {
            Finishing::new(ended).run().await;
            budget.resched().await;
        }
    }
}

/// A run being finished. If dropped before that, because the world has ended, the run ends with an
/// error.
struct Finishing(Option<Arc<Writing>>);

impl Finishing {
    fn new(ended: Arc<Writing>) -> Self {
        Self(Some(ended))
    }

    /// Notifies the backing, and then takes the pages out of write-back.
    async fn run(mut self) {
        let Some(ended) = self.0.clone() else { return };
        let (result, outcome) = ended.tell_backing().await;
        self.0 = None;
        ended.settle(&result, &outcome);
    }
}

impl Drop for Finishing {
    fn drop(&mut self) {
        // After a panic of the cache itself, leave the run as it is.
        if let Some(ended) = self.0.take().filter(|_| !std::thread::panicking()) {
            ended.give_up();
        }
    }
}

impl Writing {
    /// Queues the run for the device's completion task, or for a caller that waits for the file.
    pub(super) fn enlist(self: &Arc<Self>) {
        let inner = &self.run.inner;
        let shared = &inner.shared;
        inner.ended.lock().push_back(self.clone());
        let starts = {
            let mut completions = inner.disk.completions.lock();
            completions.files.push_back(inner.clone());
            !std::mem::replace(&mut completions.is_running, true)
        };
        let waker = self.window.lock().waiter.take();
        if let Some((_, waker)) = waker {
            waker.wake();
        }
        shared.pages.wake(written(inner.file));
        shared.waits.wake_all(Condition::Written(inner.disk.index.0));
        if starts {
            let name = "write-back completion";
            let completing = Completing::new(inner.disk.clone());
            drop(shared.rt.spawn(name, Class::Normal, complete(shared.rt.clone(), completing)));
        }
    }
}

impl Inner {
    /// Whether a run has ended without its backing being notified yet.
    pub(crate) fn has_ended(&self) -> bool {
        !self.ended.lock().is_empty()
    }

    fn next_ended(&self) -> Option<Arc<Writing>> {
        self.ended.lock().pop_front()
    }

    /// Finishes the runs of this file that have ended so far, on the caller's thread.
    pub(crate) async fn finish_ended(&self) {
        let count = self.ended.lock().len();
        for _ in 0..count {
            let Some(ended) = self.next_ended() else { return };
            self.finish_one(ended).await;
        }
    }

    async fn finish_one(&self, ended: Arc<Writing>) {
        // Other waiters can no longer find the run. The overseer takes it over if this caller drops
        // it or does not poll it.
        self.shared.overseer.oversee("write-back completion", Finishing::new(ended).run()).await;
    }

    /// Waits for the runs that now have pages in `pages`, but not for later ones. Meanwhile
    /// finishes this file's ended runs.
    pub(crate) async fn wait_for_writeback(&self, pages: PageRange) {
        let before = self.pages.lock().writeback.next();
        let is_over = || !self.pages.lock().writeback.has_older(before, pages);
        while !is_over() {
            match self.next_ended() {
                Some(ended) => self.finish_one(ended).await,
                None => {
                    let has_news = || is_over() || self.has_ended();
                    self.shared.pages.wait_until(written(self.file), has_news).await;
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
}
