//! Direct requests, compared with fio on the same blocks of the backing file.

use super::super::Result;
use super::fio::{self, Outcome};
use super::report::{Target, compared};
use super::{CACHE_BYTES, FILE_BYTES, IMAGE, MIB, Options, cpu_us, image, raw};
use extant::{Buf, File, FileOptions, OpenOptions, Volume};
use extant_block::FileDevice;
use extant_rt::{Nanos, RealConfig, Rng, Rt};
use futures_util::future::try_join_all;
use std::cell::Cell;
use std::path::Path;
use std::sync::Arc;

fn open(rt: &Rt, path: &Path) -> Result<Volume> {
    let device = FileDevice::open(path, extant_block::FileOptions { write: true, direct: true })?;
    let options = OpenOptions::new().write(true).cache_bytes(CACHE_BYTES);
    Ok(Volume::open_device(rt, Arc::new(device.driven_by(rt)), &options)?)
}

fn file(volume: &Volume) -> Result<File> {
    Ok(volume.root().open_with("file", FileOptions::new().read(true).write(true).create(true))?)
}

/// Creates the file, written and synced.
fn filled(volume: &Volume) -> Result<File> {
    let file = file(volume)?;
    let (mut chunk, mut rng) = (vec![0; MIB as usize], Rng::new(1));
    for at in (0..FILE_BYTES).step_by(MIB as usize) {
        chunk.chunks_mut(8).for_each(|word| word.copy_from_slice(&rng.next_u64().to_le_bytes()));
        file.write_all_at(at, &chunk)?;
    }
    file.sync_all()?;
    Ok(file)
}

/// Requests of one thread, `depth` of them in flight.
#[derive(Clone, Copy)]
struct Job {
    writes: bool,
    bytes: u64,
    depth: usize,
    seconds: u64,
}

fn ours(rt: &Rt, file: &File, job: Job, round: u64) -> Result<Outcome> {
    let (done, latency) = (Cell::new(0_u64), Cell::new(Nanos::ZERO));
    let next = Cell::new(0_u64);
    let start = rt.now();
    let end = start + Nanos::from_secs(job.seconds);
    let slot = async |slot: usize| -> Result<()> {
        let mut rng = Rng::new(round << 8 | slot as u64);
        let mut buf = Buf::zeroed(job.bytes as usize);
        while rt.now() < end {
            let blocks = FILE_BYTES / job.bytes;
            let block = if job.writes { next.replace(next.get() + 1) % blocks } else { rng.below(blocks) };
            let before = rt.now();
            let (back, moved) = match job.writes {
                true => file.asynch().write_direct(block * job.bytes, buf).await,
                false => file.asynch().read_direct(block * job.bytes, buf).await,
            };
            if moved? as u64 != job.bytes {
                return Err("a request in the middle of a file ended early".into());
            }
            buf = back;
            latency.set(latency.get() + (rt.now() - before));
            done.set(done.get() + 1);
        }
        Ok(())
    };
    let cpu = cpu_us(|| done.get(), || rt.block_on(try_join_all((0..job.depth).map(slot)))?.map(drop))?;
    let done = done.get() as f64;
    Ok(Outcome {
        iops: done / (rt.now() - start).as_secs_f64(),
        latency_us: latency.get().0 as f64 / done / 1e3,
        cpu_us_per_io: [0.0, cpu],
    })
}

/// Runs a job on the library's file, and with fio on the blocks of that file. Prints a row of rates
/// or latencies, and one of processor time.
fn beside_fio(options: &Options, what: &str, job: Job) -> Result<()> {
    let path = image(options, IMAGE, FILE_BYTES)?;
    let rt = Rt::real(RealConfig::default());
    drop(filled(&open(&rt, &path)?)?);
    let (mut our, mut their) = (Vec::new(), Vec::new());
    for round in 0..options.rounds {
        // Reopened, so that nothing of the file is cached.
        let volume = open(&rt, &path)?;
        let file = file(&volume)?;
        let first = file.extents(0..FILE_BYTES)?[0];
        our.push(ours(&rt, &file, job, round as u64)?);
        drop(file);
        volume.close()?;
        let range = first.device_offset..first.device_offset + FILE_BYTES;
        let rw = if job.writes { "write" } else { "randread" };
        let (bytes, depth, seconds) = (job.bytes, job.depth, job.seconds);
        their.push(fio::run(&fio::Job { path: &path, rw, bytes, depth, range, seconds })?);
        if job.writes {
            // The range may contain metadata of block groups, which fio has overwritten.
            image(options, IMAGE, FILE_BYTES)?;
            drop(filled(&open(&rt, &path)?)?);
        }
    }
    let of = |side: &[Outcome], pick: fn(&Outcome) -> f64| side.iter().map(pick).collect::<Vec<_>>();
    let row = |what: &str, unit, pick: fn(&Outcome) -> f64, target| {
        compared(what, unit, &of(&our, pick), &of(&their, pick), target);
    };
    match job.depth {
        1 => row(&format!("{what}: mean; fio"), "µs", |side| side.latency_us, Target::None),
        _ => row(&format!("{what}; fio"), "/s", |side| side.iops, Target::AtLeast(0.95)),
    }
    let target = if job.writes || job.depth == 1 { Target::AtMost(1.0) } else { Target::None };
    let cpu: fn(&Outcome) -> f64 = |side| side.cpu_us_per_io.iter().sum();
    row("the same, processor time for each", "µs", cpu, target);
    Ok(())
}

pub(super) fn read(options: &Options) -> Result<()> {
    let job = Job { writes: false, bytes: 4096, depth: 32, seconds: options.seconds };
    beside_fio(options, "direct 4 KiB random read QD32", job)?;
    beside_fio(options, "direct 4 KiB random read QD1", Job { depth: 1, ..job })
}

pub(super) fn rewrite(options: &Options) -> Result<()> {
    let job = Job { writes: true, bytes: MIB, depth: 8, seconds: options.seconds };
    beside_fio(options, "direct 1 MiB overwrite QD8", job)
}

/// Writes and fsyncs a new file of 1 GiB; MB/s.
fn new_file(rt: &Rt, path: &Path) -> Result<f64> {
    let volume = open(rt, path)?;
    let file = file(&volume)?;
    let next = Cell::new(0_u64);
    let slot = async |_| -> Result<()> {
        let mut buf = Buf::from_slice(&[9; MIB as usize]);
        loop {
            let at = next.replace(next.get() + MIB);
            if at >= FILE_BYTES {
                return Ok(());
            }
            let (back, written) = file.asynch().write_direct(at, buf).await;
            if written? as u64 != MIB {
                return Err("a write ended early".into());
            }
            buf = back;
        }
    };
    let start = rt.now();
    rt.block_on(try_join_all((0..8).map(slot)))??;
    file.sync_all()?;
    let time = (rt.now() - start).as_secs_f64();
    drop(file);
    volume.close()?;
    Ok(FILE_BYTES as f64 / time / 1e6)
}

pub(super) fn write(options: &Options) -> Result<()> {
    let rt = Rt::real(RealConfig::default());
    let (mut our, mut raws) = (Vec::new(), Vec::new());
    for round in 0..options.rounds {
        let path = image(options, IMAGE, FILE_BYTES)?;
        if round == 0 {
            // Neither side should pay for the first write to its blocks.
            raw::write(&path, FILE_BYTES, 8)?;
        }
        raws.push(raw::write(&path, FILE_BYTES, 8)?);
        our.push(new_file(&rt, &image(options, IMAGE, FILE_BYTES)?)?);
    }
    let what = "direct 1 MiB writes QD8 to a new file of 1 GiB, and fsync; raw";
    compared(what, "MB/s", &our, &raws, Target::AtLeast(0.90));
    Ok(())
}
