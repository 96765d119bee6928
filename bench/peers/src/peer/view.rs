//! ext4-view, which only reads.

use super::{Access, Open, Peer, reads_only};
use crate::Result;
use ext4_view::{Ext4, File};
use std::path::Path;

struct View(Ext4);

pub(super) fn open(image: &Path, _: Access) -> Result<Box<dyn Peer>> {
    Ok(Box::new(View(Ext4::load_from_path(image)?)))
}

fn path(dir: &str, name: &str) -> String {
    format!("/{dir}/{name}")
}

impl Peer for View {
    fn make_dir(&mut self, _: &str) -> Result<()> {
        reads_only()
    }

    fn put(&mut self, _: &str, _: &str, _: &[u8]) -> Result<()> {
        reads_only()
    }

    fn get(&mut self, dir: &str, name: &str) -> Result<Vec<u8>> {
        Ok(self.0.read(path(dir, name).as_str())?)
    }

    fn open(&mut self, dir: &str, name: &str, _: Access) -> Result<Box<dyn Open + '_>> {
        Ok(Box::new(self.0.open(path(dir, name).as_str())?))
    }

    fn list(&mut self, dir: &str) -> Result<usize> {
        let mut names = 0;
        for entry in self.0.read_dir(format!("/{dir}").as_str())? {
            let entry = entry?;
            let name = entry.file_name();
            names += usize::from(!matches!(name.as_ref(), b"." | b".."));
        }
        Ok(names)
    }

    fn rename(&mut self, _: &str, _: &str, _: &str) -> Result<()> {
        reads_only()
    }

    fn remove(&mut self, _: &str, _: &str) -> Result<()> {
        reads_only()
    }

    fn sync(&mut self) -> Result<()> {
        reads_only()
    }

    fn close(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}

impl Open for File {
    fn read_at(&mut self, at: u64, to: &mut [u8]) -> Result<()> {
        if self.position() != at {
            self.seek_to(at)?;
        }
        let mut done = 0;
        while done < to.len() {
            match self.read_bytes(&mut to[done..])? {
                0 => return Err("the file ends early".into()),
                n => done += n,
            }
        }
        Ok(())
    }

    fn write_at(&mut self, _: u64, _: &[u8]) -> Result<()> {
        reads_only()
    }

    fn sync(&mut self) -> Result<()> {
        reads_only()
    }
}
