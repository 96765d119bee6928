//! The two checksums of ext4, and the seed that most of them start from.

use crate::InodeNumber;

/// CRC-32C over `bytes`, continuing from `seed`, without the final inversion, as stored by ext4 and
/// jbd2.
pub fn crc32c(seed: u32, bytes: &[u8]) -> u32 {
    !crc32c::crc32c_append(!seed, bytes)
}

/// The reverse of [`crc32c()`]: the seed that makes the checksum of `bytes` equal to `end`.
pub fn crc32c_origin(end: u32, bytes: &[u8]) -> u32 {
    bytes.iter().rev().fold(end, |crc, &byte| {
        let [low @ .., top] = crc.to_le_bytes();
        let shifted = u32::from_le_bytes([0, low[0], low[1], low[2]]);
        shifted ^ BEFORE_BYTE[usize::from(top)] ^ u32::from(byte)
    })
}

/// For each top byte of a register whose other bytes are zero: what the register held before it
/// took in a zero byte.
static BEFORE_BYTE: [u32; 256] = before_bytes();

const fn before_bytes() -> [u32; 256] {
    const POLYNOMIAL: u32 = 0x82f6_3b78;
    let mut table = [0; 256];
    let (mut n, mut register) = (0, 0_u32);
    while n < table.len() {
        let (mut crc, mut bit) = (register, 0);
        while bit < 8 {
            // The polynomial was subtracted where the top bit, which a shift leaves clear, is set.
            crc = if crc >> 31 == 0 { crc << 1 } else { (crc ^ POLYNOMIAL) << 1 | 1 };
            bit += 1;
        }
        table[n] = crc;
        n += 1;
        register = register.wrapping_add(1 << 24);
    }
    table
}

/// CRC-16 (polynomial 0x8005, reflected) over `bytes`, continuing from `seed`; used for group
/// descriptors under `uninit_bg`.
pub fn crc16(seed: u16, bytes: &[u8]) -> u16 {
    bytes.iter().fold(seed, |crc, &byte| {
        (0..8).fold(crc ^ u16::from(byte), |crc, _| if crc & 1 != 0 { (crc >> 1) ^ 0xa001 } else { crc >> 1 })
    })
}

/// Initial value of metadata checksums: CRC-32C of the volume's UUID, or `s_checksum_seed`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChecksumSeed(pub u32);

impl ChecksumSeed {
    /// The seed of a volume without `metadata_csum_seed`.
    pub fn from_uuid(uuid: &[u8; 16]) -> Self {
        Self(crc32c(!0, uuid))
    }

    /// The reverse of [`ChecksumSeed::over`]: the seed that makes the checksum of `bytes` equal to
    /// `end`.
    pub fn of(end: u32, bytes: &[u8]) -> Self {
        Self(crc32c_origin(end, bytes))
    }

    /// CRC-32C over `bytes`, continuing from this seed.
    pub fn over(self, bytes: &[u8]) -> Self {
        Self(crc32c(self.0, bytes))
    }

    /// The seed for everything that belongs to an inode: its extent nodes, its directory blocks,
    /// and the inode itself.
    pub fn for_inode(self, number: InodeNumber, generation: u32) -> Self {
        let both = u64::from(generation) << 32 | u64::from(number.0);
        self.over(&both.to_le_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_origin_of_a_checksum_is_its_seed() {
        let bytes = b"any bytes, of any length";
        for n in 0..bytes.len() {
            assert_eq!(crc32c_origin(crc32c(0x1234_5678, &bytes[..n]), &bytes[..n]), 0x1234_5678);
        }
        // Summing four bytes XORs them with the seed, so each gives the other.
        let number = 77_u32;
        let sum = crc32c(0x1234_5678, &number.to_le_bytes());
        assert_eq!(crc32c_origin(sum, &[0; 4]) ^ 0x1234_5678, number);
    }

    /// Check values of the CRC catalogue: CRC-32/ISCSI and CRC-16/ARC over "123456789".
    #[test]
    fn catalogue_check_values() {
        assert_eq!(!crc32c(!0, b"123456789"), 0xe306_9283);
        assert_eq!(crc16(0, b"123456789"), 0xbb3d);
    }
}
