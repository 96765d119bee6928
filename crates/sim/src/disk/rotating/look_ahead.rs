//! The read cache: segments, the last of which grows while the head stays on its track.

use super::geometry::Geometry;
use extant_rt::Nanos;
use std::ops::{Range, RangeInclusive};

#[derive(Debug)]
pub(super) struct LookAhead {
    /// Runs of sectors, least recently used first.
    segments: Vec<Range<u64>>,
    most: usize,
    segment_sectors: u64,
    /// While the head reads ahead, at the end of the last segment.
    growing: Option<Growing>,
    /// The head stands at the end of the last segment, which was full.
    paused: bool,
}

#[derive(Clone, Copy, Debug)]
struct Growing {
    since: Nanos,
    /// Where it stops: a segment beyond what the host has had.
    limit: u64,
}

impl LookAhead {
    pub(super) fn new(most: usize, segment_sectors: u64) -> Self {
        Self { segments: Vec::new(), most, segment_sectors, growing: None, paused: false }
    }

    /// Lets the last segment grow to where the head has got by now.
    pub(super) fn catch_up(&mut self, geometry: &Geometry, now: Nanos) {
        let (Some(growing), Some(segment)) = (&mut self.growing, self.segments.last_mut()) else { return };
        let Some(passed) = now.0.checked_sub(growing.since.0) else { return };
        let sector_ns = geometry.streaming_sector_ns(segment.end);
        let sectors = (passed as f64 / sector_ns) as u64;
        if segment.end + sectors >= growing.limit {
            segment.end = segment.end.max(growing.limit);
            self.growing = None;
            self.paused = true;
        } else {
            // Whole sectors only; the part of the next stays in `since`.
            growing.since += Nanos((sectors as f64 * sector_ns) as u64);
            segment.end += sectors;
        }
        segment.start = segment.start.max(segment.end.saturating_sub(self.segment_sectors));
    }

    /// Whether the range is buffered; then it counts as used.
    pub(super) fn hit(&mut self, range: Range<u64>) -> bool {
        let Some(at) = self.segments.iter().rposition(|s| s.start <= range.start && range.end <= s.end)
        else {
            return false;
        };
        if at + 1 == self.segments.len() {
            if let Some(growing) = &mut self.growing {
                growing.limit = growing.limit.max(range.end + self.segment_sectors);
            }
        } else if self.growing.is_none() && !self.paused {
            let used = self.segments.remove(at);
            self.segments.push(used);
        }
        true
    }

    /// The head goes on, after a pause, once the host has had half of what it read ahead.
    pub(super) fn resume(&mut self, geometry: &Geometry, now: Nanos, had: u64) {
        let Some(segment) = self.segments.last().filter(|_| self.paused) else { return };
        let read_it = segment.start <= had && had <= segment.end;
        if read_it && segment.end <= had + self.segment_sectors / 2 {
            let wait = geometry.wait_ns(now.0, geometry.place(segment.end));
            self.growing = Some(Growing { since: now + Nanos(wait), limit: had + self.segment_sectors });
            self.paused = false;
        }
    }

    /// While the head reads ahead: the run that a read goes on with if it starts here. The head is at its end.
    pub(super) fn continued_from(&self) -> Option<RangeInclusive<u64>> {
        self.growing?;
        self.segments.last().map(|segment| segment.start..=segment.end)
    }

    /// The head goes elsewhere, or onwards for a command.
    pub(super) fn stop(&mut self) {
        self.growing = None;
        self.paused = false;
    }

    /// A command's sectors have passed under the head, which stays there.
    pub(super) fn read(&mut self, range: Range<u64>, now: Nanos) {
        if self.most == 0 {
            return;
        }
        let continued = self.segments.iter().rposition(|s| s.start <= range.start && range.start <= s.end);
        let start = continued.map_or(range.start, |at| self.segments.remove(at).start);
        let start = start.max(range.end.saturating_sub(self.segment_sectors));
        self.segments.push(start..range.end);
        if self.segments.len() > self.most {
            self.segments.remove(0);
        }
        self.growing = Some(Growing { since: now, limit: range.end + self.segment_sectors });
    }

    /// The range was overwritten.
    pub(super) fn forget(&mut self, range: Range<u64>) {
        let count = self.segments.len();
        self.segments.retain(|s| s.end <= range.start || range.end <= s.start);
        if self.segments.len() < count {
            self.stop();
        }
    }
}
