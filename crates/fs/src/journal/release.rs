//! Returning freed blocks to the allocator.

use super::{Inner, Tid};
use crate::meta::PhysicalRun;
use crate::{Error, Result};
use extant_block::{Bio, Device, IoError, IoErrorKind, Op, Sector, until_end};
use extant_format::UintExt;
use extant_rt::Class;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Blocks that a durable transaction freed; dropping this returns them to the allocator. Created
/// before the task that discards them, because after shutdown that task cannot be spawned. Each
/// discard in flight holds a reference, whatever happens to the task.
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
    /// Returns freed blocks to the allocator, after discarding them if discards are on. Call
    /// without locks.
    pub(super) fn release(self: &Arc<Self>, tid: Tid, freed: Vec<PhysicalRun>) {
        if freed.is_empty() {
            return;
        }
        if !self.discards.load(Ordering::Relaxed) {
            return self.released(tid, &freed);
        }
        let freed = Arc::new(Freed { inner: self.clone(), tid, runs: freed });
        // Only callers that need the space wait for this.
        let discard = async move {
            for &run in &freed.runs {
                freed.inner.discard(run, freed.clone()).await;
            }
        };
        drop(self.rt.spawn("discard", Class::Normal, discard));
    }

    /// Discards freed blocks. A failure leaves them as they are; if the device does not support
    /// discards, none are sent any more.
    async fn discard(&self, run: PhysicalRun, freed: Arc<Freed>) {
        if !self.discards.load(Ordering::Relaxed) || self.lock().failure.is_some() {
            return;
        }
        let block_bytes = self.store.blocks().block_bytes().to_u64();
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

    /// Makes a close of the journal wait until the result is dropped.
    ///
    /// # Errors
    /// [`Error::ReadOnly`] if the journal is closing or was aborted.
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

/// Work that a close must wait for; see [`Journal::keep_open`](super::Journal::keep_open).
#[derive(Debug)]
pub(crate) struct KeptOpen(Arc<Inner>);

impl Drop for KeptOpen {
    fn drop(&mut self) {
        self.0.lock().kept_open -= 1;
        self.0.notify();
    }
}

/// Discards a range of the device. `held` is dropped when the device completes the discard, even if
/// the caller is dropped or the runtime shuts down: until then, a new owner of the range could lose
/// what it writes there.
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
