//! Inodes that are deleted or about to be.

use super::*;
use crate::names::reaper::LAG_MAX;
use extant_block::{Fault, FaultConfig, MemDevice};
use extant_rt::Nanos;
use extant_sim::{Machine, Preemption, Sim};
use futures_util::FutureExt;
use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

#[test]
fn a_number_that_is_given_again_within_a_transaction_has_another_generation() {
    if !have_tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = make(dir.path(), "-t ext4 16M");
    let caller = Caller::root();
    within(&image, async |bed, root| {
        let mut seen = Vec::new();
        for turn in 0..6 {
            let node = root.create(&caller, b"name", 0o644).await.unwrap();
            let handle = (node.inode(), node.generation());
            assert!(!seen.contains(&handle), "{handle:?} of {seen:?}");
            assert_eq!(node.attributes().unwrap().generation, node.generation());
            for &(number, generation) in &seen {
                let stale = bed.volume.node(number, generation).await;
                assert!(matches!(stale, Err(Error::Stale(_))), "{stale:?}");
            }
            seen.push(handle);
            drop(node);
            root.unlink(&caller, b"name").await.unwrap();
            // In one round, let the record reach the inode table.
            if turn == 3 {
                bed.volume.sync().await.unwrap();
            }
        }
        assert!(seen.iter().all(|(number, _)| *number == seen[0].0), "{seen:?}");
    });
    check_is_silent(&image, "after six owners of a number");
}

#[test]
fn a_node_is_had_of_no_inode_that_lost_its_last_name() {
    if !have_tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = make(dir.path(), "-t ext4 16M");
    let caller = Caller::root();
    within(&image, async |bed, root| {
        let node = root.create(&caller, b"name", 0o644).await.unwrap();
        let (number, generation) = (node.inode(), node.generation());
        assert_eq!(bed.volume.node(number, generation).await.unwrap().inode(), number);
        root.unlink(&caller, b"name").await.unwrap();
        assert!(matches!(bed.volume.node(number, generation).await, Err(Error::Stale(_))));
        assert!(bed.volume.open_for_writing(number, Default::default()).await.is_err());
        assert_eq!(node.cell().openers(), 1, "refused before it counted");
        assert!(bed.writer().unused.lock().is_empty());
        drop(node);
    });
    check_is_silent(&image, "after the last node");
}

/// An inode survives, however it lost its last name, while a node holds it.
#[test]
fn a_removed_inode_that_is_kept_is_had_again_until_it_is_let_go() {
    if !have_tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = make(dir.path(), "-t ext4 16M");
    let caller = Caller::root();
    within(&image, async |bed, root| {
        root.create(&caller, b"removed", 0o644).await.unwrap();
        root.mkdir(&caller, b"directory", 0o755).await.unwrap();
        root.create(&caller, b"replaced", 0o644).await.unwrap();
        root.create(&caller, b"new", 0o644).await.unwrap();
        root.create(&caller, b"two", 0o644).await.unwrap();
        let two = root.lookup(&caller, b"two").await.unwrap();
        root.link(&caller, &two, b"names").await.unwrap();
        drop(two);
        let kept = [
            root.unlink_keeping(&caller, b"removed").await.unwrap().unwrap(),
            root.rmdir_keeping(&caller, b"directory").await.unwrap().unwrap(),
            root.rename_keeping(&caller, b"new", root, b"replaced", RenameMode::Replace)
                .await
                .unwrap()
                .unwrap(),
        ];
        let second = root.unlink_keeping(&caller, b"two").await.unwrap().unwrap();
        assert!(second.has_name());
        for node in kept {
            assert!(!node.has_name());
            let (number, generation) = (node.inode(), node.generation());
            let again = bed.volume.known_node(number, generation, None).await.unwrap();
            drop(node);
            assert_eq!(again.attributes().unwrap().links, 0);
            let other = bed.volume.known_node(number, generation ^ 1, None).await;
            assert!(matches!(other, Err(Error::Stale(_))), "{other:?}");
            again.release().await;
            let gone = bed.volume.known_node(number, generation, None).await;
            assert!(matches!(gone, Err(Error::Stale(_))), "{gone:?}");
        }
    });
    check_is_silent(&image, "after four removals");
}

/// The way of a directory stays valid when its inode leaves memory and it is renamed.
#[test]
fn a_moved_directory_is_found_again_by_its_old_way() {
    if !have_tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = make(dir.path(), "-t ext4 16M");
    let caller = Caller::root();
    within(&image, async |bed, root| {
        let from = root.mkdir(&caller, b"from", 0o755).await.unwrap();
        let to = root.mkdir(&caller, b"to", 0o755).await.unwrap();
        from.mkdir(&caller, b"moved", 0o755).await.unwrap();
        let node = from.lookup(&caller, b"moved").await.unwrap();
        let (number, generation, way) = (node.inode(), node.generation(), node.way());
        assert!(way.is_some());
        drop(node);
        from.rename(&caller, b"moved", &to, b"moved", RenameMode::Replace).await.unwrap();
        bed.volume.sync().await.unwrap();
        let inodes = &bed.writer().inodes;
        for _ in 0..3 {
            let _ = inodes.shrink(u64::MAX);
        }
        assert!(inodes.cached(number).is_none());
        let again = bed.volume.known_node(number, generation, way).await.unwrap();
        again.create(&caller, b"inside", 0o644).await.unwrap();
    });
    check_is_silent(&image, "after the move");
}

#[test]
fn a_task_deletes_inodes_that_are_let_go() {
    if !have_tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = make(dir.path(), "-t ext4 -N 4096 16M");
    let caller = Caller::root();
    let rt = Rt::real(Default::default());
    rt.block_on(async {
        let options = WriteOptions { reaps: true, ..WriteOptions::default() };
        let bed = Bed::open_with(&rt, device(&image), options).await;
        let root = bed.volume.root_node().await.unwrap();
        let free = bed.volume.space().inodes_free;
        // Callers leave the work to the task, even while the task is blocked.
        let stopped = bed.writer().reaper.works.write().await;
        let let_go = async |name: &[u8]| {
            let node = root.create(&caller, name, 0o644).await.unwrap();
            root.unlink(&caller, name).await.unwrap();
            drop(node);
        };
        let_go(b"first").await;
        let_go(b"second").await;
        assert_eq!(bed.writer().unused.lock().len(), 2);
        // They help if it falls far behind.
        for n in 0..LAG_MAX {
            let_go(format!("name{n}").as_bytes()).await;
        }
        assert!(bed.writer().unused.lock().len() <= LAG_MAX);
        drop(stopped);
        bed.volume.finish_deletions().await;
        assert_eq!(bed.volume.space().inodes_free, free);
        let_go(b"last").await;
        drop(root);
        bed.close().await;
    })
    .unwrap();
    check_is_silent(&image, "after the task");
}

/// Drops the future of an unlink at each point where it waits.
#[test]
fn a_deletion_that_is_left_in_the_middle_is_finished_by_the_next_operation() {
    if !have_tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = make(dir.path(), "-t ext2 -b 1024 16M");
    let source = dir.path().join("source");
    std::fs::write(&source, vec![7; 3 << 20]).unwrap();
    let script = format!("write {} f\n", source.display());
    std::fs::write(dir.path().join("script"), script).unwrap();
    let script = dir.path().join("script");
    run("debugfs", &["-w", "-f", script.to_str().unwrap(), image.to_str().unwrap()]);
    let bytes = std::fs::read(&image).unwrap();
    let caller = Caller::root();
    let mut left = 0;
    for polls in 1..1000 {
        let sim = Sim::new(Machine::free(1, Preemption::None), 1);
        let delay = Nanos::from_micros(100);
        let delays = FaultConfig { delay_ppm: 1_000_000, delay_max: delay, ..Default::default() };
        let disk = Arc::new(MemDevice::from_bytes(bytes.clone()));
        let slow = Arc::new(Fault::new(disk.clone(), sim.rt(), delays));
        let mut ended = false;
        let work = async {
            let bed = Bed::open(sim.rt(), slow).await;
            let root = bed.volume.root_node().await.unwrap();
            // While the file has data to write back, its map is not read before its name goes.
            let number = root.lookup(&caller, b"f").await.unwrap().inode();
            let file = bed.volume.open_for_writing(number, Default::default()).await.unwrap();
            file.write(0, b"x").await.unwrap();
            drop(file);
            {
                let mut unlink = pin!(root.unlink(&caller, b"f"));
                for _ in 0..polls {
                    ended = unlink.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready();
                    if ended {
                        break;
                    }
                    sim.rt().sleep(delay).await;
                }
            }
            match root.unlink(&caller, b"f").await {
                Ok(()) => {}
                Err(Error::NotFound(_)) => left += u32::from(!ended),
                Err(other) => panic!("{other}"),
            }
            drop(root);
            bed.close().await;
        };
        sim.rt().block_on(work).unwrap();
        std::fs::write(&image, disk.to_bytes()).unwrap();
        check_is_silent(&image, &format!("left after {polls} polls"));
        if ended {
            assert!(left > 0, "left between the name and the end");
            return;
        }
    }
    panic!("it never ended");
}

/// A map of many blocks is read before its file's name goes.
#[test]
fn names_are_found_while_a_map_is_read_for_its_deletion() {
    if !have_tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = make(dir.path(), "-t ext2 -b 1024 16M");
    let (source, script) = (dir.path().join("source"), dir.path().join("script"));
    std::fs::write(&source, vec![7; 3 << 20]).unwrap();
    let names: String = ["unlinked", "renamed_over", "linked_over", "other", "link"]
        .map(|name| format!("write {} {name}\n", source.display()))
        .concat();
    std::fs::write(&script, names).unwrap();
    run("debugfs", &["-w", "-f", script.to_str().unwrap(), image.to_str().unwrap()]);
    let sim = Sim::new(Machine::free(1, Preemption::None), 1);
    let delay = Nanos::from_micros(100);
    let delays = FaultConfig { delay_ppm: 1_000_000, delay_max: delay, ..Default::default() };
    let disk = Arc::new(MemDevice::from_bytes(std::fs::read(&image).unwrap()));
    let slow = Arc::new(Fault::new(disk.clone(), sim.rt(), delays));
    let caller = Caller::root();
    let work = async {
        let bed = Bed::open(sim.rt(), slow).await;
        let root = bed.volume.root_node().await.unwrap();
        let link = root.lookup(&caller, b"link").await.unwrap();
        for turn in 0..3 {
            let mut deletion = pin!(async {
                match turn {
                    0 => root.unlink(&caller, b"unlinked").await,
                    1 => root.rename(&caller, b"other", &root, b"renamed_over", RenameMode::Replace).await,
                    _ => root.link_over(&caller, &link, b"linked_over").await,
                }
            });
            let mut found = 0;
            let wait = Nanos(delay.0 / 4);
            loop {
                if let Poll::Ready(ended) = deletion.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                    ended.unwrap();
                    break;
                }
                found += u32::from(root.lookup(&caller, b"link").now_or_never().is_some());
                sim.rt().sleep(wait).await;
            }
            assert!(found > 10, "turn {turn}: a name was found {found} times");
        }
        drop((root, link));
        bed.close().await;
    };
    sim.rt().block_on(work).unwrap();
    std::fs::write(&image, disk.to_bytes()).unwrap();
    check_is_silent(&image, "after three deletions");
}
