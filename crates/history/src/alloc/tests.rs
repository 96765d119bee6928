//! Properties shared by all allocators.

use super::samples::{GROUP, Grown, empty, space};
use super::*;
use std::collections::BTreeSet;

/// One of each allocator, for a volume.
fn all(space: &FreeSpace) -> [Box<dyn BlockAllocator>; 4] {
    [
        Box::new(Ext2::new(space)),
        Box::new(Ext3::new(space)),
        Box::new(Linux2633::new(space)),
        Box::new(Mballoc::new(StripeRule::AnyRun, space)),
    ]
}

/// A deterministic pseudo-random generator.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, most: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % most
    }
}

#[test]
fn no_block_is_given_twice_and_all_are_given_before_the_volume_is_full() {
    for seed in 0..4 {
        let mut numbers = Numbers(seed);
        let mut free = Vec::new();
        let mut at = 100;
        while at < 4 * GROUP - 600 {
            let len = 1 + numbers.below(if seed % 2 == 0 { 40 } else { 500 });
            free.push(at..at + len);
            at += len + 1 + numbers.below(3000);
        }
        let wanted: BTreeSet<u64> = free.iter().cloned().flatten().collect();
        for mut allocator in all(&space(free)) {
            let mut given = BTreeSet::new();
            let (mut lengths, mut all_closed) = ([0_u64; 12], false);
            loop {
                let file = numbers.below(12);
                if numbers.below(50) == 0 {
                    allocator.close(FileId(file));
                }
                let length = &mut lengths[file as usize];
                let blocks = match allocator.allocates_at() {
                    AllocatesAt::Write => 1,
                    AllocatesAt::WriteBack => 1 + numbers.below(60),
                };
                let file_blocks = *length + blocks + numbers.below(3);
                let goal = file % 4 * GROUP;
                let request =
                    Request { file: FileId(file), block: *length, blocks, goal, file_blocks, process: file };
                let Ok((found, _)) = allocator.allocate(request) else {
                    // ext2 keeps blocks preallocated for other open files.
                    if std::mem::replace(&mut all_closed, true) {
                        break;
                    }
                    (0..12).for_each(|file| allocator.close(FileId(file)));
                    continue;
                };
                all_closed = false;
                assert!(!found.is_empty() && found.end - found.start <= blocks, "{found:?} of {blocks}");
                *length += found.end - found.start;
                found.for_each(|block| {
                    assert!(given.insert(block), "{block} twice, seed {seed}, {allocator:?}")
                });
            }
            let left = wanted.difference(&given).count();
            assert!(given.is_subset(&wanted), "seed {seed}: blocks in use were given");
            assert_eq!(
                left,
                0,
                "seed {seed}: {left} of {} are left by {:.30}",
                wanted.len(),
                format!("{allocator:?}")
            );
        }
    }
}

#[test]
fn a_file_that_grows_alone_is_one_extent_but_where_its_length_is_guessed() {
    for mut allocator in all(&empty()) {
        let extents = Grown::in_turns(&mut *allocator, 1, 3000).extents[0];
        // 2.6.33 allocates the first 16 blocks, then 16 more when it predicts 128 KiB, then
        // adjacent ones.
        let guesses = allocator.allocates_at() == AllocatesAt::WriteBack && extents != 1;
        assert!(extents == 1 || guesses && extents <= 3, "{extents}: {:.30}", format!("{allocator:?}"));
    }
}
