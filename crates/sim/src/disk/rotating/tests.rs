//! Properties of the rotating model; `tests/disks.rs` compares it with published figures.

use super::*;
use crate::Machine;
use crate::disk::DiskKind;
use extant_rt::Rng;
use std::path::Path;

pub(super) fn constellation_es_2010() -> RotatingSpec {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../machines/sata-7200-2010.toml");
    match &Machine::load(&path).unwrap().disks[0].kind {
        DiskKind::Rotating(spec) => spec.clone(),
        other => panic!("{other:?}"),
    }
}

/// Runs the drive until no event is left.
fn drain(disk: &mut Rotating) -> Vec<Report> {
    let mut reports = Vec::new();
    while let Some(now) = disk.next_event() {
        disk.advance(now, &mut reports);
    }
    reports
}

fn done(reports: &[Report]) -> Vec<(u32, Nanos)> {
    let one = |report: &Report| match report {
        Report::Done { tag, at } => Some((tag.0, *at)),
        Report::Durable { .. } => None,
    };
    reports.iter().filter_map(one).collect()
}

#[test]
fn a_read_of_what_the_head_read_ahead_needs_no_mechanics() {
    let mut disk = Rotating::new(constellation_es_2010());
    disk.submit(Nanos::ZERO, Command::new(Tag(0), Op::Read, Sector(1 << 20), 8));
    let first = done(&drain(&mut disk))[0].1;
    let later = first + Nanos::from_millis(5);
    disk.submit(later, Command::new(Tag(1), Op::Read, Sector((1 << 20) + 8), 256));
    let took = done(&drain(&mut disk))[0].1 - later;
    assert!(took < Nanos::from_millis(1), "{took}");
    // Sectors behind the head are not buffered.
    let later = later + Nanos::from_millis(5);
    disk.submit(later, Command::new(Tag(2), Op::Read, Sector((1 << 20) - 800), 8));
    let took = done(&drain(&mut disk))[0].1 - later;
    assert!(took > Nanos::from_millis(1), "{took}");
}

#[test]
fn buffered_reads_still_go_over_the_interface() {
    let mut disk = Rotating::new(constellation_es_2010());
    disk.submit(Nanos::ZERO, Command::new(Tag(0), Op::Read, Sector(0), 8));
    let first = done(&drain(&mut disk))[0].1;
    let later = first + Nanos::from_millis(20);
    (1..5).for_each(|n| disk.submit(later, Command::new(Tag(n), Op::Read, Sector(u64::from(n) * 256), 256)));
    let ends = done(&drain(&mut disk));
    let bytes = 4 * 256 * 512;
    let least = Nanos(transfer_ns(bytes, disk.spec().interface_bytes_s));
    let took = ends[3].1 - later;
    assert!(took >= least && took < least + Nanos::from_millis(1), "{took} of {least}");
}

#[test]
fn a_write_is_done_before_it_is_durable_and_a_flush_waits_for_all_of_them() {
    let mut disk = Rotating::new(constellation_es_2010());
    for n in 0..20 {
        disk.submit(Nanos::ZERO, Command::new(Tag(n), Op::Write, Sector(u64::from(n) * 1_000_000), 8));
    }
    let mut reports = Vec::new();
    disk.advance(Nanos::from_millis(1), &mut reports);
    disk.submit(Nanos::from_millis(1), Command::new(Tag(99), Op::Flush, Sector(0), 0));
    reports.extend(drain(&mut disk));
    let flush = reports.iter().position(|r| matches!(r, Report::Done { tag: Tag(99), .. })).unwrap();
    let durable = |r: &&Report| matches!(r, Report::Durable { .. });
    assert_eq!(reports[..flush].iter().filter(durable).count(), 20);
    let writes = done(&reports[..flush]);
    assert!(writes.iter().all(|(_, at)| *at < Nanos::from_millis(1)), "{writes:?}");
    // In position order, twenty writes spread over a few percent of the disk take less than twenty
    // full accesses.
    let (_, flushed) = done(&reports)[20];
    assert!(flushed > Nanos::from_millis(40) && flushed < Nanos::from_millis(200), "{flushed}");
}

#[test]
fn a_full_write_cache_makes_writers_wait_for_the_platters() {
    let spec = RotatingSpec { write_cache_bytes: 64 << 10, ..constellation_es_2010() };
    let mut disk = Rotating::new(spec);
    for n in 0..20 {
        disk.submit(Nanos::ZERO, Command::new(Tag(n), Op::Write, Sector(u64::from(n) * 7_000_000), 16));
    }
    let ends = done(&drain(&mut disk));
    assert_eq!(ends.len(), 20);
    assert!(ends[7].1 < Nanos::from_millis(1) && ends[19].1 > Nanos::from_millis(20), "{ends:?}");
}

#[test]
fn nothing_is_passed_over_for_longer_than_the_drive_s_patience() {
    let spec = RotatingSpec { patience_ns: 50_000_000, ..constellation_es_2010() };
    let far = spec.capacity_bytes / 512 - 8;
    let mut disk = Rotating::new(spec);
    let mut reports = Vec::new();
    let mut rng = extant_rt::Rng::new(3);
    (0..20).for_each(|n| {
        disk.submit(Nanos::ZERO, Command::new(Tag(n), Op::Read, Sector(u64::from(n) * 8000), 8))
    });
    disk.submit(Nanos::ZERO, Command::new(Tag(99), Op::Read, Sector(far), 8));
    let mut served = None;
    while served.is_none() {
        let now = disk.next_event().unwrap();
        disk.advance(now, &mut reports);
        for report in reports.drain(..) {
            match report {
                Report::Done { tag: Tag(99), at } => served = Some(at),
                // All others are nearer.
                Report::Done { tag, .. } => {
                    disk.submit(now, Command::new(tag, Op::Read, Sector(rng.below(20_000) * 8), 8));
                }
                Report::Durable { .. } => {}
            }
        }
    }
    assert!(served < Some(Nanos::from_millis(100)), "{served:?}");
}

#[test]
fn a_write_past_the_cache_is_durable_when_done_and_outdates_what_the_cache_has() {
    let mut disk = Rotating::new(constellation_es_2010());
    disk.submit(Nanos::ZERO, Command::new(Tag(0), Op::Write, Sector(5000), 8));
    let now = Nanos::from_millis(1);
    let mut reports = Vec::new();
    disk.advance(now, &mut reports);
    disk.submit(now, Command { fua: true, ..Command::new(Tag(1), Op::Write, Sector(5000), 8) });
    disk.submit(now, Command::new(Tag(2), Op::Flush, Sector(0), 0));
    reports.extend(drain(&mut disk));
    let order: Vec<u32> = done(&reports).iter().map(|(tag, _)| *tag).collect();
    assert_eq!(order.len(), 3);
    assert_eq!(order[0], 0);
    let at = reports.iter().position(|r| matches!(r, Report::Done { tag: Tag(1), .. })).unwrap();
    assert_eq!(reports[at + 1], Report::Durable { start: Sector(5000), sectors: 8 });
    assert_eq!(disk.next_event(), None, "nothing is left to write");
}

/// Every write becomes durable after it completes, and before the completion of any flush submitted
/// after that.
#[test]
fn no_write_is_lost_between_the_cache_and_the_platters() {
    for seed in 0..200 {
        let mut rng = extant_rt::Rng::labelled(seed, "durable");
        let spec = RotatingSpec { write_cache_bytes: 128 << 10, ..constellation_es_2010() };
        let mut disk = Rotating::new(spec);
        let mut now = Nanos::ZERO;
        let mut reports = Vec::new();
        // For each tag, the command and the number of reports when it was submitted.
        let mut commands: Vec<(Command, usize)> = Vec::new();
        for n in 0..60 {
            let pause = if rng.below(4) == 0 { rng.below(30_000_000) } else { rng.below(300_000) };
            now += Nanos(pause);
            disk.advance(now, &mut reports);
            let start = Sector(rng.below(2) * 5_000_000 + rng.below(64));
            let mut command = Command::new(Tag(n), Op::Write, start, 1 + rng.below(64));
            match rng.below(8) {
                0 => command = Command::new(Tag(n), Op::Flush, Sector(0), 0),
                1 => command.fua = true,
                2 => command.op = Op::Read,
                _ => {}
            }
            commands.push((command, reports.len()));
            disk.submit(now, command);
        }
        while let Some(next) = disk.next_event() {
            disk.advance(next, &mut reports);
        }
        let done = |tag: u32| {
            let found = reports.iter().position(|r| matches!(r, Report::Done { tag: t, .. } if t.0 == tag));
            found.unwrap_or_else(|| panic!("seed {seed}: {tag} never ended"))
        };
        // Whether every sector of a command becomes durable after its completion and before report
        // `until`.
        let hardened = |command: &Command, until: usize| {
            let after = &reports[done(command.tag.0)..until];
            (command.start.0..command.end()).all(|sector| {
                after.iter().any(|report| match report {
                    Report::Durable { start, sectors } => (start.0..start.0 + sectors).contains(&sector),
                    Report::Done { .. } => false,
                })
            })
        };
        for (command, _) in commands.iter().filter(|(command, _)| command.op == Op::Write) {
            assert!(hardened(command, reports.len()), "seed {seed}: {command:?} stays volatile");
        }
        for (flush, submitted) in commands.iter().filter(|(command, _)| command.op == Op::Flush) {
            for (command, _) in commands.iter().filter(|(command, _)| command.op == Op::Write) {
                if done(command.tag.0) < *submitted {
                    assert!(
                        hardened(command, done(flush.tag.0)),
                        "seed {seed}: {flush:?} leaves {command:?}"
                    );
                }
            }
        }
    }
}

#[test]
fn the_command_chosen_is_the_one_that_a_look_at_all_of_them_finds() {
    let mut rng = Rng::new(5);
    let mut disk = Rotating::new(constellation_es_2010());
    let (mut streaming, mut overdue) = (0, 0);
    for round in 0..1_000_u64 {
        let began = Nanos::from_secs(round);
        let at = rng.below(disk.sectors() - 4_096);
        disk.settle(disk.geometry.place(at), 8, at + 8);
        disk.look_ahead.read(at..at + 8, began);
        if rng.below(2) == 0 {
            disk.look_ahead.stop();
        }
        for number in 0..1 + rng.below(31) {
            let start = match rng.below(4) {
                0 => at + 8 * rng.below(4),
                // Few positions, so that commands collide.
                1 => rng.below(50) * 1_000_000,
                _ => rng.below(disk.sectors() - 4_096),
            };
            let op = if rng.below(4) == 0 { Op::Write } else { Op::Read };
            let command = Command::new(Tag(number as u32), op, Sector(start), 8 << rng.below(8));
            disk.enqueue(began + Nanos(number * 10_000_000), command);
        }
        let now = began + Nanos(300_000_000 + rng.below(400_000_000));
        let angle = disk.geometry.angle_at(now.0);
        while !disk.queue.is_empty() {
            let all: Vec<Queued> = (0..disk.queue.len()).map(|number| *disk.queue.get(number)).collect();
            let cost = |number: usize| disk.cost(now, angle, &all[number]);
            let oldest = (0..all.len()).min_by_key(|number| all[*number].arrived).unwrap();
            let late = (now - all[oldest].arrived).0 > disk.spec.patience_ns;
            let best = if late { oldest } else { (0..all.len()).min_by_key(|number| cost(*number)).unwrap() };
            let expected = (best, cost(best));
            assert_eq!(disk.choose(now), Some(expected));
            overdue += u32::from(late);
            streaming += u32::from(disk.streams(&all[best].command).is_some());
            disk.queue.take(best);
        }
    }
    assert!(streaming > 500 && overdue > 1_000, "{streaming} {overdue}");
}
