//! Empty volumes made by our mkfs, and what their on-disk structures say.

use extant_format::{BlockSize, Group, GroupDescriptor, GroupFlags, Incompat, Superblock, bit};
use extant_history::alloc::Geometry;
use extant_image::{FeatureChoices, FsType, SizePolicy, Timestamp, VolumeOptions, mkfs};
use extant_rt::Rt;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// Block size in bytes.
const BLOCK_BYTES: u64 = 4096;

/// Makes a new volume in a temporary file that disappears when its handle is dropped.
pub(crate) fn made(options: &VolumeOptions) -> Result<File, String> {
    let dir = tempfile::tempdir().map_err(|error| error.to_string())?;
    let path = dir.path().join("volume");
    let created = Timestamp { seconds: 1_163_116_800, nanos: 0 };
    mkfs(&path, options, created, &Rt::real(Default::default()), Arc::new(|_, _| {}))
        .map_err(|error| error.to_string())?;
    File::open(&path).map_err(|error| error.to_string())
}

/// The layout of an empty volume with block maps, for models of a file system.
pub(crate) struct Ext2Layout {
    /// Its free blocks.
    pub(crate) free: Vec<Range<u64>>,
    /// Its geometry.
    pub(crate) geometry: Geometry,
    /// For each group: block bitmap, inode bitmap, and first block of the inode table.
    pub(crate) groups: Vec<[u64; 3]>,
    /// Inodes per group.
    pub(crate) group_inodes: u64,
    /// Inodes per block.
    pub(crate) block_inodes: u64,
    /// Inodes in use in the first group.
    pub(crate) reserved_inodes: u64,
}

/// Makes an ext2 like mke2fs of 2004: inodes of 128 bytes, one per 8 KiB, and no blocks reserved
/// for growth.
pub(crate) fn ext2_of_2004(bytes: u64) -> Result<Ext2Layout, String> {
    let options = VolumeOptions {
        fs_type: FsType::Ext2,
        block_size: Some(BlockSize::K4),
        inode_size: 128,
        size: SizePolicy::Fixed(bytes),
        bytes_per_inode: Some(8192),
        features: FeatureChoices { resize_inode: Some(false), ..FeatureChoices::default() },
        uuid: Some([0x5a; 16]),
        hash_seed: Some([0xa5; 16]),
        ..VolumeOptions::default()
    };
    let file = made(&options)?;
    let read = from_file(&file);
    let (free, geometry) = free_of(&read)?;
    let sb = Superblock::parse(&read(1024, 1024)?).map_err(|error| error.to_string())?;
    let descriptor = |number| descriptor(&sb, number, &read);
    let descriptors: Vec<GroupDescriptor> =
        (0..sb.group_count()).map(descriptor).collect::<Result<_, _>>()?;
    let places = |found: &GroupDescriptor| [found.block_bitmap.0, found.inode_bitmap.0, found.inode_table.0];
    let group_inodes = u64::from(sb.inodes_per_group());
    Ok(Ext2Layout {
        groups: descriptors.iter().map(places).collect(),
        group_inodes,
        block_inodes: BLOCK_BYTES / 128,
        reserved_inodes: group_inodes - u64::from(descriptors[0].free_inodes),
        free,
        geometry,
    })
}

fn descriptor(
    sb: &Superblock,
    number: u32,
    read: &dyn Fn(u64, usize) -> Result<Vec<u8>, String>,
) -> Result<GroupDescriptor, String> {
    let table = sb.descriptor_block(number / sb.descriptors_per_block());
    let within = (number % sb.descriptors_per_block()) as usize * sb.descriptor_size();
    let bytes = read(table.0 * BLOCK_BYTES + within as u64, sb.descriptor_size())?;
    GroupDescriptor::parse(&bytes, sb, Group(number)).map_err(|error| error.to_string())
}

pub(crate) fn from_file(file: &File) -> impl Fn(u64, usize) -> Result<Vec<u8>, String> {
    move |at, len| {
        let mut bytes = vec![0; len];
        file.read_exact_at(&mut bytes, at).map(|()| bytes).map_err(|error| error.to_string())
    }
}

/// Returns the free space according to the volume's bitmaps, and its geometry.
///
/// `read` returns bytes of the volume, given their offset and number.
pub(crate) fn free_of(
    read: &dyn Fn(u64, usize) -> Result<Vec<u8>, String>,
) -> Result<(Vec<Range<u64>>, Geometry), String> {
    let sb = Superblock::parse(&read(1024, 1024)?).map_err(|error| error.to_string())?;
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
