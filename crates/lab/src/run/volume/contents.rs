//! The contents of a volume that was just made.

use super::{BLOCK_BYTES, FileSystem, VolumeSpec};
use extant_block::Sector;
use extant_format::{BlockSize, Group, GroupDescriptor, GroupFlags, Incompat, Superblock, bit};
use extant_history::alloc::Geometry;
use extant_image::{FsType, SizePolicy, Timestamp, VolumeOptions, mkfs};
use extant_rt::Rt;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// An empty volume.
pub(super) struct Made {
    /// The parts of it that are not zero, of whole blocks.
    pub(super) data: Vec<(Sector, Vec<u8>)>,
    /// Its free space, in blocks; of a volume without extents.
    pub(super) free: Vec<Range<u64>>,
}

/// Makes a volume of ext; nothing for other kinds.
pub(super) fn make(spec: &VolumeSpec) -> Result<Option<Made>, String> {
    let fs_type = match spec.fs {
        FileSystem::Ext2 => FsType::Ext2,
        FileSystem::Ext3 => FsType::Ext3,
        FileSystem::Ext4 => FsType::Ext4,
        FileSystem::None | FileSystem::Xfs => return Ok(None),
    };
    let options = VolumeOptions {
        fs_type,
        block_size: Some(BlockSize::K4),
        inode_size: spec.inode_bytes.unwrap_or(256),
        size: SizePolicy::Fixed(spec.bytes),
        bytes_per_inode: spec.bytes_per_inode,
        // The same volume each time.
        uuid: Some([0x5a; 16]),
        hash_seed: Some([0xa5; 16]),
        ..VolumeOptions::default()
    };
    let dir = tempfile::tempdir().map_err(|error| error.to_string())?;
    let path = dir.path().join("volume");
    let created = Timestamp { seconds: 1_163_116_800, nanos: 0 };
    mkfs(&path, &options, created, &Rt::real(Default::default()), Arc::new(|_, _| {}))
        .map_err(|error| error.to_string())?;
    let file = File::open(&path).map_err(|error| error.to_string())?;
    let data = data_of(&file, spec.bytes).map_err(|error| error.to_string())?;
    let free = match spec.fs {
        FileSystem::Ext4 => Vec::new(),
        _ => free_of(&from_file(&file))?.0,
    };
    Ok(Some(Made { data, free }))
}

/// Bytes that are looked at together.
const CHUNK_BYTES: usize = 1 << 20;

/// The blocks that are not zero, those in a row together.
fn data_of(file: &File, bytes: u64) -> std::io::Result<Vec<(Sector, Vec<u8>)>> {
    let mut data: Vec<(Sector, Vec<u8>)> = Vec::new();
    let mut chunk = vec![0; CHUNK_BYTES];
    let zeroes = [0_u8; BLOCK_BYTES as usize];
    let mut at = 0;
    while let Some(from) = next_data(file, at)?.filter(|from| *from < bytes) {
        let start = from / BLOCK_BYTES * BLOCK_BYTES;
        let len = (bytes - start).min(CHUNK_BYTES as u64) as usize;
        file.read_exact_at(&mut chunk[..len], start)?;
        for (number, block) in chunk[..len].chunks(BLOCK_BYTES as usize).enumerate() {
            if *block == zeroes[..block.len()] {
                continue;
            }
            let sector = start / Sector::BYTES + number as u64 * (BLOCK_BYTES / Sector::BYTES);
            match data.last_mut() {
                Some((first, run)) if first.0 + run.len() as u64 / Sector::BYTES == sector => {
                    run.extend_from_slice(block);
                }
                _ => data.push((Sector(sector), block.to_vec())),
            }
        }
        at = start + len as u64;
    }
    Ok(data)
}

/// The first byte at or after `at` that is not in a hole.
fn next_data(file: &File, at: u64) -> std::io::Result<Option<u64>> {
    match rustix::fs::seek(file, rustix::fs::SeekFrom::Data(at)) {
        Ok(from) => Ok(Some(from)),
        Err(rustix::io::Errno::NXIO) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn from_file(file: &File) -> impl Fn(u64, usize) -> Result<Vec<u8>, String> {
    move |at, len| {
        let mut bytes = vec![0; len];
        file.read_exact_at(&mut bytes, at).map(|()| bytes).map_err(|error| error.to_string())
    }
}

/// The free space, by the volume's own bitmaps, and the volume's shape. `read` gives bytes of it.
pub(super) fn free_of(
    read: &dyn Fn(u64, usize) -> Result<Vec<u8>, String>,
) -> Result<(Vec<Range<u64>>, Geometry), String> {
    let sb = Superblock::parse(&read(1024, 1024)?).map_err(|error| error.to_string())?;
    let mut free: Vec<Range<u64>> = Vec::new();
    for number in 0..sb.group_count() {
        let group = Group(number);
        let table = sb.descriptor_block(number / sb.descriptors_per_block());
        let within = (number % sb.descriptors_per_block()) as usize * sb.descriptor_size();
        let bytes = read(table.0 * BLOCK_BYTES + within as u64, sb.descriptor_size())?;
        let descriptor = GroupDescriptor::parse(&bytes, &sb, group).map_err(|error| error.to_string())?;
        if sb.has_group_csum() && descriptor.flags.contains(GroupFlags::BLOCK_UNINIT) {
            // Its own metadata lie elsewhere on a volume with flexible groups, or count as used for this purpose.
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
