//! Copies everything readable from a damaged volume that must not be written.
//!
//! The volume is opened with what is left of it: a backup of its superblock anywhere on the device,
//! a copy in its journal, or its directories. Group descriptors that are lost in all copies are
//! reconstructed in memory. Then the volume is exported like any other, followed by the inodes
//! without a name. What became of each path is reported.

mod group_descriptors;
mod map_file;
mod nameless;
mod open;
mod shape;
mod slots;
mod superblocks;
mod sweep;
mod tally;

pub use map_file::{MapError, holes_of, map_of};
pub(crate) use slots::slots;
pub(crate) use sweep::patched;
pub(crate) use tally::Tally;
pub use tally::{Rescued, State, Summary, Witness};

use crate::export::{ExportError, OutPlace, Places};
use extant_block::{Device, Mended, Spans};
use extant_format::Inode;
use extant_fs::{Error, Volume, WalkOptions};
use nameless::Numbers;
use std::collections::BTreeSet;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;

/// Options of a rescue.
#[derive(Clone, Debug, Default)]
pub struct RescueOptions {
    /// Use the superblock at this byte, and do not look for others.
    pub superblock_offset: Option<u64>,
    /// Ignore newer blocks in the journal.
    pub ignore_journal: bool,
    /// Bytes of the device that were not copied from the original medium.
    pub holes: Spans,
}

/// Where files are written.
pub enum Destination<'a> {
    /// A directory of the host.
    Directory(&'a Path),
    /// A tar archive.
    Archive(&'a mut dyn Write),
}

/// Rescues the volume on `device`, which is only read.
///
/// # Errors
/// No volume can be found; it has an unsupported feature; the destination fails. Unreadable parts
/// are not errors; they are reported to `witness`.
pub async fn rescue(
    device: Arc<dyn Device>,
    options: &RescueOptions,
    destination: Destination<'_>,
    witness: &mut dyn Witness,
) -> Result<Summary, ExportError> {
    let mended = Mended::new(device, &options.holes);
    let (volume, notes) = open_damaged(&mended, options).await?;
    let is_current = notes.is_empty();
    let mut tally = Tally::new(witness);
    let mut run = Rescue {
        volume: &volume,
        places: match destination {
            Destination::Directory(directory) => Places::in_directory(&volume, directory, &mut tally)?,
            Destination::Archive(out) => Places::in_archive(&volume, out, &mut tally),
        },
        seen: Numbers::default(),
        in_lost_found: BTreeSet::new(),
    };
    match volume.root().await {
        Ok(root) => {
            run.places.add_top(&root).await?;
            run.put_below(b"", 0, &root).await?;
        }
        Err(error) => run.places.watch().missing(b"", error),
    }
    run.put_nameless(is_current).await?;
    run.places.finish().await?;
    let mut summary = tally.finish();
    summary.notes = notes;
    summary.notes.extend(volume.problems().iter().map(ToString::to_string));
    summary.unread = mended.unread();
    Ok(summary)
}

/// Opens a volume with whatever is left of it. Also returns sentences about what had to be done.
///
/// # Errors
/// No volume can be found; an unsupported feature.
pub(crate) async fn open_damaged(
    device: &Mended,
    options: &RescueOptions,
) -> Result<(Volume, Vec<String>), Error> {
    let opened = open::open(device, options).await?;
    Ok((opened.volume, opened.notes))
}

/// A rescue in progress.
struct Rescue<'a> {
    volume: &'a Volume,
    places: Places<'a>,
    /// Inodes that were already exported.
    seen: Numbers,
    /// Names in the volume's own `lost+found`.
    in_lost_found: BTreeSet<Vec<u8>>,
}

impl Rescue<'_> {
    /// Exports everything below `top`, which is at a path of `depth` components.
    async fn put_below(&mut self, prefix: &[u8], depth: usize, top: &Inode) -> Result<(), ExportError> {
        let options = WalkOptions { inodes: true, ..WalkOptions::default() };
        let mut walk = self.volume.walk(top, options).await?;
        let under = |path: &[u8]| match (prefix, path) {
            (b"", path) => path.to_vec(),
            (prefix, b"") => prefix.to_vec(),
            (prefix, path) => [prefix, b"/", path].concat(),
        };
        while let Some(next) = walk.next().await {
            match next {
                Ok(entry) => {
                    let path = under(walk.path());
                    if path.starts_with(b"lost+found/") {
                        self.in_lost_found.insert(entry.name.clone());
                    }
                    let Some(inode) = &entry.inode else { continue };
                    self.seen.insert(inode.number);
                    let place = OutPlace { depth: depth + entry.depth, name: &entry.name, path: &path };
                    self.places.add(place, inode).await?;
                }
                Err(failure) => self.places.watch().missing(&under(&failure.path), failure.error),
            }
        }
        Ok(())
    }
}
