//! Open files, for code that blocks.

use crate::world::World;
use crate::{Buf, Defragmented, Error, Fallocate, FileExtent, Metadata, Result, Time, asynch};
use extant_block::{is_lendable, lend, lend_to_read};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::ops::Range;

/// An open regular file, with a position for [`Read`], [`Write`] and [`Seek`].
///
/// Clones share the open file, each with a position of its own.
///
/// ```
/// use std::io::{Read, Seek, Write};
/// # fn main() -> std::io::Result<()> {
/// # let folder = tempfile::tempdir().unwrap();
/// # let path = folder.path().join("disk.img");
/// # let (options, created) = (extant_image::VolumeOptions { size: extant_image::SizePolicy::Fixed(16 << 20), ..Default::default() },
/// #     extant_image::Timestamp { seconds: 1_700_000_000, nanos: 0 });
/// # extant_image::mkfs(&path, &options, created, &extant_rt::Rt::real(Default::default()), std::sync::Arc::new(|_, _| {})).unwrap();
/// # let volume = extant::Volume::open(&path, &extant::OpenOptions::new().write(true)).unwrap();
/// let mut file = volume.root().open_with("log", extant::FileOptions::new().read(true).write(true).create(true))?;
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

    /// The same open file for code that awaits.
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

    /// Reads from byte `at` on until `to` is full or the file ends; returns how many bytes that was.
    ///
    /// # Errors
    /// The file is not open for reading; nothing could be read.
    pub fn read_at(&self, at: u64, to: &mut [u8]) -> Result<usize> {
        // Cached bytes need neither the executor nor another thread.
        let (done, is_all) = self.inner.read_cached(at, to);
        if is_all {
            return Ok(done);
        }
        match self.world.wait(self.inner.read_at(at + done as u64, &mut to[done..])) {
            Ok(more) => Ok(done + more),
            Err(_) if done > 0 => Ok(done),
            Err(error) => Err(error),
        }
    }

    /// Writes from byte `at` on, or at the end of a file open for appending; returns how many bytes that was, fewer than
    /// asked for where space ended. Durable after [`File::sync_all`].
    ///
    /// # Errors
    /// The file is not open for writing; nothing could be written.
    pub fn write_at(&self, at: u64, bytes: &[u8]) -> Result<usize> {
        self.world.wait(self.inner.write_at(at, bytes))
    }

    /// Reads from byte `at` on past the cache (`O_DIRECT`) into a buffer; returns how many bytes there were before the end of
    /// the file. Offset and length in multiples of 4,096 bytes are direct on every device, and smaller ones as far as its
    /// sectors allow; other reads go through the cache. Dirty pages of the range are written back first.
    ///
    /// # Errors
    /// The file is not open for reading; nothing could be read.
    pub fn read_direct(&self, at: u64, buf: &mut Buf) -> Result<usize> {
        let own = std::mem::replace(buf, Buf::zeroed(0));
        self.world.wait(async {
            let (own, read) = self.inner.read_direct(at, own).await;
            *buf = own;
            read
        })
    }

    /// Writes a buffer from byte `at` on, or at the end of a file open for appending, past the cache (`O_DIRECT`); returns how
    /// many bytes were written. They are on the device when it returns, and survive a power cut after [`File::sync_all`]. Offset
    /// and length in multiples of the volume's blocks are direct; smaller ones where bytes are overwritten, as far as the
    /// device's sectors allow. Other writes go through the cache and are written back.
    ///
    /// # Errors
    /// The file is not open for writing; the device failed, and the range holds old and new bytes.
    pub fn write_direct(&self, at: u64, buf: &mut Buf) -> Result<usize> {
        let own = std::mem::replace(buf, Buf::zeroed(0));
        self.world.wait(async {
            let (own, written) = self.inner.write_direct(at, own).await;
            *buf = own;
            written
        })
    }

    /// As [`File::read_direct`], into memory of the caller's: in place where that begins at a multiple of 4,096 bytes, with a copy
    /// elsewhere. Bytes of it behind those that were read are undefined. It returns when the device no longer knows the memory, also
    /// after an error.
    ///
    /// # Errors
    /// As there.
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

    /// As [`File::write_direct`], from memory of the caller's: in place where that begins at a multiple of 4,096 bytes, with a copy
    /// elsewhere. It returns when the device no longer knows the memory, also after an error.
    ///
    /// # Errors
    /// As there.
    pub fn write_direct_from(&self, at: u64, bytes: &[u8]) -> Result<usize> {
        match is_lendable(bytes) {
            true => lend_to_read(bytes, |mut buf| {
                let written = self.write_direct(at, &mut buf);
                (buf, written)
            }),
            false => self.write_direct(at, &mut Buf::from_slice(bytes)),
        }
    }

    /// As [`File::read_at`], until `to` is full.
    ///
    /// # Errors
    /// As there; the file ends before, an [`Error::Range`](crate::Error::Range).
    pub fn read_exact_at(&self, at: u64, to: &mut [u8]) -> Result<()> {
        self.world.wait(self.inner.read_exact_at(at, to))
    }

    /// As [`File::write_at`], of all bytes.
    ///
    /// # Errors
    /// As there, with some bytes written.
    pub fn write_all_at(&self, at: u64, bytes: &[u8]) -> Result<()> {
        self.world.wait(self.inner.write_all_at(at, bytes))
    }

    /// Sets the size: what lies beyond is gone, what is new reads as zeroes.
    ///
    /// # Errors
    /// The file is not open for writing; the size is beyond the largest of a file.
    pub fn set_len(&self, size: u64) -> Result<()> {
        self.world.wait(self.inner.set_len(size))
    }

    /// Copies up to `len` bytes from `at` on to `to`, a file of the same volume, from its byte `to_at` on; returns how many that
    /// was, fewer where this file or space ends (`copy_file_range(2)`). Holes stay holes.
    ///
    /// # Errors
    /// This file is not open for reading, or the other not for writing at an offset; they are of two volumes; the ranges are of
    /// one file and overlap; nothing could be copied.
    pub fn copy_range(&self, at: u64, to: &Self, to_at: u64, len: u64) -> Result<u64> {
        self.world.wait(self.inner.copy_range(at, &to.inner, to_at, len))
    }

    /// Changes the space of `len` bytes from `offset` on, as `fallocate(2)`: allocates it ahead of writes, frees or zeroes it,
    /// or takes it out of or puts it into the file. Durable after [`File::sync_all`]; after a power cut before that it may be
    /// there in part.
    ///
    /// # Errors
    /// The file is not open for writing; it has a map of pointers, as on ext2 and ext3, where only
    /// [`Fallocate::PunchHole`] is possible; the range is empty, too far out, or not one that can be taken out or put in; space
    /// ends.
    pub fn fallocate(&self, mode: Fallocate, offset: u64, len: u64) -> Result<()> {
        self.world.wait(self.inner.fallocate(mode, offset, len))
    }

    /// Moves the file's blocks to as few runs as free space allows; contents and times stay. Durable after
    /// [`File::sync_all`]; a power cut before that finds all of the file, part of it moved.
    ///
    /// # Errors
    /// The file is not open for writing; it has a map of pointers, as on ext2 and ext3; it may not change; there is no space
    /// for a second copy of its longest stretch without a hole.
    pub fn defragment(&self) -> Result<Defragmented> {
        self.world.wait(self.inner.defragment())
    }

    /// The first byte from `from` on that is data (`SEEK_DATA`), whether on the device or in memory; `None` where none is up
    /// to the end of the file.
    ///
    /// # Errors
    /// The file's map is damaged or cannot be read.
    pub fn seek_data(&self, from: u64) -> Result<Option<u64>> {
        self.world.wait(self.inner.seek_data(from))
    }

    /// The first byte from `from` on that lies in a hole (`SEEK_HOLE`); the end of the file counts as one. `None` for `from`
    /// at the end or behind.
    ///
    /// # Errors
    /// As [`File::seek_data`].
    pub fn seek_hole(&self, from: u64) -> Result<Option<u64>> {
        self.world.wait(self.inner.seek_hole(from))
    }

    /// The file's extents with bytes in a range, as `FS_IOC_FIEMAP` lists them: in order, adjacent ones joined, cut to the
    /// range's blocks. Those that are allocated behind the file's end are among them.
    ///
    /// # Errors
    /// As [`File::seek_data`].
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

    /// Sets owner and group; `None` leaves one as it is.
    ///
    /// # Errors
    /// The caller may not.
    pub fn set_owner(&self, uid: Option<u32>, gid: Option<u32>) -> Result<()> {
        self.world.wait(self.inner.set_owner(uid, gid))
    }

    /// Sets times of last access and change; `None` leaves one as it is.
    ///
    /// # Errors
    /// The caller is not the file's owner.
    pub fn set_times(&self, accessed: Option<Time>, modified: Option<Time>) -> Result<()> {
        self.world.wait(self.inner.set_times(accessed, modified))
    }

    /// Writes what is in memory, without making it durable. Space is given out here, or whenever the cache comes to it: a
    /// program that wants the same bytes in every run calls this after each file.
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

    /// Makes durable what is needed to read the contents back.
    ///
    /// # Errors
    /// As [`File::sync_all`].
    pub fn sync_data(&self) -> Result<()> {
        self.world.wait(self.inner.sync_data())
    }
}

impl Read for File {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let n = self.read_at(self.position, to)?;
        self.position += n as u64;
        Ok(n)
    }
}

impl Write for File {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let n = self.write_at(self.position, bytes)?;
        // The end also covers what another writer has appended since: the file does not tell the two apart.
        self.position = if self.inner.open.appends() { self.len() } else { self.position + n as u64 };
        Ok(n)
    }

    /// Nothing is kept back here; see [`File::sync_all`] for what a power cut takes.
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
