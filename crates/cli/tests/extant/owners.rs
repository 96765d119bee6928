//! A damaged volume that gives inodes or blocks two owners, or marks used ones as free: none is
//! allocated, freed or overwritten, and such a volume is not shrunk.

use crate::testbed::{debugfs, extant, fsck, have, mke2fs, noise, place, run};
use std::fs;
use std::path::{Path, PathBuf};

const OPTIONS: &[&str] = &["-t", "ext4", "-b", "1024", "-O", "^metadata_csum,^uninit_bg"];

fn have_tools() -> bool {
    ["mke2fs", "debugfs", "e2fsck", "dumpe2fs"].iter().all(|tool| have(tool))
}

/// A volume of one group with `/a`, `/b` and `/d/c`, each with six blocks of noise.
fn volume(dir: &Path, options: &[&str]) -> PathBuf {
    let source = dir.join("source");
    fs::create_dir_all(source.join("d")).unwrap();
    for (n, name) in ["a", "b", "d/c"].iter().enumerate() {
        fs::write(source.join(name), noise(n as u64 + 1, 6000)).unwrap();
    }
    fs::write(dir.join("new"), noise(9, 40_000)).unwrap();
    let image = dir.join("image");
    let mut args = vec!["-d", source.to_str().unwrap()];
    args.extend(options);
    mke2fs(&image, "8M", &args);
    image
}

fn number_after(told: &str, word: &str) -> u64 {
    let rest = told.split(word).nth(1).unwrap_or_else(|| panic!("{word} in {told}"));
    rest.trim_start().split(|c: char| !c.is_ascii_digit()).next().unwrap().parse().unwrap()
}

/// The number of the inode at a path.
fn inode(image: &Path, path: &str) -> u64 {
    number_after(&run("debugfs", &["-R", &format!("stat {path}"), image.to_str().unwrap()]), "Inode:")
}

/// The first block of a file.
fn block(image: &Path, path: &str) -> u64 {
    let told = run("debugfs", &["-R", &format!("blocks {path}"), image.to_str().unwrap()]);
    told.split_whitespace().find_map(|word| word.parse().ok()).unwrap_or_else(|| panic!("{told}"))
}

fn free(image: &Path, what: &str) -> u64 {
    number_after(&run("dumpe2fs", &["-h", image.to_str().unwrap()]), what)
}

/// Marks an inode free, and adjusts the count.
fn free_inode(image: &Path, number: u64) {
    let count = free(image, "Free inodes:") + 1;
    debugfs(
        image,
        &[
            format!("freei <{number}>"),
            format!("set_bg 0 free_inodes_count {count}"),
            format!("ssv free_inodes_count {count}"),
        ],
    );
}

/// Marks a block free, and adjusts the count.
fn free_block(image: &Path, number: u64) {
    let count = free(image, "Free blocks:") + 1;
    debugfs(
        image,
        &[
            format!("freeb {number}"),
            format!("set_bg 0 free_blocks_count {count}"),
            format!("ssv free_blocks_count {count}"),
        ],
    );
}

fn contents(image: &Path, path: &str) -> Vec<u8> {
    extant(["cat", &place(image, path)]).stdout
}

#[test]
fn an_inode_with_links_is_not_given_out_whatever_the_bitmap_says() {
    if !have_tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = volume(dir.path(), OPTIONS);
    let number = inode(&image, "/b");
    free_inode(&image, number);
    let new = dir.path().join("new");
    for name in ["/n1", "/n2", "/n3"] {
        let ran = extant(["put", new.to_str().unwrap(), &place(&image, name)]);
        assert_eq!(ran.code, Some(3), "{name}: {}", ran.stderr);
        assert!(ran.stderr.contains(&format!("inode {number}: i_links_count is 1")), "{}", ran.stderr);
        assert_eq!(contents(&image, name), fs::read(&new).unwrap(), "it was made elsewhere");
        assert_ne!(inode(&image, name), number);
    }
    assert_eq!(extant(["mkdir", &place(&image, "/m")]).code, Some(3));
    assert_eq!(contents(&image, "/b"), noise(2, 6000));
    // e2fsck has only the bitmap to repair.
    std::process::Command::new("e2fsck").args(["-fy", image.to_str().unwrap()]).output().unwrap();
    fsck(&image);
    assert_eq!(contents(&image, "/b"), noise(2, 6000));
    extant(["put", new.to_str().unwrap(), &place(&image, "/n4")]).clean();
}

#[test]
fn blocks_that_are_in_use_are_not_given_out_whatever_the_bitmap_says() {
    if !have_tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = volume(dir.path(), OPTIONS);
    let whole = fs::read(&image).unwrap();
    let resize = run("debugfs", &["-R", "stat <7>", image.to_str().unwrap()]);
    let resize = number_after(&resize, "(DIND):");
    let blocks = [block(&image, "/"), block(&image, "/d"), block(&image, "/b"), block(&image, "<8>"), resize];
    let new = dir.path().join("new");
    for number in blocks {
        fs::write(&image, &whole).unwrap();
        free_block(&image, number);
        let before = fs::read(&image).unwrap();
        for command in [
            &["put", new.to_str().unwrap(), &place(&image, "/n")][..],
            &["mkdir", &place(&image, "/m")],
            &["put", new.to_str().unwrap(), &place(&image, "/d/n")],
        ] {
            let ran = extant(command);
            assert_eq!(ran.code, Some(3), "block {number}: {command:?}: {}", ran.stderr);
        }
        let (at, after) = (number as usize * 1024, fs::read(&image).unwrap());
        if number != block(&image, "<8>") {
            assert!(before[at..at + 1024] == after[at..at + 1024], "block {number}");
        }
        for (n, path) in ["/a", "/b", "/d/c"].iter().enumerate() {
            assert_eq!(contents(&image, path), noise(n as u64 + 1, 6000), "block {number}: {path}");
        }
    }
}

#[test]
fn blocks_with_two_owners_are_neither_freed_nor_written_over() {
    if !have_tools() {
        return;
    }
    for options in [OPTIONS, &["-t", "ext2", "-b", "1024"], &["-t", "ext4", "-b", "1024"]] {
        let dir = tempfile::tempdir().unwrap();
        let image = volume(dir.path(), options);
        let whole = fs::read(&image).unwrap();
        let resize = run("debugfs", &["-R", "stat <7>", image.to_str().unwrap()]);
        let resize = number_after(&resize, "(DIND):");
        let new = dir.path().join("new");
        for shared in [block(&image, "/b"), block(&image, "/"), block(&image, "/d"), resize] {
            fs::write(&image, &whole).unwrap();
            // In an extent root, the first extent ends with its block number.
            let field = if options[1] == "ext2" { "block[0]" } else { "block[5]" };
            debugfs(&image, &[format!("sif /a {field} {shared}")]);
            let damaged = fs::read(&image).unwrap();
            let at = shared as usize * 1024;
            for command in [
                &["rm", &place(&image, "/a")][..],
                &["put", new.to_str().unwrap(), &place(&image, "/a")],
                &["truncate", "-s", "10", &place(&image, "/a")],
                &["fallocate", "--punch-hole", "-o", "0", "-l", "4096", &place(&image, "/a")],
                &["fallocate", "--zero-range", "-o", "0", "-l", "4096", &place(&image, "/a")],
            ] {
                // Block pointers cannot express unwritten blocks.
                if options[1] == "ext2" && command.contains(&"--zero-range") {
                    continue;
                }
                fs::write(&image, &damaged).unwrap();
                let ran = extant(command);
                assert_eq!(ran.code, Some(3), "{options:?}, block {shared}: {command:?}: {}", ran.stderr);
                // The next write must not take its blocks.
                extant(["put", new.to_str().unwrap(), &place(&image, "/n")]);
                let after = fs::read(&image).unwrap();
                if shared == block(&image, "/b") || shared == resize {
                    assert!(
                        damaged[at..at + 1024] == after[at..at + 1024],
                        "{options:?}, {shared}: {command:?}"
                    );
                }
                assert_eq!(
                    contents(&image, "/b"),
                    noise(2, 6000),
                    "{options:?}, block {shared}: {command:?}"
                );
                assert_eq!(
                    contents(&image, "/d/c"),
                    noise(3, 6000),
                    "{options:?}, block {shared}: {command:?}"
                );
            }
        }
    }
}

#[test]
fn a_damaged_volume_is_not_made_smaller() {
    if !have_tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = volume(dir.path(), OPTIONS);
    let small = dir.path().join("small");
    let whole = fs::read(&image).unwrap();
    extant(["shrink", "-o", small.to_str().unwrap(), image.to_str().unwrap()]).clean();
    fsck(&small);
    fs::remove_file(&small).unwrap();
    let (b, d) = (block(&image, "/b"), block(&image, "/d"));
    let number = inode(&image, "/b");
    let damage: Vec<(&str, Vec<String>)> = vec![
        ("links", vec!["sif /b links_count 3".into()]),
        ("links of a directory", vec!["sif /d links_count 5".into()]),
        ("a second name", vec!["link /d /e".into()]),
        ("a circle", vec!["link / /d/up".into()]),
        ("no name", vec!["unlink /b".into()]),
        ("a name of nothing", vec!["clri /b".into()]),
        ("a size", vec!["sif /d size 0".into()]),
        ("a block twice", vec![format!("sif /a block[5] {b}")]),
        ("a directory's block twice", vec![format!("sif /a block[5] {d}")]),
        ("a bitmap's block", vec!["sif /a block[5] 3".into()]),
        ("a kind", vec!["sif /b mode 0120777".into()]),
        ("a block that nothing has", vec!["setb 4000".into()]),
        ("a free block", vec![format!("freeb {b}")]),
        ("a free inode", vec![format!("freei <{number}>")]),
        ("a count of blocks", vec!["set_bg 0 free_blocks_count 7".into()]),
        ("a count of inodes", vec!["set_bg 0 free_inodes_count 7".into()]),
        ("a count of directories", vec!["set_bg 0 used_dirs_count 7".into()]),
    ];
    for (what, commands) in damage {
        fs::write(&image, &whole).unwrap();
        debugfs(&image, &commands);
        let damaged = fs::read(&image).unwrap();
        let ran = extant(["shrink", "-o", small.to_str().unwrap(), image.to_str().unwrap()]);
        assert_eq!(ran.code, Some(3), "{what}: {}", ran.stderr);
        assert!(!small.exists(), "{what}");
        let ran = extant(["shrink", image.to_str().unwrap()]);
        assert_eq!(ran.code, Some(3), "{what}: {}", ran.stderr);
        assert!(fs::read(&image).unwrap() == damaged, "{what}: the image is as it was");
    }
    // With the counts adjusted as well.
    fs::write(&image, &whole).unwrap();
    free_inode(&image, number);
    assert_eq!(extant(["shrink", image.to_str().unwrap()]).code, Some(3));
    fs::write(&image, &whole).unwrap();
    free_block(&image, b);
    assert_eq!(extant(["shrink", image.to_str().unwrap()]).code, Some(3));
}
