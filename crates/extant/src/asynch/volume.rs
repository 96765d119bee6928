//! A volume and its states: open, synced, closed.

use super::Dir;
use crate::sys::Sys;
use crate::{Caller, Error, OpenOptions, Result, Statfs, Time};
use extant_block::Device;
use extant_rt::Rt;
use std::ops::Range;
use std::sync::Arc;

/// A volume, open for reading or writing. Cheap to clone; clones are the same volume.
///
/// Dropping the last clone without [`Volume::close`] is what a power cut is: synced changes stay, others may be lost.
#[derive(Clone, Debug)]
pub struct Volume {
    pub(crate) sys: Sys,
}

impl Volume {
    /// Opens the volume on a device; see [`OpenOptions`].
    ///
    /// # Errors
    /// The device fails; what lies on it is damaged, is no volume, or uses a feature that is not supported.
    pub async fn open(rt: &Rt, device: Arc<dyn Device>, options: &OpenOptions) -> Result<Self> {
        Ok(Self { sys: Sys::open(rt, device, options).await? })
    }

    /// The root directory.
    pub fn root(&self) -> Dir {
        Dir::new(self.sys.clone(), self.sys.root().clone())
    }

    /// The same volume as another caller sees it.
    #[must_use]
    pub fn as_caller(&self, caller: Caller) -> Self {
        Self { sys: self.sys.with_caller(caller) }
    }

    /// Gives free space in a range of the volume's bytes back to its device (`FITRIM`): the blocks of a file that holds the
    /// volume become holes. Runs of fewer than `min_bytes` are left as they are. The block in which the range begins goes
    /// with it. Returns how many bytes that was.
    ///
    /// # Errors
    /// The range has no whole block of the volume; the device cannot, or fails.
    pub async fn trim(&self, range: Range<u64>, min_bytes: u64) -> Result<u64> {
        self.sys.trim(range, min_bytes).await
    }

    /// Makes durable all that was done before the call.
    ///
    /// # Errors
    /// Something could not be written.
    pub async fn sync(&self) -> Result<()> {
        self.sys.sync().await
    }

    /// Damage met so far that did not stop an operation, and what the operation could not do because of it: a file whose
    /// map is damaged loses its name, and its blocks stay in use until e2fsck frees them. Each problem once. To hear of
    /// those that [`Volume::close`] meets, ask a clone after it.
    pub fn problems(&self) -> Vec<Error> {
        self.sys.problems()
    }

    /// The volume of `extant-fs` below, for reading what has no form here: inodes, maps, structures as text. It shows what was
    /// changed last, and fails like other clones once the volume is closed.
    pub fn stored(&self) -> &extant_fs::Volume {
        self.sys.stored()
    }

    /// The first and the last time that an inode of this volume stores; of times beyond them the nearest is stored.
    pub fn time_range(&self) -> (Time, Time) {
        self.sys.time_range()
    }

    /// Sizes and what is free.
    pub fn statfs(&self) -> Statfs {
        self.sys.statfs()
    }

    /// Writes everything, leaves an empty journal and ends. Operations through clones, directories and files fail from then on;
    /// a write beside this is kept, or fails. The image may be opened again while those live; a block device of the host is
    /// claimed, and the cache keeps its memory, until the last of them is dropped.
    ///
    /// # Errors
    /// Something could not be written. Where that is data of a file, the volume is clean, and the file lacks them; otherwise the
    /// volume is as after a power cut.
    pub async fn close(self) -> Result<()> {
        self.sys.close().await
    }
}
