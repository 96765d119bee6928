//! Edits of extent trees (kernel document: *Extent Tree*).
//!
//! Every change is one operation: replace what a range of file blocks maps by other extents, or by
//! none. Nodes are split and removed, and the keys above them are updated: Linux rejects a tree
//! whose index key differs from the first key of its child. A full root is pushed down; it is
//! pulled up again once its only child fits into it.

use super::clusters;
use super::node_edit::{Budget, Edit, NodeAt, NodeWrite, Nodes, RemainingRange, Stop};
use crate::meta::PhysicalRun;
use extant_format::{
    BlockRange, Corrupt, EXTENT_MAX_BLOCKS, EXTENT_MAX_DEPTH, Extent, ExtentContext, ExtentIndex, ExtentNode,
    FileBlock, InodeNumber, Place, Superblock, UNWRITTEN_MAX_BLOCKS, UintExt, VolumeBlock,
};
use std::collections::BTreeMap;

/// Bytes of the root in the inode.
const ROOT_BYTES: usize = 60;

/// A node's new contents.
#[derive(Clone, Debug)]
pub(crate) struct TreeNode {
    depth: u16,
    entries: Entries,
}

#[derive(Clone, Debug)]
enum Entries {
    Leaf(Vec<Extent>),
    Index(Vec<Child>),
}

#[derive(Clone, Copy, Debug)]
struct Child {
    logical: u32,
    at: NodeAt,
}

impl TreeNode {
    fn from_format(node: ExtentNode) -> Self {
        match node {
            ExtentNode::Leaf(extents) => Self { depth: 0, entries: Entries::Leaf(extents) },
            ExtentNode::Index { depth, entries } => {
                let child = |e: ExtentIndex| Child { logical: e.logical.0, at: NodeAt::Block(e.child) };
                Self { depth, entries: Entries::Index(entries.into_iter().map(child).collect()) }
            }
        }
    }

    fn len(&self) -> usize {
        match &self.entries {
            Entries::Leaf(extents) => extents.len(),
            Entries::Index(children) => children.len(),
        }
    }

    fn first_key(&self) -> Option<u32> {
        match &self.entries {
            Entries::Leaf(extents) => extents.first().map(|e| e.logical.0),
            Entries::Index(children) => children.first().map(|c| c.logical),
        }
    }

    /// Whether no two entries overlap, and each comes before the next.
    fn is_in_order(&self) -> bool {
        match &self.entries {
            Entries::Leaf(extents) => extents.is_sorted_by(|a, b| a.logical_end() <= b.logical.0.into()),
            Entries::Index(children) => children.is_sorted_by(|a, b| a.logical < b.logical),
        }
    }

    fn split_off(&mut self, at: usize) -> Self {
        let entries = match &mut self.entries {
            Entries::Leaf(extents) => Entries::Leaf(extents.split_off(at)),
            Entries::Index(children) => Entries::Index(children.split_off(at)),
        };
        Self { depth: self.depth, entries }
    }

    fn children(&mut self) -> &mut Vec<Child> {
        match &mut self.entries {
            Entries::Index(children) => children,
            Entries::Leaf(_) => unreachable!("a node above another is an index"),
        }
    }

    /// Writes the node into the inode's 60 bytes or into a block. A block's checksum is computed at
    /// commit.
    pub(crate) fn write_to(&self, to: &mut [u8], news: &[VolumeBlock]) {
        match &self.entries {
            Entries::Leaf(extents) => ExtentNode::Leaf(extents.clone()).write_to(to),
            Entries::Index(children) => {
                let entry = |c: &Child| ExtentIndex {
                    logical: FileBlock(c.logical),
                    child: c.at.resolve(news).expect("the root has no parent"),
                };
                let entries = children.iter().map(entry).collect();
                ExtentNode::Index { depth: self.depth, entries }.write_to(to);
            }
        }
    }
}

/// The path to a leaf.
#[derive(Debug)]
struct Path {
    /// The nodes above the leaf, each with the index of the child on the path.
    steps: Vec<(NodeAt, usize)>,
    leaf: NodeAt,
    /// File blocks that the leaf covers.
    range: BlockRange,
    /// Whether no other leaf follows it.
    is_last: bool,
}

/// An edit of one file's tree being planned.
#[derive(Debug)]
pub(crate) struct Draft<'a, N> {
    sb: &'a Superblock,
    inode: InodeNumber,
    source: &'a N,
    nodes: BTreeMap<NodeAt, TreeNode>,
    dirty: std::collections::BTreeSet<NodeAt>,
    news: u32,
    freed: Vec<VolumeBlock>,
    replaced: Vec<Extent>,
    /// Whether the in-place changes must become durable together: some node covers other file
    /// blocks than before, or another node may come to cover blocks that it gave up.
    reshapes: bool,
    copies: u32,
    /// Whether each leaf is checked against the cluster rule (`clusters::check`).
    is_strict: bool,
}

impl<'a, N: Nodes> Draft<'a, N> {
    /// Starts from a copy of the tree with this root.
    pub(crate) fn new(
        root: &[u8; ROOT_BYTES],
        source: &'a N,
        sb: &'a Superblock,
        inode: InodeNumber,
    ) -> Result<Self, Stop> {
        Self::of(root, source, sb, inode, !sb.cluster_size().is_block())
    }

    /// Like [`Self::new`], but for lookups only: a file whose extents violate the cluster rule
    /// (`clusters::check`) can still be read.
    pub(crate) fn to_look_up(
        root: &[u8; ROOT_BYTES],
        source: &'a N,
        sb: &'a Superblock,
        inode: InodeNumber,
    ) -> Result<Self, Stop> {
        Self::of(root, source, sb, inode, false)
    }

    fn of(
        root: &[u8; ROOT_BYTES],
        source: &'a N,
        sb: &'a Superblock,
        inode: InodeNumber,
        is_strict: bool,
    ) -> Result<Self, Stop> {
        let (nodes, dirty, freed, replaced) = Default::default();
        let mut draft = Self {
            sb,
            inode,
            source,
            nodes,
            dirty,
            news: 0,
            freed,
            replaced,
            reshapes: false,
            copies: 0,
            is_strict,
        };
        let node = draft.parse(root, &ExtentContext::root(sb, inode))?;
        draft.nodes.insert(NodeAt::Root, node);
        Ok(draft)
    }

    fn parse(&self, bytes: &[u8], cx: &ExtentContext<'_>) -> Result<TreeNode, Corrupt> {
        let node = ExtentNode::parse(bytes, cx)?;
        if let ExtentNode::Leaf(extents) = &node
            && self.is_strict
        {
            clusters::check(extents, self.sb.cluster_size(), Place::ExtentNode(self.inode, cx.block))?;
        }
        Ok(TreeNode::from_format(node))
    }

    /// The extents of the leaf that covers block `logical`, and the blocks it covers.
    pub(crate) fn leaf(&mut self, logical: u64) -> Result<(BlockRange, &[Extent]), Stop> {
        let path = self.descend(logical)?;
        Ok((path.range, self.extents(path.leaf)))
    }

    /// Whether any block of a cluster, which is at `at`, is mapped.
    ///
    /// # Errors
    /// A block is mapped elsewhere. The check when a leaf is loaded does not see other leaves.
    fn maps_any(&mut self, cluster: BlockRange, at: VolumeBlock) -> Result<bool, Stop> {
        let (size, inode) = (self.sb.cluster_size(), self.inode);
        let mut block = cluster.start;
        while block < cluster.end {
            let (leaf, extents) = self.leaf(block)?;
            if let Some(found) = extents.iter().find_map(|extent| clip(extent, cluster)) {
                return match size.start(found.physical.0) == at.0 {
                    true => Ok(true),
                    false => Err(clusters::broken(&found, Place::Inode(inode)).into()),
                };
            }
            block = leaf.end;
        }
        Ok(false)
    }

    /// Clusters that had a mapped block and have none after the edit.
    pub(super) fn freed_clusters(&mut self) -> Result<Vec<PhysicalRun>, Stop> {
        let cluster = self.sb.cluster_size();
        let mut freed: Vec<PhysicalRun> = Vec::with_capacity(self.replaced.len());
        let mut done = 0;
        for extent in self.replaced.clone() {
            let mut clusters = cluster.around(extent.range());
            // The last cluster of the previous extent may be the first one here.
            clusters.start = clusters.start.max(done);
            done = clusters.end;
            let one = |start| BlockRange::at(start, cluster.blocks());
            let first = (cluster.start(extent.logical.0.into()), cluster.start(extent.physical.0));
            let place = |start: u64| VolumeBlock(first.1 + (start - first.0));
            if !clusters.is_empty() && self.maps_any(one(clusters.start), place(clusters.start))? {
                clusters.start += cluster.blocks();
            }
            let last = clusters.end - cluster.blocks();
            if !clusters.is_empty() && self.maps_any(one(last), place(last))? {
                clusters.end = last;
            }
            if clusters.is_empty() {
                continue;
            }
            let at = place(clusters.start);
            match freed.last_mut().filter(|last| last.end() == at) {
                Some(last) => last.blocks += clusters.len(),
                None => freed.push(PhysicalRun::new(at, clusters.len())),
            }
        }
        Ok(freed)
    }

    /// Maps `range` to the extents `with`, which are inside it and in order, and may leave holes.
    pub(crate) fn replace(&mut self, range: BlockRange, with: &[Extent]) -> Result<(), Stop> {
        if range.end > BlockRange::MAP_END - 1 && !with.is_empty() {
            return Err(Stop::TooBig);
        }
        let mut start = range.start;
        while start < range.end {
            let path = self.descend(start)?;
            let part = BlockRange::new(start, path.range.end).until(range.end);
            let with: Vec<_> = with.iter().filter_map(|e| clip(e, part)).collect();
            self.replace_in(path, part, &with)?;
            start = part.end;
        }
        Ok(())
    }

    /// Unmaps the end of `range`, as much as is in one leaf and fits the budget. Returns the
    /// remaining range.
    pub(crate) fn remove_back(
        &mut self,
        range: BlockRange,
        budget: &mut Budget,
    ) -> Result<RemainingRange, Stop> {
        let mut end = range.end.min(BlockRange::MAP_END);
        while range.start < end {
            let path = self.descend(end - 1)?;
            let (mut cut, mut whole) = (end, true);
            for extent in self.extents(path.leaf).iter().rev() {
                let Some(piece) = clip(extent, range.until(end)) else { continue };
                // Frees only the end of the extent if the budget allows no more.
                let over = piece.blocks.saturating_sub(budget.blocks_left());
                if over == piece.blocks
                    || !budget.take(VolumeBlock(piece.physical.0 + u64::from(over)), piece.blocks - over)
                {
                    whole = false;
                    break;
                }
                cut = u64::from(piece.logical.0 + over);
                if over > 0 {
                    whole = false;
                    break;
                }
            }
            let low = path.range.start;
            if cut < end {
                self.replace_in(path, BlockRange::new(cut, end), &[])?;
                let rest = if whole { low } else { cut };
                return Ok((rest > range.start).then_some(range.until(rest)));
            }
            end = low;
        }
        Ok(None)
    }

    /// Moves extents that begin in `range` towards the start of the file by `by` blocks, over a
    /// hole of that length. `range` ends where the map does. One call moves those of the first leaf
    /// that has any. Returns the remaining range.
    pub(crate) fn shift_left(&mut self, range: BlockRange, by: u64) -> Result<RemainingRange, Stop> {
        let mut start = range.start;
        loop {
            let path = self.descend(start)?;
            let rest = (!path.is_last).then_some(BlockRange::new(path.range.end, range.end));
            let extents = self.extents(path.leaf);
            let first = extents.partition_point(|e| u64::from(e.logical.0) < start);
            if first < extents.len() {
                let mut after = extents[..first].to_vec();
                for extent in &extents[first..] {
                    append(
                        &mut after,
                        Extent { logical: FileBlock(extent.logical.0 - by.fit_u32()), ..*extent },
                    );
                }
                self.set_extents(path.leaf, after);
                self.correct_keys(&path.steps, path.leaf);
                return Ok(rest);
            }
            match rest {
                Some(rest) => start = rest.start,
                None => return Ok(None),
            }
        }
    }

    /// Moves what `range` maps towards the end of the file by `by` blocks, where nothing is in the
    /// way. One call moves what the last leaf of the range maps. An extent that begins before the
    /// range is split. Returns the remaining range.
    pub(crate) fn shift_right(&mut self, range: BlockRange, by: u64) -> Result<RemainingRange, Stop> {
        let mut end = range.end.min(BlockRange::MAP_END);
        while range.start < end {
            let path = self.descend(end - 1)?;
            let low = path.range.start;
            let extents = self.extents(path.leaf);
            let first = extents.partition_point(|e| e.logical_end() <= range.start);
            if first < extents.len() {
                if extents.last().is_some_and(|last| last.logical_end() + by >= BlockRange::MAP_END) {
                    return Err(Stop::TooBig);
                }
                let mut after = extents[..first].to_vec();
                after.extend(clip(&extents[first], BlockRange::new(0, range.start)));
                after.extend(extents[first..].iter().filter_map(|extent| {
                    let moved = clip(extent, BlockRange::from_block(range.start))?;
                    Some(Extent { logical: FileBlock(moved.logical.0 + by.fit_u32()), ..moved })
                }));
                self.set_extents(path.leaf, after);
                self.correct_keys(&path.steps, path.leaf);
                self.relieve(path.steps, path.leaf, false)?;
                return Ok((low > range.start).then_some(range.until(low)));
            }
            end = low;
        }
        Ok(None)
    }

    fn set_extents(&mut self, leaf: NodeAt, extents: Vec<Extent>) {
        self.nodes.insert(leaf, TreeNode { depth: 0, entries: Entries::Leaf(extents) });
        self.dirty.insert(leaf);
        self.reshapes = true;
    }

    /// Pulls the root's only child into the root, repeatedly, as long as it fits. For edits that
    /// may free nodes.
    pub(crate) fn shrink(&mut self) -> Result<(), Stop> {
        loop {
            let root = &self.nodes[&NodeAt::Root];
            let Entries::Index(children) = &root.entries else { return Ok(()) };
            let [child] = children[..] else { return Ok(()) };
            let cx = ExtentContext {
                block: child.at.block(),
                depth: Some(root.depth - 1),
                range: BlockRange::from_block(child.logical.into()),
                ..ExtentContext::root(self.sb, self.inode)
            };
            self.load(child.at, &cx)?;
            if self.nodes[&child.at].len() > capacity(NodeAt::Root, self.sb) {
                return Ok(());
            }
            let node = self.drop_node(child.at);
            self.nodes.insert(NodeAt::Root, node);
            self.dirty.insert(NodeAt::Root);
        }
    }

    /// Whether nodes that change in place depend on each other, as they do for anything beyond a
    /// plain append.
    pub(crate) fn reshapes(&self) -> bool {
        self.reshapes
    }

    /// Moves each changed node that is not fresh to a new block, along with the nodes above it, up
    /// to a fresh one or the inode. Writing the inode's record then makes the whole edit durable.
    /// For volumes without a journal.
    pub(crate) fn copy_changed(&mut self) {
        let source = self.source;
        let in_place = |at: NodeAt| at.block().is_some_and(|block| !source.is_fresh(block));
        let mut todo: Vec<NodeAt> = self.dirty.iter().copied().filter(|&at| in_place(at)).collect();
        while let Some(at) = todo.pop() {
            let key = self.nodes[&at].first_key().expect("only the root may be empty");
            let (parent, n) = self.parent_of(at, key);
            let node = self.drop_node(at);
            let to = self.add_node(node);
            let above = self.nodes.get_mut(&parent).expect("the nodes above one are loaded");
            above.children()[n].at = to;
            if self.dirty.insert(parent) && in_place(parent) {
                todo.push(parent);
            }
            self.copies += 1;
        }
    }

    /// The parent of `at`, whose first key is `key`, and its index among the parent's children.
    fn parent_of(&self, at: NodeAt, key: u32) -> (NodeAt, usize) {
        let mut parent = NodeAt::Root;
        loop {
            let Entries::Index(children) = &self.nodes[&parent].entries else {
                unreachable!("keys lead to every node")
            };
            let n = children.partition_point(|c| c.logical <= key) - 1;
            if children[n].at == at {
                return (parent, n);
            }
            parent = children[n].at;
        }
    }

    /// Completes the edit, ready to be written.
    pub(crate) fn finish(mut self) -> Edit<TreeNode> {
        // Renumber the new nodes, so that those removed again leave no gaps.
        let alive: Vec<_> = (0..self.news).filter(|&n| self.nodes.contains_key(&NodeAt::New(n))).collect();
        let renumber = |at: NodeAt| match at {
            NodeAt::New(n) => {
                NodeAt::New(alive.binary_search(&n).expect("only living nodes are named").fit_u32())
            }
            other => other,
        };
        let mut writes = Vec::with_capacity(self.dirty.len());
        for at in std::mem::take(&mut self.dirty) {
            let Some(mut node) = self.nodes.remove(&at) else { continue };
            if let Entries::Index(children) = &mut node.entries {
                for child in children {
                    child.at = renumber(child.at);
                }
            }
            debug_assert!(node.len() <= capacity(at, self.sb), "node {at:?} has room for its entries");
            debug_assert!(node.is_in_order(), "the entries of node {at:?} are in order: {node:?}");
            writes.push(NodeWrite { at: renumber(at), change: node });
        }
        let new_nodes = alive.len().fit_u32();
        let Self { freed: freed_nodes, replaced, reshapes, copies, .. } = self;
        Edit { writes, new_nodes, freed_nodes, replaced, reshapes, copies }
    }

    fn extents(&self, leaf: NodeAt) -> &[Extent] {
        match &self.nodes[&leaf].entries {
            Entries::Leaf(extents) => extents,
            Entries::Index(_) => unreachable!("a path ends in a leaf"),
        }
    }

    fn load(&mut self, at: NodeAt, cx: &ExtentContext<'_>) -> Result<(), Stop> {
        let NodeAt::Block(block) = at else { return Ok(()) };
        // A damaged tree may lead to the same node again at another depth.
        if self.nodes.get(&at).is_none_or(|node| cx.depth != Some(node.depth)) {
            let bytes = self.source.node(block).ok_or(Stop::Missing(block))?;
            let node = self.parse(&bytes, cx)?;
            self.nodes.insert(at, node);
        }
        Ok(())
    }

    fn descend(&mut self, logical: u64) -> Result<Path, Stop> {
        let mut path = Path { steps: Vec::new(), leaf: NodeAt::Root, range: BlockRange::ALL, is_last: true };
        loop {
            let node = &self.nodes[&path.leaf];
            let Entries::Index(children) = &node.entries else { return Ok(path) };
            let n = children.partition_point(|c| u64::from(c.logical) <= logical).saturating_sub(1);
            let (child, depth) = (children[n], node.depth);
            if let Some(next) = children.get(n + 1) {
                path.range.end = next.logical.into();
                path.is_last = false;
            }
            if n > 0 {
                path.range.start = child.logical.into();
            }
            path.steps.push((path.leaf, n));
            path.leaf = child.at;
            let cx = ExtentContext {
                block: child.at.block(),
                depth: Some(depth - 1),
                range: BlockRange::new(child.logical.into(), path.range.end),
                ..ExtentContext::root(self.sb, self.inode)
            };
            self.load(child.at, &cx)?;
        }
    }

    /// Replaces a range that lies within one leaf.
    fn replace_in(&mut self, path: Path, range: BlockRange, with: &[Extent]) -> Result<(), Stop> {
        let Path { steps, leaf, is_last, .. } = path;
        let extents = self.extents(leaf);
        let first = extents.partition_point(|e| e.logical_end() <= range.start);
        let last = extents.partition_point(|e| u64::from(e.logical.0) < range.end).max(first);
        if first == last && with.is_empty() {
            return Ok(());
        }
        let touched = &extents[first..last];
        let replaced: Vec<_> = touched.iter().filter_map(|e| clip(e, range)).collect();
        let head = touched.first().and_then(|e| clip(e, BlockRange::new(0, range.start)));
        let tail = touched.last().and_then(|e| clip(e, BlockRange::from_block(range.end)));
        let (from, to) = (first.saturating_sub(1), (last + 1).min(extents.len()));
        let mut joined = Vec::with_capacity(with.len() + 4);
        let around = extents[from..first].iter().copied().chain(head).chain(with.iter().copied());
        for extent in around.chain(tail).chain(extents[last..to].iter().copied()) {
            append(&mut joined, extent);
        }
        let is_append = is_last && last == extents.len();
        // Another leaf may map the blocks that this one gives up before this one is durable without
        // them.
        self.reshapes |= with.is_empty() && !replaced.is_empty();
        self.replaced.extend(replaced);
        let node = self.nodes.get_mut(&leaf).expect("a path's nodes are loaded");
        let Entries::Leaf(extents) = &mut node.entries else { unreachable!("a path ends in a leaf") };
        extents.splice(from..to, joined);
        self.dirty.insert(leaf);
        if self.nodes[&leaf].len() == 0 {
            self.remove(steps, leaf);
            return Ok(());
        }
        self.correct_keys(&steps, leaf);
        self.relieve(steps, leaf, is_append)
    }

    /// Removes an empty node from the tree, and any nodes above it that become empty.
    fn remove(&mut self, mut steps: Vec<(NodeAt, usize)>, mut at: NodeAt) {
        self.reshapes = true;
        while let Some((parent, n)) = steps.pop() {
            self.drop_node(at);
            let node = self.nodes.get_mut(&parent).expect("a path's nodes are loaded");
            node.children().remove(n);
            self.dirty.insert(parent);
            if node.len() > 0 {
                return self.correct_keys(&steps, parent);
            }
            at = parent;
        }
        self.nodes.insert(NodeAt::Root, TreeNode { depth: 0, entries: Entries::Leaf(Vec::new()) });
        self.dirty.insert(NodeAt::Root);
    }

    fn drop_node(&mut self, at: NodeAt) -> TreeNode {
        if let NodeAt::Block(block) = at {
            self.freed.push(block);
        }
        self.dirty.remove(&at);
        self.nodes.remove(&at).expect("a path's nodes are loaded")
    }

    /// Updates the keys above a node to match its first key.
    fn correct_keys(&mut self, steps: &[(NodeAt, usize)], at: NodeAt) {
        let Some(key) = self.nodes[&at].first_key() else { return };
        for &(parent, n) in steps.iter().rev() {
            let node = self.nodes.get_mut(&parent).expect("a path's nodes are loaded");
            let child = &mut node.children()[n];
            if child.logical == key {
                return;
            }
            child.logical = key;
            self.reshapes = true;
            self.dirty.insert(parent);
            if n > 0 {
                return;
            }
        }
    }

    /// Splits an overfull node, and the nodes above it as far as needed.
    ///
    /// After an append the last leaf stays full. In any other case both halves get room. Otherwise
    /// descending inserts before a full leaf would create a leaf each, and no bound for a
    /// reservation would hold.
    fn relieve(
        &mut self,
        mut steps: Vec<(NodeAt, usize)>,
        mut at: NodeAt,
        is_append: bool,
    ) -> Result<(), Stop> {
        loop {
            let (len, most) = (self.nodes[&at].len(), capacity(at, self.sb));
            if len <= most {
                return Ok(());
            }
            let Some((parent, n)) = steps.pop() else {
                let below = self.nodes.remove(&NodeAt::Root).expect("there is a root");
                let (depth, logical) = (below.depth + 1, below.first_key().unwrap_or(0));
                if depth > EXTENT_MAX_DEPTH {
                    return Err(Stop::TooBig);
                }
                at = self.add_node(below);
                let entries = Entries::Index(vec![Child { logical, at }]);
                self.nodes.insert(NodeAt::Root, TreeNode { depth, entries });
                self.dirty.insert(NodeAt::Root);
                steps.push((NodeAt::Root, 0));
                continue;
            };
            // A node filled by an append keeps its entries, unless the end of its last extent was
            // replaced and is now in the next node.
            self.reshapes |= !is_append || !self.replaced.is_empty();
            let parts = len.div_ceil(most);
            let part = if is_append { most } else { len.div_ceil(parts) };
            let node = self.nodes.get_mut(&at).expect("a path's nodes are loaded");
            let mut rest = node.split_off(part);
            let mut children = Vec::with_capacity(parts - 1);
            while rest.len() > 0 {
                let next = if rest.len() > part { Some(rest.split_off(part)) } else { None };
                let logical = rest.first_key().unwrap_or(0);
                children.push(Child { logical, at: self.add_node(rest) });
                let Some(next) = next else { break };
                rest = next;
            }
            self.dirty.insert(at);
            let node = self.nodes.get_mut(&parent).expect("a path's nodes are loaded");
            node.children().splice(n + 1..n + 1, children);
            self.dirty.insert(parent);
            at = parent;
        }
    }

    fn add_node(&mut self, node: TreeNode) -> NodeAt {
        let at = NodeAt::New(self.news);
        self.news += 1;
        self.nodes.insert(at, node);
        self.dirty.insert(at);
        at
    }
}

/// Number of entries that a node can hold.
fn capacity(at: NodeAt, sb: &Superblock) -> usize {
    let bytes = if at == NodeAt::Root { ROOT_BYTES } else { sb.block_size().byte_len() };
    ExtentNode::capacity(bytes, false)
}

/// The part of an extent inside `range`.
pub(super) fn clip(extent: &Extent, range: BlockRange) -> Option<Extent> {
    let start = u64::from(extent.logical.0).max(range.start);
    let end = extent.logical_end().min(range.end);
    (start < end).then(|| Extent {
        logical: FileBlock(start.fit_u32()),
        physical: VolumeBlock(extent.physical.0 + (start - u64::from(extent.logical.0))),
        blocks: (end - start).fit_u32(),
        unwritten: extent.unwritten,
    })
}

/// Appends an extent, joined with the last one if contiguous and split if too long.
fn append(to: &mut Vec<Extent>, mut extent: Extent) {
    let most = if extent.unwritten { UNWRITTEN_MAX_BLOCKS } else { EXTENT_MAX_BLOCKS };
    if let Some(last) = to.last_mut()
        && last.unwritten == extent.unwritten
        && last.logical_end() == u64::from(extent.logical.0)
        && last.physical.0 + u64::from(last.blocks) == extent.physical.0
    {
        let more = extent.blocks.min(most - last.blocks.min(most));
        last.blocks += more;
        match clip(&extent, BlockRange::from_block(extent.range().start + u64::from(more))) {
            Some(rest) => extent = rest,
            None => return,
        }
    }
    let mut start = u64::from(extent.logical.0);
    while let Some(piece) = clip(&extent, BlockRange::at(start, most.into())) {
        start = piece.logical_end();
        to.push(piece);
    }
}

#[cfg(test)]
mod tests;
