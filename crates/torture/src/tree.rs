//! Everything below a subject's root, as a value.

use crate::{Errno, Kind, Stat, Subject};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// A file as found by a walk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Its attributes.
    pub stat: Stat,
    /// Contents of a regular file.
    pub data: Arc<[u8]>,
    /// Target of a symbolic link.
    pub target: Option<String>,
    /// Extended attributes.
    pub xattrs: BTreeMap<String, Vec<u8>>,
}

/// Paths and what they lead to; the root is the empty path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tree {
    /// Sorted by path.
    pub nodes: BTreeMap<String, Found>,
}

/// A path that could not be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unreadable {
    /// The path.
    pub path: String,
    /// The call that failed.
    pub call: &'static str,
    /// The error.
    pub errno: Errno,
}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} /{}: {}", self.call, self.path, self.errno)
    }
}

/// Joins a directory's path and a name.
pub fn join(dir: &str, name: &str) -> String {
    if dir.is_empty() { name.to_owned() } else { format!("{dir}/{name}") }
}

/// Splits a path into its directory and its last name.
pub fn split(path: &str) -> (&str, &str) {
    path.rsplit_once('/').unwrap_or(("", path))
}

impl Tree {
    /// Reads everything on a subject.
    ///
    /// # Errors
    /// The first call that fails, with its path.
    pub fn of(subject: &mut dyn Subject) -> Result<Self, Unreadable> {
        let mut tree = Self::default();
        let mut todo = vec![String::new()];
        while let Some(path) = todo.pop() {
            let fail = |call| {
                let path = path.clone();
                move |errno| Unreadable { path, call, errno }
            };
            let stat = subject.stat(&path).map_err(fail("stat"))?;
            let data = match stat.kind {
                Kind::File => subject.read(&path).map_err(fail("read"))?.into(),
                _ => Arc::default(),
            };
            let target = match stat.kind {
                Kind::Symlink => Some(subject.read_link(&path).map_err(fail("readlink"))?),
                _ => None,
            };
            let xattrs = match stat.kind {
                Kind::File | Kind::Dir => subject.xattrs(&path).map_err(fail("listxattr"))?,
                _ => Vec::new(),
            };
            if stat.kind == Kind::Dir {
                let names = subject.list(&path).map_err(fail("readdir"))?;
                todo.extend(names.iter().map(|name| join(&path, name)));
            }
            let found = Found { stat, data, target, xattrs: xattrs.into_iter().collect() };
            if tree.nodes.insert(path.clone(), found).is_some() {
                return Err(fail("readdir gave twice")(Errno::EXIST));
            }
        }
        Ok(tree)
    }

    /// Differences from another tree, except inode numbers, times and directory sizes; empty if
    /// there are none.
    pub fn differences(&self, other: &Self) -> Vec<String> {
        let mut lines = Vec::new();
        for (path, ours) in &self.nodes {
            let Some(theirs) = other.nodes.get(path) else {
                lines.push(format!("/{path}: only on the left"));
                continue;
            };
            let (a, b) = (&ours.stat, &theirs.stat);
            let mut differ = |what: &str, a: &dyn fmt::Debug, b: &dyn fmt::Debug| {
                let (a, b) = (format!("{a:?}"), format!("{b:?}"));
                if a != b {
                    lines.push(format!("/{path}: {what} is {a:.200}, elsewhere {b:.200}"));
                }
            };
            differ("kind", &a.kind, &b.kind);
            differ("mode", &format!("{:o}", a.mode), &format!("{:o}", b.mode));
            differ("owner", &(a.uid, a.gid), &(b.uid, b.gid));
            differ("link count", &a.nlink, &b.nlink);
            differ("flags", &format!("{:#x}", a.flags), &format!("{:#x}", b.flags));
            differ("device", &a.device, &b.device);
            differ("target", &ours.target, &theirs.target);
            differ("attributes", &ours.xattrs, &theirs.xattrs);
            differ("hard links", &self.alias(path), &other.alias(path));
            if a.kind == Kind::File {
                differ("size", &a.size, &b.size);
                let at = ours.data.iter().zip(&*theirs.data).position(|(a, b)| a != b);
                differ("first differing byte", &at, &None::<usize>);
            }
        }
        let only = other.nodes.keys().filter(|path| !self.nodes.contains_key(*path));
        lines.extend(only.map(|path| format!("/{path}: only on the right")));
        lines
    }

    /// The first path with the same inode.
    fn alias(&self, path: &str) -> Option<&str> {
        let inode = self.nodes[path].stat.inode;
        self.nodes.iter().find(|(_, found)| found.stat.inode == inode).map(|(path, _)| path.as_str())
    }
}
