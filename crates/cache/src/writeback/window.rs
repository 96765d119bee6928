//! Limits how much one task has in flight.

use crate::device::bio_batch::BioBatch;
use crate::file::write_run::{InFlight, WriteRun};
use crate::file::{CacheCore, CachedDevice, CachedFile};
use crate::page::PAGE;
use crate::writeback::pass_yields::Visiting;
use extant_block::BioFlags;
use parking_lot::Mutex;
use std::sync::Arc;
use std::task::Poll;

/// Runs that were submitted together. They complete whether or not a task waits for them: the owner
/// submits held-back bios before it waits for anything. If the owner may go away before that, no
/// other task waits for its runs.
#[derive(Debug)]
pub(super) struct Window {
    pub(super) in_flight: Arc<Mutex<InFlight>>,
    /// Collects the bios of several runs and files, so that they are submitted together.
    pub(super) batch: Arc<BioBatch>,
    /// Flags of all bios.
    pub(super) flags: BioFlags,
}

impl Window {
    /// Maximum number of full-length runs in flight at a time.
    const MOST_RUNS: u64 = 16;

    pub(super) fn new(core: &CacheCore, disk: &CachedDevice, flags: BioFlags) -> Self {
        let batch = BioBatch::new(&disk.device, core.settings.bio_pages * PAGE);
        Self { in_flight: Arc::default(), batch, flags }
    }

    /// Starts a run that was taken for this window.
    pub(super) fn push(&mut self, run: Arc<WriteRun>) {
        self.in_flight.lock().pages += run.frames.len() as u64;
        self.batch.hold(|| run.start());
    }

    /// Submits held-back bios. Called before waiting for them.
    pub(super) fn submit(&self) {
        self.batch.submit();
    }

    /// Submits held-back bios if the visit is about to yield.
    pub(super) fn submit_before_yield(&self, visiting: &Visiting<'_>) {
        if visiting.is_spent() {
            self.submit();
        }
    }

    /// If more pages are in flight than [`Self::MOST_RUNS`] runs of maximum length have, waits
    /// until there is room for several such runs. Meanwhile finishes ended runs of `file`.
    pub(super) async fn make_room(&mut self, run_pages: u64, file: &Arc<CachedFile>) {
        let pages = self.in_flight.lock().pages;
        if pages > Self::MOST_RUNS * run_pages {
            // Drain in batches: bios submitted together pay for the device's path once.
            self.drain_to(Self::MOST_RUNS * run_pages / 4 * 3, file).await;
        } else if file.has_landed() {
            self.drain_to(u64::MAX, file).await;
        }
    }

    /// Waits until at most `pages` pages are in flight. Meanwhile finishes ended runs of `file`.
    pub(super) async fn drain_to(&mut self, pages: u64, file: &Arc<CachedFile>) {
        loop {
            if file.has_landed() {
                self.submit();
                file.finish_landed().await;
            }
            if self.in_flight.lock().pages <= pages {
                return;
            }
            if file.finish_submitted(|| self.submit()).await {
                continue;
            }
            let is_over = std::future::poll_fn(|cx| {
                let mut in_flight = self.in_flight.lock();
                if in_flight.pages <= pages {
                    return Poll::Ready(true);
                }
                // A run is queued before the waiter of its window is woken, so this check misses
                // none.
                if file.has_landed() {
                    return Poll::Ready(false);
                }
                in_flight.waiter = Some((pages, cx.waker().clone()));
                Poll::Pending
            });
            if is_over.await {
                return;
            }
        }
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        self.submit();
    }
}
