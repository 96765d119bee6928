//! Devices that tests control, and worlds to run in.

use extant_block::{Bio, BioFlags, Device, IoErrorKind, Limits, MemDevice, Op};
use extant_cache::{CacheConfig, Disk, FlatFile, Mapping, PageCache};
use extant_rt::{Nanos, RealConfig, Rt};
use extant_sim::{Machine, Preemption, Sim};
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// A disk in memory whose bios can be held back or made to fail.
#[derive(Debug)]
pub(crate) struct Gate {
    pub(crate) mem: MemDevice,
    limits: Limits,
    held: Mutex<Option<Vec<Bio>>>,
    arrived: Condvar,
    pub(crate) fail_reads: AtomicBool,
    pub(crate) fail_writes: AtomicBool,
    /// How many of the next flushes fail.
    pub(crate) fail_flushes: AtomicUsize,
    pub(crate) reads: AtomicUsize,
    pub(crate) writes: AtomicUsize,
    pub(crate) flushes: AtomicUsize,
}

impl Gate {
    pub(crate) fn new(bytes: usize) -> Arc<Self> {
        Self::make(bytes, false)
    }

    /// A disk that claims to have a volatile cache.
    pub(crate) fn volatile(bytes: usize) -> Arc<Self> {
        Self::make(bytes, true)
    }

    fn make(bytes: usize, volatile_cache: bool) -> Arc<Self> {
        let mem = MemDevice::new(bytes);
        Arc::new(Self {
            limits: Limits { volatile_cache, ..mem.limits().clone() },
            mem,
            fail_flushes: AtomicUsize::new(0),
            held: Mutex::new(None),
            arrived: Condvar::new(),
            fail_reads: AtomicBool::new(false),
            fail_writes: AtomicBool::new(false),
            reads: AtomicUsize::new(0),
            writes: AtomicUsize::new(0),
            flushes: AtomicUsize::new(0),
        })
    }

    /// Holds back bios from now on.
    pub(crate) fn hold(&self) {
        self.held.lock().get_or_insert_default();
    }

    /// Number of bios held back.
    pub(crate) fn held(&self) -> usize {
        self.held.lock().as_ref().map_or(0, Vec::len)
    }

    /// Waits until `n` bios are held back; for the real world.
    pub(crate) fn wait_held(&self, n: usize) {
        let mut held = self.held.lock();
        while held.as_ref().map_or(0, Vec::len) < n {
            self.arrived.wait(&mut held);
        }
    }

    /// The flags of the bios held back.
    pub(crate) fn held_flags(&self) -> Vec<BioFlags> {
        self.held.lock().as_ref().map_or(Vec::new(), |bios| bios.iter().map(|bio| bio.flags).collect())
    }

    /// Releases the bios held back, and lets all later ones pass.
    pub(crate) fn release(&self) {
        let bios = self.held.lock().take().unwrap_or_default();
        bios.into_iter().for_each(|bio| self.run(bio));
    }

    /// Releases the bio held back as number `n`.
    pub(crate) fn release_one(&self, n: usize) {
        let bio = self.held.lock().as_mut().expect("held").remove(n);
        self.run(bio);
    }

    fn run(&self, bio: Bio) {
        let one_less = |left: usize| left.checked_sub(1);
        if bio.op == Op::Flush
            && self.fail_flushes.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less).is_ok()
        {
            return bio.end_as("gate", Err(IoErrorKind::Os(5)));
        }
        let fails = match bio.op {
            Op::Read => &self.fail_reads,
            Op::Flush => return self.mem.submit(bio),
            _ => &self.fail_writes,
        };
        if fails.load(Ordering::SeqCst) {
            return bio.end_as("gate", Err(IoErrorKind::Os(5)));
        }
        self.mem.submit(bio);
    }
}

impl Device for Gate {
    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn submit(&self, bio: Bio) {
        match bio.op {
            Op::Read => self.reads.fetch_add(1, Ordering::SeqCst),
            Op::Write => self.writes.fetch_add(1, Ordering::SeqCst),
            Op::Flush => self.flushes.fetch_add(1, Ordering::SeqCst),
            _ => 0,
        };
        if let Some(held) = &mut *self.held.lock() {
            held.push(bio);
            self.arrived.notify_all();
            return;
        }
        self.run(bio);
    }
}

/// A virtual world with two processors. Its time passes only while all tasks wait, so after a sleep
/// each task has done what it can.
pub(crate) fn virtual_world() -> Sim {
    Sim::new(Machine::free(2, Preemption::None), 1)
}

/// Lets virtual time pass.
pub(crate) fn sleep(rt: &Rt, ms: u64) {
    assert!(rt.is_virtual(), "tests do not sleep in real time");
    run(rt, rt.sleep(Nanos::from_millis(ms)));
}

/// Runs `work` on a thread of its own. If it hangs, the test fails instead of hanging.
#[expect(clippy::disallowed_methods, reason = "this needs a thread outside every world")]
pub(crate) fn ends<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let (tell, ended) = std::sync::mpsc::channel();
    std::thread::spawn(move || tell.send(work()));
    ended.recv_timeout(std::time::Duration::from_secs(120)).expect("it ends")
}

pub(crate) fn world() -> Rt {
    Rt::real(RealConfig { worker_threads: Some(2), seed: Some(1), ..RealConfig::default() })
}

/// Runs a future to completion.
pub(crate) fn run<T>(rt: &Rt, future: impl Future<Output = T>) -> T {
    rt.block_on(future).expect("no task panics")
}

/// A cache with one device of `device_bytes`, and a flat file of `size` bytes on it.
pub(crate) fn one_file(
    rt: &Rt,
    config: CacheConfig,
    device_bytes: usize,
    size: u64,
) -> (PageCache, Disk, Arc<Gate>, Mapping) {
    let cache = PageCache::new(rt, config).expect("memory");
    let gate = Gate::new(device_bytes);
    let disk = cache.attach(gate.clone());
    let backing = FlatFile::new(extant_block::Sector(0), device_bytes as u64);
    let mapping = disk.mapping(Arc::new(backing), 1, size);
    (cache, disk, gate, mapping)
}
