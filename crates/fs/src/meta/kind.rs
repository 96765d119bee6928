//! Kinds of metadata blocks, as far as checksums are concerned.

use extant_format::{
    ChecksumSeed, Corrupt, FileBlock, Group, GroupDescriptor, HtreeContext, InodeNumber, OrphanBlock, Place,
    Superblock, VolumeBlock, XattrBlock, block_bitmap_checksum, finish_orphan_block, has_dirent_tail,
    inode_bitmap_checksum, is_dx_block, verify_block_bitmap, verify_dirent_checksum, verify_dx_checksum,
    verify_extent_checksum, verify_inode_bitmap, verify_xattr_block, write_dirent_tail, write_dx_checksum,
    write_extent_checksum, write_xattr_checksum,
};

/// The kind of a metadata block: determines how it is verified when read and sealed when committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MetaKind {
    /// No checksum of its own: the target of a symbolic link, a quota block, or file data that go
    /// through the log.
    Raw,
    /// A directory block: a leaf or a node of the hash tree. The contents tell which, so an edit
    /// may turn one into the other.
    Directory { dir: InodeNumber, generation: u32, block: FileBlock },
    /// A node of an extent tree outside the inode.
    ExtentNode { inode: InodeNumber, generation: u32 },
    /// A block of pointers.
    Indirect { inode: InodeNumber },
    /// A block of extended attributes, possibly shared.
    Xattr { inode: InodeNumber },
    /// A group's block bitmap; its checksum is in the descriptor.
    BlockBitmap(Group),
    /// A group's inode bitmap; its checksum is in the descriptor.
    InodeBitmap(Group),
    /// A block of a group's inode table. Inodes have their own checksums. Only commits write it.
    InodeTable(Group),
    /// Block `n` of the descriptor table. Only commits write it.
    Descriptors(u32),
    /// The block that holds the superblock. Only commits write it.
    Superblock,
    /// A block of the orphan file `inode`.
    Orphan { inode: InodeNumber, generation: u32, block: FileBlock },
}

impl MetaKind {
    /// For a bitmap, its group, whose descriptor has the bitmap's checksum.
    pub(crate) fn bitmap_of(self) -> Option<Group> {
        match self {
            Self::BlockBitmap(group) | Self::InodeBitmap(group) => Some(group),
            _ => None,
        }
    }

    /// A number for the role in which a block was verified; equal roles have equal numbers.
    pub(super) fn role(self) -> u64 {
        let role = |kind: u64, inode: u32| kind << 32 | u64::from(inode);
        match self {
            Self::Raw => role(1, 0),
            Self::Directory { dir, .. } => role(2, dir.0),
            Self::ExtentNode { inode, .. } => role(3, inode.0),
            Self::Indirect { inode } => role(4, inode.0),
            // May be shared among inodes.
            Self::Xattr { .. } => role(5, 0),
            Self::BlockBitmap(group) => role(6, group.0),
            Self::InodeBitmap(group) => role(7, group.0),
            Self::InodeTable(group) => role(8, group.0),
            Self::Descriptors(n) => role(9, n),
            Self::Superblock => role(10, 0),
            Self::Orphan { inode, .. } => role(11, inode.0),
        }
    }

    /// Verifies a block that was read. `descriptor` returns the descriptor of a bitmap's group.
    pub(super) fn verify(
        self,
        bytes: &[u8],
        number: VolumeBlock,
        sb: &Superblock,
        descriptor: impl Fn(Group) -> GroupDescriptor,
    ) -> Result<(), Corrupt> {
        let Some(seed) = sb.checksum_seed() else { return Ok(()) };
        match self {
            Self::Raw
            | Self::Indirect { .. }
            | Self::InodeTable(_)
            | Self::Descriptors(_)
            | Self::Superblock => Ok(()),
            Self::Directory { dir, generation, block } => {
                let seed = seed.for_inode(dir, generation);
                if has_dirent_tail(bytes) && !is_dx_block(bytes) {
                    verify_dirent_checksum(bytes, seed, Place::DirectoryBlock(dir, block))
                } else {
                    verify_dx_checksum(bytes, &htree(dir, block), seed)
                }
            }
            Self::ExtentNode { inode, generation } => {
                let place = Place::ExtentNode(inode, Some(number));
                verify_extent_checksum(bytes, seed.for_inode(inode, generation), place)
            }
            Self::Xattr { inode } => {
                XattrBlock::parse(bytes, inode, number)?;
                verify_xattr_block(bytes, inode, number, seed)
            }
            Self::BlockBitmap(group) => verify_block_bitmap(bytes, sb, group, &descriptor(group)),
            Self::InodeBitmap(group) => verify_inode_bitmap(bytes, sb, group, &descriptor(group)),
            Self::Orphan { inode, generation, block } => {
                OrphanBlock::parse(bytes, block)?.verify_checksum(number, seed.for_inode(inode, generation))
            }
        }
    }

    /// Fills in the checksum of an edited block. A bitmap's is in the descriptor: see
    /// [`Self::bitmap_sum`].
    pub(crate) fn seal(self, bytes: &mut [u8], number: VolumeBlock, sb: &Superblock) {
        let seed = sb.checksum_seed();
        let own = |inode, generation| seed.map(|seed: ChecksumSeed| seed.for_inode(inode, generation));
        match self {
            Self::Directory { dir, generation, .. } => {
                let Some(seed) = own(dir, generation) else { return };
                if has_dirent_tail(bytes) && !is_dx_block(bytes) {
                    write_dirent_tail(bytes, seed);
                } else {
                    write_dx_checksum(bytes, seed);
                }
            }
            Self::ExtentNode { inode, generation } => {
                if let Some(seed) = own(inode, generation) {
                    write_extent_checksum(bytes, seed);
                }
            }
            Self::Xattr { .. } => {
                if let Some(seed) = seed {
                    write_xattr_checksum(bytes, number, seed);
                }
            }
            Self::Orphan { inode, generation, .. } => {
                finish_orphan_block(bytes, number, own(inode, generation));
            }
            Self::Raw
            | Self::Indirect { .. }
            | Self::BlockBitmap(_)
            | Self::InodeBitmap(_)
            | Self::InodeTable(_)
            | Self::Descriptors(_)
            | Self::Superblock => {}
        }
    }

    /// For a bitmap, its group and the checksum to store in the descriptor.
    pub(super) fn bitmap_sum(self, bytes: &[u8], sb: &Superblock) -> Option<(Group, BitmapSum)> {
        let seed = sb.checksum_seed();
        let sum =
            |of: fn(ChecksumSeed, &[u8], &Superblock) -> u32| seed.map_or(0, |seed| of(seed, bytes, sb));
        match self {
            Self::BlockBitmap(group) => Some((group, BitmapSum::Blocks(sum(block_bitmap_checksum)))),
            Self::InodeBitmap(group) => Some((group, BitmapSum::Inodes(sum(inode_bitmap_checksum)))),
            _ => None,
        }
    }
}

/// The checksum of a bitmap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BitmapSum {
    Blocks(u32),
    Inodes(u32),
}

fn htree(dir: InodeNumber, block: FileBlock) -> HtreeContext {
    HtreeContext { dir, block, checksums: true, large_dir: true }
}
