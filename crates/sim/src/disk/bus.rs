//! Drives that share a link.

use super::{Command, Drive, Promises, Report, Tag, transfer_ns};
use extant_block::Op;
use extant_rt::Nanos;

/// Parameters of a [`Bus`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BusSpec {
    /// Speed in bytes per second.
    pub bytes_s: u64,
    /// Time each command holds the link in addition to its data: arbitration, selection, messages,
    /// status.
    pub command_ns: u64,
    /// Maximum commands in flight over all of its drives (`commands`; kernel: `can_queue` of
    /// `Scsi_Host`); `None` means only the drives' own limits apply.
    pub commands: Option<u32>,
}

/// A link that carries one transfer at a time, first come, first served.
#[derive(Debug)]
pub struct Bus {
    spec: BusSpec,
    free_at: Nanos,
    busy: Nanos,
}

impl Bus {
    /// An idle link.
    pub fn new(spec: BusSpec) -> Self {
        Self { spec, free_at: Nanos::ZERO, busy: Nanos::ZERO }
    }

    /// Reserves the link for `bytes` and `commands` as soon as it is free. Returns when that ends.
    fn hold(&mut self, now: Nanos, bytes: u64, commands: u64) -> Nanos {
        let took = Nanos(transfer_ns(bytes, self.spec.bytes_s) + commands * self.spec.command_ns);
        self.busy += took;
        self.free_at = self.free_at.max(now) + took;
        self.free_at
    }
}

/// A set of drives, optionally behind a shared link.
///
/// A write crosses the link before its drive sees it, a read afterwards; until then the command
/// keeps its slot in the drive's queue.
#[derive(Debug)]
pub struct Rack {
    slots: Vec<Slot>,
    bus: Option<Bus>,
    /// Commands in transfer to a drive: arrival time, sequence number, drive, command.
    going: Vec<(Nanos, u64, usize, Command)>,
    sent: u64,
    reports: Vec<Report>,
}

#[derive(Debug)]
struct Slot {
    drive: Box<dyn Drive>,
    /// The drive's next event, cached so that finding the earliest only scans numbers.
    next: Option<Nanos>,
    /// Reads in flight, with the bytes that each will return over the link.
    reading: Vec<(Tag, u64)>,
    /// Reads being transferred to the host.
    returning: Promises,
}

impl Slot {
    fn refresh(&mut self) {
        self.next = match (self.drive.next_event(), self.returning.next()) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
    }
}

impl Rack {
    /// The drives, numbered from 0.
    pub fn new(drives: Vec<Box<dyn Drive>>, bus: Option<BusSpec>) -> Self {
        let slot = |drive| Slot { drive, next: None, reading: Vec::new(), returning: Promises::default() };
        Self {
            slots: drives.into_iter().map(slot).collect(),
            bus: bus.map(Bus::new),
            going: Vec::new(),
            sent: 0,
            reports: Vec::new(),
        }
    }

    /// A drive.
    pub fn drive(&self, number: usize) -> &dyn Drive {
        &*self.slots[number].drive
    }

    /// Number of drives.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// How long the link has been held so far, including time already reserved in the future.
    pub fn bus_busy(&self) -> Nanos {
        self.bus.as_ref().map_or(Nanos::ZERO, |bus| bus.busy)
    }

    /// Maximum commands in flight over all drives ([`BusSpec::commands`]).
    pub(super) fn commands(&self) -> usize {
        self.bus.as_ref().and_then(|bus| bus.spec.commands).map_or(usize::MAX, |most| most as usize)
    }

    /// Sends a command to a drive; see [`Drive::submit`].
    pub fn submit(&mut self, now: Nanos, number: usize, command: Command) {
        let slot = &mut self.slots[number];
        let Some(bus) = &mut self.bus else {
            slot.drive.submit(now, command);
            slot.refresh();
            return;
        };
        let bytes = command.sectors * 512;
        let there = match command.op {
            Op::Read => {
                slot.reading.push((command.tag, bytes));
                // The command's own link time is charged together with its data: it is short, and
                // drives disconnect in between.
                slot.drive.submit(now, command);
                slot.refresh();
                return;
            }
            Op::Write => bus.hold(now, bytes, 1),
            Op::Flush | Op::Discard | Op::WriteZeroes => bus.hold(now, 0, 1),
        };
        self.sent += 1;
        self.going.push((there, self.sent, number, command));
    }

    /// When something happens next.
    pub fn next_event(&self) -> Option<Nanos> {
        let going = self.going.iter().map(|going| going.0).min();
        self.slots.iter().filter_map(|slot| slot.next).min().into_iter().chain(going).min()
    }

    /// Handles all events due by `now`, in time order. Calls `report` with the drive's number for
    /// each.
    pub fn advance(&mut self, now: Nanos, report: &mut dyn FnMut(usize, Report)) {
        while let Some(next) = self.next_event().filter(|next| *next <= now) {
            while let Some(at) = (0..self.going.len())
                .filter(|at| self.going[*at].0 <= next)
                .min_by_key(|at| (self.going[*at].0, self.going[*at].1))
            {
                let (there, _, number, command) = self.going.swap_remove(at);
                self.slots[number].drive.submit(there, command);
                self.slots[number].refresh();
            }
            for number in 0..self.slots.len() {
                if self.slots[number].next.is_some_and(|at| at <= next) {
                    self.advance_one(next, number, report);
                }
            }
        }
    }

    fn advance_one(&mut self, now: Nanos, number: usize, report: &mut dyn FnMut(usize, Report)) {
        let slot = &mut self.slots[number];
        self.reports.clear();
        slot.drive.advance(now, &mut self.reports);
        for heard in &self.reports {
            match (*heard, &mut self.bus) {
                (Report::Done { tag, at }, Some(bus)) => {
                    let reading = slot.reading.iter().position(|(of, _)| *of == tag);
                    match reading.map(|found| slot.reading.swap_remove(found).1) {
                        Some(bytes) => slot.returning.push(bus.hold(at, bytes, 1), tag),
                        None => report(number, *heard),
                    }
                }
                (heard, _) => report(number, heard),
            }
        }
        while let Some((at, tag)) = slot.returning.pop_due(now) {
            report(number, Report::Done { tag, at });
        }
        slot.refresh();
    }

    /// Simulates a power failure: commands in flight and volatile caches are lost.
    pub fn lose_power(&mut self, now: Nanos) {
        self.going.clear();
        for slot in &mut self.slots {
            slot.drive.lose_power(now);
            slot.reading.clear();
            slot.returning.clear();
            slot.refresh();
        }
        if let Some(bus) = &mut self.bus {
            bus.free_at = now;
        }
    }
}
