//! Blocks of the orphan file, which lists inodes that a crash would leave without a name or not
//! fully truncated.
//!
//! Kernel documentation: *Orphan file* (Documentation/filesystems/ext4/orphan.rst). Each block is
//! an unordered array of inode numbers, 0 for free slots, followed by an 8-byte tail.

use crate::{ChecksumSeed, Corrupt, FileBlock, InodeNumber, Place, Problem, VolumeBlock};
use std::fmt;
use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// `EXT4_ORPHAN_BLOCK_MAGIC`.
pub const ORPHAN_MAGIC: u32 = 0x0b10_ca04;

/// `struct ext4_orphan_block_tail`.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct RawOrphanTail {
    /// 0x0: 0x0b10ca04.
    pub ob_magic: U32,
    /// 0x4: with `metadata_csum`, checksum of the block's number on the volume and of the array.
    pub ob_checksum: U32,
}

const TAIL_LEN: usize = size_of::<RawOrphanTail>();

/// Number of slots in a block of this length.
pub const fn orphans_per_block(block_len: usize) -> usize {
    block_len.saturating_sub(TAIL_LEN) / 4
}

/// One block of the orphan file.
#[derive(Clone, Copy, Debug)]
pub struct OrphanBlock<'a> {
    slots: &'a [U32],
    array: &'a [u8],
    checksum: u32,
    place: Place,
}

impl<'a> OrphanBlock<'a> {
    /// Parses a block; `index` is its number within the orphan file.
    ///
    /// # Errors
    /// Too few bytes, or another magic number.
    pub fn parse(block: &'a [u8], index: FileBlock) -> Result<Self, Corrupt> {
        let place = Place::OrphanFile(index);
        let truncated = Corrupt::truncated(place, TAIL_LEN, block.len());
        let (array, tail) = RawOrphanTail::ref_from_suffix(block).map_err(|_| truncated)?;
        let found = tail.ob_magic.get();
        if found != ORPHAN_MAGIC {
            return Err(Corrupt { place, problem: Problem::Magic { found, expected: ORPHAN_MAGIC } });
        }
        let slots = orphans_per_block(block.len());
        let (slots, _) = <[U32]>::ref_from_prefix_with_elems(array, slots).map_err(|_| truncated)?;
        Ok(Self { slots, array: slots.as_bytes(), checksum: tail.ob_checksum.get(), place })
    }

    /// Checks the checksum on a volume with `metadata_csum`. `number` is the block's number on the
    /// volume, `seed` the orphan file's.
    ///
    /// # Errors
    /// Another checksum.
    pub fn verify_checksum(&self, number: VolumeBlock, seed: ChecksumSeed) -> Result<(), Corrupt> {
        let computed = checksum(self.array, number, seed);
        if self.checksum == computed {
            Ok(())
        } else {
            Err(Corrupt::checksum(self.place, self.checksum, computed))
        }
    }

    /// The inodes, each with its slot.
    pub fn orphans(&self) -> impl Iterator<Item = (usize, InodeNumber)> + use<'a> {
        let slots = self.slots.iter().enumerate();
        slots.filter(|(_, inode)| inode.get() != 0).map(|(slot, inode)| (slot, InodeNumber(inode.get())))
    }

    /// The first free slot.
    pub fn free_slot(&self) -> Option<usize> {
        self.slots.iter().position(|inode| inode.get() == 0)
    }
}

fn checksum(array: &[u8], number: VolumeBlock, seed: ChecksumSeed) -> u32 {
    seed.over(&number.0.to_le_bytes()).over(array).0
}

/// Stores `inode` (0 frees the slot) in a slot of an orphan file block. The tail is invalid until
/// [`finish_orphan_block`].
///
/// # Panics
/// If there is no such slot.
pub fn set_orphan(block: &mut [u8], slot: usize, inode: InodeNumber) {
    assert!(slot < orphans_per_block(block.len()), "slot {slot} of an orphan block");
    block[slot * 4..slot * 4 + 4].copy_from_slice(&inode.0.to_le_bytes());
}

/// Writes the tail of an orphan file block; an empty block is all zeros before the tail.
///
/// `number` is the block's number on the volume; `seed` is the orphan file's, if the volume has
/// `metadata_csum`.
///
/// # Panics
/// If the block is shorter than its tail.
pub fn finish_orphan_block(block: &mut [u8], number: VolumeBlock, seed: Option<ChecksumSeed>) {
    let array = orphans_per_block(block.len()) * 4;
    let tail = RawOrphanTail {
        ob_magic: ORPHAN_MAGIC.into(),
        ob_checksum: seed.map_or(0, |seed| checksum(&block[..array], number, seed)).into(),
    };
    let at = block.len() - TAIL_LEN;
    block[at..].copy_from_slice(tail.as_bytes());
}

impl fmt::Display for OrphanBlock<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "orphan block: {} slots, checksum {:#010x}", self.slots.len(), self.checksum)?;
        self.orphans().try_for_each(|(slot, inode)| writeln!(f, "  slot {slot}: inode {inode}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BLOCK: &[u8; 1024] = include_bytes!("../tests/data/orphan_file_kernel.bin");
    const NUMBER: VolumeBlock = VolumeBlock(177);
    const INDEX: FileBlock = FileBlock(13);

    fn seed() -> ChecksumSeed {
        let uuid = 0x01234567_89ab_cdef_0123_456789abcdef_u128.to_be_bytes();
        ChecksumSeed::from_uuid(&uuid).for_inode(InodeNumber(12), 0)
    }

    #[test]
    fn a_block_that_linux_wrote_is_read_and_written() {
        let block = OrphanBlock::parse(BLOCK, INDEX).unwrap();
        block.verify_checksum(NUMBER, seed()).unwrap();
        assert!(block.orphans().eq([(0, InodeNumber(13)), (1, InodeNumber(14)), (2, InodeNumber(15))]));
        assert_eq!(block.free_slot(), Some(3));
        assert_eq!(
            block.to_string(),
            "orphan block: 254 slots, checksum 0x5b90c109\n\
             \x20 slot 0: inode 13\n  slot 1: inode 14\n  slot 2: inode 15\n"
        );

        let mut ours = [0; 1024];
        (0..).zip([13, 14, 15]).for_each(|(slot, inode)| set_orphan(&mut ours, slot, InodeNumber(inode)));
        finish_orphan_block(&mut ours, NUMBER, Some(seed()));
        assert_eq!(ours, *BLOCK);
    }

    #[test]
    fn one_wrong_field_is_named() {
        let place = Place::OrphanFile(INDEX);
        let mut block = *BLOCK;
        block[0] = 99;
        let err = OrphanBlock::parse(&block, INDEX).unwrap().verify_checksum(NUMBER, seed()).unwrap_err();
        assert!(err.place == place && matches!(err.problem, Problem::Checksum { .. }));
        assert!(OrphanBlock::parse(BLOCK, INDEX).unwrap().verify_checksum(VolumeBlock(178), seed()).is_err());
        block[1024 - 8] = 0;
        let problem = Problem::Magic { found: 0x0b10_ca00, expected: ORPHAN_MAGIC };
        assert_eq!(OrphanBlock::parse(&block, INDEX).unwrap_err(), Corrupt { place, problem });
        assert_eq!(OrphanBlock::parse(&[0; 7], INDEX).unwrap_err(), Corrupt::truncated(place, 8, 7));
    }

    proptest! {
        #[test]
        fn random_bytes_are_parsed_or_refused(mut bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let _ = OrphanBlock::parse(&bytes, INDEX).map(|block| block.to_string());
            if bytes.len() >= TAIL_LEN {
                finish_orphan_block(&mut bytes, NUMBER, None);
                let block = OrphanBlock::parse(&bytes, INDEX).unwrap();
                assert!(block.orphans().count() <= orphans_per_block(bytes.len()));
            }
        }
    }
}
