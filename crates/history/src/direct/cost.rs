//! The work of direct I/O, as far as processors are modelled.

extant_rt::costs! {
    /// Work of direct I/O. Bios are charged by the request queue.
    pub enum Cost of "direct I/O" {
        /// Pinning pages of the caller's memory and preparing them for the device.
        PagePin = "page_pin_ns",
        /// Returning pages that the device is done with, in the interrupt that tells of it.
        PageUnpin = "page_unpin_ns",
        /// Asking the file system for a mapping.
        MapBlocks = "map_blocks_ns",
        /// Allocating for a mapping: the time that the caller waits. No processor is busy with it.
        MapWait = "map_wait_ns",
        /// The same, beside it, where placeholders keep others out of the range.
        PlaceholderWait = "placeholder_wait_ns",
    }
}
