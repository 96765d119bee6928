//! `extant build --into`: adding to a volume gives the same as building from both.

use crate::testbed::{
    assert_same, extant, extant_at, fsck, have, is_root, look, mke2fs, mounted, noise, place, run,
};
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::Path;

fn base(root: &Path) {
    fs::create_dir_all(root.join("etc/conf.d")).unwrap();
    fs::create_dir_all(root.join("usr/lib")).unwrap();
    symlink("usr/lib", root.join("lib")).unwrap();
    fs::write(root.join("etc/motd"), b"old").unwrap();
    fs::hard_link(root.join("etc/motd"), root.join("etc/motd.link")).unwrap();
    fs::write(root.join("etc/conf.d/kept"), b"kept").unwrap();
    fs::write(root.join("becomes a directory"), b"x").unwrap();
    fs::create_dir_all(root.join("becomes a file/with/things")).unwrap();
    fs::write(root.join("becomes a file/with/things/inside"), noise(3, 9000)).unwrap();
}

fn app(root: &Path) {
    fs::create_dir_all(root.join("etc/conf.d")).unwrap();
    fs::set_permissions(root.join("etc/conf.d"), fs::Permissions::from_mode(0o2750)).unwrap();
    fs::write(root.join("etc/motd"), noise(1, 70_000)).unwrap();
    fs::set_permissions(root.join("etc/motd"), fs::Permissions::from_mode(0o4711)).unwrap();
    fs::hard_link(root.join("etc/motd"), root.join("again")).unwrap();
    symlink("t/".repeat(150), root.join("far link")).unwrap();
    symlink("etc", root.join("near link")).unwrap();
    fs::create_dir(root.join("becomes a directory")).unwrap();
    fs::write(root.join("becomes a directory/inside"), b"in").unwrap();
    fs::write(root.join("becomes a file"), b"f").unwrap();
    let sparse = File::create(root.join("sparse")).unwrap();
    sparse.write_all_at(&noise(2, 5000), 1 << 20).unwrap();
    sparse.write_all_at(b"end", 5 << 20).unwrap();
    sparse.set_len(9 << 20).unwrap();
    File::create(root.join("only a hole")).unwrap().set_len(3 << 20).unwrap();
    fs::write(root.join("large"), noise(4, 6 << 20)).unwrap();
    for n in 0..300 {
        fs::write(root.join(format!("becomes a directory/{n:0>80}")), noise(n, 100)).unwrap();
    }
    let none = rustix::fs::XattrFlags::empty();
    rustix::fs::setxattr(root.join("etc/motd"), "user.short", b"v", none).unwrap();
    rustix::fs::setxattr(root.join("large"), "user.long", &noise(5, 600), none).unwrap();
    run("touch", &["-d", "1965-03-02 01:02:03.5Z", root.join("large").to_str().unwrap()]);
    run("mkfifo", &[root.join("pipe").to_str().unwrap()]);
    if is_root() {
        run("mknod", &[root.join("device").to_str().unwrap(), "b", "259", "70000"]);
        run("chown", &["-h", "12:34", root.join("near link").to_str().unwrap()]);
        run("chown", &["1000:70000", root.join("only a hole").to_str().unwrap()]);
    }
}

/// Appends paths to arguments.
fn args<'a>(parts: &[&'a str], paths: &'a [&Path]) -> Vec<&'a str> {
    parts.iter().copied().chain(paths.iter().map(|path| path.to_str().unwrap())).collect()
}

#[test]
fn adding_to_a_volume_is_building_both() {
    let dir = tempfile::tempdir().unwrap();
    let (one, two) = (dir.path().join("base"), dir.path().join("app"));
    base(&one);
    app(&two);
    let tar = dir.path().join("app.tar.gz");
    if have("tar") {
        let (tar, two) = (tar.to_str().unwrap(), two.to_str().unwrap());
        run("tar", &["--xattrs", "--xattrs-include=user.*", "--format=pax", "-Sczf", tar, "-C", two, "."]);
    }
    for (kind, options) in [("ext4", &[][..]), ("ext2", &[]), ("ext3", &["--all-root"]), ("ext4", &["tar"])] {
        let from_tar = options == ["tar"];
        if from_tar && !have("tar") {
            continue;
        }
        let second = if from_tar { &tar } else { &two };
        let options = if from_tar { &[] } else { options };
        let (both, added) = (dir.path().join("both.img"), dir.path().join("added.img"));
        let build = |sources: &[&Path], image: &Path| {
            let mut parts = vec!["build", "-t", kind, "--size", "64M", "-o", image.to_str().unwrap()];
            parts.extend(options);
            extant(args(&parts, sources)).clean();
        };
        build(&[&one, second], &both);
        build(&[&one], &added);
        let mut parts = vec!["build", "--into", added.to_str().unwrap()];
        parts.extend(options);
        extant(args(&parts, &[second])).clean();
        fsck(&added);
        let Some(expected) = mounted(&both, "ro,user_xattr,acl").map(|mount| look(mount.path())) else {
            return;
        };
        let Some(mount) = mounted(&added, "ro,user_xattr,acl") else { return };
        assert_same(&format!("{kind} {options:?}"), &look(mount.path()), &expected);
    }
}

#[test]
fn whiteouts_of_a_layer_remove_what_the_volume_has() {
    if !have("tar") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (one, two) = (dir.path().join("base"), dir.path().join("layer"));
    base(&one);
    fs::create_dir_all(two.join("etc/conf.d")).unwrap();
    fs::write(two.join("etc/.wh.motd"), b"").unwrap();
    fs::write(two.join("etc/conf.d/.wh..wh..opq"), b"").unwrap();
    fs::write(two.join("etc/conf.d/new"), b"new").unwrap();
    fs::write(two.join(".wh.becomes a file"), b"").unwrap();
    fs::write(two.join(".wh.never was"), b"").unwrap();
    let tars = [dir.path().join("base.tar"), dir.path().join("layer.tar")];
    for (source, tar) in [&one, &two].iter().zip(&tars) {
        run("tar", &["-cf", tar.to_str().unwrap(), "-C", source.to_str().unwrap(), "."]);
    }
    // Its directory is not listed, and is a symbolic link below.
    let third = dir.path().join("third");
    fs::create_dir_all(third.join("lib")).unwrap();
    fs::write(third.join("lib/so"), b"so").unwrap();
    let third_tar = dir.path().join("third.tar");
    run("tar", &["-cf", third_tar.to_str().unwrap(), "-C", third.to_str().unwrap(), "lib/so"]);
    let (both, added) = (dir.path().join("both.img"), dir.path().join("added.img"));
    let build = |sources: &[&Path], image: &Path| {
        let parts = ["build", "--layers", "--size", "32M", "-o", image.to_str().unwrap()];
        extant(args(&parts, sources)).clean();
    };
    build(&[&tars[0], &tars[1], &third_tar], &both);
    build(&[&tars[0]], &added);
    let parts = ["build", "--layers", "--into", added.to_str().unwrap()];
    extant(args(&parts, &[&tars[1], &third_tar])).clean();
    fsck(&added);
    assert_eq!(extant(["cat", &place(&added, "/usr/lib/so")]).clean(), b"so");
    let Some(expected) = mounted(&both, "ro").map(|mount| look(mount.path())) else { return };
    assert!(!expected.contains_key(&b"etc/motd"[..]) && expected.contains_key(&b"etc/motd.link"[..]));
    let Some(mount) = mounted(&added, "ro") else { return };
    let mut seen = look(mount.path());
    let mut expected = expected;
    // A file added later changes the time of a directory that no layer lists.
    for seen in [&mut seen, &mut expected] {
        seen.get_mut(&b"usr/lib"[..]).unwrap().modified = (0, 0);
    }
    assert_same("layers", &seen, &expected);
}

#[test]
fn the_same_additions_give_the_same_bytes_and_a_clean_journal() {
    if !have("mke2fs") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("app");
    app(&source);
    for n in 0..12 {
        fs::write(source.join(format!("data {n}")), noise(n, 3 << 20)).unwrap();
    }
    let first = dir.path().join("first.img");
    mke2fs(&first, "128M", &["-t", "ext4"]);
    let second = dir.path().join("second.img");
    fs::copy(&first, &second).unwrap();
    for image in [&first, &second] {
        let into = place(image, "/opt/app");
        extant_at(1_600_000_000, args(&["build", "--into", &into], &[&source])).clean();
        fsck(image);
        let text = run("dumpe2fs", &["-h", image.to_str().unwrap()]);
        assert!(!text.contains("needs_recovery") && text.contains("Journal start:            0"), "{text}");
    }
    assert!(fs::read(&first).unwrap() == fs::read(&second).unwrap(), "the images differ");
    let listed = extant(["stat", "--json", &place(&first, "/opt/app/sparse")]).clean_text();
    assert!(listed.contains("\"size\":9437184") || listed.contains("\"size\": 9437184"), "{listed}");
    assert_eq!(extant(["cat", &place(&first, "/opt/app/large")]).clean(), noise(4, 6 << 20));
}

#[test]
fn a_failure_is_told_and_leaves_a_clean_volume() {
    if !have("mke2fs") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("app");
    fs::create_dir(&source).unwrap();
    for n in 0..5 {
        fs::write(source.join(format!("file {n}")), noise(n, 3 << 20)).unwrap();
    }
    let image = dir.path().join("small.img");
    mke2fs(&image, "12M", &["-t", "ext4"]);
    let into = |target: &str| {
        let ran = extant(args(&["build", "--into", target], &[&source]));
        (ran.code, ran.stderr)
    };
    let (code, told) = into(image.to_str().unwrap());
    assert_eq!(code, Some(1));
    assert!(told.contains("/file ") && told.contains("no space is left on the volume"), "{told}");
    fsck(&image);
    let (code, told) = into(&place(&image, "/file 0"));
    assert_eq!(code, Some(1));
    assert!(told.contains("/file 0: not a directory"), "{told}");
    let (code, told) = into("/nonexistent.img");
    assert_eq!(code, Some(1));
    assert!(told.contains("/nonexistent.img: No such file"), "{told}");
    let junk = dir.path().join("junk");
    fs::write(&junk, vec![0; 1 << 20]).unwrap();
    let (code, told) = into(junk.to_str().unwrap());
    assert_eq!(code, Some(3));
    assert!(told.contains("not an ext2, ext3 or ext4 volume"), "{told}");
    let before = fs::read(&image).unwrap();
    let ran = extant(["build", "--into", image.to_str().unwrap(), "/nonexistent"]);
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    assert!(fs::read(&image).unwrap() == before, "sources are read before the volume is opened");
    // A file that does not fit leaves no trace, and the file that it would have replaced stays.
    let (old, new) = (dir.path().join("old"), dir.path().join("new"));
    fs::create_dir_all(&new).unwrap();
    fs::write(&old, noise(1, 4 << 20)).unwrap();
    mke2fs(&image, "12M", &["-t", "ext4"]);
    extant(["put", old.to_str().unwrap(), &place(&image, "/f")]).clean();
    fs::write(new.join("f"), noise(2, 7 << 20)).unwrap();
    let ran = extant(args(&["build", "--into", image.to_str().unwrap()], &[&new]));
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    assert!(ran.stderr.contains("/f") && ran.stderr.contains("no space is left"), "{}", ran.stderr);
    fs::rename(new.join("f"), new.join("g")).unwrap();
    assert_eq!(extant(args(&["build", "--into", image.to_str().unwrap()], &[&new])).code, Some(1));
    fsck(&image);
    assert_eq!(extant(["cat", &place(&image, "/f")]).clean(), fs::read(&old).unwrap());
    let names = extant(["ls", "-a", &place(&image, "/")]).clean_text();
    assert_eq!(names.split_whitespace().collect::<Vec<_>>(), ["f", "lost+found"]);
    let both = ["build", "--into", "a.img", "-o", "b.img", "source"];
    assert_eq!(extant(both).code, Some(2));
    assert_eq!(extant(["build", "--into", "a.img", "--size", "1G", "source"]).code, Some(2));
    assert_eq!(extant(["build", "source"]).code, Some(2));
}

#[test]
fn directories_go_where_a_link_leads_and_those_of_layers_replace_it() {
    if !have("tar") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (one, two) = (dir.path().join("base"), dir.path().join("app"));
    base(&one);
    fs::create_dir_all(two.join("lib")).unwrap();
    fs::create_dir_all(two.join("usr/lib")).unwrap();
    fs::write(two.join("lib/libapp"), b"app").unwrap();
    fs::hard_link(two.join("lib/libapp"), two.join("usr/lib/libapp")).unwrap();
    let tar = dir.path().join("app.tar");
    run("tar", &["-cf", tar.to_str().unwrap(), "-C", two.to_str().unwrap(), "."]);
    let image = dir.path().join("image");
    let stat = |path: &str| run("debugfs", &["-R", &format!("stat {path}"), image.to_str().unwrap()]);
    let build = |source: &Path, options: &[&str]| {
        extant(args(&["build", "--size", "16M", "-o", image.to_str().unwrap()], &[&one])).clean();
        let parts = [&["build", "--into", image.to_str().unwrap()], options].concat();
        extant(args(&parts, &[source])).clean();
        fsck(&image);
    };
    for source in [&two, &tar] {
        build(source, &[]);
        assert!(stat("/lib").contains("Type: symlink"));
        assert_eq!(extant(["cat", &place(&image, "/lib/libapp")]).clean(), b"app");
        let names = extant(["ls", "-a", &place(&image, "/usr/lib")]).clean_text();
        assert_eq!(names.split_whitespace().collect::<Vec<_>>(), ["libapp"]);
    }
    build(&tar, &["--layers"]);
    assert!(stat("/lib").contains("Type: directory"));

    // A layer that hides everything below it keeps e2fsck's directory.
    let opaque = dir.path().join("opaque");
    fs::create_dir(&opaque).unwrap();
    fs::write(opaque.join(".wh..wh..opq"), b"").unwrap();
    fs::write(opaque.join("k"), b"k").unwrap();
    run("tar", &["-cf", tar.to_str().unwrap(), "-C", opaque.to_str().unwrap(), "."]);
    build(&tar, &["--layers"]);
    let names = extant(["ls", &place(&image, "/")]).clean_text();
    assert_eq!(names.split_whitespace().collect::<Vec<_>>(), ["k", "lost+found"]);
}

#[test]
fn the_order_of_sources_decides_what_stays_behind_a_link_of_the_volume() {
    let dir = tempfile::tempdir().unwrap();
    let [one, link, target, file] = ["base", "link", "target", "file"].map(|name| dir.path().join(name));
    base(&one);
    symlink("/lib", one.join("usr/twice")).unwrap();
    symlink("nowhere", one.join("usr/dangling")).unwrap();
    for (source, name) in [(&link, "lib/x"), (&link, "usr/twice/y"), (&link, "usr/dangling/z")] {
        fs::create_dir_all(source.join(name).parent().unwrap()).unwrap();
        fs::write(source.join(name), b"through a link").unwrap();
    }
    fs::create_dir_all(target.join("usr/lib")).unwrap();
    fs::write(target.join("usr/lib/x"), b"directly").unwrap();
    fs::create_dir_all(file.join("usr")).unwrap();
    fs::write(file.join("usr/lib"), b"a file").unwrap();
    let image = |name: &str| dir.path().join(name);
    let (both, added) = (image("both.img"), image("added.img"));
    let build = |sources: &[&Path], image: &Path| {
        extant(args(&["build", "--size", "16M", "-o", image.to_str().unwrap()], sources)).clean();
    };
    let there = |path: &str| extant(["cat", &place(&added, path)]).clean_text();
    // Sources, the file that they must leave, and its contents.
    let cases: [(&[&Path], _, _); 4] = [
        (&[&link, &target], "/lib/x", "directly"),
        (&[&target, &link], "/usr/lib/x", "through a link"),
        (&[&link, &file], "/lib", "a file"),
        (&[&file, &link], "/lib/x", "through a link"),
    ];
    for (sources, path, contents) in cases {
        build(&[&[&*one], sources].concat(), &both);
        build(&[&one], &added);
        extant(args(&["build", "--into", added.to_str().unwrap()], sources)).clean();
        fsck(&added);
        assert_eq!(there(path), contents, "{sources:?}");
        let diff = ["diff", &place(&both, "/"), &place(&added, "/")];
        assert_eq!(extant(diff).clean_text(), "", "{sources:?}");
    }
    // In a directory of the volume too. Links that lead out of it are followed as files are added.
    let below = image("below");
    fs::create_dir(&below).unwrap();
    fs::rename(&one, below.join("usr")).unwrap();
    fs::create_dir(below.join("lib")).unwrap();
    build(&[&below], &added);
    extant(args(&["build", "--into", &place(&added, "/usr")], &[&target, &link])).clean();
    fsck(&added);
    assert_eq!(there("/usr/usr/lib/x"), "through a link");
    assert_eq!(there("/lib/y"), "through a link");
}

#[test]
fn more_attributes_than_a_transaction_holds_are_added() {
    if !have("mke2fs") || !have("e2fsck") || !have("debugfs") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let [from, to, archive] = ["from", "to", "a.tar"].map(|name| dir.path().join(name));
    for image in [&from, &to] {
        mke2fs(image, "64M", &["-t", "ext4", "-b", "1024", "-O", "ea_inode", "-J", "size=1"]);
    }
    let file = place(&from, "/f");
    extant(["truncate", "-s", "0", &file]).clean();
    for n in 0..8 {
        extant(["xattr", "-s", &format!("user.{n}={}", "v".repeat(60_000)), &file]).clean();
    }
    extant(["export", &place(&from, "/"), "-o", archive.to_str().unwrap()]).clean();
    extant(["build", archive.to_str().unwrap(), "--into", to.to_str().unwrap()]).clean();
    fsck(&to);
    let listed = run("debugfs", &["-R", "ea_list /f", to.to_str().unwrap()]);
    assert_eq!(listed.matches("(60000)").count(), 8, "{listed}");
}
