//! Rejects volumes that cannot be shrunk.

use extant_format::{
    Compat, Corrupt, Incompat, InodeNumber, Place, RoCompat, STATE_ERROR, STATE_VALID, Superblock,
};
use extant_fs::Error;

/// Features whose structures contain only numbers and locations that are rewritten.
const COMPAT: Compat = Compat::DIR_PREALLOC
    .union(Compat::HAS_JOURNAL)
    .union(Compat::EXT_ATTR)
    .union(Compat::RESIZE_INODE)
    .union(Compat::DIR_INDEX)
    .union(Compat::FAST_COMMIT)
    .union(Compat::ORPHAN_FILE);
const INCOMPAT: Incompat = Incompat::FILETYPE
    .union(Incompat::EXTENTS)
    .union(Incompat::BIT64)
    .union(Incompat::FLEX_BG)
    .union(Incompat::EA_INODE)
    .union(Incompat::CSUM_SEED)
    .union(Incompat::LARGEDIR)
    .union(Incompat::INLINE_DATA)
    .union(Incompat::ENCRYPT)
    .union(Incompat::CASEFOLD);
const RO_COMPAT: RoCompat = RoCompat::SPARSE_SUPER
    .union(RoCompat::LARGE_FILE)
    .union(RoCompat::HUGE_FILE)
    .union(RoCompat::GDT_CSUM)
    .union(RoCompat::DIR_NLINK)
    .union(RoCompat::EXTRA_ISIZE)
    .union(RoCompat::METADATA_CSUM)
    .union(RoCompat::PROJECT)
    .union(RoCompat::VERITY);

/// Fails with the name of whatever prevents a smaller copy of the volume.
pub(super) fn check(sb: &Superblock) -> Result<(), Error> {
    const HINT: &str = " where a volume is made smaller";
    let refuse = |feature: String, hint| Err(Error::Unsupported { feature, hint });
    let raw = sb.raw();
    if sb.incompat().contains(Incompat::RECOVER)
        || sb.ro_compat().contains(RoCompat::ORPHAN_PRESENT)
        || raw.s_last_orphan.get() != 0
    {
        let feature = "a journal that is not empty, or files deleted or truncated while open";
        return refuse(feature.into(), HINT_RECOVER);
    }
    if raw.s_state.get() & STATE_ERROR != 0 || raw.s_state.get() & STATE_VALID == 0 {
        return refuse("a state that a check must look at (s_state)".into(), "; run e2fsck first");
    }
    let mut names = (sb.incompat() - INCOMPAT).names().chain((sb.ro_compat() - RO_COMPAT).names());
    if let Some(feature) = names.next().or_else(|| (sb.compat() - COMPAT).names().next()) {
        return refuse(feature, HINT);
    }
    if sb.compat().contains(Compat::HAS_JOURNAL) && sb.journal_inode() != Some(InodeNumber::JOURNAL) {
        return refuse("a journal on another device, or in another inode than 8".into(), HINT);
    }
    if !sb.compat().contains(Compat::HAS_JOURNAL) && raw.s_journal_inum.get() != 0 {
        return bad("s_journal_inum", raw.s_journal_inum.get(), "0, for the volume has no journal");
    }
    let is_bigalloc = sb.ro_compat().contains(RoCompat::BIGALLOC);
    if !is_bigalloc && raw.s_log_cluster_size.get() != raw.s_log_block_size.get() {
        return bad("s_log_cluster_size", raw.s_log_cluster_size.get(), "s_log_block_size, without bigalloc");
    }
    if sb.compat().contains(Compat::ORPHAN_FILE) && !sb.compat().contains(Compat::HAS_JOURNAL) {
        return refuse("an orphan file without a journal".into(), HINT);
    }
    // Inodes of the Hurd reference a translator's block (EXT4_OS_HURD).
    if raw.s_creator_os.get() == 1 {
        return refuse("inodes of the Hurd (s_creator_os 1)".into(), HINT);
    }
    if sb.incompat().contains(Incompat::BIT64) && sb.descriptor_size() != 64 {
        return refuse(format!("group descriptors of {} bytes", sb.descriptor_size()), HINT);
    }
    if sb.first_data_block().0 != u64::from(sb.block_size().bytes() == 1024) {
        return refuse("another first block than usual (s_first_data_block)".into(), HINT);
    }
    Ok(())
}

fn bad(field: &'static str, value: u32, rule: &'static str) -> Result<(), Error> {
    Err(Corrupt::field(Place::Superblock, field, value.into(), rule).into())
}

/// Advice for a volume that was not closed.
const HINT_RECOVER: &str = " where a volume is made smaller; `extant recover` finishes both";
