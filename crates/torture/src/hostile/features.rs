//! Superblock fields that decide how a damaged volume is judged; offsets as in fs/ext4/ext4.h.

use crate::Image;

const SUPERBLOCK: usize = 1024;

fn word(image: &Image, at: usize) -> u32 {
    let mut bytes = [0; 4];
    image.read(SUPERBLOCK + at, &mut bytes);
    u32::from_le_bytes(bytes)
}

/// `metadata_csum` in `s_feature_ro_compat` at 0x64.
pub(super) fn has_checksums(image: &Image) -> bool {
    word(image, 0x64) & 0x400 != 0
}

/// Whether opening triggers recovery: `needs_recovery` in `s_feature_incompat` at 0x60, or an
/// orphan in `s_last_orphan` at 0xe8.
pub(super) fn is_recovered(image: &Image) -> bool {
    word(image, 0x60) & 0x4 != 0 || word(image, 0xe8) != 0
}
