//! The connection that carries requests and replies.

use std::io::Result;
use std::os::fd::BorrowedFd;

/// What [`Transport::read`] has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// A request of so many bytes.
    Request(usize),
    /// None, for now.
    Nothing,
    /// The connection has ended: there will be no more.
    End,
}

/// A connection to the kernel, or to a test that plays the kernel's part.
pub trait Transport: Send + Sync {
    /// Reads a request, if there is one; with `waits`, waits for it. For a single thread.
    ///
    /// # Errors
    /// The connection is broken.
    fn read(&self, buffer: &mut [u8], waits: bool) -> Result<Received>;

    /// A descriptor that polls readable as long as [`Transport::read`] finds a request or the end.
    fn poll_fd(&self) -> BorrowedFd<'_>;

    /// Sends one reply or notification, made of these parts.
    ///
    /// # Errors
    /// `NotFound` if the request has been interrupted and nobody waits for the reply.
    fn write(&self, parts: &[&[u8]]) -> Result<()>;
}
