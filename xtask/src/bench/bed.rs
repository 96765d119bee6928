//! Images, kernel mounts of them, and the library's volumes.
#![allow(clippy::disallowed_methods, clippy::disallowed_types)] // a bench reads the clock itself

use super::Result;
use extant::{Dir, FileOptions, OpenOptions, Volume};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

pub(super) const IMAGE_BYTES: u64 = 2 << 30;
pub(super) const CACHE_BYTES: u64 = 512 << 20;

pub(super) fn tool(name: &str, args: &[&str]) -> Result<()> {
    let path = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default());
    let output = Command::new(name).args(args).env("PATH", path).stdin(Stdio::null()).output()?;
    match output.status.success() {
        true => Ok(()),
        false => Err(format!("{name} {args:?}: {}", String::from_utf8_lossy(&output.stderr)).into()),
    }
}

pub(super) fn text(path: &Path) -> &str {
    path.to_str().expect("a path of this bench")
}

/// A fresh ext4 volume in a host file. All its blocks are written, as on a disk, so that the host's
/// allocation of them is not measured.
pub(super) fn image(dir: &Path, name: &str, bytes: u64, mke2fs: &[&str]) -> Result<PathBuf> {
    let path = dir.join(name);
    if !path.exists() {
        let file = File::create(&path)?;
        let zeroes = vec![0; 1 << 20];
        (0..bytes >> 20).try_for_each(|n| file.write_all_at(&zeroes, n << 20))?;
    }
    make(&path, "nodiscard,lazy_itable_init=0,lazy_journal_init=1", mke2fs)?;
    Ok(path)
}

/// A fresh ext4 volume in a sparse host file.
pub(super) fn sparse_image(dir: &Path, name: &str, bytes: u64, mke2fs: &[&str]) -> Result<PathBuf> {
    let path = dir.join(name);
    let _ = fs::remove_file(&path);
    File::create(&path)?.set_len(bytes)?;
    make(&path, "lazy_itable_init=1,lazy_journal_init=1", mke2fs)?;
    Ok(path)
}

fn make(path: &Path, extended: &str, mke2fs: &[&str]) -> Result<()> {
    let mut args = vec!["-q", "-F", "-t", "ext4", "-E", extended];
    args.extend_from_slice(mke2fs);
    args.push(text(path));
    tool("mke2fs", &args)?;
    forget(path)
}

/// Makes the host write back and drop its cached pages of a file. Its writeback must not disturb
/// the measurement, and a direct write over cached pages pays for each of them, in a kernel thread.
pub(super) fn forget(path: &Path) -> Result<()> {
    let file = File::open(path)?;
    file.sync_all()?;
    Ok(rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?)
}

/// A kernel loop mount of an image, unmounted on drop.
pub(super) struct Mount {
    pub(super) at: PathBuf,
    _mount: extant_testbed::Mount,
}

impl Mount {
    /// `None` if this process may not mount; the table then lacks those figures.
    pub(super) fn new(dir: &Path, image: &Path) -> Result<Option<Self>> {
        if !rustix::process::geteuid().is_root() || std::env::var_os("NOKERN").is_some() {
            return Ok(None);
        }
        let at = dir.join("mount");
        let mount = extant_testbed::Mount::try_new(image, &at, "rw")?;
        Ok(Some(Self { at, _mount: mount }))
    }

    pub(super) fn sync(&self) -> Result<()> {
        Ok(rustix::fs::syncfs(File::open(&self.at)?)?)
    }
}

/// The library's volume on an image, bypassing the host's page cache unless `buffered`.
pub(super) fn open(path: &Path, buffered: bool) -> Result<Volume> {
    let open = OpenOptions::new().write(true).direct(!buffered).cache_bytes(CACHE_BYTES);
    Ok(Volume::open(path, &open)?)
}

pub(super) fn create(dir: &Dir, name: &str) -> Result<()> {
    dir.open_with(name, FileOptions::new().write(true).create_new(true))?;
    Ok(())
}

pub(super) fn seconds(work: impl FnOnce() -> Result<()>) -> Result<f64> {
    let start = Instant::now();
    work()?;
    Ok(start.elapsed().as_secs_f64())
}
