//! Nodes: handles that keep inodes in use.

use super::caller::{Want, check};
use super::open_dir::OpenDir;
use super::order::{Order, Rank};
use super::soundness::Way;
use super::{Caller, Capabilities, Namespace};
use crate::alloc::Privilege;
use crate::dir::{Cookie, Listed};
use crate::file::{FileOptions, OpenFile};
use crate::inode::InodeCell;
use crate::writer::Writer;
use crate::xattr::live::{acl_of, may_have_any};
use crate::{Error, Result, quote};
use extant_format::{
    Acl, DeviceNumber, FileKind, Inode, InodeFlags, InodeNumber, Place, RoCompat, Superblock, Timestamp,
    XattrIndex,
};
use std::fmt;
use std::sync::Arc;

/// An inode in use. Cheap to clone.
///
/// The inode exists as long as a node for it does, even without a name. After the last node of an
/// unnamed inode is dropped, a task or the next operation that may wait deletes the inode; see
/// [`WriteOptions::reaps`](crate::WriteOptions::reaps). [`Node::release`] does so at once.
#[derive(Clone)]
pub struct Node {
    held: Arc<Held>,
}

struct Held {
    namespace: Arc<Namespace>,
    cell: Arc<InodeCell>,
    generation: u32,
    /// For a directory: where it was looked up.
    way: Option<Way>,
}

/// The attributes of an inode, as in `stat`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// The inode's number.
    pub inode: InodeNumber,
    /// Distinguishes successive inodes of the same number.
    pub generation: u32,
    /// The kind of file.
    pub kind: FileKind,
    /// Permissions, set-ID bits and the sticky bit; without the kind.
    pub permissions: u16,
    /// Number of names. For a directory, 2 plus its subdirectories, or 1 if that exceeds what the
    /// volume can count.
    pub links: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Size in bytes.
    pub size: u64,
    /// Allocated space, in units of 512 bytes.
    pub blocks: u64,
    /// Last access.
    pub accessed: Timestamp,
    /// Last change of the contents.
    pub modified: Timestamp,
    /// Last change of the inode.
    pub changed: Timestamp,
    /// Creation time, if the inode has room for it.
    pub created: Option<Timestamp>,
    /// The device number of a device node.
    pub device: Option<DeviceNumber>,
    /// Flags, as shown by `lsattr`.
    pub flags: InodeFlags,
    /// The project of the inode, if it has room for one.
    pub project: Option<u32>,
    /// Change counter.
    pub version: u64,
}

impl Attributes {
    /// Returns the attributes of an inode. `sb` is the volume's superblock.
    ///
    /// # Errors
    /// The mode names no kind of file.
    pub fn of(inode: &Inode, sb: &Superblock) -> Result<Self> {
        let Some(kind) = inode.kind() else {
            let place = Place::Inode(inode.number);
            let mode = inode.mode().into();
            return Err(extant_format::Corrupt::field(place, "i_mode", mode, "the kind of a file").into());
        };
        Ok(Self {
            inode: inode.number,
            generation: inode.raw.i_generation.get(),
            kind,
            permissions: inode.mode() & 0o7777,
            links: inode.links(),
            uid: inode.uid(),
            gid: inode.gid(),
            size: inode.size(),
            blocks: inode.blocks_512(sb),
            accessed: inode.accessed(),
            modified: inode.modified(),
            changed: inode.changed(),
            created: inode.created(),
            device: inode.device(),
            flags: inode.flags(),
            project: inode.project().filter(|_| sb.ro_compat().contains(RoCompat::PROJECT)),
            version: u64::from(inode.extra.i_version_hi.get()) << 32
                | u64::from(inode.raw.i_version_lo.get()),
        })
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Node({}, generation {})", self.inode(), self.held.generation)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if self.cell.close() {
            self.namespace.writer.delete_later(&self.cell);
        }
    }
}

impl Namespace {
    /// The root directory.
    ///
    /// # Errors
    /// A damaged inode.
    pub(crate) async fn root(self: &Arc<Self>) -> Result<Node> {
        let cell = self.writer.inodes.get_live(InodeNumber::ROOT, Place::Superblock).await?;
        Node::of_live(self, cell).ok_or(Error::Stale(InodeNumber::ROOT))
    }

    /// Returns the inode with this number and generation.
    ///
    /// # Errors
    /// [`Error::Stale`] if it has been deleted.
    pub(crate) async fn node(self: &Arc<Self>, number: InodeNumber, generation: u32) -> Result<Node> {
        if self.writer.store.shape().is_own_inode(number) {
            return Err(Error::Stale(number));
        }
        let cell = self.writer.inodes.get(number).await?;
        if cell.read(|inode| inode.flags().contains(InodeFlags::EA_INODE)) {
            return Err(Error::Stale(number));
        }
        let node = Node::of_live(self, cell);
        node.filter(|node| node.generation() == generation).ok_or(Error::Stale(number))
    }

    /// Returns a node for an inode that was looked up before, even if it has lost its name and
    /// something still holds it. `way` is [`Node::way`] of the earlier node.
    ///
    /// # Errors
    /// [`Error::Stale`] if it has been deleted.
    pub(crate) async fn known_node(
        self: &Arc<Self>,
        number: InodeNumber,
        generation: u32,
        way: Option<Way>,
    ) -> Result<Node> {
        let cell = match self.writer.inodes.cached(number) {
            Some(cell) => cell,
            // Damage found here is recorded as in any other operation.
            None => Box::pin(self.writer.guarded(self.writer.inodes.get(number))).await?,
        };
        let node = (cell.open_live() || cell.open_held()).then(|| Node::of_open(self, cell, way));
        node.filter(|node| node.generation() == generation).ok_or(Error::Stale(number))
    }

    /// Opens a regular file.
    ///
    /// # Errors
    /// An inode that is free or of another kind; contents that are damaged or encrypted.
    pub(crate) async fn open(
        self: &Arc<Self>,
        number: InodeNumber,
        options: FileOptions,
    ) -> Result<OpenFile> {
        let cell = self.writer.inodes.get_live(number, Place::Inode(number)).await?;
        // Held until the file is open.
        let node = Node::of_live(self, cell).ok_or(Error::Stale(number))?;
        self.files.open(node.cell(), options)
    }
}

impl Node {
    /// Creates a node for an inode that no other task can delete meanwhile: the caller has just
    /// created it, or holds the lock of the directory that names it.
    pub(crate) fn new(namespace: &Arc<Namespace>, cell: Arc<InodeCell>) -> Self {
        cell.open();
        Self::of_open(namespace, cell, None)
    }

    /// Like [`Self::new`], for the inode that a name in the directory `dir` leads to.
    fn named(namespace: &Arc<Namespace>, dir: InodeNumber, name: &[u8], cell: Arc<InodeCell>) -> Self {
        cell.open();
        let is_dir = cell.read(Inode::kind) == Some(FileKind::Directory);
        let way = (is_dir && !matches!(name, b"." | b"..")).then(|| Way::new(namespace, dir, &cell));
        Self::of_open(namespace, cell, way)
    }

    /// Creates a node for an inode that has a name; returns `None` if the inode has no name and may
    /// be about to be deleted.
    fn of_live(namespace: &Arc<Namespace>, cell: Arc<InodeCell>) -> Option<Self> {
        cell.open_live().then(|| Self::of_open(namespace, cell, None))
    }

    fn of_open(namespace: &Arc<Namespace>, cell: Arc<InodeCell>, way: Option<Way>) -> Self {
        let generation = cell.read(|inode| inode.raw.i_generation.get());
        Self { held: Arc::new(Held { namespace: namespace.clone(), cell, generation, way }) }
    }

    /// Opens the directory for an operation that holds its lock.
    ///
    /// # Errors
    /// [`Error::NotADirectory`]; a damaged directory, or one whose real name is not the one that
    /// led here.
    pub(super) async fn open_dir(&self) -> Result<OpenDir<'_>> {
        let dir = OpenDir::open(self.namespace(), self.cell()).await?;
        if let Some(way) = self.held.way {
            way.check(&dir)?;
        }
        Ok(dir)
    }

    pub(crate) fn cell(&self) -> &Arc<InodeCell> {
        &self.held.cell
    }

    pub(super) fn namespace(&self) -> &Arc<Namespace> {
        &self.held.namespace
    }

    pub(super) fn writer(&self) -> &Arc<Writer> {
        &self.held.namespace.writer
    }

    /// The inode's number.
    pub fn inode(&self) -> InodeNumber {
        self.held.cell.number()
    }

    /// Distinguishes the inode from earlier ones with the same number.
    pub fn generation(&self) -> u32 {
        self.held.generation
    }

    /// Whether it has a name. A link can give it one again.
    pub fn has_name(&self) -> bool {
        self.cell().is_live()
    }

    /// How a directory was looked up, for [`Volume::known_node`](crate::Volume::known_node).
    pub fn way(&self) -> Option<Way> {
        self.held.way
    }

    /// The kind of file; `None` for a damaged inode.
    pub fn kind(&self) -> Option<FileKind> {
        self.cell().read(Inode::kind)
    }

    pub(crate) fn is_dir(&self) -> bool {
        self.kind() == Some(FileKind::Directory)
    }

    /// Returns the inode's attributes, as in `stat`. Never waits.
    ///
    /// # Errors
    /// An invalid mode.
    pub fn attributes(&self) -> Result<Attributes> {
        attributes(self.namespace(), self.cell())
    }

    /// Releases the inode. If it has no name and nothing else holds it, its space is free when this
    /// returns.
    pub async fn release(self) {
        let namespace = self.namespace().clone();
        drop(self);
        namespace.delete_doomed().await
    }

    /// Opens a file for reading and writing. Does not check the caller's permissions; see
    /// [`Self::check_access`].
    ///
    /// # Errors
    /// [`Error::IsADirectory`], [`Error::Special`] or [`Error::NotAFile`] for anything but a
    /// regular file.
    pub fn open(&self, caller: &Caller, options: FileOptions) -> Result<OpenFile> {
        let options = FileOptions {
            reserved_blocks: options.reserved_blocks
                || self.writer().privilege(caller) == Privilege::Reserved,
            keeps_setid: options.keeps_setid || caller.can(Capabilities::FSETID),
            ..options
        };
        let opened = self.namespace().files.open(self.cell(), options);
        if let Err(error @ Error::Corrupt(_)) = &opened {
            self.writer().errors.note(error);
        }
        opened
    }

    /// Makes changes to a directory, link or special file durable: names, attributes, and all that
    /// was done before the last of these changes, such as making the parent directories. Does not
    /// wait for the disk if they are durable already. For file data use [`OpenFile::sync`].
    ///
    /// # Errors
    /// Why the journal was aborted.
    pub async fn sync(&self) -> Result<()> {
        let Writer { journal, disk, .. } = &**self.writer();
        // Background write-back yields to it.
        let _sync = disk.begin_sync();
        // What others have changed since, such as the blocks of files being deleted, is not waited
        // for: programs sync a directory right after a file in it. Without a log it is, because
        // there the names above the directory are in no order with its own.
        let changed_by = if journal.has_log() { self.cell().changed_by() } else { Some(journal.running()) };
        self.writer().guarded(journal.commit_change(changed_by)).await
    }

    /// Checks whether `caller` may do all of `want`: 4 is read, 2 write, 1 execute or search.
    ///
    /// # Errors
    /// [`Error::Access`] or, on an immutable inode, [`Error::Permission`].
    pub async fn check_access(&self, caller: &Caller, want: u8) -> Result<()> {
        self.writer().guarded(self.check(caller, Want::from_bits(want))).await
    }

    pub(crate) async fn check(&self, caller: &Caller, want: Want) -> Result<()> {
        permit(self.writer(), caller, self.cell(), want).await
    }

    /// Looks up a name, including `.` and `..`.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::NameTooLong`], [`Error::NotADirectory`], [`Error::Access`]
    /// without search permission.
    pub async fn lookup(&self, caller: &Caller, name: &[u8]) -> Result<Self> {
        self.writer().guarded(self.find(caller, name)).await
    }

    pub(super) async fn find(&self, caller: &Caller, name: &[u8]) -> Result<Self> {
        if let Some(node) = self.lookup_known(caller, name) {
            return Ok(node);
        }
        let (namespace, writer) = (self.namespace(), self.writer());
        if !self.is_dir() {
            return Err(Error::NotADirectory(format!("inode {}", self.inode())));
        }
        self.check(caller, Want::SEARCH).await?;
        check_name_length(name)?;
        let names = Order::default().read(Rank::Directory, self.cell()).await;
        let mut dir = self.open_dir().await?;
        let entry = match dir.look_cached(name)? {
            Some(entry) => entry,
            None => dir.look(name).await?.ok().map(|spot| *spot.entry()),
        };
        let number = match entry {
            Some(entry) => entry.inode,
            // An inline directory has no entries for these.
            None if name == b"." => self.inode(),
            None if name == b".." => dir.parent().await?,
            None => return Err(not_found(name)),
        };
        // For `..` that is not an error: the root's own `..` is the root.
        if number == InodeNumber::ROOT && !matches!(name, b"." | b"..") {
            let rule = "that of another directory than the root";
            let place = Place::Inode(self.inode());
            return Err(extant_format::Corrupt::field(place, "inode of a name", number.0.into(), rule).into());
        }
        let cell = writer.inodes.get_live(number, Place::Inode(self.inode())).await?;
        if entry.is_some() {
            namespace.known.put(self.inode(), name, number);
        }
        let node = Self::named(namespace, self.inode(), name, cell);
        // Until here the name kept the inode alive; now the node does.
        drop(names);
        Ok(node)
    }

    /// Returns the attributes of the inode a name leads to, as [`Self::lookup`] and
    /// [`Self::attributes`] would, if that needs no reading or waiting. Does not follow a symbolic
    /// link.
    pub fn known_attributes(&self, caller: &Caller, name: &[u8]) -> Option<Attributes> {
        self.with_known(caller, name, |cell| attributes(self.namespace(), &cell).ok()).flatten()
    }

    fn lookup_known(&self, caller: &Caller, name: &[u8]) -> Option<Self> {
        self.with_known(caller, name, |cell| Self::named(self.namespace(), self.inode(), name, cell))
    }

    /// Calls `look` with the inode of a cached name if that inode is in memory, no task is changing
    /// the directory, and the permission check needs no access list.
    fn with_known<T>(
        &self,
        caller: &Caller,
        name: &[u8],
        look: impl FnOnce(Arc<InodeCell>) -> T,
    ) -> Option<T> {
        let (namespace, dir) = (self.namespace(), self.cell());
        let may_search = dir.read(|inode| {
            inode.kind() == Some(FileKind::Directory)
                && check(caller, inode, None, Want::SEARCH, String::new).is_ok()
                && !may_have_any(inode)
        });
        let _names = if may_search { dir.lock().try_read()? } else { return None };
        let number = namespace.known.get(dir.number(), name)?;
        let cell = namespace.writer.inodes.cached(number).filter(|cell| cell.is_live())?;
        Some(look(cell))
    }

    /// Passes the names of a directory from `from` on to `emit`, until it returns false. Returns
    /// where to continue, or [`Cookie::END`]. Names added or removed meanwhile may or may not be
    /// included; all others are included exactly once.
    ///
    /// # Errors
    /// [`Error::NotADirectory`]; a damaged directory.
    pub async fn read_dir(
        &self,
        from: Cookie,
        emit: &mut (dyn FnMut(Listed<'_>) -> bool + Send),
    ) -> Result<Cookie> {
        self.writer().guarded(self.list(from, emit)).await
    }

    async fn list(&self, from: Cookie, emit: &mut (dyn FnMut(Listed<'_>) -> bool + Send)) -> Result<Cookie> {
        let names = Order::default().read(Rank::Directory, self.cell()).await;
        let next = self.open_dir().await?.list(from, emit).await;
        drop(names);
        next
    }

    /// Returns the target of a symbolic link.
    ///
    /// # Errors
    /// [`Error::Invalid`] on any other kind of file.
    pub async fn read_link(&self) -> Result<Vec<u8>> {
        self.writer().guarded(super::target::read_link(self.writer(), self.cell())).await
    }
}

fn attributes(namespace: &Namespace, cell: &InodeCell) -> Result<Attributes> {
    // An open file may be larger than its inode record says, and have delayed blocks.
    let live = namespace.files.live_size(cell);
    let writer = &namespace.writer;
    let mut seen = cell.observe(|inode| Attributes::of(inode, writer.store.shape()))?;
    if let Some((size, more)) = live {
        seen.size = size;
        seen.blocks = seen
            .blocks
            .saturating_add_signed(more * i64::from(writer.store.shape().block_size().bytes() / 512));
    }
    Ok(seen)
}

/// Checks whether `caller` may access an inode.
pub(crate) async fn permit(
    writer: &Writer,
    caller: &Caller,
    cell: &Arc<InodeCell>,
    want: Want,
) -> Result<()> {
    let subject = || format!("inode {}", cell.number());
    // Most checks need no access list.
    if cell.read(|inode| check(caller, inode, None, want, String::new).is_ok() && !may_have_any(inode)) {
        return Ok(());
    }
    let acl = Box::pin(acl_of(writer, cell, XattrIndex::ACL_ACCESS)).await?;
    cell.read(|inode| check(caller, inode, acl.as_ref(), want, subject))
}

/// Returns the default access list of a directory.
pub(crate) async fn default_acl(writer: &Writer, dir: &Arc<InodeCell>) -> Result<Option<Acl>> {
    if !dir.read(may_have_any) {
        return Ok(None);
    }
    Box::pin(acl_of(writer, dir, XattrIndex::ACL_DEFAULT)).await
}

/// # Errors
/// [`Error::NameTooLong`].
pub(crate) fn check_name_length(name: &[u8]) -> Result<()> {
    if name.len() > extant_format::NAME_MAX { Err(Error::NameTooLong(quote(name))) } else { Ok(()) }
}

/// Checks a name to be created.
///
/// # Errors
/// [`Error::NameTooLong`]; [`Error::NotFound`] for an empty name, [`Error::Exists`] for `.` and
/// `..`, [`Error::Invalid`] for a name with a slash or NUL byte.
pub(crate) fn check_new_name(name: &[u8]) -> Result<()> {
    check_name_length(name)?;
    match name {
        b"" => Err(not_found(name)),
        b"." | b".." => Err(Error::Exists(quote(name))),
        _ if name.iter().any(|&byte| byte == b'/' || byte == 0) => {
            Err(Error::Invalid(format!("{} is no name: it has a slash or a NUL byte", quote(name))))
        }
        _ => Ok(()),
    }
}

pub(crate) fn not_found(name: &[u8]) -> Error {
    Error::NotFound(quote(name))
}
