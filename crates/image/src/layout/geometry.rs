//! Placement of fixed metadata: superblocks, descriptors, bitmaps, inode tables.

use super::free_runs::{Run, Short, Space};
use super::params::Params;
use crate::BuildError;
use extant_format::{
    BlockSize, Compat, Group, Incompat, RawSuperblock, STATE_VALID, SUPERBLOCK_MAGIC, Superblock, UintExt,
    VolumeBlock,
};

/// log2 of the number of groups whose bitmaps and tables are stored together with `flex_bg`;
/// mke2fs's default.
const FLEX_LOG: u32 = 4;

/// A group's bitmaps and inode table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tables {
    pub(crate) block_bitmap: VolumeBlock,
    pub(crate) inode_bitmap: VolumeBlock,
    pub(crate) inode_table: VolumeBlock,
}

/// Layout of a volume with a given number of blocks and inodes.
#[derive(Clone, Debug)]
pub(crate) struct Geometry {
    /// Counts, sizes and features; fields that depend on the contents are filled in later.
    pub(crate) sb: Superblock,
    pub(crate) tables: Vec<Tables>,
    pub(crate) table_blocks: u32,
    pub(crate) reserved_gdt: u32,
    /// Blocks of fixed metadata.
    pub(crate) overhead: u64,
    /// The remaining free blocks.
    pub(crate) space: Space,
}

/// Why a volume of this size cannot be laid out.
#[derive(Debug)]
pub(crate) enum GeometryError {
    /// The last group is too small for its metadata. Totals of `at_least` blocks, or of `at_most`,
    /// would work.
    Tail {
        at_most: u64,
        at_least: u64,
    },
    /// The tables do not fit.
    Full,
    Refused(BuildError),
}

/// Why a number of blocks does not work.
#[derive(Debug)]
pub(crate) enum Misfit {
    Short(Short),
    Geometry(GeometryError),
    /// A group cannot hold that many inodes; more groups are needed.
    Inodes {
        needed: u64,
    },
}

impl From<Short> for Misfit {
    fn from(short: Short) -> Self {
        Self::Short(short)
    }
}

impl From<GeometryError> for Misfit {
    fn from(error: GeometryError) -> Self {
        Self::Geometry(error)
    }
}

/// Maximum inodes per group: limited by the bits of its bitmap, and by 16-bit counters.
pub(crate) fn max_inodes_per_group(params: &Params) -> u32 {
    let per_block = params.block.bytes() / u32::from(params.inode_size);
    (params.block.bytes() * 8).min(65_536 - per_block) & !7
}

/// Inodes per group for `groups` to hold at least `inodes`, rounded up to whole table blocks.
fn inodes_per_group(params: &Params, inodes: u64, groups: u64) -> Option<u32> {
    let per_block = u64::from(params.block.bytes() / u32::from(params.inode_size)).max(8);
    let wanted = inodes.div_ceil(groups).max(1).next_multiple_of(per_block);
    u32::try_from(wanted)
        .ok()
        .filter(|&n| n <= max_inodes_per_group(params) && u64::from(n) * groups <= u64::from(u32::MAX))
}

pub(crate) fn first_data_block(block: BlockSize) -> VolumeBlock {
    VolumeBlock(u64::from(block.bytes() == 1024))
}

pub(crate) fn group_count(params: &Params, blocks: u64) -> u64 {
    blocks.saturating_sub(first_data_block(params.block).0).div_ceil(params.group_blocks.into()).max(1)
}

impl Geometry {
    /// A layout of `blocks` blocks with at least `inodes` inodes.
    pub(crate) fn of(params: &Params, blocks: u64, inodes: u64) -> Result<Self, Misfit> {
        let groups = group_count(params, blocks);
        let per_group = inodes_per_group(params, inodes, groups).ok_or(Misfit::Inodes { needed: inodes })?;
        Ok(Self::new(params, blocks, per_group)?)
    }

    fn new(params: &Params, blocks: u64, inodes_per_group: u32) -> Result<Self, GeometryError> {
        let sb = skeleton(params, blocks, inodes_per_group).map_err(GeometryError::Refused)?;
        let table_bytes = u64::from(inodes_per_group) * u64::from(params.inode_size);
        let mut geometry = Self {
            reserved_gdt: u32::from(sb.raw().s_reserved_gdt_blocks.get()),
            sb,
            tables: Vec::new(),
            table_blocks: params.block.blocks_for(table_bytes).fit_u32(),
            overhead: 0,
            space: Space::between(VolumeBlock(0), VolumeBlock(0), &[]),
        };
        geometry.place()?;
        Ok(geometry)
    }

    /// Number of groups.
    pub(crate) fn groups(&self) -> u32 {
        self.sb.group_count()
    }

    /// All groups, in order.
    pub(crate) fn all_groups(&self) -> impl DoubleEndedIterator<Item = Group> + use<> {
        (0..self.groups()).map(Group)
    }

    pub(crate) fn first_block(&self, group: Group) -> VolumeBlock {
        self.sb.group_first_block(group)
    }

    /// Blocks of superblock, descriptors and reserved descriptors at the start of a group.
    pub(crate) fn head_blocks(&self, group: Group) -> u64 {
        if self.sb.has_backup(group) {
            1 + u64::from(self.sb.descriptor_blocks()) + u64::from(self.reserved_gdt)
        } else {
            0
        }
    }

    /// Groups, other than the first, with backups of superblock and descriptors.
    pub(crate) fn backup_groups(&self) -> impl Iterator<Item = Group> + '_ {
        self.all_groups().skip(1).filter(|&group| self.head_blocks(group) > 0)
    }

    /// Blocks, and size in bytes, of the resize inode, whose map lists the reserved descriptor
    /// blocks and all their copies.
    pub(crate) fn resize_inode(&self) -> (u64, u64) {
        let block = self.sb.block_size();
        let pointers = u64::from(block.bytes()) / 4;
        let copies = 1 + self.backup_groups().count().to_u64();
        let blocks = 1 + u64::from(self.reserved_gdt) * copies;
        (blocks, (pointers * pointers + pointers + 12) << block.log2())
    }

    /// Whether a group's block bitmap is left uninitialized because only its own metadata is in
    /// use.
    pub(crate) fn is_block_uninit(&self, group: Group) -> bool {
        if !self.sb.has_group_csum() || group.0 + 1 == self.groups() {
            return false;
        }
        let blocks = u64::from(self.sb.group_blocks(group));
        self.free_in(group) == blocks - self.head_blocks(group)
    }

    /// Free blocks of a group.
    pub(crate) fn free_in(&self, group: Group) -> u64 {
        self.free_runs_in(group).map(|run| run.blocks).sum()
    }

    /// Free runs of a group.
    pub(crate) fn free_runs_in(&self, group: Group) -> impl Iterator<Item = Run> + '_ {
        let blocks = self.sb.group_blocks(group).into();
        let group = Run { start: self.first_block(group), blocks };
        self.space.runs_within(group.start, group.end())
    }

    /// Zones that resize2fs may claim when the volume grows, widest choice first; each list is
    /// sorted and disjoint.
    ///
    /// If the reserved blocks do not suffice for the group descriptors, resize2fs 1.47 moves
    /// whatever follows them: bitmaps and inode tables go after the other tables, data goes
    /// elsewhere. Two things must not move. The checksum of an orphan-file block covers the block's
    /// location and is not updated, so the volume would no longer mount. And if the resize inode's
    /// map moves past the old end of the volume, resize2fs stops half-way ("Illegal doubly indirect
    /// block").
    pub(crate) fn growing_heads(&self) -> Vec<Vec<Run>> {
        let per_group = u64::from(self.sb.blocks_per_group());
        let groups_max = (1u64 << 32).div_ceil(per_group);
        let descriptors_max = groups_max.div_ceil(self.sb.descriptors_per_block().into());
        // More than half a group of descriptors would mean larger blocks.
        let widest = descriptors_max.min(per_group / 2);
        let per_flex = self.groups_per_flex();
        let narrower = |flex_groups| (0..6).map(move |n| self.heads_grown_by(widest >> n, flex_groups));
        narrower(per_flex).chain(narrower(per_flex.min(self.groups()))).collect()
    }

    /// The zones if every copy of the descriptors grows by `growth` blocks and each flex group
    /// holds the tables of `flex_groups` groups.
    fn heads_grown_by(&self, growth: u64, flex_groups: u32) -> Vec<Run> {
        let per_flex = self.groups_per_flex();
        let table_blocks = u64::from(self.table_blocks);
        let heads: Vec<Run> = self
            .all_groups()
            .filter(|&group| self.head_blocks(group) > 0)
            .map(|group| Run { start: self.first_block(group), blocks: self.head_blocks(group) + growth })
            .collect();
        let mut zones = heads.clone();
        for first in (0..self.groups()).step_by(per_flex.to_usize()) {
            if per_flex == 1 && self.head_blocks(Group(first)) == 0 {
                continue;
            }
            let start = self.tables[first.to_usize()].block_bitmap;
            // Groups added later to the last flex group have their tables here too.
            let tables = u64::from(flex_groups) * (table_blocks + 2);
            let mut zone = Run { start, blocks: tables + growth.next_multiple_of(table_blocks) };
            for head in heads.iter().filter(|head| head.start > start) {
                if head.start < zone.end() {
                    zone.blocks += head.blocks;
                }
            }
            zones.push(zone);
        }
        zones.sort_unstable_by_key(|zone| zone.start);
        zones.dedup_by(|next, zone| {
            let overlaps = next.start <= zone.end();
            if overlaps {
                *zone = Run::between(zone.start, zone.end().max(next.end()));
            }
            overlaps
        });
        zones
    }

    fn groups_per_flex(&self) -> u32 {
        if self.sb.incompat().contains(Incompat::FLEX_BG) { 1 << FLEX_LOG } else { 1 }
    }

    fn place(&mut self) -> Result<(), GeometryError> {
        let groups = self.groups();
        let per_flex = self.groups_per_flex();
        let end = VolumeBlock(self.sb.blocks_count());
        let last = Group(groups - 1);
        let mut tail = self.head_blocks(last);
        if last.0.is_multiple_of(per_flex) {
            tail += 2 + u64::from(self.table_blocks);
        }
        let first = self.first_block(last);
        if end.0 - first.0 <= tail {
            return Err(GeometryError::Tail { at_most: first.0, at_least: first.0 + tail + 1 });
        }
        let mut used = Vec::new();
        for group in self.all_groups() {
            let blocks = self.head_blocks(group);
            if blocks > 0 {
                used.push(Run { start: self.first_block(group), blocks });
            }
        }
        self.tables.reserve(groups.to_usize());
        for flex in (0..groups).step_by(per_flex.to_usize()) {
            let members = per_flex.min(groups - flex);
            let mut at = self.first_block(Group(flex));
            let mut take = |blocks: u64| {
                let run = Run { start: self.pass_heads(at, blocks), blocks };
                at = run.end();
                used.push(run);
                run
            };
            let block_bitmaps = take(members.into());
            let inode_bitmaps = take(members.into());
            let tables: Vec<_> = (0..members).map(|_| take(self.table_blocks.into())).collect();
            if at > end
                || (per_flex == 1
                    && at.0 > self.first_block(Group(flex)).0 + u64::from(self.sb.blocks_per_group()))
            {
                return Err(GeometryError::Full);
            }
            for (n, inode_table) in (0u64..).zip(tables) {
                self.tables.push(Tables {
                    block_bitmap: block_bitmaps.block(n),
                    inode_bitmap: inode_bitmaps.block(n),
                    inode_table: inode_table.start,
                });
            }
        }
        used.sort_unstable_by_key(|run| run.start);
        if used.windows(2).any(|pair| pair[0].end() > pair[1].start) {
            return Err(GeometryError::Full); // a flex group's tables extend into the next
        }
        self.overhead = used.iter().map(|run| run.blocks).sum();
        self.space = Space::between(self.sb.first_data_block(), end, &used);
        Ok(())
    }

    /// The first location at or after `at` where `blocks` blocks avoid superblocks and descriptors.
    fn pass_heads(&self, at: VolumeBlock, blocks: u64) -> VolumeBlock {
        let per_group = u64::from(self.sb.blocks_per_group());
        let group_of = |block: VolumeBlock| ((block.0 - self.sb.first_data_block().0) / per_group).fit_u32();
        let mut run = Run { start: at, blocks };
        'again: loop {
            let last = group_of(run.block(blocks - 1)).min(self.groups() - 1);
            for group in (group_of(run.start)..=last).map(Group) {
                let head = Run { start: self.first_block(group), blocks: self.head_blocks(group) };
                if head.blocks > 0 && run.start < head.end() && head.start < run.end() {
                    run.start = head.end();
                    continue 'again;
                }
            }
            return run.start;
        }
    }
}

fn skeleton(params: &Params, blocks: u64, inodes_per_group: u32) -> Result<Superblock, BuildError> {
    let refuse = |text: String| Err(BuildError::Options(text));
    if blocks > u64::from(u32::MAX) && !params.incompat.contains(Incompat::BIT64) {
        return refuse("a volume of 2^32 blocks or more needs 64bit; use larger blocks or add it".into());
    }
    let per_group = params.group_blocks;
    let groups = group_count(params, blocks);
    let Some(inodes) = u32::try_from(groups * u64::from(inodes_per_group)).ok() else {
        return refuse("the volume would have 2^32 inodes or more; ask for more bytes per inode".into());
    };
    let desc_size: u16 = if params.incompat.contains(Incompat::BIT64) { 64 } else { 0 };
    let per_block = u64::from(params.block.bytes()) / u64::from(if desc_size == 0 { 32 } else { desc_size });
    let mut compat = params.compat;
    if blocks > u64::from(u32::MAX) {
        compat -= Compat::RESIZE_INODE; // its map has 32-bit pointers
    }
    if params.journal_blocks(blocks).is_none() {
        compat -= Compat::HAS_JOURNAL | Compat::ORPHAN_FILE;
    }
    let reserved_gdt = if compat.contains(Compat::RESIZE_INODE) {
        // Reserve descriptors for a volume 1,024 times as large, up to what one indirect block can
        // map.
        let most = u64::from(u32::MAX).min(blocks.saturating_mul(1024));
        let wanted = (most - first_data_block(params.block).0).div_ceil(per_group.into()).div_ceil(per_block);
        (wanted - groups.div_ceil(per_block).min(wanted)).min(u64::from(params.block.bytes()) / 4)
    } else {
        0
    };
    if 1 + groups.div_ceil(per_block) + reserved_gdt >= u64::from(per_group) {
        return refuse("the group descriptors of such a volume do not fit a group; use larger blocks".into());
    }
    let (lo, hi) = (blocks.low_u32(), (blocks >> 32).fit_u32());
    let mut raw = RawSuperblock {
        s_inodes_count: inodes.into(),
        s_blocks_count_lo: lo.into(),
        s_blocks_count_hi: hi.into(),
        s_first_data_block: first_data_block(params.block).0.fit_u32().into(),
        s_log_block_size: (params.block.log2() - 10).into(),
        s_log_cluster_size: (params.block.log2() - 10).into(),
        s_blocks_per_group: per_group.into(),
        s_clusters_per_group: per_group.into(),
        s_inodes_per_group: inodes_per_group.into(),
        s_max_mnt_count: 0xffff.into(),
        s_magic: SUPERBLOCK_MAGIC.into(),
        s_state: STATE_VALID.into(),
        s_errors: 1.into(),
        s_rev_level: 1.into(),
        s_first_ino: 11.into(),
        s_inode_size: params.inode_size.into(),
        s_feature_compat: compat.bits().into(),
        s_feature_incompat: params.incompat.bits().into(),
        s_feature_ro_compat: params.ro_compat.bits().into(),
        s_uuid: params.uuid,
        s_volume_name: params.label,
        s_reserved_gdt_blocks: reserved_gdt.fit_u16().into(),
        s_def_hash_version: 1,
        s_desc_size: desc_size.into(),
        s_default_mount_opts: 0xc.into(), // user_xattr, acl
        s_flags: 1.into(),                // hashes treat bytes as signed, as on x86
        s_checksum_type: u8::from(params.has_metadata_csum()),
        ..RawSuperblock::default()
    };
    if params.inode_size > 128 {
        raw.s_min_extra_isize = 32.into();
        raw.s_want_extra_isize = 32.into();
    }
    if params.incompat.contains(Incompat::FLEX_BG) {
        raw.s_log_groups_per_flex = FLEX_LOG.fit_u8();
    }
    if params.incompat.contains(Incompat::CSUM_SEED) {
        raw.s_checksum_seed = extant_format::ChecksumSeed::from_uuid(&params.uuid).0.into();
    }
    for (word, bytes) in raw.s_hash_seed.iter_mut().zip(params.hash_seed.chunks_exact(4)) {
        *word = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]).into();
    }
    Superblock::from_raw(raw).map_err(|e| BuildError::Options(format!("there is no such volume: {e}")))
}
