//! Commits and checkpoints while the device holds back writes, and what a crash then leaves.

use super::durable::{B, Gate};
use super::reached::with_volume;
use super::*;
use crate::names::{Caller, Node, SetAttributes};
use extant_rt::Nanos;
use std::sync::atomic::Ordering;

const JOURNALED: &str = "-t ext4 -b 4096 -N 64";
/// Free space is filled with this byte.
const STALE: u8 = 0xa5;

async fn commit(volume: &Volume) {
    let journal = &volume.writer().unwrap().journal;
    journal.commit(journal.running()).await.unwrap();
}

/// Polls `work` until the gate holds back a write that it makes; later writes pass. `work` must not
/// end meanwhile.
async fn hold_writes<T>(rt: &Rt, gate: &Gate, work: &mut Pin<Box<impl Future<Output = T>>>) {
    gate.holds.store(true, Ordering::Relaxed);
    while gate.held.lock().is_empty() {
        assert!(!poll_once(work).await, "it waits for its writes");
        rt.sleep(Nanos::from_micros(10)).await;
    }
    gate.holds.store(false, Ordering::Relaxed);
}

/// Permissions of the root directory after our recovery of a crash now.
async fn recovered_mode(gate: &Gate) -> u16 {
    let memory = Arc::new(extant_block::MemDevice::from_bytes(gate.bytes().await));
    let volume = Volume::open(memory, Default::default()).await.unwrap();
    volume.inode(InodeNumber::ROOT).await.unwrap().raw.i_mode.get() & 0o777
}

async fn set_mode(root: &Node, permissions: u16) {
    let change = SetAttributes { permissions: Some(permissions), ..SetAttributes::default() };
    root.set_attributes(&Caller::root(), &change).await.unwrap();
}

/// The file's contents after e2fsck has recovered a crash.
fn after_crash(dir: &tempfile::TempDir, crashed: &[u8], number: InodeNumber) -> Vec<u8> {
    let image = dir.path().join("crashed");
    std::fs::write(&image, crashed).unwrap();
    run("e2fsck", &["-fy", image.to_str().unwrap()]);
    check_is_silent(&image, "after a crash");
    dumped(&image, number)
}

#[test]
fn a_commit_beside_write_back_shows_no_block_before_its_data() {
    let mut crashed = Vec::new();
    let found = with_volume(12, JOURNALED, 1 << 20, async |rt, volume, gate, file| {
        file.write(0, &[7; 4 * B as usize]).await.unwrap();
        let mut sync = Box::pin(file.sync());
        hold_writes(rt, gate, &mut sync).await;
        commit(&volume).await;
        crashed = gate.bytes().await;
        gate.release();
        sync.await.unwrap();
        volume.close().await.unwrap();
    });
    let Some((dir, image, number)) = found else { return };
    assert!(after_crash(&dir, &crashed, number).is_empty(), "nothing of it is on the device");
    assert!(dumped(&image, number) == [7; 4 * B as usize]);
}

#[test]
fn a_commit_beside_a_direct_write_shows_no_block_before_its_data() {
    let mut crashed = Vec::new();
    let found = with_volume(12, JOURNALED, 1 << 20, async |rt, volume, gate, file| {
        let mut write = Box::pin(file.write_direct(0, Buf::from_slice(&[7; 4 * B as usize])));
        hold_writes(rt, gate, &mut write).await;
        commit(&volume).await;
        crashed = gate.bytes().await;
        gate.release();
        assert_eq!(write.await.1.unwrap() as u64, 4 * B);
        file.sync().await.unwrap();
        volume.close().await.unwrap();
    });
    let Some((dir, image, number)) = found else { return };
    let shown = after_crash(&dir, &crashed, number);
    assert!(!shown.contains(&STALE), "{} bytes, what was there before among them", shown.len());
    assert!(shown.is_empty(), "nothing of it is on the device");
    assert!(dumped(&image, number) == [7; 4 * B as usize]);
}

#[test]
fn no_home_write_comes_over_the_next_owner_of_a_freed_block() {
    const DIRS: usize = 50;
    let (mut data, mut is_early) = (Vec::new(), false);
    let found = with_volume(12, JOURNALED, 1 << 20, async |rt, volume, gate, file| {
        let (root, caller) = (volume.root_node().await.unwrap(), Caller::root());
        let names: Vec<String> = (0..DIRS).map(|n| format!("d{n}")).collect();
        for name in &names {
            root.mkdir(&caller, name.as_bytes(), 0o755).await.unwrap();
        }
        commit(&volume).await;
        let journal = volume.writer().unwrap().journal.clone();
        let mut checkpoint = Box::pin(journal.checkpoint());
        hold_writes(rt, gate, &mut checkpoint).await;
        for name in &names {
            root.rmdir(&caller, name.as_bytes()).await.unwrap();
        }
        commit(&volume).await;
        // All free space except 30 blocks, which is less than the directories had.
        let blocks = volume.space().blocks_free as usize - 30;
        data = vec![7; blocks * B as usize];
        let options = FileOptions { reserved_blocks: true, ..FileOptions::default() };
        let all = volume.open_for_writing(file.inode(), options).await.unwrap();
        let written = data.clone();
        let mut fill = Box::pin(async {
            assert_eq!(all.write(0, &written).await.unwrap(), written.len());
            all.sync().await.unwrap();
        });
        for _ in 0..200 {
            is_early = is_early || poll_once(&mut fill).await;
            rt.sleep(Nanos::from_millis(1)).await;
        }
        gate.release();
        checkpoint.await.unwrap();
        if !is_early {
            fill.as_mut().await;
        }
        drop(fill);
        drop(all);
        volume.close().await.unwrap();
    });
    let Some((_dir, image, number)) = found else { return };
    check_is_silent(&image, "after all of the space was used");
    assert!(dumped(&image, number) == data, "no directory's block came over the file");
    assert!(!is_early, "what the directories had is not to be had while it is written to");
}

#[test]
fn a_transaction_of_one_block_stays_in_the_log_until_that_is_home() {
    with_volume(12, JOURNALED, 1 << 20, async |rt, volume, gate, _| {
        let root = volume.root_node().await.unwrap();
        set_mode(&root, 0o711).await;
        commit(&volume).await;
        let journal = volume.writer().unwrap().journal.clone();
        let mut checkpoint = Box::pin(journal.checkpoint());
        hold_writes(rt, gate, &mut checkpoint).await;
        // The old version of the block is being written.
        set_mode(&root, 0o700).await;
        commit(&volume).await;
        gate.release();
        checkpoint.await.unwrap();
        assert_eq!(recovered_mode(gate).await, 0o700);
        drop(root);
        volume.close().await.unwrap();
        assert_eq!(recovered_mode(gate).await, 0o700);
    });
}

#[test]
fn a_checkpoint_beside_a_commit_leaves_the_commit_in_the_log() {
    with_volume(12, JOURNALED, 1 << 20, async |rt, volume, gate, _| {
        let root = volume.root_node().await.unwrap();
        set_mode(&root, 0o711).await;
        commit(&volume).await;
        set_mode(&root, 0o700).await;
        let journal = volume.writer().unwrap().journal.clone();
        let mut committing = Box::pin(journal.commit(journal.running()));
        // Its place in the log is allocated.
        hold_writes(rt, gate, &mut committing).await;
        journal.checkpoint().await.unwrap();
        assert_eq!(recovered_mode(gate).await, 0o711);
        gate.release();
        committing.await.unwrap();
        assert_eq!(recovered_mode(gate).await, 0o700);
        drop(root);
        volume.close().await.unwrap();
    });
}
