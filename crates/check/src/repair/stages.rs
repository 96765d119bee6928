//! In which order findings are repaired, and which repairs are safe.

use crate::Code;

/// The order in which findings are repaired.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Stage {
    Superblock,
    Journal,
    Descriptors,
    /// Single flipped bits in everything that has a 32-bit checksum.
    Bits,
    Inodes,
    /// Sizes and block counts, which follow from maps.
    Sizes,
    Contested,
    Directories,
    Tree,
    Links,
    Counts,
    /// Findings that are reported, but that no repair changes.
    Told,
}

/// The stage of a finding's repair.
pub(super) fn stage(code: Code) -> Stage {
    use Code as C;
    match code {
        C::SuperblockDamaged | C::SuperblockChecksum | C::SuperblockInodes | C::SuperblockField => {
            Stage::Superblock
        }
        C::JournalLog | C::JournalState | C::JournalSuperblock | C::JournalInode => Stage::Journal,
        C::DescriptorChecksum | C::DescriptorPlace | C::DescriptorFlags => Stage::Descriptors,
        C::SuperblockFeatures
        | C::FeatureMissing
        | C::SuperblockUuid
        | C::SuperblockHint
        | C::InodeChecksum
        | C::InodeMode
        | C::InodeSpecial
        | C::InodeDtime
        | C::InodeObsolete
        | C::InodeFlags
        | C::InodeUnknownFlags
        | C::InodeExtraSize
        | C::InodeTime
        | C::InodeTimeRange
        | C::InodeReserved
        | C::ResizeInode
        | C::BadBlocks
        | C::ExtentHeader
        | C::ExtentChecksum
        | C::ExtentEntry
        | C::ExtentIndex
        | C::ExtentUnwritten
        | C::MapForm
        | C::MapPointer
        | C::MapCluster
        | C::InlineData
        | C::InlineSize
        | C::Symlink
        | C::XattrBlock
        | C::XattrPointer
        | C::XattrChecksum
        | C::XattrReferences
        | C::XattrEntry
        | C::XattrName
        | C::XattrHash
        | C::XattrBlockHash
        | C::XattrOrder
        | C::XattrDuplicate
        | C::XattrIndex
        | C::XattrAcl
        | C::XattrCapability
        | C::XattrInode
        | C::XattrInodeReferences
        | C::OrphanList
        | C::OrphanFile
        | C::Mmp
        | C::QuotaInode
        | C::JournalErrno => Stage::Inodes,
        C::InodeSize | C::InodeBlocks => Stage::Sizes,
        C::BlockOverlap | C::BlockShared => Stage::Contested,
        C::DirectoryHole
        | C::DirectoryBlock
        | C::DirectoryChecksum
        | C::DirectoryDot
        | C::DirectoryDuplicateDot
        | C::EntryInode
        | C::EntryUnused
        | C::EntryName
        | C::EntryKind
        | C::EntryNoKind
        | C::EntryDuplicate
        | C::EntryDuplicateAcross
        | C::EntryDirectoryLink
        | C::EntryValueInode
        | C::HtreeRoot
        | C::HtreeNode
        | C::HtreeReference
        | C::HtreeRange => Stage::Directories,
        C::RootMissing
        | C::LostFound
        | C::DirectoryUnreachable
        | C::DirectoryLoop
        | C::DirectoryDotDot
        | C::InodeUnattached => Stage::Tree,
        C::LinkCount => Stage::Links,
        C::SuperblockOverhead
        | C::SuperblockFreeBlocks
        | C::SuperblockFreeInodes
        | C::SuperblockFuture
        | C::ErrorRecord
        | C::BackupSuperblock
        | C::BackupDescriptors
        | C::DescriptorUnused
        | C::DescriptorFreeBlocks
        | C::DescriptorFreeInodes
        | C::DescriptorDirectories
        | C::BlockBitmapChecksum
        | C::BlockBitmapPadding
        | C::BlockBitmapFree
        | C::BlockBitmapLeaked
        | C::InodeBitmapChecksum
        | C::InodeBitmapPadding
        | C::InodeBitmapFree
        | C::InodeBitmapLeaked
        | C::QuotaFile
        | C::QuotaUsage => Stage::Counts,
        C::VolumeTruncated | C::ReadError | C::SuperblockHashSeed | C::Encryption | C::EncryptionPolicy => {
            Stage::Told
        }
    }
}

/// Whether a plan may be carried out although findings of this kind stay: this crate cannot repair
/// them, and other repairs do not make them worse.
pub(super) fn is_told_only(code: Code) -> bool {
    matches!(code, Code::SuperblockHashSeed | Code::Encryption | Code::EncryptionPolicy)
}

/// Whether the usual repair of a finding loses nothing that can be read, and follows from other
/// structures.
pub(super) fn is_safe(code: Code) -> bool {
    use Code as C;
    !matches!(
        code,
        C::SuperblockDamaged
            | C::JournalLog
            | C::JournalState
            | C::JournalSuperblock
            | C::JournalInode
            | C::DescriptorPlace
            | C::InodeMode
            | C::InodeExtraSize
            | C::InodeReserved
            | C::RootMissing
            | C::BadBlocks
            | C::ExtentHeader
            | C::ExtentEntry
            | C::MapForm
            | C::MapPointer
            | C::MapCluster
            | C::BlockOverlap
            | C::BlockShared
            | C::InlineData
            | C::Symlink
            | C::XattrBlock
            | C::XattrPointer
            | C::XattrEntry
            | C::XattrName
            | C::XattrDuplicate
            | C::XattrIndex
            | C::XattrAcl
            | C::XattrCapability
            | C::XattrInode
            | C::DirectoryHole
            | C::DirectoryBlock
            | C::EntryInode
            | C::EntryUnused
            | C::EntryName
            | C::EntryDirectoryLink
            | C::EntryValueInode
            | C::DirectoryLoop
            | C::QuotaInode
            | C::QuotaFile
            | C::Mmp
    )
}
