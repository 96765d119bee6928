//! Refuses to write a disk or image that the host's kernel is using.

use super::loops;
use rustix::fs::Stat;
use std::io::{Error, ErrorKind, Result};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Refuses a file or block device if the kernel is using some of its bytes through a loop device.
/// `path` is the name the user gave it. `contents`, if it can be read, identifies the file by its
/// volume.
///
/// # Errors
/// `ResourceBusy`, with a message that names the device.
pub(super) fn refuse_attached(file: &Stat, contents: Option<&OwnedFd>, path: &Path) -> Result<()> {
    let Some(device) = loops::over(file, contents) else { return Ok(()) };
    let name = &device.name;
    // A user who knows the file by another name would not find it.
    let elsewhere = device.backing_path.filter(|backing| path.canonicalize().ok().as_ref() != Some(backing));
    let as_name = elsewhere.map_or(String::new(), |backing| {
        format!(" as {}", String::from_utf8_lossy(backing.as_os_str().as_bytes()).escape_debug())
    });
    Err(Error::new(
        ErrorKind::ResourceBusy,
        format!("it is attached to /dev/{name}{as_name}; unmount that and detach it (losetup -d) first"),
    ))
}

/// Claims a file or device, retrying for a second if it is busy. Linux tears down rings in the
/// background after they were closed or their process has ended, and the file stays open, with its
/// locks, until that is done.
pub(super) fn wait_for_claim<T>(take: impl Fn() -> rustix::io::Result<T>) -> rustix::io::Result<T> {
    const TRIES: u32 = 100;
    let pause = rustix::event::Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
    for _ in 1..TRIES {
        match take() {
            Err(rustix::io::Errno::BUSY | rustix::io::Errno::WOULDBLOCK) => {
                rustix::event::poll(&mut [], Some(&pause))?;
            }
            taken => return taken,
        }
    }
    take()
}
