//! Trace events of the page cache.

use extant_rt::Nanos;

extant_rt::events! {
    /// Events of the page cache.
    pub enum Event {
        /// Pages became dirty.
        PagesDirtied = "cache/dirty" {
            /// Inode number.
            inode: u64,
            /// First page, in units of 4 KiB.
            page: u64,
            /// Number of pages.
            pages: u64,
        },
        /// A writer waited because too much is dirty.
        ///
        /// Either its dirty controller paused it, or it hit the limits themselves. The numbers are
        /// those the decision was based on, as in the kernel's trace point `balance_dirty_pages`.
        /// Amounts are in pages of 4 KiB, rates in pages per second. Figures that a controller does
        /// not have are 0.
        WriterPaused = "cache/pause" {
            /// The rule that decided it.
            rule: &'static str,
            /// The device's number in its cache.
            device: u32,
            /// Inode number of the file being written.
            inode: u64,
            /// Pages the writer had dirtied since the last check (kernel: `dirtied`).
            dirtied: u32,
            /// Limit on dirty plus write-back pages (kernel: `limit`).
            limit: u32,
            /// Flushers work while more than this is dirty.
            background: u32,
            /// Dirty pages on all devices, not in flight.
            reclaimable: u32,
            /// Pages in flight to all devices.
            writeback: u32,
            /// Limit on the device's share.
            device_limit: u32,
            /// Dirty pages of the device, not in flight.
            device_reclaimable: u32,
            /// Pages in flight to the device (kernel: `bdi_dirty` is the sum of both).
            device_writeback: u32,
            /// Target for the sum of all dirty pages (kernel: `setpoint`).
            setpoint: u32,
            /// Target for the device's dirty pages (kernel: `bdi_setpoint`).
            device_setpoint: u32,
            /// Factor applied to the rate limit, times 1024 (kernel: `pos_ratio`).
            position_ratio: u32,
            /// Estimated write rate of the device.
            write_rate: u32,
            /// Rate at which each writer may dirty pages, before the factor (kernel:
            /// `dirty_ratelimit`).
            rate_limit: u32,
            /// Rate at which this writer may dirty pages (kernel: `task_ratelimit`).
            task_rate: u32,
            /// Pages per turn, if writers take turns.
            turn: u32,
            /// Writers the controller counts on the device.
            writers: u32,
            /// How long the writer waited.
            took: Nanos,
        },
        /// How many pages are dirty, sampled while the number changes. Amounts are in pages of 4
        /// KiB.
        DirtyLevels = "cache/levels" {
            /// The device's number in its cache.
            device: u32,
            /// Dirty pages of the device, not in flight (kernel: `BDI_RECLAIMABLE`).
            device_reclaimable: u32,
            /// Pages in flight to the device (kernel: `BDI_WRITEBACK`).
            device_writeback: u32,
            /// Limit on the device's share.
            device_limit: u32,
            /// Dirty pages on all devices, not in flight.
            reclaimable: u32,
            /// Pages in flight to all devices.
            writeback: u32,
            /// Flushers work while more than this is dirty.
            background: u32,
            /// Limit on dirty plus write-back pages.
            limit: u32,
        },
        /// Pages were written back.
        PagesWritten = "cache/written" {
            /// Inode number.
            inode: u64,
            /// First page, in units of 4 KiB.
            page: u64,
            /// Number of pages.
            pages: u64,
        },
        /// Pages were read ahead.
        PagesReadAhead = "cache/readahead" {
            /// Inode number.
            inode: u64,
            /// First page, in units of 4 KiB.
            page: u64,
            /// Number of pages.
            pages: u64,
        },
    }
}
