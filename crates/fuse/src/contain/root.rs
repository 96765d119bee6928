//! A volume as the root directory of a process.

use super::proc_mount;
use rustix::fs::{FileType, Mode, OFlags, ResolveFlags, StatVfsMountFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};
use std::ffi::CStr;
use std::fmt;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;
use thiserror::Error;

/// Nodes of `/dev` that programs expect everywhere.
const NODES: [&str; 6] = ["null", "zero", "full", "random", "urandom", "tty"];
const LINKS: [(&str, &str); 5] = [
    ("/proc/self/fd", "fd"),
    ("/proc/self/fd/0", "stdin"),
    ("/proc/self/fd/1", "stdout"),
    ("/proc/self/fd/2", "stderr"),
    ("pts/ptmx", "ptmx"),
];
const RESOLVER: &str = "/etc/resolv.conf";

/// Why a volume could not become the root directory.
#[derive(Debug, Error)]
#[error("{step}: {error}")]
pub struct RootError {
    step: &'static str,
    error: std::io::Error,
}

/// A file or directory that the volume lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    /// The directory `/proc`.
    Proc,
    /// The directory `/dev`.
    Dev,
    /// The file `/etc/resolv.conf`.
    Resolver,
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Proc => "the volume has no directory /proc, so programs see no processes",
            Self::Dev => "the volume has no directory /dev, so programs find no devices such as /dev/null",
            Self::Resolver => "the volume has no file /etc/resolv.conf, so programs find no hosts by name",
        })
    }
}

fn at(step: &'static str) -> impl Fn(Errno) -> RootError {
    move |error| RootError { step, error: error.into() }
}

/// Makes a mounted directory the root of this process and of all others in its mount namespace,
/// with `/proc`, `/dev` and the host's `/etc/resolv.conf`. None of this is written to the volume.
/// Everything else of the host is out of reach.
///
/// # Errors
/// Names the step that failed.
pub fn enter_root(root: &Path) -> Result<Vec<Missing>, RootError> {
    let mut missing = Vec::new();
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let top = rustix::fs::open(root, flags, Mode::empty()).map_err(at("the volume's root directory"))?;
    match place(&top, "dev", FileType::Directory).map_err(at("/dev"))? {
        Some(dev) => make_dev(&top, &dev).map_err(at("/dev"))?,
        None => missing.push(Missing::Dev),
    }
    match place(&top, "proc", FileType::Directory).map_err(at("/proc"))? {
        // A container that hides parts of its own /proc does not allow another one.
        Some(proc) => proc_mount::at(&path(&proc))
            .or_else(|_| rustix::mount::mount_bind_recursive("/proc", path(&proc)))
            .map_err(at("/proc"))?,
        None => missing.push(Missing::Proc),
    }
    if Path::new(RESOLVER).exists() {
        match place(&top, "etc/resolv.conf", FileType::RegularFile).map_err(at(RESOLVER))? {
            Some(file) => bind_read_only(RESOLVER, &top, &file).map_err(at(RESOLVER))?,
            None => missing.push(Missing::Resolver),
        }
    }
    rustix::process::fchdir(&top).map_err(at("the volume's root directory"))?;
    // The old root directory ends up on top of the new one, and is then unmounted (pivot_root(2),
    // "pivot_root(".", ".")").
    rustix::process::pivot_root(".", ".").map_err(at("pivot_root"))?;
    rustix::mount::unmount(".", UnmountFlags::DETACH).map_err(at("the host's root directory"))?;
    rustix::process::chdir("/").map_err(at("the volume's root directory"))?;
    Ok(missing)
}

/// A path that leads to an open file, whatever symbolic links are on the volume.
fn path(file: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", file.as_raw_fd())
}

/// Opens a file below the root; symbolic links on its path stay below the root. `None` if there is
/// no file of this type.
fn place(top: &OwnedFd, name: &str, is: FileType) -> rustix::io::Result<Option<OwnedFd>> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    match rustix::fs::openat2(top, name, flags, Mode::empty(), resolve) {
        Ok(file) => {
            let found = FileType::from_raw_mode(rustix::fs::fstat(&file)?.st_mode);
            Ok((found == is).then_some(file))
        }
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Mounts a new file system on a directory. Returns its root.
fn mount_new(
    kind: &str,
    on: &OwnedFd,
    flags: MountFlags,
    data: &CStr,
    top: impl AsFd,
    name: &str,
) -> rustix::io::Result<OwnedFd> {
    rustix::mount::mount(kind, path(on), kind, flags, data)?;
    // The old descriptor still refers to the directory below the mount.
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::openat2(top, name, flags, Mode::empty(), ResolveFlags::IN_ROOT)
}

fn make_dev(top: &OwnedFd, on: &OwnedFd) -> rustix::io::Result<()> {
    let (plain, safe) = (MountFlags::NOSUID, MountFlags::NOSUID | MountFlags::NOEXEC);
    let dev = mount_new("tmpfs", on, plain, c"mode=755,size=1m", top, "dev")?;
    for node in NODES {
        let source = format!("/dev/{node}");
        if !Path::new(&source).exists() {
            continue;
        }
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
        drop(rustix::fs::openat(&dev, node, flags, Mode::from_raw_mode(0o644))?);
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&dev, node, flags, Mode::empty())?;
        // Device nodes created in a user namespace cannot be opened.
        rustix::mount::mount_bind(source, path(&file))?;
    }
    for (target, name) in LINKS {
        rustix::fs::symlinkat(target, &dev, name)?;
    }
    for (name, kind, data) in
        [("pts", "devpts", c"newinstance,ptmxmode=0666,mode=0620"), ("shm", "tmpfs", c"mode=1777")]
    {
        rustix::fs::mkdirat(&dev, name, Mode::from_raw_mode(0o755))?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let on = rustix::fs::openat(&dev, name, flags, Mode::empty())?;
        mount_new(kind, &on, safe, data, &dev, name)?;
    }
    Ok(())
}

/// Shows a file of the host in place of one on the volume. It must be read-only, because root
/// inside may be root of the host.
fn bind_read_only(source: &str, top: &OwnedFd, on: &OwnedFd) -> rustix::io::Result<()> {
    rustix::mount::mount_bind(source, path(on))?;
    let Some(bound) = place(top, source, FileType::RegularFile)? else { return Ok(()) };
    let has = rustix::fs::fstatvfs(&bound)?.f_flag;
    // Flags that restrict the host's mount cannot be dropped here, and must be given again.
    let mut flags = MountFlags::BIND | MountFlags::RDONLY;
    for (is, flag) in [
        (StatVfsMountFlags::NOSUID, MountFlags::NOSUID),
        (StatVfsMountFlags::NODEV, MountFlags::NODEV),
        (StatVfsMountFlags::NOEXEC, MountFlags::NOEXEC),
        (StatVfsMountFlags::NOATIME, MountFlags::NOATIME),
        (StatVfsMountFlags::NODIRATIME, MountFlags::NODIRATIME),
        (StatVfsMountFlags::RELATIME, MountFlags::RELATIME),
    ] {
        flags.set(flag, has.contains(is));
    }
    rustix::mount::mount_remount(path(&bound), flags, "")
}
