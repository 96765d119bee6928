//! Block maps of direct I/O compared with an independent writer of the same format.

use extant_history::direct::{BlockMap, Ext3Map};
use std::process::Command;

/// A file's layout according to debugfs: runs of its blocks on the volume, and its pointer blocks.
fn by_debugfs(image: &std::path::Path) -> Vec<(String, u64, u64)> {
    let out = Command::new("/usr/sbin/debugfs").args(["-R", "stat /file"]).arg(image).output().unwrap();
    let text = String::from_utf8(out.stdout).unwrap();
    let list = text.split("BLOCKS:\n").nth(1).expect("a list of blocks").lines().next().unwrap().to_owned();
    let parse = |part: &str| {
        let (name, run) = part.split_once("):").unwrap();
        let (from, to) = run.split_once('-').unwrap_or((run, run));
        (name.trim_start_matches('(').to_owned(), from.parse().unwrap(), to.parse().unwrap())
    };
    list.split(", ").map(parse).collect()
}

#[test]
fn the_layout_of_a_file_is_that_of_one_that_e2fsprogs_wrote() {
    if !std::path::Path::new("/usr/sbin/debugfs").exists() {
        println!("skipped: no debugfs");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (image, file) = (dir.path().join("image"), dir.path().join("file"));
    let blocks = 12 + 3 * 1024 + 500;
    // Zeroes would become holes.
    std::fs::write(&file, vec![1; blocks * 4096]).unwrap();
    let made = Command::new("/usr/sbin/mke2fs")
        .args(["-q", "-t", "ext3", "-b", "4096", "-O", "^has_journal,^resize_inode"])
        .args([image.to_str().unwrap(), "64M"])
        .status()
        .unwrap();
    assert!(made.success());
    let write = format!("write {} file", file.display());
    assert!(
        Command::new("/usr/sbin/debugfs").args(["-w", "-R", &write]).arg(&image).status().unwrap().success()
    );
    let theirs = by_debugfs(&image);
    let data: Vec<_> =
        theirs.iter().filter(|part| part.0.starts_with(|c: char| c.is_ascii_digit())).collect();
    let pointers = theirs.iter().filter(|part| part.0.contains("IND")).count();
    assert_eq!(pointers, 5, "{theirs:?}");
    let mut map = Ext3Map::new(std::iter::once(data[0].1..1 << 20), 4096);
    let mut at = 0;
    let mut ours = Vec::new();
    while at < blocks as u64 {
        let mapped = map.map(at, blocks as u64 - at).unwrap();
        let last = at + mapped.blocks - 1;
        ours.push((format!("{at}-{last}"), mapped.block, mapped.block + mapped.blocks - 1));
        at += mapped.blocks;
    }
    assert_eq!(ours, data.into_iter().cloned().collect::<Vec<_>>(), "{theirs:?}");
}
