//! Freed space on a full volume.

use super::*;
use crate::alloc::Privilege;
use extant_block::{Bio, BioFlags, Limits, MemDevice, Op};
use extant_rt::{Class, Nanos};
use extant_sim::{Machine, Preemption, Sim};
use std::future::Future;
use std::ops::Range;
use std::pin::pin;
use std::sync::OnceLock;
use std::task::{Context, Waker};

/// A device on which, from some time on, metadata writes outside the log take minutes.
#[derive(Debug)]
struct SlowHome {
    inner: Arc<MemDevice>,
    rt: Rt,
    /// The sectors of the log.
    log: OnceLock<Vec<Range<u64>>>,
}

impl Device for SlowHome {
    fn limits(&self) -> &Limits {
        self.inner.limits()
    }

    fn submit(&self, bio: Bio) {
        let is_log = self.log.get().is_none_or(|log| log.iter().any(|run| run.contains(&bio.start.0)));
        if is_log || bio.op != Op::Write || !bio.flags.contains(BioFlags::META) {
            return self.inner.submit(bio);
        }
        let (inner, rt) = (self.inner.clone(), self.rt.clone());
        drop(self.rt.spawn("slow write", Class::Normal, async move {
            rt.sleep(Nanos::from_secs(100)).await;
            inner.submit(bio);
        }));
    }
}

#[test]
fn blocks_freed_during_a_checkpoint_are_waited_for() {
    if !have_tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = make(dir.path(), "-t ext4 -b 4096 32M");
    let sim = Sim::new(Machine::free(1, Preemption::None), 1);
    let rt = sim.rt();
    let disk = Arc::new(MemDevice::from_bytes(std::fs::read(&image).unwrap()));
    let slow = Arc::new(SlowHome { inner: disk.clone(), rt: rt.clone(), log: OnceLock::new() });
    let caller = Caller::root();
    let work = async {
        let bed = Bed::open(rt, slow.clone()).await;
        let writer = bed.writer();
        let root = bed.volume.root_node().await.unwrap();
        let big = root.create(&caller, b"big", 0o644).await.unwrap();
        let file = big.open(&caller, Default::default()).unwrap();
        file.write(0, &vec![1; 4 << 20]).await.unwrap();
        drop(file);
        bed.volume.sync().await.unwrap();
        let journal = bed.volume.inode(bed.volume.superblock().journal_inode().unwrap()).await.unwrap();
        let (mut runs, mut log) = (bed.volume.runs(&journal), Vec::new());
        while let Some(run) = runs.next().await.unwrap() {
            let crate::RunState::Written(first) = run.state else { panic!("{run:?}") };
            log.push(first.0 * 8..(first.0 + run.blocks) * 8);
        }
        drop(runs);
        slow.log.set(log).unwrap();
        let log = writer.journal.clone();
        let mut checkpoint = pin!(log.checkpoint());
        assert!(checkpoint.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        let hog = writer.alloc.reserve(writer.alloc.statfs().free, 0, Privilege::Reserved).unwrap();
        drop(big);
        root.unlink(&caller, b"big").await.unwrap();
        let begin = rt.now();
        let got = writer.alloc.reserve_waiting(&writer.journal, 1000, 0, Privilege::Reserved).await;
        assert!(got.is_ok(), "{got:?}");
        assert!(rt.now().0 - begin.0 > Nanos::from_secs(90).0, "the home writes have ended");
        drop((got, hog, root));
        checkpoint.await.unwrap();
        bed.close().await;
    };
    rt.block_on(work).unwrap();
    std::fs::write(&image, disk.to_bytes()).unwrap();
    check_is_silent(&image, "after a checkpoint on a full volume");
}

/// Drops a node when space is requested, as another task might.
#[derive(Debug)]
struct DropLater(parking_lot::Mutex<Option<Node>>);

impl crate::alloc::GivesBack for DropLater {
    fn give_back(&self) -> std::pin::Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        drop(self.0.lock().take());
        Box::pin(async {})
    }
}

#[test]
fn a_whiteout_takes_no_lock_that_making_room_needs() {
    if !have_tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = make(dir.path(), "-t ext4 -b 1024 -I 128 -O ^dir_index,^metadata_csum 8M");
    let sim = Sim::new(Machine::free(1, Preemption::None), 1);
    let disk = Arc::new(MemDevice::from_bytes(std::fs::read(&image).unwrap()));
    let caller = Caller::root();
    let work = async {
        let bed = Bed::open(sim.rt(), disk.clone()).await;
        let writer = bed.writer();
        let root = bed.volume.root_node().await.unwrap();
        // The directory's files inherit a list that does not fit an inode of 128 bytes.
        let layer = root.mkdir(&caller, b"layer", 0o755).await.unwrap();
        let list = [
            &2u32.to_le_bytes()[..],
            &[1, 0, 7, 0, 0xff, 0xff, 0xff, 0xff],
            &[2, 0, 7, 0, 0xe8, 3, 0, 0],
            &[4, 0, 5, 0, 0xff, 0xff, 0xff, 0xff],
            &[0x10, 0, 7, 0, 0xff, 0xff, 0xff, 0xff],
            &[0x20, 0, 5, 0, 0xff, 0xff, 0xff, 0xff],
        ]
        .concat();
        layer.set_xattr(&caller, b"system.posix_acl_default", &list, SetMode::Any).await.unwrap();
        layer.create(&caller, b"old", 0o644).await.unwrap();
        // The directory's block is full, so another name needs another block.
        let full = root.mkdir(&caller, b"full", 0o755).await.unwrap();
        for n in 0..4 {
            let name = format!("{n}{}", "long".repeat(55));
            full.create(&caller, name.as_bytes(), 0o644).await.unwrap();
        }
        let doomed = root.create(&caller, b"doomed", 0o644).await.unwrap();
        doomed.set_xattr(&caller, b"user.x", &[1; 100], SetMode::Any).await.unwrap();
        let file = doomed.open(&caller, Default::default()).unwrap();
        file.write(0, &[1; 20_000]).await.unwrap();
        drop(file);
        bed.volume.sync().await.unwrap();
        root.unlink(&caller, b"doomed").await.unwrap();
        let hog = writer.alloc.reserve(writer.alloc.statfs().free, 0, Privilege::Reserved).unwrap();
        writer.alloc.add_giver(Arc::new(DropLater(parking_lot::Mutex::new(Some(doomed)))));
        let new = "new".repeat(80);
        layer.rename(&caller, b"old", &full, new.as_bytes(), RenameMode::Whiteout).await.unwrap();
        let whiteout = layer.lookup(&caller, b"old").await.unwrap();
        assert_eq!(whiteout.kind(), Some(FileKind::CharDevice));
        drop((hog, whiteout, full, layer, root));
        bed.close().await;
    };
    sim.rt().block_on(work).unwrap();
    std::fs::write(&image, disk.to_bytes()).unwrap();
    check_is_silent(&image, "after a whiteout on a full volume");
}
