//! Options of a build.

use crate::Timestamp;
use extant_block::ForeignLocks;
use extant_format::BlockSize;
use std::path::PathBuf;

/// Where a tree comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A directory of the host.
    Directory(PathBuf),
    /// A tar file: plain, gzip, zstd or xz, told apart by its first bytes.
    Tar(PathBuf),
    /// The same from standard input.
    Stdin,
    /// An image of a container, as an OCI layout or as `docker save` writes it: a directory, or a tar of one.
    Oci(PathBuf),
    /// Looks at the path: a directory with an image of a container is that image, any other directory is a directory, a file
    /// is a tar (of an image where it holds one); `-` is standard input.
    Guess(PathBuf),
}

/// The family whose features and limits the volume has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FsType {
    /// No journal, block maps.
    Ext2,
    /// Journal, block maps.
    Ext3,
    /// Features and sizes of mke2fs 1.47's default.
    #[default]
    Ext4,
}

/// How large the volume becomes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SizePolicy {
    /// As small as the contents allow.
    #[default]
    Exact,
    /// Room for the contents and so many percent of them more.
    PlusPercent(u32),
    /// So many bytes, rounded down to blocks.
    Fixed(u64),
}

/// Owners on the volume.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Ownership {
    /// As the source says.
    #[default]
    Source,
    /// Everything belongs to root.
    AllRoot,
    /// Ranges of the source's ids become others; ids outside every range are an error.
    Map(OwnerMap),
}

/// Ranges of user and group ids, as in `/proc/PID/uid_map`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnerMap {
    /// For users.
    pub users: Vec<IdRange>,
    /// For groups.
    pub groups: Vec<IdRange>,
}

/// `count` ids from `from` on become those from `to` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdRange {
    /// First id in the source.
    pub from: u32,
    /// First id on the volume.
    pub to: u32,
    /// How many.
    pub count: u32,
}

/// Journal of an ext3 or ext4 volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum JournalSize {
    /// As mke2fs chooses by the volume's size; volumes under 2,048 blocks get none.
    #[default]
    Auto,
    /// No journal.
    None,
    /// So many blocks, at least 1,024.
    Blocks(u32),
    /// So many bytes, at least 1,024 blocks.
    Bytes(u64),
}

/// How a volume is laid out. `Default` is what mke2fs 1.47 does for ext4, with the orphan file.
#[derive(Clone, Debug)]
pub struct VolumeOptions {
    /// Family.
    pub fs_type: FsType,
    /// Block size; `None` is 4 KiB, or 1 KiB for a fixed size under 512 MiB, as mke2fs does.
    pub block_size: Option<BlockSize>,
    /// Bytes per inode record: 128, or a power of two from 256 to the block size.
    pub inode_size: u16,
    /// Size.
    pub size: SizePolicy,
    /// `None`: enough for the contents, and for [`SizePolicy::Fixed`] at least one per 16 KiB.
    pub inodes: Option<u32>,
    /// One inode for so many bytes of the volume, where `inodes` is not given.
    pub bytes_per_inode: Option<u64>,
    /// Percent of the blocks that only root may use; `None` is 5 for a fixed size, as mke2fs does, and else 0.
    pub reserved_percent: Option<u8>,
    /// Journal.
    pub journal: JournalSize,
    /// Name of the volume, at most 16 bytes.
    pub label: Vec<u8>,
    /// `None`: derived from the contents' listing.
    pub uuid: Option<[u8; 16]>,
    /// `None`: derived from the contents' listing.
    pub hash_seed: Option<[u8; 16]>,
    /// Features to add to or take from what the type has.
    pub features: FeatureChoices,
}

/// Features that a user may switch; `None` leaves the type's default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)] // the field names are the features' names
pub struct FeatureChoices {
    pub metadata_csum: Option<bool>,
    pub metadata_csum_seed: Option<bool>,
    pub uninit_bg: Option<bool>,
    pub flex_bg: Option<bool>,
    pub bits64: Option<bool>,
    pub resize_inode: Option<bool>,
    pub orphan_file: Option<bool>,
    pub extents: Option<bool>,
    pub dir_index: Option<bool>,
    pub large_dir: Option<bool>,
    pub ea_inode: Option<bool>,
}

impl Default for VolumeOptions {
    fn default() -> Self {
        Self {
            fs_type: FsType::Ext4,
            block_size: None,
            inode_size: 256,
            size: SizePolicy::Exact,
            inodes: None,
            bytes_per_inode: None,
            reserved_percent: None,
            journal: JournalSize::Auto,
            label: Vec::new(),
            uuid: None,
            hash_seed: None,
            features: FeatureChoices::default(),
        }
    }
}

/// How an image is built.
#[derive(Clone, Debug)]
pub struct BuildOptions {
    /// The image file; replaced at the end, and only if all went well.
    pub output: PathBuf,
    /// What is done about an image there that another program has locked.
    pub foreign_locks: ForeignLocks,
    /// The volume.
    pub volume: VolumeOptions,
    /// Owners.
    pub ownership: Ownership,
    /// `SOURCE_DATE_EPOCH`: no time stamp on the volume is later.
    pub clamp_time: Option<Timestamp>,
    /// Stay on the file system that the directory source is on: directories that others are mounted on are empty.
    pub one_file_system: bool,
    /// Which image of several in an OCI layout or an archive of `docker save`: `os/architecture` or
    /// `os/architecture/variant`.
    pub platform: Option<String>,
    /// Which image of several, by its name or digest.
    pub image_name: Option<String>,
    /// Archives and directories are layers of an image: a name `.wh.NAME` removes `NAME` that sources before it brought, and
    /// `.wh..wh..opq` everything that they brought to its directory (OCI image-spec, layer.md). Devices 0:0 and the attributes
    /// of overlayfs mean the same. Without this they are taken as files, with a note; layers of whole images are applied
    /// in any case.
    pub layers: bool,
}

impl BuildOptions {
    /// An ext4 volume as small as its contents allow, with owners and times as the sources have them.
    pub fn new(output: impl Into<PathBuf>) -> Self {
        Self {
            output: output.into(),
            foreign_locks: ForeignLocks::Honour,
            volume: VolumeOptions::default(),
            ownership: Ownership::Source,
            clamp_time: None,
            one_file_system: false,
            platform: None,
            image_name: None,
            layers: false,
        }
    }
}
