//! Damage that loses a whole tree is reported, and a caller's mistake is not reported as damage.

use crate::testbed::{debugfs, extant, fsck, have, mke2fs, place, run};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

fn volume(dir: &Path, options: &[&str]) -> PathBuf {
    let source = dir.join("source");
    fs::create_dir_all(source.join("sub")).unwrap();
    fs::write(source.join("sub/file"), b"contents").unwrap();
    let image = dir.join("image");
    let mut args = vec!["-b", "1024", "-d", source.to_str().unwrap()];
    args.extend(options);
    mke2fs(&image, "16M", &args);
    image
}

#[test]
fn a_damaged_root_is_told_by_every_command() {
    if !have("mke2fs") || !have("debugfs") {
        return;
    }
    for (field, value) in [("mode", "0100644"), ("mode", "0120777"), ("size", "0"), ("links_count", "0")] {
        let dir = tempfile::tempdir().unwrap();
        let image = volume(dir.path(), &["-t", "ext4"]);
        debugfs(&image, &[format!("sif <2> {field} {value}")]);
        let root = place(&image, "/");
        let (archive, copy) = (dir.path().join("out.tar"), dir.path().join("copy"));
        let commands: [&[&str]; 6] = [
            &["ls", &root],
            &["ls", "--json", "--recursive", &root],
            &["tree", &root],
            &["cat", &place(&image, "/sub/file")],
            &["export", &root, "-o", archive.to_str().unwrap()],
            &["cp", &root, copy.to_str().unwrap()],
        ];
        for command in commands {
            let ran = extant(command);
            assert_eq!(ran.code, Some(3), "{field} {value}: {command:?}: {}", ran.stderr);
            assert!(ran.stderr.contains("inode 2: i_"), "{field} {value}: {command:?}: {}", ran.stderr);
        }
    }
}

#[test]
fn what_is_lost_is_named_by_its_path() {
    if !have("mke2fs") || !have("debugfs") {
        return;
    }
    for (damage, lost) in [
        ("sif /sub/file mode 0", "/sub/file"),
        ("clri /sub/file", "/sub/file"),
        ("ln <9> /sub/reserved", "/sub/reserved"),
        ("ln /sub /sub/again", "/sub/again"),
        ("ln <4000> /sub/nothing", "/sub/nothing"),
        ("sif /sub links_count 0\nsif /sub mode 0", "/sub"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let image = volume(dir.path(), &["-t", "ext4"]);
        debugfs(&image, &damage.lines().map(str::to_owned).collect::<Vec<_>>());
        let top = place(&image, "/");
        let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
        let (archive, copy, source) = (path("out.tar"), path("copy"), path("source"));
        let commands: [&[&str]; 4] = [
            &["export", &top, "-o", &archive],
            &["cp", &top, &copy],
            &["diff", &top, &source],
            &["ls", "--long", "--recursive", &top],
        ];
        for command in commands {
            let ran = extant(command);
            assert_eq!(ran.code, Some(3), "{damage}: {command:?}: {}", ran.stderr);
            let told = ran.stderr.lines().filter(|line| line.contains(&format!(":{lost}: "))).count();
            assert_eq!(told, 1, "{damage}: {command:?}: {}", ran.stderr);
        }
    }
}

#[test]
fn a_callers_mistake_is_no_damage() {
    if !have("mke2fs") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = volume(dir.path(), &["-t", "ext2"]);
    let image = image.to_str().unwrap();
    for (args, told) in [
        (&["inode", "999999"][..], "there is no inode 999999; the volume's last is 4096"),
        (&["inode", "0"], "there is no inode 0"),
        (&["xattrs", "5000"], "there is no inode 5000"),
        (&["group", "7"], "there is no group 7; the volume's last is 1"),
        (&["block", "16384"], "there is no block 16384; the volume's last is 16383"),
        (&["journal"], "the volume has no journal"),
        (&["directory", "7"], "inode 7: not a directory"),
        (&["htree", "2"], "directory 2 has no hash tree"),
    ] {
        let ran = extant([&["debug", image], args].concat());
        assert_eq!(ran.code, Some(1), "{args:?}: {}", ran.stderr);
        assert!(ran.stderr.contains(told), "{args:?}: {}", ran.stderr);
    }
    for at in ["4096", "99999999999"] {
        let ran = extant(["ls", "--superblock", at, image]);
        assert_eq!(ran.code, Some(1), "{}", ran.stderr);
        assert!(ran.stderr.contains(&format!("no superblock at byte {at}")), "{}", ran.stderr);
    }
    // Those that there are can be read.
    let told: serde_json::Value = serde_json::from_slice(&extant(["info", "--json", image]).clean()).unwrap();
    let backups = told["backups"].as_array().unwrap();
    assert_eq!(backups, &[8193 << 10]);
    extant(["ls", "--superblock", &backups[0].to_string(), image]).clean();
    assert!(extant(["info", image]).clean_text().contains("backups:          byte 8389632\n"));
}

/// What e2fsck finds on an image.
fn findings(image: &Path) -> String {
    let found = Command::new("e2fsck").arg("-fn").arg(image).output().unwrap();
    String::from_utf8(found.stdout).unwrap()
}

/// Deletion must not begin if it cannot end: the inode would stay without a name, as an orphan that
/// e2fsck reports and that keeps Linux from mounting the volume for reading.
#[test]
fn what_damage_keeps_from_being_deleted_keeps_its_name() {
    if !have("mke2fs") || !have("debugfs") || !have("e2fsck") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("new");
    fs::create_dir_all(source.join("sub")).unwrap();
    fs::write(source.join("sub/file"), b"new contents").unwrap();
    let path = |path: PathBuf| path.to_str().unwrap().to_owned();
    let (new, new_file) = (path(source.clone()), path(source.join("sub/file")));
    let image = volume(dir.path(), &["-t", "ext4", "-O", "orphan_file,^metadata_csum", "-N", "64"]);
    let value = dir.path().join("value");
    fs::write(&value, [b'v'; 300]).unwrap();
    debugfs(&image, &[format!("ea_set -f {} /sub/file user.a", value.display())]);
    extant(["put", &new_file, &place(&image, "/other")]).clean();
    let sound = fs::read(&image).unwrap();
    let magic = b"\0\0\x02\xea\x01\0\0\0\x01\0\0\0";
    let attributes = (0..sound.len()).step_by(1024).find(|&at| sound[at..].starts_with(magic)).unwrap();
    let (root, sub, file) = (place(&image, "/"), place(&image, "/sub"), place(&image, "/sub/file"));
    let other = place(&image, "/other");
    for damage in [
        // A map that leads out of the volume, an inode and a block that are marked as free, and a
        // block of attributes without its magic number.
        "sif /sub/file block[5] 99999999",
        "freei /sub/file",
        "freeb",
        "attributes",
    ] {
        fs::write(&image, &sound).unwrap();
        match damage {
            "attributes" => {
                let mut bytes = sound.clone();
                bytes[attributes] = 1;
                fs::write(&image, bytes).unwrap();
            }
            "freeb" => {
                debugfs(&image, &[format!("freeb {}", block_of(&image, "/sub/file"))]);
            }
            damage => debugfs(&image, &[damage.to_owned()]),
        }
        let damaged = fs::read(&image).unwrap();
        let before = findings(&image);
        let commands: [&[&str]; 5] = [
            &["rm", &file],
            &["rm", "-r", &sub],
            &["mv", &other, &file],
            &["put", &new_file, &file],
            &["build", "--into", &root, &new],
        ];
        for command in commands {
            fs::write(&image, &damaged).unwrap();
            let ran = extant(command);
            assert_eq!(ran.code, Some(3), "{damage}: {command:?}: {}", ran.stderr);
            assert_eq!(findings(&image), before, "{damage}: {command:?}: {}", ran.stderr);
        }
    }
}

/// The first block of a file.
fn block_of(image: &Path, path: &str) -> usize {
    let said = run("debugfs", &["-R", &format!("blocks {path}"), image.to_str().unwrap()]);
    said.split_whitespace().find_map(|word| word.parse().ok()).unwrap()
}

/// The place of an inode's record in the image.
fn record(image: &Path, path: &str) -> usize {
    let said = run("debugfs", &["-R", &format!("imap {path}"), image.to_str().unwrap()]);
    let (block, offset) = said.split_once("located at block ").unwrap().1.split_once(", offset 0x").unwrap();
    block.parse::<usize>().unwrap() * 1024
        + usize::from_str_radix(offset.split_whitespace().next().unwrap(), 16).unwrap()
}

/// We read what Linux reads of a damaged volume, and report the damage.
#[test]
fn what_linux_reads_past_damage_is_read() {
    if !have("mke2fs") || !have("debugfs") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = volume(dir.path(), &["-t", "ext4", "-O", "^metadata_csum,^64bit", "-N", "64"]);
    let value = dir.path().join("value");
    fs::write(&value, [b'v'; 300]).unwrap();
    let target = "y/".repeat(100);
    debugfs(
        &image,
        &[
            format!("symlink /slow {target}"),
            "symlink /fast sub/file".into(),
            format!("ea_set -f {} /sub/file user.a", value.display()),
        ],
    );
    let sound = fs::read(&image).unwrap();
    let set = |field: String| move |image: &Path| debugfs(image, std::slice::from_ref(&field));
    let high = |path: &'static str| {
        move |image: &Path| {
            let at = record(image, path) + 118;
            let mut bytes = fs::read(image).unwrap();
            bytes[at] = 1;
            fs::write(image, bytes).unwrap();
        }
    };
    // The extent of a directory's or link's only block is marked as unwritten.
    let unwritten = |path: &str| set(format!("sif {path} block[4] 0x8001"));
    type Damage<'a> = (&'a str, Box<dyn Fn(&Path) + 'a>);
    let nameless = |image: &Path| {
        let mut bytes = fs::read(image).unwrap();
        let at = (0..bytes.len()).find(|&at| bytes[at..].starts_with(b"\x0a\x02lost+found")).unwrap();
        bytes[at] = 0;
        fs::write(image, bytes).unwrap();
    };
    let without_journal = |image: &Path| {
        let mut bytes = fs::read(image).unwrap();
        bytes[1024 + 92] &= !4; // has_journal
        bytes[1024 + 96] |= 4; // needs_recovery
        fs::write(image, bytes).unwrap();
    };
    let damages: [Damage<'_>; 10] = [
        ("i_flags is", Box::new(set("sif /fast flags 0x80000".into()))),
        ("with has_journal", Box::new(without_journal)),
        ("directory 2: block 0: blocks unwritten is 1", Box::new(unwritten("/"))),
        ("blocks unwritten is 1", Box::new(unwritten("/sub"))),
        ("blocks unwritten is 1", Box::new(unwritten("/slow"))),
        ("i_size is 5000", Box::new(set("sif /slow size 5000".into()))),
        ("i_file_acl_high is 1", Box::new(high("/sub/file"))),
        ("i_file_acl_high is 1", Box::new(high("/slow"))),
        ("i_file_acl_high is 1", Box::new(high("/fast"))),
        ("name_len is 0", Box::new(nameless)),
    ];
    for (n, (told, damage)) in damages.into_iter().enumerate() {
        fs::write(&image, &sound).unwrap();
        damage(&image);
        let copy = dir.path().join(format!("copy{n}"));
        let ran = extant(["cp", &place(&image, "/"), copy.to_str().unwrap()]);
        assert!(ran.code == Some(3) && ran.stderr.contains(told), "{told}: {:?}: {}", ran.code, ran.stderr);
        assert_eq!(fs::read(copy.join("sub/file")).unwrap(), b"contents", "{told}");
        let link = |name: &str| fs::read_link(copy.join(name)).unwrap().to_str().unwrap().to_owned();
        assert_eq!((link("slow"), link("fast")), (target.clone(), "sub/file".into()), "{told}");
        assert_eq!(extant(["cat", &place(&image, "/sub/file")]).stdout, b"contents", "{told}");
        let said = extant(["xattr", &place(&image, "/sub/file")]);
        assert!(String::from_utf8(said.stdout).unwrap().contains("user.a="), "{told}: {}", said.stderr);
    }
    // A link without a target cannot be made anywhere.
    fs::write(&image, &sound).unwrap();
    debugfs(&image, &[format!("zap_block {}", block_of(&image, "/slow"))]);
    let ran = extant(["cp", &place(&image, "/"), dir.path().join("copy").to_str().unwrap()]);
    assert!(ran.code == Some(3) && ran.stderr.contains("length of the target is 0"), "{}", ran.stderr);
}

/// Linux counts the blocks of a file in 32 bits, and refuses an extent of the last one.
#[test]
fn an_extent_of_a_block_that_no_file_has_is_told() {
    if !have("mke2fs") || !have("debugfs") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = volume(dir.path(), &["-t", "ext4", "-O", "^metadata_csum"]);
    debugfs(&image, &["sif /sub/file block[3] 0xffffffff".into()]);
    let ran = extant(["cat", &place(&image, "/sub/file")]);
    assert!(ran.code == Some(3) && ran.stderr.contains("ee_block is 4294967295"), "{}", ran.stderr);
}

/// Values in inodes of their own have a hash, which Linux checks without metadata_csum, too.
#[test]
fn a_large_value_that_its_hash_contradicts_is_told() {
    if !have("mke2fs") || !have("debugfs") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = volume(dir.path(), &["-t", "ext4", "-O", "ea_inode,^metadata_csum", "-N", "64"]);
    let value = "needle".repeat(500);
    let file = place(&image, "/sub/file");
    extant(["xattr", "-s", &format!("user.large={value}"), &file]).clean();
    extant(["xattr", &file]).clean();
    let sound = fs::read(&image).unwrap();
    let mut bytes = sound.clone();
    // The journal has the value, too.
    let blocks = bytes.chunks_mut(1024).filter(|block| block.starts_with(b"needleneedle"));
    blocks.for_each(|block| block[100] ^= 1);
    let told = |bytes: &[u8], words: &str| {
        fs::write(&image, bytes).unwrap();
        let ran = extant(["xattr", &file]);
        assert!(ran.code == Some(3) && ran.stderr.contains(words), "{:?}: {}", ran.code, ran.stderr);
    };
    told(&bytes, "checksum is");
    // The hash of the entry covers its name, too.
    let mut renamed = sound.clone();
    let names = (0..sound.len() - 5).filter(|&at| sound[at..].starts_with(b"large"));
    names.for_each(|at| renamed[at] = b'b');
    told(&renamed, "e_hash is");
}

/// Linux refuses names that lead to an inode which the superblock calls a quota file, even on a
/// volume without quotas.
#[test]
fn a_number_that_the_superblock_claims_is_not_given_out() {
    if !have("mke2fs") || !have("debugfs") || !have("e2fsck") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = volume(dir.path(), &["-t", "ext2"]);
    // The next numbers after those of lost+found, the directory and the file.
    for (n, field) in ["usr_quota_inum", "grp_quota_inum", "orphan_file_inum"].into_iter().enumerate() {
        debugfs(&image, &[format!("ssv {field} {}", 14 + n)]);
    }
    let file = dir.path().join("source/sub/file");
    for name in ["/sub/a", "/sub/b"] {
        extant(["put", file.to_str().unwrap(), &place(&image, name)]).clean();
    }
    fsck(&image);
}

#[test]
fn a_truncated_image_is_called_that_and_read_as_far_as_it_goes() {
    if !have("mke2fs") || !have("debugfs") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let pieces = dir.path().join("pieces");
    fs::create_dir(&pieces).unwrap();
    for (bytes, is_dirty) in [(10_000_000, false), ((16 << 20) - 100, false), (10_000_000, true)] {
        let image = volume(dir.path(), &["-t", "ext4"]);
        if is_dirty {
            debugfs(&image, &["feature needs_recovery".to_owned()]);
        }
        fs::OpenOptions::new().write(true).open(&image).unwrap().set_len(bytes).unwrap();
        let before = fs::read(&image).unwrap();
        let whole_sectors = bytes / 512 * 512;
        let told =
            format!("the image is truncated: the volume has 16777216 bytes, the image {whole_sectors}");
        let at = |path: &str| place(&image, path);
        let text = image.to_str().unwrap();
        let (archive, copy) = (dir.path().join("out.tar"), pieces.join(format!("{bytes}{is_dirty}")));
        let readers: [&[&str]; 8] = [
            &["cat", &at("/sub/file")],
            &["ls", "--json", &at("/sub")],
            &["tree", text],
            &["stat", &at("/sub/file")],
            &["info", text],
            &["export", text, "-o", archive.to_str().unwrap()],
            &["cp", &at("/sub/file"), copy.to_str().unwrap()],
            &["debug", text, "superblock"],
        ];
        for command in readers {
            let ran = extant(command);
            assert_eq!(ran.code, Some(3), "{command:?}: {}", ran.stderr);
            assert!(ran.stderr.contains(&told), "{command:?}: {}", ran.stderr);
        }
        assert_eq!(fs::read(&copy).unwrap(), b"contents", "what is there is read");
        let file = dir.path().join("source/sub/file");
        let writers: [&[&str]; 7] = [
            &["put", file.to_str().unwrap(), &at("/new")],
            &["rm", &at("/sub/file")],
            &["trim", "--json", text],
            &["recover", text],
            &["shrink", text],
            &["edit", text, "/dev/null"],
            &["build", file.parent().unwrap().to_str().unwrap(), "--into", text],
        ];
        for command in writers {
            let ran = extant(command);
            assert!(ran.code == Some(3) && ran.stdout.is_empty(), "{command:?}: {}", ran.stderr);
            assert!(ran.stderr.contains(&told), "{command:?}: {}", ran.stderr);
        }
        assert!(fs::read(&image).unwrap() == before, "nothing was written");
    }
}
