//! Refusal to write a disk or image that the host's kernel has in use.

use super::loops;
use rustix::fs::Stat;
use std::io::{Error, ErrorKind, Result};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Refuses a file, or a block device, some of whose bytes the kernel has in use through a loop device. `path` is the name that the
/// user has for it; `contents`, where it may be read, tells it from others by its volume.
///
/// # Errors
/// `ResourceBusy`, in words that name the device.
pub(super) fn refuse_attached(file: &Stat, contents: Option<&OwnedFd>, path: &Path) -> Result<()> {
    let Some(device) = loops::over(file, contents) else { return Ok(()) };
    let name = &device.name;
    // A user who knows it by another name would not find it.
    let elsewhere = device.backing_path.filter(|backing| path.canonicalize().ok().as_ref() != Some(backing));
    let as_name = elsewhere.map_or(String::new(), |backing| {
        format!(" as {}", String::from_utf8_lossy(backing.as_os_str().as_bytes()).escape_debug())
    });
    Err(Error::new(
        ErrorKind::ResourceBusy,
        format!("it is attached to /dev/{name}{as_name}; unmount that and detach it (losetup -d) first"),
    ))
}

/// Opens a block device that is to be claimed. Linux takes apart in the background the rings that were closed, or whose process
/// has ended, and the device stays claimed until it has: a busy one is tried again for a second.
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
