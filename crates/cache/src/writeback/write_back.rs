//! Writes back a file, several files, or all files of a device.

use crate::file::{CacheCore, CachedDevice, CachedFile};
use crate::pass_policy::ByRuns;
use crate::writeback::pass_yields::Visiting;
use crate::writeback::take_dirty::Taken;
use crate::writeback::window::Window;
use crate::{PageRange, Result};
use extant_block::BioFlags;
use std::sync::Arc;

impl CachedFile {
    /// Writes back the pages of `pages` that are dirty now, and waits for them and for those
    /// already under way. Pages dirtied meanwhile may be left.
    ///
    /// # Errors
    /// The last error that the mapping's log recorded since this call began. It stays in the log.
    pub(crate) async fn write_back(self: &Arc<Self>, pages: PageRange, flags: BioFlags) -> Result<()> {
        let core = self.core.clone();
        let most = core.settings.run_pages;
        // A run under write-back now has not recorded its error yet. An appender may dirty pages as
        // fast as they are written, so pages dirtied past the current end are left.
        let (mut since, end) = {
            let state = self.lock_pages();
            let (dirty, writeback) = (state.dirty(), state.writeback());
            if dirty.first_in(pages.indices()).or(writeback.first_in(pages.indices())).is_none() {
                return Ok(());
            }
            (self.errors.now(), pages.end.min(dirty.end()))
        };
        let mut waited_for = None;
        let mut window = Window::new(&core, &self.disk, flags);
        let mut visiting = Visiting::new(&core.rt, &*core.pass);
        let mut at = pages.start;
        while at < end {
            window.submit_before_yield(&visiting);
            match self.take_step(PageRange::new(at, end), u64::MAX, &mut visiting, &window).await {
                Taken::Run(run) => {
                    at = run.pages().end;
                    window.push(run);
                    window.make_room(most, self).await;
                }
                Taken::Clean => break,
                // Another task has taken the page since. Its run includes what was dirty when this
                // began, and is waited for below.
                Taken::InFlight(index) if waited_for == Some(index) => at = index + 1,
                Taken::InFlight(index) => {
                    (at, waited_for) = (index, Some(index));
                    window.submit();
                    self.wait_for_writeback(PageRange::one(index)).await;
                }
                Taken::Busy(index) => {
                    at = index;
                    window.submit();
                    core.rt.yield_now().await;
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
        let core = self.core.clone();
        let end = pages.end.min(self.lock_pages().dirty().end());
        let mut window = Window::new(&core, &self.disk, BioFlags::empty());
        let mut visiting = Visiting::new(&core.rt, &*core.pass);
        let mut at = pages.start;
        while at < end {
            window.submit_before_yield(&visiting);
            match self.take_step(PageRange::new(at, end), u64::MAX, &mut visiting, &window).await {
                Taken::Run(run) => {
                    at = run.pages().end;
                    window.push(run);
                }
                Taken::Clean => break,
                Taken::InFlight(index) | Taken::Busy(index) => at = index + 1,
            }
        }
    }
}

/// Starts the write-back of everything dirty in a file now, without waiting for pages in flight.
/// Returns false if it met one.
async fn begin(
    file: &Arc<CachedFile>,
    window: &mut Window,
    visiting: &mut Visiting<'_>,
    run_pages: u64,
) -> bool {
    visiting.next(&*file.core.pass);
    // The fixed end excludes pages that an appender dirties past it meanwhile.
    let (mut at, end) = (0, file.lock_pages().dirty().end());
    loop {
        window.submit_before_yield(visiting);
        match file.take_step(PageRange::new(at, end), u64::MAX, visiting, window).await {
            Taken::Run(run) => {
                at = run.pages().end;
                window.push(run);
                window.make_room(run_pages, file).await;
            }
            Taken::Clean => return true,
            Taken::InFlight(_) | Taken::Busy(_) => return false,
        }
    }
}

/// Writes back every file of a device that is dirty now, all concurrently. Waits for them and for
/// writes already under way.
pub(crate) async fn write_back_all(core: &Arc<CacheCore>, disk: &CachedDevice) {
    let most = core.settings.run_pages;
    let mut window = Window::new(core, disk, BioFlags::SYNC);
    let mut left = Vec::new();
    let mut visiting = Visiting::new(&core.rt, &*core.pass);
    // Without a flusher there is no list, and any file may be dirty.
    let files = disk.turns.all().unwrap_or_else(|| core.files_of(disk));
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
    let mut budget = core.rt.budget(ByRuns::STINT);
    // Files that are clean but under write-back are on no list. This also waits for the window's
    // runs.
    for file in core.files_of(disk) {
        file.wait_for_writeback(PageRange::ALL).await;
        budget.resched().await;
    }
}

/// Like [`CachedFile::write_back`], for several files of one device. Their runs are placed file by
/// file, in order. Returns each file's result.
pub(crate) async fn write_back_files(
    core: &Arc<CacheCore>,
    disk: &CachedDevice,
    files: &[Arc<CachedFile>],
) -> Vec<Result<()>> {
    let most = core.settings.run_pages;
    let mut since: Vec<_> = files
        .iter()
        .map(|file| {
            let _pages = file.lock_pages();
            file.errors.now()
        })
        .collect();
    let mut window = Window::new(core, disk, BioFlags::SYNC);
    let mut visiting = Visiting::new(&core.rt, &*core.pass);
    let mut left = Vec::new();
    for file in files {
        if !begin(file, &mut window, &mut visiting, most).await {
            left.push(file);
        }
    }
    drop(window);
    for file in left {
        // A failure is in the file's error log, which is read below.
        let _ = file.write_back(PageRange::ALL, BioFlags::SYNC).await;
    }
    let mut results = Vec::with_capacity(files.len());
    for (file, since) in files.iter().zip(&mut since) {
        file.wait_for_writeback(PageRange::ALL).await;
        results.push(file.errors.peek(since));
    }
    results
}
