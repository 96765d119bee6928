//! The descriptor on which calls that are held up arrive (seccomp_unotify(2)).
#![allow(unsafe_code)]

use super::calls::{Call, call};
use rustix::io::Errno;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// Receives the calls of the programs below a filter. While it is open, they wait for answers.
#[derive(Debug)]
pub struct Listener(OwnedFd);

/// A call that waits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Held {
    pub(super) id: u64,
    /// The thread that has made it, by the number that this process knows.
    pub(super) thread: u32,
    /// `None` if it is none that the filter asks about.
    pub(super) call: Option<Call>,
    pub(super) arguments: [u64; 6],
}

/// What a call returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    Value(u32),
    Error(Errno),
    /// The kernel runs the call.
    Kernel,
}

impl Listener {
    /// Takes a descriptor that the filter, or another process, has handed over.
    pub(crate) const fn new(descriptor: OwnedFd) -> Self {
        Self(descriptor)
    }

    /// Wakes the caller on the processor that answers, which would otherwise wait for another to
    /// wake up. Older kernels than Linux 6.6 do not know this.
    pub(super) fn answer_on_one_processor(&self) {
        const SYNC_WAKE_UP: libc::c_ulong = 1;
        // SAFETY: the argument is no pointer.
        unsafe { libc::ioctl(self.0.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_SET_FLAGS, SYNC_WAKE_UP) };
    }

    /// Takes the next call. `None` if its thread has ended.
    ///
    /// # Errors
    /// Nothing is below the filter any more.
    pub(super) fn receive(&self) -> Result<Option<Held>, Errno> {
        let data = libc::seccomp_data { nr: 0, arch: 0, instruction_pointer: 0, args: [0; 6] };
        let mut held = libc::seccomp_notif { id: 0, pid: 0, flags: 0, data };
        // SAFETY: `held` is a whole structure for this command, whose number contains its size.
        match unsafe { self.ask(libc::SECCOMP_IOCTL_NOTIF_RECV, &mut held) } {
            Err(Errno::NOENT | Errno::INTR) => Ok(None),
            Err(error) => Err(error),
            Ok(()) => {
                let libc::seccomp_notif { id, pid: thread, data, .. } = held;
                let call = call(data.arch, data.nr.into());
                Ok(Some(Held { id, thread, call, arguments: data.args }))
            }
        }
    }

    /// Whether the call still waits. Its thread then still has its number.
    pub(super) fn is_held(&self, id: u64) -> bool {
        let mut id = id;
        // SAFETY: `id` is a whole argument for this command, which only reads it.
        unsafe { self.ask(libc::SECCOMP_IOCTL_NOTIF_ID_VALID, &mut id) }.is_ok()
    }

    /// Lets the call return. Its thread may have ended.
    pub(super) fn answer(&self, id: u64, answer: Answer) {
        let mut reply = libc::seccomp_notif_resp { id, val: 0, error: 0, flags: 0 };
        match answer {
            Answer::Value(value) => reply.val = value.into(),
            Answer::Error(errno) => reply.error = -errno.raw_os_error(),
            Answer::Kernel => reply.flags = 1,
        }
        // SAFETY: `reply` is a whole structure for this command, whose number contains its size.
        let _ = unsafe { self.ask(libc::SECCOMP_IOCTL_NOTIF_SEND, &mut reply) };
    }

    /// # Safety
    /// `argument` is what the command reads and writes.
    unsafe fn ask<T>(&self, command: libc::Ioctl, argument: &mut T) -> Result<(), Errno> {
        // SAFETY: by the contract of this function. The descriptor is open.
        let done = unsafe { libc::ioctl(self.0.as_raw_fd(), command, std::ptr::from_mut(argument)) };
        if done == 0 {
            return Ok(());
        }
        Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO))
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
