//! Builds under fakeroot, as Debian, Buildroot and Yocto make images without root.

use crate::testbed::{fsck, have, run};
use std::fs;
use std::os::unix::fs::PermissionsExt;

#[test]
fn owners_and_devices_are_those_that_fakeroot_shows() {
    if !["fakeroot", "setpriv", "debugfs"].into_iter().all(have) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    fs::create_dir(path("source")).unwrap();
    for open in [".", "source"] {
        fs::set_permissions(path(open), fs::Permissions::from_mode(0o777)).unwrap();
    }
    // Another user may not reach the program where it was built.
    fs::copy(env!("CARGO_BIN_EXE_extant"), path("extant")).unwrap();
    let script = "cd $0/source && touch file && chown 12:34 file && chmod 4755 file && mknod null c 1 3 \
                  && ../extant --quiet build . -o ../image";
    let mut words = vec!["fakeroot", "sh", "-c", script, dir.path().to_str().unwrap()];
    if rustix::process::geteuid().is_root() {
        words.splice(0..0, ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"]);
    }
    run(words[0], &words[1..]);
    fsck(&dir.path().join("image"));
    let stat = |name: &str| run("debugfs", &["-R", &format!("stat {name}"), &path("image")]);
    let file = stat("/file");
    assert!(file.contains("Mode:  04755") && file.contains("User:    12   Group:    34"), "{file}");
    let null = stat("/null");
    assert!(null.contains("Type: character special") && null.contains("01:03"), "{null}");
    assert!(null.contains("User:     0   Group:     0"), "{null}");
}
