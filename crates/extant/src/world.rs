//! Waiting for a future on an ordinary thread.

use extant_rt::Rt;
use std::fmt;

/// The world that a volume lives in.
#[derive(Clone)]
pub(crate) struct World(Rt);

impl World {
    pub(crate) fn new(rt: &Rt) -> Self {
        Self(rt.clone())
    }

    /// Runs an operation to completion. One that needs no disk uses neither the executor nor
    /// another thread.
    ///
    /// # Panics
    /// The operation panicked, or the caller is a task of the same world, which must await instead.
    pub(crate) fn wait<T, E>(
        &self,
        operation: impl Future<Output = std::result::Result<T, E>>,
    ) -> std::result::Result<T, E> {
        match self.0.block_on(operation) {
            Ok(result) => result,
            Err(error) => panic!("{error}"),
        }
    }
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
