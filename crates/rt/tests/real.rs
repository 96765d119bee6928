//! Tests of the real world through its public interface.

use extant_rt::{Class, Counter, Driver, Nanos, RealConfig, Rt, RtError, Wait};
use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::task::{Poll, Waker};

fn world() -> Rt {
    Rt::real(RealConfig { worker_threads: Some(2), blocking_threads: Some(2), seed: Some(1) })
}

#[test]
fn a_task_gives_its_result_to_the_caller_that_awaits_it() {
    let rt = world();
    let task = rt.spawn("adder", Class::Normal, async { 40 + 2 });
    assert_eq!(task.name(), "adder");
    assert_eq!(rt.block_on(task).unwrap(), Ok(42));
}

#[test]
fn a_panic_is_reported_with_the_tasks_name_and_others_go_on() {
    let rt = world();
    let bad = rt.spawn("bad", Class::Normal, async { panic!("no more {}", "milk") });
    let worse = rt.spawn_blocking("worse", || panic!("no bread"));
    let good = rt.spawn("good", Class::Normal, async { 7 });
    let named = |name: &str, message: &str| RtError::Panicked { name: name.into(), message: message.into() };
    assert_eq!(rt.block_on(bad).unwrap(), Err::<(), _>(named("bad", "no more milk")));
    assert_eq!(rt.block_on(worse).unwrap(), Err::<(), _>(named("worse", "no bread")));
    assert_eq!(rt.block_on(good).unwrap(), Ok(7));
    assert_eq!(rt.block_on(async { panic!("oh") }), Err::<(), _>(named("block_on", "oh")));
    assert_eq!(rt.counter(Counter::TasksPanicked), 3);
    let report = rt.shutdown(Nanos::from_secs(10));
    assert_eq!(report.in_flight, Vec::<String>::new());
    assert!(report.panicked.contains(&("bad".into(), "no more milk".into())));
}

#[test]
fn sleepers_wake_in_order_and_not_early() {
    let rt = world();
    let woken = rt.block_on(async {
        let nap = |ms| {
            let rt2 = rt.clone();
            rt.spawn("napper", Class::Normal, async move {
                let until = rt2.now().saturating_add(Nanos::from_millis(ms));
                rt2.sleep_until(until).await;
                assert!(rt2.now() >= until);
                rt2.now()
            })
        };
        let (late, early) = (nap(30), nap(5));
        (early.await.unwrap(), late.await.unwrap())
    });
    let (early, late) = woken.unwrap();
    assert!(early < late);
}

#[test]
fn shutdown_waits_for_what_ends_and_names_what_does_not() {
    let rt = world();
    let finishing = rt.clone();
    drop(rt.spawn("finishing", Class::Normal, async move { finishing.sleep(Nanos::from_millis(20)).await }));
    let held = rt.clone();
    let stuck = rt.spawn("stuck", Class::Normal, async move {
        let _holds_a_handle = held;
        std::future::pending::<()>().await;
    });
    let report = rt.shutdown(Nanos::from_millis(200));
    assert_eq!(report.in_flight, ["stuck"]);
    let error = RtError::ShutDown { name: "stuck".into() };
    assert_eq!(rt.block_on(stuck).unwrap(), Err(error.clone()));
    let late = rt.spawn("late", Class::Normal, async {});
    assert_eq!(rt.block_on(late).unwrap(), Err(RtError::ShutDown { name: "late".into() }));
}

#[test]
fn blocking_work_is_bounded_and_all_of_it_is_done() {
    let rt = world();
    let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let jobs: Vec<_> = (0..50)
        .map(|n| {
            let (now, most) = (now.clone(), most.clone());
            rt.spawn_blocking("job", move || {
                most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                std::thread::yield_now();
                now.fetch_sub(1, Ordering::SeqCst);
                n
            })
        })
        .collect();
    let sum = rt.block_on(async {
        let mut sum = 0;
        for job in jobs {
            sum += job.await.unwrap();
        }
        sum
    });
    assert_eq!(sum.unwrap(), 49 * 50 / 2);
    assert!(most.load(Ordering::SeqCst) <= 2);
}

/// A device whose requests complete in order, and only while a thread drives it.
struct Lazy {
    state: Mutex<LazyState>,
    changed: Condvar,
    in_flight: AtomicUsize,
    event: OwnedFd,
}

#[derive(Default)]
struct LazyState {
    submitted: VecDeque<Arc<Request>>,
    /// Nothing completes while this is set.
    is_held: bool,
    interrupts: usize,
    inside: usize,
    most_inside: usize,
}

#[derive(Default)]
struct Request(Mutex<(bool, Option<Waker>)>);

impl Lazy {
    fn new() -> Arc<Self> {
        use rustix::event::{EventfdFlags, eventfd};
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
        Arc::new(Self {
            state: Mutex::default(),
            changed: Condvar::new(),
            in_flight: AtomicUsize::new(0),
            event,
        })
    }

    fn submit(&self) -> Arc<Request> {
        let request = Arc::new(Request::default());
        self.in_flight.fetch_add(1, Ordering::SeqCst);
        self.state.lock().unwrap().submitted.push_back(request.clone());
        rustix::io::write(&self.event, &1_u64.to_ne_bytes()).unwrap();
        self.changed.notify_all();
        request
    }

    async fn read(&self) {
        let request = self.submit();
        poll_fn(|cx| {
            let mut slot = request.0.lock().unwrap();
            slot.1 = Some(cx.waker().clone());
            if slot.0 { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }
}

impl Driver for Lazy {
    fn drive(&self, wait: Wait) {
        let mut state = self.state.lock().unwrap();
        state.inside += 1;
        state.most_inside = state.most_inside.max(state.inside);
        let has_some = |state: &LazyState| !state.is_held && !state.submitted.is_empty();
        while wait == Wait::UntilSome && !has_some(&state) && state.interrupts == 0 {
            state = self.changed.wait(state).unwrap();
        }
        state.interrupts = 0;
        // Completes one request at a time, so that threads have to take turns.
        let done = if has_some(&state) { state.submitted.pop_front() } else { None };
        if state.submitted.is_empty() {
            let _ = rustix::io::read(&self.event, &mut [0_u8; 8]);
        }
        state.inside -= 1;
        drop(state);
        if let Some(request) = done {
            let waker = {
                let mut slot = request.0.lock().unwrap();
                slot.0 = true;
                slot.1.take()
            };
            self.in_flight.fetch_sub(1, Ordering::SeqCst);
            if let Some(waker) = waker {
                waker.wake();
            }
        }
    }

    fn interrupt(&self) {
        self.state.lock().unwrap().interrupts += 1;
        self.changed.notify_all();
    }

    fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::SeqCst)
    }

    fn poll_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

#[test]
fn the_thread_that_waits_drives_the_io_itself() {
    let rt = world();
    let lazy = Lazy::new();
    let _handle = rt.register_driver(lazy.clone());
    for _ in 0..100 {
        rt.block_on(lazy.read()).unwrap();
    }
    assert_eq!(rt.counter(Counter::DriverSittings), 100);
    assert_eq!(rt.counter(Counter::TasksSpawned), 0);
}

#[test]
fn a_future_that_is_ready_does_not_make_its_thread_drive() {
    let rt = world();
    let lazy = Lazy::new();
    let _handle = rt.register_driver(lazy.clone());
    drop(lazy.submit());
    for n in 0..1000 {
        assert_eq!(rt.block_on(async { n }).unwrap(), n);
    }
    assert_eq!(rt.counter(Counter::DriverSittings), 0, "the thread itself drives only when it must wait");
}

#[test]
fn threads_and_tasks_take_turns_at_several_drivers_and_none_is_forgotten() {
    let rt = world();
    for drivers in [1, 3] {
        let lazies: Vec<_> = (0..drivers).map(|_| Lazy::new()).collect();
        let handles: Vec<_> = lazies.iter().map(|lazy| rt.register_driver(lazy.clone())).collect();
        let tasks: Vec<_> = (0..4)
            .map(|n| {
                let lazy = lazies[n % drivers].clone();
                rt.spawn("reader", Class::Normal, async move {
                    for _ in 0..200 {
                        lazy.read().await;
                    }
                })
            })
            .collect();
        std::thread::scope(|scope| {
            for n in 0..4 {
                let (rt, lazy) = (&rt, &lazies[n % drivers]);
                scope.spawn(move || {
                    for _ in 0..200 {
                        rt.block_on(lazy.read()).unwrap();
                    }
                });
            }
        });
        rt.block_on(async {
            for task in tasks {
                task.await.unwrap();
            }
        })
        .unwrap();
        assert!(lazies.iter().all(|lazy| lazy.in_flight() == 0));
        assert!(lazies.iter().all(|lazy| lazy.state.lock().unwrap().most_inside <= 2));
        drop(handles);
    }
    assert!(rt.shutdown(Nanos::from_secs(10)).in_flight.is_empty());
}

#[test]
fn a_thread_that_is_woken_to_drive_and_is_busy_keeps_no_other_waiting() {
    let rt = world();
    let lazy = Lazy::new();
    let _handle = rt.register_driver(lazy.clone());
    // Nothing completes before all threads are waiting.
    lazy.state.lock().unwrap().is_held = true;
    let polls = AtomicUsize::new(0);
    let waker = Mutex::new(None::<Waker>);
    let (told, hears) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let (rt, lazy, polls, waker) = (&rt, &lazy, &polls, &waker);
        let first = scope.spawn(move || rt.block_on(lazy.read()).unwrap());
        while lazy.state.lock().unwrap().inside == 0 {
            std::thread::yield_now();
        }
        // Acts like a thread with much to do when polled again. The timeout ends a failing test.
        let busy = scope.spawn(move || {
            let busy = poll_fn(|cx| {
                *waker.lock().unwrap() = Some(cx.waker().clone());
                match polls.fetch_add(1, Ordering::SeqCst) {
                    0 => Poll::Pending,
                    _ => Poll::Ready(hears.recv_timeout(std::time::Duration::from_secs(60)).is_ok()),
                }
            });
            rt.block_on(busy).unwrap()
        });
        while polls.load(Ordering::SeqCst) == 0 {
            std::thread::yield_now();
        }
        let last = scope.spawn(move || {
            rt.block_on(lazy.read()).unwrap();
            told.send(()).unwrap();
        });
        while lazy.in_flight() < 2 {
            std::thread::yield_now();
        }
        lazy.state.lock().unwrap().is_held = false;
        lazy.changed.notify_all();
        first.join().unwrap();
        last.join().unwrap();
        // If the busy thread was slow to take the seat, nothing may have woken it.
        waker.lock().unwrap().take().expect("it was polled").wake();
        assert!(busy.join().unwrap(), "the last one's request was done while it was busy");
    });
}

#[test]
fn a_thread_that_has_what_it_waited_for_and_is_busy_keeps_no_task_waiting() {
    let rt = world();
    let lazy = Lazy::new();
    let _handle = rt.register_driver(lazy.clone());
    // The driver completes nothing before both threads are waiting.
    lazy.state.lock().unwrap().is_held = true;
    let (told, hears) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let (rt, lazy) = (&rt, &lazy);
        let busy = scope.spawn(move || {
            let reads_and_is_busy = async {
                lazy.read().await;
                // The limit ends a failing test.
                hears.recv_timeout(std::time::Duration::from_secs(20)).is_ok()
            };
            rt.block_on(reads_and_is_busy).unwrap()
        });
        while lazy.state.lock().unwrap().inside == 0 {
            std::thread::yield_now();
        }
        let inside = lazy.clone();
        let task = rt.spawn("task", Class::Normal, async move {
            inside.read().await;
            // In a failing test the receiver is gone.
            let _ = told.send(());
        });
        while lazy.in_flight() < 2 {
            std::thread::yield_now();
        }
        // The worker has polled the task; it finds the seat taken, and parks.
        rt.block_on(rt.spawn("next", Class::Normal, async {})).unwrap().unwrap();
        lazy.state.lock().unwrap().is_held = false;
        lazy.changed.notify_all();
        assert!(busy.join().unwrap(), "the task's request was done while the thread was busy");
        rt.block_on(task).unwrap().unwrap();
    });
}

#[test]
fn a_thread_that_drives_for_others_and_then_is_busy_keeps_no_other_waiting() {
    let rt = world();
    let lazy = Lazy::new();
    let _handle = rt.register_driver(lazy.clone());
    // Nothing completes before both threads are waiting.
    lazy.state.lock().unwrap().is_held = true;
    let is_busy = AtomicBool::new(false);
    let (told, hears) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let (rt, lazy, is_busy) = (&rt, &lazy, &is_busy);
        // Gives the runtime I/O to drive. No thread waits for this request.
        let other = lazy.submit();
        // This thread gives up the seat without being woken, and is then busy. The timeout ends a
        // failing test.
        let busy = scope.spawn(move || {
            let busy = poll_fn(|_| match is_busy.load(Ordering::SeqCst) {
                false => Poll::Pending,
                true => Poll::Ready(hears.recv_timeout(std::time::Duration::from_secs(20)).is_ok()),
            });
            rt.block_on(busy).unwrap()
        });
        while lazy.state.lock().unwrap().inside == 0 {
            std::thread::yield_now();
        }
        let last = scope.spawn(move || {
            rt.block_on(lazy.read()).unwrap();
            told.send(()).unwrap();
        });
        while lazy.in_flight() < 2 {
            std::thread::yield_now();
        }
        is_busy.store(true, Ordering::SeqCst);
        lazy.state.lock().unwrap().is_held = false;
        lazy.changed.notify_all();
        last.join().unwrap();
        assert!(busy.join().unwrap(), "the last one's request was done while the other was busy");
        assert!(other.0.lock().unwrap().0);
    });
}

#[test]
fn io_without_a_waiter_is_driven_by_a_worker() {
    for workers_are_there_first in [false, true] {
        let rt = world();
        if workers_are_there_first {
            rt.block_on(rt.spawn("starts the workers", Class::Normal, async {})).unwrap().unwrap();
        }
        let lazy = Lazy::new();
        let _handle = rt.register_driver(lazy.clone());
        rt.block_on(async { drop(lazy.submit()) }).unwrap();
        // Waits by polling a counter, since waiting in block_on would drive.
        while lazy.in_flight() > 0 {
            std::thread::yield_now();
        }
    }
}

#[test]
fn io_of_a_caller_that_panics_is_driven_by_a_worker() {
    let rt = world();
    let lazy = Lazy::new();
    let _handle = rt.register_driver(lazy.clone());
    let panicked = rt.block_on(async {
        drop(lazy.submit());
        panic!("a caller's mistake");
    });
    assert!(matches!(panicked, Err(RtError::Panicked { .. })), "{panicked:?}");
    // Bounded, so that the test fails instead of hanging.
    for _ in 0..10_000_000 {
        if lazy.in_flight() == 0 {
            return;
        }
        std::thread::yield_now();
    }
    panic!("no thread drives what is in flight");
}

#[test]
fn io_goes_on_while_every_worker_has_tasks_to_run() {
    let rt = world();
    let lazy = Lazy::new();
    let _handle = rt.register_driver(lazy.clone());
    let (read, gave_up) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    for _ in 0..8 {
        let (task_rt, read, gave_up) = (rt.clone(), read.clone(), gave_up.clone());
        let busy = async move {
            let mut budget = task_rt.budget(Nanos::from_micros(20));
            // Bounded, so that the test fails instead of hanging.
            for _ in 0..10_000_000 {
                if read.load(Ordering::SeqCst) {
                    return;
                }
                budget.resched().await;
            }
            gave_up.fetch_add(1, Ordering::SeqCst);
        };
        drop(rt.spawn("busy", Class::Normal, busy));
    }
    let (reader, done) = (lazy.clone(), read.clone());
    let reads = async move {
        for _ in 0..100 {
            reader.read().await;
        }
        done.store(true, Ordering::SeqCst);
    };
    drop(rt.spawn("reader", Class::Normal, reads));
    // This thread does not wait in block_on, where it would drive.
    while rt.counter(Counter::TasksEnded) < 9 {
        std::thread::yield_now();
    }
    assert_eq!((lazy.in_flight(), gave_up.load(Ordering::SeqCst)), (0, 0));
}

#[test]
fn a_driving_thread_hears_a_wake_up_from_elsewhere() {
    let rt = world();
    let lazy = Lazy::new();
    let _handle = rt.register_driver(lazy.clone());
    // Something is always in flight, so a waiting thread takes the seat to drive.
    lazy.in_flight.fetch_add(1, Ordering::SeqCst);
    let rt2 = rt.clone();
    let task = rt.spawn("sleeper", Class::Normal, async move { rt2.sleep(Nanos::from_millis(5)).await });
    rt.block_on(task).unwrap().unwrap();
    rt.block_on(rt.sleep(Nanos::from_millis(5))).unwrap();
    lazy.in_flight.fetch_sub(1, Ordering::SeqCst);
}

#[test]
fn a_panic_in_what_a_dropped_task_held_is_reported_too() {
    struct Fragile;
    impl Drop for Fragile {
        fn drop(&mut self) {
            panic!("broken");
        }
    }
    let rt = world();
    let fragile = Fragile;
    let held = rt.spawn("holder", Class::Normal, async move {
        let _held = fragile;
        std::future::pending::<()>().await
    });
    let report = rt.shutdown(Nanos::ZERO);
    assert_eq!(report.in_flight, ["holder"]);
    assert_eq!(report.panicked, [("holder".to_owned(), "broken".to_owned())]);
    let ended = rt.block_on(held).unwrap();
    assert_eq!(ended, Err(RtError::ShutDown { name: "holder".into() }));
}

#[test]
fn block_on_inside_a_task_a_completion_or_itself_is_refused() {
    let rt = world();
    let nested = |rt: &Rt| rt.block_on(async { 1 });
    let inside = rt.clone();
    let task = rt.spawn("task", Class::Normal, async move { nested(&inside) });
    assert_eq!(rt.block_on(task).unwrap(), Ok(Err(RtError::Nested)));
    assert_eq!(rt.block_on(async { nested(&rt) }).unwrap(), Err(RtError::Nested));
    // Blocking work has a thread of its own and may block.
    let inside = rt.clone();
    let work = rt.spawn_blocking("work", move || nested(&inside));
    assert_eq!(rt.block_on(work).unwrap(), Ok(Ok(1)));
    assert_eq!(nested(&rt), Ok(1), "and the thread may wait again");
    let sentence = RtError::Nested.to_string();
    assert!(sentence.ends_with("await the future instead"), "{sentence}");
}

/// A driver that counts what threads other than this one do. The flag says whether workers may. If
/// they may, they reap nothing in passing.
struct Own(Arc<Lazy>, std::thread::ThreadId, AtomicUsize, bool);

impl Driver for Own {
    fn drive(&self, wait: Wait) {
        if std::thread::current().id() != self.1 {
            if self.3 && wait == Wait::Not {
                return;
            }
            self.2.fetch_add(1, Ordering::SeqCst);
        }
        self.0.drive(wait);
    }
    fn interrupt(&self) {
        self.0.interrupt();
    }
    fn in_flight(&self) -> usize {
        self.0.in_flight()
    }
    fn poll_fd(&self) -> BorrowedFd<'_> {
        self.0.poll_fd()
    }
    fn is_for_workers(&self) -> bool {
        self.3
    }
}

#[test]
fn workers_leave_a_driver_alone_that_is_not_for_them() {
    let rt = world();
    let own = Arc::new(Own(Lazy::new(), std::thread::current().id(), AtomicUsize::new(0), false));
    let shared = Lazy::new();
    let _handles = [rt.register_driver(own.clone()), rt.register_driver(shared.clone())];
    let request = own.0.submit();
    let (done, is_done) = std::sync::mpsc::channel();
    let task = rt.spawn("reader", Class::Normal, async move {
        for _ in 0..100 {
            shared.read().await;
        }
        done.send(()).unwrap();
    });
    // Not in `block_on`: only workers drive.
    is_done.recv().unwrap();
    assert!(!request.0.lock().unwrap().0 && own.2.load(Ordering::SeqCst) == 0);
    rt.attend(own.0.read()).unwrap();
    assert!(request.0.lock().unwrap().0 && own.2.load(Ordering::SeqCst) == 0);
    rt.block_on(task).unwrap().unwrap();
}

#[test]
fn no_worker_reaps_what_a_thread_has_promised_to() {
    let rt = world();
    let io = Arc::new(Own(Lazy::new(), std::thread::current().id(), AtomicUsize::new(0), true));
    let _handle = rt.register_driver(io.clone());
    let attending = async {
        let promise = rt.reaping();
        let request = io.0.submit();
        for _ in 0..100 {
            rt.ensure_driven();
            // The worker that runs this task is idle before and after it.
            let (done, is_done) = std::sync::mpsc::channel();
            drop(rt.spawn("task", Class::Normal, async move { done.send(()).unwrap() }));
            is_done.recv().unwrap();
        }
        assert!(!request.0.lock().unwrap().0 && io.2.load(Ordering::SeqCst) == 0);
        drop(promise);
        while !request.0.lock().unwrap().0 {
            std::thread::yield_now();
        }
    };
    rt.attend(attending).unwrap();
    assert!(io.2.load(Ordering::SeqCst) > 0);
}

/// Waits until a thread of this process sleeps in the kernel.
fn wait_until_asleep(thread: rustix::process::Pid) {
    let stat = format!("/proc/self/task/{}/stat", thread.as_raw_nonzero());
    // The state follows the name, which is in parentheses.
    while !std::fs::read_to_string(&stat).unwrap().rsplit(')').next().unwrap().starts_with(" S") {
        std::thread::yield_now();
    }
}

/// A thread that has promised to reap parks, because nothing is in flight. What a worker starts
/// then is reaped by that worker.
#[test]
#[expect(clippy::disallowed_methods, reason = "a thread that nobody joins, in case it hangs")]
fn a_parked_thread_s_promise_keeps_no_worker_from_reaping() {
    let rt = Rt::real(RealConfig { worker_threads: Some(1), ..RealConfig::default() });
    let lazy = Lazy::new();
    let _handle = rt.register_driver(lazy.clone());
    let (done, is_done) = std::sync::mpsc::channel();
    let (rt2, lazy2) = (rt.clone(), lazy.clone());
    std::thread::spawn(move || {
        let this = rustix::thread::gettid();
        let attending = async {
            let _promise = rt2.reaping();
            let task = rt2.spawn("task", Class::Normal, async move {
                wait_until_asleep(this);
                lazy2.read().await;
            });
            task.await.unwrap();
        };
        rt2.attend(attending).unwrap();
        done.send(()).unwrap();
    });
    let done = is_done.recv_timeout(std::time::Duration::from_secs(60));
    assert!(done.is_ok(), "nobody reaps");
}

/// A driver in which this thread takes every interrupt, and a worker stays until it is let go.
struct Crowded {
    this: std::thread::ThreadId,
    state: Mutex<CrowdedState>,
    changed: Condvar,
    event: OwnedFd,
}

#[derive(Default)]
struct CrowdedState {
    interrupts: usize,
    drives_here: usize,
    is_worker_inside: bool,
    lets_go: bool,
}

impl Driver for Crowded {
    fn drive(&self, _: Wait) {
        let mut state = self.state.lock().unwrap();
        if std::thread::current().id() == self.this {
            state.drives_here += 1;
            while state.interrupts == 0 {
                state = self.changed.wait(state).unwrap();
            }
            state.interrupts = 0;
            return;
        }
        state.is_worker_inside = true;
        while !state.lets_go {
            state = self.changed.wait(state).unwrap();
        }
    }
    fn interrupt(&self) {
        self.state.lock().unwrap().interrupts += 1;
        self.changed.notify_all();
    }
    fn in_flight(&self) -> usize {
        usize::from(!self.state.lock().unwrap().lets_go)
    }
    fn poll_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

#[test]
fn a_thread_leaves_the_processor_to_a_worker_that_is_called_away_from_driving() {
    let rt = Rt::real(RealConfig { worker_threads: Some(1), ..RealConfig::default() });
    let event = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
    let (state, changed) = (Mutex::default(), Condvar::new());
    let crowded = Arc::new(Crowded { this: std::thread::current().id(), state, changed, event });
    let _handle = rt.register_driver(crowded.clone());
    while !crowded.state.lock().unwrap().is_worker_inside {
        rt.ensure_driven();
        std::thread::yield_now();
    }
    let waits = async {
        // The worker is called away, and does not get the processor for a while.
        let task = rt.spawn("task", Class::Normal, async {});
        rt.sleep(Nanos::from_millis(20)).await;
        crowded.state.lock().unwrap().lets_go = true;
        crowded.changed.notify_all();
        task.await.unwrap();
    };
    rt.block_on(waits).unwrap();
    let drives = crowded.state.lock().unwrap().drives_here;
    assert!(drives <= 2, "this thread drove {drives} times beside the worker");
}

/// A driver that is asked to reap once, and records whether its completions may block.
struct Asks(Rt, AtomicUsize, Arc<Lazy>, AtomicBool);

impl Driver for Asks {
    fn drive(&self, _: Wait) {
        self.3.fetch_or(self.0.may_block(), Ordering::SeqCst);
        self.1.store(0, Ordering::SeqCst);
    }
    fn interrupt(&self) {}
    fn in_flight(&self) -> usize {
        self.1.load(Ordering::SeqCst)
    }
    fn poll_fd(&self) -> BorrowedFd<'_> {
        self.2.poll_fd()
    }
}

#[test]
fn only_a_thread_that_polls_what_it_waits_for_may_block() {
    let rt = world();
    assert!(!rt.may_block());
    let calls = async { (rt.may_block(), (0..100).filter(|_| rt.may_block_once()).count()) };
    let (may_block, short_calls) = rt.block_on(calls).unwrap();
    assert!(may_block && (1..100).contains(&short_calls), "{short_calls} short calls in a poll");
    assert!(!rt.may_block_once());
    assert!(!rt.may_block());
    let calls = async { (rt.may_block(), rt.may_block_once(), rt.may_defer()) };
    assert_eq!(rt.attend(calls).unwrap(), (false, false, true), "others wait for this thread");
    let alone = rt.attend(async { rt.alone(|| (rt.may_block(), rt.may_defer())) }).unwrap();
    assert_eq!(alone, (true, true), "nobody else waits for it meanwhile");
    assert!(!rt.alone(|| rt.may_block()), "it polls nothing");
    let inside = rt.clone();
    let tries = async move { inside.alone(|| inside.may_block()) || inside.may_block() || inside.may_wait() };
    let task = rt.spawn("task", Class::Normal, tries);
    assert_eq!(rt.block_on(task).unwrap(), Ok(false), "others wait for a worker");
    assert!(rt.may_wait() && !rt.block_on(async { world().may_wait() }).unwrap());
    let asks = Arc::new(Asks(world(), AtomicUsize::new(1), Lazy::new(), AtomicBool::new(false)));
    let _handle = rt.register_driver(asks.clone());
    while asks.in_flight() > 0 {
        rt.block_on(rt.sleep(Nanos::from_micros(100))).unwrap();
    }
    assert!(!asks.3.load(Ordering::SeqCst), "other completions wait behind one");
}

/// A driver whose completions panic, one per request.
struct Broken(AtomicUsize, Arc<Lazy>);

impl Driver for Broken {
    fn drive(&self, _: Wait) {
        if self.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1)).is_ok() {
            panic!("a completion's mistake");
        }
    }

    fn interrupt(&self) {}

    fn in_flight(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }

    fn poll_fd(&self) -> BorrowedFd<'_> {
        self.1.poll_fd()
    }
}

#[test]
fn a_completion_that_panics_harms_neither_the_waiting_thread_nor_a_worker() {
    let rt = world();
    let broken = Arc::new(Broken(AtomicUsize::new(10), Lazy::new()));
    let handle = rt.register_driver(broken.clone());
    while broken.in_flight() > 5 {
        assert_eq!(rt.block_on(rt.sleep(Nanos::from_micros(100))), Ok(()));
    }
    // The rest is left to the workers, each of which must survive.
    let task = || rt.spawn("task", Class::Normal, async { 7 });
    rt.block_on(task()).unwrap().unwrap();
    while broken.in_flight() > 0 {
        rt.ensure_driven();
        std::thread::yield_now();
    }
    drop(handle);
    let tasks: Vec<_> = (0..8).map(|_| task()).collect();
    for task in tasks {
        assert_eq!(rt.block_on(task).unwrap(), Ok(7));
    }
    let panicked = rt.shutdown(Nanos::from_secs(10)).panicked;
    assert_eq!(panicked, vec![("completion".to_owned(), "a completion's mistake".to_owned()); 10]);
}

#[test]
fn a_task_that_sleeps_after_the_shutdown_wakes_up() {
    let rt = world();
    rt.block_on(rt.sleep(Nanos::from_millis(1))).unwrap();
    let _ = rt.shutdown(Nanos::ZERO);
    rt.block_on(rt.sleep(Nanos::from_millis(1))).unwrap();
}

#[test]
#[expect(clippy::disallowed_methods, reason = "this needs a thread outside every world")]
fn a_thread_that_sleeps_while_its_world_ends_wakes_up() {
    let rt = world();
    let sleeps = Arc::new(std::sync::Barrier::new(2));
    let (inside, begun) = (rt.clone(), sleeps.clone());
    let (tell, woken) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut sleep = pin!(inside.sleep(Nanos::from_millis(100)));
        let mut is_first = true;
        let slept = poll_fn(|cx| {
            let slept = sleep.as_mut().poll(cx);
            if std::mem::replace(&mut is_first, false) {
                begun.wait();
            }
            slept
        });
        tell.send(inside.block_on(slept)).unwrap();
    });
    sleeps.wait();
    assert!(rt.shutdown(Nanos::ZERO).in_flight.is_empty());
    let woken = woken.recv_timeout(std::time::Duration::from_secs(120));
    assert_eq!(woken.expect("its timer is not forgotten"), Ok(()));
}
