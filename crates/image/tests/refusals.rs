//! Sources that cannot be built: the error names the problem, and nothing is left under the image's
//! name.

mod common;

use common::entries::{checksummed, file, header, pax, with_link};
use common::*;
use extant_image::{
    BuildError, FeatureChoices, IdRange, OwnerMap, Ownership, SizePolicy, Source, VolumeOptions, build,
};
use extant_rt::Rt;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

struct Case {
    dir: tempfile::TempDir,
}

impl Case {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("source")).unwrap();
        fs::create_dir(dir.path().join("out")).unwrap();
        Self { dir }
    }

    fn source(&self) -> PathBuf {
        self.dir.path().join("source")
    }

    fn image(&self) -> PathBuf {
        self.dir.path().join("out/image")
    }

    /// Builds an archive given as raw bytes.
    fn raw_tar(&self, bytes: &[u8]) -> Result<(), BuildError> {
        let archive = self.dir.path().join("archive.tar");
        fs::write(&archive, bytes).unwrap();
        self.build(VolumeOptions::default(), Ownership::Source, Source::Tar(archive))
    }

    /// Builds an archive of these entries.
    fn tar(&self, entries: &[u8]) -> Result<(), BuildError> {
        self.raw_tar(&[entries, &[0; 1024]].concat())
    }

    fn build(&self, volume: VolumeOptions, ownership: Ownership, source: Source) -> Result<(), BuildError> {
        let options = extant_image::BuildOptions { volume, ownership, ..options(self.image()) };
        let result = try_build(&options, &[source]).map(drop);
        if result.is_err() {
            self.assert_nothing_left();
        }
        result
    }

    fn directory(&self) -> Result<(), BuildError> {
        self.build(VolumeOptions::default(), Ownership::Source, Source::Directory(self.source()))
    }

    fn assert_nothing_left(&self) {
        let left: Vec<_> =
            fs::read_dir(self.dir.path().join("out")).unwrap().map(|e| e.unwrap().path()).collect();
        assert!(left.is_empty(), "left behind: {left:?}");
    }
}

#[test]
fn names_cannot_leave_the_volume() {
    let case = Case::new();
    let mut archive = file(b"/absolute/file", b"1");
    archive.extend(file(b"../../../climbing", b"2"));
    archive.extend(file(b"a/../../b/./c", b"3"));
    archive.extend(with_link(header(b"out", b'2', 0), b"/../../../../etc"));
    archive.extend(file(b"out/passwd", b"4"));
    archive.extend([0; 1024]);
    case.tar(&archive).unwrap();
    assert_clean(&case.image());
    let expected = case.source();
    for (name, text) in [("absolute/file", "1"), ("climbing", "2"), ("b/c", "3"), ("etc/passwd", "4")] {
        fs::create_dir_all(expected.join(name).parent().unwrap()).unwrap();
        fs::write(expected.join(name), text).unwrap();
    }
    let Some(mount) = Mount::new(&case.image(), "ro") else { return };
    for name in ["absolute/file", "climbing", "b/c", "etc/passwd"] {
        assert_eq!(fs::read(mount.path().join(name)).unwrap(), fs::read(expected.join(name)).unwrap());
    }
}

#[test]
fn archives_cut_short_name_the_entry() {
    let case = Case::new();
    let mut archive = file(b"first", &[1; 3000]);
    archive.extend(pax("path", b"the-second-entry"));
    archive.extend(file(b"short", &[2; 3000]));
    let first_end = 512 + 3072;
    // Also cut between entries and after the last one, where only the end is missing.
    for cut in (1..archive.len()).step_by(37).chain([first_end, archive.len()]) {
        let error = case.raw_tar(&archive[..cut]).expect_err("cut short").to_string();
        if cut > 512 && cut < first_end {
            assert!(error.contains("\"first\""), "{cut}: {error}");
        }
        if cut > first_end + 2048 && cut < archive.len() - 72 {
            assert!(error.contains("in entry \"the-second-entry\""), "{cut}: {error}");
        }
        assert!(error.contains("cut short"), "{cut}: {error}");
    }
    let error = case.raw_tar(b"").unwrap_err().to_string();
    assert!(error.contains("empty"), "{error}");
    case.raw_tar(&[archive, vec![0; 512]].concat()).unwrap();
}

#[test]
fn damaged_archives_are_refused_or_read_but_never_crash() {
    let case = Case::new();
    let mut archive = pax("SCHILY.xattr.user.x", b"value");
    archive.extend(file(b"first", &[1; 700]));
    archive.extend(with_link(header(b"hard", b'1', 0), b"first"));
    archive.extend(pax("GNU.sparse.map", b"0,5,100,5"));
    archive.extend(file(b"sparse", &[2; 10]));
    archive.extend([0; 1024]);
    let mut bytes = Bytes(0xdead);
    println!("seed {:#x}", bytes.0);
    for _ in 0..300 {
        let mut bad = archive.clone();
        for _ in 0..1 + bytes.next() % 3 {
            let at = bytes.next() as usize % bad.len();
            bad[at] = bytes.next() as u8;
        }
        // Headers with valid checksums get further in the parser.
        for at in (0..bad.len()).step_by(512) {
            if &bad[at + 257..at + 262] == b"ustar" {
                let fixed = checksummed(bad[at..at + 512].to_vec());
                bad[at..at + 512].copy_from_slice(&fixed);
            }
        }
        // A bit flip that makes a size huge is refused as truncation, so every case is quick.
        if case.tar(&bad).is_ok() {
            fs::remove_file(case.image()).unwrap();
        }
    }
}

#[test]
fn precise_errors() {
    let case = Case::new();
    let long = vec![b'n'; 256];
    let mut archive = pax("path", &[b"dir/", &long[..]].concat());
    archive.extend(file(b"short", b"x"));
    let error = case.tar(&archive).unwrap_err();
    assert!(matches!(error, BuildError::NameTooLong { bytes: 256, .. }), "{error}");
    assert!(error.to_string().contains("/dir/nnn"), "{error}");

    let error = case.tar(&with_link(header(b"link", b'1', 0), b"nowhere")).unwrap_err();
    assert!(error.to_string().contains("hard link to \"nowhere\""), "{error}");

    let error = case.tar(&[b'x'; 2048]).unwrap_err();
    assert!(error.to_string().contains("no tar archive"), "{error}");

    let error = case.tar(b"BZh91AY&SY").unwrap_err();
    assert!(error.to_string().contains("bzip2"), "{error}");

    let mut acl = pax("SCHILY.xattr.system.posix_acl_access", b"\x02\0\0\0bad");
    acl.extend(file(b"listed", b"x"));
    let error = case.tar(&acl).unwrap_err();
    assert!(matches!(error, BuildError::Acl { .. }), "{error}");
    assert!(error.to_string().contains("/listed"), "{error}");

    for name in [vec![b'n'; 251], b"nul\0".to_vec()] {
        let mut named = pax(&format!("SCHILY.xattr.user.{}", String::from_utf8(name).unwrap()), b"value");
        named.extend(file(b"file", b"x"));
        let error = case.tar(&named).unwrap_err();
        assert!(matches!(error, BuildError::XattrName { .. }), "{error}");
    }

    let error = case.tar(&header(b"link", b'2', 0)).unwrap_err();
    assert!(matches!(error, BuildError::TargetEmpty { .. }), "{error}");

    let mut device = pax("SCHILY.devmajor", b"4096");
    device.extend(header(b"device", b'4', 0));
    let error = case.tar(&device).unwrap_err();
    assert!(matches!(error, BuildError::DeviceNumber { major: 4096, minor: 0, .. }), "{error}");

    let missing = Source::Directory(case.dir.path().join("missing"));
    let error = case.build(VolumeOptions::default(), Ownership::Source, missing).unwrap_err();
    assert!(matches!(error, BuildError::Source { .. }), "{error}");
}

#[test]
fn too_many_links() {
    let case = Case::new();
    let mut archive = file(b"first", b"x");
    for n in 0..65_000 {
        archive.extend(with_link(header(format!("link-{n}").as_bytes(), b'1', 0), b"first"));
    }
    let error = case.tar(&archive).unwrap_err();
    assert!(matches!(error, BuildError::TooManyLinks { links: 65_001, limit: 65_000, .. }), "{error}");
    case.tar(&archive[..archive.len() - 512]).unwrap();
    assert_clean(&case.image());
}

#[test]
fn too_small_says_how_large() {
    let case = Case::new();
    fs::write(case.source().join("file"), vec![1; 5 << 20]).unwrap();
    let fixed = |bytes| VolumeOptions { size: SizePolicy::Fixed(bytes), ..Default::default() };
    let build = |bytes| case.build(fixed(bytes), Ownership::Source, Source::Directory(case.source()));
    let Err(BuildError::TooSmall { needed, given }) = build(4 << 20) else { panic!("it does not fit") };
    assert_eq!(given, 4 << 20);
    build(needed).unwrap();
    assert_clean(&case.image());
}

#[test]
fn owners_are_mapped_or_refused() {
    let case = Case::new();
    fs::write(case.source().join("file"), b"x").unwrap();
    let meta = fs::metadata(case.source().join("file")).unwrap();
    let map = |uid, gid| {
        let users = vec![IdRange { from: uid, to: 100_000, count: 10 }];
        Ownership::Map(OwnerMap { users, groups: vec![IdRange { from: gid, to: 200_000, count: 1 }] })
    };
    let build = |ownership| case.build(VolumeOptions::default(), ownership, Source::Directory(case.source()));
    let error = build(map(meta.uid() + 1, meta.gid())).unwrap_err();
    assert!(matches!(error, BuildError::Unmapped { what: "user", .. }), "{error}");
    for (ownership, owner) in
        [(map(meta.uid(), meta.gid()), (100_000, 200_000)), (Ownership::AllRoot, (0, 0))]
    {
        build(ownership).unwrap();
        let Some(mount) = Mount::new(&case.image(), "ro") else { return };
        for name in ["", "file"] {
            let meta = fs::metadata(mount.path().join(name)).unwrap();
            assert_eq!((meta.uid(), meta.gid()), owner);
        }
    }
}

/// Builds while `change` is applied to the source, once the first bytes are written.
fn build_while(case: &Case, change: fn(&Path)) -> Result<(), BuildError> {
    let large = case.source().join("large");
    let once = Arc::new(std::sync::Once::new());
    let file = large.clone();
    let progress = move |_, _| once.call_once(|| change(&file));
    let sources = [Source::Directory(case.source())];
    let result = build(&options(case.image()), &sources, &Rt::real(Default::default()), Arc::new(progress));
    case.assert_nothing_left();
    result.map(drop)
}

#[test]
fn sources_that_change_are_noticed() {
    for (change, expected) in [
        (
            (|path| fs::OpenOptions::new().write(true).open(path).unwrap().set_len(1 << 20).unwrap())
                as fn(&Path),
            "shrank",
        ),
        (|path| fs::OpenOptions::new().write(true).open(path).unwrap().set_len(200 << 20).unwrap(), "grew"),
        (|path| fs::remove_file(path).unwrap(), "cannot open"),
        (
            |path| {
                // Replace it atomically, because the other thread may be about to open it.
                std::os::unix::fs::symlink("/etc/passwd", path.with_extension("new")).unwrap();
                fs::rename(path.with_extension("new"), path).unwrap();
            },
            "symbolic link",
        ),
        (
            |path| {
                assert!(must("mkfifo", &[path.with_extension("new").to_str().unwrap()]));
                fs::rename(path.with_extension("new"), path).unwrap();
            },
            "large",
        ),
    ] {
        let case = Case::new();
        fs::write(case.source().join("large"), vec![1; 64 << 20]).unwrap();
        let error = build_while(&case, change).unwrap_err().to_string();
        assert!(error.contains(expected) && error.contains("/large"), "{error}");
    }
}

#[test]
fn a_full_disk_leaves_nothing() {
    let Some(small) = Mount::small() else { return };
    let case = Case::new();
    fs::write(case.source().join("large"), vec![1; 32 << 20]).unwrap();
    let image = small.path().join("image");
    let error = try_build(&options(image.clone()), &[Source::Directory(case.source())]).unwrap_err();
    assert!(error.to_string().contains("No space left on device"), "{error}");
    assert_eq!(fs::read_dir(small.path()).unwrap().count(), 0);
    // An existing image is left as it was.
    fs::write(&image, b"the old one").unwrap();
    try_build(&options(image.clone()), &[Source::Directory(case.source())]).unwrap_err();
    assert_eq!(fs::read(&image).unwrap(), b"the old one");
    assert_eq!(fs::read_dir(small.path()).unwrap().count(), 1);
}

#[test]
fn an_older_image_is_replaced_at_the_end() {
    let case = Case::new();
    fs::write(case.image(), b"old").unwrap();
    fs::write(case.source().join("file"), b"x").unwrap();
    case.directory().unwrap();
    assert_clean(&case.image());
    let names: Vec<_> = fs::read_dir(case.dir.path().join("out")).unwrap().collect();
    assert_eq!(names.len(), 1);
}

#[test]
fn an_older_image_in_the_source_is_not_packed() {
    let case = Case::new();
    fs::write(case.source().join("file"), b"x").unwrap();
    let image = case.source().join("image");
    let build = || try_build(&options(image.clone()), &[Source::Directory(case.source())]).unwrap();
    let (first, second) = (build(), build());
    assert_eq!(first.files, 1);
    assert_eq!(second.files, 1);
    assert_clean(&image);
}

#[test]
fn another_file_system_leaves_its_mount_point() {
    let Some(source) = Mount::small() else { return };
    let inner = source.path().join("inner");
    fs::create_dir(&inner).unwrap();
    let inner = extant_testbed::Mount::tmpfs(&inner, "size=1m");
    fs::write(source.path().join("inner/file"), b"x").unwrap();
    let case = Case::new();
    let build = |one_file_system| {
        let options = extant_image::BuildOptions { one_file_system, ..options(case.image()) };
        try_build(&options, &[Source::Directory(source.path().to_path_buf())]).unwrap()
    };
    let (one, all) = (build(true), build(false));
    drop(inner);
    assert_eq!((one.files, one.directories), (0, 3));
    assert_eq!((all.files, all.directories), (1, 3));
}

#[test]
fn gzip_is_checked_to_its_end() {
    let case = Case::new();
    let plain = [file(b"file", b"x"), vec![0; 1024]].concat();
    let archive = case.dir.path().join("plain.tar");
    fs::write(&archive, plain).unwrap();
    let Some(packed) = tool("gzip", &["-c", archive.to_str().unwrap()]) else { return };
    let packed = packed.stdout;
    for cut in 1..9 {
        let error = case.raw_tar(&packed[..packed.len() - cut]).unwrap_err().to_string();
        assert!(error.contains("cut short"), "{cut}: {error}");
        let mut bad = packed.clone();
        bad[packed.len() - cut] ^= 1;
        case.raw_tar(&bad).unwrap_err();
    }
    // Padding, as on tapes and block devices.
    case.raw_tar(&[packed, vec![0; 700]].concat()).unwrap();
}

#[test]
fn attributes_that_linux_does_not_hand_out_are_refused() {
    let case = Case::new();
    let archive =
        |bytes: usize| [pax("SCHILY.xattr.user.long", &vec![b'v'; bytes]), file(b"a/long", b"x")].concat();
    let build = |bytes: usize, ea_inode: Option<bool>| {
        let path = case.dir.path().join("archive.tar");
        fs::write(&path, [&archive(bytes)[..], &[0; 1024]].concat()).unwrap();
        let features = FeatureChoices { ea_inode, ..Default::default() };
        let volume = VolumeOptions { features, ..Default::default() };
        case.build(volume, Ownership::Source, Source::Tar(path))
    };
    build(64 << 10, Some(true)).unwrap();
    assert_clean(&case.image());
    fs::remove_file(case.image()).unwrap();
    // Features that GRUB does not know are never added unless requested.
    for ea_inode in [None, Some(false)] {
        let refused = build(64 << 10, ea_inode).unwrap_err().to_string();
        assert!(refused.contains("\"/a/long\" need") && refused.contains("-O ea_inode"), "{refused}");
    }
    let refused = case.tar(&archive((64 << 10) + 1)).unwrap_err();
    let told = refused.to_string();
    assert!(told.contains("\"user.long\" of \"/a/long\" has 65537 bytes"), "{told}");
}

#[test]
fn owners_and_capabilities_that_linux_does_not_take_are_refused() {
    let case = Case::new();
    for (key, what) in [("uid", "user"), ("gid", "group")] {
        let archive = [pax(key, b"4294967295"), file(b"a", b"1")].concat();
        let error = case.tar(&archive).unwrap_err().to_string();
        assert!(error.starts_with(&format!("\"/a\" has the {what} id 4294967295")), "{error}");
    }
    let capability = b"\x01\0\0\x02\0\x20\0\0\0\0\0\0\0\0\0\0\0\0\0\0";
    let with =
        |value: &[u8]| case.tar(&[pax("SCHILY.xattr.security.capability", value), file(b"a", b"1")].concat());
    with(capability).unwrap();
    fs::remove_file(case.image()).unwrap();
    for bad in [&b"junk"[..], &capability[..12], &[capability, &[0; 4][..]].concat()] {
        let error = with(bad).unwrap_err().to_string();
        assert!(error.contains("security.capability of \"/a\" holds no file capability"), "{error}");
    }
}
