//! A volume's promises, as a small in-memory file system that remembers its past.
//!
//! After a crash, names, links, modes, owners, attributes, explicit times and explicit sizes match
//! the state after some *prefix* of the operations that includes everything synced. Written data
//! follows its own rules, byte by byte ([`file`]). The model keeps the name space after every
//! operation ([`space`]) and every file's writes, and decides whether a prefix explains a recovered
//! tree.

mod acl;
mod file;
mod space;
mod synced;

use crate::{Durability, Errno, Op, PUT_TIME, RenameMode, Tree};
use file::{Event, FileHistory, Limits};
use space::{Body, NodeId, ROOT, Space};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// How an operation changed an inode, as far as it matters for syncs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Touch {
    /// It was created.
    Born,
    /// It got an explicit size.
    Size,
    /// A name, an attribute, or a directory entry changed.
    Other,
}

/// The prefix that a completed operation made durable.
#[derive(Clone, Debug)]
struct Sync {
    op: usize,
    /// The prefix that must survive.
    prefix: usize,
    /// The synced inode; `None` for all.
    node: Option<NodeId>,
    /// Whether names and attributes were synced too, not only data.
    whole: bool,
}

/// The reference file system.
#[derive(Clone, Debug)]
pub struct Model {
    /// States after each number of operations.
    spaces: Vec<Arc<Space>>,
    files: BTreeMap<NodeId, FileHistory>,
    touched: Vec<(usize, NodeId, Touch)>,
    syncs: Vec<Sync>,
    held: BTreeMap<u8, NodeId>,
    next: NodeId,
    /// Age at which changes are durable without a sync, if any.
    commits_within_millis: Option<u64>,
    limits: Limits,
}

/// Why no prefix explains a recovered tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Prefixes that would be acceptable.
    pub allowed: std::ops::RangeInclusive<usize>,
    /// The closest prefix.
    pub nearest: usize,
    /// Differences from it.
    pub complaints: Vec<String>,
}

impl std::fmt::Display for Violation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (from, to) = (self.allowed.start(), self.allowed.end());
        write!(f, "no prefix of {from} to {to} operations explains it; after {}:", self.nearest)?;
        self.complaints.iter().try_for_each(|line| write!(f, "\n  {line}"))
    }
}

impl Model {
    /// A volume on which everything found is durable.
    pub fn new(found: &Tree) -> Self {
        let mut model = Self {
            spaces: Vec::new(),
            files: BTreeMap::new(),
            touched: Vec::new(),
            syncs: Vec::new(),
            held: BTreeMap::new(),
            next: 1,
            commits_within_millis: None,
            limits: Limits::default(),
        };
        let mut numbers = BTreeMap::new();
        for (path, found) in &found.nodes {
            if path.is_empty() {
                continue;
            }
            numbers.entry(found.stat.inode).or_insert_with(|| {
                let id = model.next;
                model.next += 1;
                model.files.insert(id, FileHistory::new(0, found.data.clone()));
                id
            });
        }
        model.spaces.push(Arc::new(Space::from_tree(found, &numbers)));
        model
    }

    /// Names and attributes, but not data, are durable at this age without a sync.
    #[must_use]
    pub fn commits_within_millis(mut self, age: Option<u64>) -> Self {
        self.commits_within_millis = age;
        self
    }

    /// A write-back may have failed: a file with delayed data may then end after any of the blocks
    /// allocated for it.
    #[must_use]
    pub fn after_failed_writes(mut self, block_bytes: u64) -> Self {
        self.limits.failed = Some(block_bytes);
        self
    }

    /// Block size in bytes, if known: a truncation that does not survive has zeroed nothing past
    /// the block of its new end.
    #[must_use]
    pub fn in_blocks_of(mut self, block_bytes: Option<u64>) -> Self {
        self.limits.block = block_bytes;
        self
    }

    /// Number of operations recorded.
    pub fn len(&self) -> usize {
        self.spaces.len() - 1
    }

    /// Whether none are recorded.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn now(&self) -> &Arc<Space> {
        self.spaces.last().expect("there is a beginning")
    }

    /// Records an operation and its result. A failed operation changed nothing.
    ///
    /// # Errors
    /// The operation cannot have succeeded.
    pub fn record(&mut self, op: &Op, result: Result<u64, Errno>) -> Result<(), String> {
        let index = self.len();
        let mut space = Space::clone(self.now());
        if let Ok(count) = result {
            self.succeed(index, &mut space, op, count)
                .map_err(|errno| format!("{op} succeeded, but should have failed: {errno}"))?;
        }
        // Unchanged states share memory.
        let space = if space == **self.now() { self.now().clone() } else { Arc::new(space) };
        self.spaces.push(space);
        Ok(())
    }

    /// Records an operation that the device failed. It changed nothing, except perhaps times of the
    /// files it names: like on Linux, times are set before data is written.
    pub fn record_interrupted(&mut self, op: &Op) {
        let mut space = Space::clone(self.now());
        for path in op.paths() {
            if let Ok(id) = space.resolve(path, true) {
                space.edit(id).mtime = None;
            }
        }
        self.spaces.push(Arc::new(space));
    }

    /// Whether `op`, a write by path, returns only once it is durable: by `O_SYNC`, `O_DSYNC`, or
    /// the file's flag.
    pub fn writes_durably(&self, op: &Op) -> bool {
        let (Op::Write { path, durability, .. } | Op::Rewrite { path, durability, .. }) = op else {
            return false;
        };
        let space = self.now();
        let durability = match space.resolve(path, true) {
            Ok(id) => space.durability(id, *durability),
            Err(_) => *durability,
        };
        durability != Durability::None
    }

    /// Records a durable write by path that failed: its data may be in the page cache, like that of
    /// a write without a sync.
    ///
    /// # Errors
    /// It cannot have begun.
    pub fn record_unsynced(&mut self, op: &Op) -> Result<(), String> {
        let index = self.len();
        let mut space = Space::clone(self.now());
        self.begin(index, &mut space, op)
            .map_err(|errno| format!("{op} was begun, but should have failed: {errno}"))?;
        self.spaces.push(Arc::new(space));
        Ok(())
    }

    fn begin(&mut self, index: usize, space: &mut Space, op: &Op) -> Result<(), Errno> {
        let (Op::Write { path, len, .. } | Op::Rewrite { path, len, .. }) = op else {
            return Err(Errno::INVAL);
        };
        let id = space.resolve(path, true)?;
        let offset = if let Op::Write { offset, .. } = op { *offset } else { 0 };
        if matches!(op, Op::Rewrite { .. }) {
            self.touched.push((index, id, Touch::Size));
            self.event(index, id, Event::Resize { size: 0 })?;
        }
        self.write(index, space, id, op, offset, *len)
    }

    fn succeed(&mut self, index: usize, space: &mut Space, op: &Op, count: u64) -> Result<(), Errno> {
        match op {
            Op::Create { path, mode, .. } => {
                if space.resolve(path, true).is_err() {
                    self.born(index, space, path, Body::File, *mode)?;
                }
            }
            Op::Mkdir { path, mode } => {
                self.born(index, space, path, Body::Dir(BTreeMap::new()), *mode & 0o1777)?
            }
            Op::Symlink { target, path } => {
                self.born(index, space, path, Body::Symlink(target.clone()), 0o777)?;
            }
            Op::Mknod { path, special, mode } => {
                self.born(index, space, path, Body::Special(*special), *mode)?;
            }
            Op::Link { from, to } => {
                let id = space.resolve(from, false)?;
                let dir = space.link(id, to)?;
                self.touch(index, &[id, dir]);
            }
            Op::Unlink { path } | Op::Rmdir { path } => {
                let (id, dir) = space.unlink(path)?;
                self.touch(index, &[id, dir]);
            }
            Op::Rename { from, to, mode } => self.rename(index, space, from, to, *mode)?,
            Op::Chmod { path, mode } => {
                let id = space.resolve(path, true)?;
                space.chmod(id, *mode);
                self.touch(index, &[id]);
            }
            Op::Chown { path, uid, gid } => {
                let id = space.resolve(path, false)?;
                space.chown(id, *uid, *gid);
                self.touch(index, &[id]);
            }
            Op::Utimens { path, mtime, .. } => {
                let id = space.resolve(path, false)?;
                space.edit(id).mtime = Some((index, *mtime));
                self.touch(index, &[id]);
            }
            Op::SetXattr { path, name, value, .. } => {
                let id = space.resolve(path, false)?;
                space.set_xattr(id, name, value);
                self.touch(index, &[id]);
            }
            Op::RemoveXattr { path, name } => {
                let id = space.resolve(path, false)?;
                space.remove_xattr(id, name)?;
                self.touch(index, &[id]);
            }
            Op::SetFlags { path, flags } => {
                let id = space.resolve(path, true)?;
                space.edit(id).flags = *flags;
                self.touch(index, &[id]);
            }
            Op::Truncate { path, size } => self.resize(index, space, path, *size)?,
            Op::OpenTruncated { path } => {
                let id = space.resolve(path, true)?;
                space.edit(id).mtime = None;
                self.drop_capability(index, space, id);
                self.event(index, id, Event::Empty)?;
            }
            Op::Write { path, offset, durability, .. } => {
                let id = space.resolve(path, true)?;
                self.write(index, space, id, op, *offset, count)?;
                self.pin(index, id, *offset..*offset + count, space.durability(id, *durability))?;
            }
            Op::Rewrite { path, durability, .. } => {
                let id = space.resolve(path, true)?;
                self.touched.push((index, id, Touch::Size));
                self.drop_capability(index, space, id);
                self.event(index, id, Event::Resize { size: 0 })?;
                self.write(index, space, id, op, 0, count)?;
                self.pin(index, id, 0..count, space.durability(id, *durability))?;
            }
            Op::Fallocate { path, mode, offset, len } => {
                let id = space.resolve(path, true)?;
                space.edit(id).mtime = None;
                self.drop_capability(index, space, id);
                let file = self.files.get(&id).ok_or(Errno::ISDIR)?;
                let event = file.fallocate(*mode, *offset, *len);
                if matches!(event, Event::Shift { .. }) {
                    self.touched.push((index, id, Touch::Size));
                }
                self.event(index, id, event)?;
            }
            Op::CopyRange { .. } if count == 0 => {}
            Op::CopyRange { from, at, to, to_at, .. } => {
                let (from, to) = (space.resolve(from, true)?, space.resolve(to, true)?);
                let data = self.files.get(&from).and_then(|file| file.live_range(*at, count));
                let data = data.ok_or(Errno::IO)?;
                space.edit(to).mtime = None;
                self.drop_capability(index, space, to);
                self.event(index, to, Event::Write { offset: *to_at, data })?;
            }
            Op::SetProject { path, project } => {
                let id = space.resolve(path, true)?;
                space.edit(id).project = *project;
                self.touch(index, &[id]);
            }
            Op::Hold { slot, path } => {
                self.held.insert(*slot, space.resolve(path, true)?);
            }
            Op::Tmpfile { slot, dir, mode } => {
                let id = self.next;
                space.create_nameless(id, dir, *mode)?;
                self.next += 1;
                self.files.insert(id, FileHistory::new(index, Arc::default()));
                self.touched.push((index, id, Touch::Born));
                self.held.insert(*slot, id);
            }
            Op::LinkHeld { slot, to } => {
                let id = *self.held.get(slot).ok_or(Errno::BADF)?;
                if !space.contains(id) {
                    return Err(Errno::NOENT);
                }
                let dir = space.link(id, to)?;
                self.touch(index, &[id, dir]);
            }
            Op::LinkHeldOver { slot, to } => {
                let id = *self.held.get(slot).ok_or(Errno::BADF)?;
                if !space.contains(id) {
                    return Err(Errno::NOENT);
                }
                let replaced = space.resolve(to, false).ok().filter(|&replaced| replaced != id);
                if replaced.is_some() || space.resolve(to, false).is_err() {
                    let dir = space.link_over(id, to)?;
                    self.touch(index, &[id, dir]);
                    self.touch(index, replaced.as_slice());
                    if let Some(file) = self.files.get_mut(&id) {
                        file.carried_by(index);
                    }
                }
            }
            Op::WriteHeld { slot, offset, .. } => {
                let id = *self.held.get(slot).ok_or(Errno::BADF)?;
                self.write(index, space, id, op, *offset, count)?;
                self.pin(index, id, *offset..*offset + count, space.durability(id, Durability::None))?;
            }
            Op::Release { slot } => {
                self.held.remove(slot).ok_or(Errno::BADF)?;
            }
            Op::Put { path, mode, .. } => {
                let id = self.next;
                self.born(index, space, path, Body::File, *mode)?;
                self.write(index, space, id, op, 0, count)?;
                space.edit(id).mtime = Some((index, PUT_TIME));
                if let Some(file) = self.files.get_mut(&id) {
                    file.carried_by(index);
                }
            }
            Op::Fsync { path } => {
                let id = space.resolve(path, true)?;
                self.sync_node(index, id, false);
            }
            Op::Fdatasync { path } => {
                let id = space.resolve(path, true)?;
                self.sync_node(index, id, true);
            }
            Op::Sync => {
                self.files.values_mut().for_each(|file| file.synced(index));
                self.syncs.push(Sync { op: index, prefix: index, node: None, whole: true });
            }
            Op::Sleep { millis } => {
                if self.commits_within_millis.is_some_and(|age| *millis > age) {
                    self.syncs.push(Sync { op: index, prefix: index, node: Some(ROOT), whole: true });
                }
            }
        }
        Ok(())
    }

    /// Records that an `O_SYNC` or `O_DSYNC` write is durable.
    fn pin(
        &mut self,
        index: usize,
        id: NodeId,
        range: Range<u64>,
        durability: Durability,
    ) -> Result<(), Errno> {
        if durability != Durability::None {
            let size = self.files.get(&id).map_or(0, FileHistory::live_bytes);
            self.event(index, id, Event::Pin { range, size })?;
            self.sync_attributes(index, id, durability == Durability::Data);
        }
        Ok(())
    }

    fn resize(&mut self, index: usize, space: &mut Space, path: &str, size: u64) -> Result<(), Errno> {
        let id = space.resolve(path, true)?;
        space.edit(id).mtime = None;
        self.drop_capability(index, space, id);
        self.touched.push((index, id, Touch::Size));
        self.event(index, id, Event::Resize { size })
    }

    fn drop_capability(&mut self, index: usize, space: &mut Space, id: NodeId) {
        if space.drop_capability(id) {
            self.touch(index, &[id]);
        }
    }

    fn touch(&mut self, index: usize, nodes: &[NodeId]) {
        self.touched.extend(nodes.iter().map(|&id| (index, id, Touch::Other)));
    }

    fn born(
        &mut self,
        index: usize,
        space: &mut Space,
        path: &str,
        body: Body,
        mode: u32,
    ) -> Result<(), Errno> {
        let id = self.next;
        let dir = space.create(id, path, body, mode)?;
        self.next += 1;
        self.files.insert(id, FileHistory::new(index, Arc::default()));
        self.touched.push((index, id, Touch::Born));
        self.touch(index, &[dir]);
        Ok(())
    }

    fn rename(
        &mut self,
        index: usize,
        space: &mut Space,
        from: &str,
        to: &str,
        mode: RenameMode,
    ) -> Result<(), Errno> {
        let id = space.resolve(from, false)?;
        let replaced = space.resolve(to, false).ok();
        if replaced == Some(id) {
            return Ok(());
        }
        let dirs = space.rename(from, to, mode)?;
        if matches!(mode, RenameMode::Whiteout | RenameMode::WhiteoutNoReplace) {
            space.white_out(self.next, from)?;
            self.next += 1;
        }
        self.touch(index, &[id, dirs.0, dirs.1]);
        self.touch(index, replaced.as_slice());
        // Replace-by-rename makes the source's contents durable with the rename.
        if replaced.is_some()
            && matches!(mode, RenameMode::Replace | RenameMode::Whiteout)
            && let Some(file) = self.files.get_mut(&id)
        {
            file.carried_by(index);
        }
        Ok(())
    }

    fn write(
        &mut self,
        index: usize,
        space: &mut Space,
        id: NodeId,
        op: &Op,
        offset: u64,
        count: u64,
    ) -> Result<(), Errno> {
        let mut data = op.data().expect("a write");
        if count > data.len() as u64 {
            return Err(Errno::IO);
        }
        data.truncate(count as usize);
        if count > 0 && space.contains(id) {
            space.edit(id).mtime = None;
            self.drop_capability(index, space, id);
        }
        self.event(index, id, Event::Write { offset, data: data.into() })
    }

    fn event(&mut self, index: usize, id: NodeId, event: Event) -> Result<(), Errno> {
        self.files.get_mut(&id).ok_or(Errno::ISDIR)?.push(index, event);
        Ok(())
    }

    fn sync_node(&mut self, index: usize, id: NodeId, data_only: bool) {
        self.sync_attributes(index, id, data_only);
        if let Some(file) = self.files.get_mut(&id) {
            file.synced(index);
        }
    }

    fn sync_attributes(&mut self, index: usize, id: NodeId, data_only: bool) {
        let wanted = |touch: Touch| !data_only || touch != Touch::Other;
        let last = self.touched.iter().rfind(|&&(_, node, touch)| node == id && wanted(touch));
        let prefix = last.map_or(0, |&(op, ..)| op + 1);
        self.syncs.push(Sync { op: index, prefix, node: Some(id), whole: !data_only });
    }

    /// All prefixes that explain a recovered tree, shortest first; see [`Model::explain`].
    pub fn prefixes(&self, tree: &Tree, completed: usize, started: usize) -> Vec<usize> {
        let explains = |&prefix: &usize| self.compare(tree, prefix, completed, started).is_empty();
        (self.synced_by(completed)..=started.min(self.len())).filter(explains).collect()
    }

    /// The shortest prefix that includes everything synced.
    fn synced_by(&self, completed: usize) -> usize {
        self.syncs.iter().filter(|sync| sync.op < completed).map(|sync| sync.prefix).max().unwrap_or(0)
    }

    /// Returns a prefix that explains a recovered tree. Before the crash, `completed` operations
    /// had returned and `started` had begun.
    ///
    /// # Errors
    /// No prefix does.
    pub fn explain(&self, tree: &Tree, completed: usize, started: usize) -> Result<usize, Violation> {
        let lowest = self.synced_by(completed);
        let started = started.min(self.len());
        let mut nearest: Option<(usize, Vec<String>)> = None;
        for prefix in (lowest..=started).rev() {
            let complaints = self.compare(tree, prefix, completed, started);
            if complaints.is_empty() {
                return Ok(prefix);
            }
            if nearest.as_ref().is_none_or(|(_, least)| complaints.len() < least.len()) {
                nearest = Some((prefix, complaints));
            }
        }
        let (nearest, complaints) = nearest.expect("a synced operation was started");
        Err(Violation { allowed: lowest..=started, nearest, complaints })
    }

    /// Compares a tree with the exact state, including contents and sizes, after an undisturbed
    /// run.
    pub fn compare_now(&self, tree: &Tree) -> Vec<String> {
        let mut synced = self.clone();
        synced.files.values_mut().for_each(|file| file.synced(self.len()));
        synced.compare(tree, self.len(), self.len() + 1, self.len())
    }

    fn compare(&self, tree: &Tree, prefix: usize, completed: usize, started: usize) -> Vec<String> {
        let space = &self.spaces[prefix];
        let mut complaints = space.compare(tree, |id, since| {
            self.files.get(&id).is_some_and(|file| file.written_after(since, started))
        });
        for (path, id) in space.paths() {
            let (Some(found), Body::File) = (tree.nodes.get(&path), space.body(id)) else { continue };
            if let Err(complaint) =
                self.files[&id].admits(&found.data, prefix, completed, started, self.limits)
            {
                complaints.push(format!("/{path}: {complaint}"));
            }
        }
        complaints
    }
}

#[cfg(test)]
mod tests;
