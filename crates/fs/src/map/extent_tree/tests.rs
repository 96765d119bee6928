use super::super::growth::{TreeShape, split_growth, tree_growth};
use super::super::testing::{INODE, NODES_AT, Store, clustered, superblock};
use super::*;
use proptest::prelude::*;
use std::collections::BTreeSet;

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

/// A tree on a volume without a journal, as left by the last transaction.
#[derive(Debug)]
struct Durable {
    store: Store,
    model: Model,
    /// Whether an edit in the following transaction reshaped the tree.
    reshaped: bool,
    /// Whether edits change nodes in place.
    cuts: bool,
}

impl Tree {
    fn new() -> Self {
        Self::on(superblock())
    }

    fn on(sb: Superblock) -> Self {
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
            if durable.reshaped && !durable.cuts {
                draft.copy_changed();
            }
        }
        let edit = draft.finish();
        self.store.apply(&edit, TreeNode::write_to);
        Ok(edit)
    }

    /// Truncates the file, which copies no nodes.
    fn cut(&mut self, start: u64) {
        self.durable.iter_mut().for_each(|durable| durable.cuts = true);
        self.remove(BlockRange::new(start, BlockRange::MAP_END), 4);
        self.durable.iter_mut().for_each(|durable| durable.cuts = false);
    }

    /// Simulates a power failure with any subset of the in-place changes, and the root, durable.
    /// Each time the tree must be valid and map each block as before or as after. Finally makes
    /// everything durable.
    fn commit(&mut self, seed: u64) {
        let (root, nodes) = (self.store.root, self.store.nodes.clone());
        if let Some(old) = self.durable.take() {
            let mut random = seed;
            let in_place =
                old.store.nodes.iter().filter(|(at, bytes)| nodes.get(at).is_some_and(|now| now != *bytes));
            let count = 1 + in_place.count() as u32;
            // All combinations if there are few.
            let all = 1_u64 << count.min(4);
            for mixture in 0..all {
                let mut mixed = Store::new(self.store.root, &self.sb);
                mixed.nodes = nodes.clone();
                let mut is_old = || {
                    random = random
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(1_442_695_040_888_963_407);
                    random >> 63 == 1
                };
                let mut turn = 0;
                let mut is_old = || {
                    turn += 1;
                    if count <= 4 { mixture >> (turn - 1) & 1 == 1 } else { is_old() }
                };
                if is_old() {
                    mixed.root = old.store.root;
                }
                for (&at, bytes) in &old.store.nodes {
                    // A freed node keeps its old contents.
                    if nodes.get(&at).is_none_or(|now| now != bytes && is_old()) {
                        mixed.nodes.insert(at, bytes.clone());
                    }
                }
                let (found, _) = read(&mixed, &self.sb);
                let size = self.sb.cluster_size();
                let mut of: BTreeMap<u64, u64> = BTreeMap::new();
                for (&at, &(to, _)) in found.iter().filter(|_| !size.is_block()) {
                    assert_eq!(size.offset(at), size.offset(to), "block {at} lies at {to}");
                    let first = *of.entry(size.start(at)).or_insert(size.start(to));
                    assert_eq!(first, size.start(to), "block {at} of a cluster that begins elsewhere");
                }
                let places: BTreeSet<u64> = of.values().copied().collect();
                assert_eq!(places.len(), of.len(), "a cluster has one owner");
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
        self.durable = Some(Durable { store, model: self.model.clone(), reshaped: false, cuts: false });
    }

    /// Places for a range, `jump` clusters after the last one allocated. Within a cluster that the
    /// file already has, uses its place.
    fn places(&mut self, range: BlockRange, jump: u64, unwritten: bool) -> Vec<Extent> {
        let cluster = self.sb.cluster_size();
        self.next_physical += jump * cluster.blocks();
        let mut extents: Vec<Extent> = Vec::new();
        let mut start = range.start;
        while start < range.end {
            let whole = cluster.around(BlockRange::one(start));
            let held = self.model.range(whole.blocks()).next().map(|(_, state)| cluster.start(state.0));
            let first = held.filter(|_| !cluster.is_block()).unwrap_or_else(|| {
                self.next_physical += cluster.blocks();
                self.next_physical - cluster.blocks()
            });
            let part = BlockRange::new(start, whole.end.min(range.end));
            let physical = VolumeBlock(first + cluster.offset(start));
            let (logical, blocks) = (FileBlock(start as u32), part.len() as u32);
            append(&mut extents, Extent { logical, physical, blocks, unwritten });
            start = part.end;
        }
        extents
    }

    fn note(&mut self, extents: &[Extent]) {
        for extent in extents {
            for n in 0..u64::from(extent.blocks) {
                self.model.insert(extent.range().start + n, (extent.physical.0 + n, extent.unwritten));
            }
        }
    }

    fn map(&mut self, start: u64, blocks: u64, jump: u64, unwritten: bool) {
        let extents = self.places(BlockRange::at(start, blocks), jump, unwritten);
        let shape = self.shape();
        let edit = self.edit(|draft| draft.replace(BlockRange::at(start, blocks), &extents)).unwrap();
        let bound = tree_growth(shape, blocks, 1, self.sb.block_size());
        let more = u64::from(edit.new_nodes - edit.copies);
        assert!(more <= bound, "{more} new nodes, {bound} reserved");
        self.note(&extents);
    }

    /// Maps several runs in one edit.
    fn map_many(&mut self, starts: &[u64]) {
        let mut extents = Vec::new();
        for &start in starts {
            let one = self.places(BlockRange::one(start), 1, false);
            self.note(&one);
            extents.extend(one);
        }
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

    /// Removes a range in steps, each leaving a valid tree.
    fn remove(&mut self, range: BlockRange, budget: u32) {
        self.remove_metadata(range, budget, u32::MAX);
    }

    fn remove_metadata(&mut self, range: BlockRange, budget: u32, blocks_max: u32) {
        let mut rest = Some(range);
        while let Some(range) = rest.take() {
            let (mut step, mut clusters) = (Budget::of_blocks(8192, budget, blocks_max), Vec::new());
            let edit = self
                .edit(|draft| {
                    rest = draft.remove_back(range, &mut step)?;
                    draft.shrink()?;
                    clusters = draft.freed_clusters()?;
                    Ok(())
                })
                .unwrap();
            let freed: u32 = edit.replaced.iter().map(|extent| extent.blocks).sum();
            assert!(freed <= blocks_max, "no more than may be freed at once");
            let groups = |extent: &Extent| {
                let end = extent.physical.0 + u64::from(extent.blocks) - 1;
                extent.physical.0 / 8192..=end / 8192
            };
            let groups: BTreeSet<u64> = edit.replaced.iter().flat_map(groups).collect();
            assert!(groups.len() <= budget as usize + 1, "{} groups of {budget}", groups.len());
            let held = self.clusters();
            for piece in &edit.replaced {
                for n in 0..u64::from(piece.blocks) {
                    let gone = self.model.remove(&(u64::from(piece.logical.0) + n));
                    assert_eq!(gone, Some((piece.physical.0 + n, piece.unwritten)), "freed once, as mapped");
                }
            }
            let size = self.sb.cluster_size();
            let freed: Vec<u64> = clusters
                .iter()
                .flat_map(|run| (run.start.0..run.end().0).step_by(size.blocks() as usize))
                .collect();
            let gone: Vec<u64> = held.difference(&self.clusters()).copied().collect();
            assert_eq!(freed.iter().copied().collect::<BTreeSet<_>>().into_iter().collect::<Vec<_>>(), gone);
            assert_eq!(freed.len(), gone.len(), "each cluster is freed once");
            if let Some(left) = &rest {
                assert!(left.start == range.start && left.end < range.end, "{left:?} after {range:?}");
                assert!(self.model.range(left.end..range.end).next().is_none());
            } else {
                assert!(self.model.range(range.blocks()).next().is_none());
            }
            self.check();
        }
    }

    /// The mapped clusters.
    fn clusters(&self) -> BTreeSet<u64> {
        let size = self.sb.cluster_size();
        self.model.values().map(|state| size.start(state.0)).collect()
    }

    /// Removes a range and moves what follows into its place.
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
            assert_eq!((edit.new_nodes, edit.freed_nodes.len() as u32), (edit.copies, edit.copies));
            let until = rest.as_ref().map_or(BlockRange::MAP_END, |rest| rest.start);
            for (at, state) in self.take_model(range.until(until)) {
                self.model.insert(at - by, state);
            }
            self.check();
        }
    }

    /// Inserts a hole before a block.
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
            new_nodes += u64::from(edit.new_nodes - edit.copies);
            let from = rest.as_ref().map_or(range.start, |rest| rest.end);
            for (at, state) in self.take_model(BlockRange::new(from, range.end)) {
                self.model.insert(at + by, state);
            }
            self.check();
        }
        assert!(new_nodes <= bound, "{new_nodes} new nodes, {bound} reserved");
    }

    /// The first block after all mapped ones.
    fn end(&self) -> u64 {
        self.model.last_key_value().map_or(0, |(&last, _)| last + 1)
    }

    fn run(&mut self, op: &Op) {
        match *op {
            Op::MapMany { ref starts } => self.map_many(starts),
            Op::Map { start, blocks, jump, unwritten } => self.map(start, blocks, jump, unwritten),
            Op::Collapse { start, blocks } => {
                self.collapse(self.sb.cluster_size().around(BlockRange::at(start, blocks)));
            }
            Op::Insert { start, blocks } => {
                let size = self.sb.cluster_size();
                self.insert(size.start(start), size.end(blocks));
            }
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

    /// Reads the whole tree with the parser used for hostile images, and compares it with the
    /// model.
    fn check(&self) {
        let (found, nodes) = read(&self.store, &self.sb);
        assert!(found == self.model, "the tree maps what the model maps");
        assert_eq!(nodes, self.store.nodes.len(), "every node is in the tree");
    }
}

/// The mapped blocks of a tree, and its number of nodes below the root.
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

/// A change at or before the end of the file, with its number of blocks.
#[derive(Clone, Debug)]
enum Last {
    Nothing,
    Cut(u64),
    Punch(u64, u64),
    Append(u64),
}

fn last() -> impl Strategy<Value = Last> {
    prop_oneof![
        4 => Just(Last::Nothing),
        2 => (1u64..40).prop_map(Last::Cut),
        1 => (0u64..1500).prop_map(Last::Cut),
        2 => (1u64..40, 1u64..20).prop_map(|(back, blocks)| Last::Punch(back, blocks)),
        8 => (1u64..20).prop_map(Last::Append),
    ]
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
        in_clusters in any::<bool>(),
        before in prop::collection::vec(op(), 1..300),
        then in prop::collection::vec((op(), last(), prop::option::weighted(0.15, any::<u64>())), 1..200),
    ) {
        let mut tree = if in_clusters { Tree::on(clustered()) } else { Tree::new() };
        before.iter().for_each(|op| tree.run(op));
        tree.commit(0);
        for (op, last, commit) in &then {
            tree.run(op);
            let end = tree.end();
            match *last {
                Last::Nothing => {}
                Last::Cut(back) => tree.cut(end.saturating_sub(back)),
                Last::Punch(back, blocks) => {
                    tree.remove(BlockRange::at(end.saturating_sub(back), blocks), 4);
                }
                Last::Append(blocks) => tree.map(end, blocks, 1, false),
            }
            if let Some(seed) = *commit {
                tree.commit(seed);
            }
        }
        tree.commit(1);
        tree.check();
    }
}

/// A tree with a single full leaf: every second block, and a long extent at the end.
fn full_leaf() -> Tree {
    let mut tree = Tree::new();
    for n in 0..83 {
        tree.map(2 * n, 1, 1, false);
    }
    tree.map(166, 100, 1, false);
    assert_eq!((tree.shape(), tree.end()), (TreeShape { depth: 1, entries: 1 }, 266));
    tree.commit(0);
    tree
}

#[test]
fn without_a_journal_what_a_leaf_gave_up_is_not_mapped_beside_it() {
    let mut tree = full_leaf();
    tree.cut(216);
    tree.map(216, 10, 5, false);
    assert_eq!(tree.shape().entries, 2);
    tree.commit(0);
    tree.check();

    let mut tree = full_leaf();
    tree.remove(BlockRange::new(216, 266), 4);
    tree.map(230, 10, 5, false);
    assert_eq!(tree.shape().entries, 2);
    tree.commit(0);
    tree.check();
}

#[test]
fn without_a_journal_the_last_extent_of_a_full_leaf_is_cut_as_a_whole() {
    let mut tree = full_leaf();
    tree.remove(BlockRange::new(200, 210), 4);
    assert_eq!(tree.shape().entries, 2);
    tree.commit(0);
    tree.check();

    let mut tree = full_leaf();
    tree.map(200, 10, 5, true);
    assert_eq!(tree.shape().entries, 2);
    tree.commit(0);
    tree.check();
}

#[test]
fn without_a_journal_a_leaf_is_whole_beside_one_that_moved_to_its_place() {
    let mut tree = full_leaf();
    for n in 0..100 {
        tree.map(300 + 2 * n, 1, 1, false);
    }
    tree.commit(0);
    tree.collapse(BlockRange::new(150, 240));
    tree.commit(0);
    tree.collapse(BlockRange::new(166 - 90 + 80, 176));
    tree.commit(0);
    tree.insert(20, 50);
    tree.commit(0);
    tree.check();
}

#[test]
fn a_node_below_itself_is_damage() {
    let mut tree = Tree::new();
    for n in 0..84 * 5 {
        tree.map(n * 2, 1, 1, false);
    }
    assert_eq!(tree.shape().depth, 2);
    let bytes = tree.store.root;
    let child = u64::from(u32::from_le_bytes([bytes[16], bytes[17], bytes[18], bytes[19]]));
    let node = tree.store.nodes.get_mut(&child).unwrap();
    node[16..20].copy_from_slice(&(child as u32).to_le_bytes());
    let mut draft = Draft::new(&tree.store.root, &tree.store, &tree.sb, INODE).unwrap();
    assert!(matches!(draft.leaf(0).unwrap_err(), Stop::Corrupt(_)));
}

#[test]
fn appends_join_and_fill_extents_and_leaves() {
    let mut tree = Tree::new();
    for n in 0..40u64 {
        tree.map(n * 3000, 3000, 0, false);
    }
    tree.check();
    assert_eq!(tree.shape(), TreeShape { depth: 0, entries: 4 }, "120,000 blocks are four extents");
    // Every second block, so that nothing merges. Leaves stay full after an append.
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
fn an_extent_of_many_groups_is_freed_a_few_groups_at_a_time() {
    let mut tree = Tree::new();
    tree.map(0, 32_768, 5, false);
    tree.remove(BlockRange::ALL, 2);
    tree.check();
    assert_eq!(tree.shape(), TreeShape::default());
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
