//! Open files.

use crate::sys::{Node, OpenNode, of_mode, of_owner, of_times};
use crate::{Buf, Defragmented, Error, Fallocate, FileExtent, Metadata, Result, Time};
use extant_format::UintExt;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// An open regular file. Clones share the same open file.
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
    /// The inode could not be read.
    pub fn metadata(&self) -> Result<Metadata> {
        self.open.metadata()
    }

    /// Reads from byte `at` until `to` is full or the file ends; returns the number of bytes read.
    ///
    /// # Errors
    /// The file is not open for reading, or nothing could be read.
    pub async fn read_at(&self, at: u64, to: &mut [u8]) -> Result<usize> {
        let mut done = 0;
        while done < to.len() {
            match self.open.read(at + done.to_u64(), &mut to[done..]).await {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(_) if done > 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }

    /// Writes at byte `at`, or at the end of a file open for appending. Returns the number of bytes
    /// written, which is short if space ran out. Durable after [`File::sync_all`].
    ///
    /// # Errors
    /// The file is not open for writing, or nothing could be written.
    pub async fn write_at(&self, at: u64, bytes: &[u8]) -> Result<usize> {
        self.open.write(at, bytes).await
    }

    /// Reads from byte `at`, bypassing the cache (`O_DIRECT`).
    ///
    /// Returns the buffer and the number of bytes read, which is short at the end of the file.
    /// Requests whose offset and length are multiples of 4,096 bytes are direct on every device;
    /// smaller multiples are direct if the device's sectors allow it. Other reads go through the
    /// cache. Dirty pages in the range are written back first.
    ///
    /// # Errors
    /// The file is not open for reading, or nothing could be read.
    pub async fn read_direct(&self, at: u64, buf: Buf) -> (Buf, Result<usize>) {
        self.open.read_direct(at, buf).await
    }

    /// Writes at byte `at`, or at the end of a file open for appending, bypassing the cache
    /// (`O_DIRECT`).
    ///
    /// Returns the buffer and the number of bytes written. They are on the device when this
    /// returns, and survive a power cut once the file is synced. Requests whose offset and length
    /// are multiples of the volume's block size are direct; smaller ones are direct if they
    /// overwrite existing bytes and the device's sectors allow it. Other writes go through the
    /// cache and are written back.
    ///
    /// # Errors
    /// The file is not open for writing; or the device failed, and the range holds a mix of old and
    /// new bytes.
    pub async fn write_direct(&self, at: u64, buf: Buf) -> (Buf, Result<usize>) {
        self.open.write_direct(at, buf).await
    }

    /// Like [`File::read_at`], but fills all of `to`.
    ///
    /// # Errors
    /// Those of [`File::read_at`], and [`Error::Range`] if the file ends first.
    pub async fn read_exact_at(&self, mut at: u64, mut to: &mut [u8]) -> Result<()> {
        while !to.is_empty() {
            match self.read_at(at, to).await? {
                0 => {
                    return Err(Error::Range(format!(
                        "a read of {} bytes more at byte {at}, where the file ends",
                        to.len()
                    )));
                }
                n => (at, to) = (at + n.to_u64(), &mut to[n..]),
            }
        }
        Ok(())
    }

    /// Like [`File::write_at`], but writes all of `bytes`.
    ///
    /// # Errors
    /// Those of [`File::write_at`]; some bytes may have been written.
    pub async fn write_all_at(&self, mut at: u64, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            match self.write_at(at, bytes).await? {
                0 => return Err(Error::NoSpace),
                n => (at, bytes) = (at + n.to_u64(), &bytes[n..]),
            }
        }
        Ok(())
    }

    /// Sets the size: truncates, or extends with zeros.
    ///
    /// # Errors
    /// The file is not open for writing, or the size exceeds the largest possible file.
    pub async fn set_len(&self, size: u64) -> Result<()> {
        self.open.set_size(size).await
    }

    /// Copies up to `len` bytes, starting at `at`, to byte `to_at` of `to`, a file on the same
    /// volume (`copy_file_range(2)`).
    ///
    /// Returns the number of bytes copied, which is short if this file ends or space runs out.
    /// Holes stay holes.
    ///
    /// # Errors
    /// This file is not open for reading; the other is not open for writing, or is open for
    /// appending; the files are on different volumes; the ranges overlap in one file; or nothing
    /// could be copied.
    pub async fn copy_range(&self, at: u64, to: &Self, to_at: u64, len: u64) -> Result<u64> {
        self.open.copy_range(at, &to.open, to_at, len).await
    }

    /// Changes the allocation of `len` bytes from `offset`, like `fallocate(2)`: preallocates,
    /// punches or zeroes the range, or removes it from or inserts it into the file. Durable after
    /// [`File::sync_all`]; after an earlier power cut the change may be partial.
    ///
    /// # Errors
    /// The file is not open for writing; it is mapped by block pointers (ext2, ext3), where only
    /// [`Fallocate::PunchHole`] works; the range is empty, too far out, or cannot be collapsed or
    /// inserted; or space runs out.
    pub async fn fallocate(&self, mode: Fallocate, offset: u64, len: u64) -> Result<()> {
        self.open.fallocate(mode, offset, len).await
    }

    /// Moves the file's blocks into as few extents as free space allows; contents and times stay.
    ///
    /// Durable after [`File::sync_all`]; after an earlier power cut the file is whole, with part of
    /// it moved.
    ///
    /// # Errors
    /// The file is not open for writing, is mapped by block pointers (ext2, ext3), or may not
    /// change; or free space cannot hold a second copy of its longest stretch without a hole.
    pub async fn defragment(&self) -> Result<Defragmented> {
        self.open.defragment().await
    }

    /// Returns the first byte at or after `from` that is data (`SEEK_DATA`), on the device or in
    /// memory; `None` if there is none before the end of the file.
    ///
    /// # Errors
    /// The file's map is damaged or cannot be read.
    pub async fn seek_data(&self, from: u64) -> Result<Option<u64>> {
        self.open.seek_data(from).await
    }

    /// Returns the first byte at or after `from` that lies in a hole (`SEEK_HOLE`); the end of the
    /// file counts as a hole. `None` if `from` is at or past the end.
    ///
    /// # Errors
    /// Same as [`File::seek_data`].
    pub async fn seek_hole(&self, from: u64) -> Result<Option<u64>> {
        self.open.seek_hole(from).await
    }

    /// Returns the file's extents within a range, as `FS_IOC_FIEMAP` lists them: in order, adjacent
    /// ones merged, clipped to the blocks of the range.
    ///
    /// Includes extents allocated past the end of the file.
    ///
    /// # Errors
    /// Same as [`File::seek_data`].
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

    /// Sets owner and group; `None` leaves either unchanged.
    ///
    /// # Errors
    /// The caller lacks permission.
    pub async fn set_owner(&self, uid: Option<u32>, gid: Option<u32>) -> Result<()> {
        self.open.set(of_owner(uid, gid)).await
    }

    /// Sets access and modification times; `None` leaves either unchanged.
    ///
    /// # Errors
    /// The caller is not the file's owner.
    pub async fn set_times(&self, accessed: Option<Time>, modified: Option<Time>) -> Result<()> {
        self.open.set(of_times(accessed, modified)?).await
    }

    /// Writes dirty data to the device, without making it durable.
    ///
    /// Blocks are allocated here, or whenever the cache writes back; a program that wants identical
    /// bytes on every run calls this after each file.
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

    /// Makes durable whatever is needed to read the contents back.
    ///
    /// # Errors
    /// Same as [`File::sync_all`].
    pub async fn sync_data(&self) -> Result<()> {
        self.open.sync(true).await
    }
}

impl fmt::Debug for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "File({:?})", self.node())
    }
}
