//! The two checksums of ext4, and the seed that most of them start from.

use crate::InodeNumber;

/// CRC-32C over `bytes`, continuing from `seed`, without the final inversion, as stored by ext4 and
/// jbd2.
pub fn crc32c(seed: u32, bytes: &[u8]) -> u32 {
    !crc32c::crc32c_append(!seed, bytes)
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

    /// CRC-32C over `bytes`, continuing from this seed.
    pub fn over(self, bytes: &[u8]) -> Self {
        Self(crc32c(self.0, bytes))
    }

    /// The seed for everything that belongs to an inode: its extent nodes, its directory blocks,
    /// and the inode itself.
    pub fn for_inode(self, number: InodeNumber, generation: u32) -> Self {
        self.over(&number.0.to_le_bytes()).over(&generation.to_le_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Check values of the CRC catalogue: CRC-32/ISCSI and CRC-16/ARC over "123456789".
    #[test]
    fn catalogue_check_values() {
        assert_eq!(!crc32c(!0, b"123456789"), 0xe306_9283);
        assert_eq!(crc16(0, b"123456789"), 0xbb3d);
    }
}
