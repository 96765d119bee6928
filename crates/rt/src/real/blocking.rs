//! A bounded pool of threads for blocking work.

use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::JoinHandle;

type Job = Box<dyn FnOnce() + Send>;

pub(super) struct Pool {
    most_threads: usize,
    state: Mutex<State>,
    work: Condvar,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    threads: Vec<JoinHandle<()>>,
    idle: usize,
    stop: bool,
}

impl Pool {
    pub(super) fn new(most_threads: usize) -> Self {
        Self { most_threads: most_threads.max(1), state: Mutex::default(), work: Condvar::new() }
    }

    /// Queues a job; after `stop`, drops it.
    pub(super) fn submit(self: &Arc<Self>, job: Job) {
        let mut state = self.state.lock();
        if state.stop {
            drop(state);
            drop(job);
            return;
        }
        state.jobs.push_back(job);
        if state.idle >= state.jobs.len() {
            self.work.notify_one();
        } else if state.threads.len() < self.most_threads {
            let pool = self.clone();
            let name = format!("extant-blocking-{}", state.threads.len());
            match std::thread::Builder::new().name(name).spawn(move || pool.run()) {
                Ok(thread) => state.threads.push(thread),
                // The process may be out of threads; the existing ones do the work.
                Err(_) if !state.threads.is_empty() => {}
                Err(error) => panic!("the process may start a thread: {error}"),
            }
        }
    }

    fn run(&self) {
        let mut state = self.state.lock();
        while !state.stop {
            match state.jobs.pop_front() {
                // A job catches its own panic.
                Some(job) => parking_lot::MutexGuard::unlocked(&mut state, job),
                None => {
                    state.idle += 1;
                    self.work.wait(&mut state);
                    state.idle -= 1;
                }
            }
        }
    }

    /// Drops queued jobs and makes each thread exit once it has finished its job; if `join`, waits
    /// for them.
    pub(super) fn stop(&self, join: bool) {
        let (jobs, threads) = {
            let mut state = self.state.lock();
            state.stop = true;
            self.work.notify_all();
            (std::mem::take(&mut state.jobs), std::mem::take(&mut state.threads))
        };
        drop(jobs);
        if join {
            threads.into_iter().for_each(|thread| super::join(Some(thread)));
        }
    }
}
