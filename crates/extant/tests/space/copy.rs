//! Copies of ranges within a volume.

use super::bed::*;
use extant::{Fallocate, FileOptions};

#[test]
fn ranges_are_copied_with_their_holes() {
    if !have_tools() {
        return;
    }
    for args in ["-t ext4 -b 1024 32M", "-t ext2 -b 4096 32M"] {
        let dir = tempfile::tempdir().unwrap();
        let image = make(dir.path(), args);
        let volume = open(&image);
        let root = volume.root();
        let made = |name: &str| {
            root.open_with(name, FileOptions::new().read(true).write(true).create(true)).unwrap()
        };
        let (from, to) = (made("from"), made("to"));
        let mut bytes = vec![0; 700_000];
        for at in [0, 100_000, 350_123, 690_000] {
            bytes[at..at + 10_000].fill(at as u8 | 1);
            from.write_all_at(at as u64, &bytes[at..at + 10_000]).unwrap();
        }
        let mut expected = vec![9; 500_000];
        to.write_all_at(0, &expected).unwrap();
        to.sync_all().unwrap();
        let before = to.metadata().unwrap().blocks();
        assert_eq!(from.copy_range(50_000, &to, 10_001, 1 << 40).unwrap(), 650_000);
        expected.resize(660_001, 0);
        expected[10_001..].copy_from_slice(&bytes[50_000..]);
        assert_eq!(root.read("to").unwrap(), expected, "{args}");
        to.sync_all().unwrap();
        assert!(to.metadata().unwrap().blocks() < before / 2, "holes were kept");
        assert_eq!(from.copy_range(700_000, &to, 0, 10).unwrap(), 0, "nothing behind the end");
        assert_eq!(from.copy_range(0, &from, 700_000, 10_000).unwrap(), 10_000, "within one file");
        for (error, expected) in [
            (from.copy_range(0, &from, 5_000, 10_000), 22),
            (from.copy_range(0, &root.open("to").unwrap(), 0, 10), 9),
            (from.copy_range(0, &root.open_with("to", FileOptions::new().append(true)).unwrap(), 0, 10), 9),
            (from.copy_range(0, &to, 1 << 60, 10), 27),
        ] {
            assert_eq!(error.unwrap_err().errno(), expected);
        }
        to.fallocate(Fallocate::PunchHole, 0, 1 << 20).unwrap();
        to.sync_all().unwrap();
        assert_eq!((to.metadata().unwrap().blocks(), to.len()), (0, 660_001), "{args}");
        drop((from, to, root));
        volume.close().unwrap();
        check(&image, args);
    }
}
