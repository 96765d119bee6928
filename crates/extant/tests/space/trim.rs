//! Discarding free space.

use super::bed::*;
use extant::{OpenOptions, Volume};
use extant_rt::Rng;
use std::os::unix::fs::MetadataExt;

#[test]
fn free_space_of_an_image_becomes_holes() {
    if !have_tools() {
        return;
    }
    for args in ["-t ext4 -b 1024 32M", "-t ext2 -b 4096 32M", "-t ext4 -b 1024 -O bigalloc -C 8192 32M"] {
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

#[test]
fn freed_space_becomes_holes_where_that_is_asked_for() {
    if !have_tools() {
        return;
    }
    for args in ["-t ext4 -b 4096 64M", "-t ext2 -b 1024 64M"] {
        let dir = tempfile::tempdir().unwrap();
        let image = make(dir.path(), args);
        let mut left = Vec::new();
        for discard in [false, true] {
            let options = OpenOptions::new().write(true).offline(true).discard(discard);
            let volume = Volume::open(&image, &options).unwrap();
            let root = volume.root();
            for n in 0..20_u8 {
                root.write(format!("f{n}"), vec![n + 1; 1_000_000]).unwrap();
            }
            volume.sync().unwrap();
            (0..20).filter(|n| n % 4 > 0).for_each(|n| root.remove_file(format!("f{n}")).unwrap());
            root.write("last", vec![0x77; 3_000_000]).unwrap();
            volume.sync().unwrap();
            for n in (0..20_u8).step_by(4) {
                assert_eq!(root.read(format!("f{n}")).unwrap(), vec![n + 1; 1_000_000], "{args}");
                root.remove_file(format!("f{n}")).unwrap();
            }
            assert_eq!(root.read("last").unwrap(), vec![0x77; 3_000_000], "{args}");
            drop(root);
            volume.close().unwrap();
            check(&image, args);
            left.push(std::fs::metadata(&image).unwrap().blocks());
        }
        if can_punch(dir.path()) {
            assert!(left[1] + 25_000 < left[0], "{args}: {left:?} blocks of 512 bytes");
        }
    }
}

/// Whether files in this directory support hole punching.
fn can_punch(dir: &std::path::Path) -> bool {
    let file = std::fs::File::create(dir.join("probe")).unwrap();
    file.set_len(1 << 20).unwrap();
    let flags = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(&file, flags, 0, 65_536).is_ok()
}
