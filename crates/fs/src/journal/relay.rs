//! One future, driven by those who wait for its end.
//!
//! A commit runs on the task of the first fsync that needs it, because a wake across processors costs more than most of
//! the commit. That task may be dropped at any time, so the commit does not belong to it: every waiter that is polled
//! drives it on.

use parking_lot::Mutex;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Room for one future at a time.
#[derive(Default)]
pub(super) struct Relay {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    work: Stage,
    /// Put in while the last piece had done its work and its driver had yet to say so.
    next: Option<Work>,
    waiters: Vec<Waker>,
}

#[derive(Default)]
enum Stage {
    #[default]
    Idle,
    Parked(Work),
    /// A waiter polls it at this moment; whether it is to be polled again at once.
    Driven(bool),
}

impl Relay {
    /// Puts a future in. The one before it has ended, in the eyes of those who wait for what it did, if not in its
    /// driver's.
    pub(super) fn start(&self, work: impl Future<Output = ()> + Send + 'static) {
        let mut state = self.state.lock();
        match state.work {
            Stage::Idle => state.work = Stage::Parked(Box::pin(work)),
            Stage::Driven(_) if state.next.is_none() => state.next = Some(Box::pin(work)),
            _ => panic!("one piece of work at a time"),
        }
    }

    /// Whether there is no work.
    pub(super) fn is_idle(&self) -> bool {
        matches!(self.state.lock().work, Stage::Idle)
    }

    /// Ready when no work is left.
    pub(super) fn join(&self) -> Join<'_> {
        Join { relay: self, polled: false }
    }

    fn poll(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut work = {
            let mut state = self.state.lock();
            match std::mem::take(&mut state.work) {
                Stage::Idle => return Poll::Ready(()),
                Stage::Driven(_) => {
                    state.work = Stage::Driven(true);
                    state.wait(cx);
                    return Poll::Pending;
                }
                Stage::Parked(work) => {
                    state.work = Stage::Driven(false);
                    state.wait(cx);
                    work
                }
            }
        };
        let driving = Driving(self);
        loop {
            let polled = work.as_mut().poll(cx);
            if polled.is_ready() {
                let mut state = self.state.lock();
                if let Some(next) = state.next.take() {
                    work = next;
                    state.work = Stage::Driven(false);
                    continue;
                }
                drop(state);
                drop(driving);
                return Poll::Ready(());
            }
            let mut state = self.state.lock();
            if !matches!(state.work, Stage::Driven(true)) {
                state.work = Stage::Parked(work);
                std::mem::forget(driving);
                return Poll::Pending;
            }
            // Another waiter was woken for it while it was being polled here.
            state.work = Stage::Driven(false);
        }
    }
}

/// Dropped when the work has ended, by a panic, too: it has no waiters left.
struct Driving<'r>(&'r Relay);

impl Drop for Driving<'_> {
    fn drop(&mut self) {
        let waiters = {
            let mut state = self.0.state.lock();
            state.work = state.next.take().map_or(Stage::Idle, Stage::Parked);
            std::mem::take(&mut state.waiters)
        };
        waiters.into_iter().for_each(Waker::wake);
    }
}

impl State {
    fn wait(&mut self, cx: &Context<'_>) {
        if !self.waiters.iter().any(|waker| waker.will_wake(cx.waker())) {
            self.waiters.push(cx.waker().clone());
        }
    }
}

impl std::fmt::Debug for Relay {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Relay")
    }
}

/// Waits for the end of the work that is there; drives it meanwhile.
pub(super) struct Join<'a> {
    relay: &'a Relay,
    polled: bool,
}

impl Future for Join<'_> {
    type Output = ();
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let polled = self.relay.poll(cx);
        // The end of the work needs no successor: with many waiters each would wake all that wait for the next work.
        self.polled = polled.is_pending();
        polled
    }
}

impl Drop for Join<'_> {
    fn drop(&mut self) {
        // The work may wait for this task's waker: another takes over.
        if self.polled {
            let waiters = std::mem::take(&mut self.relay.state.lock().waiters);
            waiters.into_iter().for_each(Waker::wake);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use extant_rt::{Class, Nanos, Rt};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[test]
    fn work_that_follows_at_once_is_driven_on() {
        let rt = Rt::real(Default::default());
        let relay = Arc::new(Relay::default());
        let done = Arc::new(AtomicU32::new(0));
        let (inside, next) = (done.clone(), relay.clone());
        relay.start(async move {
            // As another thread does that sees the end before the driver does.
            next.start(async move {
                inside.fetch_add(1, Ordering::SeqCst);
            });
        });
        rt.block_on(relay.join()).unwrap();
        assert_eq!(done.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn a_panic_ends_the_wait_of_all() {
        let rt = Rt::real(Default::default());
        let relay = Relay::default();
        relay.start(async { panic!("on purpose") });
        rt.block_on(async {
            let (mut first, mut second) = (relay.join(), relay.join());
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

    #[test]
    fn work_goes_on_though_the_task_that_began_it_is_dropped() {
        let rt = Rt::real(Default::default());
        let relay = Arc::new(Relay::default());
        let done = Arc::new(AtomicU32::new(0));
        let (inside, timer) = (done.clone(), rt.clone());
        relay.start(async move {
            for _ in 0..3 {
                timer.sleep(Nanos::from_millis(1)).await;
            }
            inside.fetch_add(1, Ordering::SeqCst);
        });
        rt.block_on(async {
            let mut first = relay.join();
            std::future::poll_fn(|cx| Poll::Ready(Pin::new(&mut first).poll(cx))).await.is_pending();
            let others: Vec<_> = (0..4)
                .map(|_| {
                    let relay = relay.clone();
                    rt.spawn("follower", Class::Normal, async move { relay.join().await })
                })
                .collect();
            drop(first);
            for other in others {
                other.await.unwrap();
            }
        })
        .unwrap();
        assert_eq!(done.load(Ordering::SeqCst), 1);
        rt.block_on(relay.join()).unwrap();
    }
}
