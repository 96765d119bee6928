//! The group descriptors of a volume open for writing. All are kept decoded while it is open.

use super::Tid;
use super::kind::BitmapSum;
use super::{MetaBlock, MetaKind, Versioned};
use crate::Result;
use extant_cache::blocks::Blocks;
use extant_format::{Corrupt, Group, GroupDescriptor, Place, Superblock, UintExt, VolumeBlock};
use parking_lot::{Mutex, MutexGuard};
use std::ops::{Deref, DerefMut};

/// All group descriptors.
#[derive(Debug)]
pub(crate) struct Groups {
    list: Box<[Mutex<Entry>]>,
    /// The blocks of the table, pinned.
    table: Box<[MetaBlock]>,
    per_block: u32,
    bytes: usize,
}

#[derive(Debug)]
struct Entry {
    descriptor: Versioned<GroupDescriptor>,
    /// The bitmaps' checksums as of the last commit; those in `descriptor` are not used.
    block_bitmap_csum: u32,
    inode_bitmap_csum: u32,
}

impl Groups {
    /// Reads every descriptor.
    ///
    /// # Errors
    /// A descriptor is damaged; such a volume is not opened for writing.
    pub(crate) async fn load(blocks: &Blocks, sb: &Superblock) -> Result<Self> {
        let count = sb.descriptor_blocks();
        let homes: Vec<VolumeBlock> = (0..count).map(|n| sb.descriptor_block(n)).collect();
        if let Some(outside) = homes.iter().find(|at| !sb.is_valid_block(**at)) {
            let place = Place::GroupDescriptor(Group(0));
            return Err(Corrupt::field(place, "block", outside.0, "a block of the volume").into());
        }
        for batch in homes.chunks(1024) {
            blocks.prefetch(batch.iter().map(|at| at.0)).await;
        }
        let (per_block, bytes) = (sb.descriptors_per_block(), sb.descriptor_size());
        let mut list = Vec::with_capacity(sb.group_count().to_usize());
        let mut table = Vec::with_capacity(count.to_usize());
        for (n, home) in homes.into_iter().enumerate() {
            let block = blocks.read(home.0).await?;
            let contents = block.bytes();
            for slot in 0..per_block {
                let group = Group(n.fit_u32() * per_block + slot);
                if group.0 >= sb.group_count() {
                    break;
                }
                let descriptor = GroupDescriptor::parse(&contents[slot.to_usize() * bytes..], sb, group)?;
                list.push(Mutex::new(Entry {
                    block_bitmap_csum: descriptor.block_bitmap_csum,
                    inode_bitmap_csum: descriptor.inode_bitmap_csum,
                    descriptor: Versioned::new(descriptor),
                }));
            }
            table.push(MetaBlock::new(block, MetaKind::Descriptors(n.fit_u32())));
        }
        Ok(Self { list: list.into(), table: table.into(), per_block, bytes })
    }

    /// Number of groups.
    pub(crate) fn count(&self) -> u32 {
        self.list.len().fit_u32()
    }

    /// A group's current descriptor.
    pub(crate) fn get(&self, group: Group) -> GroupDescriptor {
        let entry = self.entry(group);
        GroupDescriptor {
            block_bitmap_csum: entry.block_bitmap_csum,
            inode_bitmap_csum: entry.inode_bitmap_csum,
            ..*entry.descriptor.live()
        }
    }

    /// Total free blocks (clusters) and inodes.
    pub(crate) fn free_totals(&self) -> (u64, u64) {
        self.list.iter().fold((0, 0), |(blocks, inodes), entry| {
            let entry = entry.lock();
            let descriptor = entry.descriptor.live();
            (blocks + u64::from(descriptor.free_blocks), inodes + u64::from(descriptor.free_inodes))
        })
    }

    fn entry(&self, group: Group) -> MutexGuard<'_, Entry> {
        self.list[group.0.to_usize()].lock()
    }

    /// Begins an edit of a group's descriptor by `tid`. Also returns whether it is the
    /// transaction's first edit of it.
    pub(crate) fn edit(&self, group: Group, tid: Tid) -> (GroupEdit<'_>, bool) {
        let mut entry = self.entry(group);
        let (_, first) = entry.descriptor.edit(tid);
        (GroupEdit { entry }, first)
    }

    /// Notes the checksum of a bitmap that is being committed.
    pub(super) fn note_sum(&self, group: Group, sum: BitmapSum) {
        let mut entry = self.entry(group);
        match sum {
            BitmapSum::Blocks(sum) => entry.block_bitmap_csum = sum,
            BitmapSum::Inodes(sum) => entry.inode_bitmap_csum = sum,
        }
    }

    /// The table block that holds a group's descriptor, and the descriptor's offset in it.
    pub(crate) fn home(&self, group: Group) -> (&MetaBlock, usize) {
        let block = &self.table[(group.0 / self.per_block).to_usize()];
        (block, (group.0 % self.per_block).to_usize() * self.bytes)
    }

    /// Length of a descriptor, in bytes.
    pub(crate) fn descriptor_bytes(&self) -> usize {
        self.bytes
    }

    /// Takes the descriptor as `tid` left it, with the bitmaps' checksums.
    pub(crate) fn take(&self, group: Group, tid: Tid) -> GroupDescriptor {
        let mut entry = self.entry(group);
        let descriptor = entry.descriptor.take(tid);
        GroupDescriptor {
            block_bitmap_csum: entry.block_bitmap_csum,
            inode_bitmap_csum: entry.inode_bitmap_csum,
            ..descriptor
        }
    }
}

/// A group's descriptor being edited. The commit fills in the bitmaps' checksums.
#[derive(Debug)]
pub(crate) struct GroupEdit<'a> {
    entry: MutexGuard<'a, Entry>,
}

impl Deref for GroupEdit<'_> {
    type Target = GroupDescriptor;
    fn deref(&self) -> &GroupDescriptor {
        self.entry.descriptor.live()
    }
}

impl DerefMut for GroupEdit<'_> {
    fn deref_mut(&mut self) -> &mut GroupDescriptor {
        self.entry.descriptor.live_mut()
    }
}
