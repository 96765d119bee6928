//! Costs of a check.

extant_rt::costs! {
    /// Work of a check, without the reads. The device below charges for them.
    pub enum Cost of "check" {
        /// Looking at inodes of a table, used or not.
        Inode = "check_inode_ns",
        /// Parsing blocks of maps, and computing their checksums.
        MapNode = "check_map_node_ns",
        /// Claiming runs of blocks for a file.
        Run = "check_run_ns",
        /// Beginning blocks of directories, and computing their checksums.
        DirectoryBlock = "check_directory_block_ns",
        /// Judging entries of directories.
        Entry = "check_entry_ns",
        /// Hashing names for an index, where inodes are in no order.
        NameHash = "check_name_hash_ns",
        /// Finding the places of directories in the tree, one task alone.
        Directory = "check_directory_ns",
        /// Reading the descriptors of groups, and comparing their counts and bitmaps with what was
        /// claimed: twice for each group, one task alone.
        Group = "check_group_ns",
    }
}
