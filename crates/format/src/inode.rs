//! Inodes (kernel document: *Index Nodes*).

use crate::{
    ChecksumSeed, Corrupt, DIRECT_POINTERS, FileBlock, Incompat, InodeNumber, Place, Superblock, Timestamp,
    UintExt, VolumeBlock, crc32c_origin,
};
use bitflags::bitflags;
use std::fmt;
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The first 128 bytes of an on-disk inode (OS-specific fields as used by Linux).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
#[allow(missing_docs)] // the kernel's names are the documentation
pub struct RawInode {
    /* 0x00 */ pub i_mode: U16,
    /* 0x02 */ pub i_uid: U16,
    /* 0x04 */ pub i_size_lo: U32,
    /* 0x08 */ pub i_atime: U32,
    /* 0x0c */ pub i_ctime: U32,
    /* 0x10 */ pub i_mtime: U32,
    /* 0x14 */ pub i_dtime: U32,
    /* 0x18 */ pub i_gid: U16,
    /* 0x1a */ pub i_links_count: U16,
    /* 0x1c */ pub i_blocks_lo: U32,
    /* 0x20 */ pub i_flags: U32,
    /* 0x24 */ pub i_version_lo: U32,
    /* 0x28 */ pub i_block: [u8; 60],
    /* 0x64 */ pub i_generation: U32,
    /* 0x68 */ pub i_file_acl_lo: U32,
    /* 0x6c */ pub i_size_high: U32,
    /* 0x70 */ pub i_obso_faddr: U32,
    /* 0x74 */ pub i_blocks_hi: U16,
    /* 0x76 */ pub i_file_acl_high: U16,
    /* 0x78 */ pub i_uid_high: U16,
    /* 0x7a */ pub i_gid_high: U16,
    /* 0x7c */ pub i_checksum_lo: U16,
    /* 0x7e */ pub i_reserved: U16,
}

impl RawInode {
    /// The fields at the start of `bytes`, whatever they hold; `None` if there are too few bytes.
    pub fn from_prefix(bytes: &[u8]) -> Option<Self> {
        Self::read_from_prefix(bytes).ok().map(|(raw, _)| raw)
    }
}

/// The fields after the first 128 bytes; `i_extra_isize` says how many of them are valid.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
#[allow(missing_docs)] // the kernel's names are the documentation
pub struct RawInodeExtra {
    /* 0x80 */ pub i_extra_isize: U16,
    /* 0x82 */ pub i_checksum_hi: U16,
    /* 0x84 */ pub i_ctime_extra: U32,
    /* 0x88 */ pub i_mtime_extra: U32,
    /* 0x8c */ pub i_atime_extra: U32,
    /* 0x90 */ pub i_crtime: U32,
    /* 0x94 */ pub i_crtime_extra: U32,
    /* 0x98 */ pub i_version_hi: U32,
    /* 0x9c */ pub i_projid: U32,
}

/// Size of an original inode in bytes; the extra fields follow.
pub const GOOD_OLD_INODE_SIZE: usize = 128;
const CHECKSUM_LO_AT: usize = 0x7c;
const CHECKSUM_HI_AT: usize = 0x82;

bitflags! {
    /// `i_flags`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct InodeFlags: u32 {
        /// Secure deletion (not implemented by Linux).
        const SECRM = 0x1;
        /// Undelete (not implemented by Linux).
        const UNRM = 0x2;
        /// Compressed (never implemented).
        const COMPR = 0x4;
        /// Writes are synchronous.
        const SYNC = 0x8;
        /// May not be changed.
        const IMMUTABLE = 0x10;
        /// May only be appended to.
        const APPEND = 0x20;
        /// Excluded from dumps.
        const NODUMP = 0x40;
        /// Access times are not updated.
        const NOATIME = 0x80;
        /// Encrypted.
        const ENCRYPT = 0x800;
        /// The directory has a hash tree.
        const INDEX = 0x1000;
        /// AFS directory.
        const IMAGIC = 0x2000;
        /// Data goes through the journal.
        const JOURNAL_DATA = 0x4000;
        /// The tail must not be merged.
        const NOTAIL = 0x8000;
        /// Directory changes are synchronous.
        const DIRSYNC = 0x1_0000;
        /// Top of a directory hierarchy for the allocator.
        const TOPDIR = 0x2_0000;
        /// `i_blocks` counts file-system blocks.
        const HUGE_FILE = 0x4_0000;
        /// `i_block` holds an extent tree.
        const EXTENTS = 0x8_0000;
        /// Protected by fs-verity.
        const VERITY = 0x10_0000;
        /// Holds a large extended attribute value.
        const EA_INODE = 0x20_0000;
        /// Direct access.
        const DAX = 0x200_0000;
        /// The data is in the inode.
        const INLINE_DATA = 0x1000_0000;
        /// Children inherit the project.
        const PROJINHERIT = 0x2000_0000;
        /// Names are compared without case.
        const CASEFOLD = 0x4000_0000;
        const _ = !0;
    }
}

/// File type of an inode, from `i_mode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum FileKind {
    /// Named pipe.
    Fifo,
    /// Character device.
    CharDevice,
    /// Directory.
    Directory,
    /// Block device.
    BlockDevice,
    /// Regular file.
    Regular,
    /// Symbolic link.
    Symlink,
    /// Socket.
    Socket,
}

impl FileKind {
    /// From the high four bits of `i_mode`.
    pub const fn from_mode(mode: u16) -> Option<Self> {
        Some(match mode >> 12 {
            1 => Self::Fifo,
            2 => Self::CharDevice,
            4 => Self::Directory,
            6 => Self::BlockDevice,
            8 => Self::Regular,
            10 => Self::Symlink,
            12 => Self::Socket,
            _ => return None,
        })
    }

    /// The high four bits of `i_mode`, in position.
    pub const fn mode_bits(self) -> u16 {
        match self {
            Self::Fifo => 0o010_000,
            Self::CharDevice => 0o020_000,
            Self::Directory => 0o040_000,
            Self::BlockDevice => 0o060_000,
            Self::Regular => 0o100_000,
            Self::Symlink => 0o120_000,
            Self::Socket => 0o140_000,
        }
    }

    /// From a directory entry's `file_type`; `None` for 0 (unknown) and unassigned codes.
    pub const fn from_dirent(code: u8) -> Option<Self> {
        Some(match code {
            1 => Self::Regular,
            2 => Self::Directory,
            3 => Self::CharDevice,
            4 => Self::BlockDevice,
            5 => Self::Fifo,
            6 => Self::Socket,
            7 => Self::Symlink,
            _ => return None,
        })
    }

    /// A directory entry's `file_type`.
    pub const fn dirent_code(self) -> u8 {
        match self {
            Self::Regular => 1,
            Self::Directory => 2,
            Self::CharDevice => 3,
            Self::BlockDevice => 4,
            Self::Fifo => 5,
            Self::Socket => 6,
            Self::Symlink => 7,
        }
    }

    /// The type letter of `ls -l`.
    pub const fn letter(self) -> char {
        match self {
            Self::Fifo => 'p',
            Self::CharDevice => 'c',
            Self::Directory => 'd',
            Self::BlockDevice => 'b',
            Self::Regular => '-',
            Self::Symlink => 'l',
            Self::Socket => 's',
        }
    }
}

/// The device number of a device node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DeviceNumber {
    /// Major number, 12 bits.
    pub major: u32,
    /// Minor number, 20 bits.
    pub minor: u32,
}

/// An inode.
#[derive(Clone)]
pub struct Inode {
    /// Its number, which is not stored on disk.
    pub number: InodeNumber,
    /// The first 128 bytes.
    pub raw: RawInode,
    /// The extra fields; those beyond `i_extra_isize` are zero.
    pub extra: RawInodeExtra,
    /// Bytes after the extra fields, where extended attributes are stored; empty in 128-byte
    /// inodes.
    pub tail: Box<[u8]>,
}

impl Inode {
    /// An empty inode of the volume's inode size. If there is room for the extra fields, all are
    /// valid.
    pub fn new(number: InodeNumber, sb: &Superblock) -> Self {
        let size = usize::from(sb.inode_size());
        let extra_isize = if size > GOOD_OLD_INODE_SIZE { size_of::<RawInodeExtra>() } else { 0 };
        let mut extra = RawInodeExtra::new_zeroed();
        extra.i_extra_isize = U16::new(extra_isize.fit_u16());
        let tail = vec![0; size - GOOD_OLD_INODE_SIZE - extra_isize].into();
        Self { number, raw: RawInode::new_zeroed(), extra, tail }
    }

    /// Parses the inode at the start of `bytes`, and checks its checksum if the volume has them.
    ///
    /// Does not check the contents (mode, sizes, maps): a free inode also parses.
    ///
    /// # Errors
    /// As [`Self::parse_unchecked`], or another checksum, unless the inode is all zeros.
    pub fn parse(bytes: &[u8], sb: &Superblock, number: InodeNumber) -> Result<Self, Corrupt> {
        Self::parse_sealed(bytes, sb, number, sb.checksum_seed())
    }

    /// Like [`Self::parse`], for a reader of many inodes who knows the volume's
    /// [`Superblock::checksum_seed`].
    ///
    /// # Errors
    /// As [`Self::parse`].
    pub fn parse_sealed(
        bytes: &[u8],
        sb: &Superblock,
        number: InodeNumber,
        seed: Option<ChecksumSeed>,
    ) -> Result<Self, Corrupt> {
        let inode = Self::parse_unchecked(bytes, sb, number)?;
        inode.verify(bytes, sb, seed)?;
        Ok(inode)
    }

    /// Like [`Self::parse_sealed`], in place of this inode, whose memory is used again: for a
    /// reader of so many inodes that allocations count.
    ///
    /// # Errors
    /// As [`Self::parse_unchecked`], and this inode is as before; or another checksum, and this
    /// inode is the parsed one all the same.
    pub fn replace_sealed(
        &mut self,
        bytes: &[u8],
        sb: &Superblock,
        number: InodeNumber,
        seed: Option<ChecksumSeed>,
    ) -> Result<(), Corrupt> {
        let (raw, extra, tail) = Self::parts(bytes, sb, number)?;
        (self.number, self.raw, self.extra) = (number, raw, extra);
        match self.tail.len() == tail.len() {
            true => self.tail.copy_from_slice(tail),
            false => self.tail = tail.into(),
        }
        self.verify(bytes, sb, seed)
    }

    fn verify(&self, bytes: &[u8], sb: &Superblock, seed: Option<ChecksumSeed>) -> Result<(), Corrupt> {
        let Some(seed) = seed else { return Ok(()) };
        let bytes = &bytes[..usize::from(sb.inode_size())];
        let (stored, computed) = (self.stored_checksum(), self.checksum_of(bytes, seed));
        // An inode that was never written is all zeros, without a checksum.
        if stored != computed && bytes.iter().any(|&b| b != 0) {
            return Err(Corrupt::checksum(Place::Inode(self.number), stored, computed));
        }
        Ok(())
    }

    /// Like [`Self::parse`], without the checksum, for tools that report a mismatch and continue.
    ///
    /// # Errors
    /// Fewer bytes than an inode has, or an `i_extra_isize` that does not fit it.
    pub fn parse_unchecked(bytes: &[u8], sb: &Superblock, number: InodeNumber) -> Result<Self, Corrupt> {
        let (raw, extra, tail) = Self::parts(bytes, sb, number)?;
        Ok(Self { number, raw, extra, tail: tail.into() })
    }

    fn parts<'a>(
        bytes: &'a [u8],
        sb: &Superblock,
        number: InodeNumber,
    ) -> Result<(RawInode, RawInodeExtra, &'a [u8]), Corrupt> {
        let place = Place::Inode(number);
        let size = usize::from(sb.inode_size());
        let Some(bytes) = bytes.get(..size) else {
            return Err(Corrupt::truncated(place, size, bytes.len()));
        };
        let (raw, rest) = RawInode::read_from_prefix(bytes)
            .map_err(|_| Corrupt::truncated(place, GOOD_OLD_INODE_SIZE, bytes.len()))?;
        let mut extra = RawInodeExtra::new_zeroed();
        let mut tail: &[u8] = &[];
        if rest.len() >= 2 {
            let isize = usize::from(u16::from_le_bytes([rest[0], rest[1]]));
            if isize > rest.len() || isize % 4 != 0 || (isize != 0 && isize < 4) {
                let rule = "a multiple of 4 that fits the inode";
                return Err(Corrupt::field(place, "i_extra_isize", isize.to_u64(), rule));
            }
            let known = isize.min(size_of::<RawInodeExtra>());
            extra.as_mut_bytes()[..known].copy_from_slice(&rest[..known]);
            tail = &rest[isize..];
        }
        Ok((raw, extra, tail))
    }

    /// Writes the inode, with its checksum, to `to`, which is [`Superblock::inode_size`] bytes
    /// long.
    pub fn write_to(&self, to: &mut [u8], sb: &Superblock) {
        let size = usize::from(sb.inode_size());
        let to = &mut to[..size];
        to[..GOOD_OLD_INODE_SIZE].copy_from_slice(self.raw.as_bytes());
        if size > GOOD_OLD_INODE_SIZE {
            let isize = usize::from(self.extra.i_extra_isize.get());
            let known = isize.min(size_of::<RawInodeExtra>());
            let rest = &mut to[GOOD_OLD_INODE_SIZE..];
            rest.fill(0);
            rest[..known].copy_from_slice(&self.extra.as_bytes()[..known]);
            let at = rest.len() - self.tail.len();
            rest[at..].copy_from_slice(&self.tail);
        }
        let Some(seed) = sb.checksum_seed() else { return };
        let sum = self.checksum_of(to, seed);
        to[CHECKSUM_LO_AT..CHECKSUM_LO_AT + 2].copy_from_slice(&sum.low_u16().to_le_bytes());
        if self.has_checksum_hi() {
            to[CHECKSUM_HI_AT..CHECKSUM_HI_AT + 2].copy_from_slice(&(sum >> 16).low_u16().to_le_bytes());
        }
    }

    /// Recovers from the checksum of the inode in `bytes`, which are as long as the volume's
    /// inodes, where it came from: the volume's seed XOR the inode's number, so that each gives the
    /// other. `None` if the checksum has only 16 bits.
    pub fn checksum_origin(bytes: &[u8]) -> Option<u32> {
        let extra_isize = u16::from_le_bytes(*bytes.get(GOOD_OLD_INODE_SIZE..)?.first_chunk()?);
        if extra_isize < 4 || usize::from(extra_isize) > bytes.len() - GOOD_OLD_INODE_SIZE {
            return None;
        }
        let (raw, _) = RawInode::read_from_prefix(bytes).ok()?;
        let high = u16::from_le_bytes([bytes[CHECKSUM_HI_AT], bytes[CHECKSUM_HI_AT + 1]]);
        let stored = u32::from(high) << 16 | u32::from(raw.i_checksum_lo.get());
        let end = crc32c_origin(stored, &bytes[CHECKSUM_HI_AT + 2..]);
        let end = crc32c_origin(end, &[0, 0]);
        let end = crc32c_origin(end, &bytes[CHECKSUM_LO_AT + 2..CHECKSUM_HI_AT]);
        let end = crc32c_origin(end, &[0, 0]);
        let end = crc32c_origin(end, &bytes[..CHECKSUM_LO_AT]);
        let end = crc32c_origin(end, &raw.i_generation.get().to_le_bytes());
        Some(crc32c_origin(end, &[0; 4]))
    }

    fn has_checksum_hi(&self) -> bool {
        self.extra.i_extra_isize.get() >= 4
    }

    fn stored_checksum(&self) -> u32 {
        let hi = if self.has_checksum_hi() { self.extra.i_checksum_hi.get() } else { 0 };
        u32::from(hi) << 16 | u32::from(self.raw.i_checksum_lo.get())
    }

    fn checksum_of(&self, bytes: &[u8], seed: ChecksumSeed) -> u32 {
        // The two halves of the checksum count as zeros. The bytes are split so that most of them
        // are summed in whole, aligned words, which is fastest.
        let (old, more) = bytes.split_at(GOOD_OLD_INODE_SIZE);
        let (old, end) = old.split_at(CHECKSUM_LO_AT - 4);
        let mut end: [u8; 8] = end.try_into().expect("the last 8 of 128 bytes");
        end[4..6].fill(0);
        let sum = self.checksum_seed(seed).over(old).over(&end);
        if !self.has_checksum_hi() {
            return sum.over(more).0 & 0xffff;
        }
        let Some((begin, rest)) = more.split_first_chunk::<8>() else {
            return sum.over(&more[..2]).over(&[0, 0]).over(&more[4..]).0;
        };
        let mut begin = *begin;
        begin[2..4].fill(0);
        sum.over(&begin).over(rest).0
    }

    /// Checksum seed for this inode's blocks.
    pub fn checksum_seed(&self, seed: ChecksumSeed) -> ChecksumSeed {
        seed.for_inode(self.number, self.raw.i_generation.get())
    }

    /// The file type; `None` if unknown.
    pub fn kind(&self) -> Option<FileKind> {
        FileKind::from_mode(self.raw.i_mode.get())
    }

    /// File type and permissions, like `st_mode`.
    pub fn mode(&self) -> u16 {
        self.raw.i_mode.get()
    }

    /// Owner.
    pub fn uid(&self) -> u32 {
        u32::from(self.raw.i_uid_high.get()) << 16 | u32::from(self.raw.i_uid.get())
    }

    /// Group.
    pub fn gid(&self) -> u32 {
        u32::from(self.raw.i_gid_high.get()) << 16 | u32::from(self.raw.i_gid.get())
    }

    /// Size in bytes. As in Linux, the high half is used only for regular files, directories and
    /// attribute values.
    pub fn size(&self) -> u64 {
        let high = match self.kind() {
            Some(FileKind::Regular | FileKind::Directory) => self.raw.i_size_high.get(),
            _ => 0,
        };
        u64::from(high) << 32 | u64::from(self.raw.i_size_lo.get())
    }

    /// Flags.
    pub fn flags(&self) -> InodeFlags {
        InodeFlags::from_bits_retain(self.raw.i_flags.get())
    }

    /// Link count.
    pub fn links(&self) -> u16 {
        self.raw.i_links_count.get()
    }

    /// Space in use, in units of 512 bytes, including map and attribute blocks.
    pub fn blocks_512(&self, sb: &Superblock) -> u64 {
        let lo = u64::from(self.raw.i_blocks_lo.get());
        if !sb.ro_compat().contains(crate::RoCompat::HUGE_FILE) {
            return lo;
        }
        let count = u64::from(self.raw.i_blocks_hi.get()) << 32 | lo;
        if self.flags().contains(InodeFlags::HUGE_FILE) {
            count << (sb.block_size().log2() - 9)
        } else {
            count
        }
    }

    /// Sets the space in use, in units of 512 bytes.
    pub fn set_blocks_512(&mut self, count: u64, sb: &Superblock) {
        let (count, flags) = if count >> 48 == 0 {
            (count, self.flags() - InodeFlags::HUGE_FILE)
        } else {
            (count >> (sb.block_size().log2() - 9), self.flags() | InodeFlags::HUGE_FILE)
        };
        self.raw.i_flags = flags.bits().into();
        self.raw.i_blocks_lo = count.low_u32().into();
        self.raw.i_blocks_hi = (count >> 32).low_u16().into();
    }

    /// Sets the size in bytes.
    pub fn set_size(&mut self, size: u64) {
        self.raw.i_size_lo = size.low_u32().into();
        self.raw.i_size_high = (size >> 32).low_u32().into();
    }

    /// Sets owner and group.
    pub fn set_owner(&mut self, uid: u32, gid: u32) {
        self.raw.i_uid = uid.low_u16().into();
        self.raw.i_uid_high = (uid >> 16).low_u16().into();
        self.raw.i_gid = gid.low_u16().into();
        self.raw.i_gid_high = (gid >> 16).low_u16().into();
    }

    /// The block of extended attributes, if any.
    pub fn xattr_block(&self) -> Option<VolumeBlock> {
        let at = u64::from(self.raw.i_file_acl_high.get()) << 32 | u64::from(self.raw.i_file_acl_lo.get());
        (at != 0).then_some(VolumeBlock(at))
    }

    /// Like [`Self::xattr_block`], but as Linux reads it: only `64bit` volumes have the high part.
    pub fn xattr_block_in(&self, sb: &Superblock) -> Option<VolumeBlock> {
        match sb.incompat().contains(Incompat::BIT64) {
            true => self.xattr_block(),
            false => {
                Some(self.raw.i_file_acl_lo.get()).filter(|&at| at != 0).map(|at| VolumeBlock(at.into()))
            }
        }
    }

    /// Sets the block of extended attributes; block 0 means none.
    pub fn set_xattr_block(&mut self, block: VolumeBlock) {
        self.raw.i_file_acl_lo = block.0.low_u32().into();
        self.raw.i_file_acl_high = (block.0 >> 32).low_u16().into();
    }

    /// The map: block pointers, an extent root, inline data, a short symbolic link or a device
    /// number.
    pub fn map(&self) -> &[u8; 60] {
        &self.raw.i_block
    }

    /// Whether the map has blocks of its own: nodes of the extent tree, or blocks of pointers.
    pub fn has_map_nodes(&self) -> bool {
        /// Offset of the depth in the head of a tree (`eh_depth`).
        const DEPTH_AT: usize = 6;
        match self.flags().contains(InodeFlags::EXTENTS) {
            true => self.map()[DEPTH_AT..][..2] != [0; 2],
            false => (DIRECT_POINTERS.to_usize()..15).any(|n| self.block_pointer(n).0 != 0),
        }
    }

    /// Block pointer `n` (0 to 14) of an inode without extents; 0 for a hole.
    pub fn block_pointer(&self, n: usize) -> VolumeBlock {
        let at = n * 4;
        let bytes = self.raw.i_block.get(at..at + 4).and_then(|b| b.try_into().ok()).unwrap_or([0; 4]);
        VolumeBlock(u32::from_le_bytes(bytes).into())
    }

    /// Whether a symbolic link's target is stored in [`Self::map`] rather than in a block.
    pub fn is_fast_symlink(&self, sb: &Superblock) -> bool {
        if self.kind() != Some(FileKind::Symlink)
            || self.flags().intersects(InodeFlags::INLINE_DATA | InodeFlags::EXTENTS)
        {
            return false;
        }
        // Values in separate inodes also count in i_blocks. A target this short would have an
        // extent if it were mapped.
        if sb.incompat().contains(Incompat::EA_INODE) && self.size() < 60 {
            return true;
        }
        // An attribute block counts in i_blocks, but does not hold the target.
        let xattr = if self.xattr_block_in(sb).is_some() {
            u64::from(sb.blocks_per_cluster()) << (sb.block_size().log2() - 9)
        } else {
            0
        };
        self.blocks_512(sb) == xattr
    }

    /// Device number of a device node, in the old or new encoding.
    pub fn device(&self) -> Option<DeviceNumber> {
        if !matches!(self.kind(), Some(FileKind::BlockDevice | FileKind::CharDevice)) {
            return None;
        }
        let old = self.block_pointer(0).0.fit_u32();
        Some(if old != 0 {
            DeviceNumber { major: old >> 8 & 0xff, minor: old & 0xff }
        } else {
            let new = self.block_pointer(1).0.fit_u32();
            DeviceNumber { major: new >> 8 & 0xfff, minor: (new & 0xff) | (new >> 12 & 0xf_ff00) }
        })
    }

    /// Stores this device number.
    pub fn set_device(&mut self, device: DeviceNumber) {
        let DeviceNumber { major, minor } = device;
        self.raw.i_block = [0; 60];
        if major < 256 && minor < 256 {
            self.raw.i_block[..4].copy_from_slice(&(major << 8 | minor).to_le_bytes());
        } else {
            let new = (minor & 0xff) | (major & 0xfff) << 8 | (minor & !0xff) << 12;
            self.raw.i_block[4..8].copy_from_slice(&new.to_le_bytes());
        }
    }

    fn extra_field(&self, end: usize, field: U32) -> Option<U32> {
        (usize::from(self.extra.i_extra_isize.get()) >= end).then_some(field)
    }

    /// Time of the last access.
    pub fn accessed(&self) -> Timestamp {
        Timestamp::from_raw(self.raw.i_atime, self.extra_field(16, self.extra.i_atime_extra))
    }

    /// Time of the last inode change.
    pub fn changed(&self) -> Timestamp {
        Timestamp::from_raw(self.raw.i_ctime, self.extra_field(8, self.extra.i_ctime_extra))
    }

    /// Time of the last content change.
    pub fn modified(&self) -> Timestamp {
        Timestamp::from_raw(self.raw.i_mtime, self.extra_field(12, self.extra.i_mtime_extra))
    }

    /// Time of deletion, if it was deleted. While an inode waits to be deleted, the field is a link
    /// of the orphan list instead.
    pub fn deleted(&self) -> Option<Timestamp> {
        (self.raw.i_dtime.get() != 0).then(|| Timestamp::from_superblock(self.raw.i_dtime, 0))
    }

    /// Creation time, if the inode has room for it.
    pub fn created(&self) -> Option<Timestamp> {
        let base = self.extra_field(20, self.extra.i_crtime)?;
        Some(Timestamp::from_raw(base, self.extra_field(24, self.extra.i_crtime_extra)))
    }

    /// Sets access, inode change, content change and creation time, as precisely as the inode has
    /// room for.
    pub fn set_times(&mut self, atime: Timestamp, ctime: Timestamp, mtime: Timestamp, crtime: Timestamp) {
        self.set_accessed(atime);
        self.set_changed(ctime);
        self.set_modified(mtime);
        (self.extra.i_crtime, self.extra.i_crtime_extra) = crtime.to_raw();
    }

    /// Sets the access time, as precisely as the inode has room for.
    pub fn set_accessed(&mut self, at: Timestamp) {
        let (base, extra) = self.stored(at, 16);
        self.raw.i_atime = base;
        self.extra.i_atime_extra = extra.unwrap_or(self.extra.i_atime_extra);
    }

    /// Sets the modification time, as precisely as the inode has room for.
    pub fn set_modified(&mut self, at: Timestamp) {
        let (base, extra) = self.stored(at, 12);
        self.raw.i_mtime = base;
        self.extra.i_mtime_extra = extra.unwrap_or(self.extra.i_mtime_extra);
    }

    /// Sets the inode change time, as precisely as the inode has room for.
    pub fn set_changed(&mut self, at: Timestamp) {
        let (base, extra) = self.stored(at, 8);
        self.raw.i_ctime = base;
        self.extra.i_ctime_extra = extra.unwrap_or(self.extra.i_ctime_extra);
    }

    /// Fields for a time whose extra field ends at `end`. Without that, times are whole seconds up
    /// to 2038.
    fn stored(&self, at: Timestamp, end: usize) -> (U32, Option<U32>) {
        if self.has_extra(end) {
            let (base, extra) = at.to_raw();
            return (base, Some(extra));
        }
        let seconds = at.seconds.clamp(i32::MIN.into(), i32::MAX.into());
        (U32::new(seconds.cast_unsigned().low_u32()), None)
    }

    /// Increments the change counter (`i_version`).
    pub fn bump_version(&mut self) {
        let (low, carried) = self.raw.i_version_lo.get().overflowing_add(1);
        self.raw.i_version_lo = low.into();
        if carried && self.has_extra(28) {
            self.extra.i_version_hi = self.extra.i_version_hi.get().wrapping_add(1).into();
        }
    }

    fn has_extra(&self, end: usize) -> bool {
        usize::from(self.extra.i_extra_isize.get()) >= end
    }

    /// Project ID, if the inode has room for it.
    pub fn project(&self) -> Option<u32> {
        self.extra_field(32, self.extra.i_projid).map(U32::get)
    }

    /// Size of the file in blocks, computed from its size in bytes; `None` if a block number cannot
    /// express it.
    pub fn size_in_blocks(&self, sb: &Superblock) -> Option<FileBlock> {
        u32::try_from(sb.block_size().blocks_for(self.size())).ok().map(FileBlock)
    }
}

impl fmt::Debug for Inode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Inode({} {:o} {} bytes {:?})", self.number, self.mode(), self.size(), self.flags())
    }
}

impl fmt::Display for Inode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "inode:      {}", self.number)?;
        writeln!(f, "mode:       {:06o}", self.mode())?;
        writeln!(f, "links:      {}", self.links())?;
        writeln!(f, "owner:      {}:{}", self.uid(), self.gid())?;
        match self.device() {
            Some(device) => writeln!(f, "device:     {}:{}", device.major, device.minor)?,
            None => writeln!(f, "size:       {}", self.size())?,
        }
        let flags: Vec<_> = self.flags().iter_names().map(|(name, _)| name.to_lowercase()).collect();
        writeln!(f, "flags:      {:#x} {}", self.flags().bits(), flags.join(" "))?;
        writeln!(f, "generation: {}", self.raw.i_generation)?;
        if let Some(block) = self.xattr_block() {
            writeln!(f, "xattrs:     block {block}")?;
        }
        if let Some(project) = self.project().filter(|&p| p != 0) {
            writeln!(f, "project:    {project}")?;
        }
        writeln!(f, "accessed:   {}", self.accessed())?;
        writeln!(f, "modified:   {}", self.modified())?;
        write!(f, "changed:    {}", self.changed())?;
        if let Some(created) = self.created() {
            write!(f, "\ncreated:    {created}")?;
        }
        if self.raw.i_dtime.get() != 0 {
            write!(f, "\ndeleted:    {}", Timestamp::from_raw(self.raw.i_dtime, None))?;
        }
        Ok(())
    }
}
