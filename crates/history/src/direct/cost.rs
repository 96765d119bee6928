//! The work of direct I/O, as charged to modelled processors.

extant_rt::costs! {
    /// Work of direct I/O. The request queue charges for bios.
    pub enum Cost of "direct I/O" {
        /// Pinning pages of the caller's memory and preparing them for the device.
        PagePin = "page_pin_ns",
        /// Releasing pages in the completion interrupt.
        PageUnpin = "page_unpin_ns",
        /// Asking the file system for a mapping.
        MapBlocks = "map_blocks_ns",
        /// Time the caller waits for block allocation. No processor is busy meanwhile.
        MapWait = "map_wait_ns",
        /// Additional wait where placeholders keep others out of the range.
        PlaceholderWait = "placeholder_wait_ns",
    }
}
