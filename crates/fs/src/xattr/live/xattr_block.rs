//! Attribute blocks: finding one for an inode, joining it, and leaving it.

use super::{Guard, block_of, cluster_512, hash_of, set_block};
use crate::alloc::{Allocated, Pins, Privilege, Reservation};
use crate::inode::InodeCell;
use crate::journal::Handle;
use crate::meta::{MetaBlock, MetaKind, PhysicalRun};
use crate::writer::{SharedBlocks, Writer};
use crate::xattr::change_plan::set_references;
use crate::xattr::values::{self, Held};
use crate::{Error, Result};
use extant_format::{
    FileKind, InodeNumber, Place, Superblock, VolumeBlock, XATTR_BLOCK_SHARES_MAX, XattrBlock,
};
use std::sync::Arc;

/// How an inode releases its attribute block.
#[derive(Debug)]
pub(super) struct Leave {
    block: MetaBlock,
    /// Number of inodes that share the block.
    references: u32,
    /// The bitmap of the block, if it is not shared.
    pins: Option<Pins>,
}

impl Leave {
    pub(super) async fn prepare(writer: &Writer, cell: &InodeCell, block: MetaBlock) -> Result<Self> {
        let references = XattrBlock::parse(&block.bytes(), cell.number(), block.number())?.references;
        let run = PhysicalRun::new(block.number(), 1);
        let pins = match references {
            0 | 1 => Some(writer.alloc.pin([run], Place::Inode(cell.number())).await?),
            _ => None,
        };
        Ok(Self { block, references, pins })
    }

    pub(super) fn credits(&self) -> u32 {
        1 + self.pins.as_ref().map_or(0, Pins::credits)
    }

    /// The references in `entries`, those of the block, that disappear with it.
    pub(super) fn frees(&self, entries: &[Held]) -> Vec<Held> {
        if self.pins.is_some() { entries.to_vec() } else { Vec::new() }
    }

    pub(super) fn apply(&self, writer: &Writer, handle: &mut Handle, shared: &mut SharedBlocks) {
        match &self.pins {
            Some(pins) => {
                shared.forget(self.block.number());
                writer.alloc.free(handle, pins, PhysicalRun::new(self.block.number(), 1), true);
            }
            None => set_references(&mut handle.edit(&self.block), self.references - 1),
        }
    }
}

/// Where an inode's attribute block comes from.
#[derive(Debug)]
pub(super) enum Home {
    /// A block that already holds them, shared by this many inodes.
    Shared(MetaBlock, u32),
    New(Allocated, Box<[u8]>),
}

impl Home {
    /// Finds a home for the attributes in `bytes`, other than the block `except`. Returns `None` if
    /// a new block is needed and space must first be reserved. The caller does that without the
    /// lock of shared blocks, because deletions that free space take it.
    pub(super) async fn prepare(
        writer: &Writer,
        shared: &SharedBlocks,
        (inode, kind): (InodeNumber, Option<FileKind>),
        bytes: Box<[u8]>,
        except: Option<VolumeBlock>,
        privilege: Privilege,
        reservation: &mut Option<Reservation>,
    ) -> Result<Option<Self>> {
        if let Some((block, references)) = find_equal(writer, shared, inode, &bytes, except).await {
            return Ok(Some(Self::Shared(block, references)));
        }
        let mut reservation = match reservation.take() {
            Some(reservation) => reservation,
            None => match writer.alloc.reserve(1, 0, privilege) {
                Ok(reservation) => reservation,
                Err(Error::NoSpace) => return Ok(None),
                Err(other) => return Err(other),
            },
        };
        let goal = writer.alloc.data_goal(inode, kind);
        Ok(Some(Self::New(writer.alloc.blocks(goal, 1, &mut reservation).await?, bytes)))
    }

    pub(super) fn credits(&self) -> u32 {
        match self {
            Self::Shared(..) => 1,
            Self::New(..) => Allocated::CREDITS + 1,
        }
    }

    pub(super) fn apply(
        self,
        writer: &Writer,
        handle: &mut Handle,
        shared: &mut SharedBlocks,
        inode: InodeNumber,
    ) -> VolumeBlock {
        match self {
            Self::Shared(block, references) => {
                set_references(&mut handle.edit(&block), references + 1);
                block.number()
            }
            Self::New(allocated, bytes) => {
                let at = allocated.run().start;
                writer.alloc.log(handle, allocated);
                let block = handle.create(at, MetaKind::Xattr { inode });
                handle.edit(&block).copy_from_slice(&bytes);
                shared.note(at, hash_of(&bytes, inode, at));
                at
            }
        }
    }
}

/// A block with the same attributes as `bytes` that can take another reference, and its reference
/// count.
pub(super) async fn find_equal(
    writer: &Writer,
    shared: &SharedBlocks,
    inode: InodeNumber,
    bytes: &[u8],
    except: Option<VolumeBlock>,
) -> Option<(MetaBlock, u32)> {
    let wanted = XattrBlock::parse(bytes, inode, VolumeBlock(0)).ok()?;
    for at in shared.of(wanted.hash).into_iter().filter(|&at| Some(at) != except) {
        // An unreadable block is simply not shared.
        let Ok(block) = writer.store.read(at, MetaKind::Xattr { inode }).await else { continue };
        let references = XattrBlock::parse(&block.bytes(), inode, at).ok().and_then(|there| {
            let room = (1..XATTR_BLOCK_SHARES_MAX).contains(&there.references);
            (room && there.xattrs.iter().eq(wanted.xattrs.iter())).then_some(there.references)
        });
        if let Some(references) = references {
            return Some((block, references));
        }
    }
    None
}

/// The attribute block of a new inode. Must be dropped after the handle that applies it.
pub(crate) struct Attach<'w> {
    home: Option<Home>,
    shared: Guard<'w>,
}

impl<'w> Attach<'w> {
    /// Finds a home for the attribute block `bytes` of the new inode `inode`.
    ///
    /// # Errors
    /// [`Error::NoSpace`]; why the journal was aborted.
    pub(crate) async fn prepare(
        writer: &'w Writer,
        inode: InodeNumber,
        kind: Option<FileKind>,
        bytes: Box<[u8]>,
        privilege: Privilege,
    ) -> Result<Self> {
        let mut reservation = None;
        loop {
            let shared = writer.shared_xattrs.lock().await;
            let (taker, bytes) = ((inode, kind), bytes.clone());
            let home = Home::prepare(writer, &shared, taker, bytes, None, privilege, &mut reservation);
            if let Some(home) = home.await? {
                return Ok(Self { home: Some(home), shared });
            }
            drop(shared);
            reservation = Some(writer.alloc.reserve_waiting(&writer.journal, 1, 0, privilege).await?);
        }
    }

    /// Credits for [`Self::apply`].
    pub(crate) fn credits(&self) -> u32 {
        self.home.as_ref().map_or(0, Home::credits)
    }

    /// Logs the block and returns its location. Called once.
    pub(crate) fn apply(
        &mut self,
        writer: &Writer,
        handle: &mut Handle,
        inode: InodeNumber,
    ) -> Option<VolumeBlock> {
        let home = self.home.take()?;
        Some(home.apply(writer, handle, &mut self.shared, inode))
    }
}

/// The attribute block that an inode releases when it is deleted, after [`release_values`] has
/// removed values that only this inode refers to. Declare it before the handle that applies it, so
/// that it is dropped after the handle.
#[derive(Debug)]
pub(crate) struct Release<'w> {
    leave: Leave,
    shared: Guard<'w>,
}

impl<'w> Release<'w> {
    /// Prepares the release; `None` if the inode has no attribute block.
    ///
    /// # Errors
    /// A damaged block or bitmap.
    pub(crate) async fn prepare(writer: &'w Writer, cell: &InodeCell) -> Result<Option<Self>> {
        if cell.read(|inode| inode.xattr_block().is_none()) {
            return Ok(None);
        }
        let shared = writer.shared_xattrs.lock().await;
        let Some(block) = block_of(writer, cell).await? else { return Ok(None) };
        let leave = Leave::prepare(writer, cell, block).await?;
        if leave.references > XATTR_BLOCK_SHARES_MAX {
            let place = Place::XattrBlock(cell.number(), leave.block.number());
            let references = leave.references.into();
            return Err(extant_format::Corrupt::field(place, "h_refcount", references, "at most 1024").into());
        }
        Ok(Some(Self { leave, shared }))
    }

    /// How many values in inodes of their own only this block refers to.
    pub(crate) fn value_count(&self, cell: &InodeCell, sb: &Superblock) -> usize {
        let Leave { block, pins: Some(_), .. } = &self.leave else { return 0 };
        if !values::are_allowed(sb) {
            return 0;
        }
        let bytes = block.bytes();
        let parsed = XattrBlock::parse(&bytes, cell.number(), block.number());
        parsed.map_or(0, |parsed| parsed.xattrs.iter().filter_map(|xattr| Held::of(&xattr)).count())
    }

    /// Credits for [`Self::apply`], including the inode.
    pub(crate) fn credits(&self) -> u32 {
        1 + self.leave.credits()
    }

    /// Releases the block. Called once.
    pub(crate) fn apply(&mut self, writer: &Writer, handle: &mut Handle, cell: &Arc<InodeCell>) {
        let unit = cluster_512(writer);
        self.leave.apply(writer, handle, &mut self.shared);
        set_block(&mut handle.inode(cell), None, -unit, writer);
    }
}
