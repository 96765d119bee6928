//! Random operations on one file, compared with bytes in memory, then checked by e2fsck and on a
//! kernel mount.

use super::bed::*;
use extant::{Buf, Fallocate, File, FileOptions, InodeFlags, Volume};
use extant_rt::Rng;
use std::path::Path;

/// Bytes unlike those of any other write.
fn data(rng: &mut Rng, len: u64) -> Vec<u8> {
    let mut word = rng.next_u64() | 1;
    let mut next = || {
        word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (word >> 33) as u8 | 1
    };
    (0..len).map(|_| next()).collect()
}

fn file_of(volume: &Volume) -> File {
    volume.root().open_with("f", FileOptions::new().read(true).write(true).create(true)).unwrap()
}

/// The bytes after `fallocate`, modelled in memory; `None` if it must be refused.
fn model(bytes: &[u8], mode: Fallocate, at: u64, len: u64, unit: u64) -> Option<Vec<u8>> {
    let (size, end) = (bytes.len() as u64, at + len);
    let aligned = at.is_multiple_of(unit) && len.is_multiple_of(unit);
    let mut after = bytes.to_vec();
    match mode {
        Fallocate::Allocate { keep_size } | Fallocate::ZeroRange { keep_size }
            if !keep_size && end > size =>
        {
            after.resize(end as usize, 0);
        }
        Fallocate::CollapseRange => {
            (aligned && end < size).then(|| after.drain(at as usize..end as usize))?;
        }
        Fallocate::InsertRange => {
            (aligned && at < size)
                .then(|| after.splice(at as usize..at as usize, std::iter::repeat_n(0, len as usize)))?;
        }
        _ => {}
    }
    if matches!(mode, Fallocate::PunchHole | Fallocate::ZeroRange { .. }) {
        let to = (end as usize).min(after.len());
        after[(at as usize).min(to)..to].fill(0);
    }
    Some(after)
}

fn exercise(image: &Path, unit: u64, has_tree: bool, max: u64, ops: u32, rng: &mut Rng) -> Vec<u8> {
    let mut volume = open(image);
    let mut file = file_of(&volume);
    let mut bytes: Vec<u8> = Vec::new();
    for n in 0..ops {
        let kind = rng.below(31);
        let align = |rng: &mut Rng, limit: u64| match rng.below(3) {
            0 => rng.below(limit),
            1 => rng.below(limit) / unit * unit,
            _ => rng.below(limit) / 4096 * 4096,
        };
        let at = if rng.below(8) == 0 { bytes.len() as u64 } else { align(rng, max) };
        let longest = if rng.below(4) == 0 { max / 2 } else { 6 * unit };
        let len = align(rng, longest).max(1);
        let keep_size = rng.below(2) == 0;
        let what = format!("op {n}: {kind} at {at}+{len} of {}", bytes.len());
        match kind {
            0..=5 => {
                let data = data(rng, len.min(60_000));
                file.write_all_at(at, &data).unwrap_or_else(|error| panic!("{what}: {error}"));
                let end = at as usize + data.len();
                bytes.resize(bytes.len().max(end), 0);
                bytes[at as usize..end].copy_from_slice(&data);
            }
            6 => {
                file.set_len(at).unwrap();
                bytes.resize(at as usize, 0);
            }
            7..=19 => {
                let mode = match kind {
                    7..=9 => Fallocate::Allocate { keep_size },
                    10..=12 => Fallocate::PunchHole,
                    13..=15 => Fallocate::ZeroRange { keep_size },
                    16..=17 => Fallocate::CollapseRange,
                    _ => Fallocate::InsertRange,
                };
                if mode == Fallocate::InsertRange && bytes.len() as u64 + len > max {
                    continue;
                }
                let expected = model(&bytes, mode, at, len, unit);
                let did = file.fallocate(mode, at, len);
                if !has_tree && mode != Fallocate::PunchHole {
                    assert_eq!(did.unwrap_err().errno(), 95, "{what}");
                    continue;
                }
                match expected {
                    Some(after) => {
                        did.unwrap_or_else(|error| panic!("{what}, {mode:?}: {error}"));
                        bytes = after;
                    }
                    None => assert_eq!(did.unwrap_err().errno(), 22, "{what}, {mode:?}"),
                }
            }
            24..=27 => {
                let at = at / 512 * 512;
                let mut buf = Buf::from_slice(&data(rng, len.min(300_000).next_multiple_of(512)));
                if kind.is_multiple_of(2) {
                    assert_eq!(file.write_direct(at, &mut buf).unwrap(), buf.len(), "{what}");
                    let end = at as usize + buf.len();
                    bytes.resize(bytes.len().max(end), 0);
                    bytes[at as usize..end].copy_from_slice(&buf);
                } else {
                    let read = file.read_direct(at, &mut buf).unwrap();
                    let from = (at as usize).min(bytes.len());
                    let to = (from + buf.len()).min(bytes.len());
                    assert!(buf[..read] == bytes[from..to], "{what}: a direct read");
                }
            }
            28 | 29 => {
                let to = align(rng, max);
                let n = len.min((bytes.len() as u64).saturating_sub(at));
                let did = file.copy_range(at, &file, to, len);
                if to < at + n && at < to + n {
                    assert_eq!(did.unwrap_err().errno(), 22, "{what} to {to}");
                    continue;
                }
                assert_eq!(did.unwrap(), n, "{what} to {to}");
                if n > 0 {
                    bytes.resize(bytes.len().max((to + n) as usize), 0);
                    bytes.copy_within(at as usize..(at + n) as usize, to as usize);
                }
            }
            20 => file.sync_all().unwrap(),
            21 => file.write_back().unwrap(),
            22 => {
                let mut at = 0;
                // Holes read as zeros.
                while let Some(hole) = file.seek_hole(at).unwrap() {
                    let end = file.seek_data(hole).unwrap().unwrap_or(bytes.len() as u64);
                    assert!(bytes[hole as usize..end as usize].iter().all(|&byte| byte == 0), "{what}");
                    at = end;
                }
            }
            _ => {
                drop(file);
                if rng.below(2) == 0 {
                    volume.close().unwrap();
                    volume = open(image);
                } else {
                    // Toggle data=journal for a while.
                    let flags = volume.root().metadata("f").unwrap().flags();
                    volume.root().set_flags("f", flags ^ InodeFlags::JOURNAL_DATA).unwrap();
                }
                file = file_of(&volume);
            }
        }
        assert_eq!(file.len(), bytes.len() as u64, "{what}");
        let from = if rng.below(4) == 0 { 0 } else { at.saturating_sub(unit).min(bytes.len() as u64) };
        let to = (from + 8 * unit + len).min(bytes.len() as u64);
        let mut read = vec![0; (to - from) as usize];
        assert_eq!(file.read_at(from, &mut read).unwrap(), read.len(), "{what}");
        let first = read.iter().zip(&bytes[from as usize..]).position(|(a, b)| a != b);
        assert_eq!(first.map(|first| first as u64 + from), None, "{what}: byte differs");
    }
    drop(file);
    volume.close().unwrap();
    bytes
}

#[test]
fn a_file_is_as_its_model_after_any_operations() {
    if !have_tools() {
        return;
    }
    let seed = std::env::var("EXTANT_SEED").map_or(1, |seed| seed.parse().unwrap());
    let ops = std::env::var("EXTANT_OPS").map_or(60, |ops| ops.parse().unwrap());
    for (args, unit, max, journals_data) in [
        ("-t ext4 -b 1024 -g 2048 -N 64 48M", 1024, 1 << 20, false),
        ("-t ext4 -b 1024 -J size=1 -N 64 24M", 1024, 1 << 20, true),
        ("-t ext4 -b 16384 -N 64 96M", 16_384, 4 << 20, true),
        ("-t ext4 -b 4096 -N 64 48M", 4096, 2 << 20, false),
        ("-t ext4 -b 4096 -J size=4 -N 64 48M", 4096, 2 << 20, true),
        ("-t ext4 -b 4096 -O inline_data -I 512 -N 64 48M", 4096, 300_000, false),
        ("-t ext4 -b 65536 -O ^has_journal -N 64 96M", 65_536, 4 << 20, false),
        ("-t ext3 -b 1024 -I 128 -N 64 48M", 1024, 1 << 20, false),
        ("-t ext4 -b 1024 -O bigalloc -C 4096 -N 64 48M", 4096, 1 << 20, false),
        ("-t ext4 -b 1024 -O bigalloc -C 8192 -J size=1 -N 64 48M", 8192, 1 << 20, true),
        ("-t ext4 -b 4096 -O bigalloc -C 16384 -J size=4 -N 64 96M", 16_384, 2 << 20, true),
    ] {
        println!("{args}: EXTANT_SEED={seed}");
        let dir = tempfile::tempdir().unwrap();
        let image = make(dir.path(), args);
        if journals_data {
            run("tune2fs", &["-o", "journal_data", image.to_str().unwrap()]);
        }
        let mut rng = Rng::labelled(seed, args);
        let bytes = exercise(&image, unit, args.contains("ext4"), max, ops, &mut rng);
        check(&image, &format!("{args}, seed {seed}"));
        if !args.contains("-b 16384") && !args.contains("-b 65536") && have_kernel() {
            let found = std::fs::read(Mount::of(&image).at("f")).unwrap();
            assert_eq!(found.len(), bytes.len(), "{args}, seed {seed}");
            let first = found.iter().zip(&bytes).position(|(a, b)| a != b);
            assert_eq!(first, None, "{args}, seed {seed}: byte differs in the kernel's view");
        }
    }
}

#[test]
fn a_map_of_many_nodes_is_shifted_leaf_by_leaf() {
    if !have_tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = make(dir.path(), "-t ext4 -b 1024 -N 64 64M");
    let volume = open(&image);
    let file = file_of(&volume);
    let mut bytes: Vec<u8> = Vec::new();
    // Every other block, so each is its own extent; a node holds 84.
    for n in 0..1500_u64 {
        let block = vec![n as u8 | 1; 1024];
        file.write_all_at(n * 2048, &block).unwrap();
        bytes.resize(n as usize * 2048, 0);
        bytes.extend(&block);
    }
    file.sync_all().unwrap();
    let mut rng = Rng::labelled(3, "leaves");
    for n in 0..40 {
        let at = rng.below(bytes.len() as u64 / 1024 - 40) * 1024;
        let len = (1 + rng.below(30)) * 1024;
        let mode = match n % 4 {
            0 => Fallocate::CollapseRange,
            1 | 2 => Fallocate::InsertRange,
            _ => Fallocate::ZeroRange { keep_size: true },
        };
        bytes = model(&bytes, mode, at, len, 1024).unwrap();
        file.fallocate(mode, at, len).unwrap();
    }
    let mut read = vec![0; bytes.len()];
    assert_eq!((file.len(), file.read_at(0, &mut read).unwrap()), (bytes.len() as u64, bytes.len()));
    assert!(read == bytes);
    drop(file);
    volume.close().unwrap();
    check(&image, "after many shifts");
}
