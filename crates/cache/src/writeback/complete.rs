//! Completion of runs: by the device's one task, or by a caller that waits for a file.

use crate::mapping::Inner;
use crate::writeback::disk::DiskState;
use crate::writeback::pass::ByRuns;
use crate::writeback::submit::Writing;
use extant_rt::Rt;
use std::collections::VecDeque;
use std::sync::Arc;

/// Files of a device with ended runs, in order of the runs' ends; a file may be there several times.
#[derive(Debug, Default)]
pub(crate) struct Completions {
    pub(super) files: VecDeque<Arc<Inner>>,
    /// Whether the completion task is at it.
    pub(super) is_running: bool,
}

/// The completion task of a device: finishes what has ended until there is nothing left.
pub(super) async fn complete(rt: Rt, disk: Arc<DiskState>) {
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

impl Inner {
    /// Whether a run has ended that its backing has not heard of.
    pub(crate) fn has_ended(&self) -> bool {
        !self.ended.lock().is_empty()
    }

    fn next_ended(&self) -> Option<Arc<Writing>> {
        self.ended.lock().pop_front()
    }

    /// Finishes the runs of this file that have ended, on the caller's thread.
    pub(crate) async fn finish_ended(&self) {
        while let Some(ended) = self.next_ended() {
            self.shared.rt.unstoppable("write-back completion", ended.finish()).await;
        }
    }
}
