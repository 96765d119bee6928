//! The block map of ext2 and ext3 (kernel document: *Direct/Indirect Block Addressing*).

use crate::{BlockSize, Corrupt, InodeNumber, Place, Superblock, UintExt, VolumeBlock};

/// Number of pointers in the inode that refer to data directly.
pub const DIRECT_POINTERS: u32 = 12;

/// Path to a file block in the map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndirectPath {
    /// Index of the pointer in the inode, 0 to 14.
    pub root: usize,
    /// Number of indirect blocks on the path: 0 to 3.
    pub levels: usize,
    /// Index of the pointer in each of them, top first; only the first `levels` are used.
    pub indices: [u32; 3],
}

/// Number of pointers in an indirect block.
pub const fn pointers_per_block(block: BlockSize) -> u32 {
    block.bytes() / 4
}

/// The path to a file block; `None` past what three levels can map.
pub fn indirect_path(block: u64, size: BlockSize) -> Option<IndirectPath> {
    if block < DIRECT_POINTERS.into() {
        return Some(IndirectPath { root: block.to_usize(), levels: 0, indices: [0; 3] });
    }
    let bits = size.log2() - 2;
    let mask = (1u64 << bits) - 1;
    let mut rest = block - u64::from(DIRECT_POINTERS);
    for levels in 1..=3u32 {
        let reach = 1u64 << (bits * levels);
        if rest < reach {
            let mut indices = [0; 3];
            for (n, index) in indices.iter_mut().take(levels.to_usize()).enumerate() {
                *index = (rest >> (bits * (levels - 1 - n.fit_u32())) & mask).fit_u32();
            }
            return Some(IndirectPath { root: 11 + levels.to_usize(), levels: levels.to_usize(), indices });
        }
        rest -= reach;
    }
    None
}

/// Number of blocks that a map can address, with blocks of this `size`.
pub fn indirect_capacity(size: BlockSize) -> u64 {
    let n = u64::from(pointers_per_block(size));
    u64::from(DIRECT_POINTERS) + n + n * n + n * n * n
}

/// The pointers of an indirect block. Each is checked to be 0 (a hole) or a block of the volume.
pub fn parse_indirect<'a>(
    bytes: &'a [u8],
    sb: &'a Superblock,
    inode: InodeNumber,
    at: VolumeBlock,
) -> impl Iterator<Item = Result<VolumeBlock, Corrupt>> + 'a {
    bytes.chunks_exact(4).map(move |chunk| {
        let block = VolumeBlock(u32::from_le_bytes([chunk[0], chunk[1], chunk[2], chunk[3]]).into());
        check_pointer(block, sb, Place::IndirectBlock(inode, at))
    })
}

/// Accepts 0 and blocks of the volume.
///
/// # Errors
/// Any other block.
pub fn check_pointer(block: VolumeBlock, sb: &Superblock, place: Place) -> Result<VolumeBlock, Corrupt> {
    if block.0 == 0 || sb.is_valid_block(block) {
        Ok(block)
    } else {
        Err(Corrupt::field(place, "i_block", block.0, "0 or a block of the volume"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_at_every_seam() {
        let size = BlockSize::from_bytes(1024).unwrap();
        let n = 256u64;
        let path = |block| indirect_path(block, size).unwrap();
        assert_eq!(path(11), IndirectPath { root: 11, levels: 0, indices: [0; 3] });
        assert_eq!(path(12), IndirectPath { root: 12, levels: 1, indices: [0; 3] });
        assert_eq!(path(12 + n - 1), IndirectPath { root: 12, levels: 1, indices: [255, 0, 0] });
        assert_eq!(path(12 + n), IndirectPath { root: 13, levels: 2, indices: [0; 3] });
        assert_eq!(path(12 + n + n * n), IndirectPath { root: 14, levels: 3, indices: [0; 3] });
        let last = indirect_capacity(size) - 1;
        assert_eq!(path(last), IndirectPath { root: 14, levels: 3, indices: [255; 3] });
        assert_eq!(indirect_path(last + 1, size), None);
    }
}
