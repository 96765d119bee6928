//! Archives, as other programs read them.

use crate::testbed::{Mount, assert_same, extant, have, look, mke2fs, noise, place, run};
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::path::Path;

fn populate(root: &Path) {
    fs::create_dir_all(root.join("d".repeat(120)).join("e".repeat(120))).unwrap();
    fs::write(root.join("d".repeat(120)).join("long path"), noise(1, 10_000)).unwrap();
    fs::write(root.join("file"), b"contents").unwrap();
    fs::hard_link(root.join("file"), root.join("d".repeat(120)).join("another name")).unwrap();
    symlink("t/".repeat(150), root.join("far link")).unwrap();
    let sparse = File::create(root.join("sparse")).unwrap();
    sparse.write_all_at(&noise(2, 5000), 1 << 20).unwrap();
    sparse.write_all_at(b"end", 20 << 20).unwrap();
    sparse.set_len(30 << 20).unwrap();
    let only_hole = File::create(root.join("only a hole")).unwrap();
    only_hole.set_len(3 << 20).unwrap();
    rustix::fs::setxattr(root.join("file"), "user.a=b%", b"\0\n=", rustix::fs::XattrFlags::empty()).unwrap();
}

#[test]
fn tar_restores_what_was_exported() {
    if !have("mke2fs") || !have("tar") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    mke2fs(&image, "64M", &["-t", "ext4"]);
    let Some(mount) = Mount::new(&image, "user_xattr,acl") else { return };
    populate(mount.path());
    run("touch", &["-d", "1965-03-02 01:02:03.5Z", mount.path().join("file").to_str().unwrap()]);
    fs::remove_dir(mount.path().join("lost+found")).unwrap();
    let expected = look(mount.path());
    drop(mount);
    for suffix in ["tar", "tar.gz", "tar.zst", "tar.xz"] {
        let archive = dir.path().join(format!("out.{suffix}"));
        extant(["export".as_ref(), image.as_os_str(), "-o".as_ref(), archive.as_os_str()]).clean();
        let to = dir.path().join("unpacked");
        fs::create_dir(&to).unwrap();
        let (archive, at) = (archive.to_str().unwrap(), to.to_str().unwrap());
        run("tar", &["--warning=no-timestamp", "--xattrs", "--xattrs-include=*", "-xpf", archive, "-C", at]);
        assert_same(suffix, &look(&to), &expected);
        assert!(to.join("sparse").metadata().unwrap().blocks() < 100, "holes stay holes");
        fs::remove_dir_all(&to).unwrap();
        if have("bsdtar") {
            fs::create_dir(&to).unwrap();
            run("bsdtar", &["-xpf", archive, "-C", at]);
            let mut expected = expected.clone();
            let mut seen = look(&to);
            // bsdtar leaves the directory that it unpacks into as it is, does not undo GNU tar's spelling of attributes with
            // an equals sign, and adds the fractions of times before 1970 where it should subtract them.
            expected.remove(&b""[..]);
            seen.remove(&b""[..]);
            for seen in expected.values_mut().chain(seen.values_mut()) {
                seen.xattrs.clear();
                if seen.modified.0 < 0 {
                    seen.modified = (0, 0);
                }
            }
            assert_same(&format!("bsdtar, {suffix}"), &seen, &expected);
            fs::remove_dir_all(&to).unwrap();
        }
    }
}

#[test]
fn the_same_volume_gives_the_same_archive_and_leaves_no_half_one() {
    if !have("mke2fs") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("source");
    fs::create_dir(&source).unwrap();
    populate(&source);
    let image = dir.path().join("image");
    mke2fs(&image, "64M", &["-t", "ext4", "-d", source.to_str().unwrap()]);
    let to_stdout = || extant(["export", image.to_str().unwrap(), "-o", "-"]).clean();
    let first = to_stdout();
    assert!(first == to_stdout());
    assert_eq!(first.len() % 512, 0);

    let path = format!("/{}/long path", "d".repeat(120));
    let below = extant(["export".to_string(), place(&image, &path), "-o".into(), "-".into()]).clean();
    assert!(below.starts_with(b"long path\0"), "one file by its name");

    let nowhere = dir.path().join("missing/out.tar");
    assert_eq!(
        extant(["export".as_ref(), image.as_os_str(), "-o".as_ref(), nowhere.as_os_str()]).code,
        Some(1)
    );
    let archive = dir.path().join("kept.tar");
    fs::write(&archive, b"old").unwrap();
    let failed =
        extant(["export".to_string(), place(&image, "/missing"), "-o".into(), archive.display().to_string()]);
    assert_eq!(failed.code, Some(1));
    assert_eq!(fs::read(&archive).unwrap(), b"old");
}
