//! A rotating disk as a pure service model: enough mechanics to tell elevators apart.
//!
//! Seek a+b√d, rotation, native command queueing that picks the shortest positioning time (with a bound on how often a
//! command is passed over), look-ahead into a few cache segments, and a fixed overhead per command.

use extant_rt::Nanos;

/// Parameters; times in nanoseconds.
#[derive(Clone, Debug)]
pub struct Geometry {
    pub revolution_ns: u64,
    pub sectors_per_track: u64,
    pub tracks_per_cylinder: u64,
    pub cylinders: u64,
    /// Arm moves by one cylinder, settle included.
    pub seek_min_ns: u64,
    /// Arm moves from edge to edge.
    pub seek_max_ns: u64,
    pub overhead_ns: u64,
    /// Commands that the drive takes at once.
    pub depth: usize,
    /// Look-ahead: segments, and sectors in each.
    pub segments: usize,
    pub segment_sectors: u64,
}

impl Geometry {
    /// A 500 GB 7200 rpm SATA disk of about 2010: track to track 0.8 ms, full stroke 18 ms, 130 MB/s.
    pub fn sata_2010() -> Self {
        Self {
            revolution_ns: 8_333_333,
            sectors_per_track: 2_100,
            tracks_per_cylinder: 4,
            cylinders: 300_000,
            seek_min_ns: 500_000,
            seek_max_ns: 15_200_000,
            overhead_ns: 100_000,
            depth: 31,
            segments: 16,
            segment_sectors: 4096,
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Command {
    tag: u32,
    start: u64,
    sectors: u64,
    arrived: Nanos,
    write: bool,
}

#[derive(Debug)]
pub struct Disk {
    geometry: Geometry,
    queue: Vec<Command>,
    serving: Option<(u32, Nanos)>,
    cylinder: u64,
    /// Cached runs, most recently used last; the last grows while the head stays on it.
    segments: Vec<(u64, u64)>,
    /// Since when the head reads ahead from the end of the last segment.
    ahead_since: Option<Nanos>,
    pub busy_ns: u64,
    pub served: u64,
}

impl Disk {
    pub fn new(geometry: Geometry) -> Self {
        Self {
            geometry,
            queue: Vec::new(),
            serving: None,
            cylinder: 0,
            segments: Vec::new(),
            ahead_since: None,
            busy_ns: 0,
            served: 0,
        }
    }

    pub fn has_room(&self) -> bool {
        self.queue.len() + usize::from(self.serving.is_some()) < self.geometry.depth
    }

    pub fn submit(&mut self, tag: u32, start: u64, sectors: u64, write: bool, now: Nanos) {
        self.queue.push(Command { tag, start, sectors, arrived: now, write });
        self.start(now);
    }

    /// When the command being served ends.
    pub fn busy_until(&self) -> Option<Nanos> {
        self.serving.map(|(_, end)| end)
    }

    /// Ends the command being served, at [`Self::busy_until`].
    pub fn complete(&mut self) -> u32 {
        let (tag, end) = self.serving.take().expect("a command is being served");
        self.start(end);
        tag
    }

    fn start(&mut self, now: Nanos) {
        if self.serving.is_some() || self.queue.is_empty() {
            return;
        }
        self.look_ahead(now);
        // A drive bounds how long it passes a command over.
        let late = self.queue.iter().position(|c| now.0 - c.arrived.0 > 500_000_000);
        let cost = |c: &Command| self.cost(c, now);
        let at = late.unwrap_or_else(|| {
            (0..self.queue.len()).min_by_key(|at| cost(&self.queue[*at])).expect("the queue has commands")
        });
        let command = self.queue.remove(at);
        let took = self.cost(&command, now);
        let end = Nanos(now.0 + took);
        self.busy_ns += took;
        self.served += 1;
        self.after(&command, end);
        self.serving = Some((command.tag, end));
    }

    fn cylinder_of(&self, sector: u64) -> u64 {
        sector / (self.geometry.sectors_per_track * self.geometry.tracks_per_cylinder)
    }

    /// Where on the track, in nanoseconds of a revolution; tracks are skewed by a head switch.
    fn angle_ns(&self, sector: u64) -> u64 {
        let g = &self.geometry;
        let (track, offset) = (sector / g.sectors_per_track, sector % g.sectors_per_track);
        (offset * g.revolution_ns / g.sectors_per_track + track * g.seek_min_ns) % g.revolution_ns
    }

    fn transfer_ns(&self, start: u64, sectors: u64) -> u64 {
        let g = &self.geometry;
        let switches = (start + sectors) / g.sectors_per_track - start / g.sectors_per_track;
        sectors * g.revolution_ns / g.sectors_per_track + switches * g.seek_min_ns
    }

    fn seek_ns(&self, from: u64, to: u64) -> u64 {
        let g = &self.geometry;
        match from.abs_diff(to) {
            0 => 0,
            d => {
                let b = (g.seek_max_ns - g.seek_min_ns) as f64 / (g.cylinders as f64).sqrt();
                g.seek_min_ns + (b * (d as f64).sqrt()) as u64
            }
        }
    }

    fn cost(&self, command: &Command, now: Nanos) -> u64 {
        let g = &self.geometry;
        if !command.write {
            let end = command.start + command.sectors;
            if self.segments.iter().any(|(s, e)| *s <= command.start && end <= *e) {
                // From the buffer at interface speed, 300 MB/s.
                return g.overhead_ns + command.sectors * 512 * 1_000_000_000 / 300_000_000;
            }
            // The head is on this run already: the rest passes under it as it comes.
            if let (Some((s, e)), Some(_)) = (self.segments.last(), self.ahead_since)
                && *s <= command.start
                && command.start <= *e
                && end - *s <= g.segment_sectors * 4
            {
                return g.overhead_ns + self.transfer_ns(*e, end - *e);
            }
        }
        let seek = self.seek_ns(self.cylinder, self.cylinder_of(command.start));
        let arrive = now.0 + g.overhead_ns + seek;
        let wait =
            (self.angle_ns(command.start) + g.revolution_ns - arrive % g.revolution_ns) % g.revolution_ns;
        g.overhead_ns + seek + wait + self.transfer_ns(command.start, command.sectors)
    }

    /// What the head has read ahead until now.
    fn look_ahead(&mut self, now: Nanos) {
        let g = &self.geometry;
        if let (Some(since), Some((s, e))) = (self.ahead_since, self.segments.last_mut()) {
            let read = (now.0 - since.0) * g.sectors_per_track / g.revolution_ns;
            let most = (*s + g.segment_sectors).max(*e);
            let end = (*e + read).min(most);
            self.ahead_since = if end == most {
                None
            } else {
                Some(Nanos(since.0 + (end - *e) * g.revolution_ns / g.sectors_per_track))
            };
            *e = end;
        }
    }

    fn after(&mut self, command: &Command, end: Nanos) {
        let last = command.start + command.sectors;
        if command.write {
            self.segments.retain(|(s, e)| last <= *s || *e <= command.start);
            self.ahead_since = None;
            self.cylinder = self.cylinder_of(last);
            return;
        }
        if let Some(at) = self.segments.iter().position(|(s, e)| *s <= command.start && command.start <= *e) {
            let at_head = at + 1 == self.segments.len();
            let (s, e) = self.segments.remove(at);
            if last <= e {
                // A hit: the head goes on with what it was reading, if that was this run.
                let since = self.ahead_since.filter(|_| at_head);
                self.segments.push((s.max(command.start), e));
                self.ahead_since = since;
                return;
            }
            self.segments.push((command.start, last));
        } else {
            self.segments.push((command.start, last));
        }
        if self.segments.len() > self.geometry.segments {
            self.segments.remove(0);
        }
        self.cylinder = self.cylinder_of(last);
        self.ahead_since = Some(end);
    }
}
