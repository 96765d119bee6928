//! Small files that are made together.
//!
//! A file made step by step has four or five of them in the journal: created without a name, its
//! map, its attributes, its name. Here its place is chosen as it is added, the contents of many go
//! to the device in few writes, and one step of the journal then logs all that a file has, often
//! together with the next ones of its directory. The contents are on the device before that step,
//! so no crash shows a name without them.

mod staged;

use super::caller::Want;
use super::create::{inherited_flags, inherited_project, take_number};
use super::node::{check_new_name, not_found, permit};
use super::open_dir::Growth;
use super::order::{Order, Rank};
use super::{Caller, Capabilities, Namespace, Node, SYNC_NAMES, touch};
use crate::alloc::{Allocated, NewInode, Wanted};
use crate::inode::InodeCell;
use crate::journal::{Credits, Handle};
use crate::quota::Owners;
use crate::view::journals_data;
use crate::writer::Writer;
use crate::{Cost, Error, Result, quote};
use extant_block::Sector;
use extant_format::{
    DIRECT_POINTERS, Extent, ExtentNode, FileBlock, FileKind, Incompat, InodeFlags, InodeNumber, RoCompat,
    Timestamp, UintExt,
};
use extant_rt::{Class, Task};
use rustc_hash::FxBuildHasher;
use staged::{Staged, Written};
use std::collections::{HashSet, VecDeque};
use std::hash::BuildHasher;
use std::sync::Arc;

/// Most bytes of a file, and of all whose contents are written together.
const FILE_BYTES: usize = 256 << 10;
const STAGED_BYTES: usize = 1 << 20;
/// Most files whose contents are written together: their inodes fill a few blocks of a table.
const FILES: usize = 256;
/// Most extents in an inode itself.
const EXTENTS: usize = 4;
/// Most credits of a step of the journal that several files share. About sixteen do.
const SHARED_CREDITS: u32 = 128;

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
    /// Those that were added before them.
    begun: Option<Begun>,
}

/// Files whose contents are being written.
#[derive(Debug)]
struct Begun {
    /// The writes hold it too: until they have ended, the blocks must not go to others.
    files: Arc<Vec<Waiting>>,
    hashes: HashSet<u64, FxBuildHasher>,
    written: Task<Written>,
}

/// A file that was not made. Those before it were, those after it were not.
#[derive(Clone, Debug)]
pub struct NotMade {
    /// How many files waited that were added before it.
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
        let (namespace, caller) = (namespace.clone(), caller.clone());
        Ok(Self { namespace, caller, waiting, hashes, staged, begun: None })
    }

    /// How many files wait to be made.
    pub fn len(&self) -> usize {
        self.waiting.len() + self.begun.as_ref().map_or(0, |begun| begun.files.len())
    }

    /// Whether no file waits to be made.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether a file waits to be made under this name.
    pub fn contains(&self, dir: &Node, name: &[u8]) -> bool {
        let hash = hash(dir, name);
        let is_it = |file: &Waiting| *file.name == *name && file.dir.inode() == dir.inode();
        let begun = self.begun.as_ref().filter(|begun| begun.hashes.contains(&hash));
        self.hashes.contains(&hash) && self.waiting.iter().any(is_it)
            || begun.is_some_and(|begun| begun.files.iter().any(is_it))
    }

    /// Whether a file of so many bytes can be added before the next [`Self::make`] or
    /// [`Self::make_behind`]. Never true for more than [`Self::FILE_BYTES`].
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
        let block_bytes = sb.block_size().bytes();
        if !self.has_room(bytes)
            || dir.cell().read(|dir| {
                writer.mount.syncs(dir, SYNC_NAMES)
                    || dir.flags().contains(InodeFlags::JOURNAL_DATA)
                    || journals_data(dir, sb)
            })
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
        self.made(false).await
    }

    /// Begins to write the contents of those that wait, and makes the others: those for which a
    /// call before has begun that. So the device works while more files are added.
    ///
    /// # Errors
    /// As [`Self::make`].
    pub async fn make_behind(&mut self) -> std::result::Result<(), NotMade> {
        self.made(true).await
    }

    async fn made(&mut self, stays_behind: bool) -> std::result::Result<(), NotMade> {
        if self.is_empty() {
            return Ok(());
        }
        let namespace = self.namespace.clone();
        let mut index = 0;
        let made = namespace.writer.guarded(self.make_waiting(stays_behind, &mut index)).await;
        if made.is_err() {
            self.drop_waiting().await;
        }
        made.map_err(|error| NotMade { index, error })
    }

    async fn make_waiting(&mut self, stays_behind: bool, index: &mut usize) -> Result<()> {
        self.namespace.tidy().await;
        let before = self.begun.take();
        if stays_behind {
            self.begin();
        }
        if let Some(Begun { files, written, .. }) = before {
            let written = written.await.unwrap_or_else(|_| Written::unknown());
            self.log(files, written, index).await?;
        }
        if !stays_behind {
            let files = Arc::new(std::mem::take(&mut self.waiting));
            self.hashes.clear();
            let written = self.staged.take().write(self.namespace.clone(), files.clone()).await;
            self.log(files, written, index).await?;
        }
        Ok(())
    }

    /// Begins to write the contents of those that wait.
    fn begin(&mut self) {
        let files = Arc::new(std::mem::take(&mut self.waiting));
        let hashes = std::mem::take(&mut self.hashes);
        let writes = self.staged.take().write(self.namespace.clone(), files.clone());
        let written = self.namespace.writer.rt.spawn("small files", Class::Normal, writes);
        self.begun = Some(Begun { files, hashes, written });
    }

    /// Drops those that wait, and waits until nothing is being written to their blocks.
    async fn drop_waiting(&mut self) {
        self.waiting.clear();
        self.hashes.clear();
        drop(self.staged.take());
        if let Some(begun) = self.begun.take() {
            // The batch is dropped, so a failed write no longer matters.
            let _ = begun.written.await;
        }
    }

    /// Makes files as far as their contents are written. Adds to `index` how many it made.
    async fn log(&mut self, files: Arc<Vec<Waiting>>, mut written: Written, index: &mut usize) -> Result<()> {
        self.staged.reuse(&mut written);
        let written = written.result;
        // Bios still have them if the task that wrote them was ended.
        let Some(mut files) = Arc::into_inner(files) else { return Err(Error::Defect) };
        // Those before the first contents that were not written.
        let whole = match &written {
            Ok(()) => files.len(),
            Err((at, _)) => files.partition_point(|file| file.staged_end <= *at),
        };
        files.truncate(whole);
        let (mut files, before) = (VecDeque::from(files), *index);
        while !files.is_empty() {
            let made = self.make_first(&mut files).await;
            *index = before + whole - files.len();
            if matches!(made, Err(Error::NoSpace)) && self.len() + files.len() > 1 {
                // Those after it have taken space. One by one, this file would have come first.
                files.truncate(1);
                self.drop_waiting().await;
                self.make_first(&mut files).await?;
                *index += 1;
                return Err(Error::NoSpace);
            }
            made?;
        }
        written.map_err(|(_, error)| error)
    }

    /// Makes and takes the first files that wait, as far as they are in one directory. After an
    /// error, the file that cannot be made is the first.
    async fn make_first(&self, waiting: &mut VecDeque<Waiting>) -> Result<()> {
        let (namespace, writer, caller) = (&*self.namespace, &*self.namespace.writer, &self.caller);
        let Some(parent) = waiting.front().map(|file| file.dir.clone()) else { return Ok(()) };
        let cell = parent.cell();
        let names = Order::default().write(Rank::Directory, cell).await;
        let mut dir = parent.open_dir().await?;
        while let Some(first) = waiting.front().filter(|file| file.is_in(&parent)) {
            let Err(slot) = dir.look(&first.name).await? else {
                return Err(Error::Exists(quote(&first.name)));
            };
            if !cell.is_live() {
                return Err(not_found(&first.name));
            }
            permit(writer, caller, cell, Want::CHANGE_NAMES).await?;
            dir.check_changeable()?;
            let growth = dir.prepare(&slot, writer.privilege(caller)).await?;
            let project = cell.read(inherited_project).unwrap_or(0);
            let owners = Owners { uid: first.file.uid, gid: first.file.gid, project };
            let room = namespace.expect_owners(owners).await?;
            let mut credits = 1 + growth.credits() + first.credits();
            // Others for which the directory need not grow share the step, unless quotas are kept.
            let most = if room.is_some() { 0 } else { SHARED_CREDITS };
            let mut others = 0;
            for other in waiting.iter().skip(1).take_while(|file| file.is_in(&parent)) {
                if credits + other.credits() > most {
                    break;
                }
                (others, credits) = (others + 1, credits + other.credits());
            }
            let mut handle = writer.journal.start(Credits(credits)).await?;
            dir.insert(&mut handle, &slot, growth, first.number(), &first.name, FileKind::Regular)?;
            touch(&mut handle.inode(cell), writer);
            log_first(waiting, writer, &mut handle, cell);
            for _ in 0..others {
                let Some(next) = waiting.front() else { break };
                let Some(slot) = dir.look_for_room(&next.name) else { break };
                dir.insert(&mut handle, &slot, Growth::NONE, next.number(), &next.name, FileKind::Regular)?;
                log_first(waiting, writer, &mut handle, cell);
            }
            drop(handle);
            drop(room);
        }
        drop(names);
        Ok(())
    }

    /// Whole blocks for so many bytes, in bytes.
    fn whole_blocks(&self, bytes: usize) -> usize {
        bytes.next_multiple_of(self.namespace.writer.store.shape().block_size().byte_len())
    }
}

/// Logs and takes the first file that waits; its name was added in the directory `parent`.
fn log_first(waiting: &mut VecDeque<Waiting>, writer: &Writer, handle: &mut Handle, parent: &InodeCell) {
    if let Some(Waiting { file, .. }) = waiting.pop_front() {
        file.log(writer, handle, parent);
    }
}

impl Waiting {
    fn is_in(&self, dir: &Node) -> bool {
        Arc::ptr_eq(self.dir.cell(), dir.cell())
    }

    fn number(&self) -> InodeNumber {
        self.file.inode.number()
    }

    /// Credits for the file and a leaf of its directory.
    fn credits(&self) -> u32 {
        let bitmaps = self.file.places.len().fit_u32() * Allocated::CREDITS;
        // The new inode itself counts as well.
        1 + self.file.inode.credits() + 1 + bitmaps
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
