//! Ten disks behind one link, as many `dd` on each, and little memory to be dirty in: the experiment of the thread
//! "writeback: dirty position control - bdi reserve area" (linux-kernel, September 2011), through the page cache.
//!
//! Every writer has a flat file of its own, one run on its device: no file system takes part. Frames are phantoms.

use crate::history::{self, Host, UnknownPolicy};
use extant_block::{Queue, QueueConfig, Sector};
use extant_cache::{CacheConfig, FlatFile, PageCache};
use extant_rt::trace::Record;
use extant_rt::{Class, Cost, Event, Nanos, Rt, RtError, Sink};
use extant_sim::disk::Disks;
use extant_sim::{Machine, Sim};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;

const MIB: u64 = 1 << 20;
/// `dd bs=1M`.
const WRITE_BYTES: u64 = MIB;
/// What all files of a disk may grow to.
const DISK_BYTES: u64 = 128 << 30;
/// Writers begin so far apart.
const APART: Nanos = Nanos::from_millis(1);

/// One run.
#[derive(Clone, Debug)]
pub struct Case {
    /// The machine; every disk of it is written to.
    pub machine: Machine,
    /// `dd` on each disk.
    pub writers_per_disk: u64,
    /// Dirty memory: the limit, and half of it in the background.
    pub limit_bytes: u64,
    /// Memory for pages.
    pub cache_bytes: u64,
    /// Largest piece of a file that is written, and then comes back, together.
    pub bio_bytes: u64,
    /// A dirty controller's name in [`history`].
    pub control: String,
    /// An elevator's name in [`history`].
    pub elevator: String,
    /// Not measured.
    pub warm_up: Nanos,
    /// Measured.
    pub measured: Nanos,
    /// Of all randomness.
    pub seed: u64,
}

/// What one run came to.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Bytes written back, by disk.
    pub written_bytes: Vec<u64>,
    /// How long that took.
    pub measured: Nanos,
    /// Bytes that each writer dirtied, the writers of a disk one after the other.
    pub dirtied_bytes: Vec<u64>,
    /// Pauses by rule: how many, all together, and the longest.
    pub pauses: BTreeMap<&'static str, Pauses>,
    /// The longest time in which a writer got nothing done.
    pub longest_write: Nanos,
    /// Most pages dirty and under write-back at a time.
    pub most_dirty_pages: u64,
}

/// Pauses under one rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pauses {
    /// How many.
    pub count: u64,
    /// All together.
    pub total: Nanos,
    /// The longest.
    pub longest: Nanos,
}

impl Outcome {
    /// All disks together.
    pub fn mib_per_s(&self) -> f64 {
        self.written_bytes.iter().sum::<u64>() as f64 / MIB as f64 / (self.measured.0 as f64 / 1e9)
    }

    /// The longest pause of all rules.
    pub fn longest_pause(&self) -> Nanos {
        self.pauses.values().map(|pauses| pauses.longest).max().unwrap_or_default()
    }
}

/// Adds up what the trace tells.
#[derive(Debug, Default)]
struct Tally(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    writers_per_disk: u64,
    out: Outcome,
}

impl Sink for Tally {
    fn record(&self, record: &Record) {
        let mut state = self.0.lock();
        let writers = state.writers_per_disk;
        let out = &mut state.out;
        match record.event {
            Event::PagesWritten { inode, pages, .. } => {
                out.written_bytes[(inode / writers) as usize] += pages * 4096;
            }
            Event::PagesDirtied { inode, pages, .. } => out.dirtied_bytes[inode as usize] += pages * 4096,
            Event::WriterPaused { rule, took, .. } => {
                let pauses = out.pauses.entry(rule).or_default();
                pauses.count += 1;
                pauses.total += took;
                pauses.longest = pauses.longest.max(took);
            }
            Event::DirtyLevels { reclaimable, writeback, .. } => {
                let dirty = u64::from(reclaimable) + u64::from(writeback);
                out.most_dirty_pages = out.most_dirty_pages.max(dirty);
            }
            Event::Span { what: "write", took, .. } => out.longest_write = out.longest_write.max(took),
            _ => {}
        }
    }
}

/// Why a case could not be run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CaseError {
    /// A policy's name is unknown.
    #[error(transparent)]
    Policy(#[from] UnknownPolicy),
    /// The host gives no address space.
    #[error("the host has no room for the tables of {bytes} bytes of modelled memory: {error}")]
    Memory {
        /// What was asked for.
        bytes: u64,
        /// Why not.
        error: std::io::Error,
    },
    /// The virtual world could not go on.
    #[error(transparent)]
    World(#[from] RtError),
}

/// Runs one case; `watch` hears every event of the measured time, beside what the outcome is made of.
///
/// # Errors
/// See [`CaseError`].
pub fn run(case: &Case, watch: Option<Arc<dyn Sink>>) -> Result<Outcome, CaseError> {
    let sim = Sim::new(case.machine.clone(), case.seed);
    let rt = sim.rt().clone();
    let host = Host { cpus: case.machine.processors.count as u32, memory_bytes: case.cache_bytes };
    let config = CacheConfig {
        dirty_bytes: Some(case.limit_bytes),
        background_bytes: Some(case.limit_bytes / 2),
        bio_bytes: case.bio_bytes,
        phantom_frames: true,
        control: history::dirty_control(&case.control, &host)?,
        ..CacheConfig::with_budget(case.cache_bytes)
    };
    let cache =
        PageCache::new(&rt, config).map_err(|error| CaseError::Memory { bytes: case.cache_bytes, error })?;
    let disks = Disks::attach(&sim);
    let file_bytes = DISK_BYTES / case.writers_per_disk / MIB * MIB;
    let bytes: Arc<[u8]> = vec![0; WRITE_BYTES as usize].into();
    for (number, device) in disks.devices().into_iter().enumerate() {
        let elevator = history::elevator(&case.elevator)?;
        let disk = cache.attach(Arc::new(Queue::new(&rt, device, elevator, QueueConfig::default())));
        for writer in 0..case.writers_per_disk {
            let backing = FlatFile::new(Sector(writer * file_bytes / Sector::BYTES), file_bytes);
            let inode = number as u64 * case.writers_per_disk + writer;
            let file = disk.mapping(Arc::new(backing), inode, 0).open();
            // As a script starts them: the disks in turn.
            let start = APART.0 * (writer * disks.len() as u64 + number as u64);
            let (rt, bytes) = (rt.clone(), bytes.clone());
            drop(rt.clone().spawn("dd", Class::Normal, async move {
                rt.sleep_until(Nanos(start)).await;
                for at in (0..file_bytes).step_by(WRITE_BYTES as usize) {
                    let began = rt.now();
                    rt.charge(Cost::Syscall(2));
                    // Modelled disks do not fail.
                    if file.write(at, &bytes).await.is_err() {
                        return;
                    }
                    let took = rt.now().saturating_sub(began);
                    rt.trace(Event::Span { what: "write", number: inode, took });
                }
            }));
        }
    }
    let writers = disks.len() as u64 * case.writers_per_disk;
    let out = Outcome {
        written_bytes: vec![0; disks.len()],
        dirtied_bytes: vec![0; writers as usize],
        measured: case.measured,
        ..Outcome::default()
    };
    let tally = Arc::new(Tally(Mutex::new(State { writers_per_disk: case.writers_per_disk, out })));
    rt.block_on(measure(&rt, case, tally.clone(), watch))?;
    rt.set_sink(None);
    let out = std::mem::take(&mut tally.0.lock().out);
    Ok(out)
}

async fn measure(rt: &Rt, case: &Case, tally: Arc<Tally>, watch: Option<Arc<dyn Sink>>) {
    rt.sleep_until(case.warm_up).await;
    let sinks = [Some(tally as Arc<dyn Sink>), watch].into_iter().flatten().collect();
    rt.set_sink(Some(Arc::new(extant_rt::trace::Tee(sinks))));
    rt.sleep_until(case.warm_up.saturating_add(case.measured)).await;
}

/// A row of the thread's table.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// The limit, as the thread names it.
    pub name: &'static str,
    /// The limit in MiB.
    pub limit_mib: u64,
    /// `dd` on each disk.
    pub writers_per_disk: u64,
    /// MiB/s that were measured: Linux 3.1; with the IO-less patches and the background threshold of each device. On xfs.
    pub measured: (f64, f64),
}

const fn row(name: &'static str, limit_mib: u64, writers_per_disk: u64, before: f64, after: f64) -> Row {
    Row { name, limit_mib, writers_per_disk, measured: (before, after) }
}

/// The table of rates. 16G is 20 % of 16 GiB: memory is no concern there.
pub const ROWS: [Row; 9] = [
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

impl Row {
    /// The row's case on a machine, under a controller: 15 s of warm-up, 45 s measured, seed 1.
    pub fn case(&self, machine: &Machine, control: &str) -> Case {
        let limit_bytes = self.limit_mib * MIB;
        Case {
            machine: machine.clone(),
            writers_per_disk: self.writers_per_disk,
            limit_bytes,
            // Clean pages make no difference to writers: as little memory as leaves the limit alone.
            cache_bytes: 2 * limit_bytes,
            bio_bytes: 4 * MIB,
            control: control.into(),
            elevator: "cfq".into(),
            warm_up: Nanos::from_secs(15),
            measured: Nanos::from_secs(45),
            seed: 1,
        }
    }
}
