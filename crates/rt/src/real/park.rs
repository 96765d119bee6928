//! How a thread waits to be woken.

use parking_lot::Mutex;
use rustix::thread::futex;
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Wake, Waker};
use std::thread::ThreadId;

const EMPTY: u32 = 0;
const PARKED: u32 = 1;
const DRIVING: u32 = 2;
const NOTIFIED: u32 = 3;

/// Short blocking system calls allowed per poll.
const SHORT_CALLS: u8 = 2;

thread_local! {
    /// What the running poll may do.
    static POLL: Cell<PollMay> = const { Cell::new(PollMay::Neither) };
    /// Address of the crew this thread waits with when idle; 0 if none.
    static CREW: Cell<usize> = const { Cell::new(0) };
    /// Whether a driver of that crew holds requests that this thread's poll deferred until its end.
    static DEFERRED: Cell<bool> = const { Cell::new(false) };
}

/// What a poll may do, by who waits for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PollMay {
    /// A task's poll, or a completion.
    Neither,
    /// That of a thread on which others wait: defer requests until its end.
    Defer,
    /// That of a thread that waits for its result: block as well. Short calls left.
    Block(u8),
}

impl PollMay {
    pub(crate) const BLOCK: Self = Self::Block(SHORT_CALLS);
}

fn now() -> PollMay {
    POLL.try_with(Cell::get).unwrap_or(PollMay::Neither)
}

/// Whether this thread is in `block_on` or `attend` with the crew at this address, and polls its
/// future.
pub(super) fn attends(crew: usize) -> bool {
    now() != PollMay::Neither && crew_of_thread() == crew
}

/// Whether a driver of the crew at this address may defer a request: true if this thread
/// [`attends`]. It starts the deferred requests after the poll.
pub(super) fn defer(crew: usize) -> bool {
    attends(crew) && DEFERRED.try_with(|deferred| deferred.set(true)).is_ok()
}

/// Whether [`defer`] has been granted since the last call.
pub(super) fn take_deferred() -> bool {
    DEFERRED.try_with(|deferred| deferred.replace(false)).unwrap_or(false)
}

/// Address of the crew this thread belongs to now.
pub(super) fn crew_of_thread() -> usize {
    CREW.try_with(Cell::get).unwrap_or(0)
}

/// Runs `work`, during which the thread belongs to the crew at this address and waits with it.
/// Calls do not nest, since a berth is lent only once.
pub(super) fn with_crew<T>(crew: usize, work: impl FnOnce() -> T) -> T {
    struct Leave;
    impl Drop for Leave {
        fn drop(&mut self) {
            let _ = CREW.try_with(|now| now.set(0));
        }
    }
    let _ = CREW.try_with(|now| now.set(crew));
    let _leave = Leave;
    work()
}

/// Whether a system call may block this thread: see [`crate::Rt::may_block`].
pub(super) fn may_block() -> bool {
    matches!(now(), PollMay::Block(_))
}

/// Like [`may_block`], for one of the few short calls of a poll: see [`crate::Rt::may_block_once`].
pub(super) fn may_block_once() -> bool {
    match now() {
        PollMay::Block(left) if left > 0 => POLL.try_with(|poll| poll.set(PollMay::Block(left - 1))).is_ok(),
        _ => false,
    }
}

/// Runs `work`; `may` says what it may do.
pub(super) fn polling<T>(may: PollMay, work: impl FnOnce() -> T) -> T {
    struct Before(PollMay);
    impl Drop for Before {
        fn drop(&mut self) {
            let _ = POLL.try_with(|poll| poll.set(self.0));
        }
    }
    let _before = Before(POLL.try_with(|poll| poll.replace(may)).unwrap_or(PollMay::Neither));
    work()
}

/// A wait that another thread can interrupt.
pub(super) trait Interrupt: Send + Sync {
    /// Makes the waiting thread return; if none waits, the next wait returns at once.
    fn interrupt(&self);
}

/// A thread's place to wait. As a waker it ends the wait, wherever the thread waits.
pub(super) struct Parker {
    state: AtomicU32,
    thread: ThreadId,
    /// What to interrupt while `DRIVING`.
    driven: Mutex<Option<Arc<dyn Interrupt>>>,
}

impl Parker {
    fn new() -> Arc<Self> {
        let thread = std::thread::current().id();
        Arc::new(Self { state: AtomicU32::new(EMPTY), thread, driven: Mutex::default() })
    }

    /// Takes a pending notification.
    pub(super) fn take_notice(&self) -> bool {
        // Check before writing: usually there is none.
        self.is_notified()
            && self.state.compare_exchange(NOTIFIED, EMPTY, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    pub(super) fn is_notified(&self) -> bool {
        self.state.load(Ordering::SeqCst) == NOTIFIED
    }

    /// Waits for a notification and takes it. Does not spin first: in measurements, spinning made
    /// two threads that take turns three times slower on two busy processors.
    pub(super) fn park(&self) {
        if self.state.compare_exchange(EMPTY, PARKED, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
            while self.state.load(Ordering::SeqCst) == PARKED {
                // Checking again handles an early return, and no wait at all if the word has
                // changed.
                let _ = futex::wait(&self.state, futex::Flags::PRIVATE, PARKED, None);
            }
        }
        // A read-modify-write: it may take a second notification as well, and must then also see
        // what preceded that one.
        self.state.swap(EMPTY, Ordering::SeqCst);
    }

    /// From here on a notification interrupts the drivers. Returns false if one is already pending.
    pub(super) fn begin_driving(&self, driven: Arc<dyn Interrupt>) -> bool {
        *self.driven.lock() = Some(driven);
        self.state.compare_exchange(EMPTY, DRIVING, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    /// A notification that arrived meanwhile stays pending.
    pub(super) fn end_driving(&self) {
        let _ = self.state.compare_exchange(DRIVING, EMPTY, Ordering::SeqCst, Ordering::SeqCst);
        *self.driven.lock() = None;
    }

    pub(super) fn notify(&self) {
        match self.state.swap(NOTIFIED, Ordering::SeqCst) {
            PARKED => {
                // It fails only for a bad address, and this one is good.
                let _ = futex::wake(&self.state, futex::Flags::PRIVATE, 1);
            }
            // This very thread has reaped the completion, so `drive` returns by itself.
            DRIVING if std::thread::current().id() == self.thread => {}
            DRIVING => self.interrupt(),
            _ => {}
        }
    }

    /// Interrupts again a thread that was notified while driving and has not returned yet.
    pub(super) fn interrupt_again(&self) {
        if self.is_notified() {
            self.interrupt();
        }
    }

    fn interrupt(&self) {
        let driven = self.driven.lock().clone();
        if let Some(driven) = driven {
            driven.interrupt();
        }
    }
}

impl Wake for Parker {
    fn wake(self: Arc<Self>) {
        self.notify();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.notify();
    }
}

/// A parker, and the waker made from it.
pub(super) struct Berth {
    pub(super) parker: Arc<Parker>,
    pub(super) waker: Waker,
}

impl Berth {
    pub(super) fn new() -> Self {
        let parker = Parker::new();
        let waker = Waker::from(parker.clone());
        Self { parker, waker }
    }

    /// Lends this thread's berth, which is created once per thread, since `block_on` must not
    /// allocate. `None` while it is lent out: this thread is running a task or a completion, which
    /// must not wait.
    pub(super) fn lend<T>(work: impl FnOnce(&Berth) -> T) -> Option<T> {
        enum Slot {
            Unused,
            Free(Berth),
            Lent,
        }
        thread_local! {
            static SLOT: Cell<Slot> = const { Cell::new(Slot::Unused) };
        }
        struct GiveBack(Option<Berth>);
        impl Drop for GiveBack {
            fn drop(&mut self) {
                if let Some(berth) = self.0.take() {
                    // At thread exit there is nowhere to put it, and no need to.
                    let _ = SLOT.try_with(|slot| slot.set(Slot::Free(berth)));
                }
            }
        }
        let berth = match SLOT.try_with(|slot| slot.replace(Slot::Lent)) {
            Ok(Slot::Lent) => return None,
            Ok(Slot::Free(berth)) => berth,
            Ok(Slot::Unused) | Err(_) => Berth::new(),
        };
        let guard = GiveBack(Some(berth));
        Some(work(guard.0.as_ref().expect("taken only on drop")))
    }
}
