//! Page-aligned memory for bios.

mod loan;
mod memory;

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

pub(crate) use loan::Loan;
use memory::Origin;

/// Alignment of every [`Buf`] with memory of its own, in bytes: enough for O_DIRECT on any Linux
/// block device.
pub const BUF_ALIGN: usize = 4096;

/// Zero-initialised memory, aligned for O_DIRECT. It owns the memory, or borrows a caller's for the
/// duration of a call ([`lend`](crate::lend)); memory borrowed for reading may begin anywhere.
pub struct Buf {
    ptr: NonNull<u8>,
    len: usize,
    origin: Origin,
    /// Counts this buffer's bytes while it lives.
    counter: Option<Arc<AtomicUsize>>,
    /// Set if the memory is a caller's.
    loan: Option<Arc<Loan>>,
}

// SAFETY: `Buf` owns its allocation exclusively, like `Box<[u8]>`. Lent memory belongs to the `Buf`
// alone while it lives; if it is not writable, it is only read.
unsafe impl Send for Buf {}
// SAFETY: shared access to a `Buf` only reads.
unsafe impl Sync for Buf {}

impl Buf {
    /// `len` zero bytes. Aborts if memory is exhausted, like `Vec`.
    pub fn zeroed(len: usize) -> Self {
        if len == 0 {
            return Self {
                ptr: NonNull::dangling(),
                len: 0,
                origin: Origin::Allocator,
                counter: None,
                loan: None,
            };
        }
        let (ptr, origin) = memory::take(len);
        // SAFETY: the memory is `len` bytes long, and nothing else refers to it.
        unsafe { ptr.as_ptr().write_bytes(0, len) };
        Self { ptr, len, origin, counter: None, loan: None }
    }

    /// `len` bytes with leftover contents of an earlier buffer, or zeros. For memory that a device
    /// fills before anyone looks at it. Aborts if memory is exhausted.
    pub fn stale(len: usize) -> Self {
        if len == 0 {
            return Self::zeroed(0);
        }
        let (ptr, origin) = memory::take(len);
        if origin == Origin::Allocator {
            // SAFETY: the memory is `len` bytes long, and nothing else refers to it. Memory of
            // other origins was zeroed once, and only buffers have written to it since.
            unsafe { ptr.as_ptr().write_bytes(0, len) };
        }
        Self { ptr, len, origin, counter: None, loan: None }
    }

    /// A copy of `bytes`.
    pub fn from_slice(bytes: &[u8]) -> Self {
        let len = bytes.len();
        if len == 0 {
            return Self::zeroed(0);
        }
        let (ptr, origin) = memory::take(len);
        // SAFETY: both are `len` bytes long; no other reference leads to the new memory, and all of
        // it is initialised here.
        unsafe { ptr.as_ptr().copy_from_nonoverlapping(bytes.as_ptr(), len) };
        Self { ptr, len, origin, counter: None, loan: None }
    }

    /// Adds this buffer's bytes to `counter`, and subtracts them when it is dropped. Replaces an
    /// earlier counter.
    #[must_use]
    pub fn counted_in(mut self, counter: &Arc<AtomicUsize>) -> Self {
        counter.fetch_add(self.len, Ordering::Relaxed);
        self.uncount();
        self.counter = Some(counter.clone());
        self
    }

    /// A copy of the bytes, counted by the same counter.
    #[must_use]
    pub fn duplicate(&self) -> Self {
        let copy = Self::from_slice(self);
        match &self.counter {
            Some(counter) => copy.counted_in(counter),
            None => copy,
        }
    }

    fn uncount(&mut self) {
        if let Some(counter) = self.counter.take() {
            counter.fetch_sub(self.len, Ordering::Relaxed);
        }
    }

    /// A buffer over a caller's memory.
    ///
    /// # Safety
    /// Until `loan` is given back, the memory is valid for reads of `len` bytes (`len > 0`), and
    /// nothing else writes to it. If the loan is writable, the memory
    /// is also valid for writes, and nothing else refers to it.
    pub(crate) unsafe fn lent(ptr: NonNull<u8>, len: usize, loan: Arc<Loan>) -> Self {
        Self { ptr, len, origin: Origin::Lent, counter: None, loan: Some(loan) }
    }

    /// Whether this buffer belongs to `loan`.
    pub(crate) fn is_of(&self, loan: &Arc<Loan>) -> bool {
        self.loan.as_ref().is_some_and(|own| Arc::ptr_eq(own, loan))
    }

    /// Whether the bytes may be changed; false for memory lent for reading.
    pub(crate) fn is_writable(&self) -> bool {
        self.loan.as_ref().is_none_or(|loan| loan.is_writable)
    }

    pub(crate) fn as_ptr(&self) -> *mut u8 {
        self.ptr.as_ptr()
    }
}

impl Drop for Buf {
    fn drop(&mut self) {
        self.uncount();
        if let Some(loan) = self.loan.take() {
            loan.give_back();
        } else if self.len > 0 {
            // SAFETY: taken for this length when the buffer was created, and dropped once.
            unsafe { memory::give(self.ptr, self.len, self.origin) }
        }
    }
}

impl Deref for Buf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: `ptr` is valid for `len` initialised bytes (or dangling with `len` 0), and `self`
        // is borrowed.
        unsafe { std::slice::from_raw_parts(self.ptr.as_ptr(), self.len) }
    }
}

impl DerefMut for Buf {
    fn deref_mut(&mut self) -> &mut [u8] {
        assert!(self.is_writable(), "memory that was lent for reading must not be changed");
        // SAFETY: as in `deref`; the borrow is exclusive, and the memory is not read-only.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.as_ptr(), self.len) }
    }
}

impl fmt::Debug for Buf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buf({} bytes)", self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_is_used_again_holds_what_a_new_one_would() {
        let lens: &[usize] = if cfg!(miri) {
            &[1024, 4096, 65536]
        } else {
            &[1024, 4096, 8192, 65536, 100_000, 1 << 20, 2 << 20, 3 << 20]
        };
        for &len in lens {
            drop((0..8).map(|_| Buf::from_slice(&vec![7; len])).collect::<Vec<_>>());
            // Stale contents may be those of another test's buffers.
            let stale = Buf::stale(len);
            assert!(stale[..] == stale.to_vec()[..], "Miri reports a read of uninitialised memory here");
            let (zeroes, copy) = (Buf::zeroed(len), Buf::from_slice(&vec![9; len]));
            assert!(zeroes[..] == vec![0; len][..] && copy[..] == vec![9; len][..]);
            assert_eq!((zeroes.as_ptr().addr() % BUF_ALIGN, copy.as_ptr().addr() % BUF_ALIGN), (0, 0));
        }
    }

    #[test]
    fn a_buffer_is_counted_as_long_as_it_lives() {
        let (first, second) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let count = || (first.load(Ordering::Relaxed), second.load(Ordering::Relaxed));
        let buf = Buf::from_slice(&[7; 512]).counted_in(&first);
        let copy = buf.duplicate();
        assert_eq!((&copy[..], count()), (&[7; 512][..], (1024, 0)));
        let copy = copy.counted_in(&second);
        assert_eq!(count(), (512, 512));
        drop((buf, copy.duplicate()));
        assert_eq!(count(), (0, 512));
        drop(copy);
        assert_eq!(count(), (0, 0));
    }

    #[test]
    fn buffers_of_a_block_take_no_more_memory_than_they_are_long() {
        let count = if cfg!(miri) { 128 } else { 2048 };
        let mut bufs: Vec<Buf> = (0..count).map(|_| Buf::zeroed(4096)).collect();
        bufs.sort_unstable_by_key(|buf| buf.as_ptr());
        let adjacent =
            bufs.windows(2).filter(|pair| pair[1].as_ptr().addr() - pair[0].as_ptr().addr() == 4096);
        assert!(adjacent.count() > count / 2);
    }

    /// More buffers than there are huge pages for, of changing lengths, on several threads; none
    /// overlaps another.
    #[test]
    fn buffers_of_all_lengths_keep_their_contents() {
        let lens: Vec<usize> =
            if cfg!(miri) { vec![4096, 65536, 65536] } else { (1..=96).map(|n| n * 20_000).collect() };
        std::thread::scope(|scope| {
            for thread in 0..3_u8 {
                let lens = &lens;
                scope.spawn(move || {
                    for turn in 0..if cfg!(miri) { 1 } else { 4 } {
                        let byte =
                            |n: usize| (n as u8).wrapping_mul(3).wrapping_add(thread).wrapping_add(turn);
                        let fill = |(n, &len): (usize, &usize)| {
                            let mut buf = Buf::zeroed(len);
                            let (first, last) = (0, len - 1);
                            (buf[first], buf[len / 2], buf[last]) = (byte(n), byte(n), byte(n));
                            buf
                        };
                        let mut bufs: Vec<Buf> = lens.iter().enumerate().map(fill).collect();
                        bufs.rotate_left(2);
                        for (n, buf) in bufs.into_iter().enumerate() {
                            let n = (n + 2) % lens.len();
                            assert_eq!(
                                (buf[0], buf[buf.len() / 2], buf[buf.len() - 1]),
                                (byte(n), byte(n), byte(n))
                            );
                        }
                    }
                });
            }
        });
    }
}
