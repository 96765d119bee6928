//! One process of a job.

use super::measure::Measured;
use super::offsets::Permutation;
use super::target::Place;
use crate::fio::{Engine, Job};
use extant_block::{Bio, BioFlags, Buf, IoError, Op, Sector, Segment, StreamId, flush};
use extant_rt::{Cost, Nanos, Rng, Rt, WaitsOn};
use parking_lot::Mutex;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Poll, Waker};

/// What a process needs.
pub(super) struct Process {
    pub(super) rt: Rt,
    pub(super) job: Arc<Job>,
    pub(super) stream: StreamId,
    pub(super) place: Place,
    pub(super) rng: Rng,
}

/// Ends of bios, for their process to pick up.
#[derive(Default)]
struct Port {
    state: Mutex<(Vec<Ended>, Option<Waker>)>,
}

type Ended = (usize, Bio, Result<(), IoError>);

/// An I/O under way.
#[derive(Clone, Copy)]
struct Flight {
    op: Op,
    start_byte: u64,
    decided: Nanos,
    submitted: Nanos,
}

struct Running {
    p: Process,
    port: Arc<Port>,
    /// By slot; as many as were under way at a time so far.
    flights: Vec<Option<Flight>>,
    /// Slots that are free, each with its memory.
    free: Vec<(usize, Buf)>,
    under_way: usize,
    counted_from: Nanos,
    measured: Measured,
}

impl Process {
    /// Does what the job says.
    pub(super) async fn run(self) -> Measured {
        self.rt.sleep(self.job.start_delay).await;
        let counted_from = self.rt.now().saturating_add(self.job.ramp);
        let mut running = Running {
            port: Arc::default(),
            flights: Vec::new(),
            free: Vec::new(),
            under_way: 0,
            counted_from,
            measured: Measured::default(),
            p: self,
        };
        if let Err(error) = running.all().await {
            running.measured.error = Some(error);
        }
        let now = running.p.rt.now();
        running.measured.runtime = now.saturating_sub(running.counted_from);
        running.measured
    }
}

impl Running {
    async fn all(&mut self) -> Result<(), IoError> {
        let job = self.p.job.clone();
        let began = self.p.rt.now();
        let ends = job.runtime.map_or(Nanos::MAX, |most| self.counted_from.saturating_add(most));
        let depth = job.effective_depth() as usize;
        let blocks = self.p.place.span_bytes / job.block_bytes;
        let wanted = job.wanted_blocks(self.p.place.span_bytes);
        let mut order = Permutation::new(blocks, &mut self.p.rng);
        let (mut issued, mut issued_by_side) = (0_u64, [0_u64; 2]);
        let mut synced = false;
        while self.p.rt.now() < ends && (issued < wanted || job.time_based) {
            let [_, writes] = issued_by_side;
            if job.fsync > 0 && writes > 0 && writes.is_multiple_of(job.fsync) && !synced {
                let took = self.sync().await?;
                took.into_iter().for_each(|took| self.measured.sync.add(took));
                synced = true;
                continue;
            }
            let mut op = match (job.pattern.reads, job.pattern.writes) {
                (true, true) if self.p.rng.below(100) < job.read_percent => Op::Read,
                (_, true) => Op::Write,
                _ => Op::Read,
            };
            if job.rate_bytes_s > 0 {
                let due = |op| {
                    let bytes = u128::from(issued_by_side[side(op)]) * u128::from(job.block_bytes);
                    let ns = bytes * 1_000_000_000 / u128::from(job.rate_bytes_s);
                    began.saturating_add(Nanos(u64::try_from(ns).unwrap_or(u64::MAX)))
                };
                let other = if op == Op::Read { Op::Write } else { Op::Read };
                if job.pattern.reads
                    && job.pattern.writes
                    && due(other) < due(op)
                    && self.p.rt.now() < due(op)
                {
                    op = other;
                }
                if self.p.rt.now() < due(op) {
                    // Nothing may end unseen while the process sleeps: its latency would be the sleep's.
                    self.quiesce().await?;
                    self.p.rt.sleep_until(due(op).min(ends)).await;
                    if due(op) >= ends {
                        break;
                    }
                }
            }
            while self.under_way == depth {
                self.reap().await?;
            }
            let block = match (job.pattern.random, job.repeats) {
                (false, _) => issued % blocks,
                (true, false) => order.next(&mut self.p.rng),
                (true, true) => self.p.rng.below(blocks),
            };
            let cached = self.issue(op, block * job.block_bytes);
            issued += 1;
            issued_by_side[side(op)] += 1;
            synced = false;
            if job.think > Nanos::ZERO && issued.is_multiple_of(job.think_blocks) {
                self.quiesce().await?;
                self.p.rt.sleep(job.think).await;
            } else if matches!(job.engine, Engine::Sync(_)) {
                self.quiesce().await?;
            }
            if cached {
                // Nothing had to be waited for: others get their turn on the way back from the system call.
                self.p.rt.resched().await;
            }
        }
        self.quiesce().await?;
        if job.end_fsync && issued_by_side[1] > 0 {
            self.sync().await?;
        }
        Ok(())
    }

    /// Starts an I/O; whether it found in memory what it wants.
    fn issue(&mut self, op: Op, offset: u64) -> bool {
        let rt = &self.p.rt;
        let decided = rt.now();
        rt.charge(Cost::Syscall(1));
        let bytes = self.p.job.block_bytes;
        let start_byte = self.p.place.base_bytes + offset;
        let (slot, buffer) = self.free.pop().unwrap_or_else(|| {
            self.flights.push(None);
            (self.flights.len() - 1, Buf::zeroed(bytes as usize))
        });
        if decided >= self.counted_from {
            self.measured.depths[((self.under_way + 1).ilog2() as usize).min(6)] += 1;
        }
        self.flights[slot] = Some(Flight { op, start_byte, decided, submitted: rt.now() });
        self.under_way += 1;
        let mut bio = Bio::new(op, Sector(start_byte / 512), vec![Segment::from(buffer)]);
        bio.stream = self.p.stream;
        bio.flags = BioFlags::SYNC;
        let cached = op == Op::Read && self.p.place.cached(start_byte, bytes);
        if cached {
            rt.charge(Cost::PageLookup(bytes.div_ceil(4096)));
            self.port.end(slot, bio, Ok(()));
            return true;
        }
        let port = self.port.clone();
        bio.on_end(Box::new(move |bio, result| port.end(slot, bio, result)));
        self.p.place.device.submit(bio);
        let now = self.p.rt.now();
        if matches!(self.p.job.engine, Engine::Async(_))
            && let Some(flight) = &mut self.flights[slot]
        {
            flight.submitted = now;
        }
        false
    }

    /// Waits for the end of one I/O.
    async fn reap(&mut self) -> Result<(), IoError> {
        let (slot, bio, result) = self.port.next(&self.p.rt, self.p.stream).await;
        let flight = self.flights[slot].take().expect("ends once");
        self.under_way -= 1;
        let buffer = bio.segments.into_iter().next().and_then(Segment::into_buf);
        self.free.push((slot, buffer.expect("the device returns the buffer it was given")));
        result?;
        let bytes = self.p.job.block_bytes;
        if flight.op == Op::Read && self.p.place.keep(flight.start_byte, bytes) {
            self.p.rt.charge(Cost::PageCopy(bytes.div_ceil(4096)));
        }
        let now = self.p.rt.now();
        if now >= self.counted_from {
            let side = if flight.op == Op::Read { &mut self.measured.read } else { &mut self.measured.write };
            side.ios += 1;
            side.bytes += bytes;
            if matches!(self.p.job.engine, Engine::Async(_)) {
                side.submission.add(flight.submitted.saturating_sub(flight.decided));
            }
            side.completion.add(now.saturating_sub(flight.submitted));
            side.total.add(now.saturating_sub(flight.decided));
        }
        Ok(())
    }

    async fn quiesce(&mut self) -> Result<(), IoError> {
        while self.under_way > 0 {
            self.reap().await?;
        }
        Ok(())
    }

    /// Flushes; how long that took, if it counts.
    async fn sync(&mut self) -> Result<Option<Nanos>, IoError> {
        self.quiesce().await?;
        let before = self.p.rt.now();
        self.p.rt.charge(Cost::Syscall(1));
        flush(&*self.p.place.device).await?;
        let now = self.p.rt.now();
        Ok((now >= self.counted_from).then(|| now.saturating_sub(before)))
    }
}

/// Reads and writes are counted apart.
fn side(op: Op) -> usize {
    usize::from(op == Op::Write)
}

impl Port {
    fn end(&self, slot: usize, bio: Bio, result: Result<(), IoError>) {
        let waker = {
            let mut state = self.state.lock();
            state.0.push((slot, bio, result));
            state.1.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    fn next<'a>(&'a self, rt: &'a Rt, stream: StreamId) -> impl Future<Output = Ended> + 'a {
        poll_fn(move |cx| {
            let mut state = self.state.lock();
            if state.0.is_empty() {
                state.1 = Some(cx.waker().clone());
                drop(state);
                rt.waits_on(|| WaitsOn::Other("an I/O of stream", stream.0));
                return Poll::Pending;
            }
            Poll::Ready(state.0.remove(0))
        })
    }
}
