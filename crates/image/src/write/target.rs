//! What a volume is written to: a new file, or a device in place.

use super::output::{Output, Replaced};
use super::place::ClaimedPlace;
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
    /// Claims a target, before anything that takes long.
    ///
    /// # Errors
    /// It is in use, or holds something that is not to be written over.
    pub(crate) fn claim(target: Target, rt: &Rt) -> Result<Self, BuildError> {
        match target {
            Target::File { path, foreign } => Replaced::claim(&path, foreign).map(Self::File),
            Target::New(path) => Replaced::unused(&path).map(Self::File),
            Target::Place(place) => ClaimedPlace::claim(place, rt).map(Self::Place),
        }
    }

    /// The options of a volume, fitted to the target.
    ///
    /// # Errors
    /// They ask for something that the target cannot have.
    pub(crate) fn fitted(&self, volume: &VolumeOptions) -> Result<VolumeOptions, BuildError> {
        match self {
            Self::File(_) => Ok(volume.clone()),
            Self::Place(place) => place.fitted(volume),
        }
    }

    /// Writes the volume, durably. Returns whether a discard was asked for that the target does not
    /// support.
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
