//! Background work of a journal: commits by age or size, and checkpoints.

use super::Inner;
use extant_rt::{Class, Nanos};
use parking_lot::Mutex;
use std::future::poll_fn;
use std::sync::{Arc, Weak};
use std::task::{Poll, Waker};

/// Requests to the background tasks.
#[derive(Debug, Default)]
pub(super) struct Signals(Arc<Mutex<Wanted>>);

#[derive(Debug, Default)]
struct Wanted {
    commit: bool,
    /// Commit regardless of age.
    commit_now: bool,
    checkpoint: bool,
    closed: bool,
    wakers: Vec<Waker>,
}

impl Signals {
    /// The running transaction has something to commit.
    pub(super) fn dirty(&self) {
        self.set(|wanted| wanted.commit = true);
    }

    /// The running transaction is so large that operations would soon have to wait for its commit.
    pub(super) fn large(&self) {
        self.set(|wanted| wanted.commit_now = true);
    }

    /// Enough has been committed to be worth writing home.
    pub(super) fn checkpoint(&self) {
        self.set(|wanted| wanted.checkpoint = true);
    }

    /// Ends the tasks.
    pub(super) fn close(&self) {
        self.set(|wanted| wanted.closed = true);
    }

    fn set(&self, change: impl FnOnce(&mut Wanted)) {
        let wakers = {
            let mut wanted = self.0.lock();
            change(&mut wanted);
            std::mem::take(&mut wanted.wakers)
        };
        wakers.into_iter().for_each(Waker::wake);
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        self.close();
    }
}

/// Waits until `take` accepts a request. Returns false once the journal is closed.
async fn next(signals: &Mutex<Wanted>, mut take: impl FnMut(&mut Wanted) -> bool) -> bool {
    poll_fn(|cx| {
        let mut wanted = signals.lock();
        if wanted.closed {
            return Poll::Ready(false);
        }
        if take(&mut wanted) {
            return Poll::Ready(true);
        }
        if !wanted.wakers.iter().any(|waker| waker.will_wake(cx.waker())) {
            wanted.wakers.push(cx.waker().clone());
        }
        Poll::Pending
    })
    .await
}

/// Starts the tasks. They end when the journal is closed or dropped.
pub(super) fn spawn(inner: &Arc<Inner>, interval: Nanos) {
    let (rt, signals, weak) = (inner.rt.clone(), inner.background.0.clone(), Arc::downgrade(inner));
    let committer = async move {
        while next(&signals, |wanted| std::mem::take(&mut wanted.commit)).await {
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
    let (signals, weak) = (inner.background.0.clone(), Arc::downgrade(inner));
    let early = async move {
        while next(&signals, |wanted| std::mem::take(&mut wanted.commit_now)).await {
            let Some(journal) = journal(&weak) else { break };
            if journal.inner.lock().is_large() {
                let _ = journal.commit(journal.running()).await;
            }
        }
    };
    drop(inner.rt.spawn("journal commit", Class::Normal, early));
    let (signals, weak) = (inner.background.0.clone(), Arc::downgrade(inner));
    let checkpointer = async move {
        while next(&signals, |wanted| std::mem::take(&mut wanted.checkpoint)).await {
            let Some(journal) = journal(&weak) else { break };
            let _ = journal.checkpoint().await;
        }
    };
    drop(inner.rt.spawn("journal checkpoint", Class::Normal, checkpointer));
}

fn journal(weak: &Weak<Inner>) -> Option<super::Journal> {
    weak.upgrade().map(|inner| super::Journal { inner })
}
