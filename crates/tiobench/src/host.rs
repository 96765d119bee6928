//! The modelled host: state that tiobench's threads and interrupts share.

use crate::disks::{StripedDisks, capacity};
use crate::inodes::SuperblockInodes;
use crate::options::{Policies, Tiobench, TiobenchError};
use crate::page_cache::{PageCache, RunSizes};
use crate::volume::Ext2Volume;
use extant_rt::{Rt, WaitKey, WaitTable};
use extant_sim::{Machine, Sim};
use parking_lot::Mutex;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll};

extant_rt::costs! {
    /// Work of the program, and of the page cache of Linux 2.6.6 that ours does not have.
    pub enum PageCacheCost of "tiobench" {
        /// Entering and leaving the kernel.
        Syscall = "syscall_ns",
        /// The program's own share of one call.
        User = "user_io_ns",
        /// Locking or unlocking a page, and moving it between lists.
        PageState = "page_state_ns",
        /// Waking a task from an interrupt (kernel: `try_to_wake_up`).
        PageWake = "page_wake_ns",
    }
}

/// State shared by threads and interrupts.
pub(crate) struct ModelledHost {
    pub(crate) rt: Rt,
    pub(crate) options: Tiobench,
    pub(crate) shape: RunSizes,
    pub(crate) hz: u32,
    pub(crate) cache: Mutex<PageCache>,
    pub(crate) volume: Mutex<Ext2Volume>,
    pub(crate) inodes: Mutex<SuperblockInodes>,
    /// The block device's own inode, in a separate list; write-back visits it last.
    pub(crate) device_inode: Mutex<SuperblockInodes>,
    pub(crate) pdflush: Arc<AtomicBool>,
    pub(crate) pages: WaitTable,
    pub(crate) buffers: WaitTable,
    pub(crate) stripe: StripedDisks,
    pub(crate) sleeps: [AtomicU64; 3],
    /// Pages dirtied on each processor since the limits were last checked (kernel: `ratelimits`).
    pub(crate) dirtied: Box<[AtomicU64]>,
    /// Second of the last write to each file, plus one; 0 for none.
    pub(crate) written: Box<[AtomicU64]>,
}

/// Callers of `schedule()` whose calls are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ScheduleCaller {
    PageBit = 0,
    PageLock = 1,
    Buffer = 2,
}

/// Counts how often a wait gives up its processor.
struct CountedWait<'a, F> {
    wait: F,
    pub(crate) sleeps: &'a AtomicU64,
}

impl<F: Future<Output = ()> + Unpin> Future for CountedWait<'_, F> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let poll = Pin::new(&mut self.wait).poll(cx);
        if poll.is_pending() {
            self.sleeps.store(self.sleeps.load(Relaxed) + 1, Relaxed);
        }
        poll
    }
}

impl ModelledHost {
    /// Sleeps in the wait table until `ready`; waiters of other objects may share the bucket.
    pub(crate) async fn sleep(
        &self,
        table: &WaitTable,
        caller: ScheduleCaller,
        object: u64,
        ready: impl FnMut() -> bool + Unpin,
    ) {
        let wait = table.wait_until(WaitKey::new(object), ready);
        CountedWait { wait, sleeps: &self.sleeps[caller as usize] }.await;
    }

    /// Wakes the waiters of pages or buffers, and charges for each. Call it without the cache's
    /// lock.
    pub(crate) fn wake(&self, table: &WaitTable, objects: impl Iterator<Item = u64>) {
        let mut batch = table.batch();
        objects.for_each(|object| batch.wake(WaitKey::new(object)));
        let woken = u64::from(batch.woken());
        if woken > 0 {
            self.rt.charge(PageCacheCost::PageWake(woken));
        }
    }
}

/// Creates a world in its initial state.
pub(crate) fn world(
    options: Tiobench,
    machine: &Machine,
    policies: Policies,
    seed: u64,
) -> Result<(Sim, Arc<ModelledHost>), TiobenchError> {
    let [page_table, _] = policies.page_waits.make()();
    let [_, buffer_table] = policies.buffer_waits.make()();
    let sim = Sim::new(machine.clone(), seed);
    let rt = sim.rt().clone();
    let memory = machine.memory.expect("checked by fault()");
    let stripe = StripedDisks::new(&sim, policies.elevator, policies.requests);
    let shape = RunSizes::new(options, u64::from(machine.kernel.page_bytes));
    let volume = Ext2Volume::new(shape, capacity(machine)).map_err(TiobenchError::World)?;
    let pdflush = Arc::new(AtomicBool::new(false));
    let host = ModelledHost {
        options,
        shape,
        hz: machine.kernel.hz,
        cache: Mutex::new(PageCache::new(shape, memory)),
        volume: Mutex::new(volume),
        inodes: Mutex::new(SuperblockInodes::new(shape.files, pdflush.clone())),
        device_inode: Mutex::new(SuperblockInodes::new(shape.files + 1, pdflush.clone())),
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
