//! tiobench under each wait discipline, scaled down for a test.

use extant_lab::Setting;
use extant_lab::experiment::Experiment;
use extant_lab::tiobench::{Phase, PhaseOutcome};
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The experiment with so little memory that files do not stay cached.
fn small() -> Experiment {
    let settings = ["cache_bytes=33554432", "dirty_limit_bytes=8388608", "dirty_background_bytes=4194304"];
    let settings: Vec<Setting> = settings.iter().map(|setting| setting.parse().unwrap()).collect();
    let experiment = Experiment::load_with(&root().join("experiments/tiobench"), &settings).unwrap();
    experiment.checked_part().unwrap()
}

#[test]
fn filters_end_spurious_wakes_and_ours_looks_at_those_alone_that_it_wakes() {
    let experiment = small();
    let cells = experiment.run().unwrap();
    let of = |row: &str, phase: Phase| -> &PhaseOutcome {
        let is_it = |cell: &&extant_lab::experiment::Cell| cell.row == row && cell.workload == phase.name();
        cells.iter().find(is_it).and_then(|cell| cell.outcome.phase.as_ref()).unwrap()
    };
    let before = of("before", Phase::RandomRead).sleeps;
    assert!(before.spurious > 100 && before.examined == before.woken, "{before:?}");
    for phase in Phase::ALL {
        let filtered = of("filtered", phase).sleeps;
        let ours = of("extant", phase).sleeps;
        assert_eq!(ours.examined, ours.woken, "{phase:?}");
        // A writer and background write-back may want the same page's lock, and fsyncs the lock of
        // a block that holds all their files' inodes.
        let most = if matches!(phase, Phase::Write | Phase::RandomWrite) { filtered.woken / 2 } else { 0 };
        assert!(filtered.spurious <= most && ours.spurious <= most, "{phase:?}: {filtered:?}, {ours:?}");
        // All move the same bytes in about the same time, since the bus is the bottleneck.
        let (before, after) = (of("before", phase), of("filtered", phase));
        assert_eq!(before.bytes, after.bytes);
        let ratio = after.took.as_secs_f64() / before.took.as_secs_f64();
        assert!((0.7..1.4).contains(&ratio), "{phase:?}: {ratio}");
        // No processor time exceeds what the processors have, and no part exceeds the whole.
        for outcome in [before, after] {
            let spent: u64 = outcome.spent.iter().map(|spent| spent.time.0).sum();
            assert!(outcome.busy.0 <= outcome.took.0 * 6 + 1_000_000 && outcome.user < outcome.busy);
            assert!(
                spent <= outcome.busy.0 + outcome.took.0 / 10,
                "{phase:?}: {spent} of {:?}",
                outcome.busy
            );
        }
    }
    // An idle processor receives one task per sleep, or slightly more. The program sleeps little
    // otherwise, and the elevator's timers, kupdate and metadata write-back add some.
    //
    // The source counts 3,985,424 calls of schedule() by cpu_idle after the patches, and 2,860,598
    // by the next nine callers. Many of the former must have found nothing to run, which gives no
    // task to a processor.
    for phase in [Phase::Read, Phase::RandomRead] {
        let sleeps = of("filtered", phase).sleeps;
        let slept = (sleeps.page + sleeps.lock + sleeps.buffer) as f64;
        let each = sleeps.idle as f64 / slept;
        assert!((0.8..1.5).contains(&each), "{phase:?}: {each} for each of {slept} sleeps");
    }
    // The crowd: about 2,000/128 waiters per bucket of the old table, 2,000/256 in today's, one of
    // which must be woken.
    let crowd = |row| of(row, Phase::Waiters).sleeps;
    let per_wake = |row| crowd(row).examined as f64 / 1000.0;
    assert!((5.0..17.0).contains(&per_wake("before")), "{}", per_wake("before"));
    assert!((3.0..9.0).contains(&per_wake("linux-6")), "{}", per_wake("linux-6"));
    assert_eq!((crowd("extant").examined, crowd("extant").spurious), (1000, 0));
    // Repeating the run gives the same result.
    let again = experiment.only(&["random read".into()], &["before".into()]).unwrap().run().unwrap();
    assert_eq!(again[0].outcome.phase.as_ref(), Some(of("before", Phase::RandomRead)));
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
        Experiment::load(dir.path()).map(|_| ()).unwrap_err().to_string()
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
        Experiment::load(dir.path()).map(|_| ()).unwrap_err().to_string()
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
    let error = refused("least = 200_000", "least = 900_000");
    assert!(error.contains("constant command_ns: give either values, or least and most"), "{error}");
}
