//! The volume that a server serves.

use crate::object::Object;
use extant_block::Device;
use extant_cache::{CacheConfig, CacheError, PageCache};
use extant_fs::{Error, ErrorPolicy, OpenOptions, Result, Synchronous, Volume, WriteOptions};
use extant_rt::{Nanos, Rt};
use std::sync::Arc;

/// How to open a volume for a server.
#[derive(Clone, Copy, Debug)]
pub struct VolumeOptions {
    /// Whether programs may change the volume. If not, nothing is written to the device.
    pub write: bool,
    /// Memory for file contents and metadata, in bytes.
    pub cache_bytes: u64,
    /// Bytes of dirty memory at which writers have to wait: at most [`Self::dirty_bytes_max`], by
    /// default half of the cache.
    pub dirty_bytes: Option<u64>,
    /// Age at which changes are committed.
    pub commit_interval: Nanos,
    /// Which changes are durable before their requests are answered.
    pub synchronous: Synchronous,
    /// Access control lists are neither honoured nor shown, and stay as they are.
    pub ignores_acls: bool,
    /// Discard freed blocks.
    pub discard: bool,
    /// What to do about damage; by default what the superblock says.
    pub errors: Option<ErrorPolicy>,
    /// Do not use the journal of a read-only volume.
    pub ignore_journal: bool,
}

impl Default for VolumeOptions {
    fn default() -> Self {
        Self {
            write: true,
            cache_bytes: 256 << 20,
            dirty_bytes: None,
            commit_interval: Nanos::from_secs(5),
            synchronous: Synchronous::default(),
            ignores_acls: false,
            discard: false,
            errors: None,
            ignore_journal: false,
        }
    }
}

impl VolumeOptions {
    /// Maximum of [`Self::dirty_bytes`]. The rest of the cache is for reads.
    pub fn dirty_bytes_max(&self) -> u64 {
        self.cache_bytes / 4 * 3
    }
}

/// An open volume with its cache.
#[derive(Debug)]
pub struct OpenVolume {
    pub(crate) volume: Volume,
    pub(crate) root: Object,
    pub(crate) is_writable: bool,
    pub(crate) ignores_acls: bool,
    pub(crate) cache: PageCache,
    /// Whether a thread that others wait for may flush the image.
    pub(crate) flushes_soon: bool,
}

impl OpenVolume {
    /// Opens the volume on a device.
    ///
    /// # Errors
    /// The errors of [`Volume::open_writable`] and [`Volume::open`].
    pub async fn open(rt: &Rt, device: Arc<dyn Device>, options: VolumeOptions) -> Result<Self> {
        let config = CacheConfig::with_budget(options.cache_bytes);
        // The kernel keeps what it has written.
        let config = CacheConfig { frees_long_runs: true, dirty_bytes: options.dirty_bytes, ..config };
        let cache =
            PageCache::new(rt, config).map_err(|_| Error::NoMemory("the pages of the cache".into()))?;
        let flushes_soon = device.flushes_soon();
        let disk = cache.attach(device);
        let (volume, root) = if options.write {
            let mut write = WriteOptions {
                commit_interval: Some(options.commit_interval),
                errors: options.errors,
                synchronous: options.synchronous,
                ignores_acls: options.ignores_acls,
                discard: options.discard,
                reaps: true,
                ..WriteOptions::default()
            };
            write.metadata_bytes = write.metadata_bytes.max(options.cache_bytes / 2).min(options.cache_bytes);
            let volume = Volume::open_writable(rt, &disk, write).await?;
            match volume.root_node().await {
                Ok(root) => (volume, Object::Live(root)),
                Err(error) => {
                    volume.close().await?;
                    return Err(error);
                }
            }
        } else {
            let read = OpenOptions { ignore_journal: options.ignore_journal, ..OpenOptions::default() };
            let volume = Volume::open(disk.device().clone(), read).await?.cached_by(&disk);
            let volume = if options.ignores_acls { volume.ignoring_acls() } else { volume };
            let root = volume.root().await?;
            (volume, Object::Stored(root.into()))
        };
        let VolumeOptions { write: is_writable, ignores_acls, .. } = options;
        Ok(Self { volume, root, is_writable, ignores_acls, cache, flushes_soon })
    }

    /// Writes everything and closes the volume; afterwards its image is free.
    ///
    /// # Errors
    /// Something could not be written.
    pub async fn close(self) -> Result<()> {
        let Self { volume, root, is_writable, cache, .. } = self;
        drop(root);
        let closed = if is_writable { volume.close().await } else { Ok(()) };
        match cache.close().await {
            // Errors of files were returned when the volume was closed; the device's last flush may
            // still fail.
            Err(CacheError::Io(error)) => closed.and(Err(Error::Io(error))),
            _ => closed,
        }
    }
}
