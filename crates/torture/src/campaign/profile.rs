//! Base volumes for workloads, made by mke2fs.

use crate::Image;
use std::io;
use std::ops::Range;
use std::process::{Command, Stdio};

/// A kind of base volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Profile {
    /// Its name on the command line.
    pub name: &'static str,
    /// Arguments of mke2fs.
    pub mke2fs: &'static [&'static str],
    /// Arguments of a subsequent tune2fs; usually none.
    pub tune2fs: &'static [&'static str],
    /// Size in KiB.
    pub kib: u32,
    /// Whether mke2fs leaves unused inode tables and bitmaps unwritten (`lazy_itable_init`): they
    /// then hold what the device held before.
    pub lazy_tables: bool,
    /// Whether it is opened with the library's defaults, which commit by age and checkpoint in the
    /// background; otherwise as an offline batch.
    pub online: bool,
    /// Whether blocks are freed a few at a time ([`Ours::short_steps`](crate::Ours::short_steps)).
    pub short_steps: bool,
}

/// Volumes without a journal: no prefix of the operations is guaranteed, and e2fsck is expected
/// after a crash.
pub const UNLOGGED: [Profile; 3] = [
    Profile::new("ext2", &["-t", "ext2", "-b", "1024"], 2 << 10),
    Profile::new("ext4-unlogged", &["-t", "ext4", "-b", "1024", "-I", "256", "-O", "^has_journal"], 2 << 10),
    // Each group has its own tables, as always on ext2, and on ext4 without `flex_bg`.
    Profile::new(
        "ext4-unlogged-groups",
        &["-t", "ext4", "-b", "1024", "-I", "256", "-g", "512", "-O", "^has_journal,^flex_bg"],
        4 << 10,
    )
    .lazy_tables(),
];

const EXT4: Profile =
    Profile::new("ext4", &["-t", "ext4", "-b", "1024", "-I", "256", "-J", "size=1"], 6 << 10);

/// Six groups of 1,024 blocks, four of them in a flex group; only the first is initialized.
const GROUPS: Profile = Profile::new(
    "ext4-groups",
    &["-t", "ext4", "-b", "1024", "-I", "256", "-J", "size=1", "-g", "1024", "-G", "4"],
    6 << 10,
)
.lazy_tables();

/// All volumes for campaigns. For those without a journal there is no prefix to guarantee, and
/// e2fsck is part of recovery.
pub const PROFILES: [Profile; 20] = [
    EXT4,
    Profile::new("ext4-4k", &["-t", "ext4", "-b", "4096", "-I", "256", "-J", "size=4"], 16 << 10),
    Profile::new(
        "ext4-orphan-file",
        &["-t", "ext4", "-b", "1024", "-I", "256", "-J", "size=1", "-O", "orphan_file,project"],
        6 << 10,
    )
    .short_steps(),
    Profile::new(
        "ext4-plain",
        &["-t", "ext4", "-b", "1024", "-I", "128", "-J", "size=1", "-O", "^64bit,^metadata_csum,^flex_bg"],
        6 << 10,
    )
    .short_steps(),
    Profile::new("ext3", &["-t", "ext3", "-b", "1024", "-J", "size=1"], 6 << 10).short_steps(),
    GROUPS,
    // Two descriptor blocks, in different groups.
    Profile::new(
        "ext4-meta-bg",
        &[
            "-t",
            "ext4",
            "-b",
            "1024",
            "-I",
            "256",
            "-J",
            "size=1",
            "-g",
            "256",
            "-O",
            "meta_bg,^resize_inode",
        ],
        6 << 10,
    )
    .lazy_tables(),
    // Bitmaps and inode tables in their own groups, two descriptor blocks.
    Profile::new(
        "ext4-no-flex-bg",
        &["-t", "ext4", "-b", "1024", "-I", "256", "-J", "size=1", "-g", "256", "-O", "^flex_bg"],
        6 << 10,
    )
    .lazy_tables(),
    // 32-byte descriptors with the checksum that preceded `metadata_csum`.
    Profile::new(
        "ext4-uninit-bg",
        &[
            "-t",
            "ext4",
            "-b",
            "1024",
            "-I",
            "128",
            "-J",
            "size=1",
            "-g",
            "1024",
            "-O",
            "uninit_bg,^64bit,^metadata_csum",
        ],
        6 << 10,
    )
    .lazy_tables(),
    Profile::new(
        "ext4-inline",
        &["-t", "ext4", "-b", "1024", "-I", "256", "-J", "size=1", "-O", "inline_data"],
        6 << 10,
    ),
    Profile::new(
        "ext4-quota",
        &[
            "-t",
            "ext4",
            "-b",
            "1024",
            "-I",
            "256",
            "-J",
            "size=1",
            "-O",
            "quota,project",
            "-E",
            "quotatype=usrquota:grpquota:prjquota",
        ],
        6 << 10,
    ),
    BIGALLOC,
    BIGALLOC_DATA_JOURNAL,
    Profile::new(
        "ext4-bigalloc-64k",
        &["-t", "ext4", "-b", "4096", "-C", "65536", "-I", "256", "-J", "size=4", "-O", "bigalloc"],
        16 << 10,
    ),
    Profile { name: "ext4-online", online: true, ..GROUPS },
    UNLOGGED[0],
    UNLOGGED[1],
    UNLOGGED[2],
    EA_INODE,
    DATA_JOURNAL,
];

/// Eight groups of 256 clusters; values in separate inodes use clusters too.
const BIGALLOC: Profile = Profile::new(
    "ext4-bigalloc",
    &[
        "-t",
        "ext4",
        "-b",
        "1024",
        "-C",
        "4096",
        "-I",
        "256",
        "-J",
        "size=1",
        "-g",
        "256",
        "-G",
        "4",
        "-O",
        "bigalloc,ea_inode",
    ],
    8 << 10,
)
.lazy_tables();

/// Data goes through the log, and data blocks are freed with their clusters.
pub const BIGALLOC_DATA_JOURNAL: Profile =
    Profile { name: "ext4-bigalloc-data-journal", ..BIGALLOC }.tuned(&["-o", "journal_data"]);

/// All files' data goes through the log.
pub const DATA_JOURNAL: Profile =
    Profile { name: "ext4-data-journal", ..EXT4 }.tuned(&["-o", "journal_data"]);

/// Attribute values may be stored in separate inodes.
pub const EA_INODE: Profile = Profile::new(
    "ext4-ea-inode",
    &["-t", "ext4", "-b", "1024", "-I", "256", "-J", "size=1", "-O", "ea_inode,orphan_file"],
    6 << 10,
);

/// A freshly made volume.
#[derive(Clone, Debug)]
pub struct Base {
    /// Its disk.
    pub image: Image,
    /// Bytes in a block.
    pub block_bytes: u64,
    /// Location of the journal: runs of blocks, in order. Empty if there is none.
    pub journal: Vec<Range<u64>>,
}

/// The defaults of e2fsprogs 1.47, regardless of the host's. Without a configuration, mke2fs does
/// not know `ext4`: it warns, and makes a volume with ext3's features.
const CONFIG: &str = "\
[defaults]
    base_features = sparse_super,large_file,filetype,resize_inode,dir_index,ext_attr
    default_mntopts = acl,user_xattr
    enable_periodic_fsck = 0
    inode_size = 256
[fs_types]
    ext3 = {
        features = has_journal
    }
    ext4 = {
        features = has_journal,extent,huge_file,flex_bg,metadata_csum,64bit,dir_nlink,extra_isize
    }
    small = {
        blocksize = 1024
    }
";

/// Every device is filled with this before mke2fs, so that no stale block is taken for a hole.
const USED: u8 = 0xa5;

impl Profile {
    /// A volume whose inode tables mke2fs writes, opened as an offline batch.
    pub const fn new(name: &'static str, mke2fs: &'static [&'static str], kib: u32) -> Self {
        Self { name, mke2fs, tune2fs: &[], kib, lazy_tables: false, online: false, short_steps: false }
    }

    /// The same kind, with as little as possible written by mke2fs.
    #[must_use]
    pub const fn lazy_tables(mut self) -> Self {
        self.lazy_tables = true;
        self
    }

    /// The same kind, with blocks freed a few at a time.
    #[must_use]
    pub const fn short_steps(mut self) -> Self {
        self.short_steps = true;
        self
    }

    /// The same kind, modified by tune2fs with these arguments.
    #[must_use]
    pub const fn tuned(mut self, args: &'static [&'static str]) -> Self {
        self.tune2fs = args;
        self
    }

    /// The profile with this name.
    pub fn named(name: &str) -> Option<Self> {
        PROFILES.into_iter().find(|profile| profile.name == name)
    }

    /// Whether its volumes have a journal.
    pub fn has_journal(&self) -> bool {
        !self.mke2fs.iter().any(|&arg| arg == "ext2" || arg.starts_with("^has_journal"))
    }

    /// Makes the volume with mke2fs; the bytes are always the same.
    ///
    /// # Errors
    /// mke2fs or debugfs cannot be run, or fail.
    pub fn make(&self) -> io::Result<Base> {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("image");
        let bytes = (self.kib as usize) << 10;
        std::fs::write(&path, vec![USED; bytes])?;
        let uuid = "9d3b2b8e-6f4c-4b1e-8a57-0123456789ab";
        let lazy = u8::from(self.lazy_tables);
        let extended =
            format!("hash_seed={uuid},lazy_itable_init={lazy},lazy_journal_init=0,nodiscard,root_owner=0:0");
        let config = folder.path().join("mke2fs.conf");
        std::fs::write(&config, CONFIG)?;
        let mut mke2fs = tool("mke2fs");
        mke2fs
            .env("MKE2FS_CONFIG", &config)
            .args(["-q", "-F", "-m", "0", "-N", "256", "-U", uuid, "-E", &extended])
            .args(self.mke2fs)
            .arg(&path);
        run(&mut mke2fs)?;
        if !self.tune2fs.is_empty() {
            run(tool("tune2fs").args(self.tune2fs).arg(&path))?;
        }
        let listed = match self.has_journal() {
            false => String::new(),
            true => run(tool("debugfs").args(["-R", "blocks <8>"]).arg(&path))?,
        };
        let mut journal: Vec<Range<u64>> = Vec::new();
        for block in listed.split_whitespace().filter_map(|word| word.parse::<u64>().ok()) {
            match journal.last_mut() {
                Some(run) if run.end == block => run.end += 1,
                _ => journal.push(block..block + 1),
            }
        }
        let block_bytes = if self.mke2fs.windows(2).any(|two| two == ["-b", "4096"]) { 4096 } else { 1024 };
        Ok(Base { image: Image::new(std::fs::read(&path)?.into()), block_bytes, journal })
    }
}

fn tool(name: &str) -> Command {
    let mut command = Command::new(name);
    let path = std::env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("{path}:/usr/sbin:/sbin")).env("E2FSPROGS_FAKE_TIME", "1700000000");
    command.stdin(Stdio::null());
    command
}

fn run(command: &mut Command) -> io::Result<String> {
    let output = command.output()?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        return Err(io::Error::other(format!("{command:?}: {text}")));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn features(profile: Profile) -> Option<String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("image");
        std::fs::write(&path, profile.make().ok()?.image.to_vec()).unwrap();
        let text = run(tool("dumpe2fs").arg(&path)).unwrap();
        let groups = text.matches("BLOCK_UNINIT").count();
        let line = text.lines().find(|line| line.starts_with("Filesystem features:")).unwrap();
        Some(format!("{line} {groups} groups without a bitmap"))
    }

    #[test]
    fn volumes_have_the_features_that_their_names_promise() {
        let Some(ext4) = features(EXT4) else {
            println!("skipped: e2fsprogs is not installed (apt-get install e2fsprogs)");
            return;
        };
        for feature in ["extent", "metadata_csum", "64bit", "flex_bg", "has_journal"] {
            assert!(ext4.contains(feature), "{feature}: {ext4}");
        }
        for (name, feature, has) in [
            ("ext3", "extent", false),
            ("ext4-plain", "extent", true),
            ("ext4-plain", "metadata_csum", false),
            ("ext4-orphan-file", "orphan_file", true),
            ("ext4-orphan-file", "project", true),
            ("ext4-groups", " 0 groups", false),
            ("ext4-meta-bg", "meta_bg", true),
            ("ext4-no-flex-bg", "flex_bg", false),
            ("ext4-uninit-bg", "uninit_bg", true),
            ("ext4-inline", "inline_data", true),
            ("ext4-quota", "project", true),
            ("ext4-ea-inode", "ea_inode", true),
            ("ext4-bigalloc", "bigalloc", true),
            ("ext4-bigalloc", " 0 groups", false),
            ("ext4-bigalloc-data-journal", "bigalloc", true),
            ("ext4-unlogged", "extent", true),
            ("ext4-unlogged", "has_journal", false),
        ] {
            let found = features(Profile::named(name).unwrap()).unwrap();
            assert_eq!(found.contains(feature), has, "{name}, {feature}: {found}");
        }
    }
}
