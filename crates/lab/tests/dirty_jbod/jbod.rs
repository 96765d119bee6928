//! The ten disks of the thread "writeback: dirty position control - bdi reserve area" (2011), and its rates.

use crate::disks::{MS, Machine};
use crate::world::Load;
use extant_cache::control::{DirtyControl, DirtyLimits};
use extant_lab::history::{Host, dirty_control};

/// Processors and memory of the machine.
const HOST: Host = Host { cpus: 24, memory_bytes: 16 << 30 };

/// The controllers compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Policy {
    Linux31,
    Ioless,
    IolessBackground,
    Extant,
}

impl Policy {
    pub(crate) fn control(self) -> Box<dyn DirtyControl> {
        let name = match self {
            Self::Linux31 => "linux-3.1",
            Self::Ioless => "ioless",
            Self::IolessBackground => "ioless+background",
            Self::Extant => "extant",
        };
        dirty_control(name, &HOST).expect("the name is known")
    }
}

/// A row of the table: the limit, and the writers of each disk.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row {
    pub(crate) name: &'static str,
    pub(crate) limit_mib: u64,
    pub(crate) writers: usize,
    /// MiB/s on Linux 3.1, and with the IO-less patches and the background threshold of each device (xfs).
    pub(crate) measured: (f64, f64),
}

const fn row(name: &'static str, limit_mib: u64, writers: usize, before: f64, after: f64) -> Row {
    Row { name, limit_mib, writers, measured: (before, after) }
}

/// 16G is 20 % of 16 GiB, which stands for a machine where memory is no concern.
pub(crate) const ROWS: [Row; 9] = [
    row("100M", 100, 1, 503.0, 567.0),
    row("100M", 100, 10, 412.0, 491.0),
    row("100M", 100, 100, 351.0, 269.0),
    row("800M", 800, 1, 620.0, 701.0),
    row("800M", 800, 10, 647.0, 665.0),
    row("800M", 800, 100, 557.0, 550.0),
    row("16G", 3277, 1, 652.0, 677.0),
    row("16G", 3277, 10, 660.0, 657.0),
    row("16G", 3277, 100, 654.0, 643.0),
];

/// What is calibrated: the link, as the mean of the three rows of 16G under Linux 3.1 (655 MiB/s); a disk, as the thread
/// has it for two disks with large memory (105 to 117 MiB/s). What is known: a disk of 7200 rpm with 1 ms from track to
/// track, and 8 ms to another file where it is the only one queued. The rows of 16G do not show what a change of file costs;
/// they allow anything up to 24 ms for a run of 4 MiB.
pub(crate) const MACHINE: Machine = Machine {
    disks: 10,
    link_rate: 655 * 256,
    disk_rate: 110 * 256,
    settle: MS,
    stroke: 3 * MS,
    revolution: 8_333_333,
};

/// The thread's test: as many `dd` per disk, for `seconds` after a warm-up.
pub(crate) fn load(row: Row, policy: Policy, warm_up_s: u64, seconds: u64, seed: u64) -> Load {
    let limit_pages = row.limit_mib * 256;
    Load {
        machine: MACHINE,
        // 10 % of the machine's memory is more than the limit: half of that, then.
        limits: DirtyLimits { background_pages: limit_pages / 2, limit_pages },
        writers_per_disk: row.writers,
        think: 0,
        warm_up: warm_up_s * 1000 * MS,
        measure: seconds * 1000 * MS,
        dies: None,
        whole_runs: true,
        // Linux 3.1 lets a writer go past the limit rather than hold it longer than 200 ms.
        wall: policy != Policy::Linux31,
        seed,
    }
}
