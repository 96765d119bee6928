//! Pages that were missed lately and not cached.

use crate::page::{PageKey, mix};
use crate::pool::arena::Table;
use std::sync::atomic::{AtomicU32, Ordering};

/// A table of fingerprints, one for each of the last misses, about half as many as there are
/// frames. Newer ones take the places of older ones. Two pages with the same place and fingerprint
/// are taken for one, which only caches a page too early.
#[derive(Debug)]
pub(crate) struct Missed(Table<AtomicU32>);

impl Missed {
    /// For a pool of `frames` frames.
    pub(super) fn new(frames: u32) -> std::io::Result<Self> {
        Ok(Self(Table::zeroed((frames as usize / 2).next_power_of_two())?))
    }

    pub(super) fn overhead_bytes(&self) -> usize {
        self.0.bytes()
    }

    /// Whether the page was missed before, and not so long ago. If so, it is forgotten; if not, it
    /// is remembered.
    pub(crate) fn again(&self, page: PageKey) -> bool {
        let hash = mix(page.0);
        let place = &self.0[hash as usize & (self.0.len() - 1)];
        // 0 is an empty place.
        let print = (hash >> 32) as u32 | 1;
        let is_again = place.load(Ordering::Relaxed) == print;
        place.store(if is_again { 0 } else { print }, Ordering::Relaxed);
        is_again
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::FileId;

    #[test]
    fn a_page_is_missed_again_if_it_was_missed_lately() {
        let missed = Missed::new(1000).unwrap();
        let page = |n| PageKey::new(FileId(3), n);
        assert!((0..100).filter(|&n| missed.again(page(n))).count() < 5);
        assert!((0..100).filter(|&n| missed.again(page(n))).count() > 60);
        assert!((0..100).filter(|&n| missed.again(page(n))).count() < 40, "each time counts once");
        (1000..20_000).for_each(|n| _ = missed.again(page(n)));
        assert!((0..100).filter(|&n| missed.again(page(n))).count() < 5, "that was long ago");
    }
}
