//! A queue in the virtual world, where a submitting task may be ahead of the interrupts that end
//! its bios.

mod common;

use extant_block::{Bio, Buf, Device, Op, Sector, Segment};
use extant_iosched::elevator::{Cfq, Deadline, Elevator, Fifo};
use extant_rt::{Cpu, Nanos};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Submits two bios in the same poll, the second after 1 ms of work, to a disk that takes 0.5 ms
/// for one bio and one at a time. The first ends while the task's clock is ahead, and only its end
/// can start the second.
fn ended(elevator: Box<dyn Elevator>) -> u32 {
    let (sim, queue) = common::queue(elevator, 500_000, 1);
    let rt = sim.rt().clone();
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
