//! Tests the timer of a queue whose elevator keeps the device idle for a while.

mod common;

use extant_block::{Bio, Buf, Device, MemDevice, Op, Sector, Segment};
use extant_iosched::elevator::{Decision, Elevator, Fifo, Request, RequestId};
use extant_iosched::{Queue, QueueConfig};
use extant_rt::{Nanos, RealConfig, Rt};
use parking_lot::Mutex;
use std::sync::Arc;

const SPAN: Nanos = Nanos::from_millis(20);

/// After a request that arrives alone, keeps the device idle for [`SPAN`] to wait for a second one.
#[derive(Debug)]
struct Waits {
    fifo: Fifo,
    until: Option<Nanos>,
}

impl Elevator for Waits {
    fn name(&self) -> &'static str {
        "waits"
    }

    fn add(&mut self, request: Request, now: Nanos) {
        let alone = self.fifo.queued() == 0 && self.until.is_none();
        self.until = alone.then(|| now.saturating_add(SPAN));
        self.fifo.add(request, now);
    }

    fn next(&mut self, now: Nanos) -> Decision {
        match self.until {
            Some(until) if now < until => Decision::IdleUntil(until),
            _ => self.fifo.next(now),
        }
    }

    fn completed(&mut self, id: RequestId, now: Nanos) {
        self.fifo.completed(id, now);
    }

    fn queued(&self) -> usize {
        self.fifo.queued()
    }

    fn back_merge(&self, _: &Request) -> Option<RequestId> {
        None
    }

    fn front_merge(&self, _: &Request) -> Option<RequestId> {
        None
    }

    fn merged(&mut self, _: RequestId, _: Sector, _: u64, _: Nanos) {}

    fn absorbed(&mut self, _: RequestId, _: RequestId, _: Nanos) {}

    fn exited(&mut self, _: extant_block::StreamId, _: Nanos) {}
}

fn waits() -> Box<dyn Elevator> {
    Box::new(Waits { fifo: Fifo::new(), until: None })
}

/// Submits reads at these times; returns when each of them ended, and how often the processor
/// switched tasks.
fn run(submitted_at: &[Nanos]) -> (Vec<Nanos>, u64) {
    let (sim, queue) = common::queue(waits(), 1000, 8);
    let rt = sim.rt().clone();
    let ended = Arc::<Mutex<Vec<Nanos>>>::default();
    let (inside, list) = (rt.clone(), ended.clone());
    rt.block_on(async move {
        for (n, at) in submitted_at.iter().enumerate() {
            inside.sleep_until(*at).await;
            queue.submit(read(n as u64 * 800, &inside, &list));
        }
        inside.sleep(Nanos::from_secs(1)).await;
    })
    .unwrap();
    let ended = ended.lock().clone();
    (ended, sim.stats().switches)
}

fn read(start: u64, rt: &Rt, ended: &Arc<Mutex<Vec<Nanos>>>) -> Bio {
    let segment: Segment = Buf::zeroed(4096).into();
    let mut bio = Bio::new(Op::Read, Sector(start), vec![segment]);
    let (rt, ended) = (rt.clone(), ended.clone());
    bio.on_end(Box::new(move |_, result| {
        result.unwrap();
        ended.lock().push(rt.now());
    }));
    bio
}

#[test]
fn a_wait_that_ends_early_runs_no_task() {
    let (ended, switches) = run(&[Nanos(0), Nanos::from_millis(5)]);
    let started = Nanos::from_millis(5);
    assert_eq!(ended.len(), 2);
    assert!(
        ended.iter().all(|at| (started..started.saturating_add(Nanos(10_000))).contains(at)),
        "{ended:?}"
    );
    // Only the main task ran.
    assert_eq!(switches, 1);
}

#[test]
fn a_wait_that_nothing_ends_starts_its_request_from_a_task() {
    let (ended, switches) = run(&[Nanos(0)]);
    assert_eq!(ended.len(), 1);
    assert!((SPAN..SPAN.saturating_add(Nanos(10_000))).contains(&ended[0]), "{ended:?}");
    // The main task ran, then the task that the timer starts, then the main task again.
    assert_eq!(switches, 3);
}

#[test]
fn a_wait_ends_on_a_real_machine_too() {
    let rt = Rt::real(RealConfig::default());
    let queue = Queue::new(&rt, Arc::new(MemDevice::new(1 << 20)), waits(), QueueConfig::default());
    let (tell, done) = std::sync::mpsc::channel();
    let segment: Segment = Buf::zeroed(4096).into();
    let mut bio = Bio::new(Op::Read, Sector(0), vec![segment]);
    let inside = rt.clone();
    bio.on_end(Box::new(move |_, result| tell.send((inside.now(), result)).unwrap()));
    let submitted = rt.now();
    queue.submit(bio);
    let (at, result) = done.recv().unwrap();
    result.unwrap();
    assert!(at >= submitted.saturating_add(SPAN));
}

#[test]
fn a_wait_ends_although_its_world_has_ended() {
    let rt = Rt::real(RealConfig::default());
    let queue = Queue::new(&rt, Arc::new(MemDevice::new(1 << 20)), waits(), QueueConfig::default());
    let (tell, done) = std::sync::mpsc::channel();
    let submit = |sector| {
        let segment: Segment = Buf::zeroed(4096).into();
        let mut bio = Bio::new(Op::Read, Sector(sector), vec![segment]);
        let tell = tell.clone();
        bio.on_end(Box::new(move |_, result| tell.send(result).unwrap()));
        queue.submit(bio);
    };
    let ended = || done.recv_timeout(std::time::Duration::from_secs(120)).expect("the bio ends").unwrap();
    // The first one is waiting when the world ends; the second starts to wait afterwards.
    submit(0);
    assert!(rt.shutdown(Nanos::ZERO).in_flight.is_empty());
    ended();
    submit(800);
    ended();
}
