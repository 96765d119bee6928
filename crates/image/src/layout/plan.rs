//! Location of every block on a volume of known size.

use super::block_map::{FileMap, LogicalRun};
use super::contents::Contents;
use super::free_runs::{Run, Short};
use super::geometry::{Geometry, Misfit};
use super::own::Own;
use super::params::Params;
use crate::tree::Kind;
use extant_format::{FileBlock, Group, InodeNumber, UintExt, VolumeBlock};

/// A complete plan.
pub(crate) struct Plan {
    pub(crate) geometry: Geometry,
    /// One past the last inode in use.
    pub(crate) end_inode: InodeNumber,
    /// By inode number: the start of the inode's only run, or [`MAPPED`] plus an index into the
    /// maps; 0 for no blocks.
    places: Vec<u64>,
    maps: Vec<FileMap>,
    pub(crate) own: Own,
    pub(crate) attr_blocks: Vec<Run>,
    /// Pieces to write, in address order.
    pub(crate) pieces: Vec<Piece>,
}

const MAPPED: u64 = 1 << 63;

/// A run of blocks with one kind of contents.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece<W = What> {
    pub(crate) start: VolumeBlock,
    pub(crate) blocks: u32,
    pub(crate) what: W,
}

/// Kinds of contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    /// Superblock and group descriptors, at a group's start.
    Head(Group),
    /// Reserved descriptor blocks of group 0, which map their copies.
    ReservedDescriptors,
    /// The resize inode's double indirect block.
    ResizeMap,
    /// Block bitmaps, starting with this group's.
    BlockBitmaps(Group),
    /// Inode bitmaps, starting with this group's.
    InodeBitmaps(Group),
    /// The used part of a group's inode table.
    InodeTable(Group),
    /// The journal's superblock.
    Journal,
    /// Blocks of the orphan file, starting with this one.
    OrphanFile(FileBlock),
    /// Attribute blocks, starting with this one.
    Attrs(u32),
    /// Data of an inode, starting with this file block.
    Data(InodeNumber, FileBlock),
    /// Blocks of an inode's map, starting with this one.
    Map(InodeNumber, u32),
}

impl Plan {
    /// Lays out the contents on a volume of `blocks` blocks with at least `inodes` inodes.
    pub(crate) fn lay_out(
        contents: &Contents,
        params: &Params,
        blocks: u64,
        inodes: u64,
    ) -> Result<Self, Misfit> {
        let geometry = Geometry::of(params, blocks, inodes)?;
        let has_orphan_file = params.orphan_blocks(blocks).is_some();
        let mut plan = Self {
            geometry,
            end_inode: InodeNumber(contents.orphan_inode.0 + u32::from(has_orphan_file)),
            places: vec![0; contents.orphan_inode.0.to_usize()],
            maps: Vec::new(),
            own: Own::default(),
            attr_blocks: Vec::new(),
            pieces: Vec::new(),
        };
        plan.own = Own::place(&mut plan.geometry, params, blocks)?;
        if let Some(missing) = contents.all_blocks.checked_sub(plan.geometry.space.free() + 1) {
            return Err(Short { missing: missing + 1 }.into());
        }
        plan.place_names(contents, params)?;
        plan.place_data(contents, params)?;
        Ok(plan)
    }

    /// Places directories, attributes and long symbolic links together, so that a walk of the
    /// volume reads one area.
    fn place_names(&mut self, contents: &Contents, params: &Params) -> Result<(), Short> {
        for inode in contents.inodes.all() {
            let kind = contents.inodes.tree.node(contents.inodes.node_of(inode)).kind;
            let blocks = contents.blocks[inode.0.to_usize()];
            if matches!(kind, Kind::Directory | Kind::Symlink) && blocks > 0 {
                self.place_runs(inode, &[LogicalRun::written(FileBlock(0), blocks)], params)?;
            }
        }
        self.attr_blocks = self.geometry.space.take_runs(contents.attrs.blocks.len().to_u64())?;
        Ok(())
    }

    fn place_data(&mut self, contents: &Contents, params: &Params) -> Result<(), Short> {
        for inode in contents.inodes.all() {
            let id = contents.inodes.node_of(inode);
            let blocks = contents.blocks[inode.0.to_usize()];
            if contents.inodes.tree.node(id).kind != Kind::File || blocks == 0 {
                continue;
            }
            self.place_runs(inode, &contents.logical_runs_of(params, inode, blocks), params)?;
        }
        for (n, value) in (0..).zip(&contents.attrs.values) {
            let blocks = params.block.blocks_for(value.bytes.len().to_u64()).fit_u32();
            let runs = [LogicalRun::written(FileBlock(0), blocks)];
            self.place_runs(contents.value_inode(n), &runs, params)?;
        }
        Ok(())
    }

    fn place_runs(&mut self, inode: InodeNumber, runs: &[LogicalRun], params: &Params) -> Result<(), Short> {
        let map = FileMap::take(&mut self.geometry.space, runs, params)?;
        let place = match (&map.data[..], map.meta.is_empty()) {
            ([], _) => 0,
            ([run], true) if run.logical == FileBlock(0) => run.physical.0,
            _ => {
                self.maps.push(map);
                MAPPED | (self.maps.len().to_u64() - 1)
            }
        };
        self.places[inode.0.to_usize()] = place;
        Ok(())
    }

    /// The map of an inode.
    pub(crate) fn map_of(&self, contents: &Contents, params: &Params, inode: InodeNumber) -> FileMap {
        match self.places[inode.0.to_usize()] {
            0 => FileMap::default(),
            place if place & MAPPED != 0 => self.maps[(place & !MAPPED).to_usize()].clone(),
            place => FileMap::single(VolumeBlock(place), contents.data_blocks(params, inode)),
        }
    }

    /// The volume block of attribute block `index`.
    pub(crate) fn attr_block(&self, index: u32) -> VolumeBlock {
        let mut index = u64::from(index);
        for run in &self.attr_blocks {
            if index < run.blocks {
                return run.block(index);
            }
            index -= run.blocks;
        }
        panic!("as many attribute blocks were taken as were counted")
    }

    /// Lists the pieces to write.
    pub(crate) fn list_pieces(&mut self, contents: &Contents, params: &Params) {
        let mut pieces = Vec::with_capacity(self.places.len() + 64);
        let mut push = |start: VolumeBlock, blocks: u64, what: What| {
            if blocks > 0 {
                pieces.push(Piece { start, blocks: blocks.fit_u32(), what });
            }
        };
        let geometry = &self.geometry;
        let in_use = u64::from(self.used_inodes());
        let per_group = u64::from(geometry.sb.inodes_per_group());
        for (group, tables) in geometry.all_groups().zip(&geometry.tables) {
            if geometry.head_blocks(group) > 0 {
                // The boot block, or part of one, precedes the superblock of group 0.
                let start = geometry.first_block(group);
                push(start, 1 + u64::from(geometry.sb.descriptor_blocks()), What::Head(group));
            }
            if !geometry.is_block_uninit(group) {
                push(tables.block_bitmap, 1, What::BlockBitmaps(group));
            }
            if !self.is_inode_uninit(group) {
                push(tables.inode_bitmap, 1, What::InodeBitmaps(group));
            }
            let used = in_use.saturating_sub(u64::from(group.0) * per_group).min(per_group);
            let bytes = used * u64::from(params.inode_size);
            push(tables.inode_table, params.block.blocks_for(bytes), What::InodeTable(group));
        }
        if let Some(at) = self.own.resize_map {
            let first = geometry.first_block(Group(0)).0 + 1 + u64::from(geometry.sb.descriptor_blocks());
            push(VolumeBlock(first), geometry.reserved_gdt.into(), What::ReservedDescriptors);
            push(at, 1, What::ResizeMap);
        }
        let mut push_map = |map: &FileMap, inode: InodeNumber| {
            let mut index = 0;
            for run in &map.meta {
                push(run.start, run.blocks, What::Map(inode, index));
                index += run.blocks.fit_u32();
            }
        };
        if let Some(map) = &self.own.journal {
            push_map(map, InodeNumber::JOURNAL);
        }
        if let Some(map) = &self.own.orphan_file {
            push_map(map, contents.orphan_inode);
        }
        for (inode, place) in (0..).map(InodeNumber).zip(&self.places) {
            if place & MAPPED != 0 {
                push_map(&self.maps[(place & !MAPPED).to_usize()], inode);
            }
        }
        if let Some(map) = &self.own.journal {
            push(map.data[0].physical, 1, What::Journal);
        }
        for run in self.own.orphan_file.iter().flat_map(|map| &map.data) {
            push(run.physical, run.blocks.into(), What::OrphanFile(run.logical));
        }
        let mut index = 0;
        for run in &self.attr_blocks {
            push(run.start, run.blocks, What::Attrs(index));
            index += run.blocks.fit_u32();
        }
        for (inode, &place) in (0..).map(InodeNumber).zip(&self.places) {
            if place & MAPPED != 0 {
                for run in &self.maps[(place & !MAPPED).to_usize()].data {
                    push(run.physical, run.blocks.into(), What::Data(inode, run.logical));
                }
            } else if place != 0 {
                let blocks = contents.data_blocks(params, inode);
                push(VolumeBlock(place), blocks.into(), What::Data(inode, FileBlock(0)));
            }
        }
        pieces.sort_unstable_by_key(|piece| piece.start);
        self.pieces = pieces;
    }

    /// Number of inodes in use, which are always the first ones.
    pub(crate) fn used_inodes(&self) -> u32 {
        self.end_inode.0 - 1
    }

    /// Whether a group's inode bitmap is left uninitialized because none of its inodes is in use.
    pub(crate) fn is_inode_uninit(&self, group: Group) -> bool {
        let first = u64::from(group.0) * u64::from(self.geometry.sb.inodes_per_group()) + 1;
        self.geometry.sb.has_group_csum() && first >= u64::from(self.end_inode.0)
    }
}
