//! Multi-step operations on nodes of the volume.

use extant_format::{FileKind, InodeNumber};
use extant_fs::{Caller, Cookie, Error, Node, Result, quote};
use std::collections::BTreeSet;

/// Symbolic links followed per path, as in Linux.
const LINKS_MAX: u32 = 40;

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
    let mut here = if path.first() == Some(&b'/') { root.clone() } else { start.clone() };
    // The next name is last.
    let mut todo = names(path);
    let mut links = 0;
    while let Some(name) = todo.pop() {
        if !is_dir(&here) {
            return Err(Error::NotADirectory(quote(path)));
        }
        let Some(next) = find(caller, &here, &name).await? else { return Ok(None) };
        if next.kind() != Some(FileKind::Symlink) {
            here = next;
            continue;
        }
        links += 1;
        if links > LINKS_MAX {
            return Err(Error::Loop(quote(path)));
        }
        let target = next.read_link().await?;
        if target.first() == Some(&b'/') {
            here = root.clone();
        }
        todo.extend(names(&target));
    }
    Ok(Some(here))
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
    let mut here = if path.first() == Some(&b'/') { root.clone() } else { start.clone() };
    let mut todo = names(path);
    let mut links = 0;
    while let Some(name) = todo.pop() {
        let there = find(caller, &here, &name).await?;
        match there {
            Some(next) if is_dir(&next) => here = next,
            Some(link) if link.kind() == Some(FileKind::Symlink) => {
                links += 1;
                if links > LINKS_MAX {
                    return Err(Error::Loop(quote(path)));
                }
                let target = link.read_link().await?;
                if target.first() == Some(&b'/') {
                    here = root.clone();
                }
                todo.extend(names(&target));
            }
            Some(other) if kept.contains(&other.inode()) => return Ok(None),
            other => {
                if other.is_some() {
                    drop(other);
                    here.unlink(caller, &name).await?;
                }
                here = here.mkdir(caller, &name, 0o755).await?;
            }
        }
    }
    Ok(Some(here))
}

fn names(path: &[u8]) -> Vec<Vec<u8>> {
    path.split(|&byte| byte == b'/').filter(|name| !name.is_empty()).rev().map(<[u8]>::to_vec).collect()
}

/// Removes a name; for a directory, also everything below it.
pub(super) async fn remove(caller: &Caller, dir: &Node, name: &[u8]) -> Result<()> {
    let Some(node) = find(caller, dir, name).await? else { return Ok(()) };
    if !is_dir(&node) {
        return dir.unlink(caller, name).await;
    }
    // Emptying it would also empty it under its other names.
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
