//! The protocol under loom: every interleaving of two or three parties.
//!
//! `RUSTFLAGS="--cfg extant_loom" cargo test -p extant-cache --release --lib frame_word::`

use super::*;
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::AtomicU64;
use loom::thread;

impl Word for loom::sync::atomic::AtomicU32 {
    fn load(&self, order: Ordering) -> u32 {
        self.load(order)
    }
    fn store(&self, to: u32, order: Ordering) {
        self.store(to, order);
    }
    fn fence(order: Ordering) {
        loom::sync::atomic::fence(order);
    }
    fn fetch_add(&self, n: u32, order: Ordering) -> u32 {
        self.fetch_add(n, order)
    }
    fn fetch_sub(&self, n: u32, order: Ordering) -> u32 {
        self.fetch_sub(n, order)
    }
    fn fetch_or(&self, bits: u32, order: Ordering) -> u32 {
        self.fetch_or(bits, order)
    }
    fn compare_exchange(&self, from: u32, to: u32, ok: Ordering, fail: Ordering) -> Result<u32, u32> {
        self.compare_exchange(from, to, ok, fail)
    }
}

/// Runs every interleaving with at most three preemptions. That takes seconds, and finds all but
/// contrived errors (CHESS, PLDI 2007).
fn model(test: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(test);
}

/// A frame whose bytes always equal its identity, or 77 once a writer has changed them.
struct Frame {
    state: FrameWord<loom::sync::atomic::AtomicU32>,
    key: AtomicU64,
    bytes: UnsafeCell<u64>,
    freed: loom::sync::atomic::AtomicUsize,
}

impl Frame {
    /// A frame attached as page 1, up to date.
    fn attached() -> Arc<Self> {
        let frame = Self {
            state: FrameWord::new(loom::sync::atomic::AtomicU32::new(0)),
            key: AtomicU64::new(1),
            bytes: UnsafeCell::new(1),
            freed: loom::sync::atomic::AtomicUsize::new(0),
        };
        frame.state.take_free();
        frame.state.publish(0, 0);
        Arc::new(frame)
    }

    fn note(&self, after: After) {
        if after == After::Freed {
            let before = self.freed.fetch_add(1, Ordering::SeqCst);
            assert_eq!(before, 0, "freed once");
        }
    }

    /// The value a reader of page `key` sees, if any.
    fn read(&self, key: u64) -> Option<u64> {
        match self.state.pin(|| self.key.load(Ordering::Relaxed) == key) {
            Ok(seen) => {
                // SAFETY: loom checks the claim: a pin excludes every change.
                let bytes = self.bytes.with(|p| unsafe { *p });
                self.state.used(seen);
                self.note(self.state.unpin());
                Some(bytes)
            }
            Err(failure) => {
                self.note(failure.after);
                None
            }
        }
    }

    /// Evicts like the pool: claims, detaches, releases.
    fn evict(&self) -> bool {
        if self.state.claim().is_err() {
            return false;
        }
        let after = self.state.detach();
        assert_eq!(after, After::InUse);
        self.note(self.state.release());
        true
    }

    /// Takes a freed frame for page 2 and fills it.
    fn reuse(&self) {
        self.state.take_free();
        self.key.store(2, Ordering::Relaxed);
        // SAFETY: loom checks the claim: the owner of a free frame is alone.
        self.bytes.with_mut(|p| unsafe { *p = 2 });
        self.state.publish(0, 0);
    }
}

#[test]
fn a_reader_sees_the_page_it_asked_for_or_none_while_the_frame_is_recycled() {
    model(|| {
        let frame = Frame::attached();
        let reader = {
            let frame = frame.clone();
            thread::spawn(move || frame.read(1))
        };
        let evicted = frame.evict();
        if frame.freed.load(Ordering::SeqCst) == 1 && evicted {
            frame.reuse();
        }
        assert!(matches!(reader.join().unwrap(), None | Some(1)));
    });
}

#[test]
fn an_overwrite_in_place_is_seen_whole_or_not_at_all() {
    model(|| {
        let frame = Frame::attached();
        let reader = {
            let frame = frame.clone();
            thread::spawn(move || frame.read(1))
        };
        let written = frame.state.claim().is_ok();
        if written {
            // SAFETY: loom checks the claim: a claim excludes everyone else.
            frame.bytes.with_mut(|p| unsafe { *p = 77 });
            frame.state.set_dirty(0xf);
            assert_eq!(frame.state.release(), After::InUse);
        }
        assert!(matches!(reader.join().unwrap(), None | Some(1 | 77)));
        assert_eq!(frame.state.snapshot().pins(), 0);
    });
}

#[test]
fn a_detached_frame_is_freed_exactly_once_by_its_last_user() {
    model(|| {
        let frame = Frame::attached();
        let readers: Vec<_> = (0..2)
            .map(|_| {
                let frame = frame.clone();
                thread::spawn(move || frame.read(1))
            })
            .collect();
        frame.note(frame.state.detach());
        for reader in readers {
            reader.join().unwrap();
        }
        assert_eq!(frame.freed.load(Ordering::SeqCst), 1);
        assert_eq!(frame.state.snapshot(), Snapshot(0));
    });
}

#[test]
fn write_back_and_a_writer_exclude_each_other_and_lose_nothing() {
    model(|| {
        let frame = Frame::attached();
        frame.state.set_dirty(0xf);
        let flusher = {
            let frame = frame.clone();
            thread::spawn(move || {
                frame.state.start_writeback().map(|mask| {
                    // SAFETY: loom checks the claim: write-back is a pin.
                    let bytes = frame.bytes.with(|p| unsafe { *p });
                    let (after, _) = frame.state.end_writeback(0);
                    assert_eq!((mask, after), (0xf, After::InUse));
                    bytes
                })
            })
        };
        let wrote = frame.state.claim().is_ok();
        if wrote {
            // SAFETY: loom checks the claim: a claim excludes everyone else.
            frame.bytes.with_mut(|p| unsafe { *p = 77 });
            frame.state.set_dirty(0xf);
            assert_eq!(frame.state.release(), After::InUse);
        }
        let flushed = flusher.join().unwrap();
        if wrote && flushed != Some(77) {
            assert_eq!(frame.state.snapshot().dirty(), 0xf, "the part that was not flushed is still dirty");
        }
    });
}

#[test]
fn a_page_cut_off_while_it_is_loaded_is_freed_once() {
    model(|| {
        let frame = Frame::attached();
        frame.note(frame.state.detach());
        assert_eq!(frame.freed.swap(0, Ordering::SeqCst), 1);
        frame.state.take_free();
        frame.state.start_loading(false, false);
        let loader = {
            let frame = frame.clone();
            thread::spawn(move || frame.note(frame.state.loaded()))
        };
        frame.note(frame.state.detach());
        loader.join().unwrap();
        assert_eq!(frame.freed.load(Ordering::SeqCst), 1);
    });
}

/// A frame for readers without a hold. Its bytes are atomics, each of which may be old or new, as
/// in the assembly copy.
struct Open {
    state: FrameWord<loom::sync::atomic::AtomicU32>,
    version: Version<loom::sync::atomic::AtomicU32>,
    key: AtomicU64,
    bytes: [AtomicU64; 2],
}

impl Open {
    /// A frame attached as page 1, up to date.
    fn attached() -> Arc<Self> {
        let word = || loom::sync::atomic::AtomicU32::new(0);
        let open = Self {
            state: FrameWord::new(word()),
            version: Version::new(word()),
            key: AtomicU64::new(1),
            bytes: [AtomicU64::new(1), AtomicU64::new(1)],
        };
        open.state.take_free();
        open.state.publish(0, 0);
        Arc::new(open)
    }

    fn fill(&self, value: u64) {
        self.version.announce_change();
        self.bytes.iter().for_each(|byte| byte.store(value, Ordering::Relaxed));
    }

    /// The contents a reader of page `key` accepts, if any.
    fn read(&self, key: u64) -> Option<[u64; 2]> {
        let mut copied = [0; 2];
        let copy = || copied = [0, 1].map(|n: usize| self.bytes[n].load(Ordering::Relaxed));
        self.version.read(&self.state, || self.key.load(Ordering::Relaxed) == key, copy)?;
        Some(copied)
    }
}

#[test]
fn a_use_that_is_counted_late_leaves_a_freed_frame_blank() {
    model(|| {
        let frame = Open::attached();
        let reader = {
            let frame = frame.clone();
            thread::spawn(move || {
                let seen = frame.version.read(&frame.state, || true, || {});
                seen.into_iter().for_each(|seen| frame.state.used(seen));
            })
        };
        let policy = {
            let frame = frame.clone();
            thread::spawn(move || {
                let uses = frame.state.snapshot().uses();
                frame.state.lower_uses(uses.saturating_sub(1));
            })
        };
        assert_eq!(frame.state.detach(), After::Freed);
        // `take_free` asserts that the frame is blank.
        frame.state.take_free();
        frame.state.give_back();
        reader.join().unwrap();
        policy.join().unwrap();
        assert_eq!(frame.state.snapshot(), Snapshot(0));
    });
}

#[test]
fn a_reader_without_a_hold_sees_an_overwrite_whole_or_not_at_all() {
    model(|| {
        let frame = Open::attached();
        let reader = {
            let frame = frame.clone();
            thread::spawn(move || frame.read(1))
        };
        assert!(frame.state.claim().is_ok());
        frame.fill(77);
        assert_eq!(frame.state.release(), After::InUse);
        assert!(matches!(reader.join().unwrap(), None | Some([1, 1] | [77, 77])));
    });
}

#[test]
fn a_reader_without_a_hold_sees_no_other_page_while_the_frame_is_recycled() {
    for key in [1, 2] {
        model(move || {
            let frame = Open::attached();
            let reader = {
                let frame = frame.clone();
                thread::spawn(move || frame.read(key))
            };
            assert!(frame.state.claim().is_ok());
            assert_eq!((frame.state.detach(), frame.state.release()), (After::InUse, After::Freed));
            // In the order of `Frames::take_free` and `Fresh::publish`.
            frame.state.take_free();
            frame.version.announce_change();
            frame.key.store(2, Ordering::Relaxed);
            frame.bytes.iter().for_each(|byte| byte.store(2, Ordering::Relaxed));
            frame.state.publish(0, 0);
            assert!(reader.join().unwrap().is_none_or(|seen| seen == [key, key]));
        });
    }
}

#[test]
fn two_overwrites_in_a_row_are_not_taken_for_none() {
    model(|| {
        let frame = Open::attached();
        let reader = {
            let frame = frame.clone();
            thread::spawn(move || frame.read(1))
        };
        for value in [2, 3] {
            assert!(frame.state.claim().is_ok());
            frame.fill(value);
            assert_eq!(frame.state.release(), After::InUse);
        }
        assert!(matches!(reader.join().unwrap(), None | Some([1, 1] | [2, 2] | [3, 3])));
    });
}
