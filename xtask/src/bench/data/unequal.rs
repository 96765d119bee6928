//! A fast and a slow device under one cache: neither may slow the other down.

use super::super::Result;
use super::report::{Target, absolute, compared};
use super::{CACHE_BYTES, FILE_BYTES, MIB, Options};
use extant_block::{Bio, Device, FileDevice, FileOptions, Limits, MemDevice, Sector};
use extant_cache::{CacheConfig, CachedOpenFile, FlatFile, PageCache};
use extant_rt::{Class, Nanos, RealConfig, Rt};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Rate of the slow device: a memory stick.
const STICK_BYTES_PER_S: u64 = 10_000_000;
/// Rate of the modelled fast device. The speed of a real disk changes from second to second, so two
/// runs on it can differ by 5 % for that reason alone.
const STEADY_BYTES_PER_S: u64 = 1_000_000_000;
/// Minimum duration of a measurement, since the slow device needs a while to reach its limits.
const LEAST_SECONDS: u64 = 10;

/// A device in memory that delays bios as a device of this rate would. It moves one bio at a time.
#[derive(Debug)]
struct Paced {
    inner: Arc<MemDevice>,
    rt: Rt,
    bytes_per_s: u64,
    /// When everything submitted so far will have been moved.
    idle_at: Mutex<Nanos>,
}

impl Paced {
    fn new(rt: &Rt, bytes: u64, bytes_per_s: u64) -> Arc<Self> {
        let inner = Arc::new(MemDevice::new(bytes as usize));
        Arc::new(Self { inner, rt: rt.clone(), bytes_per_s, idle_at: Mutex::new(Nanos::ZERO) })
    }
}

impl Device for Paced {
    fn limits(&self) -> &Limits {
        self.inner.limits()
    }

    fn submit(&self, bio: Bio) {
        let takes = Nanos(bio.bytes * 1_000_000_000 / self.bytes_per_s);
        let ends_at = {
            let mut idle_at = self.idle_at.lock();
            *idle_at = self.rt.now().max(*idle_at) + takes;
            *idle_at
        };
        let (rt, inner) = (self.rt.clone(), self.inner.clone());
        drop(self.rt.spawn("paced", Class::Normal, async move {
            rt.sleep_until(ends_at).await;
            inner.submit(bio);
        }));
    }
}

/// The measurements of a writer that writes 1 MiB at a time.
struct Written {
    mib_s: f64,
    longest_ms: f64,
}

/// Writes to a file until told to stop; at the file's end, starts over.
fn write(rt: &Rt, file: &CachedOpenFile, bytes: u64, stop: &AtomicBool) -> Result<Written> {
    let chunk = vec![9; MIB as usize];
    let (start, mut longest, mut written) = (Instant::now(), Duration::ZERO, 0);
    while !stop.load(Ordering::Relaxed) {
        let before = Instant::now();
        rt.block_on(file.write(written % bytes, &chunk))??;
        longest = longest.max(before.elapsed());
        written += MIB;
    }
    let seconds = start.elapsed().as_secs_f64();
    Ok(Written { mib_s: (written / MIB) as f64 / seconds, longest_ms: longest.as_secs_f64() * 1e3 })
}

/// Runs the fast device's writer for `seconds`, along with the slow device's if there is one.
fn run_for(
    rt: &Rt,
    seconds: u64,
    fast: &CachedOpenFile,
    slow: Option<(&CachedOpenFile, u64)>,
) -> Result<(Written, Option<Written>)> {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let fast = scope.spawn(|| write(rt, fast, FILE_BYTES, &stop).map_err(|error| error.to_string()));
        let slow = slow.map(|(file, bytes)| {
            let stop = &stop;
            scope.spawn(move || write(rt, file, bytes, stop).map_err(|error| error.to_string()))
        });
        std::thread::sleep(Duration::from_secs(seconds));
        stop.store(true, Ordering::Relaxed);
        let fast = fast.join().expect("no panic")?;
        Ok((fast, slow.map(|slow| slow.join().expect("no panic")).transpose()?))
    })
}

pub(super) fn run(options: &Options) -> Result<()> {
    let path = options.dir.join("fast.dat");
    let file = std::fs::File::options().write(true).create(true).truncate(true).open(&path)?;
    rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, FILE_BYTES)?;
    let rt = Rt::real(RealConfig::default());
    let disk = FileDevice::open(&path, FileOptions { write: true, direct: true })?.driven_by(&rt);
    measure(options, &rt, "the disk", Arc::new(disk))?;
    super::remove(&path)?;
    measure(options, &rt, "1 GB/s", Paced::new(&rt, FILE_BYTES, STEADY_BYTES_PER_S))
}

/// Measures a writer of the device `fast`, which rows call `name`, alone and next to the stick's.
fn measure(options: &Options, rt: &Rt, name: &str, fast: Arc<dyn Device>) -> Result<()> {
    let cache = PageCache::new(rt, CacheConfig::with_budget(CACHE_BYTES))?;
    let stick_bytes = CACHE_BYTES;
    let stick = Paced::new(rt, stick_bytes, STICK_BYTES_PER_S);
    let (fast, stick) = (cache.attach(fast), cache.attach(stick));
    let fast = fast.mapping(Arc::new(FlatFile::new(Sector(0), FILE_BYTES)), 1, FILE_BYTES).open();
    let slow = stick.mapping(Arc::new(FlatFile::new(Sector(0), stick_bytes)), 1, stick_bytes).open();
    // The first use of the cache's memory and of the file's blocks is not measured.
    run_for(rt, 2, &fast, None)?;
    rt.block_on(fast.sync())??;
    let seconds = options.seconds.max(LEAST_SECONDS);
    let (mut alone, mut beside) = (Vec::new(), Vec::new());
    let (mut pauses_alone, mut pauses, mut slow_pauses, mut slow_rates) =
        (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for round in 0..options.rounds {
        // The run that begins changes, in case the disk is faster or slower after a pause.
        for is_beside in [round % 2 == 1, round % 2 == 0] {
            let stick = is_beside.then_some((&slow, stick_bytes));
            let (written, by_stick) = run_for(rt, seconds, &fast, stick)?;
            match by_stick {
                Some(by_stick) => {
                    beside.push(written.mib_s);
                    pauses.push(written.longest_ms);
                    slow_pauses.push(by_stick.longest_ms);
                    slow_rates.push(by_stick.mib_s);
                }
                None => {
                    alone.push(written.mib_s);
                    pauses_alone.push(written.longest_ms);
                }
            }
            // Each run begins with a clean cache: a writer fills what is free at memory speed.
            rt.block_on(slow.sync())??;
            rt.block_on(fast.sync())??;
        }
    }
    let beside_it = format!("{name}: writing next to a stick of 10 MB/s, against alone");
    compared(&beside_it, "MiB/s", &beside, &alone, Target::AtLeast(0.98));
    let longest = format!("{name}: the longest write of 1 MiB next to it");
    compared(&format!("{longest}, against alone"), "ms", &pauses, &pauses_alone, Target::None);
    absolute(&longest, "ms", &pauses, Target::AtMost(1000.0));
    absolute("the longest write of 1 MiB to the stick", "ms", &slow_pauses, Target::AtMost(1000.0));
    absolute("the stick's writer", "MiB/s", &slow_rates, Target::None);
    drop((fast, slow));
    Ok(rt.block_on(cache.close())??)
}
