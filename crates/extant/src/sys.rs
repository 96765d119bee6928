//! All calls from this crate to `fs`. A volume open for writing uses the calls that check
//! permissions; one open for reading uses those that see through a dirty journal.

use crate::{
    Caller, Defragmented, DirEntry, Error, Fallocate, FileExtent, FileOptions, FileType, Metadata,
    OpenOptions, RenameMode, Result, Statfs, Time, XattrMode,
};
use extant_block::{Buf, Device};
use extant_cache::{CacheConfig, CacheError, PageCache};
use extant_format::{FileKind, Inode, InodeFlags, InodeNumber, Timestamp, UintExt};
use extant_fs::{Attributes, Capabilities, Cookie, SetAttributes, SetTime, Volume, WriteOptions, quote};
use extant_rt::Rt;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

mod create;

pub use create::{NewFile, SmallFile, Special};

/// An open volume, as seen by one caller.
#[derive(Clone)]
pub(crate) struct Sys {
    volume: Volume,
    root: Node,
    caller: Arc<Caller>,
    /// Its frames hold file contents.
    cache: Arc<PageCache>,
}

/// An inode in use.
#[derive(Clone)]
pub(crate) enum Node {
    Live(extant_fs::Node),
    /// On a volume open for reading.
    Still(Arc<Inode>),
}

impl Node {
    pub(crate) fn kind(&self) -> Result<FileType> {
        let (kind, number) = match self {
            Self::Live(node) => (node.kind(), node.inode()),
            Self::Still(inode) => (inode.kind(), inode.number),
        };
        kind.map(FileType::from).ok_or_else(|| Error::Invalid(format!("inode {number} is free")))
    }

    pub(crate) fn inode(&self) -> InodeNumber {
        match self {
            Self::Live(node) => node.inode(),
            Self::Still(inode) => inode.number,
        }
    }

    /// Like [`Node::live`], for a directory in which `name` is to be created.
    async fn live_without(&self, sys: &Sys, name: &[u8]) -> Result<&extant_fs::Node> {
        match self {
            Self::Live(node) => Ok(node),
            Self::Still(dir) => match sys.permit(dir, 1, sys.volume.lookup(dir, name)).await? {
                Some(_) => Err(Error::Exists(quote(name))),
                None => Err(Error::ReadOnly),
            },
        }
    }

    fn live(&self) -> Result<&extant_fs::Node> {
        match self {
            Self::Live(node) => Ok(node),
            Self::Still(_) => Err(Error::ReadOnly),
        }
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.inode())
    }
}

impl fmt::Debug for Sys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Volume({})", if self.is_writable() { "writable" } else { "read-only" })
    }
}

/// Attributes that only an administrator sees.
const TRUSTED: &[u8] = b"trusted.";

fn no_checks() -> Caller {
    Caller { checked: false, ..Caller::root() }
}

impl Sys {
    pub(crate) async fn open(rt: &Rt, device: Arc<dyn Device>, options: &OpenOptions) -> Result<Self> {
        let caller = Arc::new(options.caller.clone().unwrap_or_else(no_checks));
        let config = CacheConfig::with_budget(options.cache_bytes);
        let cache =
            PageCache::new(rt, config).map_err(|_| Error::NoMemory("the pages of the cache".into()))?;
        let disk = cache.attach(device);
        let cache = Arc::new(cache);
        if !options.write {
            let volume = Volume::open(disk.device().clone(), extant_fs::OpenOptions::default()).await?;
            let volume = volume.cached_by(&disk);
            let root = Node::Still(Arc::new(volume.root().await?));
            return Ok(Self { volume, root, caller, cache });
        }
        let mut write = WriteOptions {
            fixed_time: options.fixed_time,
            errors: options.errors,
            discard: options.discard,
            synchronous: options.synchronous,
            removal_step: options.removal_step,
            ..WriteOptions::default()
        };
        // Large directories need their blocks in memory, and large transactions write a block once
        // for many changes.
        write.metadata_bytes = write.metadata_bytes.max(options.cache_bytes / 2).min(options.cache_bytes);
        if options.offline {
            write.commit_interval = None;
        }
        let volume = Volume::open_writable(rt, &disk, write).await?;
        let root = Node::Live(volume.root_node().await?);
        Ok(Self { volume, root, caller, cache })
    }

    pub(crate) fn with_caller(&self, caller: Caller) -> Self {
        Self { caller: Arc::new(caller), ..self.clone() }
    }

    /// Whether both are the same open volume; false for volumes open for reading.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.is_writable() && Arc::ptr_eq(&self.cache, &other.cache)
    }

    fn is_writable(&self) -> bool {
        matches!(self.root, Node::Live(_))
    }

    pub(crate) fn root(&self) -> &Node {
        &self.root
    }

    pub(crate) async fn lookup(&self, dir: &Node, name: &[u8]) -> Result<Node> {
        match dir {
            Node::Live(dir) => Ok(Node::Live(dir.lookup(&self.caller, name).await?)),
            Node::Still(inode) if inode.kind() != Some(FileKind::Directory) => {
                Err(Error::NotADirectory(format!("inode {dir:?}")))
            }
            Node::Still(dir) => match self.permit(dir, 1, self.volume.lookup(dir, name)).await? {
                Some(number) => Ok(Node::Still(Arc::new(self.volume.inode(number).await?))),
                None => Err(Error::NotFound(quote(name))),
            },
        }
    }

    /// Attributes of a name in a directory, if they are known without I/O or waiting. Does not
    /// follow a symbolic link.
    pub(crate) fn known_metadata(&self, dir: &Node, name: &[u8]) -> Option<Metadata> {
        match dir {
            Node::Live(dir) => dir.known_attributes(&self.caller, name).map(Metadata::from),
            Node::Still(_) => None,
        }
    }

    pub(crate) async fn read_link(&self, node: &Node) -> Result<Vec<u8>> {
        match node {
            Node::Live(node) => node.read_link().await,
            Node::Still(inode) => self.volume.read_link(inode).await,
        }
    }

    pub(crate) async fn metadata(&self, node: &Node) -> Result<Metadata> {
        metadata(&self.volume, node)
    }

    pub(crate) async fn read_dir(&self, dir: &Node) -> Result<Vec<DirEntry>> {
        let mut entries = Vec::new();
        match dir {
            Node::Live(dir) => {
                dir.check_access(&self.caller, 4).await?;
                let mut from = Cookie::START;
                while from != Cookie::END {
                    let emit = &mut |listed: extant_fs::Listed<'_>| {
                        let file_type = listed.kind.map(FileType::from);
                        let (name, inode) = (listed.name.to_vec(), listed.inode);
                        entries.push(DirEntry { name, inode, file_type });
                        true
                    };
                    from = dir.read_dir(from, emit).await?;
                }
            }
            Node::Still(dir) => {
                entries.extend(self.permit(dir, 4, self.volume.list(dir)).await?.into_iter().map(|item| {
                    DirEntry { name: item.name, inode: item.inode, file_type: item.kind.map(FileType::from) }
                }));
            }
        }
        entries.retain(|entry| entry.name != b"." && entry.name != b"..");
        Ok(entries)
    }

    pub(crate) async fn unlink(&self, dir: &Node, name: &[u8]) -> Result<()> {
        dir.live()?.unlink(&self.caller, name).await
    }

    /// Fails if a directory about to be emptied has any other name.
    pub(crate) async fn check_only_name(&self, dir: &Node, name: &[u8]) -> Result<()> {
        dir.live()?.check_only_name(&self.caller, name).await
    }

    pub(crate) async fn rmdir(&self, dir: &Node, name: &[u8]) -> Result<()> {
        dir.live()?.rmdir(&self.caller, name).await
    }

    pub(crate) async fn rename(
        &self,
        (from, name): (&Node, &[u8]),
        (to, new_name): (&Node, &[u8]),
        mode: RenameMode,
    ) -> Result<()> {
        from.live()?.rename(&self.caller, name, to.live()?, new_name, mode).await
    }

    async fn set(&self, node: &Node, set: SetAttributes) -> Result<()> {
        node.live()?.set_attributes(&self.caller, &set).await
    }

    pub(crate) async fn set_mode(&self, node: &Node, mode: u32) -> Result<()> {
        self.set(node, of_mode(mode)).await
    }

    pub(crate) async fn set_owner(&self, node: &Node, uid: Option<u32>, gid: Option<u32>) -> Result<()> {
        self.set(node, of_owner(uid, gid)).await
    }

    pub(crate) async fn set_times(
        &self,
        node: &Node,
        accessed: Option<Time>,
        modified: Option<Time>,
    ) -> Result<()> {
        self.set(node, of_times(accessed, modified)?).await
    }

    pub(crate) async fn set_flags(&self, node: &Node, flags: InodeFlags) -> Result<()> {
        node.live()?.set_flags(&self.caller, flags).await
    }

    pub(crate) async fn set_project(&self, node: &Node, project: u32) -> Result<()> {
        node.live()?.set_project(&self.caller, project).await
    }

    pub(crate) async fn xattr(&self, node: &Node, name: &[u8]) -> Result<Vec<u8>> {
        match node {
            Node::Live(node) => node.xattr(&self.caller, name).await,
            Node::Still(inode) => {
                let missing = || Error::NoData(quote(name));
                if name.starts_with(TRUSTED) && !self.caller.can(Capabilities::SYS_ADMIN) {
                    return Err(missing());
                }
                if name.starts_with(b"user.") {
                    if !matches!(inode.kind(), Some(FileKind::Regular | FileKind::Directory)) {
                        return Err(missing());
                    }
                    self.volume.check_access(&self.caller, inode, 4).await?;
                }
                let all = self.volume.xattrs(inode).await?;
                let found = all.into_iter().find(|attribute| attribute.name == name);
                found.map(|attribute| attribute.value).ok_or_else(missing)
            }
        }
    }

    pub(crate) async fn xattrs(&self, node: &Node) -> Result<Vec<Vec<u8>>> {
        match node {
            Node::Live(node) => node.xattrs(&self.caller).await,
            Node::Still(inode) => {
                let all = self.volume.xattrs(inode).await?.into_iter().map(|attribute| attribute.name);
                let trusted = self.caller.can(Capabilities::SYS_ADMIN);
                Ok(all.filter(|name| trusted || !name.starts_with(TRUSTED)).collect())
            }
        }
    }

    pub(crate) async fn set_xattr(
        &self,
        node: &Node,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<()> {
        node.live()?.set_xattr(&self.caller, name, value, mode).await
    }

    pub(crate) async fn change_xattrs(&self, node: &Node, changes: &[(&[u8], Option<&[u8]>)]) -> Result<()> {
        node.live()?.change_xattrs(&self.caller, changes).await
    }

    pub(crate) async fn remove_xattr(&self, node: &Node, name: &[u8]) -> Result<()> {
        node.live()?.remove_xattr(&self.caller, name).await
    }

    /// Opens a regular file. `fresh`: the caller has just created it, so every access is allowed.
    pub(crate) async fn open_file(
        &self,
        node: &Node,
        options: &FileOptions,
        fresh: bool,
    ) -> Result<OpenNode> {
        match node.kind()? {
            FileType::Dir => return Err(Error::IsADirectory(format!("inode {node:?}"))),
            FileType::Symlink => return Err(Error::Loop(format!("inode {node:?}"))),
            FileType::File => {}
            _ => return Err(Error::Special(format!("inode {node:?}"))),
        }
        let contents = match node {
            Node::Live(live) => {
                if !fresh {
                    let want = u8::from(options.read) * 4 + u8::from(options.writes()) * 2;
                    Box::pin(live.check_access(&self.caller, want)).await?;
                    let appends = options.append && !options.truncate;
                    if options.writes() && !appends && live.attributes()?.flags.contains(InodeFlags::APPEND) {
                        return Err(Error::Permission(format!("inode {node:?}: append-only")));
                    }
                }
                let file = live.open(&self.caller, options.to_fs())?;
                if options.truncate && !fresh {
                    Box::pin(file.empty()).await?;
                }
                Contents::Live(file)
            }
            Node::Still(_) if options.writes() => return Err(Error::ReadOnly),
            Node::Still(inode) => {
                let want = u8::from(options.read) * 4;
                let open = Box::pin(self.volume.open_file(Inode::clone(inode)));
                let file = self.permit(inode, want, open).await?;
                Contents::Still(Box::new(file))
            }
        };
        Ok(OpenNode {
            contents,
            node: node.clone(),
            volume: self.volume.clone(),
            caller: self.caller.clone(),
            options: *options,
            _cache: self.cache.clone(),
        })
    }

    /// Runs an operation if the caller has the permissions `want` on an inode of a volume open for
    /// reading.
    async fn permit<T>(
        &self,
        inode: &Inode,
        want: u8,
        operation: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        self.volume.check_access(&self.caller, inode, want).await?;
        operation.await
    }

    pub(crate) async fn sync_dir(&self, dir: &Node) -> Result<()> {
        match dir {
            Node::Live(dir) => dir.sync().await,
            Node::Still(_) => Ok(()),
        }
    }

    pub(crate) async fn sync(&self) -> Result<()> {
        self.volume.sync().await
    }

    pub(crate) async fn trim(&self, range: Range<u64>, min_bytes: u64) -> Result<u64> {
        self.volume.trim(range, min_bytes).await
    }

    pub(crate) fn is_unchanged(&self) -> bool {
        self.volume.is_unchanged()
    }

    pub(crate) async fn close(self) -> Result<()> {
        self.close_by(Volume::close).await
    }

    pub(crate) async fn give_up(self) -> Result<()> {
        self.close_by(Volume::give_up).await
    }

    async fn close_by<F: Future<Output = Result<()>>>(self, close: impl FnOnce(Volume) -> F) -> Result<()> {
        let Self { volume, root, cache, .. } = self;
        drop(root);
        let closed = close(volume).await;
        // The cache is closed, and the device released, by the last user.
        let Some(cache) = Arc::into_inner(cache) else { return closed };
        match cache.close().await {
            // Errors of files were already returned when the volume was closed; the device's last
            // flush may still fail.
            Err(CacheError::Io(error)) => closed.and(Err(Error::Io(error))),
            _ => closed,
        }
    }

    pub(crate) fn stored(&self) -> &Volume {
        &self.volume
    }

    pub(crate) fn time_range(&self) -> (Time, Time) {
        let (first, last) = Timestamp::seconds_range(self.volume.superblock().inode_size());
        (Time { seconds: first, nanos: 0 }, Time { seconds: last, nanos: 999_999_999 })
    }

    pub(crate) fn problems(&self) -> Vec<Error> {
        self.volume.problems()
    }

    pub(crate) fn statfs(&self) -> Statfs {
        self.volume.space()
    }
}

pub(crate) fn of_mode(mode: u32) -> SetAttributes {
    SetAttributes { permissions: Some(mode.low_u16()), ..Default::default() }
}

pub(crate) fn of_owner(uid: Option<u32>, gid: Option<u32>) -> SetAttributes {
    SetAttributes { uid, gid, ..Default::default() }
}

/// Refuses times with a thousand million nanoseconds or more, like `utimensat(2)`.
pub(crate) fn check_times(times: impl IntoIterator<Item = Time>) -> Result<()> {
    match times.into_iter().find(|time| time.nanos >= 1_000_000_000) {
        Some(time) => Err(Error::Invalid(format!("{} nanoseconds are more than a second", time.nanos))),
        None => Ok(()),
    }
}

pub(crate) fn of_times(accessed: Option<Time>, modified: Option<Time>) -> Result<SetAttributes> {
    check_times([accessed, modified].into_iter().flatten())?;
    let to = |time: Time| SetTime::To(time.into());
    Ok(SetAttributes { accessed: accessed.map(to), modified: modified.map(to), ..Default::default() })
}

fn metadata(volume: &Volume, node: &Node) -> Result<Metadata> {
    match node {
        Node::Live(node) => Ok(node.attributes()?.into()),
        Node::Still(inode) => Ok(Attributes::of(inode, volume.superblock())?.into()),
    }
}

/// An open file.
pub(crate) struct OpenNode {
    // The order matters: the cache is dropped last.
    contents: Contents,
    node: Node,
    volume: Volume,
    caller: Arc<Caller>,
    options: FileOptions,
    _cache: Arc<PageCache>,
}

enum Contents {
    Live(extant_fs::OpenFile),
    /// On a volume open for reading.
    Still(Box<extant_fs::File>),
}

impl OpenNode {
    pub(crate) fn node(&self) -> &Node {
        &self.node
    }

    pub(crate) fn appends(&self) -> bool {
        self.options.append
    }

    pub(crate) fn size(&self) -> u64 {
        match &self.contents {
            Contents::Live(file) => file.size(),
            Contents::Still(file) => file.inode().size(),
        }
    }

    pub(crate) fn metadata(&self) -> Result<Metadata> {
        metadata(&self.volume, &self.node)
    }

    fn writable(&self) -> Result<&extant_fs::OpenFile> {
        match &self.contents {
            _ if !self.options.writes() => Err(Error::BadFile("writing")),
            Contents::Live(file) => Ok(file),
            Contents::Still(_) => Err(Error::ReadOnly),
        }
    }

    pub(crate) async fn read(&self, at: u64, to: &mut [u8]) -> Result<usize> {
        if !self.options.read {
            return Err(Error::BadFile("reading"));
        }
        match &self.contents {
            Contents::Live(file) => file.read(at, to).await,
            Contents::Still(file) => file.read_at(at, to).await,
        }
    }

    /// Like [`Self::read`], but only as far as the calling thread can do it alone, from memory or
    /// from a buffered image. Returns how many bytes were read, and whether that was everything.
    pub(crate) fn read_here(&self, at: u64, to: &mut [u8]) -> (usize, bool) {
        let read = match &self.contents {
            _ if !self.options.read => return (0, false),
            Contents::Live(file) => file.read_here(at, to),
            Contents::Still(file) => file.read_here_at(at, to),
        };
        read.map_or_else(|rest| (rest.done_bytes, false), |bytes| (bytes, true))
    }

    pub(crate) async fn write(&self, at: u64, bytes: &[u8]) -> Result<usize> {
        self.writable()?.write(at, bytes).await
    }

    /// Like [`Self::write`], but only if the calling thread can do it at once, in memory; otherwise
    /// `None`.
    pub(crate) fn write_here(&self, at: u64, bytes: &[u8]) -> Option<usize> {
        self.writable().ok()?.try_write(at, bytes).ok()
    }

    /// Whether the calling thread should write with [`Self::write_past`].
    pub(crate) fn step_past(&self, at: u64, len: usize) -> Option<usize> {
        self.writable().ok().and_then(|file| file.step_past(at, len))
    }

    /// Like [`Self::write_direct`], for a stream that began in the cache.
    pub(crate) async fn write_past(&self, at: u64, buf: Buf) -> (Buf, Result<usize>) {
        match self.writable() {
            Ok(file) => file.write_past(at, buf).await,
            Err(error) => (buf, Err(error)),
        }
    }

    pub(crate) async fn read_direct(&self, at: u64, mut buf: Buf) -> (Buf, Result<usize>) {
        match &self.contents {
            _ if !self.options.read => (buf, Err(Error::BadFile("reading"))),
            Contents::Live(file) => file.read_direct(at, buf).await,
            Contents::Still(_) => {
                let read = self.read(at, &mut buf).await;
                (buf, read)
            }
        }
    }

    pub(crate) async fn write_direct(&self, at: u64, buf: Buf) -> (Buf, Result<usize>) {
        match self.writable() {
            Ok(file) => file.write_direct(at, buf).await,
            Err(error) => (buf, Err(error)),
        }
    }

    pub(crate) async fn set_size(&self, size: u64) -> Result<()> {
        self.writable()?.set_size(size).await
    }

    pub(crate) async fn fallocate(&self, mode: Fallocate, offset: u64, len: u64) -> Result<()> {
        self.writable()?.fallocate(mode, offset, len).await
    }

    pub(crate) async fn defragment(&self) -> Result<Defragmented> {
        self.writable()?.defragment().await
    }

    pub(crate) async fn copy_range(&self, at: u64, to: &Self, to_at: u64, len: u64) -> Result<u64> {
        if !self.options.read {
            return Err(Error::BadFile("reading"));
        }
        match (&self.contents, to.writable()?) {
            (Contents::Live(file), to) => file.copy_range(at, to, to_at, len).await,
            (Contents::Still(_), _) => Err(Error::CrossDevice(format!("inode {:?}", to.node))),
        }
    }

    pub(crate) async fn seek_data(&self, from: u64) -> Result<Option<u64>> {
        match &self.contents {
            Contents::Live(file) => file.seek_data(from).await,
            Contents::Still(file) => file.seek_data(from).await,
        }
    }

    pub(crate) async fn seek_hole(&self, from: u64) -> Result<Option<u64>> {
        match &self.contents {
            Contents::Live(file) => file.seek_hole(from).await,
            Contents::Still(file) => file.seek_hole(from).await,
        }
    }

    pub(crate) async fn extents(&self, range: Range<u64>) -> Result<Vec<FileExtent>> {
        match &self.contents {
            Contents::Live(file) => file.extents(range).await,
            Contents::Still(file) => file.extents(range).await,
        }
    }

    pub(crate) async fn set(&self, set: SetAttributes) -> Result<()> {
        self.node.live()?.set_attributes(&self.caller, &set).await
    }

    pub(crate) async fn write_back(&self) -> Result<()> {
        match &self.contents {
            Contents::Live(file) => file.write_back().await,
            Contents::Still(_) => Ok(()),
        }
    }

    pub(crate) async fn sync(&self, data_only: bool) -> Result<()> {
        match &self.contents {
            Contents::Live(file) if data_only => file.datasync().await,
            Contents::Live(file) => file.sync().await,
            Contents::Still(_) => Ok(()),
        }
    }
}
