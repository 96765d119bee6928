//! Inodes as such, with or without a name.

use super::path_arguments::{place, resolve};
use super::{Dir, File};
use crate::sys::{Node, Sys};
use crate::{Error, FileOptions, FileType, Metadata, NewFile, Result, Time, XattrMode};
use extant_fs::quote;

/// A file of any kind, not open for I/O, like an `O_PATH` descriptor.
///
/// It refers to the same inode when names change, and while it has none. An inode without names is
/// freed with the last `Inode` or [`File`] that refers to it.
///
/// An inode created without a name can be filled and given its attributes before anyone sees it:
/// see [`Dir::unnamed`].
#[derive(Clone, Debug)]
pub struct Inode {
    sys: Sys,
    node: Node,
}

impl Dir {
    /// The inode at a path; a symbolic link in the last component is not followed.
    ///
    /// # Errors
    /// Not found, or a directory on the way may not be searched.
    pub async fn inode(&self, path: impl AsRef<[u8]>) -> Result<Inode> {
        let node = resolve(&self.sys, &self.node, path.as_ref(), false).await?;
        Ok(Inode { sys: self.sys.clone(), node })
    }

    /// Creates a file without a name, to be linked in the directory at `path` later: it is placed
    /// near that directory and inherits from it.
    ///
    /// Once complete, [`Inode::link`] or [`Inode::link_over`] gives it a name; a power cut before
    /// that leaves no trace of it.
    ///
    /// # Errors
    /// No such directory; no permission; no space; or a symlink target that is empty or does not
    /// fit in a block.
    pub async fn unnamed(&self, path: impl AsRef<[u8]>, new: NewFile<'_>, mode: u32) -> Result<Inode> {
        let dir = self.open_dir(path).await?;
        let node = self.sys.unnamed(&dir.node, new, mode).await?;
        Ok(Inode { sys: self.sys.clone(), node })
    }
}

impl Dir {
    pub(super) async fn link_node_over(&self, node: &Node, to: &[u8]) -> Result<()> {
        let place = place(&self.sys, &self.node, to).await?;
        if place.wants_dir {
            return Err(match self.sys.lookup(&place.dir, place.name).await?.kind()? {
                FileType::Dir => Error::IsADirectory(quote(to)),
                _ => Error::NotADirectory(quote(to)),
            });
        }
        self.sys.link_over(node, &place.dir, place.name).await
    }

    /// Like [`Dir::link_file`], but replaces an existing name: see [`Inode::link_over`].
    ///
    /// # Errors
    /// Same as [`Inode::link_over`].
    pub async fn link_file_over(&self, file: &File, to: impl AsRef<[u8]>) -> Result<()> {
        self.link_node_over(file.node(), to.as_ref()).await
    }
}

impl Inode {
    /// Attributes.
    ///
    /// # Errors
    /// The inode is damaged.
    pub async fn metadata(&self) -> Result<Metadata> {
        self.sys.metadata(&self.node).await
    }

    /// Opens a regular file for I/O; options that create a file are ignored.
    ///
    /// # Errors
    /// Not a regular file, or no permission.
    pub async fn open(&self, options: &FileOptions) -> Result<File> {
        options.check()?;
        self.sys.open_file(&self.node, options, false).await.map(File::new)
    }

    /// Links it under a name: its first, once its data is written, or another one.
    ///
    /// # Errors
    /// The name exists; it is a directory, or has the maximum number of links; or its data cannot
    /// be written.
    pub async fn link(&self, dir: &Dir, to: impl AsRef<[u8]>) -> Result<()> {
        let place = dir.new_name(to.as_ref()).await?;
        self.sys.link(&self.node, &place.dir, place.name).await
    }

    /// Like [`Inode::link`], but atomically replaces anything except a directory at that name:
    /// after a power cut the name refers to the old file, or to the new one with its data. A
    /// symbolic link is replaced, not followed. A name that already refers to this inode is left
    /// alone.
    ///
    /// # Errors
    /// Those of [`Inode::link`]; the name is a directory's.
    pub async fn link_over(&self, dir: &Dir, to: impl AsRef<[u8]>) -> Result<()> {
        dir.link_node_over(&self.node, to.as_ref()).await
    }

    /// Sets the permission bits, setuid, setgid and sticky.
    ///
    /// # Errors
    /// The caller is not its owner, or it is a symbolic link.
    pub async fn set_mode(&self, mode: u32) -> Result<()> {
        self.sys.set_mode(&self.node, mode).await
    }

    /// Sets owner and group; `None` leaves either unchanged.
    ///
    /// # Errors
    /// The caller may not.
    pub async fn set_owner(&self, uid: Option<u32>, gid: Option<u32>) -> Result<()> {
        self.sys.set_owner(&self.node, uid, gid).await
    }

    /// Sets access and modification times; `None` leaves either unchanged.
    ///
    /// # Errors
    /// The caller is not its owner.
    pub async fn set_times(&self, accessed: Option<Time>, modified: Option<Time>) -> Result<()> {
        self.sys.set_times(&self.node, accessed, modified).await
    }

    /// Returns the value of an extended attribute; the name has a prefix such as `user.`.
    ///
    /// # Errors
    /// [`Error::NoData`] if there is none.
    pub async fn xattr(&self, name: impl AsRef<[u8]>) -> Result<Vec<u8>> {
        self.sys.xattr(&self.node, name.as_ref()).await
    }

    /// Names of the extended attributes visible to the caller.
    ///
    /// # Errors
    /// The attributes are damaged.
    pub async fn xattrs(&self) -> Result<Vec<Vec<u8>>> {
        self.sys.xattrs(&self.node).await
    }

    /// Sets an extended attribute.
    ///
    /// # Errors
    /// Same as `lsetxattr(2)`.
    pub async fn set_xattr(
        &self,
        name: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        mode: XattrMode,
    ) -> Result<()> {
        self.sys.set_xattr(&self.node, name.as_ref(), value.as_ref(), mode).await
    }

    /// Removes an extended attribute.
    ///
    /// # Errors
    /// [`Error::NoData`] if there is none.
    pub async fn remove_xattr(&self, name: impl AsRef<[u8]>) -> Result<()> {
        self.sys.remove_xattr(&self.node, name.as_ref()).await
    }

    /// Sets extended attributes, and removes those given without a value. All changes are made or
    /// none, even if there is an error or a crash.
    ///
    /// # Errors
    /// As [`Inode::set_xattr`] and [`Inode::remove_xattr`].
    pub async fn change_xattrs(&self, changes: &[(&[u8], Option<&[u8]>)]) -> Result<()> {
        self.sys.change_xattrs(&self.node, changes).await
    }
}
