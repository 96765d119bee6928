//! What work on the path costs.

macro_rules! costs {
    ($($(#[$doc:meta])* $variant:ident = $key:literal,)*) => {
        /// Work that code on the path does, counted in units.
        ///
        /// The virtual world's machine model gives the price of one unit of each; the real world charges nothing, since
        /// there the work itself takes the time.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Cost {
            /// Processor time as such.
            Cpu(crate::Nanos),
            $($(#[$doc])* $variant(u64),)*
        }

        impl Cost {
            /// The keys of a machine model's `[costs]` table, in the order of [`Cost::units`].
            pub const KEYS: &'static [&'static str] = &[$($key),*];

            /// Which price applies (an index into [`Cost::KEYS`]) and how many units; `None` for plain time.
            #[inline]
            pub fn units(self) -> Option<(usize, u64)> {
                #[repr(usize)]
                enum Index { $($variant),* }
                match self {
                    Cost::Cpu(_) => None,
                    $(Cost::$variant(n) => Some((Index::$variant as usize, n)),)*
                }
            }
        }
    };
}

costs! {
    /// Crossing from user to kernel and back, or a request through FUSE.
    Syscall = "syscall_ns",
    /// Copying pages of 4 KiB between a user's buffer and the cache.
    PageCopy = "page_copy_ns",
    /// Finding pages in a mapping, one look-up each.
    PageLookup = "page_lookup_ns",
    /// Adding pages to, or removing them from, a mapping.
    PageInsert = "page_insert_ns",
    /// Marking pages dirty, or clean for write-back.
    PageDirty = "page_dirty_ns",
    /// Locking, looking at and redirtying pages that a write-back pass cannot write yet.
    PageRedirty = "page_redirty_ns",
    /// Checksumming, per KiB.
    ChecksumKib = "checksum_kib_ns",
    /// Allocating blocks: one search of the allocator.
    BlockSearch = "block_search_ns",
    /// One look-up of a file's block mapping.
    MapLookup = "map_lookup_ns",
    /// Starting and stopping a journal handle.
    JournalHandle = "journal_handle_ns",
    /// Building a bio and handing it to its queue.
    BioSubmit = "bio_submit_ns",
    /// Adding segments to a bio.
    BioSegment = "bio_segment_ns",
    /// Trying to merge a bio, sorting it in, or choosing the next.
    ElevatorStep = "elevator_step_ns",
    /// Starting a command on a device.
    DeviceStart = "device_start_ns",
    /// Completing a bio, interrupt included.
    BioComplete = "bio_complete_ns",
    /// Putting a task on a wait queue.
    WaitQueue = "wait_queue_ns",
    /// Looking at waiters while waking.
    WaitScan = "wait_scan_ns",
}
