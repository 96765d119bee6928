//! A spawned task's result.

use crate::error::panic_message;
use crate::{Rt, RtError, TaskEvent, WaitsOn};
use parking_lot::Mutex;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

/// A spawned task; await it for its result.
///
/// Dropping it detaches the task, which runs on; only [`Rt::shutdown`] ends tasks early. A task's panic reaches whoever
/// awaits it as [`RtError::Panicked`]; where nobody does, it is counted, traced and in the report of the shutdown.
#[must_use = "a dropped task runs on, and nobody hears how it ends"]
#[derive(Debug)]
pub struct Task<T> {
    joint: Arc<Joint<T>>,
    rt: Rt,
}

/// Where a task leaves its result.
#[derive(Debug)]
struct Joint<T> {
    name: Box<str>,
    slot: Mutex<Slot<T>>,
}

#[derive(Debug)]
struct Slot<T> {
    result: Option<Result<T, RtError>>,
    waker: Option<Waker>,
}

impl<T> Task<T> {
    /// The name given at spawn.
    pub fn name(&self) -> &str {
        &self.joint.name
    }

    /// Whether the task has ended.
    pub fn is_finished(&self) -> bool {
        self.joint.slot.lock().result.is_some()
    }
}

impl<T> Future for Task<T> {
    type Output = Result<T, RtError>;
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut slot = self.joint.slot.lock();
        if let Some(result) = slot.result.take() {
            return Poll::Ready(result);
        }
        match &mut slot.waker {
            Some(waker) => waker.clone_from(cx.waker()),
            none => *none = Some(cx.waker().clone()),
        }
        drop(slot);
        self.rt.waits_on(|| WaitsOn::Task(self.joint.name.to_string()));
        Poll::Pending
    }
}

/// The task's own half: fulfils the joint, even when it is dropped half way.
pub(crate) struct Promise<T> {
    joint: Arc<Joint<T>>,
    rt: Rt,
    kept: bool,
}

pub(crate) fn pair<T>(rt: &Rt, name: &str) -> (Promise<T>, Task<T>) {
    let joint = Arc::new(Joint { name: name.into(), slot: Mutex::new(Slot { result: None, waker: None }) });
    (Promise { joint: joint.clone(), rt: rt.clone(), kept: false }, Task { joint, rt: rt.clone() })
}

impl<T> Promise<T> {
    pub(crate) fn keep(mut self, result: Result<T, RtError>) {
        self.kept = true;
        self.settle(result);
    }

    fn settle(&self, result: Result<T, RtError>) {
        let waker = {
            let mut slot = self.joint.slot.lock();
            slot.result = Some(result);
            slot.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Runs `work` to its end, or to its panic.
    pub(crate) fn run(self, work: impl FnOnce() -> T) {
        let result = caught(&self.rt, &self.joint.name, work);
        self.keep(result);
    }

    /// Runs `future` to its end, or to its panic.
    pub(crate) fn fulfil<F: Future<Output = T>>(self, future: F) -> impl Future<Output = ()> + use<T, F> {
        // Around it from the start: it may be dropped before it is ever polled.
        let (rt, joint) = (self.rt.clone(), self.joint.clone());
        let caught = Caught { rt, joint, future: Some(Box::pin(future)) };
        async move {
            let result = caught.await;
            self.keep(result);
        }
    }
}

impl<T> Drop for Promise<T> {
    fn drop(&mut self) {
        if !self.kept {
            self.settle(Err(RtError::ShutDown { name: self.joint.name.to_string() }));
        }
    }
}

/// Runs `work`; a panic becomes an error that names the task.
pub(crate) fn caught<T>(rt: &Rt, name: &str, work: impl FnOnce() -> T) -> Result<T, RtError> {
    // A task that panicked is never run again, so nobody sees what it left half done except through what it shares
    // with others; locks there do not poison (parking_lot), as documented on `Rt::spawn`.
    catch_unwind(AssertUnwindSafe(work)).map_err(|payload| {
        let message = panic_message(&*payload);
        rt.note_panic(name, &message);
        rt.trace(TaskEvent::Panicked {});
        RtError::Panicked { name: name.to_owned(), message }
    })
}

/// A future whose panic becomes an error.
struct Caught<F: Future> {
    rt: Rt,
    joint: Arc<Joint<F::Output>>,
    future: Option<Pin<Box<F>>>,
}

impl<F: Future> Drop for Caught<F> {
    fn drop(&mut self) {
        // A task that is dropped half way: the executor would end the process if its destructors panicked past us.
        if let Some(future) = self.future.take() {
            // Nobody waits for a result; the panic has been noted.
            let _ = caught(&self.rt, &self.joint.name, || drop(future));
        }
    }
}

impl<F: Future> Future for Caught<F> {
    type Output = Result<F::Output, RtError>;
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let future = this.future.as_mut().expect("not polled after its end");
        let result = match caught(&this.rt, &this.joint.name, || future.as_mut().poll(cx)) {
            Ok(Poll::Pending) => return Poll::Pending,
            Ok(Poll::Ready(value)) => Ok(value),
            Err(error) => Err(error),
        };
        // Dropped here, inside the task: its destructors must not panic past us either.
        let future = this.future.take();
        match caught(&this.rt, &this.joint.name, || drop(future)) {
            Ok(()) => Poll::Ready(result),
            Err(error) => Poll::Ready(result.and(Err(error))),
        }
    }
}
