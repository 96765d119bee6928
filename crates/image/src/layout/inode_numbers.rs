//! Assigns inode numbers to the tree, before anything has a size or a place.

use super::params::Params;
use crate::tree::{EntryId, Kind, Meta, NodeId, Tree, XattrSetId};
use crate::{BuildError, quoted};
use extant_format::{InodeNumber, UintExt};

/// The first inode that is not reserved; by convention lost+found.
const FIRST_INODE: u32 = 11;
const NO_ENTRY: u32 = u32::MAX;
pub(crate) const LOST_AND_FOUND: &[u8] = b"lost+found";

/// The inodes of the tree, numbered.
pub(crate) struct Inodes {
    pub(crate) tree: Tree,
    /// The first name of each inode, by inode number, starting with the root's.
    entries: Vec<u32>,
    /// Inode numbers, by node.
    numbers: Vec<u32>,
    pub(crate) directories: u32,
}

impl Inodes {
    /// Numbers the inodes of a tree, adding lost+found if missing: directories in depth-first
    /// order, the entries of each consecutively in name order.
    pub(crate) fn number(mut tree: Tree, params: &Params) -> Result<Self, BuildError> {
        add_lost_and_found(&mut tree, params)?;
        let mut inodes = Self {
            numbers: vec![0; tree.node_slots()],
            tree,
            entries: vec![NO_ENTRY; FIRST_INODE.to_usize()],
            directories: 1,
        };
        inodes.number_all();
        Ok(inodes)
    }

    /// One past the last inode number.
    pub(crate) fn end(&self) -> InodeNumber {
        InodeNumber(self.entries.len().fit_u32())
    }

    /// Inode numbers of the tree: the root, then those from [`FIRST_INODE`].
    pub(crate) fn all(&self) -> impl Iterator<Item = InodeNumber> + use<> {
        std::iter::once(InodeNumber::ROOT).chain((FIRST_INODE..self.entries.len().fit_u32()).map(InodeNumber))
    }

    pub(crate) fn node_of(&self, inode: InodeNumber) -> NodeId {
        if inode == InodeNumber::ROOT { NodeId::ROOT } else { self.tree.entry_node(self.entry_of(inode)) }
    }

    /// Whether the inode belongs to the tree.
    pub(crate) fn is_from_tree(&self, inode: InodeNumber) -> bool {
        inode == InodeNumber::ROOT || (inode.0 >= FIRST_INODE && inode.0.to_usize() < self.entries.len())
    }

    pub(crate) fn entry_of(&self, inode: InodeNumber) -> EntryId {
        EntryId(self.entries[inode.0.to_usize()])
    }

    pub(crate) fn number_of(&self, node: NodeId) -> InodeNumber {
        InodeNumber(self.numbers[node.index()])
    }

    /// A directory's parent; the root is its own.
    pub(crate) fn parent_of(&self, dir: InodeNumber) -> InodeNumber {
        if dir == InodeNumber::ROOT {
            dir
        } else {
            self.number_of(self.tree.entry_parent(self.entry_of(dir)))
        }
    }

    pub(crate) fn path_of(&self, inode: InodeNumber) -> Vec<u8> {
        if inode == InodeNumber::ROOT { b"/".to_vec() } else { self.tree.entry_path(self.entry_of(inode)) }
    }

    pub(crate) fn quoted_path_of(&self, inode: InodeNumber) -> String {
        quoted(&self.path_of(inode))
    }

    fn number_all(&mut self) {
        self.numbers[NodeId::ROOT.index()] = InodeNumber::ROOT.0;
        if let Some(entry) = self.tree.lookup(NodeId::ROOT, LOST_AND_FOUND) {
            self.number_entry(entry);
        }
        let mut pending = vec![NodeId::ROOT];
        while let Some(dir) = pending.pop() {
            let children = self.tree.sorted_children(dir);
            for &entry in &children {
                self.number_entry(entry);
            }
            let below = children.iter().rev().map(|&e| self.tree.entry_node(e));
            pending.extend(below.filter(|&node| self.tree.node(node).kind == Kind::Directory));
        }
    }

    fn number_entry(&mut self, entry: EntryId) {
        let node = self.tree.entry_node(entry);
        let number = &mut self.numbers[node.index()];
        if *number == 0 {
            *number = self.entries.len().fit_u32();
            self.entries.push(entry.0);
            self.directories += u32::from(self.tree.node(node).kind == Kind::Directory);
        }
    }

    pub(crate) fn subdirectories(&self, dir: NodeId) -> u64 {
        let is_dir = |e: &EntryId| self.tree.node(self.tree.entry_node(*e)).kind == Kind::Directory;
        self.tree.children(dir).filter(is_dir).count().to_u64()
    }

    /// Value of `i_links_count`; 1 for directories past the limit (`dir_nlink`).
    pub(crate) fn links(&self, id: NodeId) -> u16 {
        let node = self.tree.node(id);
        let links =
            if node.kind == Kind::Directory { 2 + self.subdirectories(id) } else { node.names.into() };
        if links > 65_000 { 1 } else { links.fit_u16() }
    }
}

fn add_lost_and_found(tree: &mut Tree, params: &Params) -> Result<(), BuildError> {
    if let Some(entry) = tree.lookup(NodeId::ROOT, LOST_AND_FOUND) {
        if tree.node(tree.entry_node(entry)).kind != Kind::Directory {
            let text = "the source has a lost+found that is not a directory; e2fsck needs one, so rename it";
            return Err(BuildError::Options(text.into()));
        }
        return Ok(());
    }
    let meta = Meta { mode: 0o700, uid: 0, gid: 0, mtime: params.created, xattrs: XattrSetId::EMPTY };
    tree.put_directory(NodeId::ROOT, LOST_AND_FOUND, meta).map(drop)
}
