//! A log of the requests to a device, for crash tests.

use crate::{Bio, BioFlags, Claim, Device, IoError, Limits, Op, Sector};
use parking_lot::Mutex;
use std::ops::Range;
use std::sync::Arc;

/// Passes bios on and logs writes and flushes in order, with their data.
///
/// The log tells what a crash may leave behind: see [`Log::crash`].
#[derive(Debug)]
pub struct Record {
    inner: Arc<dyn Device>,
    log: Arc<Mutex<Log>>,
}

/// A change or flush, as submitted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Write, write-zeroes, discard or flush.
    pub op: Op,
    /// First sector.
    pub start: Sector,
    /// Length in bytes.
    pub bytes: u64,
    /// Flags; `PREFLUSH` and `FUA` matter here.
    pub flags: BioFlags,
    /// The data of a write; empty for other operations.
    pub data: Vec<u8>,
}

/// An event at the device's interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogEvent {
    /// The change with this index was submitted.
    Submitted(usize),
    /// The change with this index ended, without an error if `ok`.
    Ended {
        /// The change's index.
        change: usize,
        /// Whether it succeeded.
        ok: bool,
    },
}

/// Changes, and the order in which they were submitted and ended.
#[derive(Clone, Debug, Default)]
pub struct Log {
    /// All changes, by index.
    pub changes: Vec<Change>,
    /// Submissions and ends, in order.
    pub events: Vec<LogEvent>,
}

/// The state after a crash: indices into [`Log::changes`], in order of submission.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Crash {
    /// Changes that are on the medium in any case.
    pub durable: Vec<usize>,
    /// Changes that may each be there, be missing, or be there in part, sector by sector.
    pub volatile: Vec<usize>,
}

impl Record {
    /// Records what is sent to `inner`.
    pub fn new(inner: Arc<dyn Device>) -> Self {
        Self { inner, log: Arc::default() }
    }

    /// Number of events so far; a point at which to crash.
    pub fn position(&self) -> usize {
        self.log.lock().events.len()
    }

    /// A copy of the log so far.
    pub fn log(&self) -> Log {
        self.log.lock().clone()
    }
}

impl Log {
    /// The state that a crash leaves if only the first `events` events have happened.
    ///
    /// A change is durable once it has ended successfully with `FUA`, or once a flush (or a write
    /// with `PREFLUSH`) that was submitted after the change had ended has itself ended
    /// successfully. Everything else that was submitted is volatile, including failed changes.
    /// (This is what Linux promises file systems: Documentation/block/writeback_cache_control.rst.)
    pub fn crash(&self, events: usize) -> Crash {
        let mut ended_ok = vec![false; self.changes.len()];
        let mut durable = vec![false; self.changes.len()];
        // For each flush in flight, the changes that had ended before it was submitted.
        let mut covered: Vec<Vec<usize>> = vec![Vec::new(); self.changes.len()];
        let mut submitted: Vec<usize> = Vec::new();
        // Submitted changes before this one are all durable.
        let mut settled = 0;
        for event in &self.events[..events] {
            match *event {
                LogEvent::Submitted(index) => {
                    let change = &self.changes[index];
                    if change.op == Op::Flush || change.flags.contains(BioFlags::PREFLUSH) {
                        while settled < submitted.len() && durable[submitted[settled]] {
                            settled += 1;
                        }
                        covered[index] = submitted[settled..]
                            .iter()
                            .copied()
                            .filter(|&i| ended_ok[i] && !durable[i])
                            .collect();
                    }
                    if change.op != Op::Flush {
                        submitted.push(index);
                    }
                }
                LogEvent::Ended { change: index, ok: true } => {
                    std::mem::take(&mut covered[index]).into_iter().for_each(|i| durable[i] = true);
                    ended_ok[index] = true;
                    durable[index] |= self.changes[index].flags.contains(BioFlags::FUA);
                }
                LogEvent::Ended { ok: false, .. } => {}
            }
        }
        let (durable, volatile) = submitted.into_iter().partition(|&i| durable[i]);
        Crash { durable, volatile }
    }

    /// The contents of a disk after a crash at that point, if it contained `base` when the log
    /// began. Includes what is durable and, if `lucky`, everything volatile too.
    pub fn disk_after(&self, base: &[u8], events: usize, lucky: bool) -> Vec<u8> {
        let Crash { durable, volatile } = self.crash(events);
        let mut there = if lucky { [durable, volatile].concat() } else { durable };
        there.sort_unstable();
        let mut disk = base.to_vec();
        for change in there.into_iter().map(|index| &self.changes[index]) {
            change.apply(&mut disk, 0..change.sectors());
        }
        disk
    }

    /// The points after which more is durable than before: ends of flushes, and of writes that are
    /// durable by themselves.
    pub fn durable_points(&self) -> Vec<usize> {
        let keeps = |index: usize| {
            let change = &self.changes[index];
            change.op == Op::Flush || change.flags.intersects(BioFlags::PREFLUSH | BioFlags::FUA)
        };
        let ends = (1..).zip(&self.events).filter(|(_, event)| match event {
            LogEvent::Ended { change, ok } => *ok && keeps(*change),
            LogEvent::Submitted(_) => false,
        });
        ends.map(|(events, _)| events).collect()
    }
}

impl Change {
    /// Applies to an image those `sectors` of the change (counted from its first) that reached the
    /// medium.
    pub fn apply(&self, image: &mut [u8], sectors: Range<u64>) {
        let from = (sectors.start * Sector::BYTES).min(self.bytes) as usize;
        let to = (sectors.end * Sector::BYTES).min(self.bytes) as usize;
        let base = (self.start.0 * Sector::BYTES) as usize;
        match self.op {
            Op::Write => image[base + from..base + to].copy_from_slice(&self.data[from..to]),
            Op::WriteZeroes | Op::Discard => image[base + from..base + to].fill(0),
            Op::Read | Op::Flush => {}
        }
    }

    /// Length in sectors.
    pub fn sectors(&self) -> u64 {
        self.bytes.div_ceil(Sector::BYTES)
    }
}

impl Device for Record {
    fn limits(&self) -> &Limits {
        self.inner.limits()
    }

    fn submit(&self, mut bio: Bio) {
        if bio.op != Op::Read {
            let change = Change {
                op: bio.op,
                start: bio.start,
                bytes: bio.bytes,
                flags: bio.flags,
                data: bio.segments.iter().flat_map(|s| s.as_slice()).copied().collect(),
            };
            let index = {
                let mut log = self.log.lock();
                log.changes.push(change);
                let index = log.changes.len() - 1;
                log.events.push(LogEvent::Submitted(index));
                index
            };
            let log = self.log.clone();
            bio.before_end(move |result| {
                log.lock().events.push(LogEvent::Ended { change: index, ok: result.is_ok() });
            });
        }
        self.inner.submit(bio);
    }

    fn claim(&self) -> Result<Claim, IoError> {
        self.inner.claim()
    }

    fn next_data(&self, from_bytes: u64) -> Result<Option<Range<u64>>, IoError> {
        self.inner.next_data(from_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(changes: &[(Op, BioFlags)], events: &[(usize, bool)]) -> Log {
        let change = |&(op, flags)| Change { op, start: Sector(0), bytes: 512, flags, data: vec![1; 512] };
        let events = events.iter().map(|&(change, end)| match end {
            false => LogEvent::Submitted(change),
            true => LogEvent::Ended { change, ok: true },
        });
        Log { changes: changes.iter().map(change).collect(), events: events.collect() }
    }

    const NONE: BioFlags = BioFlags::empty();
    const IN: bool = false;
    const OUT: bool = true;

    #[test]
    fn a_flush_covers_only_what_had_ended_when_it_came() {
        let log = log(
            &[(Op::Write, NONE), (Op::Write, NONE), (Op::Flush, NONE)],
            &[(0, IN), (1, IN), (0, OUT), (2, IN), (1, OUT), (2, OUT)],
        );
        assert_eq!(log.crash(5), Crash { durable: vec![], volatile: vec![0, 1] });
        assert_eq!(log.crash(6), Crash { durable: vec![0], volatile: vec![1] });
    }

    #[test]
    fn fua_covers_itself_and_preflush_covers_the_others() {
        let log = log(
            &[(Op::Write, NONE), (Op::Write, BioFlags::FUA), (Op::Write, BioFlags::PREFLUSH)],
            &[(0, IN), (0, OUT), (1, IN), (1, OUT), (2, IN), (2, OUT)],
        );
        assert_eq!(log.crash(4), Crash { durable: vec![1], volatile: vec![0] });
        assert_eq!(log.crash(6), Crash { durable: vec![0, 1], volatile: vec![2] });
    }

    #[test]
    fn a_torn_write_leaves_some_sectors() {
        let mut image = vec![0; 2048];
        let change =
            Change { op: Op::Write, start: Sector(1), bytes: 1536, flags: NONE, data: vec![7; 1536] };
        change.apply(&mut image, 1..2);
        assert_eq!(image.iter().map(|&b| u32::from(b)).sum::<u32>(), 7 * 512);
        assert_eq!((image[1023], image[1024], image[1535], image[1536]), (0, 7, 7, 0));
    }
}
