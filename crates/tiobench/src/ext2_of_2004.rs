//! An empty ext2 as mke2fs of 2004 made it.

use crate::page_cache::BLOCK_BYTES;
use extant_format::{BlockSize, GroupDescriptor};
use extant_history::alloc::Geometry;
use extant_history::alloc::on_disk::{descriptor, free_of, from_file, superblock};
use extant_image::{FeatureChoices, FsType, SizePolicy, VolumeOptions, mkfs_temporary};
use std::ops::Range;

const INODE_BYTES: u16 = 128;

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
        inode_size: INODE_BYTES,
        size: SizePolicy::Fixed(bytes),
        bytes_per_inode: Some(8192),
        features: FeatureChoices { resize_inode: Some(false), ..FeatureChoices::default() },
        uuid: Some([0x5a; 16]),
        hash_seed: Some([0xa5; 16]),
        ..VolumeOptions::default()
    };
    let file = mkfs_temporary(&options).map_err(|error| error.to_string())?;
    let read = from_file(&file);
    let (free, geometry) = free_of(&read)?;
    let sb = superblock(&read)?;
    let descriptor = |number| descriptor(&sb, number, &read);
    let descriptors: Vec<GroupDescriptor> =
        (0..sb.group_count()).map(descriptor).collect::<Result<_, _>>()?;
    let places = |found: &GroupDescriptor| [found.block_bitmap.0, found.inode_bitmap.0, found.inode_table.0];
    let group_inodes = u64::from(sb.inodes_per_group());
    Ok(Ext2Layout {
        groups: descriptors.iter().map(places).collect(),
        group_inodes,
        block_inodes: BLOCK_BYTES / u64::from(INODE_BYTES),
        reserved_inodes: group_inodes - u64::from(descriptors[0].free_inodes),
        free,
        geometry,
    })
}
