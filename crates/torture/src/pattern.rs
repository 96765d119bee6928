//! Contents of writes: bytes that identify their write, and are never zero.

/// The bytes stored by write `tag` at `offset`: none is zero, and two writes agree in only one byte
/// out of 255.
pub fn pattern(tag: u32, offset: u64, len: usize) -> Vec<u8> {
    let byte = |at: u64| {
        let mixed = (at ^ (u64::from(tag) << 40)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29)
            ^ u64::from(tag).wrapping_mul(0xd6e8_feb8_6659_fd93);
        (mixed.wrapping_mul(0xff51_afd7_ed55_8ccd) >> 40) % 255 + 1
    };
    (offset..offset + len as u64).map(|at| byte(at) as u8).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_are_told_apart() {
        let (a, b) = (pattern(1, 0, 4096), pattern(2, 0, 4096));
        assert!(a.iter().chain(&b).all(|&byte| byte != 0));
        assert!(a.iter().zip(&b).filter(|(a, b)| a == b).count() < 100);
        assert_eq!(pattern(1, 100, 50), a[100..150]);
    }
}
