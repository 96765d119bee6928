//! I/O driven by the threads that wait for it.

use super::park::{Interrupt, Parker, PollMay, polling, take_deferred};
use super::timer::Timers;
use crate::Nanos;
use crate::error::panic_message;
use crate::panics::Panics;
use parking_lot::{Mutex, RwLock};
use rustix::event::Timespec;
use std::cell::RefCell;
use std::fmt;
use std::marker::PhantomData;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Wake, Waker};

/// A source of completions without a thread of its own, such as an io_uring.
///
/// Handing a completion from one thread to another costs tens of microseconds on a virtual machine,
/// more than most I/O can spare. So the thread that waits for a completion reaps it. A thread in
/// [`Rt::block_on`](crate::Rt::block_on) whose future is pending takes a seat to drive: it calls
/// `drive(Wait::UntilSome)`, which reaps completions on that thread and wakes their tasks. At most
/// one such thread is seated at a time; the others park. When it leaves while I/O is in flight, it
/// wakes one of them as its successor. An idle worker of the executor takes a seat only when no
/// ordinary thread waits. If such a thread arrives later, the worker keeps its seat until its next
/// completion, so two threads may be inside `drive` at once.
///
/// An implementation must therefore not hold its reaping lock while it waits.
pub trait Driver: Send + Sync {
    /// Reaps what has completed, and calls the completions on this thread. With [`Wait::UntilSome`]
    /// it first waits until there is something to reap, or until [`Driver::interrupt`] is called.
    /// It may return early for any reason.
    fn drive(&self, wait: Wait);
    /// Makes a thread that waits in `drive` return; if none waits, the next wait returns at once.
    /// If two threads wait, one interrupt may return either; the runtime repeats it until the right
    /// one returns.
    fn interrupt(&self);
    /// How many requests are in flight: submitted and not yet reaped. Read often; an atomic is good
    /// enough.
    fn in_flight(&self) -> usize;
    /// A file descriptor that polls readable when there is something to reap. Used to wait for
    /// several drivers at once.
    fn poll_fd(&self) -> BorrowedFd<'_>;
    /// Starts requests that were deferred because [`Rt::may_defer`](crate::Rt::may_defer) allowed
    /// it. [`Driver::drive`] also does this, before it waits or calls a completion and at the
    /// latest when it returns.
    fn enter_deferred(&self) {}
    /// Whether a request could not be started for lack of memory. [`Driver::drive`] will retry it,
    /// although nothing polls readable.
    fn is_held_up(&self) -> bool {
        false
    }
    /// Whether idle workers of the executor also drive it, as they do by default. If not, only
    /// threads in [`Rt::block_on`](crate::Rt::block_on) and [`Rt::attend`](crate::Rt::attend) do.
    /// Say no if all completions concern one thread, which a worker would have to wake.
    fn is_for_workers(&self) -> bool {
        true
    }
}

/// How long [`Driver::drive`] may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Only reap what has completed, and start deferred requests.
    Not,
    /// Wait for something to reap, or for an interrupt.
    UntilSome,
}

/// Keeps a driver registered; dropping it unregisters the driver.
#[must_use = "dropping it withdraws the driver"]
pub struct DriverHandle(Option<(Arc<Crew>, Arc<dyn Driver>)>);

impl DriverHandle {
    pub(crate) fn inert() -> Self {
        Self(None)
    }
}

impl Drop for DriverHandle {
    fn drop(&mut self) {
        if let Some((crew, driver)) = self.0.take() {
            crew.change(|drivers| drivers.retain(|d| !Arc::ptr_eq(d, &driver)));
        }
    }
}

impl fmt::Debug for DriverHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DriverHandle")
    }
}

/// A thread's promise to reap soon; see [`Rt::reaping`](crate::Rt::reaping). It stays on that
/// thread.
#[must_use = "dropping it ends the promise"]
pub struct Reaping(Option<Arc<Crew>>, PhantomData<*const ()>);

thread_local! {
    /// The crews that this thread has made promises to, by address.
    static PROMISES: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

impl Reaping {
    pub(crate) fn inert() -> Self {
        Self(None, PhantomData)
    }

    pub(super) fn of(crew: &Arc<Crew>) -> Self {
        PROMISES.with_borrow_mut(|crews| crews.push(crew.address()));
        crew.promised.fetch_add(1, Ordering::SeqCst);
        Self(Some(crew.clone()), PhantomData)
    }
}

impl Drop for Reaping {
    fn drop(&mut self) {
        if let Some(crew) = self.0.take() {
            PROMISES.with_borrow_mut(|crews| {
                let made = crews.iter().position(|&address| address == crew.address());
                crews.swap_remove(made.expect("the promise was made on this thread"));
            });
            crew.promised.fetch_sub(1, Ordering::SeqCst);
            crew.ensure_driven();
        }
    }
}

impl fmt::Debug for Reaping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Reaping")
    }
}

/// What kind of thread is waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// An ordinary thread in `block_on` or `attend`.
    Caller,
    /// A worker of the executor without a task to run.
    Worker,
}

/// The waiting threads, and the drivers they can drive.
pub(super) struct Crew {
    helm: RwLock<Arc<Helm>>,
    any: AtomicBool,
    /// Number of seats taken; can be read without the lock.
    seated: AtomicUsize,
    /// Threads that have promised to reap soon, seated or not.
    promised: AtomicUsize,
    seats: Mutex<Seats>,
    panics: Arc<Panics>,
    timers: Weak<Timers>,
    /// When to check whether a woken thread really drives; a time in the past if no check is
    /// pending.
    looks_at: AtomicU64,
}

/// Minimum time that a thread woken to drive may spend on its own future while others wait.
const PATIENCE: Nanos = Nanos::from_millis(50);

struct Look(Weak<Crew>);

impl Wake for Look {
    fn wake(self: Arc<Self>) {
        if let Some(crew) = self.0.upgrade() {
            crew.look();
        }
    }
}

/// A snapshot of the drivers. A driving thread waits for all of them together.
#[derive(Default)]
struct Helm {
    drivers: Vec<Arc<dyn Driver>>,
    /// With several drivers, interrupts the thread that polls. Each role has a bell of its own, so
    /// that no thread takes what was meant for another.
    bells: Option<[Arc<Bell>; 2]>,
}

struct Bell(OwnedFd);

#[derive(Default)]
struct Seats {
    caller: Option<Arc<Parker>>,
    worker: Option<Arc<Parker>>,
    parked_callers: Vec<Arc<Parker>>,
    parked_workers: Vec<Arc<Parker>>,
}

impl Seats {
    fn seat(&mut self, role: Role) -> &mut Option<Arc<Parker>> {
        match role {
            Role::Caller => &mut self.caller,
            Role::Worker => &mut self.worker,
        }
    }

    fn parked(&mut self, role: Role) -> &mut Vec<Arc<Parker>> {
        match role {
            Role::Caller => &mut self.parked_callers,
            Role::Worker => &mut self.parked_workers,
        }
    }
}

impl Crew {
    pub(super) fn new(panics: Arc<Panics>, timers: &Arc<Timers>) -> Self {
        Self {
            panics,
            timers: Arc::downgrade(timers),
            looks_at: AtomicU64::new(0),
            helm: RwLock::default(),
            any: AtomicBool::new(false),
            seated: AtomicUsize::new(0),
            promised: AtomicUsize::new(0),
            seats: Mutex::default(),
        }
    }

    /// Identifies this crew as long as it lives.
    pub(super) fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    pub(super) fn register(self: &Arc<Self>, driver: Arc<dyn Driver>) -> DriverHandle {
        self.change(|drivers| drivers.push(driver.clone()));
        DriverHandle(Some((self.clone(), driver)))
    }

    fn change(&self, edit: impl FnOnce(&mut Vec<Arc<dyn Driver>>)) {
        {
            let mut helm = self.helm.write();
            let mut drivers = helm.drivers.clone();
            edit(&mut drivers);
            self.any.store(!drivers.is_empty(), Ordering::SeqCst);
            let bells = (drivers.len() > 1).then(|| [Bell::new(), Bell::new()]);
            *helm = Arc::new(Helm { drivers, bells });
        }
        // The seated threads drive the old list: make them look again.
        let seats = self.seats.lock();
        let seated = [seats.caller.clone(), seats.worker.clone()];
        drop(seats);
        seated.iter().flatten().for_each(|parker| parker.notify());
    }

    /// Whether anything is in flight that a thread of this role drives.
    fn in_flight(&self, role: Role) -> bool {
        self.helm.read().of(role).any(|d| d.in_flight() > 0)
    }

    /// Whether a thread drives or has promised to.
    fn is_attended(&self) -> bool {
        self.seated.load(Ordering::SeqCst) > 0 || self.promised.load(Ordering::SeqCst) > 0
    }

    fn has_drivers(&self) -> bool {
        self.any.load(Ordering::Relaxed)
    }

    /// Waits until `parker` is notified; drives I/O meanwhile if it is this thread's turn. May
    /// return early. Returns whether the thread took a seat.
    pub(super) fn wait(self: &Arc<Self>, parker: &Arc<Parker>, role: Role) -> bool {
        if !self.has_drivers() {
            take_deferred();
            // Not on any list: registering the first driver wakes the workers.
            parker.park();
            return false;
        }
        let mut seats = self.seats.lock();
        let free = match role {
            // A worker that has been called away leaves soon, and then wakes this thread. Driving
            // beside it, this thread might take the interrupt that is meant for the worker, again
            // and again, and keep the processor that the worker needs to leave.
            Role::Caller => {
                let is_leaving = seats.worker.as_ref().is_some_and(|worker| worker.is_notified());
                seats.caller.is_none() && (!is_leaving || self.helm.read().bells.is_some())
            }
            Role::Worker => seats.worker.is_none() && !self.is_attended(),
        };
        if free && self.in_flight(role) {
            *seats.seat(role) = Some(parker.clone());
            self.seated.fetch_add(1, Ordering::SeqCst);
            drop(seats);
            let _leave = LeaveSeat { crew: self, parker, role };
            // Read after taking the seat: any later change of the drivers finds us seated and
            // notifies us.
            let helm = self.helm.read().clone();
            if parker.begin_driving(helm.interrupt_of(role)) {
                self.contain(|| helm.drive(role));
            } else {
                self.enter_deferred();
            }
            true
        } else {
            seats.parked(role).push(parker.clone());
            // A thread that is parked reaps nothing, so its promise must not keep others from it.
            let withheld =
                PROMISES.with_borrow(|crews| crews.iter().filter(|&&a| a == self.address()).count());
            self.promised.fetch_sub(withheld, Ordering::SeqCst);
            drop(seats);
            self.enter_deferred();
            parker.park();
            self.promised.fetch_add(withheld, Ordering::SeqCst);
            self.seats.lock().parked(role).retain(|p| !Arc::ptr_eq(p, parker));
            false
        }
    }

    /// Starts the requests that the last poll on this thread submitted and a driver deferred.
    pub(super) fn enter_deferred(&self) {
        if take_deferred() {
            let helm = self.helm.read().clone();
            helm.drivers.iter().for_each(|driver| driver.enter_deferred());
        }
    }

    /// Reaps what has completed, without waiting, if something is in flight and no thread is
    /// seated. For threads that have tasks to run and so do not wait: otherwise, if no thread is
    /// driving, completions would sit until the worker runs out of tasks.
    pub(super) fn reap_if_unattended(&self) {
        if self.has_drivers() && self.seated.load(Ordering::SeqCst) == 0 {
            let helm = self.helm.read().clone();
            helm.of(Role::Worker)
                .filter(|driver| driver.in_flight() > 0)
                .for_each(|driver| self.contain(|| driver.drive(Wait::Not)));
        }
    }

    /// Runs `drive` and records a panic in a completion, without passing it on: it concerns neither
    /// the task that waits on this thread nor the worker.
    fn contain(&self, drive: impl FnOnce()) {
        // A completion that blocked would delay those behind it.
        let drive = || polling(PollMay::Neither, drive);
        if let Err(payload) = catch_unwind(AssertUnwindSafe(drive)) {
            self.panics.note("completion", &panic_message(&*payload));
        }
    }

    /// If something is in flight and no thread is seated, wakes one to drive. Returns false if
    /// there is none to wake.
    pub(super) fn ensure_driven(self: &Arc<Self>) -> bool {
        if !self.has_drivers() || self.is_attended() || !self.in_flight(Role::Caller) {
            return true;
        }
        let seats = self.seats.lock();
        if seats.caller.is_some() || seats.worker.is_some() {
            return true;
        }
        let for_workers = self.in_flight(Role::Worker);
        let workers = seats.parked_workers.first().filter(|_| for_workers);
        let next = seats.parked_callers.first().or(workers).cloned();
        let has_others = seats.parked_callers.len() + seats.parked_workers.len() > 1;
        drop(seats);
        let Some(next) = next else { return !for_workers };
        next.notify();
        if has_others {
            self.watch();
        }
        true
    }

    /// Called when a thread was woken to drive while others wait. That thread first polls its own
    /// future, which may take long. So after a while `look` checks whether any thread drives.
    fn watch(self: &Arc<Self>) {
        let Some(timers) = self.timers.upgrade() else { return };
        let (now, set) = (timers.now(), self.looks_at.load(Ordering::SeqCst));
        if set > now.0 {
            return;
        }
        let at = now.saturating_add(PATIENCE);
        if self.looks_at.compare_exchange(set, at.0, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
            timers.arm(at, &Waker::from(Arc::new(Look(Arc::downgrade(self)))));
        }
    }

    /// Wakes all waiting threads if something is in flight and no thread drives.
    fn look(&self) {
        self.looks_at.store(0, Ordering::SeqCst);
        if self.has_drivers() && !self.is_attended() && self.in_flight(Role::Caller) {
            let seats = self.seats.lock();
            let parked: Vec<_> = seats.parked_callers.iter().chain(&seats.parked_workers).cloned().collect();
            drop(seats);
            parked.iter().for_each(|parker| parker.notify());
        }
    }
}

impl Interrupt for Helm {
    fn interrupt(&self) {
        self.drivers.iter().for_each(|driver| driver.interrupt());
    }
}

impl Bell {
    fn new() -> Arc<Self> {
        use rustix::event::{EventfdFlags, eventfd};
        let made = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        Arc::new(Self(made.expect("the process may open another file")))
    }
}

impl Interrupt for Bell {
    fn interrupt(&self) {
        // The write can only fail if the counter is full, and then the bell is ringing already.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }
}

/// How long to wait before retrying what a driver could not start.
const AGAIN_AFTER: Timespec = Timespec { tv_sec: 0, tv_nsec: 5_000_000 };

impl Helm {
    /// The drivers that a thread of this role drives.
    fn of(&self, role: Role) -> impl Iterator<Item = &Arc<dyn Driver>> {
        self.drivers.iter().filter(move |driver| role == Role::Caller || driver.is_for_workers())
    }

    fn bell(&self, role: Role) -> Option<&Arc<Bell>> {
        let [caller, worker] = self.bells.as_ref()?;
        Some(match role {
            Role::Caller => caller,
            Role::Worker => worker,
        })
    }

    /// What makes a thread of this role return from [`Self::drive`].
    fn interrupt_of(self: &Arc<Self>, role: Role) -> Arc<dyn Interrupt> {
        match self.bell(role) {
            Some(bell) => bell.clone(),
            None => self.clone(),
        }
    }

    fn drive(&self, role: Role) {
        use rustix::event::{PollFd, PollFlags, poll};
        let deferred = take_deferred();
        let Some(Bell(bell)) = self.bell(role).map(|bell| &**bell) else {
            return self.of(role).for_each(|driver| driver.drive(Wait::UntilSome));
        };
        if deferred {
            self.of(role).for_each(|driver| driver.enter_deferred());
        }
        let fds = self.of(role).map(|driver| driver.poll_fd()).chain([bell.as_fd()]);
        let mut fds: Vec<_> = fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        let again = self.of(role).any(|driver| driver.is_held_up()).then_some(&AGAIN_AFTER);
        // A system call interrupted by a signal is an early return, which is allowed.
        let _ = poll(&mut fds, again);
        if fds.last().is_some_and(|fd| !fd.revents().is_empty()) {
            let _ = rustix::io::read(bell, &mut [0_u8; 8]);
        }
        self.of(role).for_each(|driver| driver.drive(Wait::Not));
    }
}

struct LeaveSeat<'a> {
    crew: &'a Arc<Crew>,
    parker: &'a Arc<Parker>,
    role: Role,
}

impl Drop for LeaveSeat<'_> {
    fn drop(&mut self) {
        self.parker.end_driving();
        let mut seats = self.crew.seats.lock();
        *seats.seat(self.role) = None;
        self.crew.seated.fetch_sub(1, Ordering::SeqCst);
        match seats.caller.clone().or(seats.worker.clone()) {
            Some(other) => {
                drop(seats);
                // This thread may have reaped the interrupt that was meant for the other one.
                other.interrupt_again();
            }
            // If this thread's wait is over, it may now be busy for long, so another waiting thread
            // takes over. A thread whose completion was reaped by someone else usually comes back
            // by itself, but its future may have become ready meanwhile. No worker is woken yet,
            // because this thread will usually wait again soon. If no thread has taken the seat
            // after a while, all threads are woken.
            None => {
                let next = seats.parked_callers.first().filter(|_| self.parker.is_notified()).cloned();
                let parked = seats.parked_callers.len() + seats.parked_workers.len();
                drop(seats);
                let has_others = parked > usize::from(next.is_some());
                let is_promised = self.crew.promised.load(Ordering::SeqCst) > 0;
                if parked > 0 && self.crew.in_flight(Role::Caller) {
                    if let Some(next) = next {
                        next.notify();
                    }
                    if has_others && !is_promised {
                        self.crew.watch();
                    }
                }
            }
        }
    }
}
