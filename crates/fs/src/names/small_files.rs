//! Small files that are made together.
//!
//! A file made step by step has four or five of them in the journal: created without a name, its
//! map, its attributes, its name. Here its place is chosen as it is added, the contents of many go
//! to the device in few writes, and one step of the journal for each file then logs all that it
//! has. The contents are on the device before that step, so no crash shows a name without them.

use super::caller::Want;
use super::create::{LEAF_CREDITS, inherited_flags, inherited_project, take_number};
use super::node::{check_new_name, not_found, permit};
use super::order::{Order, Rank};
use super::{Caller, Capabilities, Namespace, Node, SYNC_NAMES, touch};
use crate::alloc::{Allocated, NewInode, Wanted};
use crate::inode::InodeCell;
use crate::journal::{Credits, Handle};
use crate::quota::Owners;
use crate::view::journals_data;
use crate::writer::Writer;
use crate::{Cost, Error, Result, quote};
use extant_block::{Bio, BioFlags, Buf, Op, Sector, Segment};
use extant_format::{
    DIRECT_POINTERS, Extent, ExtentNode, FileBlock, FileKind, Incompat, InodeFlags, InodeNumber, RoCompat,
    Timestamp, UintExt,
};
use futures_util::future::join_all;
use rustc_hash::FxBuildHasher;
use std::collections::HashSet;
use std::hash::BuildHasher;
use std::sync::Arc;

/// Most bytes of a file, and of all that wait together.
const FILE_BYTES: usize = 256 << 10;
const STAGED_BYTES: usize = 1 << 20;
/// Most files that wait: their inodes then fill a few blocks of a table.
const FILES: usize = 256;
/// Most extents in an inode itself.
const EXTENTS: usize = 4;

/// A regular file with all that it gets. It inherits neither an access list nor a group.
#[derive(Clone, Copy, Debug)]
pub struct SmallFile<'a> {
    /// Permissions, set-ID bits and the sticky bit.
    pub permissions: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Last access.
    pub accessed: Timestamp,
    /// Last change of the contents.
    pub modified: Timestamp,
    /// The contents.
    pub contents: &'a [u8],
}

/// Small files that are made together. Those that wait when this is dropped are not made.
#[derive(Debug)]
#[must_use = "files are made by `make`"]
pub struct SmallFiles {
    namespace: Arc<Namespace>,
    caller: Caller,
    waiting: Vec<Waiting>,
    /// Hashes of their directories and names.
    hashes: HashSet<u64, FxBuildHasher>,
    staged: Staged,
}

/// A file that was not made. Those before it were, those after it were not.
#[derive(Clone, Debug)]
pub struct NotMade {
    /// How many files were added before it since the last [`SmallFiles::make`].
    pub index: usize,
    /// Why.
    pub error: Error,
}

impl From<NotMade> for Error {
    fn from(not_made: NotMade) -> Self {
        not_made.error
    }
}

/// A file that waits for its name.
#[derive(Debug)]
struct Waiting {
    dir: Node,
    name: Box<[u8]>,
    file: Unlogged,
    /// The end of its contents in the staged bytes.
    staged_end: usize,
}

/// A file whose inode and blocks are taken in memory.
#[derive(Debug)]
struct Unlogged {
    inode: NewInode,
    places: Vec<Allocated>,
    permissions: u16,
    uid: u32,
    gid: u32,
    accessed: Timestamp,
    modified: Timestamp,
    size: u64,
}

impl SmallFiles {
    /// Longest contents of a small file, in bytes.
    pub const FILE_BYTES: usize = FILE_BYTES;

    /// Creates an empty list.
    ///
    /// # Errors
    /// [`Error::Permission`] for a caller who may not give files away.
    pub(crate) fn new(namespace: &Arc<Namespace>, caller: &Caller) -> Result<Self> {
        let owner = Capabilities::CHOWN | Capabilities::FOWNER | Capabilities::FSETID;
        if !caller.can(owner) {
            return Err(Error::Permission("making files of other owners".into()));
        }
        let (waiting, hashes, staged) = Default::default();
        Ok(Self { namespace: namespace.clone(), caller: caller.clone(), waiting, hashes, staged })
    }

    /// How many files wait to be made.
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Whether no file waits to be made.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Whether a file waits to be made under this name.
    pub fn contains(&self, dir: &Node, name: &[u8]) -> bool {
        let is_it = |file: &Waiting| *file.name == *name && file.dir.inode() == dir.inode();
        self.hashes.contains(&hash(dir, name)) && self.waiting.iter().any(is_it)
    }

    /// Whether a file of so many bytes can be added before those that wait are made. Never true for
    /// more than [`Self::FILE_BYTES`].
    pub fn has_room(&self, bytes: usize) -> bool {
        bytes <= FILE_BYTES
            && self.waiting.len() < FILES
            && self.staged.len + self.whole_blocks(bytes) <= STAGED_BYTES
    }

    /// Adds a file to be made by the next [`Self::make`], and returns its number. Returns `None` if
    /// it must be made step by step: there is no room for it here; it is too long; free space is
    /// too scattered; or the directory asks for synchronous changes, or it or the volume for
    /// journalled data.
    ///
    /// # Errors
    /// No space or inode is left; why the journal was aborted.
    pub async fn add(
        &mut self,
        dir: &Node,
        name: &[u8],
        file: &SmallFile<'_>,
    ) -> Result<Option<InodeNumber>> {
        let namespace = self.namespace.clone();
        namespace.writer.guarded(self.add_whole(dir, name, file)).await
    }

    async fn add_whole(
        &mut self,
        dir: &Node,
        name: &[u8],
        file: &SmallFile<'_>,
    ) -> Result<Option<InodeNumber>> {
        let writer = &*self.namespace.writer;
        let (sb, bytes) = (writer.store.shape(), file.contents.len());
        check_new_name(name)?;
        if !dir.is_dir() {
            return Err(Error::NotADirectory(format!("inode {}", dir.inode())));
        }
        let own_flags = SYNC_NAMES | InodeFlags::JOURNAL_DATA;
        let block_bytes = sb.block_size().bytes();
        if !self.has_room(bytes)
            || dir.cell().read(|dir| dir.flags().intersects(own_flags) || journals_data(dir, sb))
            || sb.cluster_size().blocks() > 1
            || writer.disk.device().limits().block_bytes > block_bytes
        {
            return Ok(None);
        }
        let inode = take_number(writer, dir.cell(), Wanted::File).await?;
        let has_extents = sb.incompat().contains(Incompat::EXTENTS);
        let blocks = sb.block_size().blocks_for(bytes.to_u64());
        let Some(places) = self.places(&inode, blocks, has_extents).await? else { return Ok(None) };
        let mut rest = file.contents;
        for place in &places {
            let run = place.run();
            let part = rest.split_off(..rest.len().min(run.blocks.to_usize() * sb.block_size().byte_len()));
            let start = Sector(run.start.0 * u64::from(block_bytes) / Sector::BYTES);
            self.staged.add(start, part.unwrap_or_default(), block_bytes.to_usize());
        }
        let number = inode.number();
        let &SmallFile { permissions, uid, gid, accessed, modified, .. } = file;
        let size = bytes.to_u64();
        let file = Unlogged { inode, places, permissions, uid, gid, accessed, modified, size };
        let staged_end = self.staged.len;
        self.hashes.insert(hash(dir, name));
        self.waiting.push(Waiting { dir: dir.clone(), name: name.into(), file, staged_end });
        Ok(Some(number))
    }

    /// Allocates the blocks of a file; `None` if its inode cannot list so many pieces.
    async fn places(
        &self,
        inode: &NewInode,
        blocks: u64,
        has_extents: bool,
    ) -> Result<Option<Vec<Allocated>>> {
        if !has_extents && blocks > DIRECT_POINTERS.into() {
            return Ok(None);
        }
        let mut places = Vec::new();
        if blocks == 0 {
            return Ok(Some(places));
        }
        let Writer { alloc, journal, rt, .. } = &*self.namespace.writer;
        let privilege = self.namespace.writer.privilege(&self.caller);
        let mut reservation = alloc.reserve_waiting(journal, blocks, 0, privilege).await?;
        let mut goal = alloc.data_goal(inode.number(), Some(FileKind::Regular));
        while reservation.clusters() > 0 {
            if has_extents && places.len() == EXTENTS {
                return Ok(None);
            }
            rt.charge(Cost::BlockSearch(1));
            let place = alloc.blocks(goal, reservation.clusters().fit_u32(), &mut reservation).await?;
            goal = place.run().end();
            places.push(place);
        }
        Ok(Some(places))
    }

    /// Makes the files that wait, in the order in which they were added.
    ///
    /// # Errors
    /// The first file that cannot be made, and why: [`Error::Exists`]; [`Error::NotFound`] in a
    /// removed directory; no space, if its directory, or that of the file before it, needs more
    /// than is left; contents that cannot be written; why the journal was aborted. Those after it
    /// are dropped.
    pub async fn make(&mut self) -> std::result::Result<(), NotMade> {
        if self.waiting.is_empty() {
            return Ok(());
        }
        let namespace = self.namespace.clone();
        let mut index = 0;
        let made = namespace.writer.guarded(self.make_waiting(&mut index)).await;
        made.map_err(|error| NotMade { index, error })
    }

    async fn make_waiting(&mut self, index: &mut usize) -> Result<()> {
        self.namespace.tidy().await;
        let waiting = Arc::new(std::mem::take(&mut self.waiting));
        self.hashes.clear();
        let written = self.staged.write(&self.namespace.writer, &waiting).await;
        let mut waiting = Arc::into_inner(waiting).expect("every write has ended");
        // Those before the first contents that were not written.
        let whole = match &written {
            Ok(()) => waiting.len(),
            Err((at, _)) => waiting.partition_point(|file| file.staged_end <= *at),
        };
        waiting.truncate(whole);
        let mut rest = waiting.into_iter();
        while let Some(Waiting { dir, name, file, .. }) = rest.next() {
            let mut file = Some(file);
            let made = self.make_one(&dir, &name, &mut file).await;
            if matches!(made, Err(Error::NoSpace)) && !rest.as_slice().is_empty() {
                // Those after it have taken space. One by one, this file would have come first.
                drop(rest);
                self.make_one(&dir, &name, &mut file).await?;
                *index += 1;
                return Err(Error::NoSpace);
            }
            made?;
            *index += 1;
        }
        written.map_err(|(_, error)| error)
    }

    /// Makes and takes a file. After an error it is still there.
    async fn make_one(&self, parent: &Node, name: &[u8], waiting: &mut Option<Unlogged>) -> Result<()> {
        let (namespace, writer, caller) = (&*self.namespace, &*self.namespace.writer, &self.caller);
        let file = waiting.as_ref().expect("the file was not made");
        let cell = parent.cell();
        let names = Order::default().write(Rank::Directory, cell).await;
        let mut dir = parent.open_dir().await?;
        let Err(slot) = dir.look(name).await? else { return Err(Error::Exists(quote(name))) };
        if !cell.is_live() {
            return Err(not_found(name));
        }
        permit(writer, caller, cell, Want::CHANGE_NAMES).await?;
        dir.check_changeable()?;
        let growth = dir.prepare(&slot, writer.privilege(caller)).await?;
        let project = cell.read(inherited_project).unwrap_or(0);
        let room = namespace.expect_owners(Owners { uid: file.uid, gid: file.gid, project }).await?;
        let bitmaps = file.places.len().fit_u32() * Allocated::CREDITS;
        // The new inode itself counts as well.
        let credits = LEAF_CREDITS + growth.credits() + file.inode.credits() + 1 + bitmaps;
        let mut handle = writer.journal.start(Credits(credits)).await?;
        dir.insert(&mut handle, &slot, growth, file.inode.number(), name, FileKind::Regular)?;
        if let Some(file) = waiting.take() {
            file.log(writer, &mut handle, cell);
        }
        touch(&mut handle.inode(cell), writer);
        drop(handle);
        drop((room, names));
        Ok(())
    }

    /// Whole blocks for so many bytes, in bytes.
    fn whole_blocks(&self, bytes: usize) -> usize {
        bytes.next_multiple_of(self.namespace.writer.store.shape().block_size().byte_len())
    }
}

fn hash(dir: &Node, name: &[u8]) -> u64 {
    FxBuildHasher.hash_one((dir.inode(), name))
}

impl Unlogged {
    /// Logs the inode with all that it has. The caller adds the name in the directory `parent`.
    fn log(self, writer: &Writer, handle: &mut Handle, parent: &InodeCell) {
        let sb = writer.store.shape();
        let runs: Vec<_> = self.places.iter().map(Allocated::run).collect();
        self.places.into_iter().for_each(|place| writer.alloc.log(handle, place));
        let blocks: u64 = runs.iter().map(|run| run.blocks).sum();
        let (flags, project) =
            parent.read(|dir| (inherited_flags(dir, FileKind::Regular), inherited_project(dir)));
        let has_extents = sb.incompat().contains(Incompat::EXTENTS);
        let made = writer.inodes.create(handle, &writer.alloc, self.inode, |inode| {
            inode.raw.i_mode = (FileKind::Regular.mode_bits() | self.permissions & 0o7777).into();
            inode.raw.i_links_count = 1.into();
            inode.set_owner(self.uid, self.gid);
            let of_map = if has_extents { InodeFlags::EXTENTS } else { InodeFlags::empty() };
            inode.raw.i_flags = (flags | of_map).bits().into();
            if let Some(project) = project.filter(|_| sb.ro_compat().contains(RoCompat::PROJECT)) {
                inode.extra.i_projid = project.into();
            }
            inode.set_size(self.size);
            inode.set_blocks_512(u64::from(sb.block_size().bytes() / 512) * blocks, sb);
            if has_extents {
                let mut logical = FileBlock(0);
                let extents = runs.iter().map(|run| {
                    let blocks = run.blocks.fit_u32();
                    let extent = Extent { logical, physical: run.start, blocks, unwritten: false };
                    logical.0 += blocks;
                    extent
                });
                ExtentNode::Leaf(extents.collect()).write_to(&mut inode.raw.i_block);
            } else {
                let all = runs.iter().flat_map(|run| run.start.0..run.end().0);
                for (pointer, at) in inode.raw.i_block.chunks_exact_mut(4).zip(all) {
                    pointer.copy_from_slice(&at.fit_u32().to_le_bytes());
                }
            }
        });
        let mut record = handle.inode(&made);
        let now = record.stamp(writer.clock.now());
        record.set_times(self.accessed, now, self.modified, now);
    }
}

/// Contents on their way to the device, in the order of the files.
#[derive(Debug, Default)]
struct Staged {
    /// Made when it is first needed.
    buf: Option<Arc<Buf>>,
    len: usize,
    runs: Vec<Run>,
}

/// Adjacent sectors.
#[derive(Clone, Copy, Debug)]
struct Run {
    start: Sector,
    /// Where its bytes are among those that are staged.
    at: usize,
    len: usize,
}

impl Staged {
    /// Adds bytes for the sectors from `start` on, and zeros to the end of their last block. There
    /// is room for them.
    fn add(&mut self, start: Sector, bytes: &[u8], block_bytes: usize) {
        let (at, len) = (self.len, bytes.len().next_multiple_of(block_bytes));
        let buf = self.buf.get_or_insert_with(|| Arc::new(Buf::stale(STAGED_BYTES)));
        if Arc::get_mut(buf).is_none() {
            // A write that nobody waits for any more still reads the old one.
            *buf = Arc::new(Buf::from_slice(buf));
        }
        let to = &mut Arc::get_mut(buf).expect("nobody else has it")[at..at + len];
        let (data, padding) = to.split_at_mut(bytes.len());
        data.copy_from_slice(bytes);
        padding.fill(0);
        self.len += len;
        match self.runs.last_mut() {
            Some(last) if last.start.0 + last.len.to_u64() / Sector::BYTES == start.0 => last.len += len,
            _ => self.runs.push(Run { start, at, len }),
        }
    }

    /// Writes all that is staged. An error comes with the first byte that may not be written. `of`
    /// lives until every write has ended, even if nobody waits for that: the blocks of the files
    /// must not go to others meanwhile.
    async fn write(
        &mut self,
        writer: &Writer,
        of: &Arc<Vec<Waiting>>,
    ) -> std::result::Result<(), (usize, Error)> {
        let runs = std::mem::take(&mut self.runs);
        self.len = 0;
        let Some(buf) = self.buf.clone().filter(|_| !runs.is_empty()) else { return Ok(()) };
        writer.check_may_change_data().map_err(|error| (0, error))?;
        let device = &**writer.disk.device();
        let most = device.limits().max_bytes.min(STAGED_BYTES.to_u64()).to_usize();
        let part = |&Run { start, at, len }: &Run| {
            let buf = buf.clone();
            (0..len).step_by(most).map(move |skip| {
                let segment = Segment::shared(buf.clone(), at + skip, most.min(len - skip));
                let start = Sector(start.0 + skip.to_u64() / Sector::BYTES);
                let mut bio = Bio::new(Op::Write, start, vec![segment]);
                bio.flags = BioFlags::SYNC;
                let ended = extant_block::until_end(&mut bio);
                let of = of.clone();
                bio.before_end(move |_| drop(of));
                device.submit(bio);
                async move { ended.await.1.map_err(|error| (at + skip, Error::from(error))) }
            })
        };
        let writes: Vec<_> = runs.iter().flat_map(part).collect();
        join_all(writes).await.into_iter().collect()
    }
}
