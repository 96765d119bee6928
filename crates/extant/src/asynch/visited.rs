//! Directories that a walk has entered.

use crate::{Error, Result};
use extant_format::{Corrupt, InodeNumber, Place};
use std::collections::BTreeSet;

/// The directories that a walk has entered. On a damaged volume a directory may have several names,
/// or contain itself; a walk that entered it again would never end.
#[derive(Debug, Default)]
pub(crate) struct Visited(BTreeSet<InodeNumber>);

impl Visited {
    /// Records that a directory is entered.
    ///
    /// # Errors
    /// It was entered before.
    pub(crate) fn enter(&mut self, dir: InodeNumber) -> Result<()> {
        if self.0.insert(dir) {
            return Ok(());
        }
        let rule = "1: it was entered before; run e2fsck";
        Err(Error::Corrupt(Corrupt::field(Place::Inode(dir), "names of the directory", 2, rule)))
    }
}
