//! The kernel's ext4, on a loop device over the same image.

use super::{Access, Open, Peer};
use crate::Result;
use extant_testbed::Mount;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

struct Kernel {
    at: PathBuf,
    _mount: Mount,
}

pub(super) fn open(image: &Path, access: Access) -> Result<Box<dyn Peer>> {
    let at = image.with_extension("mount");
    let mount = Mount::try_new(image, &at, if access == Access::Write { "rw" } else { "ro" })?;
    Ok(Box::new(Kernel { at, _mount: mount }))
}

impl Kernel {
    fn path(&self, dir: &str, name: &str) -> PathBuf {
        self.at.join(dir).join(name)
    }
}

impl Peer for Kernel {
    fn make_dir(&mut self, dir: &str) -> Result<()> {
        Ok(fs::create_dir(self.at.join(dir))?)
    }

    fn put(&mut self, dir: &str, name: &str, contents: &[u8]) -> Result<()> {
        Ok(fs::write(self.path(dir, name), contents)?)
    }

    fn get(&mut self, dir: &str, name: &str) -> Result<Vec<u8>> {
        Ok(fs::read(self.path(dir, name))?)
    }

    fn open(&mut self, dir: &str, name: &str, access: Access) -> Result<Box<dyn Open + '_>> {
        let path = self.path(dir, name);
        Ok(Box::new(match access {
            Access::Read => File::open(path)?,
            Access::Write => {
                File::options().read(true).write(true).create(true).truncate(false).open(path)?
            }
        }))
    }

    fn list(&mut self, dir: &str) -> Result<usize> {
        let mut names = 0;
        for entry in fs::read_dir(self.at.join(dir))? {
            entry?;
            names += 1;
        }
        Ok(names)
    }

    fn rename(&mut self, dir: &str, from: &str, to: &str) -> Result<()> {
        Ok(fs::rename(self.path(dir, from), self.path(dir, to))?)
    }

    fn remove(&mut self, dir: &str, name: &str) -> Result<()> {
        Ok(fs::remove_file(self.path(dir, name))?)
    }

    fn sync(&mut self) -> Result<()> {
        Ok(rustix::fs::syncfs(File::open(&self.at)?)?)
    }

    fn close(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}

impl Open for File {
    fn read_at(&mut self, at: u64, to: &mut [u8]) -> Result<()> {
        Ok(self.read_exact_at(to, at)?)
    }

    fn write_at(&mut self, at: u64, bytes: &[u8]) -> Result<()> {
        Ok(self.write_all_at(bytes, at)?)
    }

    fn sync(&mut self) -> Result<()> {
        Ok(self.sync_all()?)
    }
}
