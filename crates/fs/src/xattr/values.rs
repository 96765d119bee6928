//! Attribute values in inodes of their own (feature `ea_inode`; kernel document: *Extended
//! Attributes*). They are created with their attribute, counted by the entries that refer to them,
//! and freed with the last of these.
//!
//! The blocks of such a value are journalled, in the same transaction as its entry, so a crash
//! leaves both or neither. References are counted per entry: inodes that share an attribute block
//! count once. Each owner is charged for the blocks of all values it sees, in `i_blocks`, and with
//! quotas also for one inode per value.
//!
//! We never share a value between new entries; entries of a copied attribute block do share them.

use super::is_sole_holder;
use crate::alloc::{Allocated, InodePin, NewInode, Parent, Pins, Privilege, Wanted};
use crate::inode::{InodeCell, Orphan, Orphans};
use crate::journal::Handle;
use crate::map::block_state::OnDisk;
use crate::map::change::{self, Change, PinnedNodes, Planned, written};
use crate::meta::{MetaKind, PhysicalRun};
use crate::writer::Writer;
use crate::{Error, Result};
use extant_format::{
    BlockRange, ChecksumSeed, Corrupt, Extent, ExtentIndex, ExtentNode, FileBlock, FileKind, Incompat, Inode,
    InodeFlags, InodeNumber, Place, Superblock, UintExt, ValueInode, VolumeBlock, Xattr, XattrIndex,
    XattrName, XattrValue,
};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Longest value, in bytes.
const VALUE_MAX: u64 = 64 << 10;
/// Extents in the root of a tree, and direct pointers of an inode. A value that needs more has one
/// extra node.
const ROOT_EXTENTS: usize = 4;
const DIRECT: usize = 12;
/// Credits that a new value and freeing old ones may use together, so that with the rest of the
/// change they fit in the journal's largest operation. Freeing a value alone always fits; so does
/// freeing one spread over nine groups while adding one of 64 extents. Otherwise it goes on the
/// orphan list; Linux >= 6.4 warns if a crash leaves it there.
const VALUES_CREDITS_MAX: u32 = 224;

/// Whether values that fit nowhere else get inodes.
pub(super) fn are_allowed(sb: &Superblock) -> bool {
    sb.incompat().contains(Incompat::EA_INODE)
}

/// Rejects an entry with its value in an inode if the volume lacks the feature.
///
/// # Errors
/// The volume does not have `ea_inode`.
pub(super) fn check_feature(sb: &Superblock, place: Place, inode: InodeNumber) -> Result<()> {
    match are_allowed(sb) {
        true => Ok(()),
        false => {
            let rule = "0 on a volume without ea_inode";
            Err(Corrupt::field(place, "e_value_inum", inode.0.into(), rule).into())
        }
    }
}

/// Whether a value always gets an inode (`EXT4_XATTR_MIN_LARGE_EA_SIZE`): even with a short name it
/// would not fit in a block.
pub(super) fn is_large(value: &[u8], sb: &Superblock) -> bool {
    const ENTRY_HEADER_AND_END: usize = 20 + 32 + 4;
    are_allowed(sb) && value.len().next_multiple_of(4) > sb.block_size().byte_len() - ENTRY_HEADER_AND_END
}

/// An entry whose value is in an inode.
#[derive(Clone, Debug)]
pub(super) struct Held {
    pub(super) inode: InodeNumber,
    size: u32,
    index: XattrIndex,
    suffix: Vec<u8>,
    hash: u32,
}

impl Held {
    /// Returns the entry if its value is in an inode.
    pub(super) fn of(xattr: &Xattr<'_>) -> Option<Self> {
        let XattrValue::Inode { inode, size } = xattr.value else { return None };
        let XattrName { index, suffix } = xattr.name;
        Some(Self { inode, size, index, suffix: suffix.to_vec(), hash: xattr.hash })
    }

    pub(super) fn name(&self) -> XattrName<'_> {
        XattrName { index: self.index, suffix: &self.suffix }
    }

    fn is_hash_of(&self, value: ValueInode) -> bool {
        let value_of = XattrValue::Inode { inode: self.inode, size: self.size };
        Xattr { name: self.name(), value: value_of, hash: self.hash }.hash_is_valid(Some(value.hash))
    }

    /// Space charged to its owner, in units of 512 bytes.
    pub(super) fn blocks_512(&self, sb: &Superblock) -> i64 {
        let blocks = sb.block_size().blocks_for(self.size.into());
        (sb.cluster_size().end(blocks) << (sb.block_size().log2() - 9)).cast_signed()
    }

    /// Reads and checks the value's inode.
    async fn cell(&self, writer: &Writer, owner: &InodeCell) -> Result<(Arc<InodeCell>, ValueInode)> {
        let place = Place::XattrInode(self.inode);
        check_feature(writer.store.shape(), place, self.inode)?;
        if writer.store.shape().is_own_inode(self.inode) || self.inode == InodeNumber::ROOT {
            let rule = "an inode that holds a value";
            return Err(Corrupt::field(place, "e_value_inum", self.inode.0.into(), rule).into());
        }
        let cell = writer.inodes.get(self.inode).await?;
        let inode = cell.read(Inode::clone);
        let is_value =
            inode.flags().contains(InodeFlags::EA_INODE) && inode.kind() == Some(FileKind::Regular);
        if !is_value || inode.links() == 0 {
            let rule = "those of a file in use with EXT4_EA_INODE_FL";
            return Err(Corrupt::field(place, "i_flags", inode.flags().bits().into(), rule).into());
        }
        if inode.size() != u64::from(self.size) || inode.size() > VALUE_MAX {
            let rule = "the attribute's e_value_size and at most 64 KiB";
            return Err(Corrupt::field(place, "i_size", inode.size(), rule).into());
        }
        let of = value_inode(&inode);
        if !self.is_hash_of(of) {
            if owner.read(|owner| is_sole_holder(owner, &inode)) {
                let hint = "; it can be read, but not changed";
                return Err(Error::Unsupported {
                    feature: "an attribute's value that Lustre wrote".into(),
                    hint,
                });
            }
            let rule = "the hash of the attribute's name and the value's hash";
            return Err(Corrupt::field(place, "e_hash", self.hash.into(), rule).into());
        }
        Ok((cell, of))
    }
}

fn value_inode(inode: &Inode) -> ValueInode {
    let raw = &inode.raw;
    ValueInode::from_fields(raw.i_atime.get(), raw.i_ctime.get(), raw.i_version_lo.get())
}

fn set_value_inode(inode: &mut Inode, of: ValueInode) {
    let (atime, ctime, version) = of.to_fields();
    inode.raw.i_atime = atime.into();
    inode.raw.i_ctime = ctime.into();
    inode.raw.i_version_lo = version.into();
}

/// The hash of a value. Without `metadata_csum`, the seed is still derived from the UUID.
pub(crate) fn hash_of(value: &[u8], sb: &Superblock) -> u32 {
    ValueInode::hash_of(value, sb.checksum_seed().unwrap_or_else(|| ChecksumSeed::from_uuid(&sb.uuid())))
}

/// Reads the value of an entry of `owner`. The caller holds the lock of shared attribute blocks.
///
/// # Errors
/// A damaged inode or map, or one that cannot be read; a wrong hash.
pub(super) async fn read(writer: &Writer, owner: &InodeCell, held: &Held) -> Result<Vec<u8>> {
    let sb = writer.store.shape();
    let (cell, of) = match held.cell(writer, owner).await {
        Ok((cell, of)) => (cell, Some(of)),
        // Values written by Lustre have no hash.
        Err(Error::Unsupported { .. }) => (writer.inodes.get(held.inode).await?, None),
        Err(error) => return Err(error),
    };
    let place = Place::XattrInode(held.inode);
    let mut value = Vec::with_capacity(held.size.to_usize());
    for logical in 0..sb.block_size().blocks_for(held.size.into()) {
        let runs = change::look_up(&writer.store, &writer.alloc, &cell, logical).await?;
        let found = runs.into_iter().find(|(range, _)| range.contains(logical));
        let Some((range, OnDisk::Written(start))) = found else {
            let rule = "a map of written blocks";
            return Err(Corrupt::field(place, "i_block", logical, rule).into());
        };
        let at = VolumeBlock(start.0 + logical - range.start);
        writer.alloc.check_claim(PhysicalRun::new(at, 1), place)?;
        value.extend_from_slice(&writer.store.read(at, MetaKind::Raw).await?.bytes());
    }
    value.truncate(held.size.to_usize());
    if let Some(of) = of {
        let computed = hash_of(&value, sb);
        if of.hash != computed {
            return Err(Corrupt::checksum(place, of.hash, computed).into());
        }
    }
    Ok(value)
}

/// A value with an inode and blocks allocated in memory.
#[derive(Debug)]
pub(super) struct Spare {
    inode: NewInode,
    /// Blocks of the value. The rest of its last cluster is not written.
    blocks: u64,
    pieces: Vec<Allocated>,
    /// A map block, for a value in many extents.
    node: Option<Allocated>,
    value: Box<[u8]>,
    hash: u32,
}

impl Spare {
    /// Allocates space for a value of `owner`. The caller must not hold the lock of shared
    /// attribute blocks, which is needed to free space on a full volume.
    ///
    /// # Errors
    /// [`Error::NoSpace`]; why the journal was aborted.
    pub(super) async fn prepare(
        writer: &Writer,
        owner: &InodeCell,
        value: &[u8],
        privilege: Privilege,
    ) -> Result<Self> {
        let sb = writer.store.shape();
        let blocks = sb.block_size().blocks_for(value.len().to_u64());
        let clusters = sb.cluster_size().count(BlockRange::new(0, blocks));
        let mut reservation = writer.alloc.reserve_waiting(&writer.journal, clusters, 1, privilege).await?;
        let group = sb.locate_inode(owner.number()).map_or_else(Default::default, |(group, _)| group);
        let near = Parent { inode: owner.number(), group, last: None };
        let inode = writer.inodes.take_number(&writer.alloc, &writer.journal, Wanted::File, near).await?;
        let mut goal = writer.alloc.data_goal(inode.number(), Some(FileKind::Regular));
        let (mut pieces, mut left) = (Vec::<Allocated>::new(), clusters);
        while left > 0 {
            let piece = writer.alloc.blocks(goal, left.fit_u32(), &mut reservation).await?;
            left -= piece.firsts().count().to_u64();
            goal = piece.run().end();
            pieces.push(piece);
        }
        let fits = match sb.incompat().contains(Incompat::EXTENTS) {
            true => pieces.len() <= ROOT_EXTENTS,
            false => blocks.to_usize() <= DIRECT,
        };
        let node = match fits {
            true => None,
            false => Some(writer.alloc.blocks(goal, 1, &mut reservation).await?),
        };
        Ok(Self { inode, blocks, pieces, node, value: value.into(), hash: hash_of(value, sb) })
    }

    /// The entry for the value.
    pub(super) fn entry<'a>(&self, name: XattrName<'a>) -> Xattr<'a> {
        Xattr::in_inode(name, self.inode.number(), self.value.len().fit_u32(), self.hash)
    }

    /// Credits for [`Self::apply`]: the inode and its record, the blocks, and bitmaps and
    /// descriptors.
    pub(super) fn credits(&self) -> u32 {
        let node = if self.node.is_some() { Allocated::CREDITS + 1 } else { 0 };
        self.inode.credits()
            + 1
            + self.blocks.fit_u32()
            + self.pieces.len().fit_u32() * Allocated::CREDITS
            + node
    }

    /// Logs the value and its inode.
    fn apply(self, writer: &Writer, handle: &mut Handle, owner: &InodeCell) {
        let sb = writer.store.shape();
        let Self { inode: new, blocks: _, pieces, node, value, hash } = self;
        let (number, generation) = (new.number(), writer.inodes.generation(&new));
        let (mut extents, mut places, mut allocated) = (Vec::<Extent>::new(), Vec::new(), 0);
        let all = BlockRange::new(0, sb.block_size().blocks_for(value.len().to_u64()));
        for piece in pieces {
            let run = piece.run();
            let range = BlockRange::at(places.len().to_u64(), run.blocks).until(all.end);
            extents.push(written(range, run.start));
            places.extend((run.start.0..run.start.0 + range.len()).map(VolumeBlock));
            allocated += run.blocks;
            writer.alloc.log(handle, piece);
        }
        for (&at, bytes) in places.iter().zip(value.chunks(sb.block_size().byte_len())) {
            let block = handle.create(at, MetaKind::Raw);
            handle.edit(&block)[..bytes.len()].copy_from_slice(bytes);
        }
        let node = node.map(|allocated| {
            let at = allocated.run().start;
            writer.alloc.log(handle, allocated);
            at
        });
        let has_extents = sb.incompat().contains(Incompat::EXTENTS);
        let mut root = [0; 60];
        match (has_extents, node) {
            (true, None) => ExtentNode::Leaf(extents).write_to(&mut root),
            (true, Some(at)) => {
                let block = handle.create(at, MetaKind::ExtentNode { inode: number, generation });
                ExtentNode::Leaf(extents).write_to(&mut handle.edit(&block));
                let entries = vec![ExtentIndex { logical: FileBlock(0), child: at }];
                ExtentNode::Index { depth: 1, entries }.write_to(&mut root);
            }
            (false, node) => {
                let pointer =
                    |to: &mut [u8], at: VolumeBlock| to.copy_from_slice(&at.0.fit_u32().to_le_bytes());
                let (direct, behind) = places.split_at(places.len().min(DIRECT));
                direct.iter().zip(root.chunks_exact_mut(4)).for_each(|(&at, to)| pointer(to, at));
                if let Some(node) = node {
                    let block = handle.create(node, MetaKind::Indirect { inode: number });
                    let mut bytes = handle.edit(&block);
                    behind.iter().zip(bytes.chunks_exact_mut(4)).for_each(|(&at, to)| pointer(to, at));
                    pointer(&mut root[DIRECT * 4..][..4], node);
                }
            }
        }
        let blocks = allocated + if node.is_some() { sb.cluster_size().blocks() } else { 0 };
        let (uid, gid) = owner.read(|owner| (owner.uid(), owner.gid()));
        let made = writer.inodes.create(handle, &writer.alloc, new, |inode| {
            inode.raw.i_mode = (FileKind::Regular.mode_bits() | 0o600).into();
            inode.raw.i_links_count = 1.into();
            inode.set_owner(uid, gid);
            let tree = if has_extents { InodeFlags::EXTENTS } else { InodeFlags::empty() };
            inode.raw.i_flags = (InodeFlags::EA_INODE | tree).bits().into();
            inode.raw.i_block = root;
            inode.set_size(value.len().to_u64());
            inode.set_blocks_512(blocks << (sb.block_size().log2() - 9), sb);
        });
        let mut record = handle.inode(&made);
        let now = record.stamp(writer.clock.now());
        record.set_times(now, now, now, now);
        record.extra.i_atime_extra = 0.into();
        record.extra.i_ctime_extra = 0.into();
        set_value_inode(&mut record, ValueInode { hash, references: 1 });
    }
}

/// A change in the number of entries that refer to a value, and what is needed to free it.
#[derive(Debug)]
struct Recount {
    cell: Arc<InodeCell>,
    of: ValueInode,
    freed: Option<Freed>,
}

/// A value that is no longer referred to.
#[derive(Debug)]
struct Freed {
    nodes: PinnedNodes,
    planned: Planned,
    pins: Pins,
    inode: InodePin,
}

impl Freed {
    /// Prepares everything for freeing a value; `None` if that takes several transactions or more
    /// than `most` credits.
    async fn prepare(writer: &Writer, cell: &Arc<InodeCell>, most: u32) -> Result<Option<Self>> {
        let (sb, number) = (writer.store.shape(), cell.number());
        let mut nodes = PinnedNodes::of(cell, sb);
        let all = Change::Remove(BlockRange::from_block(0));
        let planned = change::plan(&writer.store, &writer.alloc, cell, &mut nodes, &all).await?;
        let pins = writer.alloc.pin(planned.freed(), Place::XattrInode(number)).await?;
        let inode = writer.alloc.pin_inode(number).await?;
        let freed = Self { nodes, planned, pins, inode };
        let is_small = freed.planned.rest.is_none() && freed.credits(sb) <= most;
        Ok(is_small.then_some(freed))
    }

    fn credits(&self, sb: &Superblock) -> u32 {
        self.planned.credits()
            + self.planned.revoke_blocks(true, sb)
            + self.pins.credits()
            + InodePin::CREDITS
    }

    fn apply(self, writer: &Writer, handle: &mut Handle, cell: &Arc<InodeCell>) {
        let Self { nodes, planned, pins, inode } = self;
        planned.apply(handle, cell, &nodes, &[], 0, writer.store.shape());
        drop(nodes);
        planned.free(handle, &writer.alloc, &pins, true);
        {
            let mut record = handle.inode(cell);
            record.raw.i_dtime = writer.clock.deleted_at(writer.store.shape()).into();
            record.set_size(0);
        }
        writer.alloc.free_inode(handle, inode, cell.number(), false);
    }
}

/// What an attribute change does to values in inodes of their own.
#[derive(Debug, Default)]
pub(super) struct ValuesChange {
    new: Vec<Spare>,
    recounts: Vec<Recount>,
    /// Space in units of 512 bytes, and inodes, charged to the owner.
    pub(super) more_512: i64,
    pub(super) more_inodes: i64,
}

/// Entries with values in inodes, before and after an attribute change.
#[derive(Debug, Default)]
pub(super) struct Entries {
    /// Those that the owner sees.
    pub(super) seen: [Vec<Held>; 2],
    /// Those in areas that the change removes and creates.
    pub(super) stored: [Vec<Held>; 2],
}

impl Entries {
    pub(super) fn is_empty(&self) -> bool {
        self.seen.iter().chain(&self.stored).all(Vec::is_empty)
    }
}

impl ValuesChange {
    /// Prepares the reference changes that result from `entries`. The caller holds the lock of
    /// shared attribute blocks and passes the new values that the entries refer to.
    ///
    /// # Errors
    /// A damaged value, or one that cannot be read; one written by Lustre.
    pub(super) async fn prepare(
        writer: &Writer,
        owner: &InodeCell,
        entries: Entries,
        new: Vec<Spare>,
    ) -> Result<Self> {
        let sb = writer.store.shape();
        let [before, after] = &entries.seen;
        let space = |all: &[Held]| all.iter().map(|held| held.blocks_512(sb)).sum::<i64>();
        let mut change = Self {
            more_512: space(after) - space(before),
            more_inodes: after.len().to_u64().cast_signed() - before.len().to_u64().cast_signed(),
            ..Self::default()
        };
        let mut deltas: BTreeMap<InodeNumber, (i64, &Held)> = BTreeMap::new();
        for (all, sign) in entries.stored.iter().zip([-1, 1]) {
            for held in all.iter().filter(|held| new.iter().all(|new| new.inode.number() != held.inode)) {
                deltas.entry(held.inode).or_insert((0, held)).0 += sign;
            }
        }
        let mut left = VALUES_CREDITS_MAX.saturating_sub(new.iter().map(Spare::credits).sum());
        for (delta, held) in deltas.into_values().filter(|(delta, _)| *delta != 0) {
            let (cell, of) = held.cell(writer, owner).await?;
            let Some(references) = of.references.checked_add_signed(delta) else {
                let rule = "as many references as attributes refer to it";
                let place = Place::XattrInode(held.inode);
                return Err(Corrupt::field(place, "i_version", of.references, rule).into());
            };
            let freed = match references {
                0 => Freed::prepare(writer, &cell, left).await?,
                _ => None,
            };
            left -= freed.as_ref().map_or(0, |freed| freed.credits(sb));
            change.recounts.push(Recount { cell, of: ValueInode { references, ..of }, freed });
        }
        change.new = new;
        Ok(change)
    }

    /// Credits for [`Self::apply`].
    pub(super) fn credits(&self, sb: &Superblock) -> u32 {
        let recount = |recount: &Recount| match &recount.freed {
            Some(freed) => freed.credits(sb) + 1,
            None => 1 + Orphans::CREDITS,
        };
        self.new.iter().map(Spare::credits).sum::<u32>() + self.recounts.iter().map(recount).sum::<u32>()
    }

    /// Makes the change, and charges the owner's quotas.
    pub(super) fn apply(self, writer: &Writer, handle: &mut Handle, owner: &Arc<InodeCell>) {
        for new in self.new {
            new.apply(writer, handle, owner);
        }
        for Recount { cell, of, freed } in self.recounts {
            {
                let mut record = handle.inode(&cell);
                set_value_inode(&mut record, of);
                if of.references == 0 {
                    record.raw.i_links_count = 0.into();
                }
            }
            match freed {
                Some(freed) => freed.apply(writer, handle, &cell),
                None if of.references == 0 => {
                    writer.orphans.add(handle, &cell, Orphan::Unnamed);
                    writer.delete_later(&cell);
                }
                None => {}
            }
        }
        handle.charge_values(owner, self.more_inodes);
    }
}
