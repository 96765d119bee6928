//! Costs of the page cache.

extant_rt::costs! {
    /// Work of the page cache. Bios are not included: the request queue below charges for them.
    pub enum Cost of "cache" {
        /// Copying pages of 4 KiB between a caller's buffer and the cache.
        PageCopy = "page_copy_ns",
        /// Looking up pages in a mapping, one look-up each.
        PageLookup = "page_lookup_ns",
        /// Adding pages to, or removing them from, a mapping.
        PageInsert = "page_insert_ns",
        /// Marking pages dirty, or clean for write-back.
        PageDirty = "page_dirty_ns",
        /// Locking a dirty page, looking at it, and leaving it dirty because the pass cannot take
        /// it yet.
        PageRedirty = "page_redirty_ns",
        /// Looking up a run of blocks in a file's block map.
        MapLookup = "map_lookup_ns",
    }
}
