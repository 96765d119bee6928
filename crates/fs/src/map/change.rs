//! Changes a file's map: loads and pins its nodes, plans the edit, and applies it under a handle.

use super::block_state::OnDisk;
use super::clusters;
use super::extent_tree::{Draft, TreeNode, clip};
use super::node_edit::{Budget, Edit, NodeAt, NodeWrite, Nodes, RemainingRange, Stop};
use super::pointers::{PointerDraft, PointerWrites};
use super::{MapSource, Mapper, Run, RunState, Unmapped};
use crate::alloc::{Allocator, Pins};
use crate::journal::{Handle, Journal};
use crate::meta::{InodeCell, MetaBlock, MetaKind, MetaStore, PhysicalRun, Tid};
use crate::view::{OwnStructures, journals_data};
use crate::{Error, Result};
use extant_cache::blocks::BlockBytes;
use extant_format::{
    BlockRange, ClusterSize, Compat, Corrupt, Extent, ExtentNode, FileBlock, FileKind, Incompat, Inode,
    InodeFlags, InodeNumber, Place, Superblock, UintExt, VolumeBlock,
};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Whether the journal may hold copies of the blocks the inode maps.
pub(crate) fn frees_metadata(inode: &Inode, sb: &Superblock) -> bool {
    let is_value = inode.flags().contains(InodeFlags::EA_INODE);
    inode.kind() != Some(FileKind::Regular) || is_value || journals_data(inode, sb)
}

/// The pinned nodes of one file's map.
#[derive(Debug)]
pub(crate) struct PinnedNodes {
    kind: MetaKind,
    nodes: BTreeMap<VolumeBlock, MetaBlock>,
    copying: Option<Copying>,
}

/// State for copying nodes on a volume without a journal, where the nodes of a transaction are
/// written in any order. An edit that changes which node covers a file block, or unmaps some,
/// copies the nodes it changes; so do later edits in the same transaction. Truncation is different:
/// the map is valid whichever of its nodes are durable, so its nodes change in place.
#[derive(Debug)]
struct Copying {
    journal: Journal,
    /// The transaction that the edit is planned for.
    tid: Tid,
    /// Whether an earlier edit in the transaction changed which node covers a file block.
    reshaped: bool,
}

impl Nodes for PinnedNodes {
    type Bytes = BlockBytes;

    fn node(&self, at: VolumeBlock) -> Option<BlockBytes> {
        self.nodes.get(&at).map(MetaBlock::bytes)
    }

    fn is_fresh(&self, at: VolumeBlock) -> bool {
        self.copying.as_ref().is_some_and(|copying| copying.journal.is_fresh(copying.tid, at))
    }
}

impl PinnedNodes {
    /// Starts with no nodes of the file pinned.
    pub(crate) fn of(cell: &InodeCell, sb: &Superblock) -> Self {
        let kind = cell.read(|inode| match form(inode, sb) {
            Form::Tree => {
                MetaKind::ExtentNode { inode: inode.number, generation: inode.raw.i_generation.get() }
            }
            Form::Pointers => MetaKind::Indirect { inode: inode.number },
        });
        Self { kind, nodes: BTreeMap::new(), copying: None }
    }

    /// Like [`Self::of`], but for an edit that may do more than append or truncate. Such an edit is
    /// planned for the running transaction and must be planned again for another
    /// ([`Planned::is_for`]).
    pub(crate) fn copying(cell: &InodeCell, sb: &Superblock, journal: &Journal) -> Self {
        let copying = || {
            let tid = journal.running();
            Copying { journal: journal.clone(), tid, reshaped: cell.reshaped_in() == tid }
        };
        let is_logged = sb.compat().contains(Compat::HAS_JOURNAL);
        Self { copying: (!is_logged).then(copying), ..Self::of(cell, sb) }
    }

    async fn load(
        &mut self,
        store: &MetaStore,
        alloc: &Allocator,
        at: VolumeBlock,
        inode: InodeNumber,
    ) -> Result<()> {
        alloc.check_claim(PhysicalRun::new(at, 1), Place::Inode(inode))?;
        self.nodes.insert(at, store.read(at, self.kind).await?);
        Ok(())
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Tree,
    Pointers,
}

/// How the file is mapped, or will be once inline contents leave the inode.
fn form(inode: &Inode, sb: &Superblock) -> Form {
    let inline = inode.flags().contains(InodeFlags::INLINE_DATA);
    let tree = match inline {
        true => sb.incompat().contains(Incompat::EXTENTS),
        false => inode.flags().contains(InodeFlags::EXTENTS),
    };
    if tree { Form::Tree } else { Form::Pointers }
}

/// The map's root, or an empty one if the contents are in the inode.
fn root(inode: &Inode, form: Form) -> [u8; 60] {
    if inode.flags().contains(InodeFlags::INLINE_DATA) { empty_root(form) } else { *inode.map() }
}

fn empty_root(form: Form) -> [u8; 60] {
    let mut root = [0; 60];
    if form == Form::Tree {
        ExtentNode::Leaf(Vec::new()).write_to(&mut root);
    }
    root
}

/// Whether an inode's map has a valid root and maps nothing.
pub(crate) fn maps_nothing(inode: &Inode, sb: &Superblock) -> bool {
    match form(inode, sb) {
        Form::Tree => {
            let [magic_lo, magic_hi, entries_lo, entries_hi, _, _, depth_lo, depth_hi, ..] = *inode.map();
            [magic_lo, magic_hi] == empty_root(Form::Tree)[..2]
                && [entries_lo, entries_hi, depth_lo, depth_hi] == [0; 4]
        }
        Form::Pointers => inode.map().iter().all(|&byte| byte == 0),
    }
}

/// A requested change of a map.
#[derive(Clone, Debug)]
pub(crate) enum Change<'a> {
    /// Maps these extents, in order. A written or unwritten extent at the place it already has is
    /// converted.
    Map(&'a [Extent]),
    /// Like `Map`, but for a map that will be empty when the change is applied.
    Refill(&'a [Extent]),
    /// Like `Map`, but to blocks other than before; the old ones are freed. For trees only.
    Move(&'a [Extent]),
    /// Unmaps the end of the range, as far as one step goes.
    Remove(BlockRange),
    /// Moves extents from the start of the range on towards the start of the file by this many
    /// blocks, over a hole of that length. One step moves those of one leaf. For trees only, like
    /// the next.
    ShiftLeft(BlockRange, u64),
    /// Moves the range towards the end of the file by this many blocks; nothing is in the way
    /// there. One step moves what one leaf maps, starting from the end.
    ShiftRight(BlockRange, u64),
}

/// A planned change.
#[derive(Debug)]
pub(crate) struct Planned {
    writes: Writes,
    /// Blocks to allocate for new nodes.
    pub(crate) new_nodes: u32,
    /// Blocks of nodes to be freed.
    pub(crate) freed_nodes: Vec<VolumeBlock>,
    /// Runs of data that are no longer mapped.
    removed: Vec<PhysicalRun>,
    /// The clusters of `removed` that can be freed because nothing else in them is mapped; `None`
    /// on a volume without clusters.
    clusters: Option<Vec<PhysicalRun>>,
    cluster: ClusterSize,
    /// The part of a removal that remains to be done.
    pub(crate) rest: RemainingRange,
    /// How many of the new nodes are copies of nodes that must not change in place.
    pub(crate) copies: u32,
    reshapes: bool,
    /// Set if the plan holds only for this transaction, because nodes that it allocated change in
    /// place.
    only_for: Option<Tid>,
}

#[derive(Debug)]
enum Writes {
    Tree(Vec<NodeWrite<TreeNode>>),
    Pointers(Vec<NodeWrite<PointerWrites>>),
}

/// The mappings around block `logical`: all those in the leaf node that covers it, extended to
/// whole clusters. Reads nodes that are not in memory.
///
/// # Errors
/// The map is damaged or unreadable.
pub(crate) async fn look_up(
    store: &MetaStore,
    alloc: &Allocator,
    cell: &InodeCell,
    logical: u64,
) -> Result<Vec<(BlockRange, OnDisk)>> {
    let sb = store.shape();
    let mut nodes = PinnedNodes::of(cell, sb);
    loop {
        let (root, form) = cell.read(|inode| {
            let form = form(inode, sb);
            (root(inode, form), form)
        });
        let found = match form {
            Form::Tree => Draft::to_look_up(&root, &nodes, sb, cell.number())
                .and_then(|mut draft| around(&mut draft, logical, sb.cluster_size())),
            Form::Pointers => PointerDraft::new(&root, &nodes, sb, cell.number()).leaf(logical),
        };
        match found {
            Ok(runs) => return Ok(runs),
            Err(stop) => resume(stop, &mut nodes, store, alloc, cell.number()).await?,
        }
    }
}

/// Finds where a file block and its successors are after [`look_up`] has found the map damaged
/// around them. Intact parts can still be read, though not changed. Nobody may change the map
/// meanwhile.
///
/// # Errors
/// Blocks that the map does not account for.
pub(crate) async fn look_up_damaged(
    store: &MetaStore,
    alloc: &Allocator,
    cell: &InodeCell,
    logical: u64,
) -> std::result::Result<Run, Unmapped> {
    let inode = cell.read(Inode::clone);
    let kind = PinnedNodes::of(cell, store.shape()).kind;
    let run = Mapper::default().map(&LiveNodes { store, alloc, kind }, &inode, logical).await?;
    if let RunState::Written(at) | RunState::Unwritten(at) = run.state {
        let claim = alloc.check_claim(PhysicalRun::new(at, run.blocks), Place::Inode(inode.number));
        let blocks = BlockRange::at(logical, run.blocks);
        claim.map_err(|error| Unmapped { blocks, error })?;
    }
    Ok(run)
}

/// The nodes of one file's map in memory.
struct LiveNodes<'a> {
    store: &'a MetaStore,
    alloc: &'a Allocator,
    kind: MetaKind,
}

impl MapSource for LiveNodes<'_> {
    fn superblock(&self) -> &Superblock {
        self.store.shape()
    }

    fn device_blocks(&self) -> u64 {
        self.superblock().blocks_count()
    }

    async fn node(&self, inode: InodeNumber, at: VolumeBlock) -> Result<BlockBytes> {
        self.alloc.check_claim(PhysicalRun::new(at, 1), Place::Inode(inode))?;
        Ok(self.store.read(at, self.kind).await?.bytes())
    }

    fn judge_checksum(&self, _check: impl FnOnce() -> std::result::Result<(), Corrupt>) -> Result<()> {
        // Checked when the block was read. A changed block gets its checksum at commit.
        Ok(())
    }

    fn judge(&self, _damage: Corrupt) -> Result<()> {
        Ok(())
    }

    async fn own_structures(&self, _around: VolumeBlock) -> Option<OwnStructures> {
        // Each run is claimed from the allocator, which knows all of them.
        None
    }
}

fn around<N: Nodes>(
    draft: &mut Draft<'_, N>,
    logical: u64,
    cluster: ClusterSize,
) -> std::result::Result<Vec<(BlockRange, OnDisk)>, Stop> {
    let (range, extents) = draft.leaf(logical)?;
    let mut runs = with_holes(range, extents);
    if cluster.is_block() {
        return Ok(runs);
    }
    // Leaves may end within a cluster.
    let (whole, mut have) = (cluster.around(range), range);
    while whole.start < have.start {
        let (leaf, extents) = draft.leaf(have.start - 1)?;
        let part = BlockRange::new(leaf.start.max(whole.start), have.start);
        let extents: Vec<_> = extents.iter().filter_map(|extent| clip(extent, part)).collect();
        runs.splice(0..0, with_holes(part, &extents));
        have.start = part.start;
    }
    while have.end < whole.end {
        let (leaf, extents) = draft.leaf(have.end)?;
        let part = BlockRange::new(have.end, leaf.end.min(whole.end));
        let extents: Vec<_> = extents.iter().filter_map(|extent| clip(extent, part)).collect();
        runs.extend(with_holes(part, &extents));
        have.end = part.end;
    }
    Ok(clusters::with_implied(runs, cluster))
}

fn with_holes(range: BlockRange, extents: &[Extent]) -> Vec<(BlockRange, OnDisk)> {
    let mut runs = Vec::with_capacity(2 * extents.len() + 1);
    let mut at = range.start;
    for extent in extents {
        let mapped = extent.range();
        if at < mapped.start {
            runs.push((BlockRange::new(at, mapped.start), OnDisk::Hole));
        }
        let known = match extent.unwritten {
            true => OnDisk::Unwritten(extent.physical),
            false => OnDisk::Written(extent.physical),
        };
        runs.push((mapped, known));
        at = mapped.end;
    }
    if at < range.end {
        runs.push((BlockRange::new(at, range.end), OnDisk::Hole));
    }
    runs
}

async fn resume(
    stop: Stop,
    nodes: &mut PinnedNodes,
    store: &MetaStore,
    alloc: &Allocator,
    inode: InodeNumber,
) -> Result<()> {
    match stop {
        Stop::Missing(at) => nodes.load(store, alloc, at, inode).await,
        Stop::Corrupt(corrupt) => Err(corrupt.into()),
        Stop::TooBig => Err(Error::TooBig(format!("inode {inode}"))),
    }
}

/// Plans a change, loading and pinning the nodes it edits. Nobody else may change the map until it
/// is applied.
///
/// # Errors
/// The map is damaged or unreadable; [`Error::TooBig`].
pub(crate) async fn plan(
    store: &MetaStore,
    alloc: &Allocator,
    cell: &InodeCell,
    nodes: &mut PinnedNodes,
    change: &Change<'_>,
) -> Result<Planned> {
    loop {
        match try_plan(store, cell, nodes, change) {
            Ok(planned) => {
                // Check these runs separately. If other blocks of their cluster stay mapped,
                // nothing is freed that would be checked, but journalled data are revoked all the
                // same.
                let place = Place::Inode(cell.number());
                planned.removed.iter().try_for_each(|&run| alloc.check_claim(run, place))?;
                return Ok(planned);
            }
            Err(stop) => resume(stop, nodes, store, alloc, cell.number()).await?,
        }
    }
}

fn try_plan(
    store: &MetaStore,
    cell: &InodeCell,
    nodes: &PinnedNodes,
    change: &Change<'_>,
) -> std::result::Result<Planned, Stop> {
    let (sb, step) = (store.shape(), store.removal_step());
    let (root, form) = cell.read(|inode| {
        let form = form(inode, sb);
        let is_empty = matches!(change, Change::Refill(_));
        (if is_empty { empty_root(form) } else { root(inode, form) }, form)
    });
    let is_metadata = cell.read(|inode| frees_metadata(inode, sb));
    let blocks = if is_metadata { step.metadata_blocks } else { step.data_blocks };
    let mut budget = Budget::of_blocks(sb.blocks_per_group(), step.groups, blocks);
    let (mut rest, mut freed, cluster) = (None, None, sb.cluster_size());
    let mut planned = match form {
        Form::Pointers if !cluster.is_block() => {
            let place = Place::Inode(cell.number());
            let rule = "a file with extents (bigalloc)";
            return Err(Corrupt::field(place, "i_flags", 0, rule).into());
        }
        Form::Tree => {
            let mut draft = Draft::new(&root, nodes, sb, cell.number())?;
            match change {
                Change::Map(extents) | Change::Refill(extents) => {
                    for extent in *extents {
                        draft.replace(extent.range(), std::slice::from_ref(extent))?;
                    }
                }
                Change::Move(extents) => {
                    // Emptied first, so that empty nodes are dropped and the new extents are not
                    // split at old leaf boundaries.
                    extents.iter().try_for_each(|extent| draft.replace(extent.range(), &[]))?;
                    for extent in *extents {
                        draft.replace(extent.range(), std::slice::from_ref(extent))?;
                    }
                    draft.shrink()?;
                }
                Change::Remove(range) => {
                    rest = draft.remove_back(*range, &mut budget)?;
                    draft.shrink()?;
                    if !cluster.is_block() {
                        freed = Some(draft.freed_clusters()?);
                    }
                }
                Change::ShiftLeft(range, by) => rest = draft.shift_left(*range, *by)?,
                Change::ShiftRight(range, by) => rest = draft.shift_right(*range, *by)?,
            }
            let copying = nodes.copying.as_ref().filter(|one| one.reshaped || draft.reshapes());
            if copying.is_some() {
                draft.copy_changed();
            }
            let only_for = copying.map(|copying| copying.tid);
            Planned { only_for, ..Planned::new(draft.finish(), rest, change, Writes::Tree) }
        }
        Form::Pointers => {
            let mut draft = PointerDraft::new(&root, nodes, sb, cell.number());
            match change {
                Change::Map(extents) | Change::Refill(extents) => {
                    for extent in *extents {
                        draft.insert(extent.logical.0.into(), extent.physical, extent.blocks.into())?;
                    }
                }
                Change::Remove(range) => rest = draft.remove_back(*range, &mut budget)?,
                Change::Move(_) | Change::ShiftLeft(..) | Change::ShiftRight(..) => {
                    unreachable!("only trees are moved and shifted")
                }
            }
            Planned::new(draft.finish(), rest, change, Writes::Pointers)
        }
    };
    (planned.clusters, planned.cluster) = (freed, cluster);
    Ok(planned)
}

impl Planned {
    fn new<T>(
        edit: Edit<T>,
        rest: RemainingRange,
        change: &Change<'_>,
        writes: impl FnOnce(Vec<NodeWrite<T>>) -> Writes,
    ) -> Self {
        // Other changes replace extents by extents over the same blocks, which stay in use.
        let frees = matches!(change, Change::Remove(_) | Change::Move(_));
        let replaced = if frees { edit.replaced } else { Vec::new() };
        let run = |extent: &Extent| PhysicalRun::new(extent.physical, extent.blocks.into());
        Self {
            writes: writes(edit.writes),
            new_nodes: edit.new_nodes,
            freed_nodes: edit.freed_nodes,
            removed: replaced.iter().map(run).collect(),
            clusters: None,
            cluster: ClusterSize::BLOCK,
            rest,
            copies: edit.copies,
            reshapes: edit.reshapes,
            only_for: None,
        }
    }

    /// Whether a handle of this transaction may apply it.
    pub(crate) fn is_for(&self, tid: Tid) -> bool {
        self.only_for.is_none_or(|only| only == tid)
    }

    /// Credits that [`Self::apply`] needs: the nodes and the inode.
    pub(crate) fn credits(&self) -> u32 {
        1 + match &self.writes {
            Writes::Tree(writes) => writes.len().fit_u32(),
            Writes::Pointers(writes) => writes.len().fit_u32(),
        }
    }

    /// Log blocks needed to revoke what will be freed: everything if `metadata`, else only the
    /// nodes.
    pub(crate) fn revoke_blocks(&self, metadata: bool, sb: &Superblock) -> u32 {
        let removed: u64 = if metadata { self.removed.iter().map(|run| run.blocks).sum() } else { 0 };
        let blocks = removed + self.freed_nodes.len().to_u64();
        // A record has up to eight bytes; a block of records has a head and a tail of 20 bytes in
        // total.
        blocks.div_ceil(u64::from((sb.block_size().bytes() - 20) / 8)).fit_u32()
    }

    fn freed_data(&self) -> &[PhysicalRun] {
        self.clusters.as_deref().unwrap_or(&self.removed)
    }

    /// Everything that will be freed.
    pub(crate) fn freed(&self) -> impl Iterator<Item = PhysicalRun> {
        let nodes = self.freed_nodes.iter().map(|&at| PhysicalRun::new(at, 1));
        self.freed_data().iter().copied().chain(nodes)
    }

    /// Blocks of the volume that become free.
    pub(crate) fn freed_blocks(&self) -> u64 {
        let data: u64 = self.freed_data().iter().map(|run| run.blocks).sum();
        data + self.freed_nodes.len().to_u64() * self.cluster.blocks()
    }

    /// Frees what the change leaves unmapped. Its groups are pinned. The journal may hold copies of
    /// all of it if `metadata`, else only of the nodes.
    pub(crate) fn free(&self, handle: &mut Handle, alloc: &Allocator, pins: &Pins, metadata: bool) {
        if metadata {
            self.removed.iter().for_each(|&run| handle.revoke(run));
        }
        self.freed_data().iter().for_each(|&run| alloc.free(handle, pins, run, false));
        self.freed_nodes.iter().for_each(|&at| alloc.free(handle, pins, PhysicalRun::new(at, 1), true));
    }

    /// Writes the nodes. `news` are the blocks for new nodes. The file gains `data_blocks` blocks
    /// of data, in whole clusters.
    pub(crate) fn apply(
        &self,
        handle: &mut Handle,
        cell: &Arc<InodeCell>,
        nodes: &PinnedNodes,
        news: &[VolumeBlock],
        data_blocks: u64,
        sb: &Superblock,
    ) {
        debug_assert_eq!(news.len(), self.new_nodes.to_usize());
        debug_assert!(self.is_for(handle.tid()));
        if self.reshapes {
            cell.reshape(handle.tid());
        }
        match &self.writes {
            Writes::Tree(writes) => write(handle, cell, nodes, news, writes, TreeNode::write_to),
            Writes::Pointers(writes) => write(handle, cell, nodes, news, writes, PointerWrites::write_to),
        }
        let more = data_blocks + u64::from(self.new_nodes) * self.cluster.blocks();
        let fewer = self.freed_blocks();
        if more != fewer {
            let unit = sb.block_size().log2() - 9;
            let mut inode = handle.inode(cell);
            let blocks = (inode.blocks_512(sb) + (more << unit)).saturating_sub(fewer << unit);
            inode.set_blocks_512(blocks, sb);
        }
    }
}

fn write<T>(
    handle: &mut Handle,
    cell: &Arc<InodeCell>,
    nodes: &PinnedNodes,
    news: &[VolumeBlock],
    writes: &[NodeWrite<T>],
    change: impl Fn(&T, &mut [u8], &[VolumeBlock]),
) {
    for node in writes {
        match node.at {
            NodeAt::Root => change(&node.change, &mut handle.inode(cell).raw.i_block, news),
            NodeAt::Block(at) => change(&node.change, &mut handle.edit(&nodes.nodes[&at]), news),
            NodeAt::New(n) => {
                let block = handle.create(news[n.to_usize()], nodes.kind);
                change(&node.change, &mut handle.edit(&block), news);
            }
        }
    }
}

/// A run of written blocks.
pub(crate) fn written(range: BlockRange, physical: VolumeBlock) -> Extent {
    Extent {
        logical: FileBlock(range.start.fit_u32()),
        physical,
        blocks: range.len().fit_u32(),
        unwritten: false,
    }
}

/// A run of unwritten blocks.
pub(crate) fn unwritten(range: BlockRange, physical: VolumeBlock) -> Extent {
    Extent { unwritten: true, ..written(range, physical) }
}
