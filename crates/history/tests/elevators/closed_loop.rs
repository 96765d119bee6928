//! Streams that wait for their requests, on an elevator and a disk, in virtual time only.

use crate::disk::{Disk, Geometry};
use crate::random::Random;
use extant_block::{Op, Sector, StreamId};
use extant_iosched::elevator::{Decision, Elevator, IoClass, Priority, ProgramId, Request, RequestId};
use extant_rt::Nanos;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// How a stream reads or writes.
#[derive(Clone, Debug)]
pub(crate) struct Stream {
    pub(crate) op: Op,
    pub(crate) sync: bool,
    pub(crate) sectors: u64,
    /// Position: `Some(span)` is random in `base..base+span`, `None` sequential from `base`.
    pub(crate) base: u64,
    pub(crate) random_in: Option<u64>,
    /// Time from the completion of a request to the next one.
    pub(crate) think: Nanos,
    /// Sectors from one sequential request to the next; 0: contiguous.
    pub(crate) stride: u64,
    /// Maximum requests in flight.
    pub(crate) depth: u32,
    pub(crate) starts: Nanos,
    pub(crate) priority: Priority,
    pub(crate) program: u64,
}

impl Stream {
    pub(crate) fn random(sectors: u64, base: u64, span: u64) -> Self {
        Self { random_in: Some(span), ..Self::sequential(sectors, base) }
    }

    pub(crate) fn sequential(sectors: u64, base: u64) -> Self {
        Self {
            op: Op::Read,
            sync: true,
            sectors,
            base,
            random_in: None,
            think: Nanos::ZERO,
            stride: 0,
            depth: 1,
            starts: Nanos::ZERO,
            priority: Priority::default(),
            program: 0,
        }
    }

    pub(crate) fn thinking(self, think: Nanos) -> Self {
        Self { think, ..self }
    }

    pub(crate) fn with_priority(self, class: IoClass, level: u8) -> Self {
        Self { priority: Priority::new(class, level), ..self }
    }

    pub(crate) fn of_program(self, program: u64) -> Self {
        Self { program, ..self }
    }

    pub(crate) fn asynchronous_write(self, depth: u32) -> Self {
        Self { op: Op::Write, sync: false, depth, ..self }
    }
}

/// The service a stream received.
#[derive(Clone, Debug, Default)]
pub(crate) struct Got {
    pub(crate) requests: u64,
    pub(crate) bytes: u64,
    pub(crate) latencies: Vec<Nanos>,
}

/// Result of a run.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) streams: Vec<Got>,
    /// When the last stream finished, including its last think time (like fio's `runt`).
    pub(crate) runtime: Nanos,
}

impl Outcome {
    pub(crate) fn iops(&self, of: std::ops::Range<usize>) -> f64 {
        self.streams[of].iter().map(|s| s.requests).sum::<u64>() as f64 / self.runtime.as_secs_f64()
    }

    pub(crate) fn requests(&self, of: std::ops::Range<usize>) -> u64 {
        self.streams[of].iter().map(|s| s.requests).sum()
    }

    pub(crate) fn mb_per_s(&self, of: std::ops::Range<usize>) -> f64 {
        self.streams[of].iter().map(|s| s.bytes).sum::<u64>() as f64 / 1e6 / self.runtime.as_secs_f64()
    }

    /// Mean and maximum in milliseconds.
    pub(crate) fn latency_ms(&self, of: std::ops::Range<usize>) -> (f64, f64) {
        let all: Vec<u64> = self.streams[of].iter().flat_map(|s| &s.latencies).map(|l| l.0).collect();
        let sum: u64 = all.iter().sum();
        (sum as f64 / all.len().max(1) as f64 / 1e6, all.iter().max().copied().unwrap_or(0) as f64 / 1e6)
    }
}

#[derive(Clone, Copy, Debug)]
struct Pending {
    stream: usize,
    issued: Nanos,
    start: u64,
}

/// Length of a run, and its number of request slots.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run {
    /// No request is issued after this time.
    pub(crate) seconds: u64,
    pub(crate) seed: u64,
    /// Slots (Linux: `nr_requests`) for synchronous requests, and the same number for asynchronous
    /// ones.
    pub(crate) slots: usize,
}

impl Run {
    /// A run with Linux's 128 slots.
    pub(crate) fn seconds(seconds: u64) -> Self {
        Self { seconds, seed: 1, slots: 128 }
    }
}

pub(crate) struct ClosedLoop<'a> {
    elevator: &'a mut dyn Elevator,
    disk: Disk,
    streams: &'a [Stream],
    random: Random,
    next_at: Vec<u64>,
    wakes: BinaryHeap<Reverse<(Nanos, u64, usize)>>,
    wakes_made: u64,
    slots: Vec<Option<Pending>>,
    free: Vec<u32>,
    in_use: [usize; 2],
    /// Requests waiting for a slot: \[async, sync\].
    waiting: [VecDeque<Pending>; 2],
    got: Vec<Got>,
    limit: usize,
    ends: Nanos,
    runtime: Nanos,
}

impl<'a> ClosedLoop<'a> {
    pub(crate) fn run(
        elevator: &'a mut dyn Elevator,
        geometry: Geometry,
        streams: &'a [Stream],
        run: Run,
    ) -> Outcome {
        let mut world = Self {
            elevator,
            disk: Disk::new(geometry),
            streams,
            random: Random::new(run.seed),
            next_at: streams.iter().map(|s| s.base).collect(),
            wakes: BinaryHeap::new(),
            wakes_made: 0,
            slots: Vec::new(),
            free: Vec::new(),
            in_use: [0; 2],
            waiting: Default::default(),
            got: vec![Got::default(); streams.len()],
            limit: run.slots,
            ends: Nanos::from_secs(run.seconds),
            runtime: Nanos::ZERO,
        };
        for (i, stream) in streams.iter().enumerate() {
            for _ in 0..stream.depth {
                world.wake(stream.starts, i);
            }
        }
        world.go();
        Outcome { streams: world.got, runtime: world.runtime }
    }

    fn wake(&mut self, at: Nanos, stream: usize) {
        self.wakes_made += 1;
        self.wakes.push(Reverse((at, self.wakes_made, stream)));
    }

    fn go(&mut self) {
        let mut idle_until: Option<Nanos> = None;
        loop {
            let wake = self.wakes.peek().map(|Reverse((at, _, _))| *at);
            let Some(now) = [wake, self.disk.busy_until(), idle_until].into_iter().flatten().min() else {
                break;
            };
            if idle_until.is_some_and(|at| at <= now) {
                idle_until = None;
            }
            while self.disk.busy_until().is_some_and(|at| at <= now) {
                let tag = self.disk.complete();
                self.completed(tag, now);
            }
            while self.wakes.peek().is_some_and(|Reverse((at, _, _))| *at <= now) {
                let Reverse((_, _, stream)) = self.wakes.pop().expect("just peeked");
                self.issue(stream, now);
            }
            while self.disk.has_room() {
                match self.elevator.next(now) {
                    Decision::Dispatch(id) => {
                        let pending = self.slots[id.0 as usize].expect("dispatched once, after it was added");
                        let stream = &self.streams[pending.stream];
                        let write = stream.op != Op::Read;
                        self.disk.submit(id.0, pending.start, stream.sectors, write, now);
                    }
                    Decision::IdleUntil(at) => {
                        assert!(at > now, "idles into the past");
                        idle_until = Some(at);
                        break;
                    }
                    Decision::Empty => {
                        idle_until = None;
                        break;
                    }
                }
            }
        }
        assert_eq!(self.elevator.queued(), 0, "requests were left in the elevator");
        assert!(self.slots.iter().all(Option::is_none), "requests were lost");
    }

    fn issue(&mut self, stream: usize, now: Nanos) {
        let s = &self.streams[stream];
        if now >= self.ends {
            self.runtime = self.runtime.max(now);
            return;
        }
        let start = match s.random_in {
            Some(span) => s.base + self.random.below(span / s.sectors) * s.sectors,
            None => {
                let at = self.next_at[stream];
                self.next_at[stream] += if s.stride > 0 { s.stride } else { s.sectors };
                at
            }
        };
        let pending = Pending { stream, issued: now, start };
        let side = usize::from(s.sync);
        if self.in_use[side] >= self.limit && !self.elevator.awaits(id_of(stream)) {
            self.waiting[side].push_back(pending);
        } else {
            self.admit(pending, now);
        }
    }

    fn admit(&mut self, pending: Pending, now: Nanos) {
        let s = &self.streams[pending.stream];
        self.in_use[usize::from(s.sync)] += 1;
        let id = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() as u32 - 1
        });
        self.slots[id as usize] = Some(pending);
        let request = Request {
            sync: s.sync,
            stream: id_of(pending.stream),
            program: ProgramId(s.program),
            priority: s.priority,
            ..Request::new(RequestId(id), s.op, Sector(pending.start), s.sectors)
        };
        self.elevator.add(request, now);
    }

    fn completed(&mut self, tag: u32, now: Nanos) {
        self.elevator.completed(RequestId(tag), now);
        let pending = self.slots[tag as usize].take().expect("completed once");
        self.free.push(tag);
        let s = &self.streams[pending.stream];
        let side = usize::from(s.sync);
        self.in_use[side] -= 1;
        let got = &mut self.got[pending.stream];
        got.requests += 1;
        got.bytes += s.sectors * 512;
        got.latencies.push(now - pending.issued);
        // Even a task that continues at once needs a moment to come back.
        let think = s.think.max(Nanos::from_micros(20));
        self.wake(now + think, pending.stream);
        if self.in_use[side] < self.limit
            && let Some(next) = self.waiting[side].pop_front()
        {
            self.admit(next, now);
        }
    }
}

fn id_of(stream: usize) -> StreamId {
    StreamId(stream as u64 + 1)
}
