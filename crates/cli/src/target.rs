//! Where a new volume goes: into a new file, or, in place, onto a device, into a part of a disk or
//! into an existing file.

use crate::edit_args::TargetArgs;
use crate::failure::Failure;
use crate::parts;
use crate::session::Session;
use extant::Part;
use extant_image::{BuildError, InPlace, Target};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

/// The device to write a volume into; `None` for a file, which a new one replaces. Without
/// `keeps_file`, an existing file is written in place, too.
pub(crate) fn in_place(
    session: &Session,
    image: &Path,
    part: &Part,
    keeps_file: bool,
    args: &TargetArgs,
) -> Result<Option<InPlace>, Failure> {
    let there = image.metadata().ok();
    let is_disk = there.as_ref().is_some_and(|file| file.file_type().is_block_device());
    let is_file = there.is_some_and(|file| file.is_file());
    if !is_disk && !extant::is_address(image) && *part == Part::Whole && (keeps_file || !is_file) {
        return match args.discard {
            true => Err(Failure::Usage(
                "--discard is of what is written in place: disks, partitions and exports; a new file has holes".into(),
            )),
            false => Ok(None),
        };
    }
    let device = session.device_to_fill(image, part, is_disk, args.foreign_locks())?;
    let name = parts::described(image, part);
    Ok(Some(InPlace { device, name, overwrite: args.force, discard: args.discard }))
}

/// The target of a command that writes a new volume.
pub(crate) fn of(image: &Path, in_place: Option<InPlace>, args: &TargetArgs) -> Target {
    match in_place {
        Some(place) => Target::Place(place),
        None => Target::File { path: image.to_owned(), foreign: args.foreign_locks() },
    }
}

/// The failure of writing a volume, with advice.
pub(crate) fn failure(error: BuildError, is_in_place: bool) -> Failure {
    match error {
        BuildError::TooSmall { .. } if is_in_place => {
            Failure::Advised { error, advice: "name a larger disk or partition, or ask for less" }
        }
        BuildError::Occupied { .. } => Failure::Advised { error, advice: "--force writes over it" },
        BuildError::SeveralImages { .. } => {
            Failure::Advised { error, advice: "choose one with --image or --platform" }
        }
        error => error.into(),
    }
}
