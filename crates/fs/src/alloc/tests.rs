//! Random allocations, frees and abandoned plans.

use super::{NewInode, Parent, Privilege, Wanted};
use crate::Error;
use crate::journal::Credits;
use crate::testbed::{Bed, Node, check_is_silent, have_tools, make, run};
use extant_block::{Bio, Device, Fault, FaultConfig, IoErrorKind, Limits, MemDevice, Op};
use extant_format::{FileKind, Group, GroupFlags, InodeNumber, VolumeBlock};
use extant_rt::{Nanos, Rng, Rt};
use extant_sim::{Machine, Preemption, Sim};
use parking_lot::Mutex;
use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Barrier};
use std::task::{Context, Waker};

fn judge(name: &str, mib: usize, args: &str, seed: u64) {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    make(&image, mib, args);
    let rt = Rt::real(Default::default());
    let live = rt
        .block_on(async {
            let bed = Bed::open(&rt, &image).await;
            let mut rng = Rng::labelled(seed, name);
            let mut live: Vec<Node> = Vec::new();
            for _ in 0..300 {
                match rng.below(10) {
                    0..=4 if live.len() < 50 => {
                        let is_dir = rng.below(4) == 0;
                        live.extend(bed.create(&mut rng, is_dir).await);
                    }
                    0..=6 if !live.is_empty() => {
                        let node = live.swap_remove(rng.below(live.len() as u64) as usize);
                        bed.delete(node).await;
                    }
                    7 => bed.journal.commit(bed.journal.running()).await.unwrap(),
                    _ => {}
                }
            }
            live.iter().for_each(|node| bed.alloc.close_window(node.cell.number()));
            let numbers: Vec<_> = live.iter().map(|node| node.cell.number()).collect();
            drop(live);
            bed.close().await;
            numbers
        })
        .unwrap();
    let script = dir.path().join("script");
    let lines = live.iter().map(|number| format!("link <{number}> /f{number}\n"));
    std::fs::write(&script, lines.collect::<String>()).unwrap();
    run("debugfs", &["-w", "-f", script.to_str().unwrap(), image.to_str().unwrap()]);
    check_is_silent(&image, &format!("{name}, seed {seed}"));
    let names = run("debugfs", &["-R", "ls", image.to_str().unwrap()]);
    assert!(live.len() > 5 && live.iter().all(|number| names.contains(&format!("f{number} "))), "{names}");
}

#[test]
fn e2fsck_agrees_after_random_allocations_on_every_geometry() {
    if !have_tools() {
        return;
    }
    let seed = std::env::var("EXTANT_SEED").map_or(1, |seed| seed.parse().unwrap());
    for (name, mib, args) in [
        ("ext4 1k, 16 groups of 2 MiB", 32, "-t ext4 -b 1024 -g 2048 -N 2048"),
        ("ext4 4k, flex of 4", 64, "-t ext4 -b 4096 -g 1024 -G 4 -N 2048"),
        ("uninit_bg", 32, "-t ext4 -b 1024 -g 2048 -O ^metadata_csum,uninit_bg -N 4096"),
        ("no group checksums", 32, "-t ext4 -b 1024 -g 2048 -O ^metadata_csum,^uninit_bg -N 4096"),
        ("meta_bg", 64, "-t ext4 -b 1024 -g 1024 -O meta_bg,^resize_inode -N 4096"),
        ("32-byte descriptors", 32, "-t ext4 -b 2048 -g 1024 -O ^64bit,^flex_bg -N 1024"),
        ("ext3", 32, "-t ext3 -b 1024 -g 4096 -I 128"),
        ("ext2", 16, "-t ext2 -b 1024 -I 128"),
        ("full volume", 2, "-t ext4 -b 1024 -O ^has_journal -m 0 -N 64"),
    ] {
        judge(name, mib, args, seed);
    }
}

#[test]
fn an_inode_whose_taker_leaves_is_free_again() {
    if !have_tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    make(&image, 2, "-t ext2 -b 1024 -N 64");
    let bytes = std::fs::read(&image).unwrap();
    let mut ended = false;
    for polls in 0..100 {
        let sim = Sim::new(Machine::free(1, Preemption::None), 1);
        let delay = Nanos::from_micros(100);
        let delays = FaultConfig { delay_ppm: 1_000_000, delay_max: delay, ..Default::default() };
        let disk = Arc::new(MemDevice::from_bytes(bytes.clone()));
        let slow = Arc::new(Fault::new(disk, sim.rt(), delays));
        let work = async {
            let bed = Bed::over(sim.rt(), slow).await;
            let before = bed.alloc.statfs().free_inodes;
            let parent = Parent { inode: InodeNumber::ROOT, group: Group(0), last: None };
            {
                let mut taking = pin!(bed.alloc.inode(Wanted::File, parent));
                for _ in 0..polls {
                    if taking.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready() {
                        ended = true;
                        break;
                    }
                    sim.rt().sleep(delay).await;
                }
            }
            assert_eq!(bed.alloc.statfs().free_inodes, before, "left after {polls} polls");
            assert_eq!(bed.alloc.problems().len(), 0);
        };
        sim.rt().block_on(work).unwrap();
        if ended {
            assert!(polls > 1, "it waited for the device");
            return;
        }
    }
    panic!("it never ended");
}

/// Creating an inode writes the group's block bitmap while another task loads it.
#[test]
fn a_block_bitmap_that_never_was_is_made_once() {
    if !have_tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    make(&image, 64, "-t ext4 -b 1024 -g 256 -N 4096 -O ^resize_inode,^has_journal");
    let rt = Rt::real(Default::default());
    let bed = rt.block_on(Bed::open(&rt, &image)).unwrap();
    let shared = &bed.alloc.shared;
    let never = |group: &Group| shared.descriptor(*group).flags.contains(GroupFlags::BLOCK_UNINIT);
    let groups: Vec<_> = (0..shared.sb().group_count()).map(Group).filter(never).collect();
    assert!(groups.len() > 100, "{}", groups.len());
    let start = Barrier::new(2);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for &group in &groups {
                start.wait();
                let mut handle = bed.journal.try_start(Credits(3)).unwrap().unwrap();
                shared.ensure_block_bitmap(&mut handle, group);
            }
        });
        for &group in &groups {
            start.wait();
            let mut loading = pin!(shared.load(group));
            // Ready at once: it has no bitmap to read, or only one that is in memory.
            assert!(loading.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready());
        }
    });
    let bitmaps = shared.block_bitmaps.lock();
    for group in groups {
        let unwritten = matches!(bitmaps.get(&group.0), Some(super::Bitmap::Unwritten));
        assert!(!unwritten, "group {group}: the next change makes its bitmap again");
    }
}

/// Takes six inodes over three table blocks that were never written, and creates only the last one.
#[test]
fn blocks_of_an_inode_table_that_are_left_behind_are_made() {
    if !have_tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    for (name, args) in [
        ("csum", "-t ext4 -b 1024 -I 256 -g 2048 -N 512 -O ^has_journal,^flex_bg"),
        (
            "uninit_bg",
            "-t ext4 -b 1024 -I 256 -g 2048 -N 512 -O ^has_journal,^flex_bg,^metadata_csum,uninit_bg",
        ),
    ] {
        let image = dir.path().join(name);
        make(&image, 8, args);
        let rt = Rt::real(Default::default());
        let numbers = rt.block_on(async {
            let bed = Bed::open(&rt, &image).await;
            let mut numbers = Vec::new();
            // The group of the root directory, and one whose inode bitmap was never written.
            for group in [0, 2] {
                let parent = Parent { inode: InodeNumber::ROOT, group: Group(group), last: None };
                let mut taken = Vec::new();
                for _ in 0..6 {
                    taken.push(bed.alloc.inode(Wanted::File, parent).await.unwrap());
                }
                let last = taken.pop().unwrap();
                let left: Vec<_> = taken.iter().map(NewInode::number).collect();
                assert!(last.credits() > 4, "{name}: {:?}, {left:?}", last.number());
                let mut handle = bed.journal.start(Credits(last.credits() + 1)).await.unwrap();
                let cell = bed.inodes.create(&mut handle, &bed.alloc, last, |inode| {
                    inode.raw.i_mode = (FileKind::Regular.mode_bits() | 0o644).into();
                    inode.raw.i_links_count = 1.into();
                });
                numbers.push(cell.number());
            }
            bed.close().await;
            numbers
        });
        for number in numbers.unwrap() {
            run("debugfs", &["-w", "-R", &format!("link <{number}> /f{number}"), image.to_str().unwrap()]);
        }
        check_is_silent(&image, name);
    }
}

/// Fails reads of the sectors in `bad`.
#[derive(Debug)]
struct Unreadable {
    disk: MemDevice,
    bad: Mutex<Vec<u64>>,
}

impl Device for Unreadable {
    fn limits(&self) -> &Limits {
        self.disk.limits()
    }

    fn submit(&self, bio: Bio) {
        let sectors = bio.start.0..bio.start.0 + bio.bytes / 512;
        if bio.op == Op::Read && self.bad.lock().iter().any(|bad| sectors.contains(bad)) {
            return bio.end_as("unreadable", Err(IoErrorKind::Os(5)));
        }
        self.disk.submit(bio);
    }
}

#[test]
fn groups_whose_bitmaps_cannot_be_read_are_passed_over_and_do_not_make_a_volume_full() {
    if !have_tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    make(&image, 4, "-t ext4 -b 1024 -g 2048 -N 128 -O ^has_journal,^flex_bg");
    let disk = MemDevice::from_bytes(std::fs::read(&image).unwrap());
    let device = Arc::new(Unreadable { disk, bad: Mutex::default() });
    let rt = Rt::real(Default::default());
    let work = async {
        let first = Bed::over(&rt, device.clone()).await.alloc.shared.descriptor(Group(0));
        device.bad.lock().extend([first.inode_bitmap.0 * 2, first.block_bitmap.0 * 2]);
        let bed = Bed::over(&rt, device.clone()).await;
        let (alloc, journal) = (&bed.alloc, &bed.journal);
        let parent = Parent { inode: InodeNumber::ROOT, group: Group(0), last: None };
        let goal = VolumeBlock(1);
        let inode = alloc.inode_waiting(journal, Wanted::File, parent).await.unwrap();
        assert!(inode.number().0 > 64, "the first group has 64: {}", inode.number());
        let mut some = alloc.reserve_waiting(journal, 1, 0, Privilege::Reserved).await.unwrap();
        let block = alloc.blocks(goal, 1, &mut some).await.unwrap();
        assert!(block.run().start.0 > 2048, "{:?}", block.run());
        let free = alloc.statfs().free;
        let many = alloc.reserve_waiting(journal, free + 1, 0, Privilege::Reserved).await;
        assert!(matches!(many, Err(Error::Io(_))), "the volume has as many: {many:?}");
        let too_many = alloc.reserve_waiting(journal, 1 << 20, 0, Privilege::Reserved).await;
        assert!(matches!(too_many, Err(Error::NoSpace)), "{too_many:?}");
        drop((inode, block));
        let mut all = Vec::new();
        let full = loop {
            match alloc.inode_waiting(journal, Wanted::File, parent).await {
                Ok(inode) => all.push(inode),
                Err(error) => break error,
            }
        };
        assert_eq!(all.len(), 64, "those of the second group");
        assert!(matches!(full, Error::Io(_)), "{full:?}");
    };
    rt.block_on(work).unwrap();
}

#[test]
fn inodes_that_cannot_be_looked_for_are_not_said_to_be_in_use() {
    if !have_tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    make(&image, 2, "-t ext4 -b 1024 -N 64 -O ^has_journal");
    let rt = Rt::real(Default::default());
    let found = rt.block_on(async {
        let bed = Bed::open(&rt, &image).await;
        let shared = &bed.alloc.shared;
        let bitmap = shared.descriptor(Group(0)).inode_bitmap;
        let at = extant_block::Sector(bitmap.0 * 2);
        let garbage = extant_block::Buf::from_slice(&[0x5a; 1024]);
        extant_block::write(&**bed.store.blocks().device(), at, garbage).await.unwrap();
        let parent = Parent { inode: InodeNumber::ROOT, group: Group(0), last: None };
        bed.alloc.inode_waiting(&bed.journal, Wanted::File, parent).await.err()
    });
    let found = found.unwrap();
    assert!(matches!(found, Some(Error::Corrupt(_))), "{found:?}");
}
