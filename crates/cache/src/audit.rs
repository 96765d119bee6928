//! Everything against everything, at rest.

use crate::dirty::control::Amounts;
use crate::state::Shared;

/// See [`crate::PageCache::audit`].
pub(crate) fn check(shared: &Shared) {
    let files = shared.all_files();
    let (mut attached, mut clean, mut dirty, mut stuck) = (0_u64, 0_u64, 0_u64, 0_u64);
    let disks = shared.disks.read();
    let mut dirty_on = vec![0_u64; disks.len()];
    for file in &files {
        let pages = file.pages.lock();
        assert!(pages.writeback.is_empty(), "pages of file {} are under write-back", file.inode);
        let frames = file.frames(&pages);
        assert_eq!(frames.len() as u64, pages.cached, "the list of file {} is whole", file.inode);
        for frame in frames {
            let key = shared.pool.frames.key(frame);
            let state = shared.pool.frames.state(frame).snapshot();
            assert_eq!(key.file(), file.file, "frame {} is in its own file's list", frame.get());
            assert_eq!(
                shared.pool.index.find(&shared.pool.frames, key),
                Some(frame),
                "the index knows {key:?}"
            );
            assert_eq!(state.pins(), 0, "nobody holds {key:?}: {state:?}");
            assert!(
                state.is_uptodate()
                    && !state.is_exclusive()
                    && !state.is_loading()
                    && !state.is_writeback()
                    && !state.is_detached(),
                "{key:?} is at rest: {state:?}"
            );
            let tagged = pages.dirty.contains(key.index());
            assert_eq!(tagged, state.dirty() != 0, "tag and state of {key:?} agree: {state:?}");
            attached += 1;
            match (tagged, pages.dirty.is_stuck()) {
                (false, _) => clean += 1,
                (true, true) => stuck += 1,
                (true, false) => {
                    dirty += 1;
                    dirty_on[file.disk.index.0 as usize] += 1;
                }
            }
        }
        assert_eq!(pages.listed.is_some(), !pages.dirty.is_empty(), "file {} is listed if dirty", file.inode);
    }
    let counts = shared.pool.frame_counts();
    let rests = |dirty_pages| Amounts { dirty_pages, writeback_pages: 0 };
    let ledger = &shared.ledger;
    assert_eq!(rests(dirty), ledger.amounts(), "dirty pages are counted, and nothing is under write-back");
    assert_eq!((dirty, stuck), (ledger.charged(), ledger.stuck()), "charged pages are dirty");
    for (disk, dirty) in disks.iter().zip(dirty_on) {
        let ledger = &disk.ledger;
        let counted = (ledger.amounts(), ledger.charged(), ledger.in_flight());
        assert_eq!((rests(dirty), dirty, 0), counted, "dirty pages of device {} are counted", disk.index.0);
    }
    assert_eq!(clean, u64::from(counts.evictable), "every clean page can be evicted");
    assert_eq!(
        attached + u64::from(counts.free) + u64::from(counts.parked),
        u64::from(counts.total + counts.overdrawn),
        "every frame is in a file, free or parked: {counts:?}"
    );
    let used = shared
        .pool
        .frames
        .all()
        .filter(|&f| shared.pool.frames.state(f).snapshot() != Default::default())
        .count();
    assert_eq!(used as u64, attached, "free frames are blank");
    let flushers = disks.len();
    assert!(shared.waits.len() <= flushers, "nobody but flushers waits: {}", shared.waits.len());
}
