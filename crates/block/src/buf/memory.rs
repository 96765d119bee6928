//! Memory for buffers.
//!
//! Blocks come from slabs. Longer buffers come from huge pages; those of up to [`HUGE_BYTES`] are
//! pooled. For direct I/O the kernel pins memory page by page, and gives a disk one segment for
//! adjacent memory. So a buffer of 1 MiB in pages of 4 KiB costs 256 pins, and has more segments
//! than some disks accept at once.

mod slabs;

use parking_lot::Mutex;
#[cfg(miri)]
use std::alloc::alloc_zeroed;
use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::ptr::NonNull;

use super::BUF_ALIGN;
use slabs::{PIECE_BYTES, Slabs};

/// Size of a huge page on x86-64 and most other architectures (Linux,
/// Documentation/admin-guide/mm/transhuge.rst).
const HUGE_BYTES: usize = 2 << 20;
/// The shortest buffers taken from huge pages.
const SHORTEST: usize = 64 << 10;
/// Huge pages kept in the pool, 64 MiB. Further pieces come from the allocator.
const HUGE_PAGES: usize = 32;

static SLABS: Mutex<Slabs> = Mutex::new(Slabs::new());
static HUGE: Mutex<Vec<Huge>> = Mutex::new(Vec::new());

/// A huge page, divided into pieces of one size until all of them are free again.
struct Huge {
    start: NonNull<u8>,
    piece_bytes: usize,
    /// One bit per free piece.
    free: u32,
}

// SAFETY: it owns its mapping, and each piece in use belongs to one buffer.
unsafe impl Send for Huge {}

/// Where a buffer's memory came from, and where it returns to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    Allocator,
    /// The slab with this number.
    Slab(u32),
    /// The huge page with this number.
    Huge(u8),
    /// Huge pages mapped for this buffer alone.
    Mapped,
    /// A caller, who gets the memory back when the buffer is dropped.
    Lent,
}

/// Memory of `len` bytes (`len > 0`), aligned to [`BUF_ALIGN`]. Contents are unspecified: leftovers
/// of the last user, zeros, or, if it comes from the allocator, uninitialised. Aborts if memory is
/// exhausted, like `Vec`.
pub(super) fn take(len: usize) -> (NonNull<u8>, Origin) {
    if len <= PIECE_BYTES {
        let (piece, slab) = SLABS.lock().take();
        return (piece, Origin::Slab(slab));
    }
    if (SHORTEST..=HUGE_BYTES).contains(&len)
        && let Some(piece) = cut(len.next_power_of_two())
    {
        return piece;
    }
    if len >= HUGE_BYTES
        && let Some(start) = map(len)
    {
        return (start, Origin::Mapped);
    }
    let layout = layout(len);
    // SAFETY: the layout has a non-zero size.
    let raw = unsafe { alloc(layout) };
    (NonNull::new(raw).unwrap_or_else(|| handle_alloc_error(layout)), Origin::Allocator)
}

/// Returns memory.
///
/// # Safety
/// [`take`] returned it for this length, and nothing refers to it.
pub(super) unsafe fn give(start: NonNull<u8>, len: usize, origin: Origin) {
    match origin {
        Origin::Huge(number) => {
            let mut pages = HUGE.lock();
            let page = &mut pages[usize::from(number)];
            page.free |= 1 << ((start.addr().get() - page.start.addr().get()) / page.piece_bytes);
        }
        // SAFETY: mapped for this length in `take`, as the caller promises.
        Origin::Mapped => unsafe { unmap(start, len) },
        // SAFETY: a piece of this slab, as the caller promises.
        Origin::Slab(slab) => unsafe { SLABS.lock().give(slab, start) },
        Origin::Lent => unreachable!("no memory of `take`"),
        // SAFETY: allocated in `take` with this same layout, as the caller promises.
        Origin::Allocator => unsafe { dealloc(start.as_ptr(), layout(len)) },
    }
}

fn layout(len: usize) -> Layout {
    Layout::from_size_align(len, BUF_ALIGN).expect("a buffer is smaller than isize::MAX")
}

/// A piece of a huge page; `None` if all are in use.
fn cut(piece_bytes: usize) -> Option<(NonNull<u8>, Origin)> {
    let all = all_free(piece_bytes);
    let mut pages = HUGE.lock();
    let fitting = pages.iter().position(|page| page.piece_bytes == piece_bytes && page.free != 0);
    let number =
        match fitting.or_else(|| pages.iter().position(|page| page.free == all_free(page.piece_bytes))) {
            Some(number) => number,
            None if pages.len() < HUGE_PAGES => {
                pages.push(Huge { start: map(HUGE_BYTES)?, piece_bytes, free: all });
                pages.len() - 1
            }
            None => return None,
        };
    let page = &mut pages[number];
    if page.piece_bytes != piece_bytes {
        (page.piece_bytes, page.free) = (piece_bytes, all);
    }
    let at = page.free.trailing_zeros();
    page.free &= !(1 << at);
    // SAFETY: the page is divided into whole pieces, and piece `at` lies inside it.
    let start = unsafe { page.start.add(at as usize * piece_bytes) };
    Some((start, Origin::Huge(number as u8)))
}

/// The bits of all pieces of this size.
fn all_free(piece_bytes: usize) -> u32 {
    u32::MAX >> (u32::BITS as usize - HUGE_BYTES / piece_bytes)
}

/// `len` bytes aligned to a huge page, which the kernel backs with huge pages if allowed; `None` if
/// there is no memory.
#[cfg(not(miri))]
fn map(len: usize) -> Option<NonNull<u8>> {
    use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
    let (len, access) = (len.checked_next_multiple_of(HUGE_BYTES)?, ProtFlags::READ | ProtFlags::WRITE);
    let whole = len.checked_add(HUGE_BYTES)?;
    // SAFETY: a fresh anonymous mapping at an address chosen by the kernel touches no other memory.
    let base = unsafe { mmap_anonymous(std::ptr::null_mut(), whole, access, MapFlags::PRIVATE) }.ok()?;
    let before = base.addr().next_multiple_of(HUGE_BYTES) - base.addr();
    // SAFETY: `before` is less than HUGE_BYTES, so start..start + len lies inside the mapping. The
    // memory before and after it is unmapped, and no reference leads there. The advice changes no
    // contents.
    unsafe {
        let start = base.byte_add(before);
        if before > 0 {
            let _ = munmap(base, before);
        }
        let _ = munmap(start.byte_add(len), HUGE_BYTES - before);
        // Where huge pages are forbidden, the memory still works.
        let _ = madvise(start, len, Advice::LinuxHugepage);
        NonNull::new(start.cast())
    }
}

/// Returns memory to the kernel.
///
/// # Safety
/// [`map`] returned it for this length, and nothing refers to it.
#[cfg(not(miri))]
unsafe fn unmap(start: NonNull<u8>, len: usize) {
    // SAFETY: this same mapping, as the caller promises.
    let _ = unsafe { rustix::mm::munmap(start.as_ptr().cast(), len.next_multiple_of(HUGE_BYTES)) };
}

/// Takes the memory from the allocator, because Miri does not know `madvise`.
#[cfg(miri)]
fn map(len: usize) -> Option<NonNull<u8>> {
    // SAFETY: the layout has a non-zero size.
    NonNull::new(unsafe { alloc_zeroed(layout(len)) })
}

/// The counterpart of `map` under Miri.
///
/// # Safety
/// As above.
#[cfg(miri)]
unsafe fn unmap(start: NonNull<u8>, len: usize) {
    // SAFETY: allocated in `map` with this same layout, as the caller promises.
    unsafe { dealloc(start.as_ptr(), layout(len)) }
}
