//! Devices that delay writes and fail flushes: what a sync must report and what it must not.

use super::bed::*;
use super::offline;
use crate::file::{FileOptions, OpenFile};
use crate::journal::Credits;
use crate::names::Caller;
use crate::recovery::Log;
use crate::{Error, OpenOptions, Result, Volume, WriteOptions, recover};
use extant_block::{Bio, BioFlags, Device, IoError, IoErrorKind, Limits, Op, Sector};
use extant_format::InodeNumber;
use extant_rt::{Class, Nanos, Rt};
use extant_sim::{Machine, Preemption, Sim};
use parking_lot::Mutex;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;

/// A device with a volatile cache.
#[derive(Debug)]
struct Gate {
    inner: Arc<dyn Device>,
    limits: Limits,
    state: Mutex<GateState>,
}

#[derive(Debug, Default)]
struct GateState {
    /// All bios except reads, as submitted.
    seen: Vec<(Op, BioFlags, Sector)>,
    holds_durable: bool,
    holds_discards: bool,
    held: Vec<Bio>,
    /// Writes to these sectors fail, and so do the next `failing_flushes` flushes.
    bad: Option<std::ops::Range<u64>>,
    failing_flushes: u32,
}

impl Gate {
    fn new(inner: Arc<dyn Device>) -> Arc<Self> {
        let limits = Limits { volatile_cache: true, ..inner.limits().clone() };
        Arc::new(Self { inner, limits, state: Mutex::default() })
    }

    fn hold_durable(&self) {
        self.state.lock().holds_durable = true;
    }

    fn has_held(&self) -> bool {
        !self.state.lock().held.is_empty()
    }

    fn let_go(&self) {
        let held = {
            let mut state = self.state.lock();
            (state.holds_durable, state.holds_discards) = (false, false);
            std::mem::take(&mut state.held)
        };
        held.into_iter().for_each(|bio| self.inner.submit(bio));
    }

    fn fail_flushes(&self, count: u32) {
        self.state.lock().failing_flushes = count;
    }

    fn position(&self) -> usize {
        self.state.lock().seen.len()
    }

    /// Fails the held bios and holds no more.
    fn fail_held(&self) {
        let held = {
            let mut state = self.state.lock();
            state.holds_durable = false;
            std::mem::take(&mut state.held)
        };
        held.into_iter().for_each(|bio| bio.end_as("gate", Err(IoErrorKind::Os(5))));
    }

    /// Whether a flush was submitted since `position`.
    fn has_flushed_since(&self, position: usize) -> bool {
        let flushes =
            |(op, flags, _): &(Op, BioFlags, Sector)| *op == Op::Flush || flags.contains(BioFlags::PREFLUSH);
        self.state.lock().seen[position..].iter().any(flushes)
    }
}

impl Device for Gate {
    fn limits(&self) -> &Limits {
        &self.limits
    }
    fn submit(&self, bio: Bio) {
        let mut state = self.state.lock();
        if bio.op != Op::Read {
            state.seen.push((bio.op, bio.flags, bio.start));
        }
        let is_bad = state.bad.as_ref().is_some_and(|bad| bio.op == Op::Write && bad.contains(&bio.start.0));
        let flushes = bio.op == Op::Flush || bio.flags.contains(BioFlags::PREFLUSH);
        if is_bad || (flushes && state.failing_flushes > 0) {
            state.failing_flushes -= u32::from(!is_bad);
            drop(state);
            return bio.end_as("gate", Err(IoErrorKind::Os(5)));
        }
        let is_durable = bio.flags.contains(BioFlags::FUA);
        if state.holds_durable && is_durable || state.holds_discards && bio.op == Op::Discard {
            state.held.push(bio);
            return;
        }
        drop(state);
        self.inner.submit(bio);
    }
}

fn failure() -> Error {
    let device = "gate".into();
    IoError { device, op: Op::Write, start: Sector(0), bytes: 0, kind: IoErrorKind::Os(5) }.into()
}

fn bed(mke2fs: &str) -> (Bed, Arc<Gate>) {
    let image = image(mke2fs, 16);
    let rt = rt();
    let gate = Gate::new(memory(&rt, &image));
    (Bed::over(&rt, image, gate.clone(), offline()), gate)
}

fn open(bed: &Bed, name: &str) -> OpenFile {
    let (volume, rt) = (&bed.volume, &bed.rt);
    let found = async {
        let root = volume.root_node().await?;
        let node = root.lookup(&Caller::root(), name.as_bytes()).await?;
        node.open(&Caller::root(), FileOptions::default())
    };
    rt.block_on(found).unwrap().unwrap()
}

fn overwrite(rt: &Rt, file: &OpenFile, byte: u8) {
    rt.block_on(file.write(0, &[byte; 1024])).unwrap().unwrap();
}

/// Lets other tasks run until `is_so` returns true.
fn until(rt: &Rt, is_so: impl Fn() -> bool) {
    while !is_so() {
        let mut left = 1;
        let step = poll_fn(|cx| {
            cx.waker().wake_by_ref();
            left -= 1;
            if left < 0 { Poll::Ready(()) } else { Poll::Pending }
        });
        rt.block_on(step).unwrap();
    }
}

#[test]
fn a_sync_flushes_what_was_written_behind_the_flush_of_the_commit_that_it_joins() {
    let (mut bed, gate) = bed("-t ext4 -b 1024");
    let file = open(&bed, "file000");
    overwrite(&bed.rt, &file, b'0');
    bed.sync();
    bed.op();
    gate.hold_durable();
    let volume = bed.volume.clone();
    let first = bed.rt.spawn("first", Class::Normal, async move { volume.sync().await });
    until(&bed.rt, || gate.has_held());
    // The commit's preflush may have run, but its block has not been written.
    overwrite(&bed.rt, &file, b'1');
    let position = gate.position();
    let volume = bed.volume.clone();
    let second = bed.rt.spawn("second", Class::Normal, async move { volume.sync().await });
    until(&bed.rt, || gate.position() > position);
    gate.let_go();
    bed.rt.block_on(first).unwrap().unwrap().unwrap();
    bed.rt.block_on(second).unwrap().unwrap().unwrap();
    assert!(gate.has_flushed_since(position), "the second sync's data were not flushed");
}

#[test]
fn a_datasync_is_not_overtaken_by_the_failure_of_a_commits_flush() {
    let (mut bed, gate) = bed("-t ext4 -b 1024");
    let file = open(&bed, "file000");
    overwrite(&bed.rt, &file, b'0');
    bed.sync();
    overwrite(&bed.rt, &file, b'1');
    bed.rt.block_on(bed.volume.namespace().unwrap().files.write_back()).unwrap().unwrap();
    bed.op();
    gate.hold_durable();
    let journal = bed.journal().clone();
    let commit =
        bed.rt.spawn("commit", Class::Normal, async move { journal.commit(journal.running()).await });
    until(&bed.rt, || gate.has_held());
    let datasync = bed.rt.spawn("datasync", Class::Normal, async move { file.datasync().await });
    let turns = std::cell::Cell::new(0);
    until(&bed.rt, || turns.replace(turns.get() + 1) > 1_000);
    // The commit's flush lost the data, and the device reports that.
    gate.fail_held();
    assert!(bed.rt.block_on(commit).unwrap().unwrap().is_err());
    assert!(bed.rt.block_on(datasync).unwrap().unwrap().is_err(), "its data may be lost");
}

/// An inode may leave memory once it is encoded. Loaded again, it does not tell who changed it.
#[test]
fn a_change_of_the_commit_under_way_is_waited_for_whether_it_is_known_or_not() {
    let (mut bed, gate) = bed("-t ext4 -b 1024");
    bed.op();
    gate.hold_durable();
    let journal = bed.journal().clone();
    let running = journal.running();
    let commit = bed.rt.spawn("commit", Class::Normal, async move { journal.commit(running).await });
    until(&bed.rt, || gate.has_held());
    let journal = bed.journal().clone();
    for known in [None, Some(running)] {
        let mut sync = pin!(journal.commit_change(known));
        let is_pending = poll_fn(|cx| Poll::Ready(sync.as_mut().poll(cx).is_pending()));
        assert!(bed.rt.block_on(is_pending).unwrap(), "{known:?}");
    }
    gate.let_go();
    bed.rt.block_on(commit).unwrap().unwrap().unwrap();
    bed.op();
    let position = gate.position();
    for known in [None, Some(running)] {
        bed.rt.block_on(journal.commit_change(known)).unwrap().unwrap();
    }
    assert_eq!(gate.position(), position, "it is durable, and the next transaction is not waited for");
}

#[test]
fn a_failed_flush_is_told_to_every_sync_and_ends_writing() {
    let (bed, gate) = bed("-t ext4 -b 1024");
    let files = ["file000", "file001"].map(|name| open(&bed, name));
    for file in &files {
        overwrite(&bed.rt, file, b'1');
        bed.rt.block_on(file.datasync()).unwrap().unwrap();
        overwrite(&bed.rt, file, b'2');
    }
    let written = bed.volume.namespace().unwrap().files.write_back();
    bed.rt.block_on(written).unwrap().unwrap();
    gate.fail_flushes(1);
    for file in &files {
        let told: Result<()> = bed.rt.block_on(file.datasync()).unwrap();
        assert!(matches!(told, Err(Error::Io(_))), "{told:?}");
    }
    let told = bed.rt.block_on(bed.volume.sync()).unwrap();
    assert!(matches!(told, Err(Error::Io(_))), "{told:?}");
}

#[test]
fn a_file_that_cannot_be_written_does_not_keep_a_sync_from_committing() {
    let (mut bed, gate) = bed("-t ext4 -b 1024");
    let file = open(&bed, "file000");
    overwrite(&bed.rt, &file, b'1');
    let at = super::victim(&bed).0 * 2;
    gate.state.lock().bad = Some(at - 4..at + 2);
    bed.ops(5);
    assert!(bed.rt.block_on(bed.volume.sync()).unwrap().is_err());
    let (rt, crashed) = (rt(), bed.crash());
    let seen = rt.block_on(Volume::open(memory(&rt, &crashed), OpenOptions::default())).unwrap().unwrap();
    let stamped = rt.block_on(seen.inode(InodeNumber(FIRST + 1))).unwrap().unwrap();
    assert_eq!(stamped.raw.i_mtime.get(), EPOCH + 1);
}

#[test]
fn nothing_is_written_through_what_outlives_close() {
    let (mut bed, gate) = bed("-t ext4 -b 1024");
    bed.ops(5);
    bed.rt.block_on(bed.volume.clone().close()).unwrap().unwrap();
    let position = gate.position();
    let refused = bed.rt.block_on(bed.journal().start(Credits(1))).unwrap().err().unwrap();
    assert!(matches!(refused, Error::ReadOnly), "{refused}");
    assert!(bed.rt.block_on(bed.journal().checkpoint()).unwrap().is_err());
    assert!(bed.rt.block_on(bed.volume.sync()).unwrap().is_err());
    assert_eq!(gate.position(), position);
    assert_clean(&bed.crash(), "after close");
}

#[test]
fn operations_go_on_though_the_sync_that_closed_the_transaction_is_dropped() {
    let (mut bed, _) = bed("-t ext4 -b 1024");
    bed.op();
    let handle = bed.rt.block_on(bed.journal().start(Credits(1))).unwrap().unwrap();
    let journal = bed.journal();
    {
        let mut commit = Box::pin(journal.commit(journal.running()));
        let poll = poll_fn(|cx| Poll::Ready(commit.as_mut().poll(cx).is_ready()));
        assert!(!bed.rt.block_on(poll).unwrap(), "it waits for the handle");
    }
    drop(handle);
    bed.op();
    bed.sync();
    assert_eq!(prefix(&bed.crash()), 2);
}

#[test]
fn a_commit_that_waits_for_handles_writes_nothing_after_a_failure() {
    let (mut bed, gate) = bed("-t ext4 -b 1024");
    bed.op();
    let journal = bed.journal();
    let handle = bed.rt.block_on(journal.start(Credits(1))).unwrap().unwrap();
    let mut commit = Box::pin(journal.commit(journal.running()));
    let poll = poll_fn(|cx| Poll::Ready(commit.as_mut().poll(cx).is_ready()));
    assert!(!bed.rt.block_on(poll).unwrap(), "it waits for the handle");
    journal.abandon();
    drop(handle);
    let position = gate.position();
    assert!(bed.rt.block_on(commit).unwrap().is_err());
    assert_eq!(gate.position(), position);
}

#[test]
fn a_copy_of_a_block_of_the_log_is_refused() {
    let (bed, _) = bed("-t ext4 -b 1024");
    let log = bed.rt.block_on(Log::open(bed.volume.view())).unwrap().unwrap().expect("a journal");
    super::commit_block(&bed, log.map.home(500).unwrap(), Some(b'x'));
    bed.sync();
    let (rt, crashed) = (rt(), bed.crash());
    let recovered = rt.block_on(recover(&rt, memory(&rt, &crashed), OpenOptions::default())).unwrap();
    assert!(matches!(recovered, Err(Error::Corrupt(_))), "{recovered:?}");
}

#[test]
fn the_record_of_a_failure_is_not_overwritten_by_a_tail_in_flight() {
    let (mut bed, gate) = bed("-t ext4 -b 1024");
    bed.op();
    bed.sync();
    gate.hold_durable();
    let journal = bed.journal().clone();
    let checkpoint = bed.rt.spawn("checkpoint", Class::Normal, async move { journal.checkpoint().await });
    until(&bed.rt, || gate.has_held());
    // Let the next durable write overtake the tail.
    gate.state.lock().holds_durable = false;
    bed.journal().latch(failure());
    bed.rt.block_on(bed.journal().record_failure()).unwrap();
    gate.let_go();
    drop(bed.rt.block_on(checkpoint).unwrap());
    let (rt, crashed) = (rt(), bed.crash());
    let seen = rt.block_on(Volume::open(memory(&rt, &crashed), OpenOptions::default())).unwrap().unwrap();
    let log = rt.block_on(Log::open(seen.view())).unwrap().unwrap().expect("a journal");
    assert_eq!(log.sb.errno(), 5, "e2fsck -p checks the volume for that");
}

#[test]
fn a_commit_that_is_kept_unpolled_keeps_no_other_waiting() {
    let image = image("-t ext4 -b 1024", 16);
    let sim = Sim::new(Machine::free(1, Preemption::None), 1);
    let rt = sim.rt();
    let gate = Gate::new(memory(rt, &image));
    let mut bed = Bed::over(rt, image, gate.clone(), offline());
    bed.op();
    let journal = bed.journal().clone();
    let first = journal.running();
    gate.hold_durable();
    let commit = |name, tid| {
        let journal = journal.clone();
        rt.spawn(name, Class::Normal, async move { journal.commit(tid).await })
    };
    let driver = commit("first", first);
    until(rt, || gate.has_held());
    // Two syncs of the next transaction wait behind the commit; the later one would begin the next
    // commit.
    let mut handle = rt.block_on(journal.start(Credits(1))).unwrap().unwrap();
    handle.superblock();
    drop(handle);
    let second = journal.running();
    assert!(second > first);
    let waiter = commit("second", second);
    rt.block_on(rt.yield_now()).unwrap();
    let mut kept = Box::pin(journal.commit(second));
    let poll = poll_fn(|cx| Poll::Ready(kept.as_mut().poll(cx).is_pending()));
    assert!(rt.block_on(poll).unwrap());
    // Drives the end of the first commit.
    let last = commit("last", first);
    rt.block_on(rt.yield_now()).unwrap();
    gate.let_go();
    rt.block_on(driver).unwrap().unwrap().unwrap();
    rt.block_on(last).unwrap().unwrap().unwrap();
    rt.block_on(waiter).expect("no deadlock").unwrap().unwrap();
    rt.block_on(kept).unwrap().unwrap();
}

/// Polls the close of a volume whose runtime has shut down, as far as it gets without other tasks;
/// nothing else runs meanwhile.
fn closed(rt: &Rt, close: Pin<&mut (impl Future<Output = Result<()>> + Send)>) -> Option<Result<()>> {
    let (mut close, mut polls) = (close, 0);
    let step = poll_fn(|cx| {
        polls += 1;
        match close.as_mut().poll(cx) {
            Poll::Ready(closed) => Poll::Ready(Some(closed)),
            Poll::Pending if polls > 1_000 => Poll::Ready(None),
            Poll::Pending => {
                cx.waker().wake_by_ref();
                Poll::Pending
            }
        }
    });
    rt.block_on(step).unwrap()
}

fn discarding_bed() -> (Bed, Arc<Gate>) {
    let image = image("-t ext4 -b 1024", 16);
    let rt = rt();
    let gate = Gate::new(memory(&rt, &image));
    (Bed::over(&rt, image, gate.clone(), WriteOptions { discard: true, ..offline() }), gate)
}

fn unlink(bed: &Bed, name: &str) {
    let removed = async { bed.volume.root_node().await?.unlink(&Caller::root(), name.as_bytes()).await };
    bed.rt.block_on(removed).unwrap().unwrap();
}

#[test]
fn a_volume_that_discards_is_closed_after_the_end_of_the_world() {
    let (bed, gate) = discarding_bed();
    unlink(&bed, "file000");
    let _ = bed.rt.shutdown(Nanos::ZERO);
    let closed = closed(&bed.rt, pin!(bed.volume.clone().close()));
    assert!(matches!(closed, Some(Ok(()))), "{closed:?}");
    assert!(
        gate.state.lock().seen.iter().all(|(op, ..)| *op != Op::Discard),
        "there was no task to wait for it"
    );
    assert_clean(&bed.crash(), "after close");
}

#[test]
fn blocks_whose_discard_outlives_the_world_are_nobodys_before_it_ends() {
    let (bed, gate) = discarding_bed();
    gate.state.lock().holds_discards = true;
    unlink(&bed, "file000");
    bed.sync();
    until(&bed.rt, || gate.has_held());
    let pending = bed.volume.writer().unwrap().alloc.pending();
    assert!(pending > 0);
    let _ = bed.rt.shutdown(Nanos::ZERO);
    assert_eq!(
        bed.volume.writer().unwrap().alloc.pending(),
        pending,
        "the discard would hit their next owner"
    );
    let mut close = pin!(bed.volume.clone().close());
    assert!(closed(&bed.rt, close.as_mut()).is_none(), "the device is in use");
    gate.let_go();
    let closed = closed(&bed.rt, close);
    assert!(matches!(closed, Some(Ok(()))), "{closed:?}");
    assert_clean(&bed.crash(), "after close");
}
