//! The kernel's ext4 as an oracle, by a loop mount; needs root.

use super::scratch::Scratch;
use crate::{Host, Image, Tree};
use extant_testbed::{LoopDevice, Mount};
use std::cell::RefCell;
use std::io;
use std::path::PathBuf;

/// Mounts images one after another on one loop device.
#[derive(Debug)]
pub struct LoopMount {
    /// Attached when the first image is there.
    device: RefCell<Option<LoopDevice>>,
    scratch: RefCell<Scratch>,
    mount: PathBuf,
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
        extant_testbed::mounts_are_possible()
    }

    /// Has the kernel recover a copy of the image, and reads what it sees.
    ///
    /// # Errors
    /// The kernel refuses the mount, or a file on it cannot be read.
    pub fn tree(&self, image: &Image) -> io::Result<Result<Tree, String>> {
        let mut scratch = self.scratch.borrow_mut();
        scratch.put(image)?;
        let mut device = self.device.borrow_mut();
        let device = match &mut *device {
            Some(device) => device,
            none => none.insert(LoopDevice::attach(scratch.path(), &[]).map_err(io::Error::other)?),
        };
        let mount = match Mount::of_device(device, &self.mount, "ext4") {
            Ok(mount) => mount,
            Err(words) => {
                scratch.get(image)?;
                return Ok(Err(format!("the kernel does not mount it: {words}")));
            }
        };
        let tree = Host::new(&self.mount).map(|mut host| Tree::of(&mut host));
        drop(mount);
        scratch.get(image)?;
        Ok(tree?.map_err(|unreadable| format!("the kernel's mount: {unreadable}")))
    }
}
