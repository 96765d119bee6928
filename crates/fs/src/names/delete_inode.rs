//! Deletion of inodes that have no name and no holder.

use super::Namespace;
use super::dir_state::state;
use super::order::{Order, Rank, Stopped};
use crate::Result;
use crate::alloc::InodePin;
use crate::file::{check_freeing, free_from};
use crate::inode::{InodeCell, Orphans};
use crate::journal::{Credits, Handle};
use crate::map::change::maps_nothing;
use crate::writer::Writer;
use crate::xattr::live::{Release, release_values, value_count};
use extant_format::{FileKind, Inode, InodeFlags};
use std::sync::Arc;

/// The file whose map an operation has read without holding a directory's lock, with the root of
/// that map. No other step of the operation changes the map.
#[derive(Debug, Default)]
pub(super) struct CheckedMap(Option<(Arc<InodeCell>, [u8; 60])>);

impl CheckedMap {
    fn is_of(&self, cell: &Arc<InodeCell>) -> bool {
        self.0.as_ref().is_some_and(|(checked, root)| {
            Arc::ptr_eq(checked, cell) && cell.read(|now| now.raw.i_block == *root)
        })
    }

    /// Waits for the lock that made an operation stop, or checks the map, so that the operation can
    /// be tried again. The caller holds no locks.
    ///
    /// # Errors
    /// The error that made the operation stop; a map that cannot be freed.
    pub(super) async fn resume(&mut self, namespace: &Namespace, stopped: Stopped) -> Result<()> {
        let cell = match stopped {
            Stopped::Failed(error) => return Err(error),
            Stopped::Contended(cell) => {
                drop(cell.write_lock().await);
                return Ok(());
            }
            Stopped::Unchecked(cell) => cell,
        };
        let is_dir = cell.read(Inode::kind) == Some(FileKind::Directory);
        let locked = Order::default().write(Rank::of(is_dir), &cell).await;
        // Write-back may be changing the map now; a map in use by it is not checked.
        if namespace.files.may_change(&cell) {
            return Ok(());
        }
        Box::pin(check_freeing(&namespace.writer, &cell)).await?;
        let root = cell.read(|inode| inode.raw.i_block);
        drop(locked);
        self.0 = Some((cell, root));
        Ok(())
    }
}

/// Checks that an inode which is about to lose its last name can be deleted, so that the operation
/// fails if there is damage, rather than leaving an orphan that nothing can delete. The caller
/// holds the inode's lock.
///
/// # Errors
/// A damaged map, bitmap or attribute block, or one that cannot be read; [`Stopped::Unchecked`] if
/// a map with nodes was not checked before.
pub(super) async fn check(
    namespace: &Namespace,
    cell: &Arc<InodeCell>,
    checked: &CheckedMap,
) -> std::result::Result<(), Stopped> {
    let writer = &*namespace.writer;
    let has_other_names = cell.read(|inode| inode.kind() != Some(FileKind::Directory) && inode.links() > 1);
    // A file that is being written was read without errors.
    if has_other_names || namespace.files.may_change(cell) {
        return Ok(());
    }
    drop(writer.alloc.pin_inode(cell.number()).await?);
    drop(Release::prepare(writer, cell).await?);
    value_count(writer, cell).await?;
    if !has_map(cell, writer) || checked.is_of(cell) {
        return Ok(());
    }
    if cell.read(Inode::has_map_nodes) {
        return Err(Stopped::Unchecked(cell.clone()));
    }
    Ok(Box::pin(check_freeing(writer, cell)).await?)
}

/// Frees everything an inode has, in as many transactions as needed, and then the inode. Until the
/// last of them, the inode is an orphan; after a crash, opening the volume deletes it.
///
/// # Errors
/// A damaged map, bitmap or attribute block, or one that cannot be read; why the journal was
/// aborted. The inode stays an orphan.
pub(super) async fn delete(namespace: &Namespace, cell: &Arc<InodeCell>) -> Result<()> {
    let writer = &*namespace.writer;
    let _inode = Order::default().write(Rank::File, cell).await;
    if cell.is_live() || cell.openers() > 0 || state(cell).is_gone() {
        return Ok(());
    }
    namespace.files.forget(cell).await?;
    namespace.unnamed.lock().remove(&cell.number());
    let mut pin = Some(writer.alloc.pin_inode(cell.number()).await?);
    // Dropped after the handle closes.
    let mut release = loop {
        let kept = release_values(writer, cell).await?;
        let release = Release::prepare(writer, cell).await?;
        // Other inodes that shared the block may have left it, and its values, meanwhile.
        if release.as_ref().is_none_or(|release| release.value_count(cell, writer.store.shape()) <= kept) {
            break release;
        }
    };
    let values = value_count(writer, cell).await?;
    let credits = 1 + Orphans::CREDITS + InodePin::CREDITS + release.as_ref().map_or(0, Release::credits);
    let mut finish = |handle: &mut Handle| {
        handle.charge_values(cell, -values);
        if let Some(release) = &mut release {
            release.apply(writer, handle, cell);
        }
        writer.orphans.finish(handle, cell);
        let was_dir = cell.read(Inode::kind) == Some(FileKind::Directory);
        if was_dir {
            namespace.moves.lock().remove(&cell.number());
        }
        {
            let mut inode = handle.inode(cell);
            inode.raw.i_dtime = writer.clock.deleted_at(writer.store.shape()).into();
            inode.set_size(0);
        }
        if let Some(pin) = pin.take() {
            writer.alloc.free_inode(handle, pin, cell.number(), was_dir);
        }
        // While the handle is open: once it closes, the number may belong to another file.
        state(cell).set_gone();
    };
    if has_map(cell, writer) {
        let freed = free_from(writer, cell, 0, Credits(credits), |handle, step| {
            if step.last {
                finish(handle);
            }
        });
        Box::pin(freed).await?;
    } else {
        let mut handle = writer.journal.start(Credits(credits)).await?;
        finish(&mut handle);
    }
    writer.inodes.forget(cell);
    Ok(())
}

fn has_map(cell: &InodeCell, writer: &Writer) -> bool {
    cell.read(|inode| match inode.kind() {
        _ if maps_nothing(inode, writer.store.shape()) => false,
        Some(FileKind::Regular | FileKind::Directory) => !inode.flags().contains(InodeFlags::INLINE_DATA),
        Some(FileKind::Symlink) => {
            !inode.flags().contains(InodeFlags::INLINE_DATA) && !inode.is_fast_symlink(writer.store.shape())
        }
        _ => false,
    })
}
