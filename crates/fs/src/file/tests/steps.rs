//! Files removed in several transactions: a crash in between leaves the file unchanged, truncated,
//! or gone.

use super::durable::Gate;
use super::*;
use crate::meta::RemovalStep;
use crate::names::Caller;
use crate::volume::WriteOptions;
use extant_block::MemDevice;
use extant_rt::Nanos;
use extant_sim::{Machine, Preemption, Sim};
use std::sync::atomic::Ordering;

const K: usize = 1024;

async fn open(rt: &Rt, gate: &Arc<Gate>) -> (PageCache, Volume) {
    let cache = PageCache::new(rt, CacheConfig::with_budget(8 << 20)).unwrap();
    let options = WriteOptions {
        fixed_time: Some(NOW),
        commit_interval: None,
        removal_step: RemovalStep { groups: 2, data_blocks: 16, metadata_blocks: 16 },
        ..WriteOptions::default()
    };
    let volume = Volume::open_writable(rt, &cache.attach(gate.clone()), options).await.unwrap();
    (cache, volume)
}

/// Takes a crash image each time `work` waits for a read, with everything it has done so far
/// committed.
async fn crashes(rt: &Rt, volume: &Volume, gate: &Gate, work: impl Future<Output = ()>) -> Vec<Vec<u8>> {
    let journal = &volume.writer().unwrap().journal;
    let (mut work, mut crashes) = (Box::pin(work), Vec::new());
    while !poll_once(&mut work).await {
        rt.sleep(Nanos::from_micros(10)).await;
        if gate.held.lock().is_empty() {
            continue;
        }
        journal.commit(journal.running()).await.unwrap();
        crashes.push(gate.bytes().await);
        gate.release();
        gate.holds_reads.store(true, Ordering::Relaxed);
    }
    gate.release();
    crashes
}

/// What e2fsck makes of a crash: the resulting contents, and its messages beyond replay and
/// orphans.
type Judged = (Vec<u8>, String);

/// Lets `work` change a file with a large map, none of which is in memory. Returns the original
/// contents, and for each crash what e2fsck makes of it: the resulting contents and its messages
/// beyond replay and orphans.
fn judge(args: &str, work: impl AsyncFn(&Volume, InodeNumber)) -> Option<(Vec<u8>, Vec<Judged>)> {
    if !have_tools() {
        return None;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = make(dir.path(), 12, args, &[vec![]]);
    let sim = Sim::new(Machine::free(2, Preemption::None), 1);
    let memory = Arc::new(MemDevice::from_bytes(std::fs::read(&image).unwrap()));
    let mut contents = Vec::new();
    let (number, crashes) = sim
        .rt()
        .block_on(async {
            let number = numbers(&image, 1).await[0];
            let gate = Gate::new(memory.clone());
            let (_cache, volume) = open(sim.rt(), &gate).await;
            let file = volume.open_for_writing(number, FileOptions::default()).await.unwrap();
            // Fills several leaves of the extent tree, or several blocks of pointers.
            for n in 0..260 {
                let at = 2 * n * K;
                contents.resize(at, 0);
                contents.extend(vec![1 + (n % 99) as u8; K]);
                file.write(at as u64, &contents[at..]).await.unwrap();
            }
            file.sync().await.unwrap();
            drop(file);
            volume.close().await.unwrap();
            let (_cache, volume) = open(sim.rt(), &gate).await;
            gate.holds_reads.store(true, Ordering::Relaxed);
            let crashes = crashes(sim.rt(), &volume, &gate, work(&volume, number)).await;
            volume.close().await.unwrap();
            (number, crashes)
        })
        .unwrap();
    std::fs::write(&image, memory.to_bytes()).unwrap();
    check_is_silent(&image, args);
    let expected = [
        "recovering journal",
        "orphaned inode",
        "Setting free",
        "Free blocks count wrong (",
        "Free inodes count wrong (",
        "FILE SYSTEM WAS MODIFIED",
        // An extent tree that could be flatter is not damage.
        "could be shorter",
        "could be narrower",
        "Pass ",
        " files (",
    ];
    let judged = crashes.iter().map(|crashed| {
        std::fs::write(&image, crashed).unwrap();
        let said = run("e2fsck", &["-fy", image.to_str().unwrap()]);
        let strange = |line: &&str| {
            let is_expected = expected.iter().any(|word| line.contains(word));
            !line.is_empty() && !line.starts_with("e2fsck ") && !is_expected && line.trim() != "Fix? yes"
        };
        let lines: Vec<&str> = said.lines().filter(strange).collect();
        let lines = lines.join("\n");
        check_is_silent(&image, args);
        let links = run("debugfs", &["-R", &format!("stat <{number}>"), image.to_str().unwrap()]);
        let is_gone = links.contains("Links: 0");
        (if is_gone { Vec::new() } else { dumped(&image, number) }, lines)
    });
    Some((contents, judged.collect()))
}

const KINDS: [&str; 2] = ["-t ext4 -b 1024 -J size=1 -N 64", "-t ext3 -b 1024 -I 128 -J size=1 -N 64"];

#[test]
fn a_file_that_is_deleted_in_steps_is_whole_or_gone_after_each() {
    for args in KINDS {
        let found = judge(args, async |volume, _| {
            volume.root_node().await.unwrap().unlink(&Caller::root(), b"0").await.unwrap();
        });
        let Some((contents, crashes)) = found else { return };
        let gone = crashes.iter().filter(|(left, _)| left.is_empty()).count();
        assert!(gone > 0, "{args}: {gone} of {} crashes came between steps", crashes.len());
        for (nth, (left, lines)) in crashes.iter().enumerate() {
            assert_eq!(lines, "", "{args}, crash {nth}");
            assert!(*left == contents || left.is_empty(), "{args}, crash {nth}: {} bytes", left.len());
        }
    }
}
