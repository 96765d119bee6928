//! Every difference between a volume and its sources is noted once, and nothing else is.

mod common;

use common::entries::{file, header, pax, with_link};
use common::*;
use extant_format::BlockSize;
use extant_image::{BuildOptions, BuildReport, SizePolicy, Source, VolumeOptions};
use std::fs;
use std::path::Path;

fn build_archives(dir: &Path, archives: &[Vec<u8>], inode_size: u16, layers: bool) -> BuildReport {
    let sources: Vec<Source> = archives
        .iter()
        .enumerate()
        .map(|(n, entries)| {
            let path = dir.join(format!("{n}.tar"));
            fs::write(&path, [&entries[..], &[0; 1024]].concat()).unwrap();
            Source::Tar(path)
        })
        .collect();
    let volume = VolumeOptions { inode_size, ..Default::default() };
    let image = dir.join("image");
    let report = try_build(&BuildOptions { volume, layers, ..options(image.clone()) }, &sources).unwrap();
    assert_clean(&image);
    report
}

fn notes(report: &BuildReport) -> Vec<String> {
    report.notes.iter().map(ToString::to_string).collect()
}

#[test]
fn attributes_without_a_place_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let quarantine = pax("LIBARCHIVE.xattr.com.apple.quarantine", b"eA");
    let kept = [pax("SCHILY.xattr.user.kept", b"v"), file(b"b", b"2")].concat();
    let archive = [&quarantine[..], &file(b"a", b"1"), &kept, &quarantine, &file(b"d/c", b"3")].concat();
    let told = notes(&build_archives(dir.path(), &[archive], 256, false));
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(
        told[0].starts_with("extended attribute \"com.apple.quarantine\" of \"/a\" and 1 more left out"),
        "{told:?}"
    );
}

#[test]
fn attributes_on_files_that_cannot_have_them_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let link = |name: &[u8]| with_link(header(name, b'2', 0), b"target");
    let list =
        b"\x02\0\0\0\x01\0\x07\0\xff\xff\xff\xff\x04\0\x05\0\xff\xff\xff\xff\x20\0\x05\0\xff\xff\xff\xff";
    let user = pax("SCHILY.xattr.user.kept", b"v");
    let default = pax("SCHILY.xattr.system.posix_acl_default", list);
    let kept = [&user[..], &file(b"a", b"1"), &default, &header(b"d/", b'5', 0)].concat();
    let lost = [&user[..], &link(b"l"), &user, &header(b"p", b'6', 0), &default, &file(b"f", b"2")].concat();
    let told = notes(&build_archives(dir.path(), &[[kept, lost].concat()], 256, false));
    assert_eq!(told.len(), 2, "{told:?}");
    assert!(told[0].contains("\"system.posix_acl_default\" of \"/f\" left out: on Linux"), "{told:?}");
    assert!(told[1].contains("\"user.kept\" of \"/l\" and 1 more left out: on Linux"), "{told:?}");
}

#[test]
fn times_that_do_not_fit_are_told() {
    for (inode_size, mtime, nearest) in [
        (128, "4102444800", "2038-01-19 03:14:07 UTC"),
        (256, "4102444800", ""),
        (256, "99999999999", "2446-05-10 22:38:55 UTC"),
        (256, "-99999999999.5", "1901-12-13 20:45:52 UTC"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let archive = [pax("mtime", mtime.as_bytes()), file(b"then", b"1")].concat();
        let told = notes(&build_archives(dir.path(), &[archive], inode_size, false));
        assert_eq!(told.len(), usize::from(!nearest.is_empty()), "{inode_size}, {mtime}: {told:?}");
        if let Some(told) = told.first() {
            assert!(told.starts_with("time of \"/then\" replaced") && told.contains(nearest), "{told}");
            let shown = tool("debugfs", &["-R", "stat /then", dir.path().join("image").to_str().unwrap()]);
            let year = format!(" {}\n", &nearest[..4]);
            assert!(shown.is_none_or(|shown| text(&shown).contains(&year)), "{inode_size}, {mtime}");
        }
    }
}

#[test]
fn entries_whose_directory_is_replaced_are_told() {
    let dir = tempfile::tempdir().unwrap();
    let folder = |name: &[u8]| header(name, b'5', 0);
    let entries = [folder(b"a/"), file(b"a/x", b"1"), folder(b"a/y/"), file(b"a/y/z", b"2"), folder(b"b/")];
    let files = [file(b"a", b"3"), file(b"b", b"4")];
    let one = [entries.concat(), files.concat()].concat();
    for layers in [false, true] {
        let told = notes(&build_archives(dir.path(), std::slice::from_ref(&one), 256, layers));
        assert_eq!(told.len(), 1, "{told:?}");
        assert!(told[0].contains("0.tar\": \"/a/x\" and 2 more left out: the same source"), "{told:?}");
    }
    // A later source may replace them.
    let two = [entries.concat(), files.concat()];
    for layers in [false, true] {
        assert_eq!(notes(&build_archives(dir.path(), &two, 256, layers)), [] as [String; 0]);
    }
}

#[test]
fn file_flags_are_told() {
    let dir = tempfile::tempdir().unwrap();
    let flags = |text: &[u8]| pax("SCHILY.fflags", text);
    let first = [flags(b"immutable,nodump"), file(b"a", b"1"), flags(b""), file(b"b", b"2")].concat();
    let archive = [first, flags(b"noatime"), header(b"d/", b'5', 0)].concat();
    let told = notes(&build_archives(dir.path(), &[archive], 256, false));
    assert_eq!(told.len(), 1, "{told:?}");
    let expected = "0.tar\": file flags \"immutable,nodump\" of \"a\" and 1 more left out";
    assert!(told[0].ends_with(expected), "{told:?}");
}

#[test]
fn whiteouts_are_applied_or_told() {
    let dir = tempfile::tempdir().unwrap();
    let lower = [file(b"etc/gone", b"1"), file(b"etc/kept", b"2"), file(b"opaque/hidden", b"3")].concat();
    let upper = [file(b"etc/.wh.gone", b""), file(b"opaque/.wh..wh..opq", b""), file(b"opaque/new", b"4")];
    let archives = [lower, upper.concat()];
    let report = build_archives(dir.path(), &archives, 256, true);
    assert_eq!(notes(&report), [] as [String; 0]);
    assert_eq!(report.files, 2, "etc/kept and opaque/new");

    let report = build_archives(dir.path(), &archives, 256, false);
    let told = notes(&report);
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].contains("1.tar\": whiteout \"etc/.wh.gone\" and 1 more taken as a file"), "{told:?}");
    assert_eq!(report.files, 6);
}

#[test]
fn a_file_from_the_future_keeps_its_time_and_does_not_date_the_volume() {
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("source");
    fs::create_dir(&source).unwrap();
    let at = |seconds| std::time::UNIX_EPOCH + std::time::Duration::from_secs(seconds);
    let date = |name: &str, seconds| {
        let file = fs::File::create(source.join(name)).unwrap();
        file.set_modified(at(seconds)).unwrap();
    };
    // Creation and last check, from the superblock (Linux's ext4.h).
    let dates = || {
        let image = dir.path().join("image");
        build_directory(&source, &image, VolumeOptions::default());
        assert_clean(&image);
        let bytes = fs::read(image).unwrap();
        [0x108, 0x40].map(|at| u32::from_le_bytes(bytes[1024 + at..][..4].try_into().unwrap()))
    };
    date("future", 15_000_000_000);
    date("past", 1_000_000_000);
    fs::File::open(&source).unwrap().set_modified(at(900_000_000)).unwrap();
    assert_eq!(dates(), [1_000_000_000; 2]);
    // If nothing has a time, the volume gets the current time.
    fs::remove_file(source.join("past")).unwrap();
    fs::File::open(&source).unwrap().set_modified(at(15_000_000_000)).unwrap();
    let [created, checked] = dates();
    assert!(created == checked && (1_700_000_000..4_000_000_000).contains(&created), "{created}");
}

#[test]
fn sizes_are_multiples_of_4_kib_whatever_the_blocks() {
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("source");
    fs::create_dir(&source).unwrap();
    for kib in [0, 1, 300, 8190] {
        fs::write(source.join("file"), vec![1; kib << 10]).unwrap();
        for block_bytes in [1024, 2048] {
            for size in [SizePolicy::Exact, SizePolicy::PlusPercent(3)] {
                let image = dir.path().join("image");
                let block_size = BlockSize::from_bytes(block_bytes);
                let volume = VolumeOptions { block_size, size, ..VolumeOptions::default() };
                let report = build_directory(&source, &image, volume);
                assert_eq!((report.block_bytes, report.image_bytes % 4096), (block_bytes, 0), "{kib} KiB");
                assert_clean(&image);
            }
        }
    }
}

#[test]
fn room_in_bytes_holds_a_file_of_that_size() {
    let dir = tempfile::tempdir().unwrap();
    let (source, image) = (dir.path().join("source"), dir.path().join("image"));
    fs::create_dir(&source).unwrap();
    for (kib, room) in [(10, 5 << 20), (9000, 1 << 20), (9000, 40 << 20)] {
        fs::write(source.join("file"), vec![1; kib << 10]).unwrap();
        let volume = VolumeOptions { size: SizePolicy::PlusBytes(room), ..VolumeOptions::default() };
        let report = build_directory(&source, &image, volume);
        assert!(report.free_bytes < room + room / 10 + (1 << 20), "{report:?}");
        let Some(mount) = Mount::new(&image, "rw") else { return };
        fs::write(mount.path().join("new"), vec![2; room as usize]).unwrap();
        drop(mount);
        assert_clean(&image);
    }
}
