//! The one walk along a path, for every tree of names that has symbolic links.

use crate::view::View;
use crate::{Error, Result, quote};
use extant_format::{FileKind, Inode, InodeNumber};
use std::future::Future;

/// Whether to follow a symbolic link at the end of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Follow {
    /// Use the link's target.
    Yes,
    /// Use the link itself.
    No,
}

/// Maximum number of symbolic links followed in one path (Linux: `MAXSYMLINKS`).
pub const SYMLINKS_MAX: u32 = 40;

/// The nodes that a path leads through.
pub trait PathNodes: Sync {
    /// A node.
    type Node: Clone + Send + Sync;

    /// The node of the path `/`.
    fn root(&self) -> Self::Node;

    /// The node of a name in a directory, including `.` and `..`.
    ///
    /// # Errors
    /// `dir` is not a directory, or may not be searched; there is no such name.
    fn lookup(&self, dir: &Self::Node, name: &[u8]) -> impl Future<Output = Result<Self::Node>> + Send;

    /// Whether a node is of this kind.
    ///
    /// # Errors
    /// The node is not in use.
    fn is(&self, node: &Self::Node, kind: FileKind) -> Result<bool>;

    /// The target of a symbolic link.
    ///
    /// # Errors
    /// It cannot be read.
    fn read_link(&self, link: &Self::Node) -> impl Future<Output = Result<Vec<u8>>> + Send;
}

/// Resolves a path from `start`, or from the root if it begins with a slash, as
/// `path_resolution(7)` describes. Before a trailing slash there must be a directory.
///
/// # Errors
/// Those of [`PathNodes`]; [`Error::Loop`]; [`Error::NotADirectory`].
pub async fn walk_path<N: PathNodes>(
    nodes: &N,
    start: &N::Node,
    path: &[u8],
    follow: Follow,
) -> Result<N::Node> {
    let mut here = if path.starts_with(b"/") { nodes.root() } else { start.clone() };
    let mut rest = names(path).peekable();
    // Names from the targets of symbolic links, which come before `rest`; the next one is last.
    let mut todo: Vec<Vec<u8>> = Vec::new();
    let mut wants_dir = path.ends_with(b"/");
    let mut links = 0;
    loop {
        let next = match todo.pop() {
            Some(name) => nodes.lookup(&here, &name).await?,
            None => match rest.next() {
                Some(name) => nodes.lookup(&here, name).await?,
                None => break,
            },
        };
        let is_last = todo.is_empty() && rest.peek().is_none();
        let follows = !is_last || wants_dir || follow == Follow::Yes;
        if !nodes.is(&next, FileKind::Symlink)? || !follows {
            here = next;
            continue;
        }
        links += 1;
        if links > SYMLINKS_MAX {
            return Err(Error::Loop(quote(path)));
        }
        let target = nodes.read_link(&next).await?;
        if target.starts_with(b"/") {
            here = nodes.root();
        }
        wants_dir |= is_last && target.ends_with(b"/");
        todo.extend(names(&target).rev().map(<[u8]>::to_vec));
    }
    match wants_dir && !nodes.is(&here, FileKind::Directory)? {
        true => Err(Error::NotADirectory(quote(path))),
        false => Ok(here),
    }
}

fn names(path: &[u8]) -> impl DoubleEndedIterator<Item = &[u8]> {
    path.split(|&byte| byte == b'/').filter(|name| !name.is_empty())
}

impl View {
    /// Resolves an absolute path. `..` never goes above the root.
    pub(crate) async fn resolve(&self, path: &[u8], follow: Follow) -> Result<Inode> {
        let root = Passed { inode: self.root().await?, above: Vec::new() };
        let found = walk_path(&Stored { view: self, root: &root, path }, &root, path, follow).await?;
        Ok(found.inode)
    }
}

/// Nodes as stored on the volume.
struct Stored<'a> {
    view: &'a View,
    root: &'a Passed,
    path: &'a [u8],
}

/// An inode, and the directories passed on the way to it, innermost last, so that `..` needs no
/// entry on disk.
#[derive(Clone)]
struct Passed {
    inode: Inode,
    above: Vec<InodeNumber>,
}

impl PathNodes for Stored<'_> {
    type Node = Passed;

    fn root(&self) -> Passed {
        self.root.clone()
    }

    async fn lookup(&self, dir: &Passed, name: &[u8]) -> Result<Passed> {
        if dir.inode.kind() != Some(FileKind::Directory) {
            return Err(Error::NotADirectory(quote(self.path)));
        }
        let mut above = dir.above.clone();
        let number = match name {
            b"." => return Ok(dir.clone()),
            b".." => match above.pop() {
                Some(parent) => parent,
                None => return Ok(dir.clone()),
            },
            name => {
                above.push(dir.inode.number);
                let found = self.view.lookup(&dir.inode, name).await?;
                found.ok_or_else(|| Error::NotFound(quote(self.path)))?
            }
        };
        Ok(Passed { inode: self.view.inode(number).await?, above })
    }

    fn is(&self, node: &Passed, kind: FileKind) -> Result<bool> {
        Ok(node.inode.kind() == Some(kind))
    }

    async fn read_link(&self, link: &Passed) -> Result<Vec<u8>> {
        self.view.read_link(&link.inode).await
    }
}
