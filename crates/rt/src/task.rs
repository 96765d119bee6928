//! Spawned tasks and their results.

use crate::error::panic_message;
use crate::handle::{Rt, Which};
use crate::real::PollMay;
use crate::{Class, Counter, RtError, TaskEvent, WaitsOn};
use parking_lot::Mutex;
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

impl Rt {
    /// Starts a task. Its name appears in errors, traces and reports; names need not be unique.
    ///
    /// A panic ends only this task. State it shared with others stays as the task left it: use
    /// locks that do not poison, and keep what they guard consistent across anything that may
    /// panic.
    pub fn spawn<T, F>(&self, name: &str, class: Class, future: F) -> Task<T>
    where
        T: Send + 'static,
        F: Future<Output = T> + Send + 'static,
    {
        let (promise, task) = pair(self, name);
        let number = self.count(Counter::TasksSpawned, 1) as u32;
        // Type erasure: the code that runs a task is compiled once per result type.
        let whole = promise.fulfil(number, Box::pin(future));
        match self.world() {
            // The task keeps its world alive.
            Which::Real(real) => real.spawn(name, self.clone(), whole),
            Which::Virtual(world) => world.spawn(name, class, Box::pin(whole)),
        }
        task
    }

    /// Runs blocking code concurrently with the caller: in the real world on a bounded pool of
    /// threads, in order of arrival; in the virtual world immediately, before this returns.
    pub fn spawn_blocking<T, F>(&self, name: &str, work: F) -> Task<T>
    where
        T: Send + 'static,
        F: FnOnce() -> T + Send + 'static,
    {
        let (promise, task) = pair(self, name);
        self.count(Counter::TasksSpawned, 1);
        match self.world() {
            Which::Real(real) => {
                let rt = self.clone();
                real.spawn_blocking(name, rt.clone(), move || {
                    promise.run(work);
                    rt.ensure_driven();
                });
            }
            Which::Virtual(_) => {
                promise.run(work);
                self.count(Counter::TasksEnded, 1);
            }
        }
        task
    }

    /// Runs a future to completion on the caller's thread. Returns its result, or why there is
    /// none.
    ///
    /// A future that is ready at once costs some tens of nanoseconds: it involves neither the
    /// executor nor another thread. While the future waits, the thread drives I/O (see
    /// [`Driver`](crate::Driver)) or parks. In the virtual world this call makes time pass, and
    /// only the thread that owns the world may make it. In both worlds, tasks and completions use
    /// await instead: a worker that blocks runs no other task, and once all workers block, nothing
    /// proceeds.
    ///
    /// # Errors
    /// [`RtError::Nested`] inside a task, a completion or another `block_on`, without polling the
    /// future. Otherwise the future panicked, or (virtual world only) the world cannot go on:
    /// deadlock, overflow, a task that never yields.
    pub fn block_on<F: Future>(&self, future: F) -> Result<F::Output, RtError> {
        self.wait_for(PollMay::BLOCK, future)
    }

    /// Like [`Self::block_on`], on behalf of many who wait for this thread, such as the clients of
    /// a server: no system call blocks it ([`Rt::may_block`]), except in [`Self::alone`].
    ///
    /// # Errors
    /// As for [`Self::block_on`].
    pub fn attend<F: Future>(&self, future: F) -> Result<F::Output, RtError> {
        self.wait_for(PollMay::Defer, future)
    }

    /// Runs `part` of a poll by [`Self::attend`] while no one else waits for this thread, so system
    /// calls may block it, as in [`Self::block_on`]. Outside of `attend` it just runs `part`.
    pub fn alone<T>(&self, part: impl FnOnce() -> T) -> T {
        match self.world() {
            Which::Real(real) => real.alone(part),
            Which::Virtual(_) => part(),
        }
    }

    fn wait_for<F: Future>(&self, may: PollMay, future: F) -> Result<F::Output, RtError> {
        let mut future = std::pin::pin!(future);
        let mut result = None;
        {
            let whole = poll_fn(|cx| future.as_mut().poll(cx).map(|value| result = Some(value)));
            self.drive(may, std::pin::pin!(whole))?;
        }
        Ok(result.expect("it was driven to its end"))
    }

    /// Like [`Self::wait_for`], but without the future's type, so that it is compiled only once.
    fn drive(
        &self,
        may: PollMay,
        mut future: Pin<&mut (dyn Future<Output = ()> + '_)>,
    ) -> Result<(), RtError> {
        match self.world() {
            Which::Real(real) => {
                // One guard for the whole wait: a guard per poll would cost more and add no
                // information.
                let run = || real.block_on(may, future.as_mut());
                caught(self, "block_on", run)?.ok_or(RtError::Nested)
            }
            Which::Virtual(world) => {
                let mut result = Ok(());
                {
                    let main = poll_fn(|cx| match caught(self, "main", || future.as_mut().poll(cx)) {
                        Ok(polled) => polled,
                        Err(error) => {
                            result = Err(error);
                            Poll::Ready(())
                        }
                    });
                    world.block_on(std::pin::pin!(main))?;
                }
                result
            }
        }
    }
}

/// A spawned task; await it for its result.
///
/// Dropping it detaches the task, which keeps running; only [`Rt::shutdown`] ends tasks early. A
/// task's panic reaches the task that awaits it as [`RtError::Panicked`]. If no task awaits it, the
/// panic is counted, traced, and listed in the shutdown report.
#[must_use = "if this is dropped, the task runs on and its result is lost"]
#[derive(Debug)]
pub struct Task<T> {
    joint: Arc<Joint<T>>,
    rt: Rt,
}

/// Where a task puts its result.
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

/// The task's half. It gives the joint a result even if the task is dropped half way.
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

    /// Runs `work` until it returns or panics.
    pub(crate) fn run(self, work: impl FnOnce() -> T) {
        let result = caught(&self.rt, &self.joint.name, work);
        self.keep(result);
    }

    /// Runs `future` until it completes or panics.
    fn fulfil(self, number: u32, future: Work<T>) -> impl Future<Output = ()> + use<T> {
        // The future is wrapped from the start, since it may be dropped before its first poll.
        let (rt, joint) = (self.rt.clone(), self.joint.clone());
        let caught = Caught { rt, joint, number, is_named: false, future: Some(future) };
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

/// Runs `work`; turns a panic into an error that names the task.
pub(crate) fn caught<T>(rt: &Rt, name: &str, work: impl FnOnce() -> T) -> Result<T, RtError> {
    // A task that panicked never runs again, so what it left unfinished is visible only through
    // state it shares; locks there do not poison (parking_lot), as documented on `Rt::spawn`.
    catch_unwind(AssertUnwindSafe(work)).map_err(|payload| {
        let message = panic_message(&*payload);
        rt.note_panic(name, &message);
        rt.trace(TaskEvent::Panicked {});
        RtError::Panicked { name: name.to_owned(), message }
    })
}

type Work<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// A future whose panic becomes an error.
struct Caught<T> {
    rt: Rt,
    joint: Arc<Joint<T>>,
    number: u32,
    /// Whether the sink has been told the task's name.
    is_named: bool,
    future: Option<Work<T>>,
}

impl<T> Drop for Caught<T> {
    fn drop(&mut self) {
        // The task was dropped half way. If a panic of its destructors left this function, the
        // executor would abort the process.
        if let Some(future) = self.future.take() {
            // No one waits for a result; the panic has been recorded.
            let _ = caught(&self.rt, &self.joint.name, || drop(future));
        }
    }
}

impl<T> Future for Caught<T> {
    type Output = Result<T, RtError>;
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let future = this.future.as_mut().expect("not polled after its end");
        let began = this.rt.poll_begins();
        let polled = caught(&this.rt, &this.joint.name, || future.as_mut().poll(cx));
        if let Some(began) = began {
            if !std::mem::replace(&mut this.is_named, true) {
                this.rt.trace_name("task", this.number, &this.joint.name);
            }
            this.rt.poll_ended(this.number, began);
        }
        let result = match polled {
            Ok(Poll::Pending) => return Poll::Pending,
            Ok(Poll::Ready(value)) => Ok(value),
            Err(error) => Err(error),
        };
        // Drop the future here, inside the task. A panic of its destructors must not leave this
        // function either.
        let future = this.future.take();
        match caught(&this.rt, &this.joint.name, || drop(future)) {
            Ok(()) => Poll::Ready(result),
            Err(error) => Poll::Ready(result.and(Err(error))),
        }
    }
}
