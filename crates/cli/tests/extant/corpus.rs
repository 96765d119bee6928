//! Damaged volumes: every reading command ends with data or a clear error, in bounded time and
//! memory.
//!
//! The volumes are not part of the project. `EXTANT_CORPUS` names a folder with a subfolder for
//! each, which contains raw images: plain, or compressed as `.gz` or `.bz2`.

use crate::testbed::{Ran, have, run};
use flate2::read::MultiGzDecoder;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Private memory allowed per command, in bytes, as counted by `RLIMIT_DATA`.
const MEMORY_BYTES: u64 = 256 << 20;
/// Processor time allowed per command, per MiB of image and at least, in seconds.
const SECONDS_PER_MIB: u64 = 2;
const SECONDS_MIN: u64 = 10;

/// Structures; every error about a damaged volume must name one.
const STRUCTURES: [&str; 16] = [
    "superblock",
    "descriptor of group",
    "bitmap of group",
    "inode ",
    "directory ",
    "symbolic link ",
    "extent",
    "indirect block",
    "attribute",
    "journal",
    "orphan file",
    "access control list",
    "htree",
    "quota",
    "multiple-mount-protection",
    "sector ",
];

#[test]
fn damaged_volumes_end_in_data_or_clear_errors() {
    let Some(corpus) = std::env::var_os("EXTANT_CORPUS") else {
        println!("skipped: EXTANT_CORPUS names no folder of damaged volumes");
        return;
    };
    if !have("prlimit") || !have("timeout") || !have("tar") {
        return;
    }
    let mut folders: Vec<PathBuf> =
        fs::read_dir(corpus).unwrap().map(|entry| entry.unwrap().path()).collect();
    folders.retain(|path| path.is_dir());
    folders.sort();
    let scratch = tempfile::tempdir().unwrap();
    let mut complaints = Vec::new();
    let mut images = 0;
    for folder in &folders {
        let mut files: Vec<PathBuf> =
            fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
        files.sort();
        while let Some(file) = files.pop() {
            let image = scratch.path().join("image");
            if file.to_string_lossy().contains(".tar") {
                let to = scratch.path().join(folder.file_name().unwrap());
                fs::create_dir(&to).unwrap();
                run("tar", &["-xf", file.to_str().unwrap(), "-C", to.to_str().unwrap()]);
                files.extend(fs::read_dir(to).unwrap().map(|entry| entry.unwrap().path()));
                continue;
            }
            if !unpack(&file, &image) {
                continue;
            }
            images += 1;
            let name = folder.file_name().unwrap().to_string_lossy().into_owned();
            complaints
                .extend(examine(&image, scratch.path()).into_iter().map(|said| format!("{name}: {said}")));
            fs::remove_file(&image).unwrap();
        }
    }
    println!("{images} images in {} folders", folders.len());
    assert!(images > 0, "a corpus without images");
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
}

/// Runs every reading command, and recovery, on one image; returns what went wrong.
fn examine(image: &Path, scratch: &Path) -> Vec<String> {
    let (archive, copy) = (scratch.join("out.tar"), scratch.join("out"));
    let image_arg = image.to_str().unwrap();
    let root = format!("{image_arg}:/");
    let commands: [&[&str]; 8] = [
        &["info", "--verbose", image_arg],
        &["tree", image_arg],
        &["ls", "--long", "--all", "--recursive", "--json", image_arg],
        &["stat", &root],
        &["export", &root, "--output", archive.to_str().unwrap()],
        &["cp", &root, copy.to_str().unwrap()],
        &["export", "--ignore-journal", &root, "--output", archive.to_str().unwrap()],
        // Last, because it writes.
        &["recover", image_arg],
    ];
    let mut complaints = Vec::new();
    for command in commands {
        let ran = limited(command, image);
        let shown = command.join(" ");
        match ran.code {
            Some(0 | 1 | 4) => {}
            Some(3) => {
                let place_named = |line: &str| STRUCTURES.iter().any(|structure| line.contains(structure));
                if !ran.stderr.lines().any(place_named) {
                    complaints.push(format!("{shown}: no structure named: {}", ran.stderr.trim()));
                }
            }
            code => complaints.push(format!("{shown}: ends with {code:?}: {}", ran.stderr.trim())),
        }
        if ran.code == Some(1) && ran.stderr.is_empty() {
            complaints.push(format!("{shown}: fails without a word"));
        }
        if copy.exists() {
            fs::remove_dir_all(&copy).unwrap();
        }
    }
    complaints
}

fn limited(command: &[&str], image: &Path) -> Ran {
    let mib = image.metadata().unwrap().len() >> 20;
    let seconds = (SECONDS_PER_MIB * mib).max(SECONDS_MIN);
    let mut child = Command::new("prlimit");
    child.args([format!("--data={MEMORY_BYTES}"), format!("--cpu={seconds}")]);
    // A limit for waiting without using the processor.
    child.args(["timeout", "--kill-after=5", "600"]);
    child.arg(env!("CARGO_BIN_EXE_extant")).args(command).stdin(Stdio::null());
    child.output().unwrap().into()
}

/// Unpacks the raw image in `file` to `to`, with holes for zeros; `false` if it contains none.
fn unpack(file: &Path, to: &Path) -> bool {
    let name = file.file_name().unwrap().to_string_lossy();
    let mut reader: Box<dyn Read> = if name.ends_with(".gz") {
        Box::new(MultiGzDecoder::new(File::open(file).unwrap()))
    } else if name.ends_with(".bz2") {
        if !have("bzip2") {
            return false;
        }
        let unpacked = Command::new("bzip2").arg("-dc").arg(file).output().unwrap();
        assert!(unpacked.status.success(), "{}", file.display());
        Box::new(io::Cursor::new(unpacked.stdout))
    } else if file.metadata().unwrap().len() >= 64 << 10 {
        Box::new(File::open(file).unwrap())
    } else {
        return false;
    };
    let out = File::create(to).unwrap();
    let mut at = 0;
    let mut block = [0; 4096];
    loop {
        let n = read_full(&mut reader, &mut block).unwrap();
        if n == 0 {
            break;
        }
        // As slices, which are compared fast without optimisation too.
        if block[..n] != [0; 4096][..n] {
            out.write_all_at(&block[..n], at).unwrap();
        }
        at += n as u64;
    }
    out.set_len(at).unwrap();
    true
}

fn read_full(reader: &mut dyn Read, to: &mut [u8]) -> io::Result<usize> {
    let mut done = 0;
    while done < to.len() {
        match reader.read(&mut to[done..])? {
            0 => break,
            n => done += n,
        }
    }
    Ok(done)
}
