//! Recognises inodes in data of unknown kind.

use super::sweep::read_at;
use extant_block::Mended;
use extant_format::{
    BlockSize, DIRENT_HEADER_BYTES, FileKind, Inode, InodeFlags, InodeNumber, RawInode, Superblock,
};

/// `eh_magic` of extent trees.
const EXTENT_MAGIC: u16 = 0xf30a;

/// The contents of a slot in an inode table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Slot {
    /// Zeros: the inode was never used.
    Blank,
    /// An inode, or the remains of a deleted one.
    Right,
    Wrong,
}

/// Whether bytes look like an inode in use.
pub(super) fn looks_used(bytes: &[u8]) -> bool {
    let Some(raw) = RawInode::from_prefix(bytes) else { return false };
    FileKind::from_mode(raw.i_mode.get()).is_some()
        && (1..=65_000).contains(&raw.i_links_count.get())
        && raw.i_dtime.get() == 0
        && has_map(&raw)
}

fn has_map(raw: &RawInode) -> bool {
    let flags = InodeFlags::from_bits_retain(raw.i_flags.get());
    if !flags.contains(InodeFlags::EXTENTS) {
        return true;
    }
    let field = |at: usize| u16::from_le_bytes([raw.i_block[at], raw.i_block[at + 1]]);
    field(0) == EXTENT_MAGIC && field(2) <= field(4) && field(4) == 4 && field(6) <= 5
}

/// Judges the bytes in the slot of inode `number`.
pub(super) fn judge(bytes: &[u8], sb: &Superblock, number: InodeNumber) -> Slot {
    let Some(bytes) = bytes.get(..usize::from(sb.inode_size())) else { return Slot::Wrong };
    if bytes.iter().all(|&b| b == 0) {
        return Slot::Blank;
    }
    let parsed = Inode::parse(bytes, sb, number);
    let right = match &parsed {
        Err(_) => false,
        Ok(_) if sb.has_metadata_csum() => true,
        // Inodes without links may be reserved ones, which have no mode.
        Ok(inode) if inode.links() > 0 => looks_used(bytes),
        Ok(inode) => inode.raw.i_dtime.get() != 0 || inode.mode() == 0 || inode.size() == 0,
    };
    if right { Slot::Right } else { Slot::Wrong }
}

/// The first block of a directory, if the root of its map contains it.
pub(super) fn first_block(bytes: &[u8]) -> Option<u64> {
    let raw = RawInode::from_prefix(bytes)?;
    let word = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|n| raw.i_block[at + n]));
    let flags = InodeFlags::from_bits_retain(raw.i_flags.get());
    if FileKind::from_mode(raw.i_mode.get()) != Some(FileKind::Directory)
        || flags.contains(InodeFlags::INLINE_DATA)
    {
        return None;
    }
    let at = match flags.contains(InodeFlags::EXTENTS) {
        false => word(0).into(),
        // In a leaf, the first extent begins with the logical block, and ends with the volume
        // block.
        true if raw.i_block[6] == 0 && raw.i_block[2] > 0 && word(12) == 0 => {
            u64::from(word(16) >> 16) << 32 | u64::from(word(20))
        }
        true => return None,
    };
    (at > 0).then_some(at)
}

/// If bytes are the first block of a directory, which begins with `.`, returns the numbers of the
/// directory and of its parent.
pub(super) fn directory(bytes: &[u8]) -> Option<(InodeNumber, InodeNumber)> {
    let word = |at: usize| Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?));
    let second = DIRENT_HEADER_BYTES + 4;
    let dot = bytes.get(4..7)? == [12, 0, 1] && bytes.get(8..12)? == *b".\0\0\0";
    let dotdot = bytes.get(second + 6)? == &2 && bytes.get(second + 8..second + 10)? == b"..";
    let (own, parent) = (word(0)?, word(second)?);
    (dot && dotdot && own > 0 && parent > 0).then_some((InodeNumber(own), InodeNumber(parent)))
}

/// The inode number of the directory whose first block is at `first`, as stored in that block.
pub(super) async fn number_by_directory(
    device: &Mended,
    block: BlockSize,
    first: u64,
) -> Option<InodeNumber> {
    let start = read_at(device, first.checked_mul(block.bytes().into())?, 24).await?;
    directory(&start).map(|(own, _)| own)
}

/// The inode number that an inode's checksum implies.
pub(super) fn number_by_checksum(bytes: &[u8], sb: &Superblock) -> Option<InodeNumber> {
    let seed = sb.checksum_seed()?;
    let bytes = bytes.get(..usize::from(sb.inode_size()))?;
    let number = Inode::checksum_origin(bytes)? ^ seed.0;
    (1..=sb.inodes_count()).contains(&number).then_some(InodeNumber(number))
}

/// Splits the bytes of an inode table into whole slots.
pub(crate) fn slots(bytes: &[u8], inode_bytes: usize) -> impl Iterator<Item = (u64, &[u8])> {
    (0_u64..).step_by(inode_bytes).zip(bytes.chunks_exact(inode_bytes))
}
