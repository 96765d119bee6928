//! The limits of the disks' request queues.

use super::{Policy, RunError};
use extant_sim::Machine;
use extant_sim::disk::DiskModel;

/// The limits of the queue of a kind of disk, for the report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueBounds {
    /// The disk's name; for several alike, the common part of their names.
    pub disk: String,
    /// The elevator.
    pub elevator: String,
    /// Requests of the queue: per kind, unless they are tags.
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
        elevator: &str,
        policy: Option<usize>,
        machine: Option<u32>,
        model: &DiskModel,
    ) -> Result<Self, RunError> {
        let tags = model.queue_depth();
        let (requests, chosen) = match (machine, policy) {
            (Some(requests), _) => (requests as usize, Chosen::Machine),
            (None, Some(requests)) => (requests, Chosen::Policy),
            (None, None) => (extant_history::default_requests(elevator, tags), Chosen::Default),
        };
        let disk = model.name.clone();
        let is_too_many = extant_history::uses_tags(elevator) && requests > tags;
        // The machine's number applies to all elevators.
        let (requests, chosen) = match (is_too_many, chosen) {
            (true, Chosen::Machine) => (tags, Chosen::Tags),
            (true, _) => return Err(RunError::BeyondTags { disk, requests, tags }),
            (false, _) => (requests, chosen),
        };
        Ok(Self { disk, elevator: elevator.to_owned(), requests, chosen, tags })
    }

    /// The limits of every kind of disk of a machine.
    pub(super) fn of(machine: &Machine, policy: &Policy) -> Result<Vec<Self>, RunError> {
        let set = machine.kernel.nr_requests;
        let each = |model| Self::new(&policy.elevator, policy.requests, set, model);
        machine.disks.iter().map(each).collect()
    }
}
