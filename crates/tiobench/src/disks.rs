//! The volume's disks, striped in chunks (dm-stripe), each with a request queue.

use crate::options::TiobenchError;
use crate::requests::{Load, Place};
use extant_block::{Bio, BioFlags, Buf, Device, Op, Sector, Segment, StreamId};
use extant_history::BlockHost;
use extant_iosched::{Queue, QueueConfig};
use extant_rt::{Nanos, Rt};
use extant_sim::Sim;
use extant_sim::disk::{DiskModel, Disks, ModelDisk};
use parking_lot::Mutex;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::Poll;

/// Chunk size of the stripe (dm-stripe: 64 sectors).
pub(crate) const CHUNK_BYTES: u64 = 32 << 10;

/// The longest that a task waits for congestion to end (kernel: `HZ / 10` in
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

    /// A throttled thread, which writes back in the meantime.
    pub(crate) fn throttled(thread: u32) -> Self {
        Self { task: u64::from(thread) + 1, waits: false }
    }
}

/// The striped disks.
pub(crate) struct Stripe {
    rt: Rt,
    queues: Vec<Arc<Queue>>,
    phase: AtomicU64,
    load: Arc<Mutex<Load>>,
}

/// The part of a transfer on one disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) disk: usize,
    byte: u64,
    bytes: u64,
}

impl Stripe {
    pub(crate) fn new(sim: &Sim, elevator: &str, requests: usize) -> Result<Self, TiobenchError> {
        let kernel = sim.machine().kernel;
        let models = sim.machine().disks.iter().flat_map(|model| vec![model; model.count as usize]);
        let tasks = extant_history::anticipatory::Tasks::default();
        let queue = |(disk, model): (Arc<ModelDisk>, &DiskModel)| {
            let host = BlockHost {
                rotational: model.is_rotational(),
                hz: kernel.hz,
                slice_idle_ms: kernel.slice_idle_ms,
                ..BlockHost::default()
            };
            let elevator = extant_history::elevator_beside(elevator, &host, &tasks)?;
            // Tasks get their requests from `Load` before they submit, so the queue needs no limit.
            let config =
                QueueConfig { requests: usize::MAX, depth: model.queue_depth(), ..QueueConfig::default() };
            Ok(Arc::new(Queue::new(sim.rt(), disk, elevator, config)))
        };
        let disks = Disks::attach(sim);
        let queues: Vec<_> =
            disks.devices().into_iter().zip(models).map(queue).collect::<Result<_, TiobenchError>>()?;
        let load = Arc::new(Mutex::new(Load::new(queues.len(), requests)));
        Ok(Self { rt: sim.rt().clone(), queues, phase: AtomicU64::new(0), load })
    }

    /// Splits a byte range of the volume at chunk boundaries.
    pub(crate) fn pieces(&self, byte: u64, bytes: u64) -> Vec<Piece> {
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
        piece: Piece,
        write: bool,
        submitter: Submitter,
        ended: impl FnOnce() + Send + 'static,
    ) {
        let Some(bio) = self.queues[piece.disk].join(self.bio(piece, write, submitter, ended)) else {
            return;
        };
        let has_waited = self.request(piece.disk, write, submitter).await;
        // While the task waited, others may have queued adjacent requests.
        let left = if has_waited { self.queues[piece.disk].join(bio) } else { Some(bio) };
        let (load, disk) = (self.load.clone(), piece.disk);
        match left {
            Some(mut bio) => {
                bio.before_end(move |_| Load::put(&load, disk, write));
                self.queues[disk].submit(bio);
            }
            None => Load::put(&load, disk, write),
        }
    }

    /// Takes a request of a disk's queue, and returns whether the task had to wait for it.
    async fn request(&self, disk: usize, write: bool, submitter: Submitter) -> bool {
        let kind = usize::from(write);
        let task = self.stream(submitter).0;
        let mut has_waited = false;
        poll_fn(|cx| {
            let now = self.rt.now();
            let place = Place { disk, kind, is_awaited: self.queues[disk].awaits(StreamId(task)) };
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
        let mut bio = Bio::new(op, Sector(piece.byte / 512), vec![segment]);
        bio.stream = self.stream(submitter);
        if submitter.waits {
            bio.flags = BioFlags::SYNC;
        }
        bio.on_end(Box::new(move |bio, result| {
            // A modelled disk does not fail; a bio comes back unsubmitted only if the world ends
            // early.
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
