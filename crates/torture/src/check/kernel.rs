//! The kernel's ext4 as an oracle, by a loop mount; needs root.

use super::scratch::Scratch;
use crate::{Host, Image, Tree};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use std::cell::RefCell;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Mounts images one after another on one loop device.
#[derive(Debug)]
pub struct LoopMount {
    scratch: RefCell<Scratch>,
    mount: PathBuf,
    /// Attached when the first image is there.
    device: RefCell<Option<String>>,
}

impl LoopMount {
    /// A place for images and mounts, in memory where that can be.
    pub fn new() -> io::Result<Self> {
        let scratch = Scratch::new()?;
        let mount = scratch.folder().join("mount");
        std::fs::create_dir(&mount)?;
        Ok(Self { scratch: RefCell::new(scratch), mount, device: RefCell::default() })
    }

    /// Whether this process may mount.
    pub fn is_possible() -> bool {
        rustix::process::geteuid().is_root() && Path::new("/dev/loop-control").exists()
    }

    /// Has the kernel recover a copy of the image, and reads what it sees.
    ///
    /// # Errors
    /// The kernel refuses the mount, or a file on it cannot be read.
    pub fn tree(&self, image: &Image) -> io::Result<Result<Tree, String>> {
        let mut scratch = self.scratch.borrow_mut();
        scratch.put(image)?;
        let device = self.attached(scratch.path())?;
        if let Err(error) = mount(&device, &self.mount, "ext4", MountFlags::empty(), None) {
            scratch.get(image)?;
            return Ok(Err(format!("the kernel does not mount it: {error}")));
        }
        let tree = Host::new(&self.mount).map(|mut host| Tree::of(&mut host));
        // The device's pages are dropped with its last user: the next mount reads the file anew.
        unmount(&self.mount, UnmountFlags::empty())?;
        scratch.get(image)?;
        Ok(tree?.map_err(|unreadable| format!("the kernel's mount: {unreadable}")))
    }

    /// The loop device of the file.
    fn attached(&self, path: &Path) -> io::Result<String> {
        if let Some(device) = &*self.device.borrow() {
            return Ok(device.clone());
        }
        let attached = Command::new("losetup").args(["--find", "--show"]).arg(path).output()?;
        if !attached.status.success() {
            return Err(io::Error::other(String::from_utf8_lossy(&attached.stderr).trim().to_owned()));
        }
        let device = String::from_utf8_lossy(&attached.stdout).trim().to_owned();
        *self.device.borrow_mut() = Some(device.clone());
        Ok(device)
    }
}

impl Drop for LoopMount {
    fn drop(&mut self) {
        if let Some(device) = self.device.borrow().as_deref() {
            // An attached device is harmless; its file is gone.
            let _ = Command::new("losetup").args(["--detach", device]).status();
        }
    }
}
