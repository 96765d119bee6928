//! Inode numbers: takes them in memory, logs them and frees them.

use super::inodes::{InodeGroups, Take};
use super::layout::empty_inode_bitmap;
use super::spread::{GroupCounts, Parent, Wanted};
use super::{Allocator, Bitmap, GROUPS_KEPT, Shared};
use crate::journal::{Handle, Tid};
use crate::meta::{MetaBlock, MetaKind};
use crate::{Error, Result};
use extant_format::{
    ChecksumSeed, Corrupt, Group, GroupDescriptor, GroupFlags, InodeNumber, Place, UintExt, VolumeBlock, bit,
    clear_bits, count_free, set_bits,
};
use std::sync::Arc;

/// Offsets of `i_links_count` and `i_generation` in a record.
const LINKS_AT: usize = 0x1a;
const GENERATION_AT: usize = 0x64;

/// An inode number taken in memory. Dropping it without [`Allocator::log_inode`] frees it again.
#[derive(Debug)]
pub(crate) struct NewInode {
    taken: Taken,
    number: InodeNumber,
    is_dir: bool,
    table: Table,
    /// Blocks of the group's table that this inode is the first to use or to skip, its own block
    /// last.
    fresh: FreshBlocks,
    at: usize,
}

/// A number taken in memory, as an index into its group's table. Dropping it before it is logged
/// frees it again.
#[derive(Debug)]
struct Taken {
    shared: Arc<Shared>,
    group: Group,
    index: u32,
    logged: bool,
}

impl Drop for Taken {
    fn drop(&mut self) {
        if !self.logged {
            self.shared.inodes.lock().give(self.group, self.index);
        }
    }
}

/// The block of the inode table that will hold a new inode's record.
#[derive(Debug)]
enum Table {
    Read(MetaBlock),
    /// No inode in it was ever in use. It may contain anything, so it is zeroed instead of read.
    Fresh(VolumeBlock),
}

/// A fresh block of an inode table, kept while inodes in it or in later blocks are being created.
#[derive(Debug, Default)]
pub(super) struct FreshTable {
    made: Option<MetaBlock>,
    users: u32,
}

/// Fresh blocks of an inode table that one new inode takes part in creating.
#[derive(Debug)]
struct FreshBlocks {
    shared: Arc<Shared>,
    homes: Vec<VolumeBlock>,
}

impl Drop for FreshBlocks {
    fn drop(&mut self) {
        let mut fresh = self.shared.fresh_tables.lock();
        for at in &self.homes {
            if let Some(entry) = fresh.get_mut(&at.0) {
                entry.users -= 1;
                if entry.users == 0 {
                    fresh.remove(&at.0);
                }
            }
        }
    }
}

/// A new inode that has been logged; its record still has to be filled in.
#[derive(Debug)]
pub(crate) struct LoggedInode {
    pub(crate) number: InodeNumber,
    pub(crate) table: MetaBlock,
    /// Offset of the record in `table`, in bytes.
    pub(crate) at: usize,
}

impl NewInode {
    pub(crate) const fn number(&self) -> InodeNumber {
        self.number
    }

    /// The new inode's generation, derived from the volume, the number and the previous generation:
    /// `last`, that of the number's previous owner, or the one in its record if that owner is not
    /// in memory.
    pub(crate) fn generation(&self, last: Option<u32>) -> u32 {
        let shared = &self.taken.shared;
        let before = last.unwrap_or_else(|| {
            self.recorded(|record| record[GENERATION_AT..].first_chunk().copied())
                .map_or(0, u32::from_le_bytes)
        });
        ChecksumSeed::from_uuid(&shared.sb().uuid()).for_inode(self.number, before).0
    }

    /// The link count in the record of the number's previous owner, or 0 if there is none.
    pub(crate) fn recorded_links(&self) -> u16 {
        self.recorded(|record| record[LINKS_AT..].first_chunk().copied()).map_or(0, u16::from_le_bytes)
    }

    /// Reads the record of the number's previous owner in the table, if there is one.
    fn recorded<T>(&self, look: impl FnOnce(&[u8]) -> Option<T>) -> Option<T> {
        match &self.table {
            Table::Read(block) => look(&block.bytes()[self.at..]),
            Table::Fresh(home) => {
                let fresh = self.taken.shared.fresh_tables.lock();
                let made = fresh.get(&home.0)?.made.as_ref()?;
                look(&made.bytes()[self.at..])
            }
        }
    }

    /// Credits that [`Allocator::log_inode`] needs: inode bitmap, descriptor, the block bitmap if
    /// it was never written, and the table block along with any earlier ones that were never
    /// written.
    pub(crate) fn credits(&self) -> u32 {
        3 + self.fresh.homes.len().fit_u32().max(1)
    }
}

/// Keeps the bitmap of an inode loaded that is about to be freed.
#[derive(Debug)]
pub(crate) struct InodePin {
    shared: Arc<Shared>,
    group: Group,
}

impl InodePin {
    /// Credits that [`Allocator::free_inode`] needs: bitmap and descriptor.
    pub(crate) const CREDITS: u32 = 2;
}

impl Drop for InodePin {
    fn drop(&mut self) {
        self.shared.inodes.lock().unpin(self.group);
    }
}

impl Allocator {
    /// Takes an inode number in memory and loads what logging it needs.
    ///
    /// # Errors
    /// [`Error::NoSpace`] if no group has a usable free inode; see [`Allocator::inode_waiting`]. A
    /// device error when reading the inode table.
    pub(crate) async fn inode(&self, wanted: Wanted, parent: Parent) -> Result<NewInode> {
        let is_dir = wanted != Wanted::File;
        loop {
            let Some(group) = self.shared.place(wanted, parent) else { return Err(Error::NoSpace) };
            let take = self.shared.inodes.lock().take(group);
            match take {
                Take::Index(index) => {
                    let mut taken = Taken { shared: self.shared.clone(), group, index, logged: false };
                    if self.shared.sb().names_inode(taken.number()) {
                        // Damage. The number stays taken, in memory only.
                        taken.logged = true;
                        self.shared.inodes.lock().lose();
                        continue;
                    }
                    return taken.into_inode(is_dir).await;
                }
                // Skip a damaged group, as Linux does; its problem has been recorded.
                Take::NotLoaded => drop(Box::pin(self.shared.load_inodes(group)).await),
                Take::Full => {}
                Take::Damaged => {
                    let rule = "as many as the descriptor says (bg_free_inodes_count)";
                    let corrupt = Corrupt::field(Place::InodeBitmap(group), "free inodes", 0, rule);
                    self.shared.set_inodes_bad(group, corrupt.into());
                }
            }
        }
    }

    /// Retires a number for good because it is in use for the reason `why`, whatever the bitmap
    /// says. Its group stays loaded.
    pub(crate) fn lose_inode(&self, mut new: NewInode, why: Error) {
        new.taken.logged = true;
        self.shared.inodes.lock().lose();
        self.shared.unusable.lock().inodes.get_or_insert_with(|| why.clone());
        self.shared.keep_problem(why);
    }

    /// Logs a new inode's bit and counts under the handle that gives it a name or puts it on the
    /// orphan list. Needs [`NewInode::credits`].
    ///
    /// Also creates the table blocks that the mark of used inodes (`bg_itable_unused`) moves past.
    /// Otherwise, until their own inodes are logged, they would hold whatever was there before the
    /// volume was made.
    pub(crate) fn log_inode(&self, handle: &mut Handle, mut new: NewInode) -> LoggedInode {
        let shared = &self.shared;
        let NewInode { taken: Taken { group, index, .. }, is_dir, at, number, .. } = new;
        let bitmap = shared.inode_bitmap(handle, group);
        {
            let mut bytes = handle.edit(&bitmap);
            assert!(!bit(&bytes, index), "inode {number} is in use");
            set_bits(&mut bytes, index, index + 1);
        }
        let csum = shared.sb().has_group_csum();
        {
            let mut descriptor = handle.group(group);
            descriptor.free_inodes -= 1;
            descriptor.used_dirs += u32::from(is_dir);
            if csum {
                let unused = shared.sb().inodes_per_group() - index - 1;
                descriptor.unused_inodes = descriptor.unused_inodes.min(unused);
            }
        }
        shared.ensure_block_bitmap(handle, group);
        let mut made = None;
        {
            let mut fresh = shared.fresh_tables.lock();
            for home in &new.fresh.homes {
                let entry = fresh.get_mut(&home.0).expect("registered while the inode is new");
                let make = || handle.create(*home, MetaKind::InodeTable(group));
                made = Some(entry.made.get_or_insert_with(make).clone());
            }
        }
        let table = match &new.table {
            Table::Read(block) => block.clone(),
            Table::Fresh(_) => made.expect("its own block is the last of the fresh ones"),
        };
        shared.inodes.lock().logged(group, is_dir);
        new.taken.logged = true;
        LoggedInode { number, table, at }
    }

    /// Loads the bitmap of an inode that is to be freed.
    ///
    /// # Errors
    /// The bitmap is damaged or unreadable, or says that the inode is free. The group is then no
    /// longer used for allocation, because the number may be given out a second time.
    pub(crate) async fn pin_inode(&self, number: InodeNumber) -> Result<InodePin> {
        let (group, index) = self.shared.locate(number)?;
        loop {
            let is_marked = {
                let mut inodes = self.shared.inodes.lock();
                let is_marked = inodes.is_loaded(group).then(|| self.shared.is_marked(group, index));
                if is_marked == Some(true) {
                    inodes.pin(group);
                }
                is_marked
            };
            match is_marked {
                Some(true) => return Ok(InodePin { shared: self.shared.clone(), group }),
                Some(false) => return Err(self.shared.freed_before(group, number)),
                None => Box::pin(self.shared.load_inodes(group)).await?,
            }
        }
    }

    /// Frees an inode's bit and counts; the caller handles its record. Needs [`InodePin::CREDITS`].
    pub(crate) fn free_inode(&self, handle: &mut Handle, pin: InodePin, number: InodeNumber, was_dir: bool) {
        let shared = &self.shared;
        let (group, index) = shared.sb().locate_inode(number).expect("its bitmap is pinned");
        assert!(group == pin.group, "the bitmap of inode {number} is pinned");
        // Before anything is edited: a bitmap changes only together with its counts.
        if !shared.is_marked(group, index) {
            drop(shared.freed_before(group, number));
            return;
        }
        let bitmap = shared.inode_bitmap(handle, group);
        clear_bits(&mut handle.edit(&bitmap), index, index + 1);
        {
            let mut descriptor = handle.group(group);
            descriptor.free_inodes += 1;
            descriptor.used_dirs = descriptor.used_dirs.saturating_sub(u32::from(was_dir));
        }
        let mut inodes = shared.inodes.lock();
        inodes.freed(group, was_dir);
        if shared.reuses_inodes_at_once {
            inodes.give(group, index);
        } else {
            shared.freed_inodes.lock().push((handle.tid(), group, index));
        }
    }

    /// On a volume without a journal, makes inodes freed by transactions up to `durable` available
    /// again.
    pub(crate) fn settle_inodes(&self, durable: Tid) {
        let mut inodes = self.shared.inodes.lock();
        self.shared.freed_inodes.lock().retain(|&(tid, group, index)| {
            if tid <= durable {
                inodes.give(group, index);
            }
            tid > durable
        });
    }
}

impl Taken {
    fn number(&self) -> InodeNumber {
        InodeNumber(self.group.0 * self.shared.sb().inodes_per_group() + self.index + 1)
    }

    /// Loads the block of the inode table that contains the record.
    async fn into_inode(self, is_dir: bool) -> Result<NewInode> {
        let (shared, group, index) = (&self.shared, self.group, self.index);
        let sb = shared.sb();
        let number = self.number();
        let (size, block) = (u32::from(sb.inode_size()), sb.block_size().bytes());
        let per_block = block / size;
        let home = VolumeBlock(shared.descriptor(group).inode_table.0 + u64::from(index / per_block));
        let at = (index % per_block * size).to_usize();
        let homes = shared.join_fresh_tables(group, index, per_block);
        let fresh = FreshBlocks { shared: shared.clone(), homes };
        let table = match fresh.homes.is_empty() {
            false => Table::Fresh(home),
            true => Table::Read(shared.store.read(home, MetaKind::InodeTable(group)).await?),
        };
        Ok(NewInode { taken: self, number, is_dir, table, fresh, at })
    }
}

impl Shared {
    fn place(&self, wanted: Wanted, parent: Parent) -> Option<Group> {
        let inodes = self.inodes.lock();
        let groups = self.groups.lock();
        let (free_inodes, used_dirs) = inodes.totals();
        let total = GroupCounts { free_inodes, free_clusters: self.space.counts().free, used_dirs };
        self.shape.place(wanted, parent, total, |group| GroupCounts {
            free_inodes: inodes.free(group).into(),
            free_clusters: groups.free(group).into(),
            used_dirs: inodes.dirs(group).into(),
        })
    }

    fn locate(&self, number: InodeNumber) -> Result<(Group, u32)> {
        let rule = "an inode of the volume";
        self.sb()
            .locate_inode(number)
            .ok_or_else(|| Corrupt::field(Place::Inode(number), "inode number", number.0.into(), rule).into())
    }

    /// Registers for creation the table block of inode `index` of the group, if no inode in it was
    /// ever in use, together with the blocks between the inodes that were in use and it. Returns
    /// them in order, or nothing if the inode's own block must be read.
    fn join_fresh_tables(&self, group: Group, index: u32, per_block: u32) -> Vec<VolumeBlock> {
        let descriptor = self.descriptor(group);
        let home = |block: u32| VolumeBlock(descriptor.inode_table.0 + u64::from(block));
        let own = index / per_block;
        let mut fresh = self.fresh_tables.lock();
        // Under the lock, because logging an inode moves the mark while its blocks are registered.
        let used = used_inodes(&self.descriptor(group), self.sb().inodes_per_group());
        let unwritten = used.div_ceil(per_block);
        if own < unwritten && !fresh.contains_key(&home(own).0) {
            return Vec::new();
        }
        let homes: Vec<_> = (unwritten.min(own)..=own).map(home).collect();
        for at in &homes {
            fresh.entry(at.0).or_default().users += 1;
        }
        homes
    }

    /// Loads a group's inode bitmap.
    async fn load_inodes(&self, group: Group) -> Result<()> {
        let descriptor = self.descriptor(group);
        let is_unwritten = descriptor.flags.contains(GroupFlags::INODE_UNINIT);
        let kind = MetaKind::InodeBitmap(group);
        let bitmap = self.read_bitmap(is_unwritten, descriptor.inode_bitmap, kind).await;
        let loaded = bitmap.and_then(|bitmap| Ok(self.install_inodes(group, bitmap)?));
        loaded.inspect_err(|error| self.set_inodes_bad(group, error.clone()))
    }

    /// Installs the bitmap of a group that has none in memory. Checks bitmap and descriptor under
    /// the lock; no operation changes them while the group is not loaded.
    fn install_inodes(&self, group: Group, bitmap: Bitmap) -> std::result::Result<(), Corrupt> {
        let place = Place::InodeBitmap(group);
        let mut inodes = self.inodes.lock();
        if inodes.is_bad(group) {
            return Err(Corrupt::field(place, "state", 0, "undamaged"));
        }
        if inodes.is_loaded(group) {
            return Ok(());
        }
        let sb = self.sb();
        let descriptor = self.descriptor(group);
        let load = |bytes: &[u8], inodes: &mut InodeGroups| {
            let free = count_free(bytes, sb.inodes_per_group());
            if free != descriptor.free_inodes {
                let rule = "the descriptor's count (bg_free_inodes_count)";
                return Err(Corrupt::field(place, "free inodes", free.into(), rule));
            }
            // Table blocks past the mark are created as zeroes.
            let mut behind = used_inodes(&descriptor, sb.inodes_per_group())..sb.inodes_per_group();
            if let Some(index) = behind.find(|&index| bit(bytes, index)) {
                let rule = "free, as the descriptor says of all behind its mark (bg_itable_unused)";
                return Err(Corrupt::field(place, "inode", index.into(), rule));
            }
            inodes.load(group, bytes);
            Ok(())
        };
        match &bitmap {
            Bitmap::Logged(block) => load(&block.bytes(), &mut inodes)?,
            // Another task initialised it meanwhile.
            Bitmap::Unwritten if !descriptor.flags.contains(GroupFlags::INODE_UNINIT) => return Ok(()),
            Bitmap::Unwritten => load(&empty_inode_bitmap(sb), &mut inodes)?,
        }
        let mut bitmaps = self.inode_bitmaps.lock();
        bitmaps.insert(group.0, bitmap);
        for idle in inodes.shrink(GROUPS_KEPT, group) {
            bitmaps.remove(&idle.0);
        }
        Ok(())
    }

    /// Whether the bitmap of a loaded group says that an inode is in use.
    fn is_marked(&self, group: Group, index: u32) -> bool {
        match self.inode_bitmaps.lock().get(&group.0) {
            Some(Bitmap::Logged(block)) => bit(&block.bytes(), index),
            _ => false,
        }
    }

    /// Stops using a group because an inode that is to be freed is already marked as free. Returns
    /// the damage.
    fn freed_before(&self, group: Group, number: InodeNumber) -> Error {
        let rule = "marked as in use, for it was not deleted; run e2fsck";
        let corrupt = Corrupt::field(Place::InodeBitmap(group), "inode", number.0.into(), rule);
        self.set_inodes_bad(group, corrupt.into());
        corrupt.into()
    }

    fn set_inodes_bad(&self, group: Group, why: Error) {
        let mut inodes = self.inodes.lock();
        if !inodes.is_bad(group) {
            inodes.set_bad(group);
            self.unusable.lock().inodes.get_or_insert_with(|| why.clone());
            self.keep_problem(why);
        }
    }

    /// The inode bitmap of a loaded group, for editing. If it was never written, writes all of it
    /// first.
    fn inode_bitmap(&self, handle: &mut Handle, group: Group) -> MetaBlock {
        let mut bitmaps = self.inode_bitmaps.lock();
        match bitmaps.get(&group.0) {
            Some(Bitmap::Logged(block)) => block.clone(),
            _ => {
                let at = self.descriptor(group).inode_bitmap;
                let block = handle.create(at, MetaKind::InodeBitmap(group));
                handle.edit(&block).copy_from_slice(&empty_inode_bitmap(self.sb()));
                let mut descriptor = handle.group(group);
                descriptor.flags.remove(GroupFlags::INODE_UNINIT);
                // As Linux does, whatever the descriptor said.
                descriptor.unused_inodes = self.sb().inodes_per_group();
                drop(descriptor);
                bitmaps.insert(group.0, Bitmap::Logged(block.clone()));
                block
            }
        }
    }
}

/// Number of inodes at the start of a group's table that were ever in use.
fn used_inodes(descriptor: &GroupDescriptor, per_group: u32) -> u32 {
    if descriptor.flags.contains(GroupFlags::INODE_UNINIT) {
        return 0;
    }
    per_group - descriptor.unused_inodes.min(per_group)
}
