//! A single run of the command: its world, open volumes, and failures so far.

use crate::args::{ImageArgs, SuperblockAt};
use crate::failure::{EXIT_CLOSED, Exit, Failure, lacks_superblock};
use crate::image_path::ImagePath;
use crate::output::Output;
use crate::own_image;
use crate::parts;
use extant::{Part, Partition, PlaceError, open_place_at};
use extant_block::{Claim, Device, FileDevice, FileOptions, ForeignLocks, Sector};
use extant_format::{Corrupt, FOREIGN_HEAD_BYTES, Foreign, Place, SUPERBLOCK_BYTES};
use extant_fs::{Damage, OpenOptions, Volume, WalkError, printable, quote, read_superblock};
use extant_rt::Rt;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

/// How an image will be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// Scattered reads, through the host's page cache.
    Metadata,
    /// Mostly sequential and only once: past the host's page cache, unless the image is small.
    Contents,
}

/// An image with at most this many bytes in use on the host is read through the host's page cache,
/// which often contains it already, and in any case has room for it.
const CACHED_BYTES: u64 = 256 << 20;

impl Access {
    fn is_direct(self, image: &Path) -> bool {
        let is_small = |file: std::fs::Metadata| file.is_file() && file.blocks() <= CACHED_BYTES / 512;
        self == Self::Contents && !image.metadata().is_ok_and(is_small)
    }
}

pub(crate) struct Session {
    pub(crate) rt: Rt,
    pub(crate) out: Output,
    pub(crate) quiet: bool,
    /// The part of each image that holds the volume.
    pub(crate) part: Part,
    worst: Exit,
    closed: bool,
    volumes: Vec<(PathBuf, Volume)>,
}

impl Session {
    pub(crate) fn new(quiet: bool) -> Self {
        Self {
            rt: Rt::real(Default::default()),
            out: Output::stdout(),
            quiet,
            part: Part::Whole,
            worst: Exit::Done,
            closed: false,
            volumes: Vec::new(),
        }
    }

    /// Opens an image, or the part of it that holds the volume, for reading.
    pub(crate) fn device(&self, place: &ImagePath, access: Access) -> Result<Arc<dyn Device>, Failure> {
        let options = FileOptions { write: false, direct: access.is_direct(&place.image) };
        let failure = |error: std::io::Error| match place.misspelt(&error) {
            Some(meant) => Failure::Misspelt { place: place.image_quoted(), meant },
            None if error.kind() == std::io::ErrorKind::NotFound => match place.image_alone() {
                Some(image) => Failure::ImageAlone { place: place.image_quoted(), image },
                None => Failure::host(&place.image, error),
            },
            None => Failure::host(&place.image, error),
        };
        Failure::of_split(place)?;
        Ok(self.open_part(&place.image, &self.part, options, ForeignLocks::Honour, failure)?.0)
    }

    /// Opens an existing image, or the part of it that holds the volume, for reading and writing.
    pub(crate) fn device_to_change(
        &self,
        image: &Path,
        foreign: ForeignLocks,
    ) -> Result<Arc<dyn Device>, Failure> {
        Ok(self.device_and_place(image, true, foreign)?.0)
    }

    /// Opens an existing image, or the part of it that holds the volume, for reading and perhaps
    /// writing; also returns the byte at which the part begins.
    pub(crate) fn device_and_place(
        &self,
        image: &Path,
        write: bool,
        foreign: ForeignLocks,
    ) -> Result<(Arc<dyn Device>, u64), Failure> {
        let options = FileOptions { write, direct: false };
        self.open_part(image, &self.part, options, foreign, |error| Failure::host(image, error))
    }

    /// Opens an image, or the part of it that holds the volume, to be mounted: past the host's page
    /// cache, because the volume has its own.
    pub(crate) fn device_to_mount(
        &self,
        image: &Path,
        write: bool,
        foreign: ForeignLocks,
    ) -> Result<Arc<dyn Device>, Failure> {
        let options = FileOptions { write, direct: true };
        Ok(self.open_part(image, &self.part, options, foreign, |error| Failure::host(image, error))?.0)
    }

    /// Opens a disk or file, or a part of it, to write a new volume into it; with `direct`, past
    /// the host's page cache.
    pub(crate) fn device_to_fill(
        &self,
        image: &Path,
        part: &Part,
        direct: bool,
        foreign: ForeignLocks,
    ) -> Result<Arc<dyn Device>, Failure> {
        let options = FileOptions { write: true, direct };
        Ok(self.open_part(image, part, options, foreign, |error| Failure::host(image, error))?.0)
    }

    /// Opens a part of an image; also returns the byte at which it begins.
    fn open_part(
        &self,
        image: &Path,
        part: &Part,
        options: FileOptions,
        foreign: ForeignLocks,
        of_host: impl FnOnce(std::io::Error) -> Failure,
    ) -> Result<(Arc<dyn Device>, u64), Failure> {
        let opened = self.rt.block_on(open_place_at(&self.rt, image, part, options, foreign))?;
        opened.map_err(|error| match error {
            PlaceError::Host(error) => of_host(error),
            error => Failure::Place { image: quote(image.as_os_str().as_encoded_bytes()), error },
        })
    }

    /// The partitions of a disk, if it has a table of them.
    pub(crate) fn partitions(&self, disk: &Path) -> Option<Vec<Partition>> {
        let options = FileOptions { write: false, direct: false };
        let of_host = |error| Failure::host(disk, error);
        let (device, _) = self.open_part(disk, &Part::Whole, options, ForeignLocks::Honour, of_host).ok()?;
        self.rt.block_on(extant::partitions(&*device)).ok()?.ok()?
    }

    /// The failure for an image that could not be opened for reading; `superblock` is the offset
    /// given by the user.
    pub(crate) fn not_opened(
        &self,
        image: &Path,
        superblock: Option<u64>,
        error: extant_fs::Error,
    ) -> Failure {
        self.advised(image, Failure::open(image, &self.part, superblock, error))
    }

    /// The failure for an image that could not be rescued.
    pub(crate) fn not_rescued(&self, image: &Path, error: extant_fs::Error) -> Failure {
        self.advised(image, Failure::open_to_rescue(image, &self.part, error))
    }

    /// The failure for an image that could not be opened for writing.
    pub(crate) fn not_opened_to_change(&self, image: &Path, error: extant_fs::Error) -> Failure {
        self.advised(image, Failure::open_to_change(image, &self.part, error))
    }

    /// The byte of the superblock to use; `None` for the first one or, if that is damaged, a
    /// backup.
    ///
    /// # Errors
    /// No superblock where the user says; or the image begins with something else, and the user did
    /// not ask for the remains of an earlier volume.
    pub(crate) fn superblock_byte(
        &self,
        device: &Arc<dyn Device>,
        image: &Path,
        at: Option<SuperblockAt>,
    ) -> Result<Option<u64>, Failure> {
        let read = |at| self.rt.block_on(read_superblock(&**device, at));
        let in_block = |number: u64| {
            let sizes = (10..=16).map(|log: u32| 1 << log);
            let mut at = sizes.filter_map(|size: u32| Some((number.checked_mul(size.into())?, size)));
            at.find(|&(at, size)| matches!(read(at), Ok(Ok(found)) if found.block_size().bytes() == size))
        };
        match at {
            None => {
                self.refuse_remains(device, image)?;
                Ok(None)
            }
            Some(SuperblockAt::Auto) => Ok(None),
            Some(SuperblockAt::Byte(at)) => match read(at)? {
                Err(error) if lacks_superblock(&error) && in_block(at).is_some() => {
                    Err(Failure::Usage(format!(
                        "{}: no superblock at byte {at}, but one in block {at}: --superblock block:{at}",
                        parts::described(image, &self.part)
                    )))
                }
                _ => Ok(Some(at)),
            },
            Some(SuperblockAt::Block(number)) => match in_block(number) {
                Some((at, _)) => Ok(Some(at)),
                None => {
                    let place = parts::described(image, &self.part);
                    let error = Corrupt::truncated(Place::Superblock, SUPERBLOCK_BYTES, 0).into();
                    let place = format!("{place}: no superblock in block {number}");
                    Err(Failure::NoBackup { place, error })
                }
            },
        }
    }

    /// Like [`Self::superblock_byte`], but also accepts the remains of an earlier volume.
    pub(crate) fn any_superblock_byte(
        &self,
        device: &Arc<dyn Device>,
        image: &Path,
        at: Option<SuperblockAt>,
    ) -> Result<Option<u64>, Failure> {
        self.superblock_byte(device, image, at.or(Some(SuperblockAt::Auto)))
    }

    /// Fails if the image begins with something other than a volume. It may still contain a backup
    /// superblock of an earlier volume, which would be misleading.
    pub(crate) fn refuse_remains(&self, device: &Arc<dyn Device>, image: &Path) -> Result<(), Failure> {
        match self.rt.block_on(read_superblock(&**device, 1024))? {
            Err(error) if lacks_superblock(&error) => {}
            _ => return Ok(()),
        }
        let capacity = usize::try_from(device.limits().capacity_bytes).unwrap_or(usize::MAX);
        let bytes = capacity.min(FOREIGN_HEAD_BYTES) / 512 * 512;
        let head = self.rt.block_on(extant_block::read(&**device, Sector(0), bytes))?;
        let Some(foreign) = head.ok().and_then(|head| Foreign::identify(&head)) else { return Ok(()) };
        let described = parts::described(image, &self.part);
        Err(self.advised(image, Failure::Foreign { image: described, foreign, advice: None }))
    }

    /// Names the partitions that hold volumes, if the image is a disk.
    fn advised(&self, image: &Path, failure: Failure) -> Failure {
        match failure {
            Failure::Foreign { image: name, foreign, advice: _ } => {
                let there = match self.part {
                    Part::Whole => self.partitions(image).unwrap_or_default(),
                    _ => Vec::new(),
                };
                Failure::Foreign { image: name, foreign, advice: parts::advice(&there) }
            }
            failure => failure,
        }
    }

    /// Claims a file that a command is about to replace or to write in place, as long as the claim
    /// lives.
    ///
    /// # Errors
    /// The file is in use, is the image that the command reads, or lies on that image.
    pub(crate) fn claim_output(output: &Path, image: &Path) -> Result<Claim, Failure> {
        if own_image::is_written_by(image, output) {
            let error =
                std::io::Error::other("is the image that is read, or lies on it; name a place elsewhere");
            return Err(Failure::host(output, error));
        }
        let claimed = FileDevice::claim_to_replace(output, ForeignLocks::Honour);
        claimed.map_err(|error| Failure::to_claim(output, error))
    }

    /// Returns the volume in an image. Opens it at the first call only.
    pub(crate) fn volume(
        &mut self,
        place: &ImagePath,
        args: &ImageArgs,
        access: Access,
    ) -> Result<Volume, Failure> {
        if let Some((_, volume)) = self.volumes.iter().find(|(image, _)| *image == place.image) {
            return Ok(volume.clone());
        }
        let device = self.device(place, access)?;
        let superblock_offset = self.superblock_byte(&device, &place.image, args.superblock)?;
        let options =
            OpenOptions { damage: Damage::Report, superblock_offset, ignore_journal: args.ignore_journal };
        let opened = self.rt.block_on(Volume::open(device, options))?;
        let volume = opened.map_err(|error| self.not_opened(&place.image, superblock_offset, error))?;
        self.volumes.push((place.image.clone(), volume.clone()));
        Ok(volume)
    }

    /// Lets commands read a volume that is already open.
    pub(crate) fn lend(&mut self, image: &Path, volume: &Volume) {
        self.volumes.push((image.to_owned(), volume.clone()));
    }

    /// Undoes [`Self::lend`].
    pub(crate) fn forget(&mut self, image: &Path) {
        self.volumes.retain(|(open, _)| open != image);
    }

    /// Whether the exit code already indicates a failure.
    pub(crate) fn has_failed(&self) -> bool {
        self.worst != Exit::Done
    }

    /// Ignores failures so far in the exit code.
    pub(crate) fn forgive(&mut self) {
        self.worst = Exit::Done;
    }

    /// Prints a failure and records it for the exit code; the command may continue.
    pub(crate) fn fail(&mut self, failure: Failure) {
        self.worst = self.worst.max(failure.exit());
        match failure {
            Failure::Closed => self.closed = true,
            failure => self.complain(&failure.to_string()),
        }
    }

    /// Records an exit code for something that is not a failure.
    pub(crate) fn exit_with(&mut self, exit: Exit) {
        self.worst = self.worst.max(exit);
    }

    /// Like [`Self::fail`], for a path that a walk could not read.
    pub(crate) fn fail_walk(&mut self, place: &ImagePath, WalkError { path, error }: WalkError) {
        let place = ImagePath { image: place.image.clone(), path: place.below(&path) };
        self.fail(Failure::at(&place, error));
    }

    /// Prints a summary, unless `--quiet`.
    pub(crate) fn summary(&self, message: &str) {
        if !self.quiet {
            self.complain(message);
        }
    }

    pub(crate) fn complain(&self, message: &str) {
        // Most names in the message are already quoted, but text from a server or an archive may
        // not be. If standard error is closed, that is the user's choice.
        let _ = writeln!(std::io::stderr(), "extant: {}", shortened(&printable(message)));
    }

    /// Prints problems that did not stop the command, and records them for the exit code.
    pub(crate) fn problems(&mut self, image: &str, problems: Vec<extant_fs::Error>) {
        for error in problems {
            self.fail(Failure::Volume { place: image.to_owned(), error });
        }
    }

    /// Prints the volumes' problems, and returns the exit code.
    pub(crate) fn finish(mut self) -> ExitCode {
        if !self.closed
            && let Err(failure) = self.out.flush()
        {
            self.fail(failure);
        }
        for (image, volume) in std::mem::take(&mut self.volumes) {
            let image = ImagePath { image, path: Vec::new() }.image_quoted();
            self.problems(&image, volume.problems());
        }
        ExitCode::from(if self.closed && self.worst == Exit::Failed {
            EXIT_CLOSED
        } else {
            self.worst.code()
        })
    }
}

/// Drops the middle of a message whose names or lines would fill the screen.
fn shortened(message: &str) -> std::borrow::Cow<'_, str> {
    const MAX: usize = 1500;
    const FRONT: usize = 1000;
    const BACK: usize = 400;
    let count = message.chars().count();
    if count <= MAX {
        return message.into();
    }
    let at = |n: usize| message.char_indices().nth(n).map_or(message.len(), |(at, _)| at);
    let left_out = count - FRONT - BACK;
    format!("{}[... {left_out} characters ...]{}", &message[..at(FRONT)], &message[at(count - BACK)..]).into()
}

/// Bytes in use on a volume; roughly what reading all of it transfers.
pub(crate) fn used_bytes(volume: &Volume) -> u64 {
    let sb = volume.superblock();
    sb.blocks_count().saturating_sub(sb.free_blocks()) << sb.block_size().log2()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_messages_lose_their_middle() {
        assert_eq!(shortened("short"), "short");
        let long = "a".repeat(1000) + &"\u{e9}".repeat(5000) + &"z".repeat(400);
        let expected = "a".repeat(1000) + "[... 5000 characters ...]" + &"z".repeat(400);
        assert_eq!(shortened(&long), expected);
    }
}
