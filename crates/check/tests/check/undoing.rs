//! Undo files are applied only to their own volume, and only if nothing else changed it.

use crate::repairs::{NOW, applied, carry_out, planned, rt, undone, wreck};
use crate::testbed::{change, number, volume};
use extant_block::{Bio, Device, IoErrorKind, Limits, MemDevice, Op, Sector, flush, read, write};
use extant_check::Options;
use extant_check::repair::{Guard, Plan, Policy, Resumed, Target, UndoError, UndoFile, plan};
use extant_format::{Mmp, MmpState, Superblock, VolumeBlock};
use std::fs;
use std::sync::{Arc, Mutex, OnceLock};

const HERE: Target = Target { offset_bytes: 0, counter_at: None };

/// Offset of the volume's UUID.
const UUID: usize = 1024 + 0x68;

/// Returns a volume before its repair, the plan, and the volume afterwards with the undo file.
fn repaired() -> Option<(Vec<u8>, Plan, Vec<u8>, MemDevice)> {
    static PLANNED: OnceLock<(Vec<u8>, Plan)> = OnceLock::new();
    if !extant_testbed::have(&["mke2fs", "debugfs"]) {
        return None;
    }
    let (before, plan) = PLANNED.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        let before = wreck(folder.path());
        let plan = planned(&before, Policy::All).unwrap();
        (before, plan)
    });
    let (after, undo) = applied(before, plan);
    Some((before.clone(), plan.clone(), after, undo))
}

/// An undo file in the state that it has while the volume is being written.
fn open_file(before: &[u8], plan: &Plan) -> MemDevice {
    let undo = MemDevice::new(usize::try_from(plan.undo_bytes()).unwrap());
    let volume = MemDevice::from_bytes(before.to_vec());
    rt().block_on(plan.prepare(&volume, HERE, &undo)).unwrap().unwrap();
    undo
}

#[test]
fn another_volume_is_never_rolled_back() {
    let Some((before, plan, after, undo)) = repaired() else { return };
    let refused = |bytes: &[u8], target: Target, undo: &MemDevice| {
        let device = MemDevice::from_bytes(bytes.to_vec());
        let error = undone(&device, undo, target).unwrap_err();
        assert!(device.to_bytes() == bytes);
        assert!(matches!(error, UndoError::Foreign(_)), "{error}");
        error.to_string()
    };
    let mut other = after.clone();
    other[UUID] ^= 1;
    let elsewhere = Target { offset_bytes: 1 << 20, ..HERE };
    let longer = [&after[..], &[0; 4096]].concat();
    // Undoing an interrupted repair is as strict.
    for undo in [&undo, &open_file(&before, &plan)] {
        assert!(refused(&other, HERE, undo).contains("UUID"));
        assert!(refused(&after, elsewhere, undo).contains("byte 1048576"));
        assert!(refused(&longer, HERE, undo).contains("bytes"));
    }
}

#[test]
fn what_was_changed_meanwhile_is_not_rolled_back() {
    let Some((before, plan, after, undo)) = repaired() else { return };
    let changed = |bytes: &[u8], undo: &MemDevice| {
        let device = MemDevice::from_bytes(bytes.to_vec());
        let error = undone(&device, undo, HERE).unwrap_err();
        assert!(device.to_bytes() == bytes);
        assert!(matches!(error, UndoError::Changed(1)), "{error}");
    };
    // Change the mount count, as every mount does.
    let mounted = |bytes: &[u8]| {
        let mut bytes = bytes.to_vec();
        bytes[1024 + 0x34] ^= 1;
        bytes
    };
    changed(&mounted(&after), &undo);
    let open = open_file(&before, &plan);
    changed(&mounted(&before), &open);
    changed(&mounted(&after), &open);
    // A block cut between two sectors is recognized as an interrupted repair.
    let (at, _) = before.iter().zip(&after).enumerate().find(|(_, (old, new))| old != new).unwrap();
    let sector = at / 512 * 512;
    let mut torn = before.clone();
    torn[sector..sector + 512].copy_from_slice(&after[sector..sector + 512]);
    let device = MemDevice::from_bytes(torn);
    assert!(undone(&device, &open, HERE).unwrap());
    assert!(device.to_bytes() == before);
}

#[test]
fn a_repair_that_was_undone_is_undone_by_the_volumes_state() {
    let Some((before, plan, after, undo)) = repaired() else { return };
    let device = MemDevice::from_bytes(after.clone());
    assert!(undone(&device, &undo, HERE).unwrap());
    assert!(!undone(&device, &undo, HERE).unwrap());
    assert!(device.to_bytes() == before);
    // The same repair was applied again.
    let device = MemDevice::from_bytes(after.clone());
    assert!(undone(&device, &undo, HERE).unwrap());
    assert!(device.to_bytes() == before);
    // Half of the repair is applied, which an interruption cannot cause with this undo file.
    let half: Vec<u8> = [&after[..8192], &before[8192..]].concat();
    assert!(half != before && half != after);
    let device = MemDevice::from_bytes(half.clone());
    assert!(matches!(undone(&device, &undo, HERE), Err(UndoError::Changed(_))));
    assert!(device.to_bytes() == half);
    // All of the repair is applied, but the undo file does not say so.
    let (device, open) = (MemDevice::from_bytes(after.clone()), open_file(&before, &plan));
    let resumed =
        async { UndoFile::read(&open).await?.resume(&device, &open, HERE, &Guard::unshared(rt())).await };
    assert_eq!(rt().block_on(resumed).unwrap().unwrap(), Resumed::Finished);
    assert!(device.to_bytes() == after);
    assert!(undone(&device, &open, HERE).unwrap());
}

/// A device on which some operations fail.
#[derive(Debug)]
struct Refusing {
    inner: MemDevice,
    limits: Limits,
    op: Op,
}

impl Refusing {
    fn new(bytes: Vec<u8>, op: Op) -> Self {
        let inner = MemDevice::from_bytes(bytes);
        Self { limits: inner.limits().clone(), inner, op }
    }
}

impl Device for Refusing {
    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn submit(&self, bio: Bio) {
        match self.limits.admit(&bio) {
            Ok(_) if bio.op == self.op => bio.end_as("full", Err(IoErrorKind::Os(28))),
            Ok(_) => self.inner.submit(bio),
            Err(kind) => bio.end_as("limited", Err(kind)),
        }
    }
}

#[test]
fn without_an_undo_file_nothing_is_written() {
    let Some((before, plan, _, _)) = repaired() else { return };
    let device = MemDevice::from_bytes(before.clone());
    for op in [Op::Write, Op::Flush] {
        let full = Refusing::new(vec![0; usize::try_from(plan.undo_bytes()).unwrap()], op);
        let error = rt().block_on(plan.prepare(&device, HERE, &full)).unwrap().unwrap_err();
        assert!(matches!(error, UndoError::NotKept(_)), "{error}");
    }
    let short = MemDevice::new(4096);
    let error = rt().block_on(plan.prepare(&device, HERE, &short)).unwrap().unwrap_err();
    assert!(matches!(error, UndoError::TooSmall { .. }), "{error}");
    assert!(device.to_bytes() == before);
    // A plan is also refused if the volume has changed since.
    let mut raced = before;
    raced[1024 + 0x34] ^= 1;
    let device = MemDevice::from_bytes(raced);
    let undo = MemDevice::new(usize::try_from(plan.undo_bytes()).unwrap());
    let error = rt().block_on(plan.prepare(&device, HERE, &undo)).unwrap().unwrap_err();
    assert!(matches!(error, UndoError::Raced(1)), "{error}");
}

#[test]
fn a_device_of_large_blocks_and_one_that_cannot_be_written_are_planned_for() {
    let Some((before, plan_of_file, after, _)) = repaired() else { return };
    for read_only in [true, false] {
        let mut device = Refusing::new(before.clone(), Op::Discard);
        (device.limits.read_only, device.limits.block_bytes) = (read_only, 4096);
        let device = Arc::new(device);
        let options = Options { now: Some(NOW), ..Options::default() };
        let planned = rt().block_on(plan(rt(), device.clone(), options, Policy::All)).unwrap().unwrap();
        assert!(planned.is_complete());
        assert_eq!(planned.steps, plan_of_file.steps);
        if read_only {
            continue;
        }
        let undo = MemDevice::new(usize::try_from(planned.undo_bytes()).unwrap());
        let mut file = rt().block_on(planned.prepare(&*device, HERE, &undo)).unwrap().unwrap();
        rt().block_on(planned.apply(&*device, &mut file, &undo, &Guard::unshared(rt()))).unwrap().unwrap();
        assert!(device.inner.to_bytes() == after);
        assert!(undone(&*device, &undo, HERE).unwrap());
        assert!(device.inner.to_bytes() == before);
    }
}

#[test]
fn a_protected_volume_is_taken_and_given_back() {
    if !extant_testbed::have(&["mke2fs", "debugfs"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = volume(folder.path(), "mmp", 6 << 10, &["-t", "ext4", "-b", "1024", "-O", "mmp"]);
    // debugfs would wait for the counter before writing.
    let mut bytes = fs::read(&image).unwrap();
    change(&mut bytes, number(&image, "/file"), |inode| inode.raw.i_links_count = 5.into());
    let sb = Superblock::parse(&bytes[1024..]).unwrap();
    let at = sb.raw().s_mmp_block.get();
    let start = Sector(at * 2);
    let device: Arc<dyn Device> = Arc::new(MemDevice::from_bytes(bytes));
    let found = async || {
        let block = read(&*device, start, 1024).await.unwrap();
        (Mmp::parse(&block, VolumeBlock(at)).unwrap(), block)
    };
    let set = async |state: MmpState| {
        let (mmp, mut block) = found().await;
        mmp.with_state(state, 1).write_to(&mut block, sb.checksum_seed());
        write(&*device, start, block).await.unwrap();
        flush(&*device).await.unwrap();
    };
    rt().block_on(async {
        set(MmpState::Checking).await;
        for writes in [true, false] {
            let refused = Guard::take(rt(), &device, writes).await.unwrap_err();
            assert!(matches!(refused, extant_fs::Error::InUse { .. }), "{refused}");
        }
        set(MmpState::Clean).await;
        drop(Guard::take(rt(), &device, false).await.unwrap());
        assert_eq!(found().await.0.state(), MmpState::Clean, "a look writes nothing");

        let guard = Guard::take(rt(), &device, true).await.unwrap();
        assert!(matches!(found().await.0.state(), MmpState::Mounted(_)));
        let target = Target { offset_bytes: 0, counter_at: guard.counter_at() };
        let options = Options { now: Some(NOW), ..Options::default() };
        let plan = plan(rt(), device.clone(), options, Policy::Safe).await.unwrap();
        assert!(plan.is_complete());
        let undo = MemDevice::new(usize::try_from(plan.undo_bytes()).unwrap());
        let mut file = plan.prepare(&*device, target, &undo).await.unwrap();
        plan.apply(&*device, &mut file, &undo, &guard).await.unwrap();
        assert!(matches!(found().await.0.state(), MmpState::Mounted(_)), "no part of the repair");
        guard.check().unwrap();
        guard.release().await.unwrap();
        assert_eq!(found().await.0.state(), MmpState::Clean);
        // While the repair is undone, another guard updates the counter.
        let guard = Guard::take(rt(), &device, true).await.unwrap();
        assert!(file.undo(&*device, &undo, target, &guard).await.unwrap());
        guard.release().await.unwrap();
    })
    .unwrap();
}

/// A device that records where it was written.
#[derive(Debug)]
struct Noting {
    inner: MemDevice,
    written: Mutex<Vec<u64>>,
}

impl Device for Noting {
    fn limits(&self) -> &Limits {
        self.inner.limits()
    }

    fn submit(&self, bio: Bio) {
        if bio.op == Op::Write {
            self.written.lock().unwrap().push(bio.start.0 / 2);
        }
        self.inner.submit(bio);
    }
}

#[test]
fn other_hosts_are_let_in_last() {
    if !extant_testbed::have(&["mke2fs", "debugfs"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = volume(folder.path(), "mmp", 6 << 10, &["-t", "ext4", "-b", "1024", "-O", "mmp"]);
    let mut bytes = fs::read(&image).unwrap();
    change(&mut bytes, number(&image, "/file"), |inode| inode.raw.i_links_count = 5.into());
    let mmp = Superblock::parse(&bytes[1024..]).unwrap().raw().s_mmp_block.get();
    bytes[usize::try_from(mmp).unwrap() * 1024] ^= 1;
    let plan = planned(&bytes, Policy::All).unwrap();
    let device = Noting { inner: MemDevice::from_bytes(bytes), written: Mutex::default() };
    let undo = MemDevice::new(usize::try_from(plan.undo_bytes()).unwrap());
    rt().block_on(carry_out(&plan, &device, &undo)).unwrap().unwrap();
    let written = device.written.into_inner().unwrap();
    let last = written.iter().position(|&block| block == 1 || block == mmp).unwrap();
    assert!(last > 0 && written.contains(&mmp), "{written:?}");
    assert!(written[last..].iter().all(|&block| block == 1 || block == mmp), "{written:?}");
}
