//! Experiments that are refused before anything runs.

use extant_lab::Setup;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

#[test]
fn jobs_larger_than_the_disks_are_refused_before_anything_runs() {
    let dir = tempfile::tempdir().unwrap();
    let machine = root().join("machines/sata-7200-2013.toml").canonicalize().unwrap();
    let refused = |jobs: &str| {
        std::fs::write(dir.path().join("j.fio"), jobs).unwrap();
        let text = format!(
            "name = \"n\"\nsource = \"s\"\nmachine = {machine:?}\nseeds = [1]\n[[workload]]\nname = \"w\"\njobs = \"j.fio\"\n\
             [[row]]\nname = \"r\"\nelevator = \"none\"\nrequests = 4\n"
        );
        std::fs::write(dir.path().join("experiment.toml"), text).unwrap();
        Setup::load(dir.path()).map(|_| ()).unwrap_err().to_string()
    };
    let error = refused("[a]\nrw=read\nsize=9t\n");
    assert!(
        error.contains("workload \"w\", [a]: a file of 9895604649984 bytes does not fit a disk of"),
        "{error}"
    );
    let error = refused("[a]\nrw=read\nsize=400g\nnumjobs=20\n");
    assert!(error.contains("workload \"w\": files of 8589934592000 bytes do not fit disks of"), "{error}");
}

#[test]
fn options_that_do_not_fit_are_refused_before_anything_runs() {
    let text = std::fs::read_to_string(root().join("experiments/tiobench/experiment.toml")).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let machine = root().join("machines/e3000-2004.toml").canonicalize().unwrap();
    let text = text.replace("../../machines/e3000-2004.toml", &machine.display().to_string());
    let refused = |from: &str, to: &str| {
        assert!(text.contains(from), "{from}");
        std::fs::write(dir.path().join("experiment.toml"), text.replacen(from, to, 1)).unwrap();
        Setup::load(dir.path()).map(|_| ()).unwrap_err().to_string()
    };
    let error = refused("mib_per_thread = 32", "mib_per_thread = 512");
    assert!(error.contains("512 files of 512 MiB do not fit the volume of 182095708160 bytes"), "{error}");
    assert!(refused("threads = 512", "threads = 0").contains("threads: 0 is not between 1 and 65536"));
    let error = refused("[tiobench]", "[[workload]]\nname = \"w\"\njobs = \"j\"\n[tiobench]");
    assert!(error.contains("No such file") || error.contains("leave [[workload]] out"), "{error}");
    // A constant may only be fitted to figures listed as calibrated, from the row before the
    // change.
    let error = refused("sees.write = [\"seconds\"]", "sees.write = [\"cpu_mib_s\"]");
    assert!(error.contains("does not list as calibrated"), "{error}");
    let error = refused(
        "not_derivable.\"write\" = [\"cpu_mib_s\"]\n\n[[row]]\nname = \"linux-6\"",
        "calibrated.\"write\" = [\"seconds\"]\n\n[[row]]\nname = \"linux-6\"",
    );
    assert!(error.contains("the row \"filtered\" is a prediction; only \"before\" may be fitted"), "{error}");
    let error = refused("seeds = [1, 2, 3]", "seeds = [1, 2, 1]");
    assert!(error.contains("constant page_copy_ns: seeds: each counts once"), "{error}");
    let error = refused("elevator = \"anticipatory\"", "elevator = \"lift\"");
    assert!(error.contains("row \"before\": \"lift\" is not an elevator; there are none, "), "{error}");
    let error = refused("least = 200_000", "least = 900_000");
    assert!(error.contains("constant command_ns: give either values, or least and most"), "{error}");
}
