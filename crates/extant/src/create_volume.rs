//! New volumes.

use crate::place::host_error;
use crate::{Error, OpenOptions, Result, Volume};
use extant_image::{BuildError, SizePolicy, Target, Timestamp, VolumeOptions, mkfs_on};
use extant_rt::Rt;
use std::path::Path;
use std::sync::Arc;

impl Volume {
    /// Makes an empty ext4 volume of this many bytes, with a journal, in a new file, and opens it
    /// for writing. The file is durable before this returns. Needs the feature `build`.
    ///
    /// ```
    /// # fn main() -> Result<(), extant::Error> {
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let path = folder.path().join("disk.img");
    /// let volume = extant::Volume::create(&path, 64 << 20)?;
    /// volume.root().write("hello", "world")?;
    /// volume.close()
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Exists`] if the path exists; [`Error::Invalid`] if the size is too small or too
    /// large; or the file cannot be written.
    pub fn create(path: impl AsRef<Path>, size_bytes: u64) -> Result<Self> {
        let volume = VolumeOptions { size: SizePolicy::Fixed(size_bytes), ..VolumeOptions::default() };
        Self::create_with(path, &volume, &OpenOptions::new().write(true))
    }

    /// Like [`Volume::create`], with a choice of type, features and sizes, and of how the new
    /// volume is opened.
    ///
    /// # Errors
    /// Same as [`Volume::create`]; or the options contradict each other.
    pub fn create_with(
        path: impl AsRef<Path>,
        volume: &VolumeOptions,
        options: &OpenOptions,
    ) -> Result<Self> {
        let path = path.as_ref();
        let rt = Rt::real(extant_rt::RealConfig::default());
        let created = match options.fixed_time {
            Some(seconds) => Timestamp { seconds, nanos: 0 },
            None => Timestamp { seconds: rt.wall_clock(), nanos: 0 },
        };
        let target = Target::New(path.to_owned());
        mkfs_on(target, volume, created, &rt, Arc::new(|_, _| {})).map_err(|error| match error {
            BuildError::Output { error, .. } => host_error(path, &error),
            BuildError::Device(error) => Error::Io(error),
            error => Error::Invalid(error.to_string()),
        })?;
        Self::open(path, options)
    }
}
