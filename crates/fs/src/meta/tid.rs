//! Transaction numbers.

use extant_format::UintExt;
use std::fmt;

/// A transaction's number. The low 32 bits are the sequence number on disk, which wraps. The full
/// number never does, so later transactions compare greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Tid(pub(crate) u64);

impl Tid {
    /// Before every transaction.
    pub(crate) const NONE: Self = Self(0);

    /// The first transaction after opening; its sequence number on disk is `sequence`.
    pub(crate) fn first(sequence: u32) -> Self {
        // High enough that `previous` does not underflow and no transaction is 0.
        Self(1 << 32 | u64::from(sequence))
    }

    /// The transaction after this one.
    #[must_use]
    pub(crate) const fn next(self) -> Self {
        Self(self.0 + 1)
    }

    /// The transaction before this one.
    pub(crate) const fn previous(self) -> Self {
        Self(self.0 - 1)
    }

    /// The sequence number in the log.
    pub(crate) fn sequence(self) -> u32 {
        self.0.low_u32()
    }
}

impl fmt::Display for Tid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.sequence().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_ascend_across_the_wrap_of_the_sequence() {
        let last = Tid::first(u32::MAX);
        assert_eq!(last.next().sequence(), 0);
        assert!(last < last.next());
        assert_eq!(Tid::first(0).previous().sequence(), u32::MAX);
    }
}
