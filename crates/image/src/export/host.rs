//! Host directories as a destination. No name and no link leads outside the destination.
//!
//! Every step is relative to an open directory, takes a single name, and follows no symbolic link,
//! whether exported from the volume or already there.

use extant_format::{DeviceNumber, FileKind, Timestamp};
use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, Timespec, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

/// An open host directory.
#[derive(Debug)]
pub(super) struct HostDir(OwnedFd);

/// A name that is a single component, neither `.` nor `..`.
#[derive(Clone, Copy, Debug)]
pub(super) struct SafeName<'a>(&'a [u8]);

impl<'a> SafeName<'a> {
    pub(super) fn new(name: &'a [u8]) -> Option<Self> {
        let leads_away = matches!(name, b"" | b"." | b"..") || name.iter().any(|&b| b == b'/' || b == 0);
        (!leads_away).then_some(Self(name))
    }

    pub(super) fn as_bytes(self) -> &'a [u8] {
        self.0
    }
}

/// A file whose attributes are set.
#[derive(Clone, Copy, Debug)]
pub(super) enum Target<'a> {
    /// An open file or directory.
    Open(BorrowedFd<'a>),
    /// A name in a directory; symbolic links are not followed.
    Name(&'a HostDir, SafeName<'a>),
}

impl HostDir {
    /// Opens a directory named by the user; only the last component must not be a symbolic link.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(Self(rustix::fs::open(path, flags, Mode::empty())?))
    }

    /// Opens a subdirectory.
    pub(super) fn open_child(&self, name: SafeName<'_>) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(Self(rustix::fs::openat(&self.0, name.0, flags, Mode::empty())?))
    }

    /// Creates a subdirectory accessible only to its owner, or opens an existing one. Also returns
    /// whether it is new.
    pub(super) fn make_child(&self, name: SafeName<'_>) -> io::Result<(Self, bool)> {
        match rustix::fs::mkdirat(&self.0, name.0, Mode::RWXU) {
            Ok(()) => Ok((self.open_child(name)?, true)),
            Err(Errno::EXIST) => Ok((self.open_child(name)?, false)),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Opens the parent directory of a path relative to this one, and returns the last component.
    pub(super) fn parent_of<'a>(&self, path: &'a [u8]) -> io::Result<(Self, SafeName<'a>)> {
        let mut dir = Self(rustix::io::fcntl_dupfd_cloexec(&self.0, 0)?);
        let mut components = path.split(|&b| b == b'/').peekable();
        while let Some(name) = components.next() {
            let name = SafeName::new(name).ok_or(Errno::INVAL)?;
            if components.peek().is_none() {
                return Ok((dir, name));
            }
            dir = dir.open_child(name)?;
        }
        Err(Errno::INVAL.into())
    }

    /// Removes a name, unless it is a directory.
    fn make_room(&self, name: SafeName<'_>) -> io::Result<()> {
        match rustix::fs::unlinkat(&self.0, name.0, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Fails if the name belongs to a device, pipe or socket and the new file is of another kind:
    /// replacing `/dev/null` with a file would break the host.
    fn spare_special(&self, name: SafeName<'_>, kind: FileType) -> io::Result<()> {
        let there = rustix::fs::statat(&self.0, name.0, AtFlags::SYMLINK_NOFOLLOW)?;
        let what = match FileType::from_raw_mode(there.st_mode) {
            there if there == kind => return Ok(()),
            FileType::CharacterDevice | FileType::BlockDevice => "a device",
            FileType::Fifo => "a named pipe",
            FileType::Socket => "a socket",
            _ => return Ok(()),
        };
        Err(io::Error::new(
            io::ErrorKind::AlreadyExists,
            format!("{what} of that name is there; remove it first"),
        ))
    }

    /// Runs `make`, which creates a file of this kind; if the name is taken, makes room and runs it
    /// again.
    fn create<T>(
        &self,
        name: SafeName<'_>,
        kind: FileType,
        make: impl Fn() -> Result<T, Errno>,
    ) -> io::Result<T> {
        match make() {
            Err(Errno::EXIST) => {
                self.spare_special(name, kind)?;
                self.make_room(name)?;
                Ok(make()?)
            }
            other => Ok(other?),
        }
    }

    /// Creates an empty file with these permissions, as far as the process's mask allows.
    pub(super) fn create_file(&self, name: SafeName<'_>, permissions: u16) -> io::Result<File> {
        let permissions = Mode::from_raw_mode(permissions.into());
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        self.create(name, FileType::RegularFile, || rustix::fs::openat(&self.0, name.0, flags, permissions))
            .map(File::from)
    }

    /// Creates a symbolic link.
    pub(super) fn create_symlink(&self, name: SafeName<'_>, target: &[u8]) -> io::Result<()> {
        self.create(name, FileType::Symlink, || rustix::fs::symlinkat(target, &self.0, name.0))
    }

    /// Creates a device node, named pipe or socket.
    pub(super) fn create_node(
        &self,
        name: SafeName<'_>,
        kind: FileKind,
        device: Option<DeviceNumber>,
    ) -> io::Result<()> {
        let kind = match kind {
            FileKind::CharDevice => FileType::CharacterDevice,
            FileKind::BlockDevice => FileType::BlockDevice,
            FileKind::Fifo => FileType::Fifo,
            FileKind::Socket => FileType::Socket,
            FileKind::Regular | FileKind::Directory | FileKind::Symlink => return Err(Errno::INVAL.into()),
        };
        let device = device.map_or(0, |d| rustix::fs::makedev(d.major, d.minor));
        self.create(name, kind, || {
            rustix::fs::mknodat(&self.0, name.0, kind, Mode::RUSR | Mode::WUSR, device)
        })
    }

    /// Creates a hard link to a file in `of`, which may be this directory.
    pub(super) fn create_link(&self, name: SafeName<'_>, of: &HostDir, old: SafeName<'_>) -> io::Result<()> {
        let kind = rustix::fs::statat(&of.0, old.0, AtFlags::SYMLINK_NOFOLLOW)?.st_mode;
        let kind = FileType::from_raw_mode(kind);
        self.create(name, kind, || rustix::fs::linkat(&of.0, old.0, &self.0, name.0, AtFlags::empty()))
    }

    /// Whether new files in this directory inherit an access list.
    pub(super) fn passes_on_list(&self) -> bool {
        let asked = rustix::fs::fgetxattr(&self.0, "system.posix_acl_default", &mut [0_u8; 0]);
        !matches!(asked, Err(Errno::NODATA | Errno::NOTSUP))
    }

    /// Removes a file that could not be completed.
    pub(super) fn remove(&self, name: SafeName<'_>) {
        // The original failure is reported; a leftover file is just its consequence.
        let _ = self.make_room(name);
    }
}

impl AsFd for HostDir {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Target<'_> {
    /// The file's path through a descriptor of the file or its directory.
    fn path(&self) -> Vec<u8> {
        match self {
            Self::Open(fd) => format!("/proc/self/fd/{}", fd.as_raw_fd()).into_bytes(),
            Self::Name(dir, name) => {
                [format!("/proc/self/fd/{}/", dir.0.as_raw_fd()).as_bytes(), name.0].concat()
            }
        }
    }

    /// Owner and group.
    pub(super) fn owner(&self) -> io::Result<(u32, u32)> {
        let found = match self {
            Self::Open(fd) => rustix::fs::fstat(fd)?,
            Self::Name(dir, name) => rustix::fs::statat(dir, name.0, AtFlags::SYMLINK_NOFOLLOW)?,
        };
        Ok((found.st_uid, found.st_gid))
    }

    /// Sets owner and group.
    pub(super) fn set_owner(&self, uid: u32, gid: u32) -> io::Result<()> {
        let (uid, gid) = (Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
        match self {
            Self::Open(fd) => rustix::fs::fchown(fd, uid, gid)?,
            Self::Name(dir, name) => rustix::fs::chownat(dir, name.0, uid, gid, AtFlags::SYMLINK_NOFOLLOW)?,
        }
        Ok(())
    }

    /// Sets permissions; not for symbolic links.
    pub(super) fn set_mode(&self, mode: u16) -> io::Result<()> {
        let mode = Mode::from_raw_mode(u32::from(mode & 0o7777));
        match self {
            Self::Open(fd) => rustix::fs::fchmod(fd, mode)?,
            Self::Name(dir, name) => {
                // Use a descriptor of the file itself, so that a symbolic link put there since is
                // not followed.
                let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let file = rustix::fs::openat(dir, name.0, flags, Mode::empty())?;
                rustix::fs::chmod(Target::Open(file.as_fd()).path(), mode)?;
            }
        }
        Ok(())
    }

    /// Sets access and modification times.
    pub(super) fn set_times(&self, accessed: Timestamp, modified: Timestamp) -> io::Result<()> {
        let spec = |t: Timestamp| Timespec { tv_sec: t.seconds, tv_nsec: t.nanos.into() };
        let times = Timestamps { last_access: spec(accessed), last_modification: spec(modified) };
        match self {
            Self::Open(fd) => rustix::fs::futimens(fd, &times)?,
            Self::Name(dir, name) => {
                rustix::fs::utimensat(dir, name.0, &times, AtFlags::SYMLINK_NOFOLLOW)?;
            }
        }
        Ok(())
    }

    /// Sets an extended attribute.
    pub(super) fn set_xattr(&self, name: &[u8], value: &[u8]) -> io::Result<()> {
        match self {
            Self::Open(fd) => rustix::fs::fsetxattr(fd, name, value, XattrFlags::empty())?,
            Self::Name(..) => rustix::fs::lsetxattr(self.path(), name, value, XattrFlags::empty())?,
        }
        Ok(())
    }

    /// Removes an extended attribute. Ignores a missing attribute, and files that cannot have any.
    /// Looks for the attribute first: most files have none, and removing a missing attribute still
    /// writes to the inode.
    pub(super) fn remove_xattr(&self, name: &[u8]) -> io::Result<()> {
        let mut none = [0_u8; 0];
        let there = match self {
            Self::Open(fd) => rustix::fs::fgetxattr(fd, name, &mut none),
            Self::Name(..) => rustix::fs::lgetxattr(self.path(), name, &mut none),
        };
        if let Err(Errno::NODATA | Errno::NOTSUP | Errno::ACCESS | Errno::PERM) = there {
            return Ok(());
        }
        let removed = match self {
            Self::Open(fd) => rustix::fs::fremovexattr(fd, name),
            Self::Name(..) => rustix::fs::lremovexattr(self.path(), name),
        };
        match removed {
            Err(Errno::NODATA) => Ok(()),
            other => other.map_err(io::Error::from),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn names_that_lead_away_are_none() {
        for name in [&b""[..], b".", b"..", b"a/b", b"/", b"a\0"] {
            assert!(SafeName::new(name).is_none(), "{name:?}");
        }
        assert!(SafeName::new(b"...").is_some());
        assert!(SafeName::new(b"\xff\n").is_some());
    }

    #[test]
    fn links_at_the_destination_are_replaced_or_refused_but_never_followed() {
        let root = tempfile::tempdir().unwrap();
        let (inside, outside) = (root.path().join("in"), root.path().join("out"));
        std::fs::create_dir(&inside).unwrap();
        std::fs::create_dir(&outside).unwrap();
        std::fs::write(outside.join("precious"), "kept").unwrap();
        symlink("../out/precious", inside.join("file")).unwrap();
        symlink("../out", inside.join("dir")).unwrap();
        let dir = HostDir::open(&inside).unwrap();
        let name = |name| SafeName::new(name).unwrap();

        dir.create_file(name(b"file"), 0o600).unwrap();
        assert_eq!(std::fs::read(outside.join("precious")).unwrap(), b"kept");
        assert!(inside.join("file").symlink_metadata().unwrap().is_file());

        assert!(dir.make_child(name(b"dir")).is_err());
        assert!(dir.parent_of(b"dir/precious").is_err());
        assert!(HostDir::open(&inside.join("dir")).is_err());
        assert!(Target::Name(&dir, name(b"dir")).set_mode(0o777).is_err());
    }
}
