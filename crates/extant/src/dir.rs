//! Directories, for code that blocks.

use crate::world::World;
use crate::{
    Acl, AclKind, DirEntry, File, FileOptions, InodeFlags, Metadata, RenameMode, Result, Special, Time, Walk,
    XattrMode, asynch,
};

/// A directory. Paths are relative to it; one that begins with a slash is relative to the volume's root.
///
/// Paths are bytes, as volumes keep them: anything but NUL and, within a name, `/`.
///
/// ```
/// # fn main() -> Result<(), extant::Error> {
/// # let folder = tempfile::tempdir().unwrap();
/// # let path = folder.path().join("disk.img");
/// # let (options, created) = (extant_image::VolumeOptions { size: extant_image::SizePolicy::Fixed(16 << 20), ..Default::default() },
/// #     extant_image::Timestamp { seconds: 1_700_000_000, nanos: 0 });
/// # extant_image::mkfs(&path, &options, created, &extant_rt::Rt::real(Default::default()), std::sync::Arc::new(|_, _| {})).unwrap();
/// # let volume = extant::Volume::open(&path, &extant::OpenOptions::new().write(true)).unwrap();
/// let root = volume.root();
/// root.create_dir_all("etc/init.d")?;
/// root.write("etc/hostname", "box\n")?;
/// root.symlink("../hostname", "etc/init.d/name")?;
/// assert_eq!(root.read("etc/init.d/name")?, b"box\n");
/// root.rename("etc/hostname", "etc/name")?;
/// assert!(!root.try_exists("etc/init.d/name")?, "the link leads nowhere now");
/// root.remove_dir_all("etc")?;
/// # volume.close()
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Dir {
    pub(crate) world: World,
    inner: asynch::Dir,
}

impl Dir {
    pub(crate) fn new(world: World, inner: asynch::Dir) -> Self {
        Self { world, inner }
    }

    /// The same directory for code that awaits.
    pub fn asynch(&self) -> &asynch::Dir {
        &self.inner
    }

    /// Gives a file that has none a name, or any open file another one.
    ///
    /// # Errors
    /// As [`Dir::hard_link`].
    pub fn link_file(&self, file: &File, to: impl AsRef<[u8]>) -> Result<()> {
        self.world.wait(self.inner.link_file(file.asynch(), to))
    }

    /// As [`Dir::link_file`], in place of what has the name: see [`Inode::link_over`](crate::Inode::link_over).
    ///
    /// # Errors
    /// As there.
    pub fn link_file_over(&self, file: &File, to: impl AsRef<[u8]>) -> Result<()> {
        self.world.wait(self.inner.link_file_over(file.asynch(), to))
    }

    /// Opens a file for reading.
    ///
    /// # Errors
    /// There is none, it is a directory, or it may not be read.
    pub fn open(&self, path: impl AsRef<[u8]>) -> Result<File> {
        Ok(File::new(self.world.clone(), self.world.wait(self.inner.open(path))?))
    }

    /// Opens a file for writing; creates it with mode 0644 without the umask, or empties it.
    ///
    /// # Errors
    /// As [`Dir::open_with`].
    pub fn create(&self, path: impl AsRef<[u8]>) -> Result<File> {
        Ok(File::new(self.world.clone(), self.world.wait(self.inner.create(path))?))
    }

    /// Copies a file's contents and permissions to another path, as `std::fs::copy`, and returns its length; holes stay holes.
    ///
    /// # Errors
    /// As [`Dir::open_with`] and [`File::copy_range`]; both paths lead to one file.
    pub fn copy(&self, from: impl AsRef<[u8]>, to: impl AsRef<[u8]>) -> Result<u64> {
        self.world.wait(self.inner.copy(from, to))
    }

    /// Opens a file as the options say.
    ///
    /// # Errors
    /// As `open(2)`: there is no such file and none is to be created; there is one and a new one was asked for; it is a
    /// directory or no regular file; permissions; no space.
    pub fn open_with(&self, path: impl AsRef<[u8]>, options: &FileOptions) -> Result<File> {
        Ok(File::new(self.world.clone(), self.world.wait(self.inner.open_with(path, options))?))
    }

    /// A directory below this one.
    ///
    /// # Errors
    /// There is none, or the path leads to something else.
    pub fn open_dir(&self, path: impl AsRef<[u8]>) -> Result<Self> {
        Ok(Self::new(self.world.clone(), self.world.wait(self.inner.open_dir(path))?))
    }

    /// Attributes of the file that a path leads to, symbolic links followed.
    ///
    /// # Errors
    /// There is none, or a directory on the way may not be searched.
    pub fn metadata(&self, path: impl AsRef<[u8]>) -> Result<Metadata> {
        self.world.wait(self.inner.metadata(path))
    }

    /// As [`Dir::metadata`], of the symbolic link itself where the path names one.
    ///
    /// # Errors
    /// As there.
    pub fn symlink_metadata(&self, path: impl AsRef<[u8]>) -> Result<Metadata> {
        // Most are answered here and now.
        match self.inner.known_metadata(path.as_ref()) {
            Some(known) => Ok(known),
            None => self.world.wait(self.inner.symlink_metadata(path)),
        }
    }

    /// Whether a path leads to anything.
    ///
    /// # Errors
    /// Anything but its absence.
    pub fn try_exists(&self, path: impl AsRef<[u8]>) -> Result<bool> {
        self.world.wait(self.inner.try_exists(path))
    }

    /// The names in this directory, without the dots, in the volume's order.
    ///
    /// # Errors
    /// The directory may not be read, or is damaged.
    pub fn entries(&self) -> Result<Vec<DirEntry>> {
        self.world.wait(self.inner.entries())
    }

    /// The target of a symbolic link.
    ///
    /// # Errors
    /// The path leads to something else.
    pub fn read_link(&self, path: impl AsRef<[u8]>) -> Result<Vec<u8>> {
        self.world.wait(self.inner.read_link(path))
    }

    /// Makes a directory with mode 0755 without the umask.
    ///
    /// # Errors
    /// The name exists; no permission; no space.
    pub fn create_dir(&self, path: impl AsRef<[u8]>) -> Result<()> {
        self.world.wait(self.inner.create_dir(path))
    }

    /// Makes a directory with this mode without the umask.
    ///
    /// # Errors
    /// As [`Dir::create_dir`].
    pub fn create_dir_with(&self, path: impl AsRef<[u8]>, mode: u32) -> Result<()> {
        self.world.wait(self.inner.create_dir_with(path, mode))
    }

    /// Makes a directory and those above it that are missing.
    ///
    /// # Errors
    /// As [`Dir::create_dir`], except that the directory may exist.
    pub fn create_dir_all(&self, path: impl AsRef<[u8]>) -> Result<()> {
        self.world.wait(self.inner.create_dir_all(path))
    }

    /// Makes a symbolic link at `path` that leads to `target`.
    ///
    /// # Errors
    /// As [`Dir::create_dir`]; a target that is empty or does not fit a block.
    pub fn symlink(&self, target: impl AsRef<[u8]>, path: impl AsRef<[u8]>) -> Result<()> {
        self.world.wait(self.inner.symlink(target, path))
    }

    /// Makes a device node, named pipe or socket.
    ///
    /// # Errors
    /// As [`Dir::create_dir`].
    pub fn create_special(&self, path: impl AsRef<[u8]>, special: Special, mode: u32) -> Result<()> {
        self.world.wait(self.inner.create_special(path, special, mode))
    }

    /// Gives a file another name. A symbolic link is linked itself, not followed.
    ///
    /// # Errors
    /// The new name exists; the file is a directory, or has as many links as an inode can have.
    pub fn hard_link(&self, from: impl AsRef<[u8]>, to: impl AsRef<[u8]>) -> Result<()> {
        self.world.wait(self.inner.hard_link(from, to))
    }

    /// Removes a name of anything but a directory. The contents go with the last name and the last open file.
    ///
    /// # Errors
    /// There is none; it is a directory; no permission.
    pub fn remove_file(&self, path: impl AsRef<[u8]>) -> Result<()> {
        self.world.wait(self.inner.remove_file(path))
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// There is none; it is not empty, or no directory; no permission.
    pub fn remove_dir(&self, path: impl AsRef<[u8]>) -> Result<()> {
        self.world.wait(self.inner.remove_dir(path))
    }

    /// Removes a directory and everything below it. Symbolic links are removed, not followed, also where one takes a
    /// directory's place meanwhile.
    ///
    /// # Errors
    /// As [`Dir::remove_dir`] and [`Dir::remove_file`]; what was removed before stays removed. The root stays as it is. A
    /// directory that gets new names meanwhile is not empty.
    pub fn remove_dir_all(&self, path: impl AsRef<[u8]>) -> Result<()> {
        self.world.wait(self.inner.remove_dir_all(path))
    }

    /// Renames; an existing target is replaced.
    ///
    /// # Errors
    /// As `rename(2)`.
    pub fn rename(&self, from: impl AsRef<[u8]>, to: impl AsRef<[u8]>) -> Result<()> {
        self.world.wait(self.inner.rename(from, to))
    }

    /// As [`Dir::rename`], to a path below another directory of the same volume.
    ///
    /// # Errors
    /// As there; [`CrossDevice`](crate::Error::CrossDevice) where the volumes differ.
    pub fn rename_to(&self, from: impl AsRef<[u8]>, to_dir: &Self, to: impl AsRef<[u8]>) -> Result<()> {
        self.world.wait(self.inner.rename_to(from, &to_dir.inner, to))
    }

    /// Renames as the flags say.
    ///
    /// # Errors
    /// As `renameat2(2)`.
    pub fn rename_with(&self, from: impl AsRef<[u8]>, to: impl AsRef<[u8]>, mode: RenameMode) -> Result<()> {
        self.world.wait(self.inner.rename_with(from, to, mode))
    }

    /// Sets the permission bits, setuid, setgid and sticky of the file that a path leads to.
    ///
    /// # Errors
    /// The caller is not its owner.
    pub fn set_mode(&self, path: impl AsRef<[u8]>, mode: u32) -> Result<()> {
        self.world.wait(self.inner.set_mode(path, mode))
    }

    /// Sets owner and group; `None` leaves one as it is. A symbolic link is changed itself.
    ///
    /// # Errors
    /// The caller may not.
    pub fn set_owner(&self, path: impl AsRef<[u8]>, uid: Option<u32>, gid: Option<u32>) -> Result<()> {
        self.world.wait(self.inner.set_owner(path, uid, gid))
    }

    /// Sets times of last access and change; `None` leaves one as it is. A symbolic link is changed itself.
    ///
    /// # Errors
    /// The caller is not its owner.
    pub fn set_times(
        &self,
        path: impl AsRef<[u8]>,
        accessed: Option<Time>,
        modified: Option<Time>,
    ) -> Result<()> {
        self.world.wait(self.inner.set_times(path, accessed, modified))
    }

    /// Sets the flags that `chattr` changes to those of `flags`. Symbolic links are followed.
    ///
    /// # Errors
    /// The caller is not its owner or lacks a capability; it is no file or directory; a flag that is not supported.
    pub fn set_flags(&self, path: impl AsRef<[u8]>, flags: InodeFlags) -> Result<()> {
        self.world.wait(self.inner.set_flags(path, flags))
    }

    /// Sets the project that a file belongs to. Symbolic links are followed.
    ///
    /// # Errors
    /// [`NotSupported`](crate::Error::NotSupported) on a volume without the feature `project`; the caller is not its owner.
    pub fn set_project(&self, path: impl AsRef<[u8]>, project: u32) -> Result<()> {
        self.world.wait(self.inner.set_project(path, project))
    }

    /// An access control list; `None` where the mode says it all. Symbolic links are followed.
    ///
    /// # Errors
    /// The attributes are damaged.
    pub fn acl(&self, path: impl AsRef<[u8]>, kind: AclKind) -> Result<Option<Acl>> {
        self.world.wait(self.inner.acl(path, kind))
    }

    /// Sets an access control list, which changes the mode with it, or removes one. Symbolic links are followed.
    ///
    /// # Errors
    /// The caller is not its owner; a list for what is inherited belongs to a directory only.
    pub fn set_acl(&self, path: impl AsRef<[u8]>, kind: AclKind, list: Option<&Acl>) -> Result<()> {
        self.world.wait(self.inner.set_acl(path, kind, list))
    }

    /// Everything below this directory, one after the other; see [`Walk`].
    pub fn walk(&self) -> Walk {
        Walk::new(self.world.clone(), self.inner.walk())
    }

    /// Sets the size of a file: what lies beyond is gone, what is new reads as zeroes.
    ///
    /// # Errors
    /// It is no regular file, or may not be written.
    pub fn set_len(&self, path: impl AsRef<[u8]>, size: u64) -> Result<()> {
        self.world.wait(self.inner.set_len(path, size))
    }

    /// The value of an extended attribute; its name has a prefix such as `user.`. Symbolic links are not followed.
    ///
    /// # Errors
    /// [`NoData`](crate::Error::NoData) where there is none.
    pub fn xattr(&self, path: impl AsRef<[u8]>, name: impl AsRef<[u8]>) -> Result<Vec<u8>> {
        self.world.wait(self.inner.xattr(path, name))
    }

    /// Names of the extended attributes that the caller may see. Symbolic links are not followed.
    ///
    /// # Errors
    /// The attributes are damaged.
    pub fn xattrs(&self, path: impl AsRef<[u8]>) -> Result<Vec<Vec<u8>>> {
        self.world.wait(self.inner.xattrs(path))
    }

    /// Sets an extended attribute. Symbolic links are not followed.
    ///
    /// # Errors
    /// As `lsetxattr(2)`.
    pub fn set_xattr(
        &self,
        path: impl AsRef<[u8]>,
        name: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        mode: XattrMode,
    ) -> Result<()> {
        self.world.wait(self.inner.set_xattr(path, name, value, mode))
    }

    /// Removes an extended attribute. Symbolic links are not followed.
    ///
    /// # Errors
    /// [`NoData`](crate::Error::NoData) where there is none.
    pub fn remove_xattr(&self, path: impl AsRef<[u8]>, name: impl AsRef<[u8]>) -> Result<()> {
        self.world.wait(self.inner.remove_xattr(path, name))
    }

    /// Makes this directory's names and attributes durable.
    ///
    /// # Errors
    /// Something could not be written.
    pub fn sync(&self) -> Result<()> {
        self.world.wait(self.inner.sync())
    }

    /// A file without a name, open for reading and writing.
    ///
    /// # Errors
    /// As [`Dir::create`].
    pub fn tempfile(&self, mode: u32) -> Result<File> {
        Ok(File::new(self.world.clone(), self.world.wait(self.inner.tempfile(mode))?))
    }

    /// The whole contents of a file.
    ///
    /// # Errors
    /// As [`Dir::open`].
    pub fn read(&self, path: impl AsRef<[u8]>) -> Result<Vec<u8>> {
        self.world.wait(self.inner.read(path))
    }

    /// Creates or replaces a file with these contents.
    ///
    /// # Errors
    /// As [`Dir::create`]; [`NoSpace`](crate::Error::NoSpace), with what fits written.
    pub fn write(&self, path: impl AsRef<[u8]>, contents: impl AsRef<[u8]>) -> Result<()> {
        self.world.wait(self.inner.write(path, contents))
    }
}
