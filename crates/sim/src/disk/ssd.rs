//! A solid-state disk.

use super::buffer::Buffer;
use super::{Command, Drive, Promises, Report, Tag, capacity_check, first_fault, transfer_ns};
use extant_block::{Op, Sector};
use extant_rt::{Nanos, Rng};
use std::ops::Range;

/// Parameters of an [`Ssd`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SsdSpec {
    /// Size in bytes.
    pub capacity_bytes: u64,
    /// Units that work in parallel.
    pub channels: u32,
    /// Bytes that a channel moves at once. For reads, consecutive pages lie on consecutive
    /// channels; a written page is programmed by the first free channel.
    pub page_bytes: u64,
    /// Quantiles of the read latency of a page: (parts per million, nanoseconds), rising.
    pub read_ns: Vec<(u32, u64)>,
    /// Quantiles of the latency of a write into the buffer, likewise.
    pub write_ns: Vec<(u32, u64)>,
    /// Mean time to program a page, which bounds sustained writing; single pages differ by up to a
    /// fourth. A page that leaves the buffer with gaps takes as long.
    pub program_ns: u64,
    /// Minimum time of a flush, which otherwise lasts until the buffer is programmed; 0 if
    /// capacitors protect it.
    pub flush_ns: u64,
    /// Time to decode a command and report its completion.
    pub overhead_ns: u64,
    /// Interface speed in bytes per second.
    pub interface_bytes_s: u64,
    /// Maximum commands in flight.
    pub queue_depth: u32,
    /// Whether writes in the buffer may be lost until a flush.
    pub volatile_buffer: bool,
    /// Bytes written to a channel between two garbage collections; 0 for none.
    pub collect_every_bytes: u64,
    /// Length of a garbage collection pause.
    pub collect_ns: u64,
}

impl SsdSpec {
    /// The first invalid parameter: its name and the problem.
    pub fn fault(&self) -> Option<(&'static str, &'static str)> {
        let rising = |table: &[(u32, u64)]| {
            table.first().is_some_and(|first| first.0 == 0)
                && table.last().is_some_and(|last| last.0 == 1_000_000)
                && table.windows(2).all(|pair| pair[0].0 < pair[1].0 && pair[0].1 <= pair[1].1)
        };
        let quantiles = "quantiles rise from 0 to 1,000,000 parts, with times that do not fall";
        let checks = [
            capacity_check(self.capacity_bytes),
            ("channels", (1..=1024).contains(&self.channels), "a disk has 1 to 1,024 channels"),
            (
                "page_bytes",
                self.page_bytes.is_power_of_two() && self.page_bytes >= 512,
                "a power of two from 512",
            ),
            ("read_ns", rising(&self.read_ns), quantiles),
            ("write_ns", rising(&self.write_ns), quantiles),
            ("queue_depth", (1..=65_536).contains(&self.queue_depth), "a disk takes 1 to 65,536 commands"),
            ("interface_bytes_s", self.interface_bytes_s > 0, "the interface must move some bytes"),
        ];
        first_fault(checks)
    }
}

/// A solid-state disk: channels that work in parallel, with latencies drawn from a distribution.
///
/// A write completes once it is in the buffer, which programming empties at its own rate. The
/// buffer keeps one page open per channel, so small writes to adjacent sectors, or repeated ones to
/// the same place, are programmed together. Closed pages go to flash as a log: to the first free
/// channel, whatever their address. A page with gaps costs as much as a full one, which stands for
/// the garbage collection it causes later. A channel that collects garbage does nothing else
/// meanwhile. Not modelled: where the log has put a page (reads use the page's address), wear,
/// caches of faster cells, thermal throttling.
#[derive(Debug)]
pub struct Ssd {
    spec: SsdSpec,
    rng: Rng,
    /// Random source for programming times.
    programming: Rng,
    channels: Vec<Channel>,
    buffer: Buffer,
    interface_free_at: Nanos,
    promises: Promises,
    /// Sectors that become durable when a command completes.
    hardening: Vec<(Tag, Sector, u64)>,
}

#[derive(Clone, Debug, Default)]
struct Channel {
    /// Reads wait for earlier reads, and for garbage collection.
    free_at: Nanos,
    /// When everything written to it so far is programmed.
    programmed_at: Nanos,
    written_bytes: u64,
}

/// How far programming may lag behind the buffer before writes wait; this sets the buffer's room
/// for closed pages.
const BUFFER_LAG: Nanos = Nanos::from_millis(20);

/// Maximum pages that a channel may lag behind, however short programming is.
const MOST_LAG: u64 = 1 << 12;

fn draw(rng: &mut Rng, quantiles: &[(u32, u64)]) -> u64 {
    let at = rng.below(1_000_000) as u32;
    let above = quantiles.partition_point(|(part, _)| *part <= at).min(quantiles.len() - 1);
    let ((p0, t0), (p1, t1)) = (quantiles[above - 1], quantiles[above]);
    t0 + (t1 - t0) * u64::from(at - p0) / u64::from(p1 - p0)
}

impl Ssd {
    /// An idle drive; `seed` determines its latencies.
    ///
    /// # Panics
    /// If the parameters have a [`SsdSpec::fault`].
    pub fn new(spec: SsdSpec, seed: u64) -> Self {
        if let Some((key, problem)) = spec.fault() {
            panic!("{key}: {problem}");
        }
        let channels = spec.channels as usize;
        let lag = BUFFER_LAG.0.div_ceil(spec.program_ns.max(1)).min(MOST_LAG) as usize;
        Self {
            rng: Rng::labelled(seed, "ssd"),
            programming: Rng::labelled(seed, "ssd programming"),
            channels: vec![Channel::default(); channels],
            buffer: Buffer::new(spec.page_bytes / 512, channels, channels * (1 + lag)),
            interface_free_at: Nanos::ZERO,
            promises: Promises::default(),
            hardening: Vec::new(),
            spec,
        }
    }

    /// The pages of a command, each with its sectors, numbered within the page.
    fn pages(&self, command: &Command) -> impl Iterator<Item = (u64, Range<u64>)> + use<> {
        let sectors = self.spec.page_bytes / 512;
        let (start, end) = (command.start.0, command.end());
        (start / sectors..end.div_ceil(sectors)).map(move |page| {
            let first = page * sectors;
            (page, start.max(first) - first..end.min(first + sectors) - first)
        })
    }

    /// Returns when the interface has moved `bytes` of a command that began at `start` and whose
    /// data is available at `ready`. Interface time is allotted in command order, but no command
    /// waits for another's data: late data is moved when it arrives.
    fn moved(&mut self, start: Nanos, ready: Nanos, bytes: u64) -> Nanos {
        let took = Nanos(transfer_ns(bytes, self.spec.interface_bytes_s));
        self.interface_free_at = self.interface_free_at.max(start) + took;
        self.interface_free_at.max(ready + took)
    }

    fn read(&mut self, start: Nanos, command: &Command) -> Nanos {
        let mut ready = start;
        for (page, sectors) in self.pages(command) {
            if self.buffer.holds(page, sectors) {
                let took = draw(&mut self.rng, &self.spec.write_ns);
                ready = ready.max(start + Nanos(took));
                continue;
            }
            let took = draw(&mut self.rng, &self.spec.read_ns);
            let number = page % self.channels.len() as u64;
            let channel = &mut self.channels[number as usize];
            channel.free_at = channel.free_at.max(start) + Nanos(took);
            ready = ready.max(channel.free_at);
        }
        self.moved(start, ready, command.sectors * 512)
    }

    fn write(&mut self, start: Nanos, command: &Command) -> Nanos {
        let mut ready = self.moved(start, start, command.sectors * 512);
        for (page, sectors) in self.pages(command) {
            let took = draw(&mut self.rng, &self.spec.write_ns);
            let room = self.buffer.room_at(page, start);
            if let Some(closed) = self.buffer.write(page, sectors, room) {
                self.program(closed);
            }
            ready = ready.max(room).max(start + Nanos(took));
        }
        ready
    }

    /// Programs a page whose data is available at `from`. Returns when that ends.
    fn program(&mut self, from: Nanos) -> Nanos {
        let free_first = self.channels.iter_mut().min_by_key(|channel| channel.programmed_at);
        let channel = free_first.expect("a disk has a channel");
        let spec = &self.spec;
        // Programming times vary with the bits stored per cell, so channels that start together
        // drift apart.
        let spread_ns = spec.program_ns / 4;
        let took_ns = spec.program_ns - spread_ns + self.programming.below(2 * spread_ns + 1);
        // Reads interrupt programming, so programming does not delay them. They get half of a
        // channel's time.
        channel.programmed_at = channel.programmed_at.max(from) + Nanos(took_ns);
        let end = channel.programmed_at;
        channel.written_bytes += spec.page_bytes;
        if spec.collect_every_bytes > 0 && channel.written_bytes >= spec.collect_every_bytes {
            channel.written_bytes = 0;
            channel.free_at = channel.free_at.max(from) + Nanos(spec.collect_ns);
            channel.programmed_at += Nanos(spec.collect_ns);
        }
        self.buffer.leaves(end);
        end
    }

    /// Returns when everything in a volatile buffer is programmed; a flush lasts that long.
    fn flush(&mut self, start: Nanos) -> Nanos {
        while let Some(closed) = self.buffer.close_oldest() {
            self.program(closed);
        }
        let last = self.channels.iter().map(|channel| channel.programmed_at).max();
        last.unwrap_or(start).max(start + Nanos(self.spec.flush_ns))
    }

    /// Returns when the pages of one command are programmed.
    fn harden(&mut self, at: Nanos, command: &Command) -> Nanos {
        let mut last = at + Nanos(self.spec.flush_ns);
        for (page, _) in self.pages(command) {
            if let Some(closed) = self.buffer.close(page) {
                last = last.max(self.program(closed));
            }
        }
        last
    }
}

impl Drive for Ssd {
    fn submit(&mut self, now: Nanos, command: Command) {
        let start = now + Nanos(self.spec.overhead_ns);
        let at = match command.op {
            Op::Read => self.read(start, &command),
            Op::Write | Op::WriteZeroes => {
                let at = self.write(start, &command);
                if command.fua && self.spec.volatile_buffer {
                    self.hardening.push((command.tag, command.start, command.sectors));
                    self.harden(at, &command)
                } else {
                    at
                }
            }
            Op::Flush => {
                if self.spec.volatile_buffer {
                    self.hardening.push((command.tag, Sector(0), self.sectors()));
                    self.flush(start)
                } else {
                    start + Nanos(self.spec.flush_ns)
                }
            }
            Op::Discard => start,
        };
        self.promises.push(at, command.tag);
    }

    fn next_event(&self) -> Option<Nanos> {
        self.promises.next()
    }

    fn advance(&mut self, now: Nanos, reports: &mut Vec<Report>) {
        while let Some((at, tag)) = self.promises.pop_due(now) {
            reports.push(Report::Done { tag, at });
            if let Some(found) = self.hardening.iter().position(|(of, ..)| *of == tag) {
                let (_, start, sectors) = self.hardening.swap_remove(found);
                reports.push(Report::Durable { start, sectors });
            }
        }
    }

    fn queue_depth(&self) -> usize {
        self.spec.queue_depth as usize
    }

    fn sectors(&self) -> u64 {
        self.spec.capacity_bytes / 512
    }

    fn has_volatile_cache(&self) -> bool {
        self.spec.volatile_buffer
    }

    fn lose_power(&mut self, now: Nanos) {
        self.promises.clear();
        self.hardening.clear();
        self.interface_free_at = now;
        self.buffer.clear();
        self.channels.fill(Channel { free_at: now, programmed_at: now, written_bytes: 0 });
    }
}
