//! The handle to a world.

use crate::counters::Counters;
use crate::panics::Panics;
use crate::real::Real;
use crate::trace::Event;
use crate::{
    Counter, Driver, DriverHandle, Nanos, Origin, RealConfig, Reaping, ReschedPoint, Rng, ShutdownReport,
    Sink, TaskEvent, TaskUsage, TimerId, Tracer, WaitsOn, Work, World,
};
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

/// Handle to a world: the real one, or a virtual one.
///
/// Cheap to clone; pass it explicitly and store it where it is needed. In the real world, dropping
/// the last handle stops the threads. Every unfinished task holds a handle, so a task that never
/// ends keeps the world alive until [`Rt::shutdown`], which ends it in an orderly way.
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
    /// A real world: threads and the system clock. Threads start when first needed.
    pub fn real(config: RealConfig) -> Self {
        let counters = Arc::<Counters>::default();
        let panics = Arc::new(Panics::new(counters.clone()));
        let real = Real::new(config, counters.clone(), panics.clone());
        Self::new(Which::Real(real), Tracer::default(), counters, panics)
    }

    /// A world supplied from outside; `tracer` is the switch the world itself reports to.
    pub fn from_world(world: Arc<dyn World>, tracer: Tracer) -> Self {
        let counters = Arc::<Counters>::default();
        let panics = Arc::new(Panics::new(counters.clone()));
        Self::new(Which::Virtual(world), tracer, counters, panics)
    }

    fn new(world: Which, tracer: Tracer, counters: Arc<Counters>, panics: Arc<Panics>) -> Self {
        Self { shared: Arc::new(Shared { world, tracer, counters, panics }) }
    }

    /// Whether this is a virtual world, whose time is not the user's time.
    pub fn is_virtual(&self) -> bool {
        matches!(self.shared.world, Which::Virtual(_))
    }

    /// Time since the world began. In the virtual world this includes what the running task has
    /// been charged so far.
    pub fn now(&self) -> Nanos {
        match &self.shared.world {
            Which::Real(real) => real.now(),
            Which::Virtual(world) => world.now(),
        }
    }

    /// Seconds since 1970, only for time stamps in files: it may jump.
    pub fn wall_clock(&self) -> i64 {
        self.wall_time().0
    }

    /// Like [`Self::wall_clock`], plus the nanoseconds within the current second.
    pub fn wall_time(&self) -> (i64, u32) {
        match &self.shared.world {
            Which::Real(real) => real.wall_time(),
            Which::Virtual(world) => world.wall_time(),
        }
    }

    /// Sleeps until `at`; returns at once if that is past. Dropping the future disarms its timer.
    pub fn sleep_until(&self, at: Nanos) -> Sleep {
        Sleep { rt: self.clone(), at, timer: None }
    }

    /// Sleeps for `span` from now.
    pub fn sleep(&self, span: Nanos) -> Sleep {
        self.sleep_until(self.now().saturating_add(span))
    }

    /// Charges work to the running task. Free in the real world, where the work itself takes the
    /// time.
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

    /// Processor time used since the running task got its processor; plain time in the real world.
    pub(crate) fn stint(&self) -> Nanos {
        match &self.shared.world {
            Which::Real(real) => real.now(),
            Which::Virtual(world) => world.stint(),
        }
    }

    /// Processor time and turns the running task has used since it began. `None` in the real world,
    /// where tasks share threads and this is not counted.
    pub fn task_usage(&self) -> Option<TaskUsage> {
        match &self.shared.world {
            Which::Real(_) => None,
            Which::Virtual(world) => Some(world.task_usage()),
        }
    }

    /// A separate random stream for each label; the same seed and label give the same stream.
    pub fn rng(&self, label: &str) -> Rng {
        Rng::labelled(self.seed(), label)
    }

    /// The seed of all randomness. Print it to make a run repeatable.
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

    /// Tells the sink the name of an object of some kind, such as "device", which events identify
    /// by number.
    pub fn trace_name(&self, kind: &'static str, number: u32, name: &str) {
        self.shared.tracer.name(kind, number, name);
    }

    /// Whether a trace is being recorded; guards work that only a trace needs.
    #[inline]
    pub fn is_tracing(&self) -> bool {
        self.shared.tracer.is_on()
    }

    /// Sends events to `sink` from now on; `None` ends tracing.
    pub fn set_sink(&self, sink: Option<Arc<dyn Sink>>) {
        self.shared.tracer.set_sink(sink);
    }

    /// The processor in the virtual world; a small thread number in the real one. For state that
    /// tasks on different processors should not share.
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

    /// How often something has happened in this world.
    pub fn counter(&self, counter: Counter) -> u64 {
        self.shared.counters.get(counter)
    }

    /// Adds to the counter; returns its previous value.
    pub(crate) fn count(&self, counter: Counter, n: u64) -> u64 {
        self.shared.counters.add(counter, n)
    }

    /// The time, and this thread's processor time, at the start of a task's poll that will be
    /// traced; otherwise `None`.
    pub(crate) fn poll_begins(&self) -> Option<(Nanos, Nanos)> {
        match &self.shared.world {
            Which::Real(real) if self.is_tracing() => Some((real.now(), real.processor_time())),
            _ => None,
        }
    }

    /// Traces a task's poll that began at these times.
    pub(crate) fn poll_ended(&self, task: u32, (now, processor): (Nanos, Nanos)) {
        if let Which::Real(real) = &self.shared.world {
            let (processor, took) = (real.processor_time() - processor, real.now() - now);
            self.trace(TaskEvent::Polled { task, processor, took });
        }
    }

    pub(crate) fn note_panic(&self, name: &str, message: &str) {
        self.shared.panics.note(name, message);
    }

    /// Called by a future about to return `Pending`: says what it waits for, for deadlock reports.
    /// Free in the real world.
    pub fn waits_on(&self, what: impl FnOnce() -> WaitsOn) {
        if let Which::Virtual(world) = &self.shared.world {
            world.waits_on(what());
        }
    }

    /// Lets waiting threads drive this I/O; see [`Driver`]. Virtual worlds do not need drivers and
    /// ignore it.
    pub fn register_driver(&self, driver: Arc<dyn Driver>) -> DriverHandle {
        match &self.shared.world {
            Which::Real(real) => real.register_driver(driver),
            Which::Virtual(_) => DriverHandle::inert(),
        }
    }

    /// Makes sure that a thread reaps the I/O in flight, and starts requests that the current poll
    /// on this thread has deferred ([`Rt::may_defer`]). For code that starts I/O outside `block_on`
    /// and does not wait for it. `block_on` does this itself when it returns.
    pub fn ensure_driven(&self) {
        if let Which::Real(real) = &self.shared.world {
            real.ensure_driven();
        }
    }

    /// Promises that this thread, which is in [`Rt::attend`], reaps soon whatever is in flight, as
    /// long as the value lives: when its poll ends, at the latest. No other thread is woken for
    /// that meanwhile. Without the promise, a worker would reap what this thread waits for, and
    /// wake it, whenever the thread is busy for a moment. Drop it before a system call that may
    /// block the thread, and call [`Rt::ensure_driven`].
    pub fn reaping(&self) -> Reaping {
        match &self.shared.world {
            Which::Real(real) => real.reaping(),
            Which::Virtual(_) => Reaping::inert(),
        }
    }

    /// Notes that I/O was handed to a driver of this world on the calling thread.
    ///
    /// A thread in [`Rt::block_on`] or in a task of this world will drive it later. Any other
    /// thread, which may be polling a future of this world in its own executor, wakes one that
    /// will. For our own threads this costs one thread-local read.
    pub fn io_started(&self) {
        if let Which::Real(real) = &self.shared.world {
            real.io_started();
        }
    }

    /// Whether a driver may defer what is submitted now.
    ///
    /// True while the calling thread is in [`Rt::block_on`] or [`Rt::attend`] and polls its future.
    /// After the poll the thread calls [`Driver::enter_deferred`] or [`Driver::drive`], so that one
    /// system call both starts what the poll has submitted and waits for it. False for tasks, for
    /// completions called by a driver, and for virtual worlds. Meant for small requests that the
    /// caller waits for, since a poll may take long. During the poll, [`Rt::ensure_driven`] starts
    /// them.
    pub fn may_defer(&self) -> bool {
        match &self.shared.world {
            Which::Real(real) => real.may_defer(),
            Which::Virtual(_) => false,
        }
    }

    /// Ends the world: waits up to `grace` until all tasks have ended, drops the others, stops the
    /// threads, and reports. Tasks may spawn others during the grace period. Later spawns are
    /// dropped at once; later sleeps still end. Call it from ordinary threads only.
    pub fn shutdown(&self, grace: Nanos) -> ShutdownReport {
        let mut report = match &self.shared.world {
            Which::Real(real) => real.shutdown(grace),
            Which::Virtual(world) => world.shutdown(),
        };
        report.panicked.extend(self.shared.panics.noted());
        report
    }

    /// Whether a system call may block the calling thread.
    ///
    /// True while the thread is in [`Rt::block_on`] and polls its future, or is in [`Rt::alone`],
    /// since it would wait for the answer anyway. False for workers, completions and virtual
    /// worlds. I/O that the kernel must hand to one of its own threads, such as a flush, is faster
    /// if the calling thread does it itself: it saves two wakes.
    ///
    /// A caller that blocks calls [`Rt::ensure_driven`] first, since it reaps nothing meanwhile.
    pub fn may_block(&self) -> bool {
        match &self.shared.world {
            Which::Real(real) => real.may_block(),
            Which::Virtual(_) => false,
        }
    }

    /// Like [`Rt::may_block`], for a short call such as a small write.
    ///
    /// True only for the first few calls in each poll, so that a future that starts many requests
    /// at once has them in flight together.
    pub fn may_block_once(&self) -> bool {
        match &self.shared.world {
            Which::Real(real) => real.may_block_once(),
            Which::Virtual(_) => false,
        }
    }

    /// Whether the calling thread may wait for anything other than a future of this world.
    ///
    /// True for ordinary threads outside [`Rt::block_on`]. False for workers and completions of any
    /// real world, and for virtual worlds.
    pub fn may_wait(&self) -> bool {
        match &self.shared.world {
            Which::Real(real) => real.may_wait(),
            Which::Virtual(_) => false,
        }
    }

    /// Calls `waker` at `at`, or at once if that is past, unless the alarm is dropped first.
    ///
    /// In the real world the timers' thread calls it, and a drop may return while the waker is
    /// being called; in the virtual world a timer interrupt calls it. The waker may wake and spawn,
    /// but must not take a lock that is held where alarms are armed or dropped. A shutdown does not
    /// wait for an alarm: an armed one rings early in the real world, and not at all in the virtual
    /// one. Until it rings or is dropped, an alarm keeps alive what the waker holds.
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

/// A sleeping task's timer; see [`Rt::sleep_until`].
#[must_use = "a sleep does nothing unless it is awaited"]
#[derive(Debug)]
pub struct Sleep {
    rt: Rt,
    at: Nanos,
    timer: Option<Alarm>,
}

/// An armed timer; dropping it disarms it. See [`Rt::alarm`].
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
        // Re-armed at every poll, because the waker may have changed. Polls before the alarm are
        // rare.
        self.timer = None;
        self.timer = Some(self.rt.alarm(self.at, cx.waker()));
        let at = self.at;
        self.rt.waits_on(|| WaitsOn::Timer(at));
        Poll::Pending
    }
}
