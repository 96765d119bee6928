//! Sizes that can be recorded once the blocks holding them back have been written or given up.

use super::durable::{B, Gate, PLAIN, with_files, with_gate};
use super::*;
use crate::volume::WriteOptions;
use extant_block::{Bio, IoErrorKind, MemDevice};
use extant_rt::Nanos;
use extant_sim::{Machine, Preemption, Sim};
use std::sync::atomic::Ordering;

const JOURNALED: &str = "-t ext4 -b 4096 -N 64";

/// Runs `work` on a volume with a journal and an empty file. Returns the file's inode and the final
/// contents of the device.
pub(super) fn with_volume(
    mib: usize,
    args: &str,
    metadata_bytes: u64,
    work: impl AsyncFnOnce(&Rt, Volume, &Gate, &OpenFile),
) -> Option<(tempfile::TempDir, PathBuf, InodeNumber)> {
    if !have_tools() {
        return None;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = make(dir.path(), mib, args, &[vec![]]);
    let sim = Sim::new(Machine::free(2, Preemption::None), 1);
    let memory = Arc::new(MemDevice::from_bytes(std::fs::read(&image).unwrap()));
    let number = sim
        .rt()
        .block_on(async {
            let number = numbers(&image, 1).await[0];
            let gate = Gate::new(memory.clone());
            let cache = PageCache::new(sim.rt(), CacheConfig::with_budget(8 << 20)).unwrap();
            let options = WriteOptions {
                fixed_time: Some(NOW),
                commit_interval: None,
                metadata_bytes,
                ..WriteOptions::default()
            };
            let volume = Volume::open_writable(sim.rt(), &cache.attach(gate.clone()), options).await.unwrap();
            let file = volume.open_for_writing(number, FileOptions::default()).await.unwrap();
            work(sim.rt(), volume, &gate, &file).await;
            number
        })
        .unwrap();
    std::fs::write(&image, memory.to_bytes()).unwrap();
    Some((dir, image, number))
}

/// Four blocks of `mark`.
fn part(mark: u8) -> Buf {
    Buf::from_slice(&[mark; 4 * B as usize])
}

/// Starts two direct writers of an empty file and ends the second. Returns the first and its bio.
async fn overtaken<'a>(
    file: &'a OpenFile,
    gate: &Gate,
) -> (Pin<Box<dyn Future<Output = (Buf, crate::Result<usize>)> + 'a>>, Bio) {
    gate.holds.store(true, Ordering::Relaxed);
    let mut first = Box::pin(file.write_direct(0, part(1)));
    let mut second = Box::pin(file.write_direct(4 * B, part(2)));
    assert!(!poll_once(&mut first).await && !poll_once(&mut second).await);
    let mut bios = std::mem::take(&mut *gate.held.lock());
    assert_eq!(bios.len(), 2);
    gate.holds.store(false, Ordering::Relaxed);
    gate.submit(bios.pop().unwrap());
    assert_eq!(second.await.1.unwrap() as u64, 4 * B);
    (first, bios.pop().unwrap())
}

fn second_alone() -> Vec<u8> {
    [[0; 4 * B as usize], [2; 4 * B as usize]].concat()
}

#[test]
fn a_failed_write_lets_the_file_reach_what_was_written_behind_it() {
    let found = with_gate(
        PLAIN,
        vec![],
        |_| vec![],
        async |_, bed, gate, number| {
            let (_, file) = bed.file(number, FileOptions::default()).await;
            let (first, bio) = overtaken(&file, gate).await;
            bio.end_as("gate", Err(IoErrorKind::Os(5)));
            assert!(matches!(first.await.1, Err(Error::Io(_))));
            assert_eq!(file.size(), 8 * B);
            file.sync().await.unwrap();
            drop(file);
            bed.commit_counts().await;
        },
    );
    let Some((_dir, image, number)) = found else { return };
    check_is_silent(&image, "after a failed write before another");
    assert!(dumped(&image, number) == second_alone());
}

#[test]
fn a_close_keeps_what_was_written_behind_a_failed_write() {
    let found = with_volume(12, JOURNALED, 1 << 20, async |_, volume, gate, file| {
        let (first, bio) = overtaken(file, gate).await;
        bio.end_as("gate", Err(IoErrorKind::Os(5)));
        assert!(first.await.1.is_err());
        volume.close().await.unwrap();
    });
    let Some((_dir, image, number)) = found else { return };
    check_is_silent(&image, "closed after a failed write");
    assert!(dumped(&image, number) == second_alone());
}

#[test]
fn a_dropped_write_lets_the_file_reach_what_was_written_behind_it() {
    let found = with_files(
        PLAIN,
        vec![vec![3; 2 * B as usize], vec![]],
        |_| vec![],
        async |_, bed, gate, numbers| {
            // The bitmap is in memory from here on.
            let (_, other) = bed.file(numbers[1], FileOptions::default()).await;
            other.write(0, b"other").await.unwrap();
            other.sync().await.unwrap();
            let (cell, file) = bed.file(numbers[0], FileOptions::default()).await;
            file.write(40 * B, &[9; B as usize]).await.unwrap();
            gate.holds_reads.store(true, Ordering::Relaxed);
            // Block 1 is read because it is partly overwritten. The blocks after it are reserved
            // together with it.
            let data = vec![7; 10 * B as usize];
            let mut write = Box::pin(file.write(B + 100, &data));
            assert!(!poll_once(&mut write).await);
            file.mapping.write_back(ByteRange::ALL).await.unwrap();
            assert_eq!(cell.read(Inode::size), 2 * B, "the blocks in front may still come");
            drop(write);
            gate.release();
            file.sync().await.unwrap();
            assert_eq!(cell.read(Inode::size), 41 * B);
            drop((file, other));
            bed.commit_counts().await;
        },
    );
    let Some((_dir, image, numbers)) = found else { return };
    check_is_silent(&image, "after a write that was dropped");
    let mut expected = vec![3; 2 * B as usize];
    expected.resize(40 * B as usize, 0);
    expected.resize(41 * B as usize, 9);
    assert!(dumped(&image, numbers[0]) == expected);
}

#[test]
fn a_sync_of_the_volume_waits_for_writes_in_front_of_those_that_have_ended() {
    let mut crashed = None;
    let found = with_volume(12, JOURNALED, 1 << 20, async |rt, volume, gate, file| {
        let (first, bio) = overtaken(file, gate).await;
        let mut sync = Box::pin(volume.sync());
        let mut write_back = Box::pin(file.write_back());
        for _ in 0..100 {
            assert!(!poll_once(&mut sync).await, "the second write is behind the size that is recorded");
            assert!(!poll_once(&mut write_back).await, "the size is not logged");
            rt.sleep(Nanos::from_millis(10)).await;
        }
        gate.submit(bio);
        let (first, written, synced) = futures_util::future::join3(first, write_back, sync).await;
        assert_eq!(first.1.unwrap() as u64, 4 * B);
        written.and(synced).unwrap();
        crashed = Some(gate.bytes().await);
        volume.close().await.unwrap();
    });
    let Some((dir, _, number)) = found else { return };
    let image = dir.path().join("crashed");
    std::fs::write(&image, crashed.unwrap()).unwrap();
    run("e2fsck", &["-fy", image.to_str().unwrap()]);
    assert!(dumped(&image, number) == [[1; 4 * B as usize], [2; 4 * B as usize]].concat());
}

#[test]
fn a_sync_beside_a_truncation_to_nothing_loses_nothing() {
    let found = with_gate(
        PLAIN,
        vec![3; 4 * B as usize],
        |_| vec![],
        async |rt, bed, gate, number| {
            let (cell, file) = bed.file(number, FileOptions::default()).await;
            file.write(0, &[7; 4 * B as usize]).await.unwrap();
            gate.holds.store(true, Ordering::Relaxed);
            let mut sync = Box::pin(file.sync());
            assert!(!poll_once(&mut sync).await);
            rt.sleep(Nanos::from_millis(1)).await;
            let mut empty = Box::pin(file.empty());
            for _ in 0..10 {
                assert!(!poll_once(&mut empty).await, "it waits for the write");
                rt.sleep(Nanos::from_millis(1)).await;
            }
            gate.release();
            // The truncation ends first.
            empty.await.unwrap();
            sync.await.unwrap();
            assert_eq!((file.size(), cell.read(Inode::size)), (0, 0));
            drop(file);
            bed.commit_counts().await;
        },
    );
    let Some((_dir, image, number)) = found else { return };
    check_is_silent(&image, "a sync beside a truncation");
    assert!(dumped(&image, number).is_empty());
}
