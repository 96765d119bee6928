//! tiobench's options, and the policies that it runs under.

use crate::disks::capacity;
use extant_history::waits::MakeWaits;
use extant_history::{Choice, MakeElevator};
use extant_rt::RtError;
use extant_sim::Machine;
use serde::Deserialize;

/// tiobench's options (`tiotest -t … -f … -r …`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tiobench {
    /// Number of threads; each has its own file.
    pub threads: u32,
    /// Size of a file, in MiB.
    pub mib_per_thread: u32,
    /// Random operations per thread, of 4 KiB each.
    pub random_ops: u32,
    /// Waiters in the separate crowd test; 0 to skip it.
    #[serde(default)]
    pub waiters: u32,
}

/// Why tiobench failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TiobenchError {
    /// Options that are invalid on this machine.
    #[error("{0}")]
    Options(String),
    /// The world stopped early.
    #[error("{0}")]
    World(String),
}

impl From<RtError> for TiobenchError {
    fn from(error: RtError) -> Self {
        Self::World(error.to_string())
    }
}

impl Tiobench {
    /// Describes the first option that is invalid on a machine, if any.
    pub fn fault(&self, machine: &Machine) -> Option<String> {
        if !(1..=65_536).contains(&self.threads) {
            return Some(format!("threads: {} is not between 1 and 65536", self.threads));
        }
        if !(1..=1024).contains(&self.mib_per_thread) {
            return Some(format!("mib_per_thread: {} is not between 1 and 1024", self.mib_per_thread));
        }
        if self.random_ops > 1_000_000 {
            return Some(format!("random_ops: {} is more than a million", self.random_ops));
        }
        if self.waiters > 1_000_000 {
            return Some(format!("waiters: {} is more than a million", self.waiters));
        }
        if machine.memory.is_none() {
            return Some(format!("machine \"{}\": tiobench needs its table [memory]", machine.name));
        }
        if machine.disks.is_empty() {
            return Some(format!("machine \"{}\" has no disks; add a [[disk]] to its file", machine.name));
        }
        // Pointer blocks need a thousandth of the data, plus a few blocks for short files.
        let file = u64::from(self.mib_per_thread) << 20;
        let wanted = u64::from(self.threads) * (file + file / 1000 + (64 << 10));
        let room = capacity(machine);
        // The volume's own metadata need a little less than this reserve.
        (wanted > room - room / 32).then(|| {
            format!(
                "{} files of {} MiB do not fit the volume of {room} bytes",
                self.threads, self.mib_per_thread
            )
        })
    }
}

/// The policies of a run.
#[derive(Clone, Copy, Debug)]
pub struct Policies {
    /// How waiters for pages are woken.
    pub page_waits: Choice<MakeWaits>,
    /// How waiters for buffers are woken.
    pub buffer_waits: Choice<MakeWaits>,
    /// The I/O scheduler.
    pub elevator: Choice<MakeElevator>,
    /// Requests of each kind in a disk's queue.
    pub requests: usize,
}
