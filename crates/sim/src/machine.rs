//! A modelled machine: its processors and what work costs on them.

use crate::disk::{BusSpec, DiskModel};
use crate::prices::{PriceList, Prices};
use crate::settings::Setting;
use crate::table::{self, ModelError, Table};
use extant_rt::{CostTable, Nanos, Work};
use std::fmt;
use std::io::Read;
use std::path::Path;
use std::str::FromStr;

/// When a task that could go on loses its processor to a more urgent one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Preemption {
    /// Where it waits or yields explicitly (Linux's `PREEMPT_NONE`).
    None,
    /// Also where it might have had to wait (`PREEMPT_VOLUNTARY`).
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

/// Where tasks that can run wait for a processor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RunQueues {
    /// In one queue: any processor takes the next task.
    #[default]
    Shared,
    /// Each processor has its own, as Linux has had since 2.6: a woken task goes to the one that it ran on last, or to its
    /// waker's; a processor that has nothing to do takes from the fullest.
    PerProcessor,
}

/// Priorities among normal tasks, which decide about the processor when one of them is woken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wakeup {
    /// Nothing: normal tasks are equals, and run in turn.
    #[default]
    None,
    /// Normal tasks have the dynamic priorities of Linux 2.6 to 2.6.22 (the O(1) scheduler): one that has slept more goes first,
    /// and takes the processor where the preemption mode lets it.
    O1,
}

/// Values of a key of a machine's file, by their names there.
const RUN_QUEUES: [(&str, RunQueues); 2] =
    [("shared", RunQueues::Shared), ("per processor", RunQueues::PerProcessor)];
const WAKEUPS: [(&str, Wakeup); 2] = [("none", Wakeup::None), ("o1", Wakeup::O1)];

/// Longer files are something else, or have no end.
const MOST_FILE_BYTES: u64 = 1 << 20;

/// A machine model, read from a file in `machines/`. Every key must be there, and a price for all work that is charged
/// ([`Machine::check_costs`]): nothing is free by accident.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    /// A description of the modelled machine.
    pub name: String,
    /// Where its numbers come from.
    pub source: String,
    /// Its processors.
    pub processors: Processors,
    /// Its disks, in the order of the file; a machine may have none.
    pub disks: Vec<DiskModel>,
    /// The memory of its page cache; not every machine's file says.
    pub memory: Option<MemorySpec>,
    /// Its kernel, as far as the file says.
    pub kernel: KernelSpec,
    /// The link that disks with [`DiskModel::on_bus`] share.
    pub bus: Option<BusSpec>,
    /// The prices of work.
    pub(crate) prices: Prices,
}

/// The processors of a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Processors {
    /// How many, 1 to 1,024.
    pub count: usize,
    /// When tasks are preempted.
    pub preemption: Preemption,
    /// How long a normal task runs before others of its class have a claim; more than 0.
    pub timeslice: Nanos,
    /// Paid by a processor that runs another task than it ran last.
    pub context_switch: Nanos,
    /// Paid by who wakes a task.
    pub wake: Nanos,
    /// From a wake-up until an idle processor begins with the task.
    pub idle_exit: Nanos,
    /// Taken by a timer's interrupt from the processor on which its task ran last.
    pub timer_interrupt: Nanos,
    /// The processor that devices interrupt (`interrupt_processor`; kernel: `/proc/irq/*/smp_affinity`); the first, 0, where the
    /// file does not say.
    pub interrupt_processor: u32,
    /// Where tasks wait for a processor (`run_queues`: "shared", which is the default, or "per processor").
    pub run_queues: RunQueues,
    /// Whether normal tasks have priorities (`wakeup`: "none", which is the default, or "o1", with queues for each processor
    /// alone).
    pub wakeup: Wakeup,
    /// With queues for each processor: whether a woken task may go to its waker's processor (`wake_affine`, which the file may
    /// leave out; kernel: `SD_WAKE_AFFINE` and `SD_WAKE_BALANCE`, since 2.6.7). Otherwise it goes where it ran last, as before.
    pub wake_affine: bool,
    /// Paid by a processor that runs a task which ran on another last, whose caches have its data (`migration_ns`); 0 where the
    /// file does not say.
    pub migration: Nanos,
}

/// A machine's page cache: the table `[memory]` of its file, all in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemorySpec {
    /// Memory for cached pages (`cache_bytes`).
    pub cache_bytes: u64,
    /// Dirty and write-back pages together never exceed this (`dirty_limit_bytes`; kernel: `vm.dirty_bytes`).
    pub dirty_limit_bytes: u64,
    /// Flushers work while more than this is dirty (`dirty_background_bytes`; kernel: `vm.dirty_background_bytes`).
    pub dirty_background_bytes: u64,
}

/// Choices of a machine's kernel that its behaviour depends on: the table `[kernel]` of its file, which may be left out, as
/// may each key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelSpec {
    /// Ticks per second (`hz`, 10 to 10,000; kernel: `CONFIG_HZ`); 1000 where the file does not say.
    pub hz: u32,
    /// CFQ's wait for the next request of a queue, as an administrator sets it (`slice_idle_ms`, at most 1000; kernel:
    /// `slice_idle`); `None` is the kernel's default.
    pub slice_idle_ms: Option<u32>,
    /// Most requests of each kind that an elevator sees (`nr_requests`, 4 to 1,000,000; kernel: `queue/nr_requests`), where it
    /// is not as the run says.
    pub nr_requests: Option<u32>,
    /// Whether the request queues of before blk-mq let streams that waited for a request take a batch of them
    /// (`request_batching`), as they do where the file does not say.
    pub request_batching: bool,
    /// A page of memory, in bytes (`page_bytes`, a power of two from 4 KiB to 64 KiB), as direct I/O sees it; 4 KiB where the file
    /// does not say. The pages of the page cache have 4 KiB in any case.
    pub page_bytes: u32,
    /// What an administrator has set.
    pub knobs: Knobs,
}

/// Knobs of a kernel under `/proc/sys/vm` and `/sys/block/*/queue`, each in the table `[kernel]` by its own name and in its own
/// unit; `None` is the default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Knobs {
    /// `vm.dirty_expire_centisecs`.
    pub dirty_expire_centisecs: Option<u32>,
    /// `vm.dirty_writeback_centisecs`.
    pub dirty_writeback_centisecs: Option<u32>,
    /// `vm.dirty_ratio`, in per cent of the cache.
    pub dirty_ratio: Option<u32>,
    /// `vm.dirty_background_ratio`, likewise.
    pub dirty_background_ratio: Option<u32>,
    /// `vm.dirty_bytes`.
    pub dirty_bytes: Option<u64>,
    /// `vm.dirty_background_bytes`, of a machine without a table `[memory]`, which has a key of this name.
    pub dirty_background_bytes: Option<u64>,
    /// `queue/read_ahead_kb`.
    pub read_ahead_kb: Option<u32>,
    /// mq-deadline's `fifo_batch`.
    pub fifo_batch: Option<u32>,
    /// Its `read_expire`, in milliseconds.
    pub read_expire: Option<u32>,
    /// Its `write_expire`, in milliseconds.
    pub write_expire: Option<u32>,
    /// Its `writes_starved`.
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
    /// The smallest cache.
    pub const MIN_CACHE_BYTES: u64 = 1 << 20;

    /// The key with the first value that makes no sense, and why.
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
                "{} is more than a machine has; give {} (1 TiB) or less",
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
    /// Names file, line and key of the first thing that is missing, unknown, negative or of the wrong kind.
    pub fn load(path: &Path) -> Result<Self, ModelError> {
        Self::load_with(path, &[])
    }

    /// Reads a model from a file, with other values for some of its keys.
    ///
    /// # Errors
    /// As [`Machine::load`], and names a setting whose key the machine does not have.
    pub fn load_with(path: &Path, settings: &[Setting]) -> Result<Self, ModelError> {
        let file = path.display().to_string();
        let refused =
            |problem: String| ModelError { file: file.clone(), line: 0, key: "(file)".into(), problem };
        let mut text = String::new();
        let source = std::fs::File::open(path).map_err(|error| refused(error.to_string()))?;
        source
            .take(MOST_FILE_BYTES + 1)
            .read_to_string(&mut text)
            .map_err(|error| refused(error.to_string()))?;
        if text.len() as u64 > MOST_FILE_BYTES {
            return Err(refused(format!("longer than {MOST_FILE_BYTES} bytes is no machine")));
        }
        for setting in settings {
            text = setting.apply(&file, &text)?;
        }
        Self::parse(&file, &text)
    }

    /// Reads a model from text; `file` is named in errors.
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
                let problem = "\"o1\" wants run_queues = \"per processor\": a shared queue has no current task to preempt";
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

    /// A machine on which nothing costs anything but [`extant_rt::Cpu`]: for tests of logic and for arithmetic.
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

    /// The same machine with other disks, each with a link of its own.
    pub fn with_disks(mut self, disks: Vec<DiskModel>) -> Self {
        (self.disks, self.bus) = (disks, None);
        self
    }

    /// The same machine with another kernel.
    pub fn with_preemption(mut self, preemption: Preemption) -> Self {
        self.processors.preemption = preemption;
        self
    }

    /// Checks that there is a price for all work that these layers charge. A model may have prices beyond those.
    ///
    /// # Errors
    /// Names the file and the first key that is missing.
    pub fn check_costs(&self, tables: &[&CostTable]) -> Result<(), ModelError> {
        self.prices.missing(tables).map_or(Ok(()), Err)
    }

    /// The time that this work takes, rounded to the nearest nanosecond; `None` if the model has no price for it, or if that
    /// is beyond counting.
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
            return Err(t.error(ratio.0, format!("{} is set, too; the kernel has one of both", bytes.0)));
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
