//! Hard links.

use super::caller::{Protection, Want, check_removal};
use super::create::{HARD_LINKS_MAX, LEAF_CREDITS};
use super::delete_inode::CheckedMap;
use super::node::{check_new_name, not_found, permit};
use super::open_dir::Growth;
use super::order::{Order, Rank, Stopped};
use super::remove::{DROP_CREDITS, drop_name};
use super::{Caller, Node, SYNC_NAMES, delete_inode, touch, touch_inode};
use crate::inode::{InodeCell, Orphan, Orphans};
use crate::journal::Credits;
use crate::{Error, Result, quote};
use extant_format::{FileKind, Inode, InodeFlags, Place};
use std::sync::Arc;

impl Node {
    /// Gives `target` another name in this directory. A file created without a name gets its first
    /// one, after its data are written.
    ///
    /// # Errors
    /// [`Error::Exists`]; [`Error::Access`]; [`Error::Permission`] for a directory and for an
    /// immutable or append-only file; [`Error::TooManyLinks`]; [`Error::NotFound`] for a file whose
    /// last name was removed; [`Error::CrossDevice`] for another volume or project; why data cannot
    /// be written.
    pub async fn link(&self, caller: &Caller, target: &Self, name: &[u8]) -> Result<()> {
        self.writer().guarded(self.link_as(caller, target, name, false)).await
    }

    /// Like [`Self::link`], but replaces an existing name in one step, unless it is a directory's.
    /// After a crash the name leads to the old file, or to the new one with its data. If the name
    /// already belongs to `target`, nothing changes.
    ///
    /// # Errors
    /// As [`Self::link`], but [`Error::IsADirectory`] if the name is a directory's; those of
    /// [`Self::unlink`].
    pub async fn link_over(&self, caller: &Caller, target: &Self, name: &[u8]) -> Result<()> {
        self.writer().guarded(self.link_as(caller, target, name, true)).await
    }

    async fn link_as(&self, caller: &Caller, target: &Self, name: &[u8], replaces: bool) -> Result<()> {
        let namespace = self.namespace();
        namespace.tidy().await;
        // Before taking locks, as in a rename over an existing name.
        if replaces || target.cell().read(Inode::links) == 0 {
            Box::pin(target.namespace().files.write_back_one(target.cell())).await?;
        }
        let mut checked = CheckedMap::default();
        let replaced = loop {
            match self.add_name(caller, target, name, replaces, &checked).await {
                Ok(replaced) => break replaced,
                Err(stopped) => checked.resume(namespace, stopped).await?,
            }
        };
        if let Some(replaced) = replaced {
            namespace.delete_unused(&replaced).await;
        }
        self.writer().settle(&[self.cell()], SYNC_NAMES).await
    }

    /// Adds the name and returns the inode that had it before.
    async fn add_name(
        &self,
        caller: &Caller,
        target: &Self,
        name: &[u8],
        replaces: bool,
        checked: &CheckedMap,
    ) -> std::result::Result<Option<Arc<InodeCell>>, Stopped> {
        let (namespace, writer) = (self.namespace(), self.writer());
        let (parent, inode) = (self.cell(), target.cell());
        let order = Order::default();
        let _names = order.write(Rank::Directory, parent).await;
        let mut dir = self.open_dir().await?;
        permit(writer, caller, parent, Want::SEARCH).await?;
        check_new_name(name)?;
        let looked = dir.look(name).await?;
        if looked.is_ok() && !replaces {
            return Err(Error::Exists(quote(name)).into());
        }
        if !parent.is_live() {
            return Err(not_found(name).into());
        }
        permit(writer, caller, parent, Want::CHANGE_NAMES).await?;
        let foreign = !Arc::ptr_eq(writer, target.writer());
        if foreign || !same_project(&parent.read(Inode::clone), &inode.read(Inode::clone)) {
            return Err(Error::CrossDevice(quote(name)).into());
        }
        let fixed = InodeFlags::APPEND | InodeFlags::IMMUTABLE;
        if target.is_dir() || inode.read(|inode| inode.flags().intersects(fixed)) {
            return Err(Error::Permission(quote(name)).into());
        }
        let replaced = match &looked {
            Ok(spot) => {
                let place = Place::Inode(parent.number());
                let replaced = writer.inodes.get_live(spot.entry().inode, place).await?;
                let (dir_of, of) = (parent.read(Protection::of), replaced.read(Protection::of));
                check_removal(caller, dir_of, of, false, || quote(name))?;
                Some(replaced)
            }
            Err(_) => None,
        };
        if replaced.as_ref().is_some_and(|replaced| Arc::ptr_eq(replaced, inode)) {
            return Ok(None);
        }
        dir.check_changeable()?;
        let growth = match &looked {
            Ok(_) => Growth::NONE,
            Err(slot) => dir.prepare(slot, writer.privilege(caller)).await?,
        };
        let (first, second) = match &replaced {
            Some(replaced) if replaced.number() < inode.number() => (replaced, Some(inode)),
            replaced => (inode, replaced.as_ref()),
        };
        let _first = order.write(Rank::File, first).await;
        let _second = match second {
            Some(second) => Some(order.write(Rank::File, second).await),
            None => None,
        };
        let links = inode.read(Inode::links);
        let unnamed = links == 0;
        if unnamed && !namespace.unnamed.lock().contains(&inode.number()) {
            return Err(not_found(name).into());
        }
        if links >= HARD_LINKS_MAX {
            return Err(Error::TooManyLinks(format!("inode {}", inode.number())).into());
        }
        if let Some(replaced) = &replaced {
            Box::pin(delete_inode::check(namespace, replaced, checked)).await?;
        }
        let kind = target.kind().unwrap_or(FileKind::Regular);
        let dropped = if replaced.is_some() { DROP_CREDITS } else { 0 };
        let credits = LEAF_CREDITS + growth.credits() + 1 + Orphans::CREDITS + dropped;
        let mut handle = writer.journal.start(Credits(credits)).await?;
        match &looked {
            Ok(spot) => dir.set(&mut handle, (spot, name), inode.number(), kind),
            Err(slot) => dir.insert(&mut handle, slot, growth, inode.number(), name, kind)?,
        }
        {
            let mut record = handle.inode(inode);
            record.raw.i_links_count = (links + 1).into();
            touch_inode(&mut record, writer);
        }
        if unnamed {
            writer.orphans.remove(&mut handle, inode, Orphan::Unnamed);
            namespace.unnamed.lock().remove(&inode.number());
        }
        if let Some(replaced) = &replaced {
            drop_name(writer, &mut handle, replaced);
        }
        touch(&mut handle.inode(parent), writer);
        drop(handle);
        Ok(replaced.as_ref().filter(|replaced| !replaced.is_live()).cloned())
    }
}

/// Whether a file may be in a directory that passes on its project.
pub(super) fn same_project(dir: &Inode, inode: &Inode) -> bool {
    !dir.flags().contains(InodeFlags::PROJINHERIT) || dir.project() == inode.project()
}
