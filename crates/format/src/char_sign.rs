//! The sign of C's `char` in hashes.

/// Whether a hash treats name bytes above 0x7f as negative. C leaves the sign of `char` to the
/// platform, so both kinds of hashes exist on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CharSign {
    /// As on x86: 0x80 to 0xff are -128 to -1.
    Signed,
    /// As on Arm. Current Linux also uses this where it can choose.
    Unsigned,
}

impl CharSign {
    /// The byte as the hash sees it, extended to 32 bits.
    pub(crate) const fn extend(self, byte: u8) -> u32 {
        match self {
            Self::Signed => byte.cast_signed() as i32 as u32,
            Self::Unsigned => byte as u32,
        }
    }
}
