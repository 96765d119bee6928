//! The open file or block device under a [`super::FileDevice`].

use super::locks::{self, ForeignLocks};
use super::{FileOptions, busy};
use crate::device::OneClaim;
use crate::{Bio, Claim, IoError, IoErrorKind, Limits, Op, Sector};
use rustix::fs::{AtFlags, FileType, FsWord, Mode, OFlags, SeekFrom, Stat, StatxFlags};
use rustix::io::Errno;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

/// Alignment accepted by every host file with O_DIRECT, for kernels that do not report it (before
/// Linux 6.1).
const SAFE_ALIGN: u32 = 4096;

/// File systems on local disks: ext2 to ext4, XFS, btrfs and F2FS (linux/magic.h).
const LOCAL_DISK_MAGIC: [FsWord; 4] = [0xef53, 0x5846_5342, 0x9123_683e, 0xf2f5_2010];

#[derive(Debug)]
pub(super) struct HostFile {
    pub(super) limits: Limits,
    /// Uses the host's page cache; also for requests that direct I/O cannot handle.
    pub(super) buffered: OwnedFd,
    pub(super) direct: Option<OwnedFd>,
    direct_refused: AtomicBool,
    /// The file system or the kernel cannot read without waiting (`RWF_NOWAIT`).
    read_now_refused: AtomicBool,
    /// Alignment of memory for direct I/O, in bytes.
    pub(super) memory_align: usize,
    /// Alignment of offset and length for direct I/O, in bytes.
    offset_align: u64,
    pub(super) is_block_device: bool,
    /// A file of a file system for local disks.
    pub(super) is_on_local_disk: bool,
    claims: OneClaim,
}

impl HostFile {
    pub(super) fn new(buffered: OwnedFd, path: &Path, options: FileOptions) -> std::io::Result<Self> {
        let stat = rustix::fs::fstat(&buffered)?;
        let kind = check_kind(&stat)?;
        if options.write {
            busy::refuse_attached(&stat, Some(&buffered), path)?;
        }
        let is_block_device = kind == FileType::BlockDevice;
        let file_system = rustix::fs::fstatfs(&buffered).map_or(0, |stat| stat.f_type);
        let is_on_local_disk = !is_block_device && LOCAL_DISK_MAGIC.contains(&file_system);
        let size_bytes = rustix::fs::seek(&buffered, SeekFrom::End(0))?;
        let access = if options.write { OFlags::RDWR } else { OFlags::RDONLY };
        let direct = if options.direct { reopen(&buffered, access | OFlags::DIRECT) } else { None };
        let (memory_align, offset_align) = alignment(&buffered, is_block_device);
        let block_bytes = if is_block_device { rustix::fs::ioctl_blksszget(&buffered)? } else { 512 };
        let limits = Limits {
            block_bytes: 512,
            physical_block_bytes: if direct.is_some() { offset_align } else { block_bytes },
            volatile_cache: true,
            read_only: !options.write,
            // An incomplete last sector is left out, because its other bytes do not exist. Linux's
            // loop devices leave it out too.
            ..Limits::new(path.display().to_string(), size_bytes / Sector::BYTES * Sector::BYTES)
        };
        Ok(Self {
            limits,
            buffered,
            direct,
            direct_refused: AtomicBool::new(false),
            read_now_refused: AtomicBool::new(false),
            memory_align: memory_align as usize,
            offset_align: u64::from(offset_align),
            is_block_device,
            is_on_local_disk,
            claims: OneClaim::default(),
        })
    }

    pub(super) fn direct_is_on(&self) -> bool {
        self.direct.is_some() && !self.direct_refused.load(Ordering::Relaxed)
    }

    /// Turns direct I/O off: the file does not support it after all.
    pub(super) fn refuse_direct(&self) {
        self.direct_refused.store(true, Ordering::Relaxed);
    }

    /// Whether a read may be tried without waiting. False with direct I/O, since the bytes are then
    /// not in the host's page cache.
    pub(super) fn may_read_now(&self) -> bool {
        !self.direct_is_on() && !self.read_now_refused.load(Ordering::Relaxed)
    }

    pub(super) fn refuse_to_read_now(&self) {
        self.read_now_refused.store(true, Ordering::Relaxed);
    }

    /// Whether direct I/O is on and accepts an offset and a length, given as their bitwise or.
    pub(super) fn takes_direct(&self, offset_or_len: u64) -> bool {
        self.is_block_multiple(offset_or_len) && self.direct_is_on()
    }

    pub(super) fn is_block_multiple(&self, bytes: u64) -> bool {
        bytes.is_multiple_of(self.offset_align)
    }

    /// The whole blocks within a range, in bytes.
    pub(super) fn whole_blocks(&self, offset: u64, len: u64) -> Range<u64> {
        let start = offset.next_multiple_of(self.offset_align);
        let end = offset + len;
        start..(end - end % self.offset_align).max(start)
    }

    pub(super) fn fd(&self, direct: bool) -> BorrowedFd<'_> {
        match &self.direct {
            Some(fd) if direct => fd.as_fd(),
            _ => self.buffered.as_fd(),
        }
    }

    /// The first run of bytes at or after `from` that the file system does not know to be a hole.
    pub(super) fn next_data(&self, from: u64) -> Result<Option<Range<u64>>, IoError> {
        let capacity = self.limits.capacity_bytes;
        if from >= capacity {
            return Ok(None);
        }
        if self.is_block_device {
            return Ok(Some(from..capacity));
        }
        let error = |errno: Errno| {
            let bio = Bio::range(Op::Read, Sector::containing(from), capacity - from);
            bio.error(&self.limits.name, IoErrorKind::Os(errno.raw_os_error()))
        };
        let data = match rustix::fs::seek(&self.buffered, SeekFrom::Data(from)) {
            Ok(data) => data,
            Err(Errno::NXIO) => return Ok(None),
            Err(Errno::INVAL | Errno::OPNOTSUPP) => return Ok(Some(from..capacity)),
            Err(errno) => return Err(error(errno)),
        };
        let hole = rustix::fs::seek(&self.buffered, SeekFrom::Hole(data)).map_err(error)?;
        Ok(Some(data..hole.min(capacity)))
    }
}

/// Returns the kind of file. Fails if this kind does not hold sectors.
pub(super) fn check_kind(stat: &Stat) -> std::io::Result<FileType> {
    match FileType::from_raw_mode(stat.st_mode) {
        kind @ (FileType::RegularFile | FileType::BlockDevice) => Ok(kind),
        _ => Err(std::io::Error::new(
            std::io::ErrorKind::InvalidInput,
            "it is neither a regular file nor a block device",
        )),
    }
}

impl HostFile {
    /// Locks the file. A second claim through this object conflicts with the first, like a claim
    /// through another object.
    pub(super) fn claim(&self, foreign: ForeignLocks) -> Result<Claim, IoErrorKind> {
        let one = self.claims.take().ok_or(IoErrorKind::Claimed)?;
        let own = self.buffered.try_clone();
        let own = own.map_err(|error| IoErrorKind::Os(error.raw_os_error().unwrap_or_default()))?;
        Ok(Claim::holding((one, locks::take(own, foreign)?)))
    }
}

/// A second descriptor for the same file; unlike a `dup`, it has its own flags.
fn reopen(fd: &OwnedFd, flags: OFlags) -> Option<OwnedFd> {
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::empty()).ok()
}

/// Alignment needed for direct I/O: of memory, and of offset and length.
fn alignment(fd: &OwnedFd, is_block_device: bool) -> (u32, u32) {
    if is_block_device {
        let block = rustix::fs::ioctl_blksszget(fd).unwrap_or(SAFE_ALIGN);
        return (block, block);
    }
    match rustix::fs::statx(fd, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN) {
        Ok(s) if s.stx_dio_mem_align > 0 && s.stx_dio_offset_align > 0 => {
            (s.stx_dio_mem_align, s.stx_dio_offset_align)
        }
        _ => (SAFE_ALIGN, SAFE_ALIGN),
    }
}
