//! A volume as programs see it: opened, read, changed through nodes, and closed.

mod claims;
mod label;
mod live;
mod marks;
mod mmp;
mod mount;
mod orphan_file;
mod own_blocks;
mod owners;
mod read;
mod recover;
mod restore;
#[cfg(test)]
mod tests;
mod trim;

use crate::file::StoredFiles;
#[cfg(test)]
use crate::file::{FileOptions, OpenFile};
use crate::names::{Caller, Namespace, Node, SmallFiles, StoredNames, Way};
use crate::view::{OpenOptions, View};
use crate::writer::Writer;
use crate::{Error, Result};
use extant_block::Device;
use extant_cache::Disk;
use extant_format::{Incompat, InodeNumber};
use futures_util::future::BoxFuture;
pub use live::Space;
pub use mmp::Protection;
pub use mount::WriteOptions;
pub use recover::recover;
pub use restore::{Restored, restore};
use std::collections::BTreeMap;
use std::sync::Arc;
#[cfg(test)]
pub(crate) use {orphan_file::orphan_file_blocks, own_blocks::own_blocks};

/// An open volume. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Volume {
    view: View,
    /// On a volume open for writing.
    mounted: Option<Arc<mount::Mounted>>,
    /// On a read-only volume with a cache.
    stored: Option<Arc<Stored>>,
    ignores_acls: bool,
}

/// What a read-only volume keeps of what was read.
#[derive(Debug)]
struct Stored {
    files: StoredFiles,
    names: StoredNames,
}

impl Volume {
    /// Opens the volume on `device` for reading. Nothing is written. With
    /// [`Damage::Report`](crate::Damage::Report), backups replace a damaged superblock or damaged
    /// group descriptors, and [`Volume::problems`] lists these.
    ///
    /// # Errors
    /// INCOMPAT features that cannot be read, or an invalid superblock field, each by name.
    pub fn open(device: Arc<dyn Device>, options: OpenOptions) -> BoxFuture<'static, Result<Self>> {
        Box::pin(Self::open_view(device, options))
    }

    async fn open_view(device: Arc<dyn Device>, options: OpenOptions) -> Result<Self> {
        let mut view = View::open_to_read(device, options).await?;
        let needs_recovery = view.superblock().incompat().contains(Incompat::RECOVER);
        if (needs_recovery || view.is_backup()) && !options.ignore_journal {
            let overlay = match crate::recovery::overlay(&view).await {
                // Blocks can be read from their home locations, though these may not be the newest
                // versions.
                Err(error @ (Error::Corrupt(_) | Error::Io(_))) => {
                    view.note_error(error)?;
                    BTreeMap::new()
                }
                // A backup superblock does not show whether the journal needs recovery.
                Err(Error::Unsupported { .. }) if !needs_recovery => BTreeMap::new(),
                other => other?,
            };
            if needs_recovery || !overlay.is_empty() {
                view = view.through(overlay).await?;
            }
        }
        Ok(Self { view, mounted: None, stored: None, ignores_acls: false })
    }

    /// Returns the volume with file contents cached through `disk`, a disk on the volume's device,
    /// and its other memory charged to that disk's cache. For read-only volumes; one open for
    /// writing always does both.
    pub fn cached_by(self, disk: &Disk) -> Self {
        if self.mounted.is_some() || self.stored.is_some() {
            return self;
        }
        self.view.buffers().charge_to(disk);
        let stored = Stored { files: StoredFiles::new(disk), names: StoredNames::new(disk) };
        Self { stored: Some(Arc::new(stored)), ..self }
    }

    /// Returns the volume without access control lists: [`Self::check_access`] goes by the mode.
    /// For read-only volumes; see [`WriteOptions::ignores_acls`] for others.
    #[must_use]
    pub fn ignoring_acls(self) -> Self {
        Self { ignores_acls: true, ..self }
    }

    /// Returns the problems met so far that did not fail an operation, each once, at most 1,000.
    ///
    /// For a read-only volume see [`Damage::Report`](crate::Damage::Report). For one open for
    /// writing: damage that kept a deleted file's blocks in use, or that keeps blocks or inodes
    /// from being allocated. After [`Volume::close`], a clone also reports deletions that failed
    /// because of the device.
    pub fn problems(&self) -> Vec<Error> {
        let mut problems = self.view.problems();
        if let Some(writer) = self.writer() {
            // The allocator knows about a damaged bitmap, and the operation that needed it fails
            // for the same reason.
            let met = writer.problems.lock().clone();
            let met = met.list().iter().cloned();
            writer.alloc.problems().into_iter().chain(met).for_each(|problem| problems.add(problem));
        }
        problems.list().to_vec()
    }

    /// Returns a handle of a read-only volume with its own list of problems. Take them with
    /// [`Volume::take_problems`]; [`Volume::problems`] of other handles does not show them. With
    /// such a handle for a thread that reads ahead, the caller decides when its problems count.
    #[must_use]
    pub fn noting_apart(&self) -> Self {
        Self { view: self.view.noting_apart(), ..self.clone() }
    }

    /// Takes the problems that this handle has met since the last call. Each is returned once, at
    /// most 1,000 in all. For handles from [`Volume::noting_apart`].
    pub fn take_problems(&self) -> Vec<Error> {
        self.view.take_problems()
    }

    /// Adds problems that another handle has met to those of [`Volume::problems`].
    pub fn add_problems(&self, problems: Vec<Error>) {
        problems.into_iter().for_each(|problem| self.view.add_problem(problem));
    }

    /// Returns the root directory of a volume open for writing.
    ///
    /// # Errors
    /// [`Error::ReadOnly`]; a damaged inode.
    pub async fn root_node(&self) -> Result<Node> {
        self.namespace().ok_or(Error::ReadOnly)?.root().await
    }

    /// Begins to make small files together, on a volume open for writing.
    ///
    /// # Errors
    /// [`Error::ReadOnly`]; [`Error::Permission`] for a caller who may not give files away.
    pub fn small_files(&self, caller: &Caller) -> Result<SmallFiles> {
        SmallFiles::new(self.namespace().ok_or(Error::ReadOnly)?, caller)
    }

    /// Returns the inode with this number and generation, on a volume open for writing.
    ///
    /// # Errors
    /// [`Error::ReadOnly`]; [`Error::Stale`] if it has been deleted.
    pub async fn node(&self, number: InodeNumber, generation: u32) -> Result<Node> {
        self.namespace().ok_or(Error::ReadOnly)?.node(number, generation).await
    }

    /// Returns a node for an inode that was looked up before, on a volume open for writing. It may
    /// have lost its name, if a node or an open file still holds it. `way` is [`Node::way`] of the
    /// earlier node. Waits only if the inode is not in memory.
    ///
    /// # Errors
    /// [`Error::ReadOnly`]; [`Error::Stale`] if it has been deleted.
    pub async fn known_node(&self, number: InodeNumber, generation: u32, way: Option<Way>) -> Result<Node> {
        self.namespace().ok_or(Error::ReadOnly)?.known_node(number, generation, way).await
    }

    /// The number of the newest durable transaction of a volume open for writing. Each commit adds
    /// one.
    pub fn newest_commit(&self) -> Option<u64> {
        self.writer().map(|writer| writer.journal.committed().0)
    }

    /// Waits until inodes that have neither names nor holders are deleted, and their space is free.
    /// The caller holds no lock of the volume.
    pub async fn finish_deletions(&self) {
        if let Some(namespace) = self.namespace() {
            namespace.finish_deletions().await;
        }
    }

    #[cfg(test)]
    pub(crate) async fn open_for_writing(
        &self,
        number: InodeNumber,
        options: FileOptions,
    ) -> Result<OpenFile> {
        self.namespace().ok_or(Error::ReadOnly)?.open(number, options).await
    }

    #[cfg(test)]
    pub(crate) fn view(&self) -> &View {
        &self.view
    }

    /// The parts needed for writing; `None` on a read-only volume.
    pub(crate) fn writer(&self) -> Option<&Arc<Writer>> {
        self.namespace().map(|namespace| &namespace.writer)
    }

    /// The namespace of a volume open for writing.
    pub(crate) fn namespace(&self) -> Option<&Arc<Namespace>> {
        self.mounted.as_ref().map(|mounted| &mounted.namespace)
    }
}
