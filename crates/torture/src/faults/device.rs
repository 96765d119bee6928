//! A device that fails a single bio: the nth read, write or flush.

use extant_block::{Bio, Device, IoError, IoErrorKind, Limits, Op, Sector};
use parking_lot::Mutex;
use rustix::io::Errno;
use std::collections::BTreeSet;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// Which bio to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FailOne {
    /// Counts bios of this operation; write-zeroes and discards count as writes.
    pub op: Op,
    /// Its number, starting at 0.
    pub nth: u64,
    /// Whether every later bio of the operation also fails.
    pub and_later: bool,
}

/// Forwards bios, except those selected by [`FailOne`], which end with EIO and have no effect.
pub struct FailingDevice {
    inner: Arc<dyn Device>,
    fail: FailOne,
    seen: Mutex<u64>,
    /// Sectors that failed writes should have written, and that no later write has written.
    missing: Mutex<BTreeSet<u64>>,
}

impl FailingDevice {
    /// Wraps `inner`.
    pub fn new(inner: Arc<dyn Device>, fail: FailOne) -> Self {
        Self { inner, fail, seen: Mutex::new(0), missing: Mutex::default() }
    }

    /// Number of bios of the operation so far.
    pub fn seen(&self) -> u64 {
        *self.seen.lock()
    }

    /// Whether later writes have written everything that failed ones should have.
    pub fn is_made_good(&self) -> bool {
        self.missing.lock().is_empty()
    }

    fn strikes(&self, bio: &Bio) -> bool {
        let op = match bio.op {
            Op::WriteZeroes | Op::Discard => Op::Write,
            op => op,
        };
        if op != self.fail.op {
            return false;
        }
        let mut seen = self.seen.lock();
        let number = *seen;
        *seen += 1;
        number == self.fail.nth || (self.fail.and_later && number > self.fail.nth)
    }
}

impl Device for FailingDevice {
    fn limits(&self) -> &Limits {
        self.inner.limits()
    }

    fn submit(&self, bio: Bio) {
        let sectors = bio.start.0..bio.start.0 + bio.bytes / Sector::BYTES;
        if self.strikes(&bio) {
            if bio.op != Op::Read {
                self.missing.lock().extend(sectors);
            }
            let name = self.limits().name.clone();
            bio.end_as(&name, Err(IoErrorKind::Os(Errno::IO.raw_os_error())));
        } else {
            if bio.op != Op::Read {
                self.missing.lock().retain(|sector| !sectors.contains(sector));
            }
            self.inner.submit(bio);
        }
    }

    fn next_data(&self, from_bytes: u64) -> Result<Option<Range<u64>>, IoError> {
        self.inner.next_data(from_bytes)
    }
}

impl fmt::Debug for FailingDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FailingDevice({:?} {})", self.fail.op, self.fail.nth)
    }
}
