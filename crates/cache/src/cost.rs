//! The work of the page cache.

extant_rt::costs! {
    /// Work of the page cache. Bios are not among it: the request queue below charges for each of them.
    pub enum Cost of "cache" {
        /// Copying pages of 4 KiB between a caller's buffer and the cache.
        PageCopy = "page_copy_ns",
        /// Finding pages in a mapping, one look-up each.
        PageLookup = "page_lookup_ns",
        /// Adding pages to, or removing them from, a mapping.
        PageInsert = "page_insert_ns",
        /// Marking pages dirty, or clean for write-back.
        PageDirty = "page_dirty_ns",
        /// Locking, looking at and leaving dirty pages that a pass of write-back cannot take yet.
        PageRedirty = "page_redirty_ns",
        /// Looking up a run of blocks in a file's block map.
        MapLookup = "map_lookup_ns",
    }
}
