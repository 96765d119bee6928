//! A test bed: a volume made by mke2fs in memory, changed through handles, and checked with other
//! tools.

use crate::journal::{Credits, Journal};
use crate::meta::{InodeCell, MetaKind};
use crate::recovery::{Log, replay};
use crate::{OpenOptions, Volume, WriteOptions};
use extant_block::{Buf, Device, MemDevice, Record, Sector};
use extant_cache::{CacheConfig, Disk, PageCache};
use extant_format::jbd2::{JournalCompat, JournalIncompat};
use extant_format::{Inode, InodeNumber, VolumeBlock, inode_offset};
use extant_rt::{Rt, RwLock};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

/// Number of files that operations stamp, starting with inode 12.
pub(super) const FILES: u32 = 120;
pub(super) const FIRST: u32 = 12;
/// Operation `k` stamps this plus `k`.
pub(super) const EPOCH: u32 = 1_600_000_000;

pub(super) fn rt() -> Rt {
    Rt::real(Default::default())
}

pub(super) fn sh(script: &str) -> Result<String, String> {
    let out = Command::new("sh").args(["-ec", script]).output().map_err(|e| e.to_string())?;
    let text = String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
    if out.status.success() { Ok(text) } else { Err(format!("{script}: {} {text}", out.status)) }
}

/// Builds an image of `mib` MiB with [`FILES`] files.
pub(super) fn image(mke2fs: &str, mib: u32) -> Vec<u8> {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("root");
    std::fs::create_dir(&root).unwrap();
    for n in 0..FILES {
        std::fs::write(root.join(format!("file{n:03}")), vec![b'a' + (n % 26) as u8; 3000]).unwrap();
    }
    let path = dir.path().join("image");
    sh(&format!("find {} -exec touch -d @1500000000 {{}} +", root.display())).unwrap();
    let time = "E2FSPROGS_FAKE_TIME=1500000000";
    sh(&format!("{time} mke2fs -q -F {mke2fs} -d {} {} {mib}M", root.display(), path.display())).unwrap();
    std::fs::read(path).unwrap()
}

/// Sets the features of an image's empty journal.
pub(super) fn journal_features(image: &mut [u8], compat: JournalCompat, incompat: JournalIncompat) {
    let rt = rt();
    let device = memory(&rt, image);
    let volume = rt.block_on(Volume::open(device, OpenOptions::default())).unwrap().unwrap();
    let log = rt.block_on(Log::open(volume.view())).unwrap().unwrap().expect("a journal");
    let mut sb = log.sb.clone();
    sb.set_compat(compat);
    sb.set_incompat(incompat);
    let bytes = volume.superblock().block_size().byte_len();
    let at = log.map.home(0).unwrap().0 as usize * bytes;
    sb.write_to(&mut image[at..at + bytes]);
}

pub(super) fn memory(rt: &Rt, image: &[u8]) -> Arc<MemDevice> {
    let device = Arc::new(MemDevice::new(image.len()));
    for (n, chunk) in image.chunks(1 << 20).enumerate() {
        let at = Sector::containing((n as u64) << 20);
        rt.block_on(extant_block::write(&*device, at, Buf::from_slice(chunk))).unwrap().unwrap();
    }
    device
}

pub(super) fn contents(rt: &Rt, device: &dyn Device) -> Vec<u8> {
    let len = device.limits().capacity_bytes as usize;
    rt.block_on(extant_block::read(device, Sector(0), len)).unwrap().unwrap().to_vec()
}

/// A volume open for writing.
pub(super) struct Bed {
    pub(super) rt: Rt,
    pub(super) base: Vec<u8>,
    pub(super) record: Arc<Record>,
    pub(super) volume: Volume,
    cells: Vec<Arc<InodeCell>>,
    /// Operations so far.
    pub(super) done: u32,
    _cache: PageCache,
    _disk: Disk,
}

impl Bed {
    pub(super) fn new(image: Vec<u8>, options: WriteOptions) -> Self {
        let rt = rt();
        let device = memory(&rt, &image);
        Self::over(&rt, image, device, options)
    }

    pub(super) fn over(rt: &Rt, image: Vec<u8>, device: Arc<dyn Device>, options: WriteOptions) -> Self {
        let record = Arc::new(Record::new(device));
        let cache = PageCache::new(rt, CacheConfig::with_budget(1 << 20)).unwrap();
        let disk = cache.attach(record.clone());
        let volume = rt.block_on(Volume::open_writable(rt, &disk, options)).unwrap().unwrap();
        let mut bed = Self {
            rt: rt.clone(),
            base: image,
            record,
            volume,
            cells: vec![],
            done: 0,
            _cache: cache,
            _disk: disk,
        };
        bed.cells = (FIRST..FIRST + FILES).map(|n| bed.cell(n)).collect();
        bed
    }

    pub(super) fn journal(&self) -> &Journal {
        &self.volume.writer().unwrap().journal
    }

    fn cell(&self, number: u32) -> Arc<InodeCell> {
        let number = InodeNumber(number);
        let writer = self.volume.writer().unwrap();
        let sb = self.volume.superblock();
        let (group, offset) = inode_offset(sb, number).unwrap();
        let table = writer.store.groups().get(group).inode_table;
        let at = VolumeBlock(table.0 + (offset >> sb.block_size().log2()));
        let block = self.rt.block_on(writer.store.read(at, MetaKind::InodeTable(group))).unwrap().unwrap();
        let at = (offset & u64::from(sb.block_size().bytes() - 1)) as usize;
        let inode = Inode::parse(&block.bytes()[at..], sb, number).unwrap();
        Arc::new(InodeCell::new(inode, block, at, RwLock::new(writer.store.locks())))
    }

    /// One operation: stamps the next file.
    pub(super) fn op(&mut self) {
        self.done += 1;
        let cell = &self.cells[(self.done % FILES) as usize];
        let mut handle = self.rt.block_on(self.journal().start(Credits(1))).unwrap().unwrap();
        handle.inode(cell).raw.i_mtime = (EPOCH + self.done).into();
    }

    pub(super) fn ops(&mut self, count: u32) {
        (0..count).for_each(|_| self.op());
    }

    pub(super) fn sync(&self) {
        self.rt.block_on(self.volume.sync()).unwrap().unwrap();
    }

    /// Returns the image after a crash in which all completed writes reached the disk.
    pub(super) fn crash(self) -> Vec<u8> {
        contents(&self.rt, &*self.record)
    }

    pub(super) fn close(self) -> Vec<u8> {
        self.rt.block_on(self.volume.close()).unwrap().unwrap();
        contents(&self.rt, &*self.record)
    }
}

/// Number of operations visible in an image. They must be a prefix.
pub(super) fn prefix(image: &[u8]) -> u32 {
    let rt = rt();
    let device = memory(&rt, image);
    let volume = rt.block_on(Volume::open(device, OpenOptions::default())).unwrap().unwrap();
    let stamp = |n: u32| {
        let inode = rt.block_on(volume.inode(InodeNumber(n))).unwrap().unwrap();
        inode.raw.i_mtime.get().checked_sub(EPOCH)
    };
    let stamps: Vec<Option<u32>> = (FIRST..FIRST + FILES).map(stamp).collect();
    let newest = stamps.iter().copied().flatten().max().unwrap_or(0);
    for (file, stamp) in stamps.iter().enumerate() {
        let file = file as u32;
        let last = (1..=newest).rev().find(|k| k % FILES == file);
        assert_eq!(*stamp, last, "file {file} of a prefix of {newest} operations");
    }
    newest
}

/// The image after our recovery.
pub(super) fn recovered(image: &[u8]) -> Vec<u8> {
    let rt = rt();
    let device = memory(&rt, image);
    rt.block_on(replay(device.clone(), OpenOptions::default())).unwrap().unwrap();
    contents(&rt, &*device)
}

/// Writes the image to a file in its own temporary directory.
pub(super) fn file(image: &[u8]) -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    std::fs::write(&path, image).unwrap();
    (dir, path)
}

/// The image after e2fsck has replayed the journal and made its repairs.
pub(super) fn fscked(image: &[u8]) -> Vec<u8> {
    let (_dir, path) = file(image);
    let out = Command::new("e2fsck").args(["-fy"]).arg(&path).output().unwrap();
    let text = String::from_utf8_lossy(&out.stdout);
    assert!(out.status.code().is_some_and(|code| code <= 1), "{text}");
    std::fs::read(path).unwrap()
}

/// Asserts that e2fsck reports nothing.
pub(super) fn assert_clean(image: &[u8], what: &str) {
    let (_dir, path) = file(image);
    let out = Command::new("e2fsck").args(["-fn"]).arg(&path).output().unwrap();
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    let said: Vec<&str> = text
        .lines()
        .filter(|line| !line.starts_with("Pass ") && !line.contains(" files (") && !line.contains("could be"))
        .collect();
    assert!(said.is_empty() && out.status.code() == Some(0), "{what}: {text}");
}

/// The image after a mount and unmount by the kernel; `None` where mounting is not allowed.
pub(super) fn mounted(image: &[u8]) -> Option<Vec<u8>> {
    if !extant_testbed::can_mount() {
        return None;
    }
    let (dir, path) = file(image);
    drop(extant_testbed::Mount::new(&path, &dir.path().join("mnt"), "noatime"));
    Some(std::fs::read(path).unwrap())
}
