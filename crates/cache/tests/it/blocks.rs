//! Tests backings that are not one run: small blocks, large blocks, holes, allocation at
//! write-back.

use crate::common::{Gate, run, world};
use extant_block::Sector;
use extant_cache::{
    Answer, Backing, ByteRange, CacheConfig, DirtyRun, PAGE_BYTES, PageCache, Placed, ReadExtent, ReadFrom,
    WriteExtent, WriteTo, WrittenRun,
};
use extant_rt::Rng;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::task::Poll;

/// Assigns each block a place when it is first written, in the order of the writes.
#[derive(Debug)]
struct Blocks {
    block_bytes: u64,
    map: Mutex<Map>,
}

/// Maps blocks of the file to blocks of the device.
#[derive(Debug, Default)]
struct Map {
    written: BTreeMap<u64, u64>,
    /// Blocks that are assigned while their write is in flight.
    given: BTreeMap<u64, u64>,
    next: u64,
}

impl Blocks {
    fn new(block_bytes: u64) -> Arc<Self> {
        Arc::new(Self { block_bytes, map: Mutex::default() })
    }
}

impl Backing for Blocks {
    fn block_bytes(&self) -> u32 {
        self.block_bytes as u32
    }

    fn map_read(&self, range: ByteRange) -> Answer<'_, ReadExtent> {
        let block = range.start / self.block_bytes;
        let within = range.start % self.block_bytes;
        let from = match self.map.lock().written.get(&block) {
            Some(at) => ReadFrom::Device(Sector((at * self.block_bytes + within) / Sector::BYTES)),
            None => ReadFrom::Hole,
        };
        Answer::ok(ReadExtent { from, bytes: (self.block_bytes - within).min(range.len()) })
    }

    fn prepare_write<'a>(&'a self, run: DirtyRun<'a>) -> Answer<'a, Placed> {
        let mut at = run.range().start;
        let mut placed = Placed::default();
        Answer::later(std::future::poll_fn(move |cx| {
            let mut map = self.map.lock();
            for piece in run.pieces {
                at = at.max(piece.start);
                while at < piece.end {
                    let block = at / self.block_bytes;
                    let within = at % self.block_bytes;
                    let bytes = (self.block_bytes - within).min(piece.end - at);
                    let ours = placed.extents.last().is_some_and(|last| last.note == block);
                    let (to, new) = match map.written.get(&block) {
                        Some(&to) => (to, false),
                        None if ours => (map.given[&block], true),
                        // Another run owns it until its `finish_write`.
                        None if map.given.contains_key(&block) => {
                            if placed.extents.is_empty() {
                                cx.waker().wake_by_ref();
                                return Poll::Pending;
                            }
                            return Poll::Ready(Ok(std::mem::take(&mut placed)));
                        }
                        None => {
                            let to = map.next;
                            map.next += 1;
                            map.given.insert(block, to);
                            (to, true)
                        }
                    };
                    placed.changes_map |= new;
                    placed.extents.push(WriteExtent {
                        range: ByteRange::at(at, bytes),
                        to: WriteTo::Device(Sector((to * self.block_bytes + within) / Sector::BYTES)),
                        zero_before: if new && !ours { within as u32 } else { 0 },
                        zero_after: if new { (self.block_bytes - within - bytes) as u32 } else { 0 },
                        note: block,
                    });
                    at += bytes;
                }
            }
            Poll::Ready(Ok(std::mem::take(&mut placed)))
        }))
    }

    fn finish_write<'a>(&'a self, run: &'a WrittenRun) -> Answer<'a, ()> {
        let mut map = self.map.lock();
        for written in &run.extents {
            if let Some(at) = map.given.remove(&written.extent.note)
                && written.result.is_ok()
            {
                map.written.insert(written.extent.note, at);
            }
        }
        Answer::ok(())
    }
}

/// Compares random writes, truncations and holes with a plain vector, through write-back and
/// eviction.
fn against_a_vector(block_bytes: u64) {
    const SIZE: usize = 300_000;
    let rt = world();
    let cache = PageCache::new(&rt, CacheConfig::with_budget(32 * PAGE_BYTES as u64)).unwrap();
    let gate = Gate::new(2 << 20);
    // What a block contained before it was allocated to the file must never be visible.
    run(&rt, extant_block::write(&gate.mem, Sector(0), extant_block::Buf::from_slice(&[0xee; 2 << 20])))
        .unwrap();
    let disk = cache.attach(gate);
    let backing = Blocks::new(block_bytes);
    let mapping = disk.mapping(backing.clone(), 1, 0);
    let file = mapping.open();
    let mut model: Vec<u8> = Vec::new();
    let mut rng = Rng::new(block_bytes);
    for turn in 0..600 {
        let at = rng.below(SIZE as u64) as usize;
        let len = (1 + rng.below(9_000) as usize).min(SIZE - at);
        match rng.below(12) {
            0..6 => {
                let bytes = vec![(turn % 200 + 1) as u8; len];
                model.resize(model.len().max(at + len), 0);
                model[at..at + len].copy_from_slice(&bytes);
                run(&rt, file.write(at as u64, &bytes)).unwrap();
            }
            6 if turn % 3 == 0 => {
                // Truncates as a file system does: first the cache, then the blocks.
                let size = at.min(model.len());
                model.truncate(size);
                run(&rt, mapping.set_size(size as u64)).unwrap();
                let first_free = (size as u64).div_ceil(block_bytes);
                backing.map.lock().written.retain(|&block, _| block < first_free);
                mapping.remapped(..);
            }
            7 => run(&rt, file.sync()).unwrap(),
            8 => run(&rt, mapping.invalidate(0..SIZE as u64)).unwrap(),
            _ => {
                let mut back = vec![0x55; len];
                let got = run(&rt, file.read(at as u64, &mut back)).unwrap();
                let there = model.get(at..(at + len).min(model.len())).unwrap_or_default();
                assert!(back[..got] == *there, "turn {turn}: {len} bytes at {at}");
            }
        }
    }
    run(&rt, mapping.invalidate(0..SIZE as u64)).unwrap();
    let mut back = vec![0x55; SIZE];
    let got = run(&rt, file.read(0, &mut back)).unwrap();
    assert!(back[..got] == model[..]);
    run(&rt, cache.sync()).unwrap();
    cache.audit();
}

#[test]
fn blocks_of_one_kilobyte() {
    against_a_vector(1024);
}

#[test]
fn blocks_of_two_kilobytes() {
    against_a_vector(2048);
}

#[test]
fn blocks_of_a_page() {
    against_a_vector(4096);
}

#[test]
fn blocks_of_sixty_four_kilobytes() {
    against_a_vector(65_536);
}

#[test]
fn a_small_block_that_was_not_written_stays_a_hole() {
    let rt = world();
    let cache = PageCache::new(&rt, CacheConfig::with_budget(1 << 20)).unwrap();
    let disk = cache.attach(Gate::new(1 << 20));
    let backing = Blocks::new(1024);
    let file = disk.mapping(backing.clone(), 1, 8_192).open();
    run(&rt, file.write(2_100, &[1; 10])).unwrap();
    run(&rt, file.write(7_000, &[1; 1_000])).unwrap();
    run(&rt, file.sync()).unwrap();
    let blocks: Vec<u64> = backing.map.lock().written.keys().copied().collect();
    assert_eq!(blocks, [2, 6, 7]);
    cache.audit();
}
