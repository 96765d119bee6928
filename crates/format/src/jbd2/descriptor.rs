//! Descriptor blocks: home locations of the data blocks that follow.

use super::header::{HEADER_LEN, JournalBlockHeader, JournalBlockKind};
use super::journal_checksum::starts_with_magic;
use super::{JOURNAL_MAGIC, JournalChecksums, JournalLayout};
use crate::{Corrupt, Place, UintExt, VolumeBlock};
use bitflags::bitflags;
use std::fmt;
use zerocopy::big_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// `journal_block_tag_t`. The last field exists only with 64-bit block numbers; with V2, two unused
/// bytes follow.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct RawTag {
    /// 0x0.
    pub t_blocknr: U32,
    /// 0x4: with V2, half of the data block's checksum.
    pub t_checksum: U16,
    /// 0x6.
    pub t_flags: U16,
    /// 0x8.
    pub t_blocknr_high: U32,
}

/// `journal_block_tag3_t`, with V3.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct RawTag3 {
    /// 0x0.
    pub t_blocknr: U32,
    /// 0x4.
    pub t_flags: U32,
    /// 0x8: with 64-bit block numbers only, otherwise 0.
    pub t_blocknr_high: U32,
    /// 0xc: checksum of the data block.
    pub t_checksum: U32,
}

bitflags! {
    /// `t_flags`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct TagFlags: u32 {
        /// The data block starts with the journal's magic number, which is 0 in this copy.
        const ESCAPE = 0x1;
        /// No UUID follows; it is the same as the previous tag's.
        const SAME_UUID = 0x2;
        /// The block was deleted; neither written nor read by Linux.
        const DELETED = 0x4;
        /// The last tag of this descriptor.
        const LAST = 0x8;
        const _ = !0;
    }
}

const UUID_BYTES: usize = 16;

/// Home location of a data block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JournalTag {
    /// The home block.
    pub block: VolumeBlock,
    /// How it is stored in the journal.
    pub flags: TagFlags,
    /// Its checksum; see [`JournalLayout::data_checksum`].
    pub checksum: u32,
}

impl JournalTag {
    /// Checks a data block, as stored in block `number` of the journal, if the journal has block
    /// checksums.
    ///
    /// # Errors
    /// Another checksum.
    pub fn verify_data(
        &self,
        layout: &JournalLayout,
        sequence: u32,
        data: &[u8],
        number: u32,
    ) -> Result<(), Corrupt> {
        let computed = layout.data_checksum(sequence, data);
        if !layout.checksums.in_every_block() || self.checksum == computed {
            return Ok(());
        }
        Err(Corrupt::checksum(Place::JournalBlock(number), self.checksum, computed))
    }
}

/// Whether a data block must be written with its first four bytes as 0.
pub fn needs_escape(data: &[u8]) -> bool {
    starts_with_magic(data)
}

/// Restores the first four bytes of a data block whose tag has [`TagFlags::ESCAPE`].
pub fn unescape(data: &mut [u8]) {
    if let Some(start) = data.first_chunk_mut() {
        *start = JOURNAL_MAGIC.to_be_bytes();
    }
}

/// Tags of a descriptor block, in the order of the data blocks after it.
#[derive(Clone, Debug)]
pub struct JournalTags<'a> {
    /// The transaction.
    pub sequence: u32,
    /// The tags not yet parsed.
    rest: &'a [u8],
    layout: JournalLayout,
}

impl<'a> JournalTags<'a> {
    /// Parses a descriptor block, block `number` of the journal. [`JournalLayout::verify_tail`]
    /// checks its checksum.
    ///
    /// Like Linux, accepts a block whose tags run to its end without [`TagFlags::LAST`].
    ///
    /// # Errors
    /// A block of another kind, or too few bytes.
    pub fn parse(block: &'a [u8], layout: &JournalLayout, number: u32) -> Result<Self, Corrupt> {
        let place = Place::JournalBlock(number);
        let sequence = JournalBlockHeader::expect(block, JournalBlockKind::Descriptor, place)?;
        let needed = HEADER_LEN + layout.tail_bytes();
        let Some(end) = block.len().checked_sub(layout.tail_bytes()).filter(|&end| end >= HEADER_LEN) else {
            return Err(Corrupt::truncated(place, needed, block.len()));
        };
        Ok(Self { sequence, rest: &block[HEADER_LEN..end], layout: *layout })
    }
}

impl Iterator for JournalTags<'_> {
    type Item = JournalTag;

    fn next(&mut self) -> Option<JournalTag> {
        let (bytes, mut rest) = self.rest.split_at_checked(self.layout.tag_bytes())?;
        let block = |low: U32, high: U32| {
            let high = if self.layout.wide { high.get() } else { 0 };
            VolumeBlock(u64::from(high) << 32 | u64::from(low.get()))
        };
        let tag = if self.layout.checksums == JournalChecksums::V3 {
            let (raw, _) = RawTag3::ref_from_prefix(bytes).ok()?;
            JournalTag {
                block: block(raw.t_blocknr, raw.t_blocknr_high),
                flags: TagFlags::from_bits_retain(raw.t_flags.get()),
                checksum: raw.t_checksum.get(),
            }
        } else {
            let mut raw = RawTag::default();
            let len = bytes.len().min(size_of::<RawTag>());
            raw.as_mut_bytes()[..len].copy_from_slice(&bytes[..len]);
            JournalTag {
                block: block(raw.t_blocknr, raw.t_blocknr_high),
                flags: TagFlags::from_bits_retain(raw.t_flags.get().into()),
                checksum: raw.t_checksum.get().into(),
            }
        };
        if !tag.flags.contains(TagFlags::SAME_UUID) {
            rest = rest.get(UUID_BYTES..).unwrap_or_default();
        }
        self.rest = if tag.flags.contains(TagFlags::LAST) { &[] } else { rest };
        Some(tag)
    }
}

impl fmt::Display for JournalTag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "block {}, flags {:#x}, checksum {:#010x}", self.block, self.flags.bits(), self.checksum)
    }
}

impl fmt::Display for JournalTags<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "descriptor block, transaction {}", self.sequence)?;
        self.clone().try_for_each(|tag| writeln!(f, "  {tag}"))
    }
}

/// Fills a descriptor block.
#[derive(Debug)]
pub struct DescriptorWriter<'b> {
    block: &'b mut [u8],
    layout: JournalLayout,
    sequence: u32,
    /// Offset of the last tag, if there is one.
    last: Option<usize>,
    /// Offset for the next tag.
    at: usize,
}

impl<'b> DescriptorWriter<'b> {
    /// Starts a descriptor of transaction `sequence` in `block`. Its UUID is 0, as in Linux.
    pub fn new(block: &'b mut [u8], layout: &JournalLayout, sequence: u32) -> Self {
        block.fill(0);
        let header = JournalBlockHeader::raw(JournalBlockKind::Descriptor, sequence);
        block[..HEADER_LEN].copy_from_slice(header.as_bytes());
        Self { block, layout: *layout, sequence, last: None, at: HEADER_LEN }
    }

    /// Adds the home location of the next data block, unless the descriptor is full. `data` is the
    /// block as written to the journal: if `escaped`, with its first four bytes as 0.
    #[must_use]
    pub fn push(&mut self, home: VolumeBlock, escaped: bool, data: &[u8]) -> bool {
        let uuid_bytes = if self.last.is_none() { UUID_BYTES } else { 0 };
        let (tag_bytes, limit) = (self.layout.tag_bytes(), self.block.len() - self.layout.tail_bytes());
        if self.at + tag_bytes + uuid_bytes > limit {
            return false;
        }
        let mut flags = TagFlags::empty();
        flags.set(TagFlags::ESCAPE, escaped);
        flags.set(TagFlags::SAME_UUID, self.last.is_some());
        let (low, high) = (home.0.low_u32(), (home.0 >> 32).low_u32());
        assert!(self.layout.wide || high == 0, "block {home} in a journal of 32-bit numbers");
        let checksum = self.layout.data_checksum(self.sequence, data);
        let tag = &mut self.block[self.at..self.at + tag_bytes];
        if self.layout.checksums == JournalChecksums::V3 {
            let raw = RawTag3 {
                t_blocknr: low.into(),
                t_flags: flags.bits().into(),
                t_blocknr_high: high.into(),
                t_checksum: checksum.into(),
            };
            tag.copy_from_slice(raw.as_bytes());
        } else {
            let raw = RawTag {
                t_blocknr: low.into(),
                t_checksum: checksum.low_u16().into(),
                t_flags: flags.bits().fit_u16().into(),
                t_blocknr_high: high.into(),
            };
            let len = tag_bytes.min(size_of::<RawTag>());
            tag[..len].copy_from_slice(&raw.as_bytes()[..len]);
        }
        self.last = Some(self.at);
        self.at += tag_bytes + uuid_bytes;
        true
    }

    /// Whether it has no tags yet.
    pub fn is_empty(&self) -> bool {
        self.last.is_none()
    }

    /// Marks the last tag and writes the checksum.
    pub fn finish(self) {
        if let Some(last) = self.last {
            // In both layouts, the low byte of the flags is the eighth byte.
            self.block[last + 7] |= TagFlags::LAST.bits().low_u8();
        }
        self.layout.write_tail(self.block);
    }
}
