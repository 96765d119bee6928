//! One process of a job.

use super::file_span::FileSpan;
use super::measure::Measured;
use super::offsets::Permutation;
use crate::cost::Cost;
use crate::fio::{Durability, Engine, Job, SyncCall};
use extant_block::{Bio, BioFlags, Buf, Op, Sector, Segment, StreamId, flush};
use extant_cache::{CacheError, OpenFile};
use extant_rt::{Class, Nanos, Rng, Rt, TaskUsage, WaitsOn};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::ops::Range;
use std::sync::Arc;
use std::task::{Poll, Waker};

/// The inputs of a process.
pub(super) struct Process {
    pub(super) rt: Rt,
    pub(super) job: Arc<Job>,
    pub(super) stream: StreamId,
    pub(super) place: FileSpan,
    pub(super) rng: Rng,
    /// Delay until the shell has started it.
    pub(super) arrives_after: Nanos,
}

/// Completed I/Os, waiting for their process to collect them.
#[derive(Default)]
struct Port {
    state: Mutex<(VecDeque<Ended>, Option<Waker>)>,
}

struct Ended {
    slot: usize,
    buffer: Buf,
    result: Result<(), CacheError>,
    /// Processor use of the task that performed the I/O.
    used: Option<TaskUsage>,
}

/// An I/O in flight.
#[derive(Clone, Copy)]
struct Flight {
    op: Op,
    decided: Nanos,
    submitted: Nanos,
}

struct Running {
    p: Process,
    /// The file as opened by this process; `None` for direct I/O.
    file: Option<Arc<OpenFile>>,
    port: Arc<Port>,
    /// I/Os in flight by slot; one slot for each I/O of the deepest queue so far.
    flights: Vec<Option<Flight>>,
    /// Free slots, each with its buffer.
    free: Vec<(usize, Buf)>,
    under_way: usize,
    /// Range written since the last `sync_file_range`.
    unsynced: Option<Range<u64>>,
    counted_from: Nanos,
    measured: Measured,
}

impl Process {
    /// Runs the job and returns its measurements.
    pub(super) async fn run(self) -> Measured {
        self.rt.sleep(self.job.start_delay.saturating_add(self.arrives_after)).await;
        let counted_from = self.rt.now().saturating_add(self.job.ramp);
        let pages = self.place.pages.as_ref().filter(|_| !self.place.direct);
        let file = pages.map(|pages| Arc::new(pages.open().with_stream(self.stream)));
        let mut running = Running {
            file,
            port: Arc::default(),
            flights: Vec::new(),
            free: Vec::new(),
            under_way: 0,
            unsynced: None,
            counted_from,
            measured: Measured::from(counted_from),
            p: self,
        };
        if let Err(error) = running.all().await {
            running.measured.error = Some(error);
        }
        if let Some(file) = &running.p.place.on_volume {
            file.close();
        }
        let now = running.p.rt.now();
        running.measured.runtime = now.saturating_sub(running.counted_from);
        running.measured.used(running.p.rt.task_usage());
        running.measured
    }
}

impl Running {
    async fn all(&mut self) -> Result<(), CacheError> {
        let job = self.p.job.clone();
        if let (Some(file), true) = (&self.file, job.invalidate) {
            file.mapping().forget().await?;
        }
        let began = self.p.rt.now();
        let ends = job.runtime.map_or(Nanos::MAX, |most| self.counted_from.saturating_add(most));
        let depth = job.effective_depth() as usize;
        let blocks = self.p.place.span_bytes / job.block_bytes;
        let wanted = job.wanted_blocks(self.p.place.span_bytes);
        let mut order = Permutation::new(blocks, &mut self.p.rng);
        let (mut issued, mut issued_by_side) = (0_u64, [0_u64; 2]);
        let mut synced = false;
        let rt = self.p.rt.clone();
        let mut turn = rt.budget(Nanos::from_millis(1));
        while self.p.rt.now() < ends && (issued < wanted || job.time_based) {
            if let (false, Some(call)) = (synced, job.sync_due(issued_by_side[1])) {
                let took = self.sync(call).await?;
                took.into_iter().for_each(|took| self.measured.sync.add(took));
                synced = true;
                continue;
            }
            let mut op = match (job.pattern.reads, job.pattern.writes) {
                (true, true) if self.p.rng.below(100) < job.read_percent => Op::Read,
                (_, true) => Op::Write,
                _ => Op::Read,
            };
            if let Some(limit_bytes_s) = job.limit_bytes_s() {
                let due = |op| {
                    let bytes = u128::from(issued_by_side[side(op)]) * u128::from(job.block_bytes);
                    let ns = bytes * 1_000_000_000 / u128::from(limit_bytes_s);
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
                    // Collect all completions first; otherwise the sleep would count towards their
                    // latency.
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
            if let (Some(file), true) = (&self.p.place.on_volume, issued > 0 && issued.is_multiple_of(blocks))
            {
                file.begin_again().await?;
            }
            self.issue(op, block * job.block_bytes).await?;
            issued += 1;
            issued_by_side[side(op)] += 1;
            synced = false;
            if job.think > Nanos::ZERO && issued.is_multiple_of(job.think_blocks) {
                self.quiesce().await?;
                self.p.rt.sleep(job.think).await;
            } else if matches!(job.engine, Engine::Sync(_)) {
                self.quiesce().await?;
            }
            if self.file.is_some() || self.p.place.on_volume.is_some() {
                // If everything was cached, the call never waited: yield on return, as a system
                // call does.
                self.p.rt.resched().await;
                // The real world does not know whether other tasks wait, so yield by time.
                turn.resched().await;
            }
        }
        self.quiesce().await?;
        if job.end_fsync && issued_by_side[1] > 0 {
            self.sync(SyncCall::Whole).await?;
        }
        Ok(())
    }

    /// Starts an I/O. Through the page cache it may complete immediately.
    async fn issue(&mut self, op: Op, offset: u64) -> Result<(), CacheError> {
        let bytes = self.p.job.block_bytes;
        let at = self.p.place.offset_bytes + offset;
        if self.file.is_none() && self.p.place.on_volume.is_none() {
            self.make_coherent(op, at..at + bytes).await?;
        }
        let rt = &self.p.rt;
        let decided = rt.now();
        rt.charge(Cost::Syscall(1));
        let (slot, mut buffer) = self.free.pop().unwrap_or_else(|| {
            self.flights.push(None);
            (self.flights.len() - 1, Buf::zeroed(bytes as usize))
        });
        if decided >= self.counted_from {
            self.measured.depths[((self.under_way + 1).ilog2() as usize).min(6)] += 1;
        }
        self.flights[slot] = Some(Flight { op, decided, submitted: rt.now() });
        self.under_way += 1;
        let port = self.port.clone();
        let is_durable = op == Op::Write && self.p.job.durability == Durability::Each;
        match (&self.file, &self.p.place.on_volume) {
            (_, Some(file)) => {
                let (buffer, mut result) =
                    file.transfer(rt, self.p.stream, op, at, buffer, self.p.place.direct).await;
                if is_durable && result.is_ok() {
                    result = file.sync(rt).await;
                }
                port.end(Ended { slot, buffer, result, used: None });
            }
            (None, None) => {
                let mut bio = Bio::new(op, Sector((self.p.place.file_byte + at) / 512), vec![buffer.into()]);
                bio.stream = self.p.stream;
                bio.flags = if is_durable { BioFlags::SYNC | BioFlags::FUA } else { BioFlags::SYNC };
                bio.on_end(Box::new(move |mut bio, result| {
                    let buffer = bio.segments.pop().and_then(Segment::into_buf);
                    let buffer = buffer.expect("the device returns the buffer it was given");
                    port.end(Ended { slot, buffer, result: result.map_err(CacheError::Io), used: None });
                }));
                self.p.place.device.submit(bio);
            }
            (Some(file), None) if self.p.job.is_asynchronous() => {
                let (file, rt) = (file.clone(), rt.clone());
                let work = async move {
                    let result = transfer(&file, op, at, &mut buffer, is_durable).await;
                    port.end(Ended { slot, buffer, result, used: rt.task_usage() });
                };
                drop(self.p.rt.spawn("an I/O of its own", Class::Normal, work));
            }
            (Some(file), None) => {
                let result = transfer(file, op, at, &mut buffer, is_durable).await;
                port.end(Ended { slot, buffer, result, used: None });
            }
        }
        if op == Op::Write {
            let before = self.unsynced.take().unwrap_or(at..at);
            self.unsynced = Some(before.start.min(at)..before.end.max(at + bytes));
        }
        let now = self.p.rt.now();
        if matches!(self.p.job.engine, Engine::Async(_))
            && let Some(flight) = &mut self.flights[slot]
        {
            flight.submitted = now;
        }
        Ok(())
    }

    /// Makes the cache coherent, as Linux does before direct I/O on a file that also has cached
    /// pages.
    async fn make_coherent(&self, op: Op, bytes: Range<u64>) -> Result<(), CacheError> {
        match &self.p.place.pages {
            Some(pages) if pages.cached_pages() > 0 && op == Op::Read => pages.write_back(bytes).await,
            Some(pages) if pages.cached_pages() > 0 => pages.invalidate(bytes).await,
            _ => Ok(()),
        }
    }

    /// Waits for one I/O to complete.
    async fn reap(&mut self) -> Result<(), CacheError> {
        let Ended { slot, buffer, result, used } = self.port.next(&self.p.rt, self.p.stream).await;
        let flight = self.flights[slot].take().expect("ends once");
        self.under_way -= 1;
        self.free.push((slot, buffer));
        self.measured.used(used);
        result?;
        let bytes = self.p.job.block_bytes;
        let now = self.p.rt.now();
        if now >= self.counted_from {
            let side = if flight.op == Op::Read { &mut self.measured.read } else { &mut self.measured.write };
            side.ended(now, bytes);
            if matches!(self.p.job.engine, Engine::Async(_)) {
                side.submission.add(flight.submitted.saturating_sub(flight.decided));
            }
            side.completion.add(now.saturating_sub(flight.submitted));
            side.total.add(now.saturating_sub(flight.decided));
        }
        Ok(())
    }

    async fn quiesce(&mut self) -> Result<(), CacheError> {
        while self.under_way > 0 {
            self.reap().await?;
        }
        Ok(())
    }

    /// Makes the job's writes durable, or starts their write-back. Returns how long it took, if
    /// that counts.
    async fn sync(&mut self, call: SyncCall) -> Result<Option<Nanos>, CacheError> {
        self.quiesce().await?;
        let before = self.p.rt.now();
        self.p.rt.charge(Cost::Syscall(1));
        match (call, &self.p.place.on_volume, &self.file) {
            (SyncCall::Whole, Some(file), _) => file.sync(&self.p.rt).await?,
            (SyncCall::Range, Some(file), _) => file.write_back().await?,
            (SyncCall::Whole, None, Some(file)) => file.sync().await?,
            (SyncCall::Whole, None, None) => flush(&*self.p.place.device).await?,
            (SyncCall::Range, None, _) => self.sync_range().await?,
        }
        let now = self.p.rt.now();
        Ok((now >= self.counted_from).then(|| now.saturating_sub(before)))
    }

    async fn sync_range(&mut self) -> Result<(), CacheError> {
        if let (Some(bytes), Some(file)) = (self.unsynced.take(), self.file.clone()) {
            if self.p.job.sync_range_waits {
                file.sync_range(bytes).await?;
            } else {
                self.begin_write_back(file, bytes).await;
            }
        }
        Ok(())
    }
}

impl Running {
    /// Starts the write-back of a range, and sleeps until each of its bios has a request, as a
    /// Linux task does.
    ///
    /// Without the sleep, a writer that calls this often would queue everything it writes. Errors
    /// go to the file's error log, like those of the flusher.
    async fn begin_write_back(&self, file: Arc<OpenFile>, bytes: Range<u64>) {
        let mut writing = Box::pin(async move { drop(file.mapping().write_back(bytes).await) });
        let mut is_over = false;
        let begun = poll_fn(|cx| {
            is_over = writing.as_mut().poll(cx).is_ready();
            Poll::Ready(())
        });
        begun.await;
        if is_over {
            return;
        }
        // The rest runs in the background. If it fills the queue later, the next call sleeps.
        drop(self.p.rt.spawn("sync_file_range", Class::Normal, writing));
        if let Some(queue) = &self.p.place.queue {
            self.p.rt.waits_on(|| WaitsOn::Other("a request for stream", self.p.stream.0));
            queue.has_requests().await;
        }
    }
}

async fn transfer(
    file: &OpenFile,
    op: Op,
    at: u64,
    buffer: &mut Buf,
    is_durable: bool,
) -> Result<(), CacheError> {
    match op {
        // No short reads: every file that a job reads has its full length.
        Op::Read => file.read(at, &mut buffer[..]).await.map(|_| ()),
        _ => {
            file.write(at, &buffer[..]).await?;
            if is_durable { file.sync().await } else { Ok(()) }
        }
    }
}

/// Index of the counters for reads or writes.
fn side(op: Op) -> usize {
    usize::from(op == Op::Write)
}

impl Port {
    fn end(&self, ended: Ended) {
        let waker = {
            let mut state = self.state.lock();
            state.0.push_back(ended);
            state.1.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    fn next<'a>(&'a self, rt: &'a Rt, stream: StreamId) -> impl Future<Output = Ended> + 'a {
        poll_fn(move |cx| {
            let mut state = self.state.lock();
            if let Some(ended) = state.0.pop_front() {
                return Poll::Ready(ended);
            }
            state.1 = Some(cx.waker().clone());
            drop(state);
            rt.waits_on(|| WaitsOn::Other("an I/O of stream", stream.0));
            Poll::Pending
        })
    }
}
