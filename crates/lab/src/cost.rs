//! The work of a workload's processes.

extant_rt::costs! {
    /// Work of a workload's processes.
    pub enum Cost of "lab" {
        /// Crossing from user to kernel and back, or a request through FUSE.
        Syscall = "syscall_ns",
    }
}
