//! The figures of a run that sources publish.

use crate::experiment::Cell;
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
    pub const ALL: [Self; 10] = [
        Self::Iops,
        Self::MeanMs,
        Self::MaxMs,
        Self::DeviationMs,
        Self::MibS,
        Self::WrittenMibS,
        Self::WrittenMpages,
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
        match self {
            Self::Iops => Some(side.iops(measured.runtime)),
            Self::MeanMs => Some(completion.mean_ns / 1e6),
            Self::MaxMs => Some(completion.max_ns as f64 / 1e6),
            Self::DeviationMs => Some(completion.deviation_ns() / 1e6),
            Self::MibS => Some(side.bytes_s(measured.runtime) / MIB),
            Self::WrittenMibS => written_mib_s,
            Self::WrittenMpages => written_mib_s.map(|mib_s| mib_s * 256.0 * RUN_S / 1e6),
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
