//! A rotating disk as a pure service model, with enough mechanics to tell elevators apart.
//!
//! It models seek a+b√d, rotation, native command queueing by shortest positioning time (with a
//! limit on how long a command may be passed over), look-ahead into a few cache segments, and a
//! fixed overhead per command.

use extant_rt::Nanos;

/// Parameters; times in nanoseconds.
#[derive(Clone, Debug)]
pub(crate) struct Geometry {
    pub(crate) revolution_ns: u64,
    pub(crate) sectors_per_track: u64,
    pub(crate) tracks_per_cylinder: u64,
    pub(crate) cylinders: u64,
    /// Arm movement by one cylinder, including settling.
    pub(crate) seek_min_ns: u64,
    /// Arm movement from edge to edge.
    pub(crate) seek_max_ns: u64,
    pub(crate) overhead_ns: u64,
    /// Maximum commands in flight.
    pub(crate) depth: usize,
    /// Number of look-ahead segments, and sectors in each.
    pub(crate) segments: usize,
    pub(crate) segment_sectors: u64,
}

impl Geometry {
    /// A 2 TB 7200 rpm SATA disk of about 2013: six surfaces, 140 MB/s, 8.5 ms mean random seek.
    ///
    /// The settle time `seek_min_ns` is calibrated so that a lone random read within 5 GB takes 5.0
    /// ms. With 8 ms of idling that makes the 6.5 s / 500 of the published "before" maximum (see
    /// `five_hundred`).
    pub(crate) fn sata_2013() -> Self {
        Self {
            revolution_ns: 8_333_333,
            sectors_per_track: 2_300,
            tracks_per_cylinder: 6,
            cylinders: 283_000,
            seek_min_ns: 330_000,
            seek_max_ns: 15_200_000,
            overhead_ns: 100_000,
            depth: 31,
            segments: 16,
            segment_sectors: 4096,
        }
    }

    /// A device without mechanics: each command takes `service`, one at a time.
    pub(crate) fn constant(service: Nanos, depth: usize) -> Self {
        Self {
            revolution_ns: 1,
            sectors_per_track: 1 << 40,
            tracks_per_cylinder: 1,
            cylinders: 1,
            seek_min_ns: 0,
            seek_max_ns: 0,
            overhead_ns: service.0,
            depth,
            segments: 0,
            segment_sectors: 0,
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
pub(crate) struct Disk {
    geometry: Geometry,
    queue: Vec<Command>,
    serving: Option<(u32, Nanos)>,
    cylinder: u64,
    /// Cached runs, most recently used last; the last one grows while the head stays on it.
    segments: Vec<(u64, u64)>,
    /// Since when the head has been reading ahead from the end of the last segment.
    ahead_since: Option<Nanos>,
}

impl Disk {
    pub(crate) fn new(geometry: Geometry) -> Self {
        Self {
            geometry,
            queue: Vec::new(),
            serving: None,
            cylinder: 0,
            segments: Vec::new(),
            ahead_since: None,
        }
    }

    pub(crate) fn has_room(&self) -> bool {
        self.queue.len() + usize::from(self.serving.is_some()) < self.geometry.depth
    }

    pub(crate) fn submit(&mut self, tag: u32, start: u64, sectors: u64, write: bool, now: Nanos) {
        self.queue.push(Command { tag, start, sectors, arrived: now, write });
        self.start(now);
    }

    /// When the current command completes.
    pub(crate) fn busy_until(&self) -> Option<Nanos> {
        self.serving.map(|(_, end)| end)
    }

    /// Completes the current command, at [`Self::busy_until`].
    pub(crate) fn complete(&mut self) -> u32 {
        let (tag, end) = self.serving.take().expect("a command is being served");
        self.start(end);
        tag
    }

    fn start(&mut self, now: Nanos) {
        if self.serving.is_some() || self.queue.is_empty() {
            return;
        }
        self.look_ahead(now);
        // A drive limits how long it passes over a command.
        let late = self.queue.iter().position(|c| now.0 - c.arrived.0 > 500_000_000);
        let cost = |c: &Command| self.cost(c, now);
        let at = late.unwrap_or_else(|| {
            (0..self.queue.len()).min_by_key(|at| cost(&self.queue[*at])).expect("the queue has commands")
        });
        let command = self.queue.remove(at);
        let took = self.cost(&command, now);
        let end = Nanos(now.0 + took);
        self.after(&command, end);
        self.serving = Some((command.tag, end));
    }

    fn cylinder_of(&self, sector: u64) -> u64 {
        sector / (self.geometry.sectors_per_track * self.geometry.tracks_per_cylinder)
    }

    /// Position on the track, in nanoseconds of a revolution; tracks are skewed by a head switch.
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
            // The head is already on this run, so the rest only has to pass under it.
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

    /// Adds the sectors that the head has read ahead by `now`.
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
                // A hit: the head continues reading ahead if it was on this run.
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
        if self.segments.is_empty() {
            return;
        }
        self.cylinder = self.cylinder_of(last);
        self.ahead_since = Some(end);
    }
}
