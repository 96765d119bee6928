//! Generates the bytes of any run of blocks.

use super::Image;
use super::pump::{Emit, Pieces};
use super::tables::{block_bitmap, inode_bitmap};
use crate::BuildError;
use crate::layout::{Geometry, MapBlocks, Piece, Shape, What};
use crate::source::Reader;
use crate::tree::Kind;
use extant_format::jbd2::{JournalIncompat, JournalSuperblock};
use extant_format::{
    FileBlock, Group, InodeNumber, Superblock, UintExt, VolumeBlock, finish_orphan_block, write_xattr_block,
};

/// State that one writer keeps between runs: the last directory and map it wrote, and an open
/// directory.
pub(crate) struct Emitter<'i> {
    image: &'i Image,
    reader: Reader,
    shape: Option<(InodeNumber, Shape)>,
    map: Option<(InodeNumber, MapBlocks)>,
}

impl<'i> Emitter<'i> {
    fn new(image: &'i Image) -> Self {
        Self { image, reader: Reader::default(), shape: None, map: None }
    }
}

impl Pieces for Image {
    type What = What;
    type Emitter<'a> = Emitter<'a>;

    fn pieces(&self) -> &[Piece] {
        &self.plan.pieces
    }

    fn superblock(&self) -> &Superblock {
        Self::superblock(self)
    }

    fn geometry(&self) -> &Geometry {
        &self.plan.geometry
    }

    fn emitter(&self) -> Emitter<'_> {
        Emitter::new(self)
    }
}

impl Emit<What> for Emitter<'_> {
    fn emit(&mut self, piece: &Piece, skip: u32, to: &mut [u8]) -> Result<(), BuildError> {
        let image = self.image;
        let block_len = image.params.block.byte_len();
        let start = piece.start.0 + u64::from(skip);
        if let What::Data(inode, logical) = piece.what {
            return self.data(inode, FileBlock(logical.0 + skip), to);
        }
        to.fill(0);
        let blocks = to.chunks_exact_mut(block_len);
        match piece.what {
            What::Head(group) => image.heads().write(group, skip, to),
            What::ReservedDescriptors => {
                for (at, block) in (start..).map(VolumeBlock).zip(blocks) {
                    image.heads().write_reserved(at, block);
                }
            }
            What::ResizeMap => image.heads().write_resize_map(to),
            What::BlockBitmaps(group) => block_bitmap(&image.plan.geometry, group, to),
            What::InodeBitmaps(group) => inode_bitmap(&image.plan, group, to),
            What::InodeTable(group) => self.inode_table(group, skip, to),
            What::Journal => {
                let map = image.plan.own.journal.as_ref().expect("planned");
                let len = (map.blocks() - map.meta_blocks()).fit_u32();
                let none = JournalIncompat::empty();
                // The UUID of an internal journal is unused, as in mke2fs.
                JournalSuperblock::new(image.params.block, len, 0, none, [0; 16], 1).write_to(to);
            }
            What::OrphanFile(_) => {
                let seed = image.inode_seed(image.contents.orphan_inode);
                for (at, block) in (start..).map(VolumeBlock).zip(blocks) {
                    finish_orphan_block(block, at, seed);
                }
            }
            What::Attrs(first) => {
                for (n, block) in (0u32..).zip(blocks) {
                    let attrs = &image.contents.attrs.blocks[(first + skip + n).to_usize()];
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
}

impl Emitter<'_> {
    fn inode_table(&self, group: Group, skip: u32, to: &mut [u8]) {
        let image = self.image;
        let size = usize::from(image.params.inode_size);
        let per_block = (image.params.block.byte_len() / size).fit_u32();
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
            copy_padded(&value.bytes[offset.to_usize()..], to);
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
