//! Bios per second through the queue with each elevator, on one core, over a device that takes no
//! time.
//!
//! Run with `cargo bench -p extant-history --bench queue`; the median of five. Bios carry no
//! memory, like the phantom frames of an experiment.

use extant_block::{Bio, BioFlags, Device, Limits, Op, Sector, StreamId};
use extant_history::{BlockHost, ELEVATORS, elevator};
use extant_iosched::elevator::Elevator;
use extant_iosched::{Queue, QueueConfig};
use extant_rt::{Rng, Rt};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

const BIOS: u64 = 300_000;
/// Bios kept in flight.
const DEPTH: u64 = 64;

/// A device that holds bios until the benchmark ends them.
#[derive(Debug)]
struct Held {
    limits: Limits,
    held: Mutex<VecDeque<Bio>>,
}

impl Device for Held {
    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn submit(&self, bio: Bio) {
        self.held.lock().unwrap().push_back(bio);
    }
}

fn main() {
    let rt = Rt::real(Default::default());
    println!("bios per second through the queue, {DEPTH} in flight: random in 5 GB, then sequential");
    for name in ELEVATORS.iter().map(|policy| policy.name) {
        let rate = |random: bool| {
            let mut rates: Vec<f64> = (0..5)
                .map(|_| run(&rt, elevator(name, &BlockHost::default()).expect("in the table"), random))
                .collect();
            rates.sort_by(f64::total_cmp);
            rates[2] / 1e6
        };
        println!("{name:12} {:6.2} M/s  {:6.2} M/s", rate(true), rate(false));
    }
}

fn run(rt: &Rt, elevator: Box<dyn Elevator>, random: bool) -> f64 {
    let below = Arc::new(Held { limits: Limits::new("held", 5 << 30), held: Mutex::default() });
    let queue = Queue::new(rt, below.clone(), elevator, QueueConfig::default());
    let (mut rng, mut next) = (Rng::new(1), 0);
    let mut submit = || {
        let start = if random { rng.below(1_310_720) } else { next % 1_310_720 };
        next += 1;
        let mut bio = Bio::range(Op::WriteZeroes, Sector(start * 8), 4096);
        (bio.flags, bio.stream) = (BioFlags::SYNC, StreamId(1));
        bio.on_end(Box::new(|_, result| result.expect("the device does not fail")));
        queue.submit(bio);
    };
    let began = rt.now();
    (0..DEPTH).for_each(|_| submit());
    let mut submitted = DEPTH;
    loop {
        let bio = below.held.lock().unwrap().pop_front();
        let Some(bio) = bio else { break };
        // Completing a merged request makes room for as many bios as it carried.
        let bios = bio.bytes / 4096;
        bio.end(Ok(()));
        for _ in 0..bios.min(BIOS - submitted) {
            submit();
            submitted += 1;
        }
    }
    assert_eq!(queue.stats()[0].1.ended, BIOS);
    BIOS as f64 / (rt.now() - began).as_secs_f64()
}
