//! A damaged device, with its known damage and the contents that were restored.

use crate::{Bio, Device, IoErrorKind, Limits, Op, Piece, split, wide};
use parking_lot::Mutex;
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// Ranges of bytes, in order, neither overlapping nor adjacent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Spans(Vec<Range<u64>>);

impl Spans {
    /// Adds a range.
    pub fn insert(&mut self, mut range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let from = self.0.partition_point(|span| span.end < range.start);
        let to = self.0.partition_point(|span| span.start <= range.end);
        if let Some(first) = self.0[from..to].first() {
            range.start = range.start.min(first.start);
        }
        if let Some(last) = self.0[from..to].last() {
            range.end = range.end.max(last.end);
        }
        self.0.splice(from..to, [range]);
    }

    /// Removes a range.
    pub fn remove(&mut self, range: Range<u64>) {
        let from = self.0.partition_point(|span| span.end <= range.start);
        let to = self.0.partition_point(|span| span.start < range.end);
        if range.is_empty() || from >= to {
            return;
        }
        let before = self.0[from].start..range.start;
        let after = range.end..self.0[to - 1].end;
        self.0.splice(from..to, [before, after].into_iter().filter(|rest| rest.start < rest.end));
    }

    /// The parts within a range, in order.
    pub fn within(&self, range: Range<u64>) -> Vec<Range<u64>> {
        let from = self.0.partition_point(|span| span.end <= range.start);
        let parts = self.0[from..].iter().take_while(|span| span.start < range.end);
        parts.map(|span| span.start.max(range.start)..span.end.min(range.end)).collect()
    }

    /// The ranges, in order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = Range<u64>> + '_ {
        self.0.iter().cloned()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Bytes of all ranges together.
    pub fn bytes(&self) -> u64 {
        self.0.iter().map(|span| span.end - span.start).sum()
    }

    /// The first range that ends after `at`.
    fn after(&self, at: u64) -> Option<Range<u64>> {
        self.0.get(self.0.partition_point(|span| span.end <= at)).cloned()
    }
}

/// A read-only view of a damaged device. Reads of its holes, ranges known to be lost, fail. Reads
/// of its patches, ranges that were reconstructed, come from memory.
///
/// Clones share the list of ranges that could not be read.
#[derive(Clone, Debug)]
pub struct Mended {
    inner: Arc<dyn Device>,
    limits: Limits,
    holes: Spans,
    patches: BTreeMap<u64, Arc<[u8]>>,
    unread: Arc<Mutex<Spans>>,
}

/// Where the bytes of a part of a read come from.
enum Found {
    Below,
    Hole,
    Patch(u64, Arc<[u8]>),
}

impl Mended {
    /// `inner`, with `holes`, which fail. A hole is extended to whole blocks of the device.
    pub fn new(inner: Arc<dyn Device>, holes: &Spans) -> Self {
        let limits = Limits { read_only: true, ..inner.limits().clone() };
        let (patches, unread) = (BTreeMap::new(), Arc::default());
        Self { inner, limits, holes: Spans::default(), patches, unread }.with_holes(holes)
    }

    /// The same device with more holes.
    #[must_use]
    pub fn with_holes(mut self, holes: &Spans) -> Self {
        let block = u64::from(self.limits.block_bytes);
        for hole in holes.iter() {
            self.holes.insert(hole.start / block * block..hole.end.next_multiple_of(block));
        }
        self
    }

    /// The same device with `bytes` in place of its own at byte `at`. Offset and length are
    /// multiples of the block size, and patches do not overlap. A patch also covers holes.
    #[must_use]
    pub fn with_patch(mut self, at: u64, bytes: impl Into<Arc<[u8]>>) -> Self {
        let bytes = bytes.into();
        let block = u64::from(self.limits.block_bytes);
        assert!((at | wide(bytes.len())).is_multiple_of(block), "patches are whole blocks");
        self.patches.insert(at, bytes);
        self
    }

    /// The ranges that failed to be read and were not read later, holes included. A shorter read
    /// that succeeds removes its range.
    pub fn unread(&self) -> Spans {
        self.unread.lock().clone()
    }

    /// Where the bytes at `at` come from, and up to where that holds (at most `end`).
    fn found(&self, at: u64, end: u64) -> (Found, u64) {
        let before = self.patches.range(..=at).next_back();
        if let Some((&start, bytes)) = before
            && at < start + wide(bytes.len())
        {
            return (Found::Patch(start, bytes.clone()), end.min(start + wide(bytes.len())));
        }
        let end = self.patches.range(at..end).next().map_or(end, |(&start, _)| start);
        match self.holes.after(at) {
            Some(hole) if hole.start <= at => (Found::Hole, end.min(hole.end)),
            Some(hole) => (Found::Below, end.min(hole.start)),
            None => (Found::Below, end),
        }
    }

    fn pass(&self, mut bio: Bio, range: Range<u64>) {
        let unread = self.unread.clone();
        bio.before_end(move |result| match result {
            Err(_) => unread.lock().insert(range),
            Ok(()) => unread.lock().remove(range),
        });
        self.inner.submit(bio);
    }
}

impl Device for Mended {
    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn submit(&self, bio: Bio) {
        let (start, end) = match self.limits.admit(&bio) {
            Ok(range) if bio.op == Op::Read => range,
            Ok(_) => return bio.end(Ok(())),
            Err(kind) => return bio.end_as(&self.limits.name, Err(kind)),
        };
        let mut parts = Vec::new();
        let mut at = start;
        while at < end {
            let (found, to) = self.found(at, end);
            parts.push((found, at..to));
            at = to;
        }
        if let [(Found::Below, range)] = &parts[..] {
            let range = range.clone();
            return self.pass(bio, range);
        }
        let sector = |at: u64| crate::Sector::containing(at);
        let pieces: Vec<Piece> = parts
            .iter()
            .map(|(_, range)| Piece { start: sector(range.start), bytes: range.end - range.start })
            .collect();
        for (mut bio, (found, range)) in split(bio, &pieces).into_iter().zip(parts) {
            match found {
                Found::Below => self.pass(bio, range),
                Found::Hole => {
                    self.unread.lock().insert(range);
                    bio.end_as(&self.limits.name, Err(IoErrorKind::Os(Errno::IO.raw_os_error())));
                }
                Found::Patch(from, bytes) => {
                    let mut left = &bytes[(range.start - from) as usize..(range.end - from) as usize];
                    for memory in bio.memory_from_mut(0) {
                        let (now, later) = left.split_at(memory.len());
                        memory.copy_from_slice(now);
                        left = later;
                    }
                    bio.end(Ok(()));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Buf, MemDevice, Sector, read, write};
    use futures_util::FutureExt;

    #[test]
    fn spans_join_and_split() {
        let mut spans = Spans::default();
        for range in [10..20, 30..40, 0..5, 20..30, 50..50] {
            spans.insert(range);
        }
        assert_eq!(spans.iter().collect::<Vec<_>>(), [0..5, 10..40]);
        spans.remove(15..18);
        spans.remove(38..60);
        spans.remove(6..9);
        assert_eq!(spans.iter().collect::<Vec<_>>(), [0..5, 10..15, 18..38]);
        assert_eq!(spans.bytes(), 30);
        assert_eq!(spans.within(3..12), [3..5, 10..12]);
        assert_eq!(spans.within(5..10), []);
    }

    #[test]
    fn a_mended_device_has_patches_and_fails_in_holes_only() {
        let below = Arc::new(MemDevice::new(8192));
        write(&*below, Sector(0), Buf::from_slice(&[1; 8192])).now_or_never().unwrap().unwrap();
        let mut holes = Spans::default();
        holes.insert(1100..2000);
        let device = Mended::new(below, &holes).with_patch(1536, vec![2; 1024]);
        let read = |sector, len| read(&device, Sector(sector), len).now_or_never().unwrap();
        assert!(read(0, 8192).is_err());
        let mut unread = Spans::default();
        unread.insert(1024..1536);
        assert_eq!(device.unread(), unread);
        let bytes = read(3, 4096).unwrap();
        assert!(bytes[..1024].iter().all(|&b| b == 2) && bytes[1024..].iter().all(|&b| b == 1));
        assert_eq!(read(0, 1024).unwrap()[..], [1; 1024]);
        assert_eq!(read(2, 512).unwrap_err().kind, IoErrorKind::Os(5));
    }
}
