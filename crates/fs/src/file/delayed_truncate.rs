//! Files emptied at open (`O_TRUNC`) to get new contents.
//!
//! The old contents stay on the volume until the new ones arrive. The transaction that logs the
//! first new blocks frees the old ones, so after a crash the file has one or the other. If no new
//! contents come, a sync or the last close logs that the file is empty. A file is emptied at once
//! if its contents are in the inode, or if removing them does not fit in one handle together with
//! other changes.

use super::contents::Contents;
use super::freeing::{Removal, free_from};
use super::open_file::OpenFile;
use super::resize::Dates;
use super::size_on_disk::RECORD_CREDITS;
use crate::Result;
use crate::inode::{Orphan, Orphans};
use crate::journal::Credits;
use extant_cache::ByteRange;
use extant_rt::Class;
use futures_util::future::BoxFuture;
use std::sync::atomic::Ordering;

/// Maximum number of credits that the removal of old contents may add to the handle that logs the
/// new ones.
const CREDITS_MAX: u32 = 64;

impl OpenFile {
    /// Empties the file so that it can be rewritten, as `O_TRUNC` does. After a crash the file may
    /// have its old contents until new ones have been written, or it has been synced or closed. For
    /// a truncation ordered like other operations, see [`OpenFile::set_size`].
    ///
    /// # Errors
    /// As [`OpenFile::set_size`].
    pub fn empty(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(self.contents.writer.guarded(self.change_size(0, true, Dates::default())))
    }

    /// Called at the last close. Writes the new contents of an emptied file in the background, if
    /// the volume has background tasks.
    pub(super) fn finish_emptied(&self) {
        let (contents, mapping) = (self.contents.clone(), self.mapping.clone());
        if !contents.is_emptied() || !contents.writer.journal.has_background() {
            return;
        }
        let rt = contents.writer.rt.clone();
        drop(rt.spawn("write-back at close", Class::Normal, async move {
            // The next sync reports a failure and retries.
            if mapping.write_back(ByteRange::ALL).await.is_ok() {
                let _ = contents.log_emptied().await;
            }
        }));
    }
}

impl Contents {
    /// Whether the volume still holds the contents from before the file was emptied.
    pub(super) fn is_emptied(&self) -> bool {
        self.emptied.load(Ordering::Acquire) > 0
    }

    /// Blocks of the old contents still on the volume.
    pub(super) fn emptied_blocks(&self) -> u64 {
        self.emptied.load(Ordering::Acquire).saturating_sub(1)
    }

    /// Defers the removal of the old contents to the handle that logs new ones, if the removal is
    /// small. Returns whether it did. The file has no pages and no writes in flight, and the caller
    /// holds `edits`. The times change now, unless the caller keeps them.
    pub(super) async fn delay_removal(&self, keeps_times: bool) -> bool {
        if self.is_emptied() {
            return true;
        }
        let removal = Removal::plan(&self.writer, &self.cell, 0).await;
        let Some(removal) = removal.ok().filter(|removal| removal.is_whole()) else { return false };
        if removal.credits(self.sb()) > CREDITS_MAX {
            return false;
        }
        if !keeps_times {
            self.touch();
        }
        self.emptied.store(1 + removal.blocks(), Ordering::Release);
        true
    }

    /// Logs that the file is empty, unless new contents have been logged.
    ///
    /// # Errors
    /// As [`free_from`].
    pub(super) async fn log_emptied(&self) -> Result<()> {
        if !self.is_emptied() {
            return Ok(());
        }
        let _edits = self.edits.write().await;
        if self.is_emptied() { self.free_old().await } else { Ok(()) }
    }

    /// Frees the old contents of an emptied file. The caller holds `edits`.
    pub(super) async fn free_old(&self) -> Result<()> {
        let orphans = &self.writer.orphans;
        let credits = Credits(RECORD_CREDITS + Orphans::CREDITS);
        let freed = free_from(&self.writer, &self.cell, 0, credits, |handle, step| {
            if step.first && !step.last {
                orphans.add(handle, &self.cell, Orphan::Shrinking);
            }
            if step.first {
                self.record(handle, 0);
                let mut live = self.live.lock();
                live.map.changed_on_disk();
                self.note_ahead(handle, &mut live, 0);
                self.emptied.store(0, Ordering::Release);
            }
            if step.last && !step.first {
                orphans.remove(handle, &self.cell, Orphan::Shrinking);
            }
        });
        freed.await
    }
}
