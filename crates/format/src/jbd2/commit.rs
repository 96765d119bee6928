//! Commit blocks, which complete a transaction.

use super::header::{HEADER_LEN, JournalBlockHeader, JournalBlockKind, RawJournalHeader};
use super::{JournalChecksums, JournalLayout};
use crate::{Corrupt, Place};
use std::fmt;
use std::mem::offset_of;
use zerocopy::big_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// `struct commit_header`.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct RawCommitBlock {
    /// 0x0.
    pub h_header: RawJournalHeader,
    /// 0xc: 1, CRC-32, with V1; otherwise 0.
    pub h_chksum_type: u8,
    /// 0xd: 4 with V1; otherwise 0.
    pub h_chksum_size: u8,
    /// 0xe.
    pub h_padding: [u8; 2],
    /// 0x10: only the first word is used: checksum of the transaction with V1, of this block with
    /// V2 and V3.
    pub h_chksum: [U32; 8],
    /// 0x30: commit time, seconds since 1970.
    pub h_commit_sec: U64,
    /// 0x38.
    pub h_commit_nsec: U32,
}

const CHECKSUM: usize = offset_of!(RawCommitBlock, h_chksum);
const TYPE_CRC32: u8 = 1;

/// The commit record of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JournalCommit {
    /// The transaction.
    pub sequence: u32,
    /// Commit time, seconds since 1970.
    pub seconds: u64,
    /// Nanoseconds of the commit time.
    pub nanoseconds: u32,
    /// With [`JournalChecksums::Commit`], the [`transaction_crc`](super::transaction_crc); `None`
    /// if it was not written.
    pub transaction_crc: Option<u32>,
}

impl JournalCommit {
    /// Parses a commit block, block `number` of the journal. [`Self::verify_block`] and
    /// [`Self::verify_transaction`] check the checksums.
    ///
    /// # Errors
    /// A block of another kind, too few bytes, or an unknown kind of transaction checksum.
    pub fn parse(block: &[u8], layout: &JournalLayout, number: u32) -> Result<Self, Corrupt> {
        let place = Place::JournalBlock(number);
        let sequence = JournalBlockHeader::expect(block, JournalBlockKind::Commit, place)?;
        let Ok((raw, _)) = RawCommitBlock::ref_from_prefix(block) else {
            return Err(Corrupt::truncated(place, size_of::<RawCommitBlock>(), block.len()));
        };
        let transaction_crc =
            match (layout.checksums, raw.h_chksum_type, raw.h_chksum_size, raw.h_chksum[0].get()) {
                (JournalChecksums::Commit, TYPE_CRC32, 4, crc) => Some(crc),
                (JournalChecksums::Commit, 0, 0, 0) => None,
                (JournalChecksums::Commit, kind, ..) => {
                    return Err(Corrupt::field(
                        place,
                        "h_chksum_type",
                        kind.into(),
                        "1, CRC-32, with h_chksum_size 4",
                    ));
                }
                _ => None,
            };
        Ok(Self {
            sequence,
            seconds: raw.h_commit_sec.get(),
            nanoseconds: raw.h_commit_nsec.get(),
            transaction_crc,
        })
    }

    /// Checks the block's own checksum, if the journal has them.
    ///
    /// # Errors
    /// Another checksum.
    pub fn verify_block(block: &[u8], layout: &JournalLayout, number: u32) -> Result<(), Corrupt> {
        let place = Place::JournalBlock(number);
        if !layout.checksums.in_every_block() {
            return Ok(());
        }
        let Some((stored, computed)) = checksum(block, layout) else {
            return Err(Corrupt::truncated(place, size_of::<RawCommitBlock>(), block.len()));
        };
        if stored == computed { Ok(()) } else { Err(Corrupt::checksum(place, stored, computed)) }
    }

    /// Under [`JournalChecksums::Commit`], checks the computed checksum of a transaction against
    /// its commit block, block `number` of the journal.
    ///
    /// # Errors
    /// Another checksum; a commit block without one always passes.
    pub fn verify_transaction(&self, computed: u32, number: u32) -> Result<(), Corrupt> {
        match self.transaction_crc {
            Some(stored) if stored != computed => {
                Err(Corrupt::checksum(Place::JournalBlock(number), stored, computed))
            }
            _ => Ok(()),
        }
    }

    /// Fills a commit block. [`Self::transaction_crc`] is written only under
    /// [`JournalChecksums::Commit`].
    pub fn write_to(&self, block: &mut [u8], layout: &JournalLayout) {
        let mut raw = RawCommitBlock {
            h_header: JournalBlockHeader::raw(JournalBlockKind::Commit, self.sequence),
            h_commit_sec: self.seconds.into(),
            h_commit_nsec: self.nanoseconds.into(),
            ..Default::default()
        };
        if let (JournalChecksums::Commit, Some(crc)) = (layout.checksums, self.transaction_crc) {
            (raw.h_chksum_type, raw.h_chksum_size) = (TYPE_CRC32, 4);
            raw.h_chksum[0] = crc.into();
        }
        let (start, rest) = block.split_at_mut(size_of::<RawCommitBlock>());
        start.copy_from_slice(raw.as_bytes());
        rest.fill(0);
        if layout.checksums.in_every_block()
            && let Some((_, checksum)) = checksum(block, layout)
        {
            block[CHECKSUM..CHECKSUM + 4].copy_from_slice(&checksum.to_be_bytes());
        }
    }
}

/// Stored and computed checksum, the latter with the block's first checksum word as 0.
fn checksum(block: &[u8], layout: &JournalLayout) -> Option<(u32, u32)> {
    let (before, rest) = block.split_at_checked(CHECKSUM)?;
    let (stored, rest) = rest.split_first_chunk::<4>()?;
    Some((u32::from_be_bytes(*stored), layout.seed.over(before).over(&[0; 4]).over(rest).0))
}

const _: () = assert!(HEADER_LEN == offset_of!(RawCommitBlock, h_chksum_type));

impl fmt::Display for JournalCommit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "commit block, transaction {}, at {}.{:09}",
            self.sequence, self.seconds, self.nanoseconds
        )?;
        match self.transaction_crc {
            Some(crc) => write!(f, ", checksum {crc:#010x}"),
            None => Ok(()),
        }
    }
}
