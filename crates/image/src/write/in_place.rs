//! A volume written into a device, or a part of one, in place.
//!
//! Until everything else is durable there is no superblock, so a write that fails or is interrupted
//! leaves no volume at all.

use super::occupied;
use super::pump::{Pieces, Progress, pump_all_but_head};
use crate::layout::{Geometry, Piece};
use crate::{BuildError, InPlace, VolumeOptions};
use extant_block::{Bio, Claim, Device, IoError, IoErrorKind, Op, Sector, discard, execute, flush, write};
use extant_rt::Rt;
use std::io::{Error, ErrorKind};
use std::ops::Range;
use std::sync::Arc;

/// Number of bytes to clear at both ends of the target, although the volume may not use them. Other
/// formats have signatures there, by which they would still be recognised: btrfs 64 KiB after the
/// beginning, a RAID up to 128 KiB before the end, a GPT in the last sectors.
const ENDS_BYTES: u64 = 128 << 10;
/// Maximum length of a range to discard or zero at a time.
const STEP_BYTES: u64 = 1 << 30;

/// A target that no one else writes.
pub(crate) struct ClaimedPlace {
    place: InPlace,
    _claim: Claim,
}

impl ClaimedPlace {
    /// Claims the target, and looks for other contents.
    ///
    /// # Errors
    /// Another program uses the target, or the target contains something that must not be
    /// overwritten.
    pub(crate) fn claim(place: InPlace, rt: &Rt) -> Result<Self, BuildError> {
        let claim = place.device.claim().map_err(|IoError { kind, .. }| {
            let error = match kind {
                kind @ (IoErrorKind::Claimed | IoErrorKind::Locked { .. }) => {
                    Error::new(ErrorKind::ResourceBusy, kind)
                }
                kind => Error::other(kind),
            };
            BuildError::Output { action: "write", path: place.name.clone(), error }
        })?;
        if !place.overwrite
            && let Some(contents) = rt.block_on(occupied::contents(&*place.device))??
        {
            return Err(BuildError::Occupied { path: place.name, contents: contents.name });
        }
        Ok(Self { place, _claim: claim })
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.place.device.limits().capacity_bytes
    }

    /// Adapts the options of a volume to the target: the volume's blocks must not be smaller than
    /// those of the device.
    ///
    /// # Errors
    /// The options request smaller blocks than the device supports.
    pub(crate) fn fitted(&self, volume: &VolumeOptions) -> Result<VolumeOptions, BuildError> {
        let limits = self.place.device.limits();
        let mut volume = volume.clone();
        match volume.block_size {
            Some(block) if block.bytes() < limits.block_bytes => {
                let least = limits.block_bytes;
                return Err(BuildError::Options(format!(
                    "{} is read and written in blocks of {least} bytes; the volume's cannot be smaller",
                    self.place.name
                )));
            }
            // Linux does not mount volumes whose blocks are smaller than the sectors of their disk.
            None if limits.physical_block_bytes > 1024 => {
                volume.block_size = Some(extant_format::BlockSize::K4);
            }
            _ => {}
        }
        Ok(volume)
    }

    /// Writes the volume durably. Returns true if a discard was requested, but the target does not
    /// support it.
    ///
    /// # Errors
    /// The volume does not fit, or the device fails.
    pub(crate) fn write<I: Pieces>(
        self,
        image: &Arc<I>,
        rt: &Rt,
        progress: Progress,
    ) -> Result<bool, BuildError> {
        let device = &self.place.device;
        let capacity = self.bytes();
        let sb = image.superblock();
        let needed = sb.blocks_count() << sb.block_size().log2();
        if needed > capacity {
            return Err(BuildError::TooSmall { needed, given: capacity });
        }
        let bare = bare(image.pieces(), image.geometry(), capacity);
        let lacks_discard = rt.block_on(async {
            // Discard before zeroing, because a discarded range may read as anything.
            let lacks_discard = self.place.discard && !discarded(&**device).await?;
            // From here on there is no volume.
            zero(&**device, 0..ENDS_BYTES.min(capacity)).await?;
            flush(&**device).await?;
            for range in bare {
                zero(&**device, range).await?;
            }
            Ok::<_, IoError>(lacks_discard)
        })??;
        let head = pump_all_but_head(image, device.clone(), rt, progress)?;
        rt.block_on(async {
            flush(&**device).await?;
            write(&**device, Sector(0), head).await?;
            flush(&**device).await
        })??;
        Ok(lacks_discard)
    }
}

/// Discards all contents of a device; returns false if the device does not support that.
async fn discarded(device: &dyn Device) -> Result<bool, IoError> {
    for range in steps(0..device.limits().capacity_bytes) {
        match discard(device, Sector::containing(range.start), range.end - range.start).await {
            Err(IoError { kind: IoErrorKind::Unsupported, .. }) => return Ok(false),
            done => done?,
        }
    }
    Ok(true)
}

async fn zero(device: &dyn Device, range: Range<u64>) -> Result<(), IoError> {
    for range in steps(range) {
        let start = Sector::containing(range.start);
        execute(device, Bio::range(Op::WriteZeroes, start, range.end - range.start)).await.1?;
    }
    Ok(())
}

fn steps(range: Range<u64>) -> impl Iterator<Item = Range<u64>> {
    let mut at = range.start;
    std::iter::from_fn(move || {
        let start = at;
        at = range.end.min(start + STEP_BYTES);
        (start < at).then_some(start..at)
    })
}

/// Ranges of bytes that must read as zeros and that no piece covers, in order: blocks in use that
/// would be holes in a new file (unused inodes, the journal's log, reserved descriptors), and both
/// ends of the target.
fn bare<W>(pieces: &[Piece<W>], geometry: &Geometry, capacity: u64) -> Vec<Range<u64>> {
    let log = geometry.sb.block_size().log2();
    let mut wanted = vec![0..ENDS_BYTES.min(capacity), capacity.saturating_sub(ENDS_BYTES)..capacity];
    for group in geometry.all_groups() {
        let start = geometry.first_block(group).0;
        let mut at = start;
        for free in geometry.free_runs_in(group) {
            wanted.push(at << log..free.start.0 << log);
            at = free.end().0;
        }
        wanted.push(at << log..(start + u64::from(geometry.sb.group_blocks(group))) << log);
    }
    wanted.sort_unstable_by_key(|range| range.start);
    let pieces = pieces.iter().map(|piece| {
        let start = piece.start.0 << log;
        start..start + (u64::from(piece.blocks) << log)
    });
    outside(&wanted, pieces)
}

/// Returns the parts of the ranges, which are sorted, outside the pieces, which are sorted and
/// disjoint.
fn outside(wanted: &[Range<u64>], pieces: impl Iterator<Item = Range<u64>>) -> Vec<Range<u64>> {
    let mut pieces = pieces.peekable();
    let mut found: Vec<Range<u64>> = Vec::new();
    let mut at = 0;
    for range in wanted {
        at = at.max(range.start);
        while at < range.end {
            while pieces.next_if(|piece| piece.end <= at).is_some() {}
            let until = pieces.peek().map_or(range.end, |piece| piece.start.min(range.end));
            if at < until {
                match found.last_mut() {
                    Some(last) if last.end == at => last.end = until,
                    _ => found.push(at..until),
                }
            }
            at = match pieces.peek() {
                Some(piece) if piece.start <= until => piece.end,
                _ => until,
            };
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lies_outside_pieces_is_found_once() {
        let wanted = [0..10, 5..20, 30..40, 38..60, 60..62];
        let pieces = [2..4, 8..12, 30..33, 35..36, 50..55, 58..61, 70..80];
        let found = outside(&wanted, pieces.into_iter());
        assert_eq!(found, [0..2, 4..8, 12..20, 33..35, 36..50, 55..58, 61..62]);
        let whole = outside(&wanted[..2], std::iter::empty());
        assert_eq!((whole.len(), &whole[0]), (1, &(0..20)));
        assert!(outside(&[3..3, 4..6], std::iter::once(0..100)).is_empty());
    }

    #[test]
    fn long_ranges_are_cut() {
        let cut: Vec<_> = steps(5..2 * STEP_BYTES + 6).collect();
        assert_eq!(
            cut,
            [5..STEP_BYTES + 5, STEP_BYTES + 5..2 * STEP_BYTES + 5, 2 * STEP_BYTES + 5..2 * STEP_BYTES + 6]
        );
        assert_eq!(steps(7..7).count(), 0);
    }
}
