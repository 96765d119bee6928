//! Primitives for the waits of this crate and of the cache. Loom replaces them to try every
//! interleaving.

#[cfg(not(extant_loom))]
pub use parking_lot::{Mutex, MutexGuard};
#[cfg(not(extant_loom))]
pub use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering, fence};

#[cfg(extant_loom)]
pub use loom::sync::MutexGuard;
#[cfg(extant_loom)]
pub use loom::sync::atomic::{AtomicU32, AtomicUsize, Ordering, fence};

/// loom's mutex with the interface of `parking_lot`'s.
#[cfg(extant_loom)]
#[derive(Debug, Default)]
pub struct Mutex<T>(loom::sync::Mutex<T>);

#[cfg(extant_loom)]
impl<T> Mutex<T> {
    /// An unlocked mutex.
    pub fn new(value: T) -> Self {
        Self(loom::sync::Mutex::new(value))
    }

    /// Locks it.
    pub fn lock(&self) -> loom::sync::MutexGuard<'_, T> {
        self.0.lock().expect("a thread that panics ends the model")
    }

    /// Locks it, unless another thread holds it.
    pub fn try_lock(&self) -> Option<loom::sync::MutexGuard<'_, T>> {
        self.0.try_lock().ok()
    }
}
