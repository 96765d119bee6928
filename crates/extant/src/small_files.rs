//! Small files that are made together, for code that blocks.

use crate::world::World;
use crate::{Dir, Error, NotMade, Result, SmallFile, Volume, asynch};

/// Small files that are made together, much faster than one after the other.
///
/// Their contents go to the device in few writes. Then each file appears in one step, in the order
/// in which they were added: after a power cut it is there with all of its contents and attributes,
/// or not at all. It is durable after [`Volume::sync`]. Files that still wait when this is dropped
/// are not made.
///
/// ```
/// # fn main() -> Result<(), extant::Error> {
/// # let folder = tempfile::tempdir().unwrap();
/// # let path = folder.path().join("disk.img");
/// # extant::Volume::create(&path, 16 << 20).unwrap().close().unwrap();
/// # let volume = extant::Volume::open(&path, &extant::OpenOptions::new().write(true)).unwrap();
/// use extant::{SmallFile, Time};
///
/// let (root, mut files) = (volume.root(), volume.small_files()?);
/// let [accessed, modified] = [Time { seconds: 1_700_000_000, nanos: 0 }; 2];
/// for n in 0..1000 {
///     let contents = format!("number {n}\n");
///     let contents = contents.as_bytes();
///     if !files.has_room(contents.len()) {
///         files.make()?;
///     }
///     let file = SmallFile { mode: 0o644, uid: 0, gid: 0, accessed, modified, contents };
///     if !files.add(&root, format!("file{n}"), &file)? {
///         files.make()?; // keeps the order
///         root.write(format!("file{n}"), contents)?;
///     }
/// }
/// files.make()?;
/// assert_eq!(root.read("file999")?, b"number 999\n");
/// # drop((root, files));
/// # volume.close()
/// # }
/// ```
#[derive(Debug)]
pub struct SmallFiles {
    world: World,
    inner: asynch::SmallFiles,
}

impl Volume {
    /// Begins to make small files together.
    ///
    /// # Errors
    /// The volume is open for reading; or its caller may not give files away.
    pub fn small_files(&self) -> Result<SmallFiles> {
        Ok(SmallFiles { world: self.world().clone(), inner: self.asynch().small_files()? })
    }
}

impl SmallFiles {
    /// Longest contents of a small file, in bytes.
    pub const FILE_BYTES: usize = extant_fs::SmallFiles::FILE_BYTES;

    /// Adds a file, to be made by the next [`SmallFiles::make`] at a path where no file is.
    ///
    /// Returns false if it must be made in another way: there is no room for it
    /// ([`SmallFiles::has_room`]), or a file of this path waits already; it is too long; free space
    /// is in small pieces; the path ends in a slash; or its directory asks for synchronous changes,
    /// or it or the volume for journalled data.
    ///
    /// # Errors
    /// No such directory; no space or inode is left.
    pub fn add(&mut self, dir: &Dir, path: impl AsRef<[u8]>, file: &SmallFile<'_>) -> Result<bool> {
        self.world.wait(self.inner.add(dir.asynch(), path, file))
    }

    /// Whether a file waits to be made at this path.
    pub fn contains(&self, dir: &Dir, path: impl AsRef<[u8]>) -> bool {
        let waits = async { Ok::<_, Error>(self.inner.contains(dir.asynch(), path).await) };
        self.world.wait(waits).unwrap_or(false)
    }

    /// How many files wait to be made.
    pub fn len(&self) -> usize {
        self.inner.len()
    }

    /// Whether no file waits to be made.
    pub fn is_empty(&self) -> bool {
        self.inner.is_empty()
    }

    /// Whether a file of so many bytes can be added before those that wait are made. Never true for
    /// more than [`Self::FILE_BYTES`].
    pub fn has_room(&self, bytes: usize) -> bool {
        self.inner.has_room(bytes)
    }

    /// Makes the files that wait, in the order in which they were added.
    ///
    /// # Errors
    /// The first file that cannot be made, and why: the name exists or the directory is gone; no
    /// space for the name; or the device failed. The files before it are made, those after it are
    /// not, and none waits any more.
    pub fn make(&mut self) -> std::result::Result<(), NotMade> {
        self.world.wait(self.inner.make())
    }
}
