//! A small journalled file system on the cache's interfaces: data is placed at write-back and
//! logged at completion, truncation frees blocks under an exclusion, and commits freeze what
//! changed. It runs in virtual worlds with a recorder under the cache, where each seed gives
//! another schedule. It is then crashed at many points.
//!
//! After every crash a file contains its own bytes or zeros, never another file's, and everything
//! that was synced is there.

use crate::common::Gate;
use extant_block::{Bio, BioFlags, Buf, Log, LogEvent, Op, Record, Sector, Segment};
use extant_cache::{
    Answer, Backing, ByteRange, CacheConfig, DirtyRun, Disk, Mapping, PageCache, Placed, ReadExtent,
    ReadFrom, WriteExtent, WriteTo, WrittenRun,
};
use extant_rt::{Nanos, Rng, Rt};
use extant_sim::{Jitter, Machine, Preemption, Sim};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const BLOCK: u64 = 4096;
const SECTOR: u64 = Sector::BYTES;
/// First blocks of the log's two slots, and of the data.
const LOG: u64 = 16;
const DATA: u64 = 64;

/// The contents of a file's home block.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Meta {
    size: u64,
    /// Maps pages to blocks.
    map: BTreeMap<u64, u64>,
}

impl Meta {
    fn emit(&self, block: &mut [u8]) {
        let words = [self.size, self.map.len() as u64];
        let map = self.map.iter().map(|(page, at)| page << 32 | at);
        for (to, word) in block.chunks_exact_mut(8).zip(words.into_iter().chain(map)) {
            to.copy_from_slice(&word.to_le_bytes());
        }
    }

    fn parse(block: &[u8]) -> Self {
        let word = |at: usize| u64::from_le_bytes(block[at * 8..at * 8 + 8].try_into().expect("eight bytes"));
        let entry = |at: u64| (word(at as usize) >> 32, word(at as usize) & 0xffff_ffff);
        Self { size: word(0), map: (2..2 + word(1)).map(entry).collect() }
    }
}

#[derive(Debug, Default)]
struct State {
    live: Vec<Meta>,
    /// Files changed by the running transaction.
    changed: BTreeSet<usize>,
    free: BTreeSet<u64>,
    /// Freed by the running transaction; must not be reused before it is on the disk.
    freed: Vec<u64>,
    sequence: u64,
}

#[derive(Debug)]
struct Journalled {
    rt: Rt,
    disk: Disk,
    device: Arc<Record>,
    state: Mutex<State>,
    committing: AtomicBool,
}

#[derive(Debug)]
struct File {
    fs: Arc<Journalled>,
    number: usize,
}

impl Backing for File {
    fn block_bytes(&self) -> u32 {
        BLOCK as u32
    }

    fn map_read(&self, range: ByteRange) -> Answer<'_, ReadExtent> {
        let state = self.fs.state.lock();
        let from = match state.live[self.number].map.get(&(range.start / BLOCK)) {
            Some(block) => ReadFrom::Device(Sector(block * BLOCK / SECTOR)),
            None => ReadFrom::Hole,
        };
        Answer::ok(ReadExtent { from, bytes: BLOCK })
    }

    fn prepare_write<'a>(&'a self, run: DirtyRun<'a>) -> Answer<'a, Placed> {
        let state = &mut *self.fs.state.lock();
        let live = &state.live[self.number];
        let mut placed = Placed { changes_map: run.size_bytes > live.size, ..Placed::default() };
        for piece in run.pieces {
            for page in piece.pages().start..piece.pages().end {
                let block = live.map.get(&page).copied().unwrap_or_else(|| {
                    placed.changes_map = true;
                    state.free.pop_first().expect("the device is large enough")
                });
                let range = ByteRange::at(page * BLOCK, BLOCK).intersect(*piece);
                let extent = WriteExtent::new(range, Sector(block * BLOCK / SECTOR));
                placed.extents.push(WriteExtent { note: block, ..extent });
            }
        }
        Answer::ok(placed)
    }

    fn finish_write<'a>(&'a self, run: &'a WrittenRun) -> Answer<'a, ()> {
        Answer::later(async move {
            // A handle may have to wait.
            self.fs.rt.yield_now().await;
            let mut state = self.fs.state.lock();
            let state = &mut *state;
            let live = &mut state.live[self.number];
            for written in &run.extents {
                assert!(matches!(written.extent.to, WriteTo::Device(_)) && written.result.is_ok());
                live.map.insert(written.extent.range.start / BLOCK, written.extent.note);
                live.size = live.size.max(run.size_bytes.min(written.extent.range.end));
            }
            state.changed.insert(self.number);
            Ok(())
        })
    }
}

/// FNV-1a.
fn checksum(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}

impl Journalled {
    /// Commits the running transaction: freezes it, logs it, then writes it home.
    async fn commit(&self) {
        while self.committing.swap(true, Ordering::SeqCst) {
            self.rt.sleep(Nanos::from_micros(20)).await;
        }
        let (frozen, freed, sequence) = {
            let mut state = self.state.lock();
            let changed = std::mem::take(&mut state.changed);
            let frozen: Vec<_> = changed.into_iter().map(|file| (file, state.live[file].clone())).collect();
            state.sequence += u64::from(!frozen.is_empty());
            (frozen, std::mem::take(&mut state.freed), state.sequence)
        };
        if frozen.is_empty() {
            self.disk.flush().await.unwrap();
        } else {
            let mut log = vec![0; (1 + frozen.len()) * BLOCK as usize];
            for (nth, (file, meta)) in frozen.iter().enumerate() {
                let at = (1 + nth) * BLOCK as usize;
                log[32 + nth * 8..40 + nth * 8].copy_from_slice(&(*file as u64).to_le_bytes());
                meta.emit(&mut log[at..at + BLOCK as usize]);
            }
            log[8..16].copy_from_slice(&sequence.to_le_bytes());
            log[16..24].copy_from_slice(&(frozen.len() as u64).to_le_bytes());
            let sum = checksum(&log[8..]);
            log[..8].copy_from_slice(&sum.to_le_bytes());
            let slot = LOG + sequence % 2 * 16;
            self.write(slot, &log, BioFlags::PREFLUSH | BioFlags::FUA | BioFlags::SYNC).await;
            for (file, meta) in &frozen {
                let mut home = vec![0; BLOCK as usize];
                meta.emit(&mut home);
                self.write(*file as u64, &home, BioFlags::META).await;
            }
            self.state.lock().free.extend(freed);
        }
        self.committing.store(false, Ordering::SeqCst);
    }

    async fn write(&self, block: u64, bytes: &[u8], flags: BioFlags) {
        let segments = vec![Segment::from(Buf::from_slice(bytes))];
        let mut bio = Bio::new(Op::Write, Sector(block * BLOCK / SECTOR), segments);
        bio.flags = flags;
        extant_block::execute(&*self.device, bio).await.1.unwrap();
    }

    async fn truncate(&self, file: usize, mapping: &Mapping, size: u64) {
        let exclusion = mapping.exclude(size..).await;
        mapping.set_size(size).await.unwrap();
        {
            let mut state = self.state.lock();
            let live = &mut state.live[file];
            let cut = live.map.split_off(&size.div_ceil(BLOCK));
            live.size = size;
            state.freed.extend(cut.into_values());
            state.changed.insert(file);
        }
        mapping.remapped(size..);
        drop(exclusion);
    }
}

/// The state after a crash, as the log implies it: home blocks overlaid with the committed
/// transactions.
fn recover(mut image: Vec<u8>, files: usize) -> (Vec<Meta>, Vec<u8>) {
    let mut found = BTreeMap::new();
    for slot in [LOG, LOG + 16] {
        let log = &image[(slot * BLOCK) as usize..((slot + 16) * BLOCK) as usize];
        let word = |at: usize| u64::from_le_bytes(log[at..at + 8].try_into().expect("eight bytes"));
        let len = (1 + word(16).min(15) as usize) * BLOCK as usize;
        if word(8) > 0 && checksum(&log[8..len]) == word(0) {
            let blocks = (0..word(16) as usize).map(|nth| {
                let at = (1 + nth) * BLOCK as usize;
                (word(32 + nth * 8), log[at..at + BLOCK as usize].to_vec())
            });
            found.insert(word(8), blocks.collect::<Vec<_>>());
        }
    }
    for (file, block) in found.into_values().flatten() {
        image[(file * BLOCK) as usize..][..BLOCK as usize].copy_from_slice(&block);
    }
    let meta = |file| Meta::parse(&image[file * BLOCK as usize..][..BLOCK as usize]);
    ((0..files).map(meta).collect(), image)
}

/// A file's contents at the end of a sync, which crashes must preserve.
#[derive(Clone, Debug, Default)]
struct Promise {
    position: usize,
    size: u64,
    /// Maps sectors to versions.
    written: BTreeMap<u64, u64>,
}

#[derive(Debug, Default)]
struct Model {
    promises: Vec<Promise>,
    /// Where each truncation began, and the size it set.
    cuts: Vec<(usize, u64)>,
    now: Promise,
}

fn tag(file: usize, sector: u64, version: u64) -> [u8; SECTOR as usize] {
    let words = [file as u64 + 1, sector, version];
    let mut out = [0; SECTOR as usize];
    for (n, to) in out.chunks_exact_mut(8).enumerate() {
        to.copy_from_slice(&words[n % 3].to_le_bytes());
    }
    out
}

/// File, sector and version of a written sector; `None` for zeros.
fn read_tag(bytes: &[u8], what: &str) -> Option<(u64, u64, u64)> {
    if bytes.iter().all(|byte| *byte == 0) {
        return None;
    }
    let word = |n: usize| u64::from_le_bytes(bytes[n * 8..n * 8 + 8].try_into().expect("eight bytes"));
    let (file, sector, version) = (word(0), word(1), word(2));
    assert!(file > 0 && bytes == tag(file as usize - 1, sector, version), "{what}: a torn sector");
    Some((file - 1, sector, version))
}

struct Shape {
    files: usize,
    pages: u64,
    budget: u64,
    turns: u64,
    /// Number of crashes to check.
    cuts: u64,
}

fn schedule(seed: u64, shape: &Shape) {
    let sim = Sim::new(Machine::free(2, Preemption::None), seed);
    let rt = sim.rt().clone();
    let blocks = DATA + 3 * shape.files as u64 * shape.pages;
    let gate = Gate::volatile((blocks * BLOCK) as usize);
    let record = Arc::new(Record::new(Arc::new(Jitter::new(&sim, gate, 0))));
    let config = CacheConfig {
        bio_bytes: BLOCK * 4,
        run_bytes: Some(BLOCK * 16),
        periodic: Nanos::from_millis(1),
        expire: Nanos::from_millis(2),
        ..CacheConfig::with_budget(shape.budget)
    };
    let cache = PageCache::new(&rt, config).unwrap();
    let disk = cache.attach(record.clone());
    let fs = Arc::new(Journalled {
        rt: rt.clone(),
        disk: disk.clone(),
        device: record.clone(),
        state: Mutex::new(State {
            live: vec![Meta::default(); shape.files],
            free: (DATA..blocks).collect(),
            ..State::default()
        }),
        committing: AtomicBool::new(false),
    });
    let mut rng = rt.rng("tasks");
    let tasks: Vec<_> = (0..shape.files)
        .map(|number| {
            let (fs, rt) = (fs.clone(), rt.clone());
            let mapping = disk.mapping(Arc::new(File { fs: fs.clone(), number }), number as u64, 0);
            let mut rng = Rng::new(rng.next_u64());
            let (turns, sectors) = (shape.turns, shape.pages * BLOCK / SECTOR);
            rt.clone().spawn("writer", Default::default(), async move {
                let file = mapping.open();
                let mut model = Model::default();
                for version in 1..=turns {
                    match rng.below(10) {
                        0..6 => {
                            let first = rng.below(sectors);
                            let count = (1 + rng.below(40)).min(sectors - first);
                            let bytes: Vec<u8> = (first..first + count)
                                .flat_map(|sector| tag(number, sector, version))
                                .collect();
                            file.write(first * SECTOR, &bytes).await.unwrap();
                            let now = &mut model.now;
                            now.size = now.size.max((first + count) * SECTOR);
                            now.written.extend((first..first + count).map(|sector| (sector, version)));
                        }
                        6 | 7 => {
                            file.sync_range(..).await.unwrap();
                            fs.commit().await;
                            let promise = Promise { position: fs.device.position(), ..model.now.clone() };
                            model.promises.push(promise);
                        }
                        8 => {
                            let size = rng.below(sectors) * SECTOR;
                            if size < mapping.size() {
                                model.cuts.push((fs.device.position(), size));
                                fs.truncate(number, &mapping, size).await;
                                model.now.size = size;
                                model.now.written.retain(|sector, _| sector * SECTOR < size);
                            }
                        }
                        _ => {
                            let sector = rng.below(sectors);
                            let mut bytes = [0; SECTOR as usize];
                            if file.read(sector * SECTOR, &mut bytes).await.unwrap() == bytes.len() {
                                let seen = read_tag(&bytes, "read").map(|(of, at, version)| {
                                    assert_eq!((of, at), (number as u64, sector), "another's bytes");
                                    version
                                });
                                assert_eq!(seen, model.now.written.get(&sector).copied(), "seed {seed}");
                            }
                        }
                    }
                }
                (mapping, model)
            })
        })
        .collect();
    let models = rt
        .block_on(async {
            let mut models = Vec::new();
            for task in tasks {
                let (_mapping, model) = task.await.unwrap();
                models.push(model);
            }
            cache.sync().await.unwrap();
            fs.commit().await;
            cache.audit();
            models
        })
        .unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    let log = record.log();
    let mut rng = Rng::labelled(seed, "crashes");
    for nth in 0..=shape.cuts {
        let position =
            if nth == shape.cuts { log.events.len() } else { rng.below(log.events.len() as u64) as usize };
        let image = crashed(&log, position, blocks * BLOCK, &mut rng);
        let (metas, image) = recover(image, shape.files);
        let what = format!("seed {seed}, crash after {position} of {} events", log.events.len());
        check(&what, &image, &metas, &models, position);
    }
}

/// A medium after a crash. It has everything that was durable; each other change is there in whole,
/// in part or not at all.
fn crashed(log: &Log, position: usize, bytes: u64, rng: &mut Rng) -> Vec<u8> {
    let crash = log.crash(position);
    let mut extents = BTreeMap::new();
    for index in crash.volatile {
        let sectors = log.changes[index].sectors();
        let start = rng.below(sectors);
        let part =
            [0..sectors, start..start + 1 + rng.below(sectors - start), 0..0][rng.below(3) as usize].clone();
        extents.insert(index, part);
    }
    // A `PREFLUSH` write is not on the medium before the writes that it flushes.
    let mut ended = BTreeSet::new();
    let mut flushed = BTreeSet::new();
    for event in &log.events[..position] {
        match *event {
            LogEvent::Submitted(index) => {
                let is_there = extents.get(&index).is_some_and(|part| !part.is_empty());
                if is_there && log.changes[index].flags.contains(BioFlags::PREFLUSH) {
                    flushed.extend(ended.iter().copied());
                }
            }
            LogEvent::Ended { change, ok } => {
                ok.then(|| ended.insert(change));
            }
        }
    }
    for index in crash.durable.into_iter().chain(flushed) {
        extents.insert(index, 0..log.changes[index].sectors());
    }
    let mut image = vec![0; bytes as usize];
    extents.into_iter().for_each(|(index, part)| log.changes[index].apply(&mut image, part));
    image
}

fn check(what: &str, image: &[u8], metas: &[Meta], models: &[Model], position: usize) {
    let mut owners = BTreeSet::new();
    for (number, (meta, model)) in metas.iter().zip(models).enumerate() {
        assert!(meta.map.values().all(|block| owners.insert(*block)), "{what}: a block has two owners");
        let promise = model.promises.iter().rfind(|promise| promise.position <= position);
        let promise = promise.cloned().unwrap_or_default();
        // Truncations that may have happened since the sync began; the sync's promise dates from
        // before it ended.
        let cuts = model.cuts.iter().filter(|(at, _)| *at >= promise.position && *at <= position);
        let least = cuts.map(|(_, size)| *size).min().unwrap_or(u64::MAX);
        assert!(meta.size >= promise.size.min(least), "{what}: file {number} is too short: {}", meta.size);
        for sector in 0..meta.size / SECTOR {
            let block = meta.map.get(&(sector * SECTOR / BLOCK));
            let at = block.map(|block| (block * BLOCK + sector * SECTOR % BLOCK) as usize);
            let seen = at.and_then(|at| read_tag(&image[at..at + SECTOR as usize], what));
            if let Some((of, at, _)) = seen {
                assert_eq!((of, at), (number as u64, sector), "{what}: another's bytes");
            }
            if let Some(promised) = promise.written.get(&sector)
                && sector * SECTOR < least
            {
                let version = seen.map_or(0, |(.., version)| version);
                assert!(
                    version >= *promised,
                    "{what}: file {number}, sector {sector}: {version} < {promised}"
                );
            }
        }
    }
}

#[test]
fn bytes_cut_off_by_a_crash_were_not_synced() {
    let count = std::env::var("EXTANT_SCHEDULES").map_or(60, |n| n.parse().expect("a number of schedules"));
    let first = std::env::var("EXTANT_SEED").map_or(0, |n| n.parse().expect("a seed"));
    println!("EXTANT_SEED={first} EXTANT_SCHEDULES={count}");
    let small = Shape { files: 4, pages: 24, budget: 24 * BLOCK, turns: 60, cuts: 40 };
    (first..first + count).for_each(|seed| schedule(seed, &small));
}

#[test]
fn files_of_twice_the_memory_are_written_and_cut_in_eight_megabytes() {
    let large = Shape { files: 8, pages: 500, budget: 8 << 20, turns: 300, cuts: 3 };
    schedule(1, &large);
}
