//! Modelled disks against published figures, and what survives a crash.
//!
//! Figures: the data sheets named in `machines/`; a random read takes the published average seek,
//! half a revolution and the overhead. Makers publish nothing for these disks at depth 32.
//! CrystalDiskMark on 7200 rpm SATA disks of 1 TB measured 209.5 and 232.3 reads per second
//! (pastebin.com XrkgJVUX, 2012, and 3Q7RYtj9, 2014; at depth 1 they read 95.0 and 79.7). The tests
//! use their mean.

use extant_block::{
    Bio, BioFlags, Buf, Device, IoErrorKind, Op, Sector, Segment, execute, flush, read, write,
};
use extant_rt::{Class, Nanos, Rng};
use extant_sim::disk::{
    Allowance, BusSpec, Command, Contents, DiskKind, DiskModel, Disks, Drive, LimitSpec, Limited, Rack, Ram,
    RamSpec, Report, Rotating, RotatingSpec, Ssd, SsdSpec, Tag,
};
use extant_sim::{Machine, Preemption, Sim};
use std::path::Path;

fn machine(name: &str) -> Machine {
    Machine::load(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../machines").join(name)).unwrap()
}

fn rotating(name: &str) -> RotatingSpec {
    match &machine(name).disks[0].kind {
        DiskKind::Rotating(spec) => spec.clone(),
        other => panic!("{other:?}"),
    }
}

/// Keeps `depth` commands in flight until `until`. Returns completions per second.
fn closed_loop(drive: &mut dyn Drive, depth: u32, until: Nanos, mut next: impl FnMut(Tag) -> Command) -> f64 {
    let mut reports = Vec::new();
    let (mut done, mut last) = (0_u64, Nanos::ZERO);
    (0..depth).for_each(|tag| drive.submit(Nanos::ZERO, next(Tag(tag))));
    while let Some(now) = drive.next_event().filter(|now| *now <= until) {
        drive.advance(now, &mut reports);
        for report in reports.drain(..) {
            if let Report::Done { tag, at } = report {
                (done, last) = (done + 1, at);
                drive.submit(now, next(tag));
            }
        }
    }
    done as f64 / last.as_secs_f64()
}

fn random_iops(drive: &mut dyn Drive, op: Op, depth: u32, seconds: u64) -> f64 {
    let mut rng = Rng::new(1);
    let spots = drive.sectors() / 8;
    closed_loop(drive, depth, Nanos::from_secs(seconds), |tag| {
        Command::new(tag, op, Sector(rng.below(spots) * 8), 8)
    })
}

fn streaming_bytes_s(drive: &mut dyn Drive, op: Op, from: u64, depth: u32) -> f64 {
    let mut at = from;
    // Long enough that a write cache fills early in the run.
    let seconds = if drive.has_volatile_cache() && op == Op::Write { 30 } else { 3 };
    let commands_s = closed_loop(drive, depth, Nanos::from_secs(seconds), |tag| {
        at += 512;
        Command::new(tag, op, Sector(at - 512), 512)
    });
    commands_s * 512.0 * 512.0
}

#[track_caller]
fn near(what: &str, modelled: f64, published: f64, percent: f64) {
    let error = (modelled / published - 1.0) * 100.0;
    println!("{what}: modelled {modelled:.1}, published {published:.1}, {error:+.1} %");
    assert!(error.abs() <= percent, "{what}: modelled {modelled:.1}, published {published:.1}");
}

#[test]
fn random_reads_at_depth_1_take_seek_half_a_revolution_and_overhead() {
    for name in ["sata-7200-2010", "sata-7200-2013", "jbod10-2011", "turion-2010", "e3000-2004", "altix-2006"]
    {
        let spec = rotating(&format!("{name}.toml"));
        let half_turn_ns = 30e9 / f64::from(spec.rpm);
        let published = 1e9 / (spec.seek_average_ns as f64 + half_turn_ns + spec.overhead_ns as f64);
        near(name, random_iops(&mut Rotating::new(spec), Op::Read, 1, 60), published, 10.0);
    }
}

#[test]
fn scaled_positioning_scales_all_of_a_lone_read_but_the_overhead() {
    let spec = rotating("sata-7200-2013.toml");
    let lone_ns = |spec: RotatingSpec| 1e9 / random_iops(&mut Rotating::new(spec), Op::Read, 1, 60);
    let whole = lone_ns(spec.clone()) - spec.overhead_ns as f64;
    for permille in [250, 400, 2500] {
        let scaled = spec.clone().with_positioning(permille).unwrap();
        let wanted = whole * permille as f64 / 1000.0 + spec.overhead_ns as f64;
        near("a lone read", lone_ns(scaled), wanted, 3.0);
    }
    assert_eq!(spec.clone().with_positioning(1000), Some(spec.clone()));
    assert_eq!(spec.with_positioning(99), None);
}

#[test]
fn random_reads_at_depth_32_are_as_fast_as_measured_ones() {
    let published = (209.5 + 232.3) / 2.0;
    for name in ["sata-7200-2010", "sata-7200-2013"] {
        let mut drive = Rotating::new(rotating(&format!("{name}.toml")));
        near(name, random_iops(&mut drive, Op::Read, 32, 60), published, 10.0);
    }
}

#[test]
fn streaming_reaches_the_sustained_rate_at_both_edges() {
    for name in ["sata-7200-2010", "sata-7200-2013", "turion-2010", "e3000-2004", "altix-2006"] {
        let spec = rotating(&format!("{name}.toml"));
        for (op, depth) in [(Op::Read, 1), (Op::Read, 4), (Op::Write, 4)] {
            if op == Op::Write && spec.write_cache_bytes == 0 {
                continue;
            }
            let what = |edge| format!("{name}, {op} at depth {depth}, {edge} edge");
            let outer = streaming_bytes_s(&mut Rotating::new(spec.clone()), op, 0, depth);
            near(&what("outer"), outer / 1e6, spec.outer_bytes_s as f64 / 1e6, 10.0);
            let from = spec.capacity_bytes / 512 - if op == Op::Read { 1_500_000 } else { 6_000_000 };
            let inner = streaming_bytes_s(&mut Rotating::new(spec.clone()), op, from, depth);
            near(&what("inner"), inner / 1e6, spec.inner_bytes_s as f64 / 1e6, 10.0);
        }
    }
}

#[test]
fn without_a_write_cache_a_sequential_writer_loses_a_revolution_a_command() {
    let spec = RotatingSpec { write_cache_bytes: 0, ..rotating("sata-7200-2010.toml") };
    let turn = 60.0 / f64::from(spec.rpm);
    let transfer = 512.0 * 512.0 / spec.outer_bytes_s as f64;
    let rate = streaming_bytes_s(&mut Rotating::new(spec), Op::Write, 0, 1) / (512.0 * 512.0);
    near("commands a second", rate, 1.0 / (turn + transfer), 5.0);
}

#[test]
fn disks_on_one_bus_share_its_bandwidth() {
    let machine = machine("e3000-2004.toml");
    let model = &machine.disks[0];
    let bus = machine.bus.clone().unwrap();
    let mut rack = Rack::new((0..10).map(|n| model.build(n)).collect(), Some(bus.clone()));
    let mut at = [0_u64; 10];
    let mut next = |disk: usize| {
        at[disk] += 64;
        Command::new(Tag(disk as u32), Op::Read, Sector(at[disk] - 64), 64)
    };
    (0..10).for_each(|disk| rack.submit(Nanos::ZERO, disk, next(disk)));
    let (mut done, mut per_disk) = (0_u64, [0_u64; 10]);
    let until = Nanos::from_secs(2);
    while let Some(now) = rack.next_event().filter(|now| *now <= until) {
        let mut ended = Vec::new();
        rack.advance(now, &mut |disk, report| {
            if matches!(report, Report::Done { .. }) {
                ended.push(disk);
            }
        });
        for disk in ended {
            done += 1;
            per_disk[disk] += 1;
            rack.submit(now, disk, next(disk));
        }
    }
    let command_s = 32_768.0 / bus.bytes_s as f64 + bus.command_ns as f64 / 1e9;
    near("commands a second on the bus", done as f64 / 2.0, 1.0 / command_s, 5.0);
    let (least, most) = (per_disk.iter().min().unwrap(), per_disk.iter().max().unwrap());
    assert!(most - least <= 2, "{per_disk:?}");
    assert!(rack.bus_busy() > Nanos::from_millis(1_900));
}

fn flash() -> SsdSpec {
    SsdSpec {
        capacity_bytes: 1 << 40,
        channels: 16,
        page_bytes: 4096,
        read_ns: vec![(0, 60_000), (500_000, 70_000), (990_000, 120_000), (1_000_000, 1_000_000)],
        write_ns: vec![(0, 10_000), (1_000_000, 20_000)],
        program_ns: 60_000,
        flush_ns: 500_000,
        overhead_ns: 8_000,
        interface_bytes_s: 3_500_000_000,
        queue_depth: 256,
        volatile_buffer: true,
        collect_every_bytes: 0,
        collect_ns: 0,
    }
}

/// Mean read latency of [`flash`]: half at 65 us on average, nearly half at 95 us, one percent at
/// 560 us.
const MEAN_READ_NS: f64 = 0.5 * 65e3 + 0.49 * 95e3 + 0.01 * 560e3;

/// Intel SSD DC P4500 4.0 TB, from table 2 of Lenovo's product guide. The guide does not state the
/// queue depths of its rates; Intel measures at 256.
#[test]
fn the_nvme_disk_has_the_figures_of_its_data_sheet() {
    let machine = machine("nvme-2017.toml");
    let drive = || machine.disks[0].build(1);
    let latency_us = |op| 1e6 / random_iops(&mut *drive(), op, 1, 1);
    near("a random read of 4 KiB, us", latency_us(Op::Read), 115.0, 10.0);
    near("a random write of 4 KiB, us", latency_us(Op::Write), 20.0, 10.0);
    near("random reads a second", random_iops(&mut *drive(), Op::Read, 256, 1), 645_000.0, 10.0);
    near("random writes a second", random_iops(&mut *drive(), Op::Write, 256, 3), 62_500.0, 10.0);
    let streaming_gb_s = |op| streaming_bytes_s(&mut *drive(), op, 0, 32) / 1e9;
    near("reading in sequence, GB/s", streaming_gb_s(Op::Read), 3.2, 10.0);
    near("writing in sequence, GB/s", streaming_gb_s(Op::Write), 1.8, 10.0);
}

#[test]
fn an_ssd_scales_with_its_channels_and_no_further() {
    let one = random_iops(&mut Ssd::new(flash(), 1), Op::Read, 1, 1);
    near("depth 1", one, 1e9 / (8_000.0 + MEAN_READ_NS), 3.0);
    let deep = random_iops(&mut Ssd::new(flash(), 1), Op::Read, 256, 1);
    assert!(deep > one * 14.0 && deep < one * 18.0, "{deep} from {one}");
    let again = random_iops(&mut Ssd::new(flash(), 1), Op::Read, 256, 1);
    assert_eq!(deep.to_bits(), again.to_bits(), "the same seed, the same run");
    let other = random_iops(&mut Ssd::new(flash(), 2), Op::Read, 256, 1);
    assert_ne!(deep.to_bits(), other.to_bits());
}

/// Writes per second of a single writer; the n-th write of `bytes` goes to byte `place(n)`.
fn lone_writes_s(drive: &mut dyn Drive, bytes: u64, place: impl Fn(u64) -> u64) -> f64 {
    let mut count = 0;
    closed_loop(drive, 1, Nanos::from_secs(1), |tag| {
        count += 1;
        Command::new(tag, Op::Write, Sector(place(count - 1) / 512), bytes / 512)
    })
}

/// Logs do this: they rewrite their last block until it is full.
#[test]
fn a_block_that_is_rewritten_stays_in_a_protected_buffer() {
    let drive = || machine("nvme-2017.toml").disks[0].build(1);
    let sequential = lone_writes_s(&mut *drive(), 4096, |n| n * 4096);
    let same = lone_writes_s(&mut *drive(), 4096, |_| 1 << 30);
    near("the same block, as often as the next one", same, sequential, 3.0);
    let back_and_forth = lone_writes_s(&mut *drive(), 4096, |n| n % 2 * (1 << 30) + n / 2 * 4096);
    near("two streams, as often as one", back_and_forth, sequential, 3.0);
}

#[test]
fn commands_that_do_not_fit_pages_cost_only_what_they_fill() {
    let stick = SsdSpec { channels: 1, page_bytes: 128 << 10, program_ns: 10_000_000, ..flash() };
    let bytes_s = |bytes: u64| {
        let mut drive = Ssd::new(stick.clone(), 1);
        lone_writes_s(&mut drive, bytes, |n| n * bytes) * bytes as f64
    };
    near("120 KiB on pages of 128 KiB, bytes/s", bytes_s(120 << 10), bytes_s(128 << 10), 5.0);
    near("4 KiB on them", bytes_s(4 << 10), bytes_s(128 << 10), 5.0);
}

/// By Little's law the mean latency is depth over rate. Pages go to the first free channel, so none
/// waits much longer than another.
#[test]
fn random_writes_wait_equally_long() {
    let mut drive = machine("nvme-2017.toml").disks[0].build(1);
    let mut rng = Rng::new(1);
    let (mut reports, mut begun, mut took) = (Vec::new(), vec![Nanos::ZERO; 64], Vec::new());
    let mut write = |tag| Command::new(tag, Op::Write, Sector(rng.below(1 << 26) * 8), 8);
    (0..64).for_each(|tag| drive.submit(Nanos::ZERO, write(Tag(tag))));
    while let Some(now) = drive.next_event().filter(|now| *now <= Nanos::from_secs(2)) {
        drive.advance(now, &mut reports);
        for report in reports.drain(..) {
            let Report::Done { tag, at } = report else { continue };
            let submitted = std::mem::replace(&mut begun[tag.0 as usize], now);
            if at >= Nanos::from_secs(1) {
                took.push((at.0 - submitted.0) as f64 / 1e3);
            }
            drive.submit(now, write(tag));
        }
    }
    took.sort_by(f64::total_cmp);
    let mean = took.iter().sum::<f64>() / took.len() as f64;
    near("mean, us", mean, 64.0 * 1e6 / took.len() as f64, 2.0);
    near("median, us", took[took.len() / 2], mean, 10.0);
    near("99th percentile, us", took[took.len() * 99 / 100], mean, 30.0);
}

#[test]
fn a_flush_of_a_volatile_buffer_lasts_until_it_is_programmed() {
    let spec = SsdSpec { channels: 2, program_ns: 5_000_000, flush_ns: 1_000_000, ..flash() };
    let mut drive = Ssd::new(spec, 1);
    let mut reports = Vec::new();
    let mut end = |drive: &mut Ssd, now: Nanos, command: Command| {
        drive.submit(now, command);
        let end = drive.next_event().unwrap();
        drive.advance(end, &mut reports);
        end
    };
    let written = end(&mut drive, Nanos::ZERO, Command::new(Tag(0), Op::Write, Sector(3), 2));
    assert!(written < Nanos::from_millis(1), "into the buffer");
    let flushed = end(&mut drive, written, Command::new(Tag(0), Op::Flush, Sector(0), 0));
    let took_ms = (flushed.0 - written.0) as f64 / 1e6;
    assert!(
        (3.7..6.3).contains(&took_ms),
        "the page is programmed, which takes 5 ms or a fourth more or less: {took_ms}"
    );
    let again = end(&mut drive, flushed, Command::new(Tag(0), Op::Flush, Sector(0), 0));
    assert_eq!((again.0 - flushed.0) / 1_000_000, 1, "nothing is left");
}

#[test]
fn garbage_collection_costs_sustained_writes_their_share() {
    let without = random_iops(&mut Ssd::new(flash(), 1), Op::Write, 64, 2);
    near("programming bounds writes", without, 16.0 * 1e9 / 60_000.0, 10.0);
    // A collection takes as long as programming the pages between two collections.
    let collecting = SsdSpec { collect_every_bytes: 4096 * 1000, collect_ns: 60_000_000, ..flash() };
    let with = random_iops(&mut Ssd::new(collecting, 1), Op::Write, 64, 2);
    near("channels that collect half of the time leave half", with, without / 2.0, 10.0);
}

fn small(kind: DiskKind) -> Machine {
    let model = DiskModel {
        name: "disk".into(),
        source: "a test".into(),
        count: 1,
        on_bus: false,
        max_command_bytes: 1 << 20,
        kind,
        limits: LimitSpec::default(),
    };
    Machine::free(2, Preemption::Voluntary).with_disks(vec![model])
}

#[test]
fn flushed_writes_survive_a_crash_and_reads_return_what_was_written() {
    for seed in 0..40 {
        let mut spec = rotating("sata-7200-2010.toml");
        spec.write_cache_bytes = 256 << 10;
        let kind = if seed % 4 == 0 { DiskKind::Ssd(flash()) } else { DiskKind::Rotating(spec) };
        let sim = Sim::new(small(kind), seed);
        let rt = sim.rt().clone();
        let disks = Disks::attach(&sim);
        let disk = disks.device(0);
        let mut rng = Rng::labelled(seed, "crash");
        // For each sector, the values that it may have after a crash. The last one is its current
        // value.
        let mut may: Vec<Vec<u8>> = vec![vec![0]; 400];
        let crash_at = rng.below(300);
        rt.block_on(async {
            for step in 0..crash_at {
                let start = rng.below(390);
                let sectors = 1 + rng.below((400 - start).min(24));
                let range = start as usize..(start + sectors) as usize;
                match rng.below(12) {
                    0 => {
                        flush(&*disk).await.unwrap();
                        may.iter_mut().for_each(|values| drop(values.drain(..values.len() - 1)));
                    }
                    1..4 => {
                        let bytes = read(&*disk, Sector(start), sectors as usize * 512).await.unwrap();
                        for (n, values) in may[range].iter().enumerate() {
                            assert_eq!(Some(&bytes[n * 512]), values.last(), "seed {seed}, step {step}");
                        }
                    }
                    4 => {
                        let bytes = vec![step as u8; sectors as usize * 512];
                        let segment = Segment::from(Buf::from_slice(&bytes));
                        let mut bio = Bio::new(Op::Write, Sector(start), vec![segment]);
                        bio.flags = BioFlags::FUA;
                        execute(&*disk, bio).await.1.unwrap();
                        may[range].fill(vec![step as u8]);
                    }
                    5 => {
                        let bio = Bio::range(Op::WriteZeroes, Sector(start), sectors * 512);
                        execute(&*disk, bio).await.1.unwrap();
                        may[range].iter_mut().for_each(|values| values.push(0));
                    }
                    6 => rt.sleep(Nanos::from_millis(rng.below(40))).await,
                    _ => {
                        let bytes = vec![step as u8; sectors as usize * 512];
                        write(&*disk, Sector(start), Buf::from_slice(&bytes)).await.unwrap();
                        may[range].iter_mut().for_each(|values| values.push(step as u8));
                    }
                }
            }
            disks.crash();
            let after = read(&*disk, Sector(0), 400 * 512).await.unwrap();
            for (sector, values) in may.iter().enumerate() {
                let bytes = &after[sector * 512..][..512];
                assert!(bytes.iter().all(|byte| *byte == bytes[0]), "seed {seed}: sector {sector} is torn");
                assert!(
                    values.contains(&bytes[0]),
                    "seed {seed}: sector {sector} is {}, not of {values:?}",
                    bytes[0]
                );
            }
        })
        .unwrap();
    }
}

#[test]
fn a_write_with_preflush_makes_what_ended_before_it_durable_without_a_queue_too() {
    let sim = Sim::new(small(DiskKind::Rotating(rotating("sata-7200-2010.toml"))), 1);
    let disks = Disks::attach(&sim);
    let disk = disks.device(0);
    sim.rt()
        .block_on(async {
            write(&*disk, Sector(8), Buf::from_slice(&[7; 4096])).await.unwrap();
            let mut barrier = Bio::range(Op::Write, Sector(0), 0);
            barrier.flags = BioFlags::PREFLUSH;
            execute(&*disk, barrier).await.1.unwrap();
            write(&*disk, Sector(16), Buf::from_slice(&[8; 4096])).await.unwrap();
            let mut commit = Bio::new(Op::Write, Sector(64), vec![Buf::from_slice(&[9; 512]).into()]);
            commit.flags = BioFlags::PREFLUSH | BioFlags::FUA;
            execute(&*disk, commit).await.1.unwrap();
            execute(&*disk, Bio::range(Op::WriteZeroes, Sector(0), 0)).await.1.unwrap();
            disks.crash();
            let after = read(&*disk, Sector(0), 65 * 512).await.unwrap();
            assert_eq!([after[8 * 512], after[16 * 512], after[64 * 512]], [7, 8, 9]);
        })
        .unwrap();
}

#[test]
fn a_crash_fails_what_is_under_way_and_the_disk_goes_on_after() {
    let sim = Sim::new(small(DiskKind::Rotating(rotating("sata-7200-2010.toml"))), 1);
    let rt = sim.rt().clone();
    let disks = Disks::attach(&sim);
    let disk = disks.device(0);
    rt.block_on(async {
        let reads: Vec<_> = (0..100).map(|n| read(&*disk, Sector(n * 100_000), 4096)).collect();
        rt.sleep(Nanos::from_millis(20)).await;
        disks.crash();
        let mut failed = 0;
        for read in reads {
            if let Err(error) = read.await {
                assert_eq!((error.kind, error.device.as_str()), (IoErrorKind::Os(5), "disk"));
                failed += 1;
            }
        }
        assert!(failed > 80, "{failed}");
        read(&*disk, Sector(0), 4096).await.unwrap();
    })
    .unwrap();
}

#[test]
fn bios_arrive_in_order_of_time_though_processors_run_ahead() {
    use extant_rt::{Class, Cpu};
    let ram = RamSpec { capacity_bytes: 1 << 20, latency_ns: 1_000, bytes_s: 1 << 30, queue_depth: 8 };
    let sim = Sim::new(small(DiskKind::Ram(ram)), 1);
    let rt = sim.rt().clone();
    let disk = Disks::attach(&sim).device(0);
    let ends = |after: Nanos| {
        let (rt, disk) = (rt.clone(), disk.clone());
        async move {
            rt.charge(Cpu(after));
            read(&*disk, Sector(0), 512).await.unwrap();
            rt.now()
        }
    };
    let slow = rt.spawn("slow", Class::Normal, ends(Nanos::from_millis(70)));
    let quick = rt.spawn("quick", Class::Normal, ends(Nanos::from_millis(1)));
    let took = rt.block_on(async { (slow.await.unwrap(), quick.await.unwrap()) }).unwrap();
    assert!(took.0 > Nanos::from_millis(70) && took.1 < Nanos::from_millis(2), "{took:?}");
}

#[test]
fn a_volume_of_171_gb_takes_the_memory_of_what_is_written_to_it() {
    let machine = machine("e3000-2004.toml");
    let sim = Sim::new(machine, 1);
    let rt = sim.rt().clone();
    let disks = Disks::attach(&sim);
    assert_eq!(disks.len(), 10);
    let capacity: u64 = disks.devices().iter().map(|disk| disk.limits().capacity_bytes).sum();
    assert_eq!(capacity, 355_655_680 * 512);
    let disk = disks.device(9);
    assert_eq!(disk.limits().name, "sd9");
    let last = Sector(disk.limits().capacity_bytes / 512 - 8);
    rt.block_on(async {
        write(&*disk, last, Buf::from_slice(&[5; 4096])).await.unwrap();
        assert_eq!(read(&*disk, last, 4096).await.unwrap()[..], [5; 4096]);
    })
    .unwrap();
    let contents: Contents = disk.unload();
    assert_eq!(contents.stored_bytes(), 4096);
}

#[test]
fn zeroing_a_whole_disk_takes_no_memory() {
    let mut contents = Contents::new(256 << 40);
    for volatile in [true, false] {
        contents.write((256 << 40) - 4096, &[5; 4096], volatile);
        contents.zero(0..256 << 40, volatile);
        assert!(contents.stored_bytes() <= 4096, "{} bytes", contents.stored_bytes());
        let mut last = [1; 4096];
        contents.read((256 << 40) - 4096, &mut last);
        assert_eq!(last, [0; 4096]);
    }
}

#[test]
fn mistakes_in_a_disk_are_refused_by_name_and_line() {
    let good = std::fs::read_to_string(
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../machines/sata-7200-2010.toml"),
    )
    .unwrap();
    let refused = |from: &str, to: &str| {
        assert_eq!(good.matches(from).count(), 1, "{from}");
        let line = 1 + good.lines().position(|line| line.starts_with(from)).unwrap();
        let error = Machine::parse("bad.toml", &good.replace(from, to)).unwrap_err().to_string();
        (line, error)
    };
    let (line, error) = refused("on_bus = false", "on_bus = true");
    assert_eq!(error, format!("bad.toml:{line}: disk[0].on_bus: the machine has no [bus]"));
    let (line, error) = refused("rpm = 7200", "rpm = 72");
    assert_eq!(error, format!("bad.toml:{line}: disk[0].rpm: disks turn 1,000 to 30,000 times a minute"));
    let (line, error) = refused("seek_average_ns = 8_500_000", "seek_average_ns = 18_500_000");
    assert!(error.starts_with(&format!("bad.toml:{line}: disk[0].seek_average_ns: no rising")), "{error}");
    let (line, error) = refused("kind = \"rotating\"", "kind = \"drum\"");
    assert!(error.starts_with(&format!("bad.toml:{line}: disk[0].kind: \"drum\" is not one of")), "{error}");
    for (from, key) in [("write_settle_ns = ", "write_settle_ns"), ("overhead_ns = ", "overhead_ns")] {
        let (line, error) = refused(from, &format!("{from}4_000_000_000_000 # "));
        assert_eq!(error, format!("bad.toml:{line}: disk[0].{key}: 4000000000000 ns is longer than an hour"));
    }
    let (line, error) = refused("capacity_bytes = ", "capacity_bytes = 1_000_000_000_000_000 # ");
    assert_eq!(error, format!("bad.toml:{line}: disk[0].capacity_bytes: a disk has 1 MiB to 256 TiB"));
    let (line, error) = refused("heads = 2", "haeds = 2");
    assert!(error.contains("disk[0].heads: missing"), "{line} {error}");
    let (_, error) = refused("heads = 2", "heads = 2\nwheels = 4");
    assert!(error.contains("disk[0].wheels: unknown key; known are name"), "{error}");
}

#[test]
fn memory_is_as_fast_as_its_bus() {
    let spec =
        RamSpec { capacity_bytes: 1 << 30, latency_ns: 1_000, bytes_s: 1_000_000_000, queue_depth: 32 };
    near("streaming MB/s", streaming_bytes_s(&mut Ram::new(spec), Op::Write, 0, 4) / 1e6, 1_000.0, 1.0);
}

/// Time for one read from each of ten disks, submitted together. A read takes a millisecond, and
/// the link carries at most `commands`.
fn ten_reads_at_once(commands: Option<u32>) -> Nanos {
    let spec = RamSpec { capacity_bytes: 1 << 20, latency_ns: 1_000_000, bytes_s: u64::MAX, queue_depth: 1 };
    let model = DiskModel {
        name: "ram".into(),
        source: "arithmetic".into(),
        count: 10,
        on_bus: true,
        max_command_bytes: 1 << 20,
        kind: DiskKind::Ram(spec),
        limits: LimitSpec::default(),
    };
    let mut machine = Machine::free(1, Preemption::None).with_disks(vec![model]);
    machine.bus = Some(BusSpec { bytes_s: u64::MAX, command_ns: 0, commands });
    let sim = Sim::new(machine, 1);
    let disks = Disks::attach(&sim);
    let rt = sim.rt().clone();
    let inside = rt.clone();
    rt.block_on(async move {
        let began = inside.now();
        let reads: Vec<_> = disks
            .devices()
            .into_iter()
            .map(|disk| async move { read(&*disk, Sector(0), 4096).await })
            .collect();
        let tasks: Vec<_> = reads.into_iter().map(|one| inside.spawn("read", Class::Normal, one)).collect();
        for task in tasks {
            task.await.unwrap().unwrap();
        }
        inside.now() - began
    })
    .unwrap()
}

#[test]
fn a_host_adapter_has_no_more_commands_in_flight_than_it_has_room_for() {
    let millis = |commands| ten_reads_at_once(commands).0 / 1_000_000;
    assert_eq!([None, Some(10), Some(7), Some(5), Some(1)].map(millis), [1, 1, 2, 2, 10]);
}

fn memory() -> Box<dyn Drive> {
    let spec =
        RamSpec { capacity_bytes: 1 << 30, latency_ns: 1_000, bytes_s: 100_000_000_000, queue_depth: 32 };
    Box::new(Ram::new(spec))
}

/// Commands of `bytes` done in each of the first `seconds` seconds, 32 in flight.
fn done_each_second(drive: &mut dyn Drive, from: Nanos, seconds: usize, bytes: u64) -> Vec<u64> {
    let next = |tag| Command::new(tag, Op::Read, Sector(0), bytes / 512);
    let (mut reports, mut done) = (Vec::new(), vec![0; seconds]);
    (0..32).for_each(|tag| drive.submit(from, next(Tag(tag))));
    while let Some(now) = drive.next_event() {
        drive.advance(now, &mut reports);
        for report in reports.drain(..) {
            let Report::Done { tag, at } = report else { continue };
            if let Some(count) = done.get_mut(((at.0 - from.0) / 1_000_000_000) as usize) {
                *count += 1;
                drive.submit(now, next(tag));
            }
        }
    }
    done
}

/// Amazon's formula for gp2: credits / (burst - baseline) seconds of burst, 2,000 s for a full
/// balance on 100 GiB, and 18,000 s to earn it again. Here with a hundredth of the credits.
#[test]
fn a_cloud_volume_bursts_until_its_credits_are_spent_and_earns_them_again() {
    let machine = machine("cloud-gp2-2014.toml");
    let limits = &machine.disks[0].limits;
    let mut ios = limits.ios.clone().unwrap();
    assert_eq!(ios.credits / (ios.burst_s.unwrap() - ios.earned_s), 2_000);
    ios.credits /= 100;
    let mut volume = Limited::new(memory(), &LimitSpec { ios: Some(ios), ..limits.clone() });
    let per_second = done_each_second(&mut volume, Nanos::ZERO, 25, 4096);
    let like = |second: usize, rate: u64| (rate - 2..rate + 3).contains(&per_second[second]);
    assert!(
        (1..19).all(|second| like(second, 3_000)) && (21..25).all(|second| like(second, 300)),
        "{per_second:?}"
    );
    // Half of the balance is back after 90 idle seconds, all of it after 180, and never more.
    for (idle_s, burst_s) in [(90, 10), (180, 20), (1_000, 20)] {
        let mut volume = volume_spent(limits);
        let per_second = done_each_second(&mut volume, Nanos::from_secs(30 + idle_s), 25, 4096);
        let fast = per_second.iter().filter(|count| **count > 2_900).count();
        assert!((burst_s - 1..=burst_s).contains(&fast), "after {idle_s} s: {per_second:?}");
    }
}

fn volume_spent(limits: &LimitSpec) -> Limited {
    let ios = limits.ios.clone().map(|ios| Allowance { credits: ios.credits / 100, ..ios });
    let mut volume = Limited::new(memory(), &LimitSpec { ios, ..limits.clone() });
    done_each_second(&mut volume, Nanos::ZERO, 30, 4096);
    volume
}

#[test]
fn limits_of_bytes_and_of_commands_hold_together() {
    let per_second = Allowance { earned_s: 3_000, burst_s: None, credits: 0 };
    let bytes = Allowance { earned_s: 125 << 20, burst_s: None, credits: 0 };
    let spec = LimitSpec { ios: Some(per_second), bytes: Some(bytes), io_bytes: Some(256 << 10) };
    let rate =
        |spec: &LimitSpec, size| done_each_second(&mut Limited::new(memory(), spec), Nanos::ZERO, 4, size)[2];
    let near = |got: u64, expected: u64| assert!(got.abs_diff(expected) <= 1, "{got}, not {expected}");
    near(rate(&spec, 4 << 10), 3_000);
    near(rate(&spec, 1 << 20), 125);
    let unlimited_bytes = LimitSpec { bytes: None, ..spec };
    near(rate(&unlimited_bytes, 1 << 20), 750);
    // Flushes are free, and pass what waits.
    let mut volume = Limited::new(memory(), &unlimited_bytes);
    (0..3).for_each(|tag| volume.submit(Nanos::ZERO, Command::new(Tag(tag), Op::Write, Sector(0), 8)));
    volume.submit(Nanos::ZERO, Command::new(Tag(3), Op::Flush, Sector(0), 0));
    let mut reports = Vec::new();
    volume.advance(Nanos(100_000), &mut reports);
    let done = reports.iter().filter_map(|report| match report {
        Report::Done { tag, .. } => Some(tag.0),
        Report::Durable { .. } => None,
    });
    assert_eq!(done.collect::<Vec<_>>(), [0, 3]);
    volume.lose_power(Nanos(100_000));
    assert_eq!(volume.next_event(), None);
}
