//! Turns panics of a backing into errors of its file.

use crate::{BackingError, BackingErrorKind};
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::task::Poll;

/// A backing panicked; holds the panic message.
#[derive(Debug, thiserror::Error)]
#[error("the file's backing panicked: {0}")]
struct Panicked(String);

/// Runs a call into a backing, and turns a panic into an error. The run or load that made the call
/// still completes.
pub(crate) async fn caught<T>(
    work: impl Future<Output = Result<T, BackingError>>,
) -> Result<T, BackingError> {
    let mut work = pin!(work);
    // After a panic the future is not polled again. The backing must keep the state that it shares
    // with others consistent.
    std::future::poll_fn(|cx| match catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(cx))) {
        Ok(poll) => poll,
        Err(payload) => Poll::Ready(Err(panicked(&*payload))),
    })
    .await
}

/// Like [`caught`], for calls that neither wait nor return a result.
pub(crate) fn shielded(work: impl FnOnce()) {
    // The panic hook has reported the panic, and no task waits for the result.
    drop(catch_unwind(AssertUnwindSafe(work)));
}

fn panicked(payload: &(dyn std::any::Any + Send)) -> BackingError {
    let message = payload
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "no message".to_owned());
    BackingError::new(BackingErrorKind::Panicked, Panicked(message))
}
