//! The primitives under the wait table, which loom replaces to try every interleaving.

#[cfg(not(extant_loom))]
pub(crate) use parking_lot::Mutex;
#[cfg(not(extant_loom))]
pub(crate) use std::sync::atomic::{AtomicU32, Ordering};

#[cfg(extant_loom)]
pub(crate) use loom::sync::atomic::{AtomicU32, Ordering};

/// loom's mutex with the face of `parking_lot`'s.
#[cfg(extant_loom)]
#[derive(Debug, Default)]
pub(crate) struct Mutex<T>(loom::sync::Mutex<T>);

#[cfg(extant_loom)]
impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(loom::sync::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> loom::sync::MutexGuard<'_, T> {
        self.0.lock().expect("a thread that panics ends the model")
    }
}
