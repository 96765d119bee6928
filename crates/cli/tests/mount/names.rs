//! Names and attributes, seen through system calls.

use crate::bed::{Bed, can_mount};
use crate::testbed::have;
use rustix::fs::{AtFlags, CWD, RenameFlags};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

#[test]
fn rename_has_all_its_flags() {
    if !can_mount() {
        return;
    }
    let mut bed = Bed::new("16M", &[], "");
    let (a, b, c) = (bed.path("a"), bed.path("b"), bed.path("c"));
    fs::write(&a, "a").unwrap();
    fs::write(&b, "b").unwrap();
    let rename = |from, to, flags| rustix::fs::renameat_with(CWD, from, CWD, to, flags);
    assert_eq!(rename(&a, &b, RenameFlags::NOREPLACE), Err(rustix::io::Errno::EXIST));
    rename(&a, &b, RenameFlags::EXCHANGE).unwrap();
    assert_eq!(fs::read_to_string(&a).unwrap() + &fs::read_to_string(&b).unwrap(), "ba");
    fs::rename(&a, &b).unwrap();
    assert_eq!(fs::read_to_string(&b).unwrap(), "b");
    rename(&b, &c, RenameFlags::WHITEOUT).unwrap();
    let whiteout = fs::metadata(&b).unwrap();
    assert_eq!((whiteout.mode() & 0o170_000, whiteout.rdev()), (0o020_000, 0));
    fs::create_dir_all(bed.path("d/e")).unwrap();
    let own_tree = fs::rename(bed.path("d"), bed.path("d/e/d")).unwrap_err();
    assert_eq!(own_tree.raw_os_error(), Some(22));
    fs::rename(bed.path("d/e"), bed.path("e")).unwrap();
    // Still usable where it was known before the move.
    fs::write(bed.path("e/file"), "x").unwrap();
    assert_eq!(fs::remove_dir(bed.path("e")).unwrap_err().raw_os_error(), Some(39));
    bed.umount();
}

#[test]
fn directories_list_each_name_once() {
    if !can_mount() {
        return;
    }
    let mut bed = Bed::new("32M", &[], "");
    fs::create_dir(bed.path("d")).unwrap();
    let expected: BTreeSet<String> = (0..3000).map(|n| format!("file-{n}-with-a-longer-name")).collect();
    std::thread::scope(|scope| {
        for part in 0..6 {
            let (bed, expected) = (&bed, &expected);
            scope.spawn(move || {
                for name in expected.iter().skip(part).step_by(6) {
                    File::create_new(bed.path("d").join(name)).unwrap();
                }
            });
        }
    });
    let listed: Vec<String> = fs::read_dir(bed.path("d"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    assert_eq!(listed.len(), 3000, "no name twice");
    assert_eq!(listed.into_iter().collect::<BTreeSet<_>>(), expected);
    // Removing while listing, as rm -r does.
    bed.shell("rm -r d; mkdir d; rmdir d");
    bed.umount();
}

#[test]
fn an_open_file_outlives_its_name() {
    if !can_mount() {
        return;
    }
    let mut bed = Bed::new("16M", &[], "");
    let path = bed.path("f");
    fs::write(&path, vec![7; 4 << 20]).unwrap();
    let free = || rustix::fs::statvfs(&bed.at).unwrap().f_bfree;
    let mut file = File::options().read(true).write(true).open(&path).unwrap();
    fs::remove_file(&path).unwrap();
    assert_eq!(file.metadata().unwrap().nlink(), 0);
    let held = free();
    let mut all = Vec::new();
    file.read_to_end(&mut all).unwrap();
    assert!(all == vec![7; 4 << 20]);
    rustix::fs::fchmod(&file, rustix::fs::Mode::from_raw_mode(0o600)).unwrap();
    drop(file);
    // Its space comes back without another change, once the kernel has forgotten it.
    let is_back = (0..100_000).any(|_| free() >= held + (4 << 20) / 4096);
    assert!(is_back, "{} blocks are free, {held} were", free());
    // A file without a name gets one.
    let unnamed = rustix::fs::open(
        &bed.at,
        rustix::fs::OFlags::TMPFILE | rustix::fs::OFlags::WRONLY | rustix::fs::OFlags::CLOEXEC,
        rustix::fs::Mode::from_raw_mode(0o640),
    )
    .unwrap();
    rustix::io::write(&unnamed, b"later").unwrap();
    let link = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&unnamed));
    rustix::fs::linkat(CWD, link, CWD, bed.path("named"), AtFlags::SYMLINK_FOLLOW).unwrap();
    assert_eq!(fs::read_to_string(bed.path("named")).unwrap(), "later");
    drop(unnamed);
    bed.umount();
}

#[test]
fn attributes_are_those_that_were_set() {
    if !can_mount() {
        return;
    }
    let mut bed = Bed::new("16M", &["-b", "4096"], "");
    let path = bed.path("f");
    fs::write(&path, "x").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o6750)).unwrap();
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(&path, Some(70_000), Some(80_000)).unwrap();
        let meta = fs::metadata(&path).unwrap();
        assert_eq!((meta.uid(), meta.gid(), meta.mode() & 0o7777), (70_000, 80_000, 0o750));
    }
    bed.shell(
        "touch -d '2001-02-03 04:05:06.123456789' f; setfattr -n user.name -v value f 2>/dev/null || true",
    );
    let meta = fs::metadata(&path).unwrap();
    assert_eq!(meta.mtime_nsec(), 123_456_789);
    let created = meta.created().unwrap();
    assert!(created > meta.modified().unwrap(), "the time of creation is the volume's own");
    let flags = rustix::fs::XattrFlags::CREATE;
    rustix::fs::setxattr(&path, "user.big", &[1; 2000], flags).unwrap();
    assert_eq!(rustix::fs::setxattr(&path, "user.big", &[1], flags), Err(rustix::io::Errno::EXIST));
    let mut value = [0; 4000];
    assert_eq!(rustix::fs::getxattr(&path, "user.big", &mut value), Ok(2000));
    assert_eq!(rustix::fs::getxattr(&path, "user.none", &mut value), Err(rustix::io::Errno::NODATA));
    rustix::fs::removexattr(&path, "user.big").unwrap();
    if have("lsattr") {
        bed.shell("chattr +d f; lsattr f | grep -q -- '-d-'; chattr -d f");
        bed.shell("chattr +i f; ! rm -f f 2>/dev/null; ! sh -c 'echo y > f' 2>/dev/null; chattr -i f; rm f");
        bed.shell("echo 1 > log; chattr +a log; echo 2 >> log; ! sh -c 'echo 3 > log' 2>/dev/null; chattr -a log; test $(wc -l < log) = 2");
    }
    let space = rustix::fs::statvfs(&bed.at).unwrap();
    assert_eq!((space.f_namemax, space.f_frsize), (255, space.f_bsize));
    assert!(space.f_blocks > space.f_bfree && space.f_bfree > 0);
    bed.umount();
}

#[test]
fn access_lists_and_other_users_are_checked() {
    if !can_mount() || !crate::testbed::is_root() || !have("setfacl") || !have("setpriv") {
        return;
    }
    let mut bed = Bed::new("16M", &["-O", "metadata_csum"], "allow_other");
    bed.shell("chmod 755 .; mkdir d; chmod 700 d; echo secret > d/f; setfacl -m u:4321:rx d; setfacl -d -m g:77:rwx d");
    let as_user = |uid: u32, groups: &str, script: &str| {
        let script = format!("cd '{}' && {script}", bed.at.display());
        let uid = uid.to_string();
        let args = ["--reuid", &uid, "--regid", &uid, "--groups", groups, "sh", "-c", &script];
        extant_testbed::command("setpriv").args(args).output().unwrap().status.success()
    };
    assert!(as_user(4321, "4321", "cat d/f"), "the list lets this user in");
    assert!(!as_user(4322, "4322", "cat d/f"), "and no other");
    assert!(!as_user(4321, "4321", "touch d/new"));
    bed.shell("chgrp 77 d; chmod 2770 d; setfacl -m g::rwx d");
    assert!(as_user(5000, "5000,77", "touch d/new && mkdir d/sub"), "a supplementary group counts");
    let made = fs::metadata(bed.path("d/new")).unwrap();
    assert_eq!((made.uid(), made.gid()), (5000, 77));
    assert_eq!(fs::metadata(bed.path("d/sub")).unwrap().mode() & 0o2000, 0o2000);
    bed.shell("getfacl -c d/new | grep -q group:77:rwx; mkdir t; chmod 1777 t; touch t/root");
    assert!(!as_user(5000, "5000", "rm -f t/root"), "a sticky directory");
    assert!(as_user(5000, "5000", "touch t/own && rm t/own"));
    bed.umount();
}
