//! Hash trees of directories: the root in block 0, and inner nodes. Leaves are ordinary directory
//! blocks.
//!
//! Kernel documentation: *Hash Tree Directories* (Documentation/filesystems/ext4/directory.rst).
//!
//! To readers without hash tree support, the root is a directory block with `.` and `..`, the
//! latter's record spanning the rest, and an inner node is a block with a single deleted entry.
//!
//! ```text
//! root:  . (12) │ .. (12) │ dx_root_info (8) │ limit, count, block │ hash, block │ … │ [tail (8)]
//! node:  deleted entry (8)                   │ limit, count, block │ hash, block │ … │ [tail (8)]
//! (sizes in bytes)
//! ```

mod edit;
mod hash;

pub use edit::{DxEntriesMut, init_dx_node, init_dx_root, set_dotdot, set_dx_levels};
pub use hash::{HASH_LANES, HashVersion, NameHash, hash_name, hash_names};

use crate::{ChecksumSeed, Corrupt, FileBlock, InodeNumber, Place, UintExt, encode_record_bytes};
use std::fmt;
use std::ops::Range;
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// `fake_dirent`, with room for the name `.` or `..`.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct RawDxDot {
    /// 0x0: the directory itself, or its parent.
    pub inode: U32,
    /// 0x4: 12 for `.`, the rest of the block for `..`.
    pub rec_len: U16,
    /// 0x6: 1 or 2.
    pub name_len: u8,
    /// 0x7: 2 with `filetype`, otherwise 0.
    pub file_type: u8,
    /// 0x8: `.` or `..`.
    pub name: [u8; 4],
}

/// `struct dx_root` up to its entries.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct RawDxRoot {
    /// 0x0.
    pub dot: RawDxDot,
    /// 0xc.
    pub dotdot: RawDxDot,
    /// 0x18.
    pub reserved_zero: U32,
    /// 0x1c: see [`HashVersion`].
    pub hash_version: u8,
    /// 0x1d: 8, the size of this part.
    pub info_length: u8,
    /// 0x1e: levels of inner nodes between root and leaves.
    pub indirect_levels: u8,
    /// 0x1f: bit 0 must not be set.
    pub unused_flags: u8,
}

/// `struct dx_entry`.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct RawDxEntry {
    /// 0x0: the lowest hash below the block; for a node's first entry, limit and count.
    pub hash: U32,
    /// 0x4: the block, in the lower 28 bits.
    pub block: U32,
}

/// `struct dx_countlimit`, in place of the first entry's hash.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct RawDxCountLimit {
    /// 0x0: maximum entries, including this one.
    pub limit: U16,
    /// 0x2: number of entries.
    pub count: U16,
}

/// `struct dx_tail`, at the end of a block with `metadata_csum`.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct RawDxTail {
    /// 0x0.
    pub dt_reserved: U32,
    /// 0x4: checksum of everything before the entries and of the entries in use.
    pub dt_checksum: U32,
}

const ROOT_ENTRIES: usize = size_of::<RawDxRoot>();
const NODE_ENTRIES: usize = 8;
const ENTRY_LEN: usize = size_of::<RawDxEntry>();
const TAIL_LEN: usize = size_of::<RawDxTail>();
/// `EXT4_DX_BLOCK_MASK`.
const BLOCK_MASK: u32 = 0x0fff_ffff;

/// Location of a block of a tree, and relevant features of the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HtreeContext {
    /// The directory.
    pub dir: InodeNumber,
    /// The block's number within it.
    pub block: FileBlock,
    /// Whether blocks end with a checksum (`metadata_csum`).
    pub checksums: bool,
    /// Whether a tree may have three levels of nodes (`large_dir`) instead of two.
    pub large_dir: bool,
}

impl HtreeContext {
    const fn place(&self) -> Place {
        Place::HtreeNode(self.dir, self.block)
    }

    /// Offset of a block's entries.
    const fn entries_at(&self) -> usize {
        if self.block.0 == 0 { ROOT_ENTRIES } else { NODE_ENTRIES }
    }

    /// Maximum entries in a block of this length.
    const fn limit(&self, block_len: usize, entries_at: usize) -> usize {
        let tail = if self.checksums { TAIL_LEN } else { 0 };
        block_len.saturating_sub(entries_at + tail) / ENTRY_LEN
    }

    /// Maximum entries in a root.
    pub const fn root_limit(&self, block_len: usize) -> usize {
        self.limit(block_len, ROOT_ENTRIES)
    }

    /// Maximum entries in an inner node.
    pub const fn node_limit(&self, block_len: usize) -> usize {
        self.limit(block_len, NODE_ENTRIES)
    }
}

/// An entry: names whose hash is at least `hash`, and below the next entry's, are below `block`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DxEntry {
    /// Lowest hash; 0 for a node's first entry. If its lowest bit is set, names with this hash
    /// begin in the previous block.
    pub hash: u32,
    /// An inner node or a leaf.
    pub block: FileBlock,
}

impl DxEntry {
    /// Whether names with this hash, found through the previous entry, continue here.
    pub const fn continues(&self, hash: NameHash) -> bool {
        self.hash == hash.major | 1
    }
}

/// Entries of a root or inner node: at least one, with hashes that never descend.
#[derive(Clone, Copy, Debug)]
pub struct DxEntries<'a> {
    raw: &'a [RawDxEntry],
    limit: usize,
}

impl<'a> DxEntries<'a> {
    fn check_order(&self, context: &HtreeContext) -> Result<(), Corrupt> {
        let hashes = self.raw[1..].iter().map(|entry| entry.hash.get() & !1);
        match hashes.clone().zip(hashes.skip(1)).find(|(a, b)| a > b) {
            Some((_, hash)) => {
                let rule = "no lower than that of the entry before";
                Err(Corrupt::field(context.place(), "hash", hash.into(), rule))
            }
            None => Ok(()),
        }
    }

    fn open_at(block: &'a [u8], at: usize, context: &HtreeContext) -> Result<Self, Corrupt> {
        let (count, limit) = Self::head(block, at, context)?;
        match <[RawDxEntry]>::ref_from_prefix_with_elems(&block[at..], count) {
            Ok((raw, _)) => Ok(Self { raw, limit }),
            Err(_) => Err(Corrupt::truncated(context.place(), at + count * ENTRY_LEN, block.len())),
        }
    }

    /// Count and limit, checked against the block's size.
    fn head(block: &[u8], at: usize, context: &HtreeContext) -> Result<(usize, usize), Corrupt> {
        let place = context.place();
        let bad = |field, value: usize, rule| Err(Corrupt::field(place, field, value.to_u64(), rule));
        let rest = block.get(at..).unwrap_or_default();
        let Ok((head, _)) = RawDxCountLimit::ref_from_prefix(rest) else {
            return Err(Corrupt::truncated(place, at + ENTRY_LEN, block.len()));
        };
        let (limit, count) = (usize::from(head.limit.get()), usize::from(head.count.get()));
        if limit != context.limit(block.len(), at) {
            return bad("limit", limit, "the number of entries that fit the block");
        }
        if count == 0 || count > limit {
            return bad("count", count, "from 1 to limit");
        }
        Ok((count, limit))
    }

    /// Number of entries; never 0.
    pub const fn count(&self) -> usize {
        self.raw.len()
    }

    /// Maximum number of entries.
    pub const fn limit(&self) -> usize {
        self.limit
    }

    /// The entry at `index`.
    pub fn get(&self, index: usize) -> Option<DxEntry> {
        let raw = self.raw.get(index)?;
        let hash = if index == 0 { 0 } else { raw.hash.get() };
        Some(DxEntry { hash, block: FileBlock(raw.block.get() & BLOCK_MASK) })
    }

    /// All entries in order.
    pub fn iter(&self) -> impl Iterator<Item = DxEntry> + use<'a> {
        let entries = *self;
        (0..entries.count()).filter_map(move |index| entries.get(index))
    }

    /// Index of the entry to follow for a name: the last one whose hash does not exceed the name's.
    pub fn find(&self, hash: NameHash) -> usize {
        self.raw[1..].partition_point(|entry| entry.hash.get() <= hash.major)
    }
}

impl fmt::Display for DxEntries<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "entries: {} of {}", self.count(), self.limit)?;
        self.iter().try_for_each(|entry| writeln!(f, "  {:#010x}: block {}", entry.hash, entry.block))
    }
}

/// Fields of the root, other than its entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DxRootInfo {
    /// The directory, from `.`.
    pub dir: InodeNumber,
    /// Its parent, from `..`.
    pub parent: InodeNumber,
    /// Whether `.` and `..` have a file type (`filetype`).
    pub filetype: bool,
    /// The hash function for names.
    pub hash_version: HashVersion,
    /// Levels of inner nodes between root and leaves: 0, 1, or 2 with `large_dir`.
    pub levels: u8,
}

/// The root of a tree, in the directory's block 0.
#[derive(Clone, Copy, Debug)]
pub struct DxRoot<'a> {
    /// Fields about the tree.
    pub info: DxRootInfo,
    /// Its entries.
    pub entries: DxEntries<'a>,
}

impl<'a> DxRoot<'a> {
    /// Parses block 0 of an indexed directory.
    ///
    /// # Errors
    /// As [`Self::open`], or entries out of order.
    pub fn parse(block: &'a [u8], context: &HtreeContext) -> Result<Self, Corrupt> {
        let root = Self::open(block, context)?;
        root.entries.check_order(context)?;
        Ok(root)
    }

    /// Like [`Self::parse`], but in constant time: does not check the order of the entries, which
    /// an earlier parse has.
    ///
    /// # Errors
    /// A field of the root that Linux does not accept, or a wrong limit or count.
    pub fn open(block: &'a [u8], context: &HtreeContext) -> Result<Self, Corrupt> {
        let place = context.place();
        let Ok((raw, _)) = RawDxRoot::ref_from_prefix(block) else {
            return Err(Corrupt::truncated(place, ROOT_ENTRIES, block.len()));
        };
        let bad = |field, value: u64, rule| Err(Corrupt::field(place, field, value, rule));
        let (dot, dotdot) = (&raw.dot, &raw.dotdot);
        if dot.rec_len.get() != 12 {
            return bad("dot.rec_len", dot.rec_len.get().into(), "12");
        }
        if dot.name_len != 1 || dot.name[0] != b'.' {
            return bad("dot.name_len", dot.name_len.into(), "1, of the name .");
        }
        if usize::from(dotdot.rec_len.get()) != block.len() - 12 {
            return bad("dotdot.rec_len", dotdot.rec_len.get().into(), "the rest of the block");
        }
        if dotdot.name_len != 2 || dotdot.name[..2] != *b".." {
            return bad("dotdot.name_len", dotdot.name_len.into(), "2, of the name ..");
        }
        if raw.reserved_zero.get() != 0 {
            return bad("reserved_zero", raw.reserved_zero.get().into(), "0");
        }
        let Some(hash_version) = HashVersion::from_number(raw.hash_version) else {
            return bad("hash_version", raw.hash_version.into(), "0, 1, 2 or 6");
        };
        if raw.info_length != 8 {
            return bad("info_length", raw.info_length.into(), "8");
        }
        if raw.unused_flags & 1 != 0 {
            return bad("unused_flags", raw.unused_flags.into(), "even");
        }
        let levels = raw.indirect_levels;
        if levels > 1 + u8::from(context.large_dir) {
            let rule = if context.large_dir { "at most 2" } else { "at most 1 without large_dir" };
            return bad("indirect_levels", levels.into(), rule);
        }
        let info = DxRootInfo {
            dir: InodeNumber(dot.inode.get()),
            parent: InodeNumber(dotdot.inode.get()),
            filetype: dot.file_type != 0,
            hash_version,
            levels,
        };
        Ok(Self { info, entries: DxEntries::open_at(block, ROOT_ENTRIES, context)? })
    }
}

impl fmt::Display for DxRoot<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let DxRootInfo { dir, parent, hash_version, levels, .. } = self.info;
        writeln!(f, "htree root: directory {dir}, parent {parent}, hash {hash_version}, levels {levels}")?;
        self.entries.fmt(f)
    }
}

/// An inner node of a tree.
#[derive(Clone, Copy, Debug)]
pub struct DxNode<'a> {
    /// Its entries.
    pub entries: DxEntries<'a>,
}

impl<'a> DxNode<'a> {
    /// Parses the block of an inner node.
    ///
    /// # Errors
    /// As [`Self::open`], or entries out of order.
    pub fn parse(block: &'a [u8], context: &HtreeContext) -> Result<Self, Corrupt> {
        let node = Self::open(block, context)?;
        node.entries.check_order(context)?;
        Ok(node)
    }

    /// Like [`Self::parse`], but in constant time: does not check the order of the entries, which
    /// an earlier parse has.
    ///
    /// # Errors
    /// A head that is not an unused entry, or a wrong limit or count.
    pub fn open(block: &'a [u8], context: &HtreeContext) -> Result<Self, Corrupt> {
        let place = context.place();
        let Some(fake) = block.first_chunk::<NODE_ENTRIES>() else {
            return Err(Corrupt::truncated(place, NODE_ENTRIES, block.len()));
        };
        let [i0, i1, i2, i3, r0, r1, ..] = *fake;
        let (inode, rec_len) = (u32::from_le_bytes([i0, i1, i2, i3]), u16::from_le_bytes([r0, r1]));
        if inode != 0 {
            return Err(Corrupt::field(place, "fake.inode", inode.into(), "0"));
        }
        if !spans(rec_len, block.len()) {
            return Err(Corrupt::field(place, "fake.rec_len", rec_len.into(), "the whole block"));
        }
        Ok(Self { entries: DxEntries::open_at(block, NODE_ENTRIES, context)? })
    }
}

impl fmt::Display for DxNode<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "htree node")?;
        self.entries.fmt(f)
    }
}

/// Whether `rec_len` spans a whole block; 65536 is stored as 0 or 65535.
fn spans(rec_len: u16, block_len: usize) -> bool {
    usize::from(rec_len) == block_len || (block_len == 65536 && matches!(rec_len, 0 | 65535))
}

/// Fills `block` with a root. The hash of the first entry is not stored. `seed` is the directory's,
/// on a volume with `metadata_csum`.
///
/// # Panics
/// If there are no entries, or more than [`HtreeContext::root_limit`].
pub fn write_dx_root(
    block: &mut [u8],
    info: &DxRootInfo,
    entries: impl ExactSizeIterator<Item = DxEntry>,
    seed: Option<ChecksumSeed>,
) {
    write_root_head(block, info);
    write_entries(block, ROOT_ENTRIES, entries, seed.is_some());
    if let Some(seed) = seed {
        write_dx_checksum(block, seed);
    }
}

/// Fills `block` with an inner node. The hash of the first entry is not stored. `seed` is the
/// directory's, on a volume with `metadata_csum`.
///
/// # Panics
/// If there are no entries, or more than [`HtreeContext::node_limit`].
pub fn write_dx_node(
    block: &mut [u8],
    entries: impl ExactSizeIterator<Item = DxEntry>,
    seed: Option<ChecksumSeed>,
) {
    write_node_head(block);
    write_entries(block, NODE_ENTRIES, entries, seed.is_some());
    if let Some(seed) = seed {
        write_dx_checksum(block, seed);
    }
}

fn write_root_head(block: &mut [u8], info: &DxRootInfo) {
    let file_type = if info.filetype { 2 } else { 0 };
    let dot = |inode: InodeNumber, len: usize, name_len, name: &[u8; 4]| RawDxDot {
        inode: inode.0.into(),
        rec_len: len.fit_u16().into(),
        name_len,
        file_type,
        name: *name,
    };
    let raw = RawDxRoot {
        dot: dot(info.dir, 12, 1, b".\0\0\0"),
        dotdot: dot(info.parent, block.len() - 12, 2, b"..\0\0"),
        hash_version: info.hash_version.number(),
        info_length: 8,
        indirect_levels: info.levels,
        ..Default::default()
    };
    block[..ROOT_ENTRIES].copy_from_slice(raw.as_bytes());
}

fn write_node_head(block: &mut [u8]) {
    let rec_len = encode_record_bytes(block.len());
    block[..NODE_ENTRIES].fill(0);
    block[4..6].copy_from_slice(&rec_len.to_le_bytes());
}

fn write_entries(
    block: &mut [u8],
    at: usize,
    entries: impl ExactSizeIterator<Item = DxEntry>,
    checksums: bool,
) {
    let tail = if checksums { TAIL_LEN } else { 0 };
    let (limit, count) = ((block.len() - at - tail) / ENTRY_LEN, entries.len());
    assert!((1..=limit).contains(&count), "{count} entries, room for {limit}");
    block[at..].fill(0);
    for (slot, entry) in block[at..].chunks_exact_mut(ENTRY_LEN).zip(entries) {
        slot[..4].copy_from_slice(&entry.hash.to_le_bytes());
        slot[4..].copy_from_slice(&entry.block.0.to_le_bytes());
    }
    let head = RawDxCountLimit { limit: limit.fit_u16().into(), count: count.fit_u16().into() };
    block[at..at + size_of_val(&head)].copy_from_slice(head.as_bytes());
}

/// Writes the checksum of a root or inner node on a volume with `metadata_csum`; `seed` is the
/// directory's. Does nothing if the block's limit or count do not fit its size.
pub fn write_dx_checksum(block: &mut [u8], seed: ChecksumSeed) {
    let at = entries_at(block);
    let Some(head) = block.get(at..).and_then(|rest| RawDxCountLimit::ref_from_prefix(rest).ok()) else {
        return;
    };
    let (limit, count) = (usize::from(head.0.limit.get()), usize::from(head.0.count.get()));
    let tail = at + limit * ENTRY_LEN;
    if count > limit || tail + TAIL_LEN > block.len() {
        return;
    }
    let checksum = checksum(block, tail..tail + TAIL_LEN, at + count * ENTRY_LEN, seed);
    block[tail + 4..tail + TAIL_LEN].copy_from_slice(&checksum.to_le_bytes());
}

/// Whether a directory block, on a volume with `metadata_csum`, is a root or inner node of the hash
/// tree.
///
/// A node starts with one unused entry that spans the block; a root has `.`, a `..` that spans the
/// rest, and a header. The block's tail is no indication: when Linux turns a leaf into a root, it
/// leaves the pseudo-entry of the leaf's checksum in the reserved field of the tree's tail
/// (`dt_reserved`).
pub fn is_dx_block(block: &[u8]) -> bool {
    let Some(head) = block.first_chunk::<ROOT_ENTRIES>() else { return false };
    let record_at = |at: usize| u16::from_le_bytes([head[at], head[at + 1]]);
    if spans(record_at(4), block.len()) {
        return head[..4] == [0; 4] && head[6] == 0;
    }
    let is_dot = record_at(4) == 12 && head[6] == 1 && head[8] == b'.';
    let is_dotdot = usize::from(record_at(16)) == block.len() - 12 && head[18] == 2 && head[20..22] == *b"..";
    is_dot && is_dotdot && head[24..28] == [0; 4] && head[29] == 8
}

/// Offset of a block's entries, judged by the block's contents.
fn entries_at(block: &[u8]) -> usize {
    match block.get(4..6) {
        Some(len) if spans(u16::from_le_bytes([len[0], len[1]]), block.len()) => NODE_ENTRIES,
        _ => ROOT_ENTRIES,
    }
}

/// Covers everything up to the last entry in use, then the tail with its checksum as 0.
fn checksum(block: &[u8], tail: Range<usize>, used: usize, seed: ChecksumSeed) -> u32 {
    seed.over(&block[..used]).over(&block[tail.start..tail.start + 4]).over(&[0; 4]).0
}

/// Checks the checksum of a root or inner node on a volume with `metadata_csum`; `seed` is the
/// directory's.
///
/// # Errors
/// Another checksum, or a wrong limit or count.
pub fn verify_dx_checksum(block: &[u8], context: &HtreeContext, seed: ChecksumSeed) -> Result<(), Corrupt> {
    let Sealed { used, tail, stored } = sealed(block, context)?;
    let computed = checksum(block, tail, used, seed);
    if stored == computed { Ok(()) } else { Err(Corrupt::checksum(context.place(), stored, computed)) }
}

/// The seed that makes the checksum of a root or inner node right. It tells which directory the
/// node belongs to.
///
/// # Errors
/// A wrong limit or count.
pub fn dx_checksum_seed(block: &[u8], context: &HtreeContext) -> Result<ChecksumSeed, Corrupt> {
    let Sealed { used, tail, stored } = sealed(block, context)?;
    let ChecksumSeed(stored) = ChecksumSeed::of(stored, &[0; 4]);
    let ChecksumSeed(stored) = ChecksumSeed::of(stored, &block[tail.start..tail.start + 4]);
    Ok(ChecksumSeed::of(stored, &block[..used]))
}

/// What a checksum covers.
struct Sealed {
    used: usize,
    tail: Range<usize>,
    stored: u32,
}

fn sealed(block: &[u8], context: &HtreeContext) -> Result<Sealed, Corrupt> {
    let at = entries_at(block);
    let entries = DxEntries::open_at(block, at, &HtreeContext { checksums: true, ..*context })?;
    let tail = at + entries.limit * ENTRY_LEN;
    let Some(raw) = block.get(tail..).and_then(|rest| RawDxTail::ref_from_prefix(rest).ok()) else {
        return Err(Corrupt::truncated(context.place(), tail + TAIL_LEN, block.len()));
    };
    let stored = raw.0.dt_checksum.get();
    Ok(Sealed { used: at + entries.count() * ENTRY_LEN, tail: tail..tail + TAIL_LEN, stored })
}

#[cfg(test)]
mod tests;
