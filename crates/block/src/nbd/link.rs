//! One connection's requests and replies: what to send, what to expect, and what an answer means.
//!
//! Independent of sockets: it reads from and writes to any non-blocking stream.

use super::NbdError;
use super::durable::Durability;
use super::wire::{self, Command, Reply};
use crate::{Bio, BioFlags, IoErrorKind, Op, Sector};
use extant_rt::Nanos;
use std::collections::VecDeque;
use std::io::{self, ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::ops::Range;

/// Enough for the longest reply without data, and for a batch of small ones.
const INBOX_BYTES: usize = 128 << 10;
const _: () = assert!(INBOX_BYTES > wire::MAX_SMALL_CHUNK);
/// Answers of at least this many bytes are read directly into the bio's memory. Bytes read past
/// such an answer land in the buffer, and the next answer is then copied once more.
const LARGE_BYTES: u32 = 16 << 10;
/// How many bytes to read past such an answer: the next header, and little else.
const SIP_BYTES: usize = 1 << 10;
/// How many times to look for the rest of a partial answer before sleeping. Servers send header and
/// data separately, and a wake-up for each costs more than retrying.
const LOOKS: u32 = 32;
/// How many times a request is sent before it fails: once, and again after each of two lost
/// connections.
const TRIES: u8 = 3;
/// Maximum number of slices in one system call (`IOV_MAX`).
const MAX_SLICES: usize = 1024;

/// A bio and its result.
pub(super) type Ended = (Bio, Result<(), IoErrorKind>);

/// The negotiated parameters that matter here.
#[derive(Clone, Copy, Debug)]
pub(super) struct Terms {
    pub(super) structured: bool,
    /// Whether the server honours FUA.
    pub(super) fua: bool,
    /// Whether the server supports flush.
    pub(super) flush: bool,
}

#[derive(Debug)]
pub(super) struct Link {
    terms: Terms,
    flights: Vec<Option<Flight>>,
    free: Vec<u32>,
    sequence: u32,
    outbox: VecDeque<Outgoing>,
    inbox: Inbox,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Preflush,
    Data,
    Postflush,
}

/// A bio in flight.
#[derive(Debug)]
struct Flight {
    bio: Bio,
    stage: Stage,
    cookie: u64,
    since: Nanos,
    tries: u8,
    sent: bool,
    /// For a flush: the writes it covers.
    covers: u64,
    /// Parts of a read that have arrived, ordered by place.
    got: Vec<Range<u64>>,
    failed: Option<IoErrorKind>,
}

#[derive(Debug)]
struct Outgoing {
    slot: u32,
    header: [u8; wire::REQUEST_BYTES],
    /// Bytes of header and data already sent.
    sent: u64,
}

#[derive(Debug)]
struct Inbox {
    buffer: Box<[u8]>,
    window: Range<usize>,
    payload: Option<Payload>,
    /// How many bytes to read ahead.
    appetite: usize,
}

/// Data of a read that is being received.
#[derive(Clone, Copy, Debug)]
struct Payload {
    slot: u32,
    /// Offset in the bio.
    at: u64,
    left: u64,
    done: bool,
}

impl Default for Inbox {
    fn default() -> Self {
        Self { buffer: vec![0; INBOX_BYTES].into(), window: 0..0, payload: None, appetite: INBOX_BYTES }
    }
}

impl Link {
    pub(super) fn new(terms: Terms) -> Self {
        Self {
            terms,
            flights: Vec::new(),
            free: Vec::new(),
            sequence: 0,
            outbox: VecDeque::new(),
            inbox: Inbox::default(),
        }
    }

    /// Accepts a bio that fits the export; [`Link::send`] sends it.
    pub(super) fn start(&mut self, bio: Bio, now: Nanos, durability: &Durability) {
        let preflush = bio.flags.contains(BioFlags::PREFLUSH) && self.terms.flush;
        let flight = Flight {
            stage: match bio.op {
                Op::Flush => Stage::Data,
                _ if bio.is_flush() => Stage::Postflush,
                _ if preflush => Stage::Preflush,
                _ => Stage::Data,
            },
            bio,
            cookie: 0,
            since: now,
            tries: 0,
            sent: false,
            covers: 0,
            got: Vec::new(),
            failed: None,
        };
        let slot = match self.free.pop() {
            Some(slot) => {
                self.flights[slot as usize] = Some(flight);
                slot
            }
            None => {
                self.flights.push(Some(flight));
                self.flights.len() as u32 - 1
            }
        };
        self.enqueue(slot, durability);
    }

    /// Number of bios that have not ended.
    pub(super) fn in_flight(&self) -> usize {
        self.flights.len() - self.free.len()
    }

    /// When the oldest of them started to wait for an answer.
    pub(super) fn oldest(&self) -> Option<Nanos> {
        self.flights.iter().flatten().map(|flight| flight.since).min()
    }

    /// Queues the request for the flight's current stage.
    fn enqueue(&mut self, slot: u32, durability: &Durability) {
        self.sequence = self.sequence.wrapping_add(1);
        let flight = self.flights[slot as usize].as_mut().expect("a flight");
        flight.cookie = u64::from(self.sequence) << 32 | u64::from(slot);
        flight.sent = false;
        flight.got.clear();
        let bio = &flight.bio;
        let fua = if bio.flags.contains(BioFlags::FUA) && self.terms.fua { wire::COMMAND_FUA } else { 0 };
        let at = bio.start.0 * Sector::BYTES;
        let bytes = u32::try_from(bio.bytes).expect("bios are cut to the server's largest request");
        let (flags, command, at, bytes) = match (flight.stage, bio.op) {
            (Stage::Preflush | Stage::Postflush, _) | (Stage::Data, Op::Flush) => {
                flight.covers = durability.flush_sent();
                (0, Command::Flush, 0, 0)
            }
            (Stage::Data, Op::Read) => (0, Command::Read, at, bytes),
            (Stage::Data, Op::Write) => (fua, Command::Write, at, bytes),
            (Stage::Data, Op::Discard) => (fua, Command::Trim, at, bytes),
            (Stage::Data, Op::WriteZeroes) => (fua, Command::WriteZeroes, at, bytes),
        };
        let header = wire::request(flags, command, flight.cookie, at, bytes);
        self.outbox.push_back(Outgoing { slot, header, sent: 0 });
    }

    /// Sends as much as `stream` accepts. Returns true if that was everything.
    pub(super) fn send(&mut self, stream: &mut impl Write) -> io::Result<bool> {
        while !self.outbox.is_empty() {
            let mut slices = Vec::with_capacity(8);
            for out in &self.outbox {
                let flight = self.flights[out.slot as usize].as_ref().expect("a flight");
                let header = (out.sent as usize).min(out.header.len());
                slices.push(IoSlice::new(&out.header[header..]));
                if is_payload(flight) {
                    let from = out.sent.saturating_sub(wire::REQUEST_BYTES as u64);
                    slices.extend(flight.bio.memory_from(from).map(IoSlice::new));
                }
                if slices.len() >= MAX_SLICES {
                    slices.truncate(MAX_SLICES);
                    break;
                }
            }
            match stream.write_vectored(&slices) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(n) => self.sent(n as u64),
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(true)
    }

    fn sent(&mut self, mut bytes: u64) {
        while let Some(out) = self.outbox.front_mut() {
            let flight = self.flights[out.slot as usize].as_mut().expect("a flight");
            let payload = if is_payload(flight) { flight.bio.bytes } else { 0 };
            let left = wire::REQUEST_BYTES as u64 + payload - out.sent;
            if bytes < left {
                out.sent += bytes;
                return;
            }
            bytes -= left;
            flight.sent = true;
            self.outbox.pop_front();
        }
    }

    /// Receives what has arrived; bios that end go to `ended`. After an error the connection is
    /// unusable.
    pub(super) fn receive(
        &mut self,
        stream: &mut impl Read,
        durability: &Durability,
        ended: &mut Vec<Ended>,
    ) -> Result<(), NbdError> {
        let mut looks = LOOKS;
        loop {
            self.digest(durability, ended)?;
            let Link { flights, inbox, .. } = self;
            inbox.make_room();
            let end = INBOX_BYTES.min(inbox.window.end + inbox.appetite);
            let free = &mut inbox.buffer[inbox.window.end..end];
            let mut slices: Vec<IoSliceMut<'_>> = Vec::with_capacity(2);
            let mut direct = 0;
            if let Some(payload) = &inbox.payload {
                // Read directly into the bio's memory. The bytes that follow go into the buffer.
                let bio = &mut flights[payload.slot as usize].as_mut().expect("a flight").bio;
                let mut left = payload.left as usize;
                for memory in bio.memory_from_mut(payload.at).take(MAX_SLICES - 1) {
                    let n = memory.len().min(left);
                    left -= n;
                    direct += n;
                    slices.push(IoSliceMut::new(&mut memory[..n]));
                    if left == 0 {
                        break;
                    }
                }
                if left == 0 {
                    slices.push(IoSliceMut::new(free));
                }
            } else {
                slices.push(IoSliceMut::new(free));
            }
            let wanted: usize = slices.iter().map(|s| s.len()).sum();
            let n = match stream.read_vectored(&mut slices) {
                Ok(0) => return Err(NbdError::Closed),
                Ok(n) => n,
                Err(e) if e.kind() == ErrorKind::WouldBlock => 0,
                Err(e) if e.kind() == ErrorKind::Interrupted => continue,
                Err(e) => return Err(e.into()),
            };
            let placed = n.min(direct);
            if let Some(payload) = &mut inbox.payload {
                payload.at += placed as u64;
                payload.left -= placed as u64;
            }
            inbox.window.end += n - placed;
            if n < wanted {
                self.digest(durability, ended)?;
                if self.inbox.is_between_replies() || looks == 0 {
                    return Ok(());
                }
                looks -= 1;
                std::hint::spin_loop();
            }
        }
    }

    /// Interprets what is in the buffer.
    fn digest(&mut self, durability: &Durability, ended: &mut Vec<Ended>) -> Result<(), NbdError> {
        loop {
            if let Some(payload) = &mut self.inbox.payload {
                let bio = &mut self.flights[payload.slot as usize].as_mut().expect("a flight").bio;
                let mut memory = bio.memory_from_mut(payload.at);
                while payload.left > 0 && !self.inbox.window.is_empty() {
                    let to = memory.next().expect("the reply's place was checked");
                    let n = to.len().min(payload.left as usize).min(self.inbox.window.len());
                    to[..n].copy_from_slice(&self.inbox.buffer[self.inbox.window.start..][..n]);
                    self.inbox.window.start += n;
                    payload.at += n as u64;
                    payload.left -= n as u64;
                }
                drop(memory);
                if payload.left > 0 {
                    return Ok(());
                }
                let Payload { slot, done, .. } = *payload;
                self.inbox.payload = None;
                if done {
                    self.answered(slot, durability, ended)?;
                }
            }
            let Some((reply, length)) = wire::parse_reply(&self.inbox.buffer[self.inbox.window.clone()])?
            else {
                return Ok(());
            };
            self.inbox.window.start += length;
            self.reply(reply, durability, ended)?;
        }
    }

    /// The flight that a cookie identifies.
    fn flight(&mut self, cookie: u64) -> Result<(u32, &mut Flight), NbdError> {
        let slot = cookie as u32;
        match self.flights.get_mut(slot as usize) {
            Some(Some(flight)) if flight.cookie == cookie && flight.sent => Ok((slot, flight)),
            _ => Err(NbdError::Cookie(cookie)),
        }
    }

    fn reply(
        &mut self,
        reply: Reply,
        durability: &Durability,
        ended: &mut Vec<Ended>,
    ) -> Result<(), NbdError> {
        let structured = self.terms.structured;
        match reply {
            Reply::Simple { cookie, error } => {
                let (slot, flight) = self.flight(cookie)?;
                let reads = flight.is_read();
                if reads && structured {
                    return Err(NbdError::Form("simple"));
                }
                if error != 0 {
                    flight.failed = Some(IoErrorKind::Os(wire::errno(error)));
                } else if reads {
                    let bytes = flight.bio.bytes;
                    flight.got.push(0..bytes);
                    self.inbox.payload = Some(Payload { slot, at: 0, left: bytes, done: true });
                    return Ok(());
                }
                self.answered(slot, durability, ended)
            }
            _ if !structured => Err(NbdError::Form("structured")),
            Reply::Nothing { cookie, done } => {
                let (slot, _) = self.flight(cookie)?;
                if done { self.answered(slot, durability, ended) } else { Ok(()) }
            }
            Reply::Data { cookie, done, offset, bytes } => {
                let (slot, flight) = self.flight(cookie)?;
                let at = flight.claim(offset, bytes)?;
                self.inbox.payload = Some(Payload { slot, at, left: bytes.into(), done });
                self.inbox.appetite = if bytes >= LARGE_BYTES { SIP_BYTES } else { INBOX_BYTES };
                Ok(())
            }
            Reply::Hole { cookie, done, offset, bytes } => {
                let (slot, flight) = self.flight(cookie)?;
                let at = flight.claim(offset, bytes)?;
                let mut left = bytes as usize;
                for memory in flight.bio.memory_from_mut(at) {
                    let n = memory.len().min(left);
                    memory[..n].fill(0);
                    left -= n;
                }
                if done { self.answered(slot, durability, ended) } else { Ok(()) }
            }
            Reply::Error { cookie, done, error, message: _ } => {
                let (slot, flight) = self.flight(cookie)?;
                flight.failed.get_or_insert(IoErrorKind::Os(wire::errno(error)));
                if done { self.answered(slot, durability, ended) } else { Ok(()) }
            }
        }
    }

    /// The last part of a command's answer has arrived.
    fn answered(
        &mut self,
        slot: u32,
        durability: &Durability,
        ended: &mut Vec<Ended>,
    ) -> Result<(), NbdError> {
        let terms = self.terms;
        let flight = self.flights[slot as usize].as_mut().expect("a flight");
        let result = flight.verdict(terms, durability)?;
        let next = match (&result, flight.stage) {
            (Err(_), _) => None,
            (Ok(()), Stage::Preflush) => Some(Stage::Data),
            (Ok(()), Stage::Data) => {
                let changes = matches!(flight.bio.op, Op::Write | Op::WriteZeroes | Op::Discard);
                let later = flight.bio.flags.contains(BioFlags::FUA) && !terms.fua && terms.flush;
                (changes && later).then_some(Stage::Postflush)
            }
            (Ok(()), Stage::Postflush) => None,
        };
        match next {
            Some(stage) => {
                flight.stage = stage;
                self.enqueue(slot, durability);
            }
            None => {
                let flight = self.flights[slot as usize].take().expect("a flight");
                self.free.push(slot);
                ended.push((flight.bio, result));
            }
        }
        Ok(())
    }

    /// Continues on a new connection: resends everything unanswered, in order. Bios that were sent
    /// too often go to `ended`.
    pub(super) fn restart(&mut self, now: Nanos, durability: &Durability, ended: &mut Vec<Ended>) {
        self.outbox.clear();
        (self.inbox.window, self.inbox.payload) = (0..0, None);
        let mut slots: Vec<u32> =
            (0..self.flights.len() as u32).filter(|&slot| self.flights[slot as usize].is_some()).collect();
        slots.sort_by_key(|&slot| self.flights[slot as usize].as_ref().expect("a flight").cookie);
        for slot in slots {
            let flight = self.flights[slot as usize].as_mut().expect("a flight");
            flight.tries += 1;
            flight.failed = None;
            flight.since = now;
            if flight.tries >= TRIES {
                let flight = self.flights[slot as usize].take().expect("a flight");
                self.free.push(slot);
                ended.push((flight.bio, Err(IoErrorKind::TimedOut)));
            } else {
                self.enqueue(slot, durability);
            }
        }
    }

    /// Fails all bios with the same error.
    pub(super) fn fail_all(&mut self, kind: &IoErrorKind, ended: &mut Vec<Ended>) {
        self.outbox.clear();
        (self.inbox.window, self.inbox.payload) = (0..0, None);
        for (slot, flight) in self.flights.iter_mut().enumerate() {
            if let Some(flight) = flight.take() {
                self.free.push(slot as u32);
                ended.push((flight.bio, Err(kind.clone())));
            }
        }
    }
}

/// Whether the command being sent carries the bio's memory.
fn is_payload(flight: &Flight) -> bool {
    flight.stage == Stage::Data && flight.bio.op == Op::Write
}

impl Flight {
    fn is_read(&self) -> bool {
        self.stage == Stage::Data && self.bio.op == Op::Read
    }

    /// Records data for a place of the export; returns its offset in the bio.
    fn claim(&mut self, offset: u64, bytes: u32) -> Result<u64, NbdError> {
        if !self.is_read() {
            return Err(NbdError::UnexpectedData);
        }
        let wrong = || NbdError::Place { offset, bytes };
        let start = offset.checked_sub(self.bio.start.0 * Sector::BYTES).ok_or_else(wrong)?;
        let end = start.checked_add(bytes.into()).filter(|&end| end <= self.bio.bytes).ok_or_else(wrong)?;
        let at = self.got.partition_point(|range| range.start < start);
        let overlaps = at.checked_sub(1).is_some_and(|before| self.got[before].end > start)
            || self.got.get(at).is_some_and(|after| after.start < end);
        if overlaps || bytes == 0 {
            return Err(wrong());
        }
        self.got.insert(at, start..end);
        Ok(start)
    }

    /// The result of the command.
    fn verdict(
        &mut self,
        terms: Terms,
        durability: &Durability,
    ) -> Result<Result<(), IoErrorKind>, NbdError> {
        if let Some(kind) = self.failed.take() {
            return Ok(Err(kind));
        }
        match (self.stage, self.bio.op) {
            (Stage::Preflush | Stage::Postflush, _) | (Stage::Data, Op::Flush) => {
                let sound = durability.flushed(self.covers);
                let lost =
                    || IoErrorKind::Gone("the connection was lost with writes that were not flushed".into());
                Ok(if sound { Ok(()) } else { Err(lost()) })
            }
            (Stage::Data, Op::Read) => {
                let got = self.got.iter().map(|range| range.end - range.start).sum();
                if got != self.bio.bytes {
                    return Err(NbdError::Incomplete { asked: self.bio.bytes, got });
                }
                Ok(Ok(()))
            }
            (Stage::Data, Op::Write | Op::WriteZeroes | Op::Discard) => {
                if terms.flush && !(terms.fua && self.bio.flags.contains(BioFlags::FUA)) {
                    durability.written();
                }
                Ok(Ok(()))
            }
        }
    }
}

impl Inbox {
    fn is_between_replies(&self) -> bool {
        self.window.is_empty() && self.payload.is_none()
    }

    /// Moves the window to the front, so that all free space is behind it.
    fn make_room(&mut self) {
        if self.window.is_empty() {
            self.window = 0..0;
        } else if self.window.start > 0 {
            self.buffer.copy_within(self.window.clone(), 0);
            self.window = 0..self.window.len();
        }
    }
}
