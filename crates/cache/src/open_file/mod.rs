//! An open file: a mapping, and the state of one opener.

mod contest;
mod pause_trace;
pub mod readahead;
mod reading;
mod syncing;
mod throttle;
mod waiting_for_room;
mod writing;

use crate::dirty::writer::Writer;
use crate::error_log::ErrorCursor;
use crate::file::CachedFile;
use crate::open_file::readahead::ReadAhead;
use crate::page::PAGE;
use extant_block::StreamId;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

pub use reading::ReadOrder;

/// An open file: the pages, and the opener's own state (errors already reported to it, its
/// read-ahead, and how much it has dirtied).
///
/// Concurrent reads and writes are atomic per page, not beyond. A caller that needs more holds a
/// lock, as a file system does.
#[derive(Debug)]
pub struct CachedOpenFile {
    pub(crate) file: Arc<CachedFile>,
    /// The errors already reported to this opener.
    told: Mutex<ErrorCursor>,
    ahead: Mutex<ReadAhead>,
    writer: Mutex<Writer>,
    /// Pages that may be dirtied before asking the controller. Copied from `writer`, so that an
    /// overwrite takes no lock.
    allowance: AtomicU64,
    /// End offset of the last read that ended inside a page.
    last_end: AtomicU64,
    stream: StreamId,
    exempt: bool,
    /// Writes never pause.
    unpaced: bool,
    /// Whether the opener holds the exclusion of the pages.
    in_exclusion: bool,
    /// Writes do not grow the file.
    keeps_size: bool,
}

impl CachedOpenFile {
    pub(crate) fn new(file: Arc<CachedFile>) -> Self {
        Self {
            told: Mutex::new(file.errors.sample()),
            ahead: Mutex::new(ReadAhead::new(file.core.settings.read_ahead_pages)),
            writer: Mutex::new(Writer::new(file.core.next_writer())),
            allowance: AtomicU64::new(1),
            last_end: AtomicU64::new(u64::MAX),
            stream: StreamId::default(),
            exempt: false,
            unpaced: false,
            in_exclusion: false,
            keeps_size: false,
            file,
        }
    }

    /// Attributes reads to a stream.
    pub fn with_stream(mut self, stream: StreamId) -> Self {
        self.stream = stream;
        self
    }

    /// Exempts writes from the dirty limits and from throttling, and lets reads and writes take
    /// reserve frames. For completions ([`crate::Backing::finish_write`]) and the like, which must
    /// not wait for memory that only they can free.
    pub fn exempt(mut self) -> Self {
        self.exempt = true;
        self
    }

    /// Lets writes go on without pauses, for data of a cache above this one, which paces those who
    /// write. They still wait where no more pages may become dirty.
    pub fn unpaced(mut self) -> Self {
        self.unpaced = true;
        self
    }

    /// For a caller that holds the exclusion of the pages that it reads and writes.
    pub(crate) fn in_exclusion(mut self) -> Self {
        self.in_exclusion = true;
        self
    }

    /// Writes do not grow the file.
    pub(crate) fn keeping_size(mut self) -> Self {
        self.keeps_size = true;
        self
    }
}

/// Bytes a task copies before it checks its budget.
const STRETCH_BYTES: usize = 256 << 10;

/// The stretch from `offset`: like `STRETCH_BYTES`, but ending at a page boundary, so that no page
/// is read because it is written in two parts.
fn stretch(offset: u64) -> usize {
    STRETCH_BYTES - (offset % PAGE) as usize
}
