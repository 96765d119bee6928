//! A regular file or block device.

use crate::{Bio, Device, IoError, IoErrorKind, Limits, Op, Sector};
use rustix::fs::{FallocateFlags, Mode, OFlags};
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::path::Path;

/// How to open a [`FileDevice`].
#[derive(Clone, Copy, Debug, Default)]
pub struct FileOptions {
    /// Allow writes.
    pub write: bool,
    /// Bypass the host's page cache where the backing allows it.
    pub direct: bool,
}

/// A disk image or block device of the host.
#[derive(Debug)]
pub struct FileDevice {
    limits: Limits,
    fd: OwnedFd,
}

impl FileDevice {
    /// Opens an existing file or block device.
    pub fn open(path: &Path, options: FileOptions) -> std::io::Result<Self> {
        let access = if options.write { OFlags::RDWR } else { OFlags::RDONLY };
        let direct = if options.direct { OFlags::DIRECT } else { OFlags::empty() };
        let fd = match rustix::fs::open(path, access | OFlags::CLOEXEC | direct, Mode::empty()) {
            Err(Errno::INVAL) if options.direct => {
                rustix::fs::open(path, access | OFlags::CLOEXEC, Mode::empty())?
            }
            other => other?,
        };
        Self::from_fd(fd, path, options)
    }

    /// Takes over an open file whose size is final.
    pub fn from_fd(fd: OwnedFd, path: &Path, options: FileOptions) -> std::io::Result<Self> {
        let size = rustix::fs::seek(&fd, rustix::fs::SeekFrom::End(0))?;
        let limits = Limits {
            name: path.display().to_string(),
            capacity_bytes: size,
            block_bytes: if options.direct { 4096 } else { 1 },
            max_bytes: 1 << 30,
            max_segments: 1024,
            volatile_cache: true,
            read_only: !options.write,
        };
        Ok(Self { limits, fd })
    }

    fn run(&self, bio: &mut Bio) -> Result<(), IoErrorKind> {
        let mut at = bio.start.byte_offset().ok_or(IoErrorKind::OutOfRange)?;
        let end = at.checked_add(bio.bytes).ok_or(IoErrorKind::OutOfRange)?;
        if end > self.limits.capacity_bytes.next_multiple_of(Sector::BYTES) {
            return Err(IoErrorKind::OutOfRange);
        }
        let os = |e: Errno| IoErrorKind::Os(e.raw_os_error());
        match bio.op {
            Op::Read => {
                for segment in &mut bio.segments {
                    let mut rest = segment.as_mut_slice().ok_or(IoErrorKind::Unsupported)?;
                    while !rest.is_empty() {
                        let n = rustix::io::pread(&self.fd, &mut *rest, at).map_err(os)?;
                        if n == 0 {
                            // The tail of a file that does not end on a sector reads as zeroes.
                            rest.fill(0);
                            break;
                        }
                        at += n as u64;
                        rest = &mut rest[n..];
                    }
                }
            }
            Op::Write => {
                if self.limits.read_only {
                    return Err(IoErrorKind::ReadOnly);
                }
                for segment in &bio.segments {
                    let mut rest = segment.as_slice();
                    while !rest.is_empty() {
                        let n = rustix::io::pwrite(&self.fd, rest, at).map_err(os)?;
                        at += n as u64;
                        rest = &rest[n..];
                    }
                }
            }
            Op::Flush => rustix::fs::fdatasync(&self.fd).map_err(os)?,
            Op::Discard | Op::WriteZeroes => {
                let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                rustix::fs::fallocate(&self.fd, mode, at, bio.bytes).map_err(os)?;
            }
        }
        Ok(())
    }
}

impl Device for FileDevice {
    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn submit(&self, mut bio: Bio) {
        let result = self.run(&mut bio).map_err(|kind| IoError {
            device: self.limits.name.clone(),
            op: bio.op,
            start: bio.start,
            bytes: bio.bytes,
            kind,
        });
        bio.end(result);
    }
}
