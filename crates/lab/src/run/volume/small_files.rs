//! Small files whose blocks are found as Linux finds them, when they are written back.

use extant_block::{Bio, Buf, Device, IoError, Op, Sector, StreamId, flush};
use extant_cache::Cost as CacheCost;
use extant_history::alloc::{Mballoc, Work};
use extant_rt::{Rt, WaitsOn};
use parking_lot::Mutex;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Poll, Waker};

const BLOCK_BYTES: u64 = super::BLOCK_BYTES;

/// The files of a volume, and its allocator.
pub(super) struct SmallFiles {
    allocator: Mutex<Mballoc>,
    device: Arc<dyn Device>,
    files: Mutex<Vec<Arc<SmallFile>>>,
}

/// A file that is written through the page cache once, from its beginning on.
#[derive(Default)]
pub(crate) struct SmallFile {
    bytes: Mutex<u64>,
}

impl SmallFile {
    /// Puts bytes into the page cache, which costs what it costs there.
    pub(super) fn write(&self, rt: &Rt, at: u64, len: u64) {
        let pages = len.div_ceil(BLOCK_BYTES);
        rt.charge(CacheCost::PageCopy(pages));
        rt.charge(CacheCost::PageInsert(pages));
        rt.charge(CacheCost::PageDirty(pages));
        let mut bytes = self.bytes.lock();
        *bytes = (*bytes).max(at + len);
    }
}

/// Bios under way.
#[derive(Default)]
struct UnderWay {
    state: Mutex<(usize, Option<Waker>, Option<IoError>)>,
}

impl UnderWay {
    fn submit(self: &Arc<Self>, device: &dyn Device, mut bio: Bio) {
        self.state.lock().0 += 1;
        let port = self.clone();
        bio.on_end(Box::new(move |_, result| {
            let waker = {
                let mut state = port.state.lock();
                state.0 -= 1;
                state.2 = state.2.take().or(result.err());
                state.1.take()
            };
            waker.into_iter().for_each(Waker::wake);
        }));
        device.submit(bio);
    }

    /// Waits until no more than so many are under way.
    async fn at_most(&self, rt: &Rt, most: usize) -> Result<(), IoError> {
        poll_fn(|cx| {
            let mut state = self.state.lock();
            if let Some(error) = state.2.clone() {
                return Poll::Ready(Err(error));
            }
            if state.0 <= most {
                return Poll::Ready(Ok(()));
            }
            state.1 = Some(cx.waker().clone());
            drop(state);
            rt.waits_on(|| WaitsOn::Other("write-back of small files", 0));
            Poll::Pending
        })
        .await
    }
}

/// Bios that the flusher has under way at most (`nr_requests`).
const MOST_UNDER_WAY: usize = 128;

impl SmallFiles {
    pub(super) fn new(allocator: Mballoc, device: Arc<dyn Device>) -> Self {
        Self { allocator: Mutex::new(allocator), device, files: Mutex::default() }
    }

    pub(super) fn make(&self) -> Arc<SmallFile> {
        let file = Arc::<SmallFile>::default();
        self.files.lock().push(file.clone());
        file
    }

    /// The work of all searches, and how many those were.
    pub(super) fn work(&self) -> (Work, u64) {
        self.allocator.lock().work()
    }

    /// Writes all files back, one after the other, as the flusher of the volume does.
    pub(super) async fn write_back(&self, rt: &Rt) -> Result<(), String> {
        let failed = |error: &dyn std::fmt::Display| error.to_string();
        let under_way = Arc::<UnderWay>::default();
        let files = std::mem::take(&mut *self.files.lock());
        for file in files {
            let mut left = file.bytes.lock().div_ceil(BLOCK_BYTES);
            while left > 0 {
                let (blocks, work) = self.allocator.lock().allocate(left).map_err(|error| failed(&error))?;
                for cost in work.costs() {
                    rt.charge(cost);
                    // The search yields at each group (`cond_resched()`).
                    rt.resched().await;
                }
                left -= blocks.end - blocks.start;
                let start = Sector(blocks.start * (BLOCK_BYTES / Sector::BYTES));
                let data = Buf::zeroed(((blocks.end - blocks.start) * BLOCK_BYTES) as usize);
                let mut bio = Bio::new(Op::Write, start, vec![data.into()]);
                bio.stream = StreamId(u64::MAX);
                under_way.submit(&*self.device, bio);
                under_way.at_most(rt, MOST_UNDER_WAY).await.map_err(|error| failed(&error))?;
            }
        }
        under_way.at_most(rt, 0).await.map_err(|error| failed(&error))?;
        flush(&*self.device).await.map_err(|error| failed(&error))
    }
}
