//! Recovery of a volume: replays the journal and finishes orphans.

use super::mmp::Protection;
use super::mount::known_errors;
use super::{OpenOptions, Volume, WriteOptions};
use crate::recovery::{Recovery, replay};
use crate::view::{View, check_readable, check_whole};
use crate::{Error, Result};
use extant_block::{Device, Exclusive, IoError, IoErrorKind, Op, Sector};
use extant_cache::{CacheConfig, PageCache};
use extant_format::{Compat, Incompat, STATE_ERROR, STATE_VALID};
use extant_rt::Rt;
use std::sync::Arc;

/// Memory of the cache used to finish orphans, in bytes.
const CACHE_BYTES: u64 = 8 << 20;

/// Replays a dirty journal on disk, finishes inodes that were deleted or truncated while open, and
/// marks the volume clean.
///
/// Copies are written home and flushed before the journal is emptied; that is flushed before the
/// volume is marked as needing no recovery. Each orphan is finished in transactions of its own.
/// Recovery can be interrupted at any point and run again. The superblock's free counts are
/// recomputed from the group descriptors, as e2fsck does.
///
/// Orphans stay ([`Recovery::has_orphans`]) on a volume with known errors or with features that
/// cannot be written. Damaged orphans also stay, and [`Recovery::problems`] says why.
///
/// # Errors
/// Refuses by name, without writing anything, a journal on another device, with fast commits to
/// replay, or with unknown features. [`Error::Busy`] while a writer claims the device,
/// [`Error::Locked`] if another program has locked it. Also refuses a volume without a journal that
/// was not closed cleanly, and one with multiple-mount protection that is mounted elsewhere, which
/// takes some seconds to find out.
pub async fn recover(rt: &Rt, device: Arc<dyn Device>, options: OpenOptions) -> Result<Recovery> {
    // While a writer is active, its volume is marked as needing recovery and its log is in use.
    let own: Arc<dyn Device> = Arc::new(Exclusive::new(device.clone()));
    let claim = super::mount::claim(&*own)?;
    let found = crate::read_superblock(&*own, options.superblock_offset.unwrap_or(1024)).await?;
    if !found.compat().contains(Compat::HAS_JOURNAL) && found.raw().s_state.get() & STATE_VALID == 0 {
        let feature = "a volume without a journal that was not closed cleanly".into();
        return Err(Error::Unsupported { feature, hint: "; run e2fsck, for there is nothing to replay" });
    }
    let protection = match found.incompat().contains(Incompat::RECOVER) {
        true => {
            // Before anything is written. The replay itself reports a damaged superblock.
            if found.verify_checksum().is_ok() && check_readable(&found).is_ok() {
                check_whole(&*own, &found)?;
            }
            Protection::hold(rt, &own, &found, rt.wall_clock()).await?
        }
        false => None,
    };
    let replayed = replay(own.clone(), options).await;
    if let Some(protection) = protection {
        protection.release(rt.wall_clock()).await?;
    }
    let mut recovery = replayed?;
    if !recovery.has_orphans || options.superblock_offset.is_some() {
        return Ok(recovery);
    }
    let raw = View::open(own.clone(), options).await?;
    let state = raw.superblock().raw().s_state.get();
    if state & STATE_ERROR != 0 {
        recovery.problems.push(known_errors(state));
        return Ok(recovery);
    }
    drop(raw);
    let cache = PageCache::new(rt, CacheConfig::with_budget(CACHE_BYTES)).map_err(|error| {
        let kind = IoErrorKind::Os(error.raw_os_error().unwrap_or(0));
        let device = device.limits().name.clone();
        IoError { device, op: Op::Read, start: Sector(0), bytes: CACHE_BYTES, kind }
    })?;
    let disk = cache.attach(own);
    // Change nothing but the orphans: no mount time or count.
    let options = WriteOptions { commit_interval: None, ..WriteOptions::default() };
    // Pass the claim on, so that no other writer opens the volume after the replay, before the
    // orphans are finished.
    match Volume::open_claimed(rt, &disk, options, claim).await {
        Ok(volume) => {
            (recovery.orphans, recovery.has_orphans) = volume.orphans();
            volume.clone().close().await?;
            recovery.problems = volume.problems();
        }
        Err(Error::Unsupported { .. }) => {}
        Err(other) => return Err(other),
    }
    // Its errors were returned when the volume was closed.
    let _ = cache.close().await;
    Ok(recovery)
}
