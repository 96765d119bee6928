//! Inodes that are in use, but have no name.

use super::{Rescue, slots::slots};
use crate::export::{ExportError, OutPlace};
use extant_format::{
    FileKind, Group, GroupFlags, Inode, InodeFlags, InodeNumber, UintExt, VolumeBlock, bit,
    inode_table_blocks,
};
use extant_fs::{DescriptorSource, Volume};
use std::collections::BTreeMap;

/// A set of inode numbers. Memory is allocated for ranges of numbers, so numbers near each other
/// share it.
#[derive(Debug, Default)]
pub(super) struct Numbers(BTreeMap<u32, Box<[u64; 64]>>);

impl Numbers {
    pub(super) fn insert(&mut self, number: InodeNumber) {
        let words = self.0.entry(number.0 >> 12).or_insert_with(|| Box::new([0; 64]));
        words[(number.0 >> 6 & 63).to_usize()] |= 1 << (number.0 & 63);
    }

    pub(super) fn contains(&self, number: InodeNumber) -> bool {
        let words = self.0.get(&(number.0 >> 12));
        words.is_some_and(|words| words[(number.0 >> 6 & 63).to_usize()] >> (number.0 & 63) & 1 == 1)
    }
}

/// Finds inodes with links or contents that are not in `seen`; also returns whether they are
/// directories. Unless `is_current`, ignores what the volume says about unused parts of inode
/// tables, because it may be damaged.
async fn nameless(volume: &Volume, seen: &Numbers, is_current: bool) -> Vec<(InodeNumber, bool)> {
    let sb = volume.superblock();
    let per_block = sb.block_size().bytes() / u32::from(sb.inode_size());
    let mut found = Vec::new();
    for group in (0..sb.group_count()).map(Group) {
        let Ok(descriptor) = volume.group(group).await else { continue };
        let believed = is_current
            && sb.has_group_csum()
            && volume.descriptor_source(group).await == DescriptorSource::Primary;
        let in_use = match believed {
            true if descriptor.flags.contains(GroupFlags::INODE_UNINIT) => 0,
            true => sb.inodes_per_group().saturating_sub(descriptor.unused_inodes),
            false => sb.inodes_per_group(),
        };
        let bitmap = volume.block(descriptor.inode_bitmap).await.ok();
        for n in 0..in_use.div_ceil(per_block).min(inode_table_blocks(sb)) {
            let at = VolumeBlock(descriptor.inode_table.0 + u64::from(n));
            let Ok(block) = volume.block(at).await else { continue };
            for (index, (_, bytes)) in (n * per_block..).zip(slots(&block, sb.inode_size().into())) {
                let number = InodeNumber(group.0 * sb.inodes_per_group() + index + 1);
                if index >= sb.inodes_per_group() || seen.contains(number) || is_own(volume, number) {
                    continue;
                }
                let Ok(inode) = Inode::parse_unchecked(bytes, sb, number) else { continue };
                let is_right = Inode::parse(bytes, sb, number).is_ok();
                let is_marked = bitmap.as_ref().is_some_and(|bitmap| bit(bitmap, index));
                let has_contents = inode.size() > 0 && inode.raw.i_blocks_lo.get() > 0;
                let is_there = match inode.links() {
                    // The file was deleted while it was open.
                    0 => is_right && is_marked && has_contents,
                    _ => is_right || is_marked,
                };
                if is_there && inode.kind().is_some() && !inode.flags().contains(InodeFlags::EA_INODE) {
                    found.push((number, inode.kind() == Some(FileKind::Directory)));
                }
            }
        }
    }
    found
}

/// Whether an inode is the volume's own, or the root directory, which needs no name.
fn is_own(volume: &Volume, number: InodeNumber) -> bool {
    number == InodeNumber::ROOT || volume.superblock().is_own_inode(number)
}

impl Rescue<'_> {
    /// Puts inodes without a name into `lost+found`, directories with everything below them.
    pub(super) async fn put_nameless(&mut self, is_current: bool) -> Result<(), ExportError> {
        let all = nameless(self.volume, &self.seen, is_current).await;
        let numbers = |directories: bool| {
            let all = all.iter().filter(move |(_, is_directory)| *is_directory == directories);
            all.map(|(number, _)| *number)
        };
        let mut below = Numbers::default();
        for number in numbers(true) {
            let Ok(directory) = self.volume.inode(number).await else { continue };
            let Ok(mut reader) = self.volume.read_dir(&directory).await else { continue };
            loop {
                match reader.next().await {
                    Ok(Some(items)) => items.iter().for_each(|item| below.insert(item.inode)),
                    Ok(None) => break,
                    Err(_) => {}
                }
            }
        }
        // Directories that are not below another of them come first; those that are left then form
        // cycles.
        for is_top in [true, false] {
            for number in numbers(true) {
                if self.seen.contains(number) || (is_top && below.contains(number)) {
                    continue;
                }
                let Ok(directory) = self.volume.inode(number).await else { continue };
                let path = self.put_under_number(&directory).await?;
                self.put_below(&path, 2, &directory).await?;
            }
        }
        for number in numbers(false) {
            if !self.seen.contains(number)
                && let Ok(file) = self.volume.inode(number).await
            {
                self.put_under_number(&file).await?;
            }
        }
        Ok(())
    }

    async fn put_under_number(&mut self, inode: &Inode) -> Result<Vec<u8>, ExportError> {
        let mut name = format!("#{}", inode.number).into_bytes();
        // e2fsck gave this name to another inode.
        while self.in_lost_found.contains(&name) {
            name.push(b'_');
        }
        let directory = OutPlace { depth: 1, name: b"lost+found", path: b"lost+found" };
        self.places.enter(directory).await?;
        let path = [b"lost+found/", &name[..]].concat();
        self.seen.insert(inode.number);
        self.places.add(OutPlace { depth: 2, name: &name, path: &path }, inode).await?;
        Ok(path)
    }
}
