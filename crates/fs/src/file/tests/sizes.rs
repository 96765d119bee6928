//! Recorded sizes, for any order of copying bytes, claiming them for write-back and logging them.

use super::durable::{B, PLAIN, commit, unwritten, with_gate};
use super::*;
use crate::alloc::Privilege;

#[test]
fn an_append_that_is_copied_after_write_back_took_its_block_is_recorded() {
    for (args, unit) in [(PLAIN, 100), ("-t ext4 -b 65536 -O ^has_journal -N 64", 32 << 10)] {
        let found = with_gate(
            args,
            vec![],
            |_| vec![],
            async |_, bed, _, number| {
                let (_, file) = bed.file(number, FileOptions::default()).await;
                file.write(0, &vec![7; unit]).await.unwrap();
                // Do what a write does that waits for room before it copies.
                let reserved =
                    file.contents.reserve_for_copy(BlockRange::one(0), unit as u64, Privilege::Ordinary);
                let reserved = reserved.await.unwrap();
                file.mapping.write_back(ByteRange::ALL).await.unwrap();
                file.pages.write(unit as u64, &vec![8; unit]).await.unwrap();
                drop(reserved);
                file.sync().await.unwrap();
                drop(file);
                bed.commit_counts().await;
            },
        );
        let Some((_dir, image, number)) = found else { return };
        assert!(dumped(&image, number) == [vec![7; unit], vec![8; unit]].concat());
        check_is_silent(&image, args);
    }
}

#[test]
fn a_file_that_grows_within_its_last_block_has_the_size_asked_for() {
    let found = with_gate(
        PLAIN,
        vec![],
        |_| vec![],
        async |_, bed, _, number| {
            let (cell, file) = bed.file(number, FileOptions::default()).await;
            file.write(0, &[7; 100]).await.unwrap();
            file.sync().await.unwrap();
            file.set_size(200).await.unwrap();
            file.write(50, &[8; 10]).await.unwrap();
            file.sync().await.unwrap();
            assert_eq!((file.size(), cell.read(Inode::size)), (200, 200));
            drop(file);
            bed.commit_counts().await;
        },
    );
    let Some((_dir, image, number)) = found else { return };
    assert!(dumped(&image, number) == [&[7; 50][..], &[8; 10], &[7; 40], &[0; 100]].concat());
    check_is_silent(&image, "grown within a block");
}

#[test]
fn no_size_is_recorded_between_the_old_one_and_the_one_asked_for() {
    with_gate(
        PLAIN,
        vec![],
        |_| vec![],
        async |rt, bed, gate, number| {
            let (cell, file) = bed.file(number, FileOptions::default()).await;
            file.write(0, &[7; 100]).await.unwrap();
            file.sync().await.unwrap();
            gate.holds.store(true, std::sync::atomic::Ordering::Relaxed);
            let mut grows = Box::pin(file.set_size(3 * B));
            while !poll_once(&mut grows).await {
                assert!([100, 3 * B].contains(&cell.read(Inode::size)));
                gate.release();
                rt.yield_now().await;
            }
            assert_eq!(cell.read(Inode::size), 3 * B);
        },
    );
}

#[test]
fn the_past_of_a_larger_file_is_not_read_when_it_grows() {
    for args in [PLAIN, "-t ext4 -b 65536 -O ^has_journal -N 64"] {
        let unit = if args == PLAIN { B } else { 65_536 };
        let past = |number| vec![format!("sif <{number}> size 100")];
        let found = with_gate(args, vec![7; 2 * unit as usize - 1], past, async |_, bed, _, number| {
            let (_, file) = bed.file(number, FileOptions::default()).await;
            file.set_size(unit + 1).await.unwrap();
            file.sync().await.unwrap();
        });
        let Some((_dir, image, number)) = found else { return };
        let mut expected = vec![7; 100];
        expected.resize(unit as usize, 0);
        assert!(dumped(&image, number)[..unit as usize] == expected);
    }
}

#[test]
fn a_write_without_space_leaves_the_size_as_it_is() {
    let found = with_gate(
        "-t ext4 -b 4096 -O ^has_journal -m 0 -N 64",
        vec![7; 100],
        |_| vec![],
        async |_, bed, _, number| {
            let (_, file) = bed.file(number, FileOptions::default()).await;
            let free = bed.writer.alloc.statfs().free;
            let all = bed.writer.alloc.reserve(free, 0, Privilege::Ordinary).unwrap();
            assert!(matches!(file.write(10 * B, b"no room").await, Err(Error::NoSpace)));
            assert_eq!(file.size(), 100);
            drop(all);
            file.write(10 * B, b"room").await.unwrap();
            file.sync().await.unwrap();
        },
    );
    let Some((_dir, image, number)) = found else { return };
    assert_eq!(dumped(&image, number).len() as u64, 10 * B + 4);
}

#[test]
fn truncation_inside_an_unwritten_block_keeps_no_space() {
    let found = with_gate(PLAIN, vec![], unwritten, async |_, bed, _, number| {
        let (_, file) = bed.file(number, FileOptions::default()).await;
        file.set_size(4 * B + 100).await.unwrap();
        commit(bed).await;
        let (blocks, _) = bed.writer.store.groups().free_totals();
        assert_eq!(bed.writer.alloc.statfs().free, blocks, "nothing is reserved");
        assert!(file.contents.live.lock().map.pending.is_clean());
    });
    let Some((_dir, image, number)) = found else { return };
    assert!(dumped(&image, number) == vec![0; 4 * B as usize + 100]);
}

/// Blocks are smaller than a page, so dirty data share a page with the hole.
#[test]
fn truncation_into_a_hole_takes_no_block_of_a_full_volume() {
    for args in ["-t ext4 -b 1024 -O ^has_journal -N 64", "-t ext2 -b 1024 -N 64"] {
        for (cut, grown) in [(1500, 1500), (1500, 4096), (1024, 4000)] {
            let found = with_gate(
                args,
                vec![],
                |_| vec![],
                async |_, bed, _, number| {
                    let (cell, file) = bed.file(number, FileOptions::default()).await;
                    file.write(0, &[7; 100]).await.unwrap();
                    file.write(3 << 10, &[8; 1024]).await.unwrap();
                    let free = bed.writer.alloc.statfs().free;
                    let all = bed.writer.alloc.reserve(free, 0, Privilege::Reserved).unwrap();
                    file.set_size(cut).await.unwrap();
                    file.set_size(grown).await.unwrap();
                    file.sync().await.unwrap();
                    let blocks = cell.read(|inode| inode.blocks_512(bed.writer.store.shape()));
                    assert_eq!(blocks, 2, "one block of data");
                    drop((all, file));
                    bed.commit_counts().await;
                },
            );
            let Some((_dir, image, number)) = found else { return };
            let mut expected = vec![7; 100];
            expected.resize(grown as usize, 0);
            assert!(dumped(&image, number) == expected, "{args}, {cut} bytes");
            check_is_silent(&image, args);
        }
    }
}

#[test]
fn an_empty_file_for_contents_in_its_inode_can_become_a_large_one() {
    let args = "-t ext4 -b 4096 -O ^has_journal,inline_data -I 512 -N 64";
    for bytes in [5000, 0] {
        let found = with_gate(
            args,
            vec![],
            |_| vec![],
            async |_, bed, _, number| {
                let (cell, file) = bed.file(number, FileOptions::default()).await;
                assert!(cell.read(Inode::flags).contains(extant_format::InodeFlags::INLINE_DATA));
                file.set_size(bytes).await.unwrap();
                file.sync().await.unwrap();
                bed.file(number, FileOptions::default()).await;
                drop(file);
                bed.commit_counts().await;
            },
        );
        let Some((_dir, image, number)) = found else { return };
        check_is_silent(&image, &format!("{bytes} bytes"));
        assert!(dumped(&image, number) == vec![0; bytes as usize]);
    }
}
