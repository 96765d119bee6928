//! Attaches a directory to a server, as root or through `fusermount3`.

use crate::Device;
use crate::inherit::keep_from_programs;
use crate::tie::Tie;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};
use std::ffi::{CString, OsStr, OsString};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use thiserror::Error;

/// Extended attribute of a mounted root directory that contains the server's process number, in
/// decimal. Does not appear in listings of attributes.
pub const SERVER_ATTRIBUTE: &str = "system.extant.server";
/// Setting this attribute on a mounted root directory makes everything on the volume durable.
pub const SYNC_ATTRIBUTE: &str = "system.extant.sync";
/// The type of our mounts, as shown in `/proc/mounts`.
pub const FS_TYPE: &str = "fuse.extant";

/// How to mount.
#[derive(Clone, Debug)]
pub struct MountOptions {
    /// Shown as the source of the mount: the image.
    pub source: PathBuf,
    /// Programs may not change anything.
    pub read_only: bool,
    /// Users other than the one who mounts may access the mount. The kernel then checks
    /// permissions.
    pub allow_other: bool,
    /// The kernel checks permissions also without `allow_other`.
    pub kernel_checks: bool,
    /// Set-ID bits of programs take effect.
    pub suid: bool,
    /// Device nodes can be opened.
    pub dev: bool,
    /// Programs can be run.
    pub exec: bool,
}

/// Why a directory could not be mounted or unmounted.
#[derive(Debug, Error)]
pub enum MountError {
    /// The directory cannot be used.
    #[error("{0}: {1}")]
    Directory(String, std::io::Error),
    /// There is no FUSE on this host, or not for this user.
    #[error(
        "/dev/fuse: {0}; load the module (modprobe fuse), let users open it (chmod 666 /dev/fuse), or pass it to \
         the container (--device /dev/fuse)"
    )]
    Device(std::io::Error),
    /// Only root can mount without a helper.
    #[error(
        "mounting without root needs fusermount3, which is not installed; install it with: apt-get install fuse3"
    )]
    NoHelper,
    /// The helper failed.
    #[error("fusermount3: {0}")]
    Helper(String),
    /// Programs have files on the mount open, or have their working directory there.
    #[error("{0}: in use; end the programs that use it (fuser -vm shows them)")]
    Busy(String),
}

/// A mount, as listed by the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mounted {
    /// The directory.
    pub point: PathBuf,
    /// The image, for our own mounts.
    pub source: PathBuf,
    /// Whether it is a mount of ours.
    pub is_ours: bool,
}

fn quoted(path: &Path) -> String {
    extant_fs::quote(path.as_os_str().as_bytes())
}

/// Mounts a directory, and returns the device whose requests must be answered.
///
/// # Errors
/// See [`MountError`].
pub fn mount(dir: &Path, options: &MountOptions) -> Result<Device, MountError> {
    let failed = |error: Errno| MountError::Directory(quoted(dir), error.into());
    match mount_directly(dir, options) {
        Ok(descriptor) => Ok(Device::new(descriptor)),
        Err(Step::Open(Errno::ACCESS | Errno::PERM) | Step::Mount(Errno::PERM))
            if !rustix::process::geteuid().is_root() =>
        {
            by_helper(dir, options)
        }
        Err(Step::Open(error)) => Err(MountError::Device(error.into())),
        Err(Step::Mount(Errno::NODEV)) => Err(MountError::Device(Errno::NODEV.into())),
        Err(Step::Mount(error)) => Err(failed(error)),
    }
}

enum Step {
    Open(Errno),
    Mount(Errno),
}

fn mount_directly(dir: &Path, options: &MountOptions) -> Result<OwnedFd, Step> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    let device = rustix::fs::open("/dev/fuse", flags, Mode::empty()).map_err(Step::Open)?;
    let (user, group) = (rustix::process::getuid(), rustix::process::getgid());
    let mut data = format!(
        "fd={},rootmode=40000,user_id={},group_id={}",
        device.as_raw_fd(),
        user.as_raw(),
        group.as_raw()
    );
    if options.allow_other {
        data.push_str(",allow_other");
    }
    if options.allow_other || options.kernel_checks {
        data.push_str(",default_permissions");
    }
    let mut flags = MountFlags::empty();
    flags.set(MountFlags::RDONLY, options.read_only);
    flags.set(MountFlags::NOSUID, !options.suid);
    flags.set(MountFlags::NODEV, !options.dev);
    flags.set(MountFlags::NOEXEC, !options.exec);
    let data = CString::new(data).map_err(|_| Step::Mount(Errno::INVAL))?;
    rustix::mount::mount(options.source.as_path(), dir, FS_TYPE, flags, &*data).map_err(Step::Mount)?;
    Ok(device)
}

/// Keeps a server in the background from holding descriptors that this process was started with: a
/// script's lock or pipe would otherwise stay open until the volume is unmounted.
pub fn keep_own_descriptors() {
    keep_from_programs();
}

/// The helper opens the device, mounts, and sends the descriptor over a socket.
fn by_helper(dir: &Path, options: &MountOptions) -> Result<Device, MountError> {
    let (ours, theirs) = Tie::pair().map_err(|error| MountError::Helper(error.to_string()))?;
    let mut words = OsString::from("subtype=extant,fsname=");
    words.push(escaped(options.source.as_os_str()));
    for (is_set, word) in [
        (options.read_only, ",ro"),
        (options.allow_other, ",allow_other"),
        (options.allow_other || options.kernel_checks, ",default_permissions"),
        (options.suid, ",suid"),
        (options.dev, ",dev"),
        (!options.exec, ",noexec"),
    ] {
        if is_set {
            words.push(word);
        }
    }
    let mut command = helper();
    command.env("_FUSE_COMMFD", theirs.number().to_string()).arg("-o").arg(words).arg("--").arg(dir);
    let child = command.spawn().map_err(no_helper)?;
    drop(theirs);
    let received = ours.receive_device();
    let output = child.wait_with_output().map_err(|error| MountError::Helper(error.to_string()))?;
    match received {
        Ok(Some(device)) if output.status.success() => Ok(device),
        // The helper opens the device as the user who called it.
        _ if said(&output.stderr).contains("/dev/fuse: Permission denied") => {
            Err(MountError::Device(Errno::ACCESS.into()))
        }
        _ => Err(MountError::Helper(said(&output.stderr))),
    }
}

fn helper() -> Command {
    let mut command = Command::new("fusermount3");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    command
}

fn no_helper(error: std::io::Error) -> MountError {
    match error.kind() {
        std::io::ErrorKind::NotFound => MountError::NoHelper,
        _ => MountError::Helper(error.to_string()),
    }
}

/// The helper's message without its own name.
fn said(stderr: &[u8]) -> String {
    let text = String::from_utf8_lossy(stderr);
    let text = text.trim();
    text.strip_prefix("fusermount3: ").unwrap_or(text).to_owned()
}

/// Escapes commas and backslashes in a path, for the helper's list of options.
fn escaped(path: &OsStr) -> OsString {
    let mut bytes = Vec::with_capacity(path.len());
    for &byte in path.as_bytes() {
        if matches!(byte, b',' | b'\\') {
            bytes.push(b'\\');
        }
        bytes.push(byte);
    }
    OsString::from_vec(bytes)
}

/// Unmounts a directory. `lazy`: the mount disappears at once, and the server ends when no program
/// uses it any more.
///
/// # Errors
/// See [`MountError`].
pub fn unmount(dir: &Path, lazy: bool) -> Result<(), MountError> {
    let lazily = if lazy { UnmountFlags::DETACH } else { UnmountFlags::empty() };
    let flags = UnmountFlags::NOFOLLOW | lazily;
    match rustix::mount::unmount(dir, flags) {
        Ok(()) => Ok(()),
        Err(Errno::BUSY) => Err(MountError::Busy(quoted(dir))),
        Err(Errno::PERM) if !rustix::process::geteuid().is_root() => {
            let mut command = helper();
            command.arg("-u").args(lazy.then_some("-z")).arg("--").arg(dir);
            let output = command.output().map_err(no_helper)?;
            match output.status.success() {
                true => Ok(()),
                false if said(&output.stderr).contains("busy") => Err(MountError::Busy(quoted(dir))),
                false => Err(MountError::Helper(said(&output.stderr))),
            }
        }
        Err(error) => Err(MountError::Directory(quoted(dir), error.into())),
    }
}

/// The topmost mount on a directory, even if its server is dead.
pub fn mounted_at(dir: &Path) -> Option<Mounted> {
    let point = whole(dir)?;
    mounts().into_iter().rfind(|mounted| mounted.point == point)
}

/// One of our mounts of an image.
pub fn mounted_from(image: &Path) -> Option<Mounted> {
    let source = image.canonicalize().ok()?;
    mounts().into_iter().rfind(|mounted| mounted.is_ours && mounted.source == source)
}

fn mounts() -> Vec<Mounted> {
    let list = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
    list.split(|&byte| byte == b'\n').filter_map(listed).collect()
}

/// The device number of the topmost mount on a directory, whose path contains no symbolic links.
/// Does not ask the mount's server.
pub(crate) fn device_at(dir: &Path) -> Option<Vec<u8>> {
    let list = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
    let mut lines = list.split(|&byte| byte == b'\n').filter_map(|line| {
        let mut words = line.split(|&byte| byte == b' ').skip(2);
        let device = words.next()?;
        (path_of(words.nth(1)?) == dir).then(|| device.to_vec())
    });
    lines.next_back()
}

/// Returns an absolute path without symbolic links. Does not access the directory itself, whose
/// server may be dead.
fn whole(dir: &Path) -> Option<PathBuf> {
    if let Ok(path) = dir.canonicalize() {
        return Some(path);
    }
    let name = dir.file_name()?;
    let parent = dir.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    Some(parent.canonicalize().ok()?.join(name))
}

/// Parses a line of mountinfo (proc_pid_mountinfo(5)).
fn listed(line: &[u8]) -> Option<Mounted> {
    let mut words = line.split(|&byte| byte == b' ');
    let point = path_of(words.nth(4)?);
    let mut words = words.skip_while(|word| *word != b"-").skip(1);
    let (kind, source) = (words.next()?, words.next()?);
    Some(Mounted { point, source: path_of(source), is_ours: kind == FS_TYPE.as_bytes() })
}

/// A path in which some bytes are written as a backslash and three octal digits.
fn path_of(word: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(word.len());
    let mut rest = word;
    while let Some((&first, after)) = rest.split_first() {
        let digits = after.get(..3).filter(|_| first == b'\\');
        let code = digits.and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        bytes.push(code.unwrap_or(first));
        rest = if code.is_some() { &after[3..] } else { after };
    }
    PathBuf::from(OsString::from_vec(bytes))
}

/// Unmounts a directory whose server was killed. Returns whether there was such a mount.
///
/// # Errors
/// See [`MountError`].
pub fn clear_dead(dir: &Path) -> Result<bool, MountError> {
    let Some(mounted) = mounted_at(dir).filter(|mounted| mounted.is_ours) else { return Ok(false) };
    // Do not ask for attributes: the kernel may have cached them.
    if mounted.ask() != Err(Errno::NOTCONN) {
        return Ok(false);
    }
    unmount(&mounted.point, true)?;
    Ok(true)
}

impl Mounted {
    /// The server's process number, if it answers.
    pub fn server(&self) -> Option<u32> {
        self.ask().ok().flatten()
    }

    fn ask(&self) -> rustix::io::Result<Option<u32>> {
        let mut value = [0; 16];
        let read = rustix::fs::getxattr(&self.point, SERVER_ATTRIBUTE, &mut value)?;
        let digits = value.get(..read).and_then(|digits| std::str::from_utf8(digits).ok());
        Ok(digits.and_then(|digits| digits.parse().ok()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_mountinfo_is_understood() {
        let line = br"36 35 0:52 / /mnt/a\040b rw,nosuid shared:1 - fuse.extant /tmp/i\134mg rw,user_id=0";
        let expected = Mounted { point: "/mnt/a b".into(), source: r"/tmp/i\mg".into(), is_ours: true };
        assert_eq!(listed(line), Some(expected));
        assert_eq!(listed(b"36 35"), None);
    }

    #[test]
    fn commas_of_a_path_do_not_end_an_option() {
        assert_eq!(escaped(OsStr::new(r"a,b\c")), r"a\,b\\c");
    }
}
