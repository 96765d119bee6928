//! Mount options that programs notice.

use crate::bed::{Bed, can_mount, extant, text};
use crate::testbed::{have, is_root, run};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::process::Command;

/// Also as in a line of /etc/fstab. e2fsck judges the image that the killed server leaves.
#[test]
fn what_has_returned_on_a_synchronous_mount_survives_a_kill() {
    if !can_mount() {
        return;
    }
    for (options, script, kept) in [
        ("rw,sync", "mkdir d; printf first > d/file; printf ' last' >> d/file", "first last"),
        ("defaults,dirsync", "mkdir d; printf text > f; sync f; mv f d/file", "text"),
    ] {
        let mut bed = Bed::new("8M", &[], options);
        bed.shell(script);
        bed.kill();
        // To e2fsck, the image itself may still be mounted.
        let image = bed.image.with_extension("killed");
        fs::copy(&bed.image, &image).unwrap();
        let image = text(&image).to_owned();
        let preened = Command::new("e2fsck").args(["-fp", &image]).output().unwrap();
        assert!(matches!(preened.status.code(), Some(0 | 1)), "{preened:?}");
        let found = run("debugfs", &["-R", "cat /d/file", &image]);
        assert!(found.starts_with(kept), "{options}: {found}");
        bed.mount("");
        bed.umount();
    }
}

#[test]
fn what_may_wait_to_be_written_is_as_given() {
    if !can_mount() {
        return;
    }
    let mut bed = Bed::unmounted("8M", &[]);
    let ran = bed.try_mount("cache=32M,dirty=32M");
    assert_eq!(ran.code, Some(2));
    assert!(ran.stderr.contains("make cache= larger"), "{}", ran.stderr);
    bed.mount("cache=32M,dirty=4M");
    let shown = extant(&["top", "--once", "--json", text(&bed.at)]).clean_text();
    assert!(shown.contains("\"dirty_limit_bytes\": 4194304,"), "{shown}");
    bed.umount();
}

/// Calls that have to do with lists, and their results. They are those of btrfs with `noacl` on
/// Linux 6.18, whose ext4 no longer takes the option. The default list of a file is left out: FUSE
/// itself answers for it.
const LISTS: &str = r"
access, default = 'system.posix_acl_access', 'system.posix_acl_default'
list = bytes.fromhex('0200000001000600ffffffff04000400ffffffff20000400ffffffff')
def call(what, *args, **options):
    try: return what(*args, **options)
    except OSError as error: return error.errno
for path in ['d', 'd/f', 'link']:
    for name in [access, default]:
        if (path, name) == ('d/f', default): continue
        print(path, call(os.getxattr, path, name, follow_symlinks=False),
            CHANGES and call(os.setxattr, path, name, list, follow_symlinks=False),
            CHANGES and call(os.removexattr, path, name, follow_symlinks=False))
    print(path, sorted(call(os.listxattr, path, follow_symlinks=False)))
";

#[test]
fn access_lists_that_are_ignored_stay_as_they_are() {
    if !can_mount() || !is_root() || !have("setfacl") || !have("setpriv") {
        return;
    }
    let mut bed = Bed::new("8M", &[], "");
    fs::set_permissions(bed.image.parent().unwrap(), fs::Permissions::from_mode(0o755)).unwrap();
    bed.shell(
        "chmod 755 .; mkdir d; echo secret > d/f; chmod 600 d/f; setfacl -m u:4321:r d/f; ln -s d link; \
         setfacl -m u:4321:rwx,g::- d; setfacl -d -m g:77:rwx d",
    );
    rustix::fs::setxattr(bed.path("d"), "user.x", b"y", rustix::fs::XattrFlags::empty()).unwrap();
    let lists = |bed: &Bed| bed.shell("getfacl -c d d/f");
    let before = lists(&bed);
    assert!(before.contains("user:4321:r--") && before.contains("default:group:77:rwx"), "{before}");
    bed.umount();
    for options in ["noacl", "noacl,allow_other", "noacl,allow_other,ro"] {
        bed.mount(options);
        let changes = !options.ends_with("ro");
        let answers = if changes { "95 95 95" } else { "95 False False" };
        let both = |path: &str| format!("{path} {answers}\n{path} {answers}\n");
        let expected =
            both("d") + &format!("d ['user.x']\nd/f {answers}\nd/f []\n") + &both("link") + "link []\n";
        let program = LISTS.replace("CHANGES", if changes { "True" } else { "False" });
        assert_eq!(bed.python(&program), expected, "{options}");
        if options.contains("allow_other") {
            let as_user = |uid: &str, gid: &str, script: &str| {
                let script = format!("cd '{}' && {script}", bed.at.display());
                let args = ["--reuid", uid, "--regid", gid, "--clear-groups", "sh", "-c", &script];
                extant_testbed::command("setpriv").args(args).output().unwrap().status.success()
            };
            assert!(!as_user("4321", "4321", "cat d/f"), "{options}: the list lets this user in");
            // The group's bits are those of the list's mask, as on Linux.
            assert!(as_user("4322", "0", "cat d/f"), "{options}");
        }
        if changes {
            bed.shell("rm -rf d/sub d/new; umask 027; mkdir d/sub; touch d/new; chmod 771 d; setfacl -m u:1:r d 2>&1 | grep -q 'not supported'");
            let mode = |name: &str| fs::metadata(bed.path(name)).unwrap().mode() & 0o7777;
            assert_eq!((mode("d"), mode("d/sub"), mode("d/new")), (0o771, 0o750, 0o640), "{options}");
            bed.shell("chmod 775 d");
        }
        bed.umount();
    }
    bed.mount("");
    assert_eq!(lists(&bed), before);
    assert_eq!(bed.shell("getfacl -cs d/new"), "", "nothing was inherited");
    bed.umount();
}
