//! Locks whose contention takes time in the virtual world, as it does in the real one.
//!
//! In the virtual world, a task runs its code at one instant and is charged for it in advance, so
//! its lock is free again before code on another processor runs. [`SpinLock`] therefore records the
//! period, in charged time, during which each holder had it, and charges a taker for the wait.
//! [`SleepLock`] lets the time pass before it is taken and before it is released.

use crate::handle::{Rt, Which};
use crate::{Nanos, WaitsOn};
use parking_lot::{Mutex, MutexGuard};
use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::ops::{Deref, DerefMut};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

/// A lock for short work that never waits. In the real world it is just a mutex.
///
/// In the virtual world, work charged under the guard occupies the lock for that time. If a taker
/// on another processor arrives meanwhile, it spins: it is charged the time until the lock is free
/// (`lock_wait_ns` in what was spent), plus the price in the machine's file for transferring the
/// lock's cache line (`lock_contended_ns`). Holds never overlap: a hold that turns out to last into
/// another one charged in advance counts as begun after that one. Work that holds two such locks at
/// once is charged for one wait each.
///
/// Work that is cut short under full preemption keeps the times it announced: a kernel's spin lock
/// disables preemption, but this one does not.
///
/// ```
/// # use extant_rt::{Rt, SpinLock};
/// let rt = Rt::real(Default::default());
/// let list = SpinLock::new(vec![1]);
/// list.lock(&rt).push(2);
/// assert_eq!(*list.lock(&rt), [1, 2]);
/// ```
pub struct SpinLock<T>(Mutex<Spun<T>>);

struct Spun<T> {
    value: T,
    holds: Holds,
}

/// Holds that are not yet over, earliest first.
#[derive(Debug, Default)]
struct Holds(VecDeque<Hold>);

#[derive(Debug)]
struct Hold {
    from: Nanos,
    until: Nanos,
    lane: u32,
}

impl Holds {
    fn forget_until(&mut self, past: Nanos) {
        self.0.retain(|hold| hold.until > past);
    }

    /// The earliest time, starting at `at`, at which this processor can hold the lock for `span`
    /// between the holds of others.
    fn free_from(&self, at: Nanos, span: Nanos, lane: u32) -> Nanos {
        let mut start = at;
        for hold in self.0.iter().filter(|hold| hold.lane != lane) {
            if hold.from >= start.saturating_add(span.max(Nanos(1))) {
                break;
            }
            start = start.max(hold.until);
        }
        start
    }

    fn note(&mut self, hold: Hold) {
        if hold.until > hold.from {
            let place = self.0.partition_point(|other| other.from <= hold.from);
            self.0.insert(place, hold);
        }
    }
}

impl<T> SpinLock<T> {
    /// An unlocked lock.
    pub fn new(value: T) -> Self {
        Self(Mutex::new(Spun { value, holds: Holds::default() }))
    }

    /// Takes the lock.
    pub fn lock<'a>(&'a self, rt: &'a Rt) -> SpinGuard<'a, T> {
        let mut spun = self.0.lock();
        let mut from = Nanos::ZERO;
        let mut waited = false;
        if let Which::Virtual(world) = rt.world() {
            spun.holds.forget_until(world.poll_began());
            let now = world.now();
            from = spun.holds.free_from(now, Nanos::ZERO, world.origin().lane);
            waited = from > now;
            if waited {
                world.spin(from - now, true);
                if world.now() < from {
                    // No time passes outside the world's tasks, nor after the world has failed.
                    (from, waited) = (world.now(), false);
                }
            }
        }
        SpinGuard { rt, spun, from, waited }
    }
}

impl<T> fmt::Debug for SpinLock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SpinLock")
    }
}

/// A held [`SpinLock`].
pub struct SpinGuard<'a, T> {
    rt: &'a Rt,
    spun: MutexGuard<'a, Spun<T>>,
    from: Nanos,
    waited: bool,
}

impl<T> Drop for SpinGuard<'_, T> {
    fn drop(&mut self) {
        // A world that cannot go on unwinds out of its task; a charge might unwind a second time.
        if let Which::Virtual(world) = self.rt.world()
            && !std::thread::panicking()
        {
            let lane = world.origin().lane;
            loop {
                let until = world.now();
                let from = self.spun.holds.free_from(self.from, until - self.from, lane);
                if from == self.from {
                    self.spun.holds.note(Hold { from, until, lane });
                    return;
                }
                // The transfer makes the hold longer, so try again.
                world.spin(from - self.from, !self.waited);
                if world.now() == until {
                    return;
                }
                (self.from, self.waited) = (from, true);
            }
        }
    }
}

impl<T> Deref for SpinGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.spun.value
    }
}

impl<T> DerefMut for SpinGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.spun.value
    }
}

impl<T> fmt::Debug for SpinGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SpinGuard")
    }
}

/// A lock whose takers sleep, in order of arrival.
///
/// In the virtual world, charged time passes before the lock is taken and before it is released. So
/// a preempted holder keeps the lock, and takers wait for it.
pub struct SleepLock<T> {
    name: &'static str,
    queue: Mutex<Queue>,
    value: Mutex<T>,
}

#[derive(Default)]
struct Queue {
    is_held: bool,
    /// The ticket of the taker that has the lock, if it had to wait.
    granted: Option<u64>,
    last: u64,
    waiters: VecDeque<(u64, Waker)>,
}

impl<T> SleepLock<T> {
    /// An unlocked lock; deadlock reports show the name.
    pub fn new(name: &'static str, value: T) -> Self {
        Self { name, queue: Mutex::default(), value: Mutex::new(value) }
    }

    /// Takes the lock, runs `work`, which may charge for itself, and releases the lock.
    pub async fn with<R>(&self, rt: &Rt, work: impl FnOnce(&mut T) -> R) -> R {
        rt.catch_up().await;
        let _held = Turn { lock: self, rt, ticket: None }.await;
        let result = work(&mut self.value.lock());
        rt.catch_up().await;
        result
    }

    fn give_back(&self) {
        let mut queue = self.queue.lock();
        match queue.waiters.pop_front() {
            Some((ticket, waker)) => {
                queue.granted = Some(ticket);
                drop(queue);
                waker.wake();
            }
            None => queue.is_held = false,
        }
    }
}

impl<T> fmt::Debug for SleepLock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SleepLock({})", self.name)
    }
}

/// A taker that may have to wait for the lock.
struct Turn<'a, T> {
    lock: &'a SleepLock<T>,
    rt: &'a Rt,
    /// Its number in the queue, from when it queues until it learns that it has the lock.
    ticket: Option<u64>,
}

/// Releases the lock when dropped.
struct Held<'a, T>(&'a SleepLock<T>);

impl<T> Drop for Held<'_, T> {
    fn drop(&mut self) {
        self.0.give_back();
    }
}

impl<'a, T> Future for Turn<'a, T> {
    type Output = Held<'a, T>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Held<'a, T>> {
        let lock = self.lock;
        let mut queue = lock.queue.lock();
        match self.ticket {
            None if !queue.is_held => {
                queue.is_held = true;
                return Poll::Ready(Held(lock));
            }
            None => {
                queue.last += 1;
                let ticket = queue.last;
                queue.waiters.push_back((ticket, cx.waker().clone()));
                self.ticket = Some(ticket);
            }
            Some(ticket) if queue.granted == Some(ticket) => {
                queue.granted = None;
                self.ticket = None;
                return Poll::Ready(Held(lock));
            }
            Some(ticket) => {
                let place = queue.waiters.iter_mut().find(|waiter| waiter.0 == ticket);
                place.expect("a taker waits until it is granted the lock").1.clone_from(cx.waker());
            }
        }
        drop(queue);
        self.rt.waits_on(|| WaitsOn::Other(lock.name, 0));
        Poll::Pending
    }
}

impl<T> Drop for Turn<'_, T> {
    fn drop(&mut self) {
        let Some(ticket) = self.ticket else { return };
        let mut queue = self.lock.queue.lock();
        if queue.granted == Some(ticket) {
            queue.granted = None;
            drop(queue);
            self.lock.give_back();
        } else {
            queue.waiters.retain(|waiter| waiter.0 != ticket);
        }
    }
}
