//! The kernel's ext4 as an oracle, through a loop mount; needs root.

use super::scratch::Scratch;
use crate::{Host, Image, Tree};
use extant_testbed::{LoopDevice, Mount};
use std::cell::RefCell;
use std::io;
use std::path::PathBuf;

/// Mounts images one after another, on a single loop device.
#[derive(Debug)]
pub struct LoopMount {
    /// Attached with the first image.
    device: RefCell<Option<LoopDevice>>,
    scratch: RefCell<Scratch>,
    mount: PathBuf,
}

impl LoopMount {
    /// Creates a directory for images and mounts, in memory if possible.
    ///
    /// # Errors
    /// The directory cannot be created.
    pub fn new() -> io::Result<Self> {
        let scratch = Scratch::new()?;
        let mount = scratch.folder().join("mount");
        std::fs::create_dir(&mount)?;
        Ok(Self { scratch: RefCell::new(scratch), mount, device: RefCell::default() })
    }

    /// Whether this process can mount.
    pub fn is_possible() -> bool {
        extant_testbed::mounts_are_possible()
    }

    /// Lets the kernel recover a copy of the image, and reads the resulting tree.
    ///
    /// # Errors
    /// The kernel refuses to mount, or a file cannot be read.
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
