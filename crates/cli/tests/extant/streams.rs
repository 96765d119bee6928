//! Streams in and out, and files that are something else than a volume.

use crate::testbed::{extant, extant_with, fsck, have, mke2fs, mounted, noise, place, run};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::process::{Command, Stdio};

#[test]
fn a_stream_becomes_a_file_with_the_attributes_that_are_given() {
    if !have("mke2fs") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("v.img");
    mke2fs(&image, "16M", &["-t", "ext4"]);
    let bytes = noise(3, (2 << 20) + 77);
    let given = ["--mode", "4640", "--owner", "1000:33", "--mtime", "1234567890"];
    let put = |source: &str, name: &str| {
        let to = place(&image, name);
        extant_with(&bytes, [&["put"][..], &given, &[source, &to]].concat())
    };
    put("-", "/piped").clean();
    put("/dev/stdin", "/from-stdin").clean();
    fsck(&image);
    for name in ["/piped", "/from-stdin"] {
        assert_eq!(extant(["cp", &place(&image, name), "-"]).clean(), bytes);
    }
    if let Some(mount) = mounted(&image, "ro") {
        let there = fs::metadata(mount.path().join("piped")).unwrap();
        let attributes = (there.mode() & 0o7777, there.uid(), there.gid(), there.mtime());
        assert_eq!(attributes, (0o4640, 1000, 33, 1_234_567_890));
        assert!(there.blocks() * 512 >= there.len(), "nothing became a hole");
    }
    // A process substitution of the shell.
    let script = "\"$0\" --quiet put <(printf substituted) \"$1\"";
    let mut shell = Command::new("bash");
    shell.args(["-c", script, env!("CARGO_BIN_EXE_extant"), &place(&image, "/substituted")]);
    if have("bash") {
        assert!(shell.stdin(Stdio::null()).status().unwrap().success());
        assert_eq!(extant(["cat", &place(&image, "/substituted")]).clean(), b"substituted");
    }
    // Over a file: the new contents, as a whole.
    extant_with(b"short", ["put", "-", &place(&image, "/piped")]).clean();
    assert_eq!(extant(["cat", &place(&image, "/piped")]).clean(), b"short");
    extant_with(b"", ["put", "-", &place(&image, "/empty")]).clean();
    assert_eq!(extant(["cat", &place(&image, "/empty")]).clean(), b"");

    let refused = put("-", "/");
    assert_eq!(refused.code, Some(2));
    assert!(refused.stderr.contains("name the file that standard input becomes"), "{}", refused.stderr);
    let refused = extant_with(b"put - /x\n", ["edit", image.to_str().unwrap()]);
    assert_eq!(refused.code, Some(2), "{}", refused.stderr);
    let refused = extant(["cp", image.to_str().unwrap(), "-"]);
    assert_eq!(refused.code, Some(2));
    assert!(refused.stderr.contains("extant export"), "{}", refused.stderr);
    fsck(&image);
}

#[test]
fn files_that_are_put_may_get_other_attributes() {
    if !have("mke2fs") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("v.img");
    mke2fs(&image, "16M", &["-t", "ext4"]);
    let source = dir.path().join("tree");
    fs::create_dir_all(source.join("sub")).unwrap();
    fs::write(source.join("sub/tool"), b"#!/bin/sh\n").unwrap();
    let args = ["put", "-r", "--mode", "755", "--owner", "7:8", "--mtime", "-5", source.to_str().unwrap()];
    extant([&args[..], &[&place(&image, "/")]].concat()).clean();
    fsck(&image);
    let Some(mount) = mounted(&image, "ro") else { return };
    let (sub, tool) = (mount.path().join("tree/sub"), mount.path().join("tree/sub/tool"));
    let of = |path| {
        let there = fs::metadata(path).unwrap();
        (there.mode() & 0o7777, there.uid(), there.gid(), there.mtime())
    };
    let mode = fs::metadata(source.join("sub")).unwrap().mode() & 0o7777;
    assert_eq!(of(&sub), (mode, 7, 8, -5), "directories keep their permissions");
    assert_eq!(of(&tool), (0o755, 7, 8, -5));
}

#[test]
fn other_formats_are_named_and_are_no_damage() {
    if !have("mke2fs") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let volume = path("v.img");
    mke2fs(&volume, "4M", &["-t", "ext4"]);
    let volume = fs::read(&volume).unwrap();
    let mut mbr = vec![0; 1 << 20];
    mbr[446..462].copy_from_slice(&[0, 0, 0, 0, 0x83, 0, 0, 0, 0, 8, 0, 0, 0, 0x20, 0, 0]);
    mbr[510..512].copy_from_slice(b"\x55\xaa");
    fs::write(path("mbr"), [&mbr, &volume[..]].concat()).unwrap();
    let mut gpt = mbr.clone();
    gpt[450] = 0xee;
    gpt[512..520].copy_from_slice(b"EFI PART");
    fs::write(path("gpt"), [&gpt, &volume[..]].concat()).unwrap();
    fs::write(path("qcow2"), [&b"QFI\xfb\0\0\0\x03"[..], &[0; 70_000]].concat()).unwrap();
    fs::write(path("notes"), "not a volume at all\n".repeat(200)).unwrap();
    fs::write(path("short"), "a line\n").unwrap();
    fs::write(path("tool"), fs::read(env!("CARGO_BIN_EXE_extant")).unwrap()).unwrap();
    let mut kinds = vec![
        ("mbr", "a disk with an MBR partition table", "add --partition 1"),
        // Its header is damaged, so nothing more is known of it.
        ("gpt", "a disk with a GPT partition table", "--partition names one"),
        ("qcow2", "a qcow2 image", "qemu-img convert"),
        ("notes", "a text file", ""),
        ("short", "a text file", ""),
        ("tool", "an ELF program", ""),
    ];
    for (tool, args, name, kind) in [
        ("gzip", &["-k", "-S", ".gzip"][..], "v.img.gzip", "a gzip-compressed file"),
        ("xz", &["-k"], "v.img.xz", "an xz-compressed file"),
        ("zstd", &["-q"], "v.img.zst", "a zstd-compressed file"),
        ("tar", &["-cf", path("v.tar").to_str().unwrap()], "v.tar", "a tar archive"),
    ] {
        if have(tool) {
            run(tool, &[args, &[path("v.img").to_str().unwrap()]].concat());
            kinds.push((name, kind, if kind.contains("tar") { "extant build" } else { "decompress it" }));
        }
    }
    for (name, kind, advice) in kinds {
        let image = path(name);
        let before = fs::read(&image).unwrap();
        let shown = image.to_str().unwrap();
        for args in [
            &["ls", shown][..],
            &["info", shown],
            &["mkdir", &place(&image, "/d")],
            &["recover", shown],
            &["shrink", shown],
            &["build", "--into", shown, path("notes").parent().unwrap().to_str().unwrap()],
        ] {
            if name == "mbr" && args[0] == "info" {
                continue; // lists the partitions
            }
            let ran = extant(args);
            assert_eq!(ran.code, Some(1), "{args:?}: {}", ran.stderr);
            let named = ran.stderr.contains(kind) && ran.stderr.contains(advice);
            assert!(named && !ran.stderr.contains("damaged"), "{args:?}: {}", ran.stderr);
        }
        assert!(fs::read(&image).unwrap() == before, "{name} was changed");
    }
}

#[test]
fn an_image_is_not_named_for_a_format_that_it_does_not_have() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["v.qcow2", "V.VMDK", "v.img.gz"] {
        let output = dir.path().join(name);
        let output = output.to_str().unwrap();
        for args in [&["mkfs", output, "8M"][..], &["build", dir.path().to_str().unwrap(), "-o", output]] {
            let ran = extant(args);
            assert_eq!(ran.code, Some(2), "{args:?}: {}", ran.stderr);
            assert!(ran.stderr.contains("written raw"), "{}", ran.stderr);
        }
    }
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn access_lists_that_name_owners_get_their_numbers() {
    if !["tar", "setfacl", "debugfs"].into_iter().all(have) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("source");
    fs::create_dir_all(source.join("etc")).unwrap();
    fs::write(source.join("log"), b"x").unwrap();
    let acl = ["-m", "g:daemon:rx,u:daemon:r", source.join("log").to_str().unwrap()].map(str::to_owned);
    run("setfacl", &acl.each_ref().map(|arg| arg.as_str()));
    let (tar, image) = (dir.path().join("a.tar"), dir.path().join("a.img"));
    let packed = |args: &[&str]| {
        let from = ["-C", source.to_str().unwrap(), "-cf", tar.to_str().unwrap(), "."];
        run("tar", &[args, &from].concat());
        let ran = extant(["build", tar.to_str().unwrap(), "-o", image.to_str().unwrap()]);
        let list = match ran.code {
            Some(0) => {
                run("debugfs", &["-R", "ea_get -x /log system.posix_acl_access", image.to_str().unwrap()])
            }
            _ => String::new(),
        };
        // The user's entry, then the group's: tag, permissions, number.
        let entry = |tag: &str| {
            let bytes = list.lines().find_map(|line| line.split(" = ").nth(1))?.split_whitespace();
            let bytes: Vec<u8> = bytes.map(|hex| u8::from_str_radix(hex, 16).unwrap()).collect();
            let found = bytes[4..].chunks(8).find(|entry| format!("{:02x}", entry[0]) == tag)?;
            Some(u32::from_le_bytes(found[4..8].try_into().unwrap()))
        };
        (ran, entry("02"), entry("08"))
    };
    // The archive's own files say who is who, whatever this host says.
    fs::write(source.join("etc/group"), "root:x:0:\ndaemon:x:4321:\n").unwrap();
    fs::write(source.join("etc/passwd"), "daemon:x:1234:1234::/:/bin/false\n").unwrap();
    let (ran, user, group) = packed(&["--acls", "--numeric-owner"]);
    assert_eq!((ran.code, user, group), (Some(0), Some(1234), Some(4321)), "{}", ran.stderr);
    fsck(&image);
    // A list in numbers in the same header counts.
    let (ran, user, group) = packed(&["--acls", "--xattrs", "--xattrs-include=*", "--numeric-owner"]);
    assert_eq!((ran.code, user, group), (Some(0), Some(1), Some(1)), "{}", ran.stderr);
    // Nothing in the archive tells: this host's numbers, where it knows the name.
    fs::remove_dir_all(source.join("etc")).unwrap();
    let (ran, user, group) = packed(&["--acls", "--numeric-owner"]);
    assert_eq!((ran.code, user, group), (Some(0), Some(1), Some(1)), "{}", ran.stderr);
    let loud = Command::new(env!("CARGO_BIN_EXE_extant"))
        .args(["build", tar.to_str().unwrap(), "-o", image.to_str().unwrap()])
        .output()
        .unwrap();
    let told = String::from_utf8(loud.stderr).unwrap();
    assert!(told.contains("user daemon = 1") && told.contains("group daemon = 1"), "{told}");
    // And a name that nobody knows is refused, with advice.
    let mut bytes = fs::read(&tar).unwrap();
    let at = bytes.windows(12).position(|bytes| bytes == b"group:daemon").unwrap();
    bytes[at + 6..at + 12].copy_from_slice(b"nobdy7");
    fs::write(&tar, bytes).unwrap();
    let ran = extant(["build", tar.to_str().unwrap(), "-o", image.to_str().unwrap()]);
    assert_eq!(ran.code, Some(1));
    assert!(ran.stderr.contains("/log") && ran.stderr.contains("nobdy7"), "{}", ran.stderr);
    assert!(ran.stderr.contains("--no-acls"), "{}", ran.stderr);
}
