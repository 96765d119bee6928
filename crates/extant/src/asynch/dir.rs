//! Directories, and everything that is done to names.

use super::path::{LINKS_MAX, NameAt, place, resolve};
use super::{File, Walk};
use crate::sys::{Node, Sys};
use crate::{
    Acl, AclKind, DirEntry, Error, FileOptions, FileType, InodeFlags, Metadata, NewFile, RenameMode, Result,
    Special, Time, XattrMode,
};
use extant_fs::quote;

/// Bytes of a whole file that are read at a time.
const READ_BYTES: usize = 1 << 20;

/// A directory that is being emptied.
struct Level {
    node: Node,
    name: Vec<u8>,
    /// Names that are still there.
    entries: Vec<DirEntry>,
}

impl Level {
    async fn of(sys: &Sys, node: Node, name: Vec<u8>) -> Result<Self> {
        let entries = sys.read_dir(&node).await?;
        Ok(Self { node, name, entries })
    }
}

/// A directory. Paths are relative to it; one that begins with a slash is relative to the volume's root.
///
/// Paths are bytes, as volumes keep them: anything but NUL and, within a name, `/`.
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
    /// There is none, it is a directory, or it may not be read.
    pub async fn open(&self, path: impl AsRef<[u8]>) -> Result<File> {
        self.open_with(path, FileOptions::new().read(true)).await
    }

    /// Opens a file for writing; creates it with mode 0644 without the umask, or empties it.
    ///
    /// # Errors
    /// As [`Dir::open_with`].
    pub async fn create(&self, path: impl AsRef<[u8]>) -> Result<File> {
        self.open_with(path, FileOptions::new().write(true).create(true).truncate(true)).await
    }

    /// Copies a file's contents and permissions to another path, as `std::fs::copy`, and returns its length; holes stay holes.
    ///
    /// # Errors
    /// As [`Dir::open_with`] and [`File::copy_range`]; both paths lead to one file.
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

    /// Opens a file as the options say.
    ///
    /// # Errors
    /// As `open(2)`: there is no such file and none is to be created; there is one and a new one was asked for; it is a
    /// directory or no regular file; permissions; no space.
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
        // Boxed: the future of the common case stays small.
        Box::pin(self.open_known(path, options)).await
    }

    /// Where a name that is no directory's can be made: not before a final slash.
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

    /// As [`Self::open_with`], where the file may exist.
    async fn open_known(&self, path: &[u8], options: &FileOptions) -> Result<File> {
        if options.creates() {
            let (mut start, mut at) = (self.node.clone(), path.to_vec());
            // A dangling symbolic link in the last place is created where it leads.
            for _ in 0..=LINKS_MAX {
                let place = place(&self.sys, &start, &at).await?;
                if place.wants_dir {
                    return Err(Error::IsADirectory(quote(path)));
                }
                match self.sys.lookup(&place.dir, place.name).await {
                    Err(Error::NotFound(_)) => {
                        match self.sys.create(&place.dir, place.name, options.mode_bits()).await {
                            // Another has created it since.
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

    /// A directory below this one.
    ///
    /// # Errors
    /// There is none, or the path leads to something else.
    pub async fn open_dir(&self, path: impl AsRef<[u8]>) -> Result<Self> {
        let path = path.as_ref();
        let node = resolve(&self.sys, &self.node, path, true).await?;
        match node.kind()? {
            FileType::Dir => Ok(Self::new(self.sys.clone(), node)),
            _ => Err(Error::NotADirectory(quote(path))),
        }
    }

    /// Attributes of the file that a path leads to, symbolic links followed.
    ///
    /// # Errors
    /// There is none, or a directory on the way may not be searched.
    pub async fn metadata(&self, path: impl AsRef<[u8]>) -> Result<Metadata> {
        match self.known_metadata(path.as_ref()) {
            Some(known) if known.file_type() != FileType::Symlink => Ok(known),
            _ => self.sys.metadata(&resolve(&self.sys, &self.node, path.as_ref(), true).await?).await,
        }
    }

    /// As [`Dir::metadata`], of the symbolic link itself where the path names one.
    ///
    /// # Errors
    /// As there.
    pub async fn symlink_metadata(&self, path: impl AsRef<[u8]>) -> Result<Metadata> {
        match self.known_metadata(path.as_ref()) {
            Some(known) => Ok(known),
            None => self.sys.metadata(&resolve(&self.sys, &self.node, path.as_ref(), false).await?).await,
        }
    }

    /// As [`Dir::symlink_metadata`] of a name in this directory, if nothing must be read or waited for.
    pub(crate) fn known_metadata(&self, path: &[u8]) -> Option<Metadata> {
        if path.contains(&b'/') { None } else { self.sys.known_metadata(&self.node, path) }
    }

    /// Whether a path leads to anything.
    ///
    /// # Errors
    /// Anything but its absence.
    pub async fn try_exists(&self, path: impl AsRef<[u8]>) -> Result<bool> {
        match self.metadata(path).await {
            Ok(_) => Ok(true),
            Err(Error::NotFound(_)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The names in this directory, without the dots, in the volume's order.
    ///
    /// # Errors
    /// The directory may not be read, or is damaged.
    pub async fn entries(&self) -> Result<Vec<DirEntry>> {
        self.sys.read_dir(&self.node).await
    }

    /// The target of a symbolic link.
    ///
    /// # Errors
    /// The path leads to something else.
    pub async fn read_link(&self, path: impl AsRef<[u8]>) -> Result<Vec<u8>> {
        let path = path.as_ref();
        let node = resolve(&self.sys, &self.node, path, false).await?;
        match node.kind()? {
            FileType::Symlink => self.sys.read_link(&node).await,
            _ => Err(Error::Invalid(format!("{}: not a symbolic link", quote(path)))),
        }
    }

    /// Makes a directory with mode 0755 without the umask.
    ///
    /// # Errors
    /// The name exists; no permission; no space.
    pub async fn create_dir(&self, path: impl AsRef<[u8]>) -> Result<()> {
        self.create_dir_with(path, 0o755).await
    }

    /// Makes a directory with this mode without the umask.
    ///
    /// # Errors
    /// As [`Dir::create_dir`].
    pub async fn create_dir_with(&self, path: impl AsRef<[u8]>, mode: u32) -> Result<()> {
        let place = place(&self.sys, &self.node, path.as_ref()).await?;
        self.sys.mkdir(&place.dir, place.name, mode).await
    }

    /// Makes a directory and those above it that are missing.
    ///
    /// # Errors
    /// As [`Dir::create_dir`], except that the directory may exist.
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

    /// Makes a symbolic link at `path` that leads to `target`.
    ///
    /// # Errors
    /// As [`Dir::create_dir`]; a target that is empty or does not fit a block.
    pub async fn symlink(&self, target: impl AsRef<[u8]>, path: impl AsRef<[u8]>) -> Result<()> {
        let place = self.new_name(path.as_ref()).await?;
        self.sys.symlink(&place.dir, place.name, target.as_ref()).await
    }

    /// Makes a device node, named pipe or socket.
    ///
    /// # Errors
    /// As [`Dir::create_dir`].
    pub async fn create_special(&self, path: impl AsRef<[u8]>, special: Special, mode: u32) -> Result<()> {
        let place = self.new_name(path.as_ref()).await?;
        self.sys.mknod(&place.dir, place.name, special, mode).await
    }

    /// Gives a file another name. A symbolic link is linked itself, not followed.
    ///
    /// # Errors
    /// The new name exists; the file is a directory, or has as many links as an inode can have.
    pub async fn hard_link(&self, from: impl AsRef<[u8]>, to: impl AsRef<[u8]>) -> Result<()> {
        self.inode(from).await?.link(self, to).await
    }

    /// Gives a file that has none a name, or any open file another one.
    ///
    /// # Errors
    /// As [`Dir::hard_link`].
    pub async fn link_file(&self, file: &File, to: impl AsRef<[u8]>) -> Result<()> {
        let place = self.new_name(to.as_ref()).await?;
        self.sys.link(file.node(), &place.dir, place.name).await
    }

    /// Removes a name of anything but a directory. The contents go with the last name and the last open file.
    ///
    /// # Errors
    /// There is none; it is a directory; no permission.
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
    /// There is none; it is not empty, or no directory; no permission.
    pub async fn remove_dir(&self, path: impl AsRef<[u8]>) -> Result<()> {
        let place = place(&self.sys, &self.node, path.as_ref()).await?;
        self.sys.rmdir(&place.dir, place.name).await
    }

    /// Removes a directory and everything below it. Symbolic links are removed, not followed, also where one takes a
    /// directory's place meanwhile.
    ///
    /// # Errors
    /// As [`Dir::remove_dir`] and [`Dir::remove_file`]; what was removed before stays removed. The root stays as it is. A
    /// directory that gets new names meanwhile is not empty. [`Error::Corrupt`] at a directory with a second name.
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
        // What it holds would be gone under its other names, too.
        self.sys.check_only_name(&place.dir, place.name).await?;
        let mut level = Level::of(&self.sys, node, place.name.to_vec()).await?;
        // The levels above, the next one last. No path is resolved twice.
        let mut above: Vec<Level> = Vec::new();
        loop {
            let Some(entry) = level.entries.pop() else {
                // Its node goes first, so that the inode goes with the name.
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
    /// As `rename(2)`.
    pub async fn rename(&self, from: impl AsRef<[u8]>, to: impl AsRef<[u8]>) -> Result<()> {
        self.rename_with(from, to, RenameMode::Replace).await
    }

    /// As [`Dir::rename`], to a path below another directory of the same volume.
    ///
    /// # Errors
    /// As there; [`Error::CrossDevice`] where the volumes differ.
    pub async fn rename_to(&self, from: impl AsRef<[u8]>, to_dir: &Self, to: impl AsRef<[u8]>) -> Result<()> {
        self.rename_between(from.as_ref(), to_dir, to.as_ref(), RenameMode::Replace).await
    }

    /// Renames as the flags say.
    ///
    /// # Errors
    /// As `renameat2(2)`.
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
            // With a slash at the end of either path the source must be a directory.
            let node = self.sys.lookup(&source.dir, source.name).await?;
            if node.kind()? != FileType::Dir {
                let path = if target.wants_dir { to } else { from };
                return Err(Error::NotADirectory(quote(path)));
            }
        }
        self.sys.rename((&source.dir, source.name), (&target.dir, target.name), mode).await
    }

    /// Sets the permission bits, setuid, setgid and sticky of the file that a path leads to.
    ///
    /// # Errors
    /// The caller is not its owner.
    pub async fn set_mode(&self, path: impl AsRef<[u8]>, mode: u32) -> Result<()> {
        let node = resolve(&self.sys, &self.node, path.as_ref(), true).await?;
        self.sys.set_mode(&node, mode).await
    }

    /// Sets owner and group; `None` leaves one as it is. A symbolic link is changed itself.
    ///
    /// # Errors
    /// The caller may not.
    pub async fn set_owner(&self, path: impl AsRef<[u8]>, uid: Option<u32>, gid: Option<u32>) -> Result<()> {
        let node = resolve(&self.sys, &self.node, path.as_ref(), false).await?;
        self.sys.set_owner(&node, uid, gid).await
    }

    /// Sets times of last access and change; `None` leaves one as it is. A symbolic link is changed itself.
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

    /// Sets the flags that `chattr` changes to those of `flags`. Symbolic links are followed.
    ///
    /// # Errors
    /// The caller is not its owner or lacks a capability; it is no file or directory; a flag that is not supported.
    pub async fn set_flags(&self, path: impl AsRef<[u8]>, flags: InodeFlags) -> Result<()> {
        let node = resolve(&self.sys, &self.node, path.as_ref(), true).await?;
        self.sys.set_flags(&node, flags).await
    }

    /// Sets the project that a file belongs to. Symbolic links are followed.
    ///
    /// # Errors
    /// [`Error::NotSupported`] on a volume without the feature `project`; the caller is not its owner.
    pub async fn set_project(&self, path: impl AsRef<[u8]>, project: u32) -> Result<()> {
        let node = resolve(&self.sys, &self.node, path.as_ref(), true).await?;
        self.sys.set_project(&node, project).await
    }

    /// An access control list; `None` where the mode says it all. Symbolic links are followed.
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

    /// Sets an access control list, which changes the mode with it, or removes one. Symbolic links are followed.
    ///
    /// # Errors
    /// The caller is not its owner; a list for what is inherited belongs to a directory only.
    pub async fn set_acl(&self, path: impl AsRef<[u8]>, kind: AclKind, list: Option<&Acl>) -> Result<()> {
        let node = resolve(&self.sys, &self.node, path.as_ref(), true).await?;
        match list {
            Some(list) => self.sys.set_xattr(&node, kind.attribute(), &list.to_xattr(), XattrMode::Any).await,
            None => self.sys.remove_xattr(&node, kind.attribute()).await,
        }
    }

    /// Everything below this directory, one after the other; see [`Walk`].
    pub fn walk(&self) -> Walk {
        Walk::new(self.sys.clone(), self.node.clone())
    }

    /// Sets the size of a file: what lies beyond is gone, what is new reads as zeroes.
    ///
    /// # Errors
    /// It is no regular file, or may not be written.
    pub async fn set_len(&self, path: impl AsRef<[u8]>, size: u64) -> Result<()> {
        match self.open_with(path, FileOptions::new().write(true)).await {
            Ok(file) => file.set_len(size).await,
            // As truncate(2), which does not open it.
            Err(Error::Special(place)) => Err(Error::NotAFile(place)),
            Err(error) => Err(error),
        }
    }

    /// The value of an extended attribute; its name has a prefix such as `user.`. Symbolic links are not followed.
    ///
    /// # Errors
    /// [`Error::NoData`] where there is none.
    pub async fn xattr(&self, path: impl AsRef<[u8]>, name: impl AsRef<[u8]>) -> Result<Vec<u8>> {
        let node = resolve(&self.sys, &self.node, path.as_ref(), false).await?;
        self.sys.xattr(&node, name.as_ref()).await
    }

    /// Names of the extended attributes that the caller may see. Symbolic links are not followed.
    ///
    /// # Errors
    /// The attributes are damaged.
    pub async fn xattrs(&self, path: impl AsRef<[u8]>) -> Result<Vec<Vec<u8>>> {
        let node = resolve(&self.sys, &self.node, path.as_ref(), false).await?;
        self.sys.xattrs(&node).await
    }

    /// Sets an extended attribute. Symbolic links are not followed.
    ///
    /// # Errors
    /// As `lsetxattr(2)`.
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

    /// Removes an extended attribute. Symbolic links are not followed.
    ///
    /// # Errors
    /// [`Error::NoData`] where there is none.
    pub async fn remove_xattr(&self, path: impl AsRef<[u8]>, name: impl AsRef<[u8]>) -> Result<()> {
        let node = resolve(&self.sys, &self.node, path.as_ref(), false).await?;
        self.sys.remove_xattr(&node, name.as_ref()).await
    }

    /// Makes this directory's names and attributes durable.
    ///
    /// # Errors
    /// Something could not be written.
    pub async fn sync(&self) -> Result<()> {
        self.sys.sync_dir(&self.node).await
    }

    /// A file without a name, open for reading and writing.
    ///
    /// # Errors
    /// As [`Dir::create`].
    pub async fn tempfile(&self, mode: u32) -> Result<File> {
        let node = self.sys.unnamed(&self.node, NewFile::Regular, mode).await?;
        self.sys.open_file(&node, FileOptions::new().read(true).write(true), true).await.map(File::new)
    }

    /// The whole contents of a file.
    ///
    /// # Errors
    /// As [`Dir::open`]; [`Error::NoMemory`] where they do not fit in memory.
    pub async fn read(&self, path: impl AsRef<[u8]>) -> Result<Vec<u8>> {
        let file = self.open(path).await?;
        let mut bytes = Vec::new();
        let reserved = usize::try_from(file.len()).is_ok_and(|len| bytes.try_reserve_exact(len).is_ok());
        if !reserved {
            return Err(Error::NoMemory(format!("{} bytes", file.len())));
        }
        // A file that is sparse and larger than memory fails above; one that is not is read as it comes.
        while (bytes.len() as u64) < file.len() {
            let at = bytes.len();
            bytes.resize(at + READ_BYTES.min((file.len() - at as u64) as usize), 0);
            match file.read_at(at as u64, &mut bytes[at..]).await? {
                0 => {
                    bytes.truncate(at);
                    break;
                }
                n => bytes.truncate(at + n),
            }
        }
        Ok(bytes)
    }

    /// Creates or replaces a file with these contents.
    ///
    /// # Errors
    /// As [`Dir::create`]; [`Error::NoSpace`], with what fits written.
    pub async fn write(&self, path: impl AsRef<[u8]>, contents: impl AsRef<[u8]>) -> Result<()> {
        self.create(path).await?.write_all_at(0, contents.as_ref()).await
    }
}
