//! `extant diff`, on volumes that differ in one property each.

use crate::testbed::{debugfs, extant, extant_at, extant_with, fsck, have, mke2fs, noise, place};
use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};

/// A host directory with a file of each kind that needs no privileges.
fn source(dir: &Path) -> PathBuf {
    let source = dir.join("source");
    fs::create_dir_all(source.join("dir/sub")).unwrap();
    fs::write(source.join("file"), noise(1, 200_000)).unwrap();
    fs::hard_link(source.join("file"), source.join("file2")).unwrap();
    fs::write(source.join("dir/small"), b"small\n").unwrap();
    fs::write(source.join("dir-"), b"between\n").unwrap();
    symlink("dir/small", source.join("link")).unwrap();
    source
}

fn build(dir: &Path, source: &Path) -> PathBuf {
    let image = dir.join("a.img");
    let args = ["build", source.to_str().unwrap(), "-o", image.to_str().unwrap(), "--size", "16M"];
    extant(args).clean();
    image
}

fn diff(a: impl AsRef<str>, b: impl AsRef<str>, options: &[&str]) -> crate::testbed::Ran {
    extant([&["diff", a.as_ref(), b.as_ref()], options].concat())
}

#[test]
fn equal_volumes_and_their_source_do_not_differ() {
    let dir = tempfile::tempdir().unwrap();
    let source = source(dir.path());
    let image = build(dir.path(), &source);
    let copy = dir.path().join("b.img");
    fs::copy(&image, &copy).unwrap();
    let (a, b) = (image.to_str().unwrap(), copy.to_str().unwrap());
    assert_eq!(diff(a, b, &["--all-times"]).clean_text(), "");
    assert_eq!(diff(a, b, &["--json"]).clean_text(), "[\n]\n");
    assert_eq!(diff(a, source.to_str().unwrap(), &[]).clean_text(), "");
    assert_eq!(diff(place(&image, "/dir"), source.join("dir").to_str().unwrap(), &[]).clean_text(), "");
    fs::write(source.join("dir/sub/new"), b"").unwrap();
    fs::remove_file(source.join("link")).unwrap();
    let ran = diff(a, source.to_str().unwrap(), &["--ignore-times"]);
    let expected =
        format!("only in {}: /dir/sub/new (file)\nonly in {a}: /link (symlink)\n", source.display());
    assert_eq!((ran.code, String::from_utf8(ran.stdout).unwrap()), (Some(1), expected));
}

#[test]
fn a_file_of_the_host_stands_for_itself_beside_one_of_an_image() {
    let dir = tempfile::tempdir().unwrap();
    let source = source(dir.path());
    let image = build(dir.path(), &source);
    let (small, host) = (place(&image, "/dir/small"), source.join("dir/small"));
    let host = host.to_str().unwrap();
    assert_eq!(diff(&small, host, &[]).clean_text(), "");
    assert_eq!(diff(host, &small, &[]).clean_text(), "");
    fs::write(host, b"smell\n").unwrap();
    let ran = diff(&small, host, &["--ignore-times"]);
    let told = String::from_utf8(ran.stdout).unwrap();
    assert!(ran.code == Some(1) && told.contains("byte 2"), "{told}{}", ran.stderr);
}

#[test]
fn volumes_are_compared_as_a_whole_where_that_is_asked() {
    let dir = tempfile::tempdir().unwrap();
    if !have("mke2fs") || !have("tune2fs") {
        return;
    }
    let made = |name: &str, options: &[&str]| {
        let image = dir.path().join(name);
        let seed = [
            "-U",
            "11111111-2222-3333-4444-555555555555",
            "-E",
            "hash_seed=11111111-2222-3333-4444-555555555555",
        ];
        mke2fs(&image, "16M", &[&["-t", "ext4", "-L", "one"], &seed[..], options].concat());
        image.to_str().unwrap().to_owned()
    };
    let (a, b) = (made("a.img", &[]), made("b.img", &[]));
    let text = |ran: crate::testbed::Ran| (ran.code, String::from_utf8(ran.stdout).unwrap());
    assert_eq!(text(diff(&a, &b, &["--ignore-times", "--volume"])), (Some(0), String::new()));

    // Marks of another copy are compared only on request.
    crate::testbed::run("tune2fs", &["-U", "99999999-2222-3333-4444-555555555555", &b]);
    debugfs(Path::new(&b), &["set_super_value mnt_count 7".into()]);
    assert_eq!(text(diff(&a, &b, &["--volume", "--ignore-times"])), (Some(0), String::new()));
    let (code, told) = text(diff(&a, &b, &["--all-volume", "--ignore-times"]));
    let uuid = "volume: uuid: 11111111-2222-3333-4444-555555555555 -> 99999999-2222-3333-4444-555555555555";
    assert_eq!(code, Some(1), "{told}");
    assert_eq!(told.lines().next(), Some(uuid), "{told}");
    assert!(told.contains("\nvolume: mount count: 0 -> 7\n"), "{told}");

    // Settings, one at a time, each changed with its own tool.
    crate::testbed::run(
        "tune2fs",
        &["-L", "two", "-r", "100", "-e", "panic", "-c", "30", "-O", "^dir_index", &b],
    );
    assert_eq!(text(diff(&a, &b, &["--ignore-times"])), (Some(0), String::new()), "not of the files");
    let (code, told) = text(diff(&a, &b, &["--volume", "--ignore-times"]));
    let fields: Vec<&str> = told.lines().map(|line| line.split(": ").nth(1).unwrap()).collect();
    assert_eq!(
        (code, &fields[..]),
        (Some(1), &["label", "features", "reserved blocks", "errors", "max mount count"][..]),
        "{told}"
    );
    assert!(told.starts_with("volume: label: \"one\" -> \"two\"\n"), "{told}");
    assert!(told.contains(" -> 100\n"), "{told}");
    assert_eq!(
        text(diff(&a, &b, &["--volume", "--brief", "--ignore-times"])),
        (Some(1), "the volumes differ\n".into())
    );
    let (_, json) = text(diff(&a, &b, &["--volume", "--json", "--ignore-times"]));
    assert!(json.contains(r#":"volume","name":"label","a":"one","b":"two"}"#), "{json}");
    assert_eq!(serde_json::from_str::<Vec<serde_json::Value>>(&json).unwrap().len(), 5, "{json}");

    let sizes = made("sizes.img", &["-b", "4096", "-I", "512", "-J", "size=4"]);
    let (_, told) = text(diff(&a, &sizes, &["--volume"]));
    for line in ["block bytes: 1024 -> 4096", "inode bytes: 256 -> 512", "blocks: 16384 -> 4096"] {
        assert!(told.contains(&format!("volume: {line}\n")), "{line}: {told}");
    }
    assert!(told.contains(" -> 4194304\n"), "the journal: {told}");

    fs::create_dir(dir.path().join("dir")).unwrap();
    let host = diff(&a, dir.path().join("dir").to_str().unwrap(), &["--volume"]);
    assert!(host.code == Some(2) && host.stderr.contains("has no volume"), "{host:?}");
}

#[test]
fn each_kind_of_difference_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let image = build(dir.path(), &source(dir.path()));
    let other = dir.path().join("b.img");
    let contents = dir.path().join("changed");
    let mut changed = noise(1, 200_000);
    changed[123_456] ^= 1;
    fs::write(&contents, &changed).unwrap();
    let put = format!("put --all-root {} /file", contents.display());
    let (a, b) = (image.to_str().unwrap(), other.to_str().unwrap());
    let owner = fs::metadata(dir.path()).unwrap();
    for (script, expected) in [
        ("chmod 4711 /dir-", "/dir-: mode: 0644 -> 4711\n".to_owned()),
        ("chown 12 /dir-", format!("/dir-: owner: {} -> 12\n", owner.uid())),
        ("chown :12 /dir-", format!("/dir-: group: {} -> 12\n", owner.gid())),
        ("truncate -s 7 /dir-", "/dir-: size: 8 -> 7\n".into()),
        ("rm /dir-\nmkdir /dir-", "/dir-: kind: file -> directory\n".into()),
        ("rm /link\nln -s /nowhere /link", "/link: target: dir/small -> /nowhere\n".into()),
        ("xattr -s user.k=v /dir-", "/dir-: attribute user.k: none -> \"v\"\n".into()),
        ("rm -r /dir", format!("only in {a}: /dir (directory)\n")),
        (
            "mv /dir/small /dir/tall",
            format!("only in {a}: /dir/small (file)\nonly in {b}: /dir/tall (file)\n"),
        ),
        (
            "copy /file2 /f\nmv /f /file2",
            "/file2: links: another name of /file -> a file of its own\n".into(),
        ),
        (
            &put,
            "/file: contents differ from byte 123456 on\n\
             /file2: links: another name of /file -> a file of its own\n"
                .into(),
        ),
    ] {
        fs::copy(&image, &other).unwrap();
        extant_with(script.as_bytes(), ["edit", b]).clean();
        let mut ran = diff(a, b, &["--ignore-times"]);
        // A file added by put belongs to root.
        let told = String::from_utf8(std::mem::take(&mut ran.stdout)).unwrap();
        let is_of_owner = |line: &&str| line.starts_with("/file: owner") || line.starts_with("/file: group");
        let told: String =
            told.lines().filter(|line| !is_of_owner(line)).map(|line| format!("{line}\n")).collect();
        assert_eq!((ran.code, told, ran.stderr.as_str()), (Some(1), expected, ""), "{script}");
        let back = diff(b, a, &["--ignore-times", "--brief"]);
        assert_eq!(back.code, Some(1), "{script}");
        let json = diff(a, b, &["--ignore-times", "--json"]);
        assert!(json.code == Some(1) && json.stdout.starts_with(b"[\n{\"path\":\"/"), "{script}");
    }
    fs::copy(&image, &other).unwrap();
    extant_at(1_234_567_890, ["mkdir", &place(&other, "/dir/new")]).clean();
    let brief = diff(a, b, &["--brief"]);
    let expected = format!("/dir differs\nonly in {b}: /dir/new (directory)\n");
    assert_eq!((brief.code, String::from_utf8(brief.stdout).unwrap()), (Some(1), expected));
    // Flags, device numbers and projects, which the command cannot set.
    if have("debugfs") {
        fs::copy(&image, &other).unwrap();
        debugfs(&other, &["sif /dir- flags 0x80040".into()]);
        let ran = diff(a, b, &["--ignore-times"]);
        let told = String::from_utf8(ran.stdout).unwrap();
        assert!(told.starts_with("/dir-: flags: none -> nodump\n"), "{told}");
    }
}

#[test]
fn device_numbers_differ() {
    if !have("mke2fs") || !have("debugfs") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let images = [("a", "1 3"), ("b", "1 5")].map(|(name, numbers)| {
        let image = dir.path().join(name);
        mke2fs(&image, "8M", &["-t", "ext4"]);
        debugfs(&image, &[format!("mknod null c {numbers}")]);
        image
    });
    let ran = diff(images[0].to_str().unwrap(), images[1].to_str().unwrap(), &["--ignore-times"]);
    assert_eq!(
        (ran.code, String::from_utf8(ran.stdout).unwrap()),
        (Some(1), "/null: device: 1:3 -> 1:5\n".into())
    );
}

#[test]
fn holes_of_terabytes_are_skipped() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (dir.path().join("a.img"), dir.path().join("b.img"));
    extant(["mkfs", "-b", "4096", a.to_str().unwrap(), "64M"]).clean();
    let sparse = dir.path().join("sparse");
    let file = fs::File::create(&sparse).unwrap();
    file.write_all_at(b"front", 70_000).unwrap();
    file.set_len(4 << 40).unwrap();
    extant(["put", sparse.to_str().unwrap(), &place(&a, "/sparse")]).clean();
    fs::copy(&a, &b).unwrap();
    assert_eq!(diff(a.to_str().unwrap(), b.to_str().unwrap(), &[]).clean_text(), "");
    // Allocated zeros equal a hole.
    extant(["fallocate", "-o", "1T", "-l", "1M", &place(&b, "/sparse")]).clean();
    fsck(&b);
    assert_eq!(diff(place(&a, "/sparse"), place(&b, "/sparse"), &["--ignore-times"]).clean_text(), "");
    file.write_all_at(b"x", (3 << 40) + 12_345).unwrap();
    extant(["put", sparse.to_str().unwrap(), &place(&b, "/sparse")]).clean();
    let ran = diff(place(&a, "/sparse"), place(&b, "/sparse"), &["--ignore-times"]);
    let expected = format!("/: contents differ from byte {} on\n", (3_u64 << 40) + 12_345);
    assert_eq!((ran.code, String::from_utf8(ran.stdout).unwrap()), (Some(1), expected));
}

#[test]
fn failures_do_not_look_like_differences() {
    if !have("mke2fs") || !have("debugfs") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = build(dir.path(), &source(dir.path()));
    let a = image.to_str().unwrap();
    for (b, told) in [
        ("/nowhere.img", "No such file"),
        (&place(&image, "/none"), "no such file"),
        ("/dev/null", "neither a regular file nor a block device"),
    ] {
        let ran = diff(a, b, &[]);
        assert_eq!((ran.code, ran.stderr.contains(told)), (Some(2), true), "{b}: {}", ran.stderr);
    }
    let ran = extant(["diff", "/usr", "/usr"]);
    assert!(ran.code == Some(2) && ran.stderr.contains("one of the two must be an image"), "{}", ran.stderr);
    let damaged = dir.path().join("b.img");
    fs::copy(&image, &damaged).unwrap();
    debugfs(&damaged, &["sif /dir mode 0170755".into()]);
    let ran = diff(a, damaged.to_str().unwrap(), &["--ignore-times"]);
    assert_eq!(ran.code, Some(3), "{}", ran.stderr);
    assert!(ran.stderr.contains("i_mode"), "{}", ran.stderr);
}
