//! The request queue in front of a device.

mod account;
mod admission;
mod cut;
mod flush;
mod observe;
mod requests;
#[cfg(test)]
mod tests;
mod waiters;

pub use account::{StreamInfo, StreamStats};
pub use admission::Batching;

use crate::Cost;
use crate::elevator::{Elevator, RequestId};
use extant_block::blktrace::{Action, Blktrace};
use extant_block::split;
use extant_block::{Bio, BioFlags, Claim, Device, IoError, Limits, Op, Sector, StreamId};
use extant_rt::{Alarm, Class, Nanos, Rt};
use flush::FlushSharing;
use observe::Observer;
use parking_lot::Mutex;
use requests::{Bounds, Ended, Next, Requests};
use std::collections::VecDeque;
use std::fmt;
use std::future::poll_fn;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::task::{Poll, Wake, Waker};

/// Settings of a [`Queue`].
#[derive(Clone, Debug)]
pub struct QueueConfig {
    /// Maximum number of requests of each kind (synchronous and asynchronous) that the elevator
    /// sees. Further bios wait, and their streams take turns when a request becomes free (Linux:
    /// `nr_requests`).
    pub requests: usize,
    /// Whether both kinds share these requests, because they are the device's tags (Linux since
    /// 5.0, without an I/O scheduler).
    pub are_tags: bool,
    /// How far streams that have waited may exceed the limit on requests; `None` if they may not.
    pub batching: Option<Batching>,
    /// Maximum number of requests in the device at a time.
    pub depth: usize,
    /// Whether the device honours [`BioFlags::FUA`] itself. If not, the queue flushes after such a
    /// write.
    pub fua: bool,
    /// Where to write a blktrace.
    pub blktrace: Option<Blktrace>,
    /// The device's number in traces, major and minor.
    pub number: (u32, u32),
}

impl Default for QueueConfig {
    /// 128 requests of each kind, no batching, 32 in the device, no trace.
    fn default() -> Self {
        Self {
            requests: 128,
            are_tags: false,
            batching: None,
            depth: 32,
            fua: true,
            blktrace: None,
            number: (259, 0),
        }
    }
}

/// A device that queues, merges, sorts and limits the requests to the device below.
///
/// - Bios longer than the device accepts are split. Adjacent bios become one request, within the
///   limits of the device and of the elevator's policy. Bios submitted together
///   ([`Device::submit_all`], [`crate::Plug`]) all arrive before the first of them leaves.
/// - A flush, or a write with `PREFLUSH`, shares a flush of the device with others that need one at
///   the same time. On a device without a volatile cache it costs nothing. If the flush fails, the
///   write is not done.
/// - When a merged request fails, its bios are retried one by one, so that each ends as it would
///   have alone.
/// - Submitting never waits: bios beyond [`QueueConfig::requests`] wait in the queue.
///
/// If the queue is dropped, its bios end by themselves.
pub struct Queue {
    shared: Arc<Shared>,
    limits: Limits,
}

struct Shared {
    below: Arc<dyn Device>,
    rt: Rt,
    volatile_cache: bool,
    fua: bool,
    state: Mutex<State>,
}

struct State {
    requests: Requests,
    flushes: FlushSharing<NeedsFlush>,
    /// Effects to perform, in order and outside the lock, by whichever thread is performing.
    effects: VecDeque<Effect>,
    performing: bool,
    /// A vector reused for bios that end together.
    ended: Vec<Ended>,
    /// When the timer armed for the elevator fires, and the timer.
    armed: Option<(Nanos, Alarm)>,
    /// The latest time the elevator has seen.
    latest: Nanos,
    /// Tasks in [`Queue::has_requests`].
    sleeping: Vec<Waker>,
}

enum NeedsFlush {
    /// The bio ends when the flush has ended.
    Only(Bio),
    /// The bio's data is written next.
    Before(Bio),
}

enum Effect {
    Wake(Waker),
    Send(RequestId, Bio),
    Flush,
    /// The error is boxed to keep effects small; most have none.
    End(Bio, Result<(), Box<IoError>>),
}

/// Asks the elevator again when its timer fires. This happens in a task, since the timer interrupt
/// does not start requests (Linux: `kblockd_schedule_work`).
struct AskAgain {
    queue: Arc<Shared>,
    at: Nanos,
}

impl Wake for AskAgain {
    fn wake(self: Arc<Self>) {
        let rt = self.queue.rt.clone();
        let asking = Asking(self);
        drop(rt.spawn("queue idle timer", Class::Normal, async move { drop(asking) }));
    }
}

/// Asks when it is dropped. Usually its task drops it. A world that has ended accepts no task, and
/// then drops it at once; the timer no longer exists.
struct Asking(Arc<AskAgain>);

impl Drop for Asking {
    fn drop(&mut self) {
        let AskAgain { queue, at } = &*self.0;
        queue.change(|state, _| drop(state.armed.take_if(|(armed_for, _)| armed_for == at)));
    }
}

impl Queue {
    /// A queue in front of `below`, ordered by `elevator`.
    pub fn new(rt: &Rt, below: Arc<dyn Device>, elevator: Box<dyn Elevator>, config: QueueConfig) -> Self {
        let limits = below.limits().clone();
        assert!(
            config.requests > 0 && config.depth > 0,
            "a queue needs at least one request and one command"
        );
        let observer = Observer {
            rt: rt.clone(),
            blktrace: config.blktrace,
            device: config.number.0 << 20 | config.number.1,
            rule: elevator.name(),
        };
        let QueueConfig { requests, are_tags, batching, depth, .. } = config;
        let bounds = Bounds { requests, are_tags, batching, depth };
        let state = State {
            requests: Requests::new(elevator, limits.clone(), bounds, observer),
            flushes: FlushSharing::default(),
            effects: VecDeque::new(),
            performing: false,
            ended: Vec::new(),
            armed: None,
            latest: Nanos::ZERO,
            sleeping: Vec::new(),
        };
        let shared = Shared {
            below,
            rt: rt.clone(),
            volatile_cache: limits.volatile_cache,
            fua: config.fua,
            state: Mutex::new(state),
        };
        let limits = Limits { max_bytes: u64::MAX, max_segments: u32::MAX, ..limits };
        Self { shared: Arc::new(shared), limits }
    }

    /// Sets a stream's properties for the elevator, from the stream's next bio on.
    pub fn set_stream(&self, stream: StreamId, info: StreamInfo) {
        self.shared.state.lock().requests.accounts.of(stream).info = info;
    }

    /// The stream has ended and will submit nothing more. Returns its account, which is closed once
    /// its last bio has ended.
    pub fn end_stream(&self, stream: StreamId) -> Option<StreamStats> {
        self.shared.change(|state, now| state.requests.exited(stream, now))
    }

    /// Requests and service of each stream so far, ordered by stream number.
    pub fn stats(&self) -> Vec<(StreamId, StreamStats)> {
        self.shared.state.lock().requests.accounts.stats()
    }

    /// Whether the device is kept idle for this stream's next request ([`Elevator::awaits`]). For
    /// submitters that limit their requests themselves.
    pub fn awaits(&self, stream: StreamId) -> bool {
        self.shared.state.lock().requests.awaits(stream)
    }

    /// Merges a bio into an adjacent queued request, or returns it.
    ///
    /// For submitters that limit their requests themselves: a bio that is merged needs no request
    /// of its own (kernel: `elv_merge` in `__make_request`). A bio that must be split, or that
    /// flushes, is returned.
    pub fn join(&self, bio: Bio) -> Option<Bio> {
        let fits = bio.bytes > 0
            && !bio.flags.intersects(BioFlags::PREFLUSH | BioFlags::FUA)
            && self.limits.admit(&bio).is_ok()
            && matches!(cut::cut(&bio, self.shared.below.limits()), Ok(None));
        if !fits {
            return Some(bio);
        }
        let segments = bio.segments.len() as u64;
        let left = self.shared.change(|state, now| state.requests.join(bio, now));
        if left.is_none() {
            self.shared.rt.charge(Cost::BioSubmit(1));
            self.shared.rt.charge(Cost::BioSegment(segments));
            self.shared.rt.charge(Cost::ElevatorStep(1));
        }
        left
    }

    /// Number of bios that wait for a request, requests in the elevator, and requests in the
    /// device.
    pub fn load(&self) -> (usize, usize, usize) {
        self.shared.state.lock().requests.load()
    }

    /// Waits until every bio has a request. For a task that has submitted bios and must sleep while
    /// one of them waits (kernel: `get_request_wait()`, `blk_mq_get_tag()`).
    pub fn has_requests(&self) -> impl Future<Output = ()> + '_ {
        poll_fn(|cx| {
            let mut state = self.shared.state.lock();
            if state.requests.load().0 == 0 {
                return Poll::Ready(());
            }
            if !state.sleeping.iter().any(|waker| waker.will_wake(cx.waker())) {
                state.sleeping.push(cx.waker().clone());
            }
            Poll::Pending
        })
    }

    /// Turns the bio into bios that fit the device and calls `each` with them. A bio that can end
    /// right away ends here.
    fn admit(&self, bio: Bio, mut each: impl FnMut(Bio)) {
        let below = self.shared.below.limits();
        if let Err(kind) = self.limits.admit(&bio) {
            return bio.end_as(&self.limits.name, Err(kind));
        }
        self.shared.rt.charge(Cost::BioSubmit(1));
        self.shared.rt.charge(Cost::BioSegment(bio.segments.len() as u64));
        if bio.bytes == 0 && !bio.is_flush() {
            return bio.end(Ok(()));
        }
        match cut::cut(&bio, below) {
            Ok(None) => each(bio),
            Ok(Some(pieces)) => split(bio, &pieces).into_iter().for_each(each),
            Err(kind) => bio.end_as(&self.limits.name, Err(kind)),
        }
    }
}

impl Device for Queue {
    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn submit(&self, bio: Bio) {
        if bio.flags.contains(BioFlags::PREFLUSH) {
            // If the bio is split, its pieces arrive together and share a flush.
            return self.submit_all(&mut std::iter::once(bio));
        }
        self.admit(bio, |bio| {
            self.shared.rt.charge(Cost::ElevatorStep(1));
            self.shared.change(|state, now| self.shared.arrive(state, bio, now));
        });
    }

    fn submit_all(&self, bios: &mut dyn Iterator<Item = Bio>) {
        // Bios are admitted before the lock is taken, because a refused bio ends at once and its
        // completion may submit another.
        let mut admitted: Vec<Bio> = Vec::new();
        bios.for_each(|bio| self.admit(bio, |bio| admitted.push(bio)));
        self.shared.rt.charge(Cost::ElevatorStep(admitted.len() as u64));
        self.shared
            .change(|state, now| admitted.into_iter().for_each(|bio| self.shared.arrive(state, bio, now)));
    }

    fn claim(&self) -> Result<Claim, IoError> {
        self.shared.below.claim()
    }

    fn next_data(&self, from_bytes: u64) -> Result<Option<Range<u64>>, IoError> {
        self.shared.below.next_data(from_bytes)
    }
}

impl Shared {
    fn arrive(&self, state: &mut State, mut bio: Bio, now: Nanos) {
        if !self.volatile_cache {
            if bio.is_flush() {
                state.effects.push_back(Effect::End(bio, Ok(())));
                return;
            }
            bio.flags.remove(BioFlags::PREFLUSH | BioFlags::FUA);
        }
        if bio.is_flush() {
            state.requests.observer.tell(now, Action::Queued, &bio, Ok(()), now);
            self.ask_flush(state, NeedsFlush::Only(bio));
        } else if bio.flags.contains(BioFlags::PREFLUSH) {
            self.ask_flush(state, NeedsFlush::Before(bio));
        } else {
            state.requests.add(bio, now);
        }
    }

    fn ask_flush(&self, state: &mut State, who: NeedsFlush) {
        if state.flushes.ask(who) {
            state.effects.push_back(Effect::Flush);
        }
    }

    /// Changes the state, asks the elevator what to do next, and does it.
    fn change<T>(self: &Arc<Self>, edit: impl FnOnce(&mut State, Nanos) -> T) -> T {
        let mut state = self.state.lock();
        // For an elevator, time never goes backwards, so the clock is read under the lock. In the
        // virtual world, an interrupt may arrive while the clock of a task that has just submitted
        // is ahead of it.
        let now = state.latest.max(self.rt.now());
        state.latest = now;
        let out = edit(&mut state, now);
        self.ask_elevator(&mut state, now);
        if !state.sleeping.is_empty() && state.requests.load().0 == 0 {
            let woken = std::mem::take(&mut state.sleeping);
            state.effects.extend(woken.into_iter().map(Effect::Wake));
        }
        // One thread performs all effects, in order. Whatever they cause (a device that ends bios
        // at once, a completion that submits another) is appended to the list instead of growing
        // the stack.
        if !state.performing && !state.effects.is_empty() {
            state.performing = true;
            let mut effects = VecDeque::new();
            let mut first_panic = None;
            while !state.effects.is_empty() {
                std::mem::swap(&mut effects, &mut state.effects);
                parking_lot::MutexGuard::unlocked(&mut state, || {
                    while let Some(effect) = effects.pop_front() {
                        // A completion that panics must not prevent the effects after it.
                        let perform = || self.perform_next(effect, &mut effects);
                        if let Err(payload) = catch_unwind(AssertUnwindSafe(perform)) {
                            first_panic.get_or_insert(payload);
                        }
                    }
                });
            }
            // Keep the larger of the two buffers.
            if effects.capacity() > state.effects.capacity() {
                state.effects = effects;
            }
            state.performing = false;
            if let Some(payload) = first_panic {
                drop(state);
                resume_unwind(payload);
            }
        }
        out
    }

    /// Performs `effect`, together with effects of `rest` that go with it.
    fn perform_next(self: &Arc<Self>, effect: Effect, rest: &mut VecDeque<Effect>) {
        match effect {
            // Consecutive sends start together, which is cheaper on some devices.
            Effect::Send(id, bio) if matches!(rest.front(), Some(Effect::Send(..))) => {
                let mut first = Some((id, bio));
                self.below.submit_all(&mut std::iter::from_fn(|| {
                    let (id, bio) = first.take().or_else(|| take_send(rest))?;
                    Some(self.prepare(id, bio))
                }));
            }
            effect => self.perform(effect),
        }
    }

    fn ask_elevator(self: &Arc<Self>, state: &mut State, now: Nanos) {
        let until = loop {
            match state.requests.next(now) {
                Next::Dispatch(id, bio) => state.effects.push_back(Effect::Send(id, bio)),
                Next::IdleUntil(at) => break Some(at),
                Next::Nothing => break None,
            }
        };
        if state.armed.as_ref().map(|(at, _)| *at) != until {
            let arm = |at| {
                let waker = Waker::from(Arc::new(AskAgain { queue: self.clone(), at }));
                (at, self.rt.alarm(at, &waker))
            };
            state.armed = until.map(arm);
        }
    }

    fn perform(self: &Arc<Self>, effect: Effect) {
        match effect {
            Effect::Send(id, bio) => self.below.submit(self.prepare(id, bio)),
            Effect::Flush => {
                let mut bio = Bio::range(Op::Flush, Sector(0), 0);
                bio.flags = BioFlags::SYNC;
                let shared = self.clone();
                let issued = {
                    let mut state = self.state.lock();
                    state.flushes.issued();
                    let now = self.rt.now();
                    state.requests.observer.tell(now, Action::Issued, &bio, Ok(()), now);
                    now
                };
                bio.on_end(Box::new(move |bio, result| shared.flushed(bio, issued, result)));
                self.below.submit(bio);
            }
            Effect::Wake(waker) => waker.wake(),
            Effect::End(bio, result) => {
                self.rt.charge(Cost::BioComplete(1));
                bio.end(result.map_err(|error| *error));
            }
        }
    }

    /// Prepares a bio that goes to the device now, so that its end is reported.
    fn prepare(self: &Arc<Self>, id: RequestId, mut bio: Bio) -> Bio {
        self.rt.charge(Cost::DeviceStart(1));
        let fua = bio.flags.contains(BioFlags::FUA);
        if fua && !self.fua {
            bio.flags.remove(BioFlags::FUA);
        }
        let shared = self.clone();
        bio.on_end(Box::new(move |mut bio, result| {
            bio.flags.set(BioFlags::FUA, fua);
            shared.completed(id, bio, result);
        }));
        bio
    }

    fn completed(self: &Arc<Self>, id: RequestId, bio: Bio, result: Result<(), IoError>) {
        self.change(|state, now| {
            let mut ended = std::mem::take(&mut state.ended);
            if let Some(next) = state.requests.completed(id, bio, result.map_err(Box::new), now, &mut ended) {
                state.effects.push_back(Effect::Send(id, next));
            }
            for (bio, result) in ended.drain(..) {
                if result.is_ok() && bio.flags.contains(BioFlags::FUA) && !self.fua {
                    self.ask_flush(state, NeedsFlush::Only(bio));
                } else {
                    state.effects.push_back(Effect::End(bio, result));
                }
            }
            state.ended = ended;
        });
    }

    fn flushed(self: &Arc<Self>, flush: Bio, issued: Nanos, result: Result<(), IoError>) {
        let result = result.map_err(Box::new);
        self.change(|state, now| {
            state.requests.observer.tell(now, Action::Completed, &flush, requests::told(&result), issued);
            let (done, again) = state.flushes.ended();
            if again {
                state.effects.push_back(Effect::Flush);
            }
            for who in done {
                match (who, &result) {
                    (NeedsFlush::Before(mut bio), Ok(())) => {
                        bio.flags.remove(BioFlags::PREFLUSH);
                        state.requests.add(bio, now);
                    }
                    (NeedsFlush::Before(bio) | NeedsFlush::Only(bio), _) => {
                        state.effects.push_back(Effect::End(bio, result.clone()));
                    }
                }
            }
        });
    }
}

/// Takes the next effect if it is a send.
fn take_send(effects: &mut VecDeque<Effect>) -> Option<(RequestId, Bio)> {
    match effects.pop_front()? {
        Effect::Send(id, bio) => Some((id, bio)),
        other => {
            effects.push_front(other);
            None
        }
    }
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (waiting, queued, in_device) = self.load();
        write!(
            f,
            "Queue({}: {waiting} waiting, {queued} queued, {in_device} in the device)",
            self.limits.name
        )
    }
}
