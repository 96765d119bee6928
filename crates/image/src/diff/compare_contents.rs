//! Finds the first difference between two files.

use super::side::{Item, Node};
use super::{Report, Side, Tree, Unreadable};
use crate::export::file_contents::{Allowance, LostParts, regions};
use extant_format::UintExt;
use extant_fs::{BlockRef, Chunk, FileStream};
use rustix::fs::{Mode, OFlags, SeekFrom};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Bytes read from the host at a time.
const CHUNK_BYTES: usize = 1 << 20;

/// A regular file as a stream of pieces.
pub(super) struct Reader {
    source: Source,
    piece: Piece,
    /// Bytes of `piece` already compared.
    used: usize,
    lost: LostParts,
}

enum Source {
    Stored(Box<FileStream>),
    Host { file: File, at: u64, size: u64 },
}

enum Piece {
    Stored(BlockRef),
    Host(Vec<u8>),
    Hole(u64),
    /// An unreadable part of this length.
    Lost(u64),
}

/// The next bytes of a file.
enum Next<'a> {
    Bytes(&'a [u8]),
    Zeroes,
    Unknown,
}

/// Opens a regular file of a tree.
pub(super) async fn open(
    item: &Item,
    tree: &Tree<'_>,
    allowance: &mut Option<Allowance>,
) -> Result<Reader, Unreadable> {
    let source = match (&item.node, tree) {
        (Node::Stored(inode), Tree::Volume { volume, .. }) => {
            if let Some(allowance) = allowance {
                let bytes = regions(volume, inode).await.iter().map(|region| region.len()).sum();
                allowance.spend(inode, bytes)?;
            }
            Source::Stored(Box::new(volume.stream(inode.clone()).await?))
        }
        (Node::Host(path), _) => {
            let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
            let file = File::from(rustix::fs::open(path, flags, Mode::empty()).map_err(io::Error::from)?);
            let size = file.metadata()?.len();
            Source::Host { file, at: 0, size }
        }
        (Node::Stored(_), Tree::Host(_)) => unreachable!("an inode belongs to a volume"),
    };
    Ok(Reader { source, piece: Piece::Hole(0), used: 0, lost: LostParts::default() })
}

/// Returns the offset of the first differing byte, counted from 0, up to the end of the shorter
/// file. Parts that are unreadable on either side are reported and not compared.
///
/// # Errors
/// The side that could not be read up to there, and why.
pub(super) async fn first_difference(
    path: &[u8],
    mut a: Reader,
    mut b: Reader,
    report: &mut dyn Report,
) -> Result<Option<u64>, (Side, Unreadable)> {
    let mut at = 0;
    loop {
        let left_a = a.fill(Side::A, path, report).await.map_err(|error| (Side::A, error))?;
        let left_b = b.fill(Side::B, path, report).await.map_err(|error| (Side::B, error))?;
        let n = left_a.min(left_b);
        if n == 0 {
            for (side, reader) in [(Side::A, a), (Side::B, b)] {
                if let Some(error) = reader.lost.rest() {
                    report.unreadable(side, path, error.into());
                }
            }
            return Ok(None);
        }
        let differs = match (a.next(n), b.next(n)) {
            (Next::Unknown, _) | (_, Next::Unknown) | (Next::Zeroes, Next::Zeroes) => None,
            (Next::Bytes(bytes), Next::Zeroes) | (Next::Zeroes, Next::Bytes(bytes)) => {
                bytes.iter().position(|&byte| byte != 0)
            }
            (Next::Bytes(a), Next::Bytes(b)) if a == b => None,
            (Next::Bytes(a), Next::Bytes(b)) => a.iter().zip(b).position(|(a, b)| a != b),
        };
        if let Some(skip) = differs {
            return Ok(Some(at + skip.to_u64()));
        }
        a.take(n);
        b.take(n);
        at += n;
        report.advanced(2 * n);
    }
}

impl Reader {
    /// Bytes of the current piece not yet compared; 0 at the end of the file. Reports an unreadable
    /// piece.
    async fn fill(&mut self, side: Side, path: &[u8], report: &mut dyn Report) -> Result<u64, Unreadable> {
        loop {
            let left = self.piece.len() - self.used.to_u64();
            if left > 0 {
                return Ok(left);
            }
            self.used = 0;
            let next = match &mut self.source {
                Source::Stored(stream) => match stream.next().await {
                    Ok(Some(Chunk::Data { bytes, .. })) => Some(Piece::Stored(bytes)),
                    Ok(Some(Chunk::Hole { bytes, .. })) => Some(Piece::Hole(bytes)),
                    Ok(None) => None,
                    Err(part) => {
                        let bytes = part.bytes;
                        if let Some(error) = self.lost.add(part) {
                            report.unreadable(side, path, error.into());
                        }
                        Some(Piece::Lost(bytes))
                    }
                },
                Source::Host { file, at, size } => read_host(file, at, *size)?,
            };
            match next {
                Some(piece) => self.piece = piece,
                None => {
                    self.piece = Piece::Hole(0);
                    return Ok(0);
                }
            }
        }
    }

    /// The next `n` bytes.
    fn next(&self, n: u64) -> Next<'_> {
        let bytes: &[u8] = match &self.piece {
            Piece::Stored(bytes) => bytes,
            Piece::Host(bytes) => bytes,
            Piece::Hole(_) => return Next::Zeroes,
            Piece::Lost(_) => return Next::Unknown,
        };
        Next::Bytes(&bytes[self.used..self.used + n.to_usize()])
    }

    fn take(&mut self, n: u64) {
        match &mut self.piece {
            Piece::Hole(left) | Piece::Lost(left) => *left -= n,
            _ => self.used += n.to_usize(),
        }
    }
}

impl Piece {
    fn len(&self) -> u64 {
        match self {
            Self::Stored(bytes) => bytes.len().to_u64(),
            Self::Host(bytes) => bytes.len().to_u64(),
            Self::Hole(bytes) | Self::Lost(bytes) => *bytes,
        }
    }
}

/// Reads the piece of a host file at `at` and advances `at` past it; `None` at the end of the file.
fn read_host(file: &File, at: &mut u64, size: u64) -> io::Result<Option<Piece>> {
    if *at >= size {
        return Ok(None);
    }
    let data = match rustix::fs::seek(file, SeekFrom::Data(*at)) {
        Ok(data) => data.min(size),
        Err(Errno::NXIO) => size,
        // If the file system does not report holes, treat everything as data.
        Err(Errno::INVAL | Errno::OPNOTSUPP) => *at,
        Err(error) => return Err(error.into()),
    };
    if data > *at {
        let hole = data - *at;
        *at = data;
        return Ok(Some(Piece::Hole(hole)));
    }
    let mut bytes = vec![0; CHUNK_BYTES.min((size - *at).to_usize())];
    loop {
        match file.read_at(&mut bytes, *at) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            read => {
                bytes.truncate(read?);
                *at += bytes.len().to_u64();
                return Ok((!bytes.is_empty()).then_some(Piece::Host(bytes)));
            }
        }
    }
}
