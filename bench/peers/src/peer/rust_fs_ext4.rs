//! rust-fs-ext4. Each change is a transaction of its own, written home before it returns.

use super::{Access, LastDir, Open, Peer};
use crate::Result;
use fs_ext4::Filesystem;
use fs_ext4::block_io::FileDevice;
use std::path::Path;
use std::sync::Arc;

struct RustFsExt4 {
    fs: Filesystem,
    writes: bool,
    last: LastDir<u32>,
}

pub(super) fn open(image: &Path, access: Access) -> Result<Box<dyn Peer>> {
    let device = match access {
        Access::Read => FileDevice::open_path(image)?,
        Access::Write => FileDevice::open_path_rw(image)?,
    };
    let fs = Filesystem::mount(Arc::new(device))?;
    Ok(Box::new(RustFsExt4 { fs, writes: access == Access::Write, last: LastDir(None) }))
}

impl RustFsExt4 {
    fn dir(&mut self, dir: &str) -> Result<u32> {
        self.last.get(dir, || Ok(self.fs.lookup_path_bytes(format!("/{dir}").as_bytes())?))
    }

    fn inode(&mut self, dir: &str, name: &str) -> Result<u32> {
        let dir = self.dir(dir)?;
        Ok(self.fs.lookup_at(dir, name.as_bytes())?)
    }
}

impl Peer for RustFsExt4 {
    fn make_dir(&mut self, dir: &str) -> Result<()> {
        self.fs.apply_mkdir(&format!("/{dir}"), 0o755)?;
        Ok(())
    }

    fn put(&mut self, dir: &str, name: &str, contents: &[u8]) -> Result<()> {
        let dir = self.dir(dir)?;
        let inode = self.fs.apply_create_at(dir, name.as_bytes(), 0o644)?;
        self.fs.apply_pwrite_ino(inode, 0, contents)?;
        Ok(())
    }

    fn get(&mut self, dir: &str, name: &str) -> Result<Vec<u8>> {
        let inode = self.inode(dir, name)?;
        let mut contents = vec![0; self.fs.stat_ino(inode)?.size.try_into()?];
        let read = self.fs.read_ino(inode, 0, &mut contents)?;
        contents.truncate(read);
        Ok(contents)
    }

    fn open(&mut self, dir: &str, name: &str, access: Access) -> Result<Box<dyn Open + '_>> {
        let inode = match self.inode(dir, name) {
            Ok(inode) => inode,
            Err(error) if access == Access::Read => return Err(error),
            Err(_) => {
                let dir = self.dir(dir)?;
                self.fs.apply_create_at(dir, name.as_bytes(), 0o644)?
            }
        };
        Ok(Box::new(Inode { fs: &self.fs, inode }))
    }

    fn list(&mut self, dir: &str) -> Result<usize> {
        let dir = self.dir(dir)?;
        let entries = self.fs.read_dir_ino(dir)?;
        Ok(entries.iter().filter(|entry| !matches!(&entry.name[..], b"." | b"..")).count())
    }

    fn rename(&mut self, dir: &str, from: &str, to: &str) -> Result<()> {
        let dir = self.dir(dir)?;
        Ok(self.fs.apply_rename_at(dir, from.as_bytes(), dir, to.as_bytes(), false)?)
    }

    fn remove(&mut self, dir: &str, name: &str) -> Result<()> {
        let dir = self.dir(dir)?;
        Ok(self.fs.apply_unlink_at(dir, name.as_bytes())?)
    }

    fn sync(&mut self) -> Result<()> {
        Ok(self.fs.flush()?)
    }

    fn close(self: Box<Self>) -> Result<()> {
        match self.writes {
            true => Ok(self.fs.finish()?),
            false => Ok(()),
        }
    }
}

struct Inode<'a> {
    fs: &'a Filesystem,
    inode: u32,
}

impl Open for Inode<'_> {
    fn read_at(&mut self, at: u64, to: &mut [u8]) -> Result<()> {
        let read = self.fs.read_ino(self.inode, at, to)?;
        if read == to.len() { Ok(()) } else { Err("the file ends early".into()) }
    }

    fn write_at(&mut self, at: u64, bytes: &[u8]) -> Result<()> {
        self.fs.apply_pwrite_ino(self.inode, at, bytes)?;
        Ok(())
    }

    fn sync(&mut self) -> Result<()> {
        Ok(self.fs.flush()?)
    }
}
