//! The interface of the dirty controller, which decides how much a writer may dirty and when write-back runs.
//!
//! The cache itself enforces one thing: dirty and write-back pages together never exceed the limits (the process's, as the
//! controller has it, and what the controller grants each device). How writers are slowed down before they run into that
//! wall, and when the flushers start and stop, is a [`DirtyControl`]'s decision: a pure state machine over numbers. It is
//! asked one question, once for each allowance of a writer and each chunk of a flusher, and answers with all [`Orders`].

use extant_rt::Nanos;
use std::fmt;

/// Bounds on dirty memory, in pages of 4 KiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirtyLimits {
    /// Flushers work while more than this is dirty (kernel: `dirty_background_bytes`).
    pub background_pages: u64,
    /// Dirty and write-back pages together never exceed this (kernel: `dirty_bytes`).
    pub limit_pages: u64,
}

impl DirtyLimits {
    /// Limits that work: a page at least, `most` at most. A background threshold that is not below the limit becomes half of
    /// it (kernel: `domain_dirty_limits`).
    pub(crate) fn within(self, most: u64) -> Self {
        let limit_pages = self.limit_pages.clamp(1, most);
        let is_below = self.background_pages < limit_pages;
        Self { background_pages: if is_below { self.background_pages } else { limit_pages / 2 }, limit_pages }
    }
}

/// Pages in two states.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amounts {
    /// Changed and not in flight (kernel: reclaimable).
    pub dirty_pages: u64,
    /// In flight.
    pub writeback_pages: u64,
}

impl Amounts {
    /// Pages that count against a limit.
    pub fn total(&self) -> u64 {
        self.dirty_pages + self.writeback_pages
    }
}

/// Which of the process's devices, counted from 0 in order of their attaching; the number of one that was let go is given again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceIndex(pub u32);

/// The cache's figures at the time of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Numbers {
    /// The limits in force.
    pub limits: DirtyLimits,
    /// Of all devices together.
    pub global: Amounts,
    /// The device in question.
    pub device: DeviceIndex,
    /// Of this device.
    pub on_device: Amounts,
    /// Pages dirtied on this device since it was attached; only grows.
    pub dirtied_total: u64,
    /// Pages written back to this device since it was attached; only grows.
    pub written_total: u64,
    /// How many devices are attached.
    pub devices: u32,
}

/// A writer: an open file. The cache counts them; no number is given twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WriterId(pub u64);

/// A writer that asks for orders, because it has dirtied as many pages as it was allowed to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asking {
    /// The writer.
    pub writer: WriterId,
    /// Pages that it has dirtied since it last asked (kernel: `nr_dirtied`).
    pub dirtied_pages: u64,
    /// Pages that it has written back since it last asked, on the controller's order ([`Verdict::WriteBack`]).
    pub written_pages: u64,
}

/// The next step of a writer that has just dirtied pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Goes on.
    Go {
        /// It asks again when it has dirtied so many pages, and after one at the earliest (kernel: `nr_dirtied_pause`).
        pages: u64,
    },
    /// Sleeps, and then goes on.
    Pause {
        /// When it wakes.
        until: Nanos,
        /// Likewise; with 0 it asks again as soon as it wakes.
        pages: u64,
        /// The rule that decided it, for the trace.
        rule: &'static str,
    },
    /// Writes back so many pages of its device itself, and asks again (the way before Linux 3.2). It waits for no end of
    /// what it submits.
    WriteBack {
        /// At most.
        pages: u64,
        /// At most so many of one file before it turns to the next.
        chunk_pages: u64,
        /// It waits while so many are in flight.
        in_flight_pages: u64,
        /// The rule that decided it, for the trace.
        rule: &'static str,
    },
}

/// The next step of a device's flusher, apart from its periodic work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Background {
    /// Rests.
    Stop,
    /// Writes back.
    Run {
        /// At most so many pages of one file before it turns to the next.
        chunk_pages: u64,
        /// At most so many pages in flight at a time.
        in_flight_pages: u64,
        /// It passes over files with fewer dirty pages than this while another file of the device has as many.
        least_pages: u64,
    },
}

/// All that a controller has to say about a device at one moment. They hold until the next question about the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Orders {
    /// To the writer that asks; without meaning where none does.
    pub writer: Verdict,
    /// To the device's flusher. Where a writer asked, this begins or ends its rest; it asks itself before every chunk.
    pub flusher: Background,
    /// The most that this device may hold of the dirty pool, in pages; counts as 1 at least.
    pub device_limit_pages: u64,
    /// The most that all devices together may hold: the stated limit, unless the controller lets writers go past it. The
    /// cache allows three quarters of its frames in any case.
    pub pool_limit_pages: u64,
}

impl Orders {
    /// Orders that pause no writer and start no write-back; only the given limits apply.
    pub fn none(numbers: &Numbers) -> Self {
        let limit = numbers.limits.limit_pages;
        Self {
            writer: Verdict::Go { pages: 1 },
            flusher: Background::Stop,
            device_limit_pages: limit,
            pool_limit_pages: limit,
        }
    }
}

/// A controller's state for a device, for the trace. Amounts are in pages, rates in pages per second; figures that a
/// controller does not have are 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ControlState {
    /// Where it wants the sum of all dirty pages to be (kernel: `setpoint`).
    pub setpoint_pages: u64,
    /// Likewise of the device's (kernel: `bdi_setpoint`).
    pub device_setpoint_pages: u64,
    /// The factor to the rate limit, times 1024 (kernel: `pos_ratio`).
    pub position_ratio: u64,
    /// The estimated write rate of the device.
    pub write_rate: u64,
    /// The rate at which each writer may dirty, before the factor (kernel: `dirty_ratelimit`).
    pub rate_limit: u64,
    /// The rate at which a writer may dirty (kernel: `task_ratelimit`).
    pub task_rate: u64,
    /// Pages of a turn.
    pub turn_pages: u64,
    /// Writers of the device, as far as they are counted.
    pub writers: u64,
}

/// Decides about dirty memory. Pure: `now` and numbers in, decisions out; no clock, no task, no I/O. A controller
/// keeps its state for each writer itself, by the writer's number.
pub trait DirtyControl: Send + fmt::Debug {
    /// Decides about `numbers.device`: for a writer that has dirtied as much as it may, or, without one, for the device's
    /// flusher before every chunk.
    fn orders(&mut self, now: Nanos, numbers: &Numbers, asking: Option<Asking>) -> Orders;

    /// A writer of this device has left in a pause. It may ask again.
    fn leave(&mut self, device: DeviceIndex, writer: WriterId) {
        let _ = (device, writer);
    }

    /// A writer of this device is gone for good.
    fn forget(&mut self, device: DeviceIndex, writer: WriterId) {
        let _ = (device, writer);
    }

    /// A device is let go. Its number may be given to another one, of which nothing is known.
    fn detach(&mut self, device: DeviceIndex) {
        let _ = device;
    }

    /// Write-back of `pages` pages to `numbers.device` ended; `took` is the time from submission to completion.
    fn written(&mut self, now: Nanos, numbers: &Numbers, pages: u64, took: Nanos) {
        let _ = (now, numbers, pages, took);
    }

    /// The controller's state for the device, for the trace: read after [`DirtyControl::orders`], and only when tracing.
    fn state(&self, now: Nanos, numbers: &Numbers) -> ControlState {
        let _ = (now, numbers);
        ControlState::default()
    }
}
