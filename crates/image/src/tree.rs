//! The sources in memory: names, inodes, and references to their contents.
//!
//! Designed for a million entries: a name takes 20 bytes plus its characters, an inode 64, and
//! equal attribute sets are shared. Sources are merged over each other in order, like the layers of
//! an OCI image.

mod hidden;

pub(crate) use hidden::{Hidden, Step};

use crate::{BuildError, quoted};
use extant_format::{Timestamp, UintExt};
use hashbrown::HashTable;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};

/// An inode of the tree, in order of creation; unrelated to its number on the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct NodeId(pub(crate) u32);

/// A name in a directory of the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct EntryId(pub(crate) u32);

impl NodeId {
    /// The root directory.
    pub(crate) const ROOT: Self = Self(0);

    pub(crate) fn index(self) -> usize {
        self.0.to_usize()
    }
}

const NONE: u32 = u32::MAX;

/// Type of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Kind {
    /// Regular file.
    File,
    /// Directory.
    Directory,
    /// Symbolic link.
    Symlink,
    /// Character device.
    CharDevice,
    /// Block device.
    BlockDevice,
    /// Named pipe.
    Fifo,
    /// Socket.
    Socket,
}

/// Attributes of a node, from its source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Meta {
    /// Permission bits, set-ID bits and sticky bit: 12 bits.
    pub mode: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Modification time.
    pub mtime: Timestamp,
    /// Extended attributes; see [`Tree::intern_xattrs`].
    pub xattrs: XattrSetId,
}

/// Where a node's contents come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Payload {
    /// No contents: FIFO, socket, empty file.
    None,
    /// A directory: its first entry, and the entry that leads to it.
    Directory { first: u32, entry: u32 },
    /// A host file, at the node's own path below the root of a directory source.
    Host { root: u16 },
    /// A host file at a different path: a layer has linked it under other names, and may have
    /// removed the original one.
    HostAt { root: u16, path: u32 },
    /// A byte range of an archive or spool file.
    Stored { archive: u16, offset: u64 },
    /// A symbolic link's target in the names arena.
    Symlink { at: u32 },
    /// A device node.
    Device { major: u32, minor: u32 },
    /// A hard link to a node of the tree that this one will be merged over.
    Below { node: NodeId },
}

/// An inode of the tree.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Node {
    pub(crate) payload: Payload,
    /// Length of the contents in bytes, including holes; for a symbolic link, the length of its
    /// target.
    pub(crate) size: u64,
    pub(crate) mtime: Timestamp,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// Number of names; 1 for a directory, 0 once removed.
    pub(crate) names: u32,
    pub(crate) xattrs: XattrSetId,
    /// Index into the sparse maps, or `NONE`.
    sparse: u32,
    pub(crate) mode: u16,
    pub(crate) kind: Kind,
    /// A directory implied by a path but not listed by any source; or a symbolic link of the volume
    /// that sources are added to.
    pub(crate) implied: bool,
}

#[derive(Clone, Copy)]
struct Entry {
    parent: u32,
    node: u32,
    next: u32,
    name_at: u32,
    name_len: u8,
}

/// An interned set of extended attributes; equal sets have equal ids.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct XattrSetId(pub(crate) u32);

impl XattrSetId {
    /// No attributes.
    pub(crate) const EMPTY: Self = Self(0);
}

/// An extended attribute: full name (`security.selinux`) and value, as in the kernel's xattr calls.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Xattr {
    /// Name with its namespace prefix.
    pub name: Box<[u8]>,
    /// Value.
    pub value: Box<[u8]>,
}

/// Whether ext can store an attribute of this name; it cannot store others (`com.apple.…`,
/// `system.nfs4_acl`).
pub(crate) fn is_storable(name: &[u8]) -> bool {
    let prefixes: [&[u8]; 3] = [b"user.", b"trusted.", b"security."];
    prefixes.iter().any(|p| name.len() > p.len() && name.starts_with(p))
        || name == b"system.posix_acl_access"
        || name == b"system.posix_acl_default"
}

/// A data range of a sparse file, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DataRange {
    /// Offset in the file.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
    /// Offset in the stored bytes; equal to `offset` for host files.
    pub stored: u64,
}

/// The tree that becomes a volume.
pub(crate) struct Tree {
    names: Vec<u8>,
    entries: Vec<Entry>,
    nodes: Vec<Node>,
    index: HashTable<u32>,
    sparse: Vec<Box<[DataRange]>>,
    xattr_sets: Vec<Box<[Xattr]>>,
    xattr_ids: BTreeMap<Box<[Xattr]>, u32>,
    /// Paths of [`Payload::HostAt`].
    host_paths: Vec<Box<[u8]>>,
    /// Times of host files on the host, if the volume gets other times.
    host_times: BTreeMap<NodeId, Timestamp>,
    hidden: Vec<Hidden>,
    /// Whether the tree contains parts of image layers.
    is_layered: bool,
}

impl Default for Tree {
    fn default() -> Self {
        Self::new()
    }
}

impl Tree {
    /// A tree with an empty root directory: owned by root, mode 0755, dated 1970.
    pub(crate) fn new() -> Self {
        let root = Node {
            payload: Payload::Directory { first: NONE, entry: NONE },
            size: 0,
            mtime: Timestamp::default(),
            uid: 0,
            gid: 0,
            names: 1,
            xattrs: XattrSetId::EMPTY,
            sparse: NONE,
            mode: 0o755,
            kind: Kind::Directory,
            implied: true,
        };
        Self {
            names: Vec::new(),
            entries: Vec::new(),
            nodes: vec![root],
            index: HashTable::new(),
            sparse: Vec::new(),
            xattr_sets: vec![Box::default()],
            xattr_ids: BTreeMap::from([(Box::default(), 0)]),
            host_paths: Vec::new(),
            host_times: BTreeMap::new(),
            hidden: Vec::new(),
            is_layered: false,
        }
    }

    pub(crate) fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id.index()]
    }

    pub(crate) fn node_mut(&mut self, id: NodeId) -> &mut Node {
        &mut self.nodes[id.index()]
    }

    /// Number of nodes ever created, including removed ones.
    pub(crate) fn node_slots(&self) -> usize {
        self.nodes.len()
    }

    pub(crate) fn entry_name(&self, id: EntryId) -> &[u8] {
        let entry = &self.entries[id.0.to_usize()];
        &self.names[entry.name_at.to_usize()..][..usize::from(entry.name_len)]
    }

    pub(crate) fn entry_node(&self, id: EntryId) -> NodeId {
        NodeId(self.entries[id.0.to_usize()].node)
    }

    pub(crate) fn entry_parent(&self, id: EntryId) -> NodeId {
        NodeId(self.entries[id.0.to_usize()].parent)
    }

    /// Entries of a directory, in unspecified order.
    pub(crate) fn children(&self, dir: NodeId) -> impl Iterator<Item = EntryId> + '_ {
        let first = match self.node(dir).payload {
            Payload::Directory { first, .. } => first,
            _ => NONE,
        };
        std::iter::successors((first != NONE).then_some(EntryId(first)), |e| {
            let next = self.entries[e.0.to_usize()].next;
            (next != NONE).then_some(EntryId(next))
        })
        .filter(|e| self.entries[e.0.to_usize()].node != NONE)
    }

    /// Entries of a directory, sorted by name bytes.
    pub(crate) fn sorted_children(&self, dir: NodeId) -> Vec<EntryId> {
        let mut children: Vec<_> = self.children(dir).collect();
        children.sort_unstable_by(|a, b| self.entry_name(*a).cmp(self.entry_name(*b)));
        children
    }

    pub(crate) fn symlink_target(&self, id: NodeId) -> &[u8] {
        match self.node(id).payload {
            Payload::Symlink { at } => &self.names[at.to_usize()..][..self.node(id).size.to_usize()],
            _ => &[],
        }
    }

    /// Data ranges of a sparse file, ascending; `None` if the whole file is data.
    pub(crate) fn sparse_map(&self, id: NodeId) -> Option<&[DataRange]> {
        self.sparse.get(self.node(id).sparse.to_usize()).map(|map| &map[..])
    }

    pub(crate) fn xattrs(&self, id: XattrSetId) -> &[Xattr] {
        &self.xattr_sets[id.0.to_usize()]
    }

    /// All attribute sets, in id order.
    pub(crate) fn xattr_sets(&self) -> impl Iterator<Item = &[Xattr]> {
        self.xattr_sets.iter().map(|set| &set[..])
    }

    /// The original path of a host file that now has other names.
    pub(crate) fn host_path(&self, path: u32) -> &[u8] {
        &self.host_paths[path.to_usize()]
    }

    /// Remembers the original paths of host files whose nodes get other names.
    pub(crate) fn keep_host_paths(&mut self, mut nodes: BTreeSet<NodeId>) {
        for entry in (0..self.entries.len().fit_u32()).map(EntryId) {
            let id = NodeId(self.entries[entry.0.to_usize()].node);
            if nodes.remove(&id)
                && let Payload::Host { root } = self.node(id).payload
            {
                self.node_mut(id).payload = self.host_at(root, self.entry_path(entry));
            }
        }
    }

    /// Remembers the original path of a host file that gets a different path here.
    pub(crate) fn host_at(&mut self, root: u16, path: Vec<u8>) -> Payload {
        self.host_paths.push(path.into());
        Payload::HostAt { root, path: self.host_paths.len().fit_u32() - 1 }
    }

    /// Gives a node a time other than its source's.
    pub(crate) fn retime(&mut self, id: NodeId, mtime: Timestamp) {
        let node = self.node_mut(id);
        let old = std::mem::replace(&mut node.mtime, mtime);
        if matches!(node.payload, Payload::Host { .. } | Payload::HostAt { .. }) {
            self.host_times.entry(id).or_insert(old);
        }
    }

    /// The time of a host file on the host, if the volume gets another.
    pub(crate) fn host_time(&self, id: NodeId) -> Option<Timestamp> {
        self.host_times.get(&id).copied()
    }

    /// Interns an attribute set. Order does not matter; the last of equal names wins.
    pub(crate) fn intern_xattrs(&mut self, mut set: Vec<Xattr>) -> XattrSetId {
        set.reverse();
        set.sort_by(|a, b| a.name.cmp(&b.name));
        set.dedup_by(|later, first| later.name == first.name);
        let set = set.into_boxed_slice();
        if let Some(&id) = self.xattr_ids.get(&set) {
            return XattrSetId(id);
        }
        let id = self.xattr_sets.len().fit_u32();
        self.xattr_sets.push(set.clone());
        self.xattr_ids.insert(set, id);
        XattrSetId(id)
    }

    /// The entry `name` in `dir`.
    pub(crate) fn lookup(&self, dir: NodeId, name: &[u8]) -> Option<EntryId> {
        self.index.find(hash_of(dir.0, name), |&e| self.is(e, dir, name)).map(|&e| EntryId(e))
    }

    fn is(&self, entry: u32, dir: NodeId, name: &[u8]) -> bool {
        self.entries[entry.to_usize()].parent == dir.0 && self.entry_name(EntryId(entry)) == name
    }

    /// Adds a directory at `dir`/`name`. An existing directory keeps its entries and gets the new
    /// metadata; anything else is replaced.
    pub(crate) fn put_directory(
        &mut self,
        dir: NodeId,
        name: &[u8],
        meta: Meta,
    ) -> Result<NodeId, BuildError> {
        if let Some(entry) = self.lookup(dir, name) {
            let node = self.entry_node(entry);
            if self.node(node).kind == Kind::Directory {
                self.set_meta(node, meta);
                return Ok(node);
            }
            // The replaced file had hidden a directory of that name below the tree.
            self.hide(dir, name);
        }
        self.put(
            dir,
            name,
            Kind::Directory,
            meta,
            Payload::Directory { first: NONE, entry: self.next_entry().0 },
            0,
            None,
        )
    }

    /// Ensures that there is a directory at `dir`/`name`; a new one is marked as implied.
    pub(crate) fn imply_directory(&mut self, dir: NodeId, name: &[u8]) -> Result<NodeId, BuildError> {
        if let Some(node) = self.lookup(dir, name).map(|entry| self.entry_node(entry))
            && self.node(node).kind == Kind::Directory
        {
            return Ok(node);
        }
        let meta =
            Meta { mode: 0o755, uid: 0, gid: 0, mtime: Timestamp::default(), xattrs: XattrSetId::EMPTY };
        let node = self.put_directory(dir, name, meta)?;
        self.node_mut(node).implied = true;
        Ok(node)
    }

    /// Adds a symbolic link at `dir`/`name`, replacing what was there.
    pub(crate) fn put_symlink(
        &mut self,
        dir: NodeId,
        name: &[u8],
        meta: Meta,
        target: &[u8],
    ) -> Result<NodeId, BuildError> {
        let at = self.store(target)?;
        self.put(dir, name, Kind::Symlink, meta, Payload::Symlink { at }, target.len().to_u64(), None)
    }

    /// Adds a symbolic link of the volume that sources are added to.
    pub(crate) fn imply_symlink(
        &mut self,
        dir: NodeId,
        name: &[u8],
        target: &[u8],
    ) -> Result<(), BuildError> {
        let xattrs = XattrSetId::EMPTY;
        let meta = Meta { mode: 0o777, uid: 0, gid: 0, mtime: Timestamp::default(), xattrs };
        let node = self.put_symlink(dir, name, meta, target)?;
        self.node_mut(node).implied = true;
        Ok(())
    }

    /// Adds any other node at `dir`/`name`, replacing what was there.
    #[allow(clippy::too_many_arguments)] // one call per source; all of it is data
    pub(crate) fn put(
        &mut self,
        dir: NodeId,
        name: &[u8],
        kind: Kind,
        meta: Meta,
        payload: Payload,
        size: u64,
        sparse: Option<Vec<DataRange>>,
    ) -> Result<NodeId, BuildError> {
        self.remove(dir, name);
        let node =
            u32::try_from(self.nodes.len()).ok().filter(|&n| n < NONE).ok_or(BuildError::TooManyEntries)?;
        self.add_entry(dir, name, NodeId(node))?;
        let sparse = sparse.map_or(NONE, |map| {
            self.sparse.push(map.into_boxed_slice());
            self.sparse.len().fit_u32() - 1
        });
        self.nodes.push(Node {
            payload,
            size,
            mtime: meta.mtime,
            uid: meta.uid,
            gid: meta.gid,
            names: 1,
            xattrs: meta.xattrs,
            sparse,
            mode: meta.mode & 0o7777,
            kind,
            implied: false,
        });
        Ok(NodeId(node))
    }

    /// Links `node` under another name, replacing what was there.
    pub(crate) fn link(&mut self, dir: NodeId, name: &[u8], node: NodeId) -> Result<(), BuildError> {
        if self.lookup(dir, name).is_some_and(|entry| self.entry_node(entry) == node) {
            return Ok(());
        }
        // This may remove the last name of another node, but not of `node`: that was ruled out
        // above.
        self.remove(dir, name);
        self.add_entry(dir, name, node)?;
        self.node_mut(node).names += 1;
        Ok(())
    }

    pub(crate) fn set_meta(&mut self, id: NodeId, meta: Meta) {
        let node = self.node_mut(id);
        node.mode = meta.mode & 0o7777;
        node.uid = meta.uid;
        node.gid = meta.gid;
        node.mtime = meta.mtime;
        node.xattrs = meta.xattrs;
        node.implied = false;
    }

    fn add_entry(&mut self, dir: NodeId, name: &[u8], node: NodeId) -> Result<(), BuildError> {
        let Some(name_len) = u8::try_from(name.len()).ok().filter(|&n| n > 0) else {
            let mut path = self.path(dir);
            path.push(b'/');
            path.extend_from_slice(name);
            return Err(BuildError::NameTooLong { path: quoted(&path), bytes: name.len() });
        };
        let name_at = self.store(name)?;
        let id =
            u32::try_from(self.entries.len()).ok().filter(|&n| n < NONE).ok_or(BuildError::TooManyEntries)?;
        let Payload::Directory { first, .. } = &mut self.nodes[dir.index()].payload else {
            panic!("entries are added to directories only")
        };
        let next = std::mem::replace(first, id);
        self.entries.push(Entry { parent: dir.0, node: node.0, next, name_at, name_len });
        let (entries, names) = (&self.entries, &self.names);
        self.index.insert_unique(hash_of(dir.0, name), id, |&e| {
            let e = &entries[e.to_usize()];
            hash_of(e.parent, &names[e.name_at.to_usize()..][..usize::from(e.name_len)])
        });
        Ok(())
    }

    fn store(&mut self, bytes: &[u8]) -> Result<u32, BuildError> {
        let at = u32::try_from(self.names.len()).map_err(|_| BuildError::TooManyEntries)?;
        self.names.extend_from_slice(bytes);
        Ok(at)
    }

    /// Removes `dir`/`name` and everything below it; returns whether it existed.
    pub(crate) fn remove(&mut self, dir: NodeId, name: &[u8]) -> bool {
        let Ok(found) = self.index.find_entry(hash_of(dir.0, name), |&e| {
            let entry = &self.entries[e.to_usize()];
            entry.parent == dir.0
                && &self.names[entry.name_at.to_usize()..][..usize::from(entry.name_len)] == name
        }) else {
            return false;
        };
        let (gone, _) = found.remove();
        // The dead entry stays in its directory's chain, because unlinking it would require a walk.
        let node = NodeId(std::mem::replace(&mut self.entries[gone.to_usize()].node, NONE));
        self.node_mut(node).names -= 1;
        if self.node(node).kind == Kind::Directory {
            self.clear(node);
        }
        true
    }

    /// Records that sources remove `dir`/`name` from trees that lie below this one.
    pub(crate) fn hide(&mut self, dir: NodeId, name: &[u8]) {
        self.hidden.push(Hidden { dir: self.steps_to(dir), name: Some(name.to_vec()) });
    }

    /// Records that sources remove everything in `dir` from trees that lie below this one.
    pub(crate) fn hide_contents(&mut self, dir: NodeId) {
        self.hidden.push(Hidden { dir: self.steps_to(dir), name: None });
    }

    fn steps_to(&self, dir: NodeId) -> Vec<Step> {
        let step = |entry| Step {
            name: self.entry_name(entry).to_vec(),
            listed: !self.node(self.entry_node(entry)).implied,
        };
        self.entries_to(dir).into_iter().map(step).collect()
    }

    /// Records something that sources hide in trees that lie below this one.
    pub(crate) fn add_hidden(&mut self, hidden: Hidden) {
        self.hidden.push(hidden);
    }

    /// Replaces the list of hidden places.
    pub(crate) fn set_hidden(&mut self, hidden: Vec<Hidden>) {
        self.hidden = hidden;
    }

    /// Records that an image layer was merged over the tree.
    pub(crate) fn mark_layered(&mut self) {
        self.is_layered = true;
    }

    /// Whether the tree contains an image layer, whose listed directories replace symbolic links.
    pub(crate) fn is_layered(&self) -> bool {
        self.is_layered
    }

    /// Hidden places, in order.
    pub(crate) fn hidden(&self) -> &[Hidden] {
        &self.hidden
    }

    /// Empties a directory.
    pub(crate) fn clear(&mut self, dir: NodeId) {
        let mut pending = vec![dir];
        while let Some(dir) = pending.pop() {
            let children: Vec<_> = self.children(dir).collect();
            for child in children {
                let name = self.entry_name(child).to_vec();
                if let Ok(found) = self.index.find_entry(hash_of(dir.0, &name), |&e| e == child.0) {
                    found.remove();
                }
                let node = self.entry_node(child);
                if self.node(node).kind == Kind::Directory {
                    pending.push(node);
                }
                self.node_mut(node).names -= 1;
            }
            if let Payload::Directory { first, .. } = &mut self.node_mut(dir).payload {
                *first = NONE;
            }
        }
    }

    /// The id of the next entry.
    fn next_entry(&self) -> EntryId {
        EntryId(self.entries.len().fit_u32())
    }

    /// Whether no source has added anything to the tree.
    pub(crate) fn is_blank(&self) -> bool {
        self.nodes.len() == 1 && self.node(NodeId::ROOT).implied
    }

    /// The entry of a directory; the root has none.
    pub(crate) fn entry_of_directory(&self, dir: NodeId) -> Option<EntryId> {
        match self.node(dir).payload {
            Payload::Directory { entry, .. } if entry != NONE => Some(EntryId(entry)),
            _ => None,
        }
    }

    /// A directory's path from the root, without a trailing slash; empty for the root.
    pub(crate) fn path(&self, dir: NodeId) -> Vec<u8> {
        let mut path = Vec::new();
        for entry in self.entries_to(dir) {
            path.push(b'/');
            path.extend_from_slice(self.entry_name(entry));
        }
        path
    }

    /// The entries on the path from the root to a directory.
    fn entries_to(&self, dir: NodeId) -> Vec<EntryId> {
        let mut entries = Vec::new();
        let mut at = self.entry_of_directory(dir);
        while let Some(entry) = at {
            entries.push(entry);
            at = self.entry_of_directory(self.entry_parent(entry));
        }
        entries.reverse();
        entries
    }

    /// Any path of a node. For error messages only: it scans all entries.
    pub(crate) fn any_path(&self, node: NodeId) -> Vec<u8> {
        let found = (0..self.entries.len().fit_u32()).find(|&e| self.entries[e.to_usize()].node == node.0);
        found.map_or_else(|| b"/".to_vec(), |e| self.entry_path(EntryId(e)))
    }

    /// An entry's path from the root.
    pub(crate) fn entry_path(&self, entry: EntryId) -> Vec<u8> {
        let mut path = self.path(self.entry_parent(entry));
        path.push(b'/');
        path.extend_from_slice(self.entry_name(entry));
        path
    }
}

/// Deterministic across machines and runs: the default hasher has fixed keys.
fn hash_of(dir: u32, name: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    dir.hash(&mut hasher);
    name.hash(&mut hasher);
    hasher.finish()
}
