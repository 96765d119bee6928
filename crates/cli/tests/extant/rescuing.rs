//! `rescue`: what is readable of a damaged image is in the output, and each path is told with what
//! became of it.

use crate::testbed::{Seen, assert_same, debugfs, extant, have, look, mke2fs, noise, run};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{FileExt, symlink};
use std::path::{Path, PathBuf};

/// A volume with files, directories and links, and the directory that it was made from.
fn volume(dir: &Path, size: &str, options: &[&str]) -> (PathBuf, PathBuf) {
    let source = dir.join("source");
    fs::create_dir_all(source.join("sub/deep")).unwrap();
    fs::write(source.join("big"), noise(1, 300_000)).unwrap();
    fs::write(source.join("sub/small"), b"contents").unwrap();
    fs::write(source.join("sub/deep/file"), noise(2, 20_000)).unwrap();
    fs::hard_link(source.join("sub/small"), source.join("sub/same")).unwrap();
    symlink("small", source.join("sub/link")).unwrap();
    let image = dir.join("image");
    let mut args = vec!["-d", source.to_str().unwrap()];
    args.extend(options);
    mke2fs(&image, size, &args);
    (image, source)
}

fn zero(image: &Path, start: u64, len: usize) {
    let file = fs::OpenOptions::new().write(true).open(image).unwrap();
    file.write_all_at(&vec![0; len], start).unwrap();
}

/// Everything below a directory. `mke2fs -d` keeps whole seconds, and has its own for the root.
fn seen(root: &Path) -> BTreeMap<Vec<u8>, Seen> {
    let mut seen = look(root);
    seen.values_mut().for_each(|seen| seen.modified.1 = 0);
    seen.get_mut(&b""[..]).unwrap().modified.0 = 0;
    seen
}

/// Rescues into a directory, and returns it with the states of all paths.
fn rescued(image: &Path, options: &[&str], code: i32) -> (PathBuf, BTreeMap<String, Value>) {
    let out = image.with_extension("out");
    let _ = fs::remove_dir_all(&out);
    let before = fs::read(image).unwrap();
    let args = [&["rescue", "--json", image.to_str().unwrap(), out.to_str().unwrap()], options].concat();
    let ran = extant(&args);
    assert_eq!(ran.code, Some(code), "{args:?}: {}", ran.stderr);
    assert!(fs::read(image).unwrap() == before, "nothing is written to the image");
    let json: Value = serde_json::from_slice(&ran.stdout).unwrap();
    let paths = json["paths"].as_array().unwrap().iter();
    (out, paths.map(|path| (path["path"].as_str().unwrap().to_owned(), path.clone())).collect())
}

#[test]
fn nothing_but_inodes_and_contents_is_needed() {
    if !have("mke2fs") || !have("dumpe2fs") {
        return;
    }
    for options in [
        &["-t", "ext4", "-b", "4096"][..],
        &["-t", "ext4", "-b", "1024", "-O", "^metadata_csum"],
        &["-t", "ext3", "-b", "1024", "-I", "128"],
        &["-t", "ext2", "-b", "2048"],
    ] {
        let dir = tempfile::tempdir().unwrap();
        // One group, so that there are no backups.
        let (image, source) = volume(dir.path(), "7M", options);
        let groups = run("dumpe2fs", &[image.to_str().unwrap()]);
        let bitmap = groups.split("Block bitmap at ").nth(1).unwrap();
        let bitmap: u64 = bitmap.split(|c: char| !c.is_ascii_digit()).next().unwrap().parse().unwrap();
        let block: u64 = options[3].parse().unwrap();
        // Everything before the inode bitmap.
        zero(&image, 0, ((bitmap + 1) * block) as usize);
        let (out, paths) = rescued(&image, &[], 3);
        assert_same(&format!("{options:?}"), &seen(&out), &seen(&source));
        assert!(paths.values().all(|path| path["state"] == "whole"), "{options:?}: {paths:?}");
    }
}

/// The root directory's only block is between the bitmaps of a volume of one group.
#[test]
fn other_directories_stand_in_for_the_root() {
    if !have("mke2fs") || !have("debugfs") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (image, source) = volume(dir.path(), "24M", &["-t", "ext4", "-b", "4096"]);
    let said = run("debugfs", &["-R", "blocks /", image.to_str().unwrap()]);
    let root: u64 = said.split_whitespace().filter_map(|word| word.parse().ok()).next().unwrap();
    zero(&image, 0, ((root + 1) * 4096) as usize);
    let (out, paths) = rescued(&image, &[], 3);
    let deep = paths.keys().find(|path| path.ends_with("/deep")).unwrap();
    let sub = out.join(deep.strip_suffix("/deep").unwrap());
    assert_same("the root is lost", &seen(&sub), &seen(&source.join("sub")));
    assert!(paths.values().any(|path| path["bytes"] == 300_000 && path["state"] == "whole"), "{paths:?}");
}

#[test]
fn lost_descriptors_are_put_together_again() {
    if !have("mke2fs") {
        return;
    }
    for options in [
        &["-t", "ext4", "-b", "1024", "-g", "2048"][..],
        &["-t", "ext4", "-b", "1024", "-g", "1784", "-G", "4", "-O", "^metadata_csum"],
        &["-t", "ext2", "-b", "1024", "-g", "1784", "-I", "128"],
    ] {
        let dir = tempfile::tempdir().unwrap();
        let (image, source) = volume(dir.path(), "9M", options);
        let bytes = fs::read(&image).unwrap();
        let per_group: u64 = options[5].parse().unwrap();
        // All superblocks but that of group 3, and all descriptors.
        for group in 0..bytes.len() as u64 / 1024 / per_group + 1 {
            let at = (1 + group * per_group) * 1024;
            let is_copy = bytes.get(at as usize + 56..at as usize + 58) == Some(&[0x53, 0xef]);
            if is_copy {
                let kept = u64::from(group == 3);
                zero(&image, at + kept * 1024, (2 - kept as usize) * 1024);
            }
        }
        let (out, paths) = rescued(&image, &[], 3);
        assert_same(&format!("{options:?}"), &seen(&out), &seen(&source));
        assert!(paths.values().all(|path| path["state"] == "whole"), "{options:?}: {paths:?}");
    }
}

#[test]
fn a_hole_costs_what_it_hits() {
    if !have("mke2fs") || !have("debugfs") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (image, source) = volume(dir.path(), "16M", &["-t", "ext4", "-b", "1024"]);
    let blocks = |path: &str| -> Vec<u64> {
        let said = run("debugfs", &["-R", &format!("blocks {path}"), image.to_str().unwrap()]);
        said.split_whitespace().filter_map(|word| word.parse().ok()).collect()
    };
    // One block of a file, and the only one of a directory.
    let (hit, names) = (blocks("/big")[7] * 1024, blocks("/sub/deep")[0] * 1024);
    let map = dir.path().join("map");
    let at = |n: u64| format!("{n:#x}");
    let lines = [
        format!("{} ?", at(0)),
        format!("{} {} +", at(0), at(hit)),
        format!("{} {} -", at(hit), at(512)),
        format!("{} {} /", at(names), at(1024)),
    ];
    fs::write(&map, format!("# Mapfile\n{}\n", lines.join("\n"))).unwrap();
    let (out, paths) = rescued(&image, &["--map", map.to_str().unwrap()], 3);
    let state = |path: &str| paths[path]["state"].as_str().unwrap().to_owned();
    assert_eq!(paths["big"]["lost_bytes"], 1024, "{paths:?}");
    let mut expected = fs::read(source.join("big")).unwrap();
    expected[7 * 1024..8 * 1024].fill(0);
    assert!(fs::read(out.join("big")).unwrap() == expected);
    assert_eq!(
        (state("big"), state("sub/deep"), state("sub/small")),
        ("partial".into(), "partial".into(), "whole".into())
    );
    // Its only file has no name any more.
    let nameless = paths.keys().find(|path| path.starts_with("lost+found/#")).unwrap();
    assert_eq!(fs::read(out.join(nameless)).unwrap(), noise(2, 20_000));
    // A file that is not there is written instead.
    let new = dir.path().join("new");
    rescued(&image, &["--map", new.to_str().unwrap()], 0);
    let written = fs::read_to_string(new).unwrap();
    assert!(written.ends_with("0x00000000  0x01000000  +\n"), "{written}");
}

#[test]
fn what_has_no_name_and_what_is_cut_off_is_told() {
    if !have("mke2fs") || !have("debugfs") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (image, source) = volume(dir.path(), "16M", &["-t", "ext4", "-b", "1024"]);
    debugfs(&image, &["unlink /sub".into(), "unlink /big".into()]);
    let (out, paths) = rescued(&image, &[], 0);
    let directory = paths
        .iter()
        .find(|(_, path)| path["kind"] == "directory" && path["path"] != "" && path["path"] != "lost+found");
    let directory = directory.map(|(path, _)| path.clone()).unwrap_or_default();
    let top = directory.split('/').take(2).collect::<Vec<_>>().join("/");
    assert!(top.starts_with("lost+found/#"), "{paths:?}");
    assert_same("without a name", &seen(&out.join(top)), &seen(&source.join("sub")));
    let big = paths.values().find(|path| path["bytes"].as_u64() == Some(300_000)).unwrap();
    assert_eq!(fs::read(out.join(big["path"].as_str().unwrap())).unwrap(), noise(1, 300_000));
    // The end of the image is missing, and with it a part of the newest file.
    let dir = tempfile::tempdir().unwrap();
    let (image, source) = volume(dir.path(), "16M", &["-t", "ext4", "-b", "1024"]);
    debugfs(&image, &[format!("write {} last", source.join("big").display())]);
    let said = run("debugfs", &["-R", "blocks /last", image.to_str().unwrap()]);
    let middle: u64 = said.split_whitespace().filter_map(|word| word.parse().ok()).nth(100).unwrap();
    fs::OpenOptions::new().write(true).open(&image).unwrap().set_len(middle * 1024).unwrap();
    let (out, paths) = rescued(&image, &[], 3);
    assert_eq!((&paths["last"]["state"], &paths["last"]["bytes"]), (&"partial".into(), &(100 * 1024).into()));
    assert_eq!(fs::read(out.join("last")).unwrap()[..100 * 1024], noise(1, 300_000)[..100 * 1024]);
    // An archive on standard output; those that are not whole are on standard error.
    let ran = extant(["rescue", image.to_str().unwrap(), "-"]);
    assert_eq!(ran.code, Some(3));
    assert!(ran.stderr.contains("partial /last: bytes 102400..300000"), "{}", ran.stderr);
    let names = tar_names(&ran.stdout);
    assert!(names.contains(&"./".into()) && names.contains(&"sub/link".into()), "{names:?}");
}

fn tar_names(bytes: &[u8]) -> Vec<String> {
    let mut archive = tar::Archive::new(bytes);
    let entries = archive.entries().unwrap();
    entries.map(|entry| entry.unwrap().path().unwrap().to_string_lossy().into_owned()).collect()
}

#[test]
fn outputs_that_would_destroy_something_are_refused() {
    if !have("mke2fs") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (image, source) = volume(dir.path(), "8M", &["-t", "ext4"]);
    let image = image.to_str().unwrap();
    for (args, code, told) in [
        (&["rescue", image, source.to_str().unwrap()][..], 1, "is not empty; name a new directory"),
        (&["rescue", image, image], 1, "is the image that is read"),
        (&["rescue", "--json", image, "-"], 2, "standard output takes the archive or the JSON"),
    ] {
        let ran = extant(args);
        assert_eq!(ran.code, Some(code), "{args:?}: {}", ran.stderr);
        assert!(ran.stderr.contains(told), "{args:?}: {}", ran.stderr);
    }
}
