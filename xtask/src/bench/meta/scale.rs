//! Cost by size: opening a large volume, creating files in a large directory.

use super::bed::{create, open, seconds, sparse_image};
use super::report::{Target, absolute};
use super::{Options, Result};
use std::time::Instant;

pub(super) fn open_large(options: &Options) -> Result<()> {
    let path = sparse_image(&options.dir, "large.img", 1 << 40, &[])?;
    let mut figures = Vec::new();
    for _ in 0..options.rounds {
        let start = Instant::now();
        let volume = open(&path, options.buffered)?;
        figures.push(start.elapsed().as_secs_f64() * 1000.0);
        volume.close()?;
    }
    absolute("a volume of 1 TiB opened for writing", "ms", &figures, Target::AtMost(100.0));
    Ok(std::fs::remove_file(&path)?)
}

/// Number of creates per figure, at most a whole directory.
const MEASURED: usize = 50_000;

/// Microseconds per create, for the last creates in directories that grow to `size` files.
fn cost(options: &Options, size: usize) -> Result<f64> {
    let inodes = (size.max(MEASURED) * 11 / 10 + 1000).to_string();
    let path = sparse_image(&options.dir, "growth.img", 8 << 30, &["-N", &inodes])?;
    let volume = open(&path, options.buffered)?;
    let dirs = MEASURED.div_ceil(size);
    let measured = MEASURED.min(size);
    let all = (0..dirs)
        .map(|n| {
            volume.root().create_dir(format!("d{n}"))?;
            Ok(volume.root().open_dir(format!("d{n}"))?)
        })
        .collect::<Result<Vec<_>>>()?;
    let fill = |files: std::ops::Range<usize>| {
        all.iter().try_for_each(|dir| files.clone().try_for_each(|n| create(dir, &format!("file-{n:07}"))))
    };
    fill(0..size - measured)?;
    volume.sync()?;
    let time = seconds(|| {
        fill(size - measured..size)?;
        Ok(volume.sync()?)
    })?;
    drop(all);
    volume.close()?;
    Ok(time * 1e6 / (dirs * measured) as f64)
}

/// The cost of a create in growing directories, relative to small ones.
pub(super) fn growth(options: &Options) -> Result<()> {
    let sizes: Vec<usize> = std::iter::successors(Some(1000), |size| Some(size * 10))
        .take_while(|size| *size <= options.growth)
        .collect();
    // The largest takes half a minute; three rounds are enough.
    let rounds = (0..options.rounds.min(3))
        .map(|_| sizes.iter().map(|&size| cost(options, size)).collect::<Result<Vec<_>>>())
        .collect::<Result<Vec<_>>>()?;
    for (at, size) in sizes.iter().enumerate() {
        let cost: Vec<f64> = rounds.iter().map(|costs| costs[at]).collect();
        absolute(&format!("a create in a directory of up to {size} files"), "µs", &cost, Target::None);
    }
    let grown: Vec<f64> = rounds.iter().map(|costs| costs[costs.len() - 1] / costs[0]).collect();
    let what = format!("a create in a directory of {} files, against {}", sizes[sizes.len() - 1], sizes[0]);
    absolute(&what, "x", &grown, Target::AtMost(1.3));
    Ok(std::fs::remove_file(options.dir.join("growth.img"))?)
}
