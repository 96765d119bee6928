//! The FUSE device of the kernel.

use crate::Transport;
use rustix::io::Errno;
use std::io::{IoSlice, Result};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// An open `/dev/fuse` with a mount attached.
#[derive(Debug)]
pub struct Device(OwnedFd);

impl Device {
    /// Takes ownership of the descriptor that a mount was made with.
    pub fn new(descriptor: OwnedFd) -> Self {
        Self(descriptor)
    }
}

impl AsFd for Device {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Transport for Device {
    fn read(&self, buffer: &mut [u8]) -> Result<Option<usize>> {
        loop {
            match rustix::io::read(&self.0, &mut *buffer) {
                Ok(0) => return Ok(None),
                Ok(bytes) => return Ok(Some(bytes)),
                // ENOENT: the request was interrupted before it was read.
                Err(Errno::INTR | Errno::NOENT | Errno::AGAIN) => {}
                // The file system was unmounted, or the connection was aborted.
                Err(Errno::NODEV | Errno::CONNABORTED) => return Ok(None),
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn write(&self, parts: &[&[u8]]) -> Result<()> {
        let mut slices = [IoSlice::new(&[]); 4];
        for (slice, part) in slices.iter_mut().zip(parts) {
            *slice = IoSlice::new(part);
        }
        rustix::io::writev(&self.0, &slices[..parts.len().min(4)])?;
        Ok(())
    }
}
