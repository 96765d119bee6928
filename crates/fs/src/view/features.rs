//! Features that are supported for reading and for writing.

use crate::{Error, Result};
use extant_format::{Compat, Incompat, Inode, InodeFlags, RoCompat, STATE_VALID, Superblock};

/// Fails, naming the feature, if the volume needs an unsupported one to be read.
pub(crate) fn check_readable(sb: &Superblock) -> Result<()> {
    let unknown = sb.incompat() - Incompat::READABLE;
    if unknown.contains(Incompat::JOURNAL_DEV) {
        return Err(journal_device());
    }
    match unknown.names().next() {
        Some(feature) => Err(Error::unsupported(feature)),
        None => Ok(()),
    }
}

/// The error for an external journal that was named as a volume.
pub(crate) fn journal_device() -> Error {
    let hint = "; this is an external journal, not a volume";
    Error::Unsupported { feature: "journal_dev".into(), hint }
}

/// Features that writing fully maintains.
const WRITABLE: RoCompat = RoCompat::SPARSE_SUPER
    .union(RoCompat::LARGE_FILE)
    .union(RoCompat::HUGE_FILE)
    .union(RoCompat::GDT_CSUM)
    .union(RoCompat::DIR_NLINK)
    .union(RoCompat::EXTRA_ISIZE)
    .union(RoCompat::METADATA_CSUM)
    .union(RoCompat::VERITY)
    .union(RoCompat::PROJECT)
    .union(RoCompat::QUOTA)
    .union(RoCompat::BIGALLOC)
    .union(RoCompat::ORPHAN_PRESENT);

/// The journal mode in `s_default_mount_opts` (EXT4_DEFM_JMODE), and its value for data=journal
/// (EXT4_DEFM_JMODE_DATA).
const DEFAULT_MODE: u32 = 0x60;
const DEFAULT_MODE_DATA: u32 = 0x20;

/// Whether a regular file's data go through the log: if the file has data=journal, or if the
/// volume's default mount options ask for it for all files. As on Linux, neither has an effect
/// without a journal.
pub(crate) fn journals_data(inode: &Inode, sb: &Superblock) -> bool {
    let is_default = sb.raw().s_default_mount_opts.get() & DEFAULT_MODE == DEFAULT_MODE_DATA;
    sb.compat().contains(Compat::HAS_JOURNAL)
        && (is_default || inode.flags().contains(InodeFlags::JOURNAL_DATA))
}

/// The operating system that created the volume (EXT4_OS_HURD). Its inodes have a translator where
/// Linux has a change count.
const OS_HURD: u32 = 1;

/// Fails, naming the feature, if the volume can be read but not written.
pub(crate) fn check_writable(sb: &Superblock) -> Result<()> {
    const HINT: &str = "; it can be opened for reading only";
    let refuse = |feature: String| Err(Error::Unsupported { feature, hint: HINT });
    // Without a journal, a crash could leave an attribute without its value.
    if sb.incompat().contains(Incompat::EA_INODE) && !sb.compat().contains(Compat::HAS_JOURNAL) {
        return refuse("ea_inode without a journal".into());
    }
    if let Some(feature) = (sb.ro_compat() - WRITABLE).names().next() {
        return refuse(feature);
    }
    if sb.ro_compat().contains(RoCompat::BIGALLOC) {
        // Linux does not mount the first, and mke2fs does not create the others.
        if !sb.incompat().contains(Incompat::EXTENTS) {
            return refuse("bigalloc without extents".into());
        }
        if sb.first_data_block().0 != 0 {
            return refuse("bigalloc with a first block other than 0 (s_first_data_block)".into());
        }
        if sb.cluster_size().offset(sb.blocks_count()) != 0 {
            return refuse("bigalloc with a last cluster that is cut short".into());
        }
    }
    // Pointers of block maps, and to a new directory's block, have 32 bits.
    if sb.blocks_count() > 1 << u32::BITS && !sb.incompat().contains(Incompat::EXTENTS) {
        return refuse("more than 2^32 blocks without extents".into());
    }
    if sb.raw().s_creator_os.get() == OS_HURD {
        return refuse("inodes of the Hurd (s_creator_os 1)".into());
    }
    let compat = sb.compat();
    if compat.contains(Compat::HAS_JOURNAL) && sb.journal_inode().is_none() {
        return refuse("a journal on another device".into());
    }
    if !compat.contains(Compat::HAS_JOURNAL) {
        if sb.incompat().contains(Incompat::RECOVER) {
            return refuse("needs_recovery without a journal".into());
        }
        if sb.raw().s_state.get() & STATE_VALID == 0 {
            let feature = "a volume without a journal that was not closed cleanly".into();
            return Err(Error::Unsupported { feature, hint: "; run e2fsck first" });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn block_maps_are_not_written_past_what_they_can_point_to() {
        let bytes = include_bytes!("../../../format/tests/data/superblock.bin");
        let mut sb = Superblock::parse(bytes).expect("a sound superblock");
        let raw = sb.raw_mut();
        let bits = raw.s_feature_incompat.get() | Incompat::BIT64.bits();
        raw.s_feature_incompat = bits.into();
        (raw.s_blocks_count_hi, raw.s_blocks_count_lo) = (1.into(), 1.into());
        assert!(check_writable(&sb).is_ok(), "with extents");
        sb.raw_mut().s_feature_incompat = (bits & !Incompat::EXTENTS.bits()).into();
        let error = check_writable(&sb).expect_err("a map cannot point to the last block").to_string();
        assert!(error.contains("more than 2^32 blocks without extents"), "{error}");
        sb.raw_mut().s_blocks_count_lo = 0.into();
        assert!(check_writable(&sb).is_ok(), "block 2^32 - 1 is the last one");
    }
}
