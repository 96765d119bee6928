//! The geometry of a directory for looking up and changing names, and access to its blocks.

use super::leaf::{Damaged, LeafFormat, is_node};
use crate::Error;
use extant_format::{
    CharSign, Compat, Corrupt, FileBlock, HashVersion, HtreeContext, Incompat, Inode, InodeFlags,
    InodeNumber, NameHash, Place, Superblock, hash_name,
};
use std::ops::Deref;

/// A directory in blocks: its size and the rules of its volume.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) dir: InodeNumber,
    pub(crate) block_bytes: usize,
    /// Blocks of the directory.
    pub(crate) blocks: u32,
    pub(crate) leaf: LeafFormat,
    /// Names are looked up by a hash tree (`EXT4_INDEX_FL`, and the volume has `dir_index`).
    pub(crate) tree: bool,
    /// The directory has hash tree nodes, whether they are used or not: `EXT4_INDEX_FL`.
    pub(crate) has_nodes: bool,
    /// The hash version of the tree that a directory of one block may get.
    pub(crate) new_tree: Option<HashVersion>,
    /// Why names must not be changed.
    pub(crate) frozen: Option<&'static str>,
    large_dir: bool,
    sign: CharSign,
    hash_seed: [u32; 4],
    /// Bits of a hash that are used. With few bits, names share hashes.
    #[cfg(test)]
    pub(super) hash_mask: u32,
}

impl Shape {
    pub(crate) fn new(dir: &Inode, sb: &Superblock) -> Self {
        let flags = dir.flags();
        let indexable = sb.compat().contains(Compat::DIR_INDEX);
        let plain = !flags.intersects(InodeFlags::ENCRYPT | InodeFlags::CASEFOLD);
        let flagged = flags.contains(InodeFlags::INDEX);
        let version = HashVersion::from_number(sb.raw().s_def_hash_version);
        let usable = version.filter(|version| *version != HashVersion::SipHash);
        Self {
            dir: dir.number,
            block_bytes: sb.block_size().byte_len(),
            blocks: dir.size_in_blocks(sb).map_or(u32::MAX, |blocks| blocks.0),
            leaf: LeafFormat::of(sb),
            tree: indexable && flagged && plain,
            has_nodes: flagged,
            new_tree: usable.filter(|_| indexable),
            frozen: if flags.contains(InodeFlags::ENCRYPT) {
                Some("changing an encrypted directory")
            } else if flags.contains(InodeFlags::CASEFOLD) {
                Some("changing a directory with casefold")
            } else if flagged && !indexable {
                Some("changing an indexed directory of a volume without dir_index")
            } else {
                None
            },
            large_dir: sb.incompat().contains(Incompat::LARGEDIR),
            sign: if sb.unsigned_dir_hash() { CharSign::Unsigned } else { CharSign::Signed },
            hash_seed: sb.hash_seed(),
            #[cfg(test)]
            hash_mask: u32::MAX,
        }
    }

    #[cfg(test)]
    pub(super) fn for_tests(
        dir: InodeNumber,
        block_bytes: usize,
        leaf: LeafFormat,
        new_tree: Option<HashVersion>,
        large_dir: bool,
    ) -> Self {
        let (sign, hash_seed, hash_mask) = (CharSign::Signed, [1, 2, 3, 4], u32::MAX);
        let (blocks, tree, has_nodes, frozen) = (1, false, false, None);
        Self {
            dir,
            block_bytes,
            blocks,
            leaf,
            tree,
            has_nodes,
            new_tree,
            frozen,
            large_dir,
            sign,
            hash_seed,
            hash_mask,
        }
    }

    /// Records that the directory has become a tree.
    pub(crate) fn set_tree(&mut self) {
        (self.tree, self.has_nodes) = (true, true);
    }

    pub(crate) fn context(&self, block: FileBlock) -> HtreeContext {
        HtreeContext { dir: self.dir, block, checksums: self.leaf.checksums, large_dir: self.large_dir }
    }

    /// Whether a block is the root or an inner node of a hash tree, which has no names except `.`
    /// and `..`.
    pub(crate) fn is_node(&self, at: FileBlock, bytes: &[u8]) -> bool {
        self.has_nodes && (at.0 == 0 || is_node(bytes))
    }

    /// Maximum number of levels of inner nodes between a tree's root and its leaves.
    pub(crate) const fn levels_max(&self) -> u8 {
        if self.large_dir { 2 } else { 1 }
    }

    /// Maximum number of blocks in the directory: its size has 31 bits without `large_dir`, and a
    /// tree's pointers have 28.
    pub(crate) const fn blocks_max(&self) -> u32 {
        let by_size =
            if self.large_dir { u32::MAX } else { ((1u64 << 31) / self.block_bytes as u64) as u32 - 1 };
        if by_size < 1 << 28 { by_size } else { 1 << 28 }
    }

    /// The error for a name that a full directory cannot take.
    pub(crate) fn full(&self) -> Error {
        let (dir, bytes) = (self.dir, self.block_bytes);
        Error::DirectoryFull(match (self.tree, self.large_dir) {
            (true, false) => format!(
                "the index of directory inode {dir} is full: with blocks of {bytes} bytes and without the feature large_dir it \
                 takes no more names (tune2fs -O large_dir adds that, but GRUB and Linux before 4.13 cannot read such a volume)"
            ),
            (true, true) => {
                format!(
                    "the index of directory inode {dir} is full: with blocks of {bytes} bytes it takes no more names"
                )
            }
            (false, _) => format!(
                "directory inode {dir} is full: it has {} blocks, the most that one can have",
                self.blocks
            ),
        })
    }

    pub(crate) fn hash(&self, version: HashVersion, name: &[u8]) -> Option<NameHash> {
        let hash = hash_name(version, self.sign, &self.hash_seed, name);
        #[cfg(test)]
        let hash = hash.map(|hash| NameHash { major: hash.major & self.hash_mask, ..hash });
        hash
    }

    pub(crate) fn damaged(&self, at: FileBlock, block: &[u8]) -> Stop {
        Stop::Failed(self.leaf.diagnose(block, self.dir, at).into())
    }

    pub(crate) fn checked<T>(
        &self,
        at: FileBlock,
        block: &[u8],
        result: Result<T, Damaged>,
    ) -> Result<T, Stop> {
        result.map_err(|Damaged| self.damaged(at, block))
    }

    pub(crate) fn bad_block(&self, at: FileBlock, rule: &'static str) -> Stop {
        let place = Place::HtreeNode(self.dir, at);
        Stop::Failed(Corrupt::field(place, "block", at.0.into(), rule).into())
    }
}

/// Why a step did not complete.
#[derive(Debug)]
pub(crate) enum Stop {
    /// The block is not in memory: read it and repeat the step.
    Missing(FileBlock),
    /// The step cannot succeed.
    Failed(Error),
}

impl<E: Into<Error>> From<E> for Stop {
    fn from(error: E) -> Self {
        Self::Failed(error.into())
    }
}

/// The blocks of a directory that are in memory.
pub(crate) trait Blocks {
    type Bytes: Deref<Target = [u8]>;

    /// Returns a block, or [`Stop::Missing`]. Never waits.
    fn get(&self, at: FileBlock) -> Result<Self::Bytes, Stop>;

    /// Whether a tree block was found to be a sound leaf or node.
    fn is_sound(&self, _at: FileBlock, _form: Form) -> bool {
        false
    }

    /// Records that it is. Our own changes never invalidate this.
    fn set_sound(&self, _at: FileBlock, _form: Form) {}
}

/// The form of a directory block, which determines its checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// Entries.
    Leaf,
    /// The root or an inner node of a hash tree.
    Node,
}

/// The blocks of a directory, pinned for a change that cannot fail.
pub(crate) trait BlocksMut: Blocks {
    /// Changes a block that is in memory and sets its form.
    fn edit(&mut self, at: FileBlock, form: Form, change: impl FnOnce(&mut [u8]));

    /// Appends a zeroed block to the directory and changes it.
    fn create(&mut self, at: FileBlock, form: Form, change: impl FnOnce(&mut [u8]));
}
