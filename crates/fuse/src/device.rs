//! The FUSE device of the kernel.

use crate::{Received, Transport};
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::io::{IoSlice, Result};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

/// An open `/dev/fuse` with a mount attached.
#[derive(Debug)]
pub struct Device {
    descriptor: OwnedFd,
    /// How the file is open, without [`OFlags::NONBLOCK`].
    flags: OFlags,
    /// Whether a read waits for a request.
    waits: AtomicBool,
}

impl Device {
    /// Takes ownership of the descriptor that a mount was made with.
    pub fn new(descriptor: OwnedFd) -> Self {
        let flags = rustix::fs::fcntl_getfl(&descriptor).unwrap_or(OFlags::RDWR);
        let waits = AtomicBool::new(!flags.contains(OFlags::NONBLOCK));
        Self { descriptor, flags: flags - OFlags::NONBLOCK, waits }
    }
}

impl AsFd for Device {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

impl Transport for Device {
    fn read(&self, buffer: &mut [u8], waits: bool) -> Result<Received> {
        // The flag belongs to the open file, so a call is needed only when it changes.
        if self.waits.swap(waits, Ordering::Relaxed) != waits {
            let added = if waits { OFlags::empty() } else { OFlags::NONBLOCK };
            rustix::fs::fcntl_setfl(&self.descriptor, self.flags | added)?;
        }
        loop {
            match rustix::io::read(&self.descriptor, &mut *buffer) {
                Ok(0) => return Ok(Received::End),
                Ok(bytes) => return Ok(Received::Request(bytes)),
                Err(Errno::AGAIN) => return Ok(Received::Nothing),
                // ENOENT: the request was interrupted before it was read.
                Err(Errno::INTR | Errno::NOENT) => {}
                // The file system was unmounted, or the connection was aborted.
                Err(Errno::NODEV | Errno::CONNABORTED) => return Ok(Received::End),
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn poll_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }

    fn write(&self, parts: &[&[u8]]) -> Result<()> {
        let mut slices = [IoSlice::new(&[]); 4];
        for (slice, part) in slices.iter_mut().zip(parts) {
            *slice = IoSlice::new(part);
        }
        rustix::io::writev(&self.descriptor, &slices[..parts.len().min(4)])?;
        Ok(())
    }
}
