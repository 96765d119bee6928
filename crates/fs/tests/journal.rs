//! Dirty journals: applied in memory when a volume is opened, replayed on disk by `recover`. The
//! journals are written by debugfs 1.47 (`journal_write`) and by the kernel; e2fsck and the kernel
//! are the oracles.

use extant_block::{FileDevice, FileOptions};
use extant_fs::{Damage, Error, Follow, OpenOptions, Volume, recover};
use extant_rt::Rt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

fn have(tool: &str) -> bool {
    let found = Command::new(tool).arg("-V").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok();
    if !found {
        println!("skipped: {tool} is not installed (apt-get install e2fsprogs)");
    }
    found
}

fn run(command: &str, args: &[&str]) -> String {
    let out = Command::new(command).args(args).stdin(Stdio::null()).output().unwrap();
    let text = String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
    assert!(out.status.code().is_some_and(|code| code <= 1), "{command} {args:?}: {text}");
    text
}

fn device(path: &Path, write: bool) -> Arc<FileDevice> {
    Arc::new(FileDevice::open(path, FileOptions { write, ..FileOptions::default() }).unwrap())
}

fn rt() -> Rt {
    Rt::real(Default::default())
}

fn open(path: &Path, damage: Damage) -> Result<Volume, Error> {
    rt().block_on(Volume::open(device(path, false), OpenOptions { damage, ..OpenOptions::default() }))
        .unwrap()
}

fn read(volume: &Volume, path: &str) -> Vec<u8> {
    rt().block_on(async {
        let inode = volume.resolve(path.as_bytes(), Follow::No).await?;
        let mut bytes = vec![0; inode.size() as usize];
        volume.open_file(inode).await?.read_at(0, &mut bytes).await?;
        Ok::<_, Error>(bytes)
    })
    .unwrap()
    .unwrap()
}

const BLOCK: usize = 1024;
/// Blocks of the file whose contents the journals replace.
const BLOCKS: usize = 40;

/// A volume with a file of 40 blocks filled with `o`, and the numbers of these blocks.
struct Image {
    dir: tempfile::TempDir,
    blocks: Vec<u64>,
}

impl Image {
    fn new(mke2fs: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("root");
        std::fs::create_dir(&root).unwrap();
        std::fs::write(root.join("file"), vec![b'o'; BLOCKS * BLOCK]).unwrap();
        let image = dir.path().join("image");
        let mut args = vec!["-q", "-b", "1024", "-d", root.to_str().unwrap()];
        args.extend_from_slice(mke2fs);
        args.extend([image.to_str().unwrap(), "16M"]);
        run("mke2fs", &args);
        let listed = run("debugfs", &["-R", "blocks /file", image.to_str().unwrap()]);
        let is_list = |line: &&str| line.split_whitespace().count() >= BLOCKS;
        let list = listed.lines().find(is_list).expect(&listed);
        // Without extents, the 13th number is the file's indirect block.
        let blocks = list.split_whitespace().map(|b| b.parse().unwrap()).collect();
        Self { dir, blocks }
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("image")
    }

    /// Writes transactions with debugfs: `("w", fill, which blocks)` commits, `("u", …)` lacks the
    /// commit block, `("r", _, …)` revokes.
    fn journal(&self, open: &str, transactions: &[(&str, u8, std::ops::Range<usize>)]) {
        let mut script = format!("{open}\n");
        for (n, (kind, fill, which)) in transactions.iter().enumerate() {
            let list: Vec<String> = self.blocks[which.clone()].iter().map(u64::to_string).collect();
            let list = list.join(",");
            let mut data = vec![*fill; which.len() * BLOCK];
            if *fill == 0 {
                // A block that looks like one of the journal's must be escaped.
                data.chunks_mut(BLOCK).for_each(|b| b[..4].copy_from_slice(&[0xc0, 0x3b, 0x39, 0x98]));
            }
            let file = self.dir.path().join(format!("data{n}"));
            std::fs::write(&file, data).unwrap();
            let file = file.display();
            match *kind {
                "w" => script += &format!("jw -b {list} {file}\n"),
                "u" => script += &format!("jw -c -b {list} {file}\n"),
                "r" => script += &format!("jw -r {list}\n"),
                _ => unreachable!(),
            }
        }
        script += "jc\n";
        let commands = self.dir.path().join("commands");
        std::fs::write(&commands, script).unwrap();
        let said = run("debugfs", &["-w", "-f", commands.to_str().unwrap(), self.path().to_str().unwrap()]);
        assert!(!said.contains("rror"), "{said}");
    }

    /// Rotates the log, which begins at block 1 of the journal, to begin `before_end` blocks before
    /// its end.
    fn turn_log(&self, before_end: usize) {
        let listed = run("debugfs", &["-R", "blocks <8>", self.path().to_str().unwrap()]);
        let list = listed.lines().find(|line| line.split_whitespace().count() > BLOCKS).expect(&listed);
        let journal: Vec<usize> = list.split_whitespace().map(|b| b.parse().unwrap()).collect();
        let mut bytes = std::fs::read(self.path()).unwrap();
        let mut log: Vec<Vec<u8>> =
            journal[1..].iter().map(|&b| bytes[b * BLOCK..(b + 1) * BLOCK].to_vec()).collect();
        log.rotate_right(before_end);
        for (&at, block) in journal[1..].iter().zip(&log) {
            bytes[at * BLOCK..(at + 1) * BLOCK].copy_from_slice(block);
        }
        let start = (journal.len() - before_end) as u32;
        let s_start = journal[0] * BLOCK + 0x1c;
        bytes[s_start..s_start + 4].copy_from_slice(&start.to_be_bytes());
        std::fs::write(self.path(), bytes).unwrap();
    }

    /// Compares what we see, what our recovery writes, and what e2fsck's does.
    fn check(&self, what: &str) {
        let seen_before = read(&open(&self.path(), Damage::Fail).unwrap(), "/file");
        let before = std::fs::read(self.path()).unwrap();
        let theirs = self.dir.path().join("theirs");
        std::fs::copy(self.path(), &theirs).unwrap();
        let said = run("e2fsck", &["-fy", "-E", "journal_only", theirs.to_str().unwrap()]);

        let recovery = rt()
            .block_on(recover(&rt(), device(&self.path(), true), OpenOptions::default()))
            .unwrap()
            .unwrap();
        assert!(!recovery.was_clean, "{what}");
        run("e2fsck", &["-fn", self.path().to_str().unwrap()]);
        let ours = read(&open(&self.path(), Damage::Fail).unwrap(), "/file");
        assert_eq!(ours, seen_before, "{what}: the view in memory and the replay agree");
        let expected = read(&open(&theirs, Damage::Fail).unwrap(), "/file");
        let summary = |b: &[u8]| b.chunks(BLOCK).map(|b| b[4] as char).collect::<String>();
        assert!(
            ours == expected,
            "{what}: {} here, {} by e2fsck ({said})",
            summary(&ours),
            summary(&expected)
        );

        // A second recovery finds nothing to do and writes nothing.
        let after = std::fs::read(self.path()).unwrap();
        assert_ne!(before, after);
        let again = rt()
            .block_on(recover(&rt(), device(&self.path(), true), OpenOptions::default()))
            .unwrap()
            .unwrap();
        assert!(again.was_clean);
        assert_eq!(after, std::fs::read(self.path()).unwrap());
    }
}

/// Every descriptor format that debugfs writes: 32 and 64 bits, no checksums, versions 2 and 3.
#[test]
fn every_tag_format() {
    if !have("debugfs") {
        return;
    }
    for features in
        ["^64bit,^metadata_csum", "64bit,^metadata_csum", "64bit,metadata_csum", "^64bit,metadata_csum"]
    {
        for open in ["jo", "jo -c -v 2", "jo -c -v 3"] {
            let image = Image::new(&["-t", "ext4", "-O", features]);
            image.journal(open, &[("w", b'a', 0..30), ("w", b'b', 10..20), ("w", 0, 15..17)]);
            image.check(&format!("{features}, {open}"));
        }
    }
}

/// A revoke voids older copies, not newer ones.
#[test]
fn revokes() {
    if !have("debugfs") {
        return;
    }
    for open in ["jo", "jo -c -v 3"] {
        let image = Image::new(&["-t", "ext4"]);
        image.journal(open, &[("w", b'a', 0..30), ("r", 0, 5..25), ("w", b'b', 10..15)]);
        image.check(open);
    }
}

/// A transaction without a commit block is not replayed.
#[test]
fn uncommitted_transactions_are_dropped() {
    if !have("debugfs") {
        return;
    }
    let image = Image::new(&["-t", "ext3"]);
    image.journal("jo", &[("w", b'a', 0..5), ("u", b'b', 0..9)]);
    image.check("uncommitted");
}

/// A log that wraps from the end of the journal to its first block. debugfs always starts at the
/// first block. But log blocks do not contain their own position, so rotating the ring makes the
/// log wrap.
#[test]
fn the_log_wraps_around() {
    if !have("debugfs") {
        return;
    }
    for turn in [1, 5, 33, 40] {
        let image = Image::new(&["-t", "ext4", "-O", "^metadata_csum"]);
        image.journal("jo", &[("w", b'a', 0..30), ("r", 0, 3..9), ("w", b'b', 5..20)]);
        image.turn_log(turn);
        image.check(&format!("log begins {turn} blocks before the end"));
    }
}

/// A copy with a wrong checksum is reported and not used.
#[test]
fn a_damaged_copy_is_named() {
    if !have("debugfs") {
        return;
    }
    let image = Image::new(&["-t", "ext4"]);
    image.journal("jo -c -v 3", &[("w", b'a', 0..3), ("w", b'b', 3..5)]);
    let mut bytes = std::fs::read(image.path()).unwrap();
    let copy = bytes.windows(BLOCK).position(|w| w == [b'a'; BLOCK]).expect("the copy lies in the journal");
    bytes[copy + 100] = b'x';
    std::fs::write(image.path(), bytes).unwrap();

    let refused = open(&image.path(), Damage::Fail).unwrap_err();
    let volume = open(&image.path(), Damage::Report).unwrap();
    assert_eq!(volume.problems().len(), 1);
    assert_eq!(volume.problems()[0].to_string(), refused.to_string());
    assert!(refused.to_string().starts_with("journal block "), "{refused}");
    let seen: String = read(&volume, "/file").chunks(BLOCK).map(|b| b[0] as char).collect();
    assert_eq!(&seen[..6], "oaabbo");
}

/// When a file is created, Linux logs the changes to bitmaps, descriptors and inodes, but seldom
/// the superblock with the total counts.
#[test]
fn the_free_counts_of_a_replayed_volume_are_true() {
    if !have("debugfs") {
        return;
    }
    let sets: [&[&str]; 4] = [
        &["-t", "ext4"],
        &["-t", "ext3"],
        &["-t", "ext4", "-O", "orphan_file"],
        &["-t", "ext4", "-O", "bigalloc,^resize_inode", "-C", "4096"],
    ];
    for mke2fs in sets {
        let image = Image::new(mke2fs);
        let new = image.dir.path().join("new");
        std::fs::write(&new, vec![b'n'; 20 * BLOCK]).unwrap();
        let before = std::fs::read(image.path()).unwrap();
        let changed = image.dir.path().join("changed");
        std::fs::copy(image.path(), &changed).unwrap();
        let write = format!("write {} created", new.display());
        run("debugfs", &["-w", "-R", &write, changed.to_str().unwrap()]);
        let after = std::fs::read(&changed).unwrap();

        // All differing blocks go into one transaction, except the superblock, which is block 1.
        let (mut numbers, mut data) = (Vec::new(), Vec::new());
        for (n, (old, new)) in before.chunks(BLOCK).zip(after.chunks(BLOCK)).enumerate() {
            if n != 1 && old != new {
                numbers.push(n.to_string());
                data.extend_from_slice(new);
            }
        }
        let (file, script) = (image.dir.path().join("data"), image.dir.path().join("script"));
        std::fs::write(&file, data).unwrap();
        std::fs::write(&script, format!("jo\njw -b {} {}\njc\n", numbers.join(","), file.display())).unwrap();
        run("debugfs", &["-w", "-f", script.to_str().unwrap(), image.path().to_str().unwrap()]);
        let orphans = mke2fs.contains(&"orphan_file");
        if orphans {
            // As Linux leaves it: the flag is set while the volume is mounted.
            let path = image.path();
            run("debugfs", &["-w", "-R", "feature orphan_present", path.to_str().unwrap()]);
        }

        let recovery = rt()
            .block_on(recover(&rt(), device(&image.path(), true), OpenOptions::default()))
            .unwrap()
            .unwrap();
        assert!(!recovery.was_clean && !recovery.has_orphans, "{mke2fs:?}: {recovery:?}");
        let said = Command::new("e2fsck").args(["-fn", image.path().to_str().unwrap()]).output().unwrap();
        let text = String::from_utf8_lossy(&said.stdout);
        assert!(said.status.success() && !text.contains("wrong"), "{mke2fs:?}: {text}");
        let volume = open(&image.path(), Damage::Fail).unwrap();
        assert_eq!(read(&volume, "/created"), vec![b'n'; 20 * BLOCK]);
    }
}
