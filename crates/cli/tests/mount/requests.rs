//! Requests that change several things, or that few programs make.

use crate::bed::{Bed, can_mount, text};
use crate::testbed::{have, is_root, run};
use rustix::fs::{CWD, RenameFlags};
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};

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

#[test]
fn the_label_can_be_changed() {
    if !can_mount() || !have("python3") || !have("e2label") {
        return;
    }
    let mut bed = Bed::new("16M", &["-L", "first"], "");
    bed.python(
        "import fcntl\n\
         f = os.open('.', os.O_RDONLY)\n\
         get = lambda: fcntl.ioctl(f, 0x81009431, bytes(256)).rstrip(bytes(1))\n\
         put = lambda label: fcntl.ioctl(f, 0x41009432, label.ljust(256, bytes(1)))\n\
         assert get() == b'first'\n\
         put(b'sixteen bytes are'[:16]); assert get() == b'sixteen bytes ar'\n\
         try: put(b'seventeen bytes..'); assert False\n\
         except OSError as error: assert error.errno == 22\n\
         put(b'second'); assert get() == b'second'",
    );
    bed.kill();
    bed.mount("");
    bed.umount();
    assert_eq!(run("e2label", &[text(&bed.image)]).trim(), "second");
}

/// Without projects on the volume, the flags stay as they were too.
#[test]
fn flags_and_the_project_are_set_both_or_neither() {
    if !can_mount() || !have("python3") {
        return;
    }
    const SET: &str = "
import fcntl, struct
f = os.open('f', os.O_RDWR | os.O_CREAT)
def get(): return struct.unpack('5I8x', fcntl.ioctl(f, 0x801c581f, bytes(28)))[:4:3]
def put(flags, project): fcntl.ioctl(f, 0x401c5820, struct.pack('5I8x', flags, 0, 0, project, 0))
NODUMP, IMMUTABLE = 0x80, 8
";
    for (features, then) in [
        (
            "^project",
            "try: put(NODUMP, 5); assert False\nexcept OSError as error: assert error.errno == 95\nassert get() == (0, 0)",
        ),
        (
            "project,quota",
            "put(NODUMP, 5); assert get() == (NODUMP, 5)\nput(IMMUTABLE, 6); assert get() == (IMMUTABLE, 6)\nput(0, 0); assert get() == (0, 0)",
        ),
    ] {
        let mut bed = Bed::new("16M", &["-O", features, "-I", "256"], "");
        bed.python(&format!("{SET}{then}"));
        bed.umount();
    }
}

/// The size is not cut if the request fails for another reason, and it does not fail for one that
/// the caller cannot help.
#[test]
fn a_file_may_be_cut_by_those_who_may_write_it() {
    if !can_mount() || !is_root() || !have("python3") {
        return;
    }
    for options in ["allow_other", "allow_other,writeback"] {
        let mut bed = Bed::new("16M", &[], options);
        bed.shell("chmod 755 .; echo root > f; chmod 666 f; echo root > g; touch -d 2001-02-03 f g");
        fs::set_permissions(bed.image.parent().unwrap(), fs::Permissions::from_mode(0o755)).unwrap();
        let cut = |name: &str| {
            // An interpreter may lie where only root may go.
            let become_user = "import os; os.setgroups([]); os.setgid(5000); os.setuid(5000)";
            let program = format!("{become_user}; os.truncate({:?}, 2)", text(&bed.path(name)));
            extant_testbed::command("python3").args(["-c", &program]).output().unwrap().status.success()
        };
        assert!(cut("f") && !cut("g"), "{options}");
        let seen = ["f", "g"].map(|name| fs::metadata(bed.path(name)).unwrap());
        assert_eq!([seen[0].size(), seen[1].size()], [2, 5]);
        assert!(seen[0].mtime() > 1_700_000_000 && seen[1].mtime() < 1_000_000_000, "{options}");
        bed.umount();
    }
}
