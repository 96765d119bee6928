//! Extant itself as the file system under test.

use crate::subject::{FLAGS, is_compared};
use crate::{
    Durability, Errno, Fallocate, Filesystem, Found, Image, ImageDevice, Kind, Meddler, Meddling, Op,
    Outcome, PUT_TIME, Recovered, RenameMode, Run, Special, Stat, Subject, Time, Tree, XattrMode, apply,
};
use extant::{
    Buf, Dir, Error, ExtentFlags, File, FileOptions, FileType, InodeFlags, NewFile, OpenOptions, RemovalStep,
    SmallFile, SmallFiles, Synchronous, Volume,
};
use extant_block::{Bio, Device, IoError, Limits, Record};
use extant_rt::{Nanos, Rng, Rt};
use extant_sim::{DeviceClock, Machine, Preemption, Sim};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// Cache memory for workloads, in bytes.
const CACHE_BYTES: u64 = 8 << 20;
/// Cache memory for reading recovered volumes, in bytes; there are thousands of them.
const RECOVERY_CACHE_BYTES: u64 = 1 << 20;

/// Step sizes so small that even small files need several.
pub(crate) const SHORT_STEP: RemovalStep = RemovalStep { groups: 2, data_blocks: 16, metadata_blocks: 16 };
/// Minimum number of bytes by which a file is grown to check what lies past its end.
const GROWN_BYTES: u64 = 4096;

/// An open volume as a subject. Permissions are not checked; the umask is zero.
#[derive(Debug)]
pub struct OurVolume {
    rt: Rt,
    volume: Volume,
    root: Dir,
    held: BTreeMap<u8, File>,
    /// Those of [`Op::Put`] that wait.
    small: Option<SmallFiles>,
    /// Each change is durable when it returns, so there is nothing left to sync.
    synchronous: bool,
}

impl OurVolume {
    /// Opens the volume on `device` for writing.
    ///
    /// # Errors
    /// It cannot be opened.
    pub fn open(rt: &Rt, device: Arc<dyn Device>) -> Result<Self, Error> {
        Self::open_with(rt, device, &offline())
    }

    fn open_with(rt: &Rt, device: Arc<dyn Device>, options: &OpenOptions) -> Result<Self, Error> {
        let volume = Volume::open_device(rt, device, options)?;
        let root = volume.root();
        Ok(Self { rt: rt.clone(), volume, root, held: BTreeMap::new(), small: None, synchronous: false })
    }

    /// Free blocks and inodes.
    pub fn free(&self) -> (u64, u64) {
        let statfs = self.volume.statfs();
        (statfs.blocks_free, statfs.inodes_free)
    }

    /// Closes the volume.
    ///
    /// # Errors
    /// Something could not be written.
    pub fn close(self) -> Result<(), Error> {
        let Self { volume, root, held, small, .. } = self;
        drop((root, held, small));
        volume.close()
    }

    /// Grows every file that may change, at least to the end of what is mapped past its old end,
    /// and checks that all new bytes are zero.
    fn check_ends(&self, tree: &Tree) -> Result<(), String> {
        let may_change = |found: &Found| {
            let fixed = InodeFlags::IMMUTABLE | InodeFlags::APPEND;
            found.stat.kind == Kind::File && found.stat.flags & fixed.bits() == 0
        };
        for (path, found) in tree.nodes.iter().filter(|(_, found)| may_change(found)) {
            let failed = |errno: Errno| format!("/{path} is grown: {errno}");
            let (file, size) = (self.open_for(path, true, true).map_err(failed)?, found.stat.size);
            let behind = file.extents(size..u64::MAX).map_err(|error| format!("/{path}: {error}"))?;
            let written = |extent: &&extant::FileExtent| !extent.flags.contains(ExtentFlags::UNWRITTEN);
            let mapped = behind.iter().filter(written).map(|extent| extent.offset + extent.bytes).max();
            let end = mapped.unwrap_or(0).max(size + GROWN_BYTES);
            file.set_len(end).map_err(|error| failed(errno(error)))?;
            let mut bytes = vec![1; (end - size) as usize];
            file.read_exact_at(size, &mut bytes).map_err(|error| failed(errno(error)))?;
            if let Some(at) = bytes.iter().position(|&byte| byte != 0) {
                let (byte, at) = (bytes[at], size + at as u64);
                return Err(format!("/{path} ended at {size}, and byte {at} is {byte} when it is grown"));
            }
        }
        Ok(())
    }

    /// Makes a file as [`Op::Put`] does where it must be made in several steps.
    fn put_in_steps(&self, path: &str, mode: u32, data: &[u8]) -> Outcome<u64> {
        let parent = path.rsplit_once('/').map_or("", |(dir, _)| dir);
        let new = self.root.unnamed(at(parent), NewFile::Regular, 0o600).map_err(errno)?;
        let file = new.open(FileOptions::new().write(true)).map_err(errno)?;
        file.write_all_at(0, data).map_err(errno)?;
        file.write_back().map_err(errno)?;
        new.set_mode(mode).map_err(errno)?;
        new.set_times(Some(time(PUT_TIME)), Some(time(PUT_TIME))).map_err(errno)?;
        new.link(&self.root, at(path)).map_err(errno)?;
        Ok(data.len() as u64)
    }

    fn open_for(&self, path: &str, read: bool, write: bool) -> Outcome<File> {
        self.root.open_with(at(path), FileOptions::new().read(read).write(write)).map_err(errno)
    }
}

/// For writing, with the library's defaults.
pub(crate) fn online() -> OpenOptions {
    OpenOptions::new().write(true).cache_bytes(CACHE_BYTES)
}

/// For writing, without any background activity.
fn offline() -> OpenOptions {
    online().offline(true)
}

pub(crate) fn errno(error: Error) -> Errno {
    Errno::from_raw_os_error(error.errno())
}

fn to_write(durability: Durability) -> FileOptions {
    let mut options = FileOptions::new();
    options.write(true).sync(durability == Durability::All).datasync(durability == Durability::Data);
    options
}

/// The root is `.`.
pub(crate) fn at(path: &str) -> &[u8] {
    if path.is_empty() { b"." } else { path.as_bytes() }
}

/// Converts a mode of `fallocate(2)` to the library's type.
pub(crate) fn mode_of(mode: Fallocate) -> extant::Fallocate {
    match mode {
        Fallocate::Allocate => extant::Fallocate::Allocate { keep_size: false },
        Fallocate::KeepSize => extant::Fallocate::Allocate { keep_size: true },
        Fallocate::Zero => extant::Fallocate::ZeroRange { keep_size: false },
        Fallocate::ZeroKeepSize => extant::Fallocate::ZeroRange { keep_size: true },
        Fallocate::Punch => extant::Fallocate::PunchHole,
        Fallocate::Collapse => extant::Fallocate::CollapseRange,
        Fallocate::Insert => extant::Fallocate::InsertRange,
    }
}

fn time(time: Time) -> extant::Time {
    extant::Time { seconds: time.seconds, nanos: time.nanos }
}

fn contents(file: &File) -> Outcome<Vec<u8>> {
    let mut bytes = vec![0; file.len() as usize];
    let n = file.read_at(0, &mut bytes).map_err(errno)?;
    bytes.truncate(n);
    Ok(bytes)
}

impl Subject for OurVolume {
    fn create(&mut self, path: &str, mode: u32, exclusive: bool) -> Outcome<()> {
        let mut options = FileOptions::new();
        options.read(true).write(true).create(true).create_new(exclusive).mode(mode);
        self.root.open_with(at(path), &options).map(drop).map_err(errno)
    }

    fn mkdir(&mut self, path: &str, mode: u32) -> Outcome<()> {
        self.root.create_dir_with(at(path), mode).map_err(errno)
    }

    fn symlink(&mut self, target: &str, path: &str) -> Outcome<()> {
        self.root.symlink(target, at(path)).map_err(errno)
    }

    fn mknod(&mut self, path: &str, special: Special, mode: u32) -> Outcome<()> {
        self.root.create_special(at(path), special, mode).map_err(errno)
    }

    fn link(&mut self, from: &str, to: &str) -> Outcome<()> {
        self.root.hard_link(at(from), at(to)).map_err(errno)
    }

    fn unlink(&mut self, path: &str) -> Outcome<()> {
        self.root.remove_file(at(path)).map_err(errno)
    }

    fn rmdir(&mut self, path: &str) -> Outcome<()> {
        self.root.remove_dir(at(path)).map_err(errno)
    }

    fn rename(&mut self, from: &str, to: &str, mode: RenameMode) -> Outcome<()> {
        self.root.rename_with(at(from), at(to), mode).map_err(errno)
    }

    fn chmod(&mut self, path: &str, mode: u32) -> Outcome<()> {
        self.root.set_mode(at(path), mode).map_err(errno)
    }

    fn chown(&mut self, path: &str, uid: u32, gid: u32) -> Outcome<()> {
        self.root.set_owner(at(path), Some(uid), Some(gid)).map_err(errno)
    }

    fn utimens(&mut self, path: &str, accessed: Time, modified: Time) -> Outcome<()> {
        self.root.set_times(at(path), Some(time(accessed)), Some(time(modified))).map_err(errno)
    }

    fn set_xattr(&mut self, path: &str, name: &str, value: &[u8], mode: XattrMode) -> Outcome<()> {
        self.root.set_xattr(at(path), name, value, mode).map_err(errno)
    }

    fn remove_xattr(&mut self, path: &str, name: &str) -> Outcome<()> {
        self.root.remove_xattr(at(path), name).map_err(errno)
    }

    fn set_flags(&mut self, path: &str, flags: u32) -> Outcome<()> {
        let old = self.root.metadata(at(path)).map_err(errno)?.flags().bits();
        let flags = InodeFlags::from_bits_retain(old & !FLAGS | flags & FLAGS);
        self.root.set_flags(at(path), flags).map_err(errno)
    }

    fn open_truncated(&mut self, path: &str) -> Outcome<()> {
        self.root.open_with(at(path), FileOptions::new().write(true).truncate(true)).map(drop).map_err(errno)
    }

    fn truncate(&mut self, path: &str, size: u64) -> Outcome<()> {
        self.open_for(path, false, true)?.set_len(size).map_err(errno)
    }

    fn write(
        &mut self,
        path: &str,
        offset: u64,
        data: &[u8],
        direct: bool,
        durability: Durability,
    ) -> Outcome<u64> {
        let file = self.root.open_with(at(path), &to_write(durability)).map_err(errno)?;
        let written = match direct {
            true => file.write_direct(offset, &mut Buf::from_slice(data)),
            false => file.write_at(offset, data),
        };
        written.map(|n| n as u64).map_err(errno)
    }

    fn rewrite(&mut self, path: &str, data: &[u8], durability: Durability) -> Outcome<u64> {
        let mut options = to_write(durability);
        let file = self.root.open_with(at(path), options.truncate(true)).map_err(errno)?;
        file.write_at(0, data).map(|n| n as u64).map_err(errno)
    }

    fn fallocate(&mut self, path: &str, mode: Fallocate, offset: u64, len: u64) -> Outcome<()> {
        self.open_for(path, false, true)?.fallocate(mode_of(mode), offset, len).map_err(errno)
    }

    fn copy_range(&mut self, from: &str, at: u64, to: &str, to_at: u64, len: u64) -> Outcome<u64> {
        let from = self.open_for(from, true, false)?;
        let to = self.open_for(to, false, true)?;
        from.copy_range(at, &to, to_at, len).map_err(errno)
    }

    fn set_project(&mut self, path: &str, project: u32) -> Outcome<()> {
        self.root.set_project(at(path), project).map_err(errno)
    }

    fn hold(&mut self, slot: u8, path: &str) -> Outcome<()> {
        let file = self.open_for(path, true, true)?;
        self.held.insert(slot, file);
        Ok(())
    }

    fn tmpfile(&mut self, slot: u8, dir: &str, mode: u32) -> Outcome<()> {
        let file = self.root.open_dir(at(dir)).and_then(|dir| dir.tempfile(mode)).map_err(errno)?;
        self.held.insert(slot, file);
        Ok(())
    }

    fn link_held(&mut self, slot: u8, to: &str) -> Outcome<()> {
        let file = self.held.get(&slot).ok_or(Errno::BADF)?;
        self.root.link_file(file, at(to)).map_err(errno)
    }

    fn link_held_over(&mut self, slot: u8, to: &str) -> Outcome<()> {
        let file = self.held.get(&slot).ok_or(Errno::BADF)?;
        self.root.link_file_over(file, at(to)).map_err(errno)
    }

    fn write_held(&mut self, slot: u8, offset: u64, data: &[u8]) -> Outcome<u64> {
        let file = self.held.get(&slot).ok_or(Errno::BADF)?;
        file.write_at(offset, data).map(|n| n as u64).map_err(errno)
    }

    fn release(&mut self, slot: u8) -> Outcome<()> {
        self.held.remove(&slot).map(drop).ok_or(Errno::BADF)
    }

    fn put(&mut self, path: &str, mode: u32, data: &[u8], waits: bool) -> Outcome<u64> {
        let small = match &mut self.small {
            Some(small) => small,
            none => none.insert(self.volume.small_files().map_err(errno)?),
        };
        let put_time = time(PUT_TIME);
        let file = SmallFile { mode, uid: 0, gid: 0, accessed: put_time, modified: put_time, contents: data };
        if !small.add(&self.root, at(path), &file).map_err(errno)? {
            small.make().map_err(|not_made| errno(not_made.error))?;
            return self.put_in_steps(path, mode, data);
        }
        if !waits {
            small.make().map_err(|not_made| errno(not_made.error))?;
        }
        Ok(data.len() as u64)
    }

    fn fsync(&mut self, path: &str) -> Outcome<()> {
        match self.root.metadata(at(path)).map_err(errno)?.is_dir() {
            true => self.root.open_dir(at(path)).and_then(|dir| dir.sync()).map_err(errno),
            false => self.open_for(path, true, false)?.sync_all().map_err(errno),
        }
    }

    fn fdatasync(&mut self, path: &str) -> Outcome<()> {
        match self.root.metadata(at(path)).map_err(errno)?.is_dir() {
            true => self.root.open_dir(at(path)).and_then(|dir| dir.sync()).map_err(errno),
            false => self.open_for(path, true, false)?.sync_data().map_err(errno),
        }
    }

    fn sync(&mut self) -> Outcome<()> {
        if self.synchronous { Ok(()) } else { self.volume.sync().map_err(errno) }
    }

    fn sleep(&mut self, millis: u64) {
        let slept = self.rt.block_on(self.rt.sleep(Nanos::from_millis(millis)));
        slept.expect("a test's thread is no task of the world");
    }

    fn stat(&mut self, path: &str) -> Outcome<Stat> {
        let metadata = self.root.symlink_metadata(at(path)).map_err(errno)?;
        let kind = match metadata.file_type() {
            FileType::File => Kind::File,
            FileType::Dir => Kind::Dir,
            FileType::Symlink => Kind::Symlink,
            FileType::Fifo => Kind::Fifo,
            FileType::Socket => Kind::Socket,
            FileType::CharDevice => Kind::Char,
            FileType::BlockDevice => Kind::Block,
        };
        let modified = metadata.modified();
        Ok(Stat {
            inode: metadata.inode().0.into(),
            kind,
            mode: metadata.mode(),
            uid: metadata.uid(),
            gid: metadata.gid(),
            nlink: metadata.links().into(),
            size: metadata.len(),
            device: metadata.device().unwrap_or_default(),
            mtime: Time { seconds: modified.seconds, nanos: modified.nanos },
            flags: match kind {
                Kind::File | Kind::Dir => metadata.flags().bits() & FLAGS,
                _ => 0,
            },
            project: metadata.project(),
        })
    }

    fn list(&mut self, path: &str) -> Outcome<Vec<String>> {
        let entries = self.root.open_dir(at(path)).and_then(|dir| dir.entries()).map_err(errno)?;
        let text = |name| String::from_utf8(name).map_err(|_| Errno::ILSEQ);
        entries.into_iter().map(|entry| text(entry.name)).collect()
    }

    fn read(&mut self, path: &str) -> Outcome<Vec<u8>> {
        contents(&self.open_for(path, true, false)?)
    }

    fn read_held(&mut self, slot: u8) -> Outcome<Vec<u8>> {
        contents(self.held.get(&slot).ok_or(Errno::BADF)?)
    }

    fn read_link(&mut self, path: &str) -> Outcome<String> {
        let target = self.root.read_link(at(path)).map_err(errno)?;
        String::from_utf8(target).map_err(|_| Errno::ILSEQ)
    }

    fn xattrs(&mut self, path: &str) -> Outcome<Vec<(String, Vec<u8>)>> {
        let mut all = Vec::new();
        for name in self.root.xattrs(at(path)).map_err(errno)? {
            let value = self.root.xattr(at(path), &name).map_err(errno)?;
            let name = String::from_utf8(name).map_err(|_| Errno::ILSEQ)?;
            if is_compared(&name) {
                all.push((name, value));
            }
        }
        all.sort();
        Ok(all)
    }
}

/// Extant in the virtual world, on a disk whose bios take random times and complete in any order.
#[derive(Debug)]
pub struct Ours {
    seed: u64,
    /// A fault injected between the volume and its disk, with the volume's block size and the
    /// location of its journal.
    meddling: Option<(Meddling, u64, Vec<Range<u64>>)>,
    online: bool,
    short_steps: bool,
    synchronous: bool,
}

impl Ours {
    /// `seed` determines the durations of bios.
    pub fn new(seed: u64) -> Self {
        Self { seed, meddling: None, online: false, short_steps: false, synchronous: false }
    }

    /// Whether workloads run on a volume that commits by age and checkpoints in the background, as
    /// the library opens it by default. Recoveries stay offline, so that each gives the same bytes.
    #[must_use]
    pub fn online(mut self, online: bool) -> Self {
        self.online = online;
        self
    }

    /// Whether blocks are freed a few at a time, in steps that other volumes need only for large
    /// files.
    #[must_use]
    pub fn short_steps(mut self, short: bool) -> Self {
        self.short_steps = short;
        self
    }

    /// Whether the volume makes each change durable before it returns (mount option `sync`).
    /// [`Op::Sync`] then does nothing, but still promises as much.
    #[must_use]
    pub fn synchronous(mut self, synchronous: bool) -> Self {
        self.synchronous = synchronous;
        self
    }

    /// Injects a fault between the volume and its disk, for blocks of `block_bytes` and a journal
    /// in these runs of blocks.
    #[must_use]
    pub fn meddled(mut self, meddling: Meddling, block_bytes: u64, journal: Vec<Range<u64>>) -> Self {
        self.meddling = Some((meddling, block_bytes, journal));
        self
    }

    fn options(&self) -> OpenOptions {
        if self.short_steps { offline().removal_step(SHORT_STEP) } else { offline() }
    }
}

impl Filesystem for Ours {
    fn run(&self, image: &Image, ops: &[Op]) -> Result<Run, String> {
        let sim = Sim::new(Machine::free(1, Preemption::None), self.seed);
        let disk = Arc::new(SlowDevice::new(&sim, Arc::new(ImageDevice::new(image.clone())), self.seed));
        let record = Arc::new(Record::new(disk));
        let device: Arc<dyn Device> = match &self.meddling {
            None => record.clone(),
            Some((meddling, block_bytes, journal)) => {
                Arc::new(Meddler::new(record.clone(), *meddling, *block_bytes, journal.clone()))
            }
        };
        let synchronous = if self.synchronous { Synchronous::All } else { Synchronous::Flagged };
        let options = self.options().offline(!self.online).synchronous(synchronous);
        let mut volume =
            OurVolume::open_with(sim.rt(), device, &options).map_err(|error| format!("open: {error}"))?;
        volume.synchronous = self.synchronous;
        let before = Tree::of(&mut volume).map_err(|error| error.to_string())?;
        let mut marks = Vec::with_capacity(ops.len());
        for op in ops {
            let began = record.position();
            let result = apply(&mut volume, op);
            marks.push((began, record.position(), result));
        }
        let after = match self.meddling {
            None => Some(Tree::of(&mut volume).map_err(|error| error.to_string())?),
            Some(_) => None,
        };
        let log = record.log();
        // The power is off: what closing writes is not in the log. A volume that is only dropped
        // would keep its cache.
        let _ = volume.close();
        Ok(Run { before, log, marks, after })
    }

    fn recover(&self, image: &Image) -> Result<Recovered, String> {
        let sim = Sim::new(Machine::free(1, Preemption::None), self.seed);
        let disk = Arc::new(ImageDevice::new(image.clone()));
        let record = Arc::new(Record::new(disk.clone()));
        let mut volume =
            OurVolume::open_with(sim.rt(), record.clone(), &self.options().cache_bytes(RECOVERY_CACHE_BYTES))
                .map_err(|error| format!("our recovery: {error}"))?;
        let tree = Tree::of(&mut volume).map_err(|error| format!("after our recovery: {error}"))?;
        volume.close().map_err(|error| format!("close after our recovery: {error}"))?;
        Ok(Recovered { tree, image: disk.image(), log: record.log() })
    }

    fn check_ends(&self, recovered: &Recovered) -> Result<(), String> {
        let sim = Sim::new(Machine::free(1, Preemption::None), self.seed);
        let disk = Arc::new(ImageDevice::new(recovered.image.clone()));
        let volume = OurVolume::open_with(sim.rt(), disk, &offline().cache_bytes(RECOVERY_CACHE_BYTES))
            .map_err(|error| format!("opened again: {error}"))?;
        let checked = volume.check_ends(&recovered.tree);
        let closed = volume.close().map_err(|error| format!("close after files were grown: {error}"));
        checked.and(closed)
    }
}

/// Delays each bio for a random time, so that many are in flight and complete in any order.
pub struct SlowDevice {
    inner: Arc<dyn Device>,
    clock: DeviceClock,
    rng: Mutex<Rng>,
    lingers: bool,
}

impl SlowDevice {
    /// Wraps `inner`.
    pub fn new(sim: &Sim, inner: Arc<dyn Device>, seed: u64) -> Self {
        let rng = Mutex::new(Rng::labelled(seed, "slow device"));
        Self { inner, clock: sim.devices(), rng, lingers: false }
    }

    /// Delays one bio in eight so long that others do hundreds meanwhile.
    #[must_use]
    pub fn lingering(mut self) -> Self {
        self.lingers = true;
        self
    }

    fn delay(&self) -> Nanos {
        let mut rng = self.rng.lock();
        let short = Nanos(1_000 + rng.below(100_000));
        if self.lingers && rng.below(8) == 0 { Nanos(short.0 * 200) } else { short }
    }
}

impl Device for SlowDevice {
    fn limits(&self) -> &Limits {
        self.inner.limits()
    }

    fn submit(&self, bio: Bio) {
        let (delay, inner) = (self.delay(), self.inner.clone());
        self.clock.call_at(self.clock.now().saturating_add(delay), move || inner.submit(bio));
    }

    fn next_data(&self, from_bytes: u64) -> Result<Option<Range<u64>>, IoError> {
        self.inner.next_data(from_bytes)
    }
}

impl fmt::Debug for SlowDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SlowDevice({:?})", self.inner)
    }
}
