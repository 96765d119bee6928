//! Inode flags, projects, whiteouts, shared attribute blocks, and reads that bypass the cache.

use super::*;
use crate::FileOptions;
use extant_format::Inode;

#[test]
fn synchronous_inodes_are_durable_when_an_operation_returns() {
    if !have_tools() {
        return;
    }
    for args in ["-t ext4 16M", "-t ext2 16M"] {
        let dir = tempfile::tempdir().unwrap();
        let image = make(dir.path(), args);
        let admin = &Caller::root();
        let rt = Rt::real(Default::default());
        rt.block_on(async {
            let bed = Bed::open(&rt, device(&image)).await;
            let root = bed.volume.root_node().await.unwrap();
            let sync = root.mkdir(admin, b"sync", 0o755).await.unwrap();
            let lazy = root.mkdir(admin, b"lazy", 0o755).await.unwrap();
            let old = sync.create(admin, b"old", 0o644).await.unwrap();
            bed.volume.sync().await.unwrap();
            sync.set_flags(admin, InodeFlags::DIRSYNC).await.unwrap();
            lazy.create(admin, b"later", 0o644).await.unwrap();
            sync.rename(admin, b"old", &sync, b"new", RenameMode::Replace).await.unwrap();
            lazy.create(admin, b"lost", 0o644).await.unwrap();
            old.set_flags(admin, InodeFlags::SYNC).await.unwrap();
            old.open(admin, FileOptions::default()).unwrap().write(0, b"kept").await.unwrap();
            old.set_xattr(admin, b"user.x", b"y", SetMode::Any).await.unwrap();
            lazy.create(admin, b"lost as well", 0o644).await.unwrap();
            // The volume is not closed, as after a power cut.
        })
        .unwrap();
        if args.contains("ext2") {
            let fixed = Command::new("e2fsck").args(["-fy", image.to_str().unwrap()]).output().unwrap();
            assert!(matches!(fixed.status.code(), Some(0 | 1)), "{fixed:?}");
        }
        within(&image, async |_, root| {
            let (sync, lazy) = (root.lookup(admin, b"sync").await, root.lookup(admin, b"lazy").await);
            let (sync, lazy) = (sync.unwrap(), lazy.unwrap());
            let file = sync.lookup(admin, b"new").await.unwrap();
            let open = file.open(admin, FileOptions::default()).unwrap();
            let mut bytes = [0; 8];
            assert_eq!(open.read(0, &mut bytes).await.unwrap(), 4, "{args}");
            assert_eq!(&bytes[..4], b"kept");
            assert_eq!(file.xattr(admin, b"user.x").await.unwrap(), b"y");
            assert_eq!(errno(sync.lookup(admin, b"old").await), 2);
            assert_eq!(errno(lazy.lookup(admin, b"lost as well").await), 2, "the last name was not synced");
        });
        check_is_silent(&image, args);
    }
}

#[test]
fn a_file_cannot_have_the_flags_of_directories() {
    if !have_tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = make(dir.path(), "-t ext4 16M");
    let admin = &Caller::root();
    within(&image, async |_, root| {
        let (file, dir) = (root.create(admin, b"f", 0o644).await, root.mkdir(admin, b"d", 0o755).await);
        let (file, dir) = (file.unwrap(), dir.unwrap());
        for flag in [InodeFlags::DIRSYNC, InodeFlags::TOPDIR, InodeFlags::PROJINHERIT] {
            dir.set_flags(admin, flag).await.unwrap();
            assert_eq!(errno(file.set_flags(admin, flag).await), 95, "EOPNOTSUPP for {flag:?}");
        }
    });
}

#[test]
fn a_whiteout_takes_the_place_of_what_is_moved() {
    if !have_tools() {
        return;
    }
    for args in ["-t ext4 -b 1024 16M", "-t ext4 -b 4096 -O inline_data 16M"] {
        let dir = tempfile::tempdir().unwrap();
        let image = make(dir.path(), args);
        let admin = &Caller::root();
        within(&image, async |_, root| {
            let other = root.mkdir(admin, b"other", 0o777).await.unwrap();
            let user = &Caller::user(1, 1, vec![]);
            let full = root.mkdir(admin, b"full", 0o777).await.unwrap();
            for n in 0..200 {
                full.create(admin, format!("name {n:0>60}").as_bytes(), 0o644).await.unwrap();
            }
            root.create(admin, b"f", 0o644).await.unwrap();
            root.mkdir(admin, b"d", 0o755).await.unwrap();
            other.create(admin, b"there", 0o644).await.unwrap();
            let whiteout = RenameMode::Whiteout;
            assert_eq!(errno(root.rename(user, b"f", &other, b"g", whiteout).await), 1);
            root.rename(admin, b"f", root, b"g", whiteout).await.unwrap();
            root.rename(admin, b"g", &other, b"there", whiteout).await.unwrap();
            root.rename(admin, b"d", &other, b"d", whiteout).await.unwrap();
            let long = format!("name {:0>60}", 7);
            full.rename(admin, long.as_bytes(), &full, b"short", whiteout).await.unwrap();
            for (dir, name) in [(root, &b"f"[..]), (root, b"g"), (root, b"d"), (&full, long.as_bytes())] {
                let seen = dir.lookup(admin, name).await.unwrap().attributes().unwrap();
                assert_eq!(seen.kind, FileKind::CharDevice);
                assert_eq!(seen.device, Some(DeviceNumber { major: 0, minor: 0 }));
                assert_eq!((seen.permissions, seen.links), (0, 1));
            }
            assert_eq!(other.lookup(admin, b"there").await.unwrap().kind(), Some(FileKind::Regular));
            assert!(other.lookup(admin, b"d").await.unwrap().is_dir());
        });
        check_is_silent(&image, args);
    }
}

#[test]
fn projects_are_set_inherited_and_kept_apart() {
    if !have_tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = make(dir.path(), "-t ext4 -O project 16M");
    let admin = &Caller::root();
    within(&image, async |_, root| {
        let home = root.mkdir(admin, b"home", 0o777).await.unwrap();
        home.set_flags(admin, InodeFlags::PROJINHERIT).await.unwrap();
        home.set_project(admin, 42).await.unwrap();
        let file = home.create(admin, b"file", 0o644).await.unwrap();
        assert_eq!(file.attributes().unwrap().project, Some(42));
        root.create(admin, b"outside", 0o644).await.unwrap();
        let outside = root.lookup(admin, b"outside").await.unwrap();
        assert_eq!(outside.attributes().unwrap().project, Some(0));
        assert_eq!(errno(home.link(admin, &outside, b"inside").await), 18);
        let user = &Caller::user(1000, 1000, vec![]);
        assert_eq!(errno(outside.set_project(user, 42).await), 1);
        outside.set_project(admin, 42).await.unwrap();
        home.link(admin, &outside, b"inside").await.unwrap();
    });
    check_is_silent(&image, "projects");
    let said = run("debugfs", &["-R", "stat /home/file", image.to_str().unwrap()]);
    assert!(said.contains("Project:    42"), "{said}");
    let plain = make(dir.path(), "-t ext4 16M");
    within(&plain, async |_, root| {
        assert_eq!(errno(root.set_project(admin, 1).await), 95);
        assert_eq!(root.attributes().unwrap().project, None);
    });
}

#[test]
fn equal_attributes_share_a_block() {
    if !have_tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = make(dir.path(), "-t ext4 -b 1024 -I 128 -N 4096 32M");
    let admin = &Caller::root();
    let block = |node: &Node| node.cell().read(Inode::xattr_block);
    let name = |n: u32| format!("f{n}").into_bytes();
    within(&image, async |bed, root| {
        let mut blocks = BTreeMap::new();
        for n in 0..1100 {
            let node = root.create(admin, &name(n), 0o644).await.unwrap();
            node.set_xattr(admin, b"user.a", b"of all", SetMode::Any).await.unwrap();
            *blocks.entry(block(&node)).or_insert(0) += 1;
        }
        assert_eq!(blocks.into_values().collect::<Vec<_>>(), [1024, 76], "1024 inodes share a block");
        let free = bed.writer().alloc.statfs().free;
        let [a, b, c] = [5, 6, 7].map(name);
        let a = root.lookup(admin, &a).await.unwrap();
        let b = root.lookup(admin, &b).await.unwrap();
        let c = root.lookup(admin, &c).await.unwrap();
        for node in [&a, &b, &c] {
            node.set_xattr(admin, b"user.b", b"of three", SetMode::Any).await.unwrap();
        }
        assert!(block(&a) == block(&b) && block(&b) == block(&c));
        assert_eq!(bed.writer().alloc.statfs().free, free - 1);
        // The inode's own block is freed, and it shares one with the same contents.
        c.set_xattr(admin, b"user.b", b"of one", SetMode::Any).await.unwrap();
        assert_ne!(block(&c), block(&a));
        c.set_xattr(admin, b"user.b", b"of three", SetMode::Any).await.unwrap();
        assert_eq!(block(&c), block(&a));
        assert_eq!(bed.writer().alloc.statfs().free, free - 1);
        for n in 100..600 {
            root.unlink(admin, &name(n)).await.unwrap();
        }
        assert_eq!(a.xattr(admin, b"user.a").await.unwrap(), b"of all");
    });
    check_is_silent(&image, "shared blocks");
    // Inherited lists, on a volume that was reopened.
    within(&image, async |_, root| {
        let top = root.mkdir(admin, b"top", 0o755).await.unwrap();
        let list = [
            &2u32.to_le_bytes()[..],
            &[1, 0, 7, 0, 0xff, 0xff, 0xff, 0xff],
            &[2, 0, 7, 0, 0xe8, 3, 0, 0],
            &[4, 0, 5, 0, 0xff, 0xff, 0xff, 0xff],
            &[0x10, 0, 7, 0, 0xff, 0xff, 0xff, 0xff],
            &[0x20, 0, 5, 0, 0xff, 0xff, 0xff, 0xff],
        ]
        .concat();
        top.set_xattr(admin, b"system.posix_acl_default", &list, SetMode::Any).await.unwrap();
        let first = top.create(admin, b"first", 0o666).await.unwrap();
        let second = top.create(admin, b"second", 0o666).await.unwrap();
        assert!(block(&first).is_some() && block(&first) == block(&second));
    });
    check_is_silent(&image, "inherited lists");
}

#[test]
fn the_reading_interface_sees_what_was_written() {
    if !have_tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = make(dir.path(), "-t ext4 -b 1024 16M");
    let admin = &Caller::root();
    within(&image, async |bed, root| {
        let node = root.create(admin, b"f", 0o644).await.unwrap();
        let file = node.open(admin, FileOptions::default()).unwrap();
        let text = vec![7; 5000];
        file.write(1000, &text).await.unwrap();
        let inode = bed.volume.resolve(b"/f", crate::Follow::Yes).await.unwrap();
        assert_eq!(inode.size(), 6000);
        let reader = bed.volume.open_file(inode.clone()).await.unwrap();
        let mut bytes = vec![1; 9000];
        assert_eq!(reader.read_at(0, &mut bytes).await.unwrap(), 6000);
        assert!(bytes[..1000].iter().all(|&byte| byte == 0) && bytes[1000..6000] == text);
        file.write(0, b"new").await.unwrap();
        reader.read_at(0, &mut bytes[..4]).await.unwrap();
        assert_eq!(&bytes[..4], b"new\0");
        let mut stream = bed.volume.stream(inode).await.unwrap();
        let mut streamed = Vec::new();
        while let Some(chunk) = stream.next().await.unwrap() {
            match chunk {
                crate::Chunk::Data { bytes, .. } => streamed.extend_from_slice(&bytes),
                crate::Chunk::Hole { bytes, .. } => streamed.resize(streamed.len() + bytes as usize, 0),
            }
        }
        assert!(streamed.starts_with(b"new\0") && streamed[1000..] == text);
        file.sync().await.unwrap();
    });
    check_is_silent(&image, "read beside the cache");
}
