//! The same input gives the same bytes: at any path, in any order of creation, at any time.

mod common;

use common::*;
use extant_image::{Source, Timestamp, VolumeOptions};
use std::fs;

#[test]
fn building_twice_gives_the_same_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let (source, copy) = (dir.path().join("source"), dir.path().join("elsewhere"));
    fs::create_dir(&source).unwrap();
    make_source(&source);
    let (a, b) = (dir.path().join("a"), dir.path().join("b"));
    build_directory(&source, &a, VolumeOptions::default());
    build_directory(&source, &b, VolumeOptions::default());
    assert_eq!(sha256(&a), sha256(&b));
    if must("cp", &["-a", source.to_str().unwrap(), copy.to_str().unwrap()]) {
        build_directory(&copy, &b, VolumeOptions::default());
        assert_eq!(
            sha256(&a),
            sha256(&b),
            "a copy has other inode numbers and another order in its directories"
        );
    }
}

#[test]
fn clamped_times_hide_when_the_source_was_made() {
    let dir = tempfile::tempdir().unwrap();
    let epoch = Timestamp { seconds: 1_500_000_000, nanos: 0 };
    let mut digests = Vec::new();
    for n in 0..2 {
        let source = dir.path().join(format!("source-{n}"));
        fs::create_dir_all(source.join("dir")).unwrap();
        fs::write(source.join("dir/file"), b"contents").unwrap();
        let options =
            extant_image::BuildOptions { clamp_time: Some(epoch), ..options(dir.path().join("image")) };
        try_build(&options, &[Source::Directory(source)]).unwrap();
        assert_clean(&options.output);
        digests.push(sha256(&options.output));
    }
    assert_eq!(digests[0], digests[1]);
}

#[test]
fn other_contents_give_other_ids() {
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("source");
    fs::create_dir(&source).unwrap();
    fs::write(source.join("a"), b"1").unwrap();
    let first = build_directory(&source, &dir.path().join("image"), VolumeOptions::default());
    fs::write(source.join("b"), b"2").unwrap();
    let second = build_directory(&source, &dir.path().join("image"), VolumeOptions::default());
    assert_ne!(first.uuid, second.uuid);
}
