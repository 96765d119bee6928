//! The events of the page cache.

use extant_rt::Nanos;

extant_rt::events! {
    /// Events of the page cache.
    pub enum Event {
        /// Pages became dirty.
        PagesDirtied = "cache/dirty" {
            /// Inode number.
            inode: u64,
            /// First page of 4 KiB.
            page: u64,
            /// How many.
            pages: u64,
        },
        /// A writer was made to wait because too much is dirty: by its dirty controller, or at the limits themselves.
        ///
        /// The numbers are those on which the decision rested, as in the kernel's trace point `balance_dirty_pages`. Amounts
        /// are in pages of 4 KiB, rates in pages per second. Figures that a controller does not have are 0.
        WriterPaused = "cache/pause" {
            /// Which rule decided it.
            rule: &'static str,
            /// The device's number in its cache.
            device: u32,
            /// Inode number of the file that was written to.
            inode: u64,
            /// Pages that the writer had dirtied since the last check (kernel: `dirtied`).
            dirtied: u32,
            /// Most that may be dirty or under write-back (kernel: `limit`).
            limit: u32,
            /// Flushers work while more than this is dirty.
            background: u32,
            /// Dirty on all devices and not in flight.
            reclaimable: u32,
            /// In flight to all devices.
            writeback: u32,
            /// Most that the device may hold.
            device_limit: u32,
            /// Dirty on the device and not in flight.
            device_reclaimable: u32,
            /// In flight to the device (kernel: `bdi_dirty` is the sum of both).
            device_writeback: u32,
            /// Where the controller wants the sum of all dirty pages to be (kernel: `setpoint`).
            setpoint: u32,
            /// Likewise of the device's (kernel: `bdi_setpoint`).
            device_setpoint: u32,
            /// The factor to the rate limit, times 1024 (kernel: `pos_ratio`).
            position_ratio: u32,
            /// The estimated write rate of the device.
            write_rate: u32,
            /// The rate at which each writer may dirty, before the factor (kernel: `dirty_ratelimit`).
            rate_limit: u32,
            /// The rate at which this writer may dirty (kernel: `task_ratelimit`).
            task_rate: u32,
            /// Pages of a turn, where writers take turns.
            turn: u32,
            /// Writers that the controller counts on the device.
            writers: u32,
            /// How long.
            took: Nanos,
        },
        /// How much of a device's pages is dirty, from time to time while it changes. Amounts are in pages of 4 KiB.
        DirtyLevels = "cache/levels" {
            /// The device's number in its cache.
            device: u32,
            /// Dirty on the device and not in flight (kernel: `BDI_RECLAIMABLE`).
            device_reclaimable: u32,
            /// In flight to the device (kernel: `BDI_WRITEBACK`).
            device_writeback: u32,
            /// Most that the device may hold.
            device_limit: u32,
            /// Dirty on all devices and not in flight.
            reclaimable: u32,
            /// In flight to all devices.
            writeback: u32,
            /// Flushers work while more than this is dirty.
            background: u32,
            /// Most that may be dirty or under write-back.
            limit: u32,
        },
        /// Pages were written back.
        PagesWritten = "cache/written" {
            /// Inode number.
            inode: u64,
            /// First page of 4 KiB.
            page: u64,
            /// How many.
            pages: u64,
        },
        /// Pages were read ahead of need.
        PagesReadAhead = "cache/readahead" {
            /// Inode number.
            inode: u64,
            /// First page of 4 KiB.
            page: u64,
            /// How many.
            pages: u64,
        },
    }
}
