//! Volumes for the library's tests.

use extant::image::{SizePolicy, VolumeOptions};
use extant::{OpenOptions, Volume};
use std::path::{Path, PathBuf};
use std::process::Command;

/// An empty volume of 32 MiB in `dir`.
pub(crate) fn image(dir: &Path) -> PathBuf {
    let path = dir.join("disk.img");
    let volume = VolumeOptions { size: SizePolicy::Fixed(32 << 20), ..VolumeOptions::default() };
    let open = OpenOptions::new().fixed_time(Some(1_700_000_000));
    Volume::create_with(&path, &volume, &open).unwrap().close().unwrap();
    path
}

/// Checks that e2fsck, where installed, prints nothing beyond its five passes and the summary.
pub(crate) fn fsck(path: &Path) {
    let Ok(out) = Command::new("e2fsck").arg("-fn").arg(path).output() else {
        println!("skipped: e2fsck is not installed");
        return;
    };
    let said = String::from_utf8_lossy(&out.stdout);
    let lines = said.lines().filter(|line| !line.is_empty());
    let (passes, others): (Vec<_>, Vec<_>) = lines.partition(|line| line.starts_with("Pass "));
    assert!(out.status.success() && passes.len() == 5 && others.len() == 1, "{said}");
}

/// A volume open for writing.
pub(crate) fn writable(path: &Path) -> Volume {
    Volume::open(path, &OpenOptions::new().write(true)).unwrap()
}
