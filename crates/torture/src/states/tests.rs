use super::*;
use extant_block::{BioFlags, Sector};
use std::collections::BTreeSet;
use std::sync::Arc;

fn write(sector: u64, sectors: u64, byte: u8, flags: BioFlags) -> Change {
    let bytes = sectors * 512;
    Change { op: Op::Write, start: Sector(sector), bytes, flags, data: vec![byte; bytes as usize] }
}

fn flush() -> Change {
    Change { op: Op::Flush, start: Sector(0), bytes: 0, flags: BioFlags::empty(), data: Vec::new() }
}

/// A log in which every change completes before the next is submitted.
fn log(changes: Vec<Change>) -> Log {
    let events = (0..changes.len())
        .flat_map(|change| [LogEvent::Submitted(change), LogEvent::Ended { change, ok: true }])
        .collect();
    Log { changes, events }
}

/// First bytes of the first four sectors of every state.
fn visit(log: &Log, options: Options) -> Vec<(usize, [u8; 4])> {
    visit_from(0, log, options)
}

/// First bytes of four sectors of every state, starting at `sector`.
fn visit_from(sector: usize, log: &Log, options: Options) -> Vec<(usize, [u8; 4])> {
    let base = Image::new(vec![0; 4096].into());
    let mut found = Vec::new();
    each(log, &base, &[], options, None, &mut |state| {
        let bytes = state.image.to_vec();
        found.push((state.cut, std::array::from_fn(|n| bytes[(sector + n) * 512])));
        true
    });
    found
}

const NONE: BioFlags = BioFlags::empty();

#[test]
fn unflushed_writes_come_in_every_combination() {
    let log = log((0..4).map(|i| write(i, 1, 7, NONE)).collect());
    let states: BTreeSet<[u8; 4]> = visit(&log, Options::default()).into_iter().map(|(_, s)| s).collect();
    assert_eq!(states.len(), 16);
}

#[test]
fn flushed_writes_stay() {
    let log = log(vec![write(0, 1, 1, NONE), flush(), write(1, 1, 2, NONE), write(2, 1, 3, BioFlags::FUA)]);
    for (cut, state) in visit(&log, Options::default()) {
        assert!(cut < 4 || state[0] == 1, "cut {cut}: {state:?}");
        assert!(cut < 8 || state[2] == 3, "cut {cut}: {state:?}");
    }
    assert!(
        visit(&log, Options::default()).contains(&(8, [1, 0, 3, 0])),
        "FUA does not flush what is before it"
    );
}

#[test]
fn a_write_with_preflush_comes_after_what_it_flushes() {
    let log = log(vec![write(0, 2, 1, NONE), write(2, 1, 2, BioFlags::PREFLUSH | BioFlags::FUA)]);
    let options = Options { torn: 32, ..Options::default() };
    for (cut, state) in visit(&log, options) {
        assert!(state[2] == 0 || state[..2] == [1, 1], "cut {cut}: {state:?}");
    }
}

#[test]
fn a_lost_write_does_not_undo_a_later_one_to_the_same_place() {
    let log = log(vec![write(0, 1, 1, NONE), write(0, 1, 2, BioFlags::FUA)]);
    let last: BTreeSet<u8> =
        visit(&log, Options::default()).into_iter().filter(|(cut, _)| *cut == 4).map(|(_, s)| s[0]).collect();
    assert_eq!(last, BTreeSet::from([2]));
}

#[test]
fn a_torn_write_leaves_whole_sectors() {
    let log = log(vec![write(4, 4, 9, NONE)]);
    let options = Options { torn: 64, ..Options::default() };
    let states: BTreeSet<[u8; 4]> = visit_from(4, &log, options).into_iter().map(|(_, s)| s).collect();
    assert_eq!(states.len(), 16, "every combination of four sectors comes up in 64 tries");
}

#[test]
fn the_superblock_is_not_torn() {
    let log = log(vec![write(2, 2, 9, NONE)]);
    let options = Options { torn: 64, ..Options::default() };
    let states: BTreeSet<[u8; 4]> = visit(&log, options).into_iter().map(|(_, s)| s).collect();
    assert_eq!(states, BTreeSet::from([[0; 4], [0, 0, 9, 9]]));
}

#[test]
fn many_writes_are_sampled_and_the_plain_ones_are_always_there() {
    let log = log((0..20).map(|i| write(i % 4, 1, i as u8 + 1, NONE)).collect());
    let options = Options { sampled: 10, torn: 0, ..Options::default() };
    let states = visit(&log, options);
    assert!(states.contains(&(40, [17, 18, 19, 20])), "all arrived");
    assert!(states.contains(&(40, [0, 0, 0, 0])), "nothing arrived");
    assert!(states.len() < 3 * 1024 + 3000, "{}", states.len());
    assert_eq!(states, visit(&log, options), "the seed replays it");
}

#[test]
fn images_of_states_share_the_base() {
    let base: Arc<[u8]> = vec![0; 1 << 20].into();
    let log = log((0..8).map(|i| write(i * 8, 8, 1, NONE)).collect());
    let mut kept = Vec::new();
    each(&log, &Image::new(base), &[], Options::default(), None, &mut |state| {
        kept.push(state.image);
        true
    });
    let distinct: BTreeSet<u128> = kept.iter().map(Image::hash).collect();
    assert!(distinct.len() >= 256, "{}", distinct.len());
}
