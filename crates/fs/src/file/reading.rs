//! Cached reads of an open file.

use super::cache_errors::cache_error;
use super::open_file::OpenFile;
use crate::Result;
use extant_cache::WouldWait;

impl OpenFile {
    /// Reads from byte `at` on. Returns the number of bytes read, which is smaller than asked for
    /// at the end of the file.
    ///
    /// # Errors
    /// Nothing could be read.
    pub async fn read(&self, at: u64, to: &mut [u8]) -> Result<usize> {
        let read = async { self.pages.read(at, to).await.map_err(cache_error) };
        self.contents.writer.guarded(read).await
    }

    /// Like [`OpenFile::read`], but for callers that must not wait: reads everything from memory or
    /// reports how much of it was there.
    ///
    /// # Errors
    /// The rest must be read from the device, or the volume's errors must be checked first. Nothing
    /// is started.
    pub fn try_read(&self, at: u64, to: &mut [u8]) -> std::result::Result<usize, WouldWait> {
        match self.contents.writer.may_halt() {
            true => Err(WouldWait { done_bytes: 0 }),
            false => self.pages.try_read(at, to),
        }
    }

    /// Like [`OpenFile::read`], but for a thread that has nothing else to do: bytes that are not in
    /// memory are read by this thread, if its world and the device allow it, instead of in the
    /// background.
    ///
    /// # Errors
    /// The rest needs [`OpenFile::read`], which waits as necessary, and returns the error if there
    /// is one.
    pub fn read_here(&self, at: u64, to: &mut [u8]) -> std::result::Result<usize, WouldWait> {
        match self.contents.writer.may_halt() {
            true => Err(WouldWait { done_bytes: 0 }),
            false => self.pages.read_here(at, to),
        }
    }
}
