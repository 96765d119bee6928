//! Random 4 KiB overwrites of a file through the cache: synced together at the end, or each on its
//! own.

use super::super::Result;
use super::bed::{self, Mount, seconds};
use super::fio;
use super::report::{Target, compared};
use super::{FILE_BYTES, IMAGE, LOOP_IMAGE, MIB, Options, image};
use extant::{FileOptions, Volume};
use extant_rt::Rng;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

/// Writes per round before their fsync.
const TOGETHER: u64 = 32 << 10;
const BLOCK: [u8; 4096] = [7; 4096];

/// One side's file.
struct Side<'a> {
    write: &'a dyn Fn(u64) -> Result<()>,
    sync: &'a dyn Fn() -> Result<()>,
}

/// Runs `figure` on both sides in turn and prints the row. With a `ceiling`, for figures that the
/// disk limits, also prints a row that compares with raw writes to the backing file, `ceiling` of
/// them in flight.
fn beside_kernel(
    options: &Options,
    what: &str,
    target: Target,
    ceiling: Option<usize>,
    figure: impl Fn(&Side<'_>, u64) -> Result<f64>,
) -> Result<()> {
    let path = image(options, IMAGE, FILE_BYTES)?;
    let volume: Volume = bed::open(&path, false)?;
    let our = volume.root().open_with("file", FileOptions::new().read(true).write(true).create_new(true))?;
    let mount = Mount::new(&options.dir, &image(options, LOOP_IMAGE, FILE_BYTES)?)?;
    let their = mount.as_ref().map(|mount| std::fs::File::create_new(mount.at.join("file"))).transpose()?;
    let chunk = vec![1; MIB as usize];
    for at in (0..FILE_BYTES).step_by(MIB as usize) {
        our.write_all_at(at, &chunk)?;
        their.iter().try_for_each(|file| file.write_all_at(&chunk, at))?;
    }
    our.sync_all()?;
    their.iter().try_for_each(std::fs::File::sync_all)?;
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for round in 0..options.rounds as u64 {
        let write = |at| Ok(our.write_all_at(at, &BLOCK)?);
        ours.push(figure(&Side { write: &write, sync: &|| Ok(our.sync_all()?) }, round)?);
        if let Some(file) = &their {
            let write = |at| Ok(file.write_all_at(&BLOCK, at)?);
            theirs.push(figure(&Side { write: &write, sync: &|| Ok(file.sync_all()?) }, round)?);
        }
    }
    compared(what, "/s", &ours, &theirs, target);
    let first = our.extents(0..FILE_BYTES)?[0];
    drop((our, their, mount));
    volume.close()?;
    if let Some(depth) = ceiling {
        let range = first.device_offset..first.device_offset + first.bytes;
        let seconds = options.seconds;
        let raw = fio::run(&fio::Job { path: &path, rw: "randwrite", bytes: 4096, depth, range, seconds })?;
        let what = format!("the same; raw random 4 KiB writes QD{depth}, fio");
        compared(&what, "/s", &ours, &vec![raw.iops; ours.len()], Target::None);
    }
    Ok(())
}

fn place(rng: &mut Rng) -> u64 {
    rng.below(FILE_BYTES / 4096) * 4096
}

pub(super) fn together(options: &Options) -> Result<()> {
    let what = format!("{TOGETHER} random 4 KiB overwrites, then fsync; kernel on a loop device");
    beside_kernel(options, &what, Target::AtLeast(2.0), Some(128), |side, round| {
        let mut rng = Rng::new(round);
        let time = seconds(|| {
            (0..TOGETHER).try_for_each(|_| (side.write)(place(&mut rng)))?;
            (side.sync)()
        })?;
        Ok(TOGETHER as f64 / time)
    })
}

pub(super) fn each(options: &Options) -> Result<()> {
    let span = Duration::from_secs(options.seconds);
    let what = "random 4 KiB overwrites with an fsync each; kernel on a loop device";
    beside_kernel(options, what, Target::AtLeast(1.5), None, |side, round| {
        let (mut rng, mut done) = (Rng::new(round), 0);
        let start = Instant::now();
        while start.elapsed() < span {
            (side.write)(place(&mut rng))?;
            (side.sync)()?;
            done += 1;
        }
        Ok(f64::from(done) / start.elapsed().as_secs_f64())
    })
}
