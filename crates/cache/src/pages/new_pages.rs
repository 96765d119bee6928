//! Writes to pages that have no frame.

use crate::file::CachedFile;
use crate::page::{PAGE, PAGE_BYTES};
use crate::pages::cached_write::{Source, Terms, WriteStop, Wrote};
use crate::{Cost, PageRange};

/// Pages written as one batch: their frames are taken, filled and entered together.
const BATCH_PAGES: usize = 64;

const _: () = assert!(BATCH_PAGES * PAGE_BYTES <= 1 << 20);

impl CachedFile {
    /// Writes to pages without a frame, up to one batch: whole pages, and pages past the end of the
    /// file. `Some` says why nothing was written.
    pub(super) fn write_new(
        &self,
        offset: u64,
        source: Source<'_>,
        terms: Terms,
        wrote: &mut Wrote,
    ) -> Option<WriteStop> {
        let core = &*self.core;
        let most = terms.most - wrote.dirtied;
        let from = wrote.bytes;
        let left = source.len() - from;
        let (first, skip) = (offset / PAGE, (offset % PAGE) as usize);
        let size = self.size();
        let batch = BATCH_PAGES.min(most.try_into().unwrap_or(BATCH_PAGES));
        let mut count = (skip + left).div_ceil(PAGE_BYTES).min(batch);
        // A partly written last page must be past the end of the file as well.
        let last = first + count as u64 - 1;
        if skip + left < count * PAGE_BYTES && last * PAGE < size {
            count -= 1;
        }
        if count == 0 {
            // Another task has grown the file over this page since the size was read.
            return Some(WriteStop::Missing(first));
        }
        let mut frames = Vec::with_capacity(count);
        core.take_frames(count, terms.purpose(), &mut frames);
        if frames.is_empty() {
            return Some(WriteStop::NoFrames);
        }
        let mut room = match self.room(frames.len() as u64, terms) {
            Ok(room) => room,
            Err(reason) => {
                core.pool.return_frames(frames);
                return Some(WriteStop::NoRoom(reason));
            }
        };
        core.pool.return_frames(frames.drain(room.pages() as usize..));
        // For each page: (offset in the page, offset in the source, length).
        let piece = |slot: usize| {
            let skip = if slot == 0 { skip } else { 0 };
            let start = if slot == 0 { 0 } else { slot * PAGE_BYTES - (offset % PAGE) as usize };
            (skip, start, (PAGE_BYTES - skip).min(left - start))
        };
        // Take all frames before filling the first: each take waits until earlier stores have
        // reached their cache lines.
        let take = |(slot, frame)| core.pool.frames.take_free(frame, self.key(first + slot as u64));
        let mut fresh: Vec<_> = frames.into_iter().enumerate().map(take).collect();
        for (slot, page) in fresh.iter_mut().enumerate() {
            let (skip, start, n) = piece(slot);
            source.copy_to_new(from + start, page, skip, n);
        }
        let mut unused = Vec::new();
        let mut entered = 0;
        let mut admitted = PageRange { start: first, end: first + fresh.len() as u64 };
        {
            let mut pages = self.lock_pages();
            if !terms.in_exclusion {
                admitted = pages.fills().admitted(admitted);
            }
            let mut cursor = pages.cursor();
            for (slot, page) in fresh.into_iter().enumerate() {
                let index = first + slot as u64;
                let (skip, _, n) = piece(slot);
                // Others may have written the page since the size was read, and it may have been
                // evicted again.
                let covers = n == PAGE_BYTES || index * PAGE >= self.size();
                if index >= admitted.end
                    || entered < slot
                    || !covers
                    || cursor.find(self.key(index)).is_some()
                {
                    unused.push(page.give_back());
                    continue;
                }
                self.grow_to(index * PAGE + (skip + n) as u64, terms);
                pages.add_dirty_page(&mut cursor, page, self.dirty_mask(skip..skip + n));
                entered += 1;
            }
            drop(cursor);
            if entered > 0 {
                let dirtied = PageRange::new(first, first + entered as u64);
                pages.enter_dirty(dirtied, room.split(entered as u64));
            }
        }
        drop(room);
        core.pool.return_frames(unused);
        core.rt.charge(Cost::PageInsert(entered as u64));
        if entered > 0 {
            let (_, start, n) = piece(entered - 1);
            wrote.bytes += start + n;
            wrote.dirtied += entered as u64;
            wrote.frames += entered as u64;
        }
        admitted.is_empty().then_some(WriteStop::Excluded(first))
    }
}
