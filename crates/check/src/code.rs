//! The kinds of damage, each with a stable name.

use std::fmt;

/// How much a finding matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// Summaries, or cosmetic matters; nothing that programs read is wrong.
    Low,
    /// Attributes or counts that programs see are wrong.
    Medium,
    /// Files are unreachable, shared or wrong.
    High,
    /// The volume cannot be used as it is.
    Fatal,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Low => "low",
            Self::Medium => "medium",
            Self::High => "high",
            Self::Fatal => "fatal",
        })
    }
}

macro_rules! codes {
    ($($name:ident $text:literal $structure:literal $severity:ident $cross:ident
        $meaning:literal $repair:literal $lost:literal $e2fsck:literal;)*) => {
        /// The kind of a finding. The names ([`Code::as_str`]) are stable.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum Code {
            $(#[doc = $meaning] $name,)*
        }

        impl Code {
            /// All codes, in the order in which findings are listed.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// The stable name.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }

            /// The structure that is wrong.
            pub const fn structure(self) -> &'static str {
                match self { $(Self::$name => $structure,)* }
            }

            /// How much the finding matters.
            pub const fn severity(self) -> Severity {
                match self { $(Self::$name => Severity::$severity,)* }
            }

            /// What is wrong, as a sentence without a full stop.
            pub const fn meaning(self) -> &'static str {
                match self { $(Self::$name => $meaning,)* }
            }

            /// The repair that this finding asks for, in words.
            pub const fn repair(self) -> &'static str {
                match self { $(Self::$name => $repair,)* }
            }

            /// What the repair would lose; empty for nothing.
            pub const fn lost(self) -> &'static str {
                match self { $(Self::$name => $lost,)* }
            }

            /// e2fsck's name for this finding, or why it has none.
            pub const fn e2fsck(self) -> &'static str {
                match self { $(Self::$name => $e2fsck,)* }
            }

            /// Whether several structures contradict each other. On a volume that is being written,
            /// the reason may be that they were read at different times.
            pub const fn is_cross(self) -> bool {
                match self { $(Self::$name => codes!(@cross $cross),)* }
            }
        }
    };
    (@cross one) => { false };
    (@cross cross) => { true };
}

codes! {
    SuperblockDamaged "superblock-damaged" "superblock" Fatal one
        "a field that everything else depends on makes no sense" "copy it from a backup" "mount state and error log"
        "PR_0_SB_CORRUPT, PR_0_MISC_CORRUPT_SUPER";
    SuperblockChecksum "superblock-checksum" "superblock" Medium one
        "the checksum is wrong" "compare it with the backups, then reseal it" "" "refused when the volume is opened";
    SuperblockInodes "superblock-inode-count" "superblock" Medium one
        "the number of inodes is not groups x inodes per group" "recompute it" "" "PR_0_INODE_COUNT_WRONG";
    SuperblockField "superblock-field" "superblock" Medium one
        "a field is out of its range" "take it from a backup, or the default" "" "PR_0_SB_CORRUPT, PR_0_BAD_WANT_EXTRA_ISIZE, PR_0_FIRST_META_BG_TOO_BIG, ...";
    SuperblockFeatures "superblock-features" "superblock" Medium one
        "features contradict each other" "keep the one that the structures prove" "" "PR_0_META_AND_GDT_CSUM_SET, PR_0_FS_REV_LEVEL, ...";
    FeatureMissing "feature-missing" "superblock" Medium one
        "a feature is in use that the superblock does not declare" "set its bit" "" "PR_1_EXTENT_FEATURE, PR_1_INLINE_DATA_FEATURE, PR_2_FEATURE_LARGE_FILES, ...";
    VolumeTruncated "volume-truncated" "superblock" Fatal one
        "the volume is longer than its device" "none: copy the image again, or enlarge it" "what lies beyond the end" "PR_0_FS_SIZE_WRONG";
    SuperblockUuid "superblock-no-uuid" "superblock" Low one
        "the UUID is all zeros" "make a new one" "" "none: -n is silent; a repair makes one (PR_0_ADD_UUID)";
    SuperblockFuture "superblock-future-time" "superblock" Low one
        "a time lies in the future" "set it to now, unless the clock is wrong" "" "PR_0_FUTURE_SB_LAST_MOUNT, PR_0_FUTURE_SB_LAST_WRITE";
    SuperblockHint "superblock-hash-sign" "superblock" Low one
        "it does not say whether names are hashed as signed or unsigned characters" "set the flag of this machine" "" "PR_0_DIRHASH_HINT";
    SuperblockHashSeed "superblock-hash-seed" "superblock" Low one
        "the seed of name hashes is zero, so anybody can choose names that collide" "make a random one, when all indexes are rebuilt" "" "none: not checked";
    SuperblockOverhead "superblock-overhead" "superblock" Low cross
        "the overhead differs from the space of the volume's own structures, so df is wrong" "recompute it" "" "none: not compared";
    SuperblockFreeBlocks "superblock-free-blocks" "superblock" Low cross
        "the count of free blocks is wrong" "recompute it" "" "PR_5_FREE_BLOCK_COUNT";
    SuperblockFreeInodes "superblock-free-inodes" "superblock" Low cross
        "the count of free inodes is wrong" "recompute it" "" "PR_5_FREE_INODE_COUNT";
    ErrorRecord "error-record" "superblock" Low one
        "errors that the kernel met are still on record" "clear the record" "the record" "none: cleared silently by a repair";
    BackupSuperblock "backup-superblock" "backup superblock" Low one
        "it is damaged, or differs from the primary one in what never changes" "write it anew" "" "none: only the first backup's features are looked at";
    BackupDescriptors "backup-descriptors" "backup descriptors" Low one
        "they place bitmaps or tables elsewhere than the primary ones" "write them anew" "" "none: not read";
    DescriptorChecksum "descriptor-checksum" "group descriptor" Medium one
        "the checksum is wrong" "reseal it if its fields agree with the bitmaps, else take the backup's" "" "PR_0_GDT_CSUM";
    DescriptorPlace "descriptor-location" "group descriptor" Fatal one
        "a bitmap or table lies outside the volume or its group, or overlaps another" "take the backup's" "files of the group, if no backup is right" "PR_0_BB_NOT_GROUP, PR_1_BB_CONFLICT, ...";
    DescriptorFlags "descriptor-flags" "group descriptor" Medium one
        "flags or the count of unused inodes make no sense" "recompute them" "" "PR_0_GDT_UNINIT, PR_0_GDT_ITABLE_UNUSED";
    DescriptorUnused "descriptor-unused-inodes" "group descriptor" Medium cross
        "inodes in use lie in the part of the table that is marked as unused" "lower the count of unused inodes" "" "PR_2_INOREF_IN_UNUSED, PR_2_INOREF_BG_INO_UNINIT";
    DescriptorFreeBlocks "descriptor-free-blocks" "group descriptor" Low cross
        "the count of free blocks is wrong" "recompute it" "" "PR_5_FREE_BLOCK_COUNT_GROUP";
    DescriptorFreeInodes "descriptor-free-inodes" "group descriptor" Low cross
        "the count of free inodes is wrong" "recompute it" "" "PR_5_FREE_INODE_COUNT_GROUP";
    DescriptorDirectories "descriptor-directories" "group descriptor" Low cross
        "the count of directories is wrong" "recompute it" "" "PR_5_FREE_DIR_COUNT_GROUP";
    BlockBitmapChecksum "block-bitmap-checksum" "block bitmap" Low cross
        "the checksum is wrong" "rebuild it" "" "PR_5_BLOCK_BITMAP_CSUM_INVALID";
    BlockBitmapPadding "block-bitmap-padding" "block bitmap" Low one
        "bits beyond the group are not set" "set them" "" "PR_5_BLOCK_BMAP_PADDING";
    BlockBitmapFree "block-free-in-use" "block bitmap" High cross
        "blocks in use are marked as free, and may be given to another file" "mark them as used" "" "PR_5_BLOCK_USED";
    BlockBitmapLeaked "block-used-unclaimed" "block bitmap" Low cross
        "blocks are marked as used, but nothing claims them" "mark them as free" "what only they still prove" "PR_5_BLOCK_UNUSED";
    InodeBitmapChecksum "inode-bitmap-checksum" "inode bitmap" Low cross
        "the checksum is wrong" "rebuild it" "" "PR_5_INODE_BITMAP_CSUM_INVALID";
    InodeBitmapPadding "inode-bitmap-padding" "inode bitmap" Low one
        "bits beyond the group are not set" "set them" "" "PR_5_INODE_BMAP_PADDING";
    InodeBitmapFree "inode-free-in-use" "inode bitmap" High cross
        "an inode in use is marked as free, and may be given to another file" "mark it as used" "" "PR_5_INODE_USED";
    InodeBitmapLeaked "inode-used-unclaimed" "inode bitmap" Low cross
        "an inode is marked as used, but is not" "mark it as free" "" "PR_5_INODE_UNUSED";
    ReadError "read-error" "device" High one
        "a block of metadata cannot be read" "none: copy the image to a sound disk first" "what the block held" "PR_1_READ_INODE, PR_2_READ_DIRBLOCK, ...";
    InodeChecksum "inode-checksum" "inode" Medium one
        "the checksum is wrong" "reseal it if its map, links and names agree" "" "PR_1_INODE_ONLY_CSUM_INVALID";
    InodeMode "inode-mode" "inode" High one
        "the mode has no valid kind of file, or one that its place does not allow" "take the kind from its directory entry and contents" "" "PR_2_BAD_MODE, PR_1_RESERVED_BAD_MODE, PR_1_JOURNAL_BAD_MODE";
    InodeSpecial "inode-special-contents" "inode" Medium one
        "a device, pipe or socket has a size, blocks or flags that it cannot have" "zero them" "" "PR_1_SET_NONZSIZE, PR_1_SET_IMMUTABLE, PR_2_BAD_CHAR_DEV";
    InodeDtime "inode-dtime" "inode" Low one
        "an inode in use has a time of deletion, or a deleted one has none" "set it by the links" "" "PR_1_SET_DTIME, PR_1_ZERO_DTIME, PR_1_ROOT_DTIME";
    InodeSize "inode-size" "inode" Medium cross
        "the size contradicts the map" "set it to the end of the map" "" "PR_1_BAD_I_SIZE";
    InodeBlocks "inode-blocks" "inode" Low cross
        "the count of blocks differs from the map" "recompute it" "" "PR_1_BAD_I_BLOCKS";
    InodeObsolete "inode-obsolete-field" "inode" Low one
        "a field that is no longer used is not zero" "zero it" "" "PR_2_FADDR_ZERO, PR_2_FILE_ACL_HI_ZERO, PR_2_BLOCKS_HI_ZERO, PR_2_DIR_SIZE_HIGH_ZERO";
    InodeFlags "inode-flags" "inode" Low one
        "flags contradict each other, the kind of file or the features" "clear the flag" "" "PR_1_SET_IMAGIC, PR_1_HTREE_SET, PR_1_CASEFOLD_FEATURE, ...";
    InodeUnknownFlags "inode-unknown-flags" "inode" Low one
        "flags are set that nothing on this volume gives a meaning to" "clear them" "" "none: not checked";
    InodeExtraSize "inode-extra-size" "inode" Medium one
        "the size of the extra fields makes no sense" "set the usual one" "attributes in the inode" "PR_1_EXTRA_ISIZE";
    InodeTime "inode-time" "inode" Low one
        "a time has more than 999,999,999 nanoseconds" "clamp it" "" "none: not checked";
    InodeTimeRange "inode-time-range" "inode" Low one
        "a time lies after 2310 and was likely meant to lie before 1970" "clear the two high bits" "" "PR_1_EA_TIME_OUT_OF_RANGE";
    InodeReserved "inode-reserved" "inode" Medium one
        "a reserved inode has contents that its number does not allow" "clear it" "what it holds" "PR_1_JOURNAL_INODE_NOT_CLEAR, PR_1_QUOTA_INODE_NOT_CLEAR, PR_1_INVALID_BAD_INODE";
    RootMissing "root-missing" "inode" High one
        "the root directory is missing or is no directory" "make a new root and put the top directories back" "names in the root" "PR_1_ROOT_NO_DIR, PR_3_NO_ROOT_INODE";
    ResizeInode "resize-inode" "inode" Low one
        "its map of reserved descriptor blocks is wrong" "rebuild it from the geometry" "" "PR_0_RESIZE_INODE_INVALID, PR_0_CLEAR_RESIZE_INODE";
    BadBlocks "bad-blocks" "inode" Medium one
        "the list of bad blocks makes no sense" "drop the senseless entries" "" "PR_1_BB_ILLEGAL_BLOCK_NUM, PR_1_BBINODE_BAD_METABLOCK, ...";
    ExtentHeader "extent-header" "extent tree" High one
        "a node's header is wrong" "rebuild it if its entries or checksum prove it" "what lies below it" "PR_1_MISSING_EXTENT_HEADER, PR_1_READ_EXTENT, PR_1_EXTENT_HEADER_INVALID";
    ExtentChecksum "extent-checksum" "extent tree" Medium one
        "a node's checksum is wrong" "reseal it if its entries agree with the bitmap" "" "PR_1_EXTENT_ONLY_CSUM_INVALID";
    ExtentEntry "extent-entry" "extent tree" High one
        "an entry is empty, overlaps, is out of order or lies outside the volume" "drop the entry" "the range that it maps" "PR_1_EXTENT_BAD_START_BLK, PR_1_EXTENT_ENDS_BEYOND, PR_1_OUT_OF_ORDER_EXTENTS, PR_1_EXTENT_LENGTH_ZERO, PR_1_EXTENT_COLLISION";
    ExtentIndex "extent-index-start" "extent tree" Medium one
        "an index entry begins elsewhere than its child" "take the child's start" "" "PR_1_EXTENT_INDEX_START_INVALID";
    ExtentUnwritten "extent-unwritten" "extent tree" Medium one
        "a directory has blocks that are marked as never written" "mark them as written if they parse" "" "PR_1_UNINIT_DBLOCK, PR_1_CLEAR_UNINIT_EXTENT";
    MapForm "map-form" "inode" High one
        "flags and contents disagree whether the map is extents, blocks or inline data" "take the form that the contents prove" "" "PR_1_UNSET_EXTENT_FL, PR_1_EXTENTS_SET, PR_1_FAST_SYMLINK_EXTENT_FL, PR_1_INLINE_DATA_SET";
    MapPointer "map-pointer" "block map" High one
        "a pointer lies outside the volume" "make it a hole" "the range that it maps" "PR_1_ILLEGAL_BLOCK_NUM";
    MapCluster "map-cluster" "block map" High one
        "blocks do not follow the rules of clusters" "move them to a cluster of their own" "" "PR_1_MISALIGNED_CLUSTER, PR_1_NO_BIGALLOC_BLOCKMAP_FILES";
    BlockOverlap "block-overlaps-metadata" "block map" High cross
        "a file's map claims blocks of the volume's own structures" "give the file a hole" "the range" "PR_1_BLOCK_OVERLAPS_METADATA";
    BlockShared "block-shared" "block map" High cross
        "a block is claimed more than once" "find the owner by checksums and contents; clone it for the others" "" "PR_1B_DUP_BLOCK";
    InlineData "inline-data" "inline data" High one
        "its attribute is missing or its size is wrong" "keep what is in the inode" "what is not there" "PR_1_INLINE_DATA_NO_ATTR, PR_2_BAD_INLINE_DIR_SIZE";
    InlineSize "inline-size" "inline data" High one
        "the size of a file is not that of its data in the inode" "give it a map with a hole behind the data" "" "none: only compared for directories";
    Symlink "symlink" "symbolic link" High one
        "the target's length or form is wrong" "cut it to what is readable" "the rest of the target" "PR_2_INVALID_SYMLINK";
    XattrBlock "xattr-block" "attribute block" Medium one
        "the block is no attribute block, or cannot be parsed" "rebuild its header if its entries parse" "attributes" "PR_1_BAD_EA_BLOCK, PR_1_EA_MULTI_BLOCK, PR_1_EA_ALLOC_COLLISION";
    XattrPointer "xattr-pointer" "inode" Medium one
        "the number of the attribute block lies outside the volume" "clear it" "attributes" "PR_2_FILE_ACL_BAD, PR_2_FILE_ACL_ZERO";
    XattrChecksum "xattr-checksum" "attribute block" Medium one
        "the checksum is wrong" "reseal it if the entries' hashes agree" "" "PR_1_EA_BLOCK_ONLY_CSUM_INVALID";
    XattrReferences "xattr-references" "attribute block" Low cross
        "the count of inodes that share the block is wrong" "recount it" "" "PR_1_EXTATTR_REFCOUNT";
    XattrEntry "xattr-entry" "attribute" Medium one
        "a name or value is malformed" "drop the attribute" "the attribute" "PR_1_EA_BAD_NAME, PR_1_EA_BAD_VALUE, PR_1_ATTR_NAME_LEN, ...";
    XattrName "xattr-name" "attribute" Medium one
        "a name has NUL bytes in it, so Linux refuses all attributes there" "drop the attribute" "the attribute" "none: not checked";
    XattrHash "xattr-hash" "attribute" Low one
        "the hash of an attribute is wrong" "recompute it if the value makes sense" "" "PR_1_ATTR_HASH";
    XattrBlockHash "xattr-block-hash" "attribute block" Low one
        "the hash of all attributes is wrong, so the block is not shared" "recompute it" "" "none: not checked";
    XattrOrder "xattr-order" "attribute block" Medium one
        "attributes are not in order, so the kernel does not find them" "sort them" "" "none: not checked";
    XattrDuplicate "xattr-duplicate" "attribute" Medium one
        "an attribute occurs twice" "keep the one that the kernel finds" "the other value" "none: not checked";
    XattrIndex "xattr-index" "attribute" Low one
        "a name has an unknown prefix and is invisible" "drop the attribute" "the attribute" "none: not checked";
    XattrAcl "xattr-acl" "attribute" Medium one
        "an access list is malformed" "drop it" "the list: permissions change" "none: not checked";
    XattrCapability "xattr-capability" "attribute" Medium one
        "file capabilities are malformed" "drop them" "the capabilities" "none: not checked";
    XattrInode "xattr-inode" "attribute value inode" Medium cross
        "the inode that an attribute's value is in is missing, wrong or not marked as such" "drop the attribute" "the value" "PR_1_ATTR_VALUE_EA_INODE, PR_1_ATTR_SET_EA_INODE_FL";
    XattrInodeReferences "xattr-inode-references" "attribute value inode" Low cross
        "the count of references to an attribute's value is wrong" "recount it" "" "PR_4_EA_INODE_REF_COUNT";
    Encryption "encryption" "inode" High one
        "an encrypted inode has no valid encryption context" "none that is safe" "" "PR_1_MISSING_ENCRYPTION_XATTR, PR_1_CORRUPT_ENCRYPTION_XATTR";
    EncryptionPolicy "encryption-policy" "directory entry" Medium cross
        "a file in an encrypted directory is not encrypted, or under another policy" "none that is safe" "" "PR_2_UNENCRYPTED_FILE, PR_2_INCONSISTENT_ENCRYPTION_POLICY";
    DirectoryHole "directory-hole" "directory" Medium cross
        "a block of the directory is not mapped" "give it an empty block" "names, if it was lost" "PR_2_DIRECTORY_HOLE";
    DirectoryBlock "directory-block" "directory" High one
        "entries of a block cannot be parsed" "resynchronise on entries that name an inode of the right kind" "names" "PR_2_DIR_CORRUPTED";
    DirectoryChecksum "directory-checksum" "directory" Medium one
        "a block's checksum is missing or wrong" "reseal it if all its entries resolve" "" "PR_2_LEAF_NODE_MISSING_CSUM, PR_2_LEAF_NODE_ONLY_CSUM_INVALID";
    DirectoryDot "directory-dot" "directory" Medium one
        "the entry . is missing, wrong or not the first" "write it anew" "" "PR_2_MISSING_DOT, PR_2_1ST_NOT_DOT, PR_2_BAD_INODE_DOT";
    DirectoryDotDot "directory-dotdot" "directory" Medium cross
        "the entry .. is missing, not the second, or names another directory than the parent" "write the parent that names it" "" "PR_2_MISSING_DOT_DOT, PR_2_2ND_NOT_DOT_DOT, PR_3_BAD_DOT_DOT";
    DirectoryDuplicateDot "directory-second-dot" "directory entry" Medium one
        "a second entry is named . or .." "remove it" "" "PR_2_DUP_DOT, PR_2_DUP_DOT_DOT";
    EntryInode "entry-inode" "directory entry" High one
        "an entry names an inode that no entry may name" "remove it" "the name" "PR_2_BAD_INO, PR_2_LINK_DOT, PR_2_LINK_ROOT, PR_2_BB_INODE";
    EntryUnused "entry-unused-inode" "directory entry" High cross
        "an entry names an inode that is not in use" "remove it, unless the journal has the inode" "the name" "PR_2_UNUSED_INODE";
    EntryName "entry-name" "directory entry" High one
        "a name is empty or has / or NUL in it" "rename it" "the old name" "PR_2_BAD_NAME, PR_2_NULL_NAME, PR_2_BAD_ENCRYPTED_NAME";
    EntryKind "entry-kind" "directory entry" Low cross
        "the kind in the entry differs from the inode's" "take the inode's" "" "PR_2_BAD_FILETYPE, PR_2_CLEAR_FILETYPE";
    EntryNoKind "entry-no-kind" "directory entry" Low one
        "an entry does not say of what kind its inode is" "take the inode's" "" "none: -n is silent; a repair sets it (PR_2_SET_FILETYPE)";
    EntryDuplicate "entry-duplicate" "directory entry" High one
        "a name occurs twice in one block of a directory" "rename the later one" "" "PR_2_DUPLICATE_DIRENT, PR_2_NON_UNIQUE_FILE";
    EntryDuplicateAcross "entry-duplicate-across" "directory entry" High one
        "a name occurs twice in different blocks of a directory" "rename the later one" "" "none: only looked for within a block";
    EntryDirectoryLink "entry-directory-link" "directory entry" High cross
        "a directory has a second name" "keep the one that .. agrees with" "the other name" "PR_2_LINK_DIR";
    EntryValueInode "entry-value-inode" "directory entry" Medium cross
        "an entry names an inode that holds an attribute's value" "remove it" "the name" "PR_2_EA_INODE_DIR_LINK";
    HtreeRoot "htree-root" "htree" Low one
        "the root of a directory's index is wrong" "rebuild the index" "" "PR_1_HTREE_BADROOT, PR_1_HTREE_HASHV, PR_1_HTREE_DEPTH, ...";
    HtreeNode "htree-node" "htree" Low one
        "a node of a directory's index is wrong" "rebuild the index" "" "PR_2_HTREE_BAD_LIMIT, PR_2_HTREE_HASH_ORDER, PR_2_HTREE_NODE_ONLY_CSUM_INVALID";
    HtreeReference "htree-reference" "htree" Medium cross
        "a block is not reached through the index, or more than once, or lies outside the directory" "rebuild the index" "" "PR_2_HTREE_NOTREF, PR_2_HTREE_DUPREF, PR_2_HTREE_BADBLK";
    HtreeRange "htree-range" "htree" Medium cross
        "names lie outside the range of hashes of their block, so a look-up misses them" "rebuild the index" "" "PR_2_HTREE_MIN_HASH, PR_2_HTREE_MAX_HASH";
    DirectoryUnreachable "directory-unreachable" "directory" High cross
        "no entry names the directory" "put it back where .. points, or in lost+found" "its name" "PR_3_UNCONNECTED_DIR";
    DirectoryLoop "directory-loop" "directory" High cross
        "the directory is not below the root, but below itself" "cut the loop at the entry that .. contradicts" "a name" "PR_3_LOOPED_DIR";
    LostFound "lost-found" "directory" Low one
        "/lost+found is not a directory" "make a new one" "" "PR_3_LPF_NOTDIR";
    InodeUnattached "inode-unattached" "inode" High cross
        "an inode in use has no name" "give it a name in lost+found" "its name" "PR_4_UNATTACHED_INODE, PR_4_ZERO_LEN_INODE";
    LinkCount "link-count" "inode" Medium cross
        "the count of links differs from the names" "recount it" "" "PR_4_BAD_REF_COUNT";
    OrphanList "orphan-list" "orphan list" Medium cross
        "the list of deleted files that were still open is broken" "rebuild it from inodes without links" "" "PR_0_ORPHAN_ILLEGAL_HEAD_INODE, PR_0_ORPHAN_ILLEGAL_INODE, PR_1_LOW_DTIME";
    OrphanFile "orphan-file" "orphan file" Medium one
        "the orphan file is damaged" "make it empty after taking its entries" "" "PR_1_ORPHAN_FILE_BAD_MODE, PR_0_ORPHAN_FILE_BAD_MAGIC, PR_6_ORPHAN_PRESENT_CLEAN_FILE, ...";
    JournalInode "journal-inode" "journal" High one
        "the journal's inode is missing or cannot hold a journal" "take its map from the superblock's copy, or make a new journal" "changes not yet replayed" "PR_0_JOURNAL_BAD_INODE, PR_0_JOURNAL_UNSUPP_FILESYSTEM";
    JournalSuperblock "journal-superblock" "journal" High one
        "the journal's superblock is damaged" "search the log for the newest commits" "changes not yet replayed" "PR_0_JOURNAL_BAD_SUPER";
    JournalLog "journal-log" "journal" High one
        "the log is damaged" "stop there, as the kernel does" "newer changes" "none: -n does not read the log; a repair finds PR_0_JNL_TXN_CORRUPT";
    JournalState "journal-state" "journal" High one
        "the superblock and the journal disagree whether there is something to replay" "ask: never replay what is older than the last write" "newer changes, if replayed" "PR_0_JOURNAL_RECOVERY_CLEAR, PR_0_JOURNAL_RECOVER_SET, PR_0_JOURNAL_HAS_JOURNAL";
    JournalErrno "journal-errno" "journal" Low one
        "the journal was aborted by an error" "clear the record" "the record" "none: cleared silently by a repair";
    Mmp "mmp" "multiple-mount-protection block" Medium one
        "it is damaged" "write it again when the volume is not in use" "" "PR_0_MMP_CSUM_INVALID, PR_0_MMP_INVALID_BLK, PR_0_MMP_INVALID_MAGIC";
    QuotaInode "quota-inode" "quota" Medium one
        "a quota file's inode is missing or wrong" "make a new one" "limits" "PR_0_INVALID_QUOTA_INO, PR_1_QUOTA_BAD_MODE";
    QuotaFile "quota-file" "quota" Medium one
        "a quota file is damaged" "make a new one" "limits" "PR_6_UPDATE_QUOTAS";
    QuotaUsage "quota-usage" "quota" Medium cross
        "usage in a quota file is wrong" "recompute it" "" "PR_6_UPDATE_QUOTAS";
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
