//! A regular file or block device of the host.

mod blocking;
mod busy;
mod host_file;
mod locks;
mod loops;
mod ring;
#[cfg(test)]
mod tests;
mod transfer;

use crate::{Bio, BioFlags, Claim, Device, IoError, Limits, Op, Sector};
use extant_rt::{Driver, DriverHandle, Rt};
use host_file::{HostFile, check_kind};
pub use locks::ForeignLocks;
use ring::Ring;
use rustix::fs::{FileType, Mode, OFlags};
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use transfer::Transfer;

/// Buffered writes up to this length are made by the thread that submits them.
const COPIED_BYTES_MAX: u64 = 64 << 10;

/// A write that a sync waits for is made by the thread that waits up to this length, which takes the device some 0.1 ms.
const AWAITED_BYTES_MAX: u64 = 256 << 10;

/// How to open a [`FileDevice`].
#[derive(Clone, Copy, Debug, Default)]
pub struct FileOptions {
    /// Allow writes.
    pub write: bool,
    /// Bypass the host's page cache where the file allows it (`O_DIRECT`). Requests that direct I/O cannot take, such as a
    /// range that is not a multiple of [`Limits::physical_block_bytes`], goes through the page cache all the same;
    /// memory that is not aligned is copied.
    pub direct: bool,
}

/// A disk image or block device of the host.
///
/// As opened it does each bio on the thread that submits it, which needs no world and suits tools.
/// [`FileDevice::driven_by`] makes it asynchronous: over io_uring, or, where the kernel or a container's seccomp profile
/// forbids that, on the world's blocking threads.
///
/// Discard and write-zeroes punch holes into files (`fallocate(2)`) and are `BLKDISCARD` and a zeroing `fallocate` on
/// block devices; where the file system cannot punch, zeroes are written and a discard is
/// [`crate::IoErrorKind::Unsupported`]. A flush is `fdatasync(2)`, and [`crate::BioFlags::FUA`] is `RWF_DSYNC`. Reads of
/// a file's end that is no whole sector are out of range. No lock is taken before [`Device::claim`], but a block device opened for
/// writing is claimed. A claim locks the file against other writers, and against programs that ask, as QEMU does; see
/// [`ForeignLocks`] for those of theirs. Readers take no lock and heed none.
///
/// Over io_uring, bios end on threads that wait ([`extant_rt::Driver`]); one that submits from a thread which is not of this
/// world has a thread of it woken. A thread in [`Rt::block_on`] may start short reads when its poll ends ([`Rt::may_defer`]); one
/// that submits and goes on to something long calls [`Rt::ensure_driven`]. Dropping the device waits until all bios of its ring
/// have ended; those of blocking threads go on.
#[derive(Debug)]
pub struct FileDevice {
    host_file: Arc<HostFile>,
    foreign_locks: ForeignLocks,
    engine: Engine,
}

#[derive(Debug)]
enum Engine {
    Caller,
    Ring { ring: Arc<Ring>, rt: Rt, _driver: DriverHandle },
    Threads { rt: Rt },
}

impl FileDevice {
    /// Opens an existing file or block device, whose size is final.
    ///
    /// # Errors
    /// For writing, what the host's kernel has mounted or attached to a loop device, under whatever name, is refused as busy; a
    /// block device after a second.
    pub fn open(path: &Path, options: FileOptions) -> std::io::Result<Self> {
        // Opening a FIFO would wait for its other end.
        let kind = check_kind(&rustix::fs::stat(path)?)?;
        let access = match (options.write, kind) {
            (false, _) => OFlags::RDONLY,
            // Fails while it is mounted or claimed (open(2)).
            (true, FileType::BlockDevice) => OFlags::RDWR | OFlags::EXCL,
            (true, _) => OFlags::RDWR,
        };
        let open = || rustix::fs::open(path, access | OFlags::CLOEXEC, Mode::empty());
        let fd = match access.contains(OFlags::EXCL) {
            true => busy::wait_for_claim(open)?,
            false => open()?,
        };
        Self::from_fd(fd, path, options)
    }

    /// Claims an image for as long as it is read to make another file, or another file is made that is to get its name:
    /// [`Device::claim`] without a device. A file that is not there or may not be read has no claim.
    ///
    /// # Errors
    /// `ResourceBusy` while the kernel has it mounted or attached to a loop device, or others have claimed or locked it: of those,
    /// [`IoErrorKind`](crate::IoErrorKind) is the inner error.
    pub fn claim_to_replace(path: &Path, foreign: ForeignLocks) -> std::io::Result<Claim> {
        let Ok(stat) = rustix::fs::stat(path) else { return Ok(Claim::default()) };
        let Ok(kind) = check_kind(&stat) else { return Ok(Claim::default()) };
        let flags = OFlags::NONBLOCK | OFlags::CLOEXEC;
        let open = |access| rustix::fs::open(path, flags | access, Mode::empty());
        let own = match kind {
            FileType::BlockDevice => match busy::wait_for_claim(|| open(OFlags::RDONLY | OFlags::EXCL)) {
                Err(rustix::io::Errno::BUSY) => return Err(rustix::io::Errno::BUSY.into()),
                own => own,
            },
            // Some file systems give exclusive locks to those only who may write.
            _ => open(OFlags::RDWR).or_else(|_| open(OFlags::RDONLY)),
        };
        busy::refuse_attached(&stat, own.as_ref().ok(), path)?;
        let Ok(own) = own else { return Ok(Claim::default()) };
        locks::take(own, foreign).map_err(|kind| std::io::Error::new(std::io::ErrorKind::ResourceBusy, kind))
    }

    /// Takes over an open file whose size is final; `path` is its name in errors.
    ///
    /// # Errors
    /// As [`FileDevice::open`], but a block device that is mounted is not found to be.
    pub fn from_fd(fd: OwnedFd, path: &Path, options: FileOptions) -> std::io::Result<Self> {
        let host_file = Arc::new(HostFile::new(fd, path, options)?);
        Ok(Self { host_file, foreign_locks: ForeignLocks::default(), engine: Engine::Caller })
    }

    /// What [`Device::claim`] does about the locks of other programs.
    pub fn with_foreign_locks(mut self, foreign: ForeignLocks) -> Self {
        self.foreign_locks = foreign;
        self
    }

    /// Completes bios asynchronously from now on, over io_uring where there is one. In a virtual world nothing changes:
    /// what the host takes is no time there.
    pub fn driven_by(self, rt: &Rt) -> Self {
        if rt.is_virtual() {
            return self;
        }
        let ring = Ring::new(self.host_file.clone());
        match ring {
            Ok(ring) => {
                let driver = rt.register_driver(ring.clone());
                self.with_engine(Engine::Ring { ring, rt: rt.clone(), _driver: driver })
            }
            Err(_forbidden) => self.on_threads_of(rt),
        }
    }

    /// Completes bios asynchronously on the world's blocking threads: the way without io_uring.
    pub fn on_threads_of(self, rt: &Rt) -> Self {
        self.with_engine(Engine::Threads { rt: rt.clone() })
    }

    fn with_engine(mut self, engine: Engine) -> Self {
        self.engine = engine;
        self
    }

    /// Whether bios bypass the host's page cache; may turn false at the first bio that the file refuses to.
    pub fn is_direct(&self) -> bool {
        self.host_file.direct_is_on()
    }

    /// The engine that completes the bios: `"caller"`, `"io_uring"` or `"threads"`.
    pub fn engine(&self) -> &'static str {
        match self.engine {
            Engine::Caller => "caller",
            Engine::Ring { .. } => "io_uring",
            Engine::Threads { .. } => "threads",
        }
    }

    /// The bio as a transfer, unless it is over already.
    fn admit(&self, bio: Bio) -> Option<Transfer> {
        match self.host_file.limits.admit(&bio) {
            Ok(_) if bio.bytes == 0 && !bio.is_flush() => {
                bio.end(Ok(()));
                None
            }
            Ok((start, _)) => Some(Transfer::new(bio, start)),
            Err(kind) => {
                bio.end_as(&self.host_file.limits.name, Err(kind));
                None
            }
        }
    }

    /// Whether the ring has no operation for it on older kernels.
    fn needs_thread(&self, transfer: &Transfer) -> bool {
        self.host_file.is_block_device && transfer.bio.op == Op::Discard
    }

    /// A short write into the host's page cache, which is a copy: the ring would hand it to a thread of the kernel's,
    /// for buffered writes may wait, and that costs more.
    fn is_copy(&self, transfer: &Transfer) -> bool {
        let bio = &transfer.bio;
        let durable = bio.flags.intersects(BioFlags::PREFLUSH | BioFlags::FUA);
        bio.op == Op::Write && bio.bytes <= COPIED_BYTES_MAX && !durable && !self.host_file.direct_is_on()
    }

    /// Whether the calling thread, which will wait for the bio, makes its system calls. The kernel has no way to start a flush,
    /// or a write that is durable when it ends, without a thread of its own that blocks. It ends a small write in the context of
    /// the submitter (`io_uring_setup(2)`, `IORING_SETUP_DEFER_TASKRUN`): that thread is woken for it, wakes the one that reaps,
    /// and is woken again.
    fn blocks_here(&self, rt: &Rt, transfer: &Transfer) -> bool {
        let bio = &transfer.bio;
        if bio.is_flush() || bio.flags.intersects(BioFlags::PREFLUSH | BioFlags::FUA) {
            return rt.may_block();
        }
        let is_awaited = bio.op == Op::Write && bio.flags.contains(BioFlags::SYNC);
        is_awaited && bio.bytes <= AWAITED_BYTES_MAX && rt.may_block_once()
    }

    fn block_on(&self, rt: &Rt, transfer: Transfer) {
        rt.ensure_driven();
        blocking::run(&self.host_file, transfer);
    }

    fn on_thread(&self, rt: &Rt, transfer: Transfer) {
        let host_file = self.host_file.clone();
        drop(rt.spawn_blocking("file I/O", move || blocking::run(&host_file, transfer)));
    }
}

impl Device for FileDevice {
    fn limits(&self) -> &Limits {
        &self.host_file.limits
    }

    fn submit(&self, bio: Bio) {
        let Some(transfer) = self.admit(bio) else { return };
        match &self.engine {
            Engine::Caller => blocking::run(&self.host_file, transfer),
            Engine::Threads { rt } | Engine::Ring { rt, .. } if self.blocks_here(rt, &transfer) => {
                self.block_on(rt, transfer);
            }
            Engine::Threads { rt } => self.on_thread(rt, transfer),
            Engine::Ring { rt, .. } if self.needs_thread(&transfer) => self.on_thread(rt, transfer),
            Engine::Ring { ring, .. } if self.is_copy(&transfer) => {
                ring.enter_deferred();
                blocking::run(&self.host_file, transfer);
            }
            Engine::Ring { ring, rt, .. } => {
                ring.submit([transfer], || rt.may_defer());
                rt.io_started();
            }
        }
    }

    fn submit_all(&self, bios: &mut dyn Iterator<Item = Bio>) {
        let Engine::Ring { ring, rt, .. } = &self.engine else {
            return bios.for_each(|bio| self.submit(bio));
        };
        // Admitted before the ring is locked, because a refused bio's completion may submit again.
        let Some(first) = bios.next() else { return };
        let Some(second) = bios.next() else { return self.submit(first) };
        let transfers = [first, second].into_iter().chain(bios).filter_map(|bio| self.admit(bio));
        let (threads, ours): (Vec<_>, Vec<_>) = transfers.partition(|t| self.needs_thread(t));
        let (copies, ours): (Vec<_>, Vec<_>) = ours.into_iter().partition(|t| self.is_copy(t));
        if !ours.is_empty() {
            ring.submit(ours, || copies.is_empty() && rt.may_defer());
            rt.io_started();
        }
        copies.into_iter().for_each(|transfer| blocking::run(&self.host_file, transfer));
        threads.into_iter().for_each(|transfer| self.on_thread(rt, transfer));
    }

    fn claim(&self) -> Result<Claim, IoError> {
        self.host_file.claim(self.foreign_locks).map_err(|kind| IoError {
            device: self.host_file.limits.name.clone(),
            op: Op::Write,
            start: Sector(0),
            bytes: self.host_file.limits.capacity_bytes,
            kind,
        })
    }

    fn next_data(&self, from_bytes: u64) -> Result<Option<Range<u64>>, IoError> {
        self.host_file.next_data(from_bytes)
    }
}

impl Drop for FileDevice {
    fn drop(&mut self) {
        if let Engine::Ring { ring, .. } = &self.engine {
            ring.close();
        }
    }
}
