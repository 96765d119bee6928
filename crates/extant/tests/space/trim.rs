//! Free space given back to the device.

use super::bed::*;
use extant_rt::Rng;
use std::os::unix::fs::MetadataExt;

#[test]
fn free_space_of_an_image_becomes_holes() {
    if !have_tools() {
        return;
    }
    for args in ["-t ext4 -b 1024 32M", "-t ext2 -b 4096 32M"] {
        let dir = tempfile::tempdir().unwrap();
        let image = make(dir.path(), args);
        let volume = open(&image);
        let root = volume.root();
        let mut rng = Rng::labelled(1, args);
        let kept: Vec<_> =
            (0..40_u8).map(|n| (format!("f{n}"), vec![n + 1; 1 + rng.below(60_000) as usize])).collect();
        for (name, bytes) in &kept {
            root.write(name, bytes).unwrap();
            root.write(format!("gone {name}"), vec![0x5a; 300_000]).unwrap();
        }
        volume.sync().unwrap();
        kept.iter().for_each(|(name, _)| root.remove_file(format!("gone {name}")).unwrap());
        let before = std::fs::metadata(&image).unwrap().blocks();
        for range in [1 << 30..1 << 31, 0..100] {
            assert_eq!(volume.trim(range, 0).unwrap_err().errno(), 22);
        }
        let trimmed = match volume.trim(0..u64::MAX, 0) {
            Err(error) if error.errno() == 95 => return println!("skipped: no holes on this file system"),
            trimmed => trimmed.unwrap(),
        };
        let statfs = volume.statfs();
        assert_eq!(trimmed, statfs.blocks_free * u64::from(statfs.block_bytes), "all that is free");
        let after = std::fs::metadata(&image).unwrap().blocks();
        assert!(after + 20_000 < before, "{before} blocks of 512 bytes before, {after} after");
        assert!(volume.trim(0..u64::MAX, 1 << 20).unwrap() <= trimmed);
        for (name, bytes) in &kept {
            assert_eq!(root.read(name).unwrap(), *bytes);
        }
        drop(root);
        volume.close().unwrap();
        check(&image, args);
    }
}
