//! ext4-lwext4, a wrapper of the C library lwext4. Its sync writes its cache to the image and does
//! not flush the image.

use super::{Access, Open, Peer};
use crate::Result;
use ext4_lwext4::{Ext4Fs, File, FileBlockDevice, OpenFlags, SeekFrom};
use std::path::Path;

struct Lwext4(Ext4Fs);

pub(super) fn open(image: &Path, access: Access) -> Result<Box<dyn Peer>> {
    let device = match access {
        Access::Read => FileBlockDevice::open_read_only(image)?,
        Access::Write => FileBlockDevice::open(image)?,
    };
    Ok(Box::new(Lwext4(Ext4Fs::mount(device, access == Access::Read)?)))
}

fn path(dir: &str, name: &str) -> String {
    format!("/{dir}/{name}")
}

impl Peer for Lwext4 {
    fn make_dir(&mut self, dir: &str) -> Result<()> {
        Ok(self.0.mkdir(&format!("/{dir}"), 0o755)?)
    }

    fn put(&mut self, dir: &str, name: &str, contents: &[u8]) -> Result<()> {
        let mut file = self.0.open(&path(dir, name), OpenFlags::CREATE | OpenFlags::WRITE)?;
        Ok(file.write_all(contents)?)
    }

    fn get(&mut self, dir: &str, name: &str) -> Result<Vec<u8>> {
        let mut contents = Vec::new();
        self.0.open(&path(dir, name), OpenFlags::READ)?.read_to_end(&mut contents)?;
        Ok(contents)
    }

    fn open(&mut self, dir: &str, name: &str, access: Access) -> Result<Box<dyn Open + '_>> {
        let flags = match access {
            Access::Read => OpenFlags::READ,
            Access::Write => OpenFlags::READ | OpenFlags::WRITE | OpenFlags::CREATE,
        };
        Ok(Box::new(self.0.open(&path(dir, name), flags)?))
    }

    fn list(&mut self, dir: &str) -> Result<usize> {
        let mut names = 0;
        for entry in self.0.open_dir(&format!("/{dir}"))? {
            names += usize::from(!matches!(entry?.name(), "." | ".."));
        }
        Ok(names)
    }

    fn rename(&mut self, dir: &str, from: &str, to: &str) -> Result<()> {
        Ok(self.0.rename(&path(dir, from), &path(dir, to))?)
    }

    fn remove(&mut self, dir: &str, name: &str) -> Result<()> {
        Ok(self.0.remove(&path(dir, name))?)
    }

    fn sync(&mut self) -> Result<()> {
        Ok(self.0.sync()?)
    }

    fn close(self: Box<Self>) -> Result<()> {
        Ok(self.0.umount()?)
    }
}

impl Open for File<'_> {
    fn read_at(&mut self, at: u64, to: &mut [u8]) -> Result<()> {
        if self.position() != at {
            self.seek(SeekFrom::Start(at))?;
        }
        let mut done = 0;
        while done < to.len() {
            match self.read(&mut to[done..])? {
                0 => return Err("the file ends early".into()),
                n => done += n,
            }
        }
        Ok(())
    }

    fn write_at(&mut self, at: u64, bytes: &[u8]) -> Result<()> {
        if self.position() != at {
            self.seek(SeekFrom::Start(at))?;
        }
        Ok(self.write_all(bytes)?)
    }

    fn sync(&mut self) -> Result<()> {
        Ok(File::sync(self)?)
    }
}
