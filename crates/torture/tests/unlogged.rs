//! Crashes of volumes without a journal: e2fsck repairs every state, and synced data is there under
//! one of its names.

use extant_torture::campaign::{Base, Campaign, Effort, PROFILES, Profile, UNLOGGED};
use extant_torture::check::Fsck;
use extant_torture::states::{self, Options};
use extant_torture::{Durability, Fallocate, Filesystem, Op, Ours, RenameMode, Tree, pattern};

/// Contents that were durable once operation `since` had returned. Afterwards one of the paths must
/// have them, from byte `at` on.
struct Kept {
    since: usize,
    at: usize,
    data: Vec<Vec<u8>>,
    paths: Vec<String>,
}

#[derive(Default)]
struct Workload {
    ops: Vec<Op>,
    kept: Vec<Kept>,
    tag: u32,
    /// Earlier operations only prepare the volume; the power does not fail while they run.
    begins: usize,
}

impl Workload {
    fn op(&mut self, op: Op) {
        self.ops.push(op);
    }

    fn mkdir(&mut self, path: &str) {
        self.op(Op::Mkdir { path: path.into(), mode: 0o755 });
    }

    /// Creates a file with one write; returns its contents.
    fn file(&mut self, path: &str, len: u64) -> Vec<u8> {
        self.tag += 1;
        self.op(Op::Create { path: path.into(), mode: 0o644, exclusive: true });
        self.op(Op::write(path, 0, len, self.tag));
        pattern(self.tag, 0, len as usize)
    }

    fn rename(&mut self, from: &str, to: &str, mode: RenameMode) {
        self.op(Op::Rename { from: from.into(), to: to.into(), mode });
    }

    fn sync(&mut self) {
        self.op(Op::Sync);
    }

    /// From here on, one of these paths must have the contents.
    fn keeps(&mut self, data: &[u8], paths: &[&str]) {
        let paths = paths.iter().map(|&path| path.to_owned()).collect();
        self.kept.push(Kept { since: self.ops.len() - 1, at: 0, data: vec![data.to_vec()], paths });
    }

    /// From here on, the path must have one of these two contents.
    fn leads_to(&mut self, path: &str, data: [&[u8]; 2]) {
        let (data, paths) = (data.map(<[u8]>::to_vec).to_vec(), vec![path.to_owned()]);
        self.kept.push(Kept { since: self.ops.len() - 1, at: 0, data, paths });
    }

    /// Checks every crash on every kind of volume without a journal; returns the number of disks
    /// checked.
    fn check(&self, name: &str) -> u64 {
        self.check_over(name, &UNLOGGED)
    }

    fn check_over(&self, name: &str, profiles: &[Profile]) -> u64 {
        if !Fsck::is_installed() {
            println!("skipped: e2fsck is not installed (apt-get install e2fsprogs)");
            return u64::MAX;
        }
        let fsck = Fsck::new().unwrap();
        let look = |profile: &Profile| self.check_on(&profile.make().unwrap(), &fsck, profile.name);
        let looked: Vec<u64> = profiles.iter().map(look).collect();
        println!("{name}: {looked:?} disks");
        looked.into_iter().sum()
    }

    fn check_on(&self, base: &Base, fsck: &Fsck, profile: &str) -> u64 {
        let ours = Ours::new(1);
        let run = ours.run(&base.image, &self.ops).unwrap();
        for (op, (_, _, result)) in self.ops.iter().zip(&run.marks) {
            assert!(result.is_ok(), "{op}: {result:?}");
        }
        let promises: Vec<usize> = run.marks.iter().map(|&(_, returned, _)| returned).collect();
        let options = Options { exhaustive: 3, sampled: 4, torn: 0, seed: 1 };
        let mut seen = std::collections::BTreeSet::new();
        states::each(&run.log, &base.image, &promises, options, None, &mut |state| {
            let (completed, _) = run.progress(state.cut);
            if completed < self.begins || !seen.insert((state.image.hash(), completed)) {
                return true;
            }
            let mended =
                fsck.mend(&state.image).unwrap_or_else(|error| panic!("{profile}: {state}: {error}"));
            let tree =
                ours.recover(&mended).unwrap_or_else(|error| panic!("{profile}: {state}: {error}")).tree;
            for kept in self.kept.iter().filter(|kept| kept.since < completed) {
                assert!(
                    is_kept(kept, &tree),
                    "{profile}: {state}: none of {:?} in {}",
                    kept.paths,
                    list(&tree)
                );
            }
            true
        });
        seen.len() as u64
    }
}

fn is_kept(kept: &Kept, tree: &Tree) -> bool {
    // If a directory has two entries with the same name, e2fsck renames the second.
    let fits = |found: &str, path: &str| {
        found == path || found.strip_prefix(path).is_some_and(|rest| rest.starts_with('~'))
    };
    tree.nodes.iter().any(|(path, found)| {
        let rest = found.data.get(kept.at..).unwrap_or_default();
        kept.data.iter().any(|data| rest.starts_with(data))
            && kept.paths.iter().any(|wanted| fits(path, wanted))
    })
}

fn list(tree: &Tree) -> String {
    let line = |(path, found): (&String, &extant_torture::Found)| {
        format!("/{path} ({:?}, {} bytes)", found.stat.kind, found.stat.size)
    };
    tree.nodes.iter().map(line).collect::<Vec<_>>().join(", ")
}

/// Two directories whose blocks are not adjacent, so that each is written separately.
fn two() -> Workload {
    let mut workload = Workload::default();
    workload.mkdir("a");
    workload.mkdir("between");
    workload.mkdir("b");
    workload
}

#[test]
fn a_renamed_file_is_under_its_old_or_its_new_name() {
    let mut w = two();
    let (moved, other) = (w.file("a/x", 3000), w.file("b/y", 2000));
    w.sync();
    w.keeps(&moved, &["a/x", "b/x2"]);
    w.keeps(&other, &["b/y", "a/y2"]);
    // Both blocks gain a name and lose one.
    w.rename("a/x", "b/x2", RenameMode::Replace);
    w.rename("b/y", "a/y2", RenameMode::Replace);
    w.sync();
    w.keeps(&moved, &["b/x2"]);
    w.keeps(&other, &["a/y2"]);
    assert!(w.check("rename between directories") > 20);
}

#[test]
fn a_renamed_directory_takes_its_files_along() {
    let mut w = two();
    w.mkdir("a/d");
    let inside = w.file("a/d/x", 1500);
    w.sync();
    w.keeps(&inside, &["a/d/x", "b/d/x"]);
    w.rename("a/d", "b/d", RenameMode::Replace);
    w.sync();
    w.keeps(&inside, &["b/d/x"]);
    w.check("rename of a directory");
}

#[test]
fn a_file_that_replaces_another_is_never_missing() {
    let mut w = two();
    let old = w.file("b/target", 1000);
    w.sync();
    let new = w.file("a/new", 1200);
    w.sync();
    w.leads_to("b/target", [&old, &new]);
    w.keeps(&new, &["a/new", "b/target"]);
    w.rename("a/new", "b/target", RenameMode::Replace);
    w.sync();
    w.keeps(&new, &["b/target"]);
    w.check("replace by rename");
}

#[test]
fn files_that_change_places_are_both_there() {
    let mut w = two();
    let (x, y) = (w.file("a/x", 1000), w.file("b/y", 1000));
    w.sync();
    w.keeps(&x, &["a/x", "b/y"]);
    w.keeps(&y, &["a/x", "b/y"]);
    w.rename("a/x", "b/y", RenameMode::Exchange);
    w.sync();
    w.keeps(&x, &["b/y"]);
    w.keeps(&y, &["a/x"]);
    w.check("exchange");
}

#[test]
fn a_linked_file_outlives_its_first_name() {
    let mut w = two();
    let data = w.file("a/first", 900);
    w.sync();
    w.keeps(&data, &["a/first", "b/second"]);
    w.op(Op::Link { from: "a/first".into(), to: "b/second".into() });
    w.op(Op::Unlink { path: "a/first".into() });
    w.sync();
    w.keeps(&data, &["b/second"]);
    w.check("link and unlink");
}

#[test]
fn names_outlive_the_growth_of_their_directory() {
    let mut w = two();
    let long = |n: u32| format!("a/{n:03}{}", "n".repeat(200));
    let mut files = Vec::new();
    for n in 0..4 {
        files.push((long(n), w.file(&long(n), 100)));
    }
    w.sync();
    for (path, data) in &files {
        w.keeps(data, &[path]);
    }
    // The directory gets a second block (on ext4, a hash tree), and then its leaves split.
    for n in 4..12 {
        w.file(&long(n), 50);
    }
    w.sync();
    w.check("growth of a directory");
}

#[test]
fn data_outlive_the_growth_of_their_map() {
    let mut w = two();
    w.op(Op::Create { path: "a/sparse".into(), mode: 0o644, exclusive: true });
    // Five extents do not fit in the inode and need a node; a block map needs indirect blocks.
    w.op(Op::write("a/sparse", 0, 1024, 70));
    w.op(Op::write("a/sparse", 20 << 10, 1024, 71));
    w.op(Op::write("a/sparse", 300 << 10, 1024, 72));
    w.sync();
    let mut data = vec![0; 301 << 10];
    data[..1024].copy_from_slice(&pattern(70, 0, 1024));
    data[20 << 10..][..1024].copy_from_slice(&pattern(71, 20 << 10, 1024));
    data[300 << 10..].copy_from_slice(&pattern(72, 300 << 10, 1024));
    w.keeps(&data, &["a/sparse"]);
    for n in 0..4_u64 {
        w.op(Op::write("a/sparse", (400 + 20 * n) << 10, 1024, 80 + n as u32));
    }
    w.op(Op::Fsync { path: "a/sparse".into() });
    w.check("growth of a map");
}

/// A file with a full extent tree leaf: every second block is mapped, from block 40 on. Returns its
/// contents.
fn full_leaf(w: &mut Workload) -> Vec<u8> {
    let mut data = vec![0; (40 + 2 * 84 - 1) << 10];
    w.op(Op::Create { path: "sparse".into(), mode: 0o644, exclusive: true });
    for n in 0..84_u64 {
        let at = (40 + 2 * n) << 10;
        w.op(Op::write("sparse", at, 1024, 100));
        data[at as usize..][..1024].copy_from_slice(&pattern(100, at, 1024));
    }
    w.op(Op::Fsync { path: "sparse".into() });
    w.begins = w.ops.len();
    data
}

/// Writes a block, and updates `data` to match.
fn write_block(w: &mut Workload, data: &mut [u8], block: u64) {
    w.op(Op::write("sparse", block << 10, 1024, 101));
    data[(block << 10) as usize..][..1024].copy_from_slice(&pattern(101, block << 10, 1024));
}

fn punch(w: &mut Workload, data: &mut [u8], block: u64, blocks: u64) {
    let (offset, len) = (block << 10, blocks << 10);
    w.op(Op::Fallocate { path: "sparse".into(), mode: Fallocate::Punch, offset, len });
    data[offset as usize..][..len as usize].fill(0);
}

#[test]
fn data_outlive_the_split_of_a_leaf_of_their_map() {
    let mut w = Workload::default();
    let before = full_leaf(&mut w);
    let (written, mut after) = (w.ops.len() - 1, before.clone());
    write_block(&mut w, &mut after, 101);
    w.leads_to("sparse", [&before, &after]);
    w.kept[0].since = written;
    w.op(Op::Fsync { path: "sparse".into() });
    w.keeps(&after, &["sparse"]);
    assert!(w.check_over("split of a leaf", &UNLOGGED[1..]) > 10);
}

/// Between commits, the range of blocks mapped by one leaf moves to another leaf, and is used
/// there.
#[test]
fn data_outlive_a_hole_that_is_filled_from_the_leaf_before_it() {
    let mut w = Workload::default();
    let mut data = full_leaf(&mut w);
    write_block(&mut w, &mut data, 101);
    w.op(Op::Fsync { path: "sparse".into() });
    for (from, until) in [(40, 118), (132, 207)] {
        w.keeps(&data[from << 10..until << 10], &["sparse"]);
        w.kept.last_mut().unwrap().at = from << 10;
    }
    // These include the first block of the file's second leaf, wherever that is.
    for block in (118..132).step_by(2) {
        punch(&mut w, &mut data, block, 1);
    }
    for block in (119..131).step_by(2) {
        write_block(&mut w, &mut data, block);
    }
    write_block(&mut w, &mut data, 20);
    w.op(Op::Fsync { path: "sparse".into() });
    w.keeps(&data, &["sparse"]);
    w.check_over("hole between leaves", &UNLOGGED[1..2]);
}

/// Linux writes the file's data, but may leave its inode to the next write-back.
#[test]
fn fsync_without_a_journal_writes_the_inode_and_the_names_that_lead_to_it() {
    let mut w = Workload::default();
    w.mkdir("new");
    w.mkdir("new/dir");
    let data = w.file("new/dir/file", 5000);
    w.op(Op::Fsync { path: "new/dir/file".into() });
    w.keeps(&data, &["new/dir/file", "new/dir/renamed"]);
    w.rename("new/dir/file", "new/dir/renamed", RenameMode::Replace);
    w.op(Op::Fsync { path: "new/dir/renamed".into() });
    w.keeps(&data, &["new/dir/renamed"]);
    let more = w.file("new/synchronous", 0);
    assert!(more.is_empty());
    w.op(Op::Write {
        path: "new/synchronous".into(),
        offset: 0,
        len: 700,
        tag: 90,
        direct: false,
        durability: Durability::All,
    });
    w.keeps(&pattern(90, 0, 700), &["new/synchronous"]);
    w.check("fsync");
}

fn synchronous(path: &str, offset: u64, len: u64, tag: u32) -> Op {
    let (path, direct, durability) = (path.to_owned(), false, Durability::All);
    Op::Write { path, offset, len, tag, direct, durability }
}

/// A single open with `O_SYNC` and `O_TRUNC`.
fn rewrite(path: &str, len: u64, tag: u32) -> Op {
    Op::Rewrite { path: path.into(), len, tag, durability: Durability::All }
}

/// With and without a journal.
const BOTH: [Profile; 2] = [PROFILES[0], UNLOGGED[0]];

/// Linux may leave a size of 4,096: the block that the small write did not touch is not written.
#[test]
fn a_small_synchronous_write_after_a_large_buffered_one_keeps_its_size() {
    let mut w = Workload::default();
    let mut data = w.file("file", 5000);
    w.op(synchronous("file", 100, 10, 91));
    data[100..110].copy_from_slice(&pattern(91, 100, 10));
    w.keeps(&data, &["file"]);
    w.check_over("small synchronous write", &BOTH);
}

/// Linux may lose the name of a file truncated by an open for synchronous writes.
#[test]
fn a_truncated_file_that_is_written_synchronously_keeps_its_name() {
    let mut w = Workload::default();
    w.file("file", 3000);
    w.op(rewrite("file", 700, 92));
    w.keeps(&pattern(92, 0, 700), &["file"]);
    w.rename("file", "renamed", RenameMode::Replace);
    w.op(rewrite("renamed", 800, 93));
    w.keeps(&pattern(93, 0, 800), &["renamed"]);
    // The first contents are truncated again.
    w.kept.remove(0);
    w.check_over("synchronous write of a truncated file", &BOTH);
}

/// Linux may checkpoint a freed directory block after its location was reused for file data.
#[test]
fn a_freed_directory_block_that_becomes_data_holds_the_data() {
    let mut w = Workload::default();
    w.mkdir("a");
    for round in 0..2 {
        for n in 0..6 {
            w.mkdir(&format!("a/{n}"));
            w.mkdir(&format!("a/{n}/below"));
        }
        w.sync();
        for n in 0..6 {
            w.op(Op::Rmdir { path: format!("a/{n}/below") });
            w.op(Op::Rmdir { path: format!("a/{n}") });
        }
        w.sync();
        let path = format!("file{round}");
        let data = w.file(&path, 24 << 10);
        w.op(Op::Fsync { path: path.clone() });
        w.keeps(&data, &[&path]);
    }
    w.check_over("freed directory blocks", &BOTH);
}

/// A volume with inline directories. debugfs makes them, since Extant creates directories in
/// blocks.
fn with_inline_directories(names: &[&str]) -> Base {
    let profile = Profile::new(
        "ext4-inline-unlogged",
        &["-t", "ext4", "-b", "1024", "-I", "256", "-O", "^has_journal,inline_data"],
        2 << 10,
    );
    let mut base = profile.make().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("image");
    std::fs::write(&path, base.image.to_vec()).unwrap();
    let debugfs = |args: &[&str]| {
        let out = std::process::Command::new("debugfs").args(args).arg(&path).output().unwrap();
        String::from_utf8_lossy(&out.stdout).into_owned()
    };
    for name in names {
        debugfs(&["-w", "-R", &format!("mkdir {name}")]);
        let stat = debugfs(&["-R", &format!("stat {name}")]);
        assert!(stat.contains("Flags: 0x10000000"), "it has its names in its inode");
    }
    base.image = extant_torture::Image::new(std::fs::read(&path).unwrap().into());
    base
}

/// Their inodes, 12 and 13, are in different blocks of the inode table.
#[test]
fn a_name_that_moves_between_directories_in_their_inodes_is_kept() {
    if !Fsck::is_installed() {
        println!("skipped: e2fsck is not installed (apt-get install e2fsprogs)");
        return;
    }
    let (base, fsck) = (with_inline_directories(&["a", "b"]), Fsck::new().unwrap());
    let mut w = Workload::default();
    let moved = w.file("a/x", 3000);
    w.sync();
    w.keeps(&moved, &["a/x", "b/x", "a/y"]);
    w.rename("a/x", "b/x", RenameMode::Replace);
    w.sync();
    w.keeps(&moved, &["a/y", "b/x"]);
    w.rename("b/x", "a/y", RenameMode::Replace);
    w.sync();
    w.keeps(&moved, &["a/y"]);
    let looked = w.check_on(&base, &fsck, "two directories in their inodes");
    assert!(looked > 10, "{looked} disks");
}

#[test]
fn names_that_come_to_and_leave_a_directory_in_its_inode_are_kept() {
    if !Fsck::is_installed() {
        println!("skipped: e2fsck is not installed (apt-get install e2fsprogs)");
        return;
    }
    let (base, fsck) = (with_inline_directories(&["a"]), Fsck::new().unwrap());
    let mut w = Workload::default();
    w.mkdir("b");
    let (moved, other) = (w.file("a/x", 3000), w.file("b/y", 2000));
    w.sync();
    w.keeps(&moved, &["a/x", "b/x2", "a/x3"]);
    w.keeps(&other, &["b/y", "a/y2", "b/z"]);
    w.rename("a/x", "b/x2", RenameMode::Replace);
    w.sync();
    w.rename("b/y", "a/y2", RenameMode::Replace);
    w.sync();
    w.op(Op::Link { from: "a/y2".into(), to: "b/z".into() });
    w.op(Op::Unlink { path: "a/y2".into() });
    w.sync();
    w.keeps(&other, &["b/z"]);
    // In the commit in which the directory loses one name and gains another, it moves from its
    // inode to a block.
    let last = w.file("a/last", 1000);
    w.sync();
    w.keeps(&last, &["a/last", "b/last"]);
    w.rename("a/last", "b/last", RenameMode::Replace);
    w.file(&format!("a/{}", "long".repeat(50)), 100);
    w.rename("b/x2", "a/x3", RenameMode::Replace);
    w.sync();
    w.keeps(&moved, &["a/x3"]);
    w.keeps(&last, &["b/last"]);
    let looked = w.check_on(&base, &fsck, "inline_data without a journal");
    assert!(looked > 20, "{looked} disks");
}

/// The device does not start out zeroed, and mke2fs has written only the first blocks of the inode
/// tables.
#[test]
fn a_table_of_inodes_shows_nothing_that_was_there_before_the_volume() {
    if !Fsck::is_installed() {
        println!("skipped: e2fsck is not installed (apt-get install e2fsprogs)");
        return;
    }
    let effort =
        Effort { options: Options { torn: 0, ..Options::default() }, fsck_every: 1, ..Effort::default() };
    let campaign = Campaign::new(Profile::named("ext4-unlogged-groups").unwrap(), 1, effort).unwrap();
    let create = |n: u32| Op::Create { path: format!("f{n}"), mode: 0o644, exclusive: true };
    let mut ops: Vec<Op> = (0..6).map(create).collect();
    ops.extend([Op::Mkdir { path: "d".into(), mode: 0o755 }, Op::Sync]);
    let tally = campaign
        .check(&extant_torture::Workload { name: "tables".into(), ops })
        .unwrap_or_else(|failure| panic!("{failure}"));
    assert!(tally.distinct > 3, "{tally}");
}
