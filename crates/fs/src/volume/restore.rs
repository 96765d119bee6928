//! Puts the first superblock and descriptors back from a backup.

use super::mmp::Protection;
use super::{OpenOptions, Volume};
use crate::recovery::Log;
use crate::view::{Damage, DescriptorSource, View, check_whole};
use crate::{Error, Result};
use extant_block::{Buf, Device, Exclusive, Sector};
use extant_format::{
    Compat, Corrupt, Group, GroupFlags, Incompat, Place, RoCompat, STATE_ERROR, STATE_VALID,
    SUPERBLOCK_BYTES, Superblock, UintExt, VolumeBlock,
};
use extant_rt::Rt;
use std::sync::Arc;

/// What [`restore`] has put back.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Restored {
    /// Byte offset of the backup that replaced the first superblock; `None` if that was sound.
    pub superblock_from: Option<u64>,
    /// Groups whose descriptors were replaced by copies.
    pub descriptors: u32,
    /// Groups without a sound descriptor anywhere.
    pub lost_descriptors: u32,
}

impl Restored {
    /// Whether nothing was written.
    pub fn is_nothing(&self) -> bool {
        self.superblock_from.is_none() && self.descriptors == 0
    }
}

/// Replaces the first superblock with the backup at byte `at`. If `at` is `None`, replaces it only
/// if it is damaged, with the first sound backup. Damaged descriptors in the table that follows it
/// are replaced with their copies.
///
/// Counts and flags of a backup are as old as the backup. The volume is therefore marked as having
/// errors, so that the next check looks at all of it. If the journal's log is not empty, the
/// superblock says so, and [`recover`](crate::recover()) replays it. It can be interrupted anywhere
/// and run again.
///
/// # Errors
/// There is no sound backup, or none of this volume at byte `at`; the first superblock is sound and
/// belongs to another volume; or the journal is on another device. [`Error::Busy`],
/// [`Error::Locked`] and [`Error::InUse`] if the volume is in use. Nothing is written in these
/// cases. [`Error::Io`] if the device fails; then run it again.
pub async fn restore(rt: &Rt, device: Arc<dyn Device>, at: Option<u64>) -> Result<Restored> {
    let own: Arc<dyn Device> = Arc::new(Exclusive::new(device));
    let _claim = super::mount::claim(&*own)?;
    let options = OpenOptions { damage: Damage::Report, superblock_offset: at, ignore_journal: true };
    let view = match at {
        None => View::open_sound(own.clone(), options).await?,
        Some(_) => View::open_to_read(own.clone(), options).await?,
    };
    let sb = view.superblock();
    check_whole(&*own, sb)?;
    let is_backup = view.is_backup();
    if is_backup {
        sb.verify_checksum()?;
        check_place(sb, view.superblock_bytes_at())?;
        refuse_other(&own, sb).await?;
        // A superblock may be left over from an earlier volume.
        view.root().await?;
        if sb.compat().contains(Compat::HAS_JOURNAL) && sb.journal_inode().is_none() {
            return Err(Error::unsupported("a backup of a volume whose journal is on another device"));
        }
    }
    let protection = Protection::hold(rt, &own, sb, rt.wall_clock()).await?;
    let restored = write(&own, &view, is_backup).await;
    let released = match protection {
        Some(protection) => protection.release(rt.wall_clock()).await,
        None => Ok(()),
    };
    restored.and_then(|restored| released.map(|()| restored))
}

async fn write(own: &Arc<dyn Device>, view: &View, is_backup: bool) -> Result<Restored> {
    let mut restored = Restored::default();
    let blocks = descriptors(own, view, &mut restored).await?;
    if blocks.is_empty() && !is_backup {
        return Ok(restored);
    }
    let mut sb = view.superblock().clone();
    let raw = sb.raw_mut();
    raw.s_block_group_nr = 0.into();
    raw.s_state = ((raw.s_state.get() & !STATE_VALID) | STATE_ERROR).into();
    if is_backup {
        restored.superblock_from = Some(view.superblock_bytes_at());
        let mut incompat = sb.incompat() - Incompat::RECOVER;
        if has_log(view).await? {
            incompat |= Incompat::RECOVER;
        }
        sb.raw_mut().s_feature_incompat = incompat.bits().into();
        // It is unknown whether the orphan file is empty. Without the flag a check still finds its
        // entries; with the flag, an empty file would be an error to e2fsck.
        let ro_compat = sb.ro_compat() - RoCompat::ORPHAN_PRESENT;
        sb.raw_mut().s_feature_ro_compat = ro_compat.bits().into();
    }
    sb.update_checksum();
    // A sound first superblock is marked with errors before it gets outdated descriptors. A lost
    // one is written last, because it makes the volume valid again.
    if !is_backup {
        superblock(own, &sb).await?;
    }
    for (home, block) in blocks {
        extant_block::write(&**own, home, block).await?;
    }
    extant_block::flush(&**own).await?;
    if is_backup {
        superblock(own, &sb).await?;
    }
    Ok(restored)
}

/// Writes the first superblock, durably.
async fn superblock(own: &Arc<dyn Device>, sb: &Superblock) -> Result<()> {
    let block_bytes = sb.block_size().byte_len();
    let home = VolumeBlock(1024 / block_bytes.to_u64());
    let at = 1024 % block_bytes;
    let mut bytes = extant_block::read(&**own, sector(sb, home), block_bytes).await?;
    bytes[at..at + SUPERBLOCK_BYTES].copy_from_slice(sb.as_bytes());
    extant_block::write(&**own, sector(sb, home), bytes).await?;
    Ok(extant_block::flush(&**own).await?)
}

/// The first descriptor blocks that are damaged, with sound descriptors copied into them.
async fn descriptors(
    own: &Arc<dyn Device>,
    view: &View,
    restored: &mut Restored,
) -> Result<Vec<(Sector, Buf)>> {
    let sb = view.superblock();
    let block_bytes = sb.block_size().byte_len();
    let per_block = sb.descriptors_per_block();
    let mut blocks = Vec::new();
    for index in 0..sb.group_count().div_ceil(per_block) {
        let first = index * per_block;
        let groups = first..first.saturating_add(per_block).min(sb.group_count());
        let home = sector(sb, sb.descriptor_block(index));
        let (mut copied, mut is_sound) = (Vec::new(), false);
        for group in groups.map(Group) {
            match view.descriptor_source(group).await {
                DescriptorSource::Primary => is_sound = true,
                DescriptorSource::Nowhere => restored.lost_descriptors += 1,
                DescriptorSource::Backup => copied.push(group),
            }
        }
        if copied.is_empty() {
            continue;
        }
        let mut block = match extant_block::read(&**own, home, block_bytes).await {
            Ok(block) => block,
            // Sound descriptors in the block must stay.
            Err(error) if is_sound => return Err(error.into()),
            Err(_) => Buf::zeroed(block_bytes),
        };
        for group in copied {
            let mut descriptor = view.group(group).await?;
            // As libext2fs does for backups: their flags for parts that were never used may be
            // outdated.
            descriptor.flags -= GroupFlags::BLOCK_UNINIT | GroupFlags::INODE_UNINIT;
            descriptor.unused_inodes = 0;
            let at = (group.0 - first).to_usize() * sb.descriptor_size();
            descriptor.write_to(&mut block[at..at + sb.descriptor_size()], sb, group);
            restored.descriptors += 1;
        }
        blocks.push((home, block));
    }
    Ok(blocks)
}

/// Whether the log has transactions. A damaged log counts as empty; a check reports it.
async fn has_log(view: &View) -> Result<bool> {
    if !view.superblock().compat().contains(Compat::HAS_JOURNAL) {
        return Ok(false);
    }
    match Log::open(view).await {
        Ok(log) => Ok(log.is_some_and(|log| log.sb.start().is_some())),
        Err(error @ Error::Io(_)) => Err(error),
        Err(_) => Ok(false),
    }
}

/// Fails if the backup belongs to a volume that begins elsewhere, such as an image in a file.
fn check_place(sb: &Superblock, at: u64) -> Result<()> {
    let mut numbered = sb.clone();
    // Old versions of mke2fs left the number 0.
    if numbered.raw().s_block_group_nr.get() == 0 {
        let block = (at >> sb.block_size().log2()).saturating_sub(sb.first_data_block().0);
        let group = u16::try_from(block / u64::from(sb.blocks_per_group())).unwrap_or(0);
        numbered.raw_mut().s_block_group_nr = group.into();
    }
    match numbered.is_backup_at(at) {
        true => Ok(()),
        false => {
            let number = sb.raw().s_block_group_nr.get().into();
            let rule = "the group of this backup: it belongs to a volume that begins elsewhere";
            Err(Corrupt::field(Place::Superblock, "s_block_group_nr", number, rule).into())
        }
    }
}

/// Fails if the first superblock is sound and has another UUID: then an earlier volume left the
/// backup.
async fn refuse_other(own: &Arc<dyn Device>, sb: &Superblock) -> Result<()> {
    let options = OpenOptions { damage: Damage::Report, superblock_offset: None, ignore_journal: true };
    match View::open_sound(own.clone(), options).await {
        Ok(first) if !first.is_backup() && first.superblock().uuid() != sb.uuid() => Err(Error::Invalid(
            "the first superblock is sound and has another UUID than this backup, which an earlier volume left"
                .into(),
        )),
        _ => Ok(()),
    }
}

fn sector(sb: &Superblock, block: VolumeBlock) -> Sector {
    Sector(block.0 << (sb.block_size().log2() - 9))
}

impl Volume {
    /// Whether the superblock is a backup, where the first one is damaged or another was chosen.
    pub fn is_from_backup(&self) -> bool {
        self.view.is_backup()
    }
}
