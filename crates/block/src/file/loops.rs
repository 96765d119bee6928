//! Loop devices of the host: which bytes of which file or disk each of them is attached to.
//!
//! The kernel names the backing file by the path it was opened with
//! (`/sys/block/loopN/loop/backing_file`). That says little: the file may have other names (hard
//! links, bind mounts), another file may have that name in another mount namespace, and "
//! (deleted)" is appended to the name of a file that was replaced. The device itself returns device
//! and inode number (`LOOP_GET_STATUS64`) to those who may open it; for others the path is looked
//! up.

use rustix::fs::{FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// Major and minor number.
pub(super) type DeviceNumber = (u32, u32);

/// Something that holds bytes: a file or a block device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Store {
    File { device: DeviceNumber, inode: u64 },
    BlockDevice(DeviceNumber),
}

/// A range of bytes of a store.
#[derive(Clone, Debug)]
struct Extent {
    store: Store,
    bytes: Range<u64>,
}

/// An attached loop device.
#[derive(Debug)]
pub(super) struct LoopDevice {
    pub(super) name: String,
    number: Option<DeviceNumber>,
    /// The path of its backing file, as reported by the kernel.
    pub(super) backing_path: Option<PathBuf>,
    backing: Extent,
    /// The open device, if this process has permission to open it.
    device: Option<OwnedFd>,
}

impl Store {
    /// The store of an open file.
    fn of(stat: &Stat) -> Self {
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::BlockDevice => Self::BlockDevice(number(stat.st_rdev)),
            _ => Self::File { device: number(stat.st_dev), inode: stat.st_ino },
        }
    }
}

impl Extent {
    fn overlaps(&self, other: &Self) -> bool {
        self.store == other.store && self.bytes.start < other.bytes.end && other.bytes.start < self.bytes.end
    }

    /// The part `inner` of this extent.
    fn part(&self, inner: &Range<u64>) -> Self {
        let at = |byte: u64| self.bytes.start.saturating_add(byte).min(self.bytes.end);
        Self { store: self.store, bytes: at(inner.start)..at(inner.end) }
    }
}

pub(super) fn number(raw: u64) -> DeviceNumber {
    (rustix::fs::major(raw), rustix::fs::minor(raw))
}

/// A loop device, other than the file itself, through which the kernel is using some of the file's
/// bytes. A block device may be a partition of a disk, or a loop device that is itself backed by a
/// file. `contents` is the file, if it can be read.
pub(super) fn over(file: &Stat, contents: Option<&OwnedFd>) -> Option<LoopDevice> {
    let mut loops = attached();
    let own = chain(Extent { store: Store::of(file), bytes: 0..u64::MAX }, &loops);
    let is_own = |device: &LoopDevice| {
        device
            .number
            .is_some_and(|number| own.iter().any(|extent| extent.store == Store::BlockDevice(number)))
    };
    let shares = |device: &LoopDevice| {
        let theirs = chain(device.backing.clone(), &loops);
        theirs.iter().any(|their| own.iter().any(|extent| extent.overlaps(their)))
            || contents.is_some_and(|contents| is_seen_elsewhere(own[0].store, contents, device))
    };
    let found = loops.iter().position(|device| !is_own(device) && shares(device))?;
    Some(loops.swap_remove(found))
}

/// Whether a file is the backing file of a loop device, but was opened through another file system.
/// Overlayfs and NFS get their files from another file system, and have a device number that
/// belongs to no device. They mostly keep inode numbers, but overlayfs shows the lower file's
/// number after it has copied the file up. Comparing the ext volumes on both tells such a file from
/// an unrelated one. If the inode numbers agree, equal UUIDs are enough. Otherwise the time of the
/// last mount and the number of mounts must be equal too: an older copy has other values.
fn is_seen_elsewhere(file: Store, contents: &OwnedFd, device: &LoopDevice) -> bool {
    let (Store::File { device: own, inode }, Store::File { device: theirs, inode: backing }) =
        (file, device.backing.store)
    else {
        return false;
    };
    if own == theirs || (own.0 != 0 && theirs.0 != 0) {
        return false;
    }
    let volume = |file: &OwnedFd, from: u64| {
        let mut superblock = [0; 1024];
        let read = rustix::io::pread(file, &mut superblock[..], from.checked_add(1024)?).ok()?;
        // `s_magic`, `s_uuid`, `s_mtime` and `s_mnt_count` (kernel: fs/ext4/ext4.h).
        let is_ext = read == superblock.len() && superblock[0x38..0x3a] == [0x53, 0xef];
        let mounts = if inode == backing {
            None
        } else {
            Some([&superblock[0x2c..0x30], &superblock[0x34..0x36]].concat())
        };
        is_ext.then(|| (superblock[0x68..0x78].to_vec(), mounts))
    };
    let ours = volume(contents, device.backing.bytes.start);
    ours.is_some() && ours == device.device.as_ref().and_then(|device| volume(device, 0))
}

/// An extent, and the extents it lies on: on the disk for a partition, on the backing file for a
/// loop device.
fn chain(extent: Extent, loops: &[LoopDevice]) -> Vec<Extent> {
    let mut chain = vec![extent];
    // Loop devices cannot be backed by themselves (kernel: `loop_validate_file`); the bound is for
    // a table that changes meanwhile.
    while let Some(last) = chain.last()
        && chain.len() < 32
        && let Store::BlockDevice(number) = last.store
    {
        let on_loop = loops.iter().find(|device| device.number == Some(number)).map(|device| &device.backing);
        let Some(below) = on_loop.cloned().or_else(|| disk_of(number)) else { break };
        chain.push(below.part(&last.bytes));
    }
    chain
}

/// The bytes of a disk that a partition covers.
fn disk_of(partition: DeviceNumber) -> Option<Extent> {
    let dir = PathBuf::from(format!("/sys/dev/block/{}:{}", partition.0, partition.1));
    std::fs::metadata(dir.join("partition")).ok()?;
    let sectors = |name: &str| read_number(&dir.join(name))?.checked_mul(512);
    let (start, length) = (sectors("start")?, sectors("size")?);
    // The directory is a symbolic link into the disk's directory.
    let disk = read_device_number(&dir.canonicalize().ok()?.parent()?.join("dev"))?;
    Some(Extent { store: Store::BlockDevice(disk), bytes: start..start.saturating_add(length) })
}

/// The attached loop devices that this process can find.
fn attached() -> Vec<LoopDevice> {
    // Without sysfs, the device nodes show which devices may exist.
    let dir = ["/sys/block", "/dev"].into_iter().find_map(|dir| std::fs::read_dir(dir).ok());
    let names = dir.into_iter().flatten().flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let is_loop = |name: &String| {
        let number = name.strip_prefix("loop");
        number.is_some_and(|digits| !digits.is_empty() && digits.bytes().all(|digit| digit.is_ascii_digit()))
    };
    names.filter(is_loop).filter_map(look_at).collect()
}

fn look_at(name: String) -> Option<LoopDevice> {
    let sys = Path::new("/sys/block").join(&name);
    let has_sysfs = sys.exists();
    let backing_path = std::fs::read(sys.join("loop/backing_file")).ok().map(|path| {
        use std::os::unix::ffi::OsStringExt;
        std::ffi::OsString::from_vec(path.strip_suffix(b"\n").unwrap_or(&path).to_vec()).into()
    });
    if has_sysfs && backing_path.is_none() {
        return None;
    }
    let number = read_device_number(&sys.join("dev"));
    let extent = |store, offset: u64, limit: u64| {
        let end = if limit == 0 { u64::MAX } else { offset.saturating_add(limit) };
        Extent { store, bytes: offset..end }
    };
    let mut device = None;
    let backing = match ask(&Path::new("/dev").join(&name), number) {
        Ok((status, opened)) => {
            device = Some(opened);
            let store = match status[RDEVICE] {
                0 => Store::File { device: self::number(status[DEVICE]), inode: status[INODE] },
                device => Store::BlockDevice(self::number(device)),
            };
            extent(store, status[OFFSET], status[SIZE_LIMIT])
        }
        Err(Errno::NXIO) => return None,
        // This process lacks permission to open the device.
        Err(_) => {
            let backing = rustix::fs::stat(backing_path.as_ref()?).ok()?;
            let value = |name: &str| read_number(&sys.join("loop").join(name)).unwrap_or(0);
            extent(Store::of(&backing), value("offset"), value("sizelimit"))
        }
    };
    Some(LoopDevice { name, number, backing_path, backing, device })
}

/// `struct loop_info64` (linux/loop.h); only the first five words are used.
type Status = [u64; 29];
const DEVICE: usize = 0;
const INODE: usize = 1;
/// The device number of the backing file if it is a device; otherwise 0.
const RDEVICE: usize = 2;
const OFFSET: usize = 3;
const SIZE_LIMIT: usize = 4;

/// Asks a loop device what it is attached to.
///
/// # Errors
/// `ENXIO` if it is attached to nothing. Fails if we may not open it, or if its node belongs to
/// another device.
fn ask(node: &Path, expected: Option<DeviceNumber>) -> rustix::io::Result<(Status, OwnedFd)> {
    const LOOP_GET_STATUS64: rustix::ioctl::Opcode = 0x4c05;
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let device = rustix::fs::open(node, flags, Mode::empty())?;
    let found = Store::of(&rustix::fs::fstat(&device)?);
    // Loop devices have major number 7 (Documentation/admin-guide/devices.txt).
    let is_expected = match (found, expected) {
        (Store::BlockDevice(found), Some(expected)) => found == expected,
        (Store::BlockDevice((major, _)), None) => major == 7,
        (Store::File { .. }, _) => false,
    };
    if !is_expected {
        return Err(Errno::NOTTY);
    }
    // SAFETY: the device is a loop device, which fills in a `struct loop_info64` for this request.
    // That has 232 bytes, the same as `Status`, for which all bytes are valid.
    let status =
        unsafe { rustix::ioctl::ioctl(&device, rustix::ioctl::Getter::<LOOP_GET_STATUS64, Status>::new()) };
    Ok((status?, device))
}

fn read_number(path: &Path) -> Option<u64> {
    std::fs::read_to_string(path).ok()?.trim().parse().ok()
}

fn read_device_number(path: &Path) -> Option<DeviceNumber> {
    let text = std::fs::read_to_string(path).ok()?;
    let (major, minor) = text.trim().split_once(':')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}
