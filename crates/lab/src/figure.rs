//! The figures of a run that sources publish.

use serde::Deserialize;

/// Declares the figures: name in an experiment's file, title in a table, and decimals there.
macro_rules! figures {
    ($($(#[$doc:meta])* $figure:ident = $key:literal, $title:literal, $digits:literal;)*) => {
        /// A figure of a run's first report.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
        pub enum Figure {
            $($(#[$doc])* #[serde(rename = $key)] $figure,)*
        }

        impl Figure {
            /// All figures.
            pub const ALL: &'static [Self] = &[$(Self::$figure),*];

            /// Its key in an experiment's file.
            pub fn key(self) -> &'static str {
                match self { $(Self::$figure => $key),* }
            }

            /// The name and unit for a table.
            pub fn title(self) -> &'static str {
                match self { $(Self::$figure => $title),* }
            }

            /// Decimals in a table.
            pub fn digits(self) -> usize {
                match self { $(Self::$figure => $digits),* }
            }
        }
    };
}

figures! {
    /// I/Os per second.
    Iops = "iops", "iops", 0;
    /// Mean completion latency.
    MeanMs = "mean_ms", "mean ms", 1;
    /// Longest completion latency.
    MaxMs = "max_ms", "max ms", 0;
    /// Standard deviation of completion latency.
    DeviationMs = "deviation_ms", "stdev ms", 0;
    /// Mean sync latency.
    SyncMeanMs = "sync_mean_ms", "sync ms", 1;
    /// Longest sync latency.
    SyncMaxMs = "sync_max_ms", "sync max ms", 0;
    /// MiB per second as the processes saw them.
    MibS = "mib_s", "MiB/s", 1;
    /// MiB per second written by the disks.
    WrittenMibS = "written_mib_s", "disks MiB/s", 1;
    /// Pages of 4 KiB written by the disks in a run of 300 s, in millions.
    WrittenMpages = "written_mpages", "Mpages/300s", 2;
    /// Bios per second that reach the queues of a volume's disks; for a striped device, pieces of
    /// the bios above it.
    PiecesS = "pieces_s", "I/O/s", 0;
    /// Commands per second that the queues made of these bios.
    CommandsS = "commands_s", "commands/s", 0;
    /// Bios that Linux's direct I/O sent because it met a boundary, per GiB written.
    FlushesGib = "flushes_gib", "flushes/GiB", 0;
    /// Processor time of tasks, in per cent of one processor.
    SystemPercent = "system_percent", "sys %", 0;
    /// Processor time of interrupts, in per cent of one processor.
    InterruptPercent = "interrupt_percent", "intr %", 0;
    /// Shortest scheduling latency while the jobs run.
    LatencyMinUs = "latency_min_us", "min us", 0;
    /// Mean scheduling latency.
    LatencyMeanUs = "latency_mean_us", "mean us", 0;
    /// Longest scheduling latency.
    LatencyMaxUs = "latency_max_us", "max us", 0;
    /// Duration of a phase, or of a run until everything is durable.
    Seconds = "seconds", "seconds", 1;
    /// MiB moved per second of processor time, program and kernel together.
    CpuMibS = "cpu_mib_s", "MiB/cpu-s", 2;
    /// The kernel's processor time in the phase, in per cent of one processor.
    KernelPercent = "kernel_percent", "system %", 1;
    /// Sleeps for pages' bits, in thousands (kernel: `wait_on_page_bit`).
    PageSleepsK = "page_sleeps_k", "page bits", 1;
    /// Sleeps for pages' locks, in thousands (kernel: `__lock_page`).
    LockSleepsK = "lock_sleeps_k", "page locks", 1;
    /// Sleeps for buffers, in thousands (kernel: `__wait_on_buffer`).
    BufferSleepsK = "buffer_sleeps_k", "buffers", 1;
    /// Times that an idle processor received a task, in thousands (kernel: calls of `schedule()` by
    /// `cpu_idle`).
    IdleK = "idle_k", "idle", 1;
    /// Context switches' share of the processor time of switches, wake-ups and copies.
    SwitchPercent = "switch_percent", "switches %", 1;
    /// Wake-ups' share of the processor time of switches, wake-ups and copies.
    WakePercent = "wake_percent", "wake-ups %", 1;
    /// Waiters for pages and buffers woken spuriously, in thousands.
    SpuriousK = "spurious_k", "spurious k", 1;
    /// All waiters for pages and buffers that were woken, in thousands.
    WokenK = "woken_k", "woken, k", 1;
    /// Waiters examined per waiter that had to be woken.
    ExaminedPerWake = "examined_per_wake", "seen/woken", 2;
    /// Processor time of tasks, in seconds.
    SystemSeconds = "system_seconds", "system s", 2;
    /// Groups searched per search by a Linux allocator.
    GroupsPerSearch = "groups_per_search", "groups each", 0;
    /// Processor time of such a search, in microseconds per group of the volume.
    SearchUsPerGroup = "search_us_per_group", "us/group", 2;
    /// Extents of a file on its volume, averaged over all files.
    ExtentsPerFile = "extents_per_file", "extents", 1;
    /// Average length of such an extent in KiB.
    ExtentKib = "extent_kib", "extent KiB", 0;
    /// MiB per second when all files are reread from beginning to end.
    RereadMibS = "reread_mib_s", "read MiB/s", 1;
    /// Bios that reach the queues of a volume's disks, per GiB written.
    BiosGib = "bios_gib", "bios/GiB", 0;
    /// Processor time of tasks and interrupts, in seconds per GiB written.
    CpuGib = "cpu_gib", "cpu s/GiB", 2;
}

/// Duration of the write-back thread's nominal run in seconds; its figures count pages written per
/// run.
pub(crate) const RUN_S: f64 = 300.0;

impl Figure {
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

    /// Another figure that measures the same thing, and the factor that converts it to this
    /// figure's unit.
    pub(crate) fn twin(self) -> Option<(Self, f64)> {
        const MPAGES: f64 = 256.0 * RUN_S / 1e6;
        match self {
            Self::WrittenMibS => Some((Self::WrittenMpages, 1.0 / MPAGES)),
            Self::WrittenMpages => Some((Self::WrittenMibS, MPAGES)),
            _ => None,
        }
    }

    /// The figure with this key.
    pub(crate) fn of_key(key: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|figure| figure.key() == key)
    }

    /// Formats a value of this figure for a table.
    pub(crate) fn shown(self, value: f64) -> String {
        format!("{value:.*}", self.digits())
    }
}
