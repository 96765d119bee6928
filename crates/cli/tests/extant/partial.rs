//! Readable parts of a damaged volume are read; lost parts are reported byte by byte.

use crate::testbed::{Ran, debugfs, extant, have, mke2fs, noise, place, run};
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

fn have_tools() -> bool {
    ["mke2fs", "debugfs", "e2fsck", "tar"].iter().all(|tool| have(tool))
}

/// A volume with the files of a directory prepared by `fill`.
fn volume(dir: &Path, size: &str, options: &[&str], fill: impl Fn(&Path)) -> PathBuf {
    let source = dir.join("source");
    fs::create_dir_all(&source).unwrap();
    fill(&source);
    let image = dir.join("image");
    mke2fs(&image, size, &[options, &["-d", source.to_str().unwrap()]].concat());
    image
}

/// A file's blocks, from debugfs.
fn blocks(image: &Path, path: &str) -> Vec<u64> {
    let said = run("debugfs", &["-R", &format!("blocks {path}"), image.to_str().unwrap()]);
    said.split_whitespace().filter_map(|word| word.parse().ok()).collect()
}

/// A file's indirect blocks, in order.
fn indirect(image: &Path, path: &str) -> Vec<usize> {
    let said = run("debugfs", &["-R", &format!("stat {path}"), image.to_str().unwrap()]);
    let words = said.split(['\n', ',', ' ']).collect::<String>();
    words
        .split("(IND):")
        .skip(1)
        .map(|rest| rest.split(|c: char| !c.is_ascii_digit()).next().unwrap().parse().unwrap())
        .collect()
}

fn change(image: &Path, changes: &[(usize, &[u8])]) {
    let file = fs::File::options().write(true).open(image).unwrap();
    for &(at, to) in changes {
        file.write_all_at(to, at as u64).unwrap();
    }
}

fn cut(image: &Path, bytes: u64) {
    fs::File::options().write(true).open(image).unwrap().set_len(bytes).unwrap();
}

/// Checks every way to read a file whose ranges in `lost` are unreadable: `cat` prints what
/// precedes them, the others print everything around them, and each range is reported.
#[track_caller]
fn check(what: &str, dir: &Path, image: &Path, path: &str, expected: &[u8], lost: &[(usize, usize)]) {
    let name = path.trim_start_matches('/');
    let mut zeroed = expected.to_vec();
    lost.iter().for_each(|&(from, to)| zeroed[from..to].fill(0));
    let names_all = |ran: &Ran, whence: &str| {
        assert_eq!(ran.code, Some(3), "{what}: {whence}: {}", ran.stderr);
        for (from, to) in lost {
            let range = format!("{path}: bytes {from}..{to} ({} bytes) cannot be read: ", to - from);
            assert!(ran.stderr.contains(&range), "{what}: {whence}: {range} in {}", ran.stderr);
        }
    };
    let file = place(image, path);
    let ran = extant(["cat", &file]);
    assert_eq!(ran.code, Some(3), "{what}: {}", ran.stderr);
    assert!(ran.stdout == expected[..lost[0].0], "{what}: cat: {} bytes of {}", ran.stdout.len(), lost[0].0);

    let copy = dir.join("copy");
    let _ = fs::remove_dir_all(&copy);
    let _ = fs::remove_file(&copy);
    let ran = extant(["cp", &file, copy.to_str().unwrap()]);
    names_all(&ran, "cp");
    assert!(fs::read(&copy).unwrap() == zeroed, "{what}: cp");
    fs::remove_file(&copy).unwrap();
    names_all(&extant(["cp", &place(image, "/"), copy.to_str().unwrap()]), "cp of the root");
    assert!(fs::read(copy.join(name)).unwrap() == zeroed, "{what}: cp of the root");

    let archive = dir.join("archive.tar");
    names_all(&extant(["export", &place(image, "/"), "-o", archive.to_str().unwrap()]), "export");
    let unpacked = dir.join("unpacked");
    let _ = fs::remove_dir_all(&unpacked);
    fs::create_dir(&unpacked).unwrap();
    run("tar", &["xf", archive.to_str().unwrap(), "-C", unpacked.to_str().unwrap()]);
    assert!(fs::read(unpacked.join(name)).unwrap() == zeroed, "{what}: export");

    // Nothing else is reported.
    let source = dir.join("source");
    let ran = extant(["diff", "--ignore-times", "--json", &place(image, "/"), source.to_str().unwrap()]);
    names_all(&ran, "diff");
    let told = String::from_utf8(ran.stdout).unwrap();
    assert!(!told.contains("\"what\":\"contents\""), "{what}: {told}");
    for (from, to) in lost {
        let range =
            format!("\"what\":\"unreadable\",\"side\":\"a\",\"offset\":{from},\"bytes\":{}", to - from);
        assert!(told.contains(&range), "{what}: {range} in {told}");
    }
    // A differing byte after it is found.
    let last = lost.last().unwrap().1;
    if last < expected.len() {
        let mut other = expected.to_vec();
        other[expected.len() - 1] ^= 1;
        fs::write(source.join(name), other).unwrap();
        let ran = extant(["diff", "--ignore-times", "--json", &place(image, "/"), source.to_str().unwrap()]);
        let told = String::from_utf8(ran.stdout).unwrap();
        assert!(told.contains(&format!("\"first_byte\":{}", expected.len() - 1)), "{what}: {told}");
        fs::write(source.join(name), expected).unwrap();
    }
}

#[test]
fn an_image_that_was_cut_loses_what_lies_behind_the_cut() {
    if !have_tools() {
        return;
    }
    for block in [4096, 1024] {
        let dir = tempfile::tempdir().unwrap();
        let expected = noise(1, 921_600);
        let options = ["-t", "ext4", "-b", &block.to_string()];
        let image =
            volume(dir.path(), "32M", &options, |source| fs::write(source.join("f"), &expected).unwrap());
        let (blocks, whole) = (blocks(&image, "/f"), fs::read(&image).unwrap());
        assert_eq!(blocks.len() * block, expected.len(), "one extent: there are no other blocks");
        // The last block is missing, several are, all but a few are; the cut is inside a block, and
        // inside a sector.
        for (n, more) in [(blocks.len() - 1, 0), (blocks.len() - 7, 0), (20, 0), (3, block / 2), (40, 100)] {
            fs::write(&image, &whole).unwrap();
            cut(&image, blocks[n] * block as u64 + more as u64);
            let lost = (n * block + more / 512 * 512, expected.len());
            check(
                &format!("blocks of {block}, {more} bytes of block {n}"),
                dir.path(),
                &image,
                "/f",
                &expected,
                &[lost],
            );
        }
    }
}

#[test]
fn a_bad_pointer_costs_its_block_and_a_bad_node_its_range() {
    if !have_tools() {
        return;
    }
    let wild = 0x0fff_ffff_u32.to_le_bytes();
    let dir = tempfile::tempdir().unwrap();
    let expected = noise(2, 3_000_000);
    let fill = |source: &Path| fs::write(source.join("f"), &expected).unwrap();
    let image = volume(dir.path(), "16M", &["-t", "ext2", "-b", "1024"], fill);
    let (nodes, whole) = (indirect(&image, "/f"), fs::read(&image).unwrap());
    let kib = |from: usize, to: usize| (from * 1024, to * 1024);
    for (what, changes, lost) in [
        ("one pointer", vec![(nodes[0] * 1024 + 400, &wild[..])], vec![kib(112, 113)]),
        (
            "two pointers apart",
            vec![(nodes[0] * 1024 + 400, &wild[..]), (nodes[1] * 1024, &wild[..])],
            vec![kib(112, 113), kib(268, 269)],
        ),
        ("a block of pointers", vec![(nodes[1] * 1024, &[0xff; 1024][..])], vec![kib(268, 524)]),
    ] {
        fs::write(&image, &whole).unwrap();
        change(&image, &changes);
        check(what, dir.path(), &image, "/f", &expected, &lost);
        // Linux gives up on an indirect block if one of its pointers is bad; outside it, it reads
        // what we read.
        let told = extant(["stat", "--json", &place(&image, "/f")]);
        assert_eq!(told.code, Some(3));
        let told: serde_json::Value = serde_json::from_slice(&told.stdout).unwrap();
        let ranges: Vec<_> = told["lost"]
            .as_array()
            .unwrap()
            .iter()
            .map(|lost| (lost["offset"].as_u64().unwrap(), lost["bytes"].as_u64().unwrap()))
            .collect();
        let expected: Vec<_> = lost.iter().map(|&(from, to)| (from as u64, (to - from) as u64)).collect();
        assert_eq!(ranges, expected, "{what}");
    }
}

/// The block that follows `what` in a group's description by dumpe2fs.
fn structure(image: &Path, what: &str) -> usize {
    let said = run("dumpe2fs", &[image.to_str().unwrap()]);
    let rest = said.split(what).nth(1).unwrap();
    rest.split(|c: char| !c.is_ascii_digit()).next().unwrap().parse().unwrap()
}

/// On Linux reading them ends in EUCLEAN.
#[test]
fn a_file_has_none_of_the_blocks_of_the_volumes_own_structures() {
    if !have_tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let expected = noise(3, 3_000_000);
    let fill = |source: &Path| fs::write(source.join("f"), &expected).unwrap();
    let image = volume(dir.path(), "16M", &["-t", "ext2", "-b", "1024"], fill);
    let (nodes, whole) = (indirect(&image, "/f"), fs::read(&image).unwrap());
    let bitmap = structure(&image, "Block bitmap at ") as u32;
    let table = structure(&image, "Inode table at ") as u32;
    let pair = [table.to_le_bytes(), (table + 1).to_le_bytes()].concat();
    let kib = |from: usize, to: usize| (from * 1024, to * 1024);
    for (what, changes, lost) in [
        ("a bitmap", vec![(nodes[0] * 1024 + 400, &bitmap.to_le_bytes()[..])], vec![kib(112, 113)]),
        ("two of a table", vec![(nodes[0] * 1024 + 400, &pair[..])], vec![kib(112, 114)]),
        ("descriptors", vec![(nodes[1] * 1024, &2_u32.to_le_bytes()[..])], vec![kib(268, 269)]),
    ] {
        fs::write(&image, &whole).unwrap();
        change(&image, &changes);
        check(what, dir.path(), &image, "/f", &expected, &lost);
    }

    // An extent that begins with the end of the last inode table.
    let image =
        volume(&dir.path().join("tree"), "16M", &["-t", "ext4", "-b", "1024", "-O", "^metadata_csum"], fill);
    let said = run("dumpe2fs", &[image.to_str().unwrap()]);
    let table = said.split("Inode table at ").last().unwrap().split(' ').next().unwrap();
    let end: usize = table.split('-').nth(1).unwrap().parse::<usize>().unwrap() + 1;
    let script = dir.path().join("script");
    let first = blocks(&image, "/f").len();
    assert_eq!(first, expected.len().div_ceil(1024));
    fs::write(&script, format!("eo /f\nroot\nreplace_node 0 {first} {}\nec\n", end - 2)).unwrap();
    run("debugfs", &["-w", "-f", script.to_str().unwrap(), image.to_str().unwrap()]);
    let bytes = fs::read(&image).unwrap();
    let expected = &bytes[(end - 2) * 1024..][..expected.len()];
    fs::write(dir.path().join("source/f"), expected).unwrap();
    check("a tree", dir.path(), &image, "/f", expected, &[kib(0, 2)]);
}

#[test]
fn numbers_of_groups_out_of_range_do_not_make_structures_of_files() {
    if !have_tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let fill = |source: &Path| fs::write(source.join("f"), b"contents").unwrap();
    for (options, field, value) in [
        ("^metadata_csum", "log_groups_per_flex", 31_u32),
        ("meta_bg,^resize_inode,^metadata_csum", "first_meta_bg", 1000),
        ("meta_bg,^resize_inode,^metadata_csum", "first_meta_bg", u32::MAX),
    ] {
        let image = volume(dir.path(), "16M", &["-t", "ext4", "-b", "1024", "-O", options], fill);
        debugfs(&image, &[format!("ssv {field} {value}")]);
        let ran = extant(["cat", &place(&image, "/f")]);
        assert_eq!(ran.stdout, b"contents", "{field} {value}: {}", ran.stderr);
    }
}

#[test]
fn sizes_that_contradict_what_they_are_sizes_of_cost_no_names() {
    if !have_tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let target = "t".repeat(500);
    let fill = |source: &Path| {
        fs::create_dir_all(source.join("d")).unwrap();
        fs::write(source.join("d/one"), []).unwrap();
        fs::write(source.join("d/two"), []).unwrap();
        std::os::unix::fs::symlink(&target, source.join("link")).unwrap();
    };
    let options = ["-t", "ext4", "-b", "1024", "-I", "256", "-O", "inline_data"];
    let image = volume(dir.path(), "16M", &options, fill);
    let script = dir.path().join("script");
    fs::write(&script, "sif /d size 0\nsif /link size 1024\n").unwrap();
    run("debugfs", &["-w", "-f", script.to_str().unwrap(), image.to_str().unwrap()]);
    let ran = extant(["ls", &place(&image, "/d")]);
    assert_eq!((ran.code, &ran.stdout[..]), (Some(3), &b"one\ntwo\n"[..]), "{}", ran.stderr);
    assert!(ran.stderr.contains("i_size"), "{}", ran.stderr);
    // The kernel, too, reads the block up to its first zero byte.
    let copy = dir.path().join("copy");
    let ran = extant(["cp", &place(&image, "/link"), copy.to_str().unwrap()]);
    assert_eq!(ran.code, Some(3), "{}", ran.stderr);
    assert_eq!(fs::read_link(&copy).unwrap().to_str(), Some(&target[..]));
}

#[test]
fn a_directory_is_listed_around_what_is_lost_of_it() {
    if !have_tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let fill = |source: &Path| {
        for n in 0..1500 {
            fs::write(source.join(format!("name-{n:05}")), []).unwrap();
        }
    };
    let image = volume(dir.path(), "16M", &["-t", "ext2", "-b", "1024", "-N", "2048"], fill);
    let names =
        |ran: &Ran| ran.stdout.split(|&byte| byte == b'\n').filter(|line| line.starts_with(b"name-")).count();
    let (blocks, node) = (blocks(&image, "/"), indirect(&image, "/")[0]);
    assert_eq!(names(&extant(["ls", image.to_str().unwrap()])), 1500);
    let whole = fs::read(&image).unwrap();
    let wild = 0x0fff_ffff_u32.to_le_bytes();
    change(&image, &[(node * 1024 + 20, &wild)]);
    let ran = extant(["ls", image.to_str().unwrap()]);
    // At most as many names are missing as fit in a block, at 20 bytes each.
    assert!((1500 - 1024 / 20..1500).contains(&names(&ran)), "{} names", names(&ran));
    assert_eq!(ran.code, Some(3));
    let told = "bytes 17408..18432 (1024 bytes) of directory 2 cannot be read: ";
    assert!(ran.stderr.contains(told), "{}", ran.stderr);
    // e2fsck keeps the same names.
    let mended = dir.path().join("mended");
    fs::copy(&image, &mended).unwrap();
    let listed = names(&ran);
    let fsck = std::process::Command::new("e2fsck").arg("-fy").arg(&mended).output().unwrap();
    assert!(fsck.status.code().is_some_and(|code| code <= 1), "{fsck:?}");
    assert_eq!(names(&extant(["ls", mended.to_str().unwrap()])), listed);
    // If a name is not found, it may still be in the lost part.
    let ran = extant(["cat", &place(&image, "/no-such-name")]);
    assert!(ran.code == Some(3) && ran.stderr.contains(told), "{}", ran.stderr);
    // After truncation of the image, directory blocks also lie past its end.
    fs::write(&image, &whole).unwrap();
    cut(&image, blocks.iter().max().unwrap() * 1024);
    let ran = extant(["ls", image.to_str().unwrap()]);
    assert!((1500 - 1024 / 20..1500).contains(&names(&ran)), "{} names", names(&ran));
    assert!(
        ran.code == Some(3) && ran.stderr.contains("(1024 bytes) of directory 2 cannot be read: "),
        "{}",
        ran.stderr
    );
}

#[test]
fn nothing_damaged_is_shrunk_or_written_over() {
    if !have_tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let expected = noise(3, 900_000);
    let image = volume(dir.path(), "16M", &["-t", "ext2", "-b", "1024"], |source| {
        fs::write(source.join("f"), &expected).unwrap();
    });
    change(&image, &[(indirect(&image, "/f")[0] * 1024 + 400, &0x0fff_ffff_u32.to_le_bytes())]);
    let before = fs::read(&image).unwrap();
    let ran = extant(["shrink", image.to_str().unwrap()]);
    assert_eq!(ran.code, Some(3), "{}", ran.stderr);
    assert!(ran.stderr.contains("bytes 114688..115712 (1024 bytes) cannot be read: "), "{}", ran.stderr);
    assert!(fs::read(&image).unwrap() == before, "refused before anything was written");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2, "and nothing is left beside it");
}

/// A volume of several groups, with a file.
fn groups(dir: &Path, size: &str, options: &[&str]) -> PathBuf {
    volume(dir, size, options, |source| fs::write(source.join("f"), b"contents").unwrap())
}

/// Blocks of all superblocks, and of all copies of the first descriptor block, from dumpe2fs.
fn copies(image: &Path) -> (Vec<usize>, Vec<usize>) {
    let said = run("dumpe2fs", &[image.to_str().unwrap()]);
    let after = |word: &str| -> Vec<usize> {
        let number = |rest: &str| rest.split(|c: char| !c.is_ascii_digit()).next().unwrap().parse().unwrap();
        said.split(word).skip(1).map(number).collect()
    };
    let mut tables = after("Group descriptors at ");
    tables.extend(after("Group descriptor at "));
    tables.sort_unstable();
    let mut superblocks = after("superblock at ");
    superblocks.extend(after("Superblock at "));
    superblocks.sort_unstable();
    (superblocks, tables)
}

#[test]
fn backups_stand_in_for_superblock_and_descriptors() {
    if !have_tools() || !have("dumpe2fs") {
        return;
    }
    for (size, options) in [
        ("64M", &["-t", "ext4", "-b", "1024"][..]),
        ("24M", &["-t", "ext4", "-b", "4096", "-g", "2048", "-O", "64bit"]),
        ("32M", &["-t", "ext2", "-b", "1024"]),
        ("15M", &["-t", "ext3", "-b", "4096", "-g", "2048", "-O", "^sparse_super,^resize_inode"]),
        ("300M", &["-t", "ext4", "-b", "4096", "-O", "sparse_super2,^resize_inode", "-E", "num_backup_sb=2"]),
        ("40M", &["-t", "ext4", "-b", "1024", "-g", "1024", "-O", "meta_bg,^resize_inode"]),
        ("24M", &["-t", "ext4", "-b", "4096", "-g", "2048"]),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let image = groups(dir.path(), size, options);
        let block: usize = options[3].parse().unwrap();
        let (superblocks, tables) = copies(&image);
        let (backup, descriptors, behind) = (superblocks[1] * block, tables[0] * block, tables[1] * block);
        let (file, new, at) = (place(&image, "/f"), place(&image, "/d"), backup.to_string());
        let original = fs::read(&image).unwrap();
        let garbage = noise(5, block);
        let is_read = |args: &[&str], what: &str| {
            let ran = extant([&["cat"][..], args, &[file.as_str()]].concat());
            assert_eq!(ran.stdout, b"contents", "{options:?}: {what}: {}", ran.stderr);
            ran
        };
        let restore = || {
            let places = [(1024, 1024), (descriptors, block), (behind, block)];
            change(&image, &places.map(|(at, len)| (at, &original[at..at + len])));
        };
        // Without the primary superblock, and also without the descriptors after it.
        let both = [(1024, &garbage[..1024]), (descriptors, &garbage[..])];
        for (what, changes) in [("no superblock", &both[..1]), ("neither", &both[..])] {
            restore();
            change(&image, changes);
            is_read(&["--superblock", &at], what).clean();
            let ran = is_read(&[], what);
            let told = format!("the backup at byte {backup} is used instead");
            assert!(ran.code == Some(3) && ran.stderr.contains(&told), "{options:?}: {what}: {}", ran.stderr);
            // Writers do not fall back to a backup.
            let damaged = fs::read(&image).unwrap();
            for args in [
                ["mkdir", new.as_str()],
                ["recover", image.to_str().unwrap()],
                ["shrink", image.to_str().unwrap()],
            ] {
                let ran = extant(args);
                assert!(ran.code != Some(0) && !ran.stderr.contains("instead"), "{args:?}: {}", ran.stderr);
                assert!(fs::read(&image).unwrap() == damaged, "{args:?} changes nothing");
            }
        }
        // A good superblock and bad descriptors: garbage, and zeros, which would be valid block
        // numbers.
        for (what, rubbish) in [("rubbish", &garbage), ("zeros", &vec![0; block])] {
            restore();
            change(&image, &[(descriptors, &rubbish[..])]);
            let ran = is_read(&[], what);
            let told = ", in group 1, is used instead";
            assert!(ran.code == Some(3) && ran.stderr.contains(told), "{options:?}: {what}: {}", ran.stderr);
            is_read(&["--superblock", &at], what).clean();
            let ran = extant(["mkdir", new.as_str()]);
            assert!(ran.code != Some(0) && !ran.stderr.contains("instead"), "{}", ran.stderr);
            // The other copies replace those after a backup.
            restore();
            change(&image, &[(behind, &rubbish[..])]);
            let ran = is_read(&["--superblock", &at], what);
            assert!(
                ran.code == Some(3) && ran.stderr.contains("is used instead"),
                "{options:?}: {}",
                ran.stderr
            );
            is_read(&[], what).clean();
        }
    }
}

#[test]
fn a_backup_reads_through_the_journal_that_it_does_not_know_of() {
    if !have_tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = groups(dir.path(), "64M", &["-t", "ext4", "-b", "1024"]);
    // The journal has a newer version of the file's block.
    let newer = dir.path().join("newer");
    fs::write(&newer, [&b"newer..."[..], &[0; 1016]].concat()).unwrap();
    let block = blocks(&image, "/f")[0];
    debugfs(&image, &["jo".into(), format!("jw -b {block} {}", newer.display()), "jc".into()]);
    let (file, at) = (place(&image, "/f"), (8193 * 1024).to_string());
    assert_eq!(extant(["cat", &file]).clean(), b"newer...");
    change(&image, &[(1024, &[0; 1024])]);
    assert_eq!(extant(["cat", "--superblock", &at, &file]).clean(), b"newer...");
    assert_eq!(extant(["cat", "--superblock", &at, "--ignore-journal", &file]).clean(), b"contents");
    let ran = extant(["cat", &file]);
    assert!(ran.code == Some(3) && ran.stdout == b"newer...", "{}", ran.stderr);
    // Compare with e2fsck's replay.
    let fsck = std::process::Command::new("e2fsck")
        .args(["-fy", "-b", "8193", "-B", "1024"])
        .arg(&image)
        .output()
        .unwrap();
    assert!(fsck.status.code().is_some_and(|code| code <= 1), "{fsck:?}");
    assert_eq!(extant(["cat", &file]).clean(), b"newer...");
}

#[test]
fn what_was_a_volume_and_is_none_now_stays_none() {
    if !have_tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = groups(dir.path(), "64M", &["-t", "ext4", "-b", "1024"]);
    // Overwrite the root inode with garbage, as from another system; backups remain.
    let mut bytes = fs::read(&image).unwrap();
    bytes[..4 << 20].copy_from_slice(&noise(9, 4 << 20));
    fs::write(&image, bytes).unwrap();
    let ran = extant(["ls", image.to_str().unwrap()]);
    assert!(ran.code == Some(3) && ran.stderr.contains("not an ext2, ext3 or ext4 volume"), "{}", ran.stderr);
    assert!(!ran.stderr.contains("instead"), "{}", ran.stderr);
}

#[test]
fn the_first_superblock_comes_back_from_a_backup() {
    if !have_tools() || !have("dumpe2fs") {
        return;
    }
    for (size, options) in [
        ("24M", &["-t", "ext4", "-b", "1024"][..]),
        ("15M", &["-t", "ext3", "-b", "4096", "-g", "2048", "-O", "^sparse_super,^resize_inode"]),
        ("40M", &["-t", "ext4", "-b", "1024", "-g", "1024", "-O", "meta_bg,^resize_inode"]),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let image = groups(dir.path(), size, options);
        let text = image.to_str().unwrap();
        let block: usize = options[3].parse().unwrap();
        let (superblocks, tables) = copies(&image);
        // The journal's log has a newer version of the file's block.
        let newer = dir.path().join("newer");
        fs::write(&newer, [&b"newer..."[..], &vec![0; block - 8]].concat()).unwrap();
        let at = blocks(&image, "/f")[0];
        debugfs(&image, &["jo".into(), format!("jw -b {at} {}", newer.display()), "jc".into()]);
        let garbage = noise(5, block);
        change(&image, &[(1024, &garbage[..1024]), (tables[0] * block, &garbage[..])]);
        let damaged = fs::read(&image).unwrap();
        let backup = superblocks[1] * block;

        // `info` reads the volume and says where the backup is.
        let shown = extant(["info", text]);
        assert!(shown.code == Some(3) && shown.stdout.starts_with(b"label:"), "{}", shown.stderr);
        assert!(shown.stderr.contains(&format!("--superblock {backup}")), "{}", shown.stderr);
        let refused = extant(["recover", text]);
        assert!(refused.stderr.contains("extant recover --superblock auto"), "{}", refused.stderr);
        let block_number = format!("block:{}", superblocks[1]);
        for at in ["auto", &block_number, &backup.to_string()] {
            fs::write(&image, &damaged).unwrap();
            let told = extant(["recover", "--json", "--superblock", at, text]).clean();
            let told: serde_json::Value = serde_json::from_slice(&told).unwrap();
            assert_eq!(told["restored"]["superblock_from"], backup, "{options:?}: {told}");
            assert!(told["restored"]["descriptors"].as_u64() >= Some(1), "{options:?}: {told}");
            assert_eq!(told["transactions"], 1, "{options:?}: {told}");
            assert_eq!(extant(["cat", &place(&image, "/f")]).clean()[..8], *b"newer...");
            // The counts are old, and e2fsck knows that it has to look.
            let fsck = Command::new("e2fsck").arg("-p").arg(&image).output().unwrap();
            let said = String::from_utf8_lossy(&fsck.stdout);
            assert!(said.contains("check forced"), "{options:?}: {said}");
            assert!(fsck.status.code().is_some_and(|code| code <= 1), "{options:?}: {said}");
        }
        // A sound one stays.
        let sound = fs::read(&image).unwrap();
        let told = extant(["recover", "--json", "--superblock", "auto", text]).clean_text();
        assert!(told.contains("\"superblock_from\": null,\n    \"descriptors\": 0"), "{told}");
        assert!(fs::read(&image).unwrap() == sound, "nothing was written");
        let ran = extant(["ls", "--superblock", &superblocks[1].to_string(), text]);
        assert!(ran.stderr.contains(&format!("--superblock {block_number}")), "{}", ran.stderr);
    }
}

#[test]
fn the_first_superblock_of_a_volume_without_a_journal_comes_back() {
    if !have_tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = groups(dir.path(), "24M", &["-t", "ext2", "-b", "1024"]);
    change(&image, &[(1024, &[0; 1024])]);
    let text = image.to_str().unwrap();
    extant(["recover", "--superblock", "auto", text]).clean();
    assert_eq!(extant(["cat", &place(&image, "/f")]).clean(), b"contents");
    let fsck = Command::new("e2fsck").arg("-p").arg(&image).output().unwrap();
    assert!(fsck.status.code().is_some_and(|code| code <= 1), "{fsck:?}");
    extant(["check", text]).clean();
}

/// Backups of an old volume below a partition table are not taken for the disk's volume.
#[test]
fn remains_of_a_volume_on_a_disk_are_no_volume() {
    if !have_tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = groups(dir.path(), "24M", &["-t", "ext4", "-b", "1024"]);
    let mut gpt = vec![0; 1536];
    gpt[512..520].copy_from_slice(b"EFI PART");
    change(&image, &[(0, &gpt)]);
    let (text, damaged) = (image.to_str().unwrap(), fs::read(&image).unwrap());
    for args in [
        &["ls", text][..],
        &["check", text],
        &["check", "--repair=all", text],
        &["export", text, "-o", "x.tar"],
    ] {
        let ran = extant(args);
        assert!(ran.code != Some(0) && ran.stdout.is_empty(), "{args:?}");
        assert!(ran.stderr.contains("a disk with a GPT partition table"), "{args:?}: {}", ran.stderr);
    }
    assert!(fs::read(&image).unwrap() == damaged);
    let ran = extant(["cat", "--superblock", "auto", &place(&image, "/f")]);
    assert_eq!(ran.stdout, b"contents", "{}", ran.stderr);
}
