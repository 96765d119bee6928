//! Linux's blktrace format, as read by blkparse and btt.
//!
//! From linux/blktrace_api.h and blkparse(1). A trace is a sequence of 48-byte records in the
//! machine's byte order, some of them followed by a payload:
//!
//! ```text
//!  0 magic u32   4 sequence u32   8 time u64 (ns)   16 sector u64   24 bytes u32   28 action u32
//! 32 pid u32    36 device u32    40 cpu u32         44 error u16    46 payload length u16
//! ```

use crate::{Bio, BioFlags, IoError, IoErrorKind, Op, Sector, StreamId};
use extant_rt::Nanos;
use parking_lot::Mutex;
use std::fmt;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// `BLK_IO_TRACE_MAGIC | BLK_IO_TRACE_VERSION`.
const MAGIC: u32 = 0x6561_7407;
const RECORD_BYTES: usize = 48;
/// First bit of an action's category.
const CATEGORY_SHIFT: u32 = 16;

/// An action on a bio or request; blkparse prints the letters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Q: a bio arrived at the queue.
    Queued,
    /// M: it was merged at the end of a queued request.
    BackMerged,
    /// F: it was merged at the start of a queued request.
    FrontMerged,
    /// G: it got a request of its own.
    GotRequest,
    /// S: it has to wait for a free request.
    Slept,
    /// I: a request was handed to the elevator.
    Inserted,
    /// D: a request was issued to the device.
    Issued,
    /// C: a request completed.
    Completed,
    /// P: requests are held back until more arrive.
    Plugged,
    /// U: this many held-back requests were released.
    Unplugged(u64),
    /// X: a bio was split; the second part starts at this sector.
    Split(Sector),
}

impl Action {
    /// The `__BLK_TA_*` value, and its category.
    fn code(self) -> (u32, u32) {
        match self {
            Self::Queued => (1, category::QUEUE),
            Self::BackMerged => (2, category::QUEUE),
            Self::FrontMerged => (3, category::QUEUE),
            Self::GotRequest => (4, category::QUEUE),
            Self::Slept => (5, category::QUEUE),
            Self::Issued => (7, category::ISSUE),
            Self::Completed => (8, category::COMPLETE),
            Self::Plugged => (9, category::QUEUE),
            Self::Unplugged(_) => (10, category::QUEUE),
            Self::Inserted => (12, category::QUEUE),
            Self::Split(_) => (13, 0),
        }
    }

    /// Unplug carries the depth, split carries the sector; both are big-endian.
    fn payload(self) -> Option<[u8; 8]> {
        match self {
            Self::Unplugged(depth) => Some(depth.to_be_bytes()),
            Self::Split(at) => Some(at.0.to_be_bytes()),
            _ => None,
        }
    }
}

/// `BLK_TC_*`.
mod category {
    pub(super) const READ: u32 = 1 << 0;
    pub(super) const WRITE: u32 = 1 << 1;
    pub(super) const FLUSH: u32 = 1 << 2;
    pub(super) const SYNC: u32 = 1 << 3;
    pub(super) const QUEUE: u32 = 1 << 4;
    pub(super) const ISSUE: u32 = 1 << 6;
    pub(super) const COMPLETE: u32 = 1 << 7;
    pub(super) const NOTIFY: u32 = 1 << 10;
    pub(super) const AHEAD: u32 = 1 << 11;
    pub(super) const META: u32 = 1 << 12;
    pub(super) const DISCARD: u32 = 1 << 13;
    pub(super) const FUA: u32 = 1 << 15;
}

/// What an action refers to.
#[derive(Clone, Copy, Debug)]
pub struct Subject {
    /// Operation.
    pub op: Op,
    /// Flags.
    pub flags: BioFlags,
    /// First sector.
    pub start: Sector,
    /// Length in bytes.
    pub bytes: u64,
    /// Shown as the process ID.
    pub stream: StreamId,
}

impl From<&Bio> for Subject {
    fn from(bio: &Bio) -> Self {
        Self { op: bio.op, flags: bio.flags, start: bio.start, bytes: bio.bytes, stream: bio.stream }
    }
}

impl Subject {
    fn categories(&self) -> u32 {
        let op = match self.op {
            Op::Read => category::READ,
            Op::Write | Op::WriteZeroes => category::WRITE,
            Op::Discard => category::WRITE | category::DISCARD,
            // Linux's `blkdev_issue_flush()` queues an empty write with a preflush, so no flush
            // counts as a read.
            Op::Flush => category::WRITE | category::FLUSH,
        };
        let flags = [
            (BioFlags::SYNC, category::SYNC),
            (BioFlags::META, category::META),
            (BioFlags::PREFLUSH, category::FLUSH),
            (BioFlags::FUA, category::FUA),
            (BioFlags::RAHEAD, category::AHEAD),
        ];
        flags.iter().filter(|(flag, _)| self.flags.contains(*flag)).fold(op, |all, (_, bit)| all | bit)
    }
}

/// Writes the trace of one device. Clones write to the same trace.
///
/// A failed write of the trace does not disturb the I/O; [`Blktrace::finish`] reports it.
#[derive(Clone)]
pub struct Blktrace(Arc<Shared>);

struct Shared {
    device: u32,
    state: Mutex<State>,
}

struct State {
    out: Box<dyn Write + Send>,
    sequence: u32,
    error: Option<io::Error>,
}

impl Blktrace {
    /// Writes `BASE.blktrace.0`, for `blkparse -i BASE`. The device is shown by its numbers.
    ///
    /// # Errors
    /// The file cannot be created.
    pub fn create(base: &Path, major: u32, minor: u32) -> io::Result<Self> {
        let mut path = base.as_os_str().to_owned();
        path.push(".blktrace.0");
        let file = File::create(PathBuf::from(path))?;
        Ok(Self::new(Box::new(BufWriter::with_capacity(1 << 20, file)), major, minor))
    }

    /// Writes to `out`, which should be buffered.
    pub fn new(out: Box<dyn Write + Send>, major: u32, minor: u32) -> Self {
        let state = Mutex::new(State { out, sequence: 0, error: None });
        Self(Arc::new(Shared { device: major << 20 | minor, state }))
    }

    /// Sets the name blkparse shows for a stream; at most 15 bytes are kept.
    pub fn name_stream(&self, now: Nanos, stream: StreamId, name: &str) {
        // `BLK_TN_PROCESS` is 0; the payload is the process's comm.
        let mut payload = [0; 16];
        let end = (0..=name.len().min(15)).rev().find(|&i| name.is_char_boundary(i)).unwrap_or(0);
        payload[..end].copy_from_slice(&name.as_bytes()[..end]);
        self.write(now, category::NOTIFY << CATEGORY_SHIFT, Sector(0), 0, stream, 0, &payload);
    }

    /// Writes one record.
    pub fn record(&self, now: Nanos, action: Action, subject: &Subject, result: Result<(), &IoError>) {
        let (code, category) = action.code();
        let action_word = code | (category | subject.categories()) << CATEGORY_SHIFT;
        let error = match result.map_err(|e| &e.kind) {
            Ok(()) => 0,
            Err(IoErrorKind::Os(errno)) => *errno as u16,
            Err(_) => rustix::io::Errno::IO.raw_os_error() as u16,
        };
        let payload = action.payload();
        let payload = payload.as_ref().map_or(&[][..], |p| p);
        self.write(now, action_word, subject.start, subject.bytes, subject.stream, error, payload);
    }

    #[allow(clippy::too_many_arguments)] // the fields of the record
    fn write(
        &self,
        now: Nanos,
        action: u32,
        sector: Sector,
        bytes: u64,
        stream: StreamId,
        error: u16,
        payload: &[u8],
    ) {
        let mut state = self.0.state.lock();
        if state.error.is_some() {
            return;
        }
        state.sequence = state.sequence.wrapping_add(1);
        let mut record = [0; RECORD_BYTES];
        record[0..4].copy_from_slice(&MAGIC.to_ne_bytes());
        record[4..8].copy_from_slice(&state.sequence.to_ne_bytes());
        record[8..16].copy_from_slice(&now.0.to_ne_bytes());
        record[16..24].copy_from_slice(&sector.0.to_ne_bytes());
        // A length above 4 GiB (a discard) does not fit the format.
        record[24..28].copy_from_slice(&u32::try_from(bytes).unwrap_or(u32::MAX).to_ne_bytes());
        record[28..32].copy_from_slice(&action.to_ne_bytes());
        record[32..36].copy_from_slice(&(stream.0 as u32).to_ne_bytes());
        record[36..40].copy_from_slice(&self.0.device.to_ne_bytes());
        record[44..46].copy_from_slice(&error.to_ne_bytes());
        record[46..48].copy_from_slice(&(payload.len() as u16).to_ne_bytes());
        let result = state.out.write_all(&record).and_then(|()| state.out.write_all(payload));
        state.error = result.err();
    }

    /// Writes out buffered data; returns the first error of any write.
    ///
    /// # Errors
    /// A record was not written, now or earlier.
    pub fn finish(&self) -> io::Result<()> {
        let mut state = self.0.state.lock();
        match state.error.take() {
            Some(error) => Err(error),
            None => state.out.flush(),
        }
    }
}

impl fmt::Debug for Blktrace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Blktrace({}:{})", self.0.device >> 20, self.0.device & 0xf_ffff)
    }
}
