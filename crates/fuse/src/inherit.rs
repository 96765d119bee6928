//! Descriptors from, and for, other programs.
#![allow(unsafe_code)]

use rustix::io::Errno;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd};

/// Marks all descriptors but the standard ones to be closed when a program is started. Kernels
/// before 5.11 cannot; there they are inherited.
pub(crate) fn keep_from_programs() {
    // SAFETY: the call has no pointers. It sets a flag that only execve looks at, so no descriptor
    // that this process owns is closed or reused.
    unsafe {
        libc::syscall(libc::SYS_close_range, 3, u32::MAX, libc::CLOSE_RANGE_CLOEXEC);
    }
}

/// A descriptor that this process was started with. All that the process opens itself are closed
/// when a program is started, so one without that flag is nobody else's.
pub(crate) fn inherited(number: i32) -> rustix::io::Result<OwnedFd> {
    if number < 3 {
        return Err(Errno::BADF);
    }
    // SAFETY: the borrow ends before the descriptor is owned, and the call fails if there is none.
    let flags = rustix::io::fcntl_getfd(unsafe { BorrowedFd::borrow_raw(number) })?;
    if flags.contains(rustix::io::FdFlags::CLOEXEC) {
        return Err(Errno::BADF);
    }
    // SAFETY: it is open. Rust's own descriptors have the flag that this one lacks, so it has no
    // other owner; once taken it gets the flag, and is refused here.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}
