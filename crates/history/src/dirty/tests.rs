//! Formulas checked against values computed by hand, and properties of the controllers.

use super::bandwidth::WriteBandwidth;
use super::hard_limit::HardLimit;
use super::position::{Position, RATIO_ONE, Reserve};
use super::rate::{PausePlan, RateLimit, max_pause, poll_interval, posted};
use super::share::Proportions;
use super::ticks::Ticks;
use super::{Ioless, Linux31};
use crate::{DIRTY_CONTROLS, Host, dirty_control};
use extant_cache::control::{
    Amounts, Asking, Background, DeviceIndex, DirtyControl, DirtyLimits, Numbers, Verdict, WriterId,
};
use extant_cache::dirty::MAX_PAUSE;
use extant_rt::Nanos;

/// 100 MiB, half of it as background threshold: freerun 19200, setpoint 22400.
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

fn asking(writer: u64, dirtied_pages: u64) -> Asking {
    Asking { writer: WriterId(writer), dirtied_pages, written_pages: 0 }
}

fn position(dirty: u64, device_dirty: u64) -> Position {
    Position {
        freerun: 19_200,
        limit: 25_600,
        threshold: 25_600,
        dirty,
        device_threshold: 2_560,
        device_dirty,
        write_rate: 16_896,
        reserve: Reserve::Half,
    }
}

/// A host with `hz` ticks per second.
fn host(hz: u32) -> Host {
    Host { cpus: 24, memory_bytes: 16 << 30, hz }
}

/// Linux's controllers, and ours.
fn controllers(hz: u32) -> impl Iterator<Item = Box<dyn DirtyControl>> {
    DIRTY_CONTROLS.iter().map(move |policy| dirty_control(policy.name, &host(hz)).unwrap())
}

#[test]
fn the_hard_limit_rises_at_once_and_falls_by_a_32nd_of_the_gap() {
    let mut hard = HardLimit::default();
    hard.update(200, 0);
    assert_eq!(hard.pages(200), 200);
    hard.update(100, 0);
    assert_eq!(hard.pages(100), 197);
    hard.update(100, 500);
    assert_eq!(hard.pages(100), 197, "not below what is dirty");
}

/// Computed by hand from the patches of 3 October 2011 ("limit max dirty pause time", "control
/// dirty pause time"), at 1000 Hz.
#[test]
fn pauses_as_posted_grow_with_the_writers_and_shrink_with_the_pool() {
    let ticks = Ticks::new(1000);
    // One writer: 20 ms. 64 writers, 6 doublings: 20 + 6 x 20 x 1000/1024.
    assert_eq!(posted::max_pause(ticks, 1 << 20, 16_384, 16_384), 20);
    assert_eq!(posted::max_pause(ticks, 1 << 20, 16_384, 256), 137);
    // 500 dirty pages at 16,384 per second: an eighth of 30 ms, which is below the minimum of 4.
    assert_eq!(posted::max_pause(ticks, 500, 16_384, 256), 4);
    assert_eq!(posted::max_pause(ticks, 0, 16_384, 256), 137, "nothing is dirty: no bound by it");
    assert_eq!(posted::max_pause(ticks, 0, 1 << 40, 1), 200);
    // The target is half of the longest pause: 256 pages per second for 68 ms are 17. After a pause
    // shorter than a fourth of it, at least an eighth more; after one of maximum length, at least
    // an eighth fewer.
    assert_eq!(posted::pause_pages(ticks, 30, 137, 32, 32, 256), 36);
    assert_eq!(posted::pause_pages(ticks, 30, 137, 8, 8, 256), 17);
    assert_eq!(posted::pause_pages(ticks, 30, 137, 2, 2, 256), 8, "four times at most");
    assert_eq!(posted::pause_pages(ticks, 137, 137, 32, 32, 256), 17);
    assert_eq!(posted::pause_pages(ticks, 500, 137, 100, 32, 256), 25, "a fourth at least, and odd");
    assert_eq!(posted::pause_pages(ticks, 70, 137, 32, 32, 256), 32, "in between it stays");
}

/// "dirty_exceeded" needs either condition in the patches of 2011 and in 3.2, both in 3.7.
#[test]
fn a_device_over_its_part_counts_in_version_12_and_not_in_3_7() {
    // 20,480 of 25,600 pages are dirty, on a device that has not written anything yet and so has no
    // share.
    let asked = |name: &str| {
        let mut control = dirty_control(name, &host(1000)).unwrap();
        control.orders(Nanos::from_secs(1), &numbers(20_480, 0), Some(asking(1, 32)));
        let go = control.orders(Nanos::from_secs(2), &numbers(20_480, 0), Some(asking(2, 1))).writer;
        // A new writer may dirty 32 pages before it is checked, granted 8 at a time; on a device
        // over its share, only 8 in all.
        match go {
            Verdict::Go { pages } => pages,
            other => panic!("{name}: {other:?}"),
        }
    };
    assert_eq!(asked("ioless"), 8);
    for name in ["ioless-first", "ioless+background", "ioless-september"] {
        assert_eq!(asked(name), 7, "{name}");
    }
}

#[test]
fn the_global_ratio_is_two_at_freerun_one_at_the_setpoint_and_nothing_at_the_limit() {
    assert_eq!(position(19_200, 0).global_ratio(), 2_045);
    assert_eq!(position(22_400, 0).global_ratio(), 1_024);
    assert_eq!(position(25_599, 0).global_ratio(), 2);
    assert_eq!(position(25_600, 0).global_ratio(), 0);
    assert_eq!(position(30_000, 0).ratio(), 0);
}

#[test]
fn the_device_ratio_follows_its_line_its_reserve_and_its_end() {
    // Setpoint 2239, span 15819: the line ends at 18058.
    assert_eq!(position(22_400, 2_240).ratio(), 1_023, "at its setpoint");
    assert_eq!(position(22_400, 640).ratio(), 2_254, "at half of its reserve");
    assert_eq!(position(22_400, 100).ratio(), 9_296, "nearly empty");
    assert_eq!(position(22_400, 15_000).ratio(), 256, "far above");
    // The mail's reserve is 1280 + 1024 pages; the first version's is what the device writes in a
    // second.
    let with = |reserve, device_dirty| Position { reserve, ..position(22_400, device_dirty) }.ratio();
    assert_eq!(with(Reserve::HalfAndChunk, 2_240), 1_023 * 2_304 / 2_240);
    assert_eq!(with(Reserve::Second, 2_240), 1_023 * 16_896 / 2_240);
}

#[test]
fn a_device_that_has_written_nothing_counts_for_an_eighth_of_what_is_left() {
    let position = Position { device_threshold: 0, ..position(22_400, 0) };
    assert_eq!(position.device_floor(), 400);
    assert!(position.ratio() > 0);
    assert_eq!(Position { reserve: Reserve::Second, ..position }.device_floor(), 0, "but not at first");
}

#[test]
fn bandwidth_moves_by_the_part_of_the_window_that_went_by() {
    let mut bandwidth = WriteBandwidth::default();
    bandwidth.update(Ticks::new(1000), 200, 2_000);
    assert_eq!((bandwidth.rate, bandwidth.average()), (24_838, 25_600));
    bandwidth.update(Ticks::new(1000), 200, 2_000);
    assert_eq!((bandwidth.rate, bandwidth.average()), (24_113, 25_505));
    bandwidth.update(Ticks::new(1000), 5_000, 50_000);
    assert_eq!((bandwidth.rate, bandwidth.average()), (10_000, 10_000), "longer than the window");
    // At 250 Hz the 3 s window is 1024 ticks; the estimate is the same.
    let mut coarse = WriteBandwidth::default();
    coarse.update(Ticks::new(250), 50, 2_000);
    assert_eq!(coarse.rate, 24_838);
}

#[test]
fn completions_are_halved_once_a_period_is_over() {
    let mut completions = Proportions::default();
    completions.add(DeviceIndex(0), 40_000, 25_600);
    completions.add(DeviceIndex(1), 20_000, 25_600);
    assert_eq!(completions.share(DeviceIndex(0), 300), 200);
    assert_eq!(completions.share(DeviceIndex(7), 300), 0);
    // The period is 65536 pages; earlier counts are halved from here on.
    completions.add(DeviceIndex(1), 10_000, 25_600);
    assert_eq!(completions.share(DeviceIndex(0), 70), 40);
}

#[test]
fn pauses_are_planned_as_by_hand() {
    let ms = Ticks::new(1000);
    assert_eq!(max_pause(ms, 2_560, 16_896), 20);
    assert_eq!(max_pause(ms, 1_000_000, 16_896), 200);
    let plan = |base| PausePlan::new(ms, 200, base, base, 16_896);
    assert_eq!(plan(16_896), PausePlan { least: 6, pages: 165 });
    assert_eq!(plan(1_056), PausePlan { least: 25, pages: 50 });
    assert_eq!(plan(300), PausePlan { least: 54, pages: 32 });
    assert_eq!(plan(100), PausePlan { least: 200, pages: 19 });
    // With an eighth of the rate limit, 165 pages would take 78 ms. That exceeds 20, so plan what
    // fits in 20.
    assert_eq!(PausePlan::new(ms, 20, 2_112, 16_896, 16_896), PausePlan { least: 11, pages: 41 });
    // With ticks of 10 ms the target is one tick.
    assert_eq!(
        PausePlan::new(Ticks::new(100), 20, 16_896, 16_896, 16_896),
        PausePlan { least: 1, pages: 132 }
    );
    assert_eq!(poll_interval(0, 25_600), 128);
    assert_eq!(poll_interval(25_600, 25_600), 1);
}

#[test]
fn a_rate_limit_steps_down_by_an_eighth_of_the_half_of_the_way() {
    let mut rate = RateLimit::default();
    // The balanced rate is 6400, but the position allows 25601, so there is no reason to slow down.
    rate.update(RATIO_ONE, 10_000, 40_000, false);
    assert_eq!(rate.base(), 25_600);
    // The position allows 12801. The step of 12799 is halved once, and an eighth of that is taken.
    rate.update(RATIO_ONE / 2, 10_000, 40_000, false);
    assert_eq!(rate.base(), 24_800);
}

#[test]
fn the_rate_limit_comes_to_the_device_s_bandwidth_over_its_writers() {
    // Four writers on a device that writes 10,000 pages per second: 2500 each.
    let (write_rate, writers) = (10_000, 4);
    let mut rate = RateLimit::default();
    let mut dirty = 19_200;
    let mut settled = 0;
    for round in 1..=300 {
        let at = |dirty| Position { device_threshold: 25_600, write_rate, ..position(dirty, dirty) };
        let mut dirtied = 0;
        for _ in 0..20 {
            // One step is 10 ms.
            let pages = writers * rate.base() * at(dirty).ratio() / RATIO_ONE / 100;
            dirtied += pages;
            dirty = (dirty + pages).saturating_sub(write_rate / 100);
        }
        let below = dirty < at(dirty).setpoint();
        rate.update(at(dirty).ratio(), write_rate, dirtied * 5, below);
        if !(2_250..=2_750).contains(&rate.base()) {
            settled = round;
        }
    }
    assert!(settled <= 150, "a tenth off in round {settled}, at {} pages/s in the end", rate.base());
}

#[test]
fn no_writer_pauses_while_little_is_dirty() {
    for mut control in controllers(1000) {
        let mut dirtied = 1;
        for step in 0..100 {
            let now = Nanos::from_millis(step);
            let orders = control.orders(now, &numbers(6_000, 6_000), Some(asking(0, dirtied)));
            let Verdict::Go { pages } = orders.writer else { panic!("{:?}: {control:?}", orders.writer) };
            assert!(pages > 0);
            dirtied = pages;
        }
    }
}

#[test]
fn no_pause_is_longer_than_200_ms_wherever_the_numbers_are() {
    for mut control in controllers(1000).chain(controllers(100)) {
        let mut allowed = [1; 40];
        let mut now = Nanos::from_secs(1);
        for step in 0..4_000_u64 {
            let dirty = step * 7_919 % 26_000;
            let numbers = Numbers {
                dirtied_total: step * 3,
                written_total: step,
                ..numbers(dirty, (step * 104_729 % 26_000).min(26_000 - dirty))
            };
            let allowed = &mut allowed[step as usize % 40];
            *allowed = match control.orders(now, &numbers, Some(asking(step % 40, *allowed))).writer {
                Verdict::Pause { until, pages, rule } => {
                    assert!(
                        until > now && until <= now.saturating_add(MAX_PAUSE),
                        "{rule}: {until} at {now}"
                    );
                    pages
                }
                Verdict::Go { pages } => pages,
                Verdict::WriteBack { .. } => 0,
            };
            control.written(now, &numbers, step % 200, Nanos::from_millis(step % 50));
            now = now.saturating_add(Nanos::from_millis(step % 23));
        }
    }
}

#[test]
fn linux_3_1_writers_write_back_half_as_much_again_and_sleep_twice_as_long_each_time() {
    let mut control = Linux31::new(&host(1000));
    let mut now = Nanos::from_secs(1);
    control.written(now, &numbers(0, 0), 1_000, Nanos::from_millis(1));
    let mut dirtied = 1024;
    // The writer is asked to write back, finds nothing to write, and sleeps. Returns the
    // milliseconds.
    let mut slept = |numbers: &Numbers| {
        let verdict = control.orders(now, numbers, Some(asking(0, std::mem::take(&mut dirtied)))).writer;
        let Verdict::WriteBack { pages: 2_048, chunk_pages: 2_048, .. } = verdict else {
            return Err(verdict);
        };
        let verdict = control.orders(now, numbers, Some(asking(0, 0))).writer;
        let Verdict::Pause { until, pages: 0, .. } = verdict else { panic!("{verdict:?}") };
        let ms = (until - now).0 / 1_000_000;
        now = until;
        Ok(ms)
    };
    let all: Vec<u64> = (0..10).map(|_| slept(&numbers(26_000, 0)).unwrap()).collect();
    assert_eq!(all, [1, 2, 4, 8, 16, 32, 64, 100, 100, 100], "past the limit it stays");
    // Its own limit is an eighth below the device's, since it dirtied everything.
    assert_eq!(slept(&numbers(23_000, 0)), Ok(100));
    assert_eq!(
        slept(&numbers(23_000, 0)),
        Err(Verdict::Go { pages: 8 }),
        "near its limit, after 200 ms it goes"
    );
}

#[test]
fn a_linux_3_1_writer_that_wrote_its_part_goes_on_and_is_looked_at_every_eight_pages_of_its_processor() {
    let mut control = Linux31::new(&host(1000));
    let full = numbers(25_601, 0);
    let mut ask = |asking| control.orders(Nanos(0), &full, Some(asking)).writer;
    // Of 24 processors, writers 0 and 24 share one, and the 1024 pages before one of them is
    // checked.
    assert_eq!(ask(asking(0, 1_000)), Verdict::Go { pages: 8 });
    assert_eq!(ask(asking(1, 1_000)), Verdict::Go { pages: 8 });
    assert!(matches!(ask(asking(24, 24)), Verdict::WriteBack { .. }));
    assert_eq!(ask(Asking { written_pages: 1_536, ..asking(24, 0) }), Verdict::Go { pages: 8 });
    // The device is over its share from now on. Pages it has written back are not counted twice.
    assert!(matches!(ask(asking(0, 8)), Verdict::WriteBack { .. }));
    assert!(matches!(ask(asking(0, 0)), Verdict::Pause { .. }));
}

#[test]
fn only_the_device_s_background_threshold_wakes_the_flusher_of_a_device_with_more_than_its_part() {
    // One of ten devices holds 5 MiB of 10 MiB dirty; the threshold is 50 MiB.
    let numbers = Numbers {
        global: Amounts { dirty_pages: 2_560, writeback_pages: 0 },
        devices: 10,
        ..numbers(1_281, 0)
    };
    let share = |control: &mut dyn DirtyControl| {
        for device in 0..10 {
            let other = Numbers { device: DeviceIndex(device), ..numbers };
            control.written(Nanos(0), &other, 1_000, Nanos::from_millis(1));
        }
        control.orders(Nanos(0), &numbers, None).flusher
    };
    assert_eq!(share(&mut Ioless::new(&host(1000))), Background::Stop);
    let run = share(&mut Ioless::with_device_background(&host(1000)));
    // Half a second of 100 MiB/s but at most an eighth of the limit, plus 4 MiB, in multiples of 4
    // MiB.
    assert_eq!(run, Background::Run { chunk_pages: 4_096, in_flight_pages: 16_384, least_pages: 1 });
}

#[test]
fn think_time_comes_out_of_an_io_less_pause() {
    let pause = |thought_ms| {
        let mut control = Ioless::new(&host(1000));
        let now = Nanos::from_secs(10);
        // At its last check the dirty pages were below freerun, so it was let through.
        control.orders(now - Nanos::from_millis(thought_ms), &numbers(0, 0), Some(asking(0, 32)));
        match control.orders(now, &numbers(12_400, 10_000), Some(asking(0, 512))).writer {
            Verdict::Pause { until, .. } => until - now,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(pause(0) - pause(30), Nanos::from_millis(30));
}

#[test]
fn io_less_pauses_that_are_too_short_to_take_are_made_up_for() {
    let mut control = Ioless::new(&host(1000));
    let now = Nanos::from_secs(10);
    let numbers = numbers(12_400, 10_000);
    // The only device that writes gets the whole threshold as its share.
    control.written(now, &numbers, 1_000, Nanos::from_millis(1));
    // However many pages lie between two checks, 100,000 pages take as long as the rate limit
    // requires.
    let (mut paused, mut dirtied) = (Nanos::ZERO, 0);
    while dirtied < 100_000 {
        dirtied += 8;
        match control.orders(now.saturating_add(paused), &numbers, Some(asking(0, 8))).writer {
            Verdict::Pause { until, .. } => paused = until - now,
            _ => continue,
        }
    }
    let rate = control.state(now, &numbers).task_rate;
    let due_ms = 1000 * dirtied / rate;
    let paused_ms = paused.0 / 1_000_000;
    // Each check rounds down to a millisecond.
    assert!(paused_ms <= due_ms && paused_ms * 10 >= due_ms, "{paused_ms} of {due_ms} ms");
}
