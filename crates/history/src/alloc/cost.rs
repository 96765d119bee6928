//! The work of a search for free blocks, as far as processors are modelled.

extant_rt::costs! {
    /// Work of Linux's allocators.
    pub enum Cost of "Linux's allocator" {
        /// Looking at a group's counts, which lie in memory of their own.
        GroupConsidered = "group_considered_ns",
        /// Locking a group and finding its bitmap and its buddies.
        GroupSearched = "group_searched_ns",
        /// Looking whether a run begins at a multiple of the stripe.
        AlignedProbe = "aligned_probe_ns",
        /// Looking at a free run.
        RunExamined = "run_examined_ns",
    }
}
