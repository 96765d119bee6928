//! Quotas stay exact after every change; e2fsck recounts them per user, group and project.

use crate::testbed::{extant, extant_with, fsck, have, mke2fs, noise, place, run};
use std::fmt::Write;
use std::fs;
use std::path::Path;

const QUOTAS: &str = "quotatype=usrquota:grpquota:prjquota,root_owner=0:0";

/// Usage in a volume's quota file: KiB and inodes by id, for ids in use.
fn usage(image: &Path, kind: &str) -> Vec<(u32, u64, u64)> {
    let said = run("debugfs", &["-R", &format!("list_quota {kind}"), image.to_str().unwrap()]);
    let numbers = said.lines().filter_map(|line| {
        let words: Vec<u64> = line.split_whitespace().map(str::parse).collect::<Result<_, _>>().ok()?;
        match words[..] {
            [id, space, _, _, inodes, ..] => Some((id as u32, space >> 10, inodes)),
            _ => None,
        }
    });
    numbers.filter(|&(_, space, inodes)| (space, inodes) != (0, 0)).collect()
}

#[test]
fn owners_are_charged_what_they_have_after_every_change() {
    if !have("mke2fs") || !have("e2fsck") || !have("debugfs") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    let source = dir.path().join("source");
    fs::write(&source, noise(1, 30_000)).unwrap();
    let source = source.to_str().unwrap();
    for options in [
        &["-t", "ext4", "-b", "4096", "-O", "quota,project"][..],
        &["-t", "ext4", "-b", "1024", "-O", "quota,project,^has_journal"],
        &["-t", "ext3", "-b", "1024", "-I", "256", "-O", "quota"],
    ] {
        let kinds = if options[1] == "ext4" { QUOTAS } else { "root_owner=0:0" };
        mke2fs(&image, "40M", &[options, &["-E", kinds]].concat());
        let edit = |script: &str| {
            extant_with(script.as_bytes(), ["edit".as_ref(), image.as_os_str()]).clean();
            fsck(&image);
        };
        edit(&format!("mkdir /d\nput {source} /d/f\nchown 7:8 /d/f\nln -s {} /d/long\n", "x".repeat(200)));
        assert!(usage(&image, "user").iter().any(|&(id, kib, inodes)| id == 7 && kib >= 29 && inodes == 1));
        edit("chown 7:9 /d\ntruncate -s 5000 /d/f\n");
        if options[1] == "ext4" {
            edit("fallocate -l 100K /d/f\n");
        }
        edit("xattr -s user.a=value /d/f\nln /d/f /d/g\nmv /d/f /e\nrm /e\n");
        // More owners than the quota files have room for.
        let mut script = String::new();
        for n in 0..150u32 {
            let owner = 1000 + n * 7919;
            writeln!(script, "mkdir /o{n}\nchown {owner}:{} /o{n}", owner ^ 0xffff_0000).unwrap();
        }
        edit(&script);
        let users = usage(&image, "user");
        let found =
            (0..150).filter(|n| users.iter().any(|&(id, _, inodes)| id == 1000 + n * 7919 && inodes == 1));
        assert_eq!(found.count(), 150, "{users:?}");
        let gone: String = (0..150).map(|n| format!("rm -r /o{n}\n")).collect();
        edit(&gone);
        assert!(usage(&image, "user").len() <= 2, "{:?}", usage(&image, "user"));
        edit("rm -r /d\n");
        extant(["put", source, &place(&image, "/again")]).clean();
        fsck(&image);
    }
}
