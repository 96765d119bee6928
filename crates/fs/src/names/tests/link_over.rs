//! Replacing a name with a link in one step, and unnamed files of all kinds.

use super::*;
use crate::FileOptions as OpenOptions;

/// Volumes whose orphans are kept in a list, in a file, or not at all.
const VOLUMES: [&str; 4] = [
    "-t ext4 -O orphan_file 16M",
    "-t ext3 -b 1024 16M",
    "-t ext4 -O inline_data,^orphan_file 16M",
    "-t ext2 -b 1024 16M",
];

async fn names_of(dir: &Node) -> Vec<String> {
    let mut names = Vec::new();
    let mut emit = |listed: crate::Listed<'_>| {
        names.push(String::from_utf8(listed.name.to_vec()).unwrap());
        true
    };
    dir.read_dir(Cookie::START, &mut emit).await.unwrap();
    names.retain(|name| !matches!(&name[..], "." | ".." | "lost+found"));
    names.sort();
    names
}

#[test]
fn a_file_takes_a_name_from_another_one() {
    if !have_tools() {
        return;
    }
    for args in VOLUMES {
        let dir = tempfile::tempdir().unwrap();
        let image = make(dir.path(), args);
        let caller = Caller::root();
        within(&image, async |_, root| {
            let old = root.create(&caller, b"f", 0o644).await.unwrap();
            root.link(&caller, &old, b"other").await.unwrap();
            let new = root.create_unnamed(&caller, 0o600).await.unwrap();
            let file = new.open(&caller, OpenOptions::default()).unwrap();
            assert_eq!(file.write(0, b"whole").await.unwrap(), 5);
            drop(file);
            root.link_over(&caller, &new, b"f").await.unwrap();
            // Once more, when the name is already the file's own.
            root.link_over(&caller, &new, b"f").await.unwrap();
            assert_eq!(root.lookup(&caller, b"f").await.unwrap().inode(), new.inode(), "{args}");
            assert_eq!(root.lookup(&caller, b"other").await.unwrap().inode(), old.inode(), "{args}");
            assert_eq!((new.attributes().unwrap().links, old.attributes().unwrap().links), (1, 1));
            // Works for a free name, too. A file that loses its last name while held is deleted
            // when released.
            root.link_over(&caller, &new, b"g").await.unwrap();
            root.link_over(&caller, &new, b"other").await.unwrap();
            assert_eq!((new.attributes().unwrap().links, old.attributes().unwrap().links), (3, 0));
            // The file had names before, so it cannot get one again.
            let gone = root.link_over(&caller, &old, b"f").await;
            assert!(matches!(gone, Err(Error::NotFound(_))), "{args}: {gone:?}");
            let sub = root.mkdir(&caller, b"d", 0o755).await.unwrap();
            for (name, kind) in [(&b"d"[..], 21), (b"", 2), (b".", 17), (b"a/b", 22), (&[b'n'; 256], 36)] {
                let refused = root.link_over(&caller, &new, name).await.unwrap_err();
                assert_eq!(refused.errno(), kind, "{args}: {refused}");
            }
            let refused = root.link_over(&caller, &sub, b"f").await.unwrap_err();
            assert_eq!(refused.errno(), 1, "{args}: {refused}");
            assert_eq!(names_of(root).await, ["d", "f", "g", "other"]);
        });
        check_is_silent(&image, args);
    }
}

#[test]
fn files_of_every_kind_are_made_without_a_name_and_vanish_or_get_one() {
    if !have_tools() {
        return;
    }
    for args in VOLUMES {
        let dir = tempfile::tempdir().unwrap();
        let image = make(dir.path(), args);
        let caller = Caller::root();
        let device = DeviceNumber { major: 7, minor: 70_000 };
        let long = [b't'; 300];
        within(&image, async |bed, root| {
            let before = bed.volume.space();
            for kept in [false, true] {
                let mut made = vec![
                    root.symlink_unnamed(&caller, b"short").await.unwrap(),
                    root.symlink_unnamed(&caller, &long).await.unwrap(),
                ];
                for kind in [FileKind::Fifo, FileKind::Socket, FileKind::CharDevice, FileKind::BlockDevice] {
                    made.push(root.mknod_unnamed(&caller, kind, 0o640, device).await.unwrap());
                }
                bed.volume.sync().await.unwrap();
                for (n, node) in made.into_iter().enumerate() {
                    if kept {
                        root.link_over(&caller, &node, format!("n{n}").as_bytes()).await.unwrap();
                    }
                }
                if !kept {
                    bed.volume.namespace().unwrap().delete_doomed().await;
                    bed.volume.sync().await.unwrap();
                    let after = bed.volume.space();
                    assert_eq!(
                        (after.blocks_free, after.inodes_free),
                        (before.blocks_free, before.inodes_free)
                    );
                }
            }
            let refused = root.symlink_unnamed(&caller, b"").await.unwrap_err();
            assert_eq!(refused.errno(), 2, "{refused}");
            let refused = root.symlink_unnamed(&caller, &[b't'; 4096]).await.unwrap_err();
            assert_eq!(refused.errno(), 36, "{refused}");
        });
        check_is_silent(&image, args);
        let shown = run("debugfs", &["-R", "ls -l", image.to_str().unwrap()]);
        for (n, mode) in ["120777", "120777", " 10640", "140640", " 20640", " 60640"].iter().enumerate() {
            let line = shown
                .lines()
                .find(|line| line.ends_with(&format!(" n{n}")))
                .unwrap_or_else(|| panic!("{shown}"));
            assert!(line.contains(mode), "{args}: {line}");
        }
    }
}

#[test]
fn a_name_is_taken_by_those_who_may_remove_it() {
    if !have_tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = make(dir.path(), "-t ext4 16M");
    let admin = Caller::root();
    let user = |uid| Caller {
        uid,
        gid: uid,
        groups: Vec::new(),
        capabilities: Capabilities::empty(),
        ..Caller::root()
    };
    within(&image, async |_, root| {
        let shared = root.mkdir(&admin, b"tmp", 0o1777).await.unwrap();
        let all = SetAttributes { permissions: Some(0o1777), ..Default::default() };
        shared.set_attributes(&admin, &all).await.unwrap();
        shared.create(&user(5), b"theirs", 0o666).await.unwrap();
        let mine = shared.create_unnamed(&user(6), 0o600).await.unwrap();
        let refused = shared.link_over(&user(6), &mine, b"theirs").await.unwrap_err();
        assert_eq!(refused.errno(), 1, "{refused}");
        let fixed = shared.create(&admin, b"fixed", 0o666).await.unwrap();
        fixed.set_flags(&admin, InodeFlags::IMMUTABLE).await.unwrap();
        let refused = shared.link_over(&admin, &mine, b"fixed").await.unwrap_err();
        assert_eq!(refused.errno(), 1, "{refused}");
        let refused = root.link_over(&user(6), &mine, b"here").await.unwrap_err();
        assert_eq!(refused.errno(), 13, "{refused}");
        shared.link_over(&user(6), &mine, b"free").await.unwrap();
        fixed.set_flags(&admin, InodeFlags::empty()).await.unwrap();
    });
    check_is_silent(&image, "after refusals");
}
