//! The work of a volume, as far as processors are modelled.

extant_rt::costs! {
    /// Work of a volume. Pages and their look-ups are charged by the page cache, bios by the request queue.
    pub enum Cost of "fs" {
        /// Operations' parts in transactions: opening and closing a handle, with the structures that it changes.
        JournalHandle = "journal_handle_ns",
        /// KiB of metadata that a commit encodes, checksums and hands to the log.
        ChecksumKib = "checksum_kib_ns",
        /// Searches for a free inode or for free blocks.
        BlockSearch = "block_search_ns",
        /// Look-ups of a name in the blocks of a directory: the way down its tree, and a leaf.
        DirectorySearch = "directory_search_ns",
    }
}
