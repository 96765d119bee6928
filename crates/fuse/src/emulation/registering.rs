//! The ioctl by which the supervisor tells the server of credentials.
#![allow(unsafe_code)]

use super::agreed::registration;
use rustix::io::Errno;
use std::os::fd::{AsFd, AsRawFd};

/// Sends the words of a registration.
///
/// # Errors
/// The server takes no more.
pub(super) fn register(volume: impl AsFd, words: &[u32]) -> Result<(), Errno> {
    let bytes = u32::try_from(size_of_val(words)).map_err(|_| Errno::INVAL)?;
    // SAFETY: the command contains the length of its argument, as many bytes as `words` has, and
    // says that the argument is only read.
    let done = unsafe {
        libc::syscall(libc::SYS_ioctl, volume.as_fd().as_raw_fd(), registration(bytes), words.as_ptr())
    };
    if done == 0 {
        return Ok(());
    }
    Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO))
}
