//! Space of files and volumes: `fallocate`, `copy` and `trim`, checked with e2fsck and against the
//! kernel.

use crate::testbed::{extant, extant_with, fsck, have, mke2fs, mounted, noise, place, run};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

fn volume(dir: &Path, options: &[&str]) -> Option<PathBuf> {
    if !have("mke2fs") || !have("e2fsck") {
        return None;
    }
    let image = dir.join("image");
    mke2fs(&image, "64M", &[options, &["-b", "4096", "-E", "root_owner=0:0"]].concat());
    Some(image)
}

#[test]
fn ranges_of_files_are_allocated_freed_and_moved_as_the_tool_of_that_name_does() {
    let dir = tempfile::tempdir().unwrap();
    let Some(image) = volume(dir.path(), &["-t", "ext4"]) else { return };
    let theirs = dir.path().join("theirs");
    fs::copy(&image, &theirs).unwrap();
    let source = dir.path().join("source");
    fs::write(&source, noise(9, 300_000)).unwrap();
    extant(["put".as_ref(), "--all-root".as_ref(), source.as_os_str(), place(&image, "/f").as_ref()]).clean();
    let steps: [&[&str]; 8] = [
        &["-p", "-o", "5000", "-l", "50000"],
        &["-z", "-o", "64K", "-l", "20000"],
        &["-c", "-o", "4096", "-l", "8192"],
        &["-i", "-o", "12288", "-l", "64K"],
        &["-n", "-l", "1M"],
        &["-o", "300000", "-l", "200000"],
        &["-zn", "-o", "450000", "-l", "400000"],
        &["--punch-hole", "--offset", "0", "--length", "4096"],
    ];
    for step in steps {
        extant([&["fallocate"], step, &[&place(&image, "/f")]].concat()).clean();
        fsck(&image);
    }
    extant_with(b"fallocate -l 128K /new\nfallocate -n -l 32K /none\n", ["edit".as_ref(), image.as_os_str()])
        .clean();
    fsck(&image);
    for (code, args, told) in [
        (1, &["-c", "-o", "1", "-l", "4096"][..], "not of whole blocks"),
        (1, &["-p", "-l", "0"], "a range without bytes"),
        (1, &["-l", "100000T"], "larger than a file of this volume can be"),
        (2, &["-c", "-i", "-l", "4096"], "cannot be used with"),
        (2, &["-p", "-n", "-l", "4096"], "cannot be used with"),
        (2, &["-p"], "--length"),
    ] {
        let ran = extant([&["fallocate"], args, &[&place(&image, "/f")]].concat());
        assert_eq!(ran.code, Some(code), "{args:?}: {}", ran.stderr);
        assert!(ran.stderr.contains(told), "{args:?}: {}", ran.stderr);
    }
    let absent = extant(["fallocate", "-p", "-l", "4096", &place(&image, "/absent")]);
    assert!(absent.code == Some(1) && absent.stderr.contains("no such file"), "{}", absent.stderr);
    let Some(mount) = mounted(&theirs, "rw").filter(|_| have("fallocate")) else { return };
    let file = mount.path().join("f");
    fs::copy(&source, &file).unwrap();
    run("sync", &["-f", file.to_str().unwrap()]);
    for step in steps {
        // The tool for the kernel's side spells its units differently.
        let step: Vec<String> =
            step.iter().map(|word| word.replace('K', "KiB").replace("1M", "1MiB")).collect();
        let mut args: Vec<&str> = step.iter().map(String::as_str).collect();
        args.push(file.to_str().unwrap());
        run("fallocate", &args);
    }
    run("sync", &["-f", file.to_str().unwrap()]);
    let (bytes, expected) = (fs::read(&file).unwrap(), file.metadata().unwrap());
    // First and last block, and whether they are unwritten; physical locations are ignored.
    let layout = |path: &Path| {
        let said = run("filefrag", &["-v", path.to_str().unwrap()]);
        let lines = said.lines().filter(|line| line.trim_start().starts_with(|c: char| c.is_ascii_digit()));
        let mut runs: Vec<(u64, u64, bool)> = Vec::new();
        for line in lines {
            let blocks = line.split(':').nth(1).unwrap().replace(' ', "");
            let (first, last) = blocks.split_once("..").unwrap();
            let (first, last): (u64, u64) = (first.parse().unwrap(), last.parse().unwrap());
            let is_unwritten = line.contains("unwritten");
            match runs.last_mut().filter(|before| before.1 + 1 == first && before.2 == is_unwritten) {
                Some(before) => before.1 = last,
                None => runs.push((first, last, is_unwritten)),
            }
        }
        runs
    };
    let expected_layout = layout(&file);
    drop(mount);
    let Some(mount) = mounted(&image, "ro") else { return };
    let file = mount.path().join("f");
    assert!(fs::read(&file).unwrap() == bytes);
    let found = file.metadata().unwrap();
    assert_eq!((found.len(), found.blocks()), (expected.len(), expected.blocks()));
    assert_eq!(layout(&file), expected_layout);
    let (new, none) =
        (mount.path().join("new").metadata().unwrap(), mount.path().join("none").metadata().unwrap());
    assert_eq!((new.len(), new.blocks(), none.len(), none.blocks()), (128 << 10, 256, 0, 64));
}

#[test]
fn maps_of_pointers_have_holes_punched_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let Some(image) = volume(dir.path(), &["-t", "ext3"]) else { return };
    let source = dir.path().join("f");
    let mut bytes = noise(10, 200_000);
    fs::write(&source, &bytes).unwrap();
    extant(["put".as_ref(), source.as_os_str(), place(&image, "/").as_ref()]).clean();
    let at = place(&image, "/f");
    extant(["fallocate", "-p", "-o", "10000", "-l", "150000", &at]).clean();
    bytes[10_000..160_000].fill(0);
    assert!(extant(["cat", &at]).clean() == bytes);
    let ran = extant(["fallocate", "-l", "1M", &at]);
    assert!(ran.code == Some(1) && ran.stderr.contains("map of pointers"), "{:?} {}", ran.code, ran.stderr);
    fsck(&image);
}

#[test]
fn files_are_copied_within_an_image() {
    let dir = tempfile::tempdir().unwrap();
    let Some(image) = volume(dir.path(), &["-t", "ext4"]) else { return };
    let at = |path: &str| place(&image, path);
    let source = dir.path().join("f");
    let bytes = noise(11, 100_000);
    fs::write(&source, &bytes).unwrap();
    fs::set_permissions(&source, fs::Permissions::from_mode(0o751)).unwrap();
    extant(["put".as_ref(), source.as_os_str(), at("/").as_ref()]).clean();
    extant(["truncate", "-s", "50M", &at("/f")]).clean();
    extant(["mkdir", &at("/d")]).clean();
    extant(["truncate", "-s", "300000", &at("/d/f")]).clean();
    extant(["copy", &at("/f"), &at("/d")]).clean();
    extant(["copy", &at("/f"), &at("/d/f"), &at("/")]).code.filter(|&code| code == 1).expect("onto itself");
    extant(["copy", &at("/d/f"), &at("/g")]).clean();
    fsck(&image);
    for path in ["/d/f", "/g"] {
        let copied = extant(["cat", &at(path)]).clean();
        assert!(copied.len() == 50 << 20 && copied[..100_000] == bytes);
        let told = run("debugfs", &["-R", &format!("stat {path}"), image.to_str().unwrap()]);
        assert!(told.contains("Mode:  0751"), "{told}");
        assert!(told.contains("Blockcount: 200"), "{told}");
    }
    let ran = extant(["copy", &at("/d"), &at("/h")]);
    assert!(ran.code == Some(1) && ran.stderr.contains("is a directory"), "{}", ran.stderr);
}

#[test]
fn free_space_of_an_image_is_given_back_as_the_kernel_does() {
    let dir = tempfile::tempdir().unwrap();
    for options in [&["-t", "ext4"][..], &["-t", "ext2"]] {
        let Some(image) = volume(dir.path(), options) else { return };
        let (kept, gone) = (dir.path().join("kept"), dir.path().join("gone"));
        fs::write(&kept, noise(12, 3_000_000)).unwrap();
        fs::write(&gone, noise(13, 30_000_000)).unwrap();
        for file in [&kept, &gone] {
            extant(["put".as_ref(), file.as_os_str(), place(&image, "/").as_ref()]).clean();
        }
        extant(["rm", &place(&image, "/gone")]).clean();
        let theirs = dir.path().join("theirs");
        run("cp", &["--sparse=never", image.to_str().unwrap(), theirs.to_str().unwrap()]);
        run("cp", &["--sparse=never", theirs.to_str().unwrap(), image.to_str().unwrap()]);
        let ran = extant(["trim", "--json", image.to_str().unwrap()]);
        if ran.stderr.contains("discarding space of this device") {
            return println!("skipped: no holes on this file system");
        }
        let told = ran.clean_text();
        fsck(&image);
        assert_eq!(extant(["cat", &place(&image, "/kept")]).clean(), noise(12, 3_000_000));
        let head = run("dumpe2fs", &["-h", image.to_str().unwrap()]);
        let free = head.lines().find_map(|line| line.strip_prefix("Free blocks:")).unwrap();
        let free_bytes = free.trim().parse::<u64>().unwrap() * 4096;
        assert!(told.contains(&format!("\"trimmed_bytes\": {free_bytes}\n")), "{told}, {free_bytes}");
        let blocks = image.metadata().unwrap().blocks();
        // The host also counts the nodes of its own map of the image.
        let nodes_bytes = 64 << 10;
        assert!(
            blocks * 512 <= (64 << 20) - free_bytes + nodes_bytes,
            "{blocks} of 512 bytes are left, {free_bytes} free"
        );
        let Some(mount) = mounted(&theirs, "rw").filter(|_| have("fstrim")) else { continue };
        let trimmed = std::process::Command::new("fstrim").arg(mount.path()).output().unwrap();
        drop(mount);
        if trimmed.status.success() {
            let theirs = theirs.metadata().unwrap().blocks();
            assert!(
                blocks * 512 <= theirs * 512 + nodes_bytes,
                "{blocks} are left, {theirs} where the kernel trimmed"
            );
        }
    }
}

#[test]
fn a_copy_or_allocation_that_fails_leaves_what_was_there() {
    let dir = tempfile::tempdir().unwrap();
    let Some(image) = volume(dir.path(), &["-t", "ext4"]) else { return };
    let (old, big) = (dir.path().join("old"), dir.path().join("big"));
    fs::write(&old, b"precious").unwrap();
    fs::write(&big, noise(4, 40 << 20)).unwrap();
    let at = |path: &str| place(&image, path);
    extant(["put", old.to_str().unwrap(), big.to_str().unwrap(), &at("/")]).clean();
    extant(["ln", "-s", "old", &at("/link")]).clean();
    extant(["ln", &at("/old"), &at("/other")]).clean();
    for target in ["/old", "/link", "/new"] {
        let ran = extant(["copy", &at("/big"), &at(target)]);
        assert!(ran.code == Some(1) && ran.stderr.contains("no space is left"), "{target}: {}", ran.stderr);
    }
    for (target, told) in [("/big", "to itself"), ("/lost+found/../big", "to itself")] {
        let ran = extant(["copy", &at("/big"), &at(target)]);
        assert!(ran.code == Some(1) && ran.stderr.contains(told), "{target}: {}", ran.stderr);
    }
    let ran = extant(["fallocate", "-l", "1G", &at("/space")]);
    assert!(ran.code == Some(1), "{}", ran.stderr);
    assert_eq!(extant(["ls", &at("/")]).clean_text(), "big\nlink\nlost+found\nold\nother\n");
    assert_eq!(extant(["cat", &at("/old")]).clean(), b"precious");
    // A copy to a link replaces the link's target; other names of that stay.
    fs::write(&old, b"successor").unwrap();
    extant(["put", old.to_str().unwrap(), &at("/next")]).clean();
    extant(["copy", &at("/next"), &at("/link")]).clean();
    for (path, expected) in [("/link", "successor"), ("/old", "successor"), ("/other", "precious")] {
        assert_eq!(extant(["cat", &at(path)]).clean_text(), expected, "{path}");
    }
    fsck(&image);
}

#[test]
fn a_file_is_defragmented() {
    let dir = tempfile::tempdir().unwrap();
    let Some(image) = volume(dir.path(), &["-t", "ext4"]) else { return };
    let source = dir.path().join("source");
    fs::write(&source, noise(5, 2 << 20)).unwrap();
    let at = |path: &str| place(&image, path);
    extant(["put", "--all-root", source.to_str().unwrap(), &at("/f")]).clean();
    // Move every other piece behind the rest.
    let mut script = String::new();
    for piece in (0..2 << 20).step_by(128 << 10) {
        script += &format!("fallocate -p -o {piece} -l 64K /f\nfallocate -o {piece} -l 64K /f\n");
    }
    script += "fallocate -l 1M /x\n";
    extant_with(script.as_bytes(), ["edit".as_ref(), image.as_os_str()]).clean();
    let before = extant(["cat", &at("/f")]).clean();
    let said = extant(["defrag", "--json", &at("/f"), &at("/x")]).clean_text();
    let said: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert_eq!((&said[0]["path"], &said[1]["runs_after"]), (&"/f".into(), &1.into()), "{said}");
    assert!(said[0]["runs_before"].as_u64() > said[0]["runs_after"].as_u64(), "{said}");
    fsck(&image);
    assert!(extant(["cat", &at("/f")]).clean() == before);
    let runs = &said[0]["runs_after"];
    let again = extant(["defrag", &at("/f")]).clean_text();
    assert_eq!(again, format!("{}: {runs} runs, {runs} now\n", at("/f")));
    let Some(mount) = mounted(&image, "ro") else { return };
    assert!(fs::read(mount.path().join("f")).unwrap() == before);
    if have("filefrag") {
        let said = run("filefrag", &[mount.path().join("f").to_str().unwrap()]);
        assert!(said.contains(&format!(": {runs} extent")), "{said}");
    }
}
