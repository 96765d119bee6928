//! Workloads for fault tests: each has operations that prepare the volume without faults, and
//! operations that run with them.

use crate::diff::Generator;
use crate::{Durability, Op, RenameMode, XattrMode};

/// A workload for fault tests.
#[derive(Clone, Copy, Debug)]
pub struct FaultWorkload {
    /// Its name.
    pub name: &'static str,
    make: fn(u64) -> (Vec<Op>, Vec<Op>),
}

/// All of them.
pub const WORKLOADS: [FaultWorkload; 5] = [
    FaultWorkload { name: "names", make: names },
    FaultWorkload { name: "data", make: data },
    FaultWorkload { name: "attributes", make: attributes },
    FaultWorkload { name: "random", make: random },
    FaultWorkload { name: "values", make: values },
];

impl FaultWorkload {
    /// The operations without and with faults. Only `random` uses the seed.
    pub fn ops(&self, seed: u64) -> (Vec<Op>, Vec<Op>) {
        (self.make)(seed)
    }
}

fn create(path: &str) -> Op {
    Op::Create { path: path.into(), mode: 0o644, exclusive: true }
}

fn mkdir(path: &str) -> Op {
    Op::Mkdir { path: path.into(), mode: 0o755 }
}

fn rename(from: &str, to: &str) -> Op {
    Op::Rename { from: from.into(), to: to.into(), mode: RenameMode::Replace }
}

fn fsync(path: &str) -> Op {
    Op::Fsync { path: path.into() }
}

fn truncate(path: &str, size: u64) -> Op {
    Op::Truncate { path: path.into(), size }
}

fn unlink(path: &str) -> Op {
    Op::Unlink { path: path.into() }
}

fn set(path: &str, name: &str, len: usize) -> Op {
    Op::SetXattr { path: path.into(), name: name.into(), value: vec![b'v'; len], mode: XattrMode::Any }
}

/// A directory of several blocks.
fn many(dir: &str, files: u32) -> Vec<Op> {
    let mut ops = vec![mkdir(dir)];
    ops.extend((0..files).map(|n| create(&format!("{dir}/{n:03}{}", "long".repeat(20)))));
    ops
}

fn names(_: u64) -> (Vec<Op>, Vec<Op>) {
    let before = [many("many", 40), vec![mkdir("a"), mkdir("b"), create("a/x"), create("b/y"), Op::Sync]];
    let ops = vec![
        create("a/new"),
        mkdir("a/dir"),
        create("a/dir/inside"),
        fsync("a/dir/inside"),
        rename("a/x", "b/x"),
        Op::Sync,
        rename("a/new", "b/y"),
        rename("a/dir", "b/dir"),
        Op::Link { from: "b/x".into(), to: "many/linked".into() },
        fsync("b"),
        unlink(&format!("many/003{}", "long".repeat(20))),
        create(&format!("many/100{}", "long".repeat(40))),
        Op::Symlink { target: "t".repeat(200), path: "many/link".into() },
        Op::Sync,
        Op::Rmdir { path: "a".into() },
        unlink("b/dir/inside"),
        Op::Rmdir { path: "b/dir".into() },
        fsync("b/x"),
        unlink("b/x"),
    ];
    (before.concat(), ops)
}

fn data(_: u64) -> (Vec<Op>, Vec<Op>) {
    let mut before = vec![create("file"), Op::write("file", 0, 30_000, 1), create("sparse")];
    before.extend((0..8).map(|n| Op::write("sparse", n * 20_000, 1000, 2)));
    before.push(Op::Sync);
    let sync_write = |path: &str, offset, len, tag, durability| {
        let (path, direct) = (path.to_owned(), false);
        Op::Write { path, offset, len, tag, direct, durability }
    };
    let ops = vec![
        Op::write("file", 30_000, 9000, 10),
        fsync("file"),
        Op::write("file", 1000, 2000, 11),
        Op::Fdatasync { path: "file".into() },
        create("new"),
        Op::write("new", 0, 40_000, 12),
        fsync("new"),
        truncate("file", 5000),
        fsync("file"),
        truncate("sparse", 90_100),
        Op::write("sparse", 200_000, 3000, 13),
        Op::Sync,
        sync_write("file", 5000, 700, 14, Durability::All),
        sync_write("new", 100_000, 700, 15, Durability::Data),
        truncate("new", 0),
        truncate("new", 70_000),
        unlink("sparse"),
        Op::Sync,
        Op::write("file", 0, 100, 16),
    ];
    (before, ops)
}

fn attributes(_: u64) -> (Vec<Op>, Vec<Op>) {
    let before = vec![
        create("file"),
        mkdir("dir"),
        set("file", "user.a", 600),
        create("dir/other"),
        set("dir/other", "user.a", 600),
        Op::Sync,
    ];
    let ops = vec![
        set("file", "user.b", 40),
        Op::Chmod { path: "file".into(), mode: 0o600 },
        fsync("file"),
        set("dir", "user.c", 300),
        Op::Chown { path: "dir".into(), uid: 5, gid: 70_000 },
        Op::Sync,
        Op::RemoveXattr { path: "file".into(), name: "user.a".into() },
        set("dir/other", "user.a", 20),
        fsync("dir/other"),
        set("dir/other", "trusted.d", 800),
        unlink("dir/other"),
        Op::Sync,
        unlink("file"),
    ];
    (before, ops)
}

fn random(seed: u64) -> (Vec<Op>, Vec<Op>) {
    let mut generator = Generator::new(seed);
    let mut before = generator.take(120);
    before.push(Op::Sync);
    before.retain(|op| !matches!(op, Op::Hold { .. } | Op::WriteHeld { .. } | Op::Release { .. }));
    (before, generator.take(40))
}

/// Values in separate inodes, if the volume has the feature; other volumes refuse them.
fn values(_: u64) -> (Vec<Op>, Vec<Op>) {
    let before = vec![
        create("file"),
        mkdir("dir"),
        create("dir/other"),
        set("file", "user.large", 5000),
        set("dir", "user.large", 9000),
        set("file", "user.small", 300),
        Op::Sync,
    ];
    let ops = vec![
        set("file", "user.large", 20_000),
        fsync("file"),
        set("dir/other", "user.large", 20_000),
        Op::RemoveXattr { path: "dir".into(), name: "user.large".into() },
        fsync("dir/other"),
        set("file", "user.small", 6000),
        set("file", "user.large", 30),
        Op::Sync,
        unlink("file"),
        create("new"),
        set("new", "user.large", 12_000),
        fsync("new"),
        unlink("dir/other"),
        Op::Sync,
        set("new", "user.large", 2000),
    ];
    (before, ops)
}
