//! Keeps other hosts off a volume while it is repaired.

use super::below::Below;
use crate::limits::Limits;
use crate::open::{PRIMARY_OFFSET, find_backup, read_at};
use extant_block::{Deferred, Device, Sector, read};
use extant_format::{Incompat, Superblock, VolumeBlock};
use extant_fs::{Error, Protection};
use extant_rt::{Nanos, Rt};
use std::sync::Arc;

/// Memory for the blocks of a guard that does not write, in bytes.
const LOOK_BYTES: u64 = 1 << 20;
/// How long to watch a damaged block: twice the default update interval, plus a second.
const WATCHED: Nanos = Nanos::from_secs(11);

/// Holds a volume's multiple-mount protection during a repair, and keeps counting until it is
/// released or dropped. If it is dropped, the next user of the volume has to wait some seconds.
#[derive(Debug)]
pub struct Guard {
    rt: Rt,
    protection: Option<Protection>,
    at_bytes: u64,
}

impl Guard {
    /// The guard of a volume that no other host can reach, such as a copy in memory.
    pub fn unshared(rt: &Rt) -> Self {
        Self { rt: rt.clone(), protection: None, at_bytes: 0 }
    }

    /// Takes the volume on `device`, which the caller has claimed. On a volume without protection,
    /// there is nothing to hold. With `writes` false, only looks for other users, and writes
    /// nothing.
    ///
    /// A damaged protection block that does not change for some seconds is ignored.
    ///
    /// # Errors
    /// Another host uses the volume, which may take some seconds to find out.
    pub async fn take(rt: &Rt, device: &Arc<dyn Device>, writes: bool) -> Result<Self, Error> {
        let free = Self::unshared(rt);
        let any: Arc<dyn Device> = Arc::new(Below::new(device.clone()));
        let Some(sb) = protected(&any).await else { return Ok(free) };
        let at = VolumeBlock(sb.raw().s_mmp_block.get());
        if at.0 == 0 || !sb.is_valid_block(at) {
            return Ok(free);
        }
        let own: Arc<dyn Device> = match writes {
            true => device.clone(),
            false => Arc::new(Deferred::new(any, LOOK_BYTES)),
        };
        match Protection::hold(rt, &own, &sb, rt.wall_clock()).await {
            Ok(protection) => Ok(Self { protection, at_bytes: at.0 << sb.block_size().log2(), ..free }),
            Err(Error::Corrupt(_)) => {
                let start = Sector::containing(at.0 << sb.block_size().log2());
                let before = read(&*own, start, sb.block_size().byte_len()).await?;
                rt.sleep(WATCHED).await;
                match read(&*own, start, sb.block_size().byte_len()).await?[..] == before[..] {
                    true => Ok(free),
                    // The host's name cannot be read.
                    false => Err(Error::InUse { by: "a program".into(), host: "an unknown host".into() }),
                }
            }
            Err(error) => Err(error),
        }
    }

    /// Byte offset of the block that the guard counts in.
    pub fn counter_at(&self) -> Option<u64> {
        self.protection.is_some().then_some(self.at_bytes)
    }

    /// Whether the volume is still ours.
    ///
    /// # Errors
    /// Another host has taken the volume, or may have, because this process stood still for too
    /// long.
    pub fn check(&self) -> Result<(), Error> {
        self.protection.as_ref().map_or(Ok(()), Protection::check)
    }

    /// Releases the volume, after everything was written.
    ///
    /// # Errors
    /// Another host has taken the volume, or the block cannot be written.
    pub async fn release(self) -> Result<(), Error> {
        match self.protection {
            Some(protection) => protection.release(self.rt.wall_clock()).await,
            None => Ok(()),
        }
    }
}

/// Returns the superblock, or a backup if it is damaged; `None` if the volume has no protection.
async fn protected(device: &Arc<dyn Device>) -> Option<Superblock> {
    let limits = Arc::new(Limits::new(None, Default::default()));
    let bytes = read_at(device, &limits, PRIMARY_OFFSET).await;
    let primary = bytes.as_ref().and_then(|bytes| Superblock::parse(bytes).ok());
    let is_protected = |sb: &Superblock| sb.incompat().contains(Incompat::MMP);
    match primary {
        Some(sb) if is_protected(&sb) => Some(sb),
        Some(sb) if sb.verify_checksum().is_ok() => None,
        _ => find_backup(device, &limits, bytes.as_ref()).await.map(|(sb, _)| sb).filter(is_protected),
    }
}
