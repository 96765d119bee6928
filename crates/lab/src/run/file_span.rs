//! The part of a file that a process works on.

use super::volume::OnVolume;
use extant_block::Device;
use extant_cache::{FlatFile, Mapping};
use extant_iosched::Queue;
use std::sync::Arc;

/// A span of a file, accessed directly or through the page cache.
#[derive(Clone)]
pub(super) struct FileSpan {
    /// The device for direct I/O.
    pub(super) device: Arc<dyn Device>,
    /// The queues of the modelled disks below; a task may have to wait for one of their requests.
    pub(super) queues: Vec<Arc<Queue>>,
    /// The longest command of these disks.
    pub(super) command_bytes: u64,
    /// Offset of the file on the device.
    pub(super) file_byte: u64,
    /// Offset of the span in the file.
    pub(super) offset_bytes: u64,
    /// Length of the span.
    pub(super) span_bytes: u64,
    /// Bypasses the page cache.
    pub(super) direct: bool,
    /// The file's pages; `None` if the cache is not used.
    pub(super) pages: Option<Mapping>,
    /// The file, if it is on a volume; device and pages are then the volume's.
    pub(super) on_volume: Option<OnVolume>,
}

/// Creates the mapping of a file that is a single extent of its device; covers whole blocks only.
pub(super) fn pages(
    disk: &extant_cache::Disk,
    start_byte: u64,
    bytes: u64,
    inode: u64,
    size: u64,
) -> Mapping {
    let block = u64::from(disk.device().limits().block_bytes);
    let whole = |bytes: u64| bytes / block * block;
    let backing = FlatFile::new(extant_block::Sector(start_byte / 512), whole(bytes));
    disk.mapping(Arc::new(backing), inode, whole(size))
}
