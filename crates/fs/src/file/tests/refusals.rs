//! Closed, failed or damaged volumes: what must not be written, and what must not be trusted.

use super::durable::{B, PLAIN, unwritten, with_gate};
use super::*;
use crate::names::Caller;
use crate::volume::WriteOptions;
use extant_block::{MemDevice, Sector};
use extant_format::{Group, GroupFlags};
use extant_rt::Nanos;
use extant_sim::{Machine, Preemption, Sim};

#[test]
fn nothing_is_written_once_the_volume_is_gone() {
    let found = with_gate(
        PLAIN,
        vec![3; B as usize],
        |_| vec![],
        async |_, bed, _, number| {
            let (_, file) = bed.file(number, FileOptions::default()).await;
            file.write(0, &[7; 100]).await.unwrap();
            bed.writer.journal.abandon();
            // An overwrite in place, for which the journal has nothing to log.
            file.mapping.write_back(ByteRange::ALL).await.unwrap_err();
            let mut read = [0; 100];
            assert_eq!(file.read(0, &mut read).await.unwrap(), 100);
            assert_eq!(read, [7; 100], "memory stays readable");
            drop(file);
            bed.files.clear();
            let usage = bed.cache.usage();
            assert_eq!((usage.dirty, usage.unplaceable), (0, 0));
        },
    );
    let Some((_dir, image, number)) = found else { return };
    assert!(dumped(&image, number) == vec![3; B as usize]);
}

#[test]
fn a_size_that_no_map_can_address_is_refused() {
    let size = |number| vec![format!("sif <{number}> size {}", 1u64 << 60)];
    with_gate(PLAIN, vec![1; 10], size, async |_, bed, _, number| {
        let cell = bed.writer.inodes.get(number).await.unwrap();
        let opened = bed.files.open(&cell, FileOptions::default());
        assert!(matches!(opened, Err(Error::Corrupt(_))), "{opened:?}");
    });
}

#[test]
fn a_file_that_claims_the_volumes_own_metadata_is_not_written_to() {
    // Block 1 holds the group descriptors.
    for (block, field) in [(0, "block[0]"), (13, "block[IND]")] {
        let claims =
            |number| vec![format!("sif <{number}> {field} 1"), format!("sif <{number}> size {}", 20 * B)];
        let args = "-t ext2 -b 4096 -N 64";
        let before = with_gate(args, vec![1; 10], claims, async |_, _, _, _| {});
        let after = with_gate(args, vec![1; 10], claims, async |_, bed, _, number| {
            let (_, file) = bed.file(number, FileOptions::default()).await;
            let written = file.write(block * B, &[7; B as usize]).await;
            assert!(matches!(written, Err(Error::Corrupt(_))), "{field}: {written:?}");
            file.sync().await.unwrap();
        });
        let (Some((_one, before, _)), Some((_other, after, _))) = (before, after) else { return };
        let descriptors = |image: &Path| std::fs::read(image).unwrap()[B as usize..2 * B as usize].to_vec();
        assert!(descriptors(&before)[..32] == descriptors(&after)[..32], "{field}");
    }
}

#[test]
fn a_map_that_changes_while_it_is_read_is_read_again() {
    with_gate(PLAIN, vec![], unwritten, async |rt, bed, gate, number| {
        let (_, file) = bed.file(number, FileOptions::default()).await;
        let edits = file.contents.edits.write().await;
        // Act as if a truncation had freed the leaf and the block had been reused.
        *gate.unreadable.lock() = Some(0..u64::MAX);
        let mut know = Box::pin(file.contents.know(BlockRange::one(0)));
        for _ in 0..20 {
            assert!(!poll_once(&mut know).await);
            rt.yield_now().await;
        }
        *gate.unreadable.lock() = None;
        drop(edits);
        know.await.unwrap();
    });
}

#[test]
fn a_small_budget_for_metadata_has_room_for_every_step_of_a_removal() {
    if !have_tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let args = "-t ext4 -b 1024 -g 512 -J size=1 -N 64";
    let image = make(dir.path(), 40, args, &[vec![1; 28 << 20]]);
    let rt = Rt::real(Default::default());
    rt.block_on(async {
        let number = numbers(&image, 1).await[0];
        let cache = PageCache::new(&rt, CacheConfig::with_budget(8 << 20)).unwrap();
        let disk = cache.attach(device(&image));
        let options = WriteOptions { metadata_bytes: 64 << 10, ..WriteOptions::default() };
        let volume = Volume::open_writable(&rt, &disk, options).await.unwrap();
        let file = volume.open_for_writing(number, FileOptions::default()).await.unwrap();
        file.set_size(0).await.unwrap();
        drop(file);
        volume.close().await.unwrap();
    })
    .unwrap();
    check_is_silent(&image, args);
}

#[test]
fn data_without_a_place_are_written_when_space_returns_and_nobody_has_to_ask() {
    if !have_tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let args = "-t ext4 -b 1024 -g 1024 -J size=1 -N 64";
    let image = make(dir.path(), 8, args, &[vec![1; 2 << 20]]);
    let memory = Arc::new(MemDevice::from_bytes(std::fs::read(&image).unwrap()));
    let sim = Sim::new(Machine::free(2, Preemption::None), 1);
    let rt = sim.rt();
    let work = async {
        let cache = PageCache::new(rt, CacheConfig::with_budget(32 << 20)).unwrap();
        let disk = cache.attach(memory.clone());
        let volume = Volume::open_writable(rt, &disk, WriteOptions::default()).await.unwrap();
        // Space is promised from a group whose bitmap has not been read, and turns out not to
        // exist. A group without used blocks does not qualify: its bitmap is never read.
        let groups = (1..8).map(|n| volume.writer().unwrap().store.groups().get(Group(n)));
        let read = groups.filter(|group| !group.flags.contains(GroupFlags::BLOCK_UNINIT));
        let bitmap = read.max_by_key(|group| group.free_blocks).expect("some are in use").block_bitmap;
        let garbage = Buf::from_slice(&[0x5a; 1024]);
        extant_block::write(&*memory, Sector(2 * bitmap.0), garbage).await.unwrap();
        let (caller, root) = (Caller::root(), volume.root_node().await.unwrap());
        let node = root.create(&caller, b"late", 0o644).await.unwrap();
        let file = node.open(&caller, FileOptions::default()).unwrap();
        let mut end = 0;
        while file.write(end, &[7; 1024]).await.is_ok() {
            end += 1024;
        }
        file.sync().await.unwrap_err();
        assert!(cache.usage().unplaceable > 0, "{:?}", cache.usage());
        root.unlink(&caller, b"0").await.unwrap();
        rt.sleep(Nanos::from_secs(60)).await;
        let usage = cache.usage();
        assert_eq!(
            (usage.unplaceable, usage.dirty, usage.writeback),
            (0, 0, 0),
            "the flusher has written them"
        );
        (file.inode(), end)
    };
    let (number, end) = rt.block_on(work).unwrap();
    std::fs::write(&image, memory.to_bytes()).unwrap();
    // Replays the journal and repairs the bitmap.
    run("e2fsck", &["-fy", image.to_str().unwrap()]);
    check_is_silent(&image, args);
    let found = dumped(&image, number);
    assert!(found.len() as u64 == end && found.iter().all(|byte| *byte == 7), "{} of {end}", found.len());
}
