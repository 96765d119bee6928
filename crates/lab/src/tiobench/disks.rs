//! The volume: disks striped in chunks (dm-stripe), with a request queue before each.

use super::TiobenchError;
use super::cache::CHUNK_BYTES;
use extant_block::{Bio, BioFlags, Buf, Device, Op, Sector, Segment, StreamId};
use extant_history::BlockHost;
use extant_iosched::{Queue, QueueConfig};
use extant_rt::{Nanos, Rt};
use extant_sim::Sim;
use extant_sim::disk::{DiskModel, Disks, ModelDisk};
use parking_lot::Mutex;
use std::collections::{BTreeMap, VecDeque};
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::{Poll, Waker};

/// Requests of a kind from which on a queue counts as congested, and below which it does not any more, of 128 (kernel:
/// `queue_congestion_on_threshold`, `queue_congestion_off_threshold`).
const CONGESTED: [usize; 2] = [113, 103];

/// Requests that a task takes past the limit after it has waited for one, and for how long (kernel: `BLK_BATCH_REQ`,
/// `BLK_BATCH_TIME` of `HZ / 50`).
const BATCH: (u32, Nanos) = (32, Nanos::from_millis(20));

/// The task that submits a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Submitter {
    /// 0 for pdflush, and the threads from 1.
    task: u64,
    /// Whether it will wait for the transfer: reads, and the writes of fsync (kernel: `PF_SYNCWRITE`).
    waits: bool,
}

impl Submitter {
    pub(super) const PDFLUSH: Self = Self { task: 0, waits: false };

    /// A thread that waits for what it submits.
    pub(super) fn waiting(thread: u32) -> Self {
        Self { task: u64::from(thread) + 1, waits: true }
    }

    /// A thread that is held up, and writes back meanwhile.
    pub(super) fn throttled(thread: u32) -> Self {
        Self { task: u64::from(thread) + 1, waits: false }
    }

    pub(super) fn waits(self) -> bool {
        self.waits
    }
}

/// The disks.
pub(super) struct Stripe {
    rt: Rt,
    queues: Vec<Arc<Queue>>,
    phase: AtomicU64,
    /// Most requests of a kind in a queue.
    requests: usize,
    load: Mutex<Load>,
}

struct Load {
    /// Bios under way, by disk: reads, and writes.
    under_way: Vec<[usize; 2]>,
    congested: Vec<[bool; 2]>,
    /// Queues that had no request left; the mark goes when the last waiting task is woken (kernel: `QUEUE_FLAG_READFULL`, `QUEUE_FLAG_WRITEFULL`).
    full: Vec<[bool; 2]>,
    /// Tasks that wait for a request, in order of arrival (kernel: `get_request_wait`, exclusive).
    waiting: Vec<[VecDeque<Waker>; 2]>,
    /// Requests that a task may take past the limit, and until when (kernel: `nr_batch_requests`, `last_waited`).
    batches: BTreeMap<u64, (u32, Nanos)>,
}

/// Where a task wants a request.
#[derive(Clone, Copy, Debug)]
struct Place {
    disk: usize,
    /// 1 for writes.
    kind: usize,
    /// The elevator keeps the disk idle for the task (kernel: `elv_may_queue`).
    is_awaited: bool,
}

impl Load {
    /// The rest of a task's batch (kernel: `ioc_batching`).
    fn batch_of(&mut self, task: u64, now: Nanos) -> Option<&mut u32> {
        let batch = self.batches.get_mut(&task);
        let batch = batch.filter(|(left, until)| *left == BATCH.0 || (*left > 0 && now < *until));
        batch.map(|(left, _)| left)
    }

    /// Gives a task that has none a batch (kernel: `ioc_set_batching`).
    fn begin_batch(&mut self, task: u64, now: Nanos) {
        if self.batch_of(task, now).is_none() {
            self.batches.insert(task, (BATCH.0, now + BATCH.1));
        }
    }

    /// Takes a request for a task, if it may have one (kernel: `get_request`); `has_waited` begins a batch.
    fn take(&mut self, place: Place, most: usize, task: u64, now: Nanos, has_waited: bool) -> bool {
        let Place { disk, kind, is_awaited } = place;
        if has_waited {
            self.begin_batch(task, now);
        }
        let fills = self.under_way[disk][kind] + 1 >= most;
        if fills && !std::mem::replace(&mut self.full[disk][kind], true) {
            self.begin_batch(task, now);
        }
        let is_full = self.full[disk][kind];
        match self.batch_of(task, now) {
            Some(left) => *left -= 1,
            None if is_full && !is_awaited => return false,
            None => {}
        }
        self.under_way[disk][kind] += 1;
        if self.under_way[disk][kind] >= CONGESTED[0] * most / 128 {
            self.congested[disk][kind] = true;
        }
        true
    }
}

/// A piece of a transfer: on one disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) disk: usize,
    byte: u64,
    bytes: u64,
}

impl Stripe {
    pub(super) fn new(sim: &Sim, elevator: &str, requests: usize) -> Result<Self, TiobenchError> {
        let kernel = sim.machine().kernel;
        let models = sim.machine().disks.iter().flat_map(|model| vec![model; model.count as usize]);
        let tasks = extant_history::anticipatory::Tasks::default();
        let queue = |(disk, model): (Arc<ModelDisk>, &DiskModel)| {
            let host = BlockHost {
                rotational: model.is_rotational(),
                hz: kernel.hz,
                slice_idle_ms: kernel.slice_idle_ms,
            };
            let elevator = extant_history::elevator_beside(elevator, &host, &tasks)?;
            // The tasks have taken their requests here before they submit.
            let config =
                QueueConfig { requests: usize::MAX, depth: model.queue_depth(), ..QueueConfig::default() };
            Ok(Arc::new(Queue::new(sim.rt(), disk, elevator, config)))
        };
        let disks = Disks::attach(sim);
        let queues: Vec<_> =
            disks.devices().into_iter().zip(models).map(queue).collect::<Result<_, TiobenchError>>()?;
        let load = Load {
            under_way: vec![[0; 2]; queues.len()],
            congested: vec![[false; 2]; queues.len()],
            full: vec![[false; 2]; queues.len()],
            waiting: queues.iter().map(|_| Default::default()).collect(),
            batches: BTreeMap::new(),
        };
        Ok(Self { rt: sim.rt().clone(), queues, phase: AtomicU64::new(0), requests, load: Mutex::new(load) })
    }

    /// Cuts a run of the volume at the chunks.
    pub(super) fn pieces(&self, byte: u64, bytes: u64) -> Vec<Piece> {
        let (mut at, end, disks) = (byte, byte + bytes, self.queues.len() as u64);
        let mut pieces = Vec::new();
        while at < end {
            let (chunk, within) = (at / CHUNK_BYTES, at % CHUNK_BYTES);
            let length = (CHUNK_BYTES - within).min(end - at);
            let byte = chunk / disks * CHUNK_BYTES + within;
            pieces.push(Piece { disk: (chunk % disks) as usize, byte, bytes: length });
            at += length;
        }
        pieces
    }

    /// Whether a disk has so many reads queued that read-ahead is to leave it alone (kernel: `dm_any_congested`).
    pub(super) fn is_congested(&self, write: bool) -> bool {
        self.load.lock().congested.iter().any(|disk| disk[usize::from(write)])
    }

    /// The threads of a phase are others than those of the phase before.
    pub(super) fn begin_phase(&self) {
        self.phase.fetch_add(1, Relaxed);
    }

    fn stream(&self, submitter: Submitter) -> StreamId {
        match submitter.task {
            0 => StreamId(0),
            thread => StreamId(self.phase.load(Relaxed) << 32 | thread),
        }
    }

    /// A thread has ended.
    pub(super) fn exited(&self, thread: u32) {
        let stream = self.stream(Submitter::waiting(thread));
        self.load.lock().batches.remove(&stream.0);
        for queue in &self.queues {
            queue.end_stream(stream);
        }
    }

    /// Takes a request of a disk's queue, for which a task waits its turn where the queue is full.
    pub(super) async fn request(&self, disk: usize, write: bool, submitter: Submitter) {
        let kind = usize::from(write);
        let task = self.stream(submitter).0;
        let mut has_waited = false;
        poll_fn(|cx| {
            let now = self.rt.now();
            let place = Place { disk, kind, is_awaited: self.queues[disk].awaits(StreamId(task)) };
            let mut load = self.load.lock();
            if load.take(place, self.requests, task, now, has_waited) {
                return Poll::Ready(());
            }
            has_waited = true;
            load.waiting[disk][kind].push_back(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }

    /// Starts a transfer with the request that was taken for it; `ended` is called in the interrupt of its end.
    pub(super) fn start(
        &self,
        piece: Piece,
        write: bool,
        submitter: Submitter,
        ended: impl FnOnce() + Send + 'static,
    ) {
        let bytes = piece.bytes as usize;
        let segment = if write { Segment::zeroes(bytes) } else { Buf::zeroed(bytes).into() };
        let op = if write { Op::Write } else { Op::Read };
        let mut bio = Bio::new(op, Sector(piece.byte / 512), vec![segment]);
        bio.stream = self.stream(submitter);
        if submitter.waits {
            bio.flags = BioFlags::SYNC;
        }
        bio.on_end(Box::new(move |bio, result| {
            assert!(result.is_ok(), "a modelled disk does not fail");
            ended();
            drop(bio);
        }));
        self.queues[piece.disk].submit(bio);
    }

    /// A transfer has ended: the first that waits for a request of its kind is woken.
    pub(super) fn ended(&self, disk: usize, write: bool) {
        let first = self.count_out(disk, usize::from(write));
        if let Some(first) = first {
            first.wake();
        }
    }

    fn count_out(&self, disk: usize, kind: usize) -> Option<Waker> {
        let mut load = self.load.lock();
        load.under_way[disk][kind] -= 1;
        if load.under_way[disk][kind] < CONGESTED[1] * self.requests / 128 {
            load.congested[disk][kind] = false;
        }
        if load.under_way[disk][kind] >= self.requests {
            return None;
        }
        let first = load.waiting[disk][kind].pop_front();
        load.full[disk][kind] &= !load.waiting[disk][kind].is_empty();
        first
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(disks: usize) -> Load {
        Load {
            under_way: vec![[0; 2]; disks],
            congested: vec![[false; 2]; disks],
            full: vec![[false; 2]; disks],
            waiting: (0..disks).map(|_| Default::default()).collect(),
            batches: BTreeMap::new(),
        }
    }

    const fn writes(disk: usize) -> Place {
        Place { disk, kind: 1, is_awaited: false }
    }

    #[test]
    fn the_task_that_fills_a_queue_has_a_batch_and_the_others_wait() {
        let (mut load, now) = (load(1), Nanos::ZERO);
        for _ in 0..7 {
            assert!(load.take(writes(0), 8, 1, now, false));
        }
        // The eighth request fills the queue for task 2, which goes on past the limit with the rest of its batch.
        let taken = (0..100).take_while(|_| load.take(writes(0), 8, 2, now, false)).count();
        assert_eq!(taken, 32);
        assert!(!load.take(writes(0), 8, 1, now, false), "the queue is full");
        assert!(
            load.take(Place { is_awaited: true, ..writes(0) }, 8, 1, now, false),
            "the disk idles for it"
        );
        assert!(load.take(writes(0), 8, 3, now, true), "it has waited");
        assert!(
            load.take(Place { kind: 0, ..writes(0) }, 8, 1, now, false),
            "reads have requests of their own"
        );
    }

    #[test]
    fn a_batch_ends_by_time_and_does_not_begin_anew_on_another_disk() {
        let mut load = load(2);
        let now = Nanos::ZERO;
        assert!(load.take(writes(0), 1, 1, now, false));
        assert_eq!(load.batches[&1].0, 31);
        // It fills the second disk's queue, too, with the same batch.
        assert!(load.take(writes(1), 1, 1, now, false));
        assert_eq!(load.batches[&1].0, 30);
        assert!(!load.take(writes(0), 1, 1, now + BATCH.1, false), "20 ms are over");
    }
}
