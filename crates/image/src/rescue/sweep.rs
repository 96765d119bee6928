//! Reads a whole device in order, and skips what cannot be read.

use extant_block::{Device, Mended, Sector};
use extant_format::UintExt;

/// Bytes of one read, and of the smaller reads that replace it if it fails: no disk has larger
/// sectors.
const PIECE_BYTES: u64 = 1 << 20;
const RETRY_BYTES: u64 = 4096;

/// Calls `see` for all bytes of `device` that are readable and not in a hole of a sparse file, in
/// runs that begin at multiples of 4 KiB.
pub(super) async fn sweep(device: &Mended, mut see: impl FnMut(u64, &[u8])) {
    let capacity = device.limits().capacity_bytes / Sector::BYTES * Sector::BYTES;
    let mut at = 0;
    while at < capacity {
        if let Ok(Some(data)) = device.next_data(at)
            && data.start > at
        {
            at = data.start / PIECE_BYTES * PIECE_BYTES;
        } else if matches!(device.next_data(at), Ok(None)) {
            return;
        }
        let end = (at + PIECE_BYTES).min(capacity);
        if let Ok(bytes) = extant_block::read(device, Sector::containing(at), (end - at).to_usize()).await {
            see(at, &bytes);
        } else {
            for from in (at..end).step_by(RETRY_BYTES.to_usize()) {
                let len = RETRY_BYTES.min(end - from).to_usize();
                if let Ok(bytes) = extant_block::read(device, Sector::containing(from), len).await {
                    see(from, &bytes);
                }
            }
        }
        at = end;
    }
}

/// Reads bytes at any offset and of any length; `None` if they cannot be read.
pub(super) async fn read_at(device: &Mended, at: u64, len: usize) -> Option<Vec<u8>> {
    let sector = u64::from(device.limits().block_bytes).max(Sector::BYTES);
    let start = at / sector * sector;
    let end = at.checked_add(len.to_u64())?.checked_next_multiple_of(sector)?;
    if end > device.limits().capacity_bytes {
        return None;
    }
    let bytes = extant_block::read(device, Sector::containing(start), (end - start).to_usize()).await.ok()?;
    let from = (at - start).to_usize();
    Some(bytes.get(from..from + len)?.to_vec())
}

/// Returns `device` with other bytes at byte `at`, inside a block of a volume whose blocks have
/// `block_bytes` bytes.
pub(crate) async fn patched(device: Mended, block_bytes: usize, at: u64, bytes: &[u8]) -> Mended {
    // Patches are aligned to cells of one size, which the device can read.
    let sector = u64::from(device.limits().block_bytes);
    let cell = block_bytes.to_u64().max(sector);
    let start = at / cell * cell;
    let capacity = device.limits().capacity_bytes / sector * sector;
    if at + bytes.len().to_u64() > capacity.min(start + cell) {
        return device;
    }
    let len = cell.min(capacity - start).to_usize();
    let mut whole = match read_at(&device, start, len).await {
        Some(whole) => whole,
        // If the sector cannot be read, its other blocks must not become zeros.
        None if cell > block_bytes.to_u64() => return device,
        None => vec![0; len],
    };
    let from = (at - start).to_usize();
    whole[from..from + bytes.len()].copy_from_slice(bytes);
    device.with_patch(start, whole)
}
