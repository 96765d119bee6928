//! A sequential stream through the cache with a final fsync: its rate, bios and extents.

use super::super::Result;
use super::bed::{Mount, seconds};
use super::report::{Target, absolute, compared};
use super::watched::Watched;
use super::{CACHE_BYTES, IMAGE, MIB, Options, cpu_us, image, raw};
use extant::{FileExtent, FileOptions, OpenOptions, Volume};
use extant_block::{Device, FileDevice};
use extant_cache::CacheConfig;
use extant_rt::{RealConfig, Rt};
use std::io::Write;
use std::path::Path;
use std::sync::Arc;

/// One stream through the library.
pub(super) struct Streamed {
    mb_s: f64,
    cpu_ms_per_gib: f64,
    /// Writes of the file's data.
    bios: u64,
    /// The longest bio that the cache creates and the device accepts.
    limit_bytes: u64,
    extents: Vec<FileExtent>,
}

impl Streamed {
    /// Minimum number of bios for its extents.
    fn fewest_bios(&self) -> u64 {
        self.extents.iter().map(|extent| extent.bytes.div_ceil(self.limit_bytes)).sum()
    }
}

/// Writes a file of `bytes` bytes to an empty volume.
pub(super) fn ours(rt: &Rt, path: &Path, bytes: u64) -> Result<Streamed> {
    let file = extant_block::FileOptions { write: true, direct: true };
    let device = Watched::new(Arc::new(FileDevice::open(path, file)?.driven_by(rt)));
    let options = OpenOptions::new().write(true).cache_bytes(CACHE_BYTES);
    let volume = Volume::open_device(rt, device.clone(), &options)?;
    let file =
        volume.root().open_with("stream", FileOptions::new().read(true).write(true).create_new(true))?;
    let chunk = vec![9; MIB as usize];
    device.take();
    let mut time = 0.0;
    let cpu_us = cpu_us(
        || bytes,
        || {
            time = seconds(|| {
                for at in (0..bytes).step_by(MIB as usize) {
                    file.write_all_at(at, &chunk)?;
                }
                Ok(file.sync_all()?)
            })?;
            Ok(())
        },
    )?;
    let seen = device.take();
    let extents = file.extents(0..bytes)?;
    let is_data = |start: u64| {
        extents
            .iter()
            .any(|extent| (extent.device_offset..extent.device_offset + extent.bytes).contains(&start))
    };
    let bios = seen.writes.iter().filter(|range| is_data(range.start)).count() as u64;
    drop(file);
    volume.close()?;
    Ok(Streamed {
        mb_s: bytes as f64 / time / 1e6,
        cpu_ms_per_gib: cpu_us * (1_u64 << 30) as f64 / 1e3,
        bios,
        limit_bytes: device.limits().max_bytes.min(CacheConfig::with_budget(CACHE_BYTES).bio_bytes),
        extents,
    })
}

/// The same on a kernel mount.
fn theirs(options: &Options, path: &Path) -> Result<Option<f64>> {
    let Some(mount) = Mount::new(&options.dir, path)? else { return Ok(None) };
    let mut file = std::fs::File::create_new(mount.at.join("stream"))?;
    let chunk = vec![9; MIB as usize];
    let time = seconds(|| {
        for _ in 0..options.stream_bytes / MIB {
            file.write_all(&chunk)?;
        }
        Ok(file.sync_all()?)
    })?;
    Ok(Some(options.stream_bytes as f64 / time / 1e6))
}

pub(super) fn run(options: &Options) -> Result<()> {
    let bytes = options.stream_bytes;
    let gib = bytes as f64 / (1_u64 << 30) as f64;
    let (mut our, mut raws, mut their, mut cpu) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let (mut bios, mut fewest) = (Vec::new(), Vec::new());
    for round in 0..options.rounds {
        let path = image(options, IMAGE, bytes)?;
        if round == 0 {
            // Neither side should pay for the first write to its blocks.
            raw::write(&path, bytes, 8)?;
        }
        raws.push(raw::write(&path, bytes, 8)?);
        let path = image(options, IMAGE, bytes)?;
        let streamed = ours(&Rt::real(RealConfig::default()), &path, bytes)?;
        our.push(streamed.mb_s);
        cpu.push(streamed.cpu_ms_per_gib);
        bios.push(streamed.bios as f64 / gib);
        fewest.push(streamed.fewest_bios() as f64 / gib);
        their.extend(theirs(options, &image(options, IMAGE, bytes)?)?);
    }
    let what = format!("{gib} GiB written through the cache, and fsync");
    compared(&format!("{what}; raw, 1 MiB QD8"), "MB/s", &our, &raws, Target::AtLeast(0.95));
    compared(&format!("{what}; kernel on a loop device"), "MB/s", &our, &their, Target::AtLeast(2.0));
    absolute("the same, processor time for a GiB", "ms", &cpu, Target::None);
    let what = "bios of the same for a GiB; extents × (extent / the longest bio)";
    compared(what, "bios", &bios, &fewest, Target::AtMost(1.0));
    Ok(())
}

pub(super) fn extents(options: &Options) -> Result<()> {
    let path = image(options, IMAGE, 1 << 30)?;
    let streamed = ours(&Rt::real(RealConfig::default()), &path, 1 << 30)?;
    absolute(
        "extents of a file of 1 GiB on an empty volume",
        "",
        &[streamed.extents.len() as f64],
        Target::AtMost(9.0),
    );
    Ok(())
}
