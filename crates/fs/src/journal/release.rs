//! Freed blocks on their way back to the allocator.

use super::{Inner, Tid};
use crate::meta::PhysicalRun;
use crate::{Error, Result};
use extant_block::{Bio, Device, IoError, IoErrorKind, Op, Sector, until_end};
use extant_rt::Class;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Blocks that a durable transaction freed. Dropped, they are the allocator's: made before the task that discards them, which a
/// world that has ended does not take, and held by each discard in flight, whatever becomes of that task.
struct Freed {
    inner: Arc<Inner>,
    tid: Tid,
    runs: Vec<PhysicalRun>,
}

impl Drop for Freed {
    fn drop(&mut self) {
        self.inner.released(self.tid, &self.runs);
    }
}

impl Inner {
    /// Tells the allocator what it may allocate again, after discarding it where that is asked for; without locks.
    pub(super) fn release(self: &Arc<Self>, tid: Tid, freed: Vec<PhysicalRun>) {
        if freed.is_empty() {
            return;
        }
        if !self.discards.load(Ordering::Relaxed) {
            return self.released(tid, &freed);
        }
        let freed = Arc::new(Freed { inner: self.clone(), tid, runs: freed });
        // No caller waits for it, but one that needs the space.
        let discard = async move {
            for &run in &freed.runs {
                freed.inner.discard(run, freed.clone()).await;
            }
        };
        drop(self.rt.spawn("discard", Class::Normal, discard));
    }

    /// Discards freed blocks. A device that fails to keeps them, and one that cannot is asked no more.
    async fn discard(&self, run: PhysicalRun, freed: Arc<Freed>) {
        if !self.discards.load(Ordering::Relaxed) || self.lock().failure.is_some() {
            return;
        }
        let block_bytes = self.store.blocks().block_bytes() as u64;
        let start = Sector(run.start.0 * (block_bytes / Sector::BYTES));
        let device = &**self.store.blocks().device();
        let discarded = discard_held(device, start, run.blocks * block_bytes, freed);
        if discarded.await.is_err_and(|error| error.kind == IoErrorKind::Unsupported) {
            self.discards.store(false, Ordering::Relaxed);
        }
    }

    fn released(&self, tid: Tid, freed: &[PhysicalRun]) {
        if let Some(listener) = self.listener.get() {
            listener.released(tid, freed);
        }
        self.lock().release_ended();
        self.notify();
    }

    /// Keeps a close of the journal waiting until the result is dropped.
    ///
    /// # Errors
    /// [`Error::ReadOnly`] once the journal is being closed, or gave up.
    pub(super) fn keep_open(self: &Arc<Self>) -> Result<KeptOpen> {
        let mut state = self.lock();
        if !state.is_open() {
            return Err(Error::ReadOnly);
        }
        state.kept_open += 1;
        drop(state);
        Ok(KeptOpen(self.clone()))
    }
}

/// Work that a close waits for; see [`Journal::keep_open`](super::Journal::keep_open).
#[derive(Debug)]
pub(crate) struct KeptOpen(Arc<Inner>);

impl Drop for KeptOpen {
    fn drop(&mut self) {
        self.0.lock().kept_open -= 1;
        self.0.notify();
    }
}

/// Discards a range of the device. What is `held` is dropped when the device has ended that, also where the caller leaves or its
/// world ends: whoever gets the range next would lose what is written there.
pub(crate) fn discard_held<H: Send + 'static>(
    device: &dyn Device,
    start: Sector,
    bytes: u64,
    held: H,
) -> impl Future<Output = std::result::Result<(), IoError>> + use<H> {
    let mut bio = Bio::range(Op::Discard, start, bytes);
    let ended = until_end(&mut bio);
    bio.before_end(move |_| drop(held));
    device.submit(bio);
    async move { ended.await.1 }
}
