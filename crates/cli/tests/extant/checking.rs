//! `extant check`: output, exit codes, and that it writes nothing.

use crate::testbed::{Ran, debugfs, extant, have, mke2fs, mounted};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

fn volume(image: &Path) {
    mke2fs(image, "4M", &["-t", "ext4", "-b", "1024"]);
    let file = image.with_extension("file");
    fs::write(&file, "contents").unwrap();
    debugfs(image, &[format!("write {} name", file.display())]);
}

fn arg(image: &Path) -> &str {
    image.to_str().unwrap()
}

#[test]
fn a_check_reports_by_code_and_writes_nothing() {
    if !have("mke2fs") || !have("debugfs") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    volume(&image);
    fs::set_permissions(&image, fs::Permissions::from_mode(0o444)).unwrap();
    let before = fs::read(&image).unwrap();
    let clean = extant(["check", arg(&image)]);
    assert_eq!((clean.code, clean.stdout.len()), (Some(0), 0), "{}", clean.stderr);

    debugfs(&image, &["sif /name links_count 7".into()]);
    let damaged = fs::read(&image).unwrap();
    assert_ne!(before, damaged);
    let found = extant(["check", arg(&image)]);
    assert_eq!(found.code, Some(4));
    let text = String::from_utf8(found.stdout).unwrap();
    assert!(text.starts_with("link-count: inode 12 (/name): i_links_count is 7; expected 1\n"), "{text}");
    assert!(text.contains("\n1 link-count (inode, medium): "), "{text}");
    let json = extant(["check", "--json", arg(&image)]);
    let json: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(json["counts"]["link-count"], 1);
    let finding = &json["findings"][0];
    assert_eq!((&finding["path"], &finding["inode"]), (&"/name".into(), &12.into()));
    assert!(finding["repair"].as_str().is_some_and(|repair| !repair.is_empty()));
    assert_eq!(fs::read(&image).unwrap(), damaged);
}

#[test]
fn it_answers_to_fsck() {
    if !have("mke2fs") || !have("debugfs") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    volume(&image);
    let fsck = |args: &[&str]| -> Ran {
        let mut command = Command::new(env!("CARGO_BIN_EXE_extant"));
        command.arg0("/usr/sbin/fsck.extant").args(args).output().unwrap().into()
    };
    assert_eq!(fsck(&["-n", arg(&image)]).code, Some(0));
    for repair in ["-p", "-a", "-y"] {
        let ran = fsck(&["-f", repair, arg(&image)]);
        assert_eq!(ran.code, Some(0));
        assert!(ran.stderr.contains("repairs are not there yet"), "{}", ran.stderr);
    }
    assert_eq!(fsck(&["--nonsense"]).code, Some(16));
    assert_eq!(fsck(&["-n", "-y", arg(&image)]).code, Some(16));
    assert_eq!(fsck(&[arg(&folder.path().join("missing"))]).code, Some(8));
    fs::write(&image, vec![0; 1 << 20]).unwrap();
    assert_eq!(fsck(&[arg(&image)]).code, Some(8));
}

#[test]
fn a_volume_in_use_gives_suspicions_only() {
    if !have("mke2fs") || !have("debugfs") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    volume(&image);
    debugfs(&image, &["sif /name links_count 7".into()]);
    let Some(mount) = mounted(&image, "ro,noload") else { return };
    let ran = extant(["check", "--json", arg(&image)]);
    let json: serde_json::Value = serde_json::from_slice(&ran.stdout).unwrap();
    assert_eq!(ran.code, Some(0), "{json}");
    assert_eq!(json["findings"][0]["suspected"], true);
    drop(mount);
    assert_eq!(extant(["check", arg(&image)]).code, Some(4));
}

#[test]
fn a_dirty_journal_is_seen_through() {
    if !have("mke2fs") || !have("e2fsck") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (image, copy) = (folder.path().join("image"), folder.path().join("copy"));
    mke2fs(&image, "8M", &["-t", "ext4", "-b", "1024"]);
    let Some(mount) = mounted(&image, "rw") else { return };
    for n in 0..50 {
        fs::create_dir(mount.path().join(format!("dir-{n}"))).unwrap();
        fs::write(mount.path().join(format!("dir-{n}/file")), "x").unwrap();
    }
    rustix::fs::syncfs(fs::File::open(mount.path()).unwrap()).unwrap();
    fs::copy(&image, &copy).unwrap();
    drop(mount);
    let before = fs::read(&copy).unwrap();
    let ran = extant(["check", arg(&copy)]);
    assert_eq!(ran.code, Some(0), "{}", String::from_utf8_lossy(&ran.stdout));
    assert_eq!(fs::read(&copy).unwrap(), before);
    assert_eq!(extant(["check", arg(&image)]).code, Some(0));
}
