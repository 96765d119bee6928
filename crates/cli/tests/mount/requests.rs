//! Requests that change several things, or that few programs make.

use crate::bed::{Bed, can_mount};
use crate::testbed::is_root;
use rustix::fs::{CWD, RenameFlags};
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};

#[test]
fn a_whiteout_is_left_only_if_nothing_is_replaced() {
    if !can_mount() || !is_root() {
        return;
    }
    let mut bed = Bed::new("16M", &[], "");
    bed.shell("echo one > a; echo two > b");
    let (flags, path) = (RenameFlags::WHITEOUT | RenameFlags::NOREPLACE, |name: &str| bed.path(name));
    let refused = rustix::fs::renameat_with(CWD, path("a"), CWD, path("b"), flags);
    assert_eq!(refused, Err(rustix::io::Errno::EXIST));
    assert_eq!(["a", "b"].map(|name| fs::read_to_string(path(name)).unwrap()), ["one\n", "two\n"]);
    rustix::fs::renameat_with(CWD, path("a"), CWD, path("c"), flags).unwrap();
    let left = fs::symlink_metadata(path("a")).unwrap();
    assert!(left.file_type().is_char_device() && left.rdev() == 0);
    assert_eq!(fs::read_to_string(path("c")).unwrap(), "one\n");
    bed.umount();
}
