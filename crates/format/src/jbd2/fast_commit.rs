//! The fast-commit area: changes since the last full commit, as logical records. Little-endian.
//!
//! Kernel documentation: *Fast commits* in *Journal (jbd2)*; layout: fs/ext4/fast_commit.h.
//!
//! Records do not cross blocks. The first commit after a full commit starts with a head; every
//! commit ends with a tail that fills its block and carries the CRC of everything since the
//! previous tail.

use crate::{ChecksumSeed, Corrupt, Extent, FileBlock, InodeNumber, Place, UintExt, VolumeBlock};
use std::fmt;
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// `struct ext4_fc_tl`: starts a record; its value follows.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct RawFastCommitTlv {
    /// 0x0: type of the record.
    pub fc_tag: U16,
    /// 0x2: length of its value in bytes.
    pub fc_len: U16,
}

/// `struct ext4_fc_add_range`: an inode and an extent in tree format.
#[derive(Clone, Copy, FromBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawAddRange {
    /* 0x0 */ fc_ino: U32,
    /* 0x4 */ ee_block: U32,
    /* 0x8 */ ee_len: U16,
    /* 0xa */ ee_start_hi: U16,
    /* 0xc */ ee_start_lo: U32,
}

/// `struct ext4_fc_del_range`.
#[derive(Clone, Copy, FromBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawDelRange {
    /* 0x0 */ fc_ino: U32,
    /* 0x4 */ fc_lblk: U32,
    /* 0x8 */ fc_len: U32,
}

/// `struct ext4_fc_head`, `ext4_fc_tail` and the start of `ext4_fc_dentry_info`: two numbers.
#[derive(Clone, Copy, FromBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawPair {
    /* 0x0: fc_features, fc_tid or fc_parent_ino */ first: U32,
    /* 0x4: fc_tid, fc_crc or fc_ino */ second: U32,
}

const TLV_LEN: usize = size_of::<RawFastCommitTlv>();
/// `EXT_INIT_MAX_LEN`: greater lengths denote unwritten extents.
const WRITTEN_MAX: u32 = 32768;
const NAME_MAX: usize = 255;

/// A record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FastCommitRecord<'a> {
    /// Blocks were added to a file, or their state changed.
    AddRange {
        /// The file.
        inode: InodeNumber,
        /// Their location.
        extent: Extent,
    },
    /// Blocks were removed from a file.
    DelRange {
        /// The file.
        inode: InodeNumber,
        /// The first block.
        first: FileBlock,
        /// Number of blocks.
        blocks: u32,
    },
    /// An inode was created, with its first name.
    Create(FastCommitName<'a>),
    /// A name was added.
    Link(FastCommitName<'a>),
    /// A name was removed.
    Unlink(FastCommitName<'a>),
    /// An inode changed.
    Inode {
        /// The inode's number.
        inode: InodeNumber,
        /// The on-disk inode, up to the end of its fixed part.
        raw: &'a [u8],
    },
    /// Padding to the end of a block.
    Pad,
    /// End of a commit.
    Tail {
        /// The full commit that it follows.
        sequence: u32,
        /// CRC of everything since the previous tail.
        checksum: u32,
    },
    /// Start of the area.
    Head {
        /// Features; Linux knows none.
        features: u32,
        /// The transaction that a full commit would have committed.
        sequence: u32,
    },
}

/// A name of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FastCommitName<'a> {
    /// The directory.
    pub parent: InodeNumber,
    /// The inode.
    pub inode: InodeNumber,
    /// The name: 1 to 255 bytes.
    pub name: &'a [u8],
}

/// A record, with what its checksum covers.
#[derive(Clone, Copy, Debug)]
pub struct FastCommitItem<'a> {
    /// The record, parsed.
    pub record: FastCommitRecord<'a>,
    /// The whole record.
    bytes: &'a [u8],
}

impl FastCommitItem<'_> {
    /// Extends the running CRC, which is 0 at the start and after every tail, by this record. For a
    /// tail, the result is its expected checksum.
    pub fn checksum(&self, running: u32) -> u32 {
        let covered = match self.record {
            FastCommitRecord::Tail { .. } => &self.bytes[..TLV_LEN + 4],
            _ => self.bytes,
        };
        ChecksumSeed(running).over(covered).0
    }
}

/// Records of one block. Ends at the block's end, at a tag of 0, or after an error.
#[derive(Clone, Debug)]
pub struct FastCommitItems<'a> {
    rest: &'a [u8],
    inode_size: usize,
    place: Place,
}

impl<'a> FastCommitItems<'a> {
    /// Iterates over block `number` of the journal. `inode_size` is the volume's.
    pub fn new(block: &'a [u8], inode_size: u16, number: u32) -> Self {
        Self { rest: block, inode_size: inode_size.into(), place: Place::JournalBlock(number) }
    }

    fn item(&self, tag: u16, value: &'a [u8]) -> Result<FastCommitRecord<'a>, Corrupt> {
        let length = |rule| Corrupt::field(self.place, "fc_len", value.len().to_u64(), rule);
        let pair = |rule| match RawPair::read_from_prefix(value) {
            Ok((raw, rest)) => Ok((raw.first.get(), raw.second.get(), rest)),
            Err(_) => Err(length(rule)),
        };
        let name = || {
            let rule = "9 to 263, two inodes and a name";
            let (parent, inode, name) = pair(rule)?;
            if name.is_empty() || name.len() > NAME_MAX {
                return Err(length(rule));
            }
            Ok(FastCommitName { parent: InodeNumber(parent), inode: InodeNumber(inode), name })
        };
        Ok(match tag {
            1 => {
                let raw =
                    RawAddRange::read_from_bytes(value).map_err(|_| length("16, an inode and an extent"))?;
                let len = u32::from(raw.ee_len.get());
                if len == 0 {
                    return Err(Corrupt::field(self.place, "ee_len", 0, "at least 1"));
                }
                let unwritten = len > WRITTEN_MAX;
                let extent = Extent {
                    logical: FileBlock(raw.ee_block.get()),
                    physical: VolumeBlock(
                        u64::from(raw.ee_start_hi.get()) << 32 | u64::from(raw.ee_start_lo.get()),
                    ),
                    blocks: if unwritten { len - WRITTEN_MAX } else { len },
                    unwritten,
                };
                FastCommitRecord::AddRange { inode: InodeNumber(raw.fc_ino.get()), extent }
            }
            2 => {
                let raw =
                    RawDelRange::read_from_bytes(value).map_err(|_| length("12, an inode and a range"))?;
                FastCommitRecord::DelRange {
                    inode: InodeNumber(raw.fc_ino.get()),
                    first: FileBlock(raw.fc_lblk.get()),
                    blocks: raw.fc_len.get(),
                }
            }
            3 => FastCommitRecord::Create(name()?),
            4 => FastCommitRecord::Link(name()?),
            5 => FastCommitRecord::Unlink(name()?),
            6 => {
                let (inode, raw) = value.split_first_chunk::<4>().unwrap_or((&[0; 4], &[]));
                if !(128..=self.inode_size).contains(&raw.len()) {
                    return Err(length("4 more than an inode's size, from 128 to the volume's"));
                }
                FastCommitRecord::Inode { inode: InodeNumber(u32::from_le_bytes(*inode)), raw }
            }
            7 => FastCommitRecord::Pad,
            8 => {
                let (sequence, checksum, _) = pair("at least 8, a transaction and a checksum")?;
                FastCommitRecord::Tail { sequence, checksum }
            }
            9 => match pair("8, features and a transaction")? {
                (features, sequence, []) => FastCommitRecord::Head { features, sequence },
                _ => return Err(length("8, features and a transaction")),
            },
            other => return Err(Corrupt::field(self.place, "fc_tag", other.into(), "from 1 to 9")),
        })
    }
}

impl<'a> Iterator for FastCommitItems<'a> {
    type Item = Result<FastCommitItem<'a>, Corrupt>;

    fn next(&mut self) -> Option<Self::Item> {
        let block = std::mem::take(&mut self.rest);
        let (tlv, rest) = RawFastCommitTlv::ref_from_prefix(block).ok()?;
        let (tag, len) = (tlv.fc_tag.get(), usize::from(tlv.fc_len.get()));
        if tag == 0 {
            return None;
        }
        let Some((value, rest)) = rest.split_at_checked(len) else {
            let rule = "at most what is left of the block";
            return Some(Err(Corrupt::field(self.place, "fc_len", len.to_u64(), rule)));
        };
        let item =
            self.item(tag, value).map(|record| FastCommitItem { record, bytes: &block[..TLV_LEN + len] });
        if item.is_ok() {
            self.rest = rest;
        }
        Some(item)
    }
}

impl fmt::Display for FastCommitName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "parent {}, inode {}, name \"{}\"", self.parent, self.inode, self.name.escape_ascii())
    }
}

impl fmt::Display for FastCommitRecord<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AddRange { inode, extent } => {
                let Extent { logical, physical, blocks, unwritten } = extent;
                let state = if *unwritten { ", unwritten" } else { "" };
                write!(
                    f,
                    "add range: inode {inode}, {blocks} blocks from {logical} at block {physical}{state}"
                )
            }
            Self::DelRange { inode, first, blocks } => {
                write!(f, "delete range: inode {inode}, {blocks} blocks from {first}")
            }
            Self::Create(name) => write!(f, "create: {name}"),
            Self::Link(name) => write!(f, "link: {name}"),
            Self::Unlink(name) => write!(f, "unlink: {name}"),
            Self::Inode { inode, raw } => write!(f, "inode: {inode}, {} bytes", raw.len()),
            Self::Pad => f.write_str("pad"),
            Self::Tail { sequence, checksum } => {
                write!(f, "tail: transaction {sequence}, checksum {checksum:#010x}")
            }
            Self::Head { features, sequence } => {
                write!(f, "head: features {features:#x}, transaction {sequence}")
            }
        }
    }
}
