//! The write-back thread's experiment, shortened: what its file says, and what its table has. The whole of it takes minutes:
//! `extant lab run experiments/jbod/jbod.toml`.

use extant_lab::experiment::Experiment;
use std::path::{Path, PathBuf};

/// The experiment with one workload and a second of time, in a directory of its own.
fn shortened(keep: &str, to: &Path) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let from = root.join("experiments/jbod");
    let whole = std::fs::read_to_string(from.join("jbod.toml")).unwrap();
    let machine = root.join("machines/jbod10-2011.toml");
    let whole = whole.replace("../../machines/jbod10-2011.toml", machine.to_str().unwrap());
    let blocks = whole.split("\n[[").filter(|block| !block.starts_with("workload") || block.contains(keep));
    let text = blocks.collect::<Vec<_>>().join("\n[[");
    let lines = text.lines().filter(|line| !line.starts_with("published") || line.contains(keep));
    let file = to.join("jbod.toml");
    std::fs::write(&file, lines.collect::<Vec<_>>().join("\n")).unwrap();
    for name in ["dd-1.fio", "dd-10.fio", "dd-100.fio"] {
        let jobs = std::fs::read_to_string(from.join(name)).unwrap();
        let jobs = jobs.replace("ramp_time=15", "ramp_time=1").replace("runtime=45", "runtime=1");
        std::fs::write(to.join(name), jobs).unwrap();
    }
    file
}

#[test]
fn every_row_has_what_was_published_beside_what_is_predicted() {
    let dir = tempfile::tempdir().unwrap();
    let experiment = Experiment::load(&shortened("\"100M, 1 dd\"", dir.path())).unwrap();
    let cells = experiment.run().unwrap();
    let table = experiment.table(&cells);
    println!("{table}");
    let rows: Vec<&str> = cells.iter().map(|cell| cell.row.as_str()).collect();
    assert_eq!(rows, ["linux-3.1", "ioless", "ioless+background", "extant"]);
    for cell in &cells {
        let [report] = &cell.outcome.reports[..] else { panic!("ten jobs, one report") };
        assert_eq!((report.processes, report.measured.error.is_none()), (10, true));
        // Ten files on ten disks: far more than one disk writes, no more than the link carries.
        let mib_s = report.measured.write.bytes_s(report.measured.runtime) / f64::from(1 << 20);
        assert!((150.0..760.0).contains(&mib_s), "{}: {mib_s} MiB/s", cell.row);
    }
    let lines: Vec<&str> = table.lines().collect();
    let published =
        |line: &str| line.trim_start().strip_prefix("published").map(|rest| rest.trim().to_owned());
    let found: Vec<String> = lines.iter().filter_map(|line| published(line)).collect();
    assert_eq!(found, ["503.0", "567.0"], "the rows that were measured");
    assert_eq!(lines.iter().filter(|line| line.trim_start().starts_with("error")).count(), 2);
}

#[test]
fn all_of_its_workloads_are_read_and_what_was_never_measured_is_refused() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../experiments/jbod/jbod.toml");
    assert!(Experiment::load(&path).unwrap().source.contains("Calibrated"));
    let dir = tempfile::tempdir().unwrap();
    let file = shortened("\"100M, 1 dd\"", dir.path());
    let good = std::fs::read_to_string(&file).unwrap();
    for (bad, problem) in [("nan", "NaN was never measured"), ("-3", "-3 was never measured")] {
        std::fs::write(&file, good.replace("mib_s = 503", &format!("mib_s = {bad}"))).unwrap();
        let error = Experiment::load(&file).unwrap_err().to_string();
        assert!(
            error.contains(&format!("published.100M, 1 dd: {problem}; give a number above 0")),
            "{error}"
        );
    }
    std::fs::write(&file, good.replace("\"linux-3.1\"\nelevator", "\"linux-3.1\"\nelevatr")).unwrap();
    let error = Experiment::load(&file).unwrap_err().to_string();
    assert!(error.contains("unknown field `elevatr`") && error.contains("line"), "{error}");
}
