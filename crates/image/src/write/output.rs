//! The image file, unnamed until it is complete.

use crate::BuildError;
use extant_block::{Claim, Device, FileDevice, FileOptions, ForeignLocks, flush};
use extant_rt::Rt;
use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use rustix::io::Errno;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// An image to be replaced, or an unused name; claimed against other writers.
pub(crate) struct Replaced {
    path: PathBuf,
    claim: Claim,
}

impl Replaced {
    /// Claims the file at `path`, or the target of a symbolic link there.
    ///
    /// # Errors
    /// Not a regular file; or in use by the kernel or another program.
    pub(crate) fn claim(path: &Path, foreign: ForeignLocks) -> Result<Self, BuildError> {
        let path = behind_links(path);
        match rustix::fs::stat(&path).map(|stat| rustix::fs::FileType::from_raw_mode(stat.st_mode)) {
            Ok(rustix::fs::FileType::RegularFile) | Err(Errno::NOENT) => {}
            Ok(_) => {
                let path = crate::quoted_path(&path);
                return Err(BuildError::Options(format!(
                    "{path} is not a regular file; name a file for the image"
                )));
            }
            Err(e) => return Err(BuildError::output("look at", &path, e)),
        }
        let claim = FileDevice::claim_to_replace(&path, foreign);
        Ok(Self { claim: claim.map_err(|e| BuildError::output("replace", &path, e))?, path })
    }
}

/// An image under construction. Only [`Output::commit`] makes it appear under its name; if dropped,
/// killed or crashed before, it leaves nothing there.
pub(crate) struct Output {
    path: PathBuf,
    dir: PathBuf,
    fd: OwnedFd,
    /// Temporary name, if the file system does not support unnamed files.
    temporary: Option<PathBuf>,
    committed: bool,
    device: Arc<FileDevice>,
    /// Keeps writers away from the current image of that name until it is replaced.
    _replaced: Claim,
}

impl Output {
    /// Creates a file of `bytes` zeros in the directory of the image to be replaced.
    pub(crate) fn create(replaced: Replaced, bytes: u64, rt: &Rt) -> Result<Self, BuildError> {
        Self::create_over(&replaced.path, replaced.claim, bytes, rt)
    }

    /// Like [`Self::create`], but for a file already claimed by the caller.
    pub(crate) fn create_over(path: &Path, replaced: Claim, bytes: u64, rt: &Rt) -> Result<Self, BuildError> {
        let dir = directory_of(path);
        let (fd, temporary) = nameless(&dir)?;
        let guard = Guard(temporary.clone());
        rustix::fs::ftruncate(&fd, bytes).map_err(|e| BuildError::output("set the size of", path, e))?;
        let theirs =
            rustix::io::fcntl_dupfd_cloexec(&fd, 0).map_err(|e| BuildError::output("open", path, e))?;
        let device = FileDevice::from_fd(theirs, path, FileOptions { write: true, direct: true })
            .map_err(|e| BuildError::output("open", path, e))?;
        std::mem::forget(guard);
        let device = Arc::new(device.driven_by(rt));
        Ok(Self {
            path: path.to_path_buf(),
            dir,
            fd,
            temporary,
            committed: false,
            device,
            _replaced: replaced,
        })
    }

    pub(crate) fn device(&self) -> Arc<FileDevice> {
        self.device.clone()
    }

    /// Copies permissions and extended attributes from the file being replaced, and its owner as
    /// far as the caller may.
    ///
    /// # Errors
    /// An attribute that the caller may not set. `security.ima` and `security.evm` describe the old
    /// contents and are left out.
    pub(crate) fn resemble(&self, replaced: &Path) -> Result<(), BuildError> {
        let failed = |error| BuildError::output("take permissions from", replaced, error);
        let like = rustix::fs::stat(replaced).map_err(failed)?;
        let (owner, group) = (rustix::fs::Uid::from_raw(like.st_uid), rustix::fs::Gid::from_raw(like.st_gid));
        match rustix::fs::fchown(&self.fd, Some(owner), Some(group)) {
            Ok(()) => {}
            // The group may still be one of the caller's groups.
            Err(Errno::PERM) => match rustix::fs::fchown(&self.fd, None, Some(group)) {
                Ok(()) | Err(Errno::PERM) => {}
                Err(error) => return Err(failed(error)),
            },
            Err(error) => return Err(failed(error)),
        }
        rustix::fs::fchmod(&self.fd, Mode::from_raw_mode(like.st_mode)).map_err(failed)?;
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

    /// Makes the contents durable, then links the file under its name, then makes that durable.
    pub(crate) fn commit(mut self, rt: &Rt) -> Result<(), BuildError> {
        let device: &dyn Device = &*self.device;
        rt.block_on(flush(device))??;
        let named = match &self.temporary {
            Some(name) => name.clone(),
            None => {
                let link = |name: &Path| {
                    let from = format!("/proc/self/fd/{}", self.fd.as_raw_fd());
                    rustix::fs::linkat(CWD, from, CWD, name, AtFlags::SYMLINK_FOLLOW)
                };
                let name = unused_name(&self.dir, &self.path, link)
                    .map_err(|e| BuildError::output("name", &self.path, e))?;
                self.temporary = Some(name.clone());
                name
            }
        };
        rustix::fs::rename(&named, &self.path).map_err(|e| BuildError::output("rename to", &self.path, e))?;
        self.temporary = None;
        self.committed = true;
        let dir =
            rustix::fs::open(&self.dir, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
        dir.and_then(rustix::fs::fsync).map_err(|e| BuildError::output("sync", &self.dir, e))
    }
}

/// Resolves symbolic links like an open for writing; the target may not exist.
fn behind_links(path: &Path) -> PathBuf {
    let mut path = path.to_path_buf();
    // As many as Linux follows; a longer chain is then rejected as not a regular file.
    for _ in 0..40 {
        match std::fs::read_link(&path) {
            Ok(target) => path = path.parent().unwrap_or(Path::new("")).join(target),
            Err(_) => break,
        }
    }
    path
}

impl Drop for Output {
    fn drop(&mut self) {
        drop(Guard(self.temporary.take()));
        if !self.committed {
            // The device may hold the file open a little longer; free its space now.
            let _ = rustix::fs::ftruncate(&self.fd, 0);
        }
    }
}

/// Removes a temporary name.
struct Guard(Option<PathBuf>);

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some(name) = &self.0 {
            // A failure cannot be handled here; the original error is the one to report.
            let _ = rustix::fs::unlink(name);
        }
    }
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
