//! The write cache: what the host believes written and the platters do not have yet.

use super::super::extents::Extents;
use super::super::{Command, Tag};
use extant_rt::Nanos;
use std::collections::VecDeque;
use std::ops::Range;

/// How long fresh writes wait for neighbours while the arm is idle. Drives do not publish it; it must outlast the gap
/// between two commands of a sequential writer, or every one of them would cost a revolution.
const GATHER: Nanos = Nanos::from_millis(10);

/// How long a write waits behind reads before it goes first. Drives do not publish this either.
const PATIENCE: Nanos = Nanos::from_millis(500);

/// Most sectors written in one go, so that a read waits for one revolution or two, not for the whole cache.
const MOST_SECTORS: u64 = 2048;

/// Runs among which the nearest is chosen.
const CHOICE: usize = 32;

#[derive(Debug)]
pub(super) struct WriteCache {
    capacity: u64,
    /// Writes in transfer from the host, and the room that they will need.
    coming: Vec<Command>,
    coming_sectors: u64,
    /// Not yet on the platters.
    fresh: Extents,
    /// The part of it that a flush waits for.
    demanded: Extents,
    flushes: Vec<Tag>,
    /// Being written.
    writing: Option<Range<u64>>,
    /// Writes that found the cache full, in order of arrival.
    waiting: VecDeque<Command>,
    /// The oldest write among what is dirty came no earlier.
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

    /// Whether a read finds all it wants here.
    pub(super) fn holds(&self, range: Range<u64>) -> bool {
        self.fresh.contains(range.clone()) || self.demanded.contains(range)
    }

    fn has_room(&self, sectors: u64) -> bool {
        self.dirty() + self.coming_sectors + sectors <= self.capacity
    }

    /// Makes room for a write, or lets it wait; says whether there is room. Its data are not here before
    /// [`WriteCache::arrived`].
    pub(super) fn take(&mut self, command: Command) -> bool {
        if !self.waiting.is_empty() || !self.has_room(command.sectors) {
            self.waiting.push_back(command);
            return false;
        }
        self.coming_sectors += command.sectors;
        self.coming.push(command);
        true
    }

    /// A command has ended; if it is a write that was taken, its data are here from now on.
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

    /// The range is going to the platters past the cache.
    pub(super) fn forget(&mut self, range: Range<u64>) {
        self.fresh.remove(range.clone());
        self.demanded.remove(range);
    }

    /// A flush; says whether it has nothing to wait for.
    pub(super) fn flush(&mut self, tag: Tag) -> bool {
        self.demanded.absorb(&mut self.fresh);
        let clean = self.demanded.is_empty() && self.writing.is_none();
        if !clean {
            self.flushes.push(tag);
        }
        clean
    }

    /// Writing cannot wait for reads.
    pub(super) fn is_urgent(&self, now: Nanos) -> bool {
        let dirty = self.dirty();
        dirty > 0
            && (!self.waiting.is_empty()
                || !self.flushes.is_empty()
                || dirty > self.capacity / 4 * 3
                || now >= self.dirty_since + PATIENCE)
    }

    /// The arm, with nothing else to do, should write.
    pub(super) fn is_due(&self, now: Nanos) -> bool {
        self.due_at().is_some_and(|at| at <= now)
    }

    pub(super) fn due_at(&self) -> Option<Nanos> {
        match self.dirty() {
            0 => None,
            // Once there is a revolution's worth there is no point in waiting for more.
            dirty if dirty >= MOST_SECTORS => Some(Nanos::ZERO),
            _ => Some(self.dirty_since + GATHER),
        }
    }

    /// Runs that could be written next by a head that has just passed the sector before `at`.
    pub(super) fn candidates(&self, at: u64) -> impl Iterator<Item = Range<u64>> + '_ {
        let from = if self.demanded.is_empty() { &self.fresh } else { &self.demanded };
        from.around(at).take(CHOICE).map(|run| run.start..run.end.min(run.start + MOST_SECTORS))
    }

    /// The run is being written from now on. A crash before the end may leave any part of it on the platters; ours
    /// leaves none.
    pub(super) fn begin(&mut self, run: Range<u64>) {
        self.forget(run.clone());
        self.writing = Some(run);
    }

    /// It has been written.
    pub(super) fn written(&mut self, now: Nanos) {
        self.writing = None;
        // The oldest may be gone; counting from now keeps the promise within a factor of two.
        self.dirty_since = now;
    }

    /// Names those that no longer have to wait: flushes for the platters, writes for room.
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
