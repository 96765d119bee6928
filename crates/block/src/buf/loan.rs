//! The end of a buffer over memory of a caller's.

use parking_lot::{Condvar, Mutex};

/// Tells when a lent buffer is gone.
#[derive(Debug)]
pub(crate) struct Loan {
    /// Whether a device may fill the memory.
    pub(super) is_writable: bool,
    is_back: Mutex<bool>,
    returned: Condvar,
}

impl Loan {
    /// A buffer that is not gone yet.
    pub(crate) fn new(is_writable: bool) -> Self {
        Self { is_writable, is_back: Mutex::new(false), returned: Condvar::new() }
    }

    /// The buffer is gone: nothing refers to the memory through it any more.
    pub(super) fn give_back(&self) {
        let mut is_back = self.is_back.lock();
        *is_back = true;
        // Under the lock: as soon as that is free, the lender may return.
        self.returned.notify_all();
    }

    /// Waits for that.
    pub(crate) fn wait(&self) {
        let mut is_back = self.is_back.lock();
        while !*is_back {
            self.returned.wait(&mut is_back);
        }
    }
}
