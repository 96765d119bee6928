//! What is kept of directories: their blocks, the inodes that their entries name, and their
//! indexes.

use crate::context::Context;
use crate::finding::Report;
use crate::found::{Dir, join};
use crate::limits::Purse;
use crate::state::Names;
use extant_format::{Corrupt, DxRoot, FileBlock, HashVersion, HtreeContext, Incompat, InodeNumber, Place};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};

/// A block to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Item {
    pub(crate) block: u64,
    /// Index in the list of directories.
    pub(crate) dir: u32,
    /// The block within the directory, or [`INLINE`].
    pub(crate) logical: u32,
}

/// In place of a block's number: the entries are in the inode.
pub(crate) const INLINE: u32 = u32::MAX;

/// An entry that names a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Link {
    pub(crate) child: u32,
    pub(crate) parent: u32,
    pub(crate) logical: u32,
    pub(crate) offset: u32,
}

/// What one task finds in directories.
pub(crate) struct DirsFound {
    pub(crate) report: Report,
    /// Entries that name a directory which another entry names already.
    pub(crate) links: Vec<Link>,
    /// Indexes of directories, each with a hash of a name that may also occur in another block.
    pub(crate) names: Vec<(u32, u64)>,
    pub(crate) leaves: Vec<Leaf>,
    pub(crate) nodes: Vec<Node>,
    /// Inodes named by entries that are not counted yet.
    pub(crate) named: Names,
    pub(crate) purse: Purse,
}

impl DirsFound {
    pub(crate) fn new(ctx: &Context) -> Self {
        Self {
            report: ctx.report.clone(),
            links: Vec::new(),
            names: Vec::new(),
            leaves: Vec::new(),
            nodes: Vec::new(),
            named: Names::default(),
            purse: ctx.limits.purse(),
        }
    }

    pub(crate) fn merge(&mut self, other: Self) {
        join(&mut self.links, other.links);
        join(&mut self.names, other.names);
        join(&mut self.leaves, other.leaves);
        join(&mut self.nodes, other.nodes);
    }
}

/// All directories, and the roots of their indexes.
pub(crate) struct Directories {
    pub(crate) dirs: Vec<Dir>,
    pub(crate) items: Vec<Item>,
    pub(crate) roots: BTreeMap<u32, Root>,
    /// Where each directory is in the tree.
    places: Vec<TreePlace>,
}

/// Where a directory is in the tree; 0 where that is unknown.
#[derive(Debug, Default)]
struct TreePlace {
    /// The directory in `..`.
    dotdot: AtomicU32,
    /// The directory with the entry for this one. While entries are being read, the one of several
    /// entries that was met first.
    parent: AtomicU32,
}

/// Memory for a directory's place in the tree.
pub(crate) const DIR_PLACE_BYTES: u64 = 8;

impl Directories {
    /// Both lists are sorted.
    pub(crate) fn new(dirs: Vec<Dir>, items: Vec<Item>) -> Self {
        let places = dirs.iter().map(|_| TreePlace::default()).collect();
        Self { dirs, items, roots: BTreeMap::new(), places }
    }

    /// The index of a directory.
    pub(crate) fn find(&self, number: u32) -> Option<usize> {
        self.dirs.binary_search_by_key(&number, |dir| dir.number).ok()
    }

    /// The directory in `..` of the one with this index; 0 if unknown.
    pub(crate) fn dotdot(&self, n: usize) -> u32 {
        self.places[n].dotdot.load(Ordering::Relaxed)
    }

    pub(crate) fn set_dotdot(&self, n: usize, number: u32) {
        self.places[n].dotdot.store(number, Ordering::Relaxed);
    }

    /// The directory with the entry for the one with this index; 0 if there is none.
    pub(crate) fn parent(&self, n: usize) -> u32 {
        self.places[n].parent.load(Ordering::Relaxed)
    }

    pub(crate) fn set_parent(&self, n: usize, number: u32) {
        self.places[n].parent.store(number, Ordering::Relaxed);
    }

    /// Sets the parent of the directory with this index, unless it has one already.
    pub(crate) fn set_first_parent(&self, n: usize, number: u32) -> bool {
        let parent = &self.places[n].parent;
        parent.compare_exchange(0, number, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}

/// The root of a directory's index.
#[derive(Debug)]
pub(crate) struct Root {
    pub(crate) version: HashVersion,
    pub(crate) levels: u8,
    pub(crate) entries: Vec<(u32, u32)>,
}

/// An inner node: the lowest hash and the block of each child.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Node {
    pub(crate) dir: u32,
    pub(crate) logical: u32,
    pub(crate) entries: Vec<(u32, u32)>,
}

/// A leaf, with its lowest and highest hash if it contains names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Leaf {
    pub(crate) dir: u32,
    pub(crate) logical: u32,
    pub(crate) range: Option<(u32, u32)>,
}

impl Root {
    pub(crate) fn read(ctx: &Context, dir: &Dir, block: &[u8]) -> Result<Self, Corrupt> {
        let root = DxRoot::parse(block, &htree_context(ctx, dir.number, 0))?;
        let is_siphash = root.info.hash_version == HashVersion::SipHash;
        if is_siphash != (dir.casefold && dir.encrypted) {
            let place = Place::HtreeNode(InodeNumber(dir.number), FileBlock(0));
            let rule = "6 in directories with encryption and casefold, and only there";
            let value = root.info.hash_version.number().into();
            return Err(Corrupt::field(place, "hash_version", value, rule));
        }
        Ok(Self {
            version: root.info.hash_version,
            levels: root.info.levels,
            entries: root.entries.iter().map(|entry| (entry.hash, entry.block.0)).collect(),
        })
    }
}

/// Where a block of an index is.
pub(crate) fn htree_context(ctx: &Context, dir: u32, logical: u32) -> HtreeContext {
    HtreeContext {
        dir: InodeNumber(dir),
        block: FileBlock(logical),
        checksums: ctx.seed.is_some(),
        large_dir: ctx.sb.incompat().contains(Incompat::LARGEDIR),
    }
}
