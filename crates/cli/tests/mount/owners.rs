//! Owners that appear under other numbers, and users who act as the volume's root.

use crate::bed::{Bed, can_mount};
use crate::testbed::{Ran, debugfs, fsck, have, is_root};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

/// Runs a shell script in the root directory of a volume, which the ordinary user `ada` (1234) has
/// mounted with these options.
fn as_user(bed: &Bed, options: &str, script: &str) -> Ran {
    let dir = bed.image.parent().unwrap();
    fs::set_permissions(dir, fs::Permissions::from_mode(0o755)).unwrap();
    for path in [&bed.image, &bed.at] {
        std::os::unix::fs::chown(path, Some(1234), None).unwrap();
    }
    let prepared = "set -e; mkdir -p own; mount -t tmpfs -o mode=755 none own; \
                    mkdir own/etc; echo ada:x:1234:1234::/:/bin/sh | cat /etc/passwd - > own/etc/passwd; \
                    ln -s /proc/self/mounts own/etc/mtab; \
                    mount --bind own/etc /etc; touch own/extant; mount --bind \"$1\" own/extant; \
                    mknod own/fuse c 10 229; chmod 666 own/fuse; mount --bind own/fuse /dev/fuse; \
                    exec setpriv --reuid 1234 --regid 1234 --clear-groups sh -c \"$4\" sh \"$2\" \"$3\"";
    let mounted = "own/extant -q mount -o \"$1\" image mnt; (cd mnt && sh -euc \"$2\"); code=$?; \
                   own/extant -q umount mnt; exit $code";
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", prepared, "sh", env!("CARGO_BIN_EXE_extant"), options, script, mounted]);
    let ran: Ran = command.current_dir(dir).stdin(Stdio::null()).output().unwrap().into();
    fsck(&bed.image);
    ran
}

#[track_caller]
fn gives(ran: &Ran, expected: &str) {
    let told = (String::from_utf8_lossy(&ran.stdout).into_owned(), &*ran.stderr, ran.code);
    assert_eq!(told, (expected.to_owned(), "", Some(0)));
}

#[test]
fn an_ordinary_user_may_act_as_root_of_a_mount() {
    if !can_mount() || !is_root() || !have("setpriv") || !have("fusermount3") || !have("setfacl") {
        return;
    }
    let bed = Bed::unmounted("16M", &["-E", "root_owner=0:0"]);
    debugfs(
        &bed.image,
        &["write /etc/hostname /theirs", "sif /theirs uid 55", "sif /theirs gid 66"].map(str::to_owned),
    );
    let owners = "stat -c %n=%u:%g *";
    let denied = "! sh -c 'echo x > mine' 2>&-; ! chmod 600 theirs 2>&-";
    gives(&as_user(&bed, "defaults", &format!("{denied}; {owners}")), "lost+found=0:0\ntheirs=55:66\n");
    // Owners are kept, and the user is root.
    let script = format!("echo x > theirs; chown 5:6 theirs; echo x > mine; chmod 4755 mine; {owners}");
    gives(&as_user(&bed, "fakeroot", &script), "lost+found=0:0\nmine=0:0\ntheirs=5:6\n");
    gives(&as_user(&bed, "ro", owners), "lost+found=0:0\nmine=0:0\ntheirs=5:6\n");
    // Everything seems to be the user's, and is stored as root's.
    let all = "uid=1234,gid=1234";
    let script = format!("{owners}; echo y > new; ! chown 5 new 2>&-; chown 1234:1234 theirs; rm mine");
    gives(&as_user(&bed, all, &script), "lost+found=1234:1234\nmine=1234:1234\ntheirs=1234:1234\n");
    gives(&as_user(&bed, "ro", owners), "lost+found=0:0\nnew=0:0\ntheirs=0:0\n");
    // A user's numbers of /etc/subuid.
    let ranges = "uid=0:1234:1,uid=1:100000:65535,gid=0:1234:1,gid=1:100000:65535";
    let script = format!(
        "chown 100054:100065 theirs; setfacl -m u:100006:rw new; {owners}; getfacl -nc new | grep user:1; \
         ! chown 7 new 2>&-; ! setfacl -m u:7:r new 2>&-"
    );
    let shown = "lost+found=1234:1234\nnew=1234:1234\ntheirs=100054:100065\nuser:100006:rw-\n";
    gives(&as_user(&bed, ranges, &script), shown);
    let script = format!("{owners}; getfacl -nc new | grep user:[0-9]");
    gives(&as_user(&bed, "ro", &script), "lost+found=0:0\nnew=0:0\ntheirs=55:66\nuser:7:rw-\n");
    // A list with somebody who does not appear is not changed.
    let refused = "! setfacl -m u:1234:r new 2>&-; ! setfacl -b new 2>&-";
    gives(&as_user(&bed, all, refused), "");
    gives(&as_user(&bed, "ro", &script), "lost+found=0:0\nnew=0:0\ntheirs=55:66\nuser:7:rw-\n");
}

#[test]
fn the_kernel_sees_at_once_what_the_server_changes_of_a_mode() {
    if !can_mount() || !is_root() || !have("setpriv") || !have("setfacl") {
        return;
    }
    // An access list is the mode's group bits.
    let mut bed = Bed::new("16M", &[], "");
    bed.shell("umask 77; echo x > f; chmod 640 f; cp -p f copy; test $(stat -c %a copy) = 640");
    bed.shell("ls -l f >/dev/null; setfacl -m u:5:rwx f; test $(stat -c %a f) = 670");
    bed.umount();
    // A program loses its set-ID bit when another user writes to it.
    bed.mount("allow_other,suid");
    bed.shell("chmod 755 .; cp /usr/bin/id tool; chmod 4777 tool");
    let script = format!("cd '{}' && cat /usr/bin/id 1<> tool && ./tool -u", bed.at.display());
    let args = ["--reuid=5000", "--regid=5000", "--clear-groups", "sh", "-c", &script];
    fs::set_permissions(bed.at.parent().unwrap(), fs::Permissions::from_mode(0o755)).unwrap();
    let ran: Ran = extant_testbed::command("setpriv").args(args).output().unwrap().into();
    gives(&ran, "5000\n");
    bed.umount();
}
