//! Volumes that allocate clusters (`bigalloc`), compared with the kernel's.

use super::bed::*;
use extant::{Buf, Fallocate, File, FileOptions, XattrMode};
use extant_rt::Rng;
use rustix::fs::{FallocateFlags, fallocate};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

const VOLUMES: [(&str, u64, u64); 2] = [
    ("-t ext4 -b 1024 -O bigalloc,ea_inode -C 4096 -g 1024 -N 512 32M", 1024, 4096),
    ("-t ext4 -b 4096 -O bigalloc,ea_inode -C 65536 -N 512 64M", 4096, 65_536),
];
const FILES: u64 = 3;

fn ours_of(volume: &extant::Volume, n: u64) -> File {
    let root = volume.root();
    root.open_with(format!("f{n}"), FileOptions::new().read(true).write(true).create(true)).unwrap()
}

/// A change of one file.
#[derive(Clone, Copy, Debug)]
enum Change {
    Write { direct: bool },
    Resize,
    Space(Fallocate),
}

fn flags(mode: Fallocate) -> FallocateFlags {
    let keep = |keep_size| if keep_size { FallocateFlags::KEEP_SIZE } else { FallocateFlags::empty() };
    match mode {
        Fallocate::Allocate { keep_size } => keep(keep_size),
        Fallocate::PunchHole => FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
        Fallocate::ZeroRange { keep_size } => FallocateFlags::ZERO_RANGE | keep(keep_size),
        Fallocate::CollapseRange => FallocateFlags::COLLAPSE_RANGE,
        Fallocate::InsertRange => FallocateFlags::INSERT_RANGE,
    }
}

fn random(rng: &mut Rng, unit: u64, cluster: u64, max: u64) -> (Change, u64, u64) {
    let keep_size = rng.below(2) == 0;
    let change = match rng.below(16) {
        0..=5 => Change::Write { direct: rng.below(4) == 0 },
        6 => Change::Resize,
        7..=8 => Change::Space(Fallocate::Allocate { keep_size }),
        9..=11 => Change::Space(Fallocate::PunchHole),
        12 => Change::Space(Fallocate::ZeroRange { keep_size }),
        13 => Change::Space(Fallocate::CollapseRange),
        _ => Change::Space(Fallocate::InsertRange),
    };
    let align = |rng: &mut Rng, limit: u64| match rng.below(4) {
        0 => rng.below(limit),
        1 | 2 => rng.below(limit) / unit * unit,
        _ => rng.below(limit) / cluster * cluster,
    };
    let at = align(rng, max);
    let len = align(rng, 3 * cluster).max(1);
    match change {
        Change::Write { direct: true } => (change, at / unit * unit, len.next_multiple_of(unit)),
        // Unaligned ones would mostly be refused.
        Change::Space(Fallocate::CollapseRange | Fallocate::InsertRange) if rng.below(8) > 0 => {
            (change, at / cluster * cluster, len.next_multiple_of(cluster))
        }
        _ => (change, at, len),
    }
}

/// Errors of both, 0 for none.
fn apply(ours: &File, kernels: &std::fs::File, change: Change, at: u64, data: &[u8]) -> (i32, i32) {
    let len = data.len() as u64;
    let told =
        |result: std::io::Result<()>| result.err().map_or(0, |error| error.raw_os_error().unwrap_or(-1));
    match change {
        Change::Write { direct } => {
            let wrote = match direct {
                true => ours.write_direct(at, &mut Buf::from_slice(data)).map(drop),
                false => ours.write_all_at(at, data),
            };
            (wrote.err().map_or(0, |error| error.errno()), told(kernels.write_all_at(data, at)))
        }
        Change::Resize => {
            (ours.set_len(at).err().map_or(0, |error| error.errno()), told(kernels.set_len(at)))
        }
        Change::Space(mode) => {
            let did = fallocate(kernels, flags(mode), at, len);
            let ours = ours.fallocate(mode, at, len);
            (ours.err().map_or(0, |error| error.errno()), did.err().map_or(0, |error| error.raw_os_error()))
        }
    }
}

/// The mapped byte ranges of a file.
fn mapped(places: &[Place]) -> Vec<(u64, u64)> {
    let mut all: Vec<(u64, u64)> = Vec::new();
    for (offset, bytes, ..) in places {
        match all.last_mut() {
            Some(last) if last.1 == *offset => last.1 += bytes,
            _ => all.push((*offset, offset + bytes)),
        }
    }
    all
}

/// Asserts that both files have the same bytes, mapped blocks and space.
fn compare(ours: &File, kernels: &Path, unit: u64, cluster: u64, what: &str) {
    let theirs = std::fs::read(kernels).unwrap();
    let mut bytes = vec![0; theirs.len() + 1];
    assert_eq!(ours.read_at(0, &mut bytes).unwrap(), theirs.len(), "{what}: size");
    let differs = bytes.iter().zip(&theirs).position(|(a, b)| a != b);
    assert_eq!(differs, None, "{what}: the first byte that differs");
    let here = mapped(&super::bed::ours(&ours.extents(0..u64::MAX).unwrap()));
    let there = mapped(&super::bed::kernels(kernels, unit));
    assert_eq!(here, there, "{what}: blocks mapped by us, and by the kernel");
    let mut clusters: Vec<u64> =
        here.iter().flat_map(|&(start, end)| start / cluster..end.div_ceil(cluster)).collect();
    clusters.dedup();
    let data = clusters.len() as u64 * cluster / 512;
    let blocks = (ours.metadata().unwrap().blocks(), std::fs::metadata(kernels).unwrap().blocks());
    let nodes = (blocks.0 - data, blocks.1 - data);
    assert!(
        nodes.0.is_multiple_of(cluster / 512) && nodes.1.is_multiple_of(cluster / 512),
        "{what}: {blocks:?}"
    );
    // Both keep a node that was needed by extents since merged.
    assert!(nodes.0.abs_diff(nodes.1) <= cluster / 512, "{what}: {nodes:?} units of nodes");
}

#[test]
fn files_have_the_bytes_and_the_blocks_that_the_kernels_have() {
    if !have_kernel() {
        return;
    }
    let number = |name: &str| std::env::var(name).ok().map(|value| value.parse::<u64>().unwrap());
    let (first, rounds) = (number("EXTANT_SEED").unwrap_or(1), number("EXTANT_ROUNDS").unwrap_or(1));
    let ops = number("EXTANT_OPS").unwrap_or(150);
    for (seed, (args, unit, cluster)) in (first..first + rounds).flat_map(|seed| VOLUMES.map(|v| (seed, v))) {
        // Ours journals file data or not, at random; it must make no visible difference.
        let journals_data = (seed + u64::from(unit == 1024)).is_multiple_of(2);
        println!("{args}: EXTANT_SEED={seed}, data=journal: {journals_data}");
        let dir = tempfile::tempdir().unwrap();
        let image = make(dir.path(), args);
        let copy = dir.path().join("kernel");
        std::fs::copy(&image, &copy).unwrap();
        if journals_data {
            run("tune2fs", &["-o", "journal_data", image.to_str().unwrap()]);
        }
        let mount = Mount::of(&copy);
        let mut volume = open(&image);
        let mut rng = Rng::labelled(seed, args);
        for n in 0..ops {
            let (change, at, len) = random(&mut rng, unit, cluster, 24 * cluster);
            let file = rng.below(FILES);
            let what = format!("EXTANT_SEED={seed}, {args}: op {n}: f{file}: {change:?} {at}+{len}");
            let data: Vec<u8> = (0..len).map(|_| rng.next_u64() as u8 | 1).collect();
            let (ours, kernels) = (ours_of(&volume, file), mount.file(&format!("f{file}")));
            let size = ours.len();
            // The kernel also frees the rest of the file's last page, even if that was
            // preallocated.
            let punches_end = (at..at + len).contains(&size) || at + len == size;
            let is_skipped = match change {
                Change::Space(Fallocate::InsertRange) => size > 48 * cluster,
                Change::Space(Fallocate::PunchHole) => unit < 4096 && punches_end,
                _ => false,
            };
            if is_skipped {
                continue;
            }
            let (here, there) = apply(&ours, &kernels, change, at, &data);
            assert_eq!(here, there, "{what}: errors of ours and the kernel's");
            if n % 3 == 0 {
                ours.sync_all().unwrap();
                kernels.sync_all().unwrap();
                compare(&ours, &mount.at(&format!("f{file}")), unit, cluster, &what);
            }
            if n % 40 == 39 {
                drop(ours);
                if rng.below(2) == 0 {
                    volume.root().remove_file(format!("f{file}")).unwrap();
                    std::fs::remove_file(mount.at(&format!("f{file}"))).unwrap();
                }
                volume.close().unwrap();
                check(&image, &what);
                volume = open(&image);
            }
        }
        let kept: Vec<_> = (0..FILES)
            .map(|n| {
                let ours = ours_of(&volume, n);
                let kernels = mount.file(&format!("f{n}"));
                ours.sync_all().unwrap();
                kernels.sync_all().unwrap();
                compare(
                    &ours,
                    &mount.at(&format!("f{n}")),
                    unit,
                    cluster,
                    &format!("seed {seed}: f{n} at the end"),
                );
                std::fs::read(mount.at(&format!("f{n}"))).unwrap()
            })
            .collect();
        let statfs = volume.statfs();
        volume.close().unwrap();
        drop(mount);
        check(&image, &format!("seed {seed}: ours"));
        // The kernel reads what Extant wrote and continues from there; then the other way round.
        let mount = Mount::of(&image);
        let seen = rustix::fs::statvfs(mount.at("")).unwrap();
        assert_eq!((statfs.blocks, statfs.blocks_free), (seen.f_blocks, seen.f_bfree), "{args}");
        for (n, bytes) in kept.iter().enumerate() {
            assert!(
                std::fs::read(mount.at(&format!("f{n}"))).unwrap() == *bytes,
                "seed {seed}: f{n} by the kernel"
            );
            let file = mount.file(&format!("f{n}"));
            fallocate(&file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, unit, cluster).unwrap();
            file.write_all_at(b"again", 2 * unit).unwrap();
        }
        drop(mount);
        check(&image, &format!("seed {seed}: the kernel after us"));
        let volume = open(&copy);
        for (n, bytes) in kept.iter().enumerate() {
            let mut seen = vec![0; bytes.len()];
            let file = ours_of(&volume, n as u64);
            assert_eq!(file.read_at(0, &mut seen).unwrap(), bytes.len());
            assert!(seen == *bytes, "seed {seed}: the kernel's f{n}");
            file.fallocate(Fallocate::PunchHole, unit, cluster).unwrap();
            file.write_all_at(2 * unit, b"again").unwrap();
        }
        volume.close().unwrap();
        check(&copy, &format!("seed {seed}: we after the kernel"));
    }
}

#[test]
fn directories_attributes_and_links_take_and_give_back_clusters() {
    if !have_tools() {
        return;
    }
    for (args, _, cluster) in VOLUMES {
        let dir = tempfile::tempdir().unwrap();
        let image = make(dir.path(), args);
        let mut volume = open(&image);
        volume.root().create_dir("d").unwrap();
        volume.sync().unwrap();
        let before = volume.statfs();
        let name = |n: u32| format!("d/{n}-{}", "x".repeat(200));
        for n in 0..250 {
            match n % 5 {
                0 => volume.root().symlink("t".repeat(300), name(n)).unwrap(),
                1 => volume.root().create_dir(name(n)).unwrap(),
                2 => {
                    volume.root().write(name(n), b"").unwrap();
                    let root = volume.root();
                    root.set_xattr(name(n), "user.a", [n as u8; 400], XattrMode::Any).unwrap();
                    if n % 10 == 2 {
                        // The value gets its own inode, whose blocks also count for the file.
                        let before = root.metadata(name(n)).unwrap().blocks();
                        root.set_xattr(name(n), "user.long", vec![n as u8; 20_000], XattrMode::Any).unwrap();
                        let charged = (root.metadata(name(n)).unwrap().blocks() - before) * 512;
                        assert_eq!(charged, 20_000_u64.next_multiple_of(cluster));
                    }
                }
                _ => volume.root().write(name(n), [n as u8; 700]).unwrap(),
            }
        }
        volume.close().unwrap();
        check(&image, args);
        volume = open(&image);
        if have_kernel() {
            volume.close().unwrap();
            {
                let mount = Mount::of(&image);
                assert_eq!(std::fs::read_dir(mount.at("d")).unwrap().count(), 250);
                assert_eq!(std::fs::read(mount.at(&name(13))).unwrap(), [13; 700]);
                let mut value = vec![0; 30_000];
                let len = rustix::fs::getxattr(mount.at(&name(12)), "user.long", &mut value[..]).unwrap();
                assert!(value[..len] == [12; 20_000]);
                (250..300).for_each(|n| std::fs::write(mount.at(&name(n)), b"kernel").unwrap());
            }
            check(&image, "names by the kernel");
            volume = open(&image);
            (250..300).for_each(|n| volume.root().remove_file(name(n)).unwrap());
        }
        for n in 0..250 {
            match n % 5 {
                1 => volume.root().remove_dir(name(n)).unwrap(),
                _ => volume.root().remove_file(name(n)).unwrap(),
            }
        }
        let grown = volume.root().metadata("d").unwrap().blocks() * 512;
        volume.root().remove_dir("d").unwrap();
        volume.root().create_dir("d").unwrap();
        let made = volume.root().metadata("d").unwrap().blocks() * 512;
        assert!(grown > made, "{args}: {grown} and {made} bytes");
        volume.sync().unwrap();
        assert_eq!(volume.statfs(), before, "{args}");
        assert_eq!(volume.trim(0..u64::MAX, 0).unwrap_or(0) % made, 0);
        volume.close().unwrap();
        check(&image, args);
    }
}

#[test]
fn a_volume_is_full_when_its_last_cluster_is_taken() {
    if !have_tools() {
        return;
    }
    for (args, unit, cluster) in VOLUMES {
        let dir = tempfile::tempdir().unwrap();
        let image = make(dir.path(), args);
        let volume = open(&image);
        let before = volume.statfs();
        let file = ours_of(&volume, 0);
        // Fill every other block of a cluster, so that the tree grows too. Blocks in clusters
        // already mapped then need no new cluster.
        let (mut at, mut wrote) = (0, Vec::new());
        while wrote.len() < 40_000 {
            let left = volume.statfs().blocks_free;
            let piece = if left * unit > 64 * cluster { 16 * cluster } else { unit };
            match file.write_at(at, &vec![wrote.len() as u8 | 1; piece as usize]) {
                Ok(len) => wrote.push((at, len as u64, wrote.len() as u8 | 1)),
                Err(error) => {
                    assert_eq!(error.errno(), 28, "{args}");
                    break;
                }
            }
            at += if piece == unit { cluster } else { piece };
        }
        file.sync_all().unwrap();
        let left = volume.statfs().blocks_free * unit / cluster;
        // The superuser's reserve is used last; reservations for tree nodes are released.
        assert!(left < 3 || volume.statfs().blocks_available == 0, "{args}: {left} clusters are left");
        let last = wrote.last().unwrap().0;
        file.write_all_at(last + unit, &vec![0xee; unit as usize]).unwrap();
        file.sync_all().unwrap();
        for &(at, len, byte) in &wrote {
            let mut seen = vec![0; len as usize];
            file.read_at(at, &mut seen).unwrap();
            assert!(seen.iter().all(|&seen| seen == byte), "{args}: {at}+{len}");
        }
        drop(file);
        volume.close().unwrap();
        check(&image, args);
        let volume = open(&image);
        volume.root().remove_file("f0").unwrap();
        volume.sync().unwrap();
        assert_eq!(volume.statfs(), before, "{args}: all of it is free again");
        volume.close().unwrap();
        check(&image, args);
    }
}

#[test]
fn writers_side_by_side_share_the_clusters_that_they_meet_in() {
    if !have_tools() {
        return;
    }
    const WRITERS: u64 = 4;
    for (args, unit, cluster) in VOLUMES {
        let dir = tempfile::tempdir().unwrap();
        let image = make(dir.path(), args);
        let volume = open(&image);
        let blocks = 12 * cluster / unit;
        std::thread::scope(|scope| {
            for writer in 0..WRITERS {
                let file = ours_of(&volume, 0);
                scope.spawn(move || {
                    for block in (writer..blocks).step_by(WRITERS as usize) {
                        let mut data = Buf::from_slice(&vec![block as u8 | 1; unit as usize]);
                        match writer % 2 {
                            0 => assert_eq!(file.write_direct(block * unit, &mut data).unwrap() as u64, unit),
                            _ => file.write_all_at(block * unit, &data).unwrap(),
                        }
                        if block % 7 == 0 {
                            file.write_back().unwrap();
                        }
                    }
                });
            }
        });
        let file = ours_of(&volume, 0);
        file.sync_all().unwrap();
        let mut seen = vec![0; (blocks * unit) as usize];
        file.read_exact_at(0, &mut seen).unwrap();
        let differs = (0..blocks).find(|n| {
            let at = (n * unit) as usize;
            seen[at..at + unit as usize].iter().any(|&byte| byte != *n as u8 | 1)
        });
        assert_eq!(differs, None, "{args}: a block that another's bytes are in");
        let nodes = file.metadata().unwrap().blocks() * 512 - 12 * cluster;
        assert!(nodes <= cluster, "{args}: {nodes} bytes beside the data");
        drop(file);
        volume.close().unwrap();
        check(&image, args);
    }
}
