//! Backups of the superblock and of group descriptors.

use crate::Code;
use crate::finding::{Report, Spot};
use crate::layout::GroupInfo;
use crate::open::Opened;
use extant_format::{Compat, Group, GroupDescriptor, Incompat, Superblock, UintExt};

/// How many backups to collect before they are read. A group's backups lie next to each other, and
/// those of other groups far away, so a sweep reads as many as possible.
const BACKUPS: usize = 16 << 10;

/// A block of backups.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Backup {
    block: u64,
    group: u32,
    /// The block of the group descriptor table that it is a copy of; without one, it is a copy of
    /// the superblock.
    descriptors: Option<u32>,
}

/// Compares backups of superblock and descriptors with the primary ones, in the fields that never
/// change.
pub(crate) async fn check(opened: &Opened, groups: &[GroupInfo], report: &mut Report) {
    let sb = &opened.sb;
    if opened.from_backup {
        return;
    }
    let there = groups.len().fit_u32();
    let of_superblock = sb.backup_groups().into_iter().filter(|group| group.0 < there);
    let mut backups: Vec<Backup> = of_superblock
        .map(|group| Backup { block: sb.group_first_block(group).0, group: group.0, descriptors: None })
        .collect();
    let tables = there.div_ceil(sb.descriptors_per_block());
    for index in 0..tables {
        let copies = sb.descriptor_copies(index).into_iter().skip(1).filter(|copy| copy.group.0 < there);
        backups.extend(copies.map(|copy| Backup {
            block: copy.block.0,
            group: copy.group.0,
            descriptors: Some(index),
        }));
        if backups.len() >= BACKUPS || index + 1 == tables {
            read_backups(opened, groups, std::mem::take(&mut backups), report).await;
        }
    }
}

/// Reads backups in the order of the disk.
async fn read_backups(opened: &Opened, groups: &[GroupInfo], mut backups: Vec<Backup>, report: &mut Report) {
    backups.sort_unstable();
    let blocks: Vec<u64> = backups.iter().map(|backup| backup.block).collect();
    opened
        .source
        .scattered(&blocks, |n, block| {
            let Backup { block: at, group, descriptors } = backups[n];
            let spot = Spot::group(group).at_block(at);
            match (block, descriptors) {
                (Some(block), None) => check_superblock(&opened.sb, Group(group), block, spot, report),
                (Some(block), Some(index)) => {
                    check_descriptors(&opened.sb, groups, index, block, spot, report);
                }
                (None, None) => report.add(Code::ReadError, spot, "unreadable", "a backup of the superblock"),
                (None, Some(_)) => {
                    report.add(Code::ReadError, spot, "unreadable", "a backup of group descriptors");
                }
            }
        })
        .await;
}

/// Compares a copy of block `index` of the group descriptor table. Reports at most one finding.
fn check_descriptors(
    sb: &Superblock,
    groups: &[GroupInfo],
    index: u32,
    block: &[u8],
    at: Spot,
    report: &mut Report,
) {
    let per_block = sb.descriptors_per_block();
    let first = index * per_block;
    for group in first..(first + per_block).min(groups.len().fit_u32()) {
        let slot = (group - first).to_usize() * sb.descriptor_size();
        let Ok(copy) = GroupDescriptor::decode(&block[slot..], sb, Group(group)) else { continue };
        let info = &groups[group.to_usize()];
        let places = |gd: &GroupDescriptor| [gd.block_bitmap, gd.inode_bitmap, gd.inode_table];
        if info.bitmaps && info.table && places(&copy) != places(&info.gd) {
            let show = |gd: &GroupDescriptor| {
                let [blocks, inodes, table] = places(gd);
                format!("group {group} at {blocks}, {inodes}, {table}")
            };
            return report.add(Code::BackupDescriptors, at, show(&copy), show(&info.gd));
        }
    }
}

fn check_superblock(sb: &Superblock, group: Group, block: &[u8], at: Spot, report: &mut Report) {
    let copy = match Superblock::parse(block) {
        Ok(copy) => copy,
        Err(corrupt) => return report.corrupt(Code::BackupSuperblock, at, &corrupt),
    };
    if let Err(corrupt) = copy.verify_checksum() {
        return report.corrupt(Code::BackupSuperblock, at, &corrupt);
    }
    let is_64 = |sb: &Superblock| u64::from(sb.incompat().contains(Incompat::BIT64));
    let fields = |sb: &Superblock| {
        [
            ("s_blocks_count", sb.blocks_count()),
            ("s_log_block_size", sb.block_size().log2().into()),
            ("s_blocks_per_group", sb.blocks_per_group().into()),
            ("s_inodes_per_group", sb.inodes_per_group().into()),
            ("s_inode_size", sb.inode_size().into()),
            ("s_first_data_block", sb.first_data_block().0),
            ("s_cluster_size", sb.blocks_per_cluster().into()),
            ("64bit", is_64(sb)),
        ]
    };
    for ((name, found), (_, expected)) in fields(&copy).into_iter().zip(fields(sb)) {
        if found != expected {
            let expected = expected.to_string();
            return report.add(Code::BackupSuperblock, at, format!("{name} is {found}"), expected);
        }
    }
    let number = copy.raw().s_block_group_nr.get();
    // The field has 16 bits, and e2fsprogs before 1.47 left it 0 in some copies.
    if number != 0 && u32::from(number) != group.0 & 0xffff {
        let found = format!("s_block_group_nr is {number}");
        return report.add(Code::BackupSuperblock, at, found, group.to_string());
    }
    if copy.uuid() != sb.uuid() && !sb.compat().contains(Compat::STABLE_INODES) {
        report.add(Code::BackupSuperblock, at, "another volume's UUID", "the primary one's");
    }
}
