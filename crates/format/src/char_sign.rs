//! How a hash read C's `char`.

/// Whether a hash took name bytes past 0x7f as negative: C leaves the sign of `char` to the processor, and both kinds of
/// hashes are on disks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CharSign {
    /// As on x86: 0x80 to 0xff are -128 to -1.
    Signed,
    /// As on Arm, and wherever Linux decides today.
    Unsigned,
}

impl CharSign {
    /// The byte as the hash sees it, extended to 32 bits.
    pub(crate) const fn extend(self, byte: u8) -> u32 {
        match self {
            Self::Signed => byte as i8 as i32 as u32,
            Self::Unsigned => byte as u32,
        }
    }
}
