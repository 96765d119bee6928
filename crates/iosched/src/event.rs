//! The events of the request queue.

use extant_rt::Nanos;

extant_rt::events! {
    /// Events of the request queue.
    pub enum Event {
        /// A bio came to a queue.
        BioQueued = "block/queue" {
            /// The device's number.
            device: u32,
            /// Operation.
            op: &'static str,
            /// First sector of 512 bytes.
            sector: u64,
            /// Length.
            bytes: u64,
            /// On whose behalf.
            stream: u64,
        },
        /// A bio was merged into a request.
        BioMerged = "block/merge" {
            /// The device's number.
            device: u32,
            /// First sector of 512 bytes.
            sector: u64,
            /// Length.
            bytes: u64,
            /// `front` or `back`.
            side: &'static str,
        },
        /// A request went to the device.
        BioDispatched = "block/dispatch" {
            /// The device's number.
            device: u32,
            /// Operation.
            op: &'static str,
            /// First sector of 512 bytes.
            sector: u64,
            /// Length.
            bytes: u64,
            /// Which rule of the elevator chose it.
            rule: &'static str,
        },
        /// A request ended.
        BioCompleted = "block/complete" {
            /// The device's number.
            device: u32,
            /// Operation.
            op: &'static str,
            /// First sector of 512 bytes.
            sector: u64,
            /// Length.
            bytes: u64,
            /// Since it was queued.
            took: Nanos,
        },
    }
}
