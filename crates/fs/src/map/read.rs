//! Reading a file's map from the volume.

use super::{Run, RunState};
use crate::view::View;
use crate::{BlockRef, Result};
use extant_format::{
    BlockRange, Corrupt, Extent, ExtentContext, ExtentNode, Inode, InodeFlags, Place, VolumeBlock,
    check_pointer, indirect_path, verify_extent_checksum,
};

/// A file's map, remembering the node looked at last, so that reading on costs no second descent.
#[derive(Debug, Default)]
pub(crate) struct Mapper {
    last: Option<Last>,
    /// Last nodes loaded so far.
    loads: u64,
}

#[derive(Debug)]
enum Last {
    Extents { range: BlockRange, extents: Vec<Extent> },
    Pointers { first: u64, at: VolumeBlock, block: BlockRef },
}

impl Mapper {
    /// The run that holds block `logical` of the file, from there on.
    pub(crate) async fn map(&mut self, view: &View, inode: &Inode, logical: u64) -> Result<Run> {
        if logical >= BlockRange::MAP_END {
            return Ok(Run { logical, blocks: u64::MAX - logical, state: RunState::Hole });
        }
        if inode.flags().contains(InodeFlags::EXTENTS) {
            self.map_extents(view, inode, logical).await
        } else {
            self.map_pointers(view, inode, logical).await
        }
    }

    /// Fills `to` with the file's blocks from byte `offset` on; what is not written reads as zeroes. The size is the
    /// caller's to look at.
    pub(crate) async fn read(
        &mut self,
        view: &View,
        inode: &Inode,
        offset: u64,
        to: &mut [u8],
    ) -> Result<()> {
        let block_bytes = u64::from(view.superblock().block_size().bytes());
        let mut done = 0;
        while done < to.len() {
            let at = offset + done as u64;
            let run = self.map(view, inode, at / block_bytes).await?;
            let skip = (at % block_bytes) as usize;
            let left = run.blocks.saturating_mul(block_bytes) - skip as u64;
            let n = left.min((to.len() - done) as u64) as usize;
            match run.state {
                RunState::Hole | RunState::Unwritten(_) => {
                    to[done..done + n].fill(0);
                    done += n;
                }
                RunState::Written(first) => {
                    let n = n.min(block_bytes as usize - skip);
                    let block = view.buffers().block(first).await?;
                    to[done..done + n].copy_from_slice(&block[skip..skip + n]);
                    done += n;
                }
            }
        }
        Ok(())
    }

    async fn map_extents(&mut self, view: &View, inode: &Inode, logical: u64) -> Result<Run> {
        if let Some(Last::Extents { range, extents }) = &self.last
            && range.contains(logical)
        {
            return Ok(find_extent(extents, *range, logical));
        }
        let sb = view.superblock();
        let mut cx = ExtentContext::root(sb, inode.number);
        let mut node = ExtentNode::parse(inode.map(), &cx)?;
        let mut range = BlockRange::ALL;
        loop {
            match node {
                ExtentNode::Leaf(extents) => {
                    let run = find_extent(&extents, range, logical);
                    self.loads += 1;
                    self.last = Some(Last::Extents { range, extents });
                    return Ok(run);
                }
                ExtentNode::Index { depth, entries } => {
                    let n = entries.partition_point(|e| u64::from(e.logical.0) <= logical);
                    let Some(n) = n.checked_sub(1) else {
                        let end = entries.first().map_or(range.end, |e| e.logical.0.into());
                        return Ok(Run { logical, blocks: end - logical, state: RunState::Hole });
                    };
                    cx = cx.child(depth, &entries, n);
                    range = cx.range;
                    let block = view.buffers().block(entries[n].child).await?;
                    if let Some(seed) = sb.checksum_seed() {
                        let place = Place::ExtentNode(inode.number, cx.block);
                        view.note_checksum(|| {
                            verify_extent_checksum(&block, inode.checksum_seed(seed), place)
                        })?;
                    }
                    node = ExtentNode::parse(&block, &cx)?;
                }
            }
        }
    }

    async fn map_pointers(&mut self, view: &View, inode: &Inode, logical: u64) -> Result<Run> {
        let sb = view.superblock();
        let size = sb.block_size();
        if let Some(Last::Pointers { first, at, block }) = &self.last {
            let per_block = (block.len() / 4) as u64;
            if BlockRange::at(*first, per_block).contains(logical) {
                return pointer_run(view, inode, Some(*at), block, *first, logical);
            }
        }
        let Some(path) = indirect_path(logical, size) else {
            return Ok(Run { logical, blocks: BlockRange::MAP_END - logical, state: RunState::Hole });
        };
        if path.levels == 0 {
            return pointer_run(view, inode, None, &inode.map()[..48], 0, logical);
        }
        let bits = size.log2() - 2;
        let mut at = check_pointer(inode.block_pointer(path.root), sb, Place::Inode(inode.number))?;
        for level in 0..path.levels {
            // Blocks reached through one pointer of this level.
            let reach = 1u64 << (bits * (path.levels - 1 - level) as u32);
            let skip = logical_offset(&path.indices[..path.levels], bits, level);
            if at.0 == 0 {
                let covered = reach << bits;
                return Ok(Run { logical, blocks: covered - skip, state: RunState::Hole });
            }
            let block = view.buffers().block(at).await?;
            if level + 1 == path.levels {
                let first = logical - u64::from(path.indices[level]);
                let run = pointer_run(view, inode, Some(at), &block, first, logical)?;
                self.loads += 1;
                self.last = Some(Last::Pointers { first, at, block });
                return Ok(run);
            }
            let n = path.indices[level] as usize * 4;
            let next = u32::from_le_bytes([block[n], block[n + 1], block[n + 2], block[n + 3]]);
            at = check_pointer(VolumeBlock(next.into()), sb, Place::IndirectBlock(inode.number, at))?;
        }
        unreachable!("the last level returns")
    }
}

/// How far into the range of the pointer at `level` a path leads, in blocks.
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

/// The run at `logical` within one block of pointers whose first one maps block `first`.
fn pointer_run(
    view: &View,
    inode: &Inode,
    at: Option<VolumeBlock>,
    pointers: &[u8],
    first: u64,
    logical: u64,
) -> Result<Run> {
    let place = at.map_or(Place::Inode(inode.number), |at| Place::IndirectBlock(inode.number, at));
    let pointer = |n: u64| -> std::result::Result<Option<VolumeBlock>, Corrupt> {
        let Some(bytes) = pointers.get(n as usize * 4..n as usize * 4 + 4) else { return Ok(None) };
        let block = VolumeBlock(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]).into());
        check_pointer(block, view.superblock(), place).map(Some)
    };
    let start = pointer(logical - first)?.unwrap_or(VolumeBlock(0));
    let mut blocks = 1;
    while let Ok(Some(next)) = pointer(logical - first + blocks) {
        let continues = if start.0 == 0 { next.0 == 0 } else { next.0 == start.0 + blocks };
        if !continues {
            break;
        }
        blocks += 1;
    }
    let state = if start.0 == 0 { RunState::Hole } else { RunState::Written(start) };
    Ok(Run { logical, blocks, state })
}

/// A file's runs from its first block to its last.
#[derive(Debug)]
pub struct Runs {
    view: View,
    inode: Inode,
    walker: RunWalker,
}

impl View {
    /// The runs of a file or directory whose contents are in blocks, up to its size.
    pub(crate) fn runs(&self, inode: &Inode) -> Runs {
        let inline = inode.flags().contains(InodeFlags::INLINE_DATA);
        let end = if inline { 0 } else { self.superblock().block_size().blocks_for(inode.size()) };
        Runs { view: self.clone(), inode: inode.clone(), walker: RunWalker::new(BlockRange::new(0, end)) }
    }

    /// The runs of all that an inode's map can address, whatever its size.
    pub(crate) fn mapped_runs(&self, inode: &Inode) -> Runs {
        Runs { view: self.clone(), inode: inode.clone(), walker: RunWalker::new(BlockRange::ALL) }
    }
}

impl Runs {
    /// The next run; `None` at the end of the file.
    pub async fn next(&mut self) -> Result<Option<Run>> {
        self.walker.next(&self.view, &self.inode).await
    }
}

/// Walks a file's runs in order and refuses a map that reaches, or is made of, more blocks than the volume has, which only
/// a map with blocks used twice can do.
#[derive(Debug)]
pub(crate) struct RunWalker {
    mapper: Mapper,
    /// Blocks that are still to be walked.
    left: BlockRange,
    mapped: u64,
}

impl RunWalker {
    /// Over these blocks of a file.
    pub(crate) fn new(blocks: BlockRange) -> Self {
        Self { mapper: Mapper::default(), left: blocks, mapped: 0 }
    }

    /// The next run, adjacent ones joined where they continue on the volume; `None` at the end.
    pub(crate) async fn next(&mut self, view: &View, inode: &Inode) -> Result<Option<Run>> {
        if self.left.is_empty() {
            return Ok(None);
        }
        let mut run = self.mapper.map(view, inode, self.left.start).await?;
        while run.end() < self.left.end {
            let more = self.mapper.map(view, inode, run.end()).await?;
            self.check(view, inode)?;
            let joins = match (run.state, more.state) {
                (RunState::Hole, RunState::Hole) => true,
                (RunState::Written(a), RunState::Written(b)) => b.0 == a.0 + run.blocks,
                (RunState::Unwritten(a), RunState::Unwritten(b)) => b.0 == a.0 + run.blocks,
                _ => false,
            };
            // Long enough to be read in one go; the rest is the next run.
            if !joins || (run.blocks >= 1 << 15 && run.state != RunState::Hole) {
                break;
            }
            run.blocks += more.blocks;
        }
        run.blocks = run.blocks.min(self.left.end - run.logical);
        self.left.start = run.end();
        if run.state != RunState::Hole {
            self.mapped += run.blocks;
        }
        self.check(view, inode)?;
        Ok(Some(run))
    }

    fn check(&self, view: &View, inode: &Inode) -> Result<()> {
        let reached = self.mapped.max(self.mapper.loads);
        if reached > view.superblock().blocks_count() {
            let rule = "at most the volume's blocks: some are mapped twice";
            return Err(Corrupt::field(Place::Inode(inode.number), "mapped blocks", reached, rule).into());
        }
        Ok(())
    }
}
