//! `extant check`: output, exit codes, and that it writes nothing.

use crate::testbed::{Ran, debugfs, extant, have, mke2fs, mounted, place};
use std::fs;
use std::os::unix::fs::{FileExt, PermissionsExt};
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
fn a_repair_is_written_behind_an_undo_file() {
    if !have("mke2fs") || !have("debugfs") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    volume(&image);
    debugfs(&image, &["sif /name links_count 7".into()]);
    let damaged = fs::read(&image).unwrap();
    // A dry run wants no right to write.
    fs::set_permissions(&image, fs::Permissions::from_mode(0o444)).unwrap();
    for dry in
        [&["check", "--repair", "--dry-run", arg(&image)][..], &["check", "-p", "--dry-run", arg(&image)]]
    {
        let dry = extant(dry);
        let text = String::from_utf8(dry.stdout).unwrap();
        assert_eq!(dry.code, Some(4), "{}", dry.stderr);
        assert_eq!(text, "link-count: inode 12 (/name): i_links_count is 7: recount it\n");
    }
    assert_eq!(fs::read(&image).unwrap(), damaged);
    let undo = folder.path().join("image.extant-undo");
    assert!(!undo.exists());
    fs::set_permissions(&image, fs::Permissions::from_mode(0o644)).unwrap();

    let repaired = extant(["check", "--repair", arg(&image)]);
    assert_eq!(repaired.code, Some(1), "{}", repaired.stderr);
    assert_eq!(extant(["check", arg(&image)]).code, Some(0));
    let after = fs::read(&image).unwrap();
    assert_eq!(undo.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    let back = extant(["undo", arg(&undo), arg(&image)]);
    assert_eq!(back.code, Some(0), "{}", back.stderr);
    assert_eq!(fs::read(&image).unwrap(), damaged);
    let back = extant(["undo", arg(&undo), arg(&image)]);
    assert_eq!(back.code, Some(0), "{}", back.stderr);
    assert_eq!(fs::read(&image).unwrap(), damaged);

    // A second repair keeps the first one's file, and does not take one that is there.
    let refused = extant(["check", "--repair", "--undo", arg(&undo), arg(&image)]);
    assert!(refused.code == Some(8) && refused.stderr.contains("name a new file"), "{}", refused.stderr);
    let json = extant(["check", "-y", "--json", arg(&image)]);
    let json: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    let second = folder.path().join("image.extant-undo.1");
    assert_eq!((&json["written"], &json["undo"]), (&true.into(), &arg(&second).into()));
    assert_eq!(json["repairs"][0]["code"], "link-count");
    assert_eq!(fs::read(&image).unwrap(), after);

    // What was changed since then is kept, and another volume is left alone.
    extant(["mkdir", &place(&image, "/new")]).clean();
    let changed = fs::read(&image).unwrap();
    let other = folder.path().join("other");
    volume(&other);
    for (image, why) in [(&image, "was changed after the repair"), (&other, "another volume: its UUID")] {
        let before = fs::read(image).unwrap();
        let refused = extant(["undo", arg(&second), arg(image)]);
        assert!(refused.code == Some(1) && refused.stderr.contains(why), "{}", refused.stderr);
        assert_eq!(fs::read(image).unwrap(), before);
    }
    assert_eq!(fs::read(&image).unwrap(), changed);
}

#[test]
fn a_repair_says_what_it_leaves() {
    if !have("mke2fs") || !have("debugfs") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    volume(&image);
    // No repair gives names new hashes.
    debugfs(&image, &["ssv hash_seed null".into()]);
    let left = extant(["check", "-y", arg(&image)]);
    assert_eq!(left.code, Some(4), "{}", left.stderr);
    debugfs(&image, &["sif /name links_count 7".into()]);
    let some = extant(["check", "-p", arg(&image)]);
    assert_eq!(some.code, Some(5), "{}", some.stderr);

    // What loses something is not safe.
    debugfs(&image, &["clri /name".into()]);
    let damaged = fs::read(&image).unwrap();
    let refused = extant(["check", "-a", arg(&image)]);
    assert!(refused.code == Some(4) && refused.stderr.contains("nothing was written"), "{}", refused.stderr);
    // A repair is of the whole volume, with its journal.
    for repair in ["-p", "-a", "-y", "--repair", "--dry-run"] {
        for (option, value) in [("--superblock", "8193K"), ("--ignore-journal", "-f")] {
            let refused = extant(["check", repair, option, value, arg(&image)]);
            assert_eq!(refused.code, Some(16), "{repair} {option}: {}", refused.stderr);
        }
    }
    assert_eq!(extant(["check", "--undo", "x", arg(&image)]).code, Some(16));
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
        assert!(ran.stderr.contains("nothing to repair"), "{}", ran.stderr);
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

/// A directory whose map leads to 2^24 blocks, on a sparse volume of 64 GiB.
fn endless(image: &Path) {
    mke2fs(
        image,
        "64G",
        &["-t", "ext4", "-b", "4096", "-N", "8192", "-O", "^metadata_csum,^has_journal", "-I", "128"],
    );
    debugfs(image, &["mkdir /endless".into()]);
    let said = String::from_utf8(
        Command::new("debugfs").args(["-R", "imap /endless", arg(image)]).output().unwrap().stdout,
    )
    .unwrap();
    // "located at block 1234, offset 0x0580"
    let word = |after: &str| said.split(after).nth(1).unwrap().split([',', '\n', ' ']).next().unwrap();
    let offset = u64::from_str_radix(word("offset 0x"), 16).unwrap();
    let at = word("at block ").parse::<u64>().unwrap() * 4096 + offset;
    let file = fs::OpenOptions::new().read(true).write(true).open(image).unwrap();
    let leaf = 12_000_000_u64;
    let header = |entries: u16, most: u16, depth: u16| {
        let words = [0xf30a, entries, most, depth, 0, 0];
        words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>()
    };
    let mut node = header(340, 340, 0);
    for n in 0..340_u32 {
        node.extend((n * 32_768).to_le_bytes());
        node.extend(32_768_u16.to_le_bytes());
        node.extend(0_u16.to_le_bytes());
        node.extend((1_000_000 + n * 32_768).to_le_bytes());
    }
    file.write_all_at(&node, leaf * 4096).unwrap();
    let mut root = header(1, 4, 1);
    root.extend(0_u32.to_le_bytes());
    root.extend((leaf as u32).to_le_bytes());
    root.extend([0; 4]);
    file.write_all_at(&root, at + 40).unwrap();
    file.write_all_at(&(340_u64 * 32_768 * 4096).to_le_bytes()[..4], at + 4).unwrap();
    file.write_all_at(&(340_u64 * 32_768 * 4096).to_le_bytes()[4..], at + 108).unwrap();
}

#[test]
fn a_hostile_volume_takes_no_more_memory_than_allowed() {
    if !have("mke2fs") || !have("debugfs") || !have("prlimit") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    endless(&image);
    // Stacks and the arenas of the program itself count as well.
    let mut command = Command::new("prlimit");
    command.args(["--data=268435456", env!("CARGO_BIN_EXE_extant"), "check", "--json", arg(&image)]);
    let ran: Ran = command.output().unwrap().into();
    assert!(matches!(ran.code, Some(8 | 12)), "{:?}: {}", ran.code, ran.stderr);
    assert!(ran.stderr.contains("not everything was checked: that would take more than"), "{}", ran.stderr);
    let json: serde_json::Value = serde_json::from_slice(&ran.stdout).unwrap();
    assert!(json["incomplete"].is_string());
    let ran = extant(["check", "--memory", "30M", arg(&image)]);
    assert!(ran.stderr.contains("more than 30 MiB of memory; --memory allows for more"), "{}", ran.stderr);
    assert_eq!(extant(["check", "--memory", "1M", arg(&image)]).code, Some(16));
}

#[test]
fn an_interrupt_ends_it_at_once() {
    use std::io::Read;
    if !have("mke2fs") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    mke2fs(&image, "8M", &["-t", "ext2", "-b", "1024", "-N", "6000"]);
    // All inodes are marked as used, so there is more to say than the pipe takes.
    let file = fs::OpenOptions::new().read(true).write(true).open(&image).unwrap();
    let mut bitmap = [0; 4];
    file.read_exact_at(&mut bitmap, 2052).unwrap();
    file.write_all_at(&[0xff; 1024], u64::from(u32::from_le_bytes(bitmap)) * 1024).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_extant"));
    command.args(["check", "--max-per-class", "9000", arg(&image)]).stdout(std::process::Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut said = child.stdout.take().unwrap();
    said.read_exact(&mut [0]).unwrap();
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(32));
}
