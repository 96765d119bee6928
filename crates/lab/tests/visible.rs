//! The figures that an experiment's constants may be fitted to.

use extant_lab::reproduce::{Compared, FigureRole, compare};
use extant_lab::{Setup, run_experiment};
use std::path::Path;

/// An experiment that fits constants, its row from before the change, and whether a workload may be
/// used for fitting.
type Visible = (&'static str, &'static str, fn(&str) -> bool);

/// The JBOD rows may be used with ample memory (a dirty limit of at least 2 GiB), and on two disks.
const VISIBLE: [Visible; 6] = [
    ("cfq-idle", "before", |workload| workload == "500 readers"),
    ("delalloc-latency", "released", |workload| workload == "dd"),
    ("jbod", "linux-3.1", has_plenty),
    ("jbod-16-processors", "linux-3.1", has_plenty),
    ("jbod-2-disks", "linux-3.1", |_| true),
    ("tiobench", "before", |_| true),
];

fn has_plenty(workload: &str) -> bool {
    ["2G, ", "4G, ", "20 %, "].iter().any(|memory| workload.starts_with(memory))
}

#[test]
fn constants_see_rows_before_the_change_alone() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../experiments");
    let mut seen = 0;
    for (name, row, may_see) in VISIBLE {
        let experiment = Setup::load(&root.join(name)).unwrap();
        for constant in experiment.constants {
            assert_eq!(constant.row(), row, "{name}: {:?}", constant.keys());
            for workload in constant.workloads() {
                assert!(may_see(workload), "{name}: {:?} sees {workload}", constant.keys());
                seen += 1;
            }
        }
    }
    assert!(seen > 10, "the experiments name their constants");
    // No other experiment of these threads fits constants.
    for folder in std::fs::read_dir(&root).unwrap().map(|entry| entry.unwrap().path()) {
        let name = folder.file_name().unwrap().to_string_lossy().into_owned();
        let is_known = VISIBLE.iter().any(|(known, ..)| *known == name);
        if ["cfq", "delalloc", "jbod", "tiobench"].iter().any(|thread| name.starts_with(thread)) && !is_known
        {
            assert!(Setup::load(&folder).unwrap().constants.is_empty(), "{name}");
        }
    }
}

/// Every published figure of every experiment, as "experiment, workload, row, figure"; nothing is
/// run.
fn published() -> Vec<(String, Compared)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../experiments");
    let mut folders: Vec<_> = std::fs::read_dir(&root)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.is_dir())
        .collect();
    folders.sort();
    let of = |folder: &std::path::PathBuf| {
        let name = folder.file_name().unwrap().to_string_lossy().into_owned();
        let compared = compare(&Setup::load(folder).unwrap(), &[]);
        compared
            .into_iter()
            .map(move |one| (format!("{name}, {}, {}, {}", one.workload, one.row, one.figure.key()), one))
    };
    folders.iter().flat_map(of).collect()
}

fn named(wanted: impl Fn(&Compared) -> bool) -> Vec<String> {
    published().into_iter().filter(|(_, one)| wanted(one)).map(|(name, _)| name).collect()
}

/// Figures declared not derivable before any prediction. They are not scored, whether they hit or
/// miss.
///
/// They are cyclictest's mean and maximum with the patch, fio's gain from the patch, 715 MiB/s, the
/// system time of pl-bd, and the processor time of tiobench's write.
#[test]
fn declared_figures_are_not_scored() {
    let declared = [
        "delalloc-fio, hdd-multi, reduce, mib_s",
        "delalloc-fio, hdd-single, reduce, mib_s",
        "delalloc-fio, ramdisk-multi, reduce, mib_s",
        "delalloc-fio, ramdisk-single, reduce, mib_s",
        "delalloc-latency, dd, rescheduling, latency_mean_us",
        "delalloc-latency, dd, rescheduling, latency_max_us",
        "direct-boundary, ext3, pl-bd, mib_s",
        "direct-boundary, ext3, pl-bd, system_percent",
        "direct-boundary, xfs, pl-bd, system_percent",
        "tiobench, write, before, cpu_mib_s",
        "tiobench, write, filtered, cpu_mib_s",
    ];
    assert_eq!(named(|one| one.part == FigureRole::NotDerivable), declared);
    // The kernel with placeholders may be used for fitting, so none of its figures is a prediction.
    let of_pl = named(|one| one.row == "pl" && one.part == FigureRole::Prediction);
    assert!(of_pl.is_empty(), "{of_pl:?}");
}

#[test]
fn contradicted_figures_are_named_and_not_scored() {
    let contradicted = [
        "jbod, 800M, 10 dd, ioless+background, written_mpages",
        "jbod, 800M, 100 dd, linux-3.1, written_mpages",
        "jbod, 800M, 100 dd, ioless+background, written_mpages",
        "jbod-ext4, 800M, 1 dd, linux-3.1, written_mpages",
        "jbod-ext4, 800M, 10 dd, linux-3.1, written_mpages",
        "jbod-ext4, 800M, 1 dd, ioless+background, written_mpages",
        "jbod-ext4, 800M, 10 dd, ioless+background, written_mpages",
    ];
    let mut named = named(|one| one.part == FigureRole::Contradicted);
    let mut contradicted = contradicted.map(str::to_owned);
    named.sort();
    contradicted.sort();
    assert_eq!(named, contradicted);
}

/// Published values more than 5 % apart, but within their error.
#[test]
fn a_change_within_its_published_error_is_a_control() {
    let within = named(|one| {
        let change = one.null.map_or(0.0, |null| (one.published / null - 1.0).abs());
        one.is_control() && change > 0.05
    });
    let expected = [
        "delalloc-fio, ramdisk-single, preempt, mib_s",
        "delalloc-latency, dd, rescheduling, latency_min_us",
        "jbod, 800M, 1 dd, ioless+background, written_mpages",
    ];
    assert_eq!(within, expected);
}

/// The experiment direct-boundary misses: with the patch, I/Os per second are too high by the same
/// factor as the rate, which was declared not derivable. But the size of an I/O is predicted.
#[test]
fn the_patch_of_direct_io_sends_ios_of_the_published_size() {
    let experiment =
        Setup::load(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../experiments/direct-boundary"));
    let part = experiment.unwrap().checked_part().unwrap();
    let part = part.only(&["ext3".into()], &["rc3".into(), "pl-bd".into()]).unwrap();
    let compared = compare(&part, &run_experiment(&part, None).unwrap());
    let error = |key: &str| {
        let is_it = |one: &&Compared| one.row == "pl-bd" && one.figure.key() == key;
        compared.iter().find(is_it).and_then(Compared::error).unwrap()
    };
    let size = (1.0 + error("mib_s")) / (1.0 + error("pieces_s"));
    assert!((0.95..1.05).contains(&size), "an I/O has {size} times the size published");
    assert!(error("pieces_s") > 0.2, "the miss has gone: {}", error("pieces_s"));
}
