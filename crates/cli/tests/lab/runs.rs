//! Runs and comparisons, checked against fio itself where it is installed.

use crate::{lab, root};
use serde_json::{Value, json};

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
fn a_volume_for_the_jobs_is_an_option() {
    let model = root().join("machines/sata-7200-2013.toml");
    let model = model.to_str().unwrap();
    let line = ["--name=log", "--rw=write", "--bs=4k", "--size=40k", "--fdatasync=1", "--output-format=json"];
    let mean = |volume: &[&str]| {
        let words = [&["run", "--machine", model], volume, &line].concat();
        let json: Value = serde_json::from_str(&lab(&words).unwrap()).unwrap();
        json["jobs"][0]["sync"]["lat_ns"]["mean"].as_f64().unwrap()
    };
    assert!(mean(&["--volume", "ext4:64M"]) > 1.5 * mean(&[]), "a journal costs turns of the platters");
    for (volume, problem) in [
        ("xfs", "\"xfs\" is not ext2, ext3 or ext4"),
        ("ext4:1M", "are less than 16777216, 16M"),
        ("ext4:2T", "do not fit sda"),
    ] {
        let words = [&["run", "--machine", model, "--volume", volume], &line[..]].concat();
        let error = lab(&words).unwrap_err();
        assert!(error.contains(problem), "{volume}: {error}");
    }
}

#[test]
fn arguments_that_make_no_sense_are_refused_in_a_sentence() {
    let model = root().join("machines/cfq-2013.toml");
    let model = model.to_str().unwrap();
    let refused = |words: &[&str]| lab(words).unwrap_err();
    let error = refused(&["run", "--machine", model, "--name=a", "--rw=read"]);
    assert_eq!(error, "[a]: size= is missing, and a modelled disk has no file to take it from");
    let error = refused(&["run", "--machine", model, "--name=a", "--rw=read", "--size=2t"]);
    assert_eq!(error, "[a]: a.0.0 of 2199023255552 bytes does not fit on the disk");
    let error = refused(&["run", "--machine", model, "--name=a", "--wobble=1"]);
    assert!(error.starts_with("--wobble=1: unknown key \"wobble\"; known are bs, "), "{error}");
    let folder = root().join("experiments/cfq-idle");
    let folder = folder.to_str().unwrap();
    let error = refused(&["run", folder, "--workload", "500 readers", "--row", "before"]);
    assert_eq!(
        error,
        format!("{folder}: an experiment stands alone and last; put options such as --workload before it")
    );
    let error = refused(&["run", "--elevator", "lift", "--name=a"]);
    assert!(error.contains("possible values: none, mq-deadline, anticipatory, cfq, "), "{error}");
    let error = refused(&["run", "--elevator", "cfq", "--name=a", "--rw=read"]);
    assert!(error.contains("--machine <NAME|FILE>"), "{error}");
    let error = refused(&["run", "--machine", "cfq-2031", "--name=a", "--rw=read", "--size=1m"]);
    assert!(
        error.starts_with("cfq-2031: no such file, and no machine of this name; there are altix-2006, "),
        "{error}"
    );
    let error = refused(&["run", "--machine", "none/x.toml", "--name=a", "--rw=read", "--size=1m"]);
    assert!(error.starts_with("none/x.toml: No such file"), "{error}");
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
        // fio's total_ios excludes fdatasync and sync_file_range, but their latencies count among
        // those of fsync.
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
    // How many were in flight at a time.
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
fn machines_policies_and_keys_are_known_by_name() {
    let shown = lab(&["show", "nvme-2017"]).unwrap();
    assert_eq!(shown, std::fs::read_to_string(root().join("machines/nvme-2017.toml")).unwrap());
    assert!(lab(&["show", "mq-deadline"]).unwrap().contains("--elevator"));
    assert!(lab(&["show", "nothing"]).unwrap_err().contains("extant lab list shows all"));
    assert!(lab(&["list"]).unwrap().contains("nvme-2017"));
    let jobs = ["--name=a", "--rw=randread", "--size=1m", "--io_size=64k"];
    let by_name = lab(&[&["run", "--machine", "nvme-2017"], &jobs[..]].concat()).unwrap();
    let file = root().join("machines/nvme-2017.toml");
    let by_file = lab(&[&["run", "--machine", file.to_str().unwrap()], &jobs[..]].concat()).unwrap();
    assert_eq!(by_name, by_file);
    // What there is to choose from is in the help.
    let help = lab(&["run", "--help"]).unwrap();
    for named in ["mq-deadline", "linux-3.1", "dirty_expire_centisecs", "10 ms; 1 to 360000"] {
        assert!(help.contains(named), "{named}: {help}");
    }
    // What README names is there.
    let readme = std::fs::read_to_string(root().join("README.md")).unwrap();
    let words = readme.split([' ', '\n', '"']);
    let files = words.filter(|word| word.ends_with(".fio"));
    assert!(files.map(|file| assert!(root().join(file).is_file(), "{file}")).count() > 1);
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
    // fio's warnings precede its result.
    let text = std::fs::read_to_string(path("lone.json")).unwrap();
    std::fs::write(path("lone.json"), format!("fio: this is a warning\n{text}")).unwrap();
    let table = lab(&["compare", &path("lone.json"), &path("deep.json")]).unwrap();
    let line = table.lines().find(|line| line.ends_with("a: iops")).unwrap();
    assert!(table.starts_with("          lone") && line.contains('+') && line.contains('%'), "{table}");
    let line = table.lines().find(|line| line.ends_with("a: clat mean us")).unwrap();
    assert!(line.contains("***"), "{table}");
}

#[test]
fn mistakes_in_an_experiment_are_refused_by_name_and_line() {
    let good = std::fs::read_to_string(root().join("experiments/cfq-idle/experiment.toml")).unwrap();
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

#[test]
fn an_experiment_that_gives_another_table_is_told_with_the_line() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("small");
    std::fs::create_dir(&folder).unwrap();
    let machine = root().join("machines/sata-7200-2013.toml").canonicalize().unwrap();
    let experiment = format!(
        "name = \"small\"\nsource = \"none\"\nmachine = \"{}\"\nseeds = [1]\n[check]\nrows = [\"none\"]\nseconds = 1\n\
         [[workload]]\nname = \"reads\"\njobs = \"reads.fio\"\n\
         [[row]]\nname = \"none\"\nelevator = \"none\"\nrequests = 128\n\
         [[row]]\nname = \"cfq\"\nelevator = \"cfq\"\nrequests = 128\n",
        machine.display()
    );
    std::fs::write(folder.join("experiment.toml"), experiment).unwrap();
    std::fs::write(folder.join("reads.fio"), "[a]\nrw=randread\nsize=1g\ndirect=1\n").unwrap();
    let folder = folder.to_str().unwrap();
    let check = |words: &[&str]| lab(&[&["check"], words, &[folder]].concat());
    assert!(check(&[]).unwrap_err().contains("expected.txt: No such file"));
    assert_eq!(check(&["--update"]).unwrap(), format!("{folder}: written\n"));
    assert_eq!(check(&[]).unwrap(), format!("{folder}: as expected\n"));
    let file = format!("{folder}/expected.txt");
    let expected = std::fs::read_to_string(&file).unwrap();
    assert!(expected.contains("\n  none ") && !expected.contains("\n  cfq "), "{expected}");
    std::fs::write(&file, expected.replace("\n  none ", "\n  nine ")).unwrap();
    let error = check(&[]).unwrap_err();
    assert!(error.starts_with(&format!("{file}:5: expected \"  nine ")), "{error}");
}

#[test]
fn a_constant_is_fitted_to_the_figures_of_its_row_and_written_with_its_range() {
    let dir = tempfile::tempdir().unwrap();
    let machine = std::fs::read_to_string(root().join("machines/sata-7200-2013.toml")).unwrap();
    std::fs::write(dir.path().join("machine.toml"), machine).unwrap();
    std::fs::write(dir.path().join("reads.fio"), "[a]\nrw=read\nbs=1m\nsize=1g\ndirect=1\nruntime=1\n")
        .unwrap();
    // 130 MiB/s for a stream in the outer zone.
    let experiment = "name = \"small\"\nsource = \"none\"\nmachine = \"machine.toml\"\nseeds = [1]\n\
        [[workload]]\nname = \"reads\"\njobs = \"reads.fio\"\n\
        [[constant]]\nkeys = [\"outer_bytes_s\"]\nleast = 100_000_000\nmost = 250_000_000\nrow = \"before\"\n\
        seeds = [1, 2]\nsees.reads = [\"mib_s\"]\n\
        [[row]]\nname = \"before\"\nelevator = \"none\"\nrequests = 128\n\
        published.reads = { mib_s = 130.0 }\ncalibrated.reads = [\"mib_s\"]\n";
    std::fs::write(dir.path().join("experiment.toml"), experiment).unwrap();
    let folder = dir.path().to_str().unwrap();
    let impossible = experiment.replace("least = 100_000_000", "least = 50_000_000");
    std::fs::write(dir.path().join("experiment.toml"), impossible).unwrap();
    let error = lab(&["calibrate", folder]).unwrap_err();
    assert!(
        error.contains("constant outer_bytes_s: 50000000: ") && error.contains("the outer edge"),
        "{error}"
    );
    std::fs::write(dir.path().join("experiment.toml"), experiment).unwrap();
    let told = lab(&["calibrate", "--write", folder]).unwrap();
    assert!(told.starts_with("outer_bytes_s = "), "{told}");
    let machine = std::fs::read_to_string(dir.path().join("machine.toml")).unwrap();
    let line = machine.lines().find(|line| line.starts_with("outer_bytes_s")).unwrap();
    assert!(line.contains("# fitted to \"before\": reads (mib_s), seeds 1, 2: "), "{line}");
    let table = lab(&["run", folder]).unwrap();
    let reproduced = table.lines().find(|line| line.trim_start().starts_with("before")).unwrap();
    let mib_s: f64 = reproduced.split_whitespace().last().unwrap().parse().unwrap();
    assert!((120.0..140.0).contains(&mib_s), "{table}");
}

#[test]
fn jobs_write_no_file_that_another_program_has_locked() {
    let dir = tempfile::tempdir().unwrap();
    let (image, result) = (dir.path().join("image"), dir.path().join("result"));
    std::fs::write(&image, vec![7; 1 << 20]).unwrap();
    std::fs::write(&result, b"result").unwrap();
    let filename = format!("--filename={}", image.display());
    let output = format!("--output={}", result.display());
    let write = ["run", "--name=w", "--rw=write", "--bs=64k", "--size=1m", &filename, "--direct=1"];
    let longer = ["run", "--name=r", "--rw=read", "--bs=64k", "--size=2m", &filename, "--direct=1"];
    let read = ["run", "--name=r", "--rw=read", "--bs=64k", "--size=1m", &filename, "--direct=1"];
    let lock = |path: &std::path::Path| {
        let file = std::fs::File::options().read(true).write(true).open(path).unwrap();
        rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive).unwrap();
        file
    };
    let locked = lock(&image);
    for words in [write, longer] {
        let error = lab(&words).unwrap_err();
        assert!(error.contains("image: in use by") && error.contains("holds a lock"), "{error}");
    }
    assert!(std::fs::read(&image).unwrap() == vec![7; 1 << 20]);
    lab(&read).unwrap();
    drop(locked);
    let locked = lock(&result);
    let error = lab(&[&read[..], &[&output]].concat()).unwrap_err();
    assert!(error.contains("holds a lock") && std::fs::read(&result).unwrap() == b"result", "{error}");
    drop(locked);
    // Nor one that a command of ours has open.
    let disk = std::sync::Arc::new(
        extant_block::FileDevice::open(&image, extant_block::FileOptions { write: true, direct: false })
            .unwrap(),
    );
    let claim = extant_block::Device::claim(&*disk).unwrap();
    let error = lab(&write).unwrap_err();
    assert!(error.contains("in use by another writer"), "{error}");
    drop(claim);
    // Under two names it is still one file.
    let linked = dir.path().join("linked");
    std::fs::hard_link(&image, &linked).unwrap();
    let second = format!("--filename={}", linked.display());
    let words = [&write[..], &["--name=v", "--rw=write", "--bs=64k", "--size=1m", &second]].concat();
    lab(&words).unwrap();
    assert!(std::fs::read(&image).unwrap() != vec![7; 1 << 20]);
}

/// Each command of docs/questions.md starts as it stands; here with short runs.
#[test]
fn the_commands_of_the_questions_run() {
    let text = std::fs::read_to_string(root().join("docs/questions.md")).unwrap();
    let commands = text.lines().filter_map(|line| line.strip_prefix("    extant lab run "));
    let mut count = 0;
    for command in commands {
        let words = command.split(' ').map(|word| match word.split_once('=') {
            Some(("--runtime", _)) => "--runtime=100ms",
            Some(("--size", "22m")) => "--size=200k",
            _ => word,
        });
        let args: Vec<&str> = std::iter::once("run").chain(words).collect();
        let ran = lab(&args);
        let refused = ["--requests 1024", "wbt_lat_usec"].iter().any(|part| command.contains(part))
            && !command.contains("noop");
        assert_eq!(ran.is_err(), refused, "{command}: {ran:?}");
        count += 1;
    }
    assert!(count >= 25, "{count} commands");
}
