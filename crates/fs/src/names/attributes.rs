//! Mode, owner, times and flags.

use super::caller::{SET_GID, Want, mode_after_chown};
use super::node::permit;
use super::order::{Order, Rank};
use super::{Caller, Capabilities, Node, touch_inode};
use crate::file::FileOptions;
use crate::journal::Credits;
use crate::quota::Owners;
use crate::xattr::{acl, live};
use crate::{Error, Result};
use extant_format::{FileKind, Inode, InodeFlags, RoCompat, Timestamp, XattrIndex, XattrName};
use futures_util::future::BoxFuture;

/// A new value for a time stamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    /// The current time.
    Now,
    /// This time, truncated to the precision and range of the inode.
    To(Timestamp),
}

/// Attributes to change, all in one step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetAttributes {
    /// Permissions, set-ID bits and the sticky bit.
    pub permissions: Option<u16>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Last access.
    pub accessed: Option<SetTime>,
    /// Last change of the contents.
    pub modified: Option<SetTime>,
    /// Last change of the inode, instead of the current time. For a cache above, which dates the
    /// changes that it holds: programs cannot set it.
    pub changed: Option<Timestamp>,
}

/// Flags that `chattr` may change.
const CHANGEABLE: InodeFlags = InodeFlags::SECRM
    .union(InodeFlags::UNRM)
    .union(InodeFlags::COMPR)
    .union(InodeFlags::SYNC)
    .union(InodeFlags::IMMUTABLE)
    .union(InodeFlags::APPEND)
    .union(InodeFlags::NODUMP)
    .union(InodeFlags::NOATIME)
    .union(InodeFlags::JOURNAL_DATA)
    .union(InodeFlags::NOTAIL)
    .union(InodeFlags::DIRSYNC)
    .union(InodeFlags::TOPDIR)
    .union(InodeFlags::PROJINHERIT);

/// Flags that only directories can have (the complement of Linux's `EXT4_REG_FLMASK`).
const OF_DIRECTORIES: InodeFlags =
    InodeFlags::DIRSYNC.union(InodeFlags::TOPDIR).union(InodeFlags::PROJINHERIT);

impl Node {
    /// Changes attributes.
    ///
    /// Changing the owner clears the set-ID bits and removes a program's capabilities. If the mode
    /// is set as well, the capabilities are removed in an earlier step of their own. Changing the
    /// mode also updates the access list.
    ///
    /// # Errors
    /// [`Error::Permission`] if the caller does not own the inode, and on an immutable or
    /// append-only one; [`Error::Access`] for setting the current time without write permission.
    pub fn set_attributes<'a>(
        &'a self,
        caller: &'a Caller,
        set: &'a SetAttributes,
    ) -> BoxFuture<'a, Result<()>> {
        Box::pin(self.writer().guarded(self.change_attributes(caller, set)))
    }

    async fn change_attributes(&self, caller: &Caller, set: &SetAttributes) -> Result<()> {
        if *set == SetAttributes::default() {
            return Ok(());
        }
        let writer = self.writer();
        let cell = self.cell();
        let locked = Order::default().write(Rank::of(self.is_dir()), cell).await;
        self.check_set(caller, set).await?;
        // The first thing that can fail for lack of space: later steps remove capabilities, or hold
        // the lock of shared attribute blocks.
        let room = match set.uid.or(set.gid) {
            Some(_) => {
                let kept = cell.read(Owners::of);
                let owners =
                    Owners { uid: set.uid.unwrap_or(kept.uid), gid: set.gid.unwrap_or(kept.gid), ..kept };
                self.namespace().expect_owners(owners).await?
            }
            None => None,
        };
        let mut xattrs = None;
        if (set.uid.is_some() || set.gid.is_some()) && !self.is_dir() {
            let privilege = writer.privilege(caller);
            match set.permissions {
                None => xattrs = live::without_capabilities(writer, cell, privilege).await?,
                // The handle takes one attribute change, and the access list may need it.
                Some(_) => live::drop_capabilities(writer, cell, privilege).await?,
            }
        }
        // Keep the access list in line with the mode.
        if let Some(permissions) = set.permissions {
            if self.kind() == Some(FileKind::Symlink) {
                return Err(Error::NotSupported(format!("the mode of symbolic link {}", cell.number())));
            }
            if let Some(list) = live::acl_of(writer, cell, XattrIndex::ACL_ACCESS).await? {
                let list = acl::with_mode(&list, permissions).to_stored();
                let name = XattrName { index: XattrIndex::ACL_ACCESS, suffix: b"" };
                let change = live::Change { name, value: Some(&list), mode: crate::xattr::SetMode::Any };
                xattrs = Some(live::prepare(writer, cell, &[change], writer.privilege(caller)).await?);
            }
        }
        // Inodes that hold attribute values are charged to the new owner as well.
        let values = match room {
            Some(_) => {
                let more = xattrs.as_ref().map_or(0, live::Prepared::more_values);
                live::value_count(writer, cell).await? + more
            }
            None => 0,
        };
        let credits = 1 + xattrs.as_ref().map_or(0, |xattrs| xattrs.credits(writer));
        {
            let mut handle = writer.journal.start(Credits(credits)).await?;
            if let Some(xattrs) = &mut xattrs {
                xattrs.apply(writer, &mut handle, cell);
            }
            handle.charge_values(cell, -values);
            let now = writer.clock.now();
            let mut inode = handle.inode(cell);
            if let Some(permissions) = set.permissions {
                let gid = set.gid.unwrap_or(inode.gid());
                let kept = if caller.in_group_or_can_set_id(gid) { 0o7777 } else { 0o7777 & !SET_GID };
                inode.raw.i_mode = (inode.mode() & !0o7777 | permissions & kept).into();
            }
            if set.uid.is_some() || set.gid.is_some() {
                let mode = mode_after_chown(caller, &inode);
                let (uid, gid) = (set.uid.unwrap_or(inode.uid()), set.gid.unwrap_or(inode.gid()));
                inode.raw.i_mode = mode.into();
                inode.set_owner(uid, gid);
            }
            let time = |set: SetTime| match set {
                SetTime::Now => now,
                SetTime::To(time) => time,
            };
            if let Some(set) = set.accessed {
                inode.set_accessed(time(set));
            }
            if let Some(set) = set.modified {
                inode.set_modified(time(set));
            }
            touch_inode(&mut inode, writer);
            if let Some(changed) = set.changed {
                inode.set_changed(changed);
            }
            drop(inode);
            handle.charge_values(cell, values);
        }
        drop((xattrs, room, locked));
        writer.settle(&[cell], InodeFlags::SYNC).await
    }

    /// Sets the times that a cache above has given to contents which it has written. As these
    /// writes, it may come when the inode is immutable by now.
    ///
    /// # Errors
    /// Why the journal gave up.
    pub async fn date_contents(&self, modified: Timestamp, changed: Timestamp) -> Result<()> {
        let date = async {
            let mut handle = self.writer().journal.start(Credits(1)).await?;
            let mut inode = handle.inode(self.cell());
            inode.set_modified(modified);
            inode.set_changed(changed);
            inode.bump_version();
            Ok(())
        };
        self.writer().guarded(date).await
    }

    async fn check_set(&self, caller: &Caller, set: &SetAttributes) -> Result<()> {
        let (writer, cell) = (self.writer(), self.cell());
        let denied = || Error::Permission(format!("inode {}", cell.number()));
        let explicit = [set.accessed, set.modified].iter().any(|time| matches!(time, Some(SetTime::To(_))));
        let sets_times = set.accessed.is_some() || set.modified.is_some();
        // Setting only one of the times is not what `touch` does, even to the current time.
        let touches = set.accessed == Some(SetTime::Now) && set.modified == Some(SetTime::Now);
        let owner_only = explicit || (sets_times && !touches);
        let (flags, owns, uid, gid) =
            cell.read(|inode| (inode.flags(), caller.owns(inode), inode.uid(), inode.gid()));
        let fixed = flags.intersects(InodeFlags::IMMUTABLE | InodeFlags::APPEND);
        let changes = set.permissions.is_some() || set.uid.is_some() || set.gid.is_some();
        if (fixed && (changes || owner_only)) || (flags.contains(InodeFlags::IMMUTABLE) && sets_times) {
            return Err(denied());
        }
        if sets_times && !owner_only && !owns {
            permit(writer, caller, cell, Want::WRITE).await?;
        }
        let is_owner = caller.uid == uid;
        let may_chown = caller.can(Capabilities::CHOWN);
        if set.uid.is_some_and(|new| !(may_chown || is_owner && new == uid)) {
            return Err(denied());
        }
        if set.gid.is_some_and(|new| !(may_chown || is_owner && (new == gid || caller.in_group(new)))) {
            return Err(denied());
        }
        if (set.permissions.is_some() || owner_only) && !owns {
            return Err(denied());
        }
        Ok(())
    }

    /// Sets the flags that `chattr` may change to those in `flags`; others are kept.
    ///
    /// # Errors
    /// [`Error::Access`] if the caller does not own the inode; [`Error::Permission`] without the
    /// capabilities for the immutable and append-only flags, and for data=journal;
    /// [`Error::NotSupported`] on anything but files and directories, for flags that are not
    /// supported on writable volumes, and for a directory's flags on a file. Also errors from
    /// writing the file back, which comes first if its data=journal flag changes.
    pub fn set_flags<'a>(&'a self, caller: &'a Caller, flags: InodeFlags) -> BoxFuture<'a, Result<()>> {
        self.set_flags_and_project(caller, Some(flags), None)
    }

    /// Sets the flags, the project, or both in one step (`FS_IOC_FSSETXATTR`).
    ///
    /// # Errors
    /// As [`Self::set_flags`] and [`Self::set_project`]. A project may be set while the immutable
    /// flag is set or removed.
    pub fn set_flags_and_project<'a>(
        &'a self,
        caller: &'a Caller,
        flags: Option<InodeFlags>,
        project: Option<u32>,
    ) -> BoxFuture<'a, Result<()>> {
        Box::pin(self.writer().guarded(self.change_flags_and_project(caller, flags, project)))
    }

    async fn change_flags_and_project(
        &self,
        caller: &Caller,
        flags: Option<InodeFlags>,
        project: Option<u32>,
    ) -> Result<()> {
        let (writer, cell) = (self.writer(), self.cell());
        let locked = Order::default().write(Rank::of(self.is_dir()), cell).await;
        if let Some(flags) = flags {
            self.check_flags(caller, flags)?;
        }
        let project = match project {
            Some(project) => self.check_project(caller, flags, project)?.then_some(project),
            None => None,
        };
        if flags.is_none() && project.is_none() {
            return Ok(());
        }
        let changed = cell.read(|inode| flags.map(|flags| inode.flags() ^ flags)).unwrap_or_default();
        if changed.contains(InodeFlags::JOURNAL_DATA) && !self.is_dir() {
            let file = self.namespace().files.open(cell, FileOptions::default())?;
            Box::pin(file.prepare_journalling_change()).await?;
        }
        let (room, values) = match project {
            Some(project) => {
                let owners = Owners { project, ..cell.read(Owners::of) };
                (self.namespace().expect_owners(owners).await?, live::value_count(writer, cell).await?)
            }
            None => (None, 0),
        };
        {
            let mut handle = writer.journal.start(Credits(1)).await?;
            handle.charge_values(cell, -values);
            let mut inode = handle.inode(cell);
            if let Some(flags) = flags {
                // Write-back may have changed other flags meanwhile, if contents left the inode.
                let now = inode.flags();
                inode.raw.i_flags = ((now - CHANGEABLE) | (flags & CHANGEABLE)).bits().into();
            }
            if let Some(project) = project {
                inode.extra.i_projid = project.into();
            }
            touch_inode(&mut inode, writer);
            drop(inode);
            handle.charge_values(cell, values);
        }
        drop((room, locked));
        writer.settle(&[cell], InodeFlags::SYNC).await
    }

    fn check_flags(&self, caller: &Caller, flags: InodeFlags) -> Result<()> {
        let cell = self.cell();
        let subject = || format!("inode {}", cell.number());
        if !matches!(self.kind(), Some(FileKind::Regular | FileKind::Directory)) {
            return Err(Error::NotSupported(subject()));
        }
        let (old, owns) = cell.read(|inode| (inode.flags(), caller.owns(inode)));
        if !owns {
            return Err(Error::Access(subject()));
        }
        let changed = old ^ flags;
        let is_misplaced = !self.is_dir() && flags.intersects(OF_DIRECTORIES);
        if is_misplaced || changed.intersects(InodeFlags::DAX | InodeFlags::CASEFOLD) {
            return Err(Error::NotSupported(format!("a flag of inode {}", cell.number())));
        }
        let guarded = InodeFlags::IMMUTABLE | InodeFlags::APPEND;
        if changed.intersects(guarded) && !caller.can(Capabilities::LINUX_IMMUTABLE) {
            return Err(Error::Permission(subject()));
        }
        let changes_journalling = changed.contains(InodeFlags::JOURNAL_DATA);
        match changes_journalling && !caller.can(Capabilities::SYS_RESOURCE) {
            true => Err(Error::Permission(subject())),
            false => Ok(()),
        }
    }

    /// Sets the inode's project (`FS_IOC_FSSETXATTR`).
    ///
    /// # Errors
    /// [`Error::NotSupported`] on a volume without the feature `project`, and for an inode without
    /// room for the number; [`Error::Permission`] if the caller does not own the inode, and on an
    /// immutable one.
    pub fn set_project<'a>(&'a self, caller: &'a Caller, project: u32) -> BoxFuture<'a, Result<()>> {
        self.set_flags_and_project(caller, None, Some(project))
    }

    /// Whether setting the project changes it. `flags` are set with it.
    fn check_project(&self, caller: &Caller, flags: Option<InodeFlags>, project: u32) -> Result<bool> {
        let (writer, cell) = (self.writer(), self.cell());
        let has_projects = writer.store.shape().ro_compat().contains(RoCompat::PROJECT);
        let Some(old) = cell.read(Inode::project).filter(|_| has_projects) else {
            return Err(Error::NotSupported(format!("a project of inode {}", cell.number())));
        };
        let stays_immutable = |inode: &Inode| {
            inode.flags().intersection(flags.unwrap_or(inode.flags())).contains(InodeFlags::IMMUTABLE)
        };
        match cell.read(|inode| !caller.owns(inode) || stays_immutable(inode)) {
            true => Err(Error::Permission(format!("inode {}", cell.number()))),
            false => Ok(old != project),
        }
    }
}
