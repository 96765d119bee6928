//! Where a process does its I/O.

use super::volume::OnVolume;
use extant_block::Device;
use extant_cache::{FlatFile, Mapping};
use extant_iosched::Queue;
use std::sync::Arc;

/// A part of a file, past the page cache or through it.
#[derive(Clone)]
pub(super) struct FileSpan {
    /// The device of direct I/O.
    pub(super) device: Arc<dyn Device>,
    /// The same as a queue of a modelled disk, whose requests a task may have to wait for.
    pub(super) queue: Option<Arc<Queue>>,
    /// Where the file begins on it.
    pub(super) file_byte: u64,
    /// Where in the file the process's span begins.
    pub(super) offset_bytes: u64,
    /// How long that is.
    pub(super) span_bytes: u64,
    /// Past the page cache.
    pub(super) direct: bool,
    /// The file's pages; `None` where nobody uses the cache.
    pub(super) pages: Option<Mapping>,
    /// The file, where it is one of a volume; the device and the pages are then the volume's.
    pub(super) on_volume: Option<OnVolume>,
}

/// Pages for a file that is one run of its device; whole blocks of it.
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
