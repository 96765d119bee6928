//! A host directory as a subject, to get the kernel's results and to inspect volumes that the
//! kernel has mounted.

use crate::subject::{FLAGS, is_compared};
use crate::{
    Durability, Errno, Fallocate, Kind, Outcome, PUT_TIME, RenameMode, Special, Stat, Subject, Time,
    XattrMode,
};
use rustix::fs::{
    self as fs, AtFlags, FallocateFlags, FileType, IFlags, Mode, OFlags, RenameFlags, Timespec, Timestamps,
    XattrFlags,
};
use std::collections::BTreeMap;
use std::ffi::CStr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

/// A directory of the host. Ids are not changed; run as root if permissions should not matter.
#[derive(Debug)]
pub struct Host {
    root: OwnedFd,
    path: PathBuf,
    held: BTreeMap<u8, OwnedFd>,
}

const OPEN: OFlags = OFlags::CLOEXEC.union(OFlags::NONBLOCK);

impl Host {
    /// A subject with this directory as its root.
    ///
    /// # Errors
    /// It cannot be opened, or is no directory.
    pub fn new(path: &Path) -> std::io::Result<Self> {
        let root = fs::open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        Ok(Self { root, path: path.to_owned(), held: BTreeMap::new() })
    }

    fn open(&self, path: &str, flags: OFlags) -> Outcome<OwnedFd> {
        fs::openat(&self.root, at(path), flags | OPEN, Mode::empty())
    }

    /// Like [`Host::open`], for a file or directory; returns `special` for anything else, where an
    /// open would ask a device or block on a pipe.
    fn open_plain(&self, path: &str, flags: OFlags, special: Errno) -> Outcome<OwnedFd> {
        let stat = fs::statat(&self.root, at(path), AtFlags::empty())?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile | FileType::Directory => self.open(path, flags),
            _ => Err(special),
        }
    }

    fn full(&self, path: &str) -> PathBuf {
        self.path.join(path)
    }
}

/// The root is `.` for system calls relative to a directory.
fn at(path: &str) -> &str {
    if path.is_empty() { "." } else { path }
}

/// Makes writes durable, as an open with that flag would.
fn settle(file: &OwnedFd, durability: Durability) -> Outcome<()> {
    match durability {
        Durability::None => Ok(()),
        Durability::Data => fs::fdatasync(file),
        Durability::All => fs::fsync(file),
    }
}

fn put(file: &OwnedFd, mut offset: u64, mut data: &[u8]) -> Outcome<u64> {
    let from = offset;
    while !data.is_empty() {
        match rustix::io::pwrite(file, data, offset) {
            Ok(0) => break,
            Ok(n) => (offset, data) = (offset + n as u64, &data[n..]),
            Err(Errno::INTR) => {}
            // Some bytes were copied: return their number.
            Err(_) if offset > from => break,
            Err(errno) => return Err(errno),
        }
    }
    Ok(offset - from)
}

fn get(file: &OwnedFd) -> Outcome<Vec<u8>> {
    let mut bytes = vec![0; fs::fstat(file)?.st_size as usize + 1];
    let mut len = 0;
    loop {
        match rustix::io::pread(file, &mut bytes[len..], len as u64)? {
            0 => break,
            n => len += n,
        }
        bytes.resize(bytes.len().max(len + 4096), 0);
    }
    bytes.truncate(len);
    Ok(bytes)
}

fn timespec(time: Time) -> Timespec {
    Timespec { tv_sec: time.seconds, tv_nsec: time.nanos.into() }
}

impl Subject for Host {
    fn create(&mut self, path: &str, mode: u32, exclusive: bool) -> Outcome<()> {
        let exclusive = if exclusive { OFlags::EXCL } else { OFlags::empty() };
        let flags = OFlags::RDWR | OFlags::CREATE | exclusive | OPEN;
        fs::openat(&self.root, at(path), flags, Mode::from_raw_mode(mode)).map(drop)
    }

    fn mkdir(&mut self, path: &str, mode: u32) -> Outcome<()> {
        fs::mkdirat(&self.root, at(path), Mode::from_raw_mode(mode))
    }

    fn symlink(&mut self, target: &str, path: &str) -> Outcome<()> {
        fs::symlinkat(target, &self.root, at(path))
    }

    fn mknod(&mut self, path: &str, special: Special, mode: u32) -> Outcome<()> {
        let (kind, device) = match special {
            Special::Fifo => (FileType::Fifo, 0),
            Special::Socket => (FileType::Socket, 0),
            Special::Char(major, minor) => (FileType::CharacterDevice, fs::makedev(major, minor)),
            Special::Block(major, minor) => (FileType::BlockDevice, fs::makedev(major, minor)),
        };
        fs::mknodat(&self.root, at(path), kind, Mode::from_raw_mode(mode), device)
    }

    fn link(&mut self, from: &str, to: &str) -> Outcome<()> {
        fs::linkat(&self.root, at(from), &self.root, at(to), AtFlags::empty())
    }

    fn unlink(&mut self, path: &str) -> Outcome<()> {
        fs::unlinkat(&self.root, at(path), AtFlags::empty())
    }

    fn rmdir(&mut self, path: &str) -> Outcome<()> {
        fs::unlinkat(&self.root, at(path), AtFlags::REMOVEDIR)
    }

    fn rename(&mut self, from: &str, to: &str, mode: RenameMode) -> Outcome<()> {
        let flags = match mode {
            RenameMode::Replace => RenameFlags::empty(),
            RenameMode::NoReplace => RenameFlags::NOREPLACE,
            RenameMode::Exchange => RenameFlags::EXCHANGE,
            RenameMode::Whiteout => RenameFlags::WHITEOUT,
            RenameMode::WhiteoutNoReplace => RenameFlags::WHITEOUT | RenameFlags::NOREPLACE,
        };
        fs::renameat_with(&self.root, at(from), &self.root, at(to), flags)
    }

    fn chmod(&mut self, path: &str, mode: u32) -> Outcome<()> {
        fs::chmodat(&self.root, at(path), Mode::from_raw_mode(mode), AtFlags::empty())
    }

    fn chown(&mut self, path: &str, uid: u32, gid: u32) -> Outcome<()> {
        let (uid, gid) = (fs::Uid::from_raw(uid), fs::Gid::from_raw(gid));
        fs::chownat(&self.root, at(path), Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)
    }

    fn utimens(&mut self, path: &str, atime: Time, mtime: Time) -> Outcome<()> {
        let times = Timestamps { last_access: timespec(atime), last_modification: timespec(mtime) };
        fs::utimensat(&self.root, at(path), &times, AtFlags::SYMLINK_NOFOLLOW)
    }

    fn set_xattr(&mut self, path: &str, name: &str, value: &[u8], mode: XattrMode) -> Outcome<()> {
        let flags = match mode {
            XattrMode::Any => XattrFlags::empty(),
            XattrMode::Create => XattrFlags::CREATE,
            XattrMode::Replace => XattrFlags::REPLACE,
        };
        fs::lsetxattr(self.full(path), name, value, flags)
    }

    fn remove_xattr(&mut self, path: &str, name: &str) -> Outcome<()> {
        fs::lremovexattr(self.full(path), name)
    }

    fn set_flags(&mut self, path: &str, flags: u32) -> Outcome<()> {
        let file = self.open_plain(path, OFlags::RDONLY, Errno::OPNOTSUPP)?;
        let kept = fs::ioctl_getflags(&file)?.bits() & !FLAGS;
        fs::ioctl_setflags(&file, IFlags::from_bits_retain(kept | flags & FLAGS))
    }

    fn open_truncated(&mut self, path: &str) -> Outcome<()> {
        self.open_plain(path, OFlags::WRONLY | OFlags::TRUNC, Errno::NXIO).map(drop)
    }

    fn truncate(&mut self, path: &str, size: u64) -> Outcome<()> {
        fs::ftruncate(self.open_plain(path, OFlags::WRONLY, Errno::NXIO)?, size)
    }

    fn write(
        &mut self,
        path: &str,
        offset: u64,
        data: &[u8],
        _direct: bool,
        durability: Durability,
    ) -> Outcome<u64> {
        let file = self.open_plain(path, OFlags::WRONLY, Errno::NXIO)?;
        let written = put(&file, offset, data)?;
        settle(&file, durability)?;
        Ok(written)
    }

    fn rewrite(&mut self, path: &str, data: &[u8], durability: Durability) -> Outcome<u64> {
        let file = self.open(path, OFlags::WRONLY | OFlags::TRUNC)?;
        let written = put(&file, 0, data)?;
        settle(&file, durability)?;
        Ok(written)
    }

    fn fallocate(&mut self, path: &str, mode: Fallocate, offset: u64, len: u64) -> Outcome<()> {
        let flags = match mode {
            Fallocate::Allocate => FallocateFlags::empty(),
            Fallocate::KeepSize => FallocateFlags::KEEP_SIZE,
            Fallocate::Zero => FallocateFlags::ZERO_RANGE,
            Fallocate::ZeroKeepSize => FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE,
            Fallocate::Punch => FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
            Fallocate::Collapse => FallocateFlags::COLLAPSE_RANGE,
            Fallocate::Insert => FallocateFlags::INSERT_RANGE,
        };
        fs::fallocate(self.open(path, OFlags::WRONLY)?, flags, offset, len)
    }

    fn copy_range(&mut self, from: &str, at: u64, to: &str, to_at: u64, len: u64) -> Outcome<u64> {
        let from = self.open_plain(from, OFlags::RDONLY, Errno::NXIO)?;
        let to = self.open_plain(to, OFlags::WRONLY, Errno::NXIO)?;
        let (mut at, mut to_at, mut left) = (at, to_at, len);
        while left > 0 {
            match fs::copy_file_range(&from, Some(&mut at), &to, Some(&mut to_at), left as usize) {
                Ok(0) => break,
                Ok(copied) => left -= copied as u64,
                Err(_) if left < len => break,
                Err(errno) => return Err(errno),
            }
        }
        Ok(len - left)
    }

    /// Not every host file system has projects, and none reports them in `stat`.
    fn set_project(&mut self, _path: &str, _project: u32) -> Outcome<()> {
        Err(Errno::OPNOTSUPP)
    }

    fn hold(&mut self, slot: u8, path: &str) -> Outcome<()> {
        let file = self.open_plain(path, OFlags::RDWR, Errno::NXIO)?;
        self.held.insert(slot, file);
        Ok(())
    }

    fn tmpfile(&mut self, slot: u8, dir: &str, mode: u32) -> Outcome<()> {
        let flags = OFlags::RDWR | OFlags::TMPFILE | OPEN;
        let file = fs::openat(&self.root, at(dir), flags, Mode::from_raw_mode(mode))?;
        self.held.insert(slot, file);
        Ok(())
    }

    fn link_held(&mut self, slot: u8, to: &str) -> Outcome<()> {
        let file = self.held.get(&slot).ok_or(Errno::BADF)?.as_raw_fd();
        let from = format!("/proc/self/fd/{file}");
        fs::linkat(fs::CWD, from, &self.root, at(to), AtFlags::SYMLINK_FOLLOW)
    }

    fn link_held_over(&mut self, slot: u8, to: &str) -> Outcome<()> {
        let aside = format!("{to}.aside");
        self.link_held(slot, &aside)?;
        let renamed = fs::renameat(&self.root, at(&aside), &self.root, at(to));
        // A rename over another name of the same file leaves both names.
        match fs::unlinkat(&self.root, at(&aside), AtFlags::empty()) {
            Err(Errno::NOENT) => renamed,
            other => renamed.and(other),
        }
    }

    fn write_held(&mut self, slot: u8, offset: u64, data: &[u8]) -> Outcome<u64> {
        put(self.held.get(&slot).ok_or(Errno::BADF)?, offset, data)
    }

    fn release(&mut self, slot: u8) -> Outcome<()> {
        self.held.remove(&slot).map(drop).ok_or(Errno::BADF)
    }

    fn put(&mut self, path: &str, mode: u32, data: &[u8], _waits: bool) -> Outcome<u64> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OPEN;
        let file = fs::openat(&self.root, at(path), flags, Mode::RUSR | Mode::WUSR)?;
        let done = put(&file, 0, data)?;
        fs::fchmod(&file, Mode::from_raw_mode(mode))?;
        let time = Timespec { tv_sec: PUT_TIME.seconds, tv_nsec: PUT_TIME.nanos.into() };
        fs::futimens(&file, &Timestamps { last_access: time, last_modification: time })?;
        Ok(done)
    }

    fn fsync(&mut self, path: &str) -> Outcome<()> {
        fs::fsync(self.open_plain(path, OFlags::RDONLY, Errno::NXIO)?)
    }

    fn fdatasync(&mut self, path: &str) -> Outcome<()> {
        fs::fdatasync(self.open_plain(path, OFlags::RDONLY, Errno::NXIO)?)
    }

    fn sync(&mut self) -> Outcome<()> {
        fs::syncfs(&self.root)
    }

    fn sleep(&mut self, _millis: u64) {}

    fn stat(&mut self, path: &str) -> Outcome<Stat> {
        let stat = fs::statat(&self.root, at(path), AtFlags::SYMLINK_NOFOLLOW)?;
        let kind = match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => Kind::File,
            FileType::Directory => Kind::Dir,
            FileType::Symlink => Kind::Symlink,
            FileType::Fifo => Kind::Fifo,
            FileType::Socket => Kind::Socket,
            FileType::CharacterDevice => Kind::Char,
            FileType::BlockDevice => Kind::Block,
            FileType::Unknown => return Err(Errno::IO),
        };
        let device = match kind {
            Kind::Char | Kind::Block => (fs::major(stat.st_rdev), fs::minor(stat.st_rdev)),
            _ => (0, 0),
        };
        // Not every host file system has flags.
        let flags = match kind {
            Kind::File | Kind::Dir => fs::ioctl_getflags(self.open(path, OFlags::RDONLY)?),
            _ => Err(Errno::NOTTY),
        };
        Ok(Stat {
            inode: stat.st_ino,
            kind,
            mode: stat.st_mode & 0o7777,
            uid: stat.st_uid,
            gid: stat.st_gid,
            #[allow(clippy::useless_conversion)] // its width depends on the architecture
            nlink: stat.st_nlink.into(),
            size: stat.st_size as u64,
            device,
            mtime: Time { seconds: stat.st_mtime, nanos: stat.st_mtime_nsec as u32 },
            flags: flags.map_or(0, |flags| flags.bits() & FLAGS),
            project: None,
        })
    }

    fn list(&mut self, path: &str) -> Outcome<Vec<String>> {
        let dir = self.open(path, OFlags::RDONLY | OFlags::DIRECTORY)?;
        let mut names = Vec::new();
        for entry in fs::Dir::new(dir)? {
            let name = text(entry?.file_name())?;
            if name != "." && name != ".." {
                names.push(name);
            }
        }
        Ok(names)
    }

    fn read(&mut self, path: &str) -> Outcome<Vec<u8>> {
        get(&self.open(path, OFlags::RDONLY)?)
    }

    fn read_held(&mut self, slot: u8) -> Outcome<Vec<u8>> {
        get(self.held.get(&slot).ok_or(Errno::BADF)?)
    }

    fn read_link(&mut self, path: &str) -> Outcome<String> {
        text(&fs::readlinkat(&self.root, at(path), Vec::new())?)
    }

    fn xattrs(&mut self, path: &str) -> Outcome<Vec<(String, Vec<u8>)>> {
        let full = self.full(path);
        let mut names = vec![0_u8; 64 << 10];
        let len = fs::llistxattr(&full, &mut names)?;
        let mut all = Vec::new();
        for name in names[..len].split(|&byte| byte == 0).filter(|name| !name.is_empty()) {
            let name = std::str::from_utf8(name).map_err(|_| Errno::ILSEQ)?;
            if is_compared(name) {
                let mut value = vec![0_u8; 64 << 10];
                let len = fs::lgetxattr(&full, name, &mut value)?;
                value.truncate(len);
                all.push((name.to_owned(), value));
            }
        }
        all.sort();
        Ok(all)
    }
}

fn text(name: &CStr) -> Outcome<String> {
    name.to_str().map(str::to_owned).map_err(|_| Errno::ILSEQ)
}
