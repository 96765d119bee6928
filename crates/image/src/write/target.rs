//! Where a volume is written: a new file, or a device in place.

use super::in_place::ClaimedPlace;
use super::output::{Output, Replaced};
use super::pump::{Pieces, Progress, pump};
use crate::{BuildError, Target, VolumeOptions};
use extant_rt::Rt;
use std::sync::Arc;

/// A target that no one else writes.
pub(crate) enum Claimed {
    File(Replaced),
    Place(ClaimedPlace),
}

impl Claimed {
    /// Claims a target, before any work that takes long.
    ///
    /// # Errors
    /// The target is in use, or contains something that must not be overwritten.
    pub(crate) fn claim(target: Target, rt: &Rt) -> Result<Self, BuildError> {
        match target {
            Target::File { path, foreign } => Replaced::claim(&path, foreign).map(Self::File),
            Target::New(path) => Replaced::unused(&path).map(Self::File),
            Target::Place(place) => ClaimedPlace::claim(place, rt).map(Self::Place),
        }
    }

    /// Adapts the options of a volume to the target.
    ///
    /// # Errors
    /// The options request something that the target does not support.
    pub(crate) fn fitted(&self, volume: &VolumeOptions) -> Result<VolumeOptions, BuildError> {
        match self {
            Self::File(_) => Ok(volume.clone()),
            Self::Place(place) => place.fitted(volume),
        }
    }

    /// Writes the volume durably. Returns true if a discard was requested, but the target does not
    /// support it.
    ///
    /// # Errors
    /// The target is too small, or cannot be written.
    pub(crate) fn write<I: Pieces>(
        self,
        image: &Arc<I>,
        rt: &Rt,
        progress: Progress,
    ) -> Result<bool, BuildError> {
        match self {
            Self::File(replaced) => {
                let sb = image.superblock();
                let bytes = sb.blocks_count() << sb.block_size().log2();
                let output = Output::create(replaced, bytes, rt)?;
                pump(image, output.device(), rt, progress)?;
                output.commit(rt).map(|()| false)
            }
            Self::Place(place) => place.write(image, rt, progress),
        }
    }
}
