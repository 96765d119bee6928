//! Costs of a workload's processes.

extant_rt::costs! {
    /// Costs of a workload's processes.
    pub enum Cost of "lab" {
        /// Entering and leaving the kernel, or a request through FUSE.
        Syscall = "syscall_ns",
    }
}
