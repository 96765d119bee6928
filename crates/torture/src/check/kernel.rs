//! The kernel's ext4 as an oracle, by a loop mount; needs root.

use crate::{Host, Image, Tree};
use std::io;
use std::path::Path;
use std::process::{Command, Stdio};

/// Mounts images one after another.
#[derive(Debug)]
pub struct LoopMount {
    folder: tempfile::TempDir,
}

impl LoopMount {
    /// A place for images and mounts, in memory where that can be.
    pub fn new() -> io::Result<Self> {
        let memory = Path::new("/dev/shm");
        let folder = if memory.is_dir() { tempfile::tempdir_in(memory)? } else { tempfile::tempdir()? };
        std::fs::create_dir(folder.path().join("mount"))?;
        Ok(Self { folder })
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
        let (path, mount) = (self.folder.path().join("image"), self.folder.path().join("mount"));
        std::fs::write(&path, image.to_vec())?;
        let mounted = Command::new("mount")
            .args(["-t", "ext4", "-o", "loop"])
            .args([&path, &mount])
            .stdin(Stdio::null())
            .output()?;
        if !mounted.status.success() {
            let text = String::from_utf8_lossy(&mounted.stderr);
            return Ok(Err(format!("the kernel does not mount it: {}", text.trim())));
        }
        let tree = Host::new(&mount).map(|mut host| Tree::of(&mut host));
        let unmounted = Command::new("umount").arg(&mount).stdin(Stdio::null()).status()?;
        if !unmounted.success() {
            return Err(io::Error::other("umount failed"));
        }
        Ok(tree?.map_err(|unreadable| format!("the kernel's mount: {unreadable}")))
    }
}
