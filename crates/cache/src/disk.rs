//! A device's public handle.

use crate::accounts::{Account, AccountConfig};
use crate::backing::Backing;
use crate::dirty::control_interface::DeviceIndex;
use crate::file::{CacheCore, CachedDevice, CachedFile};
use crate::mapping::Mapping;
use crate::page::PAGE;
use crate::writeback::write_back::{write_back_all, write_back_files};
use crate::{CacheError, Result};
use extant_block::{Bio, Device, IoError};
use std::sync::Arc;

/// A device whose files are cached. Cheap to clone.
///
/// The cache releases the device once the last clone and the last [`Mapping`] are gone and
/// everything dirty is durable. A device with an unreported error is kept until
/// [`PageCache::close`](crate::PageCache::close).
#[derive(Debug)]
pub struct Disk {
    pub(crate) core: Arc<CacheCore>,
    pub(crate) state: Arc<CachedDevice>,
}

impl Disk {
    pub(crate) fn new(core: &Arc<CacheCore>, state: &Arc<CachedDevice>) -> Self {
        state.hold();
        Self { core: core.clone(), state: state.clone() }
    }
}

impl Clone for Disk {
    fn clone(&self) -> Self {
        Self::new(&self.core, &self.state)
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        self.state.release(&self.core);
    }
}

impl Disk {
    /// Creates a mapping for a file of `size` bytes on this device. `inode` names it in traces.
    ///
    /// # Panics
    /// The file is larger than [`crate::MAX_FILE_BYTES`].
    pub fn mapping(&self, backing: Arc<dyn Backing>, inode: u64, size: u64) -> Mapping {
        assert!(size <= crate::MAX_FILE_BYTES, "a file of {size} bytes is larger than the cache can address");
        Mapping(CachedFile::new(&self.core, &self.state, backing, inode, size))
    }

    /// The current budget of the disk's cache, in bytes.
    pub fn budget_bytes(&self) -> u64 {
        u64::from(self.core.pool.budget()) * PAGE
    }

    /// Opens an account for memory outside frames, with the cache of this disk.
    pub fn account(&self, config: AccountConfig) -> Account {
        Account::open(&self.core, config)
    }

    /// The device.
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.state.device
    }

    /// The device's number within the process.
    pub fn index(&self) -> DeviceIndex {
        self.state.index
    }

    /// Writes back the dirty pages of these files of this device, without a flush.
    ///
    /// Waits for that, and for writes that were already under way. Runs are placed file by file, in
    /// order, and written together. Returns the result for each file; errors also stay in the error
    /// log, from which [`CachedOpenFile::sync`](crate::CachedOpenFile::sync) reports them.
    pub async fn write_back(&self, files: &[Mapping]) -> Vec<Result<()>> {
        let files: Vec<_> = files.iter().map(|file| file.0.clone()).collect();
        write_back_files(&self.core, &self.state, &files).await
    }

    /// Writes back every file of this device that is dirty now, all concurrently, and flushes the
    /// device.
    ///
    /// # Errors
    /// A write-back or flush failure since this call began, or since the last sync of this device.
    pub async fn sync(&self) -> Result<()> {
        let Self { core, state } = self;
        let mut since = state.health.now();
        write_back_all(core, state).await;
        if state.health.since(&mut since.clone()).is_ok() {
            // A failure is in the error log, which is checked below.
            let _ = state.flushes.flush().await;
        }
        state.health.return_error().and(state.health.since(&mut since))
    }

    /// Makes the flusher retry files of this device that their backing could not place and whose
    /// error `may_be_over`, because there is space again. Until then only syncs retry.
    pub fn retry(&self, may_be_over: impl Fn(&CacheError) -> bool) {
        self.state.retry(may_be_over);
    }

    /// Flushes the device's cache, which makes completed writes durable. For a file system's own
    /// writes. A failure is reported by every file written since the last successful flush.
    ///
    /// # Errors
    /// The device's error.
    pub async fn flush(&self) -> Result<()> {
        self.state.flushes.flush().await
    }

    /// Runs a `PREFLUSH` write of a file system's own, such as a journal's commit block, unless
    /// more than `failures` flushes have failed ([`Self::flush_failures`]).
    ///
    /// It takes its turn with the device's flushes. While a flush is in flight, or after one has
    /// failed, the write might succeed although data that it vouches for are lost. A failure counts
    /// as a failed flush for every file written since the last successful one, because the device
    /// does not say which part failed. The outcome is recorded even if the caller goes away after
    /// the submission.
    ///
    /// # Errors
    /// The device's error, or the error of the last flush that failed; in the second case nothing
    /// was written.
    pub async fn write_behind_flush(&self, bio: Bio, failures: u64) -> std::result::Result<(), IoError> {
        self.state.flushes.write_behind(bio, failures).await
    }

    /// Announces a sync of a file system on this device.
    ///
    /// Until the result is dropped, and for a moment after, background write-back keeps the
    /// device's queue short, so that the sync's writes and flushes do not wait behind it.
    pub fn begin_sync(&self) -> SyncUnderWay {
        self.state.sync_priority.begin();
        SyncUnderWay(self.clone())
    }

    /// How many flushes of this device have failed. A file system reads it once at mount and
    /// latches an error when it changes: data it wrote earlier may be gone. See also
    /// [`Self::write_behind_flush`].
    pub fn flush_failures(&self) -> u64 {
        self.state.flushes.failures()
    }
}

/// A sync in progress: see [`Disk::begin_sync`].
#[derive(Debug)]
#[must_use = "dropping it ends the sync"]
pub struct SyncUnderWay(Disk);

impl Drop for SyncUnderWay {
    fn drop(&mut self) {
        self.0.state.sync_priority.end(self.0.core.rt.now());
    }
}
