//! Decides who waits and who gets an error when no frame is free, or no more pages may become
//! dirty.

use crate::dirty::ledger::NoRoom;
use crate::file::CacheCore;
use crate::open_file::CachedOpenFile;
use crate::open_file::pause_trace::Pause;
use crate::pages::cached_write::{WriteStop, Wrote};
use crate::waits::{Condition, Waiting};
use crate::{CacheError, Result};
use std::sync::Arc;

/// The waits of one write.
pub(super) struct RoomWait<'a> {
    open: &'a CachedOpenFile,
    pub(super) waiting: Waiting,
    /// Set once the failing device gets one more try on behalf of this writer.
    is_refused: bool,
    /// Traces the wait of a writer that has hit the dirty limits, as opposed to a pause by the
    /// controller.
    pause: Option<Pause<'a>>,
}

impl<'a> RoomWait<'a> {
    pub(super) fn new(open: &'a CachedOpenFile) -> Self {
        Self { open, waiting: Waiting::No, is_refused: false, pause: None }
    }

    /// Notes how far the write has come, and why it stopped.
    pub(super) fn stopped(&mut self, wrote: Wrote, stop: WriteStop) {
        if wrote.bytes > 0 {
            let has_used = |on| if on == Condition::Frames { wrote.frames > 0 } else { wrote.dirtied > 0 };
            self.waiting.took(has_used);
            self.is_refused = false;
            self.pause = None;
        }
        let rule = match stop {
            WriteStop::NoRoom(NoRoom::Everywhere) => "limit",
            WriteStop::NoRoom(NoRoom::OnDevice(_)) => "device limit",
            WriteStop::NoRoom(NoRoom::Unplaceable) | WriteStop::NoFrames => "no frames",
            WriteStop::Missing(_) => return,
            _ => return self.waiting.leave(),
        };
        if self.waiting.is_waiting() && self.pause.is_none() {
            self.pause = Pause::begin(&self.open.file, rule, self.open.writer.lock().dirtied_pages());
        }
    }

    /// Waits for room, or for a reason why there will be none.
    ///
    /// # Errors
    /// There will be no room: the cache is closed, the file's pages have no place, the device
    /// fails, or files without a place and failing devices hold all the room.
    pub(super) async fn for_room(&mut self, reason: NoRoom) -> Result<()> {
        let (file, core, disk) = (&self.open.file, &self.open.file.core, &self.open.file.disk);
        if core.is_closed() {
            return Err(CacheError::ShutDown);
        }
        if reason == NoRoom::Unplaceable {
            return file.why_unplaceable().map_or(Ok(()), Err);
        }
        let failure = disk.ledger.holds_up().then(|| disk.health.failure()).flatten();
        // Unplaceable files and other failing devices hold all the room, and nothing in flight will
        // release any.
        let held_up = failure.is_none().then(|| core.held_up_room()).flatten();
        let refusal = if self.is_refused { failure.clone() } else { None };
        if let Some(error) = held_up.or(refusal) {
            // The token counts as used, since the writer has checked. If it were passed on, the
            // wake would circulate among writers that all get an error.
            self.waiting.took(|_| true);
            return Err(error);
        }
        self.is_refused = failure.is_some() && self.waiting.is_waiting();
        if reason == NoRoom::Everywhere {
            want_frames(core, false);
        }
        if matches!(reason, NoRoom::OnDevice(_)) || failure.is_some() {
            disk.want(core);
        }
        self.waiting.wait(&core.waits, reason.condition()).await;
        Ok(())
    }
}

/// Bytes that clients are asked to give back when frames are short.
const WANTED_BYTES: u64 = 256 << 10;

/// Waits for a frame. If there are eviction candidates, they are in use only for the time of a
/// copy. Nothing announces the end of such a use, so this just yields.
///
/// # Errors
/// Every frame holds a dirty page, either of a failing device that has been tried once more, or of
/// a file that its backing could not place. Or the world has ended, along with the tasks that free
/// frames.
pub(super) async fn wait_for_frames(core: &Arc<CacheCore>, waiting: &mut Waiting) -> Result<()> {
    if core.pool.evictable_frames() > 0 {
        core.rt.yield_now().await;
        return Ok(());
    }
    if core.is_forsaken() {
        waiting.took(|_| true);
        return Err(CacheError::ShutDown);
    }
    let held_up = core.held_up_frames();
    if let Some(error) = &held_up
        && waiting.has_waited(Condition::Frames)
    {
        waiting.took(|_| true);
        return Err(error.clone());
    }
    want_frames(core, held_up.is_some());
    waiting.wait(&core.waits, Condition::Frames).await;
    Ok(())
}

/// Makes flushers work and clients give memory back, because a caller waits for frames or room.
/// Flushers of failing devices are included only if nothing else is left; otherwise they would be
/// retried over and over on behalf of others.
fn want_frames(core: &Arc<CacheCore>, even_failing: bool) {
    core.shrink_accounts(WANTED_BYTES);
    for disk in core.disks.read().iter() {
        if disk.ledger.amounts().dirty_pages > 0 && (even_failing || !disk.health.is_failing()) {
            disk.want(core);
        }
    }
}
