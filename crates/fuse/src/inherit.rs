//! Descriptors that programs started from here do not get.
#![allow(unsafe_code)]

/// Marks all descriptors but the standard ones to be closed when a program is started. Kernels
/// before 5.11 cannot; there they are inherited.
pub(crate) fn keep_from_programs() {
    // SAFETY: the call has no pointers. It sets a flag that only execve looks at, so no descriptor
    // that this process owns is closed or reused.
    unsafe {
        libc::syscall(libc::SYS_close_range, 3, u32::MAX, libc::CLOSE_RANGE_CLOEXEC);
    }
}
