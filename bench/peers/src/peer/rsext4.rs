//! rsext4, on a device that this bench has to bring. Its smallest unit of a sync is the volume.

use super::{Access, LastDir, Open, Peer};
use crate::Result;
use rsext4::{
    BlockIo, Clock, DeviceCapabilities, DeviceGeometry, DirectoryCursor, Ext4, Ext4Error, Ext4Result,
    Ext4Timestamp, FileName, FilePermissions, InodeNumber, MountOptions, MountServices, MountedServices,
    MutationContext, NoopObserver, RenameOptions, SectorId,
};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// A host file in blocks of 4 KiB.
struct Host {
    file: File,
    blocks: u64,
    read_only: bool,
}

const BLOCK: u32 = 4096;

/// Names asked for at a time.
const LISTED: usize = 1024;

fn place(sector: SectorId) -> u64 {
    sector.raw() * u64::from(BLOCK)
}

fn failed(_: std::io::Error) -> Ext4Error {
    Ext4Error::io()
}

impl BlockIo for Host {
    fn write(&mut self, buffer: &[u8], sector: SectorId, _: u32) -> Ext4Result<()> {
        self.file.write_all_at(buffer, place(sector)).map_err(failed)
    }

    fn read(&mut self, buffer: &mut [u8], sector: SectorId, _: u32) -> Ext4Result<()> {
        self.file.read_exact_at(buffer, place(sector)).map_err(failed)
    }

    fn flush(&mut self) -> Ext4Result<()> {
        if self.read_only { Ok(()) } else { self.file.sync_data().map_err(failed) }
    }

    fn geometry(&self) -> DeviceGeometry {
        DeviceGeometry::new(BLOCK, self.blocks)
    }

    fn capabilities(&self) -> DeviceCapabilities {
        DeviceCapabilities { read_only: self.read_only, flush: true, ..DeviceCapabilities::default() }
    }
}

struct Fixed;

impl Clock for Fixed {
    fn now(&self) -> Ext4Result<Ext4Timestamp> {
        Ok(Ext4Timestamp::new(1_700_000_000, 0))
    }
}

type Mounted = Ext4<Host, MountedServices<(), NoopObserver, ()>>;

struct Rsext4 {
    fs: Mounted,
    last: LastDir<InodeNumber>,
}

fn told(error: Ext4Error) -> Box<dyn std::error::Error> {
    format!("{error:?}").into()
}

fn name(name: &str) -> Result<FileName<'_>> {
    FileName::new(name.as_bytes()).map_err(told)
}

pub(super) fn open(image: &Path, access: Access) -> Result<Box<dyn Peer>> {
    let read_only = access == Access::Read;
    let file = File::options().read(true).write(!read_only).open(image)?;
    let blocks = file.metadata()?.len() / u64::from(BLOCK);
    let services = MountServices::new(Fixed, (), NoopObserver);
    let options = match read_only {
        true => MountOptions::read_only_no_journal_replay(),
        false => MountOptions::read_write(),
    };
    let fs = Ext4::mount(Host { file, blocks, read_only }, services, options).map_err(told)?;
    Ok(Box::new(Rsext4 { fs, last: LastDir(None) }))
}

impl Rsext4 {
    fn dir(&mut self, dir: &str) -> Result<InodeNumber> {
        let fs = &mut self.fs;
        self.last.get(dir, || {
            let root = fs.root_inode();
            let found = fs.lookup_child(root, name(dir)?).map_err(told)?;
            Ok(found.ok_or("no such directory")?.number)
        })
    }

    fn create(&mut self, dir: InodeNumber, file: &str) -> Result<InodeNumber> {
        let mode = FilePermissions::new(0o644).map_err(told)?;
        let context = MutationContext::new(0, 0, 0, 0);
        Ok(self.fs.create_regular_file(context, dir, name(file)?, mode).map_err(told)?.number)
    }
}

impl Peer for Rsext4 {
    fn make_dir(&mut self, dir: &str) -> Result<()> {
        let mode = FilePermissions::new(0o755).map_err(told)?;
        let root = self.fs.root_inode();
        let context = MutationContext::new(0, 0, 0, 0);
        self.fs.create_directory(context, root, name(dir)?, mode).map_err(told)?;
        Ok(())
    }

    fn put(&mut self, dir: &str, file: &str, contents: &[u8]) -> Result<()> {
        let dir = self.dir(dir)?;
        let inode = self.create(dir, file)?;
        self.fs.write_inode(inode, 0, contents).map_err(told)
    }

    fn get(&mut self, dir: &str, file: &str) -> Result<Vec<u8>> {
        let dir = self.dir(dir)?;
        let found = self.fs.lookup_child(dir, name(file)?).map_err(told)?.ok_or("no such file")?;
        let mut contents = vec![0; found.size.try_into()?];
        let read = self.fs.read_inode(found.number, 0, &mut contents).map_err(told)?;
        contents.truncate(read);
        Ok(contents)
    }

    fn open(&mut self, dir: &str, file: &str, access: Access) -> Result<Box<dyn Open + '_>> {
        let dir = self.dir(dir)?;
        let inode = match self.fs.lookup_child(dir, name(file)?).map_err(told)? {
            Some(found) => found.number,
            None if access == Access::Read => return Err("no such file".into()),
            None => self.create(dir, file)?,
        };
        Ok(Box::new(Inode { fs: &mut self.fs, inode }))
    }

    fn list(&mut self, dir: &str) -> Result<usize> {
        let dir = self.dir(dir)?;
        let mut reader = self.fs.open_directory_reader(dir).map_err(told)?;
        let (mut at, mut names) = (DirectoryCursor::Start, 0);
        loop {
            let some = self.fs.read_directory_with_reader(&mut reader, at, LISTED).map_err(told)?;
            let Some(last) = some.last() else { return Ok(names) };
            at = last.next_cursor;
            names += some.iter().filter(|entry| !matches!(&entry.name[..], b"." | b"..")).count();
            if at == DirectoryCursor::End {
                return Ok(names);
            }
        }
    }

    fn rename(&mut self, dir: &str, from: &str, to: &str) -> Result<()> {
        let dir = self.dir(dir)?;
        let renamed = self.fs.rename(dir, name(from)?, dir, name(to)?, RenameOptions::NO_REPLACE);
        renamed.map(|_| ()).map_err(told)
    }

    fn remove(&mut self, dir: &str, file: &str) -> Result<()> {
        let dir = self.dir(dir)?;
        let gone = self.fs.unlink(dir, name(file)?).map_err(told)?;
        if gone.requires_reap() {
            self.fs.reap_unlinked_inode(gone.inode).map_err(told)?;
        }
        Ok(())
    }

    fn sync(&mut self) -> Result<()> {
        self.fs.sync().map_err(told)
    }

    fn close(mut self: Box<Self>) -> Result<()> {
        self.fs.unmount().map_err(told)
    }
}

struct Inode<'a> {
    fs: &'a mut Mounted,
    inode: InodeNumber,
}

impl Open for Inode<'_> {
    fn read_at(&mut self, at: u64, to: &mut [u8]) -> Result<()> {
        let read = self.fs.read_inode(self.inode, at, to).map_err(told)?;
        if read == to.len() { Ok(()) } else { Err("the file ends early".into()) }
    }

    fn write_at(&mut self, at: u64, bytes: &[u8]) -> Result<()> {
        self.fs.write_inode(self.inode, at, bytes).map_err(told)
    }

    fn sync(&mut self) -> Result<()> {
        self.fs.sync().map_err(told)
    }
}
