//! A queue in front of a RAM disk in the virtual world, on one processor whose work is free.

use extant_iosched::elevator::Elevator;
use extant_iosched::{Queue, QueueConfig};
use extant_sim::disk::{DiskKind, DiskModel, Disks, LimitSpec, RamSpec};
use extant_sim::{Machine, Preemption, Sim};

pub(crate) fn queue(elevator: Box<dyn Elevator>, latency_ns: u64, depth: u32) -> (Sim, Queue) {
    let spec = RamSpec { capacity_bytes: 1 << 20, latency_ns, bytes_s: u64::MAX, queue_depth: depth };
    let model = DiskModel {
        name: "ram".into(),
        source: "arithmetic".into(),
        count: 1,
        on_bus: false,
        max_command_bytes: 1 << 20,
        kind: DiskKind::Ram(spec),
        limits: LimitSpec::default(),
    };
    let sim = Sim::new(Machine::free(1, Preemption::None).with_disks(vec![model]), 1);
    let config = QueueConfig { depth: depth as usize, ..QueueConfig::default() };
    let queue = Queue::new(sim.rt(), Disks::attach(&sim).device(0), elevator, config);
    (sim, queue)
}
