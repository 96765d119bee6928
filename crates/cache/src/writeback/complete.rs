//! Completion of runs: by the device's one task, or by a caller that waits for a file.

use crate::mapping::Inner;
use crate::writeback::disk::DiskState;
use crate::writeback::pass::ByRuns;
use crate::writeback::submit::Writing;
use extant_rt::{Class, Rt};
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

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

/// Work that is done here; where the caller leaves, it goes on as a task.
pub(crate) struct Unstoppable {
    rt: Rt,
    name: &'static str,
    work: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

impl Unstoppable {
    pub(crate) fn new(rt: &Rt, name: &'static str, work: impl Future<Output = ()> + Send + 'static) -> Self {
        Self { rt: rt.clone(), name, work: Some(Box::pin(work)) }
    }
}

impl Future for Unstoppable {
    type Output = ();
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let Some(work) = &mut self.work else { return Poll::Ready(()) };
        let poll = work.as_mut().poll(cx);
        if poll.is_ready() {
            self.work = None;
        }
        poll
    }
}

impl Drop for Unstoppable {
    fn drop(&mut self) {
        if let Some(work) = self.work.take() {
            drop(self.rt.spawn(self.name, Class::Normal, work));
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
            Unstoppable::new(&self.shared.rt, "write-back completion", ended.finish()).await;
        }
    }
}
