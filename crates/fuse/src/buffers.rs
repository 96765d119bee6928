//! Buffers of requests and replies that have been sent, for the next ones.

use parking_lot::Mutex;

/// Buffers kept.
const SPARE_MAX: usize = 8;
/// Shorter ones are not worth it.
const KEPT_BYTES_MIN: usize = 16 << 10;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Buffers(Mutex<Vec<Vec<u8>>>);

impl Buffers {
    /// A buffer of this length. Its contents are old ones or zeroes.
    pub(crate) fn take(&self, len: usize) -> Vec<u8> {
        let spare = if len < KEPT_BYTES_MIN { None } else { self.0.lock().pop() };
        let mut buffer = spare.unwrap_or_default();
        buffer.resize(len, 0);
        buffer
    }

    pub(crate) fn keep(&self, buffer: Vec<u8>) {
        if buffer.capacity() >= KEPT_BYTES_MIN {
            let mut spare = self.0.lock();
            if spare.len() < SPARE_MAX {
                spare.push(buffer);
            }
        }
    }
}
