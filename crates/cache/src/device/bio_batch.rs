//! Holds back write bios of several runs and files to submit them together, merging those of
//! adjacent blocks (kernel: `blk_plug`).
//!
//! Small files written back one after another are usually adjacent on disk, so one bio for many of
//! them pays for the device's path once. For scattered pages, a single system call does the same.

use extant_block::{Bio, Device, Op, Sector, Segment, end_all};
use parking_lot::Mutex;
use std::fmt;
use std::sync::Arc;

/// Limits in bytes and bios at which the batch is submitted.
const FULL_BYTES: u64 = 1 << 20;
const FULL_BIOS: usize = 128;

/// Holds bios back until its owner submits them together. The owner does so before it waits for
/// anything, and at the end.
pub(crate) struct BioBatch {
    device: Arc<dyn Device>,
    /// The longest bio, in bytes.
    most_bytes: u64,
    held: Mutex<Held>,
}

#[derive(Default)]
struct Held {
    /// Set while the owner submits, so its bios are held back. Bios of a run that continues in its
    /// own task are not.
    is_open: bool,
    bios: Vec<Bio>,
    bytes: u64,
}

impl BioBatch {
    pub(crate) fn new(device: &Arc<dyn Device>, most_bytes: u64) -> Arc<Self> {
        Arc::new(Self { device: device.clone(), most_bytes, held: Mutex::default() })
    }

    /// Adds bios to those held back or, outside of [`Self::hold`], submits them.
    pub(crate) fn add(&self, bios: Vec<Bio>) {
        let mut held = self.held.lock();
        if held.is_open {
            held.bytes += bios.iter().map(|bio| bio.bytes).sum::<u64>();
            held.bios.extend(bios);
            return;
        }
        drop(held);
        self.device.submit_all(&mut bios.into_iter());
    }

    /// Holds back the bios that `work` submits, and submits them if the batch is full.
    pub(crate) fn hold(&self, work: impl FnOnce()) {
        struct Open<'a>(&'a BioBatch);
        impl Drop for Open<'_> {
            fn drop(&mut self) {
                self.0.held.lock().is_open = false;
            }
        }
        self.held.lock().is_open = true;
        let open = Open(self);
        work();
        drop(open);
        let is_full = {
            let held = self.held.lock();
            held.bytes >= FULL_BYTES || held.bios.len() >= FULL_BIOS
        };
        if is_full {
            self.submit();
        }
    }

    /// Submits everything held back.
    pub(crate) fn submit(&self) {
        let bios = {
            let mut held = self.held.lock();
            held.bytes = 0;
            std::mem::take(&mut held.bios)
        };
        if !bios.is_empty() {
            let joined = joined(&self.device, self.most_bytes, bios);
            self.device.submit_all(&mut joined.into_iter());
        }
    }
}

impl fmt::Debug for BioBatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BioBatch({} bios)", self.held.lock().bios.len())
    }
}

/// Merges consecutive adjacent writes, as far as the device's limits allow.
fn joined(device: &Arc<dyn Device>, most_bytes: u64, bios: Vec<Bio>) -> Vec<Bio> {
    let limits = device.limits();
    let (most_bytes, most_segments) = (limits.max_bytes.min(most_bytes), limits.max_segments as usize);
    let mut all: Vec<Bio> = Vec::with_capacity(bios.len());
    let mut row: Vec<Bio> = Vec::new();
    let (mut bytes, mut segments) = (0, 0);
    for bio in bios {
        let fits = row.last().is_some_and(|last| {
            bio.op == Op::Write
                && (last.op, last.flags, last.stream) == (bio.op, bio.flags, bio.stream)
                && last.start.0 + last.bytes / Sector::BYTES == bio.start.0
                && bytes + bio.bytes <= most_bytes
                && segments + bio.segments.len() <= most_segments
        });
        if !fits {
            all.extend(one_of(device, std::mem::take(&mut row)));
            (bytes, segments) = (0, 0);
        }
        bytes += bio.bytes;
        segments += bio.segments.len();
        row.push(bio);
    }
    all.extend(one_of(device, row));
    all
}

/// Merges a row of bios into one. If it fails, the error is not passed on: each bio is retried by
/// itself.
fn one_of(device: &Arc<dyn Device>, mut row: Vec<Bio>) -> Option<Bio> {
    if row.len() < 2 {
        return row.pop();
    }
    let counts: Vec<usize> = row.iter().map(|part| part.segments.len()).collect();
    let (start, flags, stream) = (row[0].start, row[0].flags, row[0].stream);
    let memory: Vec<Segment> = row.iter_mut().flat_map(|part| std::mem::take(&mut part.segments)).collect();
    let mut whole = Bio::new(Op::Write, start, memory);
    (whole.flags, whole.stream) = (flags, stream);
    let device = Arc::downgrade(device);
    whole.on_end(Box::new(move |mut whole, result| {
        let memory = std::mem::take(&mut whole.segments);
        let error = match result {
            Ok(()) => {
                // A page's memory must be released before its write ends.
                drop(memory);
                return end_all(row.into_iter().map(|part| (part, Ok(()))));
            }
            Err(error) => error,
        };
        let has_all = memory.len() == counts.iter().sum::<usize>();
        let mut memory = memory.into_iter();
        for (part, count) in row.iter_mut().zip(counts) {
            part.segments = memory.by_ref().take(count).collect();
        }
        match device.upgrade() {
            Some(device) if has_all => device.submit_all(&mut row.into_iter()),
            _ => end_all(row.into_iter().map(|part| (part, Err(error.clone())))),
        }
    }));
    Some(whole)
}

#[cfg(test)]
mod tests {
    use super::*;
    use extant_block::{Buf, Claim, IoError, IoErrorKind, Limits, MemDevice};

    /// Records the writes it receives, and fails those that touch the `bad` sector.
    #[derive(Debug)]
    struct Noting {
        device: MemDevice,
        bad: Sector,
        seen: Mutex<Vec<(u64, u64)>>,
    }

    impl Device for Noting {
        fn limits(&self) -> &Limits {
            self.device.limits()
        }
        fn submit(&self, bio: Bio) {
            let sectors = bio.bytes / Sector::BYTES;
            self.seen.lock().push((bio.start.0, sectors));
            if (bio.start.0..bio.start.0 + sectors).contains(&self.bad.0) {
                return bio.end_as("bad", Err(IoErrorKind::OutOfRange));
            }
            self.device.submit(bio);
        }
        fn claim(&self) -> Result<Claim, IoError> {
            self.device.claim()
        }
    }

    type Ends = Arc<Mutex<Vec<(u64, bool)>>>;

    fn write(at: u64, ends: &Ends) -> Bio {
        let mut bio = Bio::new(Op::Write, Sector(at), vec![Segment::from(Buf::zeroed(4096))]);
        let ends = ends.clone();
        bio.on_end(Box::new(move |bio, result| ends.lock().push((bio.start.0, result.is_ok()))));
        bio
    }

    /// Starts and lengths of the bios that reached the device; then the writes' starts, and whether
    /// they succeeded.
    type Seen = (Vec<(u64, u64)>, Vec<(u64, bool)>);

    fn batched(bad: u64) -> Seen {
        let device = MemDevice::new(1 << 20);
        let noting = Arc::new(Noting { device, bad: Sector(bad), seen: Mutex::default() });
        let ends = Ends::default();
        let batch = BioBatch::new(&(noting.clone() as Arc<dyn Device>), FULL_BYTES);
        batch.hold(|| [0, 8, 16, 32].iter().for_each(|&at| batch.add(vec![write(at, &ends)])));
        assert!(ends.lock().is_empty(), "nothing is submitted yet");
        batch.submit();
        batch.add(vec![write(40, &ends)]);
        (std::mem::take(&mut *noting.seen.lock()), std::mem::take(&mut *ends.lock()))
    }

    #[test]
    fn neighbours_are_one_bio_and_each_hears_of_its_end() {
        let (seen, ends) = batched(1000);
        assert_eq!(seen, [(0, 24), (32, 8), (40, 8)]);
        assert_eq!(ends, [(0, true), (8, true), (16, true), (32, true), (40, true)]);
    }

    #[test]
    fn an_error_is_that_of_the_part_that_has_it() {
        let (seen, ends) = batched(9);
        assert_eq!(seen, [(0, 24), (0, 8), (8, 8), (16, 8), (32, 8), (40, 8)]);
        assert_eq!(ends, [(0, true), (8, false), (16, true), (32, true), (40, true)]);
    }
}
