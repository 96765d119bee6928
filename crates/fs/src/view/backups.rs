//! Backups of the superblock and of the group descriptors, used to read a damaged volume.
//!
//! Their free counts and flags are stale, but the locations of bitmaps and inode tables never
//! change.

use super::{OpenOptions, Problems, View, read_superblock};
use crate::{Error, Result};
use extant_block::{Device, Sector};
use extant_format::{
    Corrupt, Group, GroupDescriptor, Incompat, Place, Problem, Superblock, UintExt, VolumeBlock,
    backup_offsets, inode_table_blocks,
};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// What has been found in backups so far.
#[derive(Debug, Default)]
pub(super) struct Backups {
    descriptors: Mutex<BTreeMap<u32, GroupDescriptor>>,
    /// The last group whose own descriptor was found sound. Inodes read in sequence are in one
    /// group, and checking the descriptor's checksum for each costs more than reading the inode.
    last_sound: Mutex<Option<(Group, GroupDescriptor)>>,
    /// Replaced descriptor blocks and their replacements that have already been reported to the
    /// user.
    told: Mutex<BTreeSet<(VolumeBlock, VolumeBlock)>>,
}

impl Backups {
    /// Forgets descriptors read from blocks that may have other contents now.
    pub(super) fn forget(&mut self) {
        (self.descriptors, self.last_sound) = (Mutex::default(), Mutex::default());
    }
}

/// Where a sound copy of a group's descriptor is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DescriptorSource {
    /// In the table that belongs to the primary superblock.
    Primary,
    /// In a backup only.
    Backup,
    /// Nowhere.
    Nowhere,
}

/// Opens a volume whose primary superblock is unusable, from the first valid backup.
pub(super) async fn open(device: &Arc<dyn Device>, options: OpenOptions, damage: Error) -> Result<View> {
    let capacity = device.limits().capacity_bytes;
    let len = capacity.min(4096).to_usize() / Sector::BYTES.to_usize() * Sector::BYTES.to_usize();
    let front = extant_block::read(&**device, Sector(0), len).await;
    let primary = front.as_deref().ok().and_then(|front| front.get(1024..)).unwrap_or_default();
    for offset in backup_offsets(primary, capacity) {
        let Ok(sb) = read_superblock(&**device, offset).await else { continue };
        if !sb.is_backup_at(offset) || sb.verify_checksum().is_err() {
            continue;
        }
        let mut problems = Problems::default();
        let instead = format!("the backup at byte {offset} is used instead (--superblock {offset})");
        problems.add(Error::Replaced { damage: Box::new(damage.clone()), instead });
        let Ok(view) = View::with_superblock(device.clone(), options, sb, offset, problems) else { continue };
        // It may be left over from an earlier volume on the device.
        if view.root().await.is_ok() {
            return Ok(view);
        }
    }
    Err(damage)
}

impl View {
    /// Location of block `index` of the descriptor table that belongs to the superblock in use.
    pub(super) fn table_block(&self, index: u32) -> VolumeBlock {
        let sb = self.superblock();
        let primary = sb.descriptor_block(index);
        if !self.is_backup() {
            return primary;
        }
        if sb.is_in_meta_group(index) {
            return sb.descriptor_copies(index).get(1).map_or(primary, |copy| copy.block);
        }
        VolumeBlock(self.inner.superblock_at.0 + 1 + u64::from(index))
    }

    /// Where a group's descriptor is sound.
    pub(crate) async fn descriptor_source(&self, group: Group) -> DescriptorSource {
        let index = group.0 / self.superblock().descriptors_per_block();
        let primary = self.superblock().descriptor_block(index);
        if self.sound_descriptor(primary, group).await.is_ok() {
            return DescriptorSource::Primary;
        }
        let copies = self.superblock().descriptor_copies(index).into_iter().map(|copy| copy.block);
        for at in std::iter::once(self.table_block(index)).chain(copies) {
            if self.sound_descriptor(at, group).await.is_ok() {
                return DescriptorSource::Backup;
            }
        }
        DescriptorSource::Nowhere
    }

    /// Reads a group's descriptor from the first valid copy.
    pub(super) async fn group_from_copies(&self, group: Group, backups: &Backups) -> Result<GroupDescriptor> {
        if let Some((_, sound)) = backups.last_sound.lock().filter(|(last, _)| *last == group) {
            return Ok(sound);
        }
        if let Some(found) = backups.descriptors.lock().get(&group.0) {
            return Ok(*found);
        }
        let index = group.0 / self.superblock().descriptors_per_block();
        let own = self.table_block(index);
        let damage = match self.sound_descriptor(own, group).await {
            Ok(descriptor) => {
                *backups.last_sound.lock() = Some((group, descriptor));
                return Ok(descriptor);
            }
            Err(error) => error,
        };
        for copy in self.superblock().descriptor_copies(index) {
            if copy.block == own {
                continue;
            }
            let Ok(found) = self.sound_descriptor(copy.block, group).await else { continue };
            if let Some((stored, wrong_sum)) = self.with_wrong_sum(own, group, &damage).await?
                && same_places(&stored, &found)
            {
                self.note(Err(wrong_sum))?;
                return Ok(stored);
            }
            if backups.told.lock().insert((own, copy.block)) {
                let instead =
                    format!("the copy in block {}, in group {}, is used instead", copy.block, copy.group);
                self.add_problem(Error::Replaced { damage: Box::new(damage), instead });
            }
            backups.descriptors.lock().insert(group.0, found);
            return Ok(found);
        }
        if let Some((stored, wrong_sum)) = self.with_wrong_sum(own, group, &damage).await? {
            self.note(Err(wrong_sum))?;
            return Ok(stored);
        }
        let (block, at) = self.descriptor(own, group).await?;
        let descriptor = GroupDescriptor::parse(&block[at..], self.superblock(), group)?;
        // Only its locations look wrong.
        self.note(check_places(&descriptor, self.superblock(), group))?;
        Ok(descriptor)
    }

    /// A group's own descriptor, if nothing but its checksum is wrong.
    async fn with_wrong_sum(
        &self,
        own: VolumeBlock,
        group: Group,
        damage: &Error,
    ) -> Result<Option<(GroupDescriptor, Corrupt)>> {
        let Error::Corrupt(corrupt @ Corrupt { problem: Problem::Checksum { .. }, .. }) = damage else {
            return Ok(None);
        };
        let (block, at) = self.descriptor(own, group).await?;
        Ok(Some((GroupDescriptor::parse_unchecked(&block[at..], self.superblock(), group)?, *corrupt)))
    }

    /// The descriptor of a group in this block, if nothing is wrong with it.
    async fn sound_descriptor(&self, at: VolumeBlock, group: Group) -> Result<GroupDescriptor> {
        let sb = self.superblock();
        let (block, at) = self.descriptor(at, group).await?;
        let descriptor = GroupDescriptor::parse(&block[at..], sb, group)?;
        check_places(&descriptor, sb, group)?;
        Ok(descriptor)
    }
}

fn same_places(a: &GroupDescriptor, b: &GroupDescriptor) -> bool {
    let places = |of: &GroupDescriptor| (of.block_bitmap, of.inode_bitmap, of.inode_table);
    places(a) == places(b)
}

/// Checks locations as Linux does (`ext4_check_descriptors`). Without checksums, zeroes and other
/// garbage may look like blocks of the volume.
fn check_places(
    descriptor: &GroupDescriptor,
    sb: &Superblock,
    group: Group,
) -> std::result::Result<(), Corrupt> {
    let superblock = 1024 >> sb.block_size().log2();
    let (first, blocks) = (sb.group_first_block(group).0, u64::from(sb.group_blocks(group)));
    let table_blocks = inode_table_blocks(sb).into();
    for (field, at, len) in [
        ("bg_block_bitmap", descriptor.block_bitmap.0, 1),
        ("bg_inode_bitmap", descriptor.inode_bitmap.0, 1),
        ("bg_inode_table", descriptor.inode_table.0, table_blocks),
    ] {
        let bad = |rule| Err(Corrupt::field(Place::GroupDescriptor(group), field, at, rule));
        if at <= superblock {
            return bad("behind the superblock");
        }
        let in_group = at >= first && at + len <= first + blocks;
        if !sb.incompat().contains(Incompat::FLEX_BG) && !in_group {
            return bad("within the group, without flex_bg");
        }
    }
    Ok(())
}
