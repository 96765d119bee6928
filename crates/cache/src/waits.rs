//! Waiting for things that come in numbers: frames, room for dirty pages; and for what concerns every waiter: work for a
//! flusher, the end of a write. Pages are waited for in the world's keyed wait table, where a wake is for all.
//!
//! A waiter listens first, looks at what it waits for, and then awaits; a wake in between is not lost. A wake of a number
//! is a [`Token`]: it stands for one frame, or room for one page. A waiter that leaves without having looked, or finds
//! that it needs nothing any more, passes its token on to the next; one that looked has spent it. One that does neither for
//! a while, because its future is kept without being polled, is passed over: where others wait, the next is woken as well.

use extant_rt::sync::{AtomicUsize, Mutex, Ordering, fence};
use extant_rt::{Nanos, Rt, Watchdog};
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Wake, Waker};

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
    /// Tokens that were given out while others waited and that are not spent, with the time of that.
    out: BTreeMap<(Condition, u64), Nanos>,
}

impl Waiters {
    fn first(&self, condition: Condition) -> Option<(Condition, u64)> {
        self.listening.range((condition, 0)..=(condition, u64::MAX)).next().map(|(&id, _)| id)
    }
}

#[derive(Debug)]
pub(crate) struct Waits {
    rt: Rt,
    watchdog: Watchdog,
    waiters: Mutex<Waiters>,
    /// How many listen, to spare those who wake the lock.
    listening: [AtomicUsize; COUNTERS],
}

/// Looks at tokens that are out.
struct Ring(Weak<Waits>);

impl Wake for Ring {
    fn wake(self: Arc<Self>) {
        if let Some(waits) = self.0.upgrade() {
            waits.pass_over();
        }
    }
}

impl Waits {
    /// Nobody waits.
    pub(crate) fn new(rt: &Rt) -> Arc<Self> {
        let watchdog = Watchdog::new(rt, Watchdog::PATIENCE);
        Arc::new(Self { rt: rt.clone(), watchdog, waiters: Mutex::default(), listening: Default::default() })
    }

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
    pub(crate) fn wake(self: &Arc<Self>, condition: Condition, n: usize) {
        // Pairs with `listen`: a listener that is not seen here looks after this, and sees what the wake is about.
        // (Loom takes sequentially consistent accesses for weaker ones; it knows fences.)
        #[cfg(extant_loom)]
        fence(Ordering::SeqCst);
        if self.listening[condition.counter()].load(Ordering::SeqCst) == 0 {
            return;
        }
        let mut wakers = Vec::new();
        let is_watched = {
            let mut waiters = self.waiters.lock();
            let mut woken = Vec::new();
            for _ in 0..n {
                let Some(id) = waiters.first(condition) else { break };
                wakers.extend(waiters.listening.remove(&id).expect("just seen"));
                woken.push(id);
            }
            let is_watched =
                condition.is_counted() && !woken.is_empty() && waiters.first(condition).is_some();
            if is_watched {
                let now = self.rt.now();
                waiters.out.extend(woken.into_iter().map(|id| (id, now)));
            }
            is_watched
        };
        wakers.into_iter().for_each(Waker::wake);
        if is_watched {
            self.watch();
        }
    }

    fn watch(self: &Arc<Self>) {
        self.watchdog.watch(|| Waker::from(Arc::new(Ring(Arc::downgrade(self)))));
    }

    /// Wakes another for each token that has been out for long.
    fn pass_over(self: &Arc<Self>) {
        self.watchdog.rang();
        let (overdue, is_early) = {
            let mut waiters = self.waiters.lock();
            let mut overdue = Vec::new();
            waiters.out.retain(|&(condition, _), at| {
                let is_overdue = self.watchdog.is_overdue(*at);
                overdue.extend(is_overdue.then_some(condition));
                !is_overdue
            });
            (overdue, !waiters.out.is_empty())
        };
        overdue.into_iter().for_each(|condition| self.wake(condition, 1));
        if is_early {
            self.watch();
        }
    }

    /// A token is spent, or given to the next.
    fn back(&self, id: (Condition, u64)) {
        self.waiters.lock().out.remove(&id);
    }

    /// Wakes all.
    pub(crate) fn wake_all(self: &Arc<Self>, condition: Condition) {
        self.wake(condition, usize::MAX);
    }

    /// Whether there are waiters that have not been woken.
    pub(crate) fn has_waiters(&self, condition: Condition) -> bool {
        #[cfg(extant_loom)]
        fence(Ordering::SeqCst);
        self.listening[condition.counter()].load(Ordering::SeqCst) > 0
            && self.waiters.lock().first(condition).is_some()
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
        let id = (self.condition, self.ticket);
        let Some(waker) = waiters.listening.get_mut(&id) else {
            let is_watched = waiters.out.contains_key(&id);
            drop(waiters);
            self.heard = true;
            let out = |waits: &Arc<Waits>| Out { waits: waits.clone(), id, is_watched };
            return Poll::Ready(Token(self.condition.is_counted().then(|| out(&self.waits))));
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
        let left = {
            let (mut waiters, id) = (self.waits.waiters.lock(), (self.condition, self.ticket));
            if !self.heard {
                waiters.out.remove(&id);
            }
            waiters.listening.remove(&id)
        };
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
pub(crate) struct Token(Option<Out>);

/// A token that is out.
#[derive(Debug)]
struct Out {
    waits: Arc<Waits>,
    id: (Condition, u64),
    /// Others waited when it was given out.
    is_watched: bool,
}

impl Out {
    fn end(&self) {
        if self.is_watched {
            self.waits.back(self.id);
        }
    }
}

impl Token {
    /// Its owner looked for what it stands for.
    pub(crate) fn spend(mut self) {
        if let Some(out) = self.0.take() {
            out.end();
        }
    }
}

impl Drop for Token {
    fn drop(&mut self) {
        if let Some(out) = self.0.take() {
            out.end();
            out.waits.wake(out.id.0, 1);
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

    fn waits() -> Arc<Waits> {
        Waits::new(&Rt::real(Default::default()))
    }

    fn poll<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
        future.poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn a_token_that_is_not_spent_goes_to_the_next() {
        let waits = waits();
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
        let waits = waits();
        let mut first = pin!(waits.listen(Condition::Written(3)));
        waits.wake_all(Condition::Written(3));
        let mut second = pin!(waits.listen(Condition::Written(3)));
        assert!(poll(first.as_mut()).is_ready(), "and its token is dropped");
        assert!(poll(second.as_mut()).is_pending());
    }

    #[test]
    fn a_listener_that_leaves_after_its_wake_passes_it_on() {
        let waits = waits();
        let first = waits.listen(Condition::Room(Some(1)));
        let mut second = pin!(waits.listen(Condition::Room(Some(1))));
        waits.wake(Condition::Room(Some(1)), 1);
        assert!(poll(second.as_mut()).is_pending());
        drop(first);
        assert!(poll(second.as_mut()).is_ready());
        assert_eq!(waits.len(), 1, "the second has not been dropped yet");
    }

    /// Two listeners, of which the first is woken, in a virtual world.
    fn with_two(check: impl FnOnce(&Rt, &Arc<Waits>, Listener, Pin<&mut Listener>)) {
        let sim = extant_sim::Sim::new(extant_sim::Machine::free(1, extant_sim::Preemption::None), 1);
        let waits = Waits::new(sim.rt());
        let first = waits.listen(Condition::Frames);
        let mut second = pin!(waits.listen(Condition::Frames));
        assert!(poll(second.as_mut()).is_pending());
        waits.wake(Condition::Frames, 1);
        assert!(poll(second.as_mut()).is_pending());
        check(sim.rt(), &waits, first, second);
    }

    fn pass(rt: &Rt) {
        rt.block_on(rt.sleep(Nanos::from_secs(1))).expect("the world goes on");
    }

    #[test]
    fn a_listener_that_is_kept_unpolled_is_passed_over() {
        with_two(|rt, waits, kept, mut second| {
            pass(rt);
            let Poll::Ready(token) = poll(second.as_mut()) else { panic!("it waits for the other") };
            token.spend();
            let mut third = pin!(waits.listen(Condition::Frames));
            let Poll::Ready(late) = poll(pin!(kept)) else { panic!("it was woken") };
            late.spend();
            pass(rt);
            assert!(poll(third.as_mut()).is_pending(), "that was one thing");
        });
    }

    #[test]
    fn a_token_that_is_kept_is_passed_over_and_one_that_was_spent_is_not() {
        with_two(|rt, _, first, mut second| {
            let Poll::Ready(token) = poll(pin!(first)) else { panic!("it was woken") };
            token.spend();
            pass(rt);
            assert!(poll(second.as_mut()).is_pending(), "the other has what it stood for");
        });
        with_two(|rt, waits, first, mut second| {
            let Poll::Ready(token) = poll(pin!(first)) else { panic!("it was woken") };
            pass(rt);
            assert!(poll(second.as_mut()).is_ready());
            drop(token);
            assert!(waits.waiters.lock().out.is_empty());
        });
    }
}
