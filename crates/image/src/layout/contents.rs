//! The tree with inode numbers: all that can be known before the volume has a size.

use super::attrs::{AttrPlan, plan_attrs};
use super::dirs;
use super::map::indirect_blocks;
use super::params::Params;
use crate::tree::{EntryId, Kind, Meta, NodeId, Payload, Timestamp, Tree, XattrSetId};
use crate::{BuildError, quoted};
use extant_format::{DIRECT_POINTERS, Incompat, InodeNumber, RoCompat, indirect_capacity};
use sha2::{Digest, Sha256};

/// The first inode that is not reserved; by custom lost+found's.
pub(crate) const FIRST_INODE: u32 = 11;
const NO_ENTRY: u32 = u32::MAX;
/// Device numbers have 12 and 20 bits, in Linux and in the inode.
const DEVICE_MAJOR_MAX: u32 = 0xfff;
const DEVICE_MINOR_MAX: u32 = 0xf_ffff;

/// What the volume will hold.
pub(crate) struct Contents {
    pub(crate) tree: Tree,
    /// By inode number, from the root's: the first name that leads to it.
    entries: Vec<u32>,
    /// By node.
    numbers: Vec<u32>,
    /// Blocks of data by inode number, holes apart; of a directory its blocks.
    pub(crate) blocks: Vec<u32>,
    /// All of these together, with attributes and, as far as they do not depend on places, maps.
    pub(crate) all_blocks: u64,
    pub(crate) attrs: AttrPlan,
    /// Inodes of attribute values begin here; they are as many as `attrs.values`.
    pub(crate) first_value_inode: u32,
    /// The orphan file's inode if the volume gets one: the last in use.
    pub(crate) orphan_inode: u32,
    pub(crate) directories: u32,
}

impl Contents {
    /// Numbers the inodes: a directory's entries one after another in the order of their names, directories in depth-first
    /// order. Checks what ext cannot hold, and adds what the contents need to the features.
    pub(crate) fn new(
        mut tree: Tree,
        params: &mut Params,
        clamp: Option<Timestamp>,
    ) -> Result<Self, BuildError> {
        settle_times(&mut tree, params, clamp);
        add_lost_and_found(&mut tree, params)?;
        let mut contents = Self {
            numbers: vec![0; tree.node_slots()],
            tree,
            entries: vec![NO_ENTRY; FIRST_INODE as usize],
            blocks: Vec::new(),
            all_blocks: 0,
            attrs: AttrPlan::default(),
            first_value_inode: 0,
            orphan_inode: 0,
            directories: 1,
        };
        contents.number_all();
        contents.derive_ids(params);
        contents.attrs = plan_attrs(&contents, params)?;
        contents.measure(params)?;
        contents.first_value_inode = contents.entries.len() as u32;
        contents.orphan_inode = contents.first_value_inode + contents.attrs.values.len() as u32;
        Ok(contents)
    }

    /// Numbers of the tree's inodes: the root's, then from [`FIRST_INODE`] on.
    pub(crate) fn inodes(&self) -> impl Iterator<Item = InodeNumber> + use<> {
        std::iter::once(InodeNumber::ROOT).chain((FIRST_INODE..self.entries.len() as u32).map(InodeNumber))
    }

    pub(crate) fn node_of(&self, inode: InodeNumber) -> NodeId {
        if inode == InodeNumber::ROOT { NodeId::ROOT } else { self.tree.entry_node(self.entry_of(inode)) }
    }

    /// Whether the inode comes from the tree.
    pub(crate) fn is_from_tree(&self, inode: InodeNumber) -> bool {
        inode == InodeNumber::ROOT || (inode.0 >= FIRST_INODE && (inode.0 as usize) < self.entries.len())
    }

    pub(crate) fn entry_of(&self, inode: InodeNumber) -> EntryId {
        EntryId(self.entries[inode.0 as usize])
    }

    pub(crate) fn number_of(&self, node: NodeId) -> InodeNumber {
        InodeNumber(self.numbers[node.index()])
    }

    /// The directory that a directory lies in; the root lies in itself.
    pub(crate) fn parent_of(&self, dir: InodeNumber) -> InodeNumber {
        if dir == InodeNumber::ROOT {
            dir
        } else {
            self.number_of(self.tree.entry_parent(self.entry_of(dir)))
        }
    }

    pub(crate) fn path_of(&self, inode: InodeNumber) -> Vec<u8> {
        if inode == InodeNumber::ROOT { b"/".to_vec() } else { self.tree.entry_path(self.entry_of(inode)) }
    }

    pub(crate) fn quoted_path_of(&self, inode: InodeNumber) -> String {
        quoted(&self.path_of(inode))
    }

    fn number_all(&mut self) {
        self.numbers[NodeId::ROOT.index()] = InodeNumber::ROOT.0;
        if let Some(entry) = self.tree.lookup(NodeId::ROOT, LOST_AND_FOUND) {
            self.number(entry);
        }
        let mut pending = vec![NodeId::ROOT];
        while let Some(dir) = pending.pop() {
            let children = self.tree.sorted_children(dir);
            for &entry in &children {
                self.number(entry);
            }
            let below = children.iter().rev().map(|&e| self.tree.entry_node(e));
            pending.extend(below.filter(|&node| self.tree.node(node).kind == Kind::Directory));
        }
    }

    fn number(&mut self, entry: EntryId) {
        let node = self.tree.entry_node(entry);
        let number = &mut self.numbers[node.index()];
        if *number == 0 {
            *number = self.entries.len() as u32;
            self.entries.push(entry.0);
            self.directories += u32::from(self.tree.node(node).kind == Kind::Directory);
        }
    }

    /// Derives UUID and hash seed from the listing, where they were not given: same input, same volume.
    fn derive_ids(&self, params: &mut Params) {
        if params.uuid != [0; 16] && params.hash_seed != [0; 16] {
            return;
        }
        let mut hash = Sha256::new();
        for inode in self.inodes() {
            let id = self.node_of(inode);
            let node = self.tree.node(id);
            hash.update([node.kind as u8]);
            hash.update(inode.0.to_le_bytes());
            hash.update(node.mode.to_le_bytes());
            hash.update(node.uid.to_le_bytes());
            hash.update(node.gid.to_le_bytes());
            hash.update(node.mtime.seconds.to_le_bytes());
            hash.update(node.mtime.nanos.to_le_bytes());
            let device = match node.payload {
                Payload::Device { major, minor } => u64::from(major) << 32 | u64::from(minor),
                _ => 0,
            };
            hash.update(device.to_le_bytes());
            hash.update(node.size.to_le_bytes());
            hash.update(self.tree.symlink_target(id));
            for xattr in self.tree.xattrs(node.xattrs) {
                hash.update((xattr.name.len() as u64).to_le_bytes());
                hash.update(&xattr.name);
                hash.update((xattr.value.len() as u64).to_le_bytes());
                hash.update(&xattr.value);
            }
            if node.kind == Kind::Directory {
                for entry in self.tree.sorted_children(id) {
                    let name = self.tree.entry_name(entry);
                    hash.update([name.len() as u8]);
                    hash.update(name);
                    hash.update(self.number_of(self.tree.entry_node(entry)).0.to_le_bytes());
                }
            }
        }
        let digest = hash.finalize();
        if params.uuid == [0; 16] {
            params.uuid.copy_from_slice(&digest[..16]);
            // RFC 9562: version 8 (the application's own), variant 1.
            params.uuid[6] = params.uuid[6] & 0x0f | 0x80;
            params.uuid[8] = params.uuid[8] & 0x3f | 0x80;
        }
        if params.hash_seed == [0; 16] {
            params.hash_seed.copy_from_slice(&digest[16..]);
        }
    }

    fn measure(&mut self, params: &mut Params) -> Result<(), BuildError> {
        let largest = if params.has_extents() {
            // The last block's number must fit 32 bits.
            u64::from(u32::MAX) << params.block.log2()
        } else {
            // i_blocks counts sectors in 32 bits, maps included, where there is no huge_file.
            let sectors =
                if params.ro_compat.contains(RoCompat::HUGE_FILE) { u64::MAX } else { (1 << 41) - (1 << 32) };
            (indirect_capacity(params.block) << params.block.log2()).min(sectors)
        };
        let most_links = if params.has_extents() { 65_000 } else { 32_000 };
        let mut blocks = vec![0; self.entries.len()];
        let mut all = self.attrs.blocks.len() as u64;
        for value in &self.attrs.values {
            all += params.block.blocks_for(value.bytes.len() as u64);
        }
        for inode in self.inodes() {
            let id = self.node_of(inode);
            let node = self.tree.node(id);
            let links = u64::from(node.names);
            if node.kind != Kind::Directory && links > most_links {
                let path = self.quoted_path_of(inode);
                return Err(BuildError::TooManyLinks { path, links, limit: most_links });
            }
            if let Payload::Device { major, minor } = node.payload
                && (major > DEVICE_MAJOR_MAX || minor > DEVICE_MINOR_MAX)
            {
                return Err(BuildError::DeviceNumber { path: self.quoted_path_of(inode), major, minor });
            }
            let of = match node.kind {
                Kind::Directory => {
                    let subdirs = self.subdirectories(id);
                    if subdirs + 2 > most_links && !params.ro_compat.contains(RoCompat::DIR_NLINK) {
                        let path = self.quoted_path_of(inode);
                        return Err(BuildError::TooManyLinks { path, links: subdirs + 2, limit: most_links });
                    }
                    let shape = dirs::Shape::of(self, params, inode)?;
                    if shape.needs_large_dir() {
                        params.incompat |= Incompat::LARGEDIR;
                    }
                    shape.blocks()
                }
                Kind::File => {
                    if node.size > largest {
                        let path = self.quoted_path_of(inode);
                        return Err(BuildError::FileTooLarge { path, bytes: node.size, limit: largest });
                    }
                    self.logical_runs(params, id).iter().map(|run| run.blocks).sum()
                }
                Kind::Symlink if node.size == 0 => {
                    return Err(BuildError::TargetEmpty { path: self.quoted_path_of(inode) });
                }
                Kind::Symlink if node.size >= 60 => {
                    let limit = u64::from(params.block.bytes()) - 1;
                    if node.size > limit.min(4095) {
                        let path = self.quoted_path_of(inode);
                        return Err(BuildError::TargetTooLong {
                            path,
                            bytes: node.size,
                            limit: limit.min(4095),
                        });
                    }
                    1
                }
                _ => 0,
            };
            blocks[inode.0 as usize] = of;
            all += u64::from(of);
            if !params.has_extents() && of > DIRECT_POINTERS {
                all += indirect_blocks(&self.logical_runs_of(params, inode, of), params.block);
            }
        }
        self.blocks = blocks;
        self.all_blocks = all;
        Ok(())
    }

    /// Blocks of data of an inode of the contents, of a value's inode too.
    pub(crate) fn data_blocks(&self, params: &Params, inode: InodeNumber) -> u32 {
        match inode.0.checked_sub(self.first_value_inode) {
            Some(n) => params.block.blocks_for(self.attrs.values[n as usize].bytes.len() as u64) as u32,
            None => self.blocks[inode.0 as usize],
        }
    }

    fn subdirectories(&self, dir: NodeId) -> u64 {
        let is_dir = |e: &EntryId| self.tree.node(self.tree.entry_node(*e)).kind == Kind::Directory;
        self.tree.children(dir).filter(is_dir).count() as u64
    }

    /// What `i_links_count` says; directories past the limit say 1 (`dir_nlink`).
    pub(crate) fn links(&self, id: NodeId) -> u16 {
        let node = self.tree.node(id);
        let links =
            if node.kind == Kind::Directory { 2 + self.subdirectories(id) } else { node.names.into() };
        if links > 65_000 { 1 } else { links as u16 }
    }

    /// The parts of an inode of the tree that are not holes, of `blocks` in all.
    pub(crate) fn logical_runs_of(
        &self,
        params: &Params,
        inode: InodeNumber,
        blocks: u32,
    ) -> Vec<LogicalRun> {
        let id = self.node_of(inode);
        if self.tree.sparse_map(id).is_some() {
            self.logical_runs(params, id)
        } else {
            vec![LogicalRun { start: 0, blocks }]
        }
    }

    /// The parts of a file that are not holes, in file blocks.
    pub(crate) fn logical_runs(&self, params: &Params, id: NodeId) -> Vec<LogicalRun> {
        let node = self.tree.node(id);
        let Some(ranges) = self.tree.sparse_map(id) else {
            let blocks = params.block.blocks_for(node.size) as u32;
            return if blocks == 0 { Vec::new() } else { vec![LogicalRun { start: 0, blocks }] };
        };
        let mut runs: Vec<LogicalRun> = Vec::with_capacity(ranges.len());
        for range in ranges {
            let start = (range.offset >> params.block.log2()) as u32;
            let end = params.block.blocks_for(range.offset + range.len) as u32;
            match runs.last_mut() {
                Some(last) if last.end() >= u64::from(start) => last.blocks = end - last.start,
                _ => runs.push(LogicalRun { start, blocks: end - start }),
            }
        }
        runs
    }
}

/// A run of file blocks that hold data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LogicalRun {
    pub(crate) start: u32,
    pub(crate) blocks: u32,
}

impl LogicalRun {
    pub(crate) fn end(self) -> u64 {
        u64::from(self.start) + u64::from(self.blocks)
    }
}

pub(crate) const LOST_AND_FOUND: &[u8] = b"lost+found";

fn add_lost_and_found(tree: &mut Tree, params: &Params) -> Result<(), BuildError> {
    if let Some(entry) = tree.lookup(NodeId::ROOT, LOST_AND_FOUND) {
        if tree.node(tree.entry_node(entry)).kind != Kind::Directory {
            let text = "the source has a lost+found that is not a directory; e2fsck needs one, so rename it";
            return Err(BuildError::Options(text.into()));
        }
        return Ok(());
    }
    let meta =
        Meta { mode: 0o700, uid: 0, gid: 0, mtime: from_format(params.created), xattrs: XattrSetId::EMPTY };
    tree.put_directory(NodeId::ROOT, LOST_AND_FOUND, meta).map(drop)
}

/// Clamps the tree's times, and takes the latest as that of the volume.
fn settle_times(tree: &mut Tree, params: &mut Params, clamp: Option<Timestamp>) {
    let mut latest = None;
    for id in (0..tree.node_slots() as u32).map(NodeId) {
        let node = tree.node_mut(id);
        if node.names == 0 || node.implied {
            continue;
        }
        if let Some(clamp) = clamp {
            node.mtime = node.mtime.min(clamp);
        }
        latest = latest.max(Some(node.mtime));
    }
    let created = clamp.or(latest).unwrap_or_default();
    params.created = extant_format::Timestamp { seconds: created.seconds.max(0), nanos: 0 };
    for id in (0..tree.node_slots() as u32).map(NodeId) {
        let node = tree.node_mut(id);
        if node.implied {
            node.mtime = from_format(params.created);
        }
    }
}

fn from_format(time: extant_format::Timestamp) -> Timestamp {
    Timestamp { seconds: time.seconds, nanos: time.nanos }
}
