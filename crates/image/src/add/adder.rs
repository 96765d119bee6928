//! Merges a tree into a directory of a volume.

use super::ahead::Ahead;
use super::nodes::{empty, find, follow, follow_or_make, is_dir, remove, unchecked};
use super::waiting::Small;
use crate::layout::{LOST_AND_FOUND, check_device};
use crate::source::{Lost, Origin, Reader};
use crate::tree::{EntryId, Hidden, Kind, NodeId, Payload, Tree};
use crate::write::Progress;
use crate::{BuildError, quoted};
use extant_cache::ByteRange;
use extant_format::{DeviceNumber, FileKind, InodeNumber, UintExt};
use extant_fs::{Caller, Error, FileOptions, Node, SetAttributes, SetTime, Volume};
use std::collections::{BTreeMap, BTreeSet};

/// Limit on dirty bytes, below the cache's own write-back threshold, so that blocks are allocated
/// in the order of the tree.
const CHUNK_BYTES: usize = 4 << 20;

/// Adds a tree to a volume.
pub(super) struct Adder<'a> {
    pub(super) origin: Origin<'a>,
    caller: Caller,
    root: Node,
    /// Path of the target directory, for messages.
    above: Vec<u8>,
    pub(super) reader: Reader,
    pub(super) ahead: Ahead,
    /// Files that wait to be made together. Only their own names may be missed on the volume.
    pub(super) small: Small,
    /// A link of the volume was followed to a directory, which may be one that was made here.
    has_followed: bool,
    /// Inodes with several names, by node of the tree.
    linked: BTreeMap<NodeId, Node>,
    /// Inodes of files that layers list. Other files give way to implied directories.
    pub(super) listed: BTreeSet<InodeNumber>,
    /// Entries that listed files replace: through a symbolic link of the volume, two paths may be
    /// the same.
    pub(super) lost: Lost,
    pub(super) chunk: Vec<u8>,
    progress: Progress,
    done_bytes: u64,
    all_bytes: u64,
    files: u32,
    directories: u32,
}

impl<'a> Adder<'a> {
    pub(super) async fn new(
        volume: &Volume,
        origin: Origin<'a>,
        ahead: Ahead,
        progress: Progress,
    ) -> Result<Self, BuildError> {
        let root = volume.root_node().await.map_err(|error| BuildError::volume(b"/", error))?;
        let nodes = (0..origin.tree.node_slots().fit_u32()).map(|id| origin.tree.node(NodeId(id)));
        let all_bytes =
            nodes.filter(|node| node.kind == Kind::File && node.names > 0).map(|node| node.size).sum();
        let caller = unchecked();
        let small = Small::new(volume, &caller)?;
        Ok(Self {
            origin,
            caller,
            root,
            above: Vec::new(),
            reader: Reader::default(),
            ahead,
            small,
            has_followed: false,
            linked: BTreeMap::new(),
            listed: BTreeSet::new(),
            lost: Lost::default(),
            chunk: Vec::new(),
            progress,
            done_bytes: 0,
            all_bytes,
            files: 0,
            directories: 0,
        })
    }

    /// Adds the tree to the directory at `path`. Returns the number of files and of directories.
    pub(super) async fn add(&mut self, path: &[u8]) -> Result<(u32, u32), BuildError> {
        let tree = self.origin.tree;
        let top = self.directory(path).await?;
        self.above = path.to_vec();
        while self.above.last() == Some(&b'/') {
            self.above.pop();
        }
        for hidden in tree.hidden() {
            self.hide(&top, hidden).await?;
        }
        // Directories get their times last, because filling them changes those.
        let mut dirs = Vec::new();
        // Directories with their nodes, and whether they were made here: these are empty.
        let mut todo = vec![(top, NodeId::ROOT, false)];
        // Unlisted directories of layers whose names belong to something else. They wait until all
        // links to directories are in place.
        let mut late: Vec<(Node, EntryId)> = Vec::new();
        loop {
            let Some((dir, id, is_new)) = todo.pop() else {
                self.make_small().await?;
                let Some((above, entry)) = late.pop() else { break };
                match self.behind(&above, entry).await? {
                    Some(dir) => todo.push((dir, tree.entry_node(entry), false)),
                    None => self.lost.count_below(tree, tree.entry_node(entry), NodeId::ROOT),
                }
                continue;
            };
            if !tree.node(id).implied {
                self.attributes(&dir, id).await.map_err(|error| self.failed_at(id, error))?;
                dirs.push((dir.clone(), id));
            }
            self.directories += 1;
            // Unless something else has come into it through a link.
            let is_empty = is_new && !self.has_followed;
            let mut below = Vec::new();
            for entry in tree.sorted_children(id) {
                let id = tree.entry_node(entry);
                if tree.node(id).kind == Kind::Directory {
                    if tree.is_layered() && tree.node(id).implied && self.meets_other(&dir, entry).await? {
                        late.push((dir.clone(), entry));
                        continue;
                    }
                    let (dir, is_new) = self.subdirectory(&dir, is_empty, entry).await?;
                    below.push((dir, id, is_new));
                } else if !tree.node(id).implied {
                    self.file(&dir, is_empty, entry).await?;
                    self.files += 1;
                }
            }
            todo.extend(below.into_iter().rev());
        }
        for (dir, id) in dirs.iter().rev() {
            self.times(dir, *id).await.map_err(|error| self.failed_at(*id, error))?;
        }
        Ok((self.files, self.directories))
    }

    /// The directory at `path`; creates missing ones.
    async fn directory(&self, path: &[u8]) -> Result<Node, BuildError> {
        let failed = |error| BuildError::volume(path, error);
        let mut here = self.root.clone();
        for name in path.split(|&byte| byte == b'/').filter(|name| !name.is_empty()) {
            here = match follow(&self.caller, &self.root, &here, name).await.map_err(failed)? {
                Some(next) => next,
                None => here.mkdir(&self.caller, name, 0o755).await.map_err(failed)?,
            };
        }
        match is_dir(&here) {
            true => Ok(here),
            false => Err(failed(Error::NotADirectory(extant_fs::quote(path)))),
        }
    }

    /// Removes what the sources hide.
    async fn hide(&self, top: &Node, hidden: &Hidden) -> Result<(), BuildError> {
        let failed = |error| self.failed(&hidden.path(), error);
        let mut dir = top.clone();
        for step in &hidden.dir {
            // A listed directory replaces a symbolic link of the volume, so the link's target is
            // not affected.
            let found = match step.listed {
                true => find(&self.caller, &dir, &step.name).await,
                false => follow(&self.caller, &self.root, &dir, &step.name).await,
            };
            match found {
                Ok(Some(next)) if is_dir(&next) => dir = next,
                Ok(_) | Err(Error::NotADirectory(_)) => return Ok(()),
                Err(error) => return Err(failed(error)),
            }
        }
        let done = match &hidden.name {
            Some(name) => remove(&self.caller, &dir, name).await,
            None => {
                // e2fsck needs this directory, and layers do not know about it.
                let kept = (dir.inode() == self.root.inode()).then_some(LOST_AND_FOUND);
                empty(&self.caller, &dir, kept).await
            }
        };
        done.map_err(failed)
    }

    /// Whether the name of a directory of the tree belongs to another kind of file on the volume.
    async fn meets_other(&mut self, dir: &Node, entry: EntryId) -> Result<bool, BuildError> {
        let there = self.there(dir, false, entry).await?;
        Ok(there.is_some_and(|there| !is_dir(&there)))
    }

    /// Follows a link in a layer's path to a directory, which is created if it is missing. Returns
    /// `None` if a file that a layer lists is in its place.
    async fn behind(&mut self, above: &Node, entry: EntryId) -> Result<Option<Node>, BuildError> {
        let tree = self.origin.tree;
        self.has_followed = true;
        let made = follow_or_make(&self.caller, &self.root, above, tree.entry_name(entry), &self.listed);
        made.await.map_err(|error| self.failed(&tree.entry_path(entry), error))
    }

    /// The subdirectory of an entry, and whether it was made now.
    async fn subdirectory(
        &mut self,
        dir: &Node,
        is_empty: bool,
        entry: EntryId,
    ) -> Result<(Node, bool), BuildError> {
        let tree = self.origin.tree;
        let name = tree.entry_name(entry);
        let path = tree.entry_path(entry);
        let there = self.there(dir, is_empty, entry).await?;
        if there.as_ref().is_some_and(|there| !is_dir(there)) {
            // A link may lead to one of them.
            self.make_small().await?;
        }
        let failed = |error| self.failed(&path, error);
        if let Some(there) = there {
            if is_dir(&there) {
                return Ok((there, false));
            }
            // A directory may merge with the target of a link, except in layers, because they list
            // what is a directory in the resulting image. For directories that a layer does not
            // list, see `behind`.
            if !tree.is_layered()
                && let Some(target) = follow(&self.caller, &self.root, dir, name).await.map_err(failed)?
                && is_dir(&target)
            {
                self.has_followed = true;
                return Ok((target, false));
            }
            drop(there);
            dir.unlink(&self.caller, name).await.map_err(failed)?;
        }
        Ok((dir.mkdir(&self.caller, name, 0o755).await.map_err(failed)?, true))
    }

    /// What has an entry's name on the volume. Skips the lookup in a directory that holds only
    /// entries added before this one.
    async fn there(
        &mut self,
        dir: &Node,
        is_empty: bool,
        entry: EntryId,
    ) -> Result<Option<Node>, BuildError> {
        if is_empty {
            return Ok(None);
        }
        let tree = self.origin.tree;
        self.make_small_named(dir, tree.entry_name(entry)).await?;
        let there = find(&self.caller, dir, tree.entry_name(entry)).await;
        there.map_err(|error| self.failed(&tree.entry_path(entry), error))
    }

    async fn file(&mut self, dir: &Node, is_empty: bool, entry: EntryId) -> Result<(), BuildError> {
        let tree = self.origin.tree;
        let (name, id) = (tree.entry_name(entry), tree.entry_node(entry));
        if name == LOST_AND_FOUND && self.above.is_empty() && tree.entry_parent(entry) == NodeId::ROOT {
            let text = "the source has a lost+found that is not a directory; e2fsck needs one, so rename it";
            return Err(BuildError::Options(text.into()));
        }
        check_device(tree.node(id), || tree.entry_path(entry))?;
        if tree.node(id).kind == Kind::Symlink && tree.symlink_target(id).is_empty() {
            return Err(BuildError::TargetEmpty { path: quoted(&tree.entry_path(entry)) });
        }
        let there = self.there(dir, is_empty, entry).await?;
        if there.is_none() && self.is_made_together(dir, entry).await? {
            return Ok(());
        }
        if there.as_ref().is_some_and(is_dir) {
            // A link may have led some of them into this directory, which is about to be removed.
            self.make_small().await?;
        }
        let path = tree.entry_path(entry);
        let first = self.linked.get(&id).cloned();
        // Through a symbolic link, two paths of the sources may be the same name on the volume.
        if let (Some(first), Some(there)) = (&first, &there)
            && first.inode() == there.inode()
        {
            return Ok(());
        }
        let made = match first {
            Some(first) => first,
            None => self.whole(dir, entry, &path).await?,
        };
        if tree.is_layered() {
            self.listed.insert(made.inode());
        }
        let named = async {
            match there {
                None => dir.link(&self.caller, &made, name).await,
                Some(there) => {
                    let is_dir = is_dir(&there);
                    drop(there);
                    if is_dir {
                        remove(&self.caller, dir, name).await?;
                    }
                    dir.link_over(&self.caller, &made, name).await
                }
            }
        };
        named.await.map_err(|error| self.failed(&path, error))
    }

    /// Creates a complete file without a name. Until it is linked the name keeps its old file, and
    /// an error or a power cut leaves no trace of the new one.
    async fn whole(&mut self, dir: &Node, entry: EntryId, path: &[u8]) -> Result<Node, BuildError> {
        let tree = self.origin.tree;
        let id = tree.entry_node(entry);
        let made = self.make(dir, id, tree).await.map_err(|error| self.failed(path, error))?;
        if tree.node(id).kind == Kind::File {
            self.contents(&made, entry, path).await?;
        }
        self.settle(&made, id).await.map_err(|error| self.failed(path, error))?;
        if tree.node(id).names > 1 {
            self.linked.insert(id, made.clone());
        }
        Ok(made)
    }

    /// Creates an inode of the node's kind, without contents or attributes.
    async fn make(&self, dir: &Node, id: NodeId, tree: &Tree) -> extant_fs::Result<Node> {
        let caller = &self.caller;
        let node = tree.node(id);
        let device = match node.payload {
            Payload::Device { major, minor } => DeviceNumber { major, minor },
            _ => DeviceNumber { major: 0, minor: 0 },
        };
        let kind = match node.kind {
            Kind::File | Kind::Directory => return dir.create_unnamed(caller, 0o600).await,
            Kind::Symlink => return dir.symlink_unnamed(caller, tree.symlink_target(id)).await,
            Kind::CharDevice => FileKind::CharDevice,
            Kind::BlockDevice => FileKind::BlockDevice,
            Kind::Fifo => FileKind::Fifo,
            Kind::Socket => FileKind::Socket,
        };
        dir.mknod_unnamed(caller, kind, 0o600, device).await
    }

    async fn contents(&mut self, made: &Node, entry: EntryId, path: &[u8]) -> Result<(), BuildError> {
        let tree = self.origin.tree;
        let id = tree.entry_node(entry);
        let size = tree.node(id).size;
        let file =
            made.open(&self.caller, FileOptions::default()).map_err(|error| self.failed(path, error))?;
        let whole = [(0, size)];
        let sparse: Option<Vec<(u64, u64)>> = tree
            .sparse_map(id)
            .map(|map| map.iter().map(|range| (range.offset, range.offset + range.len)).collect());
        for &(start, end) in sparse.as_deref().unwrap_or(&whole) {
            let mut at = start;
            while at < end.min(size) {
                let len = CHUNK_BYTES.min((end.min(size) - at).to_usize());
                self.chunk.resize(len, 0);
                self.reader.read(self.origin, entry, at, &mut self.chunk)?;
                let mut done = 0;
                while done < len {
                    let written = file.write(at + done.to_u64(), &self.chunk[done..]).await;
                    match written.map_err(|error| self.failed(path, error))? {
                        0 => return Err(self.failed(path, Error::NoSpace)),
                        n => done += n,
                    }
                }
                file.write_back().await.map_err(|error| self.failed(path, error))?;
                at += len.to_u64();
            }
        }
        if file.size() < size {
            file.set_size(size).await.map_err(|error| self.failed(path, error))?;
        }
        // These pages are not read again. The next file's pages take the same memory, which is
        // faster than memory that was never used, or than evicting others.
        file.not_needed(ByteRange::ALL).await;
        self.has_done(size);
        Ok(())
    }

    /// Counts bytes of contents that need no more reading.
    pub(super) fn has_done(&mut self, bytes: u64) {
        self.done_bytes += bytes;
        (self.progress)(self.done_bytes, self.all_bytes);
    }

    /// Gives a new file the source's attributes and times: in one change of its inode, if it has no
    /// extended attributes.
    async fn settle(&self, made: &Node, id: NodeId) -> extant_fs::Result<()> {
        let tree = self.origin.tree;
        let node = tree.node(id);
        if !tree.xattrs(node.xattrs).is_empty() || !made.xattrs(&self.caller).await?.is_empty() {
            self.attributes(made, id).await?;
            return self.times(made, id).await;
        }
        let permissions = (node.kind != Kind::Symlink).then_some(node.mode);
        let time = Some(SetTime::To(node.mtime));
        let all = SetAttributes {
            uid: Some(node.uid),
            gid: Some(node.gid),
            permissions,
            accessed: time,
            modified: time,
            ..SetAttributes::default()
        };
        made.set_attributes(&self.caller, &all).await
    }

    /// Sets the source's owner, extended attributes and mode, and removes other attributes.
    ///
    /// Changing the owner clears the set-ID bits and an access list changes the mode, so the mode
    /// comes last. A directory may have existed before, so the changes that can be refused come
    /// first, in one step; if they are, the directory keeps its attributes.
    async fn attributes(&self, made: &Node, id: NodeId) -> extant_fs::Result<()> {
        let tree = self.origin.tree;
        let node = tree.node(id);
        let caller = &self.caller;
        let owner = SetAttributes { uid: Some(node.uid), gid: Some(node.gid), ..Default::default() };
        let is_dir = node.kind == Kind::Directory;
        // A file would lose its capabilities to a later change of its owner.
        if !is_dir {
            made.set_attributes(caller, &owner).await?;
        }
        let wanted = tree.xattrs(node.xattrs);
        let there = made.xattrs(caller).await?;
        let unwanted = there
            .iter()
            .filter(|name| **name != b"system.data" && wanted.iter().all(|xattr| *xattr.name != ***name));
        let mut changes: Vec<(&[u8], Option<&[u8]>)> = unwanted.map(|name| (&**name, None)).collect();
        changes.extend(wanted.iter().map(|xattr| (&*xattr.name, Some(&*xattr.value))));
        match made.change_xattrs(caller, &changes).await {
            // Together they may exceed one transaction.
            Err(Error::NoSpace) if !is_dir => {
                for change in &changes {
                    made.change_xattrs(caller, std::slice::from_ref(change)).await?;
                }
            }
            changed => changed?,
        }
        if node.kind == Kind::Symlink {
            return Ok(());
        }
        let owner = if is_dir { owner } else { SetAttributes::default() };
        made.set_attributes(caller, &SetAttributes { permissions: Some(node.mode), ..owner }).await
    }

    /// The access time is set to the modification time, as in built volumes.
    async fn times(&self, made: &Node, id: NodeId) -> extant_fs::Result<()> {
        let time = Some(SetTime::To(self.origin.tree.node(id).mtime));
        let times = SetAttributes { accessed: time, modified: time, ..Default::default() };
        made.set_attributes(&self.caller, &times).await
    }

    fn failed_at(&self, dir: NodeId, error: Error) -> BuildError {
        self.failed(&self.origin.tree.path(dir), error)
    }

    pub(super) fn failed(&self, path: &[u8], error: Error) -> BuildError {
        let mut whole = self.above.clone();
        whole.extend_from_slice(path);
        if whole.is_empty() {
            whole.push(b'/');
        }
        BuildError::Volume { path: quoted(&whole), error }
    }
}
