//! The read cache: a list of segments. The last one grows while the head reads ahead.

use super::geometry::Geometry;
use extant_rt::Nanos;
use std::ops::{Range, RangeInclusive};

#[derive(Debug)]
pub(super) struct LookAhead {
    /// Runs of sectors, least recently used first.
    segments: Vec<Range<u64>>,
    most: usize,
    segment_sectors: u64,
    /// Set while the head reads ahead, at the end of the last segment.
    growing: Option<Growing>,
    /// Read-ahead reached its limit; the head waits at the end of the last segment.
    paused: bool,
}

#[derive(Clone, Copy, Debug)]
struct Growing {
    since: Nanos,
    /// Where it stops: one segment past the last sector that the host has read.
    limit: u64,
}

impl LookAhead {
    pub(super) fn new(most: usize, segment_sectors: u64) -> Self {
        Self { segments: Vec::new(), most, segment_sectors, growing: None, paused: false }
    }

    /// Extends the last segment to where the head has got by `now`.
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
            // Count whole sectors only; the remainder of the next one stays in `since`.
            growing.since += Nanos((sectors as f64 * sector_ns) as u64);
            segment.end += sectors;
        }
        segment.start = segment.start.max(segment.end.saturating_sub(self.segment_sectors));
    }

    /// Whether the range is buffered; a hit counts as a use.
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

    /// Resumes paused read-ahead, once the host has read all but half a segment of what is
    /// buffered.
    pub(super) fn resume(&mut self, geometry: &Geometry, now: Nanos, had: u64) {
        let Some(segment) = self.segments.last().filter(|_| self.paused) else { return };
        let read_it = segment.start <= had && had <= segment.end;
        if read_it && segment.end <= had + self.segment_sectors / 2 {
            let wait = geometry.wait_ns(now.0, geometry.place(segment.end));
            self.growing = Some(Growing { since: now + Nanos(wait), limit: had + self.segment_sectors });
            self.paused = false;
        }
    }

    /// The start sectors with which a read continues the read-ahead, while the head reads ahead.
    /// The head is at the end of these sectors.
    pub(super) fn continued_from(&self) -> Option<RangeInclusive<u64>> {
        self.growing?;
        self.segments.last().map(|segment| segment.start..=segment.end)
    }

    /// Stops reading ahead, since the head moves for another command.
    pub(super) fn stop(&mut self) {
        self.growing = None;
        self.paused = false;
    }

    /// Records a command's sectors, which have just passed under the head; read-ahead continues
    /// from there.
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

    /// Drops segments that a write has overwritten.
    pub(super) fn forget(&mut self, range: Range<u64>) {
        let count = self.segments.len();
        self.segments.retain(|s| s.end <= range.start || range.end <= s.start);
        if self.segments.len() < count {
            self.stop();
        }
    }
}
