//! The figures that constants of the experiments may be fitted to.

use extant_lab::experiment::Experiment;
use std::path::Path;

/// Of each experiment that fits constants: the row before the change, and whether a workload of it may be seen.
type Visible = (&'static str, &'static str, fn(&str) -> bool);

/// The JBOD rows may be seen with plenty of memory and on two disks.
const VISIBLE: [Visible; 5] = [
    ("cfq-idle", "before", |workload| workload == "500 readers"),
    ("delalloc-latency", "released", |workload| workload == "dd"),
    ("jbod", "linux-3.1", |workload| workload.starts_with("20 %") || workload.starts_with("4G")),
    ("jbod-2-disks", "linux-3.1", |_| true),
    ("tiobench", "before", |_| true),
];

#[test]
fn constants_see_rows_before_the_change_alone() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../experiments");
    let mut seen = 0;
    for (name, row, may_see) in VISIBLE {
        let experiment = Experiment::load(&root.join(name)).unwrap();
        for constant in experiment.constants() {
            assert_eq!(constant.row(), row, "{name}: {:?}", constant.keys());
            for workload in constant.workloads() {
                assert!(may_see(workload), "{name}: {:?} sees {workload}", constant.keys());
                seen += 1;
            }
        }
    }
    assert!(seen > 10, "the experiments name their constants");
    // No other experiment of these threads fits any.
    for folder in std::fs::read_dir(&root).unwrap().map(|entry| entry.unwrap().path()) {
        let name = folder.file_name().unwrap().to_string_lossy().into_owned();
        let is_known = VISIBLE.iter().any(|(known, ..)| *known == name);
        if ["cfq", "delalloc", "jbod", "tiobench"].iter().any(|thread| name.starts_with(thread)) && !is_known
        {
            assert!(Experiment::load(&folder).unwrap().constants().is_empty(), "{name}");
        }
    }
}
