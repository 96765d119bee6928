//! Differences between two volumes as a whole.

use extant_format::{Compat, Incompat, RoCompat, Superblock, Timestamp, UintExt};

/// Which fields to compare.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fields {
    /// Fields chosen when the volume was created, or set by `tune2fs`.
    #[default]
    Settings,
    /// Also fields that distinguish copies or uses of a volume: UUID, seeds, times, counts, state,
    /// free space.
    All,
}

/// The value of a field.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Value {
    /// A number; the field's name says whether it counts bytes, blocks or seconds.
    Number(u64),
    /// A set of names.
    Names(Vec<String>),
    /// Text that need not be UTF-8.
    Text(Vec<u8>),
    /// An identifier or a seed.
    Id([u8; 16]),
    /// A time.
    Time(Timestamp),
}

/// A field in which two volumes differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeDifference {
    /// The field's name.
    pub field: &'static str,
    /// The value in A.
    pub a: Value,
    /// The value in B.
    pub b: Value,
}

/// Compares two volumes as a whole by their superblocks. Placement is not compared.
pub fn compare_volumes(a: &Superblock, b: &Superblock, fields: Fields) -> Vec<VolumeDifference> {
    let all = |sb| match fields {
        Fields::Settings => settings(sb),
        Fields::All => [settings(sb), marks(sb)].concat(),
    };
    let pairs = all(a).into_iter().zip(all(b));
    pairs.filter(|(a, b)| a.1 != b.1).map(|((field, a), (_, b))| VolumeDifference { field, a, b }).collect()
}

/// Features, without those that only mark a volume in use: a clean volume does not have them.
fn features(sb: &Superblock) -> Value {
    let compat: Compat = sb.compat();
    let incompat = sb.incompat().difference(Incompat::RECOVER);
    let ro_compat = sb.ro_compat().difference(RoCompat::ORPHAN_PRESENT);
    Value::Names(compat.names().chain(incompat.names()).chain(ro_compat.names()).collect())
}

fn settings(sb: &Superblock) -> Vec<(&'static str, Value)> {
    let raw = sb.raw();
    let id = |high: u16, low: u16| number(u32::from(high) << 16 | u32::from(low));
    let text = |bytes: &[u8]| Value::Text(bytes.split(|&byte| byte == 0).next().unwrap_or_default().to_vec());
    // The backup of the journal's inode; its last two words hold the size (kernel:
    // ext4_super_block.s_jnl_blocks).
    let journal_bytes = match (sb.journal_inode(), raw.s_jnl_backup_type) {
        (Some(_), 1) => u64::from(raw.s_jnl_blocks[15].get()) << 32 | u64::from(raw.s_jnl_blocks[16].get()),
        _ => 0,
    };
    vec![
        ("label", Value::Text(sb.label().to_vec())),
        ("features", features(sb)),
        ("block_bytes", number(sb.block_size().bytes())),
        ("cluster_bytes", number(u64::from(sb.blocks_per_cluster()) << sb.block_size().log2())),
        ("blocks", number(sb.blocks_count())),
        ("blocks_per_group", number(sb.blocks_per_group())),
        ("reserved_blocks", number(sb.reserved_blocks())),
        ("reserved_uid", id(raw.s_def_resuid_hi.get(), raw.s_def_resuid.get())),
        ("reserved_gid", id(raw.s_def_resgid_hi.get(), raw.s_def_resgid.get())),
        ("inodes", number(sb.inodes_count())),
        ("inodes_per_group", number(sb.inodes_per_group())),
        ("inode_bytes", number(sb.inode_size())),
        ("extra_inode_bytes_wanted", number(raw.s_want_extra_isize.get())),
        ("extra_inode_bytes_required", number(raw.s_min_extra_isize.get())),
        ("first_inode", number(sb.first_inode().0)),
        ("descriptor_bytes", number(sb.descriptor_size().to_u64())),
        ("reserved_descriptor_blocks", number(raw.s_reserved_gdt_blocks.get())),
        ("flex_bg_log_groups", number(raw.s_log_groups_per_flex)),
        ("first_meta_bg", number(raw.s_first_meta_bg.get())),
        (
            "backup_groups",
            Value::Names(raw.s_backup_bgs.iter().map(|group| group.get().to_string()).collect()),
        ),
        ("raid_stride_blocks", number(raw.s_raid_stride.get())),
        ("raid_stripe_blocks", number(raw.s_raid_stripe_width.get())),
        ("journal_bytes", number(journal_bytes)),
        ("directory_hash", number(raw.s_def_hash_version)),
        ("flags", number(raw.s_flags.get())),
        ("checksum_type", number(raw.s_checksum_type)),
        ("errors", number(raw.s_errors.get())),
        ("default_mount_options", number(raw.s_default_mount_opts.get())),
        ("mount_options", text(&raw.s_mount_opts)),
        ("max_mount_count", number(raw.s_max_mnt_count.get())),
        ("check_interval_seconds", number(raw.s_checkinterval.get())),
        ("mmp_update_interval_seconds", number(raw.s_mmp_update_interval.get())),
        ("encoding", number(raw.s_encoding.get())),
        ("encoding_flags", number(raw.s_encoding_flags.get())),
        ("creator_os", number(raw.s_creator_os.get())),
        ("revision", number(sb.rev_level())),
    ]
}

fn marks(sb: &Superblock) -> Vec<(&'static str, Value)> {
    let raw = sb.raw();
    let seed = sb.hash_seed().map(u32::to_le_bytes).concat().try_into().expect("four words");
    let clean =
        !sb.incompat().contains(Incompat::RECOVER) && !sb.ro_compat().contains(RoCompat::ORPHAN_PRESENT);
    vec![
        ("uuid", Value::Id(sb.uuid())),
        ("hash_seed", Value::Id(seed)),
        ("checksum_seed", number(raw.s_checksum_seed.get())),
        ("journal_uuid", Value::Id(raw.s_journal_uuid)),
        ("encryption_salt", Value::Id(raw.s_encrypt_pw_salt)),
        ("created", Value::Time(sb.created())),
        ("last_mount", Value::Time(sb.mounted())),
        ("last_write", Value::Time(sb.written())),
        ("last_check", Value::Time(sb.checked())),
        ("last_mounted", Value::Text(sb.last_mounted().to_vec())),
        ("mount_count", number(raw.s_mnt_count.get())),
        ("written_kib", number(raw.s_kbytes_written.get())),
        ("state", number(raw.s_state.get())),
        ("clean", number(clean)),
        ("error_count", number(raw.s_error_count.get())),
        ("free_blocks", number(sb.free_blocks())),
        ("free_inodes", number(raw.s_free_inodes_count.get())),
    ]
}

fn number(value: impl Into<u64>) -> Value {
    Value::Number(value.into())
}
