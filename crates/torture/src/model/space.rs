//! The name space after some operation.

use super::acl;
use crate::subject::CAPABILITY;
use crate::{Durability, Errno, Found, Kind, RenameMode, Special, Time, Tree, join, split};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

pub(super) type NodeId = u32;

pub(super) const ROOT: NodeId = 0;
const SETUID: u32 = 0o4000;
const SETGID: u32 = 0o2000;
/// Synchronous, no dump, no access times, synchronous directory.
const INHERITED: u32 = 0x1_40c8;
const DIRSYNC: u32 = 0x1_0000;
/// `FS_SYNC_FL`: as if every descriptor had `O_SYNC`.
const SYNCHRONOUS: u32 = 0x8;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Body {
    File,
    Dir(BTreeMap<String, NodeId>),
    Symlink(String),
    Special(Special),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Node {
    pub(super) body: Body,
    pub(super) mode: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) nlink: u64,
    pub(super) xattrs: BTreeMap<String, Vec<u8>>,
    /// `chattr` flags of a file or directory.
    pub(super) flags: u32,
    pub(super) project: u32,
    /// The modification time and the operation that set it, if it was set explicitly and not
    /// changed since.
    pub(super) mtime: Option<(usize, Time)>,
}

/// Inodes and names. The root's number is that in the first tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Space {
    nodes: BTreeMap<NodeId, Arc<Node>>,
}

impl Space {
    pub(super) fn from_tree(tree: &Tree, numbers: &BTreeMap<u64, NodeId>) -> Self {
        let id = |path: &str| match path {
            "" => ROOT,
            path => numbers[&tree.nodes[path].stat.inode],
        };
        let mut nodes: BTreeMap<NodeId, Arc<Node>> = BTreeMap::new();
        for (path, found) in &tree.nodes {
            let stat = &found.stat;
            let body = match stat.kind {
                Kind::File => Body::File,
                Kind::Dir => Body::Dir(BTreeMap::new()),
                Kind::Symlink => Body::Symlink(found.target.clone().unwrap_or_default()),
                Kind::Fifo => Body::Special(Special::Fifo),
                Kind::Socket => Body::Special(Special::Socket),
                Kind::Char => Body::Special(Special::Char(stat.device.0, stat.device.1)),
                Kind::Block => Body::Special(Special::Block(stat.device.0, stat.device.1)),
            };
            let node = Node {
                body,
                mode: stat.mode,
                uid: stat.uid,
                gid: stat.gid,
                nlink: stat.nlink,
                xattrs: found.xattrs.clone(),
                flags: stat.flags,
                project: stat.project.unwrap_or(0),
                mtime: None,
            };
            nodes.entry(id(path)).or_insert_with(|| Arc::new(node));
        }
        let mut space = Self { nodes };
        for path in tree.nodes.keys().filter(|path| !path.is_empty()) {
            let (dir, name) = split(path);
            space.entries(id(dir)).expect("a directory").insert(name.to_owned(), id(path));
        }
        space
    }

    pub(super) fn contains(&self, id: NodeId) -> bool {
        self.nodes.contains_key(&id)
    }

    pub(super) fn body(&self, id: NodeId) -> &Body {
        &self.nodes[&id].body
    }

    pub(super) fn edit(&mut self, id: NodeId) -> &mut Node {
        Arc::make_mut(self.nodes.get_mut(&id).expect("a node of this space"))
    }

    fn entries(&mut self, id: NodeId) -> Result<&mut BTreeMap<String, NodeId>, Errno> {
        match &mut self.edit(id).body {
            Body::Dir(entries) => Ok(entries),
            _ => Err(Errno::NOTDIR),
        }
    }

    /// The inode at a path; `follow` applies to a symbolic link in the last component.
    pub(super) fn resolve(&self, path: &str, follow: bool) -> Result<NodeId, Errno> {
        let mut todo: Vec<String> = path.split('/').rev().map(str::to_owned).collect();
        let mut trail = vec![ROOT];
        let mut links = 0;
        while let Some(name) = todo.pop() {
            let here = *trail.last().expect("the root stays");
            match name.as_str() {
                "" | "." => continue,
                ".." => {
                    if trail.len() > 1 {
                        trail.pop();
                    }
                    continue;
                }
                _ => {}
            }
            let Body::Dir(entries) = self.body(here) else { return Err(Errno::NOTDIR) };
            let id = *entries.get(&name).ok_or(Errno::NOENT)?;
            match self.body(id) {
                Body::Symlink(target) if follow || !todo.is_empty() => {
                    links += 1;
                    if links > 40 {
                        return Err(Errno::LOOP);
                    }
                    todo.extend(target.split('/').rev().map(str::to_owned));
                }
                _ => trail.push(id),
            }
        }
        Ok(*trail.last().expect("the root stays"))
    }

    fn place<'a>(&self, path: &'a str) -> Result<(NodeId, &'a str), Errno> {
        let (dir, name) = split(path);
        Ok((self.resolve(dir, true)?, name))
    }

    /// Adds an inode; returns its directory.
    pub(super) fn create(&mut self, id: NodeId, path: &str, body: Body, mode: u32) -> Result<NodeId, Errno> {
        // A file created through a dangling link is created at the link's target.
        if let (Ok(link), Body::File) = (self.resolve(path, false), &body)
            && let Body::Symlink(target) = self.body(link).clone()
        {
            return self.create(id, &join(split(path).0, &target), body, mode);
        }
        let (dir, name) = self.place(path)?;
        let is_dir = matches!(body, Body::Dir(_));
        let node = self.made_in(dir, body, mode);
        let parent = self.edit(dir);
        parent.mtime = None;
        parent.nlink += u64::from(is_dir);
        if self.entries(dir)?.insert(name.to_owned(), id).is_some() {
            return Err(Errno::EXIST);
        }
        self.nodes.insert(id, Arc::new(node));
        Ok(dir)
    }

    /// Adds a file without a name, created in this directory.
    pub(super) fn create_nameless(&mut self, id: NodeId, dir: &str, mode: u32) -> Result<(), Errno> {
        let dir = self.resolve(dir, true)?;
        self.entries(dir)?;
        let node = Node { nlink: 0, ..self.made_in(dir, Body::File, mode) };
        self.nodes.insert(id, Arc::new(node));
        Ok(())
    }

    /// When a write through a descriptor opened with `asked` is durable.
    pub(super) fn durability(&self, id: NodeId, asked: Durability) -> Durability {
        let is_synchronous = self.nodes.get(&id).is_some_and(|node| node.flags & SYNCHRONOUS != 0);
        if is_synchronous { Durability::All } else { asked }
    }

    /// A new inode with what it inherits from its directory: group, flags, access control lists.
    fn made_in(&self, dir: NodeId, body: Body, mode: u32) -> Node {
        let parent = &self.nodes[&dir];
        let is_dir = matches!(body, Body::Dir(_));
        let inherits = parent.mode & SETGID != 0;
        let flags = match body {
            Body::Dir(_) => parent.flags & INHERITED,
            Body::File => parent.flags & INHERITED & !DIRSYNC,
            _ => 0,
        };
        let mut node = Node {
            mode: if inherits && is_dir { mode | SETGID } else { mode },
            uid: 0,
            gid: if inherits { parent.gid } else { 0 },
            nlink: if is_dir { 2 } else { 1 },
            xattrs: BTreeMap::new(),
            flags,
            // Inherited only with a directory flag (`FS_PROJINHERIT_FL`) that no operation here
            // sets.
            project: 0,
            mtime: None,
            body,
        };
        let default = parent.xattrs.get(acl::DEFAULT);
        if let Some(default) = default.filter(|_| !matches!(node.body, Body::Symlink(_))) {
            let (access, mode) = acl::inherited(default, node.mode);
            node.mode = mode;
            node.xattrs.extend(access.map(|list| (acl::ACCESS.to_owned(), list)));
            if is_dir {
                node.xattrs.insert(acl::DEFAULT.to_owned(), default.clone());
            }
        }
        node
    }

    pub(super) fn chmod(&mut self, id: NodeId, mode: u32) {
        let node = self.edit(id);
        node.mode = mode;
        if let Some(list) = node.xattrs.get_mut(acl::ACCESS) {
            *list = acl::with_mode(list, mode);
        }
    }

    pub(super) fn set_xattr(&mut self, id: NodeId, name: &str, value: &[u8]) {
        let node = self.edit(id);
        if name == acl::ACCESS {
            let (bits, exact) = acl::mode_of(value);
            node.mode = node.mode & !0o777 | bits;
            if exact {
                node.xattrs.remove(name);
                return;
            }
        }
        node.xattrs.insert(name.to_owned(), value.to_vec());
    }

    pub(super) fn remove_xattr(&mut self, id: NodeId, name: &str) -> Result<(), Errno> {
        let removed = self.edit(id).xattrs.remove(name);
        // Removing a list that does not exist succeeds.
        let may_lack = [acl::ACCESS, acl::DEFAULT].contains(&name);
        if removed.is_none() && !may_lack { Err(Errno::NODATA) } else { Ok(()) }
    }

    pub(super) fn link(&mut self, id: NodeId, to: &str) -> Result<NodeId, Errno> {
        let (dir, name) = self.place(to)?;
        self.edit(dir).mtime = None;
        if self.entries(dir)?.insert(name.to_owned(), id).is_some() {
            return Err(Errno::EXIST);
        }
        self.edit(id).nlink += 1;
        Ok(dir)
    }

    /// Like [`Self::link`], but replaces anything except a directory.
    pub(super) fn link_over(&mut self, id: NodeId, to: &str) -> Result<NodeId, Errno> {
        let (dir, name) = self.place(to)?;
        if let Some(replaced) = self.entries(dir)?.remove(name) {
            if matches!(self.body(replaced), Body::Dir(_)) {
                return Err(Errno::ISDIR);
            }
            self.drop_link(replaced, dir)?;
        }
        self.link(id, to)
    }

    /// Removes a name; returns the inode and its directory.
    pub(super) fn unlink(&mut self, path: &str) -> Result<(NodeId, NodeId), Errno> {
        let (dir, name) = self.place(path)?;
        self.edit(dir).mtime = None;
        let id = self.entries(dir)?.remove(name).ok_or(Errno::NOENT)?;
        self.drop_link(id, dir)?;
        Ok((id, dir))
    }

    /// Removes a link of an inode in `dir`; without links it is gone.
    fn drop_link(&mut self, id: NodeId, dir: NodeId) -> Result<(), Errno> {
        let node = self.edit(id);
        match &node.body {
            Body::Dir(entries) if !entries.is_empty() => return Err(Errno::NOTEMPTY),
            Body::Dir(_) => {
                node.nlink = 0;
                self.edit(dir).nlink -= 1;
            }
            _ => node.nlink -= 1,
        }
        if self.nodes[&id].nlink == 0 {
            self.nodes.remove(&id);
        }
        Ok(())
    }

    /// Renames; returns the two directories.
    pub(super) fn rename(
        &mut self,
        from: &str,
        to: &str,
        mode: RenameMode,
    ) -> Result<(NodeId, NodeId), Errno> {
        let (old_dir, old_name) = self.place(from)?;
        let (new_dir, new_name) = self.place(to)?;
        let id = self.resolve(from, false)?;
        let target = self.resolve(to, false).ok();
        let is_dir = |space: &Self, id| matches!(space.body(id), Body::Dir(_));
        match (mode, target) {
            (RenameMode::NoReplace | RenameMode::WhiteoutNoReplace, Some(_)) => return Err(Errno::EXIST),
            (RenameMode::Exchange, None) => return Err(Errno::NOENT),
            _ => {}
        }
        self.edit(old_dir).mtime = None;
        self.edit(new_dir).mtime = None;
        if let (RenameMode::Exchange, Some(target)) = (mode, target) {
            self.entries(old_dir)?.insert(old_name.to_owned(), target);
            self.entries(new_dir)?.insert(new_name.to_owned(), id);
            for (dir, delta) in [(old_dir, target), (new_dir, id)] {
                self.edit(dir).nlink += u64::from(is_dir(self, delta));
            }
            for (dir, delta) in [(old_dir, id), (new_dir, target)] {
                self.edit(dir).nlink -= u64::from(is_dir(self, delta));
            }
            return Ok((old_dir, new_dir));
        }
        if let Some(target) = target {
            self.entries(new_dir)?.remove(new_name);
            self.drop_link(target, new_dir)?;
        }
        self.entries(old_dir)?.remove(old_name).ok_or(Errno::NOENT)?;
        self.entries(new_dir)?.insert(new_name.to_owned(), id);
        if is_dir(self, id) {
            self.edit(old_dir).nlink -= 1;
            self.edit(new_dir).nlink += 1;
        }
        Ok((old_dir, new_dir))
    }

    /// Puts a whiteout in place of a renamed file.
    pub(super) fn white_out(&mut self, id: NodeId, path: &str) -> Result<(), Errno> {
        self.create(id, path, Body::Special(Special::Char(0, 0)), 0).map(drop)
    }

    pub(super) fn chown(&mut self, id: NodeId, uid: u32, gid: u32) {
        let node = self.edit(id);
        (node.uid, node.gid) = (uid, gid);
        if !matches!(node.body, Body::Dir(_)) {
            node.xattrs.remove(CAPABILITY);
            node.mode &= !SETUID;
            // Without group execute permission, the setgid bit once meant mandatory locking.
            if node.mode & 0o010 != 0 {
                node.mode &= !SETGID;
            }
        }
    }

    /// Drops a file's capabilities because its contents change; returns whether it had any.
    pub(super) fn drop_capability(&mut self, id: NodeId) -> bool {
        let had = self.nodes.get(&id).is_some_and(|node| node.xattrs.contains_key(CAPABILITY));
        if had {
            self.edit(id).xattrs.remove(CAPABILITY);
        }
        had
    }

    /// All paths except the root's, with their inodes.
    pub(super) fn paths(&self) -> Vec<(String, NodeId)> {
        let mut paths = Vec::new();
        let mut todo = vec![(String::new(), ROOT)];
        while let Some((path, id)) = todo.pop() {
            if let Body::Dir(entries) = self.body(id) {
                todo.extend(entries.iter().map(|(name, &id)| (join(&path, name), id)));
            }
            if !path.is_empty() {
                paths.push((path, id));
            }
        }
        paths
    }

    /// Differences from a tree, except file sizes and contents. `written(id, since)` says whether
    /// data may have changed an inode's times after operation `since`.
    pub(super) fn compare(&self, tree: &Tree, written: impl Fn(NodeId, usize) -> bool) -> Vec<String> {
        let mut complaints = Vec::new();
        let mut aliases: BTreeMap<NodeId, u64> = BTreeMap::new();
        let mut owners: BTreeMap<u64, NodeId> = BTreeMap::new();
        let paths = self.paths();
        for (path, id) in paths.iter().map(|(path, id)| (path.as_str(), *id)).chain([("", ROOT)]) {
            let Some(found) = tree.nodes.get(path) else {
                complaints.push(format!("/{path} is missing"));
                continue;
            };
            let (node, stat) = (&self.nodes[&id], &found.stat);
            complaints.extend(node.differences(path, found));
            if stat.nlink != node.nlink {
                complaints.push(format!("/{path}: link count is {}, not {}", stat.nlink, node.nlink));
            }
            if let Some((_, mtime)) = node.mtime.filter(|&(since, _)| !written(id, since)) {
                // A 128-byte inode stores only 32 bits of seconds.
                let coarse = Time { seconds: mtime.seconds.min(i32::MAX.into()), nanos: 0 };
                if stat.mtime != coarse && stat.mtime != mtime {
                    complaints.push(format!("/{path}: mtime is {:?}, not {mtime:?}", stat.mtime));
                }
            }
            if *aliases.entry(id).or_insert(stat.inode) != stat.inode {
                complaints.push(format!("/{path} is an inode of its own, not a link"));
            }
            if *owners.entry(stat.inode).or_insert(id) != id {
                complaints.push(format!("/{path} shares inode {} with another file", stat.inode));
            }
        }
        if tree.nodes.len() != paths.len() + 1 || !complaints.is_empty() {
            let known: BTreeSet<&str> = paths.iter().map(|(path, _)| path.as_str()).collect();
            let strange = tree.nodes.keys().filter(|path| !path.is_empty() && !known.contains(path.as_str()));
            complaints.extend(strange.map(|path| format!("/{path} should not be there")));
        }
        complaints
    }

    /// The node with this number, if it has a name.
    pub(super) fn node(&self, id: NodeId) -> Option<&Node> {
        self.nodes.get(&id).map(|node| &**node)
    }
}

impl Node {
    /// Differences of a file found at `path`, except link count, times, size and contents.
    pub(super) fn differences(&self, path: &str, found: &Found) -> Vec<String> {
        let mut complaints = Vec::new();
        let stat = &found.stat;
        let mut differ = |what: &str, have: &dyn fmt::Debug, want: &dyn fmt::Debug| {
            complaints.push(format!("/{path}: {what} is {have:?}, not {want:?}"));
        };
        let (kind, device, target) = self.body.describe();
        if stat.kind != kind {
            differ("kind", &stat.kind, &kind);
        }
        if stat.mode != self.mode {
            differ("mode", &format_args!("{:o}", stat.mode), &format_args!("{:o}", self.mode));
        }
        if (stat.uid, stat.gid) != (self.uid, self.gid) {
            differ("owner", &(stat.uid, stat.gid), &(self.uid, self.gid));
        }
        if stat.device != device {
            differ("device", &stat.device, &device);
        }
        if stat.flags != self.flags {
            differ("flags", &format_args!("{:#x}", stat.flags), &format_args!("{:#x}", self.flags));
        }
        if stat.project.is_some_and(|project| project != self.project) {
            differ("project", &stat.project, &self.project);
        }
        if found.target.as_deref() != target {
            differ("target", &found.target, &target);
        }
        // A tree has extended attributes of files and directories only.
        if matches!(self.body, Body::File | Body::Dir(_)) && found.xattrs != self.xattrs {
            let short = |all: &BTreeMap<String, Vec<u8>>| {
                all.iter().map(|(name, value)| (name.clone(), value.len())).collect::<Vec<_>>()
            };
            differ("attributes (names, lengths, or values)", &short(&found.xattrs), &short(&self.xattrs));
        }
        complaints
    }
}

impl Body {
    fn describe(&self) -> (Kind, (u32, u32), Option<&str>) {
        match self {
            Self::File => (Kind::File, (0, 0), None),
            Self::Dir(_) => (Kind::Dir, (0, 0), None),
            Self::Symlink(target) => (Kind::Symlink, (0, 0), Some(target)),
            Self::Special(Special::Fifo) => (Kind::Fifo, (0, 0), None),
            Self::Special(Special::Socket) => (Kind::Socket, (0, 0), None),
            Self::Special(Special::Char(major, minor)) => (Kind::Char, (*major, *minor), None),
            Self::Special(Special::Block(major, minor)) => (Kind::Block, (*major, *minor), None),
        }
    }
}
