//! Batches that change the image only if all of their commands succeed.

use super::{Stopped, close, close_by, open_on};
use crate::edit_args::LockArgs;
use crate::failure::Failure;
use crate::session::Session;
use extant::Volume;
use extant_block::Deferred;
use std::path::Path;
use std::sync::Arc;

/// Like [`super::batch`], but keeps all changes in memory until `work` has succeeded and the volume
/// is closed. Otherwise no byte of the image changes.
pub(super) fn batch(
    session: &mut Session,
    image: &Path,
    lock: LockArgs,
    work: impl FnOnce(&Session, &Volume) -> Result<(), Stopped>,
) -> Result<(), Failure> {
    let device = session.device_to_change(image, lock.foreign_locks())?;
    let most_bytes = memory_bytes();
    let device = Arc::new(Deferred::new(device, most_bytes));
    let volume = open_on(session, image, device.clone())?;
    let done = match work(session, &volume) {
        Ok(()) => close(session, image, &volume),
        Err(stopped) => {
            // Whether this succeeds does not matter: none of the changes reaches the image.
            let _ = close_by(session, image, &volume, Volume::give_up);
            Err(*stopped.failure)
        }
    };
    drop(volume);
    let of_image = |what: String| Failure::host(image, std::io::Error::other(what));
    if device.is_full() {
        let most = most_bytes >> 20;
        return Err(of_image(format!(
            "the changes take more than the {most} MiB of memory that --atomic may use; the image is as it was"
        )));
    }
    done?;
    session.rt.block_on(device.apply())?.map_err(|error| {
        of_image(format!("{error}; some of the changes had been made by then: run extant check on it"))
    })
}

/// Half of the memory that the host can spare, or 1 GiB if the host does not say.
fn memory_bytes() -> u64 {
    let told = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let available = told.lines().find_map(|line| {
        let kib: u64 = line.strip_prefix("MemAvailable:")?.trim().strip_suffix(" kB")?.parse().ok()?;
        Some(kib << 10)
    });
    available.map_or(1 << 30, |bytes| bytes / 2)
}
