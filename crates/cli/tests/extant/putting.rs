//! Copies from the host: holes and data, names kept after a failure, ids in attributes, features
//! that a copy enables.

use crate::testbed::{
    Ran, debugfs, extant, extant_with, fsck, have, is_root, mke2fs, mounted, noise, place, run,
};
use rustix::fs::{SeekFrom, XattrFlags, seek, setxattr};
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, symlink};
use std::path::{Path, PathBuf};

fn volume(dir: &Path, size: &str, options: &[&str]) -> Option<PathBuf> {
    if !have("mke2fs") || !have("debugfs") || !have("e2fsck") {
        return None;
    }
    let image = dir.join("image");
    mke2fs(&image, size, &[&["-E", "root_owner=0:0"], options].concat());
    Some(image)
}

/// Output of debugfs for a request.
fn ask(image: &Path, request: &str) -> String {
    run("debugfs", &["-R", request, image.to_str().unwrap()])
}

#[track_caller]
fn refused(ran: Ran, told: &str) {
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    assert!(ran.stderr.contains(told), "{}", ran.stderr);
}

/// Names in the root, except `lost+found`.
fn names(image: &Path) -> Vec<String> {
    let listed = extant(["ls", "-a", &place(image, "/")]).clean_text();
    let names = listed.split_whitespace().filter(|name| *name != "lost+found");
    names.map(str::to_owned).collect()
}

const KIB: u64 = 1 << 10;

/// Written zeros, a hole, other data, a trailing hole; 320 KiB of data.
fn sparse_file(path: &Path) -> bool {
    let file = File::create(path).unwrap();
    file.write_all_at(&vec![0; 256 << 10], 0).unwrap();
    file.write_all_at(&noise(5, 64 << 10), 1280 * KIB).unwrap();
    file.set_len(2048 * KIB).unwrap();
    file.sync_all().unwrap();
    let tells = seek(&file, SeekFrom::Hole(0)).unwrap() == 256 * KIB
        && seek(&file, SeekFrom::Data(256 * KIB)).unwrap() == 1280 * KIB;
    if !tells {
        println!("skipped: the file system of {} does not tell holes", path.display());
    }
    tells
}

#[test]
fn data_that_are_zero_stay_data_and_holes_stay_holes_whatever_copies_them() {
    let dir = tempfile::tempdir().unwrap();
    let Some(image) = volume(dir.path(), "24M", &["-t", "ext4", "-b", "4096"]) else { return };
    let source = dir.path().join("source");
    fs::create_dir(&source).unwrap();
    let host = source.join("f");
    if !sparse_file(&host) {
        return;
    }
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let source = source.to_str().unwrap();
    let holds = |image: &Path, file: &str, how: &str| {
        let stat = ask(image, &format!("stat {file}"));
        assert!(stat.contains("Size: 2097152") && stat.contains("Blockcount: 640\n"), "{how}: {stat}");
        assert_eq!(extant(["cat", &place(image, file)]).clean(), fs::read(&host).unwrap(), "{how}");
    };
    let at = |path: &str| place(&image, path);
    extant(["put", host.to_str().unwrap(), &at("/put")]).clean();
    holds(&image, "/put", "put");
    extant(["put", "-r", source, &at("/tree")]).clean();
    holds(&image, "/tree/f", "put -r");
    let script = format!("put {} /edit\n", host.display());
    extant_with(script.as_bytes(), ["edit".as_ref(), image.as_os_str()]).clean();
    holds(&image, "/edit", "edit");
    let script = format!("put {} shell\n", host.display());
    extant_with(script.as_bytes(), ["shell".as_ref(), "--write".as_ref(), image.as_os_str()]).clean();
    holds(&image, "/shell", "shell");
    extant(["build", "--into", &at("/into"), source]).clean();
    holds(&image, "/into/f", "build --into");
    extant(["copy", &at("/put"), &at("/copy")]).clean();
    holds(&image, "/copy", "copy");
    fsck(&image);
    extant(["export", &at("/tree"), "-o", &path("a.tar")]).clean();
    for from in [source, &path("a.tar")] {
        extant(["build", from, "-o", &path("built"), "--size", "16M", "-b", "4096"]).clean();
        holds(Path::new(&path("built")), "/f", from);
        extant(["build", from, "-o", &path("built"), "--block-size", "4096"]).clean();
        holds(Path::new(&path("built")), "/f", from);
        fsck(Path::new(&path("built")));
    }
    extant(["shrink", image.to_str().unwrap(), "-o", &path("small")]).clean();
    holds(Path::new(&path("small")), "/put", "shrink");
    // And back out of the volume.
    extant(["cp", &at("/put"), &path("out")]).clean();
    let out = File::open(path("out")).unwrap();
    assert_eq!(fs::read(path("out")).unwrap(), fs::read(&host).unwrap());
    assert_eq!(seek(&out, SeekFrom::Hole(0)).unwrap(), 256 * KIB);
    assert_eq!(seek(&out, SeekFrom::Data(256 * KIB)).unwrap(), 1280 * KIB);
}

#[test]
fn a_swap_file_that_is_put_is_one() {
    let dir = tempfile::tempdir().unwrap();
    let Some(image) = volume(dir.path(), "24M", &["-t", "ext4", "-b", "4096"]) else { return };
    if !is_root() || !have("mkswap") || !have("swapon") {
        return;
    }
    let swap = dir.path().join("swap");
    fs::write(&swap, vec![0; 4 << 20]).unwrap();
    run("chmod", &["600", swap.to_str().unwrap()]);
    run("mkswap", &[swap.to_str().unwrap()]);
    File::open(&swap).unwrap().sync_all().unwrap();
    extant(["put", swap.to_str().unwrap(), &place(&image, "/")]).clean();
    fsck(&image);
    let stat = ask(&image, "stat /swap");
    assert!(stat.contains("Blockcount: 8192\n"), "{stat}");
    // Preallocated blocks are no holes either.
    if have("fallocate") {
        let swap = dir.path().join("preallocated");
        run("fallocate", &["-l", "4M", swap.to_str().unwrap()]);
        run("mkswap", &["-q", swap.to_str().unwrap()]);
        extant(["put", swap.to_str().unwrap(), &place(&image, "/")]).clean();
        fsck(&image);
        let stat = ask(&image, "stat /preallocated");
        assert!(stat.contains("Blockcount: 8192\n"), "{stat}");
    }
}

#[test]
fn a_refused_command_leaves_no_name() {
    let dir = tempfile::tempdir().unwrap();
    let Some(image) = volume(dir.path(), "8M", &["-t", "ext3", "-b", "1024"]) else { return };
    let at = |path: &str| place(&image, path);
    extant(["ln", "-s", "made", &at("/dangling")]).clean();
    let before = names(&image);
    for target in ["/new", "/dangling"] {
        // Block pointers cannot express unwritten blocks.
        refused(extant(["fallocate", "-l", "4096", &at(target)]), "not supported");
        refused(extant(["truncate", "-s", "20T", &at(target)]), "larger than a file of this volume can be");
        refused(extant(["copy", &at("/nothing"), &at(target)]), "no such file");
    }
    refused(extant(["fallocate", "-p", "-l", "4096", &at("/new")]), "no such file");
    let long = "t".repeat(1024);
    refused(extant(["ln", "-s", &long, &at("/link")]), "too long");
    refused(extant(["ln", "-sf", &long, &at("/link")]), "too long");
    let (file, link) = (dir.path().join("file"), dir.path().join("link"));
    fs::write(&file, "x").unwrap();
    symlink(&long, &link).unwrap();
    refused(extant(["put", "-r", link.to_str().unwrap(), &at("/link")]), "too long");
    if setxattr(&file, "user.long", &[b'x'; 1500], XattrFlags::empty()).is_ok() {
        refused(
            extant(["put", file.to_str().unwrap(), &at("/file")]),
            "no room for attribute user.long of 1500 bytes",
        );
        let tree = dir.path().join("tree");
        fs::create_dir(&tree).unwrap();
        fs::rename(&file, tree.join("file")).unwrap();
        let into = extant(["build", "--into", image.to_str().unwrap(), tree.to_str().unwrap()]);
        refused(into, "/file\": no room for attribute user.long of 1500 bytes");
    }
    assert_eq!(names(&image), before);
    fsck(&image);
    let small = dir.path().join("small");
    mke2fs(&small, "4M", &["-t", "ext4", "-b", "1024"]);
    refused(extant(["fallocate", "-l", "30M", &place(&small, "/new")]), "no space is left");
    assert_eq!(names(&small), Vec::<String>::new());
    fsck(&small);
    // A directory elsewhere on the volume does not interfere.
    extant(["truncate", "-s", "5000", &at("/dangling")]).clean();
    assert!(ask(&image, "stat /made").contains("Size: 5000"));
    fsck(&image);
}

/// `cap_net_raw=ep`, for namespaces with this root user, or without one.
fn capability(root: Option<u32>) -> Vec<u8> {
    let mut value = vec![1, 0, 0, if root.is_some() { 3 } else { 2 }, 0, 0x20];
    value.resize(20, 0);
    value.extend(root.map(u32::to_le_bytes).into_iter().flatten());
    value
}

/// An attribute's value, as shown by debugfs.
fn stored(image: &Path, file: &str) -> Vec<u8> {
    let said = ask(image, &format!("ea_get -x {file} security.capability"));
    let hex = said.lines().find_map(|line| line.split_once(" = ")).unwrap_or_else(|| panic!("{said}")).1;
    hex.split_whitespace().map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect()
}

#[test]
fn capabilities_follow_the_owner_whose_namespaces_they_are_for() {
    let dir = tempfile::tempdir().unwrap();
    let Some(image) = volume(dir.path(), "8M", &["-t", "ext4"]) else { return };
    let archive = dir.path().join("a.tar");
    let mut tar = tar::Builder::new(File::create(&archive).unwrap());
    for (name, root) in [("mine", Some(100_000)), ("other", Some(100_007)), ("plain", None)] {
        let value = capability(root);
        tar.append_pax_extensions([("SCHILY.xattr.security.capability", &value[..])]).unwrap();
        let mut header = tar::Header::new_ustar();
        header.set_size(0);
        header.set_mode(0o755);
        header.set_uid(100_000);
        header.set_gid(100_000);
        tar.append_data(&mut header, name, &b""[..]).unwrap();
    }
    tar.finish().unwrap();
    let built = dir.path().join("built");
    let (archive, out) = (archive.to_str().unwrap(), built.to_str().unwrap());
    let all = |image: &Path| ["/mine", "/other", "/plain"].map(|file| stored(image, file));
    let mapped = [capability(None), capability(Some(7)), capability(None)];
    extant(["build", archive, "-o", out, "--owner-map", "100000:0:65536"]).clean();
    assert_eq!(all(&built), mapped);
    let plain = [(); 3].map(|()| capability(None));
    extant(["build", archive, "-o", out, "--all-root"]).clean();
    assert_eq!(all(&built), plain);
    extant(["build", archive, "-o", out]).clean();
    assert_eq!(all(&built), [capability(Some(100_000)), capability(Some(100_007)), capability(None)]);
    // The reverse: what applied everywhere now applies to namespaces of the new root.
    extant(["build", archive, "-o", out, "--owner-map", "0:50000:10", "--owner-map", "100000:0:65536"])
        .clean();
    assert_eq!(all(&built)[2], capability(Some(50_000)));
    extant(["build", "--into", image.to_str().unwrap(), archive, "--owner-map", "100000:0:65536"]).clean();
    assert_eq!(all(&image), mapped);
    fsck(&image);
    let ran = extant(["build", archive, "-o", out, "--owner-map", "100000:0:5"]);
    refused(ran, "other\": no range of the owner map covers its capabilities' root user 100007");
    if !is_root() {
        return;
    }
    // A host file, which requires the privilege to set capabilities.
    let program = dir.path().join("program");
    fs::write(&program, "").unwrap();
    if setxattr(&program, "security.capability", &capability(Some(100_000)), XattrFlags::empty()).is_ok() {
        extant(["put", "--all-root", program.to_str().unwrap(), &place(&image, "/put")]).clean();
        assert_eq!(stored(&image, "/put"), capability(None));
        extant(["put", program.to_str().unwrap(), &place(&image, "/kept")]).clean();
        assert_eq!(stored(&image, "/kept"), capability(Some(100_000)));
        fsck(&image);
    }
}

#[test]
fn features_that_other_readers_lack_are_used_when_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    if !have("dumpe2fs") || !have("e2fsck") {
        return;
    }
    let archive = dir.path().join("a.tar");
    let mut tar = tar::Builder::new(File::create(&archive).unwrap());
    tar.append_pax_extensions([("SCHILY.xattr.user.thumbnail", &[b'x'; 4100][..])]).unwrap();
    let mut header = tar::Header::new_ustar();
    header.set_size(0);
    tar.append_data(&mut header, "doc", &b""[..]).unwrap();
    tar.finish().unwrap();
    let built = dir.path().join("built");
    let (archive, out) = (archive.to_str().unwrap(), built.to_str().unwrap());
    for features in ["^ea_inode", "^metadata_csum_seed"] {
        let ran = extant(["build", archive, "-o", out, "-O", features]);
        refused(ran, "the extended attributes of \"/doc\" need 4128 bytes");
        assert!(!built.exists());
    }
    let ran = extant(["build", archive, "-o", out]);
    assert!(ran.stderr.contains("-O ea_inode keeps long values"), "{}", ran.stderr);
    extant(["build", archive, "-o", out, "-O", "ea_inode"]).clean();
    assert!(run("dumpe2fs", &["-h", out]).contains("ea_inode"));
    assert!(ask(&built, "ea_list doc").contains("user.thumbnail (4100)"));
    fsck(&built);
}

/// A volume of revision 0.
fn revision_0(image: &Path, size: &str, options: &[&str]) {
    mke2fs(image, size, &[&["-b", "1024", "-I", "128", "-t", "ext2", "-O", "none"], options].concat());
    let file = File::options().read(true).write(true).open(image).unwrap();
    // Revision, first inode and inode size as left by mke2fs -r 0; features stay.
    for (at, bytes) in [(76, 4), (84, 6)] {
        file.write_all_at(&vec![0; bytes], 1024 + at).unwrap();
    }
}

fn header(image: &Path) -> String {
    run("dumpe2fs", &["-h", image.to_str().unwrap()])
}

#[test]
fn features_raise_the_revision_as_in_linux() {
    let dir = tempfile::tempdir().unwrap();
    if !have("mke2fs") || !have("e2fsck") || !have("dumpe2fs") {
        return;
    }
    let image = dir.path().join("image");
    let at = |path: &str| place(&image, path);
    let is_raised = |feature: &str| {
        fsck(&image);
        let header = header(&image);
        assert!(header.contains("revision #:    1 (dynamic)") && header.contains(feature), "{header}");
        assert!(
            header.contains("Inode size:\t          128") && header.contains("First inode:              11")
        );
        if let Some(mount) = mounted(&image, "ro") {
            assert!(mount.path().join("kept").exists());
        }
    };
    let fresh = || {
        revision_0(&image, "8M", &[]);
        extant(["truncate", "-s", "1000", &at("/kept")]).clean();
        let header = header(&image);
        assert!(header.contains("revision #:    0 (original)") && header.contains("(none)"), "{header}");
        fsck(&image);
    };
    fresh();
    extant(["truncate", "-s", "3G", &at("/large")]).clean();
    is_raised("large_file");
    fresh();
    extant(["xattr", "-s", "user.a=b", &at("/kept")]).clean();
    is_raised("ext_attr");
    let small = dir.path().join("small");
    extant(["shrink", image.to_str().unwrap(), "-o", small.to_str().unwrap()]).clean();
    fsck(&small);
    assert!(ask(&small, "ea_list kept").contains("user.a"));
}

#[test]
fn features_of_the_original_revision_are_honoured() {
    let dir = tempfile::tempdir().unwrap();
    if !have("mke2fs") || !have("e2fsck") || !have("dumpe2fs") {
        return;
    }
    let image = dir.path().join("image");
    let at = |path: &str| place(&image, path);
    // A journal that is not empty.
    revision_0(&image, "8M", &["-O", "has_journal,filetype", "-J", "size=1"]);
    let file = dir.path().join("file");
    fs::write(&file, "contents").unwrap();
    let info = extant(["info", image.to_str().unwrap()]).clean_text();
    assert!(info.contains("has_journal") && info.contains("filetype"), "{info}");
    debugfs(&image, &[format!("write {} written", file.display())]);
    run("debugfs", &["-w", "-R", "feature needs_recovery", image.to_str().unwrap()]);
    extant(["put", file.to_str().unwrap(), &at("/put")]).clean();
    let checked = run("dumpe2fs", &["-h", image.to_str().unwrap()]);
    assert!(checked.contains("has_journal") && !checked.contains("needs_recovery"), "{checked}");
    fsck(&image);
    assert_eq!(names(&image), ["put", "written"]);
    // A feature that Linux refuses too.
    run("debugfs", &["-w", "-R", "feature FEATURE_I30", image.to_str().unwrap()]);
    let ran = extant(["ls", &at("/")]);
    assert_eq!(ran.code, Some(4), "{}", ran.stderr);
}

#[test]
fn a_full_index_of_a_directory_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let Some(image) = volume(dir.path(), "64M", &["-t", "ext4", "-b", "1024", "-N", "20000"]) else { return };
    let write = extant::OpenOptions::new().write(true).offline(true);
    let volume = extant::Volume::open(&image, &write).unwrap();
    let root = volume.root();
    root.write("first", "").unwrap();
    root.create_dir("d").unwrap();
    // Few names per block because of maximum length, all for the same inode.
    let mut names = (0..60_000).map(|n| format!("d/{n:0>250}"));
    let (name, error) = names
        .find_map(|name| Some((root.hard_link("first", &name).err()?, name)))
        .map(|(e, n)| (n, e))
        .unwrap();
    assert_eq!(error.errno(), 28);
    volume.close().unwrap();
    let told = "the index of directory inode 13 is full: with blocks of 1024 bytes and without the feature large_dir";
    refused(extant(["ln", &place(&image, "/first"), &place(&image, &format!("/{name}"))]), told);
    refused(extant(["mkdir", &place(&image, &format!("/{name}"))]), told);
    fsck(&image);
    // With the feature named in the message there is room.
    run("tune2fs", &["-O", "large_dir", image.to_str().unwrap()]);
    extant(["ln", &place(&image, "/first"), &place(&image, &format!("/{name}"))]).clean();
    fsck(&image);
}

/// Files that lines in a row put are made together. Each looks as if it had been made in its turn.
#[test]
fn puts_in_a_row_are_done_one_after_the_other() {
    let dir = tempfile::tempdir().unwrap();
    let Some(image) = volume(dir.path(), "24M", &["-t", "ext4"]) else { return };
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let files: Vec<Vec<u8>> = (0..3).map(|n| noise(n, 3000 * n as usize + 10)).collect();
    for (n, bytes) in files.iter().enumerate() {
        fs::write(at(&format!("f{n}")), bytes).unwrap();
    }
    fs::create_dir(at("tree")).unwrap();
    let [f0, f1, f2, tree] = ["f0", "f1", "f2", "tree"].map(at);
    let script = [
        format!("put {f0} /a"),
        format!("put {f1} /b"),
        // A name that is taken only since the first line.
        format!("put {f2} /a"),
        "mv /b /c".to_owned(),
        "mkdir /d".to_owned(),
        "ln -s /d/new /link".to_owned(),
        format!("put {f1} /link"),
        format!("put {f2} /d/new"),
        format!("put {f1} /d"),
        format!("put {f0} /e"),
        format!("put -r {tree} /e"),
        format!("put {f0} /never"),
    ];
    let ran = extant_with(script.join("\n").as_bytes(), ["edit", "--json", image.to_str().unwrap()]);
    assert!(ran.code == Some(1) && ran.stderr.contains("line 11: "), "{}", ran.stderr);
    let told: String = String::from_utf8(ran.stdout).unwrap().split_whitespace().collect();
    assert!(told.contains("\"done\":10,\"failed_line\":11"), "{told}");
    assert!(told.contains("\"files\":7"), "{told}");
    for (path, n) in [("/a", 2), ("/c", 1), ("/d/new", 2), ("/d/f1", 1), ("/e", 0)] {
        assert!(extant(["cat", &place(&image, path)]).clean() == files[n], "{path}");
    }
    assert_eq!(names(&image), ["a", "c", "d", "e", "link"]);
    fsck(&image);
}

/// The line that put a file fails, even if that turns out with a later one.
#[test]
fn a_file_that_cannot_be_made_is_told_with_its_line() {
    let dir = tempfile::tempdir().unwrap();
    let Some(image) = volume(dir.path(), "2M", &["-t", "ext4", "-b", "1024", "-N", "16"]) else { return };
    let source = dir.path().join("source");
    fs::write(&source, "text").unwrap();
    let put = |n: usize| format!("put {} /f{n}", source.display());
    // Of 16 inodes, 11 are the volume's own.
    let script: Vec<String> = (1..=9).map(put).collect();
    let ran = extant_with(script.join("\n").as_bytes(), ["edit", image.to_str().unwrap()]);
    assert!(ran.code == Some(1) && ran.stderr.contains("line 6: "), "{}", ran.stderr);
    assert_eq!(names(&image), ["f1", "f2", "f3", "f4", "f5"]);
    fsck(&image);
}
