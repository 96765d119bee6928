//! A modelled machine: its processors, and what work costs on them.

use crate::disk::{BusSpec, DiskModel};
use crate::prices::{PriceList, Prices};
use crate::settings::Setting;
use crate::table::{self, ModelError, Table};
use extant_rt::{CostTable, Nanos, Work};
use std::fmt;
use std::io::Read;
use std::path::Path;
use std::str::FromStr;

/// When a runnable task loses its processor to a more urgent one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Preemption {
    /// Only where it waits or yields explicitly (Linux's `PREEMPT_NONE`).
    None,
    /// Also at points where it might have had to wait (`PREEMPT_VOLUNTARY`).
    Voluntary,
    /// Anywhere (`PREEMPT`).
    Full,
}

impl Preemption {
    /// All modes, least eager first.
    pub const ALL: [Self; 3] = [Self::None, Self::Voluntary, Self::Full];
}

impl FromStr for Preemption {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        Self::ALL
            .into_iter()
            .find(|mode| mode.to_string() == name)
            .ok_or_else(|| format!("\"{name}\" is not one of \"none\", \"voluntary\", \"full\""))
    }
}

impl fmt::Display for Preemption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "none",
            Self::Voluntary => "voluntary",
            Self::Full => "full",
        })
    }
}

/// Where runnable tasks wait for a processor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RunQueues {
    /// In one queue, from which any processor takes the next task.
    #[default]
    Shared,
    /// Each processor has its own, as in Linux since 2.6. A woken task goes to the processor it
    /// last ran on, or to its waker's; an idle processor pulls from the busiest.
    PerProcessor,
}

/// Priorities among normal tasks, which decide whether a woken task preempts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wakeup {
    /// None: normal tasks are equals and run in turn.
    #[default]
    None,
    /// The dynamic priorities of Linux 2.6 to 2.6.22 (the O(1) scheduler): a task that has slept
    /// more goes first, and preempts if the preemption mode allows it.
    O1,
}

/// Values of `run_queues` in a machine file, by name; the values of `wakeup` follow below.
const RUN_QUEUES: [(&str, RunQueues); 2] =
    [("shared", RunQueues::Shared), ("per processor", RunQueues::PerProcessor)];
const WAKEUPS: [(&str, Wakeup); 2] = [("none", Wakeup::None), ("o1", Wakeup::O1)];

/// A longer file is not a machine file, or is endless.
const MOST_FILE_BYTES: u64 = 1 << 20;

/// A machine model, read from a file in `machines/`. Required keys have no default, and all charged
/// work needs a price ([`Machine::check_costs`]), so nothing is free by accident.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    /// A description of the modelled machine.
    pub name: String,
    /// Where its numbers come from.
    pub source: String,
    /// Its processors.
    pub processors: Processors,
    /// Its disks, in file order; may be empty.
    pub disks: Vec<DiskModel>,
    /// The memory of its page cache, if the file gives it.
    pub memory: Option<MemorySpec>,
    /// Its kernel, as far as the file describes it.
    pub kernel: KernelSpec,
    /// The link shared by disks with [`DiskModel::on_bus`].
    pub bus: Option<BusSpec>,
    /// The prices of work.
    pub(crate) prices: Prices,
}

/// The processors of a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Processors {
    /// Number of processors, 1 to 1,024.
    pub count: usize,
    /// When tasks are preempted.
    pub preemption: Preemption,
    /// How long a normal task runs before others of its class may take over; more than 0.
    pub timeslice: Nanos,
    /// Paid when a processor runs a task other than the one it ran last.
    pub context_switch: Nanos,
    /// Paid by the task that wakes another.
    pub wake: Nanos,
    /// From a wake-up until an idle processor starts the task.
    pub idle_exit: Nanos,
    /// Taken by a timer interrupt from the processor on which the timer's task last ran.
    pub timer_interrupt: Nanos,
    /// The processor that handles device interrupts (`interrupt_processor`; kernel:
    /// `/proc/irq/*/smp_affinity`). Default: 0, the first.
    pub interrupt_processor: u32,
    /// Where tasks wait for a processor (`run_queues`: "shared", the default, or "per processor").
    pub run_queues: RunQueues,
    /// Whether normal tasks have priorities (`wakeup`: "none", the default, or "o1", which requires
    /// per-processor queues).
    pub wakeup: Wakeup,
    /// With per-processor queues: whether a woken task may move to its waker's processor
    /// (`wake_affine`, optional, default true; kernel: `SD_WAKE_AFFINE` and `SD_WAKE_BALANCE`,
    /// since 2.6.7). Otherwise it goes where it last ran, as before 2.6.7.
    pub wake_affine: bool,
    /// Paid when a task last ran on another processor, whose caches hold its data (`migration_ns`).
    /// Default: 0.
    pub migration: Nanos,
}

/// A machine's page cache: the table `[memory]` of its file, all in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemorySpec {
    /// Memory for cached pages (`cache_bytes`).
    pub cache_bytes: u64,
    /// Upper limit of dirty and write-back pages together (`dirty_limit_bytes`; kernel:
    /// `vm.dirty_bytes`).
    pub dirty_limit_bytes: u64,
    /// Flushers work while more than this is dirty (`dirty_background_bytes`; kernel:
    /// `vm.dirty_background_bytes`).
    pub dirty_background_bytes: u64,
}

/// Kernel settings that behaviour depends on: the table `[kernel]` of the machine file. The table
/// and all its keys are optional.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelSpec {
    /// Ticks per second (`hz`, 10 to 10,000; kernel: `CONFIG_HZ`). Default: 1000.
    pub hz: u32,
    /// How long CFQ waits for the next request of a queue, as set by an administrator
    /// (`slice_idle_ms`, at most 1000; kernel: `slice_idle`); `None` is the kernel's default.
    pub slice_idle_ms: Option<u32>,
    /// Maximum requests of each kind that an elevator sees (`nr_requests`, 4 to 1,000,000; kernel:
    /// `queue/nr_requests`); `None` leaves it to the run.
    pub nr_requests: Option<u32>,
    /// Whether request queues before blk-mq give a stream that waited for a request a batch of them
    /// (`request_batching`). Default: true.
    pub request_batching: bool,
    /// Page size in bytes, as direct I/O sees it (`page_bytes`, a power of two from 4 KiB to 64
    /// KiB). Default: 4 KiB. Page cache pages are always 4 KiB.
    pub page_bytes: u32,
    /// Settings changed by an administrator.
    pub knobs: Knobs,
}

/// Kernel knobs under `/proc/sys/vm` and `/sys/block/*/queue`. Each is a key of the table
/// `[kernel]`, with its own name and unit; `None` is the default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Knobs {
    /// `vm.dirty_expire_centisecs`.
    pub dirty_expire_centisecs: Option<u32>,
    /// `vm.dirty_writeback_centisecs`.
    pub dirty_writeback_centisecs: Option<u32>,
    /// `vm.dirty_ratio`, in percent of the cache.
    pub dirty_ratio: Option<u32>,
    /// `vm.dirty_background_ratio`, in percent of the cache.
    pub dirty_background_ratio: Option<u32>,
    /// `vm.dirty_bytes`.
    pub dirty_bytes: Option<u64>,
    /// `vm.dirty_background_bytes`, for a machine without a table `[memory]`, which has a key of
    /// this name.
    pub dirty_background_bytes: Option<u64>,
    /// `queue/read_ahead_kb`.
    pub read_ahead_kb: Option<u32>,
    /// mq-deadline's `fifo_batch`.
    pub fifo_batch: Option<u32>,
    /// mq-deadline's `read_expire`, in milliseconds.
    pub read_expire: Option<u32>,
    /// mq-deadline's `write_expire`, in milliseconds.
    pub write_expire: Option<u32>,
    /// mq-deadline's `writes_starved`.
    pub writes_starved: Option<u32>,
}

impl Default for KernelSpec {
    fn default() -> Self {
        Self {
            hz: 1000,
            slice_idle_ms: None,
            nr_requests: None,
            request_batching: true,
            page_bytes: 4096,
            knobs: Knobs::default(),
        }
    }
}

impl MemorySpec {
    /// Minimum cache size.
    pub const MIN_CACHE_BYTES: u64 = 1 << 20;

    /// The key with the first invalid value, and the problem.
    pub fn fault(&self) -> Option<(&'static str, String)> {
        let most_dirty = self.cache_bytes / 4 * 3;
        if self.cache_bytes < Self::MIN_CACHE_BYTES {
            let problem = format!(
                "{} is too small for a cache; give {} or more",
                self.cache_bytes,
                Self::MIN_CACHE_BYTES
            );
            return Some(("cache_bytes", problem));
        }
        if self.cache_bytes > 1 << 40 {
            let problem = format!(
                "{} is more than a machine can have; give {} (1 TiB) or less",
                self.cache_bytes,
                1_u64 << 40
            );
            return Some(("cache_bytes", problem));
        }
        if !(4096..=most_dirty).contains(&self.dirty_limit_bytes) {
            let problem = format!(
                "{} does not fit a cache of {} bytes; give 4096 to {most_dirty}, three quarters of it",
                self.dirty_limit_bytes, self.cache_bytes
            );
            return Some(("dirty_limit_bytes", problem));
        }
        if self.dirty_background_bytes >= self.dirty_limit_bytes {
            let problem = format!(
                "{} is not below the limit of {}; write-back has to begin before writers are stopped",
                self.dirty_background_bytes, self.dirty_limit_bytes
            );
            return Some(("dirty_background_bytes", problem));
        }
        None
    }
}

impl Machine {
    /// Reads a model from a file.
    ///
    /// # Errors
    /// Reports the file, line and key of the first thing that is missing, unknown, negative or of
    /// the wrong kind.
    pub fn load(path: &Path) -> Result<Self, ModelError> {
        Self::load_with(path, &[])
    }

    /// Reads a model from a file, with some of its keys overridden by `settings`.
    ///
    /// # Errors
    /// As [`Machine::load`], and for a setting whose key the machine does not have.
    pub fn load_with(path: &Path, settings: &[Setting]) -> Result<Self, ModelError> {
        let file = path.display().to_string();
        let refused =
            |problem: String| ModelError { file: file.clone(), line: 0, key: String::new(), problem };
        let mut text = String::new();
        let source = std::fs::File::open(path).map_err(|error| refused(error.to_string()))?;
        source
            .take(MOST_FILE_BYTES + 1)
            .read_to_string(&mut text)
            .map_err(|error| refused(error.to_string()))?;
        if text.len() as u64 > MOST_FILE_BYTES {
            return Err(refused(format!("a machine's file has at most {MOST_FILE_BYTES} bytes")));
        }
        Self::parse_with(&file, &text, settings)
    }

    /// Like [`Self::parse`], with some of the keys overridden by `settings`.
    ///
    /// # Errors
    /// As [`Machine::load_with`].
    pub fn parse_with(file: &str, text: &str, settings: &[Setting]) -> Result<Self, ModelError> {
        let mut text = text.to_owned();
        for setting in settings {
            text = setting.apply(file, &text)?;
        }
        Self::parse(file, &text)
    }

    /// Parses a model; `file` is used in error messages.
    ///
    /// # Errors
    /// As [`Machine::load`].
    pub fn parse(file: &str, text: &str) -> Result<Self, ModelError> {
        table::parse(file, text, |mut root| {
            let name = root.string("name")?;
            let source = root.string("source")?;
            let mut t = root.table("processors")?;
            let count = t.whole("count")?;
            let span = |picoseconds: u64| Nanos(picoseconds.div_ceil(1_000));
            let processors = Processors {
                count: match count {
                    1..=1024 => count as usize,
                    _ => return Err(t.error("count", format!("{count} is not between 1 and 1024"))),
                },
                preemption: t
                    .string("preemption")?
                    .parse()
                    .map_err(|problem| t.error("preemption", problem))?,
                timeslice: span(t.picoseconds("timeslice_ns")?),
                context_switch: span(t.picoseconds("context_switch_ns")?),
                wake: span(t.picoseconds("wake_ns")?),
                idle_exit: span(t.picoseconds("idle_exit_ns")?),
                timer_interrupt: span(t.picoseconds("timer_interrupt_ns")?),
                interrupt_processor: match t.maybe_whole("interrupt_processor")?.unwrap_or(0) {
                    number if number < count => number as u32,
                    number => {
                        let problem = format!("there is no processor {number}; the last is {}", count - 1);
                        return Err(t.error("interrupt_processor", problem));
                    }
                },
                run_queues: t.maybe_choice("run_queues", &RUN_QUEUES)?.unwrap_or_default(),
                wakeup: t.maybe_choice("wakeup", &WAKEUPS)?.unwrap_or_default(),
                wake_affine: t.maybe_flag("wake_affine")?.unwrap_or(true),
                migration: span(t.maybe_picoseconds("migration_ns")?.unwrap_or(0)),
            };
            if (processors.run_queues, processors.wakeup) == (RunQueues::Shared, Wakeup::O1) {
                let problem = "\"o1\" needs run_queues = \"per processor\": a shared queue has no current task to preempt";
                return Err(t.error("wakeup", problem));
            }
            if processors.timeslice == Nanos::ZERO {
                return Err(t.error("timeslice_ns", "the time slice must be longer than 0"));
            }
            t.finish()?;
            let prices = Prices::read(root.table("costs")?)?;
            let memory = root.maybe_table("memory")?.map(read_memory).transpose()?;
            let kernel = root.maybe_table("kernel")?.map(read_kernel).transpose()?.unwrap_or_default();
            let (disks, bus) = crate::disk::read_models(&mut root)?;
            root.finish()?;
            Ok(Self { name, source, processors, memory, kernel, disks, bus, prices })
        })
    }

    /// A machine on which only [`extant_rt::Cpu`] costs anything, for tests of logic and
    /// arithmetic.
    pub fn free(count: usize, preemption: Preemption) -> Self {
        assert!((1..=1024).contains(&count), "a machine has 1 to 1024 processors, not {count}");
        Self {
            name: format!("{count} free processors, preemption {preemption}"),
            source: "arithmetic".into(),
            processors: Processors {
                count,
                preemption,
                timeslice: Nanos::from_millis(100),
                context_switch: Nanos::ZERO,
                wake: Nanos::ZERO,
                idle_exit: Nanos::ZERO,
                timer_interrupt: Nanos::ZERO,
                interrupt_processor: 0,
                run_queues: RunQueues::Shared,
                wakeup: Wakeup::None,
                wake_affine: true,
                migration: Nanos::ZERO,
            },
            memory: None,
            kernel: KernelSpec::default(),
            disks: Vec::new(),
            bus: None,
            prices: Prices::Free,
        }
    }

    /// The same machine with other disks, each with its own link.
    pub fn with_disks(mut self, disks: Vec<DiskModel>) -> Self {
        (self.disks, self.bus) = (disks, None);
        self
    }

    /// The same machine with another preemption mode.
    pub fn with_preemption(mut self, preemption: Preemption) -> Self {
        self.processors.preemption = preemption;
        self
    }

    /// Checks that all work charged by these layers has a price. A model may have more prices than
    /// that.
    ///
    /// # Errors
    /// Reports the file and the first missing key.
    pub fn check_costs(&self, tables: &[&CostTable]) -> Result<(), ModelError> {
        self.prices.missing(tables).map_or(Ok(()), Err)
    }

    /// Time that this work takes, rounded to the nearest nanosecond; `None` if the model has no
    /// price for it, or on overflow.
    pub fn price(&self, work: impl Work) -> Option<Nanos> {
        PriceList::new(self.prices.clone()).price(work.charge(), false).ok()
    }
}

fn read_kernel(mut t: Table<'_>) -> Result<KernelSpec, ModelError> {
    let default = KernelSpec::default();
    let mut wide = |key: &'static str| {
        let (least, most) =
            crate::keys::bounds("kernel", key).expect("each such key is listed with its bounds");
        match t.maybe_whole(key)? {
            Some(value) if !(least..=most).contains(&value) => {
                Err(t.error(key, format!("{value} is not between {least} and {most}")))
            }
            value => Ok(value),
        }
    };
    let dirty_bytes = wide("dirty_bytes")?;
    let dirty_background_bytes = wide("dirty_background_bytes")?;
    let mut bounded = |key| wide(key).map(|value| value.map(|value| value as u32));
    let hz = bounded("hz")?.unwrap_or(default.hz);
    let slice_idle_ms = bounded("slice_idle_ms")?;
    let nr_requests = bounded("nr_requests")?;
    let page_bytes = bounded("page_bytes")?.unwrap_or(default.page_bytes);
    let knobs = Knobs {
        dirty_expire_centisecs: bounded("dirty_expire_centisecs")?,
        dirty_writeback_centisecs: bounded("dirty_writeback_centisecs")?,
        dirty_ratio: bounded("dirty_ratio")?,
        dirty_background_ratio: bounded("dirty_background_ratio")?,
        dirty_bytes,
        dirty_background_bytes,
        read_ahead_kb: bounded("read_ahead_kb")?,
        fifo_batch: bounded("fifo_batch")?,
        read_expire: bounded("read_expire")?,
        write_expire: bounded("write_expire")?,
        writes_starved: bounded("writes_starved")?,
    };
    for (ratio, bytes) in [
        (("dirty_ratio", knobs.dirty_ratio.is_some()), ("dirty_bytes", dirty_bytes.is_some())),
        (
            ("dirty_background_ratio", knobs.dirty_background_ratio.is_some()),
            ("dirty_background_bytes", dirty_background_bytes.is_some()),
        ),
    ] {
        if ratio.1 && bytes.1 {
            return Err(
                t.error(ratio.0, format!("{} is set too; the kernel uses only one of the two", bytes.0))
            );
        }
    }
    if !page_bytes.is_power_of_two() {
        return Err(t.error("page_bytes", format!("{page_bytes} is not a power of two")));
    }
    let request_batching = t.maybe_flag("request_batching")?.unwrap_or(default.request_batching);
    t.finish()?;
    Ok(KernelSpec { hz, slice_idle_ms, nr_requests, request_batching, page_bytes, knobs })
}

fn read_memory(mut t: Table<'_>) -> Result<MemorySpec, ModelError> {
    let spec = MemorySpec {
        cache_bytes: t.whole("cache_bytes")?,
        dirty_limit_bytes: t.whole("dirty_limit_bytes")?,
        dirty_background_bytes: t.whole("dirty_background_bytes")?,
    };
    if let Some((key, problem)) = spec.fault() {
        return Err(t.error(key, problem));
    }
    t.finish()?;
    Ok(spec)
}
