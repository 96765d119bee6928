//! The superblock (kernel document: *Super Block*): 1,024 bytes at byte 1,024 of the volume, with
//! backups.

use crate::{
    BlockSize, ChecksumSeed, ClusterSize, Compat, Corrupt, Group, Incompat, InodeNumber, Place, Problem,
    RoCompat, Timestamp, UintExt, VolumeBlock, crc32c,
};
use std::fmt;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

mod errors;
mod feature_words;
mod layout;

pub use errors::{ErrorCode, ErrorRecord};
pub use layout::{DescriptorCopy, backup_offsets};

/// `s_magic`.
pub const SUPERBLOCK_MAGIC: u16 = 0xef53;
/// Size of a superblock in bytes, and the offset of the primary one.
pub const SUPERBLOCK_BYTES: usize = 1024;

/// On-disk superblock with the kernel's field names; the numbers are byte offsets.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
#[allow(missing_docs)] // the kernel's names are the documentation
pub struct RawSuperblock {
    /* 0x000 */ pub s_inodes_count: U32,
    /* 0x004 */ pub s_blocks_count_lo: U32,
    /* 0x008 */ pub s_r_blocks_count_lo: U32,
    /* 0x00c */ pub s_free_blocks_count_lo: U32,
    /* 0x010 */ pub s_free_inodes_count: U32,
    /* 0x014 */ pub s_first_data_block: U32,
    /* 0x018 */ pub s_log_block_size: U32,
    /* 0x01c */ pub s_log_cluster_size: U32,
    /* 0x020 */ pub s_blocks_per_group: U32,
    /* 0x024 */ pub s_clusters_per_group: U32,
    /* 0x028 */ pub s_inodes_per_group: U32,
    /* 0x02c */ pub s_mtime: U32,
    /* 0x030 */ pub s_wtime: U32,
    /* 0x034 */ pub s_mnt_count: U16,
    /* 0x036 */ pub s_max_mnt_count: U16,
    /* 0x038 */ pub s_magic: U16,
    /* 0x03a */ pub s_state: U16,
    /* 0x03c */ pub s_errors: U16,
    /* 0x03e */ pub s_minor_rev_level: U16,
    /* 0x040 */ pub s_lastcheck: U32,
    /* 0x044 */ pub s_checkinterval: U32,
    /* 0x048 */ pub s_creator_os: U32,
    /* 0x04c */ pub s_rev_level: U32,
    /* 0x050 */ pub s_def_resuid: U16,
    /* 0x052 */ pub s_def_resgid: U16,
    /* 0x054 */ pub s_first_ino: U32,
    /* 0x058 */ pub s_inode_size: U16,
    /* 0x05a */ pub s_block_group_nr: U16,
    /* 0x05c */ pub s_feature_compat: U32,
    /* 0x060 */ pub s_feature_incompat: U32,
    /* 0x064 */ pub s_feature_ro_compat: U32,
    /* 0x068 */ pub s_uuid: [u8; 16],
    /* 0x078 */ pub s_volume_name: [u8; 16],
    /* 0x088 */ pub s_last_mounted: [u8; 64],
    /* 0x0c8 */ pub s_algorithm_usage_bitmap: U32,
    /* 0x0cc */ pub s_prealloc_blocks: u8,
    /* 0x0cd */ pub s_prealloc_dir_blocks: u8,
    /* 0x0ce */ pub s_reserved_gdt_blocks: U16,
    /* 0x0d0 */ pub s_journal_uuid: [u8; 16],
    /* 0x0e0 */ pub s_journal_inum: U32,
    /* 0x0e4 */ pub s_journal_dev: U32,
    /* 0x0e8 */ pub s_last_orphan: U32,
    /* 0x0ec */ pub s_hash_seed: [U32; 4],
    /* 0x0fc */ pub s_def_hash_version: u8,
    /* 0x0fd */ pub s_jnl_backup_type: u8,
    /* 0x0fe */ pub s_desc_size: U16,
    /* 0x100 */ pub s_default_mount_opts: U32,
    /* 0x104 */ pub s_first_meta_bg: U32,
    /* 0x108 */ pub s_mkfs_time: U32,
    /* 0x10c */ pub s_jnl_blocks: [U32; 17],
    /* 0x150 */ pub s_blocks_count_hi: U32,
    /* 0x154 */ pub s_r_blocks_count_hi: U32,
    /* 0x158 */ pub s_free_blocks_count_hi: U32,
    /* 0x15c */ pub s_min_extra_isize: U16,
    /* 0x15e */ pub s_want_extra_isize: U16,
    /* 0x160 */ pub s_flags: U32,
    /* 0x164 */ pub s_raid_stride: U16,
    /* 0x166 */ pub s_mmp_update_interval: U16,
    /* 0x168 */ pub s_mmp_block: U64,
    /* 0x170 */ pub s_raid_stripe_width: U32,
    /* 0x174 */ pub s_log_groups_per_flex: u8,
    /* 0x175 */ pub s_checksum_type: u8,
    /* 0x176 */ pub s_encryption_level: u8,
    /* 0x177 */ pub s_reserved_pad: u8,
    /* 0x178 */ pub s_kbytes_written: U64,
    /* 0x180 */ pub s_snapshot_inum: U32,
    /* 0x184 */ pub s_snapshot_id: U32,
    /* 0x188 */ pub s_snapshot_r_blocks_count: U64,
    /* 0x190 */ pub s_snapshot_list: U32,
    /* 0x194 */ pub s_error_count: U32,
    /* 0x198 */ pub s_first_error_time: U32,
    /* 0x19c */ pub s_first_error_ino: U32,
    /* 0x1a0 */ pub s_first_error_block: U64,
    /* 0x1a8 */ pub s_first_error_func: [u8; 32],
    /* 0x1c8 */ pub s_first_error_line: U32,
    /* 0x1cc */ pub s_last_error_time: U32,
    /* 0x1d0 */ pub s_last_error_ino: U32,
    /* 0x1d4 */ pub s_last_error_line: U32,
    /* 0x1d8 */ pub s_last_error_block: U64,
    /* 0x1e0 */ pub s_last_error_func: [u8; 32],
    /* 0x200 */ pub s_mount_opts: [u8; 64],
    /* 0x240 */ pub s_usr_quota_inum: U32,
    /* 0x244 */ pub s_grp_quota_inum: U32,
    /* 0x248 */ pub s_overhead_clusters: U32,
    /* 0x24c */ pub s_backup_bgs: [U32; 2],
    /* 0x254 */ pub s_encrypt_algos: [u8; 4],
    /* 0x258 */ pub s_encrypt_pw_salt: [u8; 16],
    /* 0x268 */ pub s_lpf_ino: U32,
    /* 0x26c */ pub s_prj_quota_inum: U32,
    /* 0x270 */ pub s_checksum_seed: U32,
    /* 0x274 */ pub s_wtime_hi: u8,
    /* 0x275 */ pub s_mtime_hi: u8,
    /* 0x276 */ pub s_mkfs_time_hi: u8,
    /* 0x277 */ pub s_lastcheck_hi: u8,
    /* 0x278 */ pub s_first_error_time_hi: u8,
    /* 0x279 */ pub s_last_error_time_hi: u8,
    /* 0x27a */ pub s_first_error_errcode: u8,
    /* 0x27b */ pub s_last_error_errcode: u8,
    /* 0x27c */ pub s_encoding: U16,
    /* 0x27e */ pub s_encoding_flags: U16,
    /* 0x280 */ pub s_orphan_file_inum: U32,
    /* 0x284 */ pub s_def_resuid_hi: U16,
    /* 0x286 */ pub s_def_resgid_hi: U16,
    /* 0x288 */ pub s_reserved: [U32; 93],
    /* 0x3fc */ pub s_checksum: U32,
}

impl Default for RawSuperblock {
    fn default() -> Self {
        Self::new_zeroed()
    }
}

/// A consistent superblock.
#[derive(Clone)]
pub struct Superblock {
    raw: RawSuperblock,
}

/// `s_state`: unmounted cleanly.
pub const STATE_VALID: u16 = 1;
/// `s_state`: errors were found.
pub const STATE_ERROR: u16 = 2;
/// `s_state`: orphan inodes are being recovered.
pub const STATE_ORPHAN: u16 = 4;

impl Superblock {
    /// Parses and checks a superblock: magic, geometry, and limits that make later arithmetic safe.
    ///
    /// Does not check the checksum ([`Self::verify_checksum`]) or whether the features are
    /// supported.
    ///
    /// # Errors
    /// The first field that is out of its range or contradicts another one.
    pub fn parse(bytes: &[u8]) -> Result<Self, Corrupt> {
        let (raw, _) = RawSuperblock::read_from_prefix(bytes)
            .map_err(|_| Corrupt::truncated(Place::Superblock, SUPERBLOCK_BYTES, bytes.len()))?;
        Self::from_raw(raw)
    }

    /// Whether the bytes are the superblock of an external journal device, which has no volume
    /// geometry.
    pub fn is_journal_device(bytes: &[u8]) -> bool {
        RawSuperblock::read_from_prefix(bytes).is_ok_and(|(raw, _)| {
            let features = Incompat::from_bits_retain(raw.s_feature_incompat.get());
            raw.s_magic.get() == SUPERBLOCK_MAGIC && features.contains(Incompat::JOURNAL_DEV)
        })
    }

    /// Like [`Self::parse`], for a layout filled in by the caller.
    ///
    /// # Errors
    /// As [`Self::parse`].
    pub fn from_raw(raw: RawSuperblock) -> Result<Self, Corrupt> {
        let bad = |field, value, rule| Corrupt::field(Place::Superblock, field, value, rule);
        if raw.s_magic.get() != SUPERBLOCK_MAGIC {
            let problem =
                Problem::Magic { found: raw.s_magic.get().into(), expected: SUPERBLOCK_MAGIC.into() };
            return Err(Corrupt { place: Place::Superblock, problem });
        }
        let sb = Self { raw };
        if BlockSize::from_log_kib(raw.s_log_block_size.get()).is_none() {
            return Err(bad("s_log_block_size", raw.s_log_block_size.get().into(), "at most 6 (64 KiB)"));
        }
        let block = sb.block_size();
        let cluster_log = raw.s_log_cluster_size.get();
        if sb.ro_compat().contains(RoCompat::BIGALLOC)
            && (cluster_log < raw.s_log_block_size.get() || cluster_log > 20)
        {
            return Err(bad("s_log_cluster_size", cluster_log.into(), "from s_log_block_size to 20 (1 GiB)"));
        }
        if sb.rev_level() > 1 {
            return Err(bad("s_rev_level", sb.rev_level().into(), "0 or 1"));
        }
        let inode_size = sb.inode_size();
        if !inode_size.is_power_of_two() || inode_size < 128 || usize::from(inode_size) > block.byte_len() {
            return Err(bad("s_inode_size", inode_size.into(), "a power of two from 128 to the block size"));
        }
        let desc = raw.s_desc_size.get();
        if sb.incompat().contains(Incompat::BIT64)
            && (!desc.is_power_of_two() || !(64..=1024).contains(&desc))
        {
            return Err(bad("s_desc_size", desc.into(), "a power of two from 64 to 1024 with 64bit"));
        }
        let first = raw.s_first_data_block.get();
        let expected_first = u32::from(block.bytes() == 1024 && sb.blocks_per_cluster() == 1);
        if first > 1 || (first != expected_first && block.bytes() != 1024) {
            return Err(bad("s_first_data_block", first.into(), "1 with 1 KiB blocks, else 0"));
        }
        let per_group = raw.s_blocks_per_group.get();
        let bits = block.bytes() * 8;
        if sb.clusters_per_group() == 0 || sb.clusters_per_group() > bits {
            return Err(bad(
                "s_clusters_per_group",
                sb.clusters_per_group().into(),
                "from 1 to 8 x the block size",
            ));
        }
        let derived = u64::from(sb.clusters_per_group()) * u64::from(sb.blocks_per_cluster());
        if per_group == 0 || u64::from(per_group) != derived {
            return Err(bad(
                "s_blocks_per_group",
                per_group.into(),
                "s_clusters_per_group x blocks per cluster",
            ));
        }
        let inodes = raw.s_inodes_per_group.get();
        if inodes == 0 || inodes > bits {
            return Err(bad("s_inodes_per_group", inodes.into(), "from 1 to 8 x the block size"));
        }
        let blocks = sb.blocks_count();
        if blocks <= u64::from(first) || blocks > 1 << 48 {
            return Err(bad("s_blocks_count", blocks, "more than s_first_data_block and at most 2^48"));
        }
        let groups = (blocks - u64::from(first)).div_ceil(per_group.into());
        if groups > u64::from(u32::MAX) / 2 {
            return Err(bad("s_blocks_count", blocks, "at most 2^31 groups"));
        }
        if groups * u64::from(inodes) != u64::from(raw.s_inodes_count.get()) {
            return Err(bad(
                "s_inodes_count",
                raw.s_inodes_count.get().into(),
                "groups x s_inodes_per_group",
            ));
        }
        if sb.first_inode().0 < 11 && sb.rev_level() > 0 {
            return Err(bad("s_first_ino", sb.first_inode().0.into(), "at least 11"));
        }
        if raw.s_log_groups_per_flex > 31 {
            return Err(bad("s_log_groups_per_flex", raw.s_log_groups_per_flex.into(), "at most 31"));
        }
        if usize::from(raw.s_reserved_gdt_blocks.get()) > block.byte_len() / 4 {
            let value = raw.s_reserved_gdt_blocks.get().into();
            return Err(bad("s_reserved_gdt_blocks", value, "at most a quarter of the block size"));
        }
        Ok(sb)
    }

    /// The layout with the kernel's field names.
    pub fn raw(&self) -> &RawSuperblock {
        &self.raw
    }

    /// Mutable access to the layout; the caller keeps it consistent and calls
    /// [`Self::update_checksum`].
    pub fn raw_mut(&mut self) -> &mut RawSuperblock {
        &mut self.raw
    }

    /// Checks `s_checksum`; volumes without `metadata_csum` always pass.
    ///
    /// # Errors
    /// Another checksum, or an unknown kind of checksum.
    pub fn verify_checksum(&self) -> Result<(), Corrupt> {
        if !self.has_metadata_csum() {
            return Ok(());
        }
        if self.raw.s_checksum_type != 1 {
            let kind = u64::from(self.raw.s_checksum_type);
            return Err(Corrupt::field(Place::Superblock, "s_checksum_type", kind, "1 (crc32c)"));
        }
        let (stored, computed) = (self.raw.s_checksum.get(), self.checksum());
        if stored == computed { Ok(()) } else { Err(Corrupt::checksum(Place::Superblock, stored, computed)) }
    }

    /// Updates the checksum, with `metadata_csum`.
    pub fn update_checksum(&mut self) {
        if self.has_metadata_csum() {
            self.raw.s_checksum = self.checksum().into();
        }
    }

    fn checksum(&self) -> u32 {
        crc32c(!0, &self.raw.as_bytes()[..SUPERBLOCK_BYTES - 4])
    }

    /// The 1,024 on-disk bytes.
    pub fn as_bytes(&self) -> &[u8] {
        self.raw.as_bytes()
    }

    /// `s_log_block_size`.
    pub fn block_size(&self) -> BlockSize {
        BlockSize::from_log_kib(self.raw.s_log_block_size.get()).unwrap_or(BlockSize::K4)
    }

    /// Blocks per allocation unit: 1 without `bigalloc`.
    pub fn blocks_per_cluster(&self) -> u32 {
        if self.ro_compat().contains(RoCompat::BIGALLOC) {
            let log = self.raw.s_log_cluster_size.get().saturating_sub(self.raw.s_log_block_size.get());
            1 << log.min(20)
        } else {
            1
        }
    }

    /// The allocation unit.
    pub fn cluster_size(&self) -> ClusterSize {
        ClusterSize::from_log_blocks(self.blocks_per_cluster().trailing_zeros())
    }

    /// `s_blocks_count`, in blocks.
    pub fn blocks_count(&self) -> u64 {
        self.wide(self.raw.s_blocks_count_lo, self.raw.s_blocks_count_hi)
    }

    /// `s_r_blocks_count`: blocks reserved for the superuser.
    pub fn reserved_blocks(&self) -> u64 {
        self.wide(self.raw.s_r_blocks_count_lo, self.raw.s_r_blocks_count_hi)
    }

    /// `s_free_blocks_count`: free blocks, even with `bigalloc`, where descriptors count clusters.
    pub fn free_blocks(&self) -> u64 {
        self.wide(self.raw.s_free_blocks_count_lo, self.raw.s_free_blocks_count_hi)
    }

    fn wide(&self, lo: U32, hi: U32) -> u64 {
        let hi = if self.incompat().contains(Incompat::BIT64) { hi.get() } else { 0 };
        u64::from(hi) << 32 | u64::from(lo.get())
    }

    /// `s_first_data_block`: the block of the primary superblock, where group 0 begins.
    pub fn first_data_block(&self) -> VolumeBlock {
        VolumeBlock(self.raw.s_first_data_block.get().into())
    }

    /// `s_blocks_per_group`.
    pub fn blocks_per_group(&self) -> u32 {
        self.raw.s_blocks_per_group.get()
    }

    /// `s_clusters_per_group`; equal to the number of blocks without `bigalloc`.
    pub fn clusters_per_group(&self) -> u32 {
        if self.ro_compat().contains(RoCompat::BIGALLOC) {
            self.raw.s_clusters_per_group.get()
        } else {
            self.raw.s_blocks_per_group.get()
        }
    }

    /// `s_inodes_per_group`.
    pub fn inodes_per_group(&self) -> u32 {
        self.raw.s_inodes_per_group.get()
    }

    /// `s_inodes_count`.
    pub fn inodes_count(&self) -> u32 {
        self.raw.s_inodes_count.get()
    }

    /// Number of block groups.
    pub fn group_count(&self) -> u32 {
        let data = self.blocks_count() - self.first_data_block().0;
        data.div_ceil(self.blocks_per_group().into()).fit_u32()
    }

    /// The first block of a group.
    pub fn group_first_block(&self, group: Group) -> VolumeBlock {
        VolumeBlock(self.first_data_block().0 + u64::from(group.0) * u64::from(self.blocks_per_group()))
    }

    /// Number of blocks in a group; the last one may have fewer.
    pub fn group_blocks(&self, group: Group) -> u32 {
        let left = self.blocks_count().saturating_sub(self.group_first_block(group).0);
        left.min(self.blocks_per_group().into()).fit_u32()
    }

    /// Number of clusters in a group: valid bits of its bitmap.
    pub fn group_clusters(&self, group: Group) -> u32 {
        self.group_blocks(group).div_ceil(self.blocks_per_cluster())
    }

    /// Group of an inode, and its index in the group's table; `None` for 0 and past the last inode.
    pub fn locate_inode(&self, number: InodeNumber) -> Option<(Group, u32)> {
        if number.0 == 0 || number.0 > self.inodes_count() {
            return None;
        }
        Some((Group((number.0 - 1) / self.inodes_per_group()), (number.0 - 1) % self.inodes_per_group()))
    }

    /// Whether a block lies in the volume and is not the boot block.
    pub fn is_valid_block(&self, block: VolumeBlock) -> bool {
        block >= self.first_data_block() && block.0 < self.blocks_count()
    }

    /// `s_inode_size` in bytes: 128 in the original revision.
    pub fn inode_size(&self) -> u16 {
        if self.rev_level() == 0 { 128 } else { self.raw.s_inode_size.get() }
    }

    /// `s_first_ino`: the first inode that is not reserved.
    pub fn first_inode(&self) -> InodeNumber {
        InodeNumber(if self.rev_level() == 0 { 11 } else { self.raw.s_first_ino.get() })
    }

    /// Size of a group descriptor in bytes: 32 without `64bit`.
    pub fn descriptor_size(&self) -> usize {
        if self.incompat().contains(Incompat::BIT64) { self.raw.s_desc_size.get().into() } else { 32 }
    }

    /// Group descriptors per block.
    pub fn descriptors_per_block(&self) -> u32 {
        (self.block_size().byte_len() / self.descriptor_size()).fit_u32()
    }

    /// Number of blocks for all group descriptors.
    pub fn descriptor_blocks(&self) -> u32 {
        self.group_count().div_ceil(self.descriptors_per_block())
    }

    /// Whether metadata has CRC-32C checksums.
    pub fn has_metadata_csum(&self) -> bool {
        self.ro_compat().contains(RoCompat::METADATA_CSUM)
    }

    /// Whether group descriptors have a checksum, of either kind.
    pub fn has_group_csum(&self) -> bool {
        self.ro_compat().intersects(RoCompat::METADATA_CSUM | RoCompat::GDT_CSUM)
    }

    /// Seed of metadata checksums; `None` without `metadata_csum`.
    pub fn checksum_seed(&self) -> Option<ChecksumSeed> {
        if !self.has_metadata_csum() {
            None
        } else if self.incompat().contains(Incompat::CSUM_SEED) {
            Some(ChecksumSeed(self.raw.s_checksum_seed.get()))
        } else {
            Some(ChecksumSeed::from_uuid(&self.raw.s_uuid))
        }
    }

    /// `s_uuid`.
    pub fn uuid(&self) -> [u8; 16] {
        self.raw.s_uuid
    }

    /// `s_volume_name`, without the padding.
    pub fn label(&self) -> &[u8] {
        trim_nul(&self.raw.s_volume_name)
    }

    /// `s_last_mounted`, without the padding.
    pub fn last_mounted(&self) -> &[u8] {
        trim_nul(&self.raw.s_last_mounted)
    }

    /// `s_hash_seed` of directory hashes.
    pub fn hash_seed(&self) -> [u32; 4] {
        self.raw.s_hash_seed.map(U32::get)
    }

    /// Whether directory hashes treat bytes as unsigned (`s_flags` bit 1).
    pub fn unsigned_dir_hash(&self) -> bool {
        self.raw.s_flags.get() & 2 != 0
    }

    /// `s_journal_inum`, with `has_journal`; `None` for an external journal.
    pub fn journal_inode(&self) -> Option<InodeNumber> {
        let number = self.raw.s_journal_inum.get();
        (self.compat().contains(Compat::HAS_JOURNAL) && number != 0).then_some(InodeNumber(number))
    }

    /// `s_orphan_file_inum`, with `orphan_file`.
    pub fn orphan_file(&self) -> Option<InodeNumber> {
        let number = self.raw.s_orphan_file_inum.get();
        (self.compat().contains(Compat::ORPHAN_FILE) && number != 0).then_some(InodeNumber(number))
    }

    /// Whether an inode belongs to the volume itself and has no name: reserved inodes except the
    /// root, and the journal, orphan file and quota files with any number.
    pub fn is_own_inode(&self, number: InodeNumber) -> bool {
        let quotas = [self.raw.s_usr_quota_inum, self.raw.s_grp_quota_inum, self.raw.s_prj_quota_inum];
        let has_quota = self.ro_compat().contains(RoCompat::QUOTA);
        number != InodeNumber::ROOT
            && (number < self.first_inode()
                || self.journal_inode() == Some(number)
                || self.orphan_file() == Some(number)
                || has_quota && quotas.iter().any(|quota| quota.get() == number.0))
    }

    /// Whether the superblock names an inode as the journal, a quota file or the orphan file, even
    /// if the volume lacks that feature. Linux refuses any name that leads to such an inode.
    pub fn names_inode(&self, number: InodeNumber) -> bool {
        let raw = &self.raw;
        [
            raw.s_journal_inum,
            raw.s_usr_quota_inum,
            raw.s_grp_quota_inum,
            raw.s_prj_quota_inum,
            raw.s_orphan_file_inum,
        ]
        .iter()
        .any(|named| named.get() == number.0)
    }

    /// `s_mkfs_time`.
    pub fn created(&self) -> Timestamp {
        Timestamp::from_superblock(self.raw.s_mkfs_time, self.raw.s_mkfs_time_hi)
    }

    /// `s_wtime`: last write to the superblock.
    pub fn written(&self) -> Timestamp {
        Timestamp::from_superblock(self.raw.s_wtime, self.raw.s_wtime_hi)
    }

    /// `s_mtime`: last mount; 0 if there was none.
    pub fn mounted(&self) -> Timestamp {
        Timestamp::from_superblock(self.raw.s_mtime, self.raw.s_mtime_hi)
    }

    /// `s_lastcheck`: last check.
    pub fn checked(&self) -> Timestamp {
        Timestamp::from_superblock(self.raw.s_lastcheck, self.raw.s_lastcheck_hi)
    }
}

fn trim_nul(bytes: &[u8]) -> &[u8] {
    bytes.split(|&b| b == 0).next().unwrap_or_default()
}

impl fmt::Debug for Superblock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Superblock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hex: String = self.uuid().iter().map(|b| format!("{b:02x}")).collect();
        let uuid = [&hex[0..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-");
        let state = match self.raw.s_state.get() {
            STATE_VALID => "clean".to_string(),
            s if s & STATE_ERROR != 0 => "has errors".to_string(),
            s if s & STATE_VALID == 0 => "not cleanly unmounted".to_string(),
            s => format!("{s:#x}"),
        };
        writeln!(f, "label:            {}", self.label().escape_ascii())?;
        writeln!(f, "uuid:             {uuid}")?;
        writeln!(f, "last mounted on:  {}", self.last_mounted().escape_ascii())?;
        writeln!(f, "compatible:       {}", self.compat())?;
        writeln!(f, "incompatible:     {}", self.incompat())?;
        writeln!(f, "read-only compat: {}", self.ro_compat())?;
        writeln!(f, "state:            {state}")?;
        writeln!(f, "block size:       {}", self.block_size())?;
        if self.blocks_per_cluster() > 1 {
            writeln!(
                f,
                "cluster size:     {}",
                u64::from(self.blocks_per_cluster()) << self.block_size().log2()
            )?;
        }
        writeln!(f, "blocks:           {}", self.blocks_count())?;
        writeln!(f, "free blocks:      {}", self.free_blocks())?;
        writeln!(f, "reserved blocks:  {}", self.reserved_blocks())?;
        writeln!(f, "groups:           {}", self.group_count())?;
        writeln!(f, "blocks per group: {}", self.blocks_per_group())?;
        writeln!(f, "inodes:           {}", self.inodes_count())?;
        writeln!(f, "free inodes:      {}", self.raw.s_free_inodes_count)?;
        writeln!(f, "inodes per group: {}", self.inodes_per_group())?;
        writeln!(f, "inode size:       {}", self.inode_size())?;
        writeln!(f, "first inode:      {}", self.first_inode())?;
        if let Some(journal) = self.journal_inode() {
            writeln!(f, "journal inode:    {journal}")?;
        }
        let mounted = match self.mounted() {
            Timestamp { seconds: 0, nanos: 0 } => "never".to_string(),
            time => time.to_string(),
        };
        writeln!(f, "created:          {}", self.created())?;
        writeln!(f, "last mount:       {mounted}")?;
        writeln!(f, "last write:       {}", self.written())?;
        writeln!(f, "last check:       {}", self.checked())?;
        write!(f, "mounts:           {}", self.raw.s_mnt_count)
    }
}
