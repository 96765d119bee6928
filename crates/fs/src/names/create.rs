//! New inodes: files, directories, symbolic links, device nodes, pipes and sockets, with or without
//! a name.

use super::caller::{Want, new_mode};
use super::dir_state::state;
use super::node::{check_new_name, default_acl, not_found, permit};
use super::order::{Order, Rank};
use super::{Caller, Node, SYNC_NAMES, touch};
use crate::alloc::{Allocated, NewInode, Parent, Wanted};
use crate::dir::leaf::LeafFormat;
use crate::inode::{InodeCell, Orphan, Orphans};
use crate::journal::{Credits, Handle};
use crate::meta::MetaKind;
use crate::quota::Owners;
use crate::writer::Writer;
use crate::xattr::live::{Attach, ensure_feature, no_room};
use crate::xattr::{acl, change_plan};
use crate::{Cost, Error, Result, quote};
use extant_format::{
    Acl, CharSign, Compat, DeviceNumber, Extent, ExtentNode, FileBlock, FileKind, HashVersion, Incompat,
    Inode, InodeFlags, InodeNumber, RoCompat, UintExt, VolumeBlock, XattrIndex, XattrName, hash_name,
};
use std::sync::Arc;

/// Symbolic links with targets shorter than this have them in the inode.
const FAST_SYMLINK_MAX: usize = 60;
/// Longest target of a symbolic link (`PATH_MAX`, without the NUL).
const TARGET_MAX: usize = 4095;
/// Flags that new inodes inherit from the directory (`EXT4_FL_INHERITED`).
const INHERITED: InodeFlags = InodeFlags::SECRM
    .union(InodeFlags::UNRM)
    .union(InodeFlags::COMPR)
    .union(InodeFlags::SYNC)
    .union(InodeFlags::NODUMP)
    .union(InodeFlags::NOATIME)
    .union(InodeFlags::JOURNAL_DATA)
    .union(InodeFlags::NOTAIL)
    .union(InodeFlags::DIRSYNC)
    .union(InodeFlags::PROJINHERIT);

/// The kind of file to create.
#[derive(Clone, Copy, Debug)]
pub(super) enum What<'a> {
    File,
    Directory,
    Symlink(&'a [u8]),
    Special(FileKind, DeviceNumber),
}

impl What<'_> {
    const fn kind(&self) -> FileKind {
        match self {
            Self::File => FileKind::Regular,
            Self::Directory => FileKind::Directory,
            Self::Symlink(_) => FileKind::Symlink,
            Self::Special(kind, _) => *kind,
        }
    }

    /// The kind of file that `mknod` creates.
    fn of_node(kind: FileKind, device: DeviceNumber, subject: impl Fn() -> String) -> Result<Self> {
        match kind {
            FileKind::Regular => Ok(Self::File),
            FileKind::Directory => Err(Error::Permission(subject())),
            FileKind::Symlink => {
                Err(Error::Invalid(format!("{}: a symbolic link needs a target", subject())))
            }
            kind => Ok(Self::Special(kind, device)),
        }
    }

    /// Fails if a target is too long for the volume: including its terminator it must fit in a
    /// block.
    fn check_target(&self, writer: &Writer) -> Result<()> {
        let most = TARGET_MAX.min(writer.store.shape().block_size().byte_len() - 1);
        match self {
            Self::Symlink(target) if target.len() > most => Err(Error::NameTooLong(quote(target))),
            _ => Ok(()),
        }
    }

    /// Fails if `caller` may not create this kind of file.
    fn check_caller(&self, caller: &Caller, subject: impl Fn() -> String) -> Result<()> {
        match is_device(self.kind()) && !caller.can(super::Capabilities::MKNOD) {
            true => Err(Error::Permission(subject())),
            false => Ok(()),
        }
    }
}

impl Node {
    /// Creates an empty file. `mode` has permissions, set-ID bits and the sticky bit.
    ///
    /// # Errors
    /// [`Error::Exists`] before [`Error::Access`]; [`Error::NoSpace`]; [`Error::NotFound`] in a
    /// removed directory.
    pub async fn create(&self, caller: &Caller, name: &[u8], mode: u16) -> Result<Self> {
        self.writer().guarded(self.make(caller, name, mode, What::File)).await
    }

    /// Creates an empty directory.
    ///
    /// # Errors
    /// As [`Self::create`]; [`Error::TooManyLinks`].
    pub async fn mkdir(&self, caller: &Caller, name: &[u8], mode: u16) -> Result<Self> {
        self.writer().guarded(self.make(caller, name, mode & 0o1777, What::Directory)).await
    }

    /// Creates a symbolic link.
    ///
    /// # Errors
    /// As [`Self::create`]; [`Error::NotFound`] for an empty target, [`Error::NameTooLong`] for one
    /// that does not fit in a block, [`Error::Invalid`] for one with a NUL byte, which would
    /// truncate it on every read.
    pub async fn symlink(&self, caller: &Caller, name: &[u8], target: &[u8]) -> Result<Self> {
        check_target(target)?;
        self.writer().guarded(self.make(caller, name, 0o777, What::Symlink(target))).await
    }

    /// Creates a pipe, a socket, a device node or an empty file.
    ///
    /// # Errors
    /// As [`Self::create`]; [`Error::Permission`] for a directory, and for a device without the
    /// capability; [`Error::Invalid`] for a symbolic link.
    pub async fn mknod(
        &self,
        caller: &Caller,
        name: &[u8],
        kind: FileKind,
        mode: u16,
        device: DeviceNumber,
    ) -> Result<Self> {
        let what = What::of_node(kind, device, || quote(name))?;
        self.writer().guarded(self.make(caller, name, mode, what)).await
    }

    /// Creates an empty file without a name, in this directory's group of inodes (`O_TMPFILE`).
    /// [`Node::link`] or [`Node::link_over`] may name it; otherwise it is deleted with its last
    /// node.
    ///
    /// # Errors
    /// [`Error::Access`]; [`Error::NoSpace`].
    pub async fn create_unnamed(&self, caller: &Caller, mode: u16) -> Result<Self> {
        self.writer().guarded(self.make_unnamed(caller, mode, What::File)).await
    }

    /// Like [`Self::create_unnamed`], for a symbolic link.
    ///
    /// # Errors
    /// The errors of [`Self::create_unnamed`] and [`Self::symlink`].
    pub async fn symlink_unnamed(&self, caller: &Caller, target: &[u8]) -> Result<Self> {
        check_target(target)?;
        self.writer().guarded(self.make_unnamed(caller, 0o777, What::Symlink(target))).await
    }

    /// Like [`Self::create_unnamed`], for a pipe, a socket, a device node or an empty file.
    ///
    /// # Errors
    /// The errors of [`Self::create_unnamed`] and [`Self::mknod`].
    pub async fn mknod_unnamed(
        &self,
        caller: &Caller,
        kind: FileKind,
        mode: u16,
        device: DeviceNumber,
    ) -> Result<Self> {
        let what = What::of_node(kind, device, || "a file without a name".into())?;
        self.writer().guarded(self.make_unnamed(caller, mode, what)).await
    }

    async fn make_unnamed(&self, caller: &Caller, mode: u16, what: What<'_>) -> Result<Self> {
        let (namespace, writer) = (self.namespace(), self.writer());
        let cell = self.cell();
        let names = Order::default().read(Rank::Directory, cell).await;
        let dir = self.open_dir().await?;
        permit(writer, caller, cell, Want::CHANGE_NAMES).await?;
        dir.check_changeable()?;
        what.check_target(writer)?;
        what.check_caller(caller, || format!("inode {}", cell.number()))?;
        if !cell.is_live() {
            return Err(not_found(b"."));
        }
        let room = namespace.expect_owners(new_owners(caller, cell, what.kind())).await?;
        let mut draft = Draft::prepare(writer, caller, cell, what, mode, b"").await?;
        drop(names);
        let credits = draft.credits() + Orphans::CREDITS;
        let mut attach = draft.take_attach();
        let mut handle = writer.journal.start(Credits(credits)).await?;
        let made = draft.log(writer, &mut handle, cell, attach.as_mut());
        handle.inode(&made).raw.i_links_count = 0.into();
        writer.orphans.add(&mut handle, &made, Orphan::Unnamed);
        namespace.unnamed.lock().insert(made.number());
        drop(handle);
        drop(room);
        Ok(Self::new(namespace, made))
    }

    async fn make(&self, caller: &Caller, name: &[u8], mode: u16, what: What<'_>) -> Result<Self> {
        let (namespace, writer) = (self.namespace(), self.writer());
        namespace.tidy().await;
        let cell = self.cell();
        let names = Order::default().write(Rank::Directory, cell).await;
        let mut dir = self.open_dir().await?;
        permit(writer, caller, cell, Want::SEARCH).await?;
        check_new_name(name)?;
        let Err(slot) = dir.look(name).await? else { return Err(Error::Exists(quote(name))) };
        what.check_target(writer)?;
        if !cell.is_live() {
            return Err(not_found(name));
        }
        permit(writer, caller, cell, Want::CHANGE_NAMES).await?;
        what.check_caller(caller, || quote(name))?;
        dir.check_changeable()?;
        let adds_link = what.kind() == FileKind::Directory;
        if adds_link && links_full(&cell.read(Inode::clone), writer) {
            return Err(Error::TooManyLinks(format!("inode {}", cell.number())));
        }
        let privilege = writer.privilege(caller);
        let growth = dir.prepare(&slot, privilege).await?;
        let room = namespace.expect_owners(new_owners(caller, cell, what.kind())).await?;
        let mut draft = Draft::prepare(writer, caller, cell, what, mode, name).await?;
        let credits = LEAF_CREDITS + growth.credits() + draft.credits();
        let made = {
            let mut attach = draft.take_attach();
            let mut handle = writer.journal.start(Credits(credits)).await?;
            dir.insert(&mut handle, &slot, growth, draft.inode.number(), name, what.kind())?;
            let made = draft.log(writer, &mut handle, cell, attach.as_mut());
            let mut parent = handle.inode(cell);
            if adds_link {
                add_dir_link(&mut parent, writer);
            }
            touch(&mut parent, writer);
            made
        };
        drop(room);
        namespace.known.put(cell.number(), name, made.number());
        let node = Self::new(namespace, made);
        drop(names);
        writer.settle(&[cell], SYNC_NAMES).await?;
        Ok(node)
    }
}

/// Credits for changing a name in place: the leaf and the directory's inode.
pub(crate) const LEAF_CREDITS: u32 = 2;

/// A new inode with everything needed to log it.
pub(super) struct Draft<'a> {
    inode: NewInode,
    what: What<'a>,
    mode: u16,
    uid: u32,
    gid: u32,
    /// The first block of a directory or of a long target.
    block: Option<Allocated>,
    /// Inherited lists.
    access: Option<Acl>,
    default: Option<Acl>,
    /// A block for attributes that do not fit in the inode.
    xattrs: Option<Attach<'a>>,
    /// The attributes in the inode itself.
    body: Option<Box<[u8]>>,
}

impl<'a> Draft<'a> {
    /// Prepares a whiteout in the directory `parent`.
    pub(super) async fn whiteout(
        writer: &'a Writer,
        caller: &Caller,
        parent: &Arc<InodeCell>,
    ) -> Result<Self> {
        let none = DeviceNumber { major: 0, minor: 0 };
        Self::prepare(writer, caller, parent, What::Special(FileKind::CharDevice, none), 0, b"").await
    }

    async fn prepare(
        writer: &'a Writer,
        caller: &Caller,
        parent: &Arc<InodeCell>,
        what: What<'a>,
        mode: u16,
        name: &[u8],
    ) -> Result<Self> {
        let sb = writer.store.shape();
        let kind = what.kind();
        let default = match kind {
            FileKind::Symlink => None,
            _ => default_acl(writer, parent).await?,
        };
        let (mut mode, gid, top) = parent.read(|dir| {
            let (mode, gid) = new_mode(caller, dir, kind, mode);
            let top = dir.number == InodeNumber::ROOT || dir.flags().contains(InodeFlags::TOPDIR);
            (mode, gid, top)
        });
        let mut access = None;
        match &default {
            Some(list) => (access, mode) = acl::inherit(list, mode),
            None if kind != FileKind::Symlink => mode &= !(caller.umask & 0o777),
            None => {}
        }
        let wanted = match kind {
            FileKind::Directory if top => {
                let hash = hash_name(HashVersion::HalfMd4, CharSign::Unsigned, &sb.hash_seed(), name);
                Wanted::TopDirectory(hash.map_or(0, |hash| hash.major))
            }
            FileKind::Directory => Wanted::Directory,
            _ => Wanted::File,
        };
        let inode = take_number(writer, parent, wanted).await?;
        let mut draft = Self {
            inode,
            what,
            mode,
            uid: caller.uid,
            gid,
            block: None,
            access,
            default: default.filter(|_| kind == FileKind::Directory),
            xattrs: None,
            body: None,
        };
        let needs_block = match what {
            What::Directory => true,
            What::Symlink(target) => target.len() >= FAST_SYMLINK_MAX,
            _ => false,
        };
        if needs_block {
            draft.block = Some(Box::pin(draft.allocate(writer, caller)).await?);
        }
        if draft.access.is_some() || draft.default.is_some() {
            Box::pin(draft.prepare_xattrs(writer, caller)).await?;
        }
        Ok(draft)
    }

    async fn allocate(&self, writer: &Writer, caller: &Caller) -> Result<Allocated> {
        let privilege = writer.privilege(caller);
        let mut reservation = writer.alloc.reserve_waiting(&writer.journal, 1, 0, privilege).await?;
        let goal = writer.alloc.data_goal(self.inode.number(), Some(self.what.kind()));
        writer.alloc.blocks(goal, 1, &mut reservation).await
    }

    /// Decides where inherited lists are stored.
    async fn prepare_xattrs(&mut self, writer: &'a Writer, caller: &Caller) -> Result<()> {
        let lists = [
            (XattrIndex::ACL_ACCESS, self.access.as_ref().map(Acl::to_stored)),
            (XattrIndex::ACL_DEFAULT, self.default.as_ref().map(Acl::to_stored)),
        ];
        let sb = writer.store.shape();
        let block_bytes = sb.block_size().byte_len();
        let mut inode = Inode::new(self.inode.number(), sb);
        let mut block: Option<Box<[u8]>> = None;
        for (index, list) in &lists {
            let Some(list) = list else { continue };
            let name = XattrName { index: *index, suffix: b"" };
            let change = change_plan::Change { name, value: Some(list), mode: change_plan::SetMode::Any };
            let plan = {
                let parsed = block
                    .as_deref()
                    .map(|bytes| extant_format::XattrBlock::parse(bytes, inode.number, VolumeBlock(0)))
                    .transpose()?;
                change_plan::plan(&inode, parsed.as_ref(), block_bytes, &change)
                    .map_err(|_| no_room(&change, sb))?
            };
            if let Some(body) = plan.body {
                inode.tail = body;
            }
            if let change_plan::BlockPlan::Write(bytes) = plan.block {
                block = Some(bytes);
            }
        }
        if let Some(bytes) = block {
            let kind = Some(self.what.kind());
            let privilege = writer.privilege(caller);
            self.xattrs = Some(Attach::prepare(writer, self.inode.number(), kind, bytes, privilege).await?);
        }
        self.body = Some(inode.tail);
        Ok(())
    }

    pub(super) fn credits(&self) -> u32 {
        let block = if self.block.is_some() { Allocated::CREDITS + 1 } else { 0 };
        // The inode itself, and the superblock for a feature flag.
        self.inode.credits() + 2 + block + self.xattrs.as_ref().map_or(0, Attach::credits)
    }

    /// The inode's number.
    pub(super) fn number(&self) -> InodeNumber {
        self.inode.number()
    }

    /// Takes the attribute block out, to be passed to [`Self::log`]. The caller must drop it after
    /// the handle. Until it is taken, the draft's credits include it.
    pub(super) fn take_attach(&mut self) -> Option<Attach<'a>> {
        self.xattrs.take()
    }

    /// Logs the inode. The caller adds the name.
    pub(super) fn log(
        self,
        writer: &Writer,
        handle: &mut Handle,
        parent: &Arc<InodeCell>,
        attach: Option<&mut Attach<'a>>,
    ) -> Arc<InodeCell> {
        let sb = writer.store.shape();
        let Self { inode: new, what, mode, uid, gid, block, body, .. } = self;
        let (number, generation) = (new.number(), writer.inodes.generation(&new));
        let unit = u64::from(sb.block_size().bytes() / 512);
        let mut blocks = 0;
        let place = block.map(|allocated| {
            let run = allocated.run();
            writer.alloc.log(handle, allocated);
            blocks += unit * run.blocks;
            run.start
        });
        if let (What::Directory, Some(at)) = (what, place) {
            let kind = MetaKind::Directory { dir: number, generation, block: FileBlock(0) };
            let block = handle.create(at, kind);
            let leaf = LeafFormat::of(sb);
            leaf.init_first(&mut handle.edit(&block), number, parent.number());
        }
        if let (What::Symlink(target), Some(at)) = (what, place) {
            let block = handle.create(at, MetaKind::Raw);
            handle.edit(&block)[..target.len()].copy_from_slice(target);
        }
        let xattr_block = attach.and_then(|attach| {
            blocks += unit * sb.cluster_size().blocks();
            attach.apply(writer, handle, number)
        });
        if body.is_some() {
            ensure_feature(handle);
        }
        let (inherited, project) =
            parent.read(|dir| (inherited_flags(dir, what.kind()), inherited_project(dir)));
        let extents = sb.incompat().contains(Incompat::EXTENTS);
        let made = writer.inodes.create(handle, &writer.alloc, new, |inode| {
            inode.raw.i_mode = mode.into();
            inode.raw.i_links_count = if what.kind() == FileKind::Directory { 2.into() } else { 1.into() };
            inode.set_owner(uid, gid);
            let mapped = matches!(what.kind(), FileKind::Regular) || place.is_some();
            let tree = extents && mapped;
            let flags = inherited | if tree { InodeFlags::EXTENTS } else { InodeFlags::empty() };
            inode.raw.i_flags = flags.bits().into();
            if let Some(project) = project.filter(|_| sb.ro_compat().contains(RoCompat::PROJECT)) {
                inode.extra.i_projid = project.into();
            }
            match (tree, place) {
                (true, place) => {
                    let extent =
                        |physical| Extent { logical: FileBlock(0), physical, blocks: 1, unwritten: false };
                    ExtentNode::Leaf(place.map(extent).into_iter().collect())
                        .write_to(&mut inode.raw.i_block);
                }
                (false, Some(at)) => inode.raw.i_block[..4].copy_from_slice(&at.0.fit_u32().to_le_bytes()),
                (false, None) => {}
            }
            match what {
                What::Directory => inode.set_size(sb.block_size().bytes().into()),
                What::Symlink(target) => {
                    inode.set_size(target.len().to_u64());
                    if place.is_none() {
                        inode.raw.i_block[..target.len()].copy_from_slice(target);
                    }
                }
                What::Special(_, device) if inode.kind().is_some_and(is_device) => inode.set_device(device),
                What::Special(..) | What::File => {}
            }
            inode.set_blocks_512(blocks, sb);
            if let Some(at) = xattr_block {
                inode.set_xattr_block(at);
            }
            if let Some(body) = body {
                inode.tail = body;
            }
        });
        let mut record = handle.inode(&made);
        let now = record.stamp(writer.clock.now());
        record.set_times(now, now, now, now);
        drop(record);
        if let (What::Directory, Some(at)) = (what, place) {
            state(&made).set_made(parent.number(), at);
        }
        made
    }
}

/// Takes a number for a new inode in the directory `parent`.
pub(super) async fn take_number(
    writer: &Writer,
    parent: &Arc<InodeCell>,
    wanted: Wanted,
) -> Result<NewInode> {
    let sb = writer.store.shape();
    let group = sb.locate_inode(parent.number()).map_or_else(Default::default, |(group, _)| group);
    let near = Parent { inode: parent.number(), group, last: state(parent).last_group };
    writer.rt.charge(Cost::BlockSearch(1));
    let inode = writer.inodes.take_number(&writer.alloc, &writer.journal, wanted, near).await?;
    if wanted == Wanted::File {
        state(parent).last_group = sb.locate_inode(inode.number()).map(|(group, _)| group);
    }
    Ok(inode)
}

/// The flags that a new inode of this kind inherits from its directory.
pub(super) fn inherited_flags(dir: &Inode, kind: FileKind) -> InodeFlags {
    let flags = dir.flags() & INHERITED;
    match kind {
        FileKind::Directory => flags,
        FileKind::Regular => flags - (InodeFlags::DIRSYNC | InodeFlags::PROJINHERIT),
        _ => flags & (InodeFlags::NODUMP | InodeFlags::NOATIME),
    }
}

fn check_target(target: &[u8]) -> Result<()> {
    if target.is_empty() {
        return Err(not_found(target));
    }
    if target.contains(&0) {
        return Err(Error::Invalid(format!("{} is no target: it has a NUL byte", quote(target))));
    }
    Ok(())
}

/// The owners of an inode that `caller` creates in a directory.
pub(super) fn new_owners(caller: &Caller, parent: &InodeCell, kind: FileKind) -> Owners {
    parent.read(|dir| {
        let (_, gid) = new_mode(caller, dir, kind, 0);
        Owners { uid: caller.uid, gid, project: inherited_project(dir).unwrap_or(0) }
    })
}

/// The project that new inodes inherit from a directory, if any.
pub(super) fn inherited_project(dir: &Inode) -> Option<u32> {
    dir.project().filter(|_| dir.flags().contains(InodeFlags::PROJINHERIT))
}

const fn is_device(kind: FileKind) -> bool {
    matches!(kind, FileKind::CharDevice | FileKind::BlockDevice)
}

/// Maximum number of links to an inode (`EXT4_LINK_MAX`).
pub(crate) const HARD_LINKS_MAX: u16 = 65_000;

/// Whether a directory cannot hold another directory. There is no limit for a hash-indexed one on a
/// volume with `dir_nlink`.
pub(crate) fn links_full(dir: &Inode, writer: &Writer) -> bool {
    dir.links() >= HARD_LINKS_MAX && !counts_without_end(dir, writer)
}

fn counts_without_end(dir: &Inode, writer: &Writer) -> bool {
    let sb = writer.store.shape();
    sb.ro_compat().contains(RoCompat::DIR_NLINK)
        && sb.compat().contains(Compat::DIR_INDEX)
        && dir.flags().contains(InodeFlags::INDEX)
}

/// Adds a subdirectory to the link count. Past [`HARD_LINKS_MAX`] the count becomes 1 and stays 1.
pub(crate) fn add_dir_link(dir: &mut Inode, writer: &Writer) {
    let links = dir.links().saturating_add(1);
    let overflows = counts_without_end(dir, writer) && (links > HARD_LINKS_MAX || links == 2);
    dir.raw.i_links_count = if overflows { 1 } else { links }.into();
}

/// Removes a subdirectory from the link count.
pub(crate) fn drop_dir_link(dir: &mut Inode) {
    if dir.links() > 2 {
        dir.raw.i_links_count = (dir.links() - 1).into();
    }
}
