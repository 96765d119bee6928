//! Free space and groups of a volume, read from its structures.

use super::Geometry;
use extant_format::{Group, GroupDescriptor, GroupFlags, Incompat, Superblock, bit};
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;

/// Block size in bytes.
const BLOCK_BYTES: u64 = 4096;

/// Returns bytes of a volume, given their offset and number.
pub type ReadAt<'a> = dyn Fn(u64, usize) -> Result<Vec<u8>, String> + 'a;

/// Reads bytes of a volume in a file.
pub fn from_file(file: &File) -> impl Fn(u64, usize) -> Result<Vec<u8>, String> {
    move |at, len| {
        let mut bytes = vec![0; len];
        file.read_exact_at(&mut bytes, at).map(|()| bytes).map_err(|error| error.to_string())
    }
}

/// Reads the superblock.
///
/// # Errors
/// If it cannot be read, or is invalid.
pub fn superblock(read: &ReadAt<'_>) -> Result<Superblock, String> {
    Superblock::parse(&read(1024, 1024)?).map_err(|error| error.to_string())
}

/// Reads the descriptor of a group.
///
/// # Errors
/// If it cannot be read, or is invalid.
pub fn descriptor(sb: &Superblock, number: u32, read: &ReadAt<'_>) -> Result<GroupDescriptor, String> {
    let table = sb.descriptor_block(number / sb.descriptors_per_block());
    let within = (number % sb.descriptors_per_block()) as usize * sb.descriptor_size();
    let bytes = read(table.0 * BLOCK_BYTES + within as u64, sb.descriptor_size())?;
    GroupDescriptor::parse(&bytes, sb, Group(number)).map_err(|error| error.to_string())
}

/// Returns the free space according to the volume's bitmaps, and its geometry.
///
/// # Errors
/// If a structure cannot be read, or is invalid.
pub fn free_of(read: &ReadAt<'_>) -> Result<(Vec<Range<u64>>, Geometry), String> {
    let sb = superblock(read)?;
    let mut free: Vec<Range<u64>> = Vec::new();
    for number in 0..sb.group_count() {
        let group = Group(number);
        let descriptor = descriptor(&sb, number, read)?;
        if sb.has_group_csum() && descriptor.flags.contains(GroupFlags::BLOCK_UNINIT) {
            // The bitmap is not initialized. With flexible groups the group's metadata lies
            // elsewhere; otherwise it counts as used, at the start of the group.
            let first = sb.group_first_block(group).0;
            let end = first + u64::from(sb.group_blocks(group));
            free.push(end - u64::from(descriptor.free_blocks)..end);
            continue;
        }
        let bitmap = read(descriptor.block_bitmap.0 * BLOCK_BYTES, BLOCK_BYTES as usize)?;
        let first = sb.group_first_block(group).0;
        for n in (0..sb.group_blocks(group)).filter(|n| !bit(&bitmap, *n)) {
            let block = first + u64::from(n);
            match free.last_mut() {
                Some(run) if run.end == block => run.end = block + 1,
                _ => free.push(block..block + 1),
            }
        }
    }
    let is_flexible = sb.incompat().contains(Incompat::FLEX_BG);
    let geometry = Geometry {
        flex_groups: if is_flexible { 1 << sb.raw().s_log_groups_per_flex } else { 1 },
        first_block: sb.first_data_block().0,
        group_blocks: sb.blocks_per_group().into(),
        groups: sb.group_count().into(),
    };
    Ok((free, geometry))
}
