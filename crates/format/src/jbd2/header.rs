//! The header of every block of the log that is not data.

use super::JOURNAL_MAGIC;
use crate::{Corrupt, Place, Problem};
use std::fmt;
use zerocopy::big_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// `journal_header_t`.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct RawJournalHeader {
    /// 0x0: 0xc03b3998.
    pub h_magic: U32,
    /// 0x4: see [`JournalBlockKind`].
    pub h_blocktype: U32,
    /// 0x8: the transaction.
    pub h_sequence: U32,
}

/// Size of the header.
pub(super) const HEADER_LEN: usize = size_of::<RawJournalHeader>();

/// `h_blocktype`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum JournalBlockKind {
    /// Gives the home locations of the data blocks that follow.
    Descriptor,
    /// Completes a transaction.
    Commit,
    /// The superblock, without features.
    SuperblockV1,
    /// The superblock.
    SuperblockV2,
    /// Lists blocks whose older copies must not be replayed.
    Revoke,
}

impl JournalBlockKind {
    /// From the on-disk number.
    pub const fn from_number(number: u32) -> Option<Self> {
        Some(match number {
            1 => Self::Descriptor,
            2 => Self::Commit,
            3 => Self::SuperblockV1,
            4 => Self::SuperblockV2,
            5 => Self::Revoke,
            _ => return None,
        })
    }

    /// The on-disk number.
    pub const fn number(self) -> u32 {
        match self {
            Self::Descriptor => 1,
            Self::Commit => 2,
            Self::SuperblockV1 => 3,
            Self::SuperblockV2 => 4,
            Self::Revoke => 5,
        }
    }
}

/// Kind of a log block, and its transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JournalBlockHeader {
    /// `None` for a number unknown to jbd2.
    pub kind: Option<JournalBlockKind>,
    /// The transaction, `h_sequence`.
    pub sequence: u32,
}

impl JournalBlockHeader {
    /// Parses the start of a block. `None` without the magic number: the log ends before it.
    pub fn read(block: &[u8]) -> Option<Self> {
        let (raw, _) = RawJournalHeader::ref_from_prefix(block).ok()?;
        (raw.h_magic.get() == JOURNAL_MAGIC).then(|| Self {
            kind: JournalBlockKind::from_number(raw.h_blocktype.get()),
            sequence: raw.h_sequence.get(),
        })
    }

    /// Parses the start of a block that must be of this kind, and returns its sequence.
    pub(super) fn expect(block: &[u8], kind: JournalBlockKind, place: Place) -> Result<u32, Corrupt> {
        let Ok((raw, _)) = RawJournalHeader::ref_from_prefix(block) else {
            return Err(Corrupt::truncated(place, HEADER_LEN, block.len()));
        };
        let (found, block_type) = (raw.h_magic.get(), raw.h_blocktype.get());
        if found != JOURNAL_MAGIC {
            return Err(Corrupt { place, problem: Problem::Magic { found, expected: JOURNAL_MAGIC } });
        }
        if block_type != kind.number() {
            let rule = match kind {
                JournalBlockKind::Descriptor => "1, a descriptor block",
                JournalBlockKind::Commit => "2, a commit block",
                JournalBlockKind::Revoke => "5, a revoke block",
                JournalBlockKind::SuperblockV1 | JournalBlockKind::SuperblockV2 => "3 or 4, a superblock",
            };
            return Err(Corrupt::field(place, "h_blocktype", block_type.into(), rule));
        }
        Ok(raw.h_sequence.get())
    }

    /// The header of a block of `kind`.
    pub(super) fn raw(kind: JournalBlockKind, sequence: u32) -> RawJournalHeader {
        RawJournalHeader {
            h_magic: JOURNAL_MAGIC.into(),
            h_blocktype: kind.number().into(),
            h_sequence: sequence.into(),
        }
    }
}

impl fmt::Display for JournalBlockHeader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.kind {
            Some(JournalBlockKind::Descriptor) => "descriptor block",
            Some(JournalBlockKind::Commit) => "commit block",
            Some(JournalBlockKind::SuperblockV1 | JournalBlockKind::SuperblockV2) => "superblock",
            Some(JournalBlockKind::Revoke) => "revoke block",
            None => "block of unknown type",
        })?;
        write!(f, ", transaction {}", self.sequence)
    }
}
