//! Block and inode bitmaps (kernel document: *Block and Inode Bitmaps*): bit n is byte n / 8, bit n
//! % 8.

use crate::{ChecksumSeed, Corrupt, Group, GroupDescriptor, Place, Superblock, UintExt};

/// Whether bit `n` is set; bits past the end count as set.
pub fn bit(bitmap: &[u8], n: u32) -> bool {
    bitmap.get(n.to_usize() / 8).is_none_or(|byte| byte & 1 << (n % 8) != 0)
}

/// Whether none of the bits `start..end` is set; bits past the end count as set.
pub fn bits_are_clear(bitmap: &[u8], start: u32, end: u32) -> bool {
    let (first, last) = (start.next_multiple_of(8).min(end), (end / 8 * 8).max(start));
    let whole = match bitmap.get(first.to_usize() / 8..last.to_usize() / 8) {
        // All of them, which is faster than to stop at the first.
        Some(whole) if first < last => whole.iter().fold(0, |all, byte| all | byte) == 0,
        None if first < last => false,
        _ => true,
    };
    whole && !(start..first).chain(last.max(first)..end).any(|n| bit(bitmap, n))
}

/// Sets bits `start..end`. Panics if they are out of bounds.
pub fn set_bits(bitmap: &mut [u8], start: u32, end: u32) {
    let mut n = start;
    while n < end {
        if n.is_multiple_of(8) && end - n >= 8 {
            let bytes = (end - n) / 8;
            bitmap[n.to_usize() / 8..(n + bytes * 8).to_usize() / 8].fill(0xff);
            n += bytes * 8;
        } else {
            bitmap[n.to_usize() / 8] |= 1 << (n % 8);
            n += 1;
        }
    }
}

/// Clears bits `start..end`. Panics if they are out of bounds.
pub fn clear_bits(bitmap: &mut [u8], start: u32, end: u32) {
    let mut n = start;
    while n < end {
        if n.is_multiple_of(8) && end - n >= 8 {
            let bytes = (end - n) / 8;
            bitmap[n.to_usize() / 8..(n + bytes * 8).to_usize() / 8].fill(0);
            n += bytes * 8;
        } else {
            bitmap[n.to_usize() / 8] &= !(1 << (n % 8));
            n += 1;
        }
    }
}

/// Number of clear bits among the first `bits`; bits past the end count as set.
pub fn count_free(bitmap: &[u8], bits: u32) -> u32 {
    let bits = bits.min((bitmap.len() * 8).fit_u32());
    let whole = bits.to_usize() / 8;
    let clear: u32 = bitmap[..whole].iter().map(|byte| byte.count_zeros()).sum();
    clear + (whole.fit_u32() * 8..bits).filter(|&n| !bit(bitmap, n)).count().fit_u32()
}

/// Checksum of a block bitmap; without `64bit`, the descriptor holds its low 16 bits.
pub fn block_bitmap_checksum(seed: ChecksumSeed, bitmap: &[u8], sb: &Superblock) -> u32 {
    checksum(seed, bitmap, sb.clusters_per_group(), sb)
}

/// Checksum of an inode bitmap; without `64bit`, the descriptor holds its low 16 bits.
pub fn inode_bitmap_checksum(seed: ChecksumSeed, bitmap: &[u8], sb: &Superblock) -> u32 {
    checksum(seed, bitmap, sb.inodes_per_group(), sb)
}

fn checksum(seed: ChecksumSeed, bitmap: &[u8], bits: u32, sb: &Superblock) -> u32 {
    let bytes = (bits.to_usize() / 8).min(bitmap.len());
    let sum = seed.over(&bitmap[..bytes]).0;
    if sb.descriptor_size() >= 64 { sum } else { sum & 0xffff }
}

/// Checks a group's block bitmap against the checksum in its descriptor.
///
/// # Errors
/// Another checksum, on a volume with `metadata_csum`.
pub fn verify_block_bitmap(
    bitmap: &[u8],
    sb: &Superblock,
    group: Group,
    gd: &GroupDescriptor,
) -> Result<(), Corrupt> {
    let computed = sb.checksum_seed().map(|seed| block_bitmap_checksum(seed, bitmap, sb));
    compare(Place::BlockBitmap(group), gd.block_bitmap_csum, computed)
}

/// Checks a group's inode bitmap against the checksum in its descriptor.
///
/// # Errors
/// Another checksum, on a volume with `metadata_csum`.
pub fn verify_inode_bitmap(
    bitmap: &[u8],
    sb: &Superblock,
    group: Group,
    gd: &GroupDescriptor,
) -> Result<(), Corrupt> {
    let computed = sb.checksum_seed().map(|seed| inode_bitmap_checksum(seed, bitmap, sb));
    compare(Place::InodeBitmap(group), gd.inode_bitmap_csum, computed)
}

fn compare(place: Place, stored: u32, computed: Option<u32>) -> Result<(), Corrupt> {
    match computed {
        Some(computed) if computed != stored => Err(Corrupt::checksum(place, stored, computed)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_that_straddle_bytes() {
        for (start, end) in [(0, 0), (3, 5), (0, 8), (7, 9), (5, 32), (1, 31)] {
            let mut map = [0u8; 4];
            set_bits(&mut map, start, end);
            for n in 0..32 {
                assert_eq!(bit(&map, n), (start..end).contains(&n), "{start}..{end}: bit {n}");
            }
            assert_eq!(count_free(&map, 32), 32 - (end - start));
            for (from, to) in (0..=32).flat_map(|from| (from..=32).map(move |to| (from, to))) {
                let clear = to <= start || end <= from || from == to || start == end;
                assert_eq!(bits_are_clear(&map, from, to), clear, "{start}..{end}: {from}..{to}");
            }
        }
        assert!(!bits_are_clear(&[0], 3, 9) && !bits_are_clear(&[0], 3, 32), "as above");
        assert!(bit(&[0], 8), "beyond the end counts as used");
        assert_eq!(count_free(&[0b0000_0101], 3), 1);
    }
}
