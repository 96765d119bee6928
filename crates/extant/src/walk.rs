//! Everything below a directory, for code that blocks.

use crate::world::World;
use crate::{Metadata, Result, asynch};

/// Iterates over everything below a directory.
///
/// Directories come before their contents, the names in each in byte order; symbolic links are not
/// followed. Names added or removed during the walk may or may not be seen. After an error the walk
/// continues with everything that is not below the failed path.
///
/// ```
/// # fn main() -> Result<(), extant::Error> {
/// # let folder = tempfile::tempdir().unwrap();
/// # let path = folder.path().join("disk.img");
/// # extant::Volume::create(&path, 16 << 20).unwrap().close().unwrap();
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
