//! Options of a build.

use crate::{DeviceTable, FileContexts, Selection, Timestamp};
use extant_block::{Device, ForeignLocks};
use extant_format::BlockSize;
use std::path::PathBuf;
use std::sync::Arc;

/// A source of files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A directory of the host.
    Directory(PathBuf),
    /// A tar file: plain, gzip, zstd or xz, detected by its magic bytes.
    Tar(PathBuf),
    /// Like [`Source::Tar`], from standard input.
    Stdin,
    /// A container image, as an OCI layout or as written by `docker save`: a directory, or a tar of
    /// one.
    Oci(PathBuf),
    /// A manifest in the format of mtree(5): owners, modes and times of files of earlier sources,
    /// and new files.
    Manifest(PathBuf),
    /// Detects the type. A directory is a container image if it contains one, otherwise a plain
    /// directory. A file is a manifest if it begins with `#mtree` or `/set` or is named `*.mtree`,
    /// otherwise a tar, or a tar of a container image. `-` is standard input.
    Guess(PathBuf),
}

/// File system type, which determines features and limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FsType {
    /// No journal, block maps.
    Ext2,
    /// Journal, block maps.
    Ext3,
    /// Features of mke2fs on Debian, and sizes of mke2fs 1.47.
    #[default]
    Ext4,
}

/// How to choose the volume's size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SizePolicy {
    /// As small as the contents allow.
    #[default]
    Exact,
    /// The contents plus this many percent.
    PlusPercent(u32),
    /// The contents plus room for this many bytes of new files.
    PlusBytes(u64),
    /// This many bytes, rounded down to whole blocks.
    Fixed(u64),
}

/// Owners on the volume.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Ownership {
    /// Same as in the source.
    #[default]
    Source,
    /// Make root the owner of everything.
    AllRoot,
    /// Maps ranges of the source's ids; ids outside every range are an error.
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

/// Maps `count` ids starting at `from` to those starting at `to`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdRange {
    /// First id in the source.
    pub from: u32,
    /// First id on the volume.
    pub to: u32,
    /// Number of ids.
    pub count: u32,
}

/// Journal of an ext3 or ext4 volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum JournalSize {
    /// Chosen by volume size as in mke2fs; none for volumes under 2,048 blocks.
    #[default]
    Auto,
    /// No journal.
    None,
    /// This many blocks, at least 1,024.
    Blocks(u32),
    /// This many bytes, at least 1,024 blocks.
    Bytes(u64),
}

/// Layout of a volume. `Default` has the features that mke2fs gives an ext4 on Debian: without
/// `metadata_csum_seed` and `orphan_file`, which GRUB before 2.12 and older kernels refuse.
#[derive(Clone, Debug)]
pub struct VolumeOptions {
    /// File system type.
    pub fs_type: FsType,
    /// Block size; `None` means 4 KiB, or 1 KiB for a fixed size under 512 MiB, as in mke2fs.
    pub block_size: Option<BlockSize>,
    /// Size of an inode record in bytes: 128, or a power of two from 256 to the block size.
    pub inode_size: u16,
    /// Size.
    pub size: SizePolicy,
    /// Number of inodes. `None`: enough for the contents, and for [`SizePolicy::Fixed`] at least
    /// one per 16 KiB.
    pub inodes: Option<u32>,
    /// Bytes of the volume per inode, if `inodes` is not given.
    pub bytes_per_inode: Option<u64>,
    /// Blocks reserved for root, in thousandths of a percent, at most 50,000; `None` means 5 % for
    /// a fixed size, as in mke2fs, and 0 otherwise.
    pub reserved_milli_percent: Option<u32>,
    /// Journal.
    pub journal: JournalSize,
    /// Name of the volume, at most 16 bytes.
    pub label: Vec<u8>,
    /// UUID; `None` to derive it from the file listing.
    pub uuid: Option<[u8; 16]>,
    /// Seed of the hashes of names; `None` to derive it from the file listing.
    pub hash_seed: Option<[u8; 16]>,
    /// Features to add to or remove from the type's defaults.
    pub features: FeatureChoices,
}

/// Features that a user can switch; `None` keeps the type's default.
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
            reserved_milli_percent: None,
            journal: JournalSize::Auto,
            label: Vec::new(),
            uuid: None,
            hash_seed: None,
            features: FeatureChoices::default(),
        }
    }
}

/// Where a volume is written.
#[derive(Clone, Debug)]
pub enum Target {
    /// A new file, which gets its name once it is complete, and replaces a file of that name.
    File {
        /// The file's name.
        path: PathBuf,
        /// How to treat an existing file that another program has locked.
        foreign: ForeignLocks,
    },
    /// A new file, which gets its name once it is complete. It never replaces an existing file.
    New(PathBuf),
    /// A device, or a part of one, in place.
    Place(InPlace),
}

/// A device, or a part of one, that a volume is written into in place.
///
/// The superblock is written last, when everything else is durable. After an error or a crash there
/// is no volume, and the old contents of the device are lost.
#[derive(Clone, Debug)]
pub struct InPlace {
    /// The device, open for writing and claimed.
    pub device: Arc<dyn Device>,
    /// The device's name in messages.
    pub name: String,
    /// Overwrite a volume, a partition table or another format that the device contains.
    pub overwrite: bool,
    /// First discard all contents of the device.
    pub discard: bool,
}

/// How to build an image.
#[derive(Clone, Debug)]
pub struct BuildOptions {
    /// The image file. An existing one is replaced at the end, and only on success.
    pub output: PathBuf,
    /// Write the volume into this device instead; `output` is its name on the host, if it has one.
    pub in_place: Option<InPlace>,
    /// How to treat an existing image that another program has locked.
    pub foreign_locks: ForeignLocks,
    /// The volume.
    pub volume: VolumeOptions,
    /// Owners.
    pub ownership: Ownership,
    /// `SOURCE_DATE_EPOCH`: an upper bound for all time stamps on the volume.
    pub clamp_time: Option<Timestamp>,
    /// Stay on the file system of the directory source: mount points become empty directories.
    pub one_file_system: bool,
    /// Names of the sources to leave out.
    pub selection: Selection,
    /// Selects one of several images in an OCI layout or `docker save` archive: `os/architecture`
    /// or `os/architecture/variant`.
    pub platform: Option<String>,
    /// Selects one of several images, by name or digest.
    pub image_name: Option<String>,
    /// Treats archives and directories as image layers.
    ///
    /// A name `.wh.NAME` removes `NAME` as added by earlier sources, and `.wh..wh..opq` removes
    /// everything that they added to its directory (OCI image-spec, layer.md). Devices 0:0 and
    /// overlayfs attributes have the same meaning. Without this option such marks are treated as
    /// files, with a note; layers of whole images are always applied.
    pub layers: bool,
    /// Changes to the merged sources.
    pub overrides: Overrides,
}

/// Changes to the merged sources, in the order in which they are made.
#[derive(Clone, Debug, Default)]
pub struct Overrides {
    /// Leave out access lists; the owning group gets what its entry of the list allows.
    pub no_acls: bool,
    /// Leave out all extended attributes other than access lists, including labels and
    /// capabilities.
    pub no_xattrs: bool,
    /// Create and change the files that this table lists, after owners have been mapped.
    pub device_table: Option<DeviceTable>,
    /// Label files by path.
    pub file_contexts: Option<FileContexts>,
}

impl BuildOptions {
    /// An ext4 volume as small as its contents allow, with the sources' owners and times.
    pub fn new(output: impl Into<PathBuf>) -> Self {
        Self {
            output: output.into(),
            in_place: None,
            foreign_locks: ForeignLocks::Honour,
            volume: VolumeOptions::default(),
            ownership: Ownership::Source,
            clamp_time: None,
            one_file_system: false,
            selection: Selection::default(),
            platform: None,
            image_name: None,
            layers: false,
            overrides: Overrides::default(),
        }
    }
}
