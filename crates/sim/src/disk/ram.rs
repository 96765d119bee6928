//! A disk of memory.

use super::{Command, Drive, Promises, Report, transfer_ns};
use extant_block::Op;
use extant_rt::Nanos;

/// Parameters of a [`Ram`] disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RamSpec {
    /// Size in bytes.
    pub capacity_bytes: u64,
    /// Time from a command to its first byte.
    pub latency_ns: u64,
    /// Copying speed in bytes per second.
    pub bytes_s: u64,
    /// Maximum commands in flight.
    pub queue_depth: u32,
}

/// A disk of memory: each command waits for earlier copies, then pays for its own.
#[derive(Debug)]
pub struct Ram {
    spec: RamSpec,
    free_at: Nanos,
    promises: Promises,
}

impl Ram {
    /// An idle disk.
    pub fn new(spec: RamSpec) -> Self {
        Self { spec, free_at: Nanos::ZERO, promises: Promises::default() }
    }
}

impl Drive for Ram {
    fn submit(&mut self, now: Nanos, command: Command) {
        let bytes = match command.op {
            Op::Read | Op::Write | Op::WriteZeroes => command.sectors * 512,
            Op::Flush | Op::Discard => 0,
        };
        let starts = self.free_at.max(now + Nanos(self.spec.latency_ns));
        self.free_at = starts + Nanos(transfer_ns(bytes, self.spec.bytes_s));
        self.promises.push(self.free_at, command.tag);
    }

    fn next_event(&self) -> Option<Nanos> {
        self.promises.next()
    }

    fn advance(&mut self, now: Nanos, reports: &mut Vec<Report>) {
        while let Some((at, tag)) = self.promises.pop_due(now) {
            reports.push(Report::Done { tag, at });
        }
    }

    fn queue_depth(&self) -> usize {
        self.spec.queue_depth as usize
    }

    fn sectors(&self) -> u64 {
        self.spec.capacity_bytes / 512
    }

    fn has_volatile_cache(&self) -> bool {
        false
    }

    fn lose_power(&mut self, now: Nanos) {
        self.promises.clear();
        self.free_at = now;
    }
}
