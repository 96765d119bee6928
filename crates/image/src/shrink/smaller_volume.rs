//! Generates the bytes of the smaller volume.

use super::ShrinkReport;
use super::arrangement::{Arrangement, NewNumbers};
use super::renumber::{self, Seeds};
use super::survey::{Found, Role, Survey, read_blocks};
use crate::BuildError;
use crate::layout::{FileMap, Geometry, MapBlocks, Params, Piece};
use crate::write::{Emit, GroupInodes, Heads, Pieces, block_bitmap, count_usage, descriptors};
use extant_format::{
    Compat, Corrupt, FileBlock, Group, Inode, InodeFlags, InodeNumber, Place, Superblock, UintExt,
    VolumeBlock, XATTR_BLOCK_HEADER_BYTES, XATTR_MAGIC, Xattrs, finish_orphan_block, set_bits,
    write_xattr_checksum,
};
use extant_fs::{Error, Volume};
use extant_rt::Rt;

/// Number of bytes of a file to read at a time.
const READ_BYTES: u64 = 1 << 20;
/// Bytes before the primary superblock, for a boot loader.
const BOOT_BYTES: usize = 1024;

/// The smaller volume.
pub(super) struct Shrunk {
    volume: Volume,
    /// The image being read, quoted.
    image: String,
    rt: Rt,
    survey: Survey,
    arrangement: Arrangement,
    sb: Superblock,
    descriptors: Vec<u8>,
    boot: Box<[u8]>,
    pieces: Vec<Piece<What>>,
}

/// Kinds of contents.
#[derive(Clone, Copy, Debug)]
pub(super) enum What {
    /// The boot block, before group 0.
    Boot,
    /// Superblock and group descriptors, at a group's start.
    Head(Group),
    /// Reserved descriptor blocks of group 0, which map their copies.
    ReservedDescriptors,
    /// The resize inode's double indirect block.
    ResizeMap,
    BlockBitmap(Group),
    InodeBitmap(Group),
    /// A group's inode table, up to the last inode in use.
    InodeTable(Group),
    /// The journal's superblock.
    Journal,
    OrphanFile,
    /// Attribute blocks of the survey, starting with this one.
    Attrs(u32),
    /// Data of an inode of the survey, starting with this file block.
    Data(u32, FileBlock),
    /// Map blocks of an inode of the survey, starting with this one.
    Map(u32, u32),
}

impl Shrunk {
    pub(super) fn new(
        volume: Volume,
        image: String,
        rt: Rt,
        survey: Survey,
        arrangement: Arrangement,
    ) -> Result<Self, BuildError> {
        let sb = superblock(volume.superblock(), &survey, &arrangement)
            .map_err(|error| BuildError::Volume { path: image.clone(), error: error.into() })?;
        let in_group = |group: Group| inodes_of(&survey, &arrangement, group);
        let bitmap = |group, to: &mut [u8]| inode_bitmap(&arrangement, group, to);
        let descriptors = descriptors(&arrangement.geometry, &sb, in_group, bitmap);
        let start = rt
            .block_on(read_blocks(&volume, VolumeBlock(0), 1))?
            .map_err(|error| BuildError::Volume { path: image.clone(), error })?;
        let boot = start[..BOOT_BYTES].into();
        let mut shrunk =
            Self { volume, image, rt, survey, arrangement, sb, descriptors, boot, pieces: Vec::new() };
        shrunk.list_pieces();
        Ok(shrunk)
    }

    pub(super) fn report(&self, before_bytes: u64) -> ShrinkReport {
        let log = self.sb.block_size().log2();
        let pairs = self.survey.inodes.iter().enumerate();
        let renumbered = pairs.filter(|(at, found)| self.arrangement.number_of(*at) != found.number);
        let own = &self.arrangement.own;
        let journal = own.journal.as_ref().map_or(0, |map| (map.blocks() - map.meta_blocks()).fit_u32());
        ShrinkReport {
            before_bytes,
            after_bytes: self.sb.blocks_count() << log,
            free_bytes: self.sb.free_blocks() << log,
            journal_blocks: [self.survey.journal.as_ref().map_or(0, |journal| journal.blocks()), journal],
            renumbered_inodes: renumbered.count().fit_u32(),
            is_written: true,
        }
    }

    /// The map of an inode, other than the resize inode, and the parameters for that kind of map.
    fn map_of(&self, index: usize) -> (FileMap, &Params) {
        let found = &self.survey.inodes[index];
        let own = match found.role {
            Role::Journal => &self.arrangement.own.journal,
            Role::OrphanFile => &self.arrangement.own.orphan_file,
            _ => return (self.arrangement.map_of(&self.survey, index), self.arrangement.params_of(found)),
        };
        (own.clone().unwrap_or_default(), &self.arrangement.params)
    }

    fn list_pieces(&mut self) {
        let mut pieces = Vec::with_capacity(self.survey.inodes.len() + 64);
        let mut push = |start: VolumeBlock, blocks: u64, what: What| {
            if blocks > 0 {
                pieces.push(Piece { start, blocks: blocks.fit_u32(), what });
            }
        };
        let (geometry, own) = (&self.arrangement.geometry, &self.arrangement.own);
        if geometry.first_block(Group(0)).0 > 0 {
            push(VolumeBlock(0), 1, What::Boot);
        }
        for (group, tables) in geometry.all_groups().zip(&geometry.tables) {
            if geometry.head_blocks(group) > 0 {
                let blocks = 1 + u64::from(geometry.sb.descriptor_blocks());
                push(geometry.first_block(group), blocks, What::Head(group));
            }
            if !geometry.is_block_uninit(group) {
                push(tables.block_bitmap, 1, What::BlockBitmap(group));
            }
            let inodes = inodes_of(&self.survey, &self.arrangement, group);
            if inodes.used > 0 || !self.sb.has_group_csum() {
                push(tables.inode_bitmap, 1, What::InodeBitmap(group));
            }
            let bytes = u64::from(inodes.end) * u64::from(self.sb.inode_size());
            push(tables.inode_table, self.sb.block_size().blocks_for(bytes), What::InodeTable(group));
        }
        if let Some(at) = own.resize_map {
            let first = geometry.first_block(Group(0)).0 + 1 + u64::from(geometry.sb.descriptor_blocks());
            push(VolumeBlock(first), geometry.reserved_gdt.into(), What::ReservedDescriptors);
            push(at, 1, What::ResizeMap);
        }
        let mut first = 0;
        for run in &self.arrangement.attrs {
            push(run.start, run.blocks, What::Attrs(first));
            first += run.blocks.fit_u32();
        }
        for (index, found) in self.survey.inodes.iter().enumerate() {
            let (map, _) = self.map_of(index);
            let index = index.fit_u32();
            let mut first = 0;
            for run in &map.meta {
                push(run.start, run.blocks, What::Map(index, first));
                first += run.blocks.fit_u32();
            }
            match found.role {
                Role::Journal => push(map.data[0].physical, 1, What::Journal),
                Role::OrphanFile => {
                    map.data.iter().for_each(|run| push(run.physical, run.blocks.into(), What::OrphanFile));
                }
                _ => {
                    for run in map.data.iter().filter(|run| !run.unwritten) {
                        push(run.physical, run.blocks.into(), What::Data(index, run.logical));
                    }
                }
            }
        }
        pieces.sort_unstable_by_key(|piece| piece.start);
        self.pieces = pieces;
    }

    fn heads(&self) -> Heads<'_> {
        Heads { geometry: &self.arrangement.geometry, sb: &self.sb, descriptors: &self.descriptors }
    }

    fn numbers(&self) -> NewNumbers<'_> {
        NewNumbers { survey: &self.survey, arrangement: &self.arrangement }
    }

    fn old_sb(&self) -> &Superblock {
        self.volume.superblock()
    }

    fn refused(&self, error: Error) -> BuildError {
        BuildError::Volume { path: self.image.clone(), error }
    }

    fn damaged(&self, corrupt: Corrupt) -> BuildError {
        self.refused(corrupt.into())
    }

    fn read_inode(&self, number: InodeNumber) -> Result<Inode, BuildError> {
        self.rt.block_on(self.volume.inode(number))?.map_err(|error| self.refused(error))
    }

    fn read(&self, start: VolumeBlock, blocks: u64) -> Result<Box<[u8]>, BuildError> {
        self.rt.block_on(read_blocks(&self.volume, start, blocks))?.map_err(|error| self.refused(error))
    }

    /// An inode's record for the smaller volume.
    fn inode(&self, index: usize) -> Result<Inode, BuildError> {
        let found = &self.survey.inodes[index];
        let mut inode = self.read_inode(found.number)?;
        let mut other_blocks = 0;
        if let Some(at) = inode.xattr_block() {
            let attr = self.survey.attr_index(at).expect("the survey has the attribute blocks of all inodes");
            inode.set_xattr_block(self.attr_block(attr.fit_u32()));
            other_blocks += 1 + self.survey.attrs[attr].value_blocks;
        }
        other_blocks += self.renumber_attributes(&mut inode)?;
        match found.role {
            Role::Unmapped => {}
            Role::InlineDirectory => {
                renumber::inline_directory(&mut inode, self.old_sb(), &self.numbers())
                    .map_err(|corrupt| self.damaged(corrupt))?;
            }
            Role::Resize => {
                let (blocks, size) = self.arrangement.geometry.resize_inode();
                inode.raw.i_block = [0; 60];
                if let Some(map) = self.arrangement.own.resize_map {
                    inode.raw.i_block[13 * 4..14 * 4].copy_from_slice(&map.0.fit_u32().to_le_bytes());
                    inode.set_size(size);
                    other_blocks += blocks;
                }
            }
            Role::Journal | Role::OrphanFile | Role::Directory | Role::Symlink | Role::Data => {
                let (map, params) = self.map_of(index);
                if matches!(found.role, Role::Journal | Role::OrphanFile) {
                    inode.set_size((map.blocks() - map.meta_blocks()) << params.block.log2());
                    let flags = match params.has_extents() {
                        true => inode.flags() | InodeFlags::EXTENTS,
                        false => inode.flags() - InodeFlags::EXTENTS,
                    };
                    inode.raw.i_flags = flags.bits().into();
                }
                // An inode that never had a map keeps its zeros.
                if found.role != Role::Data || inode.raw.i_block != [0; 60] {
                    inode.raw.i_block = [0; 60];
                    map.write_root(&mut inode.raw.i_block, params);
                }
                other_blocks += map.blocks();
            }
        }
        inode.number = self.arrangement.number_of(index);
        inode.set_blocks_512(other_blocks << (self.sb.block_size().log2() - 9), &self.sb);
        Ok(inode)
    }

    /// Renumbers the value inodes in an inode's in-inode attributes; returns the number of blocks
    /// of those values.
    fn renumber_attributes(&self, inode: &mut Inode) -> Result<u64, BuildError> {
        let place = Place::InodeXattrs(inode.number);
        let has_magic = inode.tail.first_chunk::<4>() == Some(&XATTR_MAGIC.to_le_bytes());
        if !has_magic {
            return Ok(0);
        }
        let xattrs = Xattrs::parse_inode(&inode.tail, inode.number).map_err(|e| self.damaged(e))?;
        let block = self.sb.block_size();
        let blocks = renumber::value_inodes(xattrs).map(|(_, size)| block.blocks_for(size.into())).sum();
        renumber::values(&mut inode.tail, 4, place, &self.numbers()).map_err(|e| self.damaged(e))?;
        Ok(blocks)
    }

    /// The new location of an attribute block of the survey.
    fn attr_block(&self, index: u32) -> VolumeBlock {
        let mut index = u64::from(index);
        for run in &self.arrangement.attrs {
            if index < run.blocks {
                return run.block(index);
            }
            index -= run.blocks;
        }
        panic!("as many attribute blocks were taken as were found")
    }

    fn write_attr_block(&self, index: u32, to: &mut [u8]) -> Result<(), BuildError> {
        let old = self.survey.attrs[index.to_usize()].number;
        to.copy_from_slice(&self.read(old, 1)?);
        let place = Place::XattrBlock(InodeNumber(0), old);
        renumber::values(to, XATTR_BLOCK_HEADER_BYTES, place, &self.numbers())
            .map_err(|corrupt| self.damaged(corrupt))?;
        if let Some(seed) = self.sb.checksum_seed() {
            write_xattr_checksum(to, self.attr_block(index), seed);
        }
        Ok(())
    }

    fn write_inodes(&self, group: Group, skip: u32, to: &mut [u8]) -> Result<(), BuildError> {
        let size = usize::from(self.sb.inode_size());
        let per_block = (self.sb.block_size().byte_len() / size).fit_u32();
        let first = group.0 * self.sb.inodes_per_group() + skip * per_block + 1;
        for (number, record) in (first..).map(InodeNumber).zip(to.chunks_exact_mut(size)) {
            if let Some(index) = self.arrangement.index_of(number) {
                self.inode(index)?.write_to(record, &self.sb);
            }
        }
        Ok(())
    }

    fn write_data(&self, index: usize, logical: FileBlock, to: &mut [u8]) -> Result<(), BuildError> {
        let found = &self.survey.inodes[index];
        let log = self.sb.block_size().log2();
        let runs = self.survey.runs_of(found);
        let mut at = u64::from(logical.0);
        let mut rest = &mut *to;
        while !rest.is_empty() {
            let after = runs.partition_point(|run| u64::from(run.logical.0) <= at);
            let run = &runs[after.checked_sub(1).expect("blocks were taken for the runs that were found")];
            let skip = at - u64::from(run.logical.0);
            let blocks =
                (u64::from(run.blocks) - skip).min(rest.len().to_u64() >> log).min(READ_BYTES >> log);
            let (here, behind) = rest.split_at_mut((blocks << log).to_usize());
            here.copy_from_slice(&self.read(VolumeBlock(run.physical.0 + skip), blocks)?);
            (at, rest) = (at + blocks, behind);
        }
        if found.role == Role::Directory {
            let seeds = self.directory_seeds(index, found)?;
            let (sb, numbers) = (self.old_sb(), self.numbers());
            for (n, block) in (logical.0..).zip(to.chunks_exact_mut(1 << log)) {
                renumber::directory_block(block, found.number, FileBlock(n), sb, seeds, &numbers)
                    .map_err(|corrupt| self.damaged(corrupt))?;
            }
        }
        Ok(())
    }

    fn directory_seeds(&self, index: usize, found: &Found) -> Result<Seeds, BuildError> {
        let Some(seed) = self.sb.checksum_seed() else { return Ok(None) };
        let mut inode = self.read_inode(found.number)?;
        let old = inode.checksum_seed(seed);
        inode.number = self.arrangement.number_of(index);
        Ok(Some([old, inode.checksum_seed(seed)]))
    }
}

/// State that one writer keeps between pieces: the last map it wrote.
pub(super) struct Emitter<'a> {
    of: &'a Shrunk,
    map: Option<(u32, MapBlocks)>,
}

impl Pieces for Shrunk {
    type What = What;
    type Emitter<'a> = Emitter<'a>;

    fn pieces(&self) -> &[Piece<What>] {
        &self.pieces
    }

    fn superblock(&self) -> &Superblock {
        &self.sb
    }

    fn geometry(&self) -> &Geometry {
        &self.arrangement.geometry
    }

    fn emitter(&self) -> Emitter<'_> {
        Emitter { of: self, map: None }
    }
}

impl Emit<What> for Emitter<'_> {
    fn emit(&mut self, piece: &Piece<What>, skip: u32, to: &mut [u8]) -> Result<(), BuildError> {
        let of = self.of;
        let start = piece.start.0 + u64::from(skip);
        if let What::Data(index, logical) = piece.what {
            return of.write_data(index.to_usize(), FileBlock(logical.0 + skip), to);
        }
        to.fill(0);
        let numbered = (start..).map(VolumeBlock).zip(to.chunks_exact_mut(of.sb.block_size().byte_len()));
        match piece.what {
            What::Boot => to[..BOOT_BYTES].copy_from_slice(&of.boot),
            What::Head(group) => {
                of.heads().write(group, skip, to);
                if start == 0 {
                    to[..BOOT_BYTES].copy_from_slice(&of.boot);
                }
            }
            What::ReservedDescriptors => {
                numbered.for_each(|(at, block)| of.heads().write_reserved(at, block));
            }
            What::ResizeMap => of.heads().write_resize_map(to),
            What::BlockBitmap(group) => block_bitmap(&of.arrangement.geometry, group, to),
            What::InodeBitmap(group) => inode_bitmap(&of.arrangement, group, to),
            What::InodeTable(group) => of.write_inodes(group, skip, to)?,
            What::Journal => {
                let journal = of.survey.journal.as_ref().expect("the survey found the journal's inode");
                let map = of.arrangement.own.journal.as_ref().expect("placed with its inode");
                let blocks = (map.blocks() - map.meta_blocks()).fit_u32();
                journal.resized(blocks).map_err(|corrupt| of.damaged(corrupt))?.write_to(to);
            }
            What::OrphanFile => {
                let old = InodeNumber(of.old_sb().raw().s_orphan_file_inum.get());
                let index = of.survey.index_of(old).expect("pieces of the orphan file come from its inode");
                let inode = of.inode(index)?;
                let seed = of.sb.checksum_seed().map(|seed| inode.checksum_seed(seed));
                numbered.for_each(|(at, block)| finish_orphan_block(block, at, seed));
            }
            What::Attrs(first) => {
                for (index, (_, block)) in (first + skip..).zip(numbered) {
                    of.write_attr_block(index, block)?;
                }
            }
            What::Map(index, first) => {
                let found = &of.survey.inodes[index.to_usize()];
                let (map, params) = of.map_of(index.to_usize());
                if self.map.as_ref().is_none_or(|(of, _)| *of != index) {
                    self.map = Some((index, MapBlocks::new(map, params)));
                }
                let (_, map) = self.map.as_ref().expect("set above");
                let mut inode = of.read_inode(found.number)?;
                inode.number = of.arrangement.number_of(index.to_usize());
                let seed = of.sb.checksum_seed().map(|seed| inode.checksum_seed(seed));
                for (n, (_, block)) in (first + skip..).zip(numbered) {
                    map.write(n.into(), block, params, seed);
                }
            }
            What::Data(..) => unreachable!("handled above"),
        }
        Ok(())
    }
}

fn inodes_of(survey: &Survey, arrangement: &Arrangement, group: Group) -> GroupInodes {
    let per_group = arrangement.geometry.sb.inodes_per_group();
    let mut inodes = GroupInodes::default();
    for n in 0..per_group {
        if let Some(index) = arrangement.index_of(InodeNumber(group.0 * per_group + n + 1)) {
            inodes.used += 1;
            inodes.end = n + 1;
            inodes.directories += u32::from(survey.inodes[index].role.is_directory());
        }
    }
    inodes
}

/// Fills a zeroed block with a group's inode bitmap; bits past the group's last inode are set.
fn inode_bitmap(arrangement: &Arrangement, group: Group, to: &mut [u8]) {
    let per_group = arrangement.geometry.sb.inodes_per_group();
    for n in 0..per_group {
        if arrangement.index_of(InodeNumber(group.0 * per_group + n + 1)).is_some() {
            set_bits(to, n, n + 1);
        }
    }
    set_bits(to, per_group, to.len().fit_u32() * 8);
}

/// The old superblock with the smaller volume's sizes, counts and locations.
fn superblock(old: &Superblock, survey: &Survey, arrangement: &Arrangement) -> Result<Superblock, Corrupt> {
    let Arrangement { geometry, own, params, .. } = arrangement;
    let new = geometry.sb.raw();
    let mut raw = *old.raw();
    raw.s_inodes_count = new.s_inodes_count;
    raw.s_blocks_count_lo = new.s_blocks_count_lo;
    raw.s_blocks_count_hi = new.s_blocks_count_hi;
    raw.s_inodes_per_group = new.s_inodes_per_group;
    raw.s_reserved_gdt_blocks = new.s_reserved_gdt_blocks;
    raw.s_log_groups_per_flex = new.s_log_groups_per_flex;
    raw.s_feature_compat = new.s_feature_compat;
    let mut sb = Superblock::from_raw(raw)?;
    if !(sb.compat().is_empty() && sb.incompat().is_empty() && sb.ro_compat().is_empty()) {
        sb.raise_revision();
    }
    // Keep the share of reserved blocks.
    let (before, after) = (u128::from(old.blocks_count()), u128::from(sb.blocks_count()));
    let reserved = (u128::from(old.reserved_blocks()) * after / before) as u64;
    let used = survey.inodes.len().fit_u32();
    let free_inodes = sb.inodes_count() - used;
    let moved = |number: u32| {
        let index = survey.index_of(InodeNumber(number));
        index.map_or(0, |index| arrangement.number_of(index).0).into()
    };
    let raw = sb.raw_mut();
    (raw.s_r_blocks_count_lo, raw.s_r_blocks_count_hi) =
        (reserved.low_u32().into(), (reserved >> 32).fit_u32().into());
    raw.s_lpf_ino = moved(raw.s_lpf_ino.get());
    raw.s_orphan_file_inum = moved(raw.s_orphan_file_inum.get());
    count_usage(&mut sb, geometry, own, params, free_inodes);
    debug_assert_eq!(own.journal.is_some(), sb.compat().contains(Compat::HAS_JOURNAL));
    sb.update_checksum();
    Ok(sb)
}
