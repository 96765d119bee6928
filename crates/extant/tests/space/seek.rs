//! `SEEK_DATA`, `SEEK_HOLE` and extents.

use super::bed::*;
use extant::{ExtentFlags, FileOptions, OpenOptions, Volume};
use extant_rt::Rng;
use rustix::fs::{FallocateFlags, fallocate};
use std::os::unix::fs::FileExt;

const MAX: u64 = 3 << 20;

/// Positions all over a file, at block edges and next to them.
fn places(rng: &mut Rng) -> Vec<u64> {
    let edges = (0..60).flat_map(|_| {
        let edge = rng.below(MAX / 1024 + 8) * 1024;
        [edge.saturating_sub(1), edge, edge + 1]
    });
    edges.chain([0, MAX]).collect()
}

const VOLUMES: [&str; 4] = [
    "-t ext4 -b 1024 32M",
    "-t ext4 -b 4096 -O inline_data 32M",
    "-t ext3 -b 1024 -I 128 32M",
    "-t ext2 -b 4096 32M",
];

#[test]
fn data_of_the_kernels_files_is_where_the_kernel_says() {
    if !have_kernel() {
        return;
    }
    for args in VOLUMES {
        let dir = tempfile::tempdir().unwrap();
        let image = make(dir.path(), args);
        let mut rng = Rng::labelled(1, args);
        let places = places(&mut rng);
        let names = ["sparse", "unwritten", "tiny", "empty", "holes"];
        let expected = {
            let mount = Mount::of(&image);
            for n in 0..25 {
                let data = vec![n + 1; 1 + rng.below(50_000) as usize];
                mount.file("sparse").write_all_at(&data, rng.below(MAX)).unwrap();
            }
            let unwritten = mount.file("unwritten");
            if fallocate(&unwritten, FallocateFlags::empty(), 0, 600_000).is_ok() {
                fallocate(&unwritten, FallocateFlags::KEEP_SIZE, 700_000, 100_000).unwrap();
            }
            unwritten.write_all_at(&[7; 20_000], 100_000).unwrap();
            mount.file("tiny").write_all_at(b"tiny", 0).unwrap();
            drop(mount.file("empty"));
            mount.file("holes").set_len(MAX).unwrap();
            rustix::fs::syncfs(mount.file("tiny")).unwrap();
            names.map(|name| {
                let seeks = kernel_seeks(&mount.file(name), &places);
                (seeks, kernels(&mount.at(name), 1024))
            })
        };
        for write in [false, true] {
            let volume = Volume::open(&image, &OpenOptions::new().write(write)).unwrap();
            for (name, (seeks, extents)) in names.iter().zip(&expected) {
                let file = volume.root().open(name).unwrap();
                let what = format!("{args}, {name}");
                assert_eq!(our_seeks(&file, &places), *seeks, "{what}: {places:?}");
                let found = ours(&file.extents(0..u64::MAX).unwrap());
                match found.first().filter(|first| first.3 == "inline") {
                    // filefrag rounds to its units.
                    Some(first) => assert_eq!((first.0, &extents[0].3), (0, &first.3), "{what}"),
                    None => assert_eq!(found, *extents, "{what}"),
                }
            }
            drop(volume);
        }
    }
}

#[test]
fn data_in_memory_is_data_and_stays_where_it_is_when_it_is_written_back() {
    if !have_kernel() {
        return;
    }
    for args in VOLUMES {
        let dir = tempfile::tempdir().unwrap();
        let image = make(dir.path(), args);
        let mut rng = Rng::labelled(2, args);
        let unit: u64 = if args.contains("1024") { 1024 } else { 4096 };
        let places = places(&mut rng);
        let volume = open(&image);
        let file =
            volume.root().open_with("f", FileOptions::new().read(true).write(true).create(true)).unwrap();
        let mut is_data = vec![false; (MAX / unit) as usize];
        for n in 0..25 {
            let at = rng.below(MAX - 50_000);
            let data = vec![n + 1; 1 + rng.below(50_000) as usize];
            file.write_all_at(at, &data).unwrap();
            is_data[(at / unit) as usize..(at + data.len() as u64).div_ceil(unit) as usize].fill(true);
        }
        let size = file.len();
        for &at in &places {
            let next = |wanted: bool| {
                let blocks = at / unit..size.div_ceil(unit);
                let found = blocks.into_iter().find(|&n| is_data[n as usize] == wanted);
                found.map(|n| (n * unit).max(at)).filter(|&found| found < size)
            };
            let expected =
                if at < size { (next(true), Some(next(false).unwrap_or(size))) } else { (None, None) };
            assert_eq!((file.seek_data(at).unwrap(), file.seek_hole(at).unwrap()), expected, "{args}: {at}");
        }
        let extents = file.extents(0..u64::MAX).unwrap();
        let delayed = ExtentFlags::DELALLOC | ExtentFlags::UNKNOWN;
        assert!(extents.iter().all(|extent| extent.flags.contains(delayed)), "{extents:?}");
        let seeks = our_seeks(&file, &places);
        file.sync_all().unwrap();
        assert_eq!(our_seeks(&file, &places), seeks, "{args}");
        let extents = file.extents(0..u64::MAX).unwrap();
        let part = file.extents(extents[1].offset + unit..extents[1].offset + 2 * unit).unwrap();
        assert_eq!(
            (part[0].offset, part[0].device_offset),
            (extents[1].offset + unit, extents[1].device_offset + unit)
        );
        assert!(part.len() == 1 && part[0].bytes == unit && !part[0].flags.contains(ExtentFlags::LAST));
        drop(file);
        volume.close().unwrap();
        check(&image, args);
        let mount = Mount::of(&image);
        assert_eq!(kernel_seeks(&mount.file("f"), &places), seeks, "{args}");
        assert_eq!(kernels(&mount.at("f"), 1024), ours(&extents), "{args}");
    }
}
