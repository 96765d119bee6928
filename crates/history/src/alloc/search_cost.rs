//! The work of searching for free blocks, as charged to modelled processors.

extant_rt::costs! {
    /// Work of Linux's allocators.
    pub enum Cost of "Linux's allocator" {
        /// Looking at a group's counters, which are in memory of their own.
        GroupConsidered = "group_considered_ns",
        /// Locking a group and finding its bitmap and its buddies.
        GroupSearched = "group_searched_ns",
        /// Checking whether a run starts at a multiple of the stripe.
        AlignedProbe = "aligned_probe_ns",
        /// Checking a free run.
        RunExamined = "run_examined_ns",
    }
}
