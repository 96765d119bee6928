//! Commands that answer what `find`, `du`, `df` and `ls` answer on a mounted volume, and changes
//! that `touch`, `mknod`, `chmod` and `chown` make there.

use crate::testbed::{Ran, extant, extant_at, fsck, have, mke2fs, mounted, place, run};
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A volume with files of several kinds and sizes, and names for owners.
fn volume(dir: &Path) -> PathBuf {
    let source = dir.join("source");
    for folder in ["etc", "a/b", "empty"] {
        fs::create_dir_all(source.join(folder)).unwrap();
    }
    fs::write(source.join("etc/passwd"), "root:x:0:0::/:\nadm:x:70000:4::/:\n").unwrap();
    fs::write(source.join("etc/group"), "root:x:0:\nwheel:x:10:adm\n").unwrap();
    for (name, kib) in [("a/one.conf", 1), ("a/b/two.conf", 900), ("a/b/three", 30), ("a/zero", 0)] {
        fs::write(source.join(name), vec![7; kib << 10]).unwrap();
    }
    fs::hard_link(source.join("a/b/two.conf"), source.join("a/b/again")).unwrap();
    symlink("b/two.conf", source.join("a/link")).unwrap();
    let image = dir.join("image");
    mke2fs(&image, "16M", &["-b", "1024", "-d", source.to_str().unwrap()]);
    image
}

fn lines(ran: Ran) -> Vec<String> {
    ran.clean_text().lines().map(str::to_owned).collect()
}

/// The output of a program on the mounted volume, with the mount's own path cut off.
fn there(mount: &Path, program: &str, args: &[&str]) -> Vec<String> {
    let top = mount.to_str().unwrap();
    let args: Vec<String> = args.iter().map(|arg| arg.replace("TOP", top)).collect();
    let said = run(program, &args.iter().map(String::as_str).collect::<Vec<_>>());
    let mut lines: Vec<String> = said.lines().map(|line| line.replace(&format!("{top}/"), "/")).collect();
    lines.iter_mut().for_each(|line| *line = line.replace(top, "/"));
    lines.sort();
    lines
}

#[test]
fn find_du_and_df_answer_as_on_the_mounted_volume() {
    if !have("mke2fs") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = volume(dir.path());
    let at = |path: &str| place(&image, path);
    let sorted = |ran: Ran| {
        let mut lines = lines(ran);
        lines.sort();
        lines
    };
    let Some(mount) = mounted(&image, "ro") else { return };
    for (ours, theirs) in [
        (vec!["find", "/"], vec!["TOP"]),
        (vec!["find", "/a"], vec!["TOP/a"]),
        (vec!["find", "--name", "*.conf", "/"], vec!["TOP", "-name", "*.conf"]),
        (vec!["find", "--type", "d", "/a"], vec!["TOP/a", "-type", "d"]),
        (vec!["find", "--type", "l", "/"], vec!["TOP", "-type", "l"]),
        (vec!["find", "--name", "[t-z]*", "--type", "f", "/"], vec!["TOP", "-name", "[t-z]*", "-type", "f"]),
        (vec!["find", "--max-depth", "1", "/a"], vec!["TOP/a", "-maxdepth", "1"]),
    ] {
        let (path, options) = ours.split_last().unwrap();
        let ours = sorted(extant([options, &[at(path).as_str()]].concat()));
        assert_eq!(ours, there(mount.path(), "find", &theirs), "{options:?} {path}");
    }
    assert_eq!(sorted(extant(["find", "--min-size", "30K", "--type", "f", &at("/")])).len(), 3);
    let ended = extant(["find", "--print0", "--name", "one*", &at("/")]);
    assert_eq!(ended.stdout, b"/a/one.conf\0");
    for options in [&[][..], &["-s"], &["-a"], &["-d", "1"]] {
        let at = at("/a");
        let ours = sorted(extant([&["du"], options, &[at.as_str()]].concat()));
        let theirs = there(mount.path(), "du", &[&["-B1"], options, &["TOP/a"]].concat());
        // Of a file's names, any may be counted.
        let unnamed = |lines: Vec<String>| -> Vec<String> {
            lines.into_iter().filter(|line| !line.ends_with("again") && !line.ends_with("two.conf")).collect()
        };
        assert_eq!(unnamed(ours), unnamed(theirs), "{options:?}");
    }
    let kernel = there(mount.path(), "df", &["-B1", "--output=size,used,avail,itotal,iused,iavail", "TOP"]);
    let kernel: Vec<&str> =
        kernel.iter().find(|line| !line.contains('I')).unwrap().split_whitespace().collect();
    let columns = |options: &[&str]| -> Vec<String> {
        let told = lines(extant([&["df"], options, &[image.to_str().unwrap()]].concat()));
        told[1].split_whitespace().take(3).map(str::to_owned).collect()
    };
    assert_eq!(columns(&["-i"]), kernel[3..]);
    let bytes: Vec<u64> = columns(&[]).iter().map(|column| column.parse().unwrap()).collect();
    let told: Vec<u64> = kernel[..3].iter().map(|column| column.parse().unwrap()).collect();
    assert_eq!(bytes[..2], told[..2]);
    // Linux keeps a fiftieth of the blocks for its own allocations from everyone.
    assert!(bytes[2] - told[2] <= 16 * 1024 * 1024 / 50, "{} and {}", bytes[2], told[2]);
    assert!(columns(&["-h"])[0].ends_with('M'));
}

#[test]
fn ls_sorts_and_shows_sizes_and_inodes() {
    if !have("mke2fs") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = volume(dir.path());
    let at = place(&image, "/a/b");
    extant(["touch", "--mtime", "2000000000", &place(&image, "/a/b/three")]).clean();
    let names = |options: &[&str]| lines(extant([&["ls"], options, &[at.as_str()]].concat()));
    assert_eq!(names(&["-S"])[0], "again");
    assert_eq!(names(&["-t"])[0], "three");
    assert_eq!(names(&["-1"]), names(&[]));
    let long = names(&["-lh"]);
    assert!(long.iter().any(|line| line.contains(" 900K ") && line.ends_with(" again")), "{long:?}");
    let numbered = names(&["-i"]);
    let stat = run("debugfs", &["-R", "stat /a/b/three", image.to_str().unwrap()]);
    let line = numbered.iter().find(|line| line.ends_with(" three")).unwrap();
    let number = line.split_whitespace().next().unwrap();
    assert!(stat.contains(&format!("Inode: {number} ")), "{line}: {stat}");
    // A pipe gets no colours unless asked for.
    let root = image.to_str().unwrap();
    assert_eq!(names(&["-n"]), names(&["-l"]));
    assert!(!extant(["ls", root]).clean_text().contains('\x1b'));
    assert!(extant(["ls", "--color=always", root]).clean_text().contains("\x1b[01;34metc\x1b[0m\n"));
}

#[test]
fn several_files_are_copied_into_a_directory() {
    if !have("mke2fs") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = volume(dir.path());
    let out = dir.path().join("out");
    fs::create_dir(&out).unwrap();
    let (confs, passwd) = (place(&image, "/a/*/*.conf"), place(&image, "/etc/passwd"));
    let told = extant(["cp", "--json", &confs, &passwd, out.to_str().unwrap()]).clean_text();
    let told: serde_json::Value = serde_json::from_str(&told).unwrap();
    assert_eq!(told["others"], 2);
    let mut names: Vec<_> = fs::read_dir(&out).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["passwd", "two.conf"]);
    let ran = extant(["cp", &confs, &passwd, dir.path().join("none").to_str().unwrap()]);
    assert!(ran.code == Some(1) && ran.stderr.contains("there are several files"), "{}", ran.stderr);
}

#[test]
fn changes_are_those_that_the_tools_of_their_names_make() {
    if !have("mke2fs") || !have("debugfs") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = volume(dir.path());
    let at = |path: &str| place(&image, path);
    extant_at(1_650_000_000, ["touch", &at("/a/zero"), &at("/new")]).clean();
    extant(["touch", "-c", &at("/absent")]).clean();
    extant(["mknod", &at("/null"), "c", "1", "3"]).clean();
    extant(["mknod", "-m", "660", &at("/disk"), "b", "259", "70000"]).clean();
    extant(["mknod", &at("/pipe"), "p"]).clean();
    extant(["mknod", &at("/socket"), "s"]).clean();
    extant(["chmod", "u+x,go-r", &at("/a/one.conf")]).clean();
    extant(["chmod", "-R", "a=rX", &at("/a/b")]).clean();
    extant(["chown", "adm:wheel", &at("/a/zero")]).clean();
    extant(["chown", ":wheel", &at("/new")]).clean();
    fsck(&image);
    for (args, told) in [
        (vec!["chown", "nobody", "/new"], "/etc/passwd has no such name"),
        (vec!["mknod", "/x", "c"], "required"),
        (vec!["mknod", "/x", "p", "1", "2"], "only devices have numbers"),
        (vec!["chmod", "u+q", "/new"], "permissions are written as in"),
    ] {
        let place = |word: &&str| if word.starts_with('/') { at(word) } else { (*word).to_owned() };
        let ran = extant(args.iter().map(place));
        assert!(ran.code == Some(2) && ran.stderr.contains(told), "{args:?}: {}", ran.stderr);
    }
    let Some(mount) = mounted(&image, "ro") else { return };
    let meta = |path: &str| fs::symlink_metadata(mount.path().join(path)).unwrap();
    assert_eq!(
        (meta("a/zero").mtime(), meta("new").mtime(), meta("new").len()),
        (1_650_000_000, 1_650_000_000, 0)
    );
    assert_eq!((meta("a/zero").uid(), meta("a/zero").gid(), meta("new").gid()), (70_000, 10, 10));
    assert!(fs::symlink_metadata(mount.path().join("absent")).is_err());
    let modes =
        ["a/one.conf", "a/b", "a/b/three", "disk"].map(|path| meta(path).permissions().mode() & 0o7777);
    assert_eq!(modes, [0o700, 0o555, 0o444, 0o660]);
    assert!(meta("null").file_type().is_char_device() && meta("null").rdev() == 0x103);
    let disk = meta("disk").rdev();
    assert!(meta("disk").file_type().is_block_device());
    assert_eq!((rustix::fs::major(disk), rustix::fs::minor(disk)), (259, 70_000));
    assert!(meta("pipe").file_type().is_fifo() && meta("socket").file_type().is_socket());
}

#[test]
fn patterns_name_what_the_shell_would() {
    if !have("mke2fs") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = volume(dir.path());
    let at = |path: &str| place(&image, path);
    extant(["touch", &at("/a/.hidden"), &at("/a/b/[x]"), &at("/a/*odd*")]).clean();
    let listed = |path: &str| lines(extant(["ls", "-d", &at(path)]));
    assert_eq!(listed("/a/*.conf"), ["/a/one.conf"]);
    assert_eq!(listed("/*/b/t*"), ["/a/b/three", "/a/b/two.conf"]);
    assert_eq!(listed("/a/?ne.c[a-o]nf"), ["/a/one.conf"]);
    assert!(!listed("/a/*").contains(&"/a/.hidden".to_owned()));
    assert_eq!(listed("/a/.h*"), ["/a/.hidden"]);
    // What exists as it is written is no pattern.
    assert_eq!(
        (listed("/a/b/[x]"), listed("/a/*odd*")),
        (vec!["/a/b/[x]".to_owned()], vec!["/a/*odd*".to_owned()])
    );
    let none = extant(["cat", &at("/a/*.none")]);
    assert!(none.code == Some(1) && none.stderr.contains("/a/*.none"), "{}", none.stderr);
    let both = extant(["cat", &at("/etc/pass*"), &at("/etc/gr?up")]).clean_text();
    assert!(both.starts_with("root:x:0:0") && both.ends_with("wheel:x:10:adm\n"), "{both}");
}

#[test]
fn head_prints_the_beginning() {
    if !have("mke2fs") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = volume(dir.path());
    let text: String = (0..100_000).map(|n| format!("line {n}\n")).collect();
    let file = dir.path().join("text");
    fs::write(&file, &text).unwrap();
    extant(["put", file.to_str().unwrap(), &place(&image, "/text")]).clean();
    extant(["truncate", "--size", "5M", &place(&image, "/text")]).clean();
    for options in
        [&[][..], &["-n", "1"], &["-n", "0"], &["-n", "70000"], &["-c", "7"], &["-c", "0"], &["-c", "4M"]]
    {
        let path = place(&image, "/text");
        let ours = extant([&["head"], options, &[path.as_str()]].concat()).clean();
        let grown = fs::OpenOptions::new().write(true).open(&file).unwrap();
        grown.set_len(5 << 20).unwrap();
        let theirs = Command::new("head").args(options).arg(&file).output().unwrap().stdout;
        assert!(ours == theirs, "{options:?}: {} bytes, head {}", ours.len(), theirs.len());
    }
    let both = extant(["head", "-c", "1", &place(&image, "/etc/*")]).clean_text();
    assert!(both.contains("/etc/group <==\nr") && both.contains("/etc/passwd <==\nr"), "{both}");
}

#[test]
fn attributes_are_listed_in_a_form_that_can_be_set() {
    if !have("mke2fs") || !have("debugfs") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = volume(dir.path());
    let (one, two) = (place(&image, "/a/one.conf"), place(&image, "/a/zero"));
    extant(["xattr", "-s", "user.a=text", "-s", "user.b=0x00ff", "-s", "user.c=0s", &one]).clean();
    let listed = extant(["xattr", &one, &two]).clean_text();
    assert_eq!(listed, "# file: /a/one.conf\nuser.a=\"text\"\nuser.b=0x00ff\nuser.c=\"\"\n\n");
    let before = fs::read(&image).unwrap();
    extant(["xattr", &one]).clean();
    assert!(fs::read(&image).unwrap() == before, "listing changes nothing");
}

#[test]
fn what_is_typed_for_something_else_is_answered_with_the_right_command() {
    if !have("mke2fs") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = volume(dir.path());
    let (image, file) = (image.to_str().unwrap(), dir.path().join("source/a/zero"));
    let (file, within) = (file.to_str().unwrap(), format!("{image}:/a/zero"));
    let target = format!("{image}:/new");
    for (args, told) in [
        (vec!["fsck", image], "extant check"),
        (vec!["resize", image, "20M"], "extant shrink"),
        (vec!["extract", image], "extant export"),
        (vec!["create", image], "extant build"),
        (vec!["cp", file, &target], "extant put -r"),
        (vec!["cp", &within, &target], "extant copy"),
        (vec!["mkfs", "-O", "^has_journal", "/nowhere/x", "8M"], "-J none"),
    ] {
        let ran = extant(&args);
        assert!(ran.code == Some(2) && ran.stderr.contains(told), "{args:?}: {}", ran.stderr);
    }
    let turned = extant(["debug", "inode", "2", image]).clean();
    assert_eq!(turned, extant(["debug", image, "inode", "2"]).clean());
    assert_eq!(
        extant(["debug", "superblock", image]).clean(),
        extant(["debug", image, "superblock"]).clean()
    );
}

/// GRUB before 2.12, U-Boot and older kernels refuse volumes with the newest features.
#[test]
fn only_those_who_ask_get_the_newest_features() {
    if !have("dumpe2fs") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    let image = image.to_str().unwrap();
    let shown = |options: &[&str]| {
        extant([&["mkfs", image, "16M"], options].concat()).clean();
        fsck(std::path::Path::new(image));
        let shown = run("dumpe2fs", &["-h", image]);
        let value = |key: &str| {
            let line = shown.lines().find(|line| line.starts_with(key)).unwrap();
            line.split_once(':').unwrap().1.trim().to_owned()
        };
        (value("Filesystem features"), value("Filesystem UUID"), value("Reserved block count"))
    };
    let newest = |features: &str| ["orphan_file", "metadata_csum_seed"].map(|name| features.contains(name));
    let (features, uuid, _) = shown(&[]);
    assert_eq!(newest(&features), [false, false], "{features}");
    assert_eq!(newest(&shown(&["-O", "newest"]).0), [true, true]);
    assert_eq!(newest(&shown(&["-O", "newest,^orphan_file"]).0), [false, true]);
    // As mke2fs counts them: half a percent of 16,384 blocks.
    assert_eq!(shown(&["-m", "0.5"]).2, "81");
    let random = [shown(&["-U", "random"]).1, shown(&["-U", "random"]).1];
    assert!(random[0] != random[1] && !random.contains(&uuid), "{random:?}");
    assert!(random.iter().all(|uuid| uuid.as_bytes()[14] == b'4'), "{random:?}");
}

/// As with debugfs, for files whose names are lost.
#[test]
fn a_file_is_named_by_its_inode() {
    if !have("debugfs") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    extant(["mkfs", image.to_str().unwrap(), "8M"]).clean();
    let file = dir.path().join("file");
    fs::write(&file, "found again").unwrap();
    extant(["put", file.to_str().unwrap(), &place(&image, "/f")]).clean();
    let shown = extant(["ls", "-i", image.to_str().unwrap()]).clean_text();
    let number = shown.lines().find(|line| line.ends_with(" f")).unwrap().split_whitespace().next().unwrap();
    // The name is lost, but not the file.
    run("debugfs", &["-w", "-R", "unlink /f", image.to_str().unwrap()]);
    let by_number = format!("{}:<{number}>", image.display());
    assert_eq!(extant(["cat", &place(&image, "/f")]).code, Some(1));
    assert_eq!(extant(["cat", &by_number]).clean(), b"found again");
    let copy = dir.path().join("copy");
    extant(["cp", &by_number, copy.to_str().unwrap()]).clean();
    assert_eq!(fs::read(&copy).unwrap(), b"found again");
    assert!(extant(["stat", &by_number]).clean_text().contains(number));
    let names = extant(["ls", &format!("{}:<2>", image.display())]).clean_text();
    assert_eq!(names, extant(["ls", image.to_str().unwrap()]).clean_text());
}

#[test]
fn put_knows_the_volumes_own_users() {
    if !have("mke2fs") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = volume(dir.path());
    let at = |path: &str| place(&image, path);
    let file = dir.path().join("file");
    fs::write(&file, "text").unwrap();
    let file = file.to_str().unwrap();
    for (owner, shown) in
        [("adm:wheel", " 70000:10 "), (":wheel", ":10 "), ("adm", " 70000:"), ("7:wheel", " 7:10 ")]
    {
        extant(["put", "--owner", owner, file, &at("/new")]).clean();
        let told = extant(["ls", "-l", &at("/new")]).clean_text();
        assert!(told.contains(shown), "{owner}: {told}");
    }
    for owner in ["nobody", "adm:nobody"] {
        let ran = extant(["put", "--owner", owner, file, &at("/none")]);
        assert!(ran.code == Some(2) && ran.stderr.contains("has no such name"), "{}", ran.stderr);
    }
}
