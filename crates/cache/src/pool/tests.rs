use super::*;
use crate::page::{FileId, PageKey};
use crate::pool::evict::S3Fifo;
use std::future::Future;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};

fn pool(frames: u32) -> Pool {
    let rt = Rt::real(extant_rt::RealConfig { seed: Some(1), ..Default::default() });
    let policy = Box::new(S3Fifo::new(frames).unwrap());
    Pool::new(&rt, frames, false, policy, Waits::new(&rt)).unwrap()
}

fn take(pool: &Pool, n: usize, purpose: Purpose) -> Vec<FrameNo> {
    let mut taken = Vec::new();
    pool.take_frames(n, purpose, &mut taken, &forget(pool));
    taken
}

/// Removes pages from their mapping, as far as the pool can tell.
fn forget(pool: &Pool) -> impl Fn(&[Claimed<'_>]) {
    |run| {
        for claimed in run {
            assert_eq!(pool.frames.state(claimed.frame).detach(), After::InUse);
        }
    }
}

/// Puts a clean page into a frame.
fn fill(pool: &Pool, frame: FrameNo) {
    pool.frames.take_free(frame, PageKey::new(FileId(1), frame.get().into())).publish(0, 0);
    pool.evictable(&[frame]);
}

fn is_woken<F: Future>(listener: Pin<&mut F>) -> bool {
    matches!(listener.poll(&mut Context::from_waker(Waker::noop())), Poll::Ready(_))
}

#[test]
fn a_caller_that_looks_while_the_candidates_are_being_examined_hears_of_those_that_stay() {
    let pool = pool(2);
    for frame in take(&pool, 2, Purpose::Demand) {
        fill(&pool, frame);
    }
    let frames: Vec<_> = pool.frames.all().take(2).collect();
    // One page is being read. The evictor holds both while the other is removed from its mapping.
    let reader = pool.frames.pin(frames[0], PageKey::new(FileId(1), 1)).unwrap();
    let mut listener = pin!(pool.waits.listen(Condition::Frames));
    let mut taken = Vec::new();
    pool.take_frames(2, Purpose::Demand, &mut taken, &|run| {
        forget(&pool)(run);
        let mut nothing = Vec::new();
        pool.take_frames(1, Purpose::Demand, &mut nothing, &forget(&pool));
        assert_eq!((nothing.len(), pool.evictable_frames()), (0, 0));
    });
    assert_eq!(taken, frames[1..]);
    assert_eq!(pool.evictable_frames(), 1);
    assert!(is_woken(listener.as_mut()), "it waits though a page can be evicted");
    assert_eq!(reader.end(), After::InUse);
}

#[test]
fn a_page_that_is_freed_while_an_evictor_passes_it_over_is_no_candidate() {
    let pool = pool(4);
    for frame in take(&pool, 4, Purpose::Demand) {
        fill(&pool, frame);
    }
    let frames: Vec<_> = pool.frames.all().take(4).collect();
    let reader = std::cell::Cell::new(pool.frames.pin(frames[0], PageKey::new(FileId(1), 1)).ok());
    let mut taken = Vec::new();
    pool.take_frames(2, Purpose::Demand, &mut taken, &|run| {
        forget(&pool)(run);
        // In the first of two rounds: a truncation, and then the end of the reader.
        if let Some(reader) = reader.take() {
            assert_eq!(pool.frames.state(frames[0]).detach(), After::InUse);
            assert_eq!(reader.end(), After::Freed);
            pool.free(frames[0]);
        }
    });
    assert_eq!(taken, frames[1..3]);
    assert_eq!((pool.frame_counts().free, pool.evictable_frames()), (1, 1));
}

#[test]
fn a_page_that_is_under_write_back_when_an_evictor_has_passed_it_over_is_no_candidate() {
    let pool = pool(4);
    for frame in take(&pool, 4, Purpose::Demand) {
        fill(&pool, frame);
    }
    let frames: Vec<_> = pool.frames.all().take(4).collect();
    let reader = std::cell::Cell::new(pool.frames.pin(frames[0], PageKey::new(FileId(1), 1)).ok());
    let mut taken = Vec::new();
    pool.take_frames(2, Purpose::Demand, &mut taken, &|run| {
        forget(&pool)(run);
        // In the first of two rounds: a writer, and then the flusher.
        if let Some(reader) = reader.take() {
            assert_eq!(reader.end(), After::InUse);
            pool.frames.state(frames[0]).set_dirty(0xf);
            pool.not_evictable([frames[0]]);
            assert_eq!(pool.frames.state(frames[0]).start_writeback(), Some(0xf));
        }
    });
    assert_eq!(taken, frames[1..3]);
    assert_eq!(pool.evictable_frames(), 1, "the device reads the other one");
    assert_eq!(pool.frames.state(frames[0]).end_writeback(0).0, After::InUse);
    pool.evictable(&frames[..1]);
    assert_eq!(pool.evictable_frames(), 2);
}

#[test]
fn frames_in_magazines_are_taken_back_when_nothing_else_is_left() {
    let pool = pool(2048);
    let mut taken = Vec::new();
    while let [frame] = take(&pool, 1, Purpose::Demand)[..] {
        taken.push(frame);
    }
    assert_eq!(taken.len(), 2048);
    assert_eq!(pool.frame_counts().free, 0);
    // Puts it in another processor's magazine.
    let returned = taken.pop().unwrap();
    pool.magazines.lock(pool.rt.lane() + 1).push_back(returned);
    assert_eq!(pool.frame_counts().free, 1);
    assert_eq!(take(&pool, 1, Purpose::Ahead), []);
    assert_eq!(take(&pool, 1, Purpose::Demand), [returned]);
}

#[test]
fn a_frame_is_evicted_for_a_magazine_only_where_there_are_many() {
    let pool = pool(1024);
    for frame in take(&pool, 1024, Purpose::Demand) {
        fill(&pool, frame);
    }
    let first = take(&pool, 1, Purpose::Demand);
    let size = pool.magazines.size() as u32;
    assert_eq!((pool.frame_counts().free, pool.frame_counts().evictable), (size, 1023 - size));
    pool.return_frames(first);
    let mut left = 1024;
    while take(&pool, 1, Purpose::Demand).len() == 1 {
        left -= 1;
        let counts = pool.frame_counts();
        assert_eq!(counts.free + counts.evictable, left);
    }
    assert_eq!(left, 0, "every frame was to be had");
}

#[test]
fn completions_have_frames_when_all_are_in_use_and_the_reserve_comes_back_first() {
    let pool = pool(256);
    let taken = take(&pool, 256, Purpose::Demand);
    assert_eq!((taken.len(), take(&pool, 1, Purpose::Demand).len()), (256, 0));
    let spare = take(&pool, 8, Purpose::Completion);
    assert_eq!((spare.len(), pool.frame_counts().overdrawn), (2, 2));
    pool.return_frames(taken[..2].iter().copied());
    assert_eq!((take(&pool, 1, Purpose::Demand), pool.frame_counts().overdrawn), (vec![], 0));
    pool.return_frames(spare);
    assert_eq!(take(&pool, 3, Purpose::Demand).len(), 2);
}

#[test]
fn an_evicted_page_makes_the_reserve_whole_before_others_have_its_frame() {
    let pool = pool(256);
    for frame in take(&pool, 256, Purpose::Demand) {
        fill(&pool, frame);
    }
    // All pages can be evicted, so the reserve stays.
    let first = take(&pool, 4, Purpose::Completion);
    assert_eq!((first.len(), pool.frame_counts().overdrawn), (4, 0));
    let rest = take(&pool, 252, Purpose::Demand);
    let spare = take(&pool, 1, Purpose::Completion);
    assert_eq!((rest.len(), spare.len(), pool.frame_counts().overdrawn), (252, 1, 1));
    fill(&pool, first[0]);
    fill(&pool, first[1]);
    assert_eq!(take(&pool, 2, Purpose::Demand).len(), 1);
    assert_eq!(pool.frame_counts().overdrawn, 0);
}

#[test]
fn threads_that_take_and_return_frames_lose_none_and_share_none() {
    let pool = pool(2048);
    let owners: Vec<std::sync::atomic::AtomicBool> = (0..=2048 + 64).map(|_| Default::default()).collect();
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let (pool, owners) = (&pool, &owners);
            scope.spawn(move || {
                let give_back = |frames: Vec<FrameNo>| {
                    for frame in &frames {
                        owners[frame.get() as usize].store(false, Ordering::Relaxed);
                    }
                    pool.return_frames(frames);
                };
                let mut rng = extant_rt::Rng::new(thread);
                let mut held: Vec<FrameNo> = Vec::new();
                for _ in 0..2_000 {
                    let most = if rng.below(8) == 0 { 64 } else { 3 };
                    let n = 1 + rng.below(most) as usize;
                    if rng.below(2) == 0 {
                        let taken = take(pool, n, Purpose::Demand);
                        for frame in &taken {
                            let was_taken = owners[frame.get() as usize].swap(true, Ordering::Relaxed);
                            assert!(!was_taken, "thread {thread}: frame {} has two owners", frame.get());
                        }
                        held.extend(taken);
                    } else {
                        give_back(held.split_off(held.len().saturating_sub(n)));
                    }
                }
                give_back(held);
            });
        }
    });
    assert_eq!(take(&pool, 4096, Purpose::Demand).len(), 2048);
}
