//! The bytes of any run of blocks.

use super::Image;
use super::tables::{block_bitmap, inode_bitmap};
use crate::BuildError;
use crate::layout::{MapBlocks, Piece, Shape, What};
use crate::source::Reader;
use crate::tree::Kind;
use extant_format::jbd2::{JournalIncompat, JournalSuperblock};
use extant_format::{
    ChecksumSeed, FileBlock, Group, InodeNumber, SUPERBLOCK_BYTES, VolumeBlock, write_xattr_block,
};

/// `EXT4_ORPHAN_BLOCK_MAGIC`.
const ORPHAN_MAGIC: u32 = 0x0b10_ca04;

/// State that one writer keeps between runs: the directory and the map that it last wrote, and an open directory.
pub(super) struct Emitter<'i> {
    image: &'i Image,
    reader: Reader,
    shape: Option<(InodeNumber, Shape)>,
    map: Option<(InodeNumber, MapBlocks)>,
}

impl<'i> Emitter<'i> {
    pub(super) fn new(image: &'i Image) -> Self {
        Self { image, reader: Reader::default(), shape: None, map: None }
    }

    /// Writes blocks `skip..` of a piece into all of `to`, which is a whole number of blocks; what was in it goes.
    pub(super) fn emit(&mut self, piece: &Piece, skip: u32, to: &mut [u8]) -> Result<(), BuildError> {
        let image = self.image;
        let block_len = image.params.block.byte_len();
        let start = piece.start.0 + u64::from(skip);
        if let What::Data(inode, logical) = piece.what {
            return self.data(inode, FileBlock(logical.0 + skip), to);
        }
        to.fill(0);
        let blocks = to.chunks_exact_mut(block_len);
        match piece.what {
            What::Head(group) => self.head(group, skip, to),
            What::ReservedDescriptors => {
                for (at, block) in (start..).map(VolumeBlock).zip(blocks) {
                    self.reserved_descriptors(at, block);
                }
            }
            What::ResizeMap => self.resize_map(to),
            What::BlockBitmaps(group) => block_bitmap(&image.plan, group, to),
            What::InodeBitmaps(group) => inode_bitmap(&image.plan, group, to),
            What::InodeTable(group) => self.inode_table(group, skip, to),
            What::Journal => {
                let map = image.plan.journal.as_ref().expect("planned");
                let len = (map.blocks() - map.meta_blocks()) as u32;
                let none = JournalIncompat::empty();
                // The UUID of a journal within the volume is not used, as in mke2fs.
                JournalSuperblock::new(image.params.block, len, 0, none, [0; 16], 1).write_to(to);
            }
            What::OrphanFile(_) => {
                let seed = image.inode_seed(image.contents.orphan_inode);
                for (at, block) in (start..).map(VolumeBlock).zip(blocks) {
                    orphan_block(block, at, seed);
                }
            }
            What::Attrs(first) => {
                for (n, block) in (0u32..).zip(blocks) {
                    let attrs = &image.contents.attrs.blocks[(first + skip + n) as usize];
                    let number = VolumeBlock(start + u64::from(n));
                    let seed = image.superblock().checksum_seed();
                    write_xattr_block(block, &image.block_attrs(attrs.set), attrs.references, number, seed)
                        .expect("the plan put in a block only what fits, in order");
                }
            }
            What::Map(inode, first) => {
                if self.map.as_ref().is_none_or(|(of, _)| *of != inode) {
                    self.map = Some((inode, MapBlocks::new(image.map_of(inode), &image.params)));
                }
                let (_, map) = self.map.as_ref().expect("set above");
                for (n, block) in (0u32..).zip(blocks) {
                    map.write((first + skip + n).into(), block, &image.params, image.inode_seed(inode));
                }
            }
            What::Data(..) => unreachable!("handled above"),
        }
        Ok(())
    }

    fn head(&self, group: Group, skip: u32, to: &mut [u8]) {
        let image = self.image;
        let block_len = image.params.block.byte_len();
        let mut to = to;
        if skip == 0 {
            let (first, rest) = to.split_at_mut(block_len);
            let mut sb = image.superblock().clone();
            sb.raw_mut().s_block_group_nr = (group.0 as u16).into();
            sb.update_checksum();
            // The primary superblock lies at byte 1,024; in blocks of 1 KiB that is block 1, where group 0 begins.
            let at = if group == Group(0) && block_len > 1024 { 1024 } else { 0 };
            first[at..at + SUPERBLOCK_BYTES].copy_from_slice(sb.as_bytes());
            to = rest;
        }
        let from = (skip as usize).saturating_sub(1) * block_len;
        to.copy_from_slice(&image.tables.descriptors[from..from + to.len()]);
    }

    /// A reserved descriptor block of group 0: an indirect block that lists its copies.
    fn reserved_descriptors(&self, at: VolumeBlock, block: &mut [u8]) {
        let geometry = &self.image.plan.geometry;
        let offset = at.0 - geometry.first_block(Group(0)).0;
        for (slot, group) in block.chunks_exact_mut(4).zip(self.image.backup_groups()) {
            slot.copy_from_slice(&((geometry.first_block(group).0 + offset) as u32).to_le_bytes());
        }
    }

    fn resize_map(&self, block: &mut [u8]) {
        let geometry = &self.image.plan.geometry;
        let used = geometry.sb.descriptor_blocks();
        let first = geometry.first_block(Group(0)).0 + 1 + u64::from(used);
        let pointers = block.len() / 4;
        for n in 0..geometry.reserved_gdt {
            let at = (used + n) as usize % pointers * 4;
            block[at..at + 4].copy_from_slice(&((first + u64::from(n)) as u32).to_le_bytes());
        }
    }

    fn inode_table(&self, group: Group, skip: u32, to: &mut [u8]) {
        let image = self.image;
        let size = usize::from(image.params.inode_size);
        let per_block = (image.params.block.byte_len() / size) as u32;
        let first = group.0 * image.superblock().inodes_per_group() + skip * per_block + 1;
        let numbers = (first..image.plan.end_inode.0).map(InodeNumber);
        for (number, record) in numbers.zip(to.chunks_exact_mut(size)) {
            image.write_inode(number, record);
        }
    }

    fn data(&mut self, inode: InodeNumber, logical: FileBlock, to: &mut [u8]) -> Result<(), BuildError> {
        let image = self.image;
        let contents = &image.contents;
        let offset = u64::from(logical.0) << image.params.block.log2();
        if let Some(value) = contents.value_of(inode) {
            copy_padded(&value.bytes[offset as usize..], to);
            return Ok(());
        }
        let id = contents.inodes.node_of(inode);
        match contents.inodes.tree.node(id).kind {
            Kind::Directory => {
                if self.shape.as_ref().is_none_or(|(of, _)| *of != inode) {
                    self.shape = Some((inode, Shape::of(&contents.inodes, &image.params, inode)?));
                }
                let (_, shape) = self.shape.as_ref().expect("set above");
                let seed = image.inode_seed(inode);
                to.fill(0);
                for (index, block) in
                    (logical.0..).map(FileBlock).zip(to.chunks_exact_mut(image.params.block.byte_len()))
                {
                    shape.write(&contents.inodes, &image.params, seed, index, block);
                }
                Ok(())
            }
            Kind::Symlink => {
                copy_padded(contents.inodes.tree.symlink_target(id), to);
                Ok(())
            }
            _ => self.reader.read(image.origin(), contents.inodes.entry_of(inode), offset, to),
        }
    }
}

fn copy_padded(from: &[u8], to: &mut [u8]) {
    let len = from.len().min(to.len());
    to[..len].copy_from_slice(&from[..len]);
    to[len..].fill(0);
}

/// An empty block of the orphan file: no inode numbers, a magic number and, with `metadata_csum`, a checksum of the block's
/// address and contents (kernel document: *Orphan file*).
fn orphan_block(block: &mut [u8], at: VolumeBlock, seed: Option<ChecksumSeed>) {
    let tail = block.len() - 8;
    block[tail..tail + 4].copy_from_slice(&ORPHAN_MAGIC.to_le_bytes());
    if let Some(seed) = seed {
        let sum = seed.over(&at.0.to_le_bytes()).over(&block[..tail]).0;
        block[tail + 4..].copy_from_slice(&sum.to_le_bytes());
    }
}
