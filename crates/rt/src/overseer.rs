//! Makes sure that work others wait for gets done.

use crate::sync::Mutex;
use crate::{Class, Nanos, Rt, Watchdog};
use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Wake, Waker};

/// Completes work that others wait for.
///
/// The work runs on its caller's task, as with [`Rt::unstoppable`]. If the caller drops the work,
/// or leaves it unpolled for a while after it was woken (as a `select!` may), the work continues as
/// a separate task. One overseer serves many pieces of work.
pub struct Overseer {
    rt: Rt,
    watchdog: Watchdog,
    /// Woken work that its caller has to poll; checked after the patience.
    woken: Mutex<Vec<Weak<dyn Unpolled>>>,
}

/// Work that may be left unpolled.
trait Unpolled: Send + Sync {
    /// When it was woken, if it has not been polled since.
    fn woken_at(&self) -> Option<Nanos>;
    /// Hands the work to a task.
    fn take_over(self: Arc<Self>);
}

impl Overseer {
    /// An overseer with the usual patience.
    pub fn new(rt: &Rt) -> Arc<Self> {
        let (rt, watchdog) = (rt.clone(), Watchdog::new(rt, Watchdog::PATIENCE));
        Arc::new(Self { rt, watchdog, woken: Mutex::new(Vec::new()) })
    }

    /// Runs `work` on the caller that awaits the result, or else in a task named `name`.
    pub fn oversee<T: Send + 'static>(
        self: &Arc<Self>,
        name: &'static str,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Overseen<T> {
        Overseen { overseer: self.clone(), name, stage: Stage::Fresh(Box::pin(work)) }
    }

    fn note(self: &Arc<Self>, woken: Weak<dyn Unpolled>) {
        self.woken.lock().push(woken);
        self.watch();
    }

    fn watch(self: &Arc<Self>) {
        self.watchdog.watch(|| Waker::from(Arc::new(Ring(Arc::downgrade(self)))));
    }

    fn look(self: &Arc<Self>) {
        self.watchdog.rang();
        let mut overdue = Vec::new();
        let is_early = {
            let mut woken = self.woken.lock();
            woken.retain(|work| {
                let Some(work) = work.upgrade() else { return false };
                let Some(at) = work.woken_at() else { return false };
                let is_overdue = self.watchdog.is_overdue(at);
                if is_overdue {
                    overdue.push(work);
                }
                !is_overdue
            });
            !woken.is_empty()
        };
        overdue.into_iter().for_each(|work| work.take_over());
        if is_early {
            self.watch();
        }
    }
}

impl fmt::Debug for Overseer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Overseer")
    }
}

struct Ring(Weak<Overseer>);

impl Wake for Ring {
    fn wake(self: Arc<Self>) {
        if let Some(overseer) = self.0.upgrade() {
            overseer.look();
        }
    }
}

type Work<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Work under an [`Overseer`].
#[must_use = "dropping it leaves the work to a task"]
pub struct Overseen<T: Send + 'static> {
    overseer: Arc<Overseer>,
    name: &'static str,
    stage: Stage<T>,
}

enum Stage<T: Send + 'static> {
    /// The work has not waited yet, or it panicked.
    Fresh(Work<T>),
    Shared(Arc<Job<T>>),
    Over,
}

/// Work that waits for something.
struct Job<T> {
    overseer: Arc<Overseer>,
    name: &'static str,
    state: Mutex<State<T>>,
}

struct State<T> {
    /// `None` while it is being polled.
    work: Option<Work<T>>,
    /// The result, if a task has completed the work.
    result: Option<T>,
    is_over: bool,
    /// A task runs it.
    has_task: bool,
    caller: Option<Waker>,
    /// The waker of the last poll.
    driver: Option<Waker>,
    /// When it was woken, if it has not been polled since.
    woken_at: Option<Nanos>,
}

impl<T: Send + 'static> Overseen<T> {
    fn job(&self, work: Option<Work<T>>) -> Arc<Job<T>> {
        let state = State {
            work,
            result: None,
            is_over: false,
            has_task: false,
            caller: None,
            driver: None,
            woken_at: None,
        };
        Arc::new(Job { overseer: self.overseer.clone(), name: self.name, state: Mutex::new(state) })
    }
}

impl<T: Send + 'static> Future for Overseen<T> {
    type Output = T;
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let job = match std::mem::replace(&mut self.stage, Stage::Over) {
            Stage::Fresh(mut work) => {
                // Usually this completes it.
                if let Poll::Ready(result) = work.as_mut().poll(cx) {
                    return Poll::Ready(result);
                }
                // Polled again below, with the waker that is watched.
                self.job(Some(work))
            }
            Stage::Shared(job) => job,
            Stage::Over => panic!("not polled again after its end"),
        };
        match job.poll_as(cx, true) {
            Poll::Ready(result) => {
                Poll::Ready(result.expect("the task that went on with it has not panicked"))
            }
            Poll::Pending => {
                self.stage = Stage::Shared(job);
                Poll::Pending
            }
        }
    }
}

impl<T: Send + 'static> Drop for Overseen<T> {
    fn drop(&mut self) {
        match std::mem::replace(&mut self.stage, Stage::Over) {
            Stage::Fresh(work) => self.job(Some(work)).go_on(),
            Stage::Shared(job) => job.go_on(),
            Stage::Over => {}
        }
    }
}

impl<T: Send + 'static> fmt::Debug for Overseen<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Overseen({})", self.name)
    }
}

/// Work that is being polled. If the poll panics, the work is over.
struct Polling<'a, T>(&'a Job<T>);

impl<T> Drop for Polling<'_, T> {
    fn drop(&mut self) {
        self.0.end(None);
    }
}

impl<T> Job<T> {
    fn end(&self, result: Option<T>) {
        let wakers = {
            let mut state = self.state.lock();
            (state.is_over, state.result) = (true, result);
            (state.caller.take(), state.driver.take())
        };
        let (caller, driver) = wakers;
        caller.into_iter().chain(driver).for_each(Waker::wake);
    }
}

impl<T: Send + 'static> Job<T> {
    /// Resolves to `None` if the work panicked, or if a task asks and the result went to the
    /// caller.
    fn poll_as(self: &Arc<Self>, cx: &mut Context<'_>, is_caller: bool) -> Poll<Option<T>> {
        let mut work = {
            let mut state = self.state.lock();
            if state.is_over {
                return Poll::Ready(if is_caller { state.result.take() } else { None });
            }
            if is_caller {
                state.caller = Some(cx.waker().clone());
                // If the caller polled the work too, it would be woken instead of the task, and it
                // might leave the work unpolled again.
                if state.has_task {
                    return Poll::Pending;
                }
            }
            state.driver = Some(cx.waker().clone());
            // Otherwise the caller is polling the work now, and wakes the task afterwards.
            let Some(work) = state.work.take() else { return Poll::Pending };
            state.woken_at = None;
            work
        };
        let polling = Polling(self);
        let polled = work.as_mut().poll(&mut Context::from_waker(&Waker::from(self.clone())));
        std::mem::forget(polling);
        match polled {
            Poll::Pending => {
                let driver = {
                    let mut state = self.state.lock();
                    state.work = Some(work);
                    // A task may have looked for the work while it was being polled here, and found
                    // none.
                    state.driver.clone().filter(|_| is_caller && state.has_task)
                };
                driver.into_iter().for_each(Waker::wake);
                Poll::Pending
            }
            Poll::Ready(result) if is_caller => {
                self.end(None);
                Poll::Ready(Some(result))
            }
            Poll::Ready(result) => {
                self.end(Some(result));
                Poll::Ready(None)
            }
        }
    }

    /// Makes a task continue the work, unless one already does.
    fn go_on(self: Arc<Self>) {
        {
            let mut state = self.state.lock();
            if state.is_over || std::mem::replace(&mut state.has_task, true) {
                return;
            }
        }
        let doing = Doing(self.clone());
        let going_on = async move {
            poll_fn(|cx| doing.0.poll_as(cx, false)).await;
        };
        drop(self.overseer.rt.spawn(self.name, Class::Normal, going_on));
    }
}

/// A task that runs the work. If the world ends first, or accepts no more tasks, the caller
/// continues it, if there is one.
struct Doing<T>(Arc<Job<T>>);

impl<T> Drop for Doing<T> {
    fn drop(&mut self) {
        let caller = {
            let mut state = self.0.state.lock();
            let caller = state.caller.clone();
            state.has_task = false;
            state.driver.clone_from(&caller);
            caller
        };
        caller.into_iter().for_each(Waker::wake);
    }
}

impl<T: Send + 'static> Unpolled for Job<T> {
    fn woken_at(&self) -> Option<Nanos> {
        let state = self.state.lock();
        if state.is_over || state.has_task { None } else { state.woken_at }
    }

    fn take_over(self: Arc<Self>) {
        self.go_on();
    }
}

impl<T: Send + 'static> Wake for Job<T> {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let now = self.overseer.rt.now();
        let (driver, is_first) = {
            let mut state = self.state.lock();
            let is_first = state.woken_at.is_none() && !state.has_task && !state.is_over;
            state.woken_at.get_or_insert(now);
            (state.driver.clone(), is_first)
        };
        driver.into_iter().for_each(Waker::wake);
        if is_first {
            let work: Arc<dyn Unpolled> = self.clone();
            self.overseer.note(Arc::downgrade(&work));
        }
    }
}

#[cfg(all(test, not(extant_loom)))]
mod tests {
    use super::*;
    use crate::RealConfig;
    use std::sync::atomic::{AtomicBool, Ordering};

    fn poll<T: Send>(work: &mut Overseen<T>) -> Poll<T> {
        Pin::new(work).poll(&mut Context::from_waker(Waker::noop()))
    }

    /// Something that work waits for.
    #[derive(Default)]
    struct Gate(Mutex<(bool, Option<Waker>)>);

    impl Gate {
        fn open(&self) {
            let waker = {
                let mut gate = self.0.lock();
                gate.0 = true;
                gate.1.take()
            };
            waker.into_iter().for_each(Waker::wake);
        }

        async fn wait(&self) {
            poll_fn(|cx| {
                let mut gate = self.0.lock();
                gate.1 = Some(cx.waker().clone());
                if gate.0 { Poll::Ready(()) } else { Poll::Pending }
            })
            .await;
        }
    }

    /// Work that waits until its gate is open, and then sets a flag.
    fn work(overseer: &Arc<Overseer>) -> (Overseen<u32>, Arc<Gate>, Arc<AtomicBool>) {
        let (gate, done) = (Arc::new(Gate::default()), Arc::new(AtomicBool::new(false)));
        let (inside, told) = (gate.clone(), done.clone());
        let work = overseer.oversee("work", async move {
            inside.wait().await;
            told.store(true, Ordering::SeqCst);
            7
        });
        (work, gate, done)
    }

    fn until(rt: &Rt, done: &AtomicBool) {
        rt.block_on(async {
            while !done.load(Ordering::SeqCst) {
                rt.yield_now().await;
            }
        })
        .unwrap();
    }

    #[test]
    fn work_is_its_callers_while_that_polls_it() {
        let rt = Rt::real(RealConfig::default());
        // On a busy machine the caller itself may come later than the usual patience.
        let watchdog = Watchdog::new(&rt, Nanos::from_secs(600));
        let overseer = Arc::new(Overseer { rt: rt.clone(), watchdog, woken: Mutex::new(Vec::new()) });
        let (mut work, gate, done) = work(&overseer);
        let polled = poll_fn(|cx| {
            let polled = Pin::new(&mut work).poll(cx);
            if polled.is_pending() {
                gate.open();
            }
            polled
        });
        assert_eq!(rt.block_on(polled).unwrap(), 7);
        assert!(done.load(Ordering::SeqCst));
        assert_eq!(rt.block_on(overseer.oversee("ready", async { 8 })).unwrap(), 8);
        assert_eq!(rt.counter(crate::Counter::TasksSpawned), 0);
    }

    #[test]
    fn work_that_is_kept_unpolled_is_done_and_its_caller_has_the_result() {
        let rt = Rt::real(RealConfig::default());
        let (mut work, gate, done) = work(&Overseer::new(&rt));
        assert!(poll(&mut work).is_pending());
        gate.open();
        until(&rt, &done);
        assert_eq!(rt.block_on(work).unwrap(), 7);
    }

    #[test]
    fn work_that_is_dropped_half_done_or_untouched_is_done() {
        let rt = Rt::real(RealConfig::default());
        let overseer = Overseer::new(&rt);
        for polls in [0, 1] {
            let (mut work, gate, done) = work(&overseer);
            for _ in 0..polls {
                assert!(poll(&mut work).is_pending());
            }
            drop(work);
            gate.open();
            until(&rt, &done);
        }
    }

    /// Like [`until`], but gives up after a while.
    fn soon(rt: &Rt, done: &AtomicBool) -> bool {
        rt.block_on(async {
            for _ in 0..1_000 {
                if done.load(Ordering::SeqCst) {
                    return true;
                }
                rt.sleep(Nanos::from_millis(2)).await;
            }
            false
        })
        .unwrap()
    }

    #[test]
    fn a_caller_that_comes_late_and_is_kept_again_leaves_the_work_to_the_task() {
        let rt = Rt::real(RealConfig::default());
        let gates = Arc::new([(); 2].map(|()| Gate::default()));
        let told = Arc::new([(); 2].map(|()| AtomicBool::new(false)));
        let (inside, tells) = (gates.clone(), told.clone());
        let mut work = Overseer::new(&rt).oversee("work", async move {
            for (gate, told) in inside.iter().zip(&*tells) {
                gate.wait().await;
                told.store(true, Ordering::SeqCst);
            }
            7
        });
        assert!(poll(&mut work).is_pending());
        gates[0].open();
        assert!(soon(&rt, &told[0]), "a task goes on with it");
        // By now the task waits at the second gate.
        rt.block_on(rt.sleep(Nanos::from_millis(20))).unwrap();
        assert!(poll(&mut work).is_pending());
        gates[1].open();
        assert!(soon(&rt, &told[1]), "it is the task that is woken");
        assert_eq!(rt.block_on(work).unwrap(), 7);
    }

    #[test]
    fn a_task_that_comes_while_the_caller_polls_goes_on_after_that() {
        let rt = Rt::real(RealConfig::default());
        let (gate, done) = (Arc::new(Gate::default()), Arc::new(AtomicBool::new(false)));
        // The work takes this in the caller's last poll, and a task then takes over.
        let job: Arc<Mutex<Option<Arc<Job<u32>>>>> = Arc::default();
        let (inside, told, taken, world) = (gate.clone(), done.clone(), job.clone(), rt.clone());
        let mut work = Overseer::new(&rt).oversee("work", async move {
            {
                let mut wait = std::pin::pin!(inside.wait());
                poll_fn(|cx| {
                    if let Some(job) = taken.lock().take() {
                        job.go_on();
                        // Meanwhile the task runs and finds nothing to poll.
                        world.block_on(world.sleep(Nanos::from_millis(100))).unwrap();
                    }
                    wait.as_mut().poll(cx)
                })
                .await;
            }
            told.store(true, Ordering::SeqCst);
            7
        });
        assert!(poll(&mut work).is_pending());
        let Stage::Shared(shared) = &work.stage else { panic!("it waits") };
        *job.lock() = Some(shared.clone());
        assert!(poll(&mut work).is_pending());
        gate.open();
        assert!(soon(&rt, &done), "the caller is not polled");
        assert_eq!(rt.block_on(work).unwrap(), 7);
        assert!(rt.shutdown(Nanos::from_secs(1)).in_flight.is_empty(), "the task has ended");
    }

    #[test]
    fn after_the_end_of_the_world_the_caller_does_it() {
        let rt = Rt::real(RealConfig::default());
        let (mut kept, gate, _) = work(&Overseer::new(&rt));
        assert!(poll(&mut kept).is_pending());
        let _ = rt.shutdown(Nanos::from_secs(1));
        gate.open();
        assert_eq!(rt.block_on(kept).unwrap(), 7);
    }
}
