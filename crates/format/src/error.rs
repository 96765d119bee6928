//! Errors in a structure's bytes, and the structure's location.

use crate::{FileBlock, Group, InodeNumber, VolumeBlock};
use std::fmt;
use thiserror::Error;

/// A structure that is not what it claims to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{place}: {problem}")]
pub struct Corrupt {
    /// The structure and its location.
    pub place: Place,
    /// What is wrong with it.
    pub problem: Problem,
}

impl Corrupt {
    /// A field whose value breaks a rule; `rule` completes the sentence "… is `value`, must be …".
    pub const fn field(place: Place, field: &'static str, value: u64, rule: &'static str) -> Self {
        Self { place, problem: Problem::Field { field, value, rule } }
    }

    /// A structure that needs more bytes than there are.
    pub const fn truncated(place: Place, needed: usize, have: usize) -> Self {
        Self { place, problem: Problem::Truncated { needed, have } }
    }

    /// A volume that is longer than its device or file.
    pub const fn cut_off(volume_bytes: u64, device_bytes: u64) -> Self {
        Self { place: Place::Superblock, problem: Problem::CutOff { volume_bytes, device_bytes } }
    }

    /// A stored checksum that differs from the computed one.
    pub const fn checksum(place: Place, stored: u32, computed: u32) -> Self {
        Self { place, problem: Problem::Checksum { stored, computed } }
    }
}

/// A structure of the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Place {
    /// The superblock, or one of its backups.
    Superblock,
    /// The descriptor of a block group.
    GroupDescriptor(Group),
    /// A group's block bitmap.
    BlockBitmap(Group),
    /// A group's inode bitmap.
    InodeBitmap(Group),
    /// The fixed part of an inode.
    Inode(InodeNumber),
    /// A node of an extent tree: in the inode itself, or in a block.
    ExtentNode(InodeNumber, Option<VolumeBlock>),
    /// An indirect block.
    IndirectBlock(InodeNumber, VolumeBlock),
    /// A block of a directory, numbered within it.
    DirectoryBlock(InodeNumber, FileBlock),
    /// A node of a directory's hash tree, by its block number within the directory.
    HtreeNode(InodeNumber, FileBlock),
    /// Target of a symbolic link.
    Symlink(InodeNumber),
    /// Inline data in an inode.
    InlineData(InodeNumber),
    /// Extended attributes in an inode.
    InodeXattrs(InodeNumber),
    /// A block of extended attributes.
    XattrBlock(InodeNumber, VolumeBlock),
    /// An access control list.
    Acl(InodeNumber),
    /// An inode that holds the value of an extended attribute.
    XattrInode(InodeNumber),
    /// A block of the orphan file.
    OrphanFile(FileBlock),
    /// The journal's superblock.
    JournalSuperblock,
    /// A block of the journal, numbered within it.
    JournalBlock(u32),
    /// The multiple-mount-protection block.
    Mmp(VolumeBlock),
    /// A quota file's header or tree block.
    Quota(InodeNumber, FileBlock),
}

impl Place {
    /// The inode that the structure belongs to, if it is that of a file or directory.
    pub const fn inode(&self) -> Option<InodeNumber> {
        match *self {
            Self::Inode(inode)
            | Self::ExtentNode(inode, _)
            | Self::IndirectBlock(inode, _)
            | Self::DirectoryBlock(inode, _)
            | Self::HtreeNode(inode, _)
            | Self::Symlink(inode)
            | Self::InlineData(inode)
            | Self::InodeXattrs(inode)
            | Self::XattrBlock(inode, _)
            | Self::Acl(inode)
            | Self::XattrInode(inode)
            | Self::Quota(inode, _) => Some(inode),
            Self::Superblock
            | Self::GroupDescriptor(_)
            | Self::BlockBitmap(_)
            | Self::InodeBitmap(_)
            | Self::OrphanFile(_)
            | Self::JournalSuperblock
            | Self::JournalBlock(_)
            | Self::Mmp(_) => None,
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Superblock => write!(f, "superblock"),
            Self::GroupDescriptor(g) => write!(f, "descriptor of group {g}"),
            Self::BlockBitmap(g) => write!(f, "block bitmap of group {g}"),
            Self::InodeBitmap(g) => write!(f, "inode bitmap of group {g}"),
            Self::Inode(i) => write!(f, "inode {i}"),
            Self::ExtentNode(i, None) => write!(f, "inode {i}: extent root"),
            Self::ExtentNode(i, Some(b)) => write!(f, "inode {i}: extent node in block {b}"),
            Self::IndirectBlock(i, b) => write!(f, "inode {i}: indirect block {b}"),
            Self::DirectoryBlock(i, b) => write!(f, "directory {i}: block {b}"),
            Self::HtreeNode(i, b) => write!(f, "directory {i}: htree node in block {b}"),
            Self::Symlink(i) => write!(f, "symbolic link {i}"),
            Self::InlineData(i) => write!(f, "inode {i}: inline data"),
            Self::InodeXattrs(i) => write!(f, "inode {i}: attributes in the inode"),
            Self::XattrBlock(i, b) => write!(f, "inode {i}: attribute block {b}"),
            Self::Acl(i) => write!(f, "inode {i}: access control list"),
            Self::XattrInode(i) => write!(f, "attribute value inode {i}"),
            Self::OrphanFile(b) => write!(f, "orphan file: block {b}"),
            Self::JournalSuperblock => write!(f, "journal superblock"),
            Self::JournalBlock(b) => write!(f, "journal block {b}"),
            Self::Mmp(b) => write!(f, "multiple-mount-protection block {b}"),
            Self::Quota(i, b) => write!(f, "quota file {i}: block {b}"),
        }
    }
}

/// The kind of error in a structure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Problem {
    /// Wrong magic number.
    Magic {
        /// The value found.
        found: u32,
        /// The expected value.
        expected: u32,
    },
    /// The stored checksum does not match the contents.
    Checksum {
        /// The stored checksum.
        stored: u32,
        /// The checksum computed from the contents.
        computed: u32,
    },
    /// The structure is cut short.
    Truncated {
        /// Bytes needed.
        needed: usize,
        /// Bytes available.
        have: usize,
    },
    /// The end of the volume is missing.
    CutOff {
        /// Size of the volume in bytes.
        volume_bytes: u64,
        /// Size of the file or device in bytes.
        device_bytes: u64,
    },
    /// A field breaks a rule.
    Field {
        /// The kernel's name of the field.
        field: &'static str,
        /// Its value.
        value: u64,
        /// Completes "must be …".
        rule: &'static str,
    },
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Magic { found, expected } => write!(f, "magic is {found:#x}, expected {expected:#x}"),
            Self::Checksum { stored, computed } => {
                write!(f, "checksum is {stored:#010x}, contents give {computed:#010x}")
            }
            Self::Truncated { needed, have } => write!(f, "needs {needed} bytes, there are {have}"),
            Self::CutOff { volume_bytes, device_bytes } => {
                let image = format!("the volume has {volume_bytes} bytes, the image {device_bytes}");
                write!(f, "the image is truncated: {image}; copy it again")
            }
            Self::Field { field, value, rule } => write!(f, "{field} is {value}, must be {rule}"),
        }
    }
}
