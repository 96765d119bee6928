//! Tests of files on volumes made by mke2fs, with free space full of garbage. Results are checked
//! against a vector in memory, debugfs and e2fsck.

mod ahead;
mod beside;
mod clusters;
mod crash;
mod defrag;
mod direct;
mod durable;
mod emptied;
mod faults;
mod interrupted;
mod journalled;
mod promises;
mod reached;
mod refusals;
mod sizes;
mod steps;

use super::*;
use crate::journal::{Credits, Journal, JournalOptions};
use crate::meta::{InodeCell, MetaStore, Tid};
use crate::writer::{ErrorPolicy, Errors, MountFlags, Writer};
use crate::{Error, Volume};
use extant_block::{Buf, Device, FileDevice};
use extant_cache::blocks::Blocks;
use extant_cache::{ByteRange, CacheConfig, PageCache};
use extant_format::{BlockRange, Inode, InodeNumber};
use extant_rt::{Rng, Rt};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::task::Poll;

const NOW: i64 = 1_700_000_000;

fn run(command: &str, args: &[&str]) -> String {
    let out = Command::new(command).args(args).stdin(Stdio::null()).output().unwrap();
    String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr)
}

fn have_tools() -> bool {
    let found = ["mke2fs", "e2fsck", "debugfs"].iter().all(|tool| {
        Command::new(tool).arg("-V").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok()
    });
    if !found {
        println!("skipped: e2fsprogs is not installed (apt-get install e2fsprogs)");
    }
    found
}

/// Makes a volume over garbage, with files `0`, `1`, … of these contents.
pub(super) fn make(dir: &Path, mib: usize, args: &str, files: &[Vec<u8>]) -> PathBuf {
    let (image, source) = (dir.join("image"), dir.join("source"));
    std::fs::create_dir(&source).unwrap();
    for (n, bytes) in files.iter().enumerate() {
        std::fs::write(source.join(n.to_string()), bytes).unwrap();
    }
    let mut file = std::fs::File::create(&image).unwrap();
    (0..mib).for_each(|_| file.write_all(&[0xa5; 1 << 20]).unwrap());
    drop(file);
    let mut all: Vec<&str> = args.split(' ').collect();
    all.extend(["-F", "-q", "-E", "nodiscard,lazy_journal_init=1", "-d", source.to_str().unwrap()]);
    all.push(image.to_str().unwrap());
    let said = run("mke2fs", &all);
    let harmless = ["128-byte inodes", "Warning: blocksize "].iter().any(|line| said.starts_with(line));
    assert!(said.is_empty() || harmless, "mke2fs {all:?}: {said}");
    image
}

/// A volume open for writing, without names.
pub(super) struct Bed {
    pub(super) rt: Rt,
    pub(super) cache: PageCache,
    pub(super) writer: Arc<Writer>,
    pub(super) files: Arc<FilesInMemory>,
}

impl Bed {
    pub(super) async fn open(rt: &Rt, device: Arc<dyn Device>, budget: u64) -> Self {
        let sb = crate::read_superblock(&*device, 1024).await.unwrap();
        let blocks = Blocks::new(device.clone(), sb.block_size().byte_len(), 1 << 20);
        let store = Arc::new(MetaStore::load(rt, blocks, &sb).await.unwrap());
        let options =
            JournalOptions { pinned_bytes_max: 64 << 20, commit_interval: None, fixed_time: Some(NOW) };
        let cache = PageCache::new(rt, CacheConfig::with_budget(budget)).unwrap();
        let disk = cache.attach(device);
        let journal = Journal::new(rt, store.clone(), &disk, None, Tid::first(1), options);
        let errors = Errors::new(ErrorPolicy::Continue);
        let (writer, _) =
            Writer::new(rt, store, journal, &disk, vec![], &[], Some(NOW), errors, MountFlags::default())
                .await
                .unwrap();
        let files = FilesInMemory::new(&writer, &disk);
        Self { rt: rt.clone(), cache, writer, files }
    }

    pub(super) async fn file(&self, number: InodeNumber, options: FileOptions) -> (Arc<InodeCell>, OpenFile) {
        let cell = self.writer.inodes.get(number).await.unwrap();
        let file = self.files.open(&cell, options).unwrap();
        (cell, file)
    }

    pub(super) async fn close(self) {
        self.files.write_back().await.unwrap();
        self.commit_counts().await;
        assert_eq!(self.writer.alloc.problems().len(), 0);
        self.cache.audit();
    }

    /// Commits, including the volume's final free counts.
    pub(super) async fn commit_counts(&self) {
        let writer = &*self.writer;
        let (clusters, inodes) = writer.store.groups().free_totals();
        let blocks = clusters << writer.store.shape().cluster_size().log2();
        let counts = writer.alloc.statfs();
        assert_eq!((counts.free, counts.free_inodes), (blocks, inodes), "nothing is promised at the end");
        {
            let mut handle = writer.journal.start(Credits(1)).await.unwrap();
            let mut sb = handle.superblock();
            sb.raw_mut().s_free_blocks_count_lo = (blocks as u32).into();
            sb.raw_mut().s_free_inodes_count = (inodes as u32).into();
        }
        writer.journal.commit(writer.journal.running()).await.unwrap();
    }
}

/// Polls a future once. Returns whether it is ready.
pub(super) async fn poll_once<T>(future: &mut Pin<Box<impl Future<Output = T>>>) -> bool {
    std::future::poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx).is_ready())).await
}

pub(super) fn device(image: &Path) -> Arc<dyn Device> {
    let options = extant_block::FileOptions { write: true, ..Default::default() };
    Arc::new(FileDevice::open(image, options).unwrap())
}

/// Inode numbers of the files `0`, `1`, …
pub(super) async fn numbers(image: &Path, count: usize) -> Vec<InodeNumber> {
    let volume = Volume::open(device(image), Default::default()).await.unwrap();
    let mut numbers = Vec::new();
    for n in 0..count {
        let path = format!("/{n}");
        numbers.push(volume.resolve(path.as_bytes(), crate::Follow::No).await.unwrap().number);
    }
    numbers
}

pub(super) fn check_is_silent(image: &Path, what: &str) {
    let said = run("e2fsck", &["-fn", image.to_str().unwrap()]);
    let advice = |line: &str| line.contains("could be narrower") || line.contains("could be shorter");
    let lines: Vec<_> = said
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with("e2fsck ") && !advice(line))
        .collect();
    let passes = lines.iter().filter(|line| line.starts_with("Pass ")).count();
    assert!(passes == 5 && lines.len() == 6, "{what}: {said}");
}

pub(super) fn dumped(image: &Path, number: InodeNumber) -> Vec<u8> {
    let out = image.with_extension("dump");
    let command = format!("dump <{number}> {}", out.to_str().unwrap());
    let said = run("debugfs", &["-R", &command, image.to_str().unwrap()]);
    std::fs::read(&out).unwrap_or_else(|error| panic!("{error}: {said}"))
}

pub(super) fn bytes(rng: &mut Rng, len: usize) -> Vec<u8> {
    let mut word = rng.next_u64() | 1;
    let mut next = || {
        word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (word >> 33) as u8
    };
    (0..len).map(|_| next()).collect()
}

/// Runs random operations on the files, updating their expected contents in `models`.
async fn exercise(
    bed: &Bed,
    files: &[OpenFile],
    models: &mut [Vec<u8>],
    rng: &mut Rng,
    ops: usize,
    max: u64,
) {
    for n in 0..ops {
        let at = rng.below(files.len() as u64) as usize;
        let (file, model) = (&files[at], &mut models[at]);
        let what = rng.below(20);
        match what {
            0..=9 => {
                let offset = if rng.below(3) == 0 { model.len() as u64 } else { rng.below(max) };
                let longest = if rng.below(4) == 0 { 100_000 } else { 6000 };
                let length = rng.below(longest) as usize + 1;
                let direct = rng.below(4) == 0;
                let (offset, length) = match direct {
                    true => (offset / 4096 * 4096, length.next_multiple_of(512)),
                    false => (offset, length),
                };
                let data = bytes(rng, length);
                let written = match direct {
                    true => file.write_direct(offset, Buf::from_slice(&data)).await.1,
                    false => file.write(offset, &data).await,
                };
                let done = match written {
                    Ok(done) => done,
                    Err(Error::NoSpace) => continue,
                    Err(other) => panic!("op {n}: {other}"),
                };
                if model.len() < offset as usize + done {
                    model.resize(offset as usize + done, 0);
                }
                model[offset as usize..][..done].copy_from_slice(&data[..done]);
            }
            10..=12 => {
                let size = if rng.below(6) == 0 { 0 } else { rng.below(max) };
                match file.set_size(size).await {
                    Ok(()) => model.resize(size as usize, 0),
                    Err(Error::NoSpace) => {}
                    Err(other) => panic!("op {n}: {other}"),
                }
            }
            13..=16 => {
                let offset = rng.below(max);
                let mut read = Buf::zeroed(rng.below(50_000) as usize);
                let (offset, got) = if rng.below(3) == 0 {
                    let offset = offset / 512 * 512;
                    let (buf, got) = file.read_direct(offset, Buf::zeroed(read.len() / 512 * 512)).await;
                    read = buf;
                    (offset, got.unwrap())
                } else {
                    (offset, file.read(offset, &mut read).await.unwrap())
                };
                let from = (offset as usize).min(model.len());
                let want = &model[from..(from + read.len()).min(model.len())];
                assert!(read[..got] == *want, "op {n}: file {at} reads what was written");
            }
            17 => file.sync().await.unwrap(),
            18 => file.datasync().await.unwrap(),
            _ => bed.files.write_back().await.unwrap(),
        }
        assert_eq!(file.size(), model.len() as u64, "op {n}, {what}");
    }
}

fn judge(name: &str, mib: usize, args: &str, max: u64, budget: u64, seed: u64) {
    println!("{name}: EXTANT_SEED={seed}");
    let dir = tempfile::tempdir().unwrap();
    let rt = Rt::real(Default::default());
    let mut rng = Rng::labelled(seed, name);
    let mut models: Vec<Vec<u8>> =
        [0usize, 1, 3000, 70_000].iter().map(|&len| bytes(&mut rng, len)).collect();
    let image = make(dir.path(), mib, args, &models);
    let numbers = rt
        .block_on(async {
            let numbers = numbers(&image, models.len()).await;
            let bed = Bed::open(&rt, device(&image), budget).await;
            let mut files = Vec::new();
            for &number in &numbers {
                files.push(bed.file(number, FileOptions::default()).await.1);
            }
            exercise(&bed, &files, &mut models, &mut rng, 400, max).await;
            drop(files);
            bed.close().await;
            numbers
        })
        .unwrap();
    check_is_silent(&image, &format!("{name}, seed {seed}"));
    for (number, model) in numbers.iter().zip(&models) {
        let found = dumped(&image, *number);
        assert_eq!(found.len(), model.len(), "{name}, seed {seed}: size of inode {number}");
        let first = found.iter().zip(model).position(|(a, b)| a != b);
        assert_eq!(first, None, "{name}, seed {seed}: inode {number} differs from this byte on");
    }
}

#[test]
fn files_hold_what_was_written_on_every_geometry() {
    if !have_tools() {
        return;
    }
    let seed = std::env::var("EXTANT_SEED").map_or(1, |seed| seed.parse().unwrap());
    for (name, mib, args, max) in [
        ("ext4 4k", 32, "-t ext4 -b 4096 -O ^has_journal -N 256", 4 << 20),
        ("ext4 1k", 32, "-t ext4 -b 1024 -g 2048 -O ^has_journal -N 256", 1 << 20),
        ("ext4 64k", 64, "-t ext4 -b 65536 -O ^has_journal -N 256", 4 << 20),
        ("ext2 1k", 32, "-t ext2 -b 1024 -I 128 -N 256", 1 << 20),
        ("ext2 4k", 32, "-t ext2 -b 4096 -N 256", 1 << 20),
        ("bigalloc", 32, "-t ext4 -b 1024 -O ^has_journal,bigalloc -C 8192 -N 256", 1 << 20),
        ("inline data", 32, "-t ext4 -b 4096 -O ^has_journal,inline_data -I 512 -N 256", 100_000),
        ("full volume", 2, "-t ext4 -b 1024 -O ^has_journal -m 0 -N 64", 1 << 20),
    ] {
        judge(name, mib, args, max, 64 << 20, seed);
        judge(&format!("{name}, small cache"), mib, args, max, 4 << 20, seed);
    }
}

#[test]
fn names_of_errors_survive_the_cache() {
    let error = cache_errors::refusal(Error::NoSpace);
    assert!(matches!(cache_errors::cache_error(error.into()), Error::NoSpace));
}

#[test]
fn sizes_end_where_maps_do() {
    if !have_tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = make(dir.path(), 16, "-t ext4 -b 1024 -O ^has_journal -N 64", &[vec![]]);
    let rt = Rt::real(Default::default());
    rt.block_on(async {
        let number = numbers(&image, 1).await[0];
        let bed = Bed::open(&rt, device(&image), 16 << 20).await;
        let (cell, file) = bed.file(number, FileOptions::default()).await;
        let max = ((1u64 << 32) - 1) << 10;
        assert!(matches!(file.set_size(max + 1).await, Err(Error::TooBig(_))));
        assert!(matches!(file.write(max, b"x").await, Err(Error::TooBig(_))));
        file.set_size(max).await.unwrap();
        assert_eq!(
            file.write(max - 1, b"xy").await.unwrap(),
            1,
            "a write that begins below the end is shortened"
        );
        file.sync().await.unwrap();
        assert_eq!(cell.read(Inode::size), max);
        file.set_size(0).await.unwrap();
        drop(file);
        bed.close().await;
    })
    .unwrap();
    check_is_silent(&image, "after the largest size");
}
