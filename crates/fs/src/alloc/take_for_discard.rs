//! Takes free blocks away from writers while they are being discarded.

use super::blocks::Allocated;
use super::{Allocator, Privilege};
use extant_format::{Group, UintExt, VolumeBlock};

/// Maximum number of blocks taken at a time; always at least one cluster.
const PIECE_BLOCKS: u32 = 2048;

/// Free blocks that were found.
#[derive(Debug)]
pub(crate) enum Free {
    /// Reserved for this caller until dropped.
    Taken(Allocated),
    /// Promised to writers. Continue the search at this block.
    Promised(VolumeBlock),
}

impl Allocator {
    /// Takes the first free blocks at or after `from` and before `end` in a run of at least
    /// `min_blocks`, up to one piece, in whole clusters. Skips damaged groups. Returns `None` if
    /// there are no more.
    pub(crate) async fn take_free(
        &self,
        from: VolumeBlock,
        end: VolumeBlock,
        min_blocks: u32,
    ) -> Option<Free> {
        let shared = &*self.shared;
        let cluster = shared.sb().cluster_size();
        let (from, end) = (VolumeBlock(cluster.end(from.0)), VolumeBlock(cluster.start(end.0)));
        let clusters = |blocks: u32| (blocks >> cluster.log2()).max(1);
        let (min, most) = (min_blocks.div_ceil(cluster.blocks().fit_u32()), clusters(PIECE_BLOCKS));
        let (Group(first), mut at) = shared.groups.lock().locate(from);
        for group in (first..shared.store.groups().count()).map(Group) {
            if shared.sb().group_first_block(group) >= end {
                return None;
            }
            let is_loaded = shared.groups.lock().is_loaded(group);
            if is_loaded || shared.load(group).await.is_ok() {
                let mut groups = shared.groups.lock();
                let found = groups.next_free(group, at, min, most);
                if let Some(mut run) = found.filter(|run| run.start < end) {
                    run.blocks = run.blocks.min(end.0 - run.start.0);
                    let free = run.blocks >> cluster.log2();
                    let Ok(mut reservation) = self.reserve(free, 0, Privilege::Ordinary) else {
                        return Some(Free::Promised(run.end()));
                    };
                    groups.take_run(run);
                    shared.space.allocated(&mut reservation, free);
                    drop(groups);
                    return Some(Free::Taken(self.taken(run)));
                }
            }
            at = 0;
        }
        None
    }
}
