//! Batches that change the image only if all of their commands succeed.

use super::{Stopped, close, close_by, open_on};
use crate::edit_args::LockArgs;
use crate::failure::Failure;
use crate::session::Session;
use extant::Volume;
use extant_block::Deferred;
use extant_fs::quote;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

/// Like [`super::batch`], but keeps all changes in memory until `work` has succeeded and the volume
/// is closed. Otherwise the image stays as it was to the byte.
pub(super) fn batch(
    session: &mut Session,
    image: &Path,
    lock: LockArgs,
    work: impl FnOnce(&Session, &Volume) -> Result<(), Stopped>,
) -> Result<(), Failure> {
    let device = session.device_to_change(image, lock.foreign_locks())?;
    let device = Arc::new(Deferred::new(device, memory_bytes()));
    let volume = open_on(session, image, device.clone())?;
    if let Err(stopped) = work(session, &volume) {
        // Whether the close succeeds does not matter: nothing of it reaches the image.
        let _ = close_by(session, image, &volume, Volume::give_up);
        return Err(*stopped.failure);
    }
    close(session, image, &volume)?;
    drop(volume);
    let place = quote(image.as_os_str().as_bytes());
    let applied = session.rt.block_on(device.apply())?;
    applied.map_err(|error| Failure::Volume { place, error: error.into() })
}

/// Half of the memory that the host can spare, or 1 GiB where it does not say.
fn memory_bytes() -> u64 {
    let told = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let available = told.lines().find_map(|line| {
        let kib: u64 = line.strip_prefix("MemAvailable:")?.trim().strip_suffix(" kB")?.parse().ok()?;
        Some(kib << 10)
    });
    available.map_or(1 << 30, |bytes| bytes / 2)
}
