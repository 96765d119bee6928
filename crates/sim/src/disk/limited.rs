//! A volume that its provider limits in commands and bytes a second, with or without burst credits.

use super::{Check, Command, Drive, Report, first_fault};
use extant_block::Op;
use extant_rt::Nanos;
use std::collections::VecDeque;
use std::fmt;

/// The limits of a volume. Cloud providers publish them (Amazon EBS: "General Purpose SSD volumes"
/// in its user guide).
///
/// A read, a write, a discard and a write of zeroes each count as a command; a flush does not.
/// Bytes are those of reads and writes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LimitSpec {
    /// Commands.
    pub ios: Option<Allowance>,
    /// Bytes.
    pub bytes: Option<Allowance>,
    /// A longer command counts as several, one for each so many bytes; `None` if length does not
    /// matter.
    pub io_bytes: Option<u64>,
}

/// How many commands, or how many bytes, a volume may move. Both are called units here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allowance {
    /// Units earned in a second, and so the rate once all credits are spent.
    pub earned_s: u64,
    /// Most units a second while credits last; `None` if only the drive is a limit.
    pub burst_s: Option<u64>,
    /// Most units that are saved up. A run begins with as many.
    pub credits: u64,
}

impl Allowance {
    fn checks(&self, [limit, burst]: [&'static str; 2]) -> [Check; 2] {
        let earned = self.earned_s;
        [
            (limit, earned > 0, "a volume must be allowed something"),
            (burst, self.burst_s.is_none_or(|most| most >= earned), "a burst is no slower than the limit"),
        ]
    }
}

impl LimitSpec {
    /// Whether nothing is limited.
    pub fn is_empty(&self) -> bool {
        self.ios.is_none() && self.bytes.is_none()
    }

    /// The first invalid parameter and the problem with it.
    pub(super) fn fault(&self) -> Option<(&'static str, &'static str)> {
        let size = ("limit_io_bytes", self.io_bytes != Some(0), "must be above 0");
        let ios = self.ios.iter().map(|all| all.checks(["limit_ios_s", "burst_ios_s"]));
        let bytes = self.bytes.iter().map(|all| all.checks(["limit_bytes_s", "burst_bytes_s"]));
        ios.chain(bytes).find_map(first_fault).or_else(|| first_fault([size]))
    }
}

/// A rate with room for a burst: the generic cell rate algorithm of ATM (ITU-T I.371).
#[derive(Clone, Debug)]
struct Pace {
    units_s: u64,
    /// How long before its turn a command may start, in 1/`units_s` ns.
    room: u128,
    /// When the rate will have earned all units that were taken so far, in the same scale.
    used_up: u128,
}

impl Pace {
    fn new(units_s: u64, credits: u64) -> Self {
        Self { units_s, room: u128::from(credits) * NS_PER_S, used_up: 0 }
    }

    fn scaled(&self, at: Nanos) -> u128 {
        u128::from(at.0) * u128::from(self.units_s)
    }

    /// The first time at which a command may start.
    fn opens_at(&self) -> Nanos {
        let at = self.used_up.saturating_sub(self.room).div_ceil(u128::from(self.units_s));
        Nanos(u64::try_from(at).unwrap_or(u64::MAX))
    }

    fn charge(&mut self, now: Nanos, units: u64) {
        self.used_up = self.used_up.max(self.scaled(now)) + u128::from(units) * NS_PER_S;
    }
}

const NS_PER_S: u128 = 1_000_000_000;

/// The paces of commands or of bytes.
#[derive(Clone, Debug)]
struct Meter {
    earned: Pace,
    burst: Option<Pace>,
}

impl Meter {
    fn new(allowance: &Allowance) -> Self {
        Self {
            earned: Pace::new(allowance.earned_s, allowance.credits),
            burst: allowance.burst_s.map(|most| Pace::new(most, 0)),
        }
    }

    fn paces(&mut self) -> impl Iterator<Item = &mut Pace> {
        [&mut self.earned].into_iter().chain(&mut self.burst)
    }
}

/// A drive behind limits. Commands that they hold back wait in their order.
pub struct Limited {
    drive: Box<dyn Drive>,
    io_bytes: Option<u64>,
    ios: Option<Meter>,
    bytes: Option<Meter>,
    held: VecDeque<Command>,
    /// When the first one that is held may start.
    opens_at: Nanos,
}

impl Limited {
    /// Puts a drive behind limits, with all credits saved up.
    pub fn new(drive: Box<dyn Drive>, spec: &LimitSpec) -> Self {
        Self {
            drive,
            io_bytes: spec.io_bytes,
            ios: spec.ios.as_ref().map(Meter::new),
            bytes: spec.bytes.as_ref().map(Meter::new),
            held: VecDeque::new(),
            opens_at: Nanos::ZERO,
        }
    }

    /// Starts a command, and notes when the next one may start.
    fn start(&mut self, now: Nanos, command: Command) {
        let bytes = match command.op {
            Op::Read | Op::Write => command.sectors * 512,
            Op::WriteZeroes | Op::Discard | Op::Flush => 0,
        };
        let ios = self.io_bytes.map_or(1, |size| bytes.div_ceil(size).max(1));
        for (meter, units) in [(&mut self.ios, ios), (&mut self.bytes, bytes)] {
            for pace in meter.iter_mut().flat_map(Meter::paces) {
                pace.charge(now, units);
                self.opens_at = self.opens_at.max(pace.opens_at());
            }
        }
        self.drive.submit(now, command);
    }
}

impl Drive for Limited {
    fn submit(&mut self, now: Nanos, command: Command) {
        match command.op {
            Op::Flush => self.drive.submit(now, command),
            _ if self.held.is_empty() && self.opens_at <= now => self.start(now, command),
            _ => self.held.push_back(command),
        }
    }

    fn next_event(&self) -> Option<Nanos> {
        let opens = (!self.held.is_empty()).then_some(self.opens_at);
        self.drive.next_event().into_iter().chain(opens).min()
    }

    fn advance(&mut self, now: Nanos, reports: &mut Vec<Report>) {
        while self.opens_at <= now
            && let Some(command) = self.held.pop_front()
        {
            let at = self.opens_at;
            self.drive.advance(at, reports);
            self.start(at, command);
        }
        self.drive.advance(now, reports);
    }

    fn queue_depth(&self) -> usize {
        self.drive.queue_depth()
    }

    fn sectors(&self) -> u64 {
        self.drive.sectors()
    }

    fn has_volatile_cache(&self) -> bool {
        self.drive.has_volatile_cache()
    }

    fn lose_power(&mut self, now: Nanos) {
        self.held.clear();
        self.drive.lose_power(now);
    }
}

impl fmt::Debug for Limited {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Limited").field("drive", &self.drive).field("held", &self.held.len()).finish()
    }
}
