//! What a read costs that Extant's cache does not have and the host's does, next to a pread of the
//! image.

use crate::peer::{Kind, OURS};
use crate::steps::{self, Dice};
use crate::{Options, Result, bed};
use extant::{OpenOptions, Volume};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// So little that one read in thirty is cached.
const CACHE_BYTES: u64 = 8 << 20;
const READS: u64 = 100_000;
const BLOCK: usize = 4096;

/// Processor time, in ns, for each of many random reads of 4 KiB within the stream's length.
/// Nothing here waits for a disk, and other programs' load counts less this way.
fn each(mut read: impl FnMut(u64, &mut [u8]) -> Result<()>) -> Result<f64> {
    let (mut dice, mut block) = (Dice::new(3), [0; BLOCK]);
    let start = bed::processor_ns();
    for _ in 0..READS {
        read(dice.below(steps::STREAM_BYTES / BLOCK as u64) * BLOCK as u64, &mut block)?;
    }
    Ok((bed::processor_ns() - start) as f64 / READS as f64)
}

fn through_extant(image: &Path, write: bool) -> Result<f64> {
    let options = OpenOptions::new().write(write).cache_bytes(CACHE_BYTES);
    let volume = Volume::open(image, &options)?;
    let file = volume.open_file(format!("{}/{}", steps::LARGE, steps::STREAM))?;
    let time = each(|at, block| Ok(file.read_exact_at(at, block)?))?;
    drop(file);
    volume.close()?;
    Ok(time)
}

/// Measures all three in turn, and prints a row.
pub(crate) fn run(options: &Options) -> Result<()> {
    let ours = Kind::named(OURS)?;
    let image = bed::fresh_image(&options.dir, ours)?;
    for step in steps::ALL.iter().filter(|step| step.writes_stream()) {
        steps::run(step, ours, &image, options.limit)?;
    }
    let raw = File::open(&image)?;
    // Into the host's page cache.
    let mut piece = vec![0; 1 << 20];
    (0..raw.metadata()?.len() >> 20).try_for_each(|n| raw.read_exact_at(&mut piece, n << 20))?;
    let mut times = [const { Vec::new() }; 3];
    for _ in 0..options.rounds {
        // A quarter of the way into the image: as far apart as the stream's blocks.
        times[0].push(each(|at, block| Ok(raw.read_exact_at(block, at + steps::STREAM_BYTES)?))?);
        times[1].push(through_extant(&image, false)?);
        times[2].push(through_extant(&image, true)?);
    }
    let [raw, reading, writing] = times.map(|mut times| {
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    });
    println!(
        "\nprocessor time of a miss: {reading:.0} ns, {:.2} x a pread of the image ({raw:.0} ns); on a \
         volume open for writing: {writing:.0} ns, {:.2} x",
        reading / raw,
        writing / raw
    );
    Ok(())
}
