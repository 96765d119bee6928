//! Extended attributes by name.

use super::caller::{SET_GID, Want};
use super::node::permit;
use super::order::{Order, Rank};
use super::{Caller, Capabilities, Node, touch_inode};
use crate::journal::Credits;
use crate::xattr::SetMode;
use crate::xattr::{acl, edit, live};
use crate::{Error, Result, quote};
use extant_format::{Acl, FileKind, InodeFlags, XattrIndex, XattrName};
use futures_util::future::BoxFuture;

impl Node {
    /// Sets an attribute. Access control lists have the format of Linux's `system.posix_acl_*`.
    ///
    /// # Errors
    /// [`Error::Range`] for the name's length, [`Error::ValueTooBig`], [`Error::NotSupported`] for
    /// an unknown prefix, [`Error::Exists`] and [`Error::NoData`] depending on `mode`,
    /// [`Error::NoXattrRoom`] if neither the inode nor a block has room, [`Error::Permission`],
    /// [`Error::Access`], [`Error::Invalid`] for a malformed list or `security.capability`.
    pub async fn set_xattr(&self, caller: &Caller, name: &[u8], value: &[u8], mode: SetMode) -> Result<()> {
        check_length(name)?;
        if value.len() > edit::VALUE_MAX {
            return Err(Error::ValueTooBig(quote(name)));
        }
        self.change_xattr(caller, name, Some(value), mode).await
    }

    /// Removes an attribute.
    ///
    /// # Errors
    /// [`Error::NoData`] if there is none; as [`Self::set_xattr`].
    pub async fn remove_xattr(&self, caller: &Caller, name: &[u8]) -> Result<()> {
        check_length(name)?;
        self.change_xattr(caller, name, None, SetMode::Any).await
    }

    /// Returns the value of an attribute.
    ///
    /// # Errors
    /// [`Error::NoData`]; [`Error::Access`] without read permission.
    pub fn xattr<'a>(&'a self, caller: &'a Caller, name: &'a [u8]) -> BoxFuture<'a, Result<Vec<u8>>> {
        Box::pin(self.writer().guarded(self.find_xattr(caller, name)))
    }

    async fn find_xattr(&self, caller: &Caller, name: &[u8]) -> Result<Vec<u8>> {
        check_length(name)?;
        let (writer, cell) = (self.writer(), self.cell());
        let missing = || Error::NoData(quote(name));
        let parsed = parse(name)?;
        match parsed.index {
            XattrIndex::TRUSTED if !caller.can(Capabilities::SYS_ADMIN) => return Err(missing()),
            XattrIndex::USER if !self.has_user_xattrs() => return Err(missing()),
            XattrIndex::USER => permit(writer, caller, cell, Want::READ).await?,
            _ => {}
        }
        let _inode = Order::default().read(Rank::of(self.is_dir()), cell).await;
        let value = live::get(writer, cell, parsed).await?.ok_or_else(missing)?;
        match parsed.index {
            XattrIndex::ACL_ACCESS | XattrIndex::ACL_DEFAULT => {
                Ok(Acl::parse_stored(&value, cell.number())?.to_xattr())
            }
            _ => Ok(value),
        }
    }

    /// Returns the names of the attributes that the caller may see.
    ///
    /// # Errors
    /// A damaged inode or attribute block.
    pub fn xattrs<'a>(&'a self, caller: &'a Caller) -> BoxFuture<'a, Result<Vec<Vec<u8>>>> {
        Box::pin(self.writer().guarded(self.list_xattrs(caller)))
    }

    async fn list_xattrs(&self, caller: &Caller) -> Result<Vec<Vec<u8>>> {
        let (writer, cell) = (self.writer(), self.cell());
        let _inode = Order::default().read(Rank::of(self.is_dir()), cell).await;
        let trusted = caller.can(Capabilities::SYS_ADMIN);
        live::names(writer, cell, |name| name.index != XattrIndex::TRUSTED || trusted).await
    }

    /// Only files and directories can have `user.` attributes.
    fn has_user_xattrs(&self) -> bool {
        matches!(self.kind(), Some(FileKind::Regular | FileKind::Directory))
    }

    fn change_xattr<'a>(
        &'a self,
        caller: &'a Caller,
        name: &'a [u8],
        value: Option<&'a [u8]>,
        mode: SetMode,
    ) -> BoxFuture<'a, Result<()>> {
        let (writer, cell) = (self.writer(), self.cell());
        Box::pin(writer.guarded(async move {
            self.namespace().delete_doomed().await;
            self.change_xattr_locked(caller, name, value, mode).await?;
            writer.settle(&[cell], InodeFlags::SYNC).await
        }))
    }

    async fn change_xattr_locked(
        &self,
        caller: &Caller,
        name: &[u8],
        value: Option<&[u8]>,
        mode: SetMode,
    ) -> Result<()> {
        let (writer, cell) = (self.writer(), self.cell());
        let _inode = Order::default().write(Rank::of(self.is_dir()), cell).await;
        let denied = || Error::Permission(quote(name));
        let fixed = InodeFlags::IMMUTABLE | InodeFlags::APPEND;
        if cell.read(|inode| inode.flags().intersects(fixed)) {
            return Err(denied());
        }
        if name.starts_with(b"trusted.") && !caller.can(Capabilities::SYS_ADMIN) {
            return Err(denied());
        }
        if name.starts_with(b"user.") {
            let sticky =
                self.is_dir() && cell.read(|inode| inode.mode() & 0o1000 != 0 && !caller.owns(inode));
            if !self.has_user_xattrs() || sticky {
                return Err(denied());
            }
            permit(writer, caller, cell, Want::WRITE).await?;
        }
        let parsed = parse(name)?;
        let stored = match parsed.index {
            XattrIndex::ACL_ACCESS | XattrIndex::ACL_DEFAULT => {
                return self.change_acl(caller, parsed, name, value).await;
            }
            XattrIndex::SECURITY if !caller.can(Capabilities::SYS_ADMIN) => return Err(denied()),
            XattrIndex::SECURITY if parsed.suffix == b"capability" && !value.is_none_or(is_capability) => {
                return Err(Error::Invalid(format!("the value is no file capability ({})", quote(name))));
            }
            XattrIndex::SYSTEM | XattrIndex::RICHACL | XattrIndex::HURD => {
                return Err(Error::NotSupported(quote(name)));
            }
            _ => value,
        };
        self.apply_xattr(caller, parsed, name, stored, mode, None).await
    }

    /// Sets or removes a list. An access list changes the mode; one that says no more than the mode
    /// is not stored.
    async fn change_acl(
        &self,
        caller: &Caller,
        parsed: XattrName<'_>,
        name: &[u8],
        value: Option<&[u8]>,
    ) -> Result<()> {
        let cell = self.cell();
        if self.kind() == Some(FileKind::Symlink) {
            return Err(Error::NotSupported(quote(name)));
        }
        let bad = |_| Error::Invalid(format!("{} is no access control list", quote(name)));
        let list = match value {
            // An empty value, or a list without entries, counts as no list.
            None | Some(b"" | b"\x02\0\0\0") => None,
            Some(bytes) => Some(Acl::parse_xattr(bytes, cell.number()).map_err(bad)?),
        };
        let is_access = parsed.index == XattrIndex::ACL_ACCESS;
        if !is_access && !self.is_dir() {
            return if list.is_some() { Err(Error::Access(quote(name))) } else { Ok(()) };
        }
        if !cell.read(|inode| caller.owns(inode)) {
            return Err(Error::Permission(quote(name)));
        }
        let mut new_mode = None;
        let mut kept = list;
        if let Some(list) = kept.take_if(|_| is_access) {
            let (bits, exact) = acl::mode_of(&list);
            new_mode = Some(cell.read(|inode| {
                let mode = inode.mode() & !0o777 | bits;
                if caller.in_group_or_can_set_id(inode.gid()) { mode } else { mode & !SET_GID }
            }));
            kept = (!exact).then_some(list);
        }
        let stored = kept.map(|list| list.to_stored());
        self.apply_xattr(caller, parsed, name, stored.as_deref(), SetMode::Any, new_mode).await
    }

    async fn apply_xattr(
        &self,
        caller: &Caller,
        parsed: XattrName<'_>,
        name: &[u8],
        value: Option<&[u8]>,
        mode: SetMode,
        new_mode: Option<u16>,
    ) -> Result<()> {
        let (writer, cell) = (self.writer(), self.cell());
        let is_list = matches!(parsed.index, XattrIndex::ACL_ACCESS | XattrIndex::ACL_DEFAULT);
        let change = live::Change { name: parsed, value, mode };
        let mut prepared = match live::prepare(writer, cell, &change, writer.privilege(caller)).await {
            Ok(prepared) => Some(prepared),
            // Removing a list that does not exist is not an error.
            Err(Error::NoData(_)) if is_list => None,
            Err(Error::NoData(_)) => return Err(Error::NoData(quote(name))),
            Err(Error::Exists(_)) => return Err(Error::Exists(quote(name))),
            Err(other) => return Err(other),
        };
        let credits = 1 + prepared.as_ref().map_or(0, |prepared| prepared.credits(writer));
        let mut handle = writer.journal.start(Credits(credits)).await?;
        if let Some(prepared) = &mut prepared {
            prepared.apply(writer, &mut handle, cell);
        }
        let mut inode = handle.inode(cell);
        if let Some(mode) = new_mode {
            inode.raw.i_mode = mode.into();
        }
        touch_inode(&mut inode, writer);
        drop(inode);
        drop(handle);
        Ok(())
    }
}

fn check_length(name: &[u8]) -> Result<()> {
    if name.is_empty() || name.len() > edit::NAME_MAX { Err(Error::Range(quote(name))) } else { Ok(()) }
}

/// # Errors
/// [`Error::NotSupported`] for an unknown prefix, [`Error::Invalid`] for a bare prefix.
fn parse(name: &[u8]) -> Result<XattrName<'_>> {
    if let Some(parsed) = XattrName::from_full(name).filter(|name| name.index.is_visible()) {
        return Ok(parsed);
    }
    match name {
        b"user." | b"trusted." | b"security." => {
            Err(Error::Invalid(format!("{} is only the prefix of a name", quote(name))))
        }
        _ => Err(Error::NotSupported(quote(name))),
    }
}

/// Whether Linux accepts the value for `security.capability` (`cap_convert_nscap`, capability.h):
/// `vfs_cap_data` of revision 2, or of revision 3, which adds the user that is root in its
/// namespace.
fn is_capability(value: &[u8]) -> bool {
    const EFFECTIVE: u32 = 1;
    let Some(&head) = value.first_chunk() else { return value.is_empty() };
    let revision = u32::from_le_bytes(head) & !EFFECTIVE;
    matches!((revision, value.len()), (0x0200_0000, 20) | (0x0300_0000, 24))
}
