//! Multi-step operations on nodes of the volume.

use extant_format::{FileKind, InodeNumber};
use extant_fs::{Caller, Cookie, Error, Follow, Node, PathNodes, Result, quote, walk_path};
use std::collections::BTreeSet;

/// A caller without permission checks: whoever runs this program owns the image.
pub(super) fn unchecked() -> Caller {
    Caller { checked: false, ..Caller::root() }
}

pub(super) fn is_dir(node: &Node) -> bool {
    node.kind() == Some(FileKind::Directory)
}

/// The node of a name, if it exists.
pub(super) async fn find(caller: &Caller, dir: &Node, name: &[u8]) -> Result<Option<Node>> {
    match dir.lookup(caller, name).await {
        Ok(node) => Ok(Some(node)),
        Err(Error::NotFound(_)) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Resolves `path` from `start`, following symbolic links; a path that begins with a slash is
/// resolved from `root`.
pub(super) async fn follow(caller: &Caller, root: &Node, start: &Node, path: &[u8]) -> Result<Option<Node>> {
    let nodes = Nodes { caller, root, path, made_beside: None };
    walk_path(&nodes, &Some(start.clone()), path, Follow::Yes).await
}

/// Like [`follow`], but creates missing directories, including the target of a dangling link, and
/// replaces files that are in the way. Returns `None` if that would replace one of `kept`.
pub(super) async fn follow_or_make(
    caller: &Caller,
    root: &Node,
    start: &Node,
    path: &[u8],
    kept: &BTreeSet<InodeNumber>,
) -> Result<Option<Node>> {
    let nodes = Nodes { caller, root, path, made_beside: Some(kept) };
    walk_path(&nodes, &Some(start.clone()), path, Follow::Yes).await
}

/// The nodes of a path on the volume; `None` for a missing name, and for names below it.
struct Nodes<'a> {
    caller: &'a Caller,
    root: &'a Node,
    path: &'a [u8],
    /// Creates directories for missing names, and in place of other files. The exceptions are these
    /// files; their names count as missing.
    made_beside: Option<&'a BTreeSet<InodeNumber>>,
}

impl PathNodes for Nodes<'_> {
    type Node = Option<Node>;

    fn root(&self) -> Option<Node> {
        Some(self.root.clone())
    }

    async fn lookup(&self, dir: &Option<Node>, name: &[u8]) -> Result<Option<Node>> {
        let Some(dir) = dir else { return Ok(None) };
        if !is_dir(dir) {
            return Err(Error::NotADirectory(quote(self.path)));
        }
        let there = find(self.caller, dir, name).await?;
        let Some(kept) = self.made_beside else { return Ok(there) };
        match there {
            Some(there) if is_dir(&there) || there.kind() == Some(FileKind::Symlink) => Ok(Some(there)),
            Some(other) if kept.contains(&other.inode()) => Ok(None),
            other => {
                if other.is_some() {
                    drop(other);
                    dir.unlink(self.caller, name).await?;
                }
                dir.mkdir(self.caller, name, 0o755).await.map(Some)
            }
        }
    }

    fn is(&self, node: &Option<Node>, kind: FileKind) -> Result<bool> {
        Ok(node.as_ref().map_or(kind == FileKind::Directory, |node| node.kind() == Some(kind)))
    }

    async fn read_link(&self, link: &Option<Node>) -> Result<Vec<u8>> {
        let Some(link) = link else { return Ok(Vec::new()) };
        let mut target = link.read_link().await?;
        // If a file is where a directory should be, the caller decides, so drop trailing slashes.
        while target.len() > 1 && target.ends_with(b"/") {
            target.pop();
        }
        Ok(target)
    }
}

/// Removes a name; for a directory, also everything below it.
pub(super) async fn remove(caller: &Caller, dir: &Node, name: &[u8]) -> Result<()> {
    let Some(node) = find(caller, dir, name).await? else { return Ok(()) };
    if !is_dir(&node) {
        return dir.unlink(caller, name).await;
    }
    // Emptying the directory would also empty it under its other names.
    dir.check_only_name(caller, name).await?;
    let mut todo = vec![(dir.clone(), name.to_vec(), node)];
    while let Some((above, name, node)) = todo.last().cloned() {
        let before = todo.len();
        for child in entries(&node).await? {
            let below = node.lookup(caller, &child).await?;
            if is_dir(&below) {
                node.check_only_name(caller, &child).await?;
                todo.push((node.clone(), child, below));
            } else {
                drop(below);
                node.unlink(caller, &child).await?;
            }
        }
        if todo.len() == before {
            drop(node);
            todo.pop();
            above.rmdir(caller, &name).await?;
        }
    }
    Ok(())
}

/// Removes everything in a directory except the name `kept`.
pub(super) async fn empty(caller: &Caller, dir: &Node, kept: Option<&[u8]>) -> Result<()> {
    for name in entries(dir).await? {
        if Some(&*name) != kept {
            remove(caller, dir, &name).await?;
        }
    }
    Ok(())
}

async fn entries(dir: &Node) -> Result<Vec<Vec<u8>>> {
    let mut found = Vec::new();
    let mut from = Cookie::START;
    while from != Cookie::END {
        let emit = &mut |entry: extant_fs::Listed<'_>| {
            if entry.name != b"." && entry.name != b".." {
                found.push(entry.name.to_vec());
            }
            true
        };
        from = dir.read_dir(from, emit).await?;
    }
    Ok(found)
}
