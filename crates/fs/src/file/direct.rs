//! Direct I/O (`O_DIRECT`): transfers between the caller's buffer and the device, bypassing the
//! cache.
//!
//! A request becomes as few bios as the device's limit and the placement of its blocks allow, all
//! submitted together, up to 4 MiB; longer ones are submitted in steps of that length. Runs
//! adjacent on the device share a bio even across map boundaries. Dirty pages of the range are
//! written back first, and no page of the range is in the cache during a device write.
//!
//! Overwrites of mapped blocks share the inode's lock and run concurrently. So do writes of whole
//! blocks that change the map or the size; these are logged one after the other. A write takes the
//! inode exclusively if it also zeroes part of a block, appends, or has to wait for space. Blocks
//! are allocated and logged as in write-back: the data are on the device before anything points to
//! them. The map node for the next blocks (a tree node or a block of pointers) is read while the
//! preceding data are in flight, and so are the bitmaps from which a growing file's next blocks
//! come.
//!
//! Other requests go through the cache: those not in whole sectors, partial writes to blocks that
//! hold no data yet, inline contents, and files with data=journal.

use super::cache_errors::cache_error;
use super::contents::Contents;
use super::open_file::OpenFile;
use super::reserving::Mark;
use crate::journal::STINT;
use crate::map::block_state::{OnDisk, WriteStep};
use crate::{Error, Result};
use extant_block::{Bio, BioFlags, Buf, Device, IoError, Op, Piece, Sector, Segment, until_end};
use extant_cache::{ByteRange, WriteTo, WrittenExtent, WrittenRun};
use extant_format::{BlockRange, UintExt};
use futures_util::future::{Either, join_all, select};
use std::pin::pin;

/// A run of a request's bytes on the device; with `None` it reads as zeroes.
type DeviceRun = (Option<Sector>, u64);

/// A request is submitted in steps of this many bytes. Between two steps other tasks may run, and
/// bios that have ended make room at the device. If a striped device got a long request at once,
/// the end of it would be merged and sent out of order while its beginning is in flight.
const STEP_BYTES: u64 = 4 << 20;

impl OpenFile {
    /// Reads into `buf` from byte `at` on. Returns the buffer and the number of bytes read, which
    /// is smaller than its length at the end of the file; the rest of the buffer is undefined. The
    /// read is direct if `at` and the length are in whole sectors of the device
    /// ([`Limits::block_bytes`](extant_block::Limits::block_bytes)). Other reads, and those of
    /// files with data=journal, go through the cache.
    ///
    /// # Errors
    /// Nothing could be read: the device fails, or the map is damaged. Dirty pages that cannot be
    /// written back are read from the cache.
    pub async fn read_direct(&self, at: u64, buf: Buf) -> (Buf, Result<usize>) {
        let writer = &self.contents.writer;
        let mut buf = Some(buf);
        let read = writer.guarded(self.read_past_cache(at, &mut buf)).await;
        (buf.unwrap_or_else(|| Buf::zeroed(0)), read)
    }

    async fn read_past_cache(&self, at: u64, held: &mut Option<Buf>) -> Result<usize> {
        let contents = &*self.contents;
        let buf = held.as_mut().expect("a caller's buffer");
        let asked = ByteRange::at(at, buf.len().to_u64());
        if contents.inline_bytes().is_some() || !contents.is_of_sectors(asked) {
            return self.pages.read(at, buf).await.map_err(cache_error);
        }
        // Until the bios end, the file cannot shrink, lose blocks or switch to data=journal.
        let inode = contents.cell.read_lock().await;
        if contents.is_journalled() {
            drop(inode);
            return self.pages.read(at, buf).await.map_err(cache_error);
        }
        let end = asked.end.min(self.size());
        if at >= end {
            return Ok(0);
        }
        if self.mapping.write_back(ByteRange::new(at, end)).await.is_err() {
            // What cannot be written stays in memory, and can be read there.
            drop(inode);
            return self.pages.read(at, buf).await.map_err(cache_error);
        }
        let bio = Bio::new(Op::Read, Sector(0), held.take().map(Segment::from).into_iter().collect());
        let (buf, result) = contents.read_mapped(bio, asked, end).await;
        *held = buf;
        match (result, held) {
            (Ok(()), _) => Ok((end - at).to_usize()),
            // Read the pages before the unreadable one.
            (Err(_), Some(buf)) => {
                drop(inode);
                self.pages.read(at, buf).await.map_err(cache_error)
            }
            (Err(error), None) => Err(error),
        }
    }

    /// Writes `buf` from byte `at` on, or at the end of the file with
    /// [`append`](super::FileOptions::append). Returns the buffer and the number of bytes written:
    /// fewer than its length if the file reaches its largest size, or if only the first blocks
    /// could be mapped. The data are on the device when this returns, and survive a crash once the
    /// file has been synced.
    ///
    /// Writes of whole sectors over blocks that hold data, and of whole blocks anywhere, are
    /// direct. Others go through the cache and are written back. For files with data=journal the
    /// data are then in the running transaction and reach the device with it.
    ///
    /// # Errors
    /// As [`OpenFile::write`]; the device fails, leaving each byte of the range old or new.
    pub async fn write_direct(&self, at: u64, buf: Buf) -> (Buf, Result<usize>) {
        let file = self.reopened();
        let writer = &self.contents.writer;
        // The bios in flight must end before their blocks can be reused.
        let write = writer.rt.unstoppable("write_direct", async move {
            let mut buf = Some(buf);
            let written = file.write_past_cache(at, &mut buf).await;
            (buf.unwrap_or_else(|| Buf::zeroed(0)), written)
        });
        let (buf, written) = write.await;
        let synced = async {
            let written = written?;
            self.settle(written).await?;
            Ok(written.len().to_usize())
        };
        (buf, writer.guarded(synced).await)
    }

    /// Writes directly or, if that is not possible, through the cache. Returns the range written.
    async fn write_past_cache(&self, at: u64, held: &mut Option<Buf>) -> Result<ByteRange> {
        let contents = &*self.contents;
        let len = held.as_ref().map_or(0, |buf| buf.len().to_u64());
        if len == 0 {
            return Ok(ByteRange::default());
        }
        let asked = ByteRange::new(at, at.saturating_add(len));
        if !self.options.append && asked.len() == len && contents.is_of_sectors(asked) {
            let _inode = contents.cell.read_lock().await;
            let is_direct = !contents.is_journalled();
            if is_direct && self.overwrite(asked, held).await? {
                return Ok(asked);
            }
            if is_direct && let Some(end) = self.write_beside(asked, held).await? {
                return Ok(ByteRange::new(at, end));
            }
        }
        let _inode = contents.cell.write_lock().await;
        let at = if self.options.append { self.size() } else { at };
        self.check_may_change(self.options.append)?;
        let end = contents.max_bytes().min(at.saturating_add(len));
        if at >= end {
            return Err(Error::TooBig(format!("inode {}", self.inode())));
        }
        self.drop_privileges().await?;
        contents.leave_inode(&self.mapping, &self.pages, self.privilege()).await?;
        self.touch();
        let bytes = ByteRange::new(at, end);
        let unit = u64::from(contents.block.bytes());
        // The rest of the file's last block is zeroed along with it. Elsewhere, a partly
        // overwritten block may hold no data yet.
        let ends_whole = end.is_multiple_of(unit) || end >= self.size();
        let is_direct = !contents.is_journalled() && contents.is_of_sectors(bytes);
        if is_direct && at.is_multiple_of(unit) && ends_whole && bytes.len() == len {
            let end = self.write_blocks(bytes, held).await?;
            return Ok(ByteRange::new(at, end));
        }
        let buf = held.as_ref().expect("a caller's buffer");
        let done = self.write_steps(at, &buf[..(end - at).to_usize()]).await?;
        let written = ByteRange::at(at, done.to_u64());
        self.write_out(written).await?;
        Ok(written)
    }

    /// Overwrites blocks that are all mapped and hold data. Returns `false` if some are not, or are
    /// being written.
    async fn overwrite(&self, bytes: ByteRange, held: &mut Option<Buf>) -> Result<bool> {
        let contents = &*self.contents;
        if bytes.end > self.size() || contents.inline_bytes().is_some() {
            return Ok(false);
        }
        self.check_may_change(false)?;
        contents.know(contents.blocks_of(bytes)).await?;
        if contents.overwritten_runs(bytes).is_none() {
            return Ok(false);
        }
        self.drop_privileges().await?;
        let _exclusion = self.mapping.exclude(bytes).await;
        self.mapping.invalidate(bytes).await.map_err(cache_error)?;
        contents.know(contents.blocks_of(bytes)).await?;
        let Some(runs) = contents.overwritten_runs(bytes) else { return Ok(false) };
        self.touch();
        self.write_runs(held, &runs, 0).await?;
        Ok(true)
    }

    /// Writes whole blocks that need allocation or grow the file, concurrently with other direct
    /// writers. Returns the end of what was written, or `None` if the write needs the file
    /// exclusively.
    async fn write_beside(&self, bytes: ByteRange, held: &mut Option<Buf>) -> Result<Option<u64>> {
        let contents = &*self.contents;
        let (unit, size) = (u64::from(contents.block.bytes()), self.size());
        let is_whole = bytes.start.is_multiple_of(unit) && bytes.end.is_multiple_of(unit);
        // While direct writers share the file, it may grow only by whole blocks.
        let leaves_tail = bytes.start > size && !size.is_multiple_of(unit);
        if !is_whole || leaves_tail || bytes.end > contents.max_bytes() || contents.inline_bytes().is_some() {
            return Ok(None);
        }
        self.check_may_change(false)?;
        self.drop_privileges().await?;
        // Before reserving blocks: once another writer of the same blocks ends, they are mapped or
        // given up.
        let _exclusion = self.mapping.exclude(bytes).await;
        let pending =
            match contents.reserve_as(contents.blocks_of(bytes), self.privilege(), Mark::DirtyNow).await {
                Ok(pending) => pending,
                Err(Error::NoSpace) => return Ok(None),
                Err(error) => return Err(error),
            };
        self.touch();
        let written = self.write_reserved(bytes, held).await;
        self.give_up_rest(&pending, bytes, &written).await;
        written.map(Some)
    }

    /// Writes whole blocks, allocating unmapped ones, and the file's last block with its rest
    /// zeroed. Returns the end of what was written. The caller keeps others out.
    async fn write_blocks(&self, bytes: ByteRange, held: &mut Option<Buf>) -> Result<u64> {
        let contents = &*self.contents;
        let pending = contents.reserve(contents.blocks_of(bytes), self.privilege()).await?;
        let written = async {
            if bytes.start > self.size() {
                self.zero_last_block().await?;
                contents.live.lock().map.pending.whole(self.size() >> contents.block.log2());
            }
            let _exclusion = self.mapping.exclude(bytes).await;
            self.write_reserved(bytes, held).await
        };
        let written = written.await;
        self.give_up_rest(&pending, bytes, &written).await;
        written
    }

    /// Restores blocks reserved for a write of `bytes` to their previous state, from the end of
    /// what was `written` on.
    async fn give_up_rest(&self, pending: &[BlockRange], bytes: ByteRange, written: &Result<u64>) {
        let contents = &*self.contents;
        let from = match written {
            Ok(end) if *end == bytes.end => return,
            Ok(end) => contents.block.blocks_for(*end),
            Err(_) => 0,
        };
        let _ending = contents.endings.write().await;
        // Do this while the unwritten blocks still bound the size.
        contents.live.lock().map.size.distrust(self.size());
        contents.unreserve_all(pending, from);
        // The size may now reach up to the next blocks held by others. The next sync reports a
        // failure.
        let _ = contents.record_reached().await;
    }

    /// Writes reserved blocks. Returns the end of what is logged. The caller holds the exclusion of
    /// the range.
    async fn write_reserved(&self, bytes: ByteRange, held: &mut Option<Buf>) -> Result<u64> {
        let contents = &*self.contents;
        self.mapping.invalidate(bytes).await.map_err(cache_error)?;
        let mut placed = WrittenRun { extents: Default::default(), size_bytes: 0 };
        let written = match contents.place_all(bytes, &mut placed).await {
            Ok(()) => {
                let written = pin!(self.write_placed(held, &placed));
                contents.beside_bitmaps(written, bytes).await
            }
            Err(error) => Err(error),
        };
        if let Err(error) = &written {
            // Fail all of it: logging a part would vouch for a size that the rest has not reached.
            let failed = contents.io_error(bytes, error);
            placed.extents.iter_mut().for_each(|written| written.result = Err(failed.clone()));
        }
        // Concurrent writes may have extended the file. The size is published to the volume and to
        // readers together.
        let _ending = contents.endings.write().await;
        let size = self.size().max(bytes.end);
        placed.size_bytes = size;
        let logged = contents.finish(&placed).await;
        written?;
        let mut end = bytes.end;
        if let Err(error) = logged {
            // Blocks already logged stay in the file and count as written, because the recorded
            // size may have grown past them.
            end = contents.live.lock().map.pending.logged_until(bytes);
            if end == bytes.start {
                return Err(error);
            }
        }
        self.mapping.set_size(self.size().max(end)).await.map_err(cache_error)?;
        Ok(end)
    }

    async fn write_placed(&self, held: &mut Option<Buf>, placed: &WrittenRun) -> Result<()> {
        let most = self.contents.device().limits().max_bytes;
        let mut runs = Vec::new();
        for WrittenExtent { extent, .. } in &placed.extents {
            let WriteTo::Device(sector) = extent.to else { return Err(Error::Defect) };
            push(&mut runs, (Some(sector), extent.range.len()), most);
        }
        let zeroes = placed.extents.last().map_or(0, |last| last.extent.zero_after);
        self.write_runs(held, &runs, zeroes.into()).await
    }

    /// Writes a buffer to these runs, and `zeroes` zero bytes after the last one.
    async fn write_runs(&self, held: &mut Option<Buf>, runs: &[DeviceRun], zeroes: u64) -> Result<()> {
        let contents = &*self.contents;
        if let Some(cause) = contents.writer.journal.failure() {
            return Err(cause);
        }
        let writing = self.mapping.writes_directly();
        let mut rest = Vec::new();
        if let Some(&(Some(sector), bytes)) = runs.last().filter(|_| zeroes > 0) {
            let behind = Sector(sector.0 + bytes / Sector::BYTES);
            let segment = Segment::zeroes(zeroes.to_usize());
            rest.push(extant_block::write_segments(&**contents.device(), behind, vec![segment]));
        }
        let mut bio = Bio::new(Op::Write, Sector(0), held.take().map(Segment::from).into_iter().collect());
        bio.flags = BioFlags::SYNC;
        let ended = until_end(&mut bio);
        contents.start_in_steps(bio, runs).await;
        let (buf, result) = taken_back(ended.await);
        *held = buf;
        let zeroed = join_all(rest).await.into_iter().collect::<std::result::Result<Vec<()>, IoError>>();
        writing.has_ended();
        result?;
        zeroed?;
        Ok(())
    }
}

/// Appends a run, merging it into the last one if it is contiguous, up to `most` bytes.
fn push(runs: &mut Vec<DeviceRun>, (at, mut bytes): DeviceRun, most: u64) {
    let mut at = at;
    if let Some((last_at, last_bytes)) = runs.last_mut() {
        let goes_on = match (*last_at, at) {
            (None, None) => true,
            (Some(last), Some(at)) => last.0 + *last_bytes / Sector::BYTES == at.0,
            _ => false,
        };
        if goes_on {
            let more = bytes.min(most.saturating_sub(*last_bytes));
            *last_bytes += more;
            bytes -= more;
            at = at.map(|at| Sector(at.0 + more / Sector::BYTES));
        }
    }
    while bytes > 0 {
        let part = bytes.min(most);
        runs.push((at, part));
        bytes -= part;
        at = at.map(|at| Sector(at.0 + part / Sector::BYTES));
    }
}

/// Unwraps the buffer and the result of a completed bio.
fn taken_back((mut bio, result): (Bio, std::result::Result<(), IoError>)) -> (Option<Buf>, Result<()>) {
    (bio.segments.pop().and_then(Segment::into_buf), result.map_err(Error::from))
}

impl Contents {
    fn device(&self) -> &std::sync::Arc<dyn Device> {
        self.writer.disk.device()
    }

    /// Whether a range consists of whole sectors of the device.
    fn is_of_sectors(&self, bytes: ByteRange) -> bool {
        let sector = u64::from(self.device().limits().block_bytes);
        bytes.start.is_multiple_of(sector) && bytes.end.is_multiple_of(sector)
    }

    /// Where the bytes of a range are, as far as the in-memory map knows, and the end of the known
    /// part. No page of the range may be dirty.
    fn known_runs(&self, bytes: ByteRange) -> (Vec<DeviceRun>, u64) {
        let most = self.device().limits().max_bytes;
        let mut runs = Vec::new();
        let mut at = bytes.start;
        let live = self.live.lock();
        while at < bytes.end {
            let block = at >> self.block.log2();
            let Some((run, known)) = live.map.read(block) else { break };
            let end = self.bytes_at(run.end).min(bytes.end);
            let sector = match known {
                OnDisk::Written(to) => Some(self.sector(to, at - self.bytes_at(block))),
                OnDisk::Hole | OnDisk::Unwritten(_) | OnDisk::Implied(_) => None,
            };
            // Holes need no device I/O, so they have no size limit.
            push(&mut runs, (sector, end - at), if sector.is_some() { most } else { u64::MAX });
            at = end;
        }
        (runs, at)
    }

    /// Reads the range `asked` of a file that ends at byte `end` within it. Each part is submitted
    /// as soon as its place is known.
    async fn read_mapped(&self, mut bio: Bio, asked: ByteRange, end: u64) -> (Option<Buf>, Result<()>) {
        let sector = u64::from(self.device().limits().block_bytes);
        let whole = end.next_multiple_of(sector).min(asked.end);
        let ended = until_end(&mut bio);
        let (mut rest, mut at, mut unmapped) = (Some(bio), asked.start, None);
        while let Some(bio) = rest.take() {
            let (mut runs, until) = self.known_runs(ByteRange::new(at, whole));
            if until == whole {
                if whole < asked.end {
                    push(&mut runs, (None, asked.end - whole), u64::MAX);
                }
                self.start_in_steps(bio, &runs).await;
                break;
            }
            rest = Some(bio);
            if until > at {
                let piece = |bytes| Piece { start: Sector(0), bytes };
                let parts = [piece(until - at), piece(asked.end - until)];
                let mut parts =
                    extant_block::split(rest.take().expect("it was put back"), &parts).into_iter();
                self.start_in_steps(parts.next().expect("two parts"), &runs).await;
                (rest, at) = (parts.next(), until);
            }
            let block = at >> self.block.log2();
            if let Err(error) = self.know(BlockRange::one(block)).await {
                unmapped = Some(error);
                break;
            }
        }
        if let Some(rest) = rest {
            rest.end_as(&self.device().limits().name, Err(extant_block::IoErrorKind::Os(5)));
        }
        let (buf, result) = self.beside_look_ahead(ended, whole, asked.len()).await;
        (buf, unmapped.map_or(result, Err))
    }

    /// Waits for a bio. Meanwhile loads the map for the next `bytes` bytes after byte `at`, which a
    /// sequential reader wants next.
    async fn beside_look_ahead(
        &self,
        ended: impl Future<Output = (Bio, std::result::Result<(), IoError>)>,
        at: u64,
        bytes: u64,
    ) -> (Option<Buf>, Result<()>) {
        let next = ByteRange::new(at, at.saturating_add(bytes).min(self.recorded_bytes()));
        let blocks = self.blocks_of(next);
        if next.is_empty() || self.live.lock().map.first_unknown(blocks).is_none() {
            return taken_back(ended.await);
        }
        // A reader of these blocks will hit the error again.
        match select(pin!(ended), pin!(self.know(blocks))).await {
            Either::Left((ended, _)) => taken_back(ended),
            Either::Right((_, ended)) => taken_back(ended.await),
        }
    }

    /// Waits for the write of a range. Meanwhile reads the bitmaps from which the next write of
    /// this length will allocate, if this one placed the file's last blocks: the device would be
    /// idle while that one waits for them. They are asked for first, since a queue may hold the
    /// whole of this write.
    async fn beside_bitmaps<T>(&self, written: impl Future<Output = T> + Unpin, bytes: ByteRange) -> T {
        let last_placed = self.live.lock().last_placed;
        let Some((_, goal)) = last_placed.filter(|&(end, _)| self.bytes_at(end) >= bytes.end) else {
            return written.await;
        };
        let clusters = self.sb().cluster_size().count(self.blocks_of(bytes));
        match select(pin!(self.writer.alloc.look_ahead(goal, clusters)), written).await {
            Either::Left(((), written)) => written.await,
            Either::Right((written, _)) => written,
        }
    }

    /// Places of a range, if it only overwrites blocks that are mapped and logged.
    fn overwritten_runs(&self, bytes: ByteRange) -> Option<Vec<DeviceRun>> {
        let most = self.device().limits().max_bytes;
        let live = self.live.lock();
        let mut runs = Vec::new();
        let mut at = bytes.start;
        while at < bytes.end {
            let block = at >> self.block.log2();
            let (run, WriteStep::Overwrite(to)) = live.map.write_step(block)? else { return None };
            let end = self.bytes_at(run.end).min(bytes.end);
            push(&mut runs, (Some(self.sector(to, at - self.bytes_at(block))), end - at), most);
            at = end;
        }
        Some(runs)
    }

    /// Places all of a range whose blocks are reserved.
    async fn place_all(&self, bytes: ByteRange, placed: &mut WrittenRun) -> Result<()> {
        let mut at = bytes.start;
        while at < bytes.end {
            if let Some(extent) = self.place_at(at, bytes.end, None, true).await? {
                at = extent.range.end;
                placed.extents.push(WrittenExtent { extent, result: Ok(()), bytes: None });
            }
        }
        Ok(())
    }

    /// Submits a bio for these runs, whose total length equals the bio's, in steps of
    /// [`STEP_BYTES`].
    async fn start_in_steps(&self, bio: Bio, runs: &[DeviceRun]) {
        if bio.bytes <= STEP_BYTES {
            return self.start(bio, runs);
        }
        let (mut steps, mut step, mut room) = (Vec::new(), Vec::new(), STEP_BYTES);
        for &(mut at, mut bytes) in runs {
            while bytes > 0 {
                let part = bytes.min(room);
                step.push((at, part));
                at = at.map(|at| Sector(at.0 + part / Sector::BYTES));
                (bytes, room) = (bytes - part, room - part);
                if room == 0 {
                    steps.push(std::mem::take(&mut step));
                    room = STEP_BYTES;
                }
            }
        }
        steps.extend(Some(step).filter(|step| !step.is_empty()));
        let whole =
            |step: &Vec<DeviceRun>| Piece { start: Sector(0), bytes: step.iter().map(|run| run.1).sum() };
        let pieces: Vec<Piece> = steps.iter().map(whole).collect();
        let mut budget = self.writer.rt.budget(STINT);
        for (bio, step) in extant_block::split(bio, &pieces).into_iter().zip(&steps) {
            self.start(bio, step);
            budget.resched().await;
        }
    }

    /// Submits a bio for these runs, whose total length equals the bio's.
    fn start(&self, mut bio: Bio, runs: &[DeviceRun]) {
        if let [(Some(at), bytes)] = *runs
            && bytes == bio.bytes
        {
            bio.start = at;
            return self.device().submit(bio);
        }
        let pieces: Vec<Piece> =
            runs.iter().map(|&(at, bytes)| Piece { start: at.unwrap_or(Sector(0)), bytes }).collect();
        let bios = extant_block::split(bio, &pieces).into_iter().zip(runs);
        let (places, holes): (Vec<_>, Vec<_>) = bios.partition(|(_, (at, _))| at.is_some());
        self.device().submit_all(&mut places.into_iter().map(|(bio, _)| bio));
        for (mut hole, _) in holes {
            hole.segments.iter_mut().filter_map(Segment::as_mut_slice).for_each(|bytes| bytes.fill(0));
            hole.end(Ok(()));
        }
    }

    /// The error of a failed write, for each of its extents.
    fn io_error(&self, bytes: ByteRange, error: &Error) -> IoError {
        match error {
            Error::Io(error) => error.clone(),
            _ => {
                let bio = Bio::range(Op::Write, Sector(0), bytes.len());
                bio.error(&self.device().limits().name, extant_block::IoErrorKind::Os(5))
            }
        }
    }
}
