//! Keeps sources and disk busy at the same time: several threads fill large aligned buffers, and
//! the device writes them.

use crate::layout::{Geometry, Piece};
use crate::{BuildError, workers};
use extant_block::{Bio, Buf, Device, IoError, Op, Sector, Segment, execute};
use extant_format::{Superblock, UintExt};
use extant_rt::Rt;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::fmt::Debug;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

/// Called occasionally, from any thread, with bytes written and total bytes to write.
pub type Progress = Arc<dyn Fn(u64, u64) + Send + Sync>;

/// Buffer size in bytes: large enough for the disk's full speed, small enough to keep several in
/// flight.
const BUFFER: usize = 2 << 20;
/// Buffers per thread.
const BUFFERS: usize = 3;
/// Writes start and end at multiples of this many bytes, for direct I/O.
const ALIGN: u64 = 4096;
/// Length of the head that [`pump_all_but_head`] leaves out: whole blocks of every device, with the
/// superblock.
const HEAD_BYTES: usize = 4096;
/// Gaps up to this many bytes are filled with zeros instead of left as holes.
const MAX_GAP: u64 = 16 << 10;

/// An image that consists of pieces.
pub(crate) trait Pieces: Send + Sync + 'static {
    /// Kinds of contents.
    type What: Copy + Send + Sync + Debug + 'static;
    /// State that one writer keeps between pieces.
    type Emitter<'a>: Emit<Self::What>
    where
        Self: 'a;

    /// Pieces to write, in address order.
    fn pieces(&self) -> &[Piece<Self::What>];

    fn superblock(&self) -> &Superblock;

    fn geometry(&self) -> &Geometry;

    fn emitter(&self) -> Self::Emitter<'_>;
}

/// Generates the bytes of any run of blocks.
pub(crate) trait Emit<W> {
    /// Writes a piece's blocks from `skip` on, overwriting all of `to`, which is a whole number of
    /// blocks.
    fn emit(&mut self, piece: &Piece<W>, skip: u32, to: &mut [u8]) -> Result<(), BuildError>;
}

/// Writes all pieces of an image. Not durable until flushed.
pub(crate) fn pump<I: Pieces>(
    image: &Arc<I>,
    device: Arc<dyn Device>,
    rt: &Rt,
    progress: Progress,
) -> Result<(), BuildError> {
    run(image, device, rt, progress, false).map(drop)
}

/// Like [`pump`], except that the volume's first 4,096 bytes, with its superblock, are returned
/// instead of written.
pub(crate) fn pump_all_but_head<I: Pieces>(
    image: &Arc<I>,
    device: Arc<dyn Device>,
    rt: &Rt,
    progress: Progress,
) -> Result<Buf, BuildError> {
    let head = run(image, device, rt, progress, true)?;
    Ok(head.expect("every volume begins with a superblock"))
}

fn run<I: Pieces>(
    image: &Arc<I>,
    device: Arc<dyn Device>,
    rt: &Rt,
    progress: Progress,
    keeps_head: bool,
) -> Result<Option<Buf>, BuildError> {
    let sb = image.superblock();
    let block_log = sb.block_size().log2();
    let total = image.pieces().iter().map(|piece| u64::from(piece.blocks) << block_log).sum();
    let shared = Arc::new(Pump {
        image: image.clone(),
        device,
        rt: rt.clone(),
        state: Mutex::new(State { at: Cursor { piece: 0, skip: 0 }, written: 0, head: None, failed: None }),
        block_log,
        bytes: sb.blocks_count() << block_log,
        total,
        keeps_head,
        progress,
    });
    let run = workers::run(rt, "write", &shared, Pump::<I>::work);
    let mut state = shared.state.lock();
    state.failed.take().map_or(run, Err)?;
    Ok(state.head.take())
}

struct Pump<I> {
    image: Arc<I>,
    device: Arc<dyn Device>,
    rt: Rt,
    state: Mutex<State>,
    block_log: u32,
    /// Length of the image.
    bytes: u64,
    /// Bytes to write.
    total: u64,
    /// Whether the first bytes are kept instead of written.
    keeps_head: bool,
    progress: Progress,
}

struct State {
    at: Cursor,
    written: u64,
    head: Option<Buf>,
    failed: Option<BuildError>,
}

/// The next block not covered by any job.
#[derive(Clone, Copy, Debug)]
struct Cursor {
    piece: usize,
    skip: u32,
}

/// A range of the device written from one buffer, and the first block in it.
#[derive(Debug)]
struct Job {
    start_bytes: u64,
    end_bytes: u64,
    from: Cursor,
}

/// A completed bio and its result.
type Ended = (Bio, Result<(), IoError>);

/// A write in flight, and its buffer.
struct InFlight {
    buf: Arc<Buf>,
    write: Pin<Box<dyn Future<Output = Ended> + Send>>,
}

impl<I: Pieces> Pump<I> {
    fn work(&self, _worker: usize) {
        let mut in_flight: VecDeque<InFlight> = VecDeque::new();
        let mut result = self.fill_and_write(&mut in_flight);
        // No write may be in flight when this returns, even after a failure.
        for write in in_flight {
            let ended = self.finish(write).map(drop);
            result = result.and(ended);
        }
        if let Err(error) = result {
            self.state.lock().failed.get_or_insert(error);
        }
    }

    fn fill_and_write(&self, in_flight: &mut VecDeque<InFlight>) -> Result<(), BuildError> {
        let mut emitter = self.image.emitter();
        while let Some(job) = self.next_job() {
            let mut buf = match in_flight.len() {
                ..BUFFERS => Arc::new(Buf::zeroed(BUFFER)),
                _ => self.finish(in_flight.pop_front().expect("there are some"))?,
            };
            let len = (job.end_bytes - job.start_bytes).to_usize();
            let bytes = Arc::get_mut(&mut buf).expect("its write has ended");
            self.fill(&mut emitter, &job, &mut bytes[..len])?;
            let mut skip = 0;
            if self.keeps_head && job.start_bytes == 0 {
                skip = len.min(HEAD_BYTES);
                self.state.lock().head = Some(Buf::from_slice(&bytes[..skip]));
            }
            if skip < len {
                let start = Sector((job.start_bytes + skip.to_u64()) / Sector::BYTES);
                let bio = Bio::new(Op::Write, start, vec![Segment::shared(buf.clone(), skip, len - skip)]);
                in_flight.push_back(InFlight { buf, write: Box::pin(execute(&*self.device, bio)) });
            }
            let written = {
                let mut state = self.state.lock();
                state.written += len.to_u64();
                state.written
            };
            (self.progress)(written.min(self.total), self.total);
        }
        Ok(())
    }

    /// Waits for a write, and returns its buffer.
    fn finish(&self, InFlight { buf, write }: InFlight) -> Result<Arc<Buf>, BuildError> {
        let (bio, result) = self.rt.block_on(write)?;
        drop(bio);
        result?;
        Ok(buf)
    }

    fn next_job(&self) -> Option<Job> {
        let mut state = self.state.lock();
        if state.failed.is_some() {
            return None;
        }
        let (job, next) = job_from(self.image.pieces(), state.at, self.block_log, self.bytes)?;
        state.at = next;
        Some(job)
    }

    fn fill(&self, emitter: &mut I::Emitter<'_>, job: &Job, buf: &mut [u8]) -> Result<(), BuildError> {
        let log = self.block_log;
        let mut at = job.start_bytes;
        let mut cursor = job.from;
        while let Some(piece) = self.image.pieces().get(cursor.piece) {
            let from = (piece.start.0 + u64::from(cursor.skip)) << log;
            if from >= job.end_bytes {
                break;
            }
            let until = ((piece.start.0 + u64::from(piece.blocks)) << log).min(job.end_bytes);
            let place = |bytes: u64| (bytes - job.start_bytes).to_usize();
            buf[place(at)..place(from)].fill(0);
            emitter.emit(piece, cursor.skip, &mut buf[place(from)..place(until)])?;
            at = until;
            cursor = Cursor { piece: cursor.piece + 1, skip: 0 };
        }
        buf[(at - job.start_bytes).to_usize()..].fill(0);
        Ok(())
    }
}

/// The job that starts at a cursor, and the cursor of the next one.
fn job_from<W>(pieces: &[Piece<W>], at: Cursor, block_log: u32, volume_bytes: u64) -> Option<(Job, Cursor)> {
    let begin = |piece: &Piece<W>, skip: u32| (piece.start.0 + u64::from(skip)) << block_log;
    let end = |piece: &Piece<W>| (piece.start.0 + u64::from(piece.blocks)) << block_log;
    let align_up = |bytes: u64| bytes.next_multiple_of(ALIGN).min(volume_bytes);
    let first = pieces.get(at.piece)?;
    let start_bytes = begin(first, at.skip) / ALIGN * ALIGN;
    let most = start_bytes + BUFFER.to_u64();
    let mut end_bytes = align_up(end(first)).min(most);
    let mut next = at.piece;
    // Include pieces that begin before the aligned end, because no two jobs may share an aligned
    // unit.
    while let Some(piece) = pieces.get(next + 1) {
        let from = begin(piece, 0);
        if from >= end_bytes && (end_bytes == most || from > end_bytes + MAX_GAP || from >= most) {
            break;
        }
        next += 1;
        end_bytes = end_bytes.max(align_up(end(piece)).min(most));
    }
    let mut cursor = Cursor { piece: next, skip: 0 };
    if end(&pieces[next]) > end_bytes {
        let block = end_bytes >> block_log;
        cursor.skip = (block - pieces[next].start.0).fit_u32();
    } else {
        cursor.piece += 1;
    }
    Some((Job { start_bytes, end_bytes, from: at }, cursor))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::What;
    use extant_format::VolumeBlock;

    /// Pieces of random lengths with random gaps.
    fn pieces(seed: u64) -> Vec<Piece> {
        let mut rng = extant_rt::Rng::new(seed);
        let mut at = rng.below(5);
        (0..200)
            .map(|n| {
                let gap = [0, 0, 0, 1, 3, 7, 100, 5000][rng.below(8) as usize];
                let blocks = [1, 1, 2, 3, 5, 600, 5000][rng.below(7) as usize];
                let piece = Piece { start: VolumeBlock(at + gap), blocks, what: What::Attrs(n) };
                at = piece.start.0 + u64::from(blocks);
                piece
            })
            .collect()
    }

    #[test]
    fn jobs_are_aligned_disjoint_and_complete() {
        for (seed, block_log) in (0..40).zip([10, 11, 12, 13, 16].into_iter().cycle()) {
            let pieces = pieces(seed);
            let last = pieces.last().unwrap();
            let volume_bytes = (last.start.0 + u64::from(last.blocks) + seed % 3) << block_log;
            let mut cursor = Cursor { piece: 0, skip: 0 };
            let mut end = 0;
            let mut covered = 0;
            while let Some((job, next)) = job_from(&pieces, cursor, block_log, volume_bytes) {
                assert!(
                    job.start_bytes >= end && job.start_bytes.is_multiple_of(ALIGN),
                    "seed {seed}: {job:?}"
                );
                assert!(
                    job.end_bytes.is_multiple_of(ALIGN) || job.end_bytes == volume_bytes,
                    "seed {seed}: {job:?}"
                );
                assert!(job.end_bytes - job.start_bytes <= BUFFER as u64, "seed {seed}: {job:?}");
                end = job.end_bytes;
                let done = |at: Cursor| {
                    let whole: u64 = pieces[..at.piece].iter().map(|piece| u64::from(piece.blocks)).sum();
                    whole + u64::from(at.skip)
                };
                covered = done(next);
                assert!(covered > done(cursor), "seed {seed}: a job does something");
                if let Some(piece) = pieces.get(next.piece) {
                    let rest = (piece.start.0 + u64::from(next.skip)) << block_log;
                    assert!(rest >= job.end_bytes, "seed {seed}: nothing is left behind in a job's range");
                }
                cursor = next;
            }
            assert_eq!(covered, pieces.iter().map(|piece| u64::from(piece.blocks)).sum::<u64>());
        }
    }
}
