//! Another name for an inode.

use super::caller::Want;
use super::create::{LEAF_CREDITS, LINKS_MAX};
use super::node::{check_new_name, not_found, permit};
use super::open_dir::OpenDir;
use super::order::{Order, Rank};
use super::{Caller, Node, SYNC_NAMES, touch, touch_inode};
use crate::inode::{Orphan, Orphans};
use crate::journal::Credits;
use crate::{Error, Result, quote};
use extant_format::{FileKind, Inode, InodeFlags};
use std::sync::Arc;

impl Node {
    /// Gives `target` another name in this directory; one made without a name gets its first.
    ///
    /// # Errors
    /// [`Error::Exists`]; [`Error::Access`]; [`Error::Permission`] for a directory and for an immutable or append-only
    /// file; [`Error::TooManyLinks`]; [`Error::NotFound`] for a file whose last name was removed;
    /// [`Error::CrossDevice`] for another volume or project.
    pub async fn link(&self, caller: &Caller, target: &Self, name: &[u8]) -> Result<()> {
        self.writer().guarded(self.add_name(caller, target, name)).await
    }

    async fn add_name(&self, caller: &Caller, target: &Self, name: &[u8]) -> Result<()> {
        let (namespace, writer) = (self.namespace(), self.writer());
        namespace.delete_doomed().await;
        let (parent, inode) = (self.cell(), target.cell());
        let order = Order::default();
        let names = order.write(Rank::Directory, parent).await;
        let mut dir = OpenDir::new(namespace, parent)?;
        permit(writer, caller, parent, Want::SEARCH).await?;
        check_new_name(name)?;
        let Err(slot) = dir.look(name).await? else { return Err(Error::Exists(quote(name))) };
        if !parent.is_live() {
            return Err(not_found(name));
        }
        permit(writer, caller, parent, Want::CHANGE_NAMES).await?;
        let foreign = !Arc::ptr_eq(writer, target.writer());
        if foreign || !same_project(&parent.read(Inode::clone), &inode.read(Inode::clone)) {
            return Err(Error::CrossDevice(quote(name)));
        }
        let fixed = InodeFlags::APPEND | InodeFlags::IMMUTABLE;
        if target.is_dir() || inode.read(|inode| inode.flags().intersects(fixed)) {
            return Err(Error::Permission(quote(name)));
        }
        dir.check_changeable()?;
        let growth = dir.prepare(&slot, writer.privilege(caller)).await?;
        let record_lock = order.write(Rank::File, inode).await;
        let links = inode.read(Inode::links);
        let unnamed = links == 0;
        if unnamed && !namespace.unnamed.lock().contains(&inode.number()) {
            return Err(not_found(name));
        }
        if links >= LINKS_MAX {
            return Err(Error::TooManyLinks(format!("inode {}", inode.number())));
        }
        let kind = target.kind().unwrap_or(FileKind::Regular);
        let credits = LEAF_CREDITS + growth.credits() + 1 + Orphans::CREDITS;
        {
            let mut handle = writer.journal.start(Credits(credits)).await?;
            dir.insert(&mut handle, &slot, growth, inode.number(), name, kind)?;
            {
                let mut record = handle.inode(inode);
                record.raw.i_links_count = (links + 1).into();
                touch_inode(&mut record, writer);
            }
            if unnamed {
                writer.orphans.remove(&mut handle, inode, Orphan::Unnamed);
                namespace.unnamed.lock().remove(&inode.number());
            }
            touch(&mut handle.inode(parent), writer);
        }
        drop((record_lock, names));
        writer.settle(&[parent], SYNC_NAMES).await
    }
}

/// Whether a file may lie in a directory that hands down its project.
pub(super) fn same_project(dir: &Inode, inode: &Inode) -> bool {
    !dir.flags().contains(InodeFlags::PROJINHERIT) || dir.project() == inode.project()
}
