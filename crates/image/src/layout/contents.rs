//! Measures the tree's contents: everything known before the volume has a size.

use super::attrs::{AttrPlan, Value, plan_attrs};
use super::block_map::{LogicalRun, indirect_blocks};
use super::dirs::Shape;
use super::inode_numbers::Inodes;
use super::params::Params;
use crate::tree::{Kind, Node, NodeId, Payload, Tree};
use crate::{BuildError, Note, quoted, settle};
use extant_format::Timestamp;
use extant_format::{DIRECT_POINTERS, FileBlock, InodeNumber, RoCompat, UintExt, indirect_capacity};
use sha2::{Digest, Sha256};

/// Device numbers have 12 and 20 bits, both in Linux and in the inode.
const DEVICE_MAJOR_MAX: u32 = 0xfff;
const DEVICE_MINOR_MAX: u32 = 0xf_ffff;

/// Refuses a device number outside Linux's range.
pub(crate) fn check_device(node: &Node, path: impl FnOnce() -> Vec<u8>) -> Result<(), BuildError> {
    match node.payload {
        Payload::Device { major, minor } if major > DEVICE_MAJOR_MAX || minor > DEVICE_MINOR_MAX => {
            Err(BuildError::DeviceNumber { path: quoted(&path()), major, minor })
        }
        _ => Ok(()),
    }
}

/// Contents of the volume, with their sizes.
pub(crate) struct Contents {
    pub(crate) inodes: Inodes,
    /// Data blocks by inode number, without holes; for a directory, its blocks.
    pub(crate) blocks: Vec<u32>,
    /// Total of these blocks, attributes, and maps as far as they do not depend on placement.
    pub(crate) all_blocks: u64,
    pub(crate) attrs: AttrPlan,
    /// First inode of attribute values; there are `attrs.values` of them.
    first_value_inode: InodeNumber,
    /// Inode of the orphan file, if there is one: the last in use.
    pub(crate) orphan_inode: InodeNumber,
}

impl Contents {
    /// Refuses contents that ext cannot hold, and enables features that they need.
    pub(crate) fn new(
        mut tree: Tree,
        params: &mut Params,
        (clamp, now): (Option<Timestamp>, Timestamp),
        notes: &mut Vec<Note>,
    ) -> Result<Self, BuildError> {
        let clamped = settle_times(&mut tree, params, clamp, now);
        let mut inodes = Inodes::number(tree, params)?;
        if let Some(first) = clamped.iter().map(|&node| inodes.number_of(node)).min() {
            let (path, range) = (inodes.quoted_path_of(first), params.time_range());
            notes.push(Note::TimeClamped { path, files: clamped.len().to_u64(), range });
        }
        leave_out_xattrs(&mut inodes, notes);
        derive_ids(&inodes, params);
        let attrs = plan_attrs(&inodes, params)?;
        let first_value_inode = inodes.end();
        let orphan_inode = InodeNumber(first_value_inode.0 + attrs.values.len().fit_u32());
        let mut contents =
            Self { inodes, blocks: Vec::new(), all_blocks: 0, attrs, first_value_inode, orphan_inode };
        contents.measure(params)?;
        Ok(contents)
    }

    fn measure(&mut self, params: &Params) -> Result<(), BuildError> {
        // The last block's number must fit in 32 bits, also where pointers reach further.
        let numbered = u64::from(u32::MAX) << params.block.log2();
        let largest = if params.has_extents() {
            numbered
        } else {
            // Without huge_file, i_blocks counts sectors in 32 bits, including the map.
            let sectors =
                if params.ro_compat.contains(RoCompat::HUGE_FILE) { u64::MAX } else { (1 << 41) - (1 << 32) };
            (indirect_capacity(params.block) << params.block.log2()).min(sectors).min(numbered)
        };
        let most_links = if params.has_extents() { 65_000 } else { 32_000 };
        let mut blocks = vec![0; self.inodes.end().0.to_usize()];
        let mut all = self.attrs.blocks.len().to_u64();
        for value in &self.attrs.values {
            all += params.block.blocks_for(value.bytes.len().to_u64());
        }
        for inode in self.inodes.all() {
            let id = self.inodes.node_of(inode);
            let node = self.inodes.tree.node(id);
            for (what, id) in [("user", node.uid), ("group", node.gid)] {
                if id == u32::MAX {
                    return Err(BuildError::NoOwner { path: self.inodes.quoted_path_of(inode), what });
                }
            }
            let links = u64::from(node.names);
            if node.kind != Kind::Directory && links > most_links {
                let path = self.inodes.quoted_path_of(inode);
                return Err(BuildError::TooManyLinks { path, links, limit: most_links });
            }
            check_device(node, || self.inodes.path_of(inode))?;
            let of = match node.kind {
                Kind::Directory => {
                    let subdirs = self.inodes.subdirectories(id);
                    if subdirs + 2 > most_links && !params.ro_compat.contains(RoCompat::DIR_NLINK) {
                        let path = self.inodes.quoted_path_of(inode);
                        return Err(BuildError::TooManyLinks { path, links: subdirs + 2, limit: most_links });
                    }
                    Shape::of(&self.inodes, params, inode)?.blocks()
                }
                Kind::File => {
                    if node.size > largest {
                        let path = self.inodes.quoted_path_of(inode);
                        return Err(BuildError::FileTooLarge { path, bytes: node.size, limit: largest });
                    }
                    self.logical_runs(params, id).iter().map(|run| run.blocks).sum()
                }
                Kind::Symlink if node.size == 0 => {
                    return Err(BuildError::TargetEmpty { path: self.inodes.quoted_path_of(inode) });
                }
                Kind::Symlink if node.size >= 60 => {
                    let limit = u64::from(params.block.bytes()) - 1;
                    if node.size > limit.min(4095) {
                        let path = self.inodes.quoted_path_of(inode);
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
            blocks[inode.0.to_usize()] = of;
            all += u64::from(of);
            if !params.has_extents() && of > DIRECT_POINTERS {
                all += indirect_blocks(&self.logical_runs_of(params, inode, of), params.block);
            }
        }
        self.blocks = blocks;
        self.all_blocks = all;
        Ok(())
    }

    /// Data blocks of an inode, including value inodes.
    pub(crate) fn data_blocks(&self, params: &Params, inode: InodeNumber) -> u32 {
        match self.value_of(inode) {
            Some(value) => params.block.blocks_for(value.bytes.len().to_u64()).fit_u32(),
            None => self.blocks[inode.0.to_usize()],
        }
    }

    /// Inode number of attribute value `index`.
    pub(crate) fn value_inode(&self, index: u32) -> InodeNumber {
        InodeNumber(self.first_value_inode.0 + index)
    }

    /// The attribute value stored in an inode; `None` for other inodes.
    pub(crate) fn value_of(&self, inode: InodeNumber) -> Option<&Value> {
        self.attrs.values.get(inode.0.checked_sub(self.first_value_inode.0)?.to_usize())
    }

    /// Runs of a tree inode that are not holes, `blocks` in total.
    pub(crate) fn logical_runs_of(
        &self,
        params: &Params,
        inode: InodeNumber,
        blocks: u32,
    ) -> Vec<LogicalRun> {
        let id = self.inodes.node_of(inode);
        if self.inodes.tree.sparse_map(id).is_some() {
            self.logical_runs(params, id)
        } else {
            vec![LogicalRun::written(FileBlock(0), blocks)]
        }
    }

    /// Runs of a file that are not holes, in file blocks.
    pub(crate) fn logical_runs(&self, params: &Params, id: NodeId) -> Vec<LogicalRun> {
        let node = self.inodes.tree.node(id);
        let Some(ranges) = self.inodes.tree.sparse_map(id) else {
            let blocks = params.block.blocks_for(node.size).fit_u32();
            let run = LogicalRun::written(FileBlock(0), blocks);
            return if blocks == 0 { Vec::new() } else { vec![run] };
        };
        let mut runs: Vec<LogicalRun> = Vec::with_capacity(ranges.len());
        for range in ranges {
            let start = (range.offset >> params.block.log2()).fit_u32();
            let end = params.block.blocks_for(range.offset + range.len).fit_u32();
            match runs.last_mut() {
                Some(last) if last.end() >= u64::from(start) => last.blocks = end - last.start.0,
                _ => runs.push(LogicalRun::written(FileBlock(start), end - start)),
            }
        }
        runs
    }
}

/// Derives UUID and hash seed, unless given, from the file listing: same input, same volume.
fn derive_ids(inodes: &Inodes, params: &mut Params) {
    if params.uuid != [0; 16] && params.hash_seed != [0; 16] {
        return;
    }
    let mut hash = Sha256::new();
    for inode in inodes.all() {
        let id = inodes.node_of(inode);
        let node = inodes.tree.node(id);
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
        hash.update(inodes.tree.symlink_target(id));
        for xattr in inodes.tree.xattrs(node.xattrs) {
            hash.update(xattr.name.len().to_u64().to_le_bytes());
            hash.update(&xattr.name);
            hash.update(xattr.value.len().to_u64().to_le_bytes());
            hash.update(&xattr.value);
        }
        if node.kind == Kind::Directory {
            for entry in inodes.tree.sorted_children(id) {
                let name = inodes.tree.entry_name(entry);
                hash.update([name.len().fit_u8()]);
                hash.update(name);
                hash.update(inodes.number_of(inodes.tree.entry_node(entry)).0.to_le_bytes());
            }
        }
    }
    let digest = hash.finalize();
    if params.uuid == [0; 16] {
        params.uuid.copy_from_slice(&digest[..16]);
        // RFC 9562: version 8 (application-defined), variant 1.
        params.uuid[6] = params.uuid[6] & 0x0f | 0x80;
        params.uuid[8] = params.uuid[8] & 0x3f | 0x80;
    }
    if params.hash_seed == [0; 16] {
        params.hash_seed.copy_from_slice(&digest[16..]);
    }
}

/// Removes attributes from the tree that the volume cannot store.
fn leave_out_xattrs(inodes: &mut Inodes, notes: &mut Vec<Note>) {
    let order: Vec<NodeId> = inodes.all().map(|inode| inodes.node_of(inode)).collect();
    let left_out = settle::leave_out_xattrs(&mut inodes.tree, order);
    notes.extend(left_out.into_iter().map(|left| {
        let path = inodes.quoted_path_of(inodes.number_of(left.first));
        left.note(path)
    }));
}

/// Clamps the tree's times, uses the latest that is not in the future as the volume's, and returns
/// the nodes whose times do not fit in an inode. Archives round times, and clocks differ: a day
/// ahead is not the future.
fn settle_times(
    tree: &mut Tree,
    params: &mut Params,
    clamp: Option<Timestamp>,
    now: Timestamp,
) -> Vec<NodeId> {
    let range = params.time_range();
    let clamped = settle::clamp_times(tree, range, clamp);
    let listed = (0..tree.node_slots().fit_u32()).map(|id| tree.node(NodeId(id)));
    let times = listed.filter(|node| node.names > 0 && !node.implied).map(|node| node.mtime);
    let created = clamp.unwrap_or_else(|| {
        let past = times.clone().filter(|time| time.seconds <= now.seconds + 24 * 60 * 60).max();
        past.or_else(|| times.clone().next().map(|_| now)).unwrap_or_default()
    });
    params.created = extant_format::Timestamp { seconds: created.seconds.clamp(0, range.1), nanos: 0 };
    for id in (0..tree.node_slots().fit_u32()).map(NodeId) {
        let node = tree.node_mut(id);
        if node.implied {
            node.mtime = params.created;
        }
    }
    clamped
}
