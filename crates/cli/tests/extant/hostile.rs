//! Volumes that try to write outside the destination, or to control the terminal.

use crate::testbed::{extant, have, look, mke2fs, place};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

/// A volume of a directory, without checksums, whose bytes are then edited: every `from` becomes
/// `to`, of equal length.
fn forge(dir: &Path, fill: impl Fn(&Path), edits: &[(&[u8], &[u8])]) -> PathBuf {
    let source = dir.join("source");
    fs::create_dir(&source).unwrap();
    fill(&source);
    let image = dir.join("image");
    mke2fs(&image, "4M", &["-t", "ext2", "-b", "1024", "-d", source.to_str().unwrap()]);
    let mut bytes = fs::read(&image).unwrap();
    for (from, to) in edits {
        assert_eq!(from.len(), to.len());
        let places: Vec<usize> = bytes
            .windows(from.len())
            .enumerate()
            .filter(|(_, window)| window == from)
            .map(|(at, _)| at)
            .collect();
        assert!(!places.is_empty());
        places.into_iter().for_each(|at| bytes[at..at + to.len()].copy_from_slice(to));
    }
    fs::write(&image, bytes).unwrap();
    image
}

fn copy_and_archive(image: &Path, to: &Path) -> (Option<i32>, String, Vec<u8>) {
    let copied = extant(["cp".as_ref(), place(image, "/").as_ref(), to.as_os_str()]);
    let archived = extant(["export", image.to_str().unwrap(), "-o", "-"]);
    (copied.code, copied.stderr, archived.stdout)
}

#[test]
fn names_with_slashes_and_dots_go_nowhere() {
    if !have("mke2fs") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let fill = |source: &Path| {
        fs::write(source.join("XX-evil-1"), b"pwned").unwrap();
        fs::write(source.join("YY-evil-22"), b"pwned").unwrap();
        fs::write(source.join("good"), b"kept").unwrap();
    };
    let image = forge(dir.path(), fill, &[(b"XX-evil-1", b"../evil-1"), (b"YY-evil-22", b"/tmp/x-e22")]);
    let to = dir.path().join("inside/to");
    fs::create_dir_all(&to).unwrap();
    let (code, told, archive) = copy_and_archive(&image, &to);
    assert_eq!(code, Some(3), "{told}");
    assert!(told.contains("directory 2: block 0: name"), "{told}");
    assert_eq!(fs::read(to.join("good")).unwrap(), b"kept");
    assert!(!dir.path().join("inside/evil-1").exists());
    assert_eq!(look(&to).len(), 2, "nothing but the root and the good file");
    assert!(!archive.windows(4).any(|window| window == b"evil" || window == b"-e22"));
}

#[test]
fn a_link_and_a_directory_of_one_name_do_not_lead_out() {
    if !have("mke2fs") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let outside = dir.path().join("outside");
    fs::create_dir(&outside).unwrap();
    let fill = |source: &Path| {
        symlink(&outside, source.join("door-1")).unwrap();
        fs::create_dir(source.join("door-2")).unwrap();
        fs::write(source.join("door-2/burglar"), b"in").unwrap();
    };
    let image = forge(dir.path(), fill, &[(b"door-2", b"door-1")]);
    let to = dir.path().join("to");
    let (code, told, _) = copy_and_archive(&image, &to);
    assert_eq!(code, Some(3), "{told}");
    assert!(told.contains("inode 2: entries of one name"), "{told}");
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
}

#[test]
fn links_at_the_destination_are_not_followed() {
    if !have("mke2fs") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (outside, to) = (dir.path().join("outside"), dir.path().join("to"));
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("precious"), b"kept").unwrap();
    fs::create_dir(&to).unwrap();
    symlink(&outside, to.join("sub")).unwrap();
    symlink(outside.join("precious"), to.join("file")).unwrap();
    let fill = |source: &Path| {
        fs::create_dir(source.join("sub")).unwrap();
        fs::write(source.join("sub/precious"), b"lost").unwrap();
        fs::write(source.join("file"), b"new").unwrap();
    };
    let image = forge(dir.path(), fill, &[]);
    let (code, told, _) = copy_and_archive(&image, &to);
    assert_eq!(code, Some(1));
    assert!(told.contains("/sub cannot be created"), "{told}");
    assert_eq!(fs::read(outside.join("precious")).unwrap(), b"kept");
    assert_eq!(fs::read(to.join("file")).unwrap(), b"new");
    assert!(to.join("file").symlink_metadata().unwrap().is_file());

    let link = dir.path().join("link");
    symlink(&to, &link).unwrap();
    let refused = extant(["cp".as_ref(), place(&image, "/file").as_ref(), link.as_os_str()]);
    assert_eq!(refused.code, Some(1));
    assert!(refused.stderr.contains("is a symbolic link; write a slash behind it"), "{}", refused.stderr);
}

#[test]
fn a_directory_in_itself_is_told_and_left() {
    if !have("mke2fs") || !have("debugfs") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let fill = |source: &Path| {
        fs::create_dir_all(source.join("a/b")).unwrap();
        fs::write(source.join("a/b/file"), b"x").unwrap();
    };
    let image = forge(dir.path(), fill, &[]);
    crate::testbed::debugfs(&image, &["link a a/b/again".to_string(), "link / a/root".to_string()]);
    let ran = extant(["tree", image.to_str().unwrap()]);
    assert_eq!(ran.code, Some(3));
    assert!(ran.stderr.contains("names of the directory is 2, must be 1"), "{}", ran.stderr);
    let shown = String::from_utf8(ran.stdout).unwrap();
    assert!(shown.contains("file") && shown.lines().count() == 5, "{shown}");
}

#[test]
fn nothing_printed_can_steer_a_terminal() {
    if !have("mke2fs") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let fill = |source: &Path| {
        let name = "\x1b]0;title\x07\u{9b}31m\u{202e}txt.exe\n";
        fs::create_dir(source.join(name)).unwrap();
        symlink("\x1b[2J", source.join("link")).unwrap();
        rustix::fs::setxattr(source.join(name), "user.\x1b", b"\x1b[1m", rustix::fs::XattrFlags::empty())
            .unwrap();
    };
    let image = forge(dir.path(), fill, &[]);
    let image = image.to_str().unwrap();
    let evil = format!("{image}:/\x1b]0;title\x07\u{9b}31m\u{202e}txt.exe\n");
    let commands: [&[&str]; 9] = [
        &["ls", "-l", image],
        &["ls", "--json", image],
        &["tree", image],
        &["tree", "--json", image],
        &["stat", &evil],
        &["stat", "--json", &evil],
        &["cat", &evil],
        &["cat", "no such \x1b image"],
        &["info", image],
    ];
    for command in commands {
        let ran = extant(command);
        let text = String::from_utf8(ran.stdout).unwrap() + &ran.stderr;
        let steers = |c: char| (c.is_control() && c != '\n') || c == '\u{202e}';
        assert!(!text.contains(steers), "{command:?}: {text:?}");
    }
}
