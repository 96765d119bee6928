//! Changes to structures that only the kernel creates: shared attribute blocks and inline
//! directories.

use super::*;

/// Mounts an image and runs `work` on it; returns false if mounting is not allowed.
pub(super) fn in_kernel(image: &Path, work: impl FnOnce(&Path)) -> bool {
    let dir = tempfile::tempdir().unwrap();
    if !can_mount() {
        return false;
    }
    let mount = Mount::new(image, &dir.path().join("mounted"), "rw");
    work(mount.path());
    true
}

fn change(image: &Path, test: impl AsyncFnOnce(&Node)) {
    let rt = Rt::real(Default::default());
    rt.block_on(async {
        let bed = Bed::open(&rt, device(image)).await;
        let root = bed.volume.root_node().await.unwrap();
        test(&root).await;
        drop(root);
        bed.close().await;
    })
    .unwrap();
}

#[test]
fn a_shared_attribute_block_is_left_by_one_inode_after_the_other() {
    if !have_tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = make(dir.path(), "-t ext4 -b 1024 -I 128 16M");
    let mounted = in_kernel(&image, |at| {
        for n in 1..=4 {
            let file = at.join(format!("f{n}"));
            std::fs::write(&file, b"").unwrap();
            rustix::fs::lsetxattr(&file, "user.x", b"shared", XattrFlags::empty()).unwrap();
        }
    });
    if !mounted {
        return;
    }
    change(&image, async |root| {
        let caller = &Caller::root();
        let blocks: Vec<_> = {
            let mut blocks = Vec::new();
            for n in 1..=4 {
                let file = root.lookup(caller, format!("f{n}").as_bytes()).await.unwrap();
                blocks.push(file.cell().read(extant_format::Inode::xattr_block).unwrap());
            }
            blocks
        };
        assert!(blocks.windows(2).all(|pair| pair[0] == pair[1]), "the kernel shares the block: {blocks:?}");
        let f1 = root.lookup(caller, b"f1").await.unwrap();
        f1.set_xattr(caller, b"user.y", b"of its own", SetMode::Any).await.unwrap();
        let f2 = root.lookup(caller, b"f2").await.unwrap();
        f2.remove_xattr(caller, b"user.x").await.unwrap();
        root.unlink(caller, b"f3").await.unwrap();
        let f4 = root.lookup(caller, b"f4").await.unwrap();
        assert_eq!(f4.xattr(caller, b"user.x").await.unwrap(), b"shared");
        assert_eq!(f1.xattr(caller, b"user.x").await.unwrap(), b"shared");
    });
    check_is_silent(&image, "three of four left the block");
    change(&image, async |root| {
        let caller = &Caller::root();
        let f4 = root.lookup(caller, b"f4").await.unwrap();
        f4.remove_xattr(caller, b"user.x").await.unwrap();
    });
    check_is_silent(&image, "all left the block");
}

#[test]
fn directories_in_their_inodes_are_changed_there_and_move_out() {
    if !have_tools() {
        return;
    }
    for args in ["-t ext4 -b 1024 -O inline_data 16M", "-t ext4 -b 4096 -I 512 -O inline_data,^dir_index 32M"]
    {
        let dir = tempfile::tempdir().unwrap();
        let image = make(dir.path(), args);
        let mounted = in_kernel(&image, |at| {
            for dir in ["a", "b", "c", "b/sub", "c/moves"] {
                std::fs::create_dir(at.join(dir)).unwrap();
            }
            for file in ["a/one", "a/two", "b/one"] {
                std::fs::write(at.join(file), b"").unwrap();
            }
        });
        if !mounted {
            return;
        }
        change(&image, async |root| {
            let caller = &Caller::root();
            let lookup = async |name: &[u8]| root.lookup(caller, name).await.unwrap();
            let (a, b, c) = (lookup(b"a").await, lookup(b"b").await, lookup(b"c").await);
            assert!(a.attributes().unwrap().flags.contains(InodeFlags::INLINE_DATA));
            a.unlink(caller, b"one").await.unwrap();
            a.create(caller, b"three", 0o644).await.unwrap();
            assert_eq!(errno(root.rmdir(caller, b"b").await), 39);
            c.rename(caller, b"moves", &b, b"moved", RenameMode::Replace).await.unwrap();
            let moved = b.lookup(caller, b"moved").await.unwrap();
            assert_eq!(moved.lookup(caller, b"..").await.unwrap().inode(), b.inode());
            root.rmdir(caller, b"c").await.unwrap();
            for n in 0..40 {
                a.create(caller, format!("file number {n}").as_bytes(), 0o644).await.unwrap();
            }
            assert!(!a.attributes().unwrap().flags.contains(InodeFlags::INLINE_DATA));
            let mut names = Vec::new();
            let end = a
                .read_dir(Cookie::START, &mut |listed| {
                    names.push(listed.name.to_vec());
                    true
                })
                .await;
            assert_eq!(end.unwrap(), Cookie::END);
            assert_eq!(names.len(), 44);
        });
        check_is_silent(&image, args);
        let dir = tempfile::tempdir().unwrap();
        let mount = Mount::new(&image, &dir.path().join("mounted"), "ro");
        let tree = host_tree(mount.path());
        assert_eq!(tree.keys().filter(|path| path.starts_with("a")).count(), 43);
        assert!(tree.contains_key(Path::new("b/moved")));
    }
}

#[test]
fn free_space_is_told_as_the_kernel_tells_it() {
    if !have_tools() {
        return;
    }
    for args in [
        "-t ext4 64M",
        "-t ext4 -b 4096 -m 3 200M",
        "-t ext4 -b 1024 -O ^flex_bg,^resize_inode 40M",
        "-t ext4 -b 4096 -O meta_bg,^resize_inode 300M",
        "-t ext4 -b 2048 -O ^has_journal 64M",
        "-t ext3 48M",
        "-t ext2 -b 1024 20M",
    ] {
        let dir = tempfile::tempdir().unwrap();
        let image = make(dir.path(), args);
        let tell = |at: &Path| {
            let told = rustix::fs::statvfs(at).unwrap();
            [told.f_frsize, told.f_blocks, told.f_bfree, told.f_bavail, told.f_files, told.f_ffree]
        };
        let mut told = [0; 6];
        let mounted = in_kernel(&image, |at| {
            std::fs::create_dir(at.join("dir")).unwrap();
            std::fs::write(at.join("dir/file"), vec![1; 300_000]).unwrap();
            rustix::fs::sync();
            told = tell(at);
        });
        if !mounted {
            return;
        }
        // Linux reserves a fiftieth, at most 4,096 clusters, for extent maps.
        let sb = |bed: &Bed| bed.volume.superblock().clone();
        let withheld = |sb: &extant_format::Superblock| match sb.incompat() {
            features if features.contains(extant_format::Incompat::EXTENTS) => {
                (sb.blocks_count() / 50).min(4096)
            }
            _ => 0,
        };
        let ours = |space: crate::Space, withheld: u64| {
            let available = space.blocks_available.saturating_sub(withheld);
            let block_bytes = space.block_bytes.into();
            [block_bytes, space.blocks, space.blocks_free, available, space.inodes, space.inodes_free]
        };
        let rt = Rt::real(Default::default());
        rt.block_on(async {
            let still = Volume::open(device(&image), crate::OpenOptions::default()).await.unwrap();
            assert_eq!(ours(still.space(), withheld(still.superblock())), told, "{args}, open for reading");
            let bed = Bed::open(&rt, device(&image)).await;
            assert_eq!(ours(bed.volume.space(), withheld(&sb(&bed))), told, "{args}, open for writing");
            bed.close().await;
        })
        .unwrap();
    }
}
