//! The tables of an experiment's file, as TOML has them.

use crate::figure::Figure;
use crate::run::{Cyclictest, VolumeSpec};
use crate::workload::{PhasedWorkload, phased_program};
use extant_sim::Preemption;
use serde::de::Error;
use serde::{Deserialize, Deserializer};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

/// An experiment's file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ExperimentForm {
    pub(super) name: String,
    pub(super) source: String,
    #[serde(default)]
    pub(super) leaves_out: Vec<String>,
    pub(super) machine: PathBuf,
    /// Values that override keys of the machine's file, as `--set` takes them.
    #[serde(default)]
    pub(super) set: Vec<String>,
    pub(super) seeds: Vec<u64>,
    #[serde(default)]
    pub(super) workload: Vec<WorkloadForm>,
    /// A program that runs instead of jobs; its phases are the workloads.
    #[serde(default, rename = "tiobench", deserialize_with = "phased_program")]
    pub(super) program: Option<Arc<dyn PhasedWorkload>>,
    pub(super) row: Vec<RowForm>,
    #[serde(default)]
    pub(super) check: CheckedForm,
    pub(super) band: Option<BandForm>,
    #[serde(default)]
    pub(super) constant: Vec<Constant>,
    #[serde(default)]
    pub(super) headline: Vec<Figure>,
    #[serde(default)]
    pub(super) all_rows: BTreeMap<String, Vec<Figure>>,
    #[serde(default)]
    pub(super) carried: BTreeMap<Figure, f64>,
    pub(super) repeats: Option<String>,
    #[serde(default)]
    pub(super) ranges: RangesForm,
}

/// The part of an experiment whose table is in `expected.txt`: all of it, unless that takes too
/// long.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct CheckedForm {
    pub(super) workloads: Vec<String>,
    pub(super) rows: Vec<String>,
    /// How long each workload runs, without warm-up.
    pub(super) seconds: Option<u64>,
    /// Options of the program that replace the experiment's.
    #[serde(rename = "tiobench", deserialize_with = "phased_program")]
    pub(super) program: Option<Arc<dyn PhasedWorkload>>,
}

/// The table `[[workload]]`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WorkloadForm {
    pub(super) name: String,
    pub(super) jobs: PathBuf,
    /// Page cache settings that override the machine's file.
    pub(super) cache_bytes: Option<u64>,
    pub(super) dirty_limit_bytes: Option<u64>,
    pub(super) dirty_background_bytes: Option<u64>,
    /// Contiguous pages leave write-back together in runs of this many bytes; if not given, those
    /// of one bio do.
    pub(super) run_bytes: Option<u64>,
    /// Measures scheduling latency while the jobs run.
    pub(super) cyclictest: Option<Cyclictest>,
    /// The volume, or volumes, that hold the jobs' files; without one, each file is a single extent
    /// of its disk.
    pub(super) volume: Option<VolumeSpec>,
    /// The run ends when everything written is durable.
    #[serde(default)]
    pub(super) drains: bool,
    /// After the run, the jobs' files on the volume are read again.
    #[serde(default)]
    pub(super) rereads: bool,
}

/// The table `[[row]]`: policies under a name, and the figures published for them.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RowForm {
    pub(super) name: String,
    pub(super) elevator: String,
    pub(super) requests: usize,
    /// Controller of dirty memory; ours if not given.
    pub(super) dirty_control: Option<String>,
    /// Write-back pass; ours if not given.
    pub(super) write_back_pass: Option<String>,
    /// Overrides the workload's setting: contiguous pages leave write-back together in runs of this
    /// many bytes.
    pub(super) run_bytes: Option<u64>,
    /// Policy of direct I/O on a volume; ours if not given.
    pub(super) direct_io: Option<String>,
    /// Allocator of a volume's blocks; ours if not given.
    pub(super) allocator: Option<String>,
    /// The workloads to run it on; all if empty.
    #[serde(default)]
    pub(super) workloads: Vec<String>,
    /// How a program's waiters for pages are woken; ours if not given.
    pub(super) page_waits: Option<String>,
    /// How a program's waiters for buffers are woken; ours if not given.
    pub(super) buffer_waits: Option<String>,
    /// Whether this is what Linux does today.
    #[serde(default)]
    pub(super) today: bool,
    /// When tasks are preempted; overrides the machine's file.
    #[serde(default, deserialize_with = "preemption")]
    pub(super) preemption: Option<Preemption>,
    /// Published measurements, by workload.
    #[serde(default)]
    pub(super) published: BTreeMap<String, BTreeMap<Figure, f64>>,
    /// Errors that the source states for the published figures, in their units, by workload.
    #[serde(default)]
    pub(super) margin: BTreeMap<String, BTreeMap<Figure, f64>>,
    /// Whether constants may be fitted to this row although it dates from after a change. If so,
    /// none of its figures counts as a prediction.
    #[serde(default)]
    pub(super) visible: bool,
    /// The published figures that the machine's constants were fitted to, by workload.
    #[serde(default)]
    pub(super) calibrated: BTreeMap<String, Vec<Figure>>,
    /// The published figures declared in advance as not derivable from the model, by workload.
    #[serde(default)]
    pub(super) not_derivable: BTreeMap<String, Vec<Figure>>,
}

fn preemption<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Preemption>, D::Error> {
    String::deserialize(from)?.parse().map(Some).map_err(D::Error::custom)
}

/// The table `[band]` of an experiment's file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct BandForm {
    /// Workloads to run; all if empty.
    #[serde(default)]
    pub(super) workloads: Vec<String>,
    #[serde(default)]
    pub(super) rows: Vec<String>,
    /// Machines in addition to the experiment's own.
    #[serde(default)]
    pub(super) machines: Vec<PathBuf>,
    /// Values for each key of the machine's file.
    #[serde(default)]
    pub(super) set: BTreeMap<String, Vec<toml::Value>>,
}

/// The table `[ranges]` of an experiment's file.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RangesForm {
    /// Workloads to run over the ranges; all if empty.
    pub(super) workloads: Vec<String>,
    /// Seeds in addition to the experiment's first.
    pub(super) seeds: Vec<u64>,
    /// Values for each key of the machine's file.
    pub(super) set: BTreeMap<String, Vec<toml::Value>>,
    /// Elevators for all rows except ours.
    pub(super) elevators: Vec<String>,
    /// Machines in addition to the experiment's own.
    pub(super) machines: Vec<PathBuf>,
}

/// The table `[[constant]]` of an experiment's file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Constant {
    /// Keys of the machine's file; those after the first keep their ratio to it.
    pub(crate) keys: Vec<String>,
    /// The range of the first key, from what was known in advance.
    #[serde(default)]
    pub(crate) least: f64,
    #[serde(default)]
    pub(crate) most: f64,
    /// Alternatively, the values to choose from.
    #[serde(default)]
    pub(crate) values: Vec<f64>,
    /// Seeds over which each figure is averaged (geometric mean) before it is compared; the
    /// experiment's first seed if empty. Use several if the figures vary between seeds by more than
    /// the fit has to resolve.
    #[serde(default)]
    pub(crate) seeds: Vec<u64>,
    /// The row to fit to, from before the change.
    pub(crate) row: String,
    /// The figures of that row that the constant may be fitted to, by workload.
    pub(crate) sees: BTreeMap<String, Vec<Figure>>,
}
