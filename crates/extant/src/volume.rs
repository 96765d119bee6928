//! A volume, for code that blocks.

#[cfg(feature = "check")]
use crate::check;
use crate::world::World;
use crate::{Caller, Dir, DirEntry, Error, File, Metadata, OpenOptions, Result, Statfs, Time, Walk, asynch};
use extant_block::{Device, Storage, StorageDevice};
use extant_rt::Rt;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

/// A volume, open for reading or writing.
///
/// Cheap to clone; clones are the same volume and can be used from any thread. Dropping the last
/// clone without [`Volume::close`] acts like a power cut: synced changes stay, others may be lost.
///
/// ```
/// # fn main() -> Result<(), extant::Error> {
/// # let folder = tempfile::tempdir().unwrap();
/// # let path = folder.path().join("disk.img");
/// # extant::Volume::create(&path, 16 << 20).unwrap().close().unwrap();
/// use extant::{OpenOptions, Volume};
///
/// let volume = Volume::open(&path, &OpenOptions::new().write(true))?;
/// volume.root().write("hello", "world")?;
/// volume.close()?;
///
/// let volume = Volume::open(&path, &OpenOptions::new())?;
/// assert_eq!(volume.read("/hello")?, b"world");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Volume {
    world: World,
    inner: asynch::Volume,
}

impl Volume {
    /// Opens the volume in a file, on a block device of the host, or on an NBD server
    /// (`nbd://HOST[:PORT]/EXPORT`, `nbd+unix:///EXPORT?socket=PATH`), or in a part of one of these
    /// ([`OpenOptions::part`]).
    ///
    /// # Errors
    /// The file cannot be opened, or has no such part; or its contents are damaged, are not a
    /// volume, or use an unsupported feature. For writing, [`Error::Busy`] if another writer still
    /// has the volume after a second, or the host's kernel has the image mounted, under whatever
    /// name; [`Error::Locked`] if another program, such as a virtual machine, holds a lock on it.
    pub fn open(path: impl AsRef<Path>, options: &OpenOptions) -> Result<Self> {
        Self::open_path(path.as_ref(), options)
    }

    fn open_path(path: &Path, options: &OpenOptions) -> Result<Self> {
        let rt = Rt::real(extant_rt::RealConfig::default());
        let world = World::new(&rt);
        let inner = world.wait(asynch::Volume::open_on(&rt, path, options))?;
        Ok(Self { world, inner })
    }

    /// Opens the volume on a device.
    ///
    /// # Errors
    /// The device fails; or its contents are damaged, are not a volume, or use an unsupported
    /// feature.
    pub fn open_device(rt: &Rt, device: Arc<dyn Device>, options: &OpenOptions) -> Result<Self> {
        let world = World::new(rt);
        let inner = world.wait(asynch::Volume::open_device(rt, device, options))?;
        Ok(Self { world, inner })
    }

    /// Opens the volume in a program's own storage, which `name` stands for in errors. Its methods
    /// are called by threads of the volume's own, several at a time, and may take their time.
    ///
    /// For storage that answers at once, such as memory, [`Volume::open_device`] with a
    /// [`StorageDevice`] is faster: the threads that need the bytes make the calls.
    ///
    /// # Errors
    /// Same as [`Volume::open_device`].
    pub fn open_storage(name: &str, storage: impl Storage, options: &OpenOptions) -> Result<Self> {
        let rt = Rt::real(extant_rt::RealConfig::default());
        let device = StorageDevice::new(name, storage).on_threads_of(&rt);
        Self::open_device(&rt, Arc::new(device), options)
    }

    /// The same volume, for async code.
    pub fn asynch(&self) -> &asynch::Volume {
        &self.inner
    }

    pub(crate) fn world(&self) -> &World {
        &self.world
    }

    /// The root directory.
    pub fn root(&self) -> Dir {
        Dir::new(self.world.clone(), self.inner.root())
    }

    /// Opens a file for reading. See [`Dir::open`].
    ///
    /// # Errors
    /// Same as [`Dir::open`].
    pub fn open_file(&self, path: impl AsRef<[u8]>) -> Result<File> {
        self.root().open(path)
    }

    /// Returns the whole contents of a file.
    ///
    /// # Errors
    /// Same as [`Dir::open`].
    pub fn read(&self, path: impl AsRef<[u8]>) -> Result<Vec<u8>> {
        self.root().read(path)
    }

    /// Lists a directory in on-disk order, without `.` and `..`.
    ///
    /// # Errors
    /// Those of [`Dir::open_dir`] and [`Dir::entries`].
    pub fn read_dir(&self, path: impl AsRef<[u8]>) -> Result<Vec<DirEntry>> {
        self.root().open_dir(path)?.entries()
    }

    /// Returns the attributes of the file at a path, following symbolic links.
    ///
    /// # Errors
    /// Same as [`Dir::metadata`].
    pub fn metadata(&self, path: impl AsRef<[u8]>) -> Result<Metadata> {
        self.root().metadata(path)
    }

    /// Walks everything on the volume; see [`Walk`].
    pub fn walk(&self) -> Walk {
        self.root().walk()
    }

    /// The same volume as seen by another caller.
    #[must_use]
    pub fn as_caller(&self, caller: Caller) -> Self {
        Self { world: self.world.clone(), inner: self.inner.as_caller(caller) }
    }

    /// Damage found so far that did not stop an operation, and what the operation could not do
    /// because of it.
    ///
    /// For example, a file with a damaged map loses its name, and its blocks stay in use until
    /// e2fsck frees them. Each problem is listed once. To get those found by [`Volume::close`], ask
    /// a clone afterwards.
    pub fn problems(&self) -> Vec<Error> {
        self.inner.problems()
    }

    /// The underlying `extant-fs` volume, for reading what this crate does not expose: inodes,
    /// maps, structures as text.
    ///
    /// It shows the latest changes, and fails like other clones once the volume is closed.
    pub fn stored(&self) -> &extant_fs::Volume {
        self.inner.stored()
    }

    /// Earliest and latest time that an inode of this volume can store. Times beyond them are
    /// clamped.
    pub fn time_range(&self) -> (Time, Time) {
        self.inner.time_range()
    }

    /// Sizes and free space.
    pub fn statfs(&self) -> Statfs {
        self.inner.statfs()
    }

    /// Whether this is an offline batch ([`OpenOptions::offline`]) that has changed nothing so far.
    pub fn is_unchanged(&self) -> bool {
        self.inner.is_unchanged()
    }

    /// Like [`Volume::close`], but without the changes of an offline batch, as long as they are in
    /// memory only: every structure then stays as it was when the volume was opened. For a batch
    /// whose only operation has failed.
    ///
    /// # Errors
    /// As [`Volume::close`].
    pub fn give_up(self) -> Result<()> {
        self.world.wait(self.inner.give_up())
    }

    /// Writes everything, leaves an empty journal and closes the volume.
    ///
    /// Afterwards operations through clones, directories and files fail; a concurrent write is
    /// either kept or fails. The image may be opened again while those handles live, but a host
    /// block device stays claimed, and the cache keeps its memory, until the last of them is
    /// dropped.
    ///
    /// # Errors
    /// Something could not be written. If that was file data, the volume is clean and the file
    /// lacks it; otherwise the volume is as after a power cut.
    pub fn close(self) -> Result<()> {
        self.world.wait(self.inner.close())
    }

    /// Looks for damage in all structures of the volume; nothing is written.
    ///
    /// The result lists what was found, by code and place; [`check::Options`] can ask for findings
    /// as they are made and for progress, limit memory, and end the check early. A volume that is
    /// open for writing is written out first. As it may change while it is read, contradictions
    /// between its structures are only suspected then.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let path = folder.path().join("disk.img");
    /// # extant::Volume::create(&path, 16 << 20).unwrap().close().unwrap();
    /// use extant::{OpenOptions, Volume, check};
    ///
    /// let volume = Volume::open(&path, &OpenOptions::new())?;
    /// let options = check::Options {
    ///     on_finding: Some(std::sync::Arc::new(|finding| println!("{}", finding.code))),
    ///     ..Default::default()
    /// };
    /// assert!(volume.check(options)?.is_clean());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The superblock is gone; the check was cancelled; or what was written could not be made
    /// durable.
    #[cfg(feature = "check")]
    pub fn check(&self, options: check::Options) -> std::result::Result<check::Checked, check::CheckError> {
        self.world.wait(self.inner.check(options))
    }

    /// Discards free space in a range of the volume's bytes (`FITRIM`); in an image file the blocks
    /// become holes.
    ///
    /// Runs shorter than `min_bytes` are left alone. The block in which the range begins is
    /// included. Returns the number of bytes discarded.
    ///
    /// # Errors
    /// The range contains no whole block of the volume; or the device does not support discard, or
    /// fails.
    pub fn trim(&self, range: Range<u64>, min_bytes: u64) -> Result<u64> {
        self.world.wait(self.inner.trim(range, min_bytes))
    }

    /// Makes everything done before the call durable.
    ///
    /// # Errors
    /// Something could not be written.
    pub fn sync(&self) -> Result<()> {
        self.world.wait(self.inner.sync())
    }
}
