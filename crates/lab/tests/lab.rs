//! Jobs and experiments on modelled machines and on files, compared with fio where it is installed.

use extant_lab::report::experiment_table;
use extant_lab::{JobsOutcome, Memory, Policy, RunError, fio, on_files, on_machine, report};
use extant_lab::{Setup, run_experiment};
use extant_sim::Machine;
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn machine(name: &str) -> Machine {
    Machine::load(&root().join("machines").join(name)).unwrap()
}

fn on(name: &str, jobs: &str, elevator: &str) -> Result<JobsOutcome, RunError> {
    let policy = Policy { elevator: elevator.parse().unwrap(), ..Policy::default() };
    on_machine(&fio::job_file("test.fio", jobs).unwrap(), machine(name), &policy, 1, None)
}

#[test]
fn jobs_do_what_they_say() {
    let seconds = |outcome: &JobsOutcome, n: usize| outcome.results[n].measured.runtime.as_secs_f64();
    // A stonewall: the second job starts when the first has ended, and each has its own report.
    let text = "[a]\nrw=write\nbs=64k\nsize=64m\ndirect=1\nfsync=16\n[b]\nstonewall\nrw=read\nbs=64k\nsize=32m\ndirect=1\n";
    let outcome = on("sata-7200-2013.toml", text, "mq-deadline").unwrap();
    let [a, b] = &outcome.results[..] else { panic!("{} reports", outcome.results.len()) };
    // No write follows the last one, so no flush does either.
    assert_eq!((a.group, a.measured.write.bytes, a.measured.sync.count), (0, 64 << 20, 63));
    assert_eq!((b.group, b.measured.read.bytes, b.measured.read.ios), (1, 32 << 20, 512));
    // A job without writes may come first and read what a later job writes.
    let dir = tempfile::tempdir().unwrap();
    let text = format!(
        "[global]\nfilename=shared\ndirectory={}\nsize=1m\nbs=64k\n[a]\nrw=read\n[b]\nstonewall\nrw=write\n",
        dir.path().display()
    );
    let outcome = on_files(&fio::job_file("test.fio", &text).unwrap(), &Memory::default(), None).unwrap();
    assert_eq!(outcome.results[1].measured.write.bytes, 1 << 20);
    assert!(outcome.results.iter().all(|report| report.measured.error.is_none()));
    assert_eq!(dir.path().join("shared").metadata().unwrap().len(), 1 << 20);
    // A job keeps to its rate, within a block.
    let outcome =
        on("sata-7200-2013.toml", "[a]\nrw=read\nbs=64k\nsize=1g\ndirect=1\nrate=1m\nruntime=4\n", "none")
            .unwrap();
    let rate = outcome.results[0].measured.read.bytes_s(outcome.results[0].measured.runtime);
    assert!((rate / (1 << 20) as f64 - 1.0).abs() < 0.05, "{rate}");
    // The rate applies to each side of a mix, and no I/O waits for its turn past the runtime.
    let text = "[a]\nrw=rw\nbs=64k\nsize=1g\ndirect=1\nrate=1m\nruntime=4\n";
    let outcome = on("sata-7200-2013.toml", text, "none").unwrap();
    let measured = &outcome.results[0].measured;
    for side in [&measured.read, &measured.write] {
        let rate = side.bytes_s(measured.runtime);
        assert!((rate / (1 << 20) as f64 - 1.0).abs() < 0.05, "{rate}");
    }
    let text = "[a]\nrw=read\nsize=1g\ndirect=1\nrate=1k\nruntime=2\n";
    let outcome = on("sata-7200-2013.toml", text, "none").unwrap();
    assert_eq!(outcome.results[0].measured.read.ios, 1);
    assert!((2.0..2.001).contains(&seconds(&outcome, 0)), "{}", seconds(&outcome, 0));
    // A latency ends with the I/O, even if its process then sleeps to keep its rate.
    let text = "[a]\nrw=randread\nsize=1g\ndirect=1\nrate=40k\nruntime=4\nioengine=libaio\niodepth=4\n";
    let outcome = on("sata-7200-2013.toml", text, "none").unwrap();
    let longest = outcome.results[0].measured.read.completion.max_ns;
    assert!(longest < 50_000_000, "{longest} ns");
    // The ramp does not count; the runtime starts after it.
    let text = "[a]\nrw=randread\nsize=1g\ndirect=1\nramp_time=2\nruntime=3\n";
    let outcome = on("sata-7200-2013.toml", text, "none").unwrap();
    assert!((3.0..3.1).contains(&seconds(&outcome, 0)), "{}", seconds(&outcome, 0));
    // time_based starts over until the time is up.
    let text = "[a]\nrw=read\nbs=1m\nsize=16m\ndirect=1\ntime_based\nruntime=1\n";
    let outcome = on("sata-7200-2013.toml", text, "none").unwrap();
    assert!(outcome.results[0].measured.read.bytes > 64 << 20 && seconds(&outcome, 0) < 1.1);
    // Queue depth applies only to asynchronous engines, and it pays off.
    let rate = |engine: &str| {
        let text =
            format!("[a]\nrw=randread\nsize=100g\ndirect=1\nruntime=5\niodepth=32\nioengine={engine}\n");
        let outcome = on("sata-7200-2013.toml", &text, "none").unwrap();
        let report = &outcome.results[0];
        assert_eq!(report.measured.depths[5] > 0, engine == "libaio", "{:?}", report.measured.depths);
        report.measured.read.iops(report.measured.runtime)
    };
    assert!(rate("libaio") > rate("psync") * 2.0);
    // Think time falls between I/Os.
    let text =
        "[a]\nrw=randread\nsize=1g\ndirect=1\nthinktime=100000\nruntime=2\nnumjobs=3\ngroup_reporting\n";
    let outcome = on("sata-7200-2013.toml", text, "none").unwrap();
    let report = &outcome.results[0];
    assert_eq!(report.processes, 3);
    assert!((50..=60).contains(&report.measured.read.ios), "{}", report.measured.read.ios);
    // A mix has its share of reads, and random offsets do not repeat before every block was
    // visited.
    let text = "[a]\nrw=randrw\nrwmixread=70\nsize=16m\ndirect=1\n";
    let outcome = on("sata-7200-2013.toml", text, "none").unwrap();
    let measured = &outcome.results[0].measured;
    assert_eq!(measured.read.ios + measured.write.ios, 4096);
    assert!((2700..3050).contains(&measured.read.ios), "{}", measured.read.ios);
    // The second pass through the page cache finds everything cached.
    let text = "[a]\nrw=randread\nsize=4m\nfilename=f\n[b]\nstonewall\nrw=randread\nsize=4m\nfilename=f\ninvalidate=0\n";
    let outcome = on("sata-7200-2013.toml", text, "none").unwrap();
    assert!(outcome.results[1].measured.read.completion.max_ns < 20_000);
    // A process that finds everything cached still stops when its runtime is over.
    let text = "[global]\nbs=1m\nsize=1m\nruntime=12\n[a]\nrw=read\ntime_based\n[b]\nrw=read\ntime_based\nruntime=12\n";
    let outcome = on("sata-7200-2013.toml", text, "none").unwrap();
    assert!(seconds(&outcome, 0) < 12.1 && seconds(&outcome, 1) < 12.1);
}

#[test]
fn the_calibrated_disk_reads_within_5_gb_in_what_the_before_row_says() {
    let text = "[a]\nrw=randread\nbs=4k\nsize=5g\ndirect=1\nruntime=60\n";
    let outcome = on("cfq-2013.toml", text, "none").unwrap();
    let mean_ms = outcome.results[0].measured.read.completion.mean_ns / 1e6;
    assert!((1.95..2.05).contains(&mean_ms), "{mean_ms} ms");
}

/// Queue limits depend on the kind of device, and results name them.
#[test]
fn a_queue_has_as_many_requests_as_linux_gives_it() {
    let deep = "[a]\nrw=randread\nbs=4k\nsize=100g\ndirect=1\nruntime=1\nioengine=libaio\niodepth=256\n";
    let outcome = on("nvme-2017.toml", deep, "none").unwrap();
    let measured = &outcome.results[0].measured;
    let iops = measured.read.iops(measured.runtime);
    // The data sheet says 645,000.
    assert!((iops / 645_000.0 - 1.0).abs() < 0.05, "{iops} reads a second at depth 256");
    let shown = report::fio_text(&outcome);
    let limits =
        "Queue of nvme0n1: elevator none, 1023 requests in all (the default), 1023 commands in the disk";
    assert!(shown.contains(limits), "{shown}");
    let small = "[a]\nrw=randread\nbs=4k\nsize=1g\ndirect=1\nruntime=1\n";
    for (machine, elevator, requests) in [
        ("sata-7200-2013.toml", "none", 31),
        ("sata-7200-2013.toml", "mq-deadline", 62),
        ("sata-7200-2013.toml", "cfq", 128),
        ("sata-7200-2013.toml", "noop", 128),
        ("nvme-2017.toml", "mq-deadline", 256),
    ] {
        let outcome = on(machine, small, elevator).unwrap();
        assert_eq!(outcome.queues[0].requests, requests, "{elevator} on {machine}");
        assert_eq!(report::fio_json(&outcome)["extant queues"][0]["nr_requests"], requests);
    }
    let policy = |elevator: &str| Policy {
        elevator: elevator.parse().unwrap(),
        requests: Some(128),
        ..Policy::default()
    };
    let jobs = fio::job_file("test.fio", small).unwrap();
    let run = |elevator: &str| on_machine(&jobs, machine("sata-7200-2013.toml"), &policy(elevator), 1, None);
    let refused = run("none").unwrap_err().to_string();
    assert!(refused.contains("31 tags") && refused.contains("\"noop\""), "{refused}");
    assert_eq!(run("noop").unwrap().queues[0].requests, 128);
}

/// fio's latency classes add up to all of a job's I/O, and no I/O is in two of them.
#[test]
fn latency_classes_add_up() {
    for text in [
        "[a]\nrw=randrw\nbs=4k\nsize=1g\ndirect=1\nruntime=3\nioengine=libaio\niodepth=16\n",
        "[a]\nrw=randread\nbs=4k\nsize=8m\nruntime=3\n",
        "[a]\nrw=write\nbs=64k\nsize=64m\nfsync=4\n",
    ] {
        let outcome = on("sata-7200-2013.toml", text, "mq-deadline").unwrap();
        let job = &report::fio_json(&outcome)["jobs"][0];
        let shares = ["latency_ns", "latency_us", "latency_ms"]
            .iter()
            .flat_map(|unit| job[*unit].as_object().unwrap().values().map(|share| share.as_f64().unwrap()));
        let sum: f64 = shares.sum();
        assert!((sum - 100.0).abs() < 1e-3, "{sum} % of {text}");
    }
}

/// Collects every path of keys in a JSON value.
fn keys(value: &Value, at: &str, into: &mut BTreeSet<String>) {
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                let here = format!("{at}/{key}");
                keys(value, &here, into);
                into.insert(here);
            }
        }
        Value::Array(list) => list.iter().for_each(|value| keys(value, at, into)),
        _ => {}
    }
}

#[test]
fn our_json_has_the_keys_of_fio_s() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("data");
    let jobs = format!(
        "[a]\nfilename={}\nrw=randrw\nbs=4k\nsize=4m\nfsync=32\nioengine=libaio\niodepth=4\n[b]\nstonewall\n\
         filename={}\nrw=read\nbs=64k\nsize=4m\n",
        file.display(),
        file.display()
    );
    let job_file = dir.path().join("jobs.fio");
    std::fs::write(&job_file, &jobs).unwrap();
    let Ok(theirs) = Command::new("fio").arg("--output-format=json").arg(&job_file).output() else {
        println!("skipped: fio is not installed");
        return;
    };
    assert!(theirs.status.success(), "fio refuses the job: {}", String::from_utf8_lossy(&theirs.stderr));
    let theirs: Value = serde_json::from_slice(&theirs.stdout).unwrap();
    let ours = on_files(&fio::job_file("jobs.fio", &jobs).unwrap(), &Memory::default(), None).unwrap();
    assert!(!ours.is_virtual && ours.results.iter().all(|result| result.measured.error.is_none()));
    let ours = report::fio_json(&ours);
    let (mut their_keys, mut our_keys) = (BTreeSet::new(), BTreeSet::new());
    keys(&theirs["jobs"], "", &mut their_keys);
    keys(&ours["jobs"], "", &mut our_keys);
    let missing: Vec<_> = their_keys.difference(&our_keys).collect();
    assert!(missing.is_empty(), "missing: {missing:?}");
    let added: Vec<_> = our_keys.difference(&their_keys).collect();
    assert!(added.is_empty(), "added: {added:?}");
    for (their, our) in theirs["jobs"].as_array().unwrap().iter().zip(ours["jobs"].as_array().unwrap()) {
        for key in ["jobname", "groupid", "error"] {
            assert_eq!(their[key], our[key]);
        }
        let median = |job: &Value| job["read"]["clat_ns"]["percentile"]["50.000000"].as_u64().unwrap();
        let spread = [
            our["read"]["clat_ns"]["min"].as_u64().unwrap(),
            our["read"]["clat_ns"]["max"].as_u64().unwrap(),
        ];
        assert!((spread[0]..=spread[1]).contains(&median(our)), "{} in {spread:?}", median(our));
        let total = |job: &Value| {
            ["read", "write"].map(|side| job[side]["io_bytes"].as_u64().unwrap()).iter().sum::<u64>()
        };
        assert_eq!(total(their), total(our));
    }
}

#[test]
fn the_cfq_experiment_gives_the_published_rows_and_ours_is_better() {
    let path = root().join("experiments/cfq-idle");
    let experiment = Setup::load(&path).unwrap();
    let cells = run_experiment(&experiment, None).unwrap();
    println!("{}", experiment_table(&experiment, &cells));
    // Requests per second, mean and longest latency in ms, and MB/s of a workload's job under a
    // policy.
    let got = |row: &str, workload: &str, report: usize| -> [f64; 4] {
        let cells: Vec<_> =
            cells.iter().filter(|cell| cell.row == row && cell.workload == workload).collect();
        let mut mean = [0.0; 4];
        for cell in &cells {
            let measured = &cell.outcome.jobs().unwrap().results[report].measured;
            let (read, over) = (&measured.read, measured.runtime);
            let clat = &read.completion;
            let one =
                [read.iops(over), clat.mean_ns / 1e6, clat.max_ns as f64 / 1e6, read.bytes_s(over) / 1e6];
            (0..4).for_each(|n| mean[n] += one[n] / cells.len() as f64);
        }
        mean
    };
    for (row, published) in [("before", [314.0, 541.26, 6494.9]), ("limited", [437.0, 110.24, 2837.2])] {
        let modelled = got(row, "500 readers", 0);
        for (modelled, published) in modelled.iter().zip(published) {
            assert!((modelled / published - 1.0).abs() <= 0.2, "{row}: {modelled}, published {published}");
        }
    }
    let ours = got("extant", "500 readers", 0);
    assert!(ours[0] >= 450.0 && ours[1] <= 50.0 && ours[2] <= 1_000.0, "{ours:?}");
    let better = |of: &dyn Fn(&str) -> f64| of("before").max(of("mq-deadline"));
    for (workload, job, figure) in
        [("two sequential streams", 0, 3), ("all of them", 0, 0), ("all of them", 1, 3)]
    {
        let of = |row: &str| got(row, workload, job)[figure];
        assert!(of("extant") >= 0.9 * better(&of), "{workload}: {} of {}", of("extant"), better(&of));
    }
}

/// No constant is fitted here, so nothing depends on the published rows.
#[test]
fn on_a_disk_as_its_data_sheet_has_it_ours_is_better_too() {
    let experiment = Setup::load(&root().join("experiments/cfq-idle-data-sheet")).unwrap();
    let cells = run_experiment(&experiment, None).unwrap();
    let iops = |row: &str| {
        let of_row = |cell: &&extant_lab::Cell| cell.row == row && cell.workload == "500 readers";
        let measured = &cells.iter().find(of_row).unwrap().outcome.jobs().unwrap().results[0].measured;
        assert!(row != "extant" || measured.read.completion.max_ns < 1_000_000_000, "{measured:?}");
        measured.read.iops(measured.runtime)
    };
    assert!(iops("extant") >= 450.0 && iops("extant") >= 2.0 * iops("before"));
}

#[test]
fn cfq_does_not_idle_on_a_disk_without_an_arm() {
    let experiment = Setup::load(&root().join("experiments/cfq-idle-flash")).unwrap();
    for cell in run_experiment(&experiment, None).unwrap() {
        let measured = &cell.outcome.jobs().unwrap().results[0].measured;
        let iops = measured.read.iops(measured.runtime);
        assert!(
            (490.0..=500.5).contains(&iops),
            "{}: {iops} of 500 readers that think for a second",
            cell.row
        );
    }
}

/// Next to four streams, a program reads a block anywhere on the disk, then thinks for 100 ms. It
/// waits at most one and a half times as long as alone, and the streams get at least 90 % of what
/// CFQ gives them (CachyOS-Settings 50).
#[test]
fn a_light_reader_all_over_the_disk_waits_as_if_it_were_alone() {
    let reader = "[global]\nfilename=/dev/sda\ndirect=1\nruntime=30\ntime_based\n\
                  [reader]\nrw=randread\nbs=4k\nthinktime=100000\n";
    let streams = "[streams]\nrw=read\nbs=128k\nnumjobs=4\noffset_increment=100g\nsize=100g\n";
    let run = |jobs: &str, elevator: &str| {
        let results = on("sata-7200-2013.toml", jobs, elevator).unwrap().results;
        let streams: u64 = results[1..].iter().map(|job| job.measured.read.bytes).sum();
        (results[0].measured.read.completion.mean_ns / 1e6, streams)
    };
    let (alone_ms, _) = run(reader, "extant");
    let both = format!("{reader}{streams}");
    let [(cfq_ms, cfq), (ours_ms, ours)] = ["cfq", "extant"].map(|elevator| run(&both, elevator));
    println!("alone {alone_ms:.1} ms, cfq {cfq_ms:.1} ms, ours {ours_ms:.1} ms; streams {cfq}, {ours}");
    assert!(ours_ms <= 1.5 * alone_ms, "{ours_ms:.1} ms, alone {alone_ms:.1}");
    assert!(ours as f64 >= 0.9 * cfq as f64, "{ours} bytes, cfq {cfq}");
}
