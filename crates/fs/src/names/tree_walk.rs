//! Walks over everything below a directory, whatever the volume contains.
//!
//! A damaged or hostile volume can lead a naive walker in circles, or into far more names than it
//! has blocks for. This one enters every directory once, goes at most [`DEPTH_MAX`] deep, and reads
//! no more directory blocks than the volume has.

use crate::dir::check::elsewhere;
use crate::view::View;
use crate::{DirItem, DirReader, Error, Result};
use extant_format::{Corrupt, FileKind, Inode, InodeNumber, Place, UintExt};
use std::collections::{BTreeSet, VecDeque};

/// Maximum depth of a directory that a walk enters, counted from where it began.
pub const DEPTH_MAX: usize = 2048;
/// Maximum length of a path in a walk, in bytes.
pub const PATH_MAX: usize = 16 << 10;
/// Memory for the names of one walk, in bytes. Larger directories are returned in sorted batches.
const NAMES_BYTES: usize = 64 << 20;
/// Maximum number of lost parts of a directory reported for each batch of its names.
const LOST_MAX: usize = 1000;
/// How many names have their inodes prefetched at a time, and how many directories their blocks.
const WINDOW_INODES: usize = 4096;
const WINDOW_DIRS: usize = 512;

/// Options of a walk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WalkOptions {
    /// Read every inode. Otherwise, only those of directories and of names whose entry lacks the
    /// file type.
    pub inodes: bool,
    /// Do not enter directories deeper than this; 1 is the directory itself.
    pub depth: Option<usize>,
    /// Read every directory completely before returning its first name, however large it is, so
    /// that all its names are in order.
    pub whole_directories: bool,
}

/// A name found on a walk.
#[derive(Clone, Debug)]
pub struct WalkEntry {
    /// The name.
    pub name: Vec<u8>,
    /// 1 for a name in the directory where the walk began.
    pub depth: usize,
    /// The inode.
    pub number: InodeNumber,
    /// The inode's kind: from the inode if that was read, otherwise from the entry.
    pub kind: Option<FileKind>,
    /// The inode, if it was read.
    pub inode: Option<Inode>,
    /// Whether it is the last name of its directory.
    pub is_last: bool,
}

/// A walk below one directory: depth first, with each directory's names in byte order.
#[derive(Debug)]
pub struct Walk {
    view: View,
    options: WalkOptions,
    stack: Vec<Level>,
    path: Vec<u8>,
    seen: BTreeSet<InodeNumber>,
    /// The directory returned last, to be entered next.
    enter: Option<Inode>,
    failures: VecDeque<WalkError>,
    names_bytes: usize,
    dir_blocks: u64,
}

/// A name, a directory, or part of a directory ([`Error::Lost`]) that could not be read. The walk
/// continues after it.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{}: {error}", crate::quote(path))]
pub struct WalkError {
    /// Path relative to where the walk began; empty for that directory itself.
    pub path: Vec<u8>,
    /// The error.
    pub error: Error,
}

#[derive(Debug)]
struct Level {
    reader: DirReader,
    names: Names,
    next: usize,
    /// Names before this index have been prefetched.
    prefetched: usize,
    path_len: usize,
    /// The directory that holds this one's name, if known and not yet compared with `..`.
    above: Option<InodeNumber>,
    /// Names that were read, but are too large for the current batch.
    pending: Option<Vec<DirItem>>,
    finished: bool,
}

/// Names stored in one allocation.
#[derive(Debug, Default)]
struct Names {
    bytes: Vec<u8>,
    items: Vec<NameItem>,
}

#[derive(Clone, Copy, Debug)]
struct NameItem {
    at: usize,
    len: u16,
    kind: Option<FileKind>,
    number: InodeNumber,
}

impl Names {
    fn push(&mut self, item: &DirItem) {
        let at = self.bytes.len();
        // At most 255 bytes, or three times that for encrypted names as displayed.
        let len = item.name.len().fit_u16();
        self.bytes.extend_from_slice(&item.name);
        self.items.push(NameItem { at, len, kind: item.kind, number: item.inode });
    }

    fn name(&self, item: &NameItem) -> &[u8] {
        &self.bytes[item.at..item.at + usize::from(item.len)]
    }

    fn memory(&self) -> usize {
        self.bytes.len() + self.items.len() * size_of::<NameItem>()
    }

    fn sort(&mut self) {
        let mut items = std::mem::take(&mut self.items);
        items.sort_by(|a, b| self.name(a).cmp(self.name(b)));
        self.items = items;
    }
}

impl Walk {
    /// Begins a walk below a directory.
    ///
    /// # Errors
    /// [`Error::NotADirectory`].
    pub(crate) fn new(view: &View, dir: &Inode, options: WalkOptions) -> Result<Self> {
        if dir.kind() != Some(FileKind::Directory) {
            return Err(Error::NotADirectory(format!("inode {}", dir.number)));
        }
        Ok(Self {
            view: view.clone(),
            options,
            stack: Vec::new(),
            path: Vec::new(),
            seen: BTreeSet::from([dir.number, InodeNumber::ROOT]),
            enter: Some(dir.clone()),
            failures: VecDeque::new(),
            names_bytes: 0,
            dir_blocks: 0,
        })
    }

    /// Path of the last returned entry, relative to where the walk began, without a leading slash.
    pub fn path(&self) -> &[u8] {
        &self.path
    }

    /// Does not enter the directory returned last.
    pub fn skip(&mut self) {
        self.enter = None;
    }

    /// Returns the next name, or `None` at the end. A file or directory that cannot be read is
    /// returned once as an error, and the walk continues.
    pub async fn next(&mut self) -> Option<std::result::Result<WalkEntry, WalkError>> {
        loop {
            if let Some(failure) = self.failures.pop_front() {
                return Some(Err(failure));
            }
            if let Some(dir) = self.enter.take() {
                self.open_level(&dir).await;
                continue;
            }
            let level = self.stack.last_mut()?;
            if level.next == level.names.items.len() {
                self.names_bytes -= level.names.memory();
                level.names = Names::default();
                if level.finished {
                    self.stack.pop();
                } else {
                    self.load_batch().await;
                }
                continue;
            }
            if level.next >= level.prefetched {
                self.prefetch().await;
            }
            if let Some(entry) = self.take_entry().await {
                return Some(Ok(entry));
            }
        }
    }

    fn fail(&mut self, error: Error) {
        self.failures.push_back(WalkError { path: self.path.clone(), error });
    }

    /// Records a problem or fails with it, depending on how the volume was opened.
    fn note(&mut self, corrupt: Corrupt) {
        if let Err(error) = self.view.note(Err(corrupt)) {
            self.fail(error);
        }
    }

    async fn open_level(&mut self, dir: &Inode) {
        match self.view.read_dir(dir).await {
            Err(error) => self.fail(error),
            Ok(reader) => {
                let path_len = self.path.len();
                let above = self.stack.last().map(|level| level.reader.inode().number);
                self.stack.push(Level {
                    reader,
                    names: Names::default(),
                    next: 0,
                    prefetched: 0,
                    path_len,
                    above,
                    pending: None,
                    finished: false,
                });
                self.load_batch().await;
            }
        }
    }

    /// Reads names of the innermost directory until it ends or the batch is full.
    async fn load_batch(&mut self) {
        // Half of what is left, to leave room for deeper directories.
        let room = match self.options.whole_directories {
            true => usize::MAX,
            false => (NAMES_BYTES.saturating_sub(self.names_bytes) / 2).max(64 << 10),
        };
        let blocks_count = self.view.superblock().blocks_count();
        let mut failed: Vec<Error> = Vec::new();
        let Some(level) = self.stack.last_mut() else { return };
        (level.next, level.prefetched) = (0, 0);
        loop {
            if let Some(items) = level.pending.take() {
                items.iter().for_each(|item| level.names.push(item));
            }
            let before = level.reader.blocks_read();
            match level.reader.next().await {
                Ok(Some(items)) => level.pending = Some(items),
                Ok(None) => level.finished = true,
                // More names may follow a lost part.
                Err(lost) if failed.len() < LOST_MAX => failed.push(lost.into()),
                Err(_) => {}
            }
            self.dir_blocks += level.reader.blocks_read() - before;
            if self.dir_blocks > blocks_count {
                let place = Place::Inode(level.reader.inode().number);
                let rule = "at most the volume's blocks: directories share blocks";
                failed.push(Corrupt::field(place, "directory blocks so far", self.dir_blocks, rule).into());
                level.finished = true;
            }
            if level.finished || level.names.memory() >= room {
                break;
            }
        }
        level.names.sort();
        self.names_bytes += level.names.memory();
        let (path_len, dir, parent) = (level.path_len, level.reader.inode().number, level.reader.parent());
        let is_elsewhere =
            level.above.take().is_some_and(|above| parent.is_some_and(|parent| parent != above));
        if let Some(parent) = parent.filter(|_| is_elsewhere && !self.view.is_live()) {
            self.path.truncate(path_len);
            self.note(elsewhere(dir, parent));
        }
        if !failed.is_empty() {
            self.path.truncate(path_len);
            failed.into_iter().for_each(|error| self.fail(error));
        }
    }

    /// Prefetches what the next names of the innermost directory will need.
    async fn prefetch(&mut self) {
        let inodes_wanted = self.options.inodes;
        let enters = self.options.depth.is_none_or(|depth| self.stack.len() < depth);
        let Some(level) = self.stack.last_mut() else { return };
        let mut wanted = Vec::new();
        let mut dirs = Vec::new();
        let mut end = level.next;
        for item in &level.names.items[level.next..] {
            if dirs.len() >= WINDOW_DIRS || wanted.len() >= WINDOW_INODES {
                break;
            }
            end += 1;
            let is_dir = item.kind == Some(FileKind::Directory);
            if is_dir && enters && !self.seen.contains(&item.number) {
                dirs.push(item.number);
            }
            if inodes_wanted || is_dir || item.kind.is_none() {
                wanted.push(item.number);
            }
        }
        level.prefetched = end;
        if wanted.len() > 1 {
            self.view.prefetch_inodes(&wanted).await;
        }
        if dirs.len() > 1 {
            self.view.prefetch_dirs(&dirs).await;
        }
    }

    /// Takes the next name of the innermost directory. Returns `None` if that is lost, and records
    /// its path.
    async fn take_entry(&mut self) -> Option<WalkEntry> {
        let depth = self.stack.len();
        let level = self.stack.last_mut()?;
        let item = level.names.items[level.next];
        let name = level.names.name(&item).to_vec();
        level.next += 1;
        let twice = level.next >= 2 && level.names.name(&level.names.items[level.next - 2]) == name;
        let dir = level.reader.inode().number;
        let is_last = level.finished && level.next == level.names.items.len();
        self.path.truncate(level.path_len);
        if !self.path.is_empty() {
            self.path.push(b'/');
        }
        self.path.extend_from_slice(&name);
        if twice {
            let rule = "1: names within a directory differ";
            self.fail(Corrupt::field(Place::Inode(dir), "entries of one name", 2, rule).into());
            return None;
        }
        let mut entry = WalkEntry { name, depth, number: item.number, kind: item.kind, inode: None, is_last };
        let first = self.view.superblock().first_inode();
        if item.number < first && item.number != InodeNumber::ROOT {
            let (place, value) = (Place::Inode(item.number), item.number.0.into());
            self.fail(Corrupt::field(place, "a name's inode", value, "one that is not reserved").into());
            return None;
        }
        if self.options.inodes || matches!(item.kind, None | Some(FileKind::Directory)) {
            match self.view.inode(item.number).await {
                Err(error) => {
                    self.fail(error);
                    return None;
                }
                Ok(inode) => self.judge(&mut entry, inode)?,
            }
        }
        if entry.kind == Some(FileKind::Directory) {
            self.plan_descent(&entry)?;
        }
        Some(entry)
    }

    /// Checks that an inode is consistent with its name's entry.
    fn judge(&mut self, entry: &mut WalkEntry, inode: Inode) -> Option<()> {
        let place = Place::Inode(entry.number);
        let Some(kind) = inode.kind() else {
            let corrupt = Corrupt::field(place, "i_mode", inode.mode().into(), "that of a kind of file");
            self.fail(corrupt.into());
            return None;
        };
        if inode.links() == 0 {
            self.note(Corrupt::field(place, "i_links_count", 0, "at least 1, as a name leads here"));
        }
        if let Some(told) = entry.kind.filter(|&told| told != kind) {
            let value = told.dirent_code().into();
            self.note(Corrupt::field(place, "file_type of a name", value, "that of i_mode"));
        }
        entry.kind = Some(kind);
        entry.inode = Some(inode);
        Some(())
    }

    fn plan_descent(&mut self, entry: &WalkEntry) -> Option<()> {
        let place = Place::Inode(entry.number);
        if !self.seen.insert(entry.number) {
            let corrupt = Corrupt::field(place, "names of the directory", 2, "1: it was reached before");
            self.fail(corrupt.into());
            return None;
        }
        if self.options.depth.is_some_and(|depth| entry.depth >= depth) {
            return Some(());
        }
        if entry.depth >= DEPTH_MAX || self.path.len() > PATH_MAX {
            let deep = format!("a directory below {DEPTH_MAX} others or a path of 16 KiB ({})", entry.number);
            self.fail(Error::Unsupported { feature: deep, hint: "; what it holds is left out" });
            return Some(());
        }
        self.enter = entry.inode.clone();
        Some(())
    }
}
