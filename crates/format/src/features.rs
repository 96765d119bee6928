//! Feature sets of a volume (kernel document: *Super Block*, `s_feature_*`).

use bitflags::bitflags;
use std::fmt;

macro_rules! features {
    ($(#[$doc:meta])* $name:ident { $($flag:ident = $bit:literal, $text:literal;)* }) => {
        bitflags! {
            $(#[$doc])*
            #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
            pub struct $name: u32 {
                $(
                    #[doc = concat!("`", $text, "`")]
                    const $flag = $bit;
                )*
                const _ = !0;
            }
        }

        impl $name {
            /// Names as in `dumpe2fs` and `mke2fs -O`; unnamed bits as `FEATURE_<hex>`.
            pub fn names(self) -> impl Iterator<Item = String> {
                const NAMES: &[(u32, &str)] = &[$(($bit, $text)),*];
                (0..32).map(|n| 1 << n).filter(move |bit| self.bits() & bit != 0).map(|bit| {
                    NAMES
                        .iter()
                        .find(|(b, _)| *b == bit)
                        .map_or_else(|| format!("FEATURE_{bit:#x}"), |(_, name)| (*name).to_string())
                })
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.names().collect::<Vec<_>>().join(" "))
            }
        }
    };
}

features! {
    /// Features that readers and writers may ignore.
    Compat {
        DIR_PREALLOC = 0x1, "dir_prealloc";
        IMAGIC_INODES = 0x2, "imagic_inodes";
        HAS_JOURNAL = 0x4, "has_journal";
        EXT_ATTR = 0x8, "ext_attr";
        RESIZE_INODE = 0x10, "resize_inode";
        DIR_INDEX = 0x20, "dir_index";
        LAZY_BG = 0x40, "lazy_bg";
        EXCLUDE_BITMAP = 0x100, "snapshot_bitmap";
        SPARSE_SUPER2 = 0x200, "sparse_super2";
        FAST_COMMIT = 0x400, "fast_commit";
        STABLE_INODES = 0x800, "stable_inodes";
        ORPHAN_FILE = 0x1000, "orphan_file";
    }
}

features! {
    /// Features without which a volume cannot even be read.
    Incompat {
        COMPRESSION = 0x1, "compression";
        FILETYPE = 0x2, "filetype";
        RECOVER = 0x4, "needs_recovery";
        JOURNAL_DEV = 0x8, "journal_dev";
        META_BG = 0x10, "meta_bg";
        EXTENTS = 0x40, "extent";
        BIT64 = 0x80, "64bit";
        MMP = 0x100, "mmp";
        FLEX_BG = 0x200, "flex_bg";
        EA_INODE = 0x400, "ea_inode";
        DIRDATA = 0x1000, "dirdata";
        CSUM_SEED = 0x2000, "metadata_csum_seed";
        LARGEDIR = 0x4000, "large_dir";
        INLINE_DATA = 0x8000, "inline_data";
        ENCRYPT = 0x10000, "encrypt";
        CASEFOLD = 0x20000, "casefold";
    }
}

features! {
    /// Features without which a volume cannot be written.
    RoCompat {
        SPARSE_SUPER = 0x1, "sparse_super";
        LARGE_FILE = 0x2, "large_file";
        BTREE_DIR = 0x4, "btree_dir";
        HUGE_FILE = 0x8, "huge_file";
        GDT_CSUM = 0x10, "uninit_bg";
        DIR_NLINK = 0x20, "dir_nlink";
        EXTRA_ISIZE = 0x40, "extra_isize";
        HAS_SNAPSHOT = 0x80, "has_snapshot";
        QUOTA = 0x100, "quota";
        BIGALLOC = 0x200, "bigalloc";
        METADATA_CSUM = 0x400, "metadata_csum";
        REPLICA = 0x800, "replica";
        READONLY = 0x1000, "read-only";
        PROJECT = 0x2000, "project";
        SHARED_BLOCKS = 0x4000, "shared_blocks";
        VERITY = 0x8000, "verity";
        ORPHAN_PRESENT = 0x10000, "orphan_present";
    }
}

impl Incompat {
    /// Features supported by this crate for reading.
    pub const READABLE: Self = Self::FILETYPE
        .union(Self::RECOVER)
        .union(Self::META_BG)
        .union(Self::EXTENTS)
        .union(Self::BIT64)
        .union(Self::MMP)
        .union(Self::FLEX_BG)
        .union(Self::EA_INODE)
        .union(Self::CSUM_SEED)
        .union(Self::LARGEDIR)
        .union(Self::INLINE_DATA)
        .union(Self::ENCRYPT)
        .union(Self::CASEFOLD);
}
