//! Timers: one thread that sleeps until the next one is due.

use crate::{Nanos, TimerId};
use parking_lot::{Condvar, Mutex};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::task::Waker;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

pub(super) struct Timers {
    origin: Instant,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Ordered by time, then by order of arming.
    due: BTreeMap<(Nanos, u64), Waker>,
    times: BTreeMap<u64, Nanos>,
    next_id: u64,
    thread: Option<JoinHandle<()>>,
    /// Number of threads stopped so far: a thread exits once it is no longer the newest.
    stopped: u64,
}

impl Timers {
    pub(super) fn new(origin: Instant) -> Self {
        Self { origin, state: Mutex::default(), changed: Condvar::new() }
    }

    pub(super) fn arm(self: &Arc<Self>, at: Nanos, waker: &Waker) -> TimerId {
        let mut state = self.state.lock();
        let id = state.next_id;
        state.next_id += 1;
        let earliest = state.due.first_key_value().is_none_or(|((first, _), _)| at < *first);
        state.due.insert((at, id), waker.clone());
        state.times.insert(id, at);
        if state.thread.is_none() {
            let (timers, nth) = (self.clone(), state.stopped);
            let run = move || timers.run(nth);
            let thread = std::thread::Builder::new().name("extant-timer".into()).spawn(run);
            state.thread = Some(thread.expect("the process may start another thread"));
        } else if earliest {
            self.changed.notify_one();
        }
        TimerId(id)
    }

    /// The time since the world began.
    pub(super) fn now(&self) -> Nanos {
        Nanos(self.origin.elapsed().as_nanos() as u64)
    }

    pub(super) fn cancel(&self, id: TimerId) {
        let mut state = self.state.lock();
        if let Some(at) = state.times.remove(&id.0) {
            let waker = state.due.remove(&(at, id.0));
            drop(state);
            drop(waker);
        }
    }

    fn run(&self, nth: u64) {
        let mut state = self.state.lock();
        while state.stopped == nth {
            let now = self.now();
            match state.due.first_key_value().map(|(key, _)| *key) {
                None => self.changed.wait(&mut state),
                Some((at, id)) if at <= now => {
                    let waker = state.due.remove(&(at, id));
                    state.times.remove(&id);
                    parking_lot::MutexGuard::unlocked(&mut state, || waker.map(Waker::wake));
                }
                Some((at, _)) => {
                    self.changed.wait_for(&mut state, Duration::from_nanos((at - now).0));
                }
            }
        }
    }

    /// Stops the thread and fires all timers, since no thread would fire them later. A sleep with
    /// time left re-arms its timer. A sleep that begins during or after the stop starts a new
    /// thread. The caller may be the timers' thread itself, when a waker drops the last handle to
    /// its world.
    pub(super) fn stop(&self) {
        let (thread, wakers) = {
            let mut state = self.state.lock();
            state.stopped += 1;
            state.times.clear();
            self.changed.notify_all();
            (state.thread.take(), std::mem::take(&mut state.due))
        };
        wakers.into_values().for_each(Waker::wake);
        super::join(thread);
    }
}
