//! Trace events of the request queue.

use extant_rt::Nanos;

extant_rt::events! {
    /// Events of the request queue.
    pub enum Event {
        /// A bio arrived at a queue.
        BioQueued = "block/queue" {
            /// The device's number.
            device: u32,
            /// Operation.
            op: &'static str,
            /// First sector, in units of 512 bytes.
            sector: u64,
            /// Length in bytes.
            bytes: u64,
            /// The stream it is charged to.
            stream: u64,
        },
        /// A bio was merged into a request.
        BioMerged = "block/merge" {
            /// The device's number.
            device: u32,
            /// First sector, in units of 512 bytes.
            sector: u64,
            /// Length in bytes.
            bytes: u64,
            /// `front` or `back`.
            side: &'static str,
        },
        /// A request was sent to the device.
        BioDispatched = "block/dispatch" {
            /// The device's number.
            device: u32,
            /// Operation.
            op: &'static str,
            /// First sector, in units of 512 bytes.
            sector: u64,
            /// Length in bytes.
            bytes: u64,
            /// The elevator's rule that chose it.
            rule: &'static str,
        },
        /// A request completed.
        BioCompleted = "block/complete" {
            /// The device's number.
            device: u32,
            /// Operation.
            op: &'static str,
            /// First sector, in units of 512 bytes.
            sector: u64,
            /// Length in bytes.
            bytes: u64,
            /// Time since it was queued.
            took: Nanos,
        },
    }
}
