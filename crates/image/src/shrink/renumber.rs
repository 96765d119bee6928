//! Renumbers the inodes referenced by directories and attributes. Pure: bytes in, bytes out.

use extant_format::{
    ChecksumSeed, Corrupt, DirEntries, FileBlock, HtreeContext, INLINE_HEAD_BYTES, INLINE_PARENT_BYTES,
    Incompat, Inode, InodeNumber, Place, Superblock, XattrName, XattrValue, Xattrs, is_dx_block,
    set_value_inodes, verify_dirent_checksum, verify_dx_checksum, write_dirent_tail, write_dx_checksum,
};

/// The new number of an inode; `None` if it is not in use.
pub(super) trait Numbers {
    fn new_number(&self, old: InodeNumber) -> Option<InodeNumber>;
}

/// Old and new checksum seed of a directory's blocks, if the volume has checksums.
pub(super) type Seeds = Option<[ChecksumSeed; 2]>;

/// Inodes that hold attribute values, with the length of each value.
pub(super) fn value_inodes(xattrs: Xattrs<'_>) -> impl Iterator<Item = (InodeNumber, u32)> {
    xattrs.iter().filter_map(|xattr| match xattr.value {
        XattrValue::Inode { inode, size } => Some((inode, size)),
        XattrValue::Bytes(_) => None,
    })
}

/// Renumbers the entries of block `index` of directory `dir` (its old number), and updates the
/// checksum.
pub(super) fn directory_block(
    block: &mut [u8],
    dir: InodeNumber,
    index: FileBlock,
    sb: &Superblock,
    seeds: Seeds,
    numbers: &impl Numbers,
) -> Result<(), Corrupt> {
    let is_node = seeds.is_some() && is_dx_block(block);
    if let Some([old, _]) = seeds {
        if is_node {
            let context = HtreeContext { dir, block: index, checksums: true, large_dir: true };
            verify_dx_checksum(block, &context, old)?;
        } else {
            verify_dirent_checksum(block, old, Place::DirectoryBlock(dir, index))?;
        }
    }
    entries(block, dir, index, sb, numbers)?;
    if let Some([_, new]) = seeds {
        if is_node {
            write_dx_checksum(block, new);
        } else {
            write_dirent_tail(block, new);
        }
    }
    Ok(())
}

/// Renumbers directory entries in an area.
fn entries(
    area: &mut [u8],
    dir: InodeNumber,
    index: FileBlock,
    sb: &Superblock,
    numbers: &impl Numbers,
) -> Result<(), Corrupt> {
    let mut changes = Vec::new();
    for entry in
        DirEntries::new(area, sb.incompat().contains(Incompat::FILETYPE), sb.inodes_count(), dir, index)
    {
        let entry = entry?;
        if entry.inode.0 != 0 {
            let place = Place::DirectoryBlock(dir, index);
            changes.push((entry.offset, new_number(entry.inode, place, "inode", numbers)?));
        }
    }
    for (at, number) in changes {
        area[at..at + 4].copy_from_slice(&number.0.to_le_bytes());
    }
    Ok(())
}

fn new_number(
    old: InodeNumber,
    place: Place,
    field: &'static str,
    numbers: &impl Numbers,
) -> Result<InodeNumber, Corrupt> {
    let rule = "an inode in use";
    numbers.new_number(old).ok_or_else(|| Corrupt::field(place, field, old.0.into(), rule))
}

/// Renumbers the entries and the parent of an inline directory.
pub(super) fn inline_directory(
    inode: &mut Inode,
    sb: &Superblock,
    numbers: &impl Numbers,
) -> Result<(), Corrupt> {
    let (dir, place) = (inode.number, Place::InlineData(inode.number));
    let head = &mut inode.raw.i_block;
    let (parent, rest) = head.split_at_mut(INLINE_PARENT_BYTES);
    let old = InodeNumber(u32::from_le_bytes([parent[0], parent[1], parent[2], parent[3]]));
    parent.copy_from_slice(&new_number(old, place, "parent", numbers)?.0.to_le_bytes());
    entries(&mut rest[..INLINE_HEAD_BYTES - INLINE_PARENT_BYTES], dir, FileBlock(0), sb, numbers)?;
    let value = Xattrs::parse_inode(&inode.tail, dir)?.value_range_in_inode(XattrName::INLINE_DATA);
    match value {
        Some(range) => entries(&mut inode.tail[range], dir, FileBlock(0), sb, numbers),
        None => Ok(()),
    }
}

/// Renumbers the value inodes in an attribute area; entries begin at `start`.
pub(super) fn values(
    area: &mut [u8],
    start: usize,
    place: Place,
    numbers: &impl Numbers,
) -> Result<(), Corrupt> {
    set_value_inodes(area, start, |old| new_number(old, place, "e_value_inum", numbers))
}
