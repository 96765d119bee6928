//! Counts the requests of each queue; tasks wait for one if a queue is full (kernel:
//! drivers/block/ll_rw_blk.c).

use extant_iosched::Batching;
use extant_rt::Nanos;
use parking_lot::Mutex;
use std::collections::{BTreeMap, VecDeque};
use std::task::Waker;

/// Congestion on and off thresholds for a queue of `most` requests: 113 and 111 of 128.
///
/// Source: `queue_congestion_on_threshold` and `queue_congestion_off_threshold` of 2.6.6; later
/// kernels have 103 for the latter.
fn congested(most: usize) -> [usize; 2] {
    let all_but_eighth = most - most / 8;
    [(all_but_eighth + 1).min(most), all_but_eighth.saturating_sub(1).max(1)]
}

/// Requests that a task may take past the limit after waiting for one, and for how long.
const BATCH: Batching = Batching::LINUX;

/// Requests in use, and the tasks waiting for one.
pub(crate) struct RequestCounts {
    /// Maximum number of requests of each kind in a queue.
    most: usize,
    /// Requests in use by disk: reads, and writes.
    under_way: Vec<[usize; 2]>,
    congested: Vec<[bool; 2]>,
    /// Queues that ran out of requests; cleared when the last waiting task is woken (kernel:
    /// `QUEUE_FLAG_READFULL`, `QUEUE_FLAG_WRITEFULL`).
    full: Vec<[bool; 2]>,
    /// Tasks waiting for a request, in order of arrival (kernel: `get_request_wait`, exclusive).
    waiting: Vec<[VecDeque<Waker>; 2]>,
    /// Requests that each task may take past the limit, and until when (kernel:
    /// `nr_batch_requests`, `last_waited`).
    batches: BTreeMap<u64, (u32, Nanos)>,
    /// Tasks waiting for congestion to end, in order of arrival (kernel: `congestion_wqh`).
    pub(crate) uncongested: BTreeMap<u64, Waker>,
    arrivals: u64,
}

/// The queue from which a task wants a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WantedRequest {
    pub(crate) disk: usize,
    /// 0 for reads, 1 for writes.
    pub(crate) kind: usize,
    /// Whether the elevator keeps the disk idle for this task (kernel: `elv_may_queue`).
    pub(crate) is_awaited: bool,
}

impl RequestCounts {
    pub(crate) fn new(disks: usize, most: usize) -> Self {
        Self {
            most,
            under_way: vec![[0; 2]; disks],
            congested: vec![[false; 2]; disks],
            full: vec![[false; 2]; disks],
            waiting: (0..disks).map(|_| Default::default()).collect(),
            batches: BTreeMap::new(),
            uncongested: BTreeMap::new(),
            arrivals: 0,
        }
    }

    /// Whether any disk is congested with requests of this kind.
    pub(crate) fn is_congested(&self, kind: usize) -> bool {
        self.congested.iter().any(|disk| disk[kind])
    }

    /// The number of requests left in a task's batch (kernel: `ioc_batching`).
    fn batch_of(&mut self, task: u64, now: Nanos) -> Option<&mut u32> {
        let batch = self.batches.get_mut(&task);
        let batch = batch.filter(|(left, until)| *left == BATCH.requests || (*left > 0 && now < *until));
        batch.map(|(left, _)| left)
    }

    /// Starts a batch for a task that has none (kernel: `ioc_set_batching`).
    fn begin_batch(&mut self, task: u64, now: Nanos) {
        if self.batch_of(task, now).is_none() {
            self.batches.insert(task, (BATCH.requests, now + BATCH.span));
        }
    }

    /// Takes a request if the task may have one (kernel: `get_request`). With `has_waited`, starts
    /// a batch.
    pub(crate) fn take(&mut self, place: WantedRequest, now: Nanos, task: u64, has_waited: bool) -> bool {
        let most = self.most;
        let WantedRequest { disk, kind, is_awaited } = place;
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
        if self.under_way[disk][kind] >= congested(most)[0] {
            self.congested[disk][kind] = true;
        }
        true
    }

    /// Adds a task to the queue's waiters.
    pub(crate) fn wait(&mut self, place: WantedRequest, waker: Waker) {
        self.waiting[place.disk][place.kind].push_back(waker);
    }

    /// Adds a task to those waiting for congestion to end.
    ///
    /// Returns its ticket, which is removed when the task is woken.
    pub(crate) fn wait_uncongested(&mut self, waker: Waker) -> u64 {
        self.arrivals += 1;
        self.uncongested.insert(self.arrivals, waker);
        self.arrivals
    }

    pub(crate) fn exited(&mut self, task: u64) {
        self.batches.remove(&task);
    }

    /// Returns a request (kernel: `freed_request`).
    ///
    /// Wakes the first task waiting for one of its kind. If a write leaves its queue uncongested,
    /// also wakes all tasks that wait for congestion to end.
    pub(crate) fn put(load: &Mutex<Self>, disk: usize, write: bool) {
        let woken = load.lock().count_out(disk, usize::from(write));
        woken.into_iter().for_each(Waker::wake);
    }

    fn count_out(&mut self, disk: usize, kind: usize) -> Vec<Waker> {
        self.under_way[disk][kind] -= 1;
        let mut woken = Vec::new();
        if self.under_way[disk][kind] < congested(self.most)[1] {
            self.congested[disk][kind] = false;
            if kind == 1 {
                woken.extend(std::mem::take(&mut self.uncongested).into_values());
            }
        }
        if self.under_way[disk][kind] < self.most {
            woken.extend(self.waiting[disk][kind].pop_front());
            self.full[disk][kind] &= !self.waiting[disk][kind].is_empty();
        }
        woken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn writes(disk: usize) -> WantedRequest {
        WantedRequest { disk, kind: 1, is_awaited: false }
    }

    #[test]
    fn the_task_that_fills_a_queue_has_a_batch_and_the_others_wait() {
        let (mut load, now) = (RequestCounts::new(1, 8), Nanos::ZERO);
        for _ in 0..7 {
            assert!(load.take(writes(0), now, 1, false));
        }
        // The eighth request fills the queue for task 2, which goes past the limit with the rest of
        // its batch.
        let taken = (0..100).take_while(|_| load.take(writes(0), now, 2, false)).count();
        assert_eq!(taken, 32);
        assert!(!load.take(writes(0), now, 1, false), "the queue is full");
        assert!(
            load.take(WantedRequest { is_awaited: true, ..writes(0) }, now, 1, false),
            "the disk idles for it"
        );
        assert!(load.take(writes(0), now, 3, true), "it has waited");
        assert!(
            load.take(WantedRequest { kind: 0, ..writes(0) }, now, 1, false),
            "reads have requests of their own"
        );
    }

    #[test]
    fn a_batch_ends_by_time_and_does_not_begin_anew_on_another_disk() {
        let mut load = RequestCounts::new(2, 1);
        let now = Nanos::ZERO;
        assert!(load.take(writes(0), now, 1, false));
        assert_eq!(load.batches[&1].0, 31);
        // The same batch also applies to the second disk's queue.
        assert!(load.take(writes(1), now, 1, false));
        assert_eq!(load.batches[&1].0, 30);
        assert!(!load.take(writes(0), now + BATCH.span, 1, false), "20 ms are over");
    }

    #[test]
    fn the_end_of_a_write_on_a_queue_that_is_not_busy_wakes_all_that_wait_for_one() {
        let mut load = RequestCounts::new(1, 128);
        for _ in 0..113 {
            assert!(load.take(writes(0), Nanos::ZERO, 1, false));
        }
        assert!(load.is_congested(1) && !load.is_congested(0));
        let tickets = [0, 1].map(|_| load.wait_uncongested(Waker::noop().clone()));
        // Below 111 of 128 requests the queue is no longer congested.
        let woken: Vec<usize> = (0..12).map(|_| load.count_out(0, 1).len()).collect();
        assert_eq!(woken, [0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert!(!load.is_congested(1) && !load.uncongested.contains_key(&tickets[0]));
    }
}
