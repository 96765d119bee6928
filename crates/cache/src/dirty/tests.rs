//! Checks formulas against values worked out by hand, and simple properties of the controller.
//! Properties of every controller are tested in the lab, for all controllers.

use super::*;
use crate::dirty::control_interface::{
    Amounts, Asking, Background, DeviceIndex, DirtyControl, DirtyLimits, Numbers, Verdict, WriterId,
};

/// 100 MiB, with the background threshold at half: freerun 19200, setpoint 22400.
const LIMITS: DirtyLimits = DirtyLimits { background_pages: 12_800, limit_pages: 25_600 };

fn numbers(dirty_pages: u64, writeback_pages: u64) -> Numbers {
    let on_device = Amounts { dirty_pages, writeback_pages };
    Numbers {
        limits: LIMITS,
        global: on_device,
        device: DeviceIndex(0),
        on_device,
        dirtied_total: 0,
        written_total: 0,
        devices: 1,
    }
}

fn ask(control: &mut TurnControl, now: Nanos, numbers: &Numbers, writer: u64) -> Verdict {
    let asking = Asking { writer: WriterId(writer), dirtied_pages: 1, written_pages: 0 };
    control.orders(now, numbers, Some(asking)).writer
}

#[test]
fn the_busy_rate_knows_no_idle_time() {
    let mut busy = BusyRate::default();
    for second in 1..20 {
        // Each second, the device takes a tenth of a second to write 1000 pages.
        busy.written(Nanos::from_secs(second), 1_000, Nanos::from_millis(100));
    }
    assert_eq!(busy.rate(Nanos::from_secs(20), 0, Nanos::ZERO), 10_000);
}

#[test]
fn a_device_that_ends_nothing_is_taken_to_be_as_slow_as_it_shows() {
    let mut busy = BusyRate::default();
    busy.written(Nanos::from_secs(1), 1_000, Nanos::from_millis(100));
    let since = Nanos::from_secs(1);
    assert_eq!(busy.rate(Nanos::from_millis(1_100), 1_000, since), 10_000);
    assert_eq!(busy.rate(Nanos::from_secs(11), 1_000, since), 100);
}

#[test]
fn unused_memory_is_lent_to_the_device_that_wants_it() {
    let mut control = TurnControl::new();
    let now = Nanos::from_secs(1);
    for device in 0..10 {
        let idle = Numbers { device: DeviceIndex(device), devices: 10, ..numbers(0, 0) };
        control.orders(now, &idle, None);
    }
    let alone = Numbers { devices: 10, written_total: 100_000, ..numbers(10_000, 2_000) };
    assert!(
        control.orders(now, &alone, None).device_limit_pages >= 22_400,
        "all but the reserve of the others"
    );
    let unproven = Numbers { written_total: 1_000, ..alone };
    assert_eq!(
        control.orders(now, &unproven, None).device_limit_pages,
        2_560,
        "its part by number, until it has written more"
    );
    let ample = DirtyLimits { background_pages: 400_000, limit_pages: 800_000 };
    let unproven = Numbers { limits: ample, ..unproven };
    assert_eq!(
        control.orders(now, &unproven, None).device_limit_pages,
        16_384,
        "64 MiB, until it has written more"
    );
}

#[test]
fn a_device_that_ends_nothing_may_soon_hold_nothing() {
    let mut control = TurnControl::new();
    let stuck = Numbers {
        devices: 2,
        global: Amounts { dirty_pages: 8_000, writeback_pages: 8_000 },
        ..numbers(4_000, 4_000)
    };
    control.orders(Nanos::from_secs(1), &stuck, None);
    let soon = control.orders(Nanos::from_secs(2), &stuck, None).device_limit_pages;
    let late = control.orders(Nanos::from_secs(101), &stuck, None).device_limit_pages;
    // The device has completed at most its 4,000 pages in 100 s, and may hold what it writes in 10
    // s at that rate.
    assert!(soon > 8_000 && late <= 400, "{soon} pages at first, {late} pages after 100 s");
}

/// A 2 MB/s stick holds far more than its share before its rate is known. Its writers must not
/// stall until all of that is written.
#[test]
fn a_slow_device_gives_back_little_by_little() {
    let mut control = TurnControl::new();
    let second = |n: u64| Nanos::from_secs(100 + n);
    let holds = |pages: u64| Numbers { devices: 2, ..numbers(pages, 0) };
    let mut limit = control.orders(second(0), &holds(0), None).device_limit_pages;
    assert_eq!(limit, 12_800, "its part by number, until it is known");
    for n in 1..=60 {
        let before = limit;
        control.written(second(n), &holds(before), 512, Nanos::from_secs(1));
        limit = control.orders(second(n), &holds(before), None).device_limit_pages;
        assert!(before <= limit + 512, "no more than it wrote: {before} to {limit} in second {n}");
    }
    assert!(limit < 6_000, "but it gives back all: {limit}");
}

#[test]
fn the_flusher_of_a_device_that_may_hold_little_does_not_rest_while_writers_wait() {
    let mut control = TurnControl::new();
    let slow = Numbers { devices: 2, ..numbers(100, 0) };
    // The device writes a page a second, so it may hold ten (10 s of writing), but always at least
    // sixteen.
    control.written(Nanos::from_secs(100), &slow, 1, Nanos::from_secs(1));
    let orders = control.orders(Nanos::from_secs(100), &slow, None);
    assert_eq!(orders.device_limit_pages, 16);
    assert_ne!(orders.flusher, Background::Stop);
}

#[test]
fn writers_take_turns_in_the_order_in_which_they_are_due() {
    let mut control = TurnControl::new();
    let now = Nanos::from_secs(1);
    let full = numbers(20_000, 5_600);
    for writer in 0..3 {
        assert!(matches!(ask(&mut control, now, &full, writer), Verdict::Pause { .. }));
    }
    let mut rules = Vec::new();
    for writer in (0..3).rev() {
        match ask(&mut control, now, &full, writer) {
            Verdict::Pause { rule, .. } => rules.push(rule),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(rules, ["extant: turn", "extant: turn", "extant: room"]);
    // There is room for the first writer, but not for those behind it.
    let room = numbers(20_000, 0);
    assert!(matches!(ask(&mut control, now, &room, 2), Verdict::Pause { .. }));
    assert!(matches!(ask(&mut control, now, &room, 0), Verdict::Go { .. }));
}

#[test]
fn turns_that_nobody_uses_are_over_also_where_nobody_asks_any_more() {
    let mut control = TurnControl::new();
    let of = |device, dirty_pages| {
        let on_device = Amounts { dirty_pages, writeback_pages: 0 };
        let device = DeviceIndex(device);
        Numbers { device, on_device, devices: 2, written_total: 100_000, ..numbers(12_000, 0) }
    };
    let mut now = Nanos::from_secs(1);
    // A writer on the second device is refused while all memory is promised to those on the first.
    for writer in 0..1000 {
        ask(&mut control, now, &of(0, 0), writer);
    }
    let refused = (1000..1100).find(|writer| {
        let verdict = ask(&mut control, now, &of(1, 6_000), *writer);
        matches!(verdict, Verdict::Pause { .. })
    });
    now = now.saturating_add(Nanos::from_millis(100));
    let verdict = ask(&mut control, now, &of(1, 6_000), refused.expect("all memory is promised"));
    assert!(matches!(verdict, Verdict::Go { pages: 100.. }), "{verdict:?}");
}

#[test]
fn of_writers_that_begin_one_after_the_other_none_waits_for_two_rounds() {
    const WRITERS: u64 = 100;
    let mut control = TurnControl::new();
    // Starts long after time 0. At first there is room for many turns, then only for a few at a
    // time.
    let (mut now, mut room) = (Nanos::from_secs(100), numbers(13_000, 0));
    let (mut turns, mut last) = (0, [0; WRITERS as usize]);
    while turns < 4 * WRITERS {
        for writer in 0..WRITERS {
            if writer == 20 {
                room = numbers(20_000, 0);
            }
            if matches!(ask(&mut control, now, &room, writer), Verdict::Go { pages: 100.. }) {
                turns += 1;
                let between = turns - last[writer as usize];
                assert!(
                    between <= WRITERS * 3 / 2,
                    "{between} turns from one of writer {writer} to its next"
                );
                last[writer as usize] = turns;
            }
        }
        now = now.saturating_add(Nanos::from_millis(50));
    }
}

#[test]
fn files_that_are_written_one_after_the_other_take_no_turns_from_those_that_stay() {
    // Writers that keep writing on a disk of 100 MiB/s, and one process that writes files of 1 MiB,
    // closing each before it opens the next.
    const WRITERS: u64 = 100;
    const FILE_PAGES: u64 = 256;
    const STEP: Nanos = Nanos::from_millis(10);
    let mut control = TurnControl::new();
    let (mut now, mut dirty) = (Nanos::from_secs(100), 0);
    let (mut pages, mut short_pages, mut newest) = ([0; WRITERS as usize], 0, WRITERS);
    let (mut done, mut since, mut longest) = ([0; WRITERS as usize], [now; WRITERS as usize], Nanos::ZERO);
    for step in 0..4_000 {
        let written = dirty.min(256);
        dirty -= written;
        control.written(now, &numbers(dirty, written), written, STEP);
        for writer in (0..WRITERS).map(|n| (n + step) % WRITERS) {
            let at = writer as usize;
            if let Verdict::Go { pages: granted } = ask(&mut control, now, &numbers(dirty, 256), writer) {
                dirty += granted;
                pages[at] += granted;
                // A write of 1 MiB is complete.
                if pages[at] / FILE_PAGES > done[at] {
                    (longest, done[at]) = (longest.max(now - since[at]), pages[at] / FILE_PAGES);
                    since[at] = now;
                }
            }
        }
        let mut left = FILE_PAGES;
        while let Verdict::Go { pages: granted } = ask(&mut control, now, &numbers(dirty, 256), newest) {
            let used = granted.min(left);
            (dirty, short_pages, left) = (dirty + used, short_pages + used, left - used);
            if left == 0 {
                control.forget(DeviceIndex(0), WriterId(newest));
                newest += 1;
                break;
            }
        }
        now = now.saturating_add(STEP);
    }
    let average = pages.iter().sum::<u64>() / WRITERS;
    assert!(
        short_pages < 10 * average,
        "{short_pages} pages of files that come and go, and {average} of one that stays"
    );
    assert!(longest <= Nanos::from_millis(3_300), "{longest:?} for 1 MiB, whose fair share is 1 s");
}

#[test]
fn writers_that_begin_together_are_not_promised_more_memory_than_there_is() {
    let mut control = TurnControl::new();
    let now = Nanos::from_secs(1);
    let mut promised = 0;
    // Nothing is dirty yet, so only the promised pages show that memory is in use.
    for writer in 0..1000 {
        let Verdict::Go { pages } = ask(&mut control, now, &numbers(0, 0), writer) else { break };
        assert!(pages <= 1024, "{pages} pages for one writer");
        promised += pages;
    }
    assert!((2_000..=LIMITS.limit_pages * 7 / 8).contains(&promised), "{promised} pages");
    // Writers keep the pages they were promised when the device's share shrinks.
    let shared = Numbers { devices: 10, written_total: 100_000, ..numbers(0, 0) };
    assert!(control.orders(now, &shared, None).device_limit_pages >= promised);
}

#[test]
fn turns_on_a_slow_disk_are_worth_its_seeks_and_no_round_is_longer_than_six_seconds() {
    // 39 MiB/s: a round of 3 s gives each of a hundred writers 300 pages.
    let limits = DirtyLimits { background_pages: 10_000, limit_pages: 20_000 };
    for (writers, turn) in [(10, 2048), (100, 448), (1_000, 60)] {
        let mut control = TurnControl::new();
        let full = Numbers { limits, ..numbers(20_000, 0) };
        for second in 1..30 {
            control.written(Nanos::from_secs(second), &full, 10_000, Nanos::from_secs(1));
        }
        for writer in 0..writers {
            ask(&mut control, Nanos::from_secs(30), &full, writer);
        }
        let state = control.state(Nanos::from_secs(30), &full);
        assert_eq!((state.writers, state.turn_pages), (writers, turn));
    }
}

/// A seek to the next file must not cost a disk more than a hundredth of its rate.
#[test]
fn a_file_is_written_for_two_seconds_while_memory_is_ample() {
    let limits = DirtyLimits { background_pages: 100_000, limit_pages: 200_000 };
    let mut control = TurnControl::new();
    let full = Numbers { limits, ..numbers(150_000, 0) };
    for second in 1..30 {
        control.written(Nanos::from_secs(second), &full, 10_000, Nanos::from_secs(1));
    }
    for writer in 0..5 {
        ask(&mut control, Nanos::from_secs(30), &full, writer);
    }
    let flusher = control.orders(Nanos::from_secs(30), &full, None).flusher;
    assert!(matches!(flusher, Background::Run { chunk_pages: 20_000..=21_000, .. }), "{flusher:?}");
}

#[test]
fn only_a_writer_that_had_a_turn_is_promised_a_long_one() {
    let limits = DirtyLimits { background_pages: 10_000, limit_pages: 20_000 };
    let mut control = TurnControl::new();
    let full = Numbers { limits, ..numbers(20_000, 0) };
    for second in 1..30 {
        control.written(Nanos::from_secs(second), &full, 10_000, Nanos::from_secs(1));
    }
    let mut turns = Vec::new();
    for second in [30, 40] {
        for writer in 0..100 {
            ask(&mut control, Nanos::from_secs(second), &full, writer);
        }
        let room = Numbers { limits, ..numbers(3_000, 0) };
        // Writer 9 is the first one that found memory short.
        turns.push(ask(&mut control, Nanos::from_millis(second * 1000 + 100), &room, 9));
    }
    assert_eq!(turns, [Verdict::Go { pages: 300 }, Verdict::Go { pages: 448 }]);
}
