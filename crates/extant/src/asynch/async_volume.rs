//! A volume, from opening to closing.

use super::Dir;
#[cfg(feature = "check")]
use crate::check::{self, CheckError};
use crate::place::place_error;
use crate::sys::Sys;
use crate::{Caller, Error, OpenOptions, Result, Statfs, Time, open_place};
use extant_block::{Device, ForeignLocks};
use extant_rt::{Nanos, Rt};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

/// Opening a busy volume is retried for a second: a dropped volume releases its device in the
/// background.
const CLAIM_TRIES: u32 = 20;
const CLAIM_PAUSE: Nanos = Nanos::from_millis(50);

/// A volume, open for reading or writing.
///
/// Cheap to clone; clones are the same volume. Dropping the last clone without [`Volume::close`]
/// acts like a power cut: synced changes stay, others may be lost.
#[derive(Clone, Debug)]
pub struct Volume {
    pub(crate) sys: Sys,
    #[cfg(feature = "check")]
    for_check: ForCheck,
}

/// What a check of an open volume needs.
#[cfg(feature = "check")]
#[derive(Clone, Debug)]
struct ForCheck {
    rt: Rt,
    device: Arc<dyn Device>,
    is_written: bool,
}

impl Volume {
    /// Opens a volume as [`crate::Volume::open`] does. Its I/O is done by threads of its own, so
    /// the future, and all that the volume returns, may be awaited on any executor.
    ///
    /// # Errors
    /// Same as [`crate::Volume::open`].
    pub async fn open(path: impl AsRef<Path>, options: &OpenOptions) -> Result<Self> {
        Self::open_on(&Rt::real(extant_rt::RealConfig::default()), path.as_ref(), options).await
    }

    /// Opens a volume in a world that exists already.
    pub(crate) async fn open_on(rt: &Rt, path: &Path, options: &OpenOptions) -> Result<Self> {
        let file = extant_block::FileOptions { write: options.write, direct: options.direct };
        let foreign = match options.override_locks {
            true => ForeignLocks::Override,
            false => ForeignLocks::Honour,
        };
        let mut tries = 1;
        loop {
            let opened = open_place(rt, path, &options.part, file, foreign).await;
            let device = opened.map_err(|error| place_error(path, error))?;
            match Self::open_device(rt, device, options).await {
                Err(Error::Busy(_)) if tries < CLAIM_TRIES => {
                    tries += 1;
                    rt.sleep(CLAIM_PAUSE).await;
                }
                opened => return opened,
            }
        }
    }

    /// Opens the volume on a device; see [`OpenOptions`].
    ///
    /// # Errors
    /// The device fails; or its contents are damaged, are not a volume, or use an unsupported
    /// feature.
    pub async fn open_device(rt: &Rt, device: Arc<dyn Device>, options: &OpenOptions) -> Result<Self> {
        let sys = Sys::open(rt, device.clone(), options).await?;
        Ok(Self {
            sys,
            #[cfg(feature = "check")]
            for_check: ForCheck { rt: rt.clone(), device, is_written: options.write },
        })
    }

    /// The root directory.
    pub fn root(&self) -> Dir {
        Dir::new(self.sys.clone(), self.sys.root().clone())
    }

    /// The same volume as seen by another caller.
    #[must_use]
    pub fn as_caller(&self, caller: Caller) -> Self {
        Self { sys: self.sys.with_caller(caller), ..self.clone() }
    }

    /// Discards free space in a range of the volume's bytes (`FITRIM`); in an image file the blocks
    /// become holes.
    ///
    /// Runs shorter than `min_bytes` are left alone. The block in which the range begins is
    /// included. Returns the number of bytes discarded.
    ///
    /// # Errors
    /// The range contains no whole block of the volume; or the device does not support discard, or
    /// fails.
    pub async fn trim(&self, range: Range<u64>, min_bytes: u64) -> Result<u64> {
        self.sys.trim(range, min_bytes).await
    }

    /// Looks for damage; see [`crate::Volume::check`].
    ///
    /// # Errors
    /// Same as [`crate::Volume::check`].
    #[cfg(feature = "check")]
    pub async fn check(&self, options: check::Options) -> std::result::Result<check::Checked, CheckError> {
        let ForCheck { rt, device, is_written } = &self.for_check;
        if *is_written {
            self.sync().await.map_err(CheckError::Sync)?;
        }
        let in_use = options.in_use || *is_written;
        // The newest blocks may be in the page cache only.
        let uncached = options.uncached.clone().filter(|_| !in_use);
        check::check(rt, device.clone(), check::Options { in_use, uncached, ..options }).await
    }

    /// Makes everything done before the call durable.
    ///
    /// # Errors
    /// Something could not be written.
    pub async fn sync(&self) -> Result<()> {
        self.sys.sync().await
    }

    /// Damage found so far that did not stop an operation, and what the operation could not do
    /// because of it.
    ///
    /// For example, a file with a damaged map loses its name, and its blocks stay in use until
    /// e2fsck frees them. Each problem is listed once. To get those found by [`Volume::close`], ask
    /// a clone afterwards.
    pub fn problems(&self) -> Vec<Error> {
        self.sys.problems()
    }

    /// The underlying `extant-fs` volume, for reading what this crate does not expose: inodes,
    /// maps, structures as text.
    ///
    /// It shows the latest changes, and fails like other clones once the volume is closed.
    pub fn stored(&self) -> &extant_fs::Volume {
        self.sys.stored()
    }

    /// Earliest and latest time that an inode of this volume can store. Times beyond them are
    /// clamped.
    pub fn time_range(&self) -> (Time, Time) {
        self.sys.time_range()
    }

    /// Sizes and what is free.
    pub fn statfs(&self) -> Statfs {
        self.sys.statfs()
    }

    /// Whether this is an offline batch ([`OpenOptions::offline`]) that has changed nothing so far.
    pub fn is_unchanged(&self) -> bool {
        self.sys.is_unchanged()
    }

    /// Like [`Volume::close`], but without the changes of an offline batch, as long as they are in
    /// memory only: every structure then stays as it was when the volume was opened. For a batch
    /// whose only operation has failed.
    ///
    /// # Errors
    /// As [`Volume::close`].
    pub async fn give_up(self) -> Result<()> {
        self.sys.give_up().await
    }

    /// Writes everything, leaves an empty journal and closes the volume.
    ///
    /// Afterwards operations through clones, directories and files fail; a concurrent write is
    /// either kept or fails. The image may be opened again while those handles live, but a host
    /// block device stays claimed, and the cache keeps its memory, until the last of them is
    /// dropped.
    ///
    /// # Errors
    /// Something could not be written. If that was file data, the volume is clean and the file
    /// lacks it; otherwise the volume is as after a power cut.
    pub async fn close(self) -> Result<()> {
        self.sys.close().await
    }
}
