//! Files of a volume open for reading, read through pages.

use super::ends::{Gate, created, opened, world};
use super::unreadable::{Bad, image_of_any_block_size, noise, place_of, reading};
use crate::{Follow, Volume};
use extant_block::Device;
use extant_cache::{CacheConfig, PageCache};
use extant_format::InodeNumber;
use extant_rt::Rt;
use std::sync::Arc;

/// A volume open for reading whose files have pages, and their cache.
pub(super) async fn cached(rt: &Rt, device: Arc<dyn Device>) -> (Volume, PageCache) {
    cached_within(rt, device, 16 << 20).await
}

async fn cached_within(rt: &Rt, device: Arc<dyn Device>, budget_bytes: u64) -> (Volume, PageCache) {
    let cache = PageCache::new(rt, CacheConfig::with_budget(budget_bytes)).unwrap();
    let disk = cache.attach(device);
    (reading(disk.device().clone()).await.cached_by(&disk), cache)
}

#[test]
fn a_bad_sector_in_a_small_file_costs_its_neighbours_nothing() {
    const LEN: usize = 9000;
    for args in ["-t ext4 -b 4096 -N 64", "-t ext2 -b 1024 -N 64"] {
        let Some(empty) = image_of_any_block_size(args) else { return };
        let sim = world();
        let run = async {
            let gate = Gate::new(&empty);
            let (volume, _cache) = opened(sim.rt(), &gate).await;
            for n in 0..5 {
                let name = format!("{n}");
                created(&volume, name.as_bytes()).await.write(0, &noise(n, LEN)).await.unwrap();
            }
            volume.close().await.unwrap();
            let image = gate.bytes();
            let volume = reading(Bad::new(&image, &[])).await;
            let block = u64::from(volume.superblock().block_size().bytes());
            let bad = 4100 / block * block;
            let inode = volume.resolve(b"/2", Follow::No).await.unwrap();
            let sector = place_of(&volume, &inode, bad).await;
            let (volume, _cache) = cached(sim.rt(), Bad::new(&image, &[(sector, sector + 512)])).await;
            for _ in 0..2 {
                for n in 0..5 {
                    let inode = volume.resolve(format!("/{n}").as_bytes(), Follow::No).await.unwrap();
                    let file = volume.open_file(inode).await.unwrap();
                    let (mut at, mut bytes, mut lost) = (0, vec![0; LEN], Vec::new());
                    while at < LEN {
                        match file.read_at(at as u64, &mut bytes[at..]).await {
                            Ok(read) => at += read,
                            Err(_) => {
                                lost.push(at as u64);
                                at += block as usize;
                            }
                        }
                    }
                    let expected = noise(n, LEN);
                    let is_hit = |at: usize| n == 2 && at as u64 / block == bad / block;
                    assert_eq!(lost, Vec::from_iter((n == 2).then_some(bad)), "{args}, file {n}");
                    assert!((0..LEN).all(|at| bytes[at] == expected[at] || is_hit(at)), "{args}, file {n}");
                }
            }
        };
        sim.rt().block_on(run).unwrap();
    }
}

#[test]
fn metadata_counts_against_the_budget() {
    const LEN: usize = 5 << 20;
    let Some(empty) = image_of_any_block_size("-t ext4 -b 4096 -N 8192 -I 256") else { return };
    let sim = world();
    let run = async {
        let gate = Gate::new(&empty);
        let (volume, _cache) = opened(sim.rt(), &gate).await;
        created(&volume, b"large").await.write(0, &vec![7; LEN]).await.unwrap();
        volume.close().await.unwrap();
        let (volume, cache) = cached_within(sim.rt(), Bad::new(&gate.bytes(), &[]), 4 << 20).await;
        let inode = volume.resolve(b"/large", Follow::No).await.unwrap();
        let file = volume.open_file(inode).await.unwrap();
        // The pages of the file take all of the budget, until 2 MiB of inodes are read.
        assert_eq!(file.read_at(0, &mut vec![0; LEN]).await.unwrap(), LEN);
        for number in (16..=8192).step_by(16) {
            volume.inode(InodeNumber(number)).await.unwrap();
        }
        let usage = cache.usage();
        let pages_bytes = (usage.frames - usage.parked) * extant_cache::PAGE_BYTES as u64;
        assert!(pages_bytes <= (4 << 20) - (512 << 10), "{usage:?}");
        assert_eq!(file.read_at(0, &mut vec![0; LEN]).await.unwrap(), LEN, "and the file is still read");
    };
    sim.rt().block_on(run).unwrap();
}
