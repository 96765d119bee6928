//! Refusal to write a disk or image that the host's kernel has in use.

use rustix::fs::{FileType, OFlags};
use std::io::{Error, ErrorKind, Result};
use std::path::Path;

/// Flags to add when opening `path` for writing: a block device is claimed (`O_EXCL`, open(2)), which fails while it is
/// mounted. An image that is attached to a loop device is refused.
pub(super) fn claim(path: &Path, kind: FileType) -> Result<OFlags> {
    if kind == FileType::BlockDevice {
        return Ok(OFlags::EXCL);
    }
    match loop_device_over(path) {
        Some(device) => Err(Error::new(
            ErrorKind::ResourceBusy,
            format!("it is attached to /dev/{device}; unmount that and detach it (losetup -d) first"),
        )),
        None => Ok(OFlags::empty()),
    }
}

/// Opens a block device that is to be claimed. Linux takes apart in the background the rings that were closed, or whose process
/// has ended, and the device stays claimed until it has: a busy one is tried again for a second.
pub(super) fn wait_for_claim(
    open: impl Fn() -> rustix::io::Result<rustix::fd::OwnedFd>,
) -> rustix::io::Result<rustix::fd::OwnedFd> {
    const TRIES: u32 = 100;
    let pause = rustix::event::Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
    for _ in 1..TRIES {
        match open() {
            Err(rustix::io::Errno::BUSY) => {
                rustix::event::poll(&mut [], Some(&pause))?;
            }
            opened => return opened,
        }
    }
    open()
}

/// Name of the loop device whose backing file this is.
fn loop_device_over(path: &Path) -> Option<String> {
    let path = std::fs::canonicalize(path).ok()?;
    for device in std::fs::read_dir("/sys/block").ok()?.flatten() {
        let Ok(backing) = std::fs::read(device.path().join("loop/backing_file")) else { continue };
        let backing = backing.strip_suffix(b"\n").unwrap_or(&backing);
        if backing == path.as_os_str().as_encoded_bytes() {
            return device.file_name().into_string().ok();
        }
    }
    None
}
