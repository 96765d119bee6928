//! A volume rewritten to the smallest size that holds it.
//!
//! Inodes keep everything but, where they lie beyond the smaller inode tables, their numbers; blocks of directories, of
//! attributes and of files keep their contents. Only places change: every file is laid into as few runs as there can be,
//! inode tables have as many inodes as are in use and a few, and the journal has the size that a volume so small gets.

mod emit;
mod plan;
mod refuse;
mod renumber;
mod sound;
mod survey;

use crate::write::{Output, Progress, Replaced, pump};
use crate::{BuildError, quoted_path};
use emit::Shrunk;
use extant_block::{Claim, ForeignLocks};
use extant_fs::Volume;
use extant_rt::Rt;
use plan::Arrangement;
use std::path::Path;
use std::sync::Arc;
use survey::Survey;

/// Sizes of a volume before and after.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShrinkReport {
    /// Bytes of the volume as it was.
    pub before_bytes: u64,
    /// Bytes of the smallest volume.
    pub after_bytes: u64,
    /// Of these, bytes that no file uses.
    pub free_bytes: u64,
    /// Blocks of the journal, before and after; 0 without one.
    pub journal_blocks: [u32; 2],
    /// Inodes in use that have other numbers than before.
    pub renumbered_inodes: u32,
    /// Whether the image was written. One that is as small as it can be already does not replace itself.
    pub is_written: bool,
}

/// Writes the smallest volume with everything that is on `volume`, read from `image`, to `output`, which may be the image
/// itself: the new file has its permissions then, and takes its name once it is durable. `claim` keeps writers from the image
/// and must be older than `volume`; see [`FileDevice::claim_to_replace`](extant_block::FileDevice::claim_to_replace). `foreign` is
/// what is done about another image at `output` that a program has locked.
///
/// # Errors
/// An image that is to replace itself and is no regular file, has other names or may not be written, or has anything but zeroes
/// behind its volume.
/// A volume with a dirty journal, with orphans or with known errors; damage; by name, features that stand against it: those that
/// depend on the numbers or places of inodes and blocks, and layouts that [`build`](crate::build) does not make. Nothing is
/// left under the output's name then, or what was there before.
pub fn shrink(
    volume: &Volume,
    image: &Path,
    claim: Claim,
    output: &Path,
    foreign: ForeignLocks,
    rt: &Rt,
    progress: Progress,
) -> Result<ShrinkReport, BuildError> {
    let refused = |error| BuildError::Volume { path: quoted_path(image), error };
    refuse::check(volume.superblock()).map_err(refused)?;
    let survey = rt.block_on(async {
        let survey = Survey::of(volume).await?;
        sound::check(volume, &survey).await.map(|()| survey)
    });
    let survey = survey?.map_err(refused)?;
    let arrangement = Arrangement::smallest(volume.superblock(), &survey)?;
    let before_bytes = volume.superblock().blocks_count() << arrangement.params.block.log2();
    let shrunk = Shrunk::new(volume.clone(), quoted_path(image), rt.clone(), survey, arrangement)?;
    let mut report = shrunk.report(before_bytes);
    // An image in a file that is longer than its volume is still cut.
    let file_bytes = std::fs::metadata(image).map_or(before_bytes, |meta| meta.len());
    let in_place = is_same_file(image, output);
    if in_place {
        check_replaceable(image, before_bytes)?;
    }
    if in_place && report.after_bytes >= file_bytes {
        report.is_written = false;
        return Ok(report);
    }
    let (file, _claim) = if in_place {
        let target = std::fs::canonicalize(output).map_err(|e| BuildError::output("look at", output, e))?;
        let file = Output::create_over(&target, claim, report.after_bytes, rt)?;
        file.resemble(&target)?;
        (file, Claim::default())
    } else {
        (Output::create(Replaced::claim(output, foreign)?, report.after_bytes, rt)?, claim)
    };
    pump(&Arc::new(shrunk), file.device(), rt, progress)?;
    file.commit(rt)?;
    Ok(report)
}

/// Fails where a smaller volume must not take the place of what an image holds now.
fn check_replaceable(image: &Path, volume_bytes: u64) -> Result<(), BuildError> {
    use std::os::unix::fs::{FileExt, MetadataExt};
    let refuse = |why: &str| {
        Err(BuildError::Options(format!(
            "{} {why}; name another file for the smaller volume",
            quoted_path(image)
        )))
    };
    let failed = |error| BuildError::output("look behind the volume of", image, error);
    let file = std::fs::File::open(image).map_err(failed)?;
    let meta = file.metadata().map_err(failed)?;
    if !meta.is_file() {
        return refuse("is not a regular file");
    }
    if meta.nlink() > 1 {
        return refuse("has other names (hard links), which would keep the volume as it is");
    }
    if rustix::fs::access(image, rustix::fs::Access::WRITE_OK).is_err() {
        return refuse("may not be written");
    }
    let (mut at, mut piece) = (volume_bytes, vec![0; 1 << 20]);
    loop {
        // Behind the volume there may be a signature or a tree of hashes of it, which would be lost.
        match file.read_at(&mut piece, at).map_err(failed)? {
            0 => return Ok(()),
            n if piece[..n].iter().any(|&byte| byte != 0) => {
                return refuse("has data behind its volume, which would be lost");
            }
            n => at += n as u64,
        }
    }
}

fn is_same_file(a: &Path, b: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let identity = |path: &Path| std::fs::metadata(path).ok().map(|meta| (meta.dev(), meta.ino()));
    identity(a).is_some() && identity(a) == identity(b)
}
