//! Write-back: submits dirty pages and completes them.

mod complete;
mod flush;
pub(crate) mod flusher;
mod run;
mod submit;

use crate::page::PAGE;
use crate::pass::{ByRuns, Visiting};
use crate::state::plug::Plug;
use crate::state::run::{InFlight, WriteRun};
use crate::state::{DiskState, Inner, Shared};
use crate::writeback::run::Taken;
use crate::{PageRange, Result};
use extant_block::BioFlags;
use parking_lot::Mutex;
use std::future::Future;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

/// Runs that were submitted together. They complete whether or not a task waits for them: the owner
/// submits held-back bios before it waits for anything, and what the owner may abandon, nobody else
/// waits for.
#[derive(Debug)]
struct Window {
    in_flight: Arc<Mutex<InFlight>>,
    /// Collects the bios of several runs and files, so that they are submitted together.
    plug: Arc<Plug>,
}

impl Window {
    /// Most runs of maximum length in flight at a time.
    const MOST_RUNS: u64 = 16;

    fn new(shared: &Shared, disk: &DiskState) -> Self {
        let in_flight = Arc::new(Mutex::new(InFlight { pages: 0, waiter: None }));
        Self { in_flight, plug: Plug::new(&disk.device, shared.settings.bio_pages * PAGE) }
    }

    /// Starts a run.
    fn push(&mut self, run: WriteRun, flags: BioFlags) {
        self.in_flight.lock().pages += run.frames.len() as u64;
        self.plug.hold(|| run.start_in(flags, self));
    }

    /// Submits held-back bios. Called before waiting for them.
    fn unplug(&self) {
        self.plug.flush();
    }

    /// Submits held-back bios if the visit is about to yield.
    fn unplug_before_yield(&self, visiting: &Visiting<'_>) {
        if visiting.is_spent() {
            self.unplug();
        }
    }

    /// If more than [`Self::MOST_RUNS`] of the longest runs are in flight, waits until there is
    /// room for several again. Meanwhile finishes ended runs of `file`.
    async fn make_room(&mut self, run_pages: u64, file: &Arc<Inner>) {
        let pages = self.in_flight.lock().pages;
        if pages > Self::MOST_RUNS * run_pages {
            // Drain in batches: bios submitted together pay for the device's path once.
            self.drain_to(Self::MOST_RUNS * run_pages / 4 * 3, file).await;
        } else if file.has_ended() {
            self.drain_to(u64::MAX, file).await;
        }
    }

    /// Waits until at most `pages` pages are in flight. Meanwhile finishes ended runs of `file`.
    async fn drain_to(&mut self, pages: u64, file: &Arc<Inner>) {
        loop {
            if file.has_ended() {
                self.unplug();
                file.finish_ended().await;
            }
            let is_over = std::future::poll_fn(|cx| {
                let mut in_flight = self.in_flight.lock();
                if in_flight.pages <= pages {
                    return Poll::Ready(true);
                }
                drop(in_flight);
                self.unplug();
                in_flight = self.in_flight.lock();
                if in_flight.pages <= pages {
                    return Poll::Ready(true);
                }
                // A run is queued in `ended` before the waiter of its window is woken, so this
                // check misses none.
                if file.has_ended() {
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
        self.unplug();
    }
}

impl Shared {
    /// Polls `work` once, here; if it would wait, hands the rest to a task.
    fn see_off(&self, work: impl Future<Output = ()> + Send + 'static) {
        let mut work = Box::pin(work);
        if work.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
            drop(self.rt.spawn("write-back", extant_rt::Class::Normal, work));
        }
    }
}

impl Inner {
    /// Writes back the pages of `pages` that are dirty now, and waits for them and for those
    /// already under way. Pages dirtied meanwhile may be left.
    ///
    /// # Errors
    /// The last error that the mapping's log recorded since this call began. It stays in the log.
    pub(crate) async fn write_back(self: &Arc<Self>, pages: PageRange, flags: BioFlags) -> Result<()> {
        let shared = self.shared.clone();
        let most = shared.settings.run_pages;
        // A run under write-back now has not recorded its error yet. An appender may dirty pages as
        // fast as they are written, so pages dirtied past the current end are left.
        let (mut since, end) = {
            let state = self.pages.lock();
            let first = [&state.dirty, &*state.writeback].map(|set| set.first_in(pages.indices()));
            if first == [None, None] {
                return Ok(());
            }
            (self.errors.now(), pages.end.min(state.dirty.end()))
        };
        let mut waited_for = None;
        let mut window = Window::new(&shared, &self.disk);
        let mut visiting = Visiting::new(&shared.rt, &*shared.pass);
        let mut at = pages.start;
        while at < end {
            window.unplug_before_yield(&visiting);
            match self.take_step(PageRange::new(at, end), u64::MAX, &mut visiting).await {
                Taken::Run(run) => {
                    at = run.pages().end;
                    window.push(run, flags);
                    window.make_room(most, self).await;
                }
                Taken::Clean => break,
                // Another task has taken the page since. Its run includes what was dirty when this
                // began, and is waited for below.
                Taken::InFlight(index) if waited_for == Some(index) => at = index + 1,
                Taken::InFlight(index) => {
                    (at, waited_for) = (index, Some(index));
                    window.unplug();
                    self.wait_for_writeback(PageRange::one(index)).await;
                }
                Taken::Busy(index) => {
                    at = index;
                    window.unplug();
                    shared.rt.yield_now().await;
                }
            }
        }
        window.drain_to(0, self).await;
        self.wait_for_writeback(pages).await;
        self.errors.peek(&mut since)
    }

    /// Submits the pages of `pages` that are dirty now and not under write-back, and waits for none
    /// of them. A page whose backing must wait to place it is submitted later.
    pub(crate) async fn begin_write_back(self: &Arc<Self>, pages: PageRange) {
        let shared = self.shared.clone();
        let end = pages.end.min(self.pages.lock().dirty.end());
        let mut window = Window::new(&shared, &self.disk);
        let mut visiting = Visiting::new(&shared.rt, &*shared.pass);
        let mut at = pages.start;
        while at < end {
            window.unplug_before_yield(&visiting);
            match self.take_step(PageRange::new(at, end), u64::MAX, &mut visiting).await {
                Taken::Run(run) => {
                    at = run.pages().end;
                    window.push(run, BioFlags::empty());
                }
                Taken::Clean => break,
                Taken::InFlight(index) | Taken::Busy(index) => at = index + 1,
            }
        }
    }
}

/// Starts the write-back of everything dirty in a file now, without waiting for pages in flight.
/// Returns false if it met one.
async fn begin(file: &Arc<Inner>, window: &mut Window, visiting: &mut Visiting<'_>, run_pages: u64) -> bool {
    visiting.next(&*file.shared.pass);
    // Excludes what an appender dirties past this end meanwhile.
    let (mut at, end) = (0, file.pages.lock().dirty.end());
    loop {
        window.unplug_before_yield(visiting);
        match file.take_step(PageRange::new(at, end), u64::MAX, visiting).await {
            Taken::Run(run) => {
                at = run.pages().end;
                window.push(run, BioFlags::SYNC);
                window.make_room(run_pages, file).await;
            }
            Taken::Clean => return true,
            Taken::InFlight(_) | Taken::Busy(_) => return false,
        }
    }
}

/// Writes back every file of a device that is dirty now, all concurrently. Waits for them and for
/// writes already under way.
pub(crate) async fn write_back_all(shared: &Arc<Shared>, disk: &DiskState) {
    let most = shared.settings.run_pages;
    let mut window = Window::new(shared, disk);
    let mut left = Vec::new();
    let mut visiting = Visiting::new(&shared.rt, &*shared.pass);
    // Without a flusher there is no list, and any file may be dirty.
    let files = disk.listed().unwrap_or_else(|| shared.files_of(disk));
    for file in files {
        if !begin(&file, &mut window, &mut visiting, most).await {
            // A wait for one page must not delay other files.
            left.push(file.clone());
        }
    }
    drop(window);
    for file in left {
        // Errors are in the logs.
        let _ = file.write_back(PageRange::ALL, BioFlags::SYNC).await;
    }
    let mut budget = shared.rt.budget(ByRuns::STINT);
    // Files that are clean but under write-back are on no list. This also waits for the window's
    // runs.
    for file in shared.files_of(disk) {
        file.wait_for_writeback(PageRange::ALL).await;
        budget.resched().await;
    }
}

/// Like [`Inner::write_back`], for several files of one device. Their runs are placed file by file,
/// in order. Returns each file's result.
pub(crate) async fn write_back_files(
    shared: &Arc<Shared>,
    disk: &DiskState,
    files: &[Arc<Inner>],
) -> Vec<Result<()>> {
    let most = shared.settings.run_pages;
    let mut since: Vec<_> = files
        .iter()
        .map(|file| {
            let _pages = file.pages.lock();
            file.errors.now()
        })
        .collect();
    let mut window = Window::new(shared, disk);
    let mut visiting = Visiting::new(&shared.rt, &*shared.pass);
    let mut left = Vec::new();
    for file in files {
        if !begin(file, &mut window, &mut visiting, most).await {
            left.push(file);
        }
    }
    drop(window);
    for file in left {
        // Errors are in the log.
        let _ = file.write_back(PageRange::ALL, BioFlags::SYNC).await;
    }
    let mut results = Vec::with_capacity(files.len());
    for (file, since) in files.iter().zip(&mut since) {
        file.wait_for_writeback(PageRange::ALL).await;
        results.push(file.errors.peek(since));
    }
    results
}
