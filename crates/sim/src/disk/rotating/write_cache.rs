//! The write cache: writes reported as complete that are not on the platters yet.

use super::super::extents::Extents;
use super::super::{Command, Tag};
use extant_rt::Nanos;
use std::collections::VecDeque;
use std::ops::Range;

/// How long fresh writes wait for neighbours while the arm is idle. Drives do not publish it. It
/// must exceed the gap between two commands of a sequential writer, or each of them would cost a
/// revolution.
const GATHER: Nanos = Nanos::from_millis(10);

/// How long a write may wait behind reads before it takes precedence. Drives do not publish this
/// either.
const PATIENCE: Nanos = Nanos::from_millis(500);

/// Maximum sectors per write to the platters, so that a read waits one or two revolutions, not for
/// the whole cache.
const MOST_SECTORS: u64 = 2048;

/// Number of runs among which the nearest is chosen.
const CHOICE: usize = 32;

#[derive(Debug)]
pub(super) struct WriteCache {
    capacity: u64,
    /// Writes being transferred from the host.
    coming: Vec<Command>,
    coming_sectors: u64,
    /// Dirty sectors that no flush waits for.
    fresh: Extents,
    /// Dirty sectors that a flush waits for.
    demanded: Extents,
    flushes: Vec<Tag>,
    /// The run being written to the platters.
    writing: Option<Range<u64>>,
    /// Writes that found the cache full, in order of arrival.
    waiting: VecDeque<Command>,
    /// When the cache became dirty, or when the last write to the platters ended; patience counts
    /// from here.
    dirty_since: Nanos,
}

impl WriteCache {
    pub(super) fn new(capacity: u64) -> Self {
        Self {
            capacity,
            coming: Vec::new(),
            coming_sectors: 0,
            fresh: Extents::default(),
            demanded: Extents::default(),
            flushes: Vec::new(),
            writing: None,
            waiting: VecDeque::new(),
            dirty_since: Nanos::ZERO,
        }
    }

    pub(super) fn can_ever_hold(&self, sectors: u64) -> bool {
        sectors <= self.capacity
    }

    fn dirty(&self) -> u64 {
        self.fresh.sectors() + self.demanded.sectors()
    }

    /// Whether the cache holds the whole range.
    pub(super) fn holds(&self, range: Range<u64>) -> bool {
        self.fresh.contains(range.clone()) || self.demanded.contains(range)
    }

    fn has_room(&self, sectors: u64) -> bool {
        self.dirty() + self.coming_sectors + sectors <= self.capacity
    }

    /// Admits a write, or queues it if there is no room; returns whether it was admitted. Its data
    /// is in the cache only from [`WriteCache::arrived`] on.
    pub(super) fn take(&mut self, command: Command) -> bool {
        if !self.waiting.is_empty() || !self.has_room(command.sectors) {
            self.waiting.push_back(command);
            return false;
        }
        self.coming_sectors += command.sectors;
        self.coming.push(command);
        true
    }

    /// A command completed. If it is an admitted write, its data is now in the cache.
    pub(super) fn arrived(&mut self, tag: Tag, now: Nanos) {
        if let Some(found) = self.coming.iter().position(|command| command.tag == tag) {
            let command = self.coming.swap_remove(found);
            self.coming_sectors -= command.sectors;
            self.put(command, now);
        }
    }

    fn put(&mut self, command: Command, received: Nanos) {
        if self.fresh.is_empty() && self.demanded.is_empty() {
            self.dirty_since = received;
        }
        self.fresh.insert(command.start.0..command.end());
    }

    /// Drops cached data for a range that is written directly to the platters.
    pub(super) fn forget(&mut self, range: Range<u64>) {
        self.fresh.remove(range.clone());
        self.demanded.remove(range);
    }

    /// Starts a flush. Returns true if there is nothing to wait for.
    pub(super) fn flush(&mut self, tag: Tag) -> bool {
        self.demanded.absorb(&mut self.fresh);
        let clean = self.demanded.is_empty() && self.writing.is_none();
        if !clean {
            self.flushes.push(tag);
        }
        clean
    }

    /// Whether writing must go before reads.
    pub(super) fn is_urgent(&self, now: Nanos) -> bool {
        let dirty = self.dirty();
        dirty > 0
            && (!self.waiting.is_empty()
                || !self.flushes.is_empty()
                || dirty > self.capacity / 4 * 3
                || now >= self.dirty_since + PATIENCE)
    }

    /// Whether an otherwise idle arm should write.
    pub(super) fn is_due(&self, now: Nanos) -> bool {
        self.due_at().is_some_and(|at| at <= now)
    }

    pub(super) fn due_at(&self) -> Option<Nanos> {
        match self.dirty() {
            0 => None,
            // With a revolution's worth there is no point in waiting for more.
            dirty if dirty >= MOST_SECTORS => Some(Nanos::ZERO),
            _ => Some(self.dirty_since + GATHER),
        }
    }

    /// Runs to write next, for a head that has just passed the sector before `at`.
    pub(super) fn candidates(&self, at: u64) -> impl Iterator<Item = Range<u64>> + '_ {
        let from = if self.demanded.is_empty() { &self.fresh } else { &self.demanded };
        from.around(at).take(CHOICE).map(|run| run.start..run.end.min(run.start + MOST_SECTORS))
    }

    /// Starts writing a run. A crash before its end may leave any part of it on a real disk's
    /// platters; the model leaves none.
    pub(super) fn begin(&mut self, run: Range<u64>) {
        self.forget(run.clone());
        self.writing = Some(run);
    }

    /// The run is on the platters.
    pub(super) fn written(&mut self, now: Nanos) {
        self.writing = None;
        // The oldest write may be done already; counting from now stays within a factor of two of
        // the promised delay.
        self.dirty_since = now;
    }

    /// Calls `done` for commands that no longer wait: flushes whose data is written, writes that
    /// now fit.
    pub(super) fn release(&mut self, now: Nanos, mut done: impl FnMut(Tag)) {
        if self.demanded.is_empty() && self.writing.is_none() {
            self.flushes.drain(..).for_each(&mut done);
        }
        while let Some(command) = self.waiting.front().copied().filter(|next| self.has_room(next.sectors)) {
            self.waiting.pop_front();
            self.put(command, now);
            done(command.tag);
        }
    }
}
