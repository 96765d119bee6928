//! Inodes by themselves, for code that blocks.

use crate::world::World;
use crate::{Dir, File, FileOptions, Metadata, NewFile, Result, Time, XattrMode, asynch};

/// A file of any kind without being open for its contents, as a descriptor of `O_PATH`. It stays what it is when names change,
/// and while it has none. An inode that has no name is gone with the last `Inode` or [`File`] of it.
///
/// One that is made without a name can be filled and given its attributes before anybody sees it:
///
/// ```
/// # fn main() -> Result<(), extant::Error> {
/// # let folder = tempfile::tempdir().unwrap();
/// # let path = folder.path().join("disk.img");
/// # let (options, created) = (extant_image::VolumeOptions { size: extant_image::SizePolicy::Fixed(16 << 20), ..Default::default() },
/// #     extant_image::Timestamp { seconds: 1_700_000_000, nanos: 0 });
/// # extant_image::mkfs(&path, &options, created, &extant_rt::Rt::real(Default::default()), std::sync::Arc::new(|_, _| {})).unwrap();
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
    /// Makes a file without a name, which belongs where `path` leads: near that directory, and with what that hands down. Once
    /// it is complete, [`Inode::link`] or [`Inode::link_over`] gives it a name; a power cut before that leaves nothing of it.
    ///
    /// # Errors
    /// There is no such directory; no permission; no space; a target that is empty or does not fit a block.
    pub fn unnamed(&self, path: impl AsRef<[u8]>, new: NewFile<'_>, mode: u32) -> Result<Inode> {
        Ok(Inode::new(self.world.clone(), self.world.wait(self.asynch().unnamed(path, new, mode))?))
    }

    /// The inode that a path leads to; a symbolic link in the last place is not followed.
    ///
    /// # Errors
    /// There is none, or a directory on the way may not be searched.
    pub fn inode(&self, path: impl AsRef<[u8]>) -> Result<Inode> {
        Ok(Inode::new(self.world.clone(), self.world.wait(self.asynch().inode(path))?))
    }
}

impl Inode {
    pub(crate) fn new(world: World, inner: asynch::Inode) -> Self {
        Self { world, inner }
    }

    /// The same inode for code that awaits.
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

    /// Opens the contents of a regular file; the options that create one mean nothing here.
    ///
    /// # Errors
    /// It is no regular file; permissions.
    pub fn open(&self, options: &FileOptions) -> Result<File> {
        Ok(File::new(self.world.clone(), self.world.wait(self.inner.open(options))?))
    }

    /// Gives it a name: its first, once its data are written, or another one.
    ///
    /// # Errors
    /// The name exists; it is a directory, or has as many links as an inode can have; data cannot be written.
    pub fn link(&self, dir: &Dir, to: impl AsRef<[u8]>) -> Result<()> {
        self.world.wait(self.inner.link(dir.asynch(), to))
    }

    /// As [`Inode::link`], in place of whatever but a directory has the name, in one step: after a power cut the name leads to
    /// the old file or the new one, with its data. A symbolic link is replaced, not followed; a name of this inode itself stays.
    ///
    /// # Errors
    /// As there; a directory has the name.
    pub fn link_over(&self, dir: &Dir, to: impl AsRef<[u8]>) -> Result<()> {
        self.world.wait(self.inner.link_over(dir.asynch(), to))
    }

    /// Sets the permission bits, setuid, setgid and sticky.
    ///
    /// # Errors
    /// The caller is not its owner; it is a symbolic link.
    pub fn set_mode(&self, mode: u32) -> Result<()> {
        self.world.wait(self.inner.set_mode(mode))
    }

    /// Sets owner and group; `None` leaves one as it is.
    ///
    /// # Errors
    /// The caller may not.
    pub fn set_owner(&self, uid: Option<u32>, gid: Option<u32>) -> Result<()> {
        self.world.wait(self.inner.set_owner(uid, gid))
    }

    /// Sets times of last access and change; `None` leaves one as it is.
    ///
    /// # Errors
    /// The caller is not its owner.
    pub fn set_times(&self, accessed: Option<Time>, modified: Option<Time>) -> Result<()> {
        self.world.wait(self.inner.set_times(accessed, modified))
    }

    /// The value of an extended attribute; its name has a prefix such as `user.`.
    ///
    /// # Errors
    /// [`NoData`](crate::Error::NoData) where there is none.
    pub fn xattr(&self, name: impl AsRef<[u8]>) -> Result<Vec<u8>> {
        self.world.wait(self.inner.xattr(name))
    }

    /// Names of the extended attributes that the caller may see.
    ///
    /// # Errors
    /// The attributes are damaged.
    pub fn xattrs(&self) -> Result<Vec<Vec<u8>>> {
        self.world.wait(self.inner.xattrs())
    }

    /// Sets an extended attribute.
    ///
    /// # Errors
    /// As `lsetxattr(2)`.
    pub fn set_xattr(&self, name: impl AsRef<[u8]>, value: impl AsRef<[u8]>, mode: XattrMode) -> Result<()> {
        self.world.wait(self.inner.set_xattr(name, value, mode))
    }

    /// Removes an extended attribute.
    ///
    /// # Errors
    /// [`NoData`](crate::Error::NoData) where there is none.
    pub fn remove_xattr(&self, name: impl AsRef<[u8]>) -> Result<()> {
        self.world.wait(self.inner.remove_xattr(name))
    }
}
