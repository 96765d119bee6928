//! Errors in the bytes of a structure, with its place.

use crate::{FileBlock, Group, InodeNumber, VolumeBlock};
use std::fmt;
use thiserror::Error;

/// A structure that cannot be what it claims to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{place}: {problem}")]
pub struct Corrupt {
    /// The structure, and where it lies.
    pub place: Place,
    /// The error in it.
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

    /// A volume that is longer than what it lies on.
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
    /// An inode's fixed part.
    Inode(InodeNumber),
    /// A node of an extent tree: in the inode itself, or in a block.
    ExtentNode(InodeNumber, Option<VolumeBlock>),
    /// An indirect block.
    IndirectBlock(InodeNumber, VolumeBlock),
    /// A block of a directory, counted within the directory.
    DirectoryBlock(InodeNumber, FileBlock),
    /// A node of a directory's hash tree, counted within the directory.
    HtreeNode(InodeNumber, FileBlock),
    /// A symbolic link's target.
    Symlink(InodeNumber),
    /// Data kept in the inode.
    InlineData(InodeNumber),
    /// Extended attributes kept in the inode.
    InodeXattrs(InodeNumber),
    /// A block of extended attributes.
    XattrBlock(InodeNumber, VolumeBlock),
    /// An access control list.
    Acl(InodeNumber),
    /// An inode that holds one extended attribute's value.
    XattrInode(InodeNumber),
    /// A block of the orphan file.
    OrphanFile(FileBlock),
    /// The journal's superblock.
    JournalSuperblock,
    /// A block of the journal, counted within the journal.
    JournalBlock(u32),
    /// The multiple-mount-protection block.
    Mmp(VolumeBlock),
    /// A quota file's header or tree block.
    Quota(InodeNumber, FileBlock),
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
    /// The magic number is another one.
    Magic {
        /// The value found.
        found: u32,
        /// The value required.
        expected: u32,
    },
    /// The stored checksum is not that of the contents.
    Checksum {
        /// The stored checksum.
        stored: u32,
        /// The checksum computed from the contents.
        computed: u32,
    },
    /// There are fewer bytes than the structure needs.
    Truncated {
        /// Bytes needed.
        needed: usize,
        /// Bytes there.
        have: usize,
    },
    /// The volume's end is missing.
    CutOff {
        /// Bytes of the volume.
        volume_bytes: u64,
        /// Bytes of the file or device that it lies on.
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
                let sizes = format_args!("the volume has {volume_bytes} bytes, the image {device_bytes}");
                write!(f, "the image is truncated: {sizes}; copy it again")
            }
            Self::Field { field, value, rule } => write!(f, "{field} is {value}, must be {rule}"),
        }
    }
}
