//! Tracks when a buffer over a caller's memory is dropped.

use parking_lot::{Condvar, Mutex};

/// Reports when a lent buffer has been dropped.
#[derive(Debug)]
pub(crate) struct Loan {
    /// Whether a device may fill the memory.
    pub(super) is_writable: bool,
    is_back: Mutex<bool>,
    returned: Condvar,
}

impl Loan {
    /// The loan of a buffer that is still in use.
    pub(crate) fn new(is_writable: bool) -> Self {
        Self { is_writable, is_back: Mutex::new(false), returned: Condvar::new() }
    }

    /// The buffer has been dropped: nothing refers to the memory through it any more.
    pub(super) fn give_back(&self) {
        let mut is_back = self.is_back.lock();
        *is_back = true;
        // Notify under the lock: once it is released, the lender may return.
        self.returned.notify_all();
    }

    /// Waits until the buffer has been dropped.
    pub(crate) fn wait(&self) {
        let mut is_back = self.is_back.lock();
        while !*is_back {
            self.returned.wait(&mut is_back);
        }
    }
}
