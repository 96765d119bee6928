//! Changing a file's size, and freeing what that cuts off.
//!
//! A file shrinks in steps that each fit one transaction and leave a valid file. Where there is more than one, the inode is
//! an orphan from the first, which records the new size, to the last. Without a journal there are no orphans, and e2fsck gives up
//! a written extent that ends behind the size with all that lies before it: the last step records the size there.

use super::backing::{LARGE_FILE_BYTES, ensure_large_file};
use super::contents::Contents;
use super::inline;
use super::removal::{Step, free_from};
use super::write::{OpenFile, cache_error};
use crate::inode::{Orphan, Orphans};
use crate::journal::{Credits, Handle};
use crate::meta::InodeCell;
use crate::writer::Writer;
use crate::{Error, Result};
use extant_cache::ByteRange;
use extant_format::{BlockRange, Inode, InodeFlags};
use futures_util::future::BoxFuture;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Credits of [`Contents::record`] and [`Contents::note_ahead`]: the inode, and the superblock, which may have to name a
/// feature.
pub(super) const RECORD_CREDITS: u32 = 2 + Orphans::CREDITS;

/// Frees what lies beyond the size of an inode that a crash left with more, and takes it off the orphans.
///
/// # Errors
/// As [`free_from`].
pub(crate) async fn finish_shrink(writer: &Writer, cell: &Arc<InodeCell>) -> Result<()> {
    let from = writer.store.shape().block_size().blocks_for(cell.read(Inode::size));
    free_from(writer, cell, from, Credits(Orphans::CREDITS), |handle, step| {
        if step.last {
            writer.orphans.finish(handle, cell);
        }
    })
    .await
}

impl OpenFile {
    /// Sets the size in bytes. A smaller size discards the data past it; a larger one extends the file with zeroes. Durable
    /// after [`OpenFile::sync`]. Once begun it comes to its end: a caller that drops the future leaves it to a task.
    ///
    /// # Errors
    /// [`Error::TooBig`]; [`Error::Permission`] for an immutable or append-only file; [`Error::ReadOnly`]; the last block
    /// cannot be read or written; a damaged map. After an error the size may be the new one with blocks still in use, which
    /// opening the volume again frees.
    pub fn set_size(&self, bytes: u64) -> BoxFuture<'_, Result<()>> {
        Box::pin(self.contents.writer.guarded(self.change_size(bytes, false)))
    }

    /// With `delays`, a file that becomes empty may keep its contents on the volume until it has others (`emptied`).
    pub(super) async fn change_size(&self, bytes: u64, delays: bool) -> Result<()> {
        let file = self.reopened();
        // Half done, memory would take for holes what the volume still maps.
        self.contents
            .writer
            .rt
            .unstoppable("set_size", async move { file.resize(bytes, delays).await })
            .await?;
        if self.is_synchronous() { self.sync_boxed(ByteRange::ALL, false).await } else { Ok(()) }
    }

    /// Extends the file with zeroes to at least so many bytes. Durable after [`OpenFile::sync`].
    ///
    /// # Errors
    /// As [`Self::set_size`].
    pub(super) async fn grow_over(&self, bytes: u64) -> Result<()> {
        if bytes <= self.size() {
            return Ok(());
        }
        let file = self.reopened();
        let work = async move {
            let _inode = file.contents.cell.write_lock().await;
            if bytes > file.size() { file.resize_locked(bytes, false).await } else { Ok(()) }
        };
        self.contents.writer.rt.unstoppable("set_size", work).await?;
        if self.is_synchronous() { self.sync_boxed(ByteRange::ALL, false).await } else { Ok(()) }
    }

    async fn resize(&self, bytes: u64, delays: bool) -> Result<()> {
        let _inode = self.contents.cell.write_lock().await;
        self.resize_locked(bytes, delays).await
    }

    /// As [`Self::change_size`]; the caller holds the inode's lock.
    async fn resize_locked(&self, bytes: u64, delays: bool) -> Result<()> {
        let contents = &*self.contents;
        self.check_may_change(false)?;
        if bytes > contents.max_bytes() {
            return Err(Error::TooBig(format!("inode {}", self.inode())));
        }
        self.drop_privileges().await?;
        if contents.cell.read(|inode| inode.flags().contains(InodeFlags::INLINE_DATA)) {
            contents.leave_inode(&self.mapping, &self.pages, self.privilege()).await?;
            self.write_out(ByteRange::ALL).await?;
        }
        // Contents that never came to the volume need not stay there.
        let has_old = contents.is_emptied() || contents.recorded_bytes() > 0;
        let delays = delays && has_old && !self.is_synchronous();
        if !delays {
            contents.log_emptied().await?;
        }
        if bytes > self.size() { self.grow(bytes).await } else { self.shrink(bytes, delays).await }
    }

    async fn grow(&self, bytes: u64) -> Result<()> {
        self.zero_last_block().await?;
        self.record_larger(bytes).await
    }

    /// Zeroes what lies between the file's end and the end of its last block, on the device, too.
    pub(super) async fn zero_last_block(&self) -> Result<()> {
        let contents = &*self.contents;
        let old = self.size();
        if contents.ends_in_data(old).await? {
            let blocks = contents.blocks_of(ByteRange::at(old, 1));
            let pending = contents.reserve(blocks, self.privilege()).await?;
            if let Err(error) = self.mapping.zero_past_end().await {
                contents.unreserve_all(&pending, 0);
                return Err(cache_error(error));
            }
            // Zeroes come to the device before the size that shows them; it is the caller's, and no other between.
            self.write_out(ByteRange::at(old, contents.block.bytes().into())).await?;
        }
        Ok(())
    }

    /// Makes a larger size the file's, over its last block that is zeroed and what reads as zeroes behind it.
    pub(super) async fn record_larger(&self, bytes: u64) -> Result<()> {
        let contents = &*self.contents;
        {
            let mut handle = contents.writer.journal.start(Credits(RECORD_CREDITS)).await?;
            // Held while the size is recorded: a run that lands beside it records the one that its blocks reach.
            let mut live = contents.live.lock();
            contents.record(&mut handle, bytes);
            contents.note_ahead(&mut handle, &mut live, bytes);
        }
        self.mapping.set_size(bytes).await.map_err(cache_error)
    }

    /// Makes a smaller size the file's in memory, and has the rest of its last block zeroed on the device. The caller excludes
    /// others from what is cut off.
    pub(super) async fn cut_pages(&self, bytes: u64) -> Result<()> {
        let contents = &*self.contents;
        let unit = u64::from(contents.block.bytes());
        let mut pending = Vec::new();
        // A block that reads as zeroes is not zeroed, and so not dirty afterwards.
        if bytes < self.size() && contents.ends_in_data(bytes).await? {
            let blocks = contents.blocks_of(ByteRange::at(bytes, 1));
            pending = contents.reserve(blocks, self.privilege()).await?;
        }
        if let Err(error) = self.mapping.set_size(bytes).await {
            contents.unreserve_all(&pending, 0);
            return Err(cache_error(error));
        }
        // Memory has the smaller size by now: a failure is told by the next sync, whose write-back tries again.
        let _ = self.write_out(ByteRange::new(bytes / unit * unit, bytes)).await;
        Ok(())
    }

    async fn shrink(&self, bytes: u64, delays: bool) -> Result<()> {
        let contents = &*self.contents;
        let from = contents.block.blocks_for(bytes);
        let behind = BlockRange::from_block(from);
        self.settle_around(behind).await?;
        // From the last block that stays on: its rest is zeroed, and no page of it is read meanwhile.
        let cut = ByteRange::new(bytes, u64::MAX);
        let exclusion = self.mapping.exclude(cut).await;
        // The rest of the last block is zero on the device before the smaller size is.
        self.cut_pages(bytes).await?;
        // All write-back, not only that of what is cut off: a run that was taken before has the larger size, and would record
        // it when it lands. Runs taken from now on have the smaller one, since writers are kept out.
        self.mapping.wait_written(ByteRange::ALL).await;
        let given_back = {
            let mut live = contents.live.lock();
            let delayed = live.map.truncate(from, bytes);
            live.last_placed = None;
            live.version += 1;
            live.give_back(delayed)
        };
        drop(given_back);
        // Writes that have ended since may have allocated the last cluster.
        let settled = self.settle_around(behind).await;
        let edits = contents.edits.write().await;
        if delays && contents.delay_removal().await {
            return Ok(());
        }
        let orphans = &contents.writer.orphans;
        let records_size = |step: Step| if orphans.are_recorded() { step.first } else { step.last };
        let freeing = free_from(
            &contents.writer,
            &contents.cell,
            from,
            Credits(RECORD_CREDITS + Orphans::CREDITS),
            |handle, step| {
                if step.first && !step.last {
                    orphans.add(handle, &contents.cell, Orphan::Shrinking);
                }
                if records_size(step) {
                    contents.record(handle, bytes);
                    contents.note_ahead(handle, &mut contents.live.lock(), bytes);
                }
                if step.last && !step.first {
                    orphans.remove(handle, &contents.cell, Orphan::Shrinking);
                }
            },
        );
        let result = match settled {
            Ok(()) => freeing.await,
            Err(error) => Err(error),
        };
        {
            let mut live = contents.live.lock();
            live.version += 1;
            // A reader of a kept block may have looked at the map before it changed, and learned all of its leaf: blocks that
            // are freed now among them. After a failure, on the other hand, the tail may still be mapped.
            live.map.forget();
        }
        drop((edits, exclusion));
        result
    }

    /// Writes back what is dirty in a range and waits until it is logged.
    pub(super) async fn write_out(&self, bytes: ByteRange) -> Result<()> {
        self.mapping.write_back(bytes).await.map_err(cache_error)
    }
}

impl Contents {
    /// Records a size that a caller asked for, with the times of the change. Contents in the inode have been written to blocks;
    /// an inode that has none, and still is one for contents in it, is not from now on: it could not have such a size.
    pub(super) fn record(&self, handle: &mut Handle, bytes: u64) {
        let now = self.writer.clock.now();
        inline::leave(handle, &self.cell, self.sb());
        {
            let mut inode = handle.inode(&self.cell);
            inode.set_size(bytes);
            let stamp = inode.stamp(now);
            inode.set_modified(stamp);
            inode.set_changed(stamp);
        }
        if bytes >= LARGE_FILE_BYTES {
            ensure_large_file(handle);
        }
    }

    /// Gives up all that is dirty of a file that is being deleted; nothing reads or writes it any more.
    pub(super) fn forget(&self) {
        self.emptied.store(0, Ordering::Release);
        let given_back = {
            let mut live = self.live.lock();
            let delayed = live.map.abandon(BlockRange::ALL);
            live.give_back(delayed)
        };
        drop(given_back);
        self.writer.alloc.close_window(self.number());
    }

    /// Whether the recorded size covers `bytes`.
    pub(super) fn has_recorded(&self, bytes: u64) -> bool {
        !self.is_emptied() && self.cell.read(Inode::size) >= bytes
    }
}
