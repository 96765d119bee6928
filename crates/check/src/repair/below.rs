//! The device below the overlay of a plan.

use extant_block::{Bio, Claim, Device, IoError, IoErrorKind, Limits, Op, Sector, Segment};
use std::ops::Range;
use std::sync::Arc;

/// Passes on only reads, in units of sectors. Changes stay in the overlay above, so it does not
/// matter whether the device is writable. Every claim is granted, because the caller of a repair
/// holds the claim of the device itself.
#[derive(Debug)]
pub(super) struct Below {
    inner: Arc<dyn Device>,
    limits: Limits,
}

impl Below {
    pub(super) fn new(inner: Arc<dyn Device>) -> Self {
        let block_bytes = SECTOR_BYTES;
        let limits = Limits { read_only: false, block_bytes, ..inner.limits().clone() };
        Self { inner, limits }
    }
}

const SECTOR_BYTES: u32 = 512;

impl Device for Below {
    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn submit(&self, mut bio: Bio) {
        if !matches!(bio.op, Op::Read | Op::Flush) {
            return bio.end_as(&self.limits.name, Err(IoErrorKind::ReadOnly));
        }
        let unit = u64::from(self.inner.limits().block_bytes);
        let start = bio.start.byte_offset().unwrap_or(u64::MAX);
        if bio.op == Op::Flush || unit == 0 || (start | bio.bytes).is_multiple_of(unit) {
            return self.inner.submit(bio);
        }
        let first = start / unit * unit;
        let skip = usize::try_from(start - first).unwrap_or(usize::MAX);
        let len = start.saturating_add(bio.bytes).next_multiple_of(unit).saturating_sub(first);
        let Ok(len) = usize::try_from(len) else {
            return bio.end_as(&self.limits.name, Err(IoErrorKind::OutOfRange));
        };
        let whole = Segment::from(extant_block::Buf::stale(len));
        let mut wide = Bio::new(Op::Read, Sector::containing(first), vec![whole]);
        wide.on_end(Box::new(move |mut wide, result| {
            if let Some(read) = wide.segments.pop().and_then(Segment::into_buf).filter(|_| result.is_ok()) {
                let mut at = skip;
                for to in bio.segments.iter_mut().filter_map(Segment::as_mut_slice) {
                    to.copy_from_slice(&read[at..at + to.len()]);
                    at += to.len();
                }
            }
            bio.end(result);
        }));
        self.inner.submit(wide);
    }

    fn claim(&self) -> Result<Claim, IoError> {
        Ok(Claim::default())
    }

    fn next_data(&self, from_bytes: u64) -> Result<Option<Range<u64>>, IoError> {
        self.inner.next_data(from_bytes)
    }
}
