//! The interface of the dirty controller, which decides how much a writer may dirty and when
//! write-back runs.
//!
//! The cache itself enforces one thing: dirty plus write-back pages never exceed the limits (the
//! process's limit, as set by the controller, and the controller's limit for each device). A
//! [`DirtyControl`] decides how to slow writers down before they hit that wall, and when the
//! flushers start and stop. It is a pure state machine over numbers. It is asked a single question,
//! once per allowance of a writer and once per chunk of a flusher, and answers with complete
//! [`Orders`].

use extant_rt::Nanos;
use std::fmt;

/// Limits on dirty memory, in pages of 4 KiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirtyLimits {
    /// Flushers work while more than this is dirty (kernel: `dirty_background_bytes`).
    pub background_pages: u64,
    /// Dirty plus write-back pages never exceed this (kernel: `dirty_bytes`).
    pub limit_pages: u64,
}

impl DirtyLimits {
    /// Adjusts the limits so that they work: at least one page, at most `most`. A background
    /// threshold that is not below the limit becomes half of it (kernel: `domain_dirty_limits`).
    pub(crate) fn within(self, most: u64) -> Self {
        let limit_pages = self.limit_pages.clamp(1, most);
        let is_below = self.background_pages < limit_pages;
        Self { background_pages: if is_below { self.background_pages } else { limit_pages / 2 }, limit_pages }
    }
}

/// Pages that are dirty, and pages in flight.
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

/// A device's number within the process, counted from 0 in order of attachment. The number of a
/// released device is reused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceIndex(pub u32);

/// The cache's numbers at the time of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Numbers {
    /// The limits in force.
    pub limits: DirtyLimits,
    /// Of all devices.
    pub global: Amounts,
    /// The device the call is about.
    pub device: DeviceIndex,
    /// Of that device.
    pub on_device: Amounts,
    /// Pages dirtied on this device since it was attached; only grows.
    pub dirtied_total: u64,
    /// Pages written back to this device since it was attached; only grows.
    pub written_total: u64,
    /// Number of attached devices.
    pub devices: u32,
}

/// A writer: an open file. Numbers are never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WriterId(pub u64);

/// A writer that asks for orders because it has used up its allowance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asking {
    /// The writer.
    pub writer: WriterId,
    /// Pages it has dirtied since it last asked (kernel: `nr_dirtied`).
    pub dirtied_pages: u64,
    /// Pages it has written back since it last asked, on the controller's order
    /// ([`Verdict::WriteBack`]).
    pub written_pages: u64,
}

/// The next step of a writer that has just dirtied pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Go on.
    Go {
        /// Pages it may dirty before it asks again; at least one (kernel: `nr_dirtied_pause`).
        pages: u64,
    },
    /// Sleep, then go on.
    Pause {
        /// When it wakes up.
        until: Nanos,
        /// Pages it may dirty then before it asks again; with 0 it asks as soon as it wakes up.
        pages: u64,
        /// The rule that caused the pause, for the trace.
        rule: &'static str,
    },
    /// Write back this many pages of the device itself, then ask again (as before Linux 3.2). The
    /// writer does not wait for its submissions to complete.
    WriteBack {
        /// Maximum number of pages to write back.
        pages: u64,
        /// Maximum number of pages of one file before moving on to the next.
        chunk_pages: u64,
        /// The writer waits while this many pages are in flight.
        in_flight_pages: u64,
        /// The rule that caused the order, for the trace.
        rule: &'static str,
    },
}

/// The next step of a device's flusher, apart from its periodic work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Background {
    /// Rest.
    Stop,
    /// Write back.
    Run {
        /// Maximum number of pages of one file before moving on to the next.
        chunk_pages: u64,
        /// Maximum number of pages in flight at a time.
        in_flight_pages: u64,
        /// Skip files with fewer dirty pages than this while another file of the device has as
        /// many.
        least_pages: u64,
    },
}

/// All of a controller's decisions about a device at one moment. They hold until the next question
/// about the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Orders {
    /// For the writer that asks; meaningless if none does.
    pub writer: Verdict,
    /// For the device's flusher. If a writer asked, this starts or stops the flusher, which itself
    /// asks before every chunk.
    pub flusher: Background,
    /// The device's limit on dirty plus write-back pages; counts as at least 1.
    pub device_limit_pages: u64,
    /// The limit for all devices together: the configured limit, unless the controller lets writers
    /// exceed it. The cache never allows more than three quarters of its frames.
    pub pool_limit_pages: u64,
}

impl Orders {
    /// Orders that pause no writer and start no write-back; only the configured limits apply.
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

/// A controller's state for a device, for the trace. Amounts are in pages, rates in pages per
/// second; figures a controller does not have are 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ControlState {
    /// Target for the sum of all dirty pages (kernel: `setpoint`).
    pub setpoint_pages: u64,
    /// Target for the device's dirty pages (kernel: `bdi_setpoint`).
    pub device_setpoint_pages: u64,
    /// Factor applied to the rate limit, times 1024 (kernel: `pos_ratio`).
    pub position_ratio: u64,
    /// Estimated write rate of the device.
    pub write_rate: u64,
    /// Rate at which each writer may dirty pages, before the factor (kernel: `dirty_ratelimit`).
    pub rate_limit: u64,
    /// Rate at which a writer may dirty pages (kernel: `task_ratelimit`).
    pub task_rate: u64,
    /// Pages per turn.
    pub turn_pages: u64,
    /// Number of the device's writers, if the controller counts them.
    pub writers: u64,
}

/// Makes the decisions about dirty memory. Pure: `now` and numbers in, decisions out; no clock, no
/// task, no I/O. A controller keeps its own state for each writer, keyed by the writer's number.
pub trait DirtyControl: Send + fmt::Debug {
    /// Decides about `numbers.device`: for a writer that has used up its allowance, or, if there is
    /// none, for the device's flusher before each chunk.
    fn orders(&mut self, now: Nanos, numbers: &Numbers, asking: Option<Asking>) -> Orders;

    /// A writer of this device went away during a pause. It may ask again later.
    fn leave(&mut self, device: DeviceIndex, writer: WriterId) {
        let _ = (device, writer);
    }

    /// A writer of this device is gone for good.
    fn forget(&mut self, device: DeviceIndex, writer: WriterId) {
        let _ = (device, writer);
    }

    /// A device was released. Its number may be reused, for a device about which nothing is known
    /// yet.
    fn detach(&mut self, device: DeviceIndex) {
        let _ = device;
    }

    /// Write-back of `pages` pages to `numbers.device` completed, `took` after its submission.
    fn written(&mut self, now: Nanos, numbers: &Numbers, pages: u64, took: Nanos) {
        let _ = (now, numbers, pages, took);
    }

    /// The controller's state for the device, for the trace. Read after [`DirtyControl::orders`],
    /// and only while tracing.
    fn state(&self, now: Nanos, numbers: &Numbers) -> ControlState {
        let _ = (now, numbers);
        ControlState::default()
    }
}
