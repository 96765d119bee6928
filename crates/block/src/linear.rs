//! Parts of devices, concatenated.

use crate::device::claim_all;
use crate::split::{LayoutError, Piece, Spread, common_limits, spread};
use crate::{Bio, Claim, Device, IoError, Limits, Op, Sector};
use std::io::IoSliceMut;
use std::ops::Range;
use std::sync::Arc;

/// A run of sectors of a device.
#[derive(Clone, Debug)]
pub struct Part {
    /// The device.
    pub device: Arc<dyn Device>,
    /// The first sector.
    pub start: Sector,
    /// Length in sectors.
    pub sectors: u64,
}

impl Part {
    /// All of a device.
    pub fn whole(device: Arc<dyn Device>) -> Self {
        let sectors = device.limits().capacity_bytes / Sector::BYTES;
        Self { device, start: Sector(0), sectors }
    }
}

/// Parts of devices concatenated (like dm-linear): a partition, or several disks as one.
#[derive(Debug)]
pub struct Linear {
    limits: Limits,
    layout: Arc<Layout>,
}

#[derive(Debug)]
struct Layout {
    devices: Vec<Arc<dyn Device>>,
    /// For each device: offset of its part here, and offset of the part on the device.
    starts: Vec<(u64, u64)>,
    end: u64,
}

impl Linear {
    /// Concatenates the parts in this order.
    ///
    /// # Errors
    /// There are no parts, or a part does not lie on its device.
    pub fn new(name: &str, parts: Vec<Part>) -> Result<Self, LayoutError> {
        if parts.is_empty() {
            return Err(LayoutError::NoDevices);
        }
        let mut layout = Layout { devices: Vec::new(), starts: Vec::new(), end: 0 };
        for part in parts {
            let below = part.device.limits();
            let capacity = below.capacity_bytes / Sector::BYTES;
            if part.start.0.checked_add(part.sectors).is_none_or(|end| end > capacity) {
                let device = below.name.clone();
                return Err(LayoutError::Part { device, start: part.start, sectors: part.sectors, capacity });
            }
            layout.starts.push((layout.end, part.start.0 * Sector::BYTES));
            layout.end += part.sectors * Sector::BYTES;
            layout.devices.push(part.device);
        }
        let limits = common_limits(name, &layout.devices, layout.end);
        Ok(Self { limits, layout: Arc::new(layout) })
    }
}

impl Layout {
    /// The device that holds `byte`, the offset there, and where the device's part ends here.
    fn place(&self, byte: u64) -> (usize, u64, u64) {
        let device = self.starts.partition_point(|(here, _)| *here <= byte) - 1;
        let (here, there) = self.starts[device];
        let end = self.starts.get(device + 1).map_or(self.end, |(next, _)| *next);
        (device, there + (byte - here), end)
    }
}

impl Spread for Layout {
    fn devices(&self) -> &[Arc<dyn Device>] {
        &self.devices
    }

    fn pieces(&self, _op: Op, start: u64, end: u64) -> Vec<(usize, Piece)> {
        let mut pieces = Vec::new();
        let mut at = start;
        while at < end {
            let (device, below, part_end) = self.place(at);
            let bytes = end.min(part_end) - at;
            pieces.push((device, Piece { start: Sector::containing(below), bytes }));
            at += bytes;
        }
        pieces
    }
}

impl Device for Linear {
    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn submit(&self, bio: Bio) {
        spread(&self.layout, &self.limits, bio);
    }

    fn reads_here(&self) -> bool {
        self.layout.devices.iter().all(|device| device.reads_here())
    }

    fn is_cached_by_host(&self) -> bool {
        self.layout.devices.iter().all(|device| device.is_cached_by_host())
    }

    fn flushes_soon(&self) -> bool {
        self.layout.devices.iter().all(|device| device.flushes_soon())
    }

    /// Refuses a read that crosses from one part to the next; the caller then submits a bio.
    fn read_here(&self, start: Sector, to: &mut [IoSliceMut<'_>]) -> bool {
        let bytes = to.iter().map(|part| part.len() as u64).sum::<u64>();
        let end = start.byte_offset().and_then(|at| at.checked_add(bytes));
        let Some(end) = end.filter(|&end| bytes > 0 && end <= self.layout.end) else { return false };
        let (device, below, part_end) = self.layout.place(end - bytes);
        end <= part_end && self.layout.devices[device].read_here(Sector::containing(below), to)
    }

    fn claim(&self) -> Result<Claim, IoError> {
        claim_all(&self.layout.devices)
    }

    fn next_data(&self, from_bytes: u64) -> Result<Option<Range<u64>>, IoError> {
        let mut at = from_bytes;
        while at < self.layout.end {
            let (device, below, end) = self.layout.place(at);
            if let Some(data) = self.layout.devices[device].next_data(below)?
                && data.start - below < end - at
            {
                return Ok(Some(at + (data.start - below)..end.min(at + (data.end - below))));
            }
            at = end;
        }
        Ok(None)
    }
}
