use super::*;
use extant_cache::ByteRange;

const K4: BlockSize = BlockSize::K4;
const B: u64 = 4096;

fn at(block: u64) -> VolumeBlock {
    VolumeBlock(block)
}

fn blocks(start: u64, end: u64) -> BlockRange {
    BlockRange::new(start, end)
}

/// A file of 3 written blocks at 100 with a hole after them.
fn map() -> FileMap {
    let mut map = FileMap::new(K4, ClusterSize::BLOCK);
    map.learn(
        0,
        blocks(0, 1),
        &[(blocks(0, 3), OnDisk::Written(at(100))), (BlockRange::from_block(3), OnDisk::Hole)],
    );
    map
}

#[test]
fn ranges_that_are_not_known_are_said_to_be_unknown() {
    let mut map = FileMap::new(K4, ClusterSize::BLOCK);
    assert_eq!(map.read(7), None);
    assert_eq!(map.first_unknown(blocks(7, 9)), Some(7));
    map.learn(0, blocks(5, 6), &[(blocks(5, 8), OnDisk::Hole)]);
    assert_eq!(map.first_unknown(blocks(7, 9)), Some(8));
    map.mark_dirty(blocks(7, 8), 0);
    map.forget();
    assert_eq!(map.read(6), None);
    assert_eq!(map.read(7), Some((blocks(7, 8), OnDisk::Hole)), "pending blocks are not forgotten");
}

#[test]
fn delayed_blocks_become_written_in_three_steps() {
    let mut map = map();
    let need = map.need(blocks(2, 6));
    assert_eq!((need.delayed.first().cloned(), need.delayed_blocks), (Some(blocks(3, 6)), 3));
    map.mark_dirty(blocks(2, 6), 3 * B);
    assert_eq!(map.need(blocks(2, 6)), Need::default(), "reserved once");
    assert_eq!(map.pending.reserved(), (3, 1));
    assert_eq!(map.write_step(2), Some((blocks(2, 3), WriteStep::Overwrite(at(102)))));
    assert_eq!(map.write_step(3), Some((blocks(3, 6), WriteStep::Allocate)));
    map.pending.claim(blocks(3, 6));
    map.pending.place(blocks(3, 6), at(500));
    assert_eq!(map.read(4), Some((blocks(4, 6), OnDisk::Hole)), "not readable before it is on the device");
    assert_eq!(map.write_step(3), Some((blocks(3, 6), WriteStep::Wait)));
    map.landed(blocks(3, 6), 6 * B);
    assert_eq!(map.read(4), Some((blocks(4, 6), OnDisk::Written(at(501)))));
    assert_eq!(map.pending.reserved(), (0, 0));
    assert_eq!(map.recordable_bytes(3 * B), 6 * B);
    assert!(map.pending.is_clean());
}

#[test]
fn size_does_not_grow_over_a_hole_before_a_write_that_failed() {
    let mut map = map();
    map.mark_dirty(blocks(3, 4), 3 * B);
    map.mark_dirty(blocks(20, 21), 4 * B);
    for (run, place) in [(blocks(3, 4), 500), (blocks(20, 21), 600)] {
        map.pending.claim(run);
        map.pending.place(run, at(place));
    }
    map.pending.failed(blocks(20, 21));
    map.landed(blocks(3, 4), 21 * B);
    assert_eq!(map.recordable_bytes(3 * B), 4 * B, "nothing was written from there to block 20");
    map.pending.claim(blocks(20, 21));
    map.pending.place(blocks(20, 21), at(600));
    map.landed(blocks(20, 21), 21 * B);
    assert_eq!(map.recordable_bytes(4 * B), 21 * B);
}

#[test]
fn size_grows_only_over_what_is_on_the_device() {
    let mut map = map();
    map.mark_dirty(blocks(3, 9), 3 * B);
    map.pending.claim(blocks(3, 9));
    map.pending.place(blocks(3, 5), at(500));
    map.pending.place(blocks(5, 9), at(600));
    map.landed(blocks(5, 9), 9 * B);
    assert_eq!(map.recordable_bytes(3 * B), 3 * B, "blocks before are still in flight");
    assert!(map.size.is_ahead(3 * B), "and blocks behind the size are mapped");
    // e2fsck tolerates one block that begins exactly at the size.
    assert!(!map.size.is_ahead(8 * B) && map.size.is_ahead(8 * B - 1));
    map.landed(blocks(3, 5), 9 * B);
    assert_eq!(map.recordable_bytes(3 * B), 9 * B);
}

#[test]
fn a_growing_last_block_counts_as_far_as_it_was_written() {
    let mut map = map();
    // 2 blocks and 100 bytes are recorded; the file grows to 2 blocks and 200 bytes.
    map.mark_dirty(blocks(2, 3), 2 * B + 100);
    assert_eq!(map.write_step(2), Some((blocks(2, 3), WriteStep::InPlace { to: at(102), fresh: false })));
    map.pending.claim(blocks(2, 3));
    // After this write was taken, but before it is on the device, the file grows into the next
    // block.
    map.mark_dirty(blocks(2, 4), 2 * B + 100);
    map.landed(blocks(2, 3), 2 * B + 200);
    assert_eq!(map.recordable_bytes(2 * B + 100), 2 * B + 200);
    map.pending.claim(blocks(3, 4));
    map.pending.place(blocks(3, 4), at(700));
    map.landed(blocks(3, 4), 3 * B + 50);
    assert_eq!(map.recordable_bytes(2 * B + 200), 2 * B + 200, "the block before is dirty again");
    map.pending.claim(blocks(2, 3));
    map.landed(blocks(2, 3), 3 * B + 50);
    assert_eq!(map.recordable_bytes(2 * B + 200), 3 * B + 50);
}

#[test]
fn an_append_that_is_marked_before_and_copied_after_the_block_is_taken_is_recorded() {
    let mut map = map();
    map.mark_dirty(blocks(3, 4), 3 * B);
    // The append marks a block that is already pending; its bytes are copied after the write has
    // ended.
    map.mark_dirty(blocks(3, 5), 3 * B);
    map.pending.claim(blocks(3, 4));
    map.pending.place(blocks(3, 4), at(500));
    map.landed(blocks(3, 4), 3 * B + 100);
    assert_eq!(map.recordable_bytes(3 * B), 3 * B + 100);
    map.pending.claim(blocks(4, 5));
    map.pending.place(blocks(4, 5), at(600));
    map.landed(blocks(4, 5), 5 * B);
    assert_eq!(map.recordable_bytes(3 * B + 100), 3 * B + 100, "the block before has newer bytes");
    assert_eq!(map.write_step(3), Some((blocks(3, 4), WriteStep::InPlace { to: at(500), fresh: false })));
    map.pending.claim(blocks(3, 4));
    map.landed(blocks(3, 4), 5 * B);
    assert_eq!(map.recordable_bytes(3 * B + 100), 5 * B);
    assert!(map.pending.is_clean());
}

#[test]
fn a_mark_made_while_no_place_is_found_is_not_lost() {
    let mut map = map();
    map.mark_dirty(blocks(3, 4), 3 * B);
    map.pending.claim(blocks(3, 4));
    map.mark_dirty(blocks(3, 4), 3 * B);
    map.pending.failed(blocks(3, 4));
    map.pending.claim(blocks(3, 4));
    map.pending.place(blocks(3, 4), at(500));
    map.landed(blocks(3, 4), 3 * B + 100);
    map.pending.claim(blocks(3, 4));
    map.landed(blocks(3, 4), 3 * B + 200);
    assert_eq!(map.recordable_bytes(3 * B + 100), 3 * B + 200);
}

#[test]
fn a_block_wholly_written_stays_so_when_it_is_dirtied_in_flight() {
    let mut map = map();
    map.mark_dirty(blocks(3, 4), 3 * B);
    map.pending.claim(blocks(3, 4));
    map.mark_dirty(blocks(3, 4), 3 * B);
    map.pending.place(blocks(3, 4), at(500));
    map.landed(blocks(3, 4), 4 * B);
    assert!(map.pending.is_clean());
    assert_eq!(map.recordable_bytes(3 * B), 4 * B);
}

#[test]
fn a_failed_write_leaves_blocks_as_they_were() {
    let mut map = map();
    map.learn(0, blocks(3, 4), &[(blocks(3, 4), OnDisk::Unwritten(at(40)))]);
    map.mark_dirty(blocks(3, 5), 3 * B);
    assert_eq!(map.pending.reserved(), (2, 2));
    map.pending.claim(blocks(3, 4));
    map.pending.claim(blocks(4, 5));
    map.pending.place(blocks(4, 5), at(600));
    map.pending.failed(blocks(3, 5));
    assert_eq!(map.write_step(3), Some((blocks(3, 4), WriteStep::InPlace { to: at(40), fresh: true })));
    assert_eq!(map.write_step(4), Some((blocks(4, 5), WriteStep::Allocate)));
    assert_eq!(map.abandon(blocks(0, 10)), 1);
    assert_eq!(map.pending.reserved(), (0, 0));
    assert_eq!(map.read(3), Some((blocks(3, 4), OnDisk::Unwritten(at(40)))));
    assert_eq!(map.recordable_bytes(3 * B), 3 * B);
}

#[test]
fn truncation_gives_reservations_back() {
    let mut map = map();
    map.mark_dirty(blocks(3, 9), 3 * B);
    assert_eq!(map.truncate(5, 5 * B), 4);
    assert_eq!(map.pending.reserved(), (2, 1));
    assert_eq!(map.read(6).unwrap().1, OnDisk::Hole);
}

#[test]
fn neighbours_that_are_delayed_are_one_run_of_pointers() {
    let mut map = map();
    map.mark_dirty(blocks(4, 6), 3 * B);
    map.mark_dirty(blocks(8, 9), 3 * B);
    assert_eq!(map.pending.delayed_around(blocks(6, 8)), blocks(4, 9));
    assert_eq!(map.pending.delayed_around(blocks(10, 11)), blocks(10, 11));
}

/// Leaves of 1,500 runs each, as with blocks of 16 KiB.
#[test]
fn a_range_over_more_runs_than_are_kept_becomes_known() {
    let leaf = |n: u64| -> Vec<_> {
        (n * 1500..(n + 1) * 1500)
            .map(|block| (BlockRange::one(block), OnDisk::Written(at(10 * block))))
            .collect()
    };
    for asked in [blocks(1400, 1600), blocks(0, 4500), blocks(2990, 3010)] {
        let mut map = FileMap::new(K4, ClusterSize::BLOCK);
        let mut looks = 0;
        while let Some(unknown) = map.first_unknown(asked) {
            map.learn(0, asked, &leaf(unknown / 1500));
            looks += 1;
            assert!(looks <= 4, "{asked:?}: looked for block {unknown} again");
        }
    }
}

#[test]
fn a_write_ends_before_the_first_block_that_was_not_logged() {
    let mut map = map();
    map.mark_dirty(blocks(1, 9), 3 * B);
    for (run, place) in [(blocks(3, 5), 500), (blocks(5, 9), 600)] {
        map.pending.claim(run);
        map.pending.place(run, at(place));
    }
    let (whole, tail) = (ByteRange::new(B, 9 * B), ByteRange::new(6 * B, 9 * B));
    assert_eq!(map.pending.logged_until(whole), 3 * B, "the blocks before have a place");
    map.landed(blocks(3, 5), 9 * B);
    map.pending.failed(blocks(5, 9));
    assert_eq!((map.pending.logged_until(whole), map.pending.logged_until(tail)), (5 * B, 6 * B));
    map.pending.claim(blocks(5, 9));
    map.pending.place(blocks(5, 9), at(600));
    map.landed(blocks(5, 9), 8 * B + 100);
    assert_eq!(map.pending.logged_until(ByteRange::new(B, 8 * B + 100)), 8 * B + 100);
}

/// A file on a volume with clusters of four blocks: a hole, except for block 5 at 105.
fn clustered() -> FileMap {
    let mut map = FileMap::new(K4, ClusterSize::from_log_blocks(2));
    map.learn(
        0,
        blocks(0, 1),
        &[
            (blocks(0, 4), OnDisk::Hole),
            (blocks(4, 5), OnDisk::Implied(at(104))),
            (blocks(5, 6), OnDisk::Written(at(105))),
            (blocks(6, 8), OnDisk::Implied(at(106))),
            (BlockRange::from_block(8), OnDisk::Hole),
        ],
    );
    map
}

#[test]
fn a_cluster_is_reserved_once_and_its_implied_blocks_are_not() {
    let mut map = clustered();
    let need = map.need(blocks(3, 9));
    assert_eq!((need.clusters, need.delayed_blocks, need.converted_blocks), (2, 2, 3));
    map.mark_dirty(blocks(3, 4), 0);
    assert_eq!(map.need(blocks(0, 4)).clusters, 0, "reserved for block 3");
    map.mark_dirty(blocks(0, 1), 0);
    assert_eq!(map.pending.unrecorded_blocks(), 4);
    assert_eq!(map.abandon(blocks(3, 4)), 0, "block 0 keeps it");
    assert_eq!(map.abandon(blocks(0, 1)), 1);
    // Two runs of holes in one cluster count once.
    map.mark_dirty(blocks(9, 10), 0);
    assert_eq!((map.need(blocks(8, 12)).clusters, map.need(blocks(8, 13)).clusters), (0, 1));
    assert_eq!(map.stored(6), Some((blocks(6, 8), Stored::Hole)));
}

#[test]
fn the_first_write_of_a_cluster_allocates_it_and_others_wait() {
    let mut map = clustered();
    map.mark_dirty(blocks(0, 1), 0);
    map.mark_dirty(blocks(2, 4), 0);
    assert_eq!(map.write_step(4), Some((blocks(4, 5), WriteStep::Zeroes)));
    assert_eq!(map.write_step(2), Some((blocks(2, 4), WriteStep::Allocate)));
    map.pending.claim(blocks(0, 1));
    assert_eq!(map.write_step(2), Some((blocks(2, 4), WriteStep::Share)));
    map.pending.place(blocks(0, 1), at(200));
    assert_eq!(map.write_step(2), Some((blocks(2, 4), WriteStep::Share)), "no transaction knows the cluster");
    map.landed(blocks(0, 1), 4 * B);
    assert_eq!(map.write_step(2), Some((blocks(2, 4), WriteStep::InPlace { to: at(202), fresh: true })));
    assert_eq!(map.need(blocks(1, 2)), Need { converted_blocks: 1, ..Need::default() }, "block 1 is implied");
    map.pending.claim(blocks(2, 4));
    map.landed(blocks(2, 4), 4 * B);
    assert_eq!(map.read(2), Some((blocks(2, 4), OnDisk::Written(at(202)))));
    assert_eq!((map.pending.reserved(), map.recordable_bytes(0)), ((0, 0), 4 * B));
    // A delayed run that reaches into a cluster being allocated by another write ends before it.
    map.mark_dirty(blocks(8, 15), 0);
    map.pending.claim(blocks(14, 15));
    assert_eq!(map.write_step(8), Some((blocks(8, 12), WriteStep::Allocate)));
    map.pending.failed(blocks(14, 15));
    assert_eq!(map.write_step(8), Some((blocks(8, 15), WriteStep::Allocate)));
}

/// Blocks 0, 2 and 3 are in flight to one new cluster; the latter two share it.
fn shared() -> FileMap {
    let mut map = clustered();
    map.mark_dirty(blocks(0, 1), 0);
    map.mark_dirty(blocks(2, 4), 0);
    map.pending.claim(blocks(0, 1));
    map.pending.place(blocks(0, 1), at(200));
    map.pending.share(blocks(2, 4), at(202));
    assert_eq!(map.write_step(2), Some((blocks(2, 4), WriteStep::Wait)));
    assert_eq!(map.read(2), Some((blocks(2, 4), OnDisk::Hole)), "not readable before it is on the device");
    assert_eq!((map.pending.unrecorded_blocks(), map.pending.reserved().0), (4, 3));
    map
}

#[test]
fn blocks_that_share_a_new_cluster_land_with_the_first_or_convert_it_later() {
    let mut map = shared();
    map.landed(blocks(0, 1), 4 * B);
    assert_eq!(map.pending.in_flight(blocks(2, 4)), [(blocks(2, 4), at(202), WasBefore::Unwritten)]);
    map.landed(blocks(2, 3), 4 * B);
    map.pending.failed(blocks(3, 4));
    assert_eq!(map.write_step(3), Some((blocks(3, 4), WriteStep::InPlace { to: at(203), fresh: true })));
    assert_eq!((map.pending.unrecorded_blocks(), map.pending.reserved().0), (0, 1));
    // The first block lands after one sharing its cluster has failed.
    let mut map = shared();
    map.pending.failed(blocks(2, 4));
    assert_eq!(map.write_step(2), Some((blocks(2, 4), WriteStep::Share)));
    map.landed(blocks(0, 1), 4 * B);
    assert_eq!(map.write_step(2), Some((blocks(2, 4), WriteStep::InPlace { to: at(202), fresh: true })));
}

#[test]
fn the_places_of_blocks_that_share_a_cluster_are_void_once_its_allocation_is() {
    let mut map = shared();
    map.pending.failed(blocks(0, 1));
    assert_eq!(map.pending.in_flight(blocks(0, 4)), []);
    assert_eq!(map.write_step(2), Some((blocks(2, 4), WriteStep::Allocate)));
    assert_eq!((map.pending.unrecorded_blocks(), map.pending.reserved().0), (4, 3));
    assert_eq!(map.abandon(blocks(0, 4)), 1, "one cluster is reserved");
}

#[test]
fn unmapped_blocks_leave_nothing_known_of_their_clusters() {
    let mut map = clustered();
    map.unmap(blocks(5, 6));
    assert_eq!(
        (map.first_unknown(blocks(0, 12)), map.read(8).map(|(_, known)| known)),
        (Some(4), Some(OnDisk::Hole))
    );
    let mut map = clustered();
    map.truncate(6, 6 * B);
    assert_eq!(map.first_unknown(blocks(0, 12)), Some(6), "the rest of the cluster may still be the file's");
}
