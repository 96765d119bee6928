//! Group descriptors, and the volume's own blocks.

use crate::Code;
use crate::finding::{Report, Spot};
use crate::open::Opened;
use crate::source::Piece;
use extant_format::{
    Group, GroupDescriptor, GroupFlags, Incompat, Superblock, UintExt, VolumeBlock, inode_table_blocks,
};

/// What the check knows of a group.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GroupInfo {
    pub(crate) gd: GroupDescriptor,
    /// Whether the bitmaps lie where they can be read.
    pub(crate) bitmaps: bool,
    pub(crate) table: bool,
    /// Whether the inode table lies within the volume, even if it is not read.
    is_placed: bool,
    is_copy: bool,
}

impl GroupInfo {
    /// Whether the descriptor was taken from a backup.
    pub(crate) fn is_copy(&self) -> bool {
        self.is_copy
    }

    pub(crate) fn has(&self, sb: &Superblock, flag: GroupFlags) -> bool {
        sb.has_group_csum() && self.gd.flags.contains(flag)
    }
}

/// The volume's own blocks, as sorted ranges that do not overlap.
#[derive(Debug, Default)]
pub(crate) struct OwnBlocks {
    ranges: Vec<(u64, u64)>,
    /// Bitmaps and tables of groups other than the one they lie in.
    others: Vec<(u64, u64)>,
}

impl OwnBlocks {
    /// Whether a block is the volume's own.
    pub(crate) fn contains(&self, block: u64) -> bool {
        let n = self.ranges.partition_point(|&(start, _)| start <= block);
        n.checked_sub(1).is_some_and(|n| self.ranges[n].1 > block)
    }

    /// The parts of `start..end` that are the volume's own.
    pub(crate) fn within(&self, start: u64, end: u64) -> impl Iterator<Item = (u64, u64)> + '_ {
        let first = self.ranges.partition_point(|&(_, to)| to <= start);
        self.ranges[first..]
            .iter()
            .take_while(move |&&(from, _)| from < end)
            .map(move |&(from, to)| (from.max(start), to.min(end)))
    }

    /// The parts of a group, from `start` to `end`, that Linux takes for used if the block bitmap
    /// was never written: not those that belong to other groups.
    pub(crate) fn implied(&self, start: u64, end: u64) -> Vec<(u64, u64)> {
        let first = self.others.partition_point(|&(_, to)| to <= start);
        let others = &self.others[first..];
        let mut kept = Vec::new();
        for (mut from, to) in self.within(start, end) {
            for &(other, end) in others.iter().take_while(|other| other.0 < to) {
                if from < other {
                    kept.push((from, other));
                }
                from = from.max(end);
            }
            if from < to {
                kept.push((from, to));
            }
        }
        kept
    }

    /// All ranges.
    pub(crate) fn ranges(&self) -> &[(u64, u64)] {
        &self.ranges
    }

    pub(crate) fn blocks(&self) -> u64 {
        self.ranges.iter().map(|(start, end)| end - start).sum()
    }
}

/// Returns the number of groups that begin within the device: a truncated or false volume may claim
/// more.
pub(crate) fn groups_there(opened: &Opened) -> u32 {
    let sb = &opened.sb;
    let blocks = opened.source.device_blocks().saturating_sub(sb.first_data_block().0);
    let there = blocks.div_ceil(sb.blocks_per_group().into()).max(1);
    sb.group_count().min(u32::try_from(there).unwrap_or(u32::MAX))
}

/// Reads and checks all descriptors.
///
/// Inode tables that are read do not overlap.
pub(crate) async fn read_groups(opened: &Opened, groups: u32, report: &Report) -> Vec<GroupInfo> {
    let sb = &opened.sb;
    let per_block = sb.descriptors_per_block();
    let blocks: Vec<u64> = (0..groups.div_ceil(per_block)).map(|n| sb.descriptor_block(n).0).collect();
    let mut infos = Vec::with_capacity(groups.to_usize());
    let mut bad = Vec::new();
    let runs = blocks.iter().map(|&at| (at, 1));
    opened
        .source
        .sweep(runs, |piece| {
            let block = piece.block(piece.start());
            if block.is_none() {
                report.add(Code::ReadError, Spot::block(piece.start()), "unreadable", "group descriptors");
            }
            let empty = vec![0; opened.source.block_bytes()];
            let block = block.unwrap_or(&empty);
            for n in 0..per_block {
                let group = infos.len().fit_u32();
                if group >= groups {
                    break;
                }
                let bytes = &block[n.to_usize() * sb.descriptor_size()..];
                let info = judge(bytes, opened, Group(group), report);
                if !info.bitmaps || !info.table {
                    bad.push(group);
                }
                infos.push(info);
            }
        })
        .await;
    for (n, other) in overlapping_tables(sb, &infos) {
        let text = format!("inode table at block {}", infos[n.to_usize()].gd.inode_table);
        let expected = format!("elsewhere than the inode table of group {other}");
        report.add(Code::DescriptorPlace, Spot::group(n), text, expected);
        // Backups decide which of the two is right.
        bad.extend([n, other]);
    }
    bad.sort_unstable();
    bad.dedup();
    let mut rest = &bad[..];
    while let Some(&first) = rest.first() {
        let index = first / per_block;
        let (mine, others) = rest.split_at(rest.partition_point(|group| group / per_block == index));
        rest = others;
        for copy in copies_of(opened, index).await {
            for &group in mine {
                take_copy(&copy, sb, Group(group), &mut infos[group.to_usize()]);
            }
        }
    }
    // If no backup helps, only the first of them keeps its table, so that no block is in two
    // tables.
    for (n, _) in overlapping_tables(sb, &infos) {
        infos[n.to_usize()].table = false;
    }
    infos
}

/// Groups whose inode table overlaps one that begins before it on the disk, each with the group of
/// that other table. Tables that are themselves in the list do not count as the other one.
fn overlapping_tables(sb: &Superblock, infos: &[GroupInfo]) -> Vec<(u32, u32)> {
    let len = u64::from(inode_table_blocks(sb));
    let groups = (0..).zip(infos).filter(|(_, info)| info.table);
    let mut places: Vec<(u64, u32)> = groups.map(|(n, info)| (info.gd.inode_table.0, n)).collect();
    places.sort_unstable();
    let mut last: Option<(u64, u32)> = None;
    let mut found = Vec::new();
    for now in places {
        match last {
            Some((start, group)) if now.0 - start < len => found.push((now.1, group)),
            _ => last = Some(now),
        }
    }
    found
}

/// Maximum number of copies of a descriptor block to look at.
const COPIES: usize = 4;

async fn copies_of(opened: &Opened, index: u32) -> Vec<Piece> {
    let mut copies = Vec::new();
    for copy in opened.sb.descriptor_copies(index).into_iter().skip(1).take(COPIES) {
        copies.extend(opened.source.one(copy.block.0).await);
    }
    copies
}

/// Takes a descriptor from a copy, if the copy makes sense and places something elsewhere.
fn take_copy(copy: &Piece, sb: &Superblock, group: Group, info: &mut GroupInfo) {
    let slot = (group.0 % sb.descriptors_per_block()).to_usize() * sb.descriptor_size();
    let Ok(found) = GroupDescriptor::parse(&copy.bytes()[slot..], sb, group) else { return };
    let places = |gd: &GroupDescriptor| [gd.block_bitmap, gd.inode_bitmap, gd.inode_table];
    if found.block_bitmap.0 != 0 && places(&found) != places(&info.gd) && !info.is_copy {
        // A copy's counts and flags are out of date.
        let gd = GroupDescriptor { flags: GroupFlags::empty(), unused_inodes: 0, ..found };
        *info = GroupInfo { gd, bitmaps: true, table: true, is_placed: true, is_copy: true };
    }
}

fn judge(bytes: &[u8], opened: &Opened, group: Group, report: &Report) -> GroupInfo {
    let sb = &opened.sb;
    let at = Spot::group(group.0);
    let gd = GroupDescriptor::decode(bytes, sb, group).expect("a slot of the table is long enough");
    if let Err(corrupt) = GroupDescriptor::verify_checksum(bytes, sb, group) {
        report.corrupt(Code::DescriptorChecksum, at.clone(), &corrupt);
    }
    let flex = sb.incompat().contains(Incompat::FLEX_BG);
    let first = if flex { sb.first_data_block().0 } else { sb.group_first_block(group).0 };
    let end = if flex {
        sb.blocks_count()
    } else {
        sb.group_first_block(group).0 + u64::from(sb.group_blocks(group))
    };
    let table = u64::from(inode_table_blocks(sb));
    let place = |name: &str, block: VolumeBlock, blocks: u64| {
        let inside = block.0 > first.min(1) && block.0 >= first && block.0.saturating_add(blocks) <= end;
        if !inside {
            let expected = if flex { "blocks of the volume" } else { "blocks of the group" };
            report.add(Code::DescriptorPlace, at.clone(), format!("{name} at block {block}"), expected);
        }
        // Linux reads the structure wherever it is, as long as the volume has such blocks.
        sb.is_valid_block(block) && block.0.saturating_add(blocks) <= sb.blocks_count() && block.0 != 0
    };
    let mut info = GroupInfo { gd, bitmaps: true, table: true, is_placed: true, is_copy: false };
    info.bitmaps = place("block bitmap", gd.block_bitmap, 1) & place("inode bitmap", gd.inode_bitmap, 1);
    info.table = place("inode table", gd.inode_table, table);
    info.is_placed = info.table;
    if info.table && gd.inode_table.0 >= opened.source.device_blocks() {
        let spot = at.clone().at_block(gd.inode_table.0);
        report.add(Code::ReadError, spot, "behind the end of the device", "inodes");
        info.table = false;
    }
    let uninit = GroupFlags::INODE_UNINIT | GroupFlags::BLOCK_UNINIT;
    if !sb.has_group_csum() && (gd.flags.intersects(uninit) || gd.unused_inodes != 0) {
        let found = format!("flags {:#x}, {} unused inodes", gd.flags.bits(), gd.unused_inodes);
        report.add(Code::DescriptorFlags, at, found, "none without checksums");
    } else if gd.unused_inodes > sb.inodes_per_group() {
        let found = format!("{} unused inodes", gd.unused_inodes);
        report.add(Code::DescriptorFlags, at, found, format!("at most {}", sb.inodes_per_group()));
    }
    info
}

const BLOCKS: &str = "block bitmap";
const INODES: &str = "inode bitmap";
const TABLE: &str = "inode table";

/// All blocks of the volume itself. Overlaps between them are reported.
pub(crate) fn own_blocks(opened: &Opened, groups: &[GroupInfo], report: &mut Report) -> OwnBlocks {
    let sb = &opened.sb;
    let mut found: Vec<(u64, u64, u32, &'static str)> = Vec::new();
    let meta_from = match sb.incompat().contains(Incompat::META_BG) {
        true => sb.raw().s_first_meta_bg.get().min(sb.descriptor_blocks()),
        false => sb.descriptor_blocks(),
    };
    let reserved = match sb.incompat().contains(Incompat::META_BG) {
        // With meta_bg, Linux ignores the reserved blocks.
        true => 0,
        false => u64::from(sb.raw().s_reserved_gdt_blocks.get()),
    };
    let end = sb.blocks_count();
    for group in 0..groups.len().fit_u32() {
        if !sb.has_backup(Group(group)) {
            continue;
        }
        let mut first = sb.group_first_block(Group(group)).0;
        if group == 0 && first == 0 && sb.block_size().bytes() == 1024 {
            // The boot block.
            found.push((0, 1, 0, "boot block"));
            first = 1;
        }
        let len = 1 + u64::from(meta_from) + reserved;
        found.push((first, first.saturating_add(len).min(end), group, "superblock and descriptors"));
    }
    for index in meta_from..groups.len().fit_u32().div_ceil(sb.descriptors_per_block()) {
        for copy in sb.descriptor_copies(index) {
            if copy.block.0 < end {
                found.push((copy.block.0, copy.block.0 + 1, copy.group.0, "descriptors"));
            }
        }
    }
    let table = u64::from(inode_table_blocks(sb));
    for (group, info) in groups.iter().enumerate() {
        let group = group.fit_u32();
        if info.bitmaps {
            found.push((info.gd.block_bitmap.0, info.gd.block_bitmap.0 + 1, group, BLOCKS));
            found.push((info.gd.inode_bitmap.0, info.gd.inode_bitmap.0 + 1, group, INODES));
        }
        if info.is_placed {
            found.push((info.gd.inode_table.0, info.gd.inode_table.0 + table, group, TABLE));
        }
    }
    if sb.incompat().contains(Incompat::MMP) {
        let at = sb.raw().s_mmp_block.get();
        if sb.is_valid_block(VolumeBlock(at)) {
            found.push((at, at + 1, 0, "multiple-mount-protection block"));
        }
    }
    found.sort_unstable();
    let is_elsewhere = |&(start, _, group, what): &(u64, u64, u32, &str)| {
        let first = sb.group_first_block(Group(group)).0;
        matches!(what, BLOCKS | INODES | TABLE)
            && !(first..first + u64::from(sb.group_blocks(Group(group)))).contains(&start)
    };
    let others = joined(found.iter().filter(|one| is_elsewhere(one)).map(|one| (one.0, one.1)));
    let ranges = joined(found.iter().map(|one| (one.0, one.1)));
    let mut last: Option<(u64, u64, u32, &'static str)> = None;
    for now @ (start, to, group, what) in found {
        if let Some((_, before, other, whose)) = last
            && start < before
            && (what, whose) != (TABLE, TABLE)
        {
            let found = format!("{what} at block {start}");
            let expected = format!("elsewhere than the {whose} of group {other}");
            report.add(Code::DescriptorPlace, Spot::group(group), found, expected);
        }
        if last.is_none_or(|last| to >= last.1) {
            last = Some(now);
        }
    }
    OwnBlocks { ranges, others }
}

/// Joins sorted ranges that touch or overlap.
fn joined(sorted: impl Iterator<Item = (u64, u64)>) -> Vec<(u64, u64)> {
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    for (start, to) in sorted {
        match ranges.last_mut() {
            Some(range) if range.1 >= start => range.1 = range.1.max(to),
            _ => ranges.push((start, to)),
        }
    }
    ranges
}
