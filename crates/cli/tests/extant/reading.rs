//! Volumes made by mke2fs, debugfs and the kernel are read path by path; contents, attributes and
//! extended attributes must match.
//!
//! A copy by `extant cp` is compared with the directory that mke2fs copied in, or with the kernel's
//! view.

use crate::testbed::{
    Seen, assert_same, debugfs, extant, have, is_root, look, mke2fs, mounted, noise, place, run,
};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::Path;

/// Fills a directory with one of everything that the user may create.
fn populate(root: &Path) {
    let write = |name: &str, bytes: &[u8]| fs::write(root.join(name), bytes).unwrap();
    fs::create_dir_all(root.join("a/b/c")).unwrap();
    write("empty", b"");
    write("tiny", b"fits into an inode");
    write("a/medium", &noise(1, 70_000));
    write("a/b/large", &noise(2, 3 << 20));
    fs::hard_link(root.join("tiny"), root.join("a/b/c/linked")).unwrap();
    fs::hard_link(root.join("tiny"), root.join("z-linked")).unwrap();
    symlink("../medium", root.join("a/b/short-link")).unwrap();
    symlink("y/".repeat(120), root.join("a/long-link")).unwrap();
    let sparse = File::create(root.join("sparse")).unwrap();
    sparse.write_all_at(b"first", 100_000).unwrap();
    sparse.write_all_at(b"second", 5_000_000).unwrap();
    sparse.set_len(9_000_001).unwrap();
    fs::write(root.join(OsStr::from_bytes(b"not utf-8 \xff\xfe")), b"x").unwrap();
    write(&"n".repeat(255), b"longest name");
    fs::create_dir(root.join("crowd")).unwrap();
    for n in 0..200 {
        write(&format!("crowd/member number {n}"), n.to_string().as_bytes());
    }
    run("mkfifo", &[root.join("pipe").to_str().unwrap()]);
    for (name, mode) in [("tiny", 0o640), ("a/medium", 0o4755), ("a/b/c", 0o1777), ("empty", 0o400)] {
        fs::set_permissions(root.join(name), PermissionsExt::from_mode(mode)).unwrap();
    }
    set_xattr(&root.join("a"), "user.on a directory", b"value");
    set_xattr(&root.join("tiny"), "user.small", b"\x00\x01\xff");
    set_xattr(&root.join("a/medium"), "user.needs-a-block", &noise(3, 600));
    if is_root() {
        run("mknod", &[root.join("null").to_str().unwrap(), "c", "1", "3"]);
        run("mknod", &[root.join("disk").to_str().unwrap(), "b", "259", "70000"]);
        std::os::unix::fs::chown(root.join("a/medium"), Some(1000), Some(100_000)).unwrap();
        fs::set_permissions(root.join("a/medium"), PermissionsExt::from_mode(0o4755)).unwrap();
        set_xattr(&root.join("a/b/large"), "trusted.secret", b"for root");
        set_xattr(
            &root.join("a/b"),
            "system.posix_acl_access",
            &acl(&[(1, 7, !0), (2, 5, 1000), (4, 5, !0), (16, 5, !0), (32, 1, !0)]),
        );
        set_xattr(
            &root.join("a/b"),
            "system.posix_acl_default",
            &acl(&[(1, 7, !0), (4, 5, !0), (32, 0, !0)]),
        );
    }
    // Whole seconds: mke2fs 1.47 does not keep fractions.
    run("find", &[root.to_str().unwrap(), "-depth", "-exec", "touch", "-h", "-d", "@1234567890", "{}", "+"]);
    run("touch", &["-d", "@-5000000", root.join("a/b/large").to_str().unwrap()]);
}

fn set_xattr(path: &Path, name: &str, value: &[u8]) {
    rustix::fs::lsetxattr(path, name, value, rustix::fs::XattrFlags::empty())
        .unwrap_or_else(|errno| panic!("{name} on {}: {errno}", path.display()));
}

/// An access control list in the binary form of the system calls: tag, permissions, id.
fn acl(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut bytes = 2u32.to_le_bytes().to_vec();
    for (tag, perm, id) in entries {
        bytes.extend([tag.to_le_bytes(), perm.to_le_bytes()].concat());
        bytes.extend(id.to_le_bytes());
    }
    bytes
}

/// Reads a volume in every way and compares the results with `expected`. If that has no entry for
/// the root, the root's attributes are ignored.
fn check(what: &str, image: &Path, expected: &BTreeMap<Vec<u8>, Seen>) {
    let copy = image.with_extension("copy");
    extant(["cp".as_ref(), place(image, "/").as_ref(), copy.as_os_str()]).clean();
    let mut seen = look(&copy);
    seen.retain(|path, _| !path.is_empty() || expected.contains_key(path));
    assert_same(what, &seen, expected);
    fs::remove_dir_all(&copy).unwrap();

    let listed = extant(["ls", "-aR", image.to_str().unwrap()]).clean_text();
    let names = expected.keys().filter(|path| !path.is_empty() && !path.starts_with(b"lost+found"));
    let listed: Vec<&str> = listed.lines().filter(|line| *line != "lost+found").collect();
    assert_eq!(listed.len(), names.count(), "{what}: {listed:?}");

    // By name, one at a time: through hash trees and symbolic links.
    let files = expected.iter().filter(|(path, seen)| seen.kind == '-' && std::str::from_utf8(path).is_ok());
    for (path, seen) in files.step_by(37) {
        let path = format!("/{}", String::from_utf8_lossy(path));
        let printed = extant(["cat".to_string(), place(image, &path)]).clean();
        assert!(printed == seen.contents, "{what}: {path}");
    }
}

#[test]
fn volumes_of_every_feature_set_made_by_mke2fs() {
    if !have("mke2fs") || !have("mkfifo") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("source");
    fs::create_dir(&source).unwrap();
    populate(&source);
    let mut expected = look(&source);
    // mke2fs 1.47.0 does not copy the root's own attributes.
    expected.remove(&b""[..]);
    let families: [(&str, &[&str]); 24] = [
        ("ext2, 1 KiB", &["-t", "ext2", "-b", "1024", "-I", "128"]),
        ("ext2, 4 KiB", &["-t", "ext2", "-b", "4096"]),
        ("ext2, revision 0", &["-t", "ext2", "-r", "0", "-b", "1024", "-I", "128"]),
        ("ext3, 2 KiB", &["-t", "ext3", "-b", "2048"]),
        ("ext4", &["-t", "ext4"]),
        ("ext4, 1 KiB", &["-t", "ext4", "-b", "1024"]),
        ("ext4, 2 KiB", &["-t", "ext4", "-b", "2048"]),
        ("ext4, 64 KiB", &["-t", "ext4", "-b", "65536"]),
        ("ext4, inodes of 128", &["-t", "ext4", "-I", "128"]),
        ("ext4, inodes of 1024", &["-t", "ext4", "-I", "1024"]),
        ("inline data", &["-t", "ext4", "-O", "inline_data"]),
        ("inline data in inodes of 1024", &["-t", "ext4", "-O", "inline_data", "-I", "1024"]),
        ("block maps in ext4", &["-t", "ext4", "-O", "^extents,^64bit"]),
        ("32 bit", &["-t", "ext4", "-O", "^64bit"]),
        ("meta_bg", &["-t", "ext4", "-b", "1024", "-O", "meta_bg,^resize_inode"]),
        ("bigalloc", &["-t", "ext4", "-O", "bigalloc", "-C", "16384"]),
        ("no flex_bg", &["-t", "ext4", "-b", "1024", "-O", "^flex_bg"]),
        ("sparse_super2", &["-t", "ext4", "-O", "sparse_super2,^resize_inode"]),
        ("uninit_bg", &["-t", "ext4", "-O", "^metadata_csum,uninit_bg"]),
        ("no checksums", &["-t", "ext4", "-O", "^metadata_csum"]),
        ("checksum seed", &["-t", "ext4", "-O", "metadata_csum_seed,orphan_file"]),
        ("no file types", &["-t", "ext4", "-O", "^filetype,^metadata_csum"]),
        ("large attributes and directories", &["-t", "ext4", "-O", "ea_inode,large_dir"]),
        ("quota, project and mmp", &["-t", "ext4", "-I", "256", "-O", "quota,project,mmp"]),
    ];
    for (what, options) in families {
        let image = dir.path().join("image");
        let mut options = options.to_vec();
        options.extend(["-N", "4096", "-d", source.to_str().unwrap()]);
        mke2fs(&image, "96M", &options);
        let mut seen = expected.clone();
        if what.contains("inline data") {
            // In this case mke2fs 1.47.0 drops the hole at the end of a file, as debugfs confirms.
            let by_debugfs = run("debugfs", &["-R", "stat sparse", image.to_str().unwrap()]);
            let sparse = seen.get_mut(&b"sparse"[..]).unwrap();
            if by_debugfs.contains("Size: 5000192") {
                sparse.size = 5_000_192;
                sparse.contents.truncate(5_000_192);
            }
        }
        if what.contains("revision 0") {
            // Revision 0 predates attributes, so mke2fs leaves them out.
            seen.values_mut().for_each(|seen| seen.xattrs.clear());
        }
        check(what, &image, &seen);
        fs::remove_file(&image).unwrap();
    }
}

#[test]
fn directories_with_hash_trees() {
    if !have("mke2fs") || !have("e2fsck") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("source");
    fs::create_dir_all(source.join("many")).unwrap();
    // Four names per 1 KiB block: more leaves than one level of the tree can point to.
    let name = |n: usize| format!("many/{n:05}{}", "-".repeat(190));
    for n in 0..800 {
        fs::write(source.join(name(n)), n.to_string()).unwrap();
    }
    for hash in ["half_md4", "tea", "legacy"] {
        let image = dir.path().join("image");
        mke2fs(&image, "64M", &["-t", "ext4", "-b", "1024", "-N", "8192", "-d", source.to_str().unwrap()]);
        run("tune2fs", &["-E", &format!("hash_alg={hash}"), image.to_str().unwrap()]);
        run("e2fsck", &["-fyD", image.to_str().unwrap()]);
        let tree = run("debugfs", &["-R", "htree_dump /many", image.to_str().unwrap()]);
        assert!(tree.contains("Indirect levels: 1") && tree.contains("Number of entries"), "{tree}");
        let mut expected = look(&source);
        expected.remove(&b""[..]);
        for seen in expected.values_mut() {
            seen.modified.1 = 0;
        }
        check(hash, &image, &expected);
        let missing = extant(["stat".to_string(), place(&image, "/many/00000")]);
        assert_eq!(missing.code, Some(1));
        assert!(missing.stderr.ends_with("/many/00000: no such file or directory\n"), "{}", missing.stderr);
    }
}

/// Files whose maps need every kind of node.
fn populate_maps(root: &Path) {
    let file = |name: &str| File::create(root.join(name)).unwrap();
    // With 1 KiB blocks: direct, then indirect from 12 KiB, double indirect from 268 KiB, triple
    // indirect from 64.25 MiB.
    let far = file("three levels of indirection");
    for at in [0, 11 << 10, 12 << 10, 267 << 10, 268 << 10, 10 << 20, 65 << 20, 67 << 20, 200 << 20] {
        far.write_all_at(&noise(at, 3000), at).unwrap();
    }
    // Every second block, so that each is its own run: 30,000 extents are more than 4 x 84 x 84.
    let alternating = file("a deep extent tree");
    for n in 0..30_000u64 {
        alternating.write_all_at(&n.to_le_bytes(), n * 2048).unwrap();
    }
    let unwritten = file("allocated, not written");
    let plain = rustix::fs::FallocateFlags::empty();
    if rustix::fs::fallocate(&unwritten, plain, 0, 500_000).is_ok() {
        unwritten.write_all_at(b"but here", 200_000).unwrap();
    }
    let punched = file("punched");
    punched.write_all_at(&noise(9, 1 << 20), 0).unwrap();
    let punch = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
    let _ = rustix::fs::fallocate(&punched, punch, 100_000, 300_000);
}

#[test]
fn volumes_that_the_kernel_wrote() {
    if !have("mke2fs") {
        return;
    }
    let families: [(&str, &[&str]); 9] = [
        ("ext2, 1 KiB", &["-t", "ext2", "-b", "1024", "-I", "128"]),
        ("ext3, 2 KiB", &["-t", "ext3", "-b", "2048"]),
        ("ext4, 1 KiB", &["-t", "ext4", "-b", "1024"]),
        ("ext4, 4 KiB", &["-t", "ext4"]),
        ("ext4, 64 KiB", &["-t", "ext4", "-b", "65536"]),
        ("inline data", &["-t", "ext4", "-O", "inline_data"]),
        ("meta_bg", &["-t", "ext4", "-b", "1024", "-O", "meta_bg,^resize_inode"]),
        ("bigalloc", &["-t", "ext4", "-O", "bigalloc", "-C", "16384"]),
        ("large attributes", &["-t", "ext4", "-O", "ea_inode,metadata_csum_seed,orphan_file"]),
    ];
    for (what, options) in families {
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("image");
        mke2fs(&image, "192M", options);
        let Some(mount) = mounted(&image, "user_xattr,acl") else { continue };
        populate(mount.path());
        populate_maps(mount.path());
        if what == "large attributes" {
            set_xattr(&mount.path().join("tiny"), "user.in an inode of its own", &noise(4, 30_000));
        }
        for n in 0..1500 {
            fs::write(mount.path().join(format!("crowd/{n}{}", "+".repeat(100))), b"").unwrap();
        }
        run("touch", &["-d", "2100-01-01 00:00:00.123456789Z", mount.path().join("tiny").to_str().unwrap()]);
        let mut expected = look(mount.path());
        let holder = !is_ours_to_hold(dir.path());
        drop(mount);
        if holder {
            expected.values_mut().for_each(|seen| seen.xattrs.retain(|_, value| value.len() < 2000));
            println!("{what}: the host's file system holds no large attributes; not compared");
            continue;
        }
        check(what, &image, &expected);
    }
}

/// Whether the host stores attributes of 30,000 bytes, so that a copy can be compared.
fn is_ours_to_hold(dir: &Path) -> bool {
    let probe = dir.join("probe");
    fs::write(&probe, b"").unwrap();
    let held =
        rustix::fs::setxattr(&probe, "user.probe", &[1; 30_000], rustix::fs::XattrFlags::empty()).is_ok();
    fs::remove_file(probe).unwrap();
    held
}

#[test]
fn values_in_inodes_of_their_own() {
    if !have("mke2fs") || !have("debugfs") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    let value = dir.path().join("value");
    let text: String = (0..1020).map(|n| format!("{n:>4}")).collect();
    fs::write(&value, &text).unwrap();
    // With its entry, larger than a 4 KiB block; debugfs accepts no value larger than a block.
    mke2fs(&image, "16M", &["-t", "ext4", "-b", "4096", "-O", "ea_inode"]);
    debugfs(
        &image,
        &[
            format!("write {} file", value.display()),
            format!("ea_set -f {} file user.large", value.display()),
        ],
    );
    let shown = extant(["stat".to_string(), "--json".into(), place(&image, "/file")]).clean();
    let shown: serde_json::Value = serde_json::from_slice(&shown).unwrap();
    assert_eq!(shown["xattrs"][0]["name"], "user.large");
    assert_eq!(shown["xattrs"][0]["value"], text);
    let stored =
        extant(["debug", image.to_str().unwrap(), "xattrs", &shown["inode"].to_string()]).clean_text();
    assert!(stored.contains("inode"), "the value is in an inode of its own: {stored}");
}
