//! `shrink`: nothing is lost, e2fsck finds nothing, the kernel mounts the result, and it is no
//! larger than that of resize2fs.

use crate::testbed::{assert_same, debugfs, extant, fsck, have, is_root, look, mke2fs, mounted, noise, run};
use std::fs;
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::Path;

/// Directories with and without hash trees, short and long links, hard links, holes, and
/// attributes.
fn source(root: &Path) {
    for dir in ["empty", "small", "large", "deep/er/and/deeper"] {
        fs::create_dir_all(root.join(dir)).unwrap();
    }
    for n in 0..400 {
        fs::write(root.join(format!("large/a-file-with-a-name-of-some-length-{n}")), noise(n, 90)).unwrap();
    }
    fs::write(root.join("small/file"), b"small").unwrap();
    fs::hard_link(root.join("small/file"), root.join("deep/er/another-name")).unwrap();
    fs::write(root.join("deep/er/and/deeper/big"), noise(7, 1_000_000)).unwrap();
    let sparse = fs::File::create(root.join("sparse")).unwrap();
    sparse.set_len(10 << 20).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&sparse, &noise(8, 9000), 5 << 20).unwrap();
    symlink("small/file", root.join("short")).unwrap();
    symlink("x/".repeat(100), root.join("long")).unwrap();
}

/// Fragments a volume: removes every other one of many files, then fills the gaps with a large one.
fn fragment(image: &Path, dir: &Path) {
    let bytes = dir.join("bytes");
    fs::write(&bytes, noise(3, 9000)).unwrap();
    let source = |n: usize| format!("write {} fragment{n}", bytes.display());
    let mut commands: Vec<String> = (0..60).map(source).collect();
    commands.extend((0..60).step_by(2).map(|n| format!("rm fragment{n}")));
    let large = dir.join("large");
    fs::write(&large, noise(4, 300_000)).unwrap();
    commands.push(format!("write {} scattered", large.display()));
    commands.push("ea_set small/file user.short value".into());
    let value = dir.join("value");
    fs::write(&value, noise(5, 700)).unwrap();
    commands.push(format!("ea_set -f {} small/file user.long", value.display()));
    debugfs(image, &commands);
}

#[test]
fn everything_stays_on_a_volume_no_larger_than_resize2fs_leaves_it() {
    if !have("mke2fs") || !have("e2fsck") || !have("debugfs") || !have("resize2fs") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let tree = dir.path().join("tree");
    fs::create_dir(&tree).unwrap();
    source(&tree);
    let with_tree = ["-d", tree.to_str().unwrap()];
    for options in [
        &["-t", "ext4", "-O", "inline_data,large_dir", "-b", "4096"][..],
        &["-t", "ext4", "-O", "^metadata_csum,uninit_bg,^64bit,^orphan_file", "-b", "2048"],
        &["-t", "ext4", "-O", "casefold,project,verity,encrypt", "-b", "4096", "-I", "512"],
        &["-t", "ext3", "-b", "1024"],
        &["-t", "ext2", "-b", "4096", "-I", "128", "-O", "^resize_inode"],
    ] {
        let (image, ours, theirs) =
            (dir.path().join("image"), dir.path().join("ours"), dir.path().join("theirs"));
        mke2fs(&image, "60M", &[options, &with_tree].concat());
        fragment(&image, dir.path());
        fsck(&image);
        let said =
            extant(["shrink", image.to_str().unwrap(), "-o", ours.to_str().unwrap(), "--json"]).clean_text();
        fsck(&ours);
        let places = [image.to_str().unwrap(), ours.to_str().unwrap()];
        extant([&["diff", "--all-times"], &places[..]].concat()).clean();
        // The superblock keeps whatever does not depend on the size.
        let header = |image: &Path| run("dumpe2fs", &["-h", image.to_str().unwrap()]);
        for line in header(&image).lines() {
            let kept =
                ["UUID", "volume name", "features", "Hash Seed", "created", "Mount count", "Inode size"];
            if kept.iter().any(|name| line.contains(name)) {
                assert!(header(&ours).contains(line), "{options:?}: {line}");
            }
        }
        fs::copy(&image, &theirs).unwrap();
        run("e2fsck", &["-fp", theirs.to_str().unwrap()]);
        run("resize2fs", &["-M", theirs.to_str().unwrap()]);
        let sizes = [&ours, &theirs].map(|image| fs::metadata(image).unwrap().len());
        assert!(sizes[0] <= sizes[1], "{options:?}: {sizes:?}, {said}");
        // The result is an ordinary volume: it can grow and be written to.
        fs::File::options().write(true).open(&ours).unwrap().set_len(50 << 20).unwrap();
        run("resize2fs", &[ours.to_str().unwrap()]);
        fsck(&ours);
        extant(["put", "-r", tree.join("small").to_str().unwrap(), &format!("{}:/more", ours.display())])
            .clean();
        fsck(&ours);
    }
}

#[test]
fn the_kernel_mounts_a_volume_that_was_rewritten_in_place() {
    if !have("mke2fs") || !is_root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (image, linked) = (dir.path().join("image"), dir.path().join("link"));
    let tree = dir.path().join("tree");
    fs::create_dir(&tree).unwrap();
    source(&tree);
    mke2fs(&image, "60M", &["-t", "ext4", "-O", "ea_inode", "-b", "1024"]);
    symlink(&image, &linked).unwrap();
    fs::set_permissions(&image, fs::Permissions::from_mode(0o640)).unwrap();
    let Some(mount) = mounted(&image, "rw") else { return };
    run("cp", &["-a", tree.to_str().unwrap(), mount.path().to_str().unwrap()]);
    let file = mount.path().join("tree/small/file");
    let set = |path: &Path, name: &str, value: &[u8]| {
        rustix::fs::lsetxattr(path, name, value, rustix::fs::XattrFlags::empty()).unwrap();
    };
    set(&file, "user.value", &noise(1, 5000));
    set(&mount.path().join("tree/large"), "user.value", &noise(1, 5000));
    run("fallocate", &["-n", "-l", "1MiB", file.to_str().unwrap()]);
    let before = look(mount.path());
    drop(mount);
    let sized = |image: &Path| fs::metadata(image).unwrap().len();
    extant(["shrink", linked.to_str().unwrap()]).clean();
    assert!(linked.symlink_metadata().unwrap().is_symlink());
    assert_eq!(fs::metadata(&image).unwrap().permissions().mode() & 0o7777, 0o640);
    assert!(sized(&image) < 20 << 20, "{}", sized(&image));
    fsck(&image);
    let bytes = fs::read(&image).unwrap();
    let again = extant(["shrink", image.to_str().unwrap(), "--json"]).clean_text();
    assert!(again.contains("\"written\": false") && fs::read(&image).unwrap() == bytes, "{again}");
    let Some(mount) = mounted(&image, "rw") else { return };
    assert_same("shrunk", &look(mount.path()), &before);
    drop(mount);
    fsck(&image);
}

#[test]
fn features_that_cannot_be_carried_over_are_refused_by_name() {
    if !have("mke2fs") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    for (options, code, told) in [
        (&["-O", "quota"][..], 4, "quota"),
        (&["-t", "ext4", "-O", "bigalloc"], 4, "bigalloc"),
        (&["-t", "ext4", "-O", "meta_bg,^resize_inode"], 4, "meta_bg"),
        (&["-O", "mmp"], 4, "mmp"),
        (&["-t", "ext2", "-o", "hurd"], 4, "Hurd"),
        (&["-t", "ext4"], 0, ""),
    ] {
        mke2fs(&image, "40M", options);
        let before = fs::read(&image).unwrap();
        let ran = extant(["shrink", image.to_str().unwrap()]);
        assert_eq!(ran.code, Some(code), "{options:?}: {}", ran.stderr);
        assert!(ran.stderr.contains(told), "{options:?}: {}", ran.stderr);
        assert!(code == 0 || fs::read(&image).unwrap() == before);
    }
    fsck(&image);
    mke2fs(&image, "40M", &["-t", "ext4"]);
    debugfs(&image, &["ssv state 2".into()]);
    let ran = extant(["shrink", image.to_str().unwrap()]);
    assert!(ran.code == Some(4) && ran.stderr.contains("e2fsck"), "{}", ran.stderr);
    let ran = extant(["shrink", dir.path().to_str().unwrap()]);
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
}

#[test]
fn an_image_that_is_in_use_or_would_lose_bytes_is_left_as_it_is() {
    if !have("mke2fs") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (image, output) = (dir.path().join("image"), dir.path().join("output"));
    let image_text = image.to_str().unwrap();
    mke2fs(&image, "40M", &["-t", "ext4"]);
    let writer = ::extant::Volume::open(&image, &::extant::OpenOptions::new().write(true)).unwrap();
    for args in [&["shrink", image_text][..], &["shrink", image_text, "-o", output.to_str().unwrap()]] {
        let ran = extant(args);
        assert!(ran.code == Some(1) && ran.stderr.contains("in use"), "{}", ran.stderr);
    }
    writer.close().unwrap();
    // A hash tree or a signature after the volume.
    let file = fs::OpenOptions::new().write(true).open(&image).unwrap();
    file.write_all_at(b"signature", (45 << 20) - 9).unwrap();
    let before = fs::read(&image).unwrap();
    let ran = extant(["shrink", image_text]);
    assert!(ran.code == Some(2) && ran.stderr.contains("behind its volume"), "{}", ran.stderr);
    assert!(fs::read(&image).unwrap() == before);
    extant(["shrink", image_text, "-o", output.to_str().unwrap()]).clean();
    fsck(&output);
    file.write_all_at(&[0; 9], (45 << 20) - 9).unwrap();
    extant(["shrink", image_text]).clean();
    assert!(image.metadata().unwrap().len() < 20 << 20);
    fsck(&image);
}

#[test]
fn an_image_keeps_its_attributes_and_its_other_names_keep_theirs() {
    if !have("mke2fs") {
        return;
    }
    let dir = tempfile::tempdir_in(".").unwrap();
    let (image, other) = (dir.path().join("image"), dir.path().join("other"));
    let image_text = image.to_str().unwrap();
    mke2fs(&image, "40M", &["-t", "ext4"]);
    fs::hard_link(&image, &other).unwrap();
    let before = fs::read(&image).unwrap();
    let ran = extant(["shrink", image_text]);
    assert!(ran.code == Some(2) && ran.stderr.contains("hard links"), "{}", ran.stderr);
    assert!(fs::read(&image).unwrap() == before && fs::read(&other).unwrap() == before);
    fs::remove_file(&other).unwrap();
    let flags = rustix::fs::XattrFlags::empty();
    let has_xattrs = rustix::fs::setxattr(&image, "user.label", b"golden", flags).is_ok();
    extant(["shrink", image_text]).clean();
    let mut value = [0; 6];
    let len = rustix::fs::getxattr(&image, "user.label", &mut value[..]);
    assert!(!has_xattrs || (len == Ok(6) && &value == b"golden"), "{len:?}");
    fsck(&image);
}

#[test]
fn values_in_inodes_of_their_own_stay_with_short_links_and_unshared_ones_are_refused() {
    if !have("mke2fs") || !have("debugfs") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (image, ours, value) = (dir.path().join("image"), dir.path().join("ours"), dir.path().join("value"));
    mke2fs(&image, "40M", &["-t", "ext4", "-b", "1024", "-O", "ea_inode"]);
    // debugfs accepts no value larger than a block.
    fs::write(&value, noise(1, 1000)).unwrap();
    let set = |name: &str| format!("ea_set -f {} {name} trusted.value", value.display());
    let places = [image.to_str().unwrap(), ours.to_str().unwrap()];
    // debugfs does not charge values to their owners, and e2fsck considers a short link that has
    // one damaged.
    let repair = || drop(std::process::Command::new("e2fsck").args(["-fy", places[0]]).output().unwrap());
    debugfs(&image, &[format!("write {} held", value.display()), set("held")]);
    repair();
    debugfs(&image, &["symlink link target".into(), set("link"), "set_inode_field link blocks 2".into()]);
    extant(["shrink", places[0], "-o", places[1]]).clean();
    extant([&["diff", "--all-times"], &places[..]].concat()).clean();
    assert_eq!(
        extant(["ls", "-l", &format!("{}:/link", places[1])]).clean_text().matches("target").count(),
        1
    );
    debugfs(&image, &["rm link".into()]);
    repair();
    fsck(&image);
    // As left by Lustre: the value refers to its holder.
    let told = run("debugfs", &["-R", "stat held", places[0]]);
    let held: u32 = told.split_whitespace().nth(1).unwrap().parse().unwrap();
    let generation = "set_inode_field held generation 77".into();
    let of_value = |field: &str| format!("set_inode_field <{}> {field}", held + 1);
    debugfs(&image, &[generation, of_value("generation 77"), of_value(&format!("mtime @{held}"))]);
    fsck(&image);
    let ran = extant(["shrink", places[0]]);
    assert!(ran.code == Some(4) && ran.stderr.contains("Lustre"), "{}", ran.stderr);
}

/// Changes the bytes behind the only place where `find` is.
fn patch(image: &Path, find: &[u8], change: impl Fn(&mut [u8])) {
    let mut bytes = fs::read(image).unwrap();
    let mut found = (0..bytes.len() - find.len()).filter(|&at| bytes[at..].starts_with(find));
    let at = found.next().expect("it is in the image");
    assert_eq!(found.next(), None, "only once");
    change(&mut bytes[at..]);
    fs::write(image, bytes).unwrap();
}

#[test]
fn what_e2fsck_reports_is_refused_with_inode_and_path() {
    if !have("mke2fs") || !have("e2fsck") || !have("debugfs") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (sound, image, file) = (dir.path().join("sound"), dir.path().join("image"), dir.path().join("file"));
    fs::write(&file, noise(1, 5000)).unwrap();
    let slow = "needle/of/a/target/in/a/block/".repeat(4);
    mke2fs(&sound, "8M", &["-t", "ext4", "-O", "^metadata_csum,^has_journal", "-I", "128", "-b", "1024"]);
    debugfs(
        &sound,
        &[
            "mkdir d".into(),
            "cd d".into(),
            format!("write {} file", file.display()),
            "symlink fast needle-in-an-inode".into(),
            format!("symlink slow {slow}"),
            "ea_set file user.name needle-of-a-value".into(),
            "mknod pipe p".into(),
            format!("write {} tree", file.display()),
        ],
    );
    // So many extents that the inode has an index only, which begins with block 9.
    let extents: Vec<String> = (0..6).map(|n| format!("fallocate d/tree {0} {0}", 9 + 2 * n)).collect();
    debugfs(&sound, &["punch d/tree 0 5".to_owned()].into_iter().chain(extents).collect::<Vec<_>>());
    fsck(&sound);
    let set = |what: &'static str| move |image: &Path| debugfs(image, &[what.into()]);
    let attribute_block = |at: usize, byte: u8| {
        move |image: &Path| patch(image, b"\0\0\x02\xea\x01\0\0\0\x01\0\0\0", |bytes| bytes[at] = byte)
    };
    type Damage<'a> = (&'a str, &'a str, Box<dyn Fn(&Path) + 'a>);
    let index = b"\x0a\xf3\x01\0\x04\0\x01\0\0\0\0\0\x09\0\0\0";
    // The entries of `d` begin with `.`; its first name is `file`.
    let entry = |at: usize, byte: u8| {
        move |image: &Path| patch(image, b"\x0c\0\x04\x01file", |bytes| bytes[at] = byte)
    };
    let dots = |at: usize, byte: u8| {
        move |image: &Path| {
            let said = run("debugfs", &["-R", "blocks /d", image.to_str().unwrap()]);
            let mut bytes = fs::read(image).unwrap();
            bytes[said.split_whitespace().find_map(|word| word.parse::<usize>().ok()).unwrap() * 1024 + at] =
                byte;
            fs::write(image, bytes).unwrap();
        }
    };
    let damages: [Damage<'_>; 16] = [
        (":/d\"", "file_type", Box::new(entry(3, 0x81))),
        (":/d\"", "file_type", Box::new(entry(3, 0x2c))),
        (":/d\"", "file_type", Box::new(dots(12 + 7, 3))),
        (":/d\"", "byte behind", Box::new(dots(9, b' '))),
        ("superblock", "s_journal_inum", Box::new(set("ssv journal_inum 11"))),
        ("superblock", "s_log_cluster_size", Box::new(set("ssv log_cluster_size 5"))),
        (":/d/tree\"", "ei_block", Box::new(|image| patch(image, index, |bytes| bytes[12] = 0))),
        (":/d/fast\"", "NUL", Box::new(|image| patch(image, b"needle-in-an-inode", |bytes| bytes[6] = 0))),
        (":/d/slow\"", "NUL", Box::new(|image| patch(image, slow.as_bytes(), |bytes| bytes[50] = 0))),
        (":/d/slow\"", "i_size", Box::new(|image| patch(image, slow.as_bytes(), |bytes| bytes[120] = b'x'))),
        (
            ":/d/file\"",
            "e_hash",
            Box::new(|image| patch(image, b"needle-of-a-value", |bytes| bytes[6] = b'_')),
        ),
        (":/d/file\"", "h_refcount", Box::new(attribute_block(4, 3))),
        (":/d/file\"", "i_dtime", Box::new(set("sif d/file dtime 1000"))),
        (":/d/file\"", "i_blocks", Box::new(set("sif d/file blocks 100"))),
        (":/d/file\"", "i_size", Box::new(set("sif d/file size 1"))),
        (":/d/pipe\"", "i_size", Box::new(set("sif d/pipe size 1"))),
    ];
    for (place, told, damage) in damages {
        fs::copy(&sound, &image).unwrap();
        damage(&image);
        let checked = extant_testbed::command("e2fsck").arg("-fn").arg(&image).output().unwrap();
        assert!(checked.status.code().is_some_and(|code| code >= 4), "{place} {told}");
        let before = fs::read(&image).unwrap();
        let ran = extant(["shrink", image.to_str().unwrap()]);
        assert_eq!(ran.code, Some(3), "{place} {told}: {}", ran.stderr);
        assert!(ran.stderr.contains(place) && ran.stderr.contains(told), "{place} {told}: {}", ran.stderr);
        assert!(fs::read(&image).unwrap() == before);
    }
}

#[test]
fn old_bytes_behind_a_device_number_are_no_damage() {
    if !have("mke2fs") || !have("e2fsck") || !have("debugfs") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    mke2fs(&image, "8M", &["-t", "ext4", "-b", "1024"]);
    // Linux did not always clear the rest of the map.
    debugfs(&image, &["mknod dev c 5 1".into(), "sif dev block[5] 7".into()]);
    fsck(&image);
    extant(["shrink", image.to_str().unwrap()]).clean();
    fsck(&image);
}
