//! An archive's bytes, from a file or a stream.

use super::super::Stores;
use super::super::decode::Stream;
use super::super::lost::Lost;
use super::super::store::SpoolError;
use super::behind::{Behind, is_zero};
use super::header::{BLOCK, Header};
use crate::tree::{Kind, NodeId, Tree};
use crate::{BuildError, Note, quoted};
use extant_format::UintExt;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// Bytes after the archive's end scanned per read, in whole blocks.
const CHUNK: usize = 128 * BLOCK;

/// An archive being read.
pub(crate) struct Input {
    pub(crate) name: String,
    bytes: Bytes,
    /// Bytes of the archive read so far.
    at: u64,
    /// The entry being read, for messages.
    entry: Option<Vec<u8>>,
    in_entry: bool,
    /// Whether the terminating zero blocks have been seen.
    ended: bool,
    behind: Behind,
    /// Offset of the first zero block that was not followed by a second one, and the number of such
    /// blocks.
    lone_zeros: Option<(u64, u64)>,
    /// Path of the first whiteout, and the number of whiteouts.
    whiteouts: Option<(Vec<u8>, u64)>,
    /// Flags and path of the first entry with file flags, and the number of such entries.
    flags: Option<(Vec<u8>, Vec<u8>, u64)>,
    /// Entries in directories that later entries replace.
    lost: Lost,
}

enum Bytes {
    /// A range of a file; contents are referenced in place.
    File { file: Arc<File>, archive: u16, start: u64, len: u64 },
    /// Anything else; contents are spooled.
    Stream(Stream),
}

impl Input {
    /// An open file's `len` bytes from `start`.
    pub(crate) fn file(file: Arc<File>, archive: u16, start: u64, len: u64, name: String) -> Self {
        Self::new(name, Bytes::File { file, archive, start, len })
    }

    /// A decompressed stream.
    pub(crate) fn stream(stream: Stream, name: String) -> Self {
        Self::new(name, Bytes::Stream(stream))
    }

    fn new(name: String, bytes: Bytes) -> Self {
        Self {
            name,
            bytes,
            at: 0,
            entry: None,
            in_entry: false,
            ended: false,
            behind: Behind::default(),
            lone_zeros: None,
            whiteouts: None,
            flags: None,
            lost: Lost::default(),
        }
    }

    /// Whether contents must be spooled.
    pub(super) fn is_stream(&self) -> bool {
        matches!(self.bytes, Bytes::Stream(_))
    }

    /// Reads the next header block; `None` at the end of the archive.
    pub(super) fn header(&mut self) -> Result<Option<[u8; BLOCK]>, BuildError> {
        self.in_entry = false;
        let mut block = [0; BLOCK];
        match self.fill(&mut block)? {
            0 => return Ok(None),
            BLOCK if is_zero(&block) => {}
            BLOCK => return Ok(Some(block)),
            _ => return Err(self.bad("the archive is cut short")),
        }
        // An archive ends with two zero blocks, or with one that is not followed by an entry.
        let at = self.at;
        let got = self.fill(&mut block)?;
        if got == BLOCK && self.entry.is_some() && Header(&block).checksum_holds() && !is_zero(&block) {
            self.lone_zeros.get_or_insert((at - BLOCK.to_u64(), 0)).1 += 1;
            return Ok(Some(block));
        }
        self.behind.look(at, &block[..got]);
        self.ended = true;
        Ok(None)
    }

    /// Sets the entry that later errors name.
    pub(super) fn enter(&mut self, path: &[u8]) {
        let entry = self.entry.get_or_insert_default();
        entry.clear();
        entry.extend_from_slice(path);
        self.in_entry = true;
    }

    /// Counts the current entry as a whiteout that is not applied.
    pub(super) fn count_whiteout(&mut self) {
        let path = self.entry.clone().unwrap_or_default();
        self.whiteouts.get_or_insert((path, 0)).1 += 1;
    }

    /// Counts the current entry as one whose file flags are left out.
    pub(super) fn count_flags(&mut self, flags: &[u8]) {
        let first = || (flags.to_vec(), self.entry.clone().unwrap_or_default(), 0);
        self.flags.get_or_insert_with(first).2 += 1;
    }

    /// Counts what is lost when something other than a directory is put at `dir`/`name`. `tree` has
    /// only entries of this archive.
    pub(super) fn count_lost(&mut self, tree: &Tree, dir: NodeId, name: &[u8]) {
        let there = tree.lookup(dir, name).map(|entry| tree.entry_node(entry));
        if let Some(there) = there.filter(|&there| tree.node(there).kind == Kind::Directory) {
            self.lost.count_below(tree, there, NodeId::ROOT);
        }
    }

    /// A note about the whiteouts that were not applied.
    pub(crate) fn whiteouts(&self) -> Option<Note> {
        let (path, names) = self.whiteouts.as_ref()?;
        Some(Note::Whiteouts { archive: self.name.clone(), path: quoted(path), names: *names })
    }

    /// An error at the current position.
    pub(crate) fn bad(&self, problem: impl Into<String>) -> BuildError {
        let place = match &self.entry {
            Some(path) if self.in_entry => format!("in entry {}", quoted(path)),
            Some(path) => format!("after entry {}", quoted(path)),
            None => "before the first entry".into(),
        };
        BuildError::Tar { archive: self.name.clone(), offset: self.at, place, problem: problem.into() }
    }

    fn bad_at(&mut self, at: u64, problem: impl Into<String>) -> BuildError {
        self.at = at;
        self.bad(problem)
    }

    /// An error for a block that should be a header.
    pub(super) fn bad_header(&self) -> BuildError {
        if self.at == BLOCK.to_u64() {
            self.bad("this is no tar archive, neither plain nor in gzip, zstd or xz")
        } else {
            self.bad("this is not a tar header")
        }
    }

    pub(super) fn read_exact(&mut self, buf: &mut [u8]) -> Result<(), BuildError> {
        if self.fill(buf)? == buf.len() { Ok(()) } else { Err(self.bad("the archive is cut short")) }
    }

    /// Consumes contents; returns the archive and offset where they can be read later.
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

    /// Skips the padding after `bytes` of contents.
    pub(super) fn skip_padding(&mut self, bytes: u64) -> Result<(), BuildError> {
        let padding = bytes.next_multiple_of(BLOCK.to_u64()) - bytes;
        let mut block = [0; BLOCK];
        // The archive's last entry may lack its padding.
        self.fill(&mut block[..padding.to_usize()]).map(drop)
    }

    /// Skips contents.
    pub(super) fn skip_padded(&mut self, bytes: u64) -> Result<(), BuildError> {
        let mut left = bytes;
        let mut buf = [0; 8 * BLOCK];
        while left > 0 {
            let want = left.min(buf.len().to_u64());
            self.read_exact(&mut buf[..want.to_usize()])?;
            left -= want;
        }
        self.skip_padding(bytes)
    }

    /// Checks what follows the last entry, and returns notes on anything odd. Reads a stream to its
    /// end, to verify its checksums and to spare a pipe's writer SIGPIPE.
    ///
    /// Unless a digest covers the archive (`is_checked`), missing zero blocks at the end are an
    /// error, because an archive truncated between two entries looks the same. As in GNU tar and
    /// bsdtar, nothing after those blocks belongs to the archive. Two cases are errors because data
    /// was lost: zeros without any entry before them, as in a disk image, and zeros followed by a
    /// piece of an archive.
    pub(crate) fn finish(&mut self, is_checked: bool) -> Result<Vec<Note>, BuildError> {
        match (self.ended, self.at) {
            (true, _) => self.look_behind()?,
            (false, 0) => return Err(self.bad("the archive is empty")),
            (false, _) if is_checked => {}
            (false, _) => {
                return Err(self.bad(
                    "the archive is cut short: the zero blocks that end one are missing (if it never had them, append \
                     1024 zero bytes)",
                ));
            }
        }
        let mut buf = vec![0; CHUNK];
        while matches!(self.bytes, Bytes::Stream(_)) && self.fill(&mut buf)? > 0 {}
        let mut notes: Vec<Note> = self.lost.note(&self.name).into_iter().collect();
        if let Some((flags, path, files)) = &self.flags {
            notes.push(Note::FlagsLeftOut {
                archive: self.name.clone(),
                flags: quoted(flags),
                path: quoted(path),
                files: *files,
            });
        }
        if let Some((at, blocks)) = self.lone_zeros {
            notes.push(Note::LoneZeros { archive: self.name.clone(), at, blocks });
        }
        match (self.behind.first, self.behind.header) {
            (None, _) => {}
            (Some(at), _) if self.entry.is_none() => {
                return Err(self.bad_at(
                    at,
                    "this is no tar archive, or its beginning was lost: zeros come first, as in an empty one, but more \
                     follows",
                ));
            }
            (Some(at), Some(header)) if at != header => {
                let problem = format!(
                    "the archive is damaged: entries follow behind the zeros that end it, from byte {header} on (to leave \
                     them out, keep the first {at} bytes only)"
                );
                return Err(self.bad_at(at, problem));
            }
            (Some(at), header) => {
                let is_archive = header.is_some();
                notes.push(Note::BehindEnd { archive: self.name.clone(), at, is_archive });
            }
        }
        Ok(notes)
    }

    /// Scans what follows the terminating zero blocks, until it is known what it is.
    fn look_behind(&mut self) -> Result<(), BuildError> {
        let mut buf = vec![0; CHUNK];
        while self.behind.header.is_none() && !(self.entry.is_none() && self.behind.first.is_some()) {
            self.skip_hole();
            let at = self.at;
            let got = self.fill(&mut buf)?;
            if got == 0 {
                break;
            }
            self.behind.look(at, &buf[..got]);
        }
        Ok(())
    }

    /// Skips a hole in the file, which may be too long to read.
    fn skip_hole(&mut self) {
        let Bytes::File { file, start, len, .. } = &self.bytes else { return };
        let data = match rustix::fs::seek(file, rustix::fs::SeekFrom::Data(*start + self.at)) {
            Ok(data) => data.saturating_sub(*start) / BLOCK.to_u64() * BLOCK.to_u64(),
            Err(rustix::io::Errno::NXIO) => *len,
            // If the file system does not support the call, assume no holes.
            Err(_) => return,
        };
        self.at = self.at.max(data.min(*len));
    }

    /// Reads until `buf` is full or the archive ends; returns the number of bytes read.
    fn fill(&mut self, buf: &mut [u8]) -> Result<usize, BuildError> {
        let mut done = 0;
        while done < buf.len() {
            let result = match &mut self.bytes {
                Bytes::File { file, start, len, .. } => {
                    let want = (buf.len() - done).to_u64().min(len.saturating_sub(self.at)).to_usize();
                    file.read_at(&mut buf[done..done + want], *start + self.at)
                }
                Bytes::Stream(stream) => stream.read(&mut buf[done..]),
            };
            match result {
                Ok(0) => break,
                Ok(n) => {
                    done += n;
                    self.at += n.to_u64();
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
