//! The part of a file that a process works on.

use super::run_error::RunError;
use super::volume::OnVolume;
use crate::workload::fio::Job;
use extant_block::Device;
use extant_cache::{FlatFile, Mapping};
use extant_iosched::Queue;
use std::collections::BTreeSet;
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

/// Files of the jobs that `takes_part` selects.
pub(super) fn files_of(jobs: &[Job], takes_part: impl Fn(&Job) -> bool) -> BTreeSet<String> {
    let jobs = jobs.iter().filter(|job| takes_part(job));
    jobs.flat_map(|job| (0..job.processes).map(|process| job.file_of(process))).collect()
}

/// Length of the part of a file that a process uses.
pub(super) fn span(job: &Job, process: u32, file: String, length: u64) -> Result<u64, RunError> {
    let rest = length.saturating_sub(job.offset_of(process));
    let span_bytes = job.span_bytes(rest);
    if span_bytes < job.block_bytes {
        return Err(RunError::TooSmall { job: job.name.clone(), file, length });
    }
    Ok(span_bytes)
}
