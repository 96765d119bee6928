//! Memory for frames and tables: zeroed, committed lazily, in huge pages where the system allows.
//!
//! In this module `unsafe` is confined to this file, which owns address ranges, and `frames.rs`,
//! which controls who may touch them.

use std::ops::Deref;
use std::ptr::NonNull;

/// Alignment of a [`Region`], chosen to fit huge pages.
#[cfg(not(miri))]
const HUGE_BYTES: usize = 2 << 20;

/// Zeroed memory, private to this process.
#[derive(Debug)]
pub(crate) struct Region {
    base: NonNull<u8>,
    bytes: usize,
    #[cfg(not(miri))]
    mapping: (NonNull<u8>, usize),
}

// SAFETY: a region is plain memory that it alone owns; its users control who may touch which part.
unsafe impl Send for Region {}
// SAFETY: as above: `&Region` only gives out a raw pointer.
unsafe impl Sync for Region {}

impl Region {
    /// `bytes` zero bytes. The system commits memory as it is touched.
    #[cfg(not(miri))]
    pub(crate) fn zeroed(bytes: usize) -> std::io::Result<Self> {
        use rustix::mm::{Advice, MapFlags, ProtFlags};
        let whole = bytes.checked_add(HUGE_BYTES).ok_or(rustix::io::Errno::NOMEM)?;
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE);
        // SAFETY: a fresh anonymous mapping at an address chosen by the kernel touches no other
        // memory.
        let start = unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), whole, access, flags) }?;
        let skip = start.addr().next_multiple_of(HUGE_BYTES) - start.addr();
        // SAFETY: `skip` is less than what was added to `bytes`, so base..base + bytes lies inside
        // the mapping.
        let base = unsafe { start.byte_add(skip) };
        if bytes >= HUGE_BYTES {
            // Where huge pages are forbidden, the region still works.
            // SAFETY: the range lies inside the mapping, and the advice changes no contents.
            let _ = unsafe { rustix::mm::madvise(base, bytes, Advice::LinuxHugepage) };
        }
        let non_null = |p: *mut std::ffi::c_void| NonNull::new(p.cast()).expect("a mapping is not at 0");
        Ok(Self { base: non_null(base), bytes, mapping: (non_null(start), whole) })
    }

    /// The same, from the allocator: Miri has no such anonymous mappings.
    #[cfg(miri)]
    pub(crate) fn zeroed(bytes: usize) -> std::io::Result<Self> {
        // SAFETY: the layout has a non-zero size.
        let base = unsafe { std::alloc::alloc_zeroed(Self::layout(bytes)) };
        Ok(Self { base: NonNull::new(base).expect("memory"), bytes })
    }

    #[cfg(miri)]
    fn layout(bytes: usize) -> std::alloc::Layout {
        std::alloc::Layout::from_size_align(bytes.max(1), 4096).expect("a region is smaller than isize::MAX")
    }

    /// The address of byte `offset`, valid for `len` bytes while the region lives.
    pub(crate) fn at(&self, offset: usize, len: usize) -> NonNull<u8> {
        assert!(offset.checked_add(len).is_some_and(|end| end <= self.bytes), "within the region");
        // SAFETY: in bounds by the assertion.
        unsafe { self.base.add(offset) }
    }

    /// Returns the memory of a range of whole pages to the system. From then on the range reads as
    /// zeros or, if the system fails to take it, unchanged.
    ///
    /// # Safety
    /// During the call no other thread touches the range, except readers that copy without a hold
    /// and check afterwards (`racy.rs`): to them it is memory that changes.
    pub(crate) unsafe fn forget(&self, offset: usize, len: usize) {
        let start = self.at(offset, len);
        #[cfg(not(miri))]
        // SAFETY: the range lies inside the mapping and, as the caller promises, no one uses it
        // now; the kernel replaces its pages with zeros. A failure leaves the memory unchanged.
        let _ = unsafe { rustix::mm::madvise(start.as_ptr().cast(), len, rustix::mm::Advice::LinuxDontNeed) };
        #[cfg(miri)]
        let _ = start;
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        #[cfg(not(miri))]
        // SAFETY: mapped in `zeroed` with this address and length, and unmapped once.
        let _ = unsafe { rustix::mm::munmap(self.mapping.0.as_ptr().cast(), self.mapping.1) };
        #[cfg(miri)]
        // SAFETY: allocated in `zeroed` with this layout, and freed once.
        unsafe {
            std::alloc::dealloc(self.base.as_ptr(), Self::layout(self.bytes));
        }
    }
}

/// Types for which all-zero bytes are a valid value.
///
/// # Safety
/// All-zero memory is a valid value, and the type needs no drop.
pub(crate) unsafe trait Zeroable {}

/// A fixed-size array in a region, initially zero.
#[derive(Debug)]
pub(crate) struct Table<T> {
    region: Region,
    len: usize,
    _items: std::marker::PhantomData<T>,
}

impl<T: Zeroable> Table<T> {
    pub(crate) fn zeroed(len: usize) -> std::io::Result<Self> {
        let bytes = len.checked_mul(size_of::<T>()).ok_or(rustix::io::Errno::NOMEM)?;
        Ok(Self { region: Region::zeroed(bytes)?, len, _items: std::marker::PhantomData })
    }

    pub(crate) fn bytes(&self) -> usize {
        self.region.bytes
    }
}

impl<T: Zeroable> Deref for Table<T> {
    type Target = [T];
    #[inline]
    fn deref(&self) -> &[T] {
        // SAFETY: the region holds `len` values of `T`. They are valid from the start because `T`
        // is `Zeroable`, and aligned because regions are page-aligned; `&mut` access only comes
        // through `&mut self`.
        unsafe { std::slice::from_raw_parts(self.region.base.as_ptr().cast(), self.len) }
    }
}

impl<T: Zeroable> std::ops::DerefMut for Table<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as above, and the borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.region.base.as_ptr().cast(), self.len) }
    }
}

// SAFETY: integers, for which zero is a valid value.
unsafe impl Zeroable for u32 {}
// SAFETY: an atomic integer has its integer's layout.
unsafe impl Zeroable for std::sync::atomic::AtomicU32 {}
