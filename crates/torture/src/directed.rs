//! Workloads for situations that ACE's two operations on a fresh volume do not reach: a log that
//! wraps, blocks that change their use, orphans, directories that are split and moved.

use crate::subject::CAPABILITY;
use crate::{Durability, Fallocate, Op, RenameMode, Workload, XattrMode};

/// All of them, in a fixed order.
pub fn all() -> Vec<Workload> {
    let make = |name: &str, ops: Vec<Op>| Workload { name: format!("directed {name}"), ops };
    vec![
        make("overwrite", overwrite()),
        make("synchronous", synchronous()),
        make("replace", replace()),
        make("replace by a file without a name", replace_by_link()),
        make("small files", small_files()),
        make("early reuse", early_reuse()),
        make("revoke", revoke()),
        make("orphans", orphans()),
        make("moves", moves()),
        make("attributes", attributes()),
        make("values", values()),
        make("privileges", privileges()),
        make("links", links()),
        make("splits", splits()),
        make("wrap", wrap()),
        make("space", space()),
        make("ranges", ranges()),
        make("journalled", journalled()),
        make("clusters", clusters()),
        make("map nodes", map_nodes()),
        make("many revokes", many_revokes()),
    ]
}

fn create(path: &str) -> Op {
    Op::Create { path: path.into(), mode: 0o644, exclusive: true }
}

fn mkdir(path: &str) -> Op {
    Op::Mkdir { path: path.into(), mode: 0o755 }
}

fn rmdir(path: &str) -> Op {
    Op::Rmdir { path: path.into() }
}

fn unlink(path: &str) -> Op {
    Op::Unlink { path: path.into() }
}

fn fsync(path: &str) -> Op {
    Op::Fsync { path: path.into() }
}

fn fdatasync(path: &str) -> Op {
    Op::Fdatasync { path: path.into() }
}

fn rename(from: &str, to: &str) -> Op {
    Op::Rename { from: from.into(), to: to.into(), mode: RenameMode::Replace }
}

fn synced_write(path: &str, offset: u64, len: u64, tag: u32, durability: Durability) -> Op {
    Op::Write { path: path.into(), offset, len, tag, direct: false, durability }
}

/// Data, some durable and some not, in place and at the end.
fn overwrite() -> Vec<Op> {
    vec![
        create("a"),
        Op::write("a", 0, 9_000, 1),
        fsync("a"),
        Op::write("a", 1_000, 3_000, 2),
        fdatasync("a"),
        Op::write("a", 8_000, 5_000, 3),
        fdatasync("a"),
        Op::write("a", 2_000, 500, 4),
        fsync("a"),
        synced_write("a", 13_000, 700, 5, Durability::All),
        synced_write("a", 0, 2_048, 6, Durability::Data),
        // The bytes past the size once had other contents.
        Op::Truncate { path: "a".into(), size: 1_500 },
        Op::Truncate { path: "a".into(), size: 6_000 },
        fsync("a"),
        Op::write("a", 5_000, 3_000, 7),
        Op::Sync,
        Op::write("a", 0, 100, 8),
        fsync("a"),
    ]
}

/// Synchronous writes mixed with buffered ones: the size, and the name of a file truncated by the
/// open.
fn synchronous() -> Vec<Op> {
    let rewrite =
        |path: &str, len, tag| Op::Rewrite { path: path.into(), len, tag, durability: Durability::All };
    vec![
        create("a"),
        Op::write("a", 0, 5_000, 1),
        synced_write("a", 100, 10, 2, Durability::All),
        create("b"),
        Op::write("b", 0, 5_000, 3),
        synced_write("b", 100, 10, 4, Durability::Data),
        create("c"),
        Op::write("c", 0, 3_000, 5),
        rewrite("c", 700, 6),
        rename("c", "d"),
        rewrite("d", 800, 7),
    ]
}

/// A file whose data goes through the log for a while. Another file, whose data does not, reuses
/// its blocks.
fn journalled() -> Vec<Op> {
    let flag = |path: &str, flags| Op::SetFlags { path: path.into(), flags };
    let fallocate = |path: &str, mode, offset, len| Op::Fallocate { path: path.into(), mode, offset, len };
    let direct = |path: &str, offset, len, tag| {
        let durability = Durability::None;
        Op::Write { path: path.into(), offset, len, tag, direct: true, durability }
    };
    vec![
        create("a"),
        Op::write("a", 0, 12_000, 1),
        flag("a", 0x4000),
        Op::write("a", 1_000, 3_000, 2),
        fsync("a"),
        Op::write("a", 500, 9_000, 3),
        fdatasync("a"),
        direct("a", 2_048, 4_096, 4),
        synced_write("a", 12_000, 30_000, 5, Durability::Data),
        fallocate("a", Fallocate::Punch, 3_000, 6_000),
        fallocate("a", Fallocate::Zero, 20_000, 9_000),
        Op::write("a", 24_000, 2_000, 6),
        fsync("a"),
        // Reuse its blocks for another file's data.
        Op::Truncate { path: "a".into(), size: 1_500 },
        fsync("a"),
        create("b"),
        Op::write("b", 0, 40_000, 7),
        fdatasync("b"),
        Op::write("a", 1_000, 5_000, 8),
        fsync("a"),
        flag("a", 0),
        Op::write("a", 0, 8_000, 9),
        fsync("a"),
        flag("b", 0x4000),
        Op::Rewrite { path: "b".into(), len: 6_000, tag: 10, durability: Durability::None },
        Op::Sync,
        Op::write("b", 3_000, 9_000, 11),
        unlink("b"),
        Op::write("a", 6_000, 20_000, 12),
        Op::Sync,
    ]
}

/// Blocks that are allocated and freed while others of the same cluster stay (`bigalloc`, with
/// clusters of four 1 KiB blocks or sixteen 4 KiB blocks). One file's data goes through the log and
/// another's does not, and there are syncs in between. A cluster's last block is freed too, and the
/// cluster reused.
fn clusters() -> Vec<Op> {
    let fallocate = |path: &str, mode, offset, len| Op::Fallocate { path: path.into(), mode, offset, len };
    let truncate = |path: &str, size| Op::Truncate { path: path.into(), size };
    let mut ops = vec![create("a"), create("b"), Op::SetFlags { path: "a".into(), flags: 0x4000 }];
    // Work in the file's first cluster, then in the last cluster of a longer file, with blocks of 1
    // KiB and of 4 KiB.
    for (round, unit) in [(0, 1 << 10), (1, 4 << 10), (2, 1 << 10)] {
        let tag = round * 20;
        let base = if round == 2 { 64 << 10 } else { 0 };
        let at = |block: u64| base + block * unit;
        ops.extend([
            Op::write("a", at(0), 4 * unit, tag),
            fsync("a"),
            fallocate("a", Fallocate::Punch, at(1), unit),
            fsync("a"),
            Op::write("a", at(1), unit, tag + 1),
            fdatasync("a"),
            // Punch and rewrite blocks within one transaction, then in two.
            fallocate("a", Fallocate::Punch, at(0), 2 * unit),
            Op::write("a", at(0) + 100, unit, tag + 2),
            fsync("a"),
            fallocate("a", Fallocate::Punch, at(2) + 500, 2 * unit - 500),
            Op::write("a", at(3), unit / 2, tag + 3),
            Op::Sync,
            truncate("a", at(1) + 300),
            Op::write("a", at(2), unit, tag + 4),
            fsync("a"),
            truncate("a", at(1)),
            fsync("a"),
            truncate("a", at(4)),
            Op::write("a", at(3), unit, tag + 5),
            fdatasync("a"),
            // The whole cluster is freed, reused for data that is not logged, then for names, and
            // back.
            fallocate("a", Fallocate::Punch, base, 64 << 10),
            Op::write("b", 0, 20_000, tag + 6),
            fsync("b"),
            mkdir("d"),
            fsync("d"),
            Op::write("a", at(1), 2 * unit, tag + 7),
            fsync("a"),
            truncate("b", 700),
            rmdir("d"),
            Op::write("a", at(4), 5 * unit, tag + 8),
            Op::Sync,
            fallocate("a", Fallocate::Zero, at(2), unit),
            Op::write("a", at(5), 10, tag + 9),
            fsync("a"),
        ]);
    }
    ops.extend([
        truncate("a", 0),
        Op::write("b", 700, 9_000, 70),
        fsync("b"),
        Op::write("a", 0, 3_000, 71),
        unlink("b"),
        Op::write("a", 3_000, 9_000, 72),
        fsync("a"),
    ]);
    ops
}

/// Space allocated and freed without writes, over bytes that must not come back.
fn space() -> Vec<Op> {
    let fallocate = |path: &str, mode, offset, len| Op::Fallocate { path: path.into(), mode, offset, len };
    vec![
        create("a"),
        create("b"),
        Op::write("a", 0, 40_000, 1),
        fsync("a"),
        fallocate("a", Fallocate::Punch, 5_000, 20_000),
        // Reuse the freed blocks for another file's data.
        Op::write("b", 0, 30_000, 2),
        fdatasync("b"),
        fallocate("b", Fallocate::Zero, 1_000, 12_000),
        fallocate("b", Fallocate::KeepSize, 30_000, 60_000),
        Op::write("b", 2_000, 4_000, 3),
        fsync("b"),
        Op::write("b", 50_000, 3_000, 4),
        fallocate("a", Fallocate::Allocate, 10_000, 60_000),
        fallocate("a", Fallocate::ZeroKeepSize, 35_000, 50_000),
        Op::Sync,
        Op::write("a", 66_000, 5_000, 5),
        fallocate("a", Fallocate::Punch, 60_000, 100_000),
        Op::Truncate { path: "b".into(), size: 51_000 },
        fsync("a"),
    ]
}

/// Ranges collapsed, inserted or copied between files, mixed with unsynced writes.
fn ranges() -> Vec<Op> {
    let fallocate = |path: &str, mode, offset, len| Op::Fallocate { path: path.into(), mode, offset, len };
    let copy = |from: &str, at, to: &str, to_at, len| Op::CopyRange {
        from: from.into(),
        at,
        to: to.into(),
        to_at,
        len,
    };
    vec![
        create("a"),
        create("b"),
        Op::write("a", 0, 50_000, 1),
        fsync("a"),
        fallocate("a", Fallocate::Collapse, 4_096, 8_192),
        Op::write("a", 3_000, 3_000, 2),
        fsync("a"),
        fallocate("a", Fallocate::Insert, 8_192, 4_096),
        Op::write("a", 10_000, 5_000, 3),
        copy("a", 2_000, "b", 1_000, 20_000),
        fdatasync("b"),
        fallocate("b", Fallocate::Collapse, 0, 4_096),
        fallocate("b", Fallocate::Insert, 4_096, 8_192),
        synced_write("b", 100, 10, 4, Durability::Data),
        Op::write("a", 40_000, 9_000, 5),
        fallocate("a", Fallocate::Collapse, 0, 16_384),
        copy("b", 0, "b", 40_000, 9_000),
        Op::SetProject { path: "b".into(), project: 7 },
        copy("b", 30_000, "a", 500, 14_000),
        Op::Sync,
        Op::SetProject { path: "".into(), project: 8 },
        Op::Truncate { path: "a".into(), size: 6_000 },
        fallocate("b", Fallocate::Insert, 0, 4_096),
        fsync("a"),
    ]
}

/// New contents under an old name, without a sync of the new file.
fn replace() -> Vec<Op> {
    let mut ops = vec![create("a"), Op::write("a", 0, 5_000, 1), fsync("a")];
    for round in 0..3 {
        ops.extend([
            create("new"),
            Op::write("new", 0, 6_000 + round, 2 + round as u32),
            rename("new", "a"),
            fsync(""),
        ]);
    }
    ops
}

/// A file that is linked over another's name once it is complete, and never has any other name.
fn replace_by_link() -> Vec<Op> {
    let over = |slot, to: &str| Op::LinkHeldOver { slot, to: to.into() };
    let mut ops = vec![create("a"), Op::write("a", 0, 5_000, 1), fsync("a"), mkdir("d")];
    ops.push(Op::Link { from: "a".into(), to: "other".into() });
    for round in 0..3_u8 {
        let tag = 2 + u32::from(round);
        ops.extend([
            Op::Tmpfile { slot: round, dir: if round == 1 { "d" } else { "" }.into(), mode: 0o600 },
            Op::WriteHeld { slot: round, offset: 0, len: 6_000 + u64::from(round), tag },
            over(round, "a"),
            // Linking a file over its own name changes nothing.
            over(round, "a"),
            over(round, &format!("d/new{round}")),
            fsync(""),
            Op::Chmod { path: "a".into(), mode: 0o640 },
        ]);
    }
    ops.extend([over(0, "other"), Op::Release { slot: 0 }, Op::Release { slot: 1 }, Op::Sync]);
    ops.extend([over(2, "d/new0"), Op::Release { slot: 2 }, fsync("d")]);
    ops
}

/// Files that are made together, each with all of its contents, among other changes of the same
/// directories, and in blocks that were another file's.
fn small_files() -> Vec<Op> {
    let put = |path: &str, len, tag, waits| Op::Put { path: path.into(), mode: 0o640, len, tag, waits };
    let mut ops = vec![mkdir("d"), create("old"), Op::write("old", 0, 20_000, 1), Op::Sync, unlink("old")];
    ops.extend([put("a", 5_000, 2, true), put("d/a", 0, 3, true), put("d/b", 4_096, 4, false)]);
    ops.extend([fsync("d"), rename("d/b", "a"), put("b", 9_000, 5, false), fsync("")]);
    ops.extend([unlink("a"), put("c", 1, 6, true), put("d/c", 300, 7, false), Op::write("c", 1, 6_000, 8)]);
    ops.extend([Op::Sync, put("e", 12_000, 9, false), Op::Truncate { path: "e".into(), size: 100 }]);
    ops.extend([put("d/e", 2_000, 10, true), put("d/f", 2_000, 11, false), fsync("d/e"), unlink("d/f")]);
    ops
}

/// Files whose removal is not yet durable when later files could use their blocks.
fn early_reuse() -> Vec<Op> {
    let old: Vec<String> = (0..6).map(|n| format!("old{n}")).collect();
    let new: Vec<String> = (0..6).map(|n| format!("new{n}")).collect();
    let mut ops = vec![];
    for (n, path) in old.iter().enumerate() {
        ops.extend([create(path), Op::write(path, 0, 4_096, n as u32)]);
    }
    ops.push(Op::Sync);
    ops.extend(old.iter().map(|path| unlink(path)));
    for (n, path) in new.iter().enumerate() {
        ops.extend([create(path), Op::write(path, 0, 4_096, 50 + n as u32)]);
    }
    ops.extend([fsync("new5"), Op::Truncate { path: "new1".into(), size: 0 }]);
    ops.extend([create("last"), Op::write("last", 0, 8_192, 90), fsync("last")]);
    ops
}

/// Directory blocks that become file blocks.
fn revoke() -> Vec<Op> {
    let dirs: Vec<String> = (0..6).map(|n| format!("dir{n}")).collect();
    let mut ops: Vec<Op> = dirs.iter().map(|path| mkdir(path)).collect();
    ops.extend([create("dir0/x"), Op::Sync, unlink("dir0/x")]);
    ops.extend(dirs.iter().map(|path| rmdir(path)));
    ops.push(Op::Sync);
    for n in 0..4 {
        let path = format!("file{n}");
        ops.extend([create(&path), Op::write(&path, 0, 12_000, n), fsync(&path)]);
    }
    // And the reverse: blocks of files become blocks of a directory.
    ops.extend((0..4).map(|n| unlink(&format!("file{n}"))));
    ops.push(Op::Sync);
    ops.extend(dirs.iter().map(|path| mkdir(path)));
    ops.extend([fsync("dir5"), Op::Sync]);
    ops
}

/// Indirect blocks and extent nodes that become data, from files that are truncated, emptied and
/// deleted.
fn map_nodes() -> Vec<Op> {
    let mut ops = vec![];
    for n in 0..3_u32 {
        let path = format!("sparse{n}");
        ops.push(create(&path));
        // More pointers and extents than fit in the inode.
        ops.extend((0..5).map(|k| Op::write(&path, (14 + 3 * k) << 10, 1024, n)));
    }
    ops.extend([Op::Sync, Op::Truncate { path: "sparse0".into(), size: 1_000 }]);
    ops.extend([Op::Truncate { path: "sparse1".into(), size: 0 }, unlink("sparse2"), Op::Sync]);
    for n in 0..4 {
        let path = format!("file{n}");
        ops.extend([create(&path), Op::write(&path, 0, 12_000, 10 + n), fsync(&path)]);
    }
    ops
}

/// More revoked blocks in one transaction than fit in one revoke block, and files that reuse the
/// revoked blocks.
fn many_revokes() -> Vec<Op> {
    let dirs: Vec<String> = (0..150).map(|n| format!("d{n}")).collect();
    let mut ops: Vec<Op> = dirs.iter().map(|path| mkdir(path)).collect();
    ops.push(Op::Sync);
    ops.extend(dirs.iter().map(|path| rmdir(path)));
    ops.push(Op::Sync);
    for n in 0..20 {
        let path = format!("f{n}");
        ops.extend([create(&path), Op::write(&path, 0, 12_000, n), fsync(&path)]);
    }
    ops
}

/// Files that outlive their names, and a late deletion.
fn orphans() -> Vec<Op> {
    let mut ops = vec![];
    for slot in 0..3 {
        let path = format!("f{slot}");
        ops.extend([create(&path), Op::write(&path, 0, 7_000, slot.into()), Op::Hold { slot, path }]);
    }
    ops.extend([Op::Sync, unlink("f0"), fsync(""), unlink("f1")]);
    ops.push(Op::WriteHeld { slot: 1, offset: 7_000, len: 2_000, tag: 9 });
    ops.extend([mkdir("d"), fsync("d"), Op::Release { slot: 0 }, unlink("f2"), Op::Sync]);
    ops.extend([create("g"), fsync("g"), Op::Release { slot: 1 }, create("h"), fsync("h")]);
    ops
}

/// Directories and files that are moved.
fn moves() -> Vec<Op> {
    let mut ops: Vec<Op> = ["a", "b", "a/sub", "b/other"].map(mkdir).into();
    ops.extend([create("a/sub/file"), Op::write("a/sub/file", 0, 3_000, 1), Op::Sync]);
    ops.extend([rename("a/sub", "b/sub"), fsync("b/sub"), rename("b/sub/file", "a/file"), fsync("a/file")]);
    ops.push(Op::Rename { from: "b/other".into(), to: "a/file".into(), mode: RenameMode::Exchange });
    ops.extend([fsync("b"), mkdir("c"), rename("b/sub", "c"), fsync("c"), rename("c", "a/c"), Op::Sync]);
    ops
}

/// Attributes in the inode, in a separate block, and removed.
fn attributes() -> Vec<Op> {
    let set = |name: &str, len: usize, byte: u8| Op::SetXattr {
        path: "a".into(),
        name: format!("user.{name}"),
        value: vec![byte; len],
        mode: XattrMode::Any,
    };
    let remove = |name: &str| Op::RemoveXattr { path: "a".into(), name: format!("user.{name}") };
    vec![
        create("a"),
        set("small", 10, 1),
        fsync("a"),
        set("large", 600, 2),
        fsync("a"),
        Op::Chmod { path: "a".into(), mode: 0o4755 },
        Op::Chown { path: "a".into(), uid: 70_000, gid: 3 },
        fsync("a"),
        remove("large"),
        Op::Sync,
        create("b"),
        Op::write("b", 0, 5_000, 1),
        fsync("b"),
        set("large", 700, 3),
        remove("small"),
        Op::Sync,
        unlink("a"),
        create("c"),
        Op::write("c", 0, 9_000, 2),
        fsync("c"),
    ]
}

/// Attribute values in separate inodes, if the volume has the feature: created, replaced, moved
/// back, and released with their owners. Then data reuses their blocks.
fn values() -> Vec<Op> {
    let set = |path: &str, name: &str, len: usize, byte: u8| Op::SetXattr {
        path: path.into(),
        name: format!("user.{name}"),
        value: vec![byte; len],
        mode: XattrMode::Any,
    };
    let remove = |path: &str, name: &str| Op::RemoveXattr { path: path.into(), name: format!("user.{name}") };
    vec![
        create("a"),
        set("a", "large", 20_000, 1),
        fsync("a"),
        set("a", "other", 3_000, 2),
        mkdir("d"),
        set("d", "large", 5_000, 3),
        fsync("d"),
        set("a", "large", 9_000, 4),
        set("a", "small", 100, 5),
        Op::Sync,
        set("a", "large", 200, 6),
        remove("a", "other"),
        create("b"),
        Op::write("b", 0, 30_000, 1),
        fsync("b"),
        set("a", "large", 40_000, 7),
        set("a", "other", 2_000, 8),
        fsync("a"),
        unlink("a"),
        rmdir("d"),
        create("c"),
        Op::write("c", 0, 20_000, 2),
        set("c", "large", 8_000, 9),
        fsync("c"),
    ]
}

/// Access lists, their effect on the mode, and their inheritance from a directory. Capabilities,
/// which are lost when the contents or the owner change.
fn privileges() -> Vec<Op> {
    let set = |path: &str, name: &str, value: &[u8]| Op::SetXattr {
        path: path.into(),
        name: name.into(),
        value: value.into(),
        mode: XattrMode::Any,
    };
    let entry = |tag: u16, permissions: u16, id: u32| {
        [&tag.to_le_bytes()[..], &permissions.to_le_bytes(), &id.to_le_bytes()].concat()
    };
    let version = 2_u32.to_le_bytes().to_vec();
    let [owner, group, other] = [1, 4, 0x20].map(|tag| entry(tag, 6, u32::MAX));
    let list = [version, owner, entry(2, 7, 70_000), group, entry(0x10, 5, u32::MAX), other].concat();
    // `vfs_cap_data` of revision 2: one capability, permitted and effective.
    let capability = [&0x0200_0001_u32.to_le_bytes()[..], &1_u32.to_le_bytes(), &[0; 12]].concat();
    vec![
        create("a"),
        Op::write("a", 0, 3_000, 1),
        set("a", CAPABILITY, &capability),
        fsync("a"),
        Op::write("a", 100, 200, 2),
        fsync("a"),
        set("a", CAPABILITY, &capability),
        Op::Sync,
        Op::Chown { path: "a".into(), uid: 70_000, gid: 3 },
        fsync("a"),
        mkdir("d"),
        set("d", "system.posix_acl_default", &list),
        fsync("d"),
        Op::Create { path: "d/f".into(), mode: 0o640, exclusive: true },
        mkdir("d/e"),
        fsync("d/f"),
        set("a", "system.posix_acl_access", &list),
        fsync("a"),
        Op::Chmod { path: "a".into(), mode: 0o604 },
        fsync("a"),
        Op::RemoveXattr { path: "a".into(), name: "system.posix_acl_access".into() },
        Op::RemoveXattr { path: "d".into(), name: "system.posix_acl_default".into() },
        Op::Sync,
    ]
}

/// Names of one inode in several directories; symlink targets in a block.
fn links() -> Vec<Op> {
    let link = |from: &str, to: &str| Op::Link { from: from.into(), to: to.into() };
    let long = "t/".repeat(60);
    vec![
        mkdir("d"),
        create("a"),
        Op::write("a", 0, 2_000, 1),
        fsync("a"),
        link("a", "d/b"),
        fsync("a"),
        unlink("a"),
        fsync(""),
        link("d/b", "c"),
        Op::Symlink { target: long.clone(), path: "s".into() },
        fsync("d"),
        unlink("d/b"),
        fsync("d"),
        unlink("s"),
        Op::Sync,
        Op::Symlink { target: long, path: "d/s".into() },
        create("e"),
        Op::write("e", 0, 4_000, 2),
        fsync("e"),
        unlink("d/s"),
        rmdir("d"),
        unlink("c"),
        Op::Sync,
    ]
}

/// A directory that grows a hash tree and loses names again.
fn splits() -> Vec<Op> {
    let name = |n: u32| format!("d/{n:03}{}", "x".repeat(120));
    let mut ops = vec![mkdir("d")];
    for n in 0..24 {
        ops.push(create(&name(n)));
        if n % 8 == 7 {
            ops.push(fsync("d"));
        }
    }
    ops.extend((0..24).step_by(3).map(|n| unlink(&name(n))));
    ops.push(fsync("d"));
    ops.extend((24..32).map(|n| create(&name(n))));
    ops.extend([rename(&name(1), &name(100)), fsync("d")]);
    ops
}

/// Enough metadata to fill the 1 MiB log more than once, so that its tail moves and blocks are
/// checkpointed.
fn wrap() -> Vec<Op> {
    let mut ops = vec![create("kept"), Op::write("kept", 0, 3_000, 1), fsync("kept")];
    for round in 0..14 {
        let dirs: Vec<String> = (0..60).map(|n| format!("d{n}")).collect();
        ops.extend(dirs.iter().map(|path| mkdir(path)));
        ops.push(Op::Sync);
        ops.extend(dirs.iter().map(|path| rmdir(path)));
        ops.push(Op::Sync);
        // Names created and removed within one transaction, in blocks that the file may reuse.
        let brief: Vec<String> = (0..8).map(|n| format!("t{n}")).collect();
        ops.extend(brief.iter().map(|path| mkdir(path)));
        ops.extend(brief.iter().map(|path| rmdir(path)));
        ops.push(Op::Sync);
        let path = format!("f{round}");
        ops.extend([create(&path), Op::write(&path, 0, 20_000, round), fsync(&path)]);
    }
    ops
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Host, Model, Tree, apply};

    /// Without this test, a mistake in a workload would go unnoticed: an operation that fails tests
    /// nothing.
    #[test]
    fn every_operation_succeeds_on_the_host() {
        rustix::process::umask(rustix::fs::Mode::empty());
        for workload in all() {
            let root = tempfile::tempdir().unwrap();
            let mut host = Host::new(root.path()).unwrap();
            let mut model = Model::new(&Tree::of(&mut host).unwrap());
            for op in &workload.ops {
                let result = apply(&mut host, op);
                // The host may lack access lists, or the right to set capabilities and to change
                // owners.
                let of_user = |name: &str| name.starts_with("user.");
                let may_fail = match op {
                    Op::Fallocate { mode: Fallocate::Collapse | Fallocate::Insert, .. } => true,
                    Op::SetProject { .. } | Op::SetFlags { .. } => true,
                    // The host does not accept large values either.
                    Op::SetXattr { name, value, .. } => !of_user(name) || value.len() > 1000,
                    Op::RemoveXattr { name, .. } => !of_user(name) || workload.name.contains("values"),
                    op => matches!(op, Op::Chown { .. } | Op::Sync),
                };
                let allowed = may_fail || result.is_ok();
                assert!(allowed, "{}: {op}: {result:?}", workload.name);
                model.record(op, result).unwrap();
            }
        }
    }
}
