//! Commands that change a volume, checked with e2fsck, debugfs and the kernel.

use crate::testbed::{
    Ran, assert_same, debugfs, extant, extant_at, extant_with, fsck, have, is_root, look, mke2fs, mounted,
    noise, place, run,
};
use extant_testbed::LoopDevice;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

fn volume(dir: &Path, size: &str, options: &[&str]) -> Option<PathBuf> {
    if !have("mke2fs") || !have("e2fsck") {
        return None;
    }
    let image = dir.join("image");
    mke2fs(&image, size, &[options, &["-E", "root_owner=0:0"]].concat());
    Some(image)
}

/// Output of debugfs for a request.
fn ask(image: &Path, request: &str) -> String {
    run("debugfs", &["-R", request, image.to_str().unwrap()])
}

#[track_caller]
fn refused(ran: Ran, code: i32, told: &str) {
    assert_eq!(ran.code, Some(code), "{}", ran.stderr);
    assert!(ran.stderr.contains(told), "{}", ran.stderr);
}

#[test]
fn every_command_does_what_its_name_says() {
    let dir = tempfile::tempdir().unwrap();
    for options in
        [&["-t", "ext4"][..], &["-t", "ext4", "-O", "inline_data"], &["-t", "ext3"], &["-t", "ext2"]]
    {
        let Some(image) = volume(dir.path(), "32M", options) else { return };
        let at = |path: &str| place(&image, path);
        let done = |args: &[&str]| {
            extant(args).clean();
            fsck(&image);
        };
        let hello = dir.path().join("hello");
        fs::write(&hello, b"hello").unwrap();
        fs::set_permissions(&hello, fs::Permissions::from_mode(0o640)).unwrap();
        let hello = hello.to_str().unwrap();
        done(&["mkdir", "-p", &at("/a/b/c")]);
        done(&["mkdir", "-m", "1770", &at("/m")]);
        done(&["put", "--all-root", hello, &at("/a")]);
        done(&["put", hello, hello, &at("/m")]);
        done(&["put", hello, &at("/a/b/other name")]);
        done(&["mv", &at("/a/hello"), &at("/a/moved")]);
        done(&["mv", &at("/a/moved"), &at("/a/b/other name"), &at("/a/b/c")]);
        done(&["ln", &format!("{}:/a/b/c/moved", image.display()), &at("/hard")]);
        done(&["ln", "-s", "a/b/c/moved", &at("/soft")]);
        done(&["ln", "-sf", "nowhere", &at("/soft")]);
        done(&["chown", "-R", ":7", &at("/a/b")]);
        done(&["chmod", "-R", "700", &at("/m")]);
        done(&["chown", "12:70000", &at("/hard")]);
        done(&["chmod", "4711", &at("/hard")]);
        done(&["xattr", "-s", "user.a=b=c", "-s", "security.x=", &at("/hard"), &at("/m")]);
        done(&["xattr", "-x", "user.a", &at("/m")]);
        done(&["truncate", "-s", "3", &at("/hard")]);
        done(&["truncate", "-s", "64K", &at("/new")]);
        done(&["truncate", "-cs", "1", &at("/none"), &at("/none/below")]);
        assert_eq!(extant(["cat", &at("/a/b/c/moved")]).clean(), b"hel");
        let told = ask(&image, "stat /hard");
        for part in ["Mode:  04711", "User:    12 ", "Group: 70000 ", "Links: 2 ", "Size: 3\n"] {
            assert!(told.contains(part), "{part}: {told}");
        }
        assert!(ask(&image, "stat /m").contains("Mode:  0700"));
        assert!(ask(&image, "stat /new").contains("Size: 65536"));
        assert!(ask(&image, "stat /soft").contains("nowhere"));
        let attributes = ask(&image, "ea_list /hard");
        assert!(
            attributes.contains("user.a (3) = \"b=c\"") && attributes.contains("security.x (0)"),
            "{attributes}"
        );
        assert!(!ask(&image, "ea_list /m").contains("user.a"));
        done(&["rm", &at("/soft"), &at("/hard")]);
        done(&["rm", "-rf", &at("/a"), &at("/m"), &at("/none")]);
        let names = extant(["ls", &at("/")]).clean_text();
        assert_eq!(names.split_whitespace().collect::<Vec<_>>(), ["lost+found", "new"]);
    }
}

#[test]
fn a_tree_is_put_as_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let Some(image) = volume(dir.path(), "64M", &["-t", "ext4"]) else { return };
    let source = dir.path().join("tree");
    fs::create_dir_all(source.join("sub/deep")).unwrap();
    fs::write(source.join("sub/file"), noise(1, 200_000)).unwrap();
    fs::set_permissions(source.join("sub/file"), fs::Permissions::from_mode(0o6755)).unwrap();
    fs::hard_link(source.join("sub/file"), source.join("again")).unwrap();
    symlink("t/".repeat(100), source.join("sub/link")).unwrap();
    let sparse = File::create(source.join("sparse")).unwrap();
    sparse.write_all_at(b"end", 20 << 20).unwrap();
    sparse.set_len(30 << 20).unwrap();
    let none = rustix::fs::XattrFlags::empty();
    rustix::fs::setxattr(source.join("sub"), "user.name", b"value", none).unwrap();
    run("mkfifo", &[source.join("pipe").to_str().unwrap()]);
    run("touch", &["-d", "2039-03-02 01:02:03.123456789Z", source.join("sub").to_str().unwrap()]);
    extant(["put".as_ref(), "-r".as_ref(), source.as_os_str(), place(&image, "/").as_ref()]).clean();
    fsck(&image);
    let told = ask(&image, "stat /tree/sparse");
    let blocks = told.split("Blockcount: ").nth(1).and_then(|rest| rest.split_whitespace().next());
    assert!(blocks.unwrap().parse::<u64>().unwrap() < 300, "holes stay holes: {told}");
    let Some(mount) = mounted(&image, "ro") else { return };
    assert_same("put", &look(&mount.path().join("tree")), &look(&source));
}

#[test]
fn a_script_is_one_batch_and_the_same_script_gives_the_same_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let Some(image) = volume(dir.path(), "64M", &["-t", "ext4"]) else { return };
    let (copy, atomic) = (dir.path().join("copy"), dir.path().join("atomic"));
    fs::copy(&image, &copy).unwrap();
    fs::copy(&image, &atomic).unwrap();
    let data = dir.path().join("data");
    fs::write(&data, noise(2, 20 << 20)).unwrap();
    let small = dir.path().join("small \"file\"");
    fs::write(&small, b"small").unwrap();
    let script = format!(
        "# all of it is one batch\n\
         mkdir -p /etc/app\r\n\
         put --all-root '{}' /etc/app/data   # as root's\n\
         \n\
         put --all-root '{}' \"/etc/app/with space\"\n\
         ln -s data /etc/app/link\n\
         mv /etc/app/data /etc/data\n\
         truncate -s 1M /etc/app/table\n\
         chmod 600 /etc/app/with\\ space\n\
         xattr -s user.k=v /etc/data\n\
         rm -r /lost+found\n",
        data.display(),
        small.display()
    );
    for image in [&image, &copy] {
        extant_with(script.as_bytes(), ["edit".as_ref(), image.as_os_str()]).clean();
        fsck(image);
    }
    assert!(fs::read(&image).unwrap() == fs::read(&copy).unwrap(), "the images differ");
    extant_with(script.as_bytes(), ["edit".as_ref(), "--atomic".as_ref(), atomic.as_os_str()]).clean();
    assert!(fs::read(&image).unwrap() == fs::read(&atomic).unwrap(), "the images differ");
    let head = run("dumpe2fs", &["-h", image.to_str().unwrap()]);
    assert!(!head.contains("needs_recovery") && head.contains("Journal start:            0"), "{head}");
    assert_eq!(extant(["cat", &place(&image, "/etc/data")]).clean(), noise(2, 20 << 20));

    // The first failure ends a batch; earlier changes stay, and the volume is clean.
    let before = "mkdir /kept\nmkdir /etc\nmkdir /never\n";
    let ran = extant_with(before.as_bytes(), ["edit".as_ref(), image.as_os_str()]);
    refused(ran, 1, "line 2: ");
    fsck(&image);
    let names = extant(["ls", &place(&image, "/")]).clean_text();
    assert!(names.contains("kept") && !names.contains("never"), "{names}");

    // Or nothing stays at all.
    let was = fs::read(&copy).unwrap();
    let ran = extant_with(before.as_bytes(), ["edit".as_ref(), "--atomic".as_ref(), copy.as_os_str()]);
    refused(ran, 1, "line 2: ");
    assert!(fs::read(&copy).unwrap() == was, "a failed batch changed the image");
}

/// Bytes in 4 KiB blocks that differ.
fn changed_bytes(a: &Path, b: &Path) -> u64 {
    let (a, b) = (File::open(a).unwrap(), File::open(b).unwrap());
    let len = a.metadata().unwrap().len();
    assert_eq!(len, b.metadata().unwrap().len());
    let (mut left, mut right) = (vec![0; 4 << 20], vec![0; 4 << 20]);
    let mut changed = 0;
    let mut at = 0;
    while at < len {
        let n = left.len().min((len - at) as usize);
        a.read_exact_at(&mut left[..n], at).unwrap();
        b.read_exact_at(&mut right[..n], at).unwrap();
        if left[..n] != right[..n] {
            let differing = |(a, b): &(&[u8], &[u8])| a != b;
            changed +=
                4096 * left[..n].chunks(4096).zip(right[..n].chunks(4096)).filter(differing).count() as u64;
        }
        at += n as u64;
    }
    changed
}

fn journal_sequence(image: &Path) -> u32 {
    let head = run("dumpe2fs", &["-h", image.to_str().unwrap()]);
    let line = head.lines().find_map(|line| line.strip_prefix("Journal sequence:")).unwrap();
    u32::from_str_radix(line.trim().trim_start_matches("0x"), 16).unwrap()
}

#[test]
fn a_small_file_costs_one_transaction_and_little_else() {
    let dir = tempfile::tempdir().unwrap();
    let Some(image) = volume(dir.path(), "1G", &["-t", "ext4"]) else { return };
    let before = dir.path().join("before");
    run("cp", &["--sparse=always", image.to_str().unwrap(), before.to_str().unwrap()]);
    let small = dir.path().join("small");
    fs::write(&small, noise(3, 10_000)).unwrap();
    extant(["put".as_ref(), small.as_os_str(), place(&image, "/motd").as_ref()]).clean();
    fsck(&image);
    // The first transaction of an empty log has the sequence after the log's, and the emptied log
    // has the one after the last transaction's.
    assert_eq!(journal_sequence(&image) - journal_sequence(&before), 2, "one transaction");
    let changed = changed_bytes(&before, &image);
    println!("{changed} bytes of blocks changed, the file's 12,288 among them");
    assert!(changed - 12_288 <= 128 << 10, "{changed}");
}

#[test]
fn reading_writes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let Some(image) = volume(dir.path(), "16M", &["-t", "ext4"]) else { return };
    extant(["truncate", "-s", "5000", &place(&image, "/file")]).clean();
    let (name, file) = (image.to_str().unwrap(), place(&image, "/file"));
    let writes_nothing = |commands: &[&[&str]]| {
        let (bytes, stamp) = (fs::read(&image).unwrap(), image.metadata().unwrap());
        for command in commands {
            extant(*command).clean();
        }
        let now = image.metadata().unwrap();
        assert_eq!((now.mtime(), now.mtime_nsec()), (stamp.mtime(), stamp.mtime_nsec()));
        assert!(fs::read(&image).unwrap() == bytes);
    };
    let reading: &[&[&str]] = &[
        &["ls", "-lR", name],
        &["tree", name],
        &["cat", &file],
        &["stat", &file],
        &["info", "-v", name],
        &["debug", name, "journal"],
        &["export", name, "-o", "-"],
    ];
    writes_nothing(reading);
    writes_nothing(&[&["recover", name]]);
    // A dirty journal with a block newer than the one at its home location.
    let block = dir.path().join("block");
    fs::write(&block, vec![0x5a; 1024]).unwrap();
    debugfs(&image, &["jo".into(), format!("jw -b 12000 {}", block.display()), "jc".into()]);
    assert!(ask(&image, "features").contains("needs_recovery"));
    writes_nothing(reading);
    extant(["recover", name]).clean();
    assert!(!ask(&image, "features").contains("needs_recovery"));
    fsck(&image);
    assert!(fs::read(&image).unwrap()[12000 << 10..][..1024] == [0x5a; 1024]);
}

#[test]
fn times_that_inodes_cannot_store_are_told() {
    let dir = tempfile::tempdir().unwrap();
    let Some(image) = volume(dir.path(), "16M", &["-t", "ext3", "-I", "128"]) else { return };
    let source = dir.path().join("tree");
    fs::create_dir(&source).unwrap();
    for (name, time) in [("a", "2400-01-01"), ("b", "2038-01-01"), ("c", "2200-01-01")] {
        fs::write(source.join(name), name).unwrap();
        run("touch", &["-d", time, source.join(name).to_str().unwrap()]);
    }
    let put = std::process::Command::new(env!("CARGO_BIN_EXE_extant"))
        .args(["put", "-r", source.to_str().unwrap(), &place(&image, "/")])
        .output();
    let put = Ran::from(put.unwrap());
    assert!(put.stderr.contains("time of /tree/a and 1 more replaced by the nearest"), "{}", put.stderr);
    put.clean();
    assert!(ask(&image, "stat /tree/a").contains("mtime: 0x7fffffff"));
    assert!(ask(&image, "stat /tree/b").contains("mtime: 0x7fe8"));
    fsck(&image);
}

#[test]
fn mistakes_are_refused_with_a_sentence_and_change_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let Some(image) = volume(dir.path(), "16M", &["-t", "ext4"]) else { return };
    let at = |path: &str| place(&image, path);
    let (name, host) = (image.to_str().unwrap(), dir.path().to_str().unwrap());
    extant(["mkdir", "-p", &at("/d/full")]).clean();
    extant(["truncate", "-s", "0", &at("/f")]).clean();
    let written = format!("a path in an image is written {name}:/");
    for (code, args, told) in [
        (2, &["mkdir", name][..], &*written),
        (2, &["mv", &at("/f"), "/elsewhere.img:/f"], "one call changes one image"),
        (2, &["chmod", "u+q", &at("/f")], "as in 644, u+x"),
        (2, &["chown", "root", &at("/f")], "give its number instead"),
        (2, &["truncate", &at("/f")], "--size"),
        (1, &["mkdir", &at("/d")], "/d: exists already"),
        (1, &["mkdir", &at("/none/d")], "no such file or directory"),
        (1, &["rm", &at("/d")], "is a directory"),
        (1, &["rm", &at("/none")], "/none: no such file or directory"),
        (1, &["rm", "-r", &at("/")], "in use"),
        (1, &["mv", &at("/d"), &at("/d/full")], "cannot be moved into itself"),
        (1, &["mv", "-n", &at("/f"), &at("/f")], "exists already"),
        (1, &["ln", &at("/d"), &at("/e")], "not permitted"),
        (1, &["ln", "-s", "x", &at("/f")], "exists already"),
        (1, &["xattr", "-s", "unknown.a=b", &at("/f")], "not supported"),
        (1, &["xattr", "-x", "user.none", &at("/f")], "no such attribute"),
        (1, &["truncate", "-s", "100000T", &at("/f")], "larger than a file of this volume can be"),
        (1, &["put", &format!("{host}/none"), &at("/")], "No such file or directory"),
        (1, &["put", host, &at("/")], "copy it with --recursive"),
        (1, &["put", "/etc/hostname", "/etc/passwd", &at("/f")], "not a directory"),
        (1, &["mkdir", "/nonexistent.img:/d"], "No such file or directory"),
        (1, &["mkdir", &format!("{host}:/d")], host),
    ] {
        let before = fs::read(&image).unwrap();
        let ran = extant(args);
        assert_eq!(ran.code, Some(code), "{args:?}: {}", ran.stderr);
        assert!(ran.stderr.contains(told), "{args:?}: {}", ran.stderr);
        fsck(&image);
        if code == 2 {
            assert!(fs::read(&image).unwrap() == before, "{args:?} wrote");
        }
    }
    let junk = dir.path().join("junk");
    fs::write(&junk, vec![0; 1 << 20]).unwrap();
    let ran = extant(["mkdir", &place(&junk, "/d")]);
    assert!(ran.stderr.contains("`extant recover --superblock auto`"), "{}", ran.stderr);
    refused(ran, 3, "not an ext2, ext3 or ext4 volume");
    assert!(fs::read(&junk).unwrap().iter().all(|&byte| byte == 0));
}

#[test]
fn hostile_scripts_are_refused_before_anything_is_changed() {
    let dir = tempfile::tempdir().unwrap();
    let Some(image) = volume(dir.path(), "16M", &["-t", "ext4"]) else { return };
    let before = fs::read(&image).unwrap();
    let long = "x".repeat(1 << 20);
    for (line, told) in [
        ("frobnicate /x", "line 2: unrecognized subcommand 'frobnicate'"),
        ("--help", "line 2: "),
        ("edit /x", "line 2: unrecognized subcommand 'edit'"),
        ("mkdir 'open", "line 2: a quotation that does not end"),
        ("mkdir /x\\", "line 2: a backslash at the end of the line"),
        ("mkdir relative", "line 2: relative: a path in the image begins with /"),
        ("mkdir", "line 2: "),
        ("rm --no-such-option /x", "line 2: unexpected argument"),
        ("chmod 99999 /x", "line 2: "),
        ("put /etc/hostname", "line 2: "),
        ("''", "line 2: "),
        (&long, "line 2: "),
    ] {
        let script = format!("mkdir /first\n{line}\n");
        let ran = extant_with(script.as_bytes(), ["edit".as_ref(), image.as_os_str()]);
        refused(ran, 2, told);
        assert!(fs::read(&image).unwrap() == before, "{told} wrote");
    }
    // Names may contain any byte except NUL and slash.
    let odd = b"mkdir '/a\x1b[31m\xff' '/ '\nmkdir -- /-r\n";
    extant_with(odd, ["edit".as_ref(), image.as_os_str()]).clean();
    fsck(&image);
    let ran = extant_with(b"mkdir /a\0b\n", ["edit".as_ref(), image.as_os_str()]);
    refused(ran, 1, "line 1: ");
    let ran =
        extant_with(format!("mkdir /{}\n", "n".repeat(256)).as_bytes(), ["edit".as_ref(), image.as_os_str()]);
    refused(ran, 1, "the name is too long");
    let ran = extant_with(b"rm '/a\x1b[31m\xff/x'\n", ["edit".as_ref(), image.as_os_str()]);
    assert!(!ran.stderr.contains('\x1b'), "names are escaped: {:?}", ran.stderr);
    fsck(&image);
}

#[test]
fn a_full_volume_is_told_and_stays_whole() {
    let dir = tempfile::tempdir().unwrap();
    let Some(image) = volume(dir.path(), "8M", &["-t", "ext4"]) else { return };
    let large = dir.path().join("large");
    fs::write(&large, noise(4, 12 << 20)).unwrap();
    let ran = extant(["put".as_ref(), large.as_os_str(), place(&image, "/").as_ref()]);
    refused(ran, 1, "no space is left on the volume");
    fsck(&image);
    // No trace of it is left.
    let names = extant(["ls", "-a", &place(&image, "/")]).clean_text();
    assert!(!names.contains("large") && !names.contains("put"), "{names}");
    let inodes = dir.path().join("inodes.img");
    mke2fs(&inodes, "8M", &["-N", "32"]);
    let script: String = (0..40).map(|n| format!("mkdir /d{n}\n")).collect();
    let ran = extant_with(script.as_bytes(), ["edit".as_ref(), inodes.as_os_str()]);
    refused(ran, 1, "no space is left on the volume");
    fsck(&inodes);
}

#[test]
fn a_full_disk_of_the_host_is_told_and_costs_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let Some(image) = volume(dir.path(), "64M", &["-t", "ext4"]) else { return };
    if !extant_testbed::can_mount() {
        return;
    }
    let full = dir.path().join("full");
    fs::create_dir(&full).unwrap();
    let mount = extant_testbed::Mount::tmpfs(&full, "size=8m");
    let sparse = full.join("image");
    run("cp", &["--sparse=always", image.to_str().unwrap(), sparse.to_str().unwrap()]);
    let large = dir.path().join("large");
    fs::write(&large, noise(5, 16 << 20)).unwrap();
    let made = extant(["mkdir".to_owned(), place(&sparse, "/before")]);
    let ran = extant(["put".as_ref(), large.as_os_str(), place(&sparse, "/large").as_ref()]);
    // Where there is room, it is recovered as after a power cut.
    run("cp", &["--sparse=always", sparse.to_str().unwrap(), image.to_str().unwrap()]);
    drop(mount);
    made.clean();
    refused(ran, 1, "No space left on device");
    extant(["recover", image.to_str().unwrap()]).clean();
    fsck(&image);
    assert!(extant(["ls", &place(&image, "/")]).clean_text().contains("before"));
}

#[test]
fn disks_are_changed_and_those_that_cannot_be_written_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let Some(image) = volume(dir.path(), "16M", &["-t", "ext4"]) else { return };
    if !is_root() {
        fs::set_permissions(&image, fs::Permissions::from_mode(0o444)).unwrap();
        refused(extant(["mkdir", &place(&image, "/d")]), 1, "Permission denied");
        return;
    }
    if !extant_testbed::can_mount() {
        return;
    }
    let device = LoopDevice::attach(&image, &[]).unwrap();
    let on_device = |path: &str| place(device.path(), path);
    let refused_image = extant(["mkdir", &place(&image, "/x")]);
    let refused_mkfs = extant(["mkfs", image.to_str().unwrap(), "8M"]);
    let made = extant(["mkdir", &on_device("/d")]);
    let again = extant(["mkdir", &on_device("/d")]);
    drop(device);
    refused(refused_image, 1, "losetup -d");
    refused(refused_mkfs, 1, "losetup -d");
    made.clean();
    refused(again, 1, "exists already");
    fsck(&image);
    let device = LoopDevice::attach(&image, &["--read-only"]).unwrap();
    let ran = extant(["mkdir", &place(device.path(), "/e")]);
    drop(device);
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    fsck(&image);
}

#[test]
fn a_volume_has_one_writer_at_a_time() {
    let dir = tempfile::tempdir().unwrap();
    let Some(image) = volume(dir.path(), "16M", &["-t", "ext4"]) else { return };
    let options = extant::OpenOptions::new().write(true);
    let open = extant::Volume::open(&image, &options).unwrap();
    refused(extant(["mkdir", &place(&image, "/d")]), 1, "in use");
    let (name, source) = (image.to_str().unwrap(), dir.path().to_str().unwrap());
    refused(extant(["build", "--into", name, source]), 1, "in use");
    // Commands must neither replay the log while it is in use nor take over the image's name.
    refused(extant(["recover", name]), 1, "in use");
    refused(extant(["mkfs", name, "8M"]), 1, "in use");
    refused(extant(["build", source, "-o", name]), 1, "in use");
    open.root().create_dir("kept").unwrap();
    open.close().unwrap();
    assert!(extant(["ls", name]).clean_text().contains("kept"));
    extant(["mkdir", &place(&image, "/d")]).clean();
    fsck(&image);
}

#[test]
fn times_are_those_of_the_epoch_that_is_given() {
    let dir = tempfile::tempdir().unwrap();
    let Some(image) = volume(dir.path(), "16M", &["-t", "ext4", "-b", "4096"]) else { return };
    let file = dir.path().join("file");
    fs::write(&file, b"x").unwrap();
    extant_at(1_500_000_000, ["put".as_ref(), file.as_os_str(), place(&image, "/").as_ref()]).clean();
    fsck(&image);
    let told = ask(&image, "stat /file");
    let stamps = told.lines().filter(|line| line.contains("time: 0x59682f00")).count();
    assert_eq!(stamps, 4, "{told}");
    refused(
        {
            let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_extant"));
            command.env("SOURCE_DATE_EPOCH", "yesterday").args(["mkdir", &place(&image, "/d")]);
            command.output().unwrap().into()
        },
        2,
        "SOURCE_DATE_EPOCH must be a number",
    );
}

#[test]
fn directories_between_are_for_all_and_dots_are_not_removed() {
    let dir = tempfile::tempdir().unwrap();
    let Some(image) = volume(dir.path(), "8M", &["-t", "ext4"]) else { return };
    extant(["mkdir", "-p", "-m", "700", &place(&image, "/a/b/")]).clean();
    assert!(ask(&image, "stat /a").contains("Mode:  0755"));
    assert!(ask(&image, "stat /a/b").contains("Mode:  0700"));
    for path in ["/a/.", "/a/./", "/a/b/../."] {
        assert_eq!(extant(["rm", "-rf", &place(&image, path)]).code, Some(1));
    }
    assert!(ask(&image, "stat /a/b").contains("Mode:  0700"));
    refused(extant(["truncate", "-s", "+5", &place(&image, "/a/b")]), 2, "leave out the sign");
    fsck(&image);
}

#[test]
fn hash_trees_of_linux_are_changed() {
    let dir = tempfile::tempdir().unwrap();
    // 300 names give a root over leaves; 9,000 with 1 KiB blocks add a level between them.
    for (block, names) in [("1024", 9_000), ("4096", 300)] {
        let Some(image) = volume(dir.path(), "64M", &["-t", "ext4", "-b", block, "-N", "12000"]) else {
            return;
        };
        let Some(mount) = mounted(&image, "rw") else { return };
        for n in 0..names {
            fs::write(mount.path().join(format!("a-name-of-some-length-{n}")), b"").unwrap();
        }
        drop(mount);
        let file = dir.path().join("file");
        fs::write(&file, b"new").unwrap();
        extant(["mkdir", &place(&image, "/d")]).clean();
        extant(["put", file.to_str().unwrap(), &place(&image, "/new")]).clean();
        extant(["rm", &place(&image, "/a-name-of-some-length-7")]).clean();
        fsck(&image);
        let Some(mount) = mounted(&image, "rw") else { return };
        assert_eq!(fs::read(mount.path().join("new")).unwrap(), b"new");
        fs::write(mount.path().join("a-name-of-some-length-7"), b"").unwrap();
        // Plus `lost+found`, `d` and `new`.
        assert_eq!(fs::read_dir(mount.path()).unwrap().count(), names + 3);
        drop(mount);
        fsck(&image);
    }
}

#[test]
fn files_that_are_put_have_the_attributes_of_their_sources_alone() {
    let dir = tempfile::tempdir().unwrap();
    let Some(image) = volume(dir.path(), "8M", &["-t", "ext4"]) else { return };
    let source = dir.path().join("f");
    fs::write(&source, b"old").unwrap();
    extant(["put", source.to_str().unwrap(), &place(&image, "/f")]).clean();
    extant(["mkdir", &place(&image, "/d")]).clean();
    let Some(mount) = mounted(&image, "acl,user_xattr") else { return };
    run("setfacl", &["-m", "u:65534:rw", mount.path().join("f").to_str().unwrap()]);
    run("setfattr", &["-n", "user.of-the-old", "-v", "1", mount.path().join("f").to_str().unwrap()]);
    run("setfacl", &["-d", "-m", "u:65534:rw", mount.path().join("d").to_str().unwrap()]);
    drop(mount);
    fs::write(&source, b"new").unwrap();
    fs::set_permissions(&source, fs::Permissions::from_mode(0o660)).unwrap();
    extant(["put", source.to_str().unwrap(), &place(&image, "/f")]).clean();
    extant(["put", source.to_str().unwrap(), &place(&image, "/d")]).clean();
    fsck(&image);
    for path in ["/f", "/d/f"] {
        let (stat, attributes) =
            (ask(&image, &format!("stat {path}")), ask(&image, &format!("ea_list {path}")));
        assert!(stat.contains("Mode:  0660"), "{stat}");
        assert!(!attributes.contains("acl") && !attributes.contains("user."), "{path}: {attributes}");
    }
}

#[test]
fn a_put_that_fails_leaves_what_was_there() {
    let dir = tempfile::tempdir().unwrap();
    let Some(image) = volume(dir.path(), "4M", &["-t", "ext4", "-b", "1024"]) else { return };
    let (old, large) = (dir.path().join("old"), dir.path().join("large"));
    fs::write(&old, noise(1, 100_000)).unwrap();
    fs::write(&large, noise(2, 8 << 20)).unwrap();
    extant(["put", old.to_str().unwrap(), &place(&image, "/f")]).clean();
    refused(extant(["put", large.to_str().unwrap(), &place(&image, "/f")]), 1, "no space");
    fsck(&image);
    assert_eq!(extant(["cat", &place(&image, "/f")]).clean(), fs::read(&old).unwrap());
    let names = extant(["ls", "-a", &place(&image, "/")]).clean_text();
    assert!(!names.contains("put"), "{names}");
}

#[test]
fn the_target_of_a_link_is_put() {
    let dir = tempfile::tempdir().unwrap();
    let Some(image) = volume(dir.path(), "8M", &["-t", "ext4"]) else { return };
    let (file, link) = (dir.path().join("file"), dir.path().join("link"));
    fs::write(&file, "contents").unwrap();
    symlink("file", &link).unwrap();
    extant(["put", link.to_str().unwrap(), &place(&image, "/")]).clean();
    assert_eq!(extant(["cat", &place(&image, "/link")]).clean(), b"contents");
    assert!(ask(&image, "stat /link").contains("Type: regular"));
    extant(["put", "-r", link.to_str().unwrap(), &place(&image, "/as-it-is")]).clean();
    assert!(ask(&image, "stat /as-it-is").contains("Type: symlink"));
    // A link in the image is followed too.
    fs::write(&file, "other contents").unwrap();
    extant(["ln", "-s", "link", &place(&image, "/leads")]).clean();
    extant(["put", file.to_str().unwrap(), &place(&image, "/leads")]).clean();
    assert!(ask(&image, "stat /leads").contains("Type: symlink"));
    assert_eq!(extant(["cat", &place(&image, "/link")]).clean(), b"other contents");
    fsck(&image);
}

#[test]
fn the_holes_of_a_huge_file_take_no_time() {
    let dir = tempfile::tempdir().unwrap();
    let Some(image) = volume(dir.path(), "16M", &["-t", "ext4"]) else { return };
    let source = dir.path().join("huge");
    let file = File::create(&source).unwrap();
    let size = 2_u64 << 40;
    file.write_all_at(b"data", (1 << 40) + 12_345).unwrap();
    if file.set_len(size).is_err() {
        println!("skipped: the host has no files of 2 TiB");
        return;
    }
    extant(["put", source.to_str().unwrap(), &place(&image, "/huge")]).clean();
    fsck(&image);
    assert!(ask(&image, "stat /huge").contains(&format!("Size: {size}")));
}

#[test]
fn recover_does_not_call_an_unclean_volume_without_a_journal_clean() {
    let dir = tempfile::tempdir().unwrap();
    let Some(image) = volume(dir.path(), "8M", &["-t", "ext2"]) else { return };
    let name = image.to_str().unwrap();
    extant(["recover", name]).clean();
    run("debugfs", &["-w", "-R", "ssv state 0", name]);
    let before = fs::read(&image).unwrap();
    let ran = extant(["recover", name]);
    assert_ne!(ran.code, Some(0));
    assert!(ran.stderr.contains("not closed cleanly") && ran.stderr.contains("e2fsck"), "{}", ran.stderr);
    assert!(fs::read(&image).unwrap() == before);
}
