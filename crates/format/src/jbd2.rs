//! The journal (jbd2): its superblock, the blocks of its log, and the fast-commit area.
//!
//! Kernel documentation: *Journal (jbd2)* (Documentation/filesystems/ext4/journal.rst). Everything
//! except the fast-commit area is big-endian.
//!
//! ```text
//! block 0: superblock │ log: transaction, transaction, … (a ring) │ fast-commit area
//! transaction: ( revoke block │ descriptor, its data blocks )* , commit
//! ```

mod commit;
mod descriptor;
mod fast_commit;
mod header;
mod journal_checksum;
mod journal_superblock;
mod revoke;

pub use commit::{JournalCommit, RawCommitBlock};
pub use descriptor::{
    DescriptorWriter, JournalTag, JournalTags, RawTag, RawTag3, TagFlags, needs_escape, unescape,
};
pub use fast_commit::{FastCommitItem, FastCommitItems, FastCommitName, FastCommitRecord, RawFastCommitTlv};
pub use header::{JournalBlockHeader, JournalBlockKind, RawJournalHeader};
pub use journal_checksum::{JournalChecksums, JournalLayout, crc32_be, transaction_crc};
pub use journal_superblock::{JournalCompat, JournalIncompat, JournalSuperblock, RawJournalSuperblock};
pub use revoke::{JournalRevokes, RevokeWriter};

/// `JBD2_MAGIC_NUMBER`: starts every block of the log that is not data.
pub const JOURNAL_MAGIC: u32 = 0xc03b_3998;
/// Size of the journal's superblock in bytes.
pub const JOURNAL_SUPERBLOCK_BYTES: usize = 1024;
/// Smallest log accepted by Linux, in blocks (`JBD2_MIN_JOURNAL_BLOCKS`).
pub const JOURNAL_MIN_BLOCKS: u32 = 1024;
/// Size of the fast-commit area if the superblock says 0, in blocks
/// (`JBD2_DEFAULT_FAST_COMMIT_BLOCKS`).
pub const JOURNAL_DEFAULT_FAST_COMMIT_BLOCKS: u32 = 256;

#[cfg(test)]
mod tests;
