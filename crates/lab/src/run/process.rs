//! One process of a job.

use super::file_span::FileSpan;
use super::measure::Measured;
use super::offsets::Permutation;
use crate::cost::Cost;
use crate::workload::fio::{Advice, Durability, Engine, Job, SyncCall};
use extant_block::{Bio, BioFlags, Buf, Op, Sector, Segment, StreamId, flush};
use extant_cache::{ByteRange, CacheError, CachedOpenFile, ReadOrder};
use extant_rt::{Class, Nanos, Rng, Rt, TaskUsage, WaitsOn};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::ops::Range;
use std::sync::Arc;
use std::task::{Poll, Waker};

/// Linux submits the reads of `POSIX_FADV_WILLNEED` in steps of this length
/// (`force_page_cache_ra()`).
const WILL_NEED_STEP_BYTES: u64 = 2 << 20;

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
    state: Mutex<(VecDeque<EndedIo>, Option<Waker>)>,
}

struct EndedIo {
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

struct RunningProcess {
    p: Process,
    /// The file as opened by this process; `None` for direct I/O.
    file: Option<Arc<CachedOpenFile>>,
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
        let mut running = RunningProcess {
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

impl RunningProcess {
    async fn all(&mut self) -> Result<(), CacheError> {
        let job = self.p.job.clone();
        if let (Some(file), true) = (&self.file, job.invalidate) {
            file.mapping().forget().await?;
        }
        if let (Some(file), true) = (&self.p.place.on_volume, job.invalidate && !job.direct) {
            file.forget().await?;
        }
        self.advise(job.advice).await;
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
        let durable = match op {
            Op::Write => self.p.job.durability,
            _ => Durability::None,
        };
        let is_durable = durable != Durability::None;
        match (&self.file, &self.p.place.on_volume) {
            (_, Some(file)) => {
                let (file, rt, stream, direct) =
                    (file.clone(), rt.clone(), self.p.stream, self.p.place.direct);
                let is_asynchronous = self.p.job.is_asynchronous();
                let work = async move {
                    let (buffer, mut result) = file.transfer(&rt, stream, op, at, buffer, direct).await;
                    if result.is_ok() {
                        result = match durable {
                            Durability::None => Ok(()),
                            Durability::Data => file.datasync(&rt).await,
                            Durability::Each => file.sync(&rt).await,
                        };
                    }
                    let used = if is_asynchronous { rt.task_usage() } else { None };
                    port.end(EndedIo { slot, buffer, result, used });
                };
                if is_asynchronous {
                    drop(self.p.rt.spawn("an I/O of its own", Class::Normal, work));
                } else {
                    work.await;
                }
            }
            (None, None) => {
                let mut bio = Bio::new(op, Sector((self.p.place.file_byte + at) / 512), vec![buffer.into()]);
                bio.stream = self.p.stream;
                bio.flags = if is_durable { BioFlags::SYNC | BioFlags::FUA } else { BioFlags::SYNC };
                bio.on_end(Box::new(move |mut bio, result| {
                    let buffer = bio.segments.pop().and_then(Segment::into_buf);
                    let buffer = buffer.expect("the device returns the buffer it was given");
                    port.end(EndedIo { slot, buffer, result: result.map_err(CacheError::Io), used: None });
                }));
                self.p.place.device.submit(bio);
            }
            (Some(file), None) if self.p.job.is_asynchronous() => {
                let (file, rt) = (file.clone(), rt.clone());
                let work = async move {
                    let result = transfer(&file, op, at, &mut buffer, is_durable).await;
                    port.end(EndedIo { slot, buffer, result, used: rt.task_usage() });
                };
                drop(self.p.rt.spawn("an I/O of its own", Class::Normal, work));
            }
            (Some(file), None) => {
                let result = transfer(file, op, at, &mut buffer, is_durable).await;
                port.end(EndedIo { slot, buffer, result, used: None });
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
        let EndedIo { slot, buffer, result, used } = self.port.next(&self.p.rt, self.p.stream).await;
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
    /// that counts as a sync latency.
    async fn sync(&mut self, call: SyncCall) -> Result<Option<Nanos>, CacheError> {
        self.quiesce().await?;
        let before = self.p.rt.now();
        self.p.rt.charge(Cost::Syscall(1));
        match (call, &self.p.place.on_volume, &self.file) {
            (SyncCall::Range, ..) => self.sync_range().await?,
            (SyncCall::Whole, Some(file), _) => file.sync(&self.p.rt).await?,
            (SyncCall::Data, Some(file), _) => file.datasync(&self.p.rt).await?,
            (_, None, Some(file)) => file.sync().await?,
            (_, None, None) => flush(&*self.p.place.device).await?,
        }
        let now = self.p.rt.now();
        Ok((now >= self.counted_from).then(|| now.saturating_sub(before)))
    }

    /// `sync_file_range(2)` of what was written since the last call. Even if it does not wait for
    /// the write-back, the caller sleeps until each bio has a request, as on Linux. Otherwise a
    /// writer that calls this often would queue everything it writes.
    async fn sync_range(&mut self) -> Result<(), CacheError> {
        let Some(bytes) = self.unsynced.take() else { return Ok(()) };
        let waits = self.p.job.sync_range_waits;
        match (&self.p.place.on_volume, &self.file) {
            (Some(file), _) if waits => return file.write_back(bytes).await,
            (None, Some(file)) if waits => return file.sync_range(bytes).await,
            (Some(file), _) => file.begin_write_back(bytes).await,
            (None, Some(file)) => file.mapping().begin_write_back(bytes).await,
            (None, None) => {}
        }
        self.sleep_for_requests().await;
        Ok(())
    }

    /// Sleeps until each bio at the disks has a request.
    async fn sleep_for_requests(&self) {
        for queue in &self.p.place.queues {
            self.p.rt.waits_on(|| WaitsOn::Other("a request for stream", self.p.stream.0));
            queue.has_requests().await;
        }
    }

    /// `posix_fadvise(2)` of the process's part of a file in the page cache.
    async fn advise(&self, advice: Advice) {
        let place = &self.p.place;
        if advice == Advice::None || place.direct {
            return;
        }
        self.p.rt.charge(Cost::Syscall(1));
        let order = match advice {
            Advice::None | Advice::NoReuse => return,
            Advice::WillNeed => return self.will_need().await,
            Advice::DontNeed => {
                let bytes = ByteRange::at(place.offset_bytes, place.span_bytes);
                match (&place.on_volume, &self.file) {
                    (Some(file), _) => file.not_needed(bytes).await,
                    (None, Some(file)) => file.mapping().not_needed(bytes).await,
                    (None, None) => {}
                }
                return self.sleep_for_requests().await;
            }
            Advice::Sequential => ReadOrder::Sequential,
            Advice::Random => ReadOrder::Random,
            Advice::Order if self.p.job.pattern.random => ReadOrder::Random,
            Advice::Order => ReadOrder::Sequential,
        };
        match (&place.on_volume, &self.file) {
            (Some(file), _) => file.expects(order),
            (None, Some(file)) => file.expects(order),
            (None, None) => {}
        }
    }

    /// Submits the reads and sleeps until each has a request. Like Linux since 4.10, it reads at
    /// most the read-ahead limit, or the disk's longest command if that is more.
    async fn will_need(&self) {
        let place = &self.p.place;
        let limit = match (&place.on_volume, &self.file) {
            (Some(file), _) => file.read_ahead_bytes(),
            (None, Some(file)) => file.read_ahead_bytes(),
            (None, None) => return,
        };
        let end = place.offset_bytes + place.span_bytes.min(limit.max(place.command_bytes));
        let mut at = place.offset_bytes;
        while at < end {
            let step = ByteRange::new(at, end.min(at + WILL_NEED_STEP_BYTES));
            match (&place.on_volume, &self.file) {
                (Some(file), _) => file.will_need(step).await,
                (None, Some(file)) => file.will_need(step).await,
                (None, None) => {}
            }
            self.sleep_for_requests().await;
            at = step.end;
        }
    }
}

async fn transfer(
    file: &CachedOpenFile,
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
    fn end(&self, ended: EndedIo) {
        let waker = {
            let mut state = self.state.lock();
            state.0.push_back(ended);
            state.1.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    fn next<'a>(&'a self, rt: &'a Rt, stream: StreamId) -> impl Future<Output = EndedIo> + 'a {
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
