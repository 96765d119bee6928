//! Exit codes, pipes, and output formats.

use crate::testbed::{assert_same, extant, have, is_root, look, mke2fs, noise, place, run};
use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

fn volume(dir: &Path) -> Option<PathBuf> {
    if !have("mke2fs") {
        return None;
    }
    let source = dir.join("source");
    fs::create_dir_all(source.join("sub/.hidden")).unwrap();
    fs::write(source.join("big"), noise(1, 4 << 20)).unwrap();
    fs::write(source.join("sub/small"), b"small").unwrap();
    let image = dir.join("with:colon.img");
    mke2fs(&image, "32M", &["-t", "ext4", "-L", "test label", "-d", source.to_str().unwrap()]);
    Some(image)
}

#[test]
fn exit_codes_say_what_happened() {
    let dir = tempfile::tempdir().unwrap();
    let Some(image) = volume(dir.path()) else { return };
    let at = |path: &str| place(&image, path);
    assert_eq!(extant(["ls", image.to_str().unwrap()]).code, Some(0));
    for (args, told) in [
        (["cat", &at("/none")], "/none: no such file or directory"),
        (["cat", &at("/sub")], "/sub: is a directory"),
        (["cat", &at("/big/x")], "/big/x: not a directory"),
        (["cat", "/nonexistent.img:/x"], "/nonexistent.img: No such file or directory"),
    ] {
        let ran = extant(args);
        assert_eq!(ran.code, Some(1), "{args:?}");
        assert!(ran.stderr.contains(told), "{}", ran.stderr);
    }
    assert_eq!(extant(["cat"]).code, Some(2));
    assert_eq!(extant(["mkfs", "x.img", "lots"]).code, Some(2));
    let mislabelled = dir.path().join("out.tar.bz2");
    assert_eq!(extant(["export", &at("/"), "-o", mislabelled.to_str().unwrap()]).code, Some(2));
    assert!(!mislabelled.exists());

    let junk = dir.path().join("junk");
    fs::write(&junk, vec![0; 1 << 20]).unwrap();
    let ran = extant(["tree", junk.to_str().unwrap()]);
    assert_eq!(ran.code, Some(3));
    assert!(ran.stderr.contains("not an ext2, ext3 or ext4 volume"), "{}", ran.stderr);
    assert!(ran.stderr.ends_with("superblock: magic is 0x0, expected 0xef53\n"), "{}", ran.stderr);

    // An unknown INCOMPAT feature; without the checksum, which would be reported first.
    let mut bytes = fs::read(&image).unwrap();
    bytes[1024 + 0x63] |= 0x40;
    bytes[1024 + 0x65] &= !0x04;
    fs::write(&junk, bytes).unwrap();
    let ran = extant(["tree", junk.to_str().unwrap()]);
    assert_eq!(ran.code, Some(4), "{}", ran.stderr);
    assert!(ran.stderr.contains("not supported: FEATURE_0x40000000"), "{}", ran.stderr);
    let ran = extant(["info", junk.to_str().unwrap()]);
    assert_eq!(ran.code, Some(4));
    assert!(String::from_utf8(ran.stdout).unwrap().contains("test label"), "shown all the same");
}

#[test]
fn a_reader_that_goes_away_ends_the_command_without_a_word() {
    let dir = tempfile::tempdir().unwrap();
    let Some(image) = volume(dir.path()) else { return };
    for args in [
        vec!["cat".into(), place(&image, "/big")],
        vec!["export".into(), place(&image, "/"), "-o".into(), "-".into()],
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_extant"));
        let mut child = command.args(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        let ended = child.wait_with_output().unwrap();
        assert_eq!(ended.status.code(), Some(141));
        assert!(ended.stderr.is_empty(), "{}", String::from_utf8_lossy(&ended.stderr));
    }
}

#[test]
fn answers_for_programs_are_json() {
    let dir = tempfile::tempdir().unwrap();
    let Some(image) = volume(dir.path()) else { return };
    let image_arg = image.to_str().unwrap();
    let json =
        |args: &[&str]| -> serde_json::Value { serde_json::from_slice(&extant(args).clean()).unwrap() };
    let info = json(&["info", "--json", "-v", image_arg]);
    assert_eq!((&info["label"], &info["journal"]), (&"test label".into(), &"clean".into()));
    assert_eq!(info["group_descriptors"].as_array().unwrap().len() as u64, info["groups"].as_u64().unwrap());
    let listed = json(&["ls", "--json", &place(&image, "/sub"), &place(&image, "/big")]);
    assert_eq!(listed[0]["path"], "small", "without names that begin with a dot");
    assert_eq!(listed[1]["path"], "/big");
    assert_eq!(listed[1]["size"], 4 << 20);
    let tree = json(&["tree", "--json", image_arg]);
    let sub = tree["contents"].as_array().unwrap().iter().find(|entry| entry["name"] == "sub").unwrap();
    assert_eq!(sub["contents"][0]["kind"], "directory");
    let file = json(&["stat", "--json", &place(&image, "/big")]);
    assert_eq!(file["runs"][0]["logical"], 0);
    assert_eq!(json(&["recover", "--json", image_arg])["was_clean"], true);
}

#[test]
fn copies_go_where_cp_would_put_them() {
    let dir = tempfile::tempdir().unwrap();
    let Some(image) = volume(dir.path()) else { return };
    let cp = |from: &str, to: &Path| extant(["cp".as_ref(), place(&image, from).as_ref(), to.as_os_str()]);
    let to = dir.path().join("there");
    fs::create_dir(&to).unwrap();
    cp("/sub", &to).clean();
    assert_eq!(fs::read(to.join("sub/small")).unwrap(), b"small");
    cp("/sub", &to.join("renamed")).clean();
    assert!(to.join("renamed/.hidden").is_dir());
    cp("/sub/small", &to.join("sub/small")).clean();
    cp("/", &to).clean();
    assert_eq!(fs::read(to.join("big")).unwrap(), noise(1, 4 << 20));
    assert_eq!(cp("/sub", &to.join("big")).code, Some(1), "a file is in the way");
    assert_eq!(cp("/", &to.join("big")).code, Some(1));
}

#[test]
fn devices_and_pipes_are_written_into() {
    let dir = tempfile::tempdir().unwrap();
    let Some(image) = volume(dir.path()) else { return };
    let cp = |from: &str, to: &Path| extant(["cp".as_ref(), place(&image, from).as_ref(), to.as_os_str()]);
    let pipe = dir.path().join("pipe");
    run("mkfifo", &[pipe.to_str().unwrap()]);
    let through = dir.path().join("through");
    let mut reader = Command::new("cp").args([&pipe, &through]).spawn().unwrap();
    cp("/big", &pipe).clean();
    assert!(reader.wait().unwrap().success());
    assert!(fs::read(through).unwrap() == noise(1, 4 << 20));
    let link = dir.path().join("link");
    std::os::unix::fs::symlink(&pipe, &link).unwrap();
    assert_eq!(cp("/sub", &pipe).code, Some(1), "a directory goes into no pipe");
    assert_eq!(cp("/sub", &link).code, Some(1));
    assert!(pipe.symlink_metadata().unwrap().file_type().is_fifo());

    // Below a directory they stay as they are.
    fs::create_dir(dir.path().join("sub")).unwrap();
    run("mkfifo", &[dir.path().join("sub/small").to_str().unwrap()]);
    let ran = cp("/sub", dir.path());
    assert_eq!(ran.code, Some(1));
    assert!(ran.stderr.contains("/sub/small cannot be created: a named pipe"), "{}", ran.stderr);

    if !is_root() {
        return;
    }
    let null = dir.path().join("null");
    run("mknod", &[null.to_str().unwrap(), "c", "1", "3"]);
    cp("/sub/small", &null).clean();
    assert!(null.symlink_metadata().unwrap().file_type().is_char_device());
}

#[test]
fn mistakes_are_answered_with_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let Some(image) = volume(dir.path()) else { return };
    let (image, at) = (image.to_str().unwrap(), dir.path().to_str().unwrap());
    let new = format!("{at}/new.img");
    for (code, args, told) in [
        (
            1,
            &["ls", &format!("{image}:sub")][..],
            format!("written with a colon and a slash: {image}:/sub\n"),
        ),
        (1, &["tree", &format!("{image}:/big")], "/big: not a directory".into()),
        (2, &["build", at, "-o", "-"], "cannot be written to standard output".into()),
        (2, &["mkfs", "-", "8M"], "write ./-".into()),
        (1, &["mkfs", &new, "10K"], "ask for that size or more\n".into()),
        (1, &["build", at, "-o", &new, "--size", "1M"], "or for --size exact\n".into()),
        (1, &["build", image, "-o", &new], "this is no tar archive".into()),
        (1, &["cp", &format!("{image}:/big"), &format!("{at}/none/big")], format!("{at}/none: No such file")),
        (1, &["export", image, "-o", &format!("{at}/none/a.tar")], format!("{at}/none: No such file")),
    ] {
        let ran = extant(args);
        assert_eq!(ran.code, Some(code), "{args:?}: {}", ran.stderr);
        assert!(ran.stderr.contains(&told), "{args:?}: {}", ran.stderr);
    }
    assert!(!Path::new("-").exists() && !Path::new(&new).exists());

    let junk = format!("{at}/junk");
    fs::write(&junk, vec![0; 1 << 20]).unwrap();
    let refused = extant(["recover", &junk]);
    assert_eq!(refused.code, Some(3));
    assert!(refused.stderr.contains("`extant recover --superblock auto`"), "{}", refused.stderr);

    // Always an array, with whatever could be read.
    for places in [&[junk.as_str()][..], &[&junk, image], &[&format!("{at}/none"), image]] {
        let ran = extant([&["ls", "--json"], places].concat());
        assert_ne!(ran.code, Some(0));
        let listed: serde_json::Value = serde_json::from_slice(&ran.stdout).unwrap();
        assert_eq!(listed.as_array().unwrap().is_empty(), places.len() == 1);
    }
}

#[test]
fn manuals_and_completions_come_from_the_arguments() {
    let dir = tempfile::tempdir().unwrap();
    extant(["man".as_ref(), dir.path().as_os_str()]).clean();
    let manual = fs::read_to_string(dir.path().join("extant.1")).unwrap();
    assert!(manual.contains("Exit codes") || manual.contains("exit codes"), "{manual}");
    assert!(dir.path().join("extant-export.1").exists());
    for shell in ["bash", "zsh", "fish"] {
        assert!(extant(["completions", shell]).clean_text().contains("recover"));
    }
}

#[test]
fn built_volumes_are_clean_and_read_back_equal() {
    if !have("e2fsck") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("source");
    fs::create_dir_all(source.join("sub/empty")).unwrap();
    fs::write(source.join("big"), noise(5, 5 << 20)).unwrap();
    fs::write(source.join("sub/small"), b"small").unwrap();
    fs::hard_link(source.join("big"), source.join("sub/again")).unwrap();
    let (image, copy) = (dir.path().join("image"), dir.path().join("copy"));
    let built = extant([
        "build".as_ref(),
        source.as_os_str(),
        "-o".as_ref(),
        image.as_os_str(),
        "--json".as_ref(),
        "--label".as_ref(),
        "built".as_ref(),
    ]);
    let report: serde_json::Value = serde_json::from_slice(&built.clean()).unwrap();
    assert_eq!(report["image_bytes"], image.metadata().unwrap().len());
    run("e2fsck", &["-fn", image.to_str().unwrap()]);
    extant(["cp".as_ref(), place(&image, "/").as_ref(), copy.as_os_str()]).clean();
    assert_same("built", &look(&copy), &look(&source));

    extant(["mkfs".as_ref(), image.as_os_str(), "32M".as_ref(), "-t".as_ref(), "ext2".as_ref()]).clean();
    run("e2fsck", &["-fn", image.to_str().unwrap()]);
    assert_eq!(image.metadata().unwrap().len(), 32 << 20);
}

#[test]
fn help_that_cannot_be_printed_is_a_failure() {
    for args in [&["--help"][..], &["--version"], &["help", "lab"], &["mkfs", "--help"]] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_extant"));
        let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let ran = command.args(args).stdout(full).output().unwrap();
        assert_eq!(ran.status.code(), Some(1), "{args:?}");
        assert!(String::from_utf8(ran.stderr).unwrap().contains("No space left"), "{args:?}");
    }
    assert!(
        extant(["mkfs", "--help"]).clean_text().contains("1024 where mkfs makes a volume of less than 512M")
    );
}

#[test]
fn times_before_1970_are_no_source_date_epoch() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    let ran = crate::testbed::extant_at(-5, ["mkfs", image.to_str().unwrap(), "8M"]);
    assert_eq!((ran.code, image.exists()), (Some(2), false), "{}", ran.stderr);
}

#[test]
fn long_lines_are_not_echoed_whole() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    extant(["mkfs", image.to_str().unwrap(), "8M"]).clean();
    for line in [
        "x".repeat(5 << 20),
        format!("ln -s {} /link", "y".repeat(100_000)),
        format!("rm /{}", "z".repeat(9000)),
    ] {
        let ran = crate::testbed::extant_with(line.as_bytes(), ["edit".as_ref(), image.as_os_str()]);
        assert!(ran.code > Some(0) && ran.stderr.len() < 2000, "{} bytes", ran.stderr.len());
    }
}

#[test]
fn an_image_below_a_name_that_ends_in_a_colon_is_hinted_at() {
    let dir = tempfile::tempdir().unwrap();
    let colon = dir.path().join("o:");
    fs::create_dir(&colon).unwrap();
    let image = colon.join("i.img");
    extant(["mkfs", &format!("{}", image.display()), "8M"]).clean();
    let whole = image.display().to_string();
    assert_eq!(extant(["ls", &format!("{whole}:/")]).clean_text(), "lost+found\n");
    for args in [&["ls", &whole][..], &["mkdir", &whole], &["info", &format!("{whole}:/x")]] {
        let ran = extant(args);
        let hint = format!("the image {whole} is named {whole}:/");
        let is_told = ran.stderr.contains(&hint) || args[0] == "info";
        assert!(ran.code == Some(1) && is_told, "{args:?}: {:?} {}", ran.code, ran.stderr);
    }
}

#[test]
fn an_external_journal_is_called_one() {
    if !have("mke2fs") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let journal = dir.path().join("journal");
    mke2fs(&journal, "8M", &["-O", "journal_dev", "-b", "4096"]);
    let at = journal.to_str().unwrap();
    for args in [&["ls", at][..], &["info", at], &["recover", at], &["mkdir", &format!("{at}:/x")]] {
        let ran = extant(args);
        assert_eq!(ran.code, Some(4), "{args:?}: {}", ran.stderr);
        assert!(ran.stderr.contains("this is an external journal, not a volume"), "{args:?}: {}", ran.stderr);
    }
}

/// `mkfs` and `build` do not overwrite a file by mistake, such as a copied disk.
#[test]
fn a_file_that_holds_something_is_not_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    let (text, source) = (image.to_str().unwrap(), dir.path().join("source"));
    fs::create_dir(&source).unwrap();
    let build = ["build", source.to_str().unwrap(), "-o", text];
    let contents = |at: usize, signature: &[u8]| {
        let mut bytes = vec![0; 1 << 20];
        bytes[at..at + signature.len()].copy_from_slice(signature);
        bytes
    };
    for (at, signature, name) in [
        (512, &b"EFI PART"[..], "a GPT partition table"),
        (3, b"-FVE-FS-", "a BitLocker volume"),
        (0x4014, b"\0\0\0\x07version\0", "a member of a ZFS pool"),
        (4120, b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81", "a bcache device"),
        ((1 << 20) - 4096 + 60, b"\x83\x74\x02\x6d", "a DRBD device"),
    ] {
        let bytes = contents(at, signature);
        fs::write(&image, &bytes).unwrap();
        for command in [&["mkfs", text, "2M"][..], &["mkfs", text], &build] {
            let ran = extant(command);
            let told = format!("holds {name}; --force writes over it");
            assert!(ran.code == Some(1) && ran.stderr.contains(&told), "{command:?}: {}", ran.stderr);
            assert!(fs::read(&image).unwrap() == bytes, "{command:?}");
        }
    }
    extant([&build[..], &["--force"]].concat()).clean();
    // A volume is made again; in place, it is not emptied by mistake.
    extant(build).clean();
    let ran = extant(["mkfs", text]);
    assert!(ran.code == Some(1) && ran.stderr.contains("holds an ext4 volume; --force"), "{}", ran.stderr);
    extant(["mkfs", "-F", text]).clean();
    extant(["mkfs", text, "2M"]).clean();
    assert_eq!(fs::metadata(&image).unwrap().len(), 2 << 20);
    // Nothing known: an empty file, or one of zeros.
    for bytes in [vec![], vec![0; 4096]] {
        fs::write(&image, bytes).unwrap();
        extant(["mkfs", text, "2M"]).clean();
        fs::write(&image, vec![0; 4096]).unwrap();
        extant(build).clean();
    }
}

/// Options that users know from other tools.
#[test]
fn options_of_other_tools_mean_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("source");
    fs::create_dir_all(source.join("d")).unwrap();
    for (name, bytes) in [("a", 5), ("b", 3), ("d/c", 1)] {
        fs::write(source.join(name), vec![0; bytes]).unwrap();
    }
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (image, out) = (at("image"), at("out"));
    extant(["build", source.to_str().unwrap(), "--size", "+50%", "-o", &image]).clean();
    let top = format!("{image}:/");
    let ls = |options: &str| {
        let text = extant(["ls", options, &top]).clean_text();
        text.lines().map(|line| line.rsplit(' ').next().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(ls("-ln"), ["a", "b", "d", "lost+found"]);
    assert_eq!(ls("-lAr"), ["lost+found", "d", "b", "a"]);
    assert_eq!(ls("-tSr"), ["b", "a", "d", "lost+found"]);
    let find = |args: &[&str]| extant([&["find", &top][..], args].concat()).clean_text();
    assert_eq!(find(&["-type", "f", "-name", "[bc]", "-print"]), "/b\n/d/c\n");
    assert_eq!(find(&["-maxdepth", "1", "-name", "?", "-print0"]), "/\0/a\0/b\0/d\0");
    for option in ["-r", "-a", "-R", "-rp"] {
        extant(["cp", option, &format!("{image}:/d"), &out]).clean();
        assert_eq!(fs::read(format!("{out}/c")).unwrap(), [0]);
        fs::remove_dir_all(&out).unwrap();
    }
    extant(["put", "-a", source.join("d").to_str().unwrap(), &top]).clean();
    for (to, told) in [
        (out.as_str(), format!("out of one: extant cp {image}:/a {out}")),
        (&format!("{image}:/x"), format!("within an image: extant copy {image}:/a {image}:/x")),
    ] {
        let ran = extant(["put", &format!("{image}:/a"), to]);
        assert!(ran.code == Some(2) && ran.stderr.contains(&told), "{}", ran.stderr);
    }
}

/// Commands of other tools and typing errors get a hint.
#[test]
fn slips_are_answered_with_what_there_is() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (image, source) = (at("image"), at("source"));
    fs::create_dir(&source).unwrap();
    fs::write(dir.path().join("source/file"), "text").unwrap();
    extant(["build", &source, "-s", "4M", "-o", &image]).clean();
    for (args, told) in [
        (&["build", &source, &image][..], "`extant build DIRECTORY -o IMAGE`".to_owned()),
        (&["build", "-d", &source, "-o", &image], "`extant build DIRECTORY -o IMAGE`".into()),
        (&["mkfs", &image, "8M", "-d", &source], "`extant build DIRECTORY -o IMAGE`".into()),
        (&["mkfs", &image, "8M", "-E", "x"], "--discard and --hash-seed.".into()),
        (&["build", "docker://alpine", "-o", &image], "extant fetches nothing".into()),
        (&["build", "alpine:latest", "-o", &image], "docker save NAME".into()),
        (&["export", &image], "`extant export IMAGE -o X.tar`".into()),
        (&["fsck.ext4", &image], "`extant check`".into()),
        (&["label", &image], "`extant info`".into()),
        (&["chroot", &image], "`extant exec IMAGE --root".into()),
        (&["sha256sum", &image], "`extant cat IMAGE:/PATH | COMMAND`".into()),
        (&["getfacl", &image], "`extant xattr IMAGE:/PATH`".into()),
        (&["touch", "-d", "yesterday", &image], "--mtime SECONDS".into()),
        (&["put", "-p", &source, &image], "`extant mkdir -p".into()),
        (&["put", "--chown", "0:0", &source, &image], "--owner OWNER:GROUP".into()),
        (&["edit", &image, "-c", "rm /x"], "| extant edit IMAGE -".into()),
        (&["export", &image, "-C", &source], "`extant cp IMAGE:/ DIRECTORY`".into()),
        (&["find", &image, "-size", "+1M"], "--json".into()),
        (&["ls", "--sort=size", &image], "-S sorts by size".into()),
        (&["ls", &image, "/file"], format!("is written {image}:/file")),
        (&["cat", &image, "/file"], format!("is written {image}:/file")),
        (&["put", &image, &image], format!("is written {image}:/")),
        (&["debug", &image, "inode", "x"], "a path from the image's root".into()),
    ] {
        let ran = extant(args);
        assert!(ran.code == Some(2) && ran.stderr.contains(&told), "{args:?}: {}", ran.stderr);
    }
    let ran = extant(["ls", &format!("{image}/etc")]);
    assert!(ran.code == Some(1) && ran.stderr.contains(&format!("{image}:/etc")), "{}", ran.stderr);
    let ran = extant(["info", &format!("{image}:/file")]);
    assert!(ran.code == Some(1) && ran.stderr.contains(&format!("alone: {image}")), "{}", ran.stderr);
    let inode = |at: &str| extant(["debug", &image, "inode", at]).clean_text();
    assert_eq!(inode("/file"), inode("<12>"));
    assert_eq!(inode("12"), inode("<12>"));
}
