//! Gets everything that is readable out of a volume that must not be written.
//!
//! The volume is opened by what is left of it: a backup of its superblock anywhere on the device, a
//! copy in its journal, or its directories; group descriptors that are lost in all copies are put
//! together in memory. Then it is exported as any other volume, and after that the inodes that
//! no name leads to. Each path is told with what became of it.

mod map_file;
mod nameless;
mod open;
mod shape;
mod slots;
mod superblocks;
mod sweep;
mod tables;
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

/// How to rescue.
#[derive(Clone, Debug, Default)]
pub struct RescueOptions {
    /// Use the superblock at this byte and look for no other.
    pub superblock_offset: Option<u64>,
    /// Leave newer blocks in a journal aside.
    pub ignore_journal: bool,
    /// Bytes of the device that do not hold what was on the medium.
    pub holes: Spans,
}

/// Where files go.
pub enum Destination<'a> {
    /// Into a directory of the host.
    Directory(&'a Path),
    /// Into a tar archive.
    Archive(&'a mut dyn Write),
}

/// Rescues the volume on `device`, which is only read.
///
/// # Errors
/// Nothing leads to a volume; it has a feature that cannot be read; the destination fails. What
/// cannot be read is told to `witness` instead.
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

/// Opens a volume by whatever is left of it, with sentences about what had to be done.
///
/// # Errors
/// Nothing leads to a volume; a feature that cannot be read.
pub(crate) async fn open_damaged(
    device: &Mended,
    options: &RescueOptions,
) -> Result<(Volume, Vec<String>), Error> {
    let opened = open::open(device, options).await?;
    Ok((opened.volume, opened.notes))
}

/// A rescue on its way.
struct Rescue<'a> {
    volume: &'a Volume,
    places: Places<'a>,
    /// Inodes that have been put somewhere.
    seen: Numbers,
    /// Names in the volume's own `lost+found`.
    in_lost_found: BTreeSet<Vec<u8>>,
}

impl Rescue<'_> {
    /// Puts everything below `top`, which is at a path of `depth` components.
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
