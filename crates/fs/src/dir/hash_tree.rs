//! A directory's hash tree: descending by a hash, and splitting nodes when a leaf is added.

use super::shape::{Blocks, BlocksMut, Form, Shape, Stop};
use extant_format::{
    Corrupt, DxEntries, DxEntriesMut, DxEntry, DxNode, DxRoot, FileBlock, HashVersion, NameHash, Place,
    UintExt, init_dx_node, set_dx_levels,
};

/// Maximum number of nodes on the path to a leaf.
const DEPTH_MAX: usize = 3;

/// The hashes of the names that may be in a part of a tree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct HashRange {
    /// The lowest hash. Its lowest bit is set if names with this hash began in the previous part.
    pub(crate) low: u32,
    /// The hash at which the next part begins; `None` in the last part.
    pub(crate) next: Option<u32>,
}

impl HashRange {
    /// Whether a name with this hash may be here. Hashes of names are even.
    pub(super) const fn holds(self, hash: u32) -> bool {
        let fits_end = match self.next {
            None => true,
            // Names with one hash may continue in the next part.
            Some(next) => hash < next & !1 || (hash == next & !1 && next & 1 == 1),
        };
        hash >= self.low & !1 && fits_end
    }

    /// Whether a node with entries from hash `first` to `last` may be here.
    const fn spans(self, first: u32, last: u32) -> bool {
        let fits_end = match self.next {
            None => true,
            Some(next) => last & !1 <= next & !1,
        };
        first & !1 >= self.low & !1 && fits_end
    }
}

/// One node on the path down, and which of its entries was followed.
#[derive(Clone, Copy, Debug, Default)]
struct Step {
    block: FileBlock,
    index: usize,
    count: usize,
    limit: usize,
}

/// The path from the root to a leaf.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Path {
    steps: [Step; DEPTH_MAX],
    /// The hash ranges of the nodes of `steps`, and then of the leaf.
    hashes: [HashRange; DEPTH_MAX + 1],
    depth: usize,
    pub(crate) leaf: FileBlock,
    pub(crate) version: HashVersion,
}

impl Path {
    /// Descends to the first leaf that may have names with a given hash. `hash` computes it for the
    /// tree's version.
    ///
    /// # Errors
    /// A tree whose hash cannot be computed is reported as damaged.
    pub(crate) fn find(
        shape: &Shape,
        blocks: &impl Blocks,
        hash: impl FnOnce(HashVersion) -> Option<NameHash>,
    ) -> Result<(Self, NameHash), Stop> {
        let bytes = blocks.get(FileBlock(0))?;
        let context = shape.context(FileBlock(0));
        if !blocks.is_sound(FileBlock(0), Form::Node) {
            DxRoot::parse(&bytes, &context)?;
            blocks.set_sound(FileBlock(0), Form::Node);
        }
        let root = DxRoot::open(&bytes, &context)?;
        let version = root.info.hash_version;
        let Some(hash) = hash(version) else {
            let place = Place::HtreeNode(shape.dir, FileBlock(0));
            let rule = "a hash that needs no key";
            return Err(Corrupt::field(place, "hash_version", version.number().into(), rule).into());
        };
        let mut path = Self {
            steps: [Step::default(); DEPTH_MAX],
            hashes: [HashRange::default(); DEPTH_MAX + 1],
            depth: usize::from(root.info.levels) + 1,
            leaf: FileBlock(0),
            version,
        };
        let child = path.enter(shape, 0, FileBlock(0), &root.entries, Some(hash))?;
        path.descend(shape, blocks, 0, child, Some(hash))?;
        Ok((path, hash))
    }

    /// The hashes of the names that may be in the leaf.
    pub(crate) fn hashes(&self) -> HashRange {
        self.hashes[self.depth]
    }

    /// The nodes that lead to the leaf, starting with the root.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = FileBlock> {
        self.steps[..self.depth].iter().map(|step| step.block)
    }

    /// Records the entry of a node to follow, and returns its child.
    fn enter(
        &mut self,
        shape: &Shape,
        level: usize,
        block: FileBlock,
        entries: &DxEntries<'_>,
        hash: Option<NameHash>,
    ) -> Result<FileBlock, Stop> {
        let count = entries.count();
        // The first entry has no hash of its own: it begins at the lowest hash that leads to the
        // node.
        if let (Some(first), Some(last)) = (entries.get(1), entries.get(count - 1))
            && !self.hashes[level].spans(first.hash, last.hash)
        {
            return Err(shape.bad_block(block, "a node whose hashes lie between those that lead to it"));
        }
        let index = hash.map_or(0, |hash| entries.find(hash));
        self.steps[level] = Step { block, index, count, limit: entries.limit() };
        self.narrow(level, entries);
        Ok(entries.get(index).expect("find gives an entry that is there").block)
    }

    /// Computes the hash range below the entry followed at `level`.
    fn narrow(&mut self, level: usize, entries: &DxEntries<'_>) {
        let (own, index) = (self.hashes[level], self.steps[level].index);
        let low = entries.get(index).filter(|_| index > 0).map_or(own.low, |entry| entry.hash);
        let next = entries.get(index + 1).map(|entry| entry.hash).or(own.next);
        self.hashes[level + 1] = HashRange { low, next };
    }

    /// Descends from `child`, which a node at `level` leads to.
    fn descend(
        &mut self,
        shape: &Shape,
        blocks: &impl Blocks,
        level: usize,
        mut child: FileBlock,
        hash: Option<NameHash>,
    ) -> Result<(), Stop> {
        for level in level + 1..=self.depth {
            if child.0 == 0 || child.0 >= shape.blocks {
                return Err(shape.bad_block(child, "a block of the directory behind the root"));
            }
            if level < self.depth {
                let bytes = blocks.get(child)?;
                let context = shape.context(child);
                if !blocks.is_sound(child, Form::Node) {
                    DxNode::parse(&bytes, &context)?;
                    blocks.set_sound(child, Form::Node);
                }
                let node = DxNode::open(&bytes, &context)?;
                child = self.enter(shape, level, child, &node.entries, hash)?;
            }
        }
        self.leaf = child;
        Ok(())
    }

    /// Advances to the next leaf: only if names with `hash` continue there, or any if `hash` is
    /// `None`. Returns the hash at which the leaf begins, or `None` if there is no such leaf.
    pub(crate) fn next(
        &mut self,
        shape: &Shape,
        blocks: &impl Blocks,
        hash: Option<NameHash>,
    ) -> Result<Option<u32>, Stop> {
        for level in (0..self.depth).rev() {
            let Step { block, index, count, .. } = self.steps[level];
            if index + 1 >= count {
                continue;
            }
            let bytes = blocks.get(block)?;
            let context = shape.context(block);
            let entries = match level {
                0 => DxRoot::open(&bytes, &context)?.entries,
                _ => DxNode::open(&bytes, &context)?.entries,
            };
            let Some(entry) = entries.get(index + 1) else { return Ok(None) };
            if hash.is_some_and(|hash| !entry.continues(hash)) {
                return Ok(None);
            }
            self.steps[level].index += 1;
            self.narrow(level, &entries);
            self.descend(shape, blocks, level, entry.block, None)?;
            return Ok(Some(entry.hash));
        }
        Ok(None)
    }

    /// How many inner nodes a new leaf on this path needs; `None` if the tree cannot grow any more.
    pub(crate) fn new_nodes(&self, shape: &Shape) -> Option<u32> {
        let full = self.full_nodes();
        let root_full = full == self.depth;
        (!root_full || self.depth <= usize::from(shape.levels_max())).then_some(full.fit_u32())
    }

    /// Number of full nodes, from the leaf upwards. Includes the root if all nodes below it are
    /// full.
    fn full_nodes(&self) -> usize {
        self.steps[..self.depth].iter().rev().take_while(|step| step.count >= step.limit).count()
    }

    /// Adds a leaf that was split from this path's: names from `hash` upwards are in `leaf`. New
    /// nodes use the blocks from `next` on, as many as [`Self::new_nodes`] returned.
    pub(crate) fn add_leaf(
        mut self,
        shape: &Shape,
        blocks: &mut impl BlocksMut,
        mut next: FileBlock,
        hash: u32,
        leaf: FileBlock,
    ) {
        let full = self.full_nodes();
        if full == self.depth {
            self.push_root_down(shape, blocks, next);
            next.0 += 1;
        }
        // The root now has room. If it was pushed down, so does the node below it.
        let first_full = self.depth - full.min(self.depth - 1);
        for level in first_full..self.depth {
            if self.steps[level].count >= self.steps[level].limit {
                self.split_node(shape, blocks, level, next);
                next.0 += 1;
            }
        }
        self.insert(shape, blocks, self.depth - 1, DxEntry { hash, block: leaf });
    }

    /// Inserts an entry after the one that was followed at `level`.
    fn insert(&mut self, shape: &Shape, blocks: &mut impl BlocksMut, level: usize, entry: DxEntry) {
        let step = &mut self.steps[level];
        blocks.edit(step.block, Form::Node, |bytes| {
            entries_mut(bytes, shape, step.block).insert(step.index + 1, entry);
        });
        step.count += 1;
    }

    /// Moves the root's entries to a new node below it.
    fn push_root_down(&mut self, shape: &Shape, blocks: &mut impl BlocksMut, at: FileBlock) {
        let bytes = held(blocks, FileBlock(0));
        let root = DxRoot::open(&bytes, &shape.context(FileBlock(0))).expect("a root on the way down");
        let moved: Vec<DxEntry> = root.entries.iter().collect();
        let levels = root.info.levels + 1;
        drop(bytes);
        let mut limit = 0;
        blocks.create(at, Form::Node, |bytes| {
            init_dx_node(bytes, &shape.context(at), moved.iter().copied());
            limit = entries_mut(bytes, shape, at).limit();
        });
        blocks.edit(FileBlock(0), Form::Node, |bytes| {
            let mut entries = entries_mut(bytes, shape, FileBlock(0));
            entries.truncate(1);
            entries.set_first(at);
            set_dx_levels(bytes, levels);
        });
        self.steps.copy_within(0..self.depth, 1);
        self.depth += 1;
        self.steps[1].block = at;
        self.steps[1].limit = limit;
        self.steps[0] = Step { index: 0, count: 1, ..self.steps[0] };
    }

    /// Moves the upper half of a node's entries to a new sibling.
    fn split_node(&mut self, shape: &Shape, blocks: &mut impl BlocksMut, level: usize, at: FileBlock) {
        let Step { block, index, .. } = self.steps[level];
        let bytes = held(blocks, block);
        let node = DxNode::open(&bytes, &shape.context(block)).expect("a node on the way down");
        let kept = node.entries.count() / 2;
        let moved: Vec<DxEntry> = node.entries.iter().skip(kept).collect();
        drop(bytes);
        blocks.create(at, Form::Node, |bytes| {
            init_dx_node(bytes, &shape.context(at), moved.iter().copied());
        });
        blocks.edit(block, Form::Node, |bytes| entries_mut(bytes, shape, block).truncate(kept));
        self.insert(shape, blocks, level - 1, DxEntry { hash: moved[0].hash, block: at });
        let step = &mut self.steps[level];
        if index >= kept {
            *step = Step { block: at, index: index - kept, count: moved.len(), ..*step };
            self.steps[level - 1].index += 1;
        } else {
            step.count = kept;
        }
    }
}

/// Returns a block that the descent has read, and which a change therefore holds.
pub(crate) fn held<B: Blocks>(blocks: &B, at: FileBlock) -> B::Bytes {
    match blocks.get(at) {
        Ok(bytes) => bytes,
        Err(stop) => panic!("a change holds what it has looked at: {stop:?}"),
    }
}

fn entries_mut<'a>(bytes: &'a mut [u8], shape: &Shape, at: FileBlock) -> DxEntriesMut<'a> {
    DxEntriesMut::open(bytes, &shape.context(at)).expect("a node on the way down")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_of_a_part_begin_with_its_own_and_end_before_the_next_parts() {
        let range = HashRange { low: 10, next: Some(20) };
        assert!(range.holds(10) && range.holds(18) && !range.holds(8) && !range.holds(20));
        let continued = HashRange { low: 11, next: Some(21) };
        assert!(continued.holds(10) && continued.holds(20) && !continued.holds(22));
        assert!(HashRange { low: 10, next: None }.holds(u32::MAX - 1));
        assert!(range.spans(10, 20) && !range.spans(8, 12) && !range.spans(12, 22));
    }
}
