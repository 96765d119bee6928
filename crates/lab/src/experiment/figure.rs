//! The figures of a run that sources publish.

use crate::experiment::Cell;
use crate::run::{Outcome, ProcessorUse};
use extant_rt::Nanos;
use extant_sim::Spent;
use serde::Deserialize;

/// A figure of a run's first report. Its name in an experiment file is the variant's, in snake
/// case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Figure {
    /// I/Os per second.
    Iops,
    /// Mean completion latency.
    MeanMs,
    /// Longest completion latency.
    MaxMs,
    /// Standard deviation of completion latency.
    DeviationMs,
    /// Mean sync latency.
    SyncMeanMs,
    /// Longest sync latency.
    SyncMaxMs,
    /// MiB per second as the processes saw them.
    MibS,
    /// MiB per second written by the disks.
    WrittenMibS,
    /// Pages of 4 KiB written by the disks in a run of 300 s, in millions.
    WrittenMpages,
    /// Bios per second that reach the queues of a volume's disks; for a striped device, pieces of
    /// the bios above it.
    PiecesS,
    /// Commands per second that the queues made of them.
    CommandsS,
    /// Bios that Linux's direct I/O sent at boundaries, per GiB written.
    FlushesGib,
    /// Processor time of tasks, in per cent of one processor.
    SystemPercent,
    /// Processor time of interrupts, in per cent of one processor.
    InterruptPercent,
    /// Shortest scheduling latency while the jobs run.
    LatencyMinUs,
    /// Mean scheduling latency.
    LatencyMeanUs,
    /// Longest scheduling latency.
    LatencyMaxUs,
    /// Duration of a phase, or of a run until everything is durable.
    Seconds,
    /// MiB moved per second of processor time, program and kernel together.
    CpuMibS,
    /// The kernel's processor time in the phase, in per cent of one processor.
    KernelPercent,
    /// Sleeps for pages' bits, in thousands (kernel: `wait_on_page_bit`).
    PageSleepsK,
    /// Sleeps for pages' locks, in thousands (kernel: `__lock_page`).
    LockSleepsK,
    /// Sleeps for buffers, in thousands (kernel: `__wait_on_buffer`).
    BufferSleepsK,
    /// Times that an idle processor received a task, in thousands (kernel: calls of `schedule()` by
    /// `cpu_idle`).
    IdleK,
    /// Context switches' share of the processor time of switches, wake-ups and copies.
    SwitchPercent,
    /// Wake-ups' share of the same time.
    WakePercent,
    /// Waiters for pages and buffers woken spuriously, in thousands.
    SpuriousK,
    /// All waiters for pages and buffers that were woken, in thousands.
    WokenK,
    /// Waiters examined per waiter that had to be woken.
    ExaminedPerWake,
    /// Processor time of tasks, in seconds.
    SystemSeconds,
    /// Groups searched per search by a Linux allocator.
    GroupsPerSearch,
    /// Processor time of such a search, in microseconds per group of the volume.
    SearchUsPerGroup,
    /// Extents of a file on its volume, averaged over all files.
    ExtentsPerFile,
    /// Average length of such an extent in KiB.
    ExtentKib,
    /// MiB per second when all files are reread from beginning to end.
    RereadMibS,
    /// Bios that reach the queues of a volume's disks, per GiB written.
    BiosGib,
    /// Processor time of tasks and interrupts, in seconds per GiB written.
    CpuGib,
}

/// Duration of the write-back thread's nominal run in seconds; its figures count pages written per
/// run.
const RUN_S: f64 = 300.0;

impl Figure {
    /// All figures.
    pub const ALL: [Self; 37] = [
        Self::Iops,
        Self::MeanMs,
        Self::MaxMs,
        Self::DeviationMs,
        Self::SyncMeanMs,
        Self::SyncMaxMs,
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
        Self::Seconds,
        Self::CpuMibS,
        Self::KernelPercent,
        Self::PageSleepsK,
        Self::LockSleepsK,
        Self::BufferSleepsK,
        Self::IdleK,
        Self::SwitchPercent,
        Self::WakePercent,
        Self::SpuriousK,
        Self::WokenK,
        Self::ExaminedPerWake,
        Self::SystemSeconds,
        Self::GroupsPerSearch,
        Self::SearchUsPerGroup,
        Self::ExtentsPerFile,
        Self::ExtentKib,
        Self::RereadMibS,
        Self::BiosGib,
        Self::CpuGib,
    ];

    /// Its key in an experiment's file.
    pub fn key(self) -> &'static str {
        match self {
            Self::Iops => "iops",
            Self::MeanMs => "mean_ms",
            Self::MaxMs => "max_ms",
            Self::DeviationMs => "deviation_ms",
            Self::SyncMeanMs => "sync_mean_ms",
            Self::SyncMaxMs => "sync_max_ms",
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
            Self::Seconds => "seconds",
            Self::CpuMibS => "cpu_mib_s",
            Self::KernelPercent => "kernel_percent",
            Self::PageSleepsK => "page_sleeps_k",
            Self::LockSleepsK => "lock_sleeps_k",
            Self::BufferSleepsK => "buffer_sleeps_k",
            Self::IdleK => "idle_k",
            Self::SwitchPercent => "switch_percent",
            Self::WakePercent => "wake_percent",
            Self::SpuriousK => "spurious_k",
            Self::WokenK => "woken_k",
            Self::ExaminedPerWake => "examined_per_wake",
            Self::SystemSeconds => "system_seconds",
            Self::GroupsPerSearch => "groups_per_search",
            Self::SearchUsPerGroup => "search_us_per_group",
            Self::ExtentsPerFile => "extents_per_file",
            Self::ExtentKib => "extent_kib",
            Self::RereadMibS => "reread_mib_s",
            Self::BiosGib => "bios_gib",
            Self::CpuGib => "cpu_gib",
        }
    }

    /// The name and unit for a table.
    pub fn title(self) -> &'static str {
        match self {
            Self::Iops => "iops",
            Self::MeanMs => "mean ms",
            Self::MaxMs => "max ms",
            Self::DeviationMs => "stdev ms",
            Self::SyncMeanMs => "sync ms",
            Self::SyncMaxMs => "sync max ms",
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
            Self::Seconds => "seconds",
            Self::CpuMibS => "MiB/cpu-s",
            Self::KernelPercent => "system %",
            Self::PageSleepsK => "page bits",
            Self::LockSleepsK => "page locks",
            Self::BufferSleepsK => "buffers",
            Self::IdleK => "idle",
            Self::SwitchPercent => "switches %",
            Self::WakePercent => "wake-ups %",
            Self::SpuriousK => "spurious k",
            Self::WokenK => "woken, k",
            Self::ExaminedPerWake => "seen/woken",
            Self::SystemSeconds => "system s",
            Self::GroupsPerSearch => "groups each",
            Self::SearchUsPerGroup => "us/group",
            Self::ExtentsPerFile => "extents",
            Self::ExtentKib => "extent KiB",
            Self::RereadMibS => "read MiB/s",
            Self::BiosGib => "bios/GiB",
            Self::CpuGib => "cpu s/GiB",
        }
    }

    /// Decimals in a table.
    pub fn digits(self) -> usize {
        match self {
            Self::MeanMs
            | Self::SyncMeanMs
            | Self::MibS
            | Self::WrittenMibS
            | Self::Seconds
            | Self::KernelPercent
            | Self::ExtentsPerFile
            | Self::RereadMibS
            | Self::PageSleepsK
            | Self::LockSleepsK
            | Self::BufferSleepsK
            | Self::IdleK
            | Self::SwitchPercent
            | Self::WakePercent
            | Self::SpuriousK
            | Self::WokenK => 1,
            Self::WrittenMpages
            | Self::CpuMibS
            | Self::ExaminedPerWake
            | Self::SystemSeconds
            | Self::SearchUsPerGroup
            | Self::CpuGib => 2,
            _ => 0,
        }
    }

    /// Whether the figure counts events; predictions of counts must be closer than those of rates
    /// or times.
    pub(crate) fn is_count(self) -> bool {
        matches!(
            self,
            Self::WrittenMpages
                | Self::PageSleepsK
                | Self::LockSleepsK
                | Self::BufferSleepsK
                | Self::IdleK
                | Self::SpuriousK
                | Self::WokenK
        )
    }

    /// Another figure that measures the same thing, and the value of one of its units in this
    /// figure's unit.
    pub(crate) fn twin(self) -> Option<(Self, f64)> {
        const MPAGES: f64 = 256.0 * RUN_S / 1e6;
        match self {
            Self::WrittenMibS => Some((Self::WrittenMpages, 1.0 / MPAGES)),
            Self::WrittenMpages => Some((Self::WrittenMibS, MPAGES)),
            _ => None,
        }
    }

    /// The figure in one report of a run; `None` if the run does not have it.
    pub(super) fn of(self, cell: &Cell, report: usize) -> Option<f64> {
        const MIB: f64 = (1 << 20) as f64;
        let outcome = match &cell.outcome {
            Outcome::Phase(phase) => return phase.figures.get(&self).copied(),
            Outcome::Jobs(jobs) => jobs,
        };
        let measured = &outcome.reports[report].measured;
        let side = if measured.read.ios > 0 { &measured.read } else { &measured.write };
        let completion = &side.completion;
        let synced = Some(&measured.sync).filter(|sync| sync.count > 0);
        let written_mib_s = outcome.written.map(|written| written.bytes_s() / MIB);
        let latency = outcome.latency.as_ref();
        let counted = outcome.on_device.as_ref();
        let layout = outcome.layout.filter(|layout| layout.extents > 0);
        let used = outcome.processors.filter(|_| counted.is_some());
        let a_second = |count: u64| used.map(|used| count as f64 / used.over.as_secs_f64());
        // Prefer the bytes that the disks wrote: pages still dirty at the end had no bio.
        let written_bytes = outcome.written.map_or(measured.write.bytes, |written| written.bytes);
        let a_gib = |amount: f64| (written_bytes > 0).then(|| amount / (written_bytes as f64 / MIB / 1024.0));
        let percent = |time: Nanos, used: ProcessorUse| 100.0 * time.as_secs_f64() / used.over.as_secs_f64();
        match self {
            Self::Iops => Some(side.iops(measured.runtime)),
            Self::MeanMs => Some(completion.mean_ns / 1e6),
            Self::MaxMs => Some(completion.max_ns as f64 / 1e6),
            Self::DeviationMs => Some(completion.deviation_ns() / 1e6),
            Self::SyncMeanMs => synced.map(|sync| sync.mean_ns / 1e6),
            Self::SyncMaxMs => synced.map(|sync| sync.max_ns as f64 / 1e6),
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
            Self::Seconds => outcome.drained.map(|drained| drained.as_secs_f64()),
            Self::SystemSeconds => used.map(|used| used.system.as_secs_f64()),
            Self::GroupsPerSearch => {
                let searched = counted.filter(|counted| counted.search.1 > 0);
                searched.map(|counted| counted.search.0.searched as f64 / counted.search.1 as f64)
            }
            Self::SearchUsPerGroup => {
                let searched = counted.filter(|counted| counted.search.1 > 0);
                searched.map(|counted| {
                    let linux = |spent: &&Spent| spent.layer == extant_history::alloc::Cost::table().layer;
                    let ns: u64 = outcome.spent.iter().filter(linux).map(|spent| spent.time.0).sum();
                    ns as f64 / 1e3 / counted.search.1 as f64 / counted.groups as f64
                })
            }
            Self::ExtentsPerFile => layout.map(|layout| layout.extents as f64 / layout.files as f64),
            Self::ExtentKib => layout.map(|layout| layout.bytes as f64 / 1024.0 / layout.extents as f64),
            Self::RereadMibS => layout.map(|layout| layout.bytes as f64 / MIB / layout.reread.as_secs_f64()),
            Self::BiosGib => counted.and_then(|counted| a_gib(counted.pieces as f64)),
            Self::CpuGib => {
                used.and_then(|used| a_gib(used.system.as_secs_f64() + used.interrupts.as_secs_f64()))
            }
            Self::LatencyMinUs => latency.map(|latency| latency.min_ns as f64 / 1e3),
            Self::LatencyMeanUs => latency.map(|latency| latency.mean_ns / 1e3),
            Self::LatencyMaxUs => latency.map(|latency| latency.max_ns as f64 / 1e3),
            _ => None,
        }
    }

    /// The mean over some runs; `None` unless every run has the figure.
    pub(super) fn mean(self, cells: &[&Cell], report: usize) -> Option<f64> {
        let each: Option<Vec<f64>> = cells.iter().map(|cell| self.of(cell, report)).collect();
        each.filter(|each| !each.is_empty()).map(|each| each.iter().sum::<f64>() / each.len() as f64)
    }
}
