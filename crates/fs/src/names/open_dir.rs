//! A directory opened by an operation: its blocks are pinned and its growth prepared.

use super::Namespace;
use super::dir_state::state;
use crate::alloc::{Allocated, Privilege};
use crate::dir::edit::{self, Found, Gap, Looked};
use crate::dir::inline::{self, Area, InlineLooked};
use crate::dir::leaf::Entry;
use crate::dir::linear_index::NameIndex;
use crate::dir::shape::{Blocks, BlocksMut, Form, Shape, Stop};
use crate::dir::{Cookie, Listed, cookie, insert};
use crate::inode::InodeCell;
use crate::journal::Handle;
use crate::map::block_state::OnDisk;
use crate::map::change::{self, Change, PinnedNodes, Planned};
use crate::map::growth::{TreeShape, pointer_growth, tree_growth};
use crate::meta::{MetaBlock, MetaKind, PhysicalRun};
use crate::writer::Writer;
use crate::{Cost, Error, Result};
use extant_cache::blocks::BlockBytes;
use extant_format::{
    BlockRange, Corrupt, FileBlock, FileKind, Incompat, Inode, InodeFlags, InodeNumber, Place, Superblock,
    UintExt, VolumeBlock,
};
use parking_lot::Mutex;
use std::sync::Arc;

/// Maximum number of blocks that a scan of a whole directory keeps pinned.
const SCAN_PINS: usize = 64;
/// Blocks read ahead in a scan.
const READ_AHEAD: u64 = 32;
/// Linear directories of at least this many blocks get an index in memory when used.
const INDEXED_FROM: u32 = 2;

/// Hash tree nodes above a leaf; a split may change all of them.
const TREE_NODES: u32 = 3;

/// Where a name is, or would go.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Spot {
    Block(Found),
    Inline(Area, Entry),
}

impl Spot {
    pub(crate) const fn entry(&self) -> &Entry {
        match self {
            Self::Block(found) => &found.entry,
            Self::Inline(_, entry) => entry,
        }
    }
}

/// Where a name may be added.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Slot {
    Block(Gap),
    Inline(Area, u32),
    /// The directory must first move from its inode to a block.
    MoveOut,
}

/// A directory whose lock the operation holds.
#[derive(Debug)]
pub(crate) struct OpenDir<'w> {
    namespace: &'w Namespace,
    writer: &'w Writer,
    cell: Arc<InodeCell>,
    generation: u32,
    pub(crate) shape: Shape,
    /// The names are in the inode.
    pub(crate) is_inline: bool,
    pins: Mutex<Vec<(FileBlock, MetaBlock)>>,
    /// A scan is under way, so few blocks stay pinned.
    scanning: bool,
}

impl Blocks for OpenDir<'_> {
    type Bytes = BlockBytes;

    fn get(&self, at: FileBlock) -> std::result::Result<BlockBytes, Stop> {
        let mut pins = self.pins.lock();
        if let Some((_, block)) = pins.iter().rev().find(|(pinned, _)| *pinned == at) {
            return Ok(block.bytes());
        }
        let Some(place) = state(&self.cell).place(at) else { return Err(Stop::Missing(at)) };
        let Some(block) = self.writer.store.get(place, self.kind(at))? else { return Err(Stop::Missing(at)) };
        let bytes = block.bytes();
        if self.scanning && pins.len() >= SCAN_PINS {
            pins.clear();
        }
        pins.push((at, block));
        Ok(bytes)
    }

    fn is_sound(&self, at: FileBlock, form: Form) -> bool {
        state(&self.cell).is_sound(at, form)
    }

    fn set_sound(&self, at: FileBlock, form: Form) {
        state(&self.cell).set_sound(at, form);
    }
}

impl<'w> OpenDir<'w> {
    /// Opens the directory of an inode without checking it. See [`Self::open`].
    ///
    /// # Errors
    /// The inode is not a directory.
    pub(super) fn new(namespace: &'w Namespace, cell: &Arc<InodeCell>) -> Result<Self> {
        let writer = &*namespace.writer;
        let (generation, shape, kind, is_inline) = cell.read(|inode| {
            let is_inline = inode.flags().contains(InodeFlags::INLINE_DATA);
            let shape = Shape::new(inode, writer.store.shape());
            (inode.raw.i_generation.get(), shape, inode.kind(), is_inline)
        });
        if kind != Some(FileKind::Directory) {
            return Err(Error::NotADirectory(format!("inode {}", cell.number())));
        }
        let pins = Mutex::new(Vec::with_capacity(4));
        Ok(Self {
            namespace,
            writer,
            cell: cell.clone(),
            generation,
            shape,
            is_inline,
            pins,
            scanning: false,
        })
    }

    pub(crate) fn cell(&self) -> &Arc<InodeCell> {
        &self.cell
    }

    pub(super) const fn namespace(&self) -> &'w Namespace {
        self.namespace
    }

    pub(super) const fn writer(&self) -> &'w Writer {
        self.writer
    }

    /// Begins a scan of many blocks; few of them stay pinned.
    pub(super) fn begin_scan(&mut self) {
        self.scanning = true;
    }

    /// # Errors
    /// Why the directory's names may not be changed.
    pub(crate) fn check_changeable(&self) -> Result<()> {
        match self.shape.frozen {
            Some(reason) => Err(Error::unsupported(reason)),
            None => Ok(()),
        }
    }

    fn kind(&self, block: FileBlock) -> MetaKind {
        MetaKind::Directory { dir: self.cell.number(), generation: self.generation, block }
    }

    /// Reads a block that a step found missing.
    async fn load(&mut self, at: FileBlock) -> Result<()> {
        if at.0 >= self.shape.blocks {
            let place = Place::DirectoryBlock(self.cell.number(), at);
            return Err(Corrupt::field(place, "block", at.0.into(), "a block of the directory").into());
        }
        let known = state(&self.cell).place(at);
        let place = match known {
            Some(place) => place,
            None => self.find(at).await?,
        };
        if self.scanning {
            let ahead = (at.0..self.shape.blocks).take(READ_AHEAD.to_usize());
            let places: Vec<_> = {
                let state = state(&self.cell);
                ahead.map_while(|at| state.place(FileBlock(at))).collect()
            };
            self.writer.store.prefetch(places.into_iter()).await;
        }
        let block = self.writer.store.read(place, self.kind(at)).await?;
        self.pins.get_mut().push((at, block));
        Ok(())
    }

    /// Looks up a block in the map, and remembers the extents around it.
    async fn find(&self, at: FileBlock) -> Result<VolumeBlock> {
        let claim = Place::DirectoryBlock(self.cell.number(), at);
        for (range, known) in
            change::look_up(&self.writer.store, &self.writer.alloc, &self.cell, at.0.into()).await?
        {
            let OnDisk::Written(place) = known else { continue };
            let (Ok(start), Ok(end)) = (u32::try_from(range.start), u32::try_from(range.end)) else {
                continue;
            };
            self.writer.alloc.check_claim(PhysicalRun::new(place, range.end - range.start), claim)?;
            state(&self.cell).learn(start, end - start, place);
        }
        let place = state(&self.cell).place(at);
        place.ok_or_else(|| Corrupt::field(claim, "block", at.0.into(), "a written block").into())
    }

    /// Runs a step to completion, reading the blocks it finds missing.
    pub(crate) async fn run<T>(
        &mut self,
        mut step: impl FnMut(&Self) -> std::result::Result<T, Stop>,
    ) -> Result<T> {
        loop {
            let at = match step(self) {
                Ok(value) => return Ok(value),
                Err(Stop::Failed(error)) => return Err(error),
                Err(Stop::Missing(at)) => at,
            };
            Box::pin(self.load(at)).await?;
        }
    }

    /// Whether this is a linear directory of several blocks without an index.
    fn lacks_index(&self) -> bool {
        if self.shape.tree
            || self.is_inline
            || self.shape.blocks < INDEXED_FROM
            || self.shape.frozen.is_some()
        {
            return false;
        }
        let mut state = state(&self.cell);
        state.index_used = true;
        state.index.is_none()
    }

    async fn build_index(&mut self) -> Result<()> {
        self.scanning = true;
        let index = self.run(|dir| NameIndex::build(&dir.shape, dir)).await?;
        self.scanning = false;
        self.pins.get_mut().clear();
        self.namespace.indexes.keep(&self.cell, index);
        Ok(())
    }

    /// Looks up a name: returns its place, or where it can be added.
    ///
    /// # Errors
    /// A damaged directory; errors from the device.
    pub(crate) async fn look(&mut self, name: &[u8]) -> Result<std::result::Result<Spot, Slot>> {
        if self.is_inline {
            let looked = self.cell.read(|inode| inline::look(self.shape.leaf, inode, name))?;
            return Ok(match looked {
                InlineLooked::Found(area, entry) => Ok(Spot::Inline(area, entry)),
                InlineLooked::Absent(Some((area, at))) => Err(Slot::Inline(area, at)),
                InlineLooked::Absent(None) => Err(Slot::MoveOut),
            });
        }
        if self.lacks_index() {
            Box::pin(self.build_index()).await?;
        }
        self.writer.rt.charge(Cost::DirectorySearch(1));
        let looked = self
            .run(|dir| {
                // Take the index out while the step runs: the step locks the state for each block.
                let index = state(&dir.cell).index.take();
                let looked = edit::look(&dir.shape, dir, name, index.as_ref());
                dir.put_back(index);
                looked
            })
            .await?;
        match looked {
            Looked::Found(found) => Ok(Ok(Spot::Block(found))),
            Looked::Absent(gap) => {
                // The name may be in a leaf other than the one its hash leads to.
                if self.may_hide_names() {
                    self.check_tree().await?;
                }
                Ok(Err(Slot::Block(gap)))
            }
        }
    }

    /// Where a name that does not exist can be added without more blocks, according to blocks in
    /// memory. Returns `None` if [`Self::look`] must be asked.
    pub(crate) fn look_for_room(&self, name: &[u8]) -> Option<Slot> {
        if self.is_inline || self.lacks_index() || self.is_tree_unchecked() {
            return None;
        }
        self.writer.rt.charge(Cost::DirectorySearch(1));
        let index = state(&self.cell).index.take();
        let looked = edit::look(&self.shape, self, name, index.as_ref());
        self.put_back(index);
        match looked {
            Ok(Looked::Absent(gap @ Gap::Room { .. })) => Some(Slot::Block(gap)),
            _ => None,
        }
    }

    /// Looks up a name without I/O; `None` if something must be read first.
    pub(crate) fn look_cached(&self, name: &[u8]) -> Result<Option<Option<Entry>>> {
        if self.is_inline {
            let looked = self.cell.read(|inode| inline::look(self.shape.leaf, inode, name))?;
            return Ok(Some(match looked {
                InlineLooked::Found(_, entry) => Some(entry),
                InlineLooked::Absent(_) => None,
            }));
        }
        if !self.shape.tree && self.shape.blocks >= INDEXED_FROM {
            return Ok(None);
        }
        match edit::look(&self.shape, self, name, None) {
            Ok(Looked::Found(found)) => Ok(Some(Some(found.entry))),
            Ok(Looked::Absent(_)) if self.may_hide_names() => Ok(None),
            Ok(Looked::Absent(_)) => Ok(Some(None)),
            Err(Stop::Missing(_)) => Ok(None),
            Err(Stop::Failed(error)) => Err(error),
        }
    }

    /// Returns the directory that `..` names.
    pub(crate) async fn parent(&mut self) -> Result<InodeNumber> {
        if self.is_inline {
            return Ok(self.cell.read(inline::parent));
        }
        // This pins the block of `..`, so that it can be changed.
        self.run(|dir| edit::parent(&dir.shape, dir)).await
    }

    /// Whether it has no names other than `.` and `..`.
    pub(crate) async fn is_empty(&mut self) -> Result<bool> {
        if self.is_inline {
            return Ok(self.cell.read(|inode| inline::is_empty(self.shape.leaf, inode))?);
        }
        self.scanning = true;
        let empty = self.run(|dir| edit::is_empty(&dir.shape, dir)).await;
        self.scanning = false;
        self.pins.get_mut().clear();
        empty
    }

    /// Passes names from `from` on to `emit`; returns where to continue.
    pub(crate) async fn list(
        &mut self,
        from: Cookie,
        emit: &mut (dyn FnMut(Listed<'_>) -> bool + Send),
    ) -> Result<Cookie> {
        self.scanning = true;
        if self.is_inline {
            let inode = self.cell.read(Inode::clone);
            return match cookie::list_inline(&self.shape, &inode, from, emit) {
                Ok(next) => Ok(next),
                Err(Stop::Failed(error)) => Err(error),
                Err(Stop::Missing(at)) => unreachable!("block {at} of a directory without blocks"),
            };
        }
        let mut stopped = false;
        let mut next = from;
        while next < Cookie::END && !stopped {
            next = self
                .run(|dir| {
                    cookie::list(&dir.shape, dir, next, &mut |listed| {
                        let more = emit(listed);
                        stopped |= !more;
                        more
                    })
                })
                .await?;
        }
        Ok(next)
    }

    /// Prepares for adding a name at `slot`: allocates the blocks by which the directory grows.
    ///
    /// # Errors
    /// [`Error::NoSpace`]; [`Error::DirectoryFull`] if the directory cannot grow.
    pub(crate) async fn prepare(&mut self, slot: &Slot, privilege: Privilege) -> Result<Growth> {
        let new = match slot {
            Slot::Block(gap) => gap.new_blocks(&self.shape).ok_or_else(|| self.shape.full())?,
            Slot::Inline(..) => 0,
            Slot::MoveOut => 1,
        };
        self.check_tree().await?;
        if new == 0 { Ok(Growth::NONE) } else { Box::pin(self.grow(new, privilege)).await }
    }

    async fn grow(&mut self, new: u32, privilege: Privilege) -> Result<Growth> {
        let writer = self.writer;
        let sb = writer.store.shape();
        // Inline contents are replaced by an empty map.
        let first = if self.is_inline { 0 } else { self.shape.blocks };
        let added = BlockRange::at(first.into(), new.into());
        if (0..new).any(|n| state(&self.cell).place(FileBlock(first + n)).is_some()) {
            return Err(Error::unsupported("adding to a directory with preallocated blocks (dir_prealloc)"));
        }
        let nodes = self.cell.read(|inode| node_growth(inode, sb, added));
        writer.rt.charge(Cost::BlockSearch(1));
        // The rest of the last block's cluster already belongs to the directory.
        let cluster = sb.cluster_size();
        let implied = BlockRange::new(added.start, cluster.end(added.start).min(added.end));
        let clusters = cluster.count(BlockRange::new(implied.end, added.end));
        let mut reservation =
            writer.alloc.reserve_waiting(&writer.journal, clusters, nodes, privilege).await?;
        let mut last = first.checked_sub(1).and_then(|last| state(&self.cell).place(FileBlock(last)));
        if last.is_none() && !implied.is_empty() {
            last = Some(self.find(FileBlock(first - 1)).await?);
        }
        let goal = match last {
            Some(last) => VolumeBlock(last.0 + 1),
            None => writer.alloc.data_goal(self.cell.number(), Some(FileKind::Directory)),
        };
        let mut growth = Growth { first, ..Growth::NONE };
        let mut extents = Vec::new();
        if let Some(last) = last.filter(|_| !implied.is_empty()) {
            extents.push(change::written(implied, VolumeBlock(last.0 + 1)));
            growth.places.extend((last.0 + 1..).take(implied.len().to_usize()).map(VolumeBlock));
        }
        while growth.places.len().fit_u32() < new {
            let at = growth.places.last().map_or(goal, |last| VolumeBlock(last.0 + 1));
            let missing = BlockRange::new(added.start + growth.places.len().to_u64(), added.end);
            let want = cluster.count(missing).fit_u32();
            let allocated = writer.alloc.blocks(at, want, &mut reservation).await?;
            growth.data_blocks += allocated.run().blocks;
            let (start, blocks) = (allocated.run().start, allocated.run().blocks.min(missing.len()));
            extents.push(change::written(missing.until(missing.start + blocks), start));
            growth.places.extend((start.0..start.0 + blocks).map(VolumeBlock));
            growth.allocated.push(allocated);
        }
        let mut nodes = PinnedNodes::of(&self.cell, sb);
        let planned =
            change::plan(&writer.store, &writer.alloc, &self.cell, &mut nodes, &Change::Map(&extents))
                .await?;
        while growth.new_nodes.len().fit_u32() < planned.new_nodes {
            let want = planned.new_nodes - growth.new_nodes.len().fit_u32();
            let at = *growth.places.last().expect("a growing directory gets blocks");
            let allocated = writer.alloc.blocks(at, want, &mut reservation).await?;
            growth.new_nodes.extend(allocated.firsts());
            growth.allocated.push(allocated);
        }
        growth.map = Some((planned, nodes));
        Ok(growth)
    }

    /// Adds a name where [`Self::look`] found room for it. On an error nothing was changed.
    pub(crate) fn insert(
        &mut self,
        handle: &mut Handle,
        slot: &Slot,
        growth: Growth,
        inode: InodeNumber,
        name: &[u8],
        kind: FileKind,
    ) -> Result<()> {
        let cell = self.cell.clone();
        match *slot {
            Slot::Inline(area, at) => {
                let mut dir = handle.inode(&cell);
                inline::insert(self.shape.leaf, &mut dir, (area, at), inode, name, kind);
                return Ok(());
            }
            Slot::MoveOut => {
                let place = growth.places[0];
                let mut bytes = vec![0; self.shape.block_bytes];
                cell.read(|dir| inline::write_block(self.shape.leaf, dir, &mut bytes))?;
                let damaged = |_| Error::from(self.shape.leaf.diagnose(&bytes, cell.number(), FileBlock(0)));
                let need = extant_format::dirent_bytes(name.len());
                let room =
                    self.shape.leaf.scan(&bytes, name, need).map_err(damaged)?.room.ok_or(Error::NoSpace)?;
                let bare = cell.read(crate::xattr::without_inline_data)?;
                self.shape.leaf.insert(&mut bytes, room, inode, name, kind);
                let block = handle.create(place, self.kind(FileBlock(0)));
                handle.edit(&block).copy_from_slice(&bytes);
                growth.apply_map(self.writer, handle, &cell);
                {
                    let mut dir = handle.inode(&cell);
                    dir.tail = bare;
                    let tree = self.writer.store.shape().incompat().contains(Incompat::EXTENTS);
                    let flags = (dir.flags() - InodeFlags::INLINE_DATA)
                        | if tree { InodeFlags::EXTENTS } else { InodeFlags::empty() };
                    dir.raw.i_flags = flags.bits().into();
                    dir.set_size(self.shape.block_bytes.to_u64());
                }
                self.pins.get_mut().push((FileBlock(0), block));
                self.is_inline = false;
                self.shape.blocks = 1;
                return Ok(());
            }
            Slot::Block(_) => {}
        }
        let Slot::Block(gap) = slot else { unreachable!("the other places are handled above") };
        let shape = self.shape;
        let mut index = state(&cell).index.take();
        let planted = {
            let mut blocks = DirEdit { dir: self, handle, growth: &growth };
            insert::insert(&shape, &mut blocks, gap, inode, name, kind, index.as_mut())
        };
        state(&cell).index = index;
        let planted = planted?;
        if !growth.places.is_empty() {
            self.shape.blocks += growth.places.len().fit_u32();
            let size = u64::from(self.shape.blocks) * self.shape.block_bytes.to_u64();
            growth.apply_map(self.writer, handle, &cell);
            let mut dir = handle.inode(&cell);
            dir.set_size(size);
            if planted {
                dir.raw.i_flags = (dir.flags() | InodeFlags::INDEX).bits().into();
                self.shape.set_tree();
                state(&cell).is_tree_sound = true;
            }
        }
        Ok(())
    }

    /// Removes an entry that [`Self::look`] found.
    pub(crate) fn remove(&mut self, handle: &mut Handle, spot: &Spot, name: &[u8]) {
        let cell = self.cell.clone();
        self.namespace.known.forget(cell.number(), name);
        match spot {
            Spot::Inline(area, entry) => {
                inline::remove(self.shape.leaf, &mut handle.inode(&cell), *area, entry);
            }
            Spot::Block(found) => {
                let shape = self.shape;
                let mut index = state(&cell).index.take();
                let mut blocks = DirEdit { dir: self, handle, growth: &Growth::NONE };
                edit::remove(&shape, &mut blocks, found, name, index.as_mut());
                state(&cell).index = index;
            }
        }
    }

    /// Makes an entry that [`Self::look`] found lead to another inode.
    pub(crate) fn set(
        &mut self,
        handle: &mut Handle,
        (spot, name): (&Spot, &[u8]),
        inode: InodeNumber,
        kind: FileKind,
    ) {
        let cell = self.cell.clone();
        self.namespace.known.forget(cell.number(), name);
        match spot {
            Spot::Inline(area, entry) => {
                inline::set(self.shape.leaf, &mut handle.inode(&cell), *area, entry, inode, kind);
            }
            Spot::Block(found) => {
                let shape = self.shape;
                edit::set(
                    &shape,
                    &mut DirEdit { dir: self, handle, growth: &Growth::NONE },
                    found,
                    inode,
                    kind,
                );
            }
        }
    }

    /// Makes `..` name another directory. [`Self::parent`] must have been called before.
    pub(crate) fn set_parent(&mut self, handle: &mut Handle, parent: InodeNumber) {
        let cell = self.cell.clone();
        state(&cell).parent = Some(parent);
        *self.namespace.moves.lock().entry(cell.number()).or_default() += 1;
        if self.is_inline {
            inline::set_parent(&mut handle.inode(&cell), parent);
        } else {
            let shape = self.shape;
            edit::set_parent(&shape, &mut DirEdit { dir: self, handle, growth: &Growth::NONE }, parent);
        }
    }

    /// Finds an entry again in a pinned block, because adding another name may have moved it.
    pub(crate) fn find_again(&self, name: &[u8]) -> Option<Spot> {
        if self.is_inline {
            return match self.cell.read(|inode| inline::look(self.shape.leaf, inode, name)) {
                Ok(InlineLooked::Found(area, entry)) => Some(Spot::Inline(area, entry)),
                _ => None,
            };
        }
        let index = state(&self.cell).index.take();
        let found = edit::look_at_hand(&self.shape, self, name, index.as_ref());
        self.put_back(index);
        found.map(Spot::Block)
    }

    /// Puts back the index that a step took out. A concurrent lookup finds no index, and so has
    /// none to put back.
    fn put_back(&self, index: Option<NameIndex>) {
        if index.is_some() {
            state(&self.cell).index = index;
        }
    }
}

/// Maximum number of blocks that a directory's map can grow by.
fn node_growth(dir: &Inode, sb: &Superblock, blocks: BlockRange) -> u64 {
    let is_inline = dir.flags().contains(InodeFlags::INLINE_DATA);
    let tree = match is_inline {
        true => sb.incompat().contains(Incompat::EXTENTS),
        false => dir.flags().contains(InodeFlags::EXTENTS),
    };
    if !tree {
        return pointer_growth(blocks, sb.block_size());
    }
    let [_, _, entries_lo, entries_hi, _, _, depth_lo, depth_hi, ..] = *dir.map();
    let shape = match is_inline {
        true => TreeShape::default(),
        false => TreeShape {
            depth: u16::from_le_bytes([depth_lo, depth_hi]),
            entries: u16::from_le_bytes([entries_lo, entries_hi]),
        },
    };
    tree_growth(shape, blocks.len(), 1, sb.block_size())
}

/// The blocks by which a directory grows, allocated in memory. Dropping it unused frees them.
#[derive(Debug)]
pub(crate) struct Growth {
    first: u32,
    places: Vec<VolumeBlock>,
    /// Blocks allocated for `places`, in whole clusters.
    data_blocks: u64,
    new_nodes: Vec<VolumeBlock>,
    allocated: Vec<Allocated>,
    map: Option<(Planned, PinnedNodes)>,
}

impl Growth {
    pub(crate) const NONE: Self = Self {
        first: 0,
        places: Vec::new(),
        data_blocks: 0,
        new_nodes: Vec::new(),
        allocated: Vec::new(),
        map: None,
    };

    /// Additional blocks that the operation may dirty.
    pub(crate) fn credits(&self) -> u32 {
        let Some((planned, _)) = &self.map else { return 0 };
        let new = self.places.len().fit_u32();
        new + TREE_NODES + planned.credits() + self.allocated.len().fit_u32() * Allocated::CREDITS
    }

    /// Logs the allocations and adds the blocks to the directory's map.
    fn apply_map(self, writer: &Writer, handle: &mut Handle, cell: &Arc<InodeCell>) {
        let Some((planned, nodes)) = self.map else { return };
        for allocated in self.allocated {
            writer.alloc.log(handle, allocated);
        }
        let sb = writer.store.shape();
        planned.apply(handle, cell, &nodes, &self.new_nodes, self.data_blocks, sb);
        for (at, place) in (self.first..).zip(self.places) {
            state(cell).learn(at, 1, place);
        }
    }
}

/// A directory's blocks being changed under a handle.
struct DirEdit<'a, 'w> {
    dir: &'a mut OpenDir<'w>,
    handle: &'a mut Handle,
    growth: &'a Growth,
}

impl Blocks for DirEdit<'_, '_> {
    type Bytes = BlockBytes;

    fn get(&self, at: FileBlock) -> std::result::Result<BlockBytes, Stop> {
        self.dir.get(at)
    }

    fn is_sound(&self, at: FileBlock, form: Form) -> bool {
        self.dir.is_sound(at, form)
    }

    fn set_sound(&self, at: FileBlock, form: Form) {
        self.dir.set_sound(at, form);
    }
}

impl BlocksMut for DirEdit<'_, '_> {
    fn edit(&mut self, at: FileBlock, _: Form, change: impl FnOnce(&mut [u8])) {
        let pins = self.dir.pins.get_mut();
        let (_, block) = pins.iter().rev().find(|(pinned, _)| *pinned == at).expect("looked at, so pinned");
        change(&mut self.handle.edit(block));
    }

    fn create(&mut self, at: FileBlock, _: Form, change: impl FnOnce(&mut [u8])) {
        let place = self.growth.places[(at.0 - self.growth.first).to_usize()];
        let block = self.handle.create(place, self.dir.kind(at));
        change(&mut self.handle.edit(&block));
        self.dir.pins.get_mut().push((at, block));
    }
}
