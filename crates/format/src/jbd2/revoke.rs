//! Revoke blocks: list blocks whose copies in this and earlier transactions must not be replayed.

use super::JournalLayout;
use super::header::{HEADER_LEN, JournalBlockHeader, JournalBlockKind};
use crate::{Corrupt, Place, UintExt, VolumeBlock};
use std::fmt;
use zerocopy::IntoBytes;

/// `jbd2_journal_revoke_header_t`: the common header, and `r_count`, the bytes in use including
/// this header.
const REVOKE_HEADER_LEN: usize = HEADER_LEN + 4;

/// Records of a revoke block.
#[derive(Clone, Debug)]
pub struct JournalRevokes<'a> {
    /// The transaction.
    pub sequence: u32,
    records: &'a [u8],
    record_bytes: usize,
}

impl<'a> JournalRevokes<'a> {
    /// Parses a revoke block, block `number` of the journal. [`JournalLayout::verify_tail`] checks
    /// its checksum.
    ///
    /// # Errors
    /// A block of another kind, too few bytes, or an `r_count` that the block has no room for.
    pub fn parse(block: &'a [u8], layout: &JournalLayout, number: u32) -> Result<Self, Corrupt> {
        let place = Place::JournalBlock(number);
        let sequence = JournalBlockHeader::expect(block, JournalBlockKind::Revoke, place)?;
        let Some(count) = block.get(HEADER_LEN..).and_then(|rest| rest.first_chunk::<4>()) else {
            return Err(Corrupt::truncated(place, REVOKE_HEADER_LEN, block.len()));
        };
        let count = u32::from_be_bytes(*count);
        let records = block
            .len()
            .checked_sub(layout.tail_bytes())
            .filter(|&end| count.to_usize() <= end)
            .and_then(|_| block.get(REVOKE_HEADER_LEN..count.to_usize()));
        let Some(records) = records else {
            return Err(Corrupt::field(
                place,
                "r_count",
                count.into(),
                "from 16 to the block's size without tail",
            ));
        };
        Ok(Self { sequence, records, record_bytes: layout.revoke_bytes() })
    }
}

impl Iterator for JournalRevokes<'_> {
    type Item = VolumeBlock;

    fn next(&mut self) -> Option<VolumeBlock> {
        let (record, rest) = self.records.split_at_checked(self.record_bytes)?;
        self.records = rest;
        Some(VolumeBlock(record.iter().fold(0, |number, &byte| number << 8 | u64::from(byte))))
    }
}

impl fmt::Display for JournalRevokes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "revoke block, transaction {}", self.sequence)?;
        self.clone().try_for_each(|block| writeln!(f, "  block {block}"))
    }
}

/// Fills a revoke block.
#[derive(Debug)]
pub struct RevokeWriter<'b> {
    block: &'b mut [u8],
    layout: JournalLayout,
    at: usize,
}

impl<'b> RevokeWriter<'b> {
    /// Starts a revoke block of transaction `sequence` in `block`.
    pub fn new(block: &'b mut [u8], layout: &JournalLayout, sequence: u32) -> Self {
        block.fill(0);
        let header = JournalBlockHeader::raw(JournalBlockKind::Revoke, sequence);
        block[..HEADER_LEN].copy_from_slice(header.as_bytes());
        Self { block, layout: *layout, at: REVOKE_HEADER_LEN }
    }

    /// Adds a block, if there is room.
    #[must_use]
    pub fn push(&mut self, revoked: VolumeBlock) -> bool {
        let len = self.layout.revoke_bytes();
        if self.at + len > self.block.len() - self.layout.tail_bytes() {
            return false;
        }
        assert!(self.layout.wide || revoked.0 >> 32 == 0, "block {revoked} in a journal of 32-bit numbers");
        self.block[self.at..self.at + len].copy_from_slice(&revoked.0.to_be_bytes()[8 - len..]);
        self.at += len;
        true
    }

    /// Writes the count and the checksum.
    pub fn finish(self) {
        self.block[HEADER_LEN..REVOKE_HEADER_LEN].copy_from_slice(&self.at.fit_u32().to_be_bytes());
        self.layout.write_tail(self.block);
    }
}
