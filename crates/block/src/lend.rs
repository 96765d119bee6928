//! Lends a caller's memory to a buffer for the duration of a call.

use crate::buf::{BUF_ALIGN, Buf, Loan};
use std::ptr::NonNull;
use std::sync::Arc;

/// Waits until the buffer is dropped, however the lender exits.
struct Lender(Arc<Loan>);

impl Drop for Lender {
    fn drop(&mut self) {
        self.0.wait();
    }
}

/// Whether memory can be lent without a copy: it is not empty, and begins at a multiple of
/// [`BUF_ALIGN`], like every buffer's memory.
pub fn is_lendable(bytes: &[u8]) -> bool {
    !bytes.is_empty() && bytes.as_ptr().addr().is_multiple_of(BUF_ALIGN)
}

/// Runs `work` with a buffer over `bytes` itself, and returns once that buffer is dropped.
///
/// If a bio still has the buffer when `work` returns or panics, this waits until the bio has ended
/// and was dropped. `work` returns the lent buffer, or another one, whose contents are then copied
/// to `bytes`.
///
/// If the buffer is never dropped, the caller waits forever. So do not leak it, and do not let its
/// bio depend on the caller's thread for completion.
///
/// # Panics
/// `bytes` is not [lendable](is_lendable).
pub fn lend<R>(bytes: &mut [u8], work: impl FnOnce(Buf) -> (Buf, R)) -> R {
    assert!(is_lendable(bytes), "{} bytes at {:p} cannot be lent", bytes.len(), bytes.as_ptr());
    let start = NonNull::from(&mut *bytes).cast();
    // SAFETY: `bytes` is borrowed exclusively until `lent` returns, and not touched here before.
    let (other, result) = unsafe { lent(start, bytes.len(), true, work) };
    if let Some(other) = other {
        let n = bytes.len().min(other.len());
        bytes[..n].copy_from_slice(&other[..n]);
    }
    result
}

/// Like [`lend`], for bytes that are only read: the buffer is for writes to a device. The bytes may
/// begin anywhere; a device that needs them [aligned](is_lendable) copies them.
///
/// # Panics
/// `bytes` is empty, or `work` tries to change the buffer.
pub fn lend_to_read<R>(bytes: &[u8], work: impl FnOnce(Buf) -> (Buf, R)) -> R {
    assert!(!bytes.is_empty(), "no bytes cannot be lent");
    // SAFETY: `bytes` is borrowed until `lent` returns, and a buffer that is not writable only
    // gives out shared references.
    unsafe { lent(NonNull::from(bytes).cast(), bytes.len(), false, work).1 }
}

/// Returns the buffer that `work` returned if it is not the lent one.
///
/// The memory cannot be used after the borrow ends. A buffer owns its part of the loan, which only
/// its drop gives back. The [`Lender`] waits for that before this function exits, by return or by
/// unwinding. The lender is in this stack frame, out of the closure's reach, so it is always
/// dropped. A bio owns its buffers until the device has ended it, so no device and no kernel ring
/// writes to memory whose buffer is gone. If a buffer is leaked, it is never given back, and this
/// function never exits. Scoped threads work the same way (`std::thread::scope`).
///
/// # Safety
/// Until this function exits, the memory is valid for reads and, if `is_writable`, for writes, and
/// nothing else refers to it (if not `is_writable`: nothing else writes to it).
unsafe fn lent<R>(
    ptr: NonNull<u8>,
    len: usize,
    is_writable: bool,
    work: impl FnOnce(Buf) -> (Buf, R),
) -> (Option<Buf>, R) {
    let lender = Lender(Arc::new(Loan::new(is_writable)));
    // SAFETY: as the caller promises; and this function exits only after the buffer is gone.
    let (buf, result) = work(unsafe { Buf::lent(ptr, len, lender.0.clone()) });
    let other = match buf.is_of(&lender.0) {
        true => {
            drop(buf);
            None
        }
        false => Some(buf),
    };
    drop(lender);
    (other, result)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Bio, MemDevice, Op, Sector, Segment, execute};
    use extant_rt::Rt;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    /// A page of memory that does not belong to a buffer.
    #[repr(align(4096))]
    struct Page([u8; 4096]);

    #[test]
    fn lent_memory_is_filled_and_read_in_place() {
        let mut page = Page([1; 4096]);
        let start = page.0.as_ptr();
        let told = lend(&mut page.0, |mut buf| {
            assert_eq!((Buf::as_ptr(&buf).cast_const(), buf[4095]), (start, 1));
            buf[7] = 9;
            (buf, "told")
        });
        assert_eq!((told, page.0[7], page.0[8]), ("told", 9, 1));
        let seen = lend_to_read(&page.0, |buf| {
            let copy = buf.duplicate();
            (buf, copy[7])
        });
        assert_eq!(seen, 9);
        // Return a buffer other than the lent one.
        lend(&mut page.0, |_| (Buf::from_slice(&[5; 100]), ()));
        assert_eq!((page.0[99], page.0[100]), (5, 1));
    }

    #[test]
    fn memory_that_another_thread_has_still_is_waited_for() {
        for panics in [false, true] {
            let mut page = Page([0; 4096]);
            std::thread::scope(|scope| {
                let (sender, receiver) = std::sync::mpsc::channel::<Buf>();
                scope.spawn(move || {
                    let mut buf = receiver.recv().unwrap();
                    std::thread::yield_now();
                    buf.fill(3);
                });
                let called = catch_unwind(AssertUnwindSafe(|| {
                    lend(&mut page.0, |buf| {
                        sender.send(buf).unwrap();
                        assert!(!panics);
                        (Buf::zeroed(0), ())
                    });
                }));
                assert_eq!(called.is_err(), panics);
                assert_eq!(page.0, [3; 4096], "the thread was waited for");
            });
        }
    }

    #[test]
    fn memory_that_is_only_read_is_not_for_changes() {
        let page = Page([1; 4096]);
        let changed = catch_unwind(|| {
            lend_to_read(&page.0, |mut buf| {
                buf[0] = 2;
                (buf, ())
            })
        });
        assert!(changed.is_err());
        let rt = Rt::real(Default::default());
        let device = MemDevice::new(4096);
        let run = |op, buf| {
            let (mut bio, result) =
                rt.block_on(execute(&device, Bio::new(op, Sector(0), vec![Segment::from(buf)]))).unwrap();
            (bio.segments.pop().and_then(Segment::into_buf).unwrap_or_else(|| Buf::zeroed(0)), result)
        };
        lend_to_read(&page.0, |buf| run(Op::Write, buf)).unwrap();
        let read = catch_unwind(AssertUnwindSafe(|| lend_to_read(&page.0, |buf| run(Op::Read, buf))));
        assert!(read.is_err(), "a read would change it");
        let mut back = Page([0; 4096]);
        lend(&mut back.0, |buf| run(Op::Read, buf)).unwrap();
        assert_eq!((back.0, page.0), ([1; 4096], [1; 4096]));
    }

    #[test]
    fn memory_that_is_not_aligned_is_refused() {
        let mut page = Page([0; 4096]);
        assert!(is_lendable(&page.0) && !is_lendable(&page.0[1..]) && !is_lendable(&page.0[..0]));
        assert!(catch_unwind(AssertUnwindSafe(|| lend(&mut page.0[512..], |buf| (buf, ())))).is_err());
        // Bytes that are only read may begin anywhere.
        page.0[1] = 4;
        assert_eq!(lend_to_read(&page.0[1..], |buf| (buf.duplicate(), buf[0])), 4);
    }
}
