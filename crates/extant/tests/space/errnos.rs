//! Errors, sizes, times and privileges of `fallocate(2)`, call by call, compared with the kernel.

use super::bed::*;
use extant::{Fallocate, FileOptions};
use rustix::fs::{FallocateFlags, fallocate};
use std::os::unix::fs::MetadataExt;

const MODES: [(Fallocate, FallocateFlags); 7] = [
    (Fallocate::Allocate { keep_size: false }, FallocateFlags::empty()),
    (Fallocate::Allocate { keep_size: true }, FallocateFlags::KEEP_SIZE),
    (Fallocate::PunchHole, FallocateFlags::PUNCH_HOLE.union(FallocateFlags::KEEP_SIZE)),
    (Fallocate::ZeroRange { keep_size: false }, FallocateFlags::ZERO_RANGE),
    (Fallocate::ZeroRange { keep_size: true }, FallocateFlags::ZERO_RANGE.union(FallocateFlags::KEEP_SIZE)),
    (Fallocate::CollapseRange, FallocateFlags::COLLAPSE_RANGE),
    (Fallocate::InsertRange, FallocateFlags::INSERT_RANGE),
];

/// Outcome of a call: its errno, the size, and the number of 512-byte blocks afterwards.
type Did = (i32, u64, u64);

fn commit(mount: &Mount) {
    rustix::fs::syncfs(std::fs::File::open(mount.at("")).unwrap()).unwrap();
}

/// Writes a new file on the kernel's mount.
///
/// The previous file may have held all blocks, and the kernel's journal thread may only free them
/// after the sync that waited for the commit has returned (`T_COMMIT_CALLBACK` in
/// fs/jbd2/commit.c).
fn fill(mount: &Mount, name: &str, contents: &[u8]) {
    const ROUNDS: u32 = 1000;
    for _ in 0..ROUNDS {
        match std::fs::write(mount.at(name), contents) {
            Err(error) if error.kind() == std::io::ErrorKind::StorageFull => commit(mount),
            other => return other.unwrap(),
        }
    }
    panic!("{name}: the space of removed files does not become free");
}

#[test]
fn calls_end_as_the_kernels_do() {
    if !have_kernel() {
        return;
    }
    const B: u64 = 4096;
    const END: u64 = ((1 << 32) - 1) * B;
    for args in ["-t ext4 -b 4096 -N 512 32M", "-t ext3 -b 4096 -N 512 32M"] {
        let ranges = [
            (0, 0),
            (0, B),
            (B, B),
            (B + 1, B),
            (B, 100),
            (100, 200),
            (B - 50, 2 * B),
            (4 * B, 4 * B),
            (5 * B, 100 * B),
            (9 * B, B),
            (9 * B + 100, B),
            (10 * B, B),
            (20 * B, 3 * B + 7),
            (END - B, B),
            (END - B, 2 * B),
            (1 << 62, 1 << 61),
            (0, 1 << 40),
            (B, END - 9 * B),
            (B, END - 8 * B),
        ];
        let calls = || {
            let all = MODES.iter().flat_map(|&(ours, kernels)| ranges.map(|range| (ours, kernels, range)));
            all.enumerate().map(|(n, call)| (format!("f{n}"), call))
        };
        let contents = vec![7; 9 * B as usize + 1000];
        let dir = tempfile::tempdir().unwrap();
        let image = make(dir.path(), args);
        let mut expected: Vec<Did> = Vec::new();
        {
            let mount = Mount::of(&image);
            for (name, (_, flags, (at, len))) in calls() {
                fill(&mount, &name, &contents);
                let file = mount.file(&name);
                file.sync_all().unwrap();
                let error =
                    fallocate(&file, flags, at, len).map_or_else(|error| error.raw_os_error(), |()| 0);
                file.sync_all().unwrap();
                let seen = file.metadata().unwrap();
                expected.push((error, seen.size(), seen.blocks()));
                drop(file);
                std::fs::remove_file(mount.at(&name)).unwrap();
                commit(&mount);
            }
        }
        let volume = open(&image);
        let root = volume.root();
        for ((name, (mode, _, range)), expected) in calls().zip(expected) {
            root.write(&name, &contents).unwrap();
            let file = root.open_with(&name, FileOptions::new().write(true)).unwrap();
            file.sync_all().unwrap();
            let error = file.fallocate(mode, range.0, range.1).map_or_else(|error| error.errno(), |()| 0);
            file.sync_all().unwrap();
            let seen = file.metadata().unwrap();
            let blocks = seen.blocks();
            // When space runs out, the kernel keeps what it allocated.
            let blocks = if error == 28 { expected.2 } else { blocks };
            let size = if error == 28 { expected.1 } else { seen.len() };
            assert_eq!((error, size, blocks), expected, "{args}: {mode:?} {range:?}");
            drop(file);
            root.remove_file(&name).unwrap();
        }
        drop(root);
        volume.close().unwrap();
        check(&image, args);
    }
}
