use super::super::growth::pointer_growth;
use super::super::testing::{INODE, Store, superblock};
use super::*;
use proptest::prelude::*;

#[derive(Debug)]
struct Map {
    sb: Superblock,
    store: Store,
    model: BTreeMap<u64, u64>,
    next_physical: u64,
}

impl Map {
    fn new() -> Self {
        let sb = superblock();
        Self { store: Store::new([0; 60], &sb), sb, model: BTreeMap::new(), next_physical: 100_000 }
    }

    fn insert(&mut self, logical: u64, blocks: u64, jump: u64) {
        self.next_physical += jump;
        let mut draft = PointerDraft::new(&self.store.root, &self.store, &self.sb, INODE);
        draft.insert(logical, VolumeBlock(self.next_physical), blocks).unwrap();
        let edit = draft.finish();
        assert!(
            u64::from(edit.new_nodes)
                <= pointer_growth(BlockRange::at(logical, blocks), self.sb.block_size())
        );
        self.store.apply(&edit, PointerWrites::write_to);
        self.take(&edit);
        for n in 0..blocks {
            self.model.insert(logical + n, self.next_physical + n);
        }
        self.next_physical += blocks;
    }

    fn remove(&mut self, range: BlockRange, budget: u32) {
        let mut rest = Some(range);
        while let Some(range) = rest.take() {
            let mut draft = PointerDraft::new(&self.store.root, &self.store, &self.sb, INODE);
            rest = draft.remove_back(range, &mut Budget::new(8192, budget)).unwrap();
            let edit = draft.finish();
            self.store.apply(&edit, PointerWrites::write_to);
            self.take(&edit);
            let done = BlockRange::new(rest.map_or(range.start, |left| left.end), range.end);
            assert!(!done.is_empty());
            assert!(self.model.range(done.blocks()).next().is_none());
            self.check();
        }
    }

    fn take(&mut self, edit: &Edit<PointerWrites>) {
        for piece in &edit.replaced {
            for n in 0..u64::from(piece.blocks) {
                let gone = self.model.remove(&(u64::from(piece.logical.0) + n));
                assert_eq!(gone, Some(piece.physical.0 + n));
            }
        }
    }

    fn check(&self) {
        let (mut found, mut nodes) = (BTreeMap::new(), 0);
        let pointers = |bytes: &[u8]| -> Vec<u64> {
            bytes.chunks_exact(4).map(|c| u32::from_le_bytes(c.try_into().unwrap()).into()).collect()
        };
        let mut todo: Vec<(u64, u32, u64)> = Vec::new();
        for (n, &at) in pointers(&self.store.root).iter().enumerate().filter(|(_, at)| **at != 0) {
            match n as u64 {
                12 => todo.push((at, 1, 12)),
                13 => todo.push((at, 2, 12 + 256)),
                14 => todo.push((at, 3, 12 + 256 + 65536)),
                n => drop(found.insert(n, at)),
            }
        }
        while let Some((at, level, first)) = todo.pop() {
            nodes += 1;
            let reach = 1 << (8 * (level - 1));
            for (n, &at) in pointers(&self.store.nodes[&at]).iter().enumerate().filter(|(_, at)| **at != 0) {
                let first = first + n as u64 * reach;
                match level {
                    1 => drop(found.insert(first, at)),
                    _ => todo.push((at, level - 1, first)),
                }
            }
        }
        assert!(found == self.model, "the map is the model's");
        // And as a reader sees it.
        let (mut read, mut at) = (BTreeMap::new(), 0);
        while at < 1_002_000 {
            let mut draft = PointerDraft::new(&self.store.root, &self.store, &self.sb, INODE);
            let leaf = draft.leaf(at).unwrap();
            assert!(leaf[0].0.start <= at);
            for (run, known) in &leaf {
                if let OnDisk::Written(first) = known {
                    read.extend(run.blocks().map(|block| (block, first.0 + block - run.start)));
                }
            }
            at = leaf.last().unwrap().0.end;
        }
        assert!(read == self.model, "leaves hold what the map holds");
        assert_eq!(nodes, self.store.nodes.len(), "every pointer block is in the map");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn maps_hold_what_a_model_holds(ops in prop::collection::vec(
        (prop_oneof![0u64..40, 200u64..600, 65_700u64..66_400, 1_000_000u64..1_001_000],
            1u64..60, 0u64..10_000, prop::bool::weighted(0.2), 1u32..8),
        1..60,
    )) {
        let mut map = Map::new();
        for (start, blocks, jump, removes, budget) in ops {
            if removes {
                map.remove(BlockRange::at(start, blocks * 7), budget);
            } else {
                map.insert(start, blocks, jump);
                map.check();
            }
        }
        map.remove(BlockRange::ALL, 5);
        assert!(map.store.nodes.is_empty(), "an empty map has no pointer blocks");
        assert_eq!(map.store.root, [0; 60]);
    }
}

#[test]
fn a_run_is_removed_as_one_run() {
    let mut map = Map::new();
    map.insert(0, 300, 0);
    let mut draft = PointerDraft::new(&map.store.root, &map.store, &map.sb, INODE);
    assert_eq!(draft.remove_back(BlockRange::ALL, &mut Budget::new(8192, 64)), Ok(None));
    let edit = draft.finish();
    let freed: Vec<_> = edit.replaced.iter().map(|extent| extent.blocks).collect();
    assert_eq!(freed, [300]);
    assert_eq!(edit.freed_nodes.len(), 3);
    let is_root = |write: &NodeWrite<_>| write.at == NodeAt::Root;
    assert!(edit.writes.iter().all(is_root), "freed pointer blocks are not written");
}

#[test]
fn blocks_that_a_map_cannot_reach_are_refused() {
    let map = Map::new();
    let mut draft = PointerDraft::new(&map.store.root, &map.store, &map.sb, INODE);
    let capacity = indirect_capacity(map.sb.block_size());
    assert_eq!(draft.insert(capacity - 1, VolumeBlock(9), 2), Err(Stop::TooBig));
    assert_eq!(draft.insert(0, VolumeBlock(u64::from(u32::MAX)), 1), Err(Stop::TooBig));
    assert_eq!(draft.insert(capacity - 1, VolumeBlock(9), 1), Ok(()));
}
