//! Extent trees (kernel document: *Extent Tree*).

use crate::{
    BlockRange, ChecksumSeed, Corrupt, FileBlock, InodeNumber, Place, Problem, Superblock, UintExt,
    VolumeBlock,
};
use std::fmt;
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// `eh_magic`.
pub const EXTENT_MAGIC: u16 = 0xf30a;
/// Deepest tree that Linux accepts.
pub const EXTENT_MAX_DEPTH: u16 = 5;
/// Extents end here at the latest: Linux counts a file's blocks in 32 bits (`EXT_MAX_BLOCKS`) and
/// refuses others.
const EXTENT_END: u64 = u32::MAX as u64;
/// Longest written extent in blocks (`EXT_INIT_MAX_LEN`).
pub const EXTENT_MAX_BLOCKS: u32 = 32768;
/// Longest unwritten extent in blocks (`EXT_UNWRITTEN_MAX_LEN`).
pub const UNWRITTEN_MAX_BLOCKS: u32 = 32767;

const ENTRY_BYTES: usize = 12;

/// On-disk header of a node.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawExtentHeader {
    /* 0x0 */ eh_magic: U16,
    /* 0x2 */ eh_entries: U16,
    /* 0x4 */ eh_max: U16,
    /* 0x6 */ eh_depth: U16,
    /* 0x8 */ eh_generation: U32,
}

/// On-disk entry of a leaf.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawExtent {
    /* 0x0 */ ee_block: U32,
    /* 0x4 */ ee_len: U16,
    /* 0x6 */ ee_start_hi: U16,
    /* 0x8 */ ee_start_lo: U32,
}

/// On-disk entry of an inner node.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawExtentIndex {
    /* 0x0 */ ei_block: U32,
    /* 0x4 */ ei_leaf_lo: U32,
    /* 0x8 */ ei_leaf_hi: U16,
    /* 0xa */ ei_unused: U16,
}

/// A run of file blocks stored in consecutive volume blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// First file block.
    pub logical: FileBlock,
    /// First volume block.
    pub physical: VolumeBlock,
    /// Length in blocks, 1 to 32,768.
    pub blocks: u32,
    /// Allocated, but reads as zeros.
    pub unwritten: bool,
}

impl Extent {
    /// The file blocks it maps.
    pub fn range(&self) -> BlockRange {
        BlockRange::at(self.logical.0.into(), self.blocks.into())
    }

    /// One past the last file block.
    pub fn logical_end(&self) -> u64 {
        u64::from(self.logical.0) + u64::from(self.blocks)
    }
}

/// An entry of an inner node. File blocks from `logical` up to the next entry are below `child`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExtentIndex {
    /// First file block below the child.
    pub logical: FileBlock,
    /// The child's block.
    pub child: VolumeBlock,
}

/// A node of an extent tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExtentNode {
    /// Depth 0: extents in order, without overlap.
    Leaf(Vec<Extent>),
    /// Depth above 0: children, in order.
    Index {
        /// Levels below this node.
        depth: u16,
        /// The children.
        entries: Vec<ExtentIndex>,
    },
}

/// What a node must be consistent with.
#[derive(Clone, Copy, Debug)]
pub struct ExtentContext<'a> {
    /// The volume.
    pub sb: &'a Superblock,
    /// The file.
    pub inode: InodeNumber,
    /// The node's block; `None` for the root in the inode.
    pub block: Option<VolumeBlock>,
    /// Depth required by the parent; `None` for the root.
    pub depth: Option<u16>,
    /// File blocks allowed by the parent.
    pub range: BlockRange,
}

impl<'a> ExtentContext<'a> {
    /// Context for the root of a file's tree.
    pub fn root(sb: &'a Superblock, inode: InodeNumber) -> Self {
        Self { sb, inode, block: None, depth: None, range: BlockRange::ALL }
    }

    /// Context for child `n` of an inner node parsed with this context.
    pub fn child(&self, depth: u16, entries: &[ExtentIndex], n: usize) -> Self {
        let end = entries.get(n + 1).map_or(self.range.end, |next| next.logical.0.into());
        let child = &entries[n];
        Self {
            block: Some(child.child),
            depth: Some(depth.saturating_sub(1)),
            range: BlockRange::new(child.logical.0.into(), end),
            ..*self
        }
    }

    fn place(&self) -> Place {
        Place::ExtentNode(self.inode, self.block)
    }
}

impl ExtentNode {
    /// Parses a node: the 60-byte map of an inode, or a whole block.
    ///
    /// The entries of an accepted node are in order, do not overlap, and lie within the parent's
    /// range and the volume.
    ///
    /// # Errors
    /// A bad header, or the first entry that breaks one of these rules.
    pub fn parse(bytes: &[u8], cx: &ExtentContext<'_>) -> Result<Self, Corrupt> {
        Self::parse_into(bytes, cx, &mut Vec::new())
    }

    /// Like [`Self::parse`]. The extents of a leaf take the memory of `spare`.
    fn parse_into(bytes: &[u8], cx: &ExtentContext<'_>, spare: &mut Vec<Extent>) -> Result<Self, Corrupt> {
        let place = cx.place();
        let bad = |field, value: u64, rule| Err(Corrupt::field(place, field, value, rule));
        let (depth, body) = entries_of(bytes, cx)?;
        let mut next = cx.range.start;
        if depth > 0 {
            let mut children = Vec::with_capacity(body.len() / ENTRY_BYTES);
            for chunk in body.chunks_exact(ENTRY_BYTES) {
                let Ok(raw) = RawExtentIndex::read_from_bytes(chunk) else { break };
                let child = raw.index();
                let logical = u64::from(child.logical.0);
                if logical < next || logical >= cx.range.end {
                    return bad("ei_block", logical, "above the entry before and within the parent's range");
                }
                check_child(&child, cx)?;
                children.push(child);
                next = logical + 1;
            }
            return Ok(Self::Index { depth, entries: children });
        }
        spare.clear();
        spare.reserve_exact(body.len() / ENTRY_BYTES);
        for chunk in body.chunks_exact(ENTRY_BYTES) {
            let Ok(raw) = RawExtent::read_from_bytes(chunk) else { break };
            let extent = raw.extent();
            if extent.blocks == 0 {
                return bad("ee_len", raw.ee_len.get().into(), "at least 1");
            }
            let end = cx.range.end.min(EXTENT_END);
            if u64::from(extent.logical.0) < next || extent.logical_end() > end {
                let rule = "behind the extent before and within the parent's range";
                return bad("ee_block", extent.logical.0.into(), rule);
            }
            check_place(&extent, cx)?;
            next = extent.logical_end();
            spare.push(extent);
        }
        Ok(Self::Leaf(std::mem::take(spare)))
    }

    /// The extent of a sound leaf that has only one. Most files have such a leaf in the inode, and
    /// a reader of very many need not build a node for it. `None` says nothing: it may be damaged,
    /// or another node.
    pub fn only_extent(bytes: &[u8], cx: &ExtentContext<'_>) -> Option<Extent> {
        let (depth, body) = entries_of(bytes, cx).ok()?;
        let extent = RawExtent::read_from_bytes(body).ok()?.extent();
        let is_placed = u64::from(extent.logical.0) >= cx.range.start
            && extent.logical_end() <= cx.range.end.min(EXTENT_END)
            && extent.blocks > 0;
        (depth == 0 && is_placed && check_place(&extent, cx).is_ok()).then_some(extent)
    }

    /// Like [`Self::parse`], for a reader that continues past damage: a bad entry loses only what
    /// it maps.
    ///
    /// Also returns, in order, the file blocks whose location the node does not give, and why.
    ///
    /// A leaf loses extents that are empty, lie outside the volume, or contradict each other; the
    /// range lost with them is empty if their neighbours leave no gap. An inner node keeps children
    /// outside the volume, because they bound their neighbours.
    ///
    /// # Errors
    /// Nothing in the node is reliable.
    pub fn salvage(bytes: &[u8], cx: &ExtentContext<'_>) -> Result<(Self, Vec<DamagedRange>), Corrupt> {
        Self::salvage_into(bytes, cx, &mut Vec::new())
    }

    /// Like [`Self::salvage`], for a reader of so many nodes that allocations count. The extents of
    /// a leaf take the memory of `spare`.
    ///
    /// # Errors
    /// As [`Self::salvage`].
    pub fn salvage_into(
        bytes: &[u8],
        cx: &ExtentContext<'_>,
        spare: &mut Vec<Extent>,
    ) -> Result<(Self, Vec<DamagedRange>), Corrupt> {
        let first = match Self::parse_into(bytes, cx, spare) {
            Ok(node) => return Ok((node, Vec::new())),
            Err(corrupt) => corrupt,
        };
        let (depth, body) = entries_of(bytes, cx)?;
        if depth == 0 {
            let extents: Vec<_> = body
                .chunks_exact(ENTRY_BYTES)
                .filter_map(|chunk| RawExtent::read_from_bytes(chunk).ok())
                .map(|raw| raw.extent())
                .collect();
            let (extents, damaged) = salvage_leaf(&extents, cx, first);
            return Ok((Self::Leaf(extents), damaged));
        }
        let (mut entries, mut damaged) = (Vec::with_capacity(body.len() / ENTRY_BYTES), Vec::new());
        let mut next = cx.range.start;
        for chunk in body.chunks_exact(ENTRY_BYTES) {
            let Ok(raw) = RawExtentIndex::read_from_bytes(chunk) else { break };
            let child = raw.index();
            let logical = u64::from(child.logical.0);
            // Then it is unknown where one child ends and the next begins.
            if logical < next || logical >= cx.range.end {
                return Err(first);
            }
            entries.push(child);
            next = logical + 1;
        }
        for n in 0..entries.len() {
            if let Err(corrupt) = check_child(&entries[n], cx) {
                damaged.push((cx.child(depth, &entries, n).range, corrupt));
            }
        }
        Ok((Self::Index { depth, entries }, damaged))
    }

    /// Maximum entries in a node of this many bytes, besides the header; `tail` reserves room for a
    /// block's checksum.
    pub fn capacity(bytes: usize, tail: bool) -> usize {
        (bytes - ENTRY_BYTES - if tail { 4 } else { 0 }) / ENTRY_BYTES
    }

    /// Maximum number of entries according to the node's header (`eh_max`), whether or not that is
    /// sound.
    pub fn stored_capacity(bytes: &[u8]) -> usize {
        bytes.get(4..6).map_or(0, |b| u16::from_le_bytes([b[0], b[1]]).into())
    }

    /// Writes the node to `to`, which is an inode's 60 bytes or a whole block. Panics if the
    /// entries do not fit.
    ///
    /// Unused entries are zero; [`write_extent_checksum`] adds a block's checksum.
    pub fn write_to(&self, to: &mut [u8]) {
        let max = Self::capacity(to.len(), false);
        to.fill(0);
        let (depth, entries) = match self {
            Self::Leaf(extents) => (0, extents.len()),
            Self::Index { depth, entries } => (*depth, entries.len()),
        };
        assert!(entries <= max, "{entries} entries in a node for {max}");
        let header = RawExtentHeader {
            eh_magic: EXTENT_MAGIC.into(),
            eh_entries: entries.fit_u16().into(),
            eh_max: max.fit_u16().into(),
            eh_depth: depth.into(),
            eh_generation: U32::ZERO,
        };
        let (head, body) = to.split_at_mut(ENTRY_BYTES);
        head.copy_from_slice(header.as_bytes());
        let slots = body.chunks_exact_mut(ENTRY_BYTES);
        match self {
            Self::Leaf(extents) => {
                for (slot, e) in slots.zip(extents) {
                    let len = if e.unwritten { e.blocks + EXTENT_MAX_BLOCKS } else { e.blocks };
                    let raw = RawExtent {
                        ee_block: e.logical.0.into(),
                        ee_len: len.fit_u16().into(),
                        ee_start_hi: (e.physical.0 >> 32).low_u16().into(),
                        ee_start_lo: e.physical.0.low_u32().into(),
                    };
                    slot.copy_from_slice(raw.as_bytes());
                }
            }
            Self::Index { entries, .. } => {
                for (slot, e) in slots.zip(entries) {
                    let raw = RawExtentIndex {
                        ei_block: e.logical.0.into(),
                        ei_leaf_lo: e.child.0.low_u32().into(),
                        ei_leaf_hi: (e.child.0 >> 32).low_u16().into(),
                        ei_unused: U16::ZERO,
                    };
                    slot.copy_from_slice(raw.as_bytes());
                }
            }
        }
    }
}

/// File blocks that a damaged node does not map, and the reason.
pub type DamagedRange = (BlockRange, Corrupt);

impl RawExtent {
    fn extent(&self) -> Extent {
        let len = u32::from(self.ee_len.get());
        let unwritten = len > EXTENT_MAX_BLOCKS;
        let at = u64::from(self.ee_start_hi.get()) << 32 | u64::from(self.ee_start_lo.get());
        Extent {
            logical: FileBlock(self.ee_block.get()),
            physical: VolumeBlock(at),
            blocks: if unwritten { len - EXTENT_MAX_BLOCKS } else { len },
            unwritten,
        }
    }
}

impl RawExtentIndex {
    fn index(&self) -> ExtentIndex {
        let child = u64::from(self.ei_leaf_hi.get()) << 32 | u64::from(self.ei_leaf_lo.get());
        ExtentIndex { logical: FileBlock(self.ei_block.get()), child: VolumeBlock(child) }
    }
}

/// Checks a node's header; returns its depth and the bytes of its entries.
fn entries_of<'a>(bytes: &'a [u8], cx: &ExtentContext<'_>) -> Result<(u16, &'a [u8]), Corrupt> {
    let place = cx.place();
    let bad = |field, value: u64, rule| Err(Corrupt::field(place, field, value, rule));
    let (header, body) = RawExtentHeader::read_from_prefix(bytes)
        .map_err(|_| Corrupt::truncated(place, ENTRY_BYTES, bytes.len()))?;
    if header.eh_magic.get() != EXTENT_MAGIC {
        let problem = Problem::Magic { found: header.eh_magic.get().into(), expected: EXTENT_MAGIC.into() };
        return Err(Corrupt { place, problem });
    }
    let (entries, max, depth) = (header.eh_entries.get(), header.eh_max.get(), header.eh_depth.get());
    if depth > EXTENT_MAX_DEPTH {
        return bad("eh_depth", depth.into(), "at most 5");
    }
    if cx.depth.is_some_and(|promised| promised != depth) {
        return bad("eh_depth", depth.into(), "one less than the parent's");
    }
    if usize::from(max) > body.len() / ENTRY_BYTES {
        return bad("eh_max", max.into(), "at most what fits the node");
    }
    if entries > max {
        return bad("eh_entries", entries.into(), "at most eh_max");
    }
    if entries == 0 && (depth > 0 || cx.block.is_some()) {
        return bad("eh_entries", 0, "at least 1 outside an empty root");
    }
    Ok((depth, &body[..usize::from(entries) * ENTRY_BYTES]))
}

fn check_child(child: &ExtentIndex, cx: &ExtentContext<'_>) -> Result<(), Corrupt> {
    match cx.sb.is_valid_block(child.child) {
        true => Ok(()),
        false => Err(Corrupt::field(cx.place(), "ei_leaf", child.child.0, "a block of the volume")),
    }
}

/// Checks that a nonempty extent lies in the volume.
fn check_place(extent: &Extent, cx: &ExtentContext<'_>) -> Result<(), Corrupt> {
    let last = VolumeBlock(extent.physical.0 + u64::from(extent.blocks) - 1);
    if cx.sb.is_valid_block(extent.physical) && cx.sb.is_valid_block(last) {
        return Ok(());
    }
    let rule = "the start of a run within the volume";
    Err(Corrupt::field(cx.place(), "ee_start", extent.physical.0, rule))
}

/// Returns the extents of a damaged leaf that do not contradict any other, and the gaps left by
/// those that do; `first` is the first error in the leaf.
fn salvage_leaf(
    extents: &[Extent],
    cx: &ExtentContext<'_>,
    first: Corrupt,
) -> (Vec<Extent>, Vec<DamagedRange>) {
    let start = |extent: &Extent| u64::from(extent.logical.0);
    let in_range = |extent: &&Extent| {
        let end = cx.range.end.min(EXTENT_END);
        extent.blocks > 0 && start(extent) >= cx.range.start && extent.logical_end() <= end
    };
    // For each extent, the earliest start among those after it.
    let mut after = vec![cx.range.end; extents.len()];
    for n in (1..extents.len()).rev() {
        let next = Some(&extents[n]).filter(in_range).map_or(cx.range.end, start);
        after[n - 1] = after[n].min(next);
    }
    let (mut kept, mut damaged) = (Vec::with_capacity(extents.len()), Vec::new());
    // End of the latest extent so far, and end of the latest one kept.
    let (mut before, mut at) = (cx.range.start, cx.range.start);
    let mut in_doubt = false;
    for (extent, after) in extents.iter().zip(after) {
        let agrees = in_range(&extent) && start(extent) >= before && extent.logical_end() <= after;
        if in_range(&extent) {
            before = before.max(extent.logical_end());
        }
        if !agrees {
            in_doubt = true;
            continue;
        }
        if std::mem::take(&mut in_doubt) {
            damaged.push((BlockRange::new(at, start(extent)), first));
        }
        match check_place(extent, cx) {
            Ok(()) => kept.push(*extent),
            Err(corrupt) => damaged.push((extent.range(), corrupt)),
        }
        at = extent.logical_end();
    }
    if in_doubt {
        damaged.push((BlockRange::new(at, cx.range.end), first));
    }
    (kept, damaged)
}

impl fmt::Display for ExtentNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Leaf(extents) => {
                write!(f, "leaf, {} extents", extents.len())?;
                for e in extents {
                    let kind = if e.unwritten { " unwritten" } else { "" };
                    write!(f, "\n  {}+{} -> {}{kind}", e.logical, e.blocks, e.physical)?;
                }
            }
            Self::Index { depth, entries } => {
                write!(f, "index of depth {depth}, {} children", entries.len())?;
                for e in entries {
                    write!(f, "\n  {}.. -> block {}", e.logical, e.child)?;
                }
            }
        }
        Ok(())
    }
}

fn checksum_at(block: &[u8]) -> Option<usize> {
    let max = u16::from_le_bytes([*block.get(4)?, *block.get(5)?]);
    let at = ENTRY_BYTES + usize::from(max) * ENTRY_BYTES;
    (at + 4 <= block.len()).then_some(at)
}

/// Checks the checksum that follows the entries in a node's block; `seed` is the inode's.
///
/// # Errors
/// Another checksum, or entries that leave no room for one.
pub fn verify_extent_checksum(block: &[u8], seed: ChecksumSeed, place: Place) -> Result<(), Corrupt> {
    let Some(at) = checksum_at(block) else {
        let max = block.get(4..6).map_or(0, |b| u16::from_le_bytes([b[0], b[1]]));
        return Err(Corrupt::field(
            place,
            "eh_max",
            max.into(),
            "small enough to leave room for the checksum",
        ));
    };
    let stored = u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]]);
    let computed = seed.over(&block[..at]).0;
    if stored == computed { Ok(()) } else { Err(Corrupt::checksum(place, stored, computed)) }
}

/// The seed that makes a node's checksum right. It tells which inode the node belongs to. `None` if
/// the entries leave no room for a checksum.
pub fn extent_checksum_seed(block: &[u8]) -> Option<ChecksumSeed> {
    let at = checksum_at(block)?;
    let stored = block[at..].first_chunk().map(|bytes| u32::from_le_bytes(*bytes))?;
    Some(ChecksumSeed::of(stored, &block[..at]))
}

/// Writes the checksum after the entries in a node's block. Panics if there is no room for it.
pub fn write_extent_checksum(block: &mut [u8], seed: ChecksumSeed) {
    let at = checksum_at(block).expect("a node written by write_to leaves room for its checksum");
    let sum = seed.over(&block[..at]).0;
    block[at..at + 4].copy_from_slice(&sum.to_le_bytes());
}
