//! The real world: threads and the system clock.
#![allow(clippy::disallowed_methods, clippy::disallowed_types)] // this is the one place that may

mod blocking;
mod driver;
mod park;
mod timer;

pub use driver::{Driver, DriverHandle, Reaping, Wait};

use crate::counters::Counters;
use crate::panics::Panics;
use crate::{Counter, Nanos, Origin, Rng, ShutdownReport, TimerId};
use async_executor::Executor;
use blocking::Pool;
use driver::{Crew, Role};
pub(crate) use park::PollMay;
use park::{Berth, Parker};
use parking_lot::{Condvar, Mutex, RwLock};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::future::Future;
use std::hash::{BuildHasher, RandomState};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::task::{Context, Poll, Waker};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use timer::Timers;

/// Settings of the real world.
#[derive(Clone, Debug, Default)]
pub struct RealConfig {
    /// Threads that run tasks; default: one per processor.
    pub worker_threads: Option<usize>,
    /// Maximum number of threads for blocking work; default: four per processor.
    pub blocking_threads: Option<usize>,
    /// Seed of [`rng`](crate::Rt::rng); default: from the system's random source.
    pub seed: Option<u64>,
}

/// The real world's state. What the threads need is shared, so that dropping this can stop them.
pub(crate) struct Real {
    origin: Instant,
    seed: u64,
    worker_threads: usize,
    engine: Arc<Engine>,
    timers: Arc<Timers>,
    pool: Arc<Pool>,
    workers: Mutex<Vec<JoinHandle<()>>>,
    started: AtomicBool,
    live: Arc<Live>,
    counters: Arc<Counters>,
}

/// The executor, and the state shared by its workers.
struct Engine {
    /// Taken when the world ends. Dropping the executor drops the tasks, which hold handles to the
    /// world.
    executor: RwLock<Option<Arc<Executor<'static>>>>,
    crew: Arc<Crew>,
    stop: AtomicBool,
    parkers: Mutex<Vec<Arc<Parker>>>,
    running: Mutex<usize>,
    left: Condvar,
}

/// The tasks that have not ended.
#[derive(Default)]
struct Live {
    state: Mutex<LiveState>,
    ended: Condvar,
}

#[derive(Default)]
struct LiveState {
    names: BTreeMap<u64, Box<str>>,
    next: u64,
    closed: bool,
}

/// A task's entry among the live tasks, and a value that lives as long.
struct Birth<K> {
    live: Arc<Live>,
    id: u64,
    counters: Arc<Counters>,
    _keep: K,
}

impl<K> Drop for Birth<K> {
    fn drop(&mut self) {
        self.counters.add(Counter::TasksEnded, 1);
        let mut state = self.live.state.lock();
        state.names.remove(&self.id);
        if state.names.is_empty() {
            self.live.ended.notify_all();
        }
    }
}

impl Real {
    pub(crate) fn new(config: RealConfig, counters: Arc<Counters>, panics: Arc<Panics>) -> Self {
        let origin = Instant::now();
        let timers = Arc::new(Timers::new(origin));
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            origin,
            seed: config.seed.unwrap_or_else(|| Rng::new(RandomState::new().hash_one(0)).next_u64()),
            worker_threads: config.worker_threads.unwrap_or(processors).max(1),
            engine: Arc::new(Engine {
                executor: RwLock::new(Some(Arc::new(Executor::new()))),
                crew: Arc::new(Crew::new(panics, &timers)),
                stop: AtomicBool::new(false),
                parkers: Mutex::default(),
                running: Mutex::default(),
                left: Condvar::new(),
            }),
            timers,
            pool: Arc::new(Pool::new(config.blocking_threads.unwrap_or(4 * processors))),
            workers: Mutex::default(),
            started: AtomicBool::new(false),
            live: Arc::default(),
            counters,
        }
    }

    pub(crate) fn now(&self) -> Nanos {
        Nanos(self.origin.elapsed().as_nanos() as u64)
    }

    /// Processor time used by the calling thread.
    pub(crate) fn processor_time(&self) -> Nanos {
        let used = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        Nanos(used.tv_sec as u64 * 1_000_000_000 + used.tv_nsec as u64)
    }

    pub(crate) fn wall_time(&self) -> (i64, u32) {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        since.map_or((0, 0), |since| (since.as_secs() as i64, since.subsec_nanos()))
    }

    pub(crate) fn seed(&self) -> u64 {
        self.seed
    }

    /// Threads are numbered when they first trace something.
    pub(crate) fn origin(&self) -> Origin {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        thread_local! {
            static LANE: Cell<u32> = Cell::new(NEXT.fetch_add(1, Ordering::Relaxed));
        }
        Origin { lane: LANE.try_with(Cell::get).unwrap_or(u32::MAX), task: 0 }
    }

    fn birth<K>(&self, name: &str, keep: K) -> Option<Birth<K>> {
        let mut state = self.live.state.lock();
        if state.closed {
            return None;
        }
        let id = state.next;
        state.next += 1;
        state.names.insert(id, name.into());
        Some(Birth { live: self.live.clone(), id, counters: self.counters.clone(), _keep: keep })
    }

    pub(crate) fn spawn<K: Send + 'static>(
        &self,
        name: &str,
        keep: K,
        future: impl Future<Output = ()> + Send + 'static,
    ) {
        let Some(birth) = self.birth(name, keep) else { return };
        if !self.started.load(Ordering::Acquire) {
            self.start_workers();
        }
        let whole = async move {
            future.await;
            drop(birth);
        };
        if let Some(executor) = &*self.engine.executor.read() {
            executor.spawn(whole).detach();
        }
    }

    pub(crate) fn spawn_blocking<K: Send + 'static>(
        &self,
        name: &str,
        keep: K,
        work: impl FnOnce() + Send + 'static,
    ) {
        let Some(birth) = self.birth(name, keep) else { return };
        self.pool.submit(Box::new(move || {
            work();
            drop(birth);
        }));
    }

    fn start_workers(&self) {
        let mut workers = self.workers.lock();
        if self.started.swap(true, Ordering::AcqRel) {
            return;
        }
        for n in 0..self.worker_threads {
            let engine = self.engine.clone();
            *engine.running.lock() += 1;
            let thread = std::thread::Builder::new().name(format!("extant-{n}")).spawn(move || engine.run());
            workers.push(thread.expect("the process may start another thread"));
        }
    }

    /// `None` if this thread must not wait, because it runs a task or a completion.
    pub(crate) fn block_on(
        &self,
        may: PollMay,
        mut future: Pin<&mut (dyn Future<Output = ()> + '_)>,
    ) -> Option<()> {
        Berth::lend(|berth| {
            let crew = &self.engine.crew;
            let mut cx = Context::from_waker(&berth.waker);
            let _leaving = Leaving(self);
            park::with_crew(crew.address(), || {
                loop {
                    let polled = park::polling(may, || future.as_mut().poll(&mut cx));
                    if polled.is_ready() {
                        return;
                    }
                    if berth.parker.take_notice() {
                        crew.enter_deferred();
                    } else if crew.wait(&berth.parker, Role::Caller) {
                        self.counters.add(Counter::DriverSittings, 1);
                    }
                }
            })
        })
    }

    pub(crate) fn timer(&self, at: Nanos, waker: &Waker) -> TimerId {
        self.timers.arm(at, waker)
    }

    pub(crate) fn cancel_timer(&self, id: TimerId) {
        self.timers.cancel(id);
    }

    pub(crate) fn register_driver(&self, driver: Arc<dyn Driver>) -> DriverHandle {
        let handle = self.engine.crew.register(driver);
        self.engine.notify_workers();
        handle
    }

    pub(crate) fn reaping(&self) -> Reaping {
        Reaping::of(&self.engine.crew)
    }

    pub(crate) fn alone<T>(&self, part: impl FnOnce() -> T) -> T {
        if park::attends(self.engine.crew.address()) { park::polling(PollMay::BLOCK, part) } else { part() }
    }

    pub(crate) fn may_block(&self) -> bool {
        park::may_block()
    }

    pub(crate) fn may_block_once(&self) -> bool {
        park::may_block_once()
    }

    pub(crate) fn may_wait(&self) -> bool {
        park::crew_of_thread() == 0
    }

    /// Called when the running task lets others go first, including those whose I/O has completed.
    pub(crate) fn before_yield(&self) {
        self.engine.crew.reap_if_unattended();
    }

    pub(crate) fn ensure_driven(&self) {
        if park::crew_of_thread() == self.engine.crew.address() {
            self.engine.crew.enter_deferred();
        }
        if !self.engine.crew.ensure_driven() && !self.started.load(Ordering::Acquire) {
            // Without workers, nothing is reaped until some thread waits. Busy workers reap when
            // they have run their tasks.
            self.start_workers();
        }
    }

    pub(crate) fn io_started(&self) {
        if park::crew_of_thread() != self.engine.crew.address() {
            self.ensure_driven();
        }
    }

    pub(crate) fn may_defer(&self) -> bool {
        park::defer(self.engine.crew.address())
    }

    pub(crate) fn shutdown(&self, grace: Nanos) -> ShutdownReport {
        let deadline = Instant::now().checked_add(Duration::from_nanos(grace.0));
        let in_flight = {
            let mut state = self.live.state.lock();
            while !state.names.is_empty() {
                let timed_out = match deadline {
                    Some(deadline) => self.live.ended.wait_until(&mut state, deadline).timed_out(),
                    None => {
                        self.live.ended.wait(&mut state);
                        false
                    }
                };
                if timed_out {
                    break;
                }
            }
            state.closed = true;
            state.names.values().map(ToString::to_string).collect::<Vec<_>>()
        };
        self.engine.stop();
        // A worker inside a task that never yields cannot be stopped; it is abandoned after the
        // grace period.
        if self.engine.wait_until_left(deadline) {
            self.workers.lock().drain(..).for_each(|thread| join(Some(thread)));
        }
        let executor = self.engine.executor.write().take();
        drop(executor);
        // The remaining timers belong to threads in `block_on`, and to alarms.
        self.timers.stop();
        // With work in flight, a thread of the pool may block forever.
        self.pool.stop(in_flight.is_empty());
        ShutdownReport { in_flight, panicked: Vec::new() }
    }
}

/// A thread that leaves [`Real::block_on`], perhaps by a panic. Another thread must then drive the
/// I/O that its future started.
struct Leaving<'a>(&'a Real);

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        self.0.engine.crew.enter_deferred();
        self.0.ensure_driven();
    }
}

impl Drop for Real {
    fn drop(&mut self) {
        self.engine.stop();
        self.timers.stop();
        self.pool.stop(false);
    }
}

impl Engine {
    fn run(&self) {
        let executor = self.executor.read().clone();
        if let Some(executor) = executor {
            let run =
                |berth: &Berth| park::with_crew(self.crew.address(), || self.run_tasks(berth, &executor));
            let ran = Berth::lend(run);
            ran.expect("a thread of its own");
        }
        *self.running.lock() -= 1;
        self.left.notify_all();
    }

    fn run_tasks(&self, berth: &Berth, executor: &Executor<'static>) {
        self.parkers.lock().push(berth.parker.clone());
        let stopped = std::future::poll_fn(|_| match self.stop.load(Ordering::SeqCst) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        });
        let mut running = std::pin::pin!(executor.run(stopped));
        let mut cx = Context::from_waker(&berth.waker);
        while running.as_mut().poll(&mut cx).is_pending() {
            if berth.parker.take_notice() {
                // The executor returns here every 200 polls.
                self.crew.reap_if_unattended();
            } else {
                self.crew.wait(&berth.parker, Role::Worker);
            }
        }
    }

    fn stop(&self) {
        self.stop.store(true, Ordering::SeqCst);
        self.notify_workers();
    }

    fn notify_workers(&self) {
        self.parkers.lock().iter().for_each(|parker| parker.notify());
    }

    /// Whether all workers have left by the deadline, or within a short minimum time.
    fn wait_until_left(&self, deadline: Option<Instant>) -> bool {
        let soon = Instant::now() + Duration::from_millis(100);
        let deadline = deadline.map(|deadline| deadline.max(soon));
        let mut running = self.running.lock();
        while *running > 0 {
            let timed_out = match deadline {
                Some(deadline) => self.left.wait_until(&mut running, deadline).timed_out(),
                None => {
                    self.left.wait(&mut running);
                    false
                }
            };
            if timed_out {
                return false;
            }
        }
        true
    }
}

/// Joins a thread, unless it is the calling one.
fn join(thread: Option<JoinHandle<()>>) {
    if let Some(thread) = thread
        && thread.thread().id() != std::thread::current().id()
    {
        // Our threads catch panics of their tasks; a panic of their own has already been printed.
        let _ = thread.join();
    }
}
