//! Errors compared with the kernel's (probed on ext4 of Linux 6.18), and those that only an
//! unprivileged caller gets.

use super::*;
use extant_format::Timestamp;

const USER: u32 = 1000;

fn user() -> Caller {
    Caller::user(USER, USER, vec![])
}

/// The files used by the cases, created by root.
struct Yard {
    root: Node,
    /// Owned by root, mode 755, with the file `f`, the directory `d`, the link `l`.
    closed: Node,
    /// World-writable, mode 777, with the user's file `f`, the directories `d` (with `d/x`) and
    /// `e`, the link `l`.
    open: Node,
    /// Mode 1777, with root's file `f` and directory `d`.
    sticky: Node,
}

async fn yard(bed: &Bed) -> Yard {
    let (admin, user) = (Caller::root(), user());
    let root = bed.volume.root_node().await.unwrap();
    let closed = root.mkdir(&admin, b"closed", 0o755).await.unwrap();
    let open = root.mkdir(&admin, b"open", 0o777).await.unwrap();
    open.set_attributes(&admin, &SetAttributes { permissions: Some(0o777), ..Default::default() })
        .await
        .unwrap();
    let sticky = root.mkdir(&admin, b"sticky", 0o1777).await.unwrap();
    for (dir, owner) in [(&closed, &admin), (&open, &user), (&sticky, &admin)] {
        dir.create(owner, b"f", 0o644).await.unwrap();
        dir.mkdir(owner, b"d", 0o755).await.unwrap();
        dir.symlink(owner, b"l", b"nowhere").await.unwrap();
    }
    open.mkdir(&user, b"e", 0o755).await.unwrap();
    open.lookup(&user, b"d").await.unwrap().mkdir(&user, b"x", 0o755).await.unwrap();
    Yard { root, closed, open, sticky }
}

fn with_bed(args: &str, test: impl AsyncFnOnce(&Bed)) {
    if !have_tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = make(dir.path(), args);
    let rt = Rt::real(Default::default());
    rt.block_on(async {
        let bed = Bed::open(&rt, device(&image)).await;
        test(&bed).await;
        bed.close().await;
    })
    .unwrap();
    check_is_silent(&image, args);
}

const EXT4: &str = "-t ext4 -b 4096 16M";

#[test]
fn creating() {
    with_bed(EXT4, async |bed| {
        let Yard { closed, open, .. } = yard(bed).await;
        let (user, device) = (user(), DeviceNumber { major: 1, minor: 3 });
        let long = [b'n'; 256];
        assert_eq!(errno(closed.mkdir(&user, b"f", 0o755).await), 17, "existence before permission");
        assert_eq!(errno(closed.mkdir(&user, b"l", 0o755).await), 17, "a dangling link exists");
        assert_eq!(errno(closed.mkdir(&user, b"new", 0o755).await), 13);
        assert_eq!(errno(closed.mkdir(&user, &long, 0o755).await), 36, "length before permission");
        assert_eq!(errno(open.mkdir(&user, b".", 0o755).await), 17);
        assert_eq!(errno(open.mkdir(&user, b"", 0o755).await), 2);
        assert_eq!(errno(open.symlink(&user, b"new", b"").await), 2);
        assert_eq!(errno(open.symlink(&user, b"new", &[b't'; 4096]).await), 36);
        assert_eq!(errno(open.symlink(&user, b"f", &[b't'; 4096]).await), 17);
        let char_device = FileKind::CharDevice;
        assert_eq!(errno(open.mknod(&user, b"new", char_device, 0o644, device).await), 1);
        assert_eq!(errno(open.mknod(&user, b"new", FileKind::Directory, 0o644, device).await), 1);
        assert_eq!(errno(open.mknod(&user, b"pipe", FileKind::Fifo, 0o644, device).await), 0);
        let made = open.mknod(&Caller::root(), b"new", char_device, 0o644, device).await.unwrap();
        assert_eq!(made.attributes().unwrap().device, Some(device));
        let file = open.lookup(&user, b"f").await.unwrap();
        assert_eq!(errno(file.mkdir(&user, b"x", 0o755).await), 20);
        let flags = InodeFlags::IMMUTABLE;
        open.set_flags(&Caller::root(), flags).await.unwrap();
        assert_eq!(errno(open.mkdir(&user, b"f", 0o755).await), 17, "in an immutable directory, too");
        assert_eq!(errno(open.mkdir(&Caller::root(), b"another", 0o755).await), 1);
        assert_eq!(errno(open.unlink(&Caller::root(), b"f").await), 1);
        open.set_flags(&Caller::root(), InodeFlags::empty()).await.unwrap();
    });
}

#[test]
fn removing() {
    with_bed(EXT4, async |bed| {
        let Yard { root, closed, open, sticky } = yard(bed).await;
        let user = user();
        assert_eq!(errno(open.unlink(&user, b"d").await), 21);
        assert_eq!(errno(open.unlink(&user, b".").await), 21);
        assert_eq!(errno(closed.unlink(&user, b"f").await), 13);
        assert_eq!(errno(closed.unlink(&user, b"missing").await), 2, "existence before permission");
        assert_eq!(errno(sticky.unlink(&user, b"f").await), 1);
        assert_eq!(errno(sticky.unlink(&user, b"d").await), 1, "even of the wrong kind");
        assert_eq!(errno(open.rmdir(&user, b"d").await), 39);
        assert_eq!(errno(open.rmdir(&user, b"f").await), 20);
        assert_eq!(errno(open.rmdir(&user, b"l").await), 20);
        assert_eq!(errno(open.rmdir(&user, b".").await), 22);
        assert_eq!(errno(open.rmdir(&user, b"..").await), 39);
        assert_eq!(errno(root.rmdir(&user, b"open").await), 13);
        let e = open.lookup(&user, b"e").await.unwrap();
        open.rmdir(&user, b"e").await.unwrap();
        assert_eq!(errno(e.create(&user, b"x", 0o644).await), 2, "nothing is made in a removed directory");
        assert_eq!(errno(e.lookup(&user, b"x").await), 2);
        e.release().await;
    });
}

#[test]
fn renaming() {
    with_bed(EXT4, async |bed| {
        let Yard { root, closed, open, sticky } = yard(bed).await;
        let user = user();
        let long = [b'n'; 256];
        let admin = Caller::root();
        let rename = async |from: &Node, old: &[u8], to: &Node, new: &[u8], mode| {
            errno(from.rename(&user, old, to, new, mode).await)
        };
        use RenameMode::{Exchange, NoReplace, Replace};
        assert_eq!(rename(&open, b"missing", &open, &long, Replace).await, 2);
        assert_eq!(rename(&open, b"f", &open, &long, Replace).await, 36);
        assert_eq!(rename(&open, b"f", &open, b"d", Replace).await, 21);
        assert_eq!(rename(&open, b"d", &open, b"f", Replace).await, 20);
        assert_eq!(rename(&open, b"e", &open, b"d", Replace).await, 39);
        let d = open.lookup(&user, b"d").await.unwrap();
        assert_eq!(rename(&open, b"d", &d, b"y", Replace).await, 22);
        assert_eq!(rename(&root, b"open", &d, b"y", Replace).await, 22);
        assert_eq!(rename(&d, b"x", &root, b"open", Replace).await, 39);
        assert_eq!(rename(&d, b"x", &root, b"open", Exchange).await, 22);
        assert_eq!(rename(&open, b".", &open, b"y", Replace).await, 16);
        assert_eq!(rename(&open, b"f", &open, b"..", Replace).await, 16);
        assert_eq!(rename(&open, b"f", &open, b"e", NoReplace).await, 17);
        assert_eq!(rename(&open, b"missing", &open, b"e", NoReplace).await, 2);
        assert_eq!(rename(&open, b"f", &open, b"missing", Exchange).await, 2);
        assert_eq!(rename(&open, b"f", &closed, b"y", Replace).await, 13);
        assert_eq!(rename(&closed, b"f", &open, b"y", Replace).await, 13);
        assert_eq!(rename(&sticky, b"f", &open, b"y", Replace).await, 1);
        assert_eq!(rename(&open, b"f", &sticky, b"f", Replace).await, 1);
        // A directory that the caller may not write keeps its parent.
        let g = open.mkdir(&admin, b"g", 0o755).await.unwrap();
        assert_eq!(rename(&open, b"g", &d, b"g", Replace).await, 13);
        assert_eq!(rename(&open, b"g", &open, b"h", Replace).await, 0);
        open.link(&user, &open.lookup(&user, b"f").await.unwrap(), b"f2").await.unwrap();
        assert_eq!(rename(&open, b"f", &open, b"f2", Replace).await, 0);
        assert_eq!(errno(open.lookup(&user, b"f").await), 0, "two names of one inode both stay");
        open.set_flags(&admin, InodeFlags::APPEND).await.unwrap();
        assert_eq!(rename(&open, b"f", &open, b"y", Replace).await, 1);
        open.set_flags(&admin, InodeFlags::empty()).await.unwrap();
        drop(g);
    });
}

#[test]
fn linking() {
    with_bed(EXT4, async |bed| {
        let Yard { closed, open, .. } = yard(bed).await;
        let (user, admin) = (user(), Caller::root());
        let file = open.lookup(&user, b"f").await.unwrap();
        let dir = open.lookup(&user, b"d").await.unwrap();
        assert_eq!(errno(open.link(&user, &dir, b"y").await), 1);
        assert_eq!(errno(open.link(&user, &dir, b"f").await), 17);
        assert_eq!(errno(closed.link(&user, &file, b"y").await), 13);
        for flags in [InodeFlags::IMMUTABLE, InodeFlags::APPEND] {
            file.set_flags(&admin, flags).await.unwrap();
            assert_eq!(errno(open.link(&user, &file, b"y").await), 1);
        }
        file.set_flags(&admin, InodeFlags::empty()).await.unwrap();
        open.unlink(&user, b"f").await.unwrap();
        assert_eq!(errno(open.link(&user, &file, b"y").await), 2, "its last name is gone for good");
        assert_eq!(file.attributes().unwrap().links, 0);
        file.release().await;

        let unnamed = open.create_unnamed(&user, 0o600).await.unwrap();
        assert_eq!(unnamed.attributes().unwrap().links, 0);
        open.link(&user, &unnamed, b"named").await.unwrap();
        assert_eq!(unnamed.attributes().unwrap().links, 1);
        drop(open.create_unnamed(&user, 0o600).await.unwrap());
        assert_eq!(errno(closed.create_unnamed(&user, 0o600).await), 13);
    });
}

#[test]
fn attributes() {
    with_bed(EXT4, async |bed| {
        let Yard { closed, open, .. } = yard(bed).await;
        let (user, admin) = (user(), Caller::root());
        let (mine, roots) =
            (open.lookup(&user, b"f").await.unwrap(), closed.lookup(&user, b"f").await.unwrap());
        let set = async |node: &Node, caller: &Caller, set: SetAttributes| {
            errno(node.set_attributes(caller, &set).await)
        };
        let mode = |bits| SetAttributes { permissions: Some(bits), ..Default::default() };
        let owner = |uid, gid| SetAttributes { uid, gid, ..Default::default() };
        let times = |time| SetAttributes { accessed: Some(time), modified: Some(time), ..Default::default() };
        let then = SetTime::To(Timestamp { seconds: 1_000_000_000, nanos: 5 });
        assert_eq!(set(&roots, &user, mode(0o777)).await, 1);
        assert_eq!(set(&mine, &user, mode(0o4755)).await, 0);
        assert_eq!(set(&mine, &user, owner(Some(USER), Some(USER))).await, 0);
        assert_eq!(mine.attributes().unwrap().permissions, 0o755, "a change of owner takes set-ID bits away");
        assert_eq!(set(&mine, &user, owner(Some(0), None)).await, 1);
        assert_eq!(set(&mine, &user, owner(None, Some(5))).await, 1);
        assert_eq!(set(&roots, &user, times(SetTime::Now)).await, 13);
        assert_eq!(set(&roots, &user, times(then)).await, 1);
        assert_eq!(set(&roots, &user, SetAttributes::default()).await, 0);
        assert_eq!(set(&mine, &user, times(then)).await, 0);
        assert_eq!(mine.attributes().unwrap().modified, Timestamp { seconds: 1_000_000_000, nanos: 5 });
        mine.set_flags(&admin, InodeFlags::APPEND).await.unwrap();
        assert_eq!(set(&mine, &user, times(SetTime::Now)).await, 0);
        assert_eq!(set(&mine, &user, times(then)).await, 1);
        assert_eq!(set(&mine, &user, mode(0o600)).await, 1);
        mine.set_flags(&admin, InodeFlags::IMMUTABLE).await.unwrap();
        assert_eq!(set(&mine, &user, times(SetTime::Now)).await, 1);
        assert_eq!(errno(mine.set_flags(&user, InodeFlags::empty()).await), 1);
        mine.set_flags(&admin, InodeFlags::empty()).await.unwrap();
    });
}

#[test]
fn extended_attributes() {
    with_bed(EXT4, async |bed| {
        let Yard { open, sticky, .. } = yard(bed).await;
        let (user, admin) = (user(), Caller::root());
        let file = open.lookup(&user, b"f").await.unwrap();
        let link = open.lookup(&user, b"l").await.unwrap();
        let set = async |node: &Node, caller: &Caller, name: &[u8], value: &[u8]| {
            errno(node.set_xattr(caller, name, value, SetMode::Any).await)
        };
        let long = [&b"user."[..], &[b'n'; 251]].concat();
        assert_eq!(set(&file, &user, b"unknown.x", b"").await, 95);
        assert_eq!(set(&file, &user, b"user.", b"").await, 22);
        assert_eq!(set(&file, &user, &long, b"").await, 34);
        assert_eq!(set(&file, &user, b"user.x", &vec![0; 65_537]).await, 7);
        assert_eq!(set(&file, &user, b"user.x", &[0; 5000]).await, 28);
        assert_eq!(set(&link, &admin, b"user.x", b"").await, 1);
        assert_eq!(errno(link.xattr(&admin, b"user.x").await), 61);
        assert_eq!(set(&sticky, &user, b"user.x", b"").await, 1);
        assert_eq!(set(&file, &user, b"trusted.x", b"").await, 1);
        assert_eq!(set(&file, &admin, b"trusted.x", b"").await, 0);
        assert_eq!(errno(file.xattr(&user, b"trusted.x").await), 61);
        assert!(file.xattrs(&user).await.unwrap().is_empty());
        assert_eq!(set(&file, &user, b"user.x", b"v").await, 0);
        assert_eq!(errno(file.set_xattr(&user, b"user.x", b"", SetMode::Create).await), 17);
        assert_eq!(errno(file.set_xattr(&user, b"user.y", b"", SetMode::Replace).await), 61);
        assert_eq!(errno(file.remove_xattr(&user, b"user.y").await), 61);
        let (access, default) = (&b"system.posix_acl_access"[..], &b"system.posix_acl_default"[..]);
        for broken in [&b"\x02\0\0\0broken!!"[..], b"junk", b"x", b"\x02\0\0\0x"] {
            assert_eq!(set(&file, &user, access, broken).await, 22);
        }
        let capability = [0x0300_0001_u32, 1, 0, 0, 0, 7].map(u32::to_le_bytes).concat();
        for (value, expected) in
            [(&capability[..], 0), (&capability[..20], 22), (b"junk", 22), (b"x", 22), (b"", 0)]
        {
            assert_eq!(set(&file, &admin, b"security.capability", value).await, expected);
        }
        assert_eq!(set(&file, &user, default, &acl("user::rw-,group::r--,other::r--")).await, 13);
        file.set_flags(&admin, InodeFlags::IMMUTABLE).await.unwrap();
        assert_eq!(set(&file, &admin, b"user.x", b"").await, 1);
        file.set_flags(&admin, InodeFlags::empty()).await.unwrap();
    });
}

/// An access control list in the format of Linux's attributes.
fn acl(text: &str) -> Vec<u8> {
    let mut bytes = 2u32.to_le_bytes().to_vec();
    for entry in text.split(',') {
        let mut parts = entry.split(':');
        let (tag, id, bits) = (parts.next().unwrap(), parts.next().unwrap(), parts.next().unwrap());
        let number: u16 = match (tag, id) {
            ("user", "") => 1,
            ("user", _) => 2,
            ("group", "") => 4,
            ("group", _) => 8,
            ("mask", _) => 0x10,
            _ => 0x20,
        };
        let bit = |letter, bit| if bits.contains(letter) { bit } else { 0 };
        bytes.extend(number.to_le_bytes());
        bytes.extend((bit('r', 4) | bit('w', 2) | bit('x', 1u16)).to_le_bytes());
        bytes.extend(id.parse().unwrap_or(u32::MAX).to_le_bytes());
    }
    bytes
}

#[test]
fn lists_are_inherited_and_obeyed() {
    // First with inodes that are too small for the lists, which then go to a block; then with
    // inodes that have room.
    for args in ["-t ext3 -b 1024 -I 128 16M", EXT4] {
        with_bed(args, async |bed| {
            let admin = Caller { umask: 0o077, ..Caller::root() };
            let (access, default) = (&b"system.posix_acl_access"[..], &b"system.posix_acl_default"[..]);
            let root = bed.volume.root_node().await.unwrap();
            let dir = root.mkdir(&admin, b"dir", 0o755).await.unwrap();
            let list = acl("user::rwx,user:1000:rwx,group::r-x,mask::rwx,other::---");
            dir.set_xattr(&admin, default, &list, SetMode::Any).await.unwrap();
            let file = dir.create(&admin, b"file", 0o640).await.unwrap();
            assert_eq!(file.attributes().unwrap().permissions, 0o640, "the list stands in for the umask");
            let inherited = acl("user::rw-,user:1000:rwx,group::r-x,mask::r--,other::---");
            assert_eq!(file.xattr(&admin, access).await.unwrap(), inherited);
            let below = dir.mkdir(&admin, b"below", 0o777).await.unwrap();
            assert_eq!(below.xattr(&admin, default).await.unwrap(), list);
            assert_eq!(below.attributes().unwrap().permissions, 0o770);
            let user = user();
            assert_eq!(errno(below.create(&user, b"x", 0o600).await), 0, "the list lets the user in");
            let other = Caller::user(1001, 1001, vec![]);
            assert_eq!(errno(below.create(&other, b"y", 0o600).await), 13);
            below.unlink(&user, b"x").await.unwrap();
            let file_may = async |want| errno(file.check_access(&user, want).await);
            assert_eq!((file_may(4).await, file_may(2).await), (0, 13));
            let set = SetAttributes { permissions: Some(0o660), ..Default::default() };
            file.set_attributes(&admin, &set).await.unwrap();
            assert_eq!((file_may(4).await, file_may(2).await), (0, 0));
            let plain = acl("user::rw-,group::r--,other::r--");
            file.set_xattr(&admin, access, &plain, SetMode::Any).await.unwrap();
            assert_eq!(file.attributes().unwrap().permissions, 0o644);
            assert_eq!(errno(file.xattr(&admin, access).await), 61, "the mode says it all");
            below.remove_xattr(&admin, default).await.unwrap();
            dir.unlink(&admin, b"file").await.unwrap();
            file.release().await;
        });
    }
}

#[test]
fn link_counts_of_directories_end_at_one() {
    with_bed("-t ext4 -b 1024 -N 4096 -O ^has_journal 32M", async |bed| {
        let root = bed.volume.root_node().await.unwrap();
        let admin = Caller::root();
        let writer = bed.writer();
        for (indexed, after) in [(false, vec![65_000]), (true, vec![65_000, 1, 1])] {
            let dir = root.mkdir(&admin, if indexed { b"i" } else { b"l" }, 0o755).await.unwrap();
            for n in 0..if indexed { 100 } else { 0 } {
                dir.create(&admin, format!("{n:0100}").as_bytes(), 0o644).await.unwrap();
            }
            let links = async |count: u16| {
                let mut handle = writer.journal.start(crate::journal::Credits(1)).await.unwrap();
                handle.inode(dir.cell()).raw.i_links_count = count.into();
            };
            links(64_999).await;
            let mut made = Vec::new();
            for n in 0..3 {
                let result = dir.mkdir(&admin, &[b'a' + n], 0o755).await;
                if result.is_ok() {
                    made.push(dir.attributes().unwrap().links);
                } else {
                    assert_eq!(errno(result), 31);
                }
            }
            assert_eq!(made, after);
            dir.rmdir(&admin, b"a").await.unwrap();
            assert_eq!(dir.attributes().unwrap().links, if indexed { 1 } else { 64_999 });
            links(if indexed { 4 } else { 2 }).await;
        }
    });
}
