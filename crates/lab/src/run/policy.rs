//! The policies under which jobs run.

use super::cyclictest::Cyclictest;
use super::memory::Memory;
use super::run_error::RunError;
use super::volume::VolumeSpec;
use crate::defaults;
use extant_history::{Choice, MakeAllocator, MakeDirect, MakeElevator};
use extant_sim::Machine;
use extant_sim::disk::DiskModel;
use std::path::PathBuf;

/// Policies of a modelled machine: I/O scheduling, page cache, volumes, and the task that samples
/// latency.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// The I/O scheduler.
    pub elevator: Choice<MakeElevator>,
    /// Requests of the queue (`nr_requests`); if not given, Linux's default for this kind of disk
    /// ([`extant_history::default_requests`]).
    pub requests: Option<usize>,
    /// The page cache.
    pub memory: Memory,
    /// A task that measures scheduling latency while the jobs run.
    pub cyclictest: Option<Cyclictest>,
    /// The volume, or volumes, that hold the jobs' files; without one, each file is a single extent
    /// of its disk.
    pub volume: Option<VolumeSpec>,
    /// Direct I/O on a volume; ours if not given.
    pub direct_io: Option<Choice<MakeDirect>>,
    /// The allocator of an ext4 volume; ours if not given.
    pub allocator: Option<Choice<MakeAllocator>>,
    /// The run ends when everything written through the cache of a volume is durable.
    pub drains: bool,
    /// After the run, the jobs' files on a volume are read again, and their layout is measured.
    pub rereads: bool,
    /// Base name of a blktrace of each disk's request queue, `BASE.DISK.blktrace.0`, for blkparse
    /// and btt.
    pub blktrace: Option<PathBuf>,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            elevator: defaults::elevator(),
            requests: None,
            memory: Memory::default(),
            cyclictest: None,
            volume: None,
            direct_io: None,
            allocator: None,
            drains: false,
            rereads: false,
            blktrace: None,
        }
    }
}

/// The limits of the queue of a kind of disk, for the report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueBounds {
    /// The disk's name; for several alike, the common part of their names.
    pub disk: String,
    /// The elevator.
    pub elevator: Choice<MakeElevator>,
    /// Requests of the queue: this many reads and this many writes, or in total if the elevator
    /// uses the disk's tags.
    pub requests: usize,
    /// Where that number comes from.
    pub chosen: Chosen,
    /// Commands that the disk accepts at once.
    pub tags: usize,
}

/// Where a queue's number of requests comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Chosen {
    /// Linux's default for the elevator and the disk.
    Default,
    /// The machine's file, or an override of it.
    Machine,
    /// The disk, which has fewer tags than the machine's file asks for.
    Tags,
    /// The policy.
    Policy,
}

impl QueueBounds {
    pub(super) fn new(
        elevator: Choice<MakeElevator>,
        policy: Option<usize>,
        machine: Option<u32>,
        model: &DiskModel,
    ) -> Result<Self, RunError> {
        let tags = model.queue_depth();
        let (requests, chosen) = match (machine, policy) {
            (Some(requests), _) => (requests as usize, Chosen::Machine),
            (None, Some(requests)) => (requests, Chosen::Policy),
            (None, None) => (extant_history::default_requests(elevator.name(), tags), Chosen::Default),
        };
        let disk = model.name.clone();
        let is_too_many = extant_history::uses_tags(elevator.name()) && requests > tags;
        // The machine's number is meant for all elevators, so it is lowered to the tags instead of
        // refused.
        let (requests, chosen) = match (is_too_many, chosen) {
            (true, Chosen::Machine) => (tags, Chosen::Tags),
            (true, _) => return Err(RunError::BeyondTags { disk, requests, tags }),
            (false, _) => (requests, chosen),
        };
        Ok(Self { disk, elevator, requests, chosen, tags })
    }

    /// The limits of every kind of disk of a machine.
    pub(super) fn of(machine: &Machine, policy: &Policy) -> Result<Vec<Self>, RunError> {
        let set = machine.kernel.nr_requests;
        let each = |model| Self::new(policy.elevator, policy.requests, set, model);
        machine.disks.iter().map(each).collect()
    }
}
