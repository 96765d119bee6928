//! The table of files whose contents are in memory.

use super::cache_errors::cache_error;
use super::contents::{Contents, MEMORY_BYTES, Unlogged};
use super::open_file::{FileOptions, OpenFile};
use super::stored::check_size;
use crate::alloc::{GivesBack, WantsSpace};
use crate::meta::InodeCell;
use crate::writer::Writer;
use crate::xattr::inline_data;
use crate::{Error, Result};
use extant_cache::accounts::{Account, AccountConfig, Shrink};
use extant_cache::{ByteRange, CacheError, Disk, Mapping};
use extant_format::{FileKind, Inode, InodeFlags, InodeNumber, Place, UintExt};
use parking_lot::Mutex;
use rustc_hash::FxBuildHasher;
use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Weak};

/// Files in memory above which idle ones without openers are evicted, down to half as many; more if
/// they take at most one part in [`SHARE`] of the cache's budget.
const KEPT_MIN: usize = 4096;
const SHARE: u64 = 8;
/// Memory charged for files above which maps are forgotten, even if memory is plentiful.
const LIMIT_BYTES: u64 = 64 << 20;
/// Maximum number of files examined by one call to shrink.
const SHRINK_LOOKS: usize = 512;

/// Files with pages in memory, by inode.
#[derive(Debug)]
pub(crate) struct FilesInMemory {
    writer: Arc<Writer>,
    disk: Disk,
    /// Charges the files' maps and everything else except pages.
    account: Account,
    kept: usize,
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    files: HashMap<InodeNumber, FileInMemory, FxBuildHasher>,
    /// Incremented with every open.
    turn: u64,
    /// The file at which the next call to shrink starts.
    hand: usize,
    /// Files added since the last eviction scan.
    came: usize,
    /// Set once the volume is dropped. No file may be added then, because files hold references
    /// that keep the table alive.
    is_cleared: bool,
}

#[derive(Clone, Debug)]
struct FileInMemory {
    contents: Arc<Contents>,
    mapping: Mapping,
    used: u64,
}

impl FileInMemory {
    /// Whether a sync would have nothing to write, wait for or log.
    fn is_idle(&self) -> bool {
        self.mapping.is_settled() && self.contents.unlogged() == Unlogged::Idle
    }
}

impl FilesInMemory {
    /// Creates an empty table with pages on `disk`. Its files give space back when the volume is
    /// full.
    pub(crate) fn new(writer: &Arc<Writer>, disk: &Disk) -> Arc<Self> {
        let account = disk.account(AccountConfig {
            name: "files",
            limit_bytes: LIMIT_BYTES,
            pinned_bytes: LIMIT_BYTES,
        });
        let kept = ((disk.budget_bytes() / SHARE / MEMORY_BYTES).to_usize()).max(KEPT_MIN);
        let (writer, disk, table) = (writer.clone(), disk.clone(), Mutex::default());
        let files = Arc::new(Self { writer, disk, account, kept, table });
        files.account.set_shrinker(Arc::downgrade(&files) as Weak<dyn Shrink>);
        files.writer.alloc.add_giver(Arc::new(WriteBackGiver(Arc::downgrade(&files))));
        files.writer.alloc.add_seeker(Arc::new(Unplaced(Arc::downgrade(&files))));
        files
    }

    /// Opens a regular file.
    ///
    /// # Errors
    /// It is not a regular file, or its contents are damaged or encrypted.
    pub(crate) fn open(&self, cell: &Arc<InodeCell>, options: FileOptions) -> Result<OpenFile> {
        cell.read(|inode| match inode.kind() {
            Some(FileKind::Regular) if inode.flags().contains(InodeFlags::ENCRYPT) => {
                Err(Error::Encrypted(inode.number))
            }
            Some(FileKind::Regular) if inode.flags().contains(InodeFlags::INLINE_DATA) => {
                inline_data(inode).map(drop).map_err(Error::from)
            }
            Some(FileKind::Regular) => check_size(inode, self.writer.store.shape()).map_err(Error::from),
            Some(FileKind::Directory) => Err(Error::IsADirectory(format!("inode {}", inode.number))),
            Some(FileKind::CharDevice | FileKind::BlockDevice | FileKind::Fifo | FileKind::Socket) => {
                Err(Error::Special(format!("inode {}", inode.number)))
            }
            _ => Err(Error::NotAFile(format!("inode {}", inode.number))),
        })?;
        let mut table = self.table.lock();
        if table.is_cleared {
            return Err(Error::ReadOnly);
        }
        table.turn += 1;
        let turn = table.turn;
        let before = table.files.len();
        table.files.entry(cell.number()).or_insert_with(|| self.entry(cell));
        table.came += table.files.len() - before;
        let entry = table.files.get_mut(&cell.number()).expect("it is there");
        // The number has been reused for another inode.
        if !Arc::ptr_eq(&entry.contents.cell, cell) {
            *entry = self.entry(cell);
        }
        entry.used = turn;
        cell.set_has_contents(true);
        let file = OpenFile::new(entry.contents.clone(), entry.mapping.clone(), options);
        let (gone, unlogged) = table.evict(self.kept);
        drop(table);
        drop(gone);
        // Files whose times are logged now can be evicted next time.
        let _ = unlogged.iter().try_for_each(|contents| contents.try_log_times());
        Ok(file)
    }

    /// Bytes charged for files in memory.
    #[cfg(test)]
    pub(crate) fn charged_bytes(&self) -> u64 {
        self.account.charged_bytes()
    }

    fn entry(&self, cell: &Arc<InodeCell>) -> FileInMemory {
        let contents = Arc::new(Contents::new(self.writer.clone(), cell.clone(), &self.account));
        let size = cell.read(Inode::size);
        let mapping = self.disk.mapping(contents.clone(), cell.number().0.into(), size);
        FileInMemory { contents, mapping, used: 0 }
    }

    /// Size of a file in memory, which may be ahead of the recorded one, and its blocks beyond the
    /// recorded ones: delayed blocks minus the old blocks of an emptied file.
    pub(crate) fn live_size(&self, cell: &InodeCell) -> Option<(u64, i64)> {
        if !cell.has_contents() {
            return None;
        }
        let table = self.table.lock();
        let entry = table.files.get(&cell.number())?;
        std::ptr::eq(&*entry.contents.cell, cell)
            .then(|| (entry.mapping.size(), entry.contents.unrecorded_blocks()))
    }

    /// Writes back all dirty data and waits until it is logged. Durable only after a commit.
    ///
    /// # Errors
    /// The first error encountered; the other files are written regardless.
    pub(crate) async fn write_back(&self) -> Result<()> {
        let mut busy: Vec<FileInMemory> =
            self.table.lock().files.values().filter(|entry| !entry.is_idle()).cloned().collect();
        busy.sort_unstable_by_key(|entry| entry.contents.number());
        let mappings: Vec<_> = busy.iter().map(|entry| entry.mapping.clone()).collect();
        let results = self.disk.write_back(&mappings).await;
        let mut all = Ok(());
        for (FileInMemory { contents, .. }, written) in busy.iter().zip(results) {
            let emptied = match &written {
                Ok(()) => contents.log_emptied().await,
                Err(_) => Ok(()),
            };
            let logged = contents.log_times(false).await;
            all = all.and(written.map_err(cache_error)).and(emptied).and(logged);
        }
        all
    }

    /// Files that a sync has work for, with their sizes, as input for [`Self::record_sizes`].
    pub(crate) fn sizes(&self) -> Vec<(Arc<Contents>, Mapping, u64)> {
        let sizes =
            |entry: &FileInMemory| (entry.contents.clone(), entry.mapping.clone(), entry.mapping.size());
        let mut busy: Vec<_> =
            self.table.lock().files.values().filter(|entry| !entry.is_idle()).map(sizes).collect();
        busy.sort_unstable_by_key(|(contents, ..)| contents.number());
        busy
    }

    /// Records these sizes for files that [`Self::write_back`] has written since. Earlier blocks
    /// may still belong to other writers, or have been abandoned. The caller holds no lock of an
    /// inode.
    ///
    /// # Errors
    /// The first error encountered; the other sizes are recorded regardless.
    pub(crate) async fn record_sizes(&self, sizes: &[(Arc<Contents>, Mapping, u64)]) -> Result<()> {
        let mut all = Ok(());
        for (contents, mapping, size) in sizes {
            let write = || async { mapping.write_back(ByteRange::ALL).await.map_err(cache_error) };
            all = all.and(contents.reach(*size, mapping, write).await);
        }
        all
    }

    /// Waits for content changes in progress. If no new ones may begin, [`Self::write_back`] then
    /// sees every acknowledged change.
    pub(crate) async fn wait_for_changes(&self) {
        let mut cells: Vec<_> =
            self.table.lock().files.values().map(|entry| entry.contents.cell.clone()).collect();
        cells.sort_unstable_by_key(|cell| cell.number());
        for cell in cells {
            drop(cell.write_lock().await);
        }
    }

    /// Whether no file is open or has data to write back.
    pub(crate) fn is_empty(&self) -> bool {
        self.table.lock().files.is_empty()
    }

    /// Whether a file's map may change even while its inode is locked: it is open or has data to
    /// write back.
    pub(crate) fn may_change(&self, cell: &InodeCell) -> bool {
        let is_busy = || {
            let table = self.table.lock();
            table.files.get(&cell.number()).is_some_and(|entry| !entry.is_idle())
        };
        cell.has_contents() && (cell.openers() > 0 || is_busy())
    }

    /// Forgets all files and their pages, dirty or not, because the volume is being dropped.
    pub(crate) fn clear(&self) {
        let files = {
            let mut table = self.table.lock();
            table.is_cleared = true;
            std::mem::take(&mut table.files)
        };
        for FileInMemory { mapping, .. } in files.into_values() {
            mapping.discard();
        }
    }

    /// Writes back one file. A rename over an existing file does this before taking its locks.
    ///
    /// # Errors
    /// The data could not be written.
    pub(crate) async fn write_back_one(&self, cell: &InodeCell) -> Result<()> {
        let entry = self.table.lock().files.get(&cell.number()).cloned();
        match entry {
            Some(entry) => entry.contents.write_back(&entry.mapping).await,
            None => Ok(()),
        }
    }

    /// Forgets a file that is being deleted. Dirty pages are dropped, and no write is in progress
    /// when this returns.
    pub(crate) async fn forget(&self, cell: &InodeCell) -> Result<()> {
        let entry = self.table.lock().files.get(&cell.number()).cloned();
        match entry {
            Some(entry) => Box::pin(self.forget_entry(entry)).await,
            None => Ok(()),
        }
    }

    async fn forget_entry(&self, entry: FileInMemory) -> Result<()> {
        entry.mapping.set_size(0).await.map_err(cache_error)?;
        // This also covers a deletion that was dropped at this point earlier: the new one finds the
        // file and waits.
        entry.mapping.wait_written(ByteRange::ALL).await;
        // Locked, so as not to overlap with a removal of its old contents. The caller frees those.
        let edits = entry.contents.edits.write().await;
        entry.contents.forget();
        drop(edits);
        self.table.lock().files.remove(&entry.contents.number());
        Ok(())
    }
}

impl Table {
    /// Removes unused clean files beyond the number kept, to be dropped without the lock. Also
    /// returns those that could be removed if their times were logged.
    fn evict(&mut self, kept: usize) -> (Vec<FileInMemory>, Vec<Arc<Contents>>) {
        // Not at every open, since each scan visits files that cannot be evicted again.
        if self.files.len() <= kept || self.came < kept / 2 {
            return Default::default();
        }
        self.came = 0;
        // A second mapping next to a write in flight would read the block's old contents, and might
        // write them back first.
        let unused = |entry: &FileInMemory| entry.contents.cell.openers() == 0 && entry.mapping.is_settled();
        let (mut idle, mut unlogged) = (Vec::new(), Vec::new());
        for (&number, entry) in self.files.iter().filter(|(_, entry)| unused(entry)) {
            match entry.contents.unlogged() {
                Unlogged::Idle => idle.push((entry.used, number)),
                Unlogged::Times => unlogged.push(entry.contents.clone()),
                Unlogged::Busy => {}
            }
        }
        idle.sort_unstable();
        unlogged.sort_unstable_by_key(|contents| contents.number());
        idle.truncate(self.files.len() - kept / 2);
        let gone: Vec<_> = idle.iter().filter_map(|(_, number)| self.files.remove(number)).collect();
        gone.iter().for_each(|entry: &FileInMemory| entry.contents.cell.set_has_contents(false));
        (gone, unlogged)
    }
}

impl Shrink for FilesInMemory {
    /// Forgets the maps of files without openers. Their pages stay.
    fn shrink(&self, bytes: u64) -> u64 {
        let mut table = self.table.lock();
        let (hand, files) = (table.hand, table.files.len());
        let (mut freed, mut looks) = (0, 0);
        for entry in table.files.values().skip(hand).take(SHRINK_LOOKS) {
            looks += 1;
            if entry.mapping.is_settled() {
                freed += entry.contents.forget_map();
            }
            if freed >= bytes {
                break;
            }
        }
        table.hand = if hand + looks < files { hand + looks } else { 0 };
        freed
    }
}

/// Gives space back by writing back delayed blocks, which frees what was reserved in excess.
#[derive(Debug)]
struct WriteBackGiver(Weak<FilesInMemory>);

impl GivesBack for WriteBackGiver {
    fn give_back(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(async {
            if let Some(files) = self.0.upgrade() {
                // Syncs of the files report failures.
                let _ = files.write_back().await;
            }
        })
    }
}

/// Retries write-back of files that found no place for their data. Writes reserve their space, but
/// that may have been in a group that turned out to be damaged.
#[derive(Debug)]
struct Unplaced(Weak<FilesInMemory>);

impl WantsSpace for Unplaced {
    fn space_returned(&self) {
        // Not if the file itself is damaged or the journal has stopped.
        let is_for_space = |error: &CacheError| match cache_error(error.clone()) {
            Error::NoSpace | Error::Io(_) => true,
            Error::Corrupt(what) => matches!(what.place, Place::GroupDescriptor(_) | Place::BlockBitmap(_)),
            _ => false,
        };
        if let Some(files) = self.0.upgrade() {
            files.disk.retry(is_for_space);
        }
    }
}
