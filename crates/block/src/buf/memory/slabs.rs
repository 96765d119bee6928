//! Memory for blocks, cut from larger slabs.
//!
//! An allocator keeps its own record in front of each allocation. A page-sized, page-aligned buffer
//! therefore takes two pages (malloc(3) of glibc), and a cache of blocks would take twice its
//! budget.

use super::BUF_ALIGN;
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;

/// Size of a piece, in bytes: that of most blocks. Shorter buffers also get one, because their
/// alignment is the same.
pub(super) const PIECE_BYTES: usize = 4096;
const PIECES: usize = u64::BITS as usize;
/// Maximum number of free pieces kept, 16 MiB.
const KEPT: usize = 4096;

const _: () = assert!(PIECE_BYTES.is_multiple_of(BUF_ALIGN));

/// The slabs of a process.
pub(super) struct Slabs {
    slabs: Vec<Slab>,
    /// Numbers of slabs with free pieces.
    open: Vec<u32>,
    /// Unused slab numbers.
    vacant: Vec<u32>,
    free_pieces: usize,
}

struct Slab {
    start: NonNull<u8>,
    /// One bit per free piece; 0 once the memory has been returned.
    free: u64,
}

// SAFETY: it owns its allocation, and each piece in use belongs to one buffer.
unsafe impl Send for Slab {}

impl Slabs {
    pub(super) const fn new() -> Self {
        Self { slabs: Vec::new(), open: Vec::new(), vacant: Vec::new(), free_pieces: 0 }
    }

    /// Takes a piece, with the contents its last user left, or zeros. Also returns the number of
    /// its slab. Pieces taken one after another are adjacent where possible. Aborts if memory is
    /// exhausted, like `Vec`.
    pub(super) fn take(&mut self) -> (NonNull<u8>, u32) {
        let number = match self.open.last() {
            Some(&number) => number,
            None => self.grow(),
        };
        let slab = &mut self.slabs[number as usize];
        let at = slab.free.trailing_zeros() as usize;
        slab.free &= slab.free - 1;
        if slab.free == 0 {
            self.open.pop();
        }
        self.free_pieces -= 1;
        // SAFETY: piece `at` of `PIECES` lies inside the slab.
        (unsafe { slab.start.add(at * PIECE_BYTES) }, number)
    }

    /// Returns a piece.
    ///
    /// # Safety
    /// It was taken from the slab with this number, and nothing refers to it.
    pub(super) unsafe fn give(&mut self, number: u32, piece: NonNull<u8>) {
        let slab = &mut self.slabs[number as usize];
        if slab.free == 0 {
            self.open.push(number);
        }
        slab.free |= 1 << ((piece.addr().get() - slab.start.addr().get()) / PIECE_BYTES);
        self.free_pieces += 1;
        if slab.free == u64::MAX && self.free_pieces > KEPT {
            slab.free = 0;
            // SAFETY: allocated in `grow` with this layout; all of its pieces are free.
            unsafe { dealloc(slab.start.as_ptr(), layout()) };
            self.free_pieces -= PIECES;
            self.open.retain(|&open| open != number);
            self.vacant.push(number);
        }
    }

    /// Creates a slab, and makes it the last of the open ones.
    fn grow(&mut self) -> u32 {
        // SAFETY: the layout has a non-zero size.
        let start = NonNull::new(unsafe { alloc_zeroed(layout()) });
        let start = start.unwrap_or_else(|| handle_alloc_error(layout()));
        let slab = Slab { start, free: u64::MAX };
        let number = if let Some(number) = self.vacant.pop() {
            self.slabs[number as usize] = slab;
            number
        } else {
            self.slabs.push(slab);
            (self.slabs.len() - 1) as u32
        };
        self.open.push(number);
        self.free_pieces += PIECES;
        number
    }
}

fn layout() -> Layout {
    Layout::from_size_align(PIECES * PIECE_BYTES, BUF_ALIGN).expect("a slab is smaller than isize::MAX")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn blocks_take_little_more_memory_than_they_are_long_and_give_it_back() {
        let mut slabs = Slabs::new();
        let many = if cfg!(miri) { 3 * PIECES } else { 4 * KEPT };
        for _ in 0..2 {
            let mut taken: Vec<_> = (0..many).map(|_| slabs.take()).collect();
            let places: BTreeSet<_> = taken.iter().map(|(piece, _)| piece.addr().get()).collect();
            assert_eq!(places.len(), many, "no two are the same");
            assert!(places.iter().all(|place| place.is_multiple_of(BUF_ALIGN)));
            assert_eq!(slabs.slabs.len(), many / PIECES);
            // One piece of each slab comes last: all slabs stay open until then.
            taken.sort_unstable_by_key(|(piece, _)| piece.addr().get() / PIECE_BYTES % 7);
            for (piece, number) in taken {
                // SAFETY: taken above from this slab.
                unsafe { slabs.give(number, piece) };
            }
            let kept = slabs.slabs.len() - slabs.vacant.len();
            assert_eq!((slabs.free_pieces, slabs.open.len()), (kept * PIECES, kept));
            assert!(slabs.free_pieces <= KEPT);
        }
        for number in std::mem::take(&mut slabs.open) {
            // SAFETY: all pieces of an open slab are free here; it is not used afterwards.
            unsafe { dealloc(slabs.slabs[number as usize].start.as_ptr(), layout()) };
        }
    }
}
