//! Jobs on volumes, one on each of a machine's disks, under one page cache.

use extant_cache::Event;
use extant_lab::Setup;
use extant_lab::{FileSystem, JobsOutcome, Memory, Policy, RunError, VolumeSpec, fio, on_machine};
use extant_rt::trace::Record;
use extant_rt::{Nanos, Sink};
use extant_sim::Machine;
use parking_lot::Mutex;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

/// Counts data pages whose write completed within a period.
#[derive(Debug)]
struct Data(Range<Nanos>, Mutex<u64>);

impl Sink for Data {
    fn record(&self, record: &Record) {
        if let Some(&Event::PagesWritten { pages, .. }) = record.event.of::<Event>()
            && self.0.contains(&record.at)
        {
            *self.1.lock() += pages;
        }
    }
}

fn each_disk() -> VolumeSpec {
    VolumeSpec {
        fs: FileSystem::Ext4,
        bytes: 4 << 30,
        each_disk: true,
        chunk_bytes: None,
        disk: None,
        bytes_per_inode: None,
        inode_bytes: None,
        truncates: false,
        aged: None,
        stripe_blocks: 0,
        for_jobs: false,
    }
}

/// Runs jobs on two of the write-back thread's disks.
fn run(jobs: &str, control: &str, sink: Option<Arc<dyn Sink>>) -> Result<JobsOutcome, RunError> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../machines/jbod10-2011.toml");
    let text = std::fs::read_to_string(path).unwrap().replace("count = 10", "count = 2");
    let machine = Machine::parse("some.toml", &text).unwrap();
    let memory = Memory {
        cache_bytes: Some(256 << 20),
        dirty_limit_bytes: Some(20 << 20),
        control: Some(control.parse().unwrap()),
        ..Memory::default()
    };
    let policy =
        Policy { elevator: "cfq".parse().unwrap(), memory, volume: Some(each_disk()), ..Policy::default() };
    let jobs = fio::job_file("some.fio", jobs).unwrap();
    on_machine(&jobs, machine, &policy, 1, sink)
}

/// Two dd per disk, measured after one second.
const JOBS: &str = "[global]\nrw=write\nbs=1m\nsize=500m\nramp_time=1\nruntime=6\nnumjobs=2\n\
    [disk0]\ndirectory=/mnt/sd0\n[disk1]\ndirectory=/mnt/sd1\n";

#[test]
fn the_disks_write_the_data_of_all_files_and_little_more_in_the_time_that_counts() {
    for control in ["linux-3.1", "ioless+background", "extant"] {
        let counted = Nanos::from_secs(1)..Nanos::from_secs(7);
        let data = Arc::new(Data(counted, Mutex::default()));
        let outcome = run(JOBS, control, Some(data.clone())).unwrap();
        let written = outcome.written.unwrap();
        let pages = *data.1.lock();
        println!("{control}: {written:?}, {pages} pages of data");
        assert_eq!(written.over, Nanos::from_secs(6));
        // Journal commits are included; I/O in flight at either end of the period may count in only
        // one of the two numbers.
        let (bytes, in_flight) = (pages * 4096, 32 << 20);
        assert!(written.bytes + in_flight >= bytes, "{control}: {written:?}, and {bytes} of data");
        assert!(written.bytes <= bytes + bytes / 50 + in_flight, "{control}: {written:?}, {bytes} of data");
        let one_disk = 101.5e6;
        assert!(written.bytes_s() > 1.22 * one_disk, "{control}: two disks write more than one: {written:?}");
    }
}

/// A finished writer's file stays open on a volume; the rest of its turn must not delay anyone.
#[test]
fn a_hundred_dd_on_each_disk_that_begin_at_once_and_end_at_once_wait_for_no_more_than_three_rounds() {
    let jobs =
        JOBS.replace("ramp_time=1", "ramp_time=0").replace("numjobs=2", "numjobs=100\ngroup_reporting");
    let outcome = run(&jobs, "extant", None).unwrap();
    let rate = outcome.written.unwrap().bytes_s();
    let fair_s = 200.0 * f64::from(1 << 20) / rate;
    let longest_s = outcome.results[0].measured.write.completion.max_ns as f64 / 1e9;
    println!("longest write {longest_s:.2} s, fair share {fair_s:.2} s");
    assert!(longest_s <= 3.0 * fair_s, "{longest_s} s, a fair share is {fair_s} s");
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let once = || {
        let outcome = run(JOBS, "ioless+background", None).unwrap();
        format!("{outcome:?}")
    };
    assert_eq!(once(), once());
}

#[test]
fn a_path_that_names_no_disk_of_a_volume_is_refused() {
    let error = |file: &str| {
        let jobs = format!("[a]\nrw=write\nbs=1m\nsize=10m\nfilename={file}\n");
        run(&jobs, "extant", None).unwrap_err().to_string()
    };
    assert_eq!(
        error("/mnt/sd7/a"),
        "the volume: the path /mnt/sd7/a names none of the disks that have volumes: sd0, sd1"
    );
    for disk in ["/dev/sd0", "sd0"] {
        let wanted = "is a disk that has a volume; give a file on it, such as /mnt/sd0/file";
        assert_eq!(error(disk), format!("the volume: {disk} {wanted}"));
    }
    assert_eq!(
        error("/dev/sd9"),
        "the volume: the path /dev/sd9 names none of the disks that have volumes: sd0, sd1"
    );
}

/// Returns the error of an experiment whose volume and first row have these settings.
fn refused(volume: &str, row: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let machine = root.join("machines/jbod10-2011.toml");
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("some.fio"), JOBS).unwrap();
    let text = format!(
        "name = \"n\"\nsource = \"s\"\nmachine = {machine:?}\nseeds = [1]\n[[workload]]\nname = \"w\"\n\
        jobs = \"some.fio\"\nvolume = {{ bytes = 4294967296, {volume} }}\n[[row]]\nname = \"r\"\nelevator = \"cfq\"\n\
        requests = 128\n{row}\n"
    );
    let file = dir.path().join("experiment.toml");
    std::fs::write(&file, text).unwrap();
    Setup::load(&file).map(drop).unwrap_err().to_string()
}

#[test]
fn settings_that_contradict_a_volume_on_each_disk_are_refused_by_name() {
    let each = "fs = \"ext4\", each_disk = true";
    for (volume, row, problem) in [
        (format!("{each}, chunk_bytes = 131072"), "", "each_disk: leave chunk_bytes out"),
        (format!("{each}, disk = \"sd0\""), "", "each_disk: leave disk out"),
        ("fs = \"xfs\", each_disk = true".to_owned(), "", "each_disk: give ext2, ext3 or ext4 as fs"),
        ("fs = \"none\", each_disk = true".to_owned(), "", "each_disk: give ext2, ext3 or ext4 as fs"),
        ("fs = \"ext4\", chunk_bytes = 131072, disk = \"sd0\"".to_owned(), "", "chunk_bytes: leave disk out"),
        (each.to_owned(), "direct_io = \"linux-2.6.19\"", "row \"r\": leave direct_io out"),
        (each.to_owned(), "allocator = \"linux-2.6.33\"", "row \"r\": leave allocator out"),
        ("fs = \"ext4\", on = \"each disk\"".to_owned(), "", "unknown field `on`"),
    ] {
        let error = refused(&volume, row);
        let (place, advice) = problem.split_once(": ").unwrap_or(("", problem));
        assert!(error.contains(place) && error.contains(advice), "{volume} {row}: {error}");
    }
}
