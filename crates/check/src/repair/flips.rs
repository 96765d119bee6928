//! Flipped bits, found by the checksum that they broke.
//!
//! CRC-32C is linear: how a change of the message changes the checksum depends only on the change
//! and its distance from the end. In messages of up to 64 KiB, every single bit changes the
//! checksum differently, so the difference from the right checksum identifies the flipped bit. The
//! same arithmetic gives the value of a 32-bit field that makes a checksum right.

/// The reflected polynomial of CRC-32C.
const POLYNOMIAL: u32 = 0x82f6_3b78;

/// The register's value before a zero byte was processed.
fn before_zero(register: u32) -> u32 {
    (0..8).fold(register, |register, _| match register & 0x8000_0000 {
        0 => register << 1,
        _ => (register ^ POLYNOMIAL) << 1 | 1,
    })
}

/// A bit of a message: its byte, and a mask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Flip {
    pub(super) byte: usize,
    pub(super) mask: u8,
}

/// Returns the bit of a message whose flip changes the checksum by `off`, if there is one.
pub(super) fn of_message(off: u32, message_bytes: usize) -> Option<Flip> {
    let mut register = off;
    for byte in (0..message_bytes).rev() {
        register = before_zero(register);
        if register.is_power_of_two()
            && let Ok(mask) = u8::try_from(register)
        {
            return Some(Flip { byte, mask });
        }
    }
    None
}

/// Returns by how much to change each 32-bit field of a message so that the checksum changes by
/// `off`: offset and change (little-endian), starting from the end.
pub(super) fn of_fields(off: u32, message_bytes: usize) -> impl Iterator<Item = (usize, u32)> {
    let mut register = off;
    (0..message_bytes).rev().filter_map(move |byte| {
        register = before_zero(register);
        (byte % 4 == 0 && byte + 4 <= message_bytes).then_some((byte, register))
    })
}

/// Tries all flips in some bytes of a block; returns the one that makes `is_right` true, if there
/// is one.
pub(super) fn by_trial(
    block: &mut [u8],
    bytes: impl Iterator<Item = usize>,
    mut is_right: impl FnMut(&[u8]) -> bool,
) -> Option<Flip> {
    for byte in bytes {
        for bit in 0..8 {
            let mask = 1 << bit;
            block[byte] ^= mask;
            let right = is_right(block);
            block[byte] ^= mask;
            if right {
                return Some(Flip { byte, mask });
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use extant_format::crc32c;

    #[test]
    fn each_flip_of_a_block_is_found() {
        for len in [1, 256, 1020, 4084, 65_524] {
            let mut message: Vec<u8> = (0..len).map(|n: usize| n.to_le_bytes()[0].wrapping_mul(31)).collect();
            let sum = crc32c(17, &message);
            for bit in (0..len * 8).step_by(1 + len / 40) {
                let flip = Flip { byte: bit / 8, mask: 1 << (bit % 8) };
                message[flip.byte] ^= flip.mask;
                assert_eq!(of_message(crc32c(17, &message) ^ sum, len), Some(flip), "of {len} bytes");
                message[flip.byte] ^= flip.mask;
            }
        }
    }

    #[test]
    fn a_lost_field_is_restored() {
        let mut message = [7_u8; 512];
        let sum = crc32c(3, &message);
        message[128..132].copy_from_slice(&0x1234_5678_u32.to_le_bytes());
        let off = crc32c(3, &message) ^ sum;
        let (_, change) = of_fields(off, 512).find(|field| field.0 == 128).unwrap();
        assert_eq!(0x1234_5678 ^ change, 0x0707_0707);
    }
}
