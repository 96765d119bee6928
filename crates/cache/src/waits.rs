//! Waiting for things that come in numbers: frames, room for dirty pages; and for what concerns every waiter: work for a
//! flusher, the end of a write. Pages are waited for in the world's keyed wait table, where a wake is for all.
//!
//! A waiter listens first, looks at what it waits for, and then awaits; a wake in between is not lost. A wake of a number
//! is a [`Token`]: it stands for one frame, or room for one page. A waiter that leaves without having looked, or finds
//! that it needs nothing any more, passes its token on to the next; one that looked has spent it.

use extant_rt::sync::{AtomicUsize, Mutex, Ordering, fence};
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

/// An object of waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Condition {
    /// Frames became free, or evictable.
    Frames,
    /// Dirty pages were cleaned: anywhere, or on this device.
    Room(Option<u32>),
    /// Pages of this device left write-back.
    Written(u32),
    /// The flusher of this device has something to do.
    Flusher(u32),
    /// The cache is being closed.
    Closing,
}

/// Counters of listeners: keys share them, so that there is a fixed number.
const COUNTERS: usize = 32;

impl Condition {
    /// Whether a wake is for one waiter and stands for one thing.
    fn is_counted(self) -> bool {
        matches!(self, Self::Frames | Self::Room(_))
    }

    fn counter(self) -> usize {
        let of_device = |kind: usize, device: u32| 5 + kind * 9 + device as usize % 9;
        match self {
            Self::Frames => 0,
            Self::Room(None) => 1,
            Self::Closing => 2,
            Self::Room(Some(device)) => of_device(0, device),
            Self::Written(device) => of_device(1, device),
            Self::Flusher(device) => of_device(2, device),
        }
    }
}

#[derive(Debug, Default)]
struct Waiters {
    next: u64,
    listening: BTreeMap<(Condition, u64), Option<Waker>>,
}

#[derive(Debug, Default)]
pub(crate) struct Waits {
    waiters: Mutex<Waiters>,
    /// How many listen, to spare those who wake the lock.
    listening: [AtomicUsize; COUNTERS],
}

impl Waits {
    /// Begins to wait.
    pub(crate) fn listen(self: &Arc<Self>, condition: Condition) -> Listener {
        self.listening[condition.counter()].fetch_add(1, Ordering::SeqCst);
        let mut waiters = self.waiters.lock();
        let ticket = waiters.next;
        waiters.next += 1;
        waiters.listening.insert((condition, ticket), None);
        drop(waiters);
        // The caller may look at an atomic that is read in any order.
        fence(Ordering::SeqCst);
        Listener { waits: self.clone(), condition, ticket, heard: false }
    }

    /// Wakes the `n` that have waited longest. The caller made true what they wait for before, by a
    /// sequentially consistent operation or under a lock that they take. A single load if the list has no waiters.
    pub(crate) fn wake(&self, condition: Condition, n: usize) {
        // Pairs with `listen`: a listener that is not seen here looks after this, and sees what the wake is about.
        // (Loom takes sequentially consistent accesses for weaker ones; it knows fences.)
        #[cfg(extant_loom)]
        fence(Ordering::SeqCst);
        if self.listening[condition.counter()].load(Ordering::SeqCst) == 0 {
            return;
        }
        let mut wakers = Vec::new();
        {
            let mut waiters = self.waiters.lock();
            for _ in 0..n {
                let Some((&id, _)) = waiters.listening.range((condition, 0)..=(condition, u64::MAX)).next()
                else {
                    break;
                };
                wakers.extend(waiters.listening.remove(&id).expect("just seen"));
            }
        }
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Wakes all.
    pub(crate) fn wake_all(&self, condition: Condition) {
        self.wake(condition, usize::MAX);
    }

    /// Whether there are waiters that have not been woken.
    pub(crate) fn has_waiters(&self, condition: Condition) -> bool {
        #[cfg(extant_loom)]
        fence(Ordering::SeqCst);
        let range = (condition, 0)..=(condition, u64::MAX);
        self.listening[condition.counter()].load(Ordering::SeqCst) > 0
            && self.waiters.lock().listening.range(range).next().is_some()
    }

    /// Waiters for all conditions, for audits.
    pub(crate) fn len(&self) -> usize {
        self.listening.iter().map(|count| count.load(Ordering::SeqCst)).sum()
    }
}

/// A place among the waiters. A wake for one that leaves unheard goes to the next.
#[derive(Debug)]
pub(crate) struct Listener {
    waits: Arc<Waits>,
    condition: Condition,
    ticket: u64,
    heard: bool,
}

impl Future for Listener {
    type Output = Token;
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Token> {
        let mut waiters = self.waits.waiters.lock();
        let Some(waker) = waiters.listening.get_mut(&(self.condition, self.ticket)) else {
            drop(waiters);
            self.heard = true;
            return Poll::Ready(Token(
                self.condition.is_counted().then(|| (self.waits.clone(), self.condition)),
            ));
        };
        let old = waker.replace(cx.waker().clone());
        // Its drop may end a task, whose own listeners take the lock.
        drop(waiters);
        drop(old);
        Poll::Pending
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let left = self.waits.waiters.lock().listening.remove(&(self.condition, self.ticket));
        let gone = left.is_none();
        drop(left);
        self.waits.listening[self.condition.counter()].fetch_sub(1, Ordering::SeqCst);
        if gone && !self.heard {
            self.waits.wake(self.condition, 1);
        }
    }
}

/// A wake that was heard. Dropped, it wakes the next.
#[derive(Debug)]
pub(crate) struct Token(Option<(Arc<Waits>, Condition)>);

impl Token {
    /// Its owner looked for what it stands for.
    pub(crate) fn spend(mut self) {
        self.0 = None;
    }
}

impl Drop for Token {
    fn drop(&mut self) {
        if let Some((waits, condition)) = self.0.take() {
            waits.wake(condition, 1);
        }
    }
}

/// A caller that waits for a frame or for room, each time after it has looked and found none.
#[derive(Debug, Default)]
pub(crate) enum Waiting {
    /// For nothing.
    #[default]
    No,
    /// It is to look once more, and then waits.
    Listening(Condition, Listener),
    /// It was woken, and is to look.
    Woken(Condition, Token),
}

impl Waiting {
    /// Waits for `condition`, after the caller has looked for it and found none: the first time it only begins to
    /// listen, so that the caller looks once more.
    pub(crate) async fn wait(&mut self, waits: &Arc<Waits>, condition: Condition) {
        match std::mem::take(self) {
            Self::Listening(listened, listener) if listened == condition => {
                *self = Self::Woken(condition, listener.await);
                return;
            }
            Self::Woken(woken, token) if woken == condition => token.spend(),
            _ => {}
        }
        *self = Self::Listening(condition, waits.listen(condition));
    }

    /// The caller has what it waited for, if that was `condition`.
    pub(crate) fn took(&mut self, condition: impl Fn(Condition) -> bool) {
        if let Self::Woken(woken, token) = std::mem::take(self)
            && condition(woken)
        {
            token.spend();
        }
    }

    /// The caller turns to something else.
    pub(crate) fn leave(&mut self) {
        *self = Self::No;
    }

    /// Whether it has waited for `condition`, and looks.
    pub(crate) fn has_waited(&self, condition: Condition) -> bool {
        matches!(self, Self::Woken(woken, _) if *woken == condition)
    }

    /// Whether it has waited, or is about to.
    pub(crate) fn is_waiting(&self) -> bool {
        !matches!(self, Self::No)
    }
}

#[cfg(all(test, not(extant_loom)))]
mod tests {
    use super::*;
    use std::pin::pin;

    fn poll<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
        future.poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn a_token_that_is_not_spent_goes_to_the_next() {
        let waits = Arc::new(Waits::default());
        let mut first = pin!(waits.listen(Condition::Frames));
        let mut second = pin!(waits.listen(Condition::Frames));
        assert!(poll(first.as_mut()).is_pending() && poll(second.as_mut()).is_pending());
        waits.wake(Condition::Frames, 1);
        let Poll::Ready(token) = poll(first.as_mut()) else { panic!("it was woken") };
        assert!(poll(second.as_mut()).is_pending());
        drop(token);
        let Poll::Ready(token) = poll(second.as_mut()) else { panic!("the token was passed on") };
        token.spend();
    }

    #[test]
    fn a_wake_for_all_is_not_passed_on() {
        let waits = Arc::new(Waits::default());
        let mut first = pin!(waits.listen(Condition::Written(3)));
        waits.wake_all(Condition::Written(3));
        let mut second = pin!(waits.listen(Condition::Written(3)));
        assert!(poll(first.as_mut()).is_ready(), "and its token is dropped");
        assert!(poll(second.as_mut()).is_pending());
    }

    #[test]
    fn a_listener_that_leaves_after_its_wake_passes_it_on() {
        let waits = Arc::new(Waits::default());
        let first = waits.listen(Condition::Room(Some(1)));
        let mut second = pin!(waits.listen(Condition::Room(Some(1))));
        waits.wake(Condition::Room(Some(1)), 1);
        assert!(poll(second.as_mut()).is_pending());
        drop(first);
        assert!(poll(second.as_mut()).is_ready());
        assert_eq!(waits.len(), 1, "the second has not been dropped yet");
    }
}
