//! Blocks: loads bitmaps, allocates in memory, logs, frees. Requests and promises count clusters.

use super::block_selection::{Groups, Request, Step};
use super::space::Reservation;
use super::{Allocator, Bitmap, GROUPS_KEPT, RUNS_KEPT, Shared};
use crate::journal::Handle;
use crate::meta::{MetaBlock, MetaKind, PhysicalRun};
use crate::{Error, Result};
use extant_cache::accounts::Shrink;
use extant_format::{
    Corrupt, Group, GroupFlags, InodeNumber, Place, UintExt, VolumeBlock, clear_bits, set_bits,
};
use futures_util::future::{join, join_all};
use std::sync::Arc;

/// Adjacent blocks allocated in memory: whole clusters within one group. Dropping it without
/// [`Allocator::log`] frees them again.
#[derive(Debug)]
pub(crate) struct Allocated {
    shared: Arc<Shared>,
    run: PhysicalRun,
    /// Already logged or taken back.
    settled: bool,
}

impl Allocated {
    pub(crate) const fn run(&self) -> PhysicalRun {
        self.run
    }

    fn clusters(&self) -> u64 {
        self.run.blocks >> self.shared.sb().cluster_size().log2()
    }

    /// The first block of each cluster, since each metadata block gets a cluster of its own.
    pub(crate) fn firsts(&self) -> impl Iterator<Item = VolumeBlock> + use<> {
        let blocks = self.shared.sb().cluster_size().blocks();
        (self.run.start.0..self.run.end().0).step_by(blocks.to_usize()).map(VolumeBlock)
    }

    /// Splits off the first `blocks`, fewer than all, as a separate allocation. For volumes without
    /// `bigalloc`.
    pub(crate) fn split_front(&mut self, blocks: u64) -> Self {
        debug_assert!(0 < blocks && blocks < self.run.blocks);
        let front = PhysicalRun::new(self.run.start, blocks);
        self.run = PhysicalRun::new(front.end(), self.run.blocks - blocks);
        let mut groups = self.shared.groups.lock();
        // Each allocation keeps its group loaded.
        let (group, _) = groups.split(front).next().expect("a run lies in a group");
        groups.pin(group);
        drop(groups);
        Self { shared: self.shared.clone(), run: front, settled: false }
    }

    /// Credits that [`Allocator::log`] needs: the bitmap and the descriptor.
    pub(crate) const CREDITS: u32 = 2;
}

impl Drop for Allocated {
    fn drop(&mut self) {
        if !self.settled {
            // Return the blocks to their group before they can be promised again.
            let lost = self.shared.give(self.run);
            self.shared.space.abandoned(self.clusters() - lost);
        }
    }
}

/// Maximum number of bitmaps read ahead while one group is loaded: a gibibyte with blocks of 4 KiB.
const GROUPS_AHEAD: u32 = 7;

/// Keeps bitmaps loaded for blocks that are about to be freed.
#[derive(Debug)]
pub(crate) struct Pins {
    shared: Arc<Shared>,
    groups: Vec<Group>,
}

impl Pins {
    /// Credits for freeing everything pinned: a bitmap and a descriptor per group.
    pub(crate) fn credits(&self) -> u32 {
        self.groups.len().fit_u32() * Allocated::CREDITS
    }
}

impl Drop for Pins {
    fn drop(&mut self) {
        let mut groups = self.shared.groups.lock();
        self.groups.iter().for_each(|&group| groups.release(group));
    }
}

impl Allocator {
    /// Allocates up to `want` adjacent clusters in memory, near `goal`, from a reservation;
    /// possibly fewer.
    ///
    /// # Errors
    /// Why a group is unusable, if the promised blocks are in damaged groups. Other such errors go
    /// to [`Allocator::problems`].
    pub(crate) async fn blocks(
        &self,
        goal: VolumeBlock,
        want: u32,
        reservation: &mut Reservation,
    ) -> Result<Allocated> {
        self.allocate(Request { growing: None, before: 0, goal, want, loads: 0 }, reservation).await
    }

    /// Like [`Self::blocks`], but for a file that grows from block `end` on. Keeps blocks behind
    /// the allocation for the file's next one, as many as the file already has, until
    /// [`Self::close_window`] or until the volume is otherwise full.
    pub(crate) async fn growing(
        &self,
        file: InodeNumber,
        end: u64,
        goal: VolumeBlock,
        want: u32,
        reservation: &mut Reservation,
    ) -> Result<Allocated> {
        let before = u32::try_from(end >> self.shared.sb().cluster_size().log2()).unwrap_or(u32::MAX);
        self.allocate(Request { growing: Some(file), before, goal, want, loads: 0 }, reservation).await
    }

    async fn allocate(&self, mut request: Request, reservation: &mut Reservation) -> Result<Allocated> {
        request.want = request.want.min(u32::try_from(reservation.clusters()).unwrap_or(u32::MAX));
        assert!(request.want > 0, "blocks are allocated from a reservation that has some");
        loop {
            let step = self.shared.groups.lock().step(request);
            match step {
                Step::Run(run) => {
                    let allocated = self.taken(run);
                    debug_assert!(
                        (1..=u64::from(request.want)).contains(&allocated.clusters()),
                        "{} clusters for a request of {}",
                        allocated.clusters(),
                        request.want
                    );
                    debug_assert!(
                        self.check_claim(run, Place::Superblock).is_ok(),
                        "{run:?} is free, and none of the volume's own blocks"
                    );
                    self.shared.space.allocated(reservation, allocated.clusters());
                    return Ok(allocated);
                }
                Step::Load(group) => {
                    request.loads += 1;
                    // A request larger than one group continues in the following ones. Read their
                    // bitmaps too, so that the caller waits only once.
                    let behind = (request.want / self.shared.sb().blocks_per_group()).min(GROUPS_AHEAD);
                    let ahead = (1..=behind).map(|n| self.shared.look_ahead(group, n));
                    // Skip a damaged group; its problem has been recorded.
                    let _ = Box::pin(join(self.shared.load(group), join_all(ahead))).await;
                }
                Step::Full => return Err(self.shared.no_blocks()),
            }
        }
    }

    /// Reads the bitmaps of the groups into which a request for this many more clusters would grow
    /// a file, from `goal` on. A damaged bitmap is reported by the request.
    pub(crate) async fn look_ahead(&self, goal: VolumeBlock, clusters: u64) {
        let groups = self.shared.groups.lock().not_loaded(goal, clusters, 1 + GROUPS_AHEAD);
        join_all(groups.into_iter().map(|group| self.shared.look_ahead(group, 0))).await;
    }

    /// Wraps blocks that have been removed from the allocatable ones.
    pub(super) fn taken(&self, run: PhysicalRun) -> Allocated {
        Allocated { shared: self.shared.clone(), run, settled: false }
    }

    /// Takes back an allocation that has not been logged. Its blocks stay promised to the caller,
    /// except those in damaged groups.
    pub(crate) fn take_back(&self, mut allocated: Allocated) -> Reservation {
        allocated.settled = true;
        let lost = self.shared.give(allocated.run);
        self.shared.space.taken_back(allocated.clusters() - lost)
    }

    /// Makes the rest of a file's window allocatable to everyone, when the file has no writers
    /// left.
    pub(crate) fn close_window(&self, file: InodeNumber) {
        self.shared.groups.lock().close_window(file);
    }

    /// Logs an allocation's bits and counts under the handle of whatever points to it. Needs
    /// [`Allocated::CREDITS`].
    pub(crate) fn log(&self, handle: &mut Handle, mut allocated: Allocated) {
        allocated.settled = true;
        let parts: Vec<_> = self.shared.groups.lock().split(allocated.run).collect();
        for (group, span) in parts {
            let bitmap = self.shared.block_bitmap(handle, group);
            {
                let mut bytes = handle.edit(&bitmap);
                let free = count_free_within(&bytes, span.start, span.end());
                assert!(free == span.len, "an allocated block is in use: {:?}", allocated.run);
                set_bits(&mut bytes, span.start, span.end());
            }
            handle.group(group).free_blocks -= span.len;
            self.shared.groups.lock().release(group);
        }
    }

    /// Loads the bitmaps of blocks that are to be freed, and checks that a file may own them.
    /// `place` makes the claim.
    ///
    /// # Errors
    /// Blocks outside the volume or of its own metadata; a bitmap that is damaged or unreadable.
    pub(crate) async fn pin(
        &self,
        runs: impl IntoIterator<Item = PhysicalRun>,
        place: Place,
    ) -> Result<Pins> {
        let mut pins = Pins { shared: self.shared.clone(), groups: Vec::new() };
        for run in runs {
            self.check_claim(run, place)?;
            let parts: Vec<_> = self.shared.groups.lock().split(run).collect();
            for (group, _) in parts {
                if pins.groups.contains(&group) {
                    continue;
                }
                loop {
                    {
                        let mut groups = self.shared.groups.lock();
                        if groups.is_loaded(group) && !groups.is_bad(group) {
                            groups.pin(group);
                            pins.groups.push(group);
                            break;
                        }
                    }
                    Box::pin(self.shared.load(group)).await?;
                }
            }
        }
        Ok(pins)
    }

    /// Frees the clusters of blocks whose groups are pinned. They become allocatable once the
    /// handle's transaction is durable. With `metadata`, the blocks' copies in the log are revoked.
    pub(crate) fn free(&self, handle: &mut Handle, pins: &Pins, run: PhysicalRun, metadata: bool) {
        let parts: Vec<_> = self.shared.groups.lock().split(run).collect();
        for (group, span) in parts {
            assert!(pins.groups.contains(&group), "group {group} is pinned before its blocks are freed");
            let bitmap = self.shared.block_bitmap(handle, group);
            let free_before = {
                let mut bytes = handle.edit(&bitmap);
                let free = count_free_within(&bytes, span.start, span.end());
                clear_bits(&mut bytes, span.start, span.end());
                free
            };
            handle.group(group).free_blocks += span.len - free_before;
            self.shared.space.freed(span.len.into());
            self.shared.groups.lock().pin(group);
            if free_before > 0 {
                // The blocks belong to another file or to none. Leak them rather than allocate them
                // twice.
                let rule = "in use, as a file has them";
                let sb = self.shared.sb();
                let start = u64::from(span.start) << sb.cluster_size().log2();
                let start = sb.group_first_block(group).0 + start;
                let place = Place::BlockBitmap(group);
                self.shared.set_bad(group, Corrupt::field(place, "blocks from", start, rule).into());
            }
        }
        if metadata {
            handle.revoke(run);
        }
        handle.release(run.clusters(self.shared.sb().cluster_size()));
    }
}

impl Shrink for Shared {
    /// Forgets the indexes and bitmaps of unused groups.
    fn shrink(&self, bytes: u64) -> u64 {
        let mut groups = self.groups.lock();
        let mut bitmaps = self.block_bitmaps.lock();
        let before = groups.memory_bytes();
        for idle in groups.give_back(bytes) {
            bitmaps.remove(&idle.0);
        }
        self.recharge(&groups);
        before - groups.memory_bytes()
    }
}

impl Shared {
    /// Loads a group's block bitmap and index.
    ///
    /// # Errors
    /// The bitmap is unreadable or damaged. The group is then no longer used for allocation.
    pub(super) async fn load(&self, group: Group) -> Result<()> {
        let descriptor = self.descriptor(group);
        let is_unwritten = descriptor.flags.contains(GroupFlags::BLOCK_UNINIT);
        let kind = MetaKind::BlockBitmap(group);
        let bitmap = self.read_bitmap(is_unwritten, descriptor.block_bitmap, kind).await;
        let loaded = bitmap.and_then(|bitmap| Ok(self.install(group, bitmap)?));
        loaded.inspect_err(|error| self.set_bad(group, error.clone()))
    }

    /// Reads ahead the block bitmap of the group `behind` groups after this one, unless it is
    /// loaded. The later load reports an error.
    async fn look_ahead(&self, group: Group, behind: u32) {
        let group = Group(group.0.saturating_add(behind));
        if group.0 >= self.sb().group_count() || self.groups.lock().is_loaded(group) {
            return;
        }
        let descriptor = self.descriptor(group);
        let is_unwritten = descriptor.flags.contains(GroupFlags::BLOCK_UNINIT);
        let _ = self.read_bitmap(is_unwritten, descriptor.block_bitmap, MetaKind::BlockBitmap(group)).await;
    }

    /// Builds the index of a group that has none. Checks bitmap and descriptor under the locks. No
    /// operation changes them while the group is not loaded, except that
    /// [`Self::ensure_block_bitmap`] writes a bitmap that was never written.
    fn install(&self, group: Group, bitmap: Bitmap) -> std::result::Result<(), Corrupt> {
        let place = Place::BlockBitmap(group);
        let mut groups = self.groups.lock();
        if groups.is_bad(group) {
            return Err(Corrupt::field(place, "state", 0, "undamaged"));
        }
        if groups.is_loaded(group) {
            return Ok(());
        }
        // Locked before the flag is read, because creating an inode may write the bitmap of a group
        // that is not loaded.
        let mut bitmaps = self.block_bitmaps.lock();
        let sb = self.sb();
        let clusters = sb.group_clusters(group);
        let descriptor = self.descriptor(group);
        let own = self.layout.block_bitmap(sb, group);
        let counted = groups.free(group);
        let free = match &bitmap {
            Bitmap::Logged(block) => {
                let bytes = block.bytes();
                let used = clusters.div_ceil(8).to_usize();
                let mut own = own;
                self.layout.mark_private(&mut own, sb, group);
                if own[..used].iter().zip(&*bytes).any(|(own, read)| own & !read != 0) {
                    let rule = "0: the volume's own metadata and files are in use";
                    return Err(Corrupt::field(place, "free blocks of metadata", 1, rule));
                }
                groups.load(group, &bytes, clusters);
                groups.free(group)
            }
            // Another task initialised it meanwhile.
            Bitmap::Unwritten if !descriptor.flags.contains(GroupFlags::BLOCK_UNINIT) => return Ok(()),
            Bitmap::Unwritten => {
                if self.layout.mark_private(&mut own.clone(), sb, group) {
                    let rule = "0: the volume's own files have blocks here (BLOCK_UNINIT)";
                    return Err(Corrupt::field(place, "state", 1, rule));
                }
                groups.load(group, &own, clusters);
                groups.free(group)
            }
        };
        if free != descriptor.free_blocks {
            // The total of free blocks includes the descriptor's count, which is lost with the
            // group.
            groups.reject(group, counted);
            let rule = "the descriptor's count (bg_free_blocks_count)";
            return Err(Corrupt::field(place, "free blocks", free.into(), rule));
        }
        bitmaps.insert(group.0, bitmap);
        for idle in groups.shrink(GROUPS_KEPT, RUNS_KEPT, Some(group)) {
            bitmaps.remove(&idle.0);
        }
        self.recharge(&groups);
        Ok(())
    }

    /// Charges what the indexes take now. Their size changes mostly when they are loaded or
    /// forgotten.
    fn recharge(&self, groups: &Groups) {
        let bytes = groups.memory_bytes();
        if let Some(charge) = self.indexes_charge.lock().as_mut().filter(|charge| charge.bytes() != bytes) {
            charge.resize(bytes);
        }
    }

    /// Stops allocating from a group, and records `why`.
    pub(super) fn set_bad(&self, group: Group, why: Error) {
        let lost = {
            let mut groups = self.groups.lock();
            if groups.is_bad(group) { None } else { Some(groups.set_bad(group)) }
        };
        if let Some(lost) = lost {
            self.space.lost(lost.into());
            self.unusable.lock().blocks.get_or_insert_with(|| why.clone());
            self.keep_problem(why);
        }
    }

    /// The bitmap of a loaded group, for editing. If it was never written, writes all of it first.
    pub(super) fn block_bitmap(&self, handle: &mut Handle, group: Group) -> MetaBlock {
        let mut bitmaps = self.block_bitmaps.lock();
        match bitmaps.get(&group.0) {
            Some(Bitmap::Logged(block)) => block.clone(),
            _ => {
                let block = self.write_block_bitmap(handle, group);
                bitmaps.insert(group.0, Bitmap::Logged(block.clone()));
                block
            }
        }
    }

    /// Writes the bitmap of a group that has `BLOCK_UNINIT`.
    fn write_block_bitmap(&self, handle: &mut Handle, group: Group) -> MetaBlock {
        let at = self.descriptor(group).block_bitmap;
        let block = handle.create(at, MetaKind::BlockBitmap(group));
        handle.edit(&block).copy_from_slice(&self.layout.block_bitmap(self.sb(), group));
        handle.group(group).flags.remove(GroupFlags::BLOCK_UNINIT);
        block
    }

    /// Writes a group's block bitmap if it was never written. The kernel requires it once the group
    /// has inodes in use.
    pub(super) fn ensure_block_bitmap(&self, handle: &mut Handle, group: Group) {
        let is_unwritten = || self.descriptor(group).flags.contains(GroupFlags::BLOCK_UNINIT);
        if !is_unwritten() {
            return;
        }
        let mut bitmaps = self.block_bitmaps.lock();
        // Another operation may have written it first.
        if is_unwritten() {
            let block = self.write_block_bitmap(handle, group);
            if let Some(loaded) = bitmaps.get_mut(&group.0) {
                *loaded = Bitmap::Logged(block);
            }
        }
    }

    /// Makes freed blocks allocatable.
    pub(super) fn settle(&self, run: PhysicalRun) {
        let lost = self.give(run);
        self.space.settled(run.blocks >> self.sb().cluster_size().log2(), lost);
    }

    /// Returns clusters to their groups. The result is how many of them are in damaged groups and
    /// therefore lost.
    fn give(&self, run: PhysicalRun) -> u64 {
        let mut groups = self.groups.lock();
        let parts: Vec<_> = groups.split(run).collect();
        let mut lost = 0;
        for (group, span) in parts {
            if !groups.give(group, span) {
                lost += u64::from(span.len);
            }
        }
        lost
    }
}

/// Number of clear bits in `start..end`.
fn count_free_within(bitmap: &[u8], start: u32, end: u32) -> u32 {
    let last = (end - 1) / 8;
    (start / 8..=last)
        .map(|n| {
            let mut byte = bitmap[n.to_usize()];
            if n == start / 8 {
                byte |= (1 << (start % 8)) - 1;
            }
            if n == last && !end.is_multiple_of(8) {
                byte |= 0xff << (end % 8);
            }
            byte.count_zeros()
        })
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_bits_of_a_range_are_counted_at_any_offset() {
        let bitmap = [0b0101_0110, 0, 0xff, 0b1000_0001];
        for start in 0..32 {
            for end in start + 1..=32 {
                let expected = (start..end).filter(|&n| !extant_format::bit(&bitmap, n)).count() as u32;
                assert_eq!(count_free_within(&bitmap, start, end), expected, "{start}..{end}");
            }
        }
    }
}
