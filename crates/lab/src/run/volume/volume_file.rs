//! A job's file on a volume.

use super::placed_files::PlacedFile;
use super::{BLOCK_BYTES, VolumeSpec};
use extant_block::{Buf, Device, IoError, IoErrorKind, Op, Sector, StreamId};
use extant_cache::{BackingError, BackingErrorKind, ByteRange, CacheError, ReadOrder};
use extant_fs::{Error, Fallocate, OpenFile};
use extant_history::direct::{BlockMap, Direct, Kernel, Sent};
use extant_rt::Rt;
use parking_lot::Mutex;
use std::ops::Range;
use std::sync::Arc;

/// A file on a volume.
#[derive(Clone)]
pub(crate) enum OnVolume {
    /// Written past the cache by a historical direct I/O policy.
    Linux(Arc<LinuxFile>),
    /// Cached, with blocks placed by a historical allocator.
    Placed(Arc<PlacedFile>),
    /// A file on one of our volumes.
    Ours(Arc<OurFile>),
}

/// A file written by Linux's direct I/O.
pub(crate) struct LinuxFile {
    policy: Direct,
    device: Arc<dyn Device>,
    kernel: Kernel,
    /// Taken by the request in flight.
    map: Mutex<Option<Box<dyn BlockMap>>>,
    sent: Arc<Mutex<Sent>>,
}

impl LinuxFile {
    pub(super) fn new(
        policy: Direct,
        device: Arc<dyn Device>,
        kernel: Kernel,
        map: Box<dyn BlockMap>,
        sent: Arc<Mutex<Sent>>,
    ) -> Self {
        Self { policy, device, kernel, map: Mutex::new(Some(map)), sent }
    }

    async fn write(&self, rt: &Rt, stream: StreamId, bytes: Range<u64>) -> Result<(), IoError> {
        let Some(mut map) = self.map.lock().take() else {
            let bio = extant_block::Bio::range(Op::Write, Sector(0), bytes.end - bytes.start);
            // `i_mutex` would serialize writers, but the experiments have only one per file.
            return Err(bio.error(&self.device.limits().name, IoErrorKind::Unsupported));
        };
        let mut sent = Sent::default();
        let span = (bytes.start, bytes.end - bytes.start);
        let (kernel, device) = (&self.kernel, &self.device);
        let result = self.policy.write(rt, device, kernel, &mut *map, span, stream, &mut sent).await;
        *self.map.lock() = Some(map);
        let mut all = self.sent.lock();
        all.gap += sent.gap;
        all.full += sent.full;
        all.boundary += sent.boundary;
        all.end += sent.end;
        all.pieces += sent.pieces;
        result
    }
}

/// An open file on one of our volumes.
pub(crate) struct OurFile {
    file: OpenFile,
    truncates: bool,
    of_plain_job: bool,
}

impl OurFile {
    pub(super) fn new(file: OpenFile, spec: &VolumeSpec) -> Self {
        Self { file, truncates: spec.truncates, of_plain_job: spec.for_jobs }
    }

    async fn transfer(&self, op: Op, at: u64, mut buffer: Buf, direct: bool) -> (Buf, Result<(), Error>) {
        if direct {
            let (buffer, result) = match op {
                Op::Read => self.file.read_direct(at, buffer).await,
                _ => self.file.write_direct(at, buffer).await,
            };
            return (buffer, result.map(|_| ()));
        }
        let result = match op {
            Op::Read => self.file.read(at, &mut buffer[..]).await,
            _ => self.file.write(at, &buffer[..]).await,
        };
        (buffer, result.map(|_| ()))
    }
}

/// Converts an error to the form that jobs report.
fn told(error: Error) -> CacheError {
    match error {
        Error::Io(error) => CacheError::Io(error),
        other => CacheError::Backing(BackingError::new(BackingErrorKind::Other, other)),
    }
}

impl OnVolume {
    /// Reads or writes, and returns the buffer.
    pub(in crate::run) async fn transfer(
        &self,
        rt: &Rt,
        stream: StreamId,
        op: Op,
        at: u64,
        buffer: Buf,
        direct: bool,
    ) -> (Buf, Result<(), CacheError>) {
        match self {
            Self::Linux(file) => {
                let bytes = at..at + buffer.len() as u64;
                let result = file.write(rt, stream, bytes).await;
                (buffer, result.map_err(CacheError::Io))
            }
            Self::Placed(file) => {
                let result = file.write(rt, at, buffer.len() as u64);
                (buffer, result)
            }
            Self::Ours(file) => {
                let (buffer, result) = file.transfer(op, at, buffer, direct).await;
                (buffer, result.map_err(told))
            }
        }
    }

    /// Makes the file durable.
    pub(in crate::run) async fn sync(&self, rt: &Rt) -> Result<(), CacheError> {
        match self {
            Self::Linux(file) => extant_block::flush(&*file.device).await.map_err(CacheError::Io),
            Self::Placed(file) => file.sync(rt).await,
            Self::Ours(file) => file.file.sync().await.map_err(told),
        }
    }

    /// Makes the file's data durable, and the metadata needed to read it.
    pub(in crate::run) async fn datasync(&self, rt: &Rt) -> Result<(), CacheError> {
        match self {
            Self::Ours(file) => file.file.datasync().await.map_err(told),
            _ => self.sync(rt).await,
        }
    }

    /// Writes back a range's dirty data and waits.
    pub(in crate::run) async fn write_back(&self, bytes: Range<u64>) -> Result<(), CacheError> {
        match self {
            Self::Linux(_) | Self::Placed(_) => Ok(()),
            Self::Ours(file) => file.file.write_back_range(bytes).await.map_err(told),
        }
    }

    /// Submits a range's dirty data without waiting.
    pub(in crate::run) async fn begin_write_back(&self, bytes: Range<u64>) {
        if let Self::Ours(file) = self {
            file.file.begin_write_back(bytes).await;
        }
    }

    /// Drops the cached pages of a plain job's file.
    pub(in crate::run) async fn forget(&self) -> Result<(), CacheError> {
        match self {
            Self::Ours(file) if file.of_plain_job => {
                file.file.write_back().await.map_err(told)?;
                file.file.not_needed(ByteRange::ALL).await;
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Submits a range's dirty data and drops its clean pages.
    pub(in crate::run) async fn not_needed(&self, bytes: ByteRange) {
        if let Self::Ours(file) = self {
            file.file.not_needed(bytes).await;
        }
    }

    /// Submits reads of a range's missing pages.
    pub(in crate::run) async fn will_need(&self, bytes: ByteRange) {
        if let Self::Ours(file) = self {
            file.file.will_need(bytes).await;
        }
    }

    /// Maximum number of bytes read ahead of one reader; 0 if the file is not in our cache.
    pub(in crate::run) fn read_ahead_bytes(&self) -> u64 {
        match self {
            Self::Ours(file) => file.file.read_ahead_bytes(),
            _ => 0,
        }
    }

    /// Announces the order in which the file will be read.
    pub(in crate::run) fn expects(&self, order: ReadOrder) {
        if let Self::Ours(file) = self {
            file.file.expects(order);
        }
    }

    /// Whether the file supports reads, and several writes at a time.
    pub(in crate::run) fn is_ours(&self) -> bool {
        matches!(self, Self::Ours(_))
    }

    /// Fills the file up to this length, durably and past the cache: a job will read it.
    pub(super) async fn lay_out(&self, bytes: u64) -> Result<(), String> {
        const STEP_BYTES: u64 = 8 << 20;
        let Self::Ours(ours) = self else { return Ok(()) };
        let file = &ours.file;
        let mut at = file.size() / BLOCK_BYTES * BLOCK_BYTES;
        while at < bytes {
            let step = STEP_BYTES.min((bytes - at).next_multiple_of(BLOCK_BYTES));
            let (_, written) = file.write_direct(at, Buf::zeroed(step as usize)).await;
            written.map_err(|error| error.to_string())?;
            at += step;
        }
        file.sync().await.map_err(|error| error.to_string())
    }

    /// Allocates the file's blocks and sets its length, as fio does for a job that only writes.
    pub(super) async fn allocate(&self, bytes: u64) -> Result<(), String> {
        let Self::Ours(ours) = self else { return Ok(()) };
        let file = &ours.file;
        if file.size() >= bytes {
            return Ok(());
        }
        let allocated = file.fallocate(Fallocate::Allocate { keep_size: false }, 0, bytes).await;
        allocated.map_err(|error| error.to_string())?;
        file.sync().await.map_err(|error| error.to_string())
    }

    /// Called when the job's process closes the file. Files of other kinds stay open, so that later
    /// passes find them.
    pub(in crate::run) fn close(&self) {
        if let Self::Placed(file) = self {
            file.close();
        }
    }

    /// The file's extents on the volume in blocks; empty for a file written by Linux's direct I/O.
    pub(super) async fn runs(&self) -> Result<Vec<Range<u64>>, CacheError> {
        match self {
            Self::Linux(_) => Ok(Vec::new()),
            Self::Placed(file) => Ok(file.runs()),
            Self::Ours(file) => {
                let extents = file.file.extents(..).await.map_err(told)?;
                let run = |extent: &extant_fs::FileExtent| {
                    let start = extent.device_offset / BLOCK_BYTES;
                    start..start + extent.bytes.div_ceil(BLOCK_BYTES)
                };
                Ok(extents.iter().map(run).collect())
            }
        }
    }

    /// Starts a new pass over the file.
    pub(in crate::run) async fn begin_again(&self) -> Result<(), CacheError> {
        match self {
            Self::Ours(file) if file.truncates => {
                file.file.write_back().await.map_err(told)?;
                file.file.set_size(0).await.map_err(told)
            }
            _ => Ok(()),
        }
    }
}
