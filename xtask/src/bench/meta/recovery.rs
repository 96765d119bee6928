//! Recovery of a full journal.

use super::bed::{Mount, seconds, sparse_image, text, tool};
use super::report::{Target, absolute, compared};
use super::watched::{Seen, Watched};
use super::{Options, Result};
use extant_block::{Bio, Buf, FileDevice, Op, Sector, Segment};
use extant_cache::{CacheConfig, PageCache};
use extant_fs::{Caller, Volume, WriteOptions};
use extant_rt::{RealConfig, Rt};
use std::collections::VecDeque;
use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

/// Reads and writes of the raw pass in flight.
const DEPTH: usize = 16;
/// Maximum length of these reads and writes.
const PIECE_BYTES: u64 = 1 << 20;

fn device(rt: &Rt, path: &Path) -> Result<Arc<Watched>> {
    let file = extant_block::FileOptions { write: true, ..Default::default() };
    Ok(Watched::new(Arc::new(FileDevice::open(path, file)?.driven_by(rt))))
}

/// An image as left by a crash, its journal nearly full of creates, with one transaction per 1,000
/// files (100 for journals of up to 16 MiB).
fn crashed(options: &Options, journal_mib: u64) -> Result<PathBuf> {
    let journal = format!("size={journal_mib}");
    let path = sparse_image(&options.dir, "crashed.img", 4 << 30, &["-J", &journal, "-N", "1000000"])?;
    let rt = Rt::real(RealConfig::default());
    let device = device(&rt, &path)?;
    let cache = PageCache::new(&rt, CacheConfig::with_budget(1 << 30))?;
    let disk = cache.attach(device.clone());
    // Nothing runs in the background: without checkpoints the log fills up.
    let write = WriteOptions { commit_interval: None, metadata_bytes: 1 << 30, ..WriteOptions::default() };
    rt.block_on(async {
        let volume = Volume::open_writable(&rt, &disk, write).await?;
        let (root, caller) = (volume.root_node().await?, Caller::root());
        let brim = (journal_mib << 20) * 9 / 10;
        let (mut logged, mut n) = (0, 0_u64);
        device.take();
        while logged < brim {
            let dir = root.mkdir(&caller, format!("d{n}").as_bytes(), 0o755).await?;
            for file in 0..if journal_mib > 16 { 1000 } else { 100 } {
                drop(dir.create(&caller, format!("file-{file:05}").as_bytes(), 0o644).await?);
            }
            volume.sync().await?;
            logged += device.take().writes.iter().map(|range| range.end - range.start).sum::<u64>();
            n += 1;
        }
        Ok::<(), extant_fs::Error>(())
    })??;
    Ok(path)
}

fn recover(path: &Path) -> Result<(f64, Seen)> {
    let rt = Rt::real(RealConfig::default());
    let device = device(&rt, path)?;
    let time = seconds(|| {
        rt.block_on(extant_fs::recover(&rt, device.clone(), extant_fs::OpenOptions::default()))??;
        Ok(())
    })?;
    Ok((time, device.take()))
}

/// Merges touching ranges in order of position, and splits them into pieces.
fn pieces(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.sort_by_key(|range| (range.start, range.end));
    let mut joined: Vec<Range<u64>> = Vec::new();
    for range in ranges {
        match joined.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => joined.push(range),
        }
    }
    let cut = |range: Range<u64>| {
        (range.start..range.end)
            .step_by(PIECE_BYTES as usize)
            .map(move |start| start..range.end.min(start + PIECE_BYTES))
    };
    joined.into_iter().flat_map(cut).collect()
}

/// Reads and writes the blocks of a recovery, each once, and flushes.
fn raw(path: &Path, seen: &Seen) -> Result<f64> {
    let rt = Rt::real(RealConfig::default());
    let device = device(&rt, path)?;
    let (reads, writes) = (pieces(seen.reads.clone()), pieces(seen.writes.clone()));
    let all = async |op: Op, pieces: &[Range<u64>]| -> Result<()> {
        let mut pending = VecDeque::new();
        for piece in pieces {
            if pending.len() == DEPTH {
                let ended: (Bio, std::result::Result<(), _>) = pending.pop_front().expect("some").await;
                ended.1?;
            }
            let memory = Segment::from(Buf::zeroed((piece.end - piece.start) as usize));
            let bio = Bio::new(op, Sector(piece.start / Sector::BYTES), vec![memory]);
            pending.push_back(extant_block::execute(&*device, bio));
        }
        for ended in pending {
            ended.await.1?;
        }
        Ok(())
    };
    seconds(|| {
        rt.block_on(async {
            all(Op::Read, &reads).await?;
            all(Op::Write, &writes).await?;
            Ok::<(), Box<dyn std::error::Error>>(extant_block::flush(&*device).await?)
        })?
    })
}

fn fresh(options: &Options, from: &Path) -> Result<PathBuf> {
    let copy = options.dir.join("copy.img");
    tool("cp", &["--sparse=always", text(from), text(&copy)])?;
    File::open(&copy)?.sync_all()?;
    Ok(copy)
}

pub(super) fn run(options: &Options) -> Result<()> {
    let path = crashed(options, 128)?;
    let (mut ours, mut raws, mut e2fsck, mut kernel) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut moved = 0;
    for _ in 0..options.rounds {
        let (time, seen) = recover(&fresh(options, &path)?)?;
        ours.push(time);
        moved = pieces(seen.writes.clone()).iter().map(|range| range.end - range.start).sum();
        raws.push(raw(&fresh(options, &path)?, &seen)?);
        let copy = fresh(options, &path)?;
        e2fsck.push(seconds(|| {
            // Exit code 1: all errors were corrected.
            let done = Command::new("e2fsck").args(["-p", text(&copy)]).output()?;
            if done.status.code().is_some_and(|code| code <= 1) {
                Ok(())
            } else {
                Err(format!("e2fsck -p: {}", String::from_utf8_lossy(&done.stdout)).into())
            }
        })?);
        let copy = fresh(options, &path)?;
        let mut mounted = None;
        let time = seconds(|| {
            mounted = Mount::new(&options.dir, &copy)?;
            Ok(())
        })?;
        kernel.extend(mounted.map(|_| time));
    }
    let what = format!("recovery of a full journal of 128 MiB, {} MiB home", moved >> 20);
    compared(&format!("{what}; e2fsck -p"), "s", &ours, &e2fsck, Target::AtMost(1.0));
    compared(&format!("{what}; kernel: mount"), "s", &ours, &kernel, Target::AtMost(1.0));
    compared(
        &format!("{what}; the same blocks read and written raw"),
        "s",
        &ours,
        &raws,
        Target::AtMost(1.3),
    );
    let path = crashed(options, 4)?;
    let mut small = Vec::new();
    for _ in 0..options.rounds {
        small.push(recover(&fresh(options, &path)?)?.0 * 1000.0);
    }
    absolute("recovery of a full journal of 4 MiB", "ms", &small, Target::AtMost(50.0));
    let _ = std::fs::remove_file(options.dir.join("copy.img"));
    Ok(std::fs::remove_file(&path)?)
}
