//! The real world: threads and the system's clock.
#![allow(clippy::disallowed_methods, clippy::disallowed_types)] // this is the one place that may

use crate::Nanos;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// How the real world is set up.
#[derive(Clone, Debug, Default)]
pub struct RealConfig {}

/// Handle to a world.
#[derive(Clone, Debug)]
pub struct Rt {
    origin: Instant,
}

/// Why a task or the world did not give a result.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RtError {
    /// The task panicked.
    #[error("task {name} panicked: {message}")]
    Panicked {
        /// The name given at spawn.
        name: String,
        /// The panic's message.
        message: String,
    },
}

/// A spawned task; await it for its result. Dropping it detaches the task.
pub struct Task<T>(std::thread::JoinHandle<T>);

impl Rt {
    /// A real world.
    pub fn real(_config: RealConfig) -> Self {
        Self { origin: Instant::now() }
    }

    /// Time since the world began.
    pub fn now(&self) -> Nanos {
        Nanos(self.origin.elapsed().as_nanos() as u64)
    }

    /// Seconds since 1970, for time stamps only.
    pub fn wall_clock(&self) -> i64 {
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs() as i64)
    }

    /// Runs a future to its end on the caller's thread.
    pub fn block_on<F: Future>(&self, future: F) -> Result<F::Output, RtError> {
        struct Unpark(Thread);
        impl Wake for Unpark {
            fn wake(self: Arc<Self>) {
                self.0.unpark();
            }
        }
        let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
        let mut cx = Context::from_waker(&waker);
        let mut future = std::pin::pin!(future);
        loop {
            match future.as_mut().poll(&mut cx) {
                Poll::Ready(out) => return Ok(out),
                Poll::Pending => std::thread::park(),
            }
        }
    }

    /// Runs blocking code beside the caller.
    pub fn spawn_blocking<T, F>(&self, _name: &str, work: F) -> Task<T>
    where
        T: Send + 'static,
        F: FnOnce() -> T + Send + 'static,
    {
        Task(std::thread::spawn(work))
    }
}

impl<T> Future for Task<T> {
    type Output = Result<T, RtError>;
    fn poll(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<Self::Output> {
        Poll::Pending
    }
}
