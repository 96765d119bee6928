//! The connection that carries requests and replies.

use std::io::Result;

/// A connection to the kernel, or to a test that plays the kernel's part.
pub trait Transport: Send + Sync {
    /// Waits for a request and returns its length; `None` when the connection has ended.
    ///
    /// # Errors
    /// The connection is broken.
    fn read(&self, buffer: &mut [u8]) -> Result<Option<usize>>;

    /// Sends one reply or notification, made of these parts.
    ///
    /// # Errors
    /// `NotFound` if the request has been interrupted and nobody waits for the reply.
    fn write(&self, parts: &[&[u8]]) -> Result<()>;
}
