//! The volume's disks, striped in chunks (dm-stripe), each with a request queue.

use crate::request_counts::{RequestCounts, WantedRequest};
use extant_block::{Bio, BioFlags, Buf, Chunks, Device, Op, Piece, Segment, StreamId};
use extant_history::{BlockHost, Choice, MakeElevator, disk_queues};
use extant_iosched::{Queue, QueueConfig};
use extant_rt::{Nanos, Rt};
use extant_sim::disk::{DiskModel, Disks, ModelDisk};
use extant_sim::{Machine, Sim};
use parking_lot::Mutex;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::Poll;

/// Chunk size of the stripe (dm-stripe: 64 sectors).
const CHUNK_BYTES: u64 = 32 << 10;

/// The layout of the volume over a machine's disks.
fn chunks(machine: &Machine) -> Chunks {
    let devices = machine.disks.iter().map(|model| u64::from(model.count)).sum();
    Chunks { devices, chunk_bytes: CHUNK_BYTES }
}

/// Size of the volume in bytes.
pub(crate) fn capacity(machine: &Machine) -> u64 {
    let smallest = machine.disks.iter().map(DiskModel::capacity_bytes).min().unwrap_or(0);
    chunks(machine).capacity_bytes(smallest)
}

/// The longest time that a task waits for congestion to end (kernel: `HZ / 10` in
/// `blk_congestion_wait`).
const CONGESTION_WAIT: Nanos = Nanos::from_millis(100);

/// The task that submits a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Submitter {
    /// 0 for pdflush; threads count from 1.
    task: u64,
    /// Whether the task will wait for the transfer: reads, and writes of an fsync (kernel:
    /// `PF_SYNCWRITE`).
    waits: bool,
}

impl Submitter {
    pub(crate) const PDFLUSH: Self = Self { task: 0, waits: false };

    /// A thread that will wait for what it submits.
    pub(crate) fn waiting(thread: u32) -> Self {
        Self { task: u64::from(thread) + 1, waits: true }
    }

    /// A throttled thread, which writes back pages before it continues.
    pub(crate) fn throttled(thread: u32) -> Self {
        Self { task: u64::from(thread) + 1, waits: false }
    }
}

/// The striped disks.
pub(crate) struct StripedDisks {
    rt: Rt,
    chunks: Chunks,
    queues: Vec<Arc<Queue>>,
    phase: AtomicU64,
    load: Arc<Mutex<RequestCounts>>,
}

impl StripedDisks {
    pub(crate) fn new(sim: &Sim, elevator: Choice<MakeElevator>, requests: usize) -> Self {
        let machine = sim.machine();
        let models = machine.disks.iter().flat_map(|model| vec![model; model.count as usize]);
        let disk = |(device, model): (Arc<ModelDisk>, &DiskModel)| {
            let host = BlockHost {
                rotational: model.is_rotational(),
                hz: machine.kernel.hz,
                slice_idle_ms: machine.kernel.slice_idle_ms,
                ..BlockHost::default()
            };
            // Tasks get their requests from `RequestCounts` before they submit, so the queue needs
            // no limit.
            let (requests, depth) = (usize::MAX, model.queue_depth());
            (device as Arc<dyn Device>, host, QueueConfig { requests, depth, ..QueueConfig::default() })
        };
        let disks = Disks::attach(sim).devices().into_iter().zip(models).map(disk);
        let queues = disk_queues(sim.rt(), elevator, disks);
        let load = Arc::new(Mutex::new(RequestCounts::new(queues.len(), requests)));
        Self { rt: sim.rt().clone(), chunks: chunks(machine), queues, phase: AtomicU64::new(0), load }
    }

    /// Splits a byte range of the volume at chunk boundaries: each piece with its disk.
    pub(crate) fn pieces(&self, byte: u64, bytes: u64) -> Vec<(usize, Piece)> {
        self.chunks.pieces(byte, byte + bytes)
    }

    /// Whether any disk is congested with requests of this kind (kernel: `dm_any_congested`).
    pub(crate) fn is_congested(&self, write: bool) -> bool {
        self.load.lock().is_congested(usize::from(write))
    }

    /// Number of bios submitted to the queues so far.
    #[cfg(test)]
    pub(crate) fn sent(&self) -> u64 {
        self.queues.iter().flat_map(|queue| queue.stats()).map(|(_, stats)| stats.bios).sum()
    }

    /// Starts a phase, whose threads count as new ones.
    pub(crate) fn begin_phase(&self) {
        self.phase.fetch_add(1, Relaxed);
    }

    fn stream(&self, submitter: Submitter) -> StreamId {
        match submitter.task {
            0 => StreamId(0),
            thread => StreamId(self.phase.load(Relaxed) << 32 | thread),
        }
    }

    /// Called when a thread has ended.
    pub(crate) fn exited(&self, thread: u32) {
        let stream = self.stream(Submitter::waiting(thread));
        self.load.lock().exited(stream.0);
        for queue in &self.queues {
            queue.end_stream(stream);
        }
    }

    /// Submits a piece: merges it with an adjacent queued request, or takes a request first.
    ///
    /// The task waits its turn for a request if the queue is full (kernel: `__make_request`). The
    /// completion interrupt calls `ended`.
    pub(crate) async fn submit(
        &self,
        (disk, piece): (usize, Piece),
        write: bool,
        submitter: Submitter,
        ended: impl FnOnce() + Send + 'static,
    ) {
        let queue = &self.queues[disk];
        let Some(bio) = queue.join(self.bio(piece, write, submitter, ended)) else {
            return;
        };
        let has_waited = self.request(disk, write, submitter).await;
        // While the task waited, others may have queued adjacent requests.
        let left = if has_waited { queue.join(bio) } else { Some(bio) };
        let load = self.load.clone();
        match left {
            Some(mut bio) => {
                bio.before_end(move |_| RequestCounts::put(&load, disk, write));
                queue.submit(bio);
            }
            None => RequestCounts::put(&load, disk, write),
        }
    }

    /// Takes a request of a disk's queue, and returns whether the task had to wait for it.
    async fn request(&self, disk: usize, write: bool, submitter: Submitter) -> bool {
        let kind = usize::from(write);
        let task = self.stream(submitter).0;
        let mut has_waited = false;
        poll_fn(|cx| {
            let now = self.rt.now();
            let place = WantedRequest { disk, kind, is_awaited: self.queues[disk].awaits(StreamId(task)) };
            let mut load = self.load.lock();
            if load.take(place, now, task, has_waited) {
                return Poll::Ready(has_waited);
            }
            has_waited = true;
            load.wait(place, cx.waker().clone());
            Poll::Pending
        })
        .await
    }

    fn bio(
        &self,
        piece: Piece,
        write: bool,
        submitter: Submitter,
        ended: impl FnOnce() + Send + 'static,
    ) -> Bio {
        let bytes = piece.bytes as usize;
        let segment = if write { Segment::zeroes(bytes) } else { Buf::zeroed(bytes).into() };
        let op = if write { Op::Write } else { Op::Read };
        let mut bio = Bio::new(op, piece.start, vec![segment]);
        bio.stream = self.stream(submitter);
        if submitter.waits {
            bio.flags = BioFlags::SYNC;
        }
        bio.on_end(Box::new(move |bio, result| {
            // A modelled disk does not fail. A bio ends with an error only if the world ends early.
            if result.is_ok() {
                ended();
            }
            drop(bio);
        }));
        bio
    }

    /// Waits until a write completes on an uncongested queue, at most 100 ms (kernel:
    /// `blk_congestion_wait`).
    pub(crate) async fn congestion_wait(&self) {
        let mut sleep = pin!(self.rt.sleep(CONGESTION_WAIT));
        let mut ticket = None;
        poll_fn(|cx| {
            {
                let mut load = self.load.lock();
                match ticket {
                    None => ticket = Some(load.wait_uncongested(cx.waker().clone())),
                    Some(ticket) if !load.uncongested.contains_key(&ticket) => return Poll::Ready(()),
                    Some(_) => {}
                }
            }
            sleep.as_mut().poll(cx)
        })
        .await;
        if let Some(ticket) = ticket {
            self.load.lock().uncongested.remove(&ticket);
        }
    }
}
