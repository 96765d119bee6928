//! Where a new volume goes: into a new file, or, in place, onto a device, into a part of a disk or
//! into an existing file.

use crate::edit_args::TargetArgs;
use crate::failure::Failure;
use crate::parts;
use crate::session::Session;
use extant::{Part, Partition};
use extant_image::{BuildError, InPlace, Target};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

/// The device to write a volume to; `None` for a file that a new one will replace. Without
/// `keeps_file`, an existing file is written in place instead.
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
        if args.discard {
            return Err(Failure::Usage(
                "--discard is of what is written in place: disks, partitions and exports; a new file has holes".into(),
            ));
        }
        if is_file && !args.force {
            refuse_contents(session, image, args)?;
        }
        return Ok(None);
    }
    let device = session.device_to_fill(image, part, is_disk, args.foreign_locks())?;
    let name = parts::described(image, part);
    if let Part::Bytes { offset_bytes, .. } = *part
        && !args.force
    {
        refuse_neighbours(session, image, offset_bytes, device.limits().capacity_bytes)?;
    }
    Ok(Some(InPlace { device, name, overwrite: args.force, discard: args.discard }))
}

/// Fails if a file that would be replaced holds something other than an ext volume; an ext volume
/// may be replaced.
fn refuse_contents(session: &Session, image: &Path, args: &TargetArgs) -> Result<(), Failure> {
    let (file, _) = session.device_and_place(image, false, args.foreign_locks())?;
    let found = session.rt.block_on(extant_image::contents(&*file))?;
    match found.map_err(BuildError::from)? {
        Some(contents) if !contents.is_ext => {
            let path = parts::described(image, &Part::Whole);
            Err(failure(BuildError::Occupied { path, contents: contents.name }, false))
        }
        _ => Ok(()),
    }
}

/// Fails if a range of a disk overlaps a partition, unless it is that partition.
fn refuse_neighbours(session: &Session, disk: &Path, start: u64, bytes: u64) -> Result<(), Failure> {
    let end = start.saturating_add(bytes);
    let bounds = |part: &Partition| (part.start_bytes, part.start_bytes.saturating_add(part.size_bytes));
    let all = session.partitions(disk).unwrap_or_default();
    // The range of a partition may overlap another one: a logical partition lies in an extended
    // one.
    if all.iter().any(|part| bounds(part) == (start, end)) {
        return Ok(());
    }
    if let Some(part) = all.iter().find(|part| start < bounds(part).1 && bounds(part).0 < end) {
        let (number, (its_start, its_end)) = (part.number, bounds(part));
        return Err(Failure::Usage(format!(
            "bytes {start}..{end} overlap partition {number}, bytes {its_start}..{its_end}; --partition names one, \
             --size-limit ends the range earlier, and --force writes over it"
        )));
    }
    Ok(())
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
