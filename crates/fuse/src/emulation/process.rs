//! A process whose call waits, seen through `/proc`.

use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;
use std::ffi::CString;
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;

/// Longest path, with the zero at its end (linux/limits.h, `PATH_MAX`).
const PATH_MAX: usize = 4096;

const PLACE: OFlags = OFlags::PATH.union(OFlags::CLOEXEC);

/// What a user namespace is recognised by: its file's device and inode number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Namespace(u64, u64);

/// One thread of a process. All that is found here is that thread's: once it has ended, nothing is
/// found, even if another gets its number.
#[derive(Debug)]
pub(super) struct Process(OwnedFd);

impl Process {
    /// Opens a thread's directory in `proc`. Whether the number still was that thread's has to be
    /// checked afterwards.
    pub(super) fn open(proc: impl AsFd, thread: u32) -> Result<Self, Errno> {
        open(proc, &thread.to_string(), PLACE | OFlags::DIRECTORY).map(Self)
    }

    /// This process.
    pub(super) fn own(proc: impl AsFd) -> Result<Self, Errno> {
        open(proc, "self", PLACE | OFlags::DIRECTORY).map(Self)
    }

    pub(super) fn user_namespace(&self) -> Result<Namespace, Errno> {
        let found = rustix::fs::statat(&self.0, "ns/user", AtFlags::empty())?;
        Ok(Namespace(found.st_dev, found.st_ino))
    }

    /// Tells programs apart that a process runs one after the other: where the stack began, which
    /// execve(2) picks at random and fork(2) leaves (proc_pid_stat(5), `startstack`).
    pub(super) fn program(&self) -> Result<u64, Errno> {
        const FIELD: usize = 28;
        let mut text = Vec::new();
        let file = open(&self.0, "stat", OFlags::RDONLY | OFlags::CLOEXEC).map(File::from);
        file?.read_to_end(&mut text).map_err(|_| Errno::SRCH)?;
        // The second field, a name in brackets, may contain anything.
        let text = String::from_utf8_lossy(&text);
        let rest = text.rsplit(')').next().unwrap_or_default();
        rest.split_whitespace().nth(FIELD - 3).and_then(|field| field.parse().ok()).ok_or(Errno::SRCH)
    }

    pub(super) fn root(&self) -> Result<OwnedFd, Errno> {
        open(&self.0, "root", PLACE | OFlags::DIRECTORY)
    }

    pub(super) fn working_directory(&self) -> Result<OwnedFd, Errno> {
        open(&self.0, "cwd", PLACE)
    }

    /// A file that the process has open.
    pub(super) fn file(&self, number: i32) -> Result<OwnedFd, Errno> {
        match open(&self.0, &format!("fd/{number}"), PLACE) {
            Err(Errno::NOENT) => Err(Errno::BADF),
            opened => opened,
        }
    }

    /// The path at an address.
    pub(super) fn path(&self, at: u64) -> Result<CString, Errno> {
        let mut bytes = vec![0; PATH_MAX];
        // A read ends early where memory ends.
        let read = self.memory(OFlags::RDONLY)?.read_at(&mut bytes, at).map_err(|_| Errno::FAULT)?;
        bytes.truncate(read);
        match bytes.iter().position(|byte| *byte == 0) {
            Some(end) => {
                bytes.truncate(end);
                CString::new(bytes).map_err(|_| Errno::INVAL)
            }
            None if read == PATH_MAX => Err(Errno::NAMETOOLONG),
            None => Err(Errno::FAULT),
        }
    }

    /// The numbers at an address.
    pub(super) fn numbers(&self, at: u64, count: usize) -> Result<Vec<u32>, Errno> {
        let mut bytes = vec![0; count * size_of::<u32>()];
        if !bytes.is_empty() {
            self.memory(OFlags::RDONLY)?.read_exact_at(&mut bytes, at).map_err(|_| Errno::FAULT)?;
        }
        let (numbers, _) = bytes.as_chunks();
        Ok(numbers.iter().map(|number| u32::from_ne_bytes(*number)).collect())
    }

    /// Writes numbers to addresses.
    pub(super) fn write(&self, values: &[(u64, &[u32])]) -> Result<(), Errno> {
        let memory = self.memory(OFlags::RDWR)?;
        for (at, numbers) in values.iter().filter(|(_, numbers)| !numbers.is_empty()) {
            let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_ne_bytes()).collect();
            memory.write_all_at(&bytes, *at).map_err(|_| Errno::FAULT)?;
        }
        Ok(())
    }

    fn memory(&self, access: OFlags) -> Result<File, Errno> {
        open(&self.0, "mem", access | OFlags::CLOEXEC).map(File::from)
    }
}

/// The device that a file is on.
pub(super) fn device(file: impl AsFd) -> Result<u64, Errno> {
    Ok(rustix::fs::fstat(file)?.st_dev)
}

fn open(dir: impl AsFd, name: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
    rustix::fs::openat(dir, name, flags, Mode::empty())
}
