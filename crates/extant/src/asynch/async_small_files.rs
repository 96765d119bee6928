//! Small files that are made together.

use super::path_arguments::{NameAt, place};
use super::{Dir, Volume};
use crate::sys::{Node, Sys};
use crate::{Error, NotMade, Result, SmallFile};

/// Small files that are made together; see [`crate::SmallFiles`].
#[derive(Debug)]
pub struct SmallFiles {
    sys: Sys,
    files: extant_fs::SmallFiles,
}

impl Volume {
    /// Begins to make small files together; see [`crate::SmallFiles`].
    ///
    /// # Errors
    /// The volume is open for reading; or its caller may not give files away.
    pub fn small_files(&self) -> Result<SmallFiles> {
        Ok(SmallFiles { sys: self.sys.clone(), files: self.sys.small_files()? })
    }
}

impl SmallFiles {
    /// Adds a file, unless it must be made in another way; see [`crate::SmallFiles::add`].
    ///
    /// # Errors
    /// Same as [`crate::SmallFiles::add`].
    pub async fn add(&mut self, dir: &Dir, path: impl AsRef<[u8]>, file: &SmallFile<'_>) -> Result<bool> {
        let place = place(&self.sys, &dir.node, path.as_ref()).await?;
        let Node::Live(parent) = &place.dir else { return Err(Error::ReadOnly) };
        if place.wants_dir || !dir.sys.is_same(&self.sys) || self.files.contains(parent, place.name) {
            return Ok(false);
        }
        Ok(self.files.add(parent, place.name, &file.to_fs()?).await?.is_some())
    }

    /// Whether a file waits to be made at this path.
    pub async fn contains(&self, dir: &Dir, path: impl AsRef<[u8]>) -> bool {
        let place = place(&self.sys, &dir.node, path.as_ref()).await;
        let Ok(NameAt { dir: Node::Live(parent), name, .. }) = &place else { return false };
        dir.sys.is_same(&self.sys) && self.files.contains(parent, name)
    }

    /// How many files wait to be made.
    pub fn len(&self) -> usize {
        self.files.len()
    }

    /// Whether no file waits to be made.
    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// Whether a file of so many bytes can be added before those that wait are made; see
    /// [`crate::SmallFiles::has_room`].
    pub fn has_room(&self, bytes: usize) -> bool {
        self.files.has_room(bytes)
    }

    /// Makes the files that wait; see [`crate::SmallFiles::make`].
    ///
    /// If the future is dropped before it ends, the files that it has not made are gone, and
    /// [`Self::len`] is 0. If it had not begun to write their contents, all of them still wait.
    ///
    /// # Errors
    /// Same as [`crate::SmallFiles::make`].
    pub async fn make(&mut self) -> std::result::Result<(), NotMade> {
        self.files.make().await
    }
}
