//! Power cuts at every write; writes that were not flushed may be there in part.

use super::bed::*;
use super::offline;
use extant_block::{BioFlags, Op};
use extant_rt::Rng;

/// Crash states of one cut: none of the volatile writes, all of them, and random samples.
fn states(log: &extant_block::Log, base: &[u8], cut: usize, rng: &mut Rng, samples: u32) -> Vec<Vec<u8>> {
    let crash = log.crash(cut);
    let mut durable = base.to_vec();
    for &n in &crash.durable {
        log.changes[n].apply(&mut durable, 0..log.changes[n].sectors());
    }
    let choices = 2 + if crash.volatile.len() > 1 { samples } else { 0 };
    let mut states = Vec::new();
    for choice in 0..choices {
        let mut parts: Vec<(usize, std::ops::Range<u64>)> = Vec::new();
        for &n in &crash.volatile {
            let whole = log.changes[n].sectors();
            let sectors = match choice {
                0 => 0..0,
                1 => 0..whole,
                _ if rng.below(2) == 0 => 0..0,
                // Torn between sectors.
                _ if rng.below(3) == 0 => 0..rng.below(whole + 1),
                _ => 0..whole,
            };
            // A write with a preflush can only be there if everything before it is.
            if log.changes[n].flags.contains(BioFlags::PREFLUSH) && !sectors.is_empty() {
                parts.iter_mut().for_each(|(n, part)| *part = 0..log.changes[*n].sectors());
            }
            parts.push((n, sectors));
        }
        let mut image = durable.clone();
        for (n, sectors) in parts {
            log.changes[n].apply(&mut image, sectors);
        }
        states.push(image);
    }
    states
}

#[test]
fn a_cut_at_any_write_leaves_a_prefix_no_shorter_than_what_was_synced() {
    for (mke2fs, seed) in [("-t ext4 -b 1024 -J size=1", 1), ("-t ext3 -b 1024 -J size=1", 2)] {
        let mut rng = Rng::new(seed);
        let mut bed = Bed::new(image(mke2fs, 8), offline());
        let mut synced = vec![(bed.record.position(), 0)];
        for _ in 0..60 {
            bed.ops(1 + rng.below(25) as u32);
            bed.sync();
            synced.push((bed.record.position(), bed.done));
            if rng.below(8) == 0 {
                bed.rt.block_on(bed.journal().checkpoint()).unwrap().unwrap();
            }
        }
        let base = bed.base.clone();
        let (record, done) = (bed.record.clone(), bed.done);
        let closed = bed.close();
        assert_eq!(prefix(&closed), done);
        let log = record.log();
        let mut checked = 0;
        for cut in (synced[0].0..=log.events.len()).step_by(3) {
            let least = synced.iter().take_while(|(at, _)| *at <= cut).last().map_or(0, |(_, done)| *done);
            for state in states(&log, &base, cut, &mut rng, 2) {
                let shown = prefix(&recovered(&state));
                assert!(
                    (least..=done).contains(&shown),
                    "seed {seed}, cut {cut}: {shown} operations, {least} synced"
                );
                checked += 1;
                if checked % 97 == 0 {
                    let theirs = fscked(&state);
                    assert_eq!(prefix(&theirs), shown, "seed {seed}, cut {cut}");
                    assert_clean(&theirs, mke2fs);
                }
            }
        }
        let flushes = log.changes.iter().filter(|change| change.op == Op::Flush).count();
        println!("{mke2fs}: {checked} states, {} changes, {flushes} flushes", log.changes.len());
    }
}
