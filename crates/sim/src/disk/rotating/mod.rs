//! A rotating disk: one arm, platters that turn, and the buffer in front of them.
//!
//! | file | what |
//! |---|---|
//! | `geometry` | where sectors lie, and how long it takes to reach them |
//! | `seek_time` | how long the arm takes to move |
//! | `command_index` | commands that need the arm |
//! | `next_command` | which of them the arm serves next |
//! | `look_ahead` | the read cache |
//! | `write_cache` | the write cache |

mod command_index;
mod geometry;
mod look_ahead;
mod next_command;
mod seek_time;
#[cfg(test)]
mod tests;
mod write_cache;

use super::{Command, Drive, Promises, Report, Tag, capacity_check, first_fault, transfer_ns};
use command_index::{Queued, Waiting};
use extant_block::{Op, Sector};
use extant_rt::Nanos;
use geometry::{Geometry, SectorPosition};
use look_ahead::LookAhead;
use write_cache::WriteCache;

/// Parameters of a [`Rotating`] disk; most are in data sheets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RotatingSpec {
    /// Size in bytes.
    pub capacity_bytes: u64,
    /// Revolutions per minute.
    pub rpm: u32,
    /// Number of recording surfaces, each with a head.
    pub heads: u32,
    /// Number of zones, of equal width and with tracks of one length each, outermost first.
    pub zones: u32,
    /// Sustained rate in bytes per second at the outer edge.
    pub outer_bytes_s: u64,
    /// Sustained rate in bytes per second at the inner edge.
    pub inner_bytes_s: u64,
    /// Time to switch from one head of a cylinder to the next.
    pub head_switch_ns: u64,
    /// Seek by one track, settling included.
    pub seek_single_ns: u64,
    /// Mean seek over all pairs of tracks.
    pub seek_average_ns: u64,
    /// Seek from edge to edge.
    pub seek_full_ns: u64,
    /// Extra positioning time of a write over a read.
    pub write_settle_ns: u64,
    /// Time to decode a command and report its completion.
    pub overhead_ns: u64,
    /// Interface speed in bytes per second.
    pub interface_bytes_s: u64,
    /// Maximum commands in flight; 1 without command queueing.
    pub queue_depth: u32,
    /// How long a queued command may be passed over for nearer ones.
    pub patience_ns: u64,
    /// Number of read cache segments; 0 for no read cache.
    pub read_segments: u32,
    /// Size of a segment, and how far the head reads ahead.
    pub read_segment_bytes: u64,
    /// Size of the volatile write cache; 0 for write-through.
    pub write_cache_bytes: u64,
}

impl RotatingSpec {
    /// The same disk with seeks, settling and revolutions scaled to `permille` thousandths, for
    /// experiments that calibrate the time of a single random access. Rates, overhead and caches
    /// stay the same. `None` outside 100 to 10,000.
    pub fn with_positioning(self, permille: u64) -> Option<Self> {
        let scaled = |ns: u64| ns.saturating_mul(permille) / 1000;
        (100..=10_000).contains(&permille).then(|| Self {
            rpm: (u64::from(self.rpm) * 1000 / permille) as u32,
            head_switch_ns: scaled(self.head_switch_ns),
            seek_single_ns: scaled(self.seek_single_ns),
            seek_average_ns: scaled(self.seek_average_ns),
            seek_full_ns: scaled(self.seek_full_ns),
            write_settle_ns: scaled(self.write_settle_ns),
            ..self
        })
    }

    /// The first invalid parameter: its name and the problem.
    pub fn fault(&self) -> Option<(&'static str, &'static str)> {
        let checks = [
            capacity_check(self.capacity_bytes),
            ("rpm", (1_000..=30_000).contains(&self.rpm), "disks turn 1,000 to 30,000 times a minute"),
            ("heads", (1..=64).contains(&self.heads), "a disk has 1 to 64 heads"),
            ("zones", (1..=256).contains(&self.zones), "a disk has 1 to 256 zones"),
            ("inner_bytes_s", self.inner_bytes_s >= 1 << 16, "a disk reads at least 64 KiB a second"),
            (
                "outer_bytes_s",
                self.outer_bytes_s >= self.inner_bytes_s,
                "the outer edge is at least as fast as the inner one",
            ),
            ("queue_depth", (1..=1024).contains(&self.queue_depth), "a disk takes 1 to 1,024 commands"),
            ("interface_bytes_s", self.interface_bytes_s > 0, "the interface must move some bytes"),
        ];
        first_fault(checks).or_else(|| {
            let unfit = ("seek_average_ns", "no rising seek curve fits the three times");
            Geometry::new(self).is_none().then_some(unfit)
        })
    }
}

/// A rotating disk.
///
/// What the model covers: the arm moves along the published seek curve. The platters' angle is a
/// function of time, so rotational delay depends on positions. Zones have their own track lengths.
/// Queued commands are served by shortest positioning time, but none is passed over for longer than
/// the drive's patience. After a read the head reads ahead into a cache segment until there is
/// other work. Writes go to the write cache, if there is one. They reach the platters when the arm
/// is idle, when the cache fills, when they have waited long, or at a flush. Not modelled: defects,
/// retries, thermal recalibration, zero-latency access.
#[derive(Debug)]
pub struct Rotating {
    spec: RotatingSpec,
    geometry: Geometry,
    /// Where the head is, or will be when the current job is done.
    arm: SectorPosition,
    arm_sector: u64,
    queue: Waiting,
    work: Option<Work>,
    look_ahead: LookAhead,
    writes: WriteCache,
    promises: Promises,
    /// When the transfers promised so far are off the interface.
    interface_free_at: Nanos,
    /// When an idle arm should check the write cache again.
    wake: Option<Nanos>,
    reads_turn: bool,
}

#[derive(Clone, Copy, Debug)]
struct Work {
    ends: Nanos,
    what: Job,
}

#[derive(Clone, Copy, Debug)]
enum Job {
    Command(Command),
    Destage { start: u64, end: u64 },
}

impl Rotating {
    /// An idle drive with the arm at the outer edge.
    ///
    /// # Panics
    /// If the parameters have a [`RotatingSpec::fault`].
    pub fn new(spec: RotatingSpec) -> Self {
        if let Some((key, problem)) = spec.fault() {
            panic!("{key}: {problem}");
        }
        let geometry = Geometry::new(&spec).expect("it has no fault");
        Self {
            arm: geometry.place(0),
            arm_sector: 0,
            queue: Waiting::default(),
            work: None,
            look_ahead: LookAhead::new(spec.read_segments as usize, spec.read_segment_bytes / 512),
            writes: WriteCache::new(spec.write_cache_bytes / 512),
            promises: Promises::default(),
            interface_free_at: Nanos::ZERO,
            wake: None,
            reads_turn: false,
            geometry,
            spec,
        }
    }

    /// The same drive with its platters turned by part of a revolution, in millionths.
    #[must_use]
    pub fn turned(mut self, millionths: u32) -> Self {
        self.geometry.turn(millionths);
        self
    }

    /// The drive's parameters.
    pub fn spec(&self) -> &RotatingSpec {
        &self.spec
    }

    /// Handles an arriving read, which may hit the buffer.
    fn read(&mut self, now: Nanos, command: Command) {
        let range = command.start.0..command.end();
        self.look_ahead.catch_up(&self.geometry, now);
        let buffered = self.writes.holds(range.clone()) || {
            let hit = self.look_ahead.hit(range.clone());
            if hit && self.work.is_none() {
                self.look_ahead.resume(&self.geometry, now, range.end);
            }
            hit
        };
        if buffered {
            let gone = self.transferred(now, command.sectors);
            self.promises.push(gone, command.tag);
        } else {
            self.enqueue(now, command);
        }
    }

    fn write(&mut self, now: Nanos, command: Command) {
        self.look_ahead.forget(command.start.0..command.end());
        let cacheable = command.op == Op::Write && !command.fua && self.writes.can_ever_hold(command.sectors);
        if !cacheable {
            self.enqueue(now, command);
            return;
        }
        let received = self.transferred(now, command.sectors);
        if self.writes.take(command) {
            self.promises.push(received, command.tag);
        }
    }

    /// Transfers data between host and buffer, after the transfers before it. Returns when that is
    /// done.
    fn transferred(&mut self, now: Nanos, sectors: u64) -> Nanos {
        let starts = self.interface_free_at.max(now + Nanos(self.spec.overhead_ns));
        self.interface_free_at = starts + Nanos(transfer_ns(sectors * 512, self.spec.interface_bytes_s));
        self.interface_free_at
    }

    fn enqueue(&mut self, now: Nanos, command: Command) {
        let place = self.geometry.place(command.start.0);
        let ready = now + Nanos(self.spec.overhead_ns);
        let transfer_ns = self.geometry.transfer_ns(place, command.sectors);
        self.queue.push(Queued { command, place, arrived: now, ready, transfer_ns });
    }

    /// Gives an idle arm something to do.
    fn start(&mut self, now: Nanos) {
        if self.work.is_some() {
            return;
        }
        self.look_ahead.catch_up(&self.geometry, now);
        self.wake = None;
        let urgent = (self.queue.is_empty() || !self.reads_turn) && self.writes.is_urgent(now);
        if !urgent && let Some((at, took)) = self.choose(now) {
            let Queued { command, place, .. } = self.queue.take(at);
            self.reads_turn = false;
            self.look_ahead.stop();
            self.settle(place, command.sectors, command.end());
            self.work = Some(Work { ends: now + Nanos(took), what: Job::Command(command) });
        } else if urgent || self.writes.is_due(now) {
            self.reads_turn = true;
            self.destage(now);
        } else {
            self.wake = self.writes.due_at();
        }
    }

    /// Sets the arm to where this transfer will end.
    fn settle(&mut self, place: SectorPosition, sectors: u64, end: u64) {
        let same_track = self.geometry.is_within_track(place, sectors);
        self.arm = if same_track { place } else { self.geometry.place(end - 1) };
        self.arm_sector = end;
    }

    fn destage(&mut self, now: Nanos) {
        let angle_ns = self.geometry.angle_at(now.0);
        let nearest = self
            .writes
            .candidates(self.arm_sector)
            .map(|run| {
                let place = self.geometry.place(run.start);
                let mut moves = self.geometry.move_ns(self.arm, place);
                if run.start != self.arm_sector {
                    moves += self.spec.write_settle_ns;
                }
                let wait = self.geometry.wait_after(angle_ns, moves, place);
                (moves + wait, place, run)
            })
            .min_by_key(|(cost, ..)| *cost);
        let Some((cost, place, run)) = nearest else { return };
        let took = cost + self.geometry.transfer_ns(place, run.end - run.start);
        self.writes.begin(run.clone());
        self.look_ahead.stop();
        self.settle(place, run.end - run.start, run.end);
        let what = Job::Destage { start: run.start, end: run.end };
        self.work = Some(Work { ends: now + Nanos(took), what });
    }

    fn finish(&mut self, now: Nanos, what: Job, reports: &mut Vec<Report>) {
        match what {
            Job::Command(command) if command.op == Op::Read => {
                self.look_ahead.read(command.start.0..command.end(), now);
                // Data is transferred as it is read; the rest of the transfer counts as overhead.
                reports.push(Report::Done { tag: command.tag, at: now });
            }
            Job::Command(Command { tag, start, sectors, .. }) => {
                reports.push(Report::Done { tag, at: now });
                reports.push(Report::Durable { start, sectors });
                // Only now is the cached version of these sectors stale.
                self.writes.forget(start.0..start.0 + sectors);
                self.writes.release(now, |tag: Tag| self.promises.push(now, tag));
            }
            Job::Destage { start, end } => {
                reports.push(Report::Durable { start: Sector(start), sectors: end - start });
                self.writes.written(now);
                self.writes.release(now, |tag: Tag| self.promises.push(now, tag));
            }
        }
    }
}

impl Drive for Rotating {
    fn submit(&mut self, now: Nanos, command: Command) {
        match command.op {
            Op::Read => self.read(now, command),
            Op::Write | Op::WriteZeroes => self.write(now, command),
            Op::Flush => {
                if self.writes.flush(command.tag) {
                    self.promises.push(now + Nanos(self.spec.overhead_ns), command.tag);
                }
            }
            // Rotating disks keep discarded data.
            Op::Discard => self.promises.push(now + Nanos(self.spec.overhead_ns), command.tag),
        }
        self.start(now);
    }

    fn next_event(&self) -> Option<Nanos> {
        let work = self.work.map(|work| work.ends);
        [work, self.promises.next(), self.wake].into_iter().flatten().min()
    }

    fn advance(&mut self, now: Nanos, reports: &mut Vec<Report>) {
        while let Some(next) = self.next_event().filter(|next| *next <= now) {
            if let Some((at, tag)) = self.promises.pop_due(next) {
                reports.push(Report::Done { tag, at });
                self.writes.arrived(tag, at);
                self.start(next);
                continue;
            }
            if let Some(work) = self.work.take_if(|work| work.ends <= next) {
                self.finish(next, work.what, reports);
            }
            self.start(next);
        }
    }

    fn queue_depth(&self) -> usize {
        self.spec.queue_depth as usize
    }

    fn sectors(&self) -> u64 {
        self.spec.capacity_bytes / 512
    }

    fn has_volatile_cache(&self) -> bool {
        self.spec.write_cache_bytes > 0
    }

    fn lose_power(&mut self, _now: Nanos) {
        *self = Self::new(self.spec.clone());
    }
}
