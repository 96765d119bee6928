//! Removing names: unlink and rmdir.

use super::caller::{Protection, Want, check_removal};
use super::create::{LEAF_CREDITS, drop_dir_link};
use super::delete_inode::CheckedMap;
use super::node::{check_name_length, not_found, permit};
use super::open_dir::OpenDir;
use super::order::{Order, Rank, Stopped};
use super::{Caller, Node, SYNC_NAMES, delete_inode, touch, touch_inode};
use crate::dir::check::elsewhere;
use crate::inode::{InodeCell, Orphan, Orphans};
use crate::journal::{Credits, Handle};
use crate::writer::Writer;
use crate::{Error, Result, quote};
use extant_format::{FileKind, Inode, InodeNumber, Place};
use std::sync::Arc;

impl Node {
    /// Removes a name of anything but a directory. The inode is deleted once its last name and last
    /// node are gone.
    ///
    /// # Errors
    /// [`Error::NotFound`]; [`Error::Access`] or [`Error::Permission`]; [`Error::IsADirectory`].
    pub async fn unlink(&self, caller: &Caller, name: &[u8]) -> Result<()> {
        if matches!(name, b"." | b"..") {
            return Err(Error::IsADirectory(quote(name)));
        }
        self.writer().guarded(self.remove_name(caller, name, false, Victim::Deleted)).await.map(drop)
    }

    /// Like [`Self::unlink`]. Returns the inode, which is not deleted before that node is dropped.
    ///
    /// # Errors
    /// The same errors.
    pub async fn unlink_keeping(&self, caller: &Caller, name: &[u8]) -> Result<Option<Self>> {
        if matches!(name, b"." | b"..") {
            return Err(Error::IsADirectory(quote(name)));
        }
        self.writer().guarded(self.remove_name(caller, name, false, Victim::Kept)).await
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// [`Error::NotFound`]; [`Error::Access`] or [`Error::Permission`]; [`Error::NotADirectory`];
    /// [`Error::NotEmpty`].
    pub async fn rmdir(&self, caller: &Caller, name: &[u8]) -> Result<()> {
        self.remove_directory(caller, name, Victim::Deleted).await.map(drop)
    }

    /// Like [`Self::rmdir`]. Returns the directory, which is not deleted before that node is
    /// dropped.
    ///
    /// # Errors
    /// The same errors.
    pub async fn rmdir_keeping(&self, caller: &Caller, name: &[u8]) -> Result<Option<Self>> {
        self.remove_directory(caller, name, Victim::Kept).await
    }

    async fn remove_directory(&self, caller: &Caller, name: &[u8], victim: Victim) -> Result<Option<Self>> {
        match name {
            b"." => Err(Error::Invalid("a directory cannot be removed as `.`".into())),
            b".." => Err(Error::NotEmpty(quote(name))),
            _ => self.writer().guarded(self.remove_name(caller, name, true, victim)).await,
        }
    }

    /// Fails if the directory that a name leads to is damaged or has another name, under which its
    /// contents would disappear as well. For callers that empty a directory before removing it.
    ///
    /// # Errors
    /// [`Error::NotFound`]; [`Error::Access`]; [`Error::NotADirectory`]; [`Error::Corrupt`].
    pub async fn check_only_name(&self, caller: &Caller, name: &[u8]) -> Result<()> {
        let check = async {
            let mut checked = CheckedMap::default();
            loop {
                match self.check_only_name_locked(caller, name).await {
                    Ok(()) => return Ok(()),
                    Err(stopped) => checked.resume(self.namespace(), stopped).await?,
                }
            }
        };
        self.writer().guarded(check).await
    }

    async fn check_only_name_locked(&self, caller: &Caller, name: &[u8]) -> std::result::Result<(), Stopped> {
        let (namespace, writer, parent) = (self.namespace(), self.writer(), self.cell());
        let order = Order::default();
        let _names = order.write(Rank::Directory, parent).await;
        let mut dir = self.open_dir().await?;
        permit(writer, caller, parent, Want::SEARCH).await?;
        let Some(spot) = dir.look_for_removal(name).await? else { return Err(not_found(name).into()) };
        let number = spot.entry().inode;
        let below = writer.inodes.get_live(number, Place::Inode(parent.number())).await?;
        if below.read(Inode::kind) != Some(FileKind::Directory) {
            return Err(Error::NotADirectory(quote(name)).into());
        }
        if number == parent.number() {
            return Err(elsewhere(number, number).into());
        }
        let _below = order.follow(Rank::Directory, &below).await?;
        OpenDir::open(namespace, &below).await?.check_lies_in(parent.number())?;
        dir.check_named_once(number).await?;
        Ok(())
    }

    async fn remove_name(
        &self,
        caller: &Caller,
        name: &[u8],
        directory: bool,
        victim: Victim,
    ) -> Result<Option<Self>> {
        self.namespace().tidy().await;
        let mut checked = CheckedMap::default();
        let (cell, kept) = loop {
            match self.remove_locked(caller, name, (directory, victim), &checked).await {
                Ok(removed) => break removed,
                Err(stopped) => checked.resume(self.namespace(), stopped).await?,
            }
        };
        if kept.is_none() {
            self.namespace().delete_unused(&cell).await;
        }
        self.writer().settle(&[self.cell()], SYNC_NAMES).await?;
        Ok(kept)
    }

    /// Removes a name. Returns a node for the inode if `victim` says so.
    async fn remove_locked(
        &self,
        caller: &Caller,
        name: &[u8],
        (directory, wanted): (bool, Victim),
        checked: &CheckedMap,
    ) -> std::result::Result<(Arc<InodeCell>, Option<Self>), Stopped> {
        let (namespace, writer, parent) = (self.namespace(), self.writer(), self.cell());
        let order = Order::default();
        let _names = order.write(Rank::Directory, parent).await;
        let mut dir = self.open_dir().await?;
        permit(writer, caller, parent, Want::SEARCH).await?;
        check_name_length(name)?;
        let Some(spot) = dir.look_for_removal(name).await? else { return Err(not_found(name).into()) };
        permit(writer, caller, parent, Want::CHANGE_NAMES).await?;
        let number = spot.entry().inode;
        let victim = writer.inodes.get_live(number, Place::Inode(parent.number())).await?;
        let (dir_of, of) = (parent.read(Protection::of), victim.read(Protection::of));
        check_removal(caller, dir_of, of, directory, || quote(name))?;
        if number == InodeNumber::ROOT || number == parent.number() {
            return Err(Error::Busy(quote(name)).into());
        }
        dir.check_changeable()?;
        let inode = order.follow(Rank::of(directory), &victim).await?;
        if directory {
            let mut victim = OpenDir::open(namespace, &victim).await?;
            victim.check_lies_in(parent.number())?;
            if !Box::pin(victim.is_empty()).await? {
                return Err(Error::NotEmpty(quote(name)).into());
            }
            dir.check_named_once(number).await?;
        }
        Box::pin(delete_inode::check(namespace, &victim, checked)).await?;
        let credits = LEAF_CREDITS + DROP_CREDITS;
        let kept = (wanted == Victim::Kept).then(|| Self::new(namespace, victim.clone()));
        let mut handle = writer.journal.start(Credits(credits)).await?;
        dir.remove(&mut handle, &spot, name);
        drop_name(writer, &mut handle, &victim);
        let mut record = handle.inode(parent);
        if directory {
            drop_dir_link(&mut record);
        }
        touch(&mut record, writer);
        drop(record);
        drop(handle);
        drop(inode);
        Ok((victim, kept))
    }
}

/// What to do with an inode that loses its last name and that nothing else holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Victim {
    /// The operation deletes it.
    Deleted,
    /// The caller gets a node for it.
    Kept,
}

/// Credits for [`drop_name`].
pub(super) const DROP_CREDITS: u32 = 1 + Orphans::CREDITS;

/// Takes one name off an inode's link count, or all names of a directory. If none is left, the
/// inode becomes an orphan.
pub(super) fn drop_name(writer: &Writer, handle: &mut Handle, victim: &Arc<InodeCell>) {
    let left = {
        let mut inode = handle.inode(victim);
        let directory = inode.kind() == Some(FileKind::Directory);
        let left = if directory { 0 } else { inode.links().saturating_sub(1) };
        inode.raw.i_links_count = left.into();
        touch_inode(&mut inode, writer);
        left
    };
    if left == 0 {
        writer.orphans.add(handle, victim, Orphan::Unnamed);
    }
}
