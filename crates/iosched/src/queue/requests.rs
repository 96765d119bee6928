//! Turns bios into requests: merging, a limited number of slots, and what the elevator wants next.
//!
//! A state machine without a clock, device or completions: the queue around it carries out what it
//! returns.

use super::account::{Accounts, StreamInfo, StreamStats};
use super::admission::{Admission, Batching};
use super::observe::Observer;
use super::waiters::Waiters;
use crate::elevator::{Decision, Elevator, Request, RequestId};
use extant_block::blktrace::Action;
use extant_block::{Bio, BioFlags, IoError, Limits, Op, Sector, Segment, StreamId};
use extant_rt::Nanos;
use std::collections::VecDeque;

/// Limits on what may be in flight.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// Requests of each kind, synchronous and asynchronous (Linux: `nr_requests`).
    pub(super) requests: usize,
    /// Whether the requests are the device's tags, which both kinds share.
    pub(super) are_tags: bool,
    /// How far streams that have waited may exceed the limit on requests.
    pub(super) batching: Option<Batching>,
    /// Maximum number of requests in the device.
    pub(super) depth: usize,
}

/// The next action on the device.
#[derive(Debug)]
pub(super) enum Next {
    /// Send this bio, and report its end under this number.
    Dispatch(RequestId, Bio),
    /// Ask again at this time.
    IdleUntil(Nanos),
    /// Ask again after the next arrival or completion.
    Nothing,
}

/// A bio and its result.
pub(super) type Ended = (Bio, Result<(), Box<IoError>>);

#[derive(Debug)]
struct Arrival {
    bio: Bio,
    at: Nanos,
    /// How many of the request's segments belong to this bio. While the request is in the device,
    /// the bio that carries all of them has them.
    segments: usize,
}

#[derive(Debug)]
struct Slot {
    request: Request,
    bios: VecDeque<Arrival>,
    dispatched: Nanos,
    /// Whether the request as a whole has failed and its bios are being retried one by one.
    retrying: bool,
}

#[derive(Debug)]
pub(super) struct Requests {
    elevator: Box<dyn Elevator>,
    limits: Limits,
    bounds: Bounds,
    pub(super) observer: Observer,
    pub(super) accounts: Accounts,
    slots: Vec<Option<Slot>>,
    free: Vec<u32>,
    admission: Admission,
    /// Asynchronous and synchronous bios that wait for a request.
    waiting: [Waiters<Arrival>; 2],
    /// The kind that was offered the last free tag first. It alternates, so that neither kind
    /// starves.
    turn: usize,
    /// Per kind, freed requests for which no waiting stream has been woken yet.
    to_wake: [usize; 2],
    in_device: usize,
    /// Empty lists of freed slots, kept to reuse their memory.
    spare: Vec<VecDeque<Arrival>>,
}

/// Whether the bio's own requirements keep it from being merged (Linux: `REQ_NOMERGE_FLAGS`).
fn stays_alone(flags: BioFlags) -> bool {
    flags.intersects(BioFlags::FUA | BioFlags::PREFLUSH)
}

impl Requests {
    pub(super) fn new(
        elevator: Box<dyn Elevator>,
        limits: Limits,
        bounds: Bounds,
        observer: Observer,
    ) -> Self {
        Self {
            elevator,
            limits,
            bounds,
            observer,
            accounts: Accounts::default(),
            slots: Vec::new(),
            free: Vec::new(),
            admission: Admission::new(bounds.requests, bounds.are_tags, bounds.batching),
            waiting: [Waiters::default(), Waiters::default()],
            turn: 0,
            to_wake: [0; 2],
            in_device: 0,
            spare: Vec::new(),
        }
    }

    /// The stream has ended. Its account is closed once none of its bios is in progress.
    pub(super) fn exited(&mut self, stream: StreamId, now: Nanos) -> Option<StreamStats> {
        self.elevator.exited(stream, now);
        self.admission.forget(stream);
        self.accounts.leave(stream)
    }

    pub(super) fn awaits(&mut self, stream: StreamId) -> bool {
        self.elevator.awaits(stream)
    }

    /// Merges a bio that fits the device into an adjacent queued request; otherwise returns it.
    pub(super) fn join(&mut self, bio: Bio, now: Nanos) -> Option<Bio> {
        let request = describe(&bio, self.accounts.of(bio.stream).info);
        let segments = bio.segments.len();
        if self.neighbour(&request, segments).is_none() {
            return Some(bio);
        }
        self.observer.tell(now, Action::Queued, &bio, Ok(()), now);
        self.accounts.of(bio.stream).comes();
        self.merge(Arrival { bio, at: now, segments }, &request, now).map(|arrival| arrival.bio)
    }

    /// Number of bios that wait for a free request, requests in the elevator, and requests in the
    /// device.
    pub(super) fn load(&self) -> (usize, usize, usize) {
        (self.waiting.iter().map(Waiters::len).sum(), self.elevator.queued(), self.in_device)
    }

    /// Takes a bio that fits the device: it joins a request, becomes one, or waits for one.
    pub(super) fn add(&mut self, bio: Bio, now: Nanos) {
        self.observer.tell(now, Action::Queued, &bio, Ok(()), now);
        self.accounts.of(bio.stream).comes();
        let segments = bio.segments.len();
        let (stream, kind) = (bio.stream, usize::from(is_sync(&bio)));
        let arrival = Arrival { bio, at: now, segments };
        // A task that waits for a request submits nothing meanwhile.
        let sleeps = self.admission.batches() && self.waiting[kind].holds(stream);
        let left = if sleeps { Some(arrival) } else { self.place(arrival, now) };
        if let Some(arrival) = left {
            self.observer.tell(now, Action::Slept, &arrival.bio, Ok(()), now);
            self.waiting[kind].push(stream, arrival);
        }
    }

    /// Merges a bio or gives it a request; returns the bio if no request is free.
    fn place(&mut self, arrival: Arrival, now: Nanos) -> Option<Arrival> {
        let request = describe(&arrival.bio, self.accounts.of(arrival.bio.stream).info);
        let arrival = self.merge(arrival, &request, now)?;
        let kind = usize::from(request.sync);
        // The device is kept idle for this bio: if it also had to wait for a slot, the idling would
        // be for nothing.
        let awaited = request.sync && self.elevator.awaits(request.stream);
        if !self.admission.take(kind, request.stream, awaited, now) {
            return Some(arrival);
        }
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() as u32 - 1
        });
        let request = Request { id: RequestId(index), ..request };
        self.observer.tell(now, Action::GotRequest, &arrival.bio, Ok(()), now);
        self.observer.tell(now, Action::Inserted, &arrival.bio, Ok(()), now);
        let mut bios = self.spare.pop().unwrap_or_default();
        bios.push_back(arrival);
        self.slots[index as usize] = Some(Slot { request, bios, dispatched: now, retrying: false });
        self.elevator.add(request, now);
        None
    }

    /// Gives freed requests of a kind to waiting bios.
    fn admit_waiting(&mut self, kind: usize, now: Nanos) {
        if self.admission.are_tags() {
            while self.admission.has_room(kind) {
                self.turn = 1 - self.turn;
                let [first, second] = [self.turn, 1 - self.turn];
                let next = self.waiting[first].pop().or_else(|| self.waiting[second].pop());
                let Some(arrival) = next else { return };
                let left = self.place(arrival, now);
                debug_assert!(left.is_none(), "there is a tag");
            }
            return;
        }
        let mut to_wake = std::mem::take(&mut self.to_wake[kind]);
        if !self.admission.batches() {
            while self.admission.has_room(kind) {
                let Some(arrival) = self.waiting[kind].pop() else { return };
                let left = self.place(arrival, now);
                debug_assert!(left.is_none(), "there is room");
            }
            return;
        }
        while to_wake > 0 {
            let Some((stream, mut arrivals)) = self.waiting[kind].pop_stream() else { return };
            self.admission.woken(stream, now);
            let before = self.admission.taken(kind);
            while let Some(arrival) = arrivals.pop_front() {
                if let Some(arrival) = self.place(arrival, now) {
                    arrivals.push_front(arrival);
                    break;
                }
            }
            let took = self.admission.taken(kind) > before;
            let blocked = !took && !arrivals.is_empty();
            self.waiting[kind].push_stream(stream, arrivals);
            if blocked {
                return;
            }
            // A bio that was merged leaves the free request to the next stream.
            to_wake -= usize::from(took);
        }
    }

    /// Merges the bio into an adjacent queued request if policy and limits allow; otherwise returns
    /// it.
    fn merge(&mut self, arrival: Arrival, candidate: &Request, now: Nanos) -> Option<Arrival> {
        if stays_alone(arrival.bio.flags) {
            return Some(arrival);
        }
        let sectors = candidate.sectors;
        let Some((id, action)) = self.neighbour(candidate, arrival.segments) else { return Some(arrival) };
        self.observer.tell(now, action, &arrival.bio, Ok(()), now);
        self.accounts.of(arrival.bio.stream).stats.merged += 1;
        let slot = self.slot_mut(id);
        slot.request.sectors += sectors;
        if action == Action::BackMerged {
            slot.bios.push_back(arrival);
        } else {
            slot.request.start = candidate.start;
            slot.bios.push_front(arrival);
        }
        let grown = slot.request;
        self.elevator.merged(id, grown.start, grown.sectors, now);
        // The bio may have closed the gap between two requests.
        if action == Action::BackMerged {
            if let Some(next) = self.elevator.front_merge(&grown) {
                self.absorb(id, next, now);
            }
        } else if let Some(previous) = self.elevator.back_merge(&grown) {
            self.absorb(previous, id, now);
        }
        None
    }

    /// The queued request that a bio may join, and how.
    fn neighbour(&self, candidate: &Request, segments: usize) -> Option<(RequestId, Action)> {
        let fits = |id: &RequestId| self.fits(*id, candidate.sectors, segments);
        let back = self.elevator.back_merge(candidate).filter(fits);
        let front = || self.elevator.front_merge(candidate).filter(fits);
        back.map(|id| (id, Action::BackMerged)).or_else(|| front().map(|id| (id, Action::FrontMerged)))
    }

    /// Whether the queued request may grow by this much.
    fn fits(&self, id: RequestId, sectors: u64, segments: usize) -> bool {
        let slot = self.slot(id);
        !stays_alone(slot.bios[0].bio.flags)
            && (slot.request.sectors + sectors) * Sector::BYTES <= self.limits.max_bytes
            && slot.segments() + segments <= self.limits.max_segments as usize
    }

    /// Merges `gone`, which starts where `kept` ends, into `kept`, if the limits allow.
    fn absorb(&mut self, kept: RequestId, gone: RequestId, now: Nanos) {
        let slot = self.slot(gone);
        let (sectors, segments) = (slot.request.sectors, slot.segments());
        if kept == gone || stays_alone(slot.bios[0].bio.flags) || !self.fits(kept, sectors, segments) {
            return;
        }
        let mut slot = self.release(gone);
        self.accounts.of(slot.bios[0].bio.stream).stats.merged += 1;
        let to = self.slot_mut(kept);
        to.request.sectors += sectors;
        to.bios.append(&mut slot.bios);
        self.spare.push(slot.bios);
        self.elevator.absorbed(kept, gone, now);
    }

    fn slot(&self, id: RequestId) -> &Slot {
        self.slots[id.0 as usize].as_ref().expect("the elevator names requests that it was given")
    }

    fn slot_mut(&mut self, id: RequestId) -> &mut Slot {
        self.slots[id.0 as usize].as_mut().expect("the elevator names requests that it was given")
    }

    fn release(&mut self, id: RequestId) -> Slot {
        let slot = self.slots[id.0 as usize].take().expect("released once");
        self.free.push(id.0);
        let kind = usize::from(slot.request.sync);
        self.to_wake[kind] += usize::from(self.admission.give_back(kind));
        slot
    }

    /// The bio to send now, if the device has room.
    pub(super) fn next(&mut self, now: Nanos) -> Next {
        if self.in_device >= self.bounds.depth {
            return Next::Nothing;
        }
        match self.elevator.next(now) {
            Decision::Empty => Next::Nothing,
            Decision::IdleUntil(at) => Next::IdleUntil(at),
            Decision::Dispatch(id) => {
                self.in_device += 1;
                Next::Dispatch(id, self.send(id, now))
            }
        }
    }

    fn send(&mut self, id: RequestId, now: Nanos) -> Bio {
        let slot = self.slot_mut(id);
        slot.dispatched = now;
        let bio = slot.carrier();
        self.observer.tell(now, Action::Issued, &bio, Ok(()), now);
        bio
    }

    /// A dispatched bio has completed. Of the bios that it carried, those that are done go to
    /// `ended`.
    ///
    /// If a merged request has failed, its bios are retried one by one, so that each ends as it
    /// would have alone: then this returns the next bio to send under the same number.
    pub(super) fn completed(
        &mut self,
        id: RequestId,
        carried: Bio,
        result: Result<(), Box<IoError>>,
        now: Nanos,
        ended: &mut Vec<Ended>,
    ) -> Option<Bio> {
        let slot = self.slots[id.0 as usize].as_mut().expect("completed once");
        let since = slot.bios[0].at;
        self.observer.tell(now, Action::Completed, &carried, told(&result), since);
        slot.take_back(carried);
        let over = match &result {
            Err(_) if slot.bios.len() > 1 && !slot.retrying => {
                slot.retrying = true;
                0
            }
            _ if slot.retrying => 1,
            _ => slot.bios.len(),
        };
        for arrival in slot.bios.drain(..over) {
            let stats = &mut self.accounts.of(arrival.bio.stream).stats;
            stats.settle(&arrival.bio, result.is_ok(), arrival.at, slot.dispatched, now);
            if self.accounts.close_if_left(arrival.bio.stream) {
                // Bios still waiting for a request when the stream ended reached the elevator after
                // that.
                self.elevator.exited(arrival.bio.stream, now);
            }
            ended.push((arrival.bio, result.clone()));
        }
        if !slot.bios.is_empty() {
            return Some(self.send(id, now));
        }
        self.in_device -= 1;
        self.elevator.completed(id, now);
        let slot = self.release(id);
        self.spare.push(slot.bios);
        self.admit_waiting(usize::from(slot.request.sync), now);
        None
    }
}

impl Slot {
    fn segments(&self) -> usize {
        self.bios.iter().map(|arrival| arrival.segments).sum()
    }

    /// The bio that does the work of all bios, or of the first one while they are retried one by
    /// one.
    fn carrier(&mut self) -> Bio {
        let count = if self.retrying { 1 } else { self.bios.len() };
        let mut flags = BioFlags::all();
        let (mut bytes, mut either) = (0, BioFlags::empty());
        for arrival in self.bios.range(..count) {
            bytes += arrival.bio.bytes;
            flags &= arrival.bio.flags;
            either |= arrival.bio.flags & (BioFlags::SYNC | BioFlags::META);
        }
        let first = &mut self.bios[0].bio;
        let mut bio = Bio::range(first.op, first.start, bytes);
        (bio.flags, bio.stream) = (flags | either, first.stream);
        bio.segments = std::mem::take(&mut first.segments);
        for arrival in self.bios.range_mut(1..count) {
            bio.segments.append(&mut arrival.bio.segments);
        }
        bio
    }

    /// Returns each bio's memory to it.
    fn take_back(&mut self, mut carried: Bio) {
        let carried = std::mem::take(&mut carried.segments);
        let count = if self.retrying { 1 } else { self.bios.len() };
        if count == 1 {
            self.bios[0].bio.segments = carried;
            return;
        }
        let mut segments: std::vec::IntoIter<Segment> = carried.into_iter();
        for arrival in &mut self.bios {
            arrival.bio.segments = segments.by_ref().take(arrival.segments).collect();
        }
    }
}

/// The result, for the observer.
pub(super) fn told(result: &Result<(), Box<IoError>>) -> Result<(), &IoError> {
    match result {
        Ok(()) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Whether a task waits for the bio.
fn is_sync(bio: &Bio) -> bool {
    bio.op == Op::Read || bio.flags.contains(BioFlags::SYNC)
}

/// A bio as the elevator sees it.
fn describe(bio: &Bio, info: StreamInfo) -> Request {
    Request {
        sync: is_sync(bio),
        meta: bio.flags.contains(BioFlags::META),
        prio: bio.flags.contains(BioFlags::META),
        // Linux sets it on the writes of fsync and of journals, which have these flags.
        noidle: stays_alone(bio.flags),
        stream: bio.stream,
        program: info.program,
        priority: info.priority,
        ..Request::new(RequestId::default(), bio.op, bio.start, bio.bytes / Sector::BYTES)
    }
}
