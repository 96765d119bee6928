//! Directories, for code that blocks.

use crate::whole::Whole;
use crate::world::World;
use crate::{
    Acl, AclKind, DirEntry, File, FileOptions, InodeFlags, Metadata, RenameMode, Result, Special, Time, Walk,
    XattrMode, asynch,
};

/// A directory. Paths are relative to it; a path that begins with a slash is relative to the
/// volume's root.
///
/// Paths are bytes, as on the volume: anything except NUL and, within a name, `/`.
///
/// ```
/// # fn main() -> Result<(), extant::Error> {
/// # let folder = tempfile::tempdir().unwrap();
/// # let path = folder.path().join("disk.img");
/// # extant::Volume::create(&path, 16 << 20).unwrap().close().unwrap();
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

    /// The same directory, for async code.
    pub fn asynch(&self) -> &asynch::Dir {
        &self.inner
    }

    /// Links an open file, which may have no name yet, under a name.
    ///
    /// # Errors
    /// Same as [`Dir::hard_link`].
    pub fn link_file(&self, file: &File, to: impl AsRef<[u8]>) -> Result<()> {
        self.world.wait(self.inner.link_file(file.asynch(), to))
    }

    /// Like [`Dir::link_file`], but replaces an existing name: see
    /// [`Inode::link_over`](crate::Inode::link_over).
    ///
    /// # Errors
    /// Same as [`Inode::link_over`](crate::Inode::link_over).
    pub fn link_file_over(&self, file: &File, to: impl AsRef<[u8]>) -> Result<()> {
        self.world.wait(self.inner.link_file_over(file.asynch(), to))
    }

    /// Opens a file for reading.
    ///
    /// # Errors
    /// Not found, is a directory, or may not be read.
    pub fn open(&self, path: impl AsRef<[u8]>) -> Result<File> {
        Ok(File::new(self.world.clone(), self.world.wait(self.inner.open(path))?))
    }

    /// Opens a file for writing: creates it with mode 0644, not subject to a umask, or truncates
    /// it.
    ///
    /// # Errors
    /// Same as [`Dir::open_with`].
    pub fn create(&self, path: impl AsRef<[u8]>) -> Result<File> {
        Ok(File::new(self.world.clone(), self.world.wait(self.inner.create(path))?))
    }

    /// Copies a file's contents and permissions to another path, like `std::fs::copy`, and returns
    /// its length. Holes stay holes.
    ///
    /// # Errors
    /// Those of [`Dir::open_with`] and [`File::copy_range`]; both paths lead to the same file.
    pub fn copy(&self, from: impl AsRef<[u8]>, to: impl AsRef<[u8]>) -> Result<u64> {
        self.world.wait(self.inner.copy(from, to))
    }

    /// Opens a file with the given options.
    ///
    /// # Errors
    /// Same as `open(2)`: not found and not to be created; exists although a new file was
    /// requested; a directory or not a regular file; no permission; no space.
    pub fn open_with(&self, path: impl AsRef<[u8]>, options: &FileOptions) -> Result<File> {
        Ok(File::new(self.world.clone(), self.world.wait(self.inner.open_with(path, options))?))
    }

    /// Opens a directory below this one.
    ///
    /// # Errors
    /// Not found, or not a directory.
    pub fn open_dir(&self, path: impl AsRef<[u8]>) -> Result<Self> {
        Ok(Self::new(self.world.clone(), self.world.wait(self.inner.open_dir(path))?))
    }

    /// Returns the attributes of the file at a path, following symbolic links.
    ///
    /// # Errors
    /// Not found, or a directory on the way may not be searched.
    pub fn metadata(&self, path: impl AsRef<[u8]>) -> Result<Metadata> {
        self.world.wait(self.inner.metadata(path))
    }

    /// Like [`Dir::metadata`], but does not follow a symbolic link in the last component.
    ///
    /// # Errors
    /// Same as [`Dir::metadata`].
    pub fn symlink_metadata(&self, path: impl AsRef<[u8]>) -> Result<Metadata> {
        // Most are answered from memory.
        match self.inner.known_metadata(path.as_ref()) {
            Some(known) => Ok(known),
            None => self.world.wait(self.inner.symlink_metadata(path)),
        }
    }

    /// Whether a path leads to an existing file.
    ///
    /// # Errors
    /// Any error except not found.
    pub fn try_exists(&self, path: impl AsRef<[u8]>) -> Result<bool> {
        self.world.wait(self.inner.try_exists(path))
    }

    /// Lists this directory in on-disk order, without `.` and `..`.
    ///
    /// # Errors
    /// The directory may not be read, or is damaged.
    pub fn entries(&self) -> Result<Vec<DirEntry>> {
        self.world.wait(self.inner.entries())
    }

    /// Returns the target of a symbolic link.
    ///
    /// # Errors
    /// The path is not a symbolic link.
    pub fn read_link(&self, path: impl AsRef<[u8]>) -> Result<Vec<u8>> {
        self.world.wait(self.inner.read_link(path))
    }

    /// Creates a directory with mode 0755, not subject to a umask.
    ///
    /// # Errors
    /// The name exists; no permission; no space.
    pub fn create_dir(&self, path: impl AsRef<[u8]>) -> Result<()> {
        self.world.wait(self.inner.create_dir(path))
    }

    /// Creates a directory with the given mode, not subject to a umask.
    ///
    /// # Errors
    /// Same as [`Dir::create_dir`].
    pub fn create_dir_with(&self, path: impl AsRef<[u8]>, mode: u32) -> Result<()> {
        self.world.wait(self.inner.create_dir_with(path, mode))
    }

    /// Creates a directory and any missing parents.
    ///
    /// # Errors
    /// Those of [`Dir::create_dir`], except that the directory may exist.
    pub fn create_dir_all(&self, path: impl AsRef<[u8]>) -> Result<()> {
        self.world.wait(self.inner.create_dir_all(path))
    }

    /// Creates a symbolic link at `path` that points to `target`.
    ///
    /// # Errors
    /// Those of [`Dir::create_dir`]; a target that is empty or does not fit in a block.
    pub fn symlink(&self, target: impl AsRef<[u8]>, path: impl AsRef<[u8]>) -> Result<()> {
        self.world.wait(self.inner.symlink(target, path))
    }

    /// Creates a device node, named pipe or socket.
    ///
    /// # Errors
    /// Same as [`Dir::create_dir`].
    pub fn create_special(&self, path: impl AsRef<[u8]>, special: Special, mode: u32) -> Result<()> {
        self.world.wait(self.inner.create_special(path, special, mode))
    }

    /// Links a file under another name. A symbolic link is itself linked, not followed.
    ///
    /// # Errors
    /// The new name exists; the file is a directory, or has the maximum number of links.
    pub fn hard_link(&self, from: impl AsRef<[u8]>, to: impl AsRef<[u8]>) -> Result<()> {
        self.world.wait(self.inner.hard_link(from, to))
    }

    /// Unlinks anything except a directory. The contents are freed with the last name and the last
    /// open file.
    ///
    /// # Errors
    /// Not found; is a directory; no permission.
    pub fn remove_file(&self, path: impl AsRef<[u8]>) -> Result<()> {
        self.world.wait(self.inner.remove_file(path))
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// Not found; not empty, or not a directory; no permission.
    pub fn remove_dir(&self, path: impl AsRef<[u8]>) -> Result<()> {
        self.world.wait(self.inner.remove_dir(path))
    }

    /// Removes a directory and everything below it. Symbolic links are removed, not followed, even
    /// if one replaces a directory during the call.
    ///
    /// # Errors
    /// Those of [`Dir::remove_dir`] and [`Dir::remove_file`]; whatever was removed before the error
    /// stays removed. The root cannot be removed. Fails as not empty if a directory gets new names
    /// during the call.
    pub fn remove_dir_all(&self, path: impl AsRef<[u8]>) -> Result<()> {
        self.world.wait(self.inner.remove_dir_all(path))
    }

    /// Renames; an existing target is replaced.
    ///
    /// # Errors
    /// Same as `rename(2)`.
    pub fn rename(&self, from: impl AsRef<[u8]>, to: impl AsRef<[u8]>) -> Result<()> {
        self.world.wait(self.inner.rename(from, to))
    }

    /// Like [`Dir::rename`], but to a path below another directory of the same volume.
    ///
    /// # Errors
    /// Those of [`Dir::rename`]; [`CrossDevice`](crate::Error::CrossDevice) if the volumes differ.
    pub fn rename_to(&self, from: impl AsRef<[u8]>, to_dir: &Self, to: impl AsRef<[u8]>) -> Result<()> {
        self.world.wait(self.inner.rename_to(from, &to_dir.inner, to))
    }

    /// Renames with the given flags.
    ///
    /// # Errors
    /// Same as `renameat2(2)`.
    pub fn rename_with(&self, from: impl AsRef<[u8]>, to: impl AsRef<[u8]>, mode: RenameMode) -> Result<()> {
        self.world.wait(self.inner.rename_with(from, to, mode))
    }

    /// Sets the permission bits, setuid, setgid and sticky of the file at a path.
    ///
    /// # Errors
    /// The caller is not its owner.
    pub fn set_mode(&self, path: impl AsRef<[u8]>, mode: u32) -> Result<()> {
        self.world.wait(self.inner.set_mode(path, mode))
    }

    /// Sets owner and group; `None` leaves either unchanged. Changes a symbolic link itself.
    ///
    /// # Errors
    /// The caller lacks permission.
    pub fn set_owner(&self, path: impl AsRef<[u8]>, uid: Option<u32>, gid: Option<u32>) -> Result<()> {
        self.world.wait(self.inner.set_owner(path, uid, gid))
    }

    /// Sets access and modification times; `None` leaves either unchanged. Changes a symbolic link
    /// itself.
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

    /// Sets the flags that `chattr` can change to their values in `flags`. Follows symbolic links.
    ///
    /// # Errors
    /// The caller is not its owner or lacks a capability; not a regular file or directory; or an
    /// unsupported flag.
    pub fn set_flags(&self, path: impl AsRef<[u8]>, flags: InodeFlags) -> Result<()> {
        self.world.wait(self.inner.set_flags(path, flags))
    }

    /// Sets the project that a file belongs to. Follows symbolic links.
    ///
    /// # Errors
    /// [`NotSupported`](crate::Error::NotSupported) on a volume without the `project` feature; the
    /// caller is not its owner.
    pub fn set_project(&self, path: impl AsRef<[u8]>, project: u32) -> Result<()> {
        self.world.wait(self.inner.set_project(path, project))
    }

    /// Returns an access control list; `None` if the mode alone expresses it. Follows symbolic
    /// links.
    ///
    /// # Errors
    /// The attributes are damaged.
    pub fn acl(&self, path: impl AsRef<[u8]>, kind: AclKind) -> Result<Option<Acl>> {
        self.world.wait(self.inner.acl(path, kind))
    }

    /// Sets an access control list, updating the mode to match, or removes one. Follows symbolic
    /// links.
    ///
    /// # Errors
    /// The caller is not its owner; or a default list for something other than a directory.
    pub fn set_acl(&self, path: impl AsRef<[u8]>, kind: AclKind, list: Option<&Acl>) -> Result<()> {
        self.world.wait(self.inner.set_acl(path, kind, list))
    }

    /// Walks everything below this directory; see [`Walk`].
    pub fn walk(&self) -> Walk {
        Walk::new(self.world.clone(), self.inner.walk())
    }

    /// Sets the size of a file: truncates, or extends with zeros.
    ///
    /// # Errors
    /// Not a regular file, or not writable.
    pub fn set_len(&self, path: impl AsRef<[u8]>, size: u64) -> Result<()> {
        self.world.wait(self.inner.set_len(path, size))
    }

    /// Returns the value of an extended attribute; the name has a prefix such as `user.`. Does not
    /// follow symbolic links.
    ///
    /// # Errors
    /// [`NoData`](crate::Error::NoData) if there is none.
    pub fn xattr(&self, path: impl AsRef<[u8]>, name: impl AsRef<[u8]>) -> Result<Vec<u8>> {
        self.world.wait(self.inner.xattr(path, name))
    }

    /// Names of the extended attributes visible to the caller. Does not follow symbolic links.
    ///
    /// # Errors
    /// The attributes are damaged.
    pub fn xattrs(&self, path: impl AsRef<[u8]>) -> Result<Vec<Vec<u8>>> {
        self.world.wait(self.inner.xattrs(path))
    }

    /// Sets an extended attribute. Does not follow symbolic links.
    ///
    /// # Errors
    /// Same as `lsetxattr(2)`.
    pub fn set_xattr(
        &self,
        path: impl AsRef<[u8]>,
        name: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        mode: XattrMode,
    ) -> Result<()> {
        self.world.wait(self.inner.set_xattr(path, name, value, mode))
    }

    /// Removes an extended attribute. Does not follow symbolic links.
    ///
    /// # Errors
    /// [`NoData`](crate::Error::NoData) if there is none.
    pub fn remove_xattr(&self, path: impl AsRef<[u8]>, name: impl AsRef<[u8]>) -> Result<()> {
        self.world.wait(self.inner.remove_xattr(path, name))
    }

    /// Sets extended attributes, and removes those given without a value. All changes are made or
    /// none, even if there is an error or a crash. Does not follow symbolic links.
    ///
    /// # Errors
    /// As [`Dir::set_xattr`] and [`Dir::remove_xattr`].
    pub fn change_xattrs(&self, path: impl AsRef<[u8]>, changes: &[(&[u8], Option<&[u8]>)]) -> Result<()> {
        self.world.wait(self.inner.change_xattrs(path, changes))
    }

    /// Makes this directory's names and attributes durable.
    ///
    /// # Errors
    /// Something could not be written.
    pub fn sync(&self) -> Result<()> {
        self.world.wait(self.inner.sync())
    }

    /// Creates a file without a name, open for reading and writing.
    ///
    /// # Errors
    /// Same as [`Dir::create`].
    pub fn tempfile(&self, mode: u32) -> Result<File> {
        Ok(File::new(self.world.clone(), self.world.wait(self.inner.tempfile(mode))?))
    }

    /// The whole contents of a file.
    ///
    /// # Errors
    /// Same as [`Dir::open`].
    pub fn read(&self, path: impl AsRef<[u8]>) -> Result<Vec<u8>> {
        let file = self.open(path)?;
        let mut whole = Whole::of(file.len())?;
        while let Some((at, piece)) = whole.next(file.len()) {
            let read = file.read_at(at, piece)?;
            if !whole.has_read(read) {
                break;
            }
        }
        Ok(whole.finish())
    }

    /// Creates or replaces a file with these contents.
    ///
    /// # Errors
    /// Those of [`Dir::create`]; [`NoSpace`](crate::Error::NoSpace), with as much written as fits.
    pub fn write(&self, path: impl AsRef<[u8]>, contents: impl AsRef<[u8]>) -> Result<()> {
        self.create(path)?.write_all_at(0, contents.as_ref())
    }
}
