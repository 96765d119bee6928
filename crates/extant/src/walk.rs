//! Everything below a directory, for code that blocks.

use crate::world::World;
use crate::{Metadata, Result, asynch};

/// A walk over everything below a directory: directories before their contents, the names of each in the order of their
/// bytes, symbolic links not followed. Names that come or go meanwhile may or may not be met. After an error the walk goes
/// on with what does not lie below the path that failed.
///
/// ```
/// # fn main() -> Result<(), extant::Error> {
/// # let folder = tempfile::tempdir().unwrap();
/// # let path = folder.path().join("disk.img");
/// # let (options, created) = (extant_image::VolumeOptions { size: extant_image::SizePolicy::Fixed(16 << 20), ..Default::default() },
/// #     extant_image::Timestamp { seconds: 1_700_000_000, nanos: 0 });
/// # extant_image::mkfs(&path, &options, created, &extant_rt::Rt::real(Default::default()), std::sync::Arc::new(|_, _| {})).unwrap();
/// # let volume = extant::Volume::open(&path, &extant::OpenOptions::new().write(true)).unwrap();
/// let root = volume.root();
/// root.create_dir_all("etc/init.d")?;
/// root.write("etc/hostname", "box\n")?;
/// let mut bytes = 0;
/// for met in root.open_dir("etc")?.walk() {
///     let (path, metadata) = met?;
///     println!("{} {}", metadata.len(), path.escape_ascii());
///     bytes += if metadata.is_file() { metadata.len() } else { 0 };
/// }
/// assert_eq!(bytes, 4);
/// # volume.close()
/// # }
/// ```
#[derive(Debug)]
pub struct Walk {
    world: World,
    inner: asynch::Walk,
}

impl Walk {
    pub(crate) fn new(world: World, inner: asynch::Walk) -> Self {
        Self { world, inner }
    }
}

impl Iterator for Walk {
    type Item = Result<(Vec<u8>, Metadata)>;

    fn next(&mut self) -> Option<Self::Item> {
        self.world.wait(async { self.inner.next().await.transpose() }).transpose()
    }
}
