//! Rewrites a volume at the smallest size that holds it.
//!
//! Inodes keep everything except, if they lie beyond the smaller inode tables, their numbers.
//! Directory, attribute and file blocks keep their contents. Only locations change: every file is
//! stored in as few runs as possible, inode tables have as many inodes as are in use and a few
//! more, and the journal gets the usual size for such a small volume.

mod arrangement;
mod records;
mod refuse;
mod renumber;
mod smaller_volume;
mod sound;
mod survey;

use crate::write::{Claimed, Output, Progress, pump};
use crate::{BuildError, Target, quoted, quoted_path};
use arrangement::Arrangement;
use extant_block::Claim;
use extant_format::{InodeNumber, UintExt};
use extant_fs::{Error, Volume};
use extant_rt::Rt;
use smaller_volume::Shrunk;
use std::collections::BTreeSet;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use survey::Survey;

/// Sizes of a volume before and after.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShrinkReport {
    /// Original size of the volume in bytes.
    pub before_bytes: u64,
    /// Size of the smallest volume in bytes.
    pub after_bytes: u64,
    /// Free bytes in the smallest volume.
    pub free_bytes: u64,
    /// Journal blocks before and after; 0 for no journal.
    pub journal_blocks: [u32; 2],
    /// Number of inodes in use whose number changed.
    pub renumbered_inodes: u32,
    /// Whether the image was written. An image that is already minimal is not replaced by itself.
    pub is_written: bool,
}

/// Writes the smallest volume with the contents of `volume`, read from `image`, to `target`.
///
/// The target may be the image itself as a file; then the new file gets its permissions, and takes
/// its name once it is durable. A device that is written in place must not be the one that `volume`
/// is read from. `claim` keeps writers away from the image and must have been taken before `volume`
/// was opened; see [`FileDevice::claim_to_replace`](extant_block::FileDevice::claim_to_replace).
///
/// # Errors
/// An image that is to replace itself but is not a regular file, has other names, is not writable,
/// or contains anything except zeros after its volume. A volume with a dirty journal, orphans or
/// known errors. Damage. Unsupported features, by name: those that depend on numbers or locations
/// of inodes and blocks, and layouts that [`build`](crate::build) does not create. On error the
/// target's name is absent, or still refers to the previous file.
pub fn shrink(
    volume: &Volume,
    image: &Path,
    claim: Claim,
    target: Target,
    rt: &Rt,
    progress: Progress,
) -> Result<ShrinkReport, BuildError> {
    let refused = |error| BuildError::Volume { path: quoted_path(image), error };
    refuse::check(volume.superblock()).map_err(refused)?;
    let survey = rt.block_on(async {
        let surveyed = async {
            let survey = Survey::of(volume).await?;
            sound::check(volume, &survey).await.map(|()| survey)
        };
        match surveyed.await {
            Err(Error::Corrupt(corrupt)) => {
                let path = match corrupt.place.inode() {
                    Some(inode) => path_of(volume, inode).await,
                    None => None,
                };
                Err((path, Error::Corrupt(corrupt)))
            }
            other => other.map_err(|error| (None, error)),
        }
    });
    let survey = survey?.map_err(|(path, error)| match path {
        Some(path) => {
            let place = [image.as_os_str().as_bytes(), b":", &path].concat();
            BuildError::Volume { path: quoted(&place), error }
        }
        None => refused(error),
    })?;
    let arrangement = Arrangement::smallest(volume.superblock(), &survey)?;
    let before_bytes = volume.superblock().blocks_count() << arrangement.params.block.log2();
    let shrunk = Shrunk::new(volume.clone(), quoted_path(image), rt.clone(), survey, arrangement)?;
    let mut report = shrunk.report(before_bytes);
    // A file longer than its volume is still truncated.
    let file_bytes = std::fs::metadata(image).map_or(before_bytes, |meta| meta.len());
    let itself = match &target {
        Target::File { path, .. } => Some(path).filter(|path| is_same_file(image, path)),
        Target::New(_) | Target::Place(_) => None,
    };
    let Some(itself) = itself else {
        let target = Claimed::claim(target, rt)?;
        target.write(&Arc::new(shrunk), rt, progress)?;
        return Ok(report);
    };
    check_replaceable(image, before_bytes)?;
    if report.after_bytes >= file_bytes {
        report.is_written = false;
        return Ok(report);
    }
    let path = std::fs::canonicalize(itself).map_err(|e| BuildError::output("look at", itself, e))?;
    let file = Output::create_over(&path, claim, report.after_bytes, rt)?;
    file.keep_attributes()?;
    pump(&Arc::new(shrunk), file.device(), rt, progress)?;
    file.commit(rt)?;
    Ok(report)
}

/// Finds a path to an inode of a damaged volume. Directories that cannot be read are skipped.
async fn path_of(volume: &Volume, wanted: InodeNumber) -> Option<Vec<u8>> {
    let mut seen = BTreeSet::from([InodeNumber::ROOT]);
    let mut todo = vec![(InodeNumber::ROOT, Vec::new())];
    while let Some((number, path)) = todo.pop() {
        if number == wanted {
            return Some(if path.is_empty() { b"/".to_vec() } else { path });
        }
        let Ok(dir) = volume.inode(number).await else { continue };
        let Ok(items) = volume.list(&dir).await else { continue };
        for item in items {
            if seen.insert(item.inode) {
                todo.push((item.inode, [&path[..], b"/", &item.name].concat()));
            }
        }
    }
    None
}

/// Fails if a smaller volume must not replace the current image.
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
        // There may be a signature or a hash tree after the volume, which would be lost.
        match file.read_at(&mut piece, at).map_err(failed)? {
            0 => return Ok(()),
            n if piece[..n].iter().any(|&byte| byte != 0) => {
                return refuse("has data behind its volume, which would be lost");
            }
            n => at += n.to_u64(),
        }
    }
}

fn is_same_file(a: &Path, b: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let identity = |path: &Path| std::fs::metadata(path).ok().map(|meta| (meta.dev(), meta.ino()));
    identity(a).is_some() && identity(a) == identity(b)
}
