//! Opens a volume whose superblock and descriptors may be lost.

use super::{RescueOptions, group_descriptors, shape, superblocks, sweep::patched};
use extant_block::Mended;
use extant_format::{InodeNumber, Superblock};
use extant_fs::{Damage, Error, OpenOptions, Volume};
use std::sync::Arc;

/// Maximum number of superblocks of each kind with which to try to open a volume.
const TRIES_MAX: usize = 8;

/// A volume to rescue, and what had to be done to open it.
pub(super) struct Opened {
    pub(super) volume: Volume,
    /// What had to be done, as sentences without full stops.
    pub(super) notes: Vec<String>,
    /// Whether the root directory seems to be readable.
    has_root: bool,
}

/// Opens the volume on `device` with whatever is left of it.
///
/// # Errors
/// No volume can be found; an unsupported feature.
pub(super) async fn open(device: &Mended, options: &RescueOptions) -> Result<Opened, Error> {
    let first = try_at(device, options, options.superblock_offset).await;
    let damage = match first {
        Ok(opened) if opened.has_root || options.superblock_offset.is_some() => return Ok(opened),
        // A superblock with a right checksum is the volume's own, and a search would find nothing
        // better.
        Ok(opened) if is_certain(opened.volume.superblock()) => return Ok(opened),
        Ok(opened) => Ok(opened),
        Err(error @ (Error::Corrupt(_) | Error::Io(_))) if options.superblock_offset.is_none() => Err(error),
        Err(error) => return Err(error),
    };
    let copies = superblocks::search(device).await;
    let mut rootless = None;
    for (at, _) in copies.backups.iter().take(TRIES_MAX) {
        let Ok(mut opened) = try_at(device, options, Some(*at)).await else { continue };
        opened.notes.insert(0, format!("the superblock is lost; its backup at byte {at} is used"));
        if opened.has_root {
            return Ok(opened);
        }
        rootless.get_or_insert(opened);
    }
    for sb in copies.strays.iter().take(TRIES_MAX) {
        let with = with_superblock(device, sb).await;
        let Ok(mut opened) = try_at(&with, options, None).await else { continue };
        if opened.has_root {
            let told = "the superblock is lost; a copy of it in the journal is used";
            opened.notes.insert(0, told.into());
            return Ok(opened);
        }
    }
    if let Some((with, told)) = shape::derived(device).await {
        for ignore_journal in [options.ignore_journal, true] {
            let options = RescueOptions { ignore_journal, ..options.clone() };
            let Ok(mut opened) = try_at(&with, &options, None).await else { continue };
            opened.notes.insert(0, told.clone());
            if opened.has_root {
                return Ok(opened);
            }
            rootless.get_or_insert(opened);
        }
    }
    match (damage, rootless) {
        (_, Some(opened)) | (Ok(opened), None) => Ok(opened),
        (Err(damage), None) => Err(match copies.elsewhere.first() {
            Some(at) => Error::Invalid(format!(
                "{damage}; a volume seems to begin at byte {at}, where --offset {at} finds it"
            )),
            None => damage,
        }),
    }
}

fn is_certain(sb: &Superblock) -> bool {
    sb.has_metadata_csum() && sb.verify_checksum().is_ok()
}

/// Opens the volume with the superblock at `offset`, or with the usual one.
async fn try_at(device: &Mended, options: &RescueOptions, offset: Option<u64>) -> Result<Opened, Error> {
    let (volume, note) = plainly(device, options, offset).await?;
    let mut opened = Opened { volume, notes: note.into_iter().collect(), has_root: false };
    if let Some((mended, rebuilt)) = group_descriptors::rebuilt(&opened.volume, device).await {
        opened.volume = plainly(&mended, options, offset).await?.0;
        opened.notes.push(format!(
            "the descriptors of {} groups are lost in all copies; {} inode tables are where mke2fs puts them, {} were \
             found by their inodes, and {} not at all",
            rebuilt.at_default + rebuilt.found + rebuilt.unknown,
            rebuilt.at_default,
            rebuilt.found,
            rebuilt.unknown
        ));
    }
    opened.has_root = match opened.volume.root().await {
        Ok(root) => {
            matches!(opened.volume.lookup(&root, b".").await, Ok(Some(InodeNumber::ROOT)))
        }
        Err(_) => false,
    };
    Ok(opened)
}

/// Opens the volume; if its journal is not supported, without the journal.
async fn plainly(
    device: &Mended,
    options: &RescueOptions,
    offset: Option<u64>,
) -> Result<(Volume, Option<String>), Error> {
    let open = |ignore_journal| {
        let options = OpenOptions { damage: Damage::Report, superblock_offset: offset, ignore_journal };
        Volume::open(Arc::new(device.clone()), options)
    };
    match open(options.ignore_journal).await {
        Err(error @ Error::Unsupported { .. }) if !options.ignore_journal => match open(true).await {
            Ok(volume) => Ok((volume, Some(format!("the journal is left aside: {error}")))),
            Err(_) => Err(error),
        },
        opened => Ok((opened?, None)),
    }
}

/// Returns `device` with this primary superblock.
async fn with_superblock(device: &Mended, sb: &Superblock) -> Mended {
    patched(device.clone(), sb.block_size().byte_len(), 1024, sb.as_bytes()).await
}
