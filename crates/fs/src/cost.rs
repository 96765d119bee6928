//! The work of a volume, for modelled processors.

extant_rt::costs! {
    /// Work of a volume. The page cache charges for pages and their lookups, the request queue for
    /// bios.
    pub enum Cost of "fs" {
        /// Handles: opening and closing one, including the structures it changes.
        JournalHandle = "journal_handle_ns",
        /// KiB of metadata that a commit encodes, checksums and passes to the log.
        ChecksumKib = "checksum_kib_ns",
        /// Searches for a free inode or for free blocks.
        BlockSearch = "block_search_ns",
        /// Lookups of a name in a directory's blocks: the descent through its tree, and a leaf.
        DirectorySearch = "directory_search_ns",
    }
}
