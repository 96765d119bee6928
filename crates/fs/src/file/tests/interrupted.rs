//! Operations whose callers drop them halfway.

use super::durable::{B, PLAIN, with_files, with_gate};
use super::*;
use crate::file::free_from;
use extant_block::MemDevice;
use extant_rt::{Class, Nanos};
use std::cell::Cell;
use std::sync::atomic::Ordering;

#[test]
fn a_write_that_is_dropped_before_it_copies_leaves_nothing_behind() {
    let found = with_gate(
        PLAIN,
        vec![3; 2 * B as usize],
        |_| vec![],
        async |_, bed, gate, number| {
            let (_, file) = bed.file(number, FileOptions::default()).await;
            file.contents.know(BlockRange::new(0, 20)).await.unwrap();
            let free = bed.writer.alloc.statfs().free;
            gate.holds_reads.store(true, Ordering::Relaxed);
            // Block 1 must be read because it is partly overwritten. The blocks after it are
            // reserved together with it.
            let data = vec![7; 10 * B as usize];
            let mut write = Box::pin(file.write(B + 100, &data));
            assert!(!poll_once(&mut write).await);
            assert_ne!(bed.writer.alloc.statfs().free, free);
            drop(write);
            assert_eq!(bed.writer.alloc.statfs().free, free, "the reservation is given back");
            gate.release();
            file.write(2 * B, b"end").await.unwrap();
            file.sync().await.unwrap();
        },
    );
    let Some((_dir, image, number)) = found else { return };
    assert_eq!(dumped(&image, number), [&[3; 2 * B as usize][..], b"end"].concat());
}

#[test]
fn contents_of_an_inode_stay_while_a_write_waits_to_move_them() {
    let args = "-t ext4 -b 4096 -O ^has_journal,inline_data -I 512 -N 64";
    let found = with_files(
        args,
        vec![vec![3; 100], vec![]],
        |_| vec![],
        async |rt, bed, gate, numbers| {
            let (_, file) = bed.file(numbers[0], FileOptions::default()).await;
            let (_, other) = bed.file(numbers[1], FileOptions::default()).await;
            // All dirty memory is in use and cannot be written back.
            gate.holds.store(true, Ordering::Relaxed);
            let filling = rt.spawn("fill", Class::Normal, async move {
                other.write(0, &vec![7; 6 << 20]).await.unwrap();
            });
            rt.sleep(Nanos::from_secs(60)).await;
            let mut write = Box::pin(file.write(50, b"new"));
            assert!(!poll_once(&mut write).await);
            let mut read = [0; 100];
            let (_, reader) = bed.file(numbers[0], FileOptions::default()).await;
            assert_eq!(reader.read(0, &mut read).await.unwrap(), 100);
            assert_eq!(read, [3; 100]);
            drop(write);
            gate.release();
            filling.await.unwrap();
            file.write(200, b"end").await.unwrap();
            file.sync().await.unwrap();
        },
    );
    let Some((_dir, image, numbers)) = found else { return };
    assert_eq!(dumped(&image, numbers[0]), [&[3; 100][..], &[0; 100], b"end"].concat());
}

/// The caller may drop the removal at any wait, and must not find the inode number reused by then.
#[test]
fn a_removal_does_not_wait_after_its_last_transaction() {
    if !have_tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = make(dir.path(), 8, PLAIN, &[vec![3; 40 * B as usize]]);
    let rt = Rt::real(Default::default());
    let memory = Arc::new(MemDevice::from_bytes(std::fs::read(&image).unwrap()));
    rt.block_on(async {
        let number = numbers(&image, 1).await[0];
        let bed = Bed::open(&rt, memory, 8 << 20).await;
        let cell = bed.writer.inodes.get(number).await.unwrap();
        let was_last = Cell::new(false);
        let mut freeing = Box::pin(free_from(&bed.writer, &cell, 4, Credits(0), |_, step| {
            // Longer than the time allowed between two yields.
            let until = rt.now() + Nanos::from_millis(1);
            while rt.now() < until {
                std::hint::spin_loop();
            }
            was_last.set(step.last);
        }));
        while !poll_once(&mut freeing).await {
            assert!(!was_last.get());
            rt.yield_now().await;
        }
        assert!(was_last.get());
    })
    .unwrap();
}

#[test]
fn a_change_of_size_that_is_dropped_comes_to_its_end() {
    let found = with_gate(
        PLAIN,
        vec![3; 40 * B as usize],
        |_| vec![],
        async |rt, bed, _, number| {
            let (cell, file) = bed.file(number, FileOptions::default()).await;
            let edits = file.contents.edits.write().await;
            let mut cut = Box::pin(file.set_size(4 * B));
            for _ in 0..100 {
                assert!(!poll_once(&mut cut).await);
                rt.yield_now().await;
            }
            assert_eq!(file.size(), 4 * B);
            drop(cut);
            drop(edits);
            file.write(20 * B, &[7; B as usize]).await.unwrap();
            file.sync().await.unwrap();
            assert_eq!(cell.read(Inode::size), 21 * B);
            drop(file);
            bed.commit_counts().await;
        },
    );
    let Some((_dir, image, number)) = found else { return };
    check_is_silent(&image, "a truncation was dropped");
    let mut expected = vec![3; 4 * B as usize];
    expected.resize(20 * B as usize, 0);
    expected.resize(21 * B as usize, 7);
    assert!(dumped(&image, number) == expected);
}

#[test]
fn a_reader_beside_a_truncation_does_not_keep_what_it_frees() {
    let found = with_files(
        PLAIN,
        vec![vec![3; 40 * B as usize], vec![5; B as usize]],
        |_| vec![],
        async |rt, bed, _, numbers| {
            let (_, file) = bed.file(numbers[0], FileOptions::default()).await;
            let edits = file.contents.edits.write().await;
            let mut cut = Box::pin(file.set_size(4 * B));
            for _ in 0..100 {
                assert!(!poll_once(&mut cut).await);
                rt.yield_now().await;
            }
            // The map on the volume still has all blocks, in one leaf.
            assert_eq!(file.read(0, &mut [0; 100]).await.unwrap(), 100);
            drop(edits);
            cut.await.unwrap();
            bed.writer.journal.commit(bed.writer.journal.running()).await.unwrap();
            let (_, other) = bed.file(numbers[1], FileOptions::default()).await;
            other.write(B, &vec![9; 39 * B as usize]).await.unwrap();
            other.sync().await.unwrap();
            file.write(20 * B, &[7; B as usize]).await.unwrap();
            file.sync().await.unwrap();
            drop((file, other));
            bed.commit_counts().await;
        },
    );
    let Some((_dir, image, numbers)) = found else { return };
    check_is_silent(&image, "a truncation beside a reader");
    let mut expected = vec![3; 4 * B as usize];
    expected.resize(20 * B as usize, 0);
    expected.resize(21 * B as usize, 7);
    assert!(dumped(&image, numbers[0]) == expected);
    assert!(dumped(&image, numbers[1]) == [vec![5; B as usize], vec![9; 39 * B as usize]].concat());
}

#[test]
fn a_deletion_that_is_dropped_still_waits_for_write_back() {
    with_gate(
        PLAIN,
        vec![3; B as usize],
        |_| vec![],
        async |rt, bed, gate, number| {
            let (cell, file) = bed.file(number, FileOptions::default()).await;
            file.write(0, &[7; 100]).await.unwrap();
            gate.holds.store(true, Ordering::Relaxed);
            let writing = file.mapping.clone();
            let writing = rt.spawn("write-back", Class::Normal, async move {
                let _ = writing.write_back(ByteRange::ALL).await;
            });
            rt.sleep(Nanos::from_millis(1)).await;
            assert_eq!(gate.held.lock().len(), 1);
            for _ in 0..2 {
                let mut forget = Box::pin(bed.files.forget(&cell));
                assert!(!poll_once(&mut forget).await, "the block may be another file's afterwards");
            }
            gate.release();
            bed.files.forget(&cell).await.unwrap();
            writing.await.unwrap();
        },
    );
}

#[test]
fn blocks_are_kept_for_a_file_only_while_it_is_open() {
    with_gate(
        PLAIN,
        vec![],
        |_| vec![],
        async |rt, bed, gate, number| {
            let (cell, file) = bed.file(number, FileOptions::default()).await;
            // A node, which outlives the open file.
            cell.open();
            gate.holds_reads.store(true, Ordering::Relaxed);
            file.write(64 << 10, &[7; B as usize]).await.unwrap();
            let mapping = file.mapping.clone();
            let writing = rt.spawn("write-back", Class::Normal, async move {
                mapping.write_back(ByteRange::ALL).await.unwrap();
            });
            rt.sleep(Nanos::from_millis(1)).await;
            assert_eq!(gate.held.lock().len(), 1, "a bitmap is read");
            drop(file);
            gate.release();
            writing.await.unwrap();
            assert_eq!(bed.writer.alloc.windows(), [], "closed while it grew");

            let (_, file) = bed.file(number, FileOptions::default()).await;
            file.write((64 << 10) + B, &[7; B as usize]).await.unwrap();
            file.sync().await.unwrap();
            assert_eq!(bed.writer.alloc.windows(), [number]);
            drop(file);
            assert_eq!(bed.writer.alloc.windows(), []);

            let (_, file) = bed.file(number, FileOptions::default()).await;
            file.write(0, &[7; 64 << 10]).await.unwrap();
            file.sync().await.unwrap();
            assert_eq!(bed.writer.alloc.windows(), [], "a small file is allocated beside others");
            drop(file);
            assert!(!cell.close());
        },
    );
}

#[test]
fn a_copied_hole_does_not_cut_off_what_another_writer_appends() {
    let found = with_files(
        PLAIN,
        vec![vec![], vec![]],
        |_| vec![],
        async |rt, bed, _, numbers| {
            let (_, from) = bed.file(numbers[0], FileOptions::default()).await;
            let (cell, to) = bed.file(numbers[1], FileOptions::default()).await;
            from.set_size(4 * B).await.unwrap();
            // The writer waits for the inode, and the copy waits behind it, having seen the file as
            // empty.
            let inode = cell.write_lock().await;
            let mut write = Box::pin(to.write(10 * B, b"appended"));
            assert!(!poll_once(&mut write).await);
            let mut copy = Box::pin(from.copy_range(0, &to, 0, 4 * B));
            for _ in 0..100 {
                assert!(!poll_once(&mut copy).await);
                rt.yield_now().await;
            }
            drop(inode);
            assert_eq!(write.await.unwrap(), 8);
            assert_eq!(copy.await.unwrap(), 4 * B);
            assert_eq!(to.size(), 10 * B + 8);
            to.sync().await.unwrap();
        },
    );
    let Some((_dir, image, numbers)) = found else { return };
    assert_eq!(dumped(&image, numbers[1]), [&[0; 10 * B as usize][..], b"appended"].concat());
}
