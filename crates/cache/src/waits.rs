//! Waiting for counted resources (frames, room for dirty pages) and for events that concern every
//! waiter (work for a flusher, the end of a write). Waiting for pages uses the world's keyed wait
//! table, where a wake reaches all waiters.
//!
//! A waiter first listens, then checks what it waits for, then awaits, so that a wake in between is
//! not lost. A wake of a counted resource is a [`Token`]: it stands for one frame, or room for one
//! page. A waiter that has checked again has spent its token. A waiter that leaves without
//! checking, or no longer needs anything, passes its token to the next one. If a waiter does
//! neither for a while, because its future is not polled, it is passed over: the next waiter, if
//! there is one, is woken as well.

use extant_rt::sync::{AtomicUsize, Mutex, Ordering, fence};
use extant_rt::{Nanos, Rt, Watchdog};
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Wake, Waker};

/// What a task waits for.
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

/// Number of listener counters. Devices share them, so that the number is fixed.
const COUNTERS: usize = 32;

impl Condition {
    /// Whether a wake goes to one waiter and stands for one item.
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
    /// Unspent tokens that were handed out while others waited, and when.
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
    /// Number of listeners per counter, so that a wake without listeners takes no lock.
    listening: [AtomicUsize; COUNTERS],
}

/// The watchdog's waker: checks the tokens that are out.
struct Ring(Weak<Waits>);

impl Wake for Ring {
    fn wake(self: Arc<Self>) {
        if let Some(waits) = self.0.upgrade() {
            waits.pass_over();
        }
    }
}

impl Waits {
    /// Creates the table, without waiters.
    pub(crate) fn new(rt: &Rt) -> Arc<Self> {
        let watchdog = Watchdog::new(rt, Watchdog::PATIENCE);
        Arc::new(Self { rt: rt.clone(), watchdog, waiters: Mutex::default(), listening: Default::default() })
    }

    /// Starts to listen.
    pub(crate) fn listen(self: &Arc<Self>, condition: Condition) -> Listener {
        self.listening[condition.counter()].fetch_add(1, Ordering::SeqCst);
        let mut waiters = self.waiters.lock();
        let ticket = waiters.next;
        waiters.next += 1;
        waiters.listening.insert((condition, ticket), None);
        drop(waiters);
        // The caller may next load an atomic with any ordering.
        fence(Ordering::SeqCst);
        Listener { waits: self.clone(), condition, ticket, heard: false }
    }

    /// Wakes the `n` longest-waiting listeners. The caller must have made the condition true
    /// before, by a sequentially consistent operation or under a lock that the listeners take.
    /// Without listeners this is a single load.
    pub(crate) fn wake(self: &Arc<Self>, condition: Condition, n: usize) {
        // Pairs with `listen`: a listener not seen here checks its condition after this load, and
        // sees the change that the wake announces. (Loom weakens sequentially consistent accesses,
        // but models fences.)
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

    /// Wakes another waiter for each token that has been out too long.
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

    /// A token was spent, or passed on.
    fn back(&self, id: (Condition, u64)) {
        self.waiters.lock().out.remove(&id);
    }

    /// Wakes all listeners.
    pub(crate) fn wake_all(self: &Arc<Self>, condition: Condition) {
        self.wake(condition, usize::MAX);
    }

    /// Whether any waiter has not been woken yet.
    pub(crate) fn has_waiters(&self, condition: Condition) -> bool {
        #[cfg(extant_loom)]
        fence(Ordering::SeqCst);
        self.listening[condition.counter()].load(Ordering::SeqCst) > 0
            && self.waiters.lock().first(condition).is_some()
    }

    /// Number of waiters for all conditions, for audits.
    pub(crate) fn len(&self) -> usize {
        self.listening.iter().map(|count| count.load(Ordering::SeqCst)).sum()
    }
}

/// A place among the waiters. If it is dropped with a wake that it has not received, the wake goes
/// to the next.
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
        // Dropping the old waker may end a task, whose own listeners take this lock.
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

/// A wake that was received. If dropped unspent, it wakes the next waiter.
#[derive(Debug)]
pub(crate) struct Token(Option<Out>);

/// A token that has not been spent or passed on.
#[derive(Debug)]
struct Out {
    waits: Arc<Waits>,
    id: (Condition, u64),
    /// Whether others waited when it was handed out.
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
    /// The owner has checked for what the token stands for.
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

/// The state of a caller that has looked for a frame or for room and found none.
#[derive(Debug, Default)]
pub(crate) enum Waiting {
    /// Not waiting.
    #[default]
    No,
    /// Listening: the caller looks once more, and then waits.
    Listening(Condition, Listener),
    /// Woken: the caller looks again.
    Woken(Condition, Token),
}

impl Waiting {
    /// Waits for `condition`, which the caller has found not to hold. The first call only starts to
    /// listen and returns, so that the caller checks once more.
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

    /// The caller got what it waited for, if that was `condition`.
    pub(crate) fn took(&mut self, condition: impl Fn(Condition) -> bool) {
        if let Self::Woken(woken, token) = std::mem::take(self)
            && condition(woken)
        {
            token.spend();
        }
    }

    /// The caller stops waiting, to do something else.
    pub(crate) fn leave(&mut self) {
        *self = Self::No;
    }

    /// Whether the caller was woken for `condition` and is checking.
    pub(crate) fn has_waited(&self, condition: Condition) -> bool {
        matches!(self, Self::Woken(woken, _) if *woken == condition)
    }

    /// Whether the caller has waited, or is about to.
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

    /// Two listeners in a virtual world, of which the first has been woken.
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
