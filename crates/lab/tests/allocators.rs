//! Files that grow concurrently, under the historical allocators and ours.

use extant_lab::report::experiment_table;
use extant_lab::{Setup, run_experiment};
use std::path::Path;

#[test]
fn each_allocator_makes_longer_extents_than_the_one_before_and_they_read_faster() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../experiments/allocators");
    let experiment = Setup::load(&folder).unwrap();
    let cells = run_experiment(&experiment, None).unwrap();
    println!("{}", experiment_table(&experiment, &cells));
    let layout = |row: &str, workload: &str| {
        let cell = cells.iter().find(|cell| cell.row.starts_with(row) && cell.workload.starts_with(workload));
        let cell = cell.unwrap();
        assert!(
            cell.outcome.jobs().unwrap().results.iter().all(|report| report.measured.error.is_none()),
            "{row}"
        );
        cell.outcome.jobs().unwrap().layout.unwrap()
    };
    let rows = ["linux-2.4.18-ext2", "linux-2.6.11-ext3", "linux-2.6.33"];
    let [ext2, ext3, mballoc] = rows.map(|row| layout(row, "32 files"));
    for layout in [ext2, ext3, mballoc] {
        assert_eq!((layout.files, layout.bytes), (32, 64 << 20));
    }
    // ext2 makes extents of eight blocks, ext3 has windows of 8 to 256 blocks, and mballoc makes
    // one extent.
    assert!(ext2.extents >= 32 * 512 / 8 / 2, "{ext2:?}");
    assert!((33..=32 * 8).contains(&ext3.extents), "{ext3:?}");
    assert_eq!(mballoc.extents, 32);
    assert!(ext2.reread > ext3.reread && ext3.reread > mballoc.reread, "{ext2:?} {ext3:?} {mballoc:?}");
    // Ours also writes one extent per file. With a sync every 64 KiB, all except ext2 keep more
    // than that contiguous.
    assert_eq!(layout("extant", "32 files").extents, 32);
    for row in ["linux-2.6.11-ext3", "linux-2.6.33", "extant"] {
        let logs = layout(row, "8 logs");
        assert!(logs.extents <= 8 * 8 && logs.bytes == 8 << 20, "{row}: {logs:?}");
    }
}
