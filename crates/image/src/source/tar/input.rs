//! The bytes of an archive, by position or as a stream.

use super::super::Stores;
use super::super::decode::Stream;
use super::super::store::SpoolError;
use super::header::BLOCK;
use crate::{BuildError, Note, quoted};
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// An archive that is being read.
pub(crate) struct Input {
    pub(crate) name: String,
    bytes: Bytes,
    /// Bytes of the archive read so far.
    at: u64,
    /// The entry being read, for messages.
    entry: Option<Vec<u8>>,
    in_entry: bool,
    /// Whether the zero block that ends an archive was seen.
    ended: bool,
    /// The first name of a whiteout, and how many there were.
    whiteouts: Option<(Vec<u8>, u64)>,
}

enum Bytes {
    /// A range of a file; contents stay there.
    File { file: Arc<File>, archive: u16, start: u64, len: u64 },
    /// Anything else; contents are spooled.
    Stream(Stream),
}

impl Input {
    /// `len` bytes of an open archive from `start` on.
    pub(crate) fn file(file: Arc<File>, archive: u16, start: u64, len: u64, name: String) -> Self {
        Self::new(name, Bytes::File { file, archive, start, len })
    }

    /// A decompressed stream.
    pub(crate) fn stream(stream: Stream, name: String) -> Self {
        Self::new(name, Bytes::Stream(stream))
    }

    fn new(name: String, bytes: Bytes) -> Self {
        Self { name, bytes, at: 0, entry: None, in_entry: false, ended: false, whiteouts: None }
    }

    /// The next header's block; `None` at the end of the archive.
    pub(super) fn header(&mut self) -> Result<Option<[u8; BLOCK]>, BuildError> {
        self.in_entry = false;
        let mut block = [0; BLOCK];
        match self.fill(&mut block)? {
            0 => Ok(None),
            BLOCK if block.iter().all(|b| *b == 0) => {
                self.ended = true;
                Ok(None)
            }
            BLOCK => Ok(Some(block)),
            _ => Err(self.bad("the archive is cut short")),
        }
    }

    /// Notes the entry that errors are to name from now on.
    pub(super) fn enter(&mut self, path: &[u8]) {
        let entry = self.entry.get_or_insert_default();
        entry.clear();
        entry.extend_from_slice(path);
        self.in_entry = true;
    }

    /// Notes that the entry being read is a whiteout that is not applied.
    pub(super) fn count_whiteout(&mut self) {
        let path = self.entry.clone().unwrap_or_default();
        self.whiteouts.get_or_insert((path, 0)).1 += 1;
    }

    /// The whiteouts that were not applied.
    pub(crate) fn whiteouts(&self) -> Option<Note> {
        let (path, names) = self.whiteouts.as_ref()?;
        Some(Note::Whiteouts { archive: self.name.clone(), path: quoted(path), names: *names })
    }

    /// An error at this place.
    pub(crate) fn bad(&self, problem: impl Into<String>) -> BuildError {
        let place = match &self.entry {
            Some(path) if self.in_entry => format!("in entry {}", quoted(path)),
            Some(path) => format!("after entry {}", quoted(path)),
            None => "before the first entry".into(),
        };
        BuildError::Tar { archive: self.name.clone(), offset: self.at, place, problem: problem.into() }
    }

    /// An error for a block that should have been a header.
    pub(super) fn bad_header(&self) -> BuildError {
        if self.at == BLOCK as u64 {
            self.bad("this is no tar archive, neither plain nor in gzip, zstd or xz")
        } else {
            self.bad("this is not a tar header")
        }
    }

    pub(super) fn read_exact(&mut self, buf: &mut [u8]) -> Result<(), BuildError> {
        if self.fill(buf)? == buf.len() { Ok(()) } else { Err(self.bad("the archive is cut short")) }
    }

    /// Passes over contents; gives the archive and the offset in it where they can be read later.
    pub(super) fn take(&mut self, stores: &mut Stores, bytes: u64) -> Result<(u16, u64), BuildError> {
        match &mut self.bytes {
            Bytes::File { archive, start, len, .. } => {
                if self.at.checked_add(bytes).is_none_or(|end| end > *len) {
                    return Err(self.bad("the archive is cut short"));
                }
                let place = (*archive, *start + self.at);
                self.at += bytes;
                Ok(place)
            }
            Bytes::Stream(stream) => match stores.spool(stream, bytes) {
                Ok((archive, offset, got)) => {
                    self.at += got;
                    if got < bytes {
                        Err(self.bad("the archive is cut short"))
                    } else {
                        Ok((archive, offset))
                    }
                }
                Err(SpoolError::Read(e)) => Err(self.unreadable(&e)),
                Err(SpoolError::Write(e)) => Err(e),
            },
        }
    }

    /// Passes over what fills the last block of `bytes` of contents.
    pub(super) fn skip_padding(&mut self, bytes: u64) -> Result<(), BuildError> {
        let padding = bytes.next_multiple_of(BLOCK as u64) - bytes;
        let mut block = [0; BLOCK];
        // The last entry of an archive may lack its padding.
        self.fill(&mut block[..padding as usize]).map(drop)
    }

    /// Skips contents.
    pub(super) fn skip_padded(&mut self, bytes: u64) -> Result<(), BuildError> {
        let mut left = bytes;
        let mut buf = [0; 8 * BLOCK];
        while left > 0 {
            let want = left.min(buf.len() as u64);
            self.read_exact(&mut buf[..want as usize])?;
            left -= want;
        }
        self.skip_padding(bytes)
    }

    /// An error if the archive stopped without the zero blocks that end one. That is how an archive looks that was cut
    /// between two entries; where a digest covers all of it, the question does not arise. Also an error if there is no entry in
    /// front of the zero blocks and something behind them, as in the image of a volume, which begins with an empty boot block.
    pub(crate) fn expect_end_mark(&mut self) -> Result<(), BuildError> {
        if self.ended && self.entry.is_none() {
            let mut rest = [0; 8 * BLOCK];
            let there = self.fill(&mut rest)?;
            if rest[..there].iter().any(|&b| b != 0) {
                self.at = BLOCK as u64;
                return Err(self.bad_header());
            }
        }
        match (self.ended, self.at) {
            (true, _) => Ok(()),
            (false, 0) => Err(self.bad("the archive is empty")),
            (false, _) => Err(self.bad(
                "the archive is cut short: the zero blocks that end one are missing (if it never had them, append 1024 zero \
                 bytes)",
            )),
        }
    }

    /// Reads a stream to its end, so that its checksums are checked and the writer of a pipe does not get SIGPIPE.
    pub(crate) fn drain(&mut self) -> Result<(), BuildError> {
        let mut buf = vec![0; 64 << 10];
        while matches!(self.bytes, Bytes::Stream(_)) && self.fill(&mut buf)? > 0 {}
        Ok(())
    }

    /// Reads until `buf` is full or the archive ends; gives how much came.
    fn fill(&mut self, buf: &mut [u8]) -> Result<usize, BuildError> {
        let mut done = 0;
        while done < buf.len() {
            let result = match &mut self.bytes {
                Bytes::File { file, start, len, .. } => {
                    let want = ((buf.len() - done) as u64).min(len.saturating_sub(self.at)) as usize;
                    file.read_at(&mut buf[done..done + want], *start + self.at)
                }
                Bytes::Stream(stream) => stream.read(&mut buf[done..]),
            };
            match result {
                Ok(0) => break,
                Ok(n) => {
                    done += n;
                    self.at += n as u64;
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(self.unreadable(&e)),
            }
        }
        Ok(done)
    }

    fn unreadable(&self, error: &io::Error) -> BuildError {
        if error.kind() == io::ErrorKind::UnexpectedEof {
            self.bad("the compressed archive is cut short")
        } else {
            self.bad(error.to_string())
        }
    }
}
