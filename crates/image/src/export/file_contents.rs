//! File contents, with holes distinguished.

use super::Watch;
use extant_cache::ByteRange;
use extant_format::{Corrupt, Inode, InodeFlags, Place, RoCompat, UintExt};
use extant_fs::{Chunk, Error, FileStream, Lost, RunState, Volume};

/// Limits the bytes read from a volume to what it can hold: a damaged map that uses blocks twice
/// could make a small volume's contents endless.
#[derive(Debug)]
pub(crate) struct Allowance {
    left_bytes: u64,
}

impl Allowance {
    pub(crate) fn of(volume: &Volume) -> Self {
        let sb = volume.superblock();
        let bytes = sb.blocks_count() << sb.block_size().log2();
        // Damage may put a few blocks in two files, so allow some slack. With shared_blocks, all
        // blocks may be shared on purpose.
        let factor = if sb.ro_compat().contains(RoCompat::SHARED_BLOCKS) { 64 } else { 2 };
        Self { left_bytes: bytes.saturating_mul(factor) }
    }

    pub(crate) fn spend(&mut self, inode: &Inode, bytes: u64) -> Result<(), Error> {
        match self.left_bytes.checked_sub(bytes) {
            Some(left) => self.left_bytes = left,
            None => {
                let rule =
                    "no more, with all files before, than the volume holds: blocks are used many times";
                return Err(Corrupt::field(Place::Inode(inode.number), "data bytes", bytes, rule).into());
            }
        }
        Ok(())
    }
}

/// Maximum number of lost parts reported individually per file.
const LOST_MAX: u64 = 1000;

/// Data regions of a file: ascending, not adjacent, within its size. Parts that the map does not
/// describe are left out; [`send`] reports them.
pub(crate) async fn regions(volume: &Volume, inode: &Inode) -> Vec<ByteRange> {
    let size = inode.size();
    if inode.flags().contains(InodeFlags::INLINE_DATA) {
        return whole(size);
    }
    let mut regions: Vec<ByteRange> = Vec::new();
    let log2 = volume.superblock().block_size().log2();
    let mut runs = volume.runs(inode);
    loop {
        let run = match runs.next().await {
            Ok(Some(run)) => run,
            Ok(None) => return regions,
            Err(_) => continue,
        };
        let RunState::Written(_) = run.state else { continue };
        let start = run.logical << log2;
        let end = start.saturating_add(run.blocks << log2).min(size);
        match regions.last_mut() {
            Some(last) if last.end == start => last.end = end,
            _ if start < end => regions.push(ByteRange::new(start, end)),
            _ => {}
        }
    }
}

/// The regions of a file without holes.
pub(super) fn whole(size: u64) -> Vec<ByteRange> {
    std::iter::once(ByteRange::new(0, size)).filter(|region| !region.is_empty()).collect()
}

/// Bytes of a file's data regions.
pub(super) async fn stored_bytes(volume: &Volume, inode: &Inode) -> u64 {
    regions(volume, inode).await.iter().map(|region| region.len()).sum()
}

/// A file's contents in order, which are read as they are needed or were read before.
pub(super) enum Pieces {
    Stream(Box<FileStream>),
    Read(std::vec::IntoIter<Result<Chunk, Lost>>),
}

impl From<FileStream> for Pieces {
    fn from(stream: FileStream) -> Self {
        Self::Stream(Box::new(stream))
    }
}

impl Pieces {
    /// Reads a file to its end.
    pub(super) async fn all_of(mut stream: FileStream) -> Self {
        let mut pieces = Vec::new();
        while let Some(piece) = stream.next().await.transpose() {
            pieces.push(piece);
        }
        Self::Read(pieces.into_iter())
    }

    async fn next(&mut self) -> Result<Option<Chunk>, Lost> {
        match self {
            Self::Stream(stream) => stream.next().await,
            Self::Read(pieces) => pieces.next().transpose(),
        }
    }
}

/// Receives contents in ascending order.
pub(super) trait Sink {
    /// Bytes at this file offset, after all earlier ones.
    fn data(&mut self, offset: u64, bytes: &[u8]) -> std::io::Result<()>;
}

/// Sends all data of a file to `sink`. Unreadable parts are left out and reported to `watch`.
pub(super) async fn send(
    contents: impl Into<Pieces>,
    path: &[u8],
    sink: &mut dyn Sink,
    watch: &mut dyn Watch,
) -> std::io::Result<u64> {
    let (mut contents, mut sent) = (contents.into(), 0);
    let mut lost = LostParts::default();
    loop {
        match contents.next().await {
            Ok(Some(Chunk::Data { offset, bytes })) => {
                sink.data(offset, &bytes)?;
                sent += bytes.len().to_u64();
                watch.advanced(bytes.len().to_u64());
            }
            Ok(Some(Chunk::Hole { .. })) => {}
            Ok(None) => {
                if let Some(error) = lost.rest() {
                    watch.unreadable(path, error);
                }
                return Ok(sent);
            }
            Err(part) => {
                if let Some(error) = lost.add(part) {
                    watch.unreadable(path, error);
                }
            }
        }
    }
}

/// Counts lost parts of a file.
#[derive(Debug, Default)]
pub(crate) struct LostParts {
    told: u64,
    more: u64,
    more_bytes: u64,
}

impl LostParts {
    /// Returns the part as an error to report; `None` past the limit.
    pub(crate) fn add(&mut self, part: Lost) -> Option<Error> {
        if self.told < LOST_MAX {
            self.told += 1;
            return Some(part.into());
        }
        self.more += 1;
        self.more_bytes += part.bytes;
        None
    }

    /// The parts not reported individually.
    pub(crate) fn rest(&self) -> Option<Error> {
        (self.more > 0).then_some(Error::LostMore { parts: self.more, bytes: self.more_bytes })
    }
}
