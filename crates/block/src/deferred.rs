//! A device whose changes wait in memory until they are applied or given up.

use crate::{Bio, BioFlags, Buf, Claim, Device, IoError, IoErrorKind, Limits, Op, Sector, Segment, execute};
use parking_lot::Mutex;
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// Keeps changes in memory, where reads find them, until [`Deferred::apply`] makes them on the
/// device below. If it is dropped before that, the device below stays as it was.
///
/// Nothing is durable before it is applied, even if a flush has succeeded.
pub struct Deferred {
    inner: Arc<dyn Device>,
    kept: Mutex<Kept>,
    /// Held until the changes are applied, so that no other writer opens the device before that.
    claim: Mutex<Option<Arc<Claim>>>,
}

/// Changes in order of submission, and what reads must find.
struct Kept {
    changes: Vec<Change>,
    newest: BTreeMap<u64, Newest>,
    /// Bytes of data that still fit.
    room_bytes: u64,
    /// Set once a write did not fit.
    is_full: bool,
}

/// A change or flush.
struct Change {
    op: Op,
    start: Sector,
    bytes: u64,
    flags: BioFlags,
    /// The data of a write; `None` for zeroes.
    data: Option<Arc<Buf>>,
}

/// The newest bytes of a range, which begins at its key.
#[derive(Clone)]
struct Newest {
    end: u64,
    /// The byte of the device where `data` begins.
    data_at: u64,
    /// `None` for zeroes.
    data: Option<Arc<Buf>>,
}

impl Kept {
    /// Makes a range read as these bytes, or as zeroes.
    fn cover(&mut self, start: u64, end: u64, data: Option<Arc<Buf>>) {
        if start == end {
            return;
        }
        let before = self.newest.range_mut(..start).next_back();
        if let Some((_, first)) = before
            && first.end > start
        {
            let rest = first.clone();
            first.end = start;
            self.newest.insert(start, rest);
        }
        while let Some((&at, next)) = self.newest.range(start..end).next() {
            let next = next.clone();
            self.newest.remove(&at);
            if next.end > end {
                self.newest.insert(end, next);
            }
        }
        self.newest.insert(start, Newest { end, data_at: start, data });
    }

    /// The newest bytes within a range, each part with its start.
    fn within(&self, start: u64, end: u64) -> Vec<(u64, Newest)> {
        let before = self.newest.range(..start).next_back().filter(|(_, newest)| newest.end > start);
        before
            .into_iter()
            .chain(self.newest.range(start..end))
            .map(|(&at, newest)| (at.max(start), Newest { end: newest.end.min(end), ..newest.clone() }))
            .collect()
    }

    fn keep(&mut self, limits: &Limits, bio: &Bio) -> Result<(), IoErrorKind> {
        let (start, end) = limits.admit(bio)?;
        let holds_data = bio.op == Op::Write && !bio.segments.iter().all(Segment::is_zeroes);
        let data = if holds_data {
            let Some(left) = self.room_bytes.checked_sub(bio.bytes) else {
                self.is_full = true;
                return Err(IoErrorKind::Os(Errno::NOSPC.raw_os_error()));
            };
            self.room_bytes = left;
            let mut data = Buf::zeroed(bio.bytes as usize);
            let mut at = 0;
            for segment in &bio.segments {
                data[at..at + segment.len()].copy_from_slice(segment.as_slice());
                at += segment.len();
            }
            Some(Arc::new(data))
        } else {
            None
        };
        if bio.op != Op::Flush {
            self.cover(start, end, data.clone());
        }
        let Bio { op, start, bytes, flags, .. } = *bio;
        self.changes.push(Change { op, start, bytes, flags, data });
        Ok(())
    }
}

impl Change {
    fn into_bio(self) -> Bio {
        let mut bio = match (self.op, self.data) {
            (Op::Write, Some(data)) => {
                let len = data.len();
                Bio::new(Op::Write, self.start, vec![Segment::shared(data, 0, len)])
            }
            (Op::Write, None) => {
                let zeroes =
                    |at: u64| Segment::zeroes((self.bytes - at).min(Segment::MAX_ZEROES as u64) as usize);
                let all = (0..self.bytes).step_by(Segment::MAX_ZEROES).map(zeroes);
                Bio::new(Op::Write, self.start, all.collect())
            }
            (op, _) => Bio::range(op, self.start, self.bytes),
        };
        bio.flags = self.flags;
        bio
    }
}

impl Deferred {
    /// Keeps changes to `inner` in at most `most_bytes` of memory. Writes beyond that fail with
    /// ENOSPC.
    pub fn new(inner: Arc<dyn Device>, most_bytes: u64) -> Self {
        let kept =
            Kept { changes: Vec::new(), newest: BTreeMap::new(), room_bytes: most_bytes, is_full: false };
        Self { inner, kept: Mutex::new(kept), claim: Mutex::default() }
    }

    /// Whether a write failed because the changes took too much memory.
    pub fn is_full(&self) -> bool {
        self.kept.lock().is_full
    }

    /// Ranges of bytes that were changed, in order and without overlap.
    pub fn changed(&self) -> Vec<Range<u64>> {
        let mut ranges: Vec<Range<u64>> = Vec::new();
        for (&start, newest) in &self.kept.lock().newest {
            match ranges.last_mut() {
                Some(last) if last.end == start => last.end = newest.end,
                _ => ranges.push(start..newest.end),
            }
        }
        ranges
    }

    /// Makes the changes on the device below, each after the one before it has ended. A crash
    /// meanwhile leaves what a crash of the original writer could have left.
    ///
    /// # Errors
    /// The first change that fails; those after it are not made.
    pub async fn apply(&self) -> Result<(), IoError> {
        let changes = std::mem::take(&mut self.kept.lock().changes);
        for change in changes {
            execute(&*self.inner, change.into_bio()).await.1?;
        }
        *self.claim.lock() = None;
        Ok(())
    }
}

impl Device for Deferred {
    fn limits(&self) -> &Limits {
        self.inner.limits()
    }

    fn submit(&self, mut bio: Bio) {
        if bio.op != Op::Read {
            let result = self.kept.lock().keep(self.limits(), &bio);
            return bio.end_as(&self.limits().name, result);
        }
        let Ok((start, end)) = self.limits().admit(&bio) else { return self.inner.submit(bio) };
        let newest = self.kept.lock().within(start, end);
        if !newest.is_empty() {
            let completion = bio.take_completion();
            bio.on_end(Box::new(move |mut bio, result| {
                if result.is_ok() {
                    newest.iter().for_each(|(at, newest)| fill(&mut bio, start, *at, newest));
                }
                if let Some(completion) = completion {
                    bio.on_end(completion);
                }
                bio.end(result);
            }));
        }
        self.inner.submit(bio);
    }

    fn claim(&self) -> Result<Claim, IoError> {
        let claim = Arc::new(self.inner.claim()?);
        *self.claim.lock() = Some(claim.clone());
        Ok(Claim::holding(claim))
    }
}

/// Puts a part's bytes into a read that begins at byte `start`.
fn fill(bio: &mut Bio, start: u64, at: u64, newest: &Newest) {
    let mut from = (at - newest.data_at) as usize;
    let mut left = (newest.end - at) as usize;
    for memory in bio.memory_from_mut(at - start) {
        let n = left.min(memory.len());
        match &newest.data {
            Some(data) => memory[..n].copy_from_slice(&data[from..from + n]),
            None => memory[..n].fill(0),
        }
        (from, left) = (from + n, left - n);
        if left == 0 {
            break;
        }
    }
}

impl fmt::Debug for Deferred {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Deferred({} changes of {:?})", self.kept.lock().changes.len(), self.inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MemDevice, flush, read};
    use extant_rt::Rng;
    use futures_util::FutureExt;

    /// Every bio of these devices ends at once.
    fn now<T>(future: impl Future<Output = T>) -> T {
        future.now_or_never().expect("a device in memory")
    }

    fn change(device: &Deferred, op: Op, start: u64, sectors: u64, byte: u8) -> Result<(), IoError> {
        let bytes = sectors * Sector::BYTES;
        let bio = match op {
            Op::Write => {
                let mut data = Buf::zeroed(bytes as usize);
                data.fill(byte);
                Bio::new(op, Sector(start), vec![data.into()])
            }
            op => Bio::range(op, Sector(start), bytes),
        };
        now(execute(device, bio)).1
    }

    #[test]
    fn reads_find_the_newest_bytes_and_the_device_below_gets_them_when_applied() {
        let seed = 0x00de_fe44;
        let mut rng = Rng::new(seed);
        for round in 0..40 {
            let before: Vec<u8> = (0..64 * 512).map(|n| (n / 512) as u8).collect();
            let below = Arc::new(MemDevice::from_bytes(before.clone()));
            let device = Deferred::new(below.clone(), 1 << 20);
            let mut model = before.clone();
            for byte in 100..130 {
                let start = rng.below(64);
                let sectors = 1 + rng.below(64 - start);
                let range = start as usize * 512..(start + sectors) as usize * 512;
                let op = if rng.below(4) == 0 { Op::WriteZeroes } else { Op::Write };
                change(&device, op, start, sectors, byte).unwrap();
                model[range].fill(if op == Op::Write { byte } else { 0 });
                now(flush(&device)).unwrap();
                let covered = |n: u64| device.changed().iter().any(|range| range.contains(&(n * 512)));
                assert!(
                    (0..64).all(|n| covered(n)
                        || model[n as usize * 512..][..512] == before[n as usize * 512..][..512])
                );
                let start = rng.below(64);
                let sectors = 1 + rng.below(64 - start);
                let bytes = now(read(&device, Sector(start), sectors as usize * 512)).unwrap();
                assert_eq!(
                    bytes[..],
                    model[start as usize * 512..][..sectors as usize * 512],
                    "round {round} of seed {seed:#x}"
                );
            }
            assert_eq!(below.to_bytes(), before, "round {round} of seed {seed:#x}: changed too early");
            now(device.apply()).unwrap();
            assert_eq!(below.to_bytes(), model, "round {round} of seed {seed:#x}");
        }
    }

    #[test]
    fn the_device_below_stays_claimed_until_changes_are_applied() {
        let below = Arc::new(MemDevice::new(4096));
        let device = Deferred::new(below.clone(), 4096);
        drop(device.claim().unwrap());
        assert_eq!(below.claim().unwrap_err().kind, IoErrorKind::Claimed);
        now(device.apply()).unwrap();
        drop(below.claim().unwrap());
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let device = Deferred::new(Arc::new(MemDevice::new(8192)), 4096);
        change(&device, Op::Write, 0, 8, 1).unwrap();
        change(&device, Op::WriteZeroes, 8, 8, 0).unwrap();
        let refused = change(&device, Op::Write, 8, 1, 1).unwrap_err();
        assert_eq!(refused.kind, IoErrorKind::Os(Errno::NOSPC.raw_os_error()));
        assert!(device.is_full());
        assert_eq!(change(&device, Op::Write, 16, 1, 1).unwrap_err().kind, IoErrorKind::OutOfRange);
    }
}
