//! Runs of blocks, read ahead of the tasks that look at them.

use super::{Pending, Piece, Source};
use extant_format::UintExt;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

/// After this many reads in a row that complete at once, assume that blocks are cached.
const QUICK: usize = 16;
/// Before one read in this many, look whether its first block is cached. If it is not, this starts
/// a read of that block, whose result is dropped.
const PROBE: usize = 32;

/// Runs of blocks that are read in order, each with what it is for.
///
/// Several tasks may take pieces of one feed. Reads start in order. While one task works on a
/// piece, the reads for other tasks stay in flight.
pub(crate) struct Feed<I, T> {
    source: Source,
    state: Mutex<State<I, T>>,
    waiting: Arc<Waiting>,
}

struct State<I, T> {
    runs: I,
    /// Each with the length of its run in blocks.
    ahead: VecDeque<(T, u32, Ahead)>,
    /// Bytes of the reads ahead.
    bytes: usize,
    /// Number of reads in a row that completed at once.
    quick: usize,
    /// Number of runs so far.
    made: usize,
}

enum Ahead {
    Ended(Piece),
    Waiting(Pending, Arc<Mark>),
    /// To be read by the task that takes it.
    Wanted(u64, u32),
}

/// Tasks that wait until any read ends.
#[derive(Default)]
struct Waiting(Mutex<Vec<Waker>>);

impl Waiting {
    fn wake_all(&self) {
        let woken = std::mem::take(&mut *self.0.lock());
        woken.into_iter().for_each(Waker::wake);
    }
}

/// The waker of a read. It notes that the read may have ended, and wakes the waiting tasks.
struct Mark {
    is_woken: AtomicBool,
    waiting: Arc<Waiting>,
}

impl Wake for Mark {
    fn wake(self: Arc<Self>) {
        self.is_woken.store(true, Ordering::Release);
        self.waiting.wake_all();
    }
}

impl<I: Iterator<Item = (T, u64, u32)>, T> Feed<I, T> {
    pub(crate) fn new(source: Source, runs: I) -> Self {
        let state = State { runs, ahead: VecDeque::new(), bytes: 0, quick: QUICK, made: 0 };
        Self { source, state: Mutex::new(state), waiting: Arc::default() }
    }

    /// The next run; `None` after the last, or if the check has to stop.
    pub(crate) async fn next(&self) -> Option<(T, Piece)> {
        if self.source.has_to_stop() {
            return None;
        }
        let (what, ahead) = {
            let mut state = self.state.lock();
            state.read_ahead(&self.source, &self.waiting);
            state.take(0, &self.source)?
        };
        Some((what, self.end(ahead).await))
    }

    /// The next run, or any run that has been read.
    pub(crate) async fn next_of(&self, may_mix: bool) -> Option<(T, Piece)> {
        match may_mix {
            true => self.next_ended().await,
            false => self.next().await,
        }
    }

    /// The first run that has been read; `None` after the last, or if the check has to stop. A disk
    /// may end later reads before earlier ones, and a task should not wait while there is work.
    async fn next_ended(&self) -> Option<(T, Piece)> {
        let (what, ahead) = poll_fn(|cx| {
            let found = self.poll_ended(cx);
            if let Poll::Ready(None) = found {
                // Nothing is left for the others, either.
                self.waiting.wake_all();
            }
            found
        })
        .await?;
        Some((what, self.end(ahead).await))
    }

    fn poll_ended(&self, cx: &Context<'_>) -> Poll<Option<(T, Ahead)>> {
        if self.source.has_to_stop() {
            return Poll::Ready(None);
        }
        let mut state = self.state.lock();
        state.read_ahead(&self.source, &self.waiting);
        if let Some(n) = state.first_ended() {
            return Poll::Ready(state.take(n, &self.source));
        }
        if state.ahead.is_empty() {
            return Poll::Ready(None);
        }
        self.waiting.0.lock().push(cx.waker().clone());
        // A read may have ended before this task was in the list of those to wake.
        match state.first_ended() {
            Some(n) => Poll::Ready(state.take(n, &self.source)),
            None => Poll::Pending,
        }
    }

    async fn end(&self, ahead: Ahead) -> Piece {
        match ahead {
            Ahead::Ended(piece) => piece,
            Ahead::Waiting(read, _) => read.await,
            Ahead::Wanted(start, blocks) => self.read_now(start, blocks).await,
        }
    }

    /// Reads a run that is probably cached.
    async fn read_now(&self, start: u64, blocks: u32) -> Piece {
        let mut read = self.source.read(start, blocks);
        match poll_once(&mut read, Waker::noop()) {
            Poll::Ready(piece) => piece,
            Poll::Pending => {
                self.state.lock().quick = 0;
                read.await
            }
        }
    }
}

impl<I: Iterator<Item = (T, u64, u32)>, T> State<I, T> {
    /// Takes a run off the list.
    fn take(&mut self, n: usize, source: &Source) -> Option<(T, Ahead)> {
        let (what, blocks, ahead) = self.ahead.remove(n)?;
        self.bytes -= blocks.to_usize() * source.block_bytes();
        Some((what, ahead))
    }

    /// The first run that the task can work on now: it has been read, or the task reads it itself.
    fn first_ended(&mut self) -> Option<usize> {
        self.ahead.iter_mut().position(|(_, _, ahead)| {
            if let Ahead::Waiting(read, mark) = ahead
                && mark.is_woken.swap(false, Ordering::Acquire)
                && let Poll::Ready(piece) = poll_once(read, &Waker::from(mark.clone()))
            {
                *ahead = Ahead::Ended(piece);
            }
            !matches!(ahead, Ahead::Waiting(..))
        })
    }

    /// Starts reads. Reads that complete at once come from the page cache. The task that takes such
    /// a run reads it, so that the bytes are still in the processor's cache when they are checked.
    /// Otherwise many reads are in flight. They go past the page cache, because filling it costs as
    /// much processor time as the check itself.
    fn read_ahead(&mut self, source: &Source, waiting: &Arc<Waiting>) {
        let (most, most_bytes) = source.limits_in_flight();
        // Reads are started several at a time, because that costs one system call, and wakes the
        // disk once.
        if self.quick < QUICK && source.may_pass_cache() {
            if self.ahead.len() <= most / 8 * 7 && self.bytes <= most_bytes / 8 * 7 {
                self.start_together(source, waiting, most, most_bytes);
            }
            return;
        }
        while self.ahead.is_empty()
            || self.quick < QUICK && self.ahead.len() < most && self.bytes < most_bytes
        {
            let Some((what, start, blocks)) = self.runs.next() else { return };
            let ahead = match self.quick >= QUICK {
                true => Ahead::Wanted(start, blocks),
                false => {
                    let ahead = to_wait(source.read(start, blocks), waiting);
                    self.quick = if matches!(ahead, Ahead::Ended(_)) { self.quick + 1 } else { 0 };
                    ahead
                }
            };
            self.push(source, what, blocks, ahead);
        }
    }

    fn push(&mut self, source: &Source, what: T, blocks: u32, ahead: Ahead) {
        self.made += 1;
        self.bytes += blocks.to_usize() * source.block_bytes();
        self.ahead.push_back((what, blocks, ahead));
    }

    /// Starts reads past the page cache until enough of them are in flight, or a block is cached.
    fn start_together(&mut self, source: &Source, waiting: &Arc<Waiting>, most: usize, most_bytes: usize) {
        let (mut whats, mut places) = (Vec::new(), Vec::new());
        let mut bytes = self.bytes;
        let mut cached = None;
        while self.ahead.len() + places.len() < most && bytes < most_bytes {
            let Some((what, start, blocks)) = self.runs.next() else { break };
            let is_probe = (self.made + places.len()).is_multiple_of(PROBE);
            if is_probe && poll_once(&mut source.read(start, 1), Waker::noop()).is_ready() {
                cached = Some((what, start, blocks));
                break;
            }
            bytes += blocks.to_usize() * source.block_bytes();
            whats.push(what);
            places.push((start, blocks));
        }
        let reads = source.read_together(&places);
        for ((what, (_, blocks)), read) in whats.into_iter().zip(places).zip(reads) {
            self.push(source, what, blocks, to_wait(read, waiting));
        }
        if let Some((what, start, blocks)) = cached {
            self.quick = QUICK;
            self.push(source, what, blocks, Ahead::Wanted(start, blocks));
        }
    }
}

/// Polls a read. If it has not ended, it will wake the tasks that wait for any read.
fn to_wait(mut read: Pending, waiting: &Arc<Waiting>) -> Ahead {
    let mark = Arc::new(Mark { is_woken: AtomicBool::new(false), waiting: waiting.clone() });
    match poll_once(&mut read, &Waker::from(mark.clone())) {
        Poll::Ready(piece) => Ahead::Ended(piece),
        Poll::Pending => Ahead::Waiting(read, mark),
    }
}

fn poll_once(read: &mut Pending, waker: &Waker) -> Poll<Piece> {
    read.as_mut().poll(&mut Context::from_waker(waker))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Cancel;
    use crate::limits::Limits;
    use extant_block::{Bio, Device, MemDevice};
    use extant_format::BlockSize;
    use std::pin::pin;

    /// A device that holds back some reads: those of these sectors.
    #[derive(Debug)]
    struct Holding {
        inner: MemDevice,
        sectors: [u64; 2],
        held: Mutex<Vec<Bio>>,
    }

    impl Device for Holding {
        fn limits(&self) -> &extant_block::Limits {
            self.inner.limits()
        }

        fn submit(&self, bio: Bio) {
            match self.sectors.contains(&bio.start.0) {
                true => self.held.lock().push(bio),
                false => self.inner.submit(bio),
            }
        }
    }

    #[test]
    fn a_slow_read_does_not_hold_back_others() {
        let inner = MemDevice::new(64 << 10);
        let device = Arc::new(Holding { inner, sectors: [8, 16], held: Mutex::default() });
        let limits = Arc::new(Limits::new(None, Cancel::default()));
        let source = Source::new(device.clone(), BlockSize::K4, limits).with_depth(2, 8);
        let feed = Feed::new(source, (0..9_u64).map(|n| (n, n, 1)));
        let mut now = Context::from_waker(Waker::noop());
        let mut ended = || match pin!(feed.next_of(true)).poll(&mut now) {
            Poll::Ready(run) => run.map(|(n, piece)| {
                assert_eq!(piece.start(), n);
                n
            }),
            Poll::Pending => None,
        };
        assert_eq!(ended(), Some(0));
        // From here on it is known that blocks are not cached.
        let mut first = pin!(feed.next_of(true));
        assert!(first.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        let others: Vec<_> = std::iter::from_fn(&mut ended).collect();
        assert_eq!(others, (3..9).collect::<Vec<_>>());
        let held = std::mem::take(&mut *device.held.lock());
        held.into_iter().for_each(|bio| device.inner.submit(bio));
        assert!(first.poll(&mut Context::from_waker(Waker::noop())).is_ready());
        assert_eq!((ended(), ended()), (Some(2), None));
    }
}
