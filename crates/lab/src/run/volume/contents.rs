//! The contents of a newly made volume.

use super::{BLOCK_BYTES, FileSystem, VolumeSpec};
use extant_block::Sector;
use extant_format::BlockSize;
use extant_history::alloc::on_disk::{free_of, from_file};
use extant_image::{FeatureChoices, FsType, SizePolicy, VolumeOptions, mkfs_temporary};
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;

/// An empty volume.
pub(super) struct EmptyVolume {
    /// Its non-zero parts, in whole blocks.
    pub(super) data: Vec<(Sector, Vec<u8>)>,
    /// Its free space in blocks; empty for ext4.
    pub(super) free: Vec<Range<u64>>,
}

/// Makes an ext volume; `None` for other file systems.
pub(super) fn make(spec: &VolumeSpec) -> Result<Option<EmptyVolume>, String> {
    let fs_type = match spec.fs {
        FileSystem::Ext2 => FsType::Ext2,
        FileSystem::Ext3 => FsType::Ext3,
        FileSystem::Ext4 => FsType::Ext4,
        FileSystem::None | FileSystem::Xfs => return Ok(None),
    };
    // The experiments' expected tables come from volumes with these features, which influence where
    // files are allocated.
    let newest = Some(fs_type == FsType::Ext4);
    let options = VolumeOptions {
        fs_type,
        features: FeatureChoices { metadata_csum_seed: newest, orphan_file: newest, ..Default::default() },
        block_size: Some(BlockSize::K4),
        inode_size: spec.inode_bytes.unwrap_or(256),
        size: SizePolicy::Fixed(spec.bytes),
        bytes_per_inode: spec.bytes_per_inode,
        // Fixed, so that every run gets the same volume.
        uuid: Some([0x5a; 16]),
        hash_seed: Some([0xa5; 16]),
        ..VolumeOptions::default()
    };
    let file = mkfs_temporary(&options).map_err(|error| error.to_string())?;
    let data = data_of(&file, spec.bytes).map_err(|error| error.to_string())?;
    let free = match spec.fs {
        FileSystem::Ext4 => Vec::new(),
        _ => free_of(&from_file(&file))?.0,
    };
    Ok(Some(EmptyVolume { data, free }))
}

/// Bytes examined at a time.
const CHUNK_BYTES: usize = 1 << 20;

/// Returns the non-zero blocks; contiguous ones are combined.
fn data_of(file: &File, bytes: u64) -> std::io::Result<Vec<(Sector, Vec<u8>)>> {
    let mut data: Vec<(Sector, Vec<u8>)> = Vec::new();
    let mut chunk = vec![0; CHUNK_BYTES];
    let zeroes = [0_u8; BLOCK_BYTES as usize];
    let mut at = 0;
    while let Some(from) = next_data(file, at)?.filter(|from| *from < bytes) {
        let start = from / BLOCK_BYTES * BLOCK_BYTES;
        // Bitmaps of a large volume are single blocks with long holes between them.
        let end = next_hole(file, from)?.next_multiple_of(BLOCK_BYTES).min(bytes);
        let len = (end - start).min(CHUNK_BYTES as u64) as usize;
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

/// Offset of the first hole after `at`, which may be the end of the file.
fn next_hole(file: &File, at: u64) -> std::io::Result<u64> {
    Ok(rustix::fs::seek(file, rustix::fs::SeekFrom::Hole(at))?)
}

/// Offset of the first byte at or after `at` that is not in a hole.
fn next_data(file: &File, at: u64) -> std::io::Result<Option<u64>> {
    match rustix::fs::seek(file, rustix::fs::SeekFrom::Data(at)) {
        Ok(from) => Ok(Some(from)),
        Err(rustix::io::Errno::NXIO) => Ok(None),
        Err(error) => Err(error.into()),
    }
}
