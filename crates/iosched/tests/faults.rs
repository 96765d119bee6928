//! Ten thousand random schedules of the queue over a failing device.
//!
//! Each schedule picks an elevator, the queue's bounds, the device's limits and the fault rates
//! from its seed. A few workers, each with its own sectors, then read, write, zero, discard and
//! flush concurrently, and the device ends its bios in random order. In every case each bio ends
//! once, and an error names the device and an operation that was requested. A read returns what was
//! written (a failed write may have left each of its sectors old or new), and what ended before a
//! successful flush survives a crash after it.

use extant_block::{
    Bio, BioFlags, Buf, Device, Fault, FaultConfig, IoError, IoErrorKind, Limits, MemDevice, Op, Record,
    Sector, Segment, StreamId, execute,
};
use extant_iosched::elevator::cfq::{Tunables, idle_rule::ExpectedGain as IdleRule};
use extant_iosched::elevator::{Cfq, Deadline, Elevator, Fifo};
use extant_iosched::{Queue, QueueConfig};
use extant_rt::{Nanos, RealConfig, Rng, Rt};
use extant_sim::{Machine, Preemption, Sim};
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

const SCHEDULES: u64 = 10_000;
const WORKERS: u64 = 6;
/// Sectors per worker; bios of neighbours can be merged.
const OWN_SECTORS: u64 = 6;
const STEPS: u64 = 8;
const CAPACITY: usize = (WORKERS * OWN_SECTORS * 512) as usize;

/// A disk in memory that holds bios until they are released, in any order.
#[derive(Debug)]
struct Lagging {
    disk: MemDevice,
    limits: Limits,
    held: Mutex<(Vec<Bio>, Option<Waker>)>,
}

impl Device for Lagging {
    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn submit(&self, bio: Bio) {
        let mut held = self.held.lock().unwrap();
        held.0.push(bio);
        if let Some(waker) = held.1.take() {
            waker.wake();
        }
    }
}

impl Lagging {
    /// Ends one of the held bios.
    fn release(&self, rng: &mut Rng, waker: &Waker) -> bool {
        let bio = {
            let mut held = self.held.lock().unwrap();
            if held.0.is_empty() {
                held.1 = Some(waker.clone());
                return false;
            }
            let pick = rng.below(held.0.len() as u64) as usize;
            held.0.swap_remove(pick)
        };
        self.disk.submit(bio);
        true
    }
}

/// What a worker knows about its sectors: for each, the bytes it may be filled with.
type Model = Vec<Vec<u8>>;

struct Shared {
    queue: Queue,
    record: Arc<Record>,
    faults: Arc<Fault>,
    /// Each worker's model, and the number of changes it has started.
    models: Mutex<Vec<(Model, u64)>>,
    /// Bios that ended, and how many of them failed.
    tally: Mutex<(u64, u64)>,
}

fn expected_kind(kind: &IoErrorKind) -> bool {
    matches!(kind, IoErrorKind::Os(5) | IoErrorKind::TimedOut | IoErrorKind::Short(_) | IoErrorKind::Gone(_))
}

fn check_error(error: &IoError, op: Op, flags: BioFlags, start: u64, sectors: u64) {
    assert_eq!(error.device, "memory");
    assert!(expected_kind(&error.kind), "{error}");
    if error.op == Op::Flush {
        assert!(op == Op::Flush || flags.intersects(BioFlags::PREFLUSH | BioFlags::FUA), "{error} for {op}");
    } else {
        assert_eq!(error.op, op);
        let end = error.start.0 + error.bytes.div_ceil(512);
        assert!(error.start.0 < start + sectors && start < end, "{error} for sectors {start}+{sectors}");
    }
}

async fn worker(shared: Arc<Shared>, number: u64, mut rng: Rng) {
    for _ in 0..STEPS {
        let from = rng.below(OWN_SECTORS);
        let sectors = 1 + rng.below(OWN_SECTORS - from);
        let own = from as usize..(from + sectors) as usize;
        let start = number * OWN_SECTORS + from;
        let flags = BioFlags::from_bits_truncate(rng.below(32) as u8);
        let fill = rng.below(256) as u8;
        let op = match rng.below(10) {
            0..4 => Op::Read,
            4..7 => Op::Write,
            7 => Op::WriteZeroes,
            8 => Op::Discard,
            _ => Op::Flush,
        };
        let mut bio = match op {
            Op::Read | Op::Write => {
                let split = 1 + rng.below(sectors * 512 - 1) as usize;
                let memory = |bytes: usize| Segment::from(Buf::from_slice(&vec![fill; bytes]));
                Bio::new(op, Sector(start), vec![memory(split), memory(sectors as usize * 512 - split)])
            }
            Op::Flush => Bio::range(op, Sector(0), 0),
            _ => Bio::range(op, Sector(start), sectors * 512),
        };
        bio.flags = if op == Op::Read { flags - (BioFlags::FUA | BioFlags::PREFLUSH) } else { flags };
        bio.stream = StreamId(number);
        let flags = bio.flags;
        if matches!(op, Op::Write | Op::WriteZeroes | Op::Discard) {
            let mut models = shared.models.lock().unwrap();
            models[number as usize].1 += 1;
            let new = if op == Op::Write { fill } else { 0 };
            // Until the bio has ended successfully, both old and new contents are possible.
            models[number as usize].0[own.clone()].iter_mut().for_each(|sector| sector.push(new));
        }
        let before = shared.models.lock().unwrap().clone();
        let (bio, result) = execute(&shared.queue, bio).await;
        assert_eq!((bio.op, bio.start.0), (op, if op == Op::Flush { 0 } else { start }));
        let mut tally = shared.tally.lock().unwrap();
        tally.0 += 1;
        tally.1 += u64::from(result.is_err());
        drop(tally);
        let mut models = shared.models.lock().unwrap();
        match (op, result) {
            (_, Err(error)) => check_error(&error, op, flags, start, sectors),
            (Op::Read, Ok(())) => {
                let bytes: Vec<u8> = bio.segments.iter().flat_map(|s| s.as_slice()).copied().collect();
                for (sector, model) in bytes.chunks(512).zip(&mut models[number as usize].0[own]) {
                    assert!(sector.iter().all(|b| *b == sector[0]), "a sector is whole");
                    assert!(model.contains(&sector[0]), "read {} where {model:?} was written", sector[0]);
                    *model = vec![sector[0]];
                }
            }
            (Op::Write | Op::WriteZeroes | Op::Discard, Ok(())) => {
                for model in &mut models[number as usize].0[own] {
                    *model = vec![*model.last().unwrap()];
                }
            }
            (Op::Flush, Ok(())) if shared.record.limits().volatile_cache => {
                survives_a_crash(&shared.record, &before, &models);
            }
            (Op::Flush, Ok(())) => {}
        }
    }
}

/// Checks that sectors whose contents were certain before a flush, and have not changed since, are
/// on the medium after it.
fn survives_a_crash(record: &Record, before: &[(Model, u64)], now: &[(Model, u64)]) {
    let log = record.log();
    let mut image = vec![0; CAPACITY];
    for index in log.crash(record.position()).durable {
        let change = &log.changes[index];
        change.apply(&mut image, 0..change.sectors());
    }
    for (worker, (old, new)) in before.iter().zip(now).enumerate() {
        if old.1 != new.1 {
            continue;
        }
        for (sector, model) in old.0.iter().enumerate() {
            let at = (worker * OWN_SECTORS as usize + sector) * 512;
            assert!(
                model.len() > 1 || image[at..at + 512].iter().all(|b| *b == model[0]),
                "lost after a flush"
            );
        }
    }
}

fn elevator(kind: u64) -> Box<dyn Elevator> {
    match kind {
        0 => Box::new(Fifo::new()),
        1 => Box::new(Deadline::new()),
        2 => Box::new(Cfq::extant(true)),
        _ => Box::new(Cfq::with(Tunables::linux(1000), IdleRule::new())),
    }
}

/// Runs one schedule; returns how many bios ended, and how many of them failed.
fn schedule(rt: &Rt, seed: u64, elevator: Box<dyn Elevator>) -> (u64, u64) {
    let mut rng = Rng::new(seed);
    let disk = MemDevice::new(CAPACITY);
    let limits = Limits {
        max_bytes: 512 * (1 + rng.below(16)),
        max_segments: 2 + rng.below(6) as u32,
        volatile_cache: rng.below(2) == 0,
        ..disk.limits().clone()
    };
    let lagging = Arc::new(Lagging { disk, limits: limits.clone(), held: Mutex::default() });
    let record = Arc::new(Record::new(lagging.clone()));
    let mut rate = || if rng.below(2) == 0 { 0 } else { rng.below(200_000) as u32 };
    let mut config = FaultConfig {
        seed,
        error_ppm: rate(),
        timeout_ppm: rate(),
        torn_ppm: rate(),
        short_ppm: rate(),
        delay_ppm: if rt.is_virtual() { rate() } else { 0 },
        delay_max: Nanos::from_millis(20),
        vanish_after: None,
    };
    if rng.below(10) == 0 {
        config.vanish_after = Some(rng.below(60));
    }
    let faults = Arc::new(Fault::new(record.clone(), rt, config));
    let bounds = QueueConfig {
        requests: 1 + rng.below(6) as usize,
        depth: 1 + rng.below(4) as usize,
        fua: rng.below(2) == 0,
        ..QueueConfig::default()
    };
    let queue = Queue::new(rt, faults.clone(), elevator, bounds);
    let models = Mutex::new(vec![(vec![vec![0]; OWN_SECTORS as usize], 0); WORKERS as usize]);
    let shared = Arc::new(Shared { queue, record, faults, models, tally: Mutex::default() });
    let mut workers: Vec<Option<Pin<Box<dyn Future<Output = ()>>>>> = (0..WORKERS)
        .map(
            |n| Some(Box::pin(worker(shared.clone(), n, Rng::labelled(seed, &n.to_string()))) as Pin<Box<_>>),
        )
        .collect();
    rt.block_on(std::future::poll_fn(|cx: &mut Context<'_>| {
        loop {
            for slot in &mut workers {
                if slot.as_mut().is_some_and(|worker| worker.as_mut().poll(cx).is_ready()) {
                    *slot = None;
                }
            }
            if workers.iter().all(Option::is_none) {
                return Poll::Ready(());
            }
            if !lagging.release(&mut rng, cx.waker()) {
                return Poll::Pending;
            }
        }
    }))
    .unwrap();
    assert_eq!(shared.queue.load(), (0, 0, 0));
    let tally = *shared.tally.lock().unwrap();
    assert_eq!(tally.0, WORKERS * STEPS);
    // Only faults cause errors. (A fault need not cause one: a merged request that failed is
    // retried in parts.)
    assert!(tally.1 == 0 || !shared.faults.injected().is_empty());
    // Once the device works, the queue works as if nothing had failed.
    shared.faults.set_config(FaultConfig::default());
    let mut last = Box::pin(extant_block::read(&shared.queue, Sector(0), CAPACITY));
    rt.block_on(std::future::poll_fn(|cx| {
        loop {
            match last.as_mut().poll(cx) {
                Poll::Pending if lagging.release(&mut rng, cx.waker()) => {}
                other => return other,
            }
        }
    }))
    .unwrap()
    .unwrap();
    tally
}

fn replay(world: &str, seed: u64, run: impl FnOnce() -> (u64, u64)) -> (u64, u64) {
    struct Say<'a>(&'a str, u64);
    impl Drop for Say<'_> {
        fn drop(&mut self) {
            if std::thread::panicking() {
                eprintln!("{} world, seed {}", self.0, self.1);
            }
        }
    }
    let _say = Say(world, seed);
    run()
}

/// Includes delays, timers and elevators that idle; every schedule is reproducible.
#[test]
fn nothing_is_lost_in_the_virtual_world() {
    let (mut bios, mut errors) = (0, 0);
    for seed in 0..SCHEDULES {
        let run = || {
            let sim = Sim::new(Machine::free(1 + (seed % 2) as usize, Preemption::None), seed);
            let tally = schedule(sim.rt(), seed, elevator(seed % 4));
            (tally, sim.rt().now())
        };
        let tally = replay("virtual", seed, || {
            let first = run();
            assert!(seed % 10 != 0 || run() == first, "the same seed gives the same run");
            first.0
        });
        bios += tally.0;
        errors += tally.1;
    }
    println!("{SCHEDULES} schedules, {bios} bios, {errors} errors");
    assert!(errors > bios / 20 && errors < bios, "faults strike, and not everybody");
}

#[test]
fn nothing_is_lost_in_the_real_world() {
    let rt = Rt::real(RealConfig::default());
    let (mut bios, mut errors) = (0, 0);
    for seed in 0..SCHEDULES {
        // An elevator that idles uses the real clock here, so it is tested only occasionally.
        let kind = if seed % 500 == 0 { 2 + seed / 500 % 2 } else { seed % 2 };
        let tally = replay("real", seed, || schedule(&rt, seed, elevator(kind)));
        bios += tally.0;
        errors += tally.1;
    }
    println!("{SCHEDULES} schedules, {bios} bios, {errors} errors");
    assert!(errors > bios / 20 && errors < bios, "faults strike, and not everybody");
}
