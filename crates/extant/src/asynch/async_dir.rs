//! Directories, and all operations on names.

use super::path_arguments::{NameAt, place, resolve};
use super::{File, Walk};
use crate::sys::{Node, Sys};
use crate::whole::Whole;
use crate::{
    Acl, AclKind, DirEntry, Error, FileOptions, FileType, InodeFlags, Metadata, NewFile, RenameMode, Result,
    Special, Time, XattrMode,
};
use extant_fs::{SYMLINKS_MAX, quote};

/// A directory that is being emptied.
struct Level {
    node: Node,
    name: Vec<u8>,
    /// Names not yet removed.
    entries: Vec<DirEntry>,
}

impl Level {
    async fn of(sys: &Sys, node: Node, name: Vec<u8>) -> Result<Self> {
        let entries = sys.read_dir(&node).await?;
        Ok(Self { node, name, entries })
    }
}

/// A directory. Paths are relative to it; a path that begins with a slash is relative to the
/// volume's root.
///
/// Paths are bytes, as on the volume: anything except NUL and, within a name, `/`.
#[derive(Clone, Debug)]
pub struct Dir {
    pub(crate) sys: Sys,
    pub(crate) node: Node,
}

impl Dir {
    pub(crate) fn new(sys: Sys, node: Node) -> Self {
        Self { sys, node }
    }

    /// Opens a file for reading.
    ///
    /// # Errors
    /// Not found, is a directory, or may not be read.
    pub async fn open(&self, path: impl AsRef<[u8]>) -> Result<File> {
        self.open_with(path, FileOptions::new().read(true)).await
    }

    /// Opens a file for writing: creates it with mode 0644, not subject to a umask, or truncates
    /// it.
    ///
    /// # Errors
    /// Same as [`Dir::open_with`].
    pub async fn create(&self, path: impl AsRef<[u8]>) -> Result<File> {
        self.open_with(path, FileOptions::new().write(true).create(true).truncate(true)).await
    }

    /// Copies a file's contents and permissions to another path, like `std::fs::copy`, and returns
    /// its length. Holes stay holes.
    ///
    /// # Errors
    /// Those of [`Dir::open_with`] and [`File::copy_range`]; both paths lead to the same file.
    pub async fn copy(&self, from: impl AsRef<[u8]>, to: impl AsRef<[u8]>) -> Result<u64> {
        let source = self.open(from).await?;
        let metadata = source.metadata()?;
        let mode = metadata.mode() & 0o7777;
        let mut options = FileOptions::new();
        let target = self.open_with(to.as_ref(), options.write(true).create(true).mode(mode & 0o777)).await?;
        if target.metadata()?.inode() == metadata.inode() {
            return Err(Error::Invalid(format!("{}: a copy of the file to itself", quote(to.as_ref()))));
        }
        target.set_len(0).await?;
        let len = source.len();
        let mut done = 0;
        while done < len {
            match source.copy_range(done, &target, done, len - done).await? {
                0 => break,
                copied => done += copied,
            }
        }
        target.set_mode(mode).await?;
        Ok(done)
    }

    /// Opens a file with the given options.
    ///
    /// # Errors
    /// Same as `open(2)`: not found and not to be created; exists although a new file was
    /// requested; a directory or not a regular file; no permission; no space.
    pub async fn open_with(&self, path: impl AsRef<[u8]>, options: &FileOptions) -> Result<File> {
        let path = path.as_ref();
        options.check()?;
        if options.creates_new() {
            let place = place(&self.sys, &self.node, path).await?;
            if place.wants_dir {
                return Err(Error::IsADirectory(quote(path)));
            }
            let node = self.sys.create(&place.dir, place.name, options.mode_bits()).await?;
            return self.sys.open_file(&node, options, true).await.map(File::new);
        }
        // Boxed to keep the future of the common case small.
        Box::pin(self.open_known(path, options)).await
    }

    /// Resolves where a new name goes, for anything except a directory: such a path may not end in
    /// a slash.
    pub(super) async fn new_name<'a>(&self, path: &'a [u8]) -> Result<NameAt<'a>> {
        let place = place(&self.sys, &self.node, path).await?;
        match place.wants_dir {
            false => Ok(place),
            true => match self.sys.lookup(&place.dir, place.name).await {
                Ok(_) => Err(Error::Exists(quote(path))),
                Err(error) => Err(error),
            },
        }
    }

    /// Like [`Self::open_with`], for options that allow an existing file.
    async fn open_known(&self, path: &[u8], options: &FileOptions) -> Result<File> {
        if options.creates() {
            let (mut start, mut at) = (self.node.clone(), path.to_vec());
            // A dangling symbolic link in the last component: the file is created at its target.
            for _ in 0..=SYMLINKS_MAX {
                let place = place(&self.sys, &start, &at).await?;
                if place.wants_dir {
                    return Err(Error::IsADirectory(quote(path)));
                }
                match self.sys.lookup(&place.dir, place.name).await {
                    Err(Error::NotFound(_)) => {
                        match self.sys.create(&place.dir, place.name, options.mode_bits()).await {
                            // Someone else has created it since.
                            Err(Error::Exists(_)) => {}
                            Err(error) => return Err(error),
                            Ok(node) => return self.sys.open_file(&node, options, true).await.map(File::new),
                        }
                    }
                    Err(error) => return Err(error),
                    Ok(node) if node.kind()? != FileType::Symlink => {
                        return self.sys.open_file(&node, options, false).await.map(File::new);
                    }
                    Ok(node) => {
                        let target = self.sys.read_link(&node).await?;
                        (start, at) = (place.dir, target);
                    }
                }
            }
            return Err(Error::Loop(quote(path)));
        }
        let node = resolve(&self.sys, &self.node, path, true).await?;
        self.sys.open_file(&node, options, false).await.map(File::new)
    }

    /// Opens a directory below this one.
    ///
    /// # Errors
    /// Not found, or not a directory.
    pub async fn open_dir(&self, path: impl AsRef<[u8]>) -> Result<Self> {
        let path = path.as_ref();
        let node = resolve(&self.sys, &self.node, path, true).await?;
        match node.kind()? {
            FileType::Dir => Ok(Self::new(self.sys.clone(), node)),
            _ => Err(Error::NotADirectory(quote(path))),
        }
    }

    /// Returns the attributes of the file at a path, following symbolic links.
    ///
    /// # Errors
    /// Not found, or a directory on the way may not be searched.
    pub async fn metadata(&self, path: impl AsRef<[u8]>) -> Result<Metadata> {
        match self.known_metadata(path.as_ref()) {
            Some(known) if known.file_type() != FileType::Symlink => Ok(known),
            _ => self.sys.metadata(&resolve(&self.sys, &self.node, path.as_ref(), true).await?).await,
        }
    }

    /// Like [`Dir::metadata`], but does not follow a symbolic link in the last component.
    ///
    /// # Errors
    /// Same as [`Dir::metadata`].
    pub async fn symlink_metadata(&self, path: impl AsRef<[u8]>) -> Result<Metadata> {
        match self.known_metadata(path.as_ref()) {
            Some(known) => Ok(known),
            None => self.sys.metadata(&resolve(&self.sys, &self.node, path.as_ref(), false).await?).await,
        }
    }

    /// Like [`Dir::symlink_metadata`] for a name in this directory, if known without I/O or
    /// waiting.
    pub(crate) fn known_metadata(&self, path: &[u8]) -> Option<Metadata> {
        if path.contains(&b'/') { None } else { self.sys.known_metadata(&self.node, path) }
    }

    /// Whether a path leads to an existing file.
    ///
    /// # Errors
    /// Any error except not found.
    pub async fn try_exists(&self, path: impl AsRef<[u8]>) -> Result<bool> {
        match self.metadata(path).await {
            Ok(_) => Ok(true),
            Err(Error::NotFound(_)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Lists this directory in on-disk order, without `.` and `..`.
    ///
    /// # Errors
    /// The directory may not be read, or is damaged.
    pub async fn entries(&self) -> Result<Vec<DirEntry>> {
        self.sys.read_dir(&self.node).await
    }

    /// Returns the target of a symbolic link.
    ///
    /// # Errors
    /// The path is not a symbolic link.
    pub async fn read_link(&self, path: impl AsRef<[u8]>) -> Result<Vec<u8>> {
        let path = path.as_ref();
        let node = resolve(&self.sys, &self.node, path, false).await?;
        match node.kind()? {
            FileType::Symlink => self.sys.read_link(&node).await,
            _ => Err(Error::Invalid(format!("{}: not a symbolic link", quote(path)))),
        }
    }

    /// Creates a directory with mode 0755, not subject to a umask.
    ///
    /// # Errors
    /// The name exists; no permission; no space.
    pub async fn create_dir(&self, path: impl AsRef<[u8]>) -> Result<()> {
        self.create_dir_with(path, 0o755).await
    }

    /// Creates a directory with the given mode, not subject to a umask.
    ///
    /// # Errors
    /// Same as [`Dir::create_dir`].
    pub async fn create_dir_with(&self, path: impl AsRef<[u8]>, mode: u32) -> Result<()> {
        let place = place(&self.sys, &self.node, path.as_ref()).await?;
        self.sys.mkdir(&place.dir, place.name, mode).await
    }

    /// Creates a directory and any missing parents.
    ///
    /// # Errors
    /// Those of [`Dir::create_dir`], except that the directory may exist.
    pub async fn create_dir_all(&self, path: impl AsRef<[u8]>) -> Result<()> {
        let path = path.as_ref();
        let path = &path[..path.iter().rposition(|&byte| byte != b'/').map_or(0, |last| last + 1)];
        let ends = path.iter().enumerate().filter(|&(_, &byte)| byte == b'/').map(|(at, _)| at);
        for end in ends.chain([path.len()]).filter(|&end| end > 0 && path[end - 1] != b'/') {
            match self.create_dir(&path[..end]).await {
                Err(Error::Exists(_)) if end < path.len() || self.metadata(path).await?.is_dir() => {}
                other => other?,
            }
        }
        Ok(())
    }

    /// Creates a symbolic link at `path` that points to `target`.
    ///
    /// # Errors
    /// Those of [`Dir::create_dir`]; a target that is empty or does not fit in a block.
    pub async fn symlink(&self, target: impl AsRef<[u8]>, path: impl AsRef<[u8]>) -> Result<()> {
        let place = self.new_name(path.as_ref()).await?;
        self.sys.symlink(&place.dir, place.name, target.as_ref()).await
    }

    /// Creates a device node, named pipe or socket.
    ///
    /// # Errors
    /// Same as [`Dir::create_dir`].
    pub async fn create_special(&self, path: impl AsRef<[u8]>, special: Special, mode: u32) -> Result<()> {
        let place = self.new_name(path.as_ref()).await?;
        self.sys.mknod(&place.dir, place.name, special, mode).await
    }

    /// Links a file under another name. A symbolic link is itself linked, not followed.
    ///
    /// # Errors
    /// The new name exists; the file is a directory, or has the maximum number of links.
    pub async fn hard_link(&self, from: impl AsRef<[u8]>, to: impl AsRef<[u8]>) -> Result<()> {
        self.inode(from).await?.link(self, to).await
    }

    /// Links an open file, which may have no name yet, under a name.
    ///
    /// # Errors
    /// Same as [`Dir::hard_link`].
    pub async fn link_file(&self, file: &File, to: impl AsRef<[u8]>) -> Result<()> {
        let place = self.new_name(to.as_ref()).await?;
        self.sys.link(file.node(), &place.dir, place.name).await
    }

    /// Unlinks anything except a directory. The contents are freed with the last name and the last
    /// open file.
    ///
    /// # Errors
    /// Not found; is a directory; no permission.
    pub async fn remove_file(&self, path: impl AsRef<[u8]>) -> Result<()> {
        let place = place(&self.sys, &self.node, path.as_ref()).await?;
        if place.wants_dir {
            let is_dir = self.sys.lookup(&place.dir, place.name).await?.kind()? == FileType::Dir;
            let path = quote(path.as_ref());
            return Err(if is_dir { Error::IsADirectory(path) } else { Error::NotADirectory(path) });
        }
        self.sys.unlink(&place.dir, place.name).await
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// Not found; not empty, or not a directory; no permission.
    pub async fn remove_dir(&self, path: impl AsRef<[u8]>) -> Result<()> {
        let place = place(&self.sys, &self.node, path.as_ref()).await?;
        self.sys.rmdir(&place.dir, place.name).await
    }

    /// Removes a directory and everything below it. Symbolic links are removed, not followed, even
    /// if one replaces a directory during the call.
    ///
    /// # Errors
    /// Those of [`Dir::remove_dir`] and [`Dir::remove_file`]; whatever was removed before the error
    /// stays removed. The root cannot be removed. Fails as not empty if a directory gets new names
    /// during the call. [`Error::Corrupt`] for a directory with a second name.
    pub async fn remove_dir_all(&self, path: impl AsRef<[u8]>) -> Result<()> {
        let top = path.as_ref().to_vec();
        let last = top.rsplit(|&byte| byte == b'/').find(|name| !name.is_empty());
        if matches!(last, Some(b"." | b"..")) {
            return Err(Error::Invalid(format!(
                "{}: a directory cannot be removed as `.` or `..`",
                quote(&top)
            )));
        }
        let place = place(&self.sys, &self.node, &top).await?;
        let node = self.sys.lookup(&place.dir, place.name).await?;
        match node.kind()? {
            FileType::Dir => {}
            FileType::Symlink if !place.wants_dir => {
                return self.sys.unlink(&place.dir, place.name).await;
            }
            _ => return Err(Error::NotADirectory(quote(&top))),
        }
        if node.inode() == self.sys.root().inode() {
            return Err(Error::Busy(quote(&top)));
        }
        // Emptying it would also empty it under its other names.
        self.sys.check_only_name(&place.dir, place.name).await?;
        let mut level = Level::of(&self.sys, node, place.name.to_vec()).await?;
        // The levels above, innermost last. No path is resolved twice.
        let mut above: Vec<Level> = Vec::new();
        loop {
            let Some(entry) = level.entries.pop() else {
                // Drop the node first, so that the inode is freed with the name.
                let name = level.name;
                drop(level.node);
                let Some(parent) = above.pop() else { return self.sys.rmdir(&place.dir, &name).await };
                self.sys.rmdir(&parent.node, &name).await?;
                level = parent;
                continue;
            };
            let node = match entry.file_type {
                Some(kind) if kind != FileType::Dir => None,
                _ => Some(self.sys.lookup(&level.node, &entry.name).await?),
            };
            match node {
                Some(node) if node.kind()? == FileType::Dir => {
                    self.sys.check_only_name(&level.node, &entry.name).await?;
                    let below = Level::of(&self.sys, node, entry.name).await?;
                    above.push(std::mem::replace(&mut level, below));
                }
                _ => self.sys.unlink(&level.node, &entry.name).await?,
            }
        }
    }

    /// Renames; an existing target is replaced.
    ///
    /// # Errors
    /// Same as `rename(2)`.
    pub async fn rename(&self, from: impl AsRef<[u8]>, to: impl AsRef<[u8]>) -> Result<()> {
        self.rename_with(from, to, RenameMode::Replace).await
    }

    /// Like [`Dir::rename`], but to a path below another directory of the same volume.
    ///
    /// # Errors
    /// Those of [`Dir::rename`]; [`Error::CrossDevice`] if the volumes differ.
    pub async fn rename_to(&self, from: impl AsRef<[u8]>, to_dir: &Self, to: impl AsRef<[u8]>) -> Result<()> {
        self.rename_between(from.as_ref(), to_dir, to.as_ref(), RenameMode::Replace).await
    }

    /// Renames with the given flags.
    ///
    /// # Errors
    /// Same as `renameat2(2)`.
    pub async fn rename_with(
        &self,
        from: impl AsRef<[u8]>,
        to: impl AsRef<[u8]>,
        mode: RenameMode,
    ) -> Result<()> {
        self.rename_between(from.as_ref(), self, to.as_ref(), mode).await
    }

    async fn rename_between(&self, from: &[u8], to_dir: &Self, to: &[u8], mode: RenameMode) -> Result<()> {
        let source = place(&self.sys, &self.node, from).await?;
        let target = place(&to_dir.sys, &to_dir.node, to).await?;
        if source.wants_dir || target.wants_dir {
            // If either path ends in a slash, the source must be a directory.
            let node = self.sys.lookup(&source.dir, source.name).await?;
            if node.kind()? != FileType::Dir {
                let path = if target.wants_dir { to } else { from };
                return Err(Error::NotADirectory(quote(path)));
            }
        }
        self.sys.rename((&source.dir, source.name), (&target.dir, target.name), mode).await
    }

    /// Sets the permission bits, setuid, setgid and sticky of the file at a path.
    ///
    /// # Errors
    /// The caller is not its owner.
    pub async fn set_mode(&self, path: impl AsRef<[u8]>, mode: u32) -> Result<()> {
        let node = resolve(&self.sys, &self.node, path.as_ref(), true).await?;
        self.sys.set_mode(&node, mode).await
    }

    /// Sets owner and group; `None` leaves either unchanged. Changes a symbolic link itself.
    ///
    /// # Errors
    /// The caller lacks permission.
    pub async fn set_owner(&self, path: impl AsRef<[u8]>, uid: Option<u32>, gid: Option<u32>) -> Result<()> {
        let node = resolve(&self.sys, &self.node, path.as_ref(), false).await?;
        self.sys.set_owner(&node, uid, gid).await
    }

    /// Sets access and modification times; `None` leaves either unchanged. Changes a symbolic link
    /// itself.
    ///
    /// # Errors
    /// The caller is not its owner.
    pub async fn set_times(
        &self,
        path: impl AsRef<[u8]>,
        accessed: Option<Time>,
        modified: Option<Time>,
    ) -> Result<()> {
        let node = resolve(&self.sys, &self.node, path.as_ref(), false).await?;
        self.sys.set_times(&node, accessed, modified).await
    }

    /// Sets the flags that `chattr` can change to their values in `flags`. Follows symbolic links.
    ///
    /// # Errors
    /// The caller is not its owner or lacks a capability; not a regular file or directory; or an
    /// unsupported flag.
    pub async fn set_flags(&self, path: impl AsRef<[u8]>, flags: InodeFlags) -> Result<()> {
        let node = resolve(&self.sys, &self.node, path.as_ref(), true).await?;
        self.sys.set_flags(&node, flags).await
    }

    /// Sets the project that a file belongs to. Follows symbolic links.
    ///
    /// # Errors
    /// [`Error::NotSupported`] on a volume without the `project` feature; the caller is not its
    /// owner.
    pub async fn set_project(&self, path: impl AsRef<[u8]>, project: u32) -> Result<()> {
        let node = resolve(&self.sys, &self.node, path.as_ref(), true).await?;
        self.sys.set_project(&node, project).await
    }

    /// Returns an access control list; `None` if the mode alone expresses it. Follows symbolic
    /// links.
    ///
    /// # Errors
    /// The attributes are damaged.
    pub async fn acl(&self, path: impl AsRef<[u8]>, kind: AclKind) -> Result<Option<Acl>> {
        let node = resolve(&self.sys, &self.node, path.as_ref(), true).await?;
        match self.sys.xattr(&node, kind.attribute()).await {
            Ok(value) => Ok(Some(Acl::parse_xattr(&value, node.inode())?)),
            Err(Error::NoData(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Sets an access control list, updating the mode to match, or removes one. Follows symbolic
    /// links.
    ///
    /// # Errors
    /// The caller is not its owner; or a default list for something other than a directory.
    pub async fn set_acl(&self, path: impl AsRef<[u8]>, kind: AclKind, list: Option<&Acl>) -> Result<()> {
        let node = resolve(&self.sys, &self.node, path.as_ref(), true).await?;
        match list {
            Some(list) => self.sys.set_xattr(&node, kind.attribute(), &list.to_xattr(), XattrMode::Any).await,
            None => self.sys.remove_xattr(&node, kind.attribute()).await,
        }
    }

    /// Walks everything below this directory; see [`Walk`].
    pub fn walk(&self) -> Walk {
        Walk::new(self.sys.clone(), self.node.clone())
    }

    /// Sets the size of a file: truncates, or extends with zeros.
    ///
    /// # Errors
    /// Not a regular file, or not writable.
    pub async fn set_len(&self, path: impl AsRef<[u8]>, size: u64) -> Result<()> {
        match self.open_with(path, FileOptions::new().write(true)).await {
            Ok(file) => file.set_len(size).await,
            // As truncate(2), which does not open the file.
            Err(Error::Special(place)) => Err(Error::NotAFile(place)),
            Err(error) => Err(error),
        }
    }

    /// Returns the value of an extended attribute; the name has a prefix such as `user.`. Does not
    /// follow symbolic links.
    ///
    /// # Errors
    /// [`Error::NoData`] if there is none.
    pub async fn xattr(&self, path: impl AsRef<[u8]>, name: impl AsRef<[u8]>) -> Result<Vec<u8>> {
        let node = resolve(&self.sys, &self.node, path.as_ref(), false).await?;
        self.sys.xattr(&node, name.as_ref()).await
    }

    /// Names of the extended attributes visible to the caller. Does not follow symbolic links.
    ///
    /// # Errors
    /// The attributes are damaged.
    pub async fn xattrs(&self, path: impl AsRef<[u8]>) -> Result<Vec<Vec<u8>>> {
        let node = resolve(&self.sys, &self.node, path.as_ref(), false).await?;
        self.sys.xattrs(&node).await
    }

    /// Sets an extended attribute. Does not follow symbolic links.
    ///
    /// # Errors
    /// Same as `lsetxattr(2)`.
    pub async fn set_xattr(
        &self,
        path: impl AsRef<[u8]>,
        name: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        mode: XattrMode,
    ) -> Result<()> {
        let node = resolve(&self.sys, &self.node, path.as_ref(), false).await?;
        self.sys.set_xattr(&node, name.as_ref(), value.as_ref(), mode).await
    }

    /// Removes an extended attribute. Does not follow symbolic links.
    ///
    /// # Errors
    /// [`Error::NoData`] if there is none.
    pub async fn remove_xattr(&self, path: impl AsRef<[u8]>, name: impl AsRef<[u8]>) -> Result<()> {
        let node = resolve(&self.sys, &self.node, path.as_ref(), false).await?;
        self.sys.remove_xattr(&node, name.as_ref()).await
    }

    /// Sets extended attributes, and removes those given without a value. All changes are made or
    /// none, even if there is an error or a crash. Does not follow symbolic links.
    ///
    /// # Errors
    /// As [`Dir::set_xattr`] and [`Dir::remove_xattr`].
    pub async fn change_xattrs(
        &self,
        path: impl AsRef<[u8]>,
        changes: &[(&[u8], Option<&[u8]>)],
    ) -> Result<()> {
        let node = resolve(&self.sys, &self.node, path.as_ref(), false).await?;
        self.sys.change_xattrs(&node, changes).await
    }

    /// Makes this directory's names and attributes durable.
    ///
    /// # Errors
    /// Something could not be written.
    pub async fn sync(&self) -> Result<()> {
        self.sys.sync_dir(&self.node).await
    }

    /// Creates a file without a name, open for reading and writing.
    ///
    /// # Errors
    /// Same as [`Dir::create`].
    pub async fn tempfile(&self, mode: u32) -> Result<File> {
        let node = self.sys.unnamed(&self.node, NewFile::Regular, mode).await?;
        self.sys.open_file(&node, FileOptions::new().read(true).write(true), true).await.map(File::new)
    }

    /// Returns the whole contents of a file.
    ///
    /// # Errors
    /// Those of [`Dir::open`]; [`Error::NoMemory`] if the contents do not fit in memory.
    pub async fn read(&self, path: impl AsRef<[u8]>) -> Result<Vec<u8>> {
        let file = self.open(path).await?;
        let mut whole = Whole::of(file.len())?;
        while let Some((at, piece)) = whole.next(file.len()) {
            let read = file.read_at(at, piece).await?;
            if !whole.has_read(read) {
                break;
            }
        }
        Ok(whole.finish())
    }

    /// Creates or replaces a file with these contents.
    ///
    /// # Errors
    /// Those of [`Dir::create`]; [`Error::NoSpace`], with as much written as fits.
    pub async fn write(&self, path: impl AsRef<[u8]>, contents: impl AsRef<[u8]>) -> Result<()> {
        self.create(path).await?.write_all_at(0, contents.as_ref()).await
    }
}
