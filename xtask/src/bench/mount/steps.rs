//! Steps that are loops of system calls. Each runs in a process of its own and prints its figures.
//! Some run as another user.

use super::Result;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Instant;

const MIB: usize = 1 << 20;

fn name(n: u64) -> String {
    format!("file-{n:06}")
}

/// Runs a step; `count` is a number of files, mebibytes or calls.
pub(super) fn program(step: &str, path: &Path, count: u64) -> Result<()> {
    let start = Instant::now();
    let all =
        |work: &dyn Fn(&Path) -> std::io::Result<()>| (0..count).try_for_each(|n| work(&path.join(name(n))));
    match step {
        "create" => all(&|path| File::create_new(path).map(drop))?,
        "stat" => all(&|path| fs::symlink_metadata(path).map(drop))?,
        "unlink" => all(&|path| fs::remove_file(path))?,
        "write" => {
            let (mut file, chunk) = (File::create(path)?, vec![42; MIB]);
            (0..count).try_for_each(|_| file.write_all(&chunk))?;
            file.sync_all()?;
        }
        "read" => {
            let (mut file, mut chunk) = (File::open(path)?, vec![0; MIB]);
            (0..count).try_for_each(|_| file.read_exact(&mut chunk))?;
        }
        "scribble" => {
            let file = File::options().write(true).open(path)?;
            let (blocks, block) = (file.metadata()?.len() / 4096, [7; 4096]);
            let mut state = 88_172_645_463_325_252_u64;
            for _ in 0..count {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                file.write_all_at(&block, state % blocks * 4096)?;
            }
        }
        "fsync" => return fsync(path, count),
        _ => return Err(format!("there is no step {step}").into()),
    }
    println!("{}", start.elapsed().as_secs_f64());
    Ok(())
}

/// Appends 4 KiB and syncs, `count` times; prints the median and the 99th percentile in
/// microseconds.
fn fsync(path: &Path, count: u64) -> Result<()> {
    let file = File::create(path)?;
    let mut times = Vec::new();
    for n in 0..count {
        let start = Instant::now();
        file.write_all_at(&[7; 4096], n * 4096)?;
        file.sync_all()?;
        times.push(start.elapsed().as_secs_f64() * 1e6);
    }
    times.sort_by(f64::total_cmp);
    println!("{} {}", times[times.len() / 2], times[times.len() * 99 / 100]);
    Ok(())
}
