//! Logs what has landed: bitmaps, nodes, map and size in one handle.

use super::contents::{Contents, FileState};
use super::freeing::Removal;
use super::inline_contents;
use super::placement::Landed;
use crate::alloc::{Allocated, Pins, Privilege, Reservation};
use crate::inode::Orphans;
use crate::journal::{Credits, Handle};
use crate::map::block_state::WasBefore;
use crate::map::change::{Change, PinnedNodes, Planned, frees_metadata, plan, written};
use crate::map::growth::pointer_growth;
use crate::map::node_edit::RemainingRange;
use crate::meta::{MetaBlock, MetaKind};
use crate::writer::Writer;
use crate::{Error, Result};
use extant_cache::{WriteTo, WrittenRun};
use extant_format::{BlockRange, Place, UintExt, VolumeBlock};
use std::task::Waker;

/// Maximum number of runs of a file logged by one handle.
pub(super) const RUNS_PER_HANDLE: usize = 12;
/// Maximum number of pointer blocks changed by one handle that logs several runs.
pub(super) const NODES_PER_HANDLE: u64 = 32;

/// A change of a file's map, for [`Contents::change_map`].
pub(super) struct MapChange<'a> {
    pub(super) change: Change<'a>,
    /// Preferred place for new pointer blocks. Extent tree nodes go near the inodes instead, as in
    /// Linux: placed among the data they would break up contiguous runs.
    pub(super) near: VolumeBlock,
    /// Space reserved for these nodes, in addition to that of the file's dirty blocks.
    pub(super) nodes: Option<&'a mut Reservation>,
    /// Bytes logged together with the change.
    pub(super) data: &'a [DataBlock<'a>],
    /// Credits for anything else done in the handle: [`Allocated::CREDITS`] for each new run. Those
    /// for the inode and the data are already included.
    pub(super) credits: u32,
}

/// Bytes for one block of the volume, to be written through the log.
pub(super) struct DataBlock<'a> {
    pub(super) to: VolumeBlock,
    /// Offset of the bytes within the block.
    pub(super) at: usize,
    pub(super) bytes: &'a [u8],
    /// The block if it is in memory; its other bytes are kept. If `None`, its other bytes become
    /// zero.
    pub(super) held: Option<MetaBlock>,
}

impl DataBlock<'_> {
    /// Copies the bytes into the block as part of the transaction.
    fn put(&self, handle: &mut Handle) {
        let to = self.at..self.at + self.bytes.len();
        match &self.held {
            Some(block) => handle.edit(block)[to].copy_from_slice(self.bytes),
            None => {
                let block = handle.create(self.to, MetaKind::Raw);
                handle.edit(&block)[to].copy_from_slice(self.bytes);
            }
        }
    }
}

/// A planned change with everything that it needs in memory.
struct PreparedChange {
    planned: Planned,
    nodes: PinnedNodes,
    pins: Pins,
    /// Blocks allocated for its new nodes, and each of them.
    places: Vec<Allocated>,
    news: Vec<VolumeBlock>,
    /// Whether the journal may hold copies of the data.
    metadata: bool,
}

impl Contents {
    /// Logs the blocks that have landed and gives up those that have failed.
    pub(super) async fn finish(&self, run: &WrittenRun) -> Result<()> {
        let (mut data, mut on_device) = (Vec::new(), Vec::new());
        let mut result = Ok(());
        for written in &run.extents {
            if written.extent.to != WriteTo::Backing {
                on_device.push(written);
            } else if Self::is_data(&written.extent) {
                data.push(written);
            } else if written.bytes.iter().any(|bytes| bytes.iter().any(|&byte| byte != 0)) {
                // The hole stays a hole. Bytes written by a caller would be lost here, but those
                // always have space reserved.
                result = Err(Error::Defect);
            }
        }
        let landed = self.part_landed(&on_device);
        let mut rest = &landed[..];
        while !rest.is_empty() {
            let (part, behind) = rest.split_at(self.logged_together(rest));
            if result.is_ok() {
                result = self.log(part, part[0].1, run.size_bytes, &[]).await;
            }
            if result.is_err() {
                self.give_up(rest.iter().map(|(blocks, _, _)| *blocks));
                break;
            }
            rest = behind;
        }
        let logged = self.log_data(&data, run.size_bytes).await;
        result.and(logged)
    }

    /// How many of these runs fit in one handle.
    fn logged_together(&self, landed: &[Landed]) -> usize {
        let mut nodes = 0;
        let fits = |(blocks, ..): &&Landed| {
            nodes += if self.uses_extents() { 0 } else { pointer_growth(*blocks, self.block) };
            nodes <= NODES_PER_HANDLE
        };
        landed.iter().take(RUNS_PER_HANDLE).take_while(fits).count().max(1)
    }

    /// Logs blocks that are on the device, or whose `data` are logged by the same handle: their
    /// bitmaps, their mapping, and the size that they allow.
    pub(super) async fn log(
        &self,
        landed: &[Landed],
        near: VolumeBlock,
        size_bytes: u64,
        data: &[DataBlock<'_>],
    ) -> Result<()> {
        let mapped: Vec<_> = landed
            .iter()
            .filter(|(_, _, was)| *was != WasBefore::Written)
            .map(|(blocks, to, _)| written(*blocks, *to))
            .collect();
        let change = MapChange {
            change: Change::Map(&mapped),
            near,
            nodes: None,
            data,
            credits: landed.len().fit_u32() * Allocated::CREDITS,
        };
        self.change_map(change, |handle, live, _| {
            let new = landed.iter().filter(|(_, _, was)| *was == WasBefore::New);
            let data_blocks = new.map(|(blocks, _, _)| self.log_place(handle, live, *blocks)).sum();
            for (blocks, _, _) in landed {
                live.map.landed(*blocks, size_bytes);
            }
            data_blocks
        })
        .await?;
        Ok(())
    }

    /// Logs the allocation of new blocks in flight. Returns how many blocks the file gains, in
    /// whole clusters.
    pub(super) fn log_place(&self, handle: &mut Handle, live: &mut FileState, blocks: BlockRange) -> u64 {
        let place = live.places.remove(blocks.start).expect("new blocks in flight have a place");
        let data_blocks = place.run().blocks;
        self.writer.alloc.log(handle, place);
        data_blocks
    }

    /// Plans a map change and logs it, together with the blocks it frees and the resulting size of
    /// the file on the device. Under the same handle, `settle` makes related changes, also in
    /// memory, and returns the number of newly mapped blocks. It receives the part of the change
    /// that is still to be done, which is also returned to the caller.
    ///
    /// # Errors
    /// The map or a bitmap is damaged or unreadable; no space for nodes; why the journal gave up.
    /// Nothing has changed.
    pub(super) async fn change_map(
        &self,
        change: MapChange<'_>,
        settle: impl FnOnce(&mut Handle, &mut FileState, &RemainingRange) -> u64,
    ) -> Result<RemainingRange> {
        let Writer { store, alloc, .. } = &*self.writer;
        let sb = store.shape();
        let MapChange { change, near, nodes, data, credits } = change;
        let near = if self.uses_extents() { alloc.data_goal(self.number(), None) } else { near };
        let _edits = self.edits.write().await;
        // The old contents of an emptied file are removed along with the first new ones.
        let old = match self.is_emptied() {
            true => Some(Box::pin(Removal::plan(&self.writer, &self.cell, 0)).await?),
            false => None,
        };
        if old.as_ref().is_some_and(|old| !old.is_whole()) {
            return Err(Error::Defect);
        }
        let change = match change {
            Change::Map(extents) if old.is_some() => Change::Refill(extents),
            change => change,
        };
        let of_old = old.as_ref().map_or(0, |old| old.credits(sb));
        // The superblock may need a feature flag.
        let beside = of_old + credits + data.len().fit_u32() + Orphans::CREDITS + 1;
        let (prepared, mut handle) = self.prepare_change(&change, near, nodes, beside).await?;
        let PreparedChange { planned, nodes, pins, places, news, metadata } = prepared;
        // Done before locking the map, because readers and writers wait for that lock.
        data.iter().for_each(|block| block.put(&mut handle));
        let mut live = self.live.lock();
        inline_contents::leave(&mut handle, &self.cell, sb);
        let data_blocks = settle(&mut handle, &mut live, &planned.rest);
        places.into_iter().for_each(|place| alloc.log(&mut handle, place));
        if let Some(old) = old {
            old.apply(&self.writer, &mut handle, &self.cell);
        }
        planned.apply(&mut handle, &self.cell, &nodes, &news, data_blocks, sb);
        drop(nodes);
        planned.free(&mut handle, alloc, &pins, metadata);
        live.map.changed_on_disk();
        self.record_landed(&mut handle, &mut live);
        let wakers = live.wake();
        let given_back = live.give_back(0);
        drop(live);
        drop(given_back);
        drop(handle);
        wakers.into_iter().for_each(Waker::wake);
        Ok(planned.rest)
    }

    /// Plans a change, gets everything it needs into memory, and opens the handle, with `beside`
    /// credits for what else is done in it. The caller holds `edits`.
    async fn prepare_change(
        &self,
        change: &Change<'_>,
        near: VolumeBlock,
        mut own: Option<&mut Reservation>,
        beside: u32,
    ) -> Result<(PreparedChange, Handle)> {
        let Writer { store, alloc, journal, .. } = &*self.writer;
        let sb = store.shape();
        let metadata = self.cell.read(|inode| frees_metadata(inode, sb));
        let (mut for_copies, mut in_place) = (None, false);
        loop {
            let mut nodes = match in_place {
                true => PinnedNodes::of(&self.cell, sb),
                false => PinnedNodes::copying(&self.cell, sb, journal),
            };
            let planned = plan(store, alloc, &self.cell, &mut nodes, change).await?;
            if planned.copies > 0 && !Box::pin(self.reserve_copies(planned.copies, &mut for_copies)).await? {
                in_place = true;
                continue;
            }
            let pins = match alloc.pin(planned.freed(), Place::Inode(self.number())).await {
                // The failure is in the bitmap of a group that holds an old node.
                Err(_) if planned.copies > 0 => {
                    in_place = true;
                    continue;
                }
                pins => pins?,
            };
            let (mut places, mut news) = match planned.new_nodes - planned.copies {
                0 => Default::default(),
                count => Box::pin(self.allocate_nodes(count, near, own.as_deref_mut())).await?,
            };
            let first_copy = places.len();
            if planned.copies > 0 {
                match Box::pin(self.allocate_nodes(planned.copies, near, for_copies.as_mut())).await {
                    Ok((of_copies, blocks)) => {
                        places.extend(of_copies);
                        news.extend(blocks);
                    }
                    Err(_) => {
                        self.put_back_all(places, first_copy, own.as_deref_mut(), for_copies.as_mut());
                        in_place = true;
                        continue;
                    }
                }
            }
            let bitmaps = pins.credits() + places.len().fit_u32() * Allocated::CREDITS;
            let revokes = planned.revoke_blocks(metadata, sb);
            let refused = match journal.start(Credits(planned.credits() + bitmaps + revokes + beside)).await {
                Ok(handle) if planned.is_for(handle.tid()) => {
                    return Ok((PreparedChange { planned, nodes, pins, places, news, metadata }, handle));
                }
                // A transaction has ended since the plan was made.
                Ok(_) => None,
                Err(error) => Some(error),
            };
            self.put_back_all(places, first_copy, own.as_deref_mut(), for_copies.as_mut());
            match refused {
                // No transaction can be that large.
                Some(Error::NoSpace) if planned.copies > 0 => in_place = true,
                Some(error) => return Err(error),
                None => {}
            }
        }
    }

    /// Allocates new nodes near `near`, from `own` or else from the reservation of the file's dirty
    /// blocks. On error all blocks return to their reservations.
    async fn allocate_nodes(
        &self,
        count: u32,
        near: VolumeBlock,
        mut own: Option<&mut Reservation>,
    ) -> Result<(Vec<Allocated>, Vec<VolumeBlock>)> {
        let (mut places, mut from_own) = (Vec::new(), 0);
        let mut left = count;
        while left > 0 {
            let from = own.as_deref_mut().filter(|own| own.clusters() > 0);
            let is_own = from.is_some();
            match self.allocate_some_nodes(left, near, from).await {
                Ok(got) => {
                    left -= got.firsts().count().fit_u32();
                    from_own += usize::from(is_own);
                    places.push(got);
                }
                Err(error) => {
                    for (n, place) in places.into_iter().enumerate() {
                        self.put_back_nodes(place, own.as_deref_mut().filter(|_| n < from_own));
                    }
                    return Err(error);
                }
            }
        }
        let news = places.iter().flat_map(Allocated::firsts).collect();
        Ok((places, news))
    }

    /// Allocates up to `want` adjacent blocks for nodes.
    async fn allocate_some_nodes(
        &self,
        want: u32,
        near: VolumeBlock,
        own: Option<&mut Reservation>,
    ) -> Result<Allocated> {
        let alloc = &self.writer.alloc;
        if let Some(own) = own {
            return alloc.blocks(near, want, own).await;
        }
        let reserved = self.live.lock().reserve.take_for_nodes(want.into());
        let mut reservation = match reserved {
            Some(reservation) => reservation,
            None => alloc.reserve(0, want.into(), Privilege::Reserved)?,
        };
        let got = alloc.blocks(near, want, &mut reservation).await;
        self.keep_for_nodes(reservation);
        got
    }

    /// Reserves space for `count` node copies in total. The nodes reserved for acknowledged data
    /// cover a larger tree, but not copies. Returns whether space is available, committing freed
    /// blocks first if necessary.
    async fn reserve_copies(&self, count: u32, copies: &mut Option<Reservation>) -> Result<bool> {
        let Writer { alloc, journal, .. } = &*self.writer;
        let missing = u64::from(count).saturating_sub(copies.as_ref().map_or(0, Reservation::clusters));
        let mut reserved = alloc.reserve(0, missing, Privilege::Reserved);
        if matches!(reserved, Err(Error::NoSpace)) && alloc.pending() > 0 {
            journal.commit(journal.running()).await?;
            journal.released().await?;
            reserved = alloc.reserve(0, missing, Privilege::Reserved);
        }
        match reserved {
            Ok(more) => match copies {
                Some(copies) => copies.merge(more),
                None => *copies = Some(more),
            },
            Err(Error::NoSpace) => return Ok(false),
            Err(error) => return Err(error),
        }
        Ok(true)
    }

    /// Returns node blocks to their reservations; those from index `first_copy` on are for copies.
    fn put_back_all(
        &self,
        mut places: Vec<Allocated>,
        first_copy: usize,
        mut own: Option<&mut Reservation>,
        mut copies: Option<&mut Reservation>,
    ) {
        for place in places.split_off(first_copy) {
            self.put_back_nodes(place, copies.as_deref_mut());
        }
        for place in places {
            self.put_back_nodes(place, own.as_deref_mut());
        }
    }

    fn put_back_nodes(&self, place: Allocated, own: Option<&mut Reservation>) {
        let reservation = self.writer.alloc.take_back(place);
        match own {
            Some(own) => own.merge(reservation),
            None => self.keep_for_nodes(reservation),
        }
    }

    fn keep_for_nodes(&self, reservation: Reservation) {
        if reservation.clusters() > 0 {
            let clusters = reservation.clusters();
            self.live.lock().reserve.keep(reservation, clusters);
        }
    }
}
