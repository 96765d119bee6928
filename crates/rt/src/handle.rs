//! The handle itself.

use crate::counters::Counters;
use crate::panics::Panics;
use crate::real::Real;
use crate::trace::Event;
use crate::{
    Counter, Driver, DriverHandle, Nanos, Origin, RealConfig, ReschedPoint, Rng, ShutdownReport, Sink,
    TaskEvent, TaskUsage, TimerId, Tracer, WaitsOn, Work, World,
};
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

/// Handle to a world: the real one, or a virtual one.
///
/// Cheap to clone; pass it explicitly and store it where it is needed. In the real world the last handle's drop stops
/// the threads; every task that has not ended has a handle, so one that never ends keeps the world alive until
/// [`Rt::shutdown`], which ends it in order.
#[derive(Clone)]
pub struct Rt {
    shared: Arc<Shared>,
}

struct Shared {
    world: Which,
    tracer: Tracer,
    counters: Arc<Counters>,
    panics: Arc<Panics>,
}

pub(crate) enum Which {
    Real(Real),
    Virtual(Arc<dyn World>),
}

impl Rt {
    /// A real world: threads and the system's clock. Threads start when they are first needed.
    pub fn real(config: RealConfig) -> Self {
        let counters = Arc::<Counters>::default();
        let panics = Arc::new(Panics::new(counters.clone()));
        let real = Real::new(config, counters.clone(), panics.clone());
        Self::new(Which::Real(real), Tracer::default(), counters, panics)
    }

    /// A world supplied from outside; `tracer` is the switch that the world itself reports to.
    pub fn from_world(world: Arc<dyn World>, tracer: Tracer) -> Self {
        let counters = Arc::<Counters>::default();
        let panics = Arc::new(Panics::new(counters.clone()));
        Self::new(Which::Virtual(world), tracer, counters, panics)
    }

    fn new(world: Which, tracer: Tracer, counters: Arc<Counters>, panics: Arc<Panics>) -> Self {
        Self { shared: Arc::new(Shared { world, tracer, counters, panics }) }
    }

    /// Whether this is a virtual world: time there is not the user's time.
    pub fn is_virtual(&self) -> bool {
        matches!(self.shared.world, Which::Virtual(_))
    }

    /// Time since the world began. In the virtual world this includes what the running task was charged so far.
    pub fn now(&self) -> Nanos {
        match &self.shared.world {
            Which::Real(real) => real.now(),
            Which::Virtual(world) => world.now(),
        }
    }

    /// Seconds since 1970, for time stamps in files only: it may jump.
    pub fn wall_clock(&self) -> i64 {
        self.wall_time().0
    }

    /// As [`Self::wall_clock`], with the nanoseconds of the second that runs.
    pub fn wall_time(&self) -> (i64, u32) {
        match &self.shared.world {
            Which::Real(real) => real.wall_time(),
            Which::Virtual(world) => world.wall_time(),
        }
    }

    /// Sleeps until `at`; returns at once where that is past. Dropping the future disarms its timer.
    pub fn sleep_until(&self, at: Nanos) -> Sleep {
        Sleep { rt: self.clone(), at, timer: None }
    }

    /// Sleeps for `span` from now.
    pub fn sleep(&self, span: Nanos) -> Sleep {
        self.sleep_until(self.now().saturating_add(span))
    }

    /// Accounts for work done by the running task. Free in the real world, where the work itself takes the time.
    #[inline]
    pub fn charge(&self, work: impl Work) {
        if let Which::Virtual(world) = &self.shared.world {
            world.charge(work.charge());
        }
    }

    pub(crate) fn world(&self) -> &Which {
        &self.shared.world
    }

    pub(crate) fn should_yield(&self, point: ReschedPoint) -> bool {
        match &self.shared.world {
            Which::Real(_) => false,
            Which::Virtual(world) => world.should_yield(point),
        }
    }

    /// Processor time used since the running task was given its processor; plain time in the real world.
    pub(crate) fn stint(&self) -> Nanos {
        match &self.shared.world {
            Which::Real(real) => real.now(),
            Which::Virtual(world) => world.stint(),
        }
    }

    /// Processor time and turns that the running task has used since it began; `None` in the real world, where tasks share
    /// threads and nobody counts.
    pub fn task_usage(&self) -> Option<TaskUsage> {
        match &self.shared.world {
            Which::Real(_) => None,
            Which::Virtual(world) => Some(world.task_usage()),
        }
    }

    /// A stream of randomness of its own for each label; the same seed and label give the same stream.
    pub fn rng(&self, label: &str) -> Rng {
        Rng::labelled(self.seed(), label)
    }

    /// The seed of all randomness; printing it makes a run repeatable.
    pub fn seed(&self) -> u64 {
        match &self.shared.world {
            Which::Real(real) => real.seed(),
            Which::Virtual(world) => world.seed(),
        }
    }

    /// Reports an event to the sink.
    #[inline]
    pub fn trace(&self, event: impl Event) {
        if self.shared.tracer.is_on() {
            self.trace_slow(event);
        }
    }

    #[cold]
    fn trace_slow(&self, event: impl Event) {
        self.shared.tracer.record(self.now(), self.origin(), event);
    }

    /// Tells the sink the name of an object of a kind, such as "device", that events show by its number.
    pub fn trace_name(&self, kind: &'static str, number: u32, name: &str) {
        self.shared.tracer.name(kind, number, name);
    }

    /// Whether anybody traces: guards work that only a trace needs.
    #[inline]
    pub fn is_tracing(&self) -> bool {
        self.shared.tracer.is_on()
    }

    /// Sends events to `sink` from now on; `None` ends tracing.
    pub fn set_sink(&self, sink: Option<Arc<dyn Sink>>) {
        self.shared.tracer.set_sink(sink);
    }

    /// The processor in the virtual world, a small number for the thread in the real one: for state that tasks on different
    /// processors should not share.
    #[inline]
    pub fn lane(&self) -> u32 {
        self.origin().lane
    }

    fn origin(&self) -> Origin {
        match &self.shared.world {
            Which::Real(real) => real.origin(),
            Which::Virtual(world) => world.origin(),
        }
    }

    /// How often something happened in this world.
    pub fn counter(&self, counter: Counter) -> u64 {
        self.shared.counters.get(counter)
    }

    /// Gives what the counter was before.
    pub(crate) fn count(&self, counter: Counter, n: u64) -> u64 {
        self.shared.counters.add(counter, n)
    }

    /// Time, and processor time of this thread, where a poll of a task that begins now is to be traced.
    pub(crate) fn poll_begins(&self) -> Option<(Nanos, Nanos)> {
        match &self.shared.world {
            Which::Real(real) if self.is_tracing() => Some((real.now(), real.processor_time())),
            _ => None,
        }
    }

    /// Traces a poll of a task that began with these times.
    pub(crate) fn poll_ended(&self, task: u32, (now, processor): (Nanos, Nanos)) {
        if let Which::Real(real) = &self.shared.world {
            let (processor, took) = (real.processor_time() - processor, real.now() - now);
            self.trace(TaskEvent::Polled { task, processor, took });
        }
    }

    pub(crate) fn note_panic(&self, name: &str, message: &str) {
        self.shared.panics.note(name, message);
    }

    /// A future about to return `Pending` says what it waits for, for the report of a deadlock. Free in the real world.
    pub fn waits_on(&self, what: impl FnOnce() -> WaitsOn) {
        if let Which::Virtual(world) = &self.shared.world {
            world.waits_on(what());
        }
    }

    /// Lets threads that wait drive this I/O; see [`Driver`]. Virtual worlds have no use for a driver and ignore it.
    pub fn register_driver(&self, driver: Arc<dyn Driver>) -> DriverHandle {
        match &self.shared.world {
            Which::Real(real) => real.register_driver(driver),
            Which::Virtual(_) => DriverHandle::inert(),
        }
    }

    /// Makes sure that a thread reaps the I/O in flight, and starts the requests that the poll on this thread has kept back
    /// ([`Rt::may_defer`]). For code that starts I/O outside of `block_on` and does not wait for it; `block_on` itself does this
    /// when it returns.
    pub fn ensure_driven(&self) {
        if let Which::Real(real) = &self.shared.world {
            real.ensure_driven();
        }
    }

    /// I/O was handed to a driver of this world on the calling thread. A thread in [`Rt::block_on`] or in a task of this world
    /// comes back to drive it; any other, which may poll a future of this world in an executor of its own, wakes one that does.
    /// Costs a look at a thread-local where the thread is one of ours.
    pub fn io_started(&self) {
        if let Which::Real(real) = &self.shared.world {
            real.io_started();
        }
    }

    /// Whether a driver may keep back what is submitted now: the calling thread is in [`Rt::block_on`] and polls its future, and
    /// calls [`Driver::enter_deferred`] or [`Driver::drive`] when the poll has ended. One system call then starts what the poll has
    /// submitted, and waits for it. False for tasks, for completions that a driver calls, and for virtual worlds. For small requests
    /// that are waited for: a poll may be long. Inside one, [`Rt::ensure_driven`] starts them.
    pub fn may_defer(&self) -> bool {
        match &self.shared.world {
            Which::Real(real) => real.may_defer(),
            Which::Virtual(_) => false,
        }
    }

    /// Ends the world: waits up to `grace` until all tasks have ended, drops those that have not, stops the threads, and
    /// reports. Tasks may still spawn others meanwhile. Later spawns are dropped at once; later sleeps still end. From
    /// ordinary threads only.
    pub fn shutdown(&self, grace: Nanos) -> ShutdownReport {
        let mut report = match &self.shared.world {
            Which::Real(real) => real.shutdown(grace),
            Which::Virtual(world) => world.shutdown(),
        };
        report.panicked.extend(self.shared.panics.noted());
        report
    }

    /// Whether a system call may block the calling thread: it is in [`Rt::block_on`] and polls its future, so that it would
    /// wait for the answer in any case. False for workers, completions and virtual worlds. I/O that has to leave the thread
    /// for one of the kernel's, as a flush does, is done sooner by the thread itself: two wakes fewer.
    ///
    /// A caller that blocks calls [`Rt::ensure_driven`] first, since it does not reap meanwhile.
    pub fn may_block(&self) -> bool {
        match &self.shared.world {
            Which::Real(real) => real.may_block(),
            Which::Virtual(_) => false,
        }
    }

    /// As [`Rt::may_block`], for a short call such as a small write; true only for the first few of each poll, so that a
    /// future which starts much at a time has it in flight together.
    pub fn may_block_once(&self) -> bool {
        match &self.shared.world {
            Which::Real(real) => real.may_block_once(),
            Which::Virtual(_) => false,
        }
    }

    /// Calls `waker` at `at`, or at once where that is past, unless the alarm is dropped before: on the timers' thread in the real
    /// world, where a drop may return while the waker is being called, and in a timer's interrupt in the virtual one. The waker may
    /// wake and spawn, and may take no lock that is held where alarms are armed or dropped. A shutdown does not wait for an alarm:
    /// one that is armed then rings early in the real world, and not at all in the virtual one. Until it rings or is dropped, an
    /// alarm keeps what the waker holds.
    pub fn alarm(&self, at: Nanos, waker: &Waker) -> Alarm {
        self.count(Counter::TimersArmed, 1);
        let id = match &self.shared.world {
            Which::Real(real) => real.timer(at, waker),
            Which::Virtual(world) => world.timer(at, waker),
        };
        Alarm { rt: self.clone(), id }
    }
}

impl fmt::Debug for Rt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Rt({})", if self.is_virtual() { "virtual" } else { "real" })
    }
}

/// A sleeping task's alarm; see [`Rt::sleep_until`].
#[must_use = "nobody sleeps who does not await"]
#[derive(Debug)]
pub struct Sleep {
    rt: Rt,
    at: Nanos,
    timer: Option<Alarm>,
}

/// A timer that was armed; dropping it disarms it. See [`Rt::alarm`].
#[must_use = "an alarm that is dropped does not ring"]
#[derive(Debug)]
pub struct Alarm {
    rt: Rt,
    id: TimerId,
}

impl Drop for Alarm {
    fn drop(&mut self) {
        match &self.rt.shared.world {
            Which::Real(real) => real.cancel_timer(self.id),
            Which::Virtual(world) => world.cancel_timer(self.id),
        }
    }
}

impl Future for Sleep {
    type Output = ();
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.rt.now() >= self.at {
            return Poll::Ready(());
        }
        // Armed anew at every poll: the waker may have changed. Polls before the alarm are rare.
        self.timer = None;
        self.timer = Some(self.rt.alarm(self.at, cx.waker()));
        let at = self.at;
        self.rt.waits_on(|| WaitsOn::Timer(at));
        Poll::Pending
    }
}
