//! Streams of files: of files that change meanwhile, and of small files on a read-only volume.

use super::ends::{Gate, created, image, opened, world};
use crate::{Chunk, Error, Follow, OpenOptions, RunState, Volume};
use extant_block::{Bio, Device, IoErrorKind, Limits, MemDevice, Op, Sector};
use extant_format::Inode;
use extant_rt::Rt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// A device that counts reads and has one unreadable block of 4 KiB.
#[derive(Debug)]
struct Watched {
    memory: MemDevice,
    bad_block: Option<u64>,
    reads: AtomicU32,
}

impl Watched {
    fn new(image: &[u8], bad_block: Option<u64>) -> Arc<Self> {
        Arc::new(Self { memory: MemDevice::from_bytes(image.to_vec()), bad_block, reads: AtomicU32::new(0) })
    }
}

impl Device for Watched {
    fn limits(&self) -> &Limits {
        self.memory.limits()
    }

    fn submit(&self, bio: Bio) {
        if bio.op == Op::Read {
            self.reads.fetch_add(1, Ordering::SeqCst);
        }
        let start = bio.start.0 * Sector::BYTES;
        let blocks = start / 4096..(start + bio.bytes).div_ceil(4096);
        match self.bad_block.is_some_and(|bad| blocks.contains(&bad)) {
            true => bio.end_as("watched", Err(IoErrorKind::Os(5))),
            false => self.memory.submit(bio),
        }
    }
}

/// Builds a volume with `count` files of equal length, each filled with its number.
async fn with_files(rt: &Rt, image: &[u8], count: u16, len: usize) -> Vec<u8> {
    let gate = Gate::new(image);
    let (volume, _cache) = opened(rt, &gate).await;
    for n in 0..count {
        let file = created(&volume, format!("{n:03}").as_bytes()).await;
        file.write(0, &vec![n as u8; len]).await.unwrap();
    }
    volume.close().await.unwrap();
    gate.bytes()
}

async fn inodes(volume: &Volume, count: u16) -> Vec<Inode> {
    let mut inodes = Vec::new();
    for n in 0..count {
        inodes.push(volume.resolve(format!("/{n:03}").as_bytes(), Follow::No).await.unwrap());
    }
    inodes
}

#[test]
fn a_bad_block_costs_nothing_but_itself() {
    const LEN: usize = 10_000;
    let Some(image) = image(16, "-t ext4 -b 4096 -N 64") else { return };
    let sim = world();
    sim.rt()
        .block_on(async {
            let image = with_files(sim.rt(), &image, 12, LEN).await;
            let volume = Volume::open(Watched::new(&image, None), OpenOptions::default()).await.unwrap();
            let damaged = &inodes(&volume, 12).await[5];
            let run = volume.runs(damaged).next().await.unwrap().unwrap();
            let RunState::Written(first) = run.state else { panic!("{run:?}") };
            assert_eq!(run.blocks, 3);
            let device = Watched::new(&image, Some(first.0 + 1));
            let volume = Volume::open(device, OpenOptions::default()).await.unwrap();
            for (n, inode) in inodes(&volume, 12).await.into_iter().enumerate() {
                let mut stream = volume.stream(inode).await.unwrap();
                let (mut read, mut failed) = (vec![None; LEN], 0);
                loop {
                    match stream.next().await {
                        Ok(Some(Chunk::Data { offset, bytes })) => {
                            let at = offset as usize;
                            read[at..at + bytes.len()].fill(Some(n as u8));
                            assert!(bytes.iter().all(|&byte| byte == n as u8));
                        }
                        Ok(Some(Chunk::Hole { .. })) => panic!("file {n} has no hole"),
                        Ok(None) => break,
                        Err(lost) => {
                            assert!(matches!(lost.error, Error::Io(_)), "{lost}");
                            failed += 1;
                        }
                    }
                }
                let missing = read.iter().filter(|byte| byte.is_none()).count();
                assert_eq!((missing, failed), if n == 5 { (4096, 1) } else { (0, 0) }, "file {n}");
            }
        })
        .unwrap();
}

#[test]
fn contents_that_are_read_do_not_evict_metadata() {
    // More than a read-only volume keeps in memory.
    const COUNT: u16 = 640;
    let Some(image) = image(64, "-t ext4 -b 4096 -N 1024") else { return };
    let sim = world();
    sim.rt()
        .block_on(async {
            let device = Watched::new(&with_files(sim.rt(), &image, COUNT, 60 << 10).await, None);
            let volume = Volume::open(device.clone(), OpenOptions::default()).await.unwrap();
            for inode in inodes(&volume, COUNT).await {
                let mut stream = volume.stream(inode).await.unwrap();
                while stream.next().await.unwrap().is_some() {}
            }
            let before = device.reads.load(Ordering::SeqCst);
            inodes(&volume, COUNT).await;
            assert_eq!(device.reads.load(Ordering::SeqCst), before, "names and inodes are in memory");
        })
        .unwrap();
}

#[test]
fn a_stream_beside_a_truncation_has_no_bytes_of_another_file() {
    const LEN: usize = 12 << 20;
    let Some(image) = image(24, "-t ext4 -b 4096 -N 64") else { return };
    let sim = world();
    let rt = sim.rt();
    rt.block_on(async {
        let gate = Gate::new(&image);
        let (volume, _cache) = opened(rt, &gate).await;
        let (file, other) = (created(&volume, b"file").await, created(&volume, b"other").await);
        file.write(0, &vec![1; LEN]).await.unwrap();
        volume.sync().await.unwrap();
        let inode = volume.resolve(b"/file", Follow::No).await.unwrap();
        let mut stream = volume.stream(inode).await.unwrap();
        let mut bytes = 0;
        while let Some(chunk) = stream.next().await.unwrap() {
            if bytes == 0 {
                file.set_size(0).await.unwrap();
                volume.sync().await.unwrap();
                other.write(0, &vec![2; LEN]).await.unwrap();
                volume.sync().await.unwrap();
            }
            bytes += match chunk {
                Chunk::Data { offset, bytes: data } => {
                    assert_eq!(offset, bytes);
                    assert!(!data.contains(&2), "bytes of another file behind {offset}");
                    data.len() as u64
                }
                Chunk::Hole { offset, bytes: len } => {
                    assert_eq!(offset, bytes);
                    len
                }
            };
        }
        assert_eq!(bytes, LEN as u64, "as long as the file was");
    })
    .unwrap();
}
