//! Crashes of a journalled volume while files are being written: what each byte may read as
//! afterwards.

use super::*;
use crate::volume::WriteOptions;
use extant_block::{Bio, BioFlags, Buf, Limits, Log, LogEvent, MemDevice, Record};
use extant_sim::{Machine, Preemption, Sim};
use std::collections::BTreeSet;

/// A device that loses unflushed writes in a crash.
#[derive(Debug)]
pub(super) struct Volatile {
    pub(super) inner: Arc<dyn Device>,
    pub(super) limits: Limits,
}

impl Device for Volatile {
    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn submit(&self, bio: Bio) {
        self.inner.submit(bio);
    }
}

/// A file's contents over time.
#[derive(Default)]
struct History {
    /// Contents, and the log position where the operation that made them began.
    versions: Vec<(usize, Vec<u8>)>,
    /// Log position where a sync had returned, and the version it made durable.
    synced: Vec<(usize, usize)>,
}

impl History {
    /// Checks what a crash at log position `position` left.
    fn check(&self, position: usize, found: &[u8], what: &str) {
        let base =
            self.synced.iter().rev().find(|(at, _)| *at <= position).map_or(0, |&(_, version)| version);
        let allowed: Vec<&Vec<u8>> = self.versions[base..]
            .iter()
            .take_while(|(began, _)| *began <= position)
            .map(|(_, bytes)| bytes)
            .collect();
        let lens = || allowed.iter().map(|bytes| bytes.len());
        let (shortest, longest) = (lens().min().unwrap(), lens().max().unwrap());
        assert!(
            (shortest..=longest).contains(&found.len()),
            "{what}: {} bytes, {shortest} to {longest} allowed",
            found.len()
        );
        for (at, &byte) in found.iter().enumerate() {
            let of = |bytes: &&Vec<u8>| bytes.get(at).copied().unwrap_or(0);
            let is_old_or_new = allowed.iter().any(|bytes| of(bytes) == byte);
            let changed = allowed.iter().any(|bytes| of(bytes) != of(&allowed[0]));
            assert!(is_old_or_new || (byte == 0 && changed), "{what}: byte {at} is {byte:#x}");
        }
    }
}

/// A possible image after a crash: everything durable and some of the rest. A write with a preflush
/// is on the medium only if everything that ended before it is there, too.
pub(super) fn image_after(fresh: &[u8], log: &Log, position: usize, rng: &mut Rng) -> Vec<u8> {
    let crash = log.crash(position);
    let share = rng.below(4);
    let mut applied: BTreeSet<usize> = crash.durable.iter().copied().collect();
    applied.extend(crash.volatile.iter().filter(|_| rng.below(4) < share));
    let (mut ended, mut whole) = (Vec::new(), applied.clone());
    for event in &log.events[..position] {
        match *event {
            LogEvent::Ended { change, .. } => ended.push(change),
            LogEvent::Submitted(change)
                if applied.contains(&change) && log.changes[change].flags.contains(BioFlags::PREFLUSH) =>
            {
                whole.extend(ended.iter().copied());
            }
            LogEvent::Submitted(_) => {}
        }
    }
    let mut image = fresh.to_vec();
    for &index in &whole {
        let change = &log.changes[index];
        let torn = applied.contains(&index) && crash.volatile.contains(&index) && rng.below(4) == 0;
        let covered = !torn || ended.contains(&index);
        let sectors = if covered { change.sectors() } else { rng.below(change.sectors() + 1) };
        change.apply(&mut image, 0..sectors);
    }
    image
}

/// Data without the byte that fills free space.
fn data(rng: &mut Rng, len: usize) -> Vec<u8> {
    bytes(rng, len).into_iter().map(|byte| if byte == 0xa5 || byte == 0 { 1 } else { byte }).collect()
}

fn judge(name: &str, args: &str, seed: u64, states: u64) {
    println!("{name}: EXTANT_SEED={seed}");
    const FILES: usize = 3;
    let dir = tempfile::tempdir().unwrap();
    let mut rng = Rng::labelled(seed, name);
    let start: Vec<Vec<u8>> = [0usize, 5000, 40_000].iter().map(|&len| data(&mut rng, len)).collect();
    let image = make(dir.path(), 12, args, &start);
    let fresh = std::fs::read(&image).unwrap();
    let sim = Sim::new(Machine::free(2, Preemption::None), seed);
    let rt = sim.rt().clone();
    let memory = Arc::new(MemDevice::from_bytes(fresh.clone()));
    let limits = Limits { volatile_cache: true, ..memory.limits().clone() };
    let record = Arc::new(Record::new(Arc::new(Volatile { inner: memory, limits })));
    let (numbers, histories) = rt
        .block_on(async {
            let numbers = numbers(&image, FILES).await;
            let cache = PageCache::new(&rt, CacheConfig::with_budget(4 << 20)).unwrap();
            let disk = cache.attach(record.clone());
            let options = WriteOptions { fixed_time: Some(NOW), ..WriteOptions::default() };
            let volume = Volume::open_writable(&rt, &disk, options).await.unwrap();
            let mut files = Vec::new();
            for &number in &numbers {
                files.push(volume.open_for_writing(number, FileOptions::default()).await.unwrap());
            }
            let first = record.position();
            let mut histories: Vec<History> = start
                .iter()
                .map(|bytes| History { versions: vec![(first, bytes.clone())], synced: vec![(first, 0)] })
                .collect();
            for _ in 0..120 {
                let n = rng.below(FILES as u64) as usize;
                let (file, history) = (&files[n], &mut histories[n]);
                let mut model = history.versions.last().unwrap().1.clone();
                let began = record.position();
                match rng.below(10) {
                    0..=4 => {
                        let offset =
                            if rng.below(2) == 0 { model.len() } else { rng.below(150_000) as usize };
                        let len = rng.below(20_000) as usize + 1;
                        let direct = rng.below(4) == 0;
                        let (offset, len) = match direct {
                            true => (offset / 4096 * 4096, len.next_multiple_of(512)),
                            false => (offset, len),
                        };
                        let data = data(&mut rng, len);
                        model.resize(model.len().max(offset + len), 0);
                        model[offset..offset + len].copy_from_slice(&data);
                        history.versions.push((began, model));
                        let written = match direct {
                            true => file.write_direct(offset as u64, Buf::from_slice(&data)).await.1,
                            false => file.write(offset as u64, &data).await,
                        };
                        assert_eq!(written.unwrap(), len);
                    }
                    5 | 6 => {
                        let size = rng.below(150_000) as usize;
                        model.resize(size, 0);
                        history.versions.push((began, model));
                        file.set_size(size as u64).await.unwrap();
                    }
                    7 | 8 => {
                        file.sync().await.unwrap();
                        history.synced.push((record.position(), history.versions.len() - 1));
                    }
                    _ => rt.sleep(extant_rt::Nanos::from_millis(rng.below(8000))).await,
                }
            }
            (numbers, histories)
        })
        .unwrap();
    let log = record.log();
    let first = histories[0].synced[0].0;
    for state in 0..states {
        let position = first + rng.below((log.events.len() - first) as u64 + 1) as usize;
        let what = format!("{name}, seed {seed}, state {state}, position {position}");
        let crashed = image_after(&fresh, &log, position, &mut rng);
        if state % 10 == 0 {
            let copy = dir.path().join("crashed");
            std::fs::write(&copy, &crashed).unwrap();
            let said = run("e2fsck", &["-fy", copy.to_str().unwrap()]);
            assert!(!said.contains("i_size"), "{what}: {said}");
            check_is_silent(&copy, &what);
            for (number, history) in numbers.iter().zip(&histories) {
                history.check(position, &dumped(&copy, *number), &format!("{what}, e2fsck, inode {number}"));
            }
        }
        rt.block_on(async {
            let volume =
                Volume::open(Arc::new(MemDevice::from_bytes(crashed)), Default::default()).await.unwrap();
            for (number, history) in numbers.iter().zip(&histories) {
                let inode = volume.inode(*number).await.unwrap();
                let mut found = vec![0; inode.size() as usize];
                let file = volume.open_file(inode).await.unwrap();
                file.read_at(0, &mut found).await.unwrap();
                history.check(position, &found, &format!("{what}, inode {number}"));
            }
        })
        .unwrap();
    }
}

#[test]
fn after_a_crash_bytes_are_old_new_or_zero_and_what_was_synced_is_there() {
    if !have_tools() {
        return;
    }
    let seed = std::env::var("EXTANT_SEED").map_or(1, |seed| seed.parse().unwrap());
    for (name, args) in [
        ("ext4 4k", "-t ext4 -b 4096 -N 64"),
        ("ext4 1k", "-t ext4 -b 1024 -N 64"),
        ("ext3 1k", "-t ext3 -b 1024 -I 128 -N 64"),
    ] {
        judge(name, args, seed, 120);
    }
}
