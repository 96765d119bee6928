//! All accounts of a cache, which shrink together.

use parking_lot::Mutex;
use std::fmt;
use std::sync::Weak;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// An account, as the shrinking task sees it.
pub(crate) trait Member: Send + Sync {
    /// Bytes charged now.
    fn charged(&self) -> u64;

    /// Bytes over its limit.
    fn excess(&self) -> u64;

    /// Asks the client to give memory back; returns how many bytes of charges it released.
    fn shrink(&self, bytes: u64) -> u64;
}

/// All accounts of a cache.
#[derive(Default)]
pub(crate) struct Accounts {
    pub(crate) all: Mutex<Vec<Weak<dyn Member>>>,
    pub(crate) charged: AtomicU64,
    /// Pages of the budget reserved for charges: a little more than is charged, so that a charge
    /// takes no lock.
    pub(crate) granted_pages: Mutex<u64>,
    pub(crate) granted_bytes: AtomicU64,
    /// Bytes that frames are short of, and that clients should give back.
    pub(crate) wanted: AtomicU64,
    pub(crate) is_shrinking: AtomicBool,
}

impl fmt::Debug for Accounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Accounts({} bytes)", self.charged.load(Ordering::Relaxed))
    }
}
