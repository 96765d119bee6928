//! Changes a file's size and frees the blocks it cuts off.
//!
//! A file shrinks in steps that each fit one transaction and leave a valid file. If there is more
//! than one step, the inode is on the orphan list from the first step, which records the new size,
//! until the last. Without a journal there is no orphan list. There e2fsck discards a written
//! extent that ends beyond the size, including its blocks below the size, so the size is recorded
//! in the last step instead.

use super::cache_errors::cache_error;
use super::contents::Contents;
use super::freeing::{FreeingStep, free_from};
use super::open_file::OpenFile;
use super::size_on_disk::RECORD_CREDITS;
use crate::inode::{Orphan, Orphans};
use crate::journal::{Credits, Handle};
use crate::meta::InodeCell;
use crate::writer::Writer;
use crate::{Error, Result};
use extant_cache::ByteRange;
use extant_format::{BlockRange, Inode, InodeFlags, Timestamp};
use futures_util::future::BoxFuture;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Times that a file gets with a new size, in the same step. Others become the current time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dates {
    /// Last access, which otherwise stays as it is.
    pub accessed: Option<Timestamp>,
    /// Last change of the contents.
    pub modified: Option<Timestamp>,
    /// Last change of the inode; see [`SetAttributes::changed`](crate::SetAttributes::changed).
    pub changed: Option<Timestamp>,
}

impl Dates {
    fn apply(self, handle: &mut Handle, cell: &Arc<InodeCell>) {
        let mut inode = handle.inode(cell);
        if let Some(accessed) = self.accessed {
            inode.set_accessed(accessed);
        }
        if let Some(modified) = self.modified {
            inode.set_modified(modified);
        }
        if let Some(changed) = self.changed {
            inode.set_changed(changed);
        }
    }
}

/// Frees the blocks past the size of an inode whose truncation a crash interrupted, and takes it
/// off the orphan list.
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
    /// Sets the size in bytes. Shrinking discards the data past the new size; growing extends the
    /// file with zeroes. Durable after [`OpenFile::sync`]. Once started it runs to completion: if
    /// the caller drops the future, a task finishes it.
    ///
    /// # Errors
    /// [`Error::TooBig`]; [`Error::Permission`] for an immutable or append-only file;
    /// [`Error::ReadOnly`]; the last block cannot be read or written; the map is damaged. After an
    /// error the size may already be the new one while blocks past it are still allocated; the next
    /// open of the volume frees them.
    pub fn set_size(&self, bytes: u64) -> BoxFuture<'_, Result<()>> {
        self.set_size_dated(bytes, Dates::default())
    }

    /// As [`Self::set_size`], with these times instead of the current one.
    ///
    /// # Errors
    /// The same.
    pub fn set_size_dated(&self, bytes: u64, dates: Dates) -> BoxFuture<'_, Result<()>> {
        Box::pin(self.contents.writer.guarded(self.change_size(bytes, false, dates)))
    }

    /// With `delays`, a file that becomes empty may keep its old contents on the volume until it
    /// gets new ones (`delayed_truncate`).
    pub(super) async fn change_size(&self, bytes: u64, delays: bool, dates: Dates) -> Result<()> {
        let file = self.reopened();
        // If stopped halfway, memory would treat blocks that the volume still maps as holes.
        self.contents
            .writer
            .rt
            .unstoppable("set_size", async move { file.resize(bytes, delays, dates).await })
            .await?;
        if self.is_synchronous() { self.sync_boxed(ByteRange::ALL, false).await } else { Ok(()) }
    }

    /// Extends the file with zeroes to at least `bytes` bytes, in memory.
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
            if bytes > file.size() {
                file.resize_locked(bytes, false, Dates::default()).await
            } else {
                Ok(())
            }
        };
        self.contents.writer.rt.unstoppable("set_size", work).await
    }

    async fn resize(&self, bytes: u64, delays: bool, dates: Dates) -> Result<()> {
        let _inode = self.contents.cell.write_lock().await;
        self.resize_locked(bytes, delays, dates).await
    }

    /// Like [`Self::change_size`], but the caller holds the inode's lock.
    async fn resize_locked(&self, bytes: u64, delays: bool, dates: Dates) -> Result<()> {
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
        // Contents that never reached the volume need not be kept.
        let has_old = contents.is_emptied() || contents.recorded_bytes() > 0;
        let delays = delays && has_old && !self.is_synchronous();
        if !delays {
            contents.log_emptied().await?;
        }
        if bytes > self.size() {
            self.grow(bytes, dates).await
        } else {
            self.shrink(bytes, delays, dates).await
        }
    }

    async fn grow(&self, bytes: u64, dates: Dates) -> Result<()> {
        self.zero_last_block().await?;
        self.record_larger(bytes, dates).await
    }

    /// Zeroes the bytes from the end of the file to the end of its last block, in memory and on the
    /// device.
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
            // The zeroes must reach the device before the size that exposes them. The caller
            // publishes that size, with no other size in between.
            self.write_out(ByteRange::at(old, contents.block.bytes().into())).await?;
        }
        Ok(())
    }

    /// Publishes a larger size. The last block has been zeroed, and what follows it reads as
    /// zeroes.
    pub(super) async fn record_larger(&self, bytes: u64, dates: Dates) -> Result<()> {
        let contents = &*self.contents;
        {
            let mut handle = contents.writer.journal.start(Credits(RECORD_CREDITS)).await?;
            // Held while the size is recorded, because a run landing concurrently records the size
            // its own blocks reach.
            let mut live = contents.live.lock();
            self.record(&mut handle, bytes, dates);
            contents.note_ahead(&mut handle, &mut live, bytes);
        }
        self.mapping.set_size(bytes).await.map_err(cache_error)
    }

    /// Records a size, and the times of the change unless the caller sets them itself.
    fn record(&self, handle: &mut Handle, bytes: u64, dates: Dates) {
        match self.options.keeps_times {
            true => self.contents.record(handle, bytes),
            false => self.contents.record_dated(handle, bytes),
        }
        dates.apply(handle, &self.contents.cell);
    }

    /// Publishes a smaller size in memory and zeroes the rest of the last block on the device. The
    /// caller excludes others from the range being cut off.
    pub(super) async fn cut_pages(&self, bytes: u64) -> Result<()> {
        let contents = &*self.contents;
        let unit = u64::from(contents.block.bytes());
        let mut pending = Vec::new();
        // A block that already reads as zeroes is not zeroed, so it does not become dirty.
        if bytes < self.size() && contents.ends_in_data(bytes).await? {
            let blocks = contents.blocks_of(ByteRange::at(bytes, 1));
            pending = contents.reserve(blocks, self.privilege()).await?;
        }
        if let Err(error) = self.mapping.set_size(bytes).await {
            contents.unreserve_all(&pending, 0);
            return Err(cache_error(error));
        }
        // The smaller size is already in memory. The next sync reports a failure, and its
        // write-back retries.
        let _ = self.write_out(ByteRange::new(bytes / unit * unit, bytes)).await;
        Ok(())
    }

    async fn shrink(&self, bytes: u64, delays: bool, dates: Dates) -> Result<()> {
        let contents = &*self.contents;
        let from = contents.block.blocks_for(bytes);
        let behind = BlockRange::from_block(from);
        self.settle_around(behind).await?;
        // Includes the rest of the last remaining block, which is zeroed: none of its pages may be
        // read meanwhile.
        let cut = ByteRange::new(bytes, u64::MAX);
        let exclusion = self.mapping.exclude(cut).await;
        // The rest of the last block must be zero on the device before the smaller size is.
        self.cut_pages(bytes).await?;
        // Wait for all write-back, not just that of the range being cut off: a run taken earlier
        // has the larger size and would record it when it lands. Runs taken from now on have the
        // smaller size, because writers are locked out.
        self.mapping.wait_written(ByteRange::ALL).await;
        let given_back = {
            let mut live = contents.live.lock();
            let delayed = live.map.truncate(from, bytes);
            live.last_placed = None;
            live.give_back(delayed)
        };
        drop(given_back);
        // Writes that have finished since may have allocated the last cluster.
        let settled = self.settle_around(behind).await;
        let edits = contents.edits.write().await;
        if delays && contents.delay_removal(self.options.keeps_times).await {
            return Ok(());
        }
        let orphans = &contents.writer.orphans;
        let records_size = |step: FreeingStep| if orphans.are_recorded() { step.first } else { step.last };
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
                    self.record(handle, bytes, dates);
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
            live.map.changed_on_disk();
            // A reader of a remaining block may have looked at the old map and learned its whole
            // leaf, including blocks that have now been freed. After a failure, conversely, the
            // tail may still be mapped.
            live.map.forget();
        }
        drop((edits, exclusion));
        result
    }

    /// Writes back the dirty data of a range and waits until it is logged.
    pub(super) async fn write_out(&self, bytes: ByteRange) -> Result<()> {
        self.mapping.write_back(bytes).await.map_err(cache_error)
    }
}

impl Contents {
    /// Discards all dirty state of a file that is being deleted and is no longer read or written.
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
}
