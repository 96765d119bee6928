//! Checks the checksums of many inodes.

use extant_format::{ChecksumSeed, InodeNumber, RawInode, crc32c};
use zerocopy::FromBytes;

/// For each value of each of the four bytes of a stored checksum: what that byte adds to the
/// checksum of the whole inode. CRCs are linear, so removing these parts from the checksum of all
/// bytes gives that of the inode with zeros in place of its checksum.
pub(crate) struct StoredSums(Box<[[u32; 256]; 4]>);

/// The low and the high bytes of `i_checksum_lo` and of `i_checksum_hi`.
const CHECKSUM_BYTES: [usize; 4] = [124, 125, 130, 131];

impl StoredSums {
    pub(crate) fn new(inode_bytes: usize) -> Self {
        let mut sums = Box::new([[0; 256]; 4]);
        let mut bytes = vec![0; inode_bytes];
        for (sums, at) in sums.iter_mut().zip(CHECKSUM_BYTES) {
            for (sum, value) in sums.iter_mut().zip(0..=u8::MAX) {
                if let Some(byte) = bytes.get_mut(at) {
                    *byte = value;
                    *sum = crc32c(0, &bytes[at..]);
                    bytes[at] = 0;
                }
            }
        }
        Self(sums)
    }

    /// Whether an inode has the right checksum of 32 bits; also false where it has 16 bits.
    pub(crate) fn is_right(&self, bytes: &[u8], number: InodeNumber, seed: ChecksumSeed) -> bool {
        let Ok((raw, more)) = RawInode::ref_from_prefix(bytes) else { return false };
        let Some(&[extra_size @ .., third, fourth]) = more.first_chunk::<4>() else { return false };
        if u16::from_le_bytes(extra_size) < 4 {
            return false;
        }
        let [first, second] = raw.i_checksum_lo.get().to_le_bytes();
        let stored = [first, second, third, fourth];
        let sum = seed.for_inode(number, raw.i_generation.get()).over(bytes).0;
        let sum = self.0.iter().zip(stored).fold(sum, |sum, (sums, byte)| sum ^ sums[usize::from(byte)]);
        sum == u32::from_le_bytes(stored)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use extant_format::{Inode, UintExt};

    #[test]
    fn a_checksum_is_right_for_one_inode_only() {
        let mut bytes: Vec<u8> = (0..256_u32).map(|n| (n * 37).low_u8()).collect();
        bytes[128..130].copy_from_slice(&32_u16.to_le_bytes());
        let number = InodeNumber(77);
        let seed = ChecksumSeed(Inode::checksum_origin(&bytes).unwrap() ^ number.0);
        let sums = StoredSums::new(bytes.len());
        assert!(sums.is_right(&bytes, number, seed));
        assert!(!sums.is_right(&bytes, InodeNumber(78), seed));
        for at in 0..bytes.len() {
            bytes[at] ^= 1;
            assert!(!sums.is_right(&bytes, number, seed), "byte {at}");
            bytes[at] ^= 1;
        }
    }
}
