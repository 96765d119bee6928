use super::*;
use crate::{Found, Kind, Stat, Time, pattern};

fn node(inode: u64, kind: Kind, mode: u32, nlink: u64, data: &[u8]) -> Found {
    let mtime = Time { seconds: 0, nanos: 0 };
    let size = data.len() as u64;
    let (device, flags, project) = ((0, 0), 0, None);
    let stat = Stat { inode, kind, mode, uid: 0, gid: 0, nlink, size, device, mtime, flags, project };
    Found { stat, data: data.into(), target: None, xattrs: BTreeMap::new() }
}

fn root(nlink: u64) -> Found {
    node(2, Kind::Dir, 0o755, nlink, &[])
}

fn tree(files: &[(&str, &[u8])]) -> Tree {
    let mut nodes = BTreeMap::from([(String::new(), root(2))]);
    for (inode, (path, data)) in files.iter().enumerate() {
        nodes.insert((*path).to_owned(), node(10 + inode as u64, Kind::File, 0o644, 1, data));
    }
    Tree { nodes }
}

fn model(ops: &[Op]) -> Model {
    let mut model = Model::new(&tree(&[]));
    for op in ops {
        let count = op.data().map_or(0, |data| data.len() as u64);
        model.record(op, Ok(count)).unwrap();
    }
    model
}

fn create(path: &str) -> Op {
    Op::Create { path: path.into(), mode: 0o644, exclusive: true }
}

fn fsync(path: &str) -> Op {
    Op::Fsync { path: path.into() }
}

fn truncate(path: &str, size: u64) -> Op {
    Op::Truncate { path: path.into(), size }
}

#[test]
fn names_survive_in_order() {
    let model = model(&[create("a"), create("b"), create("c")]);
    for (names, explained) in [(&[][..], true), (&["a"], true), (&["a", "b"], true), (&["b"], false)] {
        let files: Vec<(&str, &[u8])> = names.iter().map(|&name| (name, &[][..])).collect();
        assert_eq!(model.explain(&tree(&files), 3, 3).is_ok(), explained, "{names:?}");
    }
}

#[test]
fn a_sync_brings_everything_before_its_file_along() {
    let model = model(&[create("a"), create("b"), fsync("b"), create("c")]);
    assert!(model.explain(&tree(&[("a", &[]), ("b", &[])]), 3, 4).is_ok());
    assert!(model.explain(&tree(&[("a", &[])]), 2, 3).is_ok(), "the sync had not returned");
    let violation = model.explain(&tree(&[("a", &[])]), 3, 4).unwrap_err();
    assert_eq!(
        violation.to_string(),
        "no prefix of 2 to 4 operations explains it; after 3:\n  /b is missing"
    );
}

#[test]
fn unsynced_bytes_are_old_new_or_zero_and_synced_ones_are_there() {
    let (old, new) = (pattern(1, 0, 8192), pattern(2, 4096, 4096));
    let ops = [create("a"), Op::write("a", 0, 8192, 1), fsync("a"), Op::write("a", 4096, 4096, 2)];
    let model = model(&ops);
    let holds = |data: &[u8]| model.explain(&tree(&[("a", data)]), 4, 4).is_ok();
    assert!(holds(&old));
    assert!(holds(&[&old[..4096], &new].concat()));
    assert!(holds(&[&old[..6000], &new[1904..]].concat()), "torn between sectors or even within");
    assert!(holds(&[&old[..4096], &[0; 4096]].concat()));
    assert!(!holds(&[&[0; 512], &old[512..]].concat()), "the first block was synced");
    assert!(!holds(&[&old[..4096], &pattern(3, 4096, 4096)[..]].concat()), "another file's bytes");
    assert!(!holds(&old[..4096]), "the size was synced");
}

#[test]
fn the_size_grows_over_written_bytes_only() {
    let ops = [create("a"), Op::write("a", 1000, 500, 1)];
    let model = model(&ops);
    let data = pattern(1, 1000, 500);
    let holds = |data: &[u8]| model.explain(&tree(&[("a", data)]), 2, 2).is_ok();
    assert!(holds(&[]));
    assert!(holds(&[&[0; 1000], &data[..]].concat()));
    assert!(holds(&[&[0; 1000], &data[..24]].concat()));
    assert!(!holds(&[0; 700]), "no write went there");
    assert!(!holds(&[0; 1501]));
}

#[test]
fn after_a_failed_write_back_a_file_ends_with_a_block_that_has_its_place() {
    let ops = [create("a"), Op::write("a", 0, 300, 1), fsync("a"), Op::write("a", 2000, 3000, 2)];
    let (old, new) = (pattern(1, 0, 300), pattern(2, 2000, 3000));
    let whole = [&old[..], &[0; 1700], &new].concat();
    let (sound, failed) = (model(&ops), model(&ops).after_failed_writes(1024));
    let holds =
        |model: &Model, data: &[u8]| model.explain(&tree(&[("a", data)]), model.len(), model.len()).is_ok();
    for end in [1024, 2048, 4096] {
        assert_eq!(holds(&sound, &whole[..end]), end > 2000, "{end}");
        assert!(holds(&failed, &whole[..end]), "{end}");
    }
    assert!(!holds(&failed, &whole[..700]), "within a block");
    assert!(!holds(&failed, &[&old[..], &[7; 724]].concat()), "stale bytes");
    assert!(!holds(&failed, &[&[0; 300][..], &[0; 724]].concat()), "synced bytes");
    let failed = model(&[&ops[..], &[Op::write("a", 500, 100, 3)]].concat()).after_failed_writes(1024);
    let late = pattern(3, 500, 100);
    assert!(holds(&failed, &[&whole[..500], &late, &[0; 424]].concat()));
    assert!(!holds(&failed, &[&whole[..500], &late[..50], &[0; 474]].concat()), "half a write");
}

#[test]
fn a_range_that_is_taken_out_is_there_or_gone_whatever_was_written_since() {
    let collapse =
        Op::Fallocate { path: "a".into(), mode: crate::Fallocate::Collapse, offset: 1024, len: 1024 };
    let before = [create("a"), Op::write("a", 0, 4096, 1), fsync("a"), collapse];
    let unsynced = model(&[&before[..], &[Op::write("a", 1024, 1024, 2)]].concat());
    let (old, new) = (pattern(1, 0, 4096), pattern(2, 1024, 1024));
    let holds =
        |model: &Model, data: &[u8]| model.explain(&tree(&[("a", data)]), model.len(), model.len()).is_ok();
    assert!(holds(&unsynced, &old));
    assert!(holds(&unsynced, &[&old[..1024], &old[2048..]].concat()));
    assert!(holds(&unsynced, &[&old[..1024], &new, &old[3072..]].concat()));
    assert!(holds(&unsynced, &[&old[..2048], &new, &old[3072..]].concat()), "in the block that was to move");
    assert!(!holds(&unsynced, &[&old[..1024], &new, &old[2048..]].concat()), "written where it was not");
    assert!(!holds(&unsynced, &[&old[..1024], &old[2048..], &[0; 1024]].concat()), "not cut");
    let synced = model(&[&before[..], &[fsync("a")]].concat());
    assert!(holds(&synced, &[&old[..1024], &old[2048..]].concat()) && !holds(&synced, &old));
}

#[test]
fn ranges_put_in_and_copied_are_known() {
    let insert = Op::Fallocate { path: "a".into(), mode: crate::Fallocate::Insert, offset: 1024, len: 2048 };
    let copy = Op::CopyRange { from: "a".into(), at: 500, to: "b".into(), to_at: 100, len: 3000 };
    let mut model = Model::new(&tree(&[]));
    for op in [create("a"), Op::write("a", 0, 3000, 1), insert, create("b"), copy, Op::Sync] {
        let count = op.data().map_or(3000, |data| data.len() as u64);
        model.record(&op, Ok(count)).unwrap();
    }
    let old = pattern(1, 0, 3000);
    let a = [&old[..1024], &[0; 2048], &old[1024..]].concat();
    let b = [&[0; 100], &a[500..3500]].concat();
    assert!(model.explain(&tree(&[("a", &a), ("b", &b)]), 6, 6).is_ok());
    assert!(model.explain(&tree(&[("a", &a), ("b", &a[..3100])]), 6, 6).is_err());
    assert!(model.explain(&tree(&[("a", &old), ("b", &b)]), 6, 6).is_err());
}

#[test]
fn bytes_that_were_cut_off_do_not_come_back() {
    let ops = [
        create("a"),
        Op::write("a", 0, 4096, 1),
        fsync("a"),
        truncate("a", 1000),
        fsync("a"),
        truncate("a", 4096),
    ];
    let model = model(&ops);
    let old = pattern(1, 0, 4096);
    let holds = |data: &[u8]| model.explain(&tree(&[("a", data)]), 6, 6).is_ok();
    assert!(holds(&old[..1000]));
    assert!(holds(&[&old[..1000], &[0; 3096]].concat()));
    assert!(!holds(&old));
}

#[test]
fn a_tail_may_read_zero_before_its_truncation_survives() {
    let model = model(&[create("a"), Op::write("a", 0, 4096, 1), fsync("a"), truncate("a", 1000)]);
    let old = pattern(1, 0, 4096);
    let holds = |data: &[u8]| model.explain(&tree(&[("a", data)]), 4, 4).is_ok();
    assert!(holds(&old) && holds(&old[..1000]));
    assert!(holds(&[&old[..1000], &[0; 3096]].concat()));
    assert!(!holds(&[&[0; 1000], &old[1000..]].concat()));
}

#[test]
fn replacing_by_rename_carries_the_contents() {
    let rename = Op::Rename { from: "new".into(), to: "old".into(), mode: RenameMode::Replace };
    let model = model(&[
        create("old"),
        Op::write("old", 0, 100, 1),
        fsync("old"),
        create("new"),
        Op::write("new", 0, 200, 2),
        rename,
    ]);
    let (old, new) = (pattern(1, 0, 100), pattern(2, 0, 200));
    assert!(model.explain(&tree(&[("old", &new)]), 6, 6).is_ok());
    assert!(model.explain(&tree(&[("old", &old)]), 6, 6).is_ok());
    assert!(model.explain(&tree(&[("old", &old), ("new", &[])]), 6, 6).is_ok());
    assert!(model.explain(&tree(&[("old", &[])]), 6, 6).is_err(), "an empty file under the old name");
    assert!(model.explain(&tree(&[("old", &[0; 200])]), 6, 6).is_err());
}

#[test]
fn hard_links_are_one_inode() {
    let model = model(&[create("a"), Op::Link { from: "a".into(), to: "b".into() }, Op::Sync]);
    let mut two = tree(&[("a", &[]), ("b", &[])]);
    two.nodes.values_mut().for_each(|found| found.stat.nlink = 2);
    assert!(model.explain(&two, 3, 3).is_err());
    two.nodes.get_mut("b").unwrap().stat.inode = two.nodes["a"].stat.inode;
    assert!(model.explain(&two, 3, 3).is_ok());
}

#[test]
fn a_synchronous_write_makes_its_own_bytes_durable() {
    let synchronous = Op::Write {
        path: "a".into(),
        offset: 4096,
        len: 4096,
        tag: 2,
        direct: false,
        durability: Durability::All,
    };
    let model = model(&[create("a"), Op::write("a", 0, 4096, 1), synchronous]);
    let (first, second) = (pattern(1, 0, 4096), pattern(2, 4096, 4096));
    let holds = |data: &[u8]| model.explain(&tree(&[("a", data)]), 3, 3).is_ok();
    assert!(holds(&[&first[..], &second].concat()) && holds(&[&[0; 4096][..], &second].concat()));
    assert!(!holds(&first) && !holds(&[&first[..], &[0; 4096]].concat()));
}

#[test]
fn the_second_of_two_equal_names_is_known_by_either_of_e2fscks_names() {
    let is_renamed = super::synced::is_renamed;
    for (was, path, so) in [
        ("a/file", "a/fi~0", true),
        ("a/file", "a/file~1", true),
        ("a/file/x", "a/fi~0/x", true),
        ("a/file", "a/fo~0", false),
        ("a/file", "a/fi~x", false),
        ("a/file", "b/fi~0", false),
        ("a/file", "fi~0", false),
    ] {
        assert_eq!(is_renamed(was, path), so, "{path} for {was}");
    }
}
