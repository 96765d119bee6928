//! How archives may end, and what may follow them: nothing is dropped silently.

mod common;

use common::entries::{file, pax};
use common::*;
use extant_image::{BuildError, Source};
use std::fs;
use std::os::unix::fs::FileExt;

const ZEROS: &[u8] = &[0; 512];

fn zeros(blocks: usize) -> Vec<u8> {
    ZEROS.repeat(blocks)
}

/// Builds from an archive, plain and compressed; returns the number of files, and the notes.
fn build(parts: &[&[u8]]) -> Result<(u32, Vec<String>), BuildError> {
    let dir = tempfile::tempdir().unwrap();
    let (plain, packed) = (dir.path().join("a.tar"), dir.path().join("a.tar.gz"));
    fs::write(&plain, parts.concat()).unwrap();
    let build = |archive: &std::path::Path| {
        let built = try_build(&options(dir.path().join("image")), &[Source::Tar(archive.to_owned())]);
        built.map(|report| (report.files, report.notes.iter().map(ToString::to_string).collect::<Vec<_>>()))
    };
    let built = build(&plain);
    // Repeat from a stream, which cannot be read twice.
    if let Some(output) = tool("gzip", &["-c", plain.to_str().unwrap()]) {
        fs::write(&packed, output.stdout).unwrap();
        let told = |built: &Result<(u32, Vec<String>), BuildError>| {
            format!("{built:?}").replace("a.tar.gz", "a.tar")
        };
        assert_eq!(told(&build(&packed)), told(&built));
    }
    built
}

#[test]
fn empty_archives_are_zeros() {
    for blocks in [1, 2, 20, 1000] {
        assert_eq!(build(&[&zeros(blocks)]).unwrap(), (0, vec![]), "{blocks} blocks");
    }
    // An archive that is too long to read, unless holes are skipped.
    let dir = tempfile::tempdir().unwrap();
    let archive = dir.path().join("a.tar");
    fs::File::create(&archive).unwrap().set_len(8 << 40).unwrap();
    assert_eq!(try_build(&options(dir.path().join("image")), &[Source::Tar(archive)]).unwrap().files, 0);
}

#[test]
fn zeros_at_the_front_are_no_archive() {
    let entry = file(b"file", b"x");
    let mut iso = vec![0; 80 << 10];
    iso[32 << 10..][..6].copy_from_slice(b"\x01CD001");
    let lost: Vec<_> =
        [1, 2, 8, 20, 200].map(|blocks| [zeros(blocks), entry.clone(), zeros(2)].concat()).into();
    for archive in lost.iter().chain([&iso]) {
        let error = build(&[archive]).unwrap_err().to_string();
        assert!(error.contains("this is no tar archive, or its beginning was lost"), "{error}");
    }
    // A byte far into the file, after a hole.
    let dir = tempfile::tempdir().unwrap();
    let archive = dir.path().join("a.tar");
    fs::File::create(&archive).unwrap().write_all_at(b"x", 1 << 40).unwrap();
    let error =
        try_build(&options(dir.path().join("image")), &[Source::Tar(archive)]).unwrap_err().to_string();
    assert!(error.contains("at byte 1099511627776, before the first entry"), "{error}");
}

#[test]
fn a_lone_zero_block_drops_nothing() {
    let (a, b) = (file(b"a", b"1"), file(b"b", b"2"));
    let (files, notes) = build(&[&a, ZEROS, &b, ZEROS, &pax("path", b"c"), &b, &zeros(2)]).unwrap();
    assert_eq!(files, 3);
    assert_eq!(notes.len(), 1, "{notes:?}");
    assert!(
        notes[0]
            .ends_with("a.tar\": a lone zero block at byte 1024 and 1 more passed over; two end an archive"),
        "{notes:?}"
    );
    // At the end of an archive, one zero block is enough.
    assert_eq!(build(&[&a, ZEROS]).unwrap(), (1, vec![]));
}

#[test]
fn what_follows_the_end_is_told() {
    let (a, b) = (file(b"a", b"1"), file(b"b", b"2"));
    // GNU tar and bsdtar do not read what follows, either.
    for (between, at) in [(2, 2048), (18, 10240)] {
        let (files, notes) = build(&[&a, &zeros(between), &b, &zeros(2)]).unwrap();
        assert_eq!((files, notes.len()), (1, 1), "{notes:?}");
        let told = format!("the archive that begins at byte {at}, behind the end of the first, not read");
        assert!(notes[0].contains(&told), "{notes:?}");
    }
    for garbage in [&b"short"[..], &[7; 5000]] {
        let (files, notes) = build(&[&a, &zeros(3), garbage]).unwrap();
        assert_eq!((files, notes.len()), (1, 1), "{notes:?}");
        assert!(
            notes[0].contains("bytes from 2560 on, behind the end of the archive, not read"),
            "{notes:?}"
        );
    }
    assert_eq!(build(&[&a, &zeros(300)]).unwrap(), (1, vec![]));
}

#[test]
fn entries_behind_a_zeroed_one_are_not_dropped() {
    let (a, b) = (file(b"a", b"1"), file(b"b", &[7; 3000]));
    // The second file's header is zeroed, with or without its first block of contents.
    for archive in [
        [&a[..], &zeros(2), &b[1024..], &a, &zeros(2)].concat(),
        [&a[..], ZEROS, &b[512..], &a, &zeros(2)].concat(),
    ] {
        let error = build(&[&archive]).unwrap_err().to_string();
        assert!(
            error.contains("the archive is damaged: entries follow behind the zeros")
                && error.contains("after entry \"a\""),
            "{error}"
        );
    }
}

#[test]
fn a_layer_is_looked_at_to_its_end() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, parts: &[&[u8]]| {
        let path = dir.path().join(name);
        fs::write(&path, parts.concat()).unwrap();
        Source::Tar(path)
    };
    let lower = write("lower.tar", &[&file(b"a", b"1"), &zeros(2)]);
    let upper = write("upper.tar", &[&zeros(9), &file(b"b", b"1"), &zeros(2)]);
    let options = extant_image::BuildOptions { layers: true, ..options(dir.path().join("image")) };
    let error = try_build(&options, &[lower, upper]).unwrap_err().to_string();
    assert!(error.contains("upper.tar\": this is no tar archive"), "{error}");
}
