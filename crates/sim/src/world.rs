//! The world behind the handle: executes what the core decides.

use crate::core::{After, Call, Core, Stats, Step, TaskId};
use crate::event::Event;
use crate::machine::{Machine, Preemption};
use crate::prices::{NoPrice, PriceList, Spent};
use extant_rt::{
    Charge, Class, Nanos, Origin, ReschedPoint, RtError, ShutdownReport, TaskFuture, TaskUsage, TimerId,
    Tracer, WaitsOn, World,
};
use parking_lot::{Mutex, MutexGuard};
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Wake, Waker};

/// Configuration of a virtual world.
#[derive(Clone, Debug)]
pub struct SimConfig {
    /// The machine.
    pub machine: Machine,
    /// Seed of all randomness.
    pub seed: u64,
    /// The world's start, in seconds since 1970.
    pub epoch: i64,
    /// Processor time that a task may use without yielding; more is an error. Reading the clock
    /// forever is an error too. A loop that neither charges work nor reads the clock hangs the
    /// thread that runs the world, and this is not detected.
    pub longest_stretch: Nanos,
    /// Maximum polls at one instant; more is an error.
    pub most_polls_at_once: u64,
}

impl SimConfig {
    /// A configuration with the default limits, 10 s without yielding and ten million polls at one
    /// instant, starting in 2010.
    pub fn new(machine: Machine, seed: u64) -> Self {
        Self {
            machine,
            seed,
            epoch: 1_262_304_000,
            longest_stretch: Nanos::from_secs(10),
            most_polls_at_once: 10_000_000,
        }
    }
}

/// Maximum clock reads in one poll: a task that spins until a later time would never see it come.
const MOST_CLOCK_READS: u64 = 100_000_000;

pub(crate) struct SimWorld {
    config: SimConfig,
    prices: PriceList,
    me: Weak<SimWorld>,
    core: Mutex<Core>,
    tracer: Tracer,
    /// The current time, including the running task's charges in this poll. This and the next
    /// fields are atomics only to be shareable: one thread at a time runs the world.
    clock: AtomicU64,
    /// Time at which the running task has used too much without yielding.
    limit: AtomicU64,
    clock_reads: AtomicU64,
    /// The running task's index and serial; the serial is 0 if no task runs.
    current: AtomicU64,
    processor: AtomicU32,
    running: AtomicBool,
}

struct TaskWaker {
    world: Arc<SimWorld>,
    id: TaskId,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.world.wake(self.id);
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.world.wake(self.id);
    }
}

impl SimWorld {
    pub(crate) fn new(config: SimConfig, tracer: Tracer) -> Arc<Self> {
        let tick = Nanos(1_000_000_000 / u64::from(config.machine.kernel.hz));
        let core = Core::new(config.machine.processors.clone(), tick, tracer.clone());
        let prices = PriceList::new(config.machine.prices.clone());
        Arc::new_cyclic(|me| Self {
            config,
            prices,
            me: me.clone(),
            core: Mutex::new(core),
            tracer,
            clock: AtomicU64::new(0),
            limit: AtomicU64::new(u64::MAX),
            clock_reads: AtomicU64::new(0),
            current: AtomicU64::new(0),
            processor: AtomicU32::new(0),
            running: AtomicBool::new(false),
        })
    }

    fn local_time(&self) -> Nanos {
        Nanos(self.clock.load(Relaxed))
    }

    fn current(&self) -> Option<TaskId> {
        let current = self.current.load(Relaxed);
        let id = TaskId { index: (current >> 32) as u32, serial: current as u32 };
        (id.serial != 0).then_some(id)
    }

    /// Sets the running task, or none, until the next call; its time starts at `now`.
    fn set_current(&self, now: Nanos, id: Option<TaskId>, processor: u32) {
        self.clock.store(now.0, Relaxed);
        self.limit.store(now.saturating_add(self.config.longest_stretch).0, Relaxed);
        self.clock_reads.store(0, Relaxed);
        self.current.store(id.map_or(0, |id| u64::from(id.index) << 32 | u64::from(id.serial)), Relaxed);
        self.processor.store(processor, Relaxed);
    }

    fn wake(&self, id: TaskId) {
        let mut core = self.core.lock();
        let waker = self.current();
        if waker.is_some() && waker != Some(id) && core.can_be_woken(id) {
            let after = self.local_time().saturating_add(self.config.machine.processors.wake);
            self.clock.store(after.0, Relaxed);
            core.stats.wakes += 1;
        }
        // A task that wakes itself is marked at once, since the rest of its stretch runs first
        // anyway.
        let at = if waker == Some(id) { core.now } else { self.local_time() };
        core.wake(id, at, self.waking_processor());
    }

    /// The processor that performs a wake-up now: that of the running task or, without one, the
    /// interrupt processor.
    fn waking_processor(&self) -> u32 {
        match self.current() {
            Some(_) => self.processor.load(Relaxed),
            None => self.config.machine.processors.interrupt_processor,
        }
    }

    /// The world cannot continue. Unwinds out of the task that caused it, which might otherwise
    /// never return.
    #[cold]
    fn fail(&self, error: RtError) {
        let message = error.to_string();
        {
            let mut core = self.core.lock();
            if core.fatal.is_some() {
                // The world is failing already; only destructors run now.
                return;
            }
            core.fatal = Some(error);
        }
        // Skips the panic hook's output: `block_on` returns the error.
        resume_unwind(Box::new(message));
    }

    #[cold]
    fn overflow(&self, span: Nanos) {
        let at = self.local_time();
        let name = self.current_name();
        self.fail(RtError::TimeOverflow { name, at, span });
    }

    #[cold]
    fn too_long(&self, used: Nanos) {
        let limit = self.config.longest_stretch;
        let at = self.core.lock().now;
        let name = self.current_name();
        self.fail(RtError::NeverYields { name, at, used, limit });
    }

    fn current_name(&self) -> String {
        match self.current() {
            Some(id) => self.core.lock().name(id),
            None => "(interrupt)".to_owned(),
        }
    }

    pub(crate) fn call_at(&self, at: Nanos, call: Call) {
        self.core.lock().call_at(at, call);
    }

    pub(crate) fn has_work(&self) -> bool {
        self.core.lock().has_work()
    }

    pub(crate) fn machine(&self) -> &Machine {
        &self.config.machine
    }

    pub(crate) fn stats(&self) -> Stats {
        let core = self.core.lock();
        Stats { busy: core.busy(), ..core.stats.clone() }
    }

    fn run(&self, main: Pin<&mut (dyn Future<Output = ()> + '_)>) -> Result<(), RtError> {
        let mut main = main;
        let mut core = self.core.lock();
        let id = core.add("main", Class::Normal, None, |id| self.waker(id));
        core.main = Some(id);
        core.fatal = None;
        let now = core.now;
        core.wake(id, now, self.waking_processor());
        loop {
            match core.step() {
                Step::Poll { id, processor } => {
                    let now = core.now;
                    if core.polls_at_once > self.config.most_polls_at_once {
                        let (name, polls) = (core.name(id), core.polls_at_once);
                        return Err(RtError::Livelock { name, at: now, polls });
                    }
                    let (future, waker) = core.lend(id);
                    self.set_current(now, Some(id), processor);
                    let (future, after) = MutexGuard::unlocked(&mut core, || {
                        let mut cx = Context::from_waker(&waker);
                        let (future, poll) = match future {
                            Some(mut future) => match future.as_mut().poll(&mut cx) {
                                Poll::Ready(()) => {
                                    drop(future);
                                    (None, Poll::Ready(()))
                                }
                                Poll::Pending => (Some(future), Poll::Pending),
                            },
                            None => (None, main.as_mut().poll(&mut cx)),
                        };
                        (future, if poll.is_ready() { After::End } else { After::Wait })
                    });
                    let end = self.local_time();
                    if let Some(error) = core.fatal.take() {
                        core.polled(id, future, after, now);
                        return Err(error);
                    }
                    core.polled(id, future, after, end);
                }
                Step::Wake { waker, delay } => self.interrupt(&mut core, delay, || waker.wake())?,
                Step::Call(call) => self.interrupt(&mut core, Nanos::ZERO, call)?,
                Step::Done => {
                    self.set_current(core.now, None, 0);
                    return Ok(());
                }
                Step::Stuck => {
                    return Err(RtError::Deadlock { at: core.now, waiters: core.waiters() });
                }
            }
        }
    }

    pub(crate) fn spent(&self) -> Vec<Spent> {
        let mut all = self.prices.spent();
        let Stats { switches, wakes, migrations, .. } = self.core.lock().stats;
        let model = &self.config.machine.processors;
        let of = |key, units: u64, each: Nanos| Spent {
            layer: "processors",
            key,
            interrupt: false,
            units,
            time: Nanos(each.0.saturating_mul(units)),
        };
        all.push(of("context_switch_ns", switches, model.context_switch));
        all.push(of("wake_ns", wakes, model.wake));
        if model.migration > Nanos::ZERO {
            all.push(of("migration_ns", migrations, model.migration));
        }
        all
    }

    /// Runs work that belongs to no task, `delay` from now, and takes its time from the interrupt
    /// processor.
    fn interrupt(
        &self,
        core: &mut MutexGuard<'_, Core>,
        delay: Nanos,
        work: impl FnOnce(),
    ) -> Result<(), RtError> {
        let begin = core.now.saturating_add(delay);
        self.set_current(begin, None, self.config.machine.processors.interrupt_processor);
        // There is no task poll here to catch the unwinding of `fail`.
        let outcome = MutexGuard::unlocked(core, || catch_unwind(AssertUnwindSafe(work)));
        match (core.fatal.take(), outcome) {
            (Some(error), _) => Err(error),
            (None, Err(panic)) => MutexGuard::unlocked(core, || resume_unwind(panic)),
            (None, Ok(())) => {
                core.interrupted(self.local_time() - begin);
                Ok(())
            }
        }
    }

    fn waker(&self, id: TaskId) -> Waker {
        let world = self.me.upgrade().expect("a world in use is still there");
        Waker::from(Arc::new(TaskWaker { world, id }))
    }
}

impl World for SimWorld {
    fn now(&self) -> Nanos {
        let reads = self.clock_reads.load(Relaxed) + 1;
        self.clock_reads.store(reads, Relaxed);
        if reads > MOST_CLOCK_READS && self.current().is_some() {
            let start = self.core.lock().now;
            self.too_long(self.local_time() - start);
        }
        self.local_time()
    }

    fn wall_time(&self) -> (i64, u32) {
        let now = self.local_time().0;
        let seconds = self.config.epoch.saturating_add((now / 1_000_000_000) as i64);
        (seconds, (now % 1_000_000_000) as u32)
    }

    fn seed(&self) -> u64 {
        self.config.seed
    }

    fn spawn(&self, name: &str, class: Class, future: TaskFuture) {
        let mut core = self.core.lock();
        let id = core.add(name, class, Some(future), |id| self.waker(id));
        let at = self.local_time();
        if self.tracer.is_on() {
            self.tracer.record(at, self.origin(), Event::TaskSpawned { spawned: id.serial });
        }
        core.wake(id, at, self.waking_processor());
    }

    fn block_on(&self, main: Pin<&mut (dyn Future<Output = ()> + '_)>) -> Result<(), RtError> {
        if self.running.swap(true, Relaxed) {
            return Err(RtError::Nested);
        }
        struct Ends<'a>(&'a SimWorld);
        impl Drop for Ends<'_> {
            fn drop(&mut self) {
                let now = {
                    let mut core = self.0.core.lock();
                    core.abandon_main();
                    core.now
                };
                self.0.set_current(now, None, 0);
                self.0.running.store(false, Relaxed);
            }
        }
        let _ends = Ends(self);
        self.run(main)
    }

    fn charge(&self, charge: Charge) {
        let clock = self.clock.load(Relaxed);
        if !self.running.load(Relaxed) {
            // Set-up code outside the world takes no virtual time.
            return;
        }
        let span = match self.prices.price(charge, self.current().is_none()) {
            Ok(span) => span,
            Err(NoPrice::TooMuch) => return self.overflow(Nanos::MAX),
            Err(NoPrice::Unlisted { layer, key }) => return self.fail(RtError::Unpriced { layer, key }),
        };
        let Some(after) = clock.checked_add(span.0) else { return self.overflow(span) };
        if after > self.limit.load(Relaxed) {
            let start = self.limit.load(Relaxed).saturating_sub(self.config.longest_stretch.0);
            return self.too_long(Nanos(after.saturating_sub(start)));
        }
        self.clock.store(after, Relaxed);
    }

    fn timer(&self, at: Nanos, waker: &Waker) -> TimerId {
        if at == Nanos::MAX {
            // Sleeping past the end of time saturates to this value.
            self.overflow(at.saturating_sub(self.local_time()));
        }
        let mut core = self.core.lock();
        let task = self.current().filter(|id| core.is_waker_of(*id, waker));
        core.arm(at, task, waker)
    }

    fn cancel_timer(&self, id: TimerId) {
        let held = self.core.lock().disarm(id);
        drop(held);
    }

    fn stint(&self) -> Nanos {
        match self.current() {
            Some(id) => self.core.lock().stint(id, self.local_time()),
            None => self.local_time(),
        }
    }

    fn task_usage(&self) -> TaskUsage {
        match self.current() {
            Some(id) => self.core.lock().usage(id, self.local_time()),
            None => TaskUsage::default(),
        }
    }

    fn should_yield(&self, point: ReschedPoint) -> bool {
        if point == ReschedPoint::MightSleep && self.config.machine.processors.preemption == Preemption::None
        {
            return false;
        }
        let Some(id) = self.current() else { return false };
        // A task that reaches preemption points does not count as never yielding, even if no other
        // task wants the processor: half-way to the limit it goes through the scheduler, which
        // accounts its time.
        let long = Nanos(self.config.longest_stretch.0 / 2);
        self.core.lock().offers(id, self.local_time(), long)
    }

    fn waits_on(&self, what: WaitsOn) {
        if let Some(id) = self.current() {
            self.core.lock().set_waits_on(id, what);
        }
    }

    fn origin(&self) -> Origin {
        Origin { lane: self.processor.load(Relaxed), task: self.current.load(Relaxed) as u32 }
    }

    fn shutdown(&self) -> ShutdownReport {
        let (in_flight, rest) = self.core.lock().clear();
        drop(rest);
        ShutdownReport { in_flight, panicked: Vec::new() }
    }
}
