//! Contents of small files on their way to the device.

use super::{STAGED_BYTES, Waiting};
use crate::Error;
use crate::names::Namespace;
use crate::writer::Writer;
use extant_block::{Bio, BioFlags, Buf, Op, Sector, Segment};
use extant_format::UintExt;
use futures_util::future::join_all;
use std::sync::Arc;

/// What became of contents.
#[derive(Debug)]
pub(super) struct Written {
    /// An error comes with the first byte that may not be written.
    pub(super) result: Result<(), (usize, Error)>,
    /// The memory, to be used again.
    buf: Option<Arc<Buf>>,
}

impl Written {
    /// The result if the task that wrote the contents has ended without one.
    pub(super) fn unknown() -> Self {
        Self { result: Err((0, Error::Defect)), buf: None }
    }
}

/// Contents on their way to the device, in the order of the files.
#[derive(Debug, Default)]
pub(super) struct Staged {
    /// Made when it is first needed.
    buf: Option<Arc<Buf>>,
    /// The next one.
    spare: Option<Arc<Buf>>,
    pub(super) len: usize,
    runs: Vec<Run>,
}

/// Adjacent sectors.
#[derive(Clone, Copy, Debug)]
struct Run {
    start: Sector,
    /// Where its bytes are among those that are staged.
    at: usize,
    len: usize,
}

impl Staged {
    /// Adds bytes for the sectors from `start` on, and zeros to the end of their last block. There
    /// is room for them.
    pub(super) fn add(&mut self, start: Sector, bytes: &[u8], block_bytes: usize) {
        let (at, len) = (self.len, bytes.len().next_multiple_of(block_bytes));
        let new = || self.spare.take().unwrap_or_else(|| Arc::new(Buf::stale(STAGED_BYTES)));
        let buf = self.buf.get_or_insert_with(new);
        if Arc::get_mut(buf).is_none() {
            // A write whose caller was dropped still reads the old buffer.
            *buf = Arc::new(Buf::from_slice(buf));
        }
        let to = &mut Arc::get_mut(buf).expect("nobody else has it")[at..at + len];
        let (data, padding) = to.split_at_mut(bytes.len());
        data.copy_from_slice(bytes);
        padding.fill(0);
        self.len += len;
        match self.runs.last_mut() {
            Some(last) if last.start.0 + last.len.to_u64() / Sector::BYTES == start.0 => last.len += len,
            _ => self.runs.push(Run { start, at, len }),
        }
    }

    /// Takes all that is staged.
    pub(super) fn take(&mut self) -> Self {
        let spare = self.spare.take();
        std::mem::replace(self, Self { spare, ..Self::default() })
    }

    /// Takes back memory that was written.
    pub(super) fn reuse(&mut self, written: &mut Written) {
        self.spare = written.buf.take().or(self.spare.take());
    }

    /// Writes everything staged. `of` lives until every write has ended, even if the caller is
    /// dropped: the blocks of these files must not be given to other files meanwhile.
    pub(super) async fn write(self, namespace: Arc<Namespace>, of: Arc<Vec<Waiting>>) -> Written {
        let mut written = Written { result: Ok(()), buf: self.buf.clone() };
        if let Some(buf) = self.buf.filter(|_| !self.runs.is_empty()) {
            written.result = write(&self.runs, &buf, &namespace.writer, &of).await;
        }
        written
    }
}

async fn write(
    runs: &[Run],
    buf: &Arc<Buf>,
    writer: &Writer,
    of: &Arc<Vec<Waiting>>,
) -> Result<(), (usize, Error)> {
    writer.check_may_change_data().map_err(|error| (0, error))?;
    let device = &**writer.disk.device();
    let most = device.limits().max_bytes.min(STAGED_BYTES.to_u64()).to_usize();
    let part = |&Run { start, at, len }: &Run| {
        (0..len).step_by(most).map(move |skip| {
            let segment = Segment::shared(buf.clone(), at + skip, most.min(len - skip));
            let start = Sector(start.0 + skip.to_u64() / Sector::BYTES);
            let mut bio = Bio::new(Op::Write, start, vec![segment]);
            bio.flags = BioFlags::SYNC;
            let ended = extant_block::until_end(&mut bio);
            let of = of.clone();
            bio.before_end(move |_| drop(of));
            device.submit(bio);
            async move { ended.await.1.map_err(|error| (at + skip, Error::from(error))) }
        })
    };
    let writes: Vec<_> = runs.iter().flat_map(part).collect();
    join_all(writes).await.into_iter().collect()
}
