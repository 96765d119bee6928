//! A tree of 20,000 small files, written and made durable.

use super::bed::{IMAGE_BYTES, Mount, image, open, seconds};
use super::report::{Target, compared};
use super::{Options, Result};
use extant::FileOptions;
use std::fs::{self, File};
use std::io::Write;

const DIRS: usize = 200;
const FILES_IN_EACH: usize = 100;

/// Sizes as in a distribution's tree: most files small, a few large; about 190 MB in 20,000 files.
fn size_of(n: usize) -> usize {
    match n % 100 {
        0 => 400_000,
        1..10 => 40_000,
        10..40 => 10_000,
        _ => 2_000,
    }
}

fn ours(options: &Options, data: &[u8]) -> Result<f64> {
    let path = image(&options.dir, "ours.img", IMAGE_BYTES, &[])?;
    seconds(|| {
        let volume = open(&path, options.buffered)?;
        let mut flags = FileOptions::new();
        flags.write(true).create_new(true);
        for d in 0..DIRS {
            volume.root().create_dir(format!("d{d}"))?;
            let dir = volume.root().open_dir(format!("d{d}"))?;
            for n in 0..FILES_IN_EACH {
                dir.open_with(format!("f{n}"), &flags)?.write_all_at(0, &data[..size_of(n)])?;
            }
        }
        Ok(volume.close()?)
    })
}

/// Seconds until the data is durable, and until it is also unmounted.
fn theirs(options: &Options, data: &[u8]) -> Result<Option<[f64; 2]>> {
    let path = image(&options.dir, "theirs.img", IMAGE_BYTES, &[])?;
    let Some(mount) = Mount::new(&options.dir, &path)? else { return Ok(None) };
    let mut synced = 0.0;
    let all = seconds(|| {
        synced = seconds(|| {
            for d in 0..DIRS {
                let dir = mount.at.join(format!("d{d}"));
                fs::create_dir(&dir)?;
                for n in 0..FILES_IN_EACH {
                    File::create_new(dir.join(format!("f{n}")))?.write_all(&data[..size_of(n)])?;
                }
            }
            mount.sync()
        })?;
        drop(mount);
        Ok(())
    })?;
    Ok(Some([synced, all]))
}

pub(super) fn run(options: &Options) -> Result<()> {
    let data = vec![42_u8; 400_000];
    let (mut our, mut synced, mut unmounted) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..options.rounds {
        our.push(ours(options, &data)?);
        if let Some([sync, unmount]) = theirs(options, &data)? {
            synced.push(sync);
            unmounted.push(unmount);
        }
    }
    let what = "20,000 files written, from opening the volume to closing it";
    compared(&format!("{what}; kernel: mounted already, with syncfs"), "s", &our, &synced, Target::None);
    compared(&format!("{what}; kernel: with umount"), "s", &our, &unmounted, Target::AtMost(0.5));
    Ok(())
}
