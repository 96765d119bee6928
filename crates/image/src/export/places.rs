//! Puts files one by one at paths of an archive or directory.

use super::directory::Copy;
use super::read_ahead::Parts;
use super::tar::Archive;
use super::{ExportError, Exported, Watch};
use extant_format::Inode;
use extant_fs::Volume;
use std::io::Write;
use std::path::Path;

/// An archive or directory that takes files one by one, each after the directory that contains it.
pub(crate) struct Places<'a>(Kind<'a>);

enum Kind<'a> {
    Archive(Box<Archive<'a>>),
    Directory(Box<Copy<'a>>),
}

/// Where a file goes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place<'a> {
    /// Components of the path.
    pub(crate) depth: usize,
    /// The last component.
    pub(crate) name: &'a [u8],
    /// The whole path.
    pub(crate) path: &'a [u8],
}

impl<'a> Places<'a> {
    pub(crate) fn in_archive(volume: &Volume, out: &'a mut dyn Write, watch: &'a mut dyn Watch) -> Self {
        Self(Kind::Archive(Box::new(Archive::new(volume, out, watch))))
    }

    pub(crate) fn in_directory(
        volume: &Volume,
        directory: &Path,
        watch: &'a mut dyn Watch,
    ) -> Result<Self, ExportError> {
        Ok(Self(Kind::Directory(Box::new(Copy::new(volume, directory, watch)?))))
    }

    /// From now on, reads from another view of the volume.
    pub(crate) fn read_from(&mut self, volume: &Volume) {
        match &mut self.0 {
            Kind::Archive(archive) => archive.volume = volume.clone(),
            Kind::Directory(copy) => copy.volume = volume.clone(),
        }
    }

    pub(crate) fn watch(&mut self) -> &mut dyn Watch {
        match &mut self.0 {
            Kind::Archive(archive) => archive.watch,
            Kind::Directory(copy) => copy.watch,
        }
    }

    /// Puts a file, or a directory without its entries, at a place. A file whose map is invalid is
    /// reported, and does not end the export.
    pub(crate) async fn add(&mut self, place: Place<'_>, inode: &Inode) -> Result<(), ExportError> {
        let added = match &mut self.0 {
            Kind::Archive(archive) => archive.add(place.path, inode).await,
            Kind::Directory(copy) => {
                let parts = Parts::of(&copy.volume, inode).await;
                copy.add(place.depth, place.name, place.path, inode, parts).await
            }
        };
        match added {
            Err(ExportError::Volume(error)) => {
                self.watch().unreadable(place.path, error);
                self.watch().settled(place.path, inode, false);
                Ok(())
            }
            added => added,
        }
    }

    /// Makes the destination correspond to the volume's top directory: an archive gets an entry for
    /// it, a directory of the host gets its attributes.
    pub(crate) async fn add_top(&mut self, top: &Inode) -> Result<(), ExportError> {
        match &mut self.0 {
            Kind::Archive(archive) => archive.add(b".", top).await,
            Kind::Directory(copy) => {
                copy.be(top);
                Ok(())
            }
        }
    }

    /// Creates a directory that has no inode on the volume.
    pub(crate) async fn enter(&mut self, place: Place<'_>) -> Result<(), ExportError> {
        match &mut self.0 {
            // In an archive, the paths of files are enough.
            Kind::Archive(_) => Ok(()),
            Kind::Directory(copy) => copy.enter(place.depth, place.name).await,
        }
    }

    pub(crate) async fn finish(self) -> Result<Exported, ExportError> {
        match self.0 {
            Kind::Archive(archive) => archive.finish(),
            Kind::Directory(copy) => Ok(copy.finish().await),
        }
    }
}
