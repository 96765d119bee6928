//! The journal's superblock.

use super::header::{JournalBlockKind, RawJournalHeader};
use super::{
    JOURNAL_DEFAULT_FAST_COMMIT_BLOCKS, JOURNAL_MAGIC, JOURNAL_MIN_BLOCKS, JOURNAL_SUPERBLOCK_BYTES,
    JournalChecksums, JournalLayout,
};
use crate::{BlockSize, ChecksumSeed, Corrupt, Place, Problem, UintExt};
use bitflags::bitflags;
use std::fmt;
use std::mem::offset_of;
use std::ops::Range;
use zerocopy::big_endian::U32;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

/// `journal_superblock_t`.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct RawJournalSuperblock {
    /// 0x0: block type 3 or 4.
    pub s_header: RawJournalHeader,
    /// 0xc: block size in bytes.
    pub s_blocksize: U32,
    /// 0x10: blocks of the whole journal.
    pub s_maxlen: U32,
    /// 0x14: first block of the log.
    pub s_first: U32,
    /// 0x18: first transaction expected in the log.
    pub s_sequence: U32,
    /// 0x1c: block where the log starts, 0 if it is empty.
    pub s_start: U32,
    /// 0x20: error that aborted the journal, as negative errno.
    pub s_errno: U32,
    /// 0x24: this and the following fields exist only in version 2.
    pub s_feature_compat: U32,
    /// 0x28.
    pub s_feature_incompat: U32,
    /// 0x2c.
    pub s_feature_ro_compat: U32,
    /// 0x30: UUID of the journal.
    pub s_uuid: [u8; 16],
    /// 0x40: number of volumes that share the journal.
    pub s_nr_users: U32,
    /// 0x44: unused.
    pub s_dynsuper: U32,
    /// 0x48: unused.
    pub s_max_transaction: U32,
    /// 0x4c: unused.
    pub s_max_trans_data: U32,
    /// 0x50: 1 for CRC-32, 4 for CRC-32C.
    pub s_checksum_type: u8,
    /// 0x51.
    pub s_padding2: [u8; 3],
    /// 0x54: blocks of the fast-commit area.
    pub s_num_fc_blks: U32,
    /// 0x58: where to continue an empty log, or 0.
    pub s_head: U32,
    /// 0x5c.
    pub s_padding: [U32; 40],
    /// 0xfc: CRC-32C of the superblock.
    pub s_checksum: U32,
    /// 0x100: UUIDs of the volumes that share the journal.
    pub s_users: [[u8; 16]; 48],
}

const CHECKSUM: usize = offset_of!(RawJournalSuperblock, s_checksum);
const CRC32C: u8 = 4;

bitflags! {
    /// `s_feature_compat`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct JournalCompat: u32 {
        /// Commit blocks carry the checksum of their transaction.
        const CHECKSUM = 0x1;
        const _ = !0;
    }
}

bitflags! {
    /// `s_feature_incompat`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct JournalIncompat: u32 {
        /// There may be revoke blocks. Linux writes them before it sets this on disk.
        const REVOKE = 0x1;
        /// Block numbers have 64 bits.
        const WIDE = 0x2;
        /// A commit block may reach the disk before its transaction; its checksum reveals that.
        const ASYNC_COMMIT = 0x4;
        /// Checksums in every block, version 2.
        const CHECKSUM_V2 = 0x8;
        /// Checksums in every block, version 3.
        const CHECKSUM_V3 = 0x10;
        /// There is a fast-commit area.
        const FAST_COMMIT = 0x20;
        const _ = !0;
    }
}

impl JournalIncompat {
    /// All features named here.
    pub const KNOWN: Self = Self::from_bits_retain(0x3f);
}

/// A consistent journal superblock.
#[derive(Clone, Debug)]
pub struct JournalSuperblock {
    raw: RawJournalSuperblock,
    block_size: BlockSize,
}

impl JournalSuperblock {
    /// The superblock of a journal of `blocks` blocks with an empty log. `users` is 1 for an
    /// internal journal, 0 for a device not yet used by any volume.
    ///
    /// # Panics
    /// If the journal is too small for its log and fast-commit area.
    pub fn new(
        block_size: BlockSize,
        blocks: u32,
        fast_commit_blocks: u32,
        incompat: JournalIncompat,
        uuid: [u8; 16],
        users: u32,
    ) -> Self {
        let mut raw = RawJournalSuperblock::new_zeroed();
        raw.s_header.h_magic = JOURNAL_MAGIC.into();
        raw.s_header.h_blocktype = JournalBlockKind::SuperblockV2.number().into();
        raw.s_blocksize = block_size.bytes().into();
        raw.s_maxlen = blocks.into();
        raw.s_first = 1.into();
        raw.s_sequence = 1.into();
        raw.s_feature_incompat = incompat.bits().into();
        raw.s_uuid = uuid;
        raw.s_nr_users = users.into();
        raw.s_num_fc_blks = fast_commit_blocks.into();
        let mut this = Self { raw, block_size };
        assert!(this.check().is_ok(), "a journal of {blocks} blocks");
        if this.layout().checksums.in_every_block() {
            this.raw.s_checksum_type = CRC32C;
        }
        this
    }

    /// The superblock of this journal, with an empty log, resized to `blocks` blocks.
    ///
    /// # Errors
    /// Fewer blocks than the log and fast-commit area need.
    pub fn resized(&self, blocks: u32) -> Result<Self, Corrupt> {
        let mut this = self.clone();
        this.raw.s_maxlen = blocks.into();
        this.raw.s_first = 1.into();
        (this.raw.s_start, this.raw.s_head) = (0.into(), 0.into());
        this.check()?;
        Ok(this)
    }

    /// Parses the first 1024 bytes of the journal's first block. [`Self::verify_checksum`] checks
    /// its checksum.
    ///
    /// # Errors
    /// Another magic number or kind of block, or fields that contradict each other.
    pub fn parse(bytes: &[u8]) -> Result<Self, Corrupt> {
        let place = Place::JournalSuperblock;
        let Ok((raw, _)) = RawJournalSuperblock::read_from_prefix(bytes) else {
            return Err(Corrupt::truncated(place, JOURNAL_SUPERBLOCK_BYTES, bytes.len()));
        };
        let found = raw.s_header.h_magic.get();
        if found != JOURNAL_MAGIC {
            return Err(Corrupt { place, problem: Problem::Magic { found, expected: JOURNAL_MAGIC } });
        }
        let kind = raw.s_header.h_blocktype.get();
        if !matches!(
            JournalBlockKind::from_number(kind),
            Some(JournalBlockKind::SuperblockV1 | JournalBlockKind::SuperblockV2)
        ) {
            return Err(Corrupt::field(place, "h_blocktype", kind.into(), "3 or 4, a superblock"));
        }
        let size = raw.s_blocksize.get();
        let Some(block_size) = BlockSize::from_bytes(size) else {
            return Err(Corrupt::field(
                place,
                "s_blocksize",
                size.into(),
                "a power of two from 1024 to 65536",
            ));
        };
        let this = Self { raw, block_size };
        this.check()?;
        Ok(this)
    }

    fn check(&self) -> Result<(), Corrupt> {
        let bad = |field, value: u32, rule| {
            Err(Corrupt::field(Place::JournalSuperblock, field, value.into(), rule))
        };
        let (incompat, blocks) = (self.incompat(), self.raw.s_maxlen.get());
        let versions = [JournalIncompat::CHECKSUM_V2, JournalIncompat::CHECKSUM_V3];
        if incompat.contains(versions[0] | versions[1]) {
            return bad("s_feature_incompat", incompat.bits(), "without one of checksums V2 and V3");
        }
        let every_block = incompat.intersects(versions[0] | versions[1]);
        if every_block && self.compat().contains(JournalCompat::CHECKSUM) {
            return bad(
                "s_feature_compat",
                self.compat().bits(),
                "without checksums V1, for there are V2 or V3",
            );
        }
        if blocks < JOURNAL_MIN_BLOCKS {
            return bad("s_maxlen", blocks, "at least 1024");
        }
        let fast =
            if incompat.contains(JournalIncompat::FAST_COMMIT) { self.fast_commit_area_blocks() } else { 0 };
        if blocks - JOURNAL_MIN_BLOCKS < fast {
            return bad("s_num_fc_blks", fast, "small enough to leave the log 1024 blocks");
        }
        let log_end = blocks - fast;
        let (first, start) = (self.raw.s_first.get(), self.raw.s_start.get());
        if first == 0 || first >= log_end {
            return bad("s_first", first, "a block of the log, behind the superblock");
        }
        if start != 0 && !(first..log_end).contains(&start) {
            return bad("s_start", start, "a block of the log, or 0");
        }
        Ok(())
    }

    /// Whether this is a version 1 superblock (block type 3), which has neither features nor
    /// checksums.
    pub fn is_v1(&self) -> bool {
        self.raw.s_header.h_blocktype.get() == JournalBlockKind::SuperblockV1.number()
    }

    /// Checks the checksum, if the journal's blocks have them.
    ///
    /// # Errors
    /// Another checksum, or an unknown kind of checksum.
    pub fn verify_checksum(&self) -> Result<(), Corrupt> {
        if !self.layout().checksums.in_every_block() {
            return Ok(());
        }
        let place = Place::JournalSuperblock;
        if self.raw.s_checksum_type != CRC32C {
            return Err(Corrupt::field(
                place,
                "s_checksum_type",
                self.raw.s_checksum_type.into(),
                "4, CRC-32C",
            ));
        }
        let (stored, computed) = (self.raw.s_checksum.get(), self.checksum());
        if stored == computed { Ok(()) } else { Err(Corrupt::checksum(place, stored, computed)) }
    }

    fn checksum(&self) -> u32 {
        let bytes = self.raw.as_bytes();
        ChecksumSeed(!0).over(&bytes[..CHECKSUM]).over(&[0; 4]).over(&bytes[CHECKSUM + 4..]).0
    }

    /// Writes the superblock, with its checksum, to the first 1024 bytes of `block`.
    pub fn write_to(&self, block: &mut [u8]) {
        let mut raw = self.raw;
        if self.layout().checksums.in_every_block() {
            raw.s_checksum = self.checksum().into();
        }
        block[..JOURNAL_SUPERBLOCK_BYTES].copy_from_slice(raw.as_bytes());
    }

    /// The on-disk layout.
    pub fn raw(&self) -> &RawJournalSuperblock {
        &self.raw
    }

    /// Size of the journal's blocks.
    pub fn block_size(&self) -> BlockSize {
        self.block_size
    }

    /// Blocks of the whole journal, `s_maxlen`.
    pub fn blocks(&self) -> u32 {
        self.raw.s_maxlen.get()
    }

    /// The log's ring of blocks: after the last one comes the first.
    pub fn log(&self) -> Range<u32> {
        let fast = if self.has_fast_commit() { self.fast_commit_area_blocks() } else { 0 };
        self.raw.s_first.get()..self.blocks() - fast
    }

    /// The blocks used by fast commits; empty without them. Linux leaves the area's first block
    /// unused.
    pub fn fast_commits(&self) -> Range<u32> {
        let start = self.log().end + u32::from(self.has_fast_commit());
        start.min(self.blocks())..self.blocks()
    }

    fn has_fast_commit(&self) -> bool {
        self.incompat().contains(JournalIncompat::FAST_COMMIT)
    }

    fn fast_commit_area_blocks(&self) -> u32 {
        match self.raw.s_num_fc_blks.get() {
            0 => JOURNAL_DEFAULT_FAST_COMMIT_BLOCKS,
            blocks => blocks,
        }
    }

    /// First transaction expected in the log, or the next one to write if it is empty.
    pub fn sequence(&self) -> u32 {
        self.raw.s_sequence.get()
    }

    /// Block where the log starts; `None` if it is empty.
    pub fn start(&self) -> Option<u32> {
        Some(self.raw.s_start.get()).filter(|&start| start != 0)
    }

    /// The errno of the error that aborted the journal; 0 for none.
    pub fn errno(&self) -> i32 {
        self.raw.s_errno.get().cast_signed().saturating_neg()
    }

    /// Features irrelevant to readers; none in version 1.
    pub fn compat(&self) -> JournalCompat {
        let bits = if self.is_v1() { 0 } else { self.raw.s_feature_compat.get() };
        JournalCompat::from_bits_retain(bits)
    }

    /// Features that every reader must support; none in version 1.
    pub fn incompat(&self) -> JournalIncompat {
        let bits = if self.is_v1() { 0 } else { self.raw.s_feature_incompat.get() };
        JournalIncompat::from_bits_retain(bits)
    }

    /// Features that a writer must support; none are defined.
    pub fn ro_compat(&self) -> u32 {
        if self.is_v1() { 0 } else { self.raw.s_feature_ro_compat.get() }
    }

    /// UUID of the journal.
    pub fn uuid(&self) -> [u8; 16] {
        self.raw.s_uuid
    }

    /// UUIDs of the volumes that use the journal; zeros for the volume that contains it. Empty in
    /// version 1.
    pub fn users(&self) -> &[[u8; 16]] {
        let users = if self.is_v1() { 0 } else { self.raw.s_nr_users.get() };
        let count = users.min(self.raw.s_users.len().fit_u32());
        &self.raw.s_users[..count.to_usize()]
    }

    /// Layout of the log's blocks.
    pub fn layout(&self) -> JournalLayout {
        let incompat = self.incompat();
        let checksums = if incompat.contains(JournalIncompat::CHECKSUM_V3) {
            JournalChecksums::V3
        } else if incompat.contains(JournalIncompat::CHECKSUM_V2) {
            JournalChecksums::V2
        } else if self.compat().contains(JournalCompat::CHECKSUM) {
            JournalChecksums::Commit
        } else {
            JournalChecksums::None
        };
        JournalLayout {
            wide: incompat.contains(JournalIncompat::WIDE),
            checksums,
            seed: ChecksumSeed::from_uuid(&self.raw.s_uuid),
        }
    }

    /// Sets the start of the log and its first transaction; `None` for an empty log whose next
    /// transaction is `sequence`.
    ///
    /// # Panics
    /// If `start` is not a block of the log.
    pub fn set_position(&mut self, start: Option<u32>, sequence: u32) {
        assert!(start.is_none_or(|start| self.log().contains(&start)), "the log starts in the log");
        self.raw.s_start = start.unwrap_or(0).into();
        self.raw.s_sequence = sequence.into();
    }

    /// Sets where to continue an empty log (kernel: `s_head`); `None` leaves it to the next writer.
    ///
    /// # Panics
    /// If `head` is not a block of the log.
    pub fn set_head(&mut self, head: Option<u32>) {
        assert!(head.is_none_or(|head| self.log().contains(&head)), "the log goes on in the log");
        self.raw.s_head = head.unwrap_or(0).into();
    }

    /// Sets features irrelevant to readers.
    ///
    /// # Panics
    /// If they contradict the others, or the superblock is of version 1.
    pub fn set_compat(&mut self, compat: JournalCompat) {
        assert!(!self.is_v1(), "version 1 has no features");
        self.raw.s_feature_compat = compat.bits().into();
        assert!(self.check().is_ok(), "features {compat}");
    }

    /// Sets the errno reported to later users of the journal; 0 for none.
    pub fn set_errno(&mut self, errno: i32) {
        self.raw.s_errno = errno.saturating_neg().cast_unsigned().into();
    }

    /// Sets features that every reader must support.
    ///
    /// # Panics
    /// If they contradict each other or the journal's size, or the superblock is of version 1.
    pub fn set_incompat(&mut self, incompat: JournalIncompat) {
        assert!(!self.is_v1(), "version 1 has no features");
        self.raw.s_feature_incompat = incompat.bits().into();
        assert!(self.check().is_ok(), "features {incompat}");
        if self.layout().checksums.in_every_block() {
            self.raw.s_checksum_type = CRC32C;
        }
    }
}

impl fmt::Display for JournalCompat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_names(f, 'C', self.bits(), &[(0x1, "journal_checksum")])
    }
}

impl fmt::Display for JournalIncompat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const NAMES: [(u32, &str); 6] = [
            (0x1, "journal_incompat_revoke"),
            (0x2, "journal_64bit"),
            (0x4, "journal_async_commit"),
            (0x8, "journal_checksum_v2"),
            (0x10, "journal_checksum_v3"),
            (0x20, "fast_commit"),
        ];
        write_names(f, 'I', self.bits(), &NAMES)
    }
}

/// Names as in dumpe2fs; unnamed bits like its `FEATURE_I6`.
fn write_names(f: &mut fmt::Formatter<'_>, set: char, bits: u32, names: &[(u32, &str)]) -> fmt::Result {
    let mut space = "";
    for n in (0..32).filter(|n| bits & (1 << n) != 0) {
        match names.iter().find(|(bit, _)| *bit == 1 << n) {
            Some((_, name)) => write!(f, "{space}{name}")?,
            None => write!(f, "{space}FEATURE_{set}{n}")?,
        }
        space = " ";
    }
    Ok(())
}

impl fmt::Display for JournalSuperblock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let log = self.log();
        writeln!(f, "journal superblock: version {}", if self.is_v1() { 1 } else { 2 })?;
        writeln!(f, "  block size:     {}", self.block_size)?;
        writeln!(f, "  blocks:         {}, log {} to {}", self.blocks(), log.start, log.end - 1)?;
        if self.has_fast_commit() {
            writeln!(f, "  fast commits:   from block {}", self.fast_commits().start)?;
        }
        writeln!(f, "  sequence:       {}", self.sequence())?;
        match self.start() {
            Some(start) => writeln!(f, "  start:          block {start}")?,
            None => writeln!(f, "  start:          none, the log is empty")?,
        }
        writeln!(f, "  errno:          {}", self.errno())?;
        writeln!(f, "  compat:         {}", self.compat())?;
        writeln!(f, "  incompat:       {}", self.incompat())?;
        writeln!(f, "  uuid:           {:032x}", u128::from_be_bytes(self.uuid()))?;
        for user in self.users() {
            writeln!(f, "  user:           {:032x}", u128::from_be_bytes(*user))?;
        }
        if self.layout().checksums.in_every_block() {
            writeln!(f, "  checksum:       {:#010x}", self.raw.s_checksum)?;
        }
        Ok(())
    }
}
