//! Inodes as such, for code that blocks.

use crate::world::World;
use crate::{Dir, File, FileOptions, Metadata, NewFile, Result, Time, XattrMode, asynch};

/// A file of any kind, not open for I/O, like an `O_PATH` descriptor.
///
/// It refers to the same inode when names change, and while it has none. An inode without names is
/// freed with the last `Inode` or [`File`] that refers to it.
///
/// An inode created without a name can be filled and given its attributes before anyone sees it:
///
/// ```
/// # fn main() -> Result<(), extant::Error> {
/// # let folder = tempfile::tempdir().unwrap();
/// # let path = folder.path().join("disk.img");
/// # extant::Volume::create(&path, 16 << 20).unwrap().close().unwrap();
/// # let volume = extant::Volume::open(&path, &extant::OpenOptions::new().write(true)).unwrap();
/// # let root = volume.root();
/// # root.write("config", "old")?;
/// use extant::{FileOptions, NewFile};
///
/// let new = root.unnamed(".", NewFile::Regular, 0o600)?;
/// new.open(FileOptions::new().write(true))?.write_all_at(0, b"new")?;
/// new.set_owner(Some(1000), Some(1000))?;
/// new.link_over(&root, "config")?; // after a power cut: the old file, or all of this
/// assert_eq!(root.read("config")?, b"new");
/// # drop(new);
/// # volume.close()
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Inode {
    world: World,
    inner: asynch::Inode,
}

impl Dir {
    /// Creates a file without a name, to be linked in the directory at `path` later: it is placed
    /// near that directory and inherits from it.
    ///
    /// Once complete, [`Inode::link`] or [`Inode::link_over`] gives it a name; a power cut before
    /// that leaves no trace of it.
    ///
    /// # Errors
    /// No such directory; no permission; no space; or a symlink target that is empty or does not
    /// fit in a block.
    pub fn unnamed(&self, path: impl AsRef<[u8]>, new: NewFile<'_>, mode: u32) -> Result<Inode> {
        Ok(Inode::new(self.world.clone(), self.world.wait(self.asynch().unnamed(path, new, mode))?))
    }

    /// The inode at a path; a symbolic link in the last component is not followed.
    ///
    /// # Errors
    /// Not found, or a directory on the way may not be searched.
    pub fn inode(&self, path: impl AsRef<[u8]>) -> Result<Inode> {
        Ok(Inode::new(self.world.clone(), self.world.wait(self.asynch().inode(path))?))
    }
}

impl Inode {
    pub(crate) fn new(world: World, inner: asynch::Inode) -> Self {
        Self { world, inner }
    }

    /// The same inode, for async code.
    pub fn asynch(&self) -> &asynch::Inode {
        &self.inner
    }

    /// Attributes.
    ///
    /// # Errors
    /// The inode is damaged.
    pub fn metadata(&self) -> Result<Metadata> {
        self.world.wait(self.inner.metadata())
    }

    /// Opens a regular file for I/O; options that create a file are ignored.
    ///
    /// # Errors
    /// Not a regular file, or no permission.
    pub fn open(&self, options: &FileOptions) -> Result<File> {
        Ok(File::new(self.world.clone(), self.world.wait(self.inner.open(options))?))
    }

    /// Links it under a name: its first, once its data is written, or another one.
    ///
    /// # Errors
    /// The name exists; it is a directory, or has the maximum number of links; or its data cannot
    /// be written.
    pub fn link(&self, dir: &Dir, to: impl AsRef<[u8]>) -> Result<()> {
        self.world.wait(self.inner.link(dir.asynch(), to))
    }

    /// Like [`Inode::link`], but atomically replaces anything except a directory at that name:
    /// after a power cut the name refers to the old file, or to the new one with its data. A
    /// symbolic link is replaced, not followed. A name that already refers to this inode is left
    /// alone.
    ///
    /// # Errors
    /// Those of [`Inode::link`]; the name is a directory's.
    pub fn link_over(&self, dir: &Dir, to: impl AsRef<[u8]>) -> Result<()> {
        self.world.wait(self.inner.link_over(dir.asynch(), to))
    }

    /// Sets the permission bits, setuid, setgid and sticky.
    ///
    /// # Errors
    /// The caller is not its owner, or it is a symbolic link.
    pub fn set_mode(&self, mode: u32) -> Result<()> {
        self.world.wait(self.inner.set_mode(mode))
    }

    /// Sets owner and group; `None` leaves either unchanged.
    ///
    /// # Errors
    /// The caller may not.
    pub fn set_owner(&self, uid: Option<u32>, gid: Option<u32>) -> Result<()> {
        self.world.wait(self.inner.set_owner(uid, gid))
    }

    /// Sets access and modification times; `None` leaves either unchanged.
    ///
    /// # Errors
    /// The caller is not its owner.
    pub fn set_times(&self, accessed: Option<Time>, modified: Option<Time>) -> Result<()> {
        self.world.wait(self.inner.set_times(accessed, modified))
    }

    /// Returns the value of an extended attribute; the name has a prefix such as `user.`.
    ///
    /// # Errors
    /// [`NoData`](crate::Error::NoData) if there is none.
    pub fn xattr(&self, name: impl AsRef<[u8]>) -> Result<Vec<u8>> {
        self.world.wait(self.inner.xattr(name))
    }

    /// Names of the extended attributes visible to the caller.
    ///
    /// # Errors
    /// The attributes are damaged.
    pub fn xattrs(&self) -> Result<Vec<Vec<u8>>> {
        self.world.wait(self.inner.xattrs())
    }

    /// Sets an extended attribute.
    ///
    /// # Errors
    /// Same as `lsetxattr(2)`.
    pub fn set_xattr(&self, name: impl AsRef<[u8]>, value: impl AsRef<[u8]>, mode: XattrMode) -> Result<()> {
        self.world.wait(self.inner.set_xattr(name, value, mode))
    }

    /// Removes an extended attribute.
    ///
    /// # Errors
    /// [`NoData`](crate::Error::NoData) if there is none.
    pub fn remove_xattr(&self, name: impl AsRef<[u8]>) -> Result<()> {
        self.world.wait(self.inner.remove_xattr(name))
    }

    /// Sets extended attributes, and removes those given without a value. All changes are made or
    /// none, even if there is an error or a crash.
    ///
    /// # Errors
    /// As [`Inode::set_xattr`] and [`Inode::remove_xattr`].
    pub fn change_xattrs(&self, changes: &[(&[u8], Option<&[u8]>)]) -> Result<()> {
        self.world.wait(self.inner.change_xattrs(changes))
    }
}
