//! Volumes for the tests of the library.

use extant::{OpenOptions, Volume};
use extant_image::{SizePolicy, Timestamp, VolumeOptions};
use extant_rt::Rt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// An empty volume of 32 MiB in `dir`.
pub(crate) fn image(dir: &Path) -> PathBuf {
    let path = dir.join("disk.img");
    let volume = VolumeOptions { size: SizePolicy::Fixed(32 << 20), ..VolumeOptions::default() };
    let created = Timestamp { seconds: 1_700_000_000, nanos: 0 };
    extant_image::mkfs(&path, &volume, created, &Rt::real(Default::default()), Arc::new(|_, _| {})).unwrap();
    path
}

/// A volume open for writing.
pub(crate) fn writable(path: &Path) -> Volume {
    Volume::open(path, &OpenOptions::new().write(true)).unwrap()
}
