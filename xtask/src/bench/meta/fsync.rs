//! 4 KiB appends, each made durable.

use super::bed::{CACHE_BYTES, IMAGE_BYTES, Mount, image};
use super::report::{Target, absolute, compared};
use super::watched::Watched;
use super::{Options, Result};
use extant::{FileOptions, OpenOptions, Volume};
use extant_block::FileDevice;
use extant_rt::{RealConfig, Rt};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const THREADS: usize = 16;
const BLOCK: [u8; 4096] = [7; 4096];
/// Number of 1 MiB writes between two syncs of a durable stream.
const STREAM_SYNCS: u64 = 64;

/// Figures of one side in one round.
#[derive(Clone, Copy, Debug)]
struct Figures {
    /// Appends per second with one thread, and with sixteen threads on a file each.
    one: f64,
    all: f64,
    /// Latency of one thread next to a stream, in microseconds. One kind of stream is left to
    /// writeback, the other syncs its file. The kernel keeps all of the former in memory; our cache
    /// keeps only as much as it has room for.
    p99: f64,
    p99_durable: f64,
}

fn measure(
    options: &Options,
    append: impl Fn(usize, u64) -> Result<()> + Sync,
    stream: impl Fn(u64, bool) -> Result<()> + Sync,
    between: impl Fn(),
) -> Result<Figures> {
    let one = rate(1, options.slice, &append)?;
    between();
    let all = rate(THREADS, options.slice, &append)?;
    let p99 = p99_beside(options.slice, |n| append(0, n), |n| stream(n, false))?;
    let p99_durable =
        p99_beside(options.slice, |n| append(0, n), |n| stream(n, n % STREAM_SYNCS == STREAM_SYNCS - 1))?;
    Ok(Figures { one, all, p99, p99_durable })
}

/// Appends per second with this many threads.
fn rate(threads: usize, slice: Duration, append: &(impl Fn(usize, u64) -> Result<()> + Sync)) -> Result<f64> {
    let start = Instant::now();
    let work = move |thread: usize| -> std::result::Result<u64, String> {
        let mut n = 0;
        while start.elapsed() < slice {
            append(thread, n).map_err(|error| error.to_string())?;
            n += 1;
        }
        Ok(n)
    };
    let done = std::thread::scope(|scope| {
        let handles: Vec<_> = (0..threads).map(|thread| scope.spawn(move || work(thread))).collect();
        handles
            .into_iter()
            .map(|handle| handle.join().expect("a writer"))
            .sum::<std::result::Result<u64, _>>()
    })?;
    Ok(done as f64 / start.elapsed().as_secs_f64())
}

/// The 99th percentile of `append`'s time, in microseconds, while another thread streams.
fn p99_beside(
    slice: Duration,
    append: impl Fn(u64) -> Result<()>,
    stream: impl Fn(u64) -> Result<()> + Sync,
) -> Result<f64> {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut n = 0;
            while !stop.load(Ordering::Relaxed) {
                stream(n).expect("a stream");
                n += 1;
            }
        });
        let (start, mut times) = (Instant::now(), Vec::new());
        let mut done = Ok(());
        while done.is_ok() && start.elapsed() < slice {
            let before = Instant::now();
            done = append(times.len() as u64);
            times.push(before.elapsed().as_secs_f64() * 1e6);
        }
        stop.store(true, Ordering::Relaxed);
        times.sort_by(f64::total_cmp);
        done.map(|()| times[times.len() * 99 / 100])
    })
}

/// The figures, and flushes per fsync of one thread.
fn ours(options: &Options) -> Result<(Figures, f64)> {
    let path = image(&options.dir, "ours.img", IMAGE_BYTES, &[])?;
    let rt = Rt::real(RealConfig::default());
    let file = extant_block::FileOptions { write: true, direct: !options.buffered };
    let device = Watched::new(Arc::new(FileDevice::open(&path, file)?.driven_by(&rt)));
    let volume =
        Volume::open_device(&rt, device.clone(), &OpenOptions::new().write(true).cache_bytes(CACHE_BYTES))?;
    let mut flags = FileOptions::new();
    flags.read(true).write(true).create(true);
    let file = |n: usize| volume.root().open_with(format!("f{n}"), &flags);
    let files: Vec<_> = (0..=THREADS).map(file).collect::<std::result::Result<_, _>>()?;
    volume.sync()?;
    device.take();
    let syncs = std::sync::atomic::AtomicU64::new(0);
    let append = |thread: usize, n: u64| -> Result<()> {
        files[thread].write_all_at(n * 4096, &BLOCK)?;
        syncs.fetch_add(1, Ordering::Relaxed);
        Ok(files[thread].sync_all()?)
    };
    let chunk = vec![1; 1 << 20];
    let stream = |n: u64, sync: bool| -> Result<()> {
        files[THREADS].write_all_at((n % 512) << 20, &chunk)?;
        if sync {
            files[THREADS].sync_data()?;
        }
        Ok(())
    };
    let flushes = parking_lot::Mutex::new(f64::NAN);
    let count = || {
        let seen = device.take();
        // For the host, a write with FUA costs a flush of the file.
        *flushes.lock() = (seen.flushes + seen.durable_writes) as f64 / syncs.load(Ordering::Relaxed) as f64;
    };
    let figures = measure(options, append, stream, count)?;
    drop(files);
    volume.close()?;
    Ok((figures, flushes.into_inner()))
}

fn theirs(options: &Options) -> Result<Option<Figures>> {
    let path = image(&options.dir, "theirs.img", IMAGE_BYTES, &[])?;
    let Some(mount) = Mount::new(&options.dir, &path)? else { return Ok(None) };
    let file = |n: usize| File::create(mount.at.join(format!("f{n}")));
    let files: Vec<File> = (0..=THREADS).map(file).collect::<std::io::Result<_>>()?;
    mount.sync()?;
    let append = |thread: usize, n: u64| -> Result<()> {
        files[thread].write_all_at(&BLOCK, n * 4096)?;
        Ok(files[thread].sync_all()?)
    };
    let chunk = vec![1; 1 << 20];
    let stream = |n: u64, sync: bool| -> Result<()> {
        files[THREADS].write_all_at(&chunk, (n % 512) << 20)?;
        if sync {
            files[THREADS].sync_data()?;
        }
        Ok(())
    };
    measure(options, append, stream, || {}).map(Some)
}

pub(super) fn run(options: &Options) -> Result<()> {
    let (mut our, mut their, mut flushes) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..options.rounds {
        let (figures, each) = ours(options)?;
        our.push(figures);
        flushes.push(each);
        their.extend(theirs(options)?);
    }
    let of = |figures: &[Figures], which: fn(&Figures) -> f64| figures.iter().map(which).collect::<Vec<_>>();
    let row = |what: &str, unit, which: fn(&Figures) -> f64, target| {
        compared(what, unit, &of(&our, which), &of(&their, which), target);
    };
    row("4 KiB append and fsync, 1 thread", "/s", |side| side.one, Target::AtLeast(1.0));
    row("the same, 16 threads", "/s", |side| side.all, Target::AtLeast(1.0));
    let gain = of(&our, |side| side.all / side.one);
    absolute("the same, 16 threads against one", "x", &gain, Target::AtLeast(6.0));
    row("the same, 1 thread beside a stream: p99", "µs", |side| side.p99, Target::AtMost(0.5));
    let what = "the same, beside a stream that syncs its file each 64 MiB: p99";
    row(what, "µs", |side| side.p99_durable, Target::AtMost(0.5));
    absolute("flushes for each fsync of one thread", "", &flushes, Target::AtMost(2.05));
    Ok(())
}
