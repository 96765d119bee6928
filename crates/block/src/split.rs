//! Splits one bio over several devices or commands.

use crate::{Bio, BioFlags, Device, IoError, Limits, Op, Sector, Segment};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Where a part of a bio goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// First sector on the device below.
    pub start: Sector,
    /// Length in bytes.
    pub bytes: u64,
}

/// Splits a bio into consecutive pieces of the same total length. The bio ends when all pieces have
/// ended, with the error of the first piece, in the order of the bio, that failed.
pub fn split(mut bio: Bio, pieces: &[Piece]) -> Vec<Bio> {
    assert_eq!(pieces.iter().map(|p| p.bytes).sum::<u64>(), bio.bytes, "the pieces make up the bio");
    if let [piece] = pieces {
        return vec![moved(bio, piece.start)];
    }
    let segments = std::mem::take(&mut bio.segments);
    let (op, flags, stream) = (bio.op, bio.flags, bio.stream);
    let join = Arc::new(Join {
        left: AtomicUsize::new(pieces.len()),
        parent: Mutex::new(Some(bio)),
        memory: Mutex::new(Some(Arc::new(segments))),
        error: Mutex::new(None),
    });
    let memory = join.memory.lock().clone().expect("just made");
    let mut cursor = Cursor { segment: 0, offset: 0 };
    let children = pieces.iter().enumerate().map(|(index, piece)| {
        let mut child = Bio::range(op, piece.start, piece.bytes);
        child.segments = cursor.take(&memory, piece.bytes);
        (child.flags, child.stream) = (flags, stream);
        let join = join.clone();
        child.on_end(Box::new(move |child, result| {
            drop(child);
            if let Err(error) = result {
                let mut first = join.error.lock();
                if first.as_ref().is_none_or(|(other, _)| index < *other) {
                    *first = Some((index, error));
                }
            }
            if join.left.fetch_sub(1, Ordering::AcqRel) == 1 {
                join.finish();
            }
        }));
        child
    });
    children.collect()
}

/// Moves the bio to another sector; when it ends, it has its own start again.
pub(crate) fn moved(mut bio: Bio, start: Sector) -> Bio {
    let home = std::mem::replace(&mut bio.start, start);
    if let Some(completion) = bio.take_completion() {
        bio.on_end(Box::new(move |mut bio, result| {
            bio.start = home;
            completion(bio, result);
        }));
    }
    bio
}

struct Join {
    left: AtomicUsize,
    parent: Mutex<Option<Bio>>,
    memory: Mutex<Option<Arc<Vec<Segment>>>>,
    error: Mutex<Option<(usize, IoError)>>,
}

impl Join {
    fn finish(&self) {
        let mut parent = self.parent.lock().take().expect("the last piece ends once");
        let memory = self.memory.lock().take().expect("the last piece ends once");
        parent.segments = Arc::into_inner(memory).expect("every piece has been dropped");
        let error = self.error.lock().take();
        parent.end(error.map_or(Ok(()), |(_, error)| Err(error)));
    }
}

struct Cursor {
    segment: usize,
    offset: usize,
}

impl Cursor {
    fn take(&mut self, memory: &Arc<Vec<Segment>>, bytes: u64) -> Vec<Segment> {
        let mut pieces = Vec::new();
        let mut left = if memory.is_empty() { 0 } else { bytes };
        while left > 0 {
            let segment = &memory[self.segment];
            let n = left.min((segment.len() - self.offset) as u64) as usize;
            if n > 0 {
                // SAFETY: the pieces share ownership of the vector. No one accesses it until the
                // last piece is dropped (`Join::finish` takes it apart only then), and the cursor
                // never yields a byte twice.
                pieces.push(unsafe { Segment::piece(segment, self.offset, n, memory.clone()) });
                self.offset += n;
                left -= n as u64;
            }
            if self.offset == segment.len() {
                (self.segment, self.offset) = (self.segment + 1, 0);
            }
        }
        pieces
    }
}

/// Flushes all of `devices`, then calls `done` with the first error, in the order of the devices.
pub(crate) fn flush_all(
    devices: impl ExactSizeIterator<Item = Arc<dyn Device>>,
    done: impl FnOnce(Result<(), IoError>) + Send + 'static,
) {
    struct Flushes<F> {
        left: usize,
        error: Option<(usize, IoError)>,
        done: Option<F>,
    }
    let flushes = Arc::new(Mutex::new(Flushes { left: devices.len(), error: None, done: Some(done) }));
    for (index, device) in devices.enumerate() {
        let flushes = flushes.clone();
        let mut bio = Bio::range(Op::Flush, Sector(0), 0);
        bio.flags = BioFlags::SYNC;
        bio.on_end(Box::new(move |_, result| {
            let mut state = flushes.lock();
            if let Err(error) = result
                && state.error.as_ref().is_none_or(|(other, _)| index < *other)
            {
                state.error = Some((index, error));
            }
            state.left -= 1;
            if state.left == 0 {
                let done = state.done.take().expect("the last flush ends once");
                let result = state.error.take().map_or(Ok(()), |(_, error)| Err(error));
                drop(state);
                done(result);
            }
        }));
        device.submit(bio);
    }
}

/// How a device spreads a bio over several others.
pub(crate) trait Spread: Send + Sync + 'static {
    /// The devices below.
    fn devices(&self) -> &[Arc<dyn Device>];
    /// Where the bytes `start..end` go, in order.
    fn pieces(&self, op: Op, start: u64, end: u64) -> Vec<(usize, Piece)>;
}

/// Executes a bio on the devices below. A flush, including a preflush, goes to all of them.
pub(crate) fn spread<S: Spread>(over: &Arc<S>, limits: &Limits, mut bio: Bio) {
    let (start, end) = match limits.admit(&bio) {
        Ok(range) => range,
        Err(kind) => return bio.end_as(&limits.name, Err(kind)),
    };
    if bio.is_flush() {
        return flush_all(over.devices().iter().cloned(), move |result| bio.end(result));
    }
    if bio.flags.contains(BioFlags::PREFLUSH) && over.devices().len() > 1 {
        bio.flags.remove(BioFlags::PREFLUSH);
        let over = over.clone();
        return flush_all(over.devices().to_vec().into_iter(), move |result| match result {
            Ok(()) => start_pieces(&*over, bio, start, end),
            Err(error) => bio.end(Err(error)),
        });
    }
    start_pieces(&**over, bio, start, end);
}

fn start_pieces<S: Spread>(over: &S, bio: Bio, start: u64, end: u64) {
    let pieces = over.pieces(bio.op, start, end);
    if pieces.is_empty() {
        return bio.end(Ok(()));
    }
    let places: Vec<Piece> = pieces.iter().map(|(_, piece)| *piece).collect();
    for (child, (device, _)) in split(bio, &places).into_iter().zip(pieces) {
        over.devices()[device].submit(child);
    }
}

/// Limits that hold for all of `devices`, for a device of `capacity_bytes` over them.
pub(crate) fn common_limits(name: &str, devices: &[Arc<dyn Device>], capacity_bytes: u64) -> Limits {
    let mut limits = Limits::new(name, capacity_bytes);
    limits.max_bytes = u64::MAX;
    limits.max_segments = u32::MAX;
    for below in devices.iter().map(|d| d.limits()) {
        limits.block_bytes = limits.block_bytes.max(below.block_bytes);
        limits.physical_block_bytes = limits.physical_block_bytes.max(below.physical_block_bytes);
        limits.max_bytes = limits.max_bytes.min(below.max_bytes);
        limits.max_segments = limits.max_segments.min(below.max_segments);
        limits.volatile_cache |= below.volatile_cache;
        limits.read_only |= below.read_only;
    }
    limits
}

/// Why devices cannot be combined.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LayoutError {
    /// There is nothing to combine.
    #[error("a device over others needs at least one")]
    NoDevices,
    /// A chunk must be a positive multiple of the block size below.
    #[error(
        "a chunk of {chunk_bytes} bytes is not a positive multiple of the block size, {block_bytes} bytes"
    )]
    Chunk {
        /// The requested chunk size.
        chunk_bytes: u64,
        /// Block size of the devices below.
        block_bytes: u32,
    },
    /// A part lies outside its device.
    #[error("{device}: the part {start}+{sectors} lies outside its {capacity} sectors")]
    Part {
        /// The device's name.
        device: String,
        /// First sector of the part.
        start: Sector,
        /// Length of the part in sectors.
        sectors: u64,
        /// The device's size in sectors.
        capacity: u64,
    },
}
