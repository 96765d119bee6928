//! One future, driven by the tasks that wait for it.
//!
//! A commit runs on the task of the first fsync that needs it, because a wakeup on another
//! processor costs more than most of the commit. That task may be dropped at any time, so it does
//! not own the commit: any waiter that is polled drives it.
//!
//! For the same reason, the end of a commit does not wake all waiters of the next one, only the one
//! that will begin it. Likewise, completions of a commit's I/O wake only the waiter that polled
//! last. A task that holds a sync without polling it, as a `select!` may, would leave the others
//! waiting. So if the woken waiter does not resume in time, all are woken.

use extant_rt::{Class, Nanos, Rt};
use parking_lot::Mutex;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Wake, Waker};

type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Minimum time that the woken waiter gets to resume while others wait. Longer than a thread
/// usually waits for a processor.
const PATIENCE: Nanos = Nanos::from_millis(20);

/// Holds one future at a time.
pub(super) struct Relay {
    shared: Arc<Shared>,
    /// The waker that the work is polled with; an [`Io`].
    waker: Waker,
}

struct Shared {
    rt: Rt,
    state: Mutex<State>,
}

/// Wakes the waiter that drives the work.
struct Io(Weak<Shared>);

impl Wake for Io {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let Some(shared) = self.0.upgrade() else { return };
        let (driver, watch) = {
            let mut state = shared.state.lock();
            state.is_woken = true;
            // The driver is among the waiters.
            let has_others = state.waiters.len() > 1;
            (state.driver.clone(), has_others.then(|| shared.begin_watch(&mut state)).flatten())
        };
        if let Some(driver) = driver {
            driver.wake();
        }
        shared.watch(watch);
    }
}

/// A check, after a delay, that the woken waiter has resumed. Created before the task that runs it:
/// after shutdown no task can be spawned, so the watch is dropped and ends at once.
struct Watch(Weak<Shared>);

impl Drop for Watch {
    fn drop(&mut self) {
        if let Some(shared) = self.0.upgrade() {
            shared.end_watch();
        }
    }
}

impl Shared {
    /// Begins watching the woken waiter; `None` if a watch is already under way.
    fn begin_watch(self: &Arc<Self>, state: &mut State) -> Option<Watch> {
        (!std::mem::replace(&mut state.is_watched, true)).then(|| Watch(Arc::downgrade(self)))
    }

    fn watch(&self, watch: Option<Watch>) {
        if let Some(watch) = watch {
            let rt = self.rt.clone();
            let watching = async move {
                rt.sleep(PATIENCE).await;
                drop(watch);
            };
            drop(self.rt.spawn("journal watch", Class::Normal, watching));
        }
    }

    /// Wakes all waiters if the woken one has not resumed.
    fn end_watch(&self) {
        let waiters = {
            let mut state = self.state.lock();
            state.is_watched = false;
            if state.is_woken { std::mem::take(&mut state.waiters) } else { Vec::new() }
        };
        waiters.into_iter().for_each(|(_, waker)| waker.wake());
    }
}

#[derive(Default)]
struct State {
    work: Stage,
    /// Started after the current work had finished but before its driver noticed.
    next: Option<Work>,
    /// With the key each one waits for.
    waiters: Vec<(u64, Waker)>,
    /// The waiter that last polled the work.
    driver: Option<Waker>,
    /// A waiter was woken to poll the work or begin the next, and no work has been polled since.
    is_woken: bool,
    /// A delayed task will check whether the woken waiter resumed.
    is_watched: bool,
    /// The highest key reached.
    reached: u64,
    /// The relay has ended. Unfinished work is dropped, because it owns a reference to the relay's
    /// owner.
    is_ended: bool,
}

#[derive(Default)]
enum Stage {
    #[default]
    Idle,
    Parked(Work),
    /// A waiter is polling it. True if it must be polled again right away.
    Driven(bool),
}

impl Relay {
    pub(super) fn new(rt: &Rt) -> Self {
        let shared = Arc::new(Shared { rt: rt.clone(), state: Mutex::default() });
        let waker = Waker::from(Arc::new(Io(Arc::downgrade(&shared))));
        Self { shared, waker }
    }

    /// Sets the work to run. Any earlier work has finished as far as its waiters know; its driver
    /// may not have noticed.
    pub(super) fn start(&self, work: impl Future<Output = ()> + Send + 'static) {
        let mut state = self.shared.state.lock();
        match state.work {
            _ if state.is_ended => {}
            Stage::Idle => state.work = Stage::Parked(Box::pin(work)),
            Stage::Driven(_) if state.next.is_none() => state.next = Some(Box::pin(work)),
            _ => panic!("one piece of work at a time"),
        }
    }

    /// Drops the current work, finished or not, and any work started later. If a waiter is driving
    /// the work, that waiter drops it the next time it would block.
    pub(super) fn end(&self) {
        let dropped = {
            let mut state = self.shared.state.lock();
            state.is_ended = true;
            let work = match std::mem::take(&mut state.work) {
                Stage::Driven(again) => {
                    state.work = Stage::Driven(again);
                    None
                }
                Stage::Parked(work) => Some(work),
                Stage::Idle => None,
            };
            (work, state.next.take())
        };
        drop(dropped);
        self.wake_all();
    }

    /// Whether there is no work.
    pub(super) fn is_idle(&self) -> bool {
        matches!(self.shared.state.lock().work, Stage::Idle)
    }

    /// Returns a future that is ready when no work is left or `key` has been reached. When the work
    /// ends, of the waiters for unreached keys only one is woken, to begin the next work. It must
    /// do that or call [`Self::wake_all`].
    pub(super) fn join(&self, key: u64) -> Join<'_> {
        Join { relay: self, key, polled: false }
    }

    /// Marks all keys up to `key` as reached. Their waiters need not wait for the work to end.
    pub(super) fn reach(&self, key: u64) {
        let waiters = {
            let mut state = self.shared.state.lock();
            state.reached = state.reached.max(key);
            state.take_reached()
        };
        waiters.for_each(Waker::wake);
    }

    /// Wakes all waiters to check again.
    pub(super) fn wake_all(&self) {
        let waiters = std::mem::take(&mut self.shared.state.lock().waiters);
        waiters.into_iter().for_each(|(_, waker)| waker.wake());
    }

    fn poll(&self, key: u64, cx: &mut Context<'_>) -> Poll<()> {
        let (mut work, last) = {
            let mut state = self.shared.state.lock();
            if key != EVERY_END && key <= state.reached {
                return Poll::Ready(());
            }
            match std::mem::take(&mut state.work) {
                Stage::Idle => return Poll::Ready(()),
                Stage::Driven(_) => {
                    state.work = Stage::Driven(true);
                    state.wait(key, cx);
                    return Poll::Pending;
                }
                Stage::Parked(work) => {
                    state.work = Stage::Driven(false);
                    state.is_woken = false;
                    let last = state.driver.replace(cx.waker().clone());
                    state.wait(key, cx);
                    (work, last)
                }
            }
        };
        drop(last);
        let driving = Driving(self);
        loop {
            let polled = work.as_mut().poll(&mut Context::from_waker(&self.waker));
            if polled.is_ready() {
                let mut state = self.shared.state.lock();
                state.is_woken = false;
                if let Some(next) = state.next.take() {
                    work = next;
                    state.work = Stage::Driven(false);
                    continue;
                }
                drop(state);
                drop(driving);
                return Poll::Ready(());
            }
            let mut state = self.shared.state.lock();
            if state.is_ended {
                drop(state);
                drop(work);
                drop(driving);
                self.wake_all();
                return Poll::Ready(());
            }
            if !matches!(state.work, Stage::Driven(true)) {
                state.work = Stage::Parked(work);
                std::mem::forget(driving);
                return Poll::Pending;
            }
            // Another waiter was woken for the work while this one was polling it.
            state.work = Stage::Driven(false);
            state.is_woken = false;
        }
    }
}

/// Key of waiters that wait for the end of any work.
pub(super) const EVERY_END: u64 = 0;

/// Dropped when the work ends, including by a panic.
struct Driving<'r>(&'r Relay);

impl Drop for Driving<'_> {
    fn drop(&mut self) {
        let shared = &self.0.shared;
        let (waiters, driver, watch) = {
            let mut state = shared.state.lock();
            state.work = state.next.take().map_or(Stage::Idle, Stage::Parked);
            let reached = state.take_reached();
            // Wake one waiter to begin or drive the next work.
            let successor = state.waiters.pop().map(|(_, waker)| waker);
            let has_others = !state.waiters.is_empty();
            state.is_woken = has_others;
            let watch = has_others.then(|| shared.begin_watch(&mut state)).flatten();
            (reached.chain(successor), state.driver.take(), watch)
        };
        drop(driver);
        waiters.for_each(Waker::wake);
        shared.watch(watch);
    }
}

impl State {
    fn wait(&mut self, key: u64, cx: &Context<'_>) {
        match self.waiters.iter_mut().find(|(_, waker)| waker.will_wake(cx.waker())) {
            Some(known) => known.0 = known.0.min(key),
            None => self.waiters.push((key, cx.waker().clone())),
        }
    }

    fn take_reached(&mut self) -> impl Iterator<Item = Waker> + use<> {
        let reached = self.reached;
        let (ended, others): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.waiters).into_iter().partition(|(key, _)| *key <= reached);
        self.waiters = others;
        ended.into_iter().map(|(_, waker)| waker)
    }
}

impl std::fmt::Debug for Relay {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Relay")
    }
}

/// Waits for the current work to end, and drives it meanwhile.
pub(super) struct Join<'a> {
    relay: &'a Relay,
    key: u64,
    polled: bool,
}

impl Future for Join<'_> {
    type Output = ();
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let polled = self.relay.poll(self.key, cx);
        // Once this is ready, dropping it must not wake the others: with many waiters, each one
        // would wake all waiters of the next work.
        self.polled = polled.is_pending();
        polled
    }
}

impl Drop for Join<'_> {
    fn drop(&mut self) {
        // The work may be waiting for this task's waker: let another task take over.
        if self.polled {
            self.relay.wake_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use extant_sim::{Machine, Preemption, Sim};
    use std::sync::atomic::{AtomicU32, Ordering};

    #[test]
    fn work_that_follows_at_once_is_driven_on() {
        let rt = Rt::real(Default::default());
        let relay = Arc::new(Relay::new(&rt));
        let done = Arc::new(AtomicU32::new(0));
        let (inside, next) = (done.clone(), relay.clone());
        relay.start(async move {
            // As if another thread saw the end before the driver does.
            next.start(async move {
                inside.fetch_add(1, Ordering::SeqCst);
            });
        });
        rt.block_on(relay.join(EVERY_END)).unwrap();
        assert_eq!(done.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn work_of_a_relay_that_has_ended_is_dropped_and_keeps_no_waiter() {
        let rt = Rt::real(Default::default());
        let relay = Relay::new(&rt);
        let held = Arc::new(());
        let work = |held: Arc<()>| async move {
            std::future::pending::<()>().await;
            drop(held);
        };
        relay.start(work(held.clone()));
        rt.block_on(async {
            let mut join = relay.join(EVERY_END);
            let is_pending =
                std::future::poll_fn(|cx| Poll::Ready(Pin::new(&mut join).poll(cx).is_pending()));
            assert!(is_pending.await);
            relay.end();
            join.await;
        })
        .unwrap();
        relay.start(work(held.clone()));
        assert_eq!(Arc::strong_count(&held), 1);
        rt.block_on(relay.join(EVERY_END)).unwrap();
    }

    #[test]
    fn a_panic_ends_the_wait_of_all() {
        let rt = Rt::real(Default::default());
        let relay = Relay::new(&rt);
        relay.start(async { panic!("on purpose") });
        rt.block_on(async {
            let (mut first, mut second) = (relay.join(EVERY_END), relay.join(EVERY_END));
            let panicked = std::future::poll_fn(|cx| {
                let polled = std::panic::AssertUnwindSafe(|| Pin::new(&mut first).poll(cx));
                Poll::Ready(std::panic::catch_unwind(polled).is_err())
            });
            assert!(panicked.await);
            std::future::poll_fn(|cx| Pin::new(&mut second).poll(cx)).await;
        })
        .unwrap();
        assert!(relay.is_idle());
    }

    /// Blocks some work until it is opened.
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
            std::future::poll_fn(|cx| {
                let mut gate = self.0.lock();
                gate.1 = Some(cx.waker().clone());
                if gate.0 { Poll::Ready(()) } else { Poll::Pending }
            })
            .await;
        }
    }

    /// Counts wakeups.
    #[derive(Default)]
    struct Counts(AtomicU32);

    impl std::task::Wake for Counts {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn the_end_wakes_those_whose_key_is_reached_and_one_other() {
        let sim = Sim::new(Machine::free(1, Preemption::None), 1);
        let relay = Arc::new(Relay::new(sim.rt()));
        let gate = Arc::new(Gate::default());
        let (inside, opened) = (relay.clone(), gate.clone());
        relay.start(async move {
            opened.wait().await;
            inside.reach(7);
        });
        let mut waits: Vec<_> = [EVERY_END, 7, 7, 8, 8, 8]
            .into_iter()
            .map(|key| (Box::pin(relay.join(key)), Arc::new(Counts::default())))
            .collect();
        for (wait, wakes) in &mut waits {
            let waker = Waker::from(wakes.clone());
            assert!(wait.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        }
        gate.open();
        // The last waiter polled drives.
        let (mut wait, wakes) = waits.pop().expect("some");
        assert!(wait.as_mut().poll(&mut Context::from_waker(&Waker::from(wakes))).is_ready());
        drop(wait);
        let woken = |waits: &[(Pin<Box<Join<'_>>>, Arc<Counts>)]| -> Vec<bool> {
            waits.iter().map(|(_, wakes)| wakes.0.load(Ordering::SeqCst) > 0).collect()
        };
        let first = woken(&waits);
        assert_eq!(first[..3], [true; 3], "they have what they wait for");
        assert!(first[3..].iter().filter(|woken| **woken).count() <= 1, "{first:?}");
        relay.wake_all();
        assert_eq!(woken(&waits), [true; 5]);
    }

    #[test]
    fn work_goes_on_though_the_task_that_began_it_is_dropped() {
        let rt = Rt::real(Default::default());
        let relay = Arc::new(Relay::new(&rt));
        let done = Arc::new(AtomicU32::new(0));
        let (inside, timer) = (done.clone(), rt.clone());
        relay.start(async move {
            for _ in 0..3 {
                timer.sleep(Nanos::from_millis(1)).await;
            }
            inside.fetch_add(1, Ordering::SeqCst);
        });
        rt.block_on(async {
            let mut first = relay.join(EVERY_END);
            std::future::poll_fn(|cx| Poll::Ready(Pin::new(&mut first).poll(cx))).await.is_pending();
            let others: Vec<_> = (0..4)
                .map(|_| {
                    let relay = relay.clone();
                    rt.spawn("follower", Class::Normal, async move { relay.join(EVERY_END).await })
                })
                .collect();
            drop(first);
            for other in others {
                other.await.unwrap();
            }
        })
        .unwrap();
        assert_eq!(done.load(Ordering::SeqCst), 1);
        rt.block_on(relay.join(EVERY_END)).unwrap();
    }

    #[test]
    fn a_waiter_that_is_kept_unpolled_does_not_keep_the_others() {
        let sim = Sim::new(Machine::free(1, Preemption::None), 1);
        let relay = Relay::new(sim.rt());
        let gate = Arc::new(Gate::default());
        let opened = gate.clone();
        relay.start(async move { opened.wait().await });
        let (mut first, mut kept) = (Box::pin(relay.join(EVERY_END)), Box::pin(relay.join(EVERY_END)));
        let wakes = Arc::new(Counts::default());
        let waker = Waker::from(wakes.clone());
        assert!(first.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        // Drives from here on and is never polled again.
        assert!(kept.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        gate.open();
        sim.rt().block_on(sim.rt().sleep(Nanos::from_secs(1))).unwrap();
        assert!(wakes.0.load(Ordering::SeqCst) > 0);
        assert!(first.as_mut().poll(&mut Context::from_waker(&waker)).is_ready());
    }

    /// Ends a relay's work, then runs `check` with a waiter for the next work and its count of
    /// wakeups. The waiter woken to begin that work is `kept`, which is never polled.
    fn with_successor(rt: &Rt, check: impl FnOnce(&Relay, &Counts, &mut Pin<Box<Join<'_>>>)) {
        let relay = Relay::new(rt);
        let gate = Arc::new(Gate::default());
        let opened = gate.clone();
        relay.start(async move { opened.wait().await });
        let counts = [(); 3].map(|()| Arc::new(Counts::default()));
        let [mut waits, mut kept, mut last] = [8, 8, 7].map(|key| Box::pin(relay.join(key)));
        for (wait, counts) in [&mut waits, &mut kept, &mut last].into_iter().zip(&counts) {
            assert!(wait.as_mut().poll(&mut Context::from_waker(&Waker::from(counts.clone()))).is_pending());
        }
        gate.open();
        relay.reach(7);
        let waker = Waker::from(counts[2].clone());
        assert!(last.as_mut().poll(&mut Context::from_waker(&waker)).is_ready());
        // It got what it waited for; whoever is polled next handles the end of the work.
        let mut other = Box::pin(relay.join(EVERY_END));
        assert!(other.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready());
        assert_eq!(counts[1].0.load(Ordering::SeqCst), 1, "it is the successor");
        check(&relay, &counts[0], &mut waits);
    }

    #[test]
    fn a_successor_that_is_kept_unpolled_does_not_keep_the_others() {
        let sim = Sim::new(Machine::free(1, Preemption::None), 1);
        with_successor(sim.rt(), |relay, wakes, waits| {
            assert_eq!(wakes.0.load(Ordering::SeqCst), 0, "one is enough as a rule");
            sim.rt().block_on(sim.rt().sleep(Nanos::from_secs(1))).unwrap();
            assert!(wakes.0.load(Ordering::SeqCst) > 0);
            assert!(waits.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready());
            assert!(relay.is_idle());
        });
    }

    #[test]
    fn all_are_woken_at_once_where_the_world_takes_no_task_to_watch_the_successor() {
        let rt = Rt::real(Default::default());
        let _ = rt.shutdown(Nanos::ZERO);
        with_successor(&rt, |_, wakes, _| assert!(wakes.0.load(Ordering::SeqCst) > 0));
    }
}
