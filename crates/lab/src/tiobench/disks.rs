//! The volume: disks striped in chunks (dm-stripe), with a request queue before each.

use super::TiobenchError;
use super::cache::CHUNK_BYTES;
use extant_block::{Bio, BioFlags, Buf, Device, Op, Sector, Segment};
use extant_history::BlockHost;
use extant_iosched::{Queue, QueueConfig};
use extant_sim::Sim;
use extant_sim::disk::{DiskModel, Disks, ModelDisk};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Poll, Waker};

/// Requests of a kind from which on a queue counts as congested, and below which it does not any more, of 128 (kernel:
/// `queue_congestion_on_threshold`, `queue_congestion_off_threshold`).
const CONGESTED: [usize; 2] = [113, 103];

/// The disks.
pub(super) struct Stripe {
    queues: Vec<Arc<Queue>>,
    /// Most requests of a kind in a queue.
    requests: usize,
    load: Mutex<Load>,
}

struct Load {
    /// Bios under way, by disk: reads, and writes.
    under_way: Vec<[usize; 2]>,
    congested: Vec<[bool; 2]>,
    /// Tasks that wait for a request, in order of arrival (kernel: `get_request_wait`, exclusive).
    waiting: Vec<[VecDeque<Waker>; 2]>,
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
        let queue = |(disk, model): (Arc<ModelDisk>, &DiskModel)| {
            let host = BlockHost {
                rotational: model.is_rotational(),
                hz: kernel.hz,
                slice_idle_ms: kernel.slice_idle_ms,
            };
            let elevator = extant_history::elevator(elevator, &host)?;
            let config = QueueConfig { requests, depth: model.queue_depth(), ..QueueConfig::default() };
            Ok(Arc::new(Queue::new(sim.rt(), disk, elevator, config)))
        };
        let disks = Disks::attach(sim);
        let queues: Vec<_> =
            disks.devices().into_iter().zip(models).map(queue).collect::<Result<_, TiobenchError>>()?;
        let load = Load {
            under_way: vec![[0; 2]; queues.len()],
            congested: vec![[false; 2]; queues.len()],
            waiting: queues.iter().map(|_| Default::default()).collect(),
        };
        Ok(Self { queues, requests, load: Mutex::new(load) })
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

    /// Waits until a disk's queue has room for another request.
    pub(super) async fn room(&self, disk: usize, write: bool) {
        let kind = usize::from(write);
        poll_fn(|cx| {
            let mut load = self.load.lock();
            if load.under_way[disk][kind] < self.requests {
                return Poll::Ready(());
            }
            load.waiting[disk][kind].push_back(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }

    /// Starts a transfer; `ended` is called in the interrupt of its end.
    pub(super) fn start(&self, piece: Piece, write: bool, ended: impl FnOnce() + Send + 'static) {
        {
            let mut load = self.load.lock();
            let count = &mut load.under_way[piece.disk][usize::from(write)];
            *count += 1;
            if *count >= CONGESTED[0] * self.requests / 128 {
                load.congested[piece.disk][usize::from(write)] = true;
            }
        }
        let bytes = piece.bytes as usize;
        let segment = if write { Segment::zeroes(bytes) } else { Buf::zeroed(bytes).into() };
        let op = if write { Op::Write } else { Op::Read };
        let mut bio = Bio::new(op, Sector(piece.byte / 512), vec![segment]);
        if !write {
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
        load.waiting[disk][kind].pop_front()
    }
}
