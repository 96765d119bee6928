//! Page-aligned memory that a bio may carry.

use parking_lot::Mutex;
use std::alloc::{Layout, alloc, alloc_zeroed, dealloc, handle_alloc_error};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// Alignment of every [`Buf`], in bytes: enough for O_DIRECT on any Linux block device.
pub const BUF_ALIGN: usize = 4096;

/// The length of buffers that are kept for reuse: that of most blocks. Aligned allocations are what the C library's allocator
/// is slowest at, because it cuts each out of a larger piece.
const KEPT_BYTES: usize = 4096;
/// Buffers that are kept, 16 MiB.
const KEPT: usize = 4096;

/// Memory of buffers of [`KEPT_BYTES`] that were dropped.
static FREE: Mutex<Vec<Free>> = Mutex::new(Vec::new());

struct Free(NonNull<u8>);

// SAFETY: it owns its allocation, which no reference leads to.
unsafe impl Send for Free {}

/// Memory for a buffer, with whatever bytes; `None` where none is kept, or another thread is at the list.
fn reuse(len: usize) -> Option<NonNull<u8>> {
    if len != KEPT_BYTES {
        return None;
    }
    FREE.try_lock()?.pop().map(|free| free.0)
}

/// Owned, zero-initialised memory, aligned for O_DIRECT.
pub struct Buf {
    ptr: NonNull<u8>,
    len: usize,
}

// SAFETY: `Buf` owns its allocation exclusively, as `Box<[u8]>` does.
unsafe impl Send for Buf {}
// SAFETY: shared access to a `Buf` only reads.
unsafe impl Sync for Buf {}

impl Buf {
    /// `len` zero bytes. Aborts when memory is exhausted, as `Vec` does.
    pub fn zeroed(len: usize) -> Self {
        if len == 0 {
            return Self { ptr: NonNull::dangling(), len: 0 };
        }
        if let Some(ptr) = reuse(len) {
            // SAFETY: the memory was a buffer of this length, and nothing else refers to it.
            unsafe { ptr.as_ptr().write_bytes(0, len) };
            return Self { ptr, len };
        }
        let layout = Self::layout(len);
        // SAFETY: the layout has a non-zero size.
        let raw = unsafe { alloc_zeroed(layout) };
        let Some(ptr) = NonNull::new(raw) else { handle_alloc_error(layout) };
        Self { ptr, len }
    }

    /// A copy of `bytes`.
    pub fn from_slice(bytes: &[u8]) -> Self {
        let len = bytes.len();
        if len == 0 {
            return Self::zeroed(0);
        }
        let ptr = reuse(len).unwrap_or_else(|| {
            let layout = Self::layout(len);
            // SAFETY: the layout has a non-zero size.
            let raw = unsafe { alloc(layout) };
            NonNull::new(raw).unwrap_or_else(|| handle_alloc_error(layout))
        });
        // SAFETY: both are `len` bytes long; no other reference leads to the new memory, all of which is initialised here.
        unsafe { ptr.as_ptr().copy_from_nonoverlapping(bytes.as_ptr(), len) };
        Self { ptr, len }
    }

    pub(crate) fn as_ptr(&self) -> *mut u8 {
        self.ptr.as_ptr()
    }

    fn layout(len: usize) -> Layout {
        Layout::from_size_align(len, BUF_ALIGN).expect("a buffer is smaller than isize::MAX")
    }
}

impl Drop for Buf {
    fn drop(&mut self) {
        if self.len == KEPT_BYTES
            && let Some(mut free) = FREE.try_lock()
            && free.len() < KEPT
        {
            free.push(Free(self.ptr));
            return;
        }
        if self.len > 0 {
            // SAFETY: allocated in `zeroed` with this very layout, and dropped once.
            unsafe { dealloc(self.ptr.as_ptr(), Self::layout(self.len)) }
        }
    }
}

impl Deref for Buf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: `ptr` is valid for `len` initialised bytes (or dangling and `len` 0) and `self` is borrowed.
        unsafe { std::slice::from_raw_parts(self.ptr.as_ptr(), self.len) }
    }
}

impl DerefMut for Buf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and the borrow is exclusive.
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
        for len in [1024, KEPT_BYTES, 8192] {
            drop((0..8).map(|_| Buf::from_slice(&vec![7; len])).collect::<Vec<_>>());
            let (zeroes, copy) = (Buf::zeroed(len), Buf::from_slice(&vec![9; len]));
            assert!(zeroes.iter().all(|&byte| byte == 0) && copy.iter().all(|&byte| byte == 9));
            assert_eq!((zeroes.as_ptr().addr() % BUF_ALIGN, copy.as_ptr().addr() % BUF_ALIGN), (0, 0));
        }
    }
}
