//! File data through the library, the kernel's ext4 on a loop device and raw `O_DIRECT` on the same
//! backing file, compared in one run.
#![allow(clippy::disallowed_methods, clippy::disallowed_types)] // a bench reads the clock itself

mod direct;
mod overwrite;
mod raw;
mod stream;
mod stretch;
mod unequal;

use super::{Result, bed, cpu_time, fio, report, watched};
use std::path::{Path, PathBuf};

/// Command line settings of a run.
struct Options {
    rounds: usize,
    /// Duration in seconds for each figure that is a rate.
    seconds: u64,
    dir: PathBuf,
    /// Length of the stream.
    stream_bytes: u64,
}

type Part = fn(&Options) -> Result<()>;

/// All parts by name, in the order in which they run.
const PARTS: &[(&str, Part)] = &[
    ("stream", stream::run),
    ("extents", stream::extents),
    ("stretch", stretch::run),
    ("read", direct::read),
    ("rewrite", direct::rewrite),
    ("write", direct::write),
    ("overwrite", overwrite::together),
    ("fsync", overwrite::each),
    ("unequal", unequal::run),
];

/// Memory of the library's cache.
const CACHE_BYTES: u64 = 256 << 20;
/// Size of the file for random requests.
const FILE_BYTES: u64 = 1 << 30;
const MIB: u64 = 1 << 20;

fn usage() -> String {
    let names: Vec<_> = PARTS.iter().map(|(name, _)| *name).collect();
    format!(
        "usage: cargo xtask bench data [--quick] [--rounds N] [--seconds N] [--stream-gib N] [--dir DIRECTORY] \
         [--only {}]...",
        names.join("|")
    )
}

pub(super) fn run(args: &[&str]) -> Result<()> {
    let mut options =
        Options { rounds: 5, seconds: 2, dir: PathBuf::from("target/bench-data"), stream_bytes: 4 << 30 };
    let mut only = Vec::new();
    let mut args = args.iter().copied();
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or_else(usage);
        match arg {
            "--quick" => (options.rounds, options.seconds, options.stream_bytes) = (1, 1, 1 << 30),
            "--rounds" => options.rounds = value()?.parse()?,
            "--seconds" => options.seconds = value()?.parse()?,
            "--stream-gib" => options.stream_bytes = value()?.parse::<u64>()? << 30,
            "--dir" => options.dir = value()?.into(),
            "--only" => only.push(value()?.to_string()),
            _ => return Err(usage().into()),
        }
    }
    if only.iter().any(|name| PARTS.iter().all(|(part, _)| part != name)) || options.rounds == 0 {
        return Err(usage().into());
    }
    std::fs::create_dir_all(&options.dir)?;
    report::head();
    for (name, part) in PARTS {
        if only.is_empty() || only.iter().any(|wanted| wanted == name) {
            part(&options)?;
        }
    }
    for image in [IMAGE, LOOP_IMAGE] {
        remove(&options.dir.join(image))?;
    }
    Ok(())
}

/// The image for our requests and raw ones.
const IMAGE: &str = "data.img";
/// The kernel's image, for parts in which both sides stay open at the same time.
const LOOP_IMAGE: &str = "loop.img";

fn remove(path: &Path) -> Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error.into()),
        _ => Ok(()),
    }
}

/// A fresh volume with room for a file of `file_bytes`. It uses the same host blocks for every side
/// and round.
fn image(options: &Options, name: &str, file_bytes: u64) -> Result<PathBuf> {
    let path = options.dir.join(name);
    let bytes = file_bytes + (1 << 30);
    // An image of another part may have another length.
    if path.metadata().is_ok_and(|image| image.len() != bytes) {
        remove(&path)?;
    }
    bed::image(&options.dir, name, bytes, &[])
}

/// Runs `work` and returns this process's processor time per unit, in microseconds.
fn cpu_us(units: impl Fn() -> u64, work: impl FnOnce() -> Result<()>) -> Result<f64> {
    let before = cpu_time();
    work()?;
    Ok((cpu_time() - before) as f64 / 1e3 / units() as f64)
}
