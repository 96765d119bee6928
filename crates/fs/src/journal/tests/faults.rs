//! Devices that hold writes back and fail flushes: what a sync says, and what it may not say.

use super::bed::*;
use super::offline;
use crate::file::{FileOptions, OpenFile};
use crate::names::Caller;
use crate::{Error, Result};
use extant_block::{Bio, BioFlags, Device, IoErrorKind, Limits, Op, Sector};
use extant_rt::{Class, Rt};
use parking_lot::Mutex;
use std::future::poll_fn;
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
    /// Everything but reads, as it was submitted.
    seen: Vec<(Op, BioFlags, Sector)>,
    holds_durable: bool,
    held: Vec<Bio>,
    /// Operations on these sectors fail, and as many flushes.
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
            state.holds_durable = false;
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

    /// Whether a flush was submitted since.
    fn has_flushed_since(&self, position: usize) -> bool {
        let flushes = |(op, flags, _): &(Op, BioFlags, Sector)| {
            *op == Op::Flush || flags.contains(BioFlags::PREFLUSH)
        };
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
        if is_bad || (bio.op == Op::Flush && state.failing_flushes > 0) {
            state.failing_flushes -= u32::from(!is_bad);
            drop(state);
            return bio.end_as("gate", Err(IoErrorKind::Os(5)));
        }
        if state.holds_durable && bio.flags.contains(BioFlags::FUA) {
            state.held.push(bio);
            return;
        }
        drop(state);
        self.inner.submit(bio);
    }
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

/// Lets other tasks run until `is_so`.
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
    // The commit's flush may have been executed; its block has not been written.
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
fn a_failed_flush_is_told_to_every_sync_and_ends_writing() {
    let (bed, gate) = bed("-t ext4 -b 1024");
    let files = ["file000", "file001"].map(|name| open(&bed, name));
    for file in &files {
        overwrite(&bed.rt, file, b'1');
        bed.rt.block_on(file.datasync()).unwrap().unwrap();
        overwrite(&bed.rt, file, b'2');
    }
    let written = bed.volume.writer().unwrap().files.write_back();
    bed.rt.block_on(written).unwrap().unwrap();
    gate.fail_flushes(1);
    for file in &files {
        let told: Result<()> = bed.rt.block_on(file.datasync()).unwrap();
        assert!(matches!(told, Err(Error::Io(_))), "{told:?}");
    }
    let told = bed.rt.block_on(bed.volume.sync()).unwrap();
    assert!(matches!(told, Err(Error::Io(_))), "{told:?}");
}
