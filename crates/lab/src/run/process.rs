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
    flights: Vec<Option<Flight>>,
    /// Memory for each I/O under way, while it is not.
    buffers: Vec<Option<Buf>>,
    under_way: usize,
    counted_from: Nanos,
    measured: Measured,
}

impl Process {
    /// Does what the job says.
    pub(super) async fn run(self) -> Measured {
        let depth = self.job.effective_depth() as usize;
        self.rt.sleep(self.job.start_delay).await;
        let counted_from = self.rt.now() + self.job.ramp;
        let buffers = (0..depth).map(|_| Some(Buf::zeroed(self.job.block_bytes as usize))).collect();
        let mut running = Running {
            port: Arc::default(),
            flights: vec![None; depth],
            buffers,
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
        let blocks = self.p.place.span_bytes / job.block_bytes;
        let wanted_bytes = if job.size_bytes > 0 { job.size_bytes } else { self.p.place.span_bytes };
        let wanted = wanted_bytes / job.block_bytes;
        let mut order = Permutation::new(blocks, &mut self.p.rng);
        let (mut issued, mut writes) = (0_u64, 0_u64);
        loop {
            let now = self.p.rt.now();
            let late = job.runtime.is_some_and(|most| now.saturating_sub(self.counted_from) >= most);
            if late || (issued == wanted && !job.time_based) {
                break;
            }
            if job.rate_bytes_s > 0 {
                let due = u128::from(issued * job.block_bytes) * 1_000_000_000 / u128::from(job.rate_bytes_s);
                self.p.rt.sleep_until(began.saturating_add(Nanos(due as u64))).await;
            }
            while self.under_way == self.flights.len() {
                self.reap().await?;
            }
            let block = match (job.pattern.random, job.repeats) {
                (false, _) => issued % blocks,
                (true, false) => order.next(&mut self.p.rng),
                (true, true) => self.p.rng.below(blocks),
            };
            let reads = match (job.pattern.reads, job.pattern.writes) {
                (reads, writes) if reads && writes => self.p.rng.below(100) < job.read_percent,
                (reads, _) => reads,
            };
            self.issue(if reads { Op::Read } else { Op::Write }, block * job.block_bytes);
            issued += 1;
            writes += u64::from(!reads);
            if !reads && job.fsync > 0 && writes.is_multiple_of(job.fsync) {
                self.sync().await?;
            }
            if job.think > Nanos::ZERO && issued.is_multiple_of(job.think_blocks) {
                self.quiesce().await?;
                self.p.rt.sleep(job.think).await;
            } else if matches!(job.engine, Engine::Sync(_)) {
                self.quiesce().await?;
            }
        }
        self.quiesce().await?;
        if job.end_fsync && writes > 0 {
            self.sync().await?;
        }
        Ok(())
    }

    fn issue(&mut self, op: Op, offset: u64) {
        let rt = &self.p.rt;
        let decided = rt.now();
        rt.charge(Cost::Syscall(1));
        let bytes = self.p.job.block_bytes;
        let start_byte = self.p.place.base_bytes + offset;
        let slot = self.flights.iter().position(Option::is_none).expect("called with room");
        let depth = (self.under_way as u32 + 1).next_power_of_two().ilog2() as usize;
        self.measured.depths[depth.min(6)] += 1;
        self.flights[slot] = Some(Flight { op, start_byte, decided, submitted: rt.now() });
        self.under_way += 1;
        let buffer = self.buffers[slot].take().expect("a free slot has its buffer");
        let mut bio = Bio::new(op, Sector(start_byte / 512), vec![Segment::from(buffer)]);
        bio.stream = self.p.stream;
        bio.flags = BioFlags::SYNC;
        let cached = op == Op::Read && self.p.place.cached(start_byte, bytes);
        if cached {
            rt.charge(Cost::PageLookup(bytes.div_ceil(4096)));
            return self.port.end(slot, bio, Ok(()));
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
    }

    /// Waits for the end of one I/O.
    async fn reap(&mut self) -> Result<(), IoError> {
        let (slot, bio, result) = self.port.next(&self.p.rt, self.p.stream).await;
        let flight = self.flights[slot].take().expect("ends once");
        self.under_way -= 1;
        let buffer = bio.segments.into_iter().next().and_then(Segment::into_buf);
        self.buffers[slot] = Some(buffer.expect("the device returns the buffer it was given"));
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

    async fn sync(&mut self) -> Result<(), IoError> {
        self.quiesce().await?;
        let before = self.p.rt.now();
        self.p.rt.charge(Cost::Syscall(1));
        flush(&*self.p.place.device).await?;
        let now = self.p.rt.now();
        if now >= self.counted_from {
            self.measured.sync.add(now.saturating_sub(before));
        }
        Ok(())
    }
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
