//! The figures of a run that sources publish.

use crate::experiment::Cell;
use crate::run::ProcessorUse;
use extant_rt::Nanos;
use serde::Deserialize;

/// A figure of the first report of a run; its name in an experiment's file is that of the variant, in small letters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Figure {
    /// I/Os a second.
    Iops,
    /// Mean completion latency.
    MeanMs,
    /// Longest.
    MaxMs,
    /// Its standard deviation.
    DeviationMs,
    /// MiB a second, as the processes saw them.
    MibS,
    /// MiB a second that the disks wrote.
    WrittenMibS,
    /// Pages of 4 KiB that the disks wrote, in millions, in a run of 300 s.
    WrittenMpages,
    /// Bios a second that came to the disks' queues of a volume; for a striped device, pieces of those above it.
    PiecesS,
    /// Commands a second that the queues made of them.
    CommandsS,
    /// Bios that direct I/O of Linux sent at boundaries, for each GiB written.
    FlushesGib,
    /// Processor time of tasks, in per cent of one processor.
    SystemPercent,
    /// Processor time of interrupts, in per cent of one processor.
    InterruptPercent,
    /// Shortest scheduling latency beside the jobs.
    LatencyMinUs,
    /// Its mean.
    LatencyMeanUs,
    /// Its longest.
    LatencyMaxUs,
}

/// The nominal run of the write-back thread, whose figures are pages written in a run.
const RUN_S: f64 = 300.0;

impl Figure {
    /// All of them.
    pub const ALL: [Self; 15] = [
        Self::Iops,
        Self::MeanMs,
        Self::MaxMs,
        Self::DeviationMs,
        Self::MibS,
        Self::WrittenMibS,
        Self::WrittenMpages,
        Self::PiecesS,
        Self::CommandsS,
        Self::FlushesGib,
        Self::SystemPercent,
        Self::InterruptPercent,
        Self::LatencyMinUs,
        Self::LatencyMeanUs,
        Self::LatencyMaxUs,
    ];

    /// Its key in an experiment's file.
    pub fn key(self) -> &'static str {
        match self {
            Self::Iops => "iops",
            Self::MeanMs => "mean_ms",
            Self::MaxMs => "max_ms",
            Self::DeviationMs => "deviation_ms",
            Self::MibS => "mib_s",
            Self::WrittenMibS => "written_mib_s",
            Self::WrittenMpages => "written_mpages",
            Self::PiecesS => "pieces_s",
            Self::CommandsS => "commands_s",
            Self::FlushesGib => "flushes_gib",
            Self::SystemPercent => "system_percent",
            Self::InterruptPercent => "interrupt_percent",
            Self::LatencyMinUs => "latency_min_us",
            Self::LatencyMeanUs => "latency_mean_us",
            Self::LatencyMaxUs => "latency_max_us",
        }
    }

    /// Name and unit, for a table.
    pub fn title(self) -> &'static str {
        match self {
            Self::Iops => "iops",
            Self::MeanMs => "mean ms",
            Self::MaxMs => "max ms",
            Self::DeviationMs => "stdev ms",
            Self::MibS => "MiB/s",
            Self::WrittenMibS => "disks MiB/s",
            Self::WrittenMpages => "Mpages/300s",
            Self::PiecesS => "I/O/s",
            Self::CommandsS => "commands/s",
            Self::FlushesGib => "flushes/GiB",
            Self::SystemPercent => "sys %",
            Self::InterruptPercent => "intr %",
            Self::LatencyMinUs => "min us",
            Self::LatencyMeanUs => "mean us",
            Self::LatencyMaxUs => "max us",
        }
    }

    /// Digits after the point, in a table.
    pub fn digits(self) -> usize {
        match self {
            Self::MeanMs | Self::MibS | Self::WrittenMibS => 1,
            Self::WrittenMpages => 2,
            _ => 0,
        }
    }

    /// Of one run, of its report of this number; `None` where the run does not have it.
    pub(super) fn of(self, cell: &Cell, report: usize) -> Option<f64> {
        const MIB: f64 = (1 << 20) as f64;
        let measured = &cell.outcome.reports[report].measured;
        let side = if measured.read.ios > 0 { &measured.read } else { &measured.write };
        let completion = &side.completion;
        let written_mib_s = cell.outcome.written.map(|written| written.bytes_s() / MIB);
        let latency = cell.outcome.latency.as_ref();
        let counted = cell.outcome.on_device.as_ref();
        let used = cell.outcome.processors.filter(|_| counted.is_some());
        let a_second = |count: u64| used.map(|used| count as f64 / used.over.as_secs_f64());
        let percent = |time: Nanos, used: ProcessorUse| 100.0 * time.as_secs_f64() / used.over.as_secs_f64();
        match self {
            Self::Iops => Some(side.iops(measured.runtime)),
            Self::MeanMs => Some(completion.mean_ns / 1e6),
            Self::MaxMs => Some(completion.max_ns as f64 / 1e6),
            Self::DeviationMs => Some(completion.deviation_ns() / 1e6),
            Self::MibS => Some(side.bytes_s(measured.runtime) / MIB),
            Self::WrittenMibS => written_mib_s,
            Self::WrittenMpages => written_mib_s.map(|mib_s| mib_s * 256.0 * RUN_S / 1e6),
            Self::PiecesS => counted.and_then(|counted| a_second(counted.pieces)),
            Self::CommandsS => counted.and_then(|counted| a_second(counted.commands)),
            Self::FlushesGib => {
                let linux = counted.filter(|counted| counted.sent.bios() > 0);
                linux.map(|linux| linux.sent.boundary as f64 / (side.bytes as f64 / MIB / 1024.0))
            }
            Self::SystemPercent => used.map(|used| percent(used.system, used)),
            Self::InterruptPercent => used.map(|used| percent(used.interrupts, used)),
            Self::LatencyMinUs => latency.map(|latency| latency.min_ns as f64 / 1e3),
            Self::LatencyMeanUs => latency.map(|latency| latency.mean_ns / 1e3),
            Self::LatencyMaxUs => latency.map(|latency| latency.max_ns as f64 / 1e3),
        }
    }

    /// The mean over some runs.
    pub(super) fn mean(self, cells: &[&Cell], report: usize) -> Option<f64> {
        let each: Option<Vec<f64>> = cells.iter().map(|cell| self.of(cell, report)).collect();
        each.filter(|each| !each.is_empty()).map(|each| each.iter().sum::<f64>() / each.len() as f64)
    }
}
