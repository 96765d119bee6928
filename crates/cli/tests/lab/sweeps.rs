//! `extant lab sweep`: parts, kept results, and `extant lab list`.

use crate::{lab, root};
use serde_json::Value;
use std::collections::BTreeSet;

const JOBS: [&str; 5] = ["--name=a", "--rw=randread", "--size=1g", "--direct=1", "--runtime=1"];

fn words<'a>(machine: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let sweep =
        ["sweep", "--machine", machine, "--set", "queue_depth=1,31", "--elevator", "noop,mq-deadline"];
    [&sweep[..], &["--job", "bs=4k,64k", "--seeds", "1-2"], more, &JOBS].concat()
}

#[test]
fn the_parts_of_a_sweep_are_the_whole_and_what_was_done_is_not_done_again() {
    let machine = root().join("machines/sata-7200-2013.toml");
    let machine = machine.to_str().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("results");
    let results = folder.to_str().unwrap();
    assert_eq!(lab(&words(machine, &["--count"])).unwrap(), "16\n");
    let runs = |more: &[&str]| -> Vec<Value> {
        let out = lab(&words(machine, &[&["--json"], more].concat())).unwrap();
        serde_json::from_str::<Value>(&out).unwrap()["runs"].as_array().unwrap().clone()
    };
    let digests = |runs: &[Value]| -> BTreeSet<String> {
        runs.iter().map(|run| run["digest"].as_str().unwrap().to_owned()).collect()
    };
    let first = runs(&["--results", results, "--shard", "1/3"]);
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), first.len());
    // A killed command leaves a partial file, which must not be taken for a result.
    std::fs::write(folder.join("half.1.part"), "{").unwrap();
    let (second, third) =
        (runs(&["--results", results, "--shard", "2/3"]), runs(&["--results", results, "--shard", "3/3"]));
    let parts: Vec<Value> = [first, second, third].concat();
    assert_eq!((parts.len(), digests(&parts).len()), (16, 16));
    // An existing result is used as it is.
    let one = folder.join(format!("{}.json", parts[0]["digest"].as_str().unwrap()));
    let mut kept: Value = serde_json::from_str(&std::fs::read_to_string(&one).unwrap()).unwrap();
    kept["jobs"][0]["jobname"] = "from the folder".into();
    std::fs::write(&one, kept.to_string()).unwrap();
    let whole = runs(&["--results", results]);
    assert_eq!(digests(&whole), digests(&parts));
    let named = |run: &&Value| run["result"]["jobs"][0]["jobname"] == "from the folder";
    assert_eq!(whole.iter().filter(named).count(), 1);
    let table = lab(&words(machine, &[])).unwrap();
    assert_eq!(table.lines().count(), 16, "{table}");
    assert!(table.contains("queue_depth=31 bs=64k elevator=mq-deadline seed=2 job=a: read "), "{table}");
}

#[test]
fn schedulers_get_a_job_array_with_a_part_for_each_element() {
    let machine = root().join("machines/sata-7200-2013.toml");
    let machine = machine.to_str().unwrap();
    let slurm = lab(&words(machine, &["--emit", "slurm"])).unwrap();
    assert!(
        slurm.contains("#SBATCH --array=1-16\n") && slurm.contains("--shard \"$SLURM_ARRAY_TASK_ID/16\""),
        "{slurm}"
    );
    let job = lab(&words(machine, &["--emit", "kubernetes"])).unwrap();
    assert!(
        job.contains("completionMode: Indexed") && job.contains("$((JOB_COMPLETION_INDEX + 1))/16"),
        "{job}"
    );
    for wrong in ["0/3", "4/3", "3"] {
        assert!(lab(&words(machine, &["--shard", wrong])).unwrap_err().contains("is not K/N"));
    }
}

#[test]
fn what_there_is_to_choose_from_is_listed() {
    let folder = root().join("machines");
    let shown = lab(&["list", folder.to_str().unwrap()]).unwrap();
    for wanted in [
        "nvme-2017.toml",
        "mq-deadline",
        "noop",
        "ioless+background",
        "read_ahead_kb",
        "dirty_expire_centisecs",
        "fifo_batch",
        "wbt_lat_usec",
        "page_copy_ns",
        "randrepeat",
    ] {
        assert!(shown.contains(wanted), "{wanted} in\n{shown}");
    }
    let machine = root().join("machines/sata-7200-2013.toml");
    let run = |setting: &str| {
        lab(&[&["run", "--machine", machine.to_str().unwrap(), "--set", setting], &JOBS[..]].concat())
    };
    for setting in [
        "dirty_expire_centisecs=500",
        "dirty_writeback_centisecs=100",
        "dirty_ratio=40",
        "dirty_bytes=10000000",
        "read_ahead_kb=128",
        "fifo_batch=1",
        "read_expire=50",
        "write_expire=50",
        "writes_starved=4",
        "nr_requests=64",
    ] {
        let wanted = if setting.starts_with("nr_requests") { run("nr_requests=31") } else { run(setting) };
        assert!(wanted.is_ok(), "{setting}: {wanted:?}");
    }
    let refused = run("wbt_lat_usec=2000").unwrap_err();
    assert!(refused.contains("is not modelled"), "{refused}");
    let refused = run("fifo_batsh=1").unwrap_err();
    assert!(refused.contains("extant lab list"), "{refused}");
}
