//! The contents that a file may have after a crash.
//!
//! A byte changed since the file's last sync reads as old (any version since), new, or zero, even
//! in a truncated tail, but never as another file's. The size grows only over written bytes or by
//! an explicit call. Explicit sizes are part of the prefix of operations; sizes that result from
//! writes are not.
//!
//! After a failed write-back the file covers the blocks that were allocated: it may end with any
//! block before the first one that failed, and each block past the old end is as it was after one
//! of the operations.

use crate::Fallocate;
use std::ops::Range;
use std::sync::Arc;

#[derive(Clone, Debug)]
pub(super) enum Event {
    Write {
        offset: u64,
        data: Arc<[u8]>,
    },
    /// An explicit size; part of the prefix of operations.
    Resize {
        size: u64,
    },
    /// Truncation to zero at open, which waits for new contents: the file has its old contents, is
    /// empty, or has the new ones.
    Empty,
    /// The bytes in `range` are durable once the operation returns, as `O_SYNC` promises for what
    /// it writes, and the file is no shorter than it was then.
    Pin {
        range: Range<u64>,
        size: u64,
    },
    /// The bytes after `at` moved by `by` bytes: a range was collapsed, or a hole inserted.
    /// Everything written before is on disk by then.
    Shift {
        at: u64,
        by: i64,
        /// The contents afterwards.
        after: Arc<[u8]>,
    },
    /// Zeros a range, and grows the file to at most `size`; a crash may come between any of its
    /// steps.
    Zero {
        range: Range<u64>,
        size: u64,
    },
}

impl Event {
    /// Translates a write, a truncation or a similar event after a shift to the positions that it
    /// would have without the shift.
    fn unshifted(&self, at: u64, by: i64) -> Vec<Self> {
        // A byte in the inserted range has no position without the shift.
        let back = |place: u64| if place < at { place } else { place.saturating_add_signed(-by).max(at) };
        match self {
            Self::Write { offset, data } => {
                let end = offset + data.len() as u64;
                // Split into the parts before and after the shift's position; drop what lies in the
                // inserted range.
                let behind = if by > 0 { at + by as u64 } else { at };
                let parts = [*offset..end.min(at), (*offset).max(behind)..end];
                let parts = parts.into_iter().filter(|part| part.start < part.end);
                let write = |part: Range<u64>| Self::Write {
                    offset: back(part.start),
                    data: Arc::from(&data[(part.start - offset) as usize..(part.end - offset) as usize]),
                };
                parts.map(write).collect()
            }
            Self::Resize { size } => vec![Self::Resize { size: back(*size) }],
            Self::Zero { range, size } => {
                vec![Self::Zero { range: back(range.start)..back(range.end), size: back(*size) }]
            }
            // A synchronous write has made the shift durable; a second shift has made everything
            // before it durable.
            Self::Pin { .. } | Self::Shift { .. } => Vec::new(),
            Self::Empty => vec![Self::Empty],
        }
    }

    fn apply(&self, live: &mut Vec<u8>) {
        match self {
            Self::Write { offset, data } => {
                let end = *offset as usize + data.len();
                if !data.is_empty() {
                    live.resize(live.len().max(end), 0);
                    live[*offset as usize..end].copy_from_slice(data);
                }
            }
            Self::Resize { size } => live.resize(*size as usize, 0),
            Self::Empty => live.clear(),
            Self::Pin { .. } => {}
            Self::Shift { after, .. } => *live = after.to_vec(),
            Self::Zero { range, size } => {
                let len = live.len().max(*size as usize);
                live.resize(len, 0);
                let (from, to) = ((range.start as usize).min(len), (range.end as usize).min(len));
                live[from..to].fill(0);
            }
        }
    }
}

/// Since when contents are known to be durable.
#[derive(Clone, Copy, Debug)]
enum Since {
    /// The initial contents, durable as long as the file exists.
    Ever,
    /// Durable once this operation has returned.
    Returned(usize),
    /// Durable if this operation is in the surviving prefix.
    Survived(usize),
}

/// A file's writes, and the points at which its contents became durable.
#[derive(Clone, Debug)]
pub(super) struct FileHistory {
    live: Vec<u8>,
    events: Vec<(usize, Event)>,
    bases: Vec<(Since, usize, Arc<[u8]>)>,
}

impl FileHistory {
    /// A file created by operation `born`, or that existed before.
    pub(super) fn new(born: usize, contents: Arc<[u8]>) -> Self {
        Self { live: contents.to_vec(), events: Vec::new(), bases: vec![(Since::Ever, born, contents)] }
    }

    pub(super) fn push(&mut self, op: usize, event: Event) {
        event.apply(&mut self.live);
        self.events.push((op, event));
    }

    /// The file's contents are durable once operation `op` returns.
    pub(super) fn synced(&mut self, op: usize) {
        self.bases.push((Since::Returned(op), op + 1, self.live.as_slice().into()));
    }

    /// The file's contents are durable if operation `op` survives.
    pub(super) fn carried_by(&mut self, op: usize) {
        self.bases.push((Since::Survived(op), op + 1, self.live.as_slice().into()));
    }

    /// The effect of `fallocate` on the current contents.
    pub(super) fn fallocate(&self, mode: Fallocate, offset: u64, len: u64) -> Event {
        let end = offset + len;
        match mode {
            Fallocate::Allocate => Event::Zero { range: end..end, size: end },
            Fallocate::KeepSize => Event::Zero { range: end..end, size: 0 },
            Fallocate::Zero => Event::Zero { range: offset..end, size: end },
            // A size that was not recorded yet may now be recorded, up to the end of the hole.
            Fallocate::ZeroKeepSize | Fallocate::Punch => {
                Event::Zero { range: offset..end, size: end.min(self.live_bytes()) }
            }
            Fallocate::Collapse => {
                let mut after = self.live.clone();
                let end = (end as usize).min(after.len());
                after.drain((offset as usize).min(end)..end);
                Event::Shift { at: offset, by: -(len as i64), after: after.into() }
            }
            Fallocate::Insert => {
                let (before, behind) = self.live.split_at((offset as usize).min(self.live.len()));
                let after = [before, &vec![0; len as usize], behind].concat();
                Event::Shift { at: offset, by: len as i64, after: after.into() }
            }
        }
    }

    /// Bytes as seen by a reader; `None` past the end.
    pub(super) fn live_range(&self, at: u64, len: u64) -> Option<Arc<[u8]>> {
        self.live.get(at as usize..at.checked_add(len)? as usize).map(Arc::from)
    }

    /// Size as seen by a reader.
    pub(super) fn live_bytes(&self) -> u64 {
        self.live.len() as u64
    }

    /// Whether data may have changed the file's times after operation `since`.
    pub(super) fn written_after(&self, since: usize, started: usize) -> bool {
        self.events.iter().any(|&(op, _)| op > since && op < started)
    }

    /// Whether the file may contain `found` if `prefix` operations survived, `completed` had
    /// returned and `started` had begun.
    pub(super) fn admits(
        &self,
        found: &[u8],
        prefix: usize,
        completed: usize,
        started: usize,
        limits: Limits,
    ) -> Result<(), String> {
        let holds = |since: Since| match since {
            Since::Returned(op) => op < completed,
            Since::Survived(op) => op < prefix,
            Since::Ever => true,
        };
        let (_, from, base) = self.bases.iter().rfind(|(since, ..)| holds(*since)).expect("the first holds");
        let counts = |op: usize, event: &Event| {
            let until = if matches!(event, Event::Pin { .. }) { completed } else { started };
            op >= *from && op < until
        };
        let pending: Vec<&(usize, Event)> =
            self.events.iter().filter(|(op, event)| counts(*op, event)).collect();
        let known = Known { base: base.clone(), pending, prefix, limits };
        known.admits(found)
    }
}

/// Constraints on a file's contents after a crash.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Limits {
    /// Block size in bytes, if a write-back has failed.
    pub(super) failed: Option<u64>,
    /// Block size in bytes, if known: until a truncation survives, a file keeps its old bytes past
    /// the block of the new end.
    pub(super) block: Option<u64>,
}

/// What is known about a file after a crash: contents that it once had, and what happened since.
struct Known<'a> {
    base: Arc<[u8]>,
    pending: Vec<&'a (usize, Event)>,
    prefix: usize,
    limits: Limits,
}

impl Known<'_> {
    fn admits(&self, found: &[u8]) -> Result<(), String> {
        let Self { base, pending, prefix, .. } = self;
        let shift = pending.iter().enumerate().rev().find_map(|(n, (op, event))| match event {
            Event::Shift { at, by, after } => Some((n, *op, *at, *by, after)),
            _ => None,
        });
        let Some((n, op, at, by, after)) = shift else { return self.admits_unshifted(found) };
        let later = &pending[n + 1..];
        if op < *prefix {
            let moved = Known { base: after.clone(), pending: later.to_vec(), ..*self };
            return moved.admits_unshifted(found);
        }
        // The shift has not begun: later writes went to blocks that have not moved.
        let back: Vec<(usize, Event)> = later
            .iter()
            .flat_map(|(op, event)| event.unshifted(at, by).into_iter().map(|event| (*op, event)))
            .collect();
        let before = pending[..n].iter().copied().chain(&back).collect();
        let unmoved = Known { base: base.clone(), pending: before, ..*self };
        unmoved.admits(found)
    }

    /// Like [`Self::admits`], for files without shifts.
    fn admits_unshifted(&self, found: &[u8]) -> Result<(), String> {
        let Self { base, pending, prefix, limits } = self;
        let (prefix, Limits { failed, block: unit }) = (*prefix, *limits);
        let sizes = allowed_sizes(base.len() as u64, pending, prefix, unit);
        let size = found.len() as u64;
        if !sizes.iter().any(|sizes| sizes.contains(&size)) {
            let (least, most) =
                (sizes.iter().map(|s| *s.start()).min(), sizes.iter().map(|s| *s.end()).max());
            if let (Some(least), Some(most), Some(block)) = (least, most, failed)
                && size.is_multiple_of(block)
                && (least..=most).contains(&size)
            {
                check_bytes(&found[..least as usize], base, pending, prefix, unit)?;
                return check_blocks(found, base, pending, least..size, block);
            }
            let sizes: Vec<String> = sizes.iter().map(describe).collect();
            return Err(format!("size is {}, not {}", found.len(), sizes.join(" or ")));
        }
        if pending.is_empty() {
            if *found == **base {
                return Ok(());
            }
            return match found.iter().zip(base.iter()).position(|(a, b)| a != b) {
                Some(at) => Err(format!("synced byte {at} is {}, not {}", found[at], base[at])),
                None => Ok(()),
            };
        }
        check_bytes(found, base, pending, prefix, unit)
    }
}

/// Sizes as inclusive ranges.
type Sizes = Vec<std::ops::RangeInclusive<u64>>;

fn describe(size: &std::ops::RangeInclusive<u64>) -> String {
    match size.start() == size.end() {
        true => size.start().to_string(),
        false => format!("{}..={}", size.start(), size.end()),
    }
}

fn allowed_sizes(base: u64, pending: &[&(usize, Event)], prefix: usize, block_bytes: Option<u64>) -> Sizes {
    let grown = pending.iter().map(|(_, event)| match event {
        Event::Write { offset, data } => offset + data.len() as u64,
        Event::Resize { size } | Event::Zero { size, .. } => *size,
        Event::Pin { .. } | Event::Empty | Event::Shift { .. } => 0,
    });
    let longest = grown.max().unwrap_or(0);
    let mut sizes = vec![base..=base];
    for (op, event) in pending {
        match event {
            // If an explicit size did not survive, later writes did not grow the file either,
            // because they were logged later.
            Event::Resize { .. } if *op >= prefix => break,
            Event::Resize { size } => sizes = vec![*size..=*size],
            Event::Empty => sizes.push(0..=0),
            // The caller has removed these.
            Event::Shift { .. } => {}
            Event::Pin { size: least, .. } => {
                let clip = |size: std::ops::RangeInclusive<u64>| *least.max(size.start())..=*size.end();
                sizes = sizes.into_iter().map(clip).filter(|size| !size.is_empty()).collect();
            }
            Event::Write { data, .. } if data.is_empty() => {}
            Event::Write { offset, data } => {
                let end = offset + data.len() as u64;
                let least = sizes.iter().map(|size| *size.start()).min().expect("one at least");
                let from = least.max(*offset);
                if end > from {
                    // Blocks are written whole, so the file may end after a block if it continues
                    // past a hole.
                    let whole = block_bytes.map_or(end, |block| end.next_multiple_of(block));
                    sizes.push(from + 1..=end.max(whole.min(longest)));
                }
            }
            Event::Zero { size, .. } => {
                let least = sizes.iter().map(|size| *size.start()).min().expect("one at least");
                if *size > least {
                    sizes.push(least..=*size);
                }
            }
        }
    }
    sizes
}

/// Checks that each block of a range reads as it did after one of the operations.
fn check_blocks(
    found: &[u8],
    base: &[u8],
    pending: &[&(usize, Event)],
    range: Range<u64>,
    block_bytes: u64,
) -> Result<(), String> {
    let mut live = base.to_vec();
    let mut unexplained: Vec<Range<usize>> = (range.start / block_bytes..range.end / block_bytes)
        .map(|block| range.start.max(block * block_bytes) as usize..((block + 1) * block_bytes) as usize)
        .collect();
    let mut explain = |live: &[u8]| {
        unexplained.retain(|block| {
            let known = live.get(block.start..block.end.min(live.len())).unwrap_or_default();
            let (bytes, zeroes) = found[block.clone()].split_at(known.len());
            bytes != known || zeroes.iter().any(|&byte| byte != 0)
        });
    };
    explain(&live);
    for (_, event) in pending {
        event.apply(&mut live);
        explain(&live);
    }
    match unexplained.first() {
        Some(block) => {
            Err(format!("no operation left bytes {block:?} like this, in a file of {} bytes", found.len()))
        }
        None => Ok(()),
    }
}

/// Checks `found` in pieces delimited by the ends of all events.
fn check_bytes(
    found: &[u8],
    base: &[u8],
    pending: &[&(usize, Event)],
    prefix: usize,
    unit: Option<u64>,
) -> Result<(), String> {
    let len = found.len() as u64;
    let mut ends = vec![0, len, (base.len() as u64).min(len)];
    for (_, event) in pending {
        let (from, to) = match event {
            Event::Write { offset, data } => (*offset, offset + data.len() as u64),
            Event::Resize { size } => (*size, zeroed_end(*size, unit)),
            Event::Empty | Event::Shift { .. } => (0, 0),
            Event::Zero { range, .. } | Event::Pin { range, .. } => (range.start, range.end),
        };
        ends.extend([from.min(len), to.min(len)]);
    }
    ends.sort_unstable();
    ends.dedup();
    for piece in ends.windows(2) {
        check_piece(found, base, pending, prefix, unit, piece[0]..piece[1])?;
    }
    Ok(())
}

/// End of the range that a truncation to `size` may have zeroed before it survives.
fn zeroed_end(size: u64, block_bytes: Option<u64>) -> u64 {
    block_bytes.map_or(u64::MAX, |block| size.next_multiple_of(block))
}

/// Checks a piece: every event covers either all of it or nothing.
fn check_piece(
    found: &[u8],
    base: &[u8],
    pending: &[&(usize, Event)],
    prefix: usize,
    unit: Option<u64>,
    piece: Range<u64>,
) -> Result<(), String> {
    let span = piece.start as usize..piece.end as usize;
    let mut versions: Vec<&[u8]> = Vec::new();
    let mut zero = true;
    if let Some(old) = base.get(span.clone()) {
        versions.push(old);
        zero = false;
    }
    for (op, event) in pending {
        match event {
            Event::Write { offset, data } => {
                if *offset <= piece.start && piece.end <= offset + data.len() as u64 {
                    let at = (piece.start - offset) as usize;
                    versions.push(&data[at..at + span.len()]);
                    zero = true;
                }
            }
            Event::Resize { size } if *size <= piece.start => {
                // Truncated bytes do not come back. Until the truncation survives, those in the
                // last block may read as zeros.
                let survives = *op < prefix;
                if survives {
                    versions.clear();
                }
                zero |= survives || piece.start < zeroed_end(*size, unit);
            }
            Event::Empty => zero = true,
            Event::Resize { .. } => {}
            Event::Pin { range, .. } if range.start <= piece.start && piece.end <= range.end => {
                versions = versions.last().into_iter().copied().collect();
                zero = versions.is_empty();
            }
            Event::Pin { .. } | Event::Shift { .. } => {}
            Event::Zero { range, .. } => {
                zero |= range.start <= piece.start && piece.end <= range.end;
            }
        }
    }
    let now = &found[span];
    if versions.contains(&now) {
        return Ok(());
    }
    let fits = |at: usize| (zero && now[at] == 0) || versions.iter().any(|version| version[at] == now[at]);
    match (0..now.len()).find(|&at| !fits(at)) {
        None => Ok(()),
        Some(at) => {
            let bad = (0..now.len()).filter(|&at| !fits(at)).count();
            let may: Vec<u8> = versions.iter().map(|version| version[at]).chain(zero.then_some(0)).collect();
            let at = piece.start + at as u64;
            let what = found[at as usize];
            Err(format!("byte {at} is {what}, none of {may:?} ({bad} bytes in {piece:?} are wrong)"))
        }
    }
}
