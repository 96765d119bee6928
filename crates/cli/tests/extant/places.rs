//! Volumes in partitions, at offsets, and on NBD servers.

use crate::testbed::{extant, fsck, have, mke2fs, noise, place, run};
use std::fs;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const MIB: u64 = 1 << 20;

/// Partitions of a disk that sfdisk writes: number, start in MiB, size in MiB, and what follows.
type Layout<'a> = &'a [(u32, u64, u64, &'a str)];

/// A disk of 64 MiB with noise where there is no partition table.
fn disk(dir: &Path, table: &str, layout: Layout<'_>) -> PathBuf {
    let disk = dir.join("disk");
    let mut bytes = vec![0; 34 * 512];
    bytes.resize(MIB as usize, 0);
    bytes.extend(noise(3, 62 << 20));
    bytes.resize(64 << 20, 0);
    fs::write(&disk, bytes).unwrap();
    let mut lines = format!("label: {table}\n");
    for (number, start, size, rest) in layout {
        lines += &format!("{number} : start={}, size={}, {rest}\n", start * 2048, size * 2048);
    }
    let mut sfdisk = Command::new("sfdisk");
    sfdisk.args(["-q", "--no-reread", "--no-tell-kernel", "--wipe=never"]).arg(&disk).stdin(Stdio::piped());
    let mut child = sfdisk.spawn().unwrap();
    child.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success());
    disk
}

/// Puts a volume with a file into a partition.
fn volume_at(dir: &Path, disk: &Path, start: u64, size: u64, contents: &str) {
    let image = dir.join("volume");
    mke2fs(&image, &format!("{size}M"), &["-t", "ext4"]);
    let file = dir.join("file");
    fs::write(&file, contents).unwrap();
    extant(["put", file.to_str().unwrap(), &place(&image, "/f")]).clean();
    let disk = fs::File::options().write(true).open(disk).unwrap();
    disk.write_all_at(&fs::read(&image).unwrap(), start * MIB).unwrap();
}

/// The bytes of a partition, as an image.
fn cut_out(dir: &Path, disk: &Path, start: u64, size: u64) -> PathBuf {
    let image = dir.join("out");
    let bytes = fs::read(disk).unwrap();
    fs::write(&image, &bytes[(start * MIB) as usize..((start + size) * MIB) as usize]).unwrap();
    image
}

#[test]
fn partitions_are_listed_and_named() {
    if !have("sfdisk") || !have("mke2fs") {
        return;
    }
    for (table, layout, ext, other) in [
        (
            "gpt",
            &[(1, 1, 8, "name=\"EFI system\""), (2, 9, 16, "name=root"), (7, 30, 16, "name=data")][..],
            2,
            7,
        ),
        (
            "dos",
            &[(1, 1, 8, "type=83"), (2, 9, 50, "type=5"), (5, 10, 16, "type=83"), (6, 30, 16, "type=83")],
            5,
            6,
        ),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let disk = disk(dir.path(), table, layout);
        let at = |number| layout.iter().find(|part| part.0 == number).unwrap().1;
        volume_at(dir.path(), &disk, at(ext), 16, "in the first");
        let (name, file) = (disk.to_str().unwrap(), place(&disk, "/f"));

        // A disk is no volume: what there is on it is said, and what to add.
        let ran = extant(["cat", &file]);
        assert_eq!(ran.code, Some(1), "{}", ran.stderr);
        let advice = format!("partition {ext} is an ext volume: add --partition {ext}");
        assert!(ran.stderr.contains(&advice), "{}", ran.stderr);

        // As sfdisk sees it.
        let ours: serde_json::Value =
            serde_json::from_slice(&extant(["info", "--json", name]).clean()).unwrap();
        let theirs: serde_json::Value = serde_json::from_str(&run("sfdisk", &["-J", name])).unwrap();
        let seen = |list: &serde_json::Value, keys: [&str; 2], unit: u64| -> Vec<(u64, u64)> {
            let number = |part: &serde_json::Value, key| part[key].as_u64().unwrap() * unit;
            list.as_array()
                .unwrap()
                .iter()
                .map(|part| (number(part, keys[0]), number(part, keys[1])))
                .collect()
        };
        let mut expected = seen(&theirs["partitiontable"]["partitions"], ["start", "size"], 512);
        // Nothing can be in the one that holds the logical ones.
        expected.retain(|&(start, _)| table == "gpt" || start != 9 * MIB);
        assert_eq!(seen(&ours["partitions"], ["start_bytes", "size_bytes"], 1), expected, "{table}");
        assert_eq!(extant(["info", name]).clean_text().lines().count(), 1 + expected.len());

        volume_at(dir.path(), &disk, at(other), 16, "in the second");
        let before = fs::read(&disk).unwrap();
        let number = ext.to_string();
        let whole = ["--partition", number.as_str()];
        let offset = (at(ext) * MIB).to_string();
        assert_eq!(extant(["cat", whole[0], whole[1], &file]).clean(), b"in the first");
        assert_eq!(extant(["cat", "--partition", &other.to_string(), &file]).clean(), b"in the second");
        assert_eq!(extant(["cat", "--offset", &offset, &file]).clean(), b"in the first");
        assert_eq!(
            extant(["--offset", &offset, "cat", "--size-limit", "16M", &file]).clean(),
            b"in the first"
        );
        if table == "gpt" {
            assert_eq!(extant(["cat", "--partition", "data", &file]).clean(), b"in the second");
        }

        // Changes stay in the partition.
        let new = place(&disk, "/new");
        extant(["put", whole[0], whole[1], dir.path().join("file").to_str().unwrap(), &new]).clean();
        let zero = ["fallocate", "-z", "-o", "3", "-l", "2", "--volume-offset", &offset, &new];
        extant(zero).clean();
        assert_eq!(extant(["cat", whole[0], whole[1], &new]).clean(), b"in \0\0e second");
        fsck(&cut_out(dir.path(), &disk, at(ext), 16));
        let (start, end) = ((at(ext) * MIB) as usize, ((at(ext) + 16) * MIB) as usize);
        let after = fs::read(&disk).unwrap();
        assert!(before[..start] == after[..start] && before[end..] == after[end..], "{table}");
        assert!(before != after);

        // What is wrong is said, and nothing is changed.
        let refused = |args: &[&str], code, told: &str| {
            let ran = extant(args);
            assert!(ran.code == Some(code) && ran.stderr.contains(told), "{args:?}: {ran:?}");
        };
        refused(&["ls", "--partition", "9", name], 1, "there is no partition 9; the table has 1");
        refused(&["ls", "--partition", "1", name], 3, "partition 1: not an ext2, ext3 or ext4 volume");
        refused(&["ls", "--offset", "70M", name], 1, "begins behind the end");
        refused(&["ls", "--offset", "100", name], 1, "does not consist of whole sectors");
        refused(&["ls", "--partition", "1", "--offset", "1M", name], 2, "leave --offset");
        refused(
            &["mkdir", "--offset", &offset, "--size-limit", "60M", &place(&disk, "/d")],
            1,
            "ends behind the end",
        );
        refused(&["shrink", "--partition", "1", name], 2, "keeps its size");
        refused(&["mkfs", "--partition", whole[1], name], 1, "holds an ext4 volume; --force writes over it");
        refused(&["mkfs", name], 1, "partition table; --force writes over it");
        assert!(fs::read(&disk).unwrap() == after);
        let volume = dir.path().join("volume");
        refused(&["ls", "--partition", "1", volume.to_str().unwrap()], 1, "there is no partition table");
    }
}

#[test]
fn a_volume_on_an_nbd_server_is_read_and_changed() {
    if !have("nbdkit") || !have("mke2fs") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    mke2fs(&image, "16M", &["-t", "ext4"]);
    let new = dir.path().join("new");
    fs::write(&new, noise(5, 300_000)).unwrap();
    let ours = env!("CARGO_BIN_EXE_extant");
    let script = format!(
        "set -e; e='nbd+unix:///?socket='$unixsocket; {ours} put {new} \"$e:/new\"; {ours} mkdir \"$e:/d\"; {ours} ls \"$e\"; \
         {ours} cat \"$e:/new\" | cmp - {new}; {ours} info \"$e\" >&2",
        new = new.display()
    );
    let mut nbdkit = Command::new("nbdkit");
    nbdkit.args(["--exit-with-parent", "-U", "-", "file"]).arg(&image).args(["--run", &script]);
    let ran = nbdkit.output().unwrap();
    let (stdout, stderr) = (String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
    assert!(ran.status.success(), "{stdout}{stderr}");
    assert!(stdout.contains("new") && stdout.contains('d'), "{stdout}{stderr}");
    fsck(&image);
    assert_eq!(extant(["cat", &place(&image, "/new")]).clean(), fs::read(&new).unwrap());
    // An address that leads nowhere is said to.
    let ran = extant(["ls", "nbd+unix:///?socket=/no/such/socket"]);
    assert!(ran.code == Some(1) && ran.stderr.contains("socket=/no/such/socket: "), "{}", ran.stderr);
    let ran = extant(["mkfs", "nbd+unix:///?socket=/no/such/socket"]);
    assert!(ran.code == Some(1) && ran.stderr.contains("socket=/no/such/socket: "), "{}", ran.stderr);
    // A volume is made on it, as large as it is.
    let script = format!(
        "set -e; e='nbd+unix:///?socket='$unixsocket; {ours} -q mkfs -L first \"$e\"; \
         if {ours} build {dir} -o \"$e\" --exclude image; then exit 9; fi; \
         {ours} -q build {dir} -o \"$e\" --exclude image --force --discard; {ours} cat \"$e:/new\" | cmp - {new}; \
         {ours} check \"$e\"; {ours} -q shrink \"$e\" -o {dir}/image --force; {ours} info \"$e\"",
        dir = dir.path().display(),
        new = new.display()
    );
    let mut nbdkit = Command::new("nbdkit");
    nbdkit.args(["--exit-with-parent", "-U", "-", "memory", "12M", "--run", &script]);
    let ran = nbdkit.output().unwrap();
    let (stdout, stderr) = (String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
    assert!(ran.status.success(), "{stdout}{stderr}");
    assert!(stderr.contains("holds an ext4 volume labelled \"first\"; --force"), "{stdout}{stderr}");
    // Its server prefers blocks of 4 KiB.
    assert!(stdout.contains("blocks:           3072\n"), "{stdout}{stderr}");
    fsck(&image);
    assert_eq!(extant(["cat", &place(&image, "/new")]).clean(), fs::read(&new).unwrap());
}

#[test]
fn volumes_are_made_in_partitions_and_existing_files() {
    if !have("sfdisk") || !have("mke2fs") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let disk = disk(dir.path(), "gpt", &[(1, 1, 8, "name=\"EFI system\""), (2, 9, 16, "name=root")]);
    let source = dir.path().join("source");
    fs::create_dir_all(source.join("etc")).unwrap();
    fs::write(source.join("etc/motd"), noise(9, 70_000)).unwrap();
    let (name, source) = (disk.to_str().unwrap(), source.to_str().unwrap());
    let before = fs::read(&disk).unwrap();
    let (start, end) = (9 * MIB as usize, 25 * MIB as usize);
    let rest_is_kept = || {
        let after = fs::read(&disk).unwrap();
        assert!(before[..start] == after[..start] && before[end..] == after[end..]);
    };
    let blocks = |at: &Path| {
        let told: serde_json::Value =
            serde_json::from_slice(&extant(["info", "--json", at.to_str().unwrap()]).clean()).unwrap();
        told["blocks"].as_u64().unwrap() * told["block_bytes"].as_u64().unwrap()
    };
    let refused = |args: &[&str], code, told: &str| {
        let before = fs::read(&disk).unwrap();
        let ran = extant(args);
        assert!(ran.code == Some(code) && ran.stderr.contains(told), "{args:?}: {ran:?}");
        assert!(fs::read(&disk).unwrap() == before, "{args:?}");
    };

    // On noise, which has no signature: as large as the partition.
    extant(["mkfs", "--partition", "root", "-L", "old", name]).clean();
    let cut = cut_out(dir.path(), &disk, 9, 16);
    assert_eq!(blocks(&cut), 16 * MIB);
    fsck(&cut);
    rest_is_kept();
    let build = ["build", source, "-o", name, "--partition", "2"];
    refused(&build, 1, "partition 2 holds an ext4 volume labelled \"old\"; --force writes over it");
    extant([&build[..], &["--force", "--discard"]].concat()).clean();
    let cut = cut_out(dir.path(), &disk, 9, 16);
    assert_eq!(blocks(&cut), 16 * MIB);
    fsck(&cut);
    assert_eq!(extant(["cat", "--partition", "2", &place(&disk, "/etc/motd")]).clean(), noise(9, 70_000));
    rest_is_kept();
    // Of a size, and at an offset.
    extant(["mkfs", "--offset", "9M", "--size-limit", "16M", "--force", name, "4M"]).clean();
    let cut = cut_out(dir.path(), &disk, 9, 16);
    assert_eq!(blocks(&cut), 4 * MIB);
    fsck(&cut);
    rest_is_kept();
    refused(&["mkfs", "--offset", "10M", "--size-limit", "4M", name], 2, "overlap partition 2");
    refused(&["mkfs", "--partition", "2", "--force", name, "17M"], 1, "name a larger disk or partition");
    fs::write(dir.path().join("source/large"), noise(2, 17 << 20)).unwrap();
    refused(&[&build[..], &["--force"]].concat(), 1, "name a larger disk or partition");
    refused(&["mkfs", "--discard", "new.img", "4M"], 2, "written in place");
    // A smaller copy of what is in a partition.
    let small = dir.path().join("small");
    extant(["shrink", "--partition", "2", name, "-o", small.to_str().unwrap()]).clean();
    fsck(&small);
    refused(&["shrink", "--partition", "2", name, "-o", name], 2, "over the disk that it is read from");
    rest_is_kept();

    // An existing file stays the same file, of the same length, if no size is given.
    let file = dir.path().join("file");
    fs::write(&file, [noise(4, 5 << 20), b"tail".to_vec()].concat()).unwrap();
    let second = dir.path().join("second");
    fs::hard_link(&file, &second).unwrap();
    extant(["mkfs", file.to_str().unwrap()]).clean();
    assert_eq!(fs::metadata(&second).unwrap().len(), (5 << 20) + 4);
    assert_eq!(blocks(&second), 5 * MIB);
    fsck(&second);
    fs::write(&file, b"text\n".repeat(50_000)).unwrap();
    let ran = extant(["mkfs", file.to_str().unwrap()]);
    assert!(ran.code == Some(1) && ran.stderr.contains("holds a text file"), "{}", ran.stderr);
    let ran = extant(["mkfs", dir.path().join("none").to_str().unwrap()]);
    assert!(ran.code == Some(2) && ran.stderr.contains("needs a size"), "{}", ran.stderr);
}
