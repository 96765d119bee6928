//! A refused command leaves the image unchanged, byte for byte.

use crate::testbed::{extant, extant_with, fsck, have, mke2fs, noise, place, run};
use std::fs;

#[test]
fn what_is_refused_leaves_no_trace() {
    if !have("mke2fs") || !have("e2fsck") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    fs::create_dir_all(path("tree/d/f")).unwrap();
    fs::create_dir(path("empty")).unwrap();
    fs::write(path("host"), noise(1, 9000)).unwrap();
    fs::write(path("tree/f"), b"f").unwrap();
    fs::write(path("large value"), vec![b'v'; 70_000]).unwrap();
    // The volume has the directory, with other attributes; its new ones fit nowhere.
    let mut tar = tar::Builder::new(fs::File::create(path("dir.tar")).unwrap());
    tar.append_pax_extensions([
        ("SCHILY.xattr.user.a", &b"1"[..]),
        ("SCHILY.xattr.user.b", &[b'v'; 70_000]),
        ("SCHILY.xattr.user.c", b"3"),
    ])
    .unwrap();
    let mut header = tar::Header::new_ustar();
    header.set_entry_type(tar::EntryType::Directory);
    header.set_size(0);
    header.set_mode(0o700);
    header.set_uid(5);
    header.set_gid(6);
    tar.append_data(&mut header, "d", &b""[..]).unwrap();
    tar.finish().unwrap();
    for options in [
        &["-t", "ext2", "-b", "1024"][..],
        &["-t", "ext3", "-b", "1024"],
        &["-t", "ext4", "-b", "4096"],
        &["-t", "ext4", "-O", "quota,inline_data,ea_inode", "-b", "1024"],
    ] {
        let image = dir.path().join("image");
        mke2fs(&image, "8M", options);
        let at = |path: &str| place(&image, path);
        for (from, to) in [("host", "/f"), ("host", "/d/x")] {
            if to == "/d/x" {
                extant(["mkdir", &at("/d"), &at("/e")]).clean();
            }
            extant(["put", &path(from), &at(to)]).clean();
        }
        extant(["ln", "-s", "f", &at("/l")]).clean();
        extant(["mkdir", &at("/d/host")]).clean();
        fsck(&image);
        let long = "n".repeat(256);
        let (host, tree, empty) = (path("host"), path("tree"), path("empty"));
        let target = "t".repeat(5000);
        let commands: &[&[&str]] = &[
            &["put", &path("none"), &at("/new")],
            &["put", &host, &at("/none/new")],
            &["put", &host, &at("/f/new")],
            &["put", &host, &at("/d")],
            &["put", &host, &at(&format!("/{long}"))],
            &["put", &tree, &at("/new")],
            &["put", "-r", &tree, &at("/f")],
            &["mkdir", &at("/d")],
            &["mkdir", &at("/f/new")],
            &["mkdir", &at("/none/new")],
            &["mkdir", &at(&format!("/{long}"))],
            &["rm", &at("/none")],
            &["rm", &at("/d")],
            &["rm", "-r", &at("/")],
            &["mv", &at("/none"), &at("/new")],
            &["mv", &at("/d"), &at("/d/host/new")],
            &["mv", "-n", &at("/f"), &at("/l")],
            &["mv", &at("/f"), &at("/f")],
            &["mv", &at("/f"), &at("/none/new")],
            &["ln", &at("/none"), &at("/new")],
            &["ln", &at("/f"), &at("/l")],
            &["ln", &at("/d"), &at("/new")],
            &["ln", "-s", "t", &at("/f")],
            &["ln", "-sf", "t", &at("/d")],
            &["ln", "-s", &target, &at("/new")],
            &["ln", "-sf", &target, &at("/f")],
            &["ln", "-s", "t", &at("/none/new")],
            &["chmod", "600", &at("/none")],
            &["chown", "1:1", &at("/none")],
            &["xattr", "-s", "user.a", &at("/f")],
            &["xattr", "-s", "user.a=1", &at("/none")],
            &["xattr", "-s", "user.a=1", &at("/l")],
            &["xattr", "-s", "other.a=1", &at("/f")],
            &["xattr", "-s", "user.a=1", "-s", "user.b=0x0", &at("/f")],
            &["xattr", "-s", "user.a=1", "-x", "user.none", &at("/f")],
            &["xattr", "-s", "user.a=1", "-s", "security.capability=1", &at("/f")],
            &["truncate", "-s", "1", &at("/d")],
            &["truncate", "-s", "1", &at("/none/new")],
            &["truncate", "-s", "1000T", &at("/f")],
            &["truncate", "-s", "1000T", &at("/new")],
            &["truncate", "-s", "1", &at(&format!("/{long}"))],
            &["fallocate", "-l", "1K", &at("/d")],
            &["fallocate", "-l", "1000T", &at("/new")],
            &["fallocate", "-l", "100M", &at("/new")],
            &["fallocate", "-l", "1K", &at(&format!("/{long}"))],
            &["copy", &at("/f"), &at(&format!("/{long}"))],
            &["copy", &at("/none"), &at("/new")],
            &["copy", &at("/d"), &at("/new")],
            &["copy", &at("/f"), &at("/f")],
            &["copy", &at("/f"), &at("/e")],
            &["copy", &at("/f"), &at("/none/new")],
            &["copy", &at("/f"), &at("/f/new")],
            &["defrag", &at("/none")],
            &["defrag", &at("/d")],
            &["build", "--into", &at("/f"), &empty],
            &["build", "--into", &at("/"), &path("none")],
            &["build", "--into", &at("/"), &path("dir.tar")],
        ];
        let before = fs::read(&image).unwrap();
        for command in commands {
            let ran = extant(*command);
            let is_done = ran.code == Some(0);
            // Some of them do what they say.
            let does = ["mv -n", "copy"].iter().any(|does| command.join(" ").starts_with(does));
            assert!(!is_done || does, "{options:?} {command:?}");
            if is_done {
                fs::write(&image, &before).unwrap();
            }
            assert!(fs::read(&image).unwrap() == before, "{options:?} {command:?}: {}", ran.stderr);
        }
        // Pointers map no preallocated blocks.
        if !options.contains(&"ext4") {
            let ran = extant(["fallocate", "-l", "1K", &at("/new")]);
            assert!(
                ran.code != Some(0) && fs::read(&image).unwrap() == before,
                "{options:?}: {}",
                ran.stderr
            );
        }
        let ran = extant_with(b"truncate -s 1000T /new\n", ["edit".as_ref(), image.as_os_str()]);
        assert!(ran.code == Some(1) && fs::read(&image).unwrap() == before, "{options:?}: {}", ran.stderr);
        let ran = extant_with(b"rm /none\nrm /f\n", ["edit".as_ref(), image.as_os_str()]);
        assert!(ran.code == Some(1) && fs::read(&image).unwrap() == before, "{options:?}: {}", ran.stderr);
        // A command with nothing to do changes nothing either.
        extant_with(b"rm -f /none\n", ["edit".as_ref(), image.as_os_str()]).clean();
        assert!(fs::read(&image).unwrap() == before, "{options:?}");
        extant(["mkdir", &at("/new")]).clean();
        fsck(&image);
        assert!(fs::read(&image).unwrap() != before);
    }
}

#[test]
fn attributes_of_one_command_are_set_together_or_not_at_all() {
    if !have("mke2fs") || !have("e2fsck") || !have("debugfs") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    for options in [
        &["-t", "ext4", "-b", "1024"][..],
        &["-t", "ext2", "-b", "1024", "-I", "128"],
        &["-t", "ext4", "-b", "1024", "-O", "ea_inode,quota"],
    ] {
        mke2fs(&image, "8M", options);
        let at = |path: &str| place(&image, path);
        extant(["truncate", "-s", "0", &at("/f"), &at("/g")]).clean();
        let names = |path: &str| run("debugfs", &["-R", &format!("ea_list {path}"), image.to_str().unwrap()]);
        let long = |name: &str, length: usize| format!("user.{name}={}", "v".repeat(length));
        // The second value fits nowhere, or the second name is refused.
        for second in [long("b", 70_000), "other.b=1".into(), "security.capability=x".into()] {
            let ran = extant(["xattr", "-s", "user.a=1", "-s", &second, "-s", "user.c=3", &at("/f")]);
            assert_eq!(ran.code, Some(1), "{options:?}: {}", ran.stderr);
            assert!(!names("/f").contains("user."), "{options:?} {second}");
        }
        let kept = [long("in", 20), long("block", 400), "security.x=1".into(), long("more", 200)];
        let mut args = vec!["xattr"];
        args.extend(kept.iter().flat_map(|set| ["-s", set.as_str()]));
        let (f, g) = (at("/f"), at("/g"));
        args.extend([f.as_str(), g.as_str()]);
        extant(args).clean();
        fsck(&image);
        for path in ["/f", "/g"] {
            let listed = names(path);
            for name in ["user.in (20)", "user.block (400)", "security.x (1)", "user.more (200)"] {
                assert!(listed.contains(name), "{options:?} {name}: {listed}");
            }
        }
        // What one change gives back, the next may use.
        extant(["xattr", "-x", "user.block", "-x", "user.more", "-s", &long("new", 700), &at("/f")]).clean();
        fsck(&image);
        assert!(names("/f").contains("user.new (700)") && !names("/f").contains("user.more"));
        let ran = extant(["xattr", "-s", "user.z=1", "-x", "user.none", &at("/f")]);
        assert!(ran.code == Some(1) && ran.stderr.contains("user.none"), "{}", ran.stderr);
        assert!(!names("/f").contains("user.z"));
        if options.concat().contains("ea_inode") {
            let (one, two) = (long("one", 3000), long("two", 9000));
            extant(["xattr", "-s", &one, "-s", &two, "-s", "user.three=3", &at("/g")]).clean();
            fsck(&image);
            assert!(names("/g").contains("user.two (9000)") && names("/g").contains("user.three (1)"));
            extant(["xattr", "-x", "user.one", "-x", "user.two", &at("/g")]).clean();
            fsck(&image);
        }
    }
}
