//! Disk models as read from machine files.

use super::{
    Allowance, BusSpec, Drive, LimitSpec, Limited, Ram, RamSpec, Rotating, RotatingSpec, Ssd, SsdSpec,
};
use super::{capacity_check, first_fault};
use crate::table::{MOST_NS, ModelError, Table};

/// One disk model of a machine, in one or several copies: a `[[disk]]` of its file.
///
/// Times are in nanoseconds, rates in bytes per second, sizes in bytes; every key of the kind is
/// required. Keys of limits may be left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskModel {
    /// Name of the disk; a number is appended if there are several.
    pub name: String,
    /// Where the numbers come from.
    pub source: String,
    /// Number of disks.
    pub count: u32,
    /// Whether they share the machine's `[bus]`.
    pub on_bus: bool,
    /// Longest command in bytes (Linux: `max_sectors_kb`).
    pub max_command_bytes: u64,
    /// Parameters of the kind of disk.
    pub kind: DiskKind,
    /// What a provider allows it.
    pub limits: LimitSpec,
}

/// The kind of disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DiskKind {
    /// Platters and an arm.
    Rotating(RotatingSpec),
    /// Flash.
    Ssd(SsdSpec),
    /// Memory.
    Ram(RamSpec),
}

impl DiskModel {
    /// Size in bytes.
    pub fn capacity_bytes(&self) -> u64 {
        match &self.kind {
            DiskKind::Rotating(spec) => spec.capacity_bytes,
            DiskKind::Ssd(spec) => spec.capacity_bytes,
            DiskKind::Ram(spec) => spec.capacity_bytes,
        }
    }

    /// Maximum commands in flight per disk.
    pub fn queue_depth(&self) -> usize {
        let depth = match &self.kind {
            DiskKind::Rotating(spec) => spec.queue_depth,
            DiskKind::Ssd(spec) => spec.queue_depth,
            DiskKind::Ram(spec) => spec.queue_depth,
        };
        depth as usize
    }

    /// Whether positioning takes time (Linux: `queue/rotational`).
    pub fn is_rotational(&self) -> bool {
        matches!(self.kind, DiskKind::Rotating(_))
    }

    /// Builds one such drive, idle. `seed` determines its randomness.
    pub fn build(&self, seed: u64) -> Box<dyn Drive> {
        self.build_turned(seed, 0)
    }

    /// Like [`DiskModel::build`], but with any platters turned by part of a revolution, in
    /// millionths.
    pub(crate) fn build_turned(&self, seed: u64, millionths: u32) -> Box<dyn Drive> {
        let drive: Box<dyn Drive> = match &self.kind {
            DiskKind::Rotating(spec) => Box::new(Rotating::new(spec.clone()).turned(millionths)),
            DiskKind::Ssd(spec) => Box::new(Ssd::new(spec.clone(), seed)),
            DiskKind::Ram(spec) => Box::new(Ram::new(spec.clone())),
        };
        if self.limits.is_empty() { drive } else { Box::new(Limited::new(drive, &self.limits)) }
    }
}

/// Reads `[[disk]]` and `[bus]`.
pub(crate) fn read_models(root: &mut Table<'_>) -> Result<(Vec<DiskModel>, Option<BusSpec>), ModelError> {
    let bus = match root.maybe_table("bus")? {
        None => None,
        Some(mut t) => {
            let commands = t.maybe_whole("commands")?;
            let spec = BusSpec {
                bytes_s: t.whole("bytes_s")?,
                command_ns: t.nanoseconds("command_ns")?,
                commands: commands.map(|most| most.min(u64::from(u32::MAX)) as u32),
            };
            if spec.bytes_s == 0 {
                return Err(t.error("bytes_s", "a bus must move some bytes"));
            }
            if spec.commands == Some(0) {
                return Err(t.error("commands", "a bus that carries no command"));
            }
            t.finish()?;
            Some(spec)
        }
    };
    let mut disks = Vec::new();
    for mut t in root.tables("disk")? {
        let model = read_disk(&mut t)?;
        if model.on_bus && bus.is_none() {
            return Err(t.error("on_bus", "the machine has no [bus]"));
        }
        t.finish()?;
        disks.push(model);
    }
    Ok((disks, bus))
}

fn read_disk(t: &mut Table<'_>) -> Result<DiskModel, ModelError> {
    let name = t.string("name")?;
    let source = t.string("source")?;
    let count = small(t, "count")?;
    if !(1..=1024).contains(&count) {
        return Err(t.error("count", format!("{count} is not between 1 and 1024")));
    }
    let on_bus = t.flag("on_bus")?;
    let max_command_bytes = t.whole("max_command_bytes")?;
    if max_command_bytes < 4096 || max_command_bytes % 4096 != 0 {
        return Err(t.error("max_command_bytes", "must be a multiple of 4096 above 0"));
    }
    let (kind, fault) = match t.string("kind")?.as_str() {
        "rotating" => {
            let spec = rotating(t)?;
            let fault = spec.fault();
            (DiskKind::Rotating(spec), fault)
        }
        "ssd" => {
            let spec = ssd(t)?;
            let fault = spec.fault();
            (DiskKind::Ssd(spec), fault)
        }
        "ram" => {
            let spec = RamSpec {
                capacity_bytes: t.whole("capacity_bytes")?,
                latency_ns: t.nanoseconds("latency_ns")?,
                bytes_s: t.whole("bytes_s")?,
                queue_depth: small(t, "queue_depth")?,
            };
            let checks = [
                capacity_check(spec.capacity_bytes),
                ("bytes_s", spec.bytes_s > 0, "memory must move some bytes"),
                ("queue_depth", spec.queue_depth > 0, "must be above 0"),
            ];
            let fault = first_fault(checks);
            (DiskKind::Ram(spec), fault)
        }
        other => {
            let problem = format!("\"{other}\" is not one of \"rotating\", \"ssd\", \"ram\"");
            return Err(t.error("kind", problem));
        }
    };
    let limits = LimitSpec {
        ios: allowance(t, ["limit_ios_s", "burst_ios_s", "credit_ios"])?,
        bytes: allowance(t, ["limit_bytes_s", "burst_bytes_s", "credit_bytes"])?,
        io_bytes: t.maybe_whole("limit_io_bytes")?,
    };
    if limits.io_bytes.is_some() && limits.ios.is_none() {
        return Err(t.error("limit_io_bytes", NO_LIMIT));
    }
    match fault.or_else(|| limits.fault()) {
        Some((key, problem)) => Err(t.error(key, problem)),
        None => Ok(DiskModel { name, source, count, on_bus, max_command_bytes, kind, limits }),
    }
}

const NO_LIMIT: &str = "needs the limit that it is about (limit_ios_s or limit_bytes_s)";

fn allowance(
    t: &mut Table<'_>,
    [limit, burst, credit]: [&'static str; 3],
) -> Result<Option<Allowance>, ModelError> {
    let (burst_s, credits) = (t.maybe_whole(burst)?, t.maybe_whole(credit)?);
    match t.maybe_whole(limit)? {
        Some(earned_s) => Ok(Some(Allowance { earned_s, burst_s, credits: credits.unwrap_or(0) })),
        None if burst_s.is_some() => Err(t.error(burst, NO_LIMIT)),
        None if credits.is_some() => Err(t.error(credit, NO_LIMIT)),
        None => Ok(None),
    }
}

fn small(t: &mut Table<'_>, key: &'static str) -> Result<u32, ModelError> {
    let value = t.whole(key)?;
    u32::try_from(value).map_err(|_| t.error(key, format!("{value} is too large")))
}

fn rotating(t: &mut Table<'_>) -> Result<RotatingSpec, ModelError> {
    let spec = data_sheet(t)?;
    match t.maybe_whole("positioning_permille")? {
        None => Ok(spec),
        Some(permille) => {
            let problem = "positioning takes 100 to 10,000 thousandths of what the data sheet says";
            spec.with_positioning(permille).ok_or_else(|| t.error("positioning_permille", problem))
        }
    }
}

fn data_sheet(t: &mut Table<'_>) -> Result<RotatingSpec, ModelError> {
    Ok(RotatingSpec {
        capacity_bytes: t.whole("capacity_bytes")?,
        rpm: small(t, "rpm")?,
        heads: small(t, "heads")?,
        zones: small(t, "zones")?,
        outer_bytes_s: t.whole("outer_bytes_s")?,
        inner_bytes_s: t.whole("inner_bytes_s")?,
        head_switch_ns: t.nanoseconds("head_switch_ns")?,
        seek_single_ns: t.nanoseconds("seek_single_ns")?,
        seek_average_ns: t.nanoseconds("seek_average_ns")?,
        seek_full_ns: t.nanoseconds("seek_full_ns")?,
        write_settle_ns: t.nanoseconds("write_settle_ns")?,
        overhead_ns: t.nanoseconds("overhead_ns")?,
        interface_bytes_s: t.whole("interface_bytes_s")?,
        queue_depth: small(t, "queue_depth")?,
        patience_ns: t.nanoseconds("patience_ns")?,
        read_segments: small(t, "read_segments")?,
        read_segment_bytes: t.whole("read_segment_bytes")?,
        write_cache_bytes: t.whole("write_cache_bytes")?,
    })
}

fn ssd(t: &mut Table<'_>) -> Result<SsdSpec, ModelError> {
    let quantiles = |t: &mut Table<'_>, key| -> Result<Vec<(u32, u64)>, ModelError> {
        let pairs = t.pairs(key)?;
        if let Some((_, ns)) = pairs.iter().find(|(_, ns)| *ns > MOST_NS) {
            return Err(t.error(key, format!("{ns} ns is longer than an hour")));
        }
        Ok(pairs.into_iter().map(|(part, ns)| (part.min(u64::from(u32::MAX)) as u32, ns)).collect())
    };
    Ok(SsdSpec {
        capacity_bytes: t.whole("capacity_bytes")?,
        channels: small(t, "channels")?,
        page_bytes: t.whole("page_bytes")?,
        read_ns: quantiles(t, "read_ns")?,
        write_ns: quantiles(t, "write_ns")?,
        program_ns: t.nanoseconds("program_ns")?,
        flush_ns: t.nanoseconds("flush_ns")?,
        overhead_ns: t.nanoseconds("overhead_ns")?,
        interface_bytes_s: t.whole("interface_bytes_s")?,
        queue_depth: small(t, "queue_depth")?,
        volatile_buffer: t.flag("volatile_buffer")?,
        collect_every_bytes: t.whole("collect_every_bytes")?,
        collect_ns: t.nanoseconds("collect_ns")?,
    })
}
