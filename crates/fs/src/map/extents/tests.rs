use super::super::cost::{TreeShape, split_growth, tree_growth};
use super::super::testing::{INODE, NODES_AT, Store, superblock};
use super::*;
use proptest::prelude::*;

/// The volume block that each file block is mapped to, and whether it is unwritten.
type Model = BTreeMap<u64, (u64, bool)>;

#[derive(Debug)]
struct Tree {
    sb: Superblock,
    store: Store,
    model: Model,
    next_physical: u64,
    durable: Option<Durable>,
}

/// A tree on a volume without a journal as the last transaction left it.
#[derive(Debug)]
struct Durable {
    store: Store,
    model: Model,
    /// The transaction after it changed responsibilities.
    reshaped: bool,
}

impl Tree {
    fn new() -> Self {
        let sb = superblock();
        let mut root = [0; 60];
        ExtentNode::Leaf(Vec::new()).write_to(&mut root);
        Self { store: Store::new(root, &sb), sb, model: Model::new(), next_physical: 100_000, durable: None }
    }

    fn shape(&self) -> TreeShape {
        let word = |at: usize| u16::from_le_bytes([self.store.root[at], self.store.root[at + 1]]);
        TreeShape { depth: word(6), entries: word(2) }
    }

    fn edit(
        &mut self,
        change: impl FnOnce(&mut Draft<'_, Store>) -> Result<(), Stop>,
    ) -> Result<Edit<TreeNode>, Stop> {
        let mut draft = Draft::new(&self.store.root, &self.store, &self.sb, INODE)?;
        change(&mut draft)?;
        if let Some(durable) = &mut self.durable {
            durable.reshaped |= draft.reshapes();
            if durable.reshaped {
                draft.copy_changed();
            }
        }
        let edit = draft.finish();
        self.store.apply(&edit, TreeNode::write_to);
        Ok(edit)
    }

    /// The end of the file goes, as in a truncation, which copies nothing.
    fn cut(&mut self, start: u64) {
        let durable = self.durable.take();
        self.remove(BlockRange::new(start, BlockRange::MAP_END), 4);
        self.durable = durable.map(|durable| Durable { reshaped: true, ..durable });
    }

    /// Of the nodes that changed in place, any part may be durable when the power fails, and the root: each time the tree is sound,
    /// and maps each block as before or as after. Then all is durable.
    fn commit(&mut self, seed: u64) {
        let (root, nodes) = (self.store.root, self.store.nodes.clone());
        if let Some(old) = self.durable.take() {
            let mut random = seed;
            for _ in 0..6 {
                let mut mixed = Store::new(self.store.root, &self.sb);
                mixed.nodes = nodes.clone();
                let mut is_old = || {
                    random = random
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(1_442_695_040_888_963_407);
                    random >> 63 == 1
                };
                if is_old() {
                    mixed.root = old.store.root;
                }
                for (&at, bytes) in &old.store.nodes {
                    // A freed node stays as it was.
                    if !nodes.contains_key(&at) || is_old() {
                        mixed.nodes.insert(at, bytes.clone());
                    }
                }
                let (found, _) = read(&mixed, &self.sb);
                for at in old.model.keys().chain(self.model.keys()).chain(found.keys()) {
                    let now = found.get(at);
                    let either = [old.model.get(at), self.model.get(at)];
                    assert!(either.contains(&now), "block {at} is {now:?}, not one of {either:?}");
                }
            }
        }
        self.store.fresh.clear();
        let mut store = Store::new(root, &self.sb);
        store.nodes = nodes;
        self.durable = Some(Durable { store, model: self.model.clone(), reshaped: false });
    }

    fn map(&mut self, start: u64, blocks: u64, jump: u64, unwritten: bool) {
        self.next_physical += jump;
        let physical = self.next_physical;
        self.next_physical += blocks;
        let extent = Extent {
            logical: FileBlock(start as u32),
            physical: VolumeBlock(physical),
            blocks: blocks as u32,
            unwritten,
        };
        let shape = self.shape();
        let edit = self.edit(|draft| draft.replace(BlockRange::at(start, blocks), &[extent])).unwrap();
        let bound = tree_growth(shape, blocks, 1, self.sb.block_size());
        let more = u64::from(edit.new_nodes - edit.copies);
        assert!(more <= bound, "{more} new nodes, {bound} reserved");
        for n in 0..blocks {
            self.model.insert(start + n, (physical + n, unwritten));
        }
    }

    /// Maps several runs in one edit.
    fn map_many(&mut self, starts: &[u64]) {
        let next = self.next_physical;
        let extents: Vec<_> = (next..)
            .step_by(2)
            .zip(starts)
            .map(|(physical, &start)| Extent {
                logical: FileBlock(start as u32),
                physical: VolumeBlock(physical),
                blocks: 1,
                unwritten: false,
            })
            .collect();
        self.next_physical += 2 * starts.len() as u64;
        let shape = self.shape();
        let edit = self
            .edit(|draft| {
                extents.iter().try_for_each(|extent| {
                    let start = u64::from(extent.logical.0);
                    draft.replace(BlockRange::one(start), std::slice::from_ref(extent))
                })
            })
            .unwrap();
        let count = starts.len() as u64;
        assert!(
            u64::from(edit.new_nodes - edit.copies) <= tree_growth(shape, count, count, self.sb.block_size())
        );
        self.model.extend(extents.iter().map(|e| (u64::from(e.logical.0), (e.physical.0, false))));
    }

    fn mark_written(&mut self, range: BlockRange) {
        let mut written = Vec::new();
        for (&at, state) in self.model.range_mut(range.blocks()) {
            state.1 = false;
            let (logical, physical) = (FileBlock(at as u32), VolumeBlock(state.0));
            written.push(Extent { logical, blocks: 1, physical, unwritten: false });
        }
        let replace = |draft: &mut Draft<'_, _>, extent: &Extent| {
            let start = u64::from(extent.logical.0);
            draft.replace(BlockRange::one(start), std::slice::from_ref(extent))
        };
        self.edit(|draft| written.iter().try_for_each(|extent| replace(draft, extent))).unwrap();
    }

    /// Removes a range in steps, each of which leaves a valid tree.
    fn remove(&mut self, range: BlockRange, budget: u32) {
        self.remove_metadata(range, budget, u32::MAX);
    }

    fn remove_metadata(&mut self, range: BlockRange, budget: u32, blocks_max: u32) {
        let mut rest = Some(range);
        while let Some(range) = rest.take() {
            let mut budget = Budget::of_metadata(8192, budget, blocks_max);
            let edit = self
                .edit(|draft| {
                    rest = draft.remove_back(range, &mut budget)?;
                    draft.shrink()
                })
                .unwrap();
            let freed: u32 = edit.replaced.iter().map(|extent| extent.blocks).sum();
            assert!(freed <= blocks_max, "no more than may be freed at once");
            for piece in &edit.replaced {
                for n in 0..u64::from(piece.blocks) {
                    let gone = self.model.remove(&(u64::from(piece.logical.0) + n));
                    assert_eq!(gone, Some((piece.physical.0 + n, piece.unwritten)), "freed once, as mapped");
                }
            }
            if let Some(left) = &rest {
                assert!(left.start == range.start && left.end < range.end, "{left:?} after {range:?}");
                assert!(self.model.range(left.end..range.end).next().is_none());
            } else {
                assert!(self.model.range(range.blocks()).next().is_none());
            }
            self.check();
        }
    }

    /// Takes a range out, what lies behind it moving to its place.
    fn collapse(&mut self, range: BlockRange) {
        self.remove(range, 5);
        let by = range.end - range.start;
        let mut rest = Some(BlockRange::from_block(range.end));
        while let Some(range) = rest.take() {
            let edit = self
                .edit(|draft| {
                    rest = draft.shift_left(range, by)?;
                    Ok(())
                })
                .unwrap();
            assert!(edit.new_nodes == 0 && edit.freed_nodes.is_empty());
            let until = rest.as_ref().map_or(BlockRange::MAP_END, |rest| rest.start);
            for (at, state) in self.take_model(range.until(until)) {
                self.model.insert(at - by, state);
            }
            self.check();
        }
    }

    /// Puts a hole before a block.
    fn insert(&mut self, start: u64, by: u64) {
        let bound = split_growth(self.shape());
        let mut new_nodes = 0;
        let mut rest = Some(BlockRange::from_block(start));
        while let Some(range) = rest.take() {
            let edit = self
                .edit(|draft| {
                    rest = draft.shift_right(range, by)?;
                    Ok(())
                })
                .unwrap();
            new_nodes += u64::from(edit.new_nodes);
            let from = rest.as_ref().map_or(range.start, |rest| rest.end);
            for (at, state) in self.take_model(BlockRange::new(from, range.end)) {
                self.model.insert(at + by, state);
            }
            self.check();
        }
        assert!(new_nodes <= bound, "{new_nodes} new nodes, {bound} reserved");
    }

    fn run(&mut self, op: &Op) {
        match *op {
            Op::MapMany { ref starts } => self.map_many(starts),
            Op::Map { start, blocks, jump, unwritten } => self.map(start, blocks, jump, unwritten),
            Op::Collapse { start, blocks } => self.collapse(BlockRange::at(start, blocks)),
            Op::Insert { start, blocks } => self.insert(start, blocks),
            Op::MarkWritten { start, blocks } => self.mark_written(BlockRange::at(start, blocks)),
            Op::Remove { start, blocks, budget } => self.remove(BlockRange::at(start, blocks), budget),
        }
    }

    fn take_model(&mut self, range: BlockRange) -> Vec<(u64, (u64, bool))> {
        let taken: Vec<_> = self.model.range(range.blocks()).map(|(&at, &state)| (at, state)).collect();
        for (at, _) in &taken {
            self.model.remove(at);
        }
        taken
    }

    /// Reads the whole tree with the parser that hostile images meet, and compares it with the model.
    fn check(&self) {
        let (found, nodes) = read(&self.store, &self.sb);
        assert!(found == self.model, "the tree maps what the model maps");
        assert_eq!(nodes, self.store.nodes.len(), "every node is in the tree");
    }
}

/// The mapped blocks of a tree, and how many nodes it has below its root.
fn read(store: &Store, sb: &Superblock) -> (Model, usize) {
    let mut nodes = 0;
    let mut found = Model::new();
    let root = ExtentNode::parse(&store.root, &ExtentContext::root(sb, INODE)).unwrap();
    let mut todo = vec![(root, ExtentContext::root(sb, INODE), None)];
    while let Some((node, cx, key)) = todo.pop() {
        match node {
            ExtentNode::Leaf(extents) => {
                let first = extents.first().map(|e| e.logical);
                assert!(key.is_none() || key == first, "the key above a leaf is its first");
                for extent in extents {
                    for n in 0..u64::from(extent.blocks) {
                        let at = u64::from(extent.logical.0) + n;
                        found.insert(at, (extent.physical.0 + n, extent.unwritten));
                    }
                }
            }
            ExtentNode::Index { depth, entries } => {
                assert!(key.is_none() || key == Some(entries[0].logical));
                for n in 0..entries.len() {
                    nodes += 1;
                    let cx = cx.child(depth, &entries, n);
                    let bytes = store.node(entries[n].child).unwrap();
                    let node = ExtentNode::parse(&bytes, &cx).unwrap();
                    todo.push((node, cx, Some(entries[n].logical)));
                }
            }
        }
    }
    (found, nodes)
}

#[derive(Clone, Debug)]
enum Op {
    Map { start: u64, blocks: u64, jump: u64, unwritten: bool },
    MapMany { starts: Vec<u64> },
    MarkWritten { start: u64, blocks: u64 },
    Remove { start: u64, blocks: u64, budget: u32 },
    Collapse { start: u64, blocks: u64 },
    Insert { start: u64, blocks: u64 },
}

fn op() -> impl Strategy<Value = Op> {
    let blocks = prop_oneof![8 => 1u64..3, 2 => 1u64..40];
    prop_oneof![
        20 => (0u64..3000, blocks.clone(), 0u64..3, any::<bool>())
            .prop_map(|(start, blocks, jump, unwritten)| Op::Map { start, blocks, jump, unwritten }),
        2 => prop::collection::vec(0u64..3000, 1..12).prop_map(|starts| Op::MapMany { starts }),
        5 => (0u64..3000, blocks).prop_map(|(start, blocks)| Op::MarkWritten { start, blocks }),
        1 => (0u64..3000, 1u64..300, 1u32..6)
            .prop_map(|(start, blocks, budget)| Op::Remove { start, blocks, budget }),
        1 => (0u64..3000, 1u64..60).prop_map(|(start, blocks)| Op::Collapse { start, blocks }),
        1 => (0u64..3000, 1u64..60).prop_map(|(start, blocks)| Op::Insert { start, blocks }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn trees_map_what_a_model_maps(ops in prop::collection::vec(op(), 1..900)) {
        let mut tree = Tree::new();
        for (n, op) in ops.iter().enumerate() {
            tree.run(op);
            if n % 16 == 0 {
                tree.check();
            }
        }
        tree.check();
        tree.remove(BlockRange::ALL, 4);
        assert!(tree.store.nodes.is_empty(), "an empty tree has no nodes");
        assert_eq!(tree.shape(), TreeShape::default());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn without_a_journal_every_mixture_of_old_and_new_nodes_is_a_tree(
        before in prop::collection::vec(op(), 1..300),
        then in prop::collection::vec((op(), prop::option::weighted(0.03, 0u64..3000), prop::option::weighted(0.15, any::<u64>())), 1..200),
    ) {
        let mut tree = Tree::new();
        before.iter().for_each(|op| tree.run(op));
        tree.commit(0);
        for (op, cut, commit) in &then {
            // Moving what lies behind a range takes several steps, between which no order is promised.
            if !matches!(op, Op::Collapse { .. } | Op::Insert { .. }) {
                tree.run(op);
            }
            cut.iter().for_each(|&start| tree.cut(start));
            if let Some(seed) = *commit {
                tree.commit(seed);
            }
        }
        tree.commit(1);
        tree.check();
    }
}

#[test]
fn appends_join_and_fill_extents_and_leaves() {
    let mut tree = Tree::new();
    for n in 0..40u64 {
        tree.map(n * 3000, 3000, 0, false);
    }
    tree.check();
    assert_eq!(tree.shape(), TreeShape { depth: 0, entries: 4 }, "120,000 blocks are four extents");
    // Every second block: nothing joins; leaves stay full behind an append.
    let mut tree = Tree::new();
    for n in 0..84 * 3 {
        tree.map(n * 2, 1, 1, false);
    }
    tree.check();
    assert_eq!(tree.shape(), TreeShape { depth: 1, entries: 3 });
}

#[test]
fn descending_inserts_leave_leaves_half_full() {
    let mut tree = Tree::new();
    let count = 3000u64;
    for n in (0..count).rev() {
        tree.map(n * 2, 1, 1, false);
    }
    tree.check();
    assert!(tree.store.nodes.len() as u64 <= count / 42 + 3, "{} nodes", tree.store.nodes.len());
}

#[test]
fn unwritten_extents_are_one_block_shorter_and_never_join_written_ones() {
    let mut tree = Tree::new();
    tree.map(0, 32768, 0, true);
    assert_eq!(tree.shape().entries, 2);
    tree.mark_written(BlockRange::new(0, 32768));
    tree.check();
    assert_eq!(tree.shape().entries, 1, "32,767 and 1 join once both are written");
    tree.map(32768, 10, 0, true);
    tree.check();
    assert_eq!(tree.shape().entries, 2);
}

#[test]
fn the_last_addressable_block_is_refused() {
    let mut tree = Tree::new();
    tree.map(BlockRange::MAP_END - 2, 1, 0, false);
    tree.check();
    let extent =
        Extent { logical: FileBlock(u32::MAX), physical: VolumeBlock(5), blocks: 1, unwritten: false };
    let refused =
        tree.edit(|draft| draft.replace(BlockRange::from_block(BlockRange::MAP_END - 1), &[extent]));
    assert_eq!(refused.unwrap_err(), Stop::TooBig);
}

#[test]
fn a_node_that_is_not_in_memory_is_asked_for() {
    struct Nothing;
    impl Nodes for Nothing {
        type Bytes = Vec<u8>;
        fn node(&self, _at: VolumeBlock) -> Option<Vec<u8>> {
            None
        }
        fn is_fresh(&self, _at: VolumeBlock) -> bool {
            false
        }
    }
    let mut tree = Tree::new();
    for n in 0..5 {
        tree.map(n * 2, 1, 1, false);
    }
    let mut draft = Draft::new(&tree.store.root, &Nothing, &tree.sb, INODE).unwrap();
    assert_eq!(draft.replace(BlockRange::one(3), &[]).unwrap_err(), Stop::Missing(VolumeBlock(NODES_AT)));
}

#[test]
fn metadata_is_freed_a_few_blocks_at_a_time() {
    let mut tree = Tree::new();
    tree.map(0, 30_000, 0, false);
    tree.map(40_000, 5, 3, false);
    tree.remove_metadata(BlockRange::ALL, 48, 1024);
    tree.check();
    assert_eq!(tree.shape(), TreeShape::default());
}
