//! Power cuts during batches of edits.

use super::Edit;
use crate::edit_args::ScriptLine;
use crate::session::Session;
use clap::Parser;
use extant::{OpenOptions, Volume};
use extant_block::{Device, Log, MemDevice, Record};
use extant_format::BlockSize;
use extant_image::{JournalSize, SizePolicy, Timestamp, VolumeOptions, mkfs};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Arc;

/// Files in the batch. Each has an inode table block of its own, so that the log takes several
/// transactions.
const FILES: usize = 900;
/// Number of power cuts tested.
const CUTS: usize = 40;

/// An empty volume with the smallest possible log.
fn empty(dir: &Path) -> Vec<u8> {
    let image = dir.join("image");
    let options = VolumeOptions {
        size: SizePolicy::Fixed(24 << 20),
        block_size: BlockSize::from_log_kib(0),
        inode_size: 1024,
        inodes: Some(2048),
        journal: JournalSize::Blocks(1024),
        ..Default::default()
    };
    let created = Timestamp { seconds: 1_700_000_000, nanos: 0 };
    mkfs(&image, &options, created, &Session::new(true).rt, Arc::new(|_, _| {})).unwrap();
    fs::read(image).unwrap()
}

fn contents(generation: &str, n: usize) -> String {
    format!("{generation} {n} ").repeat(1 + n % 300)
}

/// Files of a generation: every seventh is a symbolic link, every fifth has a second name.
fn fill(dir: &Path, generation: &str) {
    fs::create_dir(dir).unwrap();
    for n in 0..FILES {
        let path = dir.join(format!("f{n}"));
        match n % 7 {
            0 => symlink(format!("{generation} {n}"), path).unwrap(),
            _ => fs::write(&path, contents(generation, n)).unwrap(),
        }
        if n % 35 == 5 {
            fs::hard_link(dir.join(format!("f{n}")), dir.join(format!("g{n}"))).unwrap();
        }
    }
}

/// Runs the lines as one batch on the volume of a device.
fn batch(device: Arc<dyn Device>, lines: &[Vec<&str>]) {
    let session = Session::new(true);
    let options = OpenOptions::new().write(true).offline(true).fixed_time(Some(1_700_000_000));
    let volume = Volume::open_device(&session.rt, device, &options).unwrap();
    for line in lines {
        let ScriptLine { command } = ScriptLine::try_parse_from(line).unwrap();
        Edit::in_script(&session, Path::new("image"), &volume).run(&command).unwrap();
    }
    volume.close().unwrap();
}

/// A sample of points in the log at which the power may fail.
fn cuts(log: &Log) -> Vec<usize> {
    let all = log.durable_points();
    let step = all.len().div_ceil(CUTS).max(1);
    all.into_iter().rev().step_by(step).collect()
}

/// Names in a directory of a disk after recovery, with what they lead to.
fn recovered(disk: Vec<u8>, directory: &str) -> BTreeMap<String, String> {
    let device = Arc::new(MemDevice::from_bytes(disk));
    let options = OpenOptions::new().write(true).offline(true);
    let session = Session::new(true);
    let volume = Volume::open_device(&session.rt, device, &options).unwrap();
    let Ok(dir) = volume.root().open_dir(directory) else { return BTreeMap::new() };
    let mut found = BTreeMap::new();
    for entry in dir.entries().unwrap() {
        let metadata = dir.symlink_metadata(&entry.name).unwrap();
        let text = match metadata.is_file() {
            // Only a complete file has this mode.
            true => {
                assert_eq!(metadata.mode() & 0o7777, 0o644, "of {}", entry.name.escape_ascii());
                dir.read(&entry.name).unwrap()
            }
            false => dir.read_link(&entry.name).unwrap(),
        };
        let name = String::from_utf8(entry.name).unwrap();
        found.insert(name, String::from_utf8(text).unwrap());
    }
    drop(dir);
    assert!(volume.problems().is_empty(), "{:?}", volume.problems());
    volume.close().unwrap();
    found
}

/// Whether a name leads to the file that the generation has under it.
fn is_of(generation: &str, name: &str, text: &str) -> bool {
    let n: usize = name[1..].parse().unwrap_or_else(|_| panic!("a name that nobody gave: {name}"));
    match n % 7 {
        0 => text == format!("{generation} {n}"),
        _ => text == contents(generation, n),
    }
}

#[test]
fn a_batch_that_is_cut_leaves_old_files_and_new_ones_and_no_other_names() {
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    let dir = tempfile::tempdir().unwrap();
    let base = empty(dir.path());
    let (old, new) = (dir.path().join("old"), dir.path().join("new"));
    fill(&old, "old");
    fill(&new, "new");
    let from = |dir: &Path| dir.to_str().unwrap().to_owned();
    let disk = Arc::new(MemDevice::from_bytes(base));
    batch(disk.clone(), &[vec!["put", "-r", &from(&old), "/d"]]);
    let base = disk.to_bytes();
    let record = Arc::new(Record::new(disk));
    // Put a tree with the same names over the old one.
    let over = dir.path().join("d");
    fs::rename(&new, &over).unwrap();
    batch(record.clone(), &[vec!["put", "-r", &from(&over), "/"]]);
    let log = record.log();
    let (mut mixed, cuts) = (0, cuts(&log));
    for (events, lucky) in cuts.iter().flat_map(|&at| [(at, false), (at, true)]) {
        let found = recovered(log.disk_after(&base, events, lucky), "/d");
        let count = FILES + FILES.div_ceil(35);
        assert_eq!(found.len(), count, "after {events} events");
        let replaced = found.iter().filter(|(name, text)| {
            let (is_old, is_new) = (is_of("old", name, text), is_of("new", name, text));
            assert!(is_old || is_new, "/d/{name} after {events} events: {text:?}");
            is_new
        });
        let replaced = replaced.count();
        mixed += u32::from(replaced > 0 && replaced < count);
    }
    assert!(mixed > 0, "{} cuts, none of them within the batch", cuts.len());
}

#[test]
fn new_names_of_a_batch_that_is_cut_lead_to_whole_files() {
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    let dir = tempfile::tempdir().unwrap();
    let base = empty(dir.path());
    let new = dir.path().join("d");
    fill(&new, "new");
    let record = Arc::new(Record::new(Arc::new(MemDevice::from_bytes(base.clone()))));
    batch(record.clone(), &[vec!["put", "-r", new.to_str().unwrap(), "/"]]);
    let log = record.log();
    let (mut partial, cuts) = (0, cuts(&log));
    for (events, lucky) in cuts.iter().flat_map(|&at| [(at, false), (at, true)]) {
        let found = recovered(log.disk_after(&base, events, lucky), "/d");
        for (name, text) in &found {
            assert!(is_of("new", name, text), "/d/{name} after {events} events: {text:?}");
        }
        partial += u32::from(!found.is_empty() && found.len() < FILES);
    }
    assert!(partial > 0, "{} cuts, none of them within the batch", cuts.len());
}
