//! Checks that a volume is sound, because damage would be lost or go unnoticed in a smaller copy.

use super::records;
use super::survey::{Found, Role, Survey, read_blocks};
use extant_format::{
    Corrupt, DIRENT_HEADER_BYTES, DirEntries, FileBlock, FileKind, Group, GroupDescriptor, GroupFlags,
    Incompat, Inode, InodeFlags, InodeNumber, Place, RoCompat, Superblock, UintExt, VolumeBlock, bit,
    count_free, inode_table_blocks, verify_block_bitmap, verify_inode_bitmap,
};
use extant_fs::{Error, Volume};
use std::ops::Range;

/// Offset of `file_type` in a directory entry.
const TYPE_AT: usize = 7;
/// Offset of `i_links_count` in a record.
const LINKS_AT: usize = 0x1a;
/// Inode table blocks read at a time.
const TABLE_BLOCKS: u64 = 256;
/// The resize inode's pointer to a block of its own; all its other blocks are in the reserved
/// descriptor area.
const RESIZE_POINTER: usize = 13;

/// Fails if the volume's names, links, maps, attributes or bitmaps contradict each other.
///
/// # Errors
/// The first damage found.
pub(super) async fn check(volume: &Volume, survey: &Survey) -> Result<(), Error> {
    check_names(volume, survey).await?;
    records::check(volume, survey).await?;
    let owned = owned_blocks(volume, survey).await?;
    let sb = volume.superblock();
    for group in (0..sb.group_count()).map(Group) {
        let descriptor = volume.group(group).await?;
        check_blocks(volume, group, &descriptor, &owned).await?;
        check_inodes(volume, survey, group, &descriptor).await?;
    }
    // The superblock's free counts may be stale after a crash. Linux ignores them and adds up the
    // counts of the groups at each mount.
    Ok(())
}

fn bad(place: Place, field: &'static str, value: u64, rule: &'static str) -> Error {
    Corrupt::field(place, field, value, rule).into()
}

/// The names of an inode that were found.
#[derive(Clone, Copy, Debug, Default)]
struct Named {
    names: u32,
    /// The file type in the entries with these names.
    kind: Option<FileKind>,
    /// For a directory: number of subdirectories.
    dirs: u32,
    /// The directory that contains the last of the names; 0 if there is none.
    above: u32,
    /// For a directory: target of `..`.
    parent: u32,
}

/// Checks that every name leads to an inode in use, that each inode has as many names as its link
/// count, and that each directory has exactly one, in the directory that its `..` refers to.
async fn check_names(volume: &Volume, survey: &Survey) -> Result<(), Error> {
    let sb = volume.superblock();
    let mut named = vec![Named::default(); survey.inodes.len()];
    for (at, found) in survey.inodes.iter().enumerate() {
        if !found.role.is_directory() {
            continue;
        }
        let dir = volume.inode(found.number).await?;
        volume.check_names(&dir).await?;
        if found.role == Role::Directory {
            check_types(volume, survey, found).await?;
        }
        let mut reader = volume.read_dir(&dir).await?;
        let mut names = Vec::new();
        while let Some(items) = reader.next().await? {
            for item in items {
                let place = Place::Inode(dir.number);
                let index = survey.index_of(item.inode).filter(|_| !is_own(item.inode, sb));
                let Some(index) = index else {
                    return Err(bad(place, "inode of a name", item.inode.0.into(), "one that is in use"));
                };
                if dir.flags().contains(InodeFlags::ENCRYPT) {
                    records::check_encrypted(volume, &dir, &item.name, item.inode).await?;
                }
                let is_dir = survey.inodes[index].role.is_directory();
                let before = named[index].kind.or(item.kind);
                if item.kind.is_some() && before != item.kind {
                    let rule = "that of its other names";
                    return Err(bad(Place::Inode(item.inode), "file_type of a name", 2, rule));
                }
                named[index].kind = before;
                named[index].names += 1;
                named[index].above = dir.number.0;
                named[at].dirs += u32::from(is_dir);
                names.push(item.name);
            }
        }
        named[at].parent = reader.parent().map_or(0, |parent| parent.0);
        names.sort_unstable();
        if names.windows(2).any(|pair| pair[0] == pair[1]) {
            return Err(bad(Place::Inode(dir.number), "entries of one name", 2, "1"));
        }
    }
    for (found, named) in survey.inodes.iter().zip(&named) {
        if is_own(found.number, sb) {
            continue;
        }
        let inode = volume.inode(found.number).await?;
        if !inode.flags().contains(InodeFlags::EA_INODE) {
            check_links(&inode, *named, sb)?;
        }
    }
    check_reached(survey, &named)
}

/// How many adjacent blocks of a directory are read together.
const READ_TOGETHER: u32 = 64;

/// Checks the bytes of a directory's entries that reading ignores: file types with unknown bits,
/// those of `.` and `..`, and the NUL behind these two.
async fn check_types(volume: &Volume, survey: &Survey, found: &Found) -> Result<(), Error> {
    let sb = volume.superblock();
    let filetype = sb.incompat().contains(Incompat::FILETYPE);
    let block_bytes = sb.block_size().byte_len();
    for run in survey.runs_of(found) {
        let mut some: Box<[u8]> = Box::default();
        for n in 0..run.blocks {
            let nth = n % READ_TOGETHER;
            if nth == 0 {
                let count = READ_TOGETHER.min(run.blocks - n);
                let first = VolumeBlock(run.physical.0 + u64::from(n));
                some = read_blocks(volume, first, count.into()).await?;
            }
            let block = &some[nth.to_usize() * block_bytes..][..block_bytes];
            let at = FileBlock(run.logical.0 + n);
            let place = Place::DirectoryBlock(found.number, at);
            for entry in DirEntries::new(block, filetype, sb.inodes_count(), found.number, at) {
                let entry = entry?;
                if entry.inode.0 == 0 {
                    continue;
                }
                let is_dot = matches!(entry.name, b"." | b"..");
                let kind = if is_dot { Some(FileKind::Directory) } else { entry.kind };
                let wanted = if filetype { kind.map(FileKind::dirent_code) } else { Some(0) };
                let code = block[entry.offset + TYPE_AT];
                if wanted != Some(code) {
                    return Err(bad(place, "file_type", code.into(), "that of the inode"));
                }
                let end = entry.offset + DIRENT_HEADER_BYTES + entry.name.len();
                if is_dot && end < block_bytes && block[end] != 0 {
                    return Err(bad(place, "byte behind `.` or `..`", block[end].into(), "0"));
                }
            }
        }
    }
    Ok(())
}

/// Whether an inode belongs to the volume itself and has no name.
fn is_own(number: InodeNumber, sb: &Superblock) -> bool {
    number != InodeNumber::ROOT && sb.is_own_inode(number)
}

fn check_links(inode: &Inode, named: Named, sb: &Superblock) -> Result<(), Error> {
    let place = Place::Inode(inode.number);
    let links = u32::from(inode.links());
    if let Some(kind) = named.kind.filter(|kind| inode.kind() != Some(*kind)) {
        let rule = "that of i_mode";
        return Err(bad(place, "file_type of a name", kind.dirent_code().into(), rule));
    }
    if inode.kind() != Some(FileKind::Directory) {
        let rule = "the number of names that lead to the inode, and at least 1";
        return match named.names == links && links > 0 {
            true => Ok(()),
            false => Err(bad(place, "i_links_count", links.into(), rule)),
        };
    }
    let is_root = inode.number == InodeNumber::ROOT;
    let (names, above) = if is_root { (0, inode.number.0) } else { (1, named.above) };
    if named.names != names {
        return Err(bad(place, "names of the directory", named.names.into(), "1, and none of the root"));
    }
    if named.parent != above {
        return Err(bad(place, "..", named.parent.into(), "the directory in which the name lies"));
    }
    // A directory with too many subdirectories to count has one link.
    let is_uncounted = links == 1 && sb.ro_compat().contains(RoCompat::DIR_NLINK);
    if links != 2 + named.dirs && !is_uncounted {
        return Err(bad(place, "i_links_count", links.into(), "2 and the number of directories in it"));
    }
    Ok(())
}

/// Checks that every directory is below the root; any others form a cycle.
fn check_reached(survey: &Survey, named: &[Named]) -> Result<(), Error> {
    let mut reached = vec![false; named.len()];
    for (start, found) in survey.inodes.iter().enumerate().filter(|(_, found)| found.role.is_directory()) {
        let (mut at, mut way) = (start, Vec::new());
        while !reached[at] && survey.inodes[at].number != InodeNumber::ROOT {
            way.push(at);
            let above = survey.index_of(InodeNumber(named[at].above));
            match above.filter(|_| way.len() <= named.len()) {
                Some(above) => at = above,
                None => {
                    let rule = "a directory below the root";
                    return Err(bad(Place::Inode(found.number), "..", named[start].parent.into(), rule));
                }
            }
        }
        way.into_iter().for_each(|at| reached[at] = true);
    }
    Ok(())
}

/// Blocks of all inodes and of the volume's own structures, in order; fails if a block has two
/// owners.
async fn owned_blocks(volume: &Volume, survey: &Survey) -> Result<Vec<Range<VolumeBlock>>, Error> {
    let sb = volume.superblock();
    let own = volume.own_structures().await?;
    let mut all: Vec<(Range<VolumeBlock>, InodeNumber)> =
        own.into_iter().map(|range| (range, InodeNumber(0))).collect();
    let one = |at: VolumeBlock| at..VolumeBlock(at.0 + 1);
    for found in &survey.inodes {
        let inode = volume.inode(found.number).await?;
        match found.role {
            Role::Unmapped | Role::InlineDirectory => {
                if !is_own(inode.number, sb) {
                    records::check_count(survey, &inode, 0, sb)?;
                }
            }
            Role::Resize => {
                let at = inode.block_pointer(RESIZE_POINTER);
                if at.0 > 0 {
                    all.push((one(at), inode.number));
                }
            }
            _ => {
                let blocks = volume.blocks_of(&inode).await?;
                if !is_own(inode.number, sb) {
                    let mapped = blocks.iter().map(|range| range.end.0 - range.start.0).sum();
                    records::check_count(survey, &inode, mapped, sb)?;
                }
                all.extend(blocks.into_iter().map(|range| (range, inode.number)));
            }
        }
    }
    all.extend(survey.attrs.iter().map(|attr| (one(attr.number), InodeNumber(0))));
    all.sort_unstable_by_key(|(range, _)| range.start);
    if let Some([_, (range, owner)]) = all.windows(2).find(|pair| pair[1].0.start < pair[0].0.end) {
        return Err(bad(Place::Inode(*owner), "block", range.start.0, "one that belongs to nothing else"));
    }
    if let Some((range, owner)) = all.last().filter(|(range, _)| range.end.0 > sb.blocks_count()) {
        return Err(bad(Place::Inode(*owner), "block", range.end.0 - 1, "a block of the volume"));
    }
    Ok(all.into_iter().map(|(range, _)| range).collect())
}

/// Checks a group's block bitmap against the blocks in use, and its descriptor against the count.
async fn check_blocks(
    volume: &Volume,
    group: Group,
    descriptor: &GroupDescriptor,
    owned: &[Range<VolumeBlock>],
) -> Result<(), Error> {
    let sb = volume.superblock();
    let (first, blocks) = (sb.group_first_block(group), sb.group_blocks(group));
    let end = VolumeBlock(first.0 + u64::from(blocks));
    let next = owned.partition_point(|range| range.end <= first);
    let mut in_use = vec![false; blocks.to_usize()];
    for range in owned[next..].iter().take_while(|range| range.start < end) {
        let (from, to) = (range.start.max(first).0 - first.0, range.end.min(end).0 - first.0);
        in_use[from.to_usize()..to.to_usize()].fill(true);
    }
    let place = Place::BlockBitmap(group);
    let is_unwritten = sb.has_group_csum() && descriptor.flags.contains(GroupFlags::BLOCK_UNINIT);
    if !is_unwritten {
        let bitmap = read_blocks(volume, descriptor.block_bitmap, 1).await?;
        verify_block_bitmap(&bitmap, sb, group, descriptor)?;
        let wrong = (0..blocks).find(|&n| bit(&bitmap, n) != in_use[n.to_usize()]);
        if let Some(n) = wrong {
            let rule = match in_use[n.to_usize()] {
                true => "marked as in use",
                false => "marked as free, for nothing has it",
            };
            return Err(bad(place, "block", first.0 + u64::from(n), rule));
        }
    }
    let free = in_use.iter().filter(|used| !**used).count().to_u64();
    match u64::from(descriptor.free_blocks) == free {
        true => Ok(()),
        false => {
            let rule = "the number of free blocks";
            let place = Place::GroupDescriptor(group);
            Err(bad(place, "bg_free_blocks_count", descriptor.free_blocks.into(), rule))
        }
    }
}

/// Checks that no inode with links is marked free, and that the descriptor has the right count.
async fn check_inodes(
    volume: &Volume,
    survey: &Survey,
    group: Group,
    descriptor: &GroupDescriptor,
) -> Result<(), Error> {
    let sb = volume.superblock();
    let per_group = sb.inodes_per_group();
    if sb.has_group_csum() && descriptor.flags.contains(GroupFlags::INODE_UNINIT) {
        return Ok(());
    }
    let bitmap = read_blocks(volume, descriptor.inode_bitmap, 1).await?;
    verify_inode_bitmap(&bitmap, sb, group, descriptor)?;
    let free = count_free(&bitmap, per_group);
    let place = Place::GroupDescriptor(group);
    if free != descriptor.free_inodes {
        let rule = "the number of free inodes";
        return Err(bad(place, "bg_free_inodes_count", descriptor.free_inodes.into(), rule));
    }
    let first = group.0 * per_group + 1;
    let start = survey.inodes.partition_point(|found| found.number.0 < first);
    let here = survey.inodes[start..].iter().take_while(|found| found.number.0 - first < per_group);
    let dirs = here.filter(|found| found.role.is_directory()).count();
    if dirs.to_u64() != u64::from(descriptor.used_dirs) {
        let rule = "the number of directories";
        return Err(bad(place, "bg_used_dirs_count", descriptor.used_dirs.into(), rule));
    }
    let unused = if sb.has_group_csum() { descriptor.unused_inodes.min(per_group) } else { 0 };
    let (used, size) = (per_group - unused, usize::from(sb.inode_size()));
    let per_block = sb.block_size().byte_len() / size;
    let blocks = u64::from(used).div_ceil(per_block.to_u64()).min(inode_table_blocks(sb).into());
    for from in (0..blocks).step_by(TABLE_BLOCKS.to_usize()) {
        let count = TABLE_BLOCKS.min(blocks - from);
        let table = read_blocks(volume, VolumeBlock(descriptor.inode_table.0 + from), count).await?;
        let index = from.fit_u32() * per_block.fit_u32();
        for (index, record) in (index..used).zip(table.chunks_exact(size)) {
            let links = u16::from_le_bytes([record[LINKS_AT], record[LINKS_AT + 1]]);
            if links > 0 && !bit(&bitmap, index) {
                let place = Place::Inode(InodeNumber(first + index));
                return Err(bad(place, "i_links_count", links.into(), "0, for the inode is marked as free"));
            }
        }
    }
    Ok(())
}
