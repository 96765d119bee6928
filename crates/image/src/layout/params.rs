//! Derives a volume's features and sizes from the user's options.

use crate::{BuildError, FsType, JournalSize, SizePolicy, VolumeOptions};
use extant_format::{BlockSize, Compat, Incompat, RoCompat, Timestamp, UintExt};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const TIB: u64 = 1 << 40;

/// Everything about a volume that is independent of its number of blocks.
#[derive(Clone, Debug)]
pub(crate) struct Params {
    pub(crate) block: BlockSize,
    pub(crate) inode_size: u16,
    /// Blocks per group: as many as a bitmap has bits, unless the contents need more inodes than
    /// such groups can hold.
    pub(crate) group_blocks: u32,
    pub(crate) compat: Compat,
    pub(crate) incompat: Incompat,
    pub(crate) ro_compat: RoCompat,
    pub(crate) size: SizePolicy,
    pub(crate) inodes: Option<u32>,
    pub(crate) bytes_per_inode: u64,
    pub(crate) reserved_milli_percent: u32,
    pub(crate) journal: JournalSize,
    pub(crate) label: [u8; 16],
    pub(crate) uuid: [u8; 16],
    pub(crate) hash_seed: [u8; 16],
    /// Creation time recorded in the volume.
    pub(crate) created: Timestamp,
}

impl Params {
    /// Checks the options and fills in defaults as mke2fs 1.47 does.
    pub(crate) fn resolve(options: &VolumeOptions) -> Result<Self, BuildError> {
        let refuse = |text: &str| Err(BuildError::Options(text.into()));
        let fixed = match options.size {
            SizePolicy::Fixed(bytes) => Some(bytes),
            _ => None,
        };
        let small = fixed.is_some_and(|bytes| bytes < 512 * MIB);
        let default_block = if small { BlockSize::from_log_kib(0) } else { Some(BlockSize::K4) };
        let block = options.block_size.or(default_block).expect("1 KiB and 4 KiB are block sizes");
        let inode_size = options.inode_size;
        if inode_size < 128 || !inode_size.is_power_of_two() || u32::from(inode_size) > block.bytes() {
            return refuse("the inode size is a power of two from 128 to the block size");
        }
        if options.label.len() > 16 || options.label.contains(&0) {
            return refuse("a volume's label has at most 16 bytes, none of them 0");
        }
        if options.reserved_milli_percent.is_some_and(|thousandths| thousandths > 50_000) {
            return refuse("at most 50 percent of the blocks can be reserved");
        }
        let journal = match options.journal {
            // Sizes beyond 32 bits of blocks are refused later as too many blocks.
            JournalSize::Bytes(bytes) => {
                JournalSize::Blocks(u32::try_from(bytes >> block.log2()).unwrap_or(u32::MAX))
            }
            other => other,
        };
        let (compat, incompat, ro_compat) = features(options, journal)?;
        let ratio = match fixed {
            Some(bytes) if bytes < 3 * MIB => 8192,
            Some(bytes) if bytes < 512 * MIB => 4096,
            Some(bytes) if bytes >= 16 * TIB => 65536,
            Some(bytes) if bytes >= 4 * TIB => 32768,
            _ => 16384,
        };
        let bytes_per_inode = options.bytes_per_inode.unwrap_or(ratio.max(block.bytes().into()));
        if !(1024..=64 * GIB).contains(&bytes_per_inode) {
            return refuse("bytes per inode are at least 1,024");
        }
        let mut label = [0; 16];
        label[..options.label.len()].copy_from_slice(&options.label);
        Ok(Self {
            block,
            inode_size,
            // Without 64bit, a group's free blocks are counted in 16 bits.
            group_blocks: (block.bytes() * 8).min(65_528),
            compat,
            incompat,
            ro_compat,
            size: options.size,
            inodes: options.inodes,
            bytes_per_inode,
            reserved_milli_percent: options.reserved_milli_percent.unwrap_or(if fixed.is_some() {
                5000
            } else {
                0
            }),
            journal,
            label,
            uuid: options.uuid.unwrap_or_default(),
            hash_seed: options.hash_seed.unwrap_or_default(),
            created: Timestamp::default(),
        })
    }

    /// Earliest and latest second since 1970 that an inode can store.
    pub(crate) fn time_range(&self) -> (i64, i64) {
        Timestamp::seconds_range(self.inode_size)
    }

    pub(crate) fn has_extents(&self) -> bool {
        self.incompat.contains(Incompat::EXTENTS)
    }

    pub(crate) fn has_metadata_csum(&self) -> bool {
        self.ro_compat.contains(RoCompat::METADATA_CSUM)
    }

    /// Bytes of a directory block available to entries.
    pub(crate) fn dirent_space(&self) -> usize {
        let tail = if self.has_metadata_csum() { extant_format::DIRENT_TAIL_BYTES } else { 0 };
        self.block.byte_len() - tail
    }

    /// Journal blocks for a volume of `volume_blocks`, as chosen by mke2fs 1.47; `None` for no
    /// journal.
    pub(crate) fn journal_blocks(&self, volume_blocks: u64) -> Option<u32> {
        if !self.compat.contains(Compat::HAS_JOURNAL) {
            return None;
        }
        let auto = match volume_blocks {
            0..2048 => None,
            2048..32_768 => Some(1024),
            32_768..262_144 => Some(4096),
            262_144..524_288 => Some(8192),
            524_288..4_194_304 => Some(16_384),
            4_194_304..8_388_608 => Some(32_768),
            8_388_608..16_777_216 => Some(65_536),
            16_777_216..33_554_432 => Some(131_072),
            _ => Some(262_144),
        };
        match self.journal {
            JournalSize::Blocks(n) => Some(n),
            JournalSize::Auto | JournalSize::Bytes(_) => auto,
            JournalSize::None => None,
        }
    }

    /// Orphan-file blocks: 1/4096 of the volume, from 32 to 512.
    pub(crate) fn orphan_blocks(&self, volume_blocks: u64) -> Option<u32> {
        let wanted =
            self.compat.contains(Compat::ORPHAN_FILE) && self.journal_blocks(volume_blocks).is_some();
        wanted.then_some((volume_blocks / 4096).clamp(32, 512).fit_u32())
    }
}

fn features(
    options: &VolumeOptions,
    journal: JournalSize,
) -> Result<(Compat, Incompat, RoCompat), BuildError> {
    let refuse = |text: &str| Err(BuildError::Options(text.into()));
    let mut compat = Compat::EXT_ATTR | Compat::RESIZE_INODE | Compat::DIR_INDEX;
    let mut incompat = Incompat::FILETYPE;
    let mut ro_compat = RoCompat::SPARSE_SUPER | RoCompat::LARGE_FILE;
    if options.fs_type != FsType::Ext2 {
        compat |= Compat::HAS_JOURNAL;
    }
    if options.fs_type == FsType::Ext4 {
        incompat |= Incompat::EXTENTS | Incompat::BIT64 | Incompat::FLEX_BG;
        ro_compat |=
            RoCompat::HUGE_FILE | RoCompat::METADATA_CSUM | RoCompat::DIR_NLINK | RoCompat::EXTRA_ISIZE;
    }
    match journal {
        JournalSize::None => compat -= Compat::HAS_JOURNAL,
        JournalSize::Blocks(n) => {
            if !(1024..=10_240_000).contains(&n) {
                return refuse("a journal has 1,024 to 10,240,000 blocks");
            }
            compat |= Compat::HAS_JOURNAL;
        }
        JournalSize::Auto | JournalSize::Bytes(_) => {}
    }
    let choices = &options.features;
    compat.set_if(Compat::RESIZE_INODE, choices.resize_inode);
    compat.set_if(Compat::ORPHAN_FILE, choices.orphan_file);
    compat.set_if(Compat::DIR_INDEX, choices.dir_index);
    incompat.set_if(Incompat::EXTENTS, choices.extents);
    incompat.set_if(Incompat::FLEX_BG, choices.flex_bg);
    incompat.set_if(Incompat::BIT64, choices.bits64);
    incompat.set_if(Incompat::EA_INODE, choices.ea_inode);
    incompat.set_if(Incompat::LARGEDIR, choices.large_dir);
    ro_compat.set_if(RoCompat::METADATA_CSUM, choices.metadata_csum);
    ro_compat.set_if(RoCompat::GDT_CSUM, choices.uninit_bg);
    incompat.set_if(Incompat::CSUM_SEED, choices.metadata_csum_seed);
    if ro_compat.contains(RoCompat::METADATA_CSUM) {
        ro_compat -= RoCompat::GDT_CSUM; // mutually exclusive; the newer one covers both
    } else if incompat.contains(Incompat::CSUM_SEED) {
        return refuse("metadata_csum_seed needs metadata_csum");
    }
    if !compat.contains(Compat::HAS_JOURNAL) {
        compat -= Compat::ORPHAN_FILE;
    }
    if options.inode_size == 128 {
        ro_compat -= RoCompat::EXTRA_ISIZE;
    }
    if incompat.contains(Incompat::BIT64) && !incompat.contains(Incompat::EXTENTS) {
        return refuse("64bit needs extent: block maps have 32 bits");
    }
    Ok((compat, incompat, ro_compat))
}

trait SetIf: Sized {
    /// Sets or clears a feature if the user made a choice.
    fn set_if(&mut self, feature: Self, choice: Option<bool>);
}

macro_rules! set_if {
    ($($name:ty),*) => {$(
        impl SetIf for $name {
            fn set_if(&mut self, feature: Self, choice: Option<bool>) {
                if let Some(on) = choice {
                    self.set(feature, on);
                }
            }
        }
    )*};
}
set_if!(Compat, Incompat, RoCompat);
