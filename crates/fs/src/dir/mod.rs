//! Directories.

pub(crate) mod check;
pub(crate) mod cookie;
pub(crate) mod edit;
mod hash_tree;
pub(crate) mod inline;
pub(crate) mod insert;
pub(crate) mod leaf;
pub(crate) mod linear_index;
pub(crate) mod shape;
mod stored_lookup;
#[cfg(test)]
mod tests;

pub use cookie::{Cookie, Listed};

use crate::map::{Mapper, RunWalker, Unmapped};
use crate::view::View;
use crate::xattr::inline_names;
use crate::{Error, Lost, Result, Run, RunState, quote};
use extant_format::{
    BlockRange, Corrupt, DirEntries, DirEntry, FileBlock, FileKind, HtreeContext, Incompat, Inode,
    InodeFlags, InodeNumber, Place, UintExt, VolumeBlock, verify_dirent_checksum, verify_dx_checksum,
};

/// Blocks read ahead at a time.
const READ_AHEAD_BLOCKS: u64 = 256;

/// A name in a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirItem {
    /// The name as stored: any bytes except NUL and `/`. In encrypted names these appear as `%00`
    /// and `%2F` (and `%` as `%25`).
    pub name: Vec<u8>,
    /// The inode.
    pub inode: InodeNumber,
    /// Its kind, if the entry records it.
    pub kind: Option<FileKind>,
}

/// Reads a directory block by block.
#[derive(Debug)]
pub struct DirReader {
    view: View,
    dir: Inode,
    walker: RunWalker,
    /// The rest of the current extent: block of the directory, block of the volume, blocks left.
    run: Option<(u64, VolumeBlock, u64)>,
    /// The entries of an inline directory.
    inline: Option<Vec<DirItem>>,
    /// Read after a lost part and not yet returned.
    held: Option<Names>,
    blocks_read: u64,
    /// Number of blocks of the directory, from its size.
    blocks: u64,
    /// All of `blocks` were read: what follows is mapped past the directory's size.
    is_behind: bool,
    /// The directory that `..` names, once read.
    parent: Option<InodeNumber>,
    /// Returns only this name, for a lookup.
    only: Option<Box<[u8]>>,
}

/// The names of a block, or a part of the directory that cannot be read.
type Names = std::result::Result<Option<Vec<DirItem>>, Lost>;

impl View {
    /// Begins reading a directory.
    pub(crate) async fn read_dir(&self, dir: &Inode) -> Result<DirReader> {
        self.read_names(dir, None).await
    }

    /// Begins reading a directory, or only the entries with one name.
    async fn read_names(&self, dir: &Inode, only: Option<&[u8]>) -> Result<DirReader> {
        if dir.kind() != Some(FileKind::Directory) {
            return Err(Error::NotADirectory(format!("inode {}", dir.number)));
        }
        let (sb, mut parent) = (self.superblock(), None);
        let inline = match dir.flags().contains(InodeFlags::INLINE_DATA) {
            true => {
                match check::inline_parent(dir, sb) {
                    Ok(found) => parent = Some(found),
                    Err(corrupt) => self.note(Err(corrupt))?,
                }
                Some(self.inline_items(dir, only)?)
            }
            false => None,
        };
        // A directory that was removed while in use has no size.
        if inline.is_none() && dir.links() > 0 {
            self.note(check::size_in_blocks(dir, sb).map(drop))?;
        }
        let blocks = if inline.is_some() { 0 } else { sb.block_size().blocks_for(dir.size()) };
        Ok(DirReader {
            view: self.clone(),
            dir: dir.clone(),
            walker: RunWalker::new(BlockRange::new(0, blocks)),
            run: None,
            inline,
            held: None,
            blocks_read: 0,
            blocks,
            is_behind: false,
            parent,
            only: only.map(Box::from),
        })
    }

    /// Loads the first blocks of these directories into the cache, many at a time.
    pub(crate) async fn prefetch_dirs(&self, numbers: &[InodeNumber]) {
        let mut blocks = Vec::with_capacity(numbers.len());
        for &number in numbers {
            // Errors are reported when the directories are read.
            let Ok(inode) = self.inode_quietly(number).await else { continue };
            let in_blocks =
                inode.kind() == Some(FileKind::Directory) && !inode.flags().contains(InodeFlags::INLINE_DATA);
            let Some(FileBlock(size @ 1..)) = inode.size_in_blocks(self.superblock()).filter(|_| in_blocks)
            else {
                continue;
            };
            if let Ok(Run { blocks: run, state: RunState::Written(at), .. }) =
                Mapper::default().map(self, &inode, 0).await
            {
                let ahead = run.min(size.into()).min(READ_AHEAD_BLOCKS / 16);
                blocks.extend((at.0..at.0 + ahead).map(VolumeBlock));
            }
        }
        self.buffers().prefetch(blocks.into_iter()).await;
    }

    /// All names of a directory except `.` and `..`, in storage order.
    pub(crate) async fn list(&self, dir: &Inode) -> Result<Vec<DirItem>> {
        let mut reader = self.read_dir(dir).await?;
        let mut all = Vec::new();
        loop {
            match reader.next().await {
                Ok(Some(mut items)) => all.append(&mut items),
                Ok(None) => return Ok(all),
                Err(lost) => self.note_lost(lost)?,
            }
        }
    }

    /// Records the loss of a part of a directory as a problem, or fails with its error.
    fn note_lost(&self, lost: Lost) -> Result<()> {
        match self.reports_damage() {
            true => self.note_error(lost.into()),
            false => Err(lost.error),
        }
    }

    /// Looks up a name in a directory, including `.` and `..`.
    pub(crate) async fn lookup(&self, dir: &Inode, name: &[u8]) -> Result<Option<InodeNumber>> {
        if matches!(name, b"." | b"..") && dir.kind() == Some(FileKind::Directory) {
            return if name == b"." { Ok(Some(dir.number)) } else { self.parent(dir).await.map(Some) };
        }
        // An encrypted directory's tree is ordered by stored names, not by displayed ones.
        let mut is_missed = false;
        if !dir.flags().contains(InodeFlags::ENCRYPT)
            && let Some(found) = self.lookup_indexed(dir, name).await?
        {
            if found.is_some() || !self.reports_damage() {
                return Ok(found);
            }
            is_missed = true;
        }
        let mut reader = self.read_names(dir, Some(name)).await?;
        let mut lost: Option<Lost> = None;
        loop {
            match reader.next().await {
                Ok(Some(items)) => {
                    if let Some(item) = items.into_iter().next() {
                        lost.map_or(Ok(()), |lost| self.note_lost(lost))?;
                        if is_missed {
                            let place = Place::HtreeNode(dir.number, FileBlock(0));
                            let rule = "0: their hashes lead to them";
                            self.note(Err(Corrupt::field(place, "names that the tree misses", 1, rule)))?;
                        }
                        return Ok(Some(item.inode));
                    }
                }
                // The lost part may contain the name.
                Ok(None) => return lost.map_or(Ok(None), |lost| Err(lost.into())),
                Err(part) if self.reports_damage() => lost = lost.or(Some(part)),
                Err(part) => return Err(part.error),
            }
        }
    }

    /// The inode that `..` names.
    async fn parent(&self, dir: &Inode) -> Result<InodeNumber> {
        if dir.flags().contains(InodeFlags::INLINE_DATA) {
            return Ok(inline::parent(dir));
        }
        let first = self.dir_block(&mut Mapper::default(), dir, FileBlock(0)).await?;
        let (filetype, max_inode) = self.entry_rules();
        for entry in DirEntries::new(&first, filetype, max_inode, dir.number, FileBlock(0)) {
            let entry = entry?;
            if entry.name == b".." {
                return Ok(entry.inode);
            }
        }
        let place = Place::DirectoryBlock(dir.number, FileBlock(0));
        Err(Corrupt::field(place, "..", 0, "an entry for the directory above").into())
    }

    /// The entries of one linear block, or those with one name, with the checksum verified. If
    /// damage is only recorded, returns what could be parsed.
    fn parse_dir_block(
        &self,
        dir: &Inode,
        index: FileBlock,
        block: &[u8],
        only: Option<&[u8]>,
    ) -> Result<Vec<DirItem>> {
        let place = Place::DirectoryBlock(dir.number, index);
        if let Some(seed) = self.superblock().checksum_seed() {
            let seed = dir.checksum_seed(seed);
            if self.is_index_node(dir, index, block) {
                let large_dir = self.superblock().incompat().contains(Incompat::LARGEDIR);
                let context = HtreeContext { dir: dir.number, block: index, checksums: true, large_dir };
                self.note_checksum(|| verify_dx_checksum(block, &context, seed))?;
            } else {
                self.note_checksum(|| verify_dirent_checksum(block, seed, place))?;
            }
        }
        let (filetype, max_inode) = self.entry_rules();
        self.items(dir, index, DirEntries::new(block, filetype, max_inode, dir.number, index), only)
    }

    fn inline_items(&self, dir: &Inode, only: Option<&[u8]>) -> Result<Vec<DirItem>> {
        let (filetype, max_inode) = self.entry_rules();
        let entries = inline_names(dir)?.as_directory()?.entries(filetype, max_inode);
        self.items(dir, FileBlock(0), entries, only)
    }

    /// Whether entries record the file type, and the highest inode they may refer to.
    fn entry_rules(&self) -> (bool, u32) {
        let sb = self.superblock();
        (sb.incompat().contains(Incompat::FILETYPE), sb.inodes_count())
    }

    /// Judges every entry, whether or not it is returned: a lookup meets the same damage as a
    /// listing.
    fn items<'a>(
        &self,
        dir: &Inode,
        index: FileBlock,
        entries: impl Iterator<Item = std::result::Result<DirEntry<'a>, Corrupt>>,
        only: Option<&[u8]>,
    ) -> Result<Vec<DirItem>> {
        let is_wanted = |name: &[u8]| only.is_none_or(|only| only == name);
        let mut items = Vec::new();
        for entry in entries {
            let entry = match entry {
                Ok(entry) => entry,
                Err(corrupt) => {
                    self.note(Err(corrupt))?;
                    continue;
                }
            };
            if entry.inode.0 == 0 || entry.name == b"." || entry.name == b".." {
                continue;
            }
            if dir.flags().contains(InodeFlags::ENCRYPT) {
                let name = shown_encrypted(entry.name);
                if is_wanted(&name) {
                    items.push(DirItem { name, inode: entry.inode, kind: entry.kind });
                }
                continue;
            }
            if entry.name.iter().any(|&b| b == b'/' || b == 0) {
                let place = Place::DirectoryBlock(dir.number, index);
                let rule = "the offset of a name without NUL and slash";
                self.note(Err(Corrupt::field(place, "name", entry.offset.to_u64(), rule)))?;
                continue;
            }
            if is_wanted(entry.name) {
                items.push(DirItem { name: entry.name.to_vec(), inode: entry.inode, kind: entry.kind });
            }
        }
        Ok(items)
    }

    /// Whether a directory block is the root or an inner node of its hash tree, which has no
    /// entries.
    fn is_index_node(&self, dir: &Inode, index: FileBlock, block: &[u8]) -> bool {
        let whole = u16::from_le_bytes([block[4], block[5]]);
        let spans =
            usize::from(whole) == block.len() || (block.len() == 65536 && (whole == 0 || whole == 65535));
        dir.flags().contains(InodeFlags::INDEX) && (index.0 == 0 || (block[..4] == [0; 4] && spans))
    }
}

impl DirReader {
    /// The directory.
    pub fn inode(&self) -> &Inode {
        &self.dir
    }

    fn is_inline(&self) -> bool {
        self.dir.flags().contains(InodeFlags::INLINE_DATA)
    }

    /// Volume blocks read so far.
    pub fn blocks_read(&self) -> u64 {
        self.blocks_read
    }

    /// The directory that `..` names, if it could be read. Known before the first name is returned.
    pub fn parent(&self) -> Option<InodeNumber> {
        self.parent
    }

    /// Handles blocks mapped past the directory's size. Returns whether they may contain names.
    fn meet_behind(&self, run: &Run) -> std::result::Result<bool, Lost> {
        // Old kernels preallocated some for the directory to grow into.
        let kept = u64::from(self.view.superblock().raw().s_prealloc_dir_blocks);
        // While the volume is being changed, the map may be newer than our copy of the inode.
        if self.view.is_live() || self.dir.links() == 0 || run.logical + run.blocks <= self.blocks + kept {
            return Ok(false);
        }
        self.note_in(BlockRange::at(run.logical, run.blocks), check::too_short(&self.dir))?;
        Ok(matches!(run.state, RunState::Written(_)))
    }

    /// Returns the names of the next non-empty block; `None` at the end.
    ///
    /// # Errors
    /// A part of the directory cannot be read. The next call continues after it.
    pub async fn next(&mut self) -> std::result::Result<Option<Vec<DirItem>>, Lost> {
        let first = match self.held.take() {
            Some(held) => held,
            None => self.next_part().await,
        };
        let Err(mut lost) = first else { return first };
        loop {
            match self.next_part().await {
                Err(next) if lost.joins(&next) => {}
                other => {
                    self.held = Some(other);
                    return Err(lost);
                }
            }
        }
    }

    /// Like [`Self::next`], but adjacent lost parts are not joined.
    async fn next_part(&mut self) -> Names {
        if let Some(inline) = self.inline.take() {
            return Ok(Some(inline));
        }
        loop {
            let Some((logical, at, left)) = self.run.take() else {
                let run = match self.walker.next(&self.view, &self.dir).await {
                    Ok(Some(run)) => run,
                    Ok(None) => {
                        if std::mem::replace(&mut self.is_behind, true) || self.is_inline() {
                            return Ok(None);
                        }
                        self.walker = RunWalker::new(BlockRange::from_block(self.blocks));
                        continue;
                    }
                    // No name in the directory is lost.
                    Err(Unmapped { blocks, error }) if self.is_behind => {
                        self.view.note_error(error).map_err(|error| self.lost(Unmapped { blocks, error }))?;
                        return Ok(None);
                    }
                    Err(unmapped) => return Err(self.lost(unmapped)),
                };
                match run.state {
                    RunState::Hole if self.is_behind => {}
                    RunState::Written(_) | RunState::Unwritten(_)
                        if self.is_behind && !self.meet_behind(&run)? => {}
                    RunState::Written(at) => self.run = Some((run.logical, at, run.blocks)),
                    RunState::Unwritten(at) => {
                        self.note_gap(&run, "blocks unwritten")?;
                        // As Linux does: no directory has unwritten blocks, so the mark is wrong.
                        self.run = Some((run.logical, at, run.blocks));
                    }
                    RunState::Hole => self.note_gap(&run, "blocks unmapped")?,
                }
                continue;
            };
            if left > 1 && logical % READ_AHEAD_BLOCKS == 0 {
                let ahead = left.min(READ_AHEAD_BLOCKS);
                self.view.buffers().prefetch((at.0..at.0 + ahead).map(VolumeBlock)).await;
            }
            if left > 1 {
                self.run = Some((logical + 1, VolumeBlock(at.0 + 1), left - 1));
            }
            self.blocks_read += 1;
            let items = match self.view.buffers().block(at).await {
                Ok(block) => {
                    if logical == 0 {
                        let inodes = self.view.superblock().inodes_count();
                        match check::first_entries(&block, self.dir.number, inodes) {
                            Ok(parent) => self.parent = Some(parent),
                            Err(corrupt) => self.note_in(BlockRange::one(0), corrupt)?,
                        }
                    }
                    let index = FileBlock(logical.fit_u32());
                    self.view.parse_dir_block(&self.dir, index, &block, self.only.as_deref())
                }
                Err(error) => Err(error),
            };
            let blocks = BlockRange::one(logical);
            let items = items.map_err(|error| self.lost(Unmapped { blocks, error }))?;
            if !items.is_empty() {
                return Ok(Some(items));
            }
        }
    }

    /// Notes that blocks which a directory must have are missing or marked as unwritten.
    fn note_gap(&self, run: &Run, field: &'static str) -> std::result::Result<(), Lost> {
        let place = Place::DirectoryBlock(self.dir.number, FileBlock(run.logical.fit_u32()));
        let blocks = BlockRange::at(run.logical, run.blocks);
        self.note_in(blocks, Corrupt::field(place, field, run.blocks, "0"))
    }

    /// Notes damage to these blocks. If damage is an error, they are lost.
    fn note_in(&self, blocks: BlockRange, corrupt: Corrupt) -> std::result::Result<(), Lost> {
        self.view.note(Err(corrupt)).map_err(|error| self.lost(Unmapped { blocks, error }))
    }

    fn lost(&self, part: Unmapped) -> Lost {
        let lost = part.lost(self.view.superblock(), u64::MAX);
        Lost { directory: Some(self.dir.number), ..lost }
    }
}

/// Makes an encrypted name, which may contain any bytes, usable in a path: slash, NUL and the
/// percent sign become `%2F`, `%00` and `%25`.
fn shown_encrypted(stored: &[u8]) -> Vec<u8> {
    let mut shown = Vec::with_capacity(stored.len());
    for &byte in stored {
        match byte {
            b'/' => shown.extend_from_slice(b"%2F"),
            0 => shown.extend_from_slice(b"%00"),
            b'%' => shown.extend_from_slice(b"%25"),
            byte => shown.push(byte),
        }
    }
    shown
}

impl DirItem {
    /// The name, safe to print.
    pub fn quoted(&self) -> String {
        quote(&self.name)
    }
}
