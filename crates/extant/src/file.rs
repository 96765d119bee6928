//! Open files, for code that blocks.

use crate::world::World;
use crate::{Buf, Defragmented, Error, Fallocate, FileExtent, Metadata, Result, Time, asynch};
use extant_block::{is_lendable, lend, lend_to_read};
use extant_cache::PAGE_BYTES;
use extant_format::UintExt;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::ops::Range;

/// An open regular file, with a position for [`Read`], [`Write`] and [`Seek`].
///
/// Clones share the open file; each has its own position.
///
/// ```
/// use std::io::{Read, Seek, Write};
/// # fn main() -> std::io::Result<()> {
/// # let folder = tempfile::tempdir().unwrap();
/// # let path = folder.path().join("disk.img");
/// # extant::Volume::create(&path, 16 << 20).unwrap().close().unwrap();
/// # let volume = extant::Volume::open(&path, &extant::OpenOptions::new().write(true)).unwrap();
/// let mut file = volume
///     .root()
///     .open_with("log", extant::FileOptions::new().read(true).write(true).create(true))?;
/// file.write_all(b"one\ntwo\n")?;
/// file.sync_all()?;
/// file.rewind()?;
/// let mut text = String::new();
/// file.read_to_string(&mut text)?;
/// assert_eq!(text, "one\ntwo\n");
/// # drop(file);
/// # volume.close()?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct File {
    world: World,
    inner: asynch::File,
    position: u64,
}

impl File {
    pub(crate) fn new(world: World, inner: asynch::File) -> Self {
        Self { world, inner, position: 0 }
    }

    /// The same open file, for async code.
    pub fn asynch(&self) -> &asynch::File {
        &self.inner
    }

    /// The size in bytes.
    pub fn len(&self) -> u64 {
        self.inner.len()
    }

    /// Whether the size is zero.
    pub fn is_empty(&self) -> bool {
        self.inner.is_empty()
    }

    /// Attributes.
    ///
    /// # Errors
    /// The inode cannot be read.
    pub fn metadata(&self) -> Result<Metadata> {
        self.inner.metadata()
    }

    /// Reads from byte `at` until `to` is full or the file ends; returns the number of bytes read.
    /// Bytes of `to` past those are undefined.
    ///
    /// # Errors
    /// The file is not open for reading, or nothing could be read.
    pub fn read_at(&self, at: u64, to: &mut [u8]) -> Result<usize> {
        // Bytes in memory, or in a buffered image, need neither the executor nor another thread.
        let (done, is_all) = self.inner.open.read_here(at, to);
        if is_all {
            return Ok(done);
        }
        match self.world.wait(self.inner.read_at(at + done.to_u64(), &mut to[done..])) {
            Ok(more) => Ok(done + more),
            Err(_) if done > 0 => Ok(done),
            Err(error) => Err(error),
        }
    }

    /// Writes at byte `at`, or at the end of a file open for appending. Returns the number of bytes
    /// written, which is short if space ran out. Durable after [`File::sync_all`].
    ///
    /// # Errors
    /// The file is not open for writing, or nothing could be written.
    pub fn write_at(&self, at: u64, bytes: &[u8]) -> Result<usize> {
        // Bytes of one page in memory need neither the executor nor another thread.
        if let Some(written) = self.inner.open.write_here(at, bytes) {
            return Ok(written);
        }
        match self.write_past(at, bytes) {
            (0, Ok(())) => self.world.wait(self.inner.write_at(at, bytes)),
            (0, Err(error)) => Err(error),
            (done, _) => Ok(done),
        }
    }

    /// Writes a part of a stream past the cache, in steps that the host copies at once. Returns the
    /// number of bytes written. The rest is for the cache, where a shorter write may still fit, or
    /// has failed.
    fn write_past(&self, at: u64, bytes: &[u8]) -> (usize, Result<()>) {
        let mut done = 0;
        while let Some(step) = self.inner.open.step_past(at + done.to_u64(), bytes.len() - done) {
            let written = lend_to_read(&bytes[done..done + step], |buf| {
                let mut back = Buf::zeroed(0);
                let written = self.world.wait(async {
                    let (buf, written) = self.inner.open.write_past(at + done.to_u64(), buf).await;
                    back = buf;
                    written
                });
                (back, written)
            });
            match written {
                Ok(bytes) if bytes == step => done += bytes,
                Ok(bytes) => return (done + bytes, Ok(())),
                Err(Error::NoSpace | Error::Quota(_)) => break,
                Err(error) => return (done, Err(error)),
            }
        }
        (done, Ok(()))
    }

    /// Reads from byte `at` into a buffer, bypassing the cache (`O_DIRECT`).
    ///
    /// Returns the number of bytes read, which is short at the end of the file. Requests whose
    /// offset and length are multiples of 4,096 bytes are direct on every device; smaller multiples
    /// are direct if the device's sectors allow it. Other reads go through the cache. Dirty pages
    /// in the range are written back first.
    ///
    /// # Errors
    /// The file is not open for reading, or nothing could be read.
    pub fn read_direct(&self, at: u64, buf: &mut Buf) -> Result<usize> {
        let own = std::mem::replace(buf, Buf::zeroed(0));
        self.world.wait(async {
            let (own, read) = self.inner.read_direct(at, own).await;
            *buf = own;
            read
        })
    }

    /// Writes a buffer at byte `at`, or at the end of a file open for appending, bypassing the
    /// cache (`O_DIRECT`).
    ///
    /// Returns the number of bytes written. They are on the device when this returns, and survive a
    /// power cut after [`File::sync_all`]. Requests whose offset and length are multiples of the
    /// volume's block size are direct; smaller ones are direct if they overwrite existing bytes and
    /// the device's sectors allow it. Other writes go through the cache and are written back.
    ///
    /// # Errors
    /// The file is not open for writing; or the device failed, and the range holds a mix of old and
    /// new bytes.
    pub fn write_direct(&self, at: u64, buf: &mut Buf) -> Result<usize> {
        let own = std::mem::replace(buf, Buf::zeroed(0));
        self.world.wait(async {
            let (own, written) = self.inner.write_direct(at, own).await;
            *buf = own;
            written
        })
    }

    /// Like [`File::read_direct`], but into the caller's memory: in place if it starts at a
    /// multiple of 4,096 bytes, through a copy otherwise.
    ///
    /// Bytes past those read are undefined. By the time this returns, even with an error, the
    /// device no longer uses the memory.
    ///
    /// # Errors
    /// Same as [`File::read_direct`].
    pub fn read_direct_into(&self, at: u64, to: &mut [u8]) -> Result<usize> {
        if is_lendable(to) {
            return lend(to, |mut buf| {
                let read = self.read_direct(at, &mut buf);
                (buf, read)
            });
        }
        let mut buf = Buf::zeroed(to.len());
        let read = self.read_direct(at, &mut buf)?;
        to[..read].copy_from_slice(&buf[..read]);
        Ok(read)
    }

    /// Like [`File::write_direct`], but from the caller's memory: in place if it starts at a
    /// multiple of 4,096 bytes, through a copy otherwise.
    ///
    /// By the time this returns, even with an error, the device no longer uses the memory.
    ///
    /// # Errors
    /// Same as [`File::write_direct`].
    pub fn write_direct_from(&self, at: u64, bytes: &[u8]) -> Result<usize> {
        match is_lendable(bytes) {
            true => lend_to_read(bytes, |mut buf| {
                let written = self.write_direct(at, &mut buf);
                (buf, written)
            }),
            false => self.write_direct(at, &mut Buf::from_slice(bytes)),
        }
    }

    /// Like [`File::read_at`], until `to` is full.
    ///
    /// # Errors
    /// Those of [`File::read_at`], and [`Error::Range`](crate::Error::Range) if the file ends
    /// first.
    pub fn read_exact_at(&self, at: u64, to: &mut [u8]) -> Result<()> {
        let read = self.read_at(at, to)?;
        if read == to.len() {
            return Ok(());
        }
        self.world.wait(self.inner.read_exact_at(at + read.to_u64(), &mut to[read..]))
    }

    /// Like [`File::write_at`], but writes all of `bytes`.
    ///
    /// # Errors
    /// Those of [`File::write_at`]; some bytes may have been written.
    pub fn write_all_at(&self, at: u64, bytes: &[u8]) -> Result<()> {
        let whole_pages = &bytes[..bytes.len() - bytes.len() % PAGE_BYTES];
        let done = match self.inner.open.write_here(at, bytes) {
            Some(written) => written,
            None => {
                let (done, written) = self.write_past(at, whole_pages);
                written?;
                done
            }
        };
        match &bytes[done..] {
            [] => Ok(()),
            rest => self.world.wait(self.inner.write_all_at(at + done.to_u64(), rest)),
        }
    }

    /// Sets the size: truncates, or extends with zeros.
    ///
    /// # Errors
    /// The file is not open for writing, or the size exceeds the largest possible file.
    pub fn set_len(&self, size: u64) -> Result<()> {
        self.world.wait(self.inner.set_len(size))
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
    pub fn copy_range(&self, at: u64, to: &Self, to_at: u64, len: u64) -> Result<u64> {
        self.world.wait(self.inner.copy_range(at, &to.inner, to_at, len))
    }

    /// Changes the allocation of `len` bytes from `offset`, like `fallocate(2)`: preallocates,
    /// punches or zeroes the range, or removes it from or inserts it into the file. Durable after
    /// [`File::sync_all`]; after an earlier power cut the change may be partial.
    ///
    /// # Errors
    /// The file is not open for writing; it is mapped by block pointers (ext2, ext3), where only
    /// [`Fallocate::PunchHole`] works; the range is empty, too far out, or cannot be collapsed or
    /// inserted; or space runs out.
    pub fn fallocate(&self, mode: Fallocate, offset: u64, len: u64) -> Result<()> {
        self.world.wait(self.inner.fallocate(mode, offset, len))
    }

    /// Moves the file's blocks into as few extents as free space allows; contents and times stay.
    ///
    /// Durable after [`File::sync_all`]; after an earlier power cut the file is whole, with part of
    /// it moved.
    ///
    /// # Errors
    /// The file is not open for writing, is mapped by block pointers (ext2, ext3), or may not
    /// change; or free space cannot hold a second copy of its longest stretch without a hole.
    pub fn defragment(&self) -> Result<Defragmented> {
        self.world.wait(self.inner.defragment())
    }

    /// Returns the first byte at or after `from` that is data (`SEEK_DATA`), on the device or in
    /// memory; `None` if there is none before the end of the file.
    ///
    /// # Errors
    /// The file's map is damaged or cannot be read.
    pub fn seek_data(&self, from: u64) -> Result<Option<u64>> {
        self.world.wait(self.inner.seek_data(from))
    }

    /// Returns the first byte at or after `from` that lies in a hole (`SEEK_HOLE`); the end of the
    /// file counts as a hole. `None` if `from` is at or past the end.
    ///
    /// # Errors
    /// Same as [`File::seek_data`].
    pub fn seek_hole(&self, from: u64) -> Result<Option<u64>> {
        self.world.wait(self.inner.seek_hole(from))
    }

    /// Returns the file's extents within a range, as `FS_IOC_FIEMAP` lists them: in order, adjacent
    /// ones merged, clipped to the blocks of the range.
    ///
    /// Includes extents allocated past the end of the file.
    ///
    /// # Errors
    /// Same as [`File::seek_data`].
    pub fn extents(&self, range: Range<u64>) -> Result<Vec<FileExtent>> {
        self.world.wait(self.inner.extents(range))
    }

    /// Sets the permission bits, setuid, setgid and sticky.
    ///
    /// # Errors
    /// The caller is not the file's owner.
    pub fn set_mode(&self, mode: u32) -> Result<()> {
        self.world.wait(self.inner.set_mode(mode))
    }

    /// Sets owner and group; `None` leaves either unchanged.
    ///
    /// # Errors
    /// The caller may not.
    pub fn set_owner(&self, uid: Option<u32>, gid: Option<u32>) -> Result<()> {
        self.world.wait(self.inner.set_owner(uid, gid))
    }

    /// Sets access and modification times; `None` leaves either unchanged.
    ///
    /// # Errors
    /// The caller is not the file's owner.
    pub fn set_times(&self, accessed: Option<Time>, modified: Option<Time>) -> Result<()> {
        self.world.wait(self.inner.set_times(accessed, modified))
    }

    /// Writes dirty data to the device, without making it durable.
    ///
    /// Blocks are allocated here, or whenever the cache writes back; a program that wants identical
    /// bytes on every run calls this after each file.
    ///
    /// # Errors
    /// Something could not be written.
    pub fn write_back(&self) -> Result<()> {
        self.world.wait(self.inner.write_back())
    }

    /// Makes contents, size, attributes and names durable.
    ///
    /// # Errors
    /// Something could not be written, now or since the last call.
    pub fn sync_all(&self) -> Result<()> {
        self.world.wait(self.inner.sync_all())
    }

    /// Makes durable whatever is needed to read the contents back.
    ///
    /// # Errors
    /// Same as [`File::sync_all`].
    pub fn sync_data(&self) -> Result<()> {
        self.world.wait(self.inner.sync_data())
    }
}

impl Read for File {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let n = self.read_at(self.position, to)?;
        self.position += n.to_u64();
        Ok(n)
    }
}

impl Write for File {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let n = self.write_at(self.position, bytes)?;
        // This also skips what other writers have appended since; the file cannot tell whose bytes
        // are whose.
        self.position = if self.inner.open.appends() { self.len() } else { self.position + n.to_u64() };
        Ok(n)
    }

    /// Does nothing: nothing is buffered here. See [`File::sync_all`] for durability.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Seek for File {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let at = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::End(by) => self.len().checked_add_signed(by),
            SeekFrom::Current(by) => self.position.checked_add_signed(by),
        };
        let before = || Error::Invalid("seek to a position before the first byte".into());
        self.position = at.ok_or_else(before)?;
        Ok(self.position)
    }
}
