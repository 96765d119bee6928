use super::*;
use crate::map::extent_tree::Draft;
use crate::map::node_edit::{Budget, Stop};
use crate::map::testing::{INODE, NODES_AT, Store, clustered};
use extant_format::{ExtentIndex, ExtentNode, FileBlock, InodeNumber};
use extant_rt::Rng;
use std::collections::{BTreeMap, BTreeSet};

const CLUSTER: ClusterSize = ClusterSize::from_log_blocks(2);

fn extent(logical: u32, physical: u64, blocks: u32) -> Extent {
    Extent { logical: FileBlock(logical), physical: VolumeBlock(physical), blocks, unwritten: false }
}

fn runs(runs: &[(u64, u64, OnDisk)]) -> Vec<(BlockRange, OnDisk)> {
    runs.iter().map(|&(start, end, known)| (BlockRange::new(start, end), known)).collect()
}

#[test]
fn holes_beside_mapped_blocks_of_a_cluster_are_implied() {
    let at = VolumeBlock;
    let mapped = [
        (0, 1, OnDisk::Hole),
        (1, 2, OnDisk::Written(at(101))),
        (2, 7, OnDisk::Hole),
        (7, 9, OnDisk::Unwritten(at(203))),
        (9, 10, OnDisk::Hole),
        (10, 12, OnDisk::Written(at(206))),
        (12, 20, OnDisk::Hole),
    ];
    let told = [
        (0, 1, OnDisk::Implied(at(100))),
        (1, 2, OnDisk::Written(at(101))),
        (2, 4, OnDisk::Implied(at(102))),
        (4, 7, OnDisk::Implied(at(200))),
        (7, 9, OnDisk::Unwritten(at(203))),
        (9, 10, OnDisk::Implied(at(205))),
        (10, 12, OnDisk::Written(at(206))),
        (12, 20, OnDisk::Hole),
    ];
    assert_eq!(with_implied(runs(&mapped), CLUSTER), runs(&told));
    // A hole spread over two leaves is one hole.
    let parted = [(0, 3, OnDisk::Hole), (3, 6, OnDisk::Hole), (6, 8, OnDisk::Written(at(42)))];
    let joined = [(0, 4, OnDisk::Hole), (4, 6, OnDisk::Implied(at(40))), (6, 8, OnDisk::Written(at(42)))];
    assert_eq!(with_implied(runs(&parted), CLUSTER), runs(&joined));
}

#[test]
fn runs_at_another_offset_of_their_cluster_imply_nothing() {
    let broken = [(0, 1, OnDisk::Hole), (1, 2, OnDisk::Written(VolumeBlock(0))), (2, 8, OnDisk::Hole)];
    assert_eq!(with_implied(runs(&broken), CLUSTER), runs(&broken));
}

#[test]
fn extents_that_break_the_rule_of_clusters_are_damage() {
    let place = Place::ExtentNode(InodeNumber(12), None);
    let is_sound = |extents: &[Extent]| check(extents, CLUSTER, place).is_ok();
    assert!(is_sound(&[extent(0, 100, 3), extent(3, 103, 2), extent(8, 44, 1)]));
    assert!(!is_sound(&[extent(1, 100, 3)]), "another offset");
    assert!(!is_sound(&[extent(0, 100, 3), extent(3, 203, 1)]), "two clusters for one");
}

#[test]
fn extents_that_break_the_rule_can_be_looked_up_and_not_changed() {
    let sb = clustered();
    let mut root = [0; 60];
    ExtentNode::Leaf(vec![extent(1, 100, 3)]).write_to(&mut root);
    let store = Store::new(root, &sb);
    assert!(matches!(Draft::new(&store.root, &store, &sb, INODE), Err(Stop::Corrupt(_))));
    let mut draft = Draft::to_look_up(&store.root, &store, &sb, INODE).unwrap();
    assert_eq!(draft.leaf(2).unwrap().1, [extent(1, 100, 3)]);
}

#[test]
fn a_cluster_that_two_leaves_have_in_two_places_is_not_freed() {
    let sb = clustered();
    let leaves = [vec![extent(0, 1000, 3)], vec![extent(3, 2003, 1)]];
    let entries = [(0, NODES_AT), (3, NODES_AT + 1)]
        .map(|(logical, at)| ExtentIndex { logical: FileBlock(logical), child: VolumeBlock(at) });
    let mut root = [0; 60];
    ExtentNode::Index { depth: 1, entries: entries.to_vec() }.write_to(&mut root);
    let mut store = Store::new(root, &sb);
    for (at, leaf) in (NODES_AT..).zip(leaves) {
        let mut bytes = vec![0; 1024];
        ExtentNode::Leaf(leaf).write_to(&mut bytes);
        store.nodes.insert(at, bytes);
    }
    for range in [BlockRange::new(0, 3), BlockRange::new(3, 4)] {
        let mut draft = Draft::new(&store.root, &store, &sb, INODE).unwrap();
        draft.remove_back(range, &mut Budget::new(32768, 1000)).unwrap();
        assert!(matches!(draft.freed_clusters(), Err(Stop::Corrupt(_))), "{range:?}");
    }
}

/// Removes random ranges from random maps and compares what is freed with a map of single blocks.
#[test]
fn a_cluster_is_freed_with_its_last_block() {
    let sb = clustered();
    assert_eq!(sb.cluster_size(), CLUSTER);
    for seed in 0..200 {
        let mut rng = Rng::new(seed);
        let mut root = [0; 60];
        ExtentNode::Leaf(Vec::new()).write_to(&mut root);
        let mut store = Store::new(root, &sb);
        let mut model: BTreeMap<u64, u64> = BTreeMap::new();
        let mut held: BTreeSet<u64> = BTreeSet::new();
        let mut next = 1000;
        for _ in 0..60 {
            let start = rng.below(400);
            let range = BlockRange::new(start, start + 1 + rng.below(24));
            let mut draft = Draft::new(&store.root, &store, &sb, INODE).unwrap();
            if rng.below(3) > 0 {
                for block in range.blocks() {
                    let first = CLUSTER.start(block);
                    let of_cluster = (first..first + 4).find_map(|b| model.get(&b).map(|at| at - at % 4));
                    let at = of_cluster.unwrap_or_else(|| {
                        next += 4 * (1 + rng.below(2));
                        held.insert(next);
                        next
                    }) + block % 4;
                    model.insert(block, at);
                    let one = Extent { unwritten: rng.below(2) == 0, ..extent(block as u32, at, 1) };
                    draft.replace(BlockRange::one(block), &[one]).unwrap();
                }
            } else {
                let rest = draft.remove_back(range, &mut Budget::new(32768, 1000)).unwrap();
                draft.shrink().unwrap();
                let removed = BlockRange::new(rest.map_or(range.start, |rest| rest.end), range.end);
                model.retain(|block, _| !removed.contains(*block));
                let used: BTreeSet<u64> = model.values().map(|at| at - at % 4).collect();
                let free: BTreeSet<u64> = held.difference(&used).copied().collect();
                held = used;
                let found = draft.freed_clusters().unwrap();
                let found: Vec<u64> =
                    found.iter().flat_map(|run| (run.start.0..run.end().0).step_by(4)).collect();
                assert_eq!(found.iter().copied().collect::<BTreeSet<_>>(), free, "seed {seed}");
                assert_eq!(found.len(), free.len(), "seed {seed}: each once");
            }
            store.apply(&draft.finish(), |node, to, news| node.write_to(to, news));
        }
        assert!(!store.nodes.is_empty(), "seed {seed}: a tree with leaves of its own");
    }
}
