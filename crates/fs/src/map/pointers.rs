//! Edits of the block maps of ext2 and ext3 (kernel document: *Direct/Indirect Block Addressing*).
//!
//! A block map has no unwritten state: a pointer is set only once the block's data are on the
//! device.

use super::block_state::OnDisk;
use super::node_edit::{Budget, Edit, NodeAt, NodeWrite, Nodes, RemainingRange, Stop};
use super::run_map::RunValue;
use extant_format::{
    BlockRange, DIRECT_POINTERS, Extent, FileBlock, InodeNumber, Place, Superblock, UintExt, VolumeBlock,
    check_pointer, indirect_capacity, indirect_path, pointers_per_block,
};
use std::collections::{BTreeMap, BTreeSet};

/// Bytes of the pointers in the inode.
const ROOT_BYTES: usize = 60;

/// What a pointer points to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pointer {
    Hole,
    Block(VolumeBlock),
    Node(NodeAt),
}

/// Changed pointers of a node.
#[derive(Clone, Debug)]
pub(crate) struct PointerWrites(Vec<(u32, Pointer)>);

impl PointerWrites {
    /// Writes the pointers into the inode's 60 bytes or into a block. A new block must already be
    /// zeroed.
    pub(crate) fn write_to(&self, to: &mut [u8], news: &[VolumeBlock]) {
        for &(index, pointer) in &self.0 {
            let at = match pointer {
                Pointer::Hole => 0,
                Pointer::Block(at) => at.0,
                Pointer::Node(at) => at.resolve(news).map_or(0, |at| at.0),
            };
            let at = u32::try_from(at).expect("a mapped block of a volume without extents is below 2^32");
            to[index.to_usize() * 4..][..4].copy_from_slice(&at.to_le_bytes());
        }
    }
}

/// An edit of one file's map being planned.
#[derive(Debug)]
pub(crate) struct PointerDraft<'a, N: Nodes> {
    sb: &'a Superblock,
    inode: InodeNumber,
    source: &'a N,
    root: [u8; ROOT_BYTES],
    loaded: BTreeMap<VolumeBlock, N::Bytes>,
    set: BTreeMap<(NodeAt, u32), Pointer>,
    news: u32,
    freed: Vec<VolumeBlock>,
    replaced: Vec<Extent>,
}

impl<'a, N: Nodes> PointerDraft<'a, N> {
    /// Starts from a copy of the map whose pointers in the inode are `root`.
    pub(crate) fn new(
        root: &[u8; ROOT_BYTES],
        source: &'a N,
        sb: &'a Superblock,
        inode: InodeNumber,
    ) -> Self {
        let (loaded, set) = (BTreeMap::new(), BTreeMap::new());
        Self { sb, inode, source, root: *root, loaded, set, news: 0, freed: Vec::new(), replaced: Vec::new() }
    }

    /// The mappings around block `logical`: those in the pointer block that covers it, or a hole if
    /// there is none.
    pub(crate) fn leaf(&mut self, logical: u64) -> Result<Vec<(BlockRange, OnDisk)>, Stop> {
        let size = self.sb.block_size();
        let Some(path) = indirect_path(logical, size) else {
            return Ok(vec![(BlockRange::from_block(indirect_capacity(size)), OnDisk::Hole)]);
        };
        let bits = size.log2() - 2;
        let (mut at, mut index) = (NodeAt::Root, path.root.fit_u32());
        for (level, &below) in path.indices[..path.levels].iter().enumerate() {
            let Some(child) = self.node(at, index)? else {
                let skip = path.indices[level..path.levels].iter().fold(0, |n, &i| n << bits | u64::from(i));
                let reach = 1u64 << (bits * (path.levels - level).fit_u32());
                return Ok(vec![(BlockRange::at(logical - skip, reach), OnDisk::Hole)]);
            };
            (at, index) = (child, below);
        }
        let first = logical - u64::from(index);
        let count = if path.levels == 0 { DIRECT_POINTERS } else { 1 << bits };
        let mut runs: Vec<(BlockRange, OnDisk)> = Vec::new();
        for n in 0..count {
            let block = first + u64::from(n);
            let known = self.block(at, n)?.map_or(OnDisk::Hole, OnDisk::Written);
            match runs.last_mut() {
                Some((run, last)) if last.advance(block - run.start) == known => run.end += 1,
                _ => runs.push((BlockRange::one(block), known)),
            }
        }
        Ok(runs)
    }

    /// Maps `blocks` file blocks from `logical` on to the run at `physical`. Their previous
    /// mappings go to [`Edit::replaced`].
    pub(crate) fn insert(&mut self, logical: u64, physical: VolumeBlock, blocks: u64) -> Result<(), Stop> {
        if logical + blocks > indirect_capacity(self.sb.block_size())
            || u32::try_from(physical.0 + blocks).is_err()
        {
            return Err(Stop::TooBig);
        }
        for n in 0..blocks {
            let path = indirect_path(logical + n, self.sb.block_size()).ok_or(Stop::TooBig)?;
            let (mut at, mut index) = (NodeAt::Root, path.root.fit_u32());
            for &below in &path.indices[..path.levels] {
                at = match self.node(at, index)? {
                    Some(child) => child,
                    None => {
                        let child = NodeAt::New(self.news);
                        self.news += 1;
                        self.set.insert((at, index), Pointer::Node(child));
                        child
                    }
                };
                index = below;
            }
            if let Some(old) = self.block(at, index)? {
                self.note_replaced(logical + n, old);
            }
            self.set.insert((at, index), Pointer::Block(VolumeBlock(physical.0 + n)));
        }
        Ok(())
    }

    /// Unmaps the end of `range` as far as the budget allows, and frees pointer blocks that become
    /// empty. Returns the remaining range.
    pub(crate) fn remove_back(
        &mut self,
        range: BlockRange,
        budget: &mut Budget,
    ) -> Result<RemainingRange, Stop> {
        let capacity = indirect_capacity(self.sb.block_size());
        let range = range.until(capacity);
        let n = u64::from(pointers_per_block(self.sb.block_size()));
        let direct = u64::from(DIRECT_POINTERS);
        let tops = [direct, direct + n, direct + n + n * n, capacity];
        for level in (1..=3usize).rev() {
            let reach = BlockRange::new(tops[level - 1], tops[level]);
            if !range.overlaps(reach) {
                continue;
            }
            let index = DIRECT_POINTERS + level.fit_u32() - 1;
            let Some(child) = self.node(NodeAt::Root, index)? else { continue };
            let stopped = self.remove_below(child, level.fit_u32(), reach.start, range, budget)?;
            self.release_if_empty(NodeAt::Root, index, child, budget);
            if stopped.is_some() {
                return Ok(stopped);
            }
        }
        for index in range.until(direct).blocks().rev() {
            if !self.clear(NodeAt::Root, index.fit_u32(), index, budget)? {
                return Ok(Some(range.until(index + 1)));
            }
        }
        Ok(None)
    }

    /// Completes the edit, ready to be written.
    pub(crate) fn finish(self) -> Edit<PointerWrites> {
        let mut writes: Vec<NodeWrite<PointerWrites>> = Vec::new();
        let freed: BTreeSet<_> = self.freed.iter().map(|&at| NodeAt::Block(at)).collect();
        for ((at, index), pointer) in self.set {
            if freed.contains(&at) {
                continue;
            }
            match writes.last_mut().filter(|write| write.at == at) {
                Some(write) => write.change.0.push((index, pointer)),
                None => writes.push(NodeWrite { at, change: PointerWrites(vec![(index, pointer)]) }),
            }
        }
        Edit {
            writes,
            new_nodes: self.news,
            freed_nodes: self.freed,
            replaced: self.replaced,
            // An entry never moves to another block.
            reshapes: false,
            copies: 0,
        }
    }

    /// Removes everything below a node at `level` (1 points to data) that maps from file block
    /// `first` on. Returns the remaining range if the budget runs out.
    fn remove_below(
        &mut self,
        at: NodeAt,
        level: u32,
        first: u64,
        range: BlockRange,
        budget: &mut Budget,
    ) -> Result<RemainingRange, Stop> {
        let bits = self.sb.block_size().log2() - 2;
        let reach = 1u64 << (bits * (level - 1));
        let from = range.start.saturating_sub(first) / reach;
        let to = (range.end - first).div_ceil(reach).min(1 << bits);
        if level == 1 {
            budget.node(None);
        }
        for index in (from..to).rev() {
            let start = first + index * reach;
            if level == 1 {
                if !self.clear(at, index.fit_u32(), start, budget)? {
                    return Ok(Some(range.until(start + 1)));
                }
                continue;
            }
            let Some(child) = self.node(at, index.fit_u32())? else { continue };
            if budget.is_spent() {
                return Ok(Some(range.until(start + reach)));
            }
            let stopped = self.remove_below(child, level - 1, start, range, budget)?;
            self.release_if_empty(at, index.fit_u32(), child, budget);
            if stopped.is_some() {
                return Ok(stopped);
            }
        }
        Ok(None)
    }

    /// Turns one pointer into a hole. Returns `false` if the budget does not allow it.
    fn clear(&mut self, at: NodeAt, index: u32, logical: u64, budget: &mut Budget) -> Result<bool, Stop> {
        if let Some(old) = self.block(at, index)? {
            if !budget.take(old, 1) {
                return Ok(false);
            }
            self.note_replaced(logical, old);
            self.set.insert((at, index), Pointer::Hole);
        }
        Ok(true)
    }

    fn release_if_empty(&mut self, parent: NodeAt, index: u32, child: NodeAt, budget: &mut Budget) {
        let n = pointers_per_block(self.sb.block_size());
        if (0..n).any(|i| self.pointer(child, i) != Pointer::Hole) {
            return;
        }
        if let NodeAt::Block(block) = child {
            self.freed.push(block);
            budget.node(Some(block));
        }
        self.set.insert((parent, index), Pointer::Hole);
    }

    /// Records a replaced block. Runs are stored in ascending block order, whichever direction they
    /// are found in.
    fn note_replaced(&mut self, logical: u64, at: VolumeBlock) {
        if let Some(last) = self.replaced.last_mut() {
            let first = u64::from(last.logical.0);
            if logical == last.logical_end() && at.0 == last.physical.0 + u64::from(last.blocks) {
                last.blocks += 1;
                return;
            }
            if logical + 1 == first && at.0 + 1 == last.physical.0 {
                last.logical = FileBlock(logical.fit_u32());
                last.physical = at;
                last.blocks += 1;
                return;
            }
        }
        let logical = FileBlock(logical.fit_u32());
        self.replaced.push(Extent { logical, physical: at, blocks: 1, unwritten: false });
    }

    /// The pointer as changed by the edit. Its node must be loaded.
    fn pointer(&self, at: NodeAt, index: u32) -> Pointer {
        if let Some(&pointer) = self.set.get(&(at, index)) {
            return pointer;
        }
        let bytes: &[u8] = match at {
            NodeAt::Root => &self.root,
            NodeAt::New(_) => return Pointer::Hole,
            NodeAt::Block(block) => &self.loaded[&block],
        };
        let at = index.to_usize() * 4;
        match u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]) {
            0 => Pointer::Hole,
            block => Pointer::Block(VolumeBlock(block.into())),
        }
    }

    fn block(&self, at: NodeAt, index: u32) -> Result<Option<VolumeBlock>, Stop> {
        let place = match at {
            NodeAt::Block(block) => Place::IndirectBlock(self.inode, block),
            _ => Place::Inode(self.inode),
        };
        match self.pointer(at, index) {
            Pointer::Block(block) => Ok(Some(check_pointer(block, self.sb, place)?)),
            _ => Ok(None),
        }
    }

    /// Loads the pointer block that a pointer leads to.
    fn node(&mut self, at: NodeAt, index: u32) -> Result<Option<NodeAt>, Stop> {
        if let Pointer::Node(node) = self.pointer(at, index) {
            return Ok(Some(node));
        }
        let Some(block) = self.block(at, index)? else { return Ok(None) };
        if !self.loaded.contains_key(&block) {
            let bytes = self.source.node(block).ok_or(Stop::Missing(block))?;
            self.loaded.insert(block, bytes);
        }
        Ok(Some(NodeAt::Block(block)))
    }
}

#[cfg(test)]
mod tests;
