//! Reads a file's map from the volume. Damage loses only the blocks it affects.

use super::{Run, RunState};
use crate::view::{OwnStructures, View, maps_structure};
use crate::{BlockRef, Error, Lost, Result};
use extant_format::{
    BlockRange, Corrupt, DamagedRange, Extent, ExtentContext, ExtentNode, Inode, InodeFlags, InodeNumber,
    Place, Superblock, UintExt, VolumeBlock, check_pointer, indirect_path, verify_extent_checksum,
};
use std::future::Future;

/// The source a map is read from.
pub(crate) trait MapSource: Sync {
    /// The volume's superblock.
    fn superblock(&self) -> &Superblock;

    /// Blocks that are at least partly on the device.
    fn device_blocks(&self) -> u64;

    /// The bytes of a node, or of a block of pointers, of an inode's map.
    fn node(&self, inode: InodeNumber, at: VolumeBlock) -> impl Future<Output = Result<BlockRef>> + Send;

    /// Fails on a wrong checksum, unless the source only notes such damage.
    fn judge_checksum(&self, check: impl FnOnce() -> std::result::Result<(), Corrupt>) -> Result<()>;

    /// Fails on damage that loses no blocks, unless the source only notes such damage.
    fn judge(&self, damage: Corrupt) -> Result<()>;

    /// The volume's own structures around a block, or `None` if the reader looks for them itself.
    fn own_structures(&self, around: VolumeBlock) -> impl Future<Output = Option<OwnStructures>> + Send;
}

impl MapSource for View {
    fn superblock(&self) -> &Superblock {
        self.superblock()
    }

    fn device_blocks(&self) -> u64 {
        self.device().limits().capacity_bytes.div_ceil(self.superblock().block_size().bytes().into())
    }

    async fn node(&self, inode: InodeNumber, at: VolumeBlock) -> Result<BlockRef> {
        if !self.superblock().is_own_inode(inode) && self.own_structures(at).await.free_from(at, 1).is_err() {
            return Err(maps_structure(inode, at).into());
        }
        self.buffers().block(at).await
    }

    fn judge_checksum(&self, check: impl FnOnce() -> std::result::Result<(), Corrupt>) -> Result<()> {
        self.note_checksum(check)
    }

    fn judge(&self, damage: Corrupt) -> Result<()> {
        self.note(Err(damage))
    }

    async fn own_structures(&self, around: VolumeBlock) -> Option<OwnStructures> {
        Some(self.own_structures(around).await)
    }
}

/// Blocks whose place is unknown because the file's map is damaged or unreadable there.
#[derive(Debug)]
pub(crate) struct Unmapped {
    /// Starts with the block that was asked for.
    pub(crate) blocks: BlockRange,
    pub(crate) error: Error,
}

impl From<Unmapped> for Error {
    fn from(unmapped: Unmapped) -> Self {
        unmapped.error
    }
}

impl Unmapped {
    /// The byte range of these blocks, up to byte `end` of the file.
    pub(crate) fn lost(self, sb: &Superblock, end: u64) -> Lost {
        let log2 = sb.block_size().log2();
        let offset = self.blocks.start << log2;
        let bytes = (self.blocks.end << log2).min(end).saturating_sub(offset);
        Lost { directory: None, offset, bytes, error: self.error }
    }
}

type Mapped<T> = std::result::Result<T, Unmapped>;

/// A file's map. Remembers the node used last, so that sequential reads need no second descent.
#[derive(Debug, Default)]
pub(crate) struct Mapper {
    last: Option<Last>,
    /// Last-level nodes loaded so far, plus nodes that could not be loaded.
    loads: u64,
    /// The volume's own structures around the blocks found last.
    own_structures: OwnStructures,
}

#[derive(Debug)]
enum Last {
    Extents { range: BlockRange, leaf: Leaf },
    Pointers { first: u64, at: VolumeBlock, block: BlockRef },
}

/// The extents of a leaf, and the ranges that it lacks because of damage.
#[derive(Debug)]
struct Leaf {
    extents: Vec<Extent>,
    damaged: Vec<DamagedRange>,
}

impl Mapper {
    /// The run that contains block `logical` of the file, from that block on.
    pub(crate) async fn map(&mut self, from: &impl MapSource, inode: &Inode, logical: u64) -> Mapped<Run> {
        if logical >= BlockRange::MAP_END {
            return Ok(Run { logical, blocks: u64::MAX - logical, state: RunState::Hole });
        }
        let run = if inode.flags().contains(InodeFlags::EXTENTS) {
            self.map_extents(from, inode, logical).await?
        } else {
            self.map_pointers(from, inode, logical).await?
        };
        self.before_structures(from, inode, run).await
    }

    /// Like [`Self::map`], from what was read last. `None` if that does not tell.
    pub(crate) fn recall(&self, sb: &Superblock, inode: &Inode, logical: u64) -> Option<Run> {
        let run = match self.last.as_ref()? {
            Last::Extents { range, leaf } if range.contains(logical) => leaf.find(*range, logical).ok()?,
            Last::Pointers { first, at, block } => {
                let is_here = BlockRange::at(*first, (block.len() / 4).to_u64()).contains(logical);
                let run = is_here.then(|| pointer_run(sb, inode, Some(*at), block, *first, logical));
                run?.ok()?
            }
            Last::Extents { .. } => return None,
        };
        let (RunState::Written(at) | RunState::Unwritten(at)) = run.state else { return Some(run) };
        match sb.is_own_inode(inode.number) {
            true => Some(run),
            false if !self.own_structures.covers(at) => None,
            false => {
                let blocks = self.own_structures.free_from(at, run.blocks).ok()?;
                Some(Run { blocks, ..run })
            }
        }
    }

    /// The part of a run before the first of the volume's own structures. Only the volume's own
    /// files may have some of them.
    async fn before_structures(&mut self, from: &impl MapSource, inode: &Inode, run: Run) -> Mapped<Run> {
        let (RunState::Written(at) | RunState::Unwritten(at)) = run.state else { return Ok(run) };
        if from.superblock().is_own_inode(inode.number) {
            return Ok(run);
        }
        if !self.own_structures.covers(at) {
            match from.own_structures(at).await {
                Some(own_structures) => self.own_structures = own_structures,
                None => return Ok(run),
            }
        }
        match self.own_structures.free_from(at, run.blocks) {
            Ok(blocks) => Ok(Run { blocks, ..run }),
            Err(blocks) => Err(Unmapped {
                blocks: BlockRange::at(run.logical, blocks),
                error: maps_structure(inode.number, at).into(),
            }),
        }
    }

    /// Reads the file's blocks into `to` from byte `offset` on. Unwritten blocks and holes read as
    /// zeroes. The caller checks the file's size.
    ///
    /// # Errors
    /// Some of it cannot be read.
    pub(crate) async fn read(
        &mut self,
        view: &View,
        inode: &Inode,
        offset: u64,
        to: &mut [u8],
    ) -> Result<()> {
        let mut done = 0;
        while done < to.len() {
            done += self.read_some(view, inode, offset + done.to_u64(), &mut to[done..]).await?;
        }
        Ok(())
    }

    /// Like [`Self::read`], but stops at the first unreadable byte. Returns the number of bytes
    /// read.
    ///
    /// # Errors
    /// The first byte is unreadable.
    pub(crate) async fn read_some(
        &mut self,
        view: &View,
        inode: &Inode,
        offset: u64,
        to: &mut [u8],
    ) -> Result<usize> {
        let mut done = 0;
        while done < to.len() {
            match self.read_piece(view, inode, offset + done.to_u64(), &mut to[done..]).await {
                Ok(bytes) => done += bytes,
                Err(_) if done > 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }

    /// Reads the beginning of a range, up to the end of its hole or block.
    async fn read_piece(&mut self, view: &View, inode: &Inode, offset: u64, to: &mut [u8]) -> Result<usize> {
        let block_bytes = u64::from(view.superblock().block_size().bytes());
        let run = self.map(view, inode, offset / block_bytes).await?;
        let skip = (offset % block_bytes).to_usize();
        let left = run.blocks.saturating_mul(block_bytes) - skip.to_u64();
        let n = left.min(to.len().to_u64()).to_usize();
        let RunState::Written(first) = run.state else {
            to[..n].fill(0);
            return Ok(n);
        };
        let n = n.min(block_bytes.to_usize() - skip);
        let error = match view.buffers().block(first).await {
            Ok(block) => {
                to[..n].copy_from_slice(&block[skip..skip + n]);
                return Ok(n);
            }
            Err(error) => error,
        };
        for (range, piece) in view.pieces(first, error).await {
            if range.end > skip {
                let bytes = &piece?[skip - range.start..];
                let n = n.min(bytes.len());
                to[..n].copy_from_slice(&bytes[..n]);
                return Ok(n);
            }
        }
        unreachable!("the pieces of a block make the whole of it")
    }

    async fn map_extents(&mut self, from: &impl MapSource, inode: &Inode, logical: u64) -> Mapped<Run> {
        if let Some(Last::Extents { range, leaf }) = &self.last
            && range.contains(logical)
        {
            return leaf.find(*range, logical);
        }
        let sb = from.superblock();
        let mut cx = ExtentContext::root(sb, inode.number);
        let mut parsed = ExtentNode::salvage(inode.map(), &cx);
        loop {
            let range = cx.range;
            let (node, mut damaged) = match parsed {
                Ok(parsed) => parsed,
                Err(corrupt) => return Err(self.fail(range, logical, corrupt.into())),
            };
            for &(_, corrupt) in damaged.iter().filter(|(range, _)| range.is_empty()) {
                from.judge(corrupt).map_err(|error| self.fail(range, logical, error))?;
            }
            damaged.retain(|(range, _)| !range.is_empty());
            let (depth, entries) = match node {
                ExtentNode::Leaf(extents) => {
                    let leaf = Leaf { extents, damaged };
                    let run = leaf.find(range, logical);
                    self.loads += 1;
                    self.last = Some(Last::Extents { range, leaf });
                    return run;
                }
                ExtentNode::Index { depth, entries } => (depth, entries),
            };
            check_damaged(&damaged, logical)?;
            let n = entries.partition_point(|e| u64::from(e.logical.0) <= logical);
            let Some(n) = n.checked_sub(1) else {
                let end = entries.first().map_or(range.end, |e| e.logical.0.into());
                return Ok(Run { logical, blocks: end - logical, state: RunState::Hole });
            };
            cx = cx.child(depth, &entries, n);
            let block = match from.node(inode.number, entries[n].child).await {
                Ok(block) => block,
                Err(error) => return Err(self.fail(cx.range, logical, error)),
            };
            if let Some(seed) = sb.checksum_seed() {
                let place = Place::ExtentNode(inode.number, cx.block);
                from.judge_checksum(|| verify_extent_checksum(&block, inode.checksum_seed(seed), place))
                    .map_err(|error| self.fail(cx.range, logical, error))?;
            }
            parsed = ExtentNode::salvage(&block, &cx);
        }
    }

    /// Handles a useless node that should map `range`.
    fn fail(&mut self, range: BlockRange, logical: u64, error: Error) -> Unmapped {
        self.loads += 1;
        Unmapped { blocks: BlockRange::new(logical, range.end), error }
    }

    async fn map_pointers(&mut self, from: &impl MapSource, inode: &Inode, logical: u64) -> Mapped<Run> {
        let sb = from.superblock();
        let size = sb.block_size();
        if let Some(Last::Pointers { first, at, block }) = &self.last {
            let per_block = (block.len() / 4).to_u64();
            if BlockRange::at(*first, per_block).contains(logical) {
                return pointer_run(sb, inode, Some(*at), block, *first, logical);
            }
        }
        let Some(path) = indirect_path(logical, size) else {
            return Ok(Run { logical, blocks: BlockRange::MAP_END - logical, state: RunState::Hole });
        };
        if path.levels == 0 {
            return pointer_run(sb, inode, None, &inode.map()[..48], 0, logical);
        }
        let bits = size.log2() - 2;
        let (mut next, mut place) = (inode.block_pointer(path.root), Place::Inode(inode.number));
        for level in 0..path.levels {
            // Blocks covered by the pointer followed last, and how many of them come before this
            // one.
            let covered = 1u64 << (bits * (path.levels - level).fit_u32());
            let skip = logical_offset(&path.indices[..path.levels], bits, level);
            let range = BlockRange::at(logical - skip, covered);
            let at = check_pointer(next, sb, place).map_err(|corrupt| Unmapped {
                blocks: BlockRange::new(logical, range.end),
                error: corrupt.into(),
            })?;
            if at.0 == 0 {
                return Ok(Run { logical, blocks: covered - skip, state: RunState::Hole });
            }
            let block = match from.node(inode.number, at).await {
                Ok(block) => block,
                Err(error) => return Err(self.fail(range, logical, error)),
            };
            if level + 1 == path.levels {
                let first = logical - u64::from(path.indices[level]);
                let run = pointer_run(sb, inode, Some(at), &block, first, logical);
                self.loads += 1;
                self.last = Some(Last::Pointers { first, at, block });
                return run;
            }
            let n = path.indices[level].to_usize() * 4;
            let pointer = u32::from_le_bytes([block[n], block[n + 1], block[n + 2], block[n + 3]]);
            (next, place) = (VolumeBlock(pointer.into()), Place::IndirectBlock(inode.number, at));
        }
        unreachable!("the last level returns")
    }
}

impl Leaf {
    /// The run that contains block `logical`, from that block on, in a leaf that covers `range`.
    fn find(&self, range: BlockRange, logical: u64) -> Mapped<Run> {
        check_damaged(&self.damaged, logical)?;
        let mut run = find_extent(&self.extents, range, logical);
        let next = self.damaged.partition_point(|(range, _)| range.start <= logical);
        if let Some((damaged, _)) = self.damaged.get(next) {
            run.blocks = run.blocks.min(damaged.start - logical);
        }
        Ok(run)
    }
}

/// Fails for a block in one of these non-empty ranges, and reports the ranges adjoining it as well.
fn check_damaged(damaged: &[DamagedRange], logical: u64) -> Mapped<()> {
    let first = damaged.partition_point(|(range, _)| range.end <= logical);
    let Some((range, corrupt)) = damaged.get(first).filter(|(range, _)| range.contains(logical)) else {
        return Ok(());
    };
    let adjoining = |end: u64, (next, _): &DamagedRange| (next.start == end).then_some(next.end);
    let end = damaged[first + 1..].iter().try_fold(range.end, |end, next| adjoining(end, next).ok_or(end));
    let (Ok(end) | Err(end)) = end;
    Err(Unmapped { blocks: BlockRange::new(logical, end), error: (*corrupt).into() })
}

/// Offset of a path within the range of the pointer at `level`, in blocks.
fn logical_offset(indices: &[u32], bits: u32, level: usize) -> u64 {
    indices[level..].iter().fold(0, |offset, &n| offset << bits | u64::from(n))
}

fn find_extent(extents: &[Extent], range: BlockRange, logical: u64) -> Run {
    let n = extents.partition_point(|e| u64::from(e.logical.0) <= logical);
    if let Some(extent) = n.checked_sub(1).map(|n| &extents[n]).filter(|e| e.logical_end() > logical) {
        let state = match extent.unwritten {
            true => RunState::Unwritten(extent.physical),
            false => RunState::Written(extent.physical),
        };
        let run = Run { logical: extent.logical.0.into(), blocks: extent.blocks.into(), state };
        return run.from(logical);
    }
    let end = extents.get(n).map_or(range.end, |next| next.logical.0.into());
    Run { logical, blocks: end - logical, state: RunState::Hole }
}

/// The run at `logical` within one block of pointers, whose first pointer maps block `first`.
fn pointer_run(
    sb: &Superblock,
    inode: &Inode,
    at: Option<VolumeBlock>,
    pointers: &[u8],
    first: u64,
    logical: u64,
) -> Mapped<Run> {
    let place = at.map_or(Place::Inode(inode.number), |at| Place::IndirectBlock(inode.number, at));
    let pointer = |n: u64| -> Option<std::result::Result<VolumeBlock, Corrupt>> {
        let bytes = pointers.get(n.to_usize() * 4..n.to_usize() * 4 + 4)?;
        let block = VolumeBlock(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]).into());
        Some(check_pointer(block, sb, place))
    };
    let start = pointer(logical - first).unwrap_or(Ok(VolumeBlock(0)));
    let mut blocks = 1;
    while let Some(next) = pointer(logical - first + blocks) {
        let continues = match (&start, next) {
            (Ok(VolumeBlock(0)), Ok(next)) => next.0 == 0,
            (Ok(start), Ok(next)) => next.0 == start.0 + blocks,
            (Err(_), next) => next.is_err(),
            (Ok(_), Err(_)) => false,
        };
        if !continues {
            break;
        }
        blocks += 1;
    }
    match start {
        Ok(VolumeBlock(0)) => Ok(Run { logical, blocks, state: RunState::Hole }),
        Ok(start) => Ok(Run { logical, blocks, state: RunState::Written(start) }),
        Err(corrupt) => Err(Unmapped { blocks: BlockRange::at(logical, blocks), error: corrupt.into() }),
    }
}

/// A file's runs from its first block to its last.
#[derive(Debug)]
pub struct Runs {
    view: View,
    inode: Inode,
    walker: RunWalker,
    /// Byte of the file where the listing ends.
    end: u64,
}

impl View {
    /// The runs of a file or directory with contents in blocks, up to its size.
    pub(crate) fn runs(&self, inode: &Inode) -> Runs {
        let inline = inode.flags().contains(InodeFlags::INLINE_DATA);
        let end = if inline { 0 } else { self.superblock().block_size().blocks_for(inode.size()) };
        self.runs_of(inode, BlockRange::new(0, end), inode.size())
    }

    /// The runs of everything that an inode's map can address, regardless of its size.
    pub(crate) fn mapped_runs(&self, inode: &Inode) -> Runs {
        self.runs_of(inode, BlockRange::ALL, u64::MAX)
    }

    fn runs_of(&self, inode: &Inode, blocks: BlockRange, end: u64) -> Runs {
        Runs { view: self.clone(), inode: inode.clone(), walker: RunWalker::new(blocks), end }
    }
}

impl Runs {
    /// Returns the next run, or `None` at the end of the file.
    ///
    /// # Errors
    /// The map does not account for this part of the file because it is damaged or unreadable. The
    /// next call continues after it.
    pub async fn next(&mut self) -> std::result::Result<Option<Run>, Lost> {
        let sb = self.view.superblock();
        self.walker.next(&self.view, &self.inode).await.map_err(|unmapped| unmapped.lost(sb, self.end))
    }
}

/// Walks a file's runs in order. Stops at a map that reaches, or consists of, more blocks than the
/// volume has, which is possible only if blocks are used twice.
#[derive(Debug)]
pub(crate) struct RunWalker {
    mapper: Mapper,
    /// Blocks still to be walked.
    left: BlockRange,
    mapped: u64,
    /// How many of the mapped blocks are on the device.
    on_device: u64,
    /// Error that ended the last run; to be returned next.
    stopped: Option<Unmapped>,
}

impl RunWalker {
    /// Walks these blocks of a file.
    pub(crate) fn new(blocks: BlockRange) -> Self {
        Self { mapper: Mapper::default(), left: blocks, mapped: 0, on_device: 0, stopped: None }
    }

    /// Returns the next run, or `None` at the end. Runs that are adjacent on the volume are joined.
    ///
    /// # Errors
    /// Blocks that the map does not account for. The next call continues after them.
    pub(crate) async fn next(&mut self, from: &impl MapSource, inode: &Inode) -> Mapped<Option<Run>> {
        if let Some(unmapped) = self.stopped.take() {
            return Err(self.skip(from, inode, unmapped));
        }
        if self.left.is_empty() {
            return Ok(None);
        }
        let mut run = match self.mapper.map(from, inode, self.left.start).await {
            Ok(run) => run,
            Err(unmapped) => return Err(self.skip(from, inode, unmapped)),
        };
        while run.end() < self.left.end {
            let more = match self.mapper.map(from, inode, run.end()).await {
                Ok(more) => more,
                Err(unmapped) => {
                    self.stopped = Some(unmapped);
                    break;
                }
            };
            self.check(from, inode)?;
            let joins = match (run.state, more.state) {
                (RunState::Hole, RunState::Hole) => true,
                (RunState::Written(a), RunState::Written(b)) => b.0 == a.0 + run.blocks,
                (RunState::Unwritten(a), RunState::Unwritten(b)) => b.0 == a.0 + run.blocks,
                _ => false,
            };
            // Long enough to be read in one step; the rest becomes the next run.
            if !joins || (run.blocks >= 1 << 15 && run.state != RunState::Hole) {
                break;
            }
            run.blocks += more.blocks;
        }
        run.blocks = run.blocks.min(self.left.end - run.logical);
        if let RunState::Written(at) | RunState::Unwritten(at) = run.state {
            self.mapped += run.blocks;
            self.on_device += run.blocks.min(from.device_blocks().saturating_sub(at.0));
        }
        self.check(from, inode)?;
        self.left.start = run.end();
        Ok(Some(run))
    }

    /// Continues after blocks that the map does not account for.
    fn skip(&mut self, from: &impl MapSource, inode: &Inode, unmapped: Unmapped) -> Unmapped {
        if let Err(over) = self.check(from, inode) {
            return over;
        }
        let blocks = unmapped.blocks.until(self.left.end);
        self.left.start = blocks.end;
        Unmapped { blocks, ..unmapped }
    }

    /// Stops the walk of a map with blocks used twice.
    fn check(&mut self, from: &impl MapSource, inode: &Inode) -> Mapped<()> {
        let reached = self.mapped.max(self.mapper.loads);
        // The superblock may claim more blocks than exist. Nodes have been read and data on the
        // device will be, so neither may exceed the device.
        let is_read = self.on_device.max(self.mapper.loads);
        if reached <= from.superblock().blocks_count() && is_read <= from.device_blocks() {
            return Ok(());
        }
        let rule = "at most the volume's blocks: some are mapped twice";
        let corrupt = Corrupt::field(Place::Inode(inode.number), "mapped blocks", reached, rule);
        let blocks = std::mem::replace(&mut self.left, BlockRange::new(0, 0));
        self.stopped = None;
        Err(Unmapped { blocks, error: corrupt.into() })
    }
}
