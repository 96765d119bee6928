//! Locks on an image: ours, and those by which other programs declare that they are using it.
//!
//! Linux has locks on whole files (`flock(2)`) and locks on byte ranges, owned by a process (POSIX)
//! or by an open file description (OFD, `fcntl(2)`). They only affect programs that check them.
//! QEMU does, and so do programs that serve images through it (QEMU, block/file-posix.c). A shared
//! lock on byte 100 + n says that its owner uses permission n. One on byte 200 + n says that its
//! owner does not let anyone else use it. Before taking either lock, a program checks the other
//! byte.
//! Permission 0 is reading, 1 writing, 2 writing unchanged data, 3 resizing.
//!
//! Our writer holds these locks on the image:
//! - an exclusive lock on byte [`MARK`], which no two of our writers can hold,
//! - `flock(2)`,
//! - shared locks on all other bytes except 200. They keep off QEMU and every program that wants an
//!   exclusive lock on some byte, but not QEMU's readers of images in use (`--force-share`).

use super::busy::wait_for_claim;
use crate::{Claim, IoErrorKind};
use rustix::fs::{FlockOperation, Stat};
use rustix::io::Errno;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

/// "extant" in ASCII: no other program locks exactly this byte.
const MARK: i64 = 0x6578_7461_6e74_0000;
/// A lock on this byte forbids others to read.
const READING_IS_NOT_SHARED: i64 = 200;

/// What a writer does about other programs' locks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ForeignLocks {
    /// Do not write an image that others have locked.
    #[default]
    Honour,
    /// Write it anyway. The user may know better than the lock: its owner may only be reading, or
    /// may hang.
    Override,
}

/// Another owner's lock.
#[derive(Clone, Copy, Debug)]
struct Theirs {
    start: i64,
    /// 0 means to the end of the file.
    len: i64,
    /// 0 or less if the owner is an open file description.
    pid: i32,
}

impl Theirs {
    fn is_ours(&self) -> bool {
        (self.start, self.len) == (MARK, 1)
    }

    fn is_qemus(&self) -> bool {
        let is_permission = |base: &i64| (*base..base + 5).contains(&self.start);
        (1..=5).contains(&self.len) && [100, 200].iter().any(is_permission)
    }
}

/// Locks an image for a writer, as long as the claim lives. `own` is open for writing, or for
/// reading by a caller that will replace the image.
///
/// # Errors
/// [`IoErrorKind::Claimed`] if another writer of ours has it, whatever `foreign` says;
/// [`IoErrorKind::Locked`] if another program has locked it.
pub(super) fn take(own: OwnedFd, foreign: ForeignLocks) -> Result<Claim, IoErrorKind> {
    let held = Held(own);
    let file = &held.0;
    let stat = rustix::fs::fstat(file).map_err(|error| IoErrorKind::Os(error.raw_os_error()))?;
    let mark = || {
        let mut marked = set(file, libc::F_WRLCK, MARK, 1);
        if marked == Err(Errno::BADF) {
            marked = set(file, libc::F_RDLCK, MARK, 1);
        }
        let at_mark = theirs(file, MARK, 1);
        match at_mark.is_some_and(|theirs| theirs.is_ours()) {
            true => Err(Errno::BUSY),
            false => Ok((marked, at_mark)),
        }
    };
    // A writer that was killed keeps its lock until Linux has torn down its ring.
    let (marked, at_mark) = wait_for_claim(mark).map_err(|_| IoErrorKind::Claimed)?;
    let is_block_device = rustix::fs::FileType::from_raw_mode(stat.st_mode).is_block_device();
    let flocked = || rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive);
    let flocked = match is_block_device && foreign == ForeignLocks::Honour {
        // udev holds a shared lock while it probes a disk (systemd, docs/BLOCK_DEVICE_LOCKING.md).
        true => wait_for_claim(flocked),
        false => flocked(),
    };
    // If another owner's exclusive lock prevents these, it is found below. Errors come from file
    // systems without locks.
    let _ = set(file, libc::F_RDLCK, 0, READING_IS_NOT_SHARED);
    let behind = READING_IS_NOT_SHARED + 1;
    // Stop before the mark: the two locks would be merged into one.
    let _ = set(file, libc::F_RDLCK, behind, MARK - 1 - behind);
    let range = at_mark.or_else(|| theirs(file, 0, 0));
    let is_locked = range.is_some() || marked == Ok(false) || flocked == Err(Errno::WOULDBLOCK);
    if is_locked && foreign == ForeignLocks::Honour {
        return Err(IoErrorKind::Locked { by: owner(&stat, range) });
    }
    Ok(Claim::holding(held))
}

/// Locks held through an open file description.
struct Held(OwnedFd);

impl Drop for Held {
    fn drop(&mut self) {
        // Our own device shares the description, and so does a process forked by another thread,
        // until it executes its program. If we only closed our descriptor, they would keep the
        // locks.
        let _ = set(&self.0, libc::F_UNLCK, 0, 0);
        let _ = rustix::fs::flock(&self.0, FlockOperation::NonBlockingUnlock);
    }
}

/// Changes the description's lock on a range; false if another owner's lock is in the way.
fn set(file: &OwnedFd, kind: libc::c_int, start: i64, len: i64) -> rustix::io::Result<bool> {
    match ask(file, libc::F_OFD_SETLK, kind, start, len) {
        Ok(_) => Ok(true),
        Err(Errno::AGAIN | Errno::ACCESS) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Another owner's lock within a range.
fn theirs(file: &OwnedFd, start: i64, len: i64) -> Option<Theirs> {
    let found = ask(file, libc::F_OFD_GETLK, libc::F_WRLCK, start, len).ok()?;
    let is_free = libc::c_int::from(found.l_type) == libc::F_UNLCK;
    (!is_free).then_some(Theirs { start: found.l_start, len: found.l_len, pid: found.l_pid })
}

fn ask(
    file: &OwnedFd,
    command: libc::c_int,
    kind: libc::c_int,
    start: i64,
    len: i64,
) -> rustix::io::Result<libc::flock> {
    let mut lock = libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: start,
        l_len: len,
        l_pid: 0,
    };
    loop {
        // SAFETY: both commands take a `struct flock`, which the kernel reads and, for F_OFD_GETLK,
        // fills in during the call.
        let answer = unsafe { libc::fcntl(file.as_raw_fd(), command, &raw mut lock) };
        if answer != -1 {
            return Ok(lock);
        }
        match Errno::from_io_error(&std::io::Error::last_os_error()) {
            Some(Errno::INTR) => {}
            error => return Err(error.unwrap_or(Errno::IO)),
        }
    }
}

/// Who has locked a file, in words.
fn owner(file: &Stat, lock: Option<Theirs>) -> String {
    let of_lock = lock.and_then(|lock| u32::try_from(lock.pid).ok()).filter(|pid| *pid > 0);
    let Some(pid) = of_lock.or_else(|| who_has_locked(file)).or_else(|| listed(file)) else {
        return match lock {
            Some(lock) if lock.is_qemus() => "QEMU (a virtual machine, or a server of its images)".into(),
            _ => "another program".into(),
        };
    };
    let command = std::fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    let command = String::from_utf8_lossy(command.strip_suffix(b"\n").unwrap_or(&command)).into_owned();
    match command.is_empty() {
        true => format!("process {pid}"),
        false => format!("{} (process {pid})", command.escape_debug()),
    }
}

/// The process that has a locked descriptor of this file. Locks of open file descriptions leave no
/// other trace of their owner, and the caller only sees processes that it may inspect.
fn who_has_locked(file: &Stat) -> Option<u32> {
    let processes = std::fs::read_dir("/proc").ok()?.flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| *pid != std::process::id()).find(|pid| {
        let dir = Path::new("/proc").join(pid.to_string());
        std::fs::read_dir(dir.join("fd")).into_iter().flatten().flatten().any(|descriptor| {
            let is_this = |found: &Stat| (found.st_dev, found.st_ino) == (file.st_dev, file.st_ino);
            rustix::fs::stat(descriptor.path()).is_ok_and(|found| is_this(&found))
                && std::fs::read_to_string(dir.join("fdinfo").join(descriptor.file_name()))
                    .is_ok_and(|info| info.lines().any(|line| line.starts_with("lock:")))
        })
    })
}

/// The owner of a lock on this file according to the list of all locks (proc_locks(5)), if it is a
/// process.
fn listed(file: &Stat) -> Option<u32> {
    let (major, minor) = (rustix::fs::major(file.st_dev), rustix::fs::minor(file.st_dev));
    let place = format!("{major:02x}:{minor:02x}:{}", file.st_ino);
    let locks = std::fs::read_to_string("/proc/locks").ok()?;
    locks.lines().find_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let at = words.iter().position(|word| *word == place)?;
        words[at.checked_sub(1)?].parse().ok().filter(|pid| *pid > 0 && *pid != std::process::id())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    fn open(file: &tempfile::NamedTempFile) -> OwnedFd {
        File::options().read(true).write(true).open(file.path()).unwrap().into()
    }

    fn refusal(file: &tempfile::NamedTempFile, foreign: ForeignLocks) -> Option<IoErrorKind> {
        take(open(file), foreign).err()
    }

    #[test]
    fn locks_that_a_forked_process_shares_end_with_their_owner() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let own = open(&file);
        let _in_a_child = own.try_clone().unwrap();
        let claim = take(own, ForeignLocks::Honour).unwrap();
        assert_eq!(refusal(&file, ForeignLocks::Honour), Some(IoErrorKind::Claimed));
        drop(claim);
        assert_eq!(refusal(&file, ForeignLocks::Honour), None);
    }

    #[test]
    fn a_writer_of_ours_is_never_overridden() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let _claim = take(open(&file), ForeignLocks::Honour).unwrap();
        assert_eq!(refusal(&file, ForeignLocks::Override), Some(IoErrorKind::Claimed));
        let to_replace = File::open(file.path()).unwrap().into();
        assert_eq!(take(to_replace, ForeignLocks::Override).err(), Some(IoErrorKind::Claimed));
    }

    #[test]
    fn one_who_replaces_an_image_that_he_may_not_write_keeps_writers_off() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let to_replace = || OwnedFd::from(File::open(file.path()).unwrap());
        let claim = take(to_replace(), ForeignLocks::Honour).unwrap();
        assert_eq!(refusal(&file, ForeignLocks::Override), Some(IoErrorKind::Claimed));
        assert_eq!(take(to_replace(), ForeignLocks::Honour).err(), Some(IoErrorKind::Claimed));
        drop(claim);
        assert_eq!(refusal(&file, ForeignLocks::Honour), None);
    }

    #[test]
    fn locks_of_every_kind_are_honoured_and_may_be_overridden() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let ofd = |kind, start, len| {
            let theirs = open(&file);
            assert_eq!(set(&theirs, kind, start, len), Ok(true));
            theirs
        };
        let flocked = |operation| {
            let theirs = open(&file);
            rustix::fs::flock(&theirs, operation).unwrap();
            theirs
        };
        let locks: [&dyn Fn() -> OwnedFd; 7] = [
            &|| ofd(libc::F_RDLCK, 100, 2),
            &|| ofd(libc::F_RDLCK, 201, 1),
            // A lock on the whole file, like cloud-hypervisor's.
            &|| ofd(libc::F_WRLCK, 0, 0),
            &|| ofd(libc::F_RDLCK, 0, 0),
            // Like libvirt's lock manager.
            &|| ofd(libc::F_WRLCK, 0, 1),
            &|| flocked(FlockOperation::LockExclusive),
            &|| flocked(FlockOperation::LockShared),
        ];
        for (n, lock) in locks.iter().enumerate() {
            let theirs = lock();
            let refused = refusal(&file, ForeignLocks::Honour);
            assert!(matches!(refused, Some(IoErrorKind::Locked { .. })), "{n}: {refused:?}");
            assert_eq!(refusal(&file, ForeignLocks::Override), None, "{n}");
            drop(theirs);
            assert_eq!(refusal(&file, ForeignLocks::Honour), None, "{n}");
        }
    }

    #[test]
    fn a_writer_keeps_exclusive_locks_off_and_lets_readers_of_images_in_use_in() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let _claim = take(open(&file), ForeignLocks::Honour).unwrap();
        let other = open(&file);
        let may = |kind, start, len| set(&other, kind, start, len).unwrap();
        for (start, len) in [(0, 0), (0, 1), (100, 1), (101, 1), (103, 1), (201, 1), (1 << 40, 1)] {
            assert!(!may(libc::F_WRLCK, start, len), "{start}");
            assert!(may(libc::F_RDLCK, start, len) || (start, len) == (0, 0), "{start}");
        }
        assert!(theirs(&other, READING_IS_NOT_SHARED, 1).is_none(), "reading is shared");
    }
}
