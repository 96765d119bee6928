//! A queue in the virtual world, where a task that submits may be ahead of the interrupts that end its bios.

use extant_block::{Bio, Buf, Device, Op, Sector, Segment};
use extant_iosched::elevator::{Cfq, Deadline, Elevator, Fifo};
use extant_iosched::{Queue, QueueConfig};
use extant_rt::{Cpu, Nanos};
use extant_sim::disk::{DiskKind, DiskModel, Disks, RamSpec};
use extant_sim::{Machine, Preemption, Sim};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Two bios, the second submitted 1 ms of work after the first in the same poll, on a disk that takes 0.5 ms for one and one at a
/// time: the first ends while the clock of the task is ahead, and nothing but its end can start the second.
fn ended(elevator: Box<dyn Elevator>) -> u32 {
    let spec = RamSpec { capacity_bytes: 1 << 20, latency_ns: 500_000, bytes_s: u64::MAX, queue_depth: 1 };
    let model = DiskModel {
        name: "ram".into(),
        source: "arithmetic".into(),
        count: 1,
        on_bus: false,
        max_command_bytes: 1 << 20,
        kind: DiskKind::Ram(spec),
    };
    let sim = Sim::new(Machine::free(1, Preemption::None).with_disks(vec![model]), 1);
    let rt = sim.rt().clone();
    let disk = Disks::attach(&sim).device(0);
    let queue = Queue::new(&rt, disk, elevator, QueueConfig { depth: 1, ..QueueConfig::default() });
    let ended = Arc::new(AtomicU32::new(0));
    let (inside, counted) = (rt.clone(), ended.clone());
    rt.block_on(async move {
        for start in [0, 800] {
            let segment: Segment = Buf::zeroed(4096).into();
            let mut bio = Bio::new(Op::Read, Sector(start), vec![segment]);
            let counted = counted.clone();
            bio.on_end(Box::new(move |_, result| {
                result.unwrap();
                counted.fetch_add(1, Relaxed);
            }));
            queue.submit(bio);
            inside.charge(Cpu(Nanos::from_millis(1)));
        }
        inside.sleep(Nanos::from_secs(100)).await;
    })
    .unwrap();
    ended.load(Relaxed)
}

#[test]
fn a_bio_that_was_submitted_after_the_interrupt_is_started_by_it() {
    let all: [(&str, Box<dyn Elevator>); 3] = [
        ("none", Box::new(Fifo::new())),
        ("mq-deadline", Box::new(Deadline::new())),
        ("cfq", Box::new(Cfq::extant(true))),
    ];
    for (name, elevator) in all {
        assert_eq!(ended(elevator), 2, "{name}: bios that ended");
    }
}
