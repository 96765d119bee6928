//! Damage that loses a whole tree is reported, and a caller's mistake is not reported as damage.

use crate::testbed::{debugfs, extant, fsck, have, mke2fs, place};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

fn volume(dir: &Path, options: &[&str]) -> PathBuf {
    let source = dir.join("source");
    fs::create_dir_all(source.join("sub")).unwrap();
    fs::write(source.join("sub/file"), b"contents").unwrap();
    let image = dir.join("image");
    let mut args = vec!["-b", "1024", "-d", source.to_str().unwrap()];
    args.extend(options);
    mke2fs(&image, "16M", &args);
    image
}

#[test]
fn a_damaged_root_is_told_by_every_command() {
    if !have("mke2fs") || !have("debugfs") {
        return;
    }
    for (field, value) in [("mode", "0100644"), ("mode", "0120777"), ("size", "0"), ("links_count", "0")] {
        let dir = tempfile::tempdir().unwrap();
        let image = volume(dir.path(), &["-t", "ext4"]);
        debugfs(&image, &[format!("sif <2> {field} {value}")]);
        let root = place(&image, "/");
        let (archive, copy) = (dir.path().join("out.tar"), dir.path().join("copy"));
        let commands: [&[&str]; 6] = [
            &["ls", &root],
            &["ls", "--json", "--recursive", &root],
            &["tree", &root],
            &["cat", &place(&image, "/sub/file")],
            &["export", &root, "-o", archive.to_str().unwrap()],
            &["cp", &root, copy.to_str().unwrap()],
        ];
        for command in commands {
            let ran = extant(command);
            assert_eq!(ran.code, Some(3), "{field} {value}: {command:?}: {}", ran.stderr);
            assert!(ran.stderr.contains("inode 2: i_"), "{field} {value}: {command:?}: {}", ran.stderr);
        }
    }
}

#[test]
fn what_is_lost_is_named_by_its_path() {
    if !have("mke2fs") || !have("debugfs") {
        return;
    }
    for (damage, lost) in [
        ("sif /sub/file mode 0", "/sub/file"),
        ("clri /sub/file", "/sub/file"),
        ("ln <9> /sub/reserved", "/sub/reserved"),
        ("ln /sub /sub/again", "/sub/again"),
        ("ln <4000> /sub/nothing", "/sub/nothing"),
        ("sif /sub links_count 0\nsif /sub mode 0", "/sub"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let image = volume(dir.path(), &["-t", "ext4"]);
        debugfs(&image, &damage.lines().map(str::to_owned).collect::<Vec<_>>());
        let top = place(&image, "/");
        let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
        let (archive, copy, source) = (path("out.tar"), path("copy"), path("source"));
        let commands: [&[&str]; 4] = [
            &["export", &top, "-o", &archive],
            &["cp", &top, &copy],
            &["diff", &top, &source],
            &["ls", "--long", "--recursive", &top],
        ];
        for command in commands {
            let ran = extant(command);
            assert_eq!(ran.code, Some(3), "{damage}: {command:?}: {}", ran.stderr);
            let told = ran.stderr.lines().filter(|line| line.contains(&format!(":{lost}: "))).count();
            assert_eq!(told, 1, "{damage}: {command:?}: {}", ran.stderr);
        }
    }
}

#[test]
fn a_callers_mistake_is_no_damage() {
    if !have("mke2fs") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = volume(dir.path(), &["-t", "ext2"]);
    let image = image.to_str().unwrap();
    for (args, told) in [
        (&["inode", "999999"][..], "there is no inode 999999; the volume's last is 4096"),
        (&["inode", "0"], "there is no inode 0"),
        (&["xattrs", "5000"], "there is no inode 5000"),
        (&["group", "7"], "there is no group 7; the volume's last is 1"),
        (&["block", "16384"], "there is no block 16384; the volume's last is 16383"),
        (&["journal"], "the volume has no journal"),
        (&["directory", "7"], "inode 7: not a directory"),
        (&["htree", "2"], "directory 2 has no hash tree"),
    ] {
        let ran = extant([&["debug", image], args].concat());
        assert_eq!(ran.code, Some(1), "{args:?}: {}", ran.stderr);
        assert!(ran.stderr.contains(told), "{args:?}: {}", ran.stderr);
    }
    for at in ["4096", "99999999999"] {
        let ran = extant(["ls", "--superblock", at, image]);
        assert_eq!(ran.code, Some(1), "{}", ran.stderr);
        assert!(ran.stderr.contains(&format!("no superblock at byte {at}")), "{}", ran.stderr);
    }
}

/// A volume with a file whose only extent lies past the end of the volume, so its blocks cannot be
/// freed.
fn with_damaged_map(dir: &Path) -> PathBuf {
    let image = volume(dir, &["-t", "ext4"]);
    debugfs(&image, &["set_inode_field /sub/file block[5] 99999999".to_owned()]);
    image
}

#[test]
fn a_deletion_that_damage_leaves_undone_is_told() {
    if !have("mke2fs") || !have("debugfs") || !have("e2fsck") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("new");
    fs::create_dir_all(source.join("sub")).unwrap();
    fs::write(source.join("sub/file"), b"new contents").unwrap();
    let (new, image) = (source.to_str().unwrap(), with_damaged_map(dir.path()));
    let (root, file) = (place(&image, "/"), place(&image, "/sub/file"));
    let damaged = fs::read(&image).unwrap();
    let complains = |args: &[&str], of: &str| {
        let ran = extant(args);
        assert_eq!(ran.code, Some(3), "{args:?}: {}", ran.stderr);
        assert!(ran.stderr.contains(of), "{args:?}: {}", ran.stderr);
        ran
    };
    for command in
        [&["rm", &file][..], &["rm", "-r", &place(&image, "/sub")], &["build", "--into", &root, new]]
    {
        fs::write(&image, &damaged).unwrap();
        complains(command, "inode 13: ");
        // Now the file is an orphan, and the volume has known errors.
        complains(&["mkdir", &place(&image, "/d")], "s_state");
        let told = complains(&["recover", "--json", image.to_str().unwrap()], "s_state").stdout;
        let told = String::from_utf8(told).unwrap();
        assert!(told.contains("\"has_orphans\": true") && told.contains("s_state"), "{told}");
        let mended = Command::new("e2fsck").arg("-fy").arg(&image).output().unwrap();
        assert!(mended.status.code().is_some_and(|code| code <= 1), "{mended:?}");
        extant(["mkdir", &place(&image, "/e")]).clean();
        fsck(&image);
    }
    fs::write(&image, &damaged).unwrap();
    extant(["mkdir", &place(&image, "/d")]).clean();
    extant(["put", source.join("sub/file").to_str().unwrap(), &place(&image, "/q")]).clean();
    complains(&["mv", &place(&image, "/q"), &file], "inode 13: ");
    assert_eq!(extant(["cat", &file]).clean(), b"new contents", "the names were changed all the same");
}

#[test]
fn a_truncated_image_is_called_that_and_read_as_far_as_it_goes() {
    if !have("mke2fs") || !have("debugfs") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let pieces = dir.path().join("pieces");
    fs::create_dir(&pieces).unwrap();
    for (bytes, is_dirty) in [(10_000_000, false), ((16 << 20) - 100, false), (10_000_000, true)] {
        let image = volume(dir.path(), &["-t", "ext4"]);
        if is_dirty {
            debugfs(&image, &["feature needs_recovery".to_owned()]);
        }
        fs::OpenOptions::new().write(true).open(&image).unwrap().set_len(bytes).unwrap();
        let before = fs::read(&image).unwrap();
        let whole_sectors = bytes / 512 * 512;
        let told =
            format!("the image is truncated: the volume has 16777216 bytes, the image {whole_sectors}");
        let at = |path: &str| place(&image, path);
        let text = image.to_str().unwrap();
        let (archive, copy) = (dir.path().join("out.tar"), pieces.join(format!("{bytes}{is_dirty}")));
        let readers: [&[&str]; 8] = [
            &["cat", &at("/sub/file")],
            &["ls", "--json", &at("/sub")],
            &["tree", text],
            &["stat", &at("/sub/file")],
            &["info", text],
            &["export", text, "-o", archive.to_str().unwrap()],
            &["cp", &at("/sub/file"), copy.to_str().unwrap()],
            &["debug", text, "superblock"],
        ];
        for command in readers {
            let ran = extant(command);
            assert_eq!(ran.code, Some(3), "{command:?}: {}", ran.stderr);
            assert!(ran.stderr.contains(&told), "{command:?}: {}", ran.stderr);
        }
        assert_eq!(fs::read(&copy).unwrap(), b"contents", "what is there is read");
        let file = dir.path().join("source/sub/file");
        let writers: [&[&str]; 7] = [
            &["put", file.to_str().unwrap(), &at("/new")],
            &["rm", &at("/sub/file")],
            &["trim", "--json", text],
            &["recover", text],
            &["shrink", text],
            &["edit", text, "/dev/null"],
            &["build", file.parent().unwrap().to_str().unwrap(), "--into", text],
        ];
        for command in writers {
            let ran = extant(command);
            assert!(ran.code == Some(3) && ran.stdout.is_empty(), "{command:?}: {}", ran.stderr);
            assert!(ran.stderr.contains(&told), "{command:?}: {}", ran.stderr);
        }
        assert!(fs::read(&image).unwrap() == before, "nothing was written");
    }
}
