//! Layout and checksums of a journal's blocks, as determined by its features.

use super::JOURNAL_MAGIC;
use crate::{ChecksumSeed, Corrupt, Place, UintExt};

/// Which blocks carry checksums.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum JournalChecksums {
    /// None.
    None,
    /// The commit block has a CRC-32 of the transaction's descriptors and data
    /// (`journal_checksum`).
    Commit,
    /// Every block has its own checksum; for data blocks, 16 bits of it are in the tag
    /// (`journal_checksum_v2`).
    V2,
    /// Like V2, with 32 bits (`journal_checksum_v3`).
    V3,
}

impl JournalChecksums {
    /// Whether every block has its own checksum.
    pub const fn in_every_block(self) -> bool {
        matches!(self, Self::V2 | Self::V3)
    }
}

/// Layout of the journal's blocks, as determined by its features.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JournalLayout {
    /// Whether block numbers have 64 bits (`journal_64bit`).
    pub wide: bool,
    /// Which blocks carry checksums.
    pub checksums: JournalChecksums,
    /// CRC-32C of the journal's UUID.
    pub seed: ChecksumSeed,
}

impl JournalLayout {
    /// Bytes at the end of descriptor and revoke blocks (`jbd2_journal_block_tail`).
    pub const fn tail_bytes(&self) -> usize {
        if self.checksums.in_every_block() { 4 } else { 0 }
    }

    /// Size of a tag without UUID. With V2, Linux counts two bytes more than it uses.
    pub const fn tag_bytes(&self) -> usize {
        let narrow = match self.checksums {
            JournalChecksums::V3 => return 16,
            JournalChecksums::V2 => 10,
            JournalChecksums::None | JournalChecksums::Commit => 8,
        };
        if self.wide { narrow + 4 } else { narrow }
    }

    /// Size of a revoke record.
    pub const fn revoke_bytes(&self) -> usize {
        if self.wide { 8 } else { 4 }
    }

    /// Stored and computed checksum of a block with a tail; the tail's 4 bytes count as 0.
    fn tail_checksum(&self, block: &[u8]) -> Option<(u32, u32)> {
        let (contents, tail) = block.split_last_chunk::<4>()?;
        Some((u32::from_be_bytes(*tail), self.seed.over(contents).over(&[0; 4]).0))
    }

    /// Checks the tail of a descriptor or revoke block, if the journal has tails.
    ///
    /// # Errors
    /// Another checksum.
    pub fn verify_tail(&self, block: &[u8], number: u32) -> Result<(), Corrupt> {
        let place = Place::JournalBlock(number);
        if !self.checksums.in_every_block() {
            return Ok(());
        }
        match self.tail_checksum(block) {
            None => Err(Corrupt::truncated(place, 4, block.len())),
            Some((stored, computed)) if stored == computed => Ok(()),
            Some((stored, computed)) => Err(Corrupt::checksum(place, stored, computed)),
        }
    }

    /// Writes the tail of a descriptor or revoke block, if the journal has tails.
    pub(super) fn write_tail(&self, block: &mut [u8]) {
        if self.checksums.in_every_block()
            && let Some((_, checksum)) = self.tail_checksum(block)
            && let Some(tail) = block.last_chunk_mut::<4>()
        {
            *tail = checksum.to_be_bytes();
        }
    }

    /// The checksum for a data block's tag, computed over the block as stored in the journal; 0
    /// without block checksums.
    pub fn data_checksum(&self, sequence: u32, data: &[u8]) -> u32 {
        let whole = || self.seed.over(&sequence.to_be_bytes()).over(data).0;
        match self.checksums {
            JournalChecksums::None | JournalChecksums::Commit => 0,
            JournalChecksums::V2 => whole() & 0xffff,
            JournalChecksums::V3 => whole(),
        }
    }
}

const CRC32_TABLE: [u32; 256] = {
    let mut table = [0; 256];
    let mut i = 0;
    while i < 256 {
        let (mut crc, mut bit) = ((i as u32) << 24, 0);
        while bit < 8 {
            crc = if crc & 0x8000_0000 != 0 { (crc << 1) ^ 0x04c1_1db7 } else { crc << 1 };
            bit += 1;
        }
        table[i] = crc;
        i += 1;
    }
    table
};

/// CRC-32 (polynomial 0x04c11db7, most significant bit first) over `bytes`, continuing from `seed`,
/// not inverted.
pub fn crc32_be(seed: u32, bytes: &[u8]) -> u32 {
    bytes.iter().fold(seed, |crc, &byte| (crc << 8) ^ CRC32_TABLE[usize::from((crc >> 24).low_u8() ^ byte)])
}

/// Checksum of a transaction under [`JournalChecksums::Commit`]: over its descriptor and data
/// blocks, in the order and form they have in the journal. Revoke blocks are not included.
pub fn transaction_crc<'a>(blocks: impl IntoIterator<Item = &'a [u8]>) -> u32 {
    blocks.into_iter().fold(!0, crc32_be)
}

/// Whether a data block starts with the journal's magic number, which the log must not contain
/// there.
pub(super) fn starts_with_magic(data: &[u8]) -> bool {
    data.starts_with(&JOURNAL_MAGIC.to_be_bytes())
}

#[cfg(test)]
mod tests {
    /// The check value of CRC-32/MPEG-2 in the CRC catalogue.
    #[test]
    fn catalogue_check_value() {
        assert_eq!(super::crc32_be(!0, b"123456789"), 0x0376_e6e7);
    }
}
