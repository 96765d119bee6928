//! Conversions between unsigned integers that `From` does not offer.

const _: () = assert!(usize::BITS == 64, "Extant is for targets with 64-bit pointers");

/// Conversions to other widths, for numbers of at most 64 bits. Those to 64 bits lose nothing. For
/// fewer bits there are three: `try_from` for what a user or a disk may say, `fit_…` for what the
/// caller has bounded, and `low_…` for a field that keeps a number in parts.
pub trait UintExt: Copy {
    /// The number as a `u64`.
    fn to_u64(self) -> u64;

    /// The number as a length or an index.
    #[inline]
    fn to_usize(self) -> usize {
        self.to_u64() as usize
    }

    /// The low 32 bits.
    #[inline]
    fn low_u32(self) -> u32 {
        self.to_u64() as u32
    }

    /// The low 16 bits.
    #[inline]
    fn low_u16(self) -> u16 {
        self.to_u64() as u16
    }

    /// The low 8 bits.
    #[inline]
    fn low_u8(self) -> u8 {
        self.to_u64() as u8
    }

    /// A number that is known to fit in 32 bits; tests panic if it does not.
    #[inline]
    fn fit_u32(self) -> u32 {
        debug_assert!(self.to_u64() <= u32::MAX.into(), "{} in 32 bits", self.to_u64());
        self.low_u32()
    }

    /// A number that is known to fit in 16 bits; tests panic if it does not.
    #[inline]
    fn fit_u16(self) -> u16 {
        debug_assert!(self.to_u64() <= u16::MAX.into(), "{} in 16 bits", self.to_u64());
        self.low_u16()
    }

    /// A number that is known to fit in 8 bits; tests panic if it does not.
    #[inline]
    fn fit_u8(self) -> u8 {
        debug_assert!(self.to_u64() <= u8::MAX.into(), "{} in 8 bits", self.to_u64());
        self.low_u8()
    }
}

macro_rules! unsigned {
    ($($number:ty),*) => {
        $(impl UintExt for $number {
            #[inline]
            fn to_u64(self) -> u64 {
                self as u64
            }
        })*
    };
}

unsigned!(u8, u16, u32, u64, usize);
