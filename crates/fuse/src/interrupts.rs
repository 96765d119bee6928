//! Requests that end early because their process is killed.
//!
//! The kernel tells of any signal (INTERRUPT). On a disk's own file system only a fatal one ends a
//! wait: programs do not expect `EINTR` from files. So a request is stopped only once its thread is
//! being killed; nobody then sees the error, and the process can end.
//!
//! Only what has done nothing may be stopped:
//!
//! | operation | stops |
//! |---|---|
//! | LOOKUP, GETATTR, STATX, READLINK, ACCESS, STATFS | yes: they only look |
//! | OPEN without `O_TRUNC`, OPENDIR | yes: the kernel has no handle before the reply |
//! | READ, READDIR, READDIRPLUS, LSEEK, GETXATTR, LISTXATTR | yes |
//! | FSYNC, FSYNCDIR, SYNCFS, and `extant sync` (SETXATTR) | yes: what it waits for goes on |
//! | IOCTL | FITRIM, as on ext4; others end by themselves |
//! | WRITE, FALLOCATE, COPY_FILE_RANGE, SETATTR, SETXATTR, REMOVEXATTR | no: may be partly done |
//! | CREATE, TMPFILE, MKNOD, MKDIR, SYMLINK, LINK | no |
//! | RENAME, UNLINK, RMDIR, OPEN with `O_TRUNC` | no |
//! | INIT, RELEASE, RELEASEDIR, FLUSH, FORGET, DESTROY | no: they do not wait |

use crate::SYNC_ATTRIBUTE;
use crate::errno::{Errno, Result};
use crate::wire::{FITRIM, O_TRUNC, Operation, RequestHeader};
use futures_util::future::{AbortHandle, Abortable};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;

/// The requests that wait and may be stopped, by their numbers.
#[derive(Debug, Default)]
pub(crate) struct Interrupts {
    waiting: Mutex<FxHashMap<u64, Waiting>>,
}

#[derive(Debug)]
struct Waiting {
    handle: AbortHandle,
    thread: u32,
    /// A task already looks whether the thread is being killed.
    is_watched: bool,
}

/// Takes a request off the list.
struct Listed<'a> {
    list: &'a Interrupts,
    unique: u64,
}

impl Drop for Listed<'_> {
    fn drop(&mut self) {
        self.list.waiting.lock().remove(&self.unique);
    }
}

impl Interrupts {
    /// Runs an operation until it ends or is stopped. It is listed once it waits. The thread that
    /// reads requests polls each one before it reads the INTERRUPT that may follow.
    ///
    /// # Errors
    /// Those of the operation; `EINTR` if it was stopped.
    pub(crate) async fn run<T>(
        &self,
        header: &RequestHeader,
        operation: &Operation<'_>,
        mut work: Pin<&mut impl Future<Output = Result<T>>>,
    ) -> Result<T> {
        if !stops(operation) {
            return work.await;
        }
        // Most do not wait.
        if let Poll::Ready(done) = poll_fn(|cx| Poll::Ready(work.as_mut().poll(cx))).await {
            return done;
        }
        let (handle, registration) = AbortHandle::new_pair();
        let waiting = Waiting { handle, thread: header.pid, is_watched: false };
        self.waiting.lock().insert(header.unique, waiting);
        let _listed = Listed { list: self, unique: header.unique };
        Abortable::new(work, registration).await.unwrap_or(Err(Errno::INTR.into()))
    }

    /// The thread of a request that waits, to be watched from now on. `None` if it is watched
    /// already, has ended or does not stop.
    pub(crate) fn watch(&self, unique: u64) -> Option<u32> {
        let mut waiting = self.waiting.lock();
        // Without a number the process lives in a namespace that the server does not see.
        let request = waiting.get_mut(&unique).filter(|request| request.thread != 0)?;
        (!std::mem::replace(&mut request.is_watched, true)).then_some(request.thread)
    }

    /// Whether a request still waits.
    pub(crate) fn is_waiting(&self, unique: u64) -> bool {
        self.waiting.lock().contains_key(&unique)
    }

    /// Stops a request. Its reply follows from its own task.
    pub(crate) fn stop(&self, unique: u64) {
        if let Some(request) = self.waiting.lock().get(&unique) {
            request.handle.abort();
        }
    }
}

/// Whether an operation may be stopped; see the module documentation.
fn stops(operation: &Operation<'_>) -> bool {
    match operation {
        Operation::Lookup { .. }
        | Operation::Getattr(_)
        | Operation::Statx(_)
        | Operation::Readlink
        | Operation::Access(_)
        | Operation::Statfs
        | Operation::Opendir(_)
        | Operation::Read(_)
        | Operation::Readdir { .. }
        | Operation::Lseek { .. }
        | Operation::Getxattr { .. }
        | Operation::Listxattr { .. }
        | Operation::Fsync(_)
        | Operation::Fsyncdir(_)
        | Operation::Syncfs => true,
        Operation::Open(args) => args.flags & O_TRUNC == 0,
        Operation::Setxattr { name, .. } => *name == SYNC_ATTRIBUTE.as_bytes(),
        Operation::Ioctl { args, .. } => args.cmd == FITRIM,
        Operation::Write { .. }
        | Operation::Fallocate(_)
        | Operation::CopyFileRange { .. }
        | Operation::Setattr(_)
        | Operation::Removexattr { .. }
        | Operation::Create { .. }
        | Operation::Tmpfile(_)
        | Operation::Mknod { .. }
        | Operation::Mkdir { .. }
        | Operation::Symlink { .. }
        | Operation::Link { .. }
        | Operation::Rename { .. }
        | Operation::Unlink { .. }
        | Operation::Rmdir { .. }
        | Operation::Init { .. }
        | Operation::Release(_)
        | Operation::Releasedir(_)
        | Operation::Flush
        | Operation::Forget(_)
        | Operation::BatchForget { .. }
        | Operation::Interrupt(_)
        | Operation::NotifyReply
        | Operation::Destroy => false,
    }
}

/// Whether a line `SigPnd:` in a thread's status says that it is being killed. The kernel makes
/// every fatal signal of a process a SIGKILL of each of its threads, except those that dump core
/// (`complete_signal`).
pub(crate) fn is_killed_in(status: &str) -> bool {
    const SIGKILL: u64 = 1 << 8;
    let pending = status.lines().find_map(|line| line.strip_prefix("SigPnd:"));
    let pending = pending.and_then(|digits| u64::from_str_radix(digits.trim(), 16).ok());
    pending.is_some_and(|pending| pending & SIGKILL != 0)
}

/// Whether a thread, numbered as in this process's namespace, is being killed.
pub(crate) fn is_killed(thread: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{thread}/status"));
    status.is_ok_and(|status| is_killed_in(&status))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_killed_thread_has_a_pending_signal() {
        let status = |pending: &str| format!("Name:\tls\nSigPnd:\t{pending}\nShdPnd:\t0000000000000100\n");
        assert!(is_killed_in(&status("0000000000000100")));
        assert!(is_killed_in(&status("0000000000002102")));
        assert!(!is_killed_in(&status("0000000000002000")));
        assert!(!is_killed_in("Name:\tls\n"));
        assert!(!is_killed(std::process::id()));
    }
}
