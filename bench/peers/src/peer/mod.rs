//! The peers, behind one interface that each of them can serve with its own public API.

mod extant;
mod kernel;
mod lwext4;
mod rsext4;
mod rust_fs_ext4;
mod view;

use crate::Result;
use std::path::Path;

/// A peer, and what can be asked of it.
pub(crate) struct Kind {
    pub(crate) name: &'static str,
    /// Head of its column.
    pub(crate) title: &'static str,
    /// For `mke2fs -O`: what it can work with.
    pub(crate) features: &'static str,
    pub(crate) writes: bool,
    pub(crate) is_kernel: bool,
    /// A killed program does not end its volume.
    pub(crate) outlives_kill: bool,
    open: fn(&Path, Access) -> Result<Box<dyn Peer>>,
}

/// How a volume is opened: as its users do for reading, or for writing.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    Write,
}

/// The name of the side that all others are compared with.
pub(crate) const OURS: &str = "extant";

/// What mke2fs makes by default, without two features that some of the peers refuse.
const COMMON: &str = "^orphan_file,^metadata_csum_seed";

pub(crate) const ALL: &[Kind] = &[
    Kind {
        name: OURS,
        title: "Extant",
        features: COMMON,
        writes: true,
        is_kernel: false,
        outlives_kill: false,
        open: extant::open_default,
    },
    Kind {
        name: "extant-512",
        title: "Extant, 512 MiB",
        features: COMMON,
        writes: true,
        is_kernel: false,
        outlives_kill: false,
        open: extant::open_large,
    },
    Kind {
        name: "rsext4",
        title: "rsext4 0.9.2",
        features: COMMON,
        writes: true,
        is_kernel: false,
        outlives_kill: false,
        open: rsext4::open,
    },
    Kind {
        name: "rust-fs-ext4",
        title: "rust-fs-ext4 0.8.0",
        features: COMMON,
        writes: true,
        is_kernel: false,
        outlives_kill: false,
        open: rust_fs_ext4::open,
    },
    Kind {
        name: "ext4-lwext4",
        title: "ext4-lwext4 0.1.2",
        // Without the GPL part of its C library it has no extents.
        features: "^orphan_file,^metadata_csum_seed,^extents,^64bit",
        writes: true,
        is_kernel: false,
        outlives_kill: false,
        open: lwext4::open,
    },
    Kind {
        name: "ext4-view",
        title: "ext4-view 1.0.0",
        features: COMMON,
        writes: false,
        is_kernel: false,
        outlives_kill: false,
        open: view::open,
    },
    Kind {
        name: "kernel",
        title: "kernel, loop",
        features: COMMON,
        writes: true,
        is_kernel: true,
        outlives_kill: true,
        open: kernel::open,
    },
];

impl Kind {
    pub(crate) fn named(name: &str) -> Result<&'static Self> {
        let known = || ALL.iter().map(|kind| kind.name).collect::<Vec<_>>().join(", ");
        ALL.iter()
            .find(|kind| kind.name == name)
            .ok_or_else(|| format!("no peer is called {name}; there are: {}", known()).into())
    }

    pub(crate) fn open(&self, image: &Path, access: Access) -> Result<Box<dyn Peer>> {
        (self.open)(image, access)
    }
}

/// A volume as one peer has opened it. Directories lie in the root. A peer that works with inode
/// numbers looks a directory up once, as its users do.
pub(crate) trait Peer {
    fn make_dir(&mut self, dir: &str) -> Result<()>;
    /// A new file with these contents.
    fn put(&mut self, dir: &str, name: &str, contents: &[u8]) -> Result<()>;
    /// The whole contents of a file.
    fn get(&mut self, dir: &str, name: &str) -> Result<Vec<u8>>;
    /// Opens a file, as new if the access is for writing and it does not exist.
    fn open(&mut self, dir: &str, name: &str, access: Access) -> Result<Box<dyn Open + '_>>;
    /// How many names a directory has, without `.` and `..`.
    fn list(&mut self, dir: &str) -> Result<usize>;
    fn rename(&mut self, dir: &str, from: &str, to: &str) -> Result<()>;
    fn remove(&mut self, dir: &str, name: &str) -> Result<()>;
    /// Makes everything durable.
    fn sync(&mut self) -> Result<()>;
    fn close(self: Box<Self>) -> Result<()>;
}

/// An open file.
pub(crate) trait Open {
    /// Reads until `to` is full; an error if the file ends first.
    fn read_at(&mut self, at: u64, to: &mut [u8]) -> Result<()>;
    fn write_at(&mut self, at: u64, bytes: &[u8]) -> Result<()>;
    /// Makes the file durable, or, where a peer cannot do less, the volume.
    fn sync(&mut self) -> Result<()>;
}

/// The refusal of a peer that only reads.
fn reads_only<T>() -> Result<T> {
    Err("it only reads".into())
}

/// The directory used last, with what a peer calls it by.
struct LastDir<D>(Option<(String, D)>);

impl<D: Clone> LastDir<D> {
    fn get(&mut self, dir: &str, look_up: impl FnOnce() -> Result<D>) -> Result<D> {
        if let Some((last, found)) = &self.0
            && last == dir
        {
            return Ok(found.clone());
        }
        let found = look_up()?;
        self.0 = Some((dir.to_owned(), found.clone()));
        Ok(found)
    }
}
