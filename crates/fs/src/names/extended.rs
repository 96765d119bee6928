//! Extended attributes by name.

use super::caller::{SET_GID, Want};
use super::node::permit;
use super::order::{Order, Rank};
use super::{Caller, Capabilities, Node, touch_inode};
use crate::journal::Credits;
use crate::xattr::SetMode;
use crate::xattr::{acl, change_plan, live};
use crate::{Error, Result, quote};
use extant_format::{Acl, FileKind, InodeFlags, XattrIndex, XattrName};
use futures_util::future::BoxFuture;
use std::borrow::Cow;

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
        if value.len() > change_plan::VALUE_MAX {
            return Err(Error::ValueTooBig(quote(name)));
        }
        self.change_listed(caller, &[Wanted { name, value: Some(value), mode }]).await
    }

    /// Removes an attribute.
    ///
    /// # Errors
    /// [`Error::NoData`] if there is none; as [`Self::set_xattr`].
    pub async fn remove_xattr(&self, caller: &Caller, name: &[u8]) -> Result<()> {
        check_length(name)?;
        self.change_listed(caller, &[Wanted { name, value: None, mode: SetMode::Any }]).await
    }

    /// Sets attributes, and removes those given without a value. All changes are made or none, even
    /// if there is an error or a crash. If one attribute is changed twice, the last change counts.
    ///
    /// # Errors
    /// As [`Self::set_xattr`] and [`Self::remove_xattr`]; [`Error::NoSpace`] if the values together
    /// do not fit in a transaction.
    pub async fn change_xattrs(&self, caller: &Caller, changes: &[(&[u8], Option<&[u8]>)]) -> Result<()> {
        let mut wanted: Vec<Wanted<'_>> = Vec::new();
        for &(name, value) in changes {
            check_length(name)?;
            if value.is_some_and(|value| value.len() > change_plan::VALUE_MAX) {
                return Err(Error::ValueTooBig(quote(name)));
            }
            wanted.retain(|before| before.name != name);
            wanted.push(Wanted { name, value, mode: SetMode::Any });
        }
        match wanted.is_empty() {
            true => Ok(()),
            false => self.change_listed(caller, &wanted).await,
        }
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
            index if self.ignores(index) => return Err(Error::NotSupported(quote(name))),
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
        let shown = |name: &XattrName<'_>| {
            !self.ignores(name.index) && (name.index != XattrIndex::TRUSTED || trusted)
        };
        live::names(writer, cell, shown).await
    }

    /// Whether attributes of this class are lists that the volume ignores.
    fn ignores(&self, index: XattrIndex) -> bool {
        self.writer().mount.ignores_acls && matches!(index, XattrIndex::ACL_ACCESS | XattrIndex::ACL_DEFAULT)
    }

    /// Only files and directories can have `user.` attributes.
    fn has_user_xattrs(&self) -> bool {
        matches!(self.kind(), Some(FileKind::Regular | FileKind::Directory))
    }

    fn change_listed<'a>(
        &'a self,
        caller: &'a Caller,
        wanted: &'a [Wanted<'a>],
    ) -> BoxFuture<'a, Result<()>> {
        let (writer, cell) = (self.writer(), self.cell());
        Box::pin(writer.guarded(async move {
            self.namespace().tidy().await;
            self.change_locked(caller, wanted).await?;
            writer.settle(&[cell], InodeFlags::SYNC).await
        }))
    }

    async fn change_locked(&self, caller: &Caller, wanted: &[Wanted<'_>]) -> Result<()> {
        let (writer, cell) = (self.writer(), self.cell());
        let _inode = Order::default().write(Rank::of(self.is_dir()), cell).await;
        let mut allowed = Vec::with_capacity(wanted.len());
        for wanted in wanted {
            allowed.extend(self.allow(caller, wanted).await?);
        }
        if allowed.is_empty() {
            return Ok(());
        }
        let mut changes = Vec::with_capacity(allowed.len());
        for Allowed { name, value, mode, .. } in &allowed {
            let is_list = matches!(name.index, XattrIndex::ACL_ACCESS | XattrIndex::ACL_DEFAULT);
            // Removing a list that does not exist is not an error.
            if !is_list || value.is_some() || live::get(writer, cell, *name).await?.is_some() {
                changes.push(live::Change { name: *name, value: value.as_deref(), mode: *mode });
            }
        }
        let mut prepared = match changes.is_empty() {
            true => None,
            false => Some(live::prepare(writer, cell, &changes, writer.privilege(caller)).await?),
        };
        let credits = 1 + prepared.as_ref().map_or(0, |prepared| prepared.credits(writer));
        let mut handle = writer.journal.start(Credits(credits)).await?;
        if let Some(prepared) = &mut prepared {
            prepared.apply(writer, &mut handle, cell);
        }
        let mut inode = handle.inode(cell);
        if let Some(mode) = allowed.iter().rev().find_map(|allowed| allowed.new_mode) {
            inode.raw.i_mode = mode.into();
        }
        touch_inode(&mut inode, writer);
        drop(inode);
        drop(handle);
        Ok(())
    }

    /// Checks whether the caller may make a change; `None` if there is nothing to do.
    async fn allow<'a>(&self, caller: &Caller, wanted: &Wanted<'a>) -> Result<Option<Allowed<'a>>> {
        let (writer, cell) = (self.writer(), self.cell());
        let &Wanted { name, value, mode } = wanted;
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
        match parsed.index {
            XattrIndex::ACL_ACCESS | XattrIndex::ACL_DEFAULT => {
                return self.allow_acl(caller, parsed, name, value);
            }
            XattrIndex::SECURITY if !caller.can(Capabilities::SYS_ADMIN) => return Err(denied()),
            XattrIndex::SECURITY if parsed.suffix == b"capability" && !value.is_none_or(is_capability) => {
                return Err(Error::Invalid(format!("the value is no file capability ({})", quote(name))));
            }
            XattrIndex::SYSTEM | XattrIndex::RICHACL | XattrIndex::HURD => {
                return Err(Error::NotSupported(quote(name)));
            }
            _ => {}
        }
        Ok(Some(Allowed { name: parsed, value: value.map(Cow::Borrowed), mode, new_mode: None }))
    }

    /// Like [`Self::allow`], for a list. An access list changes the mode; one that says no more
    /// than the mode is not stored.
    fn allow_acl<'a>(
        &self,
        caller: &Caller,
        parsed: XattrName<'a>,
        name: &[u8],
        value: Option<&[u8]>,
    ) -> Result<Option<Allowed<'a>>> {
        let cell = self.cell();
        if self.ignores(parsed.index) || self.kind() == Some(FileKind::Symlink) {
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
            return if list.is_some() { Err(Error::Access(quote(name))) } else { Ok(None) };
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
        let value = kept.map(|list| Cow::Owned(list.to_stored()));
        Ok(Some(Allowed { name: parsed, value, mode: SetMode::Any, new_mode }))
    }
}

/// A change that a caller asks for.
#[derive(Clone, Copy)]
struct Wanted<'a> {
    name: &'a [u8],
    /// `None` to remove the attribute.
    value: Option<&'a [u8]>,
    mode: SetMode,
}

/// A change that the caller may make.
struct Allowed<'a> {
    name: XattrName<'a>,
    /// The value as it is stored.
    value: Option<Cow<'a, [u8]>>,
    mode: SetMode,
    /// The mode that an access list gives the inode.
    new_mode: Option<u16>,
}

fn check_length(name: &[u8]) -> Result<()> {
    if name.is_empty() || name.len() > change_plan::NAME_MAX {
        Err(Error::Range(quote(name)))
    } else {
        Ok(())
    }
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
