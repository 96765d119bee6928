//! Changes of an inode's attributes under a handle.

use super::look::{get, held_values};
use super::xattr_block::{Home, Leave, find_equal};
use super::{Change, Guard, block_of, cluster_512, ensure_feature, hash_of, may_have_any, set_block};
use crate::alloc::{Privilege, Reservation};
use crate::inode::InodeCell;
use crate::journal::{Credits, Handle};
use crate::meta::MetaBlock;
use crate::writer::Writer;
use crate::xattr::change_plan::{self, BlockPlan, Plan, Refused};
use crate::xattr::values::{self, Entries, Held, Spare, ValuesChange};
use crate::xattr::{SetMode, in_inode};
use crate::{Error, Result};
use extant_format::{
    Inode, InodeNumber, Superblock, UintExt, VolumeBlock, Xattr, XattrBlock, XattrIndex, XattrName, Xattrs,
};
use std::collections::BTreeMap;
use std::sync::Arc;

/// What a change does to the attribute block.
#[derive(Debug, Default)]
enum BlockChange {
    #[default]
    Keep,
    Leave(Leave),
    /// The inode's own block gets new contents.
    Rewrite(MetaBlock, Box<[u8]>),
    /// The inode gets another block and leaves the one it had.
    Replace(Option<Leave>, Home),
}

/// A change of an inode's attributes with everything it needs. The inode's lock is held until it is
/// applied. Declare it before the handle that applies it, so that it is dropped after the handle.
#[derive(Debug)]
pub(crate) struct Prepared<'w> {
    body: Option<Box<[u8]>>,
    block: BlockChange,
    values: ValuesChange,
    shared: Guard<'w>,
}

/// The result of one attempt to prepare a change.
enum Attempt<'w> {
    Ready(Box<Prepared<'w>>),
    /// A block must be reserved first.
    NeedsBlock,
    /// An inode for the value of the change with this index must be allocated first.
    NeedsInode(usize),
}

/// Prepares changes of different attributes, all or none of which are made. The caller holds the
/// inode's lock.
///
/// # Errors
/// [`Error::Exists`], [`Error::NoData`], [`Error::NoSpace`]; a damaged inode, block, or value
/// inode.
pub(crate) async fn prepare<'w>(
    writer: &'w Writer,
    cell: &InodeCell,
    changes: &[Change<'_>],
    privilege: Privilege,
) -> Result<Prepared<'w>> {
    let (mut reservation, mut spares) = (None, BTreeMap::new());
    loop {
        // Reserve without the lock of shared attribute blocks: to free space, inodes may be
        // deleted, which takes that lock.
        match try_prepare(writer, cell, changes, privilege, &mut reservation, &mut spares).await? {
            Attempt::Ready(prepared) => return Ok(*prepared),
            Attempt::NeedsBlock => {
                reservation = Some(writer.alloc.reserve_waiting(&writer.journal, 1, 0, privilege).await?);
            }
            Attempt::NeedsInode(index) => {
                let value = changes[index].value.unwrap_or_default();
                let spare = Box::pin(Spare::prepare(writer, cell, value, privilege)).await?;
                spares.insert(index, spare);
            }
        }
    }
}

/// Plans a change. As on Linux, the value goes next to its entry if it fits, otherwise into the
/// inode `spare`. Returns `None` if that inode must be allocated first.
fn plan_of(
    inode: &Inode,
    block: Option<&XattrBlock<'_>>,
    change: &Change<'_>,
    spare: Option<&Spare>,
    sb: &Superblock,
) -> std::result::Result<Option<(Plan, bool)>, Refused> {
    let block_bytes = sb.block_size().byte_len();
    let value = change.value.unwrap_or_default();
    if !values::is_large(value, sb) {
        match change_plan::plan(inode, block, block_bytes, change) {
            Err(Refused::NoSpace) if values::are_allowed(sb) && !value.is_empty() => {}
            other => return other.map(|plan| Some((plan, false))),
        }
    }
    // A stand-in entry, so that a change which must be refused is refused before an inode is
    // allocated.
    let stand_in = || Xattr::in_inode(change.name, InodeNumber(1), value.len().fit_u32(), 0);
    let entry = spare.map_or_else(stand_in, |spare| spare.entry(change.name));
    let plan = change_plan::plan_entry(inode, block, block_bytes, change, Some(entry))?;
    Ok(spare.map(|_| (plan, true)))
}

/// The plan of several changes, one after another.
enum WholePlan {
    /// With the indexes of the changes that take their spare inode.
    Ready(Plan, Vec<usize>),
    /// The change with this index needs a spare inode first.
    NeedsInode(usize),
}

/// Plans changes; an error comes with the index of the change that caused it.
fn plan_all(
    inode: &Inode,
    block: Option<&XattrBlock<'_>>,
    changes: &[Change<'_>],
    spares: &BTreeMap<usize, Spare>,
    sb: &Superblock,
) -> std::result::Result<WholePlan, (usize, Refused)> {
    let mut inode = inode.clone();
    let mut whole = Plan { body: None, block: BlockPlan::Keep };
    let mut taken = Vec::new();
    for (index, change) in changes.iter().enumerate() {
        let failed = |refused| (index, refused);
        let parsed = match &whole.block {
            BlockPlan::Keep => block.copied(),
            BlockPlan::Release => None,
            BlockPlan::Write(bytes) => Some(
                XattrBlock::parse(bytes, inode.number, VolumeBlock(0))
                    .map_err(Refused::from)
                    .map_err(failed)?,
            ),
        };
        let plan = plan_of(&inode, parsed.as_ref(), change, spares.get(&index), sb).map_err(failed)?;
        let Some((plan, takes_spare)) = plan else { return Ok(WholePlan::NeedsInode(index)) };
        if takes_spare {
            taken.push(index);
        }
        if let Some(body) = plan.body {
            inode.tail = body.clone();
            whole.body = Some(body);
        }
        match plan.block {
            BlockPlan::Keep => {}
            // An earlier change only planned this block, so there is none to release.
            BlockPlan::Release if block.is_none() => whole.block = BlockPlan::Keep,
            changed => whole.block = changed,
        }
    }
    Ok(WholePlan::Ready(whole, taken))
}

async fn try_prepare<'w>(
    writer: &'w Writer,
    cell: &InodeCell,
    changes: &[Change<'_>],
    privilege: Privilege,
    reservation: &mut Option<Reservation>,
    spares: &mut BTreeMap<usize, Spare>,
) -> Result<Attempt<'w>> {
    let mut shared = writer.shared_xattrs.lock().await;
    let block = block_of(writer, cell).await?;
    let held =
        |xattrs: Xattrs<'_>| -> Vec<Held> { xattrs.iter().filter_map(|xattr| Held::of(&xattr)).collect() };
    let mut before_block = Vec::new();
    let (plan, references) = {
        let bytes = block.as_ref().map(MetaBlock::bytes);
        let parsed = match (&block, &bytes) {
            (Some(block), Some(bytes)) => Some(XattrBlock::parse(bytes, cell.number(), block.number())?),
            _ => None,
        };
        if let (Some(block), Some(parsed)) = (&block, &parsed) {
            shared.note(block.number(), parsed.hash);
        }
        if let Some(parsed) = &parsed {
            before_block = held(parsed.xattrs);
        }
        let references = parsed.as_ref().map_or(0, |block| block.references);
        let sb = writer.store.shape();
        let plan = cell.read(|inode| plan_all(inode, parsed.as_ref(), changes, spares, sb));
        (plan.map_err(|(index, refused)| error_of(refused, &changes[index], sb))?, references)
    };
    let (Plan { body, block: planned }, taken) = match plan {
        WholePlan::Ready(plan, taken) => (plan, taken),
        WholePlan::NeedsInode(index) => {
            // If a link has more space than an attribute block, e2fsck takes its inline target for
            // a map.
            if cell.read(|inode| inode.is_fast_symlink(writer.store.shape())) {
                let what = "a value of this length for a short symbolic link";
                return Err(Error::NotSupported(format!("{what}, inode {}", cell.number())));
            }
            return Ok(Attempt::NeedsInode(index));
        }
    };
    let before_body = cell.read(|inode| in_inode(inode).map(held))?;
    let after_body = match &body {
        Some(tail) => held(Xattrs::parse_inode(tail, cell.number())?),
        None => before_body.clone(),
    };
    let after_block = match &planned {
        BlockPlan::Keep => before_block.clone(),
        BlockPlan::Release => Vec::new(),
        BlockPlan::Write(bytes) => held(XattrBlock::parse(bytes, cell.number(), VolumeBlock(0))?.xattrs),
    };
    let block = match (planned, block) {
        (BlockPlan::Keep, _) | (BlockPlan::Release, None) => BlockChange::Keep,
        (BlockPlan::Release, Some(block)) => BlockChange::Leave(Leave::prepare(writer, cell, block).await?),
        (BlockPlan::Write(bytes), block) => {
            let (number, kind) = (cell.number(), cell.read(Inode::kind));
            let own = block.as_ref().map(MetaBlock::number);
            let leave = async |block| match block {
                Some(block) => Ok::<_, Error>(Some(Leave::prepare(writer, cell, block).await?)),
                None => Ok(None),
            };
            match block {
                Some(block) if references <= 1 => {
                    match find_equal(writer, &shared, number, &bytes, own).await {
                        Some((twin, references)) => {
                            BlockChange::Replace(leave(Some(block)).await?, Home::Shared(twin, references))
                        }
                        None => BlockChange::Rewrite(block, bytes),
                    }
                }
                block => {
                    let leave = leave(block).await?;
                    let taker = (number, kind);
                    let home = Home::prepare(writer, &shared, taker, bytes, own, privilege, reservation);
                    let Some(home) = home.await? else { return Ok(Attempt::NeedsBlock) };
                    BlockChange::Replace(leave, home)
                }
            }
        }
    };
    // References in blocks before and after; inodes that share a block count once.
    let stored_blocks = match &block {
        BlockChange::Keep => [Vec::new(), Vec::new()],
        BlockChange::Rewrite(..) => [before_block.clone(), after_block.clone()],
        BlockChange::Leave(leave) => [leave.frees(&before_block), Vec::new()],
        BlockChange::Replace(leave, home) => {
            let left = leave.as_ref().map_or_else(Vec::new, |leave| leave.frees(&before_block));
            let is_new = matches!(home, Home::New(..));
            [left, if is_new { after_block.clone() } else { Vec::new() }]
        }
    };
    let [left, made] = stored_blocks;
    let entries = Entries {
        stored: [[&before_body[..], &left].concat(), [&after_body[..], &made].concat()],
        seen: [[before_body, before_block].concat(), [after_body, after_block].concat()],
    };
    let new = taken.into_iter().filter_map(|index| spares.remove(&index)).collect();
    let values = match entries.is_empty() {
        true => ValuesChange::default(),
        false => Box::pin(ValuesChange::prepare(writer, cell, entries, new)).await?,
    };
    Ok(Attempt::Ready(Box::new(Prepared { body, block, values, shared })))
}

/// Removes attributes whose values are in inodes of their own from an inode about to be deleted,
/// each in a transaction. Those in a shared block keep their references. Damaged values and those
/// written by Lustre are left for e2fsck and recorded as problems. Returns how many were left in an
/// unshared block. The caller holds the inode's lock.
///
/// # Errors
/// A damaged inode or block; why the journal was aborted.
pub(crate) async fn release_values(writer: &Writer, cell: &Arc<InodeCell>) -> Result<usize> {
    let mut left: Vec<(XattrIndex, Vec<u8>)> = Vec::new();
    let id = |held: &Held| {
        let name = held.name();
        (name.index, name.suffix.to_vec())
    };
    while values::are_allowed(writer.store.shape()) {
        let (body, block, references) = held_values(writer, cell).await?;
        let own = if references <= 1 { block } else { Vec::new() };
        let left_in_block = own.iter().filter(|held| left.contains(&id(held))).count();
        let next = body.into_iter().chain(own).find(|held| !left.contains(&id(held)));
        let Some(held) = next else { return Ok(left_in_block) };
        let change = Change { name: held.name(), value: None, mode: SetMode::Any };
        let mut prepared = match prepare(writer, cell, &[change], Privilege::Reserved).await {
            Ok(prepared) => prepared,
            Err(problem @ (Error::Corrupt(_) | Error::Unsupported { .. })) => {
                writer.keep_problem(problem);
                left.push(id(&held));
                continue;
            }
            Err(error) => return Err(error),
        };
        let mut handle = writer.journal.start(Credits(prepared.credits(writer))).await?;
        prepared.apply(writer, &mut handle, cell);
    }
    Ok(0)
}

/// Prepares removing a program's capabilities (`security.capability`) when its contents or owner
/// change; `None` if there are none. The caller holds the inode's lock.
///
/// # Errors
/// As [`prepare`].
pub(crate) async fn without_capabilities<'w>(
    writer: &'w Writer,
    cell: &InodeCell,
    privilege: Privilege,
) -> Result<Option<Prepared<'w>>> {
    let name = XattrName { index: XattrIndex::SECURITY, suffix: b"capability" };
    // As on Linux, a write succeeds even if the attributes cannot be read.
    if !cell.read(may_have_any) || !matches!(get(writer, cell, name).await, Ok(Some(_))) {
        return Ok(None);
    }
    let change = Change { name, value: None, mode: SetMode::Any };
    prepare(writer, cell, &[change], privilege).await.map(Some)
}

/// Like [`without_capabilities`], in a handle of its own.
///
/// # Errors
/// As [`prepare`]; why the journal was aborted.
pub(crate) async fn drop_capabilities(
    writer: &Writer,
    cell: &Arc<InodeCell>,
    privilege: Privilege,
) -> Result<()> {
    let mut prepared = match without_capabilities(writer, cell, privilege).await {
        Ok(Some(prepared)) => prepared,
        // A concurrent overwrite has removed them.
        Ok(None) | Err(Error::NoData(_)) => return Ok(()),
        Err(error) => return Err(error),
    };
    let mut handle = writer.journal.start(Credits(prepared.credits(writer))).await?;
    prepared.apply(writer, &mut handle, cell);
    Ok(())
}

/// The error for a change that does not fit with the inode's other attributes.
pub(crate) fn no_room(change: &Change<'_>, sb: &Superblock) -> Error {
    let hint = match values::are_allowed(sb) {
        true => "",
        false => {
            "; on a volume with the feature ea_inode (tune2fs -O ea_inode) long values lie in inodes of their own"
        }
    };
    let (name, bytes) = (change.name.to_string(), change.value.map_or(0, <[u8]>::len));
    Error::NoXattrRoom { name, bytes, block_bytes: sb.block_size().bytes(), hint }
}

fn error_of(refused: Refused, change: &Change<'_>, sb: &Superblock) -> Error {
    let name = || crate::quote(&change.name.to_full().unwrap_or_default());
    match refused {
        Refused::Exists => Error::Exists(name()),
        Refused::NoData => Error::NoData(name()),
        Refused::NoSpace => no_room(change, sb),
        Refused::Corrupt(corrupt) => corrupt.into(),
    }
}

impl Prepared<'_> {
    /// Credits for [`Self::apply`]: the inode, the superblock for a feature, the blocks, and values
    /// in inodes of their own.
    pub(crate) fn credits(&self, writer: &Writer) -> u32 {
        2 + self.values.credits(writer.store.shape())
            + match &self.block {
                BlockChange::Keep => 0,
                BlockChange::Leave(leave) => leave.credits(),
                BlockChange::Rewrite(..) => 1,
                BlockChange::Replace(leave, home) => {
                    home.credits() + leave.as_ref().map_or(0, Leave::credits)
                }
            }
    }

    /// The increase in the number of values in inodes of their own.
    pub(crate) fn more_values(&self) -> i64 {
        self.values.more_inodes
    }

    /// Makes the change. Called once.
    pub(crate) fn apply(&mut self, writer: &Writer, handle: &mut Handle, cell: &Arc<InodeCell>) {
        ensure_feature(handle);
        let unit = cluster_512(writer);
        let mut at = cell.read(Inode::xattr_block);
        let values = std::mem::take(&mut self.values);
        let values_512 = values.more_512;
        values.apply(writer, handle, cell);
        let mut more = 0;
        match std::mem::take(&mut self.block) {
            BlockChange::Keep => {}
            BlockChange::Leave(leave) => {
                leave.apply(writer, handle, &mut self.shared);
                (at, more) = (None, -unit);
            }
            BlockChange::Rewrite(block, bytes) => {
                handle.edit(&block).copy_from_slice(&bytes);
                self.shared.note(block.number(), hash_of(&bytes, cell.number(), block.number()));
            }
            BlockChange::Replace(leave, home) => {
                more = if leave.is_some() { 0 } else { unit };
                if let Some(leave) = leave {
                    leave.apply(writer, handle, &mut self.shared);
                }
                at = Some(home.apply(writer, handle, &mut self.shared, cell.number()));
            }
        }
        let mut inode = handle.inode(cell);
        if let Some(body) = self.body.take() {
            inode.tail = body;
        }
        set_block(&mut inode, at, more + values_512, writer);
    }
}
