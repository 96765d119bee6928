//! `undelete`: what was created, made durable and deleted comes back with its names and bytes.

use crate::testbed::{debugfs, extant, have, mke2fs, mounted, noise, place, run};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// A directory with a small file, a fragmented one, whose map has a node of its own, and one below
/// it.
fn source(dir: &Path) -> PathBuf {
    let source = dir.join("sub");
    fs::create_dir_all(source.join("deep")).unwrap();
    fs::write(source.join("small"), b"contents").unwrap();
    fs::write(source.join("deep/file"), noise(3, 50_000)).unwrap();
    let holes = File::create(source.join("holes")).unwrap();
    for n in 0..12 {
        holes.write_all_at(&noise(n, 4096), n * 65_536).unwrap();
    }
    source
}

/// Brings back what was deleted, and returns the directory with the states of all paths.
fn undeleted(image: &Path) -> (PathBuf, BTreeMap<String, Value>) {
    let out = image.with_extension("out");
    let _ = fs::remove_dir_all(&out);
    let before = fs::read(image).unwrap();
    let ran = extant(["undelete", "--json", image.to_str().unwrap(), out.to_str().unwrap()]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert!(fs::read(image).unwrap() == before, "nothing is written to the image");
    let json: Value = serde_json::from_slice(&ran.stdout).unwrap();
    let paths = json["paths"].as_array().unwrap().iter();
    (out, paths.map(|path| (path["path"].as_str().unwrap().to_owned(), path.clone())).collect())
}

/// Asserts that everything below `source` is below `out` with the same bytes.
#[track_caller]
fn assert_back(out: &Path, source: &Path, paths: &BTreeMap<String, Value>) {
    for name in ["small", "deep/file", "holes"] {
        let found = fs::read(out.join("sub").join(name)).ok();
        assert!(found == Some(fs::read(source.join(name)).unwrap()), "{name}: {paths:?}");
        assert_eq!(paths[&format!("sub/{name}")]["state"], "whole", "{name}");
    }
}

#[test]
fn what_the_library_deletes_comes_back_until_it_is_overwritten() {
    if !have("mke2fs") || !have("dumpe2fs") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let source = source(dir.path());
    let image = dir.path().join("image");
    for (kind, block) in [("ext4", 4096), ("ext3", 1024)] {
        let bytes = block.to_string();
        let options = ["-t", kind, "-b", &bytes, "-m", "0"];
        mke2fs(&image, "12M", &options);
        extant(["put", "-r", source.to_str().unwrap(), &place(&image, "/sub")]).clean();
        extant(["put", source.join("small").to_str().unwrap(), &place(&image, "/kept")]).clean();
        extant(["rm", "-r", &place(&image, "/sub")]).clean();
        let (out, paths) = undeleted(&image);
        assert_back(&out, &source, &paths);
        assert!(!paths.contains_key("kept"), "{options:?}: {paths:?}");
        assert!(paths["sub/small"]["deleted"]["seconds"].as_i64().unwrap() > 0, "{options:?}: {paths:?}");
        // Nothing of it is taken for what it is not any more.
        let full = dir.path().join("full");
        fs::write(&full, vec![b'x'; free_blocks(&image) * block]).unwrap();
        extant(["put", full.to_str().unwrap(), &place(&image, "/full")]).clean();
        let (out, paths) = undeleted(&image);
        for (path, told) in &paths {
            let Some(name) = path.strip_prefix("sub/").filter(|_| told["kind"] == "file") else { continue };
            let (found, real) = (fs::read(out.join(path)).unwrap(), fs::read(source.join(name)).unwrap());
            assert_eq!(found.len(), real.len(), "{path}");
            let mut blocks = found.chunks(1024).zip(real.chunks(1024));
            assert!(blocks.all(|(a, b)| a == b || a.iter().all(|&byte| byte == 0)), "{path}");
        }
        let states: Vec<_> = paths.values().map(|told| told["state"].as_str().unwrap()).collect();
        assert!(states.contains(&"overwritten") || states.contains(&"partial"), "{options:?}: {paths:?}");
    }
}

/// Blocks that a new file can have: nearly all that are free.
fn free_blocks(image: &Path) -> usize {
    let said = run("dumpe2fs", &["-h", image.to_str().unwrap()]);
    let free = said.lines().find_map(|line| line.strip_prefix("Free blocks:")).unwrap();
    let free: usize = free.trim().parse().unwrap();
    // Some are for its map.
    free - free / 250 - 8
}

#[test]
fn what_the_kernel_deletes_comes_back() {
    if !have("mke2fs") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let source = source(dir.path());
    let image = dir.path().join("image");
    for options in [&["-t", "ext4", "-b", "4096"][..], &["-t", "ext3", "-b", "1024"]] {
        mke2fs(&image, "24M", options);
        let Some(mount) = mounted(&image, "") else { return };
        let target = mount.path().join("sub");
        fs::create_dir_all(target.join("deep")).unwrap();
        for name in ["small", "deep/file", "holes"] {
            let (from, to) =
                (File::open(source.join(name)).unwrap(), File::create(target.join(name)).unwrap());
            let mut block = [0; 4096];
            for at in (0..from.metadata().unwrap().len()).step_by(4096) {
                let n = from.read_at(&mut block, at).unwrap();
                if block[..n].iter().any(|&b| b != 0) {
                    to.write_all_at(&block[..n], at).unwrap();
                }
            }
            to.sync_all().unwrap();
        }
        rustix::fs::syncfs(File::open(mount.path()).unwrap()).unwrap();
        fs::remove_dir_all(mount.path().join("sub")).unwrap();
        drop(mount);
        let (out, paths) = undeleted(&image);
        assert_back(&out, &source, &paths);
    }
}

#[test]
fn what_is_left_in_inode_tables_comes_back() {
    if !have("mke2fs") || !have("debugfs") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let source = source(dir.path());
    let image = dir.path().join("image");
    mke2fs(&image, "16M", &["-t", "ext2", "-b", "1024", "-d", source.to_str().unwrap()]);
    debugfs(&image, &["rm /holes".into(), "rm /small".into()]);
    let (out, paths) = undeleted(&image);
    for name in ["holes", "small"] {
        assert_eq!(paths[name]["state"], "whole", "{paths:?}");
        assert!(fs::read(out.join(name)).unwrap() == fs::read(source.join(name)).unwrap(), "{name}");
    }
    assert_eq!(paths.len(), 2, "{paths:?}");
}
