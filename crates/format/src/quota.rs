//! Quota files (`quota` and `project`): format 2 revision 1, with usage and limits by id in a tree
//! of 1 KiB blocks.
//!
//! They are stored in the hidden inodes of the kernel's *Special inodes*; the layout is that of
//! fs/quota/quotaio_v2.h and fs/quota/quota_tree.h.
//!
//! ```text
//! block 0: header, info
//! tree:    4 levels of 256 block numbers
//! leaves:  header (16 bytes), 14 entries
//! ```
//!
//! The path to an id is given by its four bytes, most significant first.

use crate::{Corrupt, FileBlock, InodeNumber, Place, UintExt};
use std::fmt;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Block size of a quota file, regardless of the volume's.
pub const QUOTA_BLOCK_BYTES: usize = 1024;
/// Levels of the tree above the leaves.
pub const QUOTA_TREE_DEPTH: usize = 4;
/// The root block of the tree.
pub const QUOTA_TREE_ROOT: FileBlock = FileBlock(1);
/// Entries per leaf.
pub const QUOTA_LEAF_ENTRIES: usize = (QUOTA_BLOCK_BYTES - LEAF_HEADER_LEN) / ENTRY_LEN;

const LEAF_HEADER_LEN: usize = size_of::<RawQuotaLeafHeader>();
const ENTRY_LEN: usize = size_of::<RawQuotaEntry>();
const VERSION_R1: u32 = 1;

/// `v2_disk_dqheader` and `v2_disk_dqinfo`.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct RawQuotaHeader {
    /// 0x0: see [`QuotaKind`].
    pub dqh_magic: U32,
    /// 0x4: 1, revision 1.
    pub dqh_version: U32,
    /// 0x8: seconds that space usage may exceed the soft limit.
    pub dqi_bgrace: U32,
    /// 0xc: the same for inodes.
    pub dqi_igrace: U32,
    /// 0x10.
    pub dqi_flags: U32,
    /// 0x14: number of blocks in the file.
    pub dqi_blocks: U32,
    /// 0x18: head of the list of free blocks, or 0.
    pub dqi_free_blk: U32,
    /// 0x1c: head of the list of leaves with a free entry, or 0.
    pub dqi_free_entry: U32,
}

/// `qt_disk_dqdbheader`.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct RawQuotaLeafHeader {
    /// 0x0: next in the list of leaves with a free entry.
    pub dqdh_next_free: U32,
    /// 0x4: previous in that list.
    pub dqdh_prev_free: U32,
    /// 0x8: number of entries in use.
    pub dqdh_entries: U16,
    /// 0xa.
    pub dqdh_pad1: U16,
    /// 0xc.
    pub dqdh_pad2: U32,
}

/// `v2r1_disk_dqblk`; all zeros if free.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct RawQuotaEntry {
    /// 0x0.
    pub dqb_id: U32,
    /// 0x4.
    pub dqb_pad: U32,
    /// 0x8.
    pub dqb_ihardlimit: U64,
    /// 0x10.
    pub dqb_isoftlimit: U64,
    /// 0x18.
    pub dqb_curinodes: U64,
    /// 0x20: KiB.
    pub dqb_bhardlimit: U64,
    /// 0x28: KiB.
    pub dqb_bsoftlimit: U64,
    /// 0x30: bytes.
    pub dqb_curspace: U64,
    /// 0x38: seconds since 1970.
    pub dqb_btime: U64,
    /// 0x40: seconds since 1970.
    pub dqb_itime: U64,
}

/// Kind of ids in a quota file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum QuotaKind {
    /// Users.
    User,
    /// Groups.
    Group,
    /// Projects.
    Project,
}

impl QuotaKind {
    const ALL: [(Self, u32); 3] =
        [(Self::User, 0xd9c0_1f11), (Self::Group, 0xd9c0_1927), (Self::Project, 0xd9c0_3f14)];

    /// `dqh_magic`.
    pub fn magic(self) -> u32 {
        Self::ALL[self as usize].1
    }
}

impl fmt::Display for QuotaKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::User => "user",
            Self::Group => "group",
            Self::Project => "project",
        })
    }
}

/// Block 0 of a quota file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuotaHeader {
    /// Kind of its ids.
    pub kind: QuotaKind,
    /// Seconds that space usage may exceed the soft limit.
    pub space_grace_s: u32,
    /// Seconds that inode usage may exceed the soft limit.
    pub inode_grace_s: u32,
    /// Number of blocks in the file.
    pub blocks: u32,
    /// Head of the list of free blocks, linked like leaves.
    pub free_block: Option<FileBlock>,
    /// Head of the list of leaves with a free entry.
    pub free_leaf: Option<FileBlock>,
}

impl QuotaHeader {
    /// Parses block 0 of the quota file `inode`.
    ///
    /// # Errors
    /// Too few bytes, an unknown kind or version, or a list that begins outside the file.
    pub fn parse(block: &[u8], inode: InodeNumber) -> Result<Self, Corrupt> {
        let place = Place::Quota(inode, FileBlock(0));
        let Ok((raw, _)) = RawQuotaHeader::ref_from_prefix(block) else {
            return Err(Corrupt::truncated(place, size_of::<RawQuotaHeader>(), block.len()));
        };
        let magic = raw.dqh_magic.get();
        let Some(&(kind, _)) = QuotaKind::ALL.iter().find(|(_, of_kind)| *of_kind == magic) else {
            return Err(Corrupt::field(
                place,
                "dqh_magic",
                magic.into(),
                "that of user, group or project quota",
            ));
        };
        if raw.dqh_version.get() != VERSION_R1 {
            return Err(Corrupt::field(place, "dqh_version", raw.dqh_version.get().into(), "1"));
        }
        let blocks = raw.dqi_blocks.get();
        if blocks < 2 {
            return Err(Corrupt::field(place, "dqi_blocks", blocks.into(), "at least 2"));
        }
        let free = |field, number: u32| optional_block(place, field, number, blocks);
        Ok(Self {
            kind,
            space_grace_s: raw.dqi_bgrace.get(),
            inode_grace_s: raw.dqi_igrace.get(),
            blocks,
            free_block: free("dqi_free_blk", raw.dqi_free_blk.get())?,
            free_leaf: free("dqi_free_entry", raw.dqi_free_entry.get())?,
        })
    }

    /// Fills block 0.
    ///
    /// # Panics
    /// If the block is shorter than the header, 32 bytes.
    pub fn write_to(&self, block: &mut [u8]) {
        let raw = RawQuotaHeader {
            dqh_magic: self.kind.magic().into(),
            dqh_version: VERSION_R1.into(),
            dqi_bgrace: self.space_grace_s.into(),
            dqi_igrace: self.inode_grace_s.into(),
            dqi_flags: 0.into(),
            dqi_blocks: self.blocks.into(),
            dqi_free_blk: self.free_block.unwrap_or_default().0.into(),
            dqi_free_entry: self.free_leaf.unwrap_or_default().0.into(),
        };
        let (start, rest) = block.split_at_mut(size_of_val(&raw));
        start.copy_from_slice(raw.as_bytes());
        rest.fill(0);
    }
}

fn optional_block(
    place: Place,
    field: &'static str,
    number: u32,
    blocks: u32,
) -> Result<Option<FileBlock>, Corrupt> {
    match number {
        0 => Ok(None),
        number if number < blocks => Ok(Some(FileBlock(number))),
        number => Err(Corrupt::field(place, field, number.into(), "a block of the quota file")),
    }
}

/// A tree block: for each value of one byte of an id, the block of the next level.
#[derive(Clone, Copy, Debug)]
pub struct QuotaTreeNode<'a> {
    children: &'a [U32; 256],
}

impl<'a> QuotaTreeNode<'a> {
    /// Parses block `index` of the quota file `inode`, which has `blocks` blocks.
    ///
    /// # Errors
    /// Too few bytes, or a child outside the file.
    pub fn parse(
        block: &'a [u8],
        inode: InodeNumber,
        index: FileBlock,
        blocks: u32,
    ) -> Result<Self, Corrupt> {
        let place = Place::Quota(inode, index);
        let Ok((children, _)) = <[U32; 256]>::ref_from_prefix(block) else {
            return Err(Corrupt::truncated(place, QUOTA_BLOCK_BYTES, block.len()));
        };
        for child in children {
            optional_block(place, "child", child.get(), blocks)?;
        }
        Ok(Self { children })
    }

    /// Reads a node without checking its children, which may lie outside the file.
    /// `None` if there are too few bytes.
    pub fn salvage(block: &'a [u8]) -> Option<Self> {
        let (children, _) = <[U32; 256]>::ref_from_prefix(block).ok()?;
        Some(Self { children })
    }

    /// The child block for `id`, at `level` 0 (the root) to 3.
    pub fn child(&self, id: u32, level: usize) -> Option<FileBlock> {
        let byte = *id.to_be_bytes().get(level)?;
        Some(FileBlock(self.children[usize::from(byte)].get())).filter(|block| block.0 != 0)
    }

    /// All child blocks. Ids share leaves, so a block may occur more than once.
    ///
    /// A walk must visit each block only once; otherwise a damaged tree can keep it busy as long as
    /// a tree of 2^32 ids.
    pub fn children(&self) -> impl Iterator<Item = FileBlock> + use<'a> {
        self.slots().map(|(_, child)| child)
    }

    /// The same, each with its byte of an id.
    pub fn slots(&self) -> impl Iterator<Item = (u8, FileBlock)> + use<'a> {
        let slots = (0..=255).zip(self.children).map(|(byte, child)| (byte, FileBlock(child.get())));
        slots.filter(|(_, child)| child.0 != 0)
    }
}

/// Usage and limits of one id.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QuotaEntry {
    /// User, group or project.
    pub id: u32,
    /// Space in use, in bytes.
    pub space_bytes: u64,
    /// Inodes in use.
    pub inodes: u64,
    /// Hard limit on space, in KiB; 0 for none.
    pub space_hard_kib: u64,
    /// Soft limit on space, in KiB; 0 for none.
    pub space_soft_kib: u64,
    /// Hard limit on inodes; 0 for none.
    pub inodes_hard: u64,
    /// Soft limit on inodes; 0 for none.
    pub inodes_soft: u64,
    /// End of the grace period for space, seconds since 1970; 0 if it has not begun.
    pub space_until: u64,
    /// End of the grace period for inodes.
    pub inodes_until: u64,
}

impl QuotaEntry {
    fn from_raw(raw: &RawQuotaEntry) -> Self {
        Self {
            id: raw.dqb_id.get(),
            space_bytes: raw.dqb_curspace.get(),
            inodes: raw.dqb_curinodes.get(),
            space_hard_kib: raw.dqb_bhardlimit.get(),
            space_soft_kib: raw.dqb_bsoftlimit.get(),
            inodes_hard: raw.dqb_ihardlimit.get(),
            inodes_soft: raw.dqb_isoftlimit.get(),
            space_until: raw.dqb_btime.get(),
            inodes_until: raw.dqb_itime.get(),
        }
    }

    fn to_raw(self) -> RawQuotaEntry {
        let mut raw = RawQuotaEntry {
            dqb_id: self.id.into(),
            dqb_pad: 0.into(),
            dqb_ihardlimit: self.inodes_hard.into(),
            dqb_isoftlimit: self.inodes_soft.into(),
            dqb_curinodes: self.inodes.into(),
            dqb_bhardlimit: self.space_hard_kib.into(),
            dqb_bsoftlimit: self.space_soft_kib.into(),
            dqb_curspace: self.space_bytes.into(),
            dqb_btime: self.space_until.into(),
            dqb_itime: self.inodes_until.into(),
        };
        if is_free(&raw) {
            // Linux's mark for id 0 without usage, which would otherwise look like a free entry.
            raw.dqb_itime = 1.into();
        }
        raw
    }
}

fn is_free(raw: &RawQuotaEntry) -> bool {
    raw.as_bytes().iter().all(|&byte| byte == 0)
}

/// A leaf: up to 14 entries, unordered.
#[derive(Clone, Copy, Debug)]
pub struct QuotaLeaf<'a> {
    /// Next in the list of leaves with a free entry, or in the list of free blocks.
    pub next_free: Option<FileBlock>,
    /// Previous in that list.
    pub previous_free: Option<FileBlock>,
    slots: &'a [RawQuotaEntry; QUOTA_LEAF_ENTRIES],
}

impl<'a> QuotaLeaf<'a> {
    /// Parses block `index` of the quota file `inode`, which has `blocks` blocks.
    ///
    /// # Errors
    /// Too few bytes, a wrong count of entries, or a neighbour outside the file.
    pub fn parse(
        block: &'a [u8],
        inode: InodeNumber,
        index: FileBlock,
        blocks: u32,
    ) -> Result<Self, Corrupt> {
        let place = Place::Quota(inode, index);
        let truncated = Corrupt::truncated(place, QUOTA_BLOCK_BYTES, block.len());
        let (raw, rest) = RawQuotaLeafHeader::ref_from_prefix(block).map_err(|_| truncated)?;
        let (slots, _) =
            <[RawQuotaEntry; QUOTA_LEAF_ENTRIES]>::ref_from_prefix(rest).map_err(|_| truncated)?;
        let (count, used) = (raw.dqdh_entries.get(), slots.iter().filter(|raw| !is_free(raw)).count());
        if usize::from(count) != used {
            return Err(Corrupt::field(place, "dqdh_entries", count.into(), "the number of entries in use"));
        }
        let free = |field, number: U32| optional_block(place, field, number.get(), blocks);
        Ok(Self {
            next_free: free("dqdh_next_free", raw.dqdh_next_free)?,
            previous_free: free("dqdh_prev_free", raw.dqdh_prev_free)?,
            slots,
        })
    }

    /// A block as it is: its count of entries may be wrong, and its neighbours are not looked at.
    /// `None` if there are too few bytes.
    pub fn salvage(block: &'a [u8]) -> Option<Self> {
        let (slots, _) =
            <[RawQuotaEntry; QUOTA_LEAF_ENTRIES]>::ref_from_prefix(block.get(LEAF_HEADER_LEN..)?).ok()?;
        Some(Self { next_free: None, previous_free: None, slots })
    }

    /// The entries in use.
    pub fn entries(&self) -> impl Iterator<Item = QuotaEntry> + use<'a> {
        self.slots.iter().filter(|raw| !is_free(raw)).map(QuotaEntry::from_raw)
    }

    /// The entry of `id`.
    pub fn get(&self, id: u32) -> Option<QuotaEntry> {
        self.entries().find(|entry| entry.id == id)
    }
}

/// The block after block `index` in the list of free blocks of the quota file `inode`.
///
/// Nothing else in a free block may be used: Linux leaves the last entry of a former leaf in it
/// (`free_dqentry`).
///
/// # Errors
/// Too few bytes, or a block outside the file.
pub fn next_free_quota_block(
    block: &[u8],
    inode: InodeNumber,
    index: FileBlock,
    blocks: u32,
) -> Result<Option<FileBlock>, Corrupt> {
    let place = Place::Quota(inode, index);
    let truncated = Corrupt::truncated(place, QUOTA_BLOCK_BYTES, block.len());
    let (raw, _) = RawQuotaLeafHeader::ref_from_prefix(block).map_err(|_| truncated)?;
    optional_block(place, "dqdh_next_free", raw.dqdh_next_free.get(), blocks)
}

/// Fills a tree block with children by id byte.
///
/// # Panics
/// If the block is shorter than 1024 bytes.
pub fn write_quota_tree_node(block: &mut [u8], children: impl IntoIterator<Item = (u8, FileBlock)>) {
    block[..QUOTA_BLOCK_BYTES].fill(0);
    for (byte, child) in children {
        let at = usize::from(byte) * 4;
        block[at..at + 4].copy_from_slice(&child.0.to_le_bytes());
    }
}

/// Fills a leaf; `links` are the next and previous leaf with a free entry.
///
/// # Panics
/// If there are more than [`QUOTA_LEAF_ENTRIES`], or the block is shorter than 1024 bytes.
pub fn write_quota_leaf(block: &mut [u8], links: [Option<FileBlock>; 2], entries: &[QuotaEntry]) {
    assert!(entries.len() <= QUOTA_LEAF_ENTRIES, "{} entries of a leaf", entries.len());
    block[..QUOTA_BLOCK_BYTES].fill(0);
    let [next, previous] = links.map(|link| U32::new(link.unwrap_or_default().0));
    let header = RawQuotaLeafHeader {
        dqdh_next_free: next,
        dqdh_prev_free: previous,
        dqdh_entries: entries.len().fit_u16().into(),
        ..Default::default()
    };
    block[..LEAF_HEADER_LEN].copy_from_slice(header.as_bytes());
    for (slot, entry) in block[LEAF_HEADER_LEN..].chunks_exact_mut(ENTRY_LEN).zip(entries) {
        slot.copy_from_slice(entry.to_raw().as_bytes());
    }
}

impl fmt::Display for QuotaHeader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, space_grace_s, inode_grace_s, blocks, .. } = self;
        write!(
            f,
            "{kind} quota: {blocks} blocks, grace {space_grace_s} s for space, {inode_grace_s} s for inodes"
        )
    }
}

impl fmt::Display for QuotaEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: {} bytes (soft {} KiB, hard {} KiB), {} inodes (soft {}, hard {})",
            self.id,
            self.space_bytes,
            self.space_soft_kib,
            self.space_hard_kib,
            self.inodes,
            self.inodes_soft,
            self.inodes_hard
        )
    }
}

impl fmt::Display for QuotaLeaf<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.entries().try_for_each(|entry| writeln!(f, "{entry}"))
    }
}

#[cfg(test)]
mod tests;
