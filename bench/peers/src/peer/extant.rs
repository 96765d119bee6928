//! Extant, through `extant::Volume`, `Dir` and `File`.

use super::{Access, LastDir, Open, Peer};
use crate::Result;
use extant::{Dir, File, FileOptions, OpenOptions, Volume};
use std::path::Path;

struct Ours {
    volume: Volume,
    last: LastDir<Dir>,
}

/// With the options a user has who sets none.
pub(super) fn open_default(image: &Path, access: Access) -> Result<Box<dyn Peer>> {
    open(image, access, OpenOptions::new())
}

/// With a cache that holds all data of a step.
pub(super) fn open_large(image: &Path, access: Access) -> Result<Box<dyn Peer>> {
    open(image, access, OpenOptions::new().cache_bytes(512 << 20))
}

fn open(image: &Path, access: Access, options: OpenOptions) -> Result<Box<dyn Peer>> {
    let volume = Volume::open(image, &options.write(access == Access::Write))?;
    Ok(Box::new(Ours { volume, last: LastDir(None) }))
}

impl Ours {
    fn dir(&mut self, dir: &str) -> Result<Dir> {
        self.last.get(dir, || Ok(self.volume.root().open_dir(dir)?))
    }
}

impl Peer for Ours {
    fn make_dir(&mut self, dir: &str) -> Result<()> {
        Ok(self.volume.root().create_dir(dir)?)
    }

    fn put(&mut self, dir: &str, name: &str, contents: &[u8]) -> Result<()> {
        Ok(self.dir(dir)?.write(name, contents)?)
    }

    fn get(&mut self, dir: &str, name: &str) -> Result<Vec<u8>> {
        Ok(self.dir(dir)?.read(name)?)
    }

    fn open(&mut self, dir: &str, name: &str, access: Access) -> Result<Box<dyn Open + '_>> {
        let dir = self.dir(dir)?;
        Ok(Box::new(match access {
            Access::Read => dir.open(name)?,
            Access::Write => dir.open_with(name, FileOptions::new().read(true).write(true).create(true))?,
        }))
    }

    fn list(&mut self, dir: &str) -> Result<usize> {
        Ok(self.dir(dir)?.entries()?.len())
    }

    fn rename(&mut self, dir: &str, from: &str, to: &str) -> Result<()> {
        Ok(self.dir(dir)?.rename(from, to)?)
    }

    fn remove(&mut self, dir: &str, name: &str) -> Result<()> {
        Ok(self.dir(dir)?.remove_file(name)?)
    }

    fn sync(&mut self) -> Result<()> {
        Ok(self.volume.sync()?)
    }

    fn close(self: Box<Self>) -> Result<()> {
        let Self { volume, last } = *self;
        drop(last);
        Ok(volume.close()?)
    }
}

impl Open for File {
    fn read_at(&mut self, at: u64, to: &mut [u8]) -> Result<()> {
        let read = File::read_at(self, at, to)?;
        if read == to.len() { Ok(()) } else { Err("the file ends early".into()) }
    }

    fn write_at(&mut self, at: u64, bytes: &[u8]) -> Result<()> {
        let written = File::write_at(self, at, bytes)?;
        if written == bytes.len() { Ok(()) } else { Err("no space".into()) }
    }

    fn sync(&mut self) -> Result<()> {
        Ok(self.sync_all()?)
    }
}
