//! Archives, as read by other programs.

use crate::testbed::{assert_same, debugfs, extant, have, is_root, look, mke2fs, mounted, noise, place, run};
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
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
    let Some(mount) = mounted(&image, "user_xattr,acl") else { return };
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
            // bsdtar does not change the directory it unpacks into, does not decode GNU tar's
            // escapes in attribute names with an equals sign, and adds fractions to times before
            // 1970 where it should subtract them.
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

/// GNU tar escapes `=` and `%` in attribute names, and so do we: a volume built from either archive
/// has the original names.
#[test]
fn names_of_attributes_return_from_archives() {
    let dir = tempfile::tempdir().unwrap();
    let (source, image) = (dir.path().join("source"), dir.path().join("image"));
    fs::create_dir(&source).unwrap();
    fs::write(source.join("file"), "x").unwrap();
    for name in ["user.a=b", "user.%41", "user.%3D", "user.plain"] {
        let set = rustix::fs::setxattr(source.join("file"), name, b"v", rustix::fs::XattrFlags::empty());
        if set.is_err() {
            println!("skipped: no attributes of users here");
            return;
        }
    }
    extant(["build".as_ref(), source.as_os_str(), "-o".as_ref(), image.as_os_str()]).clean();
    let ours = dir.path().join("ours.tar");
    extant(["export".as_ref(), image.as_os_str(), "-o".as_ref(), ours.as_os_str()]).clean();
    let mut archives = vec![ours];
    if have("tar") {
        archives.push(dir.path().join("theirs.tar"));
        let (to, from) = (archives[1].to_str().unwrap(), source.to_str().unwrap());
        run("tar", &["--xattrs", "--xattrs-include=*", "--format=posix", "-cf", to, "-C", from, "."]);
    }
    for archive in archives {
        let again = dir.path().join("again");
        extant(["build".as_ref(), archive.as_os_str(), "-o".as_ref(), again.as_os_str()]).clean();
        let difference =
            extant(["diff".as_ref(), "--ignore-times".as_ref(), image.as_os_str(), again.as_os_str()]);
        assert_eq!(difference.clean_text(), "", "{}", archive.display());
    }
}

/// Files keep their permissions from the volume, regardless of a host directory's defaults for new
/// files.
#[test]
fn copies_inherit_no_access_list() {
    if !have("setfacl") || !have("getfacl") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (source, image, to) = (dir.path().join("source"), dir.path().join("image"), dir.path().join("to"));
    fs::create_dir_all(source.join("dir/sub")).unwrap();
    fs::create_dir(&to).unwrap();
    for file in ["dir/file", "dir/sub/file"].map(|file| source.join(file)) {
        fs::write(&file, "secret").unwrap();
        run("chmod", &["660", file.to_str().unwrap()]);
    }
    if is_root() {
        // New directories get this group too, and pass it on.
        run("chgrp", &["4321", to.to_str().unwrap()]);
        run("chmod", &["2777", to.to_str().unwrap()]);
    }
    run("setfacl", &["-d", "-m", "u:1234:rwx", to.to_str().unwrap()]);
    extant(["build".as_ref(), source.as_os_str(), "-o".as_ref(), image.as_os_str()]).clean();
    extant(["cp", &place(&image, "/dir"), to.join("dir").to_str().unwrap()]).clean();
    let lists = run("getfacl", &["-R", "-n", "-c", "-p", to.join("dir").to_str().unwrap()]);
    assert!(lists.contains("group::rw-") && !lists.contains("1234") && !lists.contains("default"), "{lists}");
    let of = |path: &Path| (path.metadata().unwrap().gid(), path.metadata().unwrap().mode() & 0o7777);
    for path in ["dir", "dir/sub", "dir/file", "dir/sub/file"] {
        assert_eq!(of(&to.join(path)), of(&source.join(path)), "{path}");
    }
}

/// Files are read some hundreds at a time while earlier ones are created.
#[test]
fn a_tree_of_many_batches_is_copied_whole_and_losses_are_told_in_order() {
    if !have("debugfs") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (source, image, to) = (dir.path().join("source"), dir.path().join("image"), dir.path().join("to"));
    for n in 0..6 {
        let sub = source.join(format!("dir{n}"));
        fs::create_dir_all(&sub).unwrap();
        for m in 0..110 {
            let file = sub.join(format!("file{m:03}"));
            match m % 10 {
                0 => symlink("x".repeat(m + 1), file).unwrap(),
                1 if n > 0 => fs::hard_link(source.join(format!("dir0/file{m:03}")), file).unwrap(),
                _ => fs::write(file, noise(n, m * 40)).unwrap(),
            }
        }
        fs::write(sub.join("large"), noise(n, 70 << 10)).unwrap();
        let sparse = File::create(sub.join("sparse")).unwrap();
        sparse.set_len(1 << 20).unwrap();
        (0..8).for_each(|part| sparse.write_all_at(b"data", part << 17).unwrap());
        run("chmod", &["0750", sub.to_str().unwrap()]);
    }
    extant(["build".as_ref(), source.as_os_str(), "-o".as_ref(), image.as_os_str()]).clean();
    fs::create_dir(&to).unwrap();
    extant(["cp", "-r", &place(&image, "/"), to.to_str().unwrap()]).clean();
    let (mut copied, mut built) = (look(&to), look(&source));
    // The destination was there, and keeps its own attributes.
    copied.remove(&b""[..]);
    built.remove(&b""[..]);
    assert_same("cp", &copied, &built);

    let lost = ["/dir0/file005", "/dir2/file077", "/dir5/file109"];
    debugfs(&image, &lost.map(|path| format!("sif {path} mode 0")));
    let ran = extant(["cp", "-r", &place(&image, "/dir5"), to.join("again").to_str().unwrap()]);
    assert_eq!(ran.code, Some(3), "{}", ran.stderr);
    let ran = extant(["cp", "-r", &place(&image, "/"), to.to_str().unwrap()]);
    let told: Vec<_> = lost.iter().map(|path| ran.stderr.find(&format!(":{path}: "))).collect();
    assert!(told.iter().all(Option::is_some) && told.is_sorted(), "{}", ran.stderr);

    // Now every checksum is wrong. A copy reads an extent node after many later inodes. Its problem
    // must still follow that of its own inode.
    debugfs(&image, &["ssv uuid 12345678-1234-1234-1234-123456789abc".to_owned()]);
    let wrong = dir.path().join("wrong");
    fs::create_dir(&wrong).unwrap();
    let ran = extant(["cp", "-r", &place(&image, "/"), wrong.to_str().unwrap()]);
    let lines: Vec<_> = ran.stderr.lines().collect();
    let of_nodes: Vec<_> =
        lines.windows(2).filter(|pair| pair[1].contains(": extent node in block ")).collect();
    assert_eq!(of_nodes.len(), 6, "{}", ran.stderr);
    for pair in of_nodes {
        let inode = pair[1].split_once(": extent node").unwrap().0;
        assert!(pair[0].starts_with(&format!("{inode}: checksum is ")), "{pair:?}");
    }
}

/// The depth limit is that of the commands: a deeper volume is sound, and they report that they
/// leave something out.
#[test]
fn directories_too_deep_for_a_walk_are_unsupported() {
    let dir = tempfile::tempdir().unwrap();
    let (image, other) = (dir.path().join("image"), dir.path().join("other"));
    let image_text = image.to_str().unwrap();
    let mut names = Vec::new();
    tar_of_depth(&mut names, 2_100);
    let archive = dir.path().join("deep.tar");
    fs::write(&archive, names).unwrap();
    extant(["build", archive.to_str().unwrap(), "-o", image_text]).clean();
    fs::copy(&image, &other).unwrap();
    let listed = extant(["ls", "-R", &place(&image, "/")]);
    assert_eq!(listed.code, Some(4), "{}", &listed.stderr[listed.stderr.len().saturating_sub(300)..]);
    assert!(listed.stderr.contains("a directory below 2048 others"), "{}", listed.stderr);
    let compared = extant(["diff", image_text, other.to_str().unwrap()]);
    assert_ne!(compared.code, Some(0));
}

/// An archive of nested directories.
fn tar_of_depth(archive: &mut Vec<u8>, depth: usize) {
    let mut builder = tar::Builder::new(archive);
    for n in 1..=depth {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(tar::EntryType::Directory);
        header.set_mode(0o755);
        header.set_size(0);
        builder.append_data(&mut header, "d/".repeat(n), &[][..]).unwrap();
    }
    builder.finish().unwrap();
}

#[test]
fn an_image_is_written_where_a_link_leads_and_a_file_is_no_directory() {
    let dir = tempfile::tempdir().unwrap();
    let (real, link) = (dir.path().join("real"), dir.path().join("link"));
    std::os::unix::fs::symlink("real", &link).unwrap();
    extant(["mkfs".as_ref(), link.as_os_str(), "16M".as_ref()]).clean();
    assert!(link.symlink_metadata().unwrap().is_symlink());
    assert_eq!(real.metadata().unwrap().len(), 16 << 20);
    fs::write(dir.path().join("file"), "text").unwrap();
    extant(["put", dir.path().join("file").to_str().unwrap(), &place(&real, "/file")]).clean();
    let refused = extant(["put", dir.path().join("file").to_str().unwrap(), &place(&real, "/none/")]);
    assert!(refused.code == Some(1) && !refused.stderr.contains("put-"), "{}", refused.stderr);
    for path in ["/file/", "/file/.", "/file/../file"] {
        let refused = extant(["cat", &place(&real, path)]);
        assert!(refused.code == Some(1) && refused.stderr.contains("not a directory"), "{}", refused.stderr);
    }
    let none = format!("{}/none/", dir.path().display());
    let refused = extant(["cp", &place(&real, "/file"), &none]);
    assert!(refused.code == Some(1) && !Path::new(&none).exists(), "{}", refused.stderr);
}

#[test]
fn outputs_keep_the_mode_of_what_they_replace_and_follow_links() {
    if !have("mke2fs") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    mke2fs(&path("source"), "8M", &["-t", "ext4"]);
    fs::create_dir(path("tree")).unwrap();
    fs::create_dir(path("elsewhere")).unwrap();
    let commands = |output: &Path| {
        let (source, tree) = (path("source").display().to_string(), path("tree").display().to_string());
        let output = output.display().to_string();
        [
            vec!["export".to_owned(), source.clone(), "-o".into(), output.clone()],
            vec!["build".into(), "-o".into(), output.clone(), tree],
            vec!["mkfs".into(), output.clone(), "8M".into()],
            vec!["shrink".into(), source, "-o".into(), output],
        ]
    };
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let umask = status.lines().find_map(|line| line.strip_prefix("Umask:")).unwrap();
    let umask = u32::from_str_radix(umask.trim(), 8).unwrap();
    for n in 0..commands(&path("any")).len() {
        let (real, link) = (path(&format!("elsewhere/{n}")), path(&format!("link{n}")));
        symlink(&real, &link).unwrap();
        // A link to nothing; then one to a file.
        extant(&commands(&link)[n]).clean();
        let new = real.metadata().unwrap();
        assert_eq!(new.mode() & 0o7777, 0o666 & !umask, "command {n}");
        fs::set_permissions(&real, fs::Permissions::from_mode(0o640)).unwrap();
        let owners = rustix::process::geteuid().is_root();
        if owners {
            std::os::unix::fs::chown(&real, Some(1000), Some(1001)).unwrap();
        }
        extant(&commands(&link)[n]).clean();
        let replaced = real.metadata().unwrap();
        assert!(link.symlink_metadata().unwrap().is_symlink() && replaced.ino() != new.ino());
        assert_eq!(replaced.mode() & 0o7777, 0o640, "command {n}");
        assert!(!owners || (replaced.uid(), replaced.gid()) == (1000, 1001), "command {n}");
        fs::remove_file(&real).unwrap();
        assert_eq!(fs::read_dir(path("elsewhere")).unwrap().count(), 0, "nothing else is left");
    }
    symlink("loop", path("loop")).unwrap();
    for command in commands(&path("loop")) {
        let ran = extant(&command);
        assert!(ran.code != Some(0) && path("loop").symlink_metadata().unwrap().is_symlink(), "{command:?}");
    }
}

#[test]
fn names_that_are_excluded_are_left_out_of_builds_and_exports() {
    if !have("tar") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("source");
    for path in
        ["proc/1/maps", "var/cache/apt/list", "var/log/a.log", "src/x.o", "src/keep.o", "usr/proc/doc"]
    {
        let path = source.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, b"x").unwrap();
    }
    fs::hard_link(source.join("src/x.o"), source.join("linked")).unwrap();
    let tar = dir.path().join("source.tar");
    run("tar", &["-cf", tar.to_str().unwrap(), "-C", source.to_str().unwrap(), "."]);
    let selection =
        ["--exclude", "/proc", "--exclude", "var/cache/*", "--exclude", "*.o", "--include", "keep.o"];
    let names = |listed: &str| -> Vec<String> {
        let path = |line: &str| line.trim_start_matches("./").trim_start_matches('/').to_owned();
        let files = listed.lines().map(path).filter(|line| !line.ends_with('/') && !line.is_empty());
        let mut names: Vec<String> = files.filter(|name| !name.starts_with("lost+found")).collect();
        names.sort();
        names
    };
    let kept = ["linked", "src/keep.o", "usr/proc/doc", "var/log/a.log"];
    let dirs = ["src", "usr", "usr/proc", "var", "var/cache", "var/log"];
    let mut expected: Vec<String> = kept.iter().chain(&dirs).map(|&name| name.to_owned()).collect();
    expected.sort();
    let image = dir.path().join("image");
    for from in [&source, &tar] {
        let args = ["build".as_ref(), from.as_os_str(), "-o".as_ref(), image.as_os_str()];
        extant(args.into_iter().chain(selection.iter().map(AsRef::as_ref))).clean();
        let found = extant(["find", &place(&image, "/")]).clean_text();
        assert_eq!(names(&found.replace(&place(&image, ""), "")), expected, "{}", from.display());
        assert_eq!(extant(["cat", &place(&image, "/linked")]).clean(), b"x");
    }
    // Added to a volume, and left out when it is exported.
    mke2fs(&image, "16M", &["-t", "ext4"]);
    let args = ["build".as_ref(), source.as_os_str(), "--into".as_ref(), image.as_os_str()];
    extant(args.into_iter().chain(selection.iter().map(AsRef::as_ref))).clean();
    let found = extant(["find", &place(&image, "/")]).clean_text();
    assert_eq!(names(&found.replace(&place(&image, ""), "")), expected);
    let archive = dir.path().join("out.tar");
    let args = ["export".as_ref(), image.as_os_str(), "-o".as_ref(), archive.as_os_str()];
    extant(args.into_iter().chain(["--exclude", "var", "--exclude", "lost+found"].map(AsRef::as_ref)))
        .clean();
    let listed = run("tar", &["-tf", archive.to_str().unwrap()]);
    assert_eq!(names(&listed), ["linked", "src/keep.o", "usr/proc/doc"]);
    // A layer still removes what it hides, except in directories that are excluded.
    let layer = dir.path().join("layer");
    fs::create_dir_all(layer.join("src")).unwrap();
    fs::write(layer.join(".wh.linked"), b"").unwrap();
    fs::write(layer.join("src/.wh.keep.o"), b"").unwrap();
    let layer_tar = dir.path().join("layer.tar");
    run("tar", &["-cf", layer_tar.to_str().unwrap(), "-C", layer.to_str().unwrap(), "."]);
    for layer in [layer, layer_tar] {
        let copy = dir.path().join("copy");
        fs::copy(&image, &copy).unwrap();
        let args = ["build".as_ref(), layer.as_os_str(), "--into".as_ref(), copy.as_os_str()];
        let selection = ["--layers", "--exclude", ".*", "--exclude", "/src"];
        extant(args.into_iter().chain(selection.map(AsRef::as_ref))).clean();
        let found = extant(["find", &place(&copy, "/")]).clean_text();
        let found = names(&found.replace(&place(&copy, ""), ""));
        assert!(!found.contains(&"linked".to_owned()), "{}: {found:?}", layer.display());
        assert!(found.contains(&"src/keep.o".to_owned()), "{}: {found:?}", layer.display());
    }
    let wrong = extant(["export", image.to_str().unwrap(), "-o", "-", "--exclude", "a**b"]);
    assert_eq!(wrong.code, Some(2), "{}", wrong.stderr);
}

#[test]
fn several_paths_keep_their_names_in_the_image() {
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("source");
    for name in ["etc/ssl", "usr/bin"] {
        fs::create_dir_all(source.join(name)).unwrap();
    }
    for (name, text) in [("etc/ssl/a.pem", "a"), ("etc/b.conf", "b"), ("usr/bin/c", "c")] {
        fs::write(source.join(name), text).unwrap();
    }
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (image, other, archive) = (at("image"), at("other"), at("out.tar"));
    extant(["build", source.to_str().unwrap(), "-o", &image]).clean();
    fs::copy(&image, &other).unwrap();
    let names = |args: &[&str]| -> Vec<String> {
        extant([&["export", "-o", &archive][..], args].concat()).clean();
        let mut archive = tar::Archive::new(fs::File::open(&archive).unwrap());
        let entries = archive.entries().unwrap();
        entries.map(|entry| entry.unwrap().path().unwrap().to_str().unwrap().to_owned()).collect()
    };
    let [ssl, bin, conf] = ["/etc/ssl", "/usr/bin/", "/etc/*.conf"].map(|path| format!("{image}:{path}"));
    assert_eq!(names(&[&ssl]), ["./", "a.pem"]);
    assert_eq!(
        names(&[&ssl, &bin, &conf]),
        ["etc/ssl/", "etc/ssl/a.pem", "usr/bin/", "usr/bin/c", "etc/b.conf"]
    );
    assert_eq!(names(&[&ssl, &bin, "--exclude", "*.pem"]), ["etc/ssl/", "usr/bin/", "usr/bin/c"]);
    assert_eq!(names(&[&ssl, &bin, "--exclude", "/usr/bin"]), ["etc/ssl/", "etc/ssl/a.pem"]);
    let ran = extant(["export", "-o", &archive, &ssl, &format!("{other}:/etc")]);
    assert!(ran.code == Some(2) && ran.stderr.contains("an archive is of one image"), "{}", ran.stderr);
    let ran = extant(["export", "-o", &archive, &ssl, &format!("{image}:/none")]);
    assert!(ran.code == Some(1) && ran.stderr.contains("/none: no such file"), "{}", ran.stderr);
}
