//! Background work of a journal: commits by age or size, and checkpoints.

use super::Inner;
use extant_rt::{Class, Nanos, Rt};
use parking_lot::Mutex;
use std::future::poll_fn;
use std::sync::{Arc, Weak};
use std::task::{Poll, Waker};

/// Requests to the background tasks.
#[derive(Debug)]
pub(super) struct Signals {
    wanted: Arc<Mutex<Wanted>>,
    /// Whether a request wakes every task that waits. In a virtual world wakes have a price, and
    /// the published tables contain them.
    wakes_all: bool,
}

#[derive(Debug, Default)]
struct Wanted {
    commit: bool,
    /// Commit regardless of age.
    commit_now: bool,
    checkpoint: bool,
    closed: bool,
    idle: Vec<(Work, Waker)>,
}

/// The tasks. A request wakes only its own: to wake a thread takes longer than many an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Work {
    Commit,
    CommitNow,
    Checkpoint,
}

impl Signals {
    pub(super) fn new(rt: &Rt) -> Self {
        Self { wanted: Arc::default(), wakes_all: rt.is_virtual() }
    }

    /// The running transaction has something to commit.
    pub(super) fn dirty(&self) {
        self.set(Some(Work::Commit), |wanted| wanted.commit = true);
    }

    /// The running transaction is so large that operations would soon have to wait for its commit.
    pub(super) fn large(&self) {
        self.set(Some(Work::CommitNow), |wanted| wanted.commit_now = true);
    }

    /// Enough has been committed to be worth writing home.
    pub(super) fn checkpoint(&self) {
        self.set(Some(Work::Checkpoint), |wanted| wanted.checkpoint = true);
    }

    /// Ends the tasks.
    pub(super) fn close(&self) {
        self.set(None, |wanted| wanted.closed = true);
    }

    /// Changes what is wanted, and wakes the task of this work, or all.
    fn set(&self, work: Option<Work>, change: impl FnOnce(&mut Wanted)) {
        let woken: Vec<_> = {
            let mut wanted = self.wanted.lock();
            change(&mut wanted);
            let is_woken = |idle: Work| self.wakes_all || work.is_none_or(|work| work == idle);
            wanted.idle.extract_if(.., |(work, _)| is_woken(*work)).collect()
        };
        woken.into_iter().for_each(|(_, idle)| idle.wake());
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        self.close();
    }
}

/// Waits until `take` accepts a request for `work`. Returns false once the journal is closed.
async fn next(signals: &Mutex<Wanted>, work: Work, mut take: impl FnMut(&mut Wanted) -> bool) -> bool {
    poll_fn(|cx| {
        let mut wanted = signals.lock();
        if wanted.closed {
            return Poll::Ready(false);
        }
        if take(&mut wanted) {
            return Poll::Ready(true);
        }
        if !wanted.idle.iter().any(|(_, idle)| idle.will_wake(cx.waker())) {
            wanted.idle.push((work, cx.waker().clone()));
        }
        Poll::Pending
    })
    .await
}

/// Starts the tasks. They end when the journal is closed or dropped.
pub(super) fn spawn(inner: &Arc<Inner>, interval: Nanos) {
    let (rt, signals, weak) = (inner.rt.clone(), inner.background.wanted.clone(), Arc::downgrade(inner));
    let committer = async move {
        while next(&signals, Work::Commit, |wanted| std::mem::take(&mut wanted.commit)).await {
            let began = journal(&weak).and_then(|journal| journal.inner.lock().running.began);
            let Some(began) = began else { continue };
            rt.sleep_until(began.saturating_add(interval)).await;
            if signals.lock().closed {
                break;
            }
            let Some(journal) = journal(&weak) else { break };
            let running = journal.running();
            // A failure is latched, so waiters see it.
            let _ = journal.commit(running).await;
        }
    };
    drop(inner.rt.spawn("journal commit", Class::Normal, committer));
    let (signals, weak) = (inner.background.wanted.clone(), Arc::downgrade(inner));
    let early = async move {
        while next(&signals, Work::CommitNow, |wanted| std::mem::take(&mut wanted.commit_now)).await {
            let Some(journal) = journal(&weak) else { break };
            if journal.inner.lock().is_large() {
                let _ = journal.commit(journal.running()).await;
            }
        }
    };
    drop(inner.rt.spawn("journal commit", Class::Normal, early));
    let (signals, weak) = (inner.background.wanted.clone(), Arc::downgrade(inner));
    let checkpointer = async move {
        while next(&signals, Work::Checkpoint, |wanted| std::mem::take(&mut wanted.checkpoint)).await {
            let Some(journal) = journal(&weak) else { break };
            let _ = journal.checkpoint().await;
        }
    };
    drop(inner.rt.spawn("journal checkpoint", Class::Normal, checkpointer));
}

fn journal(weak: &Weak<Inner>) -> Option<super::Journal> {
    weak.upgrade().map(|inner| super::Journal { inner })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::pin;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::task::{Context, Wake};

    #[derive(Default)]
    struct Woken(AtomicU32);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_request_wakes_only_the_task_that_it_is_for() {
        let signals = Signals::new(&Rt::real(extant_rt::RealConfig::default()));
        let woken = [(); 3].map(|()| Arc::<Woken>::default());
        let counts = || woken.each_ref().map(|woken| woken.0.load(Ordering::Relaxed));
        for (work, woken) in [Work::Commit, Work::CommitNow, Work::Checkpoint].into_iter().zip(&woken) {
            let waker = Waker::from(woken.clone());
            let mut task = pin!(next(&signals.wanted, work, |_| false));
            assert!(task.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        }
        signals.dirty();
        assert_eq!(counts(), [1, 0, 0]);
        signals.checkpoint();
        signals.large();
        assert_eq!(counts(), [1, 1, 1]);
        // Nobody waits: a task that works looks again by itself.
        signals.dirty();
        signals.close();
        assert_eq!(counts(), [1, 1, 1]);
    }
}
