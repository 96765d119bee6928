//! Small files that wait to be made.

use crate::BuildError;
use crate::tree::EntryId;
use extant_fs::{Caller, SmallFiles, Volume};

/// Files that wait to be made, and their names in the tree.
pub(super) struct Small {
    pub(super) files: SmallFiles,
    pub(super) entries: Vec<EntryId>,
}

impl Small {
    pub(super) fn new(volume: &Volume, caller: &Caller) -> Result<Self, BuildError> {
        let files = volume.small_files(caller).map_err(|error| BuildError::volume(b"/", error))?;
        Ok(Self { files, entries: Vec::new() })
    }
}
