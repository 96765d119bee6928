//! Whether a command is about to write to the image that it reads, or to something that lies on it.

use rustix::fs::{major, minor};
use std::ffi::OsString;
use std::fs::Metadata;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// A file or a disk, whatever its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Identity {
    Disk(u64),
    File(u64, u64),
}

impl Identity {
    fn of(file: &Metadata) -> Self {
        match file.file_type().is_block_device() {
            true => Self::Disk(file.rdev()),
            false => Self::File(file.dev(), file.ino()),
        }
    }

    fn at(path: &Path) -> Option<Self> {
        path.metadata().ok().map(|file| Self::of(&file))
    }
}

/// Whether two names refer to the same file, disk or export.
pub(crate) fn is_same(a: &Path, b: &Path) -> bool {
    a == b || Identity::at(a).is_some_and(|a| Some(a) == Identity::at(b))
}

/// Whether writing to `output` may change `image`: `output` is the image, a loop device over it, a
/// partition of it or its disk, or a file on a mount of the image.
pub(crate) fn is_written_by(image: &Path, output: &Path) -> bool {
    let Some(wanted) = Identity::at(image) else { return image == output };
    let parent = output.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let Ok(there) = output.metadata().or_else(|_| parent.metadata()) else { return false };
    let identity = Identity::of(&there);
    identity == wanted
        || match identity {
            Identity::Disk(disk) => is_over(disk, wanted),
            Identity::File(device, _) => is_over(device, wanted) || mounted_image(device) == Some(wanted),
        }
}

/// Whether a disk is the image, is backed by it, or is part of it, or the image is part of the
/// disk.
fn is_over(disk: u64, image: Identity) -> bool {
    if Identity::Disk(disk) == image || backing(disk).is_some_and(|file| Identity::at(&file) == Some(image)) {
        return true;
    }
    let Identity::Disk(other) = image else { return false };
    let number = |disk: u64| format!("{}:{}", major(disk), minor(disk));
    whole(disk).is_some_and(|whole| whole == number(other))
        || whole(other).is_some_and(|whole| whole == number(disk))
}

/// The directory in sysfs that describes a disk.
fn told(disk: u64) -> Option<PathBuf> {
    Path::new("/sys/dev/block").join(format!("{}:{}", major(disk), minor(disk))).canonicalize().ok()
}

/// The number of the disk that a partition belongs to, as `MAJOR:MINOR`.
fn whole(disk: u64) -> Option<String> {
    let about = told(disk)?;
    about.join("partition").exists().then_some(())?;
    Some(std::fs::read_to_string(about.parent()?.join("dev")).ok()?.trim().to_owned())
}

/// The file behind a loop device or a partition of one.
fn backing(disk: u64) -> Option<PathBuf> {
    let about = told(disk)?;
    let read = |about: &Path| std::fs::read(about.join("loop/backing_file")).ok();
    let mut path = read(&about).or_else(|| read(about.parent()?))?;
    path.pop_if(|last| *last == b'\n');
    Some(PathBuf::from(OsString::from_vec(path)))
}

/// The image that a server like ours has mounted as the file system with this device number.
fn mounted_image(device: u64) -> Option<Identity> {
    let number = format!("{}:{}", major(device), minor(device));
    let list = std::fs::read("/proc/self/mountinfo").ok()?;
    list.split(|&byte| byte == b'\n').find_map(|line| {
        let words: Vec<&[u8]> = line.split(|&byte| byte == b' ').collect();
        let after = words.iter().position(|word| *word == b"-")?;
        let is_it = words.get(2) == Some(&number.as_bytes()) && words.get(after + 1)?.starts_with(b"fuse");
        let source = words.get(after + 2).filter(|_| is_it)?;
        Identity::at(Path::new(std::ffi::OsStr::from_bytes(source)))
    })
}
