//! Jobs without direct=1: through the page cache, on a modelled disk and on host files.

use extant_history::DIRTY_CONTROLS;
use extant_history::{Choice, MakeDirtyControl};
use extant_lab::{JobsOutcome, Measured, Memory, Policy, RunError, fio, on_files, on_machine, report};
use extant_sim::{Machine, MemorySpec};
use std::path::Path;

const MIB: u64 = 1 << 20;

fn machine() -> Machine {
    Machine::load(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../machines/sata-7200-2013.toml")).unwrap()
}

fn on_a_disk_with(memory: Memory, jobs: &str) -> Result<JobsOutcome, RunError> {
    let policy = Policy { memory, ..Policy::default() };
    on_machine(&fio::job_file("test.fio", jobs).unwrap(), machine(), &policy, 1, None)
}

/// Runs jobs with 64 MiB for pages, half of which may be dirty.
fn on_a_disk(jobs: &str) -> Vec<Measured> {
    let memory =
        Memory { cache_bytes: Some(64 * MIB), dirty_limit_bytes: Some(32 * MIB), ..Memory::default() };
    let outcome = on_a_disk_with(memory, jobs).unwrap();
    outcome.results.into_iter().map(|report| report.measured).collect()
}

fn write_rate(measured: &Measured) -> f64 {
    measured.write.bytes_s(measured.runtime)
}

fn read_rate(measured: &Measured) -> f64 {
    measured.read.bytes_s(measured.runtime)
}

#[test]
fn files_that_fit_are_written_at_the_speed_of_memory_and_fsync_pays() {
    let [lazy] = &on_a_disk("[a]\nrw=write\nbs=64k\nsize=8m\n")[..] else { panic!("one job") };
    assert!(write_rate(lazy) > 1e9 && lazy.write.completion.max_ns < 1_000_000, "{} B/s", write_rate(lazy));
    let [eager] = &on_a_disk("[a]\nrw=write\nbs=64k\nsize=8m\nend_fsync=1\n")[..] else { panic!("one job") };
    let disk_s = 8.0 * MIB as f64 / 180e6;
    // As in fio, the final fsync counts towards the runtime, but is not one of the counted syncs.
    let sync_s = (eager.runtime.0 - lazy.runtime.0) as f64 / 1e9;
    assert_eq!(eager.sync.count, 0);
    assert!((disk_s..disk_s * 3.0).contains(&sync_s), "fsync of 8 MiB took {sync_s} s");
    for key in ["fsync=16", "fdatasync=16", "sync_file_range=write,wait_after:16"] {
        let [often] = &on_a_disk(&format!("[a]\nrw=write\nbs=64k\nsize=8m\n{key}\n"))[..] else {
            panic!("one job")
        };
        // A sync comes before the next write, so none follows the last one.
        assert_eq!((often.sync.count, often.write.ios), (7, 128), "{key}");
        assert!(often.sync.min_ns > 1_000_000, "{key}: 1 MiB in {} ns", often.sync.min_ns);
    }
    let [begun] = &on_a_disk("[a]\nrw=write\nbs=64k\nsize=8m\nsync_file_range=write:16\n")[..] else {
        panic!("one job")
    };
    assert!(begun.sync.max_ns < 1_000_000, "only begun, not waited for");
}

/// On Linux the caller of sync_file_range sleeps for requests. So no more of its file is queued
/// than the queue can hold, and a log next to it waits no longer than without the call.
#[test]
fn a_writer_that_begins_write_back_early_does_not_fill_the_queue_of_a_log() {
    let longest = |key: &str| {
        let text = format!(
            "[log]\nrw=write\nbs=4k\nsize=64m\nfdatasync=1\nthinktime=50000\nruntime=10\n\
             [stream]\nrw=write\nbs=1m\nsize=1g\n{key}"
        );
        let memory = Memory { cache_bytes: Some(2048 * MIB), ..Memory::default() };
        let policy = Policy { memory, ..Policy::default() };
        let jobs = fio::job_file("test.fio", &text).unwrap();
        let outcome = on_machine(&jobs, machine(), &policy, 1, None).unwrap();
        let [log, stream] = &outcome.results[..] else { panic!("two jobs") };
        (log.measured.sync.max_ns, stream.measured.sync.clone())
    };
    let (without, _) = longest("");
    let (with, syncs) = longest("sync_file_range=write:1\n");
    println!("log's longest fdatasync: {without} ns without, {with} ns with sync_file_range");
    assert!(syncs.mean_ns > 100_000.0, "the caller sleeps: {} ns", syncs.mean_ns);
    assert!(with <= without / 100 * 105, "{with} ns with, {without} ns without");
    assert!(with < 1_000_000_000, "31 requests of 512 KiB and a cache of 64 MiB at 180 MB/s: {with} ns");
}

/// The bytes of direct writers still count after the writers have ended.
#[test]
fn the_bytes_of_direct_writers_that_have_ended_are_among_those_written() {
    let jobs = "[global]\nrw=write\nruntime=2\n[direct]\ndirect=1\nbs=1m\nsize=64m\n[cached]\nbs=4k\nsize=4m\nrate=1m\n";
    let outcome = on_a_disk_with(Memory::default(), jobs).unwrap();
    assert!(outcome.results[0].measured.runtime.as_secs_f64() < 1.5, "the direct writer ends first");
    let written = outcome.written.unwrap();
    assert!((64 * MIB..=68 * MIB).contains(&written.bytes), "{written:?}");
}

/// By the time a device turns out to be slow, it holds more dirty pages than its new limit allows.
/// It writes them back while its writer goes on.
#[test]
fn the_writer_of_a_slow_stick_beside_a_fast_disk_never_waits_for_a_second() {
    let stick = |name: &str, rate: u64| {
        format!(
            "[[disk]]\nname = \"{name}\"\nsource = \"a test\"\ncount = 1\non_bus = false\nmax_command_bytes = 122880\n\
             kind = \"ssd\"\ncapacity_bytes = 16000000000\nchannels = 1\npage_bytes = 131072\n\
             read_ns = [[0, 500000], [1000000, 600000]]\nwrite_ns = [[0, 100000], [1000000, 120000]]\n\
             program_ns = {}\nflush_ns = 0\noverhead_ns = 20000\ninterface_bytes_s = 1000000000\nqueue_depth = 1\n\
             volatile_buffer = true\ncollect_every_bytes = 0\ncollect_ns = 0\n",
            131_072 * 1_000_000_000 / rate
        )
    };
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../machines/sata-7200-2013.toml");
    let text = std::fs::read_to_string(path).unwrap();
    let (head, _) = text.split_once("[[disk]]").unwrap();
    let text = head.to_owned() + &stick("fast", 400_000_000) + &stick("slow", 3_000_000);
    let jobs = "[global]\nrw=write\nbs=64k\nruntime=5\ntime_based\n[fast]\nfilename=/mnt/fast/f\nsize=9g\n\
                [slow]\nfilename=/mnt/slow/f\nsize=1g\n";
    let memory = Memory { cache_bytes: Some(512 * MIB), ..Memory::default() };
    let policy = Policy { memory, ..Policy::default() };
    let machine = Machine::parse("some.toml", &text).unwrap();
    let outcome = on_machine(&fio::job_file("test.fio", jobs).unwrap(), machine, &policy, 1, None).unwrap();
    let [fast, slow] = &outcome.results[..] else { panic!("two jobs") };
    let longest_ns = slow.measured.write.completion.max_ns;
    println!("{} and {} B/s, {longest_ns} ns", write_rate(&fast.measured), write_rate(&slow.measured));
    assert!(longest_ns < 1_000_000_000, "a write took {longest_ns} ns");
}

#[test]
fn files_that_do_not_fit_are_written_at_the_speed_of_the_disk() {
    let [direct] = &on_a_disk("[a]\nrw=write\nbs=1m\nsize=256m\ndirect=1\niodepth=8\nioengine=libaio\n")[..]
    else {
        panic!("one job")
    };
    for control in DIRTY_CONTROLS.iter().map(|policy| policy.name) {
        let memory = Memory {
            cache_bytes: Some(64 * MIB),
            dirty_limit_bytes: Some(32 * MIB),
            control: Some(control.parse().unwrap()),
            ..Memory::default()
        };
        let outcome = on_a_disk_with(memory, "[a]\nrw=write\nbs=1m\nsize=512m\nend_fsync=1\n").unwrap();
        let buffered = &outcome.results[0].measured;
        let share = write_rate(buffered) / write_rate(direct);
        println!("{control}: {share:.2} of direct I/O's rate");
        assert!((0.6..1.1).contains(&share), "{control}: {share:.2} of direct I/O's rate");
    }
}

#[test]
fn reads_are_read_ahead_and_read_once() {
    let jobs = "[global]\nrw=read\nbs=4k\nsize=32m\nfilename=f\n[direct]\ndirect=1\n[cold]\nstonewall\n\
                [warm]\nstonewall\ninvalidate=0\n[forgotten]\nstonewall\n";
    let all = on_a_disk(jobs);
    let [direct, cold, warm, forgotten] = &all[..] else { panic!("four jobs") };
    assert!(read_rate(cold) > 1.5 * read_rate(direct), "{} and {} B/s", read_rate(cold), read_rate(direct));
    assert!(warm.read.completion.max_ns < 20_000, "hits take {} ns at most", warm.read.completion.max_ns);
    assert!(warm.read.completion.min_ns > 300, "a call and a copy are not free");
    let ratio = read_rate(forgotten) / read_rate(cold);
    assert!((0.9..1.1).contains(&ratio), "invalidate=1, fio's default, makes it cold again: {ratio}");
    // Random reads get no read-ahead.
    let [random] = &on_a_disk("[a]\nrw=randread\nbs=4k\nsize=4g\nruntime=5\n")[..] else { panic!("one job") };
    let [bare] = &on_a_disk("[a]\nrw=randread\nbs=4k\nsize=4g\nruntime=5\ndirect=1\n")[..] else {
        panic!("one job")
    };
    assert!((0.9..1.1).contains(&(random.read.ios as f64 / bare.read.ios as f64)));
}

#[test]
fn the_machine_s_file_says_how_much_memory_there_is() {
    let jobs = "[a]\nrw=randread\nbs=4k\nsize=16m\nfilename=f\nnumjobs=1\n[b]\nstonewall\nrw=randread\nbs=4k\nsize=16m\nfilename=f\ninvalidate=0\n";
    let longest = |cache_bytes: u64| {
        let spec = MemorySpec { cache_bytes, dirty_limit_bytes: MIB, dirty_background_bytes: 0 };
        let mut machine = machine();
        machine.memory = Some(spec);
        let jobs = fio::job_file("test.fio", jobs).unwrap();
        let outcome = on_machine(&jobs, machine, &Policy::default(), 1, None).unwrap();
        outcome.results[1].measured.read.completion.max_ns
    };
    assert!(longest(32 * MIB) < 20_000 && longest(8 * MIB) > 1_000_000);
}

#[test]
fn direct_io_sees_what_the_cache_holds() {
    // A second job reads directly what was just written; dirty data must be written back first.
    let jobs = "[w]\nrw=write\nbs=64k\nsize=4m\nfilename=f\n[r]\nstonewall\nrw=read\nbs=64k\nsize=4m\nfilename=f\ndirect=1\n";
    let all = on_a_disk(jobs);
    assert!(all[0].write.completion.max_ns < 1_000_000);
    assert!(all[1].read.ios == 64 && all[1].error.is_none());
    let first_us = all[1].read.completion.max_ns / 1000;
    assert!(all[1].runtime.0 > 4 * MIB * 1_000_000_000 / 180_000_000, "written back first; {first_us} us");
}

#[test]
fn engines_keep_their_depth_as_linux_s_do() {
    let deep = |engine: &str| {
        let text = format!("[a]\nrw=randread\nsize=4g\nruntime=5\niodepth=16\nioengine={engine}\n");
        on_a_disk(&text).remove(0)
    };
    let [psync, libaio, ring] = ["psync", "libaio", "io_uring"].map(deep);
    assert!(ring.read.ios > 2 * psync.read.ios, "{} and {}", ring.read.ios, psync.read.ios);
    let ratio = libaio.read.ios as f64 / psync.read.ios as f64;
    assert!((0.9..1.1).contains(&ratio), "libaio waits in its submission where pages are cached: {ratio}");
    assert!(libaio.read.submission.mean_ns > 1e6);
}

#[test]
fn processor_time_and_samples_are_told() {
    let outcome = on_a_disk_with(Memory::default(), "[a]\nrw=randread\nsize=4g\nruntime=3\n").unwrap();
    let json = report::fio_json(&outcome);
    let job = &json["jobs"][0];
    let number = |value: &serde_json::Value| value.as_f64().unwrap();
    assert_eq!(number(&job["read"]["bw_samples"]), 5.0, "every half a second, the sixth too late");
    let (mean, all) = (number(&job["read"]["iops_mean"]), number(&job["read"]["iops"]));
    assert!((mean / all - 1.0).abs() < 0.1, "{mean} {all}");
    assert!(number(&job["read"]["bw_min"]) <= number(&job["read"]["bw_mean"]));
    // A read takes several milliseconds, of which a few microseconds are processor time, and two
    // context switches.
    assert!((0.01..2.0).contains(&number(&job["sys_cpu"])), "{}", job["sys_cpu"]);
    let switches = number(&job["ctx"]) / number(&job["read"]["total_ios"]);
    assert!((0.5..3.0).contains(&switches), "{switches} a read");
    let text = report::fio_text(&outcome);
    assert!(
        text.contains("  cpu          : usr=0.00%, sys=") && text.contains("   bw (  KiB/s): min="),
        "{text}"
    );
}

#[test]
fn all_of_it_is_the_same_twice() {
    let jobs = "[w]\nrw=randwrite\nbs=4k\nsize=64m\nnumjobs=4\nruntime=2\nfsync=64\n[r]\nrw=read\nsize=64m\n\
                [mix]\nrw=randrw\nsize=32m\nioengine=io_uring\niodepth=8\nfdatasync=5\nruntime=2\n";
    let once = || {
        let memory = Memory { cache_bytes: Some(8 * MIB), ..Memory::default() };
        report::fio_json(&on_a_disk_with(memory, jobs).unwrap()).to_string()
    };
    assert!(once() == once());
}

#[test]
fn real_files_are_cached_by_us_and_written_back() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("data");
    std::fs::write(&file, vec![0xaa; 8 * MIB as usize]).unwrap();
    let memory = Memory { cache_bytes: Some(4 * MIB), ..Memory::default() };
    let run = |jobs: &str| {
        let jobs = jobs.replace("FILE", file.to_str().unwrap());
        let outcome = on_files(&fio::job_file("test.fio", &jobs).unwrap(), &memory, None).unwrap();
        outcome.results.into_iter().map(|report| report.measured).collect::<Vec<_>>()
    };
    let read = &run(
        "[a]\nrw=randread\nfilename=FILE\nsize=8m\n[b]\nstonewall\nrw=read\nbs=1m\nfilename=FILE\nsize=8m\n",
    );
    assert!(read.iter().all(|measured| measured.error.is_none() && measured.read.bytes == 8 * MIB));
    assert!(read[0].used.is_none(), "nobody counts in the real world");
    let written = &run(
        "[a]\nrw=randwrite\nfilename=FILE\nsize=6m\nfsync=100\n[b]\nrw=write\nfilename=FILE\noffset=6m\nsize=2m\nioengine=io_uring\niodepth=4\n",
    );
    assert_eq!(written[0].sync.count, 15);
    assert!(written.iter().all(|measured| measured.error.is_none()));
    assert!(std::fs::read(&file).unwrap() == vec![0; 8 * MIB as usize], "all of it has come to the file");
}

#[test]
fn a_cache_that_cannot_be_is_refused() {
    let refused = |memory: Memory| on_a_disk_with(memory, "[a]\nrw=read\nsize=1m\n").unwrap_err().to_string();
    let small = Memory { cache_bytes: Some(1000), ..Memory::default() };
    assert_eq!(refused(small), "cache_bytes: 1000 is too small for a cache; give 1048576 or more");
    let unknown = "linux-9".parse::<Choice<MakeDirtyControl>>().unwrap_err();
    assert_eq!(
        unknown.to_string(),
        "\"linux-9\" is not a dirty controller; there are linux-3.1, ioless-first, ioless, ioless+background, extant"
    );
}

#[test]
fn files_of_odd_lengths_are_written_to_their_last_block() {
    let jobs = "[a]\nrw=write\nbs=2k\nsize=10k\nend_fsync=1\n[b]\nstonewall\nrw=randrw\nbs=512\noffset=1536\nsize=4608\nfsync=1\n";
    for measured in on_a_disk(jobs) {
        assert!(measured.error.is_none(), "{:?}", measured.error);
    }
    let dir = tempfile::tempdir().unwrap();
    for bytes in [512, 4_608, 10_240, 12_800] {
        let file = dir.path().join(format!("{bytes}"));
        std::fs::write(&file, vec![0xaa; bytes]).unwrap();
        let jobs = format!("[a]\nrw=randwrite\nbs=512\nend_fsync=1\nfilename={}\n", file.display());
        let outcome = on_files(&fio::job_file("test.fio", &jobs).unwrap(), &Memory::default(), None).unwrap();
        let measured = &outcome.results[0].measured;
        assert!(measured.error.is_none() && measured.write.bytes == bytes as u64, "{:?}", measured.error);
        assert!(std::fs::read(&file).unwrap() == vec![0; bytes], "{bytes} bytes, all of them written");
    }
}
