//! A file that was emptied when it was opened (`O_TRUNC`), for new contents.
//!
//! The old contents stay on the volume until new ones are there: the transaction that logs the first of these frees the old
//! ones, so that after a crash the file has the one or the other. Without new contents, a sync or the close of the file logs
//! that it is empty. A file of which the removal does not fit beside other changes in one handle, or whose contents lie in
//! the inode, is emptied at once.

use super::contents::Contents;
use super::removal::{Removal, free_from};
use super::resize::RECORD_CREDITS;
use super::write::OpenFile;
use crate::Result;
use crate::inode::{Orphan, Orphans};
use crate::journal::Credits;
use extant_cache::ByteRange;
use extant_rt::Class;
use futures_util::future::BoxFuture;
use std::sync::atomic::Ordering;

/// Credits that the removal of old contents may take beside the log of new ones.
const CREDITS_MAX: u32 = 64;

impl OpenFile {
    /// Empties the file for new contents, as `O_TRUNC` does. After a crash it has its old contents until new ones were
    /// written, or it was synced or closed; see [`OpenFile::set_size`] for a truncation that is ordered like other operations.
    ///
    /// # Errors
    /// As [`OpenFile::set_size`].
    pub fn empty(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(self.contents.writer.guarded(self.change_size(0, true)))
    }

    /// The last open file was closed: what it was emptied for is written, in the background of a volume that has one.
    pub(super) fn finish_emptied(&self) {
        let (contents, mapping) = (self.contents.clone(), self.mapping.clone());
        if !contents.is_emptied() || !contents.writer.journal.has_background() {
            return;
        }
        let rt = contents.writer.rt.clone();
        drop(rt.spawn("write-back at close", Class::Normal, async move {
            // A failure is reported to the next sync, which tries again.
            if mapping.write_back(ByteRange::ALL).await.is_ok() {
                let _ = contents.log_emptied().await;
            }
        }));
    }
}

impl Contents {
    /// Whether the volume still has the contents that the file was emptied of.
    pub(super) fn is_emptied(&self) -> bool {
        self.emptied.load(Ordering::Acquire) > 0
    }

    /// The blocks that it still has of them.
    pub(super) fn emptied_blocks(&self) -> u64 {
        self.emptied.load(Ordering::Acquire).saturating_sub(1)
    }

    /// Leaves the removal of old contents to the log of new ones, where it is small; gives whether it did. The file has no
    /// pages and nothing in flight, and the caller holds `edits`.
    pub(super) async fn delay_removal(&self) -> bool {
        if self.is_emptied() {
            return true;
        }
        let removal = Removal::plan(&self.writer, &self.cell, 0).await;
        let Some(removal) = removal.ok().filter(|removal| removal.is_whole()) else { return false };
        if removal.credits(self.sb()) > CREDITS_MAX {
            return false;
        }
        self.touch();
        self.emptied.store(1 + removal.blocks(), Ordering::Release);
        true
    }

    /// Logs that the file is empty, if new contents have not.
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

    /// Frees what the file was emptied of. The caller holds `edits`.
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
                live.version += 1;
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
