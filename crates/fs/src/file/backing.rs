//! The cache's backing for file contents: where to read, where to write back, and what to log when
//! a write ends.
//!
//! Write-back claims dirty blocks, allocates the delayed ones (in memory only), and writes. When
//! the write ends, it plans the map change, allocates the nodes for it, and logs bitmaps, nodes,
//! map and size in one handle. Until then nothing on the volume points to the written blocks, so no
//! crash can expose blocks without their data. For files with data=journal the data are not written
//! at that point but logged in the same handle (`data_journal`).

use super::cache_errors::refusal;
use super::contents::Contents;
use extant_cache::{Answer, Backing, ByteRange, DirtyRun, Placed, ReadExtent, ReadFrom, WrittenRun};
use extant_format::{BlockRange, UintExt};

impl Backing for Contents {
    fn block_bytes(&self) -> u32 {
        self.block.bytes()
    }

    fn end_bytes(&self) -> u64 {
        self.max_bytes()
    }

    fn map_read(&self, range: ByteRange) -> Answer<'_, ReadExtent> {
        if let Some(bytes) = self.inline_bytes() {
            let bytes = bytes.get(range.start.to_usize()..).unwrap_or_default();
            return Answer::ok(ReadExtent { from: ReadFrom::Inline(bytes.into()), bytes: range.len() });
        }
        match self.read_extent(range) {
            Some(extent) => Answer::ok(extent),
            None => Answer::later(async move {
                let block = range.start >> self.block.log2();
                loop {
                    if self.know(BlockRange::one(block)).await.is_err() {
                        return self.damaged_extent(range).await.map_err(refusal);
                    }
                    if let Some(extent) = self.read_extent(range) {
                        return Ok(extent);
                    }
                }
            }),
        }
    }

    fn prepare_write<'a>(&'a self, run: DirtyRun<'a>) -> Answer<'a, Placed> {
        // After a failure, and once the volume is closed or dropped, write nothing: the blocks may
        // have been reused.
        if let Some(cause) = self.writer.journal.failure() {
            return Answer::err(refusal(cause));
        }
        let is_journalled = self.is_journalled();
        match self.overwrites(&run).filter(|_| !is_journalled) {
            Some(placed) => Answer::ok(placed),
            None => Answer::later(async move { self.place(&run, is_journalled).await.map_err(refusal) }),
        }
    }

    fn finish_write<'a>(&'a self, run: &'a WrittenRun) -> Answer<'a, ()> {
        Answer::later(async move { self.finish(run).await.map_err(refusal) })
    }

    fn abandoned(&self, range: ByteRange) {
        // If a block is larger than a page, its other pages may still be dirty.
        let first = self.block.blocks_for(range.start);
        let last = range.end >> self.block.log2();
        if first < last {
            self.unreserve(BlockRange::new(first, last));
        }
    }
}
