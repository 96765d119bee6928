//! tiobench on the page cache of Linux 2.6.6: threads write and read files of their own,
//! sequentially and at random.
//!
//! The thread "[0/2] filtered wakeups" (linux-kernel, 2 May 2004) measured this. The page cache is
//! a model of that kernel's, not ours: pages of the machine's size that are locked and unlocked one
//! by one, its read-ahead, its throttling of writers, and the buffers of ext2's metadata. The
//! volume is an ext2 made by our mkfs, and ext2's allocator places its blocks. Request queues,
//! disks and `rt`'s wait tables are those of every other run; the discipline of the wait tables is
//! selectable ([`extant_history::waits`]).

mod buffers;
mod cache;
mod control;
mod disks;
mod inodes;
mod map;
mod outcome;
mod read;
mod requests;
#[cfg(test)]
mod tests;
mod throttle;
mod volume;
mod waiters;
mod write;
mod writeback;

pub use outcome::{Phase, PhaseOutcome, Sleeps};

use cache::{Cache, Shape};
use disks::{CHUNK_BYTES, Stripe};
use extant_history::UnknownPolicy;
use extant_history::waits::waits;
use extant_rt::{Class, Rt, RtError, WaitKey, WaitTable};
use extant_sim::{Machine, Sim};
use inodes::Inodes;
use outcome::Books;
use parking_lot::Mutex;
use serde::Deserialize;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll};
use volume::Volume;

extant_rt::costs! {
    /// Costs of the Linux 2.6.6 page cache that ours does not have.
    pub enum Work of "tiobench" {
        /// The program's own share of one call.
        User = "user_io_ns",
        /// Locking or unlocking a page, and moving it between lists.
        PageState = "page_state_ns",
        /// Waking a task from an interrupt (kernel: `try_to_wake_up`).
        PageWake = "page_wake_ns",
    }
}

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
    /// No policy has this name.
    #[error(transparent)]
    Policy(#[from] UnknownPolicy),
    /// The world stopped early.
    #[error("{0}")]
    World(String),
}

impl From<RtError> for TiobenchError {
    fn from(error: RtError) -> Self {
        Self::World(error.to_string())
    }
}

/// Bytes per call, and size of a file system block.
const BLOCK_BYTES: u64 = 4096;

impl Tiobench {
    /// Describes the first option that is invalid on a machine, if any.
    pub(crate) fn fault(&self, machine: &Machine) -> Option<String> {
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

/// Size of the stripe over all disks in bytes.
fn capacity(machine: &Machine) -> u64 {
    let count: u64 = machine.disks.iter().map(|model| u64::from(model.count)).sum();
    let least = machine.disks.iter().map(extant_sim::disk::DiskModel::capacity_bytes).min().unwrap_or(0);
    count.saturating_mul(least) / CHUNK_BYTES * CHUNK_BYTES
}

/// The policies of a run.
#[derive(Clone, Debug)]
pub(crate) struct Waits {
    pub(crate) pages: String,
    pub(crate) buffers: String,
    pub(crate) elevator: String,
    pub(crate) requests: usize,
}

/// State shared by threads and interrupts.
struct Host {
    rt: Rt,
    options: Tiobench,
    shape: Shape,
    hz: u32,
    cache: Mutex<Cache>,
    volume: Mutex<Volume>,
    inodes: Mutex<Inodes>,
    /// The block device's own inode, in a separate list; write-back visits it last.
    device_inode: Mutex<Inodes>,
    pdflush: Arc<AtomicBool>,
    pages: WaitTable,
    buffers: WaitTable,
    stripe: Stripe,
    sleeps: [AtomicU64; 3],
    /// Pages dirtied on each processor since the limits were last checked (kernel: `ratelimits`).
    dirtied: Box<[AtomicU64]>,
    /// Second of the last write to each file, plus one; 0 for none.
    written: Box<[AtomicU64]>,
}

/// Callers of `schedule()` that are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Caller {
    PageBit = 0,
    PageLock = 1,
    Buffer = 2,
}

/// Counts how often a wait gives up its processor.
struct Counted<'a, F> {
    wait: F,
    sleeps: &'a AtomicU64,
}

impl<F: Future<Output = ()> + Unpin> Future for Counted<'_, F> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let poll = Pin::new(&mut self.wait).poll(cx);
        if poll.is_pending() {
            self.sleeps.store(self.sleeps.load(Relaxed) + 1, Relaxed);
        }
        poll
    }
}

impl Host {
    /// Sleeps in the wait table until `ready`; waiters of other objects may share the bucket.
    async fn sleep(
        &self,
        table: &WaitTable,
        caller: Caller,
        object: u64,
        ready: impl FnMut() -> bool + Unpin,
    ) {
        let wait = table.wait_until(WaitKey::new(object), ready);
        Counted { wait, sleeps: &self.sleeps[caller as usize] }.await;
    }

    /// Wakes the waiters of pages or buffers, and charges for each. Call it without the cache's
    /// lock.
    fn wake(&self, table: &WaitTable, objects: impl Iterator<Item = u64>) {
        let mut batch = table.batch();
        objects.for_each(|object| batch.wake(WaitKey::new(object)));
        let woken = u64::from(batch.woken());
        if woken > 0 {
            self.rt.charge(Work::PageWake(woken));
        }
    }
}

/// Runs the phases up to `until`. After all of them, adds their total.
///
/// # Errors
/// If options and policies do not fit together; reported before anything runs.
pub(crate) fn run(
    options: Tiobench,
    machine: &Machine,
    policy: &Waits,
    seed: u64,
    until: Phase,
) -> Result<Vec<PhaseOutcome>, TiobenchError> {
    if let Some(problem) = options.fault(machine) {
        return Err(TiobenchError::Options(problem));
    }
    if policy.requests == 0 {
        return Err(TiobenchError::Options("requests: a queue of none takes nothing".to_owned()));
    }
    let (sim, host) = world(options, machine, policy, seed)?;
    let rt = sim.rt();
    drop(rt.spawn("pdflush", Class::Normal, host.clone().write_old()));
    let mut books = Books::open(&sim, &host);
    let mut all = Vec::new();
    for phase in Phase::ALL {
        host.stripe.begin_phase();
        let threads = (0..options.threads).map(|file| {
            let work = phase_of(host.clone(), phase, file);
            rt.spawn("tiotest", Class::Normal, work)
        });
        let threads: Vec<_> = threads.collect();
        rt.block_on(async {
            for thread in threads {
                thread.await?;
            }
            Ok::<(), RtError>(())
        })??;
        all.push(books.close(phase, &sim, &host));
        if phase == until {
            return Ok(all);
        }
    }
    all.push(PhaseOutcome::total(&all));
    if until == Phase::Waiters {
        let (sim, host) = world(options, machine, policy, seed)?;
        all.push(waiters::run(&sim, &host, options.waiters)?);
    }
    Ok(all)
}

/// Creates a world in its initial state.
fn world(
    options: Tiobench,
    machine: &Machine,
    policy: &Waits,
    seed: u64,
) -> Result<(Sim, Arc<Host>), TiobenchError> {
    let [page_table, _] = waits(&policy.pages)?;
    let [_, buffer_table] = waits(&policy.buffers)?;
    let sim = Sim::new(machine.clone(), seed);
    let rt = sim.rt().clone();
    let memory = machine.memory.expect("checked by fault()");
    let stripe = Stripe::new(&sim, &policy.elevator, policy.requests)?;
    let shape = Shape::new(options, u64::from(machine.kernel.page_bytes));
    let volume = Volume::new(shape, capacity(machine)).map_err(TiobenchError::World)?;
    let pdflush = Arc::new(AtomicBool::new(false));
    let host = Host {
        options,
        shape,
        hz: machine.kernel.hz,
        cache: Mutex::new(Cache::new(shape, memory)),
        volume: Mutex::new(volume),
        inodes: Mutex::new(Inodes::new(shape.files, pdflush.clone())),
        device_inode: Mutex::new(Inodes::new(shape.files + 1, pdflush.clone())),
        pdflush,
        written: (0..options.threads).map(|_| AtomicU64::new(0)).collect(),
        pages: WaitTable::new(&rt, page_table),
        buffers: WaitTable::new(&rt, buffer_table),
        stripe,
        sleeps: Default::default(),
        dirtied: (0..machine.processors.count).map(|_| AtomicU64::new(0)).collect(),
        rt,
    };
    Ok((sim, Arc::new(host)))
}

/// What a thread does in a phase.
async fn phase_of(host: Arc<Host>, phase: Phase, file: u32) {
    let blocks = host.shape.file_blocks();
    let mut rng = host.rt.rng(&format!("{phase:?} {file}"));
    let mut open = read::Open::new(&host, file);
    if phase == Phase::Write {
        host.create(file).await;
    }
    let count = if phase.is_random() { u64::from(host.options.random_ops) } else { blocks };
    for n in 0..count {
        let block = if phase.is_random() { rng.below(blocks) } else { n };
        host.rt.charge(Work::User(1));
        host.rt.charge(crate::Cost::Syscall(1));
        if phase.writes() {
            host.write(file, block).await;
        } else {
            host.read(&mut open, block).await;
        }
        // On return from the system call.
        host.rt.resched().await;
    }
    if phase.writes() {
        host.fsync(file).await;
        host.volume.lock().close(file);
    }
    host.stripe.exited(file);
}
