//! Small files that are made together.

use super::*;
use crate::{FileOptions as OpenOptions, SmallFile};
use extant_block::{Bio, IoErrorKind, Limits, Op};
use extant_format::Timestamp;
use std::sync::atomic::{AtomicUsize, Ordering};

const VOLUMES: [&str; 4] = [
    "-t ext4 -O orphan_file,quota 16M",
    "-t ext4 -b 1024 -O inline_data,^has_journal 16M",
    "-t ext3 -b 1024 16M",
    "-t ext2 -b 2048 -I 128 16M",
];

const ACCESSED: Timestamp = Timestamp { seconds: 1_500_000_000, nanos: 0 };
const MODIFIED: Timestamp = Timestamp { seconds: 1_600_000_000, nanos: 0 };

fn small(contents: &[u8]) -> SmallFile<'_> {
    SmallFile {
        permissions: 0o4751,
        uid: 70_000,
        gid: 80_000,
        accessed: ACCESSED,
        modified: MODIFIED,
        contents,
    }
}

fn contents(n: usize, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at % 251 + n + 1) as u8).collect()
}

async fn read(node: &Node) -> Vec<u8> {
    let file = node.open(&Caller::root(), OpenOptions::default()).unwrap();
    let mut bytes = vec![0; file.size() as usize];
    assert_eq!(file.read(0, &mut bytes).await.unwrap(), bytes.len());
    bytes
}

#[test]
fn files_made_together_have_all_that_they_were_given() {
    if !have_tools() {
        return;
    }
    let sizes = [0, 1, 1000, 4096, 5000, 12_000, 13_000, 70_000, 0, 100];
    for args in VOLUMES {
        let dir = tempfile::tempdir().unwrap();
        let image = make(dir.path(), args);
        let caller = Caller::root();
        within(&image, async |bed, root| {
            // Neither group nor list of the directory is passed on.
            let dir = root.mkdir(&caller, b"d", 0o2755).await.unwrap();
            let group = SetAttributes { gid: Some(5), permissions: Some(0o2755), ..Default::default() };
            dir.set_attributes(&caller, &group).await.unwrap();
            let list = b"\x02\0\0\0\x01\0\x07\0\xff\xff\xff\xff\x02\0\x07\0\x09\0\0\0\x04\0\0\0\xff\xff\xff\xff\x10\0\x07\0\xff\xff\xff\xff\x20\0\0\0\xff\xff\xff\xff";
            let default = b"system.posix_acl_default";
            dir.set_xattr(&caller, default, list, SetMode::Any).await.unwrap();
            let mut files = bed.volume.small_files(&caller).unwrap();
            let mut together = Vec::new();
            for (n, bytes) in sizes.into_iter().enumerate() {
                let (name, parent) = (format!("f{n}"), [root, &dir][n % 2]);
                let bytes = contents(n, bytes);
                let number = files.add(parent, name.as_bytes(), &small(&bytes)).await.unwrap();
                assert_eq!(files.contains(parent, name.as_bytes()), number.is_some());
                together.extend(number.map(|number| (parent.clone(), name, number, bytes)));
            }
            // What twelve pointers in an inode do not reach is made in steps.
            let expected = match args {
                _ if args.contains("ext3") => 8,
                _ if args.contains("ext2") => 9,
                _ => 10,
            };
            assert_eq!((together.len(), files.len()), (expected, expected), "{args}");
            files.make().await.unwrap();
            for (parent, name, number, bytes) in &together {
                let node = parent.lookup(&caller, name.as_bytes()).await.unwrap();
                let found = node.attributes().unwrap();
                assert_eq!((node.inode(), found.links, found.permissions), (*number, 1, 0o4751), "{args}");
                assert_eq!((found.uid, found.gid, found.size), (70_000, 80_000, bytes.len() as u64));
                assert_eq!((found.accessed, found.modified), (ACCESSED, MODIFIED), "{args}");
                assert!(node.xattrs(&caller).await.unwrap().is_empty(), "{args}");
                assert!(read(&node).await == *bytes, "{args}: {name}");
            }
        });
        check_is_silent(&image, args);
    }
}

#[test]
fn what_cannot_be_made_leaves_those_before_it_and_nothing_else() {
    if !have_tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = make(dir.path(), "-t ext4 -N 64 16M");
    let caller = Caller::root();
    within(&image, async |bed, root| {
        let mut files = bed.volume.small_files(&caller).unwrap();
        root.create(&caller, b"taken", 0o644).await.unwrap();
        let gone = root.mkdir(&caller, b"gone", 0o755).await.unwrap();
        for (parent, name, error) in [(root, &b"taken"[..], 17), (&gone, b"f", 2)] {
            let free = bed.volume.space();
            assert!(files.add(root, b"before", &small(&[1; 5000])).await.unwrap().is_some());
            assert!(files.add(parent, name, &small(&[2; 5000])).await.unwrap().is_some());
            assert!(files.add(root, b"after", &small(&[3; 5000])).await.unwrap().is_some());
            if error == 2 {
                root.rmdir(&caller, b"gone").await.unwrap();
            }
            let not_made = files.make().await.unwrap_err();
            assert_eq!((not_made.index, not_made.error.errno()), (1, error), "{not_made:?}");
            assert_eq!(read(&root.lookup(&caller, b"before").await.unwrap()).await, [1; 5000]);
            assert!(matches!(root.lookup(&caller, b"after").await, Err(Error::NotFound(_))));
            assert!(files.is_empty());
            root.unlink(&caller, b"before").await.unwrap();
            bed.volume.finish_deletions().await;
            bed.volume.sync().await.unwrap();
            assert_eq!(bed.volume.space().inodes_free, free.inodes_free, "the directory is still held");
        }
        // Numbers and blocks of files that are not made are free again.
        let free = bed.volume.space();
        let mut count = 0;
        while files.add(root, format!("n{count}").as_bytes(), &small(b"x")).await.is_ok_and(|n| n.is_some()) {
            count += 1;
        }
        assert_eq!(u64::from(count as u32), free.inodes_free);
        drop(files);
        assert_eq!(bed.volume.space(), free);
        let file = root.lookup(&caller, b"taken").await.unwrap();
        let mut files = bed.volume.small_files(&caller).unwrap();
        let refused = files.add(&file, b"f", &small(b"x")).await.unwrap_err();
        assert!(matches!(refused, Error::NotADirectory(_)), "{refused}");
        assert!(files.has_room(crate::SmallFiles::FILE_BYTES));
        assert!(!files.has_room(crate::SmallFiles::FILE_BYTES + 1) && !files.has_room(usize::MAX));
        let user = bed.volume.small_files(&Caller::user(1000, 1000, Vec::new()));
        assert!(matches!(user, Err(Error::Permission(_))));
    });
    check_is_silent(&image, "after files that could not be made");
}

/// A device whose write with a certain number fails.
#[derive(Debug)]
struct FailsOnce {
    inner: Arc<dyn Device>,
    /// Writes until it fails.
    left: AtomicUsize,
}

impl Device for FailsOnce {
    fn limits(&self) -> &Limits {
        self.inner.limits()
    }

    fn submit(&self, bio: Bio) {
        match bio.op == Op::Write && self.left.fetch_sub(1, Ordering::Relaxed) == 1 {
            true => bio.end_as("disk", Err(IoErrorKind::Os(5))),
            false => self.inner.submit(bio),
        }
    }
}

#[test]
fn contents_that_cannot_be_written_get_no_name() {
    if !have_tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = make(dir.path(), "-t ext4 16M");
    let caller = Caller::root();
    let disk = Arc::new(FailsOnce { inner: device(&image), left: AtomicUsize::new(usize::MAX) });
    let rt = Rt::real(Default::default());
    rt.block_on(async {
        let bed = Bed::open(&rt, disk.clone()).await;
        let root = bed.volume.root_node().await.unwrap();
        let mut files = bed.volume.small_files(&caller).unwrap();
        for name in [&b"one"[..], b"two"] {
            assert!(files.add(&root, name, &small(name)).await.unwrap().is_some());
        }
        // A block between the second and the third file makes two writes of the three.
        let node = root.create(&caller, b"between", 0o644).await.unwrap();
        let file = node.open(&caller, OpenOptions::default()).unwrap();
        file.write(0, b"x").await.unwrap();
        file.write_back().await.unwrap();
        drop((file, node));
        assert!(files.add(&root, b"three", &small(b"three")).await.unwrap().is_some());
        disk.left.store(2, Ordering::Relaxed);
        let not_made = files.make().await.unwrap_err();
        assert_eq!((not_made.index, not_made.error.errno()), (2, 5), "{not_made:?}");
        assert_eq!(read(&root.lookup(&caller, b"two").await.unwrap()).await, b"two");
        assert!(matches!(root.lookup(&caller, b"three").await, Err(Error::NotFound(_))));
        // The next ones are made.
        assert!(files.add(&root, b"three", &small(b"three")).await.unwrap().is_some());
        files.make().await.unwrap();
        drop((root, files));
        bed.close().await;
    })
    .unwrap();
    check_is_silent(&image, "after a failed write");
}

#[test]
fn files_whose_contents_are_being_written_are_made_before_the_next_ones() {
    if !have_tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = make(dir.path(), "-t ext4 16M");
    let caller = Caller::root();
    within(&image, async |bed, root| {
        let is_there = async |name: &[u8]| root.lookup(&caller, name).await.is_ok();
        let mut files = bed.volume.small_files(&caller).unwrap();
        root.create(&caller, b"taken", 0o644).await.unwrap();
        for name in [&b"a"[..], b"b"] {
            assert!(files.add(root, name, &small(name)).await.unwrap().is_some());
        }
        files.make_behind().await.unwrap();
        assert!(!is_there(b"a").await && files.contains(root, b"a") && files.len() == 2);
        assert!(files.add(root, b"c", &small(b"c")).await.unwrap().is_some());
        assert_eq!(files.len(), 3);
        files.make_behind().await.unwrap();
        assert!(is_there(b"b").await && !is_there(b"c").await && files.len() == 1);
        assert!(!files.contains(root, b"a") && files.contains(root, b"c"));
        assert!(files.add(root, b"taken", &small(b"d")).await.unwrap().is_some());
        assert!(files.add(root, b"e", &small(b"e")).await.unwrap().is_some());
        let not_made = files.make().await.unwrap_err();
        assert_eq!((not_made.index, not_made.error.errno()), (1, 17), "{not_made:?}");
        assert!(is_there(b"c").await && !is_there(b"e").await && files.is_empty());
        // One that fails takes those along that were added while it was being written.
        assert!(files.add(root, b"taken", &small(b"f")).await.unwrap().is_some());
        files.make_behind().await.unwrap();
        assert!(files.add(root, b"g", &small(b"g")).await.unwrap().is_some());
        let not_made = files.make_behind().await.unwrap_err();
        assert_eq!((not_made.index, not_made.error.errno()), (0, 17), "{not_made:?}");
        assert!(files.is_empty() && !is_there(b"g").await);
        files.make().await.unwrap();
        for name in [&b"a"[..], b"b", b"c"] {
            assert_eq!(read(&root.lookup(&caller, name).await.unwrap()).await, name);
        }
    });
    check_is_silent(&image, "after files that were made behind");
}

/// A batch goes on while a transaction is committed, so a commit may end at any of its steps.
#[test]
fn a_batch_of_many_transactions_gives_the_same_bytes() {
    if !have_tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let base = make(dir.path(), "-t ext4 -b 1024 -J size=1 -N 4096 16M");
    let caller = Caller::root();
    let made = [(); 2].map(|()| {
        let image = dir.path().join("made");
        std::fs::copy(&base, &image).unwrap();
        within(&image, async |bed, root| {
            let before = bed.volume.newest_commit().unwrap();
            for round in 0..2 {
                let mut files = bed.volume.small_files(&caller).unwrap();
                for n in 0..1200 {
                    if !files.has_room(1) {
                        files.make_behind().await.unwrap();
                    }
                    let name = format!("{round} {n}");
                    assert!(files.add(root, name.as_bytes(), &small(b"x")).await.unwrap().is_some());
                }
                files.make().await.unwrap();
                // The next round gets blocks and inodes that these have freed.
                for n in (0..1200).step_by(2) {
                    root.unlink(&caller, format!("{round} {n}").as_bytes()).await.unwrap();
                }
            }
            let commits = bed.volume.newest_commit().unwrap() - before;
            assert!(commits > 3, "{commits} commits of full transactions");
        });
        check_is_silent(&image, "after many transactions");
        std::fs::read(&image).unwrap()
    });
    assert!(made[0] == made[1]);
}
