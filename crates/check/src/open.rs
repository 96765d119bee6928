//! Finds the superblock and the journal's newer blocks, before anything else can be read.

use crate::finding::{Report, Spot};
use crate::limits::Limits;
use crate::source::Source;
use crate::{CheckError, Code, Options};
use extant_block::Device;
use extant_format::{
    BlockSize, Compat, Corrupt, Group, Incompat, Place, Problem, RawSuperblock, SUPERBLOCK_BYTES, Superblock,
    backup_offsets,
};
use std::collections::BTreeMap;
use std::sync::Arc;
use zerocopy::FromBytes;

/// Offset of the primary superblock in bytes.
pub(crate) const PRIMARY_OFFSET: u64 = 1024;

/// `EXT4_ENC_UTF8_12_1`, the only encoding of names that Linux and e2fsprogs know.
pub(crate) const ENCODING: u16 = 1;

/// A volume with a usable superblock.
pub(crate) struct Opened {
    pub(crate) sb: Superblock,
    pub(crate) source: Source,
    /// The superblock is a backup; its counts and state are out of date.
    pub(crate) from_backup: bool,
    /// Newer blocks are read from the journal.
    pub(crate) replayed: bool,
    /// The journal could not be applied, so that structures may contradict each other.
    pub(crate) stale: bool,
    /// The journal could not be applied for a reason other than damage here, such as fast commits
    /// or an external journal.
    pub(crate) pending: bool,
}

pub(crate) async fn read_at(
    device: &Arc<dyn Device>,
    limits: &Arc<Limits>,
    offset: u64,
) -> Option<[u8; SUPERBLOCK_BYTES]> {
    Source::new(device.clone(), BlockSize::K1, limits.clone()).superblock_bytes(offset).await
}

/// Opens the volume on `device`.
pub(crate) async fn open(
    device: Arc<dyn Device>,
    options: &Options,
    limits: &Arc<Limits>,
    report: &mut Report,
) -> Result<Opened, CheckError> {
    let at = options.superblock_offset.unwrap_or(PRIMARY_OFFSET);
    let bytes = read_at(&device, limits, at).await;
    let (sb, from_backup) = match bytes.as_ref().map(|bytes| parse(bytes, report)) {
        Some(Ok(sb)) => (sb, at != PRIMARY_OFFSET),
        failed => {
            let damage = match failed {
                Some(Err(corrupt)) => corrupt,
                _ => Corrupt::truncated(Place::Superblock, SUPERBLOCK_BYTES, 0),
            };
            if bytes.as_ref().is_some_and(|bytes| Superblock::is_journal_device(bytes)) {
                return Err(CheckError::Unsupported("journal_dev: an external journal, not a volume".into()));
            }
            let backup = match options.superblock_offset {
                Some(_) => None,
                None => find_backup(&device, limits, bytes.as_ref()).await,
            };
            let Some((sb, offset)) = backup else { return Err(CheckError::NoVolume(damage)) };
            let (found, expected) = crate::finding::words(&damage.problem);
            let expected = format!("{expected}; the backup at byte {offset} is used instead");
            report.add(Code::SuperblockDamaged, Spot::default(), found, expected);
            (sb, true)
        }
    };
    let source = Source::new(device.clone(), sb.block_size(), limits.clone())
        .with_depth(options.tasks, options.depth)
        .with_uncached(options.uncached.clone());
    refuse_unknown(&sb)?;
    let mut opened = Opened { sb, source, from_backup, replayed: false, stale: false, pending: false };
    let dirty = opened.sb.incompat().contains(Incompat::RECOVER);
    let internal = opened.sb.compat().contains(Compat::HAS_JOURNAL) && opened.sb.journal_inode().is_some();
    if options.ignore_journal {
        opened.stale = dirty;
    } else if dirty && internal {
        overlay(&device, &mut opened, report).await?;
    } else if dirty {
        opened.stale = true;
        // The journal is on another device, and may be sound.
        opened.pending = opened.sb.compat().contains(Compat::HAS_JOURNAL);
    }
    Ok(opened)
}

/// Finds newer copies of blocks in the journal, and reads the superblock through them.
async fn overlay(
    device: &Arc<dyn Device>,
    opened: &mut Opened,
    report: &mut Report,
) -> Result<(), CheckError> {
    let found = match extant_fs::journal_copies(device.clone()).await {
        Ok(found) => found,
        Err(error) => {
            opened.stale = true;
            let code = match &error {
                extant_fs::Error::Corrupt(Corrupt { place: Place::JournalSuperblock, .. }) => {
                    Code::JournalSuperblock
                }
                extant_fs::Error::Corrupt(Corrupt { place: Place::JournalBlock(_), .. }) => Code::JournalLog,
                extant_fs::Error::Corrupt(_) | extant_fs::Error::Io(_) => Code::JournalInode,
                // Other errors, such as unsupported fast commits, do not mean damage.
                _ => {
                    opened.pending = true;
                    return Ok(());
                }
            };
            report.add(code, Spot::default(), error.to_string(), "a journal that can be replayed");
            return Ok(());
        }
    };
    for problem in &found.problems {
        let expected = "transactions with right checksums up to the end of the log";
        report.add(Code::JournalLog, Spot::default(), problem.to_string(), expected);
    }
    let copies: BTreeMap<u64, _> = found.copies.into_iter().map(|(home, copy)| (home.0, copy)).collect();
    let changes_superblock = copies.contains_key(&(PRIMARY_OFFSET >> opened.sb.block_size().log2()));
    opened.source = opened.source.clone().with_overlay(copies);
    opened.replayed = true;
    if !changes_superblock && opened.from_backup {
        return Ok(());
    }
    let newer = opened.source.superblock_bytes(PRIMARY_OFFSET).await;
    if let Some(newer) = newer.and_then(|bytes| Superblock::parse(&bytes).ok()) {
        let same = newer.block_size() == opened.sb.block_size()
            && newer.inode_size() == opened.sb.inode_size()
            && newer.group_count() == opened.sb.group_count();
        if same {
            refuse_unknown(&newer)?;
            let older = std::mem::replace(&mut opened.sb, newer);
            opened.sb.keep_errors_of(&older);
        }
    }
    Ok(())
}

fn refuse_unknown(sb: &Superblock) -> Result<(), CheckError> {
    match (sb.incompat() - Incompat::READABLE).names().next() {
        Some(feature) => Err(CheckError::Unsupported(feature)),
        None => Ok(()),
    }
}

/// Parses a superblock. Fields that follow from others are corrected in memory.
fn parse(bytes: &[u8; SUPERBLOCK_BYTES], report: &mut Report) -> Result<Superblock, Corrupt> {
    let first = match Superblock::parse(bytes) {
        Ok(sb) => {
            if let Err(corrupt) = sb.verify_checksum() {
                report.corrupt(Code::SuperblockChecksum, Spot::default(), &corrupt);
            }
            return Ok(sb);
        }
        Err(corrupt) => corrupt,
    };
    let Ok(mut raw) = RawSuperblock::read_from_bytes(bytes) else { return Err(first) };
    let code = match first.problem {
        Problem::Field { field: "s_inodes_count", .. } => {
            let first_block = u64::from(raw.s_first_data_block.get());
            let blocks = u64::from(raw.s_blocks_count_lo.get());
            // Only if the number of groups is not in doubt as well.
            let groups =
                blocks.checked_sub(first_block).map(|n| n.div_ceil(raw.s_blocks_per_group.get().into()));
            let count = groups.and_then(|n| n.checked_mul(raw.s_inodes_per_group.get().into()));
            let Some(count) = count.and_then(|n| u32::try_from(n).ok()) else { return Err(first) };
            raw.s_inodes_count = count.into();
            Code::SuperblockInodes
        }
        Problem::Field { field: "s_log_groups_per_flex", .. } => {
            raw.s_log_groups_per_flex = 0;
            Code::SuperblockField
        }
        Problem::Field { field: "s_first_ino", .. } => {
            raw.s_first_ino = 11.into();
            Code::SuperblockField
        }
        _ => return Err(first),
    };
    let sb = Superblock::from_raw(raw)?;
    report.corrupt(code, Spot::default(), &first);
    Ok(sb)
}

/// Finds the first backup that is intact and belongs to a volume of this device.
pub(crate) async fn find_backup(
    device: &Arc<dyn Device>,
    limits: &Arc<Limits>,
    primary: Option<&[u8; SUPERBLOCK_BYTES]>,
) -> Option<(Superblock, u64)> {
    let empty = [0; SUPERBLOCK_BYTES];
    for offset in backup_offsets(primary.unwrap_or(&empty), device.limits().capacity_bytes) {
        let Some(bytes) = read_at(device, limits, offset).await else { continue };
        let Ok(sb) = Superblock::parse(&bytes) else { continue };
        // Old versions of mke2fs left the group number in backups 0.
        let mut numbered = sb.clone();
        if numbered.raw().s_block_group_nr.get() == 0 {
            let block = (offset >> sb.block_size().log2()).saturating_sub(sb.first_data_block().0);
            let group = u16::try_from(block / u64::from(sb.blocks_per_group())).unwrap_or(0);
            numbered.raw_mut().s_block_group_nr = group.into();
        }
        if !numbered.is_backup_at(offset) || sb.verify_checksum().is_err() {
            continue;
        }
        // The backup may be left over from an earlier volume on the device.
        let source = Source::new(device.clone(), sb.block_size(), limits.clone());
        let table = sb.descriptor_block(0);
        let first = source.one(table.0).await;
        let sound = first.is_some_and(|piece| {
            extant_format::GroupDescriptor::parse_unchecked(piece.bytes(), &sb, Group(0)).is_ok()
        });
        if sound {
            return Some((sb, offset));
        }
    }
    None
}

/// Checks fields of the superblock that do not depend on others.
pub(crate) fn check_fields(sb: &Superblock, from_backup: bool, options: &Options, report: &mut Report) {
    use extant_format::RoCompat;
    let raw = sb.raw();
    let at = Spot::default;
    let (compat, incompat, ro) = (sb.compat(), sb.incompat(), sb.ro_compat());
    let contradiction = |found: &str, expected: &str| {
        report.add(Code::SuperblockFeatures, at(), found, expected);
    };
    if ro.contains(RoCompat::METADATA_CSUM | RoCompat::GDT_CSUM) {
        contradiction("metadata_csum and uninit_bg", "one of them");
    }
    if incompat.contains(Incompat::BIT64) && !incompat.contains(Incompat::EXTENTS) {
        contradiction("64bit without extent", "extent too");
    }
    if incompat.contains(Incompat::CSUM_SEED) && !ro.contains(RoCompat::METADATA_CSUM) {
        contradiction("metadata_csum_seed without metadata_csum", "metadata_csum too");
    }
    if compat.contains(Compat::RESIZE_INODE) && incompat.contains(Incompat::META_BG) {
        contradiction("resize_inode and meta_bg", "one of them");
    }
    if sb.rev_level() == 0 && (compat.bits() | incompat.bits() | ro.bits()) != 0 {
        contradiction("features in revision 0", "revision 1");
    }
    if compat.contains(Compat::HAS_JOURNAL)
        && raw.s_journal_inum.get() == 0
        && raw.s_journal_dev.get() == 0
        && raw.s_journal_uuid == [0; 16]
    {
        report.add(Code::JournalState, at(), "has_journal without a journal", "a journal's inode or device");
    }
    if !compat.contains(Compat::HAS_JOURNAL) {
        if incompat.contains(Incompat::RECOVER) {
            report.add(Code::JournalState, at(), "needs_recovery without has_journal", "neither or both");
        }
        if raw.s_journal_inum.get() != 0 {
            let found = format!("s_journal_inum is {} without has_journal", raw.s_journal_inum);
            report.add(Code::JournalState, at(), found, "0");
        }
    }
    let field = |name: &str, value: u64, rule: &str| {
        report.add(Code::SuperblockField, at(), format!("{name} is {value}"), rule);
    };
    if sb.reserved_blocks() > sb.blocks_count() / 2 {
        field("s_r_blocks_count", sb.reserved_blocks(), "at most half of the volume");
    }
    if !ro.contains(RoCompat::BIGALLOC) {
        // The fields once counted fragments, which were always as large as blocks.
        if raw.s_clusters_per_group.get() != raw.s_blocks_per_group.get() {
            field("s_clusters_per_group", raw.s_clusters_per_group.get().into(), "s_blocks_per_group");
        }
        if raw.s_log_cluster_size.get() != raw.s_log_block_size.get() {
            field("s_log_cluster_size", raw.s_log_cluster_size.get().into(), "s_log_block_size");
        }
    }
    if !compat.contains(Compat::RESIZE_INODE) && raw.s_reserved_gdt_blocks.get() != 0 {
        field("s_reserved_gdt_blocks", raw.s_reserved_gdt_blocks.get().into(), "0 without resize_inode");
    }
    if incompat.contains(Incompat::META_BG) && raw.s_first_meta_bg.get() > sb.descriptor_blocks() {
        field("s_first_meta_bg", raw.s_first_meta_bg.get().into(), "at most the blocks of descriptors");
    }
    if sb.inode_size() > 128 {
        let most = sb.inode_size() - 128;
        for (name, value) in [
            ("s_min_extra_isize", raw.s_min_extra_isize.get()),
            ("s_want_extra_isize", raw.s_want_extra_isize.get()),
        ] {
            if value > most || value % 4 != 0 {
                field(name, value.into(), "a multiple of 4 that fits the inode");
            }
        }
    }
    if sb.rev_level() > 0 && sb.first_inode().0 > sb.inodes_count() {
        field("s_first_ino", sb.first_inode().0.into(), "an inode of the volume");
    }
    if incompat.contains(Incompat::CASEFOLD) && raw.s_encoding.get() != ENCODING {
        field("s_encoding", raw.s_encoding.get().into(), "1, which is UTF-8 12.1, with casefold");
    }
    if raw.s_flags.get() & 4 != 0 {
        field("s_flags", raw.s_flags.get().into(), "without the mark of a volume for tests");
    }
    if compat.contains(Compat::DIR_INDEX) && sb.hash_seed() == [0; 4] {
        report.add(Code::SuperblockHashSeed, at(), "all zeros", "a random seed");
    }
    if sb.uuid() == [0; 16] && sb.rev_level() > 0 {
        report.add(Code::SuperblockUuid, at(), "all zeros", "a random UUID");
    }
    if from_backup {
        return;
    }
    if raw.s_flags.get() & 3 == 0 && compat.contains(Compat::DIR_INDEX) {
        report.add(Code::SuperblockHint, at(), "neither flag is set", "signed or unsigned");
    }
    // A day's grace, for clocks set to other time zones.
    if let Some(latest) = options.now.map(|now| now.saturating_add(86_400)) {
        for (name, time) in [("s_mtime", sb.mounted()), ("s_wtime", sb.written())] {
            if time.seconds > latest {
                report.add(Code::SuperblockFuture, at(), format!("{name} is {time}"), "a time in the past");
            }
        }
    }
    let errors = raw.s_error_count.get();
    if errors != 0 {
        let text = |bytes: &[u8]| {
            let end = bytes.iter().position(|&b| b == 0).unwrap_or(bytes.len());
            bytes[..end].escape_ascii().to_string()
        };
        let found = format!(
            "{errors} errors, the first in {}:{}, inode {}, block {}",
            text(&raw.s_first_error_func),
            raw.s_first_error_line,
            raw.s_first_error_ino,
            raw.s_first_error_block
        );
        report.add(Code::ErrorRecord, at(), found, "none");
    } else if raw.s_state.get() & extant_format::STATE_ERROR != 0 {
        report.add(Code::ErrorRecord, at(), "the state says that the volume has errors", "none");
    }
}
