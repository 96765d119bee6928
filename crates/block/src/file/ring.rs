//! The io_uring engine.
//!
//! Any thread submits. Any thread that has to wait may drive, and the thread that reaps ends all
//! bios it finds. Nothing here starts a thread.

use super::host_file::HostFile;
use super::transfer::{Step, Transfer};
use crate::{BioFlags, IoErrorKind, Op, end_all};
use extant_rt::{Driver, Wait};
use io_uring::register::Restriction;
use io_uring::{IoUring, opcode, squeue, types};
use parking_lot::Mutex;
use rustix::fs::FallocateFlags;
use rustix::io::{Errno, ReadWriteFlags};
use std::collections::VecDeque;
use std::fmt;
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Submission entries; a longer burst is entered in parts.
const SQ_ENTRIES: u32 = 256;
/// Maximum number of operations in the kernel at a time; further bios wait here. A disk's queue on
/// the host has room for some 256 requests. A request that finds no free place is handed to a
/// kernel thread, which waits for one. Half of the places keep any disk busy.
const STARTED_MAX: usize = 128;
/// Maximum number of bytes of background writes (those without [`BioFlags::SYNC`]) in the kernel at
/// a time, apart from the first one. Reads and syncs wait behind them, and no disk is faster with
/// more (kernel: block/blk-wbt.c).
const BACKGROUND_BYTES_MAX: u64 = 16 << 20;
/// Up to this many background writes, of this many bytes together, go before everything else, since
/// a sync may be waiting for pages that a flusher has taken.
const BACKGROUND_MIN: usize = 16;
const BACKGROUND_BYTES_MIN: u64 = 1 << 20;
/// Limits (bios, bytes) for one pass over the completion queue; a thread with other work loses at
/// most some tens of microseconds.
const REAPED_MAX: usize = 16;
const REAPED_BYTES_MAX: u64 = 1 << 20;
/// How many submissions, of how many bytes, a poll may hold back until it ends. With more, a device
/// at queue depth 32 sometimes idles.
pub(super) const DEFERRED_MAX: usize = 2;
const DEFERRED_BYTES_MAX: u64 = 64 << 10;
/// Registered descriptors.
const BUFFERED: types::Fixed = types::Fixed(0);
const DIRECT: types::Fixed = types::Fixed(1);
/// `user_data` of the no-op that wakes a driver.
const WAKE: u64 = u64::MAX;

type Ended = (Transfer, Result<(), IoErrorKind>);

pub(super) struct Ring {
    uring: IoUring,
    host_file: Arc<HostFile>,
    /// Guards the submission queue's tail and the slots.
    slots: Mutex<Slots>,
    /// Guards the completion queue's head; the vectors are reused from reap to reap.
    reaper: Mutex<Scratch>,
    /// Bios accepted and not yet reaped.
    in_flight: AtomicUsize,
    /// Threads that sleep in the kernel or are about to.
    sleepers: AtomicUsize,
    /// The next thread that would sleep returns instead.
    interrupted: AtomicBool,
    /// Threads in [`Ring::drain`].
    draining: AtomicUsize,
    /// Entries in the submission queue. An entry is counted from just before its push until the
    /// kernel has taken it.
    queued: AtomicUsize,
    /// The kernel has not taken everything that is queued.
    held_up: AtomicBool,
    /// How many more times the kernel appears to refuse entries, in a test.
    #[cfg(test)]
    refusals: AtomicUsize,
    /// Number of system calls made to hand over entries, for a test.
    #[cfg(test)]
    entered: AtomicUsize,
}

#[derive(Default)]
struct Slots {
    slots: Vec<Option<Slot>>,
    free: Vec<u32>,
    /// Slots in use.
    started: usize,
    /// Background writes in those slots, and their bytes.
    background_started: usize,
    background_bytes: u64,
    backlog: VecDeque<Transfer>,
    /// Background writes that wait. All but a few of them go after requests that a task waits for.
    background: VecDeque<Transfer>,
}

/// Whether, as a rule, no task waits for it.
fn is_background(transfer: &Transfer) -> bool {
    transfer.bio.op == Op::Write && !transfer.bio.flags.contains(BioFlags::SYNC)
}

impl Slots {
    /// Whether the next background write may start, if at most `most_bytes` of them may be in the
    /// kernel.
    fn may_start_background(&self, most_bytes: u64) -> bool {
        let next = self.background.front();
        next.is_some_and(|next| {
            self.background_bytes == 0 || self.background_bytes + next.bio.bytes <= most_bytes
        })
    }

    /// The next transfer to start.
    fn next(&mut self) -> Option<Transfer> {
        if self.started >= STARTED_MAX {
            return None;
        }
        if self.background_started < BACKGROUND_MIN && self.may_start_background(BACKGROUND_BYTES_MIN) {
            return self.background.pop_front();
        }
        let urgent = self.backlog.pop_front();
        if urgent.is_none() && self.may_start_background(BACKGROUND_BYTES_MAX) {
            return self.background.pop_front();
        }
        urgent
    }

    /// Counts a transfer that was started.
    fn note_started(&mut self, transfer: &Transfer) {
        self.started += 1;
        if is_background(transfer) {
            self.background_started += 1;
            self.background_bytes += transfer.bio.bytes;
        }
    }

    /// Counts a transfer that has ended.
    fn note_ended(&mut self, transfer: &Transfer) {
        self.started -= 1;
        if is_background(transfer) {
            self.background_started -= 1;
            self.background_bytes -= transfer.bio.bytes;
        }
    }
}

struct Slot {
    transfer: Transfer,
    /// The I/O vector of a scattered step; the kernel reads it.
    vector: Vector,
}

enum Vector {
    None,
    /// Only kept for the kernel, which reads it as iovecs.
    Read {
        _slices: Vec<IoSliceMut<'static>>,
    },
    Write {
        _slices: Vec<IoSlice<'static>>,
    },
}

/// The operations that the ring permits from now on. Without these restrictions it could open files
/// and connect to hosts, unseen by a sandbox's filter of system calls.
fn restrictions() -> Vec<Restriction> {
    const OPERATIONS: [u8; 7] = [
        opcode::Nop::CODE,
        opcode::Fsync::CODE,
        opcode::Read::CODE,
        opcode::Readv::CODE,
        opcode::Write::CODE,
        opcode::Writev::CODE,
        opcode::Fallocate::CODE,
    ];
    // linux/io_uring.h
    const UNREGISTER_FILES: u8 = 3;
    let flags = Restriction::sqe_flags_allowed(squeue::Flags::FIXED_FILE.bits());
    let calls = Restriction::register_op(UNREGISTER_FILES);
    OPERATIONS.into_iter().map(Restriction::sqe_op).chain([flags, calls]).collect()
}

#[derive(Default)]
struct Scratch {
    completions: Vec<(u64, i32)>,
}

impl Ring {
    /// A ring over `host_file`. Fails if the kernel or a seccomp profile forbids it.
    pub(super) fn new(host_file: Arc<HostFile>) -> std::io::Result<Arc<Self>> {
        let mut builder = IoUring::builder();
        let uring =
            builder.setup_clamp().setup_cqsize(SQ_ENTRIES * 2).setup_r_disabled().build(SQ_ENTRIES)?;
        let params = uring.params();
        if !(params.is_feature_ext_arg() && params.is_feature_nodrop() && params.is_feature_submit_stable()) {
            return Err(Errno::NOSYS.into());
        }
        let direct = host_file.direct.as_ref().unwrap_or(&host_file.buffered);
        uring.submitter().register_files(&[host_file.buffered.as_raw_fd(), direct.as_raw_fd()])?;
        uring.submitter().register_restrictions(&mut restrictions())?;
        uring.submitter().register_enable_rings()?;
        Ok(Arc::new(Self {
            uring,
            host_file,
            slots: Mutex::default(),
            reaper: Mutex::default(),
            in_flight: AtomicUsize::new(0),
            sleepers: AtomicUsize::new(0),
            interrupted: AtomicBool::new(false),
            draining: AtomicUsize::new(0),
            queued: AtomicUsize::new(0),
            held_up: AtomicBool::new(false),
            #[cfg(test)]
            refusals: AtomicUsize::new(0),
            #[cfg(test)]
            entered: AtomicUsize::new(0),
        }))
    }

    /// Makes the kernel refuse the next entries.
    #[cfg(test)]
    pub(super) fn refuse(&self, times: usize) {
        self.refusals.store(times, Ordering::SeqCst);
    }

    /// Number of system calls made to hand over entries.
    #[cfg(test)]
    pub(super) fn entered(&self) -> usize {
        self.entered.load(Ordering::SeqCst)
    }

    /// Starts transfers, all with one system call if they fit. A few small ones that a task waits
    /// for stay queued until the end of the poll on this thread, if `may_defer` allows it.
    pub(super) fn submit(
        &self,
        transfers: impl IntoIterator<Item = Transfer>,
        may_defer: impl FnOnce() -> bool,
    ) {
        let mut may_stay = true;
        let mut slots = self.slots.lock();
        for transfer in transfers {
            may_stay &= transfer.bio.bytes <= DEFERRED_BYTES_MAX
                && !transfer.bio.flags.contains(BioFlags::RAHEAD)
                && !is_background(&transfer);
            self.in_flight.fetch_add(1, Ordering::SeqCst);
            match is_background(&transfer) {
                true => slots.background.push_back(transfer),
                false => slots.backlog.push_back(transfer),
            }
        }
        let starts = self.start_next(&mut slots);
        drop(slots);
        let stays = may_stay && self.queued.load(Ordering::SeqCst) <= DEFERRED_MAX && may_defer();
        if starts && !stays {
            self.enter();
        }
    }

    /// Starts waiting transfers, as far as the limits allow. Returns whether it started any.
    fn start_next(&self, slots: &mut Slots) -> bool {
        let mut starts = false;
        while let Some(transfer) = slots.next() {
            self.start(slots, transfer);
            starts = true;
        }
        starts
    }

    fn start(&self, slots: &mut Slots, transfer: Transfer) {
        let index = slots.free.pop().unwrap_or_else(|| {
            slots.slots.push(None);
            slots.slots.len() as u32 - 1
        });
        slots.note_started(&transfer);
        slots.slots[index as usize] = Some(Slot { transfer, vector: Vector::None });
        self.push_step(slots, index);
    }

    /// Queues the next step of the transfer in a slot.
    fn push_step(&self, slots: &mut Slots, index: u32) {
        let slot = slots.slots[index as usize].as_mut().expect("a slot in use");
        let entry = match slot.transfer.step(&self.host_file) {
            Step::Sync => opcode::Fsync::new(BUFFERED).flags(types::FsyncFlags::DATASYNC).build(),
            Step::Read { offset, direct } => {
                let fd = if direct { DIRECT } else { BUFFERED };
                let mut slices = slot.transfer.slices_mut();
                if let [one] = &mut slices[..] {
                    opcode::Read::new(fd, one.as_mut_ptr(), one.len() as u32).offset(offset).build()
                } else {
                    let (ptr, n) = (slices.as_ptr(), slices.len() as u32);
                    // SAFETY: only the lifetime changes. The memory belongs to the transfer's bio
                    // or bounce buffer, both on the heap, and stays in this slot, untouched by us,
                    // until the kernel has completed the step.
                    let slices = unsafe {
                        std::mem::transmute::<Vec<IoSliceMut<'_>>, Vec<IoSliceMut<'static>>>(slices)
                    };
                    slot.vector = Vector::Read { _slices: slices };
                    opcode::Readv::new(fd, ptr.cast(), n).offset(offset).build()
                }
            }
            Step::Write { offset, direct, dsync } => {
                let fd = if direct { DIRECT } else { BUFFERED };
                let flags = if dsync { ReadWriteFlags::DSYNC.bits() as i32 } else { 0 };
                let slices = slot.transfer.slices();
                if let [one] = &slices[..] {
                    opcode::Write::new(fd, one.as_ptr(), one.len() as u32)
                        .offset(offset)
                        .rw_flags(flags)
                        .build()
                } else {
                    let (ptr, n) = (slices.as_ptr(), slices.len() as u32);
                    // SAFETY: as for reads.
                    let slices =
                        unsafe { std::mem::transmute::<Vec<IoSlice<'_>>, Vec<IoSlice<'static>>>(slices) };
                    slot.vector = Vector::Write { _slices: slices };
                    opcode::Writev::new(fd, ptr.cast(), n).offset(offset).rw_flags(flags).build()
                }
            }
            Step::PunchHole { offset, len } => {
                let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                opcode::Fallocate::new(BUFFERED, len).offset(offset).mode(mode.bits() as i32).build()
            }
            Step::Discard { .. } => unreachable!("discards of block devices do not come to the ring"),
        };
        self.push(&entry.user_data(u64::from(index)));
    }

    /// Queues an entry; the caller holds the lock on the slots.
    fn push(&self, entry: &squeue::Entry) {
        self.queued.fetch_add(1, Ordering::SeqCst);
        loop {
            // SAFETY: the lock on the slots makes this thread the only one to touch the queue's
            // tail; what the entry points to lives in its slot until the completion is reaped.
            let pushed = unsafe { self.uring.submission_shared().push(entry) };
            match pushed {
                Ok(()) => return,
                Err(_full) => self.enter(),
            }
        }
    }

    /// Hands queued entries to the kernel.
    fn enter(&self) {
        loop {
            match self.submit_queued() {
                Ok(taken) => return self.note_taken(taken),
                Err(e) => match Errno::from_io_error(&e) {
                    Some(Errno::INTR) => {}
                    // The kernel is short of memory or of room for completions; the next drive
                    // enters the rest.
                    Some(Errno::AGAIN | Errno::BUSY | Errno::NOMEM) => {
                        return self.held_up.store(true, Ordering::SeqCst);
                    }
                    _ => panic!("io_uring_enter on {}: {e}", self.host_file.limits.name),
                },
            }
        }
    }

    /// When memory is short, the kernel takes fewer entries than there are; the next drive enters
    /// the rest. The same happens if another thread is about to enter them.
    fn note_taken(&self, taken: usize) {
        let left = self.queued.fetch_sub(taken, Ordering::SeqCst) - taken;
        self.held_up.store(left > 0, Ordering::SeqCst);
    }

    fn submit_queued(&self) -> std::io::Result<usize> {
        #[cfg(test)]
        self.entered.fetch_add(1, Ordering::SeqCst);
        #[cfg(test)]
        if self.refusals.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok()
        {
            return Err(Errno::AGAIN.into());
        }
        self.uring.submit()
    }

    /// Ends bios whose operations are complete, without waiting; at most [`REAPED_MAX`]. Returns
    /// how many completions it took.
    fn reap(&self) -> usize {
        let mut scratch = self.reaper.lock();
        let mut completions = std::mem::take(&mut scratch.completions);
        // SAFETY: the lock on `reaper` makes this thread the only one to touch the queue's head.
        let queue = unsafe { self.uring.completion_shared() };
        let mut bytes = 0;
        for entry in queue.take(REAPED_MAX) {
            completions.push((entry.user_data(), entry.result()));
            bytes += entry.result().max(0) as u64;
            if bytes >= REAPED_BYTES_MAX {
                break;
            }
        }
        drop(scratch);
        let count = completions.len();
        if count == 0 {
            return 0;
        }
        let mut ended: Vec<Ended> = Vec::with_capacity(count);
        let mut again = false;
        let mut slots = self.slots.lock();
        for (index, result) in completions.drain(..) {
            if index != WAKE {
                again |= self.complete(&mut slots, index as u32, result, &mut ended);
            }
        }
        again |= self.start_next(&mut slots);
        drop(slots);
        if again || self.queued.load(Ordering::SeqCst) > 0 {
            self.enter();
        }
        self.reaper.lock().completions = completions;
        let left = self.in_flight.fetch_sub(ended.len(), Ordering::SeqCst) - ended.len();
        if left == 0 && self.draining.load(Ordering::SeqCst) > 0 {
            self.interrupt();
        }
        end_all(ended.into_iter().map(|(transfer, result)| {
            let bio = transfer.bio;
            let result = result.map_err(|kind| bio.error(&self.host_file.limits.name, kind));
            (bio, result)
        }));
        count
    }

    /// Completes a step; returns whether another one was queued.
    fn complete(&self, slots: &mut Slots, index: u32, result: i32, ended: &mut Vec<Ended>) -> bool {
        let slot = slots.slots[index as usize].as_mut().expect("a completion for a slot in use");
        slot.vector = Vector::None;
        let result = match u32::try_from(result) {
            Ok(n) => Ok(n as usize),
            Err(_) => Err(Errno::from_raw_os_error(-result)),
        };
        let Some(result) = slot.transfer.completed(&self.host_file, result) else {
            self.push_step(slots, index);
            return true;
        };
        let slot = slots.slots[index as usize].take().expect("a slot in use");
        slots.note_ended(&slot.transfer);
        ended.push((slot.transfer, result));
        slots.free.push(index);
        false
    }

    /// Waits until nothing is in flight, and releases the files. The kernel tears down a ring some
    /// time after its last descriptor is closed, but a claim on a block device must not last that
    /// long.
    pub(super) fn close(&self) {
        self.drain();
        // Fails only if they are not registered.
        let _ = self.uring.submitter().unregister_files();
    }

    /// Waits until nothing is in flight.
    fn drain(&self) {
        self.draining.fetch_add(1, Ordering::SeqCst);
        while self.in_flight() > 0 {
            self.drive(Wait::UntilSome);
        }
        self.draining.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Driver for Ring {
    fn drive(&self, wait: Wait) {
        if self.is_held_up() {
            self.enter();
        }
        // Two threads may wait here; then either may reap for both.
        if self.reap() > 0 {
            return;
        }
        if wait == Wait::Not {
            return self.enter_deferred();
        }
        // Pairs with `interrupt`: one of the two sees the other's store.
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        if self.interrupted.swap(false, Ordering::SeqCst) {
            self.enter_deferred();
        } else {
            #[cfg(test)]
            self.entered.fetch_add(self.queued.load(Ordering::SeqCst).min(1), Ordering::SeqCst);
            match self.uring.submit_and_wait(1).map_err(|e| Errno::from_io_error(&e)) {
                Ok(taken) => self.note_taken(taken),
                Err(Some(Errno::INTR)) => {}
                Err(Some(Errno::AGAIN | Errno::BUSY | Errno::NOMEM)) => {
                    self.held_up.store(true, Ordering::SeqCst);
                }
                Err(error) => panic!("io_uring_enter on {}: {error:?}", self.host_file.limits.name),
            }
        }
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
        self.reap();
    }

    fn interrupt(&self) {
        self.interrupted.store(true, Ordering::SeqCst);
        if self.sleepers.load(Ordering::SeqCst) > 0 && self.interrupted.swap(false, Ordering::SeqCst) {
            let slots = self.slots.lock();
            self.push(&opcode::Nop::new().build().user_data(WAKE));
            drop(slots);
            self.enter();
        }
    }

    fn enter_deferred(&self) {
        if self.queued.load(Ordering::SeqCst) > 0 {
            self.enter();
        }
    }

    fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::SeqCst)
    }

    fn is_held_up(&self) -> bool {
        self.held_up.load(Ordering::SeqCst)
    }

    fn poll_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the ring owns its descriptor and lives as long as the borrow of `self`.
        unsafe { BorrowedFd::borrow_raw(self.uring.as_raw_fd()) }
    }
}

impl fmt::Debug for Ring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ring({} in flight)", self.in_flight.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Bio, Buf, FileOptions, Sector};
    use std::path::Path;

    fn write(at: u64, bytes: usize, flags: BioFlags) -> Transfer {
        let mut bio = Bio::new(Op::Write, Sector(at), vec![Buf::zeroed(bytes).into()]);
        bio.flags = flags;
        Transfer::new(bio, at * Sector::BYTES)
    }

    /// Starts what may be started; returns the sectors, in order.
    fn start_all(slots: &mut Slots) -> Vec<u64> {
        let mut started = Vec::new();
        while let Some(transfer) = slots.next() {
            slots.note_started(&transfer);
            started.push(transfer.bio.start.0);
        }
        started
    }

    #[test]
    fn the_ring_opens_nothing() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(4096).unwrap();
        let options = FileOptions { write: true, direct: false };
        let host_file = HostFile::new(file.into(), Path::new("image"), options).unwrap();
        // A seccomp profile may forbid rings altogether.
        let Ok(ring) = Ring::new(Arc::new(host_file)) else { return };
        let nowhere = types::Fd(rustix::fs::CWD.as_raw_fd());
        let open = opcode::OpenAt::new(nowhere, c"/dev/null".as_ptr()).build();
        // SAFETY: only this test uses the ring, and the path lives for ever.
        unsafe { ring.uring.submission_shared().push(&open) }.unwrap();
        ring.uring.submit_and_wait(1).unwrap();
        // SAFETY: as above.
        let ended = unsafe { ring.uring.completion_shared() }.next().unwrap();
        assert_eq!(ended.result(), -Errno::ACCESS.raw_os_error());
    }

    #[test]
    fn background_writes_go_behind_syncs_but_for_a_few() {
        let mut slots = Slots::default();
        slots.background.extend((0..40).map(|n| write(n, 4096, BioFlags::empty())));
        slots.backlog.extend((100..200).map(|n| write(n, 4096, BioFlags::SYNC)));
        let started = start_all(&mut slots);
        assert_eq!(started.len(), STARTED_MAX);
        let expected: Vec<u64> = (0..16).chain(100..200).chain(16..28).collect();
        assert_eq!(started, expected);
        slots.note_ended(&write(100, 4096, BioFlags::SYNC));
        assert_eq!(start_all(&mut slots), [28]);
    }

    #[test]
    fn background_writes_are_bounded_by_their_bytes() {
        let mut slots = Slots::default();
        slots.background.extend((0..40).map(|n| write(n, 1 << 20, BioFlags::empty())));
        assert_eq!(start_all(&mut slots), (0..16).collect::<Vec<_>>());
        slots.backlog.push_back(write(100, 1 << 20, BioFlags::SYNC));
        assert_eq!(start_all(&mut slots), [100], "a sync does not wait for them");
        slots.note_ended(&write(0, 1 << 20, BioFlags::empty()));
        assert_eq!(start_all(&mut slots), [16]);
    }
}
