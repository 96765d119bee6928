//! A file of the host that gets its name only once it is complete. Until then it has none, if the
//! file system supports that, so nothing is left if the program is killed.

use crate::BuildError;
use extant_fs::SYMLINKS_MAX;
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, RenameFlags};
use rustix::io::Errno;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

/// What to do if a file with the name of the new one exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Naming {
    /// The new file replaces it.
    Replacing,
    /// The existing file stays, and naming the new file fails.
    Unused,
}

/// A file under construction. It appears under its name only in [`NewFile::name`]. If it is dropped
/// or the program is killed before that, the name stays as it was.
pub(crate) struct NewFile {
    path: PathBuf,
    dir: PathBuf,
    fd: OwnedFd,
    /// Temporary name, if the file system does not support unnamed files.
    temporary: Option<PathBuf>,
}

impl NewFile {
    /// Creates an empty file for `path`, in its directory. If it will replace a regular file, it
    /// gets that file's permissions, and its owner if the caller may set that.
    pub(crate) fn create(path: &Path) -> Result<Self, BuildError> {
        let dir = directory_of(path);
        let (fd, temporary) = nameless(&dir)?;
        let file = Self { path: path.to_path_buf(), dir, fd, temporary };
        match rustix::fs::stat(path) {
            Ok(replaced) if FileType::from_raw_mode(replaced.st_mode).is_file() => {
                file.resemble(&replaced)?
            }
            _ => {}
        }
        Ok(file)
    }

    pub(crate) fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    /// Returns another descriptor of the file.
    pub(crate) fn duplicate(&self) -> Result<OwnedFd, BuildError> {
        rustix::io::fcntl_dupfd_cloexec(&self.fd, 0).map_err(|e| BuildError::output("open", &self.path, e))
    }

    fn resemble(&self, replaced: &rustix::fs::Stat) -> Result<(), BuildError> {
        let failed = |error| BuildError::output("take permissions from", &self.path, error);
        let (owner, group) =
            (rustix::fs::Uid::from_raw(replaced.st_uid), rustix::fs::Gid::from_raw(replaced.st_gid));
        // A user namespace says INVAL for owners that it does not map, and some file systems have
        // no owners.
        let given = |result| match result {
            Ok(()) => Ok(true),
            Err(Errno::PERM | Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => Ok(false),
            Err(error) => Err(failed(error)),
        };
        if !given(rustix::fs::fchown(&self.fd, Some(owner), Some(group)))? {
            // The caller may still be allowed to set the group, if it is one of the caller's
            // groups.
            given(rustix::fs::fchown(&self.fd, None, Some(group)))?;
        }
        rustix::fs::fchmod(&self.fd, Mode::from_raw_mode(replaced.st_mode)).map_err(failed)
    }

    /// Copies the extended attributes of the file being replaced.
    ///
    /// # Errors
    /// An attribute that the caller may not set. `security.ima` and `security.evm` describe the old
    /// contents and are left out.
    pub(crate) fn keep_attributes(&self) -> Result<(), BuildError> {
        let replaced = &self.path;
        let failed = |error| BuildError::output("take the extended attributes from", replaced, error);
        // Sized for the maximum that Linux allows.
        let (mut names, mut value, mut own) = (vec![0; 64 << 10], vec![0; 64 << 10], vec![0; 64 << 10]);
        let len = match rustix::fs::listxattr(replaced, &mut names[..]) {
            Ok(len) => len,
            Err(Errno::OPNOTSUPP) => 0,
            Err(error) => return Err(failed(error)),
        };
        for name in names[..len].split(|&byte| byte == 0).filter(|name| !name.is_empty()) {
            if matches!(name, b"security.ima" | b"security.evm") {
                continue;
            }
            let len = rustix::fs::getxattr(replaced, name, &mut value[..]).map_err(failed)?;
            // A new file may already have the same label.
            if rustix::fs::fgetxattr(&self.fd, name, &mut own[..])
                .is_ok_and(|there| own[..there] == value[..len])
            {
                continue;
            }
            rustix::fs::fsetxattr(&self.fd, name, &value[..len], rustix::fs::XattrFlags::empty())
                .map_err(failed)?;
        }
        Ok(())
    }

    /// Gives the file its name.
    ///
    /// # Errors
    /// `EXIST` if the name should be unused and is taken.
    pub(crate) fn name(&mut self, naming: Naming) -> Result<(), BuildError> {
        let named = match &self.temporary {
            Some(name) => name.clone(),
            None => {
                let link = |name: &Path| {
                    let from = format!("/proc/self/fd/{}", self.fd.as_raw_fd());
                    rustix::fs::linkat(CWD, from, CWD, name, AtFlags::SYMLINK_FOLLOW)
                };
                match link(&self.path) {
                    Err(Errno::EXIST) if naming == Naming::Replacing => {}
                    done => return done.map_err(|e| BuildError::output("name", &self.path, e)),
                }
                let name = unused_name(&self.dir, &self.path, link)
                    .map_err(|e| BuildError::output("name", &self.path, e))?;
                self.temporary = Some(name.clone());
                name
            }
        };
        let renamed = match naming {
            Naming::Replacing => rustix::fs::rename(&named, &self.path),
            Naming::Unused => rename_to_unused(&named, &self.path),
        };
        renamed.map_err(|e| BuildError::output("rename to", &self.path, e))?;
        self.temporary = None;
        Ok(())
    }

    /// Makes the name durable.
    pub(crate) fn sync_name(&self) -> Result<(), BuildError> {
        let dir =
            rustix::fs::open(&self.dir, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
        dir.and_then(rustix::fs::fsync).map_err(|e| BuildError::output("sync", &self.dir, e))
    }
}

/// Renames a file, unless something has the new name.
fn rename_to_unused(from: &Path, to: &Path) -> rustix::io::Result<()> {
    match rustix::fs::renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        // NFS, 9p and many FUSE file systems cannot do this. linkat never replaces a file either.
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
            rustix::fs::linkat(CWD, from, CWD, to, AtFlags::empty())?;
            rustix::fs::unlink(from)
        }
        done => done,
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if let Some(name) = &self.temporary {
            // A failure cannot be handled here; the original error is the one to report.
            let _ = rustix::fs::unlink(name);
        }
    }
}

/// Resolves symbolic links like an open for writing; the target may not exist.
///
/// # Errors
/// Too many links.
pub(crate) fn behind_links(path: &Path) -> io::Result<PathBuf> {
    let mut path = path.to_path_buf();
    for _ in 0..=SYMLINKS_MAX {
        match std::fs::read_link(&path) {
            Ok(target) => path = path.parent().unwrap_or(Path::new("")).join(target),
            Err(_) => return Ok(path),
        }
    }
    Err(Errno::LOOP.into())
}

/// The directory of a path's last component.
pub(crate) fn directory_of(path: &Path) -> PathBuf {
    match path.parent() {
        Some(dir) if !dir.as_os_str().is_empty() => dir.to_path_buf(),
        _ => PathBuf::from("."),
    }
}

/// Creates a file in `dir`, unnamed if possible and otherwise under a temporary name.
fn nameless(dir: &Path) -> Result<(OwnedFd, Option<PathBuf>), BuildError> {
    let mode = Mode::from_raw_mode(0o666);
    let has_proc = rustix::fs::access("/proc/self/fd", rustix::fs::Access::EXISTS).is_ok();
    if has_proc {
        match rustix::fs::open(dir, OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC, mode) {
            Ok(fd) => return Ok((fd, None)),
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL | Errno::NOENT) => {}
            Err(e) => return Err(BuildError::output("create a file in", dir, e)),
        }
    }
    let mut made = None;
    let name = unused_name(dir, Path::new("image"), |name| {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        made = Some(rustix::fs::open(name, flags, mode)?);
        Ok(())
    })
    .map_err(|e| BuildError::output("create a file in", dir, e))?;
    Ok((made.expect("made under the name that was found"), Some(name)))
}

/// Tries temporary names until `make` finds one that is free.
fn unused_name(
    dir: &Path,
    path: &Path,
    mut make: impl FnMut(&Path) -> Result<(), Errno>,
) -> Result<PathBuf, Errno> {
    let base = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let base: String = base.chars().take(40).collect();
    for n in 0..1000 {
        let name = dir.join(format!(".{base}.{}.{n}", std::process::id()));
        match make(&name) {
            Ok(()) => return Ok(name),
            Err(Errno::EXIST) => {}
            Err(e) => return Err(e),
        }
    }
    Err(Errno::EXIST)
}
