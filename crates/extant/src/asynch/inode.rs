//! Inodes by themselves, with a name or without one.

use super::path::{place, resolve};
use super::{Dir, File};
use crate::sys::{Node, Sys};
use crate::{Error, FileOptions, FileType, Metadata, NewFile, Result, Time, XattrMode};
use extant_fs::quote;

/// A file of any kind without being open for its contents, as a descriptor of `O_PATH`. It stays what it is when names change,
/// and while it has none. An inode that has no name is gone with the last `Inode` or [`File`] of it.
///
/// One that is made without a name can be filled and given its attributes before anybody sees it: see [`Dir::unnamed`].
#[derive(Clone, Debug)]
pub struct Inode {
    sys: Sys,
    node: Node,
}

impl Dir {
    /// The inode that a path leads to; a symbolic link in the last place is not followed.
    ///
    /// # Errors
    /// There is none, or a directory on the way may not be searched.
    pub async fn inode(&self, path: impl AsRef<[u8]>) -> Result<Inode> {
        let node = resolve(&self.sys, &self.node, path.as_ref(), false).await?;
        Ok(Inode { sys: self.sys.clone(), node })
    }

    /// Makes a file without a name, which belongs where `path` leads: near that directory, and with what that hands down. Once
    /// it is complete, [`Inode::link`] or [`Inode::link_over`] gives it a name; a power cut before that leaves nothing of it.
    ///
    /// # Errors
    /// There is no such directory; no permission; no space; a target that is empty or does not fit a block.
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

    /// As [`Dir::link_file`], in place of what has the name: see [`Inode::link_over`].
    ///
    /// # Errors
    /// As there.
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

    /// Opens the contents of a regular file; the options that create one mean nothing here.
    ///
    /// # Errors
    /// It is no regular file; permissions.
    pub async fn open(&self, options: &FileOptions) -> Result<File> {
        options.check()?;
        self.sys.open_file(&self.node, options, false).await.map(File::new)
    }

    /// Gives it a name: its first, once its data are written, or another one.
    ///
    /// # Errors
    /// The name exists; it is a directory, or has as many links as an inode can have; data cannot be written.
    pub async fn link(&self, dir: &Dir, to: impl AsRef<[u8]>) -> Result<()> {
        let place = dir.new_name(to.as_ref()).await?;
        self.sys.link(&self.node, &place.dir, place.name).await
    }

    /// As [`Inode::link`], in place of whatever but a directory has the name, in one step: after a power cut the name leads to
    /// the old file or the new one, with its data. A symbolic link is replaced, not followed; a name of this inode itself stays.
    ///
    /// # Errors
    /// As there; a directory has the name.
    pub async fn link_over(&self, dir: &Dir, to: impl AsRef<[u8]>) -> Result<()> {
        dir.link_node_over(&self.node, to.as_ref()).await
    }

    /// Sets the permission bits, setuid, setgid and sticky.
    ///
    /// # Errors
    /// The caller is not its owner; it is a symbolic link.
    pub async fn set_mode(&self, mode: u32) -> Result<()> {
        self.sys.set_mode(&self.node, mode).await
    }

    /// Sets owner and group; `None` leaves one as it is.
    ///
    /// # Errors
    /// The caller may not.
    pub async fn set_owner(&self, uid: Option<u32>, gid: Option<u32>) -> Result<()> {
        self.sys.set_owner(&self.node, uid, gid).await
    }

    /// Sets times of last access and change; `None` leaves one as it is.
    ///
    /// # Errors
    /// The caller is not its owner.
    pub async fn set_times(&self, accessed: Option<Time>, modified: Option<Time>) -> Result<()> {
        self.sys.set_times(&self.node, accessed, modified).await
    }

    /// The value of an extended attribute; its name has a prefix such as `user.`.
    ///
    /// # Errors
    /// [`Error::NoData`] where there is none.
    pub async fn xattr(&self, name: impl AsRef<[u8]>) -> Result<Vec<u8>> {
        self.sys.xattr(&self.node, name.as_ref()).await
    }

    /// Names of the extended attributes that the caller may see.
    ///
    /// # Errors
    /// The attributes are damaged.
    pub async fn xattrs(&self) -> Result<Vec<Vec<u8>>> {
        self.sys.xattrs(&self.node).await
    }

    /// Sets an extended attribute.
    ///
    /// # Errors
    /// As `lsetxattr(2)`.
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
    /// [`Error::NoData`] where there is none.
    pub async fn remove_xattr(&self, name: impl AsRef<[u8]>) -> Result<()> {
        self.sys.remove_xattr(&self.node, name.as_ref()).await
    }
}
