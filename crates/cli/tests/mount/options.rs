//! Mount options that programs notice.

use crate::bed::{Bed, can_mount, extant, text};
use crate::testbed::run;
use std::process::Command;

/// As a line of /etc/fstab says it, too. The oracle of what the killed server has left is e2fsck.
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
        let image = text(&bed.image).to_owned();
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
