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
mod users;

use crate::{Bio, BioFlags, Claim, Device, IoError, Limits, Op, Sector};
use extant_rt::{Driver, DriverHandle, Rt};
use host_file::{HostFile, check_kind};
pub use locks::ForeignLocks;
use ring::Ring;
use rustix::fs::{FileType, Mode, OFlags};
use std::io::IoSliceMut;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use transfer::Transfer;

/// Buffered writes up to this length are made by the submitting thread.
const COPIED_BYTES_MAX: u64 = 64 << 10;

/// The waiting thread itself makes a write that a sync waits for, up to this length. A write this
/// long takes the device about 0.1 ms.
const AWAITED_BYTES_MAX: u64 = 256 << 10;

/// The same for a write into the host's page cache: a copy that takes no longer. The ring would
/// hand it to a kernel thread, which holds the file's lock meanwhile, so that all other writes to
/// the file would wait.
const AWAITED_COPY_MAX: u64 = 1 << 20;

/// How to open a [`FileDevice`].
#[derive(Clone, Copy, Debug, Default)]
pub struct FileOptions {
    /// Allow writes.
    pub write: bool,
    /// Bypass the host's page cache if the file supports it (`O_DIRECT`).
    ///
    /// Requests that direct I/O cannot handle, such as a range that is not a multiple of
    /// [`Limits::physical_block_bytes`], still go through the page cache; unaligned memory is
    /// copied.
    pub direct: bool,
}

/// A disk image or block device of the host.
///
/// As opened, it executes each bio on the submitting thread, which needs no world and suits tools.
/// [`FileDevice::driven_by`] makes it asynchronous: over io_uring or, where the kernel or a
/// container's seccomp profile forbids that, on the world's blocking threads.
///
/// Discard and write-zeroes punch holes into files (`fallocate(2)`); on block devices they are
/// `BLKDISCARD` and a zeroing `fallocate`. Where the file system cannot punch holes, zeros are
/// written, and a discard is [`crate::IoErrorKind::Unsupported`]. A flush is `fdatasync(2)`, and
/// [`crate::BioFlags::FUA`] is `RWF_DSYNC`. An incomplete sector at the end of a file is out of
/// range. No lock is taken before [`Device::claim`], except that a block device opened for writing
/// is claimed. A claim locks the file against other writers, and against programs that check locks,
/// as QEMU does; for their locks see [`ForeignLocks`]. Readers take no locks and respect none.
///
/// A read that the host's page cache can answer ends before [`Device::submit`] returns. Without
/// direct I/O, [`Device::read_here`] is a `preadv(2)`.
///
/// Over io_uring, other bios end on threads that wait ([`extant_rt::Driver`]). If a thread that
/// does not belong to this world submits, a thread of this world is woken. A thread in
/// [`Rt::block_on`] may start short reads when its poll ends ([`Rt::may_defer`]); if it submits and
/// then does something that takes long, it calls [`Rt::ensure_driven`]. Dropping the device waits
/// until all bios of its ring have ended; those on blocking threads continue.
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
    /// For writing, a file or device that the host's kernel has mounted or attached to a loop
    /// device, under any name, is refused as busy. A busy block device is retried for a second, and
    /// the error names its user.
    pub fn open(path: &Path, options: FileOptions) -> std::io::Result<Self> {
        // Opening a FIFO would wait for its other end.
        let stat = rustix::fs::stat(path)?;
        let kind = check_kind(&stat)?;
        let access = match (options.write, kind) {
            (false, _) => OFlags::RDONLY,
            // Fails while it is mounted or claimed (open(2)).
            (true, FileType::BlockDevice) => OFlags::RDWR | OFlags::EXCL,
            (true, _) => OFlags::RDWR,
        };
        let open = || rustix::fs::open(path, access | OFlags::CLOEXEC, Mode::empty());
        let fd = match access.contains(OFlags::EXCL) {
            true => busy::wait_for_claim(open)
                .map_err(|errno| users::error_of(errno, loops::number(stat.st_rdev)))?,
            false => open()?,
        };
        Self::from_fd(fd, path, options)
    }

    /// Claims an image while it is read to create another file, or while a file is created that
    /// will replace it. Like [`Device::claim`], but without a device. For a file that does not
    /// exist or cannot be read, the claim is empty.
    ///
    /// # Errors
    /// `ResourceBusy` while the kernel has it mounted or attached to a loop device, or others have
    /// claimed or locked it; in the latter case the inner error is an
    /// [`IoErrorKind`](crate::IoErrorKind).
    pub fn claim_to_replace(path: &Path, foreign: ForeignLocks) -> std::io::Result<Claim> {
        let Ok(stat) = rustix::fs::stat(path) else { return Ok(Claim::default()) };
        let Ok(kind) = check_kind(&stat) else { return Ok(Claim::default()) };
        let flags = OFlags::NONBLOCK | OFlags::CLOEXEC;
        let open = |access| rustix::fs::open(path, flags | access, Mode::empty());
        let own = match kind {
            FileType::BlockDevice => match busy::wait_for_claim(|| open(OFlags::RDONLY | OFlags::EXCL)) {
                Err(errno @ rustix::io::Errno::BUSY) => {
                    return Err(users::error_of(errno, loops::number(stat.st_rdev)));
                }
                own => own,
            },
            // Some file systems grant exclusive locks only to those who may write.
            _ => open(OFlags::RDWR).or_else(|_| open(OFlags::RDONLY)),
        };
        busy::refuse_attached(&stat, own.as_ref().ok(), path)?;
        let Ok(own) = own else { return Ok(Claim::default()) };
        locks::take(own, foreign).map_err(|kind| std::io::Error::new(std::io::ErrorKind::ResourceBusy, kind))
    }

    /// Takes over an open file whose size is final; `path` names it in errors.
    ///
    /// # Errors
    /// As [`FileDevice::open`], except that a mounted block device is not detected.
    pub fn from_fd(fd: OwnedFd, path: &Path, options: FileOptions) -> std::io::Result<Self> {
        let host_file = Arc::new(HostFile::new(fd, path, options)?);
        Ok(Self { host_file, foreign_locks: ForeignLocks::default(), engine: Engine::Caller })
    }

    /// Sets what [`Device::claim`] does about other programs' locks.
    pub fn with_foreign_locks(mut self, foreign: ForeignLocks) -> Self {
        self.foreign_locks = foreign;
        self
    }

    /// Completes bios asynchronously from now on, over io_uring if available. Changes nothing in a
    /// virtual world, where the host's work takes no time.
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

    /// Completes bios asynchronously on the world's blocking threads, without io_uring.
    pub fn on_threads_of(self, rt: &Rt) -> Self {
        self.with_engine(Engine::Threads { rt: rt.clone() })
    }

    fn with_engine(mut self, engine: Engine) -> Self {
        self.engine = engine;
        self
    }

    /// Whether bios bypass the host's page cache; may become false at the first bio that the file
    /// refuses.
    pub fn is_direct(&self) -> bool {
        self.host_file.direct_is_on()
    }

    /// The engine that completes bios: `"caller"`, `"io_uring"` or `"threads"`.
    pub fn engine(&self) -> &'static str {
        match self.engine {
            Engine::Caller => "caller",
            Engine::Ring { .. } => "io_uring",
            Engine::Threads { .. } => "threads",
        }
    }

    /// Turns the bio into a transfer, unless it ends right away.
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

    /// Whether this needs a thread, because older kernels have no ring operation for it.
    fn needs_thread(&self, transfer: &Transfer) -> bool {
        self.host_file.is_block_device && transfer.bio.op == Op::Discard
    }

    /// Whether this is a short write into the host's page cache, which is just a copy. Because
    /// buffered writes may block, the ring would hand it to a kernel thread, which costs more.
    fn is_copy(&self, transfer: &Transfer) -> bool {
        let bio = &transfer.bio;
        let durable = bio.flags.intersects(BioFlags::PREFLUSH | BioFlags::FUA);
        bio.op == Op::Write && bio.bytes <= COPIED_BYTES_MAX && !durable && !self.host_file.direct_is_on()
    }

    /// Ends a read whose bytes are all in the host's page cache; returns any other transfer. The
    /// ring's submission would copy the same bytes on this thread, and a thread would have to reap
    /// the completion as well.
    fn read_now(&self, transfer: Transfer) -> Option<Transfer> {
        if transfer.bio.op != Op::Read
            || matches!(self.engine, Engine::Caller)
            || !self.host_file.may_read_now()
        {
            return Some(transfer);
        }
        if let Engine::Ring { ring, .. } = &self.engine
            && transfer.bio.bytes > COPIED_BYTES_MAX
        {
            // The device works during the copy.
            ring.enter_deferred();
        }
        blocking::read_now(&self.host_file, transfer)
    }

    /// Whether the calling thread, which will wait for the bio, makes its system calls itself. The
    /// kernel hands a flush, or a write that is durable when it ends, to a kernel thread that
    /// blocks. It completes a small write in the context of the submitter (`io_uring_setup(2)`,
    /// `IORING_SETUP_DEFER_TASKRUN`): it wakes the submitter for that, the submitter wakes the
    /// thread that reaps, and that thread wakes the submitter again.
    fn blocks_here(&self, rt: &Rt, transfer: &Transfer) -> bool {
        let bio = &transfer.bio;
        if bio.is_flush() || bio.flags.intersects(BioFlags::PREFLUSH | BioFlags::FUA) {
            return rt.may_block();
        }
        let most = if self.host_file.direct_is_on() { AWAITED_BYTES_MAX } else { AWAITED_COPY_MAX };
        let is_awaited = bio.op == Op::Write && bio.flags.contains(BioFlags::SYNC);
        is_awaited && bio.bytes <= most && rt.may_block_once()
    }

    /// Has the engine make a transfer.
    fn start(&self, transfer: Transfer) {
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
        let transfer = self.admit(bio).and_then(|transfer| self.read_now(transfer));
        transfer.into_iter().for_each(|transfer| self.start(transfer));
    }

    fn submit_all(&self, bios: &mut dyn Iterator<Item = Bio>) {
        let Engine::Ring { ring, rt, .. } = &self.engine else {
            return bios.filter_map(|bio| self.admit(bio)).for_each(|transfer| self.start(transfer));
        };
        // Bios are admitted before the ring is locked, because a refused bio's completion may
        // submit again.
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

    /// False with direct I/O, since the device should then work on several reads at a time.
    fn reads_here(&self) -> bool {
        !self.host_file.direct_is_on()
    }

    fn is_cached_by_host(&self) -> bool {
        !self.host_file.direct_is_on()
    }

    /// True for a file past the host's page cache, on one of the file systems that Linux keeps on
    /// local disks. Another file, or a device, may be behind a network or a program.
    fn flushes_soon(&self) -> bool {
        self.host_file.direct_is_on() && self.host_file.is_on_local_disk
    }

    fn read_here(&self, start: Sector, to: &mut [IoSliceMut<'_>]) -> bool {
        let bytes = to.iter().map(|part| part.len() as u64).sum::<u64>();
        let capacity = self.host_file.limits.capacity_bytes;
        match start.byte_offset() {
            Some(at) if at.checked_add(bytes).is_some_and(|end| end <= capacity) => {
                blocking::read_here(&self.host_file, at, to)
            }
            _ => false,
        }
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
