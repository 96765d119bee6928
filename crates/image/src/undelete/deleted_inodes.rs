//! Finds deleted inodes: earlier versions in the log, and remains in the inode tables.

use crate::rescue::slots;
use extant_format::jbd2::unescape;
use extant_format::{
    FileKind, Group, GroupFlags, Inode, InodeFlags, InodeNumber, UintExt, VolumeBlock, inode_table_blocks,
};
use extant_fs::{OldCopy, Volume};
use std::collections::BTreeMap;

/// The bytes of an older version of a block; `None` if they cannot be read.
pub(super) async fn bytes_of(volume: &Volume, copy: &OldCopy) -> Option<Vec<u8>> {
    let mut bytes = volume.block(copy.block).await.ok()?.to_vec();
    if copy.escaped {
        unescape(&mut bytes);
    }
    Some(bytes)
}

/// A deleted inode, as it was while it had a name.
#[derive(Clone, Debug)]
pub(super) struct Deleted {
    /// The inode, with a link count of 1, and the time of its deletion if it is known.
    pub(super) inode: Inode,
    /// The age of this version in the log; `None` if it is from an inode table.
    pub(super) age: Option<i32>,
}

/// Finds deleted regular files, directories and symbolic links, each in the newest version whose
/// contents are in reach; those deleted last come first.
pub(super) async fn deleted(volume: &Volume, history: &[OldCopy]) -> Vec<Deleted> {
    let sb = volume.superblock();
    let per_block = sb.block_size().bytes() / u32::from(sb.inode_size());
    let table_blocks = u64::from(inode_table_blocks(sb));
    let mut tables: BTreeMap<u64, Group> = BTreeMap::new();
    for group in (0..sb.group_count()).map(Group) {
        if let Ok(descriptor) = volume.group(group).await {
            tables.insert(descriptor.inode_table.0, group);
        }
    }
    let mut found: BTreeMap<(InodeNumber, u32), Deleted> = BTreeMap::new();
    for copy in history {
        let Some((start, group)) = tables.range(..=copy.home.0).next_back() else { continue };
        let index = copy.home.0 - start;
        if index >= table_blocks {
            continue;
        }
        let (Some(old), Ok(now)) = (bytes_of(volume, copy).await, volume.block(copy.home).await) else {
            continue;
        };
        let first = group.0 * sb.inodes_per_group() + index.fit_u32() * per_block + 1;
        let size = usize::from(sb.inode_size());
        for (number, ((_, old), (_, now))) in (first..).zip(slots(&old, size).zip(slots(&now, size))) {
            let number = InodeNumber(number);
            let Ok(mut inode) = Inode::parse(old, sb, number) else { continue };
            let key = (number, inode.raw.i_generation.get());
            if inode.links() == 0 || !is_wanted(volume, &inode) || found.contains_key(&key) {
                continue;
            }
            if let Ok(now) = Inode::parse_unchecked(now, sb, number)
                && now.raw.i_generation == inode.raw.i_generation
            {
                if now.links() > 0 {
                    continue;
                }
                inode.raw.i_dtime = now.raw.i_dtime;
            }
            found.insert(key, Deleted { inode, age: Some(copy.age) });
        }
    }
    for (&table, &group) in &tables {
        for inode in left_in_table(volume, group, VolumeBlock(table)).await {
            let key = (inode.number, inode.raw.i_generation.get());
            found.entry(key).or_insert(Deleted { inode, age: None });
        }
    }
    let mut found: Vec<Deleted> = found.into_values().collect();
    for deleted in &mut found {
        // All other names of the inode now belong to other files.
        deleted.inode.raw.i_links_count = 1.into();
    }
    found.sort_by_key(|deleted| {
        let (changed, number) = (deleted.inode.changed(), deleted.inode.number);
        (std::cmp::Reverse((changed.seconds, changed.nanos)), number)
    });
    found
}

fn is_wanted(volume: &Volume, inode: &Inode) -> bool {
    let is_kept = matches!(inode.kind(), Some(FileKind::Regular | FileKind::Directory | FileKind::Symlink));
    let number = inode.number;
    is_kept
        && number != InodeNumber::ROOT
        && !volume.superblock().is_own_inode(number)
        && !inode.flags().contains(InodeFlags::EA_INODE)
}

/// Finds deleted inodes of a group whose maps were not cleared, as on ext2.
async fn left_in_table(volume: &Volume, group: Group, table: VolumeBlock) -> Vec<Inode> {
    let sb = volume.superblock();
    let mut left = Vec::new();
    let Ok(descriptor) = volume.group(group).await else { return left };
    let in_use = match sb.has_group_csum() {
        true if descriptor.flags.contains(GroupFlags::INODE_UNINIT) => 0,
        true => sb.inodes_per_group().saturating_sub(descriptor.unused_inodes),
        false => sb.inodes_per_group(),
    };
    let per_block = sb.block_size().bytes() / u32::from(sb.inode_size());
    for n in 0..in_use.div_ceil(per_block) {
        let Ok(block) = volume.block(VolumeBlock(table.0 + u64::from(n))).await else { continue };
        let first = group.0 * sb.inodes_per_group() + n * per_block + 1;
        for (number, (_, bytes)) in (first..).zip(slots(&block, sb.inode_size().into())) {
            let Ok(inode) = Inode::parse(bytes, sb, InodeNumber(number)) else { continue };
            let is_deleted = inode.links() == 0 && inode.raw.i_dtime.get() != 0;
            if is_deleted && is_wanted(volume, &inode) && inode.size() > 0 && has_map(&inode) {
                left.push(inode);
            }
        }
    }
    left
}

fn has_map(inode: &Inode) -> bool {
    let flags = inode.flags();
    let map = inode.map();
    if flags.contains(InodeFlags::EXTENTS) {
        // `eh_entries`.
        return map[2] > 0 || map[3] > 0;
    }
    map.iter().any(|&b| b != 0)
}
