//! The limits as users state them.

use crate::dirty::control::DirtyLimits;
use std::str::FromStr;

const PAGE: u64 = crate::PAGE_BYTES as u64;

/// An amount of dirty memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DirtyBound {
    /// So many bytes.
    Bytes(u64),
    /// So many hundredths of the cache's budget.
    Percent(u8),
}

/// Both limits on dirty memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirtyBounds {
    /// Flushers work while more than this is dirty.
    pub background: DirtyBound,
    /// Dirty and write-back pages together never exceed this.
    pub limit: DirtyBound,
}

/// A limit that cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BoundError {
    /// More than there is.
    #[error("{0} % of the cache cannot be dirty: give a percentage from 1 to 100, or a number of bytes")]
    Percent(u8),
    /// Less than one page, or more than the cache holds.
    #[error(
        "a limit of {bytes} bytes of dirty memory does not fit a cache of {budget_bytes} bytes: give 4096 to {budget_bytes}"
    )]
    Bytes {
        /// The limit requested.
        bytes: u64,
        /// The cache's budget.
        budget_bytes: u64,
    },
    /// Not a bound at all.
    #[error("'{0}' is not an amount of memory: write it like 100M or 20%")]
    Syntax(String),
}

impl Default for DirtyBounds {
    /// As Linux: 10 % and 20 %.
    fn default() -> Self {
        Self { background: DirtyBound::Percent(10), limit: DirtyBound::Percent(20) }
    }
}

impl DirtyBounds {
    /// The limits for a cache of `budget_bytes`. A background threshold at or above the limit becomes half of it, as in
    /// Linux (`global_dirty_limits()`).
    ///
    /// # Errors
    /// The limit is more than the budget, or less than a page. A background threshold of 0 bytes is one.
    pub fn for_budget(&self, budget_bytes: u64) -> Result<DirtyLimits, BoundError> {
        let limit_bytes = self.limit.bytes(budget_bytes)?;
        if limit_bytes < PAGE || limit_bytes > budget_bytes {
            return Err(BoundError::Bytes { bytes: limit_bytes, budget_bytes });
        }
        let limit_pages = limit_bytes / PAGE;
        let background_pages = self.background.bytes(budget_bytes)? / PAGE;
        let background_pages =
            if background_pages >= limit_pages { limit_pages / 2 } else { background_pages };
        Ok(DirtyLimits { background_pages, limit_pages })
    }
}

impl DirtyBound {
    fn bytes(self, budget_bytes: u64) -> Result<u64, BoundError> {
        match self {
            Self::Bytes(bytes) => Ok(bytes),
            Self::Percent(percent @ 1..=100) => {
                Ok((u128::from(budget_bytes) * u128::from(percent) / 100) as u64)
            }
            Self::Percent(percent) => Err(BoundError::Percent(percent)),
        }
    }
}

impl FromStr for DirtyBound {
    type Err = BoundError;

    /// `20%`, or bytes with one of the suffixes K, M, G and T (powers of 1024).
    fn from_str(text: &str) -> Result<Self, BoundError> {
        let wrong = || BoundError::Syntax(text.to_owned());
        if let Some(percent) = text.strip_suffix('%') {
            return percent.trim().parse().map(Self::Percent).map_err(|_| wrong());
        }
        let (digits, shift) = match text.char_indices().last() {
            Some((at, 'K' | 'k')) => (&text[..at], 10),
            Some((at, 'M' | 'm')) => (&text[..at], 20),
            Some((at, 'G' | 'g')) => (&text[..at], 30),
            Some((at, 'T' | 't')) => (&text[..at], 40),
            _ => (text, 0),
        };
        let number: u64 = digits.trim().parse().map_err(|_| wrong())?;
        number.checked_mul(1 << shift).map(Self::Bytes).ok_or_else(wrong)
    }
}
