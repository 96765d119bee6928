//! The system calls that one bio takes: a state machine that does no I/O itself.
//!
//! An engine asks for the next [`Step`], executes it, and reports the result, until the transfer is
//! over. A bio may take several steps: a flush before and after it, the rest of a short transfer, a
//! retry through the host's page cache if direct I/O is refused.

use super::host_file::HostFile;
use crate::{Bio, BioFlags, Buf, IoErrorKind, Op};
use rustix::io::Errno;
use std::io::{IoSlice, IoSliceMut};

/// `IOV_MAX` of Linux (limits.h): the kernel refuses longer vectors.
const MAX_SLICES: usize = 1024;
/// Maximum number of bytes moved by one system call (read(2), Notes), rounded down to whole
/// megabytes.
const MAX_STEP_BYTES: usize = 0x7ff0_0000;
/// Maximum number of bytes that a transfer may allocate.
const MAX_BOUNCE_BYTES: usize = 1 << 20;

/// A system call to make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// `fdatasync`.
    Sync,
    /// `preadv` into [`Transfer::slices_mut`].
    Read { offset: u64, direct: bool },
    /// `pwritev2` of [`Transfer::slices`], with `RWF_DSYNC` if `dsync`.
    Write { offset: u64, direct: bool, dsync: bool },
    /// `fallocate` with `FALLOC_FL_PUNCH_HOLE`.
    PunchHole { offset: u64, len: u64 },
    /// `BLKDISCARD` on a block device.
    Discard { offset: u64, len: u64 },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Preflush,
    Data,
    /// The range cannot be zeroed by one call: write zeros.
    Zeroes,
    Postflush,
}

#[derive(Debug)]
pub(super) struct Transfer {
    pub(super) bio: Bio,
    stage: Stage,
    start: u64,
    done: u64,
    /// Whether to try direct I/O.
    direct: bool,
    /// Whether the last step used direct I/O.
    tried_direct: bool,
    /// Aligned memory used instead of the bio's own; the next step transfers this many bytes of it.
    bounce: Option<(Buf, usize)>,
}

impl Transfer {
    /// A transfer for a bio that starts at byte `start`.
    pub(super) fn new(bio: Bio, start: u64) -> Self {
        let stage = match bio.op {
            _ if bio.bytes == 0 => Stage::Postflush,
            Op::Write | Op::WriteZeroes | Op::Discard if bio.flags.contains(BioFlags::PREFLUSH) => {
                Stage::Preflush
            }
            _ => Stage::Data,
        };
        Self { bio, stage, start, done: 0, direct: true, tried_direct: false, bounce: None }
    }

    /// The next step. Call it again only after [`Transfer::completed`], or if the step was a read
    /// that was not executed.
    pub(super) fn step(&mut self, host_file: &HostFile) -> Step {
        let offset = self.start + self.done;
        let len = self.bio.bytes - self.done;
        if (self.stage, self.bio.op) == (Stage::Data, Op::WriteZeroes)
            && host_file.is_block_device
            && !host_file.is_block_multiple(offset | len)
        {
            // Block devices only zero whole blocks.
            self.stage = Stage::Zeroes;
        }
        match (self.stage, self.bio.op) {
            (Stage::Preflush | Stage::Postflush, _) | (Stage::Data, Op::Flush) => Step::Sync,
            (Stage::Data, Op::Discard) if host_file.is_block_device => {
                // A discard is a hint, and block devices only accept whole blocks.
                let whole = host_file.whole_blocks(offset, len);
                Step::Discard { offset: whole.start, len: whole.end - whole.start }
            }
            (Stage::Data, Op::Discard | Op::WriteZeroes) => Step::PunchHole { offset, len },
            (Stage::Zeroes, _) => {
                let (buf, bytes) = self
                    .bounce
                    .get_or_insert_with(|| (Buf::zeroed(len.min(MAX_BOUNCE_BYTES as u64) as usize), 0));
                *bytes = buf.len().min(len as usize);
                let direct = self.direct && host_file.takes_direct(offset | *bytes as u64);
                self.tried_direct = direct;
                Step::Write { offset, direct, dsync: false }
            }
            (Stage::Data, Op::Read) => {
                let direct = self.direct && host_file.takes_direct(offset | len);
                self.tried_direct = direct;
                self.prepare_bounce(host_file, direct, len);
                Step::Read { offset, direct }
            }
            (Stage::Data, Op::Write) => {
                let direct = self.direct && host_file.takes_direct(offset | len);
                self.tried_direct = direct;
                self.prepare_bounce(host_file, direct, len);
                if let Some((buf, bytes)) = &mut self.bounce {
                    let mut to = &mut buf[..*bytes];
                    for from in self.bio.memory_from(self.done) {
                        let n = from.len().min(to.len());
                        to[..n].copy_from_slice(&from[..n]);
                        to = &mut to[n..];
                    }
                }
                Step::Write { offset, direct, dsync: self.bio.flags.contains(BioFlags::FUA) }
            }
        }
    }

    fn prepare_bounce(&mut self, host_file: &HostFile, direct: bool, len: u64) {
        let fits = |memory: &[u8]| {
            memory.as_ptr().addr().is_multiple_of(host_file.memory_align)
                && host_file.is_block_multiple(memory.len() as u64)
        };
        if !direct || self.bio.memory_from(self.done).all(fits) {
            self.bounce = None;
            return;
        }
        let bytes = len.min(MAX_BOUNCE_BYTES as u64) as usize;
        match &mut self.bounce {
            Some((_, used)) => *used = bytes,
            None => self.bounce = Some((Buf::zeroed(bytes), bytes)),
        }
    }

    /// The memory for a [`Step::Write`].
    pub(super) fn slices(&self) -> Vec<IoSlice<'_>> {
        match &self.bounce {
            Some((buf, bytes)) => vec![IoSlice::new(&buf[..*bytes])],
            None => {
                let mut room = MAX_STEP_BYTES;
                self.bio
                    .memory_from(self.done)
                    .take(MAX_SLICES)
                    .map_while(|memory| {
                        let n = memory.len().min(room);
                        room -= n;
                        (n > 0).then(|| IoSlice::new(&memory[..n]))
                    })
                    .collect()
            }
        }
    }

    /// The memory for a [`Step::Read`].
    pub(super) fn slices_mut(&mut self) -> Vec<IoSliceMut<'_>> {
        match &mut self.bounce {
            Some((buf, bytes)) => vec![IoSliceMut::new(&mut buf[..*bytes])],
            None => {
                let mut room = MAX_STEP_BYTES;
                self.bio
                    .memory_from_mut(self.done)
                    .take(MAX_SLICES)
                    .map_while(|memory| {
                        let n = memory.len().min(room);
                        room -= n;
                        (n > 0).then(|| IoSliceMut::new(&mut memory[..n]))
                    })
                    .collect()
            }
        }
    }

    /// Records the result of the step; `Some` once the bio is over.
    pub(super) fn completed(
        &mut self,
        host_file: &HostFile,
        result: Result<usize, Errno>,
    ) -> Option<Result<(), IoErrorKind>> {
        let result = match result {
            // The kernel cancels what a thread has in flight when that thread exits
            // (io_uring_enter(2)). The bio does not belong to the thread, so it is restarted.
            Err(Errno::INTR | Errno::AGAIN | Errno::CANCELED) => return None,
            Err(error) => return self.failed(host_file, error),
            Ok(n) => n,
        };
        match (self.stage, self.bio.op) {
            (Stage::Preflush, _) => {
                self.stage = Stage::Data;
                None
            }
            (Stage::Postflush, _) | (Stage::Data, Op::Flush) => Some(Ok(())),
            (Stage::Data, Op::Discard | Op::WriteZeroes) => self.data_is_done(),
            (Stage::Data, Op::Read) => {
                if let Some((buf, _)) = &self.bounce {
                    let mut from = &buf[..result];
                    for to in self.bio.memory_from_mut(self.done) {
                        let n = from.len().min(to.len());
                        to[..n].copy_from_slice(&from[..n]);
                        from = &from[n..];
                    }
                }
                match result {
                    0 => Some(Err(IoErrorKind::Short(self.done))),
                    bytes => self.advanced(bytes),
                }
            }
            (Stage::Data | Stage::Zeroes, _) if result == 0 => Some(Err(IoErrorKind::Short(self.done))),
            (Stage::Data | Stage::Zeroes, _) => self.advanced(result),
        }
    }

    fn advanced(&mut self, bytes: usize) -> Option<Result<(), IoErrorKind>> {
        self.done += bytes as u64;
        assert!(self.done <= self.bio.bytes, "the system call stayed within the memory it was given");
        if self.done < self.bio.bytes { None } else { self.data_is_done() }
    }

    fn data_is_done(&mut self) -> Option<Result<(), IoErrorKind>> {
        // A write carried RWF_DSYNC; operations without such a flag are made durable by a separate
        // flush.
        if self.bio.flags.contains(BioFlags::FUA) && matches!(self.bio.op, Op::WriteZeroes | Op::Discard) {
            self.stage = Stage::Postflush;
            return None;
        }
        Some(Ok(()))
    }

    fn failed(&mut self, host_file: &HostFile, error: Errno) -> Option<Result<(), IoErrorKind>> {
        let unsupported = matches!(error, Errno::OPNOTSUPP | Errno::NOSYS | Errno::NOTTY);
        match (self.stage, self.bio.op) {
            // Some backings accept O_DIRECT at open and refuse it here (overlayfs over tmpfs, FUSE,
            // odd alignments); then use the host's page cache.
            (Stage::Data, Op::Read | Op::Write) | (Stage::Zeroes, _)
                if self.tried_direct && error == Errno::INVAL =>
            {
                host_file.refuse_direct();
                self.direct = false;
                None
            }
            // A read's media error shows up again in the page cache. A write would complete there
            // before it reaches the medium.
            (Stage::Data, Op::Read) if self.tried_direct && error == Errno::IO => {
                self.direct = false;
                None
            }
            (Stage::Data, Op::WriteZeroes) if unsupported => {
                self.stage = Stage::Zeroes;
                None
            }
            (Stage::Data, Op::Discard) if unsupported => Some(Err(IoErrorKind::Unsupported)),
            _ => Some(Err(IoErrorKind::Os(error.raw_os_error()))),
        }
    }
}
