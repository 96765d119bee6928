//! Block maps of files: extent trees of any depth, and the indirect blocks of ext2 and ext3.

use super::free_runs::{Run, Short, Space};
use super::params::Params;
use extant_format::{
    BlockSize, ChecksumSeed, DIRECT_POINTERS, EXTENT_MAX_BLOCKS, Extent, ExtentIndex, ExtentNode, FileBlock,
    UNWRITTEN_MAX_BLOCKS, UintExt, VolumeBlock, pointers_per_block, write_extent_checksum,
};

/// Size of the map in an inode, in bytes.
pub(crate) const ROOT_BYTES: usize = 60;
/// Extents in an inode.
const ROOT_EXTENTS: usize = 4;

/// A run of file blocks without holes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LogicalRun {
    pub(crate) start: FileBlock,
    pub(crate) blocks: u32,
    /// Allocated, but reads as zeros.
    pub(crate) unwritten: bool,
}

impl LogicalRun {
    /// A run with data.
    pub(crate) fn written(start: FileBlock, blocks: u32) -> Self {
        Self { start, blocks, unwritten: false }
    }

    /// The file block after the last one.
    pub(crate) fn end(self) -> u64 {
        u64::from(self.start.0) + u64::from(self.blocks)
    }
}

/// File blocks stored contiguously on the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DataRun {
    pub(crate) logical: FileBlock,
    pub(crate) physical: VolumeBlock,
    pub(crate) blocks: u32,
    pub(crate) unwritten: bool,
}

impl DataRun {
    /// Maximum blocks that one extent of this run can map.
    fn extent_blocks_max(self) -> u32 {
        if self.unwritten { UNWRITTEN_MAX_BLOCKS } else { EXTENT_MAX_BLOCKS }
    }
}

/// Where a file's data and map are stored.
#[derive(Clone, Debug, Default)]
pub(crate) struct FileMap {
    /// Runs of data, in order of file blocks.
    pub(crate) data: Vec<DataRun>,
    /// Blocks of the map, in the order in which [`MapBlocks::write`] counts them.
    pub(crate) meta: Vec<Run>,
}

impl FileMap {
    /// A contiguous file without map blocks.
    pub(crate) fn single(physical: VolumeBlock, blocks: u32) -> Self {
        let data = if blocks == 0 {
            Vec::new()
        } else {
            vec![DataRun { logical: FileBlock(0), physical, blocks, unwritten: false }]
        };
        Self { data, meta: Vec::new() }
    }

    /// Allocates blocks for a file, in a single run if one fits.
    pub(crate) fn take(space: &mut Space, runs: &[LogicalRun], params: &Params) -> Result<Self, Short> {
        let blocks: u64 = runs.iter().map(|run| u64::from(run.blocks)).sum();
        if params.has_extents() {
            let data = lay(runs, &space.take_runs(blocks)?);
            let meta = space.take_runs(extent_blocks(&data, params.block))?;
            return Ok(Self { data, meta });
        }
        // The map goes before the data, where readers want it.
        let meta_blocks = indirect_nodes(runs, params.block).len().to_u64();
        if let Some(start) = space.take_run(meta_blocks + blocks) {
            let meta = Run { start, blocks: meta_blocks };
            let data = lay(runs, &[Run { start: meta.end(), blocks }]);
            let meta = if meta_blocks > 0 { vec![meta] } else { Vec::new() };
            return Ok(Self { data, meta });
        }
        let meta = space.take_runs(meta_blocks)?;
        Ok(Self { data: lay(runs, &space.take_runs(blocks)?), meta })
    }

    /// Blocks in use, including the map.
    pub(crate) fn blocks(&self) -> u64 {
        let data: u64 = self.data.iter().map(|run| u64::from(run.blocks)).sum();
        data + self.meta_blocks()
    }

    pub(crate) fn meta_blocks(&self) -> u64 {
        self.meta.iter().map(|run| run.blocks).sum()
    }

    fn meta_block(&self, mut index: u64) -> VolumeBlock {
        for run in &self.meta {
            if index < run.blocks {
                return run.block(index);
            }
            index -= run.blocks;
        }
        panic!("a map has as many blocks as were counted")
    }

    /// The volume block of file block `logical`, which may be any that a map has a pointer for;
    /// `None` in a hole.
    fn physical(&self, logical: u64) -> Option<VolumeBlock> {
        let after = self.data.partition_point(|run| u64::from(run.logical.0) <= logical);
        let run = self.data[after.checked_sub(1)?];
        let index = logical - u64::from(run.logical.0);
        (index < run.blocks.into()).then(|| VolumeBlock(run.physical.0 + index))
    }

    fn logical_runs(&self) -> Vec<LogicalRun> {
        let logical =
            |run: &DataRun| LogicalRun { start: run.logical, blocks: run.blocks, unwritten: run.unwritten };
        self.data.iter().map(logical).collect()
    }

    /// Writes the inode's part of the map.
    pub(crate) fn write_root(&self, to: &mut [u8; ROOT_BYTES], params: &Params) {
        if params.has_extents() {
            let extents = extents(&self.data);
            if extents.len() <= ROOT_EXTENTS {
                ExtentNode::Leaf(extents).write_to(to);
                return;
            }
            let levels = extent_levels(extents.len(), params.block);
            let level = levels.len() - 1;
            index_node(self, &extents, &levels, level.fit_u16() + 1, 0, usize::MAX, params.block)
                .write_to(to);
            return;
        }
        let nodes = indirect_nodes(&self.logical_runs(), params.block);
        let mut put =
            |n: usize, block: Option<VolumeBlock>| to[n * 4..n * 4 + 4].copy_from_slice(&pointer(block));
        for n in 0..DIRECT_POINTERS {
            put(n.to_usize(), self.physical(n.into()));
        }
        for (n, first) in tops(params.block).into_iter().enumerate() {
            let level = n.fit_u8() + 1;
            let child = nodes.iter().position(|node| node.level == level && node.first == first);
            put(DIRECT_POINTERS.to_usize() + n, child.map(|at| self.meta_block(at.to_u64())));
        }
    }
}

/// A map, prepared for writing its blocks one by one.
pub(crate) struct MapBlocks {
    map: FileMap,
    extents: Vec<Extent>,
    /// Number of nodes per level of the extent tree, leaves first.
    levels: Vec<usize>,
    /// The indirect blocks.
    nodes: Vec<Node>,
}

impl MapBlocks {
    pub(crate) fn new(map: FileMap, params: &Params) -> Self {
        if params.has_extents() {
            let extents = extents(&map.data);
            let levels = extent_levels(extents.len(), params.block);
            return Self { map, extents, levels, nodes: Vec::new() };
        }
        let nodes = indirect_nodes(&map.logical_runs(), params.block);
        Self { map, extents: Vec::new(), levels: Vec::new(), nodes }
    }

    /// Writes block `index` of the map into the zeroed `block`; `seed` is the file's checksum seed.
    pub(crate) fn write(&self, index: u64, block: &mut [u8], params: &Params, seed: Option<ChecksumSeed>) {
        if params.has_extents() {
            self.write_extents(index.to_usize(), block, params);
            if let Some(seed) = seed {
                write_extent_checksum(block, seed);
            }
        } else {
            self.write_pointers(self.nodes[index.to_usize()], block, params);
        }
    }

    fn write_extents(&self, mut node: usize, block: &mut [u8], params: &Params) {
        let capacity = ExtentNode::capacity(params.block.byte_len(), false);
        let mut level = 0;
        while node >= self.levels[level] {
            node -= self.levels[level];
            level += 1;
        }
        let content = if level == 0 {
            let end = ((node + 1) * capacity).min(self.extents.len());
            ExtentNode::Leaf(self.extents[node * capacity..end].to_vec())
        } else {
            index_node(
                &self.map,
                &self.extents,
                &self.levels,
                level.fit_u16(),
                node * capacity,
                capacity,
                params.block,
            )
        };
        content.write_to(block);
    }

    fn write_pointers(&self, node: Node, block: &mut [u8], params: &Params) {
        let reach = reach(node.level - 1, params.block);
        for (n, slot) in (0u64..).zip(block.chunks_exact_mut(4)) {
            let first = node.first + n * reach;
            let child = if node.level == 1 {
                self.map.physical(first)
            } else {
                let key = (first, std::cmp::Reverse(node.level - 1));
                match self
                    .nodes
                    .binary_search_by_key(&key, |node| (node.first, std::cmp::Reverse(node.level)))
                {
                    Ok(at) => Some(self.map.meta_block(at.to_u64())),
                    Err(_) => None,
                }
            };
            slot.copy_from_slice(&pointer(child));
        }
    }
}

/// A block pointer of ext2 and ext3; 0 for a hole.
fn pointer(block: Option<VolumeBlock>) -> [u8; 4] {
    block.map_or(0, |block| block.0.fit_u32()).to_le_bytes()
}

/// An inner node of `depth` over the nodes of the level below, starting at `first`.
fn index_node(
    map: &FileMap,
    extents: &[Extent],
    levels: &[usize],
    depth: u16,
    first: usize,
    most: usize,
    block: BlockSize,
) -> ExtentNode {
    let capacity = ExtentNode::capacity(block.byte_len(), false);
    let below = usize::from(depth) - 1;
    let before: usize = levels[..below].iter().sum();
    let extents_per_child = capacity.pow(u32::from(depth));
    let last = first.saturating_add(most).min(levels[below]);
    let entries = (first..last).map(|child| ExtentIndex {
        logical: extents[child * extents_per_child].logical,
        child: map.meta_block((before + child).to_u64()),
    });
    ExtentNode::Index { depth, entries: entries.collect() }
}

/// Maps runs of a file to runs of the volume of the same total length.
fn lay(logical: &[LogicalRun], physical: &[Run]) -> Vec<DataRun> {
    let mut out = Vec::with_capacity(logical.len().max(physical.len()));
    let mut places = physical.iter().copied();
    let mut place = Run { start: VolumeBlock(0), blocks: 0 };
    for run in logical {
        let (mut at, mut left) = (run.start, u64::from(run.blocks));
        while left > 0 {
            if place.blocks == 0 {
                place = places.next().expect("as many blocks were taken as the file has");
            }
            let here = left.min(place.blocks);
            out.push(DataRun {
                logical: at,
                physical: place.start,
                blocks: here.fit_u32(),
                unwritten: run.unwritten,
            });
            at = FileBlock(at.0.wrapping_add(here.fit_u32()));
            left -= here;
            place = Run::between(place.block(here), place.end());
        }
    }
    out
}

fn extents(data: &[DataRun]) -> Vec<Extent> {
    let mut out = Vec::with_capacity(data.len());
    for run in data {
        let mut done = 0;
        while done < run.blocks {
            let blocks = (run.blocks - done).min(run.extent_blocks_max());
            out.push(Extent {
                logical: FileBlock(run.logical.0 + done),
                physical: VolumeBlock(run.physical.0 + u64::from(done)),
                blocks,
                unwritten: run.unwritten,
            });
            done += blocks;
        }
    }
    out
}

/// Nodes per level outside the inode, leaves first.
fn extent_levels(extents: usize, block: BlockSize) -> Vec<usize> {
    let capacity = ExtentNode::capacity(block.byte_len(), false);
    let mut levels = Vec::new();
    let mut below = extents;
    while below > ROOT_EXTENTS {
        below = below.div_ceil(capacity);
        levels.push(below);
    }
    levels
}

fn extent_blocks(data: &[DataRun], block: BlockSize) -> u64 {
    let count: usize = data.iter().map(|run| run.blocks.div_ceil(run.extent_blocks_max()).to_usize()).sum();
    extent_levels(count, block).iter().sum::<usize>().to_u64()
}

/// An indirect block: its level (1 points to data), and the first file block below it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Node {
    level: u8,
    first: u64,
}

/// Number of file blocks below one pointer at this level.
fn reach(level: u8, block: BlockSize) -> u64 {
    1 << ((block.log2() - 2) * u32::from(level))
}

/// First file block below each of the three indirect pointers of an inode.
fn tops(block: BlockSize) -> [u64; 3] {
    let n = u64::from(pointers_per_block(block));
    let direct = u64::from(DIRECT_POINTERS);
    [direct, direct + n, direct + n + n * n]
}

/// Number of indirect blocks that a file needs.
pub(crate) fn indirect_blocks(runs: &[LogicalRun], block: BlockSize) -> u64 {
    indirect_nodes(runs, block).len().to_u64()
}

/// The indirect blocks of a file, parents before their children.
fn indirect_nodes(runs: &[LogicalRun], block: BlockSize) -> Vec<Node> {
    let mut nodes: Vec<Node> = Vec::new();
    for (n, top) in tops(block).into_iter().enumerate() {
        let levels = n.fit_u8() + 1;
        let end = top + reach(levels, block);
        for run in runs {
            let (from, to) = (u64::from(run.start.0).max(top), run.end().min(end));
            if from >= to {
                continue;
            }
            for level in (1..=levels).rev() {
                let size = reach(level, block);
                for child in (from - top) / size..=(to - 1 - top) / size {
                    nodes.push(Node { level, first: top + child * size });
                }
            }
        }
    }
    nodes.sort_unstable_by_key(|node| (node.first, std::cmp::Reverse(node.level)));
    nodes.dedup();
    nodes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indirect_blocks_are_as_many_as_the_file_needs() {
        let block = BlockSize::from_bytes(1024).unwrap();
        let count =
            |start, blocks| indirect_nodes(&[LogicalRun::written(FileBlock(start), blocks)], block).len();
        assert_eq!(count(0, 12), 0);
        assert_eq!(count(0, 13), 1);
        assert_eq!(count(0, 12 + 256), 1);
        assert_eq!(count(0, 12 + 256 + 1), 3);
        assert_eq!(count(0, 12 + 256 + 256 * 256), 2 + 256);
        assert_eq!(count(0, 12 + 256 + 256 * 256 + 1), 2 + 256 + 3);
        assert_eq!(count(12 + 256 + 256 * 256 + 300, 1), 3, "a hole in front costs nothing");
    }

    #[test]
    fn extent_trees_are_as_deep_as_they_need() {
        let block = BlockSize::from_bytes(1024).unwrap();
        assert!(extent_levels(4, block).is_empty());
        assert_eq!(extent_levels(5, block), [1]);
        assert_eq!(extent_levels(84 * 4, block), [4]);
        assert_eq!(extent_levels(84 * 4 + 1, block), [5, 1]);
        assert_eq!(extent_levels(84 * 84 * 4 + 1, block), [337, 5, 1]);
    }
}
