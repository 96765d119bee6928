//! Tests the model of the Linux 2.6.6 page cache with a few pages.

use crate::disks::Submitter;
use crate::host::{ModelledHost, ScheduleCaller, world};
use crate::options::{Policies, Tiobench};
use crate::page_cache::BLOCK_BYTES;
use crate::writeback_control::WritebackControl;
use extant_rt::{Class, Nanos};
use extant_sim::{Machine, Sim};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// A world in its initial state, whose queues have this many requests.
fn small(threads: u32, requests: usize) -> (Sim, Arc<ModelledHost>) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../machines/e3000-2004.toml");
    let machine = Machine::load(&path).unwrap();
    let policies = Policies {
        page_waits: "linux-2.6.6".parse().unwrap(),
        buffer_waits: "linux-2.6.6".parse().unwrap(),
        elevator: "anticipatory".parse().unwrap(),
        requests,
    };
    let options = Tiobench { threads, mib_per_thread: 1, random_ops: 0, waiters: 0 };
    world(options, &machine, policies, 1).unwrap()
}

/// Whether a page's frame is locked, dirty, and under write-back.
fn state(host: &ModelledHost, file: u32, page: u64) -> (bool, bool, bool) {
    let cache = host.cache.lock();
    let frame = cache.frames[cache.find(file, page).unwrap() as usize];
    (frame.locked, frame.dirty != 0, frame.writeback)
}

#[test]
fn a_page_is_locked_while_the_bio_before_it_waits_for_a_request() {
    let (sim, host) = small(17, 1);
    let rt = sim.rt();
    rt.block_on(async {
        // Interleave two files that start in the same place, eight blocks at a time, so that a
        // file's second eight blocks are not adjacent to its first eight.
        for file in [0, 16] {
            host.create(file).await;
        }
        for chunk in 0..2 {
            for file in [0, 16] {
                for block in chunk * 8..chunk * 8 + 8 {
                    host.write(file, block).await;
                }
            }
        }
        // Let the batches started by reading bitmaps expire, and give the disk's only request to
        // another write.
        rt.sleep(Nanos::from_millis(50)).await;
        let byte = host.volume.lock().place(0, 0).unwrap() * BLOCK_BYTES;
        let other = host.stripe.pieces(byte + (1 << 20) * 100, 4096)[0];
        assert_eq!(other.0, host.stripe.pieces(byte, 4096)[0].0);
        host.stripe.submit(other, true, Submitter::throttled(1), || {}).await;
        let writer = host.clone();
        let writer = rt.spawn("writer", Class::Normal, async move {
            writer.write_pages(0, &mut WritebackControl::throttled(Submitter::throttled(0), 100)).await;
        });
        rt.sleep(Nanos::from_millis(2)).await;
        assert_eq!(state(&host, 0, 3), (false, false, true), "in the bio that waits");
        assert_eq!(state(&host, 0, 4), (true, false, false), "does not continue it");
        assert_eq!(state(&host, 0, 5), (false, true, false), "not looked at yet");
        // Meanwhile the file's own thread writes to that page, and waits for its lock.
        host.write(0, 8).await;
        assert_eq!(host.sleeps[ScheduleCaller::PageLock as usize].load(Relaxed), 1);
        writer.await.unwrap();
        assert_eq!(state(&host, 0, 5), (false, false, true));
        assert!(state(&host, 0, 4).1, "dirty again");
    })
    .unwrap();
}

#[test]
fn a_throttled_writer_waits_for_requests_and_the_background_does_not() {
    let (sim, host) = small(1, 1);
    let rt = sim.rt();
    rt.block_on(async {
        host.create(0).await;
        for block in 0..8 {
            host.write(0, block).await;
        }
        rt.sleep(Nanos::from_millis(50)).await;
        let byte = host.volume.lock().place(0, 0).unwrap() * BLOCK_BYTES;
        let other = host.stripe.pieces(byte + (1 << 20) * 100, 4096)[0];
        host.stripe.submit(other, true, Submitter::throttled(1), || {}).await;
        let before = rt.now();
        let mut background = WritebackControl::background(100);
        host.write_inodes(&mut background).await;
        assert!(background.encountered_congestion && background.left == 100);
        assert!(rt.now() < before + Nanos::from_millis(1));
        let mut throttled = WritebackControl::throttled(Submitter::throttled(0), 100);
        host.write_inodes(&mut throttled).await;
        // Four pages of the file, and the device pages that its blocks dirtied.
        assert!(throttled.left < 96 && !throttled.encountered_congestion);
        assert!(host.cache.lock().dirty.iter().all(|pages| pages.is_empty()));
        assert!(rt.now() > before + Nanos::from_millis(5));
    })
    .unwrap();
}

/// How many of these device blocks have a valid buffer.
fn cached(host: &ModelledHost, blocks: &BTreeSet<u64>) -> usize {
    let cache = host.cache.lock();
    let pages = host.shape.page_blocks();
    let is_cached = |block: &&u64| {
        cache
            .find(host.shape.device(), *block / pages)
            .is_some_and(|frame| cache.frames[frame as usize].valid & 1 << (*block % pages) != 0)
    };
    blocks.iter().filter(is_cached).count()
}

#[test]
fn a_block_of_pointers_is_dirtied_with_its_file_written_by_its_fsync_and_read_once_when_it_is_not_cached() {
    let (sim, host) = small(1, 128);
    let rt = sim.rt();
    let blocks = host.shape.file_blocks();
    rt.block_on(async {
        host.create(0).await;
        for block in 0..blocks {
            host.write(0, block).await;
        }
        let pointers: BTreeSet<u64> =
            (0..blocks).flat_map(|block| host.volume.lock().branch(0, block)).collect();
        assert_eq!((pointers.len(), cached(&host, &pointers)), (1, 1), "256 blocks need one");
        let buffers = host.sleeps[ScheduleCaller::Buffer as usize].load(Relaxed);
        host.fsync(0).await;
        let (dirty, device) = {
            let cache = host.cache.lock();
            (cache.dirty[0].len(), cache.dirty[host.shape.device() as usize].len())
        };
        // A bitmap of inodes and one of blocks stay dirty: they do not belong to the file.
        assert_eq!((dirty, device), (0, 1), "the two share a page");
        assert!(host.sleeps[ScheduleCaller::Buffer as usize].load(Relaxed) > buffers, "fsync waits for each");

        // The file's pages and its pointer block are evicted; then two tasks look up blocks that
        // need the pointer block.
        host.cache.lock().forget(0);
        host.cache.lock().forget(host.shape.device());
        assert_eq!(cached(&host, &pointers), 0);
        let sent = host.stripe.sent();
        let other = host.clone();
        let other = rt.spawn("other", Class::Normal, async move { other.find_block(0, 20).await });
        host.find_block(0, 30).await;
        host.find_block(0, 200).await;
        host.find_block(0, 3).await;
        other.await.unwrap();
        assert_eq!((host.stripe.sent() - sent, cached(&host, &pointers)), (1, 1));
    })
    .unwrap();
}
