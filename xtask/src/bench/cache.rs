//! The page cache against the kernel's, with the same sizes in one run.
// A benchmark reads the clock and starts threads itself.
#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

use super::{Result, median};
use extant_block::{Bio, FileDevice, FileOptions, MemDevice, Op, Sector, Segment, execute};
use extant_cache::{CacheConfig, CacheError, CachedOpenFile, Disk, FlatFile, PAGE_BYTES, PageCache};
use extant_rt::{RealConfig, Rt};
use std::fs::File;
use std::hint::black_box;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const FILE_BYTES: u64 = 1 << 30;
const MIB: usize = 1 << 20;

struct Options {
    rounds: usize,
    slice: Duration,
    stream_bytes: u64,
    dir: PathBuf,
}

pub(super) fn run(args: &[&str]) -> Result<()> {
    let mut options = Options {
        rounds: 15,
        slice: Duration::from_millis(100),
        stream_bytes: 4 << 30,
        dir: PathBuf::from("target"),
    };
    for pair in args.chunks(2) {
        match *pair {
            ["--rounds", n] => options.rounds = n.parse()?,
            ["--slice-ms", n] => options.slice = Duration::from_millis(n.parse()?),
            ["--stream-gib", n] => options.stream_bytes = n.parse::<u64>()? << 30,
            ["--dir", path] => options.dir = path.into(),
            _ => {
                return Err("usage: cargo xtask bench cache [--rounds N] [--slice-ms N] [--stream-gib N] \
                            [--dir DIRECTORY]"
                    .into());
            }
        }
    }
    std::fs::create_dir_all(&options.dir)?;
    println!("| bench | ours | theirs | ratio | target |");
    println!("|---|---|---|---|---|");
    if !options.slice.is_zero() {
        cached(&options)?;
    }
    if options.stream_bytes > 0 {
        streaming(&options)?;
    }
    Ok(())
}

/// xorshift64: the same positions for all contenders.
struct Places(u64);

impl Places {
    fn next(&mut self, of: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % of
    }
}

/// Nanoseconds per call of `op`, over a slice of time; `op` gets a position below `of`.
fn each(slice: Duration, seed: u64, of: u64, mut op: impl FnMut(u64)) -> f64 {
    let mut places = Places(seed);
    let start = Instant::now();
    let mut n = 0_u64;
    while start.elapsed() < slice {
        for _ in 0..512 {
            op(places.next(of));
        }
        n += 512;
    }
    start.elapsed().as_nanos() as f64 / n as f64
}

/// Calls per nanosecond of two threads together, each with its own work.
fn together<A: FnMut(u64) + Send, B: FnMut(u64) + Send>(slice: Duration, of: u64, a: A, b: B) -> f64 {
    let per = |seed, op: &mut dyn FnMut(u64)| 1.0 / each(slice, seed, of, op);
    let (mut a, mut b) = (a, b);
    std::thread::scope(|scope| {
        let one = scope.spawn(move || {
            stay_on(0);
            per(88_172_645_463_325_252, &mut a)
        });
        let two = scope.spawn(move || {
            stay_on(1);
            per(1_181_783_497_276_652_981, &mut b)
        });
        one.join().expect("no panic") + two.join().expect("no panic")
    })
}

/// Pins the calling thread to a processor: two threads that the scheduler puts on the same one do
/// not show how the cache scales.
fn stay_on(nth: usize) {
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
    let Ok(ours) = sched_getaffinity(None) else { return };
    let mut usable = (0..CpuSet::MAX_CPU).filter(|&cpu| ours.is_set(cpu)).cycle();
    let mut one = CpuSet::new();
    one.set(usable.nth(nth).expect("a thread has a processor"));
    // Some containers refuse this call. The figure then varies as if the thread were not pinned.
    let _ = sched_setaffinity(None, &one);
}

fn cached_file(rt: &Rt, cache: &PageCache, bytes: u64) -> CachedOpenFile {
    let disk = cache.attach(Arc::new(MemDevice::new(bytes as usize)));
    let file = disk.mapping(Arc::new(FlatFile::new(Sector(0), bytes)), 1, bytes).open();
    let mut buf = vec![0; MIB];
    for at in (0..bytes).step_by(MIB) {
        rt.block_on(file.read(at, &mut buf)).expect("no panic").expect("memory does not fail");
    }
    file
}

fn cached(options: &Options) -> Result<()> {
    let rt = Rt::real(RealConfig::default());
    let mut config = CacheConfig::with_budget(FILE_BYTES * 9 / 4);
    config.dirty_bytes = Some(FILE_BYTES + (64 << 20));
    config.background_bytes = Some(FILE_BYTES + (32 << 20));
    config.expire = extant_rt::Nanos::from_secs(3600);
    let cache = PageCache::new(&rt, config)?;
    let ours = cached_file(&rt, &cache, FILE_BYTES);
    let other = cached_file(&rt, &cache, FILE_BYTES / 2);
    let path = options.dir.join("bench-cache.dat");
    let theirs = kernel_file(&path)?;
    let pages = FILE_BYTES / PAGE_BYTES as u64;
    let slice = options.slice;
    let seed = 88_172_645_463_325_252;
    let memory = Memory::new(FILE_BYTES as usize, true);

    let names = ["4 KiB", "64 KiB", "4 KiB overwrite"];
    let mut table: Vec<[Vec<f64>; 2]> = names.iter().map(|_| [Vec::new(), Vec::new()]).collect();
    let mut copies = Vec::new();
    let (mut alone, mut alone_half, mut same, mut apart) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let (mut copy_alone, mut copy_two) = (Vec::new(), Vec::new());
    let (mut copy_half, mut copy_apart) = (Vec::new(), Vec::new());
    for _ in 0..options.rounds {
        let mut buf = vec![1; 64 << 10];
        let small = &mut buf[..PAGE_BYTES];
        let at = |page: u64| page * PAGE_BYTES as u64;
        copies.push(each(slice, seed, pages, |page| {
            small.copy_from_slice(memory.page(page));
            black_box(&*small);
        }));
        table[0][0].push(each(slice, seed, pages, |page| {
            let n = ours.try_read(at(page), small).expect("cached");
            assert_eq!(n, PAGE_BYTES);
            black_box(&*small);
        }));
        table[0][1].push(each(slice, seed, pages, |page| {
            theirs.read_exact_at(small, at(page)).expect("cached");
            black_box(&*small);
        }));
        let large = &mut buf[..];
        table[1][0].push(each(slice, seed, pages / 16, |run| {
            let n = ours.try_read(run * (64 << 10), large).expect("cached");
            assert_eq!(n, 64 << 10);
            black_box(&*large);
        }));
        table[1][1].push(each(slice, seed, pages / 16, |run| {
            theirs.read_exact_at(large, run * (64 << 10)).expect("cached");
            black_box(&*large);
        }));
        let reader = |file: &CachedOpenFile, most: u64| {
            let file = file.mapping().open();
            let mut buf = vec![0; PAGE_BYTES];
            move |page: u64| {
                file.try_read(at(page % most), &mut buf).expect("cached");
                black_box(&buf);
            }
        };
        let copier = |from: u64, most: u64| {
            let (mut buf, memory) = (vec![0; PAGE_BYTES], &memory);
            move |page: u64| {
                buf.copy_from_slice(memory.page(from + page % most));
                black_box(&buf);
            }
        };
        copy_alone.push(1.0 / each(slice, seed, pages, copier(0, pages)));
        copy_two.push(together(slice, pages, copier(0, pages), copier(0, pages)));
        let half = |from| 1.0 / each(slice, seed, pages, copier(from, pages / 2));
        copy_half.push((half(0) + half(pages / 2)) / 2.0);
        copy_apart.push(together(slice, pages, copier(0, pages / 2), copier(pages / 2, pages / 2)));
        alone.push(1.0 / each(slice, seed, pages, reader(&ours, pages)));
        same.push(together(slice, pages, reader(&ours, pages), reader(&ours, pages)));
        let half = |file| 1.0 / each(slice, seed, pages, reader(file, pages / 2));
        alone_half.push((half(&ours) + half(&other)) / 2.0);
        apart.push(together(slice, pages, reader(&ours, pages / 2), reader(&other, pages / 2)));
    }
    // Overwrites come after the reads, since they leave pages dirty, the kernel's too.
    for _ in 0..options.rounds {
        let small = vec![7; PAGE_BYTES];
        table[2][0].push(each(slice, seed, pages, |page| {
            let at = page * PAGE_BYTES as u64;
            // The controller may pause the writer.
            if ours.try_write(at, &small).is_err() {
                rt.block_on(ours.write(at, &small)).expect("no panic").expect("memory does not fail");
            }
        }));
        table[2][1].push(each(slice, seed, pages, |page| {
            theirs.write_all_at(&small, page * PAGE_BYTES as u64).expect("cached");
        }));
    }
    // Compare within a round, since other load on the machine comes and goes.
    let paired = |a: &[f64], b: &[f64]| median(a.iter().zip(b).map(|(a, b)| a / b).collect());
    let above = median(table[0][0].iter().zip(&copies).map(|(ours, copy)| ours - copy).collect());
    let copy = median(copies);
    let targets = ["≥ 1.5", "≥ 1", "≥ 5"];
    for ((name, [ours, theirs]), target) in names.iter().zip(table).zip(targets) {
        let ratio = paired(&theirs, &ours);
        let (ours, theirs) = (median(ours), median(theirs));
        println!(
            "| cached {name}{}, against the kernel | {ours:.0} ns | {theirs:.0} ns | {:.2} | {target} |",
            if name.ends_with('e') { "" } else { " random read" },
            ratio
        );
        if *name == "4 KiB" {
            println!(
                "| the same, above a memcpy of a random page | {ours:.0} ns | {copy:.0} ns | +{:.0} ns | ≤ 150 ns |",
                above
            );
        }
    }
    let scale = |two: Vec<f64>, one: Vec<f64>| paired(&two, &one);
    println!(
        "| two threads against one, different files; theirs: bare memcpy | {:.2} | {:.2} | | ≥ 1.8 |",
        scale(apart, alone_half),
        scale(copy_apart, copy_half)
    );
    println!(
        "| two threads against one, same file; theirs: bare memcpy | {:.2} | {:.2} | | ≥ 1.5 |",
        scale(same, alone),
        scale(copy_two, copy_alone)
    );
    std::fs::remove_file(&path)?;
    Ok(())
}

/// Anonymous memory, in huge pages like the cache's own, or in small ones like most buffers of
/// programs.
struct Memory {
    start: *const u8,
    bytes: usize,
}

impl Memory {
    fn new(bytes: usize, huge: bool) -> Self {
        use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh anonymous mapping overlaps no other memory, and madvise and the fill
        // cover only its own range.
        unsafe {
            let start =
                mmap_anonymous(std::ptr::null_mut(), bytes, access, MapFlags::PRIVATE).expect("memory");
            let _ = madvise(start, bytes, if huge { Advice::LinuxHugepage } else { Advice::LinuxNoHugepage });
            start.cast::<u8>().write_bytes(3, bytes);
            Self { start: start.cast(), bytes }
        }
    }

    fn page(&self, page: u64) -> &[u8] {
        let at = page as usize * PAGE_BYTES;
        assert!(at + PAGE_BYTES <= self.bytes);
        // SAFETY: in bounds, initialised in `new`, never changed since, and unmapped only in
        // `drop`.
        unsafe { std::slice::from_raw_parts(self.start.add(at), PAGE_BYTES) }
    }
}

// SAFETY: the memory is only read after `new`.
unsafe impl Sync for Memory {}
// SAFETY: as above; `drop`, on any thread, unmaps it.
unsafe impl Send for Memory {}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: mapped in `new` with this address and length, and unmapped once.
        let _ = unsafe { rustix::mm::munmap(self.start.cast_mut().cast(), self.bytes) };
    }
}

/// A host file in the kernel's page cache.
fn kernel_file(path: &Path) -> Result<File> {
    let file = File::options().read(true).write(true).create(true).truncate(true).open(path)?;
    let chunk = vec![5; MIB];
    for at in (0..FILE_BYTES).step_by(MIB) {
        file.write_all_at(&chunk, at)?;
    }
    file.sync_all()?;
    let mut buf = vec![0; MIB];
    for at in (0..FILE_BYTES).step_by(MIB) {
        file.read_exact_at(&mut buf, at)?;
    }
    Ok(file)
}

/// Writes a stream through a small cache to a real file, and the same amount directly.
fn streaming(options: &Options) -> Result<()> {
    let path = options.dir.join("bench-cache-stream.dat");
    let file = File::options().read(true).write(true).create(true).truncate(true).open(&path)?;
    rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, options.stream_bytes)?;
    // Write once before, so that neither side pays for the first allocation.
    let rt = Rt::real(RealConfig::default());
    let small = Arc::new(Memory::new(8 * MIB, false));
    let large = Arc::new(Memory::new(256 * MIB, true));
    raw(&rt, &path, options.stream_bytes, &small)?;
    let (mut ours, mut theirs, mut stalls, mut peak) = (Vec::new(), Vec::new(), Vec::new(), 0);
    let cache = PageCache::new(&rt, CacheConfig::with_budget(256 << 20))?;
    let disk = cache.attach(Arc::new(direct(&rt, &path)?));
    // On first use the host must find and zero the memory; that is not measured here.
    buffered(&rt, &cache, &disk, 1 << 30)?;
    let limit = cache.limits().limit_pages;
    let gib = options.stream_bytes as f64 / (1_u64 << 30) as f64;
    let (mut our_time, mut their_time, mut best) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..options.rounds {
        let before = processor_ms();
        theirs.push(raw(&rt, &path, options.stream_bytes, &small)?);
        let between = processor_ms();
        let run = buffered(&rt, &cache, &disk, options.stream_bytes)?;
        their_time.push((between - before) / gib);
        our_time.push((processor_ms() - between) / gib);
        best.push(raw(&rt, &path, options.stream_bytes, &large)?);
        ours.push(run.mb_s);
        stalls.push(run.stall_ms);
        peak = peak.max(run.peak_pages);
    }
    rt.block_on(cache.close())??;
    std::fs::remove_file(&path)?;
    let against = |theirs: &[f64]| median(ours.iter().zip(theirs).map(|(a, b)| a / b).collect());
    let (ratio, to_best) = (against(&theirs), against(&best));
    let (ours, theirs, best) = (median(ours), median(theirs), median(best));
    println!(
        "| streaming through 256 MiB, and sync, against raw O_DIRECT | {ours:.0} MB/s | {theirs:.0} MB/s | {ratio:.2} | ≥ 0.95 |"
    );
    println!(
        "| the same, raw out of 256 MiB in huge pages | {ours:.0} MB/s | {best:.0} MB/s | {to_best:.2} | |"
    );
    let (our_time, their_time) = (median(our_time), median(their_time));
    println!(
        "| processor time for a GiB | {our_time:.0} ms | {their_time:.0} ms | {:.1} | |",
        our_time / their_time
    );
    println!("| the writer's longest stall, median of runs | {:.1} ms | | | ≤ 50 ms |", median(stalls));
    println!("| most pages dirty and under write-back; limit | {peak} | {limit} | | ≤ limit |");
    Ok(())
}

/// Processor time used by this process so far.
fn processor_ms() -> f64 {
    let used = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    used.tv_sec as f64 * 1e3 + used.tv_nsec as f64 / 1e6
}

fn direct(rt: &Rt, path: &Path) -> Result<FileDevice> {
    Ok(FileDevice::open(path, FileOptions { write: true, direct: true })?.driven_by(rt))
}

/// 1 MiB writes, eight in flight, from `memory` in a loop, then a flush; MB/s.
fn raw(rt: &Rt, path: &Path, bytes: u64, memory: &Arc<Memory>) -> Result<f64> {
    let device = direct(rt, path)?;
    let pages = MIB / PAGE_BYTES;
    let start = Instant::now();
    rt.block_on(async {
        let mut running = std::collections::VecDeque::new();
        for (nth, at) in (0..bytes).step_by(MIB).enumerate() {
            if running.len() >= 8 {
                let (_, result): (Bio, _) = Box::pin(running.pop_front().expect("eight")).await;
                result?;
            }
            let first = (nth % (memory.bytes / MIB) * pages) as u64;
            let ptr = std::ptr::NonNull::from(memory.page(first)).cast();
            // SAFETY: a whole MiB of `memory`, which is that long, is kept alive by the segment,
            // and is never written to.
            let segment = unsafe { Segment::borrowed(ptr, MIB, memory.clone()) };
            running
                .push_back(execute(&device, Bio::new(Op::Write, Sector(at / Sector::BYTES), vec![segment])));
        }
        for one in running {
            one.await.1?;
        }
        extant_block::flush(&device).await
    })??;
    Ok(bytes as f64 / start.elapsed().as_secs_f64() / 1e6)
}

struct Streamed {
    mb_s: f64,
    stall_ms: f64,
    peak_pages: u64,
}

fn buffered(rt: &Rt, cache: &PageCache, disk: &Disk, bytes: u64) -> Result<Streamed> {
    let file = disk.mapping(Arc::new(FlatFile::new(Sector(0), bytes)), 1, 0).open();
    let chunk = vec![9; MIB];
    let (stop, peak) = (AtomicBool::new(false), AtomicU64::new(0));
    let outcome = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                peak.fetch_max(cache.usage().charged, Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let start = Instant::now();
        let mut stall = Duration::ZERO;
        let written: Result<()> = (0..bytes).step_by(MIB).try_for_each(|at| {
            let before = Instant::now();
            rt.block_on(file.write(at, &chunk))??;
            stall = stall.max(before.elapsed());
            Ok(())
        });
        let synced = rt.block_on(file.sync()).map_err(CacheError::from).and_then(|synced| synced);
        let elapsed = start.elapsed();
        stop.store(true, Ordering::Relaxed);
        written.and(synced.map_err(Into::into)).map(|()| (elapsed, stall))
    });
    let (elapsed, stall) = outcome?;
    Ok(Streamed {
        mb_s: bytes as f64 / elapsed.as_secs_f64() / 1e6,
        stall_ms: stall.as_secs_f64() * 1e3,
        peak_pages: peak.into_inner(),
    })
}
