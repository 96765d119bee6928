//! File descriptors inherited from other programs, or by them.
#![allow(unsafe_code)]

use rustix::io::Errno;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd};

/// Marks all descriptors except the standard ones to be closed when another program is executed.
/// Kernels before 5.11 cannot do this; there, such programs inherit them.
pub(crate) fn keep_from_programs() {
    // SAFETY: the call has no pointers. It sets a flag that only execve looks at, so no descriptor
    // that this process owns is closed or reused.
    unsafe {
        libc::syscall(libc::SYS_close_range, 3, u32::MAX, libc::CLOSE_RANGE_CLOEXEC);
    }
}

/// Takes a descriptor that this process was started with. All descriptors that the process opens
/// itself are close-on-exec, so one without that flag has no other owner.
pub(crate) fn inherited(number: i32) -> rustix::io::Result<OwnedFd> {
    if number < 3 {
        return Err(Errno::BADF);
    }
    // SAFETY: the borrow ends before the descriptor is owned, and the call fails if there is none.
    let flags = rustix::io::fcntl_getfd(unsafe { BorrowedFd::borrow_raw(number) })?;
    if flags.contains(rustix::io::FdFlags::CLOEXEC) {
        return Err(Errno::BADF);
    }
    // SAFETY: the descriptor is open. All descriptors that Rust opens have the flag that this one
    // lacks, so it has no other owner. Once taken it gets the flag, and a second call refuses it.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}
