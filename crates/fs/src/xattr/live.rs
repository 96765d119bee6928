//! Attributes of inodes in memory: reading them, changing them under a handle, and releasing the
//! attribute block.
//!
//! Inodes with the same attributes share a block. Counting its references, joining it and leaving
//! it are serialised by one lock per volume. Otherwise, two inodes leaving a block at once might
//! each think that the other keeps it. The lock is held until the handle closes, because a handle
//! passes on its blocks when it closes. A block that another handle freed and passed on earlier
//! would be logged, and written home over its next owner.

pub(crate) use super::edit::Change;
use super::edit::{self, BlockPlan, Plan, Refused, set_references};
use super::in_inode;
use super::values::{self, Entries, Held, Spare, ValuesChange};
use crate::alloc::{Allocated, Pins, Privilege, Reservation};
use crate::inode::InodeCell;
use crate::journal::{Credits, Handle};
use crate::meta::{MetaBlock, MetaKind, PhysicalRun};
use crate::writer::{SharedBlocks, Writer};
use crate::{Error, Result};
use extant_format::{
    Acl, Compat, FileKind, Incompat, Inode, InodeNumber, Place, RoCompat, Superblock, VolumeBlock,
    XATTR_BLOCK_SHARES_MAX, Xattr, XattrBlock, XattrIndex, XattrName, XattrValue, Xattrs,
};
use extant_rt::TaskMutexGuard;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Reads the attribute block of an inode.
async fn block_of(writer: &Writer, cell: &InodeCell) -> Result<Option<MetaBlock>> {
    let Some(at) = cell.read(Inode::xattr_block) else { return Ok(None) };
    writer.alloc.check_claim(PhysicalRun::new(at, 1), Place::Inode(cell.number()))?;
    Ok(Some(writer.store.read(at, MetaKind::Xattr { inode: cell.number() }).await?))
}

/// Returns the stored value of an attribute. The caller must not hold the lock of shared attribute
/// blocks.
///
/// # Errors
/// A damaged inode, block, or value inode.
pub(crate) async fn get(writer: &Writer, cell: &InodeCell, name: XattrName<'_>) -> Result<Option<Vec<u8>>> {
    let found = loop {
        let before = cell.read(Inode::xattr_block);
        let found = look(writer, cell, name).await;
        // Without the inode's lock, the block may have been released and reused meanwhile.
        if cell.read(Inode::xattr_block) == before {
            break found?;
        }
    };
    match found {
        Some(Found::Bytes(bytes)) => Ok(Some(bytes)),
        None => Ok(None),
        Some(Found::Held(_)) => Box::pin(read_held(writer, cell, name)).await,
    }
}

/// Reads a value from its own inode, which only the lock protects from being reused.
async fn read_held(writer: &Writer, cell: &InodeCell, name: XattrName<'_>) -> Result<Option<Vec<u8>>> {
    let _shared = writer.shared_xattrs.lock().await;
    match look(writer, cell, name).await? {
        Some(Found::Bytes(bytes)) => Ok(Some(bytes)),
        Some(Found::Held(held)) => values::read(writer, cell, &held).await.map(Some),
        None => Ok(None),
    }
}

/// A value, or the entry that says where it is.
enum Found {
    Bytes(Vec<u8>),
    Held(Held),
}

impl Found {
    fn of(xattr: &Xattr<'_>) -> Self {
        match (xattr.value, Held::of(xattr)) {
            (_, Some(held)) => Self::Held(held),
            (XattrValue::Bytes(bytes), None) => Self::Bytes(bytes.to_vec()),
            (XattrValue::Inode { .. }, None) => unreachable!("an entry of such a value is held"),
        }
    }
}

async fn look(writer: &Writer, cell: &InodeCell, name: XattrName<'_>) -> Result<Option<Found>> {
    let found =
        cell.read(|inode| -> Result<_> { Ok(in_inode(inode)?.get(name).map(|xattr| Found::of(&xattr))) })?;
    if found.is_some() {
        return Ok(found);
    }
    let Some(block) = block_of(writer, cell).await? else { return Ok(None) };
    let bytes = block.bytes();
    let parsed = XattrBlock::parse(&bytes, cell.number(), block.number())?;
    Ok(parsed.xattrs.get(name).map(|xattr| Found::of(&xattr)))
}

/// Entries of an inode whose values are in inodes of their own: those in the inode, those in its
/// attribute block, and how many inodes share that block.
async fn held_values(writer: &Writer, cell: &InodeCell) -> Result<(Vec<Held>, Vec<Held>, u32)> {
    let body = cell.read(|inode| -> Result<Vec<_>> {
        Ok(in_inode(inode)?.iter().filter_map(|xattr| Held::of(&xattr)).collect())
    })?;
    let Some(block) = block_of(writer, cell).await? else { return Ok((body, Vec::new(), 0)) };
    let bytes = block.bytes();
    let parsed = XattrBlock::parse(&bytes, cell.number(), block.number())?;
    Ok((body, parsed.xattrs.iter().filter_map(|xattr| Held::of(&xattr)).collect(), parsed.references))
}

/// Counts an inode's values in inodes of their own. The caller holds the inode's lock.
///
/// # Errors
/// A damaged inode or block.
pub(crate) async fn value_count(writer: &Writer, cell: &InodeCell) -> Result<i64> {
    if !values::are_allowed(writer.store.shape()) {
        return Ok(0);
    }
    let (body, block, _) = held_values(writer, cell).await?;
    Ok((body.len() + block.len()) as i64)
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
        let change = Change { name: held.name(), value: None, mode: super::SetMode::Any };
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

/// The full names of the attributes that `shown` accepts, except those that the file system keeps
/// to itself.
///
/// # Errors
/// A damaged inode or block.
pub(crate) async fn names(
    writer: &Writer,
    cell: &InodeCell,
    shown: impl Fn(&XattrName<'_>) -> bool,
) -> Result<Vec<Vec<u8>>> {
    let full = |name: XattrName<'_>| {
        if name.index.is_visible() && shown(&name) { name.to_full() } else { None }
    };
    let mut all: Vec<_> = cell.read(|inode| -> Result<Vec<_>> {
        Ok(in_inode(inode)?.iter().filter_map(|xattr| full(xattr.name)).collect())
    })?;
    if let Some(block) = block_of(writer, cell).await? {
        let bytes = block.bytes();
        let parsed = XattrBlock::parse(&bytes, cell.number(), block.number())?;
        all.extend(parsed.xattrs.iter().filter_map(|xattr| full(xattr.name)));
    }
    Ok(all)
}

/// Reads an access control list of an inode.
///
/// # Errors
/// A damaged list, inode or block.
pub(crate) async fn acl_of(writer: &Writer, cell: &InodeCell, index: XattrIndex) -> Result<Option<Acl>> {
    let stored = get(writer, cell, XattrName { index, suffix: b"" }).await?;
    stored.map(|stored| Ok(Acl::parse_stored(&stored, cell.number())?)).transpose()
}

/// How an inode releases its attribute block.
#[derive(Debug)]
struct Leave {
    block: MetaBlock,
    /// Number of inodes that share the block.
    references: u32,
    /// The bitmap of the block, if it is not shared.
    pins: Option<Pins>,
}

impl Leave {
    async fn prepare(writer: &Writer, cell: &InodeCell, block: MetaBlock) -> Result<Self> {
        let references = XattrBlock::parse(&block.bytes(), cell.number(), block.number())?.references;
        let run = PhysicalRun::new(block.number(), 1);
        let pins = match references {
            0 | 1 => Some(writer.alloc.pin([run], Place::Inode(cell.number())).await?),
            _ => None,
        };
        Ok(Self { block, references, pins })
    }

    fn credits(&self) -> u32 {
        1 + self.pins.as_ref().map_or(0, Pins::credits)
    }

    /// The references in `entries`, those of the block, that disappear with it.
    fn frees(&self, entries: &[Held]) -> Vec<Held> {
        if self.pins.is_some() { entries.to_vec() } else { Vec::new() }
    }

    fn apply(&self, writer: &Writer, handle: &mut Handle, shared: &mut SharedBlocks) {
        match &self.pins {
            Some(pins) => {
                shared.forget(self.block.number());
                writer.alloc.free(handle, pins, PhysicalRun::new(self.block.number(), 1), true);
            }
            None => set_references(&mut handle.edit(&self.block), self.references - 1),
        }
    }
}

type Guard<'w> = TaskMutexGuard<'w, SharedBlocks>;

/// Where an inode's attribute block comes from.
#[derive(Debug)]
enum Home {
    /// A block that already holds them, shared by this many inodes.
    Shared(MetaBlock, u32),
    New(Allocated, Box<[u8]>),
}

impl Home {
    /// Finds a home for the attributes in `bytes`, other than the block `except`. Returns `None` if
    /// a new block is needed and space must first be reserved. The caller does that without the
    /// lock of shared blocks, because deletions that free space take it.
    async fn prepare(
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

    fn credits(&self) -> u32 {
        match self {
            Self::Shared(..) => 1,
            Self::New(..) => Allocated::CREDITS + 1,
        }
    }

    fn apply(
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

fn hash_of(bytes: &[u8], inode: InodeNumber, at: VolumeBlock) -> u32 {
    XattrBlock::parse(bytes, inode, at).map_or(0, |block| block.hash)
}

/// A block with the same attributes as `bytes` that can take another reference, and its reference
/// count.
async fn find_equal(
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
        // Reservations are made without the lock: space is freed by deleting inodes, which takes
        // it.
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
        match edit::plan(inode, block, block_bytes, change) {
            Err(Refused::NoSpace) if values::are_allowed(sb) && !value.is_empty() => {}
            other => return other.map(|plan| Some((plan, false))),
        }
    }
    // A stand-in entry, so that a change which must be refused is refused before an inode is
    // allocated.
    let stand_in = || Xattr::in_inode(change.name, InodeNumber(1), value.len() as u32, 0);
    let entry = spare.map_or_else(stand_in, |spare| spare.entry(change.name));
    let plan = edit::plan_entry(inode, block, block_bytes, change, Some(entry))?;
    Ok(spare.map(|_| (plan, true)))
}

/// The plan of several changes, one after another.
enum WholePlan {
    /// With the indexes of the changes that take their spare inode.
    Ready(Plan, Vec<usize>),
    /// The change with this index needs a spare inode first.
    NeedsInode(usize),
}

/// Plans changes; an error comes with the index of the change that it is about.
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
            // What an earlier change added to no block is in none.
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

/// Whether an inode may have attributes, judging by its record.
pub(crate) fn may_have_any(inode: &Inode) -> bool {
    inode.xattr_block().is_some() || inode.tail.iter().take(4).any(|&byte| byte != 0)
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
    let change = Change { name, value: None, mode: super::SetMode::Any };
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

/// Records in the superblock that inodes have attributes.
pub(crate) fn ensure_feature(handle: &mut Handle) {
    let mut sb = handle.superblock();
    if !sb.compat().contains(Compat::EXT_ATTR) {
        sb.add_features(Compat::EXT_ATTR, Incompat::empty(), RoCompat::empty());
    }
}

/// The space of an attribute block, which is a cluster, in `i_blocks` units.
fn cluster_512(writer: &Writer) -> i64 {
    let sb = writer.store.shape();
    i64::from(sb.block_size().bytes() / 512 * sb.blocks_per_cluster())
}

fn set_block(inode: &mut Inode, at: Option<VolumeBlock>, more_512: i64, writer: &Writer) {
    let sb = writer.store.shape();
    inode.set_xattr_block(at.unwrap_or(VolumeBlock(0)));
    if more_512 != 0 {
        let blocks = inode.blocks_512(sb).saturating_add_signed(more_512);
        inode.set_blocks_512(blocks, sb);
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
