//! The simplest backing.

use crate::backing::{Answer, Backing, DirtyRun, Placed, ReadExtent, ReadFrom, WriteExtent, WrittenRun};
use crate::{BackingError, BackingErrorKind, ByteRange};
use extant_block::Sector;

/// A file that is one run on its device: the simplest backing there is. It has no holes: if the
/// size shrinks and grows again, the bytes between read as they were last written back.
#[derive(Clone, Debug)]
pub struct FlatFile {
    start: Sector,
    bytes: u64,
}

impl FlatFile {
    /// A file of at most `bytes` bytes, starting at `start`; a whole number of device blocks.
    pub fn new(start: Sector, bytes: u64) -> Self {
        Self { start, bytes }
    }

    fn at(&self, range: ByteRange) -> Result<WriteExtent, BackingError> {
        let there = range.intersect(ByteRange::new(0, self.bytes));
        if there.is_empty() {
            let beyond = BeyondFlatFile { offset: range.start, bytes: self.bytes };
            return Err(BackingError::new(BackingErrorKind::TooLarge, beyond));
        }
        Ok(WriteExtent::new(there, Sector(self.start.0 + range.start / Sector::BYTES)))
    }
}

/// A write past the end of a [`FlatFile`]'s run.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("offset {offset} is beyond the {bytes} bytes that the file can grow to")]
pub struct BeyondFlatFile {
    /// Offset of the attempted write.
    pub offset: u64,
    /// The run's length.
    pub bytes: u64,
}

impl Backing for FlatFile {
    fn block_bytes(&self) -> u32 {
        4096
    }

    fn end_bytes(&self) -> u64 {
        self.bytes
    }

    fn map_read(&self, range: ByteRange) -> Answer<'_, ReadExtent> {
        let there = range.intersect(ByteRange::new(0, self.bytes));
        Answer::ok(match there.is_empty() {
            true => ReadExtent { from: ReadFrom::Hole, bytes: range.len() },
            false => ReadExtent {
                from: ReadFrom::Device(Sector(self.start.0 + range.start / Sector::BYTES)),
                bytes: there.len(),
            },
        })
    }

    fn prepare_write<'a>(&'a self, run: DirtyRun<'a>) -> Answer<'a, Placed> {
        let extents = run.pieces.iter().map(|&piece| self.at(piece)).collect::<Result<_, _>>();
        Answer::Ready(extents.map(|extents| Placed { extents, changes_map: false }))
    }

    fn finish_write<'a>(&'a self, _run: &'a WrittenRun) -> Answer<'a, ()> {
        Answer::ok(())
    }
}
