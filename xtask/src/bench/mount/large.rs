//! A volume of 1 TiB with a million files: how long mounting takes, and how much memory the server
//! uses.

use super::bed::{create, open, sparse_image};
use super::report::{Target, absolute};
use super::side::{Kind, Side};
use super::{Options, Result};
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

const FILES: u64 = 1_000_000;
const FILES_IN_EACH: u64 = 1000;
const VOLUME_BYTES: u64 = 1 << 40;
/// Memory counts as settled if it did not change for this time; tried at most `ATTEMPTS` times.
const SETTLED: Duration = Duration::from_millis(300);
const ATTEMPTS: u32 = 40;

/// Makes the volume through the library, unless it exists.
fn volume(options: &Options) -> Result<std::path::PathBuf> {
    let name = format!("large-{}.img", options.scale);
    let path = options.dir.join(&name);
    if path.exists() {
        return Ok(path);
    }
    let part = sparse_image(&options.dir, &format!("{name}.part"), VOLUME_BYTES, &[])?;
    let volume = open(&part, false)?;
    for dir in 0..options.scaled(FILES).div_ceil(FILES_IN_EACH) {
        let name = format!("d{dir}");
        volume.root().create_dir(&name)?;
        let dir = volume.root().open_dir(&name)?;
        (0..FILES_IN_EACH).try_for_each(|n| create(&dir, &format!("file-{n:04}")))?;
    }
    volume.close()?;
    fs::rename(part, &path)?;
    Ok(path)
}

/// Resident memory of a process, in MB.
fn resident(pid: u32) -> Result<f64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).ok_or("no VmRSS")?;
    Ok(line.trim().trim_end_matches(" kB").parse::<f64>()? * 1024.0 / 1e6)
}

/// Resident memory once it no longer changes.
fn settled(pid: u32) -> Result<f64> {
    let mut last = resident(pid)?;
    for _ in 0..ATTEMPTS {
        std::thread::sleep(SETTLED);
        let now = resident(pid)?;
        if (now - last).abs() < 0.1 {
            break;
        }
        last = now;
    }
    Ok(last)
}

pub(super) fn run(options: &Options) -> Result<()> {
    let image = volume(options)?;
    let mut figures: [Vec<f64>; 5] = Default::default();
    for round in 0..options.rounds {
        super::bed::forget(&image)?;
        let start = Instant::now();
        let mut side = Side::of_image(Kind::Ours, &options.dir, &options.extant, false, image.clone())?;
        let mounted = start.elapsed().as_secs_f64() * 1e3;
        let pid = side.server().ok_or("no server")?;
        let idle = settled(pid)?;
        let walk = side.shell("find . -size +1G")?.seconds;
        let full = settled(pid)?;
        // Drop cached names and inodes only.
        fs::write(Path::new("/proc/sys/vm/drop_caches"), "2")?;
        let dropped = settled(pid)?;
        side.unmount()?;
        eprintln!("large, round {}: {mounted:.0} ms, {idle:.1}, {full:.1}, {dropped:.1} MB", round + 1);
        for (all, one) in figures.iter_mut().zip([mounted, idle, walk, full, dropped]) {
            all.push(one);
        }
    }
    let what = format!("a volume of 1 TiB with {} files: ", options.scaled(FILES));
    let rows = [
        ("mounted, from the start of the command", "ms", Target::AtMost(100.0)),
        ("memory when idle", "MB", Target::AtMost(30.0)),
        ("find -size", "s", Target::None),
        ("memory after that", "MB", Target::AtMost(200.0)),
        ("memory after drop_caches", "MB", Target::AtMost(60.0)),
    ];
    for ((row, unit, target), figures) in rows.into_iter().zip(&figures) {
        absolute(&format!("{what}{row}"), unit, figures, target);
    }
    Ok(())
}
