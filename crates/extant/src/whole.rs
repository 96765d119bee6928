//! The whole contents of a file, read piece by piece.

use crate::{Error, Result};
use extant_format::UintExt;

/// Most bytes read at a time. A sparse file larger than memory is refused before that; others grow
/// as they are read.
const PIECE_BYTES: usize = 1 << 20;

/// What has been read, and room for the rest.
pub(crate) struct Whole {
    bytes: Vec<u8>,
    done: usize,
}

impl Whole {
    /// Room for a file of `len` bytes.
    ///
    /// # Errors
    /// [`Error::NoMemory`] if they do not fit in memory.
    pub(crate) fn of(len: u64) -> Result<Self> {
        let mut bytes = Vec::new();
        match usize::try_from(len).is_ok_and(|len| bytes.try_reserve_exact(len).is_ok()) {
            true => Ok(Self { bytes, done: 0 }),
            false => Err(Error::NoMemory(format!("{len} bytes"))),
        }
    }

    /// The next piece of a file that has `len` bytes by now: where it begins, and its memory.
    /// `None` once all is read.
    pub(crate) fn next(&mut self, len: u64) -> Option<(u64, &mut [u8])> {
        let at = self.done.to_u64();
        let left = len.checked_sub(at).filter(|&left| left > 0)?;
        self.bytes.resize(self.done + PIECE_BYTES.min(left.to_usize()), 0);
        Some((at, &mut self.bytes[self.done..]))
    }

    /// Counts bytes that were read into the piece. Returns false at the end of the file.
    pub(crate) fn has_read(&mut self, bytes: usize) -> bool {
        self.done += bytes;
        bytes > 0
    }

    /// What was read.
    pub(crate) fn finish(mut self) -> Vec<u8> {
        self.bytes.truncate(self.done);
        self.bytes
    }
}
