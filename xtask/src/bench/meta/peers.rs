//! Other ext4 writers in Rust that have a journal, doing the same work; for comparison, without a
//! target.

use super::{Options, Result};

#[cfg(not(feature = "peers"))]
pub(super) fn run(_: &Options) -> Result<()> {
    eprintln!("rust-fs-ext4 and rsext4 are measured where xtask is built with `--features peers`");
    Ok(())
}

#[cfg(feature = "peers")]
pub(super) use with_peers::run;

#[cfg(feature = "peers")]
mod with_peers {
    use super::super::bed::{IMAGE_BYTES, seconds, sparse_image};
    use super::super::report::{Target, absolute};
    use super::{Options, Result};
    use rsext4::{
        BlockIo, Clock, DeviceCapabilities, DeviceGeometry, Ext4, Ext4Error, Ext4Result, Ext4Timestamp,
        FileName, FilePermissions, MountOptions, MountServices, MutationContext, NoopObserver, SectorId,
    };
    use std::fs::File;
    use std::os::unix::fs::FileExt;
    use std::path::Path;
    use std::sync::Arc;

    /// Fewer than ours, since each takes up to 50 ms.
    const FILES: usize = 200;

    /// Files per second: created, statted, removed.
    type Rates = [f64; 3];

    fn rates(mut work: impl FnMut(usize, &[u8]) -> Result<()>) -> Result<Rates> {
        let mut rates = [0.0; 3];
        for (part, rate) in rates.iter_mut().enumerate() {
            let time =
                seconds(|| (0..FILES).try_for_each(|n| work(part, format!("file-{n:06}").as_bytes())))?;
            *rate = FILES as f64 / time;
        }
        Ok(rates)
    }

    fn rust_fs_ext4(path: &Path) -> Result<Rates> {
        let device = fs_ext4::block_io::FileDevice::open_path_rw(path)?;
        let fs = fs_ext4::Filesystem::mount(Arc::new(device))?;
        let dir = fs.apply_mkdir("/d", 0o755)?;
        let rates = rates(|part, name| {
            match part {
                0 => drop(fs.apply_create_at(dir, name, 0o644)?),
                1 => drop(fs.stat_ino(fs.lookup_at(dir, name)?)?),
                _ => fs.apply_unlink_at(dir, name)?,
            }
            Ok(())
        })?;
        fs.finish()?;
        Ok(rates)
    }

    /// A host file in blocks of 4 KiB.
    struct Host {
        file: File,
        blocks: u64,
    }

    impl Host {
        const BLOCK: u32 = 4096;

        fn place(&self, sector: SectorId) -> Ext4Result<u64> {
            Ok(sector.as_usize()? as u64 * u64::from(Self::BLOCK))
        }
    }

    fn failed(_: std::io::Error) -> Ext4Error {
        Ext4Error::io()
    }

    impl BlockIo for Host {
        fn write(&mut self, buffer: &[u8], sector: SectorId, _: u32) -> Ext4Result<()> {
            let at = self.place(sector)?;
            self.file.write_all_at(buffer, at).map_err(failed)
        }
        fn read(&mut self, buffer: &mut [u8], sector: SectorId, _: u32) -> Ext4Result<()> {
            let at = self.place(sector)?;
            self.file.read_exact_at(buffer, at).map_err(failed)
        }
        fn flush(&mut self) -> Ext4Result<()> {
            self.file.sync_data().map_err(failed)
        }
        fn geometry(&self) -> DeviceGeometry {
            DeviceGeometry::new(Self::BLOCK, self.blocks)
        }
        fn capabilities(&self) -> DeviceCapabilities {
            DeviceCapabilities { read_only: false, flush: true, ..DeviceCapabilities::default() }
        }
    }

    struct Fixed;

    impl Clock for Fixed {
        fn now(&self) -> Ext4Result<Ext4Timestamp> {
            Ok(Ext4Timestamp::new(1_700_000_000, 0))
        }
    }

    fn rsext4(path: &Path) -> Result<Rates> {
        let file = File::options().read(true).write(true).open(path)?;
        let blocks = file.metadata()?.len() / u64::from(Host::BLOCK);
        let told = |error: Ext4Error| format!("rsext4: {error:?}");
        let services = MountServices::new(Fixed, (), NoopObserver);
        let mut fs =
            Ext4::mount(Host { file, blocks }, services, MountOptions::read_write()).map_err(told)?;
        let root = fs.root_inode();
        let rates = rates(|part, name| {
            let name = FileName::new(name).map_err(told)?;
            match part {
                0 => {
                    let mode = FilePermissions::new(0o644).map_err(told)?;
                    let context = MutationContext::new(0, 0, 0, 0);
                    fs.create_regular_file(context, root, name, mode).map(|_| ()).map_err(told)?;
                }
                1 => fs.lookup_child(root, name).map(|_| ()).map_err(told)?,
                _ => {
                    let gone = fs.unlink(root, name).map_err(told)?;
                    fs.reap_unlinked_inode(gone.inode).map_err(told)?;
                }
            }
            Ok(())
        })?;
        fs.unmount().map_err(told)?;
        Ok(rates)
    }

    pub(in super::super) fn run(options: &Options) -> Result<()> {
        type Peer = fn(&Path) -> Result<Rates>;
        let peers: [(&str, Peer); 2] = [("rust-fs-ext4 0.8", rust_fs_ext4), ("rsext4 0.9", rsext4)];
        for (name, peer) in peers {
            let mut all = Vec::new();
            let mut failure = None;
            for _ in 0..options.rounds {
                match peer(&sparse_image(&options.dir, "peer.img", IMAGE_BYTES, &[])?) {
                    Ok(rates) => all.push(rates),
                    Err(error) => failure = Some(error),
                }
            }
            if let Some(error) = failure.filter(|_| all.is_empty()) {
                println!("| {name}: failed: {error} | | | | | |");
                continue;
            }
            for (part, what) in ["create", "stat", "unlink"].iter().enumerate() {
                let rate: Vec<f64> = all.iter().map(|rates| rates[part]).collect();
                absolute(&format!("beside it: {name}, {FILES} files: {what}"), "/s", &rate, Target::None);
            }
        }
        Ok(())
    }
}
