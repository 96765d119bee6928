//! Direct requests in flight together: data with the map of the next blocks, and several writers of
//! one new file.

use super::durable::{B, PLAIN, with_gate};
use super::reached::with_volume;
use super::*;
use extant_block::{Bio, IoErrorKind};
use std::sync::atomic::Ordering;

/// Lengths of the reads that the device holds back.
fn held(bios: &[Bio]) -> Vec<u64> {
    bios.iter().map(|bio| bio.bytes).collect()
}

#[test]
fn the_map_of_the_next_blocks_is_read_while_data_are_in_flight() {
    const K: u64 = 1024;
    let mut rng = Rng::labelled(1, "look-ahead");
    let data = bytes(&mut rng, 600 << 10);
    let expected = data.clone();
    // Pointers to the first 12 blocks are in the inode. Each following 256 blocks have a block of
    // pointers.
    let args = "-t ext2 -b 1024 -I 128 -N 64";
    with_gate(
        args,
        data,
        |_| vec![],
        async |_, bed, gate, number| {
            let (_, file) = bed.file(number, FileOptions::default()).await;
            gate.holds_reads.store(true, Ordering::Relaxed);
            let mut within = Box::pin(file.read_direct(0, Buf::zeroed(64 << 10)));
            assert!(!poll_once(&mut within).await);
            {
                let held = held(&gate.held.lock());
                assert_eq!(held.len(), 2, "the first 12 blocks, and what maps those behind: {held:?}");
                assert_eq!(held[0], 12 * K);
            }
            gate.release();
            let (buf, read) = within.await;
            assert!(read.unwrap() == 64 << 10 && buf[..] == expected[..64 << 10]);

            // One block of pointers maps the next 204 blocks of the file; the next one maps the
            // last of them.
            let (at, len) = (64 * K, 204 * K);
            gate.holds_reads.store(true, Ordering::Relaxed);
            let mut before = Box::pin(file.read_direct(at, Buf::zeroed(len as usize)));
            assert!(!poll_once(&mut before).await);
            assert_eq!(held(&gate.held.lock())[0], len);
            let ahead = held(&gate.held.lock()).len() - 1;
            assert!(ahead >= 1, "the map of the next blocks is being read");
            gate.release();
            let (buf, read) = before.await;
            assert!(read.unwrap() as u64 == len && buf[..] == expected[at as usize..][..len as usize]);
            // Its neighbours were loaded with a block of the map, so the file is known up to the
            // end of that block.
            gate.holds_reads.store(true, Ordering::Relaxed);
            let mut next = Box::pin(file.read_direct(at + len, Buf::zeroed(8 << 10)));
            assert!(!poll_once(&mut next).await);
            assert_eq!(held(&gate.held.lock())[0], 8 * K, "its map was read before");
            gate.release();
            let (buf, read) = next.await;
            assert!(read.unwrap() == 8 << 10 && buf[..] == expected[(at + len) as usize..][..8 << 10]);
        },
    );
}

#[test]
fn the_bitmaps_for_the_next_blocks_are_read_while_data_are_in_flight() {
    // Groups of 1 MiB, each with its bitmap.
    let args = "-t ext2 -b 1024 -g 1024 -I 128 -N 64";
    const LEN: usize = 800 << 10;
    let found = with_gate(
        args,
        vec![],
        |_| vec![],
        async |rt, bed, gate, number| {
            let (_, file) = bed.file(number, FileOptions::default()).await;
            let part = |mark: usize| Buf::from_slice(&vec![mark as u8; LEN]);
            assert_eq!(file.write_direct(0, part(1)).await.1.unwrap(), LEN);
            gate.holds.store(true, Ordering::Relaxed);
            let mut write = Box::pin(file.write_direct(LEN as u64, part(2)));
            for _ in 0..16 {
                assert!(!poll_once(&mut write).await, "its data are in flight");
                rt.yield_now().await;
            }
            gate.release();
            assert_eq!(write.await.1.unwrap(), LEN);
            gate.holds_reads.store(true, Ordering::Relaxed);
            let mut next = Box::pin(file.write_direct(2 * LEN as u64, part(3)));
            let is_done = poll_once(&mut next).await;
            let waits_for: Vec<_> = gate.held.lock().iter().map(|bio| bio.start).collect();
            assert!(is_done, "it waits for no bitmap: {waits_for:?}");
            gate.release();
            drop(next);
            file.sync().await.unwrap();
            drop(file);
            bed.commit_counts().await;
        },
    );
    let Some((_dir, image, number)) = found else { return };
    check_is_silent(&image, "after direct writes to several groups");
    let expected: Vec<u8> = (1..=3).flat_map(|mark: u8| vec![mark; LEN]).collect();
    assert!(dumped(&image, number) == expected);
}

#[test]
fn writers_of_a_new_file_are_in_flight_together() {
    let found = with_gate(
        PLAIN,
        vec![],
        |_| vec![],
        async |_, bed, gate, number| {
            let (_, file) = bed.file(number, FileOptions::default()).await;
            gate.holds.store(true, Ordering::Relaxed);
            let part = |mark| Buf::from_slice(&vec![mark; 4 * B as usize]);
            let mut writes: Vec<_> =
                (0..4).map(|n| Box::pin(file.write_direct(4 * B * n, part(n as u8 + 1)))).collect();
            for write in &mut writes {
                assert!(!poll_once(write).await);
            }
            let mut bios = std::mem::take(&mut *gate.held.lock());
            assert_eq!(held(&bios), [4 * B; 4], "one bio each, all in flight");
            assert!(bios.is_sorted_by_key(|bio| bio.start.0));
            assert_eq!(file.size(), 0);
            gate.holds.store(false, Ordering::Relaxed);
            // The third ends first, and the second fails.
            gate.submit(bios.remove(2));
            let third = writes.remove(2).await.1;
            assert_eq!((third.unwrap() as u64, file.size()), (4 * B, 12 * B));
            bios.remove(1).end_as("gate", Err(IoErrorKind::Os(5)));
            assert!(matches!(writes.remove(1).await.1, Err(Error::Io(_))));
            assert_eq!(file.size(), 12 * B);
            bios.into_iter().for_each(|bio| gate.submit(bio));
            for write in writes {
                assert_eq!(write.await.1.unwrap() as u64, 4 * B);
            }
            assert_eq!(file.size(), 16 * B);
            file.sync().await.unwrap();
            let mut read = vec![9; 16 * B as usize];
            assert_eq!(file.read(0, &mut read).await.unwrap() as u64, 16 * B);
            assert!(
                read.chunks(4 * B as usize)
                    .zip([1, 0, 3, 4])
                    .all(|(part, mark)| part == [mark; 4 * B as usize])
            );
            // A writer that waits for others of the same blocks finds them mapped.
            gate.holds.store(true, Ordering::Relaxed);
            let mut first = Box::pin(file.write_direct(4 * B, part(7)));
            let mut second = Box::pin(file.write_direct(6 * B, part(8)));
            assert!(!poll_once(&mut first).await && !poll_once(&mut second).await);
            assert_eq!(gate.held.lock().len(), 1);
            gate.release();
            assert!(first.await.1.is_ok() && second.await.1.is_ok());
            file.sync().await.unwrap();
            drop(file);
            bed.commit_counts().await;
        },
    );
    let Some((_dir, image, number)) = found else { return };
    check_is_silent(&image, "after direct writers side by side");
    let marks = [1, 1, 7, 8, 8, 3, 4, 4].map(|mark| vec![mark; 2 * B as usize]).concat();
    assert!(dumped(&image, number) == marks);
}

#[test]
fn a_write_of_more_blocks_of_pointers_than_a_transaction_takes_is_logged_in_parts() {
    const K: usize = 1024;
    let data: Vec<u8> = (0..72 << 10).flat_map(|block: u32| [block as u8 | 1; K]).collect();
    let args = "-t ext3 -b 1024 -I 128 -J size=1 -m 0 -N 64";
    let mut size = 0;
    let found = with_volume(88, args, 1 << 20, async |_, volume, _, file| {
        // The first transaction has twelve runs; eleven of them are the holes between these blocks.
        for n in 0..11 {
            file.write((2 * n + 1) * K as u64, &[0xff; K]).await.unwrap();
        }
        file.sync().await.unwrap();
        let (_, written) = file.write_direct(0, Buf::from_slice(&data)).await;
        size = file.size();
        let told = written.as_ref().map_or(0, |&written| written as u64);
        assert_eq!(size, told.max(22 * K as u64), "{written:?}");
        volume.close().await.unwrap();
    });
    let Some((_dir, image, number)) = found else { return };
    check_is_silent(&image, "after a large direct write");
    let found = dumped(&image, number);
    assert_eq!(found.len() as u64, size, "the volume has the size that was told");
    assert!(found == data);
}
