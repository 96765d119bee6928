//! Completion of runs: by the device's one task, or by a caller that waits for a file.

use crate::pass::ByRuns;
use crate::state::run::Writing;
use crate::state::{DiskState, Inner, written};
use crate::waits::Condition;
use extant_rt::{Class, Rt};
use std::ops::Range;
use std::sync::Arc;

/// The completion task of a device: finishes what has ended until there is nothing left.
async fn complete(rt: Rt, disk: Arc<DiskState>) {
    let mut budget = rt.budget(ByRuns::STINT);
    loop {
        let file = {
            let mut completions = disk.completions.lock();
            let Some(file) = completions.files.pop_front() else {
                completions.is_running = false;
                return;
            };
            file
        };
        while let Some(ended) = file.next_ended() {
            ended.finish().await;
            budget.resched().await;
        }
    }
}

impl Writing {
    /// Leaves the run to the device's completion task, or to a caller that waits for the file.
    pub(super) fn enlist(self: &Arc<Self>) {
        let inner = &self.run.inner;
        let shared = &inner.shared;
        inner.ended.lock().push_back(self.clone());
        let starts = {
            let mut completions = inner.disk.completions.lock();
            completions.files.push_back(inner.clone());
            !std::mem::replace(&mut completions.is_running, true)
        };
        if let Some(window) = &self.window {
            let waker = window.lock().waiter.take();
            if let Some((_, waker)) = waker {
                waker.wake();
            }
        }
        shared.pages.wake(written(inner.file));
        shared.waits.wake_all(Condition::Written(inner.disk.index.0));
        if starts {
            let name = "write-back completion";
            drop(shared.rt.spawn(name, Class::Normal, complete(shared.rt.clone(), inner.disk.clone())));
        }
    }
}

impl Inner {
    /// Whether a run has ended that its backing has not heard of.
    pub(crate) fn has_ended(&self) -> bool {
        !self.ended.lock().is_empty()
    }

    fn next_ended(&self) -> Option<Arc<Writing>> {
        self.ended.lock().pop_front()
    }

    /// Finishes the runs of this file that have ended by now, on the caller's thread.
    pub(crate) async fn finish_ended(&self) {
        let count = self.ended.lock().len();
        for _ in 0..count {
            let Some(ended) = self.next_ended() else { return };
            self.finish_one(ended).await;
        }
    }

    async fn finish_one(&self, ended: Arc<Writing>) {
        self.shared.rt.unstoppable("write-back completion", ended.finish()).await;
    }

    /// Waits until the runs that have pages of `pages` now have ended, whatever follows them, and finishes what of this
    /// file's has ended meanwhile.
    pub(crate) async fn wait_for_writeback(&self, pages: Range<u64>) {
        let before = self.pages.lock().writeback.next();
        let is_over = || !self.pages.lock().writeback.has_older(before, &pages);
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
