//! Open files.

use crate::sys::{Node, OpenNode, of_mode, of_owner, of_times};
use crate::{Buf, Defragmented, Error, Fallocate, FileExtent, Metadata, Result, Time};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// An open regular file. Clones are the same open file.
#[derive(Clone)]
pub struct File {
    pub(crate) open: Arc<OpenNode>,
}

impl File {
    pub(crate) fn new(open: OpenNode) -> Self {
        Self { open: Arc::new(open) }
    }

    pub(crate) fn node(&self) -> &Node {
        self.open.node()
    }

    /// The size in bytes.
    pub fn len(&self) -> u64 {
        self.open.size()
    }

    /// Whether the size is zero.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Attributes.
    ///
    /// # Errors
    /// The inode cannot be read.
    pub fn metadata(&self) -> Result<Metadata> {
        self.open.metadata()
    }

    /// Reads from byte `at` on until `to` is full or the file ends; returns how many bytes that was.
    ///
    /// # Errors
    /// The file is not open for reading; nothing could be read.
    pub async fn read_at(&self, at: u64, to: &mut [u8]) -> Result<usize> {
        let mut done = 0;
        while done < to.len() {
            match self.open.read(at + done as u64, &mut to[done..]).await {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(_) if done > 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }

    /// As [`File::read_at`], from memory alone: how many bytes were there, and whether that was all.
    pub(crate) fn read_cached(&self, at: u64, to: &mut [u8]) -> (usize, bool) {
        self.open.read_cached(at, to)
    }

    /// Writes from byte `at` on, or at the end of a file open for appending; returns how many bytes that was, fewer than
    /// asked for where space ended. Durable after [`File::sync_all`].
    ///
    /// # Errors
    /// The file is not open for writing; nothing could be written.
    pub async fn write_at(&self, at: u64, bytes: &[u8]) -> Result<usize> {
        self.open.write(at, bytes).await
    }

    /// Reads from byte `at` on past the cache (`O_DIRECT`), and gives the buffer back with how many bytes there were before the
    /// end of the file. Offset and length in multiples of 4,096 bytes are direct on every device, and smaller ones as far as its
    /// sectors allow; other reads go through the cache. Dirty pages of the range are written back first.
    ///
    /// # Errors
    /// The file is not open for reading; nothing could be read.
    pub async fn read_direct(&self, at: u64, buf: Buf) -> (Buf, Result<usize>) {
        self.open.read_direct(at, buf).await
    }

    /// Writes from byte `at` on, or at the end of a file open for appending, past the cache (`O_DIRECT`), and gives the buffer
    /// back with how many bytes were written. They are on the device when it returns, and survive a power cut once the file was
    /// synced. Offset and length in multiples of the volume's blocks are direct; smaller ones where bytes are overwritten, as
    /// far as the device's sectors allow. Other writes go through the cache and are written back.
    ///
    /// # Errors
    /// The file is not open for writing; the device failed, and the range holds old and new bytes.
    pub async fn write_direct(&self, at: u64, buf: Buf) -> (Buf, Result<usize>) {
        self.open.write_direct(at, buf).await
    }

    /// As [`File::read_at`], until `to` is full.
    ///
    /// # Errors
    /// As there; the file ends before, an [`Error::Range`].
    pub async fn read_exact_at(&self, mut at: u64, mut to: &mut [u8]) -> Result<()> {
        while !to.is_empty() {
            match self.read_at(at, to).await? {
                0 => {
                    return Err(Error::Range(format!(
                        "a read of {} bytes more at byte {at}, where the file ends",
                        to.len()
                    )));
                }
                n => (at, to) = (at + n as u64, &mut to[n..]),
            }
        }
        Ok(())
    }

    /// As [`File::write_at`], of all bytes.
    ///
    /// # Errors
    /// As there, with some bytes written.
    pub async fn write_all_at(&self, mut at: u64, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            match self.write_at(at, bytes).await? {
                0 => return Err(Error::NoSpace),
                n => (at, bytes) = (at + n as u64, &bytes[n..]),
            }
        }
        Ok(())
    }

    /// Sets the size: what lies beyond is gone, what is new reads as zeroes.
    ///
    /// # Errors
    /// The file is not open for writing; the size is beyond the largest of a file.
    pub async fn set_len(&self, size: u64) -> Result<()> {
        self.open.set_size(size).await
    }

    /// Copies up to `len` bytes from `at` on to `to`, a file of the same volume, from its byte `to_at` on; returns how many that
    /// was, fewer where this file or space ends (`copy_file_range(2)`). Holes stay holes.
    ///
    /// # Errors
    /// This file is not open for reading, or the other not for writing at an offset; they are of two volumes; the ranges are of
    /// one file and overlap; nothing could be copied.
    pub async fn copy_range(&self, at: u64, to: &Self, to_at: u64, len: u64) -> Result<u64> {
        self.open.copy_range(at, &to.open, to_at, len).await
    }

    /// Changes the space of `len` bytes from `offset` on, as `fallocate(2)`: allocates it ahead of writes, frees or zeroes it,
    /// or takes it out of or puts it into the file. Durable after [`File::sync_all`]; after a power cut before that it may be
    /// there in part.
    ///
    /// # Errors
    /// The file is not open for writing; it has a map of pointers, as on ext2 and ext3, where only
    /// [`Fallocate::PunchHole`] is possible; the range is empty, too far out, or not one that can be taken out or put in; space
    /// ends.
    pub async fn fallocate(&self, mode: Fallocate, offset: u64, len: u64) -> Result<()> {
        self.open.fallocate(mode, offset, len).await
    }

    /// Moves the file's blocks to as few runs as free space allows; contents and times stay. Durable after
    /// [`File::sync_all`]; a power cut before that finds all of the file, part of it moved.
    ///
    /// # Errors
    /// The file is not open for writing; it has a map of pointers, as on ext2 and ext3; it may not change; there is no space
    /// for a second copy of its longest stretch without a hole.
    pub async fn defragment(&self) -> Result<Defragmented> {
        self.open.defragment().await
    }

    /// The first byte from `from` on that is data (`SEEK_DATA`), whether on the device or in memory; `None` where none is up
    /// to the end of the file.
    ///
    /// # Errors
    /// The file's map is damaged or cannot be read.
    pub async fn seek_data(&self, from: u64) -> Result<Option<u64>> {
        self.open.seek_data(from).await
    }

    /// The first byte from `from` on that lies in a hole (`SEEK_HOLE`); the end of the file counts as one. `None` for `from`
    /// at the end or behind.
    ///
    /// # Errors
    /// As [`File::seek_data`].
    pub async fn seek_hole(&self, from: u64) -> Result<Option<u64>> {
        self.open.seek_hole(from).await
    }

    /// The file's extents with bytes in a range, as `FS_IOC_FIEMAP` lists them: in order, adjacent ones joined, cut to the
    /// range's blocks. Those that are allocated behind the file's end are among them.
    ///
    /// # Errors
    /// As [`File::seek_data`].
    pub async fn extents(&self, range: Range<u64>) -> Result<Vec<FileExtent>> {
        self.open.extents(range).await
    }

    /// Sets the permission bits, setuid, setgid and sticky.
    ///
    /// # Errors
    /// The caller is not the file's owner.
    pub async fn set_mode(&self, mode: u32) -> Result<()> {
        self.open.set(of_mode(mode)).await
    }

    /// Sets owner and group; `None` leaves one as it is.
    ///
    /// # Errors
    /// The caller may not.
    pub async fn set_owner(&self, uid: Option<u32>, gid: Option<u32>) -> Result<()> {
        self.open.set(of_owner(uid, gid)).await
    }

    /// Sets times of last access and change; `None` leaves one as it is.
    ///
    /// # Errors
    /// The caller is not the file's owner.
    pub async fn set_times(&self, accessed: Option<Time>, modified: Option<Time>) -> Result<()> {
        self.open.set(of_times(accessed, modified)?).await
    }

    /// Writes what is in memory, without making it durable. Space is given out here, or whenever the cache comes to it: a
    /// program that wants the same bytes in every run calls this after each file.
    ///
    /// # Errors
    /// Something could not be written.
    pub async fn write_back(&self) -> Result<()> {
        self.open.write_back().await
    }

    /// Makes contents, size, attributes and names durable.
    ///
    /// # Errors
    /// Something could not be written, now or since the last call.
    pub async fn sync_all(&self) -> Result<()> {
        self.open.sync(false).await
    }

    /// Makes durable what is needed to read the contents back.
    ///
    /// # Errors
    /// As [`File::sync_all`].
    pub async fn sync_data(&self) -> Result<()> {
        self.open.sync(true).await
    }
}

impl fmt::Debug for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "File({:?})", self.node())
    }
}
