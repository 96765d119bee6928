//! The lab as a user meets it: command lines in, reports out; with fio itself as the judge where it is installed.

use clap::Parser;
use extant_lab::cli::{self, LabCommand};
use extant_lab::experiment::Experiment;
use extant_lab::{Memory, Outcome, Policy, RunError, fio, on_files, on_machine, report};
use extant_sim::Machine;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

#[derive(Parser)]
struct Args {
    #[command(subcommand)]
    command: LabCommand,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn machine(name: &str) -> Machine {
    Machine::load(&root().join("machines").join(name)).unwrap()
}

/// Runs `lab ...` and returns what it prints.
fn lab(words: &[&str]) -> Result<String, String> {
    let args =
        Args::try_parse_from(std::iter::once(&"lab").chain(words)).map_err(|error| error.to_string())?;
    let mut out = Vec::new();
    cli::run(&args.command, &mut out).map_err(|error| error.to_string())?;
    Ok(String::from_utf8(out).unwrap())
}

fn on(name: &str, jobs: &str, elevator: &str) -> Result<Outcome, RunError> {
    let policy = Policy { elevator: elevator.into(), ..Policy::default() };
    on_machine(&fio::job_file("test.fio", jobs).unwrap(), machine(name), &policy, 1, None)
}

#[test]
fn the_command_line_of_the_thread_runs_on_a_modelled_machine() {
    let machine = root().join("machines/cfq-2013.toml");
    let words = [
        "run",
        "--machine",
        machine.to_str().unwrap(),
        "--elevator",
        "extant",
        "-filename=/tmp/test",
        "-rw=randread",
        "-size=5G",
        "-runtime=2",
        "-name=file1",
        "-bs=4k",
        "-numjobs=50",
        "-thinktime=1000000",
        "-group_reporting",
    ];
    let text = lab(&words).unwrap();
    assert!(
        text.starts_with("file1: (groupid=0, jobs=50): err= 0: rw=randread, bs=4096, ioengine=psync"),
        "{text}"
    );
    for part in
        ["  read: IOPS=", "clat (usec): min=", "clat percentiles (usec):", "99.99th=[", "Run status group 0"]
    {
        assert!(text.contains(part), "{part} is missing in:\n{text}");
    }
    assert!(!text.contains("50.00th=[    0]") && !text.contains("lat (nsec)"), "{text}");
    assert_eq!(lab(&words).unwrap(), text, "the same seed, the same text");
}

#[test]
fn what_makes_no_sense_is_refused_in_a_sentence() {
    let model = root().join("machines/cfq-2013.toml");
    let model = model.to_str().unwrap();
    let refused = |words: &[&str]| lab(words).unwrap_err();
    let error = refused(&["run", "--machine", model, "--name=a", "--rw=read"]);
    assert_eq!(error, "[a]: size= is missing, and a modelled disk has no file to take it from");
    let error = refused(&["run", "--machine", model, "--name=a", "--rw=read", "--size=2t"]);
    assert_eq!(error, "[a]: a.0.0 of 2199023255552 bytes does not fit on the disk");
    let error = refused(&["run", "--machine", model, "--name=a", "--wobble=1"]);
    assert!(error.starts_with("--wobble=1: unknown key \"wobble\"; known are bs, "), "{error}");
    let error = refused(&["run", "--elevator", "lift", "--name=a"]);
    assert!(error.contains("there are none, mq-deadline, cfq, "), "{error}");
    let error = refused(&["run", "--elevator", "cfq", "--name=a", "--rw=read"]);
    assert!(error.contains("--machine <FILE>"), "{error}");
    let error = refused(&["run", "--name=a", "--rw=read", "--prio=0", "--filename=/nonexistent/f"]);
    assert_eq!(
        error,
        "[a]: prio= has no effect on real files here; leave it out, or give a machine to run on"
    );
    let error = refused(&["run", "--name=a", "--rw=read", "--filename=/nonexistent/f", "--size=1m"]);
    assert!(error.starts_with("/nonexistent/f: No such file"), "{error}");
    let error = refused(&["run", "--machine", model, "a.toml"]);
    assert!(error.starts_with("a.toml: an experiment names its machine"), "{error}");
    let error = refused(&["run", "--name=a", "--machine", model]);
    assert_eq!(error, "--machine: --machine belongs before the first job file and fio's options");
    let error = refused(&["run", "--name=a", "--cache=1m"]);
    assert_eq!(error, "--cache=1m: --cache belongs before the first job file and fio's options");
    let dir = tempfile::tempdir().unwrap();
    let missing = format!("--filename={}", dir.path().join("f").display());
    let error = refused(&["run", "--name=a", "--rw=read", &missing]);
    assert!(error.contains("No such file") && !dir.path().join("f").exists(), "{error}");
    for job in
        [["--size=1m", "--offset=18446744073709551104"], ["--size=18446744073709551615", "--offset=512"]]
    {
        let error = refused(&["run", "--name=a", "--rw=read", &missing, job[0], job[1]]);
        assert_eq!(error, "--name=a: offset and size end beyond what a file can have (8 EiB)");
    }
    let error = refused(&["run", "--name=a", "--size=1t", "--bs=1g", "--iodepth=1000", "--ioengine=libaio"]);
    assert_eq!(error, "--name=a: bs times iodepth is more than 16 GiB of memory");
    let error = refused(&["run", "--name=a", "--rw=read", "--filename=/dev/full"]);
    assert_eq!(error, "/dev/full: it is neither a regular file nor a block device");
    assert_eq!(
        refused(&["run", "/dev/zero"]),
        "/dev/zero: is longer than 16 MiB, so not a job file; give another file"
    );
    let error = refused(&["run", "/nonexistent/a.fio"]);
    assert!(error.starts_with("/nonexistent/a.fio: No such file"), "{error}");
    let error = refused(&["run", "/nonexistent/a.toml"]);
    assert!(error.starts_with("/nonexistent/a.toml: No such file"), "{error}");
    assert!(refused(&["compare", "a.json"]).contains("2 values required"));
    let error = refused(&["compare", "/nonexistent/a.json", "b.json"]);
    assert!(error.starts_with("/nonexistent/a.json: No such file"), "{error}");
}

#[test]
fn jobs_do_what_they_say() {
    let seconds = |outcome: &Outcome, n: usize| outcome.reports[n].measured.runtime.as_secs_f64();
    // A stonewall: the second job begins when the first has ended; both are reported alone.
    let text = "[a]\nrw=write\nbs=64k\nsize=64m\ndirect=1\nfsync=16\n[b]\nstonewall\nrw=read\nbs=64k\nsize=32m\ndirect=1\n";
    let outcome = on("sata-7200-2013.toml", text, "mq-deadline").unwrap();
    let [a, b] = &outcome.reports[..] else { panic!("{} reports", outcome.reports.len()) };
    // The last write is not followed by another, which a flush would come before.
    assert_eq!((a.group, a.measured.write.bytes, a.measured.sync.count), (0, 64 << 20, 63));
    assert_eq!((b.group, b.measured.read.bytes, b.measured.read.ios), (1, 32 << 20, 512));
    // A job without writes may come first and read what the next one writes.
    let dir = tempfile::tempdir().unwrap();
    let text = format!(
        "[global]\nfilename=shared\ndirectory={}\nsize=1m\nbs=64k\n[a]\nrw=read\n[b]\nstonewall\nrw=write\n",
        dir.path().display()
    );
    let outcome = on_files(&fio::job_file("test.fio", &text).unwrap(), &Memory::default(), None).unwrap();
    assert_eq!(outcome.reports[1].measured.write.bytes, 1 << 20);
    assert!(outcome.reports.iter().all(|report| report.measured.error.is_none()));
    assert_eq!(dir.path().join("shared").metadata().unwrap().len(), 1 << 20);
    // A rate is kept, to the block.
    let outcome =
        on("sata-7200-2013.toml", "[a]\nrw=read\nbs=64k\nsize=1g\ndirect=1\nrate=1m\nruntime=4\n", "none")
            .unwrap();
    let rate = outcome.reports[0].measured.read.bytes_s(outcome.reports[0].measured.runtime);
    assert!((rate / (1 << 20) as f64 - 1.0).abs() < 0.05, "{rate}");
    // Each side of a mix has the rate, and no I/O waits for its turn beyond the runtime.
    let text = "[a]\nrw=rw\nbs=64k\nsize=1g\ndirect=1\nrate=1m\nruntime=4\n";
    let outcome = on("sata-7200-2013.toml", text, "none").unwrap();
    let measured = &outcome.reports[0].measured;
    for side in [&measured.read, &measured.write] {
        let rate = side.bytes_s(measured.runtime);
        assert!((rate / (1 << 20) as f64 - 1.0).abs() < 0.05, "{rate}");
    }
    let text = "[a]\nrw=read\nsize=1g\ndirect=1\nrate=1k\nruntime=2\n";
    let outcome = on("sata-7200-2013.toml", text, "none").unwrap();
    assert_eq!(outcome.reports[0].measured.read.ios, 1);
    assert!((2.0..2.001).contains(&seconds(&outcome, 0)), "{}", seconds(&outcome, 0));
    // A latency ends with the I/O, though its process sleeps for its rate.
    let text = "[a]\nrw=randread\nsize=1g\ndirect=1\nrate=40k\nruntime=4\nioengine=libaio\niodepth=4\n";
    let outcome = on("sata-7200-2013.toml", text, "none").unwrap();
    let longest = outcome.reports[0].measured.read.completion.max_ns;
    assert!(longest < 50_000_000, "{longest} ns");
    // The ramp does not count; the runtime comes after it.
    let text = "[a]\nrw=randread\nsize=1g\ndirect=1\nramp_time=2\nruntime=3\n";
    let outcome = on("sata-7200-2013.toml", text, "none").unwrap();
    assert!((3.0..3.1).contains(&seconds(&outcome, 0)), "{}", seconds(&outcome, 0));
    // time_based goes round and round.
    let text = "[a]\nrw=read\nbs=1m\nsize=16m\ndirect=1\ntime_based\nruntime=1\n";
    let outcome = on("sata-7200-2013.toml", text, "none").unwrap();
    assert!(outcome.reports[0].measured.read.bytes > 64 << 20 && seconds(&outcome, 0) < 1.1);
    // Depth is depth for asynchronous engines only, and it pays.
    let rate = |engine: &str| {
        let text =
            format!("[a]\nrw=randread\nsize=100g\ndirect=1\nruntime=5\niodepth=32\nioengine={engine}\n");
        let outcome = on("sata-7200-2013.toml", &text, "none").unwrap();
        let report = &outcome.reports[0];
        assert_eq!(report.measured.depths[5] > 0, engine == "libaio", "{:?}", report.measured.depths);
        report.measured.read.iops(report.measured.runtime)
    };
    assert!(rate("libaio") > rate("psync") * 2.0);
    // Thinking is between I/Os.
    let text =
        "[a]\nrw=randread\nsize=1g\ndirect=1\nthinktime=100000\nruntime=2\nnumjobs=3\ngroup_reporting\n";
    let outcome = on("sata-7200-2013.toml", text, "none").unwrap();
    let report = &outcome.reports[0];
    assert_eq!(report.processes, 3);
    assert!((50..=60).contains(&report.measured.read.ios), "{}", report.measured.read.ios);
    // A mix has its share of reads, and random offsets do not repeat before all were visited.
    let text = "[a]\nrw=randrw\nrwmixread=70\nsize=16m\ndirect=1\n";
    let outcome = on("sata-7200-2013.toml", text, "none").unwrap();
    let measured = &outcome.reports[0].measured;
    assert_eq!(measured.read.ios + measured.write.ios, 4096);
    assert!((2700..3050).contains(&measured.read.ios), "{}", measured.read.ios);
    // Read twice through the page cache, the second time it is there.
    let text = "[a]\nrw=randread\nsize=4m\nfilename=f\n[b]\nstonewall\nrw=randread\nsize=4m\nfilename=f\ninvalidate=0\n";
    let outcome = on("sata-7200-2013.toml", text, "none").unwrap();
    assert!(outcome.reports[1].measured.read.completion.max_ns < 20_000);
    // A process that finds all in memory goes on for as long as it is told.
    let text = "[global]\nbs=1m\nsize=1m\nruntime=12\n[a]\nrw=read\ntime_based\n[b]\nrw=read\ntime_based\nruntime=12\n";
    let outcome = on("sata-7200-2013.toml", text, "none").unwrap();
    assert!(seconds(&outcome, 0) < 12.1 && seconds(&outcome, 1) < 12.1);
}

#[test]
fn jobs_count_as_fio_counts() {
    let fio = |args: &[String]| std::process::Command::new("fio").args(args).output();
    if fio(&["--version".into()]).is_err() {
        return println!("skipped: there is no fio");
    }
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    let counts = |json: &str| -> Vec<Value> {
        let result: Value = serde_json::from_str(json).unwrap();
        let job = &result["jobs"][0];
        let sides = ["read", "write"].map(|side| json!([job[side]["total_ios"], job[side]["io_bytes"]]));
        // fio's total_ios has no fdatasync and sync_file_range, but their latencies are among those of fsync.
        let syncs = job["sync"]["lat_ns"]["N"].as_u64().unwrap_or(0);
        [json!(sides), json!(syncs)].into()
    };
    for job in [
        "--rw=read --bs=4k",
        "--rw=read --bs=4k --offset=1m",
        "--rw=read --bs=64k --size=1000k",
        "--rw=read --bs=4k --size=4097",
        "--rw=randread --bs=64k --size=1000k",
        "--rw=randread --bs=64k --size=1000k --norandommap=1",
        "--rw=read --bs=64k --offset=1920k --size=2m",
        "--rw=write --bs=4k --size=256k --fsync=1",
        "--rw=write --bs=4k --size=256k --fsync=7 --end_fsync=1",
        "--rw=randwrite --bs=4k --size=256k --fsync=8",
        "--rw=write --bs=4k --size=256k --fdatasync=8",
        "--rw=write --bs=4k --size=256k --fsync=8 --fdatasync=3 --sync_file_range=write,wait_after:5",
        "--rw=write --bs=4k --size=256k --sync_file_range=write:7",
        "--rw=read --bs=4k --size=4MiB",
    ] {
        let mut args: Vec<String> = job.split(' ').map(str::to_owned).collect();
        args.splice(0..0, ["--name=a".into(), format!("--filename={}", file.display())]);
        args.push("--output-format=json".into());
        let [theirs, ours] = ["fio", "extant"].map(|who| {
            std::fs::write(&file, vec![1; 2 << 20]).unwrap();
            let text = match who {
                "fio" => String::from_utf8(fio(&args).unwrap().stdout).unwrap(),
                _ => {
                    let words: Vec<&str> =
                        std::iter::once("run").chain(args.iter().map(String::as_str)).collect();
                    lab(&words).unwrap()
                }
            };
            (counts(&text[text.find('{').unwrap()..]), file.metadata().unwrap().len())
        });
        assert_eq!(ours, theirs, "{job}");
    }
    // How many were under way at a time.
    let args = format!(
        "--name=a --filename={} --rw=read --bs=4k --size=1m --ioengine=libaio --iodepth=5 --output-format=json",
        file.display()
    );
    let words: Vec<&str> = std::iter::once("run").chain(args.split(' ')).collect();
    let ours: Value = serde_json::from_str(&lab(&words).unwrap()).unwrap();
    let theirs = fio(&args.split(' ').map(str::to_owned).collect::<Vec<_>>()).unwrap().stdout;
    let theirs: Value = serde_json::from_slice(&theirs).unwrap();
    for depth in ["1", "2", "4", "8"] {
        let [theirs, ours] =
            [&theirs, &ours].map(|result| result["jobs"][0]["iodepth_level"][depth].as_f64().unwrap());
        assert!((theirs - ours).abs() < 1.0, "{depth}: {ours} is not {theirs}");
    }
}

#[test]
fn the_calibrated_disk_reads_within_5_gb_in_what_the_before_row_says() {
    let text = "[a]\nrw=randread\nbs=4k\nsize=5g\ndirect=1\nruntime=60\n";
    let outcome = on("cfq-2013.toml", text, "none").unwrap();
    let mean_ms = outcome.reports[0].measured.read.completion.mean_ns / 1e6;
    assert!((1.95..2.05).contains(&mean_ms), "{mean_ms} ms");
}

/// Every path of keys in a JSON value.
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
    assert!(!ours.is_virtual && ours.reports.iter().all(|report| report.measured.error.is_none()));
    let ours = report::json(&ours);
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
fn results_compare_with_each_other_and_with_fio_s() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let model = root().join("machines/sata-7200-2013.toml");
    for (name, depth) in [("deep", "32"), ("lone", "1")] {
        let output = format!("--output={}", path(&format!("{name}.json")));
        let depth = format!("--iodepth={depth}");
        let words = [
            "run",
            "--machine",
            model.to_str().unwrap(),
            "--name=a",
            "--rw=randread",
            "--size=100g",
            "--direct=1",
        ];
        let more = ["--ioengine=libaio", &depth, "--runtime=5", "--output-format=json", &output];
        assert_eq!(lab(&[&words[..], &more[..]].concat()).unwrap(), "");
    }
    // fio's warnings come before its result.
    let text = std::fs::read_to_string(path("lone.json")).unwrap();
    std::fs::write(path("lone.json"), format!("fio: this is a warning\n{text}")).unwrap();
    let table = lab(&["compare", &path("lone.json"), &path("deep.json")]).unwrap();
    let line = table.lines().find(|line| line.ends_with("a: iops")).unwrap();
    assert!(table.starts_with("          lone") && line.contains('+') && line.contains('%'), "{table}");
    let line = table.lines().find(|line| line.ends_with("a: clat mean us")).unwrap();
    assert!(line.contains("***"), "{table}");
}

#[test]
fn the_cfq_experiment_gives_the_published_rows_and_ours_is_better() {
    let path = root().join("experiments/cfq-idle/cfq-idle.toml");
    let experiment = Experiment::load(&path).unwrap();
    let cells = experiment.run().unwrap();
    println!("{}", experiment.table(&cells));
    // Requests a second, mean and longest latency in ms, and MB/s, of a job of a workload under a policy.
    let got = |row: &str, workload: &str, report: usize| -> [f64; 4] {
        let cells: Vec<_> =
            cells.iter().filter(|cell| cell.row == row && cell.workload == workload).collect();
        let mut mean = [0.0; 4];
        for cell in &cells {
            let measured = &cell.outcome.reports[report].measured;
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

/// Nothing is calibrated here, so that nothing follows from the published rows.
#[test]
fn on_a_disk_as_its_data_sheet_has_it_ours_is_better_too() {
    let experiment = Experiment::load(&root().join("experiments/cfq-idle/disk-of-2013.toml")).unwrap();
    let cells = experiment.run().unwrap();
    let iops = |row: &str| {
        let of_row = |cell: &&extant_lab::experiment::Cell| cell.row == row && cell.workload == "500 readers";
        let measured = &cells.iter().find(of_row).unwrap().outcome.reports[0].measured;
        assert!(row != "extant" || measured.read.completion.max_ns < 1_000_000_000, "{measured:?}");
        measured.read.iops(measured.runtime)
    };
    assert!(iops("extant") >= 450.0 && iops("extant") >= 2.0 * iops("before"));
}

#[test]
fn mistakes_in_an_experiment_are_refused_by_name_and_line() {
    let good = std::fs::read_to_string(root().join("experiments/cfq-idle/cfq-idle.toml")).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let refused = |from: &str, to: &str| {
        assert!(good.contains(from), "{from}");
        let path = dir.path().join("bad.toml");
        std::fs::write(&path, good.replacen(from, to, 1)).unwrap();
        lab(&["run", path.to_str().unwrap()]).unwrap_err()
    };
    let error = refused("seeds = [1", "sead = 2\nseeds = [1");
    assert!(
        error.contains("bad.toml: TOML parse error at line") && error.contains("unknown field `sead`"),
        "{error}"
    );
    let error = refused("requests = 128", "requests = -1");
    assert!(error.contains("TOML parse error at line"), "{error}");
    let error = refused("seeds = [1, 2, 3]", "seeds = []");
    assert!(error.ends_with("bad.toml: seeds: an experiment needs at least one"), "{error}");
    assert!(refused("", "").contains("readers.fio: No such file"));
}
