//! Speed of virtual I/O: bios through queue, elevator and modelled disk per second of processor
//! time.

use super::{Result, cpu_time, median};
use extant_block::{Bio, BioFlags, Buf, Device, Op, Sector, Segment, StreamId};
use extant_history::{self as history, ELEVATORS};
use extant_iosched::{Queue, QueueConfig};
use extant_rt::{Nanos, Rng};
use extant_sim::disk::{DiskKind, Disks, RamSpec};
use extant_sim::{Machine, Preemption, Sim};
use parking_lot::Mutex;
use std::path::Path;
use std::sync::Arc;

/// Number of streams that keep one bio in flight each.
const STREAMS: u64 = 32;

/// State shared by all completions.
struct Load {
    queue: Queue,
    random: bool,
    left: Mutex<u64>,
    rng: Mutex<Rng>,
    next: Mutex<Vec<u64>>,
    blocks: u64,
}

impl Load {
    fn submit(self: &Arc<Self>, stream: u64, buf: Buf) {
        {
            let mut left = self.left.lock();
            if *left == 0 {
                return;
            }
            *left -= 1;
        }
        let block = if self.random {
            self.rng.lock().below(self.blocks)
        } else {
            let mut next = self.next.lock();
            next[stream as usize] += 1;
            next[stream as usize]
        };
        let mut bio = Bio::new(Op::Read, Sector(block * 8), vec![Segment::from(buf)]);
        bio.stream = StreamId(stream + 1);
        bio.flags = BioFlags::SYNC;
        let me = self.clone();
        bio.on_end(Box::new(move |mut bio, _| {
            let buf = bio.segments.pop().and_then(Segment::into_buf);
            me.submit(stream, buf.expect("the device returns the buffer"));
        }));
        self.queue.submit(bio);
    }
}

/// Bios per second of processor time.
fn speed(machine: &Machine, elevator: &str, random: bool, bios: u64) -> Result<f64> {
    let sim = Sim::new(machine.clone(), 1);
    let disk = Disks::attach(&sim).device(0);
    let blocks = disk.limits().capacity_bytes / 4096;
    let elevator = history::elevator(elevator, &history::BlockHost::default())?;
    let config = QueueConfig { depth: machine.disks[0].queue_depth(), ..QueueConfig::default() };
    let queue = Queue::new(sim.rt(), disk, elevator, config);
    let load = Arc::new(Load {
        queue,
        random,
        left: Mutex::new(bios),
        rng: Mutex::new(Rng::new(7)),
        next: Mutex::new((0..STREAMS).map(|stream| stream * (blocks / STREAMS)).collect()),
        blocks,
    });
    let before = cpu_time();
    sim.rt().block_on(async {
        (0..STREAMS).for_each(|stream| load.submit(stream, Buf::zeroed(4096)));
        while load.queue.load() != (0, 0, 0) {
            sim.rt().sleep(Nanos::from_secs(1)).await;
        }
    })?;
    Ok(bios as f64 * 1e9 / (cpu_time() - before) as f64)
}

pub(super) fn run(args: &[&str]) -> Result<()> {
    let (mut rounds, mut bios) = (5, 300_000);
    let (mut only_disk, mut only_elevator) = (None, None);
    for pair in args.chunks(2) {
        match *pair {
            ["--rounds", n] => rounds = n.parse()?,
            ["--bios", n] => bios = n.parse()?,
            ["--disk", name] => only_disk = Some(name),
            ["--elevator", name] => only_elevator = Some(name),
            _ => {
                let usage =
                    "usage: cargo xtask bench sim [--rounds N] [--bios N] [--disk NAME] [--elevator NAME]";
                return Err(usage.into());
            }
        }
    }
    let rotating = Machine::load(Path::new("machines/sata-7200-2013.toml"))?;
    let mut ram = rotating.disks[0].clone();
    ram.kind = DiskKind::Ram(RamSpec {
        capacity_bytes: 1 << 40,
        latency_ns: 1_000,
        bytes_s: 10_000_000_000,
        queue_depth: 32,
    });
    let free = |disk| Machine::free(1, Preemption::None).with_disks(vec![disk]);
    let machines = [("rotating", free(rotating.disks[0].clone())), ("RAM", free(ram))];
    println!("| disk | elevator | sequential, bios/s | random, bios/s |");
    println!("|---|---|---|---|");
    for (disk, machine) in machines.iter().filter(|(disk, _)| only_disk.is_none_or(|only| only == *disk)) {
        for name in ELEVATORS
            .iter()
            .map(|policy| policy.name)
            .filter(|name| only_elevator.is_none_or(|only| only == *name))
        {
            let middle = |random: bool| -> Result<f64> {
                let rounds = (0..rounds).map(|_| speed(machine, name, random, bios));
                Ok(median(rounds.collect::<Result<_>>()?))
            };
            println!("| {disk} | {name} | {:.0} | {:.0} |", middle(false)?, middle(true)?);
        }
    }
    Ok(())
}
