//! Keys and flags: what waits refer to.

/// The key of a wait: an event of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WaitKey {
    /// The object: for example a page or buffer number, the same in every run.
    pub object: u64,
    /// Which event of the object. Flags use the number of their bit.
    pub event: u8,
}

impl WaitKey {
    /// The only event of this object; do not mix with flags.
    pub const fn new(object: u64) -> Self {
        Self { object, event: u8::MAX }
    }
}

/// A bit of a word that can be waited for, and a second bit that says that it has waiters.
///
/// The word belongs to the object; its other bits are left alone. A waiter sets the second bit, so
/// that a wake without waiters does not look into the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flag {
    bit: u8,
    pub(super) waited: u32,
}

impl Flag {
    /// Two different bits of a word, by number. Each flag of a word has its own two bits.
    pub const fn new(bit: u8, waited_bit: u8) -> Self {
        assert!(bit < 32 && waited_bit < 32 && bit != waited_bit);
        Self { bit, waited: 1 << waited_bit }
    }

    /// The bit as a mask.
    pub const fn mask(self) -> u32 {
        1 << self.bit
    }

    /// The bit that says that the flag has waiters, as a mask.
    pub const fn waited_mask(self) -> u32 {
        self.waited
    }

    pub(super) const fn key(self, object: u64) -> WaitKey {
        WaitKey { object, event: self.bit }
    }
}
