//! Several devices as one, in alternating chunks.

use crate::device::claim_all;
use crate::split::{LayoutError, Piece, Spread, common_limits, spread};
use crate::{Bio, Claim, Device, IoError, Limits, Op, Sector};
use std::sync::Arc;

/// A striped device with the layout of Linux's dm-stripe
/// (Documentation/admin-guide/device-mapper/striped.rst). Chunk `k` is chunk `k / n` of device
/// `k mod n`.
///
/// As in dm-stripe, reads and writes are split at every chunk boundary, and a discard or
/// write-zeroes becomes one range per device. A flush goes to all devices. Capacity that does not
/// fill a row of chunks is unused.
#[derive(Debug)]
pub struct Stripe {
    limits: Limits,
    layout: Arc<Layout>,
}

#[derive(Debug)]
struct Layout {
    devices: Vec<Arc<dyn Device>>,
    chunks: Chunks,
}

/// The arithmetic of a stripe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunks {
    /// Number of devices.
    pub devices: u64,
    /// Bytes per chunk.
    pub chunk_bytes: u64,
}

impl Chunks {
    /// Capacity in bytes, if the smallest device has `smallest` bytes.
    pub fn capacity_bytes(self, smallest: u64) -> u64 {
        smallest / self.chunk_bytes * self.chunk_bytes * self.devices
    }

    /// The chunk's device, and the chunk's first byte there.
    fn place(self, chunk: u64) -> (usize, u64) {
        ((chunk % self.devices) as usize, chunk / self.devices * self.chunk_bytes)
    }

    /// Splits a range of bytes at every chunk boundary: each piece with its device.
    pub fn pieces(self, start: u64, end: u64) -> Vec<(usize, Piece)> {
        let mut pieces = Vec::new();
        let mut at = start;
        while at < end {
            let chunk = at / self.chunk_bytes;
            let bytes = end.min((chunk + 1) * self.chunk_bytes) - at;
            let (device, below) = self.place(chunk);
            pieces.push((device, Piece { start: Sector::containing(below + at % self.chunk_bytes), bytes }));
            at += bytes;
        }
        pieces
    }
}

impl Stripe {
    /// Stripes over `devices` in chunks of `chunk_sectors`; the smallest device determines the
    /// size.
    ///
    /// # Errors
    /// There are no devices, or a chunk does not consist of whole blocks of each device.
    pub fn new(name: &str, chunk_sectors: u64, devices: Vec<Arc<dyn Device>>) -> Result<Self, LayoutError> {
        let smallest =
            devices.iter().map(|d| d.limits().capacity_bytes).min().ok_or(LayoutError::NoDevices)?;
        let mut limits = common_limits(name, &devices, 0);
        let chunk_bytes = chunk_sectors.saturating_mul(Sector::BYTES);
        if chunk_bytes == 0 || !chunk_bytes.is_multiple_of(u64::from(limits.block_bytes)) {
            return Err(LayoutError::Chunk { chunk_bytes, block_bytes: limits.block_bytes });
        }
        let chunks = Chunks { devices: devices.len() as u64, chunk_bytes };
        limits.capacity_bytes = chunks.capacity_bytes(smallest);
        // Any length: it is split at chunk boundaries.
        limits.max_bytes = u64::MAX;
        Ok(Self { limits, layout: Arc::new(Layout { devices, chunks }) })
    }
}

impl Layout {
    /// The bytes of `start..end` that are on `device`, as one range there.
    fn range_on(&self, device: usize, start: u64, end: u64) -> Piece {
        let below = |byte: u64| {
            let Chunks { chunk_bytes, .. } = self.chunks;
            let (at, row) = self.chunks.place(byte / chunk_bytes);
            row + match device.cmp(&at) {
                std::cmp::Ordering::Less => chunk_bytes,
                std::cmp::Ordering::Equal => byte % chunk_bytes,
                std::cmp::Ordering::Greater => 0,
            }
        };
        Piece { start: Sector::containing(below(start)), bytes: below(end) - below(start) }
    }
}

impl Spread for Layout {
    fn devices(&self) -> &[Arc<dyn Device>] {
        &self.devices
    }

    fn pieces(&self, op: Op, start: u64, end: u64) -> Vec<(usize, Piece)> {
        if matches!(op, Op::Discard | Op::WriteZeroes) {
            let ranges = (0..self.devices.len()).map(|device| (device, self.range_on(device, start, end)));
            return ranges.filter(|(_, piece)| piece.bytes > 0).collect();
        }
        self.chunks.pieces(start, end)
    }
}

impl Device for Stripe {
    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn submit(&self, bio: Bio) {
        spread(&self.layout, &self.limits, bio);
    }

    fn claim(&self) -> Result<Claim, IoError> {
        claim_all(&self.layout.devices)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemDevice;

    fn three() -> Layout {
        let devices = (0..3).map(|_| Arc::new(MemDevice::new(1 << 20)) as Arc<dyn Device>).collect();
        Layout { devices, chunks: Chunks { devices: 3, chunk_bytes: 4096 } }
    }

    fn pieces(op: Op, start: u64, end: u64) -> Vec<(usize, u64, u64)> {
        three().pieces(op, start, end).into_iter().map(|(d, p)| (d, p.start.0, p.bytes)).collect()
    }

    /// `dmsetup create … "0 N striped 3 8 …"` maps the same way (striped.rst).
    #[test]
    fn reads_and_writes_are_cut_at_every_chunk() {
        assert_eq!(pieces(Op::Read, 0, 4096), [(0, 0, 4096)]);
        assert_eq!(pieces(Op::Write, 3 * 4096 + 512, 6 * 4096), [(0, 9, 3584), (1, 8, 4096), (2, 8, 4096)]);
    }

    #[test]
    fn a_discard_is_one_range_per_device() {
        assert_eq!(
            pieces(Op::Discard, 4096 + 512, 7 * 4096),
            [(0, 8, 8192), (1, 1, 3584 + 4096), (2, 0, 8192)]
        );
        assert_eq!(pieces(Op::Discard, 512, 1024), [(0, 1, 512)]);
    }

    #[test]
    fn chunks_and_device_lists_that_make_no_sense_are_refused() {
        assert_eq!(Stripe::new("s", 8, Vec::new()).unwrap_err(), LayoutError::NoDevices);
        let device: Arc<dyn Device> = Arc::new(MemDevice::new(1 << 20));
        let error = Stripe::new("s", 0, vec![device]).unwrap_err();
        assert_eq!(error, LayoutError::Chunk { chunk_bytes: 0, block_bytes: 512 });
    }
}
