//! Test support: volumes made by mke2fs, with a writer but without names, checked by e2fsck.

use crate::alloc::{Allocated, Parent, Privilege, Wanted};
use crate::inode::Orphan;
use crate::journal::{Credits, Journal, JournalOptions};
use crate::meta::{InodeCell, MetaKind, MetaStore, PhysicalRun, Tid};
use crate::volume::{orphan_file_blocks, own_blocks};
use crate::writer::{ErrorPolicy, Errors, MountFlags, Writer};
use crate::{Error, OpenOptions, Volume};
use extant_block::{FileDevice, FileOptions};
use extant_cache::blocks::Blocks;
use extant_cache::{CacheConfig, PageCache};
use extant_format::{
    Extent, ExtentNode, FileBlock, FileKind, Group, Incompat, Inode, InodeFlags, InodeNumber, Place,
    Superblock, Timestamp, write_dirent,
};
use extant_rt::{Rng, Rt};
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

pub(crate) const NOW: Timestamp = Timestamp { seconds: 1_700_000_000, nanos: 0 };

pub(crate) fn run(command: &str, args: &[&str]) -> String {
    let out = Command::new(command).args(args).stdin(Stdio::null()).output().unwrap();
    String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr)
}

pub(crate) fn have_tools() -> bool {
    let found = ["mke2fs", "e2fsck", "debugfs"].iter().all(|tool| {
        Command::new(tool).arg("-V").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok()
    });
    if !found {
        println!("skipped: e2fsprogs is not installed (apt-get install e2fsprogs)");
    }
    found
}

/// A file or directory of the test, with its blocks.
pub(crate) struct Node {
    pub(crate) cell: Arc<InodeCell>,
    pub(crate) runs: Vec<PhysicalRun>,
    pub(crate) is_dir: bool,
}

/// A volume without names.
pub(crate) struct Bed {
    pub(crate) writer: Arc<Writer>,
    /// Orphans that the volume was left with.
    pub(crate) left: Vec<Arc<InodeCell>>,
    _cache: PageCache,
    pub(crate) extents: bool,
}

impl std::ops::Deref for Bed {
    type Target = Writer;
    fn deref(&self) -> &Writer {
        &self.writer
    }
}

impl Bed {
    pub(crate) async fn open(rt: &Rt, image: &Path) -> Self {
        let options = FileOptions { write: true, ..FileOptions::default() };
        Self::over(rt, Arc::new(FileDevice::open(image, options).unwrap())).await
    }

    pub(crate) async fn over(rt: &Rt, device: Arc<dyn extant_block::Device>) -> Self {
        let volume = Volume::open(device.clone(), OpenOptions::default()).await.unwrap();
        let sb = volume.superblock();
        let blocks = Blocks::new(device, sb.block_size().byte_len(), 1 << 20);
        let store = Arc::new(MetaStore::load(rt, blocks, sb).await.unwrap());
        let options = JournalOptions {
            pinned_bytes_max: 64 << 20,
            commit_interval: None,
            fixed_time: Some(NOW.seconds),
        };
        let cache = PageCache::new(rt, CacheConfig::with_budget(1 << 20)).unwrap();
        let disk = cache.attach(store.blocks().device().clone());
        let journal = Journal::new(rt, store.clone(), &disk, None, Tid::first(1), options);
        let file = orphan_file_blocks(volume.view()).await.unwrap();
        let own = own_blocks(volume.view()).await.unwrap();
        let errors = Errors::new(ErrorPolicy::Continue);
        let (writer, left) = Writer::new(
            rt,
            store,
            journal,
            &disk,
            own,
            &file,
            Some(NOW.seconds),
            errors,
            MountFlags::default(),
        )
        .await
        .unwrap();
        Self { writer, left, _cache: cache, extents: sb.incompat().contains(Incompat::EXTENTS) }
    }

    pub(crate) async fn commit(&self) {
        self.journal.commit(self.journal.running()).await.unwrap();
    }

    /// Allocates up to four extents in memory.
    pub(crate) async fn allocate(
        &self,
        rng: &mut Rng,
        inode: InodeNumber,
        blocks_max: u64,
    ) -> Vec<Allocated> {
        let mut all = Vec::new();
        let mut goal = self.alloc.data_goal(inode, Some(FileKind::Regular));
        for _ in 0..rng.below(if blocks_max > 1 { 4 } else { 1 }) + 1 {
            let want = rng.below(blocks_max) + 1;
            let reserved = self.alloc.reserve_waiting(&self.journal, want, 0, Privilege::Ordinary).await;
            let Ok(mut reservation) = reserved else { break };
            let allocated = if rng.below(2) == 0 {
                self.alloc.growing(inode, 0, goal, want as u32, &mut reservation).await
            } else {
                self.alloc.blocks(goal, want as u32, &mut reservation).await
            };
            let allocated = allocated.expect("promised blocks are there");
            goal = allocated.run().end();
            all.push(allocated);
        }
        all
    }

    pub(crate) async fn create(&self, rng: &mut Rng, is_dir: bool) -> Option<Node> {
        let wanted = match is_dir {
            true if rng.below(2) == 0 => Wanted::TopDirectory(rng.next_u64() as u32),
            true => Wanted::Directory,
            false => Wanted::File,
        };
        let parent = Parent { inode: InodeNumber::ROOT, group: Group(0), last: None };
        let new = match self.alloc.inode_waiting(&self.journal, wanted, parent).await {
            Ok(new) => new,
            Err(Error::NoSpace) => return None,
            Err(other) => panic!("{other}"),
        };
        let blocks_max = if is_dir {
            1
        } else if self.extents {
            64
        } else {
            3
        };
        let blocks = self.allocate(rng, new.number(), blocks_max).await;
        if rng.below(8) == 0 || (is_dir && blocks.is_empty()) {
            return None; // everything is abandoned
        }
        let root = self.inodes.get(InodeNumber::ROOT).await.unwrap();
        let mut handle = self.journal.start(Credits(40)).await.unwrap();
        let runs: Vec<_> = blocks.iter().map(Allocated::run).collect();
        blocks.into_iter().for_each(|allocated| self.alloc.log(&mut handle, allocated));
        let sb = self.store.shape();
        let cell = self.inodes.create(&mut handle, &self.alloc, new, |inode| fill(inode, &runs, is_dir, sb));
        if is_dir {
            let (number, generation) = cell.read(|inode| (inode.number, inode.raw.i_generation.get()));
            let kind = MetaKind::Directory { dir: number, generation, block: FileBlock(0) };
            let block = handle.create(runs[0].start, kind);
            let mut bytes = handle.edit(&block);
            let tail = if sb.has_metadata_csum() { 12 } else { 0 };
            let len = sb.block_size().byte_len() - tail;
            write_dirent(&mut bytes[..12], number, b".", Some(FileKind::Directory));
            write_dirent(&mut bytes[12..len], InodeNumber::ROOT, b"..", Some(FileKind::Directory));
            if tail > 0 {
                extant_format::write_dirent_tail(&mut bytes, sb.checksum_seed().unwrap());
            }
            drop(bytes);
            let mut root = handle.inode(&root);
            root.raw.i_links_count = (root.links() + 1).into();
        }
        Some(Node { cell, runs, is_dir })
    }

    pub(crate) async fn delete(&self, node: Node) {
        let number = node.cell.number();
        let root = self.inodes.get(InodeNumber::ROOT).await.unwrap();
        let pins = self.alloc.pin(node.runs.iter().copied(), Place::Inode(number)).await.unwrap();
        let pin = self.alloc.pin_inode(number).await.unwrap();
        let mut handle = self.journal.start(Credits(40)).await.unwrap();
        self.orphans.add(&mut handle, &node.cell, Orphan::Unnamed);
        node.runs.iter().for_each(|&run| self.alloc.free(&mut handle, &pins, run, node.is_dir));
        self.orphans.finish(&mut handle, &node.cell);
        {
            let mut inode = handle.inode(&node.cell);
            inode.raw.i_links_count = 0.into();
            inode.raw.i_block = [0; 60];
            inode.set_size(0);
            inode.set_blocks_512(0, self.store.shape());
            inode.raw.i_dtime = (NOW.seconds as u32).into();
        }
        if node.is_dir {
            let mut root = handle.inode(&root);
            root.raw.i_links_count = (root.links() - 1).into();
        }
        self.alloc.close_window(number);
        self.alloc.free_inode(&mut handle, pin, number, node.is_dir);
        self.inodes.forget(&node.cell);
    }

    pub(crate) async fn close(self) {
        let (blocks, inodes) = self.store.groups().free_totals();
        let counts = self.alloc.statfs();
        assert_eq!((counts.free, counts.free_inodes), (blocks, inodes), "nothing is promised at the end");
        {
            let mut handle = self.journal.start(Credits(1)).await.unwrap();
            let mut sb = handle.superblock();
            sb.raw_mut().s_free_blocks_count_lo = (blocks as u32).into();
            sb.raw_mut().s_free_inodes_count = (inodes as u32).into();
        }
        self.journal.commit(self.journal.running()).await.unwrap();
        assert_eq!(self.alloc.problems().len(), 0);
    }
}

fn fill(inode: &mut Inode, runs: &[PhysicalRun], is_dir: bool, sb: &Superblock) {
    let kind = if is_dir { FileKind::Directory } else { FileKind::Regular };
    inode.raw.i_mode = (kind.mode_bits() | 0o755).into();
    inode.raw.i_links_count = (if is_dir { 2 } else { 1 }).into();
    let blocks: u64 = runs.iter().map(|run| run.blocks).sum();
    inode.set_size(blocks << sb.block_size().log2());
    inode.set_blocks_512(blocks << (sb.block_size().log2() - 9), sb);
    inode.set_times(NOW, NOW, NOW, NOW);
    if sb.incompat().contains(Incompat::EXTENTS) {
        inode.raw.i_flags = InodeFlags::EXTENTS.bits().into();
        let mut logical = 0;
        let extents = runs.iter().map(|run| {
            let extent = Extent {
                logical: FileBlock(logical),
                blocks: run.blocks as u32,
                physical: run.start,
                unwritten: false,
            };
            logical += run.blocks as u32;
            extent
        });
        ExtentNode::Leaf(extents.collect()).write_to(&mut inode.raw.i_block);
    } else {
        let blocks = runs.iter().flat_map(|run| run.start.0..run.end().0);
        for (n, block) in blocks.enumerate() {
            inode.raw.i_block[n * 4..][..4].copy_from_slice(&(block as u32).to_le_bytes());
        }
    }
}

/// Makes a volume with mke2fs over garbage, so that anything not written is noticed.
pub(crate) fn make(image: &Path, mib: usize, args: &str) {
    let mut file = std::fs::File::create(image).unwrap();
    (0..mib).for_each(|_| file.write_all(&[0xa5; 1 << 20]).unwrap());
    drop(file);
    // mke2fs only uses the last `-E`.
    let (args, extended) = args.split_once(" -E ").unwrap_or((args, "nodiscard"));
    let extended = format!("{extended},nodiscard,lazy_itable_init=1,lazy_journal_init=1");
    let mut all: Vec<&str> = args.split(' ').collect();
    let path = image.to_str().unwrap();
    all.extend(["-F", "-q", "-E", &extended, path]);
    let said = run("mke2fs", &all);
    let made = said.is_empty() || said.starts_with("128-byte inodes");
    assert!(made, "mke2fs {all:?}: {said}");
}

pub(crate) fn check_is_silent(image: &Path, what: &str) {
    let said = run("e2fsck", &["-fn", image.to_str().unwrap()]);
    let lines: Vec<_> = said.lines().filter(|line| !line.starts_with("e2fsck ")).collect();
    assert!(lines.len() == 6 && lines[..5].iter().all(|line| line.starts_with("Pass ")), "{what}: {said}");
}
