//! Files of a volume open for reading, with their pages cached.

use crate::file::cache_errors::refusal;
use crate::map::Mapper;
use crate::meta::CHUNK_BYTES;
use crate::view::View;
use crate::{Error, Result, Run, RunState};
use extant_block::Sector;
use extant_cache::accounts::{Account, AccountConfig, Charge};
use extant_cache::{
    Answer, Backing, ByteRange, CachedOpenFile, DirtyRun, Disk, MAX_FILE_BYTES, Mapping, Placed, ReadExtent,
    ReadFrom, WrittenRun,
};
use extant_format::{Inode, InodeNumber, UintExt, VolumeBlock};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Memory of a file in the table without its pages: itself, and the cache's description of it.
const MEMORY_BYTES: u64 = size_of::<StoredContents>() as u64 + 768;
/// At most one part in this many of the cache's budget describes files.
const SHARE: u64 = 8;
/// Files that are kept even if the budget is tiny.
const KEPT_MIN: usize = 16;
/// Smallest budget with which a small file's neighbours are read along with it.
const NEIGHBOURS_MIN_BYTES: u64 = 16 << 20;

/// Files that have been read, by inode. Pages stay cached after a close so that the next open finds
/// them.
#[derive(Debug)]
pub(crate) struct StoredFiles {
    disk: Disk,
    /// Charges everything except pages.
    account: Account,
    /// Maximum number of files kept, with their pages. Beyond that, the least recently opened half
    /// is dropped.
    kept: usize,
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    files: BTreeMap<InodeNumber, Entry>,
    /// Number of opens so far; serves as the table's clock.
    opens: u64,
}

#[derive(Debug)]
struct Entry {
    pages: Mapping,
    /// Value of `opens` at its last open.
    used: u64,
    _charge: Charge,
}

impl StoredFiles {
    pub(crate) fn new(disk: &Disk) -> Self {
        let limit_bytes = disk.budget_bytes() / SHARE;
        let account = disk.account(AccountConfig { name: "files", limit_bytes, pinned_bytes: 0 });
        let kept = (limit_bytes / MEMORY_BYTES).to_usize();
        Self { disk: disk.clone(), account, kept: kept.max(KEPT_MIN), table: Mutex::default() }
    }

    /// Opens a file whose contents are in blocks. Returns `None` if it is too large for the cache.
    pub(crate) fn open(&self, view: &View, inode: &Inode) -> Option<CachedOpenFile> {
        if inode.size() > MAX_FILE_BYTES {
            return None;
        }
        let mut table = self.table.lock();
        table.opens += 1;
        let used = table.opens;
        if let Some(entry) = table.files.get_mut(&inode.number) {
            entry.used = used;
            return Some(entry.pages.open());
        }
        let contents = StoredContents {
            view: view.clone(),
            inode: inode.clone(),
            with_neighbours: inode.size() <= CHUNK_BYTES && self.disk.budget_bytes() >= NEIGHBOURS_MIN_BYTES,
            mapper: Mutex::default(),
        };
        let pages = self.disk.mapping(Arc::new(contents), inode.number.0.into(), inode.size());
        let opened = pages.open();
        let entry = Entry { pages, used, _charge: self.account.charge(MEMORY_BYTES) };
        table.files.insert(inode.number, entry);
        let evicted = table.evict(self.kept);
        drop(table);
        drop(evicted);
        Some(opened)
    }
}

impl Table {
    /// Removes the least recently opened files if there are more than `kept`. Drop them without
    /// holding the lock.
    fn evict(&mut self, kept: usize) -> Vec<Entry> {
        if self.files.len() <= kept {
            return Vec::new();
        }
        let mut by_use: Vec<_> = self.files.iter().map(|(&number, entry)| (entry.used, number)).collect();
        by_use.sort_unstable();
        by_use.truncate(kept / 2);
        by_use.iter().filter_map(|(_, number)| self.files.remove(number)).collect()
    }
}

/// One file's contents, as the cache's backing for its pages.
#[derive(Debug)]
struct StoredContents {
    view: View,
    inode: Inode,
    /// The neighbouring blocks will be wanted soon.
    with_neighbours: bool,
    /// The part of the map read last. A concurrent reader walks the map on its own.
    mapper: Mutex<Option<Mapper>>,
}

impl StoredContents {
    /// Where the start of a range is, if the part of the map read last contains it and only the
    /// device has its bytes.
    fn recall(&self, range: ByteRange) -> Option<ReadExtent> {
        let sb = self.view.superblock();
        let block = range.start >> sb.block_size().log2();
        let run = self.mapper.lock().as_ref()?.recall(sb, &self.inode, block)?;
        let is_plain = match run.state {
            RunState::Written(first) => {
                !self.with_neighbours && self.view.buffers().clean_run(first, run.blocks) > 0
            }
            _ => true,
        };
        is_plain.then(|| self.extent(range, run))
    }

    async fn find(&self, range: ByteRange) -> Result<ReadExtent> {
        let bits = self.view.superblock().block_size().log2();
        let (block, skip) = (range.start >> bits, range.start & ((1 << bits) - 1));
        let mut mapper = self.mapper.lock().take().unwrap_or_default();
        let run = mapper.map(&self.view, &self.inode, block).await;
        *self.mapper.lock() = Some(mapper);
        let run = run?;
        let RunState::Written(first) = run.state else { return Ok(self.extent(range, run)) };
        let buffers = self.view.buffers();
        let clean = buffers.clean_run(first, run.blocks);
        if clean == 0 {
            // The journal has a newer copy.
            let block = buffers.block(first).await?;
            return Ok(inline_extent(&block[skip.to_usize()..]));
        }
        if self.with_neighbours {
            // After an error read block by block: a neighbour may be the bad one.
            let blocks = buffers.chunk_run(first, clean);
            if blocks > 0
                && let Ok(contents) = buffers.contents(first, blocks).await
            {
                return Ok(inline_extent(&contents[skip.to_usize()..]));
            }
        }
        Ok(self.extent(range, run))
    }

    /// The start of a range in a run. The journal has a newer copy of no block of the run, or only
    /// of later ones.
    fn extent(&self, range: ByteRange, run: Run) -> ReadExtent {
        let bits = self.view.superblock().block_size().log2();
        let skip = range.start & ((1 << bits) - 1);
        // A file with more blocks would overflow a byte count.
        let bytes = |blocks: u64| (blocks.min(1 << 40) << bits) - skip;
        match run.state {
            RunState::Written(first) => {
                let clean = self.view.buffers().clean_run(first, run.blocks);
                ReadExtent { from: ReadFrom::Device(sector(first, bits, skip)), bytes: bytes(clean) }
            }
            _ => ReadExtent { from: ReadFrom::Hole, bytes: bytes(run.blocks) },
        }
    }
}

fn sector(block: VolumeBlock, bits: u32, skip_bytes: u64) -> Sector {
    Sector((block.0 << (bits - 9)) + skip_bytes / Sector::BYTES)
}

fn inline_extent(bytes: &[u8]) -> ReadExtent {
    ReadExtent { from: ReadFrom::Inline(bytes.into()), bytes: bytes.len().to_u64() }
}

impl Backing for StoredContents {
    fn block_bytes(&self) -> u32 {
        self.view.superblock().block_size().bytes()
    }

    fn map_read(&self, range: ByteRange) -> Answer<'_, ReadExtent> {
        match self.recall(range) {
            Some(extent) => Answer::ok(extent),
            None => Answer::later(async move { self.find(range).await.map_err(refusal) }),
        }
    }

    fn prepare_write<'a>(&'a self, _run: DirtyRun<'a>) -> Answer<'a, Placed> {
        Answer::err(refusal(Error::ReadOnly))
    }

    fn finish_write<'a>(&'a self, _run: &'a WrittenRun) -> Answer<'a, ()> {
        Answer::err(refusal(Error::ReadOnly))
    }
}
