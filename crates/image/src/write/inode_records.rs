//! Inode records.

use super::Image;
use crate::layout::{FileMap, Shape, Value, ValueRef, file_kind};
use crate::tree::{Kind, Payload, XattrSetId};
use extant_format::{
    ChecksumSeed, DeviceNumber, FileKind, Inode, InodeFlags, InodeNumber, Timestamp, UintExt, ValueInode,
    Xattr, write_inode_xattrs,
};

impl Image {
    /// Writes an inode's record into `to`; unused reserved inodes stay zero.
    pub(super) fn write_inode(&self, number: InodeNumber, to: &mut [u8]) {
        to.fill(0);
        let contents = &self.contents;
        let inode = if contents.inodes.is_from_tree(number) {
            self.tree_inode(number)
        } else if number == InodeNumber::JOURNAL
            && let Some(map) = &self.plan.own.journal
        {
            self.system_file(number, map)
        } else if number == InodeNumber::RESIZE && self.plan.own.resize_map.is_some() {
            self.resize_inode()
        } else if number == contents.orphan_inode
            && let Some(map) = &self.plan.own.orphan_file
        {
            self.system_file(number, map)
        } else if let Some(value) = contents.value_of(number) {
            self.value_inode(number, value)
        } else if number == InodeNumber::BAD_BLOCKS {
            // The inode is marked as in use, but has no contents.
            Inode::new(number, self.superblock())
        } else {
            return;
        };
        inode.write_to(to, self.superblock());
    }

    /// Checksum seed for an inode's blocks.
    pub(super) fn inode_seed(&self, number: InodeNumber) -> Option<ChecksumSeed> {
        self.superblock().checksum_seed().map(|seed| seed.for_inode(number, 0))
    }

    fn new_inode(&self, number: InodeNumber, kind: FileKind, mode: u16, time: Timestamp) -> Inode {
        let mut inode = Inode::new(number, self.superblock());
        inode.raw.i_mode = (kind.mode_bits() | mode).into();
        inode.raw.i_links_count = 1.into();
        inode.set_times(time, time, time, time);
        inode
    }

    fn set_map(&self, inode: &mut Inode, map: &FileMap, other_blocks: u64) {
        map.write_root(&mut inode.raw.i_block, &self.params);
        if self.params.has_extents() {
            inode.raw.i_flags = (inode.flags() | InodeFlags::EXTENTS).bits().into();
        }
        self.set_blocks(inode, map.blocks() + other_blocks);
    }

    fn set_blocks(&self, inode: &mut Inode, blocks: u64) {
        inode.set_blocks_512(blocks << (self.params.block.log2() - 9), self.superblock());
    }

    fn tree_inode(&self, number: InodeNumber) -> Inode {
        let contents = &self.contents;
        let id = contents.inodes.node_of(number);
        let node = contents.inodes.tree.node(id);
        let time = Timestamp { seconds: node.mtime.seconds, nanos: node.mtime.nanos };
        let mut inode = self.new_inode(number, file_kind(node.kind), node.mode, time);
        inode.set_owner(node.uid, node.gid);
        inode.raw.i_links_count = contents.inodes.links(id).into();
        let mut other_blocks = contents.attrs.value_blocks(node.xattrs, self.params.block);
        if node.xattrs != XattrSetId::EMPTY {
            if let Some(block) = contents.attrs.block_of(number) {
                inode.set_xattr_block(self.plan.attr_block(block));
                other_blocks += 1;
            }
            let xattrs = contents.attrs.in_inode(node.xattrs, |value| self.value_ref(value));
            write_inode_xattrs(&mut inode.tail, &xattrs).expect("the plan put in the inode only what fits");
        }
        match (node.kind, node.payload) {
            (Kind::File | Kind::Directory, _) => {
                let map = self.plan.map_of(contents, &self.params, number);
                inode.set_size(node.size);
                if node.kind == Kind::Directory {
                    let blocks = contents.blocks[number.0.to_usize()];
                    inode.set_size(u64::from(blocks) << self.params.block.log2());
                    if Shape::is_indexed(&contents.inodes, &self.params, number, blocks) {
                        inode.raw.i_flags = InodeFlags::INDEX.bits().into();
                    }
                }
                self.set_map(&mut inode, &map, other_blocks);
            }
            (Kind::Symlink, _) => {
                inode.set_size(node.size);
                let target = contents.inodes.tree.symlink_target(id);
                if contents.blocks[number.0.to_usize()] == 0 {
                    inode.raw.i_block[..target.len()].copy_from_slice(target);
                    self.set_blocks(&mut inode, other_blocks);
                } else {
                    self.set_map(&mut inode, &self.plan.map_of(contents, &self.params, number), other_blocks);
                }
            }
            (Kind::CharDevice | Kind::BlockDevice, Payload::Device { major, minor }) => {
                inode.set_device(DeviceNumber { major, minor });
                self.set_blocks(&mut inode, other_blocks);
            }
            _ => self.set_blocks(&mut inode, other_blocks),
        }
        inode
    }

    /// The journal and the orphan file.
    fn system_file(&self, number: InodeNumber, map: &FileMap) -> Inode {
        let mut inode = self.new_inode(number, FileKind::Regular, 0o600, self.params.created);
        inode.set_size((map.blocks() - map.meta_blocks()) << self.params.block.log2());
        self.set_map(&mut inode, map, 0);
        inode
    }

    /// The resize inode. Below one double indirect block, its map lists the reserved descriptor
    /// blocks of group 0 as indirect blocks that list their copies.
    fn resize_inode(&self) -> Inode {
        let mut inode = self.new_inode(InodeNumber::RESIZE, FileKind::Regular, 0o600, self.params.created);
        let (blocks, size) = self.plan.geometry.resize_inode();
        inode.set_size(size);
        let map = self.plan.own.resize_map.expect("asked for volumes that have it only");
        inode.raw.i_block[13 * 4..14 * 4].copy_from_slice(&map.0.fit_u32().to_le_bytes());
        self.set_blocks(&mut inode, blocks);
        inode
    }

    fn value_inode(&self, number: InodeNumber, value: &Value) -> Inode {
        let mut inode = self.new_inode(number, FileKind::Regular, 0o600, Timestamp::default());
        inode.raw.i_flags = InodeFlags::EA_INODE.bits().into();
        inode.set_size(value.bytes.len().to_u64());
        self.set_map(&mut inode, &self.plan.map_of(&self.contents, &self.params, number), 0);
        let of = ValueInode { hash: self.value_hash(&value.bytes), references: value.references };
        let (atime, ctime, version) = of.to_fields();
        inode.raw.i_atime = atime.into();
        inode.raw.i_ctime = ctime.into();
        inode.raw.i_version_lo = version.into();
        inode
    }

    fn value_hash(&self, bytes: &[u8]) -> u32 {
        // Without metadata_csum the seed still comes from the UUID.
        let seed = self.superblock().checksum_seed();
        ValueInode::hash_of(bytes, seed.unwrap_or_else(|| ChecksumSeed::from_uuid(&self.params.uuid)))
    }

    /// Reference of an attribute entry to value `index`.
    pub(super) fn value_ref(&self, index: u32) -> ValueRef {
        let value = &self.contents.attrs.values[index.to_usize()];
        ValueRef {
            inode: self.contents.value_inode(index),
            size: value.bytes.len().fit_u32(),
            hash: self.value_hash(&value.bytes),
        }
    }

    /// The attributes of an attribute block.
    pub(super) fn block_attrs(&self, set: XattrSetId) -> Vec<Xattr<'_>> {
        self.contents.attrs.in_block(set, |value| self.value_ref(value))
    }
}
